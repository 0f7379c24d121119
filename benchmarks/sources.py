"""What tables are made of: results, where they were measured, and Markdown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
SETS = {"holidays": "Holidays mAP", "ukbench": "Ukbench N-S"}
DIGITS = {"holidays": 1, "ukbench": 3}


def result(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def where(measured: dict[str, Any]) -> str:
    machine = measured["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['date']}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
