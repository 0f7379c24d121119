"""Does a table of evidence keep what it promises on photographs that it was not fitted on?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.experiments.fit.likelihood import HALF, Tally, log_ratio, together
from polyvoc.experiments.report.figures import Figure, Panel, Series, finite
from polyvoc.scoring.rules import group_names
from polyvoc.types import Floats64, LikelihoodTable

SAMPLES, LEVEL = 1000, 0.95  # of the bootstrap


@dataclass(frozen=True, eq=False)
class Curve:
    """What the matches of one group of sets showed, the strongest first."""

    name: str
    predicted: Floats64  # [points] nats
    observed: Floats64  # [points]
    low: Floats64  # [points] interval of what was observed
    high: Floats64
    related: Floats64  # [points] matches of related images


@dataclass(frozen=True, eq=False)
class Reliability:
    """What a table said of matches, and what they showed."""

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
    evidence: LikelihoodTable, tallies: Sequence[Tally], width: float = 0.5, least: int = 20, seed: int = 0
) -> Reliability:
    """Compare a table with tallies of another set (`tally_groups`), one for each independent group of questions.

    Points are pools of matches `width` nats wide, wider where fewer than `least` of either kind would be in them. Intervals of
    95 % come from a bootstrap of the groups: matches of one photograph are not independent.
    """
    whole = together(tallies)
    if (evidence.n_vocabularies, evidence.bits, evidence.edges) != (whole.n_vocabularies, whole.bits, whole.edges):
        raise OptionError(
            f"a table for {evidence.n_vocabularies} vocabularies with {evidence.bits} bits cannot be compared with matches of "
            f"{whole.n_vocabularies} with {whole.bits}; count them with the same vocabularies and the same bins of the ratio"
        )
    drawn = _draws(len(tallies), seed)
    pairs = np.stack([one.pairs for one in tallies])
    curves = []
    for group, name in enumerate(group_names(evidence)):
        pools = _Pools.of(evidence, group, tallies, width, least)
        if len(pools.predicted):
            observed, *samples = pools.observed(drawn, pairs)
            low, high = _bounds(samples, len(observed))
            curves.append(Curve(name, pools.predicted, observed, low, high, pools.related.sum(axis=0)))
    if not curves:
        raise OptionError(
            f"{int(whole.counts[1].sum())} matches of related images are too few to test a table; give more photographs"
        )
    return Reliability(tuple(curves))


@dataclass(frozen=True, eq=False)
class _Pools:
    """Matches of one group of sets, pooled by what is predicted of them, the strongest first."""

    predicted: Floats64  # [points]
    related: Floats64  # [tallies, points] matches
    unrelated: Floats64  # [tallies, points] matches, times what a chance match of the set is worth

    @classmethod
    def of(cls, evidence: LikelihoodTable, group: int, tallies: Sequence[Tally], width: float, least: int) -> _Pools:
        members = [mask for mask in range(1, len(evidence.groups)) if evidence.groups[mask] == group]
        bins = len(evidence.edges) + 1
        said = np.array(evidence.rows[group * bins : (group + 1) * bins])  # [bins, bits + 1]
        counts = np.stack([one.counts[:, members].sum(axis=1) for one in tallies])  # [tallies, 2, bins, bits + 1]
        pairs = np.sum([one.pairs for one in tallies], axis=0)
        chance = np.array([log_ratio(counts.sum(axis=0)[:, place], pairs)[-1] for place in range(bins)])
        used = said > 0
        related, plain = counts[:, 1][:, used].astype(np.float64), counts[:, 0][:, used]
        unrelated = plain * np.broadcast_to(np.exp(chance)[:, None], said.shape)[used]
        place = _places(said[used], related.sum(axis=0), plain.sum(axis=0), width, least)
        cells = place[:, None] == np.arange(place.max(initial=-1) + 1)  # [cells, points]
        # Were the table right, there would be exp(-said) unrelated matches for every related one.
        expected = (related.sum(axis=0) * np.exp(-said[used])) @ cells
        return cls(np.log((related.sum(axis=0) @ cells) / expected), related @ cells, unrelated @ cells)

    def observed(self, drawn: Floats64, pairs: Floats64) -> Floats64:
        """Return the log-likelihood ratios of the pools in each draw of tallies [draws, points]; pairs: [tallies, 2]."""
        scale = np.log((drawn @ pairs)[:, 0] / (drawn @ pairs)[:, 1])[:, None]
        return np.asarray(np.log(drawn @ self.related + HALF) - np.log(drawn @ self.unrelated + HALF) + scale)


def _places(said: Floats64, related: Floats64, unrelated: Floats64, width: float, least: int) -> npt.NDArray[np.int64]:
    """Return the pool of each cell, the strongest 0: cells within `width` together, more until there are enough matches."""
    place, found = np.full(len(said), -1), 0
    bands = np.floor(said / width).astype(np.int64)
    held = np.zeros(2)
    for band in sorted(set(bands.tolist()), reverse=True):
        if held.min() >= least:
            found, held = found + 1, np.zeros(2)
        cells = bands == band
        place[cells] = found
        held += related[cells].sum(), unrelated[cells].sum()
    if held.min() < least:  # the weakest are too few: they join those before, or there is nothing to show
        place[place == found] = found - 1
    return place


def _draws(count: int, seed: int) -> Floats64:
    """Draw as many tallies as there are, with replacement, many times: how often is each drawn? First all of them once."""
    whole = np.ones((1, count))
    if count < 2:
        return whole
    samples = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), SAMPLES)
    return np.concatenate([whole, samples]).astype(np.float64)


def _bounds(samples: Sequence[Floats64], count: int) -> Floats64:
    """Return the quantiles that enclose the level [2, points]; one group alone says nothing about the spread."""
    if not samples:
        return np.full((2, count), np.nan)
    return np.quantile(samples, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)


def curve_figure(judged: Mapping[str, Reliability], title: str = "Evidence: predicted and observed") -> Figure:
    """Draw what was observed over what was predicted, one panel per test."""
    panels = []
    for name, found in judged.items():
        top = max(float(curve.predicted.max()) for curve in found.curves)
        points = [
            Series(curve.name, curve.predicted, curve.observed, curve.low, curve.high, style="points", color=number)
            for number, curve in enumerate(found.curves)
        ]
        right = Series("as predicted", [0, top], [0, top], color=len(points))
        panels.append(Panel("predicted, nats", "observed, nats", [*points, right], f"{name}: {found.error:.2f} nats apart"))
    return Figure(title, panels, "Pools of matches by what the table says of them, with 95 % bootstrap intervals.")
