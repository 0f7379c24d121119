"""The command `duplicates`, and its reports: CSV, JSON, HTML, text."""

from __future__ import annotations

import csv
import io
import shlex
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvoc.cli.flags import DEFAULT_INDEX, IndexPath, Json, flag, path_flag, switch
from polyvoc.cli.terminal import linked_path, print_note, print_problems, progress_bar, write, write_json
from polyvoc.duplicates import MIN_PROBABILITY
from polyvoc.errors import OptionError, PolyvocError
from polyvoc.types import Problem, Progress

if TYPE_CHECKING:
    from polyvoc.duplicates.groups import Copy, Duplicates, Group, ImageFile
    from polyvoc.duplicates.move import Moves

app = typer.Typer()

FILE_FIELDS = ("path", "image", "width", "height", "bytes", "changed")
COPY_FIELDS = ("probability", "via", "identical", "alteration", "transform")
CSV_FIELDS = (
    "group", "role", "path", "probability", "via", "alteration", "width", "height", "bytes", "changed", "reason",
)  # fmt: skip
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")  # with which a spreadsheet takes a text for a formula
STYLE = ".answers .frame img { object-fit: contain; }"  # crops are shown whole


@app.command(
    "duplicates",
    epilog="Example: polyvoc duplicates ~/Pictures --html report.html\n\n"
    "Example: polyvoc duplicates --move ~/copies && polyvoc duplicates --undo ~/copies",
)
def duplicates_command(  # noqa: PLR0913
    *,
    folders: Annotated[
        list[str] | None, typer.Argument(metavar="FOLDER", help="Bring the index up to date with these folders first.")
    ] = None,
    index: IndexPath = DEFAULT_INDEX,
    min_probability: Annotated[
        float, flag("NUMBER", "Minimum probability of a pair, 0 to 1. At 0.9 about nine of ten pairs are copies.")
    ] = MIN_PROBABILITY,
    mirror: Annotated[bool, switch("--mirror/--no-mirror", "Find mirrored copies, too: every new file is read twice.")] = True,
    html: Annotated[Path | None, path_flag("FILE", "Write a page with thumbnails.")] = None,
    csv: Annotated[Path | None, path_flag("FILE", "Write one row per photograph.")] = None,
    move: Annotated[Path | None, path_flag("FOLDER", "Move all but the best of each group there; can be undone.")] = None,
    undo: Annotated[Path | None, path_flag("FOLDER", "Move files back from there; or the path of a journal.")] = None,
    json: Json = False,
) -> None:
    """Find copies: resized, cropped, rotated, mirrored, re-encoded, with text or a frame. Nothing is deleted.

    New photographs are compared with all others; old ones are not compared again. Files are moved only with --move.
    """
    if undo is not None:
        if folders or move or html or csv:
            raise OptionError("--undo cannot be combined with folders, --move, --html or --csv; give it alone")
        _undo(undo, json)
        return
    from polyvoc.duplicates.groups import check_min_probability, find_duplicates
    from polyvoc.duplicates.move import check_target
    from polyvoc.search.index import Index

    check_min_probability(min_probability)  # before any work is done
    for report in (html, csv):
        if report is not None and not report.parent.is_dir():
            raise OptionError(f"{report} cannot be written: there is no folder {report.parent}; create it, or choose another")
    if move is not None:
        check_target(move, index, folders=folders or [])
    started = time.perf_counter()
    problems = _compare(folders or [], index, mirror)
    with Index.open(index) as opened, progress_bar() as progress:
        if move is not None:
            check_target(move, index, (row.path for row in opened.images()))
        duplicates = find_duplicates(opened, min_probability, mirror, progress)
        if html is not None:
            html.write_text(duplicates_page(duplicates, progress), encoding="utf-8")
    if csv is not None:
        csv.write_text(duplicates_csv(duplicates), encoding="utf-8", newline="")
    moves = None if move is None else _move(duplicates, index, move)
    seconds = time.perf_counter() - started
    if json:
        result = {"index": str(index), **duplicates_as_dict(duplicates), "problems": list(map(asdict, problems))}
        write_json({**result, **({} if moves is None else _moves_as_dict(moves)), "seconds": round(seconds, 3)})
        return
    show_duplicates(duplicates, seconds)
    print_problems(problems)
    if moves is not None:
        write(f"{len(moves.done)} moved to {move}")
        print_problems(moves.problems)
        print_note(f"Undo: polyvoc duplicates --undo {shlex.quote(str(move))}")


def _compare(folders: list[str], path: Path, mirror: bool) -> list[Problem]:
    """Bring the index up to date and compare new images; return the files that could not be read."""
    from polyvoc.duplicates.compare import compare, pending_tasks
    from polyvoc.index.writer import IndexWriter
    from polyvoc.search.index import Index
    from polyvoc.storage.folders import check_folders

    if not folders:
        with Index.open(path) as opened:  # raises if there is none; nothing is written where nothing is to do
            if not pending_tasks(opened, mirror):
                return []
    check_folders(folders)
    with progress_bar() as progress, IndexWriter.open(path) as writer:
        problems = writer.update(folders, progress=progress).problems if folders else []
        return problems + compare(writer, mirror, progress)


def _move(duplicates: Duplicates, path: Path, folder: Path) -> Moves:
    """Move all copies but the best of each group, and remove them from the index."""
    from polyvoc.duplicates.move import common_folder, movable, move
    from polyvoc.index.writer import IndexWriter

    indexed = {copy.file.path for group in duplicates.groups for copy in group.copies if copy.file.image is not None}
    with IndexWriter.open(path) as writer, progress_bar() as progress:  # one process at a time
        paths, not_moved = movable(duplicates)
        root = common_folder((*paths, *(row.path for row in writer.catalogue.images())))
        moves = move(paths, root, folder, progress)
        moved = [origin for origin, _ in moves.done if origin in indexed]
        try:
            if moved:
                writer.remove(moved)
        except PolyvocError as error:  # files were moved, and the report must list them
            moves.problems.append(Problem(str(path), f"{error}; bring the index up to date with: polyvoc index FOLDER"))
    moves.problems[:0] = not_moved
    return moves


def _undo(journal: Path, json: bool) -> None:
    from polyvoc.duplicates.move import undo

    with progress_bar() as progress:
        moves = undo(journal, progress)
    if json:
        write_json(_moves_as_dict(moves))
    else:
        write(f"{len(moves.done)} moved back")
        print_problems(moves.problems)
        print_note("They are new to an index: polyvoc index FOLDER")
    if moves.problems:
        raise typer.Exit(1)


def _moves_as_dict(moves: Moves) -> dict[str, Any]:
    moved = [{"from": path, "to": target} for path, target in moves.done]
    return {"moved": moved, "not_moved": list(map(asdict, moves.problems))}


# -- reports


def group_rows(group: Group) -> list[dict[str, Any]]:
    """Return one row per file of a group, the best first: every report is made from these."""
    return [_row(group, group.best, None), *(_row(group, copy.file, copy) for copy in group.copies)]


def _row(group: Group, file: ImageFile, copy: Copy | None) -> dict[str, Any]:
    from polyvoc.duplicates.groups import format_bytes, format_day
    from polyvoc.storage.stores import display_name

    size = f"{file.width} x {file.height}, " if file.width else ""
    row = {name: getattr(file, name) for name in FILE_FIELDS} | {"changed": format_day(file.changed)}
    row |= {"size": size + format_bytes(file.bytes), "via": None, "alteration": "", "reason": ""}
    if copy is None:
        return row | {"role": "best", "label": "keep", "probability": 1.0, "note": row["size"], "reason": group.reason}
    change, via = copy.describe(group.best), f" (by way of {display_name(copy.via)})" if copy.via is not None else ""
    return row | {
        "role": "copy",
        "label": "1.00" if copy.identical else f"{min(copy.probability, 0.99):.2f}",  # 1.00 is for identical files alone
        "probability": round(copy.probability, 6),
        "via": copy.via,
        "identical": copy.identical,
        "alteration": change,
        "transform": copy.transform.tolist(),
        "note": change + via,
    }


def duplicates_as_dict(duplicates: Duplicates) -> dict[str, Any]:
    """Return plain values for JSON."""
    groups = []
    for best, *copies in map(group_rows, duplicates.groups):
        listed = [{name: copy[name] for name in (*FILE_FIELDS, *COPY_FIELDS)} for copy in copies]
        groups.append({"best": {name: best[name] for name in (*FILE_FIELDS, "reason")}, "copies": listed})
    pairs = [
        asdict(link) | {"probability": round(link.probability, 6), "transform": link.transform.tolist()}
        for link in duplicates.links
    ]
    counts = {"images": duplicates.n_images, "not_compared": duplicates.not_compared}
    return {"min_probability": duplicates.min_probability, **counts, "groups": groups, "pairs": pairs}


def duplicates_csv(duplicates: Duplicates) -> str:
    """Return one row per file of a group; no cell is a formula, whatever the names of files."""
    out = io.StringIO()
    table = csv.writer(out)
    table.writerow(CSV_FIELDS)
    for number, group in enumerate(duplicates.groups, start=1):
        table.writerows([_cell(({"group": number} | row)[name]) for name in CSV_FIELDS] for row in group_rows(group))
    return out.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = value.encode("utf-8", "backslashreplace").decode("utf-8")  # names of files need not be text
    return "'" + text if text.startswith(FORMULA) else text


def duplicates_page(duplicates: Duplicates, progress: Progress | None = None) -> str:
    """Return a page that shows every group, its best file marked."""
    from polyvoc.web.html import document, figures, paragraph, picture, ranking

    n_copies, size = _count_copies(duplicates)
    body = [
        figures([
            (f"{duplicates.n_images:,}", "photographs"),
            (f"{len(duplicates.groups):,}", "groups of copies"),
            (f"{n_copies:,}", "copies besides the best"),
            (size, "in these copies"),
        ]),
        paragraph(
            f"Pairs that are copies with a probability of at least {duplicates.min_probability:g}. The photograph on the left "
            "of each group is the one to keep. Nothing is deleted."
        ),
    ]  # fmt: skip
    for number, group in enumerate(duplicates.groups, start=1):
        best, *copies = group_rows(group)
        marked = replace(picture(best["path"], best["label"], best["note"]), mark="right")
        pictures = [picture(copy["path"], copy["label"], f"{copy['note']}; {copy['size']}") for copy in copies]
        body.append(ranking(f"Group {number}: {len(copies) + 1} photographs", marked, pictures, group.reason))
        if progress is not None:
            progress("thumbnails", number, len(duplicates.groups))
    return document("polyvoc: copies among photographs", body, STYLE)


def show_duplicates(duplicates: Duplicates, seconds: float) -> None:
    """Print the groups."""
    for number, group in enumerate(duplicates.groups, start=1):
        write(f"group {number}")
        for row in group_rows(group):
            reason = f"; {row['reason']}" if row["reason"] else ""
            write(f"  {row['label']} ", linked_path(row["path"]), f" {row['note']}{reason}")
    n_copies, size = _count_copies(duplicates)
    write(
        f"{len(duplicates.groups):,} groups, {n_copies:,} copies besides the best ({size}), among "
        f"{duplicates.n_images:,} photographs, {seconds:.1f} s"
    )


def _count_copies(duplicates: Duplicates) -> tuple[int, str]:
    """Return the number and the size of the copies besides the best."""
    from polyvoc.duplicates.groups import format_bytes

    sizes = [copy.file.bytes for group in duplicates.groups for copy in group.copies]
    return len(sizes), format_bytes(sum(sizes))
