"""The served index: search, explain, list, add, remove."""

from __future__ import annotations

import hashlib
import logging
import mimetypes
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any, Literal, get_args, get_origin

import polyvoc
from polyvoc.errors import ImageError, OptionError, PolyvocError, UnreachableError
from polyvoc.features.extract import extract_pixels
from polyvoc.index.catalogue import ImageRow
from polyvoc.index.folder import IndexFolder
from polyvoc.index.writer import IndexWriter
from polyvoc.options import SEARCH_TEXTS, Preset, SearchOptions, options_as_dict
from polyvoc.search.explain import explanation_as_dict
from polyvoc.search.hits import SearchFailure, SearchResult
from polyvoc.search.index import Index, Question, ask, clock, open_index
from polyvoc.search.info import image_info, index_distributions, index_info
from polyvoc.storage.files import flush_path, write_errors
from polyvoc.storage.folders import IMAGE_SUFFIXES, file_digest, file_state
from polyvoc.storage.stores import base_name, display_name, is_url
from polyvoc.types import Features, Floats32, Problem, Region
from polyvoc.web.caches import ThumbnailCache, Upload, UploadCache
from polyvoc.web.decoder import Decoders
from polyvoc.web.pool import ABANDONED, MAX_BYTES, Pool, StoreRequests
from polyvoc.web.schemas import LARGEST_ID, OPTIONS, Common, ExplainParameters
from polyvoc.web.settings import MEGA, Settings


def query_info(index: Index, question: Question) -> dict[str, Any]:
    """Give the facts of the photograph that asks."""
    name = question.name_in(index)
    if isinstance(question.photograph, Features):
        return {"name": name, "width": question.photograph.width, "height": question.photograph.height}
    assert isinstance(question.photograph, int)
    row = index.image(question.photograph)
    return {"name": name, "width": row.width, "height": row.height}


logger = logging.getLogger("polyvoc.web")
FRESH_SECONDS = 0.5  # between looks for a new commit
PICTURE = 1600  # pixels of the long side of a kept upload
PICTURE_THREADS = 2
PICTURE_QUEUE = 256  # a page of thumbnails asks for many at once
FACT_THREADS = 2


class AbsentError(PolyvocError):
    """What was asked for is not there."""


@dataclass(frozen=True)
class SentPhoto:
    """A photograph that somebody sent: the name of the file, and its bytes."""

    name: str
    content: bytes

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Call it by its name in what is said of it, where decoders know bytes only."""
        try:
            yield
        except ImageError as error:
            line = str(error).removeprefix(f"{display_name(self.content)}: ")
            raise type(error)(f"{display_name(self.name)}: {line}") from None


class Service:
    """One index and what is needed to serve it. Its methods may be called by several threads at a time."""

    def __init__(self, settings: Settings) -> None:
        """Open the index and load its vocabularies; start the processes that decode."""
        self.settings = settings
        self._index, _ = open_index(settings.index, settings.cluster)
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        self.stale: str | None = None  # why the last commit could not be opened
        self._statistics: tuple[Any, dict[str, Any]] | None = None  # of a commit
        self.uploads = UploadCache()
        self.thumbnails = ThumbnailCache()
        self.searches = Pool("searches", settings.threads, settings.queue)
        self.pictures = Pool("pictures", PICTURE_THREADS, PICTURE_QUEUE)
        self.facts = Pool("facts", FACT_THREADS, PICTURE_QUEUE)  # what is at hand, whatever pictures wait for
        self.pools = (self.searches, self.pictures, self.facts)
        count = settings.threads + PICTURE_THREADS
        self.errands = StoreRequests(count + ABANDONED, settings.decode_seconds)
        self.decoders = Decoders(count, settings.decode_seconds, settings.max_pixels * MEGA, self.errands)

    def close(self) -> None:
        """Finish what runs; release everything."""
        for pool in self.pools:
            pool.close()
        self.decoders.close()
        self._index.close()

    # -- the index

    @property
    def index(self) -> Index:
        """Give the index as of its last commit, or the one before if that cannot be opened."""
        if time.monotonic() - self._looked > FRESH_SECONDS and self._lock.acquire(blocking=False):
            try:  # others go on with what they have
                self._refresh()
            finally:
                self._lock.release()
        return self._index

    @property
    def current(self) -> Index:
        """Give the index that is open, without a look for a new commit."""
        return self._index

    def refresh(self) -> None:
        """Open the index anew if it has a new commit."""
        with self._lock:
            self._refresh()

    def _refresh(self) -> None:
        try:
            self._index, self.stale = self._index.reopened(), None
        except PolyvocError as error:
            if self.stale != str(error):
                logger.warning("the last commit cannot be opened: %s", error)
            self.stale = str(error)
        finally:
            self._looked = time.monotonic()

    # -- asking

    def answer(
        self, asked: str | SentPhoto, parameters: Common, early: Callable[[SearchResult], None] | None = None
    ) -> SearchResult:
        """Search with a photograph that was sent, or with one that is known by name."""
        index = self.index
        options = parameters.options(index)
        question, seconds = self._question(index, asked, options, parameters.box)
        spent = {"open": 0.0, **seconds}  # the index is open already: what the command line spends on that is nothing here
        threads = self.searches.share()

        def tell(first: SearchResult) -> None:
            assert early is not None
            early(replace(first, seconds={**spent, **first.seconds}))

        answer = ask(index, question, options, threads, None if early is None else tell)
        return replace(answer, seconds={**spent, **answer.seconds})

    def answers(self, asked: Iterable[str | SentPhoto], parameters: Common) -> list[SearchResult | SearchFailure]:
        """Search with several photographs; one that cannot ask does not keep the others from it."""
        told: list[SearchResult | SearchFailure] = []
        for one in asked:
            try:
                told.append(self.answer(one, parameters))
            except (ImageError, AbsentError, OptionError) as error:
                told.append(SearchFailure(one.name if isinstance(one, SentPhoto) else one, str(error)))
        return told

    def check(self, sent: SentPhoto) -> None:
        """Refuse a photograph that cannot be decoded within the limits."""
        with sent.named_errors():
            self.decoders.grey(sent.content, self.index.home.extraction.long_side)

    def keep(self, sent: SentPhoto) -> dict[str, Any]:
        """Keep a photograph that was sent, so that it can be asked again; gives the name to ask by, and its facts."""
        index = self.index
        found, _ = self._features(index, sent)
        picture = self.decoders.thumbnail(sent.content, PICTURE)
        vector = self._embed(index, sent) if index.home.embeds else None
        return self.kept(self.uploads.keep(Upload(sent.name, found, vector, picture)))

    def kept(self, name: str) -> dict[str, Any]:
        """Give the facts of a kept photograph."""
        upload = self.upload(name)
        found = upload.features
        return {"query": name, "name": upload.name, "width": found.width, "height": found.height, "features": len(found)}

    def upload(self, name: str) -> Upload:
        """Give a kept photograph."""
        upload = self.uploads.get(name)
        if upload is None:
            raise AbsentError(f"no photograph is kept as {name!r}, or not any more; send it again")
        return upload

    def explain(self, parameters: ExplainParameters) -> dict[str, Any]:
        """Say why an image answers a question."""
        index = self.index
        options = replace(parameters.options(index), fuse=False)  # an embedding has no matches
        question, _ = self._question(index, parameters.query, options, parameters.box)
        hit = self.shown(parameters.image)
        found = index.explain(question.photograph, parameters.image, options, question.region)
        asking = query_info(index, question)
        return {"query": asking, "image": hit, **explanation_as_dict(found, question.region, asking, parameters.limit)}

    def _question(self, index: Index, asked: str | SentPhoto, options: SearchOptions,
                  region: Region | None) -> tuple[Question, dict[str, float]]:  # fmt: skip
        """Give what is asked, and the seconds of each stage that this took."""
        if isinstance(asked, SentPhoto):
            found, seconds = self._features(index, asked)
            return Question(found, region, asked.name, lambda: self._embed(index, asked)), seconds
        if asked.isascii() and asked.isdigit():
            image = self.row(int(asked)).image
            if options.assignments == 1:
                return Question(image, region), {}
            path, _ = self.file(image)  # which is read again: only if it still is what was indexed
            found, seconds = self._extracted(index, path)
            return Question(found, region, path, lambda: index.embed(image)), seconds
        upload = self.upload(asked)
        return Question(upload.features, region, upload.name, upload.embed), {}

    def _embed(self, index: Index, sent: SentPhoto) -> Floats32:
        with sent.named_errors():
            pixels = self.decoders.rgb(sent.content, index.home.embedder.long_side)
        return index.home.embedder.embed_pixels(pixels, display_name(sent.name))

    def _features(self, index: Index, sent: SentPhoto) -> tuple[Features, dict[str, float]]:
        with sent.named_errors():
            return self._extracted(index, sent.content)

    def _extracted(self, index: Index, source: str | bytes) -> tuple[Features, dict[str, float]]:
        options = index.home.extraction
        seconds: dict[str, float] = {}
        with clock(seconds, "decode"):
            grey = self.decoders.grey(source, options.long_side)
        with clock(seconds, "sift"):
            return extract_pixels(grey, options, display_name(source)), seconds

    # -- the collection

    def row(self, image: int) -> ImageRow:
        """Give an image of the collection."""
        row = self.index.home.catalogue.image(image) if image <= LARGEST_ID else None
        if row is None:
            raise AbsentError(f"image {image} is not in the index")
        return row

    def shown(self, image: int) -> dict[str, Any]:
        """Give the facts of an image, and whether it can be looked at."""
        row, available = self.row(image), False
        with suppress(UnreachableError):
            available = self._is_unchanged(row)
        return {**image_info(row), "available": available}

    def listing(self, page: int, size: int, find: str) -> dict[str, Any]:
        """Give a page of the collection."""
        catalogue = self.index.home.catalogue
        rows = catalogue.images_from(page * size, size, find)
        total = catalogue.count_images(find)
        return {"images": list(map(image_info, rows)), "total": total, "page": page, "pages": -(-total // size)}

    def thumbnail(self, image: int, side: int) -> bytes:
        """Give a small picture of an image, without metadata."""
        self.row(image)  # one that was removed is not shown, whatever is kept of it
        key = self.current.identity, image, side
        return self.thumbnails.get_or_make(key, lambda: self.decoders.thumbnail(self.file(image)[0], side))

    def picture(self, name: str, side: int) -> bytes:
        """Give a small picture of a kept photograph."""
        picture = self.upload(name).picture
        return self.thumbnails.get_or_make((name, side), lambda: self.decoders.thumbnail(picture, side))

    def file(self, image: int) -> tuple[str, str]:
        """Give where the file of an image lies, and what it is; only if it still is what was indexed."""
        row = self.row(image)
        if not self._is_unchanged(row):
            raise AbsentError(f"the file of image {image} is gone or has changed; run 'polyvoc index' on its folder")
        name = PurePath(base_name(row.path))
        kind = mimetypes.guess_type(name)[0] if name.suffix.lower() in IMAGE_SUFFIXES else None  # no page, no script
        return row.path, kind or "application/octet-stream"

    def _is_unchanged(self, row: ImageRow) -> bool:
        if is_url(row.path):
            return self.errands.run(row.path, lambda: _is_unchanged(row))
        return _is_unchanged(row)

    def statistics(self) -> dict[str, Any]:
        """Give what there is to know of the index, with how long its lists are and how much they share."""
        index = self.index
        key = index.identity, index.commit
        if self._statistics is None or self._statistics[0] != key:
            self._statistics = key, {**index_info(index), **index_distributions(index)}
        return self._statistics[1]


def _is_unchanged(row: ImageRow) -> bool:
    """Tell whether a file is still the one that was indexed: as old and as large, or else the same byte for byte."""
    try:
        state = file_state(row.path)  # the size first: what has none, such as a pipe, must not be read
        same = state.size == row.state.size and row.digest is not None
        small = not is_url(row.path) or (state.size or 0) <= MAX_BYTES  # of a store it is read into memory
        return state == row.state or (same and small and file_digest(row.path, state) == row.digest)
    except UnreachableError:  # nobody knows
        raise
    except (OSError, ValueError, ImageError):
        return False


def about(service: Service) -> dict[str, Any]:
    """Give it, as plain values for JSON."""
    index, settings = service.index, service.settings
    return {
        "version": polyvoc.__version__,
        "index": settings.index.absolute().name,
        "images": len(index),
        "commit": index.commit,
        "vocabularies": len(index.engine.sizes),
        "bits": index.engine.bits,
        "probabilities": index.confidence is not None,
        "smooth": index.engine.neighbours is not None,
        "fuse": index.home.embeds,
        "write": settings.write,
        "originals": settings.originals,
        "token": "none" if settings.token is None else "all" if settings.private else "write",
        "presets": {name: options_as_dict(index.preset(name)) for name in get_args(Preset)},
        "choices": {name: list(get_args(kind)) for name, kind in OPTIONS.items() if get_origin(kind) is Literal},
        "texts": {name: SEARCH_TEXTS[name] for name in OPTIONS},
        "limits": {"upload_bytes": settings.max_upload * MEGA, "pixels": settings.max_pixels * MEGA},
    }


QUEUE = 16  # changes that may wait
LONGEST_NAME = 45  # characters, of up to four bytes: a file's name may have 255


class IndexEdits:
    """What may be changed of the index that a service serves."""

    def __init__(self, service: Service) -> None:
        """Write to the index that is served, and keep new photographs in its folder for them."""
        self._service = service
        self._folder = service.settings.kept_photographs
        self.pool = Pool("changes", 1, QUEUE)

    def add(self, sent: Iterable[SentPhoto]) -> dict[str, Any]:
        """Keep photographs as files and index them; files that cannot be used are not kept."""
        problems: list[Problem] = []
        kept: list[Path] = []
        with self._taken_back() as written:
            for one in sent:
                kept += self._keep(one, written, problems)
            if kept:
                problems += self._index(kept)
        self._service.refresh()
        catalogue = self._service.index.home.catalogue
        rows = [row for path in dict.fromkeys(kept) if (row := catalogue.image_at(str(path))) is not None]
        return {"added": list(map(image_info, rows)), "problems": [vars(problem) for problem in problems]}

    def remove(self, image: int) -> dict[str, Any]:
        """Take an image out of the index; its file stays."""
        with self._writer() as writer:
            row = writer.catalogue.image(image)  # asked under the lock: another may have come to its path meanwhile
            if row is None:
                raise AbsentError(f"image {image} is not in the index")
            writer.remove([row.path])
        self._service.refresh()
        return {"removed": image}

    def close(self) -> None:
        """Finish what runs."""
        self.pool.close()

    def _writer(self) -> IndexWriter:
        path = self._service.settings.index
        IndexFolder(path).catalogue.close()  # an index that is not there any more should not be made anew
        return IndexWriter.open(path)

    def _index(self, kept: Sequence[Path]) -> list[Problem]:
        """Index files; those that cannot be used go again, and nothing remembers them."""
        with self._writer() as writer:
            problems = writer.update(kept, keep_missing=True).problems
            with writer.catalogue.transaction():
                writer.catalogue.drop_problems([problem.path for problem in problems])
        for problem in problems:
            Path(problem.path).unlink(missing_ok=True)
        return [Problem(PurePath(problem.path).name, problem.reason) for problem in problems]

    @contextmanager
    def _taken_back(self) -> Iterator[list[Path]]:
        """Give a list for files that are written; they go again if what follows fails."""
        written: list[Path] = []
        try:
            yield written
        except BaseException:
            for path in written:
                path.unlink(missing_ok=True)
            raise

    def _keep(self, sent: SentPhoto, written: list[Path], problems: list[Problem]) -> list[Path]:
        """Write a photograph to its file, unless it is there; none if it cannot be decoded."""
        try:
            self._service.check(sent)
        except ImageError as error:
            problems.append(Problem(sent.name, str(error)))
            return []
        with write_errors(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
            path = self._folder / file_name(sent)
            if not path.exists():
                partial = path.with_name(f".{path.name}.partial")
                try:
                    partial.write_bytes(sent.content)
                    flush_path(partial)
                    partial.rename(path)
                finally:
                    partial.unlink(missing_ok=True)
                written.append(path)
        return [path]


def file_name(sent: SentPhoto) -> str:
    """Give the name of the file for a photograph: its own, made harmless, and the beginning of its digest.

    So the same photograph sent twice is one file, and another one of the same name does not replace it.
    """
    own = PurePath(re.split(r"[/\\]", sent.name)[-1])
    stem = re.sub(r"[^\w\- ]+", "-", own.stem).strip("- ")[:LONGEST_NAME] or "photograph"
    suffix = own.suffix.lower() if own.suffix.lower() in IMAGE_SUFFIXES else ".jpg"
    return f"{stem}-{hashlib.blake2b(sent.content, digest_size=8).hexdigest()}{suffix}"
