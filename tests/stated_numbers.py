"""Numbers on the pages that look like measurements and that no script has written there."""

from __future__ import annotations

import re

UNITS = (
    r"%|mAP|ns|ms|s|(?:micro|milli)?seconds?|minutes?|hours?|bytes|[KMG]B|times|(?:(?:photographs|requests)\s)?per\ssecond|nats"
)
NUMBER = re.compile(rf"(?<![\w.,])[-+]?(?:\d[\d,]*(?:\.\d+)?\s?(?:{UNITS})(?![\w-])|\d+\.\d+(?![\w.]))")
WRITTEN = re.compile(r"<!-- (?:table|report): .*?<!-- end -->", re.S)
NOT_PROSE = re.compile(
    r"```.*?```|^    [^\n]*$|`[^`]*`|\]\([^)]*\)|^## Definitions.*?(?=^## )", re.S | re.M
)  # code, addresses, formulas


def stated(text: str) -> list[str]:
    """Return the numbers with a unit or a decimal point in what was written by hand, prose and tables, in their order."""
    return [" ".join(found.split()) for found in NUMBER.findall(NOT_PROSE.sub(" ", WRITTEN.sub(" ", text)))]
