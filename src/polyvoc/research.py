"""The commands for researchers: evaluate rules on a dataset, redo the paper's experiments."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvoc import console, flags, reports
from polyvoc.errors import OptionError
from polyvoc.flags import Json, Own, Shipped
from polyvoc.records import SearchOptions, TrainOptions

# As in cli.py, what loads OpenCV or numba is imported inside the commands.
if TYPE_CHECKING:
    from polyvoc.lab.datasets import Dataset
    from polyvoc.lab.workbench import Workbench
    from polyvoc.vocabulary import Vocabulary

app = typer.Typer()
NAMES = ("holidays", "ukbench", "oxford", "paris", "roxford", "rparis", "groups", "synthetic")
Cache = Annotated[
    Path | None, typer.Option(metavar="FOLDER", help="Where features and results are kept. Default: POLYVOC_CACHE, or ~/.cache/polyvoc.")
]
Name = Annotated[str, typer.Argument(metavar="|".join(NAMES), help="Which dataset.", autocompletion=lambda: list(NAMES))]
Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="Where it lies.")]
VARIED = ("merge", "hamming", "burstiness")  # all their usual values are tried unless told


# -- evaluate


@app.command(
    "evaluate",
    epilog="Example: polyvoc evaluate holidays ~/holidays\n\nExample: polyvoc evaluate groups ~/Pictures --merge b1 --merge posterior "
    "--vocabularies 2 --json",
)
@flags.from_record(SearchOptions, flags.SEARCH_TEXTS, defaults=False, without=(*VARIED, "top"))
def evaluate_command(  # noqa: PLR0913, PLR0917
    dataset: Name,
    folder: Folder,
    chosen: dict[str, Any],
    merge: Annotated[list[str] | None, typer.Option(metavar="RULE", help="Rule to evaluate; may be repeated. Default: all.")] = None,
    hamming: Annotated[
        list[str] | None, typer.Option(metavar="NUMBER|none", help="Hamming threshold; may be repeated. Default: none and 24.")
    ] = None,
    burstiness: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Burstiness; may be repeated. Default: none and intra.")
    ] = None,
    vocabularies: Shipped = None,
    vocabulary: Own = None,
    train: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Train vocabularies on these photographs instead.")] = None,
    size: Annotated[int, typer.Option(metavar="NUMBER", help="Words of each vocabulary that is trained.")] = TrainOptions.size,
    distractors: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Photographs to hide the right answers among.")] = None,
    fit: Annotated[
        tuple[str, Path] | None, typer.Option(metavar="DATASET FOLDER", help="Fit the line of term 2 on this other dataset first.")
    ] = None,
    questions: Annotated[int | None, typer.Option(metavar="NUMBER", help="Ask only so many questions, evenly spread.")] = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Rank a dataset by every rule, with and without Hamming Embedding and burstiness, and say how good the rankings are."""
    from polyvoc.lab import calibration, datasets, evaluation, truematches
    from polyvoc.lab.workbench import Workbench, default_cache

    varied = {name: [flags.typed(SearchOptions, name, value) for value in given]
              for name, given in zip(VARIED, (merge, hamming, burstiness), strict=True) if given}  # fmt: skip
    if "merge" in varied:
        varied["merges"] = varied.pop("merge")
    evaluation.rules(**varied, **chosen)  # values that make no sense are refused before the work begins
    with console.progress() as progress:
        workbench = Workbench(cache or default_cache(), progress=progress)
        asked = read_dataset(dataset, folder)
        if distractors is not None:
            asked = datasets.with_distractors(asked, distractors)
        if questions is not None:
            asked = datasets.first_questions(asked, questions)
        words = _words(workbench, dataset, folder, train, (vocabularies, vocabulary or [], size))
        if fit is not None:
            chosen["line"] = calibration.fit(truematches.observe(workbench.bench(read_dataset(*fit), words).first(2))).tied
        bench = workbench.bench(asked, words)
        if bench.signatures is None:
            varied.setdefault("hamming", [None])
        outcomes = evaluation.evaluate(workbench, bench, evaluation.rules(**varied, **chosen))
    rows = evaluation.table(asked, outcomes)
    if json:
        facts = {"dataset": asked.name, "images": len(asked.images), "questions": len(asked.questions), "features": bench.n_features,
                 "notes": list(asked.notes), "vocabularies": [v.fingerprint for v in words], "sizes": list(bench.sizes)}  # fmt: skip
        names = [question.name for question in asked.questions]
        console.write_json({**facts, "names": names, "rules": [_told(*pair) for pair in zip(rows, outcomes, strict=True)]})
    else:
        reports.show_evaluation(asked, bench, rows)


def read_dataset(name: str, folder: Path) -> Dataset:
    """Read a dataset by its name."""
    from polyvoc.lab import datasets, synthetic

    if name == "synthetic":
        return synthetic.read_world(folder)
    if name not in datasets.READERS:
        raise OptionError(f"{name!r} is no dataset; choose one of {', '.join(NAMES)}")
    return datasets.READERS[name](folder)


def _words(
    workbench: Workbench, name: str, folder: Path, train: Path | None, given: tuple[int | None, list[Path], int]
) -> tuple[Vocabulary, ...]:
    """Load or train the vocabularies of an evaluation."""
    from polyvoc.lab import datasets, synthetic
    from polyvoc.vocabulary import DEFAULT_COUNT, default_vocabularies, load_vocabularies

    count, folders, size = given
    if train is None and name != "synthetic":
        return load_vocabularies(count, folders) or default_vocabularies()
    if name == "synthetic":  # its descriptors are not those of photographs: the shipped words do not fit
        store = workbench.store(synthetic.training_images(folder), "siftgeo")
        size = min(size, 500)
    else:
        assert train is not None
        store = workbench.store(datasets.list_images(train))
    options = [TrainOptions(size=size, seed=seed) for seed in range(count or DEFAULT_COUNT)]
    return tuple(workbench.vocabulary(store, each, (train or folder).name) for each in options)


def _told(row: Any, outcome: Any) -> dict[str, Any]:
    return {
        "rule": row.rule,
        "measure": row.measure,
        "value": row.value.mean,
        "interval": [row.value.low, row.value.high],
        "gain_over_b1": None if row.gain is None else asdict(row.gain),
        "seconds_per_question": round(row.seconds, 6),
        "options": dict(outcome.options),
        "queries": outcome.values[row.measure],
        "measures": dict(outcome.values),
    }


# -- reproduce


@app.command("reproduce", epilog="Example: polyvoc reproduce ~/datasets --out report --quick")
def reproduce_command(  # noqa: PLR0913, PLR0917
    data: Annotated[Path, typer.Argument(metavar="DATA", help="Folder that holds the datasets: holidays*, ukbench*, oxford*, ...")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where to put the page, its numbers and its plots.")],
    quick: Annotated[bool, typer.Option("--quick", help="Vocabularies of a tenth, fewer questions: minutes instead of an hour.")] = False,
    train: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Photographs to train on. Default: DATA/train*, flickr* or photos*.")
    ] = None,
    distractors: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Distractors. Default: every other training photograph, not trained on.")
    ] = None,
    only: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this table or figure, such as table3; may be repeated.")] = None,
    cache: Cache = None,
    json: Json = False,
) -> None:
    """Redo the paper's experiments on the datasets at hand, every table and figure beside the paper's own numbers."""
    from polyvoc.lab import reproduction
    from polyvoc.lab.laboratory import FULL, QUICK
    from polyvoc.lab.workbench import Workbench, default_cache

    with console.progress() as progress:
        workbench = Workbench(cache or default_cache(), progress=progress)
        lab = reproduction.set_up(data, train, distractors, QUICK if quick else FULL, workbench)
        report = reproduction.run(lab, only or [])
        page = reproduction.write(report, out)
    if json:
        console.write_json({"page": str(page), **report.as_dict()})
    else:
        reports.show_reproduction(report, page)
