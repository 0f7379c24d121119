"""The commands `index`, `remove`, `link`, `info`, `check` and `train`."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvoc.cli.flags import (
    DEFAULT_INDEX,
    MAINTENANCE,
    RESEARCH_COMMANDS,
    Binary,
    FeaturesFile,
    Folders,
    Images,
    IndexPath,
    Json,
    KindName,
    Own,
    Ray,
    Shipped,
    flag,
    from_record,
    only_one_source,
    path_flag,
    switch,
)
from polyvoc.cli.terminal import (
    linked_path,
    print_distributions,
    print_info,
    print_note,
    print_problems,
    print_report,
    print_row,
    progress_bar,
    vocabulary_text,
    write,
    write_json,
)
from polyvoc.errors import OptionError
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.types import Progress

if TYPE_CHECKING:
    from polyvoc.vocabulary.train import Sample, TrainWorkers

app = typer.Typer()


@app.command(
    "index",
    epilog="Example: polyvoc index ~/Pictures\n\nExample: polyvoc index --features database.db --images ~/Pictures",
)
@from_record(FeatureOptions)
def index_command(  # noqa: PLR0913
    *,
    folders: Folders = None,
    index: IndexPath = DEFAULT_INDEX,
    keep_missing: Annotated[bool, switch("--keep-missing", "Keep photographs whose files are gone.")] = False,
    json: Json = False,
    chosen: dict[str, Any],
    vocabularies: Shipped = None,
    vocabulary: Own = None,
    fine: Annotated[Path | None, flag("FOLDER", "Vocabulary of your own that codes refer to.")] = None,
    codes: Annotated[bool, switch("--codes/--no-codes", "Store codes, for the default search; else words only.")] = True,
    signatures: Annotated[
        bool | None,
        switch("--signatures/--no-signatures", "Store signatures of words, too, for the paper's Hamming Embedding."),
    ] = None,
    embedding: Annotated[Path | None, flag("MODEL.onnx", "Store a global embedding, too, for `search --fuse`.")] = None,
    ray: Ray = None,
    features: FeaturesFile = None,
    kind: KindName = None,
    binary: Binary = False,
    images: Images = None,
) -> None:
    """Index folders of photographs. Run it again to bring the index up to date."""
    from polyvoc.cluster.build import RayWorkers
    from polyvoc.features.feature_files import open_features
    from polyvoc.index.folder import IndexFolder, complete_feature_options
    from polyvoc.index.writer import IndexWriter, add_feature_file, check_folder, check_kind
    from polyvoc.storage.folders import check_folders
    from polyvoc.vocabulary.vocabulary import load_vocabularies

    extracting = {**chosen, "max_features": None, "embedding": embedding, "ray": ray}
    reading = {"feature_kind": kind, "binary": binary, "images": images}
    only_one_source(folders, features, reading if features is None else extracting)
    # Checked before a new index is made: folders, or the file, and the machines.
    check_folders(folders or [])
    file = None if features is None else open_features(features, kind, binary)
    started = time.perf_counter()
    words = load_vocabularies(vocabularies, vocabulary or [], fine, codes, signatures)
    if file is not None:
        check_kind(file, IndexFolder(index), words)
        if images is not None:
            check_folder(file, images)
    options = complete_feature_options(chosen, IndexFolder(index), words)
    workers = RayWorkers(ray) if ray else None  # connects
    with progress_bar() as progress, IndexWriter.open(index, words, options, embedding) as writer:
        if file is None:
            report = writer.update(folders or [], keep_missing, progress, workers)
        else:
            report = add_feature_file(writer, file, images, keep_missing, progress)
    seconds = time.perf_counter() - started
    if json:
        write_json({"index": str(index), **report.as_dict(), "seconds": round(seconds, 3)})
    else:
        print_report(report, seconds)
    if report.added + report.replaced + report.unchanged == 0:
        found = f"{len(report.problems)} files, none could be used" if report.problems else "no photograph found"
        raise OptionError(f"nothing to index in {', '.join(folders or [str(features)])}: {found}")


@app.command("remove", rich_help_panel=MAINTENANCE, epilog="Example: polyvoc remove ~/Pictures/2019")
def remove_command(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Photographs, or folders of them.")],
    index: IndexPath = DEFAULT_INDEX,
    json: Json = False,
) -> None:
    """Remove photographs from an index; their files stay."""
    from polyvoc.index.writer import IndexWriter

    with IndexWriter.open(index, create=False) as writer:
        removed = writer.remove(paths)
    if json:
        write_json({"index": str(index), "removed": removed})
    else:
        write(f"{removed} removed")


@app.command("link", rich_help_panel=MAINTENANCE, epilog="Example: polyvoc link && polyvoc search query.jpg --smooth 1")
def link_command(
    index: IndexPath = DEFAULT_INDEX,
    candidates: Annotated[int, flag("NUMBER", "Images that each photograph is compared with.")] = 20,
    json: Json = False,
) -> None:
    """Link photographs that show the same thing, for `search --smooth`. Run it again after adding some."""
    from polyvoc.index.writer import IndexWriter
    from polyvoc.search.index import Index
    from polyvoc.search.links import link

    started = time.perf_counter()
    with progress_bar() as progress, IndexWriter.open(index, create=False) as writer, Index.open(index, links=False) as opened:
        pairs = link(writer, opened.stored_queries, candidates, progress)
    seconds = time.perf_counter() - started
    if json:
        write_json({"index": str(index), "pairs": pairs, "seconds": round(seconds, 3)})
    else:
        write(f"{pairs:,} pairs of photographs that show the same thing, {seconds:.1f} s")


@app.command("info", rich_help_panel=MAINTENANCE, epilog="Example: polyvoc info --index photos.polyvoc")
def info_command(
    index: IndexPath = DEFAULT_INDEX,
    images: Annotated[bool, switch("--images", "List the photographs, too.")] = False,
    distributions: Annotated[bool, switch("--distributions", "Plot the lengths of the lists and their overlap.")] = False,
    json: Json = False,
) -> None:
    """Print what an index holds, and which files could not be used."""
    from polyvoc.search.index import Index
    from polyvoc.search.info import index_distributions, index_info, list_images

    opened = Index.open(index)
    facts = index_info(opened)
    histograms = index_distributions(opened) if distributions else {}
    rows = list_images(opened) if images else []
    if json:
        write_json({**facts, **histograms, **({"photographs": rows} if images else {})})
        return
    print_info(facts)
    if distributions:
        print_distributions(histograms)
    for row in rows:
        size = f"{row['width']} x {row['height']}"
        write(f"{row['image']:>7}  {size:>11} {row['features']:>6} features ", linked_path(row["path"]))


@app.command("check", rich_help_panel=MAINTENANCE, epilog="Example: polyvoc check --index photos.polyvoc")
def check_command(index: IndexPath = DEFAULT_INDEX, json: Json = False) -> None:
    """Check every file of an index for damage; exit code 1 if there is any."""
    from polyvoc.duplicates.compare import check_pairs
    from polyvoc.index.check import check
    from polyvoc.scoring.rules import check_table
    from polyvoc.search.links import check_links

    with progress_bar() as progress:
        errors = list(check(index, progress, (check_table, check_links, check_pairs)))
    if json:
        write_json({"index": str(index), "ok": not errors, "errors": errors})
    else:
        for line in errors or [f"{index}: no errors found"]:
            write(line)
    if errors:
        raise typer.Exit(1)


@app.command(
    "train",
    rich_help_panel=RESEARCH_COMMANDS,
    epilog="Example: polyvoc train ~/Pictures --out my-words --size 10000 --seed 1\n\n"
    "Example: polyvoc train ~/Pictures --out orb-words --detector orb\n\n"
    "Example: polyvoc train --features feats-superpoint-n4096-r1024.h5 --out superpoint-words",
)
@from_record(TrainOptions)
@from_record(FeatureOptions, receiver="reading")
def train_command(  # noqa: PLR0913
    *,
    folders: Folders = None,
    out: Annotated[Path, path_flag("FOLDER", "Folder of the new vocabulary.")],
    chosen: dict[str, Any],
    reading: dict[str, Any],
    features: FeaturesFile = None,
    kind: KindName = None,
    binary: Binary = False,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Train a vocabulary on your own photographs, for `polyvoc index --vocabulary`."""
    from polyvoc.features.feature_files import open_features
    from polyvoc.search.info import describe_vocabulary
    from polyvoc.vocabulary.train import LocalTrainWorkers, sample_features, train
    from polyvoc.vocabulary.vocabulary import check_vocabulary_target

    only_one_source(folders, features, {"feature_kind": kind, "binary": binary} if features is None else reading)
    check_vocabulary_target(out)  # before the hours of training, not after
    started = time.perf_counter()
    options = TrainOptions(**chosen)
    workers: TrainWorkers = LocalTrainWorkers()
    if ray is not None:
        from polyvoc.cluster.train import RayTrainWorkers

        workers = RayTrainWorkers(ray)
    with progress_bar() as progress:
        if features is not None:
            file = open_features(features, kind, binary)
            sample = sample_features(file, options, lambda done, total: progress("images", done, total))
            source = features.name
        else:
            sample, source = _draw(folders or [], FeatureOptions(**reading), options, workers, progress)
        trained = train(
            sample,
            options,
            lambda done, total, distortion, moved: progress(f"rounds: distortion {distortion:.4f}", done, total),
            source=source,
            workers=workers,
        )
    trained.save(out)
    facts = describe_vocabulary(trained)
    seconds = time.perf_counter() - started
    if json:
        problems = [asdict(problem) for problem in sample.problems]
        write_json({"vocabulary": str(out), **facts, "problems": problems, "seconds": round(seconds, 3)})
        return
    print_row("vocabulary", str(out), vocabulary_text(facts), f"{seconds:.1f} s")
    print_problems(sample.problems)
    given = "FOLDER" if features is None else f"--features {shlex.quote(str(features))}"
    print_note(f"Use it: polyvoc index {given} --index NEW.polyvoc --vocabulary {shlex.quote(str(out))}")


def _draw(folders: list[str], reading: FeatureOptions, options: TrainOptions, workers: TrainWorkers,
          progress: Progress) -> tuple[Sample, str]:  # fmt: skip
    """Draw descriptors from the photographs of folders; return them and the names of the folders."""
    from polyvoc.storage.folders import absolute_path, list_photographs
    from polyvoc.storage.stores import base_name
    from polyvoc.vocabulary.train import sample_descriptors

    sample = sample_descriptors(
        [path for path, _ in list_photographs(folders)],
        reading,
        limit=options.max_descriptors,
        seed=options.seed,
        progress=lambda done, total: progress("photographs", done, total),
        workers=workers,
    )
    return sample, ", ".join(base_name(absolute_path(folder)) for folder in folders)
