"""What the Dockerfile sets for its program, and that program in a folder of a test."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
LAST_STAGE = DOCKERFILE.rpartition("\nFROM ")[2]


def container_environment() -> dict[str, str]:
    (block,) = re.findall(r"^ENV ((?:.*\\\n)*.*)", LAST_STAGE, re.M)
    return dict(word.partition("=")[::2] for word in shlex.split(block.replace("\\\n", " ")))


def health_command(address: str) -> list[str]:
    """The command of the health check, for another address."""
    (words,) = re.findall(r"^HEALTHCHECK .*\\\n\s+CMD (\[.*\])", LAST_STAGE, re.M)
    program, *rest = json.loads(words)
    assert program == "python"
    return [sys.executable, *(word.replace("http://127.0.0.1:8000", address) for word in rest)]


@contextmanager
def started(folder: Path, photographs: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """The program of the image, with the paths of its environment in a folder."""
    (folder / "bin").mkdir(exist_ok=True)
    program = folder / "bin" / "polyvoc"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m polyvoc "$@"\n')
    program.chmod(0o755)
    values = {name: value.replace("/data", str(folder / "data")) for name, value in container_environment().items()}
    values |= {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PHOTOGRAPHS": str(photographs), "POLYVOC_HOST": "127.0.0.1"}
    values.pop("NUMBA_CACHE_DIR")  # of this machine: compiling takes long
    (folder / "data").mkdir(exist_ok=True)
    command = [str(ROOT / "container" / "start"), *arguments]
    known = {name: value for name, value in os.environ.items() if name not in ("POLYVOC_TOKEN", "POLYVOC_INDEX")}
    with subprocess.Popen(command, env=known | values, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as popen:
        try:
            yield popen
        finally:
            popen.kill()
