"""The routes of the HTTP API: requests to pools, results to JSON, errors to status codes."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Annotated, Any, Literal, TypeVar, cast
from urllib.parse import quote

from fastapi import APIRouter, Depends, FastAPI, File, Path, Query, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, StreamingResponse
from starlette.exceptions import HTTPException

from polyvoc import __version__
from polyvoc.duplicates import MIN_PROBABILITY
from polyvoc.errors import (
    ClusterError,
    ImageError,
    LockedError,
    NotAllowedError,
    OptionError,
    PolyvocError,
    UnreachableError,
    WriteError,
    one_line,
)
from polyvoc.search.hits import SearchFailure, SearchResult
from polyvoc.storage.stores import base_name, is_url
from polyvoc.web.curation import Curation
from polyvoc.web.jobs import Jobs
from polyvoc.web.pool import BusyError, Pool
from polyvoc.web.schemas import (
    LARGEST_ID,
    NO_URLS,
    Added,
    BatchParameters,
    DuplicateList,
    DuplicateParameters,
    Error,
    ExplainParameters,
    ExplanationResponse,
    FolderList,
    FolderListing,
    GroupList,
    GroupParameters,
    Health,
    ImageDetails,
    ImageId,
    ImageList,
    JobState,
    JointExplanationResponse,
    Moved,
    PageParameters,
    Removed,
    SearchParameters,
    SearchResponse,
    SessionCreated,
    StoredQuery,
    VerdictKept,
    VerdictParameters,
)
from polyvoc.web.security import HEADERS, Token
from polyvoc.web.service import IndexEdits, NotFoundError, Service, SeveralError, Upload
from polyvoc.web.setup import FirstRun

logger = logging.getLogger("polyvoc.web")
T = TypeVar("T")
NDJSON = "application/x-ndjson"
MAX_PHOTOS = 64  # of a request
DISCONNECT_SECONDS = 0.5  # between checks whether the client has disconnected
RETRY_SECONDS = 5  # until another writer may be done, a machine of the cluster back, or a store reachable
CLIENT_CLOSED_REQUEST = 499
STATUSES: dict[type[PolyvocError], int] = {
    NotFoundError: 404, SeveralError: 409, NotAllowedError: 403, ImageError: 422, OptionError: 422, WriteError: 507
}  # fmt: skip  # the first that fits

Responses = dict[int | str, dict[str, Any]]
ERRORS: Responses = {status: {"model": Error} for status in (400, 401, 403, 404, 408, 409, 413, 421, 422, 503)}
JPEG: Responses = {200: {"content": {"image/jpeg": {}}, "description": "A JPEG without metadata."}}
STREAM: Responses = {200: {"model": SearchResponse, "content": {NDJSON: {}}}}
TEXT: Responses = {200: {"content": {"text/plain": {}}, "description": "Counters."}}
DISK_FULL: Responses = {507: {"model": Error, "description": "The disk is full or cannot be written."}}
ORIGINAL: Responses = {200: {"content": {"image/*": {}}, "description": "The indexed file."}}


async def _service(request: Request) -> Service:
    if request.app.state.service is None:
        raise HTTPException(409, "there is no index yet; choose a folder of photographs on the page")
    return cast(Service, request.app.state.service)


async def _edits(request: Request) -> IndexEdits:
    await _service(request)
    return cast(IndexEdits, request.app.state.edits)  # None on a read-only server: the middleware rejects the request before


async def _setup(request: Request) -> FirstRun:
    is_done = request.app.state.service is not None and request.method != "GET"
    if request.app.state.setup is None or is_done:
        raise HTTPException(409, "this server has an index; start one without to choose a folder")
    return cast(FirstRun, request.app.state.setup)


async def _curation(request: Request) -> Curation:
    await _service(request)
    return cast(Curation, request.app.state.curation)


async def _jobs(request: Request) -> Jobs:
    return cast(Jobs, request.app.state.jobs)


ServiceOf = Annotated[Service, Depends(_service)]
EditsOf = Annotated[IndexEdits, Depends(_edits)]
CurationOf = Annotated[Curation, Depends(_curation)]
Probability = Annotated[float, Query(gt=0, le=1, description="Least probability of a copy.")]
Chosen = Annotated[list[ImageId], Query(min_length=1, max_length=1000, description="Images to move; repeatable.")]
SetupOf = Annotated[FirstRun, Depends(_setup)]
JobsOf = Annotated[Jobs, Depends(_jobs)]
FolderPath = Annotated[str, Query(max_length=4096, description="Absolute path of a folder.")]
Image = Annotated[int, Path(ge=0, le=LARGEST_ID)]
StoredName = Annotated[str, Path(min_length=1, max_length=40)]
Side = Annotated[Literal["160", "320", "640", "1600"], Query(description="Pixels of the long side.")]
Photo = Annotated[UploadFile, File(description="A photograph.")]
OptionalPhoto = Annotated[UploadFile | None, File(description="The photograph to search with.")]
Photos = Annotated[list[UploadFile], File(description="Photographs.", max_length=MAX_PHOTOS)]
search_router = APIRouter(tags=["search"], responses=ERRORS)
images_router = APIRouter(tags=["images"], responses=ERRORS)
curation_router = APIRouter(tags=["groups and copies"], responses=ERRORS)
setup_router = APIRouter(tags=["first run"], responses=ERRORS)
admin_router = APIRouter(tags=["administration"], responses=ERRORS)


@search_router.post("/search", responses=STREAM)
async def search(
    request: Request, service: ServiceOf, parameters: Annotated[SearchParameters, Query()], photo: OptionalPhoto = None
) -> Response:
    """Find the photographs that show the same thing as an uploaded one, or as the one named by `query`.

    Returns one of the results that `polyvoc search --json` prints. With `Accept: application/x-ndjson` it returns lines of
    JSON: first, if verification follows, the ranking by scores alone (stage "scored"), then the final one (stage "done").
    """
    query = parameters.query if photo is None else photo
    if query is None or (photo is not None and parameters.query is not None):
        raise HTTPException(422, "upload one photograph in the field 'photo', or name one with query=")

    def run_search(on_first: Callable[[SearchResult], None] | None = None) -> SearchResult:
        return service.search(query if isinstance(query, str) else _read(query), parameters, on_first)

    if NDJSON in request.headers.get("accept", ""):
        return await stream_json(request, service.searches, run_search)
    return await respond(request, service.searches, lambda: run_search().as_dict())


@search_router.post("/search/batch", response_model=list[SearchResponse | SearchFailure])
async def search_batch(request: Request, service: ServiceOf, parameters: Annotated[BatchParameters, Query()],
                       photos: Photos = []) -> Response:  # noqa: B006  # fmt: skip
    """Search with several photographs: first the uploaded ones, then those named by `query`. Results have the same order."""
    if not photos and not parameters.query:
        raise HTTPException(422, "upload photographs in the field 'photos', or name some with query=")
    queries: list[str | UploadFile] = [*photos, *parameters.query]
    results: list[bytes] = []
    for query in queries:  # a task for each: other clients do not wait for the whole batch
        task = partial(_search_one, service, query, parameters)
        results.append(await run(request, service.searches, task, admitted=bool(results)))
    return _json(b"[" + b", ".join(results) + b"]")


@search_router.get("/explain", response_model=ExplanationResponse | JointExplanationResponse)
async def explain(request: Request, service: ServiceOf, parameters: Annotated[ExplainParameters, Query()]) -> Response:
    """Return why an image is a hit: the matching features, the lists and the weight of each, and their transform.

    On a server of several indexes these are `parts`, one for each kind of features.
    """
    return await respond(request, service.searches, lambda: service.explain(parameters))


@search_router.post("/queries", status_code=201, response_model=StoredQuery)
async def store_query(request: Request, service: ServiceOf, photo: Photo) -> Response:
    """Store a photograph for an hour, to search with it by name: with other options, or with a region of it."""
    return await respond(request, service.searches, lambda: service.store(_read(photo)), 201)


@search_router.get("/queries/{query}", response_model=StoredQuery)
async def stored_query(service: ServiceOf, query: StoredName) -> Response:
    """Return name and size of a stored photograph."""
    return _json(_render(service.stored_query(query)))


@search_router.get("/queries/{query}/picture", response_class=Response, responses=JPEG)
async def stored_picture(request: Request, service: ServiceOf, query: StoredName, side: Side = "640") -> Response:
    """Return a thumbnail of a stored photograph."""
    return _jpeg(request, await run(request, service.pictures, lambda: service.stored_picture(query, int(side))))


@images_router.get("/images", response_model=ImageList)
async def list_images(request: Request, service: ServiceOf, parameters: Annotated[PageParameters, Query()]) -> Response:
    """Return a page of the list of images."""
    page, size, chosen = parameters.page, parameters.size, parameters.filter()
    return await respond(request, service.lookups, lambda: service.list_images(page, size, chosen))


@images_router.get("/folders", response_model=FolderList)
async def list_folders(request: Request, service: ServiceOf) -> Response:
    """Return the folders of the photographs, each with the number of photographs below it."""
    return _json(await run(request, service.lookups, service.list_folders))


@images_router.get("/images/{image}", response_model=ImageDetails)
async def image_details(request: Request, service: ServiceOf, image: Image) -> Response:
    """Return path, size and number of features of an image."""
    return await respond(request, service.pictures, lambda: service.image_details(image))


@images_router.get("/images/{image}/thumbnail", response_class=Response, responses=JPEG)
async def thumbnail(request: Request, service: ServiceOf, image: Image, side: Side = "320") -> Response:
    """Return a thumbnail of an image."""
    return _jpeg(request, await run(request, service.pictures, lambda: service.thumbnail(image, int(side))))


@images_router.get("/images/{image}/file", response_class=FileResponse, responses=ORIGINAL)
async def original_file(request: Request, service: ServiceOf, image: Image) -> Response:
    """Return the original file, metadata included; requires `--originals`."""
    if not service.settings.originals:
        raise HTTPException(403, "downloading original files is not allowed; start the server with --originals")
    path, media_type = await run(request, service.pictures, lambda: service.file(image))
    name = base_name(path).encode(errors="replace").decode()  # not every file name is valid text
    if is_url(path):
        content = await run(request, service.pictures, lambda: service.stores.read(path))
        disposition = f"inline; filename*=utf-8''{quote(name)}"
        return Response(content, media_type=media_type, headers={"Content-Disposition": disposition})
    return FileResponse(path, media_type=media_type, filename=name, content_disposition_type="inline")


@images_router.post("/images", status_code=201, response_model=Added, responses=DISK_FULL)
async def add_images(request: Request, edits: EditsOf, photos: Photos) -> Response:
    """Add photographs; requires `--write`. Those that cannot be used are listed as problems, the others are added."""
    task = partial(edits.add, map(_read, photos))
    added = await edits.pool.submit(task, request.state.client)  # also if the client disconnects
    return _json(_render(added), 201)


@images_router.delete("/images/{image}", response_model=Removed, responses=DISK_FULL)
async def remove_image(request: Request, edits: EditsOf, image: Image) -> Response:
    """Remove an image from the index; requires `--write`. Its file stays."""
    return _json(_render(await edits.pool.submit(lambda: edits.remove(image), request.state.client)))


@images_router.get("/statistics", response_model=dict[str, Any])
async def statistics(request: Request, service: ServiceOf) -> Response:
    """Return what `polyvoc info --distributions --json` prints; of several indexes a list of it, `indexes`."""
    return _json(await run(request, service.searches, service.statistics))


@curation_router.get("/groups", response_model=GroupList)
async def list_groups(
    request: Request, service: ServiceOf, curation: CurationOf, parameters: Annotated[GroupParameters, Query()]
) -> Response:
    """Return the things that were seen more than once: images that verified links connect, the largest groups first."""
    return await respond(request, service.listings, lambda: curation.list_groups(parameters.page, parameters.size))


@curation_router.post("/groups", status_code=202, response_model=JobState)
async def start_linking(curation: CurationOf) -> Response:
    """Start to compare all images with one another, as `polyvoc link` does; requires `--write`."""
    return _json(_render(await asyncio.to_thread(curation.start_linking)), 202)


@curation_router.get("/duplicates", response_model=DuplicateList)
async def list_duplicates(
    request: Request, service: ServiceOf, curation: CurationOf, parameters: Annotated[DuplicateParameters, Query()]
) -> Response:
    """Return the groups of copies that the last comparison found, each with the file to keep first."""
    return await respond(
        request,
        service.listings,
        lambda: curation.list_duplicates(parameters.min_probability, parameters.page, parameters.size, parameters.decided),
    )


@curation_router.post("/duplicates", status_code=202, response_model=JobState)
async def start_comparing(curation: CurationOf) -> Response:
    """Start to compare new images with all others; requires `--write` on a server for this machine only."""
    return _json(_render(await asyncio.to_thread(curation.start_comparing)), 202)


@curation_router.post("/duplicates/verdict", response_model=VerdictKept, responses=DISK_FULL)
async def put_verdict(
    request: Request, edits: EditsOf, curation: CurationOf, parameters: Annotated[VerdictParameters, Query()]
) -> Response:
    """Keep a verdict on two images, or withdraw it; requires `--write` on a server for this machine only."""
    verdict = None if parameters.verdict == "none" else parameters.verdict
    task = partial(curation.decide, parameters.first, parameters.second, verdict)
    return _json(_render(await edits.pool.submit(task, request.state.client)))


@curation_router.post("/duplicates/move", response_model=Moved, responses=DISK_FULL)
async def move_copies(
    request: Request, edits: EditsOf, curation: CurationOf, image: Chosen, min_probability: Probability = MIN_PROBABILITY
) -> Response:
    """Move files of groups of copies to a folder beside the index; requires `--write` on a server for this machine only."""
    task = partial(curation.move, image, min_probability)
    return _json(_render(await edits.pool.submit(task, request.state.client)))


@curation_router.post("/duplicates/undo", response_model=Moved, responses=DISK_FULL)
async def undo_move(request: Request, edits: EditsOf, curation: CurationOf) -> Response:
    """Move the files of the last move back; requires `--write` on a server for this machine only."""
    return _json(_render(await edits.pool.submit(curation.undo, request.state.client)))


@curation_router.get("/job", response_model=JobState)
async def job_state(jobs: JobsOf) -> Response:
    """Return how far the long work of the server is, or how it ended."""
    return _json(_render(jobs.state()))


@curation_router.delete("/job", response_model=JobState)
async def cancel_job(jobs: JobsOf) -> Response:
    """Cancel the long work of the server; requires `--write`."""
    return _json(_render(jobs.cancel()))


@setup_router.get("/setup", response_model=JobState)
async def setup_state(setup: SetupOf, jobs: JobsOf) -> Response:
    """Return how far the indexing of the chosen folder is, on a server that was started without an index."""
    return _json(_render(jobs.state()))


@setup_router.get("/setup/folders", response_model=FolderListing)
async def choose_folder(setup: SetupOf, path: FolderPath = "") -> Response:
    """Return the folders in a folder that may be chosen; without a path, those of the root, or the roots."""
    return _json(_render(await asyncio.to_thread(setup.list_folders, path)))


@setup_router.post("/setup", status_code=202, response_model=JobState)
async def start_setup(setup: SetupOf, folder: FolderPath) -> Response:
    """Index a folder; then the server searches in it."""
    return _json(_render(await asyncio.to_thread(setup.start, folder)), 202)


@setup_router.delete("/setup", response_model=JobState)
async def cancel_setup(setup: SetupOf, jobs: JobsOf) -> Response:
    """Cancel the indexing; what was read is kept, and the same folder continues there."""
    return _json(_render(jobs.cancel()))


@admin_router.get("/about", response_model=dict[str, Any])
async def about(request: Request) -> Response:
    """Return what a page needs: the index, presets, choices and help texts of the options, and permissions.

    Where there is no index yet, `setup` is true, and the page begins with the choice of a folder.
    """
    if request.app.state.service is None:
        return _json(_render({"version": __version__, "setup": True}))
    service = await _service(request)
    return await respond(request, service.lookups, service.about)


@admin_router.get("/health", response_model=Health)
async def health(service: ServiceOf) -> Response:
    """Return whether the server is ready to search."""
    index = await asyncio.to_thread(lambda: service.index)  # not in a pool: a full queue is no failure
    status = "stale" if service.stale else "damaged" if index.damage else "ok"
    return _json(_render({"status": status, "commit": index.commit, "images": len(index)}))


@admin_router.get("/metrics", response_class=Response, responses=TEXT)
async def metrics(request: Request) -> Response:
    """Return the server's counters in the Prometheus format."""
    return Response(request.app.state.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@admin_router.post("/session", response_model=SessionCreated)
async def create_session(request: Request) -> Response:
    """Exchange the token for a cookie that allows reading: the pictures of a page cannot send a token."""
    token = cast(Token, request.app.state.token)
    if not token.in_authorization(request.headers.get("authorization", "")):
        raise HTTPException(401, "wrong token; send the server's token in the header 'Authorization: Bearer TOKEN'")
    response = _json(_render({"ok": True}))
    response.set_cookie(token.cookie_name, token.cookie, httponly=True, samesite="strict")
    return response


async def respond(request: Request, pool: Pool, task: Callable[[], Any], status: int = 200) -> Response:
    """Run a task in a pool, render its result there (large ones take time), and return the response."""
    return _json(await run(request, pool, lambda: _render(task())), status)


async def run(request: Request, pool: Pool, task: Callable[[], T], admitted: bool = False) -> T:
    """Run a task in a pool, unless the client disconnects before it starts."""
    future = pool.submit(task, request.state.client, admitted)
    try:
        return await _wait(request, future)
    finally:
        future.cancel()


async def _wait(request: Request, future: asyncio.Future[T]) -> T:
    """Return the result of a future; raise HTTPException if the client disconnects before."""
    while not (await asyncio.wait({future}, timeout=DISCONNECT_SECONDS))[0]:
        if await request.is_disconnected():
            raise HTTPException(CLIENT_CLOSED_REQUEST, "the client has disconnected")
    return future.result()


async def stream_json(
    request: Request, pool: Pool, run_search: Callable[[Callable[[SearchResult], None]], SearchResult]
) -> Response:
    """Return lines of JSON: the ranking by scores alone as soon as it is there, then the final one."""
    loop, results = asyncio.get_running_loop(), asyncio.Queue[SearchResult | None]()

    def on_first(result: SearchResult) -> None:
        loop.call_soon_threadsafe(results.put_nowait, result)

    future = pool.submit(lambda: run_search(on_first), request.state.client)
    future.add_done_callback(lambda _: results.put_nowait(None))
    try:
        first = await _wait(request, asyncio.ensure_future(results.get()))
    except HTTPException:
        future.cancel()
        raise
    if first is None:
        future.result()  # an error before the first line is an ordinary error response

    async def lines() -> AsyncIterator[bytes]:
        try:
            if first is not None:
                yield _render({"stage": "scored", **first.as_dict()}) + b"\n"
                await results.get()
            yield _render({"stage": "done", **future.result().as_dict()}) + b"\n"
        except PolyvocError as error:
            yield _render({"stage": "failed", "error": str(error)}) + b"\n"
        except Exception as error:
            yield _render({"stage": "failed", "error": _unexpected(error)}) + b"\n"
            raise  # into the log
        finally:
            future.cancel()

    return StreamingResponse(lines(), media_type=NDJSON)


def _render(value: Any) -> bytes:
    """Return JSON in ASCII, as the command line prints it: bytes of file names that are not text become escapes."""
    return json.dumps(value, allow_nan=False).encode()


def _json(content: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(content, status, headers, "application/json")


def _jpeg(request: Request, content: bytes) -> Response:
    """Return a picture, or 304 if the browser has it; it must check, since another index may be served here next."""
    tag = f'"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'
    headers = {"Cache-Control": "private, no-cache", "ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, media_type="image/jpeg", headers=headers)


def _read(photo: UploadFile) -> Upload:
    """Read an uploaded file; called in the thread that uses it, so that waiting requests hold files, not memory."""
    return Upload(photo.filename or "photograph", photo.file.read())


def _search_one(service: Service, query: str | UploadFile, parameters: BatchParameters) -> bytes:
    return _render(service.search_one(query if isinstance(query, str) else _read(query), parameters).as_dict())


def handle_errors(app: FastAPI) -> None:
    """Turn every exception of a route into a status code and one line."""
    for kind in (BusyError, PolyvocError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _handle)


async def _handle(_: Request, error: Exception) -> Response:
    status, message, headers = 500, str(error), {}
    if isinstance(error, HTTPException) and isinstance(error.__cause__, OSError):  # while an upload was written
        status, message = 507, f"the upload cannot be stored ({one_line(error.__cause__)}); free space in the temporary folder"
        logger.error("%s", message)
    elif isinstance(error, HTTPException):
        status, message, headers = error.status_code, str(error.detail), dict(error.headers or {})
    elif isinstance(error, RequestValidationError):
        status, message = 422, "; ".join(dict.fromkeys(map(_invalid_parameter, error.errors())))
    elif isinstance(error, BusyError | LockedError | ClusterError | UnreachableError):
        seconds = error.seconds if isinstance(error, BusyError) else RETRY_SECONDS
        status, headers = 503, {"Retry-After": str(seconds)}
    elif isinstance(error, PolyvocError):
        status = next((status for kind, status in STATUSES.items() if isinstance(error, kind)), 500)
        if status >= 500:
            logger.error("%s", error)
    else:
        message, headers = _unexpected(error), HEADERS  # this response does not pass the security middleware
    return _json(_render({"error": " ".join(message.split())}), status, headers)


def _unexpected(error: Exception) -> str:
    return f"unexpected {type(error).__name__}; see the server's log"


def _invalid_parameter(error: dict[str, Any]) -> str:
    """Return which parameter is wrong, and how."""
    location = [str(part) for part in error["loc"][1:]]
    if location[:1] == ["url"]:
        return NO_URLS
    if location and location[0] in ("photo", "photos") and error["type"] != "missing":
        return f"{location[0]} should be a file; {NO_URLS}"
    if error["type"] == "extra_forbidden":
        return f"{'.'.join(location)}: no such parameter"
    return f"{'.'.join(location) or 'request'}: {error['msg'].removeprefix('Value error, ')}"
