"""Helpers of the table makers: stored results, where they were measured, and Markdown."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

from machine import RESULTS

SETS = {"holidays": "Holidays mAP", "ukbench": "Ukbench N-S"}
DIGITS = {"holidays": 1, "ukbench": 3}


@cache
def result(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def where(measured: dict[str, Any]) -> str:
    """Return processor, cores and date of a measurement."""
    machine = measured["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['date']}"


def markdown(head: list[str], rows: list[list[str]], right: bool = False) -> str:
    """Return a table; `right`: all columns but the first are aligned to the right."""
    lines = [head, ["---", *["--:" if right else "---"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def bold(text: str, gain: dict[str, float]) -> str:
    """Return the text in bold if the interval of the difference leaves out zero."""
    return f"**{text}**" if gain["low"] > 0 or gain["high"] < 0 else text
