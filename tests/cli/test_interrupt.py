"""Ctrl-C ends `polyvoc index`, also while a photograph is decoded or something hangs; what was committed is kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from commands import vocabulary_flags
from polyvoc.cli.interrupt import KEPT
from polyvoc.cli.start import INTERRUPTED
from polyvoc.index.check import check
from polyvoc.search.index import Index
from polyvoc.vocabulary.vocabulary import Vocabulary
from servers import children_of, has_ended, wait_until

CAP = 150  # seconds: a photograph that is not given up takes longer
# A process in the background of a shell inherits that Ctrl-C is ignored.
CODE = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from polyvoc.cli.main import main; main()"


@pytest.fixture
def command(tmp_path: Path, photographs: Path, vocabularies: tuple[Vocabulary, ...]) -> list[str]:
    """Index one photograph, then add others; return the command that indexes these."""
    (tmp_path / "photos").mkdir()
    shutil.copy(photographs / "tower-a.jpg", tmp_path / "photos")
    flags = [str(flag) for flag in vocabulary_flags(vocabularies, tmp_path)]
    command = [sys.executable, "-c", CODE, "index", str(tmp_path / "photos"), "--index", str(tmp_path / "index"), *flags]
    subprocess.run([*command, "--no-codes"], check=True, capture_output=True)
    for name in ("tower-b.jpg", "tower-c.jpg", "wall-a.jpg"):
        shutil.copy(photographs / name, tmp_path / "photos")
    return command[: -len(flags)]


def interrupt(command: list[str], moment: Callable[[int], object], folder: str = "") -> None:
    """Run a command, and press Ctrl-C when a condition on its process holds; it ends, and so do its decoding processes."""
    environment = {**os.environ, "PYTHONPATH": folder}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as running:
        try:
            wait_until(lambda: moment(running.pid) or running.poll() is not None)
            children = children_of(running.pid)
            running.send_signal(signal.SIGINT)
            out, errors = running.communicate(timeout=CAP)
        finally:
            running.kill()
    assert (running.returncode, out, errors) == (INTERRUPTED, "", f"polyvoc: {KEPT}\n")
    for child in children:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGCONT)  # to see that its owner is gone
        assert has_ended(child)


def decoders_of(process: int) -> list[int]:
    return [child for child in children_of(process) if b"features.sandbox" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_while_photographs_are_decoded(command: list[str], tmp_path: Path) -> None:
    """They never come to an end by themselves: their processes are stopped."""

    def all_stopped(process: int) -> bool:
        for child in decoders_of(process):
            os.kill(child, signal.SIGSTOP)
        return len(decoders_of(process)) >= min(2, len(os.sched_getaffinity(0)))

    interrupt(command, all_stopped)
    assert names_in(tmp_path / "index") == ["tower-a.jpg"]


def test_while_a_disk_hangs(command: list[str], tmp_path: Path) -> None:
    """A thread that waits for the disk cannot be ended, so the process is."""
    gate = shutil.copy(tmp_path / "photos/tower-b.jpg", tmp_path / "photos/gate.png")
    interrupt(command, lambda _: Path(f"{gate}.reader").exists(), str(Path(__file__).parent.parent / "failing_files"))
    assert "tower-a.jpg" in names_in(tmp_path / "index") and "gate.png" not in names_in(tmp_path / "index")


def names_in(index: Path) -> list[str]:
    """Return the names of the images of an index, which is not damaged."""
    assert list(check(index)) == []
    with Index.open(index) as opened:
        return sorted(Path(row.path).name for row in opened.images())
