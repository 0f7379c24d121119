"""The folder: what lies where; create, lock; which model."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import filelock

from polyvoc.errors import DamagedError, LockedError, NotAnIndexError, OptionError, VocabularyError, WriteError
from polyvoc.features.embedding import Embedder
from polyvoc.features.extract import check_detector
from polyvoc.index.catalogue import FILE, UNFINISHED, Catalogue
from polyvoc.index.segment import MAX_VOCABULARIES, Segment
from polyvoc.options import DETECTOR_KINDS, FeatureOptions
from polyvoc.storage.files import META, checksum, flush_tree, require_local_path, write_error, write_errors
from polyvoc.types import FeatureKind, LikelihoodTable
from polyvoc.vocabulary.assign import Quantiser
from polyvoc.vocabulary.vocabulary import Vocabulary, default_vocabularies, signature_bits

if TYPE_CHECKING:
    from polyvoc.duplicates.compare import PairsRecord
    from polyvoc.scoring.engine import Engine
    from polyvoc.search.links import LinkGraph, LinksRecord


class Plausible(Protocol):
    """A record that a fact may be read as."""

    @property
    def plausible(self) -> bool:
        """Tell whether its values may be those of a fact."""


P = TypeVar("P", bound=Plausible)


def record_of(kind: type[P], fact: Any, name: str, source: Path) -> P | None:
    """Give what a fact says as a record, None if there is no such fact; refuse what cannot be one."""
    if fact is None:
        return None
    try:
        found = kind(**fact)
    except TypeError:
        found = None
    if found is None or not found.plausible:
        raise DamagedError(f"{source}: the fact '{name}' cannot be {fact!r}; run 'polyvoc check'")
    return found


EMBEDDING = "embedding"
EmbeddingSource = Embedder | str | os.PathLike[str]  # a model, or the path of its ONNX file


@dataclass(frozen=True)
class EmbeddingRecord:
    """What an index knows of the model that made its vectors."""

    fingerprint: str
    dimension: int
    file: str | None  # absolute path; None: a function, which only its owner can give again

    @classmethod
    def of(cls, catalogue: Catalogue) -> EmbeddingRecord | None:
        """Read it from a catalogue; None if the index holds no vectors."""
        found = catalogue.fact(EMBEDDING, required=False)
        try:
            return None if found is None else cls(**found)
        except TypeError:
            raise DamagedError(f"{catalogue.path}: the fact {EMBEDDING!r} cannot be {found!r}; run 'polyvoc check'") from None


def settle_embedding(catalogue: Catalogue, model: Embedder | None) -> None:
    """Make a model that of an index, from its first image on, or note where it lies now; refuse any other."""
    if model is None:
        return
    folder, known = catalogue.path.parent, EmbeddingRecord.of(catalogue)
    if known is None and catalogue.count_images():
        raise OptionError(f"{folder} holds images without vectors; index them again, with --embedding and a new --index")
    if known is not None and known.fingerprint != model.fingerprint:
        raise OptionError(f"{folder} holds vectors of another model ({_model_name(known)}); leave --embedding out, or make another "
                          "index with --index")  # fmt: skip
    wanted = EmbeddingRecord(model.fingerprint, model.dimension, model.file or (known.file if known else None))
    if wanted != known:
        with catalogue.transaction():
            catalogue.put_facts({EMBEDDING: asdict(wanted)})


def load_embedder(catalogue: Catalogue, given: EmbeddingSource | None = None, threads: int | None = None) -> Embedder:
    """Give the model of an index: the one that is given, or from the file where it was; refuse any other."""
    folder, known = catalogue.path.parent, EmbeddingRecord.of(catalogue)
    if known is None:
        raise OptionError(f"{folder} holds no vectors; index again, with --embedding MODEL.onnx and a new --index")
    if given is None and known.file is None:
        raise OptionError(f"{folder} holds vectors of a function; open it with embedding=Embedder.of(...)")
    if given is None and not os.path.isfile(known.file or ""):
        raise OptionError(f"{known.file}, the model of {folder}, is gone; say where it is: polyvoc index ... --embedding FILE")
    model = load_embedding(given or known.file or "", threads)
    if model.fingerprint != known.fingerprint:
        raise OptionError(f"{model.file or 'this function'} is not the model of {folder} ({_model_name(known)}), or is prepared "
                          "otherwise; restore it, or index again with a new --index")  # fmt: skip
    return model


def load_embedding(given: EmbeddingSource, threads: int | None = None) -> Embedder:
    """Give a model, read from its file where a path is given."""
    return given if isinstance(given, Embedder) else Embedder.load(given, threads=threads)


def _model_name(known: EmbeddingRecord) -> str:
    return f"{known.file or 'a function'}, {known.fingerprint}"


SEGMENTS, VOCABULARIES, NORMS, NEIGHBOURS, COPIES = "segments", "vocabularies", "norms", "neighbours", "copies"
STAGING = "incoming"  # segments that other processes made, and no commit has taken yet


class SegmentPart(NamedTuple):
    """A segment of a commit."""

    segment: int  # its number in the catalogue
    n_images: int
    n_features: int
    deleted: Sequence[int]  # positions


@dataclass(frozen=True)
class Layout:
    """What a commit refers to."""

    sizes: tuple[int, ...]  # of the vocabularies
    parts: tuple[SegmentPart, ...]
    norms: Path | None  # file with those of all images, if they are of this commit
    graph: LinksRecord | None


@dataclass(frozen=True)
class IndexFolder:
    """The folder of an index: where its parts lie, and how they are read."""

    path: Path
    embedding: EmbeddingSource | None = None  # stands in for the model that the index remembers

    def __post_init__(self) -> None:
        """Refuse an address in a store."""
        require_local_path(self.path)

    @cached_property
    def catalogue(self) -> Catalogue:
        """Open the catalogue for reading."""
        return Catalogue.open(self.path)

    @property
    def identity(self) -> tuple[int, int] | None:
        """Give what tells this index from another one at the same path, as of now; None if there is none."""
        try:
            status = (self.path / FILE).stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def again(self) -> IndexFolder:
        """Give the same folder with a catalogue of its own; vocabularies and models that are loaded stay so."""
        anew = IndexFolder(self.path, self.embedding)
        kept = ("quantiser", "embedder", "feature_options", "kind", "bits", "dimension")  # no commit changes them
        vars(anew).update({name: value for name, value in vars(self).items() if name in kept})
        return anew

    def close(self) -> None:
        """Release the catalogue, if it was opened."""
        if "catalogue" in vars(self):
            self.catalogue.close()

    def read_layout(self) -> Layout:
        """Give what the last commit refers to."""
        with self.catalogue.snapshot():
            numbers = self.catalogue.segments()
            rows = [(number, self.catalogue.segment(number), self.catalogue.deleted(number)) for number in numbers]
            norms = self.catalogue.fact(NORMS)
            current = norms is not None and norms["commit"] == self.catalogue.fact("commit")
            return Layout(
                sizes=tuple(self.catalogue.fact("sizes")),
                parts=tuple(
                    SegmentPart(number, row.n_images, row.n_features, gone) for number, row, gone in rows if row is not None
                ),
                norms=self.norms_file(norms["commit"]) if current else None,
                graph=self.read_graph(),
            )

    def read_engine(self, linked: bool = True) -> Engine:
        """Map the segments of the last commit, and their graph unless it does not matter."""
        from polyvoc.scoring.engine import Engine
        from polyvoc.search.index import _read_norms

        layout = self.read_layout()
        segments = [self.read_segment(part.segment, layout.sizes, part.deleted) for part in layout.parts]
        try:
            known = None if layout.norms is None else _read_norms(layout.norms, segments)
            return Engine(segments, layout.sizes, known, self.read_neighbours(layout) if linked else None)
        except (KeyError, IndexError, ValueError):  # counting the words of deleted images
            raise DamagedError(f"{self.path / SEGMENTS}: arrays contradict each other; run 'polyvoc check'") from None

    def read_neighbours(self, layout: Layout) -> LinkGraph | None:
        """Map the graph of neighbours, if there is one."""
        from polyvoc.search.links import LinkGraph

        graph = layout.graph
        return None if graph is None else LinkGraph(graph.read(self.neighbours_file(graph.commit)))

    def read_graph(self) -> LinksRecord | None:
        """Give what is known of the graph of neighbours, if there is one."""
        from polyvoc.search.links import LinksRecord

        return LinksRecord.of(self.catalogue.fact(NEIGHBOURS, required=False), self.catalogue.path)

    def read_copies(self) -> PairsRecord | None:
        """Give what is known of pairs of copies, if anybody has looked for them."""
        from polyvoc.duplicates.compare import PairsRecord

        return PairsRecord.of(self.catalogue.fact(COPIES, required=False), self.catalogue.path)

    def read_line(self) -> tuple[float, float] | None:
        """Give the line of term 2 that was fitted to this index, if any was."""
        found = self.catalogue.fact("line", required=False)
        return None if found is None else (float(found["a"]), float(found["b"]))

    def read_evidence(self) -> LikelihoodTable | None:
        """Give the table of evidence that was fitted to this index, if any was."""
        from polyvoc.scoring.rules import table_from_dict

        found = self.catalogue.fact("evidence", required=False)
        return None if found is None else table_from_dict(found, str(self.catalogue.path))

    def read_segment(self, number: int, sizes: tuple[int, ...], deleted: Sequence[int]) -> Segment:
        """Map one segment, without its deleted images."""
        segment = Segment.open(self.segment_folder(number))
        if segment.sizes != sizes:
            raise DamagedError(f"{self.segment_folder(number)} belongs to another index; run 'polyvoc check'")
        if not all(isinstance(position, int) and 0 <= position < segment.n_images for position in deleted):
            raise DamagedError(f"{self.catalogue.path}: segment {number} has no such images to delete; run 'polyvoc check'")
        return segment.without(deleted)

    def segment_folder(self, number: int) -> Path:
        """Give the folder of a segment."""
        return self.path / SEGMENTS / f"{number:06d}"

    def incoming_folder(self, token: str) -> Path:
        """Give the folder of a segment that waits for its commit."""
        return self.path / STAGING / token

    def norms_file(self, commit: int) -> Path:
        """Give the file with the norms of a commit."""
        return self.path / NORMS / f"{commit:06d}.npy"

    def neighbours_file(self, commit: int) -> Path:
        """Give the file with the pairs of neighbours that a commit made."""
        return self.path / NEIGHBOURS / f"{commit:06d}.npy"

    def copies_file(self, serial: int) -> Path:
        """Give the file with the pairs of copies."""
        return self.path / COPIES / f"{serial:06d}.npy"

    def vocabulary_folder(self, number: int) -> Path:
        """Give the folder of a vocabulary."""
        return self.path / VOCABULARIES / str(number)

    @cached_property
    def feature_options(self) -> FeatureOptions:
        """Give the options that the photographs were read with."""
        return FeatureOptions(**self.catalogue.fact("features"))

    @property
    def extraction(self) -> FeatureOptions:
        """Give the options to read a photograph with; refuse where polyvoc does not make the features of this index."""
        if self.feature_options.kind != self.kind:
            raise OptionError(f"{self.path} holds {self.kind}, which polyvoc does not find in photographs; add and search with "
                              "features made elsewhere, or search with an image of the index (--image ID)")  # fmt: skip
        return self.feature_options

    @cached_property
    def kind(self) -> FeatureKind:
        """Give what the descriptors of its features are: SIFT where nothing is said."""
        found = self.catalogue.fact("kind", required=False)
        return FeatureKind(dimension=self.dimension) if found is None else FeatureKind(**found)

    @cached_property
    def bits(self) -> int:
        """Give the length of the signatures that the vocabularies make, 0 if they make none."""
        return signature_bits(self.vocabulary_folder(0))

    @cached_property
    def dimension(self) -> int:
        """Give the length of a descriptor."""
        return int(self.catalogue.fact("dimension"))

    @property
    def embeds(self) -> bool:
        """Tell whether photographs have a vector of a global embedding."""
        return self.catalogue.fact("embedding", required=False) is not None

    def vocabularies(self) -> list[Vocabulary]:
        """Load the vocabularies, checked against those that the index was made with."""
        return self.load_vocabularies(self.catalogue.fact("vocabularies"))

    def load_vocabularies(self, fingerprints: Sequence[str]) -> list[Vocabulary]:
        """Load the vocabularies, which must have these fingerprints; the catalogue is not asked."""
        loaded = []
        for number, fingerprint in enumerate(fingerprints):
            vocabulary = Vocabulary.load(self.vocabulary_folder(number))
            if vocabulary.fingerprint != fingerprint:
                raise VocabularyError(f"{self.vocabulary_folder(number)} is vocabulary {vocabulary.fingerprint}, "
                                      f"but the index was made with {fingerprint}; restore it or index again")  # fmt: skip
            loaded.append(vocabulary)
        return loaded

    @cached_property
    def quantiser(self) -> Quantiser:
        """Load the vocabularies, once."""
        return Quantiser(self.vocabularies())

    @cached_property
    def embedder(self) -> Embedder:
        """Load the model of the global embedding, once."""
        return load_embedder(self.catalogue, self.embedding)


LOCK = "lock"
Lock = filelock.BaseFileLock


def prepare_folder(path: Path) -> None:
    """Make the folder of an index unless it is there; refuse one that holds something else."""
    with write_errors(path):
        if path.exists() and not _is_ours(path):
            raise NotAnIndexError(f"{path} exists and is not a polyvoc index; choose another place with --index")
        path.mkdir(parents=True, exist_ok=True)


def lock_folder(path: Path) -> Lock:
    """Become the one that writes to an index, or say who does."""
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


def open_catalogue(home: IndexFolder, vocabularies: Sequence[Vocabulary] | None, options: FeatureOptions | None) -> Catalogue:
    """Open the catalogue for writing, under the lock; make it, with all else that an index needs, if there is none."""
    if not (home.path / FILE).is_file():
        words = vocabularies or default_vocabularies()
        return _create(home, words, options or FeatureOptions(**_detector_of(words[0].kind)))
    catalogue = Catalogue.open(home.path, writable=True)
    stored = FeatureOptions(**catalogue.fact("features"))
    if options is not None and options != stored:
        raise OptionError(f"{home.path} was made with {stored}; leave the options out, or make another index with --index")
    if vocabularies is not None and [v.fingerprint for v in vocabularies] != catalogue.fact("vocabularies"):
        raise OptionError(f"{home.path} was made with other vocabularies; leave them out, or make another index with --index")
    return catalogue


def complete_feature_options(
    chosen: dict[str, Any], home: IndexFolder, vocabularies: Sequence[Vocabulary] | None
) -> FeatureOptions | None:
    """Give feature options of which only some were said: the detector is that of the index, or of the vocabularies."""
    if not chosen:
        return None
    if (home.path / FILE).is_file():
        try:
            return FeatureOptions(**{"detector": home.feature_options.detector, **chosen})
        finally:
            home.close()
    return FeatureOptions(**{**(_detector_of(vocabularies[0].kind) if vocabularies else {}), **chosen})


def _detector_of(kind: FeatureKind) -> dict[str, Any]:
    """Give the detector that makes features of a kind, if one does."""
    return next(({"detector": name} for name, made in DETECTOR_KINDS.items() if made == kind), {})


def _check_kinds(vocabularies: Sequence[Vocabulary], options: FeatureOptions) -> None:
    """Refuse a detector whose features have no words in the vocabularies, unless features are made elsewhere anyhow."""
    kind = vocabularies[0].kind
    if options.kind == kind:
        check_detector(options.detector)
    elif _detector_of(kind):
        raise OptionError(f"the vocabularies are of {kind}, the detector makes {options.kind}; take another detector, or train "
                          f"vocabularies for it: polyvoc train --detector {options.detector}")  # fmt: skip
    elif options.detector != FeatureOptions.detector:
        raise OptionError(f"the vocabularies are of {kind}, the detector makes {options.kind}; leave the detector out, and add "
                          "features made elsewhere")  # fmt: skip


def _create(home: IndexFolder, vocabularies: Sequence[Vocabulary], options: FeatureOptions) -> Catalogue:
    if len(vocabularies) > MAX_VOCABULARIES:
        raise OptionError(f"an index takes 1 to {MAX_VOCABULARIES} vocabularies, not {len(vocabularies)}")
    _check_kinds(vocabularies, options)
    Quantiser(vocabularies)  # refuses those that do not go together, before anything is written
    folders = [home.vocabulary_folder(number) for number in range(len(vocabularies))]
    with write_errors(home.path):
        (home.path / UNFINISHED).write_bytes(b"")  # from here on the folder is ours, whatever happens
        shutil.rmtree(home.path / VOCABULARIES, ignore_errors=True)
        for vocabulary, folder in zip(vocabularies, folders, strict=True):
            vocabulary.save(folder)
        for name in (SEGMENTS, NORMS):
            (home.path / name).mkdir(exist_ok=True)
        flush_tree(home.path / VOCABULARIES)
    facts = {
        "sizes": [vocabulary.size for vocabulary in vocabularies],
        "vocabularies": [vocabulary.fingerprint for vocabulary in vocabularies],
        "vocabulary_checksums": [checksum(folder / META) for folder in folders],
        "dimension": vocabularies[0].dimension,
        "kind": asdict(vocabularies[0].kind),
        "features": asdict(options),
    }
    return Catalogue.create(home.path, facts)


def _is_ours(path: Path) -> bool:
    """Tell whether a folder is an index, or empty, or what a killed first run left behind."""
    if not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    own = {LOCK, UNFINISHED, f"{UNFINISHED}-journal", VOCABULARIES, SEGMENTS, NORMS, STAGING}
    return FILE in names or names <= {LOCK} or (UNFINISHED in names and names <= own)
