"""Arrays come back as they were written; whatever is damaged is found before it is used, and nothing else is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from polyvoc.errors import DamagedError
from polyvoc.storage.blocks import ALIGNMENT, FILE, ArrayFile, write_arrays
from polyvoc.storage.files import META

ARRAYS = {
    "ids": np.arange(7),
    "empty": np.zeros((0, 3), np.uint16),
    "long": (np.arange(5000) % 300).astype(np.uint16),
    "pairs": np.arange(900, dtype=np.uint8).reshape(300, 3),
    "planes": np.arange(2000, dtype=np.uint64).reshape(2, 1000),
    "vectors": np.linspace(0, 1, 60).astype(np.float16).reshape(20, 3),
    "frames": np.ones((7, 3), np.float32),
}
BLOCK = 512


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("polyvoc.storage.blocks.BLOCK", BLOCK)
    write_arrays(tmp_path / "folder", ARRAYS, {"answer": 42})
    return tmp_path / "folder"


def flip(path: Path, at: int, bit: int = 1) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= bit
    path.write_bytes(content)


def offsets(folder: Path) -> dict[str, int]:
    return {name: offset for name, (_, _, offset) in json.loads((folder / META).read_text())["arrays"].items()}


def test_arrays_are_read_back(folder: Path) -> None:
    file = ArrayFile.open(folder)
    file.verify(*ARRAYS)
    assert file.meta["answer"] == 42 and file.arrays.keys() == ARRAYS.keys()
    for name, expected in ARRAYS.items():
        found = file.arrays[name]
        assert found.dtype == expected.dtype and np.array_equal(found, expected), name
        assert expected.size == 0 or not found.flags.writeable
        assert found.ctypes.data % ALIGNMENT == 0 or expected.size == 0


def test_every_block_has_a_checksum(folder: Path) -> None:
    content = (folder / FILE).read_bytes()
    meta = json.loads((folder / META).read_text())
    content, table = content[: meta["length"]], content[meta["length"] :]
    blocks = [content[first : first + BLOCK] for first in range(0, len(content), BLOCK)]
    checksums = np.array([xxhash.xxh64_intdigest(block) & 0xFFFFFFFF for block in blocks], np.uint32)
    assert len(blocks) > 30 and len(table) % ALIGNMENT == 0
    assert table == checksums.tobytes().ljust(len(table), b"\0")
    assert meta["table"] == f"{xxhash.xxh64_intdigest(table) & 0xFFFFFFFF:08x}"


def test_a_damaged_table_is_found_when_the_file_is_opened(folder: Path) -> None:
    length = json.loads((folder / META).read_text())["length"]
    flip(folder / FILE, length + 5)
    with pytest.raises(DamagedError, match="table"):
        ArrayFile.open(folder)


def test_a_flipped_bit_is_found_wherever_it_is(folder: Path) -> None:
    content, start = (folder / FILE).read_bytes(), offsets(folder)
    for name, array in ARRAYS.items():
        for at in {0, array.nbytes // 2, array.nbytes - 1} if array.size else ():
            flip(folder / FILE, start[name] + at)
            with pytest.raises(DamagedError, match=f"{name} is damaged.*--repair"):
                ArrayFile.open(folder).verify(name)
            (folder / FILE).write_bytes(content)
    ArrayFile.open(folder).verify(*ARRAYS)


def test_only_what_is_used_is_verified(folder: Path) -> None:
    flip(folder / FILE, offsets(folder)["long"] + 2 * 3000)
    file = ArrayFile.open(folder)
    file.verify(*(name for name in ARRAYS if name != "long"))
    file.verify_ranges("long", np.array([0, 4000]), np.array([2700, 5000]))
    file.verify_ranges("long", 3000, 3000)  # nothing
    for _ in range(2):  # it does not become sound by being looked at
        with pytest.raises(DamagedError, match="long is damaged"):
            file.verify_ranges("long", np.array([0, 2999]), np.array([10, 3001]))


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_verified_wherever_they_begin_and_end(folder: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    name = ("long", "pairs", "planes")[seed % 3]
    array, width = ARRAYS[name], (1, 3, 1)[seed % 3]
    n_rows = array.size // width
    begins = np.sort(rng.integers(0, n_rows, 3))
    ends = np.minimum(begins + rng.integers(0, n_rows // 4, 3), n_rows)
    damaged = int(rng.integers(0, array.nbytes))
    flip(folder / FILE, offsets(folder)[name] + damaged)
    start = offsets(folder)[name]
    block = (start + damaged) // BLOCK
    row = width * array.itemsize
    touched = any(
        b < e and (start + b * row) // BLOCK <= block <= (start + e * row - 1) // BLOCK
        for b, e in zip(begins, ends, strict=True)
    )
    file = ArrayFile.open(folder)
    if touched:
        with pytest.raises(DamagedError):
            file.verify_ranges(name, begins, ends, width)
    else:
        file.verify_ranges(name, begins, ends, width)


def test_numbers_beyond_their_limit_are_found(folder: Path) -> None:
    file = ArrayFile.open(folder)
    file.limits.update({"long": 300, "pairs": np.array([256, 256, 256])})
    file.verify("long", "pairs")
    file = ArrayFile.open(folder)
    file.limits["long"] = 299
    file.verify_ranges("long", 0, 200)  # the first block ends at 256 of them
    with pytest.raises(DamagedError, match="long holds a number beyond 298"):
        file.verify_ranges("long", 0, 300)
    file.limits["pairs"] = np.array([256, 256, 255])
    with pytest.raises(DamagedError, match="pairs holds a number"):
        file.verify("pairs")


def test_a_file_that_is_cut_is_an_error_and_no_signal(folder: Path) -> None:
    file = ArrayFile.open(folder)
    with (folder / FILE).open("r+b") as opened:
        opened.truncate(1000)
    with pytest.raises(DamagedError, match="1000 bytes"):
        file.check_size()
    with pytest.raises(DamagedError, match="1000 bytes"):
        file.verify("frames")
    with pytest.raises(DamagedError, match="does not fit"):
        ArrayFile.open(folder)


@pytest.mark.parametrize("content", [None, b""])
def test_a_missing_or_empty_file_is_an_error(folder: Path, content: bytes | None) -> None:
    (folder / FILE).unlink()
    if content is not None:
        (folder / FILE).write_bytes(content)
    with pytest.raises(DamagedError, match=r"arrays (is missing|cannot be read)"):
        ArrayFile.open(folder)


@pytest.mark.parametrize(
    "change",
    [
        {"arrays": []},
        {"arrays": {"long": 1}},
        {"arrays": {"long": ["<u2", [5000]]}},
        {"arrays": {"long": ["object", [5000], 0]}},
        {"arrays": {"long": ["<u2", [-1], 0]}},
        {"arrays": {"long": ["<u2", [1 << 60], 0]}},
        {"arrays": {"long": ["<u2", [5000], -64]}},
        {"arrays": {"long": ["<u2", [5000], 1]}},
        {"arrays": {"long": ["<u2", 5000, 0]}},
        {"arrays": {"long": ["<u2", ["5000"], 0]}},
        {"table": "zz"},
        {"table": None},
        {"length": 1},
        {"length": 64},
        {"length": -64},
        {"length": "64"},
    ],
)
def test_a_forged_description_is_an_error(folder: Path, change: dict[str, Any]) -> None:
    meta = json.loads((folder / META).read_text())
    (folder / META).write_text(json.dumps({**meta, **change}))
    with pytest.raises(DamagedError, match=META):
        ArrayFile.open(folder)


def test_one_descriptor_is_open_for_a_folder(folder: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("counts descriptors in /proc")
    before = len(list(descriptors.iterdir()))
    file = ArrayFile.open(folder)
    file.verify(*ARRAYS)
    assert len(list(descriptors.iterdir())) == before + 1
