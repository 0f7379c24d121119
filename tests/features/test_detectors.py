"""Whatever finds features, they are told alike: places, diameters, angles, descriptors; and in the same order every time."""

from __future__ import annotations

import subprocess
import sys

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from polyvoc.cli.demo_photos import find_photographs
from polyvoc.errors import OptionError
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import ORB_THRESHOLD, detect, extract, extract_many, unpack_bits
from polyvoc.options import Detector, FeatureOptions
from polyvoc.types import FeatureKind, Features, GreyImage

KINDS: dict[Detector, FeatureKind] = {"sift": FeatureKind(), "affine": FeatureKind(), "orb": FeatureKind("orb", 256, True)}


@pytest.fixture(scope="module")
def photograph() -> GreyImage:
    pixels = read_grey(find_photographs()["coffee"][0], 480).pixels
    return GreyImage(pixels, pixels.shape[1], pixels.shape[0])


def found_by(detector: Detector, image: GreyImage, count: int = 400) -> Features:
    return detect(image, FeatureOptions(max_features=count, detector=detector))


def turned(image: GreyImage) -> GreyImage:
    """Give the image turned clockwise by 90 degrees."""
    return GreyImage(np.ascontiguousarray(np.rot90(image.pixels, -1)), image.height, image.width)


@pytest.mark.parametrize("detector", KINDS)
def test_features_of_a_detector_are_of_its_kind(detector: Detector, photograph: GreyImage) -> None:
    found = found_by(detector, photograph)
    assert found.kind == KINDS[detector] == FeatureOptions(detector=detector).kind
    assert len(found) == 400
    assert (found.scale > 0).all() and ((found.angle >= 0) & (found.angle <= 360)).all()
    inside = (found.xy >= -0.5) & (found.xy <= (photograph.width - 0.5, photograph.height - 0.5))
    assert inside.all()
    again = found_by(detector, photograph)
    assert all(np.array_equal(getattr(found, name), getattr(again, name)) for name in ("xy", "scale", "angle", "descriptors"))


@pytest.mark.parametrize("detector", KINDS)
def test_angles_and_places_turn_with_the_photograph(detector: Detector, photograph: GreyImage) -> None:
    upright, other = found_by(detector, photograph), found_by(detector, turned(photograph))
    expected = np.stack([photograph.height - 1 - upright.xy[:, 1], upright.xy[:, 0]], axis=1)
    nearest = distances(upright, other).argmin(axis=1)
    matched = np.linalg.norm(other.xy[nearest] - expected, axis=1) < 2
    assert matched.mean() > 0.4  # ORB looks for its bits around whole pixels
    assert np.median(np.abs(other.xy[nearest] - expected)[matched]) < 0.6
    turns = (other.angle[nearest] - upright.angle)[matched] % 360
    assert np.median(np.abs(turns - 90)) < 3
    assert np.median(other.scale[nearest][matched] / upright.scale[matched]) == pytest.approx(1, abs=0.02)


def distances(one: Features, other: Features) -> npt.NDArray[np.float64]:
    a, b = (found.descriptors.astype(np.float64) for found in (one, other))
    squares: npt.NDArray[np.float64] = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    return squares


@pytest.mark.parametrize("detector", KINDS)
def test_places_have_no_bias(detector: Detector, photograph: GreyImage) -> None:
    """Upside down a photograph has its features at the opposite places: whatever were too far right would be too far left."""
    over = GreyImage(np.ascontiguousarray(photograph.pixels[::-1, ::-1]), photograph.width, photograph.height)
    upright, other = found_by(detector, photograph, 2000), found_by(detector, over, 2000)
    expected = np.array([photograph.width - 1, photograph.height - 1]) - upright.xy
    nearest = distances(upright, other).argmin(axis=1)
    apart = other.xy[nearest] - expected
    matched = np.abs(apart).max(axis=1) < 8
    large = upright.scale > np.quantile(upright.scale, 0.8)
    for some in (matched & large, matched & ~large):
        assert some.sum() > 50
        assert np.abs(np.median(apart[some], axis=0)).max() < 0.02


def test_affine_regions_agree_with_sift(photograph: GreyImage) -> None:
    """Of two libraries: where one finds what the other finds, they say the same of it."""
    sift, affine = found_by("sift", photograph, 2000), found_by("affine", photograph, 3000)
    near = np.abs(sift.xy[:, None] - affine.xy[None]).max(axis=2) < 0.5
    squared = np.where(near, distances(sift, affine), np.inf)
    best = squared.argmin(axis=1)
    same = squared.min(axis=1) < 0.1
    assert same.mean() > 0.15  # many regions are far from round, and look otherwise
    offsets = sift.xy[same] - affine.xy[best[same]]
    assert np.abs(np.median(offsets, axis=0)).max() < 0.02  # no half pixel between them
    turns = (sift.angle[same] - affine.angle[best[same]] + 180) % 360 - 180
    assert abs(np.median(turns)) < 2 and np.median(np.abs(turns)) < 15
    ratios = sift.scale[same] / affine.scale[best[same]]
    assert 0.75 < np.median(ratios) < 1.05  # a long region is larger than the circle within it


def test_orb_is_that_of_opencv(photograph: GreyImage) -> None:
    keypoints, packed = cv2.ORB.create(nfeatures=300, fastThreshold=ORB_THRESHOLD).detectAndCompute(photograph.pixels, None)
    found = found_by("orb", photograph, 300)
    strengths = np.array([point.response for point in keypoints])
    order = np.lexsort(([p.pt[0] for p in keypoints], [p.pt[1] for p in keypoints], -strengths))
    rows = packed[order]
    assert np.array_equal(unpack_bits(rows), found.descriptors)
    assert np.abs(found.xy - [keypoints[n].pt for n in order]).max() < 5
    hamming = [cv2.norm(rows[0], row, cv2.NORM_HAMMING) for row in rows]
    assert np.array_equal(hamming, (found.descriptors != found.descriptors[0]).sum(axis=1))


@pytest.mark.parametrize("detector", ["affine", "orb"])
def test_reduced_photographs_are_told_at_full_size(detector: Detector) -> None:
    path = find_photographs()["astronaut"][0]
    full, half = (extract(path, FeatureOptions(side, 500, detector)) for side in (512, 256))
    assert (half.width, half.height) == (full.width, full.height) == (512, 512)
    assert half.xy.max() > 400


def test_a_detector_works_on_many_threads() -> None:
    paths = [both[0] for both in find_photographs().values()][:4]
    for detector in ("affine", "orb"):
        options = FeatureOptions(200, 100, detector)
        one, several = (list(extract_many(paths, options, threads=threads)) for threads in (1, 3))
        for (path, a), (other, b) in zip(one, several, strict=True):
            assert isinstance(a, Features) and isinstance(b, Features) and path == other
            assert np.array_equal(a.descriptors, b.descriptors) and np.array_equal(a.xy, b.xy)


@pytest.mark.parametrize("detector", KINDS)
@pytest.mark.parametrize("size", [(40, 40), (16, 900), (15, 200), (8, 8)])
def test_nothing_to_see_gives_no_features(detector: Detector, size: tuple[int, int]) -> None:
    grey = np.asarray(Image.new("L", size, 90))
    found = found_by(detector, GreyImage(grey, *size))
    assert len(found) == 0 and found.kind == KINDS[detector]


@pytest.mark.parametrize(
    "use", ["extract import check_detector as use; use('affine')", "colmap import match_pairs as use; use('.', [])"]
)
def test_pillow_is_loaded_before_pycolmap(use: str) -> None:
    """Else Pillow would crash when it writes PNG."""
    code = f"import sys\ntry:\n    from polyvoc.features.{use}\nexcept Exception: pass\nnames = list(sys.modules)\n"
    code += "print(names.index('PIL._imaging') < names.index('pycolmap'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch, photograph: GreyImage) -> None:
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(OptionError, match=r"^affine regions: pycolmap is missing; .*pip install 'polyvoc\[colmap\]'$"):
        found_by("affine", photograph)
    monkeypatch.delattr(cv2, "AKAZE_create", raising=False)
    monkeypatch.delattr(cv2, "xfeatures2d", raising=False)
    with pytest.raises(OptionError, match=r"^OpenCV .* has no AKAZE; pip install opencv-contrib-python-headless, or"):
        found_by("akaze", photograph)


@pytest.mark.skipif(not hasattr(cv2, "AKAZE_create"), reason="this OpenCV has no AKAZE")
def test_akaze_is_486_bits(photograph: GreyImage) -> None:
    assert found_by("akaze", photograph).kind == FeatureKind("akaze", 486, True)
