"""Every kernel once more, with its bounds checked and without the compiler: the results are those of the compiled kernels."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kernel_calls
import polyvoc.kernels

pytestmark = pytest.mark.slow
SOURCES = sorted(Path(polyvoc.kernels.__file__).parent.glob("*.py"))


def run(folder: Path, **settings: str) -> dict[str, np.ndarray]:
    """Return the results of `kernel_calls` in a process with other settings of numba."""
    paths = os.pathsep.join(filter(None, [str(SOURCES[0].parents[2]), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-W", "error", kernel_calls.__file__, str(folder / "results.npz")]
    environment = {**os.environ, "PYTHONPATH": paths, **settings}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "results.npz") as results:
        return dict(results)


def assert_same(results: dict[str, np.ndarray]) -> None:
    expected = kernel_calls.call_all()
    assert results.keys() - {"called"} == expected.keys()
    for name, array in expected.items():
        assert array.shape == results[name].shape, name
        if array.dtype.kind == "f":  # sums may be taken in another order
            close = 1e-5 * np.abs(array[np.isfinite(array)]).max(initial=0)
            assert np.allclose(array, results[name], rtol=1e-4, atol=close, equal_nan=True), name
        else:
            assert np.array_equal(array, results[name]), name


def test_kernels_stay_within_their_arrays(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """NUMBA_BOUNDSCHECK=1 raises IndexError; what is compiled so is kept for the next run, apart from the other kernels."""
    assert pytestconfig.cache is not None
    kept, version = pytestconfig.cache.mkdir("checked-kernels"), hashlib.sha256(b"".join(p.read_bytes() for p in SOURCES))
    for old in kept.iterdir():
        if old.name != version.hexdigest():
            shutil.rmtree(old)
    assert_same(run(tmp_path, NUMBA_BOUNDSCHECK="1", NUMBA_CACHE_DIR=str(kept / version.hexdigest())))


def test_every_kernel_runs_without_the_compiler(tmp_path: Path) -> None:
    results = run(tmp_path, NUMBA_DISABLE_JIT="1")
    assert_same(results)
    modules = [ast.parse(path.read_text(encoding="utf-8")) for path in SOURCES if path.stem != "compiler"]
    functions = {node.name for module in modules for node in module.body if isinstance(node, ast.FunctionDef)}
    assert functions <= set(results["called"].tolist())
