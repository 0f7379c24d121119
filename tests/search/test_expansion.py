"""Verified hits ask along: what they add, which may, and how a majority decides on the bits of a signature."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from polyvoc.options import Expansion, SearchOptions, preset
from polyvoc.search.pipeline import COPY_SHARE, score_all, search
from polyvoc.search.query import expand
from polyvoc.search.verify import default_match_table, inlier_pairs
from scenes import SIDE, Picture, engine_of, joined, picture, scrambled, seen_again

KINDS: tuple[Expansion, ...] = ("average", "hamming")
IDENTITY = np.eye(3)[:2]
BRIDGE, TARGET = 1, 2  # of a collection: shares something with the query; shares something with the bridge only


def options_for(bits: int, expansion: Expansion, **changes: Any) -> SearchOptions:
    return replace(preset("best", bits), expansion=expansion, top=50, **changes)


def answers(pictures: list[Picture], query: Picture, options: SearchOptions) -> list[int]:
    engine = engine_of(pictures, 2)
    return [engine.image_at(hit.place) for hit in search(engine, query.asked, options)]


def apart(rng: np.random.Generator, count: int, bits: int, shift: int) -> Picture:
    """Give a picture of words that pictures of another shift (0 to 3) have not."""
    drawn = picture(rng, count, bits)
    return replace(drawn, words=drawn.words % 100 + 100 * shift)


# -- what is found


def bridge(bits: int, seed: int = 0, shift: float = 0.0) -> tuple[Picture, list[Picture]]:
    """Give a query; and images: something else; most of the query with what the query lacks; that alone.

    shift: how far beyond the query lies what it lacks, in sides of a picture.
    """
    rng = np.random.default_rng([12, seed])
    query, rest = apart(rng, 30, bits, 0), apart(rng, 30, bits, 1)
    rest = replace(rest, xy=rest.xy + shift * SIDE)
    whole = joined(seen_again(rng, joined(query.chosen(slice(0, 20)), rest)), apart(rng, 10, bits, 2))
    target = joined(seen_again(rng, rest, stray=0.0), apart(rng, 10, bits, 2))
    return query, [apart(rng, 30, bits, 3), whole, target]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [0, 64, 128])
def test_what_shares_nothing_with_the_query_is_found_through_a_verified_hit(bits: int, kind: Expansion) -> None:
    for seed in range(4):
        query, pictures = bridge(bits, seed)
        alone = answers(pictures, query, options_for(bits, "none"))
        assert BRIDGE in alone and not set(alone) & {TARGET}
        assert answers(pictures, query, options_for(bits, kind))[:2] in ([BRIDGE, TARGET], [TARGET, BRIDGE])


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_beyond_the_query_does_not_join(kind: Expansion) -> None:
    for shift, joins in ((0.0, True), (0.1, True), (2.0, False)):
        query, pictures = bridge(64, shift=shift)
        assert (TARGET in answers(pictures, query, options_for(64, kind))) == joins


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_of_the_query_adds_nothing(kind: Expansion) -> None:
    """Not even what it shows besides: whoever asks for a copy has seen all of it."""
    rng = np.random.default_rng(3)
    query, pictures = bridge(64, 1)
    rest = apart(rng, 20, 64, 1)
    pictures[BRIDGE] = joined(seen_again(rng, query, stray=0.0), rest)
    pictures[TARGET] = joined(seen_again(rng, rest, stray=0.0))
    engine = engine_of(pictures)
    alone, seen = score_all(engine, query.asked, options_for(64, "none"))
    assert seen[0, BRIDGE].inliers > COPY_SHARE * len(query)
    again, _ = score_all(engine, query.asked, options_for(64, kind))
    assert np.array_equal(again[0], alone[0]) and again[0][TARGET] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_hit_with_few_inliers_does_not_speak(kind: Expansion) -> None:
    rng = np.random.default_rng(4)
    for shared, heard in ((3, False), (14, True)):
        query, pictures = bridge(64, 2)
        rest = apart(rng, 30, 64, 1)
        some = query.chosen(slice(0, shared))
        pictures[BRIDGE] = seen_again(rng, joined(some, rest), stray=0.0)
        pictures[TARGET] = seen_again(rng, rest, stray=0.0)
        assert (TARGET in answers(pictures, query, options_for(64, kind))) == heard


@pytest.mark.parametrize("kind", KINDS)
def test_words_without_the_arrangement_do_not_speak(kind: Expansion) -> None:
    query, pictures = bridge(64, 3)
    pictures[BRIDGE] = scrambled(np.random.default_rng(1), pictures[BRIDGE])
    assert TARGET not in answers(pictures, query, options_for(64, kind))


@pytest.mark.parametrize("kind", KINDS)
def test_the_best_verified_speak_first(kind: Expansion) -> None:
    rng = np.random.default_rng(6)
    query, first, second = (apart(rng, 30, 64, shift) for shift in range(3))
    pictures = [
        seen_again(rng, joined(query.chosen(slice(0, 12)), second), stray=0.0),
        seen_again(rng, joined(query.chosen(slice(8, 30)), first), stray=0.0),
        seen_again(rng, first, stray=0.0),
        seen_again(rng, second, stray=0.0),
    ]
    assert set(answers(pictures, query, options_for(64, kind, expand=1))) == {0, 1, 2}
    assert set(answers(pictures, query, options_for(64, kind, expand=2))) == {0, 1, 2, 3}


# -- how bits are decided on


def signed(query: Picture, bits: int, changed: list[int]) -> Picture:
    """Give a copy of a picture with the same bits of every signature changed."""
    assert query.signatures is not None
    planes = [np.uint64(sum(1 << (bit % 64) for bit in changed if bit // 64 == plane)) for plane in range(bits // 64)]
    return replace(query, signatures=query.signatures ^ (planes[0] if bits == 64 else np.array(planes)))


def expanded(query: Picture, hits: list[Picture], kind: Expansion, bits: int) -> tuple[Any, Any]:
    segment = engine_of(hits).segments[0]
    table = default_match_table(3, bits)
    sketch = query.asked.image_words
    pairs = [inlier_pairs(sketch, segment, position, table) for position in range(len(hits))]
    spoken = [(segment.image_words(position), IDENTITY, pairs[position]) for position in range(len(hits))]
    return expand(sketch, spoken, kind)


@pytest.mark.parametrize("bits", [64, 128])
def test_most_voices_decide_on_a_bit(bits: int) -> None:
    """The query has a voice and a half: it takes two more against it than with it."""
    query = picture(np.random.default_rng(7), 12, bits)
    last = bits - 1
    ballots = [  # the bits that each hit would change; and what comes of it
        ([[0, last]], []),  # 1.5 - 1
        ([[0, last], [0, 5]], [0]),  # bit 0: 1.5 - 2; the others: 1.5 - 1 + 1
        ([[0, last], [0, last], []], []),  # 1.5 - 2 + 1
        ([[0, last], [0, last], [0]], [0]),  # bit 0: 1.5 - 3; the last: 1.5 - 2 + 1
        ([[0, last], [last], [last], [1]], [last]),  # the last: 1.5 - 3 + 1
        ([[], []], []),
    ]
    for changes, expected in ballots:
        words, signatures = expanded(query, [signed(query, bits, change) for change in changes], "hamming", bits)
        wanted = signed(query, bits, expected).signatures
        assert wanted is not None and np.array_equal(words, query.words)  # what matches does not join
        assert np.array_equal(signatures.reshape(wanted.shape), wanted), changes


def test_a_bit_is_decided_on_by_those_of_the_same_word_only() -> None:
    query = picture(np.random.default_rng(8), 12)
    hits = [signed(query, 64, [3]) for _ in range(2)]
    words = query.words.copy()
    words[:, 1] = (words[:, 1] + 1) % 400
    hits = [replace(hit, words=words) for hit in hits]
    _, signatures = expanded(query, hits, "hamming", 64)
    own, theirs = query.signatures, hits[0].signatures
    assert own is not None and theirs is not None
    assert np.array_equal(signatures[:, 1, 0], own[:, 1])
    assert np.array_equal(signatures[:, [0, 2], 0], theirs[:, [0, 2]])


@pytest.mark.parametrize("bits", [64, 128])
def test_on_average_all_features_join_as_they_are(bits: int) -> None:
    query = picture(np.random.default_rng(9), 12, bits)
    hit = signed(query, bits, [0])
    words, signatures = expanded(query, [hit], "average", bits)
    assert query.signatures is not None and hit.signatures is not None
    assert np.array_equal(words, np.concatenate([query.words, hit.words]))
    both = np.concatenate([query.signatures, hit.signatures])
    assert np.array_equal(signatures.reshape(both.shape), both)


def test_without_signatures_both_ways_are_the_same() -> None:
    query, pictures = bridge(0)
    (words, nothing), (same, none) = (expanded(query, pictures, kind, 0) for kind in KINDS)
    assert nothing is none is None
    assert np.array_equal(words, same) and len(words) > len(query)


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_stay_as_they_are(kind: Expansion) -> None:
    query = picture(np.random.default_rng(10), 12)
    before = [array.copy() for array in query.arrays()]
    for array in query.arrays():
        array.flags.writeable = False
    expanded(query, [signed(query, 64, [1]) for _ in range(3)], kind, 64)
    for old, new in zip(before, query.arrays(), strict=True):
        np.testing.assert_array_equal(old, new)
