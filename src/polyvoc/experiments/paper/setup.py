"""Setup of the paper's experiments: datasets, vocabularies, sizes of the collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from polyvoc.experiments.cache import digest_of
from polyvoc.experiments.datasets.feature_cache import FeatureStore
from polyvoc.experiments.datasets.readers import Dataset, with_distractors
from polyvoc.experiments.evaluate import EVALUATION_VERSION, Values, evaluate, main_measure, measure_rankings
from polyvoc.experiments.fit.line import VERSION, fit_line
from polyvoc.experiments.fit.true_matches import observe
from polyvoc.experiments.measures import MEASURES, Measure
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import FeatureOptions, ScoringOptions, SearchOptions, TrainOptions
from polyvoc.vocabulary.vocabulary import Vocabulary

Line = tuple[float, float]
PER_WORD = 20  # training descriptors per word, at least


@dataclass(frozen=True)
class Plan:
    """How large the experiments are. Sizes of vocabularies are the paper's; `scale` shrinks them all."""

    name: str = "full"
    scale: float = 1.0
    size: int = 20_000
    sizes: tuple[int, ...] = (10_000, 20_000, 50_000, 100_000, 200_000)  # Fig. 6
    most: int = 9  # vocabularies of `size` words (Fig. 5, Table 5)
    repeats: int = 3  # pairs and triples of seeds
    questions: int | None = None  # of each dataset; None: all
    training: int | None = None  # photographs
    distractors: tuple[int, ...] = (0, 500, 1000, 2000, 4000, 10_000, 100_000, 1_000_000)  # Fig. 7; what there is of them
    images: int = 1_000_000  # of the efficiency figures
    features: int = FeatureOptions.max_features  # of each photograph

    def train_options(self, size: int, seed: int) -> TrainOptions:
        """Return the training of a vocabulary that the paper would call `size`."""
        words = self.words(size)
        bits = 64 if size <= 100_000 else 0  # signatures need medians, and these several descriptors per word
        rounds = 10 if size < 100_000 else 5  # large vocabularies settle sooner (Zheng's own code: 2 to 5 rounds for a million)
        return TrainOptions(words, seed, rounds, bits, max(1_000_000, PER_WORD * words))

    def words(self, size: int) -> int:
        """Return the number of words of a vocabulary that the paper would call `size`."""
        return max(1, round(size * self.scale))


FULL = Plan()
QUICK = Plan(
    "quick",
    scale=0.1,
    sizes=(10_000, 20_000, 50_000, 100_000),
    most=5,
    repeats=1,
    questions=60,
    training=400,
    distractors=(0, 200, 400),
    images=16_384,
    features=500,
)


@dataclass(frozen=True, eq=False)
class Setup:
    """The datasets, the training photographs and the distractors of a reproduction, at the sizes of a plan."""

    workbench: Workbench
    plan: Plan
    datasets: Mapping[str, Dataset]
    training: tuple[Path, ...]
    distractors: tuple[Path, ...]
    missing: tuple[str, ...]  # datasets of the paper that are not available
    source: str = ""  # of the training photographs

    @cached_property
    def store(self) -> FeatureStore:
        """Return the features that vocabularies are trained on."""
        return self.workbench.store(self.training)

    def can_train(self, size: int) -> bool:
        """Return whether there are enough descriptors for a vocabulary of a size."""
        drawn = min(self.store.n_features, self.plan.train_options(size, 0).max_descriptors)
        return drawn >= PER_WORD * self.plan.words(size)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the plan that can be trained."""
        return tuple(size for size in self.plan.sizes if self.can_train(size))

    def vocabulary(self, size: int, seed: int) -> Vocabulary:
        """Return a vocabulary; it is trained at its first use."""
        return self.workbench.vocabulary(self.store, self.plan.train_options(size, seed), self.source)

    def bench(self, name: str, members: Sequence[tuple[int, int]], distractors: int = 0) -> QuantisedDataset:
        """Return a dataset with vocabularies (size, seed), and with the first distractors."""
        dataset = self.datasets[name]
        if distractors:
            dataset = with_distractors(dataset, self.distractors[:distractors])
        return self.workbench.bench(dataset, [self.vocabulary(size, seed) for size, seed in members])

    def equal(self, name: str, seeds: Sequence[int], size: int | None = None) -> QuantisedDataset:
        """Return a dataset with vocabularies of one size."""
        return self.bench(name, [(size or self.plan.size, seed) for seed in seeds])

    def repeats(self, count: int) -> list[tuple[int, ...]]:
        """Return disjoint sets of `count` seeds, as many as the plan repeats and the vocabularies allow."""
        sets = [tuple(range(first, first + count)) for first in range(0, self.plan.most - count + 1, count)]
        return sets[: self.plan.repeats] or [tuple(range(count))]

    def fitted(self, name: str) -> dict[str, Any]:
        """Return the fit of term 2 on a dataset, with the first two vocabularies."""
        if name not in self._fits:
            bench = self.equal(name, (0, 1))
            self._fits[name] = self.remembered("term 2", bench, lambda: fit_line(observe(bench)).as_dict())
        return self._fits[name]

    @cached_property
    def _fits(self) -> dict[str, dict[str, Any]]:
        return {}

    def remembered(self, key: str, bench: QuantisedDataset, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return a result for a quantised dataset from the cache, or make it."""
        result: dict[str, Any] = self.workbench.remember(digest_of(key, VERSION, bench.name), make)
        return result

    def line(self, name: str, kind: str = "tied") -> Line:
        """Return the line of term 2 for a dataset, fitted on another one; the default line if there is no other."""
        other = self.fitted_on(name)
        if other is None:
            return ScoringOptions().line
        a, b = self.fitted(other)[kind]
        return float(a), float(b)

    def fitted_on(self, name: str) -> str | None:
        """Return the dataset that another one's line is fitted on: the first that has no photograph in common with it."""
        own = {image.resolve() for image in self.datasets[name].images}
        for other, dataset in self.datasets.items():  # Oxford and its revisited form share theirs
            if own.isdisjoint(image.resolve() for image in dataset.images):
                return other
        return None

    @property
    def origin(self) -> str:
        """Return where the lines of term 2 come from."""
        if not any(self.fitted_on(name) for name in self.datasets):
            return "the default line, as there is no other dataset to fit one on"
        return "a + b = 1, fitted on another dataset, never on the photographs of the evaluation"

    def outcomes(self, bench: QuantisedDataset, named: Mapping[str, SearchOptions]) -> dict[str, Values]:
        """Return the values of rules by the dataset's main measure, by name."""
        main = main_measure(bench.dataset)
        return {outcome.name: outcome.values[main] for outcome in evaluate(self.workbench, bench, named)}

    def values_of(self, key: str, bench: QuantisedDataset, score: Callable[[int], Mapping[str, Any]]) -> dict[str, Values]:
        """Return the values of rankings that are no rules of the engine, by name; cached under the key."""
        result = self.workbench.remember(
            digest_of(key, EVALUATION_VERSION, bench.name), lambda: measure_rankings(bench.dataset, score)
        )
        main = main_measure(bench.dataset)
        return {name: values[main] for name, values in result.items()}

    def measure(self, name: str) -> Measure:
        """Return the usual measure of a dataset."""
        return MEASURES[self.datasets[name].measure]


def mean_values(repeated: Sequence[Values]) -> Values:
    """Return the mean of each question over repetitions with other seeds."""
    columns = zip(*repeated, strict=True)
    return [None if None in values else sum(v for v in values if v is not None) / len(values) for values in columns]
