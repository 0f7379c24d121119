"""Here is a photograph: which local features has it? SIFT of OpenCV as rootSIFT, strongest first.

Second stage of the flow: file -> pixels -> features -> words.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from polyvoc.errors import ImageError, OptionError, UnreachableError
from polyvoc.images import GreyImage, Location, Source, describe, read_grey
from polyvoc.lookahead import count_threads, in_order
from polyvoc.records import FeatureOptions, Features, Floats

T = TypeVar("T")
Place = TypeVar("Place", bound=Location)
OPENCV: str = cv2.__version__
MIN_FEATURES = 1  # a photograph with fewer can neither be found nor ask


def extract(source: Source, options: FeatureOptions = FeatureOptions(), root: bool = True) -> Features:  # noqa: B008 (frozen)
    """Give the features of one photograph: a path, an address in a store, or the bytes of its file."""
    return extract_pixels(read_grey(source, options.long_side), options, describe(source), root)


def extract_pixels(image: GreyImage, options: FeatureOptions, name: str, root: bool = True) -> Features:
    """Give the features of pixels already read; `name` says in messages what they show."""
    try:
        features = detect(image, options.max_features, root)
    except (MemoryError, cv2.error) as error:
        if isinstance(error, MemoryError) or getattr(error, "code", None) == cv2.Error.StsNoMem:
            reason = "not enough memory to find its features now; close other programs, or reduce it"
            raise UnreachableError(f"{name}: {reason}") from error
        raise ImageError(f"{name}: SIFT fails on it ({type(error).__name__}); remove it") from error
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
    with one_cv2_thread():
        yield from in_order(lambda path: _attempt(path, options, root), sources, threads, "polyvoc-extract")


def detect(image: GreyImage, max_features: int, root: bool = True) -> Features:
    """Give the features of pixels already read, strongest first; perhaps none. Descriptors are rootSIFT, or plain SIFT."""
    keypoints, descriptors = _beside_the_main_thread(_sift, image.pixels, max_features)
    # [n, 5]  x, y, diameter, angle, response
    table = np.array([(*k.pt, k.size, k.angle, k.response) for k in keypoints], np.float32).reshape(-1, 5)
    x, y, size, angle, response = table.T
    # OpenCV keeps all that tie with the last one: break ties by position, then cut.
    order = np.lexsort((angle, size, x, y, -response))[:max_features]
    height, width = image.pixels.shape
    # Full-size pixels per reduced pixel. Reduction keeps the edges of the image, which lie half a pixel
    # outside the centres of the outer pixels: hence (x + 0.5) * factor - 0.5.
    factor = np.array([image.width / width, image.height / height])
    return Features(
        xy=((table[order, :2] + 0.5) * factor - 0.5).astype(np.float32),
        scale=(size[order] * np.sqrt(factor.prod())).astype(np.float32),
        angle=angle[order],
        descriptors=root_sift(descriptors[order]) if root else descriptors[order].astype(np.float32),
        width=image.width,
        height=image.height,
    )


def _sift(pixels: npt.NDArray[np.uint8], max_features: int) -> tuple[Sequence[Any], npt.NDArray[Any]]:
    """Give the keypoints of OpenCV, and their descriptors [n, 128]."""
    # Without the precise upscale every position lies 0.24 pixel too far right and down (measured on blobs).
    sift = cv2.SIFT.create(nfeatures=max_features, enable_precise_upscale=True)
    keypoints, descriptors = sift.detectAndCompute(pixels, None)
    return keypoints, np.empty((0, sift.descriptorSize()), np.float32) if descriptors is None else descriptors


def _beside_the_main_thread(work: Callable[..., T], *arguments: Any) -> T:
    """Do what takes much memory in another thread than the main one.

    What the main thread frees glibc gives back to the system, and SIFT waits for tens of thousands of pages per photograph; of
    what other threads free they keep more. `benchmarks/search.py` measures both.
    """
    if threading.current_thread() is not threading.main_thread():
        return work(*arguments)
    return _helper(os.getpid()).submit(work, *arguments).result()


@cache
def _helper(process: int) -> ThreadPoolExecutor:
    """Give the thread for that; a process that was forked has none of its parent's."""
    return ThreadPoolExecutor(1, "polyvoc-sift")


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


def check_features(features: Features, dimension: int) -> None:
    """Refuse features, perhaps made elsewhere, that would harm an index: wrong dimension, or not finite."""
    if features.descriptors.shape[1] != dimension:
        raise OptionError(f"features: descriptors have {features.descriptors.shape[1]} values, not {dimension}")
    for name in ("xy", "scale", "angle", "descriptors"):
        if not np.isfinite(getattr(features, name)).all():
            raise OptionError(f"features: {name} holds values that are not finite; extract them again")
    if (features.scale < 0).any():
        raise OptionError("features: some scales are negative; extract them again")
    if features.width < 1 or features.height < 1:
        raise OptionError(f"features: the image is {features.width} x {features.height} pixels; give its true size")


def _attempt(path: Location, options: FeatureOptions, root: bool) -> Features | ImageError:
    try:
        return extract(path, options, root)
    except ImageError as error:
        return type(error)(str(error))  # anew: the traceback would keep the pixels alive


_pool_lock = threading.Lock()
_pools = [0, 0]  # how many pools run, and OpenCV's number of threads before the first


@contextmanager
def one_cv2_thread() -> Iterator[None]:
    """Leave OpenCV one thread while pools run, which use cores better; the last to end restores the rest."""
    with _pool_lock:
        if _pools[0] == 0:
            _pools[1] = cv2.getNumThreads()
            cv2.setNumThreads(1)
        _pools[0] += 1
    try:
        yield
    finally:
        with _pool_lock:
            _pools[0] -= 1
            if _pools[0] == 0:
                cv2.setNumThreads(_pools[1])
