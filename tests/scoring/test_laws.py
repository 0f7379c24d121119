"""The engine against the reference on random collections, and laws that are true for every collection."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import polyvoc
import reference
from machines import Machines
from polyvoc.errors import OptionError
from polyvoc.index.segment import Segment
from polyvoc.options import Merge, SearchOptions, Sets
from polyvoc.scoring.engine import Engine
from random_collections import (
    BURSTINESS,
    GRID,
    RULES,
    World,
    grid_options,
    random_evidence,
    random_world,
    with_assignments,
    with_long_signatures,
)
from samples import unflushed

__all__ = ["unflushed"]

TOLERANCE = 1e-4  # relative; the engine may count in float32
FLOOR = 1e-6  # of the largest score: below it scores are compared absolutely


def spread_options(count: int, **fixed: Any) -> Iterator[tuple[int, SearchOptions]]:
    """Yield `count` numbers with options from all over the grid: 97 and the length of the grid are coprime."""
    for number in range(count):
        sets = np.random.default_rng([8, number]).choice(["feature", "image", "auto"])
        yield number, grid_options(97 * number, **{"sets": str(sets), **fixed})


@cache
def world_and_index(seed: int, k: int | None = None) -> tuple[World, polyvoc.Index]:
    world = any_world(seed, k)
    return world, index_of(world)


def any_world(seed: int, k: int | None = None) -> World:
    """Return the world of a seed; every third has signatures of 128 bits."""
    world = random_world(seed, k)
    return with_long_signatures(world, seed) if seed % 3 == 0 else world


def index_of(world: World, **changes: Any) -> polyvoc.Index:
    return polyvoc.Index.from_words(world.images, world.sizes, **{"signatures": world.image_signatures, **changes})


def completed(world: World, options: SearchOptions) -> SearchOptions:
    """Return the options with a likelihood table, if they need one: always the same for a world and a rule."""
    if options.merge != "likelihood" or options.likelihood_table is not None:
        return options
    bits = 64 if world.query_signatures.ndim == world.words.ndim else 128
    seed = len(world.words) + 10 * GRID.index(_grid_point(options))
    return replace(options, likelihood_table=random_evidence(seed, len(world.sizes), bits))


def _grid_point(options: SearchOptions) -> tuple[Any, ...]:
    kinds = (options.burstiness, options.idf, options.norm)
    return (options.hamming is not None, *kinds)


def engine(index: polyvoc.Index, world: World, options: SearchOptions, threads: int | None = None) -> npt.NDArray[Any]:
    signatures = world.query_signatures if options.needs_signatures else None
    options = completed(world, options)
    return np.asarray(index.score_words(world.words, signatures=signatures, options=options, threads=threads))


def expected_scores(world: World, options: SearchOptions) -> npt.NDArray[np.float64]:
    return reference.score_words(
        world.images, world.sizes, world.words, completed(world, options), world.image_signatures, world.query_signatures
    )


def assert_close(scores: npt.NDArray[Any], expected: npt.NDArray[Any], case: object) -> None:
    assert scores.shape == expected.shape, case
    assert np.isfinite(scores).all(), case
    scale = np.maximum(expected, FLOOR * expected.max(initial=0.0))
    error = np.abs(scores.astype(np.float64) - expected)
    assert (error <= TOLERANCE * scale).all(), f"{case}\nscores   {scores}\nexpected {expected}"


def assert_same(scores: npt.NDArray[Any], expected: npt.NDArray[Any], case: object) -> None:
    assert np.array_equal(scores, expected), f"{case}\nscores   {scores}\nexpected {expected}"


@pytest.mark.parametrize("sets", ["feature", "image", "auto"])
@pytest.mark.parametrize("merge", RULES)
def test_engine_agrees_with_the_reference(merge: Merge, sets: Sets) -> None:
    positive = 0
    for number in range(len(GRID)):
        world, index = world_and_index(number)
        options = grid_options(number, merge=merge, sets=sets)
        expected = expected_scores(world, options)
        positive += bool(expected.any())
        assert_close(engine(index, world, options), expected, (number, options))
    assert positive > len(GRID) / 3  # a comparison of zeros would show nothing


@pytest.mark.parametrize("assignments", [1, 2, 3])
@pytest.mark.parametrize("merge", RULES)
def test_engine_agrees_with_several_words_per_feature(merge: Merge, assignments: int) -> None:
    positive = 0
    for number, options in spread_options(250, merge=merge, assignments=assignments):
        single, index = world_and_index(number)
        world = with_assignments(single, number, assignments)
        expected = expected_scores(world, options)
        positive += bool(expected.any())
        assert_close(engine(index, world, options), expected, (number, options))
    assert positive > 60


@pytest.mark.parametrize("k", range(4, 10))
def test_engine_agrees_with_many_vocabularies(k: int) -> None:
    for merge in RULES:
        for number, options in spread_options(16, merge=merge):
            world, index = world_and_index(number, k)
            assert_close(engine(index, world, options), expected_scores(world, options), (number, options))
            several = replace(options, assignments=2)
            world = with_assignments(world, number, 2)
            assert_close(engine(index, world, several), expected_scores(world, several), (number, several))


def test_signatures_are_optional() -> None:
    for number, options in spread_options(40, hamming=None):
        world, index = world_and_index(number)
        bare = engine(index_of(world, signatures=None), world, options)
        assert_same(bare, engine(index, world, options), (number, options))
        spare = index.score_words(world.words, signatures=world.query_signatures, options=options)
        assert_same(spare, bare, (number, options))


@pytest.mark.parametrize("burstiness", BURSTINESS)
def test_segments_do_not_matter(burstiness: str) -> None:
    for number, options in spread_options(50, burstiness=burstiness):
        world, index = world_and_index(number)
        at_once = [engine(index, world, replace(options, merge=merge)) for merge in RULES]
        for segment_images in (1, 2, 3):
            parts = index_of(world, segment_images=segment_images)
            for merge, expected in zip(RULES, at_once, strict=True):
                scores = engine(parts, world, replace(options, merge=merge))
                assert_same(scores, expected, (number, segment_images, merge, options))


def test_threads_do_not_matter() -> None:
    for number, options in spread_options(40):
        world = any_world(number)
        index = index_of(world, segment_images=2)
        for merge in RULES:
            rule = replace(options, merge=merge)
            expected = engine(index, world, rule, threads=1)
            for threads in (2, 4, None):
                assert_same(engine(index, world, rule, threads=threads), expected, (number, threads, rule))


def test_order_of_images_does_not_matter() -> None:
    for number, options in spread_options(100):
        world, index = world_and_index(number)
        order = np.random.default_rng(number).permutation(len(world.images))
        shuffled = replace(
            world,
            images=tuple(world.images[i] for i in order),
            image_signatures=tuple(world.image_signatures[i] for i in order),
        )
        other = index_of(shuffled, segment_images=4)
        for merge in RULES:
            rule = replace(options, merge=merge)
            expected = engine(index, world, rule)[order].astype(np.float64)
            assert_close(engine(other, shuffled, rule), expected, (number, rule))


def test_one_vocabulary_makes_all_rules_equal() -> None:
    for number, options in spread_options(100):
        world, index = world_and_index(number, 1)
        expected = engine(index, world, replace(options, merge="b0")).astype(np.float64)
        for merge in RULES[1:-1]:  # a likelihood table weights the matches of one vocabulary, too
            rule = replace(options, merge=merge)
            assert_close(engine(index, world, rule), expected, (number, rule))


def test_nothing_in_common_gives_zero() -> None:
    for number, options in spread_options(60):
        world = any_world(number)
        # One more word per vocabulary, which only the query has.
        apart = replace(
            world,
            sizes=tuple(size + 1 for size in world.sizes),
            words=np.broadcast_to(np.array(world.sizes, dtype=np.int32), world.words.shape).copy(),
        )
        index = index_of(apart)
        for merge in RULES:
            rule = replace(options, merge=merge)
            assert_same(engine(index, apart, rule), np.zeros(len(world.images)), (number, rule))


def test_inputs_are_not_modified() -> None:
    for number, options in spread_options(40):
        for assignments in (1, 2):
            world = with_assignments(random_world(number), number, assignments)
            rule = replace(options, assignments=assignments, merge=RULES[number % len(RULES)])
            before = [array.copy() for array in world.arrays()]
            expected = engine(index_of(world), world, rule)
            for array in world.arrays():
                array.flags.writeable = False
            assert_same(engine(index_of(world), world, rule), expected, (number, rule))
            assert all(np.array_equal(a, b) for a, b in zip(before, world.arrays(), strict=True))


# -- stored and deleted


@pytest.mark.parametrize("merge", ["likelihood", "bayes"])
def test_saved_segments_score_the_same(merge: Merge, tmp_path: Path) -> None:
    for number, options in spread_options(30, merge=merge):
        world = any_world(number)
        built = index_of(world, segment_images=3)
        segments = []
        for position, segment in enumerate(built.engine.segments):
            segment.save(tmp_path / merge / f"{number}-{position}")
            segments.append(Segment.open(tmp_path / merge / f"{number}-{position}"))
        loaded = polyvoc.Index(Engine(segments, world.sizes))
        assert_same(engine(loaded, world, options), engine(built, world, options), (number, options))


@pytest.mark.parametrize("merge", RULES)
def test_deleted_images_have_no_effect(merge: Merge) -> None:
    positive = 0
    for number, options in spread_options(60, merge=merge):
        world, index = world_and_index(number)
        gone = np.random.default_rng(number).random(len(world.images)) < 0.4
        segment = index.engine.segments[0].without(np.flatnonzero(gone).tolist())
        scores = engine(polyvoc.Index(Engine([segment], world.sizes)), world, options)
        expected = expected_scores(without(world, gone), options)
        positive += bool(expected.any())
        assert_close(scores, expected, (number, options))
    assert positive > 12


def without(world: World, gone: npt.NDArray[np.bool_]) -> World:
    """Return a world without some of its images."""
    left = np.flatnonzero(~gone)
    signatures = tuple(world.image_signatures[i] for i in left)
    return replace(world, images=tuple(world.images[i] for i in left), image_signatures=signatures)


# -- sets of images, in every arrangement


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("merge", ["b2", "bayes"])
def test_sets_of_images_in_segments_on_machines_with_deletions(merge: Merge, k: int) -> None:
    positive = arranged = 0
    for number, single in spread_options(72, merge=merge):
        rng = np.random.default_rng([5, k, number])
        kind: Sets = "image" if rng.random() < 0.5 else "auto"
        options = replace(single, sets=kind, assignments=int(rng.choice([1, 1, 2, 3])))
        world = any_world(1000 * k + number, k)
        if options.assignments > 1:
            world = with_assignments(world, number, options.assignments)
        gone = rng.random(len(world.images)) < rng.choice([0, 0.3])
        step = int(rng.integers(1, 5))
        segments = [
            segment.without(np.flatnonzero(gone[step * place : step * (place + 1)]).tolist())
            for place, segment in enumerate(index_of(world, segment_images=step).engine.segments)
        ]
        expected = expected_scores(without(world, gone), options)
        positive += bool(expected.any())
        arranged += len(segments) > 2 and bool(gone.any())
        here = engine(polyvoc.Index(Engine(segments, world.sizes)), world, options)
        assert_close(here, expected, (number, options))
        for count in (1, 2, 3):
            there = polyvoc.Index(Engine(Machines(segments, world.sizes, count), world.sizes))
            assert_same(engine(there, world, options), here, (number, count, options))
    assert positive > 30 and arranged > 10


# -- the first vocabularies


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("merge", RULES)
def test_the_first_vocabularies_score_as_an_index_of_them(merge: Merge, k: int) -> None:
    positive = 0
    for number, single in spread_options(30, merge=merge):
        options = replace(single, assignments=2 if number % 4 == 0 else 1)
        world = any_world(500 * k + number, k)
        if options.assignments > 1:
            world = with_assignments(world, number, options.assignments)
        index = index_of(world, segment_images=5)
        for count in range(1, k + 1):
            first = first_columns(world, count)
            rule = completed(first, options)  # with a likelihood table of so many vocabularies
            expected = engine(index_of(first, segment_images=5), first, rule)
            positive += bool(expected.any())
            chosen = replace(rule, vocabularies=count)
            assert_close(engine(index, world, chosen), expected.astype(np.float64), (number, chosen))
            assert_close(expected, expected_scores(world, chosen), (number, chosen))
    assert positive > 12


def first_columns(world: World, count: int) -> World:
    """Return a world with its first vocabularies only."""
    return World(
        images=tuple(words[:, :count] for words in world.images),
        sizes=world.sizes[:count],
        words=world.words[:, :count],
        image_signatures=tuple(signatures[:, :count] for signatures in world.image_signatures),
        query_signatures=world.query_signatures[:, :count],
    )


def test_more_vocabularies_than_there_are() -> None:
    world, index = world_and_index(1, 2)
    with pytest.raises(OptionError, match="vocabularies=3 should be at most 2"):
        index.score_words(world.words, merge="b1", vocabularies=3)
