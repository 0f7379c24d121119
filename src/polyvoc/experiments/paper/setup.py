"""Setup of the paper's experiments: datasets, features, vocabularies, the reading of the rules, cached results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from polyvoc.experiments.cache import digest_of
from polyvoc.experiments.datasets.feature_cache import FeatureStore, identity_of
from polyvoc.experiments.datasets.readers import Dataset, with_distractors
from polyvoc.experiments.evaluate import EVALUATION_VERSION, Values, measure_main
from polyvoc.experiments.fit.line import VERSION, fit_line
from polyvoc.experiments.fit.true_matches import observe
from polyvoc.experiments.measures import MEASURES, Measure
from polyvoc.experiments.workbench import MEDIANS, LazyVocabulary, QuantisedDataset, Workbench
from polyvoc.options import (
    PAPER_READING,
    USUAL_HAMMING,
    FeatureOptions,
    Idf,
    Merge,
    Norm,
    ScoringOptions,
    SearchOptions,
    SetKind,
    Sets,
    TrainOptions,
)
from polyvoc.threads import thread_map
from polyvoc.types import Array
from polyvoc.vocabulary.vocabulary import Vocabulary

Line = tuple[float, float]
MOST_DESCRIPTORS = 10_000_000  # 5 GB of memory
PER_WORD = 20  # training descriptors per word, at least
HAMMING, SIGMA = USUAL_HAMMING[64]
NEVER_FITTED = ("oxford", "roxford")  # for reports only: no line is taken from it


@dataclass(frozen=True)
class Reading:
    """What the paper leaves open: what lists are sets of, the idf and its power in the score, the norm of an image."""

    sets: Sets = "auto"
    idf: Idf = PAPER_READING["idf"]
    idf_power: int = PAPER_READING["idf_power"]
    norm: Norm = PAPER_READING["norm"]

    def __str__(self) -> str:
        """Return it in words."""
        return f"{self.set_name}, {self.idf_name}, norm {self.norm}"

    @property
    def set_name(self) -> str:
        """Return the kind of sets in words."""
        return {"auto": "image sets", "image": "image sets", "feature": "feature sets"}[self.sets]

    @property
    def idf_name(self) -> str:
        """Return the idf in words: "plain idf" or "plain idf squared"."""
        if self.idf == "none":
            return "no idf"
        return f"{self.idf} idf" + " squared" * (self.idf_power == 2)


OURS = Reading(sets="feature", idf="average", idf_power=2, norm="tfidf")  # the defaults of a search


@dataclass(frozen=True)
class Plan:
    """How large the experiments are. Sizes of vocabularies are the paper's; `scale` shrinks them all."""

    name: str = "full"
    scale: float = 1.0
    size: int = 20_000
    sizes: tuple[int, ...] = (10_000, 20_000, 50_000, 100_000, 200_000)  # Fig. 6
    most: int = 9  # vocabularies of `size` words (Fig. 5, Table 5)
    each: int = 3  # vocabularies of every other size
    repeats: int = 3  # disjoint sets of seeds
    questions: int | None = None  # of each dataset; None: all
    training: int | None = None  # photographs
    distractors: tuple[int, ...] = (0, 512, 1024, 2048, 4096, 10_000, 100_000, 1_000_000)  # Fig. 7; what there is of them
    images: int = 1_000_000  # of the efficiency figures
    features: int = FeatureOptions.max_features  # of each photograph

    def train_options(self, size: int, seed: int) -> TrainOptions:
        """Return the training of a vocabulary that the paper would call `size`."""
        words = self.words(size)
        bits = 64 if size <= 100_000 else 0  # signatures need medians, and these several descriptors per word
        # Further rounds change little: the distortion of 20K words falls by 0.8 % in four, that of 200K by 2 % in two.
        rounds = 6 if size < 100_000 else 5 if size < 200_000 else 3
        return TrainOptions(words, seed, rounds, bits, max(1_000_000, PER_WORD * words))

    def words(self, size: int) -> int:
        """Return the number of words of a vocabulary that the paper would call `size`."""
        return max(1, round(size * self.scale))


FULL = Plan()
AFFINE = replace(FULL, name="hessian-affine", sizes=(20_000, 50_000), most=3, each=2, repeats=1)
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
    affine: Setup | None = None  # the same with Hessian-affine features, if pyhesaff is installed
    everything: bool = False  # train on the distractors, too

    # -- features and vocabularies

    @property
    def features(self) -> str:
        """Return the name of the features."""
        return {"sift": "SIFT", "hessian-affine": "Hessian-affine"}[self.workbench.features.kind.name]

    @property
    def kinds(self) -> list[Setup]:
        """Return this setup and that of the other features."""
        return [self] if self.affine is None else [self, self.affine]

    @cached_property
    def store(self) -> FeatureStore:
        """Return the features that vocabularies are trained on."""
        own = self.workbench.store(self.training)
        return own.joined(self.workbench.store(self.distractors)) if self.everything else own

    @cached_property
    def identity(self) -> str:
        """Return a digest of what vocabularies are trained on."""
        files = (*self.training, *self.distractors) if self.everything else self.training
        return identity_of(files, "photographs", self.workbench.features)

    @cached_property
    def n_descriptors(self) -> int:
        """Return the number of features that vocabularies are trained on."""
        own = self.count_features(self.training)
        return own + self.count_features(self.distractors) if self.everything else own

    def count_features(self, photographs: Sequence[Path]) -> int:
        """Return the number of features of photographs."""
        inputs = ["features", identity_of(photographs, "photographs", self.workbench.features)]
        name = f"number of {self.features} features"
        return int(self.workbench.remember(name, inputs, lambda: self.workbench.store(photographs).n_features))

    def can_train(self, size: int) -> bool:
        """Return whether there are enough descriptors for a vocabulary of a size; a tenth fewer will do."""
        drawn = min(self.n_descriptors, self.plan.train_options(size, 0).max_descriptors)
        return drawn >= 0.9 * PER_WORD * self.plan.words(size)

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Return the sizes of the plan that can be trained."""
        return tuple(size for size in self.plan.sizes if self.can_train(size))

    def vocabulary(self, size: int, seed: int) -> Vocabulary:
        """Return a vocabulary; it is trained at its first use."""
        return self.workbench.vocabulary(self.store, self.train_options(size, seed), self.source)

    def train_options(self, size: int, seed: int) -> TrainOptions:
        """Return the training of a vocabulary; with the distractors on up to MOST_DESCRIPTORS."""
        options = self.plan.train_options(size, seed)
        return replace(options, max_descriptors=MOST_DESCRIPTORS) if self.everything else options

    def lazy_vocabulary(self, size: int, seed: int) -> LazyVocabulary:
        """Return a vocabulary that is trained if its words are needed."""
        options = self.train_options(size, seed)
        identity = digest_of(self.identity, asdict(options), MEDIANS)
        return LazyVocabulary(identity, options.size, lambda: self.vocabulary(size, seed))

    def bench(self, name: str, members: Sequence[tuple[int, int]], distractors: int = 0) -> QuantisedDataset:
        """Return a dataset with vocabularies (size, seed), and with the first distractors."""
        dataset = self.datasets[name]
        if distractors:
            dataset = with_distractors(dataset, self.distractors_of(name)[:distractors])
        return self.workbench.lazy_bench(dataset, [self.lazy_vocabulary(size, seed) for size, seed in members])

    def distractors_of(self, name: str) -> tuple[Path, ...]:
        """Return the distractors of a dataset: photographs that no vocabulary was trained on, then the other datasets."""
        others = (image for other, dataset in self.datasets.items() if other != name for image in dataset.images)
        return (*self.distractors, *others)

    def equal(self, name: str, seeds: Sequence[int], size: int | None = None) -> QuantisedDataset:
        """Return a dataset with vocabularies of one size."""
        return self.bench(name, [(size or self.plan.size, seed) for seed in seeds])

    def repeats(self, count: int, size: int | None = None) -> list[tuple[int, ...]]:
        """Return disjoint sets of `count` seeds, as many as the plan repeats and the vocabularies of a size allow."""
        available = self.plan.most if size in (None, self.plan.size) else self.plan.each
        sets = [tuple(range(first, first + count)) for first in range(0, available - count + 1, count)]
        return sets[: self.plan.repeats] or [tuple(range(count))]

    # -- the rules in a reading

    def rule(self, name: str, merge: Merge, reading: Reading | None = None, **chosen: Any) -> SearchOptions:
        """Return a rule for a dataset in a reading, without re-ranking; the line of term 2 is fitted on another dataset."""
        reading = reading or Reading()
        plain = {"burstiness": "none", "verify": 0, "sigma": SIGMA, **asdict(reading), **chosen}
        options = SearchOptions(merge=merge, **plain)
        return options if "line" in chosen else replace(options, line=self.line(name, options.set_kind))

    def rules(
        self, name: str, merges: Sequence[Merge], suffixes: Sequence[str] = ("",), reading: Reading | None = None, **chosen: Any
    ) -> dict[str, SearchOptions]:
        """Return rules by name; suffixes: "", " + HE", " + HE + burstiness"."""
        more: dict[str, dict[str, Any]] = {
            "": {},
            " + HE": {"hamming": HAMMING},
            " + HE + burstiness": {"hamming": HAMMING, "burstiness": "intra"},
        }
        return {
            merge + suffix: self.rule(name, merge, reading, **more[suffix], **chosen) for suffix in suffixes for merge in merges
        }

    # -- term 2

    def fitted(self, name: str, sets: SetKind = "image") -> dict[str, Any]:
        """Return the fit of term 2 on a dataset, with the first two vocabularies, without the query's own photograph."""
        if (name, sets) not in self._fits:
            bench = self.equal(name, (0, 1))

            def fit() -> dict[str, Any]:
                return fit_line(observe(bench, sets=sets, with_query=False)).as_dict()

            self._fits[name, sets] = self.remembered(f"term 2 {sets} sets", bench, fit)
        return self._fits[name, sets]

    @cached_property
    def _fits(self) -> dict[tuple[str, str], dict[str, Any]]:
        return {}

    def line(self, name: str, sets: SetKind = "image", kind: str = "tied") -> Line:
        """Return the line of term 2 for a dataset, fitted on another one; the default line if there is no other."""
        other = self.fitted_on(name)
        if other is None:
            return SearchOptions.line
        a, b = self.fitted(other, sets)[kind]
        return float(a), float(b)

    def fitted_on(self, name: str) -> str | None:
        """Return the dataset that another one's line is fitted on: the first that has no photograph in common with it."""
        own = {image.resolve() for image in self.datasets[name].images}
        for other, dataset in self.datasets.items():
            if other not in NEVER_FITTED and own.isdisjoint(image.resolve() for image in dataset.images):
                return other
        return None

    @property
    def origin(self) -> str:
        """Return where the lines of term 2 come from."""
        if not any(self.fitted_on(name) for name in self.datasets):
            return "the default line, as there is no other dataset to fit one on"
        return "a + b = 1, fitted on another dataset, never on the photographs of the evaluation and never on Oxford"

    # -- results, each in a file of its own

    def outcomes(self, bench: QuantisedDataset, named: Mapping[str, SearchOptions]) -> dict[str, Values]:
        """Return the values of rules by the dataset's main measure, by name."""
        found = {}
        for number, (name, options) in enumerate(named.items()):
            self.workbench.progress(f"{bench.dataset.name}: {name}", number, len(named))
            key = f"{name} {Reading(options.sets, options.idf, options.idf_power, options.norm)}"

            def score(question: int, options: SearchOptions = options) -> dict[str, Array]:
                return {"": bench.scores(question, options)}

            found[name] = self.values_of(key, bench, score, scoring_values(options))[""]
        return found

    def values_of(
        self, key: str, bench: QuantisedDataset, score: Callable[[int], Mapping[str, Array]], more: Any = None
    ) -> dict[str, Values]:
        """Return the values of the rankings that `score` returns for a question, by name; cached under the key and `more`."""

        def make() -> dict[str, Values]:
            score(0)  # builds what all questions share

            def measure(question: int) -> dict[str, float | None]:
                found = {name: measure_main(bench.dataset, question, own) for name, own in score(question).items()}
                return {name: None if value is None else short(value) for name, value in found.items()}

            measured = thread_map(measure, range(len(bench.dataset.questions)))
            return {name: [one[name] for one in measured] for name in measured[0]}

        values: dict[str, Values] = self.remembered(key, bench, make, more)
        return values

    def remembered(self, key: str, bench: QuantisedDataset, make: Callable[[], Any], more: Any = None) -> Any:
        """Return a result for a quantised dataset, or make it: a small file of JSON among the results."""
        inputs = (key, VERSION, EVALUATION_VERSION, bench.name, more)
        return self.workbench.remember(f"{bench.dataset.name} {self.features} {_sizes(bench)} {key}", inputs, make)

    def measure(self, name: str) -> Measure:
        """Return the usual measure of a dataset."""
        return MEASURES[self.datasets[name].measure]


def scoring_values(options: SearchOptions) -> dict[str, Any]:
    """Return the options that scores depend on as plain values; the later stages of a search do not matter here."""
    names = {field.name for field in fields(ScoringOptions)}
    return {name: value for name, value in options.as_dict().items() if name in names}


def short(value: float) -> float:
    """Return a value as results store it: five decimals, a whole number as an int."""
    return int(value) if value == int(value) else round(value, 5)


def _sizes(bench: QuantisedDataset) -> str:
    return "+".join(map(str, bench.sizes)) if len(set(bench.sizes)) > 1 else f"{len(bench.sizes)}x{bench.sizes[0]}"


def mean_values(repeated: Sequence[Values]) -> Values:
    """Return the mean of each question over repetitions with other seeds."""
    return [None if None in values else sum(_numbers(values)) / len(values) for values in zip(*repeated, strict=True)]


def _numbers(values: Sequence[float | None]) -> Iterator[float]:
    return (value for value in values if value is not None)
