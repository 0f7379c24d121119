"""The commands `search` and `serve`."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvoc.cli.answers import print_paths, print_results
from polyvoc.cli.flags import (
    DEFAULT_TEXT,
    IndexPaths,
    Json,
    Ray,
    chosen_indexes,
    flag,
    flag_name,
    from_record,
    named_indexes,
    path_flag,
    switch,
)
from polyvoc.cli.terminal import OPENING, print_error, print_note, progress_bar, write_json
from polyvoc.errors import OptionError
from polyvoc.options import ClusterOptions, Preset, SearchOptions
from polyvoc.types import Region
from polyvoc.web.settings import Settings, is_local

if TYPE_CHECKING:
    from polyvoc.search.hits import SearchFailure, SearchResult
    from polyvoc.search.index import Index
    from polyvoc.search.several import Indexes

app = typer.Typer()


@app.command(
    "search",
    epilog="Example: polyvoc search query.jpg --top 5\n\nExample: polyvoc search *.jpg --best --json\n\n"
    "Example: polyvoc search query.jpg --paths > found.txt\n\n"
    "Example: polyvoc search query.jpg --region 120 80 400 360\n\nExample: polyvoc search --image 17\n\n"
    "Example: polyvoc search query.jpg --index photos.polyvoc --index photos.orb.polyvoc\n\n"
    "Example: polyvoc search query.jpg --paper",
)
@from_record(SearchOptions, defaults=False)
def search_command(  # noqa: PLR0913
    *,
    photographs: Annotated[list[str] | None, typer.Argument(metavar="PHOTO", help="Photographs to search with.")] = None,
    index: IndexPaths = None,
    chosen: dict[str, Any],
    fast: Annotated[bool, switch("--fast", "Rank by scores alone, without geometric verification.")] = False,
    best: Annotated[bool, switch("--best", "Search more thoroughly; takes up to twice as long.")] = False,
    paper: Annotated[bool, switch("--paper", "Search as in the paper: Bayes merging of two vocabularies.")] = False,
    region: Annotated[
        Region | None,
        flag("X0 Y0 X1 Y1", "Search with a part of the photograph: a box in pixels from its upper left corner."),
    ] = None,
    image: Annotated[
        list[int] | None, flag("ID", "Search with an image of the index, by its id in 'info --images'; repeatable.")
    ] = None,
    html: Annotated[Path | None, path_flag("FILE", "Write an HTML page with the pictures.")] = None,
    json: Json = False,
    paths: Annotated[bool, switch("--paths", "Print the paths of the likely hits alone, for pipes.")] = False,
    scores: Annotated[bool, switch("--scores", "Print the scores, too.")] = False,
    timings: Annotated[bool, switch("--timings", "Print the seconds of each stage.")] = False,
    threads: Annotated[int | None, flag("NUMBER", "Cores to use. Default: all.")] = None,
    ray: Ray = None,
) -> None:
    """Find the photographs that show the same thing as a photograph, the most probable first.

    Options that are left out are those of the index; `polyvoc info --verbose` lists them.
    """
    if photographs:
        from polyvoc.features.decode import shared_decoders

        shared_decoders().start()  # while the rest is loaded
    preset = _preset(fast=fast, best=best, paper=paper)
    photos: list[str | int] = [*(photographs or []), *(image or [])]
    if not photos:
        raise OptionError("nothing to search with; give a photograph, or --image with the id of an image of the index")
    if region is not None and len(photos) > 1:
        raise OptionError(f"--region is part of one photograph, not of {len(photos)}; search with one at a time")
    if paths and json:
        raise OptionError("--paths and --json exclude each other; --json has the paths, too")
    started = time.perf_counter()
    opened = _open(chosen_indexes(index), ray)
    opening = time.perf_counter() - started
    searching = {"preset": preset, "threads": threads, **chosen}
    results = _search_all(opened, photos, searching, region, opening)
    found = [one for one in results if not hasattr(one, "error")]
    if html is not None:
        from polyvoc.web.html import search_page

        allowed = {*(photographs or [])}
        for one in found:
            trust = one.hits.trust
            names = (one.query, *(hit.path for hit in one.hits))
            allowed.update(name for name in names if trust is not None and trust.allows(name))
        html.write_text(search_page(found, allowed.__contains__), encoding="utf-8")
        for refused in opened.refused():
            print_note(refused)
    if json:
        write_json({"results": [one.as_dict() for one in results]})
    elif paths:
        print_paths(found, timings)
    else:
        print_results(found, scores, timings)
    if len(found) < len(photos):
        raise typer.Exit(1)


def _preset(**given: bool) -> Preset:
    """Return the preset whose flag was given; raise OptionError for several."""
    chosen: list[Any] = [name for name, is_given in given.items() if is_given]
    if len(chosen) > 1:
        raise OptionError(f"{' and '.join(map(flag_name, chosen))} exclude each other; give one of them")
    return next(iter(chosen), "default")


def _open(paths: Sequence[Path], ray: str | None) -> Index | Indexes:
    """Open an index, or several as one, and load their vocabularies."""
    from polyvoc.search.index import Index
    from polyvoc.search.several import open_together

    def open_one(path: str | os.PathLike[str]) -> Index:
        if ray is None:
            return Index.open(path)
        from polyvoc.cluster.shards import open_index

        return open_index(path, None, ray)

    with progress_bar() as progress:
        if ray is not None:
            progress(OPENING, 0, 1)
        opened = open_together(paths, open_one)
        opened.load()
    return opened


def _search_all(opened: Index | Indexes, photos: list[str | int], searching: dict[str, Any], region: Region | None,
                opening: float) -> list[SearchResult | SearchFailure]:  # fmt: skip
    """Search with each photograph; one of several that cannot be used is reported and becomes a SearchFailure."""
    from polyvoc.search.hits import SearchFailure, SearchResult

    results: list[SearchResult | SearchFailure]
    with progress_bar() as progress:
        progress("searching: slower the first time on a machine", 0, len(photos))
        if len(photos) == 1:
            (photo,) = photos
            name = opened.image(photo).path if isinstance(photo, int) else photo
            options = opened.options(**{key: value for key, value in searching.items() if key != "threads"})
            results = [SearchResult(name, options, opened.search(photo, region=region, **searching), region)]
        else:
            results = opened.search_many(photos, progress=progress, **searching)
    for result in results:
        if isinstance(result, SearchFailure):
            print_error(result.error)
        else:
            result.hits.seconds = {"open": opening, **result.hits.seconds}
    return results


SERVED = f"Folder of the index; {DEFAULT_TEXT} Where there is none, the page begins with the choice of a folder."
ServedIndex = Annotated[Path | None, typer.Argument(metavar="INDEX", help=SERVED, show_default=False)]
SERVED_TOO = "The same as INDEX; repeatable: several are searched as one, and not changed."


@app.command(
    "serve",
    epilog="Example: polyvoc serve photos.polyvoc --open\n\nExample: polyvoc serve --write --host 0.0.0.0\n\n"
    "Example: polyvoc serve --index photos.polyvoc --index photos.orb.polyvoc",
)
@from_record(Settings)
@from_record(ClusterOptions, without=("address",), receiver="parts")
def serve_command(
    *,
    index: ServedIndex = None,
    indexes: Annotated[list[Path] | None, flag("PATH", SERVED_TOO, "--index")] = None,
    show: Annotated[bool, switch("--open/--no-open", "Open the page in the browser.")] = False,
    chosen: dict[str, Any],
    token_file: Annotated[
        Path | None, flag("FILE", "File with the token. Default: POLYVOC_TOKEN, or a random one.", panel="Access")
    ] = None,
    ray: Ray = None,
    parts: dict[str, Any],
) -> None:
    """Serve a web page and an HTTP API to search an index, or several as one."""
    first, *others = named_indexes(index, indexes)
    given = _token(token_file)
    open_to_others = chosen.get("write", False) and not is_local(chosen.get("host", "127.0.0.1"), *chosen.get("allow_host", ()))
    needs_token = chosen.get("private", False) or open_to_others
    random = secrets.token_urlsafe(24) if needs_token and given is None and sys.stderr.isatty() else None
    cluster = None if ray is None else ClusterOptions(ray, **parts)
    settings = Settings(
        first,
        others=tuple(others),
        token=random if given is None else given,
        cluster=cluster,
        beside=not (index or indexes or os.environ.get("POLYVOC_INDEX")),
        **chosen,
    )
    what = "No index yet, choose a folder" if settings.sets_up else f"Serving {', '.join(map(str, settings.indexes))}"
    opening = ExitStack()

    def ready(address: str) -> None:
        opening.close()
        link = address if random is None else f"{address}#token={random}"
        print_note(f"{what} at {link} (Ctrl-C stops it)")
        if show:
            typer.launch(address)  # without the token: command lines are visible to all users of the machine

    from polyvoc.web.server import serve  # loads FastAPI and the index

    with opening:
        if cluster is not None:
            opening.enter_context(progress_bar())(OPENING, 0, 1)
        serve(settings, ready)


def _token(file: Path | None) -> str | None:
    """Return the token, from a file or from the environment."""
    if file is None:
        return os.environ.get("POLYVOC_TOKEN") or None
    try:
        return file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or 'not text'})") from None
