"""The writer: the only one that changes an index. Each commit is whole; a process killed at any moment loses what came after.

Order of a commit: the new segment's folder is written and renamed, then one transaction of the catalogue refers to it. What no
transaction refers to is swept away by the next writer.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import filelock
import numpy as np

from polyvoc import collection, evidence, features, intake, neighbourhood, storage, witness
from polyvoc.catalogue import FILE, UNFINISHED, Catalogue, FileState, ImageRow, SegmentRow
from polyvoc.collection import Changes
from polyvoc.embedding import Embedder
from polyvoc.engine import MAX_VOCABULARIES
from polyvoc.errors import DamagedError, ImageError, LockedError, NotAnIndexError, OptionError, UnreachableError, WriteError
from polyvoc.home import NEIGHBOURS, NORMS, SEGMENTS, VOCABULARIES, Home
from polyvoc.index import Index
from polyvoc.merges import next_merge
from polyvoc.quantiser import Quantiser
from polyvoc.records import Evidence, FeatureOptions, Features, Floats, IndexReport, Problem, Progress, SearchOptions
from polyvoc.segment import MAX_IMAGES, Batch, Segment
from polyvoc.vocabulary import Vocabulary, default_vocabularies
from polyvoc.witness import Embedding

LOCK = "lock"
COMMIT_SECONDS = 30.0  # a killed process loses at most this much work
COMMIT_FEATURES = 1_000_000  # 50 MB waiting to be written
COMMIT_IMAGES = MAX_IMAGES  # a commit is one segment


class IndexWriter:
    """An index opened for writing: one at a time per index, any number of readers meanwhile. Use it in a `with` statement."""

    def __init__(self, home: Home, catalogue: Catalogue, lock: filelock.BaseFileLock, model: Embedder | None) -> None:
        """Use `open`."""
        self.home = home
        self.catalogue = catalogue
        self._lock = lock
        self._model = model  # of the global embedding, if it was given
        self._record = witness.Record.of(catalogue)
        self._intake = intake.Intake(lambda: self.home.quantiser, self._record.dimension if self._record else 0)
        self._next_image = catalogue.next_image()
        self._last_commit = time.monotonic()

    # -- opening and closing

    @classmethod
    def open(cls, path: str | os.PathLike[str], vocabularies: Sequence[Vocabulary] | None = None,
             feature_options: FeatureOptions | None = None, embedding: Embedding | None = None) -> Self:  # fmt: skip
        """Open an index for writing, or make it.

        A new index takes these vocabularies (those that come with polyvoc) and feature options; for an existing one they may be
        left out, and if given must be the same. So with a model for `embedding`, or the path of its ONNX file: it gives every
        photograph a vector, and searches that `fuse` hear it.
        """
        home = Home(Path(path))
        model = None if embedding is None else witness.load(embedding, threads=1)  # before anything is written
        with storage.writing(home.path):
            if home.path.exists() and not _is_ours(home.path):
                raise NotAnIndexError(f"{home.path} exists and is not a polyvoc index; choose another place with --index")
            home.path.mkdir(parents=True, exist_ok=True)
        lock = _take_lock(home.path)
        try:
            if (home.path / FILE).is_file():  # asked under the lock: another process may have made it meanwhile
                catalogue = Catalogue.open(home.path, writable=True)
                _check_same(home, catalogue, vocabularies, feature_options)
            else:
                catalogue = _create(home, vocabularies or default_vocabularies(), feature_options or FeatureOptions())
            witness.settle(catalogue, model)
            writer = cls(home, catalogue, lock, model)
            writer._sweep()
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
               progress: Progress | None = None) -> IndexReport:  # fmt: skip
        """Bring the index up to date with folders: add new photographs, replace changed ones, drop vanished ones."""
        self.commit()
        changes = collection.compare(folders, self.catalogue.images(), self.catalogue.problems())
        if changes.emptied and not keep_missing:
            raise OptionError(f"{', '.join(changes.emptied)} holds no photograph, but the index has some from there; is the "
                              "disk mounted? (to drop them: polyvoc remove FOLDER)")  # fmt: skip
        report = IndexReport(unchanged=changes.unchanged, problems=changes.unreadable + changes.still_broken)
        self._touch_same(changes, report)
        model = self._embedder if changes.new or changes.changed else None  # first of all: its file may be gone
        if changes.missing and not keep_missing:
            self._remove_rows(changes.missing)
            report.removed = len(changes.missing)
        if changes.mended:
            with self.catalogue.transaction():
                self.catalogue.drop_problems(changes.mended)
        self._extract(changes, model, report, progress or (lambda stage, done, total: None))
        return report

    def add(self, name: str, image_features: Features) -> int:
        """Add features made elsewhere under a name, replacing the image of that name; gives its id. Found after a commit.

        It has no pixels, hence no vector: of such an image a global embedding is silent.
        """
        features.check_features(image_features, self.home.dimension)
        if not _is_storable(name):
            raise OptionError(f"{name!r} cannot be the name of an image: it is neither text nor a path")
        if name in self._intake.names:
            self.commit()  # what is to be replaced
        replaced = self.catalogue.image_at(name)
        return self._add(name, image_features, None, FileState(None, None), None, replaced)

    def remove(self, paths: Iterable[str | os.PathLike[str]]) -> int:
        """Remove images by path or name; a folder removes all below it. Gives how many; unknown paths are an error."""
        self.commit()
        rows = []
        for path in paths:
            name, absolute = os.fspath(path), collection.location(path)
            known = self.catalogue.image_at(name) or self.catalogue.image_at(absolute)
            found = [known] if known else [r for r in self.catalogue.images() if collection.is_below(r.path, [absolute])]
            if not found:
                raise OptionError(f"{path} is not in the index; 'polyvoc info --images' lists what is")
            rows += found
        return self._remove_rows(list({row.image: row for row in rows}.values()))

    def commit(self) -> None:
        """Make everything added so far a part of the index."""
        waiting = self._intake
        waiting.quantise()
        self._last_commit = time.monotonic()
        if waiting.rows and self.catalogue.image(waiting.rows[-1].image) is not None:
            waiting.forget()  # an interrupt fell between the transaction and what follows it
        if not waiting.rows:
            return
        number, entry = self._save(waiting.batch())
        with self.catalogue.transaction():
            self.catalogue.delete_images(waiting.replaced)
            self.catalogue.add_segment(number, entry)
            rows = [replace(row, segment=number, position=position) for position, row in enumerate(waiting.rows)]
            self.catalogue.add_images(rows)
            self.catalogue.drop_problems(row.path for row in rows)
            self.catalogue.count_commit()
        waiting.forget()
        self._merge()

    def save_line(self, line: tuple[float, float], source: dict[str, Any]) -> None:
        """Make a line (a, b) of term 2, and plain values that tell where it comes from, a part of the index."""
        a, b = SearchOptions(line=line).line  # refuses what is no line
        self._save_facts({"line": {"a": a, "b": b, "source": source}})

    def save_evidence(self, table: Evidence) -> None:
        """Make a table of evidence a part of the index: its searches use it from then on."""
        if table.n_vocabularies != len(self._sizes):
            raise OptionError(f"a table of evidence for {table.n_vocabularies} vocabularies does not fit an index with "
                              f"{len(self._sizes)}; fit one: polyvoc calibrate --index {self.home.path} --save")  # fmt: skip
        self._save_facts({"evidence": evidence.as_dict(table)})

    def link(self, candidates: int = neighbourhood.CANDIDATES, progress: Progress | None = None) -> int:
        """Find which images show the same thing, for searches that `smooth`; gives the number of pairs."""
        self.commit()
        index = Index(self.home.read_engine(linked=False), self.home, 0, self.home.read_line(), self.home.read_evidence())
        pairs = neighbourhood.find(index.engine, index.preset("fast"), candidates, progress)
        commit = self.catalogue.fact("commit") + 1
        checksum = storage.write_file(self.home.neighbours_file(commit), pairs)
        self._save_facts({NEIGHBOURS: asdict(neighbourhood.Record(commit, len(pairs), checksum))})
        self._sweep()
        return len(pairs)

    def _save_facts(self, facts: dict[str, Any]) -> None:
        self.commit()
        with self.catalogue.transaction():
            self.catalogue.put_facts(facts)
            self.catalogue.count_commit()

    # -- the work

    @property
    def _sizes(self) -> tuple[int, ...]:
        return tuple(self.catalogue.fact("sizes"))

    @cached_property
    def _embedder(self) -> Embedder | None:
        """Load the model that the vectors of this index are made with, if it holds any."""
        return None if self._record is None else witness.model_of(self.catalogue, self._model, threads=1)

    def _touch_same(self, changes: Changes, report: IndexReport) -> None:
        """Files with another time but the same content only get their time noted."""
        same = [
            (row, state) for row, state in changes.changed if row.digest and collection.digest(row.path, state) == row.digest
        ]
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
        photographs = intake.read(list(states), self.home.feature_options, model)
        try:
            for done, (path, result, vector) in enumerate(photographs, start=1):
                if isinstance(result, UnreachableError):  # it may pass: nothing is remembered, nothing goes
                    report.problems.append(Problem(path, str(result)))
                elif isinstance(result, ImageError):
                    self._note_problem(Problem(path, str(result)), states[path], replaced.get(path), report)
                else:
                    digest = collection.digest(path, states[path])
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
        with self.catalogue.transaction():
            self.catalogue.put_problems([(state, problem)])
            if old is not None:
                self.catalogue.delete_images([old.image])
                self.catalogue.count_commit()

    def _add(self, path: str, found: Features, vector: Floats | None, state: FileState, digest: str | None,
             replaced: ImageRow | None) -> int:  # fmt: skip
        image, self._next_image = self._next_image, self._next_image + 1
        row = ImageRow(image, path, state, digest, found.width, found.height, len(found), 0, 0)
        self._intake.add(row, found, vector, replaced)
        full = self._intake.n_features >= COMMIT_FEATURES or len(self._intake.names) >= COMMIT_IMAGES
        if full or time.monotonic() - self._last_commit >= COMMIT_SECONDS:
            self.commit()
        return image

    def _remove_rows(self, rows: Sequence[ImageRow]) -> int:
        with self.catalogue.transaction():
            self.catalogue.delete_images(row.image for row in rows)
            self.catalogue.count_commit()
        self._merge()
        return len(rows)

    def _merge(self) -> None:
        """Merge small segments, and rewrite those with many deleted images, until there is nothing to gain."""
        while numbers := next_merge(self.catalogue.segment_sizes()):
            batch = Batch.concatenate([self._read_live(number) for number in numbers])
            saved = [self._save(batch)] if len(batch.ids) else []
            with self.catalogue.transaction():
                for number, entry in saved:
                    self.catalogue.add_segment(number, entry)
                    self.catalogue.move_images(batch.ids.tolist(), number)
                self.catalogue.drop_segments(numbers)
                self.catalogue.count_commit()
            self._sweep()

    def _read_live(self, number: int) -> Batch:
        """Read the live images of a segment, whole: a merge must not give damaged arrays a new checksum."""
        row = self.catalogue.segment(number)
        assert row is not None
        for line in storage.damage(self.home.segment_folder(number), row.checksum):
            raise DamagedError(f"{line}; run 'polyvoc check'")
        return self.home.read_segment(number, self._sizes, self.catalogue.deleted(number)).live_batch()

    def _save(self, batch: Batch) -> tuple[int, SegmentRow]:
        """Write a segment that no commit refers to yet; gives its number and what the catalogue should hold of it."""
        number = self.catalogue.next_segment()
        folder = self.home.segment_folder(number)
        shutil.rmtree(folder, ignore_errors=True)  # of a commit that failed after it was written
        segment = Segment.build(batch, self._sizes)
        segment.save(folder)
        return number, SegmentRow(segment.n_images, segment.n_features, storage.checksum(folder / storage.META))

    def _write_norms(self) -> None:
        """Store the norms of the last commit, so that readers need not compute them."""
        known, commit = self.catalogue.fact("norms"), self.catalogue.fact("commit")
        if commit == 0 or (known is not None and known["commit"] == commit):
            return
        norms = self.home.read_engine(linked=False).norms(SearchOptions())
        checksum = storage.write_file(self.home.norms_file(commit), np.concatenate([np.empty(0, np.float32), *norms]))
        with self.catalogue.transaction():
            self.catalogue.put_facts({"norms": {"commit": commit, "checksum": checksum}})
        self._sweep()

    def _sweep(self) -> None:
        """Delete what no commit refers to: remains of killed writers and of merges."""
        live = {self.home.segment_folder(number) for number in self.catalogue.segments()}
        norms, graph = self.catalogue.fact("norms"), self.home.read_graph()
        if norms is not None:
            live.add(self.home.norms_file(norms["commit"]))
        if graph is not None:
            live.add(self.home.neighbours_file(graph.commit))
        with storage.writing(self.home.path):
            for folder in set(_entries(self.home.path / SEGMENTS)) - live:
                shutil.rmtree(folder, ignore_errors=True)
            for file in {*_entries(self.home.path / NORMS), *_entries(self.home.path / NEIGHBOURS)} - live:
                file.unlink(missing_ok=True)


def _create(home: Home, vocabularies: Sequence[Vocabulary], feature_options: FeatureOptions) -> Catalogue:
    if len(vocabularies) > MAX_VOCABULARIES or len({v.dimension for v in vocabularies}) > 1:
        raise OptionError(f"an index takes 1 to {MAX_VOCABULARIES} vocabularies of one dimension")
    Quantiser(vocabularies)  # refuses those that do not go together, before anything is written
    folders = [home.vocabulary_folder(number) for number in range(len(vocabularies))]
    with storage.writing(home.path):
        (home.path / UNFINISHED).write_bytes(b"")  # from here on the folder is ours, whatever happens
        shutil.rmtree(home.path / VOCABULARIES, ignore_errors=True)
        for vocabulary, folder in zip(vocabularies, folders, strict=True):
            vocabulary.save(folder)
        for name in (SEGMENTS, NORMS):
            (home.path / name).mkdir(exist_ok=True)
        storage.flush_tree(home.path / VOCABULARIES)
    facts = {
        "sizes": [vocabulary.size for vocabulary in vocabularies],
        "vocabularies": [vocabulary.fingerprint for vocabulary in vocabularies],
        "vocabulary_checksums": [storage.checksum(folder / storage.META) for folder in folders],
        "dimension": vocabularies[0].dimension,
        "features": asdict(feature_options),
    }
    return Catalogue.create(home.path, facts)


def _check_same(home: Home, catalogue: Catalogue, vocabularies: Sequence[Vocabulary] | None,
                feature_options: FeatureOptions | None) -> None:  # fmt: skip
    stored = FeatureOptions(**catalogue.fact("features"))
    if feature_options is not None and feature_options != stored:
        raise OptionError(f"{home.path} was made with {stored}; leave the options out, or make another index with --index")
    if vocabularies is not None and [v.fingerprint for v in vocabularies] != catalogue.fact("vocabularies"):
        raise OptionError(f"{home.path} was made with other vocabularies; leave them out, or make another index with --index")


def _take_lock(path: Path) -> filelock.BaseFileLock:
    lock = filelock.FileLock(path / LOCK)  # held by the operating system: a dead process does not keep it
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:  # which is an OSError
        raise LockedError(f"{path} is being written by another process; wait until it has finished") from None
    except OSError as error:
        raise storage.write_error(path, error) from None
    except NotImplementedError:
        raise WriteError(f"{path}: this disk cannot lock files; choose another place with --index") from None
    return lock


def _is_ours(path: Path) -> bool:
    """Tell whether a folder is an index, or empty, or what a killed first run left behind."""
    if not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    own = {LOCK, UNFINISHED, f"{UNFINISHED}-journal", VOCABULARIES, SEGMENTS, NORMS}
    return FILE in names or names <= {LOCK} or (UNFINISHED in names and names <= own)


def _is_storable(name: str) -> bool:
    try:
        return bool(os.fsencode(name))
    except UnicodeEncodeError:
        return False


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []
