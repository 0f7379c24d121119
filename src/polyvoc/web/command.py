"""`polyvoc serve`: what the command line says of a server."""

from __future__ import annotations

import os
import secrets
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from polyvoc import console
from polyvoc.errors import OptionError
from polyvoc.flags import DEFAULT_INDEX, on_disk
from polyvoc.records import ClusterOptions
from polyvoc.web.settings import Settings, is_local

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
        console.talk(f"Serving {index} at {link} (Ctrl-C stops it)")
        if show:
            typer.launch(address)  # without the token: everybody may see what programs are started with

    from polyvoc.web.server import serve  # what follows loads FastAPI and the index

    with opening:
        if held is not None:
            opening.enter_context(console.progress())(console.OPENING, 0, 1)
        serve(settings, ready)


def _token(file: Path | None) -> str | None:
    """Give the server's secret, from a file or from the environment."""
    if file is not None:
        try:
            return file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"{file}: cannot be read ({getattr(error, 'strerror', None) or 'not text'})") from None
    return os.environ.get("POLYVOC_TOKEN") or None
