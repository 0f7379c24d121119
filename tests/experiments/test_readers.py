"""Readers of datasets on small synthetic folders, and on published photographs where they are available."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from polyvoc.errors import DatasetError, OptionError
from polyvoc.experiments.datasets.readers import (
    READERS,
    Dataset,
    Question,
    _grouped_by_answers,
    first_questions,
    list_images,
    with_distractors,
)
from polyvoc.experiments.measures import Truth


def fill(folder: Path, *names: str, text: str = "") -> Path:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def names_of(dataset: Dataset) -> list[str]:
    return [path.name for path in dataset.images]


def right(dataset: Dataset, question: int, level: str = "") -> tuple[set[str], set[str]]:
    """The relevant and the junk images of a question, by file name."""
    names, truth = names_of(dataset), dataset.truths[level][question]
    return {names[i] for i in truth.relevant}, {names[i] for i in truth.junk}


# -- Holidays


def test_holidays(tmp_path: Path) -> None:
    fill(tmp_path, "jpg2/100100.jpg", "jpg2/100101.jpg", "jpg1/100001.jpg", "jpg1/100000.jpg", "jpg1/100002.jpg")
    dataset = READERS["holidays"](tmp_path)
    assert (dataset.name, dataset.kind, dataset.measure, dataset.notes) == ("holidays", "photographs", "mAP", ())
    assert names_of(dataset) == ["100000.jpg", "100001.jpg", "100002.jpg", "100100.jpg", "100101.jpg"]
    questions = [("100000", 0, "1000", None), ("100100", 3, "1001", None)]
    assert [(q.name, q.image, q.group, q.region) for q in dataset.questions] == questions
    assert dataset.questions[1].source == tmp_path / "jpg2" / "100100.jpg"
    assert dataset.truths == {"": (Truth(frozenset({1, 2}), frozenset({0})), Truth(frozenset({4}), frozenset({3})))}


def test_photographs_are_preferred_to_descriptors(tmp_path: Path) -> None:
    fill(tmp_path, "100000.jpg", "100001.jpg", "siftgeo/100000.siftgeo", "siftgeo/100001.siftgeo", "siftgeo/100002.siftgeo")
    assert len(READERS["holidays"](tmp_path).images) == 2
    described = READERS["holidays"](tmp_path, "siftgeo")
    assert (described.kind, len(described.images)) == ("siftgeo", 3)
    with pytest.raises(DatasetError, match=r"no hesaff of this dataset; expected 100000\.jpg"):
        READERS["holidays"](tmp_path, "hesaff")
    with pytest.raises(OptionError, match="kind='jpg' should be one of photographs, siftgeo, hesaff"):
        READERS["holidays"](tmp_path, "jpg")  # type: ignore[arg-type]
    fill(tmp_path, "siftgeo/readme.png")
    alone = READERS["holidays"](tmp_path / "siftgeo")
    assert (alone.kind, names_of(alone)) == ("siftgeo", [f"10000{i}.siftgeo" for i in range(3)])


def test_incomplete_groups_of_holidays_are_no_questions(tmp_path: Path) -> None:
    fill(tmp_path, "100000.jpg", "100001.jpg", "100101.jpg", "100102.jpg", "100200.jpg", "me.jpg")
    dataset = READERS["holidays"](tmp_path)
    assert len(dataset.images) == 5
    assert [question.name for question in dataset.questions] == ["100000"]
    assert dataset.notes == (
        "2 groups are left out: no query, or no other images (1001, 1002)",
        "1 images are left out: their names do not belong to this dataset",
    )


# -- Ukbench


def test_ukbench(tmp_path: Path) -> None:
    fill(tmp_path, *(f"ukbench{number:05d}.jpg" for number in (*range(8), 9, 10, 11)))
    dataset = READERS["ukbench"](tmp_path)
    assert (dataset.measure, len(dataset.images)) == ("N-S", 11)
    assert [(question.image, question.group) for question in dataset.questions] == [(i, str(i // 4)) for i in range(8)]
    assert dataset.truths[""][5] == Truth(frozenset({4, 5, 6, 7}))
    assert dataset.notes == ("1 groups are left out: fewer than four images (2)",)


# -- Oxford and Paris


def write_question(folder: Path, title: str, query: str, good: str, ok: str = "", junk: str = "") -> None:
    for part, text in (("query", query), ("good", good), ("ok", ok), ("junk", junk)):
        fill(folder, f"{title}_{part}.txt", text=text.replace(" ", "\n") if part != "query" else text)


@pytest.fixture
def oxford(tmp_path: Path) -> Path:
    fill(tmp_path, *(f"oxbuild_images/all_souls_00000{i}.jpg" for i in range(5)), "oxbuild_images/hertford_000009.jpg")
    truth = tmp_path / "gt_files"
    answers = {"good": "all_souls_000000 all_souls_000002", "ok": "all_souls_000004", "junk": "hertford_000009"}
    write_question(truth, "all_souls_1", "oxc1_all_souls_000000 10.5 20 100 200.25\n", **answers)
    write_question(truth, "all_souls_2", "oxc1_all_souls_000002 1 2 3 4", **answers)
    write_question(truth, "hertford_1", "oxc1_hertford_000009 1 2 3 4", good="hertford_000009")
    return tmp_path


def test_oxford(oxford: Path) -> None:
    dataset = READERS["oxford"](oxford)
    assert (dataset.measure, dataset.notes) == ("mAP", ())
    assert [(q.name, q.source.name, q.image, q.group) for q in dataset.questions] == [
        ("all_souls_1", "all_souls_000000.jpg", 0, "all_souls"),
        ("all_souls_2", "all_souls_000002.jpg", 2, "all_souls"),
        ("hertford_1", "hertford_000009.jpg", 5, "hertford"),
    ]
    assert dataset.questions[0].region == (10.5, 20.0, 100.0, 200.25)
    expected = {f"all_souls_00000{i}.jpg" for i in (0, 2, 4)}, {"hertford_000009.jpg"}
    assert right(dataset, 0) == right(dataset, 1) == expected
    for photograph in (oxford / "oxbuild_images").iterdir():
        photograph.rename(photograph.with_name(photograph.name + ".hesaff.sift"))
    described = READERS["oxford"](oxford)
    assert (described.kind, len(described.questions)) == ("hesaff", 3)


def test_a_part_of_oxford_notes_what_is_missing(oxford: Path) -> None:
    (oxford / "oxbuild_images" / "all_souls_000004.jpg").unlink()
    (oxford / "oxbuild_images" / "hertford_000009.jpg").unlink()
    dataset = READERS["oxford"](oxford)
    assert [question.name for question in dataset.questions] == ["all_souls_1", "all_souls_2"]
    assert right(dataset, 0) == ({"all_souls_000000.jpg", "all_souls_000002.jpg"}, set())
    assert dataset.notes == (
        "1 queries are left out: their image or all relevant images are missing (hertford_1)",
        "2 images of the ground truth are missing (all_souls_000004, hertford_000009)",
    )


@pytest.mark.parametrize("name", ["oxford", "paris", "roxford", "rparis"])
def test_missing_ground_truth_is_an_error(name: str, tmp_path: Path) -> None:
    fill(tmp_path, "jpg/all_souls_000000.jpg")
    with pytest.raises(DatasetError, match=r"no ground truth; expected (gt_files/all|paris_120310/def|gnd_roxf|gnd_rpar).*jpg"):
        READERS[name](tmp_path)


@pytest.mark.parametrize(
    "file, text, message",
    [
        ("all_souls_1_query.txt", "", "a region x1 y1 x2 y2"),
        *(
            ("all_souls_1_query.txt", f"oxc1_all_souls_000000 {region}", "a region x1 y1 x2 y2")
            for region in ("1 2 3", "1 2 3 x", "1 2 nan 4", "5 2 3 4")
        ),
        ("all_souls_1_good.txt", "é", "not a list of image names"),
        ("all_souls_1_ok.txt", None, "no such file"),
    ],
)
def test_damaged_ground_truth_is_an_error(oxford: Path, file: str, text: str | None, message: str) -> None:
    path = oxford / "gt_files" / file
    path.unlink() if text is None else path.write_text(text, encoding="utf-8")
    with pytest.raises(DatasetError, match=f"{file}: .*{message}"):
        READERS["oxford"](oxford)


def test_two_files_of_one_name_are_an_error(oxford: Path) -> None:
    fill(oxford, "small/all_souls_000003.jpg")
    with pytest.raises(DatasetError, match="have the same name; keep one"):
        READERS["oxford"](oxford)


def test_paris_leaves_out_web_pages(tmp_path: Path) -> None:
    fill(tmp_path, *(f"paris/defense/paris_defense_00000{i}.jpg" for i in range(3)))
    fill(tmp_path, "paris/louvre/paris_louvre_000136.jpg", text="<!DOCTYPE HTML><title>302 Found</title>")
    good = "paris_defense_000000 paris_defense_000001"
    write_question(tmp_path, "defense_1", "paris_defense_000000 1 2 3 4", good=good, junk="paris_louvre_000136")
    dataset = READERS["paris"](tmp_path)
    assert names_of(dataset) == [f"paris_defense_00000{i}.jpg" for i in range(3)]
    assert right(dataset, 0) == ({"paris_defense_000000.jpg", "paris_defense_000001.jpg"}, set())
    assert dataset.notes[0].startswith("1 files are left out: a web page")


# -- The revisited protocol


def entry(easy: list[int], hard: list[int], junk: list[int]) -> dict[str, object]:
    parts = {"easy": easy, "hard": hard, "junk": junk}
    return {"bbx": [1.0, 2.0, 30.0, 40.0], **{name: np.array(numbers, np.int64) for name, numbers in parts.items()}}


@pytest.fixture
def revisited(tmp_path: Path) -> Path:
    images = ["tower_2", "tower_1", "bridge_1", "bridge_2", "other"]
    queries = ["q_tower", "q_bridge", "q_tower_again", "q_lost"]
    gnd = [entry([1], [0], [4]), entry([2, 3], [], []), entry([0], [], []), entry([4], [], [])]
    fill(tmp_path, *(f"jpg/{name}.jpg" for name in (*images, *queries[:3], "stranger")))
    truth = {"imlist": images, "qimlist": queries, "gnd": gnd}
    (tmp_path / "gnd_roxford5k.pkl").write_bytes(pickle.dumps(truth, protocol=2))
    return tmp_path


def test_revisited_questions_are_not_in_the_database(revisited: Path) -> None:
    dataset = READERS["roxford"](revisited)
    assert names_of(dataset) == [f"{name}.jpg" for name in ("bridge_1", "bridge_2", "other", "tower_1", "tower_2")]
    names = ("q_tower", "q_bridge", "q_tower_again")
    assert [(q.name, q.source.name, q.image) for q in dataset.questions] == [(name, f"{name}.jpg", None) for name in names]
    assert [q.group for q in dataset.questions] == ["q_tower", "q_bridge", "q_tower"]  # those that share answers
    assert dataset.questions[0].region == (1.0, 2.0, 30.0, 40.0)
    assert dataset.notes == ("1 queries are left out: their image or all relevant images are missing (q_lost)",)


def test_revisited_levels(revisited: Path) -> None:
    dataset = READERS["roxford"](revisited)
    assert right(dataset, 0, "easy") == ({"tower_1.jpg"}, {"tower_2.jpg", "other.jpg"})
    assert right(dataset, 0, "medium") == ({"tower_1.jpg", "tower_2.jpg"}, {"other.jpg"})
    assert right(dataset, 0, "hard") == ({"tower_2.jpg"}, {"tower_1.jpg", "other.jpg"})
    assert right(dataset, 1, "hard") == (set(), {"bridge_1.jpg", "bridge_2.jpg"})
    assert {len(truths) for truths in dataset.truths.values()} == {3}


def test_groups_join_through_others() -> None:
    questions = [Question(name, Path(name), None) for name in "abcd"]
    truths = [Truth(frozenset(numbers)) for numbers in ({1}, {2}, {3}, {1, 2})]
    assert [q.group for q in _grouped_by_answers(questions, truths)] == ["a", "a", "c", "a"]


def test_a_part_of_a_revisited_set(revisited: Path) -> None:
    for name in ("tower_1", "bridge_1", "bridge_2"):
        (revisited / "jpg" / f"{name}.jpg").unlink()
    dataset = READERS["roxford"](revisited)
    assert [question.name for question in dataset.questions] == ["q_tower", "q_tower_again"]
    assert right(dataset, 0, "medium") == ({"tower_2.jpg"}, {"other.jpg"})
    assert right(dataset, 0, "easy")[0] == set()
    assert dataset.notes[1] == "3 images of the ground truth are missing (bridge_1, bridge_2, tower_1)"


# -- Folders of groups


def test_groups_by_sub_folder(tmp_path: Path) -> None:
    fill(tmp_path, "bridge/b.jpg", "bridge/a.png", "old/tower/a.jpg", "old/tower/b.jpg", "alone/a.jpg", "a-1.jpg", "a-2.jpg")
    dataset = READERS["groups"](tmp_path)
    assert [q.name for q in dataset.questions] == ["bridge/a.png", "bridge/b.jpg", "old/tower/a.jpg", "old/tower/b.jpg"]
    assert [q.group for q in dataset.questions] == ["bridge", "bridge", "old/tower", "old/tower"]
    assert len(dataset.images) == 7  # the others are distractors
    for question, truth in zip(dataset.questions, dataset.truths[""], strict=True):
        assert truth.junk == {question.image}
        assert {dataset.images[i].parent for i in truth.relevant | truth.junk} == {question.source.parent}


def test_groups_by_prefix(tmp_path: Path) -> None:
    towers, others = ("old_tower-a.jpg", "old_tower-b.jpg", "old_tower_c.jpg"), ("007.jpg", "008.jpg", "x.jpg")
    fill(tmp_path, *towers, "dog1.jpg", "dog02.jpg", *others)
    dataset = READERS["groups"](tmp_path)
    groups = {q.name: q.group for q in dataset.questions}
    assert groups == {**dict.fromkeys(towers, "old_tower"), "dog1.jpg": "dog", "dog02.jpg": "dog"}


@pytest.mark.parametrize(
    "names, message", [(["a-1.jpg", "b-1.jpg"], "no two images belong together"), (["a-1.jpg", "a-2.jpg"], "of one group, 'a'")]
)
def test_a_folder_without_groups_is_an_error(tmp_path: Path, names: list[str], message: str) -> None:
    fill(tmp_path, *names)
    with pytest.raises(DatasetError, match=f"{message}.*expected sub-folders"):
        READERS["groups"](tmp_path)


# -- All


@pytest.mark.parametrize("name", READERS)
def test_a_missing_or_empty_folder_is_an_error(name: str, tmp_path: Path) -> None:
    for folder, message in ((tmp_path / "nowhere", "no such folder; expected"), (tmp_path, "no images .*expected")):
        with pytest.raises(DatasetError, match=rf"^.*{message}.*\.jpg.*\Z"):  # in one line
            READERS[name](folder)


def test_hidden_files_are_skipped_and_links_are_followed(tmp_path: Path) -> None:
    disk = fill(tmp_path / "disk", "100000.jpg", "100001.jpg", "._100000.jpg", ".thumbnails/100000.jpg")
    folder = tmp_path / "holidays"
    folder.mkdir()
    (folder / "jpg").symlink_to(disk)
    (disk / "circle").symlink_to(disk)
    assert len(READERS["holidays"](folder).images) == 2


def test_distractors(tmp_path: Path) -> None:
    dataset = READERS["holidays"](fill(tmp_path / "set", "100000.jpg", "100001.jpg"))
    more = fill(tmp_path / "more", "b/100000.jpg", "a/x.png", "note.txt", "y.siftgeo")
    larger = with_distractors(dataset, more)
    assert [path.relative_to(tmp_path).as_posix() for path in larger.images[2:]] == ["more/a/x.png", "more/b/100000.jpg"]
    assert (larger.name, larger.questions, larger.truths) == ("holidays + 2", dataset.questions, dataset.truths)
    assert len(dataset.images) == 2
    listed = with_distractors(dataset, [*list_images(more)[1:], dataset.images[0]])
    assert len(listed.images) == 3  # images that the dataset already has are skipped
    with pytest.raises(DatasetError, match="no siftgeo of this dataset"):
        with_distractors(READERS["holidays"](fill(tmp_path / "sift", "100000.siftgeo", "100001.siftgeo")), tmp_path / "set")


def test_fewer_questions_are_spread_evenly(tmp_path: Path) -> None:
    dataset = READERS["ukbench"](fill(tmp_path, *(f"ukbench{number:05d}.jpg" for number in range(40))))
    fewer = first_questions(dataset, 4)
    assert [question.image for question in fewer.questions] == [0, 10, 20, 30]
    assert fewer.truths[""] == tuple(dataset.truths[""][i] for i in (0, 10, 20, 30))
    assert fewer.images == dataset.images
    assert fewer.notes == ("4 of 40 queries are used",)
    assert first_questions(dataset, 40) is dataset
    with pytest.raises(OptionError, match="n=0"):
        first_questions(dataset, 0)


@pytest.mark.parametrize(
    "name, folder, counts", [("holidays", "holidays150", (422, 150)), ("ukbench", "ukbench500", (500, 500))]
)
def test_on_photographs(name: str, folder: str, counts: tuple[int, int]) -> None:
    data = os.environ.get("POLYVOC_DATA")
    if not data or not Path(data, folder).is_dir():
        pytest.skip(f"POLYVOC_DATA does not name a folder that holds {folder}")
    dataset = READERS[name](Path(data, folder))
    assert (len(dataset.images), len(dataset.questions), dataset.notes) == (*counts, ())
    assert all(truth.relevant for truth in dataset.truths[""])
