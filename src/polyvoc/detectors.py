"""Here are pixels: which local features do they have? SIFT, ORB and AKAZE of OpenCV, affine regions of pycolmap.

The one door to both libraries. Whatever finds them, features are told alike: strongest first, the centre of the first pixel at
(0, 0), diameters, degrees clockwise, a descriptor in bytes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple, TypeVar

import cv2
import numpy as np
import numpy.typing as npt

from polyvoc.errors import ImageError, OptionError
from polyvoc.records import DETECTED, Detector, FeatureOptions, Floats

T = TypeVar("T")
Pixels = npt.NDArray[np.uint8]  # [height, width]
Centres = Callable[[Floats, npt.NDArray[np.int64]], Floats]  # places [n, 2] from places and octaves
OPENCV: str = cv2.__version__
SMALLEST = 16  # pixels; pycolmap ends the process where an image has fewer on a side
FAINTEST = 10  # step of grey that is a corner for ORB; with OpenCV's 20 photographs of Ukbench have 2,300 of 3,000 features


class Found(NamedTuple):
    """Features of pixels, strongest first."""

    xy: Floats  # [n, 2]
    scale: Floats  # [n] diameter
    angle: Floats  # [n] degrees
    descriptors: npt.NDArray[np.uint8]  # [n, 128] of SIFT, or [n, bytes] of packed bits


def find(pixels: Pixels, options: FeatureOptions, name: str) -> Found:
    """Give the features of pixels; perhaps none. `name` says in messages what they show."""
    check(options.detector)
    try:
        return _beside_the_main_thread(_DETECTORS[options.detector], pixels, options.max_features)
    except cv2.error as error:
        if getattr(error, "code", None) == cv2.Error.StsNoMem:
            raise MemoryError from error
        raise ImageError(f"{name}: {options.detector.upper()} fails on it ({type(error).__name__}); remove it") from error


def check(detector: Detector) -> None:
    """Refuse a detector that the libraries on this machine do not have."""
    if detector == "akaze":
        _akaze_factory()
    elif detector == "affine":
        _pycolmap()


# -- the detectors


def _sift(pixels: Pixels, max_features: int) -> Found:
    # Without the precise upscale every position lies 0.24 pixel too far right and down (measured on blobs).
    return _of_opencv(cv2.SIFT.create(nfeatures=max_features, enable_precise_upscale=True), pixels, max_features)


def _orb(pixels: Pixels, max_features: int) -> Found:
    orb = cv2.ORB.create(nfeatures=max_features, fastThreshold=FAINTEST)
    whole = np.array(pixels.shape[::-1])

    def centres(xy: Floats, octave: npt.NDArray[np.int64]) -> Floats:
        """Put places right: OpenCV minds neither the centres of pixels of a reduced image nor that its sides are rounded."""
        step = orb.getScaleFactor() ** octave[:, None]
        centred: Floats = (xy / step + 0.5) * (whole / np.rint(whole / step)) - 0.5
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
    pycolmap, described = _pycolmap(), DETECTED["affine"].dimension
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
    from polyvoc import images as _  # noqa: F401 - and with it Pillow: loaded after pycolmap, it would crash writing PNG

    try:
        import pycolmap
    except ImportError:
        raise OptionError('affine regions need pycolmap: pip install "polyvoc[colmap]"') from None
    quiet = pycolmap.logging.Level.WARNING.value  # it would tell of every photograph
    pycolmap.logging.minloglevel = max(pycolmap.logging.minloglevel, quiet)
    return pycolmap


# -- threads


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
    return ThreadPoolExecutor(1, "polyvoc-detect")


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
