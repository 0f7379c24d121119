"""`polyvoc calibrate`: flags, JSON and text, and the line and the table in an index."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from commands import answer, refuse, run, searched, vocabulary_flags
from polyvoc.errors import DamagedError, OptionError
from polyvoc.experiments.datasets.readers import READERS
from polyvoc.experiments.fit.code_table import fit_code_table_pairs, save_code_table
from polyvoc.experiments.fit.likelihood import fit_table, fit_table_pairs, save_likelihood_table, tally, tally_groups
from polyvoc.experiments.fit.line import Fit, fit_lines_pairs, save_lines
from polyvoc.experiments.fit.reliability import reliability
from polyvoc.experiments.fit.true_matches import find_pairs
from polyvoc.experiments.workbench import Workbench
from polyvoc.index.catalogue import Catalogue
from polyvoc.index.check import check
from polyvoc.index.writer import IndexWriter
from polyvoc.options import Preset, SearchOptions, SetKind
from polyvoc.scoring.codes import code_table_as_dict, code_table_from_dict, default_code_table
from polyvoc.scoring.rules import check_table, default_table, load_table, save_table, table_as_dict, table_from_dict
from polyvoc.search.index import Index
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet
from samples import unflushed
from servers import serving
from views import SCENES, VIEWS

__all__ = ["unflushed"]

LINE = (0.7, 0.25)
SOURCE = {"pairs": 30}


def errors_of(path: Path) -> list[str]:
    return list(check(path, more=[check_table]))


def put_settings(path: Path, **settings: Any) -> None:
    with closing(Catalogue.open(path, writable=True)) as catalogue, catalogue.transaction():
        catalogue.put_settings(settings)


@pytest.fixture
def index(views_index: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(views_index, tmp_path / "views.polyvoc"))


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def words(vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> list[object]:
    return vocabulary_flags(vocabularies, tmp_path)


# -- an index without labels


def test_an_index_calibrates_itself(index: Path) -> None:
    result = answer("calibrate", "--index", index)
    assert (result["index"], result["saved"]) == (str(index), False)
    with Index.open(index) as opened:
        pairs = find_pairs(opened)
        lines, table = fit_lines_pairs(opened, pairs), fit_table_pairs(opened, pairs)
        learnt = {"line": {kind: fit.as_dict() for kind, fit in lines.items()}, "likelihood_table": table_as_dict(table)}
        assert result == {"index": str(index), **learnt, "code_table": None, "saved": False, "table": None}
        assert opened.default_options == SearchOptions(**{**vars(opened.default_options), "likelihood_table": None})
        assert opened.default_options.line == SearchOptions().line
    assert table.source == "36 verified pairs of 18 among 18 photographs, words 300 + 300, 64 bits"

    assert list(result["line"]) == ["feature", "image"]
    for fit in result["line"].values():
        assert (fit["queries"], fit["pairs"]) == (SCENES * VIEWS, SCENES * VIEWS * (VIEWS - 1))
        assert sum(fit["tied"]) == pytest.approx(1)
        assert set(fit["curve"]) == {"b", "power"}
        assert len(fit["intervals"]["power"]) == 2
        assert len(fit["bins"]["share"]) == len(fit["bins"]["low"])


def test_saving_keeps_the_lines_in_the_index(index: Path, views: Path) -> None:
    result = answer("calibrate", "--index", index, "--save")
    assert result["saved"]
    assert errors_of(index) == []
    feature, image = (result["line"][kind]["tied"] for kind in ("feature", "image"))
    assert feature != image
    info = answer("info", "--index", index)
    assert info["default_options"]["line"] == feature
    assert info["lines"] == {"feature": feature, "image": image}
    shown = run("info", "--index", index, "--verbose").stdout
    assert f"term 2        {feature[0]:.3f} r + {feature[1]:.3f} for feature sets\n" in shown
    assert f"{image[0]:.3f} r + {image[1]:.3f} for image sets\n" in shown
    expected = {(): feature, ("--merge", "posterior"): feature, ("--merge", "bayes"): image, ("--merge", "b2"): image,
                ("--merge", "bayes", "--sets", "feature"): feature, ("--merge", "posterior", "--sets", "image"): image,
                ("--line", 0.5, 0.5): [0.5, 0.5], ("--merge", "bayes", "--line", 0.5, 0.5): [0.5, 0.5]}  # fmt: skip
    for flags, line in expected.items():
        found = searched(views / "1" / "0.jpg", "--index", index, *flags)
        assert found["options"]["line"] == line, flags
    source = Catalogue.open(index).setting("image_line")["source"]
    assert source["intervals"] == result["line"]["image"]["intervals"]
    assert source["true_matches"] == result["line"]["image"]["true_matches"]


def test_an_index_that_is_not_calibrated_shows_the_default_line(index: Path) -> None:
    assert answer("info", "--index", index)["lines"] == {"feature": [0.6, 0.4], "image": [0.6, 0.4]}
    assert "\nterm 2        0.600 r + 0.400\n" in run("info", "--index", index, "--verbose").stdout


def test_saving_keeps_the_table_in_the_index(index: Path, views: Path) -> None:
    result = answer("calibrate", "--index", index, "--save")
    table = table_from_dict(result["likelihood_table"], "")
    with Index.open(index) as opened:
        assert opened.default_options.likelihood_table == table
        for name in get_args(Preset):
            assert opened.preset(name).likelihood_table == table
        asked = views / "1" / "0.jpg"
        by_default = opened.search(asked)
        assert by_default == opened.search(asked, options=replace(opened.default_options, likelihood_table=table))
        shipped = opened.search(asked, options=replace(opened.default_options, likelihood_table=None))
    assert [hit.score for hit in by_default] != [hit.score for hit in shipped]
    found = searched(asked, "--index", index)
    assert found["options"]["likelihood_table"] == table.source  # not all its numbers
    assert found["hits"][0]["score"] == pytest.approx(by_default[0].score)
    assert answer("info", "--index", index)["default_options"]["likelihood_table"] == table.source
    assert f"likelihood table {table.source}" in run("info", "--index", index, "--verbose").stdout
    without = searched(asked, "--index", index, "--likelihood-table", "none")
    assert without["options"]["likelihood_table"] is None
    assert without["hits"][0]["score"] == pytest.approx(shipped[0].score)


def test_a_table_in_a_file(index: Path, views: Path, tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    result = answer("calibrate", "--index", index, "--table", file)
    assert result["table"] == str(file)
    table = load_table(file)
    assert table_as_dict(table) == result["likelihood_table"]
    found = searched(views / "1" / "0.jpg", "--index", index, "--likelihood-table", file)
    assert found["options"]["likelihood_table"] == table.source
    with Index.open(index) as opened:
        expected = opened.search(views / "1" / "0.jpg", options=replace(opened.default_options, likelihood_table=table))
        assert opened.default_options.likelihood_table is None  # the index itself is as it was
    assert [hit["score"] for hit in found["hits"]] == pytest.approx([hit.score for hit in expected])
    assert f"--likelihood-table {file}" in run("calibrate", "--index", index, "--table", file).stderr
    line = refuse("search", views / "1" / "0.jpg", "--index", index, "--likelihood-table", tmp_path / "none.json")
    assert "none.json: cannot be read (No such file or directory)" in line
    other = tmp_path / "other.json"
    save_table(default_table(3, 64), other)
    line = refuse("search", views / "1" / "0.jpg", "--index", index, "--likelihood-table", other)
    assert "likelihood table" in line and "3 vocabularies with 64 bits" in line
    assert "no/table.json" in refuse("calibrate", "--index", index, "--table", tmp_path / "no" / "table.json")


def test_one_vocabulary_has_a_table_and_no_line(
    views: Path, vocabularies: tuple[Vocabulary, ...], words: list[object], cache: Path, tmp_path: Path
) -> None:
    path = tmp_path / "one.polyvoc"
    with IndexWriter.open(path, vocabularies[:1]) as writer:
        writer.update([views])
    result = answer("calibrate", "--index", path, "--save")
    assert result["line"] == {}
    with Index.open(path) as opened:
        assert opened.default_options.line == SearchOptions().line
        assert table_as_dict(opened.default_options.likelihood_table) == result["likelihood_table"]  # type: ignore[arg-type]
    shown = run("calibrate", "--index", path)
    assert [line.split("  ")[0] for line in shown.stdout.splitlines()] == ["index", "", "likelihood"]
    result = answer("calibrate", "groups", views, "--test", "groups", views, "--cache", cache, *words[:2])
    assert result["line"] == result["tests"][0]["line"] == {}
    shown = run("calibrate", "groups", views, "--test", "groups", views, "--cache", cache, *words[:2])
    assert "nats per match" in shown.stdout


def test_the_text(index: Path) -> None:
    shown = run("calibrate", "--index", index)
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert lines[0] == f"index         {index}"
    assert lines[1].strip().startswith("18 queries, 36 pairs of photographs that show the same thing, ")
    for kind, row in (("feature", 2), ("image", 7)):
        assert lines[row].startswith(f"{kind} sets".ljust(14))
        assert lines[row].endswith("% of the true matches in the intersection")
        assert [line[14:24].strip() for line in lines[row + 1 : row + 5]] == ["a + b = 1", "free", "raw points", "curve"]
    assert lines[-2].startswith("likelihood    1 list: ")
    assert lines[-1].strip().startswith("2 lists: ")
    assert shown.stderr.startswith("Use it: polyvoc search PHOTO --merge posterior --line 0.")
    assert ", or polyvoc search PHOTO --merge bayes --line 0." in shown.stderr
    assert "--save" in shown.stderr
    saved = run("calibrate", "--index", index, "--save")
    last = saved.stdout.splitlines()[-1]
    assert last.startswith(f"saved         searches of {index} use 0.")
    assert last.endswith(" for image sets, this table")
    assert " for feature sets, 0." in last
    assert saved.stderr == ""


def test_a_plot(index: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "term2.svg"
    answer("calibrate", "--index", index, "--plot", plot)
    drawn = plot.read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    assert drawn.count("share of true matches") == 2
    assert "feature sets" in drawn and "image sets" in drawn
    assert "mean Hamming distance" in drawn
    assert "no/term2.svg" in refuse("calibrate", "--index", index, "--plot", tmp_path / "no" / "term2.svg")


def test_too_few_pairs(index: Path, index_path: Path, tmp_path: Path) -> None:
    line = refuse("calibrate", "--index", index_path)
    assert "12 queries of the index have 0 verified pairs" in line
    line = refuse("calibrate", "--index", index, "--queries", 2, "--save")
    assert "4 verified pairs" in line
    assert "--queries" in line
    assert answer("info", "--index", index)["default_options"]["line"] == list(SearchOptions().line)  # nothing was saved
    assert "queries=0 should be at least 1" in refuse("calibrate", "--index", index, "--queries", 0)
    assert "does not exist" in refuse("calibrate", "--index", tmp_path / "none.polyvoc", "--save")
    assert not (tmp_path / "none.polyvoc").exists()


def test_a_line_that_is_no_probability_is_not_saved(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = fit_lines_pairs

    def below_zero(*arguments: Any) -> dict[SetKind, Fit]:
        fits = fitted(*arguments)
        return {**fits, "image": replace(fits["image"], tied=(1.2, -0.2))}

    monkeypatch.setattr("polyvoc.experiments.fit.line.fit_lines_pairs", below_zero)
    assert "b = -0.200 is no probability" in refuse("calibrate", "--index", index, "--save")
    known = answer("info", "--index", index)["default_options"]
    assert (known["line"], known["likelihood_table"]) == (list(SearchOptions().line), None)  # no line, and no table


# -- an index with codes


@pytest.fixture
def coded(coded_views: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(coded_views, tmp_path / "coded.polyvoc"))


def test_an_index_with_codes_calibrates_itself(coded: Path) -> None:
    result = answer("calibrate", "--index", coded)
    with Index.open(coded) as opened:
        table = fit_code_table_pairs(opened, find_pairs(opened))
        assert opened.default_options.code_table is None
    nothing = {"line": {}, "likelihood_table": None, "saved": False, "table": None}  # without signatures
    assert result == {"index": str(coded), "code_table": code_table_as_dict(table), **nothing}
    assert table.source == "36 verified pairs of 18 among 18 photographs, 128 bits"
    first = table.rows[0]
    assert first[0] > first[32] >= first[64] == 0  # nearer codes are more evidence
    shown = run("calibrate", "--index", coded)
    lines = shown.stdout.splitlines()
    assert lines[0] == f"index         {coded}" and lines[1].strip() == table.source
    assert lines[2].startswith(f"codes         nearest word: {first[0]:.2f} at 0, ")
    assert [line.split(":")[0].strip() for line in lines[3:]] == [f"beyond {edge:g} x" for edge in table.edges]
    assert shown.stderr == f"Use it: polyvoc calibrate --index {coded} --save\n"


def test_saving_keeps_the_table_of_codes_in_the_index(coded: Path, views: Path) -> None:
    asked = views / "1" / "0.jpg"
    with Index.open(coded) as opened:
        before = opened.search(asked)
    result = answer("calibrate", "--index", coded, "--save")
    assert result["saved"] and errors_of(coded) == []
    table = code_table_from_dict(result["code_table"], "")
    with Index.open(coded) as opened:
        assert {opened.preset(name).code_table for name in get_args(Preset)} == {table}
        after = opened.search(asked)
        assert after == opened.search(asked, replace(SearchOptions(), code_table=table))
        assert before == opened.search(asked, SearchOptions())  # by the table of polyvoc
    assert [hit.score for hit in after] != [hit.score for hit in before]
    assert searched(asked, "--index", coded)["hits"][0]["score"] == pytest.approx(after[0].score)
    with IndexWriter.open(coded) as writer:
        writer.remove([views / "0"])
        writer.update([views])
    assert Index.open(coded).default_options.code_table == table


def test_an_index_with_codes_and_signatures_calibrates_both(
    views: Path, vocabularies: tuple[Vocabulary, ...], fine: Vocabulary, tmp_path: Path
) -> None:
    path, file = tmp_path / "both.polyvoc", tmp_path / "table.json"
    with IndexWriter.open(path, VocabularySet(vocabularies, fine, signed=True)) as writer:
        writer.update([views])
    result = answer("calibrate", "--index", path, "--save", "--table", file)
    assert list(result["line"]) == ["feature", "image"] and table_as_dict(load_table(file)) == result["likelihood_table"]
    with Index.open(path) as opened:
        assert code_table_as_dict(opened.default_options.code_table) == result["code_table"]  # type: ignore[arg-type]
        assert opened.options(merge="likelihood").likelihood_table == load_table(file)
    shown = run("calibrate", "--index", path).stdout.splitlines()
    starts = [line.split("  ")[0] for line in shown if not line.startswith(" ")]
    assert starts == ["index", "feature sets", "image sets", "likelihood", "codes"]


def test_words_without_signatures_have_no_table(coded: Path, tmp_path: Path) -> None:
    line = refuse("calibrate", "--index", coded, "--save", "--table", tmp_path / "table.json")
    assert "the words of this index have no signatures; index with --signatures" in line
    assert Index.open(coded).default_options.code_table is None  # nothing was saved
    assert not (tmp_path / "table.json").exists()


def test_without_codes_and_signatures_there_is_nothing_to_calibrate(
    views: Path, vocabularies: tuple[Vocabulary, ...], tmp_path: Path
) -> None:
    with IndexWriter.open(tmp_path / "plain.polyvoc", VocabularySet(vocabularies, None)) as writer:
        writer.update([views])
    line = refuse("calibrate", "--index", tmp_path / "plain.polyvoc", "--save")
    assert "calibration needs an index with codes or signatures; make one with: polyvoc index FOLDER" in line


def test_a_plot_of_codes(coded: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    answer("calibrate", "--index", coded, "--plot", tmp_path / "codes.svg")
    drawn = (tmp_path / "codes.svg").read_text(encoding="utf-8")
    assert "asymmetric distance" in drawn and "nearest word" in drawn


@pytest.mark.parametrize("change", [{"rows": [[0.0]]}, {"format": "another"}, {"edges": [2.0, 1.0]}, {"reach": None}])
def test_a_damaged_table_of_codes_is_an_error(coded: Path, change: dict[str, Any]) -> None:
    put_settings(coded, code_table={**code_table_as_dict(default_code_table(128)), **change})
    (line,) = errors_of(coded)
    assert "likelihood table of codes" in line and len(line) < 500
    with pytest.raises(DamagedError, match=r"catalogue.sqlite: not a likelihood table of codes"):
        Index.open(coded)


def test_a_table_of_codes_needs_codes(index: Path) -> None:
    with IndexWriter.open(index) as writer, pytest.raises(OptionError, match="holds no codes"):
        save_code_table(writer, default_code_table(128))
    assert Index.open(index).default_options.code_table is None


# -- datasets with labels


def test_a_dataset_fitted_and_tested(views: Path, words: list[object], cache: Path, tmp_path: Path) -> None:
    result = answer("calibrate", "groups", views, "--test", "groups", views, "--cache", cache, *words)
    (test,) = result["tests"]
    assert result["dataset"] == test["dataset"].split()[0] == "groups"
    assert set(test) == {"dataset", "line", "likelihood_table"}
    for kind, fit in result["line"].items():
        assert (fit["queries"], fit["pairs"]) == (18, 36)
        assert set(test["line"][kind]) == {"free", "tied", "raw", "curve"}
        assert test["line"][kind]["free"]["error"] < test["line"][kind]["free"]["constant_error"]
        assert test["line"][kind]["curve"]["error"] <= test["line"][kind]["tied"]["error"]  # on what they were fitted to
    assert 0 < test["likelihood_table"]["error"] < 0.5  # on the photographs that it was fitted on
    assert list(test["likelihood_table"]["curves"]) == ["1 list", "2 lists"]
    shown = run("calibrate", "groups", views, "--test", "groups", views, "--cache", cache, *words)
    assert shown.exit_code == 0
    assert "nats per true match" in shown.stdout
    assert "nats per match" in shown.stdout
    assert shown.stdout.startswith("groups        18 queries, 36 pairs of photographs that show the same thing, ")
    assert "--save" not in shown.stderr


def test_the_folder_of_a_dataset_decides(views: Path, words: list[object], cache: Path, tmp_path: Path) -> None:
    assert "'holiday' is no dataset" in refuse("calibrate", "holiday", views, "--cache", cache, *words)
    assert str(views) in refuse("calibrate", "holidays", views, "--cache", cache, *words)
    assert "nowhere" in refuse(
        "calibrate", "groups", views, "--test", "ukbench", tmp_path / "nowhere", "--cache", cache, *words
    )
    assert "exclude each other" in refuse("calibrate", "groups", views, "--cache", cache, "--vocabularies", 2, *words)


def test_flags_of_the_other_form_are_errors(views: Path, index: Path, words: list[object]) -> None:
    assert "--save is for an index" in refuse("calibrate", "groups", views, "--save")
    assert "--queries is for an index" in refuse("calibrate", "groups", views, "--queries", 5)
    assert "the folder of groups is missing" in refuse("calibrate", "groups")
    for flag in (["--test", "groups", views], words[:2], ["--vocabularies", 2], ["--cache", views]):
        assert f"{flag[0]} needs a dataset" in refuse("calibrate", "--index", index, *flag)


def test_a_table_and_a_plot_of_a_dataset(views: Path, words: list[object], cache: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file, plot = tmp_path / "table.json", tmp_path / "calibration.svg"
    given = ["--table", file, "--plot", plot, "--cache", cache, *words]
    result = answer("calibrate", "groups", views, "--test", "groups", views, *given)
    table = load_table(file)
    assert table.source == "groups (18 queries), words 300 + 300, 64 bits"
    bench = Workbench(cache).bench(READERS["groups"](views), [Vocabulary.load(Path(str(folder))) for folder in words[1::2]])
    assert table == fit_table(tally(bench), source=table.source)
    assert result["tests"][0]["likelihood_table"] == reliability(table, tally_groups(bench)).as_dict()
    drawn = plot.read_text(encoding="utf-8")
    assert drawn.count("predicted, nats") == 2  # one way and the other
    assert drawn.count("share of true matches") == 4  # two datasets, two kinds of sets
    answer("calibrate", "groups", views, *given)
    assert "mean Hamming distance" in plot.read_text(encoding="utf-8")


# -- the line and the table in the index


def test_saved_is_loaded_and_survives_updates(index: Path, views: Path) -> None:
    before = Index.open(index)
    with pytest.raises(DamagedError, match="'line' is missing"):
        before.folder.catalogue.setting("line")
    commit = before.folder.catalogue.setting("commit")
    with IndexWriter.open(index) as writer:
        save_lines(writer, {"feature": LINE}, {"feature": SOURCE})
    assert before.default_options.line == SearchOptions().line  # a snapshot stays as it is
    with Index.open(index) as opened:
        assert opened.default_options.line == LINE
        assert opened.folder.catalogue.setting("line") == {"a": LINE[0], "b": LINE[1], "source": SOURCE}
        assert opened.folder.catalogue.setting("commit") == commit + 1
    with IndexWriter.open(index) as writer:
        writer.remove([views / "0"])
        writer.update([views])
    with Index.open(index) as opened:
        assert opened.default_options.line == LINE
        assert len(opened) == SCENES * VIEWS
    with IndexWriter.open(index) as writer:
        save_lines(writer, {"feature": (0.5, 0.5)}, {"feature": SOURCE})
    assert Index.open(index).default_options.line == (0.5, 0.5)
    assert errors_of(index) == []


def test_each_rule_uses_the_line_of_its_sets(index: Path, views: Path) -> None:
    """In the library: search, score_words and explain; given options and keywords win."""
    photo, other = views / "1" / "0.jpg", (0.1, 0.9)
    with IndexWriter.open(index) as writer:
        save_lines(writer, {"feature": LINE, "image": other}, {"feature": SOURCE, "image": {}})
    with Index.open(index) as opened:
        assert opened.lines == {"feature": LINE, "image": other}
        assert opened.preset("paper").line == opened.options(preset="paper").line == other
        cases: list[tuple[dict[str, Any], tuple[float, float]]] = [
            ({"merge": "bayes"}, other),
            ({"merge": "posterior"}, LINE),
            ({"merge": "bayes", "sets": "feature"}, LINE),
            ({"merge": "posterior", "sets": "image"}, other),
            ({"merge": "bayes", "line": (0.2, 0.7)}, (0.2, 0.7)),
        ]
        words = opened.engine.image_features([opened.find(1)])[0]
        for changes, line in cases:
            assert opened.options(**changes).line == line
            explicit = replace(SearchOptions(line=line), burstiness="none", **changes)
            assert opened.options(explicit).line == line
            own = {**changes, "burstiness": "none"}
            scores = opened.score_words(words.words, words.signatures, **own)
            assert scores.tolist() == opened.score_words(words.words, words.signatures, explicit).tolist()
            assert opened.search(photo, **own, verify=0) == opened.search(photo, replace(explicit, verify=0))
            assert opened.explain(photo, 1, **own).weight.tolist() == opened.explain(photo, 1, explicit).weight.tolist()
        given = replace(SearchOptions(), merge="bayes")
        assert opened.options(given).line == SearchOptions().line  # complete options are taken as they are


def test_the_server_uses_the_line_of_the_sets(index: Path, views: Path) -> None:
    other = (0.1, 0.9)
    with IndexWriter.open(index) as writer:
        save_lines(writer, {"feature": LINE, "image": other}, {"feature": SOURCE, "image": SOURCE})
    photo = views / "1" / "0.jpg"
    cases: list[tuple[dict[str, Any], tuple[float, float]]] = [
        ({"merge": "posterior"}, LINE),
        ({"merge": "bayes"}, other),
        ({"preset": "paper"}, other),
        ({"merge": "bayes", "line": "0.5,0.5"}, (0.5, 0.5)),
    ]
    with serving(index) as served, Index.open(index) as opened:
        query = served.store(photo)
        for parameters, line in cases:
            assert served.search(photo, **parameters).json()["options"]["line"] == list(line)
            shown = served.get("/explain", params={"query": query, "image": 1, **parameters}).json()
            expected = opened.explain(photo, 1, **{**parameters, "line": line})
            assert shown["score"] == pytest.approx(float(expected.weight.sum()))
        assert served.get("/statistics").json()["lines"] == {"feature": list(LINE), "image": list(other)}


@pytest.mark.parametrize("line", [{"surprise": 1}, [], "text", {"a": 0.5, "b": None}])
@pytest.mark.parametrize("name", ["line", "image_line"])
def test_a_damaged_line_is_an_error_of_one_line(index: Path, name: str, line: Any) -> None:
    put_settings(index, **{name: line})
    assert any(name in error for error in errors_of(index))
    with pytest.raises(DamagedError, match=r"catalogue.sqlite: a line of term 2 is damaged; fit it again"):
        Index.open(index)
    put_settings(index, **{name: None})
    assert Index.open(index).lines == dict.fromkeys(("feature", "image"), SearchOptions().line)


def test_pending_images_are_committed_with_the_line(index: Path, views: Path) -> None:
    found = Index.open(index).features(views / "0" / "0.jpg")
    with IndexWriter.open(index) as writer:
        writer.add("another", found)
        save_lines(writer, {"feature": LINE}, {"feature": SOURCE})
    with Index.open(index) as opened:
        assert (len(opened), opened.default_options.line) == (SCENES * VIEWS + 1, LINE)


@pytest.mark.parametrize("line", [(1.0,), (float("nan"), 0.5), (0.5, float("inf"))])
def test_what_is_no_line_is_not_saved(index: Path, line: Any) -> None:
    with IndexWriter.open(index) as writer, pytest.raises(OptionError, match="line="):
        save_lines(writer, {"feature": line}, {"feature": SOURCE})
    assert Index.open(index).default_options.line == SearchOptions().line


def test_a_table_is_saved_and_survives_updates(index: Path, views: Path) -> None:
    table = default_table(2, 64)
    before = Index.open(index)
    with IndexWriter.open(index) as writer:
        save_likelihood_table(writer, table)
        writer.remove([views / "0"])
        writer.update([views])
    assert before.default_options.likelihood_table is None  # a snapshot stays as it is
    assert Index.open(index).default_options.likelihood_table == table
    other = replace(table, source="another")
    with IndexWriter.open(index) as writer:
        save_likelihood_table(writer, other)
    assert Index.open(index).default_options.likelihood_table == other
    assert errors_of(index) == []
    with IndexWriter.open(index) as writer, pytest.raises(OptionError, match="for 3 vocabularies does not fit an index with 2"):
        save_likelihood_table(writer, default_table(3, 64))
    assert Index.open(index).default_options.likelihood_table == other


@pytest.mark.parametrize("change", [{"rows": [[0.0]]}, {"format": "another"}, {"groups": [0, 0]}, {"edges": None}])
def test_a_damaged_table_is_an_error(index: Path, change: dict[str, Any]) -> None:
    values = {**table_as_dict(default_table(2, 64)), **change}
    put_settings(index, likelihood_table=values)
    (line,) = errors_of(index)
    assert "likelihood" in line
    assert len(line) < 500
    with pytest.raises(DamagedError, match=r"catalogue.sqlite: not a likelihood table"):
        Index.open(index)


def test_a_damaged_line_is_an_error(index: Path) -> None:
    put_settings(index, line={"a": 0.5})
    assert any("'line'" in line for line in errors_of(index))
    put_settings(index, line={"a": 0.5, "b": 0.5, "source": {}})
    with closing(Catalogue.open(index, writable=True)) as catalogue, catalogue.transaction():
        catalogue.write("UPDATE settings SET value = replace(value, '0.5', '0.6') WHERE name = 'line'")
    assert any("'line'" in line for line in errors_of(index))
    with pytest.raises(DamagedError, match="'line' is missing or damaged"):
        Index.open(index)
