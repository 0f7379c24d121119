"""An index without errors gives no line; every damage of a file or a reference is found and named."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyvoc.errors import DamagedError, NotAnIndexError, PolyvocError, VersionError
from polyvoc.index.catalogue import CHECKED, FILE, Catalogue, _row_checksum
from polyvoc.index.check import check
from polyvoc.index.folder import IndexFolder
from polyvoc.index.segment import Batch, Segment
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.storage.files import META, checksum
from polyvoc.storage.folders import FileState
from polyvoc.types import FeatureCodes, Problem
from polyvoc.vocabulary.vocabulary import VocabularySet
from samples import build, coded, collection, features, unflushed, vocabularies

__all__ = ["unflushed"]

SEGMENT = "segments/000004"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Codes and words of three vocabularies; four segments; replaced, removed and empty images; a problem."""
    path = tmp_path_factory.mktemp("healthy") / "healthy.polyvoc"
    build(path, collection(24), coded(3), commits=3).close()
    with IndexWriter.open(path) as writer:
        writer.add("image 9", features(900))
        writer.remove(["image 3"])
        with writer.catalogue.transaction():
            writer.catalogue.put_problems([(FileState(17, 4_000_000_000), Problem("broken.jpg", "it is broken"))])
    return path


@pytest.fixture
def index(healthy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(healthy, tmp_path / "index.polyvoc"))


def files(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file() and p.name != "lock")


def contents(path: Path) -> dict[str, list[Any]]:
    """Return every row of the catalogue."""
    connection = sqlite3.connect(path / FILE)
    connection.text_factory = bytes
    tables = ("settings", "segments", "images", "deleted", "problems")
    rows = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
    connection.close()
    return rows


def edit(path: Path, sql: str, *values: Any) -> None:
    """Change the catalogue without its checksums."""
    connection = sqlite3.connect(path / FILE)
    with connection:
        assert connection.execute(sql, values).rowcount != 0
    connection.close()


def put_settings(path: Path, settings: dict[str, Any]) -> None:
    """Change settings with their checksums."""
    catalogue = Catalogue.open(path, writable=True)
    with catalogue.transaction():
        catalogue.put_settings(settings)
    catalogue.close()


def correct_checksums(path: Path) -> None:
    """Write the right checksum to every row, as a mistaken program would."""
    connection = sqlite3.connect(path / FILE)
    with connection:
        for table, (_, columns) in CHECKED.items():
            for rowid, *values in connection.execute(f"SELECT rowid, {columns} FROM {table}").fetchall():
                connection.execute(f"UPDATE {table} SET row_checksum = ? WHERE rowid = ?", [_row_checksum(*values), rowid])
    connection.close()


def try_to_open(path: Path) -> None:
    """Opening a damaged index works, or raises an error of one line."""
    try:
        Index.open(path).close()
    except PolyvocError as error:
        assert "\n" not in str(error)


def lines_of(path: Path) -> list[str]:
    """Return the lines of a check, or the error that it raises."""
    try:
        return list(check(path))
    except PolyvocError as error:
        return [str(error)]


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


# --- no errors---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 3, 4])
@pytest.mark.parametrize("signed", [True, False])
def test_an_index_without_errors(tmp_path: Path, k: int, signed: bool) -> None:
    path = tmp_path / "a.polyvoc"
    build(path, collection(20), vocabularies(k, signed=signed), commits=3).close()
    assert list(check(path)) == []
    with IndexWriter.open(path) as writer:
        writer.remove(["image 1", "image 2"])
    assert list(check(path)) == []


@pytest.mark.parametrize("k", [0, 2])
def test_an_index_of_codes_without_errors(tmp_path: Path, k: int) -> None:
    path, given = tmp_path / "a.polyvoc", coded(k)
    build(path, collection(20), VocabularySet(given.words, given.fine), commits=3).close()
    assert list(check(path)) == []
    with IndexWriter.open(path) as writer:
        writer.remove(["image 1", "image 2"])
    assert list(check(path)) == []


def test_an_empty_index(tmp_path: Path) -> None:
    build(tmp_path / "a.polyvoc", {}).close()
    assert list(check(tmp_path / "a.polyvoc")) == []


def test_long_runs_and_small_chunks_are_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = features(1, 1)
    many = features(1, 900)
    same = type(many)(many.xy, many.scale, many.angle, np.repeat(one.descriptors, 900, axis=0), 10, 10)
    build(tmp_path / "a.polyvoc", {"same": same, **collection(9)}, vocabularies(3)).close()
    assert list(check(tmp_path / "a.polyvoc")) == []
    monkeypatch.setattr("polyvoc.index.check.CHUNK", 7)
    assert list(check(tmp_path / "a.polyvoc")) == []


def test_progress(healthy: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    assert list(check(healthy, lambda *values: calls.append(values))) == []
    assert [done for _, done, _ in calls] == list(range(1, calls[0][2] + 1))


def test_further_checks(healthy: Path) -> None:
    """They are given the folder, and may yield lines or raise; a line that was there before is left out."""

    def fails(folder: IndexFolder) -> Iterator[str]:
        yield f"{folder.path.name}: one"
        raise DamagedError("two")

    assert list(check(healthy, more=[fails, fails])) == [f"{healthy.name}: one", "two"]


def test_checking_changes_nothing(index: Path) -> None:
    before = {name: ((index / name).read_bytes(), (index / name).stat().st_mtime_ns) for name in files(index)}
    assert list(check(index)) == []
    assert before == {name: ((index / name).read_bytes(), (index / name).stat().st_mtime_ns) for name in files(index)}


# --- no index -------------------------------------------------------------------------------------------------


def test_anything_but_an_index_raises(tmp_path: Path, index: Path) -> None:
    with pytest.raises(NotAnIndexError, match="does not exist"):
        check(tmp_path / "nothing")
    with pytest.raises(NotAnIndexError, match="is not a polyvoc index"):
        check(tmp_path)
    edit(index, "PRAGMA user_version = 99")
    with pytest.raises(VersionError, match="upgrade"):
        check(index)
    edit(index, "PRAGMA user_version = 0")
    assert len(list(check(index))) == 1
    edit(index, "PRAGMA application_id = 1")
    with pytest.raises(NotAnIndexError, match="not the catalogue"):
        check(index)


# --- damaged files --------------------------------------------------------------------------------------------


def damages(data: bytes, rng: np.random.Generator) -> Iterator[bytes | None]:
    """Yield a file with one byte flipped, the last or any; cut by one byte; empty; None: deleted."""
    for at in (len(data) - 1, int(rng.integers(0, len(data)))):
        yield flip(data, at)
    yield data[:-1]
    yield b""
    yield None


def test_every_damaged_file_is_named(index: Path) -> None:
    rng = np.random.default_rng(4)
    names = [name for name in files(index) if name.startswith((SEGMENT, "vocabularies/1", "vocabularies/fine"))]
    assert {Path(name).name for name in names} == {Path(name).name for name in files(index) if name != FILE}
    for name in names:
        path = index / name
        original = path.read_bytes()
        for damaged in damages(original, rng):
            path.unlink()
            if damaged is not None:
                path.write_bytes(damaged)
            lines = list(check(index))
            assert any(str(path) in line for line in lines), (name, lines)
            assert not any("\n" in line for line in lines)
            try_to_open(index)
            path.write_bytes(original)
    assert list(check(index)) == []


def test_a_damaged_catalogue_is_named_or_harmless(index: Path) -> None:
    path = index / FILE
    original, rows = path.read_bytes(), contents(index)
    rng = np.random.default_rng(5)
    used = [at for at, byte in enumerate(original) if byte]  # most of a small database is empty
    found = 0
    for at in [*range(18, 100, 3), *rng.choice(used, 120, replace=False).tolist()]:
        path.write_bytes(flip(original, at))
        lines = lines_of(index)
        try_to_open(index)
        assert not any("\n" in line for line in lines)
        if any(FILE in line or "upgrade" in line for line in lines):
            found += 1
        else:
            assert lines == [] and contents(index) == rows, at
        for leftover in index.glob(FILE + "-*"):
            leftover.unlink()
    assert found > 80
    for cut in (b"", original[:50], original[:4096], original[: len(original) // 2], original[:-1], None):
        path.unlink()
        if cut is not None:
            path.write_bytes(cut)
        assert any(FILE in line for line in lines_of(index))
        try_to_open(index)


def test_another_segment_in_its_place_is_found(index: Path, tmp_path: Path) -> None:
    build(tmp_path / "other.polyvoc", collection(5, first=50), coded(3)).close()
    shutil.rmtree(index / SEGMENT)
    shutil.copytree(tmp_path / "other.polyvoc/segments/000001", index / SEGMENT)
    assert any(SEGMENT in line for line in check(index))


@pytest.mark.parametrize("name", ["1", "fine"])
def test_another_vocabulary_in_its_place_is_found(index: Path, name: str) -> None:
    shutil.rmtree(index / "vocabularies" / name)
    vocabularies(3, size=31)[1].save(index / "vocabularies" / name)
    assert any(f"vocabularies/{name}" in line for line in check(index))


# --- damaged references: every checksum is right ------------------------------------------------------------

REQUIRED = ("sizes", "vocabularies", "vocabulary_checksums", "bits", "fine", "kind", "features", "commit", "last_segment")
OPTIONAL = (
    "line",
    "image_line",
    "embedding",
    "links",
    "duplicate_pairs",
    "decisions",
    "duplicate_lines",
)  # may be None or missing
POSSIBLE = {"sizes": [[]], "fine": [None]}  # an index without words, or without codes: another line names what differs


def test_an_index_of_neither_words_nor_codes_is_found(tmp_path: Path) -> None:
    build(tmp_path / "a.polyvoc", {}).close()
    put_settings(tmp_path / "a.polyvoc", {"sizes": [], "vocabularies": [], "vocabulary_checksums": []})
    assert names_setting(tmp_path / "a.polyvoc", "sizes")


def names_setting(path: Path, name: str) -> bool:
    lines = list(check(path))
    return any(FILE in line and name in line for line in lines) and not any("\n" in line for line in lines)


@pytest.mark.parametrize("name", [*REQUIRED, *OPTIONAL])
def test_a_missing_or_odd_setting_is_found(index: Path, name: str) -> None:
    for odd in ([], "text", -1, {"surprise": 1}, *([None] if name in REQUIRED else [])):
        copy = Path(shutil.copytree(index, index.with_name("odd.polyvoc")))
        put_settings(copy, {name: odd})
        assert list(check(copy)) if odd in POSSIBLE.get(name, []) else names_setting(copy, name), odd
        shutil.rmtree(copy)
    if name in OPTIONAL:
        put_settings(index, {name: None})
        assert list(check(index)) == []
    edit(index, "UPDATE settings SET value = replace(value, '1', '2') || ' ' WHERE name = ?", name)
    assert names_setting(index, name)
    try_to_open(index)
    edit(index, "DELETE FROM settings WHERE name = ?", name)
    assert names_setting(index, name) == (name in REQUIRED)
    try_to_open(index)


EDITS = {
    "a position beyond the segment": "UPDATE images SET position = 1000 WHERE image = 2",
    "a negative position": "UPDATE images SET position = -1 WHERE image = 2",
    "a position that is no number": "UPDATE images SET position = 'x' WHERE image = 2",
    "a missing image": "DELETE FROM images WHERE image = 2",
    "a deletion too many": "INSERT INTO deleted SELECT segment, position FROM images WHERE image = 2",
    "a deletion too few": "DELETE FROM deleted WHERE rowid = (SELECT min(rowid) FROM deleted)",
    "a deletion beyond the segment": "INSERT INTO deleted SELECT segment, 1000 FROM images WHERE image = 2",
    "a deletion that is no number": "INSERT INTO deleted SELECT segment, 'x' FROM images WHERE image = 2",
    "a deletion of no segment": "INSERT INTO deleted VALUES (99, 0)",
    "another number of features": "UPDATE images SET n_features = n_features + 1 WHERE image = 2",
    "an image of no segment": "UPDATE images SET segment = 99 WHERE image = 2",
    "another segment": "UPDATE images SET segment = 4, position = 500 WHERE image = 2",
    "another id": "UPDATE images SET image = 777 WHERE image = 2",
    "another path": "UPDATE images SET path = x'2f78' WHERE image = 2",
    "a path that is text": "UPDATE images SET path = 'x' WHERE image = 2",
    "another width": "UPDATE images SET width = 5 WHERE image = 2",
    "another digest": "UPDATE images SET digest = 'f' WHERE image = 2",
    "a segment with more images": "UPDATE segments SET n_images = n_images + 1 WHERE segment = 4",
    "a segment with fewer features": "UPDATE segments SET n_features = n_features - 1 WHERE segment = 4",
    "another checksum": "UPDATE segments SET checksum = 'f' WHERE segment = 4",
    "a segment that does not exist": "INSERT INTO segments VALUES (50, 1, 1, 'f', 1)",
    "a missing segment": "DELETE FROM segments WHERE segment = 4",
    "an id used again": "UPDATE sqlite_sequence SET seq = 3",
    "missing ids": "DELETE FROM sqlite_sequence",
    "another reason": "UPDATE problems SET reason = 'none'",
    "a missing table": "DROP TABLE deleted",
}


# Found by the checksum of the row alone, and a table without which no row has one.
BY_CHECKSUM_ONLY = ("another path", "another width", "another digest", "another reason", "a missing table")


@pytest.mark.parametrize("what", EDITS)
def test_a_wrong_row_is_found(index: Path, what: str) -> None:
    edit(index, EDITS[what])
    lines = list(check(index))
    assert lines and not any("\n" in line for line in lines)
    assert any(FILE in line or "segments/" in line for line in lines)
    try_to_open(index)
    if what not in BY_CHECKSUM_ONLY:
        correct_checksums(index)
        assert list(check(index))
        try_to_open(index)


def test_two_images_with_exchanged_positions_are_found(index: Path) -> None:
    with Index.open(index) as opened:
        first, second, *_ = opened.folder.catalogue.images_in(1)
    edit(index, "UPDATE images SET position = -5 WHERE image = ?", first.image)
    edit(index, "UPDATE images SET position = ? WHERE image = ?", first.position, second.image)
    edit(index, "UPDATE images SET position = ? WHERE image = ?", second.position, first.image)
    assert any("segment 1" in line and "ids has" in line for line in check(index))


Change = Callable[[dict[str, np.ndarray[Any, Any]]], None]


def swap(name: str, a: Any, b: Any) -> Change:
    def change(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        arrays[name][a], arrays[name][b] = arrays[name][b].copy(), arrays[name][a].copy()

    return change


def put(name: str, at: Any, value: Any) -> Change:
    def change(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        assert not np.array_equal(arrays[name][at], value)
        arrays[name][at] = value

    return change


def add(name: str, at: Any, difference: int) -> Change:
    def change(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        arrays[name][at] += np.array(difference).astype(arrays[name].dtype)

    return change


def resize(name: str, shape: tuple[int, ...]) -> Change:
    def change(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
        arrays[name] = np.zeros(shape, arrays[name].dtype)

    return change


# A segment of 6 images, 3 vocabularies of 5, 6 and 7 words, 8 fine words: what is changed, and the array that a line names.
MISTAKES: list[tuple[str, Change]] = [
    ("feature_starts", put("feature_starts", -1, 3)),
    ("feature_starts", put("feature_starts", 1, 10_000)),
    ("starts", put("starts", 0, 1)),
    ("starts", put("starts", -1, 5)),
    ("starts", put("starts", 3, 60_000)),
    ("run_starts", put("run_starts", 2, 60_000)),
    ("run_starts", put("run_starts", -1, 2)),
    ("postings", put("postings", 7, 6)),
    ("words", put("words", (3, 1), 6)),
    ("run_lengths", add("run_lengths", 0, 1)),
    ("run_lengths", put("run_lengths", 0, 0)),
    ("run_words", swap("run_words", 0, 1)),
    ("posting", add("postings", 0, 1)),
    ("words", lambda arrays: put("words", (0, 0), (arrays["words"][0, 0] + 1) % 5)(arrays)),
    ("words", lambda arrays: put("words", (0, 2), (arrays["words"][0, 2] + 1) % 7)(arrays)),
    ("places", put("places", (0, 0), 0xFFFFFFFF)),
    ("places", swap("places", 0, 1)),
    ("columns", add("columns", (0, 3), 1)),
    ("documents", add("documents", 2, 1)),
    ("documents", resize("documents", (3,))),
    ("signatures", resize("signatures", (1,))),
    ("shapes", resize("positions", (2, 2))),  # the number of features is that of the positions
    ("shapes", resize("shapes", (2, 2))),
    ("frames", put("frames", (2, 2), 0)),
    ("frames", put("frames", (1, 0), np.nan)),
    ("code_starts", put("code_starts", 0, 1)),
    ("code_starts", put("code_starts", 3, 60_000)),
    ("code_images", put("code_images", 7, 6)),
    ("code_words", put("code_words", 3, 8)),
    ("code_words", lambda arrays: put("code_words", 0, (arrays["code_words"][0] + 1) % 8)(arrays)),
    ("codes", resize("codes", (1, 3))),
    ("codes", lambda arrays: arrays.pop("codes")),
    ("rest", resize("rest", (3, 4))),
]


def store(folder: Path, segment: Segment) -> None:
    shutil.rmtree(folder)
    segment.save(folder)


def test_arrays_that_contradict_each_other_are_found(tmp_path: Path) -> None:
    path, images = tmp_path / "a.polyvoc", collection(6, first=7)
    build(path, images, coded(3)).close()
    for named, change in [("nothing", lambda arrays: None), *MISTAKES]:
        segment = segment_of_few_words([len(found) for found in images.values()])
        segment.arrays.update({name: array.copy() for name, array in segment.arrays.items()})  # a segment is read-only
        change(segment.arrays)
        store(path / "segments/000001", segment)
        commit_to(path, path / "segments/000001", segment)
        lines = [line for line in check(path) if "segments" in line]
        assert any(named in line for line in lines) == (named != "nothing"), (named, lines)
        try_to_open(path)


def segment_of_few_words(lengths: list[int]) -> Segment:
    rng = np.random.default_rng(6)
    sizes = (5, 6, 7)
    words = [np.column_stack([rng.integers(0, size, length) for size in sizes]) for length in lengths]
    bits = [rng.integers(0, 2**63, (length, 3)).astype(np.uint64) for length in lengths]
    n = sum(lengths)
    codes, rest = rng.integers(0, 2**63, (n, 1)).astype(np.uint64), rng.integers(0, 6, (n, 4)).astype(np.uint8)
    batch = replace(
        Batch.of_words(words, 3, bits, first_id=1), codes=FeatureCodes(rng.integers(0, 8, n).astype(np.uint32), codes, rest)
    )
    return Segment.build(batch, sizes, 8)


def commit_to(path: Path, folder: Path, segment: Segment) -> None:
    """Make the catalogue refer to a segment."""
    with closing(Catalogue.open(path)) as catalogue:
        fine = catalogue.setting("fine")
    put_settings(path, {"sizes": list(segment.sizes), "fine": fine and {**fine, "size": segment.fine}})
    edit(path, "UPDATE segments SET checksum = ?", checksum(folder / META))
    correct_checksums(path)


def test_lists_out_of_order_are_found(tmp_path: Path) -> None:
    """Two postings of one list change places, and all that refers to them follows: only their order is wrong."""
    images = {f"image {n}": features(5, 6) for n in range(3)}  # three images of the same words
    path = tmp_path / "a.polyvoc"
    build(path, images, coded(2)).close()
    folder = path / "segments/000001"
    opened = Segment.open(folder)
    segment = Segment(opened.sizes, np.array(opened.ids), {name: np.array(array) for name, array in opened.arrays.items()})
    arrays = segment.arrays
    for place_of in (0, 1):
        f, g = 0, 6  # the same feature of the first two images
        p, q = arrays["places"][f, place_of], arrays["places"][g, place_of]
        arrays["places"][f, place_of], arrays["places"][g, place_of] = q, p
        swap("postings", p, q)(arrays)
        store(folder, segment)
        commit_to(path, folder, segment)
        assert any("postings differs from what words gives" in line for line in check(path))
    first = int(np.flatnonzero(np.diff(arrays["code_images"].astype(int)) == 1)[0])  # within a list: then it falls
    swap("code_images", first, first + 1)(arrays)
    store(folder, segment)
    commit_to(path, folder, segment)
    assert any("code_images differs from what code_words gives" in line for line in check(path))


MODEL = {"fingerprint": "0123456789abcdef", "dimension": 4, "file": None}


@pytest.mark.parametrize(
    ("vectors", "damaged"),
    [
        (np.tile(np.array([0.6, 0.8, 0, 0], np.float16), (6, 1)), False),
        (np.zeros((6, 4), np.float16), False),  # no image has one
        (np.ones((6, 4), np.float16), True),
        (np.full((6, 4), np.nan, np.float16), True),
        (np.zeros((6, 5), np.float16), True),
        (np.zeros((5, 4), np.float16), True),
        (np.zeros((6, 4), np.float32), True),
        (np.zeros(6, np.float16), True),
        (None, True),
    ],
)
def test_impossible_vectors_are_found(
    tmp_path: Path, vectors: np.ndarray[Any, Any] | None, damaged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvoc.index.check.CHUNK", 7)
    path, images = tmp_path / "a.polyvoc", collection(6, first=7)
    build(path, images, coded(3)).close()
    segment = segment_of_few_words([len(found) for found in images.values()])
    if vectors is not None:
        segment.arrays["embeddings"] = vectors
    store(path / "segments/000001", segment)
    commit_to(path, path / "segments/000001", segment)
    put_settings(path, {"embedding": MODEL})
    lines = [line for line in check(path) if "embeddings" in line]
    assert bool(lines) == damaged
    try_to_open(path)
    put_settings(path, {"embedding": None})
    lines = [line for line in check(path) if "embeddings" in line]
    assert bool(lines) == (vectors is not None)  # where no model made any


@pytest.mark.parametrize("odd", [[], "text", -1, {"surprise": 1}, {**MODEL, "dimension": 0}, {**MODEL, "fingerprint": None}])
def test_an_odd_model_is_found(index: Path, odd: Any) -> None:
    put_settings(index, {"embedding": odd})
    lines = list(check(index))
    assert any(FILE in line and "embedding" in line for line in lines)
    assert not any("\n" in line for line in lines)


def test_an_odd_description_with_the_right_checksum_is_found(index: Path) -> None:
    meta = index / SEGMENT / "meta.json"
    described = json.loads(meta.read_text())
    for odd in ([], {}, {**described, "arrays": {}}, {**described, "length": "x"}, {**described, "sizes": None}):
        meta.write_text(json.dumps(odd))
        edit(index, "UPDATE segments SET checksum = ? WHERE segment = 4", checksum(meta))
        correct_checksums(index)
        assert any(SEGMENT in line for line in check(index))
        try_to_open(index)


def test_a_segment_that_is_merged_meanwhile_is_no_error(index: Path) -> None:
    lines = check(index)
    with IndexWriter.open(index) as writer:
        for number in range(12):
            writer.add(f"more {number}", features(number))
            writer.commit()
    assert not (index / SEGMENT).exists()
    assert list(lines) == []
