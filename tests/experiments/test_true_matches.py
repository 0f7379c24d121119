"""True matches are what a loop counts, with ground truth, and the same from verified pairs of an index without."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from benches import bench_of, unsigned
from polyvoc.errors import OptionError
from polyvoc.experiments.datasets.readers import READERS, Question
from polyvoc.experiments.fit.line import fit_line
from polyvoc.experiments.fit.true_matches import (
    Criterion,
    Observations,
    Pairs,
    Sampling,
    find_pairs,
    near,
    observe,
    observe_pairs,
    sharing_of,
)
from polyvoc.experiments.measures import Truth
from polyvoc.experiments.workbench import Workbench
from polyvoc.index.writer import IndexWriter
from polyvoc.options import SetKind
from polyvoc.search.index import Index
from polyvoc.types import ImageFeatures, ImageRef, Keypoints
from polyvoc.vocabulary.vocabulary import Vocabulary
from random_collections import World, random_world
from views import SCENES, VIEWS

CRITERIA: tuple[Criterion, ...] = ("either", "both", "mean", "first")


def sorted_rows(seen: Observations) -> list[tuple[float, int, int]]:
    return sorted(zip(seen.ratio.round(12).tolist(), seen.inside.tolist(), seen.true.tolist(), strict=True))


# -- true matches from ground truth


def test_a_hand_worked_example() -> None:
    """One query feature with words (1, 1): image 1 holds two true matches, one in both lists; image 2 is not relevant."""
    images = [
        np.array([[1, 1]], np.int32),  # the query
        np.array([[1, 1], [1, 2], [3, 1], [5, 5]], np.int32),
        np.array([[1, 1], [1, 7]], np.int32),
        np.array([[1, 1]], np.int32),  # junk
    ]
    bits = [np.zeros(words.shape, np.uint64) for words in images]
    bits[1][2] = 2**32 - 1  # shares the second word, at distance 32
    bench = bench_of(images, bits, [Question("q", Path(), 0)], {"": (Truth(frozenset({0, 1, 3}), frozenset({3})),)})
    seen = observe(bench)
    # union: three of image 1, two of image 2, one of the junk; intersection: one of each image
    assert sorted_rows(seen) == [(round(3 / 6, 12), 1, 2)]
    assert (seen.questions, seen.pairs, seen.share) == (1, 1, 0.5)
    assert sorted_rows(observe(bench, with_query=True)) == [(round(4 / 7, 12), 1, 2)]
    assert sorted_rows(observe(bench, distance=33)) == [(round(3 / 6, 12), 1, 3)]


def test_a_hand_worked_example_with_sets_of_images() -> None:
    """One query feature with words (1, 1): image 1 is in both lists, by two features; images 2 and 3 are in one list each."""
    images = [
        np.array([[1, 1]], np.int32),  # the query
        np.array([[1, 2], [3, 1], [1, 4]], np.int32),
        np.array([[1, 7], [1, 8]], np.int32),
        np.array([[5, 1]], np.int32),
    ]
    bits = [np.zeros(words.shape, np.uint64) for words in images]
    bits[1][2] = 2**32 - 1  # no true match
    bench = bench_of(images, bits, [Question("q", Path(), 0)], {"": (Truth(frozenset({1, 2})),)})
    assert sorted_rows(observe(bench, sets="image")) == [(round(1 / 3, 12), 2, 4)]
    assert sorted_rows(observe(bench, sets="image", with_query=True)) == [(round(2 / 4, 12), 2, 4)]
    assert sorted_rows(observe(bench)) == [(0.0, 0, 4)]  # no feature is in both lists


def test_which_distance_decides() -> None:
    shared = np.array([[True, True], [True, True], [True, True], [True, False], [False, True], [False, True]])
    distance = np.array([[5, 30], [30, 5], [25, 10], [19, 255], [255, 19], [255, 20]])
    decided = {criterion: near(shared, distance, 20, criterion).tolist() for criterion in CRITERIA}
    assert decided == {
        "either": [True, True, True, True, True, False],
        "both": [False, False, False, True, True, False],
        "mean": [True, True, True, True, True, False],
        "first": [True, False, False, True, True, False],
    }
    assert near(shared[:1], np.array([[10, 30]]), 20, "mean").tolist() == [False]  # 20 is not below 20
    with pytest.raises(OptionError, match="criterion='all' should be one of either, both, mean, first"):
        near(shared, distance, 20, "all")  # type: ignore[arg-type]


def count_by_hand(
    world: World, asked: int, relevant: set[int], distance: int, criterion: Criterion, leave_out: set[int],
    sets: SetKind = "feature", pair: Sequence[int] | None = None,
) -> list[tuple[float, int, int]]:  # fmt: skip
    """Count with loops what the features of one image observe, with all lists or those of a pair of vocabularies."""
    rows = []
    for x, bits in zip(world.images[asked], world.image_signatures[asked], strict=True):
        lists: list[set[object]] = [set() for _ in pair or x]
        matches = []
        for number, (words, signatures) in enumerate(zip(world.images, world.image_signatures, strict=True)):
            for place, (y, other) in enumerate(zip(words, signatures, strict=True)):
                member = number if sets == "image" else (number, place)
                held = [k for k in pair or range(len(x)) if x[k] == y[k]]
                if number not in leave_out:
                    for one, k in zip(lists, pair or range(len(x)), strict=True):
                        if k in held:
                            one.add(member)
                h = [int(bits[k] ^ other[k]).bit_count() for k in held]
                value = {"either": min, "both": max, "mean": mean, "first": lambda h: h[0]}[criterion](h) if h else distance
                if number in relevant and value < distance:
                    matches.append(member)
        if matches:
            intersection, union = set.intersection(*lists), set.union(*lists)
            inside = [member for member in matches if member in intersection]
            rows.append((round(len(intersection) / len(union), 12), len(inside), len(matches)))
    return rows


@pytest.mark.parametrize("sets", ["feature", "image"])
@pytest.mark.parametrize("criterion", CRITERIA)
@pytest.mark.parametrize("with_query", [True, False])
def test_a_loop_observes_the_same(sets: SetKind, criterion: Criterion, with_query: bool) -> None:
    observed = 0
    for seed in range(45):
        world = random_world(seed, k=2 + seed % 2)
        n = len(world.images)
        if n < 3:
            continue
        truth = Truth(frozenset({0, 1, 2, n - 1}), frozenset({2}))
        questions = [Question(str(q), Path(), q) for q in (0, 1)]
        bench = bench_of([*world.images], [*world.image_signatures], questions, {"": (truth, truth)})
        expected = []
        for q in (0, 1):
            expected += count_by_hand(world, q, {0, 1, n - 1} - {2, q}, 12, criterion, set() if with_query else {q}, sets)
        seen = observe(bench, distance=12, criterion=criterion, with_query=with_query, sets=sets)
        assert sorted_rows(seen) == sorted(expected)
        observed += len(expected)
    assert observed > 100


def test_a_question_from_outside_and_one_of_several_levels() -> None:
    world = random_world(4, k=2)
    images, signatures = [*world.images, world.images[0]], [*world.image_signatures, world.image_signatures[0]]
    easy, hard = Truth(frozenset({0})), Truth(frozenset({1, 2}))
    outside = Question("q", Path(), None)
    bench = bench_of(images, signatures, [outside], {"easy": (easy,), "hard": (hard,)})
    assert sorted_rows(observe(bench, "hard")) == sorted(count_by_hand(world, 0, {1, 2}, 20, "either", set()))
    assert sorted_rows(observe(bench)) == sorted(count_by_hand(world, 0, {0}, 20, "either", set()))
    assert sorted_rows(observe(bench, with_query=True)) == sorted_rows(observe(bench))
    with pytest.raises(OptionError, match="level='medium' should be one of 'easy', 'hard'"):
        observe(bench, "medium")
    revisited = bench_of(images, signatures, [outside], {"easy": (easy,), "medium": (hard,)})  # the default level
    assert sorted_rows(observe(revisited)) == sorted_rows(observe(bench, "hard"))


def test_questions_of_one_group_are_grouped() -> None:
    images = [np.array([[1, 1]], np.int32)] * 4
    bits = [np.zeros((1, 2), np.uint64)] * 4
    truth = Truth(frozenset(range(4)))
    questions = [Question(str(q), Path(), q, group=group) for q, group in enumerate(("x", "y", "x", ""))]
    seen = observe(bench_of(images, bits, questions, {"": (truth,) * 4}))
    assert (seen.group.tolist(), seen.pairs) == ([0, 1, 0, 2], 12)


def test_two_vocabularies_with_signatures_are_needed() -> None:
    words, bits = [np.array([[1, 1]], np.int32)] * 2, [np.zeros((1, 2), np.uint64)] * 2
    signed = bench_of(words, bits, [Question("q", Path(), 0)], {"": (Truth(frozenset({1})),)})
    for bench in (unsigned(signed), signed.first(1)):
        with pytest.raises(OptionError, match="two vocabularies with signatures"):
            observe(bench)


# -- without labels


def observe_verified(index: Index, sampling: Sampling = Sampling()) -> Observations:  # noqa: B008 (frozen)
    return observe_pairs(index, find_pairs(index, sampling))


@pytest.mark.parametrize("sets", ["feature", "image"])
def test_verified_pairs_observe_what_labels_do(
    index: Index, views: Path, vocabularies: tuple[Vocabulary, ...], tmp_path: Path, sets: SetKind
) -> None:
    """All pairs of views are verified and no others, so that every feature observes the same as with ground truth."""
    steps: list[tuple[str, int, int]] = []
    without = observe_pairs(index, find_pairs(index, progress=lambda *step: steps.append(step)), sets)
    dataset = READERS["groups"](views)
    labelled = observe(Workbench(tmp_path).bench(dataset, vocabularies), sets=sets)
    assert (without.questions, without.pairs) == (SCENES * VIEWS, SCENES * VIEWS * (VIEWS - 1))
    assert (labelled.questions, labelled.pairs) == (without.questions, without.pairs)
    assert sorted_rows(without) == sorted_rows(labelled)
    assert len(np.unique(without.group)) == SCENES
    assert fit_line(without).free == pytest.approx(fit_line(labelled).free)
    assert steps[-1] == ("verifying", SCENES * VIEWS, SCENES * VIEWS)


@pytest.mark.parametrize("sets", ["feature", "image"])
@pytest.mark.parametrize("pair", [(0, 1), (2, 0)])
def test_a_loop_observes_the_same_pairs(sets: SetKind, pair: tuple[int, int]) -> None:
    """Of an index in several segments, with three vocabularies of which two are compared."""
    observed = 0
    for seed in range(60):
        world = random_world(seed, k=3)
        n = len(world.images)
        if n < 3 or min(map(len, world.images)) == 0:
            continue
        index = Index.from_words(world.images, world.sizes, world.image_signatures, segment_images=2)
        related: dict[ImageRef, tuple[ImageRef, ...]] = {(0, 0): ((0, 1), (1, 0)), (1, 0): ((0, 1),)}
        seen = observe_pairs(index, Pairs(Sampling(pair=pair), ((0, 0), (1, 0)), related, {}), sets)
        expected = count_by_hand(world, 0, {1, 2}, 20, "either", {0}, sets, pair)
        expected += count_by_hand(world, 2, {1}, 20, "either", {2}, sets, pair)
        assert sorted_rows(seen) == sorted(expected)
        observed += len(expected)
    assert observed > 20


def test_a_sample_is_repeatable(index: Index) -> None:
    first, again, other = (observe_verified(index, Sampling(queries=5, seed=seed)) for seed in (0, 0, 1))
    assert first.questions == 5
    assert sorted_rows(first) == sorted_rows(again) != sorted_rows(other)


def test_any_two_vocabularies_can_be_compared(index: Index) -> None:
    assert sorted_rows(observe_verified(index, Sampling(pair=(1, 0)))) == sorted_rows(observe_verified(index))
    for pair in ((0, 2), (0, 0), (-1, 0)):
        with pytest.raises(OptionError, match="two vocabularies"):
            observe_verified(index, Sampling(pair=pair))


def test_removed_images_are_neither_queries_nor_hits(index: Index, views: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(index.folder.path, tmp_path / "copy"))
    with IndexWriter.open(path) as writer:
        writer.remove([views / "0" / "0.jpg"])
    seen = observe_verified(Index.open(path))
    assert (seen.questions, seen.pairs) == (SCENES * VIEWS - 1, SCENES * VIEWS * (VIEWS - 1) - 4)


def test_copies_are_left_out(index_path: Path) -> None:
    index = Index.open(index_path)  # of photographs that are turned, cropped and darkened without a loss
    assert observe_verified(index).pairs == 0
    assert observe_verified(index, Sampling(copy_bits=0.0)).pairs == 24


def test_signatures_are_needed() -> None:
    words = [np.array([[1, 1], [2, 2]], np.int32)] * 3
    bits = [np.zeros((2, 2), np.uint64)] * 3
    with pytest.raises(OptionError, match="needs an index with codes or signatures"):
        observe_verified(Index.from_words(words, (5, 5)))
    with pytest.raises(OptionError, match="of two vocabularies"):
        observe_verified(Index.from_words([w[:, :1] for w in words], (5,), [b[:, :1] for b in bits]))
    assert observe_verified(Index.from_words(words, (5, 5), bits)).pairs == 0  # nothing is known of places


def test_impossible_samples_are_errors() -> None:
    for name in ("queries", "candidates", "inliers"):
        with pytest.raises(OptionError, match=f"{name}=0 should be at least 1"):
            Sampling(**{name: 0})


def test_scenes_that_touch_are_one_group() -> None:
    a, b, c, d, e = ((0, n) for n in range(5))
    related: dict[tuple[int, int], tuple[tuple[int, int], ...]] = {a: (b,), c: (d,), d: (e,), b: (a,)}
    groups = Pairs(Sampling(), (a, b, c, d, e), related, {}).groups
    assert groups == {a: groups[a], b: groups[a], c: groups[c], d: groups[c], e: groups[c]}
    assert groups[a] != groups[c]


@pytest.mark.parametrize("vocabularies", [(0,), (2,), (0, 1), (1, 2, 0)])
def test_pairs_of_features_that_share_a_word_are_those_of_a_loop(vocabularies: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    query, image, empty = (
        ImageFeatures(
            rng.integers(0, 6, (n, 3)), np.empty((n, 0), np.uint64), Keypoints(np.zeros((n, 2)), np.ones(n), np.zeros(n))
        )
        for n in (20, 30, 0)
    )
    columns = list(vocabularies)
    same = query.words[:, None, columns] == image.words[None, :, columns]
    q, f, shared = sharing_of(query, image, vocabularies)
    assert sorted(zip(q.tolist(), f.tolist(), strict=True)) == [tuple(pair) for pair in np.argwhere(same.any(axis=2)).tolist()]
    assert np.array_equal(shared, same[q, f])
    assert len(sharing_of(empty, image, vocabularies)[0]) == len(sharing_of(query, empty, vocabularies)[0]) == 0
