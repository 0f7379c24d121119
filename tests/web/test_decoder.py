"""Decoding in a process of its own: the same pixels, within limits, whatever happens to the process."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyvoc.errors import ImageError
from polyvoc.features.decode import read_grey, read_rgb, read_thumbnail
from polyvoc.web.decoder import Decoders, _Process
from servers import children_of, has_ended

LIMITS = "cannot be decoded within the limits of time and memory; reduce it first"


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    found = Decoders(1, 60.0, 100_000_000)
    yield found
    found.close()


@pytest.fixture
def sluggish() -> Iterator[Decoders]:
    """One that has very little time."""
    found = Decoders(1, 0.05, 1_000_000_000)
    yield found
    found.close()


def slow_image() -> bytes:
    """A small file that takes long to decode: 120 million pixels of zeros."""
    out = io.BytesIO()
    Image.new("L", (12000, 10000)).save(out, "PNG", compress_level=1)
    return out.getvalue()


def process_of(decoders: Decoders) -> int:
    process = decoders._idle.queue[0]
    return int(process._popen.pid)


def test_pixels_are_those_of_the_library(decoders: Decoders, photographs: Path) -> None:
    path = photographs / "tower-b.jpg"
    for source in (path, path.read_bytes()):
        for side in (64, 200, 1024):
            found, wanted = decoders.grey(source, side), read_grey(source, side)
            assert np.array_equal(found.pixels, wanted.pixels)
            assert (found.width, found.height) == (wanted.width, wanted.height)
        assert decoders.thumbnail(source, 160) == read_thumbnail(source, 160)


@pytest.mark.parametrize("source", [b"", b"no image", Path("/nowhere/at/all.jpg")])
def test_failures_are_those_of_the_library(decoders: Decoders, source: Path | bytes) -> None:
    with pytest.raises(ImageError) as wanted:
        read_grey(source, 100)
    with pytest.raises(ImageError) as found:
        decoders.grey(source, 100)
    assert str(found.value) == str(wanted.value) and type(found.value) is type(wanted.value)


def test_what_takes_too_long_is_ended(sluggish: Decoders, photographs: Path) -> None:
    before = process_of(sluggish)
    with pytest.raises(ImageError, match=LIMITS):
        sluggish.grey(slow_image(), 1024)
    assert has_ended(before) and process_of(sluggish) != before


def test_what_hangs_is_ended_from_outside(monkeypatch: pytest.MonkeyPatch, photographs: Path) -> None:
    monkeypatch.setattr("polyvoc.web.decoder.GRACE", 0.1)
    hanging = Decoders(1, 0.1, 1000)
    before = process_of(hanging)
    os.kill(before, signal.SIGSTOP)  # so it cannot end itself
    with pytest.raises(ImageError, match=LIMITS):
        hanging.grey((photographs / "wall-a.jpg").read_bytes(), 100)
    assert has_ended(before)
    hanging.close()


def test_a_process_that_is_killed_costs_one_photograph(decoders: Decoders, photographs: Path) -> None:
    path = photographs / "tower-b.jpg"
    os.kill(process_of(decoders), signal.SIGKILL)
    with pytest.raises(ImageError, match=LIMITS):
        decoders.thumbnail(path, 160)
    assert decoders.thumbnail(path, 160) == read_thumbnail(path, 160)


def test_a_process_killed_in_the_middle_costs_one_photograph(photographs: Path) -> None:
    slow = Decoders(1, 60.0, 1_000_000_000)
    process, failures = process_of(slow), []

    def decode() -> None:
        try:
            slow.grey(slow_image(), 1024)
        except ImageError as error:
            failures.append(str(error))

    os.kill(process, signal.SIGSTOP)  # it will not answer before it is killed
    thread = threading.Thread(target=decode)
    thread.start()
    os.kill(process, signal.SIGKILL)
    thread.join()
    assert failures == [LIMITS]
    assert slow.grey(photographs / "wall-a.jpg", 100).width == 360
    slow.close()


def test_an_answer_is_never_that_of_another_photograph(
    decoders: Decoders, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is interrupted before reading its answer does not leave it to the next."""

    class Interruption(BaseException):
        pass

    asked = _Process.ask

    def interrupt(process: _Process, order: object, content: bytes, seconds: float) -> None:
        process._connection.send_bytes(
            b'{"wanted": "thumbnail", "long_side": 64, "max_pixels": 1000000, "path": null, "seconds": 9}'
        )
        process._connection.send_bytes(content)
        raise Interruption

    monkeypatch.setattr(_Process, "ask", interrupt)
    with pytest.raises(Interruption):
        decoders.thumbnail((photographs / "wall-a.jpg").read_bytes(), 64)
    monkeypatch.setattr(_Process, "ask", asked)
    assert decoders.thumbnail(photographs / "tower-b.jpg", 64) == read_thumbnail(photographs / "tower-b.jpg", 64)


def test_memory_is_limited(photographs: Path) -> None:
    """With a gigabyte less than it wants, decoding fails in one line and the server's own memory is not touched."""
    code = (
        "import io, resource\nfrom PIL import Image\nfrom polyvoc.web import decoder\n"
        "resource.setrlimit(resource.RLIMIT_AS, (900 << 20, 900 << 20))\n"
        "out = io.BytesIO()\nImage.new('1', (20000, 20000)).save(out, 'PNG')\n"
        "order = {'wanted': 'thumbnail', 'path': None, 'long_side': 64, 'max_pixels': 10**9}\n"
        "print(decoder._attempt(order, out.getvalue()))"
    )
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert "not enough memory to decode it now" in done.stdout and "'unreachable': True" in done.stdout


def test_processes_end_with_their_owner(decoders: Decoders) -> None:
    """They hear that nobody holds the other end, however the owner went."""
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


def test_signals_for_the_whole_group_do_not_end_them(decoders: Decoders, photographs: Path) -> None:
    process = process_of(decoders)
    decoders.thumbnail(photographs / "wall-a.jpg", 64)  # it has begun to listen
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process, number)
    assert decoders.thumbnail(photographs / "wall-a.jpg", 64) and process_of(decoders) == process


def test_colours_are_those_of_the_library(decoders: Decoders, photographs: Path) -> None:
    content = (photographs / "tower-b.jpg").read_bytes()
    assert np.array_equal(decoders.rgb(content, 200), read_rgb(content, 200))


def test_files_of_the_collection_may_be_as_large_as_when_they_were_indexed(photographs: Path) -> None:
    strict = Decoders(1, 60.0, 1000)
    try:
        path = photographs / "tower-b.jpg"
        assert strict.thumbnail(path, 64) == read_thumbnail(path, 64)
        with pytest.raises(ImageError, match="the limit is 1,000 in all"):
            strict.thumbnail(path.read_bytes(), 64)
    finally:
        strict.close()


def test_a_process_knows_no_secret_and_no_other_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, photographs: Path
) -> None:
    """Neither the token, nor what lies in the folder where the server was started."""
    for name in ("json.py", "queue.py", "PIL.py"):
        (tmp_path / name).write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYVOC_TOKEN", "a-token-for-tests")
    found = Decoders(1, 60.0, 100_000_000)
    try:
        assert found.thumbnail((photographs / "tower-b.jpg").read_bytes(), 64)
        assert b"a-token-for-tests" not in Path(f"/proc/{process_of(found)}/environ").read_bytes()
    finally:
        found.close()
