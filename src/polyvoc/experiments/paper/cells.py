"""Cells and plotted series of a report from the values of questions, with intervals and the paper's figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from polyvoc.experiments.evaluate import Values, gain, mean_of
from polyvoc.experiments.measures import Interval
from polyvoc.experiments.paper.setup import Setup, mean_values
from polyvoc.experiments.report.figures import Series
from polyvoc.experiments.report.report import TableCell
from polyvoc.options import SearchOptions

Cells = list[str | TableCell]  # a row of a table: its name first
TITLES = {"roxford": "ROxford", "rparis": "RParis"}
TITLES |= {name: name.title() for name in ("holidays", "ukbench", "oxford", "paris", "groups")}
COLOURS = {"b0": 3, "b1": 0, "b2": 4, "bayes": 1, "posterior": 2}  # the same in every plot


def dataset_title(name: str) -> str:
    """Return the name of a dataset as it is published."""
    return TITLES.get(name, name)


def measure_title(setup: Setup, name: str) -> str:
    """Return the name of a dataset with its measure."""
    return f"{dataset_title(name)}, {setup.datasets[name].measure}"


def cell(setup: Setup, name: str, values: Values, paper: float | None = None, note: str = "") -> TableCell:
    """Return the mean of a measure with the paper's value."""
    return _cell(setup, name, mean_of(setup.datasets[name], values), paper, note)


def gain_cell(setup: Setup, name: str, values: Values, base: Values, paper: float | None = None) -> TableCell:
    """Return the mean difference of two rankings with the paper's value."""
    return _cell(setup, name, gain(setup.datasets[name], values, base), paper, difference=True)


def _cell(
    setup: Setup, name: str, interval: Interval, paper: float | None, note: str = "", difference: bool = False
) -> TableCell:
    measure = setup.measure(name)
    low, high = interval.low * measure.scale, interval.high * measure.scale
    digits = max(measure.digits, 2)
    return TableCell(interval.mean * measure.scale, digits, low, high, paper=paper, difference=difference, note=note)


def above_zero(cells: Iterable[str | TableCell]) -> list[bool]:
    """Return for each difference whether its interval is above zero."""
    return [isinstance(one, TableCell) and one.low is not None and one.low > 0 for one in cells]


def difference_text(difference: TableCell) -> str:
    """Return a difference as text, with its interval if it has one."""
    numbers = (difference.value, difference.low, difference.high)
    value, low, high = ("?" if number is None else f"{number:+.{difference.digits}f}" for number in numbers)
    return value if "?" in (low, high) else f"{value} ({low} to {high})"


def verdict_on(claims: Sequence[bool]) -> str:
    """Return the verdict on claims of the paper, given whether each holds here; "" for no claims."""
    if not claims:
        return ""
    return "reproduces" if all(claims) else "partly" if any(claims) else "does not"


def series_of(setup: Setup, name: str, rule: str, points: Sequence[tuple[float, Values]]) -> Series:
    """Return the plotted line of a rule; points: x, and the values of all questions there."""
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
    """Return the values of rules with `count` vocabularies, averaged over disjoint sets of seeds."""
    sets = setup.repeats(count) if size in (None, setup.plan.size) else [tuple(range(count))]
    runs = [setup.outcomes(setup.equal(name, seeds, size), named) for seeds in sets]
    return {rule: mean_values([run[rule] for run in runs]) for rule in named}


def size_text(size: int) -> str:
    """Return a number of words as the paper writes it: 20K."""
    return f"{size // 1000}K" if size % 1000 == 0 else f"{size / 1000:g}K"


def vocabularies_text(setup: Setup, sizes: Sequence[int]) -> str:
    """Return the name of vocabularies by their trained sizes: "2x20K" or "10K + 20K"."""
    words = [setup.plan.words(size) for size in sizes]
    return f"{len(words)}x{size_text(words[0])}" if len(set(words)) == 1 else " + ".join(map(size_text, words))


def equation(pair: Sequence[float]) -> str:
    """Return the line a r + b as text."""
    return f"{pair[0]:.3f} r + {pair[1]:.3f}"
