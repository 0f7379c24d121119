"""Features, vocabularies and quantised datasets for experiments, all from a cache.

A lazy bench is identified by what it is made of: names and sizes of photographs, options of the training, ground truth. So
results of another machine are taken up without reading a photograph; vocabularies are trained for missing results only.
`evaluate.EVALUATION_VERSION` tells results of changed code apart.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc import __version__
from polyvoc.errors import OptionError
from polyvoc.experiments.cache import current_commit, digest_of, load_or_make, store_folder
from polyvoc.experiments.datasets.feature_cache import Detection, FeatureStore, identity_of, state_of
from polyvoc.experiments.datasets.image_folder import Kind
from polyvoc.experiments.datasets.readers import Dataset
from polyvoc.features.extract import root_sift
from polyvoc.index.segment import MAX_IMAGES, Batch, Geometry, Segment
from polyvoc.options import CODE_ASSIGNMENTS, CODE_CUT, CODES, FeatureOptions, ScoringOptions, SearchOptions, TrainOptions
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import norms_of
from polyvoc.search.pipeline import score_all
from polyvoc.search.probability import HitProbability, hit_probability_of
from polyvoc.search.query import Query
from polyvoc.storage.files import map_array
from polyvoc.types import Array, FeatureCodes, Floats32, Keypoints, Progress, Signatures, Words, strictly_inside
from polyvoc.vocabulary.assign import Quantiser
from polyvoc.vocabulary.codes import Coder, planes_of
from polyvoc.vocabulary.train import Sample, train
from polyvoc.vocabulary.vocabulary import Vocabulary

BLOCK = 100_000  # descriptors quantised at a time
MEDIANS = 1_000_000  # descriptors for the medians of signatures, at most


class MissingResult(Exception):
    """A result that is not there, on a workbench that makes none."""


def no_progress(stage: str, done: int, total: int) -> None:
    """Show no progress."""


@dataclass(frozen=True)
class LazyVocabulary:
    """A vocabulary that is loaded, or trained, when its words are needed."""

    identity: str  # changes with the photographs and the options that it is trained with
    size: int
    load: Callable[[], Vocabulary]

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> LazyVocabulary:
        """Return a vocabulary that is there already."""
        return cls(vocabulary.fingerprint, vocabulary.size, lambda: vocabulary)


class Quantised(NamedTuple):
    """The features of a dataset and their words."""

    store: FeatureStore  # the images of the database, then the queries that are not in it
    words: Words  # [F, K]
    signatures: Signatures | None  # [F, K], or [F, K, 2] beyond 64 bits
    vocabularies: tuple[Vocabulary, ...]
    codes: FeatureCodes | None = None
    coder: Coder | None = None

    def chosen(self, columns: list[int]) -> Quantised:
        """Return the words of some of the vocabularies."""
        bits = None if self.signatures is None else self.signatures[:, columns]
        own = tuple(self.vocabularies[k] for k in columns)
        return self._replace(words=self.words[:, columns], signatures=bits, vocabularies=own)


@dataclass(frozen=True)
class Workbench:
    """Source of features, vocabularies and words for experiments; results are cached."""

    cache: Path
    features: Detection = FeatureOptions()  # noqa: RUF009 (frozen)
    progress: Progress = no_progress
    results: Path | None = None  # folder of the results; default: in the cache
    finished: bool = False  # take finished results only: raise MissingResult for any other

    def store(self, files: Sequence[Path], kind: Kind = "photographs") -> FeatureStore:
        """Return the features of files."""
        return FeatureStore.open(self.cache, files, kind, self.features, self.progress)

    def vocabulary(self, store: FeatureStore, options: TrainOptions, source: str = "") -> Vocabulary:
        """Return the vocabulary trained on the features of a store."""
        limit = max(options.max_descriptors, MEDIANS)
        folder = self.cache / "vocabularies" / digest_of(store.digest, asdict(options), limit, __version__)
        if folder.is_dir():
            return Vocabulary.load(folder)
        sample = Sample(store.sample(limit, 0), {"photographs": len(store)}, name=self.features.kind.name)
        stage = f"vocabulary of {options.size:,} words, seed {options.seed}"

        def show(done: int, total: int, distortion: float, moved: float) -> None:
            self.progress(f"{stage}: distortion {distortion:.4f}", done, total)

        trained = train(sample, options, show, source, codes=False)
        trained.save(folder)
        return trained

    def words(self, store: FeatureStore, vocabulary: Vocabulary) -> tuple[Words, Signatures | None]:
        """Return the word [F] of every feature of a store in one vocabulary, and its signature."""
        done, parts = 0, []
        for number, part in enumerate(store.parts):
            folder = self.cache / "words" / digest_of(part.name, vocabulary.fingerprint)
            if not folder.is_dir():
                store_folder(folder, _quantise(store.sift(number), vocabulary), {"vocabulary": vocabulary.fingerprint})
            rows = len(store.sift(number))
            shape = (rows,) if vocabulary.bits <= 64 else (rows, 2)
            bits = map_array(folder / "signatures.npy", np.uint64, shape) if vocabulary.bits else None
            parts.append((map_array(folder / "words.npy", np.int32, (rows,)), bits))
            done += rows
            self.progress(f"words: vocabulary {vocabulary.fingerprint}", done, store.n_features)
        words = np.concatenate([np.empty(0, np.int32), *(words for words, _ in parts)])
        if not vocabulary.bits:
            return words, None
        nothing = np.empty((0,) if vocabulary.bits <= 64 else (0, 2), np.uint64)
        return words, np.concatenate([nothing, *(bits for _, bits in parts if bits is not None)])

    def bench(self, dataset: Dataset, vocabularies: Sequence[Vocabulary], fine: Vocabulary | None = None) -> QuantisedDataset:
        """Return a dataset quantised by vocabularies, with codes relative to a fine one if it is given."""
        name = self.features.kind.name
        for vocabulary in (*vocabularies, *([] if fine is None else [fine])):
            if vocabulary.name != name or vocabulary.binary:
                raise OptionError(
                    f"datasets are read as {name}, the vocabulary is of {vocabulary.kind}; give vocabularies of {name}"
                )
        own = [LazyVocabulary.of(vocabulary) for vocabulary in vocabularies]
        return self._bench(dataset, own, state_of(_files_of(dataset), dataset.kind, self.features), fine)

    def lazy_bench(self, dataset: Dataset, vocabularies: Sequence[LazyVocabulary]) -> QuantisedDataset:
        """Return a dataset that is quantised when its words are needed, with the same name on every machine."""
        return self._bench(dataset, vocabularies, identity_of(_files_of(dataset), dataset.kind, self.features))

    def _bench(self, dataset: Dataset, vocabularies: Sequence[LazyVocabulary], photographs: str,
               fine: Vocabulary | None = None) -> QuantisedDataset:  # fmt: skip
        files = _files_of(dataset)
        names = [vocabulary.identity for vocabulary in vocabularies] + ([] if fine is None else [fine.fingerprint])
        name = digest_of(dataset.name, photographs, names, truth_of(dataset))

        def load() -> Quantised:
            return self._quantised(files, dataset, [vocabulary.load() for vocabulary in vocabularies], fine)

        return QuantisedDataset(dataset, tuple(vocabulary.size for vocabulary in vocabularies), name, load)

    def _quantised(self, files: Sequence[Path], dataset: Dataset, vocabularies: Sequence[Vocabulary],
                   fine: Vocabulary | None) -> Quantised:  # fmt: skip
        store = self.store(files, dataset.kind)
        coder = None if fine is None else Coder(fine)
        codes = None if coder is None else self.codes(store, coder)
        parts = [self.words(store, vocabulary) for vocabulary in vocabularies]
        words = np.stack([words for words, _ in parts], axis=1) if parts else np.empty((store.n_features, 0), np.int32)
        signed = [bits for _, bits in parts if bits is not None]
        bits = np.stack(signed, axis=1) if parts and len(signed) == len(parts) else None
        return Quantised(store, words, bits, tuple(vocabularies), codes, coder)

    def codes(self, store: FeatureStore, coder: Coder) -> FeatureCodes:
        """Return the code of every feature of a store."""
        parts, planes = [], planes_of(coder.bits)
        for number, part in enumerate(store.parts):
            folder = self.cache / "codes" / digest_of(part.name, coder.vocabulary.fingerprint)
            sift = store.sift(number)
            if not folder.is_dir():
                made = [coder.encode(root_sift(sift[first : first + BLOCK])) for first in range(0, max(len(sift), 1), BLOCK)]
                arrays = dict(zip(FeatureCodes._fields, map(np.concatenate, zip(*made, strict=True)), strict=True))
                store_folder(folder, arrays, {"vocabulary": coder.vocabulary.fingerprint})
            shapes = {"words": (np.uint32, ()), "codes": (np.uint64, (planes,)), "rest": (np.uint8, (coder.n_parts,))}
            stored = (map_array(folder / f"{name}.npy", kind, (len(sift), *shape)) for name, (kind, shape) in shapes.items())
            parts.append(FeatureCodes(*stored))
        return FeatureCodes(*map(np.concatenate, zip(*parts, strict=True)))

    def remember(self, name: str, inputs: Sequence[Any], make: Callable[[], Any]) -> Any:
        """Return the JSON value that was made of the same inputs; if there is none, make it and store it under the name."""
        readable = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        folder = self.cache / "values" if self.results is None else self.results
        path = folder / f"{readable}-{digest_of(*inputs)[:12]}.json"
        if self.finished and not path.is_file():
            raise MissingResult(name)

        def made() -> dict[str, Any]:
            started = time.perf_counter()
            value = make()
            seconds = round(time.perf_counter() - started, 1)
            facts = {"commit": current_commit(), "date": f"{datetime.now(UTC):%Y-%m-%d}", "seconds": seconds}
            return {"name": name, **facts, "inputs": inputs, "value": value}

        return load_or_make(path, made)["value"]


@dataclass(frozen=True, eq=False)
class QuantisedDataset:
    """A dataset quantised by K vocabularies; features and words are loaded at their first use."""

    dataset: Dataset
    sizes: tuple[int, ...]  # words of each vocabulary
    name: str  # changes with the photographs, the ground truth and the vocabularies
    load: Callable[[], Quantised]

    @cached_property
    def _loaded(self) -> Quantised:
        return self.load()

    @property
    def store(self) -> FeatureStore:
        """Return the features of the images of the database, then of the queries that are not in it."""
        return self._loaded.store

    @property
    def words(self) -> Words:
        """Return the words of all features [F, K]."""
        return self._loaded.words

    @property
    def signatures(self) -> Signatures | None:
        """Return the signatures of all features [F, K], or [F, K, 2] beyond 64 bits."""
        return self._loaded.signatures

    @property
    def vocabularies(self) -> tuple[Vocabulary, ...]:
        """Return the vocabularies."""
        return self._loaded.vocabularies

    @property
    def bits(self) -> int:
        """Return the length of a signature as the engine counts it: a multiple of 64, 0 without."""
        return 0 if self.signatures is None else 64 * (1 if self.signatures.ndim == 2 else self.signatures.shape[2])

    @property
    def n_images(self) -> int:
        """Return the number of images of the database."""
        return len(self.dataset.images)

    @property
    def n_features(self) -> int:
        """Return the number of features of the database."""
        return int(self.store.starts[self.n_images])

    @cached_property
    def engine(self) -> Engine:
        """Build the segments of the database."""
        ranges = [range(first, min(first + MAX_IMAGES, self.n_images)) for first in range(0, self.n_images, MAX_IMAGES)]
        fine = 0 if self.coder is None else self.coder.vocabulary.size
        return Engine([Segment.build(self._batch(images), self.sizes, fine) for images in ranges], self.sizes)

    @property
    def coder(self) -> Coder | None:
        """Return what makes codes, None if there are none."""
        return self._loaded.coder

    def _batch(self, images: range) -> Batch:
        starts = self.store.starts[images.start : images.stop + 1]
        rows = slice(int(starts[0]), int(starts[-1]))
        geometry = np.concatenate([np.empty((0, 4), np.float32), *(self.store.geometry(image) for image in images)])
        codes = self._loaded.codes
        return Batch(
            ids=np.arange(images.start, images.stop, dtype=np.int64),
            feature_starts=starts - starts[0],
            geometry=Geometry.of(geometry[:, :2], geometry[:, 2], geometry[:, 3], starts - starts[0]),
            words=self.words[rows],
            signatures=None if self.signatures is None else self.signatures[rows],
            codes=None if codes is None else codes.chosen(rows),
        )

    def rows(self, question: int) -> npt.NDArray[np.int64]:
        """Return the numbers of the query features of a question: those of its photograph, or inside its region."""
        region, file = self.dataset.questions[question].region, self._files[question]
        numbers = np.arange(self.store.starts[file], self.store.starts[file + 1])
        return numbers if region is None else numbers[strictly_inside(self.store.geometry(file)[:, :2], region)]

    def scores(self, question: int, options: SearchOptions) -> npt.NDArray[np.float32]:
        """Return the score of every image of the database for a question."""
        query = self.query(question, options)
        return np.concatenate(score_all(self.engine, query, options, coder=self.coder, probability=self.probability))

    @property
    def probability(self) -> HitProbability | None:
        """Return the model of hit probabilities, None where none was fitted."""
        every = (*self.vocabularies, *([] if self.coder is None else [self.coder.vocabulary]))
        bits = 0 if self.signatures is None or not self.vocabularies else self.vocabularies[0].bits
        return hit_probability_of(every[0].kind, self.engine.code_bits, bits) if every else None

    def norms(self, options: ScoringOptions) -> list[Floats32]:
        """Return the norms of the images of each segment."""
        return engine_norms(self.engine, options)

    def query(self, question: int, options: ScoringOptions | None = None) -> Query:
        """Return the words, signatures, codes and keypoints of a question."""
        rows, codes = self.rows(question), None
        words, bits = self.words[rows], None if self.signatures is None else self.signatures[rows]
        by_codes = options is not None and options.merge == CODES
        if options is not None and options.n_assignments > 1 and not by_codes:
            words, bits = self._quantiser.quantise(self.descriptors(question), options.n_assignments)
        verified = isinstance(options, SearchOptions) and options.verify > 0
        if self.coder is not None and (options is None or by_codes or verified):
            n_words = options.n_assignments if options is not None and by_codes else CODE_ASSIGNMENTS
            codes = self.coder.query(self.descriptors(question), n_words, CODE_CUT)
        geometry = self._own(question, self.store.geometry)
        return Query(codes, words, bits, Keypoints(geometry[:, :2], geometry[:, 2], geometry[:, 3]))

    def descriptors(self, question: int) -> Floats32:
        """Return the rootSIFT descriptors of a question."""
        return self._own(question, self.store.descriptors)

    def _own(self, question: int, read: Callable[[int], Array]) -> Array:
        """Return the rows of a question out of those of its file."""
        file = self._files[question]
        return np.asarray(read(file)[self.rows(question) - self.store.starts[file]])

    def first(self, count: int) -> QuantisedDataset:
        """Return the dataset with the first vocabularies only, or all if there are fewer."""
        return self.chosen(range(min(count, len(self.sizes))))

    def chosen(self, numbers: Sequence[int]) -> QuantisedDataset:
        """Return the dataset with some of the vocabularies."""
        columns = list(numbers)
        sizes, name = tuple(self.sizes[k] for k in columns), digest_of(self.name, columns)
        return QuantisedDataset(self.dataset, sizes, name, lambda: self._loaded.chosen(columns))

    @cached_property
    def _quantiser(self) -> Quantiser:
        return Quantiser(self.vocabularies)

    @cached_property
    def _files(self) -> list[int]:
        """Return the number of each question's photograph in the store."""
        outside = itertools.count(self.n_images)
        return [next(outside) if question.image is None else question.image for question in self.dataset.questions]


def _files_of(dataset: Dataset) -> list[Path]:
    """Return the images of a dataset, then the queries that are not in the database."""
    return [*dataset.images, *(question.source for question in dataset.questions if question.image is None)]


def engine_norms(engine: Engine, options: ScoringOptions) -> list[Floats32]:
    """Return the norms of the images of each segment."""
    return engine.shards.each(norms_of, options.norm_key(len(engine.sizes)))


def truth_of(dataset: Dataset) -> list[Any]:
    """Return the questions and relevant images of a dataset as plain values."""
    questions = [[q.name, q.image, q.region, q.group] for q in dataset.questions]
    truths = {
        level: [[sorted(truth.relevant), sorted(truth.junk)] for truth in truths] for level, truths in dataset.truths.items()
    }
    return [questions, truths, dataset.measure]


def _quantise(sift: npt.NDArray[np.uint8], vocabulary: Vocabulary) -> dict[str, npt.NDArray[Any]]:
    """Return the words, and the signatures if the vocabulary has them, of SIFT descriptors [n, 128]."""
    quantiser = _quantiser(vocabulary)
    parts = [quantiser.quantise(root_sift(sift[first : first + BLOCK])) for first in range(0, len(sift), BLOCK)]
    arrays = {"words": np.concatenate([np.empty(0, np.int32), *(words[:, 0] for words, _ in parts)])}
    if vocabulary.bits:
        signed = [bits[:, 0] for _, bits in parts if bits is not None]
        nothing = np.empty((0,) if vocabulary.bits <= 64 else (0, 2), np.uint64)
        arrays["signatures"] = np.concatenate([nothing, *signed])
    return arrays


@lru_cache(maxsize=1)
def _quantiser(vocabulary: Vocabulary) -> Quantiser:
    return Quantiser([vocabulary])
