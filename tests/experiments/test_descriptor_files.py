"""Files of descriptors come back bit by bit; damaged, foreign and hostile ones are one line that says what to do."""

from __future__ import annotations

import errno
import os
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyvoc.errors import DatasetError, OptionError
from polyvoc.experiments.datasets.descriptor_files import (
    Described,
    Hesaff,
    SiftGeo,
    read_hesaff,
    read_hesaff_features,
    read_siftgeo,
    read_siftgeo_features,
    read_vectors,
    write_hesaff,
    write_siftgeo,
    write_vectors,
)

quietly = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def siftgeo(n: int = 5, dimension: int = 128, seed: int = 0) -> SiftGeo:
    rng = np.random.default_rng(seed)
    return SiftGeo(
        xy=rng.uniform(-5, 1000, (n, 2)).astype(np.float32),
        scale=rng.gamma(2, 5, n).astype(np.float32),
        angle=rng.uniform(-9, 9, n).astype(np.float32),
        affine=rng.normal(size=(n, 4)).astype(np.float32),
        cornerness=rng.uniform(0, 1e6, n).astype(np.float32),
        descriptors=rng.integers(0, 256, (n, dimension)).astype(np.uint8),
    )


def hesaff(n: int = 5, dimension: int = 128, seed: int = 0) -> Hesaff:
    rng = np.random.default_rng(seed)
    a, c = rng.uniform(1e-4, 1e-1, (2, n))
    ellipse = np.column_stack([a, rng.uniform(-0.9, 0.9, n) * np.sqrt(a * c), c]).astype(np.float32)
    features = siftgeo(n, dimension, seed)
    return Hesaff(features.xy, ellipse, features.descriptors)


def same(one: object, other: object) -> bool:
    """Are two records of arrays equal bit by bit?"""
    pairs = [(getattr(one, f.name), getattr(other, f.name)) for f in fields(one)]  # type: ignore[arg-type]
    return all(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes() for a, b in pairs)


def line_of(call: Callable[..., object], *arguments: object) -> str:
    """The one line that a call raises about a file."""
    with pytest.raises(DatasetError) as caught:
        call(*arguments)
    line = str(caught.value)
    assert "\n" not in line and "; " in line and len(line) < 600 and caught.value.__cause__ is None
    return line


# --- .siftgeo ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "dimension"), [(0, 128), (1, 128), (70_000, 2), (7, 1), (3, 200)])
def test_siftgeo_comes_back(tmp_path: Path, n: int, dimension: int) -> None:
    written = siftgeo(n, dimension)
    write_siftgeo(tmp_path / "a.siftgeo", written)
    read = read_siftgeo(str(tmp_path / "a.siftgeo"))
    assert same(read, written) and len(read) == n
    assert (tmp_path / "a.siftgeo").stat().st_size == n * (40 + dimension)
    assert [file.name for file in tmp_path.iterdir()] == ["a.siftgeo"]


def test_siftgeo_is_laid_out_as_published(tmp_path: Path) -> None:
    """Nine floats, the dimension, the bytes: written here by struct, as INRIA's C code does."""
    path = tmp_path / "a.siftgeo"
    path.write_bytes(struct.pack("<9fi128B", 1.5, 2.5, 3, 0.5, 11, 12, 21, 22, 99, 128, *range(128)))
    read = read_siftgeo(path)
    assert read.xy.tolist() == [[1.5, 2.5]] and read.scale.tolist() == [3] and read.angle.tolist() == [0.5]
    assert read.affine.tolist() == [[11, 12, 21, 22]] and read.cornerness.tolist() == [99]
    assert read.descriptors.tolist() == [list(range(128))]
    assert all(type(getattr(read, f.name)) is np.ndarray and getattr(read, f.name).flags.owndata for f in fields(read))


def test_special_floats_keep_their_bits(tmp_path: Path) -> None:
    numbers = np.array([-0.0, 1e-45, 3.4e38, np.nextafter(np.float32(1), np.float32(2))], np.float32)
    features = siftgeo(2)
    written = SiftGeo(features.xy, features.scale, numbers[:2], np.stack([numbers, numbers]), numbers[2:], features.descriptors)
    write_siftgeo(tmp_path / "a.siftgeo", written)
    assert same(read_siftgeo(tmp_path / "a.siftgeo"), written)


def test_siftgeo_in_shared_units(tmp_path: Path) -> None:
    angles = np.array([0, np.pi / 2, -np.pi / 2, 5 * np.pi, -1e-9], np.float32)
    features = siftgeo()
    features = SiftGeo(features.xy, features.scale, angles, features.affine, features.cornerness, features.descriptors)
    write_siftgeo(tmp_path / "a.siftgeo", features)
    read = read_siftgeo_features(tmp_path / "a.siftgeo")
    assert read.angle == pytest.approx([0, 90, 270, 180, 0], abs=1e-4) and (read.angle < 360).all()
    assert np.array_equal(read.scale, features.scale) and np.array_equal(read.xy, features.xy)
    assert np.array_equal(read.descriptors, features.descriptors) and read.descriptors.dtype == np.uint8
    again = SiftGeo.of(read)
    assert again.affine.tolist() == [[1, 0, 0, 1]] * 5 and not again.cornerness.any()
    assert again.described().angle == pytest.approx(read.angle, abs=1e-3)


def test_an_empty_siftgeo_is_an_image_without_features(tmp_path: Path) -> None:
    (tmp_path / "a.siftgeo").touch()
    read = read_siftgeo_features(tmp_path / "a.siftgeo")
    assert len(read) == 0 and read.descriptors.shape == (0, 128) and read.xy.shape == (0, 2)


def patched(path: Path, at: int, form: str, *values: float) -> None:
    data = bytearray(path.read_bytes())
    struct.pack_into("<" + form, data, at, *values)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "form", "value", "message"),
    [
        (36, "i", -1, r"first record says dimension -1 \(byte 36\)"),
        (36, "i", 0, r"first record says dimension 0 \(byte 36\)"),
        (36, "i", 2**31 - 1, r"first record says dimension 2147483647 \(byte 36\)"),
        (36, "i", 1 << 20, "one record of dimension 1048576 takes 1048616 bytes, the file has 840"),
        (36 + 2 * 168, "i", 64, r"record 3 says dimension 64 \(byte 372\), the first says 128"),
        (36 + 4 * 168, "i", 2**31 - 1, r"record 5 says dimension 2147483647 \(byte 708\)"),
        (4 + 168, "f", np.nan, r"xy of record 2 \(byte 172\) is nan"),
        (8, "f", np.inf, r"scale of record 1 \(byte 8\) is inf"),
        (8 + 168, "f", -1, r"scale of record 2 \(byte 176\) is -1"),
        (12 + 3 * 168, "f", -np.inf, r"angle of record 4 \(byte 516\) is -inf"),
        (28, "f", np.nan, r"affine of record 1 \(byte 28\) is nan"),
        (32, "f", np.nan, r"cornerness of record 1 \(byte 32\) is nan"),
    ],
)
def test_a_damaged_siftgeo_is_named(tmp_path: Path, at: int, form: str, value: float, message: str) -> None:
    path = tmp_path / "a.siftgeo"
    write_siftgeo(path, siftgeo())
    patched(path, at, form, value)
    with pytest.raises(DatasetError, match=message):
        read_siftgeo(path)
    assert line_of(read_siftgeo, path).startswith(f"{path}: ")


@pytest.mark.parametrize("size", [1, 39, 40, 167, 169, 5 * 168 - 1])
def test_a_cut_siftgeo_is_named(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.siftgeo"
    write_siftgeo(path, siftgeo())
    path.write_bytes(path.read_bytes()[:size])
    assert any(word in line_of(read_siftgeo, path) for word in ("too few", "takes 168 bytes", "is cut"))


@quietly
@given(data=st.binary(max_size=400))
def test_any_bytes_are_features_or_one_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "a.siftgeo"
    path.write_bytes(data)
    try:
        assert len(read_siftgeo(path)) == 0 or len(data) > 40
    except DatasetError as error:
        assert str(error).startswith(f"{path}: ") and "\n" not in str(error)


# --- .fvecs, .bvecs, .ivecs -------------------------------------------------------------------------------------

VECTORS: dict[str, Any] = {".fvecs": np.float32, ".bvecs": np.uint8, ".ivecs": np.int32}


@pytest.mark.parametrize("suffix", VECTORS)
@pytest.mark.parametrize(("n", "dimension"), [(1, 1), (3, 5), (70_000, 2), (2, 960)])
def test_vectors_come_back(tmp_path: Path, suffix: str, n: int, dimension: int) -> None:
    rng = np.random.default_rng(n)
    low = -300 if suffix != ".bvecs" else 0
    vectors = (rng.integers(low, 256, (n, dimension)) / (7 if suffix == ".fvecs" else 1)).astype(VECTORS[suffix])
    path = tmp_path / f"a{suffix}"
    write_vectors(path, vectors)
    read = read_vectors(path)
    assert read.dtype == VECTORS[suffix] and np.array_equal(read, vectors)
    assert read.flags.c_contiguous and read.flags.writeable and type(read) is np.ndarray
    assert path.stat().st_size == n * (4 + dimension * read.itemsize)
    assert np.array_equal(read_vectors(path, limit=2), vectors[:2])
    assert np.array_equal(read_vectors(path, limit=10**12), vectors)


def test_vectors_are_laid_out_as_published(tmp_path: Path) -> None:
    (tmp_path / "a.FVECS").write_bytes(struct.pack("<i2fi2f", 2, 0.5, -1, 2, 3, 4))
    (tmp_path / "a.bvecs").write_bytes(struct.pack("<i3B", 3, 0, 128, 255))
    (tmp_path / "a.ivecs").write_bytes(struct.pack("<i2i", 2, -(2**31), 7))
    assert read_vectors(tmp_path / "a.FVECS").tolist() == [[0.5, -1], [3, 4]]
    assert read_vectors(tmp_path / "a.bvecs").tolist() == [[0, 128, 255]]
    assert read_vectors(tmp_path / "a.ivecs").tolist() == [[-(2**31), 7]]


def test_other_numbers_are_written_if_they_fit(tmp_path: Path) -> None:
    strided = np.arange(24, dtype=np.int64).reshape(4, 6)[::2, ::3]
    for suffix in VECTORS:
        write_vectors(tmp_path / f"a{suffix}", strided)
        assert np.array_equal(read_vectors(tmp_path / f"a{suffix}"), strided)
    write_vectors(tmp_path / "a.fvecs", [[0.1, 2.0]])
    assert np.array_equal(read_vectors(tmp_path / "a.fvecs"), np.float32([[0.1, 2.0]]))


@pytest.mark.parametrize(
    ("suffix", "vectors"),
    [
        (".bvecs", [[256]]),
        (".bvecs", [[-1]]),
        (".bvecs", [[0.5]]),
        (".ivecs", [[2**31]]),
        (".ivecs", [[1.0]]),
        (".fvecs", [[np.nan]]),
        (".fvecs", [[1e39]]),
        (".fvecs", [["1"]]),
        (".fvecs", [[True]]),
        (".fvecs", [1, 2]),
        (".fvecs", np.empty((0, 3))),
        (".fvecs", np.empty((3, 0))),
    ],
)
def test_vectors_that_do_not_fit_are_not_written(tmp_path: Path, suffix: str, vectors: Any) -> None:
    with pytest.raises(OptionError, match="vectors"):
        write_vectors(tmp_path / f"a{suffix}", vectors)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"\x01\x00", "2 bytes are too few"),
        (struct.pack("<i", 0), "dimension 0"),
        (struct.pack("<i", -7), "dimension -7"),
        (struct.pack("<i", 2**31 - 1), "dimension 2147483647"),
        (struct.pack("<i", 4), "takes 20 bytes, the file has 4"),
        (struct.pack("<ififif", 1, 0, 1, 0, 2, 0), r"record 3 says dimension 2 \(byte 16\), the first says 1"),
        (struct.pack("<ifif", 1, 0, 1, 0)[:-1], r"record 2 \(byte 8\) is cut: 7 of its 8 bytes"),
        (struct.pack("<ifif", 1, 0, 1, np.nan), r"vector 2 \(byte 8\) holds a number that is not finite"),
        (struct.pack("<ifif", 1, -np.inf, 1, 0), r"vector 1 \(byte 0\)"),
    ],
)
def test_damaged_vectors_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.fvecs"
    path.write_bytes(data)
    with pytest.raises(DatasetError, match=message):
        read_vectors(path)
    assert line_of(read_vectors, path).startswith(f"{path}: ")


def test_a_limit_stops_before_later_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.ivecs"
    path.write_bytes(struct.pack("<iiii", 1, 5, 2, 6))
    assert read_vectors(path, limit=1).tolist() == [[5]]
    with pytest.raises(OptionError, match="limit=0"):
        read_vectors(path, limit=0)


def test_an_unknown_suffix_names_the_known_ones(tmp_path: Path) -> None:
    for call in (
        lambda: read_vectors(tmp_path / "a.npy"),
        lambda: write_vectors(tmp_path / "a", [[1]]),
    ):
        assert ".fvecs, .bvecs, .ivecs" in line_of(call)


@pytest.mark.parametrize("dimension", [1 << 20, 2**31 - 1])
def test_a_header_takes_no_memory(tmp_path: Path, dimension: int) -> None:
    """A file with holes claims records of megabytes or gigabytes; nothing of that size is made to find out."""
    path = tmp_path / "a.siftgeo"
    path.write_bytes(bytes(36) + struct.pack("<i", dimension))
    os.truncate(path, 64 << 20)
    tracemalloc.start()
    try:
        line_of(read_siftgeo, path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()


# --- Perdoch's hesaff -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "dimension"), [(0, 128), (1, 128), (40, 128), (3, 2)])
def test_hesaff_comes_back(tmp_path: Path, n: int, dimension: int) -> None:
    written = hesaff(n, dimension)
    write_hesaff(tmp_path / "a.hesaff.sift", written)
    assert same(read_hesaff(tmp_path / "a.hesaff.sift"), written)


def test_hesaff_in_shared_units(tmp_path: Path) -> None:
    """A circle of radius 10; an ellipse of half axes 20 and 5, turned by 30 degrees, has the same area."""
    turn = np.array([[np.cos(np.pi / 6), -np.sin(np.pi / 6)], [np.sin(np.pi / 6), np.cos(np.pi / 6)]])
    (a, b), (_, c) = turn @ np.diag([1 / 20**2, 1 / 5**2]) @ turn.T
    path = tmp_path / "a.hesaff.sift"
    path.write_text(f"2\n2\n7 8.5 0.01 0 0.01 0 255\n1e1 -2 {a} {b} {c} 3 4\n", encoding="ascii")
    read = read_hesaff_features(path)
    assert read.scale == pytest.approx([20, 20], rel=1e-5) and read.angle.tolist() == [0, 0]
    assert read.xy.tolist() == [[7, 8.5], [10, -2]] and read.descriptors.tolist() == [[0, 255], [3, 4]]


def test_windows_lines_and_no_last_newline_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.hesaff.sift"
    path.write_bytes(b"1\r\n2\r\n1 2 1 0 1 9\r\n3\t4  1 0 1 8")
    assert read_hesaff(path).descriptors.tolist() == [[9], [8]]
    path.write_bytes(b"128\n0\n\n")
    assert read_hesaff(path).descriptors.shape == (0, 128)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "line 1 should be the dimension, not ''"),
        (b"1.0\n1\n", "line 1 should be the dimension, not '1.0'"),
        (b"-2\n1\n", "line 1 should be the dimension, not '-2'"),
        (b"0\n1\n1 2 1 0 1\n", "line 1 should be the dimension, not '0'"),
        (b"2147483647\n1\n1 2 1 0 1\n", "line 1 should be the dimension, not '2147483647'"),
        (b"9" * 10_000 + b"\n1\n", "line 1 should be the dimension, not '999"),
        (b"1\n", "line 2 should be the number of features, not ''"),
        (b"1\nmany\n", "line 2 should be the number of features, not 'many'"),
        (b"1\n999999999\n1 2 1 0 1 9\n", "line 2 announces 999999999 features, but 1 lines follow"),
        (b"1\n2\n1 2 1 0 1 9\n", "line 2 announces 2 features, but 1 lines follow"),
        (b"1\n1\n1 2 1 0 1 9\n1 2 1 0 1 9\n", "line 2 announces 1 features, but 2 lines follow"),
        (b"1\n2\n1 2 1 0 1 9\n1 2 1 0 1\n", "line 4 has 5 numbers, 6 are expected"),
        (b"1\n1\n1 2 1 0 1\n", "line 3 has 5 numbers, 6 are expected"),
        (b"1\n2\n\n1 2 1 0 1 9\n", "line 3 has 0 numbers"),
        (b"1\n2\n1 2 1 0 1 9\n1 x 1 0 1 9\n", "line 4: 'x' is not a number"),
        (b"1\n1\n1 2 1 0 1 1_0\n", "line 3: '1_0' is not a number"),
        (b"1\n1\n1 2 1 0 1 256\n", "line 3 holds a descriptor value"),
        (b"1\n1\n1 2 1 0 1 -1\n", "line 3 holds a descriptor value"),
        (b"1\n1\n1 2 1 0 1 0.5\n", "line 3 holds a descriptor value"),
        (b"1\n1\n1 2 1 0 1 nan\n", "line 3 holds a descriptor value"),
        (b"1\n2\n1 2 1 0 1 9\nnan 2 1 0 1 9\n", "line 4 holds a position or shape"),
        (b"1\n1\n1e39 2 1 0 1 9\n", "line 3 holds a position or shape"),
        (b"1\n1\n1 2 1 2 1 9\n", "line 3 holds no ellipse"),
        (b"1\n1\n1 2 -1 0 -1 9\n", "line 3 holds no ellipse"),
        (b"1\n1\n1 2 0 0 1 9\n", "line 3 holds no ellipse"),
        (b"1\n1\n1 2 1 0 1 \xff\n", "byte 14 is not text"),
        (b"1\n1\n1 2 1\r0 1 9\n", "cannot be read as 6 numbers"),
    ],
)
def test_a_damaged_hesaff_is_named(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "a.hesaff.sift"
    path.write_bytes(text)
    assert message in line_of(read_hesaff, path)


@quietly
@given(text=st.text(alphabet="0123456789 .-+einfa\n\r\tx#\"'", max_size=80))
def test_any_text_is_features_or_one_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.hesaff.sift"
    path.write_bytes(b"1\n2\n" + text.encode())
    try:
        assert len(read_hesaff(path)) == 2
    except DatasetError as error:
        assert "\n" not in str(error)


def test_a_text_beyond_all_measure_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.experiments.datasets.descriptor_files.MAX_TEXT", 10)
    (tmp_path / "a.hesaff.sift").write_bytes(b"1" * 11)
    assert "11 bytes are too many" in line_of(read_hesaff, tmp_path / "a.hesaff.sift")


# --- records ----------------------------------------------------------------------------------------------------


def test_records_take_any_numbers_and_leave_the_input() -> None:
    given_xy = np.array([[1, 2]])
    record = Described(given_xy, [3], [4.5], [[5, 6]])  # type: ignore[arg-type]
    assert record.xy.dtype == record.scale.dtype == record.angle.dtype == np.float32 and record.descriptors.dtype == np.uint8
    assert given_xy.dtype != np.float32 and len(record) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"xy": np.zeros((2, 2))}, "xy: shape"),
        ({"xy": np.zeros(1)}, "xy: shape"),
        ({"scale": np.zeros((1, 1))}, "scale: shape"),
        ({"angle": [np.inf]}, "angle: some numbers are not finite"),
        ({"angle": ["1"]}, "angle: <U1 should be numbers"),
        ({"descriptors": [[256]]}, "descriptors: some numbers are outside 0 to 255"),
        ({"descriptors": [[0.5]]}, "descriptors: float64 should be integers"),
        ({"descriptors": [1]}, "descriptors: shape"),
        ({"descriptors": np.empty((1, 0))}, "descriptors: shape"),
    ],
)
def test_records_that_do_not_fit_are_refused(change: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {"xy": [[1, 2]], "scale": [3], "angle": [4], "descriptors": [[5]]}
    with pytest.raises(OptionError, match=message):
        Described(**right | change)


def test_ellipses_and_scales_are_checked_before_writing(tmp_path: Path) -> None:
    features = siftgeo(1)
    with pytest.raises(OptionError, match="ellipse"):
        Hesaff(features.xy, [[1, 1, 1]], features.descriptors)  # type: ignore[arg-type]
    negative = SiftGeo(features.xy, -features.scale, features.angle, features.affine, features.cornerness, features.descriptors)
    with pytest.raises(OptionError, match="scale"):
        write_siftgeo(tmp_path / "a.siftgeo", negative)
    assert list(tmp_path.iterdir()) == []


# --- files ------------------------------------------------------------------------------------------------------

READERS = [(read_siftgeo, "a.siftgeo"), (read_vectors, "a.fvecs"), (read_hesaff, "a.sift")]


@pytest.mark.parametrize(("read", "name"), READERS)
def test_files_that_cannot_be_opened_are_named(
    tmp_path: Path, read: Callable[[Path], object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    assert "no such file" in line_of(read, path)
    path.mkdir()
    assert "is a folder" in line_of(read, path)
    path.rmdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        assert "no regular file" in line_of(read, path)
        path.unlink()
    path.touch()
    for kind, words in (
        (PermissionError(errno.EACCES, "denied"), "no permission"),
        (OSError(errno.EIO, "Input/output error"), "cannot be read (Input/output error)"),
        (MemoryError(), "does not fit in memory"),
    ):

        def fail(*_: object, error: Exception = kind) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(Path, "open", fail)
            assert words in line_of(read, path)


def test_strange_paths_stay_on_one_line(tmp_path: Path) -> None:
    assert "no such file" in line_of(read_siftgeo, tmp_path / "a\nb.siftgeo")
    assert "is no path" in line_of(read_siftgeo, tmp_path / "a\0b.siftgeo")
    assert "cannot be read" in line_of(read_siftgeo, tmp_path / ("a" * 300))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not bind the superuser")
def test_a_file_without_permission_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.siftgeo"
    path.touch(0o000)
    assert "no permission" in line_of(read_siftgeo, path)


def test_writing_fails_in_one_line_and_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.ivecs"
    write_vectors(path, [[1]])
    assert "is a folder" in line_of(write_siftgeo, tmp_path, siftgeo())
    assert "cannot be written" in line_of(write_siftgeo, tmp_path / "none" / "a.siftgeo", siftgeo())

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    assert "No space left" in line_of(write_vectors, path, [[2]])
    assert read_vectors(path).tolist() == [[1]]
    assert [file.name for file in tmp_path.iterdir()] == ["a.ivecs"]
