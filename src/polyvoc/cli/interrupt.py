"""Ctrl-C ends a command soon, whatever it is doing."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from polyvoc.cli.start import INTERRUPTED

KEPT = "interrupted; what was indexed is kept, run the same command to continue"
END_SECONDS = 1.5  # after Ctrl-C, for what can be finished
SHOW_CURSOR = "\x1b[?25h"  # a progress bar hides it


@contextmanager
def ends_when_interrupted(seconds: float = END_SECONDS) -> Iterator[None]:
    """End this process some seconds after Ctrl-C, if it has not ended itself by then.

    Only for commands that may be killed at any time and keep what was committed. Python raises KeyboardInterrupt in the main
    thread, and only between two instructions; it then waits for its other threads. A disk, a store or a long computation may
    hold up both.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    watched, written = socket.socketpair()
    written.setblocking(False)
    before = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)  # written by the system's handler at once
    threading.Thread(target=_watch, args=(watched, seconds), daemon=True).start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        written.close()  # ends the thread, unless Ctrl-C came


def _watch(signals: socket.socket, seconds: float) -> None:
    with signals:
        while number := signals.recv(1):
            if number[0] == signal.SIGINT:
                time.sleep(seconds)
                os.write(2, f"{SHOW_CURSOR * sys.stderr.isatty()}polyvoc: {KEPT}\n".encode())
                os._exit(INTERRUPTED)
