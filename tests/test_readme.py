"""README.md is true: its tables come from the results, its commands and names exist."""

from __future__ import annotations

import re
import sys

import typer

import polyvoc
from benchmark_modules import BENCHMARKS, ROOT, tables
from polyvoc.cli.main import app

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_tables_are_those_of_the_results() -> None:
    texts = [path.read_text(encoding="utf-8") for path in tables.documents()]
    assert set(re.findall(r"<!-- table: (\w+) -->", "".join(texts))) == set(tables.TABLES)
    for text in texts:
        assert tables.with_tables(text) == text, "run: python benchmarks/tables.py"
    assert "<!-- report: " in (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")


def test_findings_hold_no_number_that_is_not_generated() -> None:
    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    text = re.sub(r"<!-- (?:table|report): .*?<!-- end -->", "", text, flags=re.S)
    text = re.sub(r"## Definitions.*?(?=\n## )", "", text, flags=re.S)  # formulas
    text = re.sub(r"\n    .*", "", text)  # commands
    text = re.sub(r"\]\([^)]*\)", "", text.replace("with 95 % bootstrap intervals", ""))
    assert re.findall(r"[-+]?\d+\.\d+|[-+]\d|\d ?%|\d,\d{3}", text) == []


def test_benchmarks_hide_no_library() -> None:
    assert BENCHMARKS not in sys.path


def test_length() -> None:
    assert len(README.splitlines()) <= 120


def test_commands_exist() -> None:
    commands = set(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    mentioned = set(re.findall(r"^polyvoc (\w+).*#", README, re.M))
    assert len(mentioned) == 5 and mentioned <= commands


def test_names_exist() -> None:
    for name in set(re.findall(r"\bpolyvoc\.([A-Za-z_]+)", README)) - {"polyvoc"}:
        assert name in polyvoc.__all__, name


def test_scripts_exist_and_run_what_ci_runs() -> None:
    for script in re.findall(r"^(scripts/\w+)", README, re.M):
        assert (ROOT / script).stat().st_mode & 0o111, f"{script} is not executable"
    assert "scripts/test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
