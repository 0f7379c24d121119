"""How the work of a request is awaited, and how its result or its failure is told."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from polyvoc.answers import Answer
from polyvoc.errors import ClusterError, ImageError, LockedError, OptionError, PolyvocError, UnreachableError, WriteError
from polyvoc.web.guard import HEADERS
from polyvoc.web.parameters import NO_ADDRESSES
from polyvoc.web.pool import BusyError, Pool
from polyvoc.web.service import AbsentError

logger = logging.getLogger("polyvoc.web")
T = TypeVar("T")
LINES = "application/x-ndjson"
WATCH_SECONDS = 0.5  # between looks whether the one who asked has left
LOCKED_SECONDS = 5  # until another writer may be done, a machine of the cluster back, or a store awake
GONE = 499  # nobody reads this answer


class Json(JSONResponse):
    """JSON that is rendered already."""

    def render(self, content: Any) -> bytes:
        """Give the bytes."""
        assert isinstance(content, bytes)
        return content


def rendered(value: Any) -> bytes:
    """Give JSON in ASCII, as the command line prints it: file names that are no text pass as escapes."""
    return json.dumps(value, allow_nan=False).encode()


async def told(request: Request, pool: Pool, work: Callable[[], Any], status: int = 200) -> Json:
    """Let a pool do a piece of work and render its result: a large one takes its time, too."""
    return Json(await done(request, pool, lambda: rendered(work())), status)


async def finished(pool: Pool, work: Callable[[], Any], status: int = 200) -> Json:
    """The same for work that goes on to its end, whether or not somebody still waits for it."""
    return Json(await pool.submit(lambda: rendered(work())), status)


async def done(request: Request, pool: Pool, work: Callable[[], T]) -> T:
    """Let a pool do a piece of work, unless the one who asked leaves before it begins."""
    future = pool.submit(work)
    try:
        return await _watched(request, future)
    finally:
        future.cancel()


async def _watched(request: Request, future: asyncio.Future[T]) -> T:
    while not (await asyncio.wait({future}, timeout=WATCH_SECONDS))[0]:
        if await request.is_disconnected():
            raise HTTPException(GONE, "nobody waits for this any more")
    return future.result()


async def lines(request: Request, pool: Pool, ask: Callable[[Callable[[Answer], None]], Answer]) -> Response:
    """Answer in lines of JSON: the ranking by scores alone as soon as it is there, then the final one."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[Answer | None]()
    future = pool.submit(lambda: ask(lambda first: _put(loop, arrived, first)))
    future.add_done_callback(lambda _: arrived.put_nowait(None))
    try:
        first = await _watched(request, asyncio.ensure_future(arrived.get()))
    except HTTPException:
        future.cancel()
        raise
    if first is None:
        future.result()  # what fails before the first line is an ordinary failure

    async def parts() -> AsyncIterator[bytes]:
        try:
            if first is not None:
                yield _line({"stage": "scored", **first.as_dict()})
                await arrived.get()
            yield _line({"stage": "done", **future.result().as_dict()})
        except PolyvocError as error:
            yield _line({"stage": "failed", "error": str(error)})
        except Exception as error:
            yield _line({"stage": "failed", "error": _unexpected(error)})
            raise  # into the log
        finally:
            future.cancel()

    return StreamingResponse(parts(), media_type=LINES)


def _put(loop: asyncio.AbstractEventLoop, arrived: asyncio.Queue[Answer | None], first: Answer) -> None:
    loop.call_soon_threadsafe(arrived.put_nowait, first)


def _line(value: dict[str, Any]) -> bytes:
    return rendered(value) + b"\n"


# --- failures -----------------------------------------------------------------------------------------------------------------


def failure(status: int, line: str, headers: dict[str, str] | None = None) -> Response:
    """Say in one line what went wrong."""
    return Json(rendered({"error": " ".join(line.split())}), status, headers)


def handle_failures(app: FastAPI) -> None:
    """Turn everything that a handler may raise into one line and a status."""

    @app.exception_handler(BusyError)
    async def busy(_: Request, error: BusyError) -> Response:
        return failure(503, str(error), {"Retry-After": str(error.seconds)})

    @app.exception_handler(PolyvocError)
    async def known(_: Request, error: PolyvocError) -> Response:
        if isinstance(error, LockedError | ClusterError | UnreachableError):
            return failure(503, str(error), {"Retry-After": str(LOCKED_SECONDS)})
        statuses: dict[type[PolyvocError], int] = {AbsentError: 404, ImageError: 422, OptionError: 422, WriteError: 507}
        status = next((status for kind, status in statuses.items() if isinstance(error, kind)), 500)
        if status >= 500:
            logger.error("%s", error)
        return failure(status, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return failure(422, "; ".join(dict.fromkeys(map(_complaint, error.errors()))))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return failure(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return failure(500, _unexpected(error), HEADERS)  # this one does not pass the guard on its way out


def _unexpected(error: Exception) -> str:
    return f"unexpected {type(error).__name__}; the server's log has more"


def _complaint(error: dict[str, Any]) -> str:
    """Say which parameter is wrong, and how."""
    where = [str(part) for part in error["loc"][1:]]
    if where[:1] == ["url"]:
        return NO_ADDRESSES
    if where and where[0] in ("photo", "photos") and error["type"] != "missing":
        return f"{where[0]} should be a file; {NO_ADDRESSES}"
    if error["type"] == "extra_forbidden":
        return f"{'.'.join(where)}: no such parameter"
    return f"{'.'.join(where) or 'request'}: {error['msg'].removeprefix('Value error, ')}"
