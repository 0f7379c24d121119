"""Copies of real photographs, made in every way that people make them, are found, grouped, reported, moved and put back."""

from __future__ import annotations

import csv
import inspect
import io
import os
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from test_relocation import state

from commands import answer, refuse, run
from polyvoc.cli.demo import find_photographs
from polyvoc.cli.duplicates import FORMULA, duplicates_command, duplicates_csv, duplicates_page
from polyvoc.duplicates.compare import images_to_compare
from polyvoc.duplicates.groups import (
    MIN_PROBABILITY,
    Copy,
    Duplicates,
    Group,
    GroupedImage,
    Link,
    find_duplicates,
    group_copies,
)
from polyvoc.duplicates.move import JOURNAL, movable
from polyvoc.duplicates.overlap import IDENTITY
from polyvoc.errors import WriteError
from polyvoc.index.check import check_index
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.search.index import Index
from polyvoc.web.html import escaped
from samples import unflushed

BENCHMARKS = str(Path(__file__).parent.parent.parent / "benchmarks")
sys.path.insert(0, BENCHMARKS)

from alterations import ALTERATIONS, file_name  # noqa: E402

sys.path.remove(BENCHMARKS)  # a file there has the name of a library

__all__ = ["unflushed"]

CHOSEN = ("astronaut", "cat", "coffee", "motorcycle")
MADE = [name for name in ALTERATIONS if name != "ornate frame"]  # with which a photograph becomes another one
SMALL = FeatureOptions(long_side=512, max_features=1200)


def originals(folder: Path) -> dict[str, Path]:
    """Write the photographs, no side above 400 pixels; and the right half of a stereo pair: another shot of the same thing."""
    pytest.importorskip("skimage", reason="the photographs are those of scikit-image")
    made = {}
    for name, sources in find_photographs().items():
        for source, label in zip(sources, (name, f"{name}-again"), strict=True):
            if name in CHOSEN and name in (label, "motorcycle"):
                image = Image.open(source).convert("RGB")
                image.thumbnail((400, 400))
                made[label] = folder / f"{label}.png"
                image.save(made[label])
    return made


def altered(path: Path, alteration: str, folder: Path) -> Path:
    rng = np.random.default_rng([*path.stem.encode(), *alteration.encode()])
    target = folder / f"{path.stem}-{file_name(alteration)}.jpg"
    with Image.open(path) as image:
        ALTERATIONS[alteration](image, rng).save(target, quality=30 if alteration == "quality 30" else 90)
    return target


def update(index: Path, folder: Path) -> None:
    with IndexWriter.open(index, feature_options=None if index.exists() else SMALL) as writer:
        writer.update([folder])
        writer.find_copies()


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of photographs and altered copies in two steps, and its index, which was searched after each."""
    place = tmp_path_factory.mktemp("world")
    photos = place / "photos"
    (photos / "altered").mkdir(parents=True)
    made = originals(photos)
    for step in (MADE[::2], MADE[1::2]):
        for name in CHOSEN:
            for alteration in step:
                altered(made[name], alteration, photos / "altered")
        update(place / "index", photos)
    return photos, place / "index"


def members(group: Group) -> set[str]:
    return {Path(one.path).stem for one in (group.best, *(copy.photograph for copy in group.copies))}


def pairs_of(index: Path, sure: float = 0.9) -> dict[frozenset[str], float]:
    with Index.open(index) as opened:
        return {frozenset((link.first, link.second)): link.probability for link in find_duplicates(opened, sure).links}


# --- what is found ------------------------------------------------------------------------------------------------------------


def test_every_alteration_is_grouped_with_its_original(world: tuple[Path, Path]) -> None:
    with Index.open(world[1]) as index:
        found = find_duplicates(index)
    assert found.waiting == 0
    assert found.photographs == len(CHOSEN) * (len(MADE) + 1) + 1
    expected = {name: {name, *(f"{name}-{file_name(one)}" for one in MADE)} for name in CHOSEN}
    for group in found.groups:
        (name,) = {member.split("-")[0] for member in members(group)}
        assert members(group) <= expected[name], "another shot is no copy"
        assert len(expected[name] - members(group)) <= 1, expected[name] - members(group)
    assert len(found.groups) == len(CHOSEN)


def test_the_original_is_best_and_alterations_are_named(world: tuple[Path, Path]) -> None:
    with Index.open(world[1]) as index:
        found = find_duplicates(index)
    for group in found.groups:
        assert Path(group.best.path).stem in CHOSEN
        words = {Path(copy.photograph.path).stem.partition("-")[2]: copy.in_words(group.best) for copy in group.copies}
        assert words["mirror"] == "mirrored"
        assert words["quality-30"] == "the same picture in another file"
        assert words["resize-to-25"] == "25 % of the size"
        assert "rotated" in words["rotate-by-any-angle"]
        assert "something added around it" in words["border"]
        assert any(f"{share} % of the area" in words["crop-to-50"] for share in range(46, 54))
        assert words["mirror-and-crop"].startswith("mirrored, ")


def test_the_same_frame_does_not_make_copies(world: tuple[Path, Path], tmp_path: Path) -> None:
    """Two photographs with one ornate frame match exactly, in a third of their area."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for name in ("astronaut", "coffee", "cat"):
        with Image.open(world[0] / f"{name}.png") as image:
            framed = ALTERATIONS["ornate frame"](image.resize((400, 300)), np.random.default_rng(1))
        framed.save(photos / f"{name}.png")
        shutil.copy2(world[0] / f"{name}.png", photos / f"{name}-bare.png")
    update(tmp_path / "index", photos)
    with Index.open(tmp_path / "index") as index:
        found = find_duplicates(index)
    assert {frozenset(members(group)) for group in found.groups} <= {
        frozenset({name, f"{name}-bare"}) for name in ("astronaut", "coffee", "cat")
    }


def test_in_steps_or_at_once_is_the_same(world: tuple[Path, Path], tmp_path: Path) -> None:
    photos, index = world
    update(tmp_path / "index", photos)
    whole, steps = pairs_of(tmp_path / "index", 0.5), pairs_of(index, 0.5)
    sure = {pair for pair, probability in whole.items() if probability > 0.9}
    assert sure <= steps.keys()
    assert {pair for pair, probability in steps.items() if probability > 0.9} <= whole.keys()

    def parts(path: Path) -> set[frozenset[str]]:
        with Index.open(path) as opened:
            return {frozenset(members(group)) for group in find_duplicates(opened).groups}

    assert parts(tmp_path / "index") == parts(index)


def test_a_search_that_stops_goes_on_where_it_was(world: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(world[1], tmp_path / "index")
    with IndexWriter.open(tmp_path / "index") as writer:
        with writer.catalogue.transaction():
            writer.catalogue.put_facts({"copies": None})
        with pytest.raises(KeyboardInterrupt):
            writer.find_copies(mirror=False, progress=_interrupt_at(7))
    assert list(check_index(tmp_path / "index")) == []
    with Index.open(tmp_path / "index") as opened:
        record = opened.home.read_copies()
        assert record is not None
        assert record.mirrored == 0
        waiting = len(images_to_compare(opened, record.asked, None))
        assert 0 < waiting <= len(opened) - 6
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.find_copies()
    assert pairs_of(tmp_path / "index") == pairs_of(world[1])
    assert len(list((tmp_path / "index" / "copies").iterdir())) == 1


def _interrupt_at(step: int):
    def progress(stage: str, done: int, total: int) -> None:
        if done == step:
            raise KeyboardInterrupt

    return progress


def test_higher_sure_is_a_subset(world: tuple[Path, Path]) -> None:
    before = None
    for sure in (0.01, 0.5, 0.9, 0.99, 1.0):
        pairs = pairs_of(world[1], sure)
        assert all(probability >= sure for probability in pairs.values())
        assert before is None or pairs.items() <= before.items()
        before = pairs


def test_without_mirrors(world: tuple[Path, Path]) -> None:
    with Index.open(world[1]) as index:
        for group in find_duplicates(index, mirror=False).groups:
            assert all(np.linalg.det(copy.transform[:, :2]) > 0 for copy in group.copies)


def test_photographs_that_are_gone_are_forgotten(world: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(world[1], tmp_path / "index")
    gone = str(world[0] / "coffee.png")
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.remove([gone])
    assert all(gone not in pair for pair in pairs_of(tmp_path / "index"))
    assert {pair for pair in pairs_of(world[1]) if gone not in pair} == pairs_of(tmp_path / "index").keys()
    assert list(check_index(tmp_path / "index")) == []


def test_damage_is_found(world: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(world[1], tmp_path / "index")
    (file,) = (tmp_path / "index" / "copies").iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 255
    file.write_bytes(content)
    assert any("copies" in line for line in check_index(tmp_path / "index"))
    file.unlink()
    assert any("missing" in line for line in check_index(tmp_path / "index"))
    assert "missing" in refuse("duplicates", "--index", tmp_path / "index")


# --- identical files ----------------------------------------------------------------------------------------------------------


def test_identical_files_are_found_even_without_texture(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    flat = Image.new("RGB", (64, 64), "navy")
    for name in ("flat", "flat again"):
        flat.save(photos / f"{name}.png")
    Image.new("RGB", (64, 64), "red").save(photos / "red.png")
    noise = np.random.default_rng(1).integers(0, 255, (80, 80, 3), np.uint8)
    for name in ("noise", "noise again"):
        Image.fromarray(noise).save(photos / f"{name}.bmp")
    told = answer("duplicates", photos, "--index", tmp_path / "index", "--sure", "1")
    found = {frozenset(Path(one["path"]).stem for one in (group["best"], *group["copies"])) for group in told["groups"]}
    assert found == {frozenset({"flat", "flat again"}), frozenset({"noise", "noise again"})}
    assert {copy["alteration"] for group in told["groups"] for copy in group["copies"]} == {"identical file"}


# --- reports ------------------------------------------------------------------------------------------------------------------

HOSTILE = ('=cmd|" /C calc"!A0.jpg', "<script>alert(1)</script>.jpg", "@sum(1).jpg", "a\nb.jpg", os.fsdecode(b"\xff.jpg"))


def made_up() -> Duplicates:
    """Copies with hostile names, whose files are not there."""
    known = {name: GroupedImage(name, number, 100, 100, 1000, 10**18 + number) for number, name in enumerate(HOSTILE)}
    links = [Link(HOSTILE[0], other, 0.95, IDENTITY) for other in HOSTILE[1:]]
    return Duplicates(0.9, 9, tuple(links), tuple(group_copies(known, links, 0.9)), 0)


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.add(tag)


def test_hostile_names_are_harmless() -> None:
    found = made_up()
    page = Tags()
    page.feed(duplicates_page(found))
    assert "script" not in page.tags
    rows = list(csv.DictReader(io.StringIO(duplicates_csv(found))))
    assert len(rows) == len(HOSTILE)
    assert not any(cell.startswith(FORMULA) for row in rows for cell in row.values())
    assert {row["path"].lstrip("'").replace("\\udcff", "\udcff") for row in rows} == set(HOSTILE)
    assert [row["role"] for row in rows] == ["best", "copy", "copy", "copy", "copy"]


def test_reports_say_the_same(world: tuple[Path, Path], tmp_path: Path) -> None:
    html, table = tmp_path / "report.html", tmp_path / "report.csv"
    told = answer("duplicates", "--index", world[1], "--html", html, "--csv", table)
    rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
    listed = [one for group in told["groups"] for one in (group["best"], *group["copies"])]
    assert [row["path"] for row in rows] == [one["path"] for one in listed]
    text = html.read_text(encoding="utf-8")
    assert text.count("data:image/jpeg;base64,") == len(listed)
    assert text.count("<b>keep</b>") == len(told["groups"])
    assert "http" not in text
    for group in told["groups"]:
        for copy in group["copies"]:
            assert 0.9 <= copy["probability"] <= 1
            assert escaped(copy["alteration"]) in text
    shown = run("duplicates", "--index", world[1])
    assert shown.exit_code == 0
    assert shown.stdout.count("  keep ") == len(told["groups"])
    assert f"{len(told['groups'])} groups" in shown.stdout


# --- moving -------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def own(world: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path]:
    """A few photographs of one's own, and an index of them."""
    photos = tmp_path / "photos"
    (photos / "altered").mkdir(parents=True)
    for name in ("cat.png", "coffee.png", "altered/cat-mirror.jpg", "altered/coffee-quality-30.jpg"):
        shutil.copy2(world[0] / name, photos / name)
    return photos, tmp_path / "index"


def test_moved_copies_come_back_byte_for_byte(own: tuple[Path, Path], tmp_path: Path) -> None:
    photos, index = own
    before = state(photos)
    told = answer("duplicates", photos, "--index", index, "--move", tmp_path / "there")
    assert {Path(one["from"]).name for one in told["moved"]} == {"cat-mirror.jpg", "coffee-quality-30.jpg"}
    assert state(photos).keys() == {"cat.png", "coffee.png"}
    assert state(tmp_path / "there").keys() == {"altered/cat-mirror.jpg", "altered/coffee-quality-30.jpg"}
    assert state(photos) | state(tmp_path / "there") == before
    with Index.open(index) as opened:
        assert {Path(row.path).name for row in opened.images()} == {"cat.png", "coffee.png"}
    assert answer("duplicates", photos, "--index", index)["groups"] == []
    back = answer("duplicates", "--undo", tmp_path / "there")
    assert len(back["moved"]) == 2
    assert state(photos) == before
    assert len(answer("duplicates", photos, "--index", index)["groups"]) == 2


def test_what_changed_or_is_in_a_store_stays(own: tuple[Path, Path], tmp_path: Path) -> None:
    photos, index = own
    update(index, photos)
    (photos / "altered" / "cat-mirror.jpg").write_bytes(b"something else")
    with Index.open(index) as opened:
        paths, staying = movable(find_duplicates(opened))
    assert [Path(path).name for path in paths] == ["coffee-quality-30.jpg"]
    assert [Path(problem.path).name for problem in staying] == ["cat-mirror.jpg"]
    best = GroupedImage(str(photos / "cat.png"), 1, 100, 100, *_state(photos / "cat.png"))
    stored = GroupedImage("s3://bucket/cat.png", 2, 100, 100, 5)
    link = photos / "altered" / "again.png"
    link.symlink_to(photos / "cat.png")
    same = GroupedImage(str(link), 3, 100, 100, *_state(link))
    group = Group(best, "", tuple(Copy(one, 1.0, None, IDENTITY, True) for one in (stored, same)))
    paths, staying = movable(Duplicates(0.9, 3, (), (group,), 0))
    assert paths == []
    assert ["in a store" in staying[0].reason, "the very file" in staying[1].reason] == [True, True]


def _state(path: Path) -> tuple[int, int]:
    return path.stat().st_size, path.stat().st_mtime_ns


def test_a_folder_among_the_photographs_is_refused(own: tuple[Path, Path]) -> None:
    photos, index = own
    before = state(photos)
    assert "lies among the photographs" in refuse("duplicates", photos, "--index", index, "--move", photos / "copies")
    assert state(photos) == before
    told = answer("duplicates", photos, "--index", index, "--move", photos / ".copies")
    assert len(told["moved"]) == 2
    assert (photos / ".copies" / JOURNAL).exists()
    assert answer("duplicates", photos, "--index", index)["groups"] == []


def test_a_folder_in_the_index_is_refused(own: tuple[Path, Path]) -> None:
    """It would be swept away with what no commit refers to."""
    photos, index = own
    update(index, photos)
    before = state(photos)
    assert "lies in the index" in refuse("duplicates", "--index", index, "--move", index / "segments" / "copies")
    assert state(photos) == before


def test_copies_that_lie_beside_all_indexed_photographs_do_not_leave_the_folder(own: tuple[Path, Path], tmp_path: Path) -> None:
    """Files without texture are in no index: the folder of all that are says nothing of them."""
    photos, index = own
    flat = tmp_path / "flat"
    flat.mkdir()
    for name in ("one.png", "two.png"):
        Image.new("RGB", (64, 64), "navy").save(flat / name)
    there = tmp_path / "a" / "deep" / "folder"
    told = answer("duplicates", photos / "altered", flat, "--index", index, "--move", there)
    assert [Path(one["from"]).parent for one in told["moved"]] == [flat]
    assert state(there).keys() == {os.path.relpath(one["from"], tmp_path) for one in told["moved"]}


def test_nothing_moves_while_another_writes(own: tuple[Path, Path], tmp_path: Path) -> None:
    photos, index = own
    update(index, photos)
    before = state(photos)
    with IndexWriter.open(index):
        assert "another process" in refuse("duplicates", "--index", index, "--move", tmp_path / "there")
    assert state(photos) == before


def test_what_was_moved_is_told_though_the_index_cannot_forget_it(
    own: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, index = own
    update(index, photos)

    def full(*_: object) -> None:
        raise WriteError("the disk is full")

    monkeypatch.setattr(IndexWriter, "remove", full)
    told = answer("duplicates", "--index", index, "--move", tmp_path / "there")
    assert len(told["moved"]) == 2
    assert ["the disk is full" in one["reason"] for one in told["stayed"]] == [True]


def test_the_command_is_as_sure_as_the_library() -> None:
    assert inspect.signature(duplicates_command).parameters["sure"].default == MIN_PROBABILITY


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--sure", "0"], "nine out of ten"),
        (["--sure", "2"], "nine out of ten"),
        (["--undo", "nowhere"], "nowhere"),
        (["--undo", "x", "--move", "y"], "give it alone"),
        (["--undo", "x", "--html", "y"], "give it alone"),
        (["--csv", "no such folder/report.csv"], "there is no folder"),
        (["no such folder"], "does not exist"),
        (["--index", "nowhere.polyvoc"], "does not exist"),
        (["--move", "s3://bucket/x"], "give a path on a disk"),
    ],
)
def test_refusals(world: tuple[Path, Path], arguments: list[str], line: str) -> None:
    place = [] if "--index" in arguments else ["--index", world[1]]
    assert line in refuse("duplicates", *arguments, *place)
