"""What every result file says of where and when it was measured."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from polyvoc import __version__

RESULTS = Path(__file__).parent / "results"
LIBRARIES = ("polyvoc", "numpy", "numba", "faiss-cpu", "opencv-python-headless", "pillow")


def machine() -> dict[str, Any]:
    """Describe the machine, the libraries and the moment."""
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
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def write_result(name: str, result: dict[str, Any]) -> Path:
    """Write a result beside the machine it was measured on."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n", encoding="utf-8")
    return path
