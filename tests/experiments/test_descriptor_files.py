"""Files of descriptors are read exactly; damaged, foreign and hostile ones are one line with the next step."""

from __future__ import annotations

import errno
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benches import described
from polyvoc.errors import DatasetError, WriteError
from polyvoc.experiments.datasets.descriptor_files import read_hesaff, read_siftgeo, write_siftgeo


def error_of(call: Callable[..., object], *arguments: object) -> str:
    """The one line that a call raises about a file."""
    with pytest.raises(DatasetError) as caught:
        call(*arguments)
    line = str(caught.value)
    assert "\n" not in line and "; " in line and len(line) < 600 and caught.value.__cause__ is None
    return line


# --- .siftgeo ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "dimension"), [(0, 128), (1, 128), (70_000, 2), (7, 1), (3, 200)])
def test_siftgeo_comes_back(tmp_path: Path, n: int, dimension: int) -> None:
    written = described(n, dimension=dimension)
    write_siftgeo(tmp_path / "a.siftgeo", written)
    read = read_siftgeo(str(tmp_path / "a.siftgeo"))
    assert np.array_equal(read.xy, written.xy) and np.array_equal(read.scale, written.scale) and len(read) == n
    assert read.angle == pytest.approx(written.angle, abs=1e-3)
    assert np.array_equal(read.descriptors, written.descriptors) and read.descriptors.shape == (n, dimension)
    assert (tmp_path / "a.siftgeo").stat().st_size == n * (40 + dimension)
    assert [file.name for file in tmp_path.iterdir()] == ["a.siftgeo"]


def test_siftgeo_is_laid_out_as_published(tmp_path: Path) -> None:
    """Nine floats, the dimension, the bytes: written here by struct, as INRIA's C code does. Angles are radians there."""
    angles = [0, np.pi / 2, -np.pi / 2, 5 * np.pi, -1e-9]
    records = [struct.pack("<9fi128B", 1.5, 2.5, 3, angle, 11, 12, 21, 22, 99, 128, *range(128)) for angle in angles]
    path = tmp_path / "a.siftgeo"
    path.write_bytes(b"".join(records))
    read = read_siftgeo(path)
    assert read.xy.tolist() == [[1.5, 2.5]] * 5 and read.scale.tolist() == [3] * 5
    assert read.angle == pytest.approx([0, 90, 270, 180, 0], abs=1e-4) and (read.angle < 360).all()
    assert read.descriptors.tolist() == [list(range(128))] * 5 and read.descriptors.dtype == np.uint8
    assert read.xy.dtype == read.scale.dtype == read.angle.dtype == np.float32


@pytest.mark.parametrize(
    ("at", "form", "value", "message"),
    [
        (36, "i", 0, "first record has dimension 0 (byte 36)"),
        (36, "i", 2**31 - 1, "first record has dimension 2147483647 (byte 36)"),
        (36, "i", 1 << 20, "one record of dimension 1048576 takes 1048616 bytes, the file has 840"),
        (36 + 2 * 168, "i", 64, "record 3 has dimension 64 (byte 372), the first has 128"),
        (36 + 4 * 168, "i", 2**31 - 1, "record 5 has dimension 2147483647 (byte 708)"),
        (4 + 168, "f", np.nan, "xy of record 2 (byte 172) is nan"),
        (8, "f", np.inf, "scale of record 1 (byte 8) is inf"),
        (8 + 168, "f", -1, "scale of record 2 (byte 176) is -1"),
        (12 + 3 * 168, "f", -np.inf, "angle of record 4 (byte 516) is -inf"),
        (28, "f", np.nan, "affine of record 1 (byte 28) is nan"),
        (32, "f", np.nan, "cornerness of record 1 (byte 32) is nan"),
    ],
)
def test_a_damaged_siftgeo_is_an_error(tmp_path: Path, at: int, form: str, value: float, message: str) -> None:
    path = tmp_path / "a.siftgeo"
    write_siftgeo(path, described(5))
    data = bytearray(path.read_bytes())
    struct.pack_into(f"<{form}", data, at, value)
    path.write_bytes(data)
    line = error_of(read_siftgeo, path)
    assert line.startswith(f"{path}: ") and message in line


@pytest.mark.parametrize("size", [1, 39, 40, 167, 169, 5 * 168 - 1])
def test_a_cut_siftgeo_is_an_error(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.siftgeo"
    write_siftgeo(path, described(5))
    path.write_bytes(path.read_bytes()[:size])
    assert any(word in error_of(read_siftgeo, path) for word in ("too few", "takes 168 bytes", "is cut"))


@pytest.mark.parametrize("dimension", [1 << 20, 2**31 - 1])
def test_a_header_takes_no_memory(tmp_path: Path, dimension: int) -> None:
    """A file with holes claims records of megabytes or gigabytes; nothing of that size is made to find out."""
    path = tmp_path / "a.siftgeo"
    path.write_bytes(bytes(36) + struct.pack("<i", dimension))
    os.truncate(path, 64 << 20)
    tracemalloc.start()
    try:
        error_of(read_siftgeo, path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 19
    finally:
        tracemalloc.stop()


# --- Perdoch's hesaff -------------------------------------------------------------------------------------------


def test_hesaff_in_shared_units(tmp_path: Path) -> None:
    """A circle of radius 10; an ellipse of half axes 20 and 5, turned by 30 degrees, has the same area."""
    turn = np.array([[np.cos(np.pi / 6), -np.sin(np.pi / 6)], [np.sin(np.pi / 6), np.cos(np.pi / 6)]])
    (a, b), (_, c) = turn @ np.diag([1 / 20**2, 1 / 5**2]) @ turn.T
    path = tmp_path / "a.hesaff.sift"
    path.write_text(f"2\n2\n7 8.5 0.01 0 0.01 0 255\n1e1 -2 {a} {b} {c} 3 4\n", encoding="ascii")
    read = read_hesaff(path)
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
        *(
            (start.encode() + b"\n1\n1 2 1 0 1\n", f"line 1 should be the dimension, not '{start[:40]}")
            for start in ("", "1.0", "-2", "0", "2147483647", "9" * 10_000)
        ),
        (b"1\n", "line 2 should be the number of features, not ''"),
        (b"1\nmany\n", "line 2 should be the number of features, not 'many'"),
        (b"1\n999999999\n1 2 1 0 1 9\n", "line 2 announces 999999999 features, but 1 lines follow"),
        (b"1\n1\n1 2 1 0 1 9\n1 2 1 0 1 9\n", "line 2 announces 1 features, but 2 lines follow"),
        (b"1\n2\n1 2 1 0 1 9\n1 2 1 0 1\n", "line 4 has 5 numbers, 6 are expected"),
        (b"1\n2\n\n1 2 1 0 1 9\n", "line 3 has 0 numbers"),
        (b"1\n2\n1 2 1 0 1 9\n1 x 1 0 1 9\n", "line 4: 'x' is not a number"),
        (b"1\n1\n1 2 1 0 1 1_0\n", "line 3: '1_0' is not a number"),
        *((b"1\n1\n1 2 1 0 1 %s\n" % value, "line 3 holds a descriptor value") for value in (b"256", b"-1", b"0.5", b"nan")),
        (b"1\n2\n1 2 1 0 1 9\nnan 2 1 0 1 9\n", "line 4 holds a position or shape"),
        (b"1\n1\n1e39 2 1 0 1 9\n", "line 3 holds a position or shape"),
        *((b"1\n1\n1 2 %s 9\n" % shape, "line 3 holds no ellipse") for shape in (b"1 2 1", b"-1 0 -1", b"0 0 1")),
        (b"1\n1\n1 2 1 0 1 \xff\n", "byte 14 is not text"),
        (b"1\n1\n1 2 1\r0 1 9\n", "cannot be read as 6 numbers"),
    ],
)
def test_a_damaged_hesaff_is_an_error(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "a.hesaff.sift"
    path.write_bytes(text)
    assert message in error_of(read_hesaff, path)


def test_a_text_beyond_all_measure_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.experiments.datasets.descriptor_files.MAX_TEXT", 10)
    (tmp_path / "a.hesaff.sift").write_bytes(b"1" * 11)
    assert "11 bytes are too many" in error_of(read_hesaff, tmp_path / "a.hesaff.sift")


# --- files ------------------------------------------------------------------------------------------------------


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400), text=st.text(alphabet="0123456789 .-+einfa\n\r\tx#\"'", max_size=80))
def test_anything_is_features_or_one_line(tmp_path: Path, data: bytes, text: str) -> None:
    siftgeo, hesaff = tmp_path / "a.siftgeo", tmp_path / "a.hesaff.sift"
    siftgeo.write_bytes(data)
    hesaff.write_bytes(b"1\n2\n" + text.encode())
    for read, path, possible in ((read_siftgeo, siftgeo, len(data) > 40), (read_hesaff, hesaff, True)):
        try:
            assert len(read(path)) == 0 or possible
        except DatasetError as error:
            assert str(error).startswith(f"{path}: ") and "\n" not in str(error)


@pytest.mark.parametrize(("read", "name"), [(read_siftgeo, "a.siftgeo"), (read_hesaff, "a.sift")])
def test_files_that_cannot_be_opened_are_errors(
    tmp_path: Path, read: Callable[[Path], object], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    assert "no such file" in error_of(read, path)
    path.mkdir()
    assert "is a folder" in error_of(read, path)
    path.rmdir()
    if hasattr(os, "mkfifo"):
        os.mkfifo(path)
        assert "no regular file" in error_of(read, path)
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
            assert words in error_of(read, path)


def test_strange_paths_stay_on_one_line(tmp_path: Path) -> None:
    assert "no such file" in error_of(read_siftgeo, tmp_path / "a\nb.siftgeo")
    assert "is no path" in error_of(read_siftgeo, tmp_path / "a\0b.siftgeo")
    assert "cannot be read" in error_of(read_siftgeo, tmp_path / ("a" * 300))


def test_writing_fails_in_one_line_and_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.siftgeo"
    write_siftgeo(path, described(1))
    with pytest.raises(WriteError, match="none"):
        write_siftgeo(tmp_path / "none" / "a.siftgeo", described(1))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(WriteError, match=r"a\.siftgeo"):
        write_siftgeo(path, described(2))
    assert len(read_siftgeo(path)) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["a.siftgeo"]
