"""The commands `index`, `remove`, `link`, `info`, `check` and `train`."""

from __future__ import annotations

import shlex
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from threading import Event
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
    flag_name,
    from_record,
    only_one_source,
    path_flag,
    switch,
)
from polyvoc.cli.interrupt import ends_when_interrupted
from polyvoc.cli.terminal import (
    linked_path,
    print_distributions,
    print_error,
    print_info,
    print_note,
    print_problems,
    print_report,
    print_row,
    print_summary,
    print_update,
    progress_bar,
    shown_path,
    vocabulary_text,
    write,
    write_json,
)
from polyvoc.errors import OptionError, PolyvocError
from polyvoc.options import FeatureOptions, TrainOptions, options_of
from polyvoc.types import IndexReport, Progress

if TYPE_CHECKING:
    from polyvoc.index.build import Workers
    from polyvoc.index.folder import IndexFolder
    from polyvoc.index.writer import IndexWriter
    from polyvoc.vocabulary.train import Sample, TrainWorkers

app = typer.Typer()
NAMED = 3  # folders in a message, at most
GivenVocabularies = tuple[int | None, list[Path], Path | None, bool, bool | None]
DETECTORS = next(one for one in options_of(FeatureOptions) if one.name == "detector")
SEVERAL = "Repeatable: the first one's index lies at --index, that of each other beside it, as photos.orb.polyvoc."
EXCLUDE_HELP = "Leave out files and folders, as in gitignore, such as '*.gif' or 'cache/'; repeatable, remembered, '' forgets."


@app.command(
    "index",
    epilog="Example: polyvoc index ~/Pictures\n\nExample: polyvoc index --features database.db --images ~/Pictures\n\n"
    "Example: polyvoc index ~/Pictures --detector sift --detector orb --vocabulary orb-words",
)
@from_record(FeatureOptions, without=("detector",))
def index_command(  # noqa: PLR0913
    *,
    folders: Folders = None,
    index: IndexPath = DEFAULT_INDEX,
    keep_missing: Annotated[bool, switch("--keep-missing", "Keep photographs whose files are gone.")] = False,
    watch: Annotated[bool, switch("--watch", "Go on: update the index whenever files change, until Ctrl-C.")] = False,
    exclude: Annotated[list[str] | None, flag("PATTERN", EXCLUDE_HELP, "--exclude")] = None,
    json: Json = False,
    chosen: dict[str, Any],
    detector: Annotated[
        list[str] | None,
        flag(
            "NAME",
            f"{DETECTORS.help} One of {', '.join(DETECTORS.choices)}. {SEVERAL}",
            "--detector",
            autocompletion=lambda: list(DETECTORS.choices),
        ),
    ] = None,
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
    """Index folders of photographs. Run it again, without folders, to bring the index up to date with all of them."""
    from polyvoc.cluster.build import RayWorkers
    from polyvoc.features.feature_files import open_features
    from polyvoc.index.changes import check_new_folders
    from polyvoc.index.folder import IndexFolder, complete_feature_options
    from polyvoc.index.writer import IndexWriter, add_feature_file, check_folder, check_kind
    from polyvoc.storage.exclusions import check_patterns
    from polyvoc.vocabulary.vocabulary import load_vocabularies

    detectors = list(dict.fromkeys(detector or []))
    if len(detectors) > 1:
        alone = {"features": features, "embedding": embedding, "ray": ray, "watch": watch}
        require_one_detector(alone)
        given = (vocabularies, vocabulary or [], fine, codes, signatures)
        _index_several(folders or [], index, [{**chosen, "detector": one} for one in detectors], given,
                       {"keep_missing": keep_missing, "exclude": exclude}, json)  # fmt: skip
        return
    chosen |= dict(zip(["detector"], detectors, strict=False))
    extracting = {**chosen, "max_features": None, "embedding": embedding, "ray": ray, "exclude": exclude, "watch": watch}
    reading = {"feature_kind": kind, "binary": binary, "images": images}
    only_one_source(folders, features, reading if features is None else extracting, required=not IndexFolder(index).exists)
    # Checked before a new index is made: folders, or the file, and the machines.
    check_patterns(exclude or [])
    check_new_folders(IndexFolder(index), folders or [])
    file = None if features is None else open_features(features, kind, binary)
    started = time.perf_counter()
    words = load_vocabularies(vocabularies, vocabulary or [], fine, codes, signatures)
    if file is not None:
        check_kind(file, IndexFolder(index), words)
        if images is not None:
            check_folder(file, images)
    options = complete_feature_options(chosen, IndexFolder(index), words)
    workers = RayWorkers(ray) if ray else None  # connects
    with (
        ends_when_interrupted(),
        progress_bar() as progress,
        IndexWriter.open(index, words, options, embedding) as writer,
    ):
        if file is None:
            report = writer.update(folders or [], keep_missing, progress, workers, exclude=exclude)
        else:
            report = add_feature_file(writer, file, images, keep_missing, progress)
        commit = writer.catalogue.setting("commit")
    seconds = time.perf_counter() - started
    if json:
        write_json({"index": str(index), **report.as_dict(), "commit": commit, "seconds": round(seconds, 3)})
    else:
        print_report(report, seconds)
    require_any(index, report, folders or ([str(features)] if features is not None else []))
    if watch:
        _watch(
            index,
            lambda: IndexWriter.open(index, embedding=embedding, create=False),
            folders or [],
            keep_missing,
            workers,
            json,
        )


def index_beside(index: Path, detector: str) -> Path:
    """Return where the index of a further detector lies: photos.orb.polyvoc beside photos.polyvoc."""
    return index.with_name(f"{index.stem}.{detector}{index.suffix}")


def require_one_detector(given: Mapping[str, object]) -> None:
    """Raise OptionError for a flag that is for use with one detector, if it is given."""
    for name, value in given.items():
        if value:
            raise OptionError(
                f"{flag_name(name)} is for use with one --detector; make the index of each by a command of its own"
            )


def _index_several(folders: list[str], index: Path, options: Sequence[dict[str, Any]], given: GivenVocabularies,
                   updating: dict[str, Any], json: bool) -> None:  # fmt: skip
    """Index the same photographs with several detectors, an index each; photographs are read once."""
    from polyvoc.features.learned import resolved
    from polyvoc.index.changes import check_new_folders
    from polyvoc.index.folder import IndexFolder, check_new_index
    from polyvoc.index.writer import IndexWriter, update_together
    from polyvoc.storage.exclusions import check_patterns
    from polyvoc.vocabulary.vocabulary import load_vocabularies_of

    complete = [resolved(FeatureOptions(**one)) for one in options]  # checks the names
    paths = [index, *(index_beside(index, one.detector) for one in complete[1:])]
    every = [IndexFolder(path) for path in paths]
    only_one_source(folders, None, {}, required=not all(folder.exists for folder in every))
    check_patterns(updating["exclude"] or [])
    for folder in every:
        check_new_folders(folder, folders)
    sets = load_vocabularies_of([one.kind for one in complete], *given)
    started = time.perf_counter()
    with ends_when_interrupted(), progress_bar() as progress, ExitStack() as opened:
        wanted = [_feature_options(*one) for one in zip(options, complete, every, strict=True)]
        for folder, words, one in zip(every, sets, complete, strict=True):
            check_new_index(folder, words, one)  # all of them, before the first is made
        writers = [opened.enter_context(IndexWriter.open(path, words, one))
                   for path, words, one in zip(paths, sets, wanted, strict=True)]  # fmt: skip
        reports = update_together(writers, folders, progress=progress, **updating)
        commits = [writer.catalogue.setting("commit") for writer in writers]
    seconds = time.perf_counter() - started
    if json:
        rows = [{"index": str(path), **report.as_dict(), "commit": commit}
                for path, report, commit in zip(paths, reports, commits, strict=True)]  # fmt: skip
        write_json({"indexes": rows, "seconds": round(seconds, 3)})
    else:
        for path, report in zip(paths, reports, strict=True):
            write(f"{shown_path(str(path))}:")
            print_report(report, seconds)
    for path, report in zip(paths, reports, strict=True):
        require_any(path, report, folders)


def _feature_options(given: dict[str, Any], complete: FeatureOptions, folder: IndexFolder) -> FeatureOptions:
    """Return the feature options for an index; those that it has if its detector alone is given."""
    if folder.exists and given.keys() == {"detector"}:
        stored = folder.feature_options
        if stored.detector == complete.detector:
            return replace(stored, detector=given["detector"], network=None)  # where the file of a network is now
    return FeatureOptions(**given)


def require_any(index: Path, report: IndexReport, folders: Sequence[str]) -> None:
    """Raise OptionError if a run found nothing to index."""
    if report.added + report.replaced + report.moved + report.unchanged == 0 and not report.absent:
        found = "none of the files can be used" if report.problems else "no photograph found"
        where = folders or [f"the folders of {index}"]
        more = f" and {len(where) - NAMED} others" if len(where) > NAMED else ""
        raise OptionError(f"nothing to index in {', '.join(where[:NAMED])}{more}: {found}")


def _watch(index: Path, opened: Callable[[], IndexWriter], folders: list[str], keep_missing: bool, workers: Workers | None,
           json: bool) -> None:  # fmt: skip
    """Update an index whenever files change, one line each time, until Ctrl-C."""
    from polyvoc.index.watch import wait_for_changes
    from polyvoc.storage.folders import absolute_path

    with opened() as writer:
        watched = list(map(absolute_path, folders)) or writer.followed_folders()
        exclude = writer.exclude
    print_note(f"watching {', '.join(map(shown_path, watched))}; Ctrl-C ends it")
    stop = Event()

    def interrupt(*_: object) -> None:
        stop.set()  # in case that the exception is raised where Python ignores it, as in a destructor
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        for _ in wait_for_changes(watched, index, exclude, stop=stop):
            started = time.perf_counter()
            try:
                with ends_when_interrupted(), progress_bar() as progress, opened() as writer:
                    report = writer.update(folders, keep_missing, progress, workers)
                    commit = writer.catalogue.setting("commit")
            except PolyvocError as error:  # such as a full disk, or another writer: the next change is another attempt
                print_error(str(error))
                continue
            print_update(report, commit, time.perf_counter() - started, json)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGINT, before)
    print_note("stopped watching; the index is up to date with the last line")


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


@app.command(
    "trust", rich_help_panel=MAINTENANCE, epilog="Example: polyvoc trust /shared/photos --index /shared/photos.polyvoc"
)
def trust_command(
    folders: Annotated[
        list[str] | None, typer.Argument(metavar="FOLDER", help="Folders or addresses, such as s3://bucket/photos.")
    ] = None,
    index: IndexPath = DEFAULT_INDEX,
    json: Json = False,
) -> None:
    """Allow reading photographs below folders that an index made elsewhere names. Without folders: list what it names."""
    from polyvoc.index.folder import IndexFolder
    from polyvoc.storage.stores import display_name
    from polyvoc.storage.trust import checked_root, is_inside, note_roots

    folder = IndexFolder(index)
    try:
        trust = folder.trust
    finally:
        folder.close()
    roots = list(map(checked_root, folders or []))
    if roots and trust.identity is None:
        raise OptionError(f"{index} has no identity; bring it up to date first: polyvoc index FOLDER --index {index}")
    if roots and trust.identity is not None:
        note_roots(trust.identity, index, roots)
    if json:
        write_json({"index": str(index), "named": trust.named, "allowed": trust.roots})
        return
    for root in trust.roots:
        write(f"{'allowed':<13} {display_name(root)}")
    for root in trust.named:
        if not is_inside(root, trust.roots):
            write(f"{'not allowed':<13} {display_name(root)}")


@app.command("link", rich_help_panel=MAINTENANCE, epilog="Example: polyvoc link && polyvoc search query.jpg --smooth 1")
def link_command(
    index: IndexPath = DEFAULT_INDEX,
    candidates: Annotated[int, flag("NUMBER", "Images that each photograph is compared with.")] = 20,
    json: Json = False,
) -> None:
    """Link photographs that show the same thing, for groups on the page and `search --smooth`; again after adding some."""
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
    verbose: Annotated[bool, switch("--verbose", "Print vocabularies, options and the bytes of every array, too.")] = False,
    distributions: Annotated[bool, switch("--distributions", "Plot the lengths of the lists and their overlap.")] = False,
    json: Json = False,
) -> None:
    """Print the folders of an index, what it holds and skipped, its size and last run; --verbose: all about it."""
    from polyvoc.search.index import Index
    from polyvoc.search.info import index_distributions, index_info, list_images

    opened = Index.open(index)
    facts = index_info(opened)
    histograms = index_distributions(opened) if distributions else {}
    rows = list_images(opened) if images else []
    if json:
        write_json({**facts, **histograms, **({"photographs": rows} if images else {})})
        return
    print_summary(facts)
    if verbose:
        print_info(facts)
    if distributions:
        print_distributions(histograms)
    for row in rows:
        size = f"{row['width']} x {row['height']}"
        write(f"{row['image']:>7}  {size:>11} {row['features']:>6} features ", linked_path(row["path"]))


@app.command("check", rich_help_panel=MAINTENANCE, epilog="Example: polyvoc check --index photos.polyvoc")
def check_command(
    index: IndexPath = DEFAULT_INDEX,
    repair: Annotated[
        bool, switch("--repair", "Drop what is damaged; the next run of 'polyvoc index' reads those photographs again.")
    ] = False,
    json: Json = False,
) -> None:
    """Check every file of an index for damage; exit code 1 if there is any."""
    from polyvoc.duplicates.compare import check_pairs
    from polyvoc.duplicates.decisions import check_decisions, sound_decisions
    from polyvoc.index.check import check
    from polyvoc.index.folder import DECISIONS
    from polyvoc.index.repair import RepairReport
    from polyvoc.index.repair import repair as repair_index
    from polyvoc.scoring.rules import check_table
    from polyvoc.search.links import check_links

    report = RepairReport()
    with progress_bar() as progress:
        if repair:
            report = repair_index(index, progress, {DECISIONS: sound_decisions})
        errors = list(check(index, progress, (check_table, check_links, check_pairs, check_decisions)))
    if json:
        repaired = {"repaired": report.lines, "dropped": report.images} if repair else {}
        write_json({"index": str(index), "ok": not errors, "errors": errors, **repaired})
    else:
        for line in (*report.lines, *(errors or [f"{index}: no errors found"])):
            write(line)
        if report.images:
            print_note(f"{report.images:,} photographs were dropped; to read them again: polyvoc index FOLDER --index {index}")
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
