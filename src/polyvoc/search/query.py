"""Queries: made of a photograph, of a stored image, and expanded by verified hits.

Query expansion: Chum, Philbin, Sivic, Isard, Zisserman, ICCV 2007 (average query expansion), from words and signatures alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, BinaryIO, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from polyvoc.errors import ImageError, OptionError, UnreachableError
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import check_features, extract_pixels
from polyvoc.features.pictures import encode_array, encode_image, is_pillow_image, read_open_file
from polyvoc.index.folder import IndexFolder
from polyvoc.options import CODE_ASSIGNMENTS, CODE_CUT, CODES, FeatureOptions, SearchOptions
from polyvoc.threads import count_threads
from polyvoc.types import (
    Array,
    Descriptors,
    Features,
    Floats32,
    GreyImage,
    ImageFeatures,
    Keypoints,
    Region,
    inside_region,
    with_planes,
)
from polyvoc.vocabulary.codes import CodedQuery, Coder

if TYPE_CHECKING:
    from PIL.Image import Image

ReadGrey = Callable[[str | bytes, int], GreyImage]  # decodes a photograph, reduced to some pixels on its long side
MARGIN = 0.25  # of the query's extent, by which features of a hit may lie outside of it


@dataclass(frozen=True, eq=False)
class PhotoFeatures:
    """The features of one photograph by the options that they were extracted with, for indexes of several kinds."""

    found: Mapping[FeatureOptions, Features | ImageError]  # an error where it has none; features for at least one

    @property
    def kinds(self) -> list[Features]:
        """Return the features of every kind that it has."""
        return [one for one in self.found.values() if isinstance(one, Features)]

    @property
    def width(self) -> int:
        """Return the width of the photograph."""
        return self.kinds[0].width

    @property
    def height(self) -> int:
        """Return the height of the photograph."""
        return self.kinds[0].height

    def __len__(self) -> int:
        """Return the number of features of all kinds."""
        return sum(map(len, self.kinds))

    def of(self, options: FeatureOptions) -> Features | ImageError:
        """Return the features for some options, or why there are none."""
        return self.found.get(options, ImageError("features as another index has them; upload the photograph again"))


# A path, the address of a file in a store, the bytes of a file, an open file, an image of Pillow, an array of grey or RGB
# bytes, features made elsewhere, or the id of an image of the index.
Photo: TypeAlias = "str | os.PathLike[str] | bytes | BinaryIO | Image | npt.NDArray[np.uint8] | Features | PhotoFeatures | int"
PlainPhoto = str | bytes | Features | PhotoFeatures | int  # what the others become


def plain_photo(photo: Photo) -> PlainPhoto:
    """Return a photograph as a path, the bytes of a file, features or an id; raise ImageError for what is none."""
    if isinstance(photo, (str, bytes, Features, PhotoFeatures)):
        return photo
    if isinstance(photo, (int, np.integer)):
        return plain_id(photo)
    if isinstance(photo, os.PathLike):
        return os.fspath(photo)
    return _file_bytes(photo)


def plain_id(image: int | np.integer[Any]) -> int:
    """Return the id of an image as a number of Python; a bool stays one, which is no id."""
    return image if isinstance(image, bool) else int(image)


def _file_bytes(photo: object) -> bytes:
    """Return a picture in memory as the bytes of a file."""
    if isinstance(photo, np.ndarray):
        return encode_array(photo)
    if is_pillow_image(photo):
        return encode_image(cast("Image", photo))
    if hasattr(photo, "read"):
        return read_open_file(cast(BinaryIO, photo))
    if isinstance(photo, (bytearray, memoryview)):
        return bytes(photo)
    kind = type(photo).__name__
    raise ImageError(f"{kind}: not a photograph; give a path, bytes, an open file, a picture, an array or an id")


def photo_name(photo: Photo) -> str:
    """Return the name of a photograph for results: its path, or what it is."""
    if isinstance(photo, (str, os.PathLike)):
        return os.fspath(photo)
    if isinstance(photo, np.ndarray):
        return f"array {list(photo.shape)}"
    own = getattr(photo, "filename", None) or getattr(photo, "name", None)  # of images of Pillow, of files
    if isinstance(own, (str, os.PathLike)):
        return os.fspath(own)
    if isinstance(photo, bytes):
        return f"image of {len(photo)} bytes"
    return f"image {photo}" if isinstance(photo, (int, np.integer)) else type(photo).__name__


@dataclass(frozen=True, eq=False)
class Query:
    """A query: what its features are compared by, and their keypoints if they are known."""

    codes: CodedQuery | None = None  # for scoring by codes, and for geometry
    words: Array | None = None  # [Q, K] or [Q, K, A], for the rules of the paper
    signatures: Array | None = None
    keypoints: Keypoints | None = None
    vector: Floats32 | None = None  # [d] of a global embedding, for `fuse`
    region: Region | None = None  # of the query photograph, all of it or a part; None: unknown

    def __len__(self) -> int:
        """Return the number of features."""
        return len(self.codes.words) if self.codes is not None else 0 if self.words is None else len(self.words)

    @property
    def checked_keypoints(self) -> Keypoints:
        """Return the keypoints; raise OptionError if they are unknown, or not those of the features."""
        if self.keypoints is None:
            raise OptionError("verify needs the keypoints of the query's features; give a photograph or a Features record")
        if len(self.keypoints) != len(self):
            raise OptionError(f"words of {len(self)} features but {len(self.keypoints)} keypoints; give those of the same")
        return self.keypoints

    @cached_property
    def image_features(self) -> ImageFeatures:
        """Return what geometry by words compares: the nearest words."""
        if self.words is None:
            raise OptionError("the query has no words; quantise it with the vocabularies of the index")
        axes = self.words.ndim
        words = self.words if axes == 2 else self.words[:, :, 0]
        if self.signatures is None:
            return ImageFeatures(words, np.zeros((len(words), 0), np.uint64), self.checked_keypoints)
        return ImageFeatures(words, self.signatures if axes == 2 else self.signatures[:, :, 0], self.checked_keypoints)


@dataclass(frozen=True, eq=False)
class PhotoReader:
    """Reads photographs as those of an index were read, and makes queries of them."""

    options: FeatureOptions | None  # None: polyvoc does not extract the features of this index, or by a network to be loaded
    folder: IndexFolder

    @classmethod
    def of(cls, folder: IndexFolder) -> PhotoReader:
        """Take what is needed of an index."""
        options = folder.feature_options
        return cls(options if options.kind == folder.kind and options.network is None else None, folder)

    def query(self, photo: str | bytes | Features, search: SearchOptions, region: Region | None, seconds: dict[str, float],
              threads: int | None = None) -> Query:  # fmt: skip
        """Extract and quantise a photograph; write the seconds of each stage to `seconds`."""
        features = self.features(photo, seconds, threads)
        if region is not None:
            features = features.inside(region)
        with timed(seconds, "quantise"):
            found = self.query_of(features.descriptors, search)
        whole = (0, 0, features.width, features.height)
        return replace(found, keypoints=features.keypoints, region=region or whole)

    def query_of(self, descriptors: Descriptors, search: SearchOptions) -> Query:
        """Return the codes, or words, of descriptors [Q, dimension] that a search needs."""
        models, found = self.folder.models, Query()
        if models.coder is not None and (search.merge == CODES or search.verify):
            n_words = search.n_assignments if search.merge == CODES else CODE_ASSIGNMENTS
            found = Query(models.coder.query(descriptors, n_words, CODE_CUT))
        if search.merge == CODES or models.quantiser is None:
            return found
        words, signatures = models.quantiser.quantise(descriptors, search.n_assignments)
        return replace(found, words=words, signatures=signatures)

    def features(self, photo: str | bytes | Features, seconds: dict[str, float], threads: int | None = None) -> Features:
        """Return the features of a photograph; features made elsewhere are checked."""
        if isinstance(photo, Features):
            check_features(photo, self.folder.kind, str(self.folder.path))
            return photo
        options = self.options or self.folder.extraction  # which may raise
        with timed(seconds, "decode"):
            grey = read_grey(photo, options.long_side)
        with timed(seconds, options.detector):
            return extract_pixels(grey, options, photo, threads=count_threads(threads))


def read_features(photo: str | bytes, wanted: Iterable[FeatureOptions], seconds: dict[str, float],
                  threads: int | None = None, read: ReadGrey | None = None) -> PhotoFeatures:  # fmt: skip
    """Return the features of a photograph for each of some options; it is decoded once for each size.

    Write the seconds of each stage to `seconds`. Raise the error if it has features for none of the options.
    """
    found: dict[FeatureOptions, Features | ImageError] = {}
    for long_side, several in groupby(sorted(set(wanted), key=astuple), key=lambda options: options.long_side):
        before = seconds.pop("decode", 0.0)
        with timed(seconds, "decode"):
            grey = (read or read_grey)(photo, long_side)
        seconds["decode"] += before
        for options in several:
            with timed(seconds, options.detector):
                try:
                    found[options] = extract_pixels(grey, options, photo, threads=count_threads(threads))
                except UnreachableError:
                    raise
                except ImageError as error:
                    found[options] = error
    if not any(isinstance(one, Features) for one in found.values()):
        raise next(one for one in found.values() if isinstance(one, ImageError))
    return PhotoFeatures(found)


def query_of_image(stored: ImageFeatures, search: SearchOptions, coder: Coder | None, size: tuple[int, int] = (0, 0),
                   region: Region | None = None) -> Query:  # fmt: skip
    """Return a query with what is stored of an image of some (width, height), or of a region of it; codes need a coder."""
    at, codes = stored.keypoints, stored.codes
    kept = np.ones(len(at), bool) if region is None else inside_region(at.xy, region, size)
    keypoints = Keypoints(at.xy[kept], at.scale[kept], at.angle[kept])
    found = Query(keypoints=keypoints, region=region or (0, 0, *size))
    if codes is not None and coder is not None and (search.merge == CODES or search.verify):
        n_words = search.n_assignments if search.merge == CODES else CODE_ASSIGNMENTS
        found = replace(found, codes=coder.query_stored(codes.chosen(kept), n_words, CODE_CUT))
    if search.merge == CODES:
        return found
    signatures = stored.signatures[kept] if stored.signatures.shape[1] else None
    return replace(found, words=stored.words[kept], signatures=signatures)


@contextmanager
def timed(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Write the seconds that a stage takes to `seconds`."""
    started = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - started


def expand(query: Query, hits: Sequence[tuple[ImageFeatures, Array]], search: SearchOptions,
           coder: Coder | None) -> Query:  # fmt: skip
    """Return a query with the features of verified hits: (image, transform to it). Codes need a coder."""
    keypoints = query.checked_keypoints
    kept = [_inside_query(keypoints, image.keypoints, transform) for image, transform in hits]
    if query.codes is not None and search.merge == CODES:
        assert coder is not None, "the codes of hits cannot be decoded without a coder"
        pairs = [(image.codes, rows) for (image, _), rows in zip(hits, kept, strict=True) if rows.any()]
        stored = [codes.chosen(rows) for codes, rows in pairs if codes is not None]
        more = [coder.query_stored(codes, search.n_assignments, CODE_CUT) for codes in stored]
        return Query(CodedQuery.concatenate([query.codes, *more]))
    own = query.image_features
    words, signatures = [np.asarray(own.words, np.int64)], [with_planes(own.signatures, 2)]
    for (image, _), rows in zip(hits, kept, strict=True):
        words.append(image.words[rows].astype(np.int64))
        signatures.append(with_planes(image.signatures, 2)[rows])
    signed = np.concatenate(signatures) if own.signatures.shape[1] else None
    return Query(words=np.concatenate(words), signatures=signed)


def _inside_query(query: Keypoints, image: Keypoints, transform: Array) -> npt.NDArray[np.bool_]:
    """Return which features of an image are where the query's features are, with a margin."""
    back = np.linalg.inv(np.vstack([transform, [0, 0, 1]]))[:2]
    positions = image.xy @ back[:, :2].T + back[:, 2]
    low, high = query.xy.min(axis=0), query.xy.max(axis=0)
    slack = MARGIN * (high - low)
    result: npt.NDArray[np.bool_] = ((positions >= low - slack) & (positions <= high + slack)).all(axis=1)
    return result
