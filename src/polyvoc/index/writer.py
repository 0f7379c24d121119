"""Bring an index up to date."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

import numpy as np

from polyvoc.errors import ExchangeError, ImageError, OptionError, UnreachableError
from polyvoc.features.embedding import Embedder
from polyvoc.features.extract import check_features
from polyvoc.features.feature_files import FeatureFile, features_digest, kind_of, largest_features
from polyvoc.index.build import BuildPlan, BuildResult, MergeResult, PendingImages, SegmentBuilder, Workers, read_photographs
from polyvoc.index.catalogue import Catalogue, ImageRow
from polyvoc.index.commit import Commits
from polyvoc.index.folder import (
    NEIGHBOURS,
    EmbeddingRecord,
    EmbeddingSource,
    IndexFolder,
    Lock,
    load_embedder,
    load_embedding,
    lock_folder,
    open_catalogue,
    prepare_folder,
    settle_embedding,
)
from polyvoc.index.segment import MAX_IMAGES
from polyvoc.options import FeatureOptions, SearchOptions
from polyvoc.storage.files import write_file
from polyvoc.storage.folders import (
    FileState,
    Folder,
    absolute_path,
    check_folders,
    file_digest,
    is_below,
    is_unchanged,
    list_photographs,
)
from polyvoc.storage.stores import display_name, is_url
from polyvoc.types import FeatureKind, Features, Floats32, IndexReport, LikelihoodTable, Problem, Progress
from polyvoc.vocabulary.vocabulary import Vocabulary


@dataclass
class Changes:
    """What differs between folders and the catalogue."""

    new: list[tuple[str, FileState]] = field(default_factory=list)
    changed: list[tuple[ImageRow, FileState]] = field(default_factory=list)
    missing: list[ImageRow] = field(default_factory=list)
    unchanged: int = 0
    known: ImageRow | None = None  # one that is there, unchanged
    still_broken: list[Problem] = field(default_factory=list)  # tried before, not changed since
    mended: list[str] = field(default_factory=list)  # problems of files that are gone or have changed
    unreadable: list[Problem] = field(default_factory=list)  # folders; what the catalogue holds from there is unchanged
    emptied: list[str] = field(default_factory=list)  # given folders where everything is missing: perhaps not mounted


def compare_folders(
    folders: Sequence[Folder], rows: Iterable[ImageRow], problems: dict[str, tuple[FileState, Problem]]
) -> Changes:
    """Compare folders with the catalogue, without opening a file."""
    roots = [absolute_path(folder) for folder in folders]
    known = {row.path: row for row in rows if is_below(row.path, roots)}
    broken = {path: entry for path, entry in problems.items() if is_below(path, roots)}
    changes = Changes()
    seen = set()

    for path, state in list_photographs(folders, changes.unreadable.append):
        if path in seen:
            continue
        seen.add(path)
        row = known.pop(path, None)
        if row is not None and row.state == state:
            changes.unchanged += 1
            changes.known = row
        elif path in broken and broken[path][0] == state:
            changes.still_broken.append(broken.pop(path)[1])
        elif row is not None:
            changes.changed.append((row, state))
        else:
            changes.new.append((path, state))
    hidden = [problem.path for problem in changes.unreadable]
    changes.missing = [row for row in known.values() if not is_below(row.path, hidden)]
    changes.unchanged += len(known) - len(changes.missing)
    changes.mended = [path for path in broken if not is_below(path, hidden)]
    missing = [row.path for row in changes.missing]
    changes.emptied = [root for root in roots if _any_below(missing, root) and not _any_below(seen, root)]
    return changes


def _any_below(paths: Iterable[str], root: str) -> bool:
    return any(is_below(path, [root]) for path in paths)


COMMIT_SECONDS = 30.0  # a killed process loses at most this much work
COMMIT_FEATURES = 1_000_000  # 50 MB waiting to be written
COMMIT_IMAGES = MAX_IMAGES  # a commit is one segment


class IndexWriter:
    """An index opened for writing: one at a time per index, any number of readers meanwhile. Use it in a `with` statement."""

    def __init__(self, home: IndexFolder, catalogue: Catalogue, lock: Lock, model: Embedder | None) -> None:
        """Use `open`."""
        self.home = home
        self.catalogue = catalogue
        self._commits = Commits(home, catalogue)
        self._lock = lock
        self._model = model  # of the global embedding, if it was given
        self._record = EmbeddingRecord.of(catalogue)
        self._intake = PendingImages(lambda: self.home.quantiser, self._record.dimension if self._record else 0)
        self._next_image = catalogue.next_image()
        self._last_commit = time.monotonic()

    # -- opening and closing

    @classmethod
    def open(cls, path: str | os.PathLike[str], vocabularies: Sequence[Vocabulary] | None = None,
             feature_options: FeatureOptions | None = None, embedding: EmbeddingSource | None = None) -> Self:  # fmt: skip
        """Open an index for writing, or make it.

        A new index takes these vocabularies (those that come with polyvoc) and feature options; for an existing one they may be
        left out, and if given must be the same. The detector must make what the vocabularies were trained on, and does so if no
        options are given. So with a model for `embedding`, or the path of its ONNX file: it gives every photograph a vector,
        and searches that `fuse` hear it.
        """
        home = IndexFolder(Path(path))
        model = None if embedding is None else load_embedding(embedding, threads=1)  # before anything is written
        prepare_folder(home.path)
        lock = lock_folder(home.path)
        try:
            catalogue = open_catalogue(home, vocabularies, feature_options)
            settle_embedding(catalogue, model)
            writer = cls(home, catalogue, lock, model)
            writer._commits.sweep()
            writer._commits.sweep_incoming()
        except BaseException:
            lock.release()
            raise
        return writer

    def __enter__(self) -> Self:
        """Begin writing."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Commit what waits, also when the user interrupts; after any other error only what was committed stays."""
        try:
            if kind is None or issubclass(kind, KeyboardInterrupt):
                self.commit()
                self._write_norms()
        finally:
            self.catalogue.close()
            self.home.close()
            self._lock.release()

    # -- adding and removing

    def update(self, folders: Sequence[str | os.PathLike[str]], keep_missing: bool = False,
               progress: Progress | None = None, workers: Workers | None = None) -> IndexReport:  # fmt: skip
        """Bring the index up to date with folders: add new photographs, replace changed ones, drop vanished ones.

        Workers (`cluster.building.RayWorkers`) read photographs and build segments in this writer's stead: it only commits.
        """
        _ = self.home.extraction  # refuses an index of features that photographs do not give
        self.commit()
        changes = compare_folders(folders, self.catalogue.images(), self.catalogue.problems())
        if changes.emptied and not keep_missing:
            raise OptionError(f"{', '.join(changes.emptied)} holds no photograph, but the index has some from there; is the "
                              "disk mounted? (to drop them: polyvoc remove FOLDER)")  # fmt: skip
        report = IndexReport(unchanged=changes.unchanged, problems=changes.unreadable + changes.still_broken)
        self._touch_same(changes, report)
        model = self._embedder if changes.new or changes.changed else None  # first of all: its file may be gone
        if model is not None and model.file is None and workers is not None:
            raise OptionError(
                f"{self.home.path} holds vectors of a function, which other processes do not have; leave --ray out"
            )
        if changes.missing and not keep_missing:
            self._commits.remove(changes.missing)
            report.removed = len(changes.missing)
            if workers is None:  # they merge, too
                self._merge()
        if changes.mended:
            with self.catalogue.transaction():
                self.catalogue.drop_problems(changes.mended)
        tell = progress or (lambda stage, done, total: None)
        if workers is not None:
            self._employ(workers, changes, report, tell)
        else:
            self._extract(changes, model, report, tell)
        return report

    def add(self, name: str, image_features: Features, digest: str | None = None) -> int:
        """Add features made elsewhere under a name, replacing the image of that name; gives its id. Found after a commit.

        It has no pixels, hence no vector: of such an image a global embedding is silent. `digest` is remembered, for who
        wants to know later whether the features are still the same.
        """
        check_features(image_features, self.home.kind, str(self.home.path))
        if not _is_storable(name):
            raise OptionError(f"{name!r} cannot be the name of an image: it is neither text nor a path")
        if name in self._intake.names:
            self.commit()  # what is to be replaced
        replaced = self.catalogue.image_at(name)
        return self._add(name, image_features, None, FileState(None, None), digest, replaced)

    def remove(self, paths: Iterable[str | os.PathLike[str]]) -> int:
        """Remove images by path or name; a folder removes all below it. Gives how many; unknown paths are an error."""
        self.commit()
        rows = []
        for path in paths:
            name, absolute = os.fspath(path), absolute_path(path)
            known = self.catalogue.image_at(name) or self.catalogue.image_at(absolute)
            found = [known] if known else [r for r in self.catalogue.images() if is_below(r.path, [absolute])]
            if not found:
                raise OptionError(f"{path} is not in the index; 'polyvoc info --images' lists what is")
            rows += found
        once = list({row.image: row for row in rows}.values())
        self._commits.remove(once)
        self._merge()
        return len(once)

    def commit(self) -> None:
        """Make everything added so far a part of the index."""
        waiting = self._intake
        waiting.quantise()
        self._last_commit = time.monotonic()
        if waiting.rows and self.catalogue.image(waiting.rows[-1].image) is not None:
            waiting.forget()  # an interrupt fell between the transaction and what follows it
        if not waiting.rows:
            return
        placed = self._commits.save(waiting.batch(), self._workshop)
        self._commits.add(placed, waiting.rows, waiting.replaced)
        waiting.forget()
        self._merge()

    def save_line(self, line: tuple[float, float], source: dict[str, Any]) -> None:
        """Make a line (a, b) of term 2, and plain values that tell where it comes from, a part of the index."""
        a, b = SearchOptions(line=line).line  # refuses what is no line
        self._save_facts({"line": {"a": a, "b": b, "source": source}})

    def save_evidence(self, table: LikelihoodTable) -> None:
        """Make a table of evidence a part of the index: its searches use it from then on."""
        from polyvoc.scoring.rules import table_as_dict

        k = len(self._workshop.sizes)
        if table.n_vocabularies != k:
            raise OptionError(f"a table of evidence for {table.n_vocabularies} vocabularies does not fit an index with "
                              f"{k}; fit one: polyvoc calibrate --index {self.home.path} --save")  # fmt: skip
        self._save_facts({"evidence": table_as_dict(table)})

    def link(self, candidates: int = 20, progress: Progress | None = None) -> int:
        """Find which images show the same thing, for searches that `smooth`; gives the number of pairs."""
        from polyvoc.search.index import Index
        from polyvoc.search.links import LinksRecord, find_links

        self.commit()
        index = Index(self.home.read_engine(linked=False), self.home, 0, self.home.read_line(), self.home.read_evidence())
        pairs = find_links(index.engine, index.preset("fast"), candidates, progress)
        commit = self.catalogue.fact("commit") + 1
        checksum = write_file(self.home.neighbours_file(commit), pairs)
        self._save_facts({NEIGHBOURS: asdict(LinksRecord(commit, len(pairs), checksum))})
        self._commits.sweep()
        return len(pairs)

    def _save_facts(self, facts: dict[str, Any]) -> None:
        self.commit()
        with self.catalogue.transaction():
            self.catalogue.put_facts(facts)
            self.catalogue.count_commit()

    # -- the work

    @cached_property
    def _workshop(self) -> SegmentBuilder:
        return SegmentBuilder.of(self.home, self.catalogue)

    @cached_property
    def _embedder(self) -> Embedder | None:
        """Load the model that the vectors of this index are made with, if it holds any."""
        return None if self._record is None else load_embedder(self.catalogue, self._model, threads=1)

    def _touch_same(self, changes: Changes, report: IndexReport) -> None:
        """Files with another time but the same content only get their time noted."""
        same = [(row, state) for row, state in changes.changed if row.digest and file_digest(row.path, state) == row.digest]
        if same:
            with self.catalogue.transaction():
                for row, state in same:
                    self.catalogue.touch(row, state)
            report.unchanged += len(same)
            touched = {row.image for row, _ in same}
            changes.changed = [(row, state) for row, state in changes.changed if row.image not in touched]

    def _extract(self, changes: Changes, model: Embedder | None, report: IndexReport, progress: Progress) -> None:
        states = dict(changes.new) | {row.path: state for row, state in changes.changed}
        replaced = {row.path: row for row, _ in changes.changed}
        photographs = read_photographs(list(states), self.home.extraction, model)
        try:
            for done, (path, result, vector) in enumerate(photographs, start=1):
                if isinstance(result, ImageError) and _may_pass(path, states[path], result):  # nothing is remembered, or goes
                    report.problems.append(Problem(path, str(result)))
                elif isinstance(result, ImageError):
                    self._note_problem(Problem(path, str(result)), states[path], replaced.get(path), report)
                else:
                    digest = file_digest(path, states[path])
                    self._add(path, result, vector, states[path], digest, replaced.get(path))
                    report.replaced += path in replaced
                    report.added += path not in replaced
                    report.features += len(result)
                progress("indexing", done, len(states))
        except KeyboardInterrupt:
            self.commit()
            raise
        finally:
            photographs.close()
        self.commit()

    def _note_problem(self, problem: Problem, state: FileState, old: ImageRow | None, report: IndexReport) -> None:
        """Remember a file that cannot be used; what the index held of it before goes."""
        report.problems.append(problem)
        self._commits.add(None, [], [] if old is None else [old.image], [(state, problem)])

    def _employ(self, workers: Workers, changes: Changes, report: IndexReport, progress: Progress) -> None:
        """Let others read what is new and changed, and merge; commit each piece of their work as it comes."""
        files = [*changes.new, *((row.path, state) for row, state in changes.changed)]
        replaced = {row.path: row.image for row, _ in changes.changed}
        if not files and not self._commits.next_merge():
            return
        # Ids are given out beforehand, so that they follow the order of the files whoever is quicker.
        wanted = BuildPlan(self._next_image, files, changes.known)
        self._next_image += len(files)
        known = len(report.problems)
        self._commits.open_incoming()
        with closing(workers.work(self._workshop, wanted, self._commits.next_merge, progress)) as made:
            for one in made:
                self._take(one, replaced, report)
        wrong = {problem.path for problem in report.problems[known:]}
        places = {path: place for place, (path, _) in enumerate(files) if path in wrong}
        report.problems[known:] = sorted(report.problems[known:], key=lambda problem: places[problem.path])
        self._commits.sweep_incoming()

    def _take(self, made: BuildResult | MergeResult, replaced: dict[str, int], report: IndexReport) -> None:
        """Commit what workers made."""
        placed = None if made.saved is None else self._commits.receive(made.saved)
        if isinstance(made, MergeResult):
            self._commits.join(made.parts, placed, made.ids)
            return
        settled = [*(row.path for row in made.rows), *(problem.path for _, problem in made.broken)]
        self._commits.add(placed, made.rows, [replaced[path] for path in settled if path in replaced], made.broken)
        renewed = sum(row.path in replaced for row in made.rows)
        report.replaced += renewed
        report.added += len(made.rows) - renewed
        report.features += sum(row.n_features for row in made.rows)
        report.problems += [*(problem for _, problem in made.broken), *made.unreachable]

    def _add(self, path: str, found: Features, vector: Floats32 | None, state: FileState, digest: str | None,
             replaced: ImageRow | None) -> int:  # fmt: skip
        image, self._next_image = self._next_image, self._next_image + 1
        row = ImageRow(image, path, state, digest, found.width, found.height, len(found), 0, 0)
        self._intake.add(row, found, vector, replaced)
        full = self._intake.n_features >= COMMIT_FEATURES or len(self._intake.names) >= COMMIT_IMAGES
        if full or time.monotonic() - self._last_commit >= COMMIT_SECONDS:
            self.commit()
        return image

    def _merge(self) -> None:
        """Merge small segments, and rewrite those with many deleted images, until there is nothing to gain."""
        while parts := self._commits.next_merge():
            batch = self._workshop.join(parts)
            placed = self._commits.save(batch, self._workshop) if len(batch.ids) else None
            self._commits.join(parts, placed, batch.ids.tolist())

    def _write_norms(self) -> None:
        """Store the norms of the last commit, so that readers need not compute them."""
        known, commit = self.catalogue.fact("norms"), self.catalogue.fact("commit")
        if commit == 0 or (known is not None and known["commit"] == commit):
            return
        norms = self.home.read_engine(linked=False).norms(SearchOptions())
        checksum = write_file(self.home.norms_file(commit), np.concatenate([np.empty(0, np.float32), *norms]))
        with self.catalogue.transaction():
            self.catalogue.put_facts({"norms": {"commit": commit, "checksum": checksum}})
        self._commits.sweep()


def _may_pass(path: str, state: FileState, error: ImageError) -> bool:
    """Tell whether a photograph may be sound after all: it cannot be read now, or is no longer what was found."""
    return isinstance(error, UnreachableError) or not is_unchanged(path, state)


def _is_storable(name: str) -> bool:
    try:
        return bool(os.fsencode(name))
    except UnicodeEncodeError:
        return False


MADE = "features"  # with which the digest of an image begins whose features another program made


def check_kind(file: FeatureFile, home: IndexFolder, vocabularies: Sequence[Vocabulary] | None) -> None:
    """Refuse features that have no words in the vocabularies of an index, or in those that a new one is to be made with."""
    found, wanted = kind_of(file), _kind_wanted(home, vocabularies)
    if found != wanted:
        raise OptionError(f"{display_name(file.path)} holds {found}, but the vocabularies are for {wanted}; train others: polyvoc "
                          f"train --features {file.path} --out WORDS, and index with --vocabulary WORDS")  # fmt: skip


def _kind_wanted(home: IndexFolder, vocabularies: Sequence[Vocabulary] | None) -> FeatureKind:
    if vocabularies:
        return vocabularies[0].kind
    return FeatureKind() if home.identity is None else home.kind  # a new index takes the vocabularies that come with polyvoc


def check_folder(file: FeatureFile, images: str) -> None:
    """Refuse a folder without a single photograph of the file: its names would lead nowhere."""
    check_folders([images])
    root = absolute_path(images)
    names = file.names()
    if not is_url(root) and not any(os.path.isfile(os.path.join(root, name)) for name in names):
        example = display_name(names[0]) if names else "any"
        raise OptionError(f"{images} holds no photograph that {display_name(file.path)} names, such as {example}; give the folder "
                          "that its names are relative to")  # fmt: skip


def add_feature_file(writer: IndexWriter, file: FeatureFile, images: str | None = None, keep_missing: bool = False,
           progress: Progress | None = None) -> IndexReport:  # fmt: skip
    """Bring an index up to date with a file of features: add new images, replace changed ones, drop vanished ones.

    `images` is the folder, or the address, where the photographs lie: names in the file are relative to it, and the images of
    the index get their paths. Without it they are called as in the file. Of each image the index takes the largest features,
    as many as its feature options say of photographs.
    """
    if images is not None:
        check_folder(file, images)
    writer.commit()
    known = {row.path: row for row in writer.catalogue.images()}
    mark = f"{MADE}:{hashlib.blake2b(os.fsencode(os.path.abspath(file.path)), digest_size=4).hexdigest()}:"  # of this file
    report, seen = IndexReport(), set()
    for done, (name, found) in enumerate(file.read(), start=1):
        try:
            path = absolute_name(name, images)
            if isinstance(found, ExchangeError):
                raise found
            seal, old = mark + features_digest(found), known.get(path)
            kept = largest_features(found, writer.home.feature_options.max_features)
            if old is not None and old.digest == seal:
                report.unchanged += 1
            else:
                _add_features(writer, file, path, kept, seal)
                report.replaced += old is not None
                report.added += old is None
                report.features += len(kept)
            seen.add(path)
        except ExchangeError as error:
            report.problems.append(Problem(name, str(error)))
        if progress is not None:
            progress("indexing", done, len(file))
    gone = [row.path for row in known.values() if (row.digest or "").startswith(mark) and row.path not in seen]
    if gone and not keep_missing:
        report.removed = writer.remove(gone)
    writer.commit()
    return report


def absolute_name(name: str, images: str | None) -> str:
    """Give what an image of a file is called in an index; refuse names that lead to somewhere else."""
    parts = PurePosixPath(name)
    if not name or "\0" in name or parts.is_absolute() or os.path.isabs(name) or ".." in parts.parts or is_url(name):
        raise ExchangeError(f"{name!r} is not the name of an image within a folder; leave it out")
    if images is None:
        return name
    root = absolute_path(images)
    return f"{root.rstrip('/')}/{name}" if is_url(root) else os.path.normpath(os.path.join(root, name))


def _add_features(writer: IndexWriter, file: FeatureFile, path: str, found: Features, seal: str) -> None:
    try:
        writer.add(path, found, seal)
    except OptionError as error:
        raise ExchangeError(f"{display_name(file.path)}: {display_name(path)}: {error}") from None
