"""Likelihood tables, given by users or stored in an index."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from fuzz.laws import one_line_errors, scratch_file
from polyvoc.options import ScoringOptions
from polyvoc.scoring.codes import code_table_as_dict, code_table_from_dict
from polyvoc.scoring.rules import load_table, make_plan, table_as_dict, table_from_dict
from polyvoc.types import CodeTable, LikelihoodTable

MAX_BYTES = 4096


def target(data: bytes) -> None:
    """Read a table; one that is accepted is finite, is the same when written and read again, and gives a plan or one line."""
    path = scratch_file("table.json", data)
    with one_line_errors():
        table = load_table(path)
        assert all(math.isfinite(value) for row in table.rows for value in row)
        assert table_from_dict(json.loads(json.dumps(table_as_dict(table))), "") == table
        options = ScoringOptions(merge="likelihood", likelihood_table=table)
        make_plan(options, (30,) * table.n_vocabularies, len(table.rows[0]) - 1)
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    with one_line_errors():
        codes = code_table_from_dict(values, "table.json")
        assert all(math.isfinite(value) for row in codes.rows for value in row)
        assert code_table_from_dict(json.loads(json.dumps(code_table_as_dict(codes))), "") == codes


def seeds() -> Iterator[bytes]:
    """Yield tables of words, with and without edges, and one of codes."""
    falling = tuple(float(4 - column) for column in range(5))
    for table in (LikelihoodTable((0, 1), (), (falling,) * 2, "x"), LikelihoodTable((0, 1, 1, 2), (0.5,), (falling,) * 6, "x")):
        yield json.dumps(table_as_dict(table)).encode()
    yield json.dumps(code_table_as_dict(CodeTable((10.0,), (falling, falling), 4, "x"))).encode()
