"""How much does a match say? The tables of log-likelihood ratios that come with the package, and their files."""

from __future__ import annotations

import importlib.resources
import json
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

from polyvoc import storage
from polyvoc.errors import DamagedError, OptionError
from polyvoc.records import Evidence, SearchOptions

FORMAT = "polyvoc evidence"
MOST = 4  # vocabularies that a shipped table tells apart; with more, five agreeing lists count as four


def by_order(n_vocabularies: int, most: int = MOST) -> tuple[int, ...]:
    """Group the sets of lists by how many lists they have: the group of each mask [2^K]."""
    return tuple(max(min(mask.bit_count(), most), 1) - 1 for mask in range(1 << n_vocabularies))


def group_names(evidence: Evidence) -> list[str]:
    """Say which sets of lists belong to each group of a table."""
    names = []
    for group in range(max(evidence.groups) + 1):
        orders = sorted({mask.bit_count() for mask in range(1, len(evidence.groups)) if evidence.groups[mask] == group})
        names.append(" or ".join(map(str, orders)) + (" list" if orders == [1] else " lists"))
    return names if len(set(names)) == len(names) else [f"group {number}" for number in range(1, len(names) + 1)]


def default_evidence(n_vocabularies: int, bits: int) -> Evidence:
    """Give the shipped table for a number of vocabularies and the length of their signatures."""
    count = min(n_vocabularies, MOST)
    found = _shipped().get((count, bits))
    if found is None:
        known = " or ".join(str(length) for length in sorted({length for _, length in _shipped()}))
        raise OptionError(f"no table of evidence for signatures of {bits} bits comes with polyvoc, only for {known}; "
                          "fit one: polyvoc calibrate --index INDEX --save")  # fmt: skip
    return found if count == n_vocabularies else Evidence(by_order(n_vocabularies), found.edges, found.rows, found.source)


@cache
def _shipped() -> dict[tuple[int, int], Evidence]:
    shelf = importlib.resources.files("polyvoc") / "tables"
    with importlib.resources.as_file(shelf) as folder:
        tables = [load(path) for path in sorted(folder.glob("likelihood-*.json"))]
    return {(table.n_vocabularies, table.bits): table for table in tables}


def as_dict(evidence: Evidence) -> dict[str, Any]:
    """Give plain values for JSON."""
    return {
        "format": FORMAT,
        "source": evidence.source,
        "groups": list(evidence.groups),
        "edges": list(evidence.edges),
        "rows": [list(row) for row in evidence.rows],
    }


def from_dict(values: Any, where: str) -> Evidence:
    """Read what `as_dict` gave, or say that it is damaged; `where` names the file."""
    try:
        if values["format"] != FORMAT:
            raise ValueError
        rows = tuple(tuple(map(float, row)) for row in values["rows"])
        groups, edges = tuple(map(int, values["groups"])), tuple(map(float, values["edges"]))
        return Evidence(groups, edges, rows, str(values["source"]))
    except (KeyError, TypeError, ValueError, OptionError):
        raise DamagedError(f"{where}: not a table of evidence; fit one: polyvoc calibrate --index INDEX --save") from None


def plain_options(options: SearchOptions) -> dict[str, Any]:
    """Give search options as plain values for JSON; a table by what it was fitted on, None for the one that is shipped."""
    held = options.evidence
    return {**asdict(replace(options, evidence=None)), "evidence": None if held is None else held.source}


def load(path: Path) -> Evidence:
    """Read a table from its file."""
    try:
        return from_dict(json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror or error}); give the file of a table of evidence") from None
    except ValueError:
        raise DamagedError(f"{path}: not a table of evidence; fit one: polyvoc calibrate --index INDEX --save") from None


def save(evidence: Evidence, path: Path) -> None:
    """Write a table to a file, one row per line."""
    values = as_dict(evidence)
    rows = ",\n  ".join(json.dumps(row) for row in values.pop("rows"))
    head = json.dumps(values, indent=1)[:-2]
    with storage.writing(path):
        path.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
