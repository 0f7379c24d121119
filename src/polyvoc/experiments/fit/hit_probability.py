"""Fit of the probability of a hit: samples of hits, fitted coefficients, and their calibration on other samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.experiments.fit.regression import logistic
from polyvoc.experiments.measures import Truth, draw_groups, quantile_bounds
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.workbench import QuantisedDataset, no_progress
from polyvoc.index.segment import MAX_IMAGES
from polyvoc.options import SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import Candidate
from polyvoc.search.pipeline import search
from polyvoc.search.probability import USUAL, HitProbability
from polyvoc.types import Floats64, Progress

Flags = npt.NDArray[np.bool_]
BINS = 10  # of a reliability diagram
THRESHOLDS = (0.5, 0.9, 0.99)  # of the probability
MARGIN = 1e-6  # of probabilities to 0 and 1: one wrong hit should not decide a log loss
EQUAL = HitProbability((0.0, 0.0), (0.0, 0.0, 0.0))  # all hits are as probable: their order is that of their scores
RIDGE = 1e-3  # keeps coefficients finite where an input separates the hits


@dataclass(frozen=True, eq=False)
class Samples:
    """Hits with the inputs of their probability, and whether they are relevant."""

    noise_rank: Floats64  # [n] by words
    weight: Floats64  # [n] nats of inliers; NaN: not verified
    right: Flags  # [n]
    rank: npt.NDArray[np.int64]  # [n] among the hits, from 0
    answerable: Flags  # [n] whether a relevant image was in the collection
    search: npt.NDArray[np.int64]  # [n] number of the search
    group: npt.NDArray[np.int64]  # [n] questions of one group are not independent of each other

    def __len__(self) -> int:
        """Return the number of hits."""
        return len(self.right)

    def chosen(self, rows: npt.NDArray[Any]) -> Self:
        """Return some of the hits."""
        return type(self)(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})

    @property
    def by_words(self) -> Self:
        """Return the hits that were not verified."""
        return self.chosen(np.isnan(self.weight))

    @property
    def verified(self) -> Self:
        """Return the hits that were verified."""
        return self.chosen(~np.isnan(self.weight))

    @property
    def first(self) -> Self:
        """Return the best hit of every search."""
        return self.chosen(self.rank == 0)

    @classmethod
    def joined(cls, several: Sequence[Samples]) -> Self:
        """Return the hits of several samples; groups of the same number are the same."""
        shifts = np.cumsum([0, *(int(one.search.max(initial=-1)) + 1 for one in several)])
        columns = {column.name: np.concatenate([getattr(one, column.name) for one in several]) for column in fields(cls)}
        columns["search"] = np.concatenate([one.search + shift for one, shift in zip(several, shifts, strict=False)])
        return cls(**columns)


def collect(
    bench: QuantisedDataset,
    options: SearchOptions,
    progress: Progress = no_progress,
    engine: Engine | None = None,
    model: HitProbability = EQUAL,
) -> Samples:
    """Return all hits of every question of a dataset, with and without its relevant images in the collection.

    If the options verify, the hits by words are included as well as the verified ones. `engine`: that of the dataset, if built.
    `model` orders the hits, and decides which of them expand a query; by default the order is by score, and none does.
    """
    rows: list[tuple[Any, ...]] = []
    engine = engine or bench.engine
    names = list(dict.fromkeys(question.group or question.name for question in bench.dataset.questions))
    truths = next(iter(bench.dataset.truths.values()))
    for number, (question, truth) in enumerate(zip(bench.dataset.questions, truths, strict=True)):
        own = {*truth.junk, *([] if question.image is None else [question.image])}
        for answerable in (True, False):
            reduced = without(engine, sorted(own if answerable else own | truth.relevant))
            search = 2 * number + (not answerable)
            facts = answerable, search, names.index(question.group or question.name)
            rows += [(*row, *facts) for row in _hits(bench, reduced, number, options, truth, model)]
        progress(f"hits: {bench.dataset.name}", number + 1, len(truths))
    columns = zip(*rows, strict=True) if rows else [()] * len(fields(Samples))
    kinds = (np.float64, np.float64, np.bool_, np.int64, np.bool_, np.int64, np.int64)
    return Samples(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def _hits(
    bench: QuantisedDataset, engine: Engine, question: int, options: SearchOptions, truth: Truth, model: HitProbability
) -> list[tuple[Any, ...]]:
    """Return noise rank, weight, whether it is relevant, and rank of each hit: those by words, then the final ranking."""
    early: list[Candidate] = []
    asked = bench.query(question, options)
    final = search(engine, asked, options, model, threads=1, on_first=early.extend, coder=bench.coder)
    return [
        (hit.noise_rank, np.nan if hit.weight is None else hit.weight, hit.image in truth.relevant, rank)
        for hits in (early, final)
        for rank, hit in enumerate(hits)
    ]


def without(engine: Engine, images: Sequence[int]) -> Engine:
    """Return an engine of images 0, 1, 2, ... without some of them."""
    removed = np.asarray(images, np.int64)
    segments = [
        segment.without(removed[removed // MAX_IMAGES == number] % MAX_IMAGES) for number, segment in enumerate(engine.segments)
    ]
    return Engine(segments, engine.sizes)


def fit_hit_probability(samples: Samples, source: str = "") -> HitProbability:
    """Fit the coefficients to hits by words and to verified ones."""
    words, verified = samples.by_words, samples.verified
    if not all(0 < part.right.sum() < len(part) for part in (words, verified)):
        raise OptionError("the fit needs right and wrong hits, by words and verified; give more questions, and verify")
    a, b = _fit(words.noise_rank[:, None], words.right)
    d, e, f = _fit(np.column_stack([verified.noise_rank, np.log1p(verified.weight / USUAL)]), verified.right)
    return HitProbability((a, b), (d, e, f), source)


def _fit(inputs: Floats64, right: Flags) -> tuple[float, ...]:
    """Return the constant and the coefficients, 0 or more, of a logistic regression on inputs [n, d]."""
    columns = np.column_stack([np.ones(len(inputs)), inputs])
    fitted = logistic(columns, right.astype(np.float64), np.full(columns.shape[1], RIDGE), nonnegative=True)
    return tuple(round(float(value), 4) for value in fitted)


def predicted(model: HitProbability, samples: Samples) -> Floats64:
    """Return the probability of each hit [n]."""
    rows = zip(samples.noise_rank.tolist(), samples.weight.tolist(), strict=True)
    return np.array([model.of(rank, None if math.isnan(weight) else weight) for rank, weight in rows])


@dataclass(frozen=True, eq=False)
class Calibration:
    """Predicted probabilities of hits compared with the share of right ones."""

    hits: int
    share: float  # of right hits
    error: float  # expected calibration error: mean distance of prediction and share over the bins
    error_interval: tuple[float, float]
    brier: float
    log_loss: float
    bins: tuple[tuple[float, float, int], ...]  # mean prediction, share of right hits, hits; of those that have any

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        bins = [{"predicted": round(p, 4), "observed": round(y, 4), "count": n} for p, y, n in self.bins]
        numbers = {name: round(getattr(self, name), 5) for name in ("share", "error", "brier", "log_loss")}
        return {"hits": self.hits, **numbers, "error_interval": [round(x, 5) for x in self.error_interval], "bins": bins}


def measure_calibration(probabilities: Floats64, samples: Samples, seed: int = 0) -> Calibration:
    """Compare probabilities of hits [n] with their relevance; intervals by a bootstrap of the groups of questions."""
    right = samples.right.astype(np.float64)
    bins = np.minimum((probabilities * BINS).astype(np.int64), BINS - 1)
    groups, group = np.unique(samples.group, return_inverse=True)
    cells = group * BINS + bins
    apart, size = (
        np.bincount(cells, x, len(groups) * BINS).reshape(-1, BINS) for x in (probabilities - right, np.ones(len(right)))
    )
    drawn = draw_groups(len(groups), seed)
    errors = np.abs(drawn @ apart).sum(axis=1) / (drawn @ size).sum(axis=1)
    low, high = quantile_bounds(errors)
    clipped = np.clip(probabilities, MARGIN, 1 - MARGIN)
    rows = [(float(probabilities[bins == i].mean()), float(right[bins == i].mean()), int((bins == i).sum()))
            for i in range(BINS) if (bins == i).any()]  # fmt: skip
    return Calibration(
        hits=len(right),
        share=float(right.mean()),
        error=float(np.abs(apart.sum(axis=0)).sum() / len(right)),
        error_interval=(float(low), float(high)),
        brier=float(((probabilities - right) ** 2).mean()),
        log_loss=float(-np.log(np.where(samples.right, clipped, 1 - clipped)).mean()),
        bins=tuple(rows),
    )


def nothing_found(
    probabilities: Floats64, samples: Samples, thresholds: Sequence[float] = THRESHOLDS
) -> dict[str, dict[str, float]]:
    """Return, for each minimum probability, how often no hit is left, and which hits stay.

    empty: share of the searches without a relevant image that have no hit; kept: share of the right first hits that stay;
    lost: share of the searches with a relevant image that have no hit; precision: share of right ones among the hits that stay.
    """
    first, result = (samples.rank == 0) & samples.right, {}
    for threshold in thresholds:
        stays = probabilities >= threshold
        empty = {flag: _share_without_hits(samples.search, samples.answerable == flag, stays) for flag in (True, False)}
        result[f"{threshold:g}"] = {
            "empty": round(empty[False], 4),
            "kept": round(float(stays[first].mean()) if first.any() else 0.0, 4),
            "lost": round(empty[True], 4),
            "precision": round(float(samples.right[stays].mean()) if stays.any() else 1.0, 4),
        }
    return result


def _share_without_hits(search: npt.NDArray[np.int64], chosen: Flags, stays: Flags) -> float:
    """Return the share of some searches of which no hit stays."""
    return 1 - len(np.unique(search[chosen & stays])) / max(len(np.unique(search[chosen])), 1)


def reliability_figure(results: Mapping[str, Mapping[str, Calibration]], title: str, note: str = "") -> Figure:
    """Return a plot of the share of right hits over their probability, one panel per test, one line per kind of hit."""
    panels = []
    for name, kinds in results.items():
        series = [Series("as predicted", (0.0, 1.0), (0.0, 1.0), style="paper")]
        for kind, one in kinds.items():
            x, y, counts = zip(*one.bins, strict=True)
            series.append(Series(kind, x, y, labels=[str(count) for count in counts] if len(kinds) == 1 else ()))
        panels.append(Panel("probability of a hit", "share of right ones", series, name))
    return Figure(title, panels, note)
