"""The public class: open an index, search it, explain a hit, find pairs. Read this file first.

An index is a folder: `catalogue.sqlite` (what it holds; its transaction is the commit), `segments/` (codes and words),
`vocabularies/` (copies of those it was made with), and side files: `links/` and `duplicate_pairs/`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from polyvoc.errors import DamagedError, ImageError, LockedError, OptionError
from polyvoc.index.additions import Additions
from polyvoc.index.catalogue import LINES, ImageRow
from polyvoc.index.folder import ADDITIONS, LINKS, EmbeddingSource, IndexFolder, Layout, SegmentPart
from polyvoc.index.segment import MAX_IMAGES
from polyvoc.options import CODES, Line, PairOptions, Preset, ScoringOptions, SearchOptions, SetKind, options_of, preset
from polyvoc.scoring.codes import code_table_from_dict
from polyvoc.scoring.engine import Engine, LocalShards
from polyvoc.scoring.rules import table_from_dict
from polyvoc.scoring.segments import Candidate, spans_of, vector_at
from polyvoc.search.explain import Explanation, explain
from polyvoc.search.fuse import NO_PIXELS
from polyvoc.search.hits import Hit, Hits, SearchFailure, SearchResult
from polyvoc.search.links import LinkGraph, read_links
from polyvoc.search.pairs import Pairs, StoredQueries, find_pairs
from polyvoc.search.pipeline import search
from polyvoc.search.probability import HitProbability, hit_probability_of
from polyvoc.search.query import (
    Photo,
    PhotoFeatures,
    PhotoReader,
    PlainPhoto,
    Query,
    photo_name,
    plain_id,
    plain_photo,
    query_of_image,
    timed,
)
from polyvoc.search.verify import outlines
from polyvoc.storage.blocks import REPAIR
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import (
    Array,
    CodeTable,
    Features,
    Floats32,
    ImageRef,
    LikelihoodTable,
    Problem,
    Progress,
    Region,
    Source,
    Spans,
)
from polyvoc.vocabulary.codes import Coder

ATTEMPTS = 5  # to open while a writer commits

ReadEngine = Callable[[IndexFolder, Layout], Engine]
Options = TypeVar("Options", bound=ScoringOptions)


def local_engine(folder: IndexFolder, layout: Layout) -> Engine:
    """Map the segments of a commit in this process. Images of damaged ones are missing in every search."""
    lost: dict[str, Spans] = {}

    def record(part: SegmentPart, error: DamagedError) -> None:
        lost[str(error)] = lost_images(folder, layout, part, error)

    return Engine(LocalShards(folder.read_segments(layout, record), layout.kind.sizes, lost), layout.kind.sizes)


def lost_images(folder: IndexFolder, layout: Layout, part: SegmentPart, error: DamagedError) -> Spans:
    """Return the ids of the images of a damaged segment; raise the error if a writer has merged it away meanwhile."""
    if folder.catalogue.setting("commit") != layout.commit:
        raise error
    return spans_of(folder.catalogue.ids_in(part.segment))


class Index:
    """A snapshot of one commit: read-only; may be shared by threads, and stays valid while others write.

    Mapped from the disk; a search allocates a few numbers per image.
    """

    def __init__(self, engine: Engine, folder: IndexFolder | None = None, commit: int = 0,  # noqa: PLR0913, PLR0917
                 lines: Mapping[SetKind, Line] | None = None, likelihood_table: LikelihoodTable | None = None,
                 code_table: CodeTable | None = None, links: LinkGraph | None = None,
                 read_engine: ReadEngine = local_engine) -> None:  # fmt: skip
        """Wrap an engine; use `open` or `from_words`."""
        self.engine = engine
        self.commit = commit  # that this is a snapshot of
        self.links = links
        self._folder = folder
        self._identity = None if folder is None else folder.identity
        # Of term 2 by kind of sets: fitted by `polyvoc calibrate --save`, else the default.
        self.lines: dict[SetKind, Line] = {**dict.fromkeys(LINES, ScoringOptions.line), **(lines or {})}
        self._table, self._code_table = likelihood_table, code_table  # if they were fitted
        self._read_engine = read_engine

    # -- opening and closing

    @classmethod
    def open(cls, path: str | os.PathLike[str], embedding: EmbeddingSource | None = None,
             read_engine: ReadEngine = local_engine, links: bool = True) -> Index:  # fmt: skip
        """Open an index on the disk.

        `embedding`: the model for `fuse`, if it is no file or has moved. `read_engine` opens the segments, in this process or
        on a cluster (`polyvoc.open(path, ray=...)`). `links=False`: without the links, to build them again if they are damaged.
        """
        return cls._read(IndexFolder(Path(path), embedding), read_engine, links)

    def reopened(self) -> Index:
        """Return the index as of its last commit: this object if there is no other commit, and all of it could be opened.

        Loaded vocabularies are shared. If another index was made at its path meanwhile, that one is opened.
        """
        if self.folder.identity != self._identity:
            return self.open(self.folder.path, self.folder.embedding, self._read_engine)
        if self.folder.catalogue.setting("commit") == self.commit and not self.damage:
            return self
        return self._read(self.folder.again(), self._read_engine)

    @classmethod
    def _read(cls, folder: IndexFolder, read_engine: ReadEngine, links: bool = True) -> Index:
        folder.require_plain_files()
        for _ in range(ATTEMPTS):
            layout = folder.read_layout()
            settings, where = layout.settings, str(folder.catalogue.path)
            try:
                lines = {kind: line for kind, name in LINES.items() if (line := settings.get(name)) is not None}
                table, code_table = settings.get("likelihood_table"), settings.get("code_table")
                return cls(
                    read_engine(folder, layout),
                    folder,
                    layout.commit,
                    {kind: _line(line, where) for kind, line in lines.items()},
                    None if table is None else table_from_dict(table, where),
                    None if code_table is None else code_table_from_dict(code_table, where),
                    read_links(folder, settings) if links and LINKS in settings else None,
                    read_engine,
                )
            except DamagedError:  # unless a writer has merged segments since the catalogue was read
                if folder.catalogue.setting("commit") == layout.commit:
                    raise
        raise LockedError(f"{folder.path} changes faster than it can be opened; wait until its writer has finished")

    @classmethod
    def from_words(cls, images: Sequence[Array], sizes: Sequence[int], signatures: Sequence[Array] | None = None,
                   segment_images: int = MAX_IMAGES) -> Index:  # fmt: skip
        """Build an index in memory from images of words.

        images: int arrays [n_i, K]; sizes: K vocabulary sizes; signatures: uint64 arrays [n_i, K], or [n_i, K, 2] of 128 bits.
        """
        return cls(Engine.from_words(images, sizes, signatures, segment_images))

    def load(self) -> None:
        """Load the vocabularies now, rather than with the first search."""
        _ = self.folder.models

    def may_read(self, path: str) -> bool:
        """Return whether the file of one of its photographs may be read here."""
        return self.folder.trust.allows(path)

    def refused(self) -> list[str]:
        """Return one line if some of its photographs may not be read here."""
        line = self.folder.trust.refused()
        return [] if line is None else [line]

    def close(self) -> None:
        """Release the catalogue, and the segments on other machines, at once; else with the last reference to the index."""
        self.engine.shards.close()
        if self._folder is not None:
            self._folder.close()

    def __enter__(self) -> Self:
        """Use the index in a `with` statement."""
        return self

    def __exit__(self, *error: object) -> None:
        """Close it."""
        self.close()

    # -- searching

    def search(self, photo: Photo, options: SearchOptions | None = None, *, preset: Preset | None = None,
               region: Region | None = None, threads: int | None = None, vector: Floats32 | None = None,
               on_first: Callable[[Hits], None] | None = None, **changes: Any) -> Hits:  # fmt: skip
        """Find the images that show the same thing, the most probable first; with a region, what is inside it.

        A photograph is a path, the address of a file in a store, bytes, an open file, an image of Pillow, an array of grey or
        RGB bytes, `Features`, or the id of an image of the index.

        Options are those of the index (`default_options`), of a preset or given; keywords change single ones, such as `top=20`
        or `min_probability=0.9`. An image of the index, given by its id, is found itself as well. `vector` is that of the
        query for `fuse`, where its pixels are elsewhere. `on_first` is called with the hits by words alone, if verification
        follows. Images that were removed since this index was opened are left out.
        """
        return self._search(photo, self.options(options, preset, **changes), region, threads, vector, on_first)

    def candidates(self, photo: Photo, options: SearchOptions, region: Region | None = None,
                   threads: int | None = None) -> Hits:  # fmt: skip
        """Return all candidates of a search as hits: neither `top` nor `min_probability` drops any."""
        return self._search(photo, options, region, threads, every=True)

    def _search(self, photo: Photo, options: SearchOptions, region: Region | None, threads: int | None,
                vector: Floats32 | None = None, on_first: Callable[[Hits], None] | None = None,
                every: bool = False) -> Hits:  # fmt: skip
        seconds = dict[str, float]()
        first_image = self._first_since(options.since)
        query = self._query(plain_photo(photo), options, region, vector, seconds, threads)
        engine, started = self.engine.session(options.require_all), time.perf_counter()

        def as_hits(candidates: list[Candidate]) -> Hits:
            damaged: dict[int, str] = {}
            hits = Hits(self._hits(candidates, engine, query, damaged))
            hits.missing = tuple(sorted((*engine.shards.missing_ids, *spans_of(list(damaged)))))
            hits.damage = (*engine.shards.damage, *damaged.values())
            hits.seconds = {**seconds, "score": time.perf_counter() - started}
            hits.trust = None if self._folder is None else self._folder.trust
            return hits

        first = None if on_first is None else lambda candidates: on_first(as_hits(candidates))
        found = search(engine, query, options, self.probability, self.links, threads, first, self.coder, first_image, every)
        return as_hits(found)

    def _first_since(self, commit: int | None) -> int:
        """Return the first id that was added after a commit; above all ids if nothing was."""
        if commit is None:
            return 0
        recorded = self.folder.catalogue.settings().get(ADDITIONS)
        additions = Additions(self.commit) if recorded is None else Additions.of(recorded)
        first = additions.first_since(commit, self.commit)
        return self.folder.catalogue.next_image() if first is None else first

    def search_many(self, photos: Iterable[Photo], options: SearchOptions | None = None, *, preset: Preset | None = None,
                    threads: int | None = None, progress: Progress | None = None,
                    **changes: Any) -> list[SearchResult | SearchFailure]:  # fmt: skip
        """Search with each of several photographs; return one result each, in their order.

        A photograph that cannot be used becomes a `SearchFailure` with the reason, and does not stop the others; an id that is
        not in the index raises OptionError before the first search. `threads` photographs are searched at a time.
        """
        options = self.options(options, preset, **changes)

        def search_one(photo: Photo) -> Hits:
            return self.search(photo, options, threads=1)

        return search_each(list(photos), search_one, options, self.image, threads, progress)

    def score_words(self, words: Array, signatures: Array | None = None, options: ScoringOptions | None = None, *,
                    threads: int | None = None, **changes: Any) -> Floats32:  # fmt: skip
        """Score every image against a query's words [Q, K] (or [Q, K, A]): one score per image, by id.

        Options are those of a `search` by words, without re-ranking: with signatures `merge="likelihood"` and
        `burstiness="best"`, without them "posterior" and "none"; keywords change single ones. The plain rules of the paper
        have `burstiness="none"`, for instance `score_words(words, merge="bayes", burstiness="none")`.
        """
        plan = self.engine.plan(self._resolved(options, self._word_options, ScoringOptions, changes))
        scores = self.engine.scores(self.engine.query_of(None, words, signatures, plan), plan, threads)
        images = self.engine.images(threads)
        ids = [part.ids[part.live] for part in images]
        values = [values[part.live] for values, part in zip(scores, images, strict=True)]
        order = np.argsort(np.concatenate([np.empty(0, np.int64), *ids]), kind="stable")
        return np.concatenate([np.empty(0, np.float32), *values])[order]

    def explain(self, photo: Photo, hit: Hit | int, options: SearchOptions | None = None, *, preset: Preset | None = None,
                region: Region | None = None, **changes: Any) -> Explanation:  # fmt: skip
        """Explain why an image is a hit: matches, the set of each, weights, and geometry."""
        options = replace(self.options(options, preset, **changes), fuse=False)  # words alone explain
        photo, hit = plain_photo(photo), hit if isinstance(hit, Hit) else plain_id(hit)
        if isinstance(hit, int):
            row = self.image(hit)
            hit = Hit(row.image, row.path, 0.0, width=row.width, height=row.height)
        options = replace(options, verify=max(options.verify, 1))  # geometry explains, too
        query = self._query(photo, options, region, None, {})
        explanation = explain(self.engine, query, options, self.find(hit.image), hit)

        def sources() -> tuple[Source, Source]:
            source = self._source(photo)
            if isinstance(source, Features):
                raise OptionError("draw needs the pixels of the query: explain with a photograph, not its features")
            return source, self.folder.trust.require(hit.path)

        return replace(explanation, region=query.region, sources=sources)

    def pairs(self, options: PairOptions | None = None, *, images: Sequence[int] | None = None,
              progress: Progress | None = None, threads: int | None = None, **changes: Any) -> Pairs:  # fmt: skip
        """Find the pairs of images that are worth matching; with `images`, by their ids, those of each of them with any image.

        Returns an array with the fields of `search.pairs.PAIR`, by the ids of both. Scores are those of the preset "fast".
        """
        wanted = replace(options or PairOptions(), **changes)
        return find_pairs(self.stored_queries, wanted, images, progress, threads, self.probability)

    @property
    def stored_queries(self) -> StoredQueries:
        """Return what makes queries of stored images, by the preset "fast"."""
        return StoredQueries(self.engine.session(require_all=True), self.preset("fast"), self.coder)

    # -- options

    @cached_property
    def default_options(self) -> SearchOptions:
        """Return the options of a search without options."""
        return self.preset("default")

    @property
    def _bits(self) -> int:
        """Return the length of the signatures of words, 0 without."""
        return self.engine.bits if self._folder is None or self._table is not None else self._folder.bits

    @property
    def _word_options(self) -> SearchOptions:
        """Return the options of scoring words without options, also where a search is by codes."""
        default = self.default_options
        return self._fitted(preset("default", self._bits)) if default.merge == CODES else default

    def preset(self, name: Preset) -> SearchOptions:
        """Return the options of a preset ("fast", "default", "best", "paper") for this index.

        With the line of term 2 and the likelihood table that `polyvoc calibrate --save` fitted.
        """
        code_bits = self.engine.code_bits if self._folder is None else self._folder.code_bits
        options = preset(name, self._bits, code_bits)
        if options.merge != CODES and not self.engine.sizes:
            raise OptionError(
                f"preset={name!r} needs words, and this index holds codes only; index again with --vocabularies 2"
            )
        count = None if options.vocabularies is None else min(options.vocabularies, len(self.engine.sizes))
        return self._fitted(replace(options, vocabularies=count))

    def options(self, options: SearchOptions | None = None, preset: Preset | None = None, **changes: Any) -> SearchOptions:
        """Return options: the given ones, else those of a preset or the default, with changes to single fields."""
        if options is not None and preset is not None:
            raise OptionError(f"give options or preset={preset!r}, not both")
        return self._resolved(options, self.default_options if preset is None else self.preset(preset), SearchOptions, changes)

    def _resolved(self, given: Options | None, default: Options, record: type[Any], changes: Mapping[str, Any]) -> Options:
        """Return the given options, or the default with what was fitted to this index, with changes to single fields."""
        changed = _changed(given or default, record, changes)
        return changed if given is not None else replace(self._fitted(changed), **changes)

    def _fitted(self, options: Options) -> Options:
        """Return options with the line of their kind of sets and the likelihood table that were fitted to this index."""
        if options.merge == CODES:
            return replace(options, code_table=self._code_table)
        whole = options.count_vocabularies(len(self.engine.sizes)) == len(self.engine.sizes)  # that the table was fitted to
        table = self._table if whole else None
        return replace(options, line=self.lines[options.set_kind], likelihood_table=table, code_table=self._code_table)

    @cached_property
    def probability(self) -> HitProbability | None:
        """Return the model of hit probabilities; None where none was fitted: for other kinds of features, or bare words."""
        if self._folder is None:
            return None
        return hit_probability_of(self._folder.kind, self._folder.code_bits, self._folder.bits)

    # -- queries

    def features(self, photo: Photo) -> Features:
        """Extract features as those of this index were; features made elsewhere are checked."""
        return self._reader.features(self._source(plain_photo(photo)), {})

    def embed(self, photo: Photo) -> Floats32:
        """Return the unit vector [d] of a photograph by the model of this index; of an image of the index the stored one."""
        photo = plain_photo(photo)
        if isinstance(photo, int):
            (vector,) = self.engine.at(vector_at, [self.find(photo)])
            if vector is None:
                raise OptionError(f"image {photo} has no vector; leave fuse out, or search with its file")
            return np.asarray(vector)
        source = self._source(photo)
        if isinstance(source, Features):
            raise OptionError(NO_PIXELS)
        return self.folder.embedder.embed(source)

    def _query(self, photo: PlainPhoto, options: SearchOptions, region: Region | None, vector: Floats32 | None,
               seconds: dict[str, float], threads: int | None = None) -> Query:  # fmt: skip
        """Make a query of a photograph, or of a region of it.

        For an image of the index this is what is stored of it; its file is read for further assignments of words only.
        """
        if region is not None and options.fuse:
            raise OptionError("fuse compares whole photographs; leave it out, or the region")
        if isinstance(photo, int) and (options.merge == CODES or options.n_assignments == 1):
            row = self.image(photo)
            (stored,) = self.engine.image_features([self.find(photo)])
            query = query_of_image(stored, options, self.coder, (row.width, row.height), region)
        else:
            query = self._reader.query(self._source(photo), options, region, seconds, threads)
        if not options.fuse or vector is not None:
            return replace(query, vector=vector)
        with timed(seconds, "embed"):
            return replace(query, vector=self.embed(photo))

    @cached_property
    def _reader(self) -> PhotoReader:
        return PhotoReader.of(self.folder)

    @property
    def coder(self) -> Coder | None:
        """Return what makes codes; None for an index without them."""
        return None if self._folder is None or not self._folder.code_bits else self._folder.models.coder

    def _source(self, photo: PlainPhoto) -> str | bytes | Features:
        """Return where the file of a photograph is, its bytes, or its features; raise NotAllowedError if it may not be read."""
        if isinstance(photo, PhotoFeatures):
            found = photo.of(self.folder.extraction)
            if isinstance(found, ImageError):
                raise found
            return found
        if isinstance(photo, (bytes, Features)):
            return photo
        return self.folder.trust.require(self.image(photo).path) if isinstance(photo, int) else photo

    def _hits(self, candidates: Sequence[Candidate], engine: Engine, query: Query, damaged: dict[int, str]) -> Iterator[Hit]:
        """Return candidates as hits, without images that were removed since, or whose segment became unavailable.

        out: damaged, the reason for each image whose row is damaged.
        """
        missing, rows = engine.shards.missing, dict[int, ImageRow]()
        if self._folder is not None:
            rows = self._rows([one.image for one in candidates], damaged)
        corners_of = outlines(query.region, [one.transform for one in candidates])
        for one, corners in zip(candidates, corners_of, strict=True):
            row = rows.get(one.image)
            if one.ref[0] in missing or (row is None and self._folder is not None):
                continue
            path, width, height = ("", 0, 0) if row is None else (row.path, row.width, row.height)
            yield Hit(one.image, path, one.score, one.inliers, corners, width, height, one.probability)

    def _rows(self, images: Sequence[int], damaged: dict[int, str]) -> dict[int, ImageRow]:
        """Return the rows of images that this snapshot holds, without those that were removed since.

        out: damaged, the reason for each image whose row is damaged, or cannot be found for damage.
        """
        catalogue = self.folder.catalogue
        rows = catalogue.images_by_id(images, lambda image, error: damaged.update({image: str(error)}))
        absent = [image for image in images if image not in rows and image not in damaged]
        if absent and catalogue.setting("commit") == self.commit:  # read after the rows: nothing was removed before them
            damaged.update({image: f"{catalogue.path}: the row of image {image} is missing; {REPAIR}" for image in absent})
        return rows

    # -- images

    def __len__(self) -> int:
        """Return the number of images."""
        return self.engine.statistics.n_images

    def __iter__(self) -> Iterator[ImageRow]:
        """Return all images, by id; see `images`."""
        return self.images()

    def __repr__(self) -> str:
        """Return what it is an index of."""
        where = "words" if self._folder is None else str(self._folder.path)
        return f"<polyvoc.Index of {where}: {len(self):,} images, commit {self.commit}>"

    def image(self, image: int) -> ImageRow:
        """Return the row of one image by its id; raise OptionError if it is not in the index."""
        self.find(image)
        damaged: dict[int, str] = {}
        row = self._rows([int(image)], damaged).get(int(image))
        if damaged:
            raise DamagedError(damaged[int(image)])
        if row is None:
            raise OptionError(f"image {image} is not in the index")
        return row

    @property
    def damage(self) -> tuple[str, ...]:
        """Return one line for each part of the index that could not be opened, and is missing in every search."""
        return self.engine.shards.damage

    def images(self) -> Iterator[ImageRow]:
        """Return all images, by id; unlike a search, this reads the catalogue as it is now."""
        return self.folder.catalogue.images()

    def problems(self) -> list[Problem]:
        """Return the files that could not be indexed."""
        return [problem for _, problem in self.folder.catalogue.problems().values()]

    def find(self, image: int) -> ImageRef:
        """Return where an image is stored; raise OptionError if it is not in the index."""
        if isinstance(image, bool):  # which Python treats as a number
            raise OptionError(f"{image} is not the id of an image; give a number")
        ref = self.engine.session().find(image)
        if ref is None:
            raise OptionError(f"image {image} is not in the index")
        return ref

    @property
    def folder(self) -> IndexFolder:
        """Return the folder of the index; an index of bare words has none."""
        if self._folder is None:
            raise OptionError("this index was made from words: it has no photographs and no vocabularies")
        return self._folder


def search_each(photos: Sequence[Photo], search_one: Callable[[Photo], Hits], options: SearchOptions,
                find_row: Callable[[int], ImageRow], threads: int | None,
                progress: Progress | None) -> list[SearchResult | SearchFailure]:  # fmt: skip
    """Search with each of several photographs, `threads` at a time; one that cannot be used becomes a SearchFailure."""
    names = [find_row(plain_id(one)).path if isinstance(one, (int, np.integer)) else photo_name(one) for one in photos]

    def attempt(number: int) -> SearchResult | SearchFailure:
        try:
            return SearchResult(names[number], options, search_one(photos[number]))
        except ImageError as error:
            return SearchFailure(names[number], str(error))

    results = []
    with closing(ordered_map(attempt, range(len(photos)), count_threads(threads), "polyvoc-search")) as searches:
        for done, (_, result) in enumerate(searches, start=1):
            results.append(result)
            if progress is not None:
                progress("searching", done, len(photos))
    return results


def _line(values: Any, where: str) -> Line:
    """Read the line of a setting; raise DamagedError, which names the catalogue `where`, if it is something else."""
    try:
        return ScoringOptions(line=(values["a"], values["b"])).line
    except (KeyError, TypeError, OptionError):
        raise DamagedError(
            f"{where}: a line of term 2 is damaged; fit it again: polyvoc calibrate --index INDEX --save"
        ) from None


def _changed(options: Options, record: type[Any], changes: Mapping[str, Any]) -> Options:
    """Return options with changes to single fields; raise OptionError for one that the record does not have."""
    unknown = changes.keys() - {option.name for option in options_of(record)} if changes else ()
    if unknown:
        raise OptionError(f"{min(unknown)}: no such option here; see polyvoc.{record.__name__}")
    return replace(options, **changes)
