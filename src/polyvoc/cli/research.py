"""Commands for research: evaluate, calibrate, reproduce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args

import typer

from polyvoc import __version__
from polyvoc.cli.flags import (
    DEFAULT_INDEX,
    RESEARCH_COMMANDS,
    IndexPath,
    Json,
    Own,
    Shipped,
    flag,
    flag_name,
    from_record,
    parse_value,
    path_flag,
    switch,
)
from polyvoc.cli.terminal import (
    print_calibration,
    print_evaluation,
    print_note,
    print_reproduction,
    progress_bar,
    write,
    write_json,
)
from polyvoc.errors import OptionError
from polyvoc.options import FeatureOptions, Line, SearchOptions, SetKind, TrainOptions
from polyvoc.storage.files import write_errors
from polyvoc.types import LikelihoodTable, Progress

if TYPE_CHECKING:
    from polyvoc.experiments.datasets.readers import Dataset
    from polyvoc.experiments.evaluate import Outcome, RuleResult
    from polyvoc.experiments.fit.likelihood import Tally
    from polyvoc.experiments.fit.line import Fit, PowerCurve
    from polyvoc.experiments.report.figures import Panel
    from polyvoc.experiments.workbench import QuantisedDataset, Workbench
    from polyvoc.vocabulary.vocabulary import VocabularySet

app = typer.Typer()
NAMES = ("holidays", "ukbench", "oxford", "paris", "roxford", "rparis", "groups", "synthetic")
CACHE = "Cache of features and results. Default: POLYVOC_CACHE, or ~/.cache/polyvoc."
Cache = Annotated[Path | None, flag("FOLDER", CACHE)]
Name = Annotated[str, typer.Argument(metavar="|".join(NAMES), help="Which dataset.", autocompletion=lambda: list(NAMES))]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the dataset.")]
# Varied over their usual values, unless given: the parameters of `evaluation_rules`.
VARIED = {"merge": "merges", "hamming": "hamming", "burstiness": "burstiness"}
# Of an index or its hits: datasets are measured by all scores.
FOREIGN = ("vocabularies", "top", "smooth", "fuse", "min_probability", "since", "require_all")


@app.command(
    "evaluate",
    rich_help_panel=RESEARCH_COMMANDS,
    epilog="Example: polyvoc evaluate holidays ~/holidays\n\n"
    "Example: polyvoc evaluate groups ~/Pictures --merge b1 --merge posterior --vocabularies 2 --json",
)
@from_record(SearchOptions, defaults=False, without=(*VARIED, *FOREIGN))
def evaluate_command(  # noqa: PLR0913
    *,
    dataset: Name,
    folder: Folder,
    merge: Annotated[list[str] | None, flag("RULE", "Rule to evaluate; repeatable. Default: all.")] = None,
    hamming: Annotated[list[str] | None, flag("NUMBER|none", "Hamming threshold; repeatable. Default: none and 24.")] = None,
    burstiness: Annotated[list[str] | None, flag("NAME", "Burstiness; repeatable. Default: none and intra.")] = None,
    vocabularies: Shipped = None,
    vocabulary: Own = None,
    train: Annotated[Path | None, flag("FOLDER", "Train vocabularies on these photographs instead.")] = None,
    size: Annotated[int, flag("NUMBER", "Words of each vocabulary that is trained.")] = TrainOptions.size,
    distractors: Annotated[Path | None, flag("FOLDER", "Further photographs that no question should find.")] = None,
    fit: Annotated[
        tuple[str, Path] | None, flag("DATASET FOLDER", "Fit term 2 and the likelihood table to this other dataset first.")
    ] = None,
    queries: Annotated[int | None, flag("NUMBER", "Use only this many queries, evenly spread.")] = None,
    cache: Cache = None,
    json: Json = False,
    chosen: dict[str, Any],
) -> None:
    """Measure the accuracy of every rule on a dataset."""
    from polyvoc.experiments.cache import default_cache
    from polyvoc.experiments.datasets.readers import first_questions, with_distractors
    from polyvoc.experiments.evaluate import evaluate, evaluation_rules, recommended, results_table
    from polyvoc.experiments.fit.code_table import fit_code_table, tally_dataset
    from polyvoc.experiments.fit.likelihood import fit_table, tally
    from polyvoc.experiments.fit.line import fit_lines
    from polyvoc.experiments.workbench import Workbench

    typed = {"merge": merge, "hamming": hamming, "burstiness": burstiness}
    varied: dict[str, Any] = {
        VARIED[name]: [parse_value(SearchOptions, name, one) for one in values] for name, values in typed.items() if values
    }
    evaluation_rules(**varied, **chosen)  # errors in the options, before the work begins
    if fit is not None and "line" in chosen:
        raise OptionError("--fit and --line exclude each other; give one of them")
    if fit is not None and fit[1].resolve() == folder.resolve():
        raise OptionError(f"--fit {fit[1]}: give another dataset than the one that is evaluated")
    with progress_bar() as progress:
        workbench = Workbench(cache or default_cache(), progress=progress)
        data = read_dataset(dataset, folder)
        if distractors is not None:
            data = with_distractors(data, distractors)
        if queries is not None:
            data = first_questions(data, queries)
        chosen_words = _vocabularies(workbench, dataset, data, train, (vocabularies, vocabulary or [], size))
        words, fine = chosen_words.words, chosen_words.fine
        bench = workbench.bench(data, words, fine)
        code_table = None
        lines: dict[SetKind, Line] = dict.fromkeys(get_args(SetKind), chosen.get("line", SearchOptions().line))
        if fit is not None:
            other = workbench.bench(read_dataset(*fit), words, fine)
            code_table = None if fine is None else fit_code_table(tally_dataset(other, progress))
            lines = {kind: fitted.tied for kind, fitted in fit_lines(other, progress).items()}
            chosen["likelihood_table"] = None if other.signatures is None else fit_table(tally(other, (), progress))
        if bench.signatures is None:
            varied.setdefault("hamming", [None])
        named = evaluation_rules(**varied, bits=bench.bits or 64, lines=lines, **chosen)
        if not varied:
            lengths = bench.vocabularies[0].bits, 0 if fine is None else fine.bits
            presets = recommended(chosen.get("likelihood_table"), lengths, lines, code_table)
            named |= {name: _with_at_most(len(words), options) for name, options in presets.items()}
        outcomes = evaluate(workbench, bench, named)
    rows = results_table(data, outcomes)
    if json:
        write_json({**_facts(bench), "rules": [_rule_as_dict(*pair) for pair in zip(rows, outcomes, strict=True)]})
    else:
        origin = f"fitted on {fit[0]}" if fit is not None else "as given" if "line" in chosen else "the default line"
        print_evaluation(bench, rows, lines, origin)


def _with_at_most(n_vocabularies: int, options: SearchOptions) -> SearchOptions:
    """Return options that take no more vocabularies than there are."""
    return replace(options, vocabularies=options.vocabularies and min(options.vocabularies, n_vocabularies))


def read_dataset(name: str, folder: Path) -> Dataset:
    """Read a dataset by its name."""
    from polyvoc.experiments.datasets.readers import READERS
    from polyvoc.experiments.datasets.synthetic import read_world

    if name == "synthetic":
        return read_world(folder)
    if name not in READERS:
        raise OptionError(f"{name!r} is no dataset; choose one of {', '.join(NAMES)}")
    return READERS[name](folder)


def _vocabularies(
    workbench: Workbench, name: str, data: Dataset, train: Path | None, given: tuple[int | None, list[Path], int]
) -> VocabularySet:
    """Load or train the vocabularies of an evaluation."""
    from polyvoc.experiments.datasets.readers import list_images
    from polyvoc.experiments.datasets.synthetic import training_images
    from polyvoc.vocabulary.vocabulary import DEFAULT_COUNT, VocabularySet, load_vocabularies

    count, own, size = given
    if count == 0:
        raise OptionError("vocabularies=0 should be at least 1: the rules merge words")
    if train is not None and own:
        raise OptionError("--train and --vocabulary exclude each other; give one of them")
    if train is not None:
        store, source = workbench.store(list_images(train, data.kind), data.kind), train.name
    elif name == "synthetic" and not own:  # its descriptors are not those of photographs
        store, source = workbench.store(training_images(data.folder), data.kind), name
        size = min(size, 500)
    else:
        return load_vocabularies(count, own) or VocabularySet.default()
    options = [TrainOptions(size=size, seed=seed) for seed in range(count or DEFAULT_COUNT)]
    return VocabularySet(tuple(workbench.vocabulary(store, each, source) for each in options), None)


def _facts(bench: QuantisedDataset) -> dict[str, Any]:
    """Return the facts about a dataset for JSON."""
    dataset = bench.dataset
    counts = {"images": len(dataset.images), "queries": len(dataset.questions), "features": bench.n_features}
    return {
        "dataset": dataset.name,
        **counts,
        "notes": list(dataset.notes),
        "problems": [asdict(problem) for problem in bench.store.problems],
        "vocabularies": [vocabulary.fingerprint for vocabulary in bench.vocabularies],
        "sizes": list(bench.sizes),
        "names": [question.name for question in dataset.questions],
    }


def _rule_as_dict(row: RuleResult, outcome: Outcome) -> dict[str, Any]:
    """Return one rule for JSON: its mean, and every question's value by every measure."""
    from polyvoc.experiments.report.figures import finite  # the interval of a single group is infinite

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
    rich_help_panel=RESEARCH_COMMANDS,
    epilog="Example: polyvoc calibrate --index photos.polyvoc --save\n\n"
    "Example: polyvoc calibrate holidays ~/holidays --test ukbench ~/ukbench --table table.json --plot calibration.svg",
)
def calibrate_command(  # noqa: PLR0913
    *,
    dataset: Annotated[
        str | None, typer.Argument(metavar="|".join(NAMES), help="A dataset to fit to. Default: an index.")
    ] = None,
    folder: Annotated[Path | None, typer.Argument(metavar="FOLDER", help="Folder of the dataset.")] = None,
    test: Annotated[tuple[str, Path] | None, flag("DATASET FOLDER", "Test lines and table on this other dataset.")] = None,
    vocabularies: Shipped = None,
    vocabulary: Own = None,
    cache: Cache = None,
    index: IndexPath = DEFAULT_INDEX,
    queries: Annotated[int | None, flag("NUMBER", "Photographs of the index that are queries. Default: 200.")] = None,
    decisions: Annotated[
        bool, switch("--decisions", "Fit the probabilities of copies to your verdicts on pairs of the index instead.")
    ] = False,
    save: Annotated[bool, switch("--save", "Save what was fitted in the index.")] = False,
    table: Annotated[Path | None, path_flag("FILE.json", "Write the table, for 'search --likelihood-table'.")] = None,
    plot: Annotated[Path | None, path_flag("FILE.svg", "Draw lines and table.")] = None,
    json: Json = False,
) -> None:
    """Fit the scores to your photographs: the lines of term 2 and the likelihood table.

    A line is p(in the intersection | true match) = a r + b, one for sets of features and one for sets of images; the table has
    the log-likelihood ratios of matches. All are fitted to a dataset with ground truth, or to an index without: its verified
    pairs of photographs serve as ground truth. With --decisions the probabilities of 'duplicates' are fitted to your verdicts.
    """
    if decisions:
        _exclude("has nothing to do with verdicts; leave it out, or --decisions", test=test, vocabularies=vocabularies,
                 vocabulary=vocabulary, cache=cache, queries=queries, table=table, plot=plot)  # fmt: skip
        if dataset is not None:
            raise OptionError(f"verdicts are those of an index; leave {dataset} out, or --decisions")
        _calibrate_decisions(index, save, json)
        return
    if dataset is None:
        _exclude("needs a dataset: polyvoc calibrate DATASET FOLDER", test=test, vocabularies=vocabularies,
                vocabulary=vocabulary, cache=cache)  # fmt: skip
        result = _calibrate_index(index, queries, save, table)
    else:
        _exclude("is for an index; leave out the dataset", queries=queries, save=save or None)
        if folder is None:
            raise OptionError(f"the folder of {dataset} is missing; see 'polyvoc calibrate --help'")
        result = _calibrate_dataset((dataset, folder), test, (vocabularies, vocabulary or []), cache)
    if table is not None:
        from polyvoc.scoring.rules import save_table

        assert result.table is not None, "checked before the work began"
        save_table(result.table, table)
    if plot is not None:
        from polyvoc.experiments.report.figures import Figure
        from polyvoc.experiments.report.plots import save_svg

        save_svg(Figure("Calibration", result.panels, "With 95 % bootstrap intervals."), plot)
    values = {**result.values, "table": None if table is None else str(table)}
    if json:
        write_json(values)
    else:
        print_calibration(values)


def _exclude(reason: str, **given: object) -> None:
    """Raise OptionError for a flag that was given."""
    for name, value in given.items():
        if value is not None:
            raise OptionError(f"{flag_name(name)} {reason}")


def _calibrate_decisions(path: Path, save: bool, json: bool) -> None:
    """Fit the probabilities of duplicates to the verdicts that an index holds."""
    from polyvoc.duplicates.decisions import VERDICTS, Decisions
    from polyvoc.experiments.fit.duplicates import fit_lines
    from polyvoc.index.folder import DUPLICATE_LINES, IndexFolder
    from polyvoc.index.writer import IndexWriter

    folder = IndexFolder(path)
    try:
        decisions = Decisions.read(folder)
    finally:
        folder.close()
    scene, copy = fit_lines(decisions)
    if save:
        with IndexWriter.open(path, create=False) as writer:
            writer.save_settings({DUPLICATE_LINES: {"scene": list(scene), "copy": list(copy)}})
    counts = {verdict: sum(one.verdict == verdict for one in decisions) for verdict in VERDICTS}
    if json:
        write_json({"index": str(path), "verdicts": counts, "scene": scene._asdict(), "copy": copy._asdict(), "saved": save})
        return
    write(f"fitted to {len(decisions):,} verdicts: " + ", ".join(f"{count:,} {verdict}" for verdict, count in counts.items()))
    for name, line in (("the same thing", scene), ("copy, if the same thing", copy)):
        write(f"  {name}: logit -> {line.shift:+.2f} {line.stretch:+.2f} logit")
    if not save:
        print_note("not saved; --save makes 'duplicates' use it")


class Calibrated(NamedTuple):
    """A calibration: values for JSON, the table of words, and plots."""

    values: dict[str, Any]
    table: LikelihoodTable | None  # None: without signatures
    panels: Sequence[Panel]


def _calibrate_index(path: Path, queries: int | None, save: bool, file: Path | None) -> Calibrated:
    """Fit lines and tables to an index; `save` writes them to it. `file`: that the table of words will be written to."""
    from polyvoc.experiments.fit.code_table import code_table_figure, fit_code_table_pairs, save_code_table
    from polyvoc.experiments.fit.likelihood import fit_table_pairs, save_likelihood_table, table_figure
    from polyvoc.experiments.fit.line import fit_lines_pairs, save_lines
    from polyvoc.experiments.fit.true_matches import Sampling, find_pairs
    from polyvoc.index.writer import IndexWriter
    from polyvoc.scoring.codes import code_table_as_dict
    from polyvoc.scoring.rules import table_as_dict
    from polyvoc.search.index import Index

    sampling = Sampling() if queries is None else Sampling(queries=queries)
    with progress_bar() as progress, Index.open(path) as opened:
        signed, coded = opened.engine.signed and bool(opened.engine.sizes), opened.engine.code_bits > 0
        if file is not None and not signed:
            raise OptionError(f"--table {file}: the words of this index have no signatures; index with --signatures")
        pairs = find_pairs(opened, sampling, progress)
        fits = fit_lines_pairs(opened, pairs) if signed and len(opened.engine.sizes) > 1 else {}
        table = fit_table_pairs(opened, pairs, progress) if signed else None
        codes = fit_code_table_pairs(opened, pairs, progress) if coded else None
    if save:
        lines = {kind: _probable(fit) for kind, fit in fits.items()}
        with IndexWriter.open(path) as writer:
            save_lines(writer, lines, {kind: _source(fit) for kind, fit in fits.items()})
            if table is not None:
                save_likelihood_table(writer, table)
            if codes is not None:
                save_code_table(writer, codes)
    values = {
        "index": str(path),
        "line": _plain(fits),
        "likelihood_table": None if table is None else table_as_dict(table),
        "code_table": None if codes is None else code_table_as_dict(codes),
        "saved": save,
    }
    panels = [*_panels({path.name: fits}), *([] if table is None else table_figure({path.name: table}).panels)]
    return Calibrated(values, table, [*panels, *([] if codes is None else code_table_figure(codes, path.name).panels)])


def _probable(fit: Fit) -> Line:
    """Return the line with a + b = 1; raise OptionError if its b is no probability."""
    if not 0 < fit.tied[1] < 1:
        raise OptionError(f"the fitted b = {fit.tied[1]:.3f} is no probability: index more photographs of the same objects")
    return fit.tied


def _source(fit: Fit) -> dict[str, Any]:
    """Return what a line was fitted to, to be saved with it."""
    values = fit.as_dict()
    return {"polyvoc": __version__, **{name: values[name] for name in ("queries", "pairs", "true_matches", "intervals")}}


def _plain(fits: Mapping[SetKind, Fit]) -> dict[str, Any]:
    """Return the fits of each kind of sets for JSON; empty for one vocabulary, which has no line."""
    return {kind: fit.as_dict() for kind, fit in fits.items()}


def _panels(fits: Mapping[str, Mapping[SetKind, Fit]]) -> Sequence[Panel]:
    """Return the plots of the lines by dataset and kind of sets; none for one vocabulary."""
    from polyvoc.experiments.fit.line import line_figure

    return line_figure(fits).panels if any(fits.values()) else ()


class Fitted(NamedTuple):
    """The fits to a dataset: the lines of its first two vocabularies by kind of sets, if it has two, and the table of all."""

    name: str
    lines: dict[SetKind, Fit]
    tallies: Sequence[Tally]
    table: LikelihoodTable


def _fit(name: str, bench: QuantisedDataset, progress: Progress) -> Fitted:
    from polyvoc.experiments.fit.likelihood import fit_table, tally_groups, together
    from polyvoc.experiments.fit.line import fit_lines

    lines = fit_lines(bench, progress) if len(bench.sizes) > 1 else {}
    tallies = tally_groups(bench, progress=progress)
    words = " + ".join(f"{size:,}" for size in bench.sizes)
    origin = f"{name} ({len(bench.dataset.questions):,} queries), words {words}, {bench.bits} bits"
    return Fitted(name, lines, tallies, fit_table(together(tallies), source=origin))


def _calibrate_dataset(
    source: tuple[str, Path], other: tuple[str, Path] | None, given: tuple[int | None, list[Path]], cache: Path | None
) -> Calibrated:
    """Fit lines and table to a dataset, and test them on another."""
    from polyvoc.experiments.cache import default_cache
    from polyvoc.experiments.fit.likelihood import table_figure
    from polyvoc.experiments.fit.reliability import curve_figure, reliability
    from polyvoc.experiments.workbench import Workbench
    from polyvoc.scoring.rules import table_as_dict

    fitted: dict[str, Fitted] = {}
    with progress_bar() as progress:
        workbench = Workbench(cache or default_cache(), progress=progress)
        datasets = [read_dataset(*one) for one in (source, other) if one is not None]  # all, before the work begins
        words = _vocabularies(workbench, source[0], datasets[0], None, (*given, TrainOptions.size)).words
        for dataset in datasets:
            name = dataset.name if dataset.name not in fitted else f"{dataset.name} ({dataset.folder})"
            fitted[name] = _fit(name, workbench.bench(dataset, words), progress)
    first, *others = fitted.values()
    tests = []
    shown = table_figure({first.name: first.table})
    for on in others:
        there, back = reliability(first.table, on.tallies), reliability(on.table, first.tallies)
        lines = {kind: _tested(fit, on.lines[kind]) for kind, fit in first.lines.items()}
        tests.append({"dataset": on.name, "line": lines, "likelihood_table": there.as_dict()})
        shown = curve_figure({f"{first.name}, tested on {on.name}": there, f"{on.name}, tested on {first.name}": back})
    fits = {name: one.lines for name, one in fitted.items()}
    facts = {"dataset": first.name, "folder": str(source[1]), "vocabularies": [word.fingerprint for word in words]}
    values = {**facts, "line": _plain(first.lines), "likelihood_table": table_as_dict(first.table), "tests": tests}
    return Calibrated(values, first.table, [*_panels(fits), *shown.panels])


def _tested(fit: Fit, on: Fit) -> dict[str, Any]:
    """Return the prediction errors of the lines and the curve of a fit on another dataset, by name."""
    from polyvoc.experiments.fit.line import measure_line

    fitted: dict[str, Line | PowerCurve] = {**fit.lines, "curve": fit.curve}
    return {name: measure_line(line, on.observations).as_dict() for name, line in fitted.items()}


@app.command(
    "reproduce", rich_help_panel=RESEARCH_COMMANDS, epilog="Example: polyvoc reproduce ~/datasets --out report --quick"
)
def reproduce_command(  # noqa: PLR0913
    *,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="Folder that holds the datasets: holidays*, ukbench*, oxford*, ...")
    ],
    out: Annotated[Path, path_flag("FOLDER", "Folder for the page, its numbers and plots.")],
    quick: Annotated[bool, switch("--quick", "Small vocabularies, fewer features and queries: minutes, not hours.")] = False,
    train: Annotated[Path | None, flag("FOLDER", "Photographs to train on. Default: DATA/train*, flickr* or photos*.")] = None,
    distractors: Annotated[
        Path | None, flag("FOLDER", "Distractors. Default: every other training photograph, not trained on.")
    ] = None,
    only: Annotated[list[str] | None, flag("NAME", "Only this table or figure, such as table3; repeatable.")] = None,
    finished: Annotated[bool, switch("--finished", "Report what an earlier run has finished; compute nothing.")] = False,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Redo the paper's experiments on your datasets, beside the paper's own numbers.

    Every finished result is a small file in OUT/cells: a run that was interrupted goes on where it stopped, also on another
    machine.
    """
    from polyvoc.experiments.cache import default_cache
    from polyvoc.experiments.paper.run import CELLS, named, run_experiments, set_up, write_report
    from polyvoc.experiments.paper.setup import FULL, QUICK
    from polyvoc.experiments.workbench import Workbench

    named(only or [])  # errors in the names, before the work begins
    with progress_bar() as progress:
        plan = QUICK if quick else FULL
        features = FeatureOptions(max_features=plan.features, detector="opencv-sift")
        workbench = Workbench(cache or default_cache(), features, progress, out / CELLS, finished)
        setup = set_up(data, train, distractors, plan, workbench)
        with write_errors(out):
            out.mkdir(parents=True, exist_ok=True)  # before the hours of work, not after
        report = run_experiments(setup, only or [])
        page = write_report(report, out)
    if json:
        write_json({"page": str(page), **report.as_dict()})
    else:
        print_reproduction(report, page)
