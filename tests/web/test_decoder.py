"""Decoding in separate processes: the same pixels as in the library, within limits, whatever happens to the process."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyvoc.errors import ImageError
from polyvoc.features.decode import read_grey, read_rgb, read_thumbnail
from polyvoc.web.decoder import Decoders, _Process
from servers import TOKEN, children_of, has_ended

LIMITS = "cannot be decoded within the limits of time and memory; reduce it first"


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    with closing(Decoders(1, 60.0, 100_000_000)) as decoders:
        yield decoders


def slow_image() -> bytes:
    """Return a small file that takes long to decode: 120 million zeros."""
    out = io.BytesIO()
    Image.new("L", (12000, 10000)).save(out, "PNG", compress_level=1)
    return out.getvalue()


def process_of(decoders: Decoders) -> int:
    return int(decoders._idle.queue[0]._popen.pid)


def test_results_are_those_of_the_library(decoders: Decoders, photographs: Path) -> None:
    path = photographs / "tower-b.jpg"
    for source in (path, path.read_bytes()):
        for side in (64, 200, 1024):
            grey, expected = decoders.grey(source, side), read_grey(source, side)
            assert np.array_equal(grey.pixels, expected.pixels)
            assert (grey.width, grey.height) == (expected.width, expected.height)
        assert np.array_equal(decoders.rgb(source, 200), read_rgb(source, 200))
        assert decoders.thumbnail(source, 160) == read_thumbnail(source, 160)


@pytest.mark.parametrize("source", [b"", b"no image", Path("/nowhere/at/all.jpg")])
def test_errors_are_those_of_the_library(decoders: Decoders, source: Path | bytes) -> None:
    with pytest.raises(ImageError) as expected:
        read_grey(source, 100)
    with pytest.raises(ImageError) as caught:
        decoders.grey(source, 100)
    assert str(caught.value) == str(expected.value) and type(caught.value) is type(expected.value)


@pytest.mark.parametrize("hangs", [False, True])
def test_a_process_ends_after_its_time_limit(hangs: bool) -> None:
    with closing(Decoders(1, 0.05, 1_000_000_000, grace=0.1 if hangs else 1.0)) as decoders:
        before = process_of(decoders)
        if hangs:
            os.kill(before, signal.SIGSTOP)  # so it cannot end itself
        with pytest.raises(ImageError, match=LIMITS):
            decoders.grey(b"small" if hangs else slow_image(), 1024)
        assert has_ended(before) and process_of(decoders) != before


@pytest.mark.parametrize("decoding", [False, True])
def test_a_process_that_dies_costs_one_photograph(photographs: Path, decoding: bool) -> None:
    path = photographs / "tower-b.jpg"
    with closing(Decoders(1, 60.0, 1_000_000_000)) as decoders, ThreadPoolExecutor(1) as clients:
        process = process_of(decoders)
        os.kill(process, signal.SIGSTOP if decoding else signal.SIGKILL)  # stopped: no result before it is killed
        result = clients.submit(decoders.grey, slow_image(), 1024)
        if decoding:
            os.kill(process, signal.SIGKILL)
        with pytest.raises(ImageError, match=LIMITS):
            result.result()
        assert decoders.thumbnail(path, 160) == read_thumbnail(path, 160)


def test_a_result_is_never_that_of_another_photograph(
    decoders: Decoders, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption before the result is read does not leave it to the next photograph."""

    class Interruption(BaseException):
        pass

    def interrupt(process: _Process, seconds: float) -> bytes:
        raise Interruption

    with monkeypatch.context() as patch:
        patch.setattr(_Process, "_receive", interrupt)
        with pytest.raises(Interruption):
            decoders.thumbnail((photographs / "wall-a.jpg").read_bytes(), 64)
    assert decoders.thumbnail(photographs / "tower-b.jpg", 64) == read_thumbnail(photographs / "tower-b.jpg", 64)


def test_memory_is_limited() -> None:
    """With a gigabyte less than it needs, decoding fails in one line."""
    code = (
        "import io, resource\nfrom PIL import Image\nfrom polyvoc.web.decoder import _decode\n"
        "resource.setrlimit(resource.RLIMIT_AS, (900 << 20, 900 << 20))\n"
        "out = io.BytesIO()\nImage.new('1', (20000, 20000)).save(out, 'PNG')\n"
        "request = {'output': 'thumbnail', 'path': None, 'long_side': 64, 'max_pixels': 10**9}\n"
        "print(_decode(request, out.getvalue()))"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "not enough memory" in done.stdout and "'unreachable': True" in done.stdout


def test_processes_end_with_their_owner() -> None:
    """They see that the connection is closed, however the owner ended."""
    code = (
        "import os, signal, sys\nfrom polyvoc.web.decoder import Decoders\n"
        "decoders = Decoders(2, 10.0, 1000)\n"
        "print([process._popen.pid for process in decoders._idle.queue], flush=True)\n"
        "sys.stdin.readline()\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None and owner.stdin is not None
    processes = [int(text) for text in owner.stdout.readline().strip("[]\n").split(",")]
    assert len(processes) == 2 and set(processes) <= set(children_of(owner.pid))
    owner.stdin.write("\n")
    owner.stdin.flush()
    assert owner.stdout.read() == ""  # they hold its stdout: it ends when all have
    assert owner.wait() == -signal.SIGKILL
    owner.stdin.close()
    owner.stdout.close()
    assert all(map(has_ended, processes))


def test_signals_to_the_process_group_are_ignored(decoders: Decoders, photographs: Path) -> None:
    process = process_of(decoders)
    decoders.thumbnail(photographs / "wall-a.jpg", 64)  # it is ready
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process, number)
    assert decoders.thumbnail(photographs / "wall-a.jpg", 64) and process_of(decoders) == process


def test_the_limit_of_pixels_is_for_uploads_only(photographs: Path) -> None:
    path = photographs / "tower-b.jpg"
    with closing(Decoders(1, 60.0, 1000)) as decoders:
        assert decoders.thumbnail(path, 64) == read_thumbnail(path, 64)
        with pytest.raises(ImageError, match="the limit is 1,000 in all"):
            decoders.thumbnail(path.read_bytes(), 64)


def test_a_process_gets_no_token_and_no_modules_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photographs: Path
) -> None:
    for name in ("json.py", "queue.py", "PIL.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYVOC_TOKEN", TOKEN)
    with closing(Decoders(1, 60.0, 100_000_000)) as decoders:
        assert decoders.thumbnail((photographs / "tower-b.jpg").read_bytes(), 64)
        assert TOKEN.encode() not in Path(f"/proc/{process_of(decoders)}/environ").read_bytes()
