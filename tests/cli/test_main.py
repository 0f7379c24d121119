"""The command line: flags, output, and errors on one line."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import polyvoc
from commands import answer, refuse, run, searched, vocabulary_flags
from conftest import draw_scene
from polyvoc.cli.flags import flag_name
from polyvoc.cli.interrupt import KEPT
from polyvoc.cli.main import app
from polyvoc.cli.terminal import short_path
from polyvoc.options import FeatureOptions, PairOptions, ScoringOptions, SearchOptions, TrainOptions, options_of
from polyvoc.search.info import index_distributions
from polyvoc.search.probability import probability_text
from polyvoc.vocabulary.vocabulary import Vocabulary

FITTED = "code_table"  # fitted to an index, no option
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.fixture
def words(vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> list[object]:
    return vocabulary_flags(vocabularies, tmp_path)


@pytest.fixture(params=["index_path", "coded_index_path"])
def any_index(request: pytest.FixtureRequest) -> Path:
    """An index of words with signatures, then one with codes."""
    return Path(request.getfixturevalue(request.param))


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"  # its time is that of the last run
    }


# -- help and version


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_with_an_example(name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"Example: polyvoc {name} " in result.stdout
    assert COMMANDS[name].help


def test_without_a_command_the_help_is_shown() -> None:
    result = run()
    assert result.exit_code == 0
    for name in COMMANDS:
        assert f" {name} " in result.stdout


def test_version() -> None:
    assert run("--version").stdout == f"polyvoc {polyvoc.__version__}\n"


def test_the_package_runs_as_a_module() -> None:
    result = subprocess.run([sys.executable, "-m", "polyvoc", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"polyvoc {polyvoc.__version__}\n"


# -- flags


@pytest.mark.parametrize(
    ("command", "record"),
    [("search", SearchOptions), ("index", FeatureOptions), ("train", TrainOptions), ("pairs", PairOptions)],
)
def test_each_field_of_an_options_record_has_a_flag(command: str, record: type[Any]) -> None:
    flags = {parameter.name: parameter for parameter in COMMANDS[command].params}
    named = [field.name for field in fields(record) if field.name not in (FITTED, "network")]  # those that are no options
    assert [option.name for option in options_of(record)] == named
    for option in options_of(record):
        flag = flags[option.name]
        assert flag.opts == [flag_name(option.name)] and flag.help.startswith(option.help)
        assert flag.default is None  # what is not typed is left to the record
        if command == "train":
            assert flag.help.endswith(f"Default: {option.default}.")


def test_research_flags_are_apart() -> None:
    panels = {parameter.name: parameter.rich_help_panel for parameter in COMMANDS["search"].params if parameter.name != "help"}
    research = {name for name, panel in panels.items() if panel is not None and panel.startswith("Research")}
    assert research == {field.name for field in fields(ScoringOptions)} - {FITTED}
    assert {panels[name] for name in ("top", "min_probability", "index", "fast", "best", "paper", "html", "json")} == {None}


def test_flags_not_given_are_those_of_the_index(any_index: Path, photographs: Path) -> None:
    result = searched(photographs / "wall-b.jpg", "--index", any_index)
    expected = polyvoc.Index.open(any_index).default_options.as_dict()
    assert result["options"] == json.loads(json.dumps(expected))


def test_flags_given_reach_the_search(index_path: Path, photographs: Path) -> None:
    given = {
        "top": 3, "merge": "b1", "vocabularies": 1, "idf": "plain", "idf_power": 1, "norm": "distinct", "line": [0.5, 0.3],
        "c": 12.5, "hamming": None, "sigma": 9.0, "burstiness": "intra", "sets": "image", "assignments": 2,
        "likelihood_table": None, "verify": 7, "expand": 2, "smooth": 0.5, "fuse": False, "min_probability": 0.0, "since": 0,
        "require_all": False,
    }  # fmt: skip
    assert given.keys() == {field.name for field in fields(SearchOptions)} - {FITTED}
    typed: list[object] = []
    for name, value in given.items():
        if name in ("fuse", "require_all"):  # switches: not given
            continue
        values = value if isinstance(value, list) else ["none" if value is None else value]
        typed += [flag_name(name), *values]
    answer("link", "--index", index_path)
    result = searched(photographs / "wall-b.jpg", "--index", index_path, *typed)
    assert result["options"] == given
    assert len(result["hits"]) == 3


@pytest.mark.parametrize("name", ["fast", "best", "paper"])
def test_a_flag_of_each_preset(name: str, any_index: Path, photographs: Path) -> None:
    result = searched(photographs / "wall-b.jpg", f"--{name}", "--top", 2, "--index", any_index)
    with polyvoc.Index.open(any_index) as index:
        assert result["options"] == json.loads(json.dumps(replace(index.preset(name), top=2).as_dict()))
        assert [hit["image"] for hit in result["hits"]] == [
            hit.image for hit in index.search(photographs / "wall-b.jpg", preset=name, top=2)
        ]


def test_flags_of_presets_exclude_each_other(index_path: Path, photographs: Path) -> None:
    for given in (("--fast", "--best"), ("--fast", "--paper"), ("--best", "--paper"), ("--fast", "--best", "--paper")):
        line = refuse("search", photographs / "wall-b.jpg", *given, "--index", index_path)
        assert line == f"polyvoc: {' and '.join(given)} exclude each other; give one of them"


def test_flags_change_options_of_the_paper(index_path: Path, photographs: Path) -> None:
    changed = {"vocabularies": 1, "sets": "feature", "idf_power": 2, "norm": "distinct"}
    typed = [part for name, value in changed.items() for part in (flag_name(name), value)]
    result = searched(photographs / "wall-b.jpg", "--paper", *typed, "--index", index_path)
    assert result["options"].items() >= {**changed, "merge": "bayes", "idf": "plain", "verify": 0}.items()
    line = refuse("search", photographs / "wall-b.jpg", "--vocabularies", 3, "--index", index_path)
    assert line == "polyvoc: vocabularies=3 should be at most 2, as many as the index has"


# -- index


def test_index_then_search_need_no_flags(
    photographs: Path, words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POLYVOC_INDEX", raising=False)
    done = answer("index", photographs, *words)
    assert done["added"] == 12
    assert done["problems"] == []
    assert done["seconds"] > 0
    result = searched(photographs / "tower-b.jpg")
    assert {Path(hit["path"]).name for hit in result["hits"][:3]} == {"tower-a.jpg", "tower-b.jpg", "tower-c.jpg"}
    assert (tmp_path / "photos.polyvoc").is_dir()


def test_the_environment_names_the_index(index_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("POLYVOC_INDEX", str(index_path))
    assert answer("info")["images"] == 12


def test_a_second_run_changes_nothing(index_path: Path, photographs: Path) -> None:
    before = state_of(index_path)
    result = run("index", photographs, "--index", index_path)
    assert result.exit_code == 0
    assert "0 added, 0 replaced, 0 removed, 12 unchanged" in result.stdout
    assert state_of(index_path) == before


def test_without_folders_those_of_the_index_are_updated(
    words: list[object], photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is skipped, moved, left out or not there is said in plain words."""
    monkeypatch.chdir(tmp_path)
    for folder, scene in (("one", "wall"), ("two", "tower")):
        (tmp_path / folder).mkdir()
        for view in "ab":
            shutil.copy(photographs / f"{scene}-{view}.jpg", tmp_path / folder)
        (tmp_path / folder / "film.mp4").write_bytes(b"x")
    assert "nothing to read; give folders of photographs" in refuse("index", "--index", "new.polyvoc")
    index = ("index", "--index", "new.polyvoc")
    assert "skipped: 2 MP4\n" in run(*index, "one", "two", *words).stdout
    (tmp_path / "one/wall-a.jpg").rename(tmp_path / "one/wall.jpg")
    assert run(*index).stdout.startswith("0 added, 0 replaced, 0 removed, 1 moved, 3 unchanged; 0 new features; ")
    text = run(*index, "--exclude", "wall.*", "--exclude", "*.mp4").stdout
    assert text.startswith("0 added, 0 replaced, 1 removed, 3 unchanged") and "skipped: 1 excluded\n" in text
    (tmp_path / "two").rename(tmp_path / "away")
    text = run(*index).stdout
    line = "two is not there, or empty: its 2 photographs are kept; if it is gone for good: polyvoc remove "
    assert f"{line}{tmp_path / 'two'}\n" in text
    report = answer(*index)
    assert (report["absent"], report["skipped"], report["moved"]) == ({str(tmp_path / "two"): 2}, {"excluded": 1}, 0)
    summary = run("info", "--index", "new.polyvoc").stdout.splitlines()
    assert summary[:4] == [
        "index         new.polyvoc: 3 photographs",
        "folders       one: 1 photographs",
        "              two: 2 photographs (was not there, or empty, at the last update)",
        "skipped       1 excluded",
    ]
    assert "left out      wall.*, *.mp4" in summary
    assert answer("info", "--index", "new.polyvoc")["commit"] == report["commit"]
    assert run("remove", "two", "--index", "new.polyvoc").stdout == "2 removed\n"
    assert answer(*index)["absent"] == {} and "two" not in run("info", "--index", "new.polyvoc").stdout
    assert "nothing to index in the folders of new.polyvoc" in run(*index, "--exclude", "*").stderr
    assert "'!' is not a pattern" in refuse(*index, "--exclude", "!")
    assert "--exclude is for use without --features" in refuse(*index, "--features", "x.db", "--exclude", "a")


def test_broken_files_are_named_and_the_others_indexed(photographs: Path, words: list[object], tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    shutil.copy(photographs / "wall-a.jpg", folder)
    for number in range(22):
        (folder / f"broken-{number:02d}.jpg").write_bytes(b"no photograph")
    command = ("index", folder, "--index", tmp_path / "new.polyvoc", *words)
    result = run(*command)
    assert result.exit_code == 0
    assert "1 added" in result.stdout
    assert "22 could not be used" in result.stdout
    assert f"{folder / 'broken-00.jpg'}: not an image" in result.stdout
    assert "broken-19" in result.stdout
    assert "broken-20" not in result.stdout
    assert "and 2 more: --json lists all" in result.stdout
    assert len(answer(*command)["problems"]) == 22


def test_flags_of_what_is_stored(
    photographs: Path, vocabularies: tuple[Vocabulary, ...], fine: Vocabulary, words: list[object], tmp_path: Path
) -> None:
    fine.save(tmp_path / "fine")
    own: tuple[object, ...] = ("--fine", tmp_path / "fine")
    cases: list[tuple[tuple[object, ...], list[int], int | None, int, str]] = [
        ((*words, *own), [300, 300], 1000, 0, "codes"),
        ((*words, *own, "--signatures"), [300, 300], 1000, 64, "codes"),
        (("--vocabularies", 0, *own), [], 1000, 0, "codes"),
        (("--vocabulary", tmp_path / "fine"), [1000], 1000, 0, "codes"),  # it can decode codes itself
        (("--vocabulary", tmp_path / "fine", "--no-codes"), [1000], None, 128, "likelihood"),
        (tuple(words), [300, 300], None, 64, "likelihood"),
        ((*words, "--no-signatures"), [300, 300], None, 0, "posterior"),
    ]
    for number, (flags, sizes, fine_size, bits, merge) in enumerate(cases):
        index = tmp_path / f"{number}.polyvoc"
        assert answer("index", photographs, "--index", index, *flags)["added"] == 12, flags
        facts = answer("info", "--index", index)
        assert [one["size"] for one in facts["vocabularies"]] == sizes, flags
        assert (facts["fine_vocabulary"] or {}).get("size") == fine_size, flags
        assert (facts["signatures"], facts["default_options"]["merge"]) == (bits, merge), flags
        hits = searched(photographs / "tower-b.jpg", "--index", index, "--top", 3)["hits"]
        assert {Path(hit["path"]).name for hit in hits} == {"tower-a.jpg", "tower-b.jpg", "tower-c.jpg"}, flags
        assert answer("check", "--index", index)["ok"], flags


def test_what_cannot_be_stored_together_is_an_error(
    photographs: Path, vocabularies: tuple[Vocabulary, ...], fine: Vocabulary, coded_index_path: Path, tmp_path: Path
) -> None:
    fine.save(tmp_path / "fine")
    vocabularies[0].save(tmp_path / "words")
    Vocabulary.create(vocabularies[0].centroids).save(tmp_path / "plain")
    index = ("index", photographs, "--index", tmp_path / "new.polyvoc")
    assert "--fine and --no-codes exclude each other" in refuse(*index, "--fine", tmp_path / "fine", "--no-codes")
    assert "no decoder for codes" in refuse(*index, "--fine", tmp_path / "words")
    assert "no vocabulary given" in refuse(*index, "--vocabularies", 0, "--no-codes")
    line = refuse(*index, "--vocabulary", tmp_path / "plain", "--signatures")
    assert "signatures need vocabularies that were trained with bits" in line
    assert not (tmp_path / "new.polyvoc").exists()
    line = refuse("index", photographs, "--index", coded_index_path, "--vocabulary", tmp_path / "words")
    assert str(coded_index_path) in line and "other vocabularies" in line


def test_nothing_to_index_is_an_error(words: list[object], tmp_path: Path) -> None:
    assert "nowhere does not exist" in refuse("index", tmp_path / "nowhere", "--index", tmp_path / "new.polyvoc", *words)
    assert not (tmp_path / "new.polyvoc").exists()
    empty = tmp_path / "empty"
    empty.mkdir()
    result = run("index", empty, "--index", tmp_path / "new.polyvoc", *words)
    assert result.exit_code == 1
    assert result.stderr == f"polyvoc: nothing to index in {empty}: no photograph found\n"
    (empty / "broken.jpg").write_bytes(b"no photograph")
    result = run("index", empty, "--index", tmp_path / "new.polyvoc", *words)
    assert result.exit_code == 1
    assert "none of the files can be used" in result.stderr


def test_what_does_not_fit_is_an_error(index_path: Path, photographs: Path, tmp_path: Path, words: list[object]) -> None:
    assert "long_side=8" in refuse("index", photographs, "--index", index_path, "--long-side", 8)
    assert "was made with" in refuse("index", photographs, "--index", index_path, "--long-side", 512)
    assert "exclude each other" in refuse("index", photographs, "--index", index_path, "--vocabularies", 2, *words)
    assert "no vocabulary here" in refuse("index", photographs, "--index", tmp_path / "new", "--vocabulary", tmp_path)
    assert "not a polyvoc index" in refuse("index", photographs, "--index", photographs, *words)


def test_names_that_are_not_text(photographs: Path, words: list[object], tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    folder.mkdir()
    name = os.fsdecode(b"caf\xe9\n.jpg")
    try:
        shutil.copy(photographs / "wall-a.jpg", folder / name)
    except OSError:
        pytest.skip("this file system takes text only")
    shutil.copy(photographs / "wall-b.jpg", folder)
    (folder / os.fsdecode(b"broken\xff.jpg")).write_bytes(b"no photograph")
    index = tmp_path / "new.polyvoc"
    result = run("index", folder, "--index", index, *words)
    assert result.exit_code == 0
    assert "2 added" in result.stdout
    assert "broken\\udcff.jpg" in result.stdout
    result = searched(folder / name, "--index", index, "--top", 1)
    assert os.fsencode(result["hits"][0]["path"]) == os.fsencode(folder / name)
    page = tmp_path / "page.html"
    shown = run("search", folder / name, "--index", index, "--html", page)
    assert shown.exit_code == 0
    assert "caf\\udce9\\n.jpg" in shown.stdout
    assert page.read_text(encoding="utf-8").count("<img") >= 2
    assert run("info", "--images", "--index", index).exit_code == 0
    assert "nowhere" in refuse("search", folder / (name + "nowhere"), "--index", index)


# -- search


def test_search_returns_what_the_library_does(any_index: Path, photographs: Path) -> None:
    query = photographs / "market-c.jpg"
    index = polyvoc.Index.open(any_index)
    for changed in ({}, {"merge": "posterior", "assignments": 2, "verify": 0}):
        typed = [part for name, value in changed.items() for part in (flag_name(name), value)]
        result = searched(query, "--index", any_index, *typed)
        expected = index.search(query, options=replace(index.default_options, **changed))  # type: ignore[arg-type]
        assert result["hits"] == json.loads(json.dumps([asdict(hit) for hit in expected]))
    assert list(result["seconds"]) == ["open", "decode", "sift", "quantise", "score"]
    assert result["query"] == str(query)


def test_search_prints_text(any_index: Path, photographs: Path) -> None:
    result = run("search", photographs / "market-c.jpg", "--index", any_index, "--top", 2, "--timings")
    head, columns, first, *_ = result.stdout.splitlines()
    assert head.startswith(f"{photographs / 'market-c.jpg'}: ") and "likely" in head
    assert columns.split() == ["probability", "matches", "photograph"]
    assert first.startswith("     > 99 %  ") and first.endswith(f"  {photographs / 'market-c.jpg'}")
    assert result.stderr.startswith("seconds: open ")


def test_the_command_line_groups_hits_by_probability(any_index: Path, photographs: Path) -> None:
    typed = ("search", photographs / "market-c.jpg", "--index", any_index, "--top", 12)
    hits = polyvoc.Index.open(any_index).search(photographs / "market-c.jpg", top=12)
    assert 0 < len(hits.likely) < len(hits) == len(hits.likely) + len(hits.perhaps)
    head, columns, *rows = run(*typed, "--scores").stdout.splitlines()
    assert head.endswith(f": {len(hits.likely)} likely, {len(hits.perhaps)} less likely")
    assert columns.split() == ["probability", "matches", "score", "photograph"]
    assert rows.pop(len(hits.likely)) == "perhaps:"
    for row, hit in zip(rows, hits, strict=True):
        assert hit.probability is not None
        expected = [*probability_text(hit.probability).split(), str(hit.inliers or "-"), f"{hit.score:.4f}", hit.path]
        assert row.split() == expected
    assert run(*typed, "--paths").stdout.splitlines() == [hit.path for hit in hits.likely]


def test_paths_are_as_short_as_the_current_folder_allows(
    any_index: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, name in ((photographs, "wall-a.jpg"), (photographs.parent, f"{photographs.name}/wall-a.jpg")):
        monkeypatch.chdir(folder)
        typed = ("search", name, "--index", any_index, "--top", 1)
        assert run(*typed, "--paths").stdout == f"{name}\n"
        head, _, row = run(*typed).stdout.splitlines()
        assert head == f"{name}: 1 likely" and row.endswith(f"  {name}")
    assert short_path("https://example.org/a.jpg") == "https://example.org/a.jpg"
    assert short_path(str(Path.cwd() / "-x.jpg")) == "./-x.jpg"


def test_nothing_found_is_one_line_and_the_nearest(any_index: Path, tmp_path: Path) -> None:
    unknown = tmp_path / "unknown.png"
    draw_scene(977).save(unknown)
    result = searched(unknown, "--index", any_index)
    assert (result["likely"], result["nothing_found"]) == (0, True) and len(result["hits"]) > 3
    head, *rows = run("search", unknown, "--index", any_index).stdout.splitlines()
    assert head == f"{unknown}: nothing found that is likely to show the same thing; nearest:"
    assert [row.split()[-1] for row in rows] == [hit["path"] for hit in result["hits"][:3]]
    bare = run("search", unknown, "--index", any_index, "--paths")
    assert (bare.exit_code, bare.stdout) == (0, "") and bare.stderr.startswith(f"{unknown}: nothing found")
    assert "exclude each other" in refuse("search", unknown, "--index", any_index, "--paths", "--json")


def test_hits_without_probabilities_have_their_scores(
    index_path: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvoc.search.probability.MEASURED", ())
    with polyvoc.Index.open(index_path) as index:
        hits = index.search(photographs / "wall-a.jpg", top=4)
    assert {hit.probability for hit in hits} == {None} and not hits.nothing_found
    head, columns, *rows = run("search", photographs / "wall-a.jpg", "--index", index_path, "--top", 4).stdout.splitlines()
    assert head.endswith(": 4 hits, without probabilities") and columns.split() == ["matches", "score", "photograph"]
    assert [row.split()[1:] for row in rows] == [[f"{hit.score:.4f}", hit.path] for hit in hits]
    listed = run("search", photographs / "wall-a.jpg", "--index", index_path, "--top", 4, "--paths").stdout
    assert listed.splitlines() == [hit.path for hit in hits]


def test_a_broken_photograph_among_several(index_path: Path, photographs: Path) -> None:
    result = run("search", photographs / "nowhere.jpg", photographs / "wall-a.jpg", "--index", index_path, "--json")
    assert result.exit_code == 1
    assert result.stderr == f"polyvoc: {photographs / 'nowhere.jpg'}: no such file; check the path\n"
    failed, found = json.loads(result.stdout)["results"]
    assert failed == {"query": str(photographs / "nowhere.jpg"), "error": result.stderr.removeprefix("polyvoc: ").strip()}
    assert found["query"] == str(photographs / "wall-a.jpg") and found["hits"]
    both = [photographs / "market-c.jpg", photographs / "wall-a.jpg"]
    assert [one["query"] for one in answer("search", *both, "--index", index_path)["results"]] == list(map(str, both))
    shown = run("search", photographs / "nowhere.jpg", photographs / "wall-a.jpg", "--index", index_path, "--top", 1)
    assert (shown.exit_code, shown.stderr) == (1, result.stderr)
    head, _, row = shown.stdout.splitlines()
    assert head == f"{photographs / 'wall-a.jpg'}: 1 likely" and row.endswith(f"  {photographs / 'wall-a.jpg'}")


def test_images_of_the_index_as_queries(any_index: Path, photographs: Path) -> None:
    index = polyvoc.Index.open(any_index)
    by_path = {row.path: row.image for row in index.images()}
    path = str(photographs / "tower-b.jpg")
    result = searched("--image", by_path[path], "--index", any_index)
    assert (result["query"], result["region"], list(result["seconds"])) == (path, None, ["open", "score"])
    assert result["hits"] == json.loads(json.dumps([asdict(hit) for hit in index.search(by_path[path])]))
    assert result["hits"][0]["path"] == path
    both = answer("search", photographs / "wall-a.jpg", "--image", 1, "--image", 2, "--index", any_index)["results"]
    assert [one["query"] for one in both] == [
        str(photographs / name) for name in ("wall-a.jpg", "bridge-a.jpg", "bridge-b.jpg")
    ]
    assert "image 99 is not in the index" in refuse("search", "--image", 1, "--image", 99, "--index", any_index)


def test_a_region_as_query(any_index: Path, photographs: Path) -> None:
    query, region = photographs / "market-a.jpg", (40, 30, 300, 200)
    result = searched(query, "--region", *region, "--index", any_index)
    assert result["region"] == list(region)
    expected = polyvoc.Index.open(any_index).search(query, region=region)
    assert result["hits"] == json.loads(json.dumps([asdict(hit) for hit in expected]))
    assert "draw a larger one" in refuse("search", query, "--region", 5, 5, 5.5, 5.5, "--index", any_index)
    assert "x0 < x1" in refuse("search", query, "--region", 50, 5, 5, 5.5, "--index", any_index)
    assert "x0 < x1" in refuse("search", query, "--region", "nan", 5, 5, 5.5, "--index", any_index)
    assert "360 x 270 pixels" in refuse("search", query, "--region", -9, -9, -5, 400, "--index", any_index)
    line = refuse("search", query, "--image", 3, "--region", *region, "--index", any_index)
    assert "--region is part of one photograph, not of 2" in line


def test_search_writes_a_page(index_path: Path, photographs: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run("search", photographs / "wall-a.jpg", "--index", index_path, "--top", 3, "--html", page)
    assert result.exit_code == 0
    assert page.read_text(encoding="utf-8").count('<img src="data:image/jpeg;base64,') == 4
    line = refuse("search", photographs / "wall-a.jpg", "--index", index_path, "--html", tmp_path / "no" / "x")
    assert "no such" in line.lower()


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (["--merge", "bayse"], "merge='bayse' should be one of codes, likelihood, posterior, bayes"),
        (["--idf", "x"], "idf='x' should be one of average, plain, none"),
        (["--hamming", "near"], "hamming='near' should be a number or none"),
        (["--hamming", "-1"], "hamming=-1 should be at least 0"),
        (["--top", "0"], "top=0 should be at least 1"),
        (["--top", "many"], "'--top'"),
        (["--line", "0.5"], "--line"),
        (["--nonsense"], "No such option"),
    ],
)
def test_bad_values_are_errors(index_path: Path, photographs: Path, typed: list[str], expected: str) -> None:
    assert expected in refuse("search", photographs / "wall-a.jpg", "--index", index_path, *typed)


def test_rules_need_what_is_stored(
    index_path: Path, coded_index_path: Path, photographs: Path, fine: Vocabulary, tmp_path: Path
) -> None:
    photo = photographs / "wall-a.jpg"
    line = refuse("search", photo, "--merge", "codes", "--index", index_path)
    assert line == "polyvoc: merge='codes' needs an index with codes; this one has none"
    for given in (("--merge", "likelihood"), ("--merge", "b1", "--hamming", 20)):
        assert "needs an index with signatures; this one has none" in refuse(
            "search", photo, *given, "--index", coded_index_path
        )
    fine.save(tmp_path / "fine")
    codes_only = ("--index", tmp_path / "codes.polyvoc")
    answer("index", photographs, *codes_only, "--vocabularies", 0, "--fine", tmp_path / "fine")
    assert searched(photo, *codes_only)["hits"][0]["path"] == str(photo)
    needs = "needs words, and this index holds codes only; index again with --vocabularies 2"
    assert refuse("search", photo, "--merge", "b1", *codes_only) == f"polyvoc: merge='b1' {needs}"
    assert refuse("search", photo, "--paper", *codes_only) == f"polyvoc: preset='paper' {needs}"


def test_what_is_missing_is_named(index_path: Path, tmp_path: Path, photographs: Path) -> None:
    photo = photographs / "wall-a.jpg"
    assert "make it with: polyvoc index" in refuse("search", photo, "--index", tmp_path / "none.polyvoc")
    assert "not a polyvoc index" in refuse("search", photo, "--index", photographs)
    assert "no such file" in refuse("search", tmp_path / "none.jpg", "--index", index_path)
    assert "a folder, not a photograph" in refuse("search", photographs, "--index", index_path)
    assert "nothing to search with" in refuse("search", "--index", index_path)
    assert "No such command 'serach'" in refuse("serach", photo)


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    result = run("--debug", "info", "--index", tmp_path / "none.polyvoc")
    assert result.exit_code == 1
    assert "Traceback" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("polyvoc: ")


# -- remove, info, check


def test_remove(any_index: Path, photographs: Path, tmp_path: Path) -> None:
    assert "make it with: polyvoc index" in refuse("remove", "photo.jpg", "--index", tmp_path / "none.polyvoc")
    assert not (tmp_path / "none.polyvoc").exists()
    assert answer("remove", photographs / "wall-a.jpg", "--index", any_index)["removed"] == 1
    assert answer("info", "--index", any_index)["images"] == 11
    assert "is not in the index" in refuse("remove", photographs / "wall-a.jpg", "--index", any_index)
    assert run("remove", photographs / "wall-b.jpg", "--index", any_index).stdout == "1 removed\n"


def test_info(index_path: Path, photographs: Path, vocabularies: tuple[Vocabulary, ...]) -> None:
    facts = answer("info", "--index", index_path, "--images")
    assert facts["images"] == len(facts["photographs"]) == 12
    assert facts["features"] == sum(row["features"] for row in facts["photographs"]) > 1000
    assert facts["photographs"][0]["path"] == str(photographs / "bridge-a.jpg")
    assert [v["fingerprint"] for v in facts["vocabularies"]] == [v.fingerprint for v in vocabularies]
    assert facts["vocabularies"][1]["provenance"] == {"seed": 1}
    assert facts["feature_options"] == FeatureOptions().as_dict()
    stored = dict(facts["bytes"])
    assert stored.pop("total") == sum(stored.values()) == sum(p.stat().st_size for p in index_path.rglob("*") if p.is_file())
    assert stored["segments/postings"] >= 2 * 2 * facts["features"]  # two vocabularies, two bytes
    in_segments = sum(size for kind, size in stored.items() if kind.startswith("segments/"))
    assert facts["bytes_per_feature"] == pytest.approx(in_segments / facts["features"], abs=0.01)
    lines = run("info", "--index", index_path, "--images").stdout.splitlines()
    assert lines[0] == f"index         {index_path}: 12 photographs"
    assert lines[1] == f"folders       {photographs}: 12 photographs"
    assert [line.split()[0] for line in lines[2:4]] == ["size", "last"]
    assert lines[3].endswith(f", commit {facts['commit']}")
    verbose = run("info", "--index", index_path, "--images", "--verbose").stdout.splitlines()
    assert verbose[:4] == lines[:4] and verbose[-12:] == lines[-12:]
    assert verbose[4:6] == [f"format        {facts['format']}", "images        12 in 1 segments, 0 deleted"]
    assert lines[-1].endswith(str(photographs / "wall-c.jpg"))


def test_info_of_codes(index_path: Path, coded_index_path: Path, fine: Vocabulary) -> None:
    facts = answer("info", "--index", coded_index_path)
    assert (facts["format"], facts["signatures"]) == (3, 0)
    described = facts["fine_vocabulary"]
    assert (described["fingerprint"], described["size"], described["bits"]) == (fine.fingerprint, 1000, 128)
    assert facts["bytes"]["segments/codes"] >= 16 * facts["features"]  # 128 bits
    lines = run("info", "--index", coded_index_path, "--verbose").stdout.splitlines()
    assert [
        line for line in lines if line.startswith(f"codes         128 bits relative to {fine.fingerprint}: 1,000 words of ")
    ]
    assert [
        line for line in lines if line.startswith(f"words         {facts['vocabularies'][0]['fingerprint']}: 300 words of ")
    ]
    facts, lines = answer("info", "--index", index_path), run("info", "--index", index_path, "--verbose").stdout.splitlines()
    assert (facts["fine_vocabulary"], facts["signatures"]) == (None, 64)
    assert "codes         none" in lines and "words         signatures of 64 bits" in lines


def test_info_of_distributions(index_path: Path) -> None:
    facts = answer("info", "--index", index_path, "--distributions")
    expected = index_distributions(polyvoc.Index.open(index_path))
    assert {name: facts[name] for name in expected} == expected
    assert facts["images"] == 12 and not expected.keys() & answer("info", "--index", index_path).keys()
    lines = run("info", "--index", index_path, "--distributions").stdout.splitlines()
    lengths, (ratios,) = expected["list_lengths"], expected["ratios"]
    at = next(number for number, line in enumerate(lines) if line.startswith("vocabulary 1"))
    assert f"longest {lengths[0]['longest']}, {lengths[0]['empty']} empty" in lines[at]
    drawn = lines[at + 1 : at + 1 + len(lengths[0]["counts"])]
    assert [int(line.split()[1]) for line in drawn] == lengths[0]["counts"]
    assert max(line.count("█") for line in drawn) == drawn[int(np.argmax(lengths[0]["counts"]))].count("█") == 40
    assert f"mean {ratios['mean']:.3f}" in next(line for line in lines if line.startswith("ratio 1 2"))


def test_check(index_path: Path) -> None:
    assert answer("check", "--index", index_path) == {"index": str(index_path), "ok": True, "errors": []}
    arrays = next(index_path.rglob("segments/*/arrays"))
    content = bytearray(arrays.read_bytes())
    content[-1] ^= 1
    arrays.write_bytes(content)
    result = run("check", "--index", index_path, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert not found["ok"]
    assert str(arrays) in found["errors"][0]
    assert run("check", "--index", index_path).exit_code == 1


def test_an_index_of_an_older_format_is_an_error(photographs: Path, tmp_path: Path) -> None:
    old = shutil.copytree(Path(__file__).parent.parent / "data" / "index_v1", tmp_path / "old.polyvoc")
    before = state_of(old)
    expected = f"polyvoc: {old} has format 1, made by an older polyvoc; index the photographs again"
    for command in (("search", photographs / "wall-a.jpg"), ("info",), ("index", photographs), ("remove", "scene-0a.png")):
        assert refuse(*command, "--index", old) == expected
    result = run("check", "--index", old)
    assert result.exit_code == 1 and result.stdout + result.stderr == f"{expected}\n"
    assert {name: state for name, state in state_of(old).items() if name != "lock"} == before


def test_a_damaged_index_is_an_error(index_path: Path, photographs: Path) -> None:
    next(index_path.rglob("segments/*/arrays")).unlink()
    result = run("search", photographs / "wall-a.jpg", "--index", index_path)
    assert result.exit_code == 0 and "12 images are damaged" in result.stderr and "check --repair" in result.stderr
    assert "check --repair" in refuse("search", photographs / "wall-a.jpg", "--index", index_path, "--require-all")
    result = run("check", "--index", index_path, "--repair")
    assert result.exit_code == 0 and "dropped segment" in result.stdout and "polyvoc index FOLDER" in result.stderr
    assert answer("index", photographs, "--index", index_path)["added"] == 12
    assert searched(photographs / "wall-a.jpg", "--index", index_path)["complete"]
    (index_path / "catalogue.sqlite").write_bytes(b"something else" * 100)
    assert "catalogue.sqlite" in refuse("info", "--index", index_path)


# -- train


def test_train(photographs: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes(b"no photograph")
    out = tmp_path / "words"
    result = answer(
        "train", photographs, tmp_path / "broken.jpg", "--out", out, "--size", 40, "--rounds", 2, "--seed", 7, "--bits", 32
    )
    made = Vocabulary.load(out)
    assert (made.size, made.bits, result["size"], result["bits"]) == (40, 32, 40, 32)
    assert result["fingerprint"] == made.fingerprint
    assert result["provenance"]["seed"] == 7
    assert result["problems"][0]["path"] == str(tmp_path / "broken.jpg")
    assert "give more photographs" in refuse("train", photographs / "wall-a.jpg", "--out", tmp_path / "more", "--size", 100_000)
    assert "bits=129" in refuse("train", photographs, "--out", tmp_path / "more", "--bits", 129)


# -- interruptions


def test_an_interrupted_run_prints_what_is_kept(index_path: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polyvoc.index.writer.compare_folders", interrupt)
    result = run("index", photographs, "--index", index_path)
    assert result.exit_code == 130
    assert result.stderr == f"polyvoc: {KEPT}\n"
    monkeypatch.setattr("polyvoc.search.info.index_info", interrupt)
    result = run("info", "--index", index_path)
    assert (result.exit_code, result.stderr) == (130, "polyvoc: interrupted\n")


def test_a_closed_pipe_is_quiet(index_path: Path) -> None:
    command = [sys.executable, "-m", "polyvoc", "info", "--images", "--index", str(index_path)]
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as pipe:
        result = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, check=False)
    assert result.returncode == 141
    assert result.stderr == b""


def test_progress_is_drawn_for_terminals_only(
    index_path: Path, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "more"
    folder.mkdir()
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64), np.uint8)
    (folder / "noise.pgm").write_bytes(b"P5 64 64 255\n" + pixels.tobytes())
    assert run("index", folder, "--index", index_path).stderr == ""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    (folder / "again.pgm").write_bytes(b"P5 64 64 255\n" + pixels.tobytes())
    assert "indexing" in run("index", folder, "--index", index_path).stderr
