"""Every kind of work that writes, on small collections, and what must be true after it was interrupted at any moment.

Run as a program with a file for marks and a folder for each job, this does the jobs one after the other, and writes to the
marks what a user may rely on from then on: the catalogue as of each commit, the vocabularies that were saved.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import polyvoc
from commands import run as run_command
from disk import contents
from polyvoc.duplicates.compare import check_pairs
from polyvoc.duplicates.move import JOURNAL
from polyvoc.errors import NotAnIndexError
from polyvoc.index.build import BuildPlan, BuildResult, CommitLimits, MergeResult, NextMerge, SegmentBuilder
from polyvoc.index.catalogue import FILE, Catalogue
from polyvoc.index.check import check
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.search.index import Index
from polyvoc.search.links import check_links, link
from polyvoc.storage import sqlite
from polyvoc.storage.sqlite import Database
from polyvoc.types import Progress
from polyvoc.vocabulary.train import train
from polyvoc.vocabulary.vocabulary import Vocabulary
from polyvoc.web.service import IndexEdits, Service, Upload
from polyvoc.web.settings import Settings
from samples import coded, features, photograph

INDEX, PHOTOS, MOVED, WORDS = "photos.polyvoc", "photos", "moved", "words"
NEW_INDEX, NEW_WORDS = f"new/folder/{INDEX}", f"new/folder/{WORDS}"
SMALL = FeatureOptions(long_side=96, max_features=20)
OFTEN = CommitLimits(images=2)
UNMOVED = {"0.png", "1.png", "2.png", "3.png"}  # the best of each group
TABLES = ("settings", "segments", "images", "deleted", "problems", "sqlite_sequence")
Marks = dict[str, Any]  # what was reported: "commit" and "images" of the index, "saved" vocabularies, "done" for moves


@dataclass(frozen=True)
class Job:
    """Some work in a folder."""

    prepare: Callable[[Path], object]
    run: Callable[[Path], object]  # may be run again after it was interrupted
    index: str | None = INDEX  # that it writes, below its folder
    assert_state: Callable[[Path, Marks], None] = lambda root, last: None  # after an interruption, by what was reported last
    assert_done: Callable[[Path], None] = lambda root: None  # after another run


# -- reports


_report: Callable[[Marks], None] = lambda marks: None  # noqa: E731 (replaced in the process of the jobs)


@contextmanager
def reporting(report: Callable[[Marks], None], announce: Callable[[Marks], None] = lambda marks: None) -> Iterator[None]:
    """Announce every commit inside right before it is made, and report it as soon as it is made."""
    global _report  # noqa: PLW0603
    transaction, create = Database.transaction, Catalogue.create.__func__  # type: ignore[attr-defined]

    @contextmanager
    def reported_transaction(database: Database) -> Iterator[None]:
        with transaction(database):
            yield
            announce(describe(database))
        if database.path.exists():  # not while the catalogue has its first name
            report(describe(database))

    def reported_create(cls: type[Catalogue], *arguments: Any) -> Catalogue:
        catalogue: Catalogue = create(cls, *arguments)
        report(describe(catalogue))
        return catalogue

    Database.transaction, Catalogue.create = reported_transaction, classmethod(reported_create)  # type: ignore
    _report = report
    try:
        yield
    finally:
        Database.transaction, Catalogue.create = transaction, classmethod(create)  # type: ignore
        _report = lambda marks: None  # noqa: E731


def describe(catalogue: Database) -> Marks:
    """Return a digest of all rows of a catalogue, and its images with their digests."""
    rows = {name: catalogue.rows(f"SELECT * FROM {name} ORDER BY 1, 2") for name in TABLES}
    images = {os.fsdecode(path): digest for path, digest in catalogue.rows("SELECT path, digest FROM images")}
    return {"commit": hashlib.blake2b(repr(rows).encode(), digest_size=8).hexdigest(), "images": images}


# -- what must be true


def assert_committed(job: Job, root: Path, last: Marks, following: Marks) -> None:
    """The index is at the last commit that was reported, or at the one being made; it has no errors, and it opens."""
    if job.index is not None:
        path = root / job.index
        if not (path / FILE).exists():
            assert "commit" not in last, "the index is gone"
            with suppress(NotAnIndexError):
                polyvoc.open(path)
                raise AssertionError("an index without a catalogue was opened")
        else:
            assert_index(path, [marks["commit"] for marks in (last, following) if "commit" in marks])
    job.assert_state(root, last)


def assert_index(path: Path, allowed: list[str] | None) -> None:
    errors = list(check(path, more=(check_links, check_pairs)))
    assert not errors, errors
    catalogue = Catalogue.open(path)
    found = describe(catalogue)
    catalogue.close()
    assert allowed is None or found["commit"] in allowed, f"another commit, with {sorted(found['images'])}"
    with polyvoc.open(path) as index:
        assert {row.path for row in index.images()} == found["images"].keys()


def assert_finished(job: Job, root: Path, final: Marks) -> None:
    """After the work was done again, the index holds what it would have without the interruption, and nothing is left over."""
    if job.index is not None:
        path = root / job.index
        assert_index(path, None)
        with Index.open(path) as index:
            assert {row.path: row.digest for row in index.images()} == final["images"]
            segments = {f"{number:06d}" for number in index.folder.catalogue.segments()}
        assert {entry.name for entry in (path / "segments").iterdir()} == segments
        assert not (path / "staging").exists()
    job.assert_done(root)


def assert_files_of_images(root: Path, last: Marks | None = None) -> None:
    """The files of all images are there with the bytes that were indexed."""
    if (root / INDEX / FILE).exists():
        with Index.open(root / INDEX) as index:
            for row in index.images():
                assert hashlib.blake2b(Path(row.path).read_bytes(), digest_size=16).hexdigest() == row.digest, row.path


# -- the jobs


def write_photos(root: Path, seeds: range) -> None:
    for seed in seeds:
        photograph(root / PHOTOS / f"{seed}.png", seed, (96, 72))


def update(root: Path, index: str = INDEX, workers: Any = None) -> None:
    with IndexWriter.open(root / index, coded(1, 128), SMALL, limits=OFTEN) as writer:
        writer.update([root / PHOTOS], workers=workers)


def prepare_update(root: Path) -> None:
    write_photos(root, range(5))
    update(root)
    photograph(root / PHOTOS / "1.png", 21, (96, 72))
    (root / PHOTOS / "2.png").unlink()
    write_photos(root, range(5, 9))


def prepare_images(count: int) -> Callable[[Path], None]:
    def prepare(root: Path) -> None:
        with IndexWriter.open(root / INDEX, coded(1), limits=CommitLimits(images=1)) as writer:
            for seed in range(count):
                writer.add(f"image {seed}", features(seed, 6))

    return prepare


def merge(root: Path) -> None:
    """Add the eighth segment, replacing an image: the eight are merged."""
    with IndexWriter.open(root / INDEX) as writer:
        writer.add("image 3", features(33, 6))
        writer.commit()


def merge_unsynced(root: Path) -> None:
    """Merge as SQLite's setting FULL does it: its journal is deleted, the folder is not synced."""
    before, sqlite.FLUSH = sqlite.FLUSH, "FULL"
    try:
        merge(root)
    finally:
        sqlite.FLUSH = before


def remove(root: Path) -> None:
    with IndexWriter.open(root / INDEX) as writer:
        for name in ("image 1", "image 4", "image 5"):
            if writer.catalogue.image_at(name):
                writer.remove([name])


def link_images(root: Path) -> None:
    """Link twice: the first links are deleted."""
    for _ in range(2):
        with IndexWriter.open(root / INDEX) as writer, Index.open(root / INDEX, links=False) as index:
            link(writer, index.stored_queries)


def assert_linked(root: Path) -> None:
    with Index.open(root / INDEX) as index:
        assert index.links is not None


@cache
def trained(seed: int) -> Vocabulary:
    descriptors = np.concatenate([features(number, 40).descriptors for number in range(4)])
    return train(descriptors, TrainOptions(size=12, rounds=2, seed=seed))


def save_words(root: Path) -> None:
    """Replace a vocabulary, and save one in a new folder; `polyvoc train` ends so."""
    trained(2).save(root / WORDS)
    _report({"saved": [WORDS]})
    trained(2).save(root / NEW_WORDS)
    _report({"saved": [WORDS, NEW_WORDS]})


def assert_words(root: Path, last: Marks) -> None:
    """Before it was reported as saved, a vocabulary is the old one or the new one."""
    for name in (WORDS, NEW_WORDS):
        if name in last.get("saved", ()) or (root / name).exists() or name == WORDS:
            allowed = (
                [trained(2).fingerprint] if name in last.get("saved", ()) else [trained(1).fingerprint, trained(2).fingerprint]
            )
            assert Vocabulary.load(root / name).fingerprint in allowed


def assert_only_words(root: Path) -> None:
    assert Vocabulary.load(root / WORDS).fingerprint == trained(2).fingerprint
    assert {entry.name for entry in root.iterdir()} == {WORDS, "new"}
    assert {entry.name for entry in (root / NEW_WORDS).parent.iterdir()} == {WORDS}


def prepare_copies(root: Path) -> None:
    write_photos(root, range(4))
    (root / PHOTOS / "sub" / "deep").mkdir(parents=True)
    for seed, name in enumerate(("sub/copy.png", "sub/deep/copy.png", "copy.png")):
        shutil.copy(root / PHOTOS / f"{seed}.png", root / PHOTOS / name)
    update(root)


def move_copies(root: Path) -> None:
    done = run_command("duplicates", "--index", root / INDEX, "--no-mirror", "--move", root / MOVED)
    assert done.exit_code == 0, done.output
    _report({"moved": True})


def undo_moves(root: Path) -> None:
    done = run_command("duplicates", "--undo", root / MOVED)
    assert done.exit_code == 0, done.output
    _report({"moved": False})


def prepare_moved(root: Path) -> None:
    prepare_copies(root)
    move_copies(root)


@cache
def originals() -> dict[str, bytes]:
    """Return the photographs of `prepare_copies` by name."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        prepare_copies(Path(folder))
        return contents(Path(folder) / PHOTOS)


def assert_no_photo_lost(root: Path, last: Marks) -> None:
    """Every photograph has its old name or its new one, or both, and no other; those that were reported as moved are moved."""
    here, there = contents(root / PHOTOS), contents(root / MOVED)
    if "moved" in last:
        assert here.keys() == (UNMOVED if last["moved"] else originals().keys())
    for name, content in originals().items():
        assert content in (here.get(name), there.get(name)), name
    assert {**here, **there} == originals()


def assert_moved(root: Path) -> None:
    """The copies are elsewhere, the index names no file that is not there, and everything comes back."""
    assert_no_photo_lost(root, {"moved": True})
    assert_files_of_images(root)
    undo_moves(root)
    assert contents(root / PHOTOS) == originals()


def assert_back(root: Path) -> None:
    assert contents(root / PHOTOS) == originals()
    assert {entry.name for entry in (root / MOVED).iterdir() if entry.is_file()} == {JOURNAL}
    assert_files_of_images(root)


def prepare_upload(root: Path) -> None:
    write_photos(root, range(3))
    update(root)
    for seed in (30, 31):
        photograph(root / "uploads" / f"{seed}.png", seed, (96, 72))


def upload(root: Path) -> None:
    """Add photographs as the page does."""
    photos = root / "new" / "added"
    service = Service(Settings(index=root / INDEX, write=True, workers=1, photos=photos, decode_seconds=600))
    edits = IndexEdits(service)
    try:
        for file in sorted((root / "uploads").iterdir()):
            added = edits.add([Upload(file.name, file.read_bytes())])
            assert added["problems"] == []
    finally:
        edits.pool.close()
        service.close()


class ProcessWorkers:
    """Workers that build and merge segments in other processes, by the functions that machines of a cluster run."""

    def work(self, builder: SegmentBuilder, plan: BuildPlan, next_merge: NextMerge,
             progress: Progress) -> Generator[BuildResult | MergeResult, None, None]:  # fmt: skip
        for first in range(0, len(plan), 2):
            batch = range(first, min(first + 2, len(plan)))
            yield _in_process(lambda: builder.build_segment(plan.items(batch)))  # noqa: B023
        while parts := next_merge(()):
            yield _in_process(lambda: builder.merge(parts))


def _in_process(work: Callable[[], Any]) -> Any:
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            with os.fdopen(send, "wb") as channel:
                pickle.dump(work(), channel)
        finally:
            os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as channel:
        result = pickle.load(channel)  # noqa: S301 (of this program)
    os.waitpid(child, 0)
    return result


JOBS = {
    "index": Job(lambda root: write_photos(root, range(5)), lambda root: update(root, NEW_INDEX), NEW_INDEX),
    "update": Job(prepare_update, update),
    "merge": Job(prepare_images(7), merge),
    "remove": Job(prepare_images(8), remove),
    "link": Job(prepare_images(4), link_images, assert_done=assert_linked),
    "train": Job(lambda root: trained(1).save(root / WORDS), save_words, None, assert_words, assert_only_words),
    "move": Job(prepare_copies, move_copies, INDEX, assert_no_photo_lost, assert_moved),
    "undo": Job(prepare_moved, undo_moves, INDEX, assert_no_photo_lost, assert_back),
    "upload": Job(prepare_upload, upload, INDEX, assert_files_of_images),
    "cluster": Job(prepare_update, lambda root: update(root, workers=ProcessWorkers())),
}
FAULTY = {"merge, journal unsynced": Job(prepare_images(7), merge_unsynced)}  # to see that faults are found


def main(marks: str, *jobs: str) -> None:
    """Do jobs, each given as name=folder."""
    channel = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for name, _, root in (job.partition("=") for job in jobs):
        job = {**JOBS, **FAULTY}[name]
        known: Marks = {}

        def report(found: Marks) -> None:
            known.update(found)  # noqa: B023
            os.write(channel, f"{name}\t{json.dumps(known)}".encode())  # noqa: B023

        with reporting(report):
            if job.index is not None and (Path(root) / job.index / FILE).exists():
                _report(describe(Catalogue.open(Path(root) / job.index)))
            job.run(Path(root))


if __name__ == "__main__":
    main(*sys.argv[1:])
