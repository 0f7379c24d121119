"""The command `pairs`: pairs of photographs worth matching, for COLMAP and hloc."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyvoc.cli.flags import DEFAULT_INDEX, IndexPath, Json, flag, from_record, path_flag
from polyvoc.cli.terminal import print_note, progress_bar, write, write_json
from polyvoc.errors import OptionError
from polyvoc.options import PairOptions

if TYPE_CHECKING:
    from polyvoc.search.pairs import Pairs

app = typer.Typer()


@app.command(
    "pairs",
    epilog="Example: polyvoc pairs --out pairs.txt\n\nExample: polyvoc pairs --verify --out pairs.txt --database database.db",
)
@from_record(PairOptions)
def pairs_command(
    *,
    index: IndexPath = DEFAULT_INDEX,
    out: Annotated[Path | None, path_flag("FILE", "File for the pairs, two names on a line. Default: the terminal.")] = None,
    chosen: dict[str, Any],
    root: Annotated[
        str | None, flag("FOLDER", "Names are relative to it. Default: the common folder of all photographs.")
    ] = None,
    image: Annotated[
        list[int] | None, flag("ID", "Only pairs of this image with any, by its id in 'info --images'; repeatable.")
    ] = None,
    database: Annotated[Path | None, path_flag("DATABASE", "Have COLMAP match and verify the pairs in its database.")] = None,
    json: Json = False,
) -> None:
    """List pairs of photographs worth matching, for COLMAP and hloc."""
    from polyvoc.features.colmap import write_pairs
    from polyvoc.search.index import Index

    options = PairOptions(**chosen)
    started = time.perf_counter()
    with Index.open(index) as opened:
        names = names_of(((row.image, row.path) for row in opened.images()), root)
        _check_names(names, database, spaces=not json or out is not None or database is not None)
        with progress_bar() as progress:
            pairs = opened.pairs(options, images=image, progress=progress)
    named = [(names[first], names[second]) for first, second in pairs[["first", "second"]].tolist()]
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
    rows = zip(named, pairs[["first", "second", "score", "inliers", "probability"]].tolist(), strict=True)
    return [
        {"first": first, "second": second, "images": [a, b], "score": score, "inliers": inliers,
         "probability": None if math.isnan(probability) else round(probability, 6)}
        for (first, second), (a, b, score, inliers, probability) in rows
    ]  # fmt: skip


def names_of(images: Iterable[tuple[int, str]], root: str | None) -> dict[int, str]:
    """Return the name of each image relative to a folder, else to the folder that holds all of them.

    Names that are relative already, as in a file of features, stay the same.
    """
    from polyvoc.storage.folders import absolute_path
    from polyvoc.storage.stores import is_url

    paths = dict(images)
    absolute = [path for path in paths.values() if is_url(path) or os.path.isabs(path)]
    if root is None:
        root = "/".join(os.path.commonprefix([path.split("/")[:-1] for path in absolute]))  # noqa: RUF071 - of parts
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
