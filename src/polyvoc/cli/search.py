"""Search, serve."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvoc.cli.flags import DEFAULT_INDEX, IndexPath, Json, Ray, from_record, on_disk
from polyvoc.cli.terminal import OPENING, print_error, progress_bar, show_answers, talk, write_json
from polyvoc.errors import ImageError, OptionError
from polyvoc.options import SEARCH_TEXTS, ClusterOptions, SearchOptions
from polyvoc.types import Region
from polyvoc.web.settings import Settings, is_local

if TYPE_CHECKING:
    from polyvoc.search.hits import SearchFailure, SearchResult
    from polyvoc.search.index import Index, Question

app = typer.Typer()


def _access(metavar: str | None, text: str, *names: str) -> Any:
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel="Who may do what")


def _place(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel="Who may do what", callback=on_disk)


def _limit(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel="Limits")


def _cluster(metavar: str, text: str) -> Any:
    return typer.Option(metavar=metavar, help=text, rich_help_panel="Many machines")


IndexFolder = Annotated[
    Path, typer.Argument(metavar="INDEX", envvar="POLYVOC_INDEX", help="Folder of the index.", callback=on_disk)
]


@app.command("serve", epilog="Example: polyvoc serve photos.polyvoc --open\n\nExample: polyvoc serve --write --host 0.0.0.0")
def serve_command(  # noqa: PLR0913, PLR0917
    index: IndexFolder = DEFAULT_INDEX,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="0.0.0.0 lets other machines in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="NUMBER", help="0 takes any that is free.")] = 8000,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = False,
    write: Annotated[bool, _access(None, "Photographs may be added and removed.", "--write")] = False,
    photos: Annotated[Path | None, _place("FOLDER", "Where added ones are kept; else beside the index.")] = None,
    private: Annotated[bool, _access(None, "Reading needs the token, too.", "--private")] = False,
    token_file: Annotated[Path | None, _access("FILE", "Holds the token; else POLYVOC_TOKEN does, or one is made up.")] = None,
    allow_host: Annotated[list[str] | None, _access("NAME", "A name that the server is called by; may be repeated.")] = None,
    cors: Annotated[list[str] | None, _access("ORIGIN", "Pages of this origin may ask; may be repeated.")] = None,
    originals: Annotated[bool, _access(None, "Files may be fetched, with their metadata.", "--originals")] = False,
    workers: Annotated[int, _limit("NUMBER", "Searches at a time; 0: one per core.")] = 0,
    queue: Annotated[int, _limit("NUMBER", "Requests that may wait for them.")] = 32,
    max_upload: Annotated[int, _limit("MB", "Megabytes of a request; eight times that for several photographs.")] = 32,
    max_pixels: Annotated[int, _limit("MP", "Million pixels of a photograph.")] = 100,
    ray: Annotated[str | None, _cluster("ADDRESS|local", "A Ray cluster holds the index: its address, auto, or local.")] = None,
    shards: Annotated[int, _cluster("NUMBER", "Parts that the index is spread over; 0: one per core of the cluster.")] = 0,
    replicas: Annotated[int, _cluster("NUMBER", "Processes that hold the same part.")] = 1,
    patience: Annotated[float, _cluster("SECONDS", "How long a search waits for a part.")] = 10.0,
) -> None:
    """Open a page, and an HTTP interface, to search an index by dropping a photograph."""
    names = tuple(allow_host or ())
    given = _token(token_file)
    guarded = private or (write and not is_local(host, *names))
    made_up = secrets.token_urlsafe(24) if guarded and given is None and sys.stderr.isatty() else None
    limits: dict[str, Any] = {"workers": workers, "queue": queue, "max_upload": max_upload, "max_pixels": max_pixels}
    origins = tuple(cors or ())
    held = None if ray is None else ClusterOptions(ray, shards, replicas, patience)
    settings = Settings(index, host, port, write, photos, private, given or made_up, names, origins, originals, **limits)
    settings = replace(settings, cluster=held)

    opening = ExitStack()

    def ready(address: str) -> None:
        opening.close()
        link = address if made_up is None else f"{address}#token={made_up}"
        talk(f"Serving {index} at {link} (Ctrl-C stops it)")
        if show:
            typer.launch(address)  # without the token: everybody may see what programs are started with

    from polyvoc.web.server import serve  # what follows loads FastAPI and the index

    with opening:
        if held is not None:
            opening.enter_context(progress_bar())(OPENING, 0, 1)
        serve(settings, ready)


def _token(file: Path | None) -> str | None:
    """Give the server's secret, from a file or from the environment."""
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or 'not text'})") from None
    return os.environ.get("POLYVOC_TOKEN") or None


@app.command(
    "search",
    epilog="Example: polyvoc search query.jpg --top 5\n\nExample: polyvoc search *.jpg --best --json\n\n"
    "Example: polyvoc search query.jpg --region 120 80 400 360\n\nExample: polyvoc search --image 17",
)
@from_record(SearchOptions, SEARCH_TEXTS, defaults=False)
def search_command(  # noqa: PLR0913, PLR0917
    chosen: dict[str, Any],
    photographs: Annotated[list[str] | None, typer.Argument(metavar="PHOTO", help="Photographs to search with.")] = None,
    image: Annotated[
        list[int] | None,
        typer.Option(metavar="ID", help="Search with an image of the index, as `info --images` lists them; may be repeated."),
    ] = None,
    region: Annotated[
        Region | None,
        typer.Option(metavar="X0 Y0 X1 Y1", help="Search with a part of the photograph, in pixels from its upper left corner."),
    ] = None,
    index: IndexPath = DEFAULT_INDEX,
    fast: Annotated[bool, typer.Option("--fast", help="Rank by scores alone, without looking at arrangements.")] = False,
    best: Annotated[bool, typer.Option("--best", help="Let verified hits ask along: takes about twice as long.")] = False,
    threads: Annotated[int | None, typer.Option(metavar="NUMBER", help="Cores to use; all unless given.")] = None,
    ray: Ray = None,
    json: Json = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with the pictures.", callback=on_disk)] = None,
    timings: Annotated[bool, typer.Option("--timings", help="Show the seconds of each stage.")] = False,
) -> None:
    """Find the photographs that show the same thing, best first. Flags left out are as `polyvoc info` says."""
    from polyvoc.search.hits import SearchResult
    from polyvoc.search.index import Question, open_index
    from polyvoc.search.index import ask as answers_ask
    from polyvoc.web.html import search_page

    if fast and best:
        raise OptionError("--fast and --best exclude each other; give one of them")
    asking: list[str | int] = [*(photographs or []), *(image or [])]
    queries = [Question(photograph, region) for photograph in asking]
    if not queries:
        raise OptionError("nothing to search with; give a photograph, or --image with the id of an image of the index")
    if region is not None and len(queries) > 1:
        raise OptionError(f"--region is part of one photograph, not of {len(queries)}; search with one at a time")
    with progress_bar() as progress:
        if ray is not None:
            progress(OPENING, 0, 1)
        opened, seconds = open_index(index, None if ray is None else ClusterOptions(ray))
    options = replace(opened.preset("fast" if fast else "best" if best else "default"), **chosen)

    def ask(question: Question) -> SearchResult:
        answer = answers_ask(opened, question, options, threads)
        return replace(answer, seconds={"open": seconds, **answer.seconds})

    told = _ask_all(opened, queries, ask)
    found = [one for one in told if isinstance(one, SearchResult)]
    if html is not None:
        html.write_text(search_page(found), encoding="utf-8")
    if json:
        values = [one.as_dict() for one in told]
        write_json(values[0] if len(queries) == 1 else values)
    else:
        show_answers(found, timings, named=len(queries) > 1)
    if len(found) < len(queries):
        raise typer.Exit(1)


def _ask_all(
    index: Index, queries: list[Question], ask: Callable[[Question], SearchResult]
) -> list[SearchResult | SearchFailure]:
    """Ask with each photograph; one that cannot be used among several is said and goes into the list."""
    from polyvoc.search.hits import SearchFailure

    names = [query.name_in(index) for query in queries]  # refuses what is not in the index before the first search
    told: list[SearchResult | SearchFailure] = []
    with progress_bar() as progress:
        progress("searching: the first time on a machine, kernels are compiled", 0, len(queries))
        for done, (query, name) in enumerate(zip(queries, names, strict=True), start=1):
            try:
                told.append(ask(query))
            except ImageError as error:
                if len(queries) == 1:
                    raise
                print_error(str(error))
                told.append(SearchFailure(name, str(error)))
            progress("searching", done, len(queries))
    return told
