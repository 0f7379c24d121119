"""Training of a vocabulary: a random sample of descriptors, approximate k-means, thresholds of the Hamming signatures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from polyvoc import __version__
from polyvoc.errors import ExchangeError, ImageError, OptionError, VocabularyError
from polyvoc.features.extract import check_features, extract_many
from polyvoc.features.feature_files import FeatureFile, kind_of
from polyvoc.features.learned import resolved
from polyvoc.kernels.vectors import Points, Probes, WordTable, scan_cells, score_words, sum_by_word
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.storage.stores import display_name
from polyvoc.threads import thread_map
from polyvoc.types import SIFT, Descriptors, FeatureKind, Floats32, Floats64, Location, Problem, Words
from polyvoc.vocabulary.assign import Assigner, Cells, PrincipalAxes, batches, prepare_cells, project
from polyvoc.vocabulary.codes import PART_VALUES, SAMPLE, learn_decoder, neighbour_order
from polyvoc.vocabulary.vocabulary import ByteTable, Vocabulary, random_rotation

RoundDone = Callable[[int, int, float, float], None]  # round from 1, rounds at most, distortion, share with another word
ImageDone = Callable[[int, int], None]  # images done, images in all
_SETTLED = 1e-3  # training stops when the distortion falls by less than this share
_EFFORT = 0.5  # share of the usual probes in a round: a descriptor keeps its word unless a nearer one is found
_BATCH = 8192
PART_ROUNDS = 10  # of the k-means of a product quantiser
_TOO_FEW = "{} {}, {} words: give more photographs or a smaller size"


@dataclass(frozen=True, eq=False)
class Sample:
    """A random sample of descriptors, and where they came from."""

    descriptors: Descriptors  # [n, dimension]  numbers, or bits
    provenance: Mapping[str, Any]
    problems: tuple[Problem, ...] = field(default=())  # images that could not be used
    name: str = SIFT  # of the kind of features


class KeyedSample(NamedTuple):
    """Descriptors of one image, each with a random key: the sample consists of those with the lowest keys of all images."""

    descriptors: Descriptors  # [n, dimension]
    keys: Floats64  # [n]  from 0 to 1

    @classmethod
    def of(cls, descriptors: Descriptors, seed: int, number: int) -> KeyedSample:
        """Draw keys that depend on the seed and the image's number alone, so images may be sampled in any parts."""
        return cls(descriptors, np.random.default_rng([seed, number]).random(len(descriptors)))

    def below(self, max_key: float) -> KeyedSample:
        """Return the descriptors with keys below `max_key`."""
        low = self.keys < max_key
        return KeyedSample(self.descriptors[low], self.keys[low])


Samples = Iterator[KeyedSample | Problem]  # of images, in order
MaxKey = Callable[[], float]  # returns the key above which descriptors are not needed


class PointSet(Protocol):
    """Points that are assigned to their nearest words, round after round."""

    def assign(self, table: WordTable, centroids: Floats32, words: Words) -> tuple[Floats32, Words]:
        """Return the score and word of each point: the nearest in the cells it probes, or its word in `words` if nearer."""


class TrainWorkers(Protocol):
    """Where training runs: this process or a cluster. The result does not depend on it."""

    def draw(self, paths: Sequence[Location], options: FeatureOptions, seed: int, max_key: MaxKey) -> Samples:
        """Yield the descriptors of each image, in order; those with keys above `max_key()` may be left out."""

    def assign_points(self, points: Floats32, cells: Cells) -> PointSet:
        """Return points [n, padded], in the coordinates of the cells, ready to be assigned to words."""

    def assign(self, vocabulary: Vocabulary, descriptors: Floats32) -> Words:
        """Return the nearest word of each of descriptors [n, dimension], as an `Assigner` does: int32 [n]."""


class LocalTrainWorkers:
    """TrainWorkers: the cores of this machine."""

    def draw(self, paths: Sequence[Location], options: FeatureOptions, seed: int, max_key: MaxKey) -> Samples:
        """Yield the descriptors of each image, in order."""
        return draw_descriptors(paths, options, seed)

    def assign_points(self, points: Floats32, cells: Cells) -> PointSet:
        """Return points [n, padded], in the coordinates of the cells, ready to be assigned to words."""
        return LocalPointSet(points, cells)

    def assign(self, vocabulary: Vocabulary, descriptors: Floats32) -> Words:
        """Return the nearest word of each of descriptors [n, dimension]: int32 [n]."""
        words: Words = Assigner([vocabulary]).assign(descriptors)[:, 0]
        return words


class LocalPointSet:
    """A PointSet in this process, in batches that fit a cache; cells stay in place, so probes are computed once."""

    def __init__(self, points: Floats32, cells: Cells, threads: int | None = None) -> None:
        """Prepare points [n, padded], in the coordinates of the cells, for this many threads or one per core."""
        parts = [cells.axes.points(rows) for rows in batches(points, _BATCH)]
        self._threads = threads
        self._batches = list(zip(parts, thread_map(lambda part: cells.probe(part, _EFFORT), parts, threads), strict=True))
        self._ends = np.cumsum([len(part.heads) for part in parts])[:-1]

    def assign(self, table: WordTable, centroids: Floats32, words: Words) -> tuple[Floats32, Words]:
        """Return the score and word of each point: the nearest in the cells it probes, or its word in `words` if nearer."""

        def assign_batch(job: tuple[tuple[Points, tuple[Probes, Probes]], Words]) -> tuple[Floats32, Words]:
            (points, probes), old = job
            nearest = old.copy()
            best = np.empty(len(old), dtype=np.float32)
            score_words(points.rows, old, centroids, best)
            for probe in probes:
                scan_cells(points, probe, table, best[:, None, None], nearest[:, None, None])
            return best, nearest

        jobs = list(zip(self._batches, np.split(words, self._ends), strict=True))
        scores, nearest = zip(*thread_map(assign_batch, jobs, self._threads), strict=True)
        return np.concatenate(scores), np.concatenate(nearest)


def sample_descriptors(
    paths: Sequence[Location],
    options: FeatureOptions = FeatureOptions(),  # noqa: B008 (frozen)
    limit: int = 10_000_000,
    seed: int = 0,
    progress: ImageDone | None = None,
    workers: TrainWorkers = LocalTrainWorkers(),  # noqa: B008 (holds nothing)
) -> Sample:
    """Return at most `limit` descriptors of photographs, drawn with equal probability; unusable files are `problems`."""
    if limit < 1:
        raise OptionError(f"limit={limit!r} should be at least 1")
    reservoir, options = _Reservoir(limit), resolved(options)
    problems = []
    for done, drawn in enumerate(workers.draw(paths, options, seed, lambda: reservoir.max_key), 1):
        if isinstance(drawn, Problem):
            problems.append(drawn)
        else:
            reservoir.add(drawn)
        if progress is not None:
            progress(done, len(paths))
    used = len(paths) - len(problems)
    if not used:
        raise VocabularyError(f"none of {len(paths)} photographs could be used: give a folder of photographs")
    provenance = {"photographs": used, "features": options.as_dict()}
    return Sample(reservoir.descriptors(), provenance, tuple(problems), options.kind.name)


def sample_features(file: FeatureFile, options: TrainOptions, progress: ImageDone | None = None) -> Sample:
    """Return a sample of the descriptors in a file of features, drawn with equal probability."""
    kind = kind_of(file)
    settings = FeatureOptions(), options.max_descriptors, options.seed, progress
    sample = sample_descriptors(file.names(), *settings, _FeatureReader(file, kind))
    return replace(sample, provenance={"photographs": sample.provenance["photographs"]}, name=kind.name)


def draw_descriptors(
    paths: Sequence[Location], options: FeatureOptions, seed: int, first: int = 0, threads: int | None = None
) -> Samples:
    """Yield all descriptors of each image with their keys, or its problem; `first` is the number of the first image."""
    for number, (path, result) in enumerate(extract_many(paths, options, threads), first):
        if isinstance(result, ImageError):
            yield Problem(str(path), str(result))
        else:
            yield KeyedSample.of(result.descriptors, seed, number)


def train(
    sample: Sample | npt.ArrayLike,
    options: TrainOptions = TrainOptions(),  # noqa: B008 (frozen)
    progress: RoundDone | None = None,
    source: str = "",
    workers: TrainWorkers = LocalTrainWorkers(),  # noqa: B008 (holds nothing)
    name: str = SIFT,
    codes: bool = True,
) -> Vocabulary:
    """Train a vocabulary on descriptors [n, dimension], numbers or bits; the same sample and options give the same one.

    source: of the photographs, for the provenance; name: of the kind of bare descriptors, which a `Sample` has itself. codes:
    whether it can serve codes: words are numbered so that neighbours are near each other, and a decoder is learned.
    """
    sample = sample if isinstance(sample, Sample) else Sample(np.asarray(sample), {}, name=name)
    descriptors = _checked(sample.descriptors, options.size)
    dimension = descriptors.shape[1]
    # A bit needs an axis; two rotations have twice as many. Where not all fit, one uint64: such signatures are compared
    # fastest, and have likelihood tables.
    bits = options.bits if options.bits <= dimension or options.bits == 2 * dimension else min(64, dimension)
    rotation = random_rotation(dimension, bits) if bits else None
    random = np.random.default_rng(options.seed)
    clustered = descriptors
    if len(descriptors) > options.max_descriptors:
        rows = random.choice(len(descriptors), max(options.max_descriptors, options.size), replace=False)
        clustered = descriptors[np.sort(rows)]
    centroids, rounds, distortion = _cluster(clustered, options, random, progress, workers)
    centroids = centroids[neighbour_order(centroids)] if codes else centroids
    vocabulary = Vocabulary.create(centroids, name=sample.name, binary=sample.descriptors.dtype == np.bool_)
    counts = {"descriptors": len(descriptors), "descriptors_clustered": len(clustered), "seed": options.seed, "rounds": rounds}
    provenance = {**sample.provenance, "source": source, **counts, "distortion": round(distortion, 6), "polyvoc": __version__}
    if rotation is None:
        return replace(vocabulary, provenance=provenance)
    words = workers.assign(vocabulary, descriptors)
    thresholds = learn_thresholds(descriptors, words, vocabulary.centroids, rotation)
    signed = replace(vocabulary, medians=ByteTable.of(thresholds), rotation=rotation, provenance=provenance)
    return with_decoder(signed, descriptors, words, options.seed) if codes else signed


def with_decoder(vocabulary: Vocabulary, descriptors: Floats32, words: Words, seed: int = 0) -> Vocabulary:
    """Return a vocabulary with the decoder of its codes, learned from descriptors [n, dimension] and their nearest words [n],
    and with its cells."""
    random = np.random.default_rng([seed, SAMPLE])
    rows = np.sort(random.choice(len(descriptors), min(SAMPLE, len(descriptors)), replace=False))
    options = TrainOptions(size=PART_VALUES, rounds=PART_ROUNDS)

    def cluster(values: Floats32, size: int) -> Floats32:
        size = min(size, len(np.unique(values, axis=0)))
        return _cluster(np.ascontiguousarray(values), replace(options, size=size), random, None, LocalTrainWorkers())[0]

    decoder = learn_decoder(descriptors[rows], words[rows], vocabulary, cluster)
    return replace(vocabulary, decoder=decoder, cells=prepare_cells(vocabulary))


def learn_thresholds(descriptors: Floats32, words: Words, centroids: Floats32, rotation: Floats32) -> Floats32:
    """Return the median of each word's projected descriptors, [size, bits]; a word without any gets its own projection."""
    thresholds = project(centroids, rotation)
    order = np.argsort(words, kind="stable")
    ends = np.cumsum(np.bincount(words, minlength=len(centroids)))

    def learn(numbers: npt.NDArray[np.int64]) -> None:
        first = ends[numbers[0] - 1] if numbers[0] else 0
        z = project(descriptors[order[first : ends[numbers[-1]]]], rotation)
        for word, members in zip(numbers, np.split(z, ends[numbers[:-1]] - first), strict=True):
            if len(members):
                thresholds[word] = np.median(members, axis=0)

    thread_map(learn, np.array_split(np.arange(len(centroids)), -(-len(centroids) // 256)))
    return thresholds


def _cluster(
    descriptors: Floats32, options: TrainOptions, random: np.random.Generator, progress: RoundDone | None, workers: TrainWorkers
) -> tuple[Floats32, int, float]:
    """Return the centroids [size, dimension] of approximate k-means, its number of rounds, and the distortion of the last."""
    first = _distinct(descriptors, options.size, random)
    axes = PrincipalAxes.of(first)  # distances are the same in its coordinates
    centroids, points = axes.rotate(first), axes.rotate(descriptors)
    cells = Cells.among(centroids, axes)
    point_set = workers.assign_points(points, cells)
    words, last = np.zeros(len(points), dtype=np.int32), np.inf
    for number in range(1, options.rounds + 1):
        scores, nearest = point_set.assign(cells.word_table(centroids), centroids, words)
        moved, words = float(np.mean(nearest != words)), nearest
        distortion = _distortion(points, scores)
        centroids = _means(points, words, options.size, random)
        if progress is not None:
            progress(number, options.rounds, distortion, moved)
        if last - distortion < _SETTLED * last:
            break
        last = distortion
    return axes.unrotate(centroids), number, distortion


def _means(points: Floats32, words: Words, size: int, random: np.random.Generator) -> Floats32:
    """Return the mean of each word's points; an empty word starts anew at a random point of a large word."""
    sums = np.zeros((size, points.shape[1]), dtype=np.float64)
    sum_by_word(points, words, sums)
    counts = np.bincount(words, minlength=size)
    means = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32)
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        crowded = np.flatnonzero(counts[words] >= 2 * len(words) / size)
        pool = crowded if len(crowded) >= len(empty) else np.arange(len(words))
        means[empty] = points[random.choice(pool, len(empty), replace=False)]
    return means


def _distinct(descriptors: Floats32, size: int, random: np.random.Generator) -> Floats32:
    """Return `size` random descriptors, all different."""
    shuffled = random.permutation(len(descriptors))
    for count in (min(len(descriptors), 2 * size), len(descriptors)):
        rows = descriptors[shuffled[:count]]
        raw = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))
        _, first = np.unique(raw.ravel(), return_index=True)
        if len(first) >= size:
            return rows[np.sort(first)[:size]]
    raise VocabularyError(_TOO_FEW.format(len(first), "distinct descriptors", size))


def _distortion(points: Floats32, scores: Floats32) -> float:
    """Return the mean squared distance of points to their words, from scores x.w - |w|^2 / 2."""
    squares = sum(float(np.einsum("ij,ij->", rows, rows, dtype=np.float64)) for rows in batches(points))
    return (squares - 2 * float(scores.sum(dtype=np.float64))) / len(points)


def _checked(descriptors: npt.ArrayLike, size: int) -> Floats32:
    table = np.ascontiguousarray(descriptors, dtype=np.float32)
    if table.ndim != 2 or table.shape[1] < 1:
        raise OptionError(f"descriptors: shape {table.shape} should be (number, dimension)")
    if len(table) < size:
        raise VocabularyError(_TOO_FEW.format(len(table), "descriptors", size))
    if not all(np.isfinite(rows).all() for rows in batches(table)):
        raise OptionError("descriptors: some values are not finite; leave them out")
    return table


class _Reservoir:
    """The sample so far: a descriptor stays if its key is among the `limit` lowest."""

    def __init__(self, limit: int) -> None:
        self.max_key = 1.0  # descriptors with higher keys are not needed
        self._limit = limit
        self._samples: list[KeyedSample] = []
        self._count = 0

    def add(self, sample: KeyedSample) -> None:
        """Add the descriptors of the next image."""
        self._samples.append(sample.below(self.max_key))
        self._count += len(self._samples[-1].keys)
        if self._count > 2 * self._limit:
            self._prune()

    def descriptors(self) -> Descriptors:
        """Return the descriptors with the lowest keys, in the order in which they were added."""
        self._prune()
        return self._samples[0].descriptors

    def _prune(self) -> None:
        descriptors, keys = map(np.concatenate, zip(*self._samples, strict=True))
        if self._count > self._limit:
            chosen = np.sort(np.argpartition(keys, self._limit)[: self._limit])
            descriptors, keys = descriptors[chosen], keys[chosen]
            self.max_key = float(keys.max())
        self._samples, self._count = [KeyedSample(descriptors, keys)], len(keys)


class _FeatureReader(LocalTrainWorkers):
    """Draws the descriptors from a file of features instead of photographs."""

    def __init__(self, file: FeatureFile, kind: FeatureKind) -> None:
        self._file, self._kind = file, kind

    def draw(self, paths: Sequence[Location], options: FeatureOptions, seed: int, max_key: MaxKey) -> Samples:
        """Yield the descriptors of each image of the file, in order."""
        for number, (name, result) in enumerate(self._file.read()):
            try:
                if isinstance(result, ExchangeError):
                    raise result
                check_features(result, self._kind, "the sample")
                yield KeyedSample.of(result.descriptors, seed, number)
            except ExchangeError as error:
                yield Problem(name, str(error))
            except OptionError as error:
                yield Problem(name, f"{display_name(self._file.path)}: {display_name(name)}: {error}")
