"""Corrupt files of an index, and compare the answers with those of the sound one, in a process of its own."""

from __future__ import annotations

import multiprocessing
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from polyvoc.errors import PolyvocError
from polyvoc.index.catalogue import FILE, _row_checksum
from polyvoc.index.folder import Models
from polyvoc.index.segment import Segment
from polyvoc.search.index import Index
from polyvoc.storage.blocks import write_arrays
from polyvoc.storage.files import META, checksum
from polyvoc.types import Features
from polyvoc.vocabulary.vocabulary import VocabularySet

Answer = list[tuple[int, float, int]]  # image, score and inliers of each hit
RIGHT = ("same", "incomplete", "refused")  # outcomes that do not deceive
SECONDS = 600  # a safety net: a child that hangs
PRESETS = ("default", "paper")


def corrupt(index: Path, rng: np.random.Generator) -> str:
    """Change one file of an index at random, of any part of it; return what was changed."""
    parts = sorted(part for part in index.iterdir() if part.name != "lock" and (part.is_file() or any(part.iterdir())))
    part = parts[rng.integers(len(parts))]
    files = [part] if part.is_file() else sorted(p for p in part.rglob("*") if p.is_file() and p.stat().st_size)
    path = files[rng.integers(len(files))]
    content = bytearray(path.read_bytes())
    kind = ("bit", "byte", "block", "zeros", "ones", "cut", "grown", "moved")[rng.integers(8)]
    at = int(rng.integers(len(content)))
    block = slice(at, min(at + int(rng.integers(1, 4097)), len(content)))
    length = block.stop - block.start
    if kind == "bit":
        content[at] ^= 1 << int(rng.integers(8))
    elif kind == "byte":
        content[at] = int(rng.integers(256))
    elif kind == "block":
        content[block] = rng.bytes(length)
    elif kind in ("zeros", "ones"):
        content[block] = bytes([0 if kind == "zeros" else 255]) * length
    elif kind == "cut":
        del content[at:]
    elif kind == "grown":
        content += rng.bytes(length)
    else:
        other = int(rng.integers(len(content) - length + 1))
        content[block] = content[other : other + length]
    path.unlink()  # it may be a link to that of another index
    path.write_bytes(content)
    return f"{kind} of {path.relative_to(index)} at {at}"


Arrays = dict[str, np.ndarray[Any, Any]]


def forge(index: Path, change: Callable[[Arrays], None]) -> None:
    """Change arrays of all segments, with checksums that fit."""
    for folder in sorted(index.glob("segments/*")):
        opened = Segment.open(folder)
        arrays = {"ids": np.array(opened.ids), **{name: np.array(array) for name, array in opened.arrays.items()}}
        change(arrays)
        shutil.rmtree(folder)
        write_arrays(folder, arrays, {"sizes": list(opened.sizes)})
        with closing(sqlite3.connect(index / FILE)) as connection, connection:
            number = int(folder.name)
            (row,) = connection.execute("SELECT n_images, n_features FROM segments WHERE segment = ?", [number]).fetchall()
            values = (number, *row, checksum(folder / META))
            sql = "UPDATE segments SET checksum = ?, row_checksum = ? WHERE segment = ?"
            connection.execute(sql, [values[3], _row_checksum(*values), number])


def answers(index: Path, queries: Sequence[Features | str]) -> list[tuple[bool, Answer]]:
    """Return whether the hits of each query are complete, and the hits, by the default search and by the paper's rules."""
    with Index.open(index) as opened:
        found = []
        for preset in PRESETS:
            for query in queries:
                hits = opened.search(query, preset=preset, top=1000)
                found.append((hits.complete, [(hit.image, round(hit.score, 4), hit.inliers) for hit in hits]))
        return found


def _child(index: Path, queries: Sequence[Features | str], sender: Any, known: Models | None) -> None:
    try:
        with mock.patch("polyvoc.index.folder.Models", partial(_prepare, known)):
            sender.send(answers(index, queries))
    except PolyvocError as error:
        assert "\n" not in str(error)
        sender.send(str(error))


def _prepare(known: Models | None, vocabularies: VocabularySet) -> Models:
    """Return vocabularies to be prepared, or known ones of the same numbers: preparing takes most of the time of a search."""
    same = known is not None and _fingerprints(known.vocabularies) == _fingerprints(vocabularies)
    return known if same else Models(vocabularies)  # type: ignore[return-value]


def _fingerprints(vocabularies: VocabularySet) -> tuple[Any, ...]:
    """Return what depends on every number of the vocabularies, as they were read."""
    fine = None if vocabularies.fine is None else vocabularies.fine.fingerprint
    return [one.fingerprint for one in vocabularies.words], fine, vocabularies.signed


def ask(index: Path, queries: Sequence[Features | str], known: Models | None = None) -> list[tuple[bool, Answer]] | str | None:
    """Return the answers of a child process, the line of its error, or None if it died."""
    receiver, sender = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_child, args=(index, queries, sender, known))
    child.start()
    sender.close()
    try:
        result: list[tuple[bool, Answer]] | str | None = receiver.recv() if receiver.poll(SECONDS) else None
    except EOFError:
        result = None
    child.kill()
    child.join()
    return result


def run_in_child(index: Path, queries: Sequence[Features | str]) -> str:
    """Return what became of a search: "answered", "refused" by one line, or "died"."""
    result = ask(index, queries)
    return "died" if result is None else "refused" if isinstance(result, str) else "answered"


@dataclass(frozen=True)
class Answers:
    """What a sound index answers to some queries."""

    queries: Sequence[Features | str]
    expected: list[tuple[bool, Answer]]
    known: Models  # prepared once; a child takes them if its vocabularies are the same

    @classmethod
    def of(cls, index: Path, queries: Sequence[Features | str]) -> Answers:
        """Search a sound index."""
        with Index.open(index) as opened:
            models = opened.folder.models
        with mock.patch("polyvoc.index.folder.Models", partial(_prepare, models)):
            return cls(queries, answers(index, queries), models)

    def compare(self, index: Path) -> str:
        """Return what became of a corrupted index.

        "same": all answers are right; "incomplete": those that differ say that images are missing; "refused": one line; else
        "wrong" or "died".
        """
        result = ask(index, self.queries, self.known)
        if not isinstance(result, list):
            return "died" if result is None else "refused"
        pairs = list(zip(result, self.expected, strict=True))
        if any(found != right and found[0] for found, right in pairs):
            return "wrong"
        return "same" if all(found == right for found, right in pairs) else "incomplete"
