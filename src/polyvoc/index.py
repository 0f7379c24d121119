"""The index: a photograph in, the photographs that show the same thing out. Read this file first.

An index is a folder: `catalogue.sqlite` (what it holds; its transaction is the commit), `segments/` (the postings),
`vocabularies/` (copies of those it was made with), `norms/` (image norms of the last commit),
`neighbours/` (pairs of images that show the same thing, if it was linked).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from polyvoc import evidence, explaining, features, geometry, neighbourhood, presets, searching, storage, witness
from polyvoc.catalogue import Catalogue, ImageRow
from polyvoc.embedding import Embedder
from polyvoc.engine import Engine, Scores
from polyvoc.errors import DamagedError, LockedError, OptionError, VocabularyError
from polyvoc.geometry import Frames
from polyvoc.neighbourhood import Neighbourhood
from polyvoc.presets import Preset
from polyvoc.quantiser import Quantiser
from polyvoc.records import Evidence, Explanation, FeatureOptions, Features, Floats, Hit, SearchOptions
from polyvoc.searching import Asked, Found
from polyvoc.segment import MAX_IMAGES, Segment
from polyvoc.vocabulary import Vocabulary, bits_of
from polyvoc.witness import Embedding

Array = npt.NDArray[Any]
Photograph = str | os.PathLike[str] | bytes | Features  # a path, the bytes of a file, or features made elsewhere
SEGMENTS, VOCABULARIES, NORMS, NEIGHBOURS = "segments", "vocabularies", "norms", "neighbours"
ATTEMPTS = 5  # to open while a writer commits


class Index:
    """A snapshot of one commit: read-only; may be shared by threads, and stays valid while others write.

    Mapped from the disk; a search allocates 4 bytes per image.
    """

    def __init__(self, engine: Engine, home: Home | None = None, line: tuple[float, float] | None = None,
                 evidence: Evidence | None = None) -> None:  # fmt: skip
        """Wrap an engine; use `open` or `from_words`."""
        self.engine = engine
        self._home = home
        self._line = line  # of term 2, if the index was calibrated
        self._evidence = evidence  # for `likelihood`, likewise

    @classmethod
    def open(cls, path: str | os.PathLike[str], embedding: Embedding | None = None) -> Index:
        """Open an index on the disk; to `fuse` with a model that is no file, or that has moved, give it as `embedding`."""
        home = Home(Path(path), embedding)
        for _ in range(ATTEMPTS):
            commit = home.catalogue.fact("commit")
            try:
                return cls(home.read_engine(), home, home.read_line(), home.read_evidence())
            except DamagedError:  # merged away by a writer since the catalogue was read?
                if home.catalogue.fact("commit") == commit:
                    raise
        raise LockedError(f"{path} changes faster than it can be opened; wait until its writer has finished")

    @classmethod
    def from_words(cls, images: Sequence[Array], sizes: Sequence[int], signatures: Sequence[Array] | None = None,
                   segment_images: int = MAX_IMAGES) -> Index:  # fmt: skip
        """Build an index in memory from images of words.

        images: int arrays [n_i, K]; sizes: K vocabulary sizes; signatures: uint64 arrays [n_i, K].
        """
        return cls(Engine.from_words(images, sizes, signatures, segment_images))

    def score_words(self, words: Array, signatures: Array | None = None, options: SearchOptions | None = None,
                    threads: int | None = None) -> Scores:  # fmt: skip
        """Score every image against a query's words [Q, K] (or [Q, K, A]): one score per image, by id."""
        options = options or SearchOptions()
        query = self.engine.query(words, signatures, options)
        scores = self.engine.scores(query, options, threads)
        live = [segment.live_positions() for segment in self.engine.segments]
        ids = [segment.ids[positions] for segment, positions in zip(self.engine.segments, live, strict=True)]
        values = [part[positions] for part, positions in zip(scores, live, strict=True)]
        order = np.argsort(np.concatenate([np.empty(0, np.int64), *ids]), kind="stable")
        return np.concatenate([np.empty(0, np.float32), *values])[order]

    # -- photographs

    def search(self, photograph: Photograph, top: int | None = None, options: SearchOptions | None = None,
               threads: int | None = None) -> list[Hit]:  # fmt: skip
        """Find the photographs that show the same thing, best first."""
        options = self._options(options, top)
        vector = self.embed(photograph) if options.fuse else None
        found = self.features(photograph)
        return self.search_words(*self.quantise(found, options), options, threads, found, vector)

    def search_words(self, words: Array, signatures: Array | None, options: SearchOptions, threads: int | None = None,
                     features: Features | None = None, vector: Floats | None = None) -> list[Hit]:  # fmt: skip
        """Find images by a query's words, best first. Images that were removed since this index was opened are left out.

        To verify hits it takes the features, too: they say where the words lie; to `fuse`, the query's vector.
        """
        frames = None if features is None else frames_of(features)
        hits = []
        for found in searching.search(self.engine, Asked(words, signatures, frames, vector), options, threads):
            image = self.engine.image_at(found.place)
            row = None if self._home is None else self._home.catalogue.image(image)
            if row is not None or self._home is None:
                hits.append(Hit(image, "" if row is None else row.path, found.score, found.inliers, _outline(found, features)))
        return hits

    def explain(self, photograph: Photograph, hit: Hit | int, options: SearchOptions | None = None) -> Explanation:
        """Say why a photograph of the collection answers: matches, the set of each, weights, and their arrangement."""
        options = self._options(options, None)
        query_features = self.features(photograph)
        words, signatures = self.quantise(query_features, options)
        if isinstance(hit, int):
            row = self.home.catalogue.image(hit)
            if row is None:
                raise OptionError(f"image {hit} is not in the index")
            hit = Hit(row.image, row.path, 0.0)
        segment, position = self._find(hit.image)
        asked = Asked(words, signatures, frames_of(query_features))
        return explaining.explain(self.engine, asked, options, (segment, position), hit)

    def features(self, photograph: Photograph) -> Features:
        """Extract features as the photographs of this index were; features made elsewhere are checked."""
        if isinstance(photograph, Features):
            features.check_features(photograph, self.home.dimension)
            return photograph
        source = photograph if isinstance(photograph, bytes) else Path(photograph)
        return features.extract(source, self.home.feature_options)

    def embed(self, photograph: Photograph) -> Floats:
        """Give the unit vector [d] of a photograph by the model of this index; features made elsewhere have none."""
        if isinstance(photograph, Features):
            raise OptionError(witness.NO_PIXELS)
        return self.home.embedder.embed(photograph if isinstance(photograph, bytes) else Path(photograph))

    def quantise(self, photograph: Photograph, options: SearchOptions) -> tuple[Array, Array | None]:
        """Give the words and signatures of a photograph."""
        return self.home.quantiser.quantise(self.features(photograph).descriptors, options.assignments)

    @property
    def default_options(self) -> SearchOptions:
        """Give the options that a search without options uses."""
        return self.preset("default")

    def preset(self, name: Preset) -> SearchOptions:
        """Give the options of a preset ("fast", "default", "best") for this index.

        With the line of term 2 and the table of evidence that `polyvoc calibrate --save` found.
        """
        bits = self.engine.bits if self._home is None or self._evidence is not None else self._home.bits
        options = presets.preset(name, bits)
        return replace(options, line=self._line or options.line, evidence=self._evidence)

    def images(self) -> Iterator[ImageRow]:
        """Give all images of the collection, by id; unlike a search, this shows the catalogue as it is now."""
        return self.home.catalogue.images()

    def __len__(self) -> int:
        """Count the images."""
        return self.engine.statistics.n_images

    @property
    def home(self) -> Home:
        """Give the folder of the index; an index of bare words has none."""
        if self._home is None:
            raise OptionError("this index was made from words: it knows no photographs and no vocabularies")
        return self._home

    def close(self) -> None:
        """Release the catalogue at once; otherwise it is released when nobody uses the index any more."""
        if self._home is not None:
            self._home.close()

    def __enter__(self) -> Self:
        """Use the index in a `with` statement."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()

    def _options(self, options: SearchOptions | None, top: int | None) -> SearchOptions:
        options = options or self.default_options
        return options if top is None else replace(options, top=top)

    def _find(self, image: int) -> tuple[int, int]:
        for number, segment in enumerate(self.engine.segments):
            for position in np.flatnonzero(segment.ids == image):
                if not len(segment.alive) or segment.alive[position]:
                    return number, int(position)
        raise OptionError(f"image {image} is not in the index")


def frames_of(features: Features) -> Frames:
    """Give where features lie, as geometry wants it."""
    return Frames(*(values.astype(np.float64) for values in (features.xy, features.scale, features.angle)))


def _outline(found: Found, features: Features | None) -> tuple[tuple[float, float], ...] | None:
    """Give where the query's frame lies in an image, if that is known."""
    if features is None or found.transform is None:
        return None
    return geometry.outline(features.width, features.height, found.transform)


@dataclass(frozen=True)
class Home:
    """The folder of an index: where its parts lie, and how they are read."""

    path: Path
    embedding: Embedding | None = None  # stands in for the model that the index remembers

    @cached_property
    def catalogue(self) -> Catalogue:
        """Open the catalogue for reading."""
        return Catalogue.open(self.path)

    def close(self) -> None:
        """Release the catalogue, if it was opened."""
        if "catalogue" in vars(self):
            self.catalogue.close()

    def read_engine(self, linked: bool = True) -> Engine:
        """Map the segments of the last commit, and their graph unless it does not matter."""
        with self.catalogue.snapshot():
            sizes = tuple(self.catalogue.fact("sizes"))
            numbers = self.catalogue.segments()
            deleted = {number: self.catalogue.deleted(number) for number in numbers}
            norms, graph = self.catalogue.fact(NORMS), self.read_graph() if linked else None
            current = norms is not None and norms["commit"] == self.catalogue.fact("commit")
        segments = [self.read_segment(number, sizes, deleted[number]) for number in numbers]
        try:
            known = self._read_norms(norms, segments) if current else None
            pairs = None if graph is None else graph.read(self.neighbours_file(graph.commit))
            return Engine(segments, sizes, known, None if pairs is None else Neighbourhood(pairs, segments))
        except (KeyError, IndexError, ValueError):  # counting the words of deleted images
            raise DamagedError(f"{self.path / SEGMENTS}: arrays contradict each other; run 'polyvoc check'") from None

    def read_graph(self) -> neighbourhood.Record | None:
        """Give what is known of the graph of neighbours, if there is one."""
        return neighbourhood.Record.of(self.catalogue.fact(NEIGHBOURS, required=False), self.catalogue.path)

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

    def _read_norms(self, norms: dict[str, Any], segments: list[Segment]) -> list[Scores]:
        counts = [segment.n_images for segment in segments]
        values = storage.map_array(self.norms_file(norms["commit"]), np.float32, (sum(counts),))
        return np.split(values, np.cumsum(counts)[:-1]) if counts else []

    def segment_folder(self, number: int) -> Path:
        """Give the folder of a segment."""
        return self.path / SEGMENTS / f"{number:06d}"

    def norms_file(self, commit: int) -> Path:
        """Give the file with the norms of a commit."""
        return self.path / NORMS / f"{commit:06d}.npy"

    def neighbours_file(self, commit: int) -> Path:
        """Give the file with the pairs of neighbours that a commit made."""
        return self.path / NEIGHBOURS / f"{commit:06d}.npy"

    def vocabulary_folder(self, number: int) -> Path:
        """Give the folder of a vocabulary."""
        return self.path / VOCABULARIES / str(number)

    @cached_property
    def feature_options(self) -> FeatureOptions:
        """Give the options that the photographs were read with."""
        return FeatureOptions(**self.catalogue.fact("features"))

    @cached_property
    def bits(self) -> int:
        """Give the length of the signatures that the vocabularies make, 0 if they make none."""
        return bits_of(self.vocabulary_folder(0))

    @cached_property
    def dimension(self) -> int:
        """Give the length of a descriptor."""
        return int(self.catalogue.fact("dimension"))

    def vocabularies(self) -> list[Vocabulary]:
        """Load the vocabularies, checked against those that the index was made with."""
        loaded = []
        for number, fingerprint in enumerate(self.catalogue.fact("vocabularies")):
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
