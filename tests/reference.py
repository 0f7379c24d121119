"""The rules of merging, and scoring by codes, as they are defined: slow, dense, in Python sets of features and float64.

This is the oracle that the engine is tested against. It has no postings, runs, segments or masks:
for each query feature it walks over the whole collection. Zheng, Wang, Zhou, Tian, "Bayes Merging of Multiple
Vocabularies for Scalable Image Retrieval", CVPR 2014; numbers of equations are those of the paper.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.options import SearchOptions
from polyvoc.types import CodeTable, FeatureCodes
from polyvoc.vocabulary.codes import CodedQuery

Floats64 = npt.NDArray[np.float64]
Array = npt.NDArray[Any]
Feature = tuple[int, int]  # (image, number of the feature within the image)
Vocabularies = frozenset[int]

CLIP = 1e-6  # a r + b stays within [CLIP, 1 - CLIP]
UNIT = 1024  # weights of matches of codes are whole numbers of 1 / UNIT


def score_words(
    images: Sequence[Array],  # N times [n_i, K]
    sizes: Sequence[int],  # K
    words: Array,  # [q, K] or [q, K, A], -1 = none
    options: SearchOptions,
    image_signatures: Sequence[Array] | None = None,  # uint64, shaped as images; of 128 bits: one more axis, of two
    query_signatures: Array | None = None,  # uint64, shaped as words; likewise
) -> Floats64:
    """Return one score per image: its votes over its norm."""
    count = 1 if options.merge == "b0" else options.vocabularies or len(sizes)  # b0: any rule with the first vocabulary alone
    histograms = [_histogram(images, k, sizes[k]) for k in range(count)]
    idfs = [_idf(histogram, options.idf) for histogram in histograms]
    collection = {(i, n): image[n, :count].tolist() for i, image in enumerate(images) for n in range(len(image))}
    votes = np.zeros(len(images))
    for x in range(len(words)):
        assigned = [np.atleast_1d(words[x, k]).tolist() for k in range(count)]
        lists = [{y for y, w in collection.items() if w[k] in assigned[k]} for k in range(count)]

        def word_weight(y: Feature, m: int) -> float:
            return float(idfs[m][collection[y][m]]) ** options.idf_power

        def distance(y: Feature, m: int, x: int = x) -> int:
            assert image_signatures is not None
            assert query_signatures is not None
            mine = _signature_for(collection[y][m], words[x, m], query_signatures[x, m])
            return (mine ^ _joined(image_signatures[y[0]][y[1], m])).bit_count()

        for (image, _), vote in _votes(lists, word_weight, distance, len(images), options).items():
            votes[image] += vote
    norms = _norms(histograms, idfs, options.norm)
    return np.array([v / n if v > 0 and n > 0 else 0.0 for v, n in zip(votes, norms, strict=True)])


def _votes(
    lists: list[set[Feature]],  # A_k of one query feature
    word_weight: Callable[[Feature, int], float],  # idf of a feature's word in a vocabulary, to its power
    distance: Callable[[Feature, int], int],  # Hamming, of a feature in a vocabulary
    images: int,
    options: SearchOptions,
) -> dict[Feature, float]:
    """Return what each matching feature contributes for one query feature."""
    ratio_lists: list[set[Any]] = [*lists]
    by_image = options.sets == "image" or (options.sets == "auto" and options.merge in ("b2", "bayes"))
    if by_image:
        ratio_lists = [{image for image, _ in features} for features in lists]
    plain: dict[Feature, float] = {}
    bursty: dict[Feature, float] = {}
    for y in set().union(*lists):
        own = _members(y, lists)  # M(y)
        together = _members(y[0], ratio_lists) if by_image else own  # M(image)
        if options.merge == "likelihood":
            mean = sum(word_weight(y, m) for m in own) / len(own)
            score = mean * evidence(together, ratio_lists, [distance(y, m) for m in own], options)
        else:
            terms = [
                word_weight(y, m) * (1.0 if options.hamming is None else hamming_weight(distance(y, m), options)) for m in own
            ]
            score = factor(together, ratio_lists, images, options) * sum(terms)
        if score > 0:
            damped = options.merge != "bayes" or len(together) == 1  # the paper damps the difference set only (section 5)
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
    """Return what the rule multiplies the sum over M with (Eqs. 2, 3, 11; `posterior` weights both sets)."""
    if options.merge in ("b0", "b1"):
        return 1.0
    if options.merge == "b2":
        return 1.0 if len(together) == len(lists) else 0.0
    if len(together) >= 2:
        return weight_intersection(ratio([lists[m] for m in together]), images, options)
    return weight_difference(ratio(lists), images, options) if options.merge == "posterior" else 1.0


def evidence(together: Vocabularies, lists: Sequence[set[Any]], distances: list[int], options: SearchOptions) -> float:
    """Return the log-likelihood ratio of a match by its set, the ratio and the mean distance, 0 where it is negative."""
    table = options.likelihood_table
    assert table is not None
    h = math.floor(sum(distances) / len(distances) + 0.5)  # half a bit is rounded up
    if options.hamming is not None and h > options.hamming:
        return 0.0
    r = ratio([lists[m] for m in together]) if len(together) >= 2 else ratio(lists)
    place = sum(edge < r for edge in table.edges)
    group = table.groups[sum(1 << m for m in together)]
    return max(0.0, table.rows[group * (len(table.edges) + 1) + place][h])


def ratio(lists: Iterable[set[Any]]) -> float:
    """Return |intersection| / |union| (Eq. 8), whatever other lists also hold an element."""
    lists = list(lists)
    return len(set.intersection(*lists)) / len(set.union(*lists))


def weight_intersection(r: float, images: int, options: SearchOptions) -> float:
    """Return p(true match | y in the intersection): Eq. 7 with terms r, a r + b, ln(N c)."""
    return 1.0 / (1.0 + r / _line(r, options) * _prior_odds(images, options))


def weight_difference(r: float, images: int, options: SearchOptions) -> float:
    """Return p(true match | y outside the intersection): Eq. 7 for the complement; exactly 1 if r = 1."""
    return 1.0 / (1.0 + (1.0 - r) / (1.0 - _line(r, options)) * _prior_odds(images, options))


def _line(r: float, options: SearchOptions) -> float:
    a, b = options.line
    return min(max(a * r + b, CLIP), 1.0 - CLIP)


def _prior_odds(images: int, options: SearchOptions) -> float:
    return max(0.0, math.log(images * options.c))  # Eq. 9


def hamming_weight(h: int, options: SearchOptions) -> float:
    """Return exp(-h^2 / sigma^2) up to the threshold and 0 beyond it."""
    assert options.hamming is not None
    return math.exp(-(h**2) / options.sigma**2) if h <= options.hamming else 0.0


def _signature_for(word: int, assigned: Array, signatures: Array) -> int:
    """Return the query feature's signature that belongs to the assigned word."""
    every = np.atleast_1d(assigned).tolist()
    return _joined(np.reshape(signatures, (len(every), -1))[every.index(word)])


def _joined(planes: Array) -> int:
    """Return a signature of one or two uint64 as one number."""
    return sum(int(plane) << 64 * number for number, plane in enumerate(np.atleast_1d(planes)))


def score_codes(images: Sequence[FeatureCodes], query: CodedQuery, table: CodeTable) -> Floats64:
    """Return one score per image by codes: of each query feature the best match, over the norm of the image's word counts."""
    occurrences = Counter(word for image in images for word in image.words.tolist())
    votes = np.zeros(len(images))
    for x, visited in enumerate(query.words.tolist()):
        found = occurrences[visited[0]] if visited and visited[0] >= 0 else 0
        idf = max(0.0, math.log(len(images) / found)) if found else 0.0  # of the nearest word
        for number, image in enumerate(images):
            weights = [0]
            for a, word in enumerate(visited):
                row = table.rows[sum(edge < float(query.ratios[x, a]) for edge in table.edges)]
                for f in np.flatnonzero(image.words == word) if word >= 0 else []:
                    distance = code_distance(image.codes[f], query, x, a, table)
                    if distance is not None:
                        weights.append(round(idf**2 * (max(0.0, row[distance]) * UNIT)))
            votes[number] += max(weights)
    norms = [math.sqrt(sum(times**2 for times in Counter(image.words.tolist()).values())) for image in images]
    return np.array([vote / (UNIT * np.float32(norm)) if vote else 0.0 for vote, norm in zip(votes, norms, strict=True)])


def code_distance(code: Array, query: CodedQuery, x: int, a: int, table: CodeTable) -> int | None:
    """Return the asymmetric distance of a code to query feature x by its word a, None if too many bits differ.

    The magnitudes of the bits that differ, relative to all, in columns of the table: rounded down, by a factor of 32 bits.
    """
    differing = _joined(code) ^ _joined(query.codes[x, a])
    if differing.bit_count() > table.reach:
        return None
    magnitudes = query.magnitudes[x * query.words.shape[1] + a].tolist()
    apart = sum(magnitude for bit, magnitude in enumerate(magnitudes) if differing >> bit & 1)
    total = int(query.totals[x, a])
    return apart * (((len(table.rows[0]) - 1) << 32) // total) >> 32 if total else 0


def _burstiness(scores: dict[Feature, float], kind: str) -> dict[Feature, float]:
    """Damp one query feature's scores within each image (Jegou, Douze, Schmid, CVPR 2009), or keep the best."""
    if kind == "best":
        best: dict[int, Feature] = {}
        for y, s in scores.items():
            if y[0] not in best or s > scores[best[y[0]]]:
                best[y[0]] = y
        return {y: scores[y] for y in best.values()}
    if kind == "none":
        return scores
    total: defaultdict[int, float] = defaultdict(float)
    for y, s in scores.items():
        total[y[0]] += s
    return {y: s * math.sqrt(s / total[y[0]]) for y, s in scores.items()}


def _histogram(images: Sequence[Array], k: int, size: int) -> Floats64:
    """Count the words of vocabulary k, per image: [N, size]."""
    counts = np.zeros((len(images), size))
    for i, image in enumerate(images):
        for word in image[:, k].tolist():
            counts[i, word] += 1
    return counts


def _idf(histogram: Floats64, kind: str) -> Floats64:
    """Return the idf of each word: [size]; 0 for a word that does not occur."""
    images = len(histogram)
    if kind == "none":
        return np.asarray(histogram.any(axis=0), np.float64)
    counts = histogram.sum(axis=0) if kind == "average" else (histogram > 0).sum(axis=0)
    return np.array([max(0.0, math.log(images / n)) if n > 0 else 0.0 for n in counts])


def _norms(histograms: list[Floats64], idfs: list[Floats64], kind: str) -> Floats64:
    """Return the length of each image's vector of all vocabularies: [N]."""
    if kind == "none":
        return np.ones(len(histograms[0]))
    scales = [np.ones(len(idf)) for idf in idfs] if kind in ("tf", "features") else idfs
    counts = [np.sqrt(h) for h in histograms] if kind in ("sqrt-tf", "features") else histograms
    if kind == "distinct":
        counts = [(h > 0).astype(np.float64) for h in histograms]
    squares = [((h * scale) ** 2).sum(axis=1) for h, scale in zip(counts, scales, strict=True)]
    return np.asarray(np.sqrt(np.sum(squares, axis=0)))
