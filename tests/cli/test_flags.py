"""Flags made from the fields of a record, and the values typed for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from polyvoc.cli.flags import flag_name, from_record, parse_value
from polyvoc.cli.main import app
from polyvoc.errors import OptionError
from polyvoc.options import SearchOptions, options_of
from polyvoc.scoring.rules import default_table, save_table

COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


def test_fields_without_flags_are_the_commands_own() -> None:
    given: list[dict[str, Any]] = []
    small = typer.Typer()

    @small.command()
    @from_record(SearchOptions, defaults=False, without=("merge", "top"))
    def command(chosen: dict[str, Any], merge: str = "mine") -> None:
        given.append({**chosen, "own": merge})

    runner = CliRunner()
    assert runner.invoke(small, ["--c", "3", "--merge", "anything"]).exit_code == 0
    assert given == [{"c": 3.0, "own": "anything"}]
    assert runner.invoke(small, ["--top", "3"]).exit_code != 0  # there is no such flag


def test_evaluate_has_a_flag_for_every_field_that_changes_a_ranking() -> None:
    options = {option for parameter in COMMANDS["evaluate"].params for option in parameter.opts}
    foreign = {"top", "smooth", "fuse", "min_probability", "since", "require_all"}  # of an index or its hits
    assert {flag_name(option.name) for option in options_of(SearchOptions)} - set(map(flag_name, foreign)) <= options
    assert not {flag_name(name) for name in foreign} & options


def test_typed_values_have_the_type_of_the_field() -> None:
    assert parse_value(SearchOptions, "hamming", "24") == 24
    assert parse_value(SearchOptions, "hamming", "none") is None
    assert parse_value(SearchOptions, "merge", "b1") == "b1"
    with pytest.raises(OptionError, match="hamming='far' should be a number or none"):
        parse_value(SearchOptions, "hamming", "far")


def test_a_table_is_typed_as_a_file(tmp_path: Path) -> None:
    table = default_table(2, 64)
    save_table(table, tmp_path / "table.json")
    assert parse_value(SearchOptions, "likelihood_table", str(tmp_path / "table.json")) == table
    assert parse_value(SearchOptions, "likelihood_table", "none") is None
    with pytest.raises(OptionError, match=r"other.json: cannot be read"):
        parse_value(SearchOptions, "likelihood_table", str(tmp_path / "other.json"))
    for command in ("search", "evaluate"):
        (option,) = (parameter for parameter in COMMANDS[command].params if parameter.name == "likelihood_table")
        assert (option.opts, option.metavar) == (["--likelihood-table"], "FILE|none")
