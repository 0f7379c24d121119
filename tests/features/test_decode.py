"""Decoding in separate processes: right pixels, nobody blamed wrongly, whatever happens to a process."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyvoc.errors import DecoderError, ImageError, OptionError
from polyvoc.features import decode
from polyvoc.features.decode import Decoders, _Process, _Rate, read_grey, read_rgb, read_thumbnail
from polyvoc.features.pixels import PixelLimits, decode_thumbnail
from polyvoc.features.pixels import decode as decode_here
from processes import in_child
from servers import children_of, has_ended


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    with Decoders(1) as decoders:
        yield decoders


def process_of(decoders: Decoders) -> int:
    """Return the process that decodes next; start it."""
    decoders.start()
    process = decoders._idle.queue[-1]
    assert process is not None
    return process.pid


def stopped(decoders: Decoders) -> int:
    """Return the process that decodes next, stopped: it gives no result before it is killed."""
    process = process_of(decoders)
    os.kill(process, signal.SIGSTOP)
    return process


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Count photographs that are about to be sent to a process."""
    count, ask = threading.Semaphore(0), _Process._ask

    def count_and_ask(process: _Process, *values: object) -> object:
        count.release()
        return ask(process, *values)  # type: ignore[arg-type]

    monkeypatch.setattr(_Process, "_ask", count_and_ask)
    return count


def test_results_are_those_of_the_same_process(decoders: Decoders, photographs: Path) -> None:
    path = photographs / "tower-b.jpg"
    for source in (path, str(path), path.read_bytes()):
        for side in (64, 200, 1024):
            limits = PixelLimits(side, 32, 10**9)
            with open(path, "rb") as file:
                expected, (width, height) = decode_here(file, "L", limits)
            grey = decoders.grey(source, side)
            assert np.array_equal(grey.pixels, np.asarray(expected)) and (grey.width, grey.height) == (width, height)
            assert np.array_equal(read_grey(source, side).pixels, grey.pixels)
        with open(path, "rb") as file:
            assert np.array_equal(
                decoders.rgb(source, 200), np.asarray(decode_here(file, "RGB", PixelLimits(200, 32, 10**9))[0])
            )
        with open(path, "rb") as file:
            assert decoders.thumbnail(source, 160) == decode_thumbnail(file, PixelLimits(160, 1, 10**9))
    assert np.array_equal(read_rgb(path, 200), decoders.rgb(path, 200))
    assert read_thumbnail(path, 160) == decoders.thumbnail(path, 160)


@pytest.mark.parametrize(
    ("source", "expected"),
    [(b"", "empty"), (b"no image", "not an image"), (Path("/nowhere/at/all.jpg"), "/nowhere/at/all.jpg: no such file")],
)
def test_errors_are_one_line_with_the_name(decoders: Decoders, source: Path | bytes, expected: str) -> None:
    for name in (None, "photo 7"):
        with pytest.raises(ImageError, match=expected if name is None else "^photo 7: ") as caught:
            decoders.grey(source, 100, name=name)
        assert len(str(caught.value).splitlines()) == 1 and not isinstance(caught.value, DecoderError)
    with pytest.raises(OptionError, match="long_side=8"):
        decoders.grey(source, 8)


def test_the_limit_of_pixels_is_that_of_the_call(decoders: Decoders, photographs: Path) -> None:
    path = photographs / "tower-b.jpg"
    assert decoders.thumbnail(path, 64)
    with pytest.raises(ImageError, match=r"tower-b.jpg: too large: .*the limit is 1,000 in all"):
        decoders.thumbnail(path, 64, max_pixels=1000)


# -- processes that die


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV])
@pytest.mark.parametrize("decoding", [False, True])
def test_a_photograph_in_a_process_that_dies_is_decoded_by_another(
    photographs: Path, asked: threading.Semaphore, number: signal.Signals, decoding: bool
) -> None:
    path = photographs / "tower-b.jpg"
    with Decoders(1) as decoders, ThreadPoolExecutor(1) as clients:
        process = process_of(decoders)
        if decoding:
            assert decoders.thumbnail(path, 160)  # it is ready
            assert asked.acquire(timeout=60)
            os.kill(process, signal.SIGSTOP)
            result = clients.submit(decoders.grey, path.read_bytes(), 1024)
            assert asked.acquire(timeout=60)
            os.kill(process, number)
            os.kill(process, signal.SIGCONT)
        else:
            os.kill(process, number)
            result = clients.submit(decoders.grey, path.read_bytes(), 1024)
        assert np.array_equal(result.result().pixels, read_grey(path, 1024).pixels)
        assert has_ended(process) and process_of(decoders) != process


def fatal(monkeypatch: pytest.MonkeyPatch, *numbers: signal.Signals) -> list[int]:
    """Have each of the next processes killed as soon as it is asked; return their numbers."""
    left, processes, ask = list(numbers), [], _Process._ask

    def kill_and_ask(process: _Process, *values: object) -> object:
        processes.append(process.pid)
        if left:
            os.kill(process.pid, signal.SIGSTOP)
            os.kill(process.pid, left.pop(0))
            os.kill(process.pid, signal.SIGCONT)
        return ask(process, *values)  # type: ignore[arg-type]

    monkeypatch.setattr(_Process, "_ask", kill_and_ask)
    return processes


def test_a_photograph_whose_processes_crash_twice_is_at_fault(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = photographs / "tower-b.jpg"
    with Decoders(1) as decoders:
        processes = fatal(monkeypatch, signal.SIGSEGV, signal.SIGBUS)
        with pytest.raises(ImageError, match=r"tower-b.jpg: its decoder crashed twice \(SIGBUS\); replace or remove") as caught:
            decoders.grey(path, 1024)
        assert not isinstance(caught.value, DecoderError) and len(set(processes)) == 2
        assert decoders.thumbnail(path, 160)


@pytest.mark.parametrize("first", [signal.SIGKILL, signal.SIGSEGV])
def test_a_photograph_whose_processes_are_killed_may_be_tried_again(
    photographs: Path, monkeypatch: pytest.MonkeyPatch, first: signal.Signals
) -> None:
    path = photographs / "tower-b.jpg"
    with Decoders(1) as decoders:
        fatal(monkeypatch, first, signal.SIGKILL)
        with pytest.raises(DecoderError, match=r"tower-b.jpg: could not be decoded now \(SIGKILL\); try again"):
            decoders.grey(path, 1024)
        assert decoders.thumbnail(path, 160)


def test_a_process_that_hangs_is_replaced(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = photographs / "tower-b.jpg"
    with Decoders(1) as decoders:
        decoders.thumbnail(path, 64)
        process = stopped(decoders)
        with monkeypatch.context() as patch:
            patch.setattr(_Process, "_receive", lambda *_: (_ for _ in ()).throw(TimeoutError))
            with pytest.raises(DecoderError, match="no result within"):
                decoders.thumbnail(path, 160)
        assert has_ended(process) and decoders.thumbnail(path, 160)


@pytest.mark.parametrize(
    "header",
    [
        '{"size": [9, 9], "full": [9, 9]}',
        '{"size": [2, 1], "full": [0, 1]}',
        '{"size": "", "full": 1}',
        "{}",
        "[]",
        "no JSON",
        '{"size": [2, 1], "full": [1e300, 1]}',
        '{"size": [2, Infinity], "full": [2, 1]}',
        "[" * 5000,
    ],
)
def test_a_result_that_is_impossible_is_not_taken(photographs: Path, monkeypatch: pytest.MonkeyPatch, header: str) -> None:
    """A hostile photograph may control the process that decodes it."""
    receive = _Process._receive

    def forged(process: _Process, deadline: float, largest: int) -> object:
        received = receive(process, deadline, largest)
        return (json.loads(header), bytearray(2)) if largest else received

    monkeypatch.setattr(_Process, "_receive", forged)
    with Decoders(1) as decoders, pytest.raises(DecoderError, match="no valid result"):
        decoders.grey(photographs / "tower-b.jpg", 64)


def test_a_reason_of_a_process_is_one_printable_line(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Process, "_ask", lambda *_: ({"error": "a\nb\x1b[31m" + "c" * 9999}, bytearray()))
    with Decoders(1) as decoders, pytest.raises(ImageError, match=r"tower-b.jpg: a b\?\[31mc+$") as caught:
        decoders.grey(photographs / "tower-b.jpg", 64)
    assert len(str(caught.value)) < 1000


def test_a_result_is_never_that_of_another_photograph(
    decoders: Decoders, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interruption before the result is read does not leave it to the next photograph."""

    class Interruption(BaseException):
        pass

    def interrupt(process: _Process, deadline: float, largest: int) -> object:
        raise Interruption

    expected = read_thumbnail(photographs / "tower-b.jpg", 64)
    with monkeypatch.context() as patch:
        patch.setattr(_Process, "_receive", interrupt)
        with pytest.raises(Interruption):
            decoders.thumbnail((photographs / "wall-a.jpg").read_bytes(), 64)
    assert decoders.thumbnail(photographs / "tower-b.jpg", 64) == expected


def test_no_process_can_be_started(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    with Decoders(1) as decoders:
        with monkeypatch.context() as patch:
            patch.setattr("polyvoc.features.decode.subprocess.Popen", fail)
            with pytest.raises(DecoderError, match=r"no process to decode it can be started \(Resource temporarily"):
                decoders.grey(photographs / "tower-b.jpg", 64)
        with monkeypatch.context() as patch:
            patch.setattr("polyvoc.features.decode.command", lambda _: [sys.executable, "-c", "raise SystemExit(3)"])
            with pytest.raises(DecoderError, match="its process ended with exit code 3"):
                decoders.grey(photographs / "tower-b.jpg", 64)
        assert decoders.thumbnail(photographs / "tower-b.jpg", 64)


def test_starts_have_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("polyvoc.features.decode.time.monotonic", lambda: now)
    rate = _Rate(3, 0.25)
    assert [rate.delay() for _ in range(5)] == [0, 0, 0, 0.25, 0.5]
    now += 0.5
    assert [rate.delay(), rate.delay()] == [0.25, 0.5]
    now += 100
    assert [rate.delay() for _ in range(4)] == [0, 0, 0, 0.25]


# -- the end


def test_closing_ends_what_is_being_decoded(photographs: Path, asked: threading.Semaphore) -> None:
    path = photographs / "tower-b.jpg"
    with Decoders(1) as decoders, ThreadPoolExecutor(2) as clients:
        assert decoders.thumbnail(path, 160)
        assert asked.acquire(timeout=60)
        process = stopped(decoders)
        results = [clients.submit(decoders.grey, path, 1024) for _ in range(2)]  # one of them waits for the process
        assert asked.acquire(timeout=60)
        decoders.close()
        for result in results:
            with pytest.raises(DecoderError, match="could not be decoded now"):
                result.result(60)
        assert has_ended(process)
    with Decoders(1) as decoders:
        decoders.start()
    for _ in range(2):
        with pytest.raises(DecoderError, match="could not be decoded now"):
            decoders.grey(path, 1024)


def test_processes_end_with_their_owner(tmp_path: Path) -> None:
    """Also in the middle of a photograph, however the owner ended."""
    out = io.BytesIO()
    Image.new("L", (16000, 16000)).save(out, "PNG", compress_level=1)
    (tmp_path / "large.png").write_bytes(out.getvalue())
    code = (
        "import os, signal, sys, threading\nfrom polyvoc.features.decode import Decoders\n"
        "decoders = Decoders(2)\ndecoders.start(2)\n"
        "print([process.pid for process in decoders._idle.queue], flush=True)\n"
        f"threading.Thread(target=decoders.grey, args=({str(tmp_path / 'large.png')!r}, 64), daemon=True).start()\n"
        "sys.stdin.readline()\nos.kill(os.getpid(), signal.SIGKILL)"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None and owner.stdin is not None
    processes = [int(text) for text in owner.stdout.readline().strip("[]\n").split(",")]
    assert len(processes) == 2 and set(processes) <= set(children_of(owner.pid))
    owner.stdin.write("\n")
    owner.stdin.flush()
    assert owner.stdout.read() == ""
    assert owner.wait() == -signal.SIGKILL
    owner.stdin.close()
    owner.stdout.close()
    for process in processes:
        assert has_ended(process)


def test_signals_to_the_process_group_are_ignored(decoders: Decoders, photographs: Path) -> None:
    process = process_of(decoders)
    decoders.thumbnail(photographs / "wall-a.jpg", 64)  # it is ready
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(process, number)
    assert decoders.thumbnail(photographs / "wall-a.jpg", 64) and process_of(decoders) == process


def test_a_forked_process_has_its_own(photographs: Path) -> None:
    """Two owners of one connection would get one another's results."""
    path = photographs / "tower-b.jpg"
    expected = read_thumbnail(path, 64)

    def work() -> None:
        assert decode.shared_decoders()._running == set()
        assert read_thumbnail(path, 64) == expected
        decode.shared_decoders().close()

    assert in_child(work) == 0
    assert read_thumbnail(path, 64) == expected
