"""The application and the server process."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import uvicorn
from fastapi import FastAPI, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from polyvoc import __version__
from polyvoc.errors import OptionError
from polyvoc.web.connections import Connections
from polyvoc.web.curation import Curation
from polyvoc.web.jobs import Jobs
from polyvoc.web.log import log_to_stderr
from polyvoc.web.metrics import Metrics, MetricsMiddleware
from polyvoc.web.routes import admin_router, curation_router, handle_errors, images_router, search_router, setup_router
from polyvoc.web.security import SecurityMiddleware, Token
from polyvoc.web.service import IndexEdits, Service
from polyvoc.web.settings import Settings
from polyvoc.web.setup import FirstRun

DESCRIPTION = """Finds the photographs of a collection that show the same thing as a query photograph.
Options have the same names as in the library and on the command line."""
PAGE = Path(__file__).parent / "page"
STOP_SECONDS = 30  # for running requests when the server stops
KEEP_ALIVE_SECONDS = 75  # of an idle connection: longer than the longest Retry-After
BACKLOG = 128  # connections that wait to be accepted; asyncio logs as many errors at a time if there are no descriptors left
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# glibc's <malloc.h>: M_ARENA_MAX, M_MMAP_THRESHOLD (its largest value), M_TRIM_THRESHOLD.
ALLOCATOR = {-8: 2, -3: 32 << 20, -1: 256 << 20}


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve an index until the process gets a signal to stop; call `ready` with the address when requests are accepted."""
    with bind(settings.host, settings.port) as listener, log_to_stderr(settings.log_lines):
        _keep_memory()
        _raise_descriptor_limit()
        prepare(settings, lambda: ready(address(listener))).run(sockets=[listener])


def prepare(settings: Settings, ready: Callable[[], None]) -> uvicorn.Server:
    """Return a server with its index open, to be run; it calls `ready` when requests are accepted."""
    app = create_app(settings)
    metrics = app.state.metrics
    connections = Connections(settings, metrics.count_rejection)
    metrics.watch("connections", "Open connections.", lambda: len(connections))
    config = uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], connections.protocol),
        ws="none",
        log_config=None,
        access_log=False,  # uvicorn's has whole URLs; ours has routes
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
        backlog=BACKLOG,
    )
    return _Server(config, connections, ready)


def create_app(settings: Settings) -> FastAPI:
    """Open an index and return the application that serves it; the index is closed when the application stops.

    Where there is no index, on a server for this machine only, the application first lets the user choose a folder.
    """
    metrics, jobs, token = Metrics(), Jobs(), Token(settings.token)

    def open_index(index: Path) -> None:
        service = Service(replace(settings, index=index), metrics)
        app.state.edits = IndexEdits(service) if settings.write else None
        app.state.curation = Curation(service, app.state.edits, jobs)
        app.state.service = service

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        jobs.close()
        if app.state.edits is not None:
            app.state.edits.pool.close()  # finish the running edit
        if app.state.service is not None:
            app.state.service.close()

    app = FastAPI(
        title="polyvoc", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.service = app.state.edits = app.state.curation = app.state.setup = None
    app.state.metrics, app.state.jobs, app.state.token = metrics, jobs, token
    if settings.sets_up:
        app.state.setup = FirstRun(settings, jobs, open_index)
    else:
        open_index(settings.index)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    for router in (search_router, images_router, curation_router, setup_router, admin_router):
        app.include_router(router)
    app.mount("/page", _PageFiles(directory=PAGE))
    handle_errors(app)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization"],
            expose_headers=["Retry-After"],
        )
    app.add_middleware(SecurityMiddleware, settings=settings, token=token)
    app.add_middleware(MetricsMiddleware, metrics=metrics)  # the last one added gets a request first
    return app


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise OptionError if host and port cannot be used."""
    with ExitStack() as opened:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, endpoint = found[0]
            listener = opened.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(endpoint)
            listener.listen(BACKLOG)
        except OSError as error:
            reason = error.strerror or error
            raise OptionError(f"cannot listen at {host} port {port} ({reason}); choose another --port") from None
        opened.pop_all()
    return listener


def address(listener: socket.socket) -> str:
    """Return the URL of the page."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _PageFiles(StaticFiles):
    """The files of the page; a name with a NUL is not found (Starlette before 1.0 fails on it)."""

    def lookup_path(self, path: str) -> tuple[str, os.stat_result | None]:
        return ("", None) if "\0" in path else super().lookup_path(path)


class _Server(uvicorn.Server):
    """A server that calls `ready`, closes slow connections, and does not raise the signal again that stopped it."""

    def __init__(self, config: uvicorn.Config, connections: Connections, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._connections = connections
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def on_tick(self, counter: int) -> bool:
        self._connections.sweep()
        return await super().on_tick(counter)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _raise_descriptor_limit() -> None:
    """Allow as many open files as the system does: connections and segments need descriptors."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # macOS has a lower limit than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _keep_memory() -> None:
    """Make glibc keep freed memory for the next photograph, in two arenas shared by all threads.

    By default it has eight arenas per core and returns the free end of each to the system: SIFT would wait for pages.
    """
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            for setting, value in ALLOCATOR.items():
                ctypes.CDLL(None).mallopt(setting, value)
