"""Answers for people: how the results of the commands are printed."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polyvoc import confidence, evidence
from polyvoc.console import linked, mark, talk, write, write_fact
from polyvoc.records import FeatureOptions, IndexReport, Kind, Problem

if TYPE_CHECKING:
    from polyvoc import demo
    from polyvoc.answers import Answer
    from polyvoc.lab.evaluation import Row
    from polyvoc.lab.measures import Interval, Measure
    from polyvoc.lab.report import Report
    from polyvoc.lab.workbench import Bench

MAX_PROBLEMS = 20  # broken files listed
BAR = 40  # characters of the longest bar of a histogram


def show_demo(report: demo.Report) -> None:
    """Show the rankings of the demonstration, how good they are, and what to try next."""
    for answer in report.answers:
        write(f"{answer.name}: {answer.found} of {answer.n_right} views in the first {answer.n_right}")
        for rank, hit in enumerate(answer.hits[:5], start=1):
            write(f"{rank:>4}", mark(answer.is_right(hit)), f"{hit.score:8.4f}", linked(hit.path))
    write(
        f"\n{report.n_images} photographs, {report.n_features:,} features, {report.seconds:.1f} s. "
        f"Best hit right: {report.first_right} of {len(report.answers)}. "
        f"Views in the first ranks: {report.found} of {report.n_right} ({report.found / report.n_right:.0%}). "
        f"Mean average precision: {report.mean_average_precision:.3f}."
    )
    write("Page:", linked(str(report.page.absolute())))
    query, index = (shlex.quote(str(path)) for path in (report.answers[0].query, report.index))
    talk(f"Try next: polyvoc serve {index} --open")
    talk(f"          polyvoc search {query} --index {index} --timings")
    talk("          polyvoc index ~/Pictures && polyvoc search PHOTO --html answers.html")


def show_report(report: IndexReport, seconds: float) -> None:
    """Show what a run of indexing did."""
    counts = (f"{getattr(report, name)} {name}" for name in ("added", "replaced", "removed", "unchanged"))
    write(f"{', '.join(counts)}; {report.features:,} new features; {seconds:.1f} s")
    show_problems(report.problems)


def show_problems(problems: Sequence[Problem]) -> None:
    """Show the files that could not be used; each reason names its file."""
    if problems:
        write(f"{len(problems)} could not be used:")
    for problem in problems[:MAX_PROBLEMS]:
        write(f"  {problem.reason}")
    if len(problems) > MAX_PROBLEMS:
        write(f"  and {len(problems) - MAX_PROBLEMS} more: --json lists all")


def show_answers(told: list[Answer], timings: bool, named: bool) -> None:
    """Show hits, best first; with the name of each query if there are several."""
    for answer in told:
        if named:
            write(linked(answer.query))
        for rank, hit in enumerate(answer.hits, start=1):
            chance = "" if hit.probability is None else f"{confidence.in_words(hit.probability):>7} "
            write(f"{rank:>4}  {hit.score:8.4f} {chance}", linked(hit.path))
        if not answer.hits:
            sure = answer.options.sure
            talk(
                confidence.nothing_found(sure) if sure else "nothing found: no photograph of the index shares a feature with it"
            )
        if not answer.hits.complete:
            count = sum(last - first + 1 for first, last in answer.missing)
            talk(f"incomplete: {count:,} images are on machines that do not answer now (--whole waits for them)")
        if timings:
            talk("seconds: " + ", ".join(f"{stage} {value:.3f}" for stage, value in answer.seconds.items()))


def show_evaluation(bench: Bench, rows: Sequence[Row], line: tuple[float, float], origin: str) -> None:
    """Show one row per rule: the measure, its interval, and the difference to `b1` under the same conditions."""
    from polyvoc.lab.measures import MEASURES

    dataset = bench.dataset
    measure = MEASURES[dataset.measure]
    words = " + ".join(f"{size:,}" for size in bench.sizes)
    write(f"{dataset.name}: {len(dataset.images):,} images, {len(dataset.questions):,} questions, words {words}")
    write(f"  term 2 = {line[0]:.3f} r + {line[1]:.3f} ({origin})")
    for note in dataset.notes:
        write(f"  {note}")
    write(f"{'rule':<30} {rows[0].measure:>16} {'95 % interval':>19}   {'minus b1':>9} {'95 % interval':>19} {'ms':>7}")
    for row in rows:
        value = f"{measure.show(row.value.mean):>16} {_bounds(measure, row.value):>19}"
        gain = " " * 29 if row.gain is None else f"{_signed(measure, row.gain.mean):>9} {_bounds(measure, row.gain, True):>19}"
        write(f"{row.rule:<30} {value}   {gain} {1000 * row.seconds:>7.1f}")
    show_problems(bench.store.problems)


def show_calibration(told: dict[str, Any]) -> None:
    """Show the line of term 2 and the table of evidence, what they were fitted to, how they do elsewhere, and their use."""
    write_fact(told.get("dataset", "index"), *([told["index"]] if "index" in told else []), *_learnt_from(told))
    if "tied" in told:
        spread = told["intervals"]
        write_fact("a + b = 1", f"{_line(told['tied'])}   {_spread('b', spread['tied_b'])}")
        write_fact("free", f"{_line(told['free'])}   {_spread('a', spread['a'])}, {_spread('b', spread['b'])}")
        write_fact("raw points", _line(told["raw"]))
    write_fact("evidence", *_nats(told["evidence"]))
    for test in told.get("tests", []):
        lines = ((name, test[kind]) for kind, name in (("tied", "a + b = 1"), ("free", "free")) if kind in test)
        judged = [f"{name:<10} error {one['error']:.3f}, {one['gain']:+.3f} nats per true match" for name, one in lines]
        constant = [f"constant   error {test['tied']['constant_error']:.3f}"] if "tied" in test else []
        write_fact(
            f"on {test['dataset']}", *judged, *constant, f"evidence   error {test['evidence']['error']:.2f} nats per match"
        )
    if told.get("saved"):
        line = f"{_line(told['tied'])} and " if "tied" in told else ""
        write_fact("saved", f"searches of {told['index']} use {line}this table")
    else:
        _talk_of_use(told)


def _learnt_from(told: dict[str, Any]) -> list[str]:
    if "tied" not in told:
        return [told["evidence"]["source"]]
    asked = f"{told['questions']:,} questions, {told['pairs']:,} pairs of photographs that show the same thing"
    return [
        asked,
        f"{told['true_matches']:,} true matches of {told['features']:,} features, {told['share']:.0%} in the intersection",
    ]


def _nats(values: dict[str, Any]) -> list[str]:
    """Show some values of each row of a table."""
    table = evidence.from_dict(values, "")
    steps = range(0, table.bits // 2, table.bits // 8)
    return [
        f"{name}: {', '.join(f'{row[h]:.2f} at {h}' for h in steps)} bits"
        for name, row in zip(evidence.group_names(table), table.rows, strict=True)
    ]


def _talk_of_use(told: dict[str, Any]) -> None:
    """Say how to search with what was found."""
    ways = []
    if "tied" in told:
        ways.append(f"polyvoc search PHOTO --merge posterior --line {told['tied'][0]:.3f} {told['tied'][1]:.3f}")
    if told["table"] is not None:
        ways.append(f"polyvoc search PHOTO --evidence {shlex.quote(told['table'])}")
    if "index" in told:
        ways.append(f"polyvoc calibrate --index {shlex.quote(told['index'])} --save")
    talk(f"Use it: {', or '.join(ways)}")


def _line(line: Sequence[float]) -> str:
    return f"{line[0]:.3f} r + {line[1]:.3f}"


def _spread(name: str, bounds: Sequence[float | None]) -> str:
    low, high = ("?" if bound is None else f"{bound:.3f}" for bound in bounds)
    return f"{name} {low} to {high}"


def show_reproduction(report: Report, page: Path) -> None:
    """Show what reproduces and what does not, and where the page is."""
    for section in report.sections:
        write(f"{section.heading:<58} {section.verdict}")
        if section.verdict_text:
            write(f"    {section.verdict_text}")
    write("Page:", linked(str(page.absolute())))


def _bounds(measure: Measure, interval: Interval, signed: bool = False) -> str:
    show = _signed if signed else lambda measure, value: measure.show(value)
    return f"{show(measure, interval.low)} to {show(measure, interval.high)}"


def _signed(measure: Measure, value: float) -> str:
    return f"{value * measure.scale:+.{measure.digits}f}"


def show_info(facts: dict[str, Any]) -> None:
    """Show what an index holds."""
    stored, per_feature = facts["bytes"], facts["bytes_per_feature"]
    write_fact("index", f"{facts['index']} (format {facts['format']}, commit {facts['commit']})")
    write_fact("images", f"{facts['images']:,} in {facts['segments']} segments, {facts['deleted']:,} deleted")
    write_fact(
        "features", f"{facts['features']:,} of {Kind(**facts['kind'])}" + (f", {per_feature} bytes each" if per_feature else "")
    )
    write_fact("bytes", *(f"{size:>13,} {kind}" for kind, size in stored.items()))
    write_fact("vocabularies", *map(describe_words, facts["vocabularies"]))
    options = FeatureOptions(**facts["feature_options"])
    made_here = options.kind == Kind(**facts["kind"])
    write_fact(
        "features by", _listed(facts["feature_options"]) if made_here else f"others, max features {options.max_features}"
    )
    model = facts["embedding"]
    write_fact("embedding", "none" if model is None else f"{model['dimension']} numbers by {_model(model)}")
    write_fact("search by", _listed(facts["default_options"]))
    write_fact("problems", *[problem["reason"] for problem in facts["problems"]] or ["none"])


def show_distributions(facts: dict[str, Any]) -> None:
    """Show how long the lists of each vocabulary are, and how much the lists of one feature share."""
    for number, one in enumerate(facts["list_lengths"], start=1):
        longest = f"median {one['median']:,.0f}, longest {one['longest']:,}, {one['empty']:,} empty"
        write_fact(f"vocabulary {number}", f"features in a list: {longest}", *_bars(one, _lengths))
    for one in facts["ratios"]:
        if one["mean"] is not None:
            label = "ratio " + " ".join(map(str, one["vocabularies"]))
            told = f"of intersection to union, of {facts['sampled_features']:,} features: mean {one['mean']:.3f}"
            write_fact(label, told, *_bars(one, lambda low, high: f"{low:.2f} - {high:.2f}"))


def _lengths(low: int, high: int) -> str:
    return f"{low:,}-{high - 1:,}".rjust(15) if high - low > 1 else f"{low:>15,}"


def _bars(histogram: dict[str, Any], name: Callable[[Any, Any], str]) -> list[str]:
    """Draw a histogram, a line for each bin."""
    edges, counts = histogram["edges"], histogram["counts"]
    most = max(*counts, 1)
    lines = []
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        eighths = -(-8 * BAR * count // most)  # what is there at all is seen
        lines.append(f"{name(low, high)} {count:>9,} {'█' * (eighths // 8)}{' ▏▎▍▌▋▊▉'[eighths % 8]}".rstrip())
    return lines


def _model(facts: dict[str, Any]) -> str:
    return f"{facts['file'] or 'a function'} ({facts['fingerprint']})"


def describe_words(facts: dict[str, Any]) -> str:
    """Say in one line what a vocabulary is."""
    sizes = f"{facts['size']:,} words of {Kind(**facts['kind'])}, signatures of {facts['bits']} bits"
    return f"{facts['fingerprint']}: {sizes}; {_listed(facts['provenance'])}"


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
