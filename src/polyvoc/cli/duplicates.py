"""Duplicates; its CSV, JSON, page."""

from __future__ import annotations

import csv
import io
import os
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvoc.cli.flags import DEFAULT_INDEX, IndexPath, Json, on_disk
from polyvoc.cli.terminal import linked, progress_bar, show_problems, talk, write, write_json
from polyvoc.duplicates.groups import Copy, Duplicates, Group, GroupedImage, day, in_bytes
from polyvoc.errors import OptionError, PolyvocError
from polyvoc.storage.stores import display_name
from polyvoc.types import Problem, Progress
from polyvoc.web.html import Picture, document, figures, paragraph, picture, ranking

if TYPE_CHECKING:
    from polyvoc.duplicates.move import Moves

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
    from polyvoc.duplicates.groups import check_min_probability, find_duplicates
    from polyvoc.duplicates.move import check_target
    from polyvoc.search.index import Index

    check_min_probability(sure)  # before any work is done
    _check_places(html, csv)
    if move is not None:
        check_target(move, index, folders=folders or [])
    started = time.perf_counter()
    problems = _look(folders or [], index, mirror)
    with Index.open(index) as opened, progress_bar() as progress:
        if move is not None:
            check_target(move, index, (row.path for row in opened.images()))
        found = find_duplicates(opened, sure, mirror, progress)
        if html is not None:
            html.write_text(duplicates_page(found, progress), encoding="utf-8")
    if csv is not None:
        csv.write_text(duplicates_csv(found), encoding="utf-8", newline="")
    moves = None if move is None else _move(found, index, move)
    seconds = time.perf_counter() - started
    if json:
        moved = {} if moves is None else _moved(moves)
        told = [{"path": one.path, "reason": one.reason} for one in problems]
        whole = {"index": str(index), **duplicates_as_dict(found), "problems": told, **moved, "seconds": round(seconds, 3)}
        write_json(whole)
        return
    show_duplicates(found, seconds)
    show_problems(problems)
    if moves is not None:
        write(f"{len(moves.done)} moved to {move}")
        show_problems(moves.problems)
        talk(f"Put them back: polyvoc duplicates --undo {shlex.quote(str(move))}")


def _check_places(*reports: Path | None) -> None:
    for report in reports:
        if report is not None and not report.parent.is_dir():
            raise OptionError(f"{report} cannot be written: there is no folder {report.parent}; make it, or choose another")


def _look(folders: list[str], index: Path, mirror: bool) -> list[Problem]:
    """Bring the index up to date, and let photographs that have not been compared yet be so; gives what could not be read."""
    from polyvoc.duplicates.compare import PairSearch, can_mirror
    from polyvoc.index.writer import IndexWriter
    from polyvoc.search.index import Index
    from polyvoc.storage.folders import check_folders

    if not folders:
        with Index.open(index) as opened:  # an index that is not there should not be made
            if not PairSearch(opened, mirror and can_mirror(opened)).waiting:
                return []
    check_folders(folders)
    problems: list[Problem] = []
    with progress_bar() as progress, IndexWriter.open(index) as writer:
        if folders:
            problems += writer.update(folders, progress=progress).problems
        return problems + writer.find_copies(mirror, progress)


def _move(found: Duplicates, index: Path, folder: Path) -> Moves:
    """Move all copies but the best of each group, and take them out of the index."""
    from polyvoc.duplicates.move import common_folder, movable, move
    from polyvoc.index.writer import IndexWriter

    known = {copy.photograph.path for group in found.groups for copy in group.copies if copy.photograph.image is not None}
    with IndexWriter.open(index) as writer, progress_bar() as progress:  # one at a time
        paths, staying = movable(found)
        root = common_folder((*paths, *(row.path for row in writer.catalogue.images())))
        moves = move(paths, root, folder, progress)
        gone = [path for path, _ in moves.done if path in known]
        try:
            if gone:
                writer.remove(gone)
        except PolyvocError as error:  # files were moved, and that must be told
            moves.problems.append(Problem(str(index), f"{error}; the index is brought up to date by: polyvoc index FOLDER"))
    moves.problems[:0] = staying
    return moves


def _put_back(journal: Path, json: bool) -> None:
    from polyvoc.duplicates.move import undo

    with progress_bar() as progress:
        moves = undo(journal, progress)
    if json:
        write_json(_moved(moves))
    else:
        write(f"{len(moves.done)} put back")
        show_problems(moves.problems)
        talk("Photographs that are back are new to an index: polyvoc index FOLDER")
    if moves.problems:
        raise typer.Exit(1)


def _moved(moves: Moves) -> dict[str, Any]:
    done = [{"from": os.fspath(path), "to": os.fspath(target)} for path, target in moves.done]
    return {"moved": done, "stayed": [{"path": one.path, "reason": one.reason} for one in moves.problems]}


COLUMNS = (
    "group", "role", "path", "probability", "via", "alteration", "width", "height", "bytes", "changed", "reason",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # with which a spreadsheet takes a text for a formula
BEST, COPY = "best", "copy"
STYLE = ".answers .frame img { object-fit: contain; }"  # what a crop lacks should be seen


def duplicates_as_dict(found: Duplicates) -> dict[str, Any]:
    """Give plain values for JSON."""
    return {
        "sure": found.sure,
        "photographs": found.photographs,
        "waiting": found.waiting,
        "groups": [
            {
                "best": {**_facts(group.best), "reason": group.reason},
                "copies": [
                    {
                        **_facts(copy.photograph),
                        "probability": round(copy.probability, 6),
                        "via": copy.via,
                        "identical": copy.identical,
                        "alteration": copy.in_words(group.best),
                        "transform": copy.transform.tolist(),
                    }
                    for copy in group.copies
                ],
            }
            for group in found.groups
        ],
        "pairs": [
            {
                "first": link.first,
                "second": link.second,
                "probability": round(link.probability, 6),
                "identical": link.identical,
                "transform": link.transform.tolist(),
            }
            for link in found.links
        ],
    }


def _facts(photograph: GroupedImage) -> dict[str, Any]:
    size = {"width": photograph.width, "height": photograph.height, "bytes": photograph.bytes}
    return {"path": photograph.path, "image": photograph.image, **size, "changed": day(photograph.changed)}


def duplicates_csv(found: Duplicates) -> str:
    """Give one row per photograph of a group; no cell is a formula, whatever files are called."""
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(COLUMNS)
    for number, group in enumerate(found.groups, start=1):
        table.writerow(map(_cell, _row(number, BEST, group.best, [1.0, "", ""], group.reason)))
        for copy in group.copies:
            told = [round(copy.probability, 4), copy.via or "", copy.in_words(group.best)]
            table.writerow(map(_cell, _row(number, COPY, copy.photograph, told, "")))
    return out.getvalue()


def _row(number: int, role: str, one: GroupedImage, told: list[Any], reason: str) -> list[Any]:
    return [number, role, one.path, *told, one.width, one.height, one.bytes, day(one.changed), reason]


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "backslashreplace").decode("utf-8")  # names of files need not be text
    return "'" + text if text.startswith(FORMULA) else text


def duplicates_page(found: Duplicates, progress: Progress | None = None) -> str:
    """Give a page that shows every group, its best photograph marked."""
    n_copies = sum(len(group.copies) for group in found.groups)
    body = [
        figures([
            (f"{found.photographs:,}", "photographs"),
            (f"{len(found.groups):,}", "groups of copies"),
            (f"{n_copies:,}", "copies besides the best ones"),
            (in_bytes(spare(found)), "in these copies"),
        ]),
        paragraph(
            f"Copies with a probability of at least {found.sure:g}, among pairs that are alike at all. The photograph on the "
            "left of each group is the one to keep. Nothing is deleted."
        ),
    ]  # fmt: skip
    for number, group in enumerate(found.groups, start=1):
        body.append(_section(number, group))
        if progress is not None:
            progress("pictures", number, len(found.groups))
    return document("polyvoc: copies among photographs", body, STYLE)


def _section(number: int, group: Group) -> str:
    best = picture(group.best.path, "keep", _measures(group.best))
    shown = [
        picture(copy.photograph.path, _chance(copy), f"{_told(group, copy)}; {_measures(copy.photograph)}")
        for copy in group.copies
    ]
    marked = Picture(best.jpeg, best.title, best.rank, best.note, best.href, "right")
    return ranking(f"Group {number}: {len(group.copies) + 1} photographs", marked, shown, group.reason)


def show_duplicates(found: Duplicates, seconds: float) -> None:
    """Print the groups."""
    for number, group in enumerate(found.groups, start=1):
        write(f"group {number}")
        write("  keep ", linked(group.best.path), f" {_measures(group.best)}; {group.reason}")
        for copy in group.copies:
            write(f"  {_chance(copy)} ", linked(copy.photograph.path), f" {_told(group, copy)}")
    n_copies = sum(len(group.copies) for group in found.groups)
    write(
        f"{len(found.groups):,} groups, {n_copies:,} copies besides the best ({in_bytes(spare(found))}), among "
        f"{found.photographs:,} photographs, {seconds:.1f} s"
    )


def spare(found: Duplicates) -> int:
    """Count the bytes of the copies besides the best ones."""
    return sum(copy.photograph.bytes for group in found.groups for copy in group.copies)


def _chance(copy: Copy) -> str:
    """Say a probability: 1.00 is that of identical files alone."""
    return "1.00" if copy.identical else f"{min(copy.probability, 0.99):.2f}"


def _told(group: Group, copy: Copy) -> str:
    through = "" if copy.via is None else f" (by way of {display_name(copy.via)})"
    return copy.in_words(group.best) + through


def _measures(photograph: GroupedImage) -> str:
    size = f"{photograph.width} x {photograph.height}, " if photograph.width else ""
    return size + in_bytes(photograph.bytes)
