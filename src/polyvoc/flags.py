"""Command-line flags made from the fields of an options record, so that the two cannot drift apart.

A flag that is not given is not in the result: whoever asked decides what stands in its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import Field, fields
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from polyvoc.errors import OptionError

RECEIVER = "chosen"  # the parameter of a command that gets the flags: {name of the field: value}
NONE = "none"  # what is typed for None

SEARCH_TEXTS = {
    "top": "How many hits.",
    "merge": "Rule that merges the vocabularies.",
    "idf": "Weight of a word: ln(N / occurrences), ln(N / images), or 1; squared in the score.",
    "norm": "What an image's votes are divided by.",
    "line": "(a, b) of the probability a r + b that a true match is in the intersection.",
    "c": "Constant of the prior, ln(N c).",
    "hamming": "Largest Hamming distance that still votes; 'none' ignores signatures.",
    "sigma": "A vote at Hamming distance h counts exp(-h^2 / sigma^2).",
    "burstiness": "Damp repeated structure within an image, across images, or both.",
    "burstiness_on": "Which matches are damped; 'auto': the difference set for bayes, else all.",
    "sets": "Are the sets of the rules sets of features or of images?",
    "assignments": "Words per query feature and vocabulary.",
}
FEATURE_TEXTS = {
    "long_side": "Larger photographs are reduced to this many pixels on their long side.",
    "max_features": "Strongest features kept of each photograph.",
}
TRAIN_TEXTS = {
    "size": "Words of the vocabulary.",
    "seed": "Of the random choices; give each of several vocabularies its own.",
    "rounds": "Rounds of k-means, at most.",
    "bits": "Bits of a Hamming signature, at most 64; 0 for none.",
    "max_descriptors": "Descriptors drawn from the photographs.",
}


def from_record(
    record: type[Any], texts: Mapping[str, str], defaults: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace the parameter `chosen` of a command by one flag per field of a record; `texts` helps with each.

    `defaults` shows the record's own defaults in the help: leave it out where something else stands in.
    """
    kinds = get_type_hints(record)
    flags = [_parameter(field, kinds[field.name], texts[field.name], defaults) for field in fields(record)]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def run(**given: Any) -> None:
            values = {field.name: given.pop(field.name) for field in fields(record)}
            chosen = {name: _value(name, kinds[name], v) for name, v in values.items() if v is not None}
            command(**given, **{RECEIVER: chosen})

        signature = inspect.signature(command, eval_str=True)
        own = [p for p in signature.parameters.values() if p.name != RECEIVER]
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


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(get_args(kind))
    if get_origin(kind) is tuple:
        return "A B"
    return f"NUMBER|{NONE}" if _may_be_none(kind) else "NUMBER"


def _may_be_none(kind: Any) -> bool:
    return NoneType in get_args(kind)


def _value(name: str, kind: Any, value: Any) -> Any:
    """Give what was typed as the field wants it; the record itself refuses values that make no sense."""
    if not _may_be_none(kind):
        return value
    if value == NONE:
        return None
    (number,) = (part for part in get_args(kind) if part is not NoneType)
    try:
        return number(value)
    except ValueError:
        raise OptionError(f"{name}={value!r} should be a number or {NONE}") from None
