"""Altered copies of real photographs are found, grouped, reported, moved and moved back."""

from __future__ import annotations

import csv
import io
import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import answer, refuse, run
from disk import contents
from polyvoc.cli.demo_photos import find_photographs
from polyvoc.cli.duplicates import FORMULA, duplicates_csv, duplicates_page, expected_text
from polyvoc.duplicates.compare import check_pairs, compare, pending_tasks, read_pairs
from polyvoc.duplicates.decisions import check_decisions, decide
from polyvoc.duplicates.groups import (
    Copy,
    Duplicates,
    Group,
    ImageFile,
    Link,
    Scope,
    find_duplicates,
    find_links,
    group_copies,
)
from polyvoc.duplicates.move import JOURNAL, expected_wrong, movable
from polyvoc.duplicates.overlap import IDENTITY
from polyvoc.errors import DamagedError, WriteError
from polyvoc.index.check import check
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.search.index import Index
from polyvoc.storage.folders import is_below
from polyvoc.storage.trust import Trust
from polyvoc.web.html import escaped
from report_helpers import elements

BENCHMARKS = str(Path(__file__).parent.parent.parent / "benchmarks")
sys.path.insert(0, BENCHMARKS)

from alterations import ALTERATIONS, file_name  # noqa: E402

sys.path.remove(BENCHMARKS)  # a file there has the name of a library

CHOSEN = ("astronaut", "cat", "coffee", "motorcycle")
APPLIED = [name for name in ALTERATIONS if name != "ornate frame"]  # which makes another picture of a photograph
LESS_SURE = ("--min-probability", "0.9")  # small photographs, one of low quality
Folders = tuple[Path, Path]  # of photographs, and their index
SMALL = FeatureOptions(long_side=512, max_features=1200)


def write_originals(folder: Path) -> dict[str, Path]:
    """Write the photographs, no side above 400 pixels; and the right half of a stereo pair: another shot of the same thing."""
    pytest.importorskip("skimage", reason="the photographs are those of scikit-image")
    originals = {}
    for name, sources in find_photographs().items():
        for source, label in zip(sources, (name, f"{name}-again"), strict=True):
            if name in CHOSEN and name in (label, "motorcycle"):
                image = Image.open(source).convert("RGB")
                image.thumbnail((400, 400))
                originals[label] = folder / f"{label}.png"
                image.save(originals[label])
    return originals


def write_altered(path: Path, alteration: str, folder: Path) -> None:
    rng = np.random.default_rng([*path.stem.encode(), *alteration.encode()])
    target = folder / f"{path.stem}-{file_name(alteration)}.jpg"
    with Image.open(path) as image:
        ALTERATIONS[alteration](image, rng).save(target, quality=30 if alteration == "quality 30" else 90)


def trust_of(index: Path, *roots: str) -> Trust:
    """Return what an index may have read, after further roots were allowed."""
    with IndexWriter.open(index) as writer:
        writer.record_roots(roots)
        return writer.folder.trust


def update(index: Path, folder: Path) -> None:
    with IndexWriter.open(index, feature_options=None if index.exists() else SMALL) as writer:
        writer.update([folder])
        compare(writer)


@pytest.fixture(scope="module")
def altered(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """A folder of photographs and altered copies that grew in two steps, and its index, compared after each."""
    folder = tmp_path_factory.mktemp("altered")
    photos = folder / "photos"
    (photos / "altered").mkdir(parents=True)
    originals = write_originals(photos)
    for step in (APPLIED[::2], APPLIED[1::2]):
        for name in CHOSEN:
            for alteration in step:
                write_altered(originals[name], alteration, photos / "altered")
        update(folder / "index", photos)
    return photos, folder / "index"


@pytest.fixture
def index_copy(altered: Folders, tmp_path: Path) -> Path:
    return Path(shutil.copytree(altered[1], tmp_path / "index"))


def names(group: Group) -> frozenset[str]:
    return frozenset(Path(file.path).stem for file in (group.best, *(copy.file for copy in group.copies)))


def duplicates_in(index: Path, min_probability: float = 0.9, mirror: bool = True) -> Duplicates:
    with Index.open(index) as opened:
        return find_duplicates(opened, min_probability, mirror)


def pairs_in(index: Path, min_probability: float = 0.9) -> dict[frozenset[str], float]:
    return {frozenset((link.first, link.second)): link.probability for link in duplicates_in(index, min_probability).links}


# -- pairs and groups


def test_alterations_are_grouped_with_their_original_and_described(altered: Folders) -> None:
    found = duplicates_in(altered[1])
    assert found.not_compared == 0
    assert found.n_images == len(CHOSEN) * (len(APPLIED) + 1) + 1
    assert len(found.groups) == len(CHOSEN)
    expected = {name: {name, *(f"{name}-{file_name(one)}" for one in APPLIED)} for name in CHOSEN}
    for group in found.groups:
        (name,) = {member.split("-")[0] for member in names(group)}
        assert names(group) <= expected[name], "another shot is no copy"
        assert len(expected[name] - names(group)) <= 1, expected[name] - names(group)
        assert Path(group.best.path).stem == name
        texts = {Path(copy.file.path).stem.partition("-")[2]: copy.describe(group.best) for copy in group.copies}
        assert texts["mirror"] == "mirrored"
        assert texts["quality-30"] == "the same picture in another file"
        assert texts["resize-to-25"] == "25 % of the size"
        assert "rotated" in texts["rotate-by-any-angle"]
        assert "something added around it" in texts["border"]
        assert any(f"{share} % of the area" in texts["crop-to-50"] for share in range(46, 54))
        assert texts["mirror-and-crop"].startswith("mirrored, ")
    for group in duplicates_in(altered[1], mirror=False).groups:
        assert all(np.linalg.det(copy.transform[:, :2]) > 0 for copy in group.copies)


def test_the_same_frame_does_not_make_copies(altered: Folders, tmp_path: Path) -> None:
    """Two photographs with one ornate frame match exactly, in a third of their area."""
    photos = tmp_path / "photos"
    photos.mkdir()
    framed = ("astronaut", "coffee", "cat")
    for name in framed:
        with Image.open(altered[0] / f"{name}.png") as image:
            ALTERATIONS["ornate frame"](image.resize((400, 300)), np.random.default_rng(1)).save(photos / f"{name}.png")
        shutil.copy2(altered[0] / f"{name}.png", photos / f"{name}-bare.png")
    update(tmp_path / "index", photos)
    assert set(map(names, duplicates_in(tmp_path / "index").groups)) <= {frozenset({name, f"{name}-bare"}) for name in framed}


def test_in_steps_or_at_once_is_the_same(altered: Folders, tmp_path: Path) -> None:
    photos, index = altered
    update(tmp_path / "index", photos)
    at_once, steps = pairs_in(tmp_path / "index", 0.5), pairs_in(index, 0.5)
    assert {pair for pair, probability in at_once.items() if probability > 0.9} <= steps.keys()
    assert {pair for pair, probability in steps.items() if probability > 0.9} <= at_once.keys()
    assert set(map(names, duplicates_in(tmp_path / "index").groups)) == set(map(names, duplicates_in(index).groups))


def test_interrupted_comparison_continues(altered: Folders, index_copy: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done == 7:
            raise KeyboardInterrupt

    with IndexWriter.open(index_copy) as writer:
        with writer.catalogue.transaction():
            writer.catalogue.put_settings({"duplicate_pairs": None})
        with pytest.raises(KeyboardInterrupt):
            compare(writer, mirror=False, progress=interrupt)
    assert list(check(index_copy, more=[check_pairs])) == []
    with Index.open(index_copy) as opened:
        assert read_pairs(opened.folder).mirror_compared == 0
        assert 0 < len(pending_tasks(opened, mirror=False)) <= len(opened) - 6
    with IndexWriter.open(index_copy) as writer:
        compare(writer)
    assert pairs_in(index_copy) == pairs_in(altered[1])
    assert len(list((index_copy / "duplicate_pairs").iterdir())) == 1


def test_higher_min_probability_gives_a_subset(altered: Folders) -> None:
    before = None
    for minimum in (0.01, 0.5, 0.9, 0.99, 1.0):
        pairs = pairs_in(altered[1], minimum)
        assert all(probability >= minimum for probability in pairs.values())
        assert before is None or pairs.items() <= before.items()
        before = pairs


def test_removed_photographs_have_no_pairs(altered: Folders, index_copy: Path) -> None:
    removed = str(altered[0] / "coffee.png")
    with IndexWriter.open(index_copy) as writer:
        writer.remove([removed])
    assert pairs_in(index_copy).keys() == {pair for pair in pairs_in(altered[1]) if removed not in pair}
    assert list(check(index_copy, more=[check_pairs])) == []


def test_nothing_counts_as_compared_with_images_that_cannot_be_opened(index_copy: Path) -> None:
    pairs = contents(index_copy / "duplicate_pairs")
    (index_copy / "segments/000001/meta.json").write_bytes(b"")
    with IndexWriter.open(index_copy) as writer, pytest.raises(DamagedError, match="--repair"):
        compare(writer)
    assert contents(index_copy / "duplicate_pairs") == pairs


def test_damaged_pairs_are_reported(index_copy: Path) -> None:
    (file,) = (index_copy / "duplicate_pairs").iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 255
    file.write_bytes(content)
    assert any("duplicate_pairs" in line for line in check(index_copy, more=[check_pairs]))
    file.unlink()
    assert any("missing" in line for line in check(index_copy, more=[check_pairs]))
    assert "missing" in refuse("duplicates", "--index", index_copy)


def test_identical_files_are_found_even_without_texture(tmp_path: Path) -> None:
    photos = tmp_path / "photos"
    photos.mkdir()
    noise = np.random.default_rng(1).integers(0, 255, (80, 80, 3), np.uint8)
    for suffix in ("", " again"):
        Image.new("RGB", (64, 64), "navy").save(photos / f"flat{suffix}.png")
        Image.fromarray(noise).save(photos / f"noise{suffix}.bmp")
    Image.new("RGB", (64, 64), "red").save(photos / "red.png")
    groups = answer("duplicates", photos, "--index", tmp_path / "index", "--min-probability", "1")["groups"]
    found = {frozenset(Path(file["path"]).stem for file in (group["best"], *group["copies"])) for group in groups}
    assert found == {frozenset({"flat", "flat again"}), frozenset({"noise", "noise again"})}
    assert {copy["alteration"] for group in groups for copy in group["copies"]} == {"identical file"}


def test_identical_files_are_identical_whichever_is_kept(tmp_path: Path) -> None:
    """Also between two folders that hold only some of them; each is moved as surely as the others."""
    photos = tmp_path / "photos"
    noise = np.random.default_rng(1).integers(0, 255, (80, 80, 3), np.uint8)
    for age, name in enumerate("edcba"):
        (photos / name).mkdir(parents=True)
        Image.fromarray(noise).save(photos / name / "noise.bmp")
        os.utime(photos / name / "noise.bmp", (1e9 + age, 1e9 + age))
    (group,) = answer("duplicates", photos, "--index", tmp_path / "index")["groups"]
    assert group["best"]["path"] == str(photos / "e/noise.bmp")
    assert [(copy["kind"], copy["probability"], copy["via"]) for copy in group["copies"]] == [("identical", 1.0, None)] * 4
    os.rename(photos / "c/noise.bmp", photos / "b/again.bmp")
    folders = ("--between", photos / "b", photos / "d")
    (group,) = answer("duplicates", photos, "--index", tmp_path / "index", *folders)["groups"]
    assert group["best"]["path"] == str(photos / "d/noise.bmp")
    found = {(copy["path"], copy["kind"], copy["via"]) for copy in group["copies"]}
    assert found == {(str(photos / "b" / name), "identical", None) for name in ("noise.bmp", "again.bmp")}
    with Index.open(tmp_path / "index") as opened:
        assert {link.kind for link in find_links(opened)} == {"identical"}
    line = refuse("duplicates", "--index", tmp_path / "index", "--move", photos / "new")
    assert f"{photos / 'new'} is inside the indexed folder {photos}" in line, "although no photograph lies in it itself"


# -- classes, verdicts, folders


def test_another_shot_is_named_and_no_copy(altered: Folders) -> None:
    """The two photographs of a stereo pair."""
    with Index.open(altered[1]) as opened:
        links = {frozenset(Path(path).stem for path in link.paths): link for link in find_links(opened)}
    pair = links[frozenset({"motorcycle", "motorcycle-again"})]
    assert pair.kind == "another shot" and pair.probability < 0.1 and pair.another_shot > 0.5
    shown = run("duplicates", "--index", altered[1], "--shots", "--min-probability", "0.5").stdout
    assert any("motorcycle-again.png" in line and "another shot" in line for line in shown.splitlines())
    listed = answer("duplicates", "--index", altered[1], "--min-probability", "0.5")["pairs"]
    assert {one["kind"] for one in listed} >= {"copy", "another shot"}
    assert all(sum(one["probabilities"].values()) == pytest.approx(1, abs=1e-4) for one in listed)


def test_verdicts_are_respected_and_not_asked_again(altered: Folders, index_copy: Path) -> None:
    photos = altered[0]
    before = duplicates_in(index_copy)
    group = next(group for group in before.groups if Path(group.best.path).stem == "cat")
    dropped = next(copy.file.path for copy in group.copies if copy.via is None)
    ids = {row.path: row.image for row in Index.open(index_copy).images()}
    stranger = str(photos / "coffee.png")
    with IndexWriter.open(index_copy) as writer:
        made = decide(
            writer, [(ids[group.best.path], ids[dropped], "different"), (ids[group.best.path], ids[stranger], "copy")]
        )
        assert [one.evidence is not None for one in made] in ([True, False], [False, True]), "evidence of the pair that matched"
    after = duplicates_in(index_copy)
    assert frozenset((group.best.path, dropped)) not in {link.paths for link in (*after.links, *after.shots)}
    joined = next(one for one in after.groups if "coffee" in names(one))
    assert "cat" in names(joined) and Path(dropped).stem not in names(joined)
    chosen = next(copy for copy in joined.copies if copy.file.path in (stranger, group.best.path))
    assert (chosen.verdict, chosen.probability) == ("copy", 1.0)
    with IndexWriter.open(index_copy) as writer:
        decide(writer, [(ids[group.best.path], ids[copy.file.path], "copy") for copy in group.copies]
               + [(ids[group.best.path], ids[stranger], None)])  # fmt: skip
    shown, count = run("duplicates", "--index", index_copy), len(duplicates_in(index_copy).groups)
    assert shown.stdout.count("  keep ") == count - 1 and "--decided" in shown.stderr
    assert run("duplicates", "--index", index_copy, "--decided").stdout.count("  keep ") == count


def test_verdicts_change_the_probabilities_of_an_index(index_copy: Path) -> None:
    assert "too few" in refuse("calibrate", "--decisions", "--index", index_copy)
    with Index.open(index_copy) as opened:
        ids = {row.path: row.image for row in opened.images()}
        links = [link for link in find_links(opened) if not link.identical][:40]
    verdicts = [(ids[link.first], ids[link.second], "same" if number % 2 else "copy") for number, link in enumerate(links)]
    with IndexWriter.open(index_copy) as writer:
        decide(writer, verdicts)
    fitted = answer("calibrate", "--decisions", "--index", index_copy)
    assert fitted["verdicts"] == {"same": 20, "copy": 20, "different": 0} and not fitted["saved"]
    assert fitted["copy"]["stretch"] < 0.5 or fitted["copy"]["shift"] < -1, "half of the clearest copies are none"
    before = pairs_in(index_copy, 0.01)
    answer("calibrate", "--decisions", "--save", "--index", index_copy)
    after = pairs_in(index_copy, 0.01)
    undecided = [pair for pair in before if before[pair] not in (0.0, 1.0) and before[pair] > 0.9]
    assert undecided and all(after.get(pair, 0.0) < before[pair] for pair in undecided)
    assert list(check(index_copy, more=[check_pairs, check_decisions])) == []


def test_reference_folders_and_pairs_between_folders(altered: Folders) -> None:
    photos, index = altered
    scope = Scope(reference=(str(photos / "altered"),))
    with Index.open(index) as opened:
        found = find_duplicates(opened, scope=scope)
        between = find_duplicates(opened, scope=Scope(between=(str(photos / "cat.png"), str(photos / "altered"))))
    assert all(Path(group.best.path).parent.name == "altered" for group in found.groups)
    paths, problems = movable(found, trust_of(index))
    assert problems == [] and paths and not any(is_below(path, [str(photos / "altered")]) for path in paths)
    assert [Path(group.best.path).stem for group in between.groups] == ["cat"]
    assert all(copy.via is None and Path(copy.file.path).parent.name == "altered" for copy in between.groups[0].copies)
    assert "no photograph of the index" in refuse("duplicates", "--index", index, "--reference", photos / "nowhere")
    rows = [
        copy
        for group in answer("duplicates", "--index", index, "--reference", photos / "altered")["groups"]
        for copy in group["copies"]
    ]
    assert {row["kind"] for row in rows} == {"copy"}


def test_expected_wrong_moves_are_the_sum_of_what_is_missing_to_one(altered: Folders) -> None:
    found = duplicates_in(altered[1])
    every = [copy for group in found.groups for copy in group.copies]
    assert expected_wrong(found, [copy.file.path for copy in every]) == pytest.approx(
        sum(1 - copy.probability for copy in every)
    )
    assert expected_wrong(found, []) == 0
    assert (expected_text(0.62), expected_text(0.01)) == ("0.6 expected wrong", "fewer than 0.1 expected wrong")


# -- reports

HOSTILE = ('=cmd|" /C calc"!A0.jpg', "<script>alert(1)</script>.jpg", "@sum(1).jpg", "a\nb.jpg", os.fsdecode(b"\xff.jpg"))


def test_hostile_names_are_harmless() -> None:
    files = {name: ImageFile(name, number, 100, 100, 1000, 10**18 + number) for number, name in enumerate(HOSTILE)}
    links = [Link(HOSTILE[0], other, 0.95, IDENTITY) for other in HOSTILE[1:]]
    found = Duplicates(0.9, 9, tuple(links), tuple(group_copies(files, links, 0.9)), 0)
    assert "script" not in elements(duplicates_page(found, lambda path: True))
    rows = list(csv.DictReader(io.StringIO(duplicates_csv(found))))
    assert len(rows) == len(HOSTILE)
    assert not any(cell.startswith(FORMULA) for row in rows for cell in row.values())
    assert {row["path"].lstrip("'").replace("\\udcff", "\udcff") for row in rows} == set(HOSTILE)
    assert [row["role"] for row in rows] == ["best", "copy", "copy", "copy", "copy"]


def test_reports_agree(altered: Folders, tmp_path: Path) -> None:
    html, table = tmp_path / "report.html", tmp_path / "report.csv"
    groups = answer("duplicates", "--index", altered[1], "--html", html, "--csv", table)["groups"]
    rows = list(csv.DictReader(io.StringIO(table.read_text(encoding="utf-8"))))
    listed = [file for group in groups for file in (group["best"], *group["copies"])]
    assert [row["path"] for row in rows] == [file["path"] for file in listed]
    text = html.read_text(encoding="utf-8")
    assert (text.count("data:image/jpeg;base64,"), text.count("<b>keep</b>")) == (len(listed), len(groups))
    assert "http" not in text
    for copy in (copy for group in groups for copy in group["copies"]):
        assert 0.9 <= copy["probability"] <= 1
        assert escaped(copy["alteration"]) in text
    shown = run("duplicates", "--index", altered[1])
    assert (shown.exit_code, shown.stdout.count("  keep ")) == (0, len(groups))
    assert f"{len(groups)} groups" in shown.stdout


# -- moving


@pytest.fixture
def own(altered: Folders, tmp_path: Path) -> Folders:
    """Two photographs and a copy of each, and the path of an index."""
    photos = tmp_path / "photos"
    (photos / "altered").mkdir(parents=True)
    for name in ("cat.png", "coffee.png", "altered/cat-mirror.jpg", "altered/coffee-quality-30.jpg"):
        shutil.copy2(altered[0] / name, photos / name)
    return photos, tmp_path / "index"


def test_moved_copies_come_back_byte_for_byte(own: Folders, tmp_path: Path) -> None:
    (photos, index), target = own, tmp_path / "target"
    before = contents(photos)
    result = answer("duplicates", photos, "--index", index, "--move", target, *LESS_SURE)
    assert {Path(one["from"]).name for one in result["moved"]} == {"cat-mirror.jpg", "coffee-quality-30.jpg"}
    assert 0 < result["expected_wrong"] <= 0.2 and result["min_probability"] == 0.9
    assert contents(photos).keys() == {"cat.png", "coffee.png"}
    assert contents(target).keys() == {"altered/cat-mirror.jpg", "altered/coffee-quality-30.jpg"}
    assert contents(photos) | contents(target) == before
    with Index.open(index) as opened:
        assert {Path(row.path).name for row in opened.images()} == {"cat.png", "coffee.png"}
    assert answer("duplicates", photos, "--index", index)["groups"] == []
    assert len(answer("duplicates", "--undo", target)["moved"]) == 2
    assert contents(photos) == before
    assert len(answer("duplicates", photos, "--index", index)["groups"]) == 2


def test_changed_remote_and_linked_files_are_not_moved(own: Folders) -> None:
    photos, index = own
    update(index, photos)
    (photos / "altered" / "cat-mirror.jpg").write_bytes(b"something else")
    paths, problems = movable(duplicates_in(index), trust_of(index))
    assert [Path(path).name for path in paths] == ["coffee-quality-30.jpg"]
    assert [Path(problem.path).name for problem in problems] == ["cat-mirror.jpg"]
    cat, link = photos / "cat.png", photos / "altered" / "again.png"
    link.symlink_to(cat)
    status = cat.stat()
    best, same = (ImageFile(str(path), 1, 100, 100, status.st_size, status.st_mtime_ns) for path in (cat, link))
    copies = tuple(Copy(file, 1.0, None, IDENTITY, True) for file in (ImageFile("s3://bucket/cat.png", 2, 100, 100, 5), same))
    paths, problems = movable(Duplicates(0.9, 3, (), (Group(best, "", copies),), 0), trust_of(index, "s3://bucket"))
    assert paths == []
    assert ["in a store" in problems[0].reason, "the best file itself" in problems[1].reason] == [True, True]


def test_targets_among_the_photographs_or_in_the_index_raise(own: Folders) -> None:
    """An update would index the copies again; the index deletes what no commit refers to."""
    photos, index = own
    before = contents(photos)
    assert "inside the indexed folder" in refuse("duplicates", photos, "--index", index, "--move", photos / "copies")
    update(index, photos)
    assert "inside the index" in refuse("duplicates", "--index", index, "--move", index / "segments" / "copies")
    assert contents(photos) == before
    assert len(answer("duplicates", photos, "--index", index, "--move", photos / ".copies", *LESS_SURE)["moved"]) == 2
    assert (photos / ".copies" / JOURNAL).exists()
    assert answer("duplicates", photos, "--index", index)["groups"] == []


def test_targets_beside_the_photographs_in_an_indexed_folder_raise(own: Folders, tmp_path: Path) -> None:
    """Also where the folder that was indexed has photographs in its subfolders only."""
    photos, _ = own
    everything, index = tmp_path / "everything", tmp_path / "everything.polyvoc"
    everything.mkdir()
    photos.rename(everything / "below")
    update(index, everything)
    assert "inside the indexed folder" in refuse("duplicates", "--index", index, "--move", everything / "copies")
    assert not (everything / "copies").exists()


def test_files_without_texture_do_not_leave_the_target_folder(own: Folders, tmp_path: Path) -> None:
    """They are in no index: they need not lie below the folder of all indexed photographs."""
    photos, index = own
    flat, target = tmp_path / "flat", tmp_path / "a" / "deep" / "folder"
    flat.mkdir()
    for name in ("one.png", "two.png"):
        Image.new("RGB", (64, 64), "navy").save(flat / name)
    result = answer("duplicates", photos / "altered", flat, "--index", index, "--move", target)
    assert [Path(one["from"]).parent for one in result["moved"]] == [flat]
    assert result["min_probability"] == 0.99 and result["expected_wrong"] <= 0.01 * len(result["moved"])
    assert contents(target).keys() == {os.path.relpath(one["from"], tmp_path) for one in result["moved"]}


def test_another_process_or_a_full_disk_hinders_the_index(
    own: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is moved while another process writes; files that are moved are reported though the index still has them."""
    photos, index = own
    update(index, photos)
    before = contents(photos)
    with IndexWriter.open(index):
        assert "another process" in refuse("duplicates", "--index", index, "--move", tmp_path / "target")
    assert contents(photos) == before

    def fail(*_: object) -> None:
        raise WriteError("the disk is full")

    monkeypatch.setattr(IndexWriter, "remove", fail)
    result = answer("duplicates", "--index", index, "--move", tmp_path / "target", *LESS_SURE)
    assert len(result["moved"]) == 2
    assert ["the disk is full" in one["reason"] for one in result["not_moved"]] == [True]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--min-probability", "0"], "min_probability=0.0"),
        (["--undo", "nowhere"], "nowhere"),
        *((["--undo", "x", option, "y"], "give it alone") for option in ("--move", "--html")),
        (["--csv", "no such folder/report.csv"], "there is no folder"),
        (["no such folder"], "does not exist"),
        (["--index", "nowhere.polyvoc"], "does not exist"),
        (["--move", "s3://bucket/x"], "give a path on a disk"),
    ],
)
def test_wrong_arguments_are_one_line(altered: Folders, arguments: list[str], line: str) -> None:
    index = [] if "--index" in arguments else ["--index", altered[1]]
    assert line in refuse("duplicates", *arguments, *index)
