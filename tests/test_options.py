"""The presets are ways to search that every index can go."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.options import Preset, preset
from polyvoc.search.pipeline import search
from samples import build, collection, features, unflushed, vocabularies
from scenes import engine_of, picture, seen_again

__all__ = ["unflushed"]


@pytest.mark.parametrize("bits", [0, 64, 128])
@pytest.mark.parametrize("name", get_args(Preset))
def test_a_preset_answers_with_and_without_signatures(name: str, bits: int) -> None:
    rng = np.random.default_rng(5)
    query = picture(rng, 30, bits)
    engine = engine_of([picture(rng, 30, bits), seen_again(rng, query), picture(rng, 30, bits)])
    options = preset(name, bits)
    assert options.signed == (bits > 0)
    hits = search(engine, query.asked, options)
    assert engine.image_at(hits[0].place) == 1
    assert (hits[0].inliers > 15) == (name != "fast")


def test_presets_differ_in_their_effort() -> None:
    for signed in (True, False):
        fast, default, best = (preset(name, 128 if signed else 0) for name in get_args(Preset))
        assert fast.verify == 0 < default.verify <= best.verify
        assert (fast.expansion, default.expansion) == ("none", "none") != (best.expansion, "none")
        assert fast.merge == default.merge == best.merge == ("likelihood" if signed else "posterior")


def test_an_unknown_preset_is_one_line() -> None:
    with pytest.raises(OptionError, match="preset='slow' should be one of fast, default, best"):
        preset("slow")


@pytest.mark.parametrize("signed", [True, False])
def test_an_index_searches_by_its_default_preset(signed: bool, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("index") / "a.polyvoc"
    index = build(path, collection(6), vocabularies(2, signed=signed))
    assert index.default_options == index.preset("default") == preset("default", index.folder.bits)
    query = features(2, 10)
    assert index.search(query) == index.search(query, options=preset("default", index.folder.bits))
    for name in get_args(Preset):
        assert index.search(query, options=index.preset(name))[0].path == "image 2"
