"""What the commands print: results on standard output, notes, progress and errors on standard error."""

from __future__ import annotations

import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from polyvoc.cli.start import erase_opening
from polyvoc.options import FeatureOptions, Line, SetKind
from polyvoc.types import FeatureKind, IndexReport, Problem, Progress

if TYPE_CHECKING:
    from polyvoc.experiments.evaluate import RuleResult
    from polyvoc.experiments.report.report import Report
    from polyvoc.experiments.workbench import QuantisedDataset

COMPILING = "compiling, once per installation"
OPENING = "opening the index on the machines: the first time, they compile kernels"


def write(*parts: str | Text) -> None:
    """Print one line of a result; never wrapped, so that it can be piped and copied."""
    erase_opening()
    if sys.stdout.isatty():
        Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print(*parts)
    else:
        print(*parts)


def write_json(value: Any) -> None:
    """Print a result for programs, in ASCII: file names that are not text are escaped."""
    erase_opening()
    print(json.dumps(value, indent=2))


def print_note(line: str) -> None:
    """Print a line that is not part of the result."""
    erase_opening()
    print(line, file=sys.stderr)


def print_error(line: str) -> None:
    """Print an error on one line."""
    print_note("polyvoc: " + " ".join(line.splitlines()))


def print_row(label: str, *lines: str) -> None:
    """Print a label and one or more lines."""
    for number, line in enumerate(lines):
        write(f"{'' if number else label:<13} {line}")


def mark(right: bool) -> Text:
    """Return the mark of a right or wrong result."""
    return Text("right", style="green") if right else Text("wrong", style="red")


def short_path(path: str) -> str:
    """Return a path relative to the current folder if it lies below it; an address as it is."""
    try:
        relative = os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path
    except OSError:  # the current folder is gone
        return path
    return f"./{relative}" if relative.startswith("-") else relative  # no program takes it for an option


def shown_path(path: str) -> str:
    """Return a path as one line of text, as a user would type it here."""
    from polyvoc.storage.stores import display_name

    return display_name(short_path(path))


def linked_path(path: str, style: str = "") -> Text:
    """Return a path as a user would type it here, with a link for terminals that support it."""
    link = f"link {Path(path).as_uri()}" if Path(path).is_absolute() else ""
    return Text(shown_path(path), style=f"{style} {link}".strip())


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Return the number done per second."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f}/s", style="progress.data.speed")


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Return a function that shows progress as a bar with rate and time left; silent unless there is a terminal."""
    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield lambda stage, done, total: None
        return
    erase_opening()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Bars(*columns, console=terminal, transient=True) as bars:
        tasks = {}
        started = bars.add_task("starting", total=None)

        def show(stage: str, done: int, total: int) -> None:
            bars.update(started, visible=False)
            name = stage.partition(":")[0]  # what follows a colon changes from step to step
            if name not in tasks:
                tasks[name] = bars.add_task(stage, total=total)
            bars.update(tasks[name], description=stage, completed=done, total=total)

        with _compiling(bars):
            yield show


@contextmanager
def _compiling(bars: Bars) -> Iterator[None]:
    """Show how many kernels have been compiled, from the first on."""
    from polyvoc.kernels.compiler import reported_compiling

    tasks: list[TaskID] = []

    def report(count: int) -> None:
        if not tasks:
            tasks.append(bars.add_task(COMPILING, total=None))
        bars.update(tasks[0], completed=count)

    with reported_compiling(report):
        yield


MAX_PROBLEMS = 20  # broken files listed
BAR = 40  # characters of the longest bar of a histogram


def print_report(report: IndexReport, seconds: float) -> None:
    """Print what a run of indexing did."""
    names = ("added", "replaced", "removed", *(["moved"] if report.moved else []), "unchanged")
    counts = (f"{getattr(report, name)} {name}" for name in names)
    write(f"{', '.join(counts)}; {report.features:,} new features; {seconds:.1f} s")
    if report.skipped:
        write(f"skipped: {kinds_text(report.skipped)}{extra_text(report.skipped)}")
    for folder, count in report.absent.items():
        write(f"{shown_path(folder)} is not there, or empty: its {count:,} photographs are kept; if it is gone for good: "
              f"polyvoc remove {shlex.quote(folder)}")  # fmt: skip
    print_problems(report.problems)


def print_update(report: IndexReport, commit: int, seconds: float, as_json: bool) -> None:
    """Print one line about an update while an index is watched; none if nothing has changed."""
    names = ("added", "replaced", "removed", "moved")
    if not any(getattr(report, name) for name in names):
        return
    at = time.strftime("%H:%M:%S")
    if as_json:
        values = {"time": at, **report.as_dict(), "commit": commit, "seconds": round(seconds, 3)}
        print(json.dumps(values), flush=True)
        return
    counts = ", ".join(f"{count} {name}" for name in names if (count := getattr(report, name)))
    problems = f", {len(report.problems)} could not be used" if report.problems else ""
    print(f"{at}  {counts}{problems}; commit {commit}; {seconds:.1f} s", flush=True)


def kinds_text(skipped: Mapping[str, int]) -> str:
    """Return numbers of files by kind, most first: "12 MP4, 3 XCF"."""
    kinds = sorted(skipped.items(), key=lambda one: (one[0].islower(), -one[1], one[0]))
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds)


def extra_text(skipped: Iterable[str]) -> str:
    """Return how to read some of the kinds that are skipped; nothing if there is no way."""
    from polyvoc.storage.folders import readable_with_extra

    kinds = readable_with_extra(skipped)
    return f" (to read {', '.join(kinds)}: pip install 'polyvoc[formats]')" if kinds else ""


def problem_text(problem: Problem) -> str:
    """Return why a file could not be used, with its path as a user would type it here."""
    from polyvoc.storage.stores import display_name

    head = f"{display_name(problem.path)}: "
    return (
        f"{shown_path(problem.path)}: {problem.reason.removeprefix(head)}"
        if problem.reason.startswith(head)
        else problem.reason
    )


def print_problems(problems: Sequence[Problem]) -> None:
    """Print the files that could not be used; each reason names its file."""
    if problems:
        write(f"{len(problems)} could not be used:")
    for problem in problems[:MAX_PROBLEMS]:
        write(f"  {problem_text(problem)}")
    if len(problems) > MAX_PROBLEMS:
        write(f"  and {len(problems) - MAX_PROBLEMS} more: --json lists all")


def print_evaluation(bench: QuantisedDataset, rows: Sequence[RuleResult], lines: Mapping[SetKind, Line], origin: str) -> None:
    """Print one row per rule: the measure, its interval, and the difference to `b1` under the same conditions."""
    from polyvoc.experiments.measures import MEASURES

    dataset = bench.dataset
    measure = MEASURES[dataset.measure]
    words = " + ".join(f"{size:,}" for size in bench.sizes)
    write(f"{dataset.name}: {len(dataset.images):,} images, {len(dataset.questions):,} queries, words {words}")
    write(f"  term 2 = {', '.join(_by_kind(lines))} ({origin})")
    for note in dataset.notes:
        write(f"  {note}")
    write(f"{'rule':<30} {rows[0].measure:>16} {'95 % interval':>19}   {'minus b1':>9} {'95 % interval':>19} {'ms':>7}")
    for row in rows:
        mean, low, high = (measure.show(x) for x in (row.value.mean, row.value.low, row.value.high))
        gain = " " * 29
        if row.gain is not None:
            scaled = (x * measure.scale for x in (row.gain.mean, row.gain.low, row.gain.high))
            more, least, most = (f"{x:+.{measure.digits}f}" for x in scaled)
            gain = f"{more:>9} {f'{least} to {most}':>19}"
        write(f"{row.rule:<30} {mean:>16} {f'{low} to {high}':>19}   {gain} {1000 * row.seconds:>7.1f}")
    print_problems(bench.store.problems)


def print_calibration(values: dict[str, Any]) -> None:
    """Print the lines of term 2 and the likelihood table, what they were fitted to, their tests, and their use."""
    from polyvoc.scoring.rules import group_names, table_from_dict

    table = None if values["likelihood_table"] is None else table_from_dict(values["likelihood_table"], "")
    codes = values.get("code_table")
    index, tied = [values["index"]] if "index" in values else [], {kind: fit["tied"] for kind, fit in values["line"].items()}
    source = table.source if table is not None else codes["source"] if codes is not None else ""
    print_row(values.get("dataset", "index"), *index, *([_matches(values["line"]["feature"])] if tied else [source]))
    for kind, fit in values["line"].items():
        print_row(f"{kind} sets", *_fit_rows(fit))
    if table is not None:
        print_row("likelihood", *map(_table_text, group_names(table), table.rows))
    if codes is not None:
        names = ["nearest word", *(f"beyond {edge:g} x" for edge in codes["edges"])]
        print_row("codes", *map(_table_text, names, codes["rows"]))
    for test in values.get("tests", []):
        results = [row for kind, fit in test["line"].items() for row in _test_rows(kind, fit)]
        print_row(f"on {test['dataset']}", *results, f"table: error {test['likelihood_table']['error']:.2f} nats per match")
    if values.get("saved"):
        print_row("saved", f"searches of {values['index']} use {', '.join([*_by_kind(tied), 'this table'])}")
        return
    search, rules = "polyvoc search PHOTO", {"feature": "posterior", "image": "bayes"}
    line_use = [f"{search} --merge {rules[kind]} --line {a:.3f} {b:.3f}" for kind, (a, b) in tied.items()]
    table_use = [f"{search} --likelihood-table {shlex.quote(values['table'])}"] if values["table"] is not None else []
    save_use = [f"polyvoc calibrate --index {shlex.quote(index[0])} --save"] if index else []
    print_note(f"Use it: {', or '.join(line_use + table_use + save_use)}")


def _matches(fit: dict[str, Any]) -> str:
    """Return how many pairs and true matches a line was fitted to: the same for every kind of sets."""
    pairs = f"{fit['queries']:,} queries, {fit['pairs']:,} pairs of photographs that show the same thing"
    return f"{pairs}, {fit['true_matches']:,} true matches of {fit['features']:,} features"


def _fit_rows(fit: dict[str, Any]) -> list[str]:
    """Return the lines and the curve of one kind of sets with their intervals, one text each."""
    spread = {name: " to ".join("?" if x is None else f"{x:.3f}" for x in ends) for name, ends in fit["intervals"].items()}
    curve = f"1 - {1 - fit['curve']['b']:.3f} (1 - r)^{fit['curve']['power']:.2f}"
    return [
        f"{fit['share']:.0%} of the true matches in the intersection",
        f"{'a + b = 1':<10} {_line(fit['tied'])}   b {spread['tied_b']}",
        f"{'free':<10} {_line(fit['free'])}   a {spread['a']}, b {spread['b']}",
        f"{'raw points':<10} {_line(fit['raw'])}",
        f"{'curve':<10} {curve}   power {spread['power']} (above 1: concave)",
    ]


def _test_rows(kind: str, test: dict[str, Any]) -> list[str]:
    """Return the prediction errors of the lines and the curve of one kind of sets, one text each."""
    names = {"tied": "a + b = 1", "free": "free", "curve": "curve"}
    rows = [
        f"{name:<10} error {test[key]['error']:.3f}, {test[key]['gain']:+.3f} nats per true match"
        for key, name in names.items()
    ]
    return [f"{kind} sets", *rows, f"{'constant':<10} error {test['tied']['constant_error']:.3f}"]


def _by_kind(lines: Mapping[SetKind, Sequence[float]]) -> list[str]:
    """Return one text per kind of sets, or one for all if their lines are the same."""
    if len({tuple(line) for line in lines.values()}) == 1:
        return [_line(next(iter(lines.values())))]
    return [f"{_line(line)} for {kind} sets" for kind, line in lines.items()]


def _line(line: Sequence[float]) -> str:
    return f"{line[0]:.3f} r + {line[1]:.3f}"


def print_reproduction(report: Report, page: Path) -> None:
    """Print what reproduces and what does not, and where the page is."""
    for section in report.sections:
        write(f"{section.heading:<58} {section.verdict}")
        if section.verdict_text:
            write(f"    {section.verdict_text}")
    write("Page:", linked_path(str(page.absolute())))


def _table_text(name: str, row: Sequence[float]) -> str:
    bits = len(row) - 1
    return f"{name}: {', '.join(f'{row[h]:.2f} at {h}' for h in range(0, bits // 2, bits // 8))} bits"


def print_summary(facts: dict[str, Any]) -> None:
    """Print what an index holds in plain words."""
    print_row("index", f"{facts['index']}: {facts['images']:,} photographs")
    away = " (was not there, or empty, at the last update)"
    print_row("folders", *(f"{shown_path(one['path'])}: {one['photographs']:,} photographs{'' if one['available'] else away}"
                           for one in facts["folders"]))  # fmt: skip
    if facts["skipped"]:
        print_row("skipped", f"{kinds_text(facts['skipped'])}{extra_text(facts['skipped'])}")
    if facts["exclude"]:
        print_row("left out", ", ".join(facts["exclude"]))
    if facts["problems"]:
        texts = [problem_text(Problem(**problem)) for problem in facts["problems"]]
        more = [f"and {len(texts) - MAX_PROBLEMS} more: --json lists all"] if len(texts) > MAX_PROBLEMS else []
        print_row("not usable", *texts[:MAX_PROBLEMS], *more)
    print_row("size", size_text(facts["bytes"]["total"]))
    run = "on another machine" if facts["last_run"] is None else f"{datetime.fromisoformat(facts['last_run']):%Y-%m-%d %H:%M}"
    print_row("last run", f"{run}, commit {facts['commit']}")


def size_text(size: float) -> str:
    """Return a number of bytes in a unit that suits it."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}" if unit != "bytes" else f"{size:.0f} bytes"
        size /= 1000
    return f"{size:,.3g} TB"


def print_info(facts: dict[str, Any]) -> None:
    """Print how an index is made, and where its bytes are."""
    kind, per_feature = FeatureKind(**facts["kind"]), facts["bytes_per_feature"]
    print_row("format", str(facts["format"]))
    print_row("images", f"{facts['images']:,} in {facts['segments']} segments, {facts['deleted']:,} deleted")
    print_row("features", f"{facts['features']:,} of {kind}" + (f", {per_feature} bytes each" if per_feature else ""))
    print_row("bytes", *(f"{size:>13,} {part}" for part, size in facts["bytes"].items() if size))
    fine = facts["fine_vocabulary"]
    print_row("codes", "none" if fine is None else f"{fine['bits']} bits relative to {vocabulary_text(fine)}")
    print_row("words", *([f"signatures of {facts['signatures']} bits"] if facts["signatures"] else []),
              *(list(map(vocabulary_text, facts["vocabularies"])) or ["none"]))  # fmt: skip
    options = FeatureOptions(**facts["feature_options"])
    external = f"another program, max features {options.max_features}"
    print_row("features by", _listed(_flat(facts["feature_options"])) if options.kind == kind else external)
    model = facts["embedding"]
    made = None if model is None else f"{model['file'] or 'a function'} ({model['fingerprint']})"
    print_row("embedding", "none" if model is None else f"{model['dimension']} numbers by {made}")
    print_row("search by", _listed(facts["default_options"]))
    print_row("term 2", *_by_kind(facts["lines"]))


def print_distributions(facts: dict[str, Any]) -> None:
    """Print the lengths of the lists of each vocabulary, and how much the lists of one feature overlap."""
    for number, one in enumerate(facts["list_lengths"], start=1):
        longest = f"median {one['median']:,.0f}, longest {one['longest']:,}, {one['empty']:,} empty"
        print_row(f"vocabulary {number}", f"features in a list: {longest}", *_bars(one, _lengths))
    for one in facts["ratios"]:
        if one["mean"] is not None:
            label = "ratio " + " ".join(map(str, one["vocabularies"]))
            text = f"of intersection to union, of {facts['sampled_features']:,} features: mean {one['mean']:.3f}"
            print_row(label, text, *_bars(one, lambda low, high: f"{low:.2f} - {high:.2f}"))


def _lengths(low: int, high: int) -> str:
    return f"{low:,}-{high - 1:,}".rjust(15) if high - low > 1 else f"{low:>15,}"


def _bars(histogram: dict[str, Any], name: Callable[[Any, Any], str]) -> list[str]:
    """Return a histogram, one line for each bin."""
    edges, counts = histogram["edges"], histogram["counts"]
    most = max(*counts, 1)
    lines = []
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        eighths = -(-8 * BAR * count // most)  # rounded up: a bin that is not empty is visible
        lines.append(f"{name(low, high)} {count:>9,} {'█' * (eighths // 8)}{' ▏▎▍▌▋▊▉'[eighths % 8]}".rstrip())
    return lines


def vocabulary_text(facts: dict[str, Any]) -> str:
    """Return one line about a vocabulary."""
    sizes = f"{facts['size']:,} words of {FeatureKind(**facts['kind'])}"
    return f"{facts['fingerprint']}: {sizes}; {_listed(facts['provenance'])}"


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Return feature options with what is known of a network among them."""
    network = values.get("network")
    known = {} if network is None else {"file": network["file"], "fingerprint": network["fingerprint"]}
    return {name: value for name, value in values.items() if name != "network"} | known


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {_plain(value)}" for name, value in values.items())


def _plain(value: Any) -> str:
    """Return a value as it is typed for an option."""
    if isinstance(value, dict):
        return f"({_listed(value)})"
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return "none" if value is None else {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
