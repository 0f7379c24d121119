"""Result files, each with the machine, its load, the commit and the date of its measurement, and the code that made it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from polyvoc import __version__
from registry import benchmark_of
from states import ROOT, code_of, sources_of

RESULTS = ROOT / "benchmarks" / "results"
STARTED = time.time()
LOAD_BEFORE = os.getloadavg()[0]  # when the script started
LIBRARIES = ("polyvoc", "numpy", "numba", "faiss-cpu", "opencv-python-headless", "pillow")


def machine() -> dict[str, Any]:
    """Return the machine, the libraries, its load, the commit and the date."""
    cpu = platform.processor()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            cpu = line.split(":", 1)[1].strip()
            break
    versions = {}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = __version__ if name == "polyvoc" else "not installed"
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "libraries": versions,
        "load": [round(LOAD_BEFORE, 2), round(os.getloadavg()[0], 2)],  # before and after; a script alone adds its own threads
        "commit": commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def commit() -> str | None:
    """Return the commit of the sources, with "+" if files were changed since; None outside a repository."""
    git = ["git", "-C", str(RESULTS.parent)]
    done = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "status", "--porcelain", "--", "../src"], capture_output=True, text=True, check=False)
    return done.stdout.strip() + "+" * bool(changed.stdout) if done.returncode == 0 else None


def write_result(name: str, result: dict[str, Any], folder: Path = RESULTS) -> Path:
    """Write a result, with what `machine` and `code_of` return, to NAME.json in a folder."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.json"
    own = {"machine": machine(), "code": code_of(sources_of(ROOT), benchmark_of(name), sys.argv, STARTED)}
    path.write_text(json.dumps({**own, **result, **own}, indent=1) + "\n", encoding="utf-8")  # they come first
    return path
