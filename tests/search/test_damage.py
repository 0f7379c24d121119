"""A damaged or forged index gives the answer of its sound parts and says what is missing, or one line; never anything else."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import corruption
from polyvoc.errors import DamagedError, PolyvocError
from polyvoc.index.catalogue import FILE
from polyvoc.index.check import check
from polyvoc.index.repair import repair
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from samples import build, coded, collection, features, unflushed

__all__ = ["unflushed"]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("healthy") / "healthy.polyvoc"
    build(path, collection(16), coded(2), commits=4).close()
    with IndexWriter.open(path) as writer:
        writer.remove(["image 3", "image 6"])
    return path


@pytest.fixture
def index(healthy: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(healthy, tmp_path / "index.polyvoc"))


@pytest.mark.parametrize("seed", range(60))
def test_no_corruption_leads_to_a_wrong_answer(healthy: Path, tmp_path: Path, seed: int) -> None:
    """The same as `benchmarks/corruptions.py`, which tries more, on an index of photographs."""
    expected = corruption.Answers.of(healthy, [features(5), features(11)])
    path = Path(shutil.copytree(healthy, tmp_path / "index.polyvoc"))
    what = corruption.corrupt(path, np.random.default_rng(seed))
    outcome = expected.compare(path)
    assert outcome in corruption.RIGHT, (what, outcome)


@pytest.mark.parametrize("table", ["settings", "segments", "images", "sqlite_autoindex_images_1", "sqlite_autoindex_deleted_1"])
def test_no_bit_of_the_catalogue_leads_to_a_wrong_answer(healthy: Path, tmp_path: Path, table: str) -> None:
    """Damage of a page may hide rows, which have no checksum then."""
    rng, right = np.random.default_rng(1), corruption.Answers.of(healthy, [features(5), features(11)])
    path = Path(shutil.copytree(healthy, tmp_path / "index.polyvoc"))
    content = (path / FILE).read_bytes()
    with closing(sqlite3.connect(path / FILE)) as connection:
        ((page,),) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [table])
        ((size,),) = connection.execute("PRAGMA page_size")
    used = size * (page - 1) + np.flatnonzero(np.frombuffer(content, np.uint8)[size * (page - 1) : size * page])
    for at in (*used[:12], *rng.choice(used[12:], 10, replace=False)):  # the first ones are the header
        changed = bytearray(content)
        changed[at] ^= 1 << int(rng.integers(8))
        (path / FILE).write_bytes(changed)
        assert (outcome := right.compare(path)) in corruption.RIGHT, (at, outcome)


@pytest.mark.parametrize(
    ("sql", "message"),
    [
        ("DELETE FROM images WHERE image = 5", "the row of image 5 is missing"),
        ("DELETE FROM deleted", "the deleted images of segment 1 are damaged"),
        ("UPDATE deleted SET position = position - 1", "the deleted images of segment 2 are damaged"),
    ],
)
def test_rows_that_vanish_or_change_are_missing_images(index: Path, sql: str, message: str) -> None:
    with closing(sqlite3.connect(index / FILE)) as connection, connection:
        connection.execute(sql)
    with Index.open(index) as opened:
        hits = opened.search(features(5), top=16)
        assert not hits.complete and any(message in line and "--repair" in line for line in hits.damage)
    assert any("segment" in line for line in check(index))
    repair(index)
    assert list(check(index)) == []
    with Index.open(index) as opened:
        assert opened.search(features(5), top=16).complete


def test_a_segment_whose_row_vanishes_is_one_line(index: Path) -> None:
    with closing(sqlite3.connect(index / FILE)) as connection, connection:
        connection.execute("DELETE FROM segments WHERE segment = 2")
    with pytest.raises(DamagedError, match="rows of segments are not those of the last commit"):
        Index.open(index)
    assert list(check(index)) != []


def test_an_image_whose_row_vanishes_is_not_called_unknown(index: Path) -> None:
    with closing(sqlite3.connect(index / FILE)) as connection, connection:
        connection.execute("DELETE FROM images WHERE image = 5")
    with Index.open(index) as opened, pytest.raises(DamagedError, match="the row of image 5 is missing"):
        opened.image(5)


def test_the_rest_answers_and_says_what_is_missing(index: Path) -> None:
    with Index.open(index) as opened:
        lost = opened.folder.catalogue.ids_in(2)
        whole = opened.search(features(5), top=16)
        assert whole.complete and whole.damage == ()
    arrays = index / "segments/000002/arrays"
    arrays.write_bytes(bytes(reversed(arrays.read_bytes())))
    with Index.open(index) as opened:
        hits = opened.search(features(5), top=16)
        assert not hits.complete and any("--repair" in line for line in hits.damage)
        missing = {image for first, last in hits.missing for image in range(first, last + 1)}
        assert missing == set(lost)
        assert {hit.image for hit in hits} == {hit.image for hit in whole} - set(lost)
        with pytest.raises(DamagedError, match="--repair"):
            opened.search(features(5), require_all=True)
        with pytest.raises(DamagedError, match="--repair"):
            opened.pairs()


def test_a_file_that_is_cut_under_an_open_index_is_no_signal(index: Path) -> None:
    with Index.open(index) as opened:
        assert opened.search(features(5)).complete
        for path in index.glob("segments/*/arrays"):
            with path.open("r+b") as file:
                file.truncate(100)
        hits = opened.search(features(5))
        assert not hits.complete and not hits and "100 bytes" in hits.damage[0]


def forgeries() -> Iterator[tuple[str, Callable[[dict[str, np.ndarray[Any, Any]]], None]]]:
    """Yield every array with the largest numbers, the smallest, zeros, random ones, and cut to one element."""
    names = ("feature_starts", "frames", "positions", "shapes", "starts", "postings", "run_starts", "run_words", "run_lengths",
             "words", "documents", "code_starts", "codes", "code_images", "code_words", "code_norms", "rest")  # fmt: skip

    def fill(name: str, kind: str) -> Callable[[dict[str, np.ndarray[Any, Any]]], None]:
        def change(arrays: dict[str, np.ndarray[Any, Any]]) -> None:
            array = arrays[name]
            if kind == "one":
                arrays[name] = array[:1].copy()
            elif kind == "random":
                size = array.nbytes
                arrays[name] = np.frombuffer(np.random.default_rng(1).bytes(size), array.dtype).reshape(array.shape).copy()
            else:
                array.view(np.uint8)[:] = {"ones": 255, "zeros": 0}[kind]

        return change

    for name in names:
        for kind in ("ones", "zeros", "random", "one"):
            yield f"{name} {kind}", fill(name, kind)


@pytest.mark.parametrize(("what", "change"), list(forgeries()), ids=[what for what, _ in forgeries()])
def test_a_forged_index_ends_no_process(index: Path, what: str, change: Callable[..., None]) -> None:
    """Checksums fit here: answers may be anything, but no kernel reads or writes outside its arrays (see also test_modes)."""
    corruption.forge(index, change)
    outcome = corruption.run_in_child(index, [features(5), features(11)])
    assert outcome in ("answered", "refused"), (what, outcome)


def test_a_forged_description_is_refused(index: Path) -> None:
    meta = index / "segments/000001/meta.json"
    described = json.loads(meta.read_text())
    described["arrays"]["codes"][1] = [2, 1 << 40]
    meta.write_text(json.dumps(described))
    with Index.open(index) as opened:
        assert not opened.search(features(5)).complete
    with pytest.raises(PolyvocError), Index.open(index) as opened:
        opened.search(features(5), require_all=True)
