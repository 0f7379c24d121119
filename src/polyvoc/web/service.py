"""The served index: search, explain, list, add and remove images."""

from __future__ import annotations

import hashlib
import json
import logging
import mimetypes
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath
from typing import Any, get_args

from polyvoc import __version__
from polyvoc.errors import ImageError, NotAllowedError, OptionError, PolyvocError, UnreachableError
from polyvoc.features.decode import MAX_PIXELS, Decoders
from polyvoc.index.catalogue import Catalogue, ImageFilter, ImageRow
from polyvoc.index.writer import IndexWriter
from polyvoc.options import CODES, PRESETS, Merge, Preset, SearchOptions
from polyvoc.search.hits import Hits, SearchFailure, SearchResult
from polyvoc.search.index import Index
from polyvoc.search.info import image_info, index_distributions, index_info
from polyvoc.search.listing import Listing
from polyvoc.search.query import PhotoFeatures, read_features, timed
from polyvoc.search.several import Indexes, indexes_of, open_together
from polyvoc.storage.files import flush_path, make_folder, remove_partial_files, replace_file, write_errors
from polyvoc.storage.folders import IMAGE_SUFFIXES, is_indexed_file
from polyvoc.storage.stores import base_name, display_name, is_url
from polyvoc.types import Floats32, GreyImage, Problem
from polyvoc.web.caches import BytesCache, StoredUpload, UploadCache
from polyvoc.web.metrics import Metrics
from polyvoc.web.pool import ABANDONED, Pool, StoreRequests
from polyvoc.web.schemas import LARGEST_ID, OPTIONS, CommonParameters, ExplainParameters
from polyvoc.web.settings import MEGA, Settings

logger = logging.getLogger("polyvoc.web")
DAMAGED = "a part of the index is damaged (the log of the server has the reason)"
REFRESH_SECONDS = 0.5  # between checks for a new commit
UPLOAD_SIDE = 1600  # pixels of the long side of the picture of a stored upload
PICTURE_THREADS = 2
LOOKUP_THREADS = 2
LONG_QUEUE = 256  # a page of thumbnails sends many requests at once
EDIT_QUEUE = 16
STATISTICS_BYTES = 4 * MEGA
MAX_FOLDERS = 500  # in the list of folders
MAX_NAME = 45  # characters, of up to four bytes: file names may have 255 bytes


class NotFoundError(PolyvocError):
    """An image or a stored upload that is not there."""


class SeveralError(PolyvocError):
    """A request for one index on a server of several."""


@dataclass(frozen=True)
class Upload:
    """An uploaded photograph: the name of the file and its bytes."""

    name: str
    content: bytes

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Put the file name into errors of decoders, which get the bytes only."""
        try:
            yield
        except ImageError as error:
            message = str(error).removeprefix(f"{display_name(self.content)}: ")
            raise type(error)(f"{display_name(self.name)}: {message}") from None

    @property
    def safe_file_name(self) -> str:
        """Return a harmless file name: the own one with special characters replaced, and a digest of the content.

        So a photograph uploaded twice is one file, and another one of the same name does not replace it.
        """
        own = PurePath(re.split(r"[/\\]", self.name)[-1])
        stem = re.sub(r"[^\w\- ]+", "-", own.stem).strip("- ")[:MAX_NAME] or "photograph"
        suffix = own.suffix.lower() if own.suffix.lower() in IMAGE_SUFFIXES else ".jpg"
        return f"{stem}-{hashlib.blake2b(self.content, digest_size=8).hexdigest()}{suffix}"


@dataclass(frozen=True, eq=False)
class _Query:
    """A photograph to search with: the id of an image, or features."""

    photo: int | PhotoFeatures
    name: str
    embed: Callable[[], Floats32] | None = None  # returns the global embedding of features
    seconds: dict[str, float] = field(default_factory=dict)  # by stage, spent on the features


class Service:
    """An open index, or several as one, and what is needed to serve them. May be called by several threads at a time."""

    def __init__(self, settings: Settings, metrics: Metrics | None = None) -> None:
        """Open the index, load its vocabularies and start the decoder processes; `metrics` are those of the server."""
        self.settings = settings
        self._index = open_together(settings.indexes, self._open_one, self._read_grey)
        _ = self._index.default_options  # raises if the indexes cannot be searched as one
        self._index.load()
        for line in self._index.refused():
            logger.warning("%s", line)
        self._checked = time.monotonic()  # when a new commit was last looked for
        self._lock = threading.Lock()
        self.stale: str | None = None  # why the last commit could not be opened
        self.uploads = UploadCache(settings.query_cache * MEGA)
        self.thumbnails = BytesCache(settings.thumbnail_cache * MEGA)
        self._statistics = BytesCache(STATISTICS_BYTES)
        self.searches = Pool("searches", settings.threads, settings.queue, spare=1)
        self.pictures = Pool("pictures", PICTURE_THREADS, LONG_QUEUE)
        self.lookups = Pool("lookups", LOOKUP_THREADS, LONG_QUEUE)  # catalogue only: never waits for a file or a store
        self.listings = Pool("listings", 1, LONG_QUEUE)  # groups and copies: computed once per commit, which may take long
        self.pools = (self.searches, self.pictures, self.lookups, self.listings)
        count = settings.threads + PICTURE_THREADS
        self.stores = StoreRequests(count + ABANDONED, settings.decode_seconds)
        self.decoders = Decoders(count, settings.decode_seconds, self.stores.read)
        self.decoders.start(count)
        self._max_pixels = settings.max_pixels * MEGA  # of uploads; files of the index have the limit of indexing
        self.metrics = metrics or Metrics()
        for pool in self.pools:
            self.metrics.watch_pool(pool)
        self.metrics.watch("images", "Images in the index.", lambda: len(self._index))
        self.metrics.watch("commit", "Commit of the served index.", lambda: self._index.commit)
        self.metrics.watch_cache("queries", self.uploads)
        self.metrics.watch_cache("thumbnails", self.thumbnails)
        self.metrics.watch_cache("statistics", self._statistics)

    def close(self) -> None:
        """Finish running tasks and release everything."""
        for pool in self.pools:
            pool.close()
        self.decoders.close()
        self._index.close()

    # -- the index

    def _open_one(self, path: str | os.PathLike[str]) -> Index:
        """Open an index, on a cluster if the settings name one."""
        if self.settings.cluster is None:
            return Index.open(path)
        from polyvoc.cluster.shards import open_index

        return open_index(path, None, self.settings.cluster)

    @property
    def index(self) -> Index | Indexes:
        """Return what is searched at its last commit, or at the one before if that cannot be opened."""
        if time.monotonic() - self._checked > REFRESH_SECONDS:
            self.refresh(wait=False)
        return self._index

    @property
    def single(self) -> Index:
        """Return the index; raise SeveralError if there are several."""
        index = self.index
        if isinstance(index, Indexes):
            raise SeveralError("this server searches several indexes as one; for groups and copies, serve one of them")
        return index

    def refresh(self, wait: bool = True) -> None:
        """Open the last commit if it is new; without `wait`, go on with the open one while another thread does."""
        if not self._lock.acquire(wait):
            return
        try:
            opened = self._index.reopened()
            opened.load()  # before a search needs it
            self._index, self.stale = opened, None
        except PolyvocError as error:
            if self.stale != str(error):
                logger.warning("the last commit cannot be opened: %s", error)
            self.stale = str(error)
        finally:
            self._checked = time.monotonic()
            self._lock.release()

    def about(self) -> dict[str, Any]:
        """Return what the page needs to know of the index, the options and the permissions."""
        index, settings = self.index, self.settings
        indexes = indexes_of(index)
        rules = [rule for rule in _possible_rules(indexes[0]) if all(rule in _possible_rules(one) for one in indexes)]
        names = [one.folder.path.absolute().name for one in indexes]
        choices = {name: list(option.choices) for name, option in OPTIONS.items() if option.choices}
        presets = [name for name in get_args(Preset) if PRESETS[name].get("merge", rules[0]) in rules]
        return {
            "version": __version__,
            "index": ", ".join(names),
            "indexes": names,
            "images": len(index),
            "commit": index.commit,
            "vocabularies": min(len(one.engine.sizes) for one in indexes),
            "bits": min(one.engine.bits for one in indexes),
            "probabilities": all(one.probability is not None for one in indexes),
            "smooth": isinstance(index, Index) and index.links is not None,
            "fuse": isinstance(index, Index) and index.folder.has_embeddings,
            "write": settings.write,
            "manage": settings.manages,
            "originals": settings.originals,
            "token": "none" if settings.token is None else "all" if settings.private else "write",
            "presets": {name: index.preset(name).as_dict() for name in presets},
            "choices": {**choices, "merge": rules},
            "image_sets": [merge for merge in get_args(Merge) if SearchOptions(merge=merge).image_sets],  # by sets="auto"
            "texts": {name: option.help for name, option in OPTIONS.items()},
            "limits": {"upload_bytes": settings.max_upload * MEGA, "pixels": settings.max_pixels * MEGA},
        }

    def statistics(self) -> bytes:
        """Return `polyvoc info --distributions --json`; of several indexes a list of it."""
        index = self.index

        def facts() -> dict[str, Any]:
            parts = [{**index_info(one), **index_distributions(one)} for one in indexes_of(index)]
            return {"photographs": len(index), "indexes": parts} if isinstance(index, Indexes) else parts[0]

        return self._statistics.get_or_make(_version(index), lambda: json.dumps(facts(), allow_nan=False).encode())

    # -- searching

    def search(self, photo: str | Upload, parameters: CommonParameters,
               on_first: Callable[[SearchResult], None] | None = None) -> SearchResult:  # fmt: skip
        """Search with an upload, or with an image id or the name of a stored upload."""
        index, region = self.index, parameters.box
        options = parameters.options(index)
        query = self._query(index, photo, options)
        seconds = {"open": 0.0, **query.seconds}  # "open": as on the command line; here the index is open already
        vector = None
        if options.fuse and query.embed is not None:
            with timed(seconds, "embed"):
                vector = query.embed()

        def result(hits: Hits) -> SearchResult:
            hits.seconds = {**seconds, **hits.seconds}
            for line in hits.damage:
                logger.warning("search without a part of the index: %s", line)
            hits.damage = (DAMAGED,) if hits.damage else ()  # clients learn no path of this machine
            return SearchResult(query.name, options, hits, region)

        first = None if on_first is None else lambda hits: on_first(result(hits))
        threads = self.searches.cores_per_task()
        hits = index.search(query.photo, region=region, threads=threads, vector=vector, on_first=first, **parameters.given)
        final = result(hits)
        self.metrics.count_stages(hits.seconds)
        return final

    def search_one(self, photo: str | Upload, parameters: CommonParameters) -> SearchResult | SearchFailure:
        """Search with one of several photographs; if it fails, that is its result."""
        try:
            return self.search(photo, parameters)
        except (ImageError, NotFoundError, OptionError) as error:
            return SearchFailure(photo.name if isinstance(photo, Upload) else photo, str(error))

    def explain(self, parameters: ExplainParameters) -> dict[str, Any]:
        """Return why an image is a hit of a query."""
        index, region = self.index, parameters.box
        options = replace(parameters.options(index), fuse=False)  # an embedding has no matches
        query = self._query(index, parameters.query, options)
        image = self.image_details(parameters.image)
        explanation = index.explain(query.photo, parameters.image, region=region, **parameters.given)
        photo = self.row(query.photo) if isinstance(query.photo, int) else query.photo
        info = {"name": query.name, "width": photo.width, "height": photo.height}
        return {"query": info, "image": image, **explanation.as_dict(region, info, parameters.limit)}

    def _query(self, index: Index | Indexes, photo: str | Upload, options: SearchOptions) -> _Query:
        if isinstance(photo, Upload):
            features, seconds = self._extract(index, photo)
            return _Query(features, photo.name, lambda: self._embed(self.single, photo), seconds)
        if not (photo.isascii() and photo.isdigit()):
            stored = self._stored(photo)
            vector = stored.vector
            return _Query(stored.features, stored.name, None if vector is None else lambda: vector)
        row = self.row(int(photo))
        if options.merge == CODES or options.n_assignments == 1:
            return _Query(row.image, row.path)
        features, seconds = self._extract(index, self.file(row.image)[0])  # more words than stored need the file
        return _Query(features, row.path, lambda: self.single.embed(row.image), seconds)

    # -- uploads

    def store(self, upload: Upload) -> dict[str, Any]:
        """Store the features of an upload for further searches; return its name and size."""
        index = self.index
        features, _ = self._extract(index, upload)
        with upload.named_errors():
            picture = self.decoders.thumbnail(upload.content, UPLOAD_SIDE, self._max_pixels)
        vector = self._embed(index, upload) if isinstance(index, Index) and index.folder.has_embeddings else None
        return self.stored_query(self.uploads.store(StoredUpload(upload.name, features, vector, picture)))

    def stored_query(self, name: str) -> dict[str, Any]:
        """Return the name and size of a stored upload."""
        stored = self._stored(name)
        size = {"width": stored.features.width, "height": stored.features.height, "features": len(stored.features)}
        return {"query": name, "name": stored.name, **size}

    def stored_picture(self, name: str, side: int) -> bytes:
        """Return a thumbnail of a stored upload."""
        picture = self._stored(name).picture
        return self.thumbnails.get_or_make((name, side), lambda: self.decoders.thumbnail(picture, side))

    def _stored(self, name: str) -> StoredUpload:
        stored = self.uploads.get(name)
        if stored is None:
            raise NotFoundError(f"no stored upload {name!r}, or it has expired; upload the photograph again")
        return stored

    def check(self, upload: Upload) -> None:
        """Raise ImageError if an upload cannot be decoded within the limits."""
        with upload.named_errors():
            self._read_grey(upload.content, self.single.folder.extraction.long_side)

    def _extract(self, index: Index | Indexes, photo: str | Upload) -> tuple[PhotoFeatures, dict[str, float]]:
        """Return the features of a file or an upload, and the seconds of each stage."""
        wanted = [one.folder.extraction for one in indexes_of(index)]
        seconds: dict[str, float] = {}
        source, errors = (photo, nullcontext()) if isinstance(photo, str) else (photo.content, photo.named_errors())
        with errors:
            return read_features(source, wanted, seconds, read=self._read_grey), seconds

    def _read_grey(self, source: str | bytes, long_side: int) -> GreyImage:
        """Decode a file, or the bytes of an upload."""
        return self.decoders.grey(source, long_side, self._max_pixels if isinstance(source, bytes) else MAX_PIXELS)

    def _embed(self, index: Index, upload: Upload) -> Floats32:
        embedder = index.folder.embedder
        with upload.named_errors():
            pixels = self.decoders.rgb(upload.content, embedder.long_side, self._max_pixels)
        return embedder.embed_pixels(pixels, display_name(upload.name))

    # -- images of the index

    def row(self, image: int) -> ImageRow:
        """Return the catalogue row of an image; raise NotFoundError if there is none."""
        row = _catalogue(self.index).image(image) if image <= LARGEST_ID else None
        if row is None:
            raise NotFoundError(f"image {image} is not in the index")
        return row

    def added_images(self, paths: Iterable[Path]) -> list[dict[str, Any]]:
        """Return the images with these paths; files without an image are left out."""
        catalogue = self.single.folder.catalogue
        return [image_info(row) for path in paths if (row := catalogue.image_at(str(path))) is not None]

    def list_images(self, page: int, size: int, chosen: ImageFilter) -> dict[str, Any]:
        """Return one page of the images, those of a filter."""
        catalogue = _catalogue(self.index)
        images = list(map(image_info, catalogue.images_from(page * size, size, chosen)))
        total = catalogue.count_images(chosen)
        return {"images": images, "total": total, "page": page, "pages": -(-total // size)}

    def list_folders(self) -> bytes:
        """Return the folders of the photographs with their numbers of images, as JSON."""
        index = self.index
        return self._statistics.get_or_make(
            ("folders", _version(index)), lambda: json.dumps(count_folders(_catalogue(index).paths())).encode()
        )

    def image_details(self, image: int) -> dict[str, Any]:
        """Return the catalogue's data of an image, and whether its file can be shown."""
        row, available = self.row(image), False
        with suppress(UnreachableError, NotAllowedError):
            available = self._is_unchanged(row)
        return {**image_info(row), "available": available}

    def thumbnail(self, image: int, side: int) -> bytes:
        """Return a thumbnail of an image, without metadata."""
        self.row(image)  # a removed image is not shown, even if its thumbnail is cached
        key = _identity(self._index), image, side
        return self.thumbnails.get_or_make(key, lambda: self.decoders.thumbnail(self.file(image)[0], side))

    def file(self, image: int) -> tuple[str, str]:
        """Return the path of an image's file and its media type; raise NotFoundError if it is not the indexed file."""
        row = self.row(image)
        if not self._is_unchanged(row):
            raise NotFoundError(f"the file of image {image} is gone or has changed; run 'polyvoc index' on its folder")
        name = PurePath(base_name(row.path))
        media_type = mimetypes.guess_type(name)[0] if name.suffix.lower() in IMAGE_SUFFIXES else None  # no page, no script
        return row.path, media_type or "application/octet-stream"

    def _is_unchanged(self, row: ImageRow) -> bool:
        if not self._index.may_read(row.path):
            raise NotAllowedError(f"image {row.image} lies where this server may not read; its log names the next step")
        if is_url(row.path):
            most = self.stores.max_bytes  # files of stores are read into memory
            return self.stores.run(row.path, lambda: is_indexed_file(row.path, row.state, row.digest, most))
        return is_indexed_file(row.path, row.state, row.digest)


def count_folders(paths: Iterable[str]) -> dict[str, Any]:
    """Return the folders that hold photographs, and those around them, with the number of photographs below each."""
    own = Counter(path.rpartition("/")[0] for path in paths if "/" in path)
    below: Counter[str] = Counter()
    local = [folder for folder in own if folder.startswith("/")]
    top = len(os.path.commonpath(local)) if local else 0
    for folder, images in own.items():
        part = folder
        while part and (part == folder or (folder.startswith("/") and len(part) >= top)):
            below[part] += images
            part = part.rpartition("/")[0]
    largest = sorted(below, key=lambda folder: (-below[folder], folder))[:MAX_FOLDERS]
    return {"folders": [{"path": path, "images": below[path]} for path in sorted(largest)], "total": len(below)}


def _catalogue(index: Index | Indexes) -> Catalogue | Listing:
    """Return the list of the photographs, as it is now."""
    return index.listing if isinstance(index, Indexes) else index.folder.catalogue


def _identity(index: Index | Indexes) -> Hashable:
    """Return what distinguishes what is searched from other indexes at the same paths."""
    return tuple(one.folder.identity for one in indexes_of(index))


def _version(index: Index | Indexes) -> Hashable:
    """Return what distinguishes this snapshot from others."""
    return _identity(index), index.commit


def _possible_rules(index: Index) -> list[Merge]:
    """Return the rules that an index has the codes, words or signatures for."""
    has = {CODES: index.folder.code_bits > 0, "likelihood": index.folder.bits > 0}
    return [merge for merge in get_args(Merge) if has.get(merge, len(index.engine.sizes) > 0)]


class IndexEdits:
    """Adding and removing images of the served index."""

    def __init__(self, service: Service) -> None:
        """Prepare to write to the index of a service."""
        self._service = service
        self._folder = service.settings.photo_folder
        remove_partial_files(self._folder)
        self.pool = Pool("edits", 1, EDIT_QUEUE)
        service.metrics.watch_pool(self.pool)

    def add(self, uploads: Iterable[Upload]) -> dict[str, Any]:
        """Save uploads as files and index them; files that cannot be used are deleted again.

        Raise UnreachableError if one cannot be decoded now, by no fault of its own: then none is added.
        """
        problems: list[Problem] = []
        paths: list[Path] = []
        with ExitStack() as rollback:  # deletes the written files if the body fails
            for upload in uploads:
                try:
                    self._service.check(upload)
                except UnreachableError:
                    raise
                except ImageError as error:
                    problems.append(Problem(upload.name, str(error)))
                else:
                    paths.append(self._save(upload, rollback))
            if paths:
                problems += self._index(paths)
            rollback.pop_all()
        self._service.refresh()
        return {"added": self._service.added_images(dict.fromkeys(paths)), "problems": list(map(vars, problems))}

    def remove(self, image: int) -> dict[str, Any]:
        """Remove an image from the index; its file stays."""
        with self.open_writer() as writer:
            row = writer.catalogue.image(image)  # read under the lock: its path may have another image by now
            if row is None:
                raise NotFoundError(f"image {image} is not in the index")
            writer.remove([row.path])
        self._service.refresh()
        return {"removed": image}

    def open_writer(self) -> IndexWriter:
        """Return a writer with the vocabularies of the served index: loading them takes much time and memory."""
        writer = IndexWriter.open(self._service.settings.index, create=False)
        self._service.refresh()  # another index may have been made at its path
        if self._service.stale is None:
            writer.folder.loaded.models = self._service.single.folder.models
        return writer

    def _save(self, upload: Upload, rollback: ExitStack) -> Path:
        """Write an upload to its file, unless it exists."""
        with write_errors(self._folder):
            make_folder(self._folder)
        path = self._folder / upload.safe_file_name
        if path.exists():
            with write_errors(path):
                flush_path(self._folder)  # it may be of a killed server
        else:
            with replace_file(path) as partial:
                partial.write_bytes(upload.content)
            rollback.callback(path.unlink, missing_ok=True)
        return path

    def _index(self, paths: Sequence[Path]) -> list[Problem]:
        """Index files; delete those that cannot be used, also from the problems in the catalogue."""
        decoders = self._service.decoders
        with self.open_writer() as writer:
            problems = writer.update(paths, keep_missing=True, decoders=decoders, follow=False).problems
            if {problem.path for problem in problems} - writer.catalogue.problems().keys():  # not their own fault: once more
                problems = writer.update(paths, keep_missing=True, decoders=decoders, follow=False).problems
            with writer.catalogue.transaction():
                writer.catalogue.drop_problems([problem.path for problem in problems])
        for problem in problems:
            Path(problem.path).unlink(missing_ok=True)
        return [Problem(PurePath(problem.path).name, problem.reason) for problem in problems]
