"""Photographs -> batch -> segment, in any process."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np

from polyvoc.errors import ClusterError, DamagedError, ImageError, OptionError, UnreachableError
from polyvoc.features.embedding import Embedder
from polyvoc.features.extract import extract, extract_many, single_cv2_thread
from polyvoc.index.catalogue import Catalogue, ImageRow, SegmentRow
from polyvoc.index.folder import EmbeddingRecord, IndexFolder
from polyvoc.index.segment import Batch, Segment
from polyvoc.options import FeatureOptions
from polyvoc.storage.files import META, checksum, folder_errors
from polyvoc.storage.folders import FileState, file_digest, is_unchanged
from polyvoc.storage.stores import display_name
from polyvoc.types import Features, Floats32, Location, Problem, Progress
from polyvoc.vocabulary.assign import Quantiser

QUANTISE_FEATURES = 20_000  # quantised together
LARGEST_SCALE = float(np.finfo(np.float16).max)  # as it is stored
Waiting = tuple[ImageRow, Features, Floats32 | None]  # with the image's unit vector, if it has one


def read_photographs(
    paths: Sequence[Location], options: FeatureOptions, model: Embedder | None
) -> Generator[tuple[str, Features | ImageError, Floats32 | None], None, None]:
    """Give the features of photographs, or what is wrong with them, and their vectors if there is a model for them.

    Where the model alone refuses a photograph, its words do without.
    """
    with closing(extract_many(paths, options)) as extracted:
        if model is None:
            yield from ((str(path), found, None) for path, found in extracted)
            return
        with closing(model.embed_many(paths)) as embedded:
            for (path, found), (_, vector) in zip(extracted, embedded, strict=True):
                yield str(path), *_joined(found, vector)


def read_photograph(
    path: str, options: FeatureOptions, model: Embedder | None
) -> tuple[Features | ImageError, Floats32 | None]:
    """Give the same of one photograph, on this thread."""
    try:
        found: Features | ImageError = extract(path, options)
    except ImageError as error:
        found = error
    if model is None:
        return found, None
    try:
        return _joined(found, model.embed(path))
    except ImageError as error:
        return _joined(found, error)


def _joined(found: Features | ImageError, vector: Floats32 | ImageError) -> tuple[Features | ImageError, Floats32 | None]:
    if isinstance(vector, UnreachableError):  # as if the first reading had failed: it may pass
        return vector, None
    return found, None if isinstance(vector, ImageError) else vector


class PendingImages:
    """Images that wait for a commit, and those that they replace."""

    def __init__(self, quantiser: Callable[[], Quantiser], dimension: int) -> None:
        """Begin without any; the quantiser is asked for when it is needed. `dimension` is that of vectors, 0 for none."""
        self._quantiser = quantiser
        self._dimension = dimension
        self._raw: list[Waiting] = []
        self._batches: list[Batch] = []
        self.rows: list[ImageRow] = []  # of the quantised ones
        self.replaced: list[int] = []  # ids
        self.names: set[str] = set()  # of all

    @property
    def n_features(self) -> int:
        """Count the features that are quantised."""
        return sum(len(batch.words) for batch in self._batches)

    def add(self, row: ImageRow, found: Features, vector: Floats32 | None, replaced: ImageRow | None) -> None:
        """Take an image, its vector [d] if it has one, and the image that it replaces."""
        if replaced is not None:
            self.replaced.append(replaced.image)
        self._raw.append((row, found, vector))
        self.names.add(row.path)
        if sum(len(waiting) for _, waiting, _ in self._raw) >= QUANTISE_FEATURES:
            self.quantise()

    def quantise(self) -> None:
        """Turn the features of all that wait into words."""
        if not self._raw:
            return
        rows, found, vectors = zip(*self._raw, strict=True)
        words, signatures = self._quantiser().quantise(np.concatenate([f.descriptors for f in found]))
        shape = [np.column_stack([np.minimum(f.scale, LARGEST_SCALE), f.angle]) for f in found]
        silent = np.zeros(self._dimension, np.float16)
        batch = Batch(
            ids=np.array([row.image for row in rows], np.int64),
            feature_starts=np.concatenate([[0], np.cumsum([len(f) for f in found])]).astype(np.int64),
            words=words,
            signatures=signatures,
            xy=np.concatenate([f.xy for f in found]),
            shape=np.concatenate(shape).astype(np.float16),
            embeddings=np.array([silent if v is None else v for v in vectors], np.float16) if self._dimension else None,
        )
        self._batches, self.rows, self._raw = [*self._batches, batch], [*self.rows, *rows], []

    def batch(self) -> Batch:
        """Give all that is quantised, in the order of `rows`."""
        return Batch.concatenate(self._batches)

    def forget(self) -> None:
        """Wait for nothing any more: it was committed."""
        self.rows, self._batches, self.replaced, self.names = [], [], [], set()


_SEE = "let every machine see the same disks and stores"


@dataclass(frozen=True)
class BuildItem:
    """A photograph to be read, and the id that it gets."""

    image: int
    path: str
    state: FileState  # as it was found


@dataclass(frozen=True)
class BuildPlan:
    """All photographs to be read. There may be millions: what is handed out of each is made when it is asked for."""

    first: int  # id; ids follow the order of the files
    files: Sequence[tuple[str, FileState]]  # path, and state as it was found
    known: ImageRow | None = None  # an image of the index whose photograph has not changed since it was read

    def __len__(self) -> int:
        """Count them."""
        return len(self.files)

    def some(self, places: range) -> tuple[BuildItem, ...]:
        """Give those at some places."""
        return tuple(BuildItem(self.first + place, *self.files[place]) for place in places)


@dataclass(frozen=True)
class MergeInput:
    """A segment to be merged with others, as the catalogue knows it."""

    number: int
    checksum: str
    deleted: tuple[int, ...]  # positions


@dataclass(frozen=True)
class SavedSegment:
    """A segment that lies in `incoming`."""

    token: str  # the name of its folder
    entry: SegmentRow


@dataclass(frozen=True)
class BuildResult:
    """What became of some photographs."""

    rows: tuple[ImageRow, ...]  # in the order of the segment, whose number they do not know yet
    saved: SavedSegment | None  # None if there are no rows
    broken: tuple[tuple[FileState, Problem], ...] = ()
    unreachable: tuple[Problem, ...] = ()  # may pass: to be tried again, and nothing goes


@dataclass(frozen=True)
class MergeResult:
    """What became of segments that were merged."""

    parts: tuple[MergeInput, ...]
    ids: tuple[int, ...]  # of the images, in the order of the merged segment
    saved: SavedSegment | None  # None if there are no images


class Workers(Protocol):
    """Whoever works for a writer, in other processes."""

    def work(
        self, workshop: SegmentBuilder, photographs: BuildPlan, merges: NextMerge, progress: Progress
    ) -> Generator[BuildResult | MergeResult, None, None]:
        """Give what is made, in any order; every photograph is in one delivery. Whoever asks commits it before asking again."""


NextMerge = Callable[[Collection[int]], tuple[MergeInput, ...]]  # what to merge next, apart from segments that are being merged
Reading = Callable[[], AbstractContextManager[None]]  # entered around the reading of each photograph


@dataclass(frozen=True)
class SegmentBuilder:
    """All that one must know of an index to build segments for it."""

    index: str  # absolute path
    sizes: tuple[int, ...]
    options: FeatureOptions
    vocabularies: tuple[str, ...]  # fingerprints
    embedding: EmbeddingRecord | None

    @classmethod
    def of(cls, home: IndexFolder, catalogue: Catalogue) -> SegmentBuilder:
        """Ask the catalogue of an index."""
        sizes, fingerprints = tuple(catalogue.fact("sizes")), tuple(catalogue.fact("vocabularies"))
        return cls(os.path.abspath(home.path), sizes, home.feature_options, fingerprints, EmbeddingRecord.of(catalogue))

    @property
    def home(self) -> IndexFolder:
        """Give the folder of the index."""
        return IndexFolder(Path(self.index))

    def assemble(self, photographs: Sequence[BuildItem], reading: Reading = nullcontext) -> BuildResult:
        """Read photographs on one thread, and save a segment of those that can be used."""
        waiting = PendingImages(lambda: self._quantiser, self.embedding.dimension if self.embedding else 0)
        broken, unreachable, unseen = [], [], 0
        with single_cv2_thread():
            for one in photographs:
                with reading():
                    found, vector = read_photograph(one.path, self.options, self._model)
                    digest = None if isinstance(found, ImageError) else file_digest(one.path, one.state)
                    blind = isinstance(found, ImageError) and not _is_seen(one, found)
                if blind:
                    unseen += 1
                    reason = f"{display_name(one.path)}: not as it was found, or not there, on {_machine()}; {_SEE}"
                    unreachable.append(Problem(one.path, reason))
                elif isinstance(found, UnreachableError):
                    unreachable.append(Problem(one.path, str(found)))
                elif isinstance(found, ImageError):
                    broken.append((one.state, Problem(one.path, str(found))))
                else:
                    row = ImageRow(one.image, one.path, one.state, digest, found.width, found.height, len(found), 0, 0)
                    waiting.add(row, found, vector, None)
        if unseen == len(photographs) > 1:  # it would soon have gone through all there are
            raise ClusterError(
                f"{_machine()} does not see {display_name(photographs[0].path)}, nor {unseen - 1} others; {_SEE}"
            )
        waiting.quantise()
        saved = self._save(waiting.batch()) if waiting.rows else None
        return BuildResult(tuple(waiting.rows), saved, tuple(broken), tuple(unreachable))

    def can_read(self, path: str) -> bool:
        """Tell whether a photograph can be used."""
        with single_cv2_thread():
            return not isinstance(read_photograph(path, self.options, self._model)[0], ImageError)

    def merge(self, parts: Sequence[MergeInput]) -> MergeResult:
        """Save a segment of the live images of others."""
        batch = self.join(parts)
        return MergeResult(tuple(parts), tuple(batch.ids.tolist()), self._save(batch) if len(batch.ids) else None)

    def join(self, parts: Sequence[MergeInput]) -> Batch:
        """Read the live images of segments, whole: a merge must not give damaged arrays a new checksum."""
        home, batches = self.home, []
        for part in parts:
            for line in folder_errors(home.segment_folder(part.number), part.checksum):
                raise DamagedError(f"{line}; run 'polyvoc check'")
            batches.append(home.read_segment(part.number, self.sizes, part.deleted).live_batch())
        return Batch.concatenate(batches)

    def save(self, batch: Batch, folder: Path) -> SegmentRow:
        """Write a segment to a folder; gives what the catalogue should hold of it."""
        segment = Segment.build(batch, self.sizes)
        segment.save(folder)
        return SegmentRow(segment.n_images, segment.n_features, checksum(folder / META))

    def _save(self, batch: Batch) -> SavedSegment:
        token = uuid.uuid4().hex  # drawn here: who does the work again, or believes to do it alone, disturbs nobody
        return SavedSegment(token, self.save(batch, self.home.incoming_folder(token)))

    @cached_property
    def _quantiser(self) -> Quantiser:
        return Quantiser(self.home.load_vocabularies(self.vocabularies), threads=1)

    @cached_property
    def _model(self) -> Embedder | None:
        known = self.embedding
        if known is None or known.file is None:
            return None
        model = Embedder.load(known.file, threads=1)
        if model.fingerprint != known.fingerprint:
            raise OptionError(f"{known.file} is another model on one of the machines, or is prepared otherwise; copy it there")
        return model


def _is_seen(one: BuildItem, error: ImageError) -> bool:
    """Tell whether it is the photograph itself that is wrong: not a machine that lacks its disk, or sees another file there."""
    if isinstance(error, UnreachableError):
        return True
    return not isinstance(error.__cause__, FileNotFoundError) and is_unchanged(one.path, one.state)


def _machine() -> str:
    return socket.gethostname()
