"""Why an image is a hit: matches, their sets, weights and geometry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.features.decode import read_picture
from polyvoc.features.pictures import Pixels, Point, draw_matches
from polyvoc.kernels.verification import match_codes
from polyvoc.options import CODES, ScoringOptions
from polyvoc.scoring.codes import code_idf_squared, table_rows
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.query import QueryWords, Weights, weigh
from polyvoc.scoring.rules import cardinality_ratios
from polyvoc.scoring.segments import Candidate, code_norm_at, norms_of
from polyvoc.search.hits import Hit
from polyvoc.search.query import Query
from polyvoc.search.verify import AnyVerification, inliers_in, list_visits, outline, prepare_verification, verify, visit_arrays
from polyvoc.types import Array, CodeTable, FeatureCodes, Floats32, ImageFeatures, ImageRef, Region, Source, Words, with_planes
from polyvoc.vocabulary.codes import CodedQuery

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True, eq=False)
class Explanation:
    """Why an image is a hit: one row per pair of matching features, heaviest first. K: the vocabularies that vote."""

    hit: Hit
    image_sets: bool  # whether the sets that decide the weights are of images, not of features
    query: npt.NDArray[np.int32]  # [m] feature number in the query
    feature: npt.NDArray[np.int32]  # [m] feature number in the image of the index
    mask: npt.NDArray[np.int32]  # [m] bit k is set if both have the same word of vocabulary k
    # [m] the set that decides the weight: `mask`, or with sets of images the union of the masks of all features of the image
    # that match the query feature
    set_mask: npt.NDArray[np.int32]
    words: Words  # [m, K] the word of vocabulary k that both have, -1 where their words differ
    weight: Floats32  # [m] share of the score before burstiness
    ratio: Floats32  # [m] cardinality ratio of the lists of `set_mask`; of all K where it is only one
    distance: npt.NDArray[np.int32]  # [m, K] Hamming distance, -1 where the words differ or there are no signatures
    query_xy: Floats32  # [m, 2]
    feature_xy: Floats32  # [m, 2]
    inlier: npt.NDArray[np.bool_]  # [m] whether it is consistent with the transform
    transform: npt.NDArray[np.float64] | None  # [2, 3] positions in the query to positions in the image; None: not confirmed
    region: Region | None = None  # of the query photograph
    sources: Callable[[], tuple[Source, Source]] | None = field(default=None, repr=False)  # files of both, if they may be read

    def draw(self, long_side: int = 640, limit: int = 100, all_matches: bool = False) -> Image:
        """Return a picture of both photographs with up to `limit` matches, heaviest first, and the outline of the query.

        Matches that are consistent with the transform are green; with `all_matches` the others are there, too, in grey.
        """
        query, image = (ShownPhotograph.of(source, long_side) for source in self.read_sources())
        lines, corners = self.lines(query, image, limit, all_matches)
        return draw_matches(query.pixels, image.pixels, lines, corners)

    def read_sources(self) -> tuple[Source, Source]:
        """Return where the files of query and image are, or their bytes; raise an error if they may not be read."""
        if self.sources is None:
            raise OptionError("draw needs both photographs: use an explanation made by Index.explain")
        return self.sources()

    def lines(self, query: ShownPhotograph, image: ShownPhotograph, limit: int,
              all_matches: bool) -> tuple[list[tuple[Point, Point, bool]], list[Point]]:  # fmt: skip
        """Return up to `limit` matches as (point, point, inlier) in pictures of both photographs, and the outline there."""
        rows = (np.arange(len(self.query)) if all_matches else np.flatnonzero(self.inlier))[:limit]
        ends = (query.points(self.query_xy[rows]), image.points(self.feature_xy[rows]))
        corners = () if self.region is None or self.transform is None else outline(self.region, self.transform)
        return list(zip(*ends, self.inlier[rows].tolist(), strict=True)), image.points(np.array(corners).reshape(-1, 2))

    def as_dict(self, region: Region | None, frame: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """Return plain values, with at most `limit` matches, the heaviest. region: of the query, by default its whole frame.

        Only matches that vote or are inliers count: features may share a word and yet be too far apart in Hamming space.
        """
        n_vocabularies = self.words.shape[1]
        counted = np.flatnonzero((self.weight > 0) | self.inlier)
        box = region or (0, 0, frame["width"], frame["height"])
        return {
            "score": float(self.weight.sum()),
            "inliers": int(self.inlier.sum()),
            "outline": None if self.transform is None else outline(box, self.transform),
            "transform": None if self.transform is None else self.transform.tolist(),
            "n_vocabularies": n_vocabularies,
            "image_sets": self.image_sets,
            "n_matches": len(counted),
            "matches": [_match_as_dict(self, number, n_vocabularies) for number in counted[:limit].tolist()],
        }


@dataclass(frozen=True, eq=False)
class ShownPhotograph:
    """A picture of a photograph, and how much smaller it is."""

    pixels: Pixels  # [h, w, 3]
    scale: Array  # [2] pixels of it per pixel of the photograph

    @classmethod
    def of(cls, source: Source, long_side: int) -> ShownPhotograph:
        """Read a photograph, reduced to some pixels on its long side."""
        pixels, full = read_picture(source, long_side)
        return cls(pixels, np.array(pixels.shape[1::-1]) / full)

    def points(self, xy: Array) -> list[Point]:
        """Return positions in the photograph [n, 2] as points of the picture."""
        return [(x, y) for x, y in (xy * self.scale).tolist()]


def explain(engine: Engine, query: Query, options: ScoringOptions, ref: ImageRef, hit: Hit) -> Explanation:
    """Match a query's features with those of one image, heaviest match first."""
    (image,) = engine.image_features([ref])
    if options.merge == CODES:
        return _explain_codes(engine, query, options, ref, hit, image)
    plan = engine.plan(options)
    words = engine.query_of(None, query.words, query.signatures, plan)
    assert isinstance(words, QueryWords)
    n_vocabularies = len(words.sizes)
    pairs, terms, distances = _matches(words, image, n_vocabularies)
    q, f = pairs.T
    mask = ((terms >= 0) << np.arange(n_vocabularies)).sum(axis=1)
    # Cardinality ratios are returned whatever the rule: how far the lists overlap explains a match under each of them.
    counts = engine.counts(words, plan) if n_vocabularies > 1 else np.zeros((len(words.words), 2), np.int64)
    weights = weigh(words, counts, engine.statistics, plan)
    set_mask = _image_masks(q, mask, len(words.words)) if plan.image_sets else mask
    idf = np.where(terms >= 0, weights.idf[q[:, None], np.arange(n_vocabularies), terms], 0.0)
    norm = float(engine.shards.at(norms_of, [(ref[0], plan.norm)])[0][ref[1]])
    weight = _weights(weights, q, set_mask, idf, distances) / (norm if norm > 0 else 1)
    verified, inlier = _verify(engine, query, options, ref, pairs)
    order = np.lexsort((f, q, -weight))
    return Explanation(
        hit=hit,
        image_sets=plan.image_sets,
        query=q[order].astype(np.int32),
        feature=f[order].astype(np.int32),
        mask=mask[order].astype(np.int32),
        set_mask=set_mask[order].astype(np.int32),
        words=_shared_words(words, q, terms)[order].astype(np.int32),
        weight=weight[order].astype(np.float32),
        ratio=_ratios(counts, q, set_mask)[order].astype(np.float32),
        distance=distances[order].astype(np.int32),
        query_xy=query.checked_keypoints.xy[q[order]].astype(np.float32),
        feature_xy=image.keypoints.xy[f[order]].astype(np.float32),
        inlier=inlier[order],
        transform=verified.transform,
    )


def _explain_codes(engine: Engine, query: Query, options: ScoringOptions, ref: ImageRef, hit: Hit,
                   image: ImageFeatures) -> Explanation:  # fmt: skip
    """Explain by codes: one vocabulary, the fine one, of whose words a query feature visits several."""
    plan = engine.plan(options)
    codes = engine.query_of(query.codes, None, None, plan)  # raises if the index has none
    assert isinstance(codes, CodedQuery) and plan.code_table is not None and image.codes is not None
    q, f, word, row, distance = match_features(codes, image.codes, plan.code_table)
    weight = code_idf_squared(codes, engine.statistics)[q] * np.maximum(np.array(plan.code_table.rows)[row, distance], 0.0)
    (norm,) = engine.at(code_norm_at, [ref])
    weight /= norm if norm > 0 else 1
    prepared = prepare_verification(engine, query, options)
    verified = verify(engine, prepared, [ref])[ref]
    inlier = _are_inliers(engine, prepared, ref, np.column_stack([q, f]))
    order = np.lexsort((f, q, -weight))
    one = np.ones(len(q), np.int32)
    return Explanation(
        hit=hit,
        image_sets=False,
        query=q[order].astype(np.int32),
        feature=f[order].astype(np.int32),
        mask=one,
        set_mask=one,
        words=word[order, None].astype(np.int32),
        weight=weight[order].astype(np.float32),
        ratio=np.ones(len(q), np.float32),
        distance=distance[order, None].astype(np.int32),
        query_xy=query.checked_keypoints.xy[q[order]].astype(np.float32),
        feature_xy=image.keypoints.xy[f[order]].astype(np.float32),
        inlier=inlier[order],
        transform=verified.transform,
    )


def match_features(query: CodedQuery, image: FeatureCodes, table: CodeTable) -> tuple[Array, Array, Array, Array, Array]:
    """Return the matches of a query with the codes of one image: query feature, feature, word, row of the table, distance."""
    size = int(max(query.words.max(initial=0), image.words.max(initial=0))) + 1
    visited = list_visits(query, size, max(query.words.size, 1))
    arrays = visit_arrays(query, np.zeros(query.words.shape, np.int64))
    order = np.argsort(image.words, kind="stable")
    starts = np.searchsorted(image.words[order], np.arange(size + 1)).astype(np.uint32)
    lists = starts, np.ascontiguousarray(image.codes[order].T), np.zeros(len(order), np.uint16)
    every = np.zeros((1, len(table.rows[0])), np.int32)  # all are matches, whatever their distance
    found, n = match_codes(image.words, 0, lists, arrays, visited, every, table.reach, np.empty((64, 4), np.int64))
    q, f, _, distance = found[:n].T
    word = image.words[f].astype(np.int64)
    at = (query.words[q] == word[:, None]).argmax(axis=1)
    return q, f, word, table_rows(query, table)[q, at], distance


def _are_inliers(engine: Engine, prepared: AnyVerification, ref: ImageRef, pairs: Array) -> npt.NDArray[np.bool_]:
    """Return which of the pairs (query feature, feature) are inliers [m]."""
    (inliers,) = engine.at(inliers_in, [ref], prepared)
    inlier_set = set(map(tuple, inliers.tolist()))
    return np.array([tuple(pair) in inlier_set for pair in pairs.tolist()], bool)


def _verify(engine: Engine, query: Query, options: ScoringOptions, ref: ImageRef, pairs: Array) -> tuple[Candidate, Array]:
    """Verify one image as a search would; and return which of the pairs (query feature, feature) are its inliers [m].

    All vocabularies verify, also where fewer vote (b0, `vocabularies`): inliers that these do not match have no pair.
    """
    prepared = prepare_verification(engine, query, options)
    verified = verify(engine, prepared, [ref])[ref]
    return verified, _are_inliers(engine, prepared, ref, pairs)


def _ratios(counts: Array, q: Array, mask: Array) -> Array:
    """Return the cardinality ratio of the set of each match [m]: of its lists, or where it is only one of all K."""
    ratios = cardinality_ratios(counts)
    alone = mask & (mask - 1) == 0
    return np.asarray(np.where(alone, ratios[q, -1], ratios[q, mask]))


def _weights(weights: Weights, q: Array, mask: Array, idf: Array, distances: Array) -> Array:
    """Return the weights of matches [m] as the kernels compute them. idf, distances: [m, K], 0 and -1 for other lists."""
    shared = distances >= 0
    if not len(weights.cells):
        near = np.where(shared, weights.hamming[np.maximum(distances, 0)], 1.0)
        return np.asarray(weights.factors[q, mask] * (idf * near).sum(axis=1))
    n_lists = shared.sum(axis=1)
    mean = (2 * np.where(shared, distances, 0).sum(axis=1) + n_lists) // (2 * n_lists)
    return np.asarray(idf.sum(axis=1) / n_lists * np.maximum(weights.table[weights.cells[q, mask], mean], 0.0))


def _matches(query: QueryWords, image: ImageFeatures, n_vocabularies: int) -> tuple[Array, Array, Array]:
    """Return the pairs (query feature, feature) that share a word [m, 2]; per vocabulary the assignment that they share, or
    -1 [m, K]; and their Hamming distance, or -1 [m, K]."""
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
    """Return the words that matches share [m, K], -1 for lists that do not hold the match."""
    words = query.words[q[:, None], np.arange(terms.shape[1]), np.maximum(terms, 0)]
    return np.where(terms >= 0, words, -1)


def _image_masks(q: Array, mask: Array, n_queries: int) -> Array:
    """Return the set of the image for the query feature of each match [m]: the union of the masks of its matches."""
    united = np.zeros(n_queries, np.int64)
    np.bitwise_or.at(united, q, mask)
    return united[q]


def _match_as_dict(found: Explanation, number: int, n_vocabularies: int) -> dict[str, Any]:
    set_mask = int(found.set_mask[number])
    return {
        "query_xy": found.query_xy[number].tolist(),
        "image_xy": found.feature_xy[number].tolist(),
        "words": [None if word < 0 else word for word in found.words[number].tolist()],
        "mask": int(found.mask[number]),
        "set_mask": set_mask,
        "sets": name_set(set_mask, n_vocabularies),
        "ratio": float(found.ratio[number]),
        "weight": float(found.weight[number]),
        "distances": [None if distance < 0 else distance for distance in found.distance[number].tolist()],
        "inlier": bool(found.inlier[number]),
    }


def name_set(mask: int, n_vocabularies: int) -> str:
    """Return the lists of a set: "intersection" if it is in all."""
    lists = [str(k + 1) for k in range(n_vocabularies) if mask >> k & 1]
    if len(lists) == n_vocabularies:
        return "intersection"
    return f"vocabular{'y' if len(lists) == 1 else 'ies'} {', '.join(lists)}"
