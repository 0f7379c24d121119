"""Test of a likelihood table on photographs that it was not fitted on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.experiments.fit.likelihood import HALF, Tally, log_ratio, together
from polyvoc.experiments.measures import draw_groups, quantile_bounds
from polyvoc.experiments.report.figures import Figure, Panel, Series, finite
from polyvoc.scoring.rules import group_names
from polyvoc.types import Floats64, LikelihoodTable


@dataclass(frozen=True, eq=False)
class Curve:
    """Predicted and observed log-likelihood ratios of one group of sets, the strongest first."""

    name: str
    predicted: Floats64  # [points] nats
    observed: Floats64  # [points]
    low: Floats64  # [points] interval of the observed ones
    high: Floats64
    related: Floats64  # [points] matches of related images


@dataclass(frozen=True, eq=False)
class Reliability:
    """Predictions of a table compared with the matches of another set."""

    curves: tuple[Curve, ...]

    @property
    def error(self) -> float:
        """Return the root of the mean squared difference in nats, over the matches of related images."""
        weight = np.concatenate([curve.related for curve in self.curves])
        apart = np.concatenate([curve.predicted - curve.observed for curve in self.curves])
        return float(np.sqrt((weight * apart**2).sum() / weight.sum()))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        names = ("predicted", "observed", "low", "high", "related")
        curves = {curve.name: {name: [*map(finite, getattr(curve, name))] for name in names} for curve in self.curves}
        return {"error": self.error, "curves": curves}


def reliability(
    table: LikelihoodTable, tallies: Sequence[Tally], width: float = 0.5, least: int = 20, seed: int = 0
) -> Reliability:
    """Compare a table with tallies of another set (`tally_groups`), one for each independent group of questions.

    Points are pools of matches `width` nats wide, wider where a pool would hold fewer than `least` of either kind. Intervals of
    95 % come from a bootstrap of the groups: matches of one photograph are not independent.
    """
    total = together(tallies)
    if (table.n_vocabularies, table.bits, table.edges) != (total.n_vocabularies, total.bits, total.edges):
        raise OptionError(
            f"a table for {table.n_vocabularies} vocabularies with {table.bits} bits cannot be compared with matches of "
            f"{total.n_vocabularies} with {total.bits}; count them with the same vocabularies and the same bins of the ratio"
        )
    samples = 1000 if len(tallies) > 1 else 0
    drawn = np.concatenate([np.ones((1, len(tallies))), draw_groups(len(tallies), seed, samples)])  # first all of them once
    pairs = np.stack([one.pairs for one in tallies])
    curves = []
    for group, name in enumerate(group_names(table)):
        pools = _Pools.of(table, group, tallies, width, least)
        if len(pools.predicted):
            observed = pools.observed(drawn, pairs)
            low, high = quantile_bounds(observed[1:])
            curves.append(Curve(name, pools.predicted, observed[0], low, high, pools.related.sum(axis=0)))
    if not curves:
        raise OptionError(
            f"{int(total.counts[1].sum())} matches of related images are too few to test a table; give more photographs"
        )
    return Reliability(tuple(curves))


@dataclass(frozen=True, eq=False)
class _Pools:
    """Matches of one group of sets, pooled by their predicted ratio, the strongest first."""

    predicted: Floats64  # [points]
    related: Floats64  # [tallies, points] matches
    unrelated: Floats64  # [tallies, points] matches, times the ratio of a chance match of the set

    @classmethod
    def of(cls, table: LikelihoodTable, group: int, tallies: Sequence[Tally], width: float, least: int) -> _Pools:
        members = [mask for mask in range(1, len(table.groups)) if table.groups[mask] == group]
        bins = len(table.edges) + 1
        llr = np.array(table.rows[group * bins : (group + 1) * bins])  # [bins, bits + 1]
        counts = np.stack([one.counts[:, members].sum(axis=1) for one in tallies])  # [tallies, 2, bins, bits + 1]
        pairs = np.sum([one.pairs for one in tallies], axis=0)
        chance = np.array([log_ratio(counts.sum(axis=0)[:, number], pairs)[-1] for number in range(bins)])
        used = llr > 0
        related, plain = counts[:, 1][:, used].astype(np.float64), counts[:, 0][:, used]
        unrelated = plain * np.broadcast_to(np.exp(chance)[:, None], llr.shape)[used]
        pools = _pool_numbers(llr[used], related.sum(axis=0), plain.sum(axis=0), width, least)
        cells = pools[:, None] == np.arange(pools.max(initial=-1) + 1)  # [cells, points]
        # Were the table right, there would be exp(-llr) unrelated matches for every related one.
        expected = (related.sum(axis=0) * np.exp(-llr[used])) @ cells
        return cls(np.log((related.sum(axis=0) @ cells) / expected), related @ cells, unrelated @ cells)

    def observed(self, drawn: Floats64, pairs: Floats64) -> Floats64:
        """Return the log-likelihood ratios of the pools in each draw of tallies [draws, points]; pairs: [tallies, 2]."""
        scale = np.log((drawn @ pairs)[:, 0] / (drawn @ pairs)[:, 1])[:, None]
        return np.asarray(np.log(drawn @ self.related + HALF) - np.log(drawn @ self.unrelated + HALF) + scale)


def _pool_numbers(llr: Floats64, related: Floats64, unrelated: Floats64, width: float, least: int) -> npt.NDArray[np.int64]:
    """Return the pool of each cell, the strongest 0: cells within `width` together, more until there are enough matches."""
    pools, number = np.full(len(llr), -1), 0
    bands = np.floor(llr / width).astype(np.int64)
    matches = np.zeros(2)
    for band in sorted(set(bands.tolist()), reverse=True):
        if matches.min() >= least:
            number, matches = number + 1, np.zeros(2)
        cells = bands == band
        pools[cells] = number
        matches += related[cells].sum(), unrelated[cells].sum()
    if matches.min() < least:  # the weakest are too few: they join the pool before, if there is one
        pools[pools == number] = number - 1
    return pools


def curve_figure(results: Mapping[str, Reliability], title: str = "Log-likelihood ratios: predicted and observed") -> Figure:
    """Return a plot of the observed ratios over the predicted ones, one panel per test."""
    panels = []
    for name, result in results.items():
        top = max(float(curve.predicted.max()) for curve in result.curves)
        points = [
            Series(curve.name, curve.predicted, curve.observed, curve.low, curve.high, style="points", color=number)
            for number, curve in enumerate(result.curves)
        ]
        right = Series("as predicted", [0, top], [0, top], color=len(points))
        panels.append(Panel("predicted, nats", "observed, nats", [*points, right], f"{name}: {result.error:.2f} nats apart"))
    return Figure(title, panels, "Pools of matches by their predicted ratio, with 95 % bootstrap intervals.")
