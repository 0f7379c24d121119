"""Photographs that misbehave, by their names, in every process that has this folder in its PYTHONPATH.

Python imports a module of this name when it starts. Nobody may open `secret.png`, and who opens `deadly.png` is killed. Who
opens `gate.png` leaves the numbers of its process and of its machine's in `gate.png.reader`, and waits until somebody makes
`gate.png.open`.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from typing import Any


def look(event: str, arguments: tuple[Any, ...]) -> None:
    if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path = os.fsdecode(arguments[0])
    if path.endswith("/secret.png"):
        raise PermissionError(errno.EACCES, "Permission denied")
    if path.endswith("/deadly.png"):
        os.kill(os.getpid(), signal.SIGKILL)
    if path.endswith("/gate.png") and not os.path.exists(f"{path}.open"):
        with open(f"{path}.{os.getpid()}", "w", encoding="utf-8") as told:
            told.write(f"{os.getpid()} {os.environ.get('RAY_RAYLET_PID', '0')}")
        os.rename(f"{path}.{os.getpid()}", f"{path}.reader")  # never read half written
        while not os.path.exists(f"{path}.open"):
            time.sleep(0.01)


sys.addaudithook(look)
