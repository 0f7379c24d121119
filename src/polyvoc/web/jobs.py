"""Long work of a server, in a thread of its own: how far it is, what it could not use, and how it ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polyvoc.errors import OptionError, PolyvocError
from polyvoc.types import Problem, Progress

logger = logging.getLogger("polyvoc.web")
END_SECONDS = 10  # for the running job when the server stops; what it committed is kept in any case
MAX_PROBLEMS = 200  # of a job that are listed


@dataclass(frozen=True)
class JobResult:
    """What a job leaves to tell."""

    problems: Sequence[Problem] = ()  # files that could not be used
    skipped: Mapping[str, int] = field(default_factory=dict)  # other files, which are no photographs, by kind
    photographs: int = 0  # that the index holds


NOTHING = JobResult()
Work = Callable[[Progress], JobResult]


class Cancelled(KeyboardInterrupt):
    """The user has cancelled a job."""


class Jobs:
    """One job at a time."""

    def __init__(self) -> None:
        """Start without a job."""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._cancel = threading.Event()
        self._started = self._ended = 0.0
        self._outcome = NOTHING
        self._now: dict[str, Any] = {"job": "", "state": "idle", "stage": "", "done": 0, "total": 0, "error": ""}

    def start(self, job: str, stage: str, work: Work) -> dict[str, Any]:
        """Start a job in its first stage; raise OptionError while another one is running."""
        with self._lock:
            if self._now["state"] == "running":
                raise OptionError(f"{self._now['job']} is still running; wait for it, or cancel it")
            self._cancel.clear()
            self._started, self._outcome = time.monotonic(), NOTHING
            self._now = {"job": job, "state": "running", "stage": stage, "done": 0, "total": 0, "error": ""}
            self._thread = threading.Thread(target=self._run, args=[work], name="polyvoc-job", daemon=True)
            self._thread.start()
        return self.state()

    def state(self) -> dict[str, Any]:
        """Return how far the last job is, or how it ended: running, done, cancelled or failed; idle before the first one."""
        with self._lock:
            end = time.monotonic() if self._now["state"] == "running" else self._ended
            outcome = self._outcome
            return {
                **self._now,
                "seconds": round(end - self._started, 1),
                "problems": [vars(problem) for problem in outcome.problems[:MAX_PROBLEMS]],
                "n_problems": len(outcome.problems),
                "skipped": dict(outcome.skipped),
                "photographs": outcome.photographs,
            }

    def cancel(self) -> dict[str, Any]:
        """Make the running job end soon."""
        self._cancel.set()
        return self.state()

    def close(self) -> None:
        """Cancel the running job, and wait for its end for a while."""
        self._cancel.set()
        if self._thread is not None:
            self._thread.join(END_SECONDS)

    def _progress(self, stage: str, done: int, total: int) -> None:
        if self._cancel.is_set():
            raise Cancelled
        with self._lock:
            self._now |= {"stage": stage, "done": done, "total": total}

    def _run(self, work: Work) -> None:
        try:
            outcome = work(self._progress)
        except Cancelled:
            self._end("cancelled")
        except PolyvocError as error:
            self._end("failed", str(error))
        except BaseException as error:
            logger.exception("a job failed")
            self._end("failed", f"unexpected {type(error).__name__}; see the server's log")
        else:
            self._end("done", outcome=outcome)

    def _end(self, state: str, error: str = "", outcome: JobResult = NOTHING) -> None:
        with self._lock:
            self._ended = time.monotonic()
            self._outcome = outcome
            self._now |= {"state": state, "error": error}
            logger.info("%s: %s after %.1f s", self._now["job"], state, self._ended - self._started)
