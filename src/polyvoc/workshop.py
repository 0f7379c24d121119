"""Photographs in, a segment on the disk out; segments in, a merged one out. Knows no catalogue, so any process may do it.

What is made here lies in the folder `incoming` of the index, under a name that nothing else has, until the writer takes it into
a commit. The writer alone opens the catalogue: SQLite is at home on one machine.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from polyvoc import collection, detectors, intake, storage, witness
from polyvoc.catalogue import Catalogue, FileState, ImageRow, SegmentRow
from polyvoc.embedding import Embedder
from polyvoc.errors import ClusterError, DamagedError, ImageError, OptionError, UnreachableError
from polyvoc.home import Home
from polyvoc.images import describe
from polyvoc.intake import Intake
from polyvoc.quantiser import Quantiser
from polyvoc.records import FeatureOptions, Problem, Progress
from polyvoc.segment import Batch, Segment

_SEE = "let every machine see the same disks and stores"


@dataclass(frozen=True)
class Photograph:
    """A photograph to be read, and the id that it gets."""

    image: int
    path: str
    state: FileState  # as it was found


@dataclass(frozen=True)
class Wanted:
    """All photographs to be read. There may be millions: what is handed out of each is made when it is asked for."""

    first: int  # id; ids follow the order of the files
    files: Sequence[tuple[str, FileState]]  # path, and state as it was found
    known: ImageRow | None = None  # an image of the index whose photograph has not changed since it was read

    def __len__(self) -> int:
        """Count them."""
        return len(self.files)

    def some(self, places: range) -> tuple[Photograph, ...]:
        """Give those at some places."""
        return tuple(Photograph(self.first + place, *self.files[place]) for place in places)


@dataclass(frozen=True)
class Part:
    """A segment to be merged with others, as the catalogue knows it."""

    number: int
    checksum: str
    deleted: tuple[int, ...]  # positions


@dataclass(frozen=True)
class Saved:
    """A segment that lies in `incoming`."""

    token: str  # the name of its folder
    entry: SegmentRow


@dataclass(frozen=True)
class Delivery:
    """What became of some photographs."""

    rows: tuple[ImageRow, ...]  # in the order of the segment, whose number they do not know yet
    saved: Saved | None  # None if there are no rows
    broken: tuple[tuple[FileState, Problem], ...] = ()
    unreachable: tuple[Problem, ...] = ()  # may pass: to be tried again, and nothing goes


@dataclass(frozen=True)
class Merger:
    """What became of segments that were merged."""

    parts: tuple[Part, ...]
    ids: tuple[int, ...]  # of the images, in the order of the merged segment
    saved: Saved | None  # None if there are no images


class Workers(Protocol):
    """Whoever works for a writer, in other processes."""

    def work(
        self, workshop: Workshop, photographs: Wanted, merges: NextMerge, progress: Progress
    ) -> Generator[Delivery | Merger, None, None]:
        """Give what is made, in any order; every photograph is in one delivery. Whoever asks commits it before asking again."""


NextMerge = Callable[[Collection[int]], tuple[Part, ...]]  # what to merge next, apart from segments that are being merged
Reading = Callable[[], AbstractContextManager[None]]  # entered around the reading of each photograph


@dataclass(frozen=True)
class Workshop:
    """All that one must know of an index to build segments for it."""

    index: str  # absolute path
    sizes: tuple[int, ...]
    options: FeatureOptions
    vocabularies: tuple[str, ...]  # fingerprints
    embedding: witness.Record | None

    @classmethod
    def of(cls, home: Home, catalogue: Catalogue) -> Workshop:
        """Ask the catalogue of an index."""
        sizes, fingerprints = tuple(catalogue.fact("sizes")), tuple(catalogue.fact("vocabularies"))
        return cls(os.path.abspath(home.path), sizes, home.feature_options, fingerprints, witness.Record.of(catalogue))

    @property
    def home(self) -> Home:
        """Give the folder of the index."""
        return Home(Path(self.index))

    def assemble(self, photographs: Sequence[Photograph], reading: Reading = nullcontext) -> Delivery:
        """Read photographs on one thread, and save a segment of those that can be used."""
        waiting = Intake(lambda: self._quantiser, self.embedding.dimension if self.embedding else 0)
        broken, unreachable, unseen = [], [], 0
        with detectors.one_cv2_thread():
            for one in photographs:
                with reading():
                    found, vector = intake.read_one(one.path, self.options, self._model)
                    digest = None if isinstance(found, ImageError) else collection.digest(one.path, one.state)
                    blind = isinstance(found, ImageError) and not _is_seen(one, found)
                if blind:
                    unseen += 1
                    reason = f"{describe(one.path)}: not as it was found, or not there, on {_machine()}; {_SEE}"
                    unreachable.append(Problem(one.path, reason))
                elif isinstance(found, UnreachableError):
                    unreachable.append(Problem(one.path, str(found)))
                elif isinstance(found, ImageError):
                    broken.append((one.state, Problem(one.path, str(found))))
                else:
                    row = ImageRow(one.image, one.path, one.state, digest, found.width, found.height, len(found), 0, 0)
                    waiting.add(row, found, vector, None)
        if unseen == len(photographs) > 1:  # it would soon have gone through all there are
            raise ClusterError(f"{_machine()} does not see {describe(photographs[0].path)}, nor {unseen - 1} others; {_SEE}")
        waiting.quantise()
        saved = self._save(waiting.batch()) if waiting.rows else None
        return Delivery(tuple(waiting.rows), saved, tuple(broken), tuple(unreachable))

    def can_read(self, path: str) -> bool:
        """Tell whether a photograph can be used."""
        with detectors.one_cv2_thread():
            return not isinstance(intake.read_one(path, self.options, self._model)[0], ImageError)

    def merge(self, parts: Sequence[Part]) -> Merger:
        """Save a segment of the live images of others."""
        batch = self.join(parts)
        return Merger(tuple(parts), tuple(batch.ids.tolist()), self._save(batch) if len(batch.ids) else None)

    def join(self, parts: Sequence[Part]) -> Batch:
        """Read the live images of segments, whole: a merge must not give damaged arrays a new checksum."""
        home, batches = self.home, []
        for part in parts:
            for line in storage.damage(home.segment_folder(part.number), part.checksum):
                raise DamagedError(f"{line}; run 'polyvoc check'")
            batches.append(home.read_segment(part.number, self.sizes, part.deleted).live_batch())
        return Batch.concatenate(batches)

    def save(self, batch: Batch, folder: Path) -> SegmentRow:
        """Write a segment to a folder; gives what the catalogue should hold of it."""
        segment = Segment.build(batch, self.sizes)
        segment.save(folder)
        return SegmentRow(segment.n_images, segment.n_features, storage.checksum(folder / storage.META))

    def _save(self, batch: Batch) -> Saved:
        token = uuid.uuid4().hex  # drawn here: who does the work again, or believes to do it alone, disturbs nobody
        return Saved(token, self.save(batch, self.home.incoming_folder(token)))

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


def _is_seen(one: Photograph, error: ImageError) -> bool:
    """Tell whether it is the photograph itself that is wrong: not a machine that lacks its disk, or sees another file there."""
    if isinstance(error, UnreachableError):
        return True
    return not isinstance(error.__cause__, FileNotFoundError) and collection.is_as_found(one.path, one.state)


def _machine() -> str:
    return socket.gethostname()
