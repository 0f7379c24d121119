"""Requests, responses, errors as status codes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, TypeVar, cast
from urllib.parse import quote

from fastapi import APIRouter, Depends, FastAPI, File, Path, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException

from polyvoc.errors import ClusterError, ImageError, LockedError, OptionError, PolyvocError, UnreachableError, WriteError
from polyvoc.search.hits import SearchResult
from polyvoc.storage.stores import base_name, is_url
from polyvoc.web.metrics import Metrics
from polyvoc.web.pool import BusyError, Pool
from polyvoc.web.schemas import (
    LARGEST_ID,
    NO_ADDRESSES,
    Added,
    BatchParameters,
    Error,
    ExplainParameters,
    ExplanationResponse,
    FailureResponse,
    Health,
    ImageDetails,
    Listing,
    PageParameters,
    Removed,
    SearchParameters,
    SearchResponse,
    SessionCreated,
    StoredQuery,
)
from polyvoc.web.security import HEADERS, Token
from polyvoc.web.service import AbsentError, IndexEdits, SentPhoto, Service, about

logger = logging.getLogger("polyvoc.web")
T = TypeVar("T")
LINES = "application/x-ndjson"
WATCH_SECONDS = 0.5  # between looks whether the one who asked has left
LOCKED_SECONDS = 5  # until another writer may be done, a machine of the cluster back, or a store awake
GONE = 499  # nobody reads this answer


class JsonResponse(JSONResponse):
    """JSON that is rendered already."""

    def render(self, content: Any) -> bytes:
        """Give the bytes."""
        assert isinstance(content, bytes)
        return content


def rendered(value: Any) -> bytes:
    """Give JSON in ASCII, as the command line prints it: file names that are no text pass as escapes."""
    return json.dumps(value, allow_nan=False).encode()


async def respond(request: Request, pool: Pool, work: Callable[[], Any], status: int = 200) -> JsonResponse:
    """Let a pool do a piece of work and render its result: a large one takes its time, too."""
    return JsonResponse(await run(request, pool, lambda: rendered(work())), status)


async def run_to_end(pool: Pool, work: Callable[[], Any], status: int = 200) -> JsonResponse:
    """The same for work that goes on to its end, whether or not somebody still waits for it."""
    return JsonResponse(await pool.submit(lambda: rendered(work())), status)


async def run(request: Request, pool: Pool, work: Callable[[], T]) -> T:
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


async def stream_json(request: Request, pool: Pool, ask: Callable[[Callable[[SearchResult], None]], SearchResult]) -> Response:
    """Answer in lines of JSON: the ranking by scores alone as soon as it is there, then the final one."""
    loop, arrived = asyncio.get_running_loop(), asyncio.Queue[SearchResult | None]()
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


def _put(loop: asyncio.AbstractEventLoop, arrived: asyncio.Queue[SearchResult | None], first: SearchResult) -> None:
    loop.call_soon_threadsafe(arrived.put_nowait, first)


def _line(value: dict[str, Any]) -> bytes:
    return rendered(value) + b"\n"


def error_response(status: int, line: str, headers: dict[str, str] | None = None) -> Response:
    """Say in one line what went wrong."""
    return JsonResponse(rendered({"error": " ".join(line.split())}), status, headers)


def handle_errors(app: FastAPI) -> None:
    """Turn everything that a handler may raise into one line and a status."""

    @app.exception_handler(BusyError)
    async def busy(_: Request, error: BusyError) -> Response:
        return error_response(503, str(error), {"Retry-After": str(error.seconds)})

    @app.exception_handler(PolyvocError)
    async def known(_: Request, error: PolyvocError) -> Response:
        if isinstance(error, LockedError | ClusterError | UnreachableError):
            return error_response(503, str(error), {"Retry-After": str(LOCKED_SECONDS)})
        statuses: dict[type[PolyvocError], int] = {AbsentError: 404, ImageError: 422, OptionError: 422, WriteError: 507}
        status = next((status for kind, status in statuses.items() if isinstance(error, kind)), 500)
        if status >= 500:
            logger.error("%s", error)
        return error_response(status, str(error))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        return error_response(422, "; ".join(dict.fromkeys(map(_complaint, error.errors()))))

    @app.exception_handler(HTTPException)
    async def refused(_: Request, error: HTTPException) -> Response:
        return error_response(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return error_response(500, _unexpected(error), HEADERS)  # this one does not pass the guard on its way out


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


MOST = 64  # photographs of a request
Described = dict[int | str, dict[str, Any]]
REFUSED: Described = {status: {"model": Error} for status in (400, 401, 403, 404, 408, 413, 421, 422, 503)}
PICTURE: Described = {200: {"content": {"image/jpeg": {}}, "description": "A JPEG without metadata."}}
STREAM: Described = {200: {"model": SearchResponse, "content": {LINES: {}}}}
TEXT: Described = {200: {"content": {"text/plain": {}}, "description": "Counters."}}
FULL: Described = {507: {"model": Error, "description": "The disk is full, or may not be written."}}
FILE: Described = {200: {"content": {"image/*": {}}, "description": "The file as it was indexed."}}


async def _service(request: Request) -> Service:
    return cast(Service, request.app.state.service)


async def _changes(request: Request) -> IndexEdits:
    return cast(IndexEdits, request.app.state.changes)  # the guard lets nobody in where there are none


Serving = Annotated[Service, Depends(_service)]
Changing = Annotated[IndexEdits, Depends(_changes)]
Image = Annotated[int, Path(ge=0, le=LARGEST_ID)]
Kept = Annotated[str, Path(min_length=1, max_length=40)]
Side = Annotated[Literal["160", "320", "640", "1600"], Query(description="Pixels of the long side.")]
Photo = Annotated[UploadFile, File(description="A photograph.")]
OnePhoto = Annotated[UploadFile | None, File(description="The photograph to search with.")]
Photos = Annotated[list[UploadFile], File(description="Photographs.", max_length=MOST)]
search_router = APIRouter(tags=["search"], responses=REFUSED, default_response_class=JsonResponse)
images_router = APIRouter(tags=["collection"], responses=REFUSED, default_response_class=JsonResponse)
admin_router = APIRouter(tags=["operation"], responses=REFUSED, default_response_class=JsonResponse)


@search_router.post("/search", responses=STREAM)
async def search(
    request: Request, service: Serving, parameters: Annotated[SearchParameters, Query()], photo: OnePhoto = None
) -> Response:
    """Find the photographs that show the same thing as one that is sent, or as the one named by `query`.

    Answers what `polyvoc search --json` prints. With `Accept: application/x-ndjson` it answers in lines: first, if verification
    follows, the ranking by scores alone (stage "scored"), then the final one (stage "done").
    """
    asked = parameters.query if photo is None else photo
    if asked is None or (photo is not None and parameters.query is not None):
        raise HTTPException(422, "send one photograph in the field 'photo', or name one with query=")
    metrics = _metrics(request)

    def ask(early: Callable[[SearchResult], None] | None = None) -> SearchResult:
        return metrics.watched(service.answer(asked if isinstance(asked, str) else _sent(asked), parameters, early))

    if LINES in request.headers.get("accept", ""):
        return await stream_json(request, service.searches, ask)
    return await respond(request, service.searches, lambda: ask().as_dict())


@search_router.post("/search/batch", response_model=list[SearchResponse | FailureResponse])
async def search_batch(request: Request, service: Serving, parameters: Annotated[BatchParameters, Query()],
                       photos: Photos = []) -> Response:  # noqa: B006  # fmt: skip
    """Search with several photographs. Answers come in the order of the photographs sent, then of those named by `query`."""
    if not photos and not parameters.query:
        raise HTTPException(422, "send photographs in the field 'photos', or name some with query=")
    asked: Iterable[str | SentPhoto] = chain(map(_sent, photos), parameters.query)  # read one at a time
    metrics = _metrics(request)

    def ask() -> list[dict[str, Any]]:
        answers = service.answers(asked, parameters)
        return [(metrics.watched(one) if isinstance(one, SearchResult) else one).as_dict() for one in answers]

    return await respond(request, service.searches, ask)


@search_router.get("/explain", response_model=ExplanationResponse)
async def explain(request: Request, service: Serving, parameters: Annotated[ExplainParameters, Query()]) -> Response:
    """Say why an image answers a photograph: the features that match, the set and the weight of each, their arrangement."""
    return await respond(request, service.searches, lambda: service.explain(parameters))


@search_router.post("/queries", status_code=201, response_model=StoredQuery)
async def keep(request: Request, service: Serving, photo: Photo) -> Response:
    """Keep a photograph for an hour, to search with it by its name: with other rules, or a region of it."""
    return await respond(request, service.searches, lambda: service.keep(_sent(photo)), 201)


@search_router.get("/queries/{query}", response_model=StoredQuery)
async def kept(service: Serving, query: Kept) -> Response:
    """Give the facts of a kept photograph."""
    return JsonResponse(rendered(service.kept(query)))


@search_router.get("/queries/{query}/picture", response_class=Response, responses=PICTURE)
async def kept_picture(request: Request, service: Serving, query: Kept, side: Side = "640") -> Response:
    """Give a small picture of a kept photograph."""
    return _jpeg(request, await run(request, service.pictures, lambda: service.picture(query, int(side))))


@images_router.get("/images", response_model=Listing)
async def images(request: Request, service: Serving, parameters: Annotated[PageParameters, Query()]) -> Response:
    """Give a page of the collection."""
    work = partial(service.listing, parameters.page, parameters.size, parameters.find)
    return await respond(request, service.facts, work)


@images_router.get("/images/{image}", response_model=ImageDetails)
async def image_facts(request: Request, service: Serving, image: Image) -> Response:
    """Give the facts of a photograph."""
    return await respond(request, service.pictures, lambda: service.shown(image))


@images_router.get("/images/{image}/thumbnail", response_class=Response, responses=PICTURE)
async def thumbnail(request: Request, service: Serving, image: Image, side: Side = "320") -> Response:
    """Give a small picture of a photograph."""
    return _jpeg(request, await run(request, service.pictures, lambda: service.thumbnail(image, int(side))))


@images_router.get("/images/{image}/file", response_class=FileResponse, responses=FILE)
async def original(request: Request, service: Serving, image: Image) -> Response:
    """Give the file itself, with all that it tells; only of a server started with `--originals`."""
    if not service.settings.originals:
        raise HTTPException(403, "this server does not give files; start it with --originals if it should")
    path, kind = await run(request, service.pictures, lambda: service.file(image))
    name = base_name(path).encode(errors="replace").decode()  # not every file name is text
    if is_url(path):
        content = await run(request, service.pictures, lambda: service.errands.read(path))
        return Response(content, media_type=kind, headers={"Content-Disposition": f"inline; filename*=utf-8''{quote(name)}"})
    return FileResponse(path, media_type=kind, filename=name, content_disposition_type="inline")


@images_router.post("/images", status_code=201, response_model=Added, responses=FULL)
async def add(changes: Changing, photos: Photos) -> Response:
    """Add photographs; only of a server started with `--write`. Those that cannot be used are told of, the others are added."""
    return await run_to_end(changes.pool, lambda: changes.add(map(_sent, photos)), 201)


@images_router.delete("/images/{image}", response_model=Removed, responses=FULL)
async def remove(changes: Changing, image: Image) -> Response:
    """Take a photograph out of the index; only of a server started with `--write`. Its file stays."""
    return await run_to_end(changes.pool, lambda: changes.remove(image))


@images_router.get("/statistics", response_model=dict[str, Any])
async def statistics(request: Request, service: Serving) -> Response:
    """Give what `polyvoc info --distributions --json` prints."""
    return await respond(request, service.searches, service.statistics)


@admin_router.get("/about", response_model=dict[str, Any])
async def about_this(request: Request, service: Serving) -> Response:
    """Give what a page needs to know: the index, the presets and choices, and what is allowed."""
    return await respond(request, service.facts, lambda: about(service))


@admin_router.get("/health", response_model=Health)
async def health(service: Serving) -> Response:
    """Tell that the server is well."""
    index = await asyncio.to_thread(lambda: service.index)  # not in a pool: to be full is not to be ill
    status = "stale" if service.stale else "ok"
    return JsonResponse(rendered({"status": status, "commit": index.commit, "images": len(index)}))


@admin_router.get("/metrics", response_class=Response, responses=TEXT)
async def metrics(request: Request) -> Response:
    """Give the server's counters in Prometheus' format."""
    return Response(_metrics(request).text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@admin_router.post("/session", response_model=SessionCreated)
async def session(request: Request) -> Response:
    """Let a browser that shows the token read without it: the pictures of a page cannot carry headers."""
    token = cast(Token, request.app.state.token)
    if not token.is_in(request.headers.get("authorization", "")):
        raise HTTPException(401, "this is not the server's token")
    response = JsonResponse(rendered({"ok": True}))
    response.set_cookie(token.cookie_name, token.cookie, httponly=True, samesite="strict")
    return response


def _metrics(request: Request) -> Metrics:
    return cast(Metrics, request.app.state.metrics)


def _jpeg(request: Request, content: bytes) -> Response:
    """Give a picture, unless the browser has it; it must ask each time, since another index may be served here next."""
    tag = f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'
    headers = {"Cache-Control": "private, no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="image/jpeg", headers=headers)


def _sent(photo: UploadFile) -> SentPhoto:
    """Read a photograph; called by the thread that works with it, so that requests that wait hold files, not memory."""
    return SentPhoto(photo.filename or "photograph", photo.file.read())
