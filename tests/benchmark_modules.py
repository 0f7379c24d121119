"""The modules of benchmarks/, imported without leaving their folder on the path: a file there has the name of a library."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
BENCHMARKS = str(ROOT / "benchmarks")
sys.path.insert(0, BENCHMARKS)

import digests  # noqa: E402
import registry  # noqa: E402
import runner  # noqa: E402
import simulation  # noqa: E402
import sources  # noqa: E402
import states  # noqa: E402
import tables  # noqa: E402

sys.path.remove(BENCHMARKS)

__all__ = ["BENCHMARKS", "ROOT", "digests", "registry", "runner", "simulation", "sources", "states", "tables"]
