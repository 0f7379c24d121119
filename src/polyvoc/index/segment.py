"""A segment: at most 65,536 images, immutable, the unit of storage, of threads and of machines.

It has two parts that do not know each other: `codes` for the default search (`index.codes`) and `words` for the rules of the
paper (`index.words`); either may be absent. Both refer to the same features, numbered by image:

    ids            int64 [n]        of the images
    feature_starts uint32 [n + 1]   features of each image
    frames         float32 [n, 3]   left, top and step of the positions of each image
    positions      uint16 [F, 2]    x and y of a feature, in steps from left and top
    shapes         uint8 [F, 2]     scale, in 1/15 octaves, and angle, in 1/256 of a turn; scale 0: both unknown, but if the
                                    angle is not 0, it is the scale, and the angle alone is unknown
    embeddings     float16 [n, d]   optional: the unit vector of each image, zeros where it has none
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError
from polyvoc.index.arrays import (
    DIRECTORIES,
    WORD_ARRAYS,
    check_directories,
    check_runs,
    check_shapes,
    limits_of,
)
from polyvoc.index.codes import build_codes, check_codes, codes_at, write_codes
from polyvoc.index.words import build_lists, check_words, stack_signatures, stack_words, word_offsets
from polyvoc.kernels.postings import subtract_words
from polyvoc.storage.blocks import REPAIR, ArrayFile, write_arrays
from polyvoc.storage.files import META
from polyvoc.types import Array, FeatureCodes, Floats32, ImageFeatures, Keypoints

MAX_IMAGES = 1 << 16  # so that a posting is a uint16 and the scores of a segment stay in the L2 cache
STEPS = (1 << 16) - 1  # of a position, along the longer side of the features of an image
OCTAVE, SMALLEST = 15, 4  # steps of an octave; scales start at 2^-SMALLEST pixels
TURN = 256  # steps of a turn
BY_FEATURE = ("positions", "shapes", "words", "code_words", "rest")  # arrays with a row for each feature, by image


class Geometry(NamedTuple):
    """Positions, scales and angles of the features of some images, as they are stored."""

    frames: Floats32  # [n, 3]
    positions: npt.NDArray[np.uint16]  # [F, 2]
    shapes: npt.NDArray[np.uint8]  # [F, 2]

    @classmethod
    def of(cls, xy: Array, scale: Array, angle: Array, feature_starts: Array) -> Geometry:
        """Round positions [F, 2], scales and angles [F] of images; scale 0: both are unknown, angle NaN: the angle is."""
        n_images, xy = len(feature_starts) - 1, np.asarray(xy, np.float64)
        frames = np.zeros((n_images, 3), np.float32)
        frames[:, 2] = 1
        filled = np.flatnonzero(np.diff(feature_starts) > 0)
        if len(filled):
            firsts = np.asarray(feature_starts, np.int64)[filled]
            frames[filled, :2] = np.minimum.reduceat(xy, firsts, axis=0)
            span = (np.maximum.reduceat(xy, firsts, axis=0) - frames[filled, :2]).max(axis=1)
            frames[filled, 2] = np.where(span > 0, span / STEPS, 1)
        own = np.repeat(frames, np.diff(feature_starts), axis=0)
        positions = np.rint((xy - own[:, :2]) / own[:, 2:])
        sized = np.isfinite(scale) & (np.asarray(scale) > 0)
        known = np.isfinite(angle) & sized
        octaves = np.log2(np.where(sized, scale, 1), dtype=np.float64)
        sizes = np.where(sized, np.clip(np.rint((octaves + SMALLEST) * OCTAVE) + 1, 1, 255), 0)
        shapes = np.zeros((len(xy), 2), np.uint8)
        shapes[:, 0] = np.where(known, sizes, 0)
        shapes[:, 1] = np.where(known, np.rint(np.where(known, angle, 0) * (TURN / 360)) % TURN, sizes)
        return cls(frames, np.clip(positions, 0, STEPS).astype(np.uint16), shapes)

    @classmethod
    def unknown(cls, n_images: int, n_features: int) -> Geometry:
        """Return that of features without positions."""
        frames = np.tile(np.array([0, 0, 1], np.float32), (n_images, 1))
        return cls(frames, np.zeros((n_features, 2), np.uint16), np.zeros((n_features, 2), np.uint8))


def unpack_keypoints(frame: Floats32, positions: Array, shapes: Array) -> Keypoints:
    """Return the keypoints of one image."""
    first, second = shapes.astype(np.float64).T
    xy = frame[:2].astype(np.float64) + positions * np.float64(frame[2])
    turned = (first > 0) | (second == 0)  # else the second is the scale, and the angle is unknown
    scale = np.where(turned, first, second)
    angle = np.where(turned, second * (360 / TURN), np.nan)
    return Keypoints(xy, np.where(scale > 0, 2 ** ((scale - 1) / OCTAVE - SMALLEST), 0.0), angle)


@dataclass(frozen=True, eq=False)
class Batch:
    """Quantised images, the input of a segment."""

    ids: npt.NDArray[np.int64]  # [n]
    feature_starts: npt.NDArray[np.int64]  # [n + 1]
    geometry: Geometry
    words: npt.NDArray[np.int32]  # [F, K], K = 0: without words
    signatures: npt.NDArray[np.uint64] | None = None  # [F, K], or [F, K, 2] beyond 64 bits
    codes: FeatureCodes | None = None
    embeddings: npt.NDArray[np.float16] | None = None  # [n, d] unit vectors; of zeros for an image that has none

    @classmethod
    def of_words(cls, images: Sequence[Array], n_vocabularies: int, signatures: Sequence[Array] | None = None,
                 first_id: int = 0) -> Batch:  # fmt: skip
        """Make a batch of bare words: images of [n_i, K] words, without geometry."""
        starts = np.zeros(len(images) + 1, np.int64)
        np.cumsum([len(words) for words in images], out=starts[1:])
        words = stack_words(images, n_vocabularies, np.int32)
        bits = None if signatures is None else stack_signatures(signatures, n_vocabularies)
        if bits is not None and bits.shape[:2] != words.shape:
            raise OptionError(f"signatures of shape {bits.shape} do not fit words of shape {words.shape}")
        ids = np.arange(first_id, first_id + len(images), dtype=np.int64)
        return cls(ids, starts, Geometry.unknown(len(images), len(words)), words, bits)

    @classmethod
    def concatenate(cls, batches: Sequence[Batch]) -> Batch:
        """Join batches, in order."""
        lengths = np.concatenate([np.diff(batch.feature_starts) for batch in batches])
        signed = [batch.signatures for batch in batches if batch.signatures is not None]
        coded = [batch.codes for batch in batches if batch.codes is not None]
        return cls(
            ids=np.concatenate([batch.ids for batch in batches]),
            feature_starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            geometry=Geometry(*map(np.concatenate, zip(*(batch.geometry for batch in batches), strict=True))),
            words=np.concatenate([batch.words for batch in batches]),
            signatures=np.concatenate(signed) if signed else None,
            codes=FeatureCodes(*map(np.concatenate, zip(*coded, strict=True))) if coded else None,
            embeddings=_join_embeddings([len(batch.ids) for batch in batches], [batch.embeddings for batch in batches]),
        )


@dataclass(frozen=True, eq=False)
class Segment:
    """The arrays of one segment, in memory or mapped from its folder. Read-only; may be shared by threads."""

    sizes: tuple[int, ...]  # of the vocabularies of the words
    ids: npt.NDArray[np.int64]
    arrays: dict[str, Array]
    alive: npt.NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))  # empty: all; else [n_images]
    file: ArrayFile | None = None  # that the arrays are mapped from; None: they are in memory

    # -- what it holds

    @cached_property
    def n_images(self) -> int:
        """Return the number of images, deleted ones included."""
        return len(self.ids)

    @cached_property
    def n_features(self) -> int:
        """Return the number of features, those of deleted images included."""
        return int(self.arrays["feature_starts"][-1])

    @cached_property
    def n_vocabularies(self) -> int:
        """Return the number of vocabularies of the words."""
        return len(self.sizes)

    @cached_property
    def fine(self) -> int:
        """Return the number of words that codes refer to, 0 if there are no codes."""
        return len(self.arrays["code_starts"]) - 1 if "code_starts" in self.arrays else 0

    @cached_property
    def code_planes(self) -> int:
        """Return the number of planes, groups of 64 bits, of a code."""
        return len(self.arrays["codes"]) if self.fine else 0

    @cached_property
    def signed(self) -> bool:
        """Return whether the postings of words have Hamming signatures."""
        return self.planes > 0 or self.n_features == 0

    @cached_property
    def planes(self) -> int:
        """Return the number of planes, groups of 64 bits, of a signature."""
        return len(self.arrays["signatures"]) if self.sizes else 0

    @property
    def embeddings(self) -> npt.NDArray[np.float16] | None:
        """Return the unit vectors of the images [n, d], zeros where one has none; None if there are none."""
        if self.file is not None and "embeddings" in self.arrays:
            self.file.verify("embeddings")
        return self.arrays.get("embeddings")

    def live_positions(self) -> npt.NDArray[np.int64]:
        """Return the positions of the images that are not deleted."""
        return np.flatnonzero(self.alive) if len(self.alive) else np.arange(self.n_images)

    @property
    def live_lengths(self) -> npt.NDArray[np.int64]:
        """Return how many live features have each word [W]."""
        return self._live_words[0]

    def documents(self) -> npt.NDArray[np.int64]:
        """Return how many live images hold each word [W]."""
        return self._live_words[1]

    @cached_property
    def _live_words(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Count the live features and the live images of each word [W]."""
        if not self.sizes:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        features, images = _lengths(self.arrays["starts"]), self.arrays["documents"].astype(np.int64)
        self._subtract_deleted("words", word_offsets(self.sizes), features, images)
        return features, images

    @cached_property
    def live_code_lengths(self) -> npt.NDArray[np.int64]:
        """Count the live features of each fine word [size]."""
        if not self.fine:
            return np.zeros(0, np.int64)
        features = _lengths(self.arrays["code_starts"])
        self._subtract_deleted("code_words", np.zeros(1, np.int64), features, np.zeros_like(features))
        return features

    def _subtract_deleted(self, name: str, bases: Array, features: Array, images: Array) -> None:
        """Subtract the words of deleted images from counts of features and images: reads nothing of live images."""
        deleted = np.flatnonzero(self.alive == 0)
        if len(deleted):
            self.verify_images(deleted, name)
            words = self.arrays[name].reshape(self.n_features, len(bases))
            subtract_words(deleted, self.arrays["feature_starts"], words, bases, features, images)

    def image_features(self, position: int) -> ImageFeatures:
        """Return words, signatures, codes and keypoints of the image at a position."""
        first, last = (int(i) for i in self.arrays["feature_starts"][position : position + 2])
        self.verify_images(np.array([position]), *(name for name in BY_FEATURE if name in self.arrays))
        geometry = (self.arrays["frames"][position], *(self.arrays[name][first:last] for name in ("positions", "shapes")))
        words = np.asarray(self.arrays["words"][first:last]) if self.sizes else np.empty((last - first, 0), np.uint16)
        signatures = np.zeros((last - first, 0), np.uint64)
        if self.planes:  # else there are no places
            self.verify_words()
            signatures = self.signatures_at(self.arrays["places"][first:last])
        codes = None
        if self.fine:
            self.verify_lists(np.unique(self.arrays["code_words"][first:last]))
            codes = codes_at(self.arrays, position, first, last)
        return ImageFeatures(words, signatures, unpack_keypoints(*geometry), codes)

    # -- verification of what is mapped, before its first use. Raises DamagedError; nothing happens to arrays in memory.

    def verify_images(self, positions: npt.NDArray[np.int64], *names: str) -> None:
        """Verify what arrays by feature hold of the images at some positions."""
        if self.file is not None:
            firsts, lasts = (self.arrays["feature_starts"][positions + end] for end in (0, 1))
            for name in names:
                self.file.verify_ranges(name, firsts, lasts, self.arrays[name].size // max(self.n_features, 1))

    def verify_lists(self, words: Array) -> None:
        """Verify the lists of codes of some fine words."""
        if self.file is not None:
            firsts, lasts = (self.arrays["code_starts"][words.astype(np.int64) + end].astype(np.int64) for end in (0, 1))
            self.file.verify_ranges("code_images", firsts, lasts)
            for plane in range(self.code_planes):
                self.file.verify_ranges("codes", firsts + plane * self.n_features, lasts + plane * self.n_features)

    def verify_words(self) -> None:
        """Verify the inverted files of words, wholly: norms of images need all of them anyhow."""
        if self.file is not None and self.sizes and WORD_ARRAYS not in self.file.passed:
            self.file.verify(*WORD_ARRAYS)
            check_runs(self.sizes, self.arrays, self.file.path)
            self.file.passed.add(WORD_ARRAYS)

    def verify(self) -> None:
        """Verify everything."""
        if self.file is not None:
            self.file.verify(*self.arrays)
            self.verify_words()

    def signatures_at(self, places: Array) -> npt.NDArray[np.uint64]:
        """Return the signatures of features by their places [n, K]: [n, K], or [n, K, 2] beyond 64 bits."""
        planes = self.arrays["signatures"]
        return planes[0][places] if len(planes) == 1 else np.stack([plane[places] for plane in planes], axis=-1)

    def without(self, positions: Sequence[int]) -> Segment:
        """Return the same segment with the images at some positions marked as deleted."""
        if not len(positions):
            return self
        alive = self.alive.copy() if len(self.alive) else np.ones(self.n_images, np.uint8)
        alive[np.asarray(positions)] = 0
        return replace(self, alive=alive)

    def live_batch(self) -> Batch:
        """Return the batch it was built from, without the deleted images."""
        return join_live([self])

    def live_features(self) -> slice | npt.NDArray[np.bool_]:
        """Return what chooses the features of live images from an array of all, by image."""
        lengths = _lengths(self.arrays["feature_starts"])
        return np.repeat(self.alive.astype(bool), lengths) if len(self.alive) else slice(None)

    # -- building

    @classmethod
    def build(cls, batch: Batch, sizes: tuple[int, ...], fine: int = 0) -> Segment:
        """Sort the features of a batch into lists of words and of codes relative to `fine` words (0: no codes)."""
        check_batch(batch, sizes, fine)
        arrays: dict[str, Array] = {
            "feature_starts": batch.feature_starts.astype(np.uint32),
            "frames": batch.geometry.frames,
            "positions": np.ascontiguousarray(batch.geometry.positions),
            "shapes": np.ascontiguousarray(batch.geometry.shapes),
        }
        if sizes:
            arrays |= build_lists(batch.words, batch.signatures, batch.feature_starts, sizes)
        if batch.codes is not None and fine:
            arrays |= build_codes(batch.codes, batch.feature_starts, fine)
        if batch.embeddings is not None:
            arrays["embeddings"] = batch.embeddings
        return cls(tuple(sizes), _frozen(batch.ids), {name: _frozen(array) for name, array in arrays.items()})

    # -- storing

    def save(self, folder: Path) -> None:
        """Write the segment to a folder, which appears complete or not at all."""
        write_arrays(folder, {"ids": self.ids, **self.arrays}, {"sizes": list(self.sizes)})

    @classmethod
    def open(cls, folder: Path) -> Segment:
        """Map a segment from its folder. Raise DamagedError unless arrays have the right shapes and directories lead to them.

        Reads the directories only. The rest is verified when it is used.
        """
        file = ArrayFile.open(folder)
        sizes = file.meta.get("sizes")
        if not isinstance(sizes, list) or not all(isinstance(size, int) and size > 0 for size in sizes):
            raise DamagedError(f"{folder / META} does not describe a segment; {REPAIR}")
        check_shapes(sizes, file.arrays, folder)
        if len(file.arrays["ids"]) > MAX_IMAGES:
            raise DamagedError(f"{folder}: {len(file.arrays['ids'])} images are more than a segment holds; {REPAIR}")
        file.verify(*(name for name in DIRECTORIES if name in file.arrays))
        check_directories(file.arrays, folder)
        file.limits.update(limits_of(sizes, file.arrays))
        arrays = dict(file.arrays)
        return cls(tuple(sizes), arrays.pop("ids"), arrays, file=file)


def check_batch(batch: Batch, sizes: Sequence[int], fine: int) -> None:
    """Raise OptionError for a batch that a segment cannot hold."""
    if len(batch.ids) > MAX_IMAGES:
        raise OptionError(f"{len(batch.ids)} images do not fit into one segment of {MAX_IMAGES}")
    check_words(batch.words, sizes)
    if batch.codes is not None:
        check_codes(batch.codes, int(batch.feature_starts[-1]), fine)
    vectors = batch.embeddings
    if vectors is not None and (vectors.dtype != np.float16 or vectors.ndim != 2 or len(vectors) != len(batch.ids)):
        raise OptionError(f"embeddings {vectors.dtype}{list(vectors.shape)} should be float16 [{len(batch.ids)}, dimension]")


def join_live(segments: Sequence[Segment]) -> Batch:
    """Return the live images of segments of one index as a batch, the input of a merged segment.

    Array after array, and words as they are stored: a full segment takes gigabytes.
    """
    first, live = segments[0], [segment.live_positions() for segment in segments]
    lengths = [_lengths(segment.arrays["feature_starts"])[at] for segment, at in zip(segments, live, strict=True)]
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))]).astype(np.int64)

    def by_image(name: str) -> Array:
        return np.concatenate([segment.arrays[name][at] for segment, at in zip(segments, live, strict=True)])

    def by_feature(name: str) -> Array:
        return np.concatenate([segment.arrays[name][segment.live_features()] for segment in segments])

    codes = None
    if first.fine:
        codes = FeatureCodes(by_feature("code_words"), _join_codes(segments, lengths), by_feature("rest"))
    vectors = [None if s.embeddings is None else s.embeddings[at] for s, at in zip(segments, live, strict=True)]
    return Batch(
        ids=np.concatenate([segment.ids[at] for segment, at in zip(segments, live, strict=True)]),
        feature_starts=starts,
        geometry=Geometry(by_image("frames"), by_feature("positions"), by_feature("shapes")),
        words=by_feature("words") if first.sizes else np.empty((starts[-1], 0), np.int32),
        signatures=_join_signatures(segments),
        codes=codes,
        embeddings=_join_embeddings([len(at) for at in live], vectors),
    )


def _join_codes(segments: Sequence[Segment], lengths: Sequence[Array]) -> npt.NDArray[np.uint64]:
    """Return the codes of the live images of segments, by image. lengths: numbers of features of these."""
    ends = np.cumsum([0, *(int(part.sum()) for part in lengths)])
    codes: npt.NDArray[np.uint64] = np.empty((ends[-1], segments[0].code_planes), np.uint64)
    for segment, (begin, end) in zip(segments, pairwise(ends), strict=True):
        write_codes(segment.arrays, segment.arrays["feature_starts"], segment.alive, codes[begin:end])
    return codes


def _join_signatures(segments: Sequence[Segment]) -> npt.NDArray[np.uint64] | None:
    """Return the signatures of the live images of segments, by image; those without features have no planes."""
    signed = [segment for segment in segments if segment.planes]
    parts = [segment.signatures_at(segment.arrays["places"][segment.live_features()]) for segment in signed]
    return np.concatenate(parts) if parts else None


def _join_embeddings(counts: Sequence[int], vectors: Sequence[Array | None]) -> npt.NDArray[np.float16] | None:
    """Join the vectors [n, d] of parts of so many images; those without any get zeros, unless none has any."""
    lengths = {part.shape[1] for part in vectors if part is not None}
    if len(lengths) > 1:
        raise OptionError(f"vectors of {sorted(lengths)} numbers cannot be mixed; use one model for all images")
    parts = [np.zeros((n, *lengths), np.float16) if part is None else part for n, part in zip(counts, vectors, strict=True)]
    return np.concatenate(parts) if lengths else None


def _lengths(starts: Array) -> npt.NDArray[np.int64]:
    """Return the lengths of lists by their starts."""
    return np.asarray(np.diff(starts.astype(np.int64)), np.int64)


def _frozen(array: Array) -> Array:
    """Return a read-only view: a segment never changes, and built and mapped ones then share their compiled kernels."""
    view = array.view()
    view.flags.writeable = False
    return view
