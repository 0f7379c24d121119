"""Scoring by codes: the engine equals the reference on random collections; laws; tables and their files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import reference
from machines import Machines
from polyvoc.errors import DamagedError, OptionError
from polyvoc.index.reading import read_features
from polyvoc.index.segment import Segment
from polyvoc.scoring.codes import code_table_as_dict, code_table_from_dict, default_code_table
from polyvoc.scoring.engine import Engine
from polyvoc.types import CodeTable
from polyvoc.vocabulary.codes import CodedQuery
from random_collections import CodedWorld, coded_engine, plain, random_coded_world
from samples import unflushed

__all__ = ["unflushed"]

Scores = npt.NDArray[np.float32]
SMALL = CodeTable((1.0, 1.1), ((4.0, 1.0, 0.0), (3.0, 0.5, 0.0), (2.0, 0.25, -1.0)), 20, "a test")


def worlds(count: int) -> Iterator[tuple[int, CodedWorld, Scores]]:
    """Yield numbers with worlds, of 64 and of 128 bits in turn, and their scores in one segment by one thread."""
    for number in range(count):
        yield number, *_world(number)


@cache
def _world(number: int) -> tuple[CodedWorld, Scores]:
    world = random_coded_world(number, 64 if number % 2 else 128)
    return world, scores(coded_engine(world), world, threads=1)


def scores(engine: Engine, world: CodedWorld, query: CodedQuery | None = None, threads: int | None = None) -> Scores:
    plan = engine.plan(world.options)
    return np.concatenate([np.empty(0, np.float32), *engine.scores(query or world.query, plan, threads)])


def chosen(query: CodedQuery, rows: npt.NDArray[np.int64]) -> CodedQuery:
    """Return some features of a query."""
    bits, width = query.magnitudes.shape[1], query.words.shape[1]
    magnitudes = query.magnitudes.reshape(-1, width * bits)[rows].reshape(-1, bits)
    return CodedQuery(query.words[rows], query.ratios[rows], query.codes[rows], magnitudes, query.totals[rows])


# -- the reference


@pytest.mark.parametrize("bits", [64, 128])
def test_engine_equals_the_reference(bits: int) -> None:
    positive = 0
    for seed in range(150):
        world = random_coded_world(seed, bits)
        expected = reference.score_codes(world.images, world.query, world.table)
        positive += bool(expected.any())
        assert np.array_equal(scores(coded_engine(world), world), expected.astype(np.float32)), seed
    assert positive > 75  # a comparison of zeros would show nothing


# -- laws


def test_segments_and_machines_do_not_matter() -> None:
    for number, world, expected in worlds(60):
        for segment_images in (1, 2, 5):
            parts = coded_engine(world, segment_images)
            assert np.array_equal(scores(parts, world), expected), (number, segment_images)
            there = Engine(Machines(parts.segments, (), 1 + number % 3), ())
            assert np.array_equal(scores(there, world), expected), (number, segment_images)


def test_threads_do_not_matter() -> None:
    for number, world, expected in worlds(60):
        for segment_images in (1, 1000):  # threads take whole segments, or share one
            engine = coded_engine(world, segment_images)
            for threads in (1, 2, 3, None):
                assert np.array_equal(scores(engine, world, threads=threads), expected), (number, segment_images, threads)


def test_saved_segments_score_the_same(tmp_path: Path) -> None:
    for number, world, expected in worlds(30):
        segments = []
        for position, segment in enumerate(coded_engine(world, 4).segments):
            segment.save(tmp_path / f"{number}-{position}")
            segments.append(Segment.open(tmp_path / f"{number}-{position}"))
        assert np.array_equal(scores(Engine(segments, ()), world), expected), number


def test_reading_ahead_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, world, expected in worlds(20):
        (segment,) = coded_engine(world).segments
        segment.save(tmp_path / str(number))
        before = {name: array.copy() for name, array in segment.arrays.items()}
        for gap in (0, 1 << 20):
            monkeypatch.setattr("polyvoc.index.reading.GAP", gap)
            mapped = Segment.open(tmp_path / str(number))
            for threads in (1, 3):
                assert np.array_equal(scores(Engine([mapped], ()), world, threads=threads), expected), (number, gap)
            read_features(mapped, np.arange(mapped.n_images)[::-1])
            assert all(np.array_equal(mapped.arrays[name], array) for name, array in before.items()), number


def test_order_of_images_does_not_matter() -> None:
    for number, world, expected in worlds(60):
        order = np.random.default_rng(number).permutation(len(world.images))
        shuffled = replace(world, images=tuple(world.images[i] for i in order))
        assert np.array_equal(scores(coded_engine(shuffled, 4), world), expected[order]), number


def test_order_of_query_features_does_not_matter() -> None:
    for number, world, expected in worlds(60):
        query = chosen(world.query, np.random.default_rng(number).permutation(len(world.query.words)))
        assert np.array_equal(scores(coded_engine(world), world, query), expected), number


def test_deleted_images_have_no_effect() -> None:
    positive = 0
    for number, world, _ in worlds(60):
        gone = np.random.default_rng(number).random(len(world.images)) < 0.4
        marked = coded_engine(world).segments[0].without(np.flatnonzero(gone).tolist())
        left = replace(world, images=tuple(image for image, is_gone in zip(world.images, gone, strict=True) if not is_gone))
        expected = np.zeros(len(gone), np.float32)
        expected[~gone] = scores(coded_engine(left), world) if left.images else 0
        positive += bool(expected.any())
        assert np.array_equal(scores(Engine([marked], ()), world), expected), number
        merged = Engine([Segment.build(marked.live_batch(), (), world.size)], ())
        assert np.array_equal(scores(merged, world), expected[~gone]), number
    assert positive > 12


def test_features_without_words_change_nothing() -> None:
    for number, world, expected in worlds(40):
        query = world.query
        none = replace(query, words=np.full_like(query.words, -1))
        engine = coded_engine(world)
        assert not scores(engine, world, none).any(), number
        assert np.array_equal(scores(engine, world, CodedQuery.concatenate([none, query, none])), expected), number


def test_joined_queries_add_their_votes() -> None:
    for number, world, expected in worlds(40):
        halves = np.array_split(np.arange(len(world.query.words)), 2)
        parts = [chosen(world.query, rows) for rows in halves]
        engine = coded_engine(world)
        assert np.array_equal(scores(engine, world, CodedQuery.concatenate(parts)), expected), number
        sums = sum(scores(engine, world, part).astype(np.float64) for part in parts)
        assert np.allclose(sums, expected, rtol=1e-6), number


def test_a_narrow_part_cuts_the_words_of_all() -> None:
    world = next(world for _, world, _ in worlds(60) if world.query.words.shape[1] == 4 and len(world.query.words) > 2)
    wide = world.query
    magnitudes = wide.magnitudes[np.arange(len(wide.magnitudes)) % 4 < 2]
    narrow = CodedQuery(wide.words[:, :2], wide.ratios[:, :2], wide.codes[:, :2], magnitudes, wide.totals[:, :2])
    joined = CodedQuery.concatenate([wide, narrow])
    for name, values in vars(joined).items():
        assert np.array_equal(values, np.concatenate([getattr(narrow, name)] * 2)), name


def test_words_beside_codes_change_nothing() -> None:
    for number, world, expected in worlds(30):
        (coded,) = coded_engine(world).segments
        rng = np.random.default_rng(number)
        words = rng.integers(0, 5, (coded.n_features, 2)).astype(np.int32)
        both = Segment.build(replace(coded.live_batch(), words=words), (5, 5), world.size)
        alone = Segment.build(replace(both.live_batch(), codes=None), (5, 5))
        assert np.array_equal(scores(Engine([both], (5, 5)), world), expected), number
        found = []
        for segment in (both, alone):
            engine = Engine([segment], (5, 5))
            plan = engine.plan(plain())
            found.append(engine.scores(engine.query(words[:9], None, plan), plan)[0])
        assert np.array_equal(*found), number


def test_inputs_are_not_modified() -> None:
    for number, world, expected in worlds(30):
        before = [array.copy() for array in world.arrays()]
        for array in world.arrays():
            array.flags.writeable = False
        assert np.array_equal(scores(coded_engine(world, 3), world), expected), number
        assert all(map(np.array_equal, before, world.arrays())), number
        for array in world.arrays():
            array.flags.writeable = True


def test_the_best_are_those_with_the_highest_scores() -> None:
    for number, world, expected in worlds(30):
        engine = coded_engine(world, 3)
        best, _ = engine.best(world.query, engine.plan(world.options), 4)
        order = np.lexsort((np.arange(len(expected)), -expected))
        assert [one.image for one in best] == [i for i in order if expected[i] > 0][:4], number
        assert [one.score for one in best] == expected[[one.image for one in best]].tolist(), number


# -- collections and queries without codes


def test_a_collection_without_codes_scores_nothing() -> None:
    words = Engine.from_words([np.zeros((3, 1), int)], (5,))
    for engine in (words, Engine([], ())):
        world = random_coded_world(1, 64)
        assert engine.plan(world.options).is_empty and not scores(engine, world).any()
        assert engine.best(world.query, engine.plan(world.options), 5) == ([], [])


def test_what_a_plan_scores_by() -> None:
    world = random_coded_world(2, 64)
    engine = coded_engine(world)
    assert engine.code_bits == 64
    assert engine.query_of(world.query, None, None, engine.plan(world.options)) is world.query
    with pytest.raises(OptionError, match="merge='codes' needs the codes of the query"):
        engine.query_of(None, np.zeros((1, 1), int), None, engine.plan(world.options))
    words = Engine.from_words([np.zeros((3, 1), int)], (5,))
    with pytest.raises(OptionError, match="merge='posterior' needs the words of the query"):
        words.query_of(world.query, None, None, words.plan(plain()))


def test_codes_that_do_not_fit_raise() -> None:
    world = random_coded_world(4, 64)
    batch = coded_engine(world).segments[0].live_batch()
    assert batch.codes is not None and len(batch.codes.words)
    few = replace(batch, codes=batch.codes.chosen(slice(1, None)))
    for made, size, line in ((few, world.size, "codes of .* features where"), (batch, 0, "fine words should be 0 to -1")):
        with pytest.raises(OptionError, match=line):
            Segment.build(made, (), size)


# -- tables


def test_the_shipped_table_is_complete() -> None:
    table = default_code_table(128)
    rows = np.array(table.rows)
    assert rows.shape == (len(table.edges) + 1, 129) and 0 < table.reach < 64
    assert table.edges[0] == 1  # the first row is that of the nearest word
    assert (np.diff(rows, axis=1) <= 0).all() and (rows[:, 0] > 3).all()
    assert (rows[:, 64:] <= 0).all()  # at the distance of chance a match is no evidence
    assert (np.diff(rows[:, 0]) < 0).all()  # matches in lists of farther words are worth less
    assert default_code_table(128) is table


def test_tables_of_shorter_codes_are_in_proportion() -> None:
    long, short = default_code_table(128), default_code_table(64)
    assert (short.edges, 2 * short.reach) == (long.edges, long.reach)
    assert np.allclose(2 * np.array(short.rows), long.rows, atol=2e-3)


def test_a_table_comes_back_from_plain_values() -> None:
    for table in (SMALL, default_code_table(128)):
        assert code_table_from_dict(json.loads(json.dumps(code_table_as_dict(table))), "") == table


@pytest.mark.parametrize(
    "change",
    [
        {"format": "polyvoc likelihood table"},
        {"rows": []},
        {"rows": [[1.0, 0.0]] * 2},
        {"rows": [[1.0, 0.0]] * 2 + [[1.0]]},
        {"rows": [[1.0]] * 3},
        {"rows": [["a", "b"]] * 3},
        {"rows": [[1.0, float("nan")]] * 3},
        {"rows": None},
        {"edges": [1.1, 1.0]},
        {"edges": [1.0, 1.0]},
        {"edges": [1.0, float("inf")]},
        {"reach": -1},
        {"reach": "far"},
    ],
    ids=str,
)
def test_a_damaged_table_raises_one_line(change: dict[str, Any]) -> None:
    with pytest.raises(DamagedError, match=r"^here: not a likelihood table of codes; fit one: polyvoc calibrate .*$"):
        code_table_from_dict({**code_table_as_dict(SMALL), **change}, "here")
