"""Parts of tests in processes of their own: as another user, or to be killed half way.

Run as a program with the path of a test module, this is the process behind `ForkServer`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

NOBODY = 65534
TIMEOUT = 600  # seconds until a child that hangs is ended
# Functions of the operating system and of SQLite that change something on the disk.
DISK = frozenset({"open", "flush", "close", "rename", "unlink", "rmdir", "mkdir", "execute", "executemany"})


def in_child(work: Callable[[], None]) -> int:
    """Run a function in a child process; return its exit status: 0, 1 for an error, or minus the signal that killed it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking beside threads: the child uses none of them
        child = os.fork()
    if child == 0:
        _run(work)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def as_nobody(path: Path, work: Callable[[], None]) -> int:
    """Run a function in a child that may read below `path` but not write there. Only root can."""
    for folder in (path, *path.parents):
        if folder.stat().st_mode & 0o055 != 0o055:
            folder.chmod(folder.stat().st_mode | 0o055)

    def unprivileged() -> None:
        os.setuid(NOBODY)
        assert not os.access(path, os.W_OK)
        work()

    return in_child(unprivileged)


def is_root() -> bool:
    """Return whether this process can run children as other users."""
    return hasattr(os, "geteuid") and os.geteuid() == 0


def _run(work: Callable[[], None]) -> NoReturn:
    status = 1
    try:
        work()
        status = 0
    except BaseException:  # noqa: BLE001 - a child must not continue in its parent's code
        traceback.print_exc()
    finally:
        os._exit(status)


@dataclass(frozen=True)
class Run:
    """How a child ended."""

    status: int  # 0, or minus the signal that killed it
    seconds: float
    steps: int  # disk operations, counted before and after each


class ForkServer:
    """A process that has loaded everything, and forks children to be killed. Use it in a `with` statement."""

    def __init__(self, module: str) -> None:
        """Use the functions of the dictionary `JOBS` of a test module, after its `warm()`."""
        self._command = [sys.executable, "-W", "ignore", __file__, module]

    def __enter__(self) -> ForkServer:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def run(self, job: str, *values: str, step: int | None = None, seconds: float | None = None) -> Run:
        """Run a job in a child; kill it at a step, or after some seconds, or never."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"job": job, "values": values, "step": step, "seconds": seconds}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return Run(**json.loads(self._process.stdout.readline()))


def _serve(jobs: dict[str, Callable[..., None]]) -> None:
    for line in sys.stdin:
        request = json.loads(line)
        receive, send = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(receive)
            signal.alarm(TIMEOUT)
            _run(lambda: _count_steps(lambda: jobs[request["job"]](*request["values"]), request["step"], send))  # noqa: B023
        os.close(send)
        started = time.perf_counter()
        if request["seconds"] is not None:
            os.read(receive, 1)  # it has started
            time.sleep(request["seconds"])
            os.kill(child, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        steps = os.read(receive, 100).decode().strip("b")
        os.close(receive)
        print(json.dumps(vars(Run(status, time.perf_counter() - started, int(steps or 0)))), flush=True)


def _count_steps(work: Callable[[], None], fatal: int | None, channel: int) -> None:
    os.write(channel, b"b")
    with dying(fatal) as steps:
        work()
    os.write(channel, str(steps()).encode())


@contextmanager
def dying(fatal: int | None) -> Iterator[Callable[[], int]]:
    """Kill this process at the fatal disk operation inside; yield a function that returns their number."""
    steps = 0

    def count(name: str) -> None:
        nonlocal steps
        steps += 1
        if steps == fatal:
            os.kill(os.getpid(), signal.SIGKILL)

    with watched(count):
        yield lambda: steps


@contextmanager
def watched(look: Callable[[str], None]) -> Iterator[None]:
    """Call `look` before and after every disk operation inside, with its name."""

    def watch(frame: FrameType, event: str, argument: Any) -> None:
        name = getattr(argument, "__name__", "")
        if event in ("c_call", "c_return") and name in DISK:
            sys.setprofile(None)
            look(name)
            sys.setprofile(watch)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        yield
    finally:
        sys.setprofile(before)


def _load(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("jobs", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    tested = _load(sys.argv[1])
    tested.warm()
    _serve(tested.JOBS)
