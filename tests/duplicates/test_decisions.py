"""Verdicts on pairs: kept by content, through moves, removal and return; exchanged, damaged, repaired."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import answer, refuse, run
from polyvoc.duplicates.compare import EVIDENCE
from polyvoc.duplicates.decisions import (
    FORMAT,
    ROW,
    VERDICTS,
    Decision,
    Decisions,
    check_decisions,
    decide,
    digest_of,
    is_sound,
    key_of,
    load_decisions,
    sound_decisions,
)
from polyvoc.errors import DamagedError, OptionError
from polyvoc.index.check import check
from polyvoc.index.folder import DECISIONS, IndexFolder
from polyvoc.index.repair import repair
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions
from polyvoc.search.index import Index
from samples import photograph

SMALL = FeatureOptions(long_side=256, max_features=300)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for seed in range(3):
        photograph(tmp_path / "photos" / f"{seed}.png", seed, (160, 120))
    return tmp_path / "photos"


@pytest.fixture
def index(photos: Path, tmp_path: Path) -> Path:
    with IndexWriter.open(tmp_path / "index", feature_options=SMALL) as writer:
        writer.update([photos])
    return tmp_path / "index"


def decided(index: Path) -> dict[tuple[str, str], str]:
    folder = IndexFolder(index)
    try:
        return {one.key: one.verdict for one in Decisions.read(folder)}
    finally:
        folder.close()


def images(index: Path) -> list[int]:
    with Index.open(index) as opened:
        return [row.image for row in opened.images()]


digests = st.text("0123456789abcdef", min_size=1, max_size=32)
some = st.lists(
    st.tuples(digests, digests, st.sampled_from(VERDICTS), st.integers(0, 4_000_000_000)).filter(lambda one: one[0] != one[1])
)


@given(some)
def test_the_last_verdict_on_a_pair_counts_in_either_order(rows: list[tuple[str, str, str, int]]) -> None:
    found = Decisions(Decision(*row) for row in rows)
    assert len(found) == len({key_of(*row[:2]) for row in rows})
    for first, second, _, _ in rows:
        newest = max(row[3] for row in rows if key_of(*row[:2]) == key_of(first, second))
        allowed = {row[2] for row in rows if key_of(*row[:2]) == key_of(first, second) and row[3] == newest}
        assert found.verdict(first, second) == found.verdict(second, first)
        assert found.verdict(first, second) in allowed
    assert found.verdict("x" * 40, "y") is None and found.verdict(None, "a") is None


@given(some)
def test_exported_verdicts_come_back(rows: list[tuple[str, str, str, int]]) -> None:
    found = Decisions(Decision(*row) for row in rows)
    again = Decisions.from_dict(json.loads(json.dumps(found.as_dict({"a": ["a.jpg", "b.jpg"]}))), "here")
    assert [(one.key, one.verdict, one.decided) for one in again] == [(one.key, one.verdict, one.decided) for one in found]


def test_impossible_verdicts_raise() -> None:
    for first, second, verdict in (
        ("a", "b", "maybe"),
        ("a", "a", "copy"),
        ("", "b", "copy"),
        ("a" * 65, "b", "copy"),
        ("é", "b", "same"),
    ):
        with pytest.raises(OptionError):
            Decision(first, second, verdict, 0)


def test_verdicts_survive_moves_removal_return_and_merges(index: Path, photos: Path) -> None:
    first, second, third = images(index)
    with IndexWriter.open(index) as writer:
        digest = [digest_of(writer.folder, image) for image in (first, second, third)]
        decide(writer, [(first, second, "different"), (third, second, "copy")])
        decide(writer, [(second, first, "same")])
    expected = {key_of(digest[0], digest[1]): "same", key_of(digest[1], digest[2]): "copy"}
    assert decided(index) == expected
    shutil.move(photos, photos.with_name("elsewhere"))
    with IndexWriter.open(index) as writer:
        writer.remove([photos])
        assert writer.catalogue.count_images() == 0
    assert decided(index) == expected, "nothing is left of the photographs"
    with IndexWriter.open(index) as writer:
        writer.update([photos.with_name("elsewhere")])
        new = [row.image for row in writer.catalogue.images()]
        assert min(new) > third
        decide(writer, [(new[0], new[1], None)])
    assert list(decided(index).values()) == ["copy"]
    assert list(check(index, more=[check_decisions])) == []


def test_unknown_images_and_identical_files_raise(index: Path, photos: Path) -> None:
    shutil.copy2(photos / "0.png", photos / "again.png")
    with IndexWriter.open(index) as writer:
        writer.update([photos])
        rows = {Path(row.path).stem: row.image for row in writer.catalogue.images()}
        with pytest.raises(OptionError, match="image 99 is not in the index"):
            decide(writer, [(99, rows["1"], "copy")])
        with pytest.raises(OptionError, match="same bytes"):
            decide(writer, [(rows["0"], rows["again"], "different")])
    assert decided(index) == {}


def saved(index: Path, count: int) -> Path:
    """Save verdicts with evidence; return their file."""
    evidence = np.arange(len(EVIDENCE), dtype=np.float32)
    with IndexWriter.open(index) as writer:
        Decisions(Decision(f"a{n}", f"b{n}", VERDICTS[n % 3], n, evidence if n % 2 else None) for n in range(count)).save(
            writer
        )
        read = list(Decisions.read(writer.folder))
    assert [one.evidence is not None for one in read] == [bool(n % 2) for n in range(count)]
    assert all(np.array_equal(one.evidence, evidence) for one in read if one.evidence is not None)
    (file,) = (index / DECISIONS).iterdir()
    return file


def test_damage_costs_one_verdict_only(index: Path) -> None:
    file = saved(index, 5)
    content = bytearray(file.read_bytes())
    content[-ROW.itemsize - 100] ^= 1  # in the row before the last
    file.write_bytes(content)
    folder = IndexFolder(index)
    with pytest.raises(DamagedError, match="check --repair"):
        Decisions.read(folder)
    folder.close()
    assert any(DECISIONS in line for line in check(index, more=[check_decisions]))
    report = repair(index, rescues={DECISIONS: sound_decisions})
    assert any("kept 4 of 5 decisions" in line for line in report.lines)
    assert sorted(decided(index)) == [("a0", "b0"), ("a1", "b1"), ("a2", "b2"), ("a4", "b4")]
    assert list(check(index, more=[check_decisions])) == []


@pytest.mark.parametrize("kept", [0, 100, ROW.itemsize * 2 + 200])
def test_lost_or_torn_verdicts_are_repaired(index: Path, kept: int) -> None:
    file = saved(index, 5)
    file.write_bytes(file.read_bytes()[:kept]) if kept else file.unlink()
    answer("check", "--index", index, "--repair")
    assert set(decided(index)) <= {(f"a{n}", f"b{n}") for n in range(5)}
    assert list(check(index, more=[check_decisions])) == []


def test_rows_have_checksums() -> None:
    assert is_sound(np.zeros(0, ROW)).all()
    assert not is_sound(np.zeros(2, ROW)).any()


# -- the command


def test_the_command_decides_lists_exports_and_imports(index: Path, photos: Path, tmp_path: Path) -> None:
    for second, verdict in (("1.png", "different"), ("2.png", "copy")):
        shown = run("decisions", photos / "0.png", photos / second, "--verdict", verdict, "--index", index)
        assert shown.exit_code == 0
    listed = answer("decisions", "--index", index)["decisions"]
    assert {one["verdict"]: {Path(path).name for path in one["paths"]} for one in listed} == {
        "different": {"0.png", "1.png"},
        "copy": {"0.png", "2.png"},
    }
    file = tmp_path / "decisions.json"
    assert run("decisions", "--export", file, "--index", index).exit_code == 0
    other = tmp_path / "other"
    with IndexWriter.open(other, feature_options=SMALL) as writer:
        writer.update([photos])
    assert len(answer("decisions", "--import", file, "--index", other)["decisions"]) == 2
    assert decided(other) == decided(index)
    assert "0.png" in run("decisions", "--index", other).stdout
    answer("decisions", photos / "0.png", photos / "2.png", "--verdict", "none", "--index", other)
    assert list(decided(other).values()) == ["different"]
    answer("decisions", "--import", file, "--index", other)
    assert decided(other) == decided(index)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["0.png"], "FIRST SECOND --verdict"),
        (["--verdict", "copy"], "FIRST SECOND --verdict"),
        (["nowhere.png", "0.png", "--verdict", "copy"], "nowhere.png is not in the index"),
        (["--import", "nowhere.json"], "nowhere.json: cannot be read"),
        (["--index", "nowhere.polyvoc"], "nowhere.polyvoc"),
    ],
)
def test_wrong_arguments_are_one_line(index: Path, photos: Path, arguments: list[str], line: str) -> None:
    arguments = [str(photos / one) if one == "0.png" else one for one in arguments]
    assert line in refuse("decisions", *arguments, *([] if "--index" in arguments else ["--index", index]))


def test_a_word_that_is_no_verdict_is_one_line(index: Path, photos: Path) -> None:
    line = refuse("decisions", photos / "0.png", photos / "1.png", "--verdict", "perhaps", "--index", index)
    assert "same, copy, different" in line


ONE = {"first": "a", "second": "b", "verdict": "copy", "decided": "2026-01-01T00:00:00+00:00"}


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", "\x00", json.dumps({"format": "other", "decisions": []}), *(
        json.dumps({"format": FORMAT, "decisions": [ONE | change]})
        for change in ({"verdict": "x"}, {"second": "a"}, {"decided": "soon"}, {"decided": 5}, {"decided": "9999-99-99"})
    )],
)  # fmt: skip
def test_files_that_hold_no_verdicts_are_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match=r"x\.json") as error:
        load_decisions(tmp_path / "x.json")
    assert "\n" not in str(error.value)
