"""The application: routes, guards and the page, over one service."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib import resources

from fastapi import FastAPI, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

import polyvoc
from polyvoc.web import routes
from polyvoc.web.changes import Changes
from polyvoc.web.guard import Guard, Token
from polyvoc.web.metrics import Clock, Metrics
from polyvoc.web.replies import handle_failures
from polyvoc.web.service import Service
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
    app.state.changes = changes = Changes(service) if settings.write else None
    app.state.metrics = Metrics(service, *([changes.pool] if changes else []))
    app.state.token = token
    for router in (routes.searching, routes.collection, routes.operation):
        app.include_router(router)
    _serve_page(app)
    handle_failures(app)
    if settings.cors:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors,
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["Authorization"],
            expose_headers=["Retry-After"],
        )
    app.add_middleware(Guard, settings=settings, token=token)
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
