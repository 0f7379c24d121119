"""The public face: open, search, explain, pairs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np

from polyvoc.errors import DamagedError, LockedError, OptionError
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import check_features, extract_pixels
from polyvoc.index.catalogue import ImageRow
from polyvoc.index.folder import EmbeddingSource, IndexFolder
from polyvoc.index.segment import MAX_IMAGES, Segment
from polyvoc.options import ClusterOptions, PairOptions, Preset, SearchOptions, preset
from polyvoc.scoring.engine import Engine
from polyvoc.search.explain import Explanation, explain
from polyvoc.search.fuse import NO_PIXELS
from polyvoc.search.hits import Hit, Hits, SearchResult
from polyvoc.search.pairs import Pairs, find_pairs
from polyvoc.search.pipeline import search
from polyvoc.search.probability import MEASURED, HitProbability, shipped_hit_probability
from polyvoc.search.query import Clock, Photo, Query, _whole
from polyvoc.search.verify import Found
from polyvoc.storage.files import map_array
from polyvoc.storage.stores import display_name
from polyvoc.types import Array, FeatureKind, Features, Floats32, ImageRef, LikelihoodTable, Progress, Region, keypoints_of

if TYPE_CHECKING:
    from polyvoc.cluster.shards import ReplicaSet


def _read_norms(path: Path, segments: Sequence[Segment]) -> list[Floats32]:
    counts = [segment.n_images for segment in segments]
    values = map_array(path, np.float32, (sum(counts),))
    return np.split(values, np.cumsum(counts)[:-1]) if counts else []


ATTEMPTS = 5  # to open while a writer commits


class Index:
    """A snapshot of one commit: read-only; may be shared by threads, and stays valid while others write.

    Mapped from the disk; a search allocates 4 bytes per image.
    """

    def __init__(self, engine: Engine, home: IndexFolder | None = None, commit: int = 0, line: tuple[float, float] | None = None,
                 evidence: LikelihoodTable | None = None) -> None:  # fmt: skip
        """Wrap an engine; use `open` or `from_words`."""
        self.engine = engine
        self.commit = commit  # that this is a snapshot of
        self.identity = None if home is None else home.identity
        self._home = home
        self._line = line  # of term 2, if the index was calibrated
        self._evidence = evidence  # for `likelihood`, likewise
        self._fleet: ReplicaSet | None = None  # that holds the segments, if a cluster does

    @classmethod
    def open(cls, path: str | os.PathLike[str], embedding: EmbeddingSource | None = None,
             ray: str | ClusterOptions | None = None) -> Index:  # fmt: skip
        """Open an index on the disk; to `fuse` with a model that is no file, or that has moved, give it as `embedding`.

        With `ray`, the address of a Ray cluster or more about it, the machines of the cluster hold the segments.
        """
        home, fleet = IndexFolder(Path(path), embedding), None
        _ = home.catalogue  # what is no index is refused before a cluster is asked
        if ray is not None:
            from polyvoc.cluster.shards import ReplicaSet

            fleet = ReplicaSet(ray if isinstance(ray, ClusterOptions) else ClusterOptions(ray))
        return cls._read(home, fleet)

    def reopened(self) -> Index:
        """Give the index as of its last commit: this very one if that is its own. What is loaded of vocabularies is kept.

        If another index was made at its path meanwhile, that one is opened.
        """
        if self.home.identity != self.identity:
            return self.open(self.home.path, self.home.embedding, None if self._fleet is None else self._fleet.options)
        return self if self.home.catalogue.fact("commit") == self.commit else self._read(self.home.again(), self._fleet)

    @classmethod
    def _read(cls, home: IndexFolder, fleet: ReplicaSet | None) -> Index:
        for _ in range(ATTEMPTS):
            commit = home.catalogue.fact("commit")
            try:
                index = cls(_read_engine(home, fleet), home, commit, home.read_line(), home.read_evidence())
                index._fleet = fleet
                return index
            except DamagedError:  # merged away by a writer since the catalogue was read?
                if home.catalogue.fact("commit") == commit:
                    raise
        raise LockedError(f"{home.path} changes faster than it can be opened; wait until its writer has finished")

    @classmethod
    def from_words(cls, images: Sequence[Array], sizes: Sequence[int], signatures: Sequence[Array] | None = None,
                   segment_images: int = MAX_IMAGES) -> Index:  # fmt: skip
        """Build an index in memory from images of words.

        images: int arrays [n_i, K]; sizes: K vocabulary sizes; signatures: uint64 arrays [n_i, K].
        """
        return cls(Engine.from_words(images, sizes, signatures, segment_images))

    def score_words(self, words: Array, signatures: Array | None = None, options: SearchOptions | None = None,
                    threads: int | None = None) -> Floats32:  # fmt: skip
        """Score every image against a query's words [Q, K] (or [Q, K, A]): one score per image, by id."""
        options = options or SearchOptions()
        query = self.engine.query(words, signatures, options)
        scores = self.engine.scores(query, options, threads)
        standing = self.engine.standing(threads)
        ids = [part.ids[part.live] for part in standing]
        values = [values[part.live] for values, part in zip(scores, standing, strict=True)]
        order = np.argsort(np.concatenate([np.empty(0, np.int64), *ids]), kind="stable")
        return np.concatenate([np.empty(0, np.float32), *values])[order]

    # -- photographs

    def search(self, photograph: Photo, top: int | None = None, options: SearchOptions | None = None,
               threads: int | None = None, region: Region | None = None) -> Hits:  # fmt: skip
        """Find the photographs that show the same thing, best first; with a region, what is within it.

        An image of the collection, given by its id, is found itself as well.
        """
        options = self._options(options, top)
        return self.find(self.asked(photograph, options, region), options, threads)

    def search_words(self, words: Array, signatures: Array | None, options: SearchOptions, threads: int | None = None,
                     features: Features | None = None, vector: Floats32 | None = None) -> Hits:  # fmt: skip
        """Find images by a query's words, best first.

        To verify hits it takes the features, too: they say where the words lie; to `fuse`, the query's vector.
        """
        if features is None:
            return self.find(Query(words, signatures, vector=vector), options, threads)
        return self.find(Query(words, signatures, keypoints_of(features), vector, _whole(features)), options, threads)

    def find(self, asked: Query, options: SearchOptions, threads: int | None = None,
             early: Callable[[Hits], None] | None = None) -> Hits:  # fmt: skip
        """Find images by a query, best first. Images that were removed since this index was opened are left out.

        `early` is told the hits by words alone, if verification follows: for those who would rather not wait.
        """
        engine = self.engine.attempt(options.whole)

        def hits(found: list[Found]) -> Hits:
            missing = engine.shards.missing  # perhaps since a later stage: what is half asked is left out
            told = (self._hit(one, asked) for one in found if one.place[0] not in missing)
            return Hits((hit for hit in told if hit is not None), engine.shards.missing_ids)

        first = None if early is None else lambda found: early(hits(found))
        return hits(search(engine, asked, options, threads, first, self.confidence))

    def explain(self, photograph: Photo, hit: Hit | int, options: SearchOptions | None = None,
                region: Region | None = None) -> Explanation:  # fmt: skip
        """Say why a photograph of the collection answers: matches, the set of each, weights, and their arrangement."""
        options = replace(self._options(options, None), fuse=False)  # words alone explain
        if not isinstance(hit, Hit):
            row = self.image(hit)
            hit = Hit(row.image, row.path, 0.0)
        place = self._find(hit.image)
        return explain(self.engine, self.asked(photograph, options, region), options, place, hit)

    def pairs(self, options: PairOptions | None = None, images: Sequence[int] | None = None, progress: Progress | None = None,
              threads: int | None = None) -> Pairs:  # fmt: skip
        """Find the pairs of images that are worth matching; with `images`, by their ids, those of each of them with any image.

        An array with the fields of `pairing.PAIR`, by the ids of both. Scores are those of the preset "fast".
        """
        return find_pairs(self.engine.attempt(), options or PairOptions(), self.preset("fast"), images, progress, threads)

    # -- queries

    def asked(self, photograph: Photo, options: SearchOptions, region: Region | None = None,
              clock: Clock = lambda stage: nullcontext(), embed: Callable[[], Floats32] | None = None) -> Query:  # fmt: skip
        """Make a query of a photograph, or of a region of it.

        An image of the collection asks by what is stored of it; its file is read for further assignments only. To `fuse` with
        features, whose pixels somebody else has, `embed` gives the vector.
        """
        if region is not None and options.fuse:
            raise OptionError("fuse hears whole photographs; leave it out where a region asks")
        if isinstance(photograph, int) and options.assignments == 1:
            row = self.image(photograph)
            asked = Query.stored(self.engine, self._find(photograph), (row.width, row.height), region)
            return replace(asked, vector=self.embed(photograph) if options.fuse else None)
        found = self.features(photograph, clock)
        if region is not None:
            found = found.inside(region)
        with clock("quantise"):
            words, signatures = self.home.quantiser.quantise(found.descriptors, options.assignments)
        vector = None
        if options.fuse:
            with clock("embed"):
                vector = self.embed(photograph) if embed is None else embed()
        return Query(words, signatures, keypoints_of(found), vector, region or _whole(found))

    def features(self, photograph: Photo, clock: Clock = lambda stage: nullcontext()) -> Features:
        """Extract features as the photographs of this index were; features made elsewhere are checked."""
        if isinstance(photograph, Features):
            check_features(photograph, self.home.kind, str(self.home.path))
            return photograph
        source, options = self._source(photograph), self.home.extraction
        with clock("decode"):
            grey = read_grey(source, options.long_side)
        with clock("sift"):
            return extract_pixels(grey, options, display_name(source))

    def embed(self, photograph: Photo) -> Floats32:
        """Give the unit vector [d] of a photograph by the model of this index; features made elsewhere have none.

        Of an image of the collection it is the stored one.
        """
        if isinstance(photograph, Features):
            raise OptionError(NO_PIXELS)
        if not isinstance(photograph, int):
            return self.home.embedder.embed(self._source(photograph))
        vector = self.engine.vector_at(self._find(photograph))
        if vector is None:
            raise OptionError(f"image {photograph} has no vector; leave fuse out, or ask with its file")
        return vector

    def quantise(self, photograph: Photo, options: SearchOptions) -> tuple[Array, Array | None]:
        """Give the words and signatures of a photograph."""
        return self.home.quantiser.quantise(self.features(photograph).descriptors, options.assignments)

    def _source(self, photograph: str | os.PathLike[str] | bytes | int) -> str | bytes:
        """Give where the file of a photograph is, or its bytes."""
        if isinstance(photograph, bytes):
            return photograph
        return self.image(photograph).path if isinstance(photograph, int) else os.fspath(photograph)

    def _hit(self, found: Found, asked: Query) -> Hit | None:
        """Give what was found as a hit; None if it was removed since this index was opened."""
        row = None if self._home is None else self._home.catalogue.image(found.image)
        if row is None and self._home is not None:
            return None
        path, width, height = ("", 0, 0) if row is None else (row.path, row.width, row.height)
        outline = found.outline(asked.region)
        return Hit(found.image, path, found.score, found.inliers, outline, width, height, found.probability)

    @property
    def confidence(self) -> HitProbability | None:
        """Give what tells how probable hits are; None where nobody measured it: words of features other than SIFT, or bare."""
        measured = self._home is not None and self._home.kind == FeatureKind() and self._home.bits in MEASURED
        return shipped_hit_probability() if measured else None

    @property
    def default_options(self) -> SearchOptions:
        """Give the options that a search without options uses."""
        return self.preset("default")

    def preset(self, name: Preset) -> SearchOptions:
        """Give the options of a preset ("fast", "default", "best") for this index.

        With the line of term 2 and the table of evidence that `polyvoc calibrate --save` found.
        """
        bits = self.engine.bits if self._home is None or self._evidence is not None else self._home.bits
        options = preset(name, bits)
        return replace(options, line=self._line or options.line, evidence=self._evidence)

    def image(self, image: int) -> ImageRow:
        """Give one image of the collection by its id; refuse one that is not there, or not any more."""
        self._find(image)
        row = self.home.catalogue.image(int(image))
        if row is None:
            raise OptionError(f"image {image} is not in the index")
        return row

    def images(self) -> Iterator[ImageRow]:
        """Give all images of the collection, by id; unlike a search, this shows the catalogue as it is now."""
        return self.home.catalogue.images()

    def __len__(self) -> int:
        """Count the images."""
        return self.engine.statistics.n_images

    @property
    def home(self) -> IndexFolder:
        """Give the folder of the index; an index of bare words has none."""
        if self._home is None:
            raise OptionError("this index was made from words: it knows no photographs and no vocabularies")
        return self._home

    def close(self) -> None:
        """Release the catalogue, and what machines hold, at once; else they are when nobody uses the index any more."""
        self.engine.shards.close()
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

    def _find(self, image: int) -> ImageRef:
        if isinstance(image, bool):  # which Python calls a number
            raise OptionError(f"{image} is not the id of an image; give a number")
        place = self.engine.attempt().find(image)
        if place is None:
            raise OptionError(f"image {image} is not in the index")
        return place


def _read_engine(home: IndexFolder, fleet: ReplicaSet | None) -> Engine:
    return home.read_engine() if fleet is None else fleet.read_engine(home)


def open_index(path: Path, cluster: ClusterOptions | None = None) -> tuple[Index, float]:
    """Open an index, its vocabularies too; gives the seconds which that took."""
    seconds: dict[str, float] = {}
    with clock(seconds, "open"):
        index = Index.open(path, ray=cluster)
        _ = index.home.quantiser
    return index, seconds["open"]


@dataclass(frozen=True, eq=False)
class Question:
    """A photograph to search with, and what is known of it."""

    photograph: Photo
    region: Region | None = None  # if only a part of it asks
    name: str | None = None  # what it is called in the answer; None: after its file
    embed: Callable[[], Floats32] | None = None  # gives the vector of the global embedding, where the index cannot

    def name_in(self, index: Index) -> str:
        """Give what it is called: by its name, by its path, or else by what it is."""
        if self.name is not None:
            return self.name
        if isinstance(self.photograph, int):
            return index.image(self.photograph).path
        if isinstance(self.photograph, Features):
            return f"{len(self.photograph)} features"
        return display_name(self.photograph) if isinstance(self.photograph, bytes) else str(self.photograph)


def ask(index: Index, question: Question, options: SearchOptions, threads: int | None = None,
        early: Callable[[SearchResult], None] | None = None) -> SearchResult:  # fmt: skip
    """Search as `Index.search` does, with a clock on each stage.

    `early` is told the answer by words alone as soon as it is there, if verification follows.
    """
    seconds: dict[str, float] = {}
    name, region = question.name_in(index), question.region
    asked = index.asked(question.photograph, options, region, partial(clock, seconds), question.embed)
    started = time.perf_counter()

    def tell(hits: Hits) -> None:
        assert early is not None
        early(SearchResult(name, options, hits, {**seconds, "score": time.perf_counter() - started}, region))

    with clock(seconds, "score"):
        hits = index.find(asked, options, threads, None if early is None else tell)
    return SearchResult(name, options, hits, seconds, region)


@contextmanager
def clock(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Write down how many seconds a stage takes."""
    started = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - started
