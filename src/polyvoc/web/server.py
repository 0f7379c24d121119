"""Application and server process."""

from __future__ import annotations

import ctypes
import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import resources

import uvicorn
from fastapi import FastAPI, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

import polyvoc
from polyvoc.errors import OptionError
from polyvoc.web.metrics import Clock, Metrics
from polyvoc.web.routes import admin_router, handle_errors, images_router, search_router
from polyvoc.web.security import SecurityMiddleware, Token
from polyvoc.web.service import IndexEdits, Service
from polyvoc.web.settings import Settings

DESCRIPTION = """Finds the photographs of a collection that show the same thing as a query photograph.
Options have the names that they have in the library and on the command line."""


def create_app(settings: Settings) -> FastAPI:
    """Give the application that serves an index; it is opened at once, and closed when the application stops."""
    service = Service(settings)
    app = FastAPI(
        title="polyvoc", version=polyvoc.__version__, description=DESCRIPTION, docs_url=None, redoc_url=None, lifespan=_lifespan
    )
    token = Token(settings.token)
    app.state.service = service
    app.state.changes = changes = IndexEdits(service) if settings.write else None
    app.state.metrics = Metrics(service, *([changes.pool] if changes else []))
    app.state.token = token
    for router in (search_router, images_router, admin_router):
        app.include_router(router)
    _serve_page(app)
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
    app.add_middleware(Clock, metrics=app.state.metrics)  # the last one added is the first to see a request
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    yield
    if app.state.changes is not None:
        app.state.changes.close()
    app.state.service.close()


def _serve_page(app: FastAPI) -> None:
    folder = resources.files("polyvoc.web") / "page"

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(str(folder / "index.html"), headers={"Cache-Control": "no-cache"})

    app.mount("/page", StaticFiles(directory=str(folder)))


STOP_SECONDS = 30  # for requests that run when the server is told to stop
KEEP_SECONDS = 75  # that an idle connection stays open: longer than a client is told to wait before it comes again
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# Settings of glibc's <malloc.h>: M_ARENA_MAX, M_MMAP_THRESHOLD (its largest value), M_TRIM_THRESHOLD.
ALLOCATOR = {-8: 2, -3: 32 << 20, -1: 256 << 20}


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve an index until the process is told to stop; `ready` is told the address once requests are answered."""
    with bind(settings.host, settings.port) as listening, _log_to_stderr():
        _keep_memory()
        prepare(settings, lambda: ready(address(listening))).run(sockets=[listening])


def prepare(settings: Settings, ready: Callable[[], None]) -> uvicorn.Server:
    """Give a server that has opened its index and waits to be run; `ready` is called once requests are answered."""
    config = uvicorn.Config(
        create_app(settings),
        ws="none",
        log_config=None,
        access_log=False,  # has whole addresses; ours has routes
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return _Server(config, ready)


def bind(host: str, port: int) -> socket.socket:
    """Give a socket that listens."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(place)
            listening.listen(1024)
        except BaseException:
            listening.close()
            raise
    except OSError as error:
        raise OptionError(f"cannot listen at {host} port {port} ({error.strerror or error}); choose another --port") from None
    return listening


def address(listening: socket.socket) -> str:
    """Give the address of the page."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Server(uvicorn.Server):
    """Says when it is ready, and ends without the signal that ended it."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

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


def _keep_memory() -> None:
    """Let threads share what they free, and keep it for the next photograph instead of giving it back to the system.

    glibc gives each thread an arena of its own, eight per core, and returns the free end of each: SIFT would wait for pages.
    """
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            for setting, value in ALLOCATOR.items():
                ctypes.CDLL(None).mallopt(setting, value)


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Let the server's log go to stderr, as long as it serves."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    levels = {logging.getLogger("polyvoc.web"): logging.INFO, logging.getLogger("uvicorn.error"): logging.WARNING}
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
