"""Late fusion of the word scores with the cosine similarity of a global embedding (option `fuse`).

Images without an embedding keep their word score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError
from polyvoc.kernels.vectors import COSINE_SCALE, cosine_products
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import HeldSegment, SegmentImages
from polyvoc.search.probability import NoiseCurve
from polyvoc.types import Floats32, Floats64

NEAREST = 1e-3  # distances below are as good as none: rounding, or another copy of the file
CANDIDATES = 1000  # best images by either score that get a joint score
NO_PIXELS = "fuse needs the pixels of the query: give a photograph, not its features or words"


def fuse_embedding(engine: Engine, scores: Sequence[Floats32], images: Sequence[SegmentImages], vector: Floats32 | None,
                   threads: int | None = None) -> list[Floats32]:  # fmt: skip
    """Return the joint evidence of words and vectors in nats, above 0 for the best images by either of them, else 0.

    scores: by words, one array per segment; vector: of the query [d]. Both are ranked against all live images, so the evidence
    of an image does not depend on which others are among the best.
    """
    if vector is None:
        raise OptionError(NO_PIXELS)
    live = [part.live for part in images]
    by_words = np.maximum(_concatenate([part[at] for part, at in zip(scores, live, strict=True)]), 0)
    cosines = embedding_scores(engine, vector, threads)
    by_vectors = _concatenate([part[at] for part, at in zip(cosines, live, strict=True)])
    chosen = np.flatnonzero(_among_best(by_words) | _among_best(by_vectors))
    joint = np.zeros(len(by_words), np.float32)
    # The last of all has no evidence, ln(n / n), and yet is among the best: all get a little more.
    joint[chosen] = fuse(by_words, by_vectors, at=chosen) + np.log1p(1 / max(len(by_words), 1))
    ends = np.cumsum([len(at) for at in live], dtype=np.int64)
    fused = [np.zeros_like(part) for part in scores]
    for part, at, end in zip(fused, live, ends, strict=True):
        part[at] = joint[end - len(at) : end]
    return fused


def fuse(*scores: npt.ArrayLike, at: npt.NDArray[np.int64] | None = None) -> Floats64:
    """Return the joint evidence [n] for each of n images, in nats: the sum over scores [n] of several kinds, each from 0 up.

    `at`: only for some images, by number; the same values, sooner.
    """
    if not scores:
        raise OptionError("no scores to fuse; give those of one kind at least")
    lengths = [np.size(values) for values in scores]
    if len(set(lengths)) > 1:
        raise OptionError(f"scores of {lengths} images cannot be fused; score the same images by every kind")
    joint: Floats64 = np.sum([rank_evidence(values, at) for values in scores], axis=0)
    return joint


def rank_evidence(scores: npt.ArrayLike, at: npt.NDArray[np.int64] | None = None) -> Floats64:
    """Return ln(n / rank) for scores [n] from 0 up, in nats; the same for c * scores ** p with any c, p > 0.

    With s(r) the score at rank r and the depth N = min(100, n / 4), but no deeper than scores are above 0,

        rank of s = N * (s(N) / s) ** a,  a = ln(N / H) / ln(s(H) / s(N)),  H = N / 2    above s(N): on the line
                  = number of scores not below s                                      otherwise

    The order of the images stays. All scores equal are no evidence: 0. `at`: only for some images, by number.
    """
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
        raise OptionError("scores should be a row of numbers from 0 up, one per image; repair what made them")
    curve = np.sort(values)  # [n]  worst first
    n = len(curve)
    if at is not None:
        values = values[at]
    log_ranks = np.log(n - np.searchsorted(curve, values))
    noise = NoiseCurve.of(curve[::-1], n)
    if noise is not None:
        above = values > noise.score
        log_ranks[above] = noise.log_ranks(values[above])
    evidence: Floats64 = math.log(max(n, 1)) - log_ranks
    return evidence


def embedding_scores(engine: Engine, vector: Floats32, threads: int | None = None) -> list[Floats64]:
    """Score every image by its vector, one array per segment: 0 where it has none."""
    scaled = np.ascontiguousarray(vector, np.float32) * COSINE_SCALE
    parts = engine.shards.each(cosines_in, scaled, threads=threads)
    return [
        np.zeros(info.n_images) if part is None else score_of_cosines(part)
        for part, info in zip(parts, engine.shards.infos, strict=True)
    ]


def score_of_cosines(cosines: npt.ArrayLike) -> Floats64:
    """Return scores [n] from cosines of unit vectors: one over the squared distance, up to a factor without effect.

    Not the cosine itself: near 1 it hardly moves, while the distance to the nearest image may be a tenth of that to the next.
    """
    scores: Floats64 = 1.0 / np.maximum(1.0 - np.asarray(cosines, np.float64), NEAREST)
    return scores


def cosines_in(held: HeldSegment, scaled: Floats32) -> Floats32 | None:
    """Return the cosine of a vector with that of every image of a segment [n]; None if it has no vectors."""
    rows = held.segment.embeddings
    if rows is None:
        return None
    if rows.shape != (held.segment.n_images, len(scaled)) or rows.dtype != np.float16:
        raise DamagedError(f"vectors {rows.dtype}{list(rows.shape)} do not compare with one of {len(scaled)} numbers; "
                           "run 'polyvoc check'")  # fmt: skip
    cosines = np.empty(len(rows), np.float32)
    cosine_products(rows.view(np.uint16), scaled, cosines)
    return cosines


def _among_best(scores: Floats64) -> npt.NDArray[np.bool_]:
    """Return which scores are among the best, ties included, and above 0."""
    limit = np.partition(scores, -CANDIDATES)[-CANDIDATES] if len(scores) > CANDIDATES else 0.0
    chosen: npt.NDArray[np.bool_] = (scores >= limit) & (scores > 0)
    return chosen


def _concatenate(parts: Sequence[npt.NDArray[np.floating]]) -> Floats64:
    return np.concatenate([np.empty(0), *parts])
