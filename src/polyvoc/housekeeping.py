"""The command that finds copies among photographs: parse, call, print."""

from __future__ import annotations

import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvoc import console, reports
from polyvoc.errors import OptionError, PolyvocError
from polyvoc.flags import DEFAULT_INDEX, IndexPath, Json, on_disk
from polyvoc.records import Problem

# As in cli.py, what loads OpenCV or numba is imported inside the commands.
if TYPE_CHECKING:
    from polyvoc.duplicates import Duplicates
    from polyvoc.relocation import Moves

app = typer.Typer()


@app.command(
    "duplicates",
    epilog="Example: polyvoc duplicates ~/Pictures --html report.html\n\n"
    "Example: polyvoc duplicates --move ~/copies && polyvoc duplicates --undo ~/copies",
)
def duplicates_command(  # noqa: PLR0913, PLR0917
    folders: Annotated[
        list[str] | None, typer.Argument(metavar="FOLDER", help="Bring the index up to date with these folders first.")
    ] = None,
    index: IndexPath = DEFAULT_INDEX,
    sure: Annotated[
        float, typer.Option(metavar="PROBABILITY", help="How sure to be: 0.9 means that nine of ten pairs are copies.")
    ] = 0.9,
    mirror: Annotated[
        bool, typer.Option("--mirror/--no-mirror", help="Look for mirror images, too: every new file is read once more.")
    ] = True,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with the pictures.", callback=on_disk)] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one row per photograph.", callback=on_disk)] = None,
    move: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Move all but the best of each group there; can be undone.", callback=on_disk),
    ] = None,
    undo: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Put back what was moved there; or the journal.", callback=on_disk)
    ] = None,
    json: Json = False,
) -> None:
    """Find copies: re-encoded, resized, cropped, rotated, mirrored, written upon. Nothing is deleted, nor moved unless asked.

    New photographs are compared with all others, old ones are not compared again.
    """
    if undo is not None:
        if folders or move or html or csv:
            raise OptionError("--undo puts back what was moved, and does nothing else; give it alone")
        _put_back(undo, json)
        return
    from polyvoc import copyreports, duplicates
    from polyvoc.copies import groups
    from polyvoc.index import Index

    groups.check_sure(sure)  # before any work is done
    _check_places(html, csv)
    if move is not None:
        duplicates.check_target(move, index, folders=folders or [])
    started = time.perf_counter()
    problems = _look(folders or [], index, mirror)
    with Index.open(index) as opened, console.progress() as progress:
        if move is not None:
            duplicates.check_target(move, index, (row.path for row in opened.images()))
        found = duplicates.take(opened, sure, mirror, progress)
        if html is not None:
            html.write_text(copyreports.as_page(found, progress), encoding="utf-8")
    if csv is not None:
        csv.write_text(copyreports.as_csv(found), encoding="utf-8", newline="")
    moves = None if move is None else _move(found, index, move)
    seconds = time.perf_counter() - started
    if json:
        moved = {} if moves is None else _moved(moves)
        told = [{"path": one.path, "reason": one.reason} for one in problems]
        whole = {"index": str(index), **copyreports.as_dict(found), "problems": told, **moved, "seconds": round(seconds, 3)}
        console.write_json(whole)
        return
    copyreports.show(found, seconds)
    reports.show_problems(problems)
    if moves is not None:
        console.write(f"{len(moves.done)} moved to {move}")
        reports.show_problems(moves.problems)
        console.talk(f"Put them back: polyvoc duplicates --undo {shlex.quote(str(move))}")


def _check_places(*reports: Path | None) -> None:
    for report in reports:
        if report is not None and not report.parent.is_dir():
            raise OptionError(f"{report} cannot be written: there is no folder {report.parent}; make it, or choose another")


def _look(folders: list[str], index: Path, mirror: bool) -> list[Problem]:
    """Bring the index up to date, and let photographs that have not been compared yet be so; gives what could not be read."""
    from polyvoc import collection
    from polyvoc.copies import inquiry
    from polyvoc.index import Index
    from polyvoc.writer import IndexWriter

    if not folders:
        with Index.open(index) as opened:  # an index that is not there should not be made
            if not inquiry.Search(opened, mirror and inquiry.can_mirror(opened)).waiting:
                return []
    collection.check(folders)
    problems: list[Problem] = []
    with console.progress() as progress, IndexWriter.open(index) as writer:
        if folders:
            problems += writer.update(folders, progress=progress).problems
        return problems + writer.find_copies(mirror, progress)


def _move(found: Duplicates, index: Path, folder: Path) -> Moves:
    """Move all copies but the best of each group, and take them out of the index."""
    from polyvoc import duplicates, relocation
    from polyvoc.writer import IndexWriter

    known = {copy.photograph.path for group in found.groups for copy in group.copies if copy.photograph.image is not None}
    with IndexWriter.open(index) as writer, console.progress() as progress:  # one at a time
        paths, staying = duplicates.movable(found)
        root = duplicates.root((*paths, *(row.path for row in writer.catalogue.images())))
        moves = relocation.move(paths, root, folder, progress)
        gone = [path for path, _ in moves.done if path in known]
        try:
            if gone:
                writer.remove(gone)
        except PolyvocError as error:  # files were moved, and that must be told
            moves.problems.append(Problem(str(index), f"{error}; the index is brought up to date by: polyvoc index FOLDER"))
    moves.problems[:0] = staying
    return moves


def _put_back(journal: Path, json: bool) -> None:
    from polyvoc import relocation

    with console.progress() as progress:
        moves = relocation.undo(journal, progress)
    if json:
        console.write_json(_moved(moves))
    else:
        console.write(f"{len(moves.done)} put back")
        reports.show_problems(moves.problems)
        console.talk("Photographs that are back are new to an index: polyvoc index FOLDER")
    if moves.problems:
        raise typer.Exit(1)


def _moved(moves: Moves) -> dict[str, Any]:
    done = [{"from": os.fspath(path), "to": os.fspath(target)} for path, target in moves.done]
    return {"moved": done, "stayed": [{"path": one.path, "reason": one.reason} for one in moves.problems]}
