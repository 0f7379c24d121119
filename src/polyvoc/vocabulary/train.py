"""Sample descriptors, approximate k-means."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from polyvoc import __version__
from polyvoc.errors import ExchangeError, ImageError, OptionError, VocabularyError
from polyvoc.features.extract import check_features
from polyvoc.features.feature_files import FeatureFile, kind_of
from polyvoc.kernels.vectors import Points, Probes, WordTable, scan_cells, score_words, sum_by_word
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.storage.stores import display_name
from polyvoc.threads import map_in_threads
from polyvoc.types import SIFT, Descriptors, FeatureKind, Floats32, Problem, Words
from polyvoc.vocabulary.assign import Assigner, Cells, PrincipalAxes, batches
from polyvoc.vocabulary.vocabulary import ByteTable, Vocabulary, fitting_bits, project, random_rotation

if TYPE_CHECKING:
    from polyvoc.types import Location

# Called after each round with: round (1, 2, ...), rounds at most, distortion, share of descriptors that changed their word.
RoundDone = Callable[[int, int, float, float], None]
# Called after each photograph with: photographs done, photographs in all.
PhotographDone = Callable[[int, int], None]
_SETTLED = 1e-3  # training stops when the distortion falls by less than this share
_EFFORT = 0.5  # share of the usual probes in a round: a descriptor keeps its word unless a nearer one is found
_BATCH = 8192


@dataclass(frozen=True, eq=False)
class Sample:
    """Descriptors drawn from photographs, and where they came from."""

    descriptors: Descriptors  # [n, dimension]  numbers, or bits
    provenance: Mapping[str, Any]
    problems: tuple[Problem, ...] = field(default=())  # photographs that could not be used
    name: str = SIFT  # what made the descriptors


class KeyedSample(NamedTuple):
    """Descriptors of one photograph, each with a random key: a sample holds those with the lowest keys of all."""

    descriptors: Descriptors  # [n, dimension]
    keys: npt.NDArray[np.float64]  # [n]  from 0 to 1

    def below(self, ceiling: float) -> KeyedSample:
        """Give those with keys below a ceiling."""
        low = self.keys < ceiling
        return KeyedSample(self.descriptors[low], self.keys[low])


class PointSet(Protocol):
    """Points that look for their nearest words, round after round."""

    def assign(self, table: WordTable, centroids: Floats32, words: Words) -> tuple[Floats32, Words]:
        """Give the score and word of each point: the nearest in the cells that it probes, or the one it had if nearer."""


class TrainWorkers(Protocol):
    """Whoever does the work of training; who they are does not change the result."""

    def draw(
        self, paths: Sequence[Location], options: FeatureOptions, seed: int, ceiling: Callable[[], float]
    ) -> Iterator[KeyedSample | Problem]:
        """Give what is drawn from each photograph, in their order; descriptors with keys above the ceiling are not needed."""

    def gather(self, points: Floats32, cells: Cells) -> PointSet:
        """Let points [n, padded], in the coordinates of the cells, look for words."""

    def assign(self, vocabulary: Vocabulary, descriptors: Floats32) -> Words:
        """Give the nearest word of each of descriptors [n, dimension], as an `Assigner` does: int32 [n]."""


class LocalTrainWorkers:
    """Workers: the cores of this machine."""

    def draw(
        self, paths: Sequence[Location], options: FeatureOptions, seed: int, ceiling: Callable[[], float]
    ) -> Iterator[KeyedSample | Problem]:
        """Give what is drawn from each photograph, in their order."""
        return draw_descriptors(paths, options, seed)

    def gather(self, points: Floats32, cells: Cells) -> PointSet:
        """Let points [n, padded], in the coordinates of the cells, look for words."""
        return Batches(points, cells)

    def assign(self, vocabulary: Vocabulary, descriptors: Floats32) -> Words:
        """Give the nearest word of each of descriptors [n, dimension], as an `Assigner` does: int32 [n]."""
        words: Words = Assigner([vocabulary]).assign(descriptors)[:, 0]
        return words


class Batches:
    """A crowd in this process, in batches that fit a cache; what a point probes is found once, since cells stay in place."""

    def __init__(self, points: Floats32, cells: Cells, threads: int | None = None) -> None:
        """Prepare points [n, padded], in the coordinates of the cells, for this many threads or one per core."""
        self._threads = threads
        self._work = map_in_threads(lambda rows: _probe(rows, cells), batches(points, _BATCH), threads)
        self._ends = np.cumsum([len(points.rows) for points, _ in self._work])[:-1]

    def assign(self, table: WordTable, centroids: Floats32, words: Words) -> tuple[Floats32, Words]:
        """Give the score and word of each point: the nearest in the cells that it probes, or the one it had if nearer."""

        def of_batch(job: tuple[tuple[Points, tuple[Probes, Probes]], Words]) -> tuple[Floats32, Words]:
            (points, probes), old = job
            nearest = old.copy()
            best = np.empty(len(old), dtype=np.float32)
            score_words(points.rows, old, centroids, best)
            for probe in probes:
                scan_cells(points, probe, table, best[:, None, None], nearest[:, None, None])
            return best, nearest

        jobs = list(zip(self._work, np.split(words, self._ends), strict=True))
        done = map_in_threads(of_batch, jobs, self._threads)
        return np.concatenate([scores for scores, _ in done]), np.concatenate([found for _, found in done])


def sample_descriptors(
    paths: Sequence[Location],
    options: FeatureOptions = FeatureOptions(),  # noqa: B008 (frozen)
    limit: int = 10_000_000,
    seed: int = 0,
    progress: PhotographDone | None = None,
    workers: TrainWorkers = LocalTrainWorkers(),  # noqa: B008 (holds nothing)
) -> Sample:
    """Draw at most `limit` descriptors from photographs, each with the same chance; broken files are reported."""
    if limit < 1:
        raise OptionError(f"limit={limit!r} should be at least 1")
    urn = _Reservoir(limit)
    problems = []
    for done, drawn in enumerate(workers.draw(paths, options, seed, lambda: urn.ceiling), 1):
        if isinstance(drawn, Problem):
            problems.append(drawn)
        else:
            urn.add(drawn)
        if progress is not None:
            progress(done, len(paths))
    used = len(paths) - len(problems)
    if not used:
        raise VocabularyError(f"none of {len(paths)} photographs could be used: give a folder of photographs")
    provenance = {"photographs": used, "features": asdict(options)}
    return Sample(urn.descriptors(), provenance, tuple(problems), options.kind.name)


def draw_descriptors(
    paths: Sequence[Location], options: FeatureOptions, seed: int, first: int = 0, threads: int | None = None
) -> Iterator[KeyedSample | Problem]:
    """Give all descriptors of each photograph with their keys, or what is wrong with it; `first` is the first one's number.

    The keys depend on the seed and the photograph's number alone, so photographs may be drawn from in any parts.
    """
    from polyvoc.features.extract import extract_many  # training on descriptors made elsewhere does without OpenCV

    for number, (path, result) in enumerate(extract_many(paths, options, threads), first):
        if isinstance(result, ImageError):
            yield Problem(str(path), str(result))
        else:
            yield KeyedSample(result.descriptors, np.random.default_rng([seed, number]).random(len(result)))


def train(
    sample: Sample | npt.ArrayLike,
    options: TrainOptions = TrainOptions(),  # noqa: B008 (frozen)
    progress: RoundDone | None = None,
    source: str = "",
    workers: TrainWorkers = LocalTrainWorkers(),  # noqa: B008 (holds nothing)
    name: str = SIFT,
) -> Vocabulary:
    """Learn a vocabulary from descriptors [n, dimension]; the same sample and options give the same vocabulary.

    `source` names the photographs in the vocabulary's provenance. Bits (bool) are those of a binary feature. `name` says what
    made bare descriptors, such as "superpoint"; a sample knows it.
    """
    sample = sample if isinstance(sample, Sample) else Sample(np.asarray(sample), {}, name=name)
    origin = dict(sample.provenance)
    descriptors = _checked(sample.descriptors, options.size)
    bits = fitting_bits(options.bits, descriptors.shape[1])
    rotation = random_rotation(descriptors.shape[1], bits) if bits else None
    random = np.random.default_rng(options.seed)
    chosen = descriptors
    if len(descriptors) > options.max_descriptors:
        rows = random.choice(len(descriptors), max(options.max_descriptors, options.size), replace=False)
        chosen = descriptors[np.sort(rows)]
    centroids, rounds = _cluster(chosen, options, random, progress, workers)
    vocabulary = Vocabulary.create(centroids, name=sample.name, binary=sample.descriptors.dtype == np.bool_)
    words = workers.assign(vocabulary, descriptors)
    scores = np.empty(len(words), dtype=np.float32)
    score_words(descriptors, words, vocabulary.centroids, scores)
    origin |= {
        "source": source,
        "descriptors": len(descriptors),
        "descriptors_clustered": len(chosen),
        "seed": options.seed,
        "rounds": rounds,
        "distortion": round(_distortion(descriptors, scores), 6),
        "polyvoc": __version__,
    }
    if rotation is None:
        return replace(vocabulary, provenance=origin)
    thresholds = learn_thresholds(descriptors, words, vocabulary.centroids, rotation)
    return replace(vocabulary, medians=ByteTable.of(thresholds), rotation=rotation, provenance=origin)


def learn_thresholds(descriptors: Floats32, words: Words, centroids: Floats32, rotation: Floats32) -> Floats32:
    """Give the median of each word's projected descriptors, [size, bits]; a word without any gets its own projection."""
    thresholds = project(centroids, rotation)
    order = np.argsort(words, kind="stable")
    ends = np.cumsum(np.bincount(words, minlength=len(centroids)))

    def of_words(numbers: npt.NDArray[np.int64]) -> None:
        first = ends[numbers[0] - 1] if numbers[0] else 0
        z = project(descriptors[order[first : ends[numbers[-1]]]], rotation)
        for word, members in zip(numbers, np.split(z, ends[numbers[:-1]] - first), strict=True):
            if len(members):
                thresholds[word] = np.median(members, axis=0)

    map_in_threads(of_words, np.array_split(np.arange(len(centroids)), -(-len(centroids) // 256)))
    return thresholds


def _cluster(
    descriptors: Floats32, options: TrainOptions, random: np.random.Generator, progress: RoundDone | None, workers: TrainWorkers
) -> tuple[Floats32, int]:
    """Give the centroids [size, dimension] of approximate k-means, and the number of rounds it took."""
    first = _distinct(descriptors, options.size, random)
    basis = PrincipalAxes.of(first)  # distances are the same in its coordinates
    centroids = basis.turn(first).rows
    cells = Cells.among(centroids, basis)
    points = basis.turn(descriptors).rows
    crowd = workers.gather(points, cells)
    words = np.zeros(len(points), dtype=np.int32)
    before = np.inf
    for number in range(1, options.rounds + 1):
        scores, now = crowd.assign(cells.arrange([centroids]), centroids, words)
        moved, words = float(np.mean(now != words)), now
        distortion = _distortion(points, scores)
        centroids = _means(points, words, options.size, random)
        if progress is not None:
            progress(number, options.rounds, distortion, moved)
        if before - distortion < _SETTLED * before:
            break
        before = distortion
    return basis.back(centroids), number


def _probe(rows: Floats32, cells: Cells) -> tuple[Points, tuple[Probes, Probes]]:
    points = cells.basis.points(rows)
    return points, cells.probe(points, _EFFORT)


def _means(points: Floats32, words: Words, size: int, random: np.random.Generator) -> Floats32:
    """Give the mean of each word's points; an empty word starts anew at a random point of a crowded word."""
    sums = np.zeros((size, points.shape[1]), dtype=np.float64)
    sum_by_word(points, words, sums)
    held = np.bincount(words, minlength=size)
    means = (sums / np.maximum(held, 1)[:, None]).astype(np.float32)
    empty = np.flatnonzero(held == 0)
    if len(empty):
        crowded = np.flatnonzero(held[words] >= 2 * len(words) / size)
        pool = crowded if len(crowded) >= len(empty) else np.arange(len(words))
        means[empty] = points[random.choice(pool, len(empty), replace=False)]
    return means


def _distinct(descriptors: Floats32, size: int, random: np.random.Generator) -> Floats32:
    """Give `size` random descriptors, all different."""
    shuffled = random.permutation(len(descriptors))
    for count in (min(len(descriptors), 2 * size), len(descriptors)):
        rows = descriptors[shuffled[:count]]
        raw = np.ascontiguousarray(rows).view(np.dtype((np.void, rows.dtype.itemsize * rows.shape[1])))
        _, first = np.unique(raw.ravel(), return_index=True)
        if len(first) >= size:
            return rows[np.sort(first)[:size]]
    raise _too_few(len(first), size, "distinct descriptors")


class _Reservoir:
    """What was drawn so far: a descriptor stays if its key is among the `limit` lowest."""

    def __init__(self, limit: int) -> None:
        self.ceiling = 1.0  # keys above it are too high already
        self._limit = limit
        self._drawn: list[KeyedSample] = []
        self._held = 0

    def add(self, drawn: KeyedSample) -> None:
        """Put in what was drawn from the next photograph."""
        self._drawn.append(drawn.below(self.ceiling))
        self._held += len(self._drawn[-1].keys)
        if self._held > 2 * self._limit:
            self._prune()

    def descriptors(self) -> Descriptors:
        """Give the descriptors with the lowest keys, in the order in which they came."""
        if self._held > self._limit:
            self._prune()
        return np.concatenate([drawn.descriptors for drawn in self._drawn])

    def _prune(self) -> None:
        keys = np.concatenate([drawn.keys for drawn in self._drawn])
        chosen = np.sort(np.argpartition(keys, self._limit)[: self._limit])
        lowest = KeyedSample(np.concatenate([drawn.descriptors for drawn in self._drawn])[chosen], keys[chosen])
        self._drawn, self._held, self.ceiling = [lowest], self._limit, float(lowest.keys.max())


def _distortion(points: Floats32, scores: Floats32) -> float:
    """Give the mean squared distance of points to their words, from scores x.w - |w|^2 / 2."""
    squares = sum(float(np.einsum("ij,ij->", rows, rows, dtype=np.float64)) for rows in batches(points))
    return (squares - 2 * float(scores.sum(dtype=np.float64))) / len(points)


def _checked(descriptors: npt.ArrayLike, size: int) -> Floats32:
    table = np.ascontiguousarray(descriptors, dtype=np.float32)
    if table.ndim != 2 or table.shape[1] < 1:
        raise OptionError(f"descriptors: shape {table.shape} should be (number, dimension)")
    if len(table) < size:
        raise _too_few(len(table), size, "descriptors")
    if not all(np.isfinite(rows).all() for rows in batches(table)):
        raise OptionError("descriptors: some values are not finite; leave them out")
    return table


def _too_few(count: int, size: int, what: str) -> VocabularyError:
    return VocabularyError(f"{count} {what}, {size} words: give more photographs or a smaller size")


def sample_features(file: FeatureFile, options: TrainOptions, progress: Callable[[int, int], None] | None = None) -> Sample:
    """Draw descriptors from a file, each with the same chance, to train a vocabulary on."""
    kind = kind_of(file)
    drawn = sample_descriptors(
        file.names(), limit=options.max_descriptors, seed=options.seed, progress=progress, workers=_FeatureReader(file, kind)
    )
    used = drawn.provenance["photographs"]
    return replace(drawn, provenance={"photographs": used}, name=kind.name)


class _FeatureReader(LocalTrainWorkers):
    """Draws from a file what it holds of each image, instead of reading photographs."""

    def __init__(self, file: FeatureFile, kind: FeatureKind) -> None:
        self._file, self._kind = file, kind

    def draw(
        self, paths: Sequence[Location], options: FeatureOptions, seed: int, ceiling: Callable[[], float]
    ) -> Iterator[KeyedSample | Problem]:
        """Give what is drawn from each image, in their order."""
        for number, (name, found) in enumerate(self._file.read()):
            if isinstance(found, ExchangeError):
                yield Problem(name, str(found))
                continue
            try:
                check_features(found, self._kind, "the sample")
            except OptionError as error:
                yield Problem(name, f"{display_name(self._file.path)}: {display_name(name)}: {error}")
            else:
                yield KeyedSample(found.descriptors, np.random.default_rng([seed, number]).random(len(found)))
