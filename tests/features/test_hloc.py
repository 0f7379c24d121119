"""HDF5 files of hloc: read as hloc writes them, read back as written here; an error is one line."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import samples
from feature_samples import HLOC_FILE, add_hloc_image
from polyvoc.errors import ExchangeError, OptionError
from polyvoc.features.hloc import HlocFeatures, write_features
from polyvoc.types import Features


def read(path: Path, kind: str | None = None, binary: bool = False) -> dict[str, Features | ExchangeError]:
    with closing(HlocFeatures(path, kind, binary)) as found:
        return dict(found.read())


def one(path: Path, kind: str | None = None, binary: bool = False) -> Features:
    (found,) = read(path, kind, binary).values()
    assert isinstance(found, Features), found
    return found


def equal(a: Features, b: Features) -> bool:
    arrays = all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("xy", "scale", "angle", "descriptors"))
    return arrays and (a.width, a.height, a.kind) == (b.width, b.height, b.kind)


def test_files_of_hloc_are_read(tmp_path: Path) -> None:
    path = add_hloc_image(tmp_path / HLOC_FILE)
    with h5py.File(path) as file:
        stored = {part: values[()] for part, values in file["db/1.jpg"].items()}
    found, order = one(path), np.argsort(-stored["scores"], kind="stable")  # the strongest first
    assert np.array_equal(found.xy, stored["keypoints"][order].astype(np.float32))
    assert np.array_equal(found.descriptors, stored["descriptors"].T[order].astype(np.float32))
    assert (found.width, found.height, str(found.kind)) == (640, 480, "superpoint (256 numbers)")
    assert (found.scale.tolist(), found.angle.tolist()) == ([1] * 7, [0] * 7)


def test_groups_are_nested_like_folders(tmp_path: Path) -> None:
    for name in ("a.jpg", "query/day/b.jpg", "query/c.jpg"):
        add_hloc_image(tmp_path / HLOC_FILE, name)
    assert sorted(read(tmp_path / HLOC_FILE)) == ["a.jpg", "query/c.jpg", "query/day/b.jpg"]


@pytest.mark.parametrize("seed", range(3))
def test_written_files_are_read_back(tmp_path: Path, seed: int) -> None:
    images = {name: found for name, found in samples.collection(9, seed).items() if len(found)}
    assert write_features(tmp_path / "feats-sift.h5", images.items()) == len(images)
    again = read(tmp_path / "feats-sift.h5")
    assert sorted(again) == sorted(images)
    assert all(isinstance(found, Features) and equal(found, images[name]) for name, found in again.items())


def test_bits_are_read_with_binary(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).random((7, 256)) < 0.5
    packed = np.packbits(bits, axis=1, bitorder="little").T
    path = add_hloc_image(tmp_path / "feats-orb.h5", descriptors=packed, scores=None)
    assert np.array_equal(one(path, binary=True).descriptors, bits)
    assert one(path, binary=True).kind.binary and not one(path).kind.binary
    write_features(tmp_path / "again.h5", [("1", one(path, binary=True))])  # as bool: the file shows that they are bits
    assert np.array_equal(one(tmp_path / "again.h5", "orb").descriptors, bits)
    with pytest.raises(AssertionError, match="not bytes of bits"):
        one(add_hloc_image(tmp_path / HLOC_FILE), binary=True)


def test_the_file_name_holds_the_kind(tmp_path: Path) -> None:
    others = {"feats-disk.h5": "disk", "feats-aliked-n16.hdf5": "aliked", "Feats-XFeat-n5000.h5": "xfeat"}
    for name, kind in {HLOC_FILE: "superpoint", **others}.items():
        assert one(add_hloc_image(tmp_path / name)).name == kind
        assert one(tmp_path / name, "mine").name == "mine"
    with pytest.raises(ExchangeError, match="--feature-kind superpoint"):
        HlocFeatures(add_hloc_image(tmp_path / "features.h5"))


def test_an_unknown_size_is_that_of_the_keypoints(tmp_path: Path) -> None:
    places = np.array([[3.0, 4.0], [10.2, 0.0]], np.float32)
    found = one(add_hloc_image(tmp_path / HLOC_FILE, n=2, keypoints=places, image_size=None, scores=None))
    assert (found.width, found.height) == (12, 5)


@pytest.mark.parametrize(
    ("arrays", "wrong"),
    [
        ({"descriptors": None}, "no descriptors"),
        ({"descriptors": np.zeros((7, 256))}, "should be"),
        ({"keypoints": np.zeros((7, 3))}, "should be"),
        ({"keypoints": np.zeros((0, 2)), "descriptors": np.zeros((256, 0)), "scores": None}, "no features"),
        ({"descriptors": np.zeros((0, 7))}, "dimension=0"),
        ({"scores": np.zeros(6)}, "scores"),
        ({"scales": np.zeros(6)}, "scales"),
        ({"image_size": np.array([0, 480])}, "not a width and height"),
        ({"image_size": np.array([np.nan, 480])}, "not a width and height"),
        ({"descriptors": "text"}, "not numbers"),
        ({"keypoints": np.float32(3)}, "not those of an image"),
    ],
)
def test_a_wrong_image_is_reported_among_the_others(tmp_path: Path, arrays: dict[str, object], wrong: str) -> None:
    path = add_hloc_image(tmp_path / HLOC_FILE, "odd.jpg", **arrays)
    add_hloc_image(path, "good.jpg")
    found = read(path)
    assert isinstance(found["good.jpg"], Features) and isinstance(found["odd.jpg"], ExchangeError)
    assert wrong in str(found["odd.jpg"]) and "odd.jpg" in str(found["odd.jpg"])


def test_arrays_in_other_files_are_not_read(tmp_path: Path) -> None:
    other = add_hloc_image(tmp_path / "feats-other.h5", "x.jpg")
    with h5py.File(add_hloc_image(tmp_path / HLOC_FILE, descriptors=None), "a") as file:
        file["db/1.jpg/descriptors"] = h5py.ExternalLink(str(other), "/x.jpg/descriptors")
        file["linked.jpg"] = h5py.ExternalLink(str(other), "/x.jpg")
    (wrong,) = read(tmp_path / HLOC_FILE).values()
    assert isinstance(wrong, ExchangeError) and "no descriptors" in str(wrong)


def test_other_files_raise(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "global-feats-netvlad.h5", "w") as file:
        file["db/1.jpg/global_descriptor"] = np.zeros(4096)
    (tmp_path / "text.h5").write_text("no HDF5")
    lines = {"global-feats-netvlad": "no local features", "text": "cannot be read as HDF5", "absent": "does not exist"}
    for name, line in lines.items():
        with pytest.raises(ExchangeError, match=line):
            HlocFeatures(tmp_path / f"{name}.h5")


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0, 1), flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=30))
def test_damage_anywhere_is_one_line(tmp_path: Path, cut: float, flips: list[tuple[float, int]]) -> None:
    sound, path = tmp_path / "feats-sound.h5", tmp_path / HLOC_FILE
    if not sound.exists():
        for name in ("a/1.jpg", "a/2.jpg", "b.jpg"):
            add_hloc_image(sound, name)
    stored = bytearray(sound.read_bytes())
    for place, value in flips:
        stored[int(place * len(stored))] = value
    path.write_bytes(bytes(stored[: int(len(stored) * (1 if flips else cut))]))
    try:
        for found in read(path).values():
            assert isinstance(found, Features) or len(str(found).splitlines()) == 1
    except ExchangeError as error:
        assert len(str(error).splitlines()) == 1


def test_a_name_that_occurs_twice_raises(tmp_path: Path) -> None:
    found = samples.features(1)
    with pytest.raises(OptionError, match="cannot be the name"):
        write_features(tmp_path / HLOC_FILE, [("a", found), ("a", found)])
    assert list(tmp_path.iterdir()) == []


def test_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(OptionError, match=r"pip install 'polyvoc\[hloc\]'"):
        HlocFeatures(tmp_path / HLOC_FILE)
