"""Fit of term 2 of the Bayes model: p(in the intersection of the lists | true match) as a line over their ratio.

There is one line for sets of features and one for sets of images; `PowerCurve` describes how far the shares are from a line.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.experiments.fit.true_matches import Observations, Pairs, observe, observe_pairs
from polyvoc.experiments.measures import Interval, draw_groups, quantile_bounds
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.workbench import QuantisedDataset, no_progress
from polyvoc.index.catalogue import LINES
from polyvoc.index.writer import IndexWriter
from polyvoc.options import Line, ScoringOptions, SetKind
from polyvoc.scoring.rules import MARGIN, BayesModel
from polyvoc.search.index import Index
from polyvoc.types import Floats64, Progress

VERSION = 2  # raise it when the observations or the fit change
POWERS = (-4.0, 5.0)  # binary logarithms of the least and the greatest power of a curve


@dataclass(frozen=True, eq=False)
class Bins:
    """True matches pooled by the ratio of their query features; only bins with enough of them."""

    ratio: Floats64  # [bins] mean over true matches
    share: Floats64  # [bins] of them in the intersection
    weight: Floats64  # [bins] true matches
    low: Floats64  # [bins] interval of the share
    high: Floats64


@dataclass(frozen=True)
class PowerCurve:
    """Term 2 as 1 - (1 - b) (1 - r)^power: concave if the power is above 1, the line with a + b = 1 if it is 1."""

    b: float
    power: float

    def term2(self, ratio: Floats64) -> Floats64:
        """Return p(in the intersection | true match), cut as the rules cut it."""
        return np.clip(1 - (1 - self.b) * (1 - ratio) ** self.power, MARGIN, 1 - MARGIN)


@dataclass(frozen=True, eq=False)
class Fit:
    """A line through the bins: free, and tied to a + b = 1 (two equal lists share every match); and a curve."""

    free: Line
    tied: Line
    raw: Line  # through the query features themselves, each with the same weight
    curve: PowerCurve
    bins: Bins
    a: Interval  # of the free line
    b: Interval
    tied_b: Interval
    power: Interval  # of the curve
    observations: Observations

    @property
    def lines(self) -> dict[str, Line]:
        """Return the lines by name."""
        return {"free": self.free, "tied": self.tied, "raw": self.raw}

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        observed = self.observations
        known = {"a": self.a, "b": self.b, "tied_b": self.tied_b, "power": self.power}
        intervals = {name: [_plain(interval.low), _plain(interval.high)] for name, interval in known.items()}
        bins = {name: getattr(self.bins, name).tolist() for name in ("ratio", "share", "weight", "low", "high")}
        return {
            **{name: list(line) for name, line in self.lines.items()},
            "curve": asdict(self.curve),
            "intervals": intervals,
            "queries": observed.questions,
            "pairs": observed.pairs,
            "groups": len(np.unique(observed.group)),
            "features": len(observed.ratio),
            "true_matches": int(observed.true.sum()),
            "share": observed.share,
            "bins": bins | {"low": [*map(_plain, bins["low"])], "high": [*map(_plain, bins["high"])]},
        }


def fit_line(observations: Observations, width: float = 0.025, least: int = 20, seed: int = 0) -> Fit:
    """Fit line and curve by least squares over bins of the ratio, weighted by true matches; bins need `least` of them.

    Intervals of 95 % come from a bootstrap of whole groups: features of one photograph are not independent.
    """
    pooled = _Pool.of(observations, width, least)
    kept = pooled.weight.sum(axis=0) >= least
    if np.count_nonzero(kept) < 2:
        raise OptionError(
            f"{observations.true.sum()} true matches of {observations.pairs} pairs are too few to fit a line: "
            f"{np.count_nonzero(kept)} bins of the ratio hold {least} or more; give more photographs of the same objects"
        )
    ratio, share, weight = (row[0, kept] for row in pooled.sums(np.ones((1, pooled.n_groups))))
    free, tied, curve = (fit(ratio, share, weight) for fit in (_free, _tied, _curve))
    ratios, shares, weights = pooled.sums(draw_groups(pooled.n_groups, seed))
    usable = (np.count_nonzero(weights, axis=1) >= 2) & (pooled.n_groups > 1)
    drawn = [fit(ratios[usable], shares[usable], weights[usable]) for fit in (_free, _tied, _curve)]
    low, high = quantile_bounds(np.where(weights > 0, shares, np.nan)[usable][:, kept])
    raw = _free(observations.ratio, observations.inside / observations.true, np.ones(len(observations.ratio)))
    return Fit(
        free=_line(free),
        tied=_line(tied),
        raw=_line(raw),
        curve=PowerCurve(*_line(curve)),
        bins=Bins(ratio, share, weight, low, high),
        a=_interval(free[0], drawn[0][0]),
        b=_interval(free[1], drawn[0][1]),
        tied_b=_interval(tied[1], drawn[1][1]),
        power=_interval(curve[1], drawn[2][1]),
        observations=observations,
    )


def fit_lines(bench: QuantisedDataset, progress: Progress = no_progress) -> dict[SetKind, Fit]:
    """Fit the line of each kind of sets to a dataset, with the lists of its first two vocabularies."""
    pair = bench.first(2)
    return {kind: fit_line(observe(pair, progress=progress, sets=kind)) for kind in get_args(SetKind)}


def fit_lines_pairs(index: Index, pairs: Pairs) -> dict[SetKind, Fit]:
    """Fit the line of each kind of sets to related images of an index."""
    pairs.require(len(index))
    return {kind: fit_line(observe_pairs(index, pairs, kind)) for kind in get_args(SetKind)}


def save_lines(writer: IndexWriter, lines: Mapping[SetKind, Line], sources: Mapping[SetKind, Mapping[str, Any]]) -> None:
    """Save lines by their kind of sets in an index, for its searches; sources: what each was fitted to."""
    checked = {kind: ScoringOptions(line=line).line for kind, line in lines.items()}  # raises OptionError for what is no line
    writer.save_settings({LINES[kind]: {"a": a, "b": b, "source": dict(sources[kind])} for kind, (a, b) in checked.items()})


@dataclass(frozen=True)
class Prediction:
    """Prediction errors of a line or curve on a set that it was not fitted on, beside the best constant for that set."""

    error: float  # root of the mean squared error over bins, weighted by true matches
    likelihood: float  # mean of ln p over true matches
    constant_error: float
    constant_likelihood: float

    @property
    def gain(self) -> float:
        """Return by how many nats per true match the line is better than the constant."""
        return self.likelihood - self.constant_likelihood

    def as_dict(self) -> dict[str, float]:
        """Return plain values for JSON."""
        return {**asdict(self), "gain": self.gain}


def measure_line(line: Line | PowerCurve, observations: Observations, width: float = 0.025, least: int = 20) -> Prediction:
    """Measure a line or a curve, cut as the rules cut it, on observations of another set."""
    pooled = _Pool.of(observations, width, least)
    ratio, share, weight = (row[0] for row in pooled.sums(np.ones((1, pooled.n_groups))))
    if not weight.any():
        raise OptionError(f"{observations.true.sum()} true matches are too few to test a line; give more photographs")
    values = []
    fitted = line if isinstance(line, PowerCurve) else BayesModel(*line, 0.0)
    for model in (fitted, BayesModel(0.0, observations.share, 0.0)):
        chance = model.term2(observations.ratio)
        outside = observations.true - observations.inside
        total = (observations.inside * np.log(chance) + outside * np.log1p(-chance)).sum()
        error = math.sqrt(float((weight * (model.term2(ratio) - share) ** 2).sum() / weight.sum()))
        values += [error, float(total / observations.true.sum())]
    return Prediction(*values)


def line_figure(
    fits: Mapping[str, Mapping[SetKind, Fit]], heading: str = "Term 2: p(in the intersection | true match)"
) -> Figure:
    """Return Fig. 3: shares by bins with their intervals, both lines and the curve; one panel per dataset and kind of sets."""
    panels = [
        line_panel(f"{name}, {kind} sets", fitted.as_dict()) for name, kinds in fits.items() for kind, fitted in kinds.items()
    ]
    return Figure(heading, panels, "Points: bins of the ratio with 95 % bootstrap intervals. Lines: weighted least squares.")


def line_panel(title: str, fit: Mapping[str, Any]) -> Panel:
    """Return a panel of Fig. 3 from the plain values of a fit."""
    ratio, bins, curve = np.linspace(0, 1, 101), fit["bins"], PowerCurve(**fit["curve"])
    points = Series("measured", bins["ratio"], bins["share"], bins["low"], bins["high"], style="points", color=0)
    lines = [
        Series(f"{label}: {a:.2f} r + {b:.2f}", ratio, np.clip(a * ratio + b, 0, 1), color=color)
        for label, (a, b), color in (("free", fit["free"], 1), ("a + b = 1", fit["tied"], 2))
    ]
    lines.append(Series(f"1 - {1 - curve.b:.2f} (1 - r)^{curve.power:.2f}", ratio, curve.term2(ratio), color=3))
    return Panel("|A ∩ B| / |A ∪ B|", "share of true matches in A ∩ B", [points, *lines], title)


@dataclass(frozen=True, eq=False)
class _Pool:
    """Sums over true matches by group and bin."""

    weight: Floats64  # [groups, bins] true matches
    inside: Floats64  # [groups, bins] of them in the intersection
    ratio: Floats64  # [groups, bins] sum of the ratios
    least: int

    @classmethod
    def of(cls, observed: Observations, width: float, least: int) -> _Pool:
        if not 0 < width <= 0.5 or least < 1:
            raise OptionError(f"width={width!r} should be above 0 and at most 0.5, and least={least!r} at least 1")
        n_bins = math.ceil(1 / width - 1e-9)
        bins = np.minimum((observed.ratio / width).astype(np.int64), n_bins - 1)
        names, group = np.unique(observed.group, return_inverse=True)

        def sums(weights: npt.NDArray[Any]) -> Floats64:
            return np.bincount(group * n_bins + bins, weights, len(names) * n_bins).astype(np.float64).reshape(-1, n_bins)

        return cls(sums(observed.true), sums(observed.inside), sums(observed.ratio * observed.true), least)

    @property
    def n_groups(self) -> int:
        return len(self.weight)

    def sums(self, drawn: Floats64) -> tuple[Floats64, Floats64, Floats64]:
        """Return ratio, share and weight [draws, bins] of groups drawn so often [draws, groups]; 0 where they are few."""
        weight = drawn @ self.weight
        used = weight >= self.least
        divisor = np.where(used, weight, 1.0)
        ratio, share = (np.where(used, drawn @ rows / divisor, 0.0) for rows in (self.ratio, self.inside))
        return ratio, share, np.where(used, weight, 0.0)


def _free(x: Floats64, y: Floats64, weight: Floats64) -> tuple[Floats64, Floats64]:
    """Return a and b of the weighted least squares y = a x + b, along the last axis; level if all x are equal."""
    total = weight.sum(axis=-1)
    mean_x, mean_y = (weight * x).sum(axis=-1) / total, (weight * y).sum(axis=-1) / total
    apart = x - mean_x[..., None]
    spread = (weight * apart**2).sum(axis=-1)
    a = np.divide((weight * apart * y).sum(axis=-1), spread, out=np.zeros_like(spread), where=spread > 0)
    return a, mean_y - a * mean_x


def _tied(x: Floats64, y: Floats64, weight: Floats64) -> tuple[Floats64, Floats64]:
    """Return a and b = 1 - a of the weighted least squares 1 - y = a (1 - x), along the last axis."""
    rest = 1 - x
    a = (weight * rest * (1 - y)).sum(axis=-1) / (weight * rest**2).sum(axis=-1)
    return a, 1 - a


def _curve(x: Floats64, y: Floats64, weight: Floats64) -> tuple[Floats64, Floats64]:
    """Return b and power of the weighted least squares 1 - y = (1 - b) (1 - x)^power, along the last axis.

    Of 33 powers, evenly spaced in their logarithm, the best is taken; then of as many between its neighbours, and so on.
    """
    first, step = np.full((*weight.shape[:-1], 1), POWERS[0]), (POWERS[1] - POWERS[0]) / 32
    for _ in range(4):
        powers = np.clip(first + step * np.arange(33), *POWERS)
        rest, outside, weights = (1 - x)[..., None, :] ** 2 ** powers[..., None], 1 - y[..., None, :], weight[..., None, :]
        scale = (weights * rest * outside).sum(axis=-1) / (weights * rest**2).sum(axis=-1)
        errors = (weights * (outside - scale[..., None] * rest) ** 2).sum(axis=-1)
        best = errors.argmin(axis=-1)[..., None]
        first, step = np.take_along_axis(powers, best, -1) - step, step / 16
    b, power = 1 - np.take_along_axis(scale, best, -1)[..., 0], 2 ** np.take_along_axis(powers, best, -1)[..., 0]
    return b, power


def _line(pair: tuple[Floats64, Floats64]) -> Line:
    return float(pair[0]), float(pair[1])


def _interval(estimate: Floats64, drawn: Floats64) -> Interval:
    """Return an estimate with its interval; infinite for one group alone."""
    if not len(drawn):
        return Interval(float(estimate), -math.inf, math.inf)
    low, high = quantile_bounds(drawn)
    return Interval(float(estimate), float(low), float(high))


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
