"""One target in this process, driven by atheris for some seconds: `python -m fuzz.worker MODULE FOLDER SECONDS SEED`.

An exception is kept as a finding, one input for each place in the sources, and the run goes on. What ends the process (a
signal, an input that takes too long or too much memory) is kept by libFuzzer as `crash-*`, `timeout-*` or `oom-*`.
"""

from __future__ import annotations

import hashlib
import importlib
import mmap
import pkgutil
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import atheris

INSTRUMENTED = ("polyvoc", "PIL", "python_multipart", "starlette.formparsers")  # where new branches are worth a new input
COUNT, CORPUS, FINDINGS, SEEDS = "count", "corpus", "findings", "seeds"  # below the folder of a target
SECONDS_PER_INPUT = 120  # more is a finding; a busy machine may be slow
MEGABYTES = 2048  # of the process
Target = Callable[[bytes], None]


def main(name: str, folder: Path, seconds: int, seed: int) -> None:
    """Fuzz one target; its corpus, findings and the count of inputs are in a folder, and another run continues there."""
    module = _load(name)
    for part in (CORPUS, FINDINGS, SEEDS):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for valid in module.seeds():
        (folder / SEEDS / _digest(valid)).write_bytes(valid)
    cases = Path(__file__).parent / "cases" / name.rpartition(".")[2]
    folders = [folder / CORPUS, folder / SEEDS, *([cases] if cases.is_dir() else [])]
    flags = {"max_total_time": seconds, "max_len": module.MAX_BYTES, "timeout": SECONDS_PER_INPUT,
             "report_slow_units": SECONDS_PER_INPUT, "rss_limit_mb": MEGABYTES,
             "artifact_prefix": f"{folder / FINDINGS}/", "verbosity": 0, "seed": seed}  # fmt: skip
    arguments = [name, *(f"-{flag}={value}" for flag, value in flags.items()), *map(str, folders)]
    watched = _counted(folder / COUNT, _kept(folder / FINDINGS, module.target))
    start = getattr(module, "mutable", None)
    atheris.Setup(arguments, watched, **({} if start is None else {"custom_mutator": _mutator(start)}))
    atheris.Fuzz()


def _load(name: str) -> ModuleType:
    """Import a target with coverage of what it tests, but not of kernels: numba cannot compile what atheris makes of them."""
    kernels = importlib.import_module("polyvoc.kernels")
    for module in pkgutil.iter_modules(kernels.__path__):
        importlib.import_module(f"polyvoc.kernels.{module.name}")
    with atheris.instrument_imports(include=INSTRUMENTED):
        return importlib.import_module(name)


def _counted(path: Path, target: Target) -> Target:
    """Count inputs in a file that is mapped: the count is there whatever ends this process."""
    if not path.exists():
        path.write_bytes(bytes(8))
    with path.open("r+b") as file:
        count = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")

    def counted(data: bytes) -> None:
        count[0] += 1
        target(data)

    return counted


def _kept(folder: Path, target: Target) -> Target:
    """Write the first input that raises an exception at a place to a file, and its traceback beside it."""

    def kept(data: bytes) -> None:
        try:
            target(data)
        except Exception as error:  # noqa: BLE001 - any is a finding
            path = folder / _place(error)
            if not path.exists():
                path.write_bytes(data)
                path.with_suffix(".txt").write_text("".join(traceback.format_exception(error)), encoding="utf-8")

    return kept


def _place(error: Exception) -> str:
    """Return a file name for an exception: its class, and the last place in polyvoc or a target."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "polyvoc/" in frame.filename]
    last = (frames or traceback.extract_tb(error.__traceback__))[-1]
    return f"{type(error).__name__}-{Path(last.filename).stem}-{last.name.strip('<>')}-{last.lineno}"


def _mutator(start: Callable[[bytes], int]) -> Callable[[bytes, int, int], bytes]:
    def mutated(data: bytes, size: int, _: int) -> bytes:
        head = data[: start(data)]
        return head + atheris.Mutate(data[len(head) :], max(size - len(head), 1))

    return mutated


def _digest(data: bytes) -> str:
    return hashlib.sha1(data, usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
