"""Cells and plotted series of a report from the values of questions, with intervals and the paper's figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from polyvoc.experiments.evaluate import Values, gain, mean_of
from polyvoc.experiments.measures import Interval
from polyvoc.experiments.paper.claims import Claim
from polyvoc.experiments.paper.setup import Setup, mean_values
from polyvoc.experiments.report.figures import Series
from polyvoc.experiments.report.report import TableCell
from polyvoc.experiments.workbench import QuantisedDataset
from polyvoc.options import SearchOptions

Cells = list[str | TableCell]  # a row of a table: its name first
Points = Mapping[str, Sequence[tuple[float, Values]]]  # of each rule: x, and the values of all questions there
TITLES = {"roxford": "ROxford", "rparis": "RParis"}
TITLES |= {name: name.title() for name in ("holidays", "ukbench", "oxford", "paris", "groups")}
COLOURS = {"b0": 3, "b1": 0, "b2": 4, "bayes": 1, "posterior": 2}  # the same in every plot


def dataset_title(name: str) -> str:
    """Return the name of a dataset as it is published."""
    return TITLES.get(name, name)


def measure_title(setup: Setup, name: str) -> str:
    """Return the name of a dataset with its measure."""
    return f"{dataset_title(name)}, {setup.datasets[name].measure}"


@dataclass(frozen=True)
class SeedRuns:
    """The values of rules on one dataset, one run for each set of seeds."""

    setup: Setup
    name: str  # of the dataset
    runs: Sequence[Mapping[str, Values]]

    @classmethod
    def of(cls, setup: Setup, name: str, count: int, named: Mapping[str, SearchOptions], size: int | None = None) -> SeedRuns:
        """Measure rules with `count` vocabularies of a size, with disjoint sets of seeds."""
        return cls.over(setup, name, count, lambda bench: setup.outcomes(bench, named), size)

    @classmethod
    def over(
        cls,
        setup: Setup,
        name: str,
        count: int,
        measure: Callable[[QuantisedDataset], Mapping[str, Values]],
        size: int | None = None,
    ) -> SeedRuns:
        """Measure anything with `count` vocabularies of a size, with disjoint sets of seeds."""
        return cls(setup, name, [measure(setup.equal(name, seeds, size)) for seeds in setup.repeats(count, size)])

    def mean(self, rule: str) -> Values:
        """Return the values of a rule, averaged over the sets of seeds."""
        return mean_values([run[rule] for run in self.runs])

    def cell(self, rule: str, paper: float | None = None) -> TableCell:
        """Return the mean of a rule with the paper's value."""
        return cell(self.setup, self.name, self.mean(rule), paper)

    def gain(self, rule: str, base: str, paper: float | None = None) -> TableCell:
        """Return the difference of two rules, with the range over the sets of seeds."""
        note = ""
        if len(self.runs) > 1:
            means = [gain(self.setup.datasets[self.name], run[rule], run[base]).mean for run in self.runs]
            low, high = (self.setup.measure(self.name).scale * bound for bound in (min(means), max(means)))
            digits = _digits(self.setup, self.name)
            note = f"seeds {low:+.{digits}f} to {high:+.{digits}f}"
        return gain_cell(self.setup, self.name, self.mean(rule), self.mean(base), paper, note)


def cell(setup: Setup, name: str, values: Values, paper: float | None = None, note: str = "") -> TableCell:
    """Return the mean of a measure with the paper's value."""
    return _cell(setup, name, mean_of(setup.datasets[name], values), paper, note)


def gain_cell(setup: Setup, name: str, values: Values, base: Values, paper: float | None = None, note: str = "") -> TableCell:
    """Return the mean difference of two rankings with the paper's value."""
    return _cell(setup, name, gain(setup.datasets[name], values, base), paper, note, difference=True)


def _cell(
    setup: Setup, name: str, interval: Interval, paper: float | None, note: str = "", difference: bool = False
) -> TableCell:
    scale = setup.measure(name).scale
    low, high = interval.low * scale, interval.high * scale
    return TableCell(interval.mean * scale, _digits(setup, name), low, high, paper, difference, note)


def _digits(setup: Setup, name: str) -> int:
    return max(setup.measure(name).digits, 2)


def gain_claim(setup: Setup, name: str, found: TableCell, what: str, sign: int = 1) -> Claim:
    """Return the claim that a difference on a dataset has a sign."""
    return Claim(f"{dataset_title(name)}, {what}", found, sign)


def series_of(setup: Setup, name: str, rule: str, points: Sequence[tuple[float, Values]]) -> Series:
    """Return the plotted line of a rule; points: x, and the values of all questions there."""
    measure = setup.measure(name)
    intervals = [mean_of(setup.datasets[name], values) for _, values in points]
    y, low, high = ([getattr(interval, part) * measure.scale for interval in intervals] for part in ("mean", "low", "high"))
    return Series(rule, [x for x, _ in points], y, low, high, color=COLOURS.get(re.split("[ (]", rule)[0]))


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
