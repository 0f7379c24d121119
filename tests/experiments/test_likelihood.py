"""Likelihood tables: counted as a loop counts, fitted by the formula, and nearly the same without labels."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benches import bench_of, unsigned, world_bench
from polyvoc.errors import OptionError
from polyvoc.experiments.datasets.readers import READERS, Question
from polyvoc.experiments.evaluate import scoring_options
from polyvoc.experiments.fit.likelihood import (
    REACH,
    Tally,
    _bins,
    falling,
    fit_table,
    fit_table_pairs,
    mean_distance,
    table_figure,
    tally,
    tally_groups,
    tally_pairs,
    together,
)
from polyvoc.experiments.fit.reliability import reliability
from polyvoc.experiments.fit.true_matches import Pairs, Sampling, find_pairs, read_words, set_counts
from polyvoc.experiments.match_table import Matcher
from polyvoc.experiments.measures import Truth
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.index.writer import IndexWriter
from polyvoc.scoring.rules import groups_by_size
from polyvoc.search.index import Index
from polyvoc.types import Floats64, ImageRef
from polyvoc.vocabulary.assign import project
from polyvoc.vocabulary.vocabulary import Vocabulary, random_rotation
from random_collections import World, random_evidence, random_world, with_long_signatures
from samples import features
from views import SCENES, VIEWS

Cell = tuple[int, int, int, int]  # kind, mask, bin, distance


# -- falling sequences


def slowly_falling(values: Floats64, weights: Floats64) -> Floats64:
    """Return the nearest falling sequence by its formula: the least over a <= i of the largest mean of a..b, b >= i."""
    n = len(values)

    def mean(a: int, b: int) -> float:
        return float(np.average(values[a : b + 1], weights=weights[a : b + 1]))

    return np.array([min(max(mean(a, b) for b in range(i, n)) for a in range(i + 1)) for i in range(n)])


def test_falling_is_the_nearest_falling_sequence() -> None:
    rng = np.random.default_rng(0)
    for length in (1, 2, 3, 7, 12):
        for _ in range(20):
            values = rng.normal(0, 1, length) - rng.choice([0.0, 0.3]) * np.arange(length)
            values = np.round(values, int(rng.choice([0, 9])))  # ties, too
            weights = rng.uniform(0.1, 5, length)
            found = falling(values, weights)
            np.testing.assert_allclose(found, slowly_falling(values, weights), atol=1e-12)
            assert (np.diff(found) <= 1e-12).all()
            assert (found * weights).sum() == pytest.approx((values * weights).sum())
            np.testing.assert_allclose(falling(found, weights), found, atol=1e-12)
    assert falling(np.array([1.0, 4.0]), np.array([3.0, 1.0])).tolist() == [1.75, 1.75]


# -- counting with ground truth


def tiny_bench() -> QuantisedDataset:
    """One query feature with words (1, 1) that matters, asked of two images: 0 shows the same thing, 1 does not; 2 is junk."""
    images = [
        np.array([[1, 1], [1, 2]], np.int32),
        np.array([[1, 1], [3, 1], [5, 5]], np.int32),
        np.array([[1, 1]], np.int32),
        np.array([[1, 1], [2, 3]], np.int32),  # the query
    ]
    bits = [np.zeros(words.shape, np.uint64) for words in images]
    bits[0][0] = [0b1, 0b11]  # 1 and 2 bits away: 1.5 on average, rounded 2
    bits[0][1] = [0b111, 2**64 - 1]  # 3 bits in the first list, the second does not hold it
    bits[1][0] = [2**20 - 1, 2**20 - 1]
    bits[1][1] = [0, 2**30 - 1]
    return bench_of(images, bits, [Question("q", Path(), None)], {"": (Truth(frozenset({0, 2}), frozenset({2})),)})


def cells_of(counted: Tally) -> dict[Cell, int]:
    return {tuple(cell): int(counted.counts[tuple(cell)]) for cell in np.argwhere(counted.counts).tolist()}  # type: ignore[misc]


def test_a_hand_worked_tally() -> None:
    steps: list[tuple[str, int, int]] = []
    counted = tally(tiny_bench(), progress=lambda *step: steps.append(step))
    assert steps == [("matches: test", 1, 1)]
    assert cells_of(counted) == {(1, 3, 0, 2): 1, (1, 1, 0, 3): 1, (0, 3, 0, 20): 1, (0, 2, 0, 30): 1}
    assert counted.pairs.tolist() == [2 * 3, 2 * 2]  # unrelated, related: features of the query times those of the image
    assert (counted.bits, counted.n_vocabularies) == (64, 2)
    # union of the lists: 00, 01, 10, 11, 20; intersection: 00, 10, 20
    above, equal = tally(tiny_bench(), [0.5]), tally(tiny_bench(), [3 / 5])
    assert set(cells_of(above)) == {(1, 3, 1, 2), (1, 1, 1, 3), (0, 3, 1, 20), (0, 2, 1, 30)}
    assert {cell[2] for cell in cells_of(equal)} == {0}  # an edge belongs to the bin below it


def count_by_hand(world: World, asked: int, related: set[int], left_out: set[int], edges: tuple[float, ...]) -> Counter[Cell]:
    """Count the matches of one image of a world with loops."""
    found: Counter[Cell] = Counter()
    features = [(image, n) for image, words in enumerate(world.images) for n in range(len(words))]
    for x, mine in zip(world.images[asked], world.image_signatures[asked], strict=True):
        lists = [{(i, n) for i, n in features if world.images[i][n, k] == word} for k, word in enumerate(x)]
        for image, n in set().union(*lists) - {(i, n) for i, n in features if i in left_out}:
            held = [k for k, members in enumerate(lists) if (image, n) in members]
            apart = np.bitwise_count(mine ^ world.image_signatures[image][n]).reshape(len(lists), -1).sum(axis=1)
            compared = [lists[k] for k in held] if len(held) > 1 else lists
            ratio = len(set.intersection(*compared)) / len(set.union(*compared))
            place = sum(edge < ratio for edge in edges)
            mask, mean = sum(1 << k for k in held), sum(int(apart[k]) for k in held) / len(held)
            found[int(image in related), mask, place, math.floor(mean + 0.5)] += 1
    return found


@pytest.mark.parametrize("edges", [(), (0.25, 0.5, 0.9)])
def test_a_loop_counts_the_same(edges: tuple[float, ...]) -> None:
    counted = 0
    for seed in range(40):
        world = random_world(seed, k=1 + seed % 4)
        world = with_long_signatures(world, seed) if seed % 2 else world
        if len(world.images) < 4:
            continue
        truths = {"": (Truth(frozenset({0, 1}), frozenset({3})),) * 2}
        questions = [Question(str(q), Path(), q) for q in (0, 1)]
        bench = bench_of([*world.images], [*world.image_signatures], questions, truths)
        expected = sum((count_by_hand(world, q, {0, 1}, {q, 3}, edges) for q in (0, 1)), Counter())
        found = tally(bench, edges)
        assert cells_of(found) == dict(expected)
        lengths = [len(words) for words in world.images]
        other = sum(lengths) - lengths[0] - lengths[1] - lengths[3]
        assert found.pairs.tolist() == [other * (lengths[0] + lengths[1]), 2 * lengths[0] * lengths[1]]
        assert found.bits == (128 if seed % 2 else 64)
        counted += sum(expected.values())
    assert counted > 1000


def test_tallies_add_up() -> None:
    world = next(world for seed in range(20) if len((world := random_world(seed, k=2)).images) > 8)
    truth = Truth(frozenset({0, 1, 2}))

    def bench(*asked: tuple[int, str]) -> QuantisedDataset:
        questions = [Question(str(q), Path(), q, group=group) for q, group in asked]
        return bench_of([*world.images], [*world.image_signatures], questions, {"": (truth,) * len(questions)})

    whole = tally(bench((0, "a"), (1, "b"), (2, "a")))
    parts = [tally(bench((q, ""))) for q in range(3)]
    summed = parts[0] + parts[1] + parts[2]
    assert np.array_equal(whole.counts, summed.counts)
    assert np.array_equal(whole.pairs, summed.pairs)
    first, second = tally_groups(bench((0, "a"), (1, "b"), (2, "a")))
    assert np.array_equal(first.counts, (parts[0] + parts[2]).counts)
    assert np.array_equal(second.counts, parts[1].counts)
    assert together([first, second]).counts.sum() == whole.counts.sum() > 20
    with pytest.raises(OptionError, match="cannot be added"):
        _ = whole + tally(bench((0, "a")), [0.5])


def test_signatures_are_needed() -> None:
    with pytest.raises(OptionError, match="needs vocabularies with signatures"):
        tally(unsigned(tiny_bench()))


def test_the_medium_level_of_a_revisited_set_is_counted() -> None:
    bench = tiny_bench()
    (hard,) = bench.dataset.truths[""]
    easy = Truth(frozenset({1}))
    revisited = replace(bench, dataset=replace(bench.dataset, truths={"easy": (easy,), "medium": (hard,)}))
    assert np.array_equal(tally(revisited).counts, tally(bench).counts)


# -- fitting


def planted(k: int = 2, bits: int = 64, seed: int = 0) -> Tally:
    """Draw matches: unrelated ones around half of the bits, of related ones a tenth much nearer."""
    rng = np.random.default_rng([11, k, bits, seed])
    counts = np.zeros((2, 2**k, 1, bits + 1), np.int64)
    for mask in range(1, 2**k):
        for kind, total, near in ((0, 400_000, 0.0), (1, 20_000, 0.1)):
            chance = rng.binomial(bits, 0.45, total)
            close = rng.binomial(bits, 0.15, int(total * near))
            counts[kind, mask, 0] = np.bincount(np.concatenate([chance, close]), minlength=bits + 1)
    return Tally(counts, np.array([1e9, 3e7]), ())


@pytest.mark.parametrize(("k", "bits"), [(1, 64), (2, 64), (3, 128)])
def test_a_table_falls_to_nothing(k: int, bits: int) -> None:
    table = fit_table(planted(k, bits), source="planted")
    assert (table.groups, table.bits, table.edges, table.source) == (groups_by_size(k), bits, (), "planted")
    rows = np.array(table.rows)
    assert rows.shape == (k, bits + 1) and (np.diff(rows, axis=1) <= 0).all()
    assert (rows[:, 0] > 3).all() and (rows[:, int(REACH * bits) :] == 0).all()


def test_a_row_is_the_logarithm_of_the_ratio() -> None:
    """Of matches at distances 0, 1, ..., 9 of 23 related per thousand pairs are 512, 256, ..., 1, of unrelated all the same."""
    counts = np.zeros((2, 2, 1, 24), np.int64)
    counts[0, 1, 0, :10] = 2**30
    counts[1, 1, 0, :10] = 2 ** np.arange(30, 20, -1)
    table = fit_table(Tally(counts, np.array([5e12, 1e12]), ()))
    np.testing.assert_allclose(table.rows[0][:10], np.log(2) * np.arange(9, -1, -1), atol=1e-3)
    assert set(table.rows[0][10:]) == {0.0}  # 43 % of 23 bits are 9


def test_more_matches_of_related_images_at_all_distances_change_nothing() -> None:
    counted = planted()
    assert fit_table(replace(counted, pairs=counted.pairs * [1, 0.5])).rows == fit_table(counted).rows


def test_sets_that_are_grouped_are_counted_together() -> None:
    counted = planted(k=2)
    one = fit_table(counted, groups=(0, 0, 0, 0))
    apart = fit_table(counted, groups=(0, 0, 1, 2))
    assert (len(one.rows), len(apart.rows)) == (1, 3)
    alone = replace(counted, counts=counted.counts * (np.arange(4) == 2)[None, :, None, None])
    assert apart.rows[1] == fit_table(alone, groups=(0, 0, 0, 0)).rows[0]
    summed = replace(counted, counts=np.concatenate([0 * counted.counts[:, :1], counted.counts.sum(1, keepdims=True)], axis=1))
    assert one.rows == fit_table(summed).rows


def test_bins_of_the_ratio_are_fitted_apart() -> None:
    low, high = planted(seed=1), planted(seed=2)
    both = Tally(np.concatenate([low.counts, high.counts], axis=2), low.pairs, (0.5,))
    table = fit_table(both)
    assert table.rows == tuple(fit_table(part).rows[row] for row in (0, 1) for part in (low, high))


def test_too_few_matches_are_an_error() -> None:
    counted = planted()
    few = replace(counted, counts=counted.counts // [[[[1]]], [[[10**4]]]])
    with pytest.raises(OptionError, match=r"matches of related images are too few .* 1000 are needed: .* of the same objects"):
        fit_table(few)
    alone = replace(counted, counts=counted.counts * [[[[0]]], [[[1]]]])
    with pytest.raises(OptionError, match=r"0 matches of unrelated images are too few"):
        fit_table(alone)


def test_a_table_is_used_as_it_was_fitted() -> None:
    """The bins, groups and distances that are counted are those that the engine looks up."""
    positive = 0
    for seed in range(40):
        world = random_world(seed, k=1 + seed % 4)
        world = with_long_signatures(world, seed) if seed % 3 == 0 else world
        bench = world_bench(world)
        table = random_evidence(seed, len(world.sizes), bench.bits)
        matches = Matcher(bench).table(0)
        assert matches.distance is not None
        bins = _bins(matches.features.ratios, table.edges)[matches.query, matches.mask]
        rows = np.array(table.groups)[matches.mask] * (len(table.edges) + 1) + bins
        llr = np.array(table.rows)[rows, mean_distance(matches.shared, matches.distance)]
        options = scoring_options(merge="likelihood", likelihood_table=table)
        matcher = Matcher(bench)
        weights = matcher.terms(matches, options).sum(axis=1) / matches.features.order * np.maximum(llr, 0)
        expected = matcher.scores(matches, weights, options)
        np.testing.assert_allclose(bench.scores(0, options), expected, rtol=1e-4, atol=1e-6)
        positive += bool(expected.any())
    assert positive > 12


def test_the_figure_has_a_line_for_each_row() -> None:
    drawn = table_figure({"one": fit_table(planted(k=3)), "two": random_evidence(2, 1, 64)})
    one, two = drawn.panels
    assert [series.name for series in one.series] == ["1 list", "2 lists", "3 lists"]
    assert one.series[1].y == pytest.approx(fit_table(planted(k=3)).rows[1])
    assert len(two.series) == len(random_evidence(2, 1, 64).rows)


# -- without ground truth


@pytest.fixture(scope="module")
def labelled(views: Path, vocabularies: tuple[Vocabulary, ...], tmp_path_factory: pytest.TempPathFactory) -> QuantisedDataset:
    return Workbench(tmp_path_factory.mktemp("cache")).bench(READERS["groups"](views), vocabularies)


def test_verified_pairs_count_what_labels_do(index: Index, labelled: QuantisedDataset) -> None:
    """All pairs of views are verified and no others, and the crowd are all photographs."""
    steps: list[tuple[str, int, int]] = []
    without, known = tally_pairs(index, find_pairs(index), lambda *step: steps.append(step)), tally(labelled)
    assert np.array_equal(without.counts[1], known.counts[1])
    assert without.pairs[1] == known.pairs[1]
    assert steps[-1] == ("matches", SCENES * VIEWS, SCENES * VIEWS)
    assert (without.counts[0] <= known.counts[0]).all()  # some of the others are in doubt
    assert 0.9 * known.pairs[0] < without.pairs[0] < known.pairs[0]
    assert without.counts[0].sum() / without.pairs[0] == pytest.approx(known.counts[0].sum() / known.pairs[0], rel=0.05)


def test_a_part_of_the_pairs_gives_nearly_the_same_table(index: Index, labelled: QuantisedDataset) -> None:
    """Geometry confirms the easier pairs: the table is nearly that of the ground truth all the same."""
    pairs = find_pairs(index, Sampling(inliers=95))
    assert 20 <= pairs.count < 0.9 * SCENES * VIEWS * (VIEWS - 1)
    table, known = fit_table_pairs(index, pairs), fit_table(tally(labelled))
    assert reliability(table, tally_groups(labelled)).error < 0.6
    assert np.abs(np.array(table.rows) - np.array(known.rows))[:, 8:].max() < 1.0
    assert table.source == f"{pairs.count} verified pairs of 18 among 18 photographs, words 300 + 300, 64 bits"


def test_doubtful_and_touching_images_are_not_unrelated(index: Index) -> None:
    """No image counts as unrelated that is related, doubtful, or related to a related one."""
    places = [(number, p) for number, s in enumerate(index.engine.segments) for p in s.live_positions().tolist()]
    query, near, friend, doubt = places[:4]
    lengths = {place: len(read_words(index, place).words) for place in places}
    related: dict[ImageRef, tuple[ImageRef, ...]] = {query: (near,)}
    alone = tally_pairs(index, Pairs(Sampling(), (query,), related, {query: frozenset()}))
    others = [place for place in places if place not in (query, near)]
    assert alone.pairs.tolist() == [lengths[query] * sum(lengths[p] for p in others), lengths[query] * lengths[near]]
    chain = Pairs(Sampling(), (query, near), {**related, near: (friend,)}, {query: frozenset({doubt}), near: frozenset()})
    both = tally_pairs(index, chain)
    rest = [p for p in others if p != friend]
    unrelated = lengths[query] * sum(lengths[p] for p in rest if p != doubt) + lengths[near] * sum(lengths[p] for p in rest)
    assert both.pairs.tolist() == [unrelated, lengths[query] * lengths[near] + lengths[near] * lengths[friend]]


def test_bins_of_the_ratio_without_labels(index: Index) -> None:
    pairs = find_pairs(index, Sampling(queries=4))
    plain = tally_pairs(index, pairs)
    binned = tally_pairs(index, pairs, edges=[0.1, 0.3])
    assert binned.edges == (0.1, 0.3)
    assert np.array_equal(binned.counts.sum(axis=2, keepdims=True), plain.counts)
    assert (binned.counts.sum(axis=(0, 1, 3)) > 0).all()
    query = read_words(index, next(iter(pairs.related)))
    counts = set_counts(index, query)
    words = [read_words(index, (n, p)).words for n, s in enumerate(index.engine.segments) for p in s.live_positions()]
    everyone = np.concatenate(words)
    for x in range(0, len(query.words), 40):
        shared = (everyone == query.words[x]) @ [1, 2]
        own = (query.words == query.words[x]) @ [1, 2]
        expected = np.bincount(shared, minlength=4) - np.bincount(own, minlength=4)
        assert counts[x, 1:].tolist() == expected[1:].tolist()


def test_few_pairs_are_an_error(index: Index) -> None:
    pairs = find_pairs(index, Sampling(queries=3))
    with pytest.raises(OptionError, match="3 queries of the index have 6 verified pairs"):
        fit_table_pairs(index, pairs)
    assert tally_pairs(index, Pairs(Sampling(), (), {}, {})).counts.sum() == 0


def test_long_signatures_and_images_without_features(views: Path, vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> None:
    rotation = random_rotation(128, 128)
    long = [Vocabulary.create(v.centroids, project(v.centroids, rotation), rotation) for v in vocabularies]
    path = tmp_path / "long.polyvoc"
    with IndexWriter.open(path, long) as writer:
        writer.update([views])
        writer.add("nothing", features(0, count=0, dimension=128))
    index = Index.open(path)
    pairs = find_pairs(index)
    assert pairs.count == SCENES * VIEWS * (VIEWS - 1)
    table = fit_table_pairs(index, pairs)
    assert (table.bits, table.n_vocabularies) == (128, 2)
    labelled = fit_table(tally(Workbench(tmp_path / "cache").bench(READERS["groups"](views), long)))
    assert np.abs(np.array(table.rows) - np.array(labelled.rows)).max() < 0.5
