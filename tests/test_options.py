"""Options have limits, choices and help texts; presets are searches that every index can do."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from coded_scenes import coded_again, coded_engine, coded_picture, coder_of
from polyvoc.errors import OptionError
from polyvoc.options import (
    ClusterOptions,
    FeatureOptions,
    PairOptions,
    Preset,
    ScoringOptions,
    SearchOptions,
    TrainOptions,
    options_of,
    preset,
)
from polyvoc.search.pipeline import search
from polyvoc.search.query import Query
from polyvoc.types import CodeTable, LikelihoodTable
from polyvoc.vocabulary.train import train
from samples import build, collection, features, unflushed, vocabularies
from scenes import engine_of, picture, seen_again

__all__ = ["unflushed"]

FITTED = "code_table"  # fitted to an index only, thus no option
READ = "network"  # read from the file that the option detector names
RECORDS = (FeatureOptions, ScoringOptions, SearchOptions, PairOptions, TrainOptions, ClusterOptions)


@pytest.mark.parametrize(
    "record, changes, expected",
    [
        (SearchOptions, {"merge": "best"}, "merge='best' should be one of codes, likelihood, posterior"),
        (SearchOptions, {"burstiness": "both"}, "should be one of none, best, intra"),
        (SearchOptions, {"norm": "self"}, "should be one of tfidf"),
        (SearchOptions, {"top": 0}, "top=0 should be at least 1"),
        (SearchOptions, {"verify": -1}, "verify=-1 should be at least 0"),
        (SearchOptions, {"sigma": 0.0}, "sigma=0.0 should be above 0"),
        (SearchOptions, {"c": math.inf}, "c=inf should be finite"),
        (SearchOptions, {"line": (1.0, math.nan)}, "line=.* should be finite"),
        (SearchOptions, {"line": (1.0,)}, "line=.* should be 2 numbers"),
        (SearchOptions, {"min_probability": 1.5}, "min_probability=1.5 should be from 0 to 1"),
        (SearchOptions, {"hamming": -1}, "hamming=-1 should be at least 0"),
        (SearchOptions, {"expand": 3, "verify": 0}, "expand=3 needs verified hits; set verify"),
        (FeatureOptions, {"detector": "surf"}, "should be one of sift"),
        (FeatureOptions, {"long_side": 31}, "at least 32"),
        (TrainOptions, {"bits": 129}, "bits=129 should be from 0 to 128"),
        (PairOptions, {"min_inliers": 0}, "min_inliers=0 should be at least 1"),
        (ClusterOptions, {"timeout": 0}, "timeout=0 should be above 0"),
        (ClusterOptions, {"address": ""}, "Ray cluster"),
    ],
)
def test_impossible_values_raise(record: Any, changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(OptionError, match=expected):
        record(**changes)


@pytest.mark.parametrize("record", RECORDS)
def test_every_field_is_an_option_with_help(record: Any) -> None:
    """The defaults are within the limits of a server, and the fields of a search have a stage."""
    options = options_of(record)
    assert [one.name for one in options] == [name for name in record.__dataclass_fields__ if name not in (FITTED, READ)]
    for one in options:
        assert one.help.endswith(".") and not one.help[0].islower(), one.name
        assert bool(one.stage) == issubclass(record, (ScoringOptions, ClusterOptions))
        assert one.server_maximum is None or one.default is None or one.default <= one.server_maximum


def test_as_dict_names_a_table_by_its_source() -> None:
    table = LikelihoodTable((0, 0, 0, 1), (), ((1.0, 0.0),) * 2, "a test")
    codes = CodeTable((), ((1.0, 0.0),), 1, "another test")
    values = SearchOptions(likelihood_table=table, code_table=codes).as_dict()
    assert (values["likelihood_table"], values["merge"]) == ("a test", "codes")
    assert FITTED not in values
    assert SearchOptions().as_dict()["likelihood_table"] is None
    assert json.loads(json.dumps(values))["line"] == [0.6, 0.4]


# -- presets


@pytest.mark.parametrize("bits", [0, 64, 128])
@pytest.mark.parametrize("name", get_args(Preset))
def test_a_preset_finds_with_and_without_signatures(name: str, bits: int) -> None:
    rng = np.random.default_rng(5)
    query = picture(rng, 30, bits)
    engine = engine_of([picture(rng, 30, bits), seen_again(rng, query), picture(rng, 30, bits)])
    options = preset(name, bits)
    assert options.needs_signatures == (bits > 0)
    best = search(engine, query.query, options)[0]
    assert best.image == 1 and (best.inliers > 15) == (name not in ("fast", "paper"))


@pytest.mark.parametrize("code_bits", [64, 128])
@pytest.mark.parametrize("name", get_args(Preset))
def test_a_preset_finds_with_codes(name: str, code_bits: int) -> None:
    rng = np.random.default_rng(5)
    query = coded_picture(rng, 30)
    engine = coded_engine([coded_picture(rng, 30), coded_again(rng, query), coded_picture(rng, 30)], bits=code_bits)
    options = preset(name, 0, code_bits)
    assert options.merge == ("bayes" if name == "paper" else "codes") and not options.needs_signatures
    made = Query(query.coded(bits=code_bits), query.shown.words, None, query.keypoints)
    best = search(engine, made, options, coder=coder_of(code_bits))[0]
    assert best.image == 1 and (best.inliers > 15) == (name not in ("fast", "paper"))


@pytest.mark.parametrize(
    "bits, code_bits, merge",
    [
        (0, 0, "posterior"),
        (32, 0, "b1"),
        (64, 0, "likelihood"),
        (128, 0, "likelihood"),
        (0, 128, "codes"),
        (64, 128, "codes"),
        (128, 64, "codes"),
    ],
)
def test_presets_differ_in_their_effort(bits: int, code_bits: int, merge: str) -> None:
    fast, default, best, paper = (preset(name, bits, code_bits) for name in get_args(Preset))
    assert fast.verify == 0 < default.verify <= best.verify
    assert fast.expand == default.expand == 0 < best.expand
    assert fast.merge == default.merge == best.merge == merge
    assert (default == SearchOptions()) == (code_bits > 0)
    assert paper == preset("paper", bits) and (paper.merge, paper.verify) == ("bayes", 0)  # by words, whatever the codes


@pytest.mark.parametrize("merge, expected", [("codes", 10), ("likelihood", 1), ("bayes", 1), ("b0", 1)])
def test_a_query_feature_visits_more_words_by_codes(merge: Any, expected: int) -> None:
    assert ScoringOptions(merge=merge).n_assignments == expected
    assert ScoringOptions(merge=merge, assignments=3).n_assignments == 3


def test_an_unknown_preset_raises() -> None:
    with pytest.raises(OptionError, match="preset='slow' should be one of fast, default, best"):
        preset("slow")


@pytest.mark.parametrize("kind", ["signatures", "words", "codes"])
def test_an_index_searches_by_its_default_preset(kind: str, tmp_path: Path) -> None:
    made_with = vocabularies(2, signed=kind == "signatures")
    if kind == "codes":
        descriptors = np.concatenate([image.descriptors for image in collection(6).values()])
        made_with = [train(descriptors, TrainOptions(size=15, rounds=3, bits=12, seed=seed)) for seed in range(2)]
    index = build(tmp_path / "index", collection(6), made_with)
    expected = preset("default", index.folder.bits, index.folder.code_bits)
    assert (expected.merge == "codes") == (kind == "codes")
    assert index.default_options == index.preset("default") == expected
    query = features(2, 10)
    assert index.search(query) == index.search(query, expected) == index.search(query, preset="default")
    for name in get_args(Preset):
        assert index.search(query, preset=name)[0].path == "image 2"
