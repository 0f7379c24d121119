"""Photographs that fail, by their names, in every process that has this folder in its PYTHONPATH.

Python imports a module of this name when it starts.

- `secret.png`: permission denied; `hidden.png`: not found; `deadly.png`: the process that opens it is killed.
- `gate.png`: its reader writes its own process id and that of its Ray node to `gate.png.reader`, and waits for `gate.png.open`.
- `endless.png`: its reader waits for ever; the time limit that the process has set for it, if any, is reached at once.
- `fuse.png`: once a process has opened it, every other process that opens it, or any photograph beside it, is killed.
"""

from __future__ import annotations

import errno
import faulthandler
import os
import signal
import sys
import time
from typing import Any


def is_burnt(path: str) -> bool:
    """Return whether the fuse beside a photograph was opened before, by another process if it is the fuse itself."""
    burnt, is_fuse = os.path.join(os.path.dirname(path), "burnt"), path.endswith("/fuse.png")
    if is_fuse and not os.path.islink(burnt):
        os.symlink(str(os.getpid()), burnt)
    return os.path.islink(burnt) and not (is_fuse and os.readlink(burnt) == str(os.getpid()))


class TimeLimit:
    """The time limit of this process, as `faulthandler` sets it: it can be made to be reached."""

    def __init__(self) -> None:
        self._set, self._cancel = faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later
        self._options: dict[str, Any] | None = None
        faulthandler.dump_traceback_later, faulthandler.cancel_dump_traceback_later = self.set, self.cancel

    def set(self, seconds: float, **options: Any) -> None:
        self._set(seconds, **options)
        self._options = options

    def cancel(self) -> None:
        self._cancel()
        self._options = None

    def reach(self) -> None:
        if self._options is not None:
            self._set(0.01, **self._options)


def fail(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path = os.fsdecode(arguments[0])
    if path.endswith("/secret.png"):
        raise PermissionError(errno.EACCES, "Permission denied")
    if path.endswith("/hidden.png"):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")
    if path.endswith("/deadly.png") or (path.endswith(".png") and is_burnt(path)):
        os.kill(os.getpid(), signal.SIGKILL)
    if path.endswith("/gate.png") and not os.path.exists(f"{path}.open"):
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as file:
            file.write(f"{os.getpid()} {os.environ.get('RAY_RAYLET_PID', '0')}")
        os.rename(f"{path}.{os.getpid()}", f"{path}.reader")  # never read half written
        while not os.path.exists(f"{path}.open"):
            time.sleep(0.01)
    if path.endswith("/endless.png"):
        while True:  # again and again: it may be read ahead, before the limit is set for it
            limit.reach()
            time.sleep(0.1)


limit = TimeLimit()
sys.addaudithook(fail)
