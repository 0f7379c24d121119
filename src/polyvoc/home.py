"""The folder of an index: where its parts lie, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from polyvoc import evidence, neighbourhood, storage, witness
from polyvoc.catalogue import FILE, Catalogue
from polyvoc.copies import resemblance
from polyvoc.embedding import Embedder
from polyvoc.engine import Engine
from polyvoc.errors import DamagedError, OptionError, VocabularyError
from polyvoc.neighbourhood import Neighbourhood
from polyvoc.quantiser import Quantiser
from polyvoc.records import Evidence, FeatureOptions, Kind
from polyvoc.segment import Segment
from polyvoc.shards import Scores
from polyvoc.vocabulary import Vocabulary, bits_of
from polyvoc.witness import Embedding

SEGMENTS, VOCABULARIES, NORMS, NEIGHBOURS, COPIES = "segments", "vocabularies", "norms", "neighbours", "copies"
INCOMING = "incoming"  # segments that other processes made, and no commit has taken yet


class Part(NamedTuple):
    """A segment of a commit."""

    segment: int  # its number in the catalogue
    n_images: int
    n_features: int
    deleted: Sequence[int]  # positions


@dataclass(frozen=True)
class Layout:
    """What a commit refers to."""

    sizes: tuple[int, ...]  # of the vocabularies
    parts: tuple[Part, ...]
    norms: Path | None  # file with those of all images, if they are of this commit
    graph: neighbourhood.Record | None


@dataclass(frozen=True)
class Home:
    """The folder of an index: where its parts lie, and how they are read."""

    path: Path
    embedding: Embedding | None = None  # stands in for the model that the index remembers

    def __post_init__(self) -> None:
        """Refuse an address in a store."""
        storage.refuse_address(self.path)

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

    def again(self) -> Home:
        """Give the same folder with a catalogue of its own; vocabularies and models that are loaded stay so."""
        anew = Home(self.path, self.embedding)
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
                parts=tuple(Part(number, row.n_images, row.n_features, gone) for number, row, gone in rows if row is not None),
                norms=self.norms_file(norms["commit"]) if current else None,
                graph=self.read_graph(),
            )

    def read_engine(self, linked: bool = True) -> Engine:
        """Map the segments of the last commit, and their graph unless it does not matter."""
        layout = self.read_layout()
        segments = [self.read_segment(part.segment, layout.sizes, part.deleted) for part in layout.parts]
        try:
            known = None if layout.norms is None else _read_norms(layout.norms, segments)
            return Engine(segments, layout.sizes, known, self.read_neighbours(layout) if linked else None)
        except (KeyError, IndexError, ValueError):  # counting the words of deleted images
            raise DamagedError(f"{self.path / SEGMENTS}: arrays contradict each other; run 'polyvoc check'") from None

    def read_neighbours(self, layout: Layout) -> Neighbourhood | None:
        """Map the graph of neighbours, if there is one."""
        graph = layout.graph
        return None if graph is None else Neighbourhood(graph.read(self.neighbours_file(graph.commit)))

    def read_graph(self) -> neighbourhood.Record | None:
        """Give what is known of the graph of neighbours, if there is one."""
        return neighbourhood.Record.of(self.catalogue.fact(NEIGHBOURS, required=False), self.catalogue.path)

    def read_copies(self) -> resemblance.Record | None:
        """Give what is known of pairs of copies, if anybody has looked for them."""
        return resemblance.Record.of(self.catalogue.fact(COPIES, required=False), self.catalogue.path)

    def read_line(self) -> tuple[float, float] | None:
        """Give the line of term 2 that was fitted to this index, if any was."""
        found = self.catalogue.fact("line", required=False)
        return None if found is None else (float(found["a"]), float(found["b"]))

    def read_evidence(self) -> Evidence | None:
        """Give the table of evidence that was fitted to this index, if any was."""
        found = self.catalogue.fact("evidence", required=False)
        return None if found is None else evidence.from_dict(found, str(self.catalogue.path))

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
        return self.path / INCOMING / token

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
    def kind(self) -> Kind:
        """Give what the descriptors of its features are: SIFT where nothing is said."""
        found = self.catalogue.fact("kind", required=False)
        return Kind(dimension=self.dimension) if found is None else Kind(**found)

    @cached_property
    def bits(self) -> int:
        """Give the length of the signatures that the vocabularies make, 0 if they make none."""
        return bits_of(self.vocabulary_folder(0))

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
        return witness.model_of(self.catalogue, self.embedding)


def _read_norms(path: Path, segments: Sequence[Segment]) -> list[Scores]:
    counts = [segment.n_images for segment in segments]
    values = storage.map_array(path, np.float32, (sum(counts),))
    return np.split(values, np.cumsum(counts)[:-1]) if counts else []
