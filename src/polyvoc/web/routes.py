"""The HTTP interface: which request leads where. A handler checks, hands the work to a pool, and answers."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from typing import Annotated, Any, Literal, cast
from urllib.parse import quote

from fastapi import APIRouter, Depends, File, Path, Query, Request, Response, UploadFile
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from polyvoc import stores
from polyvoc.answers import Answer
from polyvoc.web import records
from polyvoc.web.about import about
from polyvoc.web.changes import Changes
from polyvoc.web.guard import Token
from polyvoc.web.metrics import Metrics
from polyvoc.web.parameters import LARGEST_ID, BatchParameters, ExplainParameters, PageParameters, SearchParameters
from polyvoc.web.replies import LINES, Json, done, finished, lines, rendered, told
from polyvoc.web.service import Sent, Service

MOST = 64  # photographs of a request
Described = dict[int | str, dict[str, Any]]
REFUSED: Described = {status: {"model": records.Error} for status in (400, 401, 403, 404, 408, 413, 421, 422, 503)}
PICTURE: Described = {200: {"content": {"image/jpeg": {}}, "description": "A JPEG without metadata."}}
STREAM: Described = {200: {"model": records.Answer, "content": {LINES: {}}}}
TEXT: Described = {200: {"content": {"text/plain": {}}, "description": "Counters."}}
FULL: Described = {507: {"model": records.Error, "description": "The disk is full, or may not be written."}}
FILE: Described = {200: {"content": {"image/*": {}}, "description": "The file as it was indexed."}}


async def _service(request: Request) -> Service:
    return cast(Service, request.app.state.service)


async def _changes(request: Request) -> Changes:
    return cast(Changes, request.app.state.changes)  # the guard lets nobody in where there are none


Serving = Annotated[Service, Depends(_service)]
Changing = Annotated[Changes, Depends(_changes)]
Image = Annotated[int, Path(ge=0, le=LARGEST_ID)]
Kept = Annotated[str, Path(min_length=1, max_length=40)]
Side = Annotated[Literal["160", "320", "640", "1600"], Query(description="Pixels of the long side.")]
Photo = Annotated[UploadFile, File(description="A photograph.")]
OnePhoto = Annotated[UploadFile | None, File(description="The photograph to search with.")]
Photos = Annotated[list[UploadFile], File(description="Photographs.", max_length=MOST)]

searching = APIRouter(tags=["search"], responses=REFUSED, default_response_class=Json)
collection = APIRouter(tags=["collection"], responses=REFUSED, default_response_class=Json)
operation = APIRouter(tags=["operation"], responses=REFUSED, default_response_class=Json)


# --- search -------------------------------------------------------------------------------------------------------------------


@searching.post("/search", responses=STREAM)
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

    def ask(early: Callable[[Answer], None] | None = None) -> Answer:
        return metrics.watched(service.answer(asked if isinstance(asked, str) else _sent(asked), parameters, early))

    if LINES in request.headers.get("accept", ""):
        return await lines(request, service.searches, ask)
    return await told(request, service.searches, lambda: ask().as_dict())


@searching.post("/search/batch", response_model=list[records.Answer | records.Failure])
async def search_batch(request: Request, service: Serving, parameters: Annotated[BatchParameters, Query()],
                       photos: Photos = []) -> Response:  # noqa: B006  # fmt: skip
    """Search with several photographs. Answers come in the order of the photographs sent, then of those named by `query`."""
    if not photos and not parameters.query:
        raise HTTPException(422, "send photographs in the field 'photos', or name some with query=")
    asked: Iterable[str | Sent] = chain(map(_sent, photos), parameters.query)  # read one at a time
    metrics = _metrics(request)

    def ask() -> list[dict[str, Any]]:
        answers = service.answers(asked, parameters)
        return [(metrics.watched(one) if isinstance(one, Answer) else one).as_dict() for one in answers]

    return await told(request, service.searches, ask)


@searching.get("/explain", response_model=records.Explanation)
async def explain(request: Request, service: Serving, parameters: Annotated[ExplainParameters, Query()]) -> Response:
    """Say why an image answers a photograph: the features that match, the set and the weight of each, their arrangement."""
    return await told(request, service.searches, lambda: service.explain(parameters))


@searching.post("/queries", status_code=201, response_model=records.Kept)
async def keep(request: Request, service: Serving, photo: Photo) -> Response:
    """Keep a photograph for an hour, to search with it by its name: with other rules, or a region of it."""
    return await told(request, service.searches, lambda: service.keep(_sent(photo)), 201)


@searching.get("/queries/{query}", response_model=records.Kept)
async def kept(service: Serving, query: Kept) -> Response:
    """Give the facts of a kept photograph."""
    return Json(rendered(service.kept(query)))


@searching.get("/queries/{query}/picture", response_class=Response, responses=PICTURE)
async def kept_picture(request: Request, service: Serving, query: Kept, side: Side = "640") -> Response:
    """Give a small picture of a kept photograph."""
    return _jpeg(request, await done(request, service.pictures, lambda: service.picture(query, int(side))))


# --- collection ---------------------------------------------------------------------------------------------------------------


@collection.get("/images", response_model=records.Listing)
async def images(request: Request, service: Serving, parameters: Annotated[PageParameters, Query()]) -> Response:
    """Give a page of the collection."""
    work = partial(service.listing, parameters.page, parameters.size, parameters.find)
    return await told(request, service.facts, work)


@collection.get("/images/{image}", response_model=records.ShownPhotograph)
async def image_facts(request: Request, service: Serving, image: Image) -> Response:
    """Give the facts of a photograph."""
    return await told(request, service.pictures, lambda: service.shown(image))


@collection.get("/images/{image}/thumbnail", response_class=Response, responses=PICTURE)
async def thumbnail(request: Request, service: Serving, image: Image, side: Side = "320") -> Response:
    """Give a small picture of a photograph."""
    return _jpeg(request, await done(request, service.pictures, lambda: service.thumbnail(image, int(side))))


@collection.get("/images/{image}/file", response_class=FileResponse, responses=FILE)
async def original(request: Request, service: Serving, image: Image) -> Response:
    """Give the file itself, with all that it tells; only of a server started with `--originals`."""
    if not service.settings.originals:
        raise HTTPException(403, "this server does not give files; start it with --originals if it should")
    path, kind = await done(request, service.pictures, lambda: service.file(image))
    name = stores.name(path).encode(errors="replace").decode()  # not every file name is text
    if stores.is_url(path):
        content = await done(request, service.pictures, lambda: service.errands.read(path))
        return Response(content, media_type=kind, headers={"Content-Disposition": f"inline; filename*=utf-8''{quote(name)}"})
    return FileResponse(path, media_type=kind, filename=name, content_disposition_type="inline")


@collection.post("/images", status_code=201, response_model=records.Added, responses=FULL)
async def add(changes: Changing, photos: Photos) -> Response:
    """Add photographs; only of a server started with `--write`. Those that cannot be used are told of, the others are added."""
    return await finished(changes.pool, lambda: changes.add(map(_sent, photos)), 201)


@collection.delete("/images/{image}", response_model=records.Removed, responses=FULL)
async def remove(changes: Changing, image: Image) -> Response:
    """Take a photograph out of the index; only of a server started with `--write`. Its file stays."""
    return await finished(changes.pool, lambda: changes.remove(image))


@collection.get("/statistics", response_model=dict[str, Any])
async def statistics(request: Request, service: Serving) -> Response:
    """Give what `polyvoc info --distributions --json` prints."""
    return await told(request, service.searches, service.statistics)


# --- operation ----------------------------------------------------------------------------------------------------------------


@operation.get("/about", response_model=dict[str, Any])
async def about_this(request: Request, service: Serving) -> Response:
    """Give what a page needs to know: the index, the presets and choices, and what is allowed."""
    return await told(request, service.facts, lambda: about(service))


@operation.get("/health", response_model=records.Health)
async def health(service: Serving) -> Response:
    """Tell that the server is well."""
    index = await asyncio.to_thread(lambda: service.index)  # not in a pool: to be full is not to be ill
    status = "stale" if service.stale else "ok"
    return Json(rendered({"status": status, "commit": index.commit, "images": len(index)}))


@operation.get("/metrics", response_class=Response, responses=TEXT)
async def metrics(request: Request) -> Response:
    """Give the server's counters in Prometheus' format."""
    return Response(_metrics(request).text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@operation.post("/session", response_model=records.Entered)
async def session(request: Request) -> Response:
    """Let a browser that shows the token read without it: the pictures of a page cannot carry headers."""
    token = cast(Token, request.app.state.token)
    if not token.is_in(request.headers.get("authorization", "")):
        raise HTTPException(401, "this is not the server's token")
    response = Json(rendered({"ok": True}))
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


def _sent(photo: UploadFile) -> Sent:
    """Read a photograph; called by the thread that works with it, so that requests that wait hold files, not memory."""
    return Sent(photo.filename or "photograph", photo.file.read())
