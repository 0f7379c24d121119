"""Flags made from options records."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from polyvoc.errors import OptionError
from polyvoc.options import NONE
from polyvoc.scoring.rules import load_table
from polyvoc.storage.files import require_local_path
from polyvoc.types import LikelihoodTable


def on_disk(path: Path | None) -> Path | None:
    """Refuse an address where only a path will do, before any work is done."""
    if path is not None:
        require_local_path(path)
    return path


IndexPath = Annotated[
    Path,
    typer.Option(
        "--index",
        metavar="PATH",
        envvar="POLYVOC_INDEX",
        help="Folder of the index.",
        rich_help_panel="Index",
        callback=on_disk,
    ),
]
# Paths, or addresses in stores: kept as they are typed, since `Path` would lose a slash of s3://bucket.
Folders = Annotated[
    list[str] | None,
    typer.Argument(metavar="FOLDER", help="Folders of photographs, single files, or addresses: s3://bucket/folder"),
]
FeaturesFile = Annotated[
    Path | None,
    typer.Option(
        "--features",
        metavar="FILE",
        help="Take features that others made instead: a COLMAP database, or an HDF5 file of hloc.",
        rich_help_panel="Features of others",
        callback=on_disk,
    ),
]
KindName = Annotated[
    str | None,
    typer.Option(
        "--kind",
        metavar="NAME",
        help="What made the features, such as superpoint, where the file does not say so.",
        rich_help_panel="Features of others",
    ),
]
Binary = Annotated[
    bool,
    typer.Option(
        "--binary",
        help="Bytes of the HDF5 file are eight bits each, as those of ORB.",
        rich_help_panel="Features of others",
    ),
]
Images = Annotated[
    str | None,
    typer.Option(
        "--images",
        metavar="FOLDER",
        help="Where the photographs lie, which the names in the file are relative to.",
        rich_help_panel="Features of others",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Answer in JSON.")]
Shipped = Annotated[
    int | None,
    typer.Option("--vocabularies", metavar="NUMBER", help="Take this many of the vocabularies that come with polyvoc."),
]
Own = Annotated[
    list[Path] | None, typer.Option("--vocabulary", metavar="FOLDER", help="Take a vocabulary of your own; may be repeated.")
]
Ray = Annotated[
    str | None,
    typer.Option("--ray", metavar="ADDRESS|local", help="Spread the work over a Ray cluster: its address, auto, or local."),
]
DEFAULT_INDEX = Path("photos.polyvoc")


def only_one_source(folders: Collection[str] | None, features: Path | None, others: Mapping[str, object]) -> None:
    """Refuse both folders and a file of features, or neither; and flags that say how the other one is read."""
    if features is None and not folders:
        raise OptionError("nothing to read; give folders of photographs, or --features FILE")
    if features is not None and folders:
        raise OptionError(f"--features {features} stands for folders of photographs; leave {', '.join(folders)} out")
    for name, value in others.items():
        if value:
            there = "with" if features is None else "without"
            raise OptionError(f"{flag_name(name)} is for use {there} --features; leave it out")


RECEIVER = "chosen"  # the parameter of a command that gets the flags: {name of the field: value}


def from_record(
    record: type[Any],
    texts: Mapping[str, str],
    defaults: bool = True,
    without: Collection[str] = (),
    receiver: str = RECEIVER,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter `chosen`, or another `receiver`, of a command by one flag per field of a record.

    `texts` helps with each. `defaults` shows the record's own defaults in the help: leave it out where something else stands
    in. Fields `without` flags are the command's own affair.
    """
    kinds = get_type_hints(record)
    wanted = [field for field in fields(record) if field.name not in without]
    flags = [_parameter(field, kinds[field.name], texts[field.name], defaults) for field in wanted]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            values = {field.name: given.pop(field.name) for field in wanted}
            chosen = {name: _value(name, kinds[name], v) for name, v in values.items() if v is not None}
            command(**given, **{receiver: chosen})

        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name != receiver]
        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *flags)]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {p.name: p.annotation for p in keyword}
        run.__signature__ = signature.replace(parameters=keyword)  # type: ignore[attr-defined]
        return run

    return decorate


def flag_name(field: str) -> str:
    """Give what is typed for a field."""
    return "--" + field.replace("_", "-")


def _parameter(field: Field[Any], kind: Any, text: str, defaults: bool) -> inspect.Parameter:
    choices = get_args(kind) if get_origin(kind) is Literal else ()
    option = typer.Option(
        flag_name(field.name),
        help=f"{text} Default: {field.default}." if defaults else text,
        metavar=_metavar(kind),
        show_default=False,
        autocompletion=(lambda: list(choices)) if choices else None,
        rich_help_panel="Scoring" if not defaults else None,
    )
    typed = str if choices or _may_be_none(kind) else kind
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(field.name, keyword, default=None, annotation=Annotated[typed | None, option])


def _metavar(kind: Any) -> str | None:
    if kind is bool:
        return None
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if get_origin(kind) is tuple:
        return "A B"
    if LikelihoodTable in get_args(kind):
        return f"FILE|{NONE}"
    return f"NUMBER|{NONE}" if _may_be_none(kind) else "NUMBER"


def _may_be_none(kind: Any) -> bool:
    return NoneType in get_args(kind)


def parse_value(record: type[Any], name: str, value: str) -> Any:
    """Give what was typed for a field of a record as the field wants it."""
    return _value(name, get_type_hints(record)[name], value)


def _value(name: str, kind: Any, value: Any) -> Any:
    """Give what was typed as the field wants it; the record itself refuses values that make no sense."""
    if not _may_be_none(kind):
        return value
    if value == NONE:
        return None
    (wanted,) = (part for part in get_args(kind) if part is not NoneType)
    if wanted is LikelihoodTable:
        return load_table(Path(value))
    try:
        return wanted(value)
    except ValueError:
        raise OptionError(f"{name}={value!r} should be a number or {NONE}") from None
