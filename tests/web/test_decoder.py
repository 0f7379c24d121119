"""Decoding in separate processes: the same pixels as in the library, within limits, whatever happens to the process."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
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


def test_a_process_ends_after_its_time_limit() -> None:
    with closing(Decoders(1, 0.05, 1_000_000_000)) as decoders:
        before = process_of(decoders)
        with pytest.raises(ImageError, match=LIMITS):
            decoders.grey(slow_image(), 1024)
        assert has_ended(before) and process_of(decoders) != before


def test_a_process_that_hangs_is_killed(photographs: Path) -> None:
    with closing(Decoders(1, 0.1, 1000, grace=0.1)) as decoders:
        before = process_of(decoders)
        os.kill(before, signal.SIGSTOP)  # so it cannot end itself
        with pytest.raises(ImageError, match=LIMITS):
            decoders.grey((photographs / "wall-a.jpg").read_bytes(), 100)
        assert has_ended(before)


def test_a_process_that_dies_costs_one_photograph(decoders: Decoders, photographs: Path) -> None:
    path = photographs / "tower-b.jpg"
    os.kill(process_of(decoders), signal.SIGKILL)
    with pytest.raises(ImageError, match=LIMITS):
        decoders.thumbnail(path, 160)
    assert decoders.thumbnail(path, 160) == read_thumbnail(path, 160)


def test_a_process_that_dies_while_decoding_costs_one_photograph(photographs: Path) -> None:
    with closing(Decoders(1, 60.0, 1_000_000_000)) as decoders:
        process, errors = process_of(decoders), []

        def decode() -> None:
            try:
                decoders.grey(slow_image(), 1024)
            except ImageError as error:
                errors.append(str(error))

        os.kill(process, signal.SIGSTOP)  # no result before it is killed
        thread = threading.Thread(target=decode)
        thread.start()
        os.kill(process, signal.SIGKILL)
        thread.join()
        assert errors == [LIMITS]
        assert decoders.grey(photographs / "wall-a.jpg", 100).width == 360


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
