"""Tables of evidence: those that are shipped, their files, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyvoc.errors import DamagedError, OptionError, WriteError
from polyvoc.options import DEFAULT, options_as_dict
from polyvoc.scoring.rules import (
    default_table,
    group_names,
    groups_by_size,
    load_table,
    save_table,
    table_as_dict,
    table_from_dict,
)
from polyvoc.types import LikelihoodTable
from random_collections import plain

SMALL = LikelihoodTable((0, 0, 0, 1), (0.1, 0.5), tuple((float(row), 0.25, 0.0) for row in range(6)), "a test")


def test_sets_are_grouped_by_how_many_lists_they_have() -> None:
    assert groups_by_size(1) == (0, 0)  # the empty set belongs to nobody
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


# -- what is shipped


@pytest.mark.parametrize(("n_vocabularies", "bits"), list(product((1, 2, 3, 4), (64, 128))))
def test_a_shipped_table_is_complete(n_vocabularies: int, bits: int) -> None:
    table = default_table(n_vocabularies, bits)
    assert (table.n_vocabularies, table.bits) == (n_vocabularies, bits)
    assert table.groups == groups_by_size(n_vocabularies)
    assert table.edges == ()
    rows = np.array(table.rows)
    assert rows.shape == (n_vocabularies, bits + 1)
    assert (np.diff(rows, axis=1) <= 0).all()
    assert (rows[:, bits // 2 :] == 0).all()  # at chance distance a match says nothing
    assert (rows[:, 0] > 5).all()  # and a very near one a lot
    assert f"{bits} bits" in table.source
    assert "holidays" in table.source


def test_more_vocabularies_than_a_table_tells_apart() -> None:
    four, nine = default_table(4, 64), default_table(9, 64)
    assert (nine.rows, nine.source) == (four.rows, four.source)
    assert nine.n_vocabularies == 9
    assert nine.groups[-1] == 3


def test_no_table_for_other_lengths() -> None:
    with pytest.raises(OptionError, match=r"signatures of 32 bits .* only for 64 or 128; fit one: polyvoc calibrate"):
        default_table(2, 32)


# -- files


@pytest.mark.parametrize("table", [SMALL, replace(SMALL, source='"quoted"\nand Kölner Dom')], ids=["plain", "text"])
def test_saved_is_loaded(table: LikelihoodTable, tmp_path: Path) -> None:
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
def test_a_damaged_file_gives_one_line(change: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({**table_as_dict(SMALL), **change}), encoding="utf-8")
    with pytest.raises(DamagedError, match=r"^\S*table.json: not a table of evidence; fit one: polyvoc calibrate.*$") as error:
        load_table(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"[1, 2", b"[]", b"3", b"null", b'"text"', b"\xff\xfe\x00", b'{"format": 1}'])
def test_any_other_file_gives_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(content)
    with pytest.raises(DamagedError, match=r"^\S*table.json: not a table of evidence"):
        load_table(path)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"none.json: cannot be read \(No such file or directory\)"):
        load_table(tmp_path / "none.json")
    with pytest.raises(OptionError, match="cannot be read"):
        load_table(tmp_path)
    with pytest.raises(WriteError, match=r"no.table\.json"):
        save_table(SMALL, tmp_path / "no" / "table.json")


# -- in options


def test_options_tell_a_table_by_its_source() -> None:
    told = options_as_dict(plain(merge="likelihood", likelihood_table=SMALL))
    assert told["evidence"] == "a test"
    assert told["merge"] == "likelihood"
    assert options_as_dict(DEFAULT)["evidence"] is None
    assert json.loads(json.dumps(told))["line"] == list(plain().line)


def test_shipped_tables_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    default_table(2, 64)
    monkeypatch.setattr("polyvoc.scoring.rules.load_table", lambda path: pytest.fail("read again"))
    assert default_table(2, 64) is default_table(2, 64)
