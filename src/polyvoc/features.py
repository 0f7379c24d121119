"""Here is a photograph: which local features has it? rootSIFT unless told otherwise, strongest first.

Second stage of the flow: file -> pixels -> features -> words.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from polyvoc import detectors
from polyvoc.errors import ImageError, OptionError, UnreachableError
from polyvoc.images import GreyImage, Location, Source, describe, read_grey
from polyvoc.lookahead import count_threads, in_order
from polyvoc.records import Descriptors, FeatureOptions, Features, Floats, Kind

Place = TypeVar("Place", bound=Location)
MIN_FEATURES = 1  # a photograph with fewer can neither be found nor ask
MAX_SIDE = 1 << 31  # pixels: more is damage


def extract(source: Source, options: FeatureOptions = FeatureOptions(), root: bool = True) -> Features:  # noqa: B008 (frozen)
    """Give the features of one photograph: a path, an address in a store, or the bytes of its file."""
    return extract_pixels(read_grey(source, options.long_side), options, describe(source), root)


def extract_pixels(image: GreyImage, options: FeatureOptions, name: str, root: bool = True) -> Features:
    """Give the features of pixels already read; `name` says in messages what they show."""
    try:
        features = detect(image, options, name, root)
    except MemoryError as error:
        reason = "not enough memory to find its features now; close other programs, or reduce it"
        raise UnreachableError(f"{name}: {reason}") from error
    if len(features) < MIN_FEATURES:
        raise ImageError(f"{name}: no texture: {len(features)} features found; remove it")
    return features


def extract_many(
    sources: Iterable[Place],
    options: FeatureOptions = FeatureOptions(),  # noqa: B008 (frozen)
    threads: int | None = None,
    root: bool = True,
) -> Generator[tuple[Place, Features | ImageError], None, None]:
    """Give (path, features), or (path, what is wrong with it), in the order of the sources, using all cores.

    `root=False` leaves descriptors as SIFT: whole numbers from 0 to 255. Work runs only a few photographs ahead, so memory
    does not grow with the collection. Closing the generator early waits for those in work and begins no other.
    """
    return _extract_many(sources, options, count_threads(threads), root)


def _extract_many(
    sources: Iterable[Place], options: FeatureOptions, threads: int, root: bool
) -> Generator[tuple[Place, Features | ImageError], None, None]:
    with detectors.one_cv2_thread():
        yield from in_order(lambda path: _attempt(path, options, root), sources, threads, "polyvoc-extract")


def detect(image: GreyImage, options: FeatureOptions, name: str = "image", root: bool = True) -> Features:
    """Give the features of pixels already read, strongest first; perhaps none. SIFT comes as rootSIFT, or plain."""
    found, kind = detectors.find(image.pixels, options, name), options.kind
    height, width = image.pixels.shape
    # Full-size pixels per reduced pixel. Reduction keeps the edges of the image, which lie half a pixel
    # outside the centres of the outer pixels: hence (x + 0.5) * factor - 0.5.
    factor = np.array([image.width / width, image.height / height])
    return Features(
        xy=((found.xy + 0.5) * factor - 0.5).astype(np.float32),
        scale=(found.scale * np.sqrt(factor.prod())).astype(np.float32),
        angle=found.angle,
        descriptors=_descriptors(found, kind, root),
        width=image.width,
        height=image.height,
        name=kind.name,
    )


def _descriptors(found: detectors.Found, kind: Kind, root: bool) -> Descriptors:
    if kind.binary:
        return unpack(found.descriptors, kind.dimension)
    return root_sift(found.descriptors) if root else found.descriptors.astype(np.float32)


def root_sift(descriptors: npt.ArrayLike) -> Floats:
    """Give SIFT descriptors [n, dimension] as rootSIFT: L1-normalised, then the square root of each value.

    Their Euclidean distance is that of the Hellinger kernel (Arandjelovic and Zisserman, CVPR 2012). Rows get
    unit L2 norm; a row of zeros stays so.
    """
    values = np.array(descriptors)
    if values.ndim != 2 or values.dtype.kind not in "uif":
        raise OptionError(f"descriptors: {values.dtype} of shape {values.shape} should be numbers [n, dimension]")
    values = values.astype(np.float64)  # sums of squares of float32 drift from 1
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise OptionError("descriptors: some values are negative or not finite, unlike SIFT; check their source")
    sums = values.sum(axis=1, keepdims=True)  # [n, 1]
    return np.sqrt(values / np.where(sums > 0, sums, 1)).astype(np.float32)


def unpack(packed: npt.ArrayLike, bits: int | None = None) -> npt.NDArray[np.bool_]:
    """Give descriptors of a binary feature, eight bits a byte [n, bytes], as bool [n, bits]; the lowest bit comes first.

    `bits`: where the last byte holds fewer than eight, as those of AKAZE does.
    """
    table = np.asarray(packed)
    if table.ndim != 2 or table.dtype != np.uint8:
        raise OptionError(f"descriptors: {table.dtype} of shape {table.shape} should be uint8 [n, bytes]")
    if bits is not None and not 0 <= 8 * table.shape[1] - bits < 8:
        raise OptionError(f"bits={bits!r} do not fit descriptors of {table.shape[1]} bytes")
    return np.unpackbits(table, axis=1, count=bits, bitorder="little").view(np.bool_)


def check_features(features: Features, kind: Kind, holder: str = "this index") -> None:
    """Refuse features, perhaps made elsewhere, that would harm an index: of another kind than it holds, or not finite."""
    if features.kind != kind:
        raise OptionError(f"{holder} holds {kind}, not {features.kind}; give features of that kind, or make another index")
    for name in ("xy", "scale", "angle", "descriptors"):
        if not np.isfinite(getattr(features, name)).all():
            raise OptionError(f"features: {name} holds values that are not finite; extract them again")
    if (features.scale < 0).any():
        raise OptionError("features: some scales are negative; extract them again")
    if not (1 <= features.width <= MAX_SIDE and 1 <= features.height <= MAX_SIDE):
        raise OptionError(f"features: the image is {features.width} x {features.height} pixels; give its true size")


def _attempt(path: Location, options: FeatureOptions, root: bool) -> Features | ImageError:
    try:
        return extract(path, options, root)
    except ImageError as error:
        return type(error)(str(error))  # anew: the traceback would keep the pixels alive
