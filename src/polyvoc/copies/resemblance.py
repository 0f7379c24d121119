"""What is known of pairs of photographs that may be copies of each other, and where an index keeps it.

Every pair is found by the later of the two, which asked the earlier ones: so a photograph that is new asks once, and those
that were there before need not ask again.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from polyvoc import storage
from polyvoc.catalogue import record_of

# What speaks for or against a copy; NaN: not known.
EVIDENCE = (
    "inliers",  # matches that agree on one transform
    "nats",  # what they say together for "the same thing"
    "share",  # of the features that the poorer of the two has where both overlap
    "residual",  # median distance of inliers from where the transform puts them, in pixels that were looked at
    "drift",  # the same in diameters of the features: blurred photographs have large ones, whose places are less exact
    "stretch",  # how far the transform is from a similarity: ratio of its axes, at least 1
    "cover",  # of the area of the smaller one that the other shows
    "quarter",  # likeness of pixels: see `likeness.Likeness`
    "median",
    "upper",
    "coarse",
)
# Ids; the transform takes places of the later one to places of the earlier one, in pixels of the full size.
PAIR = np.dtype([
    ("later", np.int64),
    ("earlier", np.int64),
    ("transform", np.float64, (2, 3)),
    ("evidence", np.float32, (len(EVIDENCE),)),
])  # fmt: skip
Pairs = npt.NDArray[np.void]  # [P] of PAIR
NOBODY = np.empty(0, PAIR)


@dataclass(frozen=True)
class Record:
    """What the catalogue of an index holds of its pairs: the fact "copies"."""

    serial: int  # of the file that holds them
    pairs: int
    checksum: str
    asked: int  # the last image that has asked; all before it have, too
    mirrored: int  # the last one that has asked as its mirror image

    @classmethod
    def of(cls, fact: Any, source: Path) -> Self | None:
        """Read it from a catalogue's fact; None if nobody has looked for copies."""
        return record_of(cls, fact, "copies", source)

    @property
    def plausible(self) -> bool:
        """Tell whether it may be one."""
        counts = (self.serial, self.pairs, self.asked, self.mirrored)
        return all(isinstance(count, int) and count >= 0 for count in counts) and isinstance(self.checksum, str)

    def read(self, path: Path) -> Pairs:
        """Map the pairs from their file."""
        return storage.map_array(path, PAIR, (self.pairs,))


def damage(pairs: Pairs) -> str | None:
    """Say what is wrong with pairs, None if nothing is."""
    sound = (pairs["later"] > pairs["earlier"]).all() and np.isfinite(pairs["transform"]).all()
    counted = pairs["evidence"][:, EVIDENCE.index("inliers")]
    return None if sound and (counted > 0).all() else "holds pairs that are out of order, or have no transform"
