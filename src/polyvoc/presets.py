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


def preset(name: str, bits: int = 128) -> SearchOptions:
    """Give the options of a preset for signatures of a length.

    There are tables of evidence for 64 and 128 bits. They were fitted on SIFT, and serve other kinds of features, too: what a
    match says depends on lists and Hamming distances, whatever the signatures were made of. With ORB `fast` has mAP 76.6 and
    N-S 3.758 by the table of SIFT, 77.1 and 3.734 by one that ORB of the other set learnt from itself, 72.7 and 3.452 without a
    table, by `posterior` with signatures (docs/features.md). `polyvoc calibrate --save` gives an index its own.

    Signatures of other lengths are weighed as Hamming Embedding does, and without any the complete Bayes rule stands in.
    """
    if name not in get_args(Preset):
        raise OptionError(f"preset={name!r} should be one of {', '.join(get_args(Preset))}")
    chosen = {"fast": FAST, "default": DEFAULT, "best": BEST}[name]
    if bits in (64, 128):
        return chosen
    if bits == 0:
        return replace(chosen, merge="posterior", burstiness="none")
    return replace(chosen, merge="b1", hamming=3 * bits // 8, sigma=bits / 4)
