"""Why did this photograph answer? The matching features of one image: their sets, ratios, weights, and their arrangement.

The same formulas as in the kernels, written out for one image, where clarity counts more than speed.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc import merging, scoring, searching
from polyvoc.engine import Engine
from polyvoc.operations import Place
from polyvoc.records import Explanation, Hit, SearchOptions
from polyvoc.scoring import Query, Weights
from polyvoc.searching import Asked, Found
from polyvoc.segment import with_planes

Array = npt.NDArray[Any]


def explain(engine: Engine, asked: Asked, options: SearchOptions, place: Place, hit: Hit) -> Explanation:
    """Match a query's features with those of the image at (segment, position), heaviest match first."""
    options = engine.settled(options)
    query = engine.query(asked.words, asked.signatures, options)
    image = engine.features_at(place)
    n_vocabularies = len(query.sizes)
    pairs, terms, distances = _matches(query, image, n_vocabularies)
    q, f = pairs.T
    mask = ((terms >= 0) << np.arange(n_vocabularies)).sum(axis=1)
    # Those of the Bayes rules are told whatever the rule: how far the lists overlap explains a match under each of them.
    counts = engine.counts(query, replace(options, merge="posterior"))
    weights = scoring.weigh(query, counts, engine.statistics, options)
    set_mask = _image_masks(q, mask, len(query.words)) if options.sets == "image" else mask
    idf = np.where(terms >= 0, weights.idf[q[:, None], np.arange(n_vocabularies), terms], 0.0)
    norm = engine.norm_at(place, options) * engine.scale(query, options)
    weight = _weights(weights, q, set_mask, idf, distances) / (norm if norm > 0 else 1)
    arranged, inlier = _arranged(engine, asked, options, place, pairs)
    order = np.lexsort((f, q, -weight))
    return Explanation(
        hit=hit,
        query=q[order].astype(np.int32),
        feature=f[order].astype(np.int32),
        mask=mask[order].astype(np.int32),
        words=_shared_words(query, q, terms)[order].astype(np.int32),
        weight=weight[order].astype(np.float32),
        ratio=_ratios(counts, q, set_mask)[order].astype(np.float32),
        distance=distances[order].astype(np.int32),
        query_xy=asked.sketch.frames.xy[q[order]].astype(np.float32),
        feature_xy=np.asarray(image["xy"])[f[order]],
        inlier=inlier[order],
        transform=arranged.transform,
    )


def _arranged(engine: Engine, asked: Asked, options: SearchOptions, place: Place, pairs: Array) -> tuple[Found, Array]:
    """Verify one image as a search would; and tell which of the pairs (query feature, feature) are its inliers [m].

    The rule b0 votes with one vocabulary but is verified with all: inliers that it alone does not match have no pair.
    """
    found = searching.verify(engine, asked.sketch, [place], options)[place]
    inliers = engine.inliers(asked.sketch, place, searching.match_table(engine, options))
    agreeing = set(map(tuple, inliers.tolist()))
    return found, np.array([tuple(pair) in agreeing for pair in pairs.tolist()], bool)


def _ratios(counts: Array, q: Array, mask: Array) -> Array:
    """Give the cardinality ratio of the set of each match [m]: of its lists, or where only one holds it of all K."""
    ratios = merging.ratios(counts)
    alone = mask & (mask - 1) == 0
    return np.asarray(np.where(alone, ratios[q, -1], ratios[q, mask]))


def _weights(weights: Weights, q: Array, mask: Array, idf: Array, distances: Array) -> Array:
    """Weigh matches [m] as the kernels do. idf, distances: [m, K], 0 and -1 for lists that do not hold the match."""
    held = distances >= 0
    if not len(weights.cells):
        near = np.where(held, weights.closeness[np.maximum(distances, 0)], 1.0)
        return np.asarray(weights.factors[q, mask] * (idf * near).sum(axis=1))
    order = held.sum(axis=1)
    mean = (2 * np.where(held, distances, 0).sum(axis=1) + order) // (2 * order)
    return np.asarray(idf.sum(axis=1) / order * np.maximum(weights.table[weights.cells[q, mask], mean], 0.0))


def _matches(query: Query, image: dict[str, Array], n_vocabularies: int) -> tuple[Array, Array, Array]:
    """Give the pairs (query feature, feature) that share a word [m, 2]; per vocabulary the assignment that they share, or -1
    [m, K]; and their Hamming distance, or -1 [m, K]."""
    found = []  # rows: query feature, feature, vocabulary, assignment
    for k in range(n_vocabularies):
        words = image["words"][:, k].astype(np.int64)
        for a in range(query.words.shape[2]):
            equal = np.argwhere(query.words[:, k, a][:, None] == words[None, :])
            found.append(np.column_stack([equal, np.full(len(equal), k), np.full(len(equal), a)]))
    rows = np.concatenate(found)
    pairs, inverse = np.unique(rows[:, :2], axis=0, return_inverse=True)
    terms = np.full((len(pairs), n_vocabularies), -1)
    terms[inverse.ravel(), rows[:, 2]] = rows[:, 3]
    distances = np.full(terms.shape, -1)
    if query.signatures is not None:
        at, vocabulary = np.nonzero(terms >= 0)
        q, f = pairs[at].T
        signatures = query.signatures[q, vocabulary, terms[at, vocabulary]]
        stored = with_planes(image["signatures"], 2)[f, vocabulary]
        distances[at, vocabulary] = np.bitwise_count(signatures ^ stored).sum(axis=1)
    return pairs, terms, distances


def _shared_words(query: Query, q: Array, terms: Array) -> Array:
    """Give the words that matches share [m, K], -1 for lists that do not hold the match."""
    words = query.words[q[:, None], np.arange(terms.shape[1]), np.maximum(terms, 0)]
    return np.where(terms >= 0, words, -1)


def _image_masks(q: Array, mask: Array, n_queries: int) -> Array:
    united = np.zeros(n_queries, np.int64)
    np.bitwise_or.at(united, q, mask)
    return united[q]
