"""Every reading and control against its definition, in Python sets, on random collections."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
import pytest

import reference
from benches import world_bench
from polyvoc.experiments.evaluate import scoring_options
from polyvoc.experiments.match_table import Matcher, MatchTable
from polyvoc.experiments.paper.match_weights import (
    CONSTANTS,
    Weigh,
    after_test,
    another,
    constant,
    differences,
    exclusive,
    median,
    once,
    pair_idf,
    parts,
    rules,
    shuffled,
)
from polyvoc.options import Norm, SearchOptions
from random_collections import World, random_world, with_long_signatures

Feature = tuple[int, int]  # image, number within it
Lists = list[set[Any]]
SEEDS = range(24)
LINES = ((0.7, 0.2), (0.5, 0.1), (0.9, 0.3))


@dataclass(frozen=True, eq=False)
class Definition:
    """A collection, a query and options; what the definitions of the readings speak of."""

    world: World
    options: SearchOptions

    @cached_property
    def features(self) -> list[Feature]:
        """Return every indexed feature, in the order of the database."""
        return [(image, number) for image, words in enumerate(self.world.images) for number in range(len(words))]

    @property
    def count(self) -> int:
        """Return K."""
        return len(self.world.sizes)

    @property
    def n_images(self) -> int:
        return len(self.world.images)

    def word(self, y: Feature, k: int) -> int:
        return int(self.world.images[y[0]][y[1], k])

    def distance(self, x: int, y: Feature, k: int) -> int:
        mine, theirs = self.world.query_signatures[x, k], self.world.image_signatures[y[0]][y[1], k]
        return sum(int(a ^ b).bit_count() for a, b in zip(np.atleast_1d(mine), np.atleast_1d(theirs), strict=True))

    @cache  # noqa: B019 (short-lived)
    def lists(self, x: int) -> Lists:
        """Return the features of the list of each vocabulary."""
        return [{y for y in self.features if self.word(y, k) == self.world.words[x, k]} for k in range(self.count)]

    @cache  # noqa: B019
    def near_lists(self, x: int) -> Lists:
        """Return the features of each list that pass the Hamming test."""
        assert self.options.hamming is not None
        limit = self.options.hamming
        return [{y for y in members if self.distance(x, y, k) <= limit} for k, members in enumerate(self.lists(x))]

    @cache  # noqa: B019
    def idf(self, word: int, k: int) -> float:
        holders = [y for y in self.features if self.word(y, k) == word]
        if self.options.idf == "none":
            return 1.0
        elements = len(holders) if self.options.idf == "average" else len({image for image, _ in holders})
        return max(0.0, math.log(self.n_images / elements))

    def near_weight(self, x: int, y: Feature, k: int) -> float:
        """Return the weight of the Hamming distance; 1 without a test."""
        return 1.0 if self.options.hamming is None else reference.hamming_weight(self.distance(x, y, k), self.options)

    def term(self, x: int, y: Feature, k: int) -> float:
        """Return what a posting of list k votes."""
        return float(self.idf(self.word(y, k), k) ** self.options.idf_power * self.near_weight(x, y, k))

    @cache  # noqa: B019
    def vote(self, x: int, y: Feature) -> float:
        """Return what a feature votes in all lists that hold it."""
        return sum(self.term(x, y, k) for k, members in enumerate(self.lists(x)) if y in members)

    def w(self, r: float) -> float:
        return reference.weight_intersection(r, self.n_images, self.options)

    def d(self, r: float) -> float:
        return reference.weight_difference(r, self.n_images, self.options)


def by_image(definition: Definition, merge: str) -> bool:
    sets = definition.options.sets
    return sets == "image" or (sets == "auto" and merge != "posterior")


def elements(definition: Definition, merge: str, lists: Lists) -> Lists:
    """Return the lists as sets of what the rule counts."""
    return [{image for image, _ in members} for members in lists] if by_image(definition, merge) else lists


def holding(definition: Definition, merge: str, lists: Lists, y: Feature) -> list[int]:
    """Return the lists that hold a feature, or a feature of its image."""
    element = y[0] if by_image(definition, merge) else y
    return [k for k, members in enumerate(elements(definition, merge, lists)) if element in members]


def share(lists: Lists) -> float:
    """Return |intersection| / |union|, 0 for empty lists."""
    together = set.union(*lists)
    return len(set.intersection(*lists)) / len(together) if together else 0.0


Weight = Callable[[Definition, int, Feature], float]


def rule(merge: str, ratio: Callable[[Definition, int, list[int], Lists], float] | None = None, near: bool = False) -> Weight:
    """Return a rule of the paper; `ratio`: of some lists of a query feature; `near`: with lists after the Hamming test."""

    def ratio_of(definition: Definition, x: int, chosen: list[int], lists: Lists) -> float:
        return share([lists[k] for k in chosen]) if ratio is None else ratio(definition, x, chosen, lists)

    def weight(definition: Definition, x: int, y: Feature) -> float:
        bare = definition.near_lists(x) if near else definition.lists(x)
        lists, own = elements(definition, merge, bare), holding(definition, merge, bare, y)
        everything = list(range(definition.count))
        vote = definition.vote(x, y)
        if merge == "b1" or vote == 0:
            return vote
        if merge == "b2":
            return vote if own == everything else 0.0
        if len(own) >= 2:
            return vote * definition.w(ratio_of(definition, x, own, lists))
        return vote * (definition.d(ratio_of(definition, x, everything, lists)) if merge == "posterior" else 1.0)

    return weight


def only_these(definition: Definition, x: int, chosen: list[int], lists: Lists) -> float:
    """Return the ratio of the lists without what is in any other list."""
    others: set[Any] = set().union(*(members for k, members in enumerate(lists) if k not in chosen))
    return share([lists[k] - others for k in chosen])


def of_another(merge: str) -> Any:
    def ratio(definition: Definition, x: int, chosen: list[int], lists: Lists) -> float:
        place = int(another(len(definition.world.words))[x])
        theirs = elements(definition, merge, definition.lists(place))
        return share([theirs[k] for k in chosen])

    return ratio


def of_all_features(merge: str) -> Any:
    def ratio(definition: Definition, x: int, chosen: list[int], lists: Lists) -> float:
        queries = range(len(definition.world.words))
        every = [elements(definition, merge, definition.lists(other)) for other in queries]
        return statistics.median(share([theirs[k] for k in chosen]) for theirs in every)

    return ratio


def constant_weight(c: float) -> Weight:
    def weight(definition: Definition, x: int, y: Feature) -> float:
        several = len(holding(definition, "bayes", definition.lists(x), y)) >= 2
        return definition.vote(x, y) * (c if several else 1.0)

    return weight


def together(definition: Definition, x: int, y: Feature) -> float:
    """Return the vote of B2 with the idf of the words together in place of the idf of each."""
    bare = definition.lists(x)
    lists = elements(definition, "b2", bare)
    if holding(definition, "b2", bare, y) != list(range(definition.count)):
        return 0.0
    idf = 1.0
    if definition.options.idf != "none":
        idf = max(0.0, math.log(definition.n_images / len(set.intersection(*lists)))) ** definition.options.idf_power
    return sum(idf * definition.near_weight(x, y, k) for k, members in enumerate(bare) if y in members)


def posterior_with(inside: Any, outside: Any) -> Weight:
    """Return `posterior` with other weights: functions of the definition, the lists and the lists that hold the feature."""

    def weight(definition: Definition, x: int, y: Feature) -> float:
        bare = definition.lists(x)
        lists, own = elements(definition, "posterior", bare), holding(definition, "posterior", bare, y)
        return definition.vote(x, y) * float((inside if len(own) >= 2 else outside)(definition, lists, own))

    return weight


def w_own(definition: Definition, lists: Lists, own: list[int]) -> float:
    return definition.w(share([lists[k] for k in own]))


def w_all(definition: Definition, lists: Lists, own: list[int]) -> float:
    return definition.w(share(lists))


def d_all(definition: Definition, lists: Lists, own: list[int]) -> float:
    return definition.d(share(lists))


def contrast(definition: Definition, lists: Lists, own: list[int]) -> float:
    return w_own(definition, lists, own) / d_all(definition, lists, own)


def with_each_other(lists: Lists, own: list[int]) -> list[float]:
    """Return the ratio of the pair of the only list with each other list."""
    (k,) = own
    return [share([lists[k], members]) for other, members in enumerate(lists) if other != k]


def in_several(lists: Lists) -> float:
    """Return the part of the union that is in two lists or more."""
    union = set.union(*lists)
    return sum(sum(element in members for members in lists) >= 2 for element in union) / len(union)


def d_at_zero(times: float) -> Any:
    return lambda definition, lists, own: times * definition.d(0.0)


DEFINITIONS: dict[Weigh, dict[str, Weight]] = {
    rules: {merge: rule(merge) for merge in ("b1", "b2", "bayes", "posterior")},
    exclusive: {f"{merge}, exclusive": rule(merge, only_these) for merge in ("bayes", "posterior")},
    after_test: {f"{merge}, sets after the test": rule(merge, near=True) for merge in ("b2", "bayes", "posterior")},
    pair_idf: {"b2, idf of the pair": together},
    shuffled: {f"{merge}, r shuffled": rule(merge, of_another(merge)) for merge in ("bayes", "posterior")},
    median: {f"{merge}, r = its median": rule(merge, of_all_features(merge)) for merge in ("bayes", "posterior")},
    constant: {
        "constant 0 in the intersection": constant_weight(0),
        "constant 0.02 in the intersection": constant_weight(0.02),
        "constant 0.05 in the intersection": constant_weight(0.05),
        "constant 0.1 in the intersection": constant_weight(0.1),
        "constant 0.2 in the intersection": constant_weight(0.2),
        "constant 0.5 in the intersection": constant_weight(0.5),
        "constant 2 in the intersection": constant_weight(2),
    },
    parts: {
        "d(r) on both sets: the query feature's weight alone": posterior_with(d_all, d_all),
        "w / d: the contrast of the sets alone": posterior_with(contrast, lambda *_: 1.0),
        "w(r) on both sets": posterior_with(w_all, w_all),
    },
    differences: {
        "posterior, w_diff by the mean pair ratio": posterior_with(
            w_own, lambda definition, lists, own: definition.d(statistics.mean(with_each_other(lists, own)))
        ),
        "posterior, w_diff by the largest pair ratio": posterior_with(
            w_own, lambda definition, lists, own: definition.d(max(with_each_other(lists, own)))
        ),
        "posterior, w_diff by the pooled ratio": posterior_with(
            w_own, lambda definition, lists, own: definition.d(in_several(lists))
        ),
        "posterior, both by the pooled ratio": posterior_with(
            lambda definition, lists, own: definition.w(in_several(lists)),
            lambda definition, lists, own: definition.d(in_several(lists)),
        ),
        "posterior, both by the ratio of all lists": posterior_with(w_all, d_all),
        "posterior, w_diff at ratio 0": posterior_with(w_own, d_at_zero(1)),
        "posterior, w_diff at ratio 0, times 0.25": posterior_with(w_own, d_at_zero(0.25)),
        "posterior, w_diff at ratio 0, times 0.5": posterior_with(w_own, d_at_zero(0.5)),
        "posterior, w_diff at ratio 0, times 2": posterior_with(w_own, d_at_zero(2)),
        "posterior, w_diff at ratio 0, times 4": posterior_with(w_own, d_at_zero(4)),
    },
}


def options_of(seed: int, **fixed: Any) -> SearchOptions:
    """Return the options of a seed: every idf, power, kind of sets, with and without HE."""
    choices: dict[str, Any] = {
        "sets": ("image", "feature", "auto")[seed % 3],
        "hamming": (None, 12, 24)[seed // 3 % 3],
        "idf": ("plain", "average", "none", "plain")[seed % 4],
        "idf_power": 1 + seed % 2,
        "line": LINES[seed % len(LINES)],
        "c": (30.0, 7.0)[seed % 2],
        "sigma": (16.0, 9.0)[seed % 2],
    }
    return scoring_options(**{**choices, **fixed})


def cases(k: int, **fixed: Any) -> Iterator[tuple[Definition, Matcher, MatchTable]]:
    """Yield collections with the matches of their query; every fifth has signatures of 128 bits."""
    for seed in SEEDS:
        world = random_world(100 * k + seed, k)
        if seed % 5 == 0:
            world = with_long_signatures(world, seed)
        matcher = Matcher(world_bench(world))
        yield Definition(world, options_of(seed, **fixed)), matcher, matcher.table(0)


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("reading", DEFINITIONS, ids=lambda reading: reading.__name__)
def test_a_reading_is_what_its_definition_says(reading: Weigh, k: int) -> None:
    fixed = {"hamming": 20} if reading is after_test else {}
    positive: defaultdict[str, int] = defaultdict(int)
    for definition, matcher, table in cases(k, **fixed):
        found = reading(matcher, table, definition.options)
        assert list(found) == list(DEFINITIONS[reading])
        matches = [(x, definition.features[f]) for x, f in zip(table.query.tolist(), table.feature.tolist(), strict=True)]
        for name, weight in DEFINITIONS[reading].items():
            expected = [weight(definition, x, y) for x, y in matches]
            assert found[name].tolist() == pytest.approx(expected, rel=1e-9, abs=1e-12), (name, definition.options)
            positive[name] += sum(value > 0 for value in expected)
    assert all(positive[name] > 50 for name in DEFINITIONS[reading]), positive


ONCE = ("b1", "b2", "bayes", "posterior")


def image_vote(definition: Definition, merge: str, x: int, image: int) -> float:
    """Return the vote of a query feature for an image, by sets of images: the best posting of each list votes."""
    lists = definition.lists(x)
    held: Lists = [{i for i, _ in members} for members in lists]
    own = [k for k, images in enumerate(held) if image in images]
    best = sum(max(definition.term(x, y, k) for y in lists[k] if y[0] == image) for k in own)
    if merge == "b1" or not own:
        return best
    if merge == "b2":
        return best if len(own) == definition.count else 0.0
    if len(own) >= 2:
        return best * w_own(definition, held, own)
    return best * (d_all(definition, held, own) if merge == "posterior" else 1.0)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_once_is_one_vote_per_image_and_list(k: int) -> None:
    """Which of equal postings votes is open: the sums of a query feature and an image are compared."""
    positive = 0
    for definition, matcher, table in cases(k):
        found = once(matcher, table, definition.options)
        assert list(found) == [f"{merge}, once" for merge in ONCE]
        for merge in ONCE:
            sums = np.zeros((len(table.words), definition.n_images))
            np.add.at(sums, (table.query, table.image), found[f"{merge}, once"])
            for x, image in np.ndindex(sums.shape):
                expected = image_vote(definition, merge, x, image)
                assert sums[x, image] == pytest.approx(expected, rel=1e-9, abs=1e-12), (merge, x, image, definition.options)
                positive += expected > 0
    assert positive > 500


def test_once_votes_once() -> None:
    """Three equal postings of one image in one list: one of them votes, the best if they differ."""
    words = np.zeros((1, 2), np.int32)
    bursts = np.array([[0, 1], [0, 1], [0, 2]], np.int32)
    bits = np.array([[3, 0], [1, 0], [7, 0]], np.uint64)
    world = World((bursts, np.ones((1, 2), np.int32)), (3, 3), words, (bits, bits[:1]), np.zeros((1, 2), np.uint64))
    matcher = Matcher(world_bench(world))
    table = matcher.table(0)
    plain = scoring_options(idf="none")
    assert once(matcher, table, plain)["b1, once"].sum() == 1 and rules(matcher, table, plain)["b1"].sum() == 3
    signed = scoring_options(idf="none", hamming=24)
    votes = once(matcher, table, signed)["b1, once"]
    assert votes[table.feature == 1] == pytest.approx(math.exp(-1 / 256)) and (votes[table.feature != 1] == 0).all()


@pytest.mark.parametrize("count", [2, 3, 4, 9, 50])
def test_another_leaves_nothing_in_its_place(count: int) -> None:
    other = another(count)
    assert sorted(other.tolist()) == list(range(count))
    assert all(place != number for place, number in enumerate(other.tolist()))
    assert other.tolist() == another(count).tolist()


def test_another_of_one_or_none() -> None:
    assert another(0).tolist() == [] and another(1).tolist() == [0]


def test_constants_are_those_of_the_report() -> None:
    assert CONSTANTS == (0, 0.02, 0.05, 0.1, 0.2, 0.5, 2)


def test_sets_after_the_test_need_a_threshold() -> None:
    _, matcher, table = next(cases(2))
    with pytest.raises(AssertionError, match="need a threshold"):
        after_test(matcher, table, scoring_options())


def test_readings_of_a_question_without_features() -> None:
    world = random_world(5, 2)
    world = replace(world, words=world.words[:0], query_signatures=world.query_signatures[:0])
    matcher = Matcher(world_bench(world))
    table = matcher.table(0)
    for reading in (*DEFINITIONS, once):
        for weights in reading(matcher, table, scoring_options(hamming=24)).values():
            assert weights.shape == (0,)


@pytest.mark.parametrize("norm", ["features", "tfidf", "distinct"])
def test_scores_of_readings_are_votes_over_the_norm(norm: Norm) -> None:
    for definition, matcher, table in cases(2, norm=norm):
        options = definition.options
        histograms = [reference._histogram(definition.world.images, k, definition.world.sizes[k]) for k in range(2)]
        idfs = [reference._idf(histogram, options.idf) for histogram in histograms]
        norms = reference._norms(histograms, idfs, norm)
        weights = shuffled(matcher, table, options)["bayes, r shuffled"]
        votes = [weights[table.image == image].sum() for image in range(definition.n_images)]
        expected = [vote / length if length > 0 else 0.0 for vote, length in zip(votes, norms, strict=True)]
        assert matcher.scores(table, weights, options) == pytest.approx(expected, rel=1e-5, abs=1e-9)
