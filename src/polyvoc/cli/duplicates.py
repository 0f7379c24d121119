"""The commands `duplicates` and `decisions`, and the reports of copies: CSV, JSON, HTML, text."""

from __future__ import annotations

import csv
import io
import shlex
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvoc.cli.flags import DEFAULT_INDEX, IndexPath, Json, flag, path_flag, switch
from polyvoc.cli.terminal import linked_path, print_note, print_problems, progress_bar, write, write_json
from polyvoc.duplicates import MIN_PROBABILITY, MOVE_PROBABILITY
from polyvoc.errors import OptionError, PolyvocError
from polyvoc.types import Problem, Progress

if TYPE_CHECKING:
    from polyvoc.duplicates.decisions import Decisions
    from polyvoc.duplicates.groups import Copy, Duplicates, Group, ImageFile, Link
    from polyvoc.duplicates.move import Moves
    from polyvoc.index.folder import IndexFolder
    from polyvoc.index.writer import IndexWriter

app = typer.Typer()

FILE_FIELDS = ("path", "image", "width", "height", "bytes", "changed")
COPY_FIELDS = ("kind", "probability", "verdict", "via", "identical", "alteration", "transform")
CSV_FIELDS = (
    "group", "role", "path", "kind", "probability", "verdict", "via", "alteration", "width", "height", "bytes", "changed",
    "reason",
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
        float | None,
        flag("NUMBER", f"Minimum probability of a pair, 0 to 1. Default: {MIN_PROBABILITY}, with --move {MOVE_PROBABILITY}."),
    ] = None,
    mirror: Annotated[bool, switch("--mirror/--no-mirror", "Find mirrored copies, too: every new file is read twice.")] = True,
    reference: Annotated[
        list[str] | None, flag("FOLDER", "Always keep the files of this folder, and never move them; repeatable.")
    ] = None,
    between: Annotated[
        tuple[str, str] | None, flag("FOLDER FOLDER", "Only pairs of a photograph in one folder and one in the other.")
    ] = None,
    shots: Annotated[bool, switch("--shots", "List pairs of shots of the same thing, too, which are no copies.")] = False,
    decided: Annotated[bool, switch("--decided", "Show groups, too, on which you have decided.")] = False,
    html: Annotated[Path | None, path_flag("FILE", "Write a page with thumbnails.")] = None,
    csv: Annotated[Path | None, path_flag("FILE", "Write one row per photograph.")] = None,
    move: Annotated[Path | None, path_flag("FOLDER", "Move all but the best of each group there; can be undone.")] = None,
    undo: Annotated[
        Path | None,
        path_flag("FOLDER", "Undo --move FOLDER. If that was done on another machine, name the FOLDERs of the files, too."),
    ] = None,
    json: Json = False,
) -> None:
    """Find copies: resized, cropped, rotated, mirrored, re-encoded, with text or a frame. Nothing is deleted.

    New photographs are compared with all others; old ones are not compared again. Other shots of the same thing are no copies.
    Files are moved only with --move, which says how many wrong moves are to be expected.
    """
    if undo is not None:
        if move or html or csv:
            raise OptionError("--undo cannot be combined with --move, --html or --csv; give it alone")
        _undo(undo, folders or [], json)
        return
    from polyvoc.duplicates.groups import Scope, check_min_probability, find_duplicates
    from polyvoc.duplicates.move import check_target
    from polyvoc.search.index import Index

    if min_probability is None:
        min_probability = MIN_PROBABILITY if move is None else MOVE_PROBABILITY
    check_min_probability(min_probability)  # before any work is done
    scope = Scope(tuple(reference or ()), between)
    _check_reports(html, csv)
    if move is not None:
        check_target(move, index, folders=folders or [])
    started = time.perf_counter()
    if move is not None:
        _finish(index, move)
    problems = _compare(folders or [], index, mirror)
    with Index.open(index) as opened, progress_bar() as progress:
        if move is not None:
            check_target(move, index, (row.path for row in opened.images()), opened.folder.trust.named)
        duplicates = find_duplicates(opened, min_probability, mirror, progress, scope)
        if html is not None:
            page = duplicates_page(duplicates, opened.folder.trust.allows, progress)
            html.write_text(page, encoding="utf-8")
    if csv is not None:
        csv.write_text(duplicates_csv(duplicates), encoding="utf-8", newline="")
    moves = None if move is None else _move(duplicates, index, move)
    seconds = time.perf_counter() - started
    if json:
        result = {"index": str(index), **duplicates_as_dict(duplicates), "problems": list(map(asdict, problems))}
        write_json({**result, **_moved_as_dict(duplicates, moves), "seconds": round(seconds, 3)})
        return
    show_duplicates(duplicates, seconds, shots, decided or move is not None)
    print_problems(problems)
    if moves is not None:
        write(f"{len(moves.done):,} files moved to {move}, {expected_text(_expected_wrong(duplicates, moves))}")
        print_problems(moves.problems)
        if moves.done:
            print_note(f"Undo: polyvoc duplicates --undo {shlex.quote(str(move))}")


def _check_reports(*reports: Path | None) -> None:
    """Raise OptionError for a report whose folder does not exist, before any work is done."""
    for report in reports:
        if report is not None and not report.parent.is_dir():
            raise OptionError(f"{report} cannot be written: there is no folder {report.parent}; create it, or choose another")


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


def _finish(path: Path, folder: Path) -> None:
    """Complete moves that were interrupted, and remove from the index what has been moved."""
    from polyvoc.duplicates.move import JOURNAL, finish
    from polyvoc.index.writer import IndexWriter

    if (folder / JOURNAL).is_file():
        with IndexWriter.open(path, create=False) as writer:
            moved = [origin for origin in dict.fromkeys(finish(folder)) if writer.catalogue.image_at(origin) is not None]
            if moved:
                writer.remove(moved)


def _move(duplicates: Duplicates, path: Path, folder: Path) -> Moves:
    """Move all copies but the best of each group, and remove them from the index."""
    from polyvoc.duplicates.move import common_folder, movable, move
    from polyvoc.index.writer import IndexWriter

    indexed = {copy.file.path for group in duplicates.groups for copy in group.copies if copy.file.image is not None}
    with IndexWriter.open(path) as writer, progress_bar() as progress:  # one process at a time
        paths, not_moved = movable(duplicates, writer.folder.trust)
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


def _moved_as_dict(duplicates: Duplicates, moves: Moves | None) -> dict[str, Any]:
    """Return what was moved and how many wrong moves are expected, for JSON; nothing without a move."""
    if moves is None:
        return {}
    return {**_moves_as_dict(moves), "expected_wrong": round(_expected_wrong(duplicates, moves), 4)}


def _expected_wrong(duplicates: Duplicates, moves: Moves) -> float:
    from polyvoc.duplicates.move import expected_wrong

    return expected_wrong(duplicates, [origin for origin, _ in moves.done])


def expected_text(expected: float) -> str:
    """Format an expected number of wrong moves."""
    return f"{expected:.1f} expected wrong" if expected >= 0.05 else "fewer than 0.1 expected wrong"


def _undo(journal: Path, folders: list[str], json: bool) -> None:
    from polyvoc.duplicates.move import undo

    with progress_bar() as progress:
        moves = undo(journal, folders, progress)
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
    row |= {"size": size + format_bytes(file.bytes), "via": None, "alteration": "", "reason": "", "kind": "", "verdict": None}
    if copy is None:
        return row | {"role": "best", "label": "keep", "probability": 1.0, "note": row["size"], "reason": group.reason}
    change, via = copy.describe(group.best), f" (by way of {display_name(copy.via)})" if copy.via is not None else ""
    kept = "; kept, in a reference folder" if file.reference else ""
    decided = "; decided" if copy.verdict is not None else ""
    return row | {
        "role": "reference" if file.reference else "copy",
        "kind": copy.kind,
        "verdict": copy.verdict,
        "label": "1.00" if copy.identical else f"{min(copy.probability, 0.99):.2f}",  # 1.00 is for identical files alone
        "probability": round(copy.probability, 6),
        "via": copy.via,
        "identical": copy.identical,
        "alteration": change,
        "transform": copy.transform.tolist(),
        "note": change + via + decided + kept,
    }


def duplicates_as_dict(duplicates: Duplicates) -> dict[str, Any]:
    """Return plain values for JSON."""
    groups = []
    for best, *copies in map(group_rows, duplicates.groups):
        listed = [{name: copy[name] for name in (*FILE_FIELDS, *COPY_FIELDS)} for copy in copies]
        groups.append({"best": {name: best[name] for name in (*FILE_FIELDS, "reason")}, "copies": listed})
    pairs = [link_as_dict(link) for link in (*duplicates.links, *duplicates.shots)]
    counts = {"images": duplicates.n_images, "not_compared": duplicates.not_compared}
    return {"min_probability": duplicates.min_probability, **counts, "groups": groups, "pairs": pairs}


def link_as_dict(link: Link) -> dict[str, Any]:
    """Return plain values of a pair for JSON; its probabilities by class."""
    rest = max(0.0, 1 - link.probability - link.another_shot)
    classes = {"copy": link.probability, "another shot": link.another_shot, "something else": rest}
    return {
        "first": link.first, "second": link.second, "kind": link.kind, "verdict": link.verdict,
        "probability": round(link.probability, 6), "probabilities": {name: round(p, 6) for name, p in classes.items()},
        "transform": link.transform.tolist(), "identical": link.identical,
    }  # fmt: skip


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


def duplicates_page(duplicates: Duplicates, may_read: Callable[[str], bool], progress: Progress | None = None) -> str:
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
        marked = replace(picture(best["path"], best["label"], best["note"], may_read(best["path"])), mark="right")
        notes = [f"{copy['note']}; {copy['size']}" for copy in copies]
        shown = zip(copies, notes, strict=True)
        pictures = [picture(copy["path"], copy["label"], note, may_read(copy["path"])) for copy, note in shown]
        body.append(ranking(f"Group {number}: {len(copies) + 1} photographs", marked, pictures, group.reason))
        if progress is not None:
            progress("thumbnails", number, len(duplicates.groups))
    return document("polyvoc: copies among photographs", body, STYLE)


def show_duplicates(duplicates: Duplicates, seconds: float, shots: bool = False, decided: bool = True) -> None:
    """Print the groups, those that the user has decided on only if told to; and the other shots."""
    hidden = 0
    for number, group in enumerate(duplicates.groups, start=1):
        if group.decided and not decided:
            hidden += 1
            continue
        write(f"group {number}")
        for row in group_rows(group):
            reason = f"; {row['reason']}" if row["reason"] else ""
            write(f"  {row['label']} ", linked_path(row["path"]), f" {row['note']}{reason}")
    for link in duplicates.shots if shots else ():
        label = f"{min(link.another_shot, 0.99):.2f}"
        write(f"  {label} ", linked_path(link.first), "  ", linked_path(link.second), " another shot")
    n_copies, size = _count_copies(duplicates)
    write(
        f"{len(duplicates.groups):,} groups, {n_copies:,} copies besides the best ({size}), among "
        f"{duplicates.n_images:,} photographs, {seconds:.1f} s"
    )
    if hidden:
        print_note(f"{hidden:,} groups on which you have decided are not shown; --decided shows them")
    if duplicates.shots and not shots:
        print_note(f"{len(duplicates.shots):,} pairs are other shots of the same thing, not copies; --shots lists them")


def _count_copies(duplicates: Duplicates) -> tuple[int, str]:
    """Return the number and the size of the copies besides the best."""
    from polyvoc.duplicates.groups import format_bytes

    sizes = [copy.file.bytes for group in duplicates.groups for copy in group.copies]
    return len(sizes), format_bytes(sum(sizes))


# -- verdicts


@app.command(
    "decisions",
    epilog="Example: polyvoc decisions a.jpg b.jpg --verdict different\n\n"
    "Example: polyvoc decisions --export decisions.json && polyvoc decisions --import decisions.json --index other.polyvoc",
)
def decisions_command(
    *,
    photographs: Annotated[
        list[str] | None, typer.Argument(metavar="FIRST SECOND", help="Two photographs of the index, to decide on them.")
    ] = None,
    index: IndexPath = DEFAULT_INDEX,
    verdict: Annotated[
        str | None,
        flag("WORD", "Decide: same (the same thing, another shot), copy, different; or none, to withdraw a verdict."),
    ] = None,
    export: Annotated[Path | None, path_flag("FILE", "Write all verdicts to a JSON file.")] = None,
    load: Annotated[
        Path | None, path_flag("FILE", "Add the verdicts of such a file; of two, the later counts.", "--import")
    ] = None,
    json: Json = False,
) -> None:
    """Decide on pairs of photographs, or list your verdicts; they are kept by content, wherever the files are."""
    from polyvoc.duplicates.decisions import Decisions, load_decisions, write_decisions
    from polyvoc.index.folder import IndexFolder
    from polyvoc.index.writer import IndexWriter

    if len(photographs or []) not in (0, 2) or bool(photographs) != (verdict is not None):
        raise OptionError(
            "a verdict needs two photographs and a word: polyvoc decisions FIRST SECOND --verdict same|copy|different"
        )
    loaded = None if load is None else load_decisions(load)
    if photographs or loaded is not None:
        with IndexWriter.open(index, create=False) as writer:
            if loaded is not None:
                Decisions.read(writer.folder).joined(loaded).save(writer)
            if photographs:
                _decide(writer, photographs, str(verdict))
    folder = IndexFolder(index)
    try:
        decisions = Decisions.read(folder)
        exported = None if export is None else write_decisions(folder, export)
        _show_decisions(folder, decisions, json, changed=bool(photographs) or loaded is not None or exported is not None)
    finally:
        folder.close()


def _decide(writer: IndexWriter, photographs: list[str], verdict: str) -> None:
    from polyvoc.duplicates.decisions import decide
    from polyvoc.storage.folders import absolute_path

    images = []
    for name in photographs:
        row = writer.catalogue.image_at(name) or writer.catalogue.image_at(absolute_path(name))
        if row is None:
            raise OptionError(f"{name} is not in the index; 'polyvoc info --images' lists what is")
        images.append(row.image)
    decide(writer, [(images[0], images[1], None if verdict == "none" else verdict)])


def _show_decisions(folder: IndexFolder, decisions: Decisions, json: bool, changed: bool) -> None:
    """Print all verdicts; after a change only their number, unless as JSON."""
    from polyvoc.duplicates.decisions import paths_by_digest

    listed = decisions.as_dict(paths_by_digest(folder))["decisions"]
    if json:
        write_json({"index": str(folder.path), "decisions": listed})
        return
    for one in [] if changed else listed:
        first, second = (
            path or f"digest {digest}" for path, digest in zip(one["paths"], (one["first"], one["second"]), strict=True)
        )
        write(f"{one['verdict']:9} ", linked_path(first), "  ", linked_path(second))
    write(f"{len(listed):,} verdicts")
