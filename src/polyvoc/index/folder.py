"""The folder of an index: what lies where, how it is created, locked and read."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import filelock
import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, LockedError, NotAnIndexError, OptionError, VocabularyError, WriteError
from polyvoc.features.embedding import Embedder
from polyvoc.features.extract import check_detector
from polyvoc.index.catalogue import FILE, UNFINISHED, Catalogue, IndexSettings
from polyvoc.index.segment import Segment
from polyvoc.index.words import MAX_VOCABULARIES
from polyvoc.options import DETECTOR_KINDS, FeatureOptions
from polyvoc.storage.files import META, checksum, map_array, require_local_path, write_error, write_errors
from polyvoc.types import Array, Descriptors, FeatureCodes, FeatureKind, Signatures, Words
from polyvoc.vocabulary.assign import Quantiser
from polyvoc.vocabulary.codes import Coder
from polyvoc.vocabulary.vocabulary import FINE, Vocabulary, VocabularySet

SEGMENTS, VOCABULARIES, STAGING = "segments", "vocabularies", "staging"  # staging: segments that no commit refers to yet
LINKS, DUPLICATE_PAIRS = "links", "duplicate_pairs"
SIDE_FILES = (LINKS, DUPLICATE_PAIRS)
LOCK = "lock"
EMBEDDING = "embedding"
EmbeddingSource = Embedder | str | os.PathLike[str]  # a model, or the path of its ONNX file
Lock = filelock.BaseFileLock


@dataclass(frozen=True)
class SideFile:
    """An array that belongs to an index but to no segment. The setting of its kind refers to it."""

    kind: str  # one of SIDE_FILES: the name of its setting and of its folder
    serial: int  # its file is <kind>/<serial>.npy
    rows: int
    checksum: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, settings: IndexSettings) -> SideFile | None:
        """Read it from the settings of an index, None if there is none."""
        values = settings.get(kind)
        try:
            found = None if values is None else cls(kind, **values)
            valid = found is None or (isinstance(found.serial, int) and isinstance(found.rows, int) and found.rows >= 0)
        except TypeError:
            valid = False
        if not valid:
            raise DamagedError(f"{settings.path}: the setting {kind!r} cannot be {values!r}; run 'polyvoc check'")
        return found

    def as_setting(self) -> dict[str, Any]:
        """Return the value of its setting."""
        return {"serial": self.serial, "rows": self.rows, "checksum": self.checksum, "extra": dict(self.extra)}


@dataclass(frozen=True)
class EmbeddingInfo:
    """The model that made the vectors of an index."""

    fingerprint: str
    dimension: int
    file: str | None  # absolute path; None: a function, which the caller must give again

    def __str__(self) -> str:
        """Return its name for errors."""
        return f"{self.file or 'a function'}, {self.fingerprint}"

    @classmethod
    def of(cls, settings: IndexSettings) -> EmbeddingInfo | None:
        """Read it from the settings of an index; None if it holds no vectors."""
        values = settings.get(EMBEDDING)
        try:
            return None if values is None else cls(**values)
        except TypeError:
            raise DamagedError(
                f"{settings.path}: the setting {EMBEDDING!r} cannot be {values!r}; run 'polyvoc check'"
            ) from None


@dataclass(frozen=True)
class SegmentPart:
    """A segment of a commit."""

    segment: int  # its number in the catalogue
    n_images: int
    n_features: int
    deleted: tuple[int, ...]  # positions


@dataclass(frozen=True)
class Layout:
    """What a commit refers to."""

    commit: int
    sizes: tuple[int, ...]  # of the vocabularies
    parts: tuple[SegmentPart, ...]
    settings: IndexSettings


class VocabularyNames(NamedTuple):
    """The vocabularies of an index by their fingerprints, and whether its words have signatures."""

    words: tuple[str, ...]
    fine: str | None
    signed: bool

    @classmethod
    def of(cls, settings: IndexSettings) -> VocabularyNames:
        """Read them from the settings of an index."""
        fine = settings["fine"]
        return cls(tuple(settings["vocabularies"]), None if fine is None else fine["fingerprint"], settings["bits"] > 0)


class QuantisedFeatures(NamedTuple):
    """Descriptors as an index stores them."""

    words: Words  # [n, K]
    signatures: Signatures | None
    codes: FeatureCodes | None


@dataclass(frozen=True, eq=False)
class Models:
    """The vocabularies of an index, each prepared when it is first used. May be shared by threads."""

    vocabularies: VocabularySet
    threads: int | None = None  # None: one per core

    @cached_property
    def quantiser(self) -> Quantiser | None:
        """Return the vocabularies of words, None without words."""
        words = self.vocabularies.words
        return Quantiser(words, self.threads, self.vocabularies.signed) if words else None

    @cached_property
    def coder(self) -> Coder | None:
        """Return the vocabulary of codes, None without codes."""
        return None if self.vocabularies.fine is None else Coder(self.vocabularies.fine, self.threads)

    def quantise(self, descriptors: Descriptors) -> QuantisedFeatures:
        """Return words, signatures and codes of descriptors [n, dimension]."""
        words, signatures = np.empty((len(descriptors), 0), np.int32), None
        if self.quantiser is not None:
            words, signatures = self.quantiser.quantise(descriptors)
        return QuantisedFeatures(words, signatures, None if self.coder is None else self.coder.encode(descriptors))


@dataclass
class LoadedModels:
    """What takes long to load and no commit changes: shared by all snapshots of an index."""

    vocabularies: VocabularySet | None = None  # of an index that was just created
    models: Models | None = None
    embedder: Embedder | None = None
    segments: dict[SegmentPart, Segment] = field(default_factory=dict)  # of the last commit that was read


class IndexFolder:
    """The folder of an index: where its parts lie, and how they are read."""

    def __init__(self, path: Path, embedding: EmbeddingSource | None = None, loaded: LoadedModels | None = None) -> None:
        """Refer to a folder; nothing is read yet. `embedding` replaces the model that the index refers to."""
        require_local_path(path)
        self.path = path
        self.embedding = embedding
        self.loaded = loaded or LoadedModels()

    def again(self) -> IndexFolder:
        """Return the same folder with a catalogue of its own; loaded models are shared."""
        return IndexFolder(self.path, self.embedding, self.loaded)

    # -- catalogue

    @property
    def exists(self) -> bool:
        """Return whether there is an index."""
        return (self.path / FILE).is_file()

    @property
    def identity(self) -> tuple[int, int] | None:
        """Return what distinguishes this index from another one at the same path; None if there is none."""
        try:
            status = (self.path / FILE).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    @cached_property
    def catalogue(self) -> Catalogue:
        """Open the catalogue for reading."""
        return Catalogue.open(self.path)

    def close(self) -> None:
        """Close the catalogue, if it was opened."""
        if "catalogue" in vars(self):
            self.catalogue.close()

    @cached_property
    def fixed(self) -> IndexSettings:
        """Return the settings as of the first use: for those that no commit changes."""
        return self.catalogue.settings()

    @cached_property
    def feature_options(self) -> FeatureOptions:
        """Return the options that the photographs were read with."""
        return FeatureOptions(**self.fixed["features"])

    @property
    def extraction(self) -> FeatureOptions:
        """Return the options to read a photograph with; raise OptionError if polyvoc does not extract such features."""
        if self.feature_options.kind != self.kind:
            raise OptionError(f"{self.path} holds {self.kind}, which polyvoc does not extract from photographs; add and search "
                              "with features made elsewhere, or search with an image of the index (--image ID)")  # fmt: skip
        return self.feature_options

    @cached_property
    def kind(self) -> FeatureKind:
        """Return what the descriptors of its features are."""
        return FeatureKind(**self.fixed["kind"])

    @property
    def bits(self) -> int:
        """Return the length of the signatures of words, 0 if there are none."""
        return int(self.fixed["bits"])

    @property
    def code_bits(self) -> int:
        """Return the length of the codes, 0 if there are none."""
        return 0 if self.fixed["fine"] is None else int(self.fixed["fine"]["bits"])

    @property
    def has_embeddings(self) -> bool:
        """Return whether photographs have a vector of a global embedding."""
        return self.fixed.get(EMBEDDING) is not None

    # -- what a commit refers to

    def read_layout(self) -> Layout:
        """Return what the last commit refers to."""
        with self.catalogue.snapshot():
            settings = self.catalogue.settings()
            rows = self.catalogue.segment_rows()
            deleted = {number: tuple(self.catalogue.deleted(number)) for number in rows}
        return Layout(
            commit=settings["commit"],
            sizes=tuple(settings["sizes"]),
            parts=tuple(SegmentPart(number, row.n_images, row.n_features, deleted[number]) for number, row in rows.items()),
            settings=settings,
        )

    def read_segment(self, number: int, sizes: tuple[int, ...], deleted: Sequence[int]) -> Segment:
        """Map one segment, without its deleted images."""
        segment = Segment.open(self.segment_folder(number))
        if segment.sizes != sizes:
            raise DamagedError(f"{self.segment_folder(number)} belongs to another index; run 'polyvoc check'")
        if not all(isinstance(position, int) and 0 <= position < segment.n_images for position in deleted):
            raise DamagedError(f"{self.catalogue.path}: segment {number} has no such images to delete; run 'polyvoc check'")
        return segment.without(deleted)

    def read_segments(self, layout: Layout) -> list[Segment]:
        """Map the segments of a commit; those that are as in the commit read before are shared, with what was counted."""
        before = self.loaded.segments
        segments = {
            part: before.get(part) or self.read_segment(part.segment, layout.sizes, part.deleted) for part in layout.parts
        }
        self.loaded.segments = segments
        return list(segments.values())

    def segment_folder(self, number: int) -> Path:
        """Return the folder of a segment."""
        return self.path / SEGMENTS / f"{number:06d}"

    def staging_folder(self, token: str) -> Path:
        """Return the folder of a segment that no commit refers to yet."""
        return self.path / STAGING / token

    def vocabulary_folder(self, number: int | str) -> Path:
        """Return the folder of a vocabulary of words by its number, or of the fine one."""
        return self.path / VOCABULARIES / str(number)

    def side_file(self, kind: str) -> SideFile | None:
        """Return the present side file of a kind, None if there is none."""
        return SideFile.of(kind, self.catalogue.settings())

    def side_path(self, side: SideFile) -> Path:
        """Return the path of a side file."""
        return self.path / side.kind / f"{side.serial:06d}.npy"

    def map_side_file(self, side: SideFile, dtype: npt.DTypeLike) -> Array:
        """Map a side file."""
        return map_array(self.side_path(side), dtype, (side.rows,))

    # -- models

    def vocabularies(self) -> VocabularySet:
        """Load the vocabularies, checked against those that the index was made with."""
        return self.load_vocabularies(VocabularyNames.of(self.fixed))

    def load_vocabularies(self, names: VocabularyNames) -> VocabularySet:
        """Load the vocabularies, which must have these fingerprints; the catalogue is not read."""
        words = tuple(self._load_vocabulary(number, fingerprint) for number, fingerprint in enumerate(names.words))
        fine = None if names.fine is None else self._load_vocabulary(FINE, names.fine)
        return VocabularySet(words, fine, names.signed)

    def _load_vocabulary(self, number: int | str, fingerprint: str) -> Vocabulary:
        vocabulary = Vocabulary.load(self.vocabulary_folder(number))
        if vocabulary.fingerprint != fingerprint:
            raise VocabularyError(f"{self.vocabulary_folder(number)} is vocabulary {vocabulary.fingerprint}, "
                                  f"but the index was made with {fingerprint}; restore it or index again")  # fmt: skip
        return vocabulary

    @property
    def models(self) -> Models:
        """Load the vocabularies, once."""
        if self.loaded.models is None:
            self.loaded.models = Models(self.loaded.vocabularies or self.vocabularies())
        return self.loaded.models

    @property
    def embedder(self) -> Embedder:
        """Load the model of the global embedding, once."""
        if self.loaded.embedder is None:
            self.loaded.embedder = load_embedder(self.fixed, self.embedding)
        return self.loaded.embedder


# -- creating and locking


def prepare_folder(path: Path) -> None:
    """Make the folder of an index unless it exists; raise NotAnIndexError if it holds something else."""
    with write_errors(path):
        if path.exists() and not _may_be_index(path):
            raise NotAnIndexError(f"{path} exists and is not a polyvoc index; choose another place with --index")
        path.mkdir(parents=True, exist_ok=True)


def lock_folder(path: Path) -> Lock:
    """Acquire the lock of the only writer; raise LockedError if another process has it."""
    lock = filelock.FileLock(path / LOCK)  # held by the operating system: a dead process does not keep it
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:  # which is an OSError
        raise LockedError(f"{path} is being written by another process; wait until it has finished") from None
    except OSError as error:
        raise write_error(path, error) from None
    except NotImplementedError:
        raise WriteError(f"{path}: this disk cannot lock files; choose another place with --index") from None
    return lock


def open_catalogue(folder: IndexFolder, vocabularies: VocabularySet | None, options: FeatureOptions | None) -> Catalogue:
    """Open the catalogue for writing, under the lock; create the index if there is none."""
    if not folder.exists:
        given = vocabularies or VocabularySet.default()
        return _create(folder, given, options or FeatureOptions(**_detector_of(given.kind)))
    catalogue = Catalogue.open(folder.path, writable=True)
    settings = catalogue.settings()
    stored = FeatureOptions(**settings["features"])
    if options is not None and options != stored:
        raise OptionError(f"{folder.path} was made with {stored}; leave the options out, or make another index with --index")
    if vocabularies is not None and _names_of(vocabularies) != VocabularyNames.of(settings):
        raise OptionError(f"{folder.path} was made with other vocabularies; leave them out, or make another index with --index")
    return catalogue


def complete_feature_options(
    changes: Mapping[str, Any], folder: IndexFolder, vocabularies: VocabularySet | None
) -> FeatureOptions | None:
    """Return feature options of which only some are given: the detector is that of the index, or of the vocabularies."""
    if not changes:
        return None
    if folder.exists:
        try:
            return FeatureOptions(**{"detector": folder.feature_options.detector, **changes})
        finally:
            folder.close()
    return FeatureOptions(**{**(_detector_of(vocabularies.kind) if vocabularies else {}), **changes})


def _names_of(vocabularies: VocabularySet) -> VocabularyNames:
    fine = vocabularies.fine
    words = tuple(vocabulary.fingerprint for vocabulary in vocabularies.words)
    return VocabularyNames(words, None if fine is None else fine.fingerprint, vocabularies.signed)


def _detector_of(kind: FeatureKind) -> dict[str, Any]:
    """Return the detector that makes features of a kind, if there is one."""
    return next(({"detector": name} for name, made in DETECTOR_KINDS.items() if made == kind), {})


def _check_kinds(kind: FeatureKind, options: FeatureOptions) -> None:
    """Raise OptionError if the detector's features do not fit the vocabularies, unless features are made elsewhere anyhow."""
    if options.kind == kind:
        check_detector(options.detector)
    elif _detector_of(kind):
        raise OptionError(f"the vocabularies are of {kind}, the detector makes {options.kind}; take another detector, or train "
                          f"vocabularies for it: polyvoc train --detector {options.detector}")  # fmt: skip
    elif options.detector != FeatureOptions().detector:
        raise OptionError(f"the vocabularies are of {kind}, the detector makes {options.kind}; leave the detector out, and add "
                          "features made elsewhere")  # fmt: skip


def _create(folder: IndexFolder, vocabularies: VocabularySet, options: FeatureOptions) -> Catalogue:
    words, fine = vocabularies.words, vocabularies.fine
    if len(words) > MAX_VOCABULARIES:
        raise OptionError(f"an index takes at most {MAX_VOCABULARIES} vocabularies, not {len(words)}")
    _check_kinds(vocabularies.kind, options)  # before anything is written
    folder.loaded.vocabularies = vocabularies
    targets = [folder.vocabulary_folder(number) for number in range(len(words))]
    with write_errors(folder.path):
        (folder.path / UNFINISHED).write_bytes(b"")  # from here on the folder is an index, finished or not
        shutil.rmtree(folder.path / VOCABULARIES, ignore_errors=True)
        for vocabulary, target in zip(words, targets, strict=True):
            vocabulary.save(target)
        if fine is not None:
            fine.save(folder.vocabulary_folder(FINE))
        (folder.path / SEGMENTS).mkdir(exist_ok=True)
    settings = {
        "sizes": list(vocabularies.sizes),
        "vocabularies": [vocabulary.fingerprint for vocabulary in words],
        "vocabulary_checksums": [checksum(target / META) for target in targets],
        "bits": vocabularies.bits,
        "fine": None if fine is None else _fine_setting(fine, folder),
        "kind": asdict(vocabularies.kind),
        "features": asdict(options),
    }
    return Catalogue.create(folder.path, settings)


def _fine_setting(fine: Vocabulary, folder: IndexFolder) -> dict[str, Any]:
    known = {"fingerprint": fine.fingerprint, "size": fine.size, "bits": fine.bits}
    return {**known, "checksum": checksum(folder.vocabulary_folder(FINE) / META)}


def _may_be_index(path: Path) -> bool:
    """Return whether a folder is an index, or empty, or the remains of a killed first run."""
    if not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    own = {LOCK, UNFINISHED, f"{UNFINISHED}-journal", VOCABULARIES, SEGMENTS, STAGING, *SIDE_FILES}
    return FILE in names or names <= {LOCK} or (UNFINISHED in names and names <= own)


# -- the model of the global embedding


def set_embedding(catalogue: Catalogue, model: Embedder | None) -> None:
    """Set the model of an index, before its first image, or its new path; raise OptionError if it has another one."""
    if model is None:
        return
    folder, stored = catalogue.path.parent, EmbeddingInfo.of(catalogue.settings())
    if stored is None and catalogue.count_images():
        raise OptionError(f"{folder} holds images without vectors; index them again, with --embedding and a new --index")
    if stored is not None and stored.fingerprint != model.fingerprint:
        raise OptionError(f"{folder} holds vectors of another model ({stored}); leave --embedding out, or make another index "
                          "with --index")  # fmt: skip
    wanted = EmbeddingInfo(model.fingerprint, model.dimension, model.file or (stored.file if stored else None))
    if wanted != stored:
        with catalogue.transaction():
            catalogue.put_settings({EMBEDDING: asdict(wanted)})


def load_embedder(settings: IndexSettings, given: EmbeddingSource | None = None, threads: int | None = None) -> Embedder:
    """Load the model of an index, the given one or from its file; raise OptionError if it is another one."""
    folder, stored = settings.path.parent, EmbeddingInfo.of(settings)
    if stored is None:
        raise OptionError(f"{folder} holds no vectors; index again, with --embedding MODEL.onnx and a new --index")
    if given is None and stored.file is None:
        raise OptionError(f"{folder} holds vectors of a function; open it with embedding=Embedder.of(...)")
    if given is None and not os.path.isfile(stored.file or ""):
        raise OptionError(f"{stored.file}, the model of {folder}, is missing; give its new path: polyvoc index ... "
                          "--embedding FILE")  # fmt: skip
    model = load_model(given or stored.file or "", threads)
    if model.fingerprint != stored.fingerprint:
        raise OptionError(f"{model.file or 'this function'} is not the model of {folder} ({stored}), or its preprocessing "
                          "differs; restore it, or index again with a new --index")  # fmt: skip
    return model


def load_model(given: EmbeddingSource, threads: int | None = None) -> Embedder:
    """Return a model, read from its file where a path is given."""
    return given if isinstance(given, Embedder) else Embedder.load(given, threads=threads)
