"""Late fusion with a global embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError
from polyvoc.kernels.vectors import COSINE_SCALE, cosine_products
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import HeldSegment
from polyvoc.search.probability import NoiseCurve
from polyvoc.types import Floats32, Floats64

NEAREST = 1e-3  # distances below are as good as none: rounding, or another copy of the file


def fuse(*witnesses: npt.ArrayLike, at: npt.NDArray[np.int64] | None = None) -> Floats64:
    """Give the joint evidence [n] for each of n images, in nats: the sum over witnesses, each with scores [n] from 0 up.

    `at` asks for some images alone, by number: the same values, sooner.
    """
    if not witnesses:
        raise OptionError("no scores to fuse; give those of one witness at least")
    lengths = [np.size(scores) for scores in witnesses]
    if len(set(lengths)) > 1:
        raise OptionError(f"scores of {lengths} images cannot be fused; let every witness score the same images")
    joint: Floats64 = np.sum([cosine_evidence(scores, at) for scores in witnesses], axis=0)
    return joint


def cosine_evidence(scores: npt.ArrayLike, at: npt.NDArray[np.int64] | None = None) -> Floats64:
    """Give ln(n / rank) for scores [n] from 0 up, in nats: what each tells, the same for c * scores ** p with any c, p > 0.

    With s(r) the score at rank r and the depth N = min(100, n / 4), but no deeper than scores are above 0,

        rank of s = N * (s(N) / s) ** a,  a = ln(N / H) / ln(s(H) / s(N)),  H = N / 2    above s(N): on the line
                  = number of scores not below s                                      otherwise: as it stands

    The order of the images stays. All scores equal say nothing: 0. `at` asks for some images alone, by number.
    """
    values = np.asarray(scores, np.float64)
    if values.ndim != 1 or not np.isfinite(values).all() or (values < 0).any():
        raise OptionError("scores should be a row of numbers from 0 up, one per image; repair what made them")
    curve = np.sort(values)  # [n]  worst first
    n = len(curve)
    if at is not None:
        values = values[at]
    ranks = np.log(n - np.searchsorted(curve, values))  # of each value; logarithms
    noise = NoiseCurve.of(curve[::-1], n)
    if noise is not None:
        above = values > noise.score
        ranks[above] = noise.log_ranks(values[above])
    found: Floats64 = math.log(max(n, 1)) - ranks
    return found


def cosine_similarity(cosines: npt.ArrayLike) -> Floats64:
    """Give scores [n] from cosines of unit vectors: one over the squared distance, up to a factor that `evidence` ignores.

    Not the cosine itself: near 1 it hardly moves, while the distance to the nearest image may be a tenth of that to the next.
    """
    scores: Floats64 = 1.0 / np.maximum(1.0 - np.asarray(cosines, np.float64), NEAREST)
    return scores


EMBEDDING_CANDIDATES = 1000  # best images of each witness that are weighed by both
NO_PIXELS = "fuse needs the pixels of the query: give a photograph, not its features or words"


def fuse_embedding(
    engine: Engine, scores: Sequence[Floats32], vector: Floats32 | None, threads: int | None = None
) -> list[Floats32]:
    """Give the joint evidence of words and vectors in nats, above 0 for all that either of them names, else 0.

    scores: of the words, one array per segment; vector: of the query [d]. Named are the best of each witness, ties included.
    Both weigh them against all live images, so it makes no difference to an image who else is named.
    """
    if vector is None:
        raise OptionError(NO_PIXELS)
    live = [part.live for part in engine.standing(threads)]
    words = np.maximum(_join_cosines([part[positions] for part, positions in zip(scores, live, strict=True)]), 0)
    near = _join_cosines(
        [part[positions] for part, positions in zip(embedding_scores(engine, vector, threads), live, strict=True)]
    )
    chosen = np.flatnonzero(_best_cosines(words) | _best_cosines(near))
    found = np.zeros(len(words), np.float32)
    # The last of all has no evidence for it, ln(n / n), and yet was named: everybody gets a little more.
    found[chosen] = fuse(words, near, at=chosen) + np.log1p(1 / max(len(words), 1))
    ends = np.cumsum([len(positions) for positions in live], dtype=np.int64)
    return [_spread(part, at, found[end - len(at) : end]) for part, at, end in zip(scores, live, ends, strict=True)]


def embedding_scores(engine: Engine, vector: Floats32, threads: int | None = None) -> list[npt.NDArray[np.float64]]:
    """Score every image by its vector, one array per segment: 0 where it has none."""
    scaled = np.ascontiguousarray(vector, np.float32) * COSINE_SCALE
    parts = engine.shards.each(embedding_scores_in, scaled, threads=threads)
    return [
        np.zeros(known.n_images) if part is None else cosine_similarity(part)
        for part, known in zip(parts, engine.shards.census, strict=True)
    ]


def embedding_scores_in(held: HeldSegment, scaled: Floats32) -> Floats32 | None:
    """Give the cosine of a vector with that of every image of a segment [n]; None if nobody has one."""
    rows = held.segment.embeddings
    if rows is None:
        return None
    if rows.shape != (held.segment.n_images, len(scaled)) or rows.dtype != np.float16:
        raise DamagedError(f"vectors {rows.dtype}{list(rows.shape)} do not compare with one of {len(scaled)} numbers; "
                           "run 'polyvoc check'")  # fmt: skip
    found = np.empty(len(rows), np.float32)
    cosine_products(rows.view(np.uint16), scaled, found)
    return found


def _best_cosines(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Tell which scores are among the best, and above 0."""
    limit = np.partition(scores, -EMBEDDING_CANDIDATES)[-EMBEDDING_CANDIDATES] if len(scores) > EMBEDDING_CANDIDATES else 0.0
    chosen: npt.NDArray[np.bool_] = (scores >= limit) & (scores > 0)
    return chosen


def _join_cosines(parts: Sequence[npt.NDArray[np.floating]]) -> npt.NDArray[np.float64]:
    return np.concatenate([np.empty(0), *parts])


def _spread(scores: Floats32, live: npt.NDArray[np.int64], found: Floats32) -> Floats32:
    """Put what was found of the live images of a segment into its place."""
    spread = np.zeros_like(scores)
    spread[live] = found
    return spread
