"""The index that is served: opened once, opened anew after each commit, asked and explained. All of this takes a processor."""

from __future__ import annotations

import logging
import mimetypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from polyvoc import answers, collection, features, images, inventory, stores
from polyvoc.answers import Answer, Failure, Question
from polyvoc.catalogue import ImageRow
from polyvoc.errors import ImageError, OptionError, PolyvocError, UnreachableError
from polyvoc.index import Index
from polyvoc.records import Features, Floats, Region, SearchOptions
from polyvoc.web import explanations
from polyvoc.web.decoder import Decoders
from polyvoc.web.errands import ABANDONED, MAX_BYTES, Errands
from polyvoc.web.parameters import LARGEST_ID, Common, ExplainParameters
from polyvoc.web.pool import Pool
from polyvoc.web.settings import MEGA, Settings
from polyvoc.web.thumbnails import Thumbnails
from polyvoc.web.uploads import Upload, Uploads

logger = logging.getLogger("polyvoc.web")
FRESH_SECONDS = 0.5  # between looks for a new commit
PICTURE = 1600  # pixels of the long side of a kept upload
PICTURE_THREADS = 2
PICTURE_QUEUE = 256  # a page of thumbnails asks for many at once
FACT_THREADS = 2


class AbsentError(PolyvocError):
    """What was asked for is not there."""


@dataclass(frozen=True)
class Sent:
    """A photograph that somebody sent: the name of the file, and its bytes."""

    name: str
    content: bytes

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Call it by its name in what is said of it, where decoders know bytes only."""
        try:
            yield
        except ImageError as error:
            line = str(error).removeprefix(f"{images.describe(self.content)}: ")
            raise type(error)(f"{images.describe(self.name)}: {line}") from None


class Service:
    """One index and what is needed to serve it. Its methods may be called by several threads at a time."""

    def __init__(self, settings: Settings) -> None:
        """Open the index and load its vocabularies; start the processes that decode."""
        self.settings = settings
        self._index, _ = answers.open_index(settings.index, settings.cluster)
        self._looked = time.monotonic()
        self._lock = threading.Lock()
        self.stale: str | None = None  # why the last commit could not be opened
        self._statistics: tuple[Any, dict[str, Any]] | None = None  # of a commit
        self.uploads = Uploads()
        self.thumbnails = Thumbnails()
        self.searches = Pool("searches", settings.threads, settings.queue)
        self.pictures = Pool("pictures", PICTURE_THREADS, PICTURE_QUEUE)
        self.facts = Pool("facts", FACT_THREADS, PICTURE_QUEUE)  # what is at hand, whatever pictures wait for
        self.pools = (self.searches, self.pictures, self.facts)
        count = settings.threads + PICTURE_THREADS
        self.errands = Errands(count + ABANDONED, settings.decode_seconds)
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

    def answer(self, asked: str | Sent, parameters: Common, early: Callable[[Answer], None] | None = None) -> Answer:
        """Search with a photograph that was sent, or with one that is known by name."""
        index = self.index
        options = parameters.options(index)
        question, seconds = self._question(index, asked, options, parameters.box)
        spent = {"open": 0.0, **seconds}  # the index is open already: what the command line spends on that is nothing here
        threads = self.searches.share()

        def tell(first: Answer) -> None:
            assert early is not None
            early(replace(first, seconds={**spent, **first.seconds}))

        answer = answers.ask(index, question, options, threads, None if early is None else tell)
        return replace(answer, seconds={**spent, **answer.seconds})

    def answers(self, asked: Iterable[str | Sent], parameters: Common) -> list[Answer | Failure]:
        """Search with several photographs; one that cannot ask does not keep the others from it."""
        told: list[Answer | Failure] = []
        for one in asked:
            try:
                told.append(self.answer(one, parameters))
            except (ImageError, AbsentError, OptionError) as error:
                told.append(Failure(one.name if isinstance(one, Sent) else one, str(error)))
        return told

    def check(self, sent: Sent) -> None:
        """Refuse a photograph that cannot be decoded within the limits."""
        with sent.named_errors():
            self.decoders.grey(sent.content, self.index.home.extraction.long_side)

    def keep(self, sent: Sent) -> dict[str, Any]:
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
        asking = explanations.asking(index, question)
        return {"query": asking, "image": hit, **explanations.as_dict(found, question.region, asking, parameters.limit)}

    def _question(self, index: Index, asked: str | Sent, options: SearchOptions,
                  region: Region | None) -> tuple[Question, dict[str, float]]:  # fmt: skip
        """Give what is asked, and the seconds of each stage that this took."""
        if isinstance(asked, Sent):
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

    def _embed(self, index: Index, sent: Sent) -> Floats:
        with sent.named_errors():
            pixels = self.decoders.rgb(sent.content, index.home.embedder.long_side)
        return index.home.embedder.embed_pixels(pixels, images.describe(sent.name))

    def _features(self, index: Index, sent: Sent) -> tuple[Features, dict[str, float]]:
        with sent.named_errors():
            return self._extracted(index, sent.content)

    def _extracted(self, index: Index, source: str | bytes) -> tuple[Features, dict[str, float]]:
        options = index.home.extraction
        seconds: dict[str, float] = {}
        with answers.clock(seconds, "decode"):
            grey = self.decoders.grey(source, options.long_side)
        with answers.clock(seconds, "sift"):
            return features.extract_pixels(grey, options, images.describe(source)), seconds

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
        return {**inventory.photograph(row), "available": available}

    def listing(self, page: int, size: int, find: str) -> dict[str, Any]:
        """Give a page of the collection."""
        catalogue = self.index.home.catalogue
        rows = catalogue.images_from(page * size, size, find)
        total = catalogue.count_images(find)
        return {"images": list(map(inventory.photograph, rows)), "total": total, "page": page, "pages": -(-total // size)}

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
        name = PurePath(stores.name(row.path))
        kind = mimetypes.guess_type(name)[0] if name.suffix.lower() in images.IMAGE_SUFFIXES else None  # no page, no script
        return row.path, kind or "application/octet-stream"

    def _is_unchanged(self, row: ImageRow) -> bool:
        if stores.is_url(row.path):
            return self.errands.run(row.path, lambda: _is_unchanged(row))
        return _is_unchanged(row)

    def statistics(self) -> dict[str, Any]:
        """Give what there is to know of the index, with how long its lists are and how much they share."""
        index = self.index
        key = index.identity, index.commit
        if self._statistics is None or self._statistics[0] != key:
            self._statistics = key, {**inventory.take(index), **inventory.distributions(index)}
        return self._statistics[1]


def _is_unchanged(row: ImageRow) -> bool:
    """Tell whether a file is still the one that was indexed: as old and as large, or else the same byte for byte."""
    try:
        state = collection.state_of(row.path)  # the size first: what has none, such as a pipe, must not be read
        same = state.size == row.state.size and row.digest is not None
        small = not stores.is_url(row.path) or (state.size or 0) <= MAX_BYTES  # of a store it is read into memory
        return state == row.state or (same and small and collection.digest(row.path, state) == row.digest)
    except UnreachableError:  # nobody knows
        raise
    except (OSError, ValueError, ImageError):
        return False
