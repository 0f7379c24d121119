"""The rules of merging as they are defined: slow, dense, in Python sets of features and float64.

This is the oracle that the engine is tested against. It knows nothing of postings, runs, segments or masks:
for each query feature it walks over the whole collection. Zheng, Wang, Zhou, Tian, "Bayes Merging of Multiple
Vocabularies for Scalable Image Retrieval", CVPR 2014; numbers of equations are those of the paper.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.records import SearchOptions

Floats64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
Feature = tuple[int, int]  # (image, number of the feature within the image)
Vocabularies = frozenset[int]

CLIP = 1e-6  # a r + b stays within [CLIP, 1 - CLIP]


def score_words(
    images: Sequence[Array],  # N times [n_i, K]
    sizes: Sequence[int],  # K
    words: Array,  # [q, K] or [q, K, A], -1 = none
    options: SearchOptions,
    image_signatures: Sequence[Array] | None = None,  # uint64, shaped as images
    query_signatures: Array | None = None,  # uint64, shaped as words
) -> Floats64:
    """Give one score per image: its votes over its norm."""
    count = 1 if options.merge == "b0" else len(sizes)  # b0 is any rule with the first vocabulary alone
    histograms = [_histogram(images, k, sizes[k]) for k in range(count)]
    idfs = [_idf(histogram, options.idf) for histogram in histograms]
    collection = {(i, n): image[n, :count].tolist() for i, image in enumerate(images) for n in range(len(image))}
    votes = np.zeros(len(images))
    for x in range(len(words)):
        assigned = [np.atleast_1d(words[x, k]).tolist() for k in range(count)]
        lists = [{y for y, w in collection.items() if w[k] in assigned[k]} for k in range(count)]

        def term(y: Feature, m: int, x: int = x) -> float:
            word = collection[y][m]
            squared_idf = float(idfs[m][word]) ** 2
            if options.hamming is None:
                return squared_idf
            assert image_signatures is not None
            assert query_signatures is not None
            mine = _signature_for(word, words[x, m], query_signatures[x, m])
            return squared_idf * hamming_weight(mine, int(image_signatures[y[0]][y[1], m]), options)

        for (image, _), vote in _votes(lists, term, len(images), options).items():
            votes[image] += vote
    norms = _norms(histograms, idfs, options.norm)
    return np.array([v / n if v > 0 and n > 0 else 0.0 for v, n in zip(votes, norms, strict=True)])


def _votes(
    lists: list[set[Feature]],  # A_k of one query feature
    term: Callable[[Feature, int], float],  # idf^2 * HE of a feature in a vocabulary
    images: int,
    options: SearchOptions,
) -> dict[Feature, float]:
    """Give what each matching feature contributes for one query feature."""
    ratio_lists: list[set[Any]] = [*lists]
    if options.sets == "image":
        ratio_lists = [{image for image, _ in features} for features in lists]
    plain: dict[Feature, float] = {}
    bursty: dict[Feature, float] = {}
    for y in set().union(*lists):
        own = _members(y, lists)  # M(y)
        together = own if options.sets == "feature" else _members(y[0], ratio_lists)  # M(image)
        score = factor(together, ratio_lists, images, options) * sum(term(y, m) for m in own)
        if score > 0:
            damped = burstiness_on(options) == "all" or len(together) == 1
            (bursty if damped else plain)[y] = score
    return {**plain, **_burstiness(bursty, options.burstiness)}


def _members(element: Hashable, lists: Sequence[set[Any]]) -> Vocabularies:
    return frozenset(k for k, elements in enumerate(lists) if element in elements)


def factor(
    together: Vocabularies,  # M
    lists: Sequence[set[Any]],  # A_k, as features or as images
    images: int,
    options: SearchOptions,
) -> float:
    """Give what the rule multiplies the sum over M with (Eqs. 2, 3, 11; `posterior` weighs both sets)."""
    if options.merge in ("b0", "b1"):
        return 1.0
    if options.merge == "b2":
        return 1.0 if len(together) == len(lists) else 0.0
    if len(together) >= 2:
        return weight_intersection(ratio([lists[m] for m in together]), images, options)
    return weight_difference(ratio(lists), images, options) if options.merge == "posterior" else 1.0


def ratio(lists: Iterable[set[Any]]) -> float:
    """Give |intersection| / |union| (Eq. 8), whatever other lists an element also stands in."""
    lists = list(lists)
    return len(set.intersection(*lists)) / len(set.union(*lists))


def weight_intersection(r: float, images: int, options: SearchOptions) -> float:
    """Give p(true match | y in the intersection): Eq. 7 with terms r, a r + b, ln(N c)."""
    return 1.0 / (1.0 + r / _line(r, options) * _prior_odds(images, options))


def weight_difference(r: float, images: int, options: SearchOptions) -> float:
    """Give p(true match | y outside the intersection): Eq. 7 for the complement; exactly 1 if r = 1."""
    return 1.0 / (1.0 + (1.0 - r) / (1.0 - _line(r, options)) * _prior_odds(images, options))


def _line(r: float, options: SearchOptions) -> float:
    a, b = options.line
    return min(max(a * r + b, CLIP), 1.0 - CLIP)


def _prior_odds(images: int, options: SearchOptions) -> float:
    return max(0.0, math.log(images * options.c))  # Eq. 9


def hamming_weight(x: int, y: int, options: SearchOptions) -> float:
    """Give exp(-h^2 / sigma^2) up to the threshold and 0 beyond it."""
    assert options.hamming is not None
    h = (x ^ y).bit_count()
    return math.exp(-(h**2) / options.sigma**2) if h <= options.hamming else 0.0


def _signature_for(word: int, assigned: Array, signatures: Array) -> int:
    """Give the query feature's signature that belongs to the assigned word."""
    position = np.atleast_1d(assigned).tolist().index(word)
    return int(np.atleast_1d(signatures)[position])


def burstiness_on(options: SearchOptions) -> str:
    """Resolve "auto": the paper damps the difference set only (section 5)."""
    if options.burstiness_on == "auto":
        return "difference" if options.merge == "bayes" else "all"
    return options.burstiness_on


def _burstiness(scores: dict[Feature, float], kind: str) -> dict[Feature, float]:
    """Damp one query feature's scores (Jegou, Douze, Schmid, CVPR 2009): within images first, then across."""
    if kind in ("intra", "both"):
        scores = _damped(scores, lambda y: y[0])
    if kind in ("inter", "both"):
        scores = _damped(scores, lambda y: None)
    return scores


def _damped(scores: dict[Feature, float], group: Callable[[Feature], Hashable]) -> dict[Feature, float]:
    total: defaultdict[Hashable, float] = defaultdict(float)
    for y, s in scores.items():
        total[group(y)] += s
    return {y: s * math.sqrt(s / total[group(y)]) for y, s in scores.items()}


def _histogram(images: Sequence[Array], k: int, size: int) -> Floats64:
    """Count the words of vocabulary k, per image: [N, size]."""
    counts = np.zeros((len(images), size))
    for i, image in enumerate(images):
        for word in image[:, k].tolist():
            counts[i, word] += 1
    return counts


def _idf(histogram: Floats64, kind: str) -> Floats64:
    """Give the idf of each word: [size]. A word that nobody has gets 0, which nothing ever meets."""
    images = len(histogram)
    if kind == "none":
        return np.ones(histogram.shape[1])
    counts = histogram.sum(axis=0) if kind == "average" else (histogram > 0).sum(axis=0)
    return np.array([max(0.0, math.log(images / n)) if n > 0 else 0.0 for n in counts])


def _norms(histograms: list[Floats64], idfs: list[Floats64], kind: str) -> Floats64:
    """Give the length of each image's vector of all vocabularies: [N]."""
    if kind == "none":
        return np.ones(len(histograms[0]))
    scales = idfs if kind == "tfidf" else [np.ones(len(idf)) for idf in idfs]
    squares = [((h * scale) ** 2).sum(axis=1) for h, scale in zip(histograms, scales, strict=True)]
    return np.asarray(np.sqrt(np.sum(squares, axis=0)))
