"""The folder of an index: what lies where, how it is created, locked and read."""

from __future__ import annotations

import math
import os
import reprlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
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
from polyvoc.index.additions import Additions
from polyvoc.index.catalogue import FILE, LAYOUT, LINES, UNFINISHED, Catalogue, IndexSettings
from polyvoc.index.segment import Segment
from polyvoc.index.words import MAX_VOCABULARIES
from polyvoc.options import DETECTOR_KINDS, FeatureOptions, ScoringOptions
from polyvoc.storage.blocks import REPAIR
from polyvoc.storage.files import (
    META,
    checksum,
    file_errors,
    flush_path,
    make_folder,
    map_array,
    require_local_path,
    write_error,
    write_errors,
)
from polyvoc.storage.trust import Trust, is_identity, new_identity
from polyvoc.types import Array, Descriptors, FeatureCodes, FeatureKind, NetworkFile, Signatures, Words
from polyvoc.vocabulary.assign import Quantiser
from polyvoc.vocabulary.codes import Coder, planes_of
from polyvoc.vocabulary.vocabulary import FINE, Vocabulary, VocabularySet

SEGMENTS, VOCABULARIES, STAGING = "segments", "vocabularies", "staging"  # staging: segments that no commit refers to yet
LINKS, DUPLICATE_PAIRS, DECISIONS = "links", "duplicate_pairs", "decisions"
SIDE_FILES = (LINKS, DUPLICATE_PAIRS, DECISIONS)
DUPLICATE_LINES = "duplicate_lines"  # the setting of what verdicts change in the probabilities of duplicates
LOCK = "lock"
INDEXED = 0.8  # share of the usual search for the words of an indexed feature (benchmarks/indexing.py: agreement)
EMBEDDING = "embedding"
FOLDERS, EXCLUDE = "folders", "exclude"  # what an index follows (`index.changes`), and the patterns of what it leaves out
ADDITIONS = "additions"  # which images were added after which commit (`index.additions`)
UUID, ROOTS = "uuid", "roots"  # the identity of an index, and the folders and addresses of its photographs
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
    checksum: str  # of its `meta.json`
    deleted: tuple[int, ...]  # positions


class SegmentKind(NamedTuple):
    """What all segments of an index have in common."""

    sizes: tuple[int, ...]  # of the vocabularies of words
    planes: int  # groups of 64 bits of the signatures of words
    fine: int  # words that codes refer to, 0: no codes
    code_planes: int  # groups of 64 bits of a code

    @classmethod
    def of(cls, settings: IndexSettings) -> SegmentKind:
        """Read it from the settings of an index."""
        fine = settings["fine"]
        codes = (0, 0) if fine is None else (fine["size"], planes_of(fine["bits"]))
        return cls(tuple(settings["sizes"]), planes_of(settings["bits"]), *codes)

    def has(self, segment: Segment) -> bool:
        """Return whether a segment is of this kind; one without features has no signatures."""
        planes = segment.planes if segment.n_features else self.planes
        return self == (segment.sizes, planes, segment.fine, segment.code_planes)


@dataclass(frozen=True)
class Layout:
    """What a commit refers to."""

    commit: int
    kind: SegmentKind
    parts: tuple[SegmentPart, ...]
    settings: IndexSettings


class VocabularyNames(NamedTuple):
    """The vocabularies of an index by their fingerprints, and whether its words have signatures."""

    words: tuple[str, ...]
    fine: str | None
    signed: bool
    checksums: tuple[str, ...] = ()  # of the `meta.json` of each, the fine one last

    @classmethod
    def of(cls, settings: IndexSettings) -> VocabularyNames:
        """Read them from the settings of an index."""
        fine = settings["fine"]
        checksums = (*settings["vocabulary_checksums"], *([] if fine is None else [fine["checksum"]]))
        name = None if fine is None else fine["fingerprint"]
        return cls(tuple(settings["vocabularies"]), name, settings["bits"] > 0, checksums)

    def are(self, vocabularies: VocabularySet) -> bool:
        """Return whether these are the names of some vocabularies."""
        fine = None if vocabularies.fine is None else vocabularies.fine.fingerprint
        return self[:3] == (tuple(one.fingerprint for one in vocabularies.words), fine, vocabularies.signed)


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
            words, signatures = self.quantiser.quantise(descriptors, effort=INDEXED)
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
        """Return the options to read a photograph with; raise OptionError if polyvoc does not extract such features.

        A network is loaded here, from its file: raise NotAllowedError for one that may not be read.
        """
        if self.feature_options.kind != self.kind:
            raise OptionError(f"{self.path} holds {self.kind}, which polyvoc does not extract from photographs; add and search "
                              "with features made elsewhere, or search with an image of the index (--image ID)")  # fmt: skip
        if self.feature_options.network is not None:
            self._check_network(self.feature_options.network)
        return self.feature_options

    def _check_network(self, network: NetworkFile) -> None:
        """Raise an error unless the network of this index may be read and is there."""
        if not os.path.isfile(self.trust.require(network.file)):
            raise OptionError(f"{network.file}, the detector of {self.path}, is missing; give its new path: polyvoc index "
                              f"--index {self.path} --detector FILE")  # fmt: skip
        check_detector(self.feature_options)

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

    @property
    def trust(self) -> Trust:
        """Return which of the paths and addresses that the index names may be read here."""
        return Trust(self.path, *named_roots(self.fixed))

    def require_plain_files(self) -> None:
        """Raise DamagedError if an index of which this user has noted nothing holds links, pipes or devices.

        They lead outside of its folder, or reading them never ends.
        """
        for folder, _, _ in () if self.trust.roots else os.walk(self.path):
            with suppress(FileNotFoundError), os.scandir(folder) as entries:  # deleted by a writer this very moment
                for entry in entries:
                    plain = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
                    if not plain and os.path.lexists(entry.path):
                        raise DamagedError(f"{entry.path} is a link or no regular file, and the index was made elsewhere; "
                                           "copy the index again, without links")  # fmt: skip

    # -- what a commit refers to

    def read_layout(self) -> Layout:
        """Return what the last commit refers to."""
        with self.catalogue.snapshot():
            settings = self.catalogue.settings()
            rows = self.catalogue.segment_rows()
            deleted = self.catalogue.sound_deleted()
        for name, line in odd_settings(settings).items():
            if name not in OPTIONAL:  # the others are checked where they are used
                raise DamagedError(f"{line}; {REPAIR}")
        return Layout(
            commit=settings["commit"],
            kind=SegmentKind.of(settings),
            parts=tuple(
                SegmentPart(number, row.n_images, row.n_features, row.checksum, deleted[number]) for number, row in rows.items()
            ),
            settings=settings,
        )

    def read_segment(self, number: int, checksum: str, kind: SegmentKind, deleted: Sequence[int]) -> Segment:
        """Map one segment, without its deleted images. Raise DamagedError if what is read of it is damaged."""
        path = self.segment_folder(number)
        if (line := file_errors(path / META, checksum)) is not None:
            raise DamagedError(f"{line}; {REPAIR}")
        segment = Segment.open(path)
        if not kind.has(segment):
            raise DamagedError(f"{path} belongs to another index; {REPAIR}")
        if not all(isinstance(position, int) and 0 <= position < segment.n_images for position in deleted):
            raise DamagedError(f"{self.path / FILE}: the deleted images of segment {number} are damaged; {REPAIR}")
        return segment.without(deleted)

    def read_segments(self, layout: Layout, on_damage: Callable[[SegmentPart, DamagedError], None]) -> list[Segment]:
        """Map the segments of a commit, without those that are damaged.

        Segments that are as in the commit read before are shared, with what was counted and verified.
        """
        before, segments = self.loaded.segments, dict[SegmentPart, Segment]()
        for part in layout.parts:
            try:
                segment = before.get(part) or self.read_segment(part.segment, part.checksum, layout.kind, part.deleted)
                if (segment.n_images, segment.n_features) != (part.n_images, part.n_features):
                    raise DamagedError(f"{self.path / FILE}: segment {part.segment} has other images or features; {REPAIR}")
                _ = segment.live_code_lengths, segment.live_lengths  # reads what deleted images hold
                segments[part] = segment
            except DamagedError as error:
                on_damage(part, error)
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
        places = enumerate(zip(names.words, names.checksums, strict=False))
        words = tuple(self._load_vocabulary(number, *recorded) for number, recorded in places)
        fine = None if names.fine is None else self._load_vocabulary(FINE, names.fine, names.checksums[-1])
        return VocabularySet(words, fine, names.signed)

    def _load_vocabulary(self, number: int | str, fingerprint: str, recorded: str) -> Vocabulary:
        vocabulary = Vocabulary.load(self.vocabulary_folder(number))
        if vocabulary.fingerprint != fingerprint:
            raise VocabularyError(f"{self.vocabulary_folder(number)} is vocabulary {vocabulary.fingerprint}, "
                                  f"but the index was made with {fingerprint}; restore it or index again")  # fmt: skip
        if (line := file_errors(self.vocabulary_folder(number) / META, recorded)) is not None:
            raise VocabularyError(f"{line}; {REPAIR}")
        return vocabulary

    @property
    def models(self) -> Models:
        """Load the vocabularies, once."""
        if self.loaded.models is None:
            self.loaded.models = Models(self.loaded.vocabularies or self.vocabularies())
        return self.loaded.models

    @property
    def embedder(self) -> Embedder:
        """Load the model of the global embedding, once; raise NotAllowedError for one that may not be read."""
        if self.loaded.embedder is None:
            self.loaded.embedder = load_embedder(self.fixed, self.embedding)
        return self.loaded.embedder


# -- settings

# Of indexes that were calibrated, linked, searched for duplicates, decided on, or have vectors; what trust and updates need.
OPTIONAL = (
    *LINES.values(), "likelihood_table", "code_table", DUPLICATE_LINES, EMBEDDING, UUID, ROOTS, FOLDERS, EXCLUDE, ADDITIONS,
    LAYOUT, *SIDE_FILES,
)  # fmt: skip


def odd_settings(settings: IndexSettings, last_segment: int = 0) -> dict[str, str]:
    """Return one line for each setting that cannot be that of an index, by its name."""
    found = {}
    valid: dict[str, Callable[[Any], bool]] = {
        "sizes": lambda sizes: (sizes or settings["fine"]) and len(sizes) <= MAX_VOCABULARIES and min(sizes, default=1) >= 1,
        "vocabularies": lambda fingerprints: len(fingerprints) == len(settings["sizes"]),
        "vocabulary_checksums": lambda checksums: len(checksums) == len(settings["sizes"]),
        "bits": lambda bits: bits >= 0,
        "fine": lambda fine: fine is None or (fine["size"] >= 1 and fine["bits"] >= 1 and bool(fine["fingerprint"])),
        "kind": lambda kind: FeatureKind(**kind) is not None,
        "features": lambda options: FeatureOptions(**options) is not None,
        "commit": lambda commit: commit >= 0,
        "last_segment": lambda segment: segment >= last_segment,
        **dict.fromkeys(LINES.values(), lambda line: line is None or ScoringOptions(line=(line["a"], line["b"])) is not None),
        DUPLICATE_LINES: lambda lines: lines is None or all(_is_line(lines[name]) for name in ("scene", "copy")),
        EMBEDDING: lambda _: (info := EmbeddingInfo.of(settings)) is None or (info.dimension >= 1 and bool(info.fingerprint)),
        ADDITIONS: lambda value: value is None or Additions.of(value) is not None,
        EXCLUDE: lambda patterns: patterns is None or all(isinstance(pattern, str) for pattern in patterns),
        FOLDERS: lambda value: value is None or all(isinstance(one["skipped"], dict) for one in value.values()),
    }
    for name, holds in valid.items():
        try:
            value = settings.get(name) if name in OPTIONAL else settings[name]
        except DamagedError as error:
            found[name] = str(error).partition(";")[0]
            continue
        try:
            is_valid = holds(value)
        except (TypeError, KeyError, ValueError, DamagedError, OptionError):
            is_valid = False
        if not is_valid:
            found[name] = f"{settings.path}: the setting {name!r} cannot be {reprlib.repr(value)}"
    return found


def _is_line(values: Sequence[float]) -> bool:
    """Return whether numbers are a shift and a stretch."""
    shift, stretch = map(float, values)
    return math.isfinite(shift) and 0 < stretch < math.inf


def named_roots(settings: IndexSettings) -> tuple[str | None, tuple[str, ...]]:
    """Return the identity of an index, None if it has none, and the roots that it names; both are data of its maker."""
    identity, roots = settings.get(UUID), settings.get(ROOTS)
    named = tuple(root for root in roots if isinstance(root, str)) if isinstance(roots, list) else ()
    return identity if is_identity(identity) else None, named


# -- creating and locking


def prepare_folder(path: Path) -> None:
    """Make the folder of an index unless it exists; raise NotAnIndexError if it holds something else."""
    with write_errors(path):
        if path.exists() and not _may_be_index(path):
            raise NotAnIndexError(f"{path} exists and is not a polyvoc index; choose another place with --index")
        make_folder(path)


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
        given = vocabularies or VocabularySet.default(None if options is None else options.kind)
        return _create(folder, given, options or FeatureOptions(**_detector_of(given.kind)))
    catalogue = Catalogue.open(folder.path, writable=True)
    settings = catalogue.settings()
    stored = FeatureOptions(**settings["features"])
    if options is not None and options != stored:
        raise OptionError(f"{folder.path} was made with {stored}; leave the options out, or make another index with --index")
    if options is not None and options.as_dict() != stored.as_dict():  # the file of a network lies elsewhere now
        with catalogue.transaction():
            catalogue.put_settings({"features": options.as_dict()})
            catalogue.count_commit()  # open indexes are reopened
    if vocabularies is not None and not VocabularyNames.of(settings).are(vocabularies):
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
            stored = folder.feature_options
        finally:
            folder.close()
        known = {} if "detector" in changes else {"detector": stored.detector, "network": stored.network}
        return FeatureOptions(**{**known, **changes})
    return FeatureOptions(**{**(_detector_of(vocabularies.kind) if vocabularies else {}), **changes})


def _detector_of(kind: FeatureKind) -> dict[str, Any]:
    """Return the detector that makes features of a kind, if there is one."""
    return next(({"detector": name} for name, made in DETECTOR_KINDS.items() if made == kind), {})


def _check_kinds(kind: FeatureKind, options: FeatureOptions) -> None:
    """Raise OptionError if the detector's features do not fit the vocabularies, unless features are made elsewhere anyhow."""
    if options.kind == kind:
        check_detector(options)
    elif _detector_of(kind) or options.network is not None:
        detector = options.detector if options.network is None else options.network.file
        raise OptionError(f"the vocabularies are of {kind}, the detector makes {options.kind}; take another detector, or train "
                          f"vocabularies for it: polyvoc train --detector {detector}")  # fmt: skip
    elif options.detector != FeatureOptions().detector:
        raise OptionError(f"the vocabularies are of {kind}, the detector makes {options.kind}; leave the detector out, and add "
                          "features made elsewhere")  # fmt: skip


def check_new_index(folder: IndexFolder, vocabularies: VocabularySet | None, options: FeatureOptions | None) -> None:
    """Raise OptionError if an index that does not exist yet could not be made with vocabularies and feature options."""
    if not folder.exists:
        wanted = options or FeatureOptions()
        _check_kinds((vocabularies or VocabularySet.default(wanted.kind)).kind, wanted)


def _create(folder: IndexFolder, vocabularies: VocabularySet, options: FeatureOptions) -> Catalogue:
    words, fine = vocabularies.words, vocabularies.fine
    if len(words) > MAX_VOCABULARIES:
        raise OptionError(f"an index takes at most {MAX_VOCABULARIES} vocabularies, not {len(words)}")
    _check_kinds(vocabularies.kind, options)  # before anything is written
    folder.loaded.vocabularies = vocabularies
    targets = [folder.vocabulary_folder(number) for number in range(len(words))]
    with write_errors(folder.path):
        (folder.path / UNFINISHED).write_bytes(b"")  # from here on the folder is an index, finished or not
        flush_path(folder.path)  # before there is anything else
        shutil.rmtree(folder.path / VOCABULARIES, ignore_errors=True)
        for vocabulary, target in zip(words, targets, strict=True):
            vocabulary.save(target)
        if fine is not None:
            fine.save(folder.vocabulary_folder(FINE))
        make_folder(folder.path / SEGMENTS)
    settings = {
        "sizes": list(vocabularies.sizes),
        "vocabularies": [vocabulary.fingerprint for vocabulary in words],
        "vocabulary_checksums": [checksum(target / META) for target in targets],
        "bits": vocabularies.bits,
        "fine": None if fine is None else _fine_setting(fine, folder),
        "kind": asdict(vocabularies.kind),
        "features": options.as_dict(),
        UUID: new_identity(),
        ROOTS: [],
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
    if given is None:
        Trust(folder, *named_roots(settings)).require(str(stored.file))
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
