"""The command line: a skin over the library. Parse, call, print."""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from polyvoc import __version__, console, flags, housekeeping, photogrammetry, reports, research, teaching
from polyvoc.errors import ImageError, OptionError, PolyvocError
from polyvoc.flags import (
    DEFAULT_INDEX,
    Binary,
    FeaturesFile,
    Folders,
    Images,
    IndexPath,
    Json,
    KindName,
    Own,
    Ray,
    Shipped,
    on_disk,
)
from polyvoc.records import ClusterOptions, FeatureOptions, Region, SearchOptions
from polyvoc.web import command

# Whatever loads OpenCV, numba or the vocabularies is imported inside the commands: `polyvoc --help` should be quick.
if TYPE_CHECKING:
    from polyvoc.answers import Answer, Failure, Question
    from polyvoc.index import Index

INTERRUPTED, BROKEN_PIPE = 130, 141  # 128 + the number of the signal, as shells have it
KEPT = "stopped; what was indexed is kept, run the same command to go on"


class Commands(TyperGroup):
    """All commands; whatever goes wrong in one becomes one line and an exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command and leave with its exit code."""
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names that the terminal cannot show
        try:
            code = super().main(*args, **{**extra, "prog_name": "polyvoc", "standalone_mode": False})
        except Exception as error:  # noqa: BLE001 - the last line of defence: one line instead of a traceback
            if "--debug" in (extra.get("args") or sys.argv):
                traceback.print_exc()
            console.error(_line(error))
            code = 1
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> None:
        """Run a command, unless the user stops it or stops reading."""
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # as in `polyvoc info --images | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            console.error(KEPT if ctx.invoked_subcommand in ("index", "demo") else "stopped")
            raise typer.Exit(INTERRUPTED) from None


def _line(error: Exception) -> str:
    """Say in one line what went wrong and what to do."""
    if isinstance(error, PolyvocError):
        return str(error)
    if hasattr(error, "format_message"):  # of the command line's parser
        command = getattr(getattr(error, "ctx", None), "command_path", "polyvoc")
        return f"{error.format_message().rstrip('.')}; see '{command} --help'"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return "not enough memory; close other programs, or use a machine with more"
    return f"unexpected {type(error).__name__}: {error}; run 'polyvoc --debug COMMAND ...' and report what it shows"


app = typer.Typer(
    name="polyvoc",
    cls=Commands,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: polyvoc index ~/Pictures && polyvoc search query.jpg",
)

app.add_typer(teaching.app)
app.add_typer(photogrammetry.app)
app.add_typer(housekeeping.app)
app.add_typer(research.app)
app.add_typer(command.app)
DEFAULT_DEMO = Path("polyvoc-demo")


@app.callback(invoke_without_command=True)
def polyvoc(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback when something goes wrong.")] = False,
) -> None:
    """Find the photographs that show the same thing as a query photograph."""
    if version:
        console.write(f"polyvoc {__version__}")
    elif context.invoked_subcommand is None:
        console.write(context.get_help())


# -- demo


@app.command("demo", epilog="Example: polyvoc demo --open")
def demo_command(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where to put photographs, index and page.", callback=on_disk)
    ] = DEFAULT_DEMO,
    json: Json = False,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = False,
) -> None:
    """Try it: make a collection of real photographs, index it, ask hard questions, and write a page with the answers."""
    from polyvoc import demo

    with console.progress() as progress:
        report = demo.run(out, progress)
    if json:
        console.write_json(report.as_dict())
    else:
        reports.show_demo(report)
    if show:
        typer.launch(report.page.absolute().as_uri())


# -- index and remove


@app.command(
    "index",
    epilog="Example: polyvoc index ~/Pictures\n\nExample: polyvoc index --features database.db --images ~/Pictures",
)
@flags.from_record(FeatureOptions, flags.FEATURE_TEXTS)
def index_command(  # noqa: PLR0913, PLR0917
    chosen: dict[str, Any],
    folders: Folders = None,
    index: IndexPath = DEFAULT_INDEX,
    vocabularies: Shipped = None,
    vocabulary: Own = None,
    bits: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="Bits of a signature: 128 rank best, 64 take half the memory, 0 none."),
    ] = None,
    embedding: Annotated[
        Path | None, typer.Option(metavar="MODEL.onnx", help="Store a global embedding, too: for `search --fuse`.")
    ] = None,
    features: FeaturesFile = None,
    kind: KindName = None,
    binary: Binary = False,
    images: Images = None,
    keep_missing: Annotated[bool, typer.Option("--keep-missing", help="Keep photographs whose files are gone.")] = False,
    ray: Ray = None,
    json: Json = False,
) -> None:
    """Index folders of photographs; run again, it adds what is new, replaces what changed and drops what is gone."""
    from polyvoc import collection, exchange, founding
    from polyvoc.cluster.building import RayWorkers
    from polyvoc.home import Home
    from polyvoc.vocabulary import load_vocabularies
    from polyvoc.writer import IndexWriter

    extracting = {**chosen, "max_features": None, "embedding": embedding, "ray": ray}
    reading = {"kind": kind, "binary": binary, "images": images}
    flags.only_one_source(folders, features, reading if features is None else extracting)
    # Before a new index is made: are the folders there, or the file, and the machines?
    collection.check(folders or [])
    file = None if features is None else exchange.open_features(features, kind, binary)
    started = time.perf_counter()
    words = load_vocabularies(vocabularies, vocabulary or [], bits)
    if file is not None:
        exchange.check_kind(file, Home(index), words)
        if images is not None:
            exchange.check_folder(file, images)
    options = founding.complete(chosen, Home(index), words)
    workers = RayWorkers(ray) if ray else None  # connects
    with console.progress() as progress, IndexWriter.open(index, words, options, embedding) as writer:
        if file is None:
            report = writer.update(folders or [], keep_missing, progress, workers)
        else:
            report = exchange.update(writer, file, images, keep_missing, progress)
    seconds = time.perf_counter() - started
    if json:
        console.write_json({"index": str(index), **report.as_dict(), "seconds": round(seconds, 3)})
    else:
        reports.show_report(report, seconds)
    if report.added + report.replaced + report.unchanged == 0:
        found = f"{len(report.problems)} files are there, none could be used" if report.problems else "no photograph found"
        raise OptionError(f"nothing to index in {', '.join(folders or [str(features)])}: {found}")


@app.command("remove", epilog="Example: polyvoc remove ~/Pictures/2019")
def remove_command(
    paths: Annotated[list[str], typer.Argument(metavar="PATH", help="Photographs, or folders of them.")],
    index: IndexPath = DEFAULT_INDEX,
    json: Json = False,
) -> None:
    """Remove photographs from an index; their files stay."""
    from polyvoc.home import Home
    from polyvoc.writer import IndexWriter

    Home(index).catalogue.close()  # an index that is not there should not be made
    with IndexWriter.open(index) as writer:
        removed = writer.remove(paths)
    if json:
        console.write_json({"index": str(index), "removed": removed})
    else:
        console.write(f"{removed} removed")


@app.command("link", epilog="Example: polyvoc link && polyvoc search query.jpg --smooth 1")
def link_command(
    index: IndexPath = DEFAULT_INDEX,
    candidates: Annotated[int, typer.Option(metavar="NUMBER", help="Images that each photograph is compared with.")] = 20,
    json: Json = False,
) -> None:
    """Find which photographs of an index show the same thing, for `search --smooth`; run it again after adding some."""
    from polyvoc.home import Home
    from polyvoc.writer import IndexWriter

    Home(index).catalogue.close()  # an index that is not there should not be made
    started = time.perf_counter()
    with console.progress() as progress, IndexWriter.open(index) as writer:
        pairs = writer.link(candidates, progress)
    seconds = time.perf_counter() - started
    if json:
        console.write_json({"index": str(index), "pairs": pairs, "seconds": round(seconds, 3)})
    else:
        console.write(f"{pairs:,} pairs of photographs that show the same thing, {seconds:.1f} s")


# -- search


@app.command(
    "search",
    epilog="Example: polyvoc search query.jpg --top 5\n\nExample: polyvoc search *.jpg --best --json\n\n"
    "Example: polyvoc search query.jpg --region 120 80 400 360\n\nExample: polyvoc search --image 17",
)
@flags.from_record(SearchOptions, flags.SEARCH_TEXTS, defaults=False)
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
    from polyvoc import answers

    if fast and best:
        raise OptionError("--fast and --best exclude each other; give one of them")
    asking: list[str | int] = [*(photographs or []), *(image or [])]
    queries = [answers.Question(photograph, region) for photograph in asking]
    if not queries:
        raise OptionError("nothing to search with; give a photograph, or --image with the id of an image of the index")
    if region is not None and len(queries) > 1:
        raise OptionError(f"--region is part of one photograph, not of {len(queries)}; search with one at a time")
    with console.progress() as progress:
        if ray is not None:
            progress(console.OPENING, 0, 1)
        opened, seconds = answers.open_index(index, None if ray is None else ClusterOptions(ray))
    options = replace(opened.preset("fast" if fast else "best" if best else "default"), **chosen)

    def ask(question: Question) -> Answer:
        answer = answers.ask(opened, question, options, threads)
        return replace(answer, seconds={"open": seconds, **answer.seconds})

    told = _ask_all(opened, queries, ask)
    found = [one for one in told if isinstance(one, answers.Answer)]
    if html is not None:
        html.write_text(answers.as_page(found), encoding="utf-8")
    if json:
        values = [one.as_dict() for one in told]
        console.write_json(values[0] if len(queries) == 1 else values)
    else:
        reports.show_answers(found, timings, named=len(queries) > 1)
    if len(found) < len(queries):
        raise typer.Exit(1)


def _ask_all(index: Index, queries: list[Question], ask: Callable[[Question], Answer]) -> list[Answer | Failure]:
    """Ask with each photograph; one that cannot be used among several is said and goes into the list."""
    from polyvoc import answers

    names = [query.name_in(index) for query in queries]  # refuses what is not in the index before the first search
    told: list[Answer | Failure] = []
    with console.progress() as progress:
        progress("searching: the first time on a machine, kernels are compiled", 0, len(queries))
        for done, (query, name) in enumerate(zip(queries, names, strict=True), start=1):
            try:
                told.append(ask(query))
            except ImageError as error:
                if len(queries) == 1:
                    raise
                console.error(str(error))
                told.append(answers.Failure(name, str(error)))
            progress("searching", done, len(queries))
    return told


# -- info and check


@app.command("info", epilog="Example: polyvoc info --index photos.polyvoc")
def info_command(
    index: IndexPath = DEFAULT_INDEX,
    images: Annotated[bool, typer.Option("--images", help="List the photographs, too.")] = False,
    distributions: Annotated[
        bool, typer.Option("--distributions", help="Draw how long the lists are, and how much those of a feature share.")
    ] = False,
    json: Json = False,
) -> None:
    """Say what an index holds: photographs, features, vocabularies, bytes on the disk, files that could not be used."""
    from polyvoc import inventory
    from polyvoc.index import Index

    opened = Index.open(index)
    facts = inventory.take(opened)
    spread = inventory.distributions(opened) if distributions else {}
    listed = inventory.photographs(opened) if images else []
    if json:
        console.write_json({**facts, **spread, **({"photographs": listed} if images else {})})
        return
    reports.show_info(facts)
    if distributions:
        reports.show_distributions(spread)
    for row in listed:
        size = f"{row['width']} x {row['height']}"
        console.write(f"{row['image']:>7}  {size:>11} {row['features']:>6} features ", console.linked(row["path"]))


@app.command("check", epilog="Example: polyvoc check --index photos.polyvoc")
def check_command(index: IndexPath = DEFAULT_INDEX, json: Json = False) -> None:
    """Read every file of an index and say what is damaged; exit code 1 if anything is."""
    from polyvoc import checking

    with console.progress() as progress:
        damage = list(checking.check(index, progress))
    if json:
        console.write_json({"index": str(index), "sound": not damage, "damage": damage})
    else:
        for line in damage or [f"{index} is sound"]:
            console.write(line)
    if damage:
        raise typer.Exit(1)


def main() -> None:
    """Run the command line."""
    app()
