"""Bring an index up to date with folders of photographs, or with a file of features made by another program."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from polyvoc.errors import ExchangeError, NotAnIndexError, OptionError, WriteError
from polyvoc.features.decode import Decoders
from polyvoc.features.embedding import Embedder
from polyvoc.features.extract import check_features, single_cv2_thread
from polyvoc.features.feature_files import FeatureFile, features_digest, kind_of, largest_features
from polyvoc.features.learned import resolved
from polyvoc.index.build import (
    Building,
    BuildItem,
    BuildPlan,
    BuildResult,
    CommitLimits,
    LocalWorkers,
    MergeInput,
    MergeResult,
    PendingImages,
    ReadImage,
    SegmentBuilder,
    Workers,
    read_images,
)
from polyvoc.index.catalogue import Catalogue, ImageRow
from polyvoc.index.changes import Changes, FollowedFolder, compare_folders, find_moves, followed_paths
from polyvoc.index.commit import Commits
from polyvoc.index.folder import (
    EXCLUDE,
    FOLDERS,
    LOCK,
    ROOTS,
    UUID,
    EmbeddingInfo,
    EmbeddingSource,
    IndexFolder,
    Lock,
    SideFile,
    load_embedder,
    load_model,
    lock_folder,
    named_roots,
    open_catalogue,
    prepare_folder,
    set_embedding,
)
from polyvoc.options import FeatureOptions
from polyvoc.storage.exclusions import check_patterns
from polyvoc.storage.files import write_file
from polyvoc.storage.folders import FileState, Folder, absolute_path, check_folders, file_digest, is_below
from polyvoc.storage.stores import display_name, is_url, parent_url
from polyvoc.storage.trust import Trust, merged_roots, new_identity, note_roots
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import Array, FeatureKind, Features, IndexReport, Problem, Progress
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet

EXTERNAL = "features"  # the digest of an image whose features another program made begins with it


class IndexWriter:
    """An index opened for writing: one at a time per index, any number of readers meanwhile. Use it in a `with` statement."""

    def __init__(self, folder: IndexFolder, catalogue: Catalogue, lock: Lock, model: Embedder | None = None,
                 limits: CommitLimits = CommitLimits()) -> None:  # fmt: skip  # noqa: B008 (frozen)
        """Use `open`."""
        self.folder = folder
        self.catalogue = catalogue
        self._commits = Commits(folder, catalogue)
        self._lock = lock
        self._model = model  # of the global embedding, if it was given
        self._limits = limits
        self._next_image = catalogue.next_image()
        self._damaged: set[int] = set()  # segments, which are not merged
        self._start_pending()

    # -- opening and closing

    @classmethod
    def open(cls, path: str | os.PathLike[str], vocabularies: VocabularySet | Sequence[Vocabulary] | None = None,
             feature_options: FeatureOptions | None = None, embedding: EmbeddingSource | None = None, *,
             create: bool = True, limits: CommitLimits = CommitLimits()) -> Self:  # fmt: skip  # noqa: B008 (frozen)
        """Open an index for writing; create it if there is none, unless `create=False`.

        A new index takes these vocabularies (by default those that come with polyvoc; a sequence is completed by
        `VocabularySet.of`) and feature options; for an existing one they may be left out, and if given must be the same. The
        detector must make what the vocabularies were trained on, and does so if no options are given. With `embedding`, a
        model or the path of its ONNX file, every photograph gets a vector, which searches with `fuse` use. `limits` say when
        added images are committed.
        """
        folder = IndexFolder(Path(path))
        if not create and not folder.exists:
            raise NotAnIndexError(
                f"{folder.path} is not a polyvoc index; make it with: polyvoc index FOLDER --index {folder.path}"
            )
        model = None if embedding is None else load_model(embedding, threads=1)  # before anything is written
        options = None if feature_options is None else resolved(feature_options)
        given_file = not folder.exists or (feature_options is not None and feature_options.is_file)  # not named by the index
        prepare_folder(folder.path)
        lock = lock_folder(folder.path)
        try:
            given = vocabularies
            if given is not None and not isinstance(given, VocabularySet):
                given = VocabularySet.of(given)
            catalogue = open_catalogue(folder, given, options)
            set_embedding(catalogue, model)
            writer = cls(folder, catalogue, lock, model, limits)
            writer._commits.remove_unreferenced()
            writer._commits.remove_staging()
            if model is not None and model.file is not None:
                writer.record_roots([model.file])
            if options is not None and options.network is not None and given_file:
                writer.record_roots([options.network.file])
        except BaseException:
            lock.release()
            raise
        return writer

    def __enter__(self) -> Self:
        """Begin writing."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commit what is pending, also when the user interrupts; after any other error only what was committed stays."""
        try:
            if kind is None or issubclass(kind, KeyboardInterrupt):
                self.commit()
        finally:
            self.catalogue.close()
            self.folder.close()
            self._lock.release()

    # -- adding and removing

    def update(self, folders: Sequence[str | os.PathLike[str]] = (), keep_missing: bool = False,
               progress: Progress | None = None, workers: Workers | None = None, decoders: Decoders | None = None,
               exclude: Sequence[str] | None = None, follow: bool = True) -> IndexReport:  # fmt: skip
        """Bring the index up to date with folders: add new photographs, replace changed ones, remove missing ones.

        Without folders: those that it follows, which are all that were ever given. Files that were moved or renamed keep what
        is stored of them. A folder that is not there, or empty, removes nothing: perhaps its disk is not mounted. `exclude`
        replaces the patterns, as in gitignore, of what is left out; the index remembers them. `follow=False`: the folders are
        not among those that it follows from now on.

        Workers, such as `cluster.build.RayWorkers`, read photographs and build segments; this writer commits them. Without
        workers it decodes with `decoders`, or with own ones.
        """
        report_progress = progress or (lambda stage, done, total: None)
        changes, report, model = self._compare(folders, keep_missing, report_progress, workers, exclude, follow)
        workers = workers or self._local_workers(model, decoders)
        self._build(workers, changes, report, report_progress)
        self._note_end()
        return report

    def _compare(self, folders: Sequence[str | os.PathLike[str]], keep_missing: bool, report_progress: Progress,
                 workers: Workers | None, exclude: Sequence[str] | None,
                 follow: bool = True) -> tuple[Changes, IndexReport, Embedder | None]:  # fmt: skip
        """Record all of an update that needs no photograph; return what is to be read, and the model that it needs."""
        _ = self.folder.extraction  # raises for an index of features that are not extracted from photographs
        self.commit()
        folders = folders or self.followed_folders()
        self._set_exclude(exclude)
        known = self.catalogue.images_below(map(absolute_path, folders))
        followed = FollowedFolder.all_of(self.catalogue.setting(FOLDERS, required=False))
        disks = [disk for one in followed for disk in one.disks]
        changes = compare_folders(folders, known, self.catalogue.problems(), self.exclude, disks)
        present = [folder for folder in folders if absolute_path(folder) not in changes.absent]
        self.record_roots(map(_root_of, present))
        report = IndexReport(unchanged=changes.unchanged, problems=changes.unreadable + changes.known_unusable)
        report.skipped = dict(sum(changes.skipped.values(), Counter()).most_common())
        self._touch_same(changes, report)
        self._move(changes, report, report_progress)
        report.absent = {root: count for root, count in changes.absent.items() if count}
        model = self._embedder if changes.new or changes.changed else None  # loaded first: its file may be missing
        if model is not None and model.file is None and workers is not None:
            raise OptionError(f"{self.folder.path} holds vectors of a function, which other processes do not have; leave --ray "
                              "out")  # fmt: skip
        if changes.missing and not keep_missing:
            self._commits.remove(changes.missing)
            report.removed += len(changes.missing)
        if follow:
            self._follow(changes)
        if changes.resolved:
            with self.catalogue.transaction():
                self.catalogue.drop_problems(changes.resolved)
        return changes, report, model

    def _note_end(self) -> None:
        with suppress(OSError):
            os.utime(self.folder.path / LOCK)  # the time of the last update, beside the commits: it may change nothing

    def followed_folders(self) -> list[str]:
        """Return the folders that the index follows; raise OptionError if there are none.

        Raise NotAllowedError if this user has not allowed one: what an index follows is data of its maker.
        """
        found = [path for path in followed_paths(self.catalogue) if self._has_anything(path)]
        if not found:
            raise OptionError(f"{self.folder.path} follows no folder yet; give one: polyvoc index FOLDER --index "
                              f"{self.folder.path}")  # fmt: skip
        Trust(self.folder.path, *named_roots(self.catalogue.settings())).require_all(found)
        return found

    @property
    def exclude(self) -> list[str]:
        """Return the patterns of what the index leaves out."""
        return self.catalogue.setting(EXCLUDE, required=False) or []

    def add(self, name: str, image_features: Features, digest: str | None = None) -> int:
        """Add features made elsewhere under a name, replacing the image of that name; return its id. Found after a commit.

        The image has no pixels, hence no vector: it is ranked by its words alone. `digest` is stored, to see later whether the
        features are still the same.
        """
        check_features(image_features, self.folder.kind, str(self.folder.path))
        if not _is_storable(name):
            raise OptionError(f"{name!r} cannot be the name of an image: it is neither text nor a path")
        if name in self._pending_names:
            self.commit()  # the one to be replaced
        replaced = self.catalogue.image_at(name)
        image, self._next_image = self._next_image, self._next_image + 1
        size = image_features.width, image_features.height
        row = ImageRow(image, name, FileState(None, None), digest, *size, len(image_features), 0, 0)
        self._pending.add(row, image_features)
        self._pending_names.add(name)
        if is_url(name) or os.path.isabs(name):
            self._pending_roots.add(parent_url(name) if is_url(name) else os.path.dirname(name))
        self._replaced += [] if replaced is None else [replaced.image]
        if self._limits.reached(self._pending, self._pending_since):
            self.commit()
        return image

    def remove(self, paths: Iterable[str | os.PathLike[str]]) -> int:
        """Remove images by path or name; a folder removes all below it, and is not followed any more.

        Return how many; unknown paths raise OptionError.
        """
        self.commit()
        before = FollowedFolder.all_of(self.catalogue.setting(FOLDERS, required=False))
        rows, left = [], before
        for path in paths:
            name, location = os.fspath(path), absolute_path(path)
            known = self.catalogue.image_at(name) or self.catalogue.image_at(location)
            found = [known] if known else list(self.catalogue.images_below([location]))
            if not found and not any(is_below(one.path, [location]) for one in before):
                raise OptionError(f"{path} is not in the index; 'polyvoc info --images' lists what is")
            left = [one for one in left if not is_below(one.path, [location])]
            rows += found
        once = list({row.image: row for row in rows}.values())
        self._commits.remove(once)
        if len(left) < len(before):
            with self.catalogue.transaction():
                self.catalogue.put_settings({FOLDERS: FollowedFolder.setting(left)})
        self._merge()
        return len(once)

    def commit(self) -> None:
        """Make everything added so far a part of the index."""
        if self._pending_roots:
            self.record_roots(self._pending_roots)
        if len(self._pending):
            batch = self._pending.batch()
            if self.catalogue.image(self._pending.rows[-1].image) is None:  # else interrupted right after its commit
                self._commits.open_staging()
                self._commits.add(self._builder.stage(batch), self._pending.rows, self._replaced)
                self._commits.remove_staging()
            self._start_pending()
            self._merge()
        self._pending_since = time.monotonic()

    def record_roots(self, roots: Iterable[str]) -> None:
        """Record folders and addresses where photographs of this index lie, and note that this user allows to read there."""
        identity, named = named_roots(self.catalogue.settings())
        roots, made = list(roots), identity or new_identity()
        after = merged_roots([*named, *roots])
        if identity is None or set(after) != set(named):
            with self.catalogue.transaction():
                self.catalogue.put_settings({UUID: made, ROOTS: after})
                if identity is None:
                    self.catalogue.count_commit()  # open indexes are reopened: they look for notes under the identity
        with suppress(WriteError):  # without a home folder: what may not be read later names the next step
            note_roots(made, self.folder.path, roots)

    def save_settings(self, settings: Mapping[str, Any]) -> None:
        """Store settings as a commit: open indexes are reopened."""
        self.commit()
        with self.catalogue.transaction():
            self.catalogue.put_settings(settings)
            self.catalogue.count_commit()

    def save_side_file(
        self, kind: str, array: Array, extra: Mapping[str, Any] | None = None, new_snapshot: bool = False
    ) -> None:
        """Store an array beside the segments, replacing the one of its kind; `new_snapshot`: open indexes are reopened."""
        before = self.folder.side_file(kind)
        side = SideFile(kind, 1 if before is None else before.serial + 1, len(array), "", dict(extra or {}))
        side = replace(side, checksum=write_file(self.folder.side_path(side), array))
        with self.catalogue.transaction():
            self.catalogue.put_settings({kind: side.as_setting()})
            if new_snapshot:
                self.catalogue.count_commit()
        self._commits.remove_unreferenced()

    # -- the work

    def _start_pending(self) -> None:
        info = EmbeddingInfo.of(self.catalogue.settings())
        self._pending = PendingImages(lambda: self.folder.models, info.dimension if info else 0)
        self._pending_names: set[str] = set()
        self._pending_roots: set[str] = set()
        self._pending_since = time.monotonic()
        self._replaced: list[int] = []

    @cached_property
    def _builder(self) -> SegmentBuilder:
        return SegmentBuilder.of(self.folder)

    @cached_property
    def _embedder(self) -> Embedder | None:
        """Load the model that the vectors of this index are made with, if it holds any."""
        settings = self.catalogue.settings()
        return None if EmbeddingInfo.of(settings) is None else load_embedder(settings, self._model, threads=1)

    def _local_workers(self, model: Embedder | None = None, decoders: Decoders | None = None) -> LocalWorkers:
        return LocalWorkers(lambda: self.folder.models, model, self._limits, decoders=decoders)

    def _touch_same(self, changes: Changes, report: IndexReport) -> None:
        """Record the new time of files whose content is the same."""
        same = [(row, state) for row, state in changes.changed if row.digest and file_digest(row.path, state) == row.digest]
        if same:
            with self.catalogue.transaction():
                for row, state in same:
                    self.catalogue.touch(row, state)
            report.unchanged += len(same)
            touched = {row.image for row, _ in same}
            changes.changed = [(row, state) for row, state in changes.changed if row.image not in touched]

    def _move(self, changes: Changes, report: IndexReport, progress: Progress) -> None:
        """Record the new paths of photographs that were moved."""
        moves, replaced = find_moves(changes, self.catalogue, progress)
        if moves:
            self._commits.move([move.moved for move in moves], replaced)
            report.moved, report.removed = len(moves), len(replaced)
            for root in changes.absent:  # perhaps it was renamed itself
                changes.absent[root] = sum(1 for _ in self.catalogue.images_below([root]))

    def _set_exclude(self, given: Sequence[str] | None) -> None:
        """Record the patterns of what is left out, if some are given."""
        wanted = self.exclude if given is None else [pattern for pattern in given if pattern]
        check_patterns(wanted)
        if wanted != self.exclude:
            with self.catalogue.transaction():
                self.catalogue.put_settings({EXCLUDE: wanted})

    def _follow(self, changes: Changes) -> None:
        """Record the folders of an update, unless all is recorded already."""
        before = FollowedFolder.all_of(self.catalogue.setting(FOLDERS, required=False))
        found, known = {one.path: one for one in before}, {disk for one in before for disk in one.disks}
        for root, skipped in changes.skipped.items():
            counts = (
                tuple(sorted(skipped.items())) if root not in changes.absent else found.get(root, FollowedFolder(root)).skipped
            )
            disks = changes.disks[root] | {disk for disk in known if is_below(disk, [root]) and is_below(disk, changes.absent)}
            found[root] = FollowedFolder(root, counts, root not in changes.absent, tuple(sorted(disks)))
        # A folder below another one is followed with it; one that is not there and has nothing in the index is gone.
        kept = set(merged_roots(found))
        after = [one for path, one in found.items() if path in kept and self._has_anything(path)]
        if after != before:
            with self.catalogue.transaction():
                self.catalogue.put_settings({FOLDERS: FollowedFolder.setting(after)})

    def _has_anything(self, path: str) -> bool:
        """Return whether a followed folder is there, or the index holds photographs from there."""
        return is_url(path) or os.path.exists(path) or next(self.catalogue.images_below([path]), None) is not None

    def _build(self, workers: Workers, changes: Changes, report: IndexReport, progress: Progress) -> None:
        """Have new and changed photographs read and segments merged; commit each result as it comes."""
        plan, replaced = self._plan(changes)
        if not len(plan) and not self._next_merge(()):
            return
        n_before = len(report.problems)
        self._commits.open_staging()
        with closing(workers.work(self._builder, plan, self._next_merge, progress)) as results:
            for result in results:
                # Of other machines a later result may have lower ids.
                first = None if isinstance(workers, LocalWorkers) else plan.first
                try:
                    self._take(result, replaced, report, first)
                except KeyboardInterrupt:
                    if isinstance(result, BuildResult):  # what was built is kept
                        self._take(result, replaced, report, first)
                    raise
        _sort_problems(report, n_before, plan)
        self._commits.remove_staging()

    def _plan(self, changes: Changes) -> tuple[BuildPlan, dict[str, int]]:
        """Return what is to be read, and the images that are replaced, by path.

        Ids are assigned beforehand: they follow the order of the files, whichever worker is quicker.
        """
        files = [*changes.new, *((row.path, state) for row, state in changes.changed)]
        plan = BuildPlan(self._next_image, files, changes.sample_row)
        self._next_image += len(files)
        return plan, {row.path: row.image for row, _ in changes.changed}

    def _take(self, result: BuildResult | MergeResult, replaced: Mapping[str, int], report: IndexReport,
              first: int | None) -> None:  # fmt: skip
        """Commit a result of the workers; `first` is the lowest id that this or a later result may have."""
        if isinstance(result, MergeResult):
            self._damaged |= result.damaged.keys()
            report.problems += [Problem(str(self.folder.segment_folder(n)), line) for n, line in result.damaged.items()]
            if not result.damaged:
                self._commits.replace_merged(result)
            return
        if result.rows and self.catalogue.image(result.rows[-1].image) is not None:
            return  # interrupted right after its commit
        paths = [*(row.path for row in result.rows), *(problem.path for _, problem in result.broken)]
        removed = [replaced[path] for path in paths if path in replaced]
        self._commits.add(result.saved, result.rows, removed, result.broken, first)
        n_replaced = sum(row.path in replaced for row in result.rows)
        report.replaced += n_replaced
        report.added += len(result.rows) - n_replaced
        report.features += sum(row.n_features for row in result.rows)
        report.problems += [*(problem for _, problem in result.broken), *result.unreachable]

    def _next_merge(self, busy: Collection[int]) -> tuple[MergeInput, ...]:
        """Return the segments to merge next, without those that are being merged or were found damaged."""
        return self._commits.next_merge({*busy, *self._damaged})

    def _merge(self) -> None:
        """Merge small segments, and rewrite those with many deleted images, until there is nothing to gain."""
        self._build(self._local_workers(), Changes(), IndexReport(), lambda stage, done, total: None)


class _Part:
    """One of several indexes that are brought up to date together."""

    def __init__(self, writer: IndexWriter, changes: Changes, report: IndexReport) -> None:
        self.writer, self.report = writer, report
        self.plan, self._replaced = writer._plan(changes)
        self._n_before = len(report.problems)
        self._building = Building(writer._local_workers(), writer._builder)
        writer._commits.open_staging()
        self._merge()

    @property
    def options(self) -> FeatureOptions:
        """Return how its photographs are read."""
        return self._building.builder.options

    def add(self, image: ReadImage) -> None:
        """Add a photograph; commit if it is time."""
        if (result := self._building.add(image)) is not None:
            self._take(result)
            self._merge()

    def finish(self) -> None:
        """Commit the rest."""
        if len(self.plan):
            self._take(self._building.rest())
        self._merge()
        _sort_problems(self.report, self._n_before, self.plan)
        self.writer._commits.remove_staging()
        self.writer._note_end()

    def keep(self) -> None:
        """Commit what was read before an interruption."""
        self._take(self._building.rest())

    def _merge(self) -> None:
        while parts := self.writer._next_merge(()):
            self._take(self.writer._builder.merge(parts))

    def _take(self, result: BuildResult | MergeResult) -> None:
        try:
            self.writer._take(result, self._replaced, self.report, self.plan.first)
        except KeyboardInterrupt:
            if isinstance(result, BuildResult):  # what was built is kept
                self.writer._take(result, self._replaced, self.report, self.plan.first)
            raise


def update_together(writers: Sequence[IndexWriter], folders: Sequence[str | os.PathLike[str]] = (), keep_missing: bool = False,
                    progress: Progress | None = None, exclude: Sequence[str] | None = None) -> list[IndexReport]:  # fmt: skip
    """Bring several indexes up to date with the same folders, as `IndexWriter.update`; return the report of each.

    A photograph that several of them need is read once, and decoded once for each size; features are extracted for each.
    """
    report_progress = progress or (lambda stage, done, total: None)
    for writer in writers:
        if EmbeddingInfo.of(writer.catalogue.settings()) is not None:
            raise OptionError(f"{writer.folder.path} holds vectors of a global embedding; bring it up to date alone")
    parts = []
    for writer in writers:
        changes, report, _ = writer._compare(folders, keep_missing, report_progress, None, exclude)
        parts.append(_Part(writer, changes, report))
    wanted: dict[str, list[tuple[_Part, BuildItem]]] = {}
    for part in parts:
        for item in part.plan.items(range(len(part.plan))):
            wanted.setdefault(item.path, []).append((part, item))
    with single_cv2_thread(), Decoders(count_threads()) as decoders:

        def read(several: list[tuple[_Part, BuildItem]]) -> list[ReadImage]:
            return read_images([item for _, item in several], [part.options for part, _ in several], decoders)

        with closing(ordered_map(read, wanted.values(), count_threads(), "polyvoc-index", decoders.close)) as images:
            try:
                for done, (several, found) in enumerate(images, start=1):
                    for (part, _), image in zip(several, found, strict=True):
                        part.add(image)
                    report_progress("indexing", done, len(wanted))
            except KeyboardInterrupt:
                images.close()  # nothing else is read meanwhile
                for part in parts:
                    part.keep()
                raise
    for part in parts:
        part.finish()
    return [part.report for part in parts]


def _sort_problems(report: IndexReport, first: int, plan: BuildPlan) -> None:
    """Put the problems of a run, from the `first` on, in the order of the files."""
    order = {path: number for number, (path, _) in enumerate(plan.files)}
    report.problems[first:] = sorted(report.problems[first:], key=lambda problem: order.get(problem.path, -1))


def _root_of(folder: Folder) -> str:
    """Return the root that a folder, or a single file in one, stands for."""
    path = absolute_path(folder)
    return os.path.dirname(path) if not is_url(path) and os.path.isfile(path) else path


def _is_storable(name: str) -> bool:
    try:
        return bool(os.fsencode(name))
    except UnicodeEncodeError:
        return False


# -- features made by other programs


def check_kind(file: FeatureFile, folder: IndexFolder, vocabularies: VocabularySet | None) -> None:
    """Raise OptionError if features do not fit the vocabularies of an index, or those that a new one is to be made with."""
    # A new index takes the vocabularies that come with polyvoc.
    wanted = vocabularies.kind if vocabularies else folder.kind if folder.exists else FeatureKind()
    found = kind_of(file)
    if found != wanted:
        raise OptionError(f"{display_name(file.path)} holds {found}, but the vocabularies are for {wanted}; train others: "
                          f"polyvoc train --features {file.path} --out WORDS, and index with --vocabulary WORDS")  # fmt: skip


def check_folder(file: FeatureFile, images: str) -> None:
    """Raise OptionError if a folder holds no photograph that the file names."""
    check_folders([images])
    root = absolute_path(images)
    names = file.names()
    if not is_url(root) and not any(os.path.isfile(os.path.join(root, name)) for name in names):
        example = display_name(names[0]) if names else "any"
        raise OptionError(f"{images} holds no photograph that {display_name(file.path)} names, such as {example}; give the "
                          "folder that its names are relative to")  # fmt: skip


def add_feature_file(writer: IndexWriter, file: FeatureFile, images: str | None = None, keep_missing: bool = False,
                     progress: Progress | None = None) -> IndexReport:  # fmt: skip
    """Bring an index up to date with a file of features: add new images, replace changed ones, remove missing ones.

    `images` is the folder, or the address, of the photographs: names in the file are relative to it, and the images of the
    index get their paths. Without it they have the names of the file. Of each image the index takes the largest features, at
    most as many as its feature options allow.
    """
    if images is not None:
        check_folder(file, images)
        writer.record_roots([absolute_path(images)])
    writer.commit()
    known = {row.path: row for row in writer.catalogue.images()}
    prefix = (
        f"{EXTERNAL}:{hashlib.blake2b(os.fsencode(os.path.abspath(file.path)), digest_size=4).hexdigest()}:"  # of this file
    )
    report, seen = IndexReport(), set()
    for done, (name, found) in enumerate(file.read(), start=1):
        try:
            path = absolute_name(name, images)
            if isinstance(found, ExchangeError):
                raise found
            digest, old = prefix + features_digest(found), known.get(path)
            kept = largest_features(found, writer.folder.feature_options.max_features)
            if old is not None and old.digest == digest:
                report.unchanged += 1
            else:
                _add_features(writer, file, path, kept, digest)
                report.replaced += old is not None
                report.added += old is None
                report.features += len(kept)
            seen.add(path)
        except ExchangeError as error:
            report.problems.append(Problem(name, str(error)))
        if progress is not None:
            progress("indexing", done, len(file))
    missing = [row.path for row in known.values() if (row.digest or "").startswith(prefix) and row.path not in seen]
    if missing and not keep_missing:
        report.removed = writer.remove(missing)
    writer.commit()
    return report


def absolute_name(name: str, images: str | None) -> str:
    """Return the name of an image of a file in an index; raise ExchangeError for names that lead outside of the folder."""
    parts = PurePosixPath(name)
    if not name or "\0" in name or parts.is_absolute() or os.path.isabs(name) or ".." in parts.parts or is_url(name):
        raise ExchangeError(f"{name!r} is not the name of an image within a folder; leave it out")
    if images is None:
        return name
    root = absolute_path(images)
    return f"{root.rstrip('/')}/{name}" if is_url(root) else os.path.normpath(os.path.join(root, name))


def _add_features(writer: IndexWriter, file: FeatureFile, path: str, features: Features, digest: str) -> None:
    try:
        writer.add(path, features, digest)
    except OptionError as error:
        raise ExchangeError(f"{display_name(file.path)}: {display_name(path)}: {error}") from None
