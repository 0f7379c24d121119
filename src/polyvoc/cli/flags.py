"""Flags made from options records, and the flags that several commands share."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin

import typer

from polyvoc.errors import OptionError
from polyvoc.options import ANSWER, CLUSTER, FUSION, RERANKING, SCORING, Option, options_of
from polyvoc.storage.files import require_local_path
from polyvoc.types import LikelihoodTable

DEFAULT_INDEX = Path("photos.polyvoc")
DEFAULT_TEXT = f"default: POLYVOC_INDEX, else {DEFAULT_INDEX}."
NONE = "none"  # typed for None
RECEIVER = "chosen"  # the parameter of a command that receives the flags: {name of the field: value}
RESEARCH = "Research: rules of the paper"
PANELS = {"": None, ANSWER: None, FUSION: RERANKING, SCORING: RESEARCH}  # of stages; others have their own
EXTERNAL = "Features made by other programs"
# Panels of commands in `polyvoc --help`; those for every day are in the first one.
MAINTENANCE, RESEARCH_COMMANDS = "Maintenance", "Vocabularies and research"


def flag(metavar: str, text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """Return a flag with a value."""
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=panel, **more)


def switch(name: str, text: str, panel: str | None = None) -> Any:
    """Return a flag without a value."""
    return typer.Option(name, metavar="", help=text, rich_help_panel=panel)


def on_disk(path: Path | None) -> Path | None:
    """Raise OptionError for an address where only a path will do, before any work is done."""
    if path is not None:
        require_local_path(path)
    return path


def chosen_indexes(given: Sequence[Path] | None) -> list[Path]:
    """Return the folders of indexes that were given, else that of the environment or the default one."""
    paths = list(given or [Path(os.environ.get("POLYVOC_INDEX") or DEFAULT_INDEX)])
    for path in paths:
        require_local_path(path)
    return paths


def named_indexes(argument: Path | None, flags: Sequence[Path] | None) -> list[Path]:
    """Return the folders of indexes that were given as an argument and by flags, else as `chosen_indexes`."""
    return chosen_indexes([*([] if argument is None else [argument]), *(flags or [])])


def path_flag(metavar: str, text: str, *names: str, **more: Any) -> Any:
    """Return a flag with a path on disk."""
    return flag(metavar, text, *names, callback=on_disk, **more)


IndexPath = Annotated[Path, path_flag("PATH", "Folder of the index.", "--index", envvar="POLYVOC_INDEX")]
SEVERAL = f"Folder of the index; repeatable: several are searched as one; {DEFAULT_TEXT}"
IndexPaths = Annotated[list[Path] | None, flag("PATH", SEVERAL, "--index")]
# Paths or addresses, kept as they are typed: `Path` would drop a slash of s3://bucket.
Folders = Annotated[
    list[str] | None,
    typer.Argument(metavar="FOLDER", help="Folders of photographs, single files, or addresses such as s3://bucket/folder."),
]
FEATURES = "Read features instead of photographs: a COLMAP database, or an HDF5 file of hloc."
FeaturesFile = Annotated[Path | None, path_flag("FILE", FEATURES, "--features", panel=EXTERNAL)]
KIND = "Kind of the features, such as superpoint, if the file does not name it."
KindName = Annotated[str | None, flag("NAME", KIND, "--feature-kind", panel=EXTERNAL)]
Binary = Annotated[bool, switch("--binary", "Descriptors of the HDF5 file are packed bits, as those of ORB.", EXTERNAL)]
IMAGES = "Folder of the photographs that the names in the file are relative to."
Images = Annotated[str | None, flag("FOLDER", IMAGES, "--images", panel=EXTERNAL)]
Json = Annotated[bool, switch("--json", "Print JSON.")]
Shipped = Annotated[int | None, flag("NUMBER", "Number of the shipped vocabularies to use, at most 3.", "--vocabularies")]
Own = Annotated[list[Path] | None, flag("FOLDER", "Use a vocabulary of your own; repeatable, up to 9.", "--vocabulary")]
Ray = Annotated[str | None, flag("ADDRESS", "Use a Ray cluster: its address, auto, or local.", "--ray", panel=CLUSTER)]


def only_one_source(folders: Collection[str] | None, features: Path | None, others: Mapping[str, object],
                    required: bool = True) -> None:  # fmt: skip
    """Raise OptionError if both folders and a file of features are given, or neither, or flags of the other source."""
    if features is None and not folders and required:
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
    options = [option for option in options_of(record) if option.name not in without]
    options.sort(key=lambda option: (_panel(option) is not None) + (_panel(option) == RESEARCH))  # everyday flags first

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            values = {option: given.pop(option.name) for option in options}
            chosen = {option.name: _value(option, value) for option, value in values.items() if value is not None}
            command(**given, **{receiver: chosen})

        signature = inspect.signature(command, eval_str=True)
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            flags = [_parameter(option, defaults) for option in options] if parameter.name == receiver else [parameter]
            parameters += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in flags]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return run

    return decorate


def flag_name(field: str) -> str:
    """Return the flag of a field."""
    return "--" + field.replace("_", "-")


def parse_value(record: type[Any], name: str, value: str) -> Any:
    """Return what was typed for a field of a record as the type of the field."""
    return next(_value(option, value) for option in options_of(record) if option.name == name)


def _parameter(option: Option, defaults: bool) -> inspect.Parameter:
    repeatable = _is_repeatable(option)
    shown = defaults and not option.optional and not repeatable and option.kind is not bool
    choices = [f"One of {', '.join(option.choices)}."] if option.choices else []
    made = typer.Option(
        flag_name(option.name),
        help=" ".join([option.help, *choices, *([f"Default: {option.default}."] if shown else [])]),
        metavar=_metavar(option),
        show_default=False,
        autocompletion=(lambda: list(option.choices)) if option.choices else None,
        rich_help_panel=_panel(option),
    )
    typed = list[str] if repeatable else str if option.choices or option.optional else option.kind
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.name, keyword, default=None, annotation=Annotated[typed | None, made])


def _panel(option: Option) -> str | None:
    return PANELS.get(option.stage, option.stage)


def _metavar(option: Option) -> str:
    if option.metavar or option.kind is bool:
        return option.metavar
    if option.choices:
        return "NAME"
    if get_origin(option.kind) is tuple:
        return "A B"
    value = "FILE" if LikelihoodTable in get_args(option.kind) else "NUMBER"
    return f"{value}|{NONE}" if option.optional else value


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
    (kind,) = (part for part in get_args(option.kind) if part is not NoneType)
    if kind is LikelihoodTable:
        from polyvoc.scoring.rules import load_table

        return load_table(Path(value))
    try:
        return kind(value)
    except ValueError:
        raise OptionError(f"{option.name}={value!r} should be a number or {NONE}") from None
