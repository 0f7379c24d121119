"""Pairs."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvoc.cli.flags import DEFAULT_INDEX, IndexPath, Json, from_record, on_disk
from polyvoc.cli.terminal import print_note, progress_bar, write, write_json
from polyvoc.errors import OptionError
from polyvoc.options import PairOptions

if TYPE_CHECKING:
    from polyvoc.search.pairs import Pairs

app = typer.Typer()
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="File for the pairs, two names on a line. Default: the terminal.", callback=on_disk),
]
Root = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Names are relative to it. Default: the common folder of all photographs."),
]
Database = Annotated[
    Path | None,
    typer.Option(metavar="DATABASE", help="Have COLMAP match and verify the pairs in its database.", callback=on_disk),
]
Image = Annotated[
    list[int] | None,
    typer.Option(metavar="ID", help="Only pairs of this image with any, as `info --images` lists them; repeatable."),
]


@app.command(
    "pairs",
    epilog="Example: polyvoc pairs --out pairs.txt\n\nExample: polyvoc pairs --verify --out pairs.txt --database database.db",
)
@from_record(PairOptions)
def pairs_command(
    chosen: dict[str, Any],
    index: IndexPath = DEFAULT_INDEX,
    out: Out = None,
    root: Root = None,
    image: Image = None,
    database: Database = None,
    json: Json = False,
) -> None:
    """Find pairs of photographs that are worth matching, in the format of COLMAP and hloc."""
    from polyvoc.features.colmap import write_pairs
    from polyvoc.search.index import Index

    options = PairOptions(**chosen)
    started = time.perf_counter()
    with Index.open(index) as opened:
        names = names_of(((row.image, row.path) for row in opened.images()), root)
        _check_names(names, database, spaces=not json or out is not None or database is not None)
        with progress_bar() as progress:
            pairs = opened.pairs(options, images=image, progress=progress)
    named = [
        (names[first], names[second]) for first, second in zip(pairs["first"].tolist(), pairs["second"].tolist(), strict=True)
    ]
    if out is not None:
        write_pairs(out, named)
    facts: dict[str, Any] = {"index": str(index), "images": len(names), "pairs": len(named)}
    if database is not None:
        from polyvoc.features.colmap import match_pairs

        if not json:
            print_note(f"COLMAP is matching {len(named):,} pairs")
        facts["matched"] = match_pairs(database, named)
    facts["seconds"] = round(time.perf_counter() - started, 3)
    if json:
        write_json({**facts, **({"list": _pairs_as_dicts(pairs, named)} if out is None else {"out": str(out)})})
    else:
        _show(facts, named, out)


def _show(facts: dict[str, Any], named: list[tuple[str, str]], out: Path | None) -> None:
    if out is None:
        for first, second in named:
            write(f"{first} {second}")
    matched = f", {facts['matched']:,} of them matched by COLMAP" if "matched" in facts else ""
    print_note(f"{facts['pairs']:,} pairs of {facts['images']:,} photographs{matched}, {facts['seconds']:.1f} s")


def _pairs_as_dicts(pairs: Pairs, named: list[tuple[str, str]]) -> list[dict[str, Any]]:
    rows = zip(named, pairs["first"].tolist(), pairs["second"].tolist(), pairs["score"].tolist(), pairs["inliers"].tolist(),
               strict=True)  # fmt: skip
    return [
        {"first": first, "second": second, "images": [a, b], "score": score, "inliers": inliers}
        for (first, second), a, b, score, inliers in rows
    ]


def names_of(images: Iterable[tuple[int, str]], root: str | None) -> dict[int, str]:
    """Return the name of each image relative to a folder, else to the folder that holds all of them.

    Names that are relative already, as in a file of features, stay the same.
    """
    from polyvoc.storage.folders import absolute_path
    from polyvoc.storage.stores import is_url

    paths = dict(images)
    absolute = [path for path in paths.values() if is_url(path) or os.path.isabs(path)]
    if root is None:
        folders = [path.split("/")[:-1] for path in absolute]
        root = "/".join(min(folders, default=[])[: _shared(folders)])
    else:
        root = absolute_path(root).rstrip("/")
    outside = [path for path in absolute if not path.startswith(f"{root}/")]
    if outside:
        raise OptionError(
            f"{outside[0]} is not below {root or '/'}; give --root, a folder that holds all photographs of the index"
        )
    names = {image: path.removeprefix(f"{root}/") for image, path in paths.items()}
    repeated = [name for name, times in Counter(names.values()).items() if times > 1]
    if repeated:
        raise OptionError(f"two images would have the name {repeated[0]!r}; give --root, a folder above")
    return names


def _shared(folders: list[list[str]]) -> int:
    """Return the number of leading parts that all have in common."""
    first, last = min(folders, default=[]), max(folders, default=[])
    length = min(len(first), len(last))
    return next((n for n in range(length) if first[n] != last[n]), length)


def _check_names(names: dict[int, str], database: Path | None, spaces: bool) -> None:
    """Raise OptionError for names that COLMAP cannot read, before the work begins."""
    odd = [name for name in names.values() if name.split() != [name] or name.startswith("#")]
    if odd and spaces:
        raise OptionError(f"{odd[0]!r} cannot be in a list of pairs, where a space ends a name ({len(odd)} such names); "
                          "rename the photographs, or use --json")  # fmt: skip
    if database is None:
        return
    from polyvoc.features.colmap import ColmapFeatures

    features = ColmapFeatures(database)
    known = set(features.names())
    features.close()
    unknown = [name for name in names.values() if name not in known]
    if unknown:
        raise OptionError(f"{database} has no image {unknown[0]!r}; give --root, the folder that its names are relative to")
