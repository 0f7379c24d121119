"""Reading a mapped segment: in large pieces, ahead of a scan, and verified before the first use.

From a cold disk one page fault after another takes several times as long as reading in large pieces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from polyvoc.index.segment import Segment
from polyvoc.kernels.postings import read_ahead
from polyvoc.storage.blocks import ArrayFile
from polyvoc.threads import count_threads, thread_map
from polyvoc.types import Array, Words

GAP = 1 << 14  # bytes between two lists that are read along: fewer, larger pieces
FORGET = 600.0  # seconds after which lists may have left the memory and are requested again


@dataclass(eq=False)
class ListsRead:
    """Which lists of codes of a segment were verified, and which requested from the disk. May be shared by threads."""

    verified: npt.NDArray[np.bool_]  # [fine + 1]; the last for words -1, which have no list
    requested: npt.NDArray[np.bool_]
    since: float = field(default_factory=time.monotonic)  # nothing was requested before

    @classmethod
    def of(cls, file: ArrayFile, fine: int) -> ListsRead:
        """Return those of a mapped file."""
        found = _READ.get(file)
        if found is None:
            none = np.arange(fine + 1) == fine
            found = _READ.setdefault(file, cls(none.copy(), none.copy()))
        return found

    def new_requests(self, words: Words) -> npt.NDArray[np.int64]:
        """Return the words of a query [Q, A] whose lists were not requested in the last FORGET seconds, in order."""
        if time.monotonic() > self.since + FORGET:
            self.requested[:-1], self.since = False, time.monotonic()
        new = self._without(words, self.requested)
        self.requested[new] = True
        return new

    def unverified(self, words: Words) -> npt.NDArray[np.int64]:
        """Return the words of a query [Q, A] whose lists were not verified yet, in order."""
        return self._without(words, self.verified)

    @staticmethod
    def _without(words: Words, known: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        wanted = words.ravel()
        return np.unique(wanted[~known[wanted]]).astype(np.int64)


_READ: WeakKeyDictionary[ArrayFile, ListsRead] = WeakKeyDictionary()


def read_lists(segment: Segment, words: Words, threads: int | None = None) -> None:
    """Read and verify the lists of a query's words [Q, A], each once. Raise DamagedError if one is damaged."""
    if segment.file is None or not segment.fine:
        return
    segment.file.check_size()
    lists, arrays = ListsRead.of(segment.file, segment.fine), segment.arrays

    def request(part: npt.NDArray[np.int64]) -> None:
        for values in (*arrays["codes"], arrays["code_images"]):
            read_ahead(part, arrays["code_starts"], values, GAP // values.itemsize)

    _in_parts(request, lists.new_requests(words), threads)
    new = lists.unverified(words)
    _in_parts(segment.verify_lists, new, threads)
    lists.verified[new] = True


def read_features(segment: Segment, positions: Sequence[int] | Array) -> None:
    """Read and verify what verification needs of images; their codes lie in lists that were read."""
    if segment.file is None or not segment.n_features:
        return
    numbers, arrays = np.unique(np.asarray(positions, np.int64)), segment.arrays
    pairs = arrays["positions"].view(np.uint32).ravel(), arrays["shapes"].view(np.uint16).ravel()  # one number per feature
    for values in (arrays["code_words"], *pairs):
        read_ahead(numbers, arrays["feature_starts"], values, GAP // values.itemsize)
    segment.verify_images(numbers, "code_words", "positions", "shapes")


def _in_parts(work: Callable[[npt.NDArray[np.int64]], None], numbers: npt.NDArray[np.int64], threads: int | None) -> None:
    """Have threads do some work for parts of some numbers."""
    if len(numbers):
        thread_map(work, np.array_split(numbers, count_threads(threads)), threads)
