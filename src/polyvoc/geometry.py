"""Do two images show the same thing in the same arrangement? Spatial verification from words and signatures alone.

Tentative matches become one-to-one, vote for a change of scale and a rotation, and give an affine transform by a robust
estimator; the matches that agree with it are its inliers. No descriptors are needed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.kernels import geometry as kernels
from polyvoc.segment import Segment, with_planes

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

TOLERANCE = 0.02  # of the long side of the indexed image: how far from its place an inlier may lie
HAMMING, SIGMA = 24, 16.0  # tentative matches: largest Hamming distance, and width of their weight
OCTAVES, DEGREES = 0.5, 30.0  # of a bin of the vote; a peak is three bins wide
SCALE_BINS, ANGLE_BINS = 32, 12  # changes of scale up to 2^8 either way
SCALE_SLACK, ANGLE_SLACK = 1.0, 45.0  # octaves and degrees by which an inlier may differ from the transform
FEW = 6  # matches below which a similarity is fitted instead of an affine transform
LEAST_AFFINE, LEAST_SIMILAR = 4, 3  # inliers: three matches always fit an affine transform, one a similarity
LARGEST_SCALE, LARGEST_STRETCH = 10.0, 4.0  # beyond these a transform is not that of a photograph
ROUNDS = 3  # of least squares on the inliers
ITERATIONS, CONFIDENCE = 1000, 0.99  # of the robust estimator


@dataclass(frozen=True, eq=False)
class Frames:
    """Where the features of one image lie, how large they are and how they are turned; scale 0 means not known."""

    xy: Floats  # [n, 2]
    scale: Floats  # [n]
    angle: Floats  # [n] degrees, clockwise from the x axis

    def __post_init__(self) -> None:
        """Take numbers of any type; refuse arrays that do not belong together or hold no numbers."""
        for name in ("xy", "scale", "angle"):
            values = np.asarray(getattr(self, name), np.float64)
            object.__setattr__(self, name, values)
            if not np.isfinite(values).all():
                raise OptionError(f"geometry: {name} holds values that are not finite; extract the features again")
        n = len(self.xy)
        if self.xy.shape != (n, 2) or self.scale.shape != (n,) or self.angle.shape != (n,):
            raise OptionError(f"geometry: xy {self.xy.shape}, scale {self.scale.shape}, angle {self.angle.shape} do not fit")
        if (self.scale < 0).any():
            raise OptionError("geometry: some scales are negative; extract the features again")

    def __len__(self) -> int:
        """Count the features."""
        return len(self.xy)

    @cached_property
    def extent(self) -> float:
        """Give the long side of the box around all features."""
        columns = np.ascontiguousarray(self.xy.T)  # the reductions of strided columns are five times slower
        return float((columns.max(axis=1) - columns.min(axis=1)).max()) if len(self) else 0.0


@dataclass(frozen=True, eq=False)
class Sketch:
    """What an index keeps of one image."""

    words: Array  # [n, K]
    signatures: Array  # [n, K], or [n, 0] without signatures
    frames: Frames

    @classmethod
    def of(cls, segment: Segment, position: int) -> Sketch:
        """Read the image at a position of a segment."""
        rows = segment.features_of(position)
        scale, angle = rows["shape"].T
        return cls(np.asarray(rows["words"]), np.asarray(rows["signatures"]), Frames(rows["xy"], scale, angle))

    @cached_property
    def orders(self) -> list[npt.NDArray[np.int64]]:
        """Give the features by their word, for each vocabulary: sorted lists are joined twice as fast."""
        return [np.argsort(self.words[:, k], kind="stable") for k in range(self.words.shape[1])]


@dataclass(frozen=True, eq=False)
class Matches:
    """Tentative matches of a query with an image: which feature with which, and how much each match is believed."""

    query: npt.NDArray[np.int64]  # [m] feature of the query
    feature: npt.NDArray[np.int64]  # [m] feature of the image
    weight: Floats  # [m]

    def __len__(self) -> int:
        """Count the matches."""
        return len(self.query)


@dataclass(frozen=True, eq=False)
class Verification:
    """Which tentative matches agree on one transform, and which transform."""

    inliers: npt.NDArray[np.bool_]  # [m]
    image_from_query: Floats | None  # [2, 3] places of the query to places of the image; None if no transform was found

    @property
    def count(self) -> int:
        """Count the inliers."""
        return int(np.count_nonzero(self.inliers))


def tentative(query: Sketch, image: Sketch, hamming: int = HAMMING) -> Matches:
    """Match features that share a word at a Hamming distance up to `hamming`; each pair once, weighed over its vocabularies.

    A shared word at distance h weighs exp(-h^2 / sigma^2), as in a search; without signatures it weighs 1.
    """
    signed = query.signatures.shape[1] > 0 and image.signatures.shape[1] > 0
    parts: list[tuple[Array, Array, Floats]] = []
    for k in range(query.words.shape[1]):
        q, f = sharing(query, image, k)
        near = _closeness(query, image, q, f, slice(k, k + 1), hamming)[:, 0] > 0 if signed else np.ones(len(q), bool)
        q, f = q[near], f[near]
        every = _closeness(query, image, q, f, slice(None), hamming) if signed else (query.words[q] == image.words[f])
        new = ~every[:, :k].any(axis=1)  # not yet found by an earlier vocabulary
        parts.append((q[new], f[new], every[new].sum(axis=1, dtype=np.float64)))
    q, f, weight = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return Matches(q, f, weight)


def sharing(query: Sketch, image: Sketch, k: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Give the pairs (query feature, feature) that share the word of vocabulary k, by word."""
    words, places = query.words[query.orders[k], k], image.words[image.orders[k], k]
    first = np.searchsorted(places, words, "left")
    lengths = np.searchsorted(places, words, "right") - first
    q = np.repeat(np.arange(len(words)), lengths)
    within = np.arange(len(q)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return query.orders[k][q], image.orders[k][first[q] + within]


def verify(query: Frames, image: Frames, matches: Matches, tolerance: float = TOLERANCE) -> Verification:
    """Find the transform that most tentative matches agree on, and its inliers: at most one per feature of either image."""
    _check(query, image, matches, tolerance)
    pairs = _Pairs.of(query, image, matches, _one_to_one(matches), tolerance * image.extent)
    peak = pairs.chosen(_peak(pairs))
    few = len(peak.rows) < FEW
    transform = _similarity(peak) if few else _affine(peak)
    agree = np.zeros(len(pairs.rows), bool)
    if transform is not None and few:
        agree = pairs.agree(transform)
    elif transform is not None:
        transform, agree = _refined(transform, pairs)
    if np.count_nonzero(agree) < (LEAST_SIMILAR if few else LEAST_AFFINE):
        return Verification(np.zeros(len(matches), bool), None)
    inliers = np.zeros(len(matches), bool)
    inliers[pairs.rows[agree]] = True
    return Verification(inliers, transform)


@dataclass(frozen=True, eq=False)
class _Pairs:
    """One-to-one matches as two columns of places, with the change of scale and the rotation of each."""

    rows: npt.NDArray[np.int64]  # [p] which tentative matches
    source: Floats  # [p, 2] in the query
    target: Floats  # [p, 2] in the image
    octaves: Floats  # [p] log2 of the scale of the image's feature over that of the query's; NaN if not known
    turn: Floats  # [p] degrees; NaN if not known
    tolerance: float  # pixels of the image

    @classmethod
    def of(cls, query: Frames, image: Frames, matches: Matches, rows: npt.NDArray[np.int64], tolerance: float) -> _Pairs:
        q, f = matches.query[rows], matches.feature[rows]
        before, after = query.scale[q], image.scale[f]
        known = (before > 0) & (after > 0)
        octaves = np.log2(np.where(known, after, 1.0) / np.where(known, before, 1.0))
        turn = image.angle[f] - query.angle[q]
        octaves[~known] = turn[~known] = np.nan
        return cls(rows, query.xy[q], image.xy[f], octaves, turn, tolerance)

    def chosen(self, rows: npt.NDArray[np.bool_]) -> _Pairs:
        columns = {name: getattr(self, name)[rows] for name in ("rows", "source", "target", "octaves", "turn")}
        return replace(self, **columns)

    def agree(self, transform: Floats) -> npt.NDArray[np.bool_]:
        """Tell which matches lie where a transform puts them, scaled and turned as it does."""
        (a, b), (c, d) = transform[:, :2]
        error = self.source @ transform[:, :2].T + transform[:, 2] - self.target
        octaves = 0.5 * np.log2(a * d - b * c)
        turn = np.degrees(np.arctan2(c - b, a + d))
        near = np.einsum("ij,ij->i", error, error) <= self.tolerance**2
        # Written as "not beyond": what is not known is NaN and passes.
        result: npt.NDArray[np.bool_] = (
            near & ~(np.abs(self.octaves - octaves) > SCALE_SLACK) & ~(np.abs(_wrapped(self.turn - turn)) > ANGLE_SLACK)
        )
        return result


def _one_to_one(matches: Matches) -> npt.NDArray[np.int64]:
    """Give the rows of the heaviest matches that use each feature once, heaviest first; ties in the order given."""
    order = np.argsort(-matches.weight, kind="stable")
    queries, features = set(), set()
    kept = []
    for row, q, f in zip(order.tolist(), matches.query[order].tolist(), matches.feature[order].tolist(), strict=True):
        if q not in queries and f not in features:
            queries.add(q)
            features.add(f)
            kept.append(row)
    return np.array(kept, np.int64)


def _peak(pairs: _Pairs) -> npt.NDArray[np.bool_]:
    """Tell which matches stand in the most popular bin of (change of scale, rotation) or in one of its neighbours.

    Weak geometric consistency: Jegou, Douze, Schmid, ECCV 2008.
    """
    known = ~np.isnan(pairs.octaves)
    if not known.any():
        return ~known
    scale = np.floor(pairs.octaves[known] / OCTAVES).astype(np.int64) + SCALE_BINS // 2
    scale = np.clip(scale, 1, SCALE_BINS - 2)  # so that every bin has neighbours
    angle = np.floor(pairs.turn[known] / DEGREES).astype(np.int64) % ANGLE_BINS
    votes = np.bincount(scale * ANGLE_BINS + angle, minlength=SCALE_BINS * ANGLE_BINS).reshape(SCALE_BINS, ANGLE_BINS)
    votes = votes[:-2] + votes[1:-1] + votes[2:]
    wide = np.concatenate([votes[:, -1:], votes, votes[:, :1]], axis=1)  # angles go round
    best = int(np.argmax(wide[:, :-2] + wide[:, 1:-1] + wide[:, 2:]))
    best_scale, best_angle = best // ANGLE_BINS + 1, best % ANGLE_BINS
    apart = (angle - best_angle + 1) % ANGLE_BINS
    result = ~known
    result[known] = (np.abs(scale - best_scale) <= 1) & (apart <= 2)
    return result


def _affine(pairs: _Pairs) -> Floats | None:
    """Fit an affine transform by MAGSAC (Barath, Matas, Noskova, CVPR 2019); the same matches always give the same."""
    settings = cv2.UsacParams()
    settings.score, settings.loMethod, settings.final_polisher = cv2.SCORE_METHOD_MAGSAC, cv2.LOCAL_OPTIM_SIGMA, cv2.MAGSAC
    settings.sampler, settings.randomGeneratorState, settings.isParallel = cv2.SAMPLING_UNIFORM, 0, False
    settings.threshold, settings.maxIterations, settings.confidence = pairs.tolerance, ITERATIONS, CONFIDENCE
    try:
        found, _ = cv2.estimateAffine2D(pairs.source, pairs.target, settings)
    except cv2.error:  # points on one line, or all in one place
        return None
    transform = None if found is None else np.asarray(found, np.float64)
    return transform if transform is not None and _is_plausible(transform) else None


def _similarity(pairs: _Pairs) -> Floats | None:
    """Give the similarity with the most inliers of those that each match defines alone, by its scales and angles.

    Philbin, Chum, Isard, Sivic, Zisserman, CVPR 2007.
    """
    best, most = None, 0
    for source, target, octaves, turn in zip(pairs.source, pairs.target, pairs.octaves, np.radians(pairs.turn), strict=True):
        c, s = 2**octaves * np.cos(turn), 2**octaves * np.sin(turn)
        turned = np.array([[c, -s], [s, c]])
        transform = np.column_stack([turned, target - turned @ source])
        if _is_plausible(transform) and (count := int(np.count_nonzero(pairs.agree(transform)))) > most:
            best, most = transform, count
    return best


def _refined(transform: Floats, pairs: _Pairs) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Fit the transform to its inliers among all matches as long as that gives more of them."""
    agree = pairs.agree(transform)
    for _ in range(ROUNDS):
        fitted = _least_squares(pairs.source[agree], pairs.target[agree])
        if fitted is None or not _is_plausible(fitted):
            break
        closer = pairs.agree(fitted)
        if np.count_nonzero(closer) <= np.count_nonzero(agree):
            break
        transform, agree = fitted, closer
    return transform, agree


def _least_squares(source: Floats, target: Floats) -> Floats | None:
    """Give the affine transform with the least squared error; None if the places do not define one."""
    if len(source) < LEAST_AFFINE:
        return None
    centre = source.mean(axis=0)
    rows = np.column_stack([source - centre, np.ones(len(source))])
    try:
        solved = np.linalg.solve(rows.T @ rows, rows.T @ target)  # [3, 2]
    except np.linalg.LinAlgError:
        return None
    turned = solved[:2].T
    return np.column_stack([turned, solved[2] - turned @ centre])


def _is_plausible(transform: Floats) -> bool:
    """Tell whether a transform could be that of a photograph: no mirror image, no extreme scale, no extreme stretch."""
    (a, b), (c, d) = transform[:, :2].tolist()
    area = a * d - b * c  # product of the two singular values
    if not (np.isfinite(transform).all() and LARGEST_SCALE**-2 < area < LARGEST_SCALE**2):
        return False
    squares = a * a + b * b + c * c + d * d  # the sum of their squares
    return bool(squares / area < LARGEST_STRETCH + 1 / LARGEST_STRETCH)


def _closeness(query: Sketch, image: Sketch, q: Array, f: Array, columns: slice, hamming: int) -> Floats:
    """Give the weight of each shared word of pairs of features, 0 where it is not shared or too far [m, K]."""
    shared = query.words[q, columns] == image.words[f, columns]
    distance = np.bitwise_count(query.signatures[q, columns] ^ image.signatures[f, columns])
    table = np.where(np.arange(65) <= hamming, np.exp(-((np.arange(65) / SIGMA) ** 2)), 0.0)
    return np.asarray(np.where(shared, table[distance], 0.0))


def _wrapped(degrees: Floats) -> Floats:
    return (degrees + 180) % 360 - 180


@dataclass(frozen=True, eq=False)
class Verifications:
    """How many matches of a query with each of several images agree on one transform, their weight, and which transform."""

    counts: npt.NDArray[np.int64]  # [n]
    weights: Floats  # [n]
    transforms: Floats  # [n, 2, 3] places of the query to places of the image; NaN: none


def default_table(n_vocabularies: int, bits: int) -> Array:
    """Tabulate the weight of a match by the number of lists that hold it and its mean distance [K + 1, bits + 1]."""
    h = np.arange(bits + 1)
    near = np.exp(-((h / (SIGMA if bits <= 64 else 26.0)) ** 2)) * (h <= (HAMMING if bits <= 64 else 52))
    return (np.arange(n_vocabularies + 1)[:, None] * near).astype(np.float32)


def verify_images(query: Sketch, segment: Segment, positions: Array, table: Array,
                  tolerance: float = TOLERANCE) -> Verifications:  # fmt: skip
    """Verify the images at some positions of a segment; table [K + 1, bits + 1]: weight of a match, 0 or less for none."""
    return _verify_images(query, segment, positions, table, tolerance, np.empty((0, 2), np.int64))


def inlier_pairs(query: Sketch, segment: Segment, position: int, table: Array,
                 tolerance: float = TOLERANCE) -> npt.NDArray[np.int64]:  # fmt: skip
    """Give the inliers that `verify_images` counts for one image, heaviest first: query feature and feature [n, 2]."""
    pairs = np.empty((len(query.words), 2), np.int64)
    found = _verify_images(query, segment, np.array([position]), table, tolerance, pairs)
    return pairs[: found.counts[0]]


def _verify_images(query: Sketch, segment: Segment, positions: Array, table: Array, tolerance: float,
                   pairs: npt.NDArray[np.int64]) -> Verifications:  # fmt: skip
    """Verify images, and write the inliers of the last of them to `pairs` as far as there is room."""
    n = len(positions)
    found = Verifications(np.zeros(n, np.int64), np.zeros(n), np.full((n, 2, 3), np.nan))
    words = np.ascontiguousarray(query.words, np.int64)
    if not len(words) or not n:
        return found
    sizes = words.max(axis=0) + 1
    bases = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    lists = kernels.list_words(words, sizes, bases, 64)
    values = np.unique(table[table > 0])[::-1]
    ranks = np.where(table > 0, np.searchsorted(-values, -table), -1).astype(np.int32)
    frames = np.column_stack([query.frames.xy, query.frames.scale, query.frames.angle])
    signed = np.ascontiguousarray(with_planes(query.signatures, 2))
    a = segment.arrays
    kernels.verify_images(np.asarray(positions), a["feature_starts"], a["words"], a["places"], a["signatures"], a["xy"],
                          a["shape"].view(np.uint16), frames, signed, sizes, bases, *lists, ranks, values.astype(np.float64),
                          tolerance, found.counts, found.weights, found.transforms, pairs)  # fmt: skip
    return found


def outline(width: int, height: int, transform: Array) -> tuple[tuple[float, float], ...]:
    """Give the corners of a frame in the image that a transform takes it to, from the upper left, clockwise."""
    corners = np.array([[0, 0], [width, 0], [width, height], [0, height]])
    return tuple((float(x), float(y)) for x, y in corners @ transform[:, :2].T + transform[:, 2])


def _check(query: Frames, image: Frames, matches: Matches, tolerance: float) -> None:
    if not 0 < tolerance < 1:
        raise OptionError(f"tolerance={tolerance!r} should be between 0 and 1, a share of the image's long side")
    if not len(matches.query) == len(matches.feature) == len(matches.weight):
        raise OptionError(f"geometry: matches of {len(matches.query)}, {len(matches.feature)} and {len(matches.weight)} rows")
    if not np.isfinite(matches.weight).all():
        raise OptionError("geometry: some weights of matches are not finite; check how they were computed")
    for name, rows, frames in (("query", matches.query, query), ("image", matches.feature, image)):
        if len(rows) and not (rows.min() >= 0 and rows.max() < len(frames)):
            raise OptionError(f"geometry: matches name features that the {name} has not; it has {len(frames)}")
