"""Call every kernel once on small inputs. As a program: write the results to the .npz file that is named.

So the kernels can also run with their bounds checked, and not compiled: numba reads both settings when it is imported.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import FrameType

import numpy as np
from numba import config

from polyvoc.features.sift import find_sift
from polyvoc.index.segment import Batch, Geometry, Segment
from polyvoc.index.words import word_offsets
from polyvoc.kernels import compiler
from polyvoc.kernels.checksums import checksum_blocks, verify_blocks
from polyvoc.kernels.codes import tally_codes
from polyvoc.kernels.images import SPARE, add_shared, share_images, vote_images
from polyvoc.kernels.lists import add_lists, add_lists_and_shared, add_squares, vote_hamming
from polyvoc.kernels.matches import BEST, INTRA, KEEP_ALL, count_matches, vote_matches
from polyvoc.kernels.near import vote_near
from polyvoc.kernels.pairs import keep_best, score_exact, vote_coarse
from polyvoc.kernels.postings import find_runs, read_ahead, runs_fit
from polyvoc.kernels.vectors import COSINE_SCALE, cosine_products
from polyvoc.kernels.verification import list_words, verify_candidates
from polyvoc.options import TrainOptions
from polyvoc.scoring.codes import CodeWeights, score_codes, table_rows
from polyvoc.scoring.query import QueryWords
from polyvoc.scoring.segments import Runs, shared_features
from polyvoc.search.verify import CodedVerification, verify_images
from polyvoc.types import Array, CodeTable, Floats32, Keypoints
from polyvoc.vocabulary.assign import Assigner, Cells, PrincipalAxes, project, sign
from polyvoc.vocabulary.codes import Coder
from polyvoc.vocabulary.train import LocalPointSet, train
from polyvoc.vocabulary.vocabulary import Decoder, Vocabulary, random_rotation

IMAGES, FEATURES, QUERIES = 8, 40, 10
SIZES = (3, 150, 4)  # lists and run directories of more than 64 entries, and shorter ones
FIRST, SECOND = slice(0, FEATURES), slice(FEATURES, 2 * FEATURES)  # features of an image, and of the same one enlarged
STARTS = np.arange(0, IMAGES * FEATURES + 1, FEATURES)
TABLE = CodeTable((1.0, 1.1), tuple(tuple(np.linspace(row, -1, 65).tolist()) for row in (4, 3, 2)), 24)


class Case:
    """A segment with K vocabularies and signatures of 64 or 128 bits, and a query of one of its images."""

    def __init__(self, sizes: tuple[int, ...], planes: int) -> None:
        rng = np.random.default_rng(planes)
        n = IMAGES * FEATURES
        words = np.column_stack([rng.integers(0, size, n) for size in sizes]).astype(np.int32)
        signatures = rng.integers(0, 1 << 64, (n, len(sizes), planes), dtype=np.uint64) & np.uint64(0xFFFFFF)
        words[SECOND], signatures[SECOND] = words[FIRST], signatures[FIRST]
        geometry, self.keypoints = _geometry(rng)
        batch = Batch(np.arange(IMAGES), STARTS, geometry, words, signatures if planes > 1 else signatures[:, :, 0])
        self.segment = Segment.build(batch, sizes)
        self.arrays, self.sizes, self.bits = self.segment.arrays, sizes, 64 * planes
        self.alive = self.segment.without([2]).alive
        self.words = words[:QUERIES].astype(np.int64)
        self.words[0, -1] = -1
        self.signatures = np.ascontiguousarray(signatures[:QUERIES])
        self.bases = np.array([*word_offsets(sizes), sum(sizes)])
        self.idf = rng.uniform(0.5, 2, (QUERIES, len(sizes))).astype(np.float32)
        self.factors = rng.uniform(0.5, 2, (QUERIES, 1 << len(sizes))).astype(np.float32)
        self.weights = np.exp(-np.arange(self.bits + 1) / 16).astype(np.float32)  # by Hamming distance
        self.weights[32:] = 0
        self.runs = find_runs(self.words, np.argsort(self.words[:, 1]), self.bases, *self.named("starts", *RUNS), 0)
        self.shared = (self.words, self.bases, *self.runs, *self.named("starts", "columns", "postings"))

    def named(self, *names: str) -> list[Array]:
        return [self.arrays[name] for name in names]

    def scores(self) -> Floats32:
        return np.zeros(IMAGES, np.float32)


RUNS = ("run_starts", "run_words", "run_lengths")


def call_all() -> dict[str, Array]:
    """Return what the kernels computed, by name."""
    results = _vectors() | _sift() | _checksums() | _codes(64) | _codes(70)
    for sizes, planes in ((SIZES, 1), (SIZES, 2), (SIZES[:2], 1), ((*SIZES, 3), 1)):
        case = Case(sizes, planes)
        results |= {f"{name} {sizes} {planes}": array for name, array in (_lists(case) | _votes(case) | _images(case)).items()}
    return results


def _lists(case: Case) -> dict[str, Array]:
    numbers = np.unique((case.words + case.bases[:-1])[case.words >= 0])
    weights = np.linspace(0, 1, len(numbers), dtype=np.float32)
    lists, shared, hamming, norms = case.scores(), case.scores(), case.scores(), np.zeros(IMAGES)
    add_lists(numbers, weights, *case.named("starts", "postings"), lists)
    query, counts = QueryWords(case.words[:, :, None], None, case.sizes), []
    for segment in (case.segment, case.segment.without([2])):
        found = shared_features(segment, query, Runs(*case.runs))
        counts.append(found.counts)
    own = (*query.own_lists, found.begins, found.ends, case.words, case.arrays["columns"], found.bits)
    more = case.factors[own[1], 1 | 1 << own[2]], case.factors
    add_lists_and_shared(numbers, weights, case.arrays["starts"], *own, *more, case.arrays["postings"], shared)
    vote_hamming(*case.shared, case.arrays["signatures"], case.signatures, case.idf, case.factors, case.weights, hamming)
    n_words = sum(case.sizes)
    add_squares(*case.named("starts", "postings"), np.arange(n_words, dtype=np.float64), 0, n_words, norms)
    votes = {"lists": lists, "shared": shared, "hamming": hamming, "norms": norms}
    votes["fit"] = np.array([runs_fit(*case.named("starts", "run_starts", "run_lengths"))])
    return {"runs": np.array(case.runs), "counts": np.array(counts), **votes}


def _votes(case: Case) -> dict[str, Array]:
    results = {}
    cells = np.tile(np.arange(1 << len(case.sizes)), (QUERIES, 1))
    table = np.linspace(5, -2, cells.shape[1] * (case.bits + 1), dtype=np.float32).reshape(cells.shape[1], -1)
    rules = {"table": (cells, table), "sums": (np.empty((0, 0), np.int64), np.empty((0, 0), np.float32))}
    two = np.stack([case.words, np.where(case.words > 0, case.words - 1, -1)], axis=2)
    codes = np.arange(3 ** len(case.sizes))
    masks = sum(((codes // 3**k % 3 > 0).astype(np.int64) << k for k in range(len(case.sizes))), 0 * codes)
    lists = (two, case.bases, *case.named("starts", *RUNS, "columns", "postings"))
    signed = (case.arrays["signatures"], np.ascontiguousarray(np.repeat(case.signatures[:, :, None], 2, axis=2)))
    idf = np.repeat(case.idf[:, :, None], 2, axis=2)
    for rule, (rows, values) in rules.items():
        for burstiness in (KEEP_ALL, BEST, INTRA):
            near, matches = case.scores(), case.scores()
            weights = (case.factors, case.weights, rows, values)
            vote_near(
                *case.shared, case.arrays["signatures"], case.signatures, case.idf, *weights, case.alive, burstiness, True,
                near
            )  # fmt: skip
            vote_matches(*lists, *signed, idf, *weights, case.alive, masks, True, burstiness, False, matches)
            results |= {f"near {rule} {burstiness}": near, f"matches {rule} {burstiness}": matches}
    counts = np.zeros((3, QUERIES, 1 << len(case.sizes)), np.int64)
    count_matches(*lists, case.alive, masks, counts[0])
    by_list = (two, case.bases, *case.named("starts", "postings"))
    shared = _shared(by_list, case.segment.without([2]).alive, idf, counts[1])
    for burstiness in (KEEP_ALL, BEST, INTRA):
        images = case.scores()
        vote_images(*by_list, *shared[:2], shared[3], *signed, idf, *weights[:2], burstiness, images)
        results[f"images {burstiness}"] = images
    corrected = case.scores()
    add_shared(*shared[:4], case.factors, corrected)
    of_two = _shared((case.words[:, :2, None], *by_list[1:]), case.alive, idf[:, :2, :1], counts[2, :, :4])
    names = (f"shared {what}{of}" for of in ("", " of two") for what in ("images", "masks", "votes", "ranges", "sums"))
    return results | {"counts": counts, "corrected": corrected} | dict(zip(names, (*shared, *of_two), strict=True))


def _shared(lists: tuple[Array, ...], alive: Array, weights: Array, counts: Array) -> tuple[Array, ...]:
    """Return what `share_images` finds: images, masks, votes, ranges, sums."""
    n_queries, most = len(lists[0]), len(lists[3]) * len(lists[0]) + SPARE
    masked = most if lists[0].shape[1] > 2 else 0
    found = np.zeros(most, np.uint16), np.zeros(masked, np.uint16), np.zeros(most, np.float32)
    order, ranges, sums = np.arange(n_queries), np.zeros((n_queries, 2), np.int64), np.zeros(IMAGES, np.float32)
    n = share_images(lists[0], order, np.arange(n_queries + 1), *lists[1:], alive, weights, *found, ranges, counts, sums)
    return *(array[:n] for array in found), ranges, sums


def _images(case: Case) -> dict[str, Array]:
    n_vocabularies, positions = len(case.sizes), np.arange(1, IMAGES)
    bases = np.concatenate([[0], np.cumsum(np.add(case.sizes, 1))])
    lists = (bases, *list_words(case.words, bases, QUERIES))
    every = np.where(case.words >= 0, case.words + case.bases[:-1], 0).T.ravel()
    order = np.argsort(every, kind="stable")
    numbers = every[order]
    planes = np.ascontiguousarray(case.signatures.transpose(2, 1, 0).reshape(case.signatures.shape[2], -1)[:, order])
    votes = np.zeros((1, IMAGES), np.float32)
    owners, idf = np.zeros(len(numbers), np.int64), np.ones(len(numbers), np.float32)
    vote_coarse(numbers, owners, planes, idf, *case.named("starts", "postings", "signatures"), case.weights, 30, votes)
    best, images = np.zeros((1, 4), np.float32), np.full((1, 4), -1, np.int64)
    keep_best(votes, np.ones(IMAGES, np.float32), case.alive, case.segment.ids, np.array([0]), best, images)
    gains = np.linspace(4, 1, (1 << n_vocabularies) * (case.bits * n_vocabularies + 1), dtype=np.float32)
    exact = np.zeros((2, len(positions)), np.float32)
    stored = case.named("feature_starts", "words", "places", "signatures")
    score_exact(positions, *stored, case.signatures, case.idf, *lists, gains.reshape(1 << n_vocabularies, -1), *exact)
    ranks = np.tile(np.minimum(np.arange(case.bits * n_vocabularies + 1) // 32, 3), (n_vocabularies + 1, 1)).astype(np.int32)
    ranks[1, 20:] = -1
    counts, weights, transforms = np.zeros(len(positions), np.int64), np.zeros(len(positions)), np.zeros((len(positions), 2, 3))
    inliers = np.zeros((5, 2), np.int64)
    geometry = case.named("frames", "positions", "shapes")
    for keypoints in (case.keypoints * [1, 1, 0, 1], case.keypoints):  # without and with scales
        verify_candidates(
            positions[::-1].copy(), *stored, *geometry, keypoints, case.signatures, *lists, ranks,
            np.array([4.0, 3.0, 2.0, 1.0]), 0.02, counts, weights, transforms, inliers
        )  # fmt: skip
    return {
        "votes": votes, "best": best, "images": images, "exact": exact, "inlier counts": counts, "inlier weights": weights,
        "transforms": transforms, "inliers": inliers,
    }  # fmt: skip


def _geometry(rng: np.random.Generator) -> tuple[Geometry, Array]:
    """Return that of the images, and the keypoints of the query [Q, 4], which is part of the first of them."""
    n = IMAGES * FEATURES
    xy, scale, angle = rng.uniform(0, 500, (n, 2)), np.full(n, 8.0), np.full(n, 30.0)
    xy[SECOND], scale[SECOND] = 2 * xy[FIRST] + 7, 16
    return Geometry.of(xy, scale, angle, STARTS), np.column_stack([xy, scale, angle])[:QUERIES]


def _codes(bits: int) -> dict[str, Array]:
    """Encode, decode, score, verify and tally: in lists of about 64 features."""
    rng = np.random.default_rng(bits)
    centres = rng.normal(0, 1, (5, 70)).astype(np.float32)
    decoder = Decoder(rng.normal(0, 0.5, (70, bits)).astype(np.float32), rng.normal(0, 0.5, (8, 6, 9)).astype(np.float32))
    coder = Coder(replace(Vocabulary.create(centres, rotation=random_rotation(70, bits)), decoder=decoder), threads=1)
    descriptors = centres[rng.integers(0, 5, IMAGES * FEATURES)] + rng.normal(0, 2, (IMAGES * FEATURES, 70))
    descriptors[SECOND] = descriptors[FIRST] + rng.normal(0, 0.2, (FEATURES, 70))
    geometry, keypoints = _geometry(rng)
    stored = coder.encode(descriptors)
    batch = Batch(np.arange(IMAGES), STARTS, geometry, np.empty((len(descriptors), 0), np.int32), codes=stored)
    segment = Segment.build(batch, (), len(centres))
    query = coder.query(descriptors[:QUERIES], 3, 1.2)
    places = Keypoints(keypoints[:, :2], keypoints[:, 2], keypoints[:, 3])
    inliers, counts = np.zeros((5, 2), np.int64), np.zeros((2, 3, 65), np.int64)
    found = verify_images(CodedVerification.of(query, places, TABLE, len(centres)), segment, [2, 1], pairs=inliers)
    turnless = replace(places, angle=np.full(QUERIES, np.nan))  # whose similarities are made of two matches
    upright = verify_images(CodedVerification.of(query, turnless, TABLE, len(centres)), segment, [2, 1])
    tally_codes(query.words, table_rows(query, TABLE), query.codes, query.magnitudes, query.totals, TABLE.reach,
                *(segment.arrays[name] for name in ("code_starts", "codes", "code_images")), np.arange(IMAGES) % 3 - 1,
                counts)  # fmt: skip
    lists = segment.arrays["code_starts"], segment.arrays["code_images"]
    pieces = np.array([read_ahead(np.array([0, 3]), *lists, gap) for gap in (0, 1000)])
    results = {
        **{f"stored {name}": array for name, array in stored._asdict().items()}, "decoded": coder.decode(stored),
        "found": segment.live_batch().codes.codes, "of image 3": segment.image_features(3).codes.codes, **vars(query),
        "live": segment.without([2]).live_code_lengths, "pieces": pieces,
        "verified": found.counts, "weights": found.weights,
        "transforms": found.transforms, "inliers": inliers, "counts": counts,
        "verified upright": upright.counts, "upright transforms": upright.transforms,
        "scores": score_codes(segment, query, CodeWeights(np.linspace(1, 3, QUERIES), TABLE, threads=1)),
    }  # fmt: skip
    return {f"{name} of {bits} bits": array for name, array in results.items()}


def _vectors() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    centres = rng.normal(0, 10, (12, 70)).astype(np.float32)
    descriptors = np.repeat(centres, 4, axis=0) + rng.normal(0, 0.1, (48, 70)).astype(np.float32)
    vocabularies = [Vocabulary.create(centres), Vocabulary.create(centres[::-1])]
    axes = PrincipalAxes.of(centres)
    points = axes.rotate(descriptors)
    cells = Cells(points[::16], axes)
    before = np.zeros(len(points), np.int32)
    _, words = LocalPointSet(points, cells).assign(cells.word_table(points[::4]), points[::4], before)
    many = Cells(points[::4], axes)
    probes = (*many.probe(axes.points(points), effort=0.1), many.probe_all(axes.points(points)))
    rotation = random_rotation(70, 70)
    signer = Vocabulary.create(centres, project(centres, rotation) + 1, rotation)
    halves, products = rng.normal(size=(5, 9)).astype(np.float16), np.zeros(5, np.float32)
    halves[3] = 0
    cosine_products(halves.view(np.uint16), np.arange(9, dtype=np.float32) * COSINE_SCALE, products)
    return {
        "assigned": Assigner(vocabularies).assign(descriptors, 2)[:, :, 0],
        "point set": words,
        "probed cells": np.array([one.start for one in probes]),
        "points of cells": np.concatenate([one.members for one in probes]),
        "signatures": sign(np.asarray(np.arange(48 * 70).reshape(48, 70) % 13 - 6, np.float32), words[:, None] % 12, [signer]),
        "trained": np.sort(train(descriptors, TrainOptions(size=3, bits=3, rounds=2)).centroids, axis=0),
        "cosines": products,
    }


def _checksums() -> dict[str, Array]:
    words = np.random.default_rng(0).integers(0, 1 << 64, 100, np.uint64)
    checksums, verified, beyond = np.zeros(4, np.uint32), np.zeros(4, np.uint8), np.zeros(4, np.uint8)
    values, firsts, lasts = np.arange(390, dtype=np.uint16), np.array([1, 0]), np.array([4, 2])
    arguments = (32, checksums, firsts, lasts, 0)
    with np.errstate(over="ignore"):  # as compiled: modulo 2^64
        checksum_blocks(words, 32, checksums)
        sound = verify_blocks(words, *arguments, verified, values, 16, np.array([391, 391]))
        wrong = verify_blocks(words, *arguments, beyond, values, 16, np.array([391, 150]))
        damaged = verify_blocks(words + np.uint64(1), *arguments, np.zeros(4, np.uint8), values, 16, np.empty(0, np.int64))
    found = np.array([sound, wrong, damaged])
    return {"checksums": checksums, "found blocks": found, "verified blocks": np.concatenate([verified, beyond])}


def _sift() -> dict[str, Array]:
    y, x = np.mgrid[:40, :48]
    pixels = sum(np.exp(-((x - 9 * i) ** 2 + (y - 7 * i) ** 2) / (8 + 6 * i)) for i in range(1, 5))
    table, descriptors = find_sift(np.rint(200 * pixels).clip(0, 255).astype(np.uint8), 6, 48)
    return {"keypoints": table, "descriptors": descriptors / 512}


def record_calls() -> set[str]:
    """Return a set that fills with the names of the functions of polyvoc.kernels that run as Python, from now on."""
    called: set[str] = set()
    folder = str(Path(compiler.__file__).parent)

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(folder):
            called.add(frame.f_code.co_name)

    sys.setprofile(note)
    return called


if __name__ == "__main__":
    called = record_calls() if config.DISABLE_JIT else set()
    results = call_all()
    np.savez(sys.argv[1], called=np.array(sorted(called), str), **results)
