"""What the arrays of a stored segment must satisfy, whoever wrote them: shapes, directories, limits of what leads elsewhere.

Kernels do not check indices. With these, and the checksums of `storage.blocks`, no number of a file leads outside an array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from polyvoc.errors import DamagedError
from polyvoc.index.words import word_type
from polyvoc.kernels.postings import runs_fit
from polyvoc.storage.blocks import REPAIR, Limit
from polyvoc.types import Array

Shape = tuple[type, tuple[int, ...]]
# Arrays by image or by word, read when a segment is opened.
DIRECTORIES = ("ids", "feature_starts", "frames", "starts", "run_starts", "documents", "code_starts", "code_norms")
WORD_ARRAYS = ("postings", "run_words", "run_lengths", "columns", "words", "signatures", "places")
LARGEST_POSITION = 1e9  # pixels: beyond it single precision is no longer one
MAX_PLANES = 2


def expected_shapes(sizes: Sequence[int], arrays: Mapping[str, Array]) -> dict[str, Shape]:
    """Return type and shape of every array, from those whose length is free: images, features, runs, planes, fine words."""

    def length(name: str, axis: int = 0) -> int:
        array = arrays.get(name)
        return 0 if array is None or array.ndim <= axis else array.shape[axis]

    n_images, n_features, n_runs, planes = length("ids"), length("positions"), length("run_words"), length("signatures")
    n_words, k = sum(sizes), len(sizes)
    n_postings, of_words = k * n_features, word_type(sizes)
    expected: dict[str, Shape] = {
        "ids": (np.int64, (n_images,)),
        "feature_starts": (np.uint32, (n_images + 1,)),
        "frames": (np.float32, (n_images, 3)),
        "positions": (np.uint16, (n_features, 2)),
        "shapes": (np.uint8, (n_features, 2)),
    }
    if sizes:
        expected |= {
            "starts": (np.uint32, (n_words + 1,)),
            "postings": (np.uint16, (n_postings,)),
            "run_starts": (np.uint32, (n_words + 1,)),
            "run_words": (of_words, (n_runs,)),
            "run_lengths": (np.uint8, (n_runs,)),
            "columns": (of_words, (k - 2, n_postings) if k > 2 else (0, 0)),
            "signatures": (np.uint64, (planes, n_postings)),
            "words": (of_words, (n_features, k)),
            "places": (np.uint32, (n_features if planes else 0, k)),
            "documents": (np.uint32, (n_words,)),
        }
    if "code_starts" in arrays:
        fine = max(length("code_starts") - 1, 1)
        expected |= {
            "code_starts": (np.uint32, (fine + 1,)),
            "codes": (np.uint64, (length("codes"), n_features)),
            "code_images": (np.uint16, (n_features,)),
            "code_words": (word_type((fine,)), (n_features,)),
            "code_norms": (np.float32, (n_images,)),
            "rest": (np.uint8, (n_features, length("rest", 1))),
        }
    if "embeddings" in arrays:
        expected["embeddings"] = (np.float16, (n_images, length("embeddings", 1)))
    return expected


def check_shapes(sizes: Sequence[int], arrays: Mapping[str, Array], folder: Path) -> None:
    """Raise DamagedError unless a segment has the arrays it needs, in the right types and shapes."""
    expected = expected_shapes(sizes, arrays)
    for name in sorted(expected.keys() ^ arrays.keys()):
        raise DamagedError(f"{folder}: {name} is {'missing' if name in expected else 'not an array of a segment'}; {REPAIR}")
    for name, (dtype, shape) in expected.items():
        array = arrays[name]
        if array.dtype != dtype or array.shape != shape:
            wanted = f"{np.dtype(dtype)}{list(shape)}"
            raise DamagedError(f"{folder}: {name} is {array.dtype}{list(array.shape)} instead of {wanted}; {REPAIR}")
    planes = {len(arrays[name]) for name in ("codes", "signatures") if name in arrays}
    if max(planes, default=0) > MAX_PLANES:
        raise DamagedError(f"{folder}: {max(planes)} x 64 bits are more than a code has; {REPAIR}")


def check_directories(arrays: Mapping[str, Array], folder: Path) -> None:
    """Raise DamagedError unless the lists of a segment follow one another, from its first posting to its last."""
    n_features = len(arrays["positions"])
    ends = {"feature_starts": n_features, "code_starts": n_features}
    if "starts" in arrays:
        ends |= {"starts": len(arrays["postings"]), "run_starts": len(arrays["run_words"])}
    for name, end in ends.items():
        starts = arrays.get(name)
        if starts is not None and not rises(starts, end):
            raise DamagedError(f"{folder}: {name} does not rise from 0 to {end}; {REPAIR}")
    frames, norms = arrays["frames"], arrays.get("code_norms", np.zeros(0, np.float32))
    if not (np.abs(frames) < LARGEST_POSITION).all() or (frames[:, 2] <= 0).any():
        raise DamagedError(f"{folder}: frames holds a frame that is no part of an image; {REPAIR}")
    if not ((norms == 0) | ((norms >= 1) & (norms <= n_features))).all():  # of whole numbers that sum to at most so many
        raise DamagedError(f"{folder}: code_norms holds a number that is no norm of word counts; {REPAIR}")


def rises(starts: Array, end: int) -> bool:
    """Return whether numbers rise from 0 to an end."""
    return len(starts) > 0 and starts[0] == 0 and starts[-1] == end and bool((starts[1:] >= starts[:-1]).all())


def limits_of(sizes: Sequence[int], arrays: Mapping[str, Array]) -> dict[str, Limit]:
    """Return the limits of the numbers that lead to other arrays, where their type allows larger ones."""
    n_images = len(arrays["ids"])
    limits: dict[str, Limit] = {}
    if "code_starts" in arrays:
        limits |= {"code_images": n_images, "code_words": len(arrays["code_starts"]) - 1}
    if sizes:
        limits |= {"postings": n_images, "words": np.array(sizes), "places": arrays["signatures"].shape[1]}
    return {name: limit for name, limit in limits.items() if np.min(limit) <= np.iinfo(arrays[name].dtype).max}


def check_runs(sizes: Sequence[int], arrays: Mapping[str, Array], path: Path) -> None:
    """Raise DamagedError unless the runs of every list of words are as long as the list."""
    if len(sizes) > 1 and not runs_fit(arrays["starts"], arrays["run_starts"], arrays["run_lengths"]):
        raise DamagedError(f"{path}, run_lengths does not fit the lists; {REPAIR}")
