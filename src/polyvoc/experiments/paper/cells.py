"""From the values of questions to what a report shows: cells with intervals beside the paper's figures, and plotted lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from polyvoc.experiments.evaluate import Values, gain, mean_of
from polyvoc.experiments.measures import Interval
from polyvoc.experiments.paper.setup import Setup, mean_values
from polyvoc.experiments.report.figures import Series
from polyvoc.experiments.report.report import Cell
from polyvoc.options import SearchOptions

Cells = list[str | Cell]  # a row of a table: its name first
TITLES = {
    "holidays": "Holidays",
    "ukbench": "Ukbench",
    "oxford": "Oxford",
    "paris": "Paris",
    "roxford": "ROxford",
    "rparis": "RParis",
    "groups": "Groups",
}
COLOURS = {"b0": 3, "b1": 0, "b2": 4, "bayes": 1, "posterior": 2}  # the same in every plot


def called(name: str) -> str:
    """Return the name of a dataset as people write it."""
    return TITLES.get(name, name)


def title_of(setup: Setup, name: str) -> str:
    """Name a dataset and its measure."""
    return f"{called(name)}, {setup.datasets[name].measure}"


def cell(setup: Setup, name: str, values: Values, paper: float | None = None, note: str = "") -> Cell:
    """Return the mean of a measure beside the paper's."""
    return _cell(setup, name, mean_of(setup.datasets[name], values), paper, note)


def gain_cell(setup: Setup, name: str, values: Values, base: Values, paper: float | None = None) -> Cell:
    """Return the mean difference of two rankings beside the paper's."""
    return _cell(setup, name, gain(setup.datasets[name], values, base), paper, difference=True)


def _cell(setup: Setup, name: str, interval: Interval, paper: float | None, note: str = "", difference: bool = False) -> Cell:
    measure = setup.measure(name)
    low, high = interval.low * measure.scale, interval.high * measure.scale
    digits = max(measure.digits, 2)
    return Cell(interval.mean * measure.scale, digits, low, high, paper=paper, difference=difference, note=note)


def above_zero(cells: Iterable[str | Cell]) -> list[bool]:
    """Return for each difference whether its whole interval lies above zero."""
    return [isinstance(one, Cell) and one.low is not None and one.low > 0 for one in cells]


def signed(difference: Cell) -> str:
    """Write a difference with its interval, if it has one."""
    numbers = (difference.value, difference.low, difference.high)
    value, low, high = ("?" if number is None else f"{number:+.{difference.digits}f}" for number in numbers)
    return value if "?" in (low, high) else f"{value} ({low} to {high})"


def verdict_of(claims: Sequence[bool]) -> str:
    """Return the verdict on what the paper claims, told whether each claim holds here; none if there is nothing to tell."""
    if not claims:
        return ""
    return "reproduces" if all(claims) else "partly" if any(claims) else "does not"


def line_text(setup: Setup, name: str, rule: str, points: Sequence[tuple[float, Values]]) -> Series:
    """Return a plotted line of a rule: x, and the values of all questions there."""
    measure = setup.measure(name)
    intervals = [mean_of(setup.datasets[name], values) for _, values in points]
    return Series(
        rule,
        [x for x, _ in points],
        [interval.mean * measure.scale for interval in intervals],
        [interval.low * measure.scale for interval in intervals],
        [interval.high * measure.scale for interval in intervals],
        color=COLOURS.get(rule.split(" ", maxsplit=1)[0]),
    )


def repeated(
    setup: Setup, name: str, count: int, named: Mapping[str, SearchOptions], size: int | None = None
) -> dict[str, Values]:
    """Judge rules with `count` vocabularies, averaged over disjoint sets of seeds."""
    sets = setup.repeats(count) if size in (None, setup.plan.size) else [tuple(range(count))]
    runs = [setup.outcomes(setup.equal(name, seeds, size), named) for seeds in sets]
    return {rule: mean_values([run[rule] for run in runs]) for rule in named}


def short(size: int) -> str:
    """Write a number of words as the paper does: 20K."""
    return f"{size // 1000}K" if size % 1000 == 0 else f"{size / 1000:g}K"


def members(setup: Setup, sizes: Sequence[int]) -> str:
    """Name vocabularies by their sizes, as trained: "2x20K" or "10K + 20K"."""
    words = [setup.plan.words(size) for size in sizes]
    return f"{len(words)}x{short(words[0])}" if len(set(words)) == 1 else " + ".join(map(short, words))


def equation(pair: Sequence[float]) -> str:
    """Write the line a r + b."""
    return f"{pair[0]:.3f} r + {pair[1]:.3f}"
