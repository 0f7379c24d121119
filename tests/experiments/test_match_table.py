"""Match tables: the same pairs as by brute force, the same scores as the engine for the rules that both have."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from benches import world_bench
from polyvoc.experiments.evaluate import scoring_options
from polyvoc.experiments.match_table import UNRELATED, Matcher, MatchTable, hamming_weights
from polyvoc.experiments.paper.open_questions import (
    Weigh,
    _pair_ratios,
    ablated,
    exclusive_ratios,
    hamming_sets,
    joint_idf,
    three_differences,
    three_readings,
)
from polyvoc.options import SearchOptions
from polyvoc.scoring.rules import BayesModel
from random_collections import World, random_world

SEEDS = range(40)
LINE = (0.7, 0.2)


def matched(seed: int, k: int | None = None) -> tuple[World, Matcher, MatchTable]:
    world = random_world(seed, k)
    matcher = Matcher(world_bench(world))
    return world, matcher, matcher.table(0)


def weights_of(matcher: Matcher, table: MatchTable, options: SearchOptions) -> npt.NDArray[np.float64]:
    """Write down the weights of the rules as ARCHITECTURE.md has them."""
    terms = matcher.idf_squared(table, options.idf)
    if options.hamming is not None:
        terms = terms * hamming_weights(table, options.hamming, options.sigma)
    total = terms.sum(axis=1)
    model = BayesModel.of(options, table.n_images)
    several = table.order >= 2
    single = 1.0 if table.n_vocabularies == 1 else model.difference(table.joint_ratio)
    factor: Any = {
        "b1": 1.0,
        "b2": table.order == table.n_vocabularies,
        "bayes": np.where(several, model.intersection(table.ratio), 1.0),
        "posterior": np.where(several, model.intersection(table.ratio), single),
    }[options.merge]
    return np.asarray(total * factor, np.float64)


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
    assert table.order.tolist() == [sum(expected[pair][1]) for pair in pairs]


@pytest.mark.parametrize(
    "more",
    [
        *({"merge": merge, "hamming": h, "sigma": 14.0, "c": 7.0} for merge in ("b1", "b2", "bayes") for h in (None, 12, 24)),
        *({"hamming": h, "sigma": 14.0, "c": 7.0} for h in (None, 12, 24)),
        *({"idf": idf, "norm": norm} for idf, norm in zip(("plain", "none", "average"), ("tf", "none", "tf"), strict=True)),
    ],
    ids=str,
)
def test_scores_are_those_of_the_engine(more: dict[str, Any]) -> None:
    options = scoring_options(line=LINE, **more)
    for seed in SEEDS:
        _, matcher, table = matched(seed)
        scores = matcher.scores(table, weights_of(matcher, table, options), options)
        assert scores == pytest.approx(matcher.bench.scores(0, options), rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("k", [2, 3, 4])
def test_sets_are_counted_as_by_the_engine(k: int) -> None:
    for seed in SEEDS:
        world, matcher, table = matched(seed, k)
        engine = matcher.bench.engine
        plan = engine.plan(scoring_options(merge="bayes"))
        assert np.array_equal(table.counts, engine.counts(engine.query(world.words, None, plan), plan))


def test_distances_need_signatures() -> None:
    world = random_world(3, 2)
    table = Matcher(replace(world_bench(world), signatures=None)).table(0)
    assert table.distance is None
    with pytest.raises(AssertionError, match="no signatures"):
        hamming_weights(table)


# -- readings of the paper, as weights on the table


def sets_of(world: World, query: int) -> list[set[tuple[int, int]]]:
    """Return the features (image, number) of the list of each vocabulary."""
    words = world.words[query].tolist()
    every = [(i, n, row) for i, image in enumerate(world.images) for n, row in enumerate(image.tolist())]
    return [{(i, n) for i, n, row in every if row[k] == words[k]} for k in range(len(words))]


@pytest.mark.parametrize("k", [2, 3, 4])
def test_exclusive_ratios_by_brute_force(k: int) -> None:
    for seed in range(15):
        world, _, table = matched(seed, k)
        ratios = exclusive_ratios(table.counts)
        for query in range(len(world.words)):
            lists = sets_of(world, query)
            for mask in range(1, 1 << k):
                inside = [lists[j] for j in range(k) if mask >> j & 1]
                outside = set().union(*(lists[j] for j in range(k) if not mask >> j & 1))
                only = set.intersection(*inside) - outside
                some = set().union(*inside) - outside
                assert ratios[query, mask] == pytest.approx(len(only) / len(some) if some else 0.0)


@pytest.mark.parametrize("k", [2, 3])
def test_pair_ratios_by_brute_force(k: int) -> None:
    for seed in range(15):
        world, _, table = matched(seed, k)
        pairs = _pair_ratios(table)
        assert pairs.shape == (len(table.query), k - 1)
        for row, query in enumerate(table.query.tolist()):
            lists = sets_of(world, query)
            first = table.shared[row].tolist().index(True)
            others = [lists[j] for j in range(k) if j != first]
            expected = [len(lists[first] & other) / len(lists[first] | other) for other in others]
            assert pairs[row] == pytest.approx(expected)


READINGS: list[tuple[Weigh, int, dict[str, dict[str, Any]]]] = [
    (ablated, 2, {"b1": {"merge": "b1"}, "bayes (the paper)": {"merge": "bayes"}, "posterior (complete)": {}}),
    (three_readings, 3, {"b1": {"merge": "b1"}, "bayes, inclusive": {"merge": "bayes"}, "posterior": {}}),
    (three_differences, 3, {"posterior, free line": {}}),
    (
        hamming_sets,
        2,
        {
            "b1 + HE": {"merge": "b1", "hamming": 24},
            "bayes + HE, sets before the test": {"merge": "bayes", "hamming": 24},
            "posterior + HE, sets before the test": {"hamming": 24},
        },
    ),
    (joint_idf, 2, {"b2": {"merge": "b2"}}),
]


@pytest.mark.parametrize(("weigh", "k", "same"), READINGS)
def test_readings_are_finite_not_negative_and_those_of_the_engine(weigh: Weigh, k: int, same: dict[str, Any]) -> None:
    for seed in SEEDS:
        _, matcher, table = matched(seed, k)
        readings = weigh(matcher, table, LINE)
        for name, weights in readings.items():
            assert weights.shape == table.query.shape, name
            assert np.isfinite(weights).all() and (weights >= 0).all(), name
        for name, options in same.items():
            expected = matcher.bench.scores(0, scoring_options(line=LINE, **options))
            assert matcher.scores(table, readings[name]) == pytest.approx(expected, rel=1e-5, abs=1e-9), name


def test_sets_after_the_hamming_test_by_brute_force() -> None:
    """The ratio of lists that hold only what passes the test."""
    checked = 0
    for seed in range(25):
        _, matcher, table = matched(seed, 2)
        assert table.distance is not None
        model = BayesModel.of(scoring_options(line=LINE), table.n_images)
        found = hamming_sets(matcher, table, LINE)
        near = table.distance <= 24
        for row, query in enumerate(table.query.tolist()):
            mine = near[table.query == query]
            both, any_ = int(mine.all(axis=1).sum()), int(mine.any(axis=1).sum())
            if not near[row].any():
                assert found["posterior + HE, sets after the test"][row] == 0
                continue
            ratio = np.array([both / any_])
            weight = model.intersection(ratio) if near[row].all() else model.difference(ratio)
            expected = weight[0] * found["b1 + HE"][row]
            assert found["posterior + HE, sets after the test"][row] == pytest.approx(expected)
            checked += 1
    assert checked > 100
