"""Why an image is a hit."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.index.segment import with_planes
from polyvoc.options import SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.query import QueryWords, Weights, weigh
from polyvoc.scoring.rules import cardinality_ratios
from polyvoc.search.hits import Hit
from polyvoc.search.query import Query
from polyvoc.search.verify import Found, match_table, outline, verify
from polyvoc.types import Array, Floats32, ImageRef, ImageWords, Region, Words


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why a photograph answered: one row per pair of matching features, heaviest first."""

    hit: Hit
    query: npt.NDArray[np.int32]  # [m] feature number in the query
    feature: npt.NDArray[np.int32]  # [m] feature number in the photograph of the collection
    mask: npt.NDArray[np.int32]  # [m] bit k is set if vocabulary k gives both the same word
    words: Words  # [m, K] the word that vocabulary k gives both, -1 where their words differ
    weight: Floats32  # [m] share of the score before burstiness
    ratio: Floats32  # [m] cardinality ratio of the match's lists; of all K where only one holds it
    distance: npt.NDArray[np.int32]  # [m, K] Hamming distance, -1 where the words differ or there are no signatures
    query_xy: Floats32  # [m, 2]
    feature_xy: Floats32  # [m, 2]
    inlier: npt.NDArray[np.bool_]  # [m] does it agree with the arrangement of the others?
    transform: npt.NDArray[np.float64] | None  # [2, 3] places of the query to places of the photograph; None: no arrangement


def explain(engine: Engine, asked: Query, options: SearchOptions, place: ImageRef, hit: Hit) -> Explanation:
    """Match a query's features with those of the image at (segment, position), heaviest match first."""
    options = engine.settled(options)
    query = engine.query(asked.words, asked.signatures, options)
    (image,) = engine.sketches([place])
    n_vocabularies = len(query.sizes)
    pairs, terms, distances = _matches(query, image, n_vocabularies)
    q, f = pairs.T
    mask = ((terms >= 0) << np.arange(n_vocabularies)).sum(axis=1)
    # Those of the Bayes rules are told whatever the rule: how far the lists overlap explains a match under each of them.
    counts = engine.counts(query, replace(options, merge="posterior"))
    weights = weigh(query, counts, engine.statistics, options)
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
        query_xy=asked.sketch.keypoints.xy[q[order]].astype(np.float32),
        feature_xy=image.keypoints.xy[f[order]].astype(np.float32),
        inlier=inlier[order],
        transform=arranged.transform,
    )


def _arranged(engine: Engine, asked: Query, options: SearchOptions, place: ImageRef, pairs: Array) -> tuple[Found, Array]:
    """Verify one image as a search would; and tell which of the pairs (query feature, feature) are its inliers [m].

    The rule b0 votes with one vocabulary but is verified with all: inliers that it alone does not match have no pair.
    """
    found = verify(engine, asked.sketch, [place], options)[place]
    inliers = engine.inliers(asked.sketch, place, match_table(engine, options))
    agreeing = set(map(tuple, inliers.tolist()))
    return found, np.array([tuple(pair) in agreeing for pair in pairs.tolist()], bool)


def _ratios(counts: Array, q: Array, mask: Array) -> Array:
    """Give the cardinality ratio of the set of each match [m]: of its lists, or where only one holds it of all K."""
    ratios = cardinality_ratios(counts)
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


def _matches(query: QueryWords, image: ImageWords, n_vocabularies: int) -> tuple[Array, Array, Array]:
    """Give the pairs (query feature, feature) that share a word [m, 2]; per vocabulary the assignment that they share, or -1
    [m, K]; and their Hamming distance, or -1 [m, K]."""
    found = []  # rows: query feature, feature, vocabulary, assignment
    for k in range(n_vocabularies):
        words = image.words[:, k].astype(np.int64)
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
        stored = with_planes(image.signatures, 2)[f, vocabulary]
        distances[at, vocabulary] = np.bitwise_count(signatures ^ stored).sum(axis=1)
    return pairs, terms, distances


def _shared_words(query: QueryWords, q: Array, terms: Array) -> Array:
    """Give the words that matches share [m, K], -1 for lists that do not hold the match."""
    words = query.words[q[:, None], np.arange(terms.shape[1]), np.maximum(terms, 0)]
    return np.where(terms >= 0, words, -1)


def _image_masks(q: Array, mask: Array, n_queries: int) -> Array:
    united = np.zeros(n_queries, np.int64)
    np.bitwise_or.at(united, q, mask)
    return united[q]


def explanation_as_dict(found: Explanation, region: Region | None, frame: dict[str, Any], limit: int) -> dict[str, Any]:
    """Give an explanation as plain values, with at most `limit` matches, the heaviest.

    Features may share a word and yet say nothing, being too far apart in Hamming space: only those count that vote or agree.
    """
    n_vocabularies = found.words.shape[1]
    speaking = np.flatnonzero((found.weight > 0) | found.inlier)
    box = region or (0, 0, frame["width"], frame["height"])
    transform = found.transform
    return {
        "score": float(found.weight.sum()),
        "inliers": int(found.inlier.sum()),
        "outline": None if transform is None else outline(box, transform),
        "transform": None if transform is None else transform.tolist(),
        "n_vocabularies": n_vocabularies,
        "n_matches": len(speaking),
        "matches": [_match_as_dict(found, number, n_vocabularies) for number in speaking[:limit].tolist()],
    }


def _match_as_dict(found: Explanation, number: int, n_vocabularies: int) -> dict[str, Any]:
    mask = int(found.mask[number])
    return {
        "query_xy": found.query_xy[number].tolist(),
        "image_xy": found.feature_xy[number].tolist(),
        "words": [None if word < 0 else word for word in found.words[number].tolist()],
        "mask": mask,
        "sets": name_set(mask, n_vocabularies),
        "ratio": float(found.ratio[number]),
        "weight": float(found.weight[number]),
        "distances": [None if distance < 0 else distance for distance in found.distance[number].tolist()],
        "inlier": bool(found.inlier[number]),
    }


def name_set(mask: int, n_vocabularies: int) -> str:
    """Say which lists hold a match: "intersection" if all do."""
    held = [str(k + 1) for k in range(n_vocabularies) if mask >> k & 1]
    if len(held) == n_vocabularies:
        return "intersection"
    return f"vocabular{'y' if len(held) == 1 else 'ies'} {', '.join(held)}"
