"""The example notebook runs from its first cell to the last, and was saved without outputs."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path
from typing import Any

import pandas
import pytest
from PIL import Image

from polyvoc.search.hits import Hits
from polyvoc.search.index import Index

NOTEBOOK = Path(__file__).parent.parent / "examples" / "notebook.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does; return the value of its last line, if that is an expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names) if last else None  # noqa: S307


def test_it_has_no_outputs() -> None:
    assert CODE and all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CODE)
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)


def test_every_cell_runs(
    photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(photographs, tmp_path / "Pictures")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    values = [run_cell("".join(cell["source"]), names) for cell in CODE]
    shown = [type(value) for value in values if value is not None]
    assert shown == [Index, Hits, pandas.DataFrame, Hits, Image.Image]
    printed = capsys.readouterr().out
    assert "12 added, 0 could not be used" in printed and "nothing found" not in printed
    assert "missing.jpg: no such file; check the path" in printed and "likely hits of" in printed
    assert all("data:image/jpeg;base64," in value._repr_html_() for value in values if isinstance(value, Hits))
