"""The commands evaluate and reproduce: flags, JSON and text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import get_args

import pytest

from commands import answer, refuse, run, vocabulary_flags
from polyvoc.experiments.datasets.readers import READERS
from polyvoc.experiments.datasets.synthetic import WorldOptions, write_world
from polyvoc.experiments.fit.line import fit_lines
from polyvoc.experiments.paper.setup import Plan
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import Preset
from polyvoc.vocabulary.vocabulary import Vocabulary
from samples import unflushed

__all__ = ["unflushed"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def datasets(photographs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photographs as Holidays and as Ukbench, and all of them to train on."""
    folder = tmp_path_factory.mktemp("datasets")
    for name in ("holidays", "ukbench", "train"):
        (folder / name).mkdir()
    for number, scene in enumerate(("bridge", "market", "tower", "wall")):
        for place, view in enumerate("abca"):
            source = photographs / f"{scene}-{view}.jpg"
            shutil.copy(source, folder / "ukbench" / f"ukbench{4 * number + place:05d}.jpg")
            if place < 3:
                shutil.copy(source, folder / "holidays" / f"{1000 + number}{place:02d}.jpg")
                shutil.copy(source, folder / "train" / source.name)
    return folder


@pytest.fixture(scope="module")
def words(vocabularies: tuple[Vocabulary, ...], tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return vocabulary_flags(vocabularies, tmp_path_factory.mktemp("words"))


# -- evaluate


@pytest.mark.parametrize(("name", "folder", "measure", "asked"), [
    ("holidays", "holidays", "mAP", 4),
    ("ukbench", "ukbench", "N-S", 16),
    ("groups", "train", "mAP", 12),
])  # fmt: skip
def test_every_rule_and_every_question(
    name: str, folder: str, measure: str, asked: int, datasets: Path, words: list[object], cache: Path
) -> None:
    result = answer("evaluate", name, datasets / folder, *words, "--cache", cache)
    assert (result["dataset"], result["queries"], result["sizes"], result["problems"]) == (name, asked, [300, 300], [])
    assert len(result["names"]) == asked and result["features"] > 1000
    assert [rule["rule"] for rule in result["rules"]][:5] == ["b0", "b1", "b2", "bayes", "posterior"]
    assert len(result["rules"]) == 24
    assert [rule["rule"] for rule in result["rules"]][20:] == [f"preset {name}" for name in get_args(Preset)]
    for rule in result["rules"]:
        assert rule["measure"] == measure and len(rule["queries"]) == asked
        assert rule["value"] == pytest.approx(sum(rule["queries"]) / asked)
        assert rule["measures"][measure] == rule["queries"] and "R@1" in rule["measures"]
        low, high = rule["interval"]
        assert low <= rule["value"] <= high
        alone = rule["options"]["merge"] == "b1" or rule["rule"].startswith("preset")  # presets have no like
        assert (rule["gain_over_b1"] is None) == alone
    base, mine = result["rules"][1], result["rules"][4]
    assert mine["gain_over_b1"]["mean"] == pytest.approx(mine["value"] - base["value"])


def test_presets_with_fewer_vocabularies_than_they_take(
    datasets: Path, vocabularies: tuple[Vocabulary, ...], cache: Path, tmp_path: Path
) -> None:
    words = vocabulary_flags(vocabularies[:1], tmp_path)
    rules = answer("evaluate", "groups", datasets / "train", *words, "--cache", cache)["rules"]
    (paper,) = (rule["options"] for rule in rules if rule["rule"] == "preset paper")
    assert (paper["merge"], paper["vocabularies"]) == ("bayes", 1)


def test_the_table_has_a_line_for_each_rule(datasets: Path, words: list[object], cache: Path) -> None:
    shown = run("evaluate", "ukbench", datasets / "ukbench", *words, "--cache", cache, "--merge", "b1", "--merge", "bayes")
    assert shown.exit_code == 0 and shown.stderr == ""
    lines = shown.stdout.splitlines()
    assert lines[0] == "ukbench: 16 images, 16 queries, words 300 + 300"
    assert lines.pop(1) == "  term 2 = 0.600 r + 0.400 (the default line)"
    assert lines[1].split()[:2] == ["rule", "N-S"]
    names = ["b1", "bayes", "b1 + burstiness", "bayes + burstiness", "b1 + HE", "bayes + HE"]
    assert [line[:30].strip() for line in lines[2:]] == [*names, "b1 + HE + burstiness", "bayes + HE + burstiness"]
    assert " to " in lines[2] and "+" not in lines[2][30:] and lines[3].count(" to ") == 2


def test_a_second_run_ranks_nothing(datasets: Path, words: list[object], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("evaluate", "holidays", datasets / "holidays", *words, "--cache", cache, "--merge", "b2", "--merge", "b1")
    first = answer(*command)
    monkeypatch.setattr(QuantisedDataset, "scores", lambda *arguments: pytest.fail("ranked before"))
    assert answer(*command) == first


def test_options_reach_the_rules(datasets: Path, words: list[object], cache: Path) -> None:
    command = ("evaluate", "holidays", datasets / "holidays", *words, "--cache", cache, "--merge", "posterior")
    result = answer(*command, "--hamming", 20, "--hamming", "none", "--hamming", 28, "--burstiness", "none", "--c", 5,
                  "--line", 0.7, 0.2, "--idf", "plain", "--assignments", 2, "--queries", 2)  # fmt: skip
    assert [rule["rule"] for rule in result["rules"]] == ["posterior + HE 20", "posterior", "posterior + HE 28"]
    assert [rule["options"]["hamming"] for rule in result["rules"]] == [20, None, 28]
    options = result["rules"][0]["options"]
    assert (options["c"], options["line"], options["idf"], options["assignments"]) == (5, [0.7, 0.2], "plain", 2)
    assert result["queries"] == 2 and result["notes"] == ["2 of 4 queries are used"]
    assert all(rule["gain_over_b1"] is None for rule in result["rules"])  # without b1


def test_distractors_and_broken_photographs_are_reported(
    datasets: Path, words: list[object], cache: Path, tmp_path: Path
) -> None:
    more = Path(shutil.copytree(datasets / "train", tmp_path / "more"))
    (more / "broken.jpg").write_text("no photograph")
    command = ("evaluate", "holidays", datasets / "holidays", *words, "--cache", cache, "--merge", "b1", "--distractors", more)
    result = answer(*command)
    assert result["images"] == 12 + 13
    assert [Path(problem["path"]).name for problem in result["problems"]] == ["broken.jpg"]
    assert "1 could not be used:" in run(*command).stdout


def test_one_group_has_no_interval_and_json_no_infinity(
    photographs: Path, words: list[object], cache: Path, tmp_path: Path
) -> None:
    for name in ("bridge-a", "bridge-b", "market-a", "wall-a"):
        shutil.copy(photographs / f"{name}.jpg", tmp_path / f"{name}.jpg")
    result = answer("evaluate", "groups", tmp_path, *words, "--cache", cache, "--merge", "b1", "--merge", "bayes")
    assert result["rules"][1]["interval"] == [None, None]
    assert result["rules"][1]["gain_over_b1"]["low"] is None


def test_the_line_is_fitted_on_another_dataset(datasets: Path, words: list[object], cache: Path) -> None:
    command = ("evaluate", "ukbench", datasets / "ukbench", *words, "--cache", cache, "--merge", "posterior")
    result = answer(*command, "--fit", "holidays", datasets / "holidays")
    a, b = result["rules"][0]["options"]["line"]
    assert a + b == pytest.approx(1) and 0 < b < 1 and [a, b] != [0.6, 0.4]
    both = answer(*command, "--merge", "bayes", "--fit", "holidays", datasets / "holidays")
    rules = {rule["rule"]: rule["options"]["line"] for rule in both["rules"]}
    vocabularies = [Vocabulary.load(Path(str(folder))) for folder in words[1::2]]
    bench = Workbench(cache).bench(READERS["holidays"](datasets / "holidays"), vocabularies)
    fits = fit_lines(bench)
    assert rules["posterior"] == [a, b] == pytest.approx(fits["feature"].tied)
    assert rules["bayes"] == pytest.approx(fits["image"].tied) != pytest.approx([a, b])
    shown = run(*command, "--fit", "holidays", datasets / "holidays").stdout.splitlines()[1]
    assert shown.startswith(f"  term 2 = {a:.3f} r + {b:.3f} for feature sets, ")
    assert shown.endswith(" for image sets (fitted on holidays)")
    assert run(*command, "--line", 0.5, 0.5).stdout.splitlines()[1] == "  term 2 = 0.500 r + 0.500 (as given)"
    line = refuse(*command, "--fit", "holidays", datasets / "holidays", "--line", 0.5, 0.5)
    assert line == "polyvoc: --fit and --line exclude each other; give one of them"
    own = refuse(*command, "--fit", "groups", datasets / "holidays" / ".." / "ukbench")
    assert "give another dataset than the one that is evaluated" in own
    single = ("evaluate", "ukbench", datasets / "ukbench", *words[:2], "--cache", cache)
    assert "needs two vocabularies with signatures" in refuse(*single, "--fit", "holidays", datasets / "holidays")


def test_codes_are_evaluated_by_a_vocabulary_that_decodes_them(
    datasets: Path, fine: Vocabulary, words: list[object], cache: Path, tmp_path: Path
) -> None:
    fine.save(tmp_path / "fine")
    command = ("evaluate", "groups", datasets / "train", "--vocabulary", tmp_path / "fine", "--cache", cache)
    rules = answer(*command, "--merge", "codes", "--merge", "b1")["rules"]
    assert [rule["rule"] for rule in rules] == ["codes", "b1", "b1 + burstiness", "b1 + HE", "b1 + HE + burstiness"]
    assert rules[0]["value"] > 0.95 and rules[0]["gain_over_b1"]["mean"] == pytest.approx(rules[0]["value"] - rules[1]["value"])
    presets = {rule["rule"]: rule for rule in answer(*command)["rules"] if rule["rule"].startswith("preset")}
    merges = {name: rule["options"]["merge"] for name, rule in presets.items()}
    assert merges == {**{f"preset {name}": "codes" for name in ("fast", "default", "best")}, "preset paper": "bayes"}
    assert presets["preset fast"]["queries"] == rules[0]["queries"]
    line = refuse("evaluate", "groups", datasets / "train", *words, "--merge", "codes", "--cache", cache)
    assert "merge='codes' needs" in line


def test_vocabularies_can_be_trained_first(datasets: Path, cache: Path) -> None:
    result = answer("evaluate", "groups", datasets / "train", "--train", datasets / "train", "--size", 60,
                  "--vocabularies", 2, "--merge", "b0", "--merge", "b1", "--cache", cache)  # fmt: skip
    assert result["sizes"] == [60, 60] and len(set(result["vocabularies"])) == 2
    assert len(result["rules"]) == 8  # they have signatures


def test_a_synthetic_world_is_written_trained_and_ranked(cache: Path, tmp_path: Path, words: list[object]) -> None:
    write_world(tmp_path / "world", WorldOptions(groups=5, views=2, distractors=4, training=8, features=60))
    command = ("evaluate", "synthetic", tmp_path / "world", "--cache", cache, "--merge", "b1", "--merge", "posterior")
    result = answer(*command, "--size", 40, "--vocabularies", 2)
    assert (result["dataset"], result["images"], result["queries"], result["sizes"]) == ("synthetic", 14, 5, [40, 40])
    assert result["rules"][0]["value"] > 0.2
    assert run(*command, "--size", 40, "--vocabularies", 2).stdout.startswith("synthetic: 14 images, 5 queries")
    assert answer(*command, *words)["sizes"] == [300, 300]  # own vocabularies
    trained = answer(*command, "--train", tmp_path / "world" / "train", "--size", 30, "--vocabularies", 1)
    assert trained["sizes"] == [30]  # on descriptors, as the images are


def test_what_cannot_be_evaluated_is_one_line(datasets: Path, words: list[object], tmp_path: Path) -> None:
    holidays = ("evaluate", "holidays", datasets / "holidays", *words, "--cache", tmp_path)
    assert "'oxbridge' is no dataset; choose one of holidays, ukbench" in refuse("evaluate", "oxbridge", tmp_path)
    assert "no such folder; expected one with 100000.jpg" in refuse(
        "evaluate", "holidays", tmp_path / "away", "--cache", tmp_path
    )
    assert "merge='b3' should be one of codes, likelihood, posterior, bayes, b0" in refuse(*holidays, "--merge", "b3")
    assert "hamming='far' should be a number or none" in refuse(*holidays, "--hamming", "far")
    assert "burstiness='much' should be one of" in refuse(*holidays, "--burstiness", "much")
    assert "n=0 should be at least 1" in refuse(*holidays, "--queries", 0)
    assert "--train and --vocabulary exclude each other" in refuse(*holidays, "--train", datasets / "train")
    assert "--vocabularies and --vocabulary exclude each other" in refuse(*holidays, "--vocabularies", 1)
    assert "no photographs" in refuse(*holidays, "--distractors", tmp_path)
    assert "vocabularies=0 should be at least 1: the rules merge words" in refuse(*holidays[:3], "--vocabularies", 0)
    assert "vocabularies=9 should be 0 to 3" in refuse(*holidays[:3], "--vocabularies", 9)
    assert not list(tmp_path.iterdir())  # nothing was begun


def test_signatures_are_needed_for_hamming(datasets: Path, vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> None:
    Vocabulary.create(vocabularies[0].centroids).save(tmp_path / "plain")
    command = ("evaluate", "holidays", datasets / "holidays", "--vocabulary", tmp_path / "plain", "--cache", tmp_path / "cache")
    assert [rule["options"]["hamming"] for rule in answer(*command, "--merge", "b1")["rules"]] == [None, None]
    assert "hamming=24 needs an index with signatures" in refuse(*command, "--hamming", 24)


# -- reproduce


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the quick plan quicker."""
    plan = Plan("quick", 0.005, sizes=(10_000, 20_000), most=3, repeats=1, questions=4, distractors=(0, 3), images=50)
    monkeypatch.setattr("polyvoc.experiments.paper.setup.QUICK", plan)


@pytest.mark.usefixtures("tiny")
def test_reproduce_writes_a_report(datasets: Path, cache: Path, tmp_path: Path) -> None:
    command = ("reproduce", datasets, "--out", tmp_path / "out", "--quick", "--cache", cache, "--only", "figure4")
    result = answer(*command, "--only", "table2")
    assert [section["id"] for section in result["sections"]] == ["table2", "figure4"]
    assert Path(result["page"]) == tmp_path / "out" / "report.html" and Path(result["page"]).is_file()
    stored = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert stored == {name: value for name, value in result.items() if name != "page"}
    assert [path.name for path in (tmp_path / "out" / "plots").iterdir()] == ["figure4.svg"]
    assert dict(result["facts"])["distractors"].startswith("6 photographs")
    lines = run(*command).stdout.splitlines()
    assert lines[0].split()[-1] == "reproduces" and lines[0].startswith("Fig. 4: the weight w")
    assert lines[-1].startswith("Page: ") and lines[-1].endswith("report.html")
    done = answer(*command[:-2], "--finished")
    assert [section["id"] for section in done["sections"]] == ["table2", "figure4"]
    assert dict(done["facts"])["not finished"].startswith("readings, table3")


@pytest.mark.usefixtures("tiny")
def test_what_cannot_be_reproduced_is_one_line(datasets: Path, tmp_path: Path) -> None:
    out = ("--out", tmp_path / "out", "--cache", tmp_path / "cache")
    assert "no experiment table7; choose from readings, table2" in refuse("reproduce", datasets, *out, "--only", "table7")
    assert "is not a folder; give the one that holds the datasets" in refuse("reproduce", tmp_path / "away", *out)
    assert "nothing is finished yet; run it without --finished" in refuse("reproduce", datasets, *out, "--finished")
    shutil.rmtree(tmp_path / "out")
    assert "no dataset found; expected sub-folders such as" in refuse("reproduce", datasets / "train", *out)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ukbench").symlink_to(datasets / "ukbench")
    assert "give one with --train FOLDER" in refuse("reproduce", tmp_path / "data", *out)
    assert not (tmp_path / "out").exists()
