"""Accuracy and probabilities of several kinds of features, each alone and joined: evidence added per photograph.

    python benchmarks/several.py DATA --work FOLDER [--kinds sift orb] [--questions 150] [--quick] [--save]

DATA holds the folders holidays*, ukbench* and photos*: the first two lie in one collection, with `--distractors` the third, too. Each kind,
by the name of its detector, has an index in FOLDER, which is used again if it is there. SIFT has the vocabulary that comes with polyvoc; the
others have one that is trained on photos*. Each query is left out of the collection, and is searched with its right answers there and without
them. The probabilities of each kind, and what is known before any of them, are fitted on the other set. `--save` writes the coefficients of the
kinds other than SIFT that come with polyvoc.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from machine import write_result
from polyvoc.experiments.datasets.readers import READERS
from polyvoc.experiments.fit.hit_probability import EQUAL, Samples, fit_hit_probability, measure_calibration
from polyvoc.experiments.measures import Interval, bootstrap, difference
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import Candidate
from polyvoc.search.hits import Hit, Hits
from polyvoc.search.index import Index
from polyvoc.search.joint import PRIOR, IndexAnswer, join, logit
from polyvoc.search.photographs import Photographs
from polyvoc.search.pipeline import search
from polyvoc.search.probability import HitProbability, probability_file
from polyvoc.search.query import query_of_image
from polyvoc.types import FeatureKind
from polyvoc.vocabulary.train import sample_descriptors, train
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet, default_fine_vocabulary

SETS = ("holidays", "ukbench")
WORDS, DESCRIPTORS, ROUNDS = 20_000, 600_000, 10  # of the vocabulary of each kind
SHOWN = 10  # hits of a search that probabilities are fitted to and judged by
PRIORS = np.arange(-10.0, 0.5, 1.0)  # logits tried
DATA = Path(__file__).parent.parent / "src" / "polyvoc" / "data"


@dataclass(frozen=True)
class Question:
    """A photograph to search with, and those that show the same thing."""

    path: str
    relevant: frozenset[str]
    group: int


@dataclass(frozen=True, eq=False)
class Found:
    """The hits of one search in one index."""

    early: tuple[Candidate, ...]  # the best by votes alone
    final: tuple[Candidate, ...]  # all candidates


def questions(data: Path, name: str, most: int) -> list[Question]:
    """Return questions of a set, evenly spread."""
    read = READERS[name](next(data.glob(f"{name}*")))
    groups = {group: number for number, group in enumerate(dict.fromkeys(question.group for question in read.questions))}
    rows = []
    for question, truth in zip(read.questions, read.truths[""], strict=True):
        assert question.image is not None
        relevant = frozenset(str(read.images[number]) for number in truth.relevant - {question.image})
        rows.append(Question(str(read.images[question.image]), relevant, groups[question.group]))
    return [rows[number * len(rows) // min(most, len(rows))] for number in range(min(most, len(rows)))]


def vocabularies_of(kind: str, data: Path, work: Path) -> VocabularySet:
    """Return the vocabulary of a kind of features: that of polyvoc, or a trained one, which is kept."""
    words, options = work / f"{kind}-words", FeatureOptions(detector=kind)  # type: ignore[arg-type]
    if options.kind == FeatureKind():
        return VocabularySet((), default_fine_vocabulary())
    if not words.is_dir():
        sample = sample_descriptors(sorted(next(data.glob("photos*")).glob("*.jpg")), options, limit=DESCRIPTORS)
        train(sample, TrainOptions(size=WORDS, rounds=ROUNDS), source="photographs of neither set").save(words)
        print("trained", kind, flush=True)
    return VocabularySet((), Vocabulary.load(words))


def index_of(kind: str, folders: Sequence[Path], vocabularies: VocabularySet, work: Path) -> Index:
    """Return the index of folders with one kind of features; make it, or bring it up to date."""
    path, options = work / f"{kind}.polyvoc", FeatureOptions(detector=kind)  # type: ignore[arg-type]
    with IndexWriter.open(path, vocabularies, options) as writer:
        writer.update(folders)
    return Index.open(path)


def without(index: Index, images: Sequence[int]) -> Engine:
    """Return the engine of an index without some images."""
    places = [index.find(image) for image in images]
    segments = [segment.without([position for number, position in places if number == own])
                for own, segment in enumerate(index.engine.segments)]  # fmt: skip
    return Engine(segments, index.engine.sizes)


def ask(index: Index, asked: Question, image_of: dict[str, int], answerable: bool) -> Found:
    """Search with a photograph by what is stored of it; without its right answers unless it is answerable."""
    own = image_of[asked.path]
    removed = [own, *([] if answerable else [image_of[path] for path in sorted(asked.relevant)])]
    row = index.image(own)
    (stored,) = index.engine.image_features([index.find(own)])
    options = replace(index.default_options, top=SHOWN)
    query, early = query_of_image(stored, options, index.coder, (row.width, row.height)), list[Candidate]()
    final = search(without(index, removed), query, options, EQUAL, None, None, early.extend, index.coder, every=True)
    return Found(tuple(early), tuple(final))


def samples(found: Sequence[tuple[Question, bool, Found]], path_of: dict[int, str]) -> Samples:
    """Return the best hits of searches, by votes alone and verified, as what probabilities are fitted to."""
    rows = []
    for number, (asked, answerable, one) in enumerate(found):
        for hits in (one.early[:SHOWN], one.final[:SHOWN]):
            for rank, hit in enumerate(hits):
                weight = np.nan if hit.weight is None else hit.weight
                rows.append(
                    (hit.noise_rank, weight, path_of[hit.image] in asked.relevant, rank, answerable, number, asked.group)
                )
    kinds = (np.float64, np.float64, np.bool_, np.int64, np.bool_, np.int64, np.int64)
    return Samples(*(np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)))


def answer_of(number: int, index: Index, found: Found, model: HitProbability, path_of: dict[int, str]) -> IndexAnswer:
    """Return candidates with the probabilities of a model, as one index of several returns them."""
    hits = [Hit(one.image, path_of[one.image], one.score, one.inliers, probability=model.of(one.noise_rank, one.weight))
            for one in found.final]  # fmt: skip
    hits.sort(key=lambda hit: -(hit.probability or 0.0))
    return IndexAnswer.of(number, str(index.folder.path), index.folder.kind, Hits(hits), model)


class Trial:
    """The searches with all questions in all indexes, and what follows from them."""

    def __init__(self, data: Path, kinds: Sequence[str], work: Path, most: int, distractors: bool = False) -> None:
        self.kinds = kinds
        folders = [next(data.glob(f"{name}*")) for name in (*SETS, *(["photos"] if distractors else []))]
        self.indexes = [index_of(kind, folders, vocabularies_of(kind, data, work), work) for kind in kinds]
        self.photographs = Photographs.of(self.indexes)
        self.path_of = [{row.image: row.path for row in index} for index in self.indexes]
        self.image_of = [{path: image for image, path in paths.items()} for paths in self.path_of]
        self.found: dict[str, list[tuple[Question, bool, list[Found]]]] = {}
        for name in SETS:
            usable = [one for one in questions(data, name, most)
                      if all({one.path, *one.relevant} <= images.keys() for images in self.image_of)]  # fmt: skip
            self.found[name] = [(one, answerable, [ask(index, one, images, answerable) for index, images in
                                                   zip(self.indexes, self.image_of, strict=True)])
                                for one in usable for answerable in (True, False)]  # fmt: skip
            print(name, len(usable), "questions", flush=True)

    def model(self, kind: int, names: Sequence[str]) -> HitProbability:
        """Return the probabilities of one kind, fitted on some of the sets."""
        rows = [(replace(asked, group=2 * asked.group + (name != names[0])), answerable, found[kind])
                   for name in names for asked, answerable, found in self.found[name]]  # fmt: skip
        return fit_hit_probability(samples(rows, self.path_of[kind]), " and ".join(names))

    @cache  # noqa: B019 - one trial per run
    def answers(self, name: str, fitted: tuple[str, ...]) -> list[tuple[Question, bool, list[IndexAnswer]]]:
        """Return what the indexes answer to the questions of a set, with probabilities fitted on some sets."""
        models = [self.model(kind, fitted) for kind in range(len(self.kinds))]
        return [(asked, answerable, [answer_of(number, index, one, model, paths) for number, (index, one, model, paths)
                                     in enumerate(zip(self.indexes, found, models, self.path_of, strict=True))])
                for asked, answerable, found in self.found[name]]  # fmt: skip

    def joined(self, name: str, fitted: tuple[str, ...], prior: float,
               only: int | None = None) -> Iterator[tuple[Question, bool, list[tuple[str, float]]]]:  # fmt: skip
        """Yield the ranking of each search as paths with their probabilities; of one kind, or of all joined."""
        for asked, answerable, answers in self.answers(name, fitted):
            chosen = answers if only is None else [answers[only]]
            hits = join(chosen, self.photographs, prior)
            yield asked, answerable, [(hit.path, hit.probability or 0.0) for hit in hits]

    def log_losses(self, name: str, fitted: tuple[str, ...]) -> list[float]:
        """Return the mean log loss of the best joint hits for each of `PRIORS`."""
        return [_log_loss(self.joined(name, fitted, float(prior))) for prior in PRIORS]

    def prior(self, names: Sequence[str]) -> float:
        """Return the logit that gives the best probabilities on some sets; each kind was fitted on all of them."""
        return float(PRIORS[np.argmin(np.sum([self.log_losses(name, tuple(names)) for name in names], axis=0))])


def _log_loss(rankings: Iterator[tuple[Question, bool, list[tuple[str, float]]]]) -> float:
    losses = [math.log1p(math.exp(-logit(p) if path in asked.relevant else logit(p)))
              for asked, _, ranking in rankings for path, p in ranking[:SHOWN]]  # fmt: skip
    return float(np.mean(losses))


def average_precision(ranking: Sequence[str], relevant: frozenset[str]) -> float:
    """Return the mean over the right answers of the precision at their rank, 0 for those not found; in percent."""
    places = [rank for rank, path in enumerate(ranking, start=1) if path in relevant]
    return 100 * sum(number / rank for number, rank in enumerate(places, start=1)) / len(relevant)


def top_four(ranking: Sequence[str], relevant: frozenset[str]) -> float:
    """Return how many of the four photographs of a group are in the first four places, the query counted as the first."""
    return 1 + sum(path in relevant for path in ranking[:3])


def report(trial: Trial, name: str, fitted: tuple[str, ...], prior: float, only: int | None) -> dict[str, Any]:
    """Return the values per question, and the calibration of the best hits."""
    values, rows = [], []
    for number, (asked, answerable, ranking) in enumerate(trial.joined(name, fitted, prior, only)):
        if answerable:
            judged = top_four if name == "ukbench" else average_precision
            values.append((judged([path for path, _ in ranking], asked.relevant), asked.group))
        rows += [(0.0, 0.0, path in asked.relevant, rank, answerable, number, asked.group, p)
                 for rank, (path, p) in enumerate(ranking[:SHOWN])]  # fmt: skip
    *columns, chances = zip(*rows, strict=True)
    kinds = (np.float64, np.float64, np.bool_, np.int64, np.bool_, np.int64, np.int64)
    some = Samples(*(np.array(column, kind) for column, kind in zip(columns, kinds, strict=True)))
    calibration = measure_calibration(np.array(chances), some)
    likely = np.array(chances) >= 0.5
    return {
        "values": [value for value, _ in values],
        "groups": [group for _, group in values],
        "calibration": calibration.as_dict(),
        "likely_right": float(some.right[likely].mean()),
        "right_likely": float(likely[some.right].mean()),
    }


def as_dict(interval: Interval) -> dict[str, float]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


def measure(trial: Trial, name: str) -> dict[str, Any]:
    """Return the results of one set: each kind, and all joined, with the differences of the joint ranking to each kind."""
    other = tuple(one for one in SETS if one != name)
    prior = trial.prior(other)
    ways = {**{kind: report(trial, name, other, prior, number) for number, kind in enumerate(trial.kinds)},
            "joined": report(trial, name, other, prior, None)}  # fmt: skip
    joint, entries = ways["joined"]["values"], {}
    for way, one in ways.items():
        values, groups = one.pop("values"), one.pop("groups")
        gain = None if way == "joined" else as_dict(difference(joint, values, groups))  # of all joined over this one
        entries[way] = {**one, "value": as_dict(bootstrap(values, groups)), "gain": gain}
        print(name, way, {key: round(x, 3) for key, x in entries[way]["value"].items()}, gain, flush=True)
    return {"prior": prior, "ways": entries}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", default=["sift", "orb"], help="detectors")
    parser.add_argument("--questions", type=int, default=150, help="of each set, at most")
    parser.add_argument("--distractors", action="store_true", help="with photos* in the collection")
    parser.add_argument("--quick", action="store_true", help="few questions; nothing is written")
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    trial = Trial(arguments.data, arguments.kinds, arguments.work, 20 if arguments.quick else arguments.questions,
                  arguments.distractors)  # fmt: skip
    sets = {name: measure(trial, name) for name in SETS}
    models = {kind: trial.model(number, SETS) for number, kind in enumerate(arguments.kinds)}
    result = {
        "photographs": len(trial.photographs),
        "questions": {name: len(trial.found[name]) // 2 for name in SETS},
        "words": {kind: WORDS if kind != "sift" else default_fine_vocabulary().size for kind in arguments.kinds},
        "kinds": list(arguments.kinds),
        "prior": {"shipped": PRIOR, "fitted": trial.prior(SETS)},
        "models": {kind: model.as_dict() for kind, model in models.items()},
        "sets": sets,
    }
    for kind, model in models.items() if arguments.save else ():
        if kind != "sift":
            text = json.dumps(model.as_dict(), indent=1) + "\n"
            (DATA / probability_file(kind)).write_text(text, encoding="utf-8")
    print(json.dumps({name: one for name, one in result.items() if name != "sets"}, indent=1))
    if not arguments.quick:
        print(write_result("several", result))


if __name__ == "__main__":
    main()
