"""Inputs that were findings stay right, seeds are valid, and the search for findings finds what is planted."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from fuzz.__main__ import NAMES, PATHS, SHOWN_BYTES, Outcome, add_result, described, fuzz

HERE = Path(__file__).parent
CASES = sorted((HERE / "cases").glob("*/*"))
ONE = "import sys; from importlib import import_module as load; load(sys.argv[1]).target(open(sys.argv[2], 'rb').read())"


def test_every_case_belongs_to_a_target() -> None:
    assert {case.parent.name for case in CASES} <= set(NAMES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.parent.name}-{case.name}")
def test_what_was_found_is_right(case: Path) -> None:
    """In a process of its own: an input may have ended one."""
    command = [sys.executable, "-c", ONE, f"fuzz.targets.{case.parent.name}", str(case)]
    environment = {**os.environ, "PYTHONPATH": PATHS}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", NAMES)
def test_seeds_are_valid(name: str) -> None:
    module = import_module(f"fuzz.targets.{name}")
    seeds = list(module.seeds())
    assert seeds and max(map(len, seeds)) <= module.MAX_BYTES
    for seed in seeds:
        module.target(seed)


def test_planted_defects_are_found(tmp_path: Path) -> None:
    """An exception, after which the run goes on, and the end of the process, after which another one is started."""
    pytest.importorskip("atheris", reason="needs atheris, which is for Linux: pip install 'polyvoc[fuzz]'")
    outcome = fuzz("fuzz.planted", tmp_path, seconds=600, seed=1, starts=20)
    found = {name.split("-")[0]: (tmp_path / "findings" / name).read_bytes() for name in outcome.findings}
    assert set(found) == {"ValueError", "crash"}, outcome
    assert len(found["ValueError"]) == 5 and found["crash"].startswith(b"!")
    assert outcome.inputs > len(outcome.findings)


def test_inputs_without_a_traceback_are_printed(tmp_path: Path) -> None:
    """What ended the process left no traceback, and the machine that found it may be gone."""
    data = bytes(range(256))
    (tmp_path / "oom-1").write_bytes(data)
    shown = described(tmp_path / "oom-1").splitlines()
    assert shown[0] == f"found: {tmp_path / 'oom-1'}" and base64.b64decode(shown[-1]) == data
    (tmp_path / "crash-2").write_bytes(bytes(SHOWN_BYTES))
    assert described(tmp_path / "crash-2").endswith(f"{SHOWN_BYTES} bytes, too many to print")
    (tmp_path / "ValueError-3").write_bytes(data)
    (tmp_path / "ValueError-3.txt").write_text("\n".join(f"line {number}" for number in range(100)))
    assert described(tmp_path / "ValueError-3").splitlines()[-1] == "line 99"


def test_a_seed_repeats_a_run(tmp_path: Path) -> None:
    """With the same seed the same inputs are found: those that the process of a target ends with are the first ones."""
    pytest.importorskip("atheris", reason="needs atheris, which is for Linux: pip install 'polyvoc[fuzz]'")
    found = []
    for run in ("first", "second"):
        outcome = fuzz("fuzz.planted", tmp_path / run, seconds=600, seed=7, starts=1)
        found.append({name: (tmp_path / run / "findings" / name).read_bytes() for name in outcome.findings})
    assert found[0] == found[1] and any(name.startswith("crash") for name in found[0])


def test_results_add_up(tmp_path: Path) -> None:
    (tmp_path / "tables").mkdir()
    for total in (5, 12):
        (tmp_path / "tables" / "count").write_bytes(total.to_bytes(8, sys.byteorder))
        add_result(tmp_path / "fuzz.json", tmp_path, [Outcome("tables", 3, 1, ("x",))])
    result = json.loads((tmp_path / "fuzz.json").read_text())
    assert result["inputs"] == 12 and result["inputs_by_target"] == {"tables": 12}
    assert [piece["targets"][0]["inputs"] for piece in result["pieces"]] == [5, 7]  # also of runs that wrote no result
