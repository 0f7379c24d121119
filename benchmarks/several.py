"""Accuracy and probabilities of several kinds of features, each alone and joined: evidence added per photograph.

    python benchmarks/several.py DATA --work FOLDER [--kinds sift xfeat.onnx] [--questions 150] [--altered 75] [--quick] [--save]

DATA holds the folders holidays*, ukbench* and photos*: the first two lie in one collection, with `--distractors` the third, too. Each kind,
a detector or the file of a network, has an index in FOLDER, which is used again if it is there. SIFT and networks with a vocabulary that comes with
polyvoc have that; the others have one that is trained on photos*. Each query is left out of the collection, and is searched with its right answers
there and without them. The probabilities of each kind, and what joins them, are fitted on the other set. `--altered` searches with altered queries,
too (`views.py`). `--save` writes the coefficients of the kinds other than SIFT that come with polyvoc.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from machine import write_result
from polyvoc.errors import ImageError
from polyvoc.experiments.datasets.readers import READERS
from polyvoc.experiments.fit.hit_probability import EQUAL, Samples, fit_hit_probability, measure_calibration
from polyvoc.experiments.fit.joint import fit_shares
from polyvoc.experiments.measures import Interval, bootstrap, difference
from polyvoc.features.extract import extract
from polyvoc.features.learned import resolved
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import Candidate
from polyvoc.search.hits import Hit, Hits
from polyvoc.search.index import Index
from polyvoc.search.joint import PRIOR, IndexAnswer, JointHit, best_by_kind, join, logit
from polyvoc.search.photographs import Photographs
from polyvoc.search.pipeline import search
from polyvoc.search.probability import LIKELY, HitProbability, default_hit_probability, logistic, probability_file
from polyvoc.search.query import PhotoReader, query_of_image
from polyvoc.types import SIFT, CodeTable, Features, Floats64
from polyvoc.vocabulary.train import sample_descriptors, train
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet
from views import VIEWS, view_of

SETS = ("holidays", "ukbench")
WORDS, DESCRIPTORS, ROUNDS = 20_000, 600_000, 10  # of the vocabulary of each kind
SHOWN = 10  # hits of a search that probabilities are fitted to and judged by
ADDED, JOINED = "added", "joined"  # as if kinds erred independently, and as polyvoc joins them
DATA = Path(__file__).parent.parent / "src" / "polyvoc" / "data"


@dataclass(frozen=True)
class Kind:
    """A kind of features: the name of a detector, or of the file of a network."""

    name: str
    options: FeatureOptions

    @classmethod
    def of(cls, detector: str) -> Kind:
        """Take what `--detector` takes."""
        options = FeatureOptions(detector=detector)
        return cls(Path(detector).stem if options.is_file else detector, resolved(options))


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
    return spread(rows, most)


def spread(rows: Sequence[Question], most: int) -> list[Question]:
    """Return at most so many of them, evenly spread."""
    return [rows[number * len(rows) // min(most, len(rows))] for number in range(min(most, len(rows)))]


def vocabulary_of(kind: Kind, data: Path, work: Path) -> Vocabulary:
    """Return the vocabulary of a kind of features: that of polyvoc, or a trained one, which is kept."""
    words, shipped = work / f"{kind.name}-words", VocabularySet.default(kind.options.kind).fine
    if shipped is not None and shipped.kind == kind.options.kind:
        return shipped
    if not words.is_dir():
        sample = sample_descriptors(sorted(next(data.glob("photos*")).glob("*.jpg")), kind.options, limit=DESCRIPTORS)
        train(sample, TrainOptions(size=WORDS, rounds=ROUNDS), source="photographs of neither set").save(words)
        print("trained", kind.name, flush=True)
    return Vocabulary.load(words)


def index_of(kind: Kind, folders: Sequence[Path], words: Vocabulary, work: Path) -> Index:
    """Return the index of folders with one kind of features; make it, or bring it up to date."""
    path = work / f"{kind.name}.polyvoc"
    with IndexWriter.open(path, VocabularySet((), words), kind.options) as writer:
        writer.update(folders)
    return Index.open(path)


def without(index: Index, images: Sequence[int]) -> Engine:
    """Return the engine of an index without some images."""
    places = [index.find(image) for image in images]
    segments = [segment.without([position for number, position in places if number == own])
                for own, segment in enumerate(index.engine.segments)]  # fmt: skip
    return Engine(segments, index.engine.sizes)


def ask(index: Index, asked: Question, image_of: dict[str, int], answerable: bool, photo: Features | None = None,
        table: CodeTable | None = None) -> Found:  # fmt: skip
    """Search with a photograph by what is stored of it, or by other features; without its right answers unless it is answerable.

    table: of weights; None: the one that comes with polyvoc.
    """
    own = image_of[asked.path]
    removed = [own, *([] if answerable else [image_of[path] for path in sorted(asked.relevant) if path in image_of])]
    row = index.image(own)
    options, early = replace(index.default_options, top=SHOWN, code_table=table), list[Candidate]()
    if photo is None:
        (stored,) = index.engine.image_features([index.find(own)])
        query = query_of_image(stored, options, index.coder, (row.width, row.height))
    else:
        query = PhotoReader.of(index.folder).query(photo, options, None, {})
    final = search(without(index, removed), query, options, EQUAL, None, None, early.extend, index.coder, every=True)
    return Found(tuple(early), tuple(final))


def altered(asked: Question, view: str, options: FeatureOptions) -> Features | None:
    """Return the features of an altered photograph; None: it has none."""
    with Image.open(asked.path) as image:
        seen = view_of(view, image.convert("RGB"), asked.group)
    file = BytesIO()
    seen.save(file, "PNG", compress_level=1)
    try:
        return extract(file.getvalue(), options)
    except ImageError:
        return None


def samples(found: Iterable[tuple[Question, bool, Found | None]], path_of: dict[int, str]) -> Samples:
    """Return the best hits of searches, by votes alone and verified, as what probabilities are fitted to."""
    rows = []
    for number, (asked, answerable, one) in enumerate(found):
        for hits in () if one is None else (one.early[:SHOWN], one.final[:SHOWN]):
            for rank, hit in enumerate(hits):
                weight = np.nan if hit.weight is None else hit.weight
                rows.append(
                    (hit.noise_rank, weight, path_of[hit.image] in asked.relevant, rank, answerable, number, asked.group)
                )
    return samples_of(rows)


def samples_of(rows: Sequence[tuple[Any, ...]]) -> Samples:
    """Return rows of noise rank, weight, whether it is right, rank, whether it is answerable, search and group as samples."""
    kinds = (np.float64, np.float64, np.bool_, np.int64, np.bool_, np.int64, np.int64)
    return Samples(*(np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)))


def answer_of(number: int, index: Index, found: Found, model: HitProbability, path_of: dict[int, str]) -> IndexAnswer:
    """Return candidates with the probabilities of a model, as one index of several returns them."""
    hits = [Hit(one.image, path_of[one.image], one.score, one.inliers, probability=model.of(one.noise_rank, one.weight))
            for one in found.final]  # fmt: skip
    hits.sort(key=lambda hit: -(hit.probability or 0.0))
    return IndexAnswer.of(number, str(index.folder.path), index.folder.kind, Hits(hits), model)


def kept(file: Path, make: Callable[[], Any]) -> Any:
    """Return what an earlier run left in a file; make it if it is missing."""
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pickle.dumps(make()))
    return pickle.loads(file.read_bytes())  # noqa: S301 - of this script


Searches = list[tuple[Question, bool, list[Found | None]]]  # None: the index does not hold the query, or has no features of it


class Trial:
    """The searches with all questions in all indexes, and what follows from them. What was searched before is kept."""

    def __init__(self, indexes: Mapping[str, Index], asked: Mapping[str, Sequence[Question]], work: Path,
                 most_altered: int = 0, tables: Mapping[tuple[str, str], CodeTable] | None = None) -> None:  # fmt: skip
        """Search in indexes by the names of their kinds with the questions of each set, and with some of them altered.

        tables: of weights by kind and set.
        """
        views = VIEWS if most_altered else ()
        self.kinds, self.indexes, self.work, self.tables = tuple(indexes), tuple(indexes.values()), work, tables or {}
        self.photographs = Photographs.of(self.indexes)
        self.path_of = [{row.image: row.path for row in index} for index in self.indexes]
        self.image_of = [{path: image for image, path in paths.items()} for paths in self.path_of]
        self.found = {(name, ""): self.searches(name, asked[name], "") for name in SETS}
        self.found |= {
            (name, view): self.searches(name, spread(asked[name], most_altered), view) for view in views for name in SETS
        }

    def searches(self, name: str, asked: Sequence[Question], view: str) -> Searches:
        """Return what every index finds with the questions of a set; altered ones only with their right answers there."""
        rows = [(one, answerable) for one in asked for answerable in ((True,) if view else (True, False))]
        columns = []
        for kind, index, image_of in zip(self.kinds, self.indexes, self.image_of, strict=True):
            file = self.work / "found" / f"{kind} {name} {len(asked)} {view.replace('/', ' of ')}.pkl"
            columns.append(kept(file, partial(self._search_all, kind, name, index, image_of, rows, view)))
        print(name, view, len(asked), "questions", flush=True)
        return [(one, answerable, list(found)) for (one, answerable), *found in zip(rows, *columns, strict=True)]

    def _search_all(self, kind: str, name: str, index: Index, image_of: dict[str, int], rows: Sequence[tuple[Question, bool]],
                    view: str) -> list[Found | None]:  # fmt: skip
        table, found = self.tables.get((kind, name)), list[Found | None]()
        for asked, answerable in rows:
            photo = altered(asked, view, index.folder.extraction) if view else None
            missing = asked.path not in image_of or (view and photo is None)
            found.append(None if missing else ask(index, asked, image_of, answerable, photo, table))
        return found

    @cache  # noqa: B019 - one trial per run
    def model(self, kind: int, names: tuple[str, ...]) -> HitProbability:
        """Return the probabilities of one kind, fitted on some of the sets."""
        rows = [(replace(asked, group=2 * asked.group + (name != names[0])), answerable, found[kind])
                   for name in names for asked, answerable, found in self.found[name, ""]]  # fmt: skip
        return fit_hit_probability(samples(rows, self.path_of[kind]), " and ".join(names))

    @cache  # noqa: B019
    def models(self, names: tuple[str, ...], chosen: tuple[int, ...]) -> tuple[HitProbability, ...]:
        """Return the probabilities of some kinds with the share of each beside the others, fitted on some of the sets."""
        alone = tuple(self.model(kind, names) for kind in chosen)
        return self.with_shares(names, chosen, alone) if len(chosen) > 1 else alone

    def with_shares(self, names: Sequence[str], chosen: Sequence[int],
                    models: Sequence[HitProbability]) -> tuple[HitProbability, ...]:  # fmt: skip
        """Return models with the shares that suit the best joint hits of some sets."""
        shares = fit_shares(*self.evidence(names, chosen, models))
        return tuple(replace(model, share=share) for model, share in zip(models, shares, strict=True))

    def evidence(self, names: Sequence[str], chosen: Sequence[int],
                 models: Sequence[HitProbability]) -> tuple[Floats64, npt.NDArray[np.bool_]]:  # fmt: skip
        """Return what each kind adds to the best joint hits that all of them hold [n, kinds], and which of the hits are right."""
        rows, right = [], []
        for name in names:
            for asked, _, answers in self.answers(name, "", chosen, models):
                found = best_by_kind(answers)
                for hit in join(answers, self.photographs)[:SHOWN]:
                    logits = logits_of(hit, answers)
                    if len(logits) == len(chosen):
                        rows.append([one.added(logits[one.number], found[one.kind], PRIOR) for one in answers])
                        right.append(hit.path in asked.relevant)
        return np.array(rows), np.array(right)

    def answers(self, name: str, view: str, chosen: Sequence[int],
                models: Sequence[HitProbability]) -> Iterator[tuple[Question, bool, list[IndexAnswer]]]:  # fmt: skip
        """Yield what some indexes answer to the questions of a set."""
        for asked, answerable, found in self.found[name, view]:
            yield asked, answerable, [answer_of(kind, self.indexes[kind], one, model, self.path_of[kind])
                                      for kind, model in zip(chosen, models, strict=True)
                                      if (one := found[kind]) is not None]  # fmt: skip

    def ranked(self, name: str, view: str, chosen: Sequence[int], models: Sequence[HitProbability],
               in_full: bool = False) -> Iterator[tuple[Question, bool, list[tuple[str, float]]]]:  # fmt: skip
        """Yield the ranking of each search as paths with their probabilities; in_full: all evidence added, as if independent."""
        for asked, answerable, answers in self.answers(name, view, chosen, models):
            hits = join(answers, self.photographs)
            rows = [(hit.path, added_in_full(hit, answers) if in_full else hit.probability or 0.0) for hit in hits]
            yield asked, answerable, sorted(rows, key=lambda row: -row[1]) if in_full else rows


def logits_of(hit: JointHit, answers: Sequence[IndexAnswer]) -> dict[int, float]:
    """Return the evidence of each index that holds a hit, by its number."""
    parts = {part.index: part.probability for part in hit.parts}
    return {one.number: one.floor if (p := parts[one.index]) is None else logit(p) for one in answers if one.index in parts}


def added_in_full(hit: JointHit, answers: Sequence[IndexAnswer]) -> float:
    """Return the probability of a hit as if kinds erred independently."""
    return logistic(PRIOR + sum(one - PRIOR for one in logits_of(hit, answers).values()))


def average_precision(ranking: Sequence[str], relevant: frozenset[str]) -> float:
    """Return the mean over the right answers of the precision at their rank, 0 for those not found; in percent."""
    places = [rank for rank, path in enumerate(ranking, start=1) if path in relevant]
    return 100 * sum(number / rank for number, rank in enumerate(places, start=1)) / len(relevant)


def top_four(ranking: Sequence[str], relevant: frozenset[str]) -> float:
    """Return how many of the four photographs of a group are in the first four places, the query counted as the first."""
    return 1 + sum(path in relevant for path in ranking[:3])


def report(trial: Trial, name: str, view: str, chosen: Sequence[int], models: Sequence[HitProbability],
           in_full: bool = False) -> dict[str, Any]:  # fmt: skip
    """Return the values per question, and the calibration of the best hits."""
    values, rows, chances = [], list[tuple[Any, ...]](), []
    for number, (asked, answerable, ranking) in enumerate(trial.ranked(name, view, chosen, models, in_full)):
        if answerable:
            judged = top_four if name == "ukbench" else average_precision
            values.append((judged([path for path, _ in ranking], asked.relevant), asked.group))
        chances += [p for _, p in ranking[:SHOWN]]
        rows += [(0.0, 0.0, path in asked.relevant, rank, answerable, number, asked.group)
                 for rank, (path, _) in enumerate(ranking[:SHOWN])]  # fmt: skip
    some, likely = samples_of(rows), np.array(chances) >= LIKELY
    return {
        "values": [value for value, _ in values],
        "groups": [group for _, group in values],
        "calibration": measure_calibration(np.array(chances), some).as_dict(),
        "likely_right": float(some.right[likely].mean()),
        "right_likely": float(likely[some.right].mean()),
    }


def as_dict(interval: Interval) -> dict[str, float]:
    return {"mean": interval.mean, "low": interval.low, "high": interval.high}


def measure(trial: Trial, name: str, view: str = "") -> dict[str, Any]:
    """Return the results of one set: each kind, and all joined, with the differences of the joint ranking to the others."""
    other, every = tuple(one for one in SETS if one != name), tuple(range(len(trial.kinds)))
    models = trial.models(other, every)
    ways = {kind: report(trial, name, view, (number,), (models[number],)) for number, kind in enumerate(trial.kinds)}
    ways[ADDED] = report(trial, name, view, every, models, in_full=True)
    ways[JOINED] = report(trial, name, view, every, models)
    joint, entries = ways[JOINED]["values"], {}
    for way, one in ways.items():
        values, groups = one.pop("values"), one.pop("groups")
        gain = None if way == JOINED else as_dict(difference(joint, values, groups))  # of all joined over this one
        entries[way] = {**one, "value": as_dict(bootstrap(values, groups)), "gain": gain}
        print(name, view, way, {key: round(x, 3) for key, x in entries[way]["value"].items()}, gain,
              one["calibration"]["error"], one["calibration"]["log_loss"], flush=True)  # fmt: skip
    return {"shares": [model.share for model in models], "ways": entries}


def save(trial: Trial) -> dict[str, HitProbability]:
    """Return the probabilities of every kind, with their shares, as they come with polyvoc; those of SIFT are fitted elsewhere."""
    models = [
        default_hit_probability() if kind == SIFT else trial.model(number, SETS) for number, kind in enumerate(trial.kinds)
    ]
    return dict(zip(trial.kinds, trial.with_shares(SETS, range(len(models)), models), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--kinds", nargs="+", default=["sift", "orb"], help="detectors: names, or files of networks")
    parser.add_argument("--questions", type=int, default=150, help="of each set, at most")
    parser.add_argument("--distractors", action="store_true", help="with photos* in the collection")
    parser.add_argument("--altered", type=int, default=0, help="search with altered queries, too: so many of each set")
    parser.add_argument("--quick", action="store_true", help="few questions; nothing is written")
    parser.add_argument("--save", action="store_true", help="write the coefficients that come with polyvoc")
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    kinds = [Kind.of(detector) for detector in arguments.kinds]
    words = {kind.name: vocabulary_of(kind, arguments.data, arguments.work) for kind in kinds}
    folders = [next(arguments.data.glob(f"{name}*")) for name in (*SETS, *(["photos"] if arguments.distractors else []))]
    indexes = {kind.name: index_of(kind, folders, words[kind.name], arguments.work) for kind in kinds}
    most = 20 if arguments.quick else arguments.questions
    asked = {name: questions(arguments.data, name, most) for name in SETS}
    trial = Trial(indexes, asked, arguments.work, min(arguments.altered, most))
    shipped = save(trial)
    result = {
        "photographs": len(trial.photographs),
        "questions": {name: len(trial.found[name, ""]) // 2 for name in SETS},
        "words": {kind: one.size for kind, one in words.items()},
        "kinds": list(trial.kinds),
        "prior": PRIOR,
        "models": {kind: model.as_dict() for kind, model in shipped.items()},
        "sets": {name: measure(trial, name) for name in SETS},
        "questions_altered": {name: min(arguments.altered, len(asked[name])) for name in SETS},
        "altered": {view: {name: measure(trial, name, view) for name in SETS} for view in VIEWS} if arguments.altered else {},
    }
    for kind, model in zip(kinds, shipped.values(), strict=True) if arguments.save else ():
        stored = replace(model, source=model.source if kind.name == SIFT else source_of(result))
        text = json.dumps(stored.as_dict(), indent=1) + "\n"
        (DATA / probability_file(kind.options.kind.name)).write_text(text, encoding="utf-8")
    if not arguments.quick:
        print(write_result("several", result))


def source_of(result: dict[str, Any]) -> str:
    """Return what coefficients were fitted on."""
    asked = " and ".join(f"{count} questions of {name}" for name, count in result["questions"].items())
    return f"{asked}, with and without right answers, {result['photographs']:,} photographs"


if __name__ == "__main__":
    main()
