"""Photographs -> features -> words -> segments: the work of indexing, in any process.

`Workers` do it for a writer, which only commits: `LocalWorkers` on the threads of its process, `cluster.build.RayWorkers` on
other machines.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from polyvoc.errors import ClusterError, DamagedError, ImageError, OptionError, UnreachableError
from polyvoc.features.decode import Decoders, shared_decoders
from polyvoc.features.embedding import Embedder
from polyvoc.features.extract import extract_pixels, single_cv2_thread
from polyvoc.index.catalogue import ImageRow, SegmentRow
from polyvoc.index.folder import EmbeddingInfo, IndexFolder, Models, SegmentKind, VocabularyNames
from polyvoc.index.segment import MAX_IMAGES, Batch, Geometry, Segment, join_live
from polyvoc.options import FeatureOptions
from polyvoc.storage.files import META, checksum
from polyvoc.storage.folders import FileState, is_unchanged, read_with_digest
from polyvoc.storage.stores import display_name
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import Features, Floats32, GreyImage, Problem, Progress

QUANTISE_FEATURES = 20_000  # quantised together
_SHARED = "every machine must see the same disks and stores"


# -- what is to be built, and what was built


@dataclass(frozen=True)
class BuildItem:
    """A photograph to be read, and the id that it gets."""

    image: int
    path: str
    state: FileState  # when it was listed


@dataclass(frozen=True)
class BuildPlan:
    """All photographs to be read. There may be millions: items are made when they are needed."""

    first: int  # id; ids follow the order of the files
    files: Sequence[tuple[str, FileState]]
    sample_row: ImageRow | None = None  # an image of the index whose photograph has not changed since it was read

    def __len__(self) -> int:
        """Return the number of photographs."""
        return len(self.files)

    def items(self, numbers: range) -> tuple[BuildItem, ...]:
        """Return those with some numbers."""
        return tuple(BuildItem(self.first + number, *self.files[number]) for number in numbers)


@dataclass(frozen=True)
class SavedSegment:
    """A segment in the staging folder."""

    token: str  # the name of its folder
    row: SegmentRow


@dataclass(frozen=True)
class BuildResult:
    """The result for some photographs: a segment, and what could not be used."""

    rows: tuple[ImageRow, ...]  # in the order of the segment
    saved: SavedSegment | None  # None if there are no rows
    broken: tuple[tuple[FileState, Problem], ...] = ()
    unreachable: tuple[Problem, ...] = ()  # may be readable later: tried again, and the index keeps what it has of them


@dataclass(frozen=True)
class MergeInput:
    """A segment to be merged with others."""

    number: int
    checksum: str
    deleted: tuple[int, ...]  # positions


@dataclass(frozen=True)
class MergeResult:
    """Segments that were merged, and the result."""

    parts: tuple[MergeInput, ...]
    ids: tuple[int, ...] = ()  # of the images, in the order of the merged segment
    saved: SavedSegment | None = None  # None if there are no images
    damaged: Mapping[int, str] = field(default_factory=dict)  # parts that are damaged: then nothing was merged


NextMerge = Callable[[Collection[int]], tuple[MergeInput, ...]]  # what to merge next, without segments that are being merged
Guard = Callable[[], AbstractContextManager[None]]  # entered around the reading of each photograph


class Workers(Protocol):
    """Reads photographs and builds segments for a writer."""

    def work(self, builder: SegmentBuilder, plan: BuildPlan, next_merge: NextMerge,
             progress: Progress) -> Generator[BuildResult | MergeResult, None, None]:  # fmt: skip
        """Yield results in any order; every photograph is in one of them. The caller commits each before the next."""


# -- reading


@dataclass(frozen=True, eq=False)
class ReadImage:
    """A photograph that was read: its features, or the reason why it cannot be used."""

    item: BuildItem
    features: Features | ImageError
    vector: Floats32 | None = None  # of the global embedding; None: no model, or it fails on this photograph
    digest: str | None = None  # of the file; None: it has changed since it was listed

    @property
    def is_missing(self) -> bool:
        """Return whether the file is not there, or not the one that was listed: not a fault of the photograph."""
        error, item = self.features, self.item
        if not isinstance(error, ImageError) or isinstance(error, UnreachableError):
            return False
        return isinstance(error.__cause__, FileNotFoundError) or not is_unchanged(item.path, item.state)

    @property
    def row(self) -> ImageRow:
        """Return its row of the catalogue, without its place."""
        item, found = self.item, self.features
        assert isinstance(found, Features)
        return ImageRow(item.image, item.path, item.state, self.digest, found.width, found.height, len(found), 0, 0)


def read_image(item: BuildItem, options: FeatureOptions, model: Embedder | None, decoders: Decoders) -> ReadImage:
    """Read a photograph once, for its digest, features and vector."""
    try:
        source, digest = read_with_digest(item.path)
        features = extract_pixels(decoders.grey(source, options.long_side, name=item.path), options, item.path)
    except ImageError as error:
        return ReadImage(item, error)
    vector = None
    if model is not None:
        try:
            vector = model.embed_pixels(decoders.rgb(source, model.long_side, name=item.path), display_name(item.path))
        except UnreachableError as error:
            return ReadImage(item, error)
        except ImageError:
            pass  # indexed without a vector
    return ReadImage(item, features, vector, digest if is_unchanged(item.path, item.state) else None)


def read_images(items: Sequence[BuildItem], options: Sequence[FeatureOptions], decoders: Decoders) -> list[ReadImage]:
    """Read one photograph for several indexes: its bytes once, its pixels once for each size; features for each."""
    path = items[0].path
    try:
        source, digest = read_with_digest(path)
        pixels = {side: decoders.grey(source, side, name=path) for side in {one.long_side for one in options}}
    except ImageError as error:
        return [ReadImage(item, error) for item in items]
    return [_extracted(item, pixels[one.long_side], one, digest) for item, one in zip(items, options, strict=True)]


def _extracted(item: BuildItem, pixels: GreyImage, options: FeatureOptions, digest: str) -> ReadImage:
    try:
        features = extract_pixels(pixels, options, item.path)
    except ImageError as error:
        return ReadImage(item, error)
    return ReadImage(item, features, None, digest if is_unchanged(item.path, item.state) else None)


# -- from features to a segment


class PendingImages:
    """Images that are read but not yet in a segment."""

    def __init__(self, models: Callable[[], Models], dimension: int) -> None:
        """Start without any; the vocabularies are loaded when they are needed. `dimension` is that of vectors, 0 for none."""
        self._models = models
        self._dimension = dimension
        self._raw: list[tuple[ImageRow, Features, Floats32 | None]] = []
        self._n_raw = 0  # features of these
        self._batches: list[Batch] = []
        self.rows: list[ImageRow] = []  # of the quantised ones

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.rows) + len(self._raw)

    @property
    def n_features(self) -> int:
        """Return the number of quantised features."""
        return sum(int(batch.feature_starts[-1]) for batch in self._batches)

    def add(self, row: ImageRow, features: Features, vector: Floats32 | None = None) -> None:
        """Add an image, and its vector [d] if it has one."""
        self._raw.append((row, features, vector))
        self._n_raw += row.n_features
        if self._n_raw >= QUANTISE_FEATURES:
            self._quantise()

    def _quantise(self) -> None:
        if not self._raw:
            return
        rows, found, vectors = zip(*self._raw, strict=True)
        quantised = self._models().quantise(np.concatenate([f.descriptors for f in found]))
        starts = np.concatenate([[0], np.cumsum([row.n_features for row in rows])]).astype(np.int64)
        xy, scale, angle = (np.concatenate([getattr(f, name) for f in found]) for name in ("xy", "scale", "angle"))
        no_vector = np.zeros(self._dimension, np.float16)
        batch = Batch(
            ids=np.array([row.image for row in rows], np.int64),
            feature_starts=starts,
            geometry=Geometry.of(xy, scale, angle, starts),
            words=quantised.words,
            signatures=quantised.signatures,
            codes=quantised.codes,
            embeddings=np.array([no_vector if v is None else v for v in vectors], np.float16) if self._dimension else None,
        )
        self._batches, self.rows, self._raw, self._n_raw = [*self._batches, batch], [*self.rows, *rows], [], 0

    def batch(self) -> Batch:
        """Return all images as one batch, in the order of `rows`."""
        self._quantise()
        return Batch.concatenate(self._batches)


@dataclass(frozen=True)
class SegmentBuilder:
    """What is needed of an index to build segments for it. Can be sent to other machines."""

    index: str  # absolute path
    kind: SegmentKind
    options: FeatureOptions
    vocabularies: VocabularyNames
    embedding: EmbeddingInfo | None

    @classmethod
    def of(cls, folder: IndexFolder) -> SegmentBuilder:
        """Read it from an index."""
        settings = folder.catalogue.settings()
        names, path = VocabularyNames.of(settings), os.path.abspath(folder.path)
        return cls(path, SegmentKind.of(settings), folder.feature_options, names, EmbeddingInfo.of(settings))

    @property
    def folder(self) -> IndexFolder:
        """Return the folder of the index."""
        return IndexFolder(Path(self.index))

    @property
    def dimension(self) -> int:
        """Return the dimension of the vectors of a global embedding, 0 if the index has none."""
        return 0 if self.embedding is None else self.embedding.dimension

    def build_segment(self, items: Sequence[BuildItem], guard: Guard = nullcontext) -> BuildResult:
        """Read photographs on one thread, on a machine of a cluster, and stage a segment of those that can be used."""
        pending, report = PendingImages(lambda: self._models, self.dimension), _Report()
        with single_cv2_thread():
            for item in items:
                with guard():
                    image = read_image(item, self.options, self._model, shared_decoders())
                    missing = image.is_missing
                if missing:
                    text = f"{display_name(item.path)}: missing or changed on {_machine()}; {_SHARED}"
                    report.missing.append(Problem(item.path, text))
                else:
                    report.add(image, pending)
        if len(report.missing) == len(items) > 1:  # this machine would soon go through all photographs
            others = len(items) - 1
            raise ClusterError(f"{_machine()} does not see {display_name(items[0].path)}, nor {others} others; {_SHARED}")
        return report.result(pending, self)

    def can_read(self, path: str) -> bool:
        """Return whether a photograph can be used."""
        with single_cv2_thread():
            item = BuildItem(0, path, FileState(None, None))
            return isinstance(read_image(item, self.options, self._model, shared_decoders()).features, Features)

    def merge(self, parts: Sequence[MergeInput]) -> MergeResult:
        """Stage a segment of the live images of others, unless one of them is damaged: it must not get new checksums."""
        segments: list[Segment] = []
        damaged: dict[int, str] = {}
        for part in parts:
            try:
                segments.append(self.folder.read_segment(part.number, part.checksum, self.kind, part.deleted))
                segments[-1].verify()
            except DamagedError as error:
                damaged[part.number] = str(error)
        if damaged:
            return MergeResult(tuple(parts), damaged=damaged)
        batch = join_live(segments)
        del segments  # nor their memory maps
        return MergeResult(tuple(parts), tuple(batch.ids.tolist()), self.stage(batch) if len(batch.ids) else None)

    def stage(self, batch: Batch) -> SavedSegment:
        """Write a segment to the staging folder."""
        token = uuid.uuid4().hex  # new for every attempt: work that is done twice does not collide
        target = self.folder.staging_folder(token)
        segment = Segment.build(batch, self.kind.sizes, self.kind.fine)
        segment.save(target)
        return SavedSegment(token, SegmentRow(segment.n_images, segment.n_features, checksum(target / META)))

    @cached_property
    def _models(self) -> Models:
        return Models(self.folder.load_vocabularies(self.vocabularies), threads=1)

    @cached_property
    def _model(self) -> Embedder | None:
        known = self.embedding
        if known is None or known.file is None:
            return None
        model = Embedder.load(known.file, threads=1)
        if model.fingerprint != known.fingerprint:
            raise OptionError(f"{known.file} is another model on {_machine()}, or its preprocessing differs; copy it there")
        return model


class _Report:
    """Collects what could not be used."""

    def __init__(self) -> None:
        self.broken: list[tuple[FileState, Problem]] = []
        self.unreachable: list[Problem] = []
        self.missing: list[Problem] = []

    def add(self, image: ReadImage, pending: PendingImages) -> None:
        """Add an image to the pending ones, or to those that could not be used."""
        found = image.features
        if isinstance(found, Features):
            pending.add(image.row, found, image.vector)
        elif isinstance(found, UnreachableError) or image.is_missing:
            self.unreachable.append(Problem(image.item.path, str(found)))
        else:
            self.broken.append((image.item.state, Problem(image.item.path, str(found))))

    def result(self, pending: PendingImages, builder: SegmentBuilder) -> BuildResult:
        """Stage the pending images as a segment, and return it with what could not be used."""
        saved = builder.stage(pending.batch()) if len(pending) else None
        return BuildResult(tuple(pending.rows), saved, tuple(self.broken), (*self.unreachable, *self.missing))


# -- on the threads of this process


@dataclass(frozen=True)
class CommitLimits:
    """When pending images are committed."""

    seconds: float = 30.0  # a killed process loses at most this much work
    features: int = 1_000_000  # 50 MB in memory
    images: int = MAX_IMAGES  # a commit is one segment

    def reached(self, pending: PendingImages, since: float) -> bool:
        """Return whether pending images, the first of them added at a time of `time.monotonic`, should be committed."""
        full = pending.n_features >= self.features or len(pending) >= self.images
        return full or time.monotonic() - since >= self.seconds


@dataclass(frozen=True)
class LocalWorkers:
    """Threads of this process."""

    models: Callable[[], Models]
    model: Embedder | None = None  # loaded with one thread
    limits: CommitLimits = CommitLimits()
    threads: int | None = None
    decoders: Decoders | None = None  # None: own ones, which end with the work
    _preparing: list[threading.Thread] = field(default_factory=list)

    def work(self, builder: SegmentBuilder, plan: BuildPlan, next_merge: NextMerge,
             progress: Progress) -> Generator[BuildResult | MergeResult, None, None]:  # fmt: skip
        """Yield segments as the limits are reached, and merged ones; when interrupted, also what was read so far."""
        yield from self._merges(builder, next_merge)
        self._prepare(builder, plan)
        building = Building(self, builder)
        paths, states = zip(*plan.files, strict=True) if plan.files else ((), ())
        items = map(BuildItem, range(plan.first, plan.first + len(plan)), paths, states)
        with single_cv2_thread(), self._decoders() as decoders, closing(self._read(builder, items, decoders)) as images:
            try:
                for done, (_, image) in enumerate(images, start=1):
                    if (result := building.add(image)) is not None:
                        yield result
                        yield from self._merges(builder, next_merge)
                    progress("indexing", done, len(plan))
            except KeyboardInterrupt:
                images.close()  # nothing else is read meanwhile
                yield building.rest()
                raise
        yield building.rest()
        yield from self._merges(builder, next_merge)

    def _decoders(self) -> AbstractContextManager[Decoders]:
        return Decoders(count_threads(self.threads)) if self.decoders is None else nullcontext(self.decoders)

    def _read(
        self, builder: SegmentBuilder, items: Iterable[BuildItem], decoders: Decoders
    ) -> Generator[tuple[BuildItem, ReadImage]]:
        def read(item: BuildItem) -> ReadImage:
            return read_image(item, builder.options, self.model, decoders)

        # When interrupted, what is being decoded is given up: a hostile photograph may take its whole limit of time.
        stop = decoders.close if self.decoders is None else lambda: None
        return ordered_map(read, items, count_threads(self.threads), "polyvoc-index", stop)

    def pending(self, builder: SegmentBuilder) -> PendingImages:
        """Return a place for images that are not yet in a segment."""
        return PendingImages(self._prepared_models, builder.dimension)

    def _prepare(self, builder: SegmentBuilder, plan: BuildPlan) -> None:
        """Load vocabularies and kernels, which are compiled the first time, beside the first photographs."""
        if len(plan):
            thread = threading.Thread(target=_build_made_up, args=(self.models, builder), name="polyvoc-prepare", daemon=True)
            self._preparing.append(thread)
            thread.start()

    def _prepared_models(self) -> Models:
        """Return the models; they are not loaded twice."""
        for thread in self._preparing:
            thread.join()
        return self.models()

    def _merges(self, builder: SegmentBuilder, next_merge: NextMerge) -> Generator[MergeResult, None, None]:
        while parts := next_merge(()):  # without those that were found damaged
            yield builder.merge(parts)


class Building:
    """The segment that is being built of images as they are read, in this process."""

    def __init__(self, workers: LocalWorkers, builder: SegmentBuilder) -> None:
        """Start without images."""
        self.builder = builder
        self._workers = workers
        self._start()

    def add(self, image: ReadImage) -> BuildResult | None:
        """Add an image; return what is to be committed if the limits are reached."""
        self._report.add(image, self._pending)
        return self.rest() if self._workers.limits.reached(self._pending, self._since) else None

    def rest(self) -> BuildResult:
        """Return all that was not returned before."""
        result = self._report.result(self._pending, self.builder)
        self._start()
        return result

    def _start(self) -> None:
        self._pending, self._report, self._since = self._workers.pending(self.builder), _Report(), time.monotonic()


def _build_made_up(models: Callable[[], Models], builder: SegmentBuilder) -> None:
    """Build a segment of one made-up image, in memory. What fails here fails again, and is reported, with a photograph."""
    with suppress(Exception):
        n, kind, rng = 64, builder.options.kind, np.random.default_rng(0)
        values = rng.random((n, kind.dimension), np.float32)
        descriptors = values < 0.5 if kind.binary else values / np.linalg.norm(values, axis=1, keepdims=True)
        ones = np.ones(n, np.float32)
        made_up = Features(values[:, :2], ones, ones, descriptors, 1, 1, kind.name)
        pending = PendingImages(models, builder.dimension)
        pending.add(ImageRow(1, "", FileState(None, None), None, 1, 1, n, 0, 0), made_up)
        Segment.build(pending.batch(), builder.kind.sizes, builder.kind.fine)


def _machine() -> str:
    return socket.gethostname()
