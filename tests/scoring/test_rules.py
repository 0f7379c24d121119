"""Ratios and factors of the rules, computed by hand; likelihood tables and their files."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyvoc.errors import DamagedError, OptionError, WriteError
from polyvoc.index.check import check
from polyvoc.index.writer import IndexWriter
from polyvoc.options import Merge, SearchOptions
from polyvoc.scoring.codes import code_table_as_dict, default_code_table
from polyvoc.scoring.rules import (
    BayesModel,
    cardinality_ratios,
    check_table,
    default_table,
    group_names,
    groups_by_size,
    load_table,
    make_plan,
    save_table,
    table_as_dict,
    table_from_dict,
)
from polyvoc.types import LikelihoodTable
from random_collections import plain
from samples import build, coded, collection, unflushed

__all__ = ["unflushed"]

SMALL = LikelihoodTable((0, 0, 0, 1), (0.1, 0.5), tuple((float(row), 0.25, 0.0) for row in range(6)), "a test")
# 2 features in list 0 only, 3 in list 1 only, 5 in both: |A| = 7, |B| = 8, union 10.
PAIR = np.array([[0, 2, 3, 5]])


def test_ratio_of_a_pair_is_intersection_over_union() -> None:
    assert cardinality_ratios(PAIR).tolist() == [[0.0, 1.0, 1.0, 0.5]]


def test_features_in_further_lists_count_in_the_ratio_of_a_pair() -> None:
    counts = np.zeros((1, 8), np.int64)
    counts[0, 0b011], counts[0, 0b111], counts[0, 0b001], counts[0, 0b100] = 1, 2, 3, 4
    ratios = cardinality_ratios(counts)
    assert ratios[0, 0b011] == pytest.approx(3 / 6)  # 1 + 2 shared; the union of lists 0 and 1 has 1 + 2 + 3
    assert ratios[0, 0b101] == pytest.approx(2 / 10)
    assert ratios[0, 0b111] == pytest.approx(2 / 10)


def test_empty_sets_have_the_ratio_0() -> None:
    assert cardinality_ratios(np.zeros((2, 4), np.int64)).tolist() == [[0.0] * 4] * 2


INSIDE, OUTSIDE = 1 / (1 + 0.5 / 0.7 * np.log(30_000)), 1 / (1 + 0.5 / 0.3 * np.log(30_000))


@pytest.mark.parametrize(
    "merge, expected",
    [
        ("b1", [1, 1, 1]),
        ("b2", [0, 0, 1]),
        ("bayes", [1, 1, INSIDE]),  # weights the intersection only
        ("posterior", [OUTSIDE, OUTSIDE, INSIDE]),
    ],
)
def test_factors(merge: Merge, expected: list[float]) -> None:
    counts = PAIR.copy()
    plan = make_plan(plain(merge=merge, line=(0.6, 0.4), c=30), (10, 10), 0)
    assert plan.weights(counts, 1000, 0).factors[0, 1:].tolist() == pytest.approx(expected)
    assert np.array_equal(counts, PAIR)


@pytest.mark.parametrize("merge", ["b0", "b1", "b2", "bayes", "posterior"])
def test_one_vocabulary_has_factors_of_1_and_needs_no_counts(merge: Merge) -> None:
    for sizes in ((5,), (5, 6)):
        plan = make_plan(plain(merge=merge), sizes, 0)
        assert len(plan.sizes) == (1 if merge == "b0" else len(sizes))
        assert plan.needs_counts == (len(sizes) == 2 and merge in ("bayes", "posterior"))
        if len(plan.sizes) == 1:
            assert plan.weights(np.array([[0, 5]]), 10, 0).factors.tolist() == [[1, 1]]


def test_hamming_weights_end_at_the_threshold() -> None:
    weights = make_plan(plain(hamming=24, sigma=16), (5,), 64).weights(np.array([[0, 5]]), 10, 64).hamming
    assert weights[0] == 1
    assert weights[16] == pytest.approx(np.exp(-1))
    assert weights[24] == pytest.approx(np.exp(-2.25))
    assert not weights[25:].any()
    assert make_plan(plain(), (5,), 64).weights(np.array([[0, 5]]), 10, 64).hamming.tolist() == [1.0] * 65


def test_likelihood_without_signatures_scores_nothing() -> None:
    assert make_plan(plain(merge="likelihood"), (5, 6), 0).is_empty
    assert not make_plan(plain(merge="likelihood"), (5, 6), 64).is_empty and not make_plan(plain(), (5, 6), 0).is_empty


def test_codes_need_codes_and_words_need_words() -> None:
    assert make_plan(SearchOptions(), (5, 6), 64, code_bits=0).is_empty
    plan = make_plan(SearchOptions(), (), 0, code_bits=128)
    assert not plan.is_empty and plan.code_table is default_code_table(128)
    with pytest.raises(OptionError, match=r"merge='posterior' needs words, and this index holds codes only; index again"):
        make_plan(plain(), (), 0, code_bits=128)


def test_a_table_that_does_not_fit_raises() -> None:
    options = plain(merge="likelihood", likelihood_table=SMALL)
    for sizes, bits in (((5,), 2), ((5, 6), 64)):
        with pytest.raises(OptionError, match=rf"2 vocabularies with 2 bits does not fit {len(sizes)} with {bits}"):
            make_plan(options, sizes, bits)


def test_weights_fall_with_the_ratio_and_with_the_collection() -> None:
    ratio = np.linspace(0, 1, 11)
    small, large = BayesModel(0.6, 0.4, np.log(5_000)), BayesModel(0.6, 0.4, np.log(1_000_000))
    assert small.intersection(ratio)[0] == 1
    assert (np.diff(small.intersection(ratio)) < 0).all()
    assert (large.intersection(ratio[1:]) < small.intersection(ratio[1:])).all()


def test_a_line_beyond_probabilities_is_cut() -> None:
    model = BayesModel(3.0, 0.5, np.log(1000))
    assert np.isfinite(model.difference(np.array([0.0, 0.5, 1.0]))).all()
    assert model.term2(np.array([1.0]))[0] < 1


# -- likelihood tables


def test_sets_are_grouped_by_their_number_of_lists() -> None:
    assert groups_by_size(1) == (0, 0)  # the group of the empty set does not matter
    assert groups_by_size(2) == (0, 0, 0, 1)
    assert groups_by_size(3) == (0, 0, 0, 1, 0, 1, 1, 2)
    assert groups_by_size(3, most=2) == (0, 0, 0, 1, 0, 1, 1, 1)
    assert set(groups_by_size(6)) == {0, 1, 2, 3}
    assert groups_by_size(5)[0b11111] == groups_by_size(5)[0b11110] == 3


def test_groups_have_names() -> None:
    assert group_names(default_table(3, 64)) == ["1 list", "2 lists", "3 lists"]
    assert group_names(default_table(5, 64)) == ["1 list", "2 lists", "3 lists", "4 or 5 lists"]
    of_masks = LikelihoodTable((0, 0, 1, 2), (), ((1.0, 0.0),) * 3)
    assert group_names(of_masks) == ["group 1", "group 2", "group 3"]


# -- shipped tables


@pytest.mark.parametrize(("n_vocabularies", "bits"), list(product((1, 2, 3, 4), (64, 128))))
def test_a_shipped_table_is_complete(n_vocabularies: int, bits: int) -> None:
    table = default_table(n_vocabularies, bits)
    assert (table.n_vocabularies, table.bits) == (n_vocabularies, bits)
    assert table.groups == groups_by_size(n_vocabularies)
    assert table.edges == ()
    rows = np.array(table.rows)
    assert rows.shape == (n_vocabularies, bits + 1)
    assert (np.diff(rows, axis=1) <= 0).all()
    assert (rows[:, bits // 2 :] == 0).all()  # at the distance of chance a match is no evidence
    assert (rows[:, 0] > 5).all()  # and a very near one is much
    assert f"{bits} bits" in table.source
    assert "holidays" in table.source


def test_more_vocabularies_than_a_table_distinguishes() -> None:
    four, nine = default_table(4, 64), default_table(9, 64)
    assert (nine.rows, nine.source) == (four.rows, four.source)
    assert nine.n_vocabularies == 9
    assert nine.groups[-1] == 3


def test_no_table_for_other_lengths() -> None:
    with pytest.raises(OptionError, match=r"signatures of 32 bits, only for 64 or 128; fit one: polyvoc calibrate"):
        default_table(2, 32)


# -- files


@pytest.mark.parametrize("table", [SMALL, replace(SMALL, source='"quoted"\nand Kölner Dom')], ids=["plain", "text"])
def test_a_saved_table_is_loaded(table: LikelihoodTable, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    save_table(table, path)
    assert load_table(path) == table
    assert table_from_dict(json.loads(path.read_text(encoding="utf-8")), "") == table
    assert json.loads(path.read_text(encoding="utf-8")) == table_as_dict(table)
    save_table(default_table(3, 128), path)  # overwrites
    assert load_table(path) == default_table(3, 128)


def test_a_row_is_a_line(tmp_path: Path) -> None:
    save_table(SMALL, tmp_path / "table.json")
    lines = (tmp_path / "table.json").read_text(encoding="utf-8").splitlines()
    assert "  [5.0, 0.25, 0.0]" in lines


@pytest.mark.parametrize(
    "change",
    [
        {"format": "something else"},
        {"rows": []},
        {"rows": [[1.0, 0.0]] * 5},
        {"rows": [[1.0, 0.0]] * 5 + [[1.0]]},
        {"rows": [["a", "b", "c"]] * 6},
        {"rows": [[1.0, None, 0.0]] * 6},
        {"rows": [[float("nan"), 0.0, 0.0]] * 6},
        {"rows": None},
        {"groups": [0, 0, 1]},
        {"groups": [0, 0, -1, 1]},
        {"groups": []},
        {"edges": [0.5, 0.1]},
        {"edges": [0.1, 0.1]},
        {"edges": [0.1, float("inf")]},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_damaged_file_raises_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**table_as_dict(SMALL), **change}), encoding="utf-8")
    with pytest.raises(DamagedError, match=r"^\S*table.json: not a likelihood table; fit one: polyvoc calibrate.*$") as error:
        load_table(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"[1, 2", b"[]", b"3", b"null", b'"text"', b"\xff\xfe\x00", b'{"format": 1}'])
def test_any_other_file_raises(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=r"^\S*table.json: not a likelihood table"):
        load_table(path)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none.json: cannot be read \(No such file or directory\)"):
        load_table(tmp_path / "none.json")
    with pytest.raises(OptionError, match="cannot be read"):
        load_table(tmp_path)
    with pytest.raises(WriteError, match=r"no.table\.json"):
        save_table(SMALL, tmp_path / "no" / "table.json")


def test_shipped_tables_are_read_once() -> None:
    assert default_table(2, 64) is default_table(2, 64)


def test_the_check_of_a_stored_table(tmp_path: Path) -> None:
    build(tmp_path / "index", collection(3)).close()
    for table, error in (
        (None, ""),
        (SMALL, ""),
        (default_table(3, 64), "for 3 vocabularies"),
        ("odd", "not a likelihood table"),
    ):
        with IndexWriter.open(tmp_path / "index") as writer:
            stored = table_as_dict(table) if isinstance(table, LikelihoodTable) else table
            writer.save_settings({"likelihood_table": stored})
        lines = list(check(tmp_path / "index", more=[check_table]))
        assert (len(lines) == 1 and error in lines[0]) if error else lines == []


def test_the_check_of_a_stored_table_of_codes(tmp_path: Path) -> None:
    build(tmp_path / "index", collection(3), coded()).close()
    for stored, error in ((code_table_as_dict(default_code_table(128)), ""), ("odd", "not a likelihood table of codes")):
        with IndexWriter.open(tmp_path / "index") as writer:
            writer.save_settings({"code_table": stored})
        lines = list(check(tmp_path / "index", more=[check_table]))
        assert (len(lines) == 1 and error in lines[0]) if error else lines == []
