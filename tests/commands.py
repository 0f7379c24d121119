"""Run commands of `polyvoc` in this process, and check their output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from polyvoc.cli.main import app
from polyvoc.vocabulary.vocabulary import Vocabulary


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: object) -> Any:
    """Return the JSON that a command prints: strict JSON, and nothing else."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "", result.stderr
    return json.loads(result.stdout, parse_constant=_no_constant)


def searched(*arguments: object) -> Any:
    """Search with one photograph by `polyvoc search --json`, and return its result."""
    (result,) = answer("search", *arguments)["results"]
    return result


def refuse(*arguments: object) -> str:
    """Return the one-line error of a command that fails."""
    result = run(*arguments)
    assert result.exit_code == 1, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("polyvoc: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr.strip()


def vocabulary_flags(vocabularies: Sequence[Vocabulary], folder: Path) -> list[object]:
    """Save vocabularies below a folder and return the flags that name them."""
    flags: list[object] = []
    for number, vocabulary in enumerate(vocabularies):
        vocabulary.save(folder / "words" / str(number))
        flags += ["--vocabulary", folder / "words" / str(number)]
    return flags


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")
