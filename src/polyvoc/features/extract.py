"""Pixels -> local features."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from polyvoc.errors import ImageError, OptionError, UnreachableError
from polyvoc.features.decode import read_grey
from polyvoc.options import DETECTOR_KINDS, Detector, FeatureOptions
from polyvoc.storage.stores import display_name
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import Descriptors, FeatureKind, Features, Floats32, GreyImage, Location, Source

_T = TypeVar("_T")
Pixels = npt.NDArray[np.uint8]  # [height, width]
Centres = Callable[[Floats32, npt.NDArray[np.int64]], Floats32]  # places [n, 2] from places and octaves
OPENCV: str = cv2.__version__
SMALLEST = 16  # pixels; pycolmap ends the process where an image has fewer on a side
FAINTEST = 10  # step of grey that is a corner for ORB; with OpenCV's 20 photographs of Ukbench have 2,300 of 3,000 features


class Found(NamedTuple):
    """Features of pixels, strongest first."""

    xy: Floats32  # [n, 2]
    scale: Floats32  # [n] diameter
    angle: Floats32  # [n] degrees
    descriptors: npt.NDArray[np.uint8]  # [n, 128] of SIFT, or [n, bytes] of packed bits


def detect_features(pixels: Pixels, options: FeatureOptions, name: str) -> Found:
    """Give the features of pixels; perhaps none. `name` says in messages what they show."""
    check_detector(options.detector)
    try:
        return _beside_the_main_thread(_DETECTORS[options.detector], pixels, options.max_features)
    except cv2.error as error:
        if getattr(error, "code", None) == cv2.Error.StsNoMem:
            raise MemoryError from error
        raise ImageError(f"{name}: {options.detector.upper()} fails on it ({type(error).__name__}); remove it") from error


def check_detector(detector: Detector) -> None:
    """Refuse a detector that the libraries on this machine do not have."""
    if detector == "akaze":
        _akaze_factory()
    elif detector == "affine":
        _pycolmap()


def _sift(pixels: Pixels, max_features: int) -> Found:
    # Without the precise upscale every position lies 0.24 pixel too far right and down (measured on blobs).
    return _of_opencv(cv2.SIFT.create(nfeatures=max_features, enable_precise_upscale=True), pixels, max_features)


def _orb(pixels: Pixels, max_features: int) -> Found:
    orb = cv2.ORB.create(nfeatures=max_features, fastThreshold=FAINTEST)
    whole = np.array(pixels.shape[::-1])

    def centres(xy: Floats32, octave: npt.NDArray[np.int64]) -> Floats32:
        """Put places right: OpenCV minds neither the centres of pixels of a reduced image nor that its sides are rounded."""
        step = orb.getScaleFactor() ** octave[:, None]
        centred: Floats32 = (xy / step + 0.5) * (whole / np.rint(whole / step)) - 0.5
        return centred.astype(np.float32)

    return _of_opencv(orb, pixels, max_features, centres)


def _akaze(pixels: Pixels, max_features: int) -> Found:
    return _of_opencv(_akaze_factory()(), pixels, max_features)


def _of_opencv(detector: Any, pixels: Pixels, max_features: int, centres: Centres = lambda xy, octave: xy) -> Found:
    """Give what a detector of OpenCV finds, strongest first; `centres` puts the places right."""
    keypoints, descriptors = detector.detectAndCompute(pixels, None)
    if descriptors is None:
        descriptors = np.empty((0, detector.descriptorSize()), np.uint8)
    # [n, 5]  x, y, diameter, angle, response
    table = np.array([(*k.pt, k.size, k.angle, k.response) for k in keypoints], np.float32).reshape(-1, 5)
    x, y, size, angle, response = table.T
    # OpenCV keeps all that tie with the last one: break ties by position, then cut.
    order = np.lexsort((angle, size, x, y, -response))[:max_features]
    octave = np.array([k.octave for k in keypoints], np.int64)
    described = descriptors[order].astype(np.uint8)  # SIFT of OpenCV: whole numbers in float32
    return Found(centres(table[order, :2], octave[order]), size[order], angle[order], described)


def _affine(pixels: Pixels, max_features: int) -> Found:
    """Give differences of Gaussians with the affine shape of what lies there (Mikolajczyk and Schmid, IJCV 2004), as SIFT.

    As near to the Hessian-affine regions of the paper as a package on a shelf comes. pycolmap tells no strength: the largest
    come first, as it gives them.
    """
    pycolmap, described = _pycolmap(), DETECTOR_KINDS["affine"].dimension
    if min(pixels.shape) < SMALLEST:
        nothing = np.empty((0, 2), np.float32)
        return Found(nothing, nothing[:, 0], nothing[:, 0], np.empty((0, described), np.uint8))
    options = pycolmap.FeatureExtractionOptions()
    options.use_gpu, options.num_threads = False, 1
    options.sift.estimate_affine_shape = True
    options.sift.max_num_features = max_features
    options.sift.normalization = pycolmap.Normalization.L2  # plain SIFT, 512 times as large, a byte each: as that of OpenCV
    extractor = pycolmap.FeatureExtractor.create(options, pycolmap.Device.cpu)
    keypoints, descriptors = extractor.extract(pycolmap.Bitmap.from_array(np.ascontiguousarray(pixels)))
    # [n, 6]  x, y and the matrix that takes the unit circle to the region
    table = np.array([(k.x, k.y, k.a11, k.a12, k.a21, k.a22) for k in keypoints][:max_features]).reshape(-1, 6)
    x, y, a11, a12, a21, a22 = table.T
    return Found(
        xy=(np.stack([x, y], axis=1) - 0.5).astype(np.float32),  # there the corner of the first pixel is (0, 0)
        scale=(2 * np.sqrt(np.abs(a11 * a22 - a12 * a21))).astype(np.float32),  # of the circle of the same area
        angle=(np.degrees(np.arctan2(a21, a11)) % 360).astype(np.float32),
        descriptors=np.asarray(descriptors.data, np.uint8)[:max_features].reshape(-1, described),
    )


_DETECTORS: dict[Detector, Callable[[Pixels, int], Found]] = {"sift": _sift, "orb": _orb, "akaze": _akaze, "affine": _affine}


def _akaze_factory() -> Callable[[], Any]:
    """Give what makes an AKAZE; OpenCV 5 has it among its extra modules."""
    for module in (cv2, getattr(cv2, "xfeatures2d", None)):
        if hasattr(module, "AKAZE_create"):
            make: Callable[[], Any] = module.AKAZE_create  # type: ignore[union-attr]
            return make
    raise OptionError(f"OpenCV {OPENCV} has no AKAZE; pip install opencv-contrib-python-headless, or take another detector")


@cache
def _pycolmap() -> Any:
    from polyvoc.features import decode as _  # noqa: F401 - and with it Pillow: loaded after pycolmap, it would crash writing PNG

    try:
        import pycolmap
    except ImportError:
        raise OptionError('affine regions need pycolmap: pip install "polyvoc[colmap]"') from None
    quiet = pycolmap.logging.Level.WARNING.value  # it would tell of every photograph
    pycolmap.logging.minloglevel = max(pycolmap.logging.minloglevel, quiet)
    return pycolmap


def _beside_the_main_thread(work: Callable[..., _T], *arguments: Any) -> _T:
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
    return ThreadPoolExecutor(1, "polyvoc-detect")


_pool_lock = threading.Lock()
_thread_counts = [0, 0]  # how many pools run, and OpenCV's number of threads before the first


@contextmanager
def single_cv2_thread() -> Iterator[None]:
    """Leave OpenCV one thread while pools run, which use cores better; the last to end restores the rest."""
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


_P = TypeVar("_P", bound=Location)
MIN_FEATURES = 1  # a photograph with fewer can neither be found nor ask
MAX_SIDE = 1 << 31  # pixels: more is damage


def extract(source: Source, options: FeatureOptions = FeatureOptions(), root: bool = True) -> Features:  # noqa: B008 (frozen)
    """Give the features of one photograph: a path, an address in a store, or the bytes of its file."""
    return extract_pixels(read_grey(source, options.long_side), options, display_name(source), root)


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
    sources: Iterable[_P],
    options: FeatureOptions = FeatureOptions(),  # noqa: B008 (frozen)
    threads: int | None = None,
    root: bool = True,
) -> Generator[tuple[_P, Features | ImageError], None, None]:
    """Give (path, features), or (path, what is wrong with it), in the order of the sources, using all cores.

    `root=False` leaves descriptors as SIFT: whole numbers from 0 to 255. Work runs only a few photographs ahead, so memory
    does not grow with the collection. Closing the generator early waits for those in work and begins no other.
    """
    return _extract_many(sources, options, count_threads(threads), root)


def _extract_many(
    sources: Iterable[_P], options: FeatureOptions, threads: int, root: bool
) -> Generator[tuple[_P, Features | ImageError], None, None]:
    with single_cv2_thread():
        yield from ordered_map(lambda path: _attempt(path, options, root), sources, threads, "polyvoc-extract")


def detect(image: GreyImage, options: FeatureOptions, name: str = "image", root: bool = True) -> Features:
    """Give the features of pixels already read, strongest first; perhaps none. SIFT comes as rootSIFT, or plain."""
    found, kind = detect_features(image.pixels, options, name), options.kind
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


def _descriptors(found: Found, kind: FeatureKind, root: bool) -> Descriptors:
    if kind.binary:
        return unpack_bits(found.descriptors, kind.dimension)
    return root_sift(found.descriptors) if root else found.descriptors.astype(np.float32)


def root_sift(descriptors: npt.ArrayLike) -> Floats32:
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


def unpack_bits(packed: npt.ArrayLike, bits: int | None = None) -> npt.NDArray[np.bool_]:
    """Give descriptors of a binary feature, eight bits a byte [n, bytes], as bool [n, bits]; the lowest bit comes first.

    `bits`: where the last byte holds fewer than eight, as those of AKAZE does.
    """
    table = np.asarray(packed)
    if table.ndim != 2 or table.dtype != np.uint8:
        raise OptionError(f"descriptors: {table.dtype} of shape {table.shape} should be uint8 [n, bytes]")
    if bits is not None and not 0 <= 8 * table.shape[1] - bits < 8:
        raise OptionError(f"bits={bits!r} do not fit descriptors of {table.shape[1]} bytes")
    return np.unpackbits(table, axis=1, count=bits, bitorder="little").view(np.bool_)


def check_features(features: Features, kind: FeatureKind, holder: str = "this index") -> None:
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
