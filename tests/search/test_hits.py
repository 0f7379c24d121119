"""Hits: their order and groups by probability, and what a slice keeps."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.options import SearchOptions, preset
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import Candidate
from polyvoc.search.hits import Hit, Hits, SearchResult
from polyvoc.search.links import LINK, LinkGraph
from polyvoc.search.pipeline import search
from polyvoc.search.probability import LIKELY, HitProbability, default_hit_probability
from polyvoc.search.query import Query
from scenes import engine_of, world

SEEDS = range(4)
MODELS = {
    "shipped": default_hit_probability(),
    "by words alone": HitProbability((-2.0, 1.0), (-2.0, 1.0, 0.0)),
    "geometry counts against": HitProbability((3.0, 0.5), (-5.0, 0.1, 2.0)),  # a failed verification is worse than none
    "all the same": HitProbability((0.0, 0.0), (0.0, 0.0, 0.0)),
}


def hits_of(*probabilities: float | None) -> Hits:
    hits = Hits(Hit(number, f"{number}.jpg", 1.0 / (number + 1), probability=p) for number, p in enumerate(probabilities))
    hits.missing, hits.damage, hits.seconds = ((3, 5), (9, 9)), ("segment 2 is damaged",), {"score": 0.5}
    return hits


def found(engine: Engine, query: Query, options: SearchOptions, model: HitProbability) -> list[Candidate]:
    return search(engine, query, options, model)


# -- order


@pytest.mark.parametrize("name", ["fast", "default", "best"])
@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_no_hit_stands_above_a_more_probable_one(model: HitProbability, name: str) -> None:
    for seed in SEEDS:
        query, images = world(seed)
        options = replace(preset(name, 64), verify=12 if name != "fast" else 0, top=30)
        hits = found(engine_of(images, 7), query.query, options, model)
        keys = [(-(one.probability or 0.0), -one.score, one.image) for one in hits]
        assert len(hits) > 10 and keys == sorted(keys)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_fewer_hits_are_the_first_of_more(model: HitProbability) -> None:
    """The most probable candidates are shown, not those with the highest scores, however few are asked for."""
    for seed in SEEDS:
        query, images = world(seed)
        engine, options = engine_of(images, 10), replace(preset("default", 64), verify=9, top=40)
        most = found(engine, query.query, options, model)
        for top in (1, 3, 20):
            assert [one.ref for one in found(engine, query.query, replace(options, top=top), model)] == [
                one.ref for one in most[:top]
            ]


def test_segments_and_threads_do_not_matter_to_the_order_by_probability() -> None:
    for seed in SEEDS:
        query, images = world(seed)
        for name in ("default", "best"):
            options = replace(preset(name, 64), top=20)
            results = [
                [(one.image, one.score, one.probability) for one in search(engine_of(images, size), query.query, options,
                                                                           MODELS["shipped"], threads=threads)]
                for size in (1, 7, len(images)) for threads in (1, 2)
            ]  # fmt: skip
            assert results[0] and all(one == results[0] for one in results)


def test_a_minimum_drops_the_last_hits_only() -> None:
    query, images = world(1)
    engine, options = engine_of(images), replace(preset("default", 64), top=40)
    every = found(engine, query.query, options, MODELS["shipped"])
    for minimum in (0.01, 0.5, 0.99):
        kept = found(engine, query.query, replace(options, min_probability=minimum), MODELS["shipped"])
        likely = [one.probability for one in every if (one.probability or 0.0) >= minimum]
        assert [one.probability for one in kept] == likely and [one.ref for one in kept] == [
            one.ref for one in every[: len(kept)]
        ]


# -- groups


@pytest.mark.parametrize(
    "probabilities, likely, nothing",
    [
        ((0.99, LIKELY, 0.49, 0.0), 2, False),
        ((0.49, 0.1), 0, True),
        ((1.0,), 1, False),
        ((None, None), 0, False),  # not judged
        ((), 0, True),
    ],
)
def test_groups(probabilities: tuple[float | None, ...], likely: int, nothing: bool) -> None:
    hits = hits_of(*probabilities)
    assert hits.likely == hits[:likely] and hits.perhaps == hits[likely:] and hits.nothing_found is nothing
    values = SearchResult("a.jpg", preset("default"), hits).as_dict()
    assert (values["likely"], values["nothing_found"], len(values["hits"])) == (likely, nothing, len(hits))


# -- slices and copies


def test_parts_and_copies_keep_what_is_known_of_the_search() -> None:
    hits = hits_of(0.9, 0.6, 0.4, 0.1)
    parts = [hits[1:3], hits[::2], hits[:0], hits.likely, hits.perhaps, copy.copy(hits), copy.deepcopy(hits)]
    for part in parts:
        assert type(part) is Hits and not part.complete
        assert (part.missing, part.damage, part.seconds) == (hits.missing, hits.damage, hits.seconds)
    assert hits[1:3] == list(hits)[1:3] and hits[::-1][0] == hits[-1] and isinstance(hits[0], Hit)
    for above, below in pairwise(hits):
        assert above.score > below.score


@pytest.mark.parametrize("changes", [{"smooth": 1.0}, {"fuse": True}])
def test_hits_whose_evidence_was_not_measured_are_not_judged(changes: dict[str, object]) -> None:
    query, images = world(0)
    engine = engine_of(images)
    options = replace(preset("default", 64), **changes)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"min_probability=0\.9: hits have no probability with smooth or fuse"):
        search(engine, query.query, replace(options, min_probability=0.9), MODELS["shipped"])
    if "smooth" in changes:
        links = LinkGraph(np.array([(0, 1, 1.0)], LINK))
        first: list[Candidate] = []
        hits = search(engine, query.query, options, MODELS["shipped"], links, on_first=first.extend)
        for ranking in (hits, first):
            assert {one.probability for one in ranking} == {None}
            assert [one.score for one in ranking] == sorted((one.score for one in ranking), reverse=True)
