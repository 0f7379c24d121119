"""Pixels -> local features. A new detector is one entry of `_DETECTORS` and its kind in `options`; networks are `learned`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar, cast

import cv2
import numpy as np
import numpy.typing as npt

from polyvoc.errors import ImageError, OptionError, UnreachableError
from polyvoc.features.decode import read_grey
from polyvoc.features.learned import load_network, resolved
from polyvoc.features.sift import find_sift
from polyvoc.options import DETECTOR_KINDS, Detector, FeatureOptions
from polyvoc.storage.stores import display_name
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import Descriptors, FeatureKind, Features, Floats32, GreyImage, Location, Source

_L = TypeVar("_L", bound=Location)
_T = TypeVar("_T")
Pixels = npt.NDArray[np.uint8]  # [height, width]
Correction = Callable[[Floats32, npt.NDArray[np.int64]], Floats32]  # positions [n, 2] by octaves [n]
OPENCV: str = cv2.__version__
DEFAULTS = FeatureOptions()
MIN_FEATURES = 1  # an image with fewer can neither be found nor be a query
MAX_SIDE = 1 << 31  # pixels: more is damage
ORB_THRESHOLD = 10  # grey levels of a corner; with OpenCV's 20 images of Ukbench have 2,300 of 3,000 features
PYCOLMAP_MIN_SIDE = 16  # pixels; pycolmap ends the process if a side is smaller


class RawFeatures(NamedTuple):
    """Features of reduced pixels, strongest first."""

    xy: Floats32  # [n, 2]
    scale: Floats32  # [n] diameter
    angle: Floats32  # [n] degrees; NaN: unknown
    descriptors: npt.NDArray[np.uint8] | Floats32  # [n, 128] of SIFT, [n, bytes] of packed bits, or those of a network


def extract(source: Source, options: FeatureOptions = DEFAULTS, root: bool = True, name: str | None = None) -> Features:
    """Return the features of one image: a path, an address in a store, or the bytes of its file.

    `root=False` leaves SIFT descriptors plain: whole numbers from 0 to 255. `name` is shown in errors instead of the source's.
    """
    return extract_pixels(read_grey(source, options.long_side, name=name), options, name or source, root)


def extract_pixels(image: GreyImage, options: FeatureOptions, name: Source, root: bool = True, threads: int = 1) -> Features:
    """Return the features of decoded pixels. Raise ImageError if there are none; `name` is shown in errors."""
    features = detect(image, options, name, root, threads)
    if len(features) < MIN_FEATURES:
        raise ImageError(
            f"{display_name(name)}: too plain to recognise ({len(features)} features found); use one with more detail"
        )
    return features


def extract_many(
    sources: Iterable[_L], options: FeatureOptions = DEFAULTS, threads: int | None = None, root: bool = True
) -> Generator[tuple[_L, Features | ImageError], None, None]:
    """Yield (path, features or error) in the order of the sources, using all cores; lazily, as `ordered_map`."""

    def attempt(path: _L) -> Features | ImageError:
        try:
            return extract(path, options, root)
        except ImageError as error:
            return type(error)(str(error))  # without the traceback, which would keep the pixels in memory

    options = resolved(options)

    def run(count: int) -> Generator[tuple[_L, Features | ImageError], None, None]:
        with single_cv2_thread():
            yield from ordered_map(attempt, sources, count, "polyvoc-extract")

    return run(count_threads(threads))


def detect(image: GreyImage, options: FeatureOptions, name: Source = "image", root: bool = True, threads: int = 1) -> Features:
    """Return the features of decoded pixels, strongest first; perhaps none."""
    options = resolved(options)
    check_detector(options)
    find = _DETECTORS[cast(Detector, options.detector)] if options.network is None else _learned
    try:
        raw = _off_main_thread(find, image.pixels, options, threads)
    except ImageError as error:
        raise ImageError(f"{display_name(name)}: {error}") from error
    except (MemoryError, cv2.error) as error:
        if isinstance(error, MemoryError) or getattr(error, "code", None) == cv2.Error.StsNoMem:
            reason = "not enough memory to find its features now; close other programs, or reduce it"
            raise UnreachableError(f"{display_name(name)}: {reason}") from error
        reason = f"{options.detector.upper()} fails on it ({type(error).__name__})"
        raise ImageError(f"{display_name(name)}: {reason}; remove it") from error
    (height, width), kind = image.pixels.shape, options.kind
    # Full-size pixels per reduced pixel. Edges of the image lie half a pixel outside the centres: (x + 0.5) * factor - 0.5.
    factor = np.array([image.width / width, image.height / height])
    xy = ((raw.xy + 0.5) * factor - 0.5).astype(np.float32)
    scale = (raw.scale * np.sqrt(factor.prod())).astype(np.float32)
    if kind.binary:
        descriptors: Descriptors = unpack_bits(raw.descriptors, kind.dimension)
    elif options.network is not None:
        descriptors = raw.descriptors.astype(np.float32, copy=False)
    else:
        descriptors = root_sift(raw.descriptors) if root else raw.descriptors.astype(np.float32)
    return Features(xy, scale, raw.angle, descriptors, image.width, image.height, kind.name)


def check_detector(options: FeatureOptions) -> None:
    """Raise OptionError if this machine lacks a library, or the file, of a detector."""
    if options.network is not None:
        load_network(options.network)
    elif options.detector == "akaze":
        _akaze_factory()
    elif options.detector == "affine":
        load_pycolmap("affine regions")


def load_pycolmap(purpose: str) -> Any:
    """Import pycolmap. Raise OptionError that names the purpose if it is not installed.

    Pillow must be loaded first, as importing features.pixels does: loaded after pycolmap it crashes when it writes PNG.
    """
    import polyvoc.features.pixels  # noqa: F401

    try:
        import pycolmap
    except ImportError:
        raise OptionError(f"{purpose}: pycolmap is missing; install it: pip install 'polyvoc[colmap]'") from None
    return pycolmap


def root_sift(descriptors: npt.ArrayLike) -> Floats32:
    """Return SIFT descriptors [n, dimension] as rootSIFT: L1-normalised, then the square root of each value.

    Their distance is that of the Hellinger kernel (Arandjelovic, Zisserman, CVPR 2012). Rows get unit norm, but not zeros.
    """
    values = np.array(descriptors)
    if values.ndim != 2 or values.dtype.kind not in "uif":
        raise OptionError(f"descriptors: {values.dtype} of shape {values.shape} should be numbers [n, dimension]")
    values = values.astype(np.float64)  # sums of squares of float32 drift from 1
    if not (np.isfinite(values).all() and (values >= 0).all()):
        raise OptionError("descriptors: some values are negative or not finite, unlike SIFT; check their source")
    sums = values.sum(axis=1, keepdims=True)  # [n, 1]
    return np.sqrt(values / np.where(sums > 0, sums, 1)).astype(np.float32)


def unpack_bits(packed: npt.ArrayLike, bits: int | None = None) -> npt.NDArray[np.bool_]:
    """Return binary descriptors, eight bits a byte [n, bytes], lowest first, as bool [n, bits]; AKAZE has fewer in the last."""
    table = np.asarray(packed)
    if table.ndim != 2 or table.dtype != np.uint8:
        raise OptionError(f"descriptors: {table.dtype} of shape {table.shape} should be uint8 [n, bytes]")
    if bits is not None and not 0 <= 8 * table.shape[1] - bits < 8:
        raise OptionError(f"bits={bits!r} do not fit descriptors of {table.shape[1]} bytes")
    return np.unpackbits(table, axis=1, count=bits, bitorder="little").view(np.bool_)


def check_features(features: Features, kind: FeatureKind, holder: str = "this index") -> None:
    """Raise OptionError if features, perhaps made elsewhere, are of another kind than an index holds, or not finite."""
    if features.kind != kind:
        raise OptionError(f"{holder} holds {kind}, not {features.kind}; give features of that kind, or make another index")
    for name in ("xy", "scale", "angle", "descriptors"):
        values = getattr(features, name)
        if not (np.isfinite(values) | (np.isnan(values) if name == "angle" else False)).all():
            raise OptionError(f"features: {name} holds values that are not finite; extract them again")
    if (features.scale < 0).any():
        raise OptionError("features: some scales are negative; extract them again")
    if not (1 <= features.width <= MAX_SIDE and 1 <= features.height <= MAX_SIDE):
        raise OptionError(f"features: the image is {features.width} x {features.height} pixels; give its true size")


_pool_lock = threading.Lock()
_thread_counts = [0, 0]  # running pools, and OpenCV's number of threads before the first


@contextmanager
def single_cv2_thread() -> Iterator[None]:
    """Limit OpenCV to one thread while thread pools run, which use the cores better; the last one restores its number."""
    with _pool_lock:
        if _thread_counts[0] == 0:
            _thread_counts[1] = cv2.getNumThreads()
            cv2.setNumThreads(1)
        _thread_counts[0] += 1
    try:
        yield
    finally:
        with _pool_lock:
            _thread_counts[0] -= 1
            if _thread_counts[0] == 0:
                cv2.setNumThreads(_thread_counts[1])


def _sift(pixels: Pixels, options: FeatureOptions, threads: int) -> RawFeatures:
    table, descriptors = find_sift(pixels, options.max_features, options.long_side, threads)
    return RawFeatures(table[:, :2], table[:, 2], table[:, 3], descriptors)


def _opencv_sift(pixels: Pixels, options: FeatureOptions, threads: int) -> RawFeatures:
    # Without the precise upscale every position lies 0.24 pixel too far right and down (measured on blobs).
    detector = cv2.SIFT.create(nfeatures=options.max_features, enable_precise_upscale=True)
    return _run_opencv(detector, pixels, options.max_features)


def _orb(pixels: Pixels, options: FeatureOptions, threads: int) -> RawFeatures:
    orb = cv2.ORB.create(nfeatures=options.max_features, fastThreshold=ORB_THRESHOLD)
    size = np.array(pixels.shape[::-1])

    def correct(xy: Floats32, octave: npt.NDArray[np.int64]) -> Floats32:
        """Correct positions: OpenCV ignores the centres of pixels of a reduced image, and that its sides are rounded."""
        step = orb.getScaleFactor() ** octave[:, None]
        centred: Floats32 = (xy / step + 0.5) * (size / np.rint(size / step)) - 0.5
        return centred.astype(np.float32)

    return _run_opencv(orb, pixels, options.max_features, correct)


def _akaze(pixels: Pixels, options: FeatureOptions, threads: int) -> RawFeatures:
    return _run_opencv(_akaze_factory()(), pixels, options.max_features)


def _affine(pixels: Pixels, options: FeatureOptions, threads: int) -> RawFeatures:
    """Return differences of Gaussians with affine shape (Mikolajczyk and Schmid, IJCV 2004), described by SIFT.

    The closest to the Hessian-affine regions of the paper that a package offers; in the order of pycolmap, the largest first.
    """
    pycolmap, dimension = load_pycolmap("affine regions"), DETECTOR_KINDS["affine"].dimension
    if min(pixels.shape) < PYCOLMAP_MIN_SIDE:
        empty = np.empty((0, dimension), np.float32)
        return RawFeatures(empty[:, :2], empty[:, 0], empty[:, 0], empty.astype(np.uint8))
    warnings_only = pycolmap.logging.Level.WARNING.value  # else it logs every image
    pycolmap.logging.minloglevel = max(pycolmap.logging.minloglevel, warnings_only)
    wanted, max_features = pycolmap.FeatureExtractionOptions(), options.max_features
    wanted.use_gpu, wanted.num_threads = False, 1
    wanted.sift.estimate_affine_shape = True
    wanted.sift.max_num_features = max_features
    wanted.sift.normalization = pycolmap.Normalization.L2  # plain SIFT, 512 times as large, a byte each: as that of OpenCV
    extractor = pycolmap.FeatureExtractor.create(wanted, pycolmap.Device.cpu)
    keypoints, descriptors = extractor.extract(pycolmap.Bitmap.from_array(np.ascontiguousarray(pixels)))
    # [n, 6]  x, y and the matrix that takes the unit circle to the region
    table = np.array([(k.x, k.y, k.a11, k.a12, k.a21, k.a22) for k in keypoints][:max_features]).reshape(-1, 6)
    x, y, a11, a12, a21, a22 = table.T
    return RawFeatures(
        xy=(np.stack([x, y], axis=1) - 0.5).astype(np.float32),  # COLMAP's origin is the corner of the first pixel
        scale=(2 * np.sqrt(np.abs(a11 * a22 - a12 * a21))).astype(np.float32),  # of the circle of the same area
        angle=(np.degrees(np.arctan2(a21, a11)) % 360).astype(np.float32),
        descriptors=np.asarray(descriptors.data, np.uint8)[:max_features].reshape(-1, dimension),
    )


def _learned(pixels: Pixels, options: FeatureOptions, threads: int) -> RawFeatures:
    assert options.network is not None
    table, descriptors = load_network(options.network).find(pixels, options.max_features, threads)
    return RawFeatures(table[:, :2], table[:, 2], table[:, 3], descriptors)


_DETECTORS: dict[Detector, Callable[[Pixels, FeatureOptions, int], RawFeatures]] = {
    "sift": _sift,
    "opencv-sift": _opencv_sift,
    "orb": _orb,
    "akaze": _akaze,
    "affine": _affine,
}


def _run_opencv(detector: Any, pixels: Pixels, max_features: int, correct: Correction = lambda xy, octave: xy) -> RawFeatures:
    """Return the features of a detector of OpenCV, strongest first; `correct` maps positions [n, 2] and octaves."""
    keypoints, descriptors = detector.detectAndCompute(pixels, None)
    if descriptors is None:
        descriptors = np.empty((0, detector.descriptorSize()), np.uint8)
    # [n, 5]  x, y, diameter, angle, response
    table = np.array([(*k.pt, k.size, k.angle, k.response) for k in keypoints], np.float32).reshape(-1, 5)
    x, y, size, angle, response = table.T
    # OpenCV keeps all that tie with the last one: break ties by position, then cut.
    order = np.lexsort((angle, size, x, y, -response))[:max_features]
    octave = np.array([k.octave for k in keypoints], np.int64)
    codes = descriptors[order].astype(np.uint8)  # SIFT of OpenCV: whole numbers in float32
    return RawFeatures(correct(table[order, :2], octave[order]), size[order], angle[order], codes)


def _akaze_factory() -> Callable[[], Any]:
    """Return the constructor of AKAZE; OpenCV 5 has it in its extra modules."""
    for module in (cv2, getattr(cv2, "xfeatures2d", None)):
        factory: Callable[[], Any] | None = getattr(module, "AKAZE_create", None)
        if factory is not None:
            return factory
    raise OptionError(f"OpenCV {OPENCV} has no AKAZE; pip install opencv-contrib-python-headless, or use another detector")


def _off_main_thread(work: Callable[..., _T], *arguments: Any) -> _T:
    """Run work on another thread than the main one, whose freed memory glibc returns to the system at once.

    SIFT would wait for tens of thousands of pages per image. `benchmarks/search.py` measures both.
    """
    if threading.current_thread() is not threading.main_thread():
        return work(*arguments)
    return _helper(os.getpid()).submit(work, *arguments).result()


@cache
def _helper(process: int) -> ThreadPoolExecutor:
    """Return that thread; one per process, as a forked process has none of its parent's."""
    return ThreadPoolExecutor(1, "polyvoc-detect")
