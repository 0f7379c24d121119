"""The application and the server process."""

from __future__ import annotations

import ctypes
import logging
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path

import uvicorn
from fastapi import FastAPI, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

from polyvoc import __version__
from polyvoc.errors import OptionError
from polyvoc.web.metrics import MetricsMiddleware
from polyvoc.web.routes import admin_router, handle_errors, images_router, search_router
from polyvoc.web.security import SecurityMiddleware, Token
from polyvoc.web.service import IndexEdits, Service
from polyvoc.web.settings import Settings

DESCRIPTION = """Finds the photographs of a collection that show the same thing as a query photograph.
Options have the same names as in the library and on the command line."""
PAGE = Path(__file__).parent / "page"
STOP_SECONDS = 30  # for running requests when the server stops
KEEP_ALIVE_SECONDS = 75  # of an idle connection: longer than the longest Retry-After
SIGNALS = (signal.SIGINT, signal.SIGTERM)
# glibc's <malloc.h>: M_ARENA_MAX, M_MMAP_THRESHOLD (its largest value), M_TRIM_THRESHOLD.
ALLOCATOR = {-8: 2, -3: 32 << 20, -1: 256 << 20}


def serve(settings: Settings, ready: Callable[[str], None]) -> None:
    """Serve an index until the process gets a signal to stop; call `ready` with the address when requests are accepted."""
    with bind(settings.host, settings.port) as listener, _log_to_stderr():
        _keep_memory()
        prepare(settings, lambda: ready(address(listener))).run(sockets=[listener])


def prepare(settings: Settings, ready: Callable[[], None]) -> uvicorn.Server:
    """Return a server with its index open, to be run; it calls `ready` when requests are accepted."""
    config = uvicorn.Config(
        create_app(settings),
        ws="none",
        log_config=None,
        access_log=False,  # uvicorn's has whole URLs; ours has routes
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    return _Server(config, ready)


def create_app(settings: Settings) -> FastAPI:
    """Open an index and return the application that serves it; the index is closed when the application stops."""
    service = Service(settings)
    edits = IndexEdits(service) if settings.write else None
    token = Token(settings.token)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        if edits is not None:
            edits.pool.close()  # finish the running edit
        service.close()

    app = FastAPI(
        title="polyvoc", version=__version__, description=DESCRIPTION, docs_url=None, redoc_url=None, lifespan=lifespan
    )
    app.state.service, app.state.edits, app.state.token = service, edits, token

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", headers={"Cache-Control": "no-cache"})

    for router in (search_router, images_router, admin_router):
        app.include_router(router)
    app.mount("/page", StaticFiles(directory=PAGE))
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
    app.add_middleware(MetricsMiddleware, metrics=service.metrics)  # the last one added gets a request first
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
            listener.listen(1024)
        except OSError as error:
            reason = error.strerror or error
            raise OptionError(f"cannot listen at {host} port {port} ({reason}); choose another --port") from None
        opened.pop_all()
    return listener


def address(listener: socket.socket) -> str:
    """Return the URL of the page."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Server(uvicorn.Server):
    """A server that calls `ready`, and that does not raise the signal again that stopped it."""

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
    """Make glibc keep freed memory for the next photograph, in two arenas shared by all threads.

    By default it has eight arenas per core and returns the free end of each to the system: SIFT would wait for pages.
    """
    if sys.platform == "linux":
        with suppress(AttributeError):  # another C library
            for setting, value in ALLOCATOR.items():
                ctypes.CDLL(None).mallopt(setting, value)


@contextmanager
def _log_to_stderr() -> Iterator[None]:
    """Write the server's log to stderr while it serves."""
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
