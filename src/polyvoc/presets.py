"""Ways to search that measurements recommend: fast, the default, and best. `docs/findings.md` has the table they come from."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

from polyvoc.errors import OptionError
from polyvoc.records import SearchOptions

Preset = Literal["fast", "default", "best"]

FAST = SearchOptions(merge="likelihood", burstiness="best")  # scores alone
DEFAULT = replace(FAST, verify=100)
BEST = replace(FAST, verify=200, expansion="average")


def preset(name: str, signed: bool = True) -> SearchOptions:
    """Give the options of a preset; without signatures there is no likelihood, and the complete Bayes rule stands in."""
    if name not in get_args(Preset):
        raise OptionError(f"preset={name!r} should be one of {', '.join(get_args(Preset))}")
    chosen = {"fast": FAST, "default": DEFAULT, "best": BEST}[name]
    return chosen if signed else replace(chosen, merge="posterior", burstiness="none")
