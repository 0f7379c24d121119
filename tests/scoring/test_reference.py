"""The reference itself, on collections small enough to be computed by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import reference
from polyvoc.options import Burstiness, Merge, SearchOptions, Sets
from polyvoc.types import LikelihoodTable
from random_collections import plain, random_world, with_assignments
from reference import score_words

RULES: tuple[Merge, ...] = ("b0", "b1", "b2", "bayes", "posterior")

# Query (0, 0): A_0 = {00, 01, 11, 12}, A_1 = {00, 10, 11} as image and number; the intersection is {00, 11},
# the union {00, 01, 10, 11, 12}: r = 2/5.
PAIR = ([[0, 0], [0, 1]], [[1, 0], [0, 0], [0, 2]], [[2, 2]])
# With the line 0.5 r + 0.3 = 1/2 and ln(N c) = 2:
#   w_int  = 1 / (1 + 0.4 / 0.5 * 2) = 1 / 2.6 = 5/13
#   w_diff = 1 / (1 + 0.6 / 0.5 * 2) = 1 / 3.4 = 5/17
LINE = (0.5, 0.3)
C = math.e**2 / 3


def words(*rows: list[list[int]], k: int = 2) -> list[npt.NDArray[np.int32]]:
    return [np.array(row, dtype=np.int32).reshape(-1, k) for row in rows]


def bits(count: int, k: int, flipped: dict[tuple[int, int], int]) -> npt.NDArray[np.uint64]:
    """Return signatures [count, k] of 0 bits, but for the first `flipped` bits of some."""
    signatures = np.zeros((count, k), dtype=np.uint64)
    for place, number in flipped.items():
        signatures[place] = 2**number - 1
    return signatures


def bare(**changes: Any) -> SearchOptions:
    return plain(**{"idf": "none", "norm": "none", "line": LINE, "c": C, "sets": "feature", **changes})


@pytest.mark.parametrize(
    ("merge", "expected"),
    [
        ("b0", [2, 2, 0]),
        ("b1", [2 + 1, 1 + 2 + 1, 0]),
        ("b2", [2, 2, 0]),
        ("bayes", [2 * 5 / 13 + 1, 2 * 5 / 13 + 2, 0]),
        ("posterior", [2 * 5 / 13 + 5 / 17, 2 * 5 / 13 + 2 * 5 / 17, 0]),
    ],
)
def test_two_vocabularies(merge: str, expected: list[float]) -> None:
    scores = score_words(words(*PAIR), (3, 3), words([[0, 0]])[0], bare(merge=merge))
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_features_of_the_query_add_up() -> None:
    # (0, 0) as above; (2, 1): A_0 = {20}, A_1 = {01}, nothing in common, r = 0: bayes gives 1 and 1.
    scores = score_words(words(*PAIR), (3, 3), words([[0, 0], [2, 1], [0, 0]])[0], bare(merge="bayes"))
    np.testing.assert_allclose(scores, [2 * (10 / 13 + 1) + 1, 2 * (10 / 13 + 2), 1], rtol=1e-12)


def test_three_vocabularies_count_elements_of_other_lists() -> None:
    # Query (0, 0, 0): A_0 = {00, 10, 20}, A_1 = {00, 10}, A_2 = {10}.
    #   feature 00: M = {0, 1}, r = 2/3 although 10 is in A_2 too
    #   feature 10: M = {0, 1, 2}, r = 1/3;  feature 20: M = {0}, r of all lists = 1/3
    # Line 0.3 r + 0.4: 0.6 at 2/3 and 0.5 at 1/3; ln(N c) = 2:
    #   w_int(2/3) = 1 / (1 + 2/3 / 0.6 * 2) = 9/29, w_int(1/3) = 1 / (1 + 1/3 / 0.5 * 2) = 3/7,
    #   w_diff(1/3) = 1 / (1 + 2/3 / 0.5 * 2) = 3/11
    images = words([[0, 0, 1]], [[0, 0, 0]], [[0, 1, 1]], k=3)
    rules: dict[str, list[float]] = {
        "b1": [2, 3, 1],
        "b2": [0, 3, 0],
        "bayes": [2 * 9 / 29, 3 * 3 / 7, 1],
        "posterior": [2 * 9 / 29, 3 * 3 / 7, 3 / 11],
    }
    for merge, expected in rules.items():
        scores = score_words(images, (2, 2, 2), words([[0, 0, 0]], k=3)[0], bare(merge=merge, line=(0.3, 0.4)))
        np.testing.assert_allclose(scores, expected, rtol=1e-12, err_msg=merge)


@pytest.mark.parametrize(
    ("sets", "merge", "expected"),
    [
        ("image", "b1", [2, 1, 0]),
        ("image", "b2", [2, 0, 0]),
        ("image", "bayes", [2 / 5, 1, 0]),
        ("image", "posterior", [2 / 5, 3 / 7, 0]),
        ("feature", "b2", [0, 0, 0]),
        ("feature", "bayes", [2, 1, 0]),
        ("feature", "posterior", [2 * 9 / 29, 9 / 29, 0]),
    ],
)
def test_sets_of_images(sets: str, merge: str, expected: list[float]) -> None:
    # Query (0, 0): image 0 has one feature in each list, but none in both; image 1 has one in the first list.
    # Images: {0, 1} and {0}, r = 1/2, 0.3 r + 0.1 = 1/4: w_int = 1 / (1 + 1/2 / 1/4 * 2) = 1/5,
    #   w_diff = 1 / (1 + 1/2 / 3/4 * 2) = 3/7.  Features: r = 0, w_diff = 1 / (1 + 1 / 0.9 * 2) = 9/29.
    images = words([[0, 1], [1, 0]], [[0, 2]], [[2, 2]])
    options = bare(merge=merge, sets=sets, line=(0.3, 0.1))
    scores = score_words(images, (3, 3), words([[0, 0]])[0], options)
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_weights() -> None:
    at = bare(c=math.e / 3)  # ln(N c) = 1
    assert reference.weight_intersection(0.0, 3, at) == 1.0
    assert reference.weight_intersection(1.0, 3, at) == pytest.approx(1 / (1 + 1 / 0.8))
    assert reference.weight_difference(0.0, 3, at) == pytest.approx(1 / (1 + 1 / 0.7))
    assert reference.weight_difference(1.0, 3, at) == 1.0
    # The fact sheet of Holidays, 1491 images: w(0.05) = 0.310 and w(1) = 0.085 with b = 0.2, a = 1 - b.
    holidays = plain(line=(0.8, 0.2), c=30.0)
    assert reference.weight_intersection(0.05, 1491, holidays) == pytest.approx(0.310, abs=5e-4)
    assert reference.weight_intersection(1.0, 1491, holidays) == pytest.approx(0.085, abs=5e-4)


def test_weights_stay_probabilities_when_the_line_leaves_the_unit_interval() -> None:
    above, below = bare(line=(2.0, 0.5), c=math.e / 3), bare(line=(1.0, -0.5), c=math.e / 3)
    assert reference.weight_intersection(0.5, 3, above) == pytest.approx(1 / (1 + 0.5 / (1 - 1e-6)))
    assert reference.weight_difference(0.5, 3, above) == pytest.approx(1 / (1 + 0.5 / 1e-6))
    assert reference.weight_intersection(0.25, 3, below) == pytest.approx(1 / (1 + 0.25 / 1e-6))
    assert reference.weight_difference(1.0, 3, above) == 1.0
    tiny = bare(c=0.01)  # ln(0.03) < 0 counts as 0
    assert reference.weight_intersection(0.5, 3, tiny) == reference.weight_difference(0.5, 3, tiny) == 1.0


def test_idf_and_norm() -> None:
    # Word 0 occurs 3 times in 2 of 3 images, word 1 once: average idf 0 and ln 3, plain idf ln 1.5 and ln 3.
    images, query = words([[0], [0], [1]], [[0]], [[2]], k=1), words([[0], [1]], k=1)[0]
    rare, common = math.log(3), math.log(1.5)
    expected: dict[tuple[str, str], list[float]] = {
        ("none", "none"): [3, 1, 0],
        ("none", "tf"): [3 / math.sqrt(5), 1, 0],
        ("none", "tfidf"): [3 / math.sqrt(5), 1, 0],
        ("average", "none"): [rare**2, 0, 0],
        ("average", "tf"): [rare**2 / math.sqrt(5), 0, 0],
        ("average", "tfidf"): [rare, 0, 0],  # the norm of image 1 is 0
        ("plain", "none"): [2 * common**2 + rare**2, common**2, 0],
        ("plain", "tfidf"): [(2 * common**2 + rare**2) / math.hypot(2 * common, rare), common, 0],
        ("none", "features"): [3 / math.sqrt(3), 1, 0],
        ("plain", "features"): [(2 * common**2 + rare**2) / math.sqrt(3), common**2, 0],
        ("plain", "sqrt-tf"): [(2 * common**2 + rare**2) / math.sqrt(2 * common**2 + rare**2), common, 0],
    }
    for (idf, norm), scores in expected.items():
        result = score_words(images, (4,), query, bare(idf=idf, norm=norm))
        np.testing.assert_allclose(result, scores, rtol=1e-12, err_msg=f"{idf}, {norm}")


def test_average_idf_is_never_negative() -> None:
    # Word 0 occurs three times in two images: ln(2 / 3) counts as 0, in the votes and in the norm.
    images, query = words([[0], [0], [0], [1]], [[2]], k=1), words([[0], [1]], k=1)[0]
    assert score_words(images, (3,), query, bare(idf="average"))[0] == pytest.approx(math.log(2) ** 2)
    assert score_words(images, (3,), query, plain())[0] == pytest.approx(math.log(2))


def test_norm_covers_all_vocabularies_but_for_b0() -> None:
    # Image 0 of PAIR: tf (2) in the first vocabulary, (1, 1) in the second.
    query = words([[0, 0]])[0]
    b1 = score_words(words(*PAIR), (3, 3), query, bare(merge="b1", norm="tf"))
    b0 = score_words(words(*PAIR), (3, 3), query, bare(merge="b0", norm="tf"))
    assert b1[0] == pytest.approx(3 / math.sqrt(4 + 1 + 1))
    assert b0[0] == pytest.approx(2 / math.sqrt(4))


def test_hamming_weighs_each_vocabulary_but_leaves_the_sets() -> None:
    # Distances of feature 00: 2 and 3; of 01: 4 in the first list; everything of image 1 is 9 bits away.
    images, query = words(*PAIR), words([[0, 0]])[0]
    signatures = [
        bits(2, 2, {(0, 0): 2, (0, 1): 3, (1, 0): 4, (1, 1): 64}),
        bits(3, 2, {(n, k): 9 for n in range(3) for k in range(2)}),
        bits(1, 2, {}),
    ]
    mine = bits(1, 2, {})

    def he(h: int) -> float:
        return math.exp(-(h**2) / 5.0**2)

    wide = score_words(images, (3, 3), query, bare(merge="b1", hamming=9, sigma=5.0), signatures, mine)
    np.testing.assert_allclose(wide, [he(2) + he(3) + he(4), 4 * he(9), 0], rtol=1e-12)
    # r stays 2/5, w_int 5/13 and w_diff 5/17 although image 1 no longer passes.
    narrow = bare(merge="posterior", hamming=3, sigma=5.0)
    scores = score_words(images, (3, 3), query, narrow, signatures, mine)
    np.testing.assert_allclose(scores, [5 / 13 * (he(2) + he(3)), 0, 0], rtol=1e-12)


def test_hamming_none_ignores_signatures() -> None:
    signatures = [bits(len(rows), 2, {(0, 0): 64}) for rows in PAIR]
    query = words([[0, 0]])[0]
    without = score_words(words(*PAIR), (3, 3), query, bare())
    assert np.array_equal(score_words(words(*PAIR), (3, 3), query, bare(), signatures, bits(1, 2, {})), without)


def test_several_words_per_vocabulary_unite_their_lists() -> None:
    # Words {0, 1} and {0}: A_0 = {00, 01, 10, 11, 12}, A_1 = {00, 10, 11}, r = 3/5, 0.5 r + 0.2 = 1/2,
    # w_int = 1 / (1 + 0.6 / 0.5 * 2) = 5/17, w_diff = 1 / (1 + 0.4 / 0.5 * 2) = 5/13.
    query = np.array([[[0, 1], [-1, 0]]], dtype=np.int32)
    options = bare(merge="posterior", line=(0.5, 0.2))
    scores = score_words(words(*PAIR), (3, 3), query, options)
    np.testing.assert_allclose(scores, [10 / 17 + 5 / 13, 2 * 10 / 17 + 5 / 13, 0], rtol=1e-12)


def test_several_words_each_with_its_own_signature() -> None:
    images, query = words([[0], [1]], [[1]], k=1), np.array([[[1, 0, -1]]], dtype=np.int32)
    stored = [bits(2, 1, {}), bits(1, 1, {(0, 0): 1})]
    mine = np.array([[[2**3 - 1, 2**2 - 1, 0]]], dtype=np.uint64)  # 3 bits for word 1, 2 bits for word 0
    scores = score_words(images, (2,), query, bare(hamming=3, sigma=4.0), stored, mine)
    np.testing.assert_allclose(scores, [math.exp(-4 / 16) + math.exp(-9 / 16), math.exp(-4 / 16)], rtol=1e-12)


def table_of(edges: tuple[float, ...] = ()) -> LikelihoodTable:
    """Return a table with 4 - h for one list, 10 - h for two; 1 less in the second bin of the ratio."""
    values = [tuple(float(top - h - place) for h in range(65)) for top in (4, 10) for place in range(len(edges) + 1)]
    return LikelihoodTable((0, 0, 0, 1), edges, tuple(values))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [8 + 3, 9 + 4, 0]),
        ({"burstiness": "best"}, [8, 9, 0]),
        ({"hamming": 1}, [3, 9 + 4, 0]),
        ({"likelihood_table": table_of(edges=(0.4,))}, [8 + 3, 9 + 4, 0]),  # r is not above 2/5
        ({"likelihood_table": table_of(edges=(0.3,))}, [7 + 2, 8 + 3, 0]),
    ],
)
def test_likelihood(changes: dict[str, Any], expected: list[float]) -> None:
    # Distances of 00: 1 and 2, on average 2 as half a bit is rounded up: 10 - 2; of 01: 1 in the first list: 4 - 1.
    # 10: 5 in the second list, a negative value, which counts as 0; 11: 0 and 1, rounded 1: 10 - 1; 12: 0 in the first: 4.
    signatures = [
        bits(2, 2, {(0, 0): 1, (0, 1): 2, (1, 0): 1, (1, 1): 64}),
        bits(3, 2, {(0, 0): 64, (0, 1): 5, (1, 1): 1, (2, 1): 64}),
        bits(1, 2, {}),
    ]
    options = bare(**{"merge": "likelihood", "likelihood_table": table_of(), **changes})
    for planes in (1, 2):  # the second 64 bits are all 0
        longer = [np.stack([part, 0 * part], axis=-1) for part in signatures] if planes == 2 else signatures
        mine = np.zeros((1, 2, 2) if planes == 2 else (1, 2), np.uint64)
        scores = score_words(words(*PAIR), (3, 3), words([[0, 0]])[0], options, longer, mine)
        np.testing.assert_allclose(scores, expected, rtol=1e-12)


def test_likelihood_weighs_by_the_mean_idf() -> None:
    # Three images; word 0 of the first vocabulary is in one, that of the second in two: idf^2 of ln 3 and ln 1.5.
    images, query = words([[0, 0]], [[1, 0]], [[2, 1]]), words([[0, 0]])[0]
    stored, mine = [bits(1, 2, {})] * 3, bits(1, 2, {})
    options = bare(merge="likelihood", idf="plain", likelihood_table=table_of())
    rare, common = math.log(3) ** 2, math.log(1.5) ** 2
    scores = score_words(images, (3, 3), query, options, stored, mine)
    np.testing.assert_allclose(scores, [(rare + common) / 2 * 10, common * 4, 0], rtol=1e-12)


def test_burstiness_of_equal_scores() -> None:
    # One query feature; image 0 has four matches of score 1, image 1 one.
    images, query = words([[0]] * 4, [[0]], [[1]], k=1), words([[0]], k=1)[0]
    expected: dict[str, list[float]] = {
        "none": [4, 1, 0],
        "best": [1, 1, 0],
        "intra": [math.sqrt(4), 1, 0],
    }
    for burstiness, scores in expected.items():
        result = score_words(images, (2,), query, bare(burstiness=burstiness))
        np.testing.assert_allclose(result, scores, rtol=1e-12, err_msg=burstiness)
        twice = score_words(images, (2,), np.repeat(query, 2, axis=0), bare(burstiness=burstiness))
        np.testing.assert_allclose(twice, 2 * result, rtol=1e-12, err_msg="query features damp apart")


def test_burstiness_of_unequal_scores() -> None:
    # b1 on image 1 of PAIR: scores 1, 2, 1 (t = 4): sum of s * sqrt(s / t) = 1/2 + 2 sqrt(1/2) + 1/2.
    scores = score_words(words(*PAIR), (3, 3), words([[0, 0]])[0], bare(merge="b1", burstiness="intra"))
    image_0 = 2 * math.sqrt(2 / 3) + math.sqrt(1 / 3)
    np.testing.assert_allclose(scores, [image_0, 1 + math.sqrt(2), 0], rtol=1e-12)
    best = score_words(words(*PAIR), (3, 3), words([[0, 0]])[0], bare(merge="b1", burstiness="best"))
    np.testing.assert_allclose(best, [2, 2, 0], rtol=1e-12)


def test_bayes_damps_the_difference_set_only() -> None:
    # 10/13 each for the two in the intersection; 1, 1 and 1 in the difference set (one in image 0).
    both = 10 / 13
    expected = {"intra": [both + 1, both + math.sqrt(2), 0], "best": [both + 1, both + 1, 0]}
    for burstiness, scores in expected.items():
        result = score_words(words(*PAIR), (3, 3), words([[0, 0]])[0], bare(merge="bayes", burstiness=burstiness))
        np.testing.assert_allclose(result, scores, rtol=1e-12, err_msg=burstiness)


def test_bayes_damps_the_difference_set_of_images() -> None:
    # Image 0 is in both lists, so its bursts are not damped; image 1 is in the first only. N = 2, r = 1/2, 0.5 r + 0.3 = 0.55:
    # w_int = 1 / (1 + 0.5 / 0.55 * ln(2 C)).
    images = words([[0, 1], [0, 1], [1, 0]], [[0, 2], [0, 2]])
    scores = score_words(images, (3, 3), words([[0, 0]])[0], bare(merge="bayes", sets="image", burstiness="intra"))
    inside = 1 / (1 + 0.5 / 0.55 * math.log(2 * C))
    np.testing.assert_allclose(scores, [3 * inside, math.sqrt(2)], rtol=1e-12)


def test_matches_without_score_do_not_damp_others() -> None:
    # Feature 01 fails the Hamming test: t is that of feature 00 alone.
    images, query = words([[0], [0]], k=1), words([[0]], k=1)[0]
    options = bare(burstiness="intra", hamming=5)
    scores = score_words(images, (1,), query, options, [bits(2, 1, {(1, 0): 6})], bits(1, 1, {}))
    assert scores == pytest.approx([1.0])


@pytest.mark.parametrize("sets", ["feature", "image"])
def test_one_vocabulary_makes_all_rules_equal(sets: Sets) -> None:
    for seed in range(20):
        world = random_world(seed, k=1)
        burstiness: Burstiness
        for burstiness in ("none", "intra"):
            scores = [
                score_words(
                    world.images,
                    world.sizes,
                    world.words,
                    plain(merge=merge, sets=sets, burstiness=burstiness, hamming=24),
                    world.image_signatures,
                    world.query_signatures,
                )
                for merge in RULES
            ]
            for other in scores[1:]:
                assert np.array_equal(scores[0], other)


@pytest.mark.parametrize("merge", RULES)
def test_empty_images_and_queries_score_zero(merge: Merge) -> None:
    options = plain(merge=merge, burstiness="intra")
    empty, query = words([], [], [[0, 1]]), words([[0, 1]])[0]
    assert score_words([], (3, 3), query, options).shape == (0,)
    assert np.array_equal(score_words(empty, (3, 3), words([])[0], options), [0, 0, 0])
    assert np.array_equal(score_words(empty, (3, 3), words([[2, 2]])[0], options), [0, 0, 0])
    assert np.array_equal(score_words(empty[:2], (3, 3), query, options), [0, 0])
    alone = score_words(empty[2:], (3, 3), query, options)  # one image: ln(1 / 1) = 0, votes and norm are 0
    assert np.array_equal(alone, [0])
    none = np.full((1, 2, 2), -1, dtype=np.int32)
    assert np.array_equal(score_words(empty, (3, 3), none, options), [0, 0, 0])


def test_inputs_are_not_modified() -> None:
    for seed in range(10):
        world = with_assignments(random_world(seed), seed, 2)
        before = [array.copy() for array in world.arrays()]
        for array in world.arrays():
            array.flags.writeable = False
        options = plain(hamming=24, burstiness="intra", assignments=2)
        signatures = (world.image_signatures, world.query_signatures)
        scores = score_words(world.images, world.sizes, world.words, options, *signatures)
        assert scores.dtype == np.float64
        assert np.isfinite(scores).all()
        assert all(np.array_equal(a, b) for a, b in zip(before, world.arrays(), strict=True))


def test_random_collections_are_varied() -> None:
    worlds = [random_world(seed) for seed in range(200)]
    assert {len(world.sizes) for world in worlds} == {1, 2, 3}
    assert {len(world.images) for world in worlds} == set(range(1, 13))
    assert any(len(image) == 0 for world in worlds for image in world.images)
    assert any(len(world.words) == 0 for world in worlds)
    assert all(len(set(world.sizes)) == len(world.sizes) for world in worlds)
    for world in worlds:
        for rows in (*world.images, world.words):
            assert rows.shape[1] == len(world.sizes)
            assert (rows >= 0).all()
            assert (rows < world.sizes).all()
    distances = {
        (int(image[n, k]) ^ int(x[k])).bit_count()
        for world in worlds
        for signatures, image in zip(world.images, world.image_signatures, strict=True)
        for x, query in zip(world.query_signatures, world.words, strict=True)
        for n, k in np.argwhere(signatures == query)
    }
    assert distances >= set(range(33))
    again = random_world(7)
    assert all(np.array_equal(a, b) for a, b in zip(again.arrays(), worlds[7].arrays(), strict=True))


def test_assignments_are_distinct_words() -> None:
    for seed in range(50):
        world = random_world(seed)
        several = with_assignments(world, seed, 3)
        assert several.words.shape == several.query_signatures.shape == (*world.words.shape, 3)
        for x, k in np.ndindex(*world.words.shape):
            chosen = [word for word in several.words[x, k].tolist() if word >= 0]
            assert len(set(chosen)) == len(chosen)
            assert not chosen or int(world.words[x, k]) in chosen
            assert all(word < world.sizes[k] for word in chosen)
