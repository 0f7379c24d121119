"""The records of a report: JSON and back, and one clear line for what cannot be shown."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyvoc.errors import OptionError
from polyvoc.experiments.report.report import Report, Row, Section, Table, TableCell
from report_helpers import figures

TEXT = st.text(max_size=6)
NUMBER = st.none() | st.floats(-1e6, 1e6) | st.just(float("nan"))
CELLS = TEXT | st.builds(TableCell, NUMBER, st.integers(0, 4), NUMBER, NUMBER, NUMBER | TEXT, st.booleans(), TEXT)
ROWS = st.lists(CELLS, max_size=3) | st.builds(Row, st.lists(CELLS, max_size=3), st.sampled_from(["", "header", "best"]))
TABLES = st.builds(Table, TEXT, st.lists(TEXT, min_size=3, max_size=4), st.lists(ROWS, max_size=3))
IDS, VERDICTS = st.from_regex("[a-z][a-z0-9-]{0,6}", fullmatch=True), st.sampled_from(["", "reproduces", "partly", "does not"])
PARTS = (st.lists(TEXT, max_size=2), st.lists(TABLES, max_size=2), st.lists(figures(), max_size=1))
SECTIONS = st.lists(st.builds(Section, IDS, TEXT, *PARTS, VERDICTS, TEXT), max_size=3, unique_by=lambda section: section.id)
REPORTS = st.builds(Report, TEXT, TEXT, st.lists(st.tuples(TEXT, TEXT), max_size=2), SECTIONS)


@settings(deadline=None)
@given(REPORTS)
def test_json_and_back(report: Report) -> None:
    assert Report.from_dict(json.loads(json.dumps(report.as_dict(), allow_nan=False))) == report


def test_a_cell_leaves_out_what_is_missing() -> None:
    assert TableCell(1.5).as_dict() == {"value": 1.5, "digits": 2}
    assert TableCell(0.0, 1, 0.0, 0.0, 0.0).as_dict() == {"value": 0.0, "digits": 1, "low": 0.0, "high": 0.0, "paper": 0.0}
    assert TableCell(np.float32(0.5)).as_dict()["value"] == 0.5  # type: ignore[arg-type]
    assert TableCell(float("nan"), low=float("inf"), paper="58.5") == TableCell(None, paper="58.5")


def test_rows_are_as_long_as_the_head() -> None:
    table = Table("t", ["a", "b", "c"], [["x", TableCell(1)], Row(["h"], "header")])
    assert table.lines == (Row(["x", TableCell(1), ""]), Row(["h", "", ""], "header"))
    rows = [["x", {"value": 1}], {"cells": ["h"], "mark": "header"}]
    assert Table.from_dict({"caption": "t", "head": ["a", "b", "c"], "rows": rows}) == table


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Table("t", ["a"], [["x", "y"]]), "row 1 of table 't' has 2 cells under a head of 1"),
        (lambda: Table("t", [], []), "table 't' has no columns"),
        (lambda: Table("t", ["a"], [[3]]), "a row holds 3: write texts as str and numbers as TableCell"),
        (lambda: Row(["a"], "worst"), "mark of a row is 'worst': choose one of "),  # type: ignore[arg-type]
        (lambda: Section("s", "", verdict="maybe"), "verdict of section 's' is 'maybe': choose one of reproduces, partly"),
        (lambda: Section('"><b', ""), "write it in small letters, digits and hyphens"),
        (lambda: Report("", "", [], [Section("s", ""), Section("s", "")]), "two sections have the id 's'"),
    ],
)
def test_what_cannot_be_shown_is_one_line(make: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
