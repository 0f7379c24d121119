"""The log of a server, bounded: what repeats is counted instead of written."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

WINDOW = 60.0  # seconds
TRACEBACKS = 10  # per window and kind
LEVELS = {"polyvoc.web": logging.INFO, "uvicorn.error": logging.WARNING, "asyncio": logging.WARNING}


@dataclass
class _Window:
    """What was logged at one place of the code since some time."""

    since: float
    written: int = 0
    left_out: int = 0


class RepeatFilter(logging.Filter):
    """Passes so many lines per minute of each kind; the next one that passes has the number of those left out.

    Lines are of one kind if the same line of code logs them: the memory of the filter is bounded by the code.
    """

    def __init__(self, lines: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Set the number of lines."""
        super().__init__()
        self._lines = lines
        self._clock = clock
        self._windows: dict[tuple[str, int], _Window] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is written."""
        now, kind = self._clock(), (record.pathname, record.lineno)
        window = self._windows.setdefault(kind, _Window(now))
        if now - window.since >= WINDOW:
            if window.left_out:
                record.msg, record.args = f"{record.getMessage()} ({window.left_out} similar lines were left out)", ()
            window = self._windows[kind] = _Window(now)
        if window.written >= (min(TRACEBACKS, self._lines) if record.exc_info else self._lines):
            window.left_out += 1
            return False
        window.written += 1
        return True


def is_no_shutdown(record: logging.LogRecord) -> bool:
    """Return whether a record is other than the traceback of a server that the user has stopped twice, hence at once."""
    return record.name != "uvicorn.error" or "asyncio.exceptions.CancelledError" not in record.getMessage()


@contextmanager
def log_to_stderr(lines: int) -> Iterator[None]:
    """Write the server's log to stderr while it serves, so many lines per minute and kind."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    handler.addFilter(is_no_shutdown)
    handler.addFilter(RepeatFilter(lines))
    levels = {logging.getLogger(name): level for name, level in LEVELS.items()}
    before = [(logger, logger.level, logger.propagate) for logger in levels]
    for logger, level in levels.items():
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, level, propagate in before:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate
