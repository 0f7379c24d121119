"""Photographs that misbehave, by their names, in every process that has this folder in its PYTHONPATH.

Python imports a module of this name when it starts. Nobody may open `secret.png`, nobody finds `hidden.png`, and who opens
`deadly.png` is killed. Who opens `gate.png` leaves the numbers of its process and of its machine's in `gate.png.reader`, and
waits until somebody makes `gate.png.open`; `again.png` keeps waiting whoever opens it twice. Once a process has opened
`fuse.png`, whoever opens a photograph beside it is killed, and every other process that opens it, too.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from typing import Any

opened: list[str] = []


def is_burnt(path: str) -> bool:
    """Tell whether the fuse beside a photograph was opened before, by others if it is the fuse itself."""
    burnt, fuse = os.path.join(os.path.dirname(path), "burnt"), path.endswith("/fuse.png")
    if fuse and not os.path.islink(burnt):
        os.symlink(str(os.getpid()), burnt)
    return os.path.islink(burnt) and not (fuse and os.readlink(burnt) == str(os.getpid()))


def look(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path = os.fsdecode(arguments[0])
    if path.endswith("/secret.png"):
        raise PermissionError(errno.EACCES, "Permission denied")
    if path.endswith("/hidden.png"):
        raise FileNotFoundError(errno.ENOENT, "No such file or directory")
    if path.endswith("/deadly.png") or (path.endswith(".png") and is_burnt(path)):
        os.kill(os.getpid(), signal.SIGKILL)
    if path.endswith("/again.png"):
        opened.append(path)
        while opened.count(path) > 1:
            time.sleep(0.01)
    if path.endswith("/gate.png") and not os.path.exists(f"{path}.open"):
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as told:
            told.write(f"{os.getpid()} {os.environ.get('RAY_RAYLET_PID', '0')}")
        os.rename(f"{path}.{os.getpid()}", f"{path}.reader")  # never read half written
        while not os.path.exists(f"{path}.open"):
            time.sleep(0.01)


sys.addaudithook(look)
