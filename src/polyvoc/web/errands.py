"""Questions to stores, each with a deadline: a store that is silent keeps a thread of its own waiting, and nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from polyvoc import stores
from polyvoc.errors import UnreachableError
from polyvoc.masking import shown

T = TypeVar("T")
MAX_BYTES = 1 << 27  # of a photograph in a store that is served: several of them are in memory at a time
ABANDONED = 8  # questions nobody waits for any more, beside those of the threads that work


class Errands:
    """Threads that ask stores. One that gets no answer in time is left to itself; it ends when the store gives up."""

    def __init__(self, most: int, seconds: float) -> None:
        """Allow so many questions at a time, those that were left included, and so many seconds for each."""
        self._free = threading.Semaphore(most)
        self._seconds = seconds

    def read(self, url: str) -> bytes:
        """Give what a file holds."""
        return self.run(url, lambda: stores.read(url, MAX_BYTES))

    def run(self, url: str, ask: Callable[[], T]) -> T:
        """Give the answer to a question about an address; if there is none in time, that is an `UnreachableError`."""
        if not self._free.acquire(blocking=False):
            raise UnreachableError(f"{shown(url)}: too many questions to stores have no answer yet; try again later")
        answer: Future[T] = Future()

        def work() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:  # noqa: BLE001 - told to whoever waits
                answer.set_exception(error)
            finally:
                self._free.release()

        try:
            threading.Thread(target=work, name="polyvoc-store", daemon=True).start()  # the server may end without it
        except RuntimeError as error:
            self._free.release()
            raise UnreachableError(f"{shown(url)}: no thread is left to ask its store; try again later") from error
        if not wait([answer], self._seconds).done:
            raise UnreachableError(f"{shown(url)}: its store has not answered within {self._seconds:g} s; try again later")
        return answer.result()
