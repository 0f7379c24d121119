"""How probable is a hit by what a search knows of it? Samples of hits, coefficients fitted to them, and how they do elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.experiments.fit.regression import logistic
from polyvoc.experiments.measures import Truth
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.workbench import QuantisedDataset, no_progress
from polyvoc.index.segment import MAX_IMAGES
from polyvoc.options import SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.search.pipeline import search
from polyvoc.search.probability import USUAL, HitProbability
from polyvoc.search.verify import Found
from polyvoc.types import Floats64, Progress

Flags = npt.NDArray[np.bool_]
BINS = 10  # of a reliability diagram
SURE = (0.5, 0.9, 0.99)
DRAWS, LEVEL = 1000, 0.95  # of the bootstrap
FEW = 1e-6  # a probability is not taken to be nearer to 0 or 1: one surprise should not decide a log loss
RIDGE = 1e-3  # keeps coefficients finite where a feature tells everything


@dataclass(frozen=True, eq=False)
class Samples:
    """What was known of hits, and whether they were right."""

    standing: Floats64  # [n] by words
    weight: Floats64  # [n] nats of inliers; NaN: not verified
    right: Flags  # [n]
    rank: npt.NDArray[np.int64]  # [n] in the answer, from 0
    answerable: Flags  # [n] was there a right answer to find?
    search: npt.NDArray[np.int64]  # [n] number of the search
    group: npt.NDArray[np.int64]  # [n] questions of one group are not independent of each other

    def __len__(self) -> int:
        """Return the number of hits."""
        return len(self.right)

    def chosen(self, rows: npt.NDArray[Any]) -> Self:
        """Return some of them."""
        return type(self)(**{column.name: getattr(self, column.name)[rows] for column in fields(self)})

    @property
    def by_words(self) -> Self:
        """Return those that were not verified."""
        return self.chosen(np.isnan(self.weight))

    @property
    def verified(self) -> Self:
        """Return those that were verified."""
        return self.chosen(~np.isnan(self.weight))

    @property
    def first(self) -> Self:
        """Return the best hit of every search."""
        return self.chosen(self.rank == 0)

    @classmethod
    def joined(cls, several: Sequence[Samples]) -> Self:
        """Return all of several; groups of the same number are taken to be the same."""
        shifts = np.cumsum([0, *(int(one.search.max(initial=-1)) + 1 for one in several)])
        columns = {column.name: np.concatenate([getattr(one, column.name) for one in several]) for column in fields(cls)}
        columns["search"] = np.concatenate([one.search + shift for one, shift in zip(several, shifts, strict=False)])
        return cls(**columns)


@dataclass(frozen=True)
class _Probe(HitProbability):
    """Notes what is known of each hit, and believes all."""

    noted: list[tuple[float, float]] = field(default_factory=list)

    def probability(self, standing: float, weight: float | None = None) -> float:
        """Note it."""
        self.noted.append((standing, np.nan if weight is None else weight))
        return 1.0


def collect(
    bench: QuantisedDataset, options: SearchOptions, progress: Progress = no_progress, engine: Engine | None = None
) -> Samples:
    """Ask every question of a dataset, with and without its right answers in the collection, and look at all hits.

    Hits by words alone are there as well as verified ones, if the options verify. `engine`: that of the bench, if it is built.
    """
    rows: list[tuple[Any, ...]] = []
    whole = engine or bench.engine
    names = list(dict.fromkeys(question.group or question.name for question in bench.dataset.questions))
    truths = next(iter(bench.dataset.truths.values()))
    for number, (question, truth) in enumerate(zip(bench.dataset.questions, truths, strict=True)):
        own = {*truth.junk, *([] if question.image is None else [question.image])}
        for answerable in (True, False):
            left = without(whole, sorted(own if answerable else own | truth.relevant))
            search = 2 * number + (not answerable)
            facts = answerable, search, names.index(question.group or question.name)
            rows += [(*row, *facts) for row in _hits(bench, left, number, options, truth)]
        progress(f"hits: {bench.dataset.name}", number + 1, len(truths))
    columns = zip(*rows, strict=True) if rows else [()] * len(fields(Samples))
    kinds = (np.float64, np.float64, np.bool_, np.int64, np.bool_, np.int64, np.int64)
    return Samples(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))


def _hits(
    bench: QuantisedDataset, engine: Engine, question: int, options: SearchOptions, truth: Truth
) -> list[tuple[Any, ...]]:
    """Return standing, weight, whether it is right, and rank of each hit: those by words, then those of the final ranking."""
    probe = _Probe((0.0, 0.0), (0.0, 0.0, 0.0), noted=[])
    early: list[Found] = []
    final = search(engine, bench.query(question), options, 1, early.extend, probe)
    ranked = [*enumerate(early), *enumerate(final)]
    return [
        (standing, weight, hit.image in truth.relevant, rank)
        for (standing, weight), (rank, hit) in zip(probe.noted, ranked, strict=True)
    ]


def without(engine: Engine, images: Sequence[int]) -> Engine:
    """Return an engine of images 0, 1, 2, ... as if some of them had never been there; norms are those of all."""
    gone = np.asarray(images, np.int64)
    segments = [
        segment.without(gone[gone // MAX_IMAGES == number] % MAX_IMAGES) for number, segment in enumerate(engine.segments)
    ]
    return Engine(segments, engine.sizes, engine.norms(SearchOptions()))


def fit_hit_probability(samples: Samples, source: str = "") -> HitProbability:
    """Fit the coefficients to hits by words and to verified ones."""
    words, seen = samples.by_words, samples.verified
    if not all(0 < one.right.sum() < len(one) for one in (words, seen)):
        raise OptionError("the fit needs right and wrong hits, by words and verified; ask more questions, with verify")
    a, b = logistic_fit(words.standing[:, None], words.right)
    d, e, f = logistic_fit(np.column_stack([seen.standing, np.log1p(seen.weight / USUAL)]), seen.right)
    return HitProbability((a, b), (d, e, f), source)


def logistic_fit(known: Floats64, right: Flags) -> list[float]:
    """Return the constant and the coefficients, 0 or more, of a logistic regression on what is known [n, d]."""
    columns = np.column_stack([np.ones(len(known)), known])
    used = np.ones(columns.shape[1], bool)
    while True:
        found = np.zeros(columns.shape[1])
        found[used] = logistic(columns[:, used], right.astype(np.float64), np.full(used.sum(), RIDGE))
        if (found[1:] >= 0).all():
            return [round(float(value), 4) for value in found]
        used[1 + int(np.argmin(found[1:]))] = False  # the one that points the wrong way tells nothing


def predicted(confidence: HitProbability, samples: Samples) -> Floats64:
    """Return the probability of each hit [n]."""
    rows = zip(samples.standing.tolist(), samples.weight.tolist(), strict=True)
    return np.array([confidence.probability(standing, None if math.isnan(weight) else weight) for standing, weight in rows])


@dataclass(frozen=True, eq=False)
class Judgement:
    """What was promised of hits, and what they showed."""

    hits: int
    share: float  # of right hits
    error: float  # mean distance of promise and truth over the bins: the expected calibration error
    error_interval: tuple[float, float]
    brier: float
    log_loss: float
    bins: tuple[tuple[float, float, int], ...]  # mean promise, share of right hits, hits; of those that have any

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        bins = [{"predicted": round(p, 4), "observed": round(y, 4), "count": n} for p, y, n in self.bins]
        numbers = {name: round(getattr(self, name), 5) for name in ("share", "error", "brier", "log_loss")}
        return {"hits": self.hits, **numbers, "error_interval": [round(x, 5) for x in self.error_interval], "bins": bins}


def judge_probabilities(chances: Floats64, samples: Samples, seed: int = 0) -> Judgement:
    """Compare probabilities of hits [n] with the truth; intervals by a bootstrap of the groups of questions."""
    right = samples.right.astype(np.float64)
    place = np.minimum((chances * BINS).astype(np.int64), BINS - 1)
    groups, group = np.unique(samples.group, return_inverse=True)
    cells = group * BINS + place
    apart, size = (np.bincount(cells, x, len(groups) * BINS).reshape(-1, BINS) for x in (chances - right, np.ones(len(right))))
    rng = np.random.default_rng(seed)
    drawn = rng.multinomial(len(groups), np.full(len(groups), 1 / len(groups)), DRAWS)
    errors = np.abs(drawn @ apart).sum(axis=1) / (drawn @ size).sum(axis=1)
    low, high = np.quantile(errors, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    held = np.clip(chances, FEW, 1 - FEW)
    rows = [(float(chances[place == i].mean()), float(right[place == i].mean()), int((place == i).sum()))
            for i in range(BINS) if (place == i).any()]  # fmt: skip
    return Judgement(
        hits=len(right),
        share=float(right.mean()),
        error=float(np.abs(apart.sum(axis=0)).sum() / len(right)),
        error_interval=(float(low), float(high)),
        brier=float(((chances - right) ** 2).mean()),
        log_loss=float(-np.log(np.where(samples.right, held, 1 - held)).mean()),
        bins=tuple(rows),
    )


def nothing_found(chances: Floats64, samples: Samples, sure: Sequence[float] = SURE) -> dict[str, dict[str, float]]:
    """Give, for each least probability, how often nothing is found, rightly and wrongly, and which hits are kept.

    empty: share of the searches without an answer that give no hit; kept: share of the right first hits that stay;
    lost: share of the searches with an answer that give no hit; precision: share of right ones among all hits that stay.
    """
    first, told = (samples.rank == 0) & samples.right, {}
    for least in sure:
        stays = chances >= least
        empty = {flag: _silent(samples.search, samples.answerable == flag, stays) for flag in (True, False)}
        told[f"{least:g}"] = {
            "empty": round(empty[False], 4),
            "kept": round(float(stays[first].mean()) if first.any() else 0.0, 4),
            "lost": round(empty[True], 4),
            "precision": round(float(samples.right[stays].mean()) if stays.any() else 1.0, 4),
        }
    return told


def _silent(search: npt.NDArray[np.int64], asked: Flags, stays: Flags) -> float:
    """Return the share of some searches of which no hit stays."""
    return 1 - len(np.unique(search[asked & stays])) / max(len(np.unique(search[asked])), 1)


def reliability_figure(judged: Mapping[str, Mapping[str, Judgement]], title: str, note: str = "") -> Figure:
    """Draw the share of right hits over what was promised, one panel per test, one line per kind of hit."""
    panels = []
    for name, kinds in judged.items():
        series = [Series("as promised", (0.0, 1.0), (0.0, 1.0), style="paper")]
        for kind, one in kinds.items():
            x, y, counts = zip(*one.bins, strict=True)
            series.append(Series(kind, x, y, labels=[str(count) for count in counts] if len(kinds) == 1 else ()))
        panels.append(Panel("probability of a hit", "share of right ones", series, name))
    return Figure(title, panels, note)
