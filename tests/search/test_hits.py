"""An answer is what the library finds, with a clock on each stage; an early one changes nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from polyvoc.errors import OptionError
from polyvoc.search.hits import SearchFailure, SearchResult
from polyvoc.search.index import Index, Question, ask

STAGES = ["decode", "sift", "quantise", "score"]


@pytest.fixture(scope="module")
def index(_session_index: Path) -> Index:
    """An index of the photographs, to read."""
    return Index.open(_session_index)


@pytest.mark.parametrize("preset", ["fast", "default", "best"])
def test_an_answer_is_what_a_search_finds(index: Index, photographs: Path, preset: str) -> None:
    options = index.preset(preset)  # type: ignore[arg-type]
    path = photographs / "market-c.jpg"
    image = next(row.image for row in index.images() if row.path == str(path))
    found = index.features(path)
    for asks, name, stages in (
        (path, str(path), STAGES),
        (str(path), str(path), STAGES),
        (path.read_bytes(), f"image of {path.stat().st_size} bytes", STAGES),
        (found, f"{len(found)} features", STAGES[2:]),
        (image, str(path), STAGES[3:]),
    ):
        for region in (None, (30.0, 20.0, 280.0, 200.0)):
            answer = ask(index, Question(asks, region), options)
            assert answer.hits == index.search(asks, options=options, region=region)
            assert (answer.query, answer.region, list(answer.seconds)) == (name, region, stages)
            assert ask(index, Question(asks, region, "mine"), options).query == "mine"


def test_further_words_of_an_image_take_all_stages(index: Index) -> None:
    assert list(ask(index, Question(1), replace(index.default_options, assignments=2)).seconds) == STAGES


@pytest.mark.parametrize("preset", ["fast", "default", "best"])
def test_an_early_answer_changes_nothing(index: Index, photographs: Path, preset: str) -> None:
    options = index.preset(preset)  # type: ignore[arg-type]
    for asks in (photographs / "tower-b.jpg", 5):
        told: list[SearchResult] = []
        answer = ask(index, Question(asks, (10, 10, 300, 250)), options, early=told.append)
        assert answer.hits == ask(index, Question(asks, (10, 10, 300, 250)), options).hits
        if preset == "fast":  # nothing follows
            assert told == []
            continue
        (early,) = told
        assert (early.query, early.options, early.region) == (answer.query, options, answer.region)
        assert list(early.seconds) == list(answer.seconds) and early.seconds["score"] <= answer.seconds["score"]
        assert all(hit.inliers == 0 and hit.outline is None for hit in early.hits)
        alone = replace(options, verify=0, expansion="none")
        assert early.hits == index.search(asks, options=alone, region=(10, 10, 300, 250))
        assert any(hit.inliers for hit in answer.hits)


def test_answers_as_json(index: Index) -> None:
    answer = ask(index, Question(2, (10, 10, 300, 250)), index.default_options)
    values = json.loads(json.dumps(answer.as_dict()))
    assert list(values) == ["query", "region", "options", "hits", "complete", "missing", "seconds"]
    assert values["region"] == [10, 10, 300, 250]
    assert values["hits"] == json.loads(json.dumps([asdict(hit) for hit in answer.hits]))
    assert ask(index, Question(2), index.default_options).as_dict()["region"] is None
    assert SearchFailure("a.jpg", "it is gone").as_dict() == {"query": "a.jpg", "error": "it is gone"}


def test_an_unknown_image_is_refused(index: Index) -> None:
    with pytest.raises(OptionError, match="image 99 is not in the index"):
        ask(index, Question(99), index.default_options)
