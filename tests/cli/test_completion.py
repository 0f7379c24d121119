"""A shell completes commands, flags and values, and the script for it is printed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


def shell(**environment: str) -> str:
    output = subprocess.run(
        [sys.executable, "-m", "polyvoc"], env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return output.stdout


@pytest.mark.parametrize(
    ("typed", "word", "offered"),
    [
        ("polyvoc se", 1, {"search", "serve"}),
        ("polyvoc search --merg", 2, {"--merge"}),
        ("polyvoc search --merge ", 3, {"codes", "likelihood", "posterior", "bayes", "b0", "b1", "b2"}),
        ("polyvoc evaluate uk", 2, {"ukbench"}),
    ],
)
def test_words_are_completed(typed: str, word: int, offered: set[str]) -> None:
    output = shell(_POLYVOC_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(word))
    assert set(output.split()) == offered


@pytest.mark.parametrize("kind", ["bash", "zsh", "fish"])
def test_the_script_for_a_shell(kind: str) -> None:
    output = shell(_POLYVOC_COMPLETE=f"source_{kind}")
    assert "_POLYVOC_COMPLETE" in output and "polyvoc" in output
