"""Match tables: the same pairs as by brute force, the same scores as the engine for the rules that both have."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest

from benches import unsigned, world_bench
from polyvoc.experiments.evaluate import scoring_options
from polyvoc.experiments.match_table import UNRELATED, Matcher, MatchSets, MatchTable, hamming_weights, near
from polyvoc.experiments.paper.match_weights import rules
from polyvoc.options import Idf, Norm, SearchOptions, Sets
from random_collections import World, random_world, with_long_signatures

SEEDS = range(40)
KINDS: tuple[Sets, ...] = ("feature", "image")


def matched(seed: int, k: int | None = None) -> tuple[World, Matcher, MatchTable]:
    world = random_world(seed, k)
    matcher = Matcher(world_bench(world))
    return world, matcher, matcher.table(0)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_pair_that_shares_a_word_is_there_once(seed: int) -> None:
    world, _, table = matched(seed)
    features = []
    for image, (words, signatures) in enumerate(zip(world.images, world.image_signatures, strict=True)):
        features += [(image, *pair) for pair in zip(words.tolist(), signatures.tolist(), strict=True)]
    expected = {}
    for query, own in enumerate(world.words.tolist()):
        bits = world.query_signatures[query].tolist()
        for feature, (image, others, other_bits) in enumerate(features):
            same = [a == b for a, b in zip(own, others, strict=True)]
            if any(same):
                far = [(a ^ b).bit_count() if s else UNRELATED for a, b, s in zip(bits, other_bits, same, strict=True)]
                expected[query, feature] = (image, same, far)
    assert table.distance is not None
    rows = zip(table.image.tolist(), table.shared.tolist(), table.distance.tolist(), strict=True)
    pairs = list(zip(table.query.tolist(), table.feature.tolist(), strict=True))
    assert len(pairs) == len(set(pairs))
    assert dict(zip(pairs, rows, strict=True)) == expected
    assert table.features.order.tolist() == [sum(expected[pair][1]) for pair in pairs]


def lists_of(world: World, query: int, kind: Sets) -> list[set[Any]]:
    """Return the features (image, number), or the images, of the list of each vocabulary."""
    words = world.words[query].tolist()
    every = [(i, n, row) for i, image in enumerate(world.images) for n, row in enumerate(image.tolist())]
    lists = [{(i, n) for i, n, row in every if row[k] == words[k]} for k in range(len(words))]
    return [*lists] if kind == "feature" else [{i for i, _ in members} for members in lists]


def sets_of(table: MatchTable, kind: Sets) -> MatchSets:
    return table.features if kind == "feature" else table.images


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_sets_by_brute_force(kind: Sets, k: int) -> None:
    checked = 0
    for seed in SEEDS:
        world, _, table = matched(seed, k)
        sets = sets_of(table, kind)
        starts = np.cumsum([0, *(len(words) for words in world.images)])
        for query in range(len(world.words)):
            lists = lists_of(world, query, kind)
            exact = [
                sum(all((element in lists[j]) == bool(mask >> j & 1) for j in range(k)) for element in set().union(*lists))
                for mask in range(1 << k)
            ]
            assert sets.counts[query].tolist() == exact
            for row in np.flatnonzero(table.query == query).tolist():
                image = int(table.image[row])
                element = image if kind == "image" else (image, int(table.feature[row] - starts[image]))
                own = [j for j in range(k) if element in lists[j]]
                assert sets.mask[row] == sum(1 << j for j in own) and sets.order[row] == len(own)
                chosen = [lists[j] for j in own]
                assert sets.ratio[row] == len(set.intersection(*chosen)) / len(set.union(*chosen))
                assert sets.joint_ratio[row] == len(set.intersection(*lists)) / len(set.union(*lists))
                checked += len(own) > 1
    assert k == 1 or checked > 100


def test_pairs_number_query_features_and_images() -> None:
    for seed in SEEDS:
        _, _, table = matched(seed)
        places = list(zip(table.query.tolist(), table.image.tolist(), strict=True))
        numbers = {place: number for number, place in enumerate(sorted(set(places)))}
        assert table.pair.tolist() == [numbers[place] for place in places]


@pytest.mark.parametrize("idf", get_args(Idf))
@pytest.mark.parametrize("norm", get_args(Norm))
def test_scores_are_those_of_the_engine(norm: Norm, idf: Idf) -> None:
    """For every rule, with either kind of sets, idf and idf squared, with signatures and without."""
    positive = 0
    for kind, power, hamming, seed in itertools.product(("feature", "image", "auto"), (1, 2), (None, 12, 24), range(6)):
        world = random_world(seed + 50 * power + 7 * (hamming or 0))
        if seed % 3 == 0:
            world = with_long_signatures(world, seed)
        options = scoring_options(
            idf=idf, norm=norm, idf_power=power, sets=kind, hamming=hamming, line=(0.7, 0.2), c=7.0, sigma=14.0
        )
        matcher = Matcher(world_bench(world))
        table = matcher.table(0)
        for merge, weights in rules(matcher, table, options).items():
            rule: SearchOptions = replace(options, merge=merge)  # type: ignore[arg-type]  # a rule's name
            expected = matcher.bench.scores(0, rule)
            positive += bool(expected.any())
            assert matcher.scores(table, weights, options) == pytest.approx(expected, rel=1e-5, abs=1e-9), (seed, rule)
    assert positive > 100


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_sets_are_counted_as_by_the_engine(kind: Sets, k: int) -> None:
    for seed in SEEDS:
        world, matcher, table = matched(seed, k)
        engine = matcher.bench.engine
        plan = engine.plan(scoring_options(merge="bayes", sets=kind))
        assert np.array_equal(sets_of(table, kind).counts, engine.counts(engine.query(world.words, None, plan), plan))


def test_distances_need_signatures() -> None:
    world = random_world(3, 2)
    table = Matcher(unsigned(world_bench(world))).table(0)
    assert table.distance is None
    with pytest.raises(AssertionError, match="no signatures"):
        hamming_weights(table, 24, 16.0)


def test_words_that_are_not_shared_are_never_near() -> None:
    for seed in SEEDS:
        _, _, table = matched(seed, 2)
        assert near(table, 1000).tolist() == table.shared.tolist()
        assert not hamming_weights(table, 1000, 1e9)[~table.shared].any()
