"""Evaluate, calibrate, reproduce."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from polyvoc import __version__
from polyvoc.cli.flags import DEFAULT_INDEX, IndexPath, Json, Own, Shipped, flag_name, from_record, on_disk, parse_value
from polyvoc.cli.terminal import print_calibration, print_evaluation, print_reproduction, progress_bar, write_json
from polyvoc.errors import OptionError
from polyvoc.options import SEARCH_TEXTS, FeatureOptions, SearchOptions, TrainOptions
from polyvoc.scoring.rules import save_table, table_as_dict
from polyvoc.storage.files import write_errors
from polyvoc.types import LikelihoodTable, Progress

if TYPE_CHECKING:
    from polyvoc.experiments.datasets.readers import Dataset
    from polyvoc.experiments.evaluate import Outcome, Row
    from polyvoc.experiments.fit.likelihood import Tally
    from polyvoc.experiments.fit.line import Fit
    from polyvoc.experiments.fit.reliability import Reliability
    from polyvoc.experiments.report.figures import Panel
    from polyvoc.experiments.workbench import QuantisedDataset, Workbench
    from polyvoc.vocabulary.vocabulary import Vocabulary

app = typer.Typer()
NAMES = ("holidays", "ukbench", "oxford", "paris", "roxford", "rparis", "groups", "synthetic")
Cache = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Where features and results are kept. Default: POLYVOC_CACHE, or ~/.cache/polyvoc."),
]
Name = Annotated[str, typer.Argument(metavar="|".join(NAMES), help="Which dataset.", autocompletion=lambda: list(NAMES))]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where it lies.")]
VARIED = ("merge", "hamming", "burstiness")  # all their usual values are tried unless told
FOREIGN = ("top", "smooth", "fuse", "sure", "whole")  # of an index, or of its answers: a dataset wants all scores


@app.command(
    "evaluate",
    epilog="Example: polyvoc evaluate holidays ~/holidays\n\n"
    "Example: polyvoc evaluate groups ~/Pictures --merge b1 --merge posterior --vocabularies 2 --json",
)
@from_record(SearchOptions, SEARCH_TEXTS, defaults=False, without=(*VARIED, *FOREIGN))
def evaluate_command(  # noqa: PLR0913, PLR0917
    dataset: Name,
    folder: Folder,
    chosen: dict[str, Any],
    merge: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Rule to evaluate; may be repeated. Default: all.")
    ] = None,
    hamming: Annotated[
        list[str] | None, typer.Option(metavar="NUMBER|none", help="Hamming threshold; may be repeated. Default: none and 24.")
    ] = None,
    burstiness: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Burstiness; may be repeated. Default: none and intra.")
    ] = None,
    vocabularies: Shipped = None,
    vocabulary: Own = None,
    train: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Train vocabularies on these photographs instead.")
    ] = None,
    size: Annotated[int, typer.Option(metavar="NUMBER", help="Words of each vocabulary that is trained.")] = TrainOptions.size,
    distractors: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Photographs to hide the right answers among.")
    ] = None,
    fit: Annotated[
        tuple[str, Path] | None,
        typer.Option(metavar="DATASET FOLDER", help="Fit term 2 and the table of evidence on this other dataset first."),
    ] = None,
    questions: Annotated[int | None, typer.Option(metavar="NUMBER", help="Ask only so many questions, evenly spread.")] = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Rank a dataset by every rule, with and without Hamming Embedding and burstiness, and say how good the rankings are."""
    from polyvoc.experiments.cache import default_cache
    from polyvoc.experiments.datasets.readers import first_questions, with_distractors
    from polyvoc.experiments.evaluate import evaluate, evaluation_rules, recommended, results_table
    from polyvoc.experiments.fit.likelihood import fit_table, tally
    from polyvoc.experiments.workbench import Workbench

    varied = _varied({"merge": merge, "hamming": hamming, "burstiness": burstiness})
    evaluation_rules(**varied, **chosen)  # values that make no sense are refused before the work begins
    if fit is not None and "line" in chosen:
        raise OptionError("--fit and --line exclude each other; give one of them")
    if fit is not None and fit[1].resolve() == folder.resolve():
        raise OptionError(f"--fit {fit[1]}: fit the line on other photographs than those that are judged")
    with progress_bar() as progress:
        workbench = Workbench(cache or default_cache(), progress=progress)
        asked = read_dataset(dataset, folder)
        if distractors is not None:
            asked = with_distractors(asked, distractors)
        if questions is not None:
            asked = first_questions(asked, questions)
        words = _words(workbench, dataset, asked, train, (vocabularies, vocabulary or [], size))
        bench = workbench.bench(asked, words)
        if fit is not None:
            other = workbench.bench(read_dataset(*fit), words)
            chosen["line"] = _fitted(other)
            chosen["evidence"] = None if other.signatures is None else fit_table(tally(other, (), progress))
        if bench.signatures is None:
            varied.setdefault("hamming", [None])
        named = evaluation_rules(**varied, bits=bench.bits or 64, **chosen)
        if not varied:
            named |= recommended(chosen.get("evidence"), bench.vocabularies[0].bits)
        outcomes = evaluate(workbench, bench, named)
    rows = results_table(asked, outcomes)
    if json:
        write_json({**_facts(bench), "rules": [_told(*pair) for pair in zip(rows, outcomes, strict=True)]})
    else:
        origin = f"fitted on {fit[0]}" if fit is not None else "as given" if "line" in chosen else "the default line"
        print_evaluation(bench, rows, chosen.get("line", SearchOptions().line), origin)


def _varied(given: dict[str, list[str] | None]) -> dict[str, Any]:
    """Give the values that were typed for what is varied, as `evaluation.rules` wants them."""
    values = {name: [parse_value(SearchOptions, name, one) for one in typed] for name, typed in given.items() if typed}
    return {"merges" if name == "merge" else name: typed for name, typed in values.items()}


def read_dataset(name: str, folder: Path) -> Dataset:
    """Read a dataset by its name."""
    from polyvoc.experiments.datasets.readers import READERS
    from polyvoc.experiments.datasets.synthetic import read_world

    if name == "synthetic":
        return read_world(folder)
    if name not in READERS:
        raise OptionError(f"{name!r} is no dataset; choose one of {', '.join(NAMES)}")
    return READERS[name](folder)


def _words(
    workbench: Workbench, name: str, asked: Dataset, train: Path | None, given: tuple[int | None, list[Path], int]
) -> tuple[Vocabulary, ...]:
    """Load or train the vocabularies of an evaluation."""
    from polyvoc.experiments.datasets.readers import list_images
    from polyvoc.experiments.datasets.synthetic import training_images
    from polyvoc.vocabulary.vocabulary import DEFAULT_COUNT, default_vocabularies, load_vocabularies

    count, own, size = given
    if train is not None and own:
        raise OptionError("--train and --vocabulary exclude each other; give one of them")
    if train is not None:
        store, source = workbench.store(list_images(train, asked.kind), asked.kind), train.name
    elif name == "synthetic" and not own:  # its descriptors are not those of photographs: the shipped words do not fit
        store, source = workbench.store(training_images(asked.folder), asked.kind), name
        size = min(size, 500)
    else:
        return load_vocabularies(count, own) or default_vocabularies()
    options = [TrainOptions(size=size, seed=seed) for seed in range(count or DEFAULT_COUNT)]
    return tuple(workbench.vocabulary(store, each, source) for each in options)


def _fitted(bench: QuantisedDataset) -> tuple[float, float]:
    """Give the line of term 2 that a dataset shows, with the first two vocabularies."""
    from polyvoc.experiments.fit.line import fit_line
    from polyvoc.experiments.fit.true_matches import observe

    return fit_line(observe(bench.first(2))).tied


def _facts(bench: QuantisedDataset) -> dict[str, Any]:
    """Give what was asked, and of what, for JSON."""
    dataset = bench.dataset
    return {
        "dataset": dataset.name,
        "images": len(dataset.images),
        "questions": len(dataset.questions),
        "features": bench.n_features,
        "notes": list(dataset.notes),
        "problems": [asdict(problem) for problem in bench.store.problems],
        "vocabularies": [vocabulary.fingerprint for vocabulary in bench.vocabularies],
        "sizes": list(bench.sizes),
        "names": [question.name for question in dataset.questions],
    }


def _told(row: Row, outcome: Outcome) -> dict[str, Any]:
    """Give one rule for JSON: its mean, and every question's value by every measure."""
    from polyvoc.experiments.report.figures import finite  # the interval of a single group has no bounds, and JSON no infinity

    gain = None if row.gain is None else {name: finite(value) for name, value in asdict(row.gain).items()}
    return {
        "rule": row.rule,
        "measure": row.measure,
        "value": row.value.mean,
        "interval": [finite(row.value.low), finite(row.value.high)],
        "gain_over_b1": gain,
        "seconds_per_question": round(row.seconds, 6),
        "options": dict(outcome.options),
        "queries": outcome.values[row.measure],
        "measures": dict(outcome.values),
    }


@app.command(
    "calibrate",
    epilog="Example: polyvoc calibrate --index photos.polyvoc --save\n\n"
    "Example: polyvoc calibrate holidays ~/holidays --test ukbench ~/ukbench --table evidence.json --plot calibration.svg",
)
def calibrate_command(  # noqa: PLR0913, PLR0917
    dataset: Annotated[
        str | None, typer.Argument(metavar="|".join(NAMES), help="A dataset to learn from; without one, an index does.")
    ] = None,
    folder: Annotated[Path | None, typer.Argument(metavar="FOLDER", help="Where the dataset lies.")] = None,
    test: Annotated[
        tuple[str, Path] | None, typer.Option(metavar="DATASET FOLDER", help="Test line and table on this other dataset.")
    ] = None,
    vocabularies: Shipped = None,
    vocabulary: Own = None,
    cache: Cache = None,
    index: IndexPath = DEFAULT_INDEX,
    queries: Annotated[
        int | None, typer.Option(metavar="NUMBER", help="Photographs of the index that ask. Default: 200.")
    ] = None,
    save: Annotated[
        bool, typer.Option("--save", help="Keep line and table in the index: its searches use them from then on.")
    ] = False,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Write the table, for 'search --evidence'.", callback=on_disk)
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE.svg", help="Draw line and table.", callback=on_disk)] = None,
    json: Json = False,
) -> None:
    """Fit what the rules believe: the line of term 2, p(in the intersection | true match) = a r + b, and the table of evidence.

    To a dataset, or to an index without ground truth: it learns from its own photographs. Hits that show the same thing in the
    same arrangement are right answers.
    """
    if dataset is None:
        _refuse("needs a dataset: polyvoc calibrate DATASET FOLDER", test=test, vocabularies=vocabularies,
                vocabulary=vocabulary, cache=cache)  # fmt: skip
        found = _calibrate_index(index, queries, save)
    else:
        _refuse("is for an index; leave out the dataset", queries=queries, save=save or None)
        if folder is None:
            raise OptionError(f"the folder of {dataset} is missing; see 'polyvoc calibrate --help'")
        found = _calibrate_dataset((dataset, folder), test, (vocabularies, vocabulary or []), cache)
    if table is not None:
        save_table(found.table, table)
    if plot is not None:
        from polyvoc.experiments.report.figures import Figure
        from polyvoc.experiments.report.plots import save_svg

        save_svg(Figure("Calibration", found.panels, "With 95 % bootstrap intervals."), plot)
    told = {**found.told, "table": None if table is None else str(table)}
    if json:
        write_json(told)
    else:
        print_calibration(told)


def _refuse(reason: str, **given: object) -> None:
    for name, value in given.items():
        if value is not None:
            raise OptionError(f"{flag_name(name)} {reason}")


class Calibrated(NamedTuple):
    """What a calibration found: for JSON, as a table, and to look at."""

    told: dict[str, Any]
    table: LikelihoodTable
    panels: Sequence[Panel]


def _calibrate_index(path: Path, queries: int | None, save: bool) -> Calibrated:
    """Fit line and table to an index and, if wanted, keep them there."""
    from polyvoc.experiments.fit.likelihood import fit_table_pairs, table_figure
    from polyvoc.experiments.fit.line import fit_line_pairs, line_figure
    from polyvoc.experiments.fit.true_matches import Sampling, find_pairs
    from polyvoc.index.writer import IndexWriter
    from polyvoc.search.index import Index

    sampling = Sampling() if queries is None else Sampling(queries=queries)
    with progress_bar() as progress, Index.open(path) as opened:
        pairs = find_pairs(opened, sampling, progress)
        line = fit_line_pairs(opened, pairs) if len(opened.engine.sizes) > 1 else None
        table = fit_table_pairs(opened, pairs, progress)
    told = {} if line is None else line.as_dict()
    if save and line is not None and not 0 < line.tied[1] < 1:
        raise OptionError(f"the fitted b = {line.tied[1]:.3f} is no probability: index more photographs of the same things")
    if save:
        with IndexWriter.open(path) as writer:
            if line is not None:
                known = {name: told[name] for name in ("questions", "pairs", "true_matches", "intervals")}
                writer.save_line(line.tied, {"polyvoc": __version__, **known})
            writer.save_evidence(table)
    panels = [] if line is None else line_figure({path.name: line}).panels
    told = {"index": str(path), **told, "evidence": table_as_dict(table), "saved": save}
    return Calibrated(told, table, [*panels, *table_figure({path.name: table}).panels])


class Learnt(NamedTuple):
    """What a dataset teaches: the line of its first two vocabularies, if it has two, and the table of all."""

    name: str
    line: Fit | None
    tallies: Sequence[Tally]
    table: LikelihoodTable

    def tested(self, on: Learnt) -> Reliability:
        """Test the table on another dataset."""
        from polyvoc.experiments.fit.reliability import reliability

        return reliability(self.table, on.tallies)


def _learn(name: str, bench: QuantisedDataset, progress: Progress) -> Learnt:
    from polyvoc.experiments.fit.likelihood import fit_table, tally_groups, together
    from polyvoc.experiments.fit.line import fit_line
    from polyvoc.experiments.fit.true_matches import observe

    line = fit_line(observe(bench.first(2), progress=progress)) if len(bench.sizes) > 1 else None
    tallies = tally_groups(bench, progress=progress)
    words = " + ".join(f"{size:,}" for size in bench.sizes)
    origin = f"{name} ({len(bench.dataset.questions):,} questions), words {words}, {bench.bits} bits"
    return Learnt(name, line, tallies, fit_table(together(tallies), source=origin))


def _calibrate_dataset(
    source: tuple[str, Path], other: tuple[str, Path] | None, given: tuple[int | None, list[Path]], cache: Path | None
) -> Calibrated:
    """Fit line and table to a dataset, and test them on another."""
    from polyvoc.experiments.cache import default_cache
    from polyvoc.experiments.fit.likelihood import table_figure
    from polyvoc.experiments.fit.line import line_figure, test_line
    from polyvoc.experiments.fit.reliability import curve_figure
    from polyvoc.experiments.workbench import Workbench

    learnt: dict[str, Learnt] = {}
    with progress_bar() as progress:
        workbench = Workbench(cache or default_cache(), progress=progress)
        asked = [read_dataset(*one) for one in (source, other) if one is not None]  # all, before the work begins
        words = _words(workbench, source[0], asked[0], None, (*given, TrainOptions.size))
        for dataset in asked:
            name = dataset.name if dataset.name not in learnt else f"{dataset.name} ({dataset.folder})"
            learnt[name] = _learn(name, workbench.bench(dataset, words), progress)
    first, *others = learnt.values()
    tests = []
    shown = table_figure({first.name: first.table})
    for on in others:
        judged = {}
        if first.line is not None and on.line is not None:
            seen = on.line.observations
            judged = {kind: test_line(line, seen).as_dict() for kind, line in first.line.lines.items()}
        there, back = first.tested(on), on.tested(first)
        tests.append({"dataset": on.name, **judged, "evidence": there.as_dict()})
        shown = curve_figure({f"{first.name}, seen on {on.name}": there, f"{on.name}, seen on {first.name}": back})
    fits = {name: one.line for name, one in learnt.items() if one.line is not None}
    facts = {"dataset": first.name, "folder": str(source[1]), "vocabularies": [word.fingerprint for word in words]}
    line = {} if first.line is None else first.line.as_dict()
    told = {**facts, **line, "evidence": table_as_dict(first.table), "tests": tests}
    return Calibrated(told, first.table, [*(line_figure(fits).panels if fits else ()), *shown.panels])


@app.command("reproduce", epilog="Example: polyvoc reproduce ~/datasets --out report --quick")
def reproduce_command(  # noqa: PLR0913, PLR0917
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Folder that holds the datasets: holidays*, ukbench*, oxford*, ...")
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to put page, numbers and plots.", callback=on_disk)],
    quick: Annotated[
        bool, typer.Option("--quick", help="Small vocabularies, fewer features and questions: minutes, not hours.")
    ] = False,
    train: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Photographs to train on. Default: DATA/train*, flickr* or photos*.")
    ] = None,
    distractors: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Distractors. Default: every other training photograph, not trained on."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only this table or figure, such as table3; may be repeated.")
    ] = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Redo the paper's experiments on the datasets at hand, every table and figure beside the paper's own numbers."""
    from polyvoc.experiments.cache import default_cache
    from polyvoc.experiments.paper.run import named, run_experiments, set_up, write_report
    from polyvoc.experiments.paper.setup import FULL, QUICK
    from polyvoc.experiments.workbench import Workbench

    named(only or [])  # unknown ones are refused before the work begins
    with progress_bar() as progress:
        plan = QUICK if quick else FULL
        workbench = Workbench(cache or default_cache(), FeatureOptions(max_features=plan.features), progress)
        lab = set_up(data, train, distractors, plan, workbench)
        with write_errors(out):
            out.mkdir(parents=True, exist_ok=True)  # before the hours of work, not after
        report = run_experiments(lab, only or [])
        page = write_report(report, out)
    if json:
        write_json({"page": str(page), **report.as_dict()})
    else:
        print_reproduction(report, page)
