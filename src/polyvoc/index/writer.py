"""Bring an index up to date with folders of photographs, or with a file of features made by another program."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from polyvoc.errors import ExchangeError, NotAnIndexError, OptionError
from polyvoc.features.embedding import Embedder
from polyvoc.features.extract import check_features
from polyvoc.features.feature_files import FeatureFile, features_digest, kind_of, largest_features
from polyvoc.index.build import (
    BuildPlan,
    BuildResult,
    CommitLimits,
    LocalWorkers,
    MergeResult,
    PendingImages,
    SegmentBuilder,
    Workers,
)
from polyvoc.index.catalogue import Catalogue, ImageRow
from polyvoc.index.commit import Commits
from polyvoc.index.folder import (
    EmbeddingInfo,
    EmbeddingSource,
    IndexFolder,
    Lock,
    SideFile,
    load_embedder,
    load_model,
    lock_folder,
    open_catalogue,
    prepare_folder,
    set_embedding,
)
from polyvoc.options import FeatureOptions
from polyvoc.storage.files import write_file
from polyvoc.storage.folders import FileState, Folder, absolute_path, check_folders, file_digest, is_below, list_photographs
from polyvoc.storage.stores import display_name, is_url
from polyvoc.types import Array, FeatureKind, Features, IndexReport, Problem, Progress
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet

EXTERNAL = "features"  # the digest of an image whose features another program made begins with it


@dataclass
class Changes:
    """What differs between folders and the catalogue."""

    new: list[tuple[str, FileState]] = field(default_factory=list)
    changed: list[tuple[ImageRow, FileState]] = field(default_factory=list)
    missing: list[ImageRow] = field(default_factory=list)
    unchanged: int = 0
    sample_row: ImageRow | None = None  # one that is unchanged
    known_unusable: list[Problem] = field(default_factory=list)  # tried before, not changed since
    resolved: list[str] = field(default_factory=list)  # problems of files that are gone or have changed
    unreadable: list[Problem] = field(default_factory=list)  # folders; what the catalogue holds from there is unchanged
    empty_roots: list[str] = field(default_factory=list)  # given folders where everything is missing: perhaps not mounted


def compare_folders(
    folders: Sequence[Folder], rows: Iterable[ImageRow], problems: dict[str, tuple[FileState, Problem]]
) -> Changes:
    """Compare folders with the catalogue, without opening a file."""
    roots = [absolute_path(folder) for folder in folders]
    known = {row.path: row for row in rows if is_below(row.path, roots)}
    unusable = {path: entry for path, entry in problems.items() if is_below(path, roots)}
    changes, seen = Changes(), set()
    for path, state in list_photographs(folders, changes.unreadable.append):
        if path in seen:
            continue
        seen.add(path)
        row = known.pop(path, None)
        if row is not None and row.state == state:
            changes.unchanged += 1
            changes.sample_row = row
        elif path in unusable and unusable[path][0] == state:
            changes.known_unusable.append(unusable.pop(path)[1])
        elif row is not None:
            changes.changed.append((row, state))
        else:
            changes.new.append((path, state))
    hidden = [problem.path for problem in changes.unreadable]
    changes.missing = [row for row in known.values() if not is_below(row.path, hidden)]
    changes.unchanged += len(known) - len(changes.missing)
    changes.resolved = [path for path in unusable if not is_below(path, hidden)]
    missing = [row.path for row in changes.missing]
    changes.empty_roots = [root for root in roots if _any_below(missing, root) and not _any_below(seen, root)]
    return changes


def _any_below(paths: Iterable[str], root: str) -> bool:
    return any(is_below(path, [root]) for path in paths)


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
        prepare_folder(folder.path)
        lock = lock_folder(folder.path)
        try:
            given = vocabularies
            if given is not None and not isinstance(given, VocabularySet):
                given = VocabularySet.of(given)
            catalogue = open_catalogue(folder, given, feature_options)
            set_embedding(catalogue, model)
            writer = cls(folder, catalogue, lock, model, limits)
            writer._commits.remove_unreferenced()
            writer._commits.remove_staging()
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

    def update(self, folders: Sequence[str | os.PathLike[str]], keep_missing: bool = False,
               progress: Progress | None = None, workers: Workers | None = None) -> IndexReport:  # fmt: skip
        """Bring the index up to date with folders: add new photographs, replace changed ones, remove missing ones.

        Workers, such as `cluster.build.RayWorkers`, read photographs and build segments; this writer commits them.
        """
        _ = self.folder.extraction  # raises for an index of features that are not extracted from photographs
        self.commit()
        known = self.catalogue.images_below(map(absolute_path, folders))
        changes = compare_folders(folders, known, self.catalogue.problems())
        if changes.empty_roots and not keep_missing:
            raise OptionError(f"{', '.join(changes.empty_roots)} holds no photograph, but the index has some from there; is "
                              "the disk mounted? (to remove them: polyvoc remove FOLDER)")  # fmt: skip
        report = IndexReport(unchanged=changes.unchanged, problems=changes.unreadable + changes.known_unusable)
        self._touch_same(changes, report)
        model = self._embedder if changes.new or changes.changed else None  # loaded first: its file may be missing
        if model is not None and model.file is None and workers is not None:
            raise OptionError(f"{self.folder.path} holds vectors of a function, which other processes do not have; leave --ray "
                              "out")  # fmt: skip
        if changes.missing and not keep_missing:
            self._commits.remove(changes.missing)
            report.removed = len(changes.missing)
        if changes.resolved:
            with self.catalogue.transaction():
                self.catalogue.drop_problems(changes.resolved)
        self._build(workers or self._local_workers(model), changes, report, progress or (lambda stage, done, total: None))
        return report

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
        self._replaced += [] if replaced is None else [replaced.image]
        if self._limits.reached(self._pending, self._pending_since):
            self.commit()
        return image

    def remove(self, paths: Iterable[str | os.PathLike[str]]) -> int:
        """Remove images by path or name; a folder removes all below it. Return how many; unknown paths raise OptionError."""
        self.commit()
        rows = []
        for path in paths:
            name, location = os.fspath(path), absolute_path(path)
            known = self.catalogue.image_at(name) or self.catalogue.image_at(location)
            found = [known] if known else list(self.catalogue.images_below([location]))
            if not found:
                raise OptionError(f"{path} is not in the index; 'polyvoc info --images' lists what is")
            rows += found
        once = list({row.image: row for row in rows}.values())
        self._commits.remove(once)
        self._merge()
        return len(once)

    def commit(self) -> None:
        """Make everything added so far a part of the index."""
        if len(self._pending):
            batch = self._pending.batch()
            if self.catalogue.image(self._pending.rows[-1].image) is None:  # else interrupted right after its commit
                self._commits.open_staging()
                self._commits.add(self._builder.stage(batch), self._pending.rows, self._replaced)
                self._commits.remove_staging()
            self._start_pending()
            self._merge()
        self._pending_since = time.monotonic()

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

    def _local_workers(self, model: Embedder | None = None) -> LocalWorkers:
        return LocalWorkers(lambda: self.folder.models, model, self._limits)

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

    def _build(self, workers: Workers, changes: Changes, report: IndexReport, progress: Progress) -> None:
        """Have new and changed photographs read and segments merged; commit each result as it comes."""
        files = [*changes.new, *((row.path, state) for row, state in changes.changed)]
        replaced = {row.path: row.image for row, _ in changes.changed}
        if not files and not self._commits.next_merge():
            return
        # Ids are assigned beforehand: they follow the order of the files, whichever worker is quicker.
        plan = BuildPlan(self._next_image, files, changes.sample_row)
        self._next_image += len(files)
        n_before = len(report.problems)
        self._commits.open_staging()
        with closing(workers.work(self._builder, plan, self._commits.next_merge, progress)) as results:
            for result in results:
                try:
                    self._take(result, replaced, report)
                except KeyboardInterrupt:
                    if isinstance(result, BuildResult):  # what was built is kept
                        self._take(result, replaced, report)
                    raise
        order = {path: number for number, (path, _) in enumerate(files)}
        report.problems[n_before:] = sorted(report.problems[n_before:], key=lambda problem: order[problem.path])
        self._commits.remove_staging()

    def _take(self, result: BuildResult | MergeResult, replaced: Mapping[str, int], report: IndexReport) -> None:
        """Commit a result of the workers."""
        if isinstance(result, MergeResult):
            self._commits.replace_merged(result)
            return
        if result.rows and self.catalogue.image(result.rows[-1].image) is not None:
            return  # interrupted right after its commit
        paths = [*(row.path for row in result.rows), *(problem.path for _, problem in result.broken)]
        removed = [replaced[path] for path in paths if path in replaced]
        self._commits.add(result.saved, result.rows, removed, result.broken)
        n_replaced = sum(row.path in replaced for row in result.rows)
        report.replaced += n_replaced
        report.added += len(result.rows) - n_replaced
        report.features += sum(row.n_features for row in result.rows)
        report.problems += [*(problem for _, problem in result.broken), *result.unreachable]

    def _merge(self) -> None:
        """Merge small segments, and rewrite those with many deleted images, until there is nothing to gain."""
        self._build(self._local_workers(), Changes(), IndexReport(), lambda stage, done, total: None)


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
