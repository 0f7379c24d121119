"""Flags made from options records, and the flags that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import typer

from polyvoc.errors import OptionError
from polyvoc.options import SCORING, Option, options_of
from polyvoc.storage.files import require_local_path
from polyvoc.types import LikelihoodTable

DEFAULT_INDEX = Path("photos.polyvoc")
NONE = "none"  # typed for None
RECEIVER = "chosen"  # the parameter of a command that receives the flags: {name of the field: value}
PANELS = {SCORING: "Research: rules of the paper", "": None}
OTHER_FEATURES = "Features made by other programs"


def on_disk(path: Path | None) -> Path | None:
    """Raise OptionError for an address where only a path will do, before any work is done."""
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
        callback=on_disk,
    ),
]
# Paths or addresses, kept as they are typed: `Path` would drop a slash of s3://bucket.
Folders = Annotated[
    list[str] | None,
    typer.Argument(metavar="FOLDER", help="Folders of photographs, single files, or addresses such as s3://bucket/folder."),
]
FeaturesFile = Annotated[
    Path | None,
    typer.Option(
        "--features",
        metavar="FILE",
        help="Read features instead of photographs: a COLMAP database, or an HDF5 file of hloc.",
        rich_help_panel=OTHER_FEATURES,
        callback=on_disk,
    ),
]
KindName = Annotated[
    str | None,
    typer.Option(
        "--feature-kind",
        metavar="NAME",
        help="Kind of the features, such as superpoint, if the file does not name it.",
        rich_help_panel=OTHER_FEATURES,
    ),
]
Binary = Annotated[
    bool,
    typer.Option(
        "--binary", help="Descriptors of the HDF5 file are packed bits, as those of ORB.", rich_help_panel=OTHER_FEATURES
    ),
]
Images = Annotated[
    str | None,
    typer.Option(
        "--images",
        metavar="FOLDER",
        help="Folder of the photographs that the names in the file are relative to.",
        rich_help_panel=OTHER_FEATURES,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Shipped = Annotated[
    int | None, typer.Option("--vocabularies", metavar="NUMBER", help="Number of the shipped vocabularies to use.")
]
Own = Annotated[
    list[Path] | None, typer.Option("--vocabulary", metavar="FOLDER", help="Use a vocabulary of your own; repeatable.")
]
Ray = Annotated[str | None, typer.Option("--ray", metavar="ADDRESS", help="Use a Ray cluster: its address, auto, or local.")]


def only_one_source(folders: Collection[str] | None, features: Path | None, others: Mapping[str, object]) -> None:
    """Raise OptionError if both folders and a file of features are given, or neither, or flags of the other source."""
    if features is None and not folders:
        raise OptionError("nothing to read; give folders of photographs, or --features FILE")
    if features is not None and folders:
        raise OptionError(f"--features {features} replaces folders of photographs; leave {', '.join(folders)} out")
    for name, value in others.items():
        if value:
            word = "with" if features is None else "without"
            raise OptionError(f"{flag_name(name)} is for use {word} --features; leave it out")


def from_record(record: type[Any], defaults: bool = True, without: Collection[str] = (),
                receiver: str = RECEIVER) -> Callable[[Callable[..., None]], Callable[..., None]]:  # fmt: skip
    """Replace the parameter `chosen`, or another `receiver`, of a command by one flag per field of an options record.

    `defaults` shows the record's own defaults in the help: leave it out where the index has others. Fields `without` flags are
    handled by the command itself.
    """
    wanted = [option for option in options_of(record) if option.name not in without]
    flags = [_parameter(option, defaults) for option in wanted]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            values = {option: given.pop(option.name) for option in wanted}
            chosen = {option.name: _value(option, value) for option, value in values.items() if value is not None}
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
    """Return the flag of a field."""
    return "--" + field.replace("_", "-")


def parse_value(record: type[Any], name: str, value: str) -> Any:
    """Return what was typed for a field of a record as the type of the field."""
    (option,) = (option for option in options_of(record) if option.name == name)
    return _value(option, value)


def _parameter(option: Option, defaults: bool) -> inspect.Parameter:
    repeatable = _is_repeatable(option)
    shown = defaults and not option.optional and not repeatable and option.kind is not bool
    flag = typer.Option(
        flag_name(option.name),
        help=f"{option.help} Default: {option.default}." if shown else option.help,
        metavar=_metavar(option),
        show_default=False,
        autocompletion=(lambda: list(option.choices)) if option.choices else None,
        rich_help_panel=PANELS.get(option.stage, option.stage if defaults else None),
    )
    typed = list[str] if repeatable else str if option.choices or option.optional else option.kind
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.name, keyword, default=None, annotation=Annotated[typed | None, flag])


def _metavar(option: Option) -> str | None:
    if option.metavar or option.kind is bool:
        return option.metavar or None
    if option.choices:
        return "|".join(option.choices)
    if get_origin(option.kind) is tuple:
        return "A B"
    if LikelihoodTable in get_args(option.kind):
        return f"FILE|{NONE}"
    return f"NUMBER|{NONE}" if option.optional else "NUMBER"


def _is_repeatable(option: Option) -> bool:
    return get_origin(option.kind) is tuple and get_args(option.kind)[-1] is Ellipsis


def _value(option: Option, value: Any) -> Any:
    """Return what was typed as the type of the field; the record itself checks the limits."""
    if _is_repeatable(option):
        return tuple(value)
    if not option.optional:
        return value
    if value == NONE:
        return None
    (wanted,) = (part for part in get_args(option.kind) if part is not NoneType)
    if wanted is LikelihoodTable:
        from polyvoc.scoring.rules import load_table

        return load_table(Path(value))
    try:
        return wanted(value)
    except ValueError:
        raise OptionError(f"{option.name}={value!r} should be a number or {NONE}") from None
