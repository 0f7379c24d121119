"""The log is bounded."""

from __future__ import annotations

import logging
import sys

import pytest

from polyvoc.web.log import TRACEBACKS, WINDOW, RepeatFilter, log_to_stderr


def record(line: int, message: str = "connection closed: %s", failed: bool = False) -> logging.LogRecord:
    error = (ValueError, ValueError("x"), None) if failed else None
    return logging.LogRecord("polyvoc.web", logging.WARNING, "file.py", line, message, ("headers",), error)


def test_lines_of_each_kind_are_counted_when_there_are_too_many() -> None:
    now = [0.0]
    lines = RepeatFilter(3, lambda: now[0])
    assert [lines.filter(record(1)) for _ in range(5)] == [True] * 3 + [False] * 2
    assert lines.filter(record(2))  # another kind
    now[0] += WINDOW - 1
    assert not lines.filter(record(1))
    now[0] += 1
    first, second = record(1), record(1)
    assert lines.filter(first) and first.getMessage() == "connection closed: headers (3 similar lines were left out)"
    assert lines.filter(second) and second.getMessage() == "connection closed: headers"


def test_there_are_fewer_tracebacks_than_lines() -> None:
    lines = RepeatFilter(1000, lambda: 0.0)
    assert sum(lines.filter(record(1, failed=True)) for _ in range(100)) == TRACEBACKS


def test_the_log_of_a_server_is_written_while_it_serves(capsys: pytest.CaptureFixture[str]) -> None:
    names = ("polyvoc.web", "uvicorn.error", "asyncio")
    with log_to_stderr(2):
        for name in names:
            for _ in range(4):
                logging.getLogger(name).error("of %s", name)
    written = capsys.readouterr().err.splitlines()
    assert len(written) == 2  # the same line of code
    assert all(not logging.getLogger(name).handlers for name in names), sys.stderr


def test_a_server_that_is_stopped_twice_ends_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    with log_to_stderr(9):
        logging.getLogger("uvicorn.error").error("Traceback ...\nasyncio.exceptions.CancelledError\n")
        logging.getLogger("uvicorn.error").error("Traceback ...\nOSError\n")
    assert "CancelledError" not in (written := capsys.readouterr().err) and "OSError" in written
