"""Features are at the right positions, in a fixed order, whatever the detector, file, orientation or threads."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageDraw

from polyvoc.cli.demo_photos import find_photographs
from polyvoc.errors import ImageError, OptionError, UnreachableError
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import (
    _DETECTORS,
    ORB_THRESHOLD,
    RawFeatures,
    check_features,
    detect,
    extract,
    extract_many,
    root_sift,
    unpack_bits,
)
from polyvoc.options import Detector, FeatureOptions
from polyvoc.types import FeatureKind, Features, GreyImage


def scene(width: int = 320, height: int = 240, seed: int = 0) -> Image.Image:
    """Overlapping discs and boxes: many features, at all scales."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (width, height), (90, 120, 150))
    draw = ImageDraw.Draw(image)
    for _ in range(150):
        x, y, size = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(3, 40)
        shape = draw.ellipse if rng.random() < 0.5 else draw.rectangle
        shape((x, y, x + size, y + size * rng.uniform(0.5, 2)), fill=tuple(rng.integers(0, 256, 3).tolist()))
    return image


def encode(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def blob(width: int, height: int, centre: tuple[float, float], sigma: float) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    values = 40 + 180 * np.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / (2 * sigma**2))
    return Image.fromarray(np.rint(values).astype(np.uint8))


def assert_same(a: Features, b: Features) -> None:
    for name in ("xy", "scale", "angle", "descriptors", "width", "height"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / f"{n}.jpg" for n in range(7)]
    for n, path in enumerate(paths):
        path.write_bytes(encode(scene(160, 120, seed=n), "JPEG"))
    paths[3].write_bytes(b"no image")
    return paths


# --- one photograph


def test_shapes_types_and_norms() -> None:
    found = extract(encode(scene()))
    n = len(found)
    assert n > 100
    assert found.xy.shape == (n, 2)
    assert found.scale.shape == found.angle.shape == (n,)
    assert found.descriptors.shape == (n, 128)
    assert {getattr(found, name).dtype for name in ("xy", "scale", "angle", "descriptors")} == {np.dtype(np.float32)}
    assert np.allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-6)
    assert ((found.angle >= 0) & (found.angle <= 360)).all()
    check_features(found, FeatureKind())


def test_fewer_are_the_first_of_more() -> None:
    data = encode(scene())
    many, few = extract(data), extract(data, FeatureOptions(max_features=50))
    assert len(few) == 50
    assert np.array_equal(few.xy, many.xy[:50])
    assert np.allclose(few.descriptors, many.descriptors[:50])


def test_strongest_comes_first() -> None:
    # Five equal blobs, fainter from left to right.
    image = sum((np.asarray(blob(320, 64, (32 + 64 * n, 32), 4)).astype(float) - 40) * (1 - 0.15 * n) for n in range(5))
    found = extract(encode(Image.fromarray(np.uint8(np.asarray(image) + 20))))
    best = [int(np.flatnonzero(np.linalg.norm(found.xy - (32 + 64 * n, 32), axis=1) < 1)[0]) for n in range(5)]
    assert best == sorted(best)


def test_ties_are_cut_and_ordered_by_position() -> None:
    tile = np.asarray(blob(64, 64, (32, 32), 4))
    image = GreyImage(np.tile(tile, (6, 6)), 384, 384)
    found = detect(image, FeatureOptions(max_features=10))
    assert len(found) == 10
    assert_same(found, detect(image, FeatureOptions(max_features=10)))
    assert found.xy[:, 1].max() < 384 / 2  # equal responses: the topmost come first


@pytest.mark.parametrize("sigma", [2.0, 4.0, 8.0])
def test_blob_is_found_to_a_tenth_of_a_pixel(sigma: float) -> None:
    found = extract(encode(blob(256, 200, (120, 97), sigma)), FeatureOptions(max_features=1))
    assert np.abs(found.xy[0] - (120, 97)).max() < 0.1


@pytest.mark.parametrize(("form", "options"), [("PNG", {}), ("JPEG", {"quality": 95})])
@pytest.mark.parametrize("centre", [(300, 250), (2790, 1733), (1501, 1003)])
def test_blob_of_a_large_image_is_found(form: str, options: dict[str, Any], centre: tuple[int, int]) -> None:
    found = extract(encode(blob(3001, 2003, centre, 20), form, **options), FeatureOptions(max_features=1))
    assert (found.width, found.height) == (3001, 2003)
    assert np.abs(found.xy[0] - centre).max() < 0.5
    small = extract(encode(blob(256, 256, (128, 128), 20)), FeatureOptions(max_features=1))
    assert found.scale[0] == pytest.approx(small.scale[0], rel=0.1)


def test_angle_is_clockwise_from_the_x_axis() -> None:
    upright, turned = (
        scene(240, 240),
        scene(240, 240).transpose(Image.Transpose.ROTATE_270),
    )  # clockwise by 90
    a, b = extract(encode(upright)), extract(encode(turned))
    expected = np.stack([239 - a.xy[:, 1], a.xy[:, 0]], axis=1)
    nearest = np.argmin(np.linalg.norm(a.descriptors[:, None] - b.descriptors[None], axis=2), axis=1)
    matched = np.linalg.norm(b.xy[nearest] - expected, axis=1) < 1
    assert matched.mean() > 0.8
    difference = (b.angle[nearest] - a.angle)[matched] % 360
    assert np.median(np.abs(difference - 90)) < 2


# The operation with which a camera that writes this orientation stores an upright scene.
STORED = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}


@pytest.mark.parametrize("orientation", range(2, 9))
def test_every_orientation_gives_the_same_features(orientation: int) -> None:
    image = scene()
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = image.transpose(Image.Transpose(STORED[orientation]))
    assert_same(extract(encode(image)), extract(encode(turned, exif=exif)))


@pytest.mark.parametrize("orientation", range(2, 9))
def test_every_orientation_of_a_reduced_jpeg_agrees_within_a_pixel(orientation: int) -> None:
    image = scene(1003, 701)  # no multiple of 8: the last blocks stick out, on another side in each turn
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = image.transpose(Image.Transpose(STORED[orientation]))
    options = FeatureOptions(long_side=128, max_features=100)
    expected = extract(encode(image, "JPEG", quality=98), options)
    found = extract(encode(turned, "JPEG", quality=98, exif=exif), options)
    assert (found.width, found.height) == (1003, 701)
    apart = np.linalg.norm(expected.xy[:, None] - found.xy[None], axis=2).min(axis=1)
    assert np.median(apart) < 1


def test_depth_and_source_do_not_matter(tmp_path: Path) -> None:
    grey = np.asarray(scene().convert("L"))
    path = tmp_path / "photograph.png"
    path.write_bytes(encode(Image.fromarray(grey)))
    found = extract(path)
    assert_same(found, extract(path.read_bytes()))
    assert_same(found, extract(str(path)))
    assert_same(found, extract(encode(Image.fromarray(grey.astype(np.uint16) * 257))))


@pytest.mark.parametrize("level", [0, 128, 255])
def test_an_image_without_texture_raises(level: int) -> None:
    with pytest.raises(ImageError, match=r"image of \d+ bytes: too plain to recognise \(0 features found\)"):
        extract(encode(Image.new("L", (200, 200), level)))


def test_errors_of_opencv_are_image_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    full = cv2.error("Failed to allocate 99 bytes")
    full.code = cv2.Error.StsNoMem
    errors = [(cv2.error("weird"), ImageError, "SIFT fails on it"), (MemoryError(), UnreachableError, "not enough memory")]
    for error, kind, words in [*errors, (full, UnreachableError, "not enough memory")]:

        def fail(*_: object, error: Exception = error) -> RawFeatures:
            raise error

        monkeypatch.setitem(_DETECTORS, "sift", fail)
        with pytest.raises(ImageError, match=words) as caught:
            extract(encode(scene()))
        assert type(caught.value) is kind  # only errors of the image itself are permanent


# --- many photographs


def test_many_are_as_one_by_one_in_order(files: list[Path]) -> None:
    one, several = list(extract_many(files, threads=1)), list(extract_many(files, threads=3))
    assert [path for path, _ in one] == [path for path, _ in several] == files
    for (path, a), (_, b) in zip(one, several, strict=True):
        if isinstance(a, ImageError):
            assert str(a) == str(b)
        else:
            assert isinstance(b, Features)
            assert_same(a, b)
            assert_same(a, extract(path))


def test_a_broken_file_is_reported_among_the_others(files: list[Path]) -> None:
    results = dict(extract_many([*files, files[0].parent / "missing.jpg"]))
    errors = {path.name: str(result) for path, result in results.items() if isinstance(result, ImageError)}
    assert set(errors) == {"3.jpg", "missing.jpg"}
    assert "3.jpg: not an image" in errors["3.jpg"]


def test_no_sources() -> None:
    assert list(extract_many([])) == []


def test_look_ahead_is_bounded(files: list[Path]) -> None:
    taken = 0

    def endless() -> Iterator[Path]:
        nonlocal taken
        while True:
            taken += 1
            yield files[0]

    results = extract_many(endless(), threads=2)
    for n in range(1, 6):
        next(results)
        assert taken <= n + 4
    results.close()
    assert taken <= 9


def test_closing_early_ends_the_threads_and_restores_opencv(files: list[Path]) -> None:
    before, alive = cv2.getNumThreads(), threading.active_count()
    first, second = extract_many(files, threads=2), extract_many(files, threads=2)
    next(first), next(second)
    assert cv2.getNumThreads() == 1
    first.close()
    assert cv2.getNumThreads() == 1  # the second still runs
    second.close()
    assert cv2.getNumThreads() == before
    assert threading.active_count() == alive


def test_failing_sources_restore_opencv() -> None:
    def failing() -> Iterator[Path]:
        raise RuntimeError("the disk is gone")
        yield

    before = cv2.getNumThreads()
    with pytest.raises(RuntimeError, match="the disk is gone"):
        list(extract_many(failing()))
    assert cv2.getNumThreads() == before


def test_an_invalid_number_of_threads_raises() -> None:
    with pytest.raises(OptionError, match="threads=0"):
        extract_many([], threads=0)


# --- descriptors


def test_root_sift_by_hand() -> None:
    given_ = np.array([[9, 16, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], np.uint8)
    before = given_.copy()
    assert np.allclose(root_sift(given_), [[0.6, 0.8, 0, 0], [0, 0, 0, 0], [0.5, 0.5, 0.5, 0.5]])
    assert np.array_equal(given_, before)


@given(hnp.arrays(np.float32, (5, 16), elements=st.floats(0, 512, width=32)))
def test_root_sift_has_unit_norm_and_ignores_scale(values: np.ndarray) -> None:
    rooted = root_sift(values)
    some = values.sum(axis=1) > 1e-30
    assert rooted.dtype == np.float32
    assert np.allclose(np.linalg.norm(rooted[some], axis=1), 1, atol=1e-6)
    assert np.allclose(root_sift(values.astype(np.float64) * 7), rooted, atol=1e-6)


def test_root_sift_of_no_features() -> None:
    assert root_sift(np.empty((0, 128))).shape == (0, 128)


@pytest.mark.parametrize("bad", [[[1, -1]], [[1, np.nan]], [[1, np.inf]], [1, 2], [["a", "b"]]])
def test_root_sift_of_other_values_raises(bad: list[Any]) -> None:
    with pytest.raises(OptionError, match="descriptors: "):
        root_sift(bad)


def made(**changes: Any) -> Features:
    values: dict[str, Any] = {
        "xy": np.ones((3, 2), np.float32), "scale": np.ones(3, np.float32), "angle": np.zeros(3, np.float32),
        "descriptors": np.eye(3, 8, dtype=np.float32), "width": 10, "height": 10,
    }  # fmt: skip
    return Features(**(values | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"descriptors": np.eye(3, 9, dtype=np.float32)}, r"this index holds sift \(8 numbers\), not sift \(9 numbers\)"),
        (
            {"descriptors": np.full((3, 8), np.nan, np.float32)},
            "descriptors holds values that are not finite",
        ),
        ({"xy": np.full((3, 2), np.inf, np.float32)}, "xy holds"),
        ({"scale": np.full(3, -1, np.float32)}, "scales are negative"),
        ({"width": 0}, "0 x 10 pixels"),
    ],
)
def test_features_of_others_are_checked(changes: dict[str, Any], message: str) -> None:
    check_features(made(), FeatureKind(dimension=8))
    with pytest.raises(OptionError, match=message):
        check_features(made(**changes), FeatureKind(dimension=8))


# --- detectors


KINDS: dict[Detector, FeatureKind] = {"sift": FeatureKind(), "affine": FeatureKind(), "orb": FeatureKind("orb", 256, True)}


@pytest.fixture(scope="module")
def coffee() -> GreyImage:
    pixels = read_grey(find_photographs()["coffee"][0], 480).pixels
    return GreyImage(pixels, pixels.shape[1], pixels.shape[0])


def detected(detector: Detector, image: GreyImage, count: int = 400) -> Features:
    return detect(image, FeatureOptions(max_features=count, detector=detector))


def turned(image: GreyImage) -> GreyImage:
    """Return the image turned clockwise by 90 degrees."""
    return GreyImage(np.ascontiguousarray(np.rot90(image.pixels, -1)), image.height, image.width)


@pytest.mark.parametrize("detector", KINDS)
def test_features_of_a_detector_are_of_its_kind(detector: Detector, coffee: GreyImage) -> None:
    found = detected(detector, coffee)
    assert found.kind == KINDS[detector] == FeatureOptions(detector=detector).kind
    assert len(found) == 400
    assert (found.scale > 0).all() and ((found.angle >= 0) & (found.angle <= 360)).all()
    inside = (found.xy >= -0.5) & (found.xy <= (coffee.width - 0.5, coffee.height - 0.5))
    assert inside.all()
    again = detected(detector, coffee)
    assert all(np.array_equal(getattr(found, name), getattr(again, name)) for name in ("xy", "scale", "angle", "descriptors"))


@pytest.mark.parametrize("detector", KINDS)
def test_angles_and_positions_turn_with_the_image(detector: Detector, coffee: GreyImage) -> None:
    upright, other = detected(detector, coffee), detected(detector, turned(coffee))
    expected = np.stack([coffee.height - 1 - upright.xy[:, 1], upright.xy[:, 0]], axis=1)
    nearest = distances(upright, other).argmin(axis=1)
    matched = np.linalg.norm(other.xy[nearest] - expected, axis=1) < 2
    assert matched.mean() > 0.4  # ORB takes its bits around whole pixels
    assert np.median(np.abs(other.xy[nearest] - expected)[matched]) < 0.6
    turns = (other.angle[nearest] - upright.angle)[matched] % 360
    assert np.median(np.abs(turns - 90)) < 3
    assert np.median(other.scale[nearest][matched] / upright.scale[matched]) == pytest.approx(1, abs=0.02)


def distances(one: Features, other: Features) -> npt.NDArray[np.float64]:
    a, b = (found.descriptors.astype(np.float64) for found in (one, other))
    squares: npt.NDArray[np.float64] = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    return squares


@pytest.mark.parametrize("detector", KINDS)
def test_positions_have_no_bias(detector: Detector, coffee: GreyImage) -> None:
    """Upside down an image has its features at the opposite positions: an error to the right becomes one to the left."""
    over = GreyImage(np.ascontiguousarray(coffee.pixels[::-1, ::-1]), coffee.width, coffee.height)
    upright, other = detected(detector, coffee, 2000), detected(detector, over, 2000)
    expected = np.array([coffee.width - 1, coffee.height - 1]) - upright.xy
    nearest = distances(upright, other).argmin(axis=1)
    apart = other.xy[nearest] - expected
    matched = np.abs(apart).max(axis=1) < 8
    large = upright.scale > np.quantile(upright.scale, 0.8)
    for some in (matched & large, matched & ~large):
        assert some.sum() > 50
        assert np.abs(np.median(apart[some], axis=0)).max() < 0.02


def test_affine_regions_agree_with_sift(coffee: GreyImage) -> None:
    """Features found by both libraries are the same."""
    sift, affine = detected("sift", coffee, 2000), detected("affine", coffee, 3000)
    near = np.abs(sift.xy[:, None] - affine.xy[None]).max(axis=2) < 0.5
    squared = np.where(near, distances(sift, affine), np.inf)
    best = squared.argmin(axis=1)
    same = squared.min(axis=1) < 0.1
    assert same.mean() > 0.15  # many regions are far from round
    offsets = sift.xy[same] - affine.xy[best[same]]
    assert np.abs(np.median(offsets, axis=0)).max() < 0.02  # no half pixel between them
    turns = (sift.angle[same] - affine.angle[best[same]] + 180) % 360 - 180
    assert abs(np.median(turns)) < 2 and np.median(np.abs(turns)) < 15
    ratios = sift.scale[same] / affine.scale[best[same]]
    assert 0.75 < np.median(ratios) < 1.05  # a long region is larger than the circle in it


def test_orb_is_that_of_opencv(coffee: GreyImage) -> None:
    keypoints, packed = cv2.ORB.create(nfeatures=300, fastThreshold=ORB_THRESHOLD).detectAndCompute(coffee.pixels, None)
    found = detected("orb", coffee, 300)
    strengths = np.array([point.response for point in keypoints])
    order = np.lexsort(([p.pt[0] for p in keypoints], [p.pt[1] for p in keypoints], -strengths))
    rows = packed[order]
    assert np.array_equal(unpack_bits(rows), found.descriptors)
    assert np.abs(found.xy - [keypoints[n].pt for n in order]).max() < 5
    hamming = [cv2.norm(rows[0], row, cv2.NORM_HAMMING) for row in rows]
    assert np.array_equal(hamming, (found.descriptors != found.descriptors[0]).sum(axis=1))


@pytest.mark.parametrize("detector", ["affine", "orb"])
def test_positions_of_reduced_images_are_at_full_size(detector: Detector) -> None:
    path = find_photographs()["astronaut"][0]
    full, half = (extract(path, FeatureOptions(side, 500, detector)) for side in (512, 256))
    assert (half.width, half.height) == (full.width, full.height) == (512, 512)
    assert half.xy.max() > 400


def test_detectors_on_many_threads() -> None:
    paths = [both[0] for both in find_photographs().values()][:4]
    for detector in ("affine", "orb"):
        options = FeatureOptions(200, 100, detector)
        one, several = (list(extract_many(paths, options, threads=threads)) for threads in (1, 3))
        for (path, a), (other, b) in zip(one, several, strict=True):
            assert isinstance(a, Features) and isinstance(b, Features) and path == other
            assert np.array_equal(a.descriptors, b.descriptors) and np.array_equal(a.xy, b.xy)


@pytest.mark.parametrize("detector", KINDS)
@pytest.mark.parametrize("size", [(40, 40), (16, 900), (15, 200), (8, 8)])
def test_a_plain_image_has_no_features(detector: Detector, size: tuple[int, int]) -> None:
    grey = np.asarray(Image.new("L", size, 90))
    found = detected(detector, GreyImage(grey, *size))
    assert len(found) == 0 and found.kind == KINDS[detector]


@pytest.mark.parametrize(
    "use",
    [
        "extract import check_detector as use, FeatureOptions; use(FeatureOptions(detector='affine'))",
        "colmap import match_pairs as use; use('.', [])",
    ],
)
def test_pillow_is_loaded_before_pycolmap(use: str) -> None:
    """Else Pillow would crash when it writes PNG."""
    code = f"import sys\ntry:\n    from polyvoc.features.{use}\nexcept Exception: pass\nnames = list(sys.modules)\n"
    code += "print(names.index('PIL._imaging') < names.index('pycolmap'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"


def test_a_missing_library_is_one_line(monkeypatch: pytest.MonkeyPatch, coffee: GreyImage) -> None:
    monkeypatch.setitem(sys.modules, "pycolmap", None)
    with pytest.raises(OptionError, match=r"^affine regions: pycolmap is missing; .*pip install 'polyvoc\[colmap\]'$"):
        detected("affine", coffee)
    monkeypatch.delattr(cv2, "AKAZE_create", raising=False)
    monkeypatch.delattr(cv2, "xfeatures2d", raising=False)
    with pytest.raises(OptionError, match=r"^OpenCV .* has no AKAZE; pip install opencv-contrib-python-headless, or"):
        detected("akaze", coffee)


@pytest.mark.skipif(not hasattr(cv2, "AKAZE_create"), reason="this OpenCV has no AKAZE")
def test_akaze_is_486_bits(coffee: GreyImage) -> None:
    assert detected("akaze", coffee).kind == FeatureKind("akaze", 486, True)


def test_sift_is_whole_numbers_and_gives_root_sift() -> None:
    data = encode(scene())
    plain, root = extract(data, root=False), extract(data)
    assert np.array_equal(plain.descriptors, plain.descriptors.astype(np.uint8))  # a byte each
    assert np.array_equal(root_sift(plain.descriptors.astype(np.uint8)), root.descriptors)
    assert np.array_equal(plain.xy, root.xy) and np.array_equal(plain.angle, root.angle)


def test_sift_of_many(tmp_path: Path) -> None:
    path = tmp_path / "scene.png"
    path.write_bytes(encode(scene()))
    ((_, plain),) = extract_many([path], root=False)
    assert isinstance(plain, Features)
    assert np.array_equal(plain.descriptors, extract(path, root=False).descriptors) and plain.descriptors.max() > 1
