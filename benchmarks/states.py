"""Which code made a result, as it is stored with it, and whether that is the code of today. It needs no polyvoc."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from digests import PACKAGE, Sources, changes, combined
from registry import SPECIAL, Benchmark

ROOT = Path(__file__).parent.parent
RESULTS = "benchmarks/results"
CURRENT, STALE, MISSING = "current", "stale", "missing"
EDITED = "changed during the measurement"  # instead of a digest
SHOWN = 3  # changed modules, in a line


@dataclass(frozen=True)
class State:
    """A result, and whether the code that made it is the code of today."""

    result: str
    kind: str  # CURRENT, STALE or MISSING
    reason: str = ""
    commit: str = ""
    load: str = ""
    date: str = ""

    @property
    def text(self) -> str:
        return f"{self.kind}: {self.reason}" if self.reason else self.kind


def sources_of(root: Path) -> Sources:
    return Sources(root, SPECIAL)


def code_of(sources: Sources, benchmark: Benchmark | None, arguments: Sequence[str], started: float) -> dict[str, Any]:
    """Return the command line, without folders of this machine, and what the result of a benchmark depends on."""
    command = {"command": shlex.join(shortened(sources.root, argument) for argument in arguments)}
    if benchmark is None:  # a trial, under a name of its own
        return command
    found = sources.digests(benchmark.needs)
    found |= {path: EDITED for path in found if path.endswith(".py") and (sources.root / path).stat().st_mtime > started}
    return {**command, "digest": combined(found), "modules": found}


def shortened(root: Path, argument: str) -> str:
    """Return an argument; of a path outside the repository only the name, after ".../"."""
    if os.sep not in argument:
        return argument
    path = Path(argument).absolute()
    return str(path.relative_to(root)) if path.is_relative_to(root) else f".../{path.name}"


def states_of(sources: Sources, benchmarks: Iterable[Benchmark]) -> list[State]:
    """Return the state of each result of some benchmarks."""
    return [state_of(sources, benchmark, result) for benchmark in benchmarks for result in benchmark.files]


def state_of(sources: Sources, benchmark: Benchmark, result: str) -> State:
    """Return the state of a result."""
    path = sources.root / RESULTS / f"{result}.json"
    if not path.is_file():
        return State(result, MISSING)
    stored = json.loads(path.read_text(encoding="utf-8"))
    code, machine = stored.get("code", {}), stored.get("machine", {})
    reason = difference(sources, benchmark, code)
    load = " to ".join(f"{value:.1f}" for value in machine.get("load", ()))
    return State(result, STALE if reason else CURRENT, reason, machine.get("commit") or "", load, machine.get("date", ""))


def difference(sources: Sources, benchmark: Benchmark, code: dict[str, Any]) -> str:
    """Return why stored code is not that of today; nothing if it is."""
    if "modules" not in code:
        return "of unknown code"
    if not benchmark.pieces and plain_words(code["command"]) != plain_words(benchmark.arguments):
        return f"made by another command, {code['command']}"
    changed = [path.removeprefix(f"{PACKAGE}/") for path in changes(code["modules"], sources.digests(benchmark.needs))]
    more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
    return f"{', '.join(changed[:SHOWN])}{more} changed" if changed else ""


def plain_words(command: str) -> list[str]:
    """Return the words of a command line that are neither folders nor files, as the script is one."""
    return [word for word in shlex.split(command) if os.sep not in word and "{" not in word]
