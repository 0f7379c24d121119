"""Every table and figure of the paper on drawn photographs: all of it runs, is cached, and is written as a page."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from benches import never
from polyvoc.errors import DatasetError, OptionError
from polyvoc.experiments.datasets.feature_cache import FeatureStore
from polyvoc.experiments.match_table import Matcher
from polyvoc.experiments.paper.cells import dataset_title, equation, vocabularies_text
from polyvoc.experiments.paper.claims import Claim, difference_text, summary, verdict
from polyvoc.experiments.paper.controls import pca_values
from polyvoc.experiments.paper.figures import steps
from polyvoc.experiments.paper.run import EXPERIMENTS, find_datasets, run_experiments, set_up, write_report
from polyvoc.experiments.paper.setup import FULL, QUICK, Plan, Setup, mean_values
from polyvoc.experiments.paper.signature_length import lengthened, signature_values
from polyvoc.experiments.paper.tables import table3, table5
from polyvoc.experiments.report.report import Report, Section, TableCell
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import FeatureOptions, SearchOptions
from samples import photograph

SECTIONS = [
    "readings",
    *(f"table{number}" for number in range(2, 7)),
    *(f"figure{number}" for number in range(2, 8)),
    *("efficiency", "assignment", "ablations", "three", "hamming", "criteria", "codes"),
]
# The sizes of the paper shrink to 50, 100, 250 and 500 words.
TINY = Plan(
    "tiny", 0.005, sizes=(10_000, 20_000, 50_000, 100_000), most=3, each=3, repeats=1, distractors=(0, 6, 20), images=100
)


def draw(folder: Path, names: list[str], seed: int) -> None:
    """Draw views of one scene: as it is, a part of it, turned, turned the other way and darker."""
    scene = Image.open(photograph(folder / f"{names[0]}.png", seed))
    width, height = scene.size
    views = [
        scene.crop((width // 12, height // 12, width, height)),
        scene.rotate(8, Image.Resampling.BICUBIC),
        scene.rotate(-15, Image.Resampling.BICUBIC).point([int(level * 0.8) for level in range(256)] * 3),
    ]
    for name, view in zip(names[1:], views, strict=False):
        view.save(folder / f"{name}.png")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holidays of 9 scenes, Ukbench of 5, 40 other photographs; the last query and a training photograph are broken."""
    folder = tmp_path_factory.mktemp("data")
    for scene in range(8):
        draw(folder / "holidays9", [f"{1000 + scene}{view:02d}" for view in range(3)], 100 + scene)
    for scene in range(5):
        draw(folder / "ukbench5", [f"ukbench{4 * scene + view:05d}" for view in range(4)], 200 + scene)
    for number in range(40):
        photograph(folder / "train" / f"{number:02d}.png", 300 + number)
    photograph(folder / "holidays9" / "100801.png", 108)
    for broken in (folder / "holidays9" / "100800.jpg", folder / "train" / "broken.jpg"):
        broken.write_text("no photograph")
    return folder


@pytest.fixture(scope="module")
def setup(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("polyvoc.experiments.paper.setup.PER_WORD", 4)
        bench = Workbench(tmp_path_factory.mktemp("cache"), FeatureOptions(max_features=60))
        yield set_up(data, None, None, TINY, bench)


@pytest.fixture(scope="module")
def report(setup: Setup) -> Report:
    return run_experiments(setup)


def section(report: Report, name: str) -> Section:
    return next(section for section in report.sections if section.id == name)


def cells_of(section: Section, table: int = 0) -> dict[str, list[Any]]:
    """Return the cells of a table by the names of its rows."""
    return {str(row.cells[0]): list(row.cells[1:]) for row in section.tables[table].lines}


# -- the whole


def test_every_table_and_figure_is_there(report: Report) -> None:
    assert [section.id for section in report.sections] == SECTIONS == list(EXPERIMENTS)
    assert all((part.tables or part.figures) and all(table.lines for table in part.tables) for part in report.sections)
    assert [part.id for part in report.sections if part.figures] == ["readings", *(f"figure{number}" for number in range(2, 8))]


def test_facts_name_what_was_used_and_what_is_missing(report: Report) -> None:
    facts = dict(report.facts)
    assert facts["Holidays"].startswith("26 images, 9 queries, mAP")
    assert facts["Ukbench"] == "20 images, 20 queries, N-S"
    assert facts["not available"] == "Oxford: only the paper's figures are shown"
    assert facts["vocabularies of the plan"].startswith("3 of 100 words, 3 each of 0.05K, 0.25K; trained on 1,")
    assert "of 21 photographs of train" in facts["vocabularies of the plan"]
    assert facts["features"].startswith("OpenCV SIFT as rootSIFT, at most 3,000 per photograph")
    assert "26 photographs of Holidays, 20 photographs of Ukbench" in report.subtitle


def test_numbers_are_beside_those_of_the_paper(report: Report) -> None:
    third = cells_of(section(report, "table3"))
    assert [cell.paper for cell in third["`b1`"]] == [49.87, 50.49, 56.64]
    assert [cell.paper for cell in third["`b2`"]] == [37.3, None, None]
    gains = cells_of(section(report, "table3"), 2)
    assert gains["`bayes` - `b1`"][0].paper == 8.64
    assert gains["`bayes` - `b1`"][0].difference
    assert third["`bayes`"][0].value - third["`b1`"][0].value == pytest.approx(gains["`bayes` - `b1`"][0].value)
    assert cells_of(section(report, "efficiency"))["`b1`"][0].paper == 8.0
    assert cells_of(section(report, "efficiency"))["`b1`"][1].paper is None  # not a million images


def test_a_page_its_numbers_and_its_plots_are_written(report: Report, tmp_path: Path) -> None:
    page = write_report(report, tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    text = page.read_text(encoding="utf-8")
    assert all(f'id="{part.id}"' in text for part in report.sections) and "src=" not in text  # it needs nothing else
    data = json.loads((tmp_path / "out" / "report.json").read_text(encoding="utf-8"))
    assert data == Report.from_dict(data).as_dict() == report.as_dict()
    plots = sorted(path.name for path in (tmp_path / "out" / "plots").iterdir())
    assert plots == [*(f"figure{name}.svg" for name in ("2", "3", "4", "5-1", "5-2", "6", "7")), "readings.svg"]
    for name in plots:
        assert ElementTree.parse(tmp_path / "out" / "plots" / name).getroot().tag.endswith("svg")


def test_a_second_run_takes_everything_from_the_cache(setup: Setup, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuantisedDataset, "scores", never)
    monkeypatch.setattr(Matcher, "table", never)
    for name in ("workbench.train", "workbench._quantise", "paper.efficiency.measure"):
        monkeypatch.setattr(f"polyvoc.experiments.{name}", never)
    seen: list[tuple[str, int, int]] = []
    watched = replace(setup.workbench, progress=lambda *step: seen.append(step))
    again = run_experiments(replace(setup, workbench=watched))
    assert [section.as_dict() for section in again.sections] == [section.as_dict() for section in report.sections]
    stages = [step for step in seen if step[0].startswith("experiments")]
    count = len(SECTIONS)
    assert stages[0] == ("experiments: readings", 0, count) and stages[-1] == ("experiments: done", count, count)
    assert list((setup.workbench.cache / "efficiency").iterdir()) == []  # the collection is deleted


def test_results_of_another_machine_are_taken_up_without_reading_photographs(
    setup: Setup, report: Report, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(data, elsewhere)  # other paths and times, an empty cache
    results = setup.workbench.cache / "values"
    workbench = Workbench(tmp_path / "cache", setup.workbench.features, results=results)
    monkeypatch.setattr(FeatureStore, "open", never)
    again = run_experiments(set_up(elsewhere, None, None, setup.plan, workbench))
    assert [section.as_dict() for section in again.sections] == [section.as_dict() for section in report.sections]
    made = json.loads(next(results.glob("holidays-*.json")).read_text())
    assert made.keys() == {"name", "commit", "date", "seconds", "inputs", "value"}


def test_only_what_is_finished(setup: Setup, report: Report, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(FeatureStore, "open", never)
    results = tmp_path / "results"
    shutil.copytree(setup.workbench.cache / "values", results)
    done = replace(setup, workbench=replace(setup.workbench, results=results, finished=True))
    assert "not finished" not in dict(run_experiments(done).facts)
    for file in results.glob("efficiency-*.json"):
        file.unlink()
    some = run_experiments(done)
    assert [section.id for section in some.sections] == [name for name in SECTIONS if name != "efficiency"]
    assert dict(some.facts)["not finished"] == "efficiency"
    for file in results.glob("ukbench-*-term-2-criterion-*.json"):
        file.unlink()
    part = section(run_experiments(done, ["criteria"]), "criteria")
    assert part.text[-1] == "Not finished: Ukbench."
    assert {row.cells[0] for row in part.tables[0].lines} == {"Holidays"}


def test_nothing_is_finished(setup: Setup, tmp_path: Path) -> None:
    empty = replace(setup, workbench=replace(setup.workbench, results=tmp_path, finished=True))
    with pytest.raises(OptionError, match=r"^nothing is finished yet; run it without --finished$"):
        run_experiments(empty)
    alone = replace(empty, datasets={"ukbench": setup.datasets["ukbench"]})
    with pytest.raises(OptionError, match=r"^nothing is finished yet"):
        run_experiments(alone)


def test_a_lazy_vocabulary_is_identified_by_its_training(setup: Setup) -> None:
    whole = replace(setup, everything=True)
    plan = replace(setup, plan=replace(setup.plan, scale=0.01))
    several = [own.lazy_vocabulary(20_000, seed) for own in (setup, whole, plan) for seed in (0, 1)]
    assert len({vocabulary.identity for vocabulary in several}) == 6
    assert setup.lazy_vocabulary(20_000, 0).load().fingerprint == setup.vocabulary(20_000, 0).fingerprint
    assert whole.store.files == (*setup.training, *setup.distractors) and whole.n_descriptors == whole.store.n_features
    assert whole.train_options(20_000, 0).max_descriptors > setup.train_options(20_000, 0).max_descriptors


def test_some_of_the_experiments(setup: Setup, report: Report) -> None:
    some = run_experiments(setup, ["codes", "figure4"])
    assert [part.as_dict() for part in some.sections] == [section(report, name).as_dict() for name in ("figure4", "codes")]
    with pytest.raises(OptionError, match=r"no experiment figure1, table9; choose from readings, table2, .*, codes"):
        run_experiments(setup, ["table9", "table2", "figure1"])


# -- single experiments


def test_one_dataset_alone_takes_the_default_line(setup: Setup) -> None:
    alone = replace(setup, datasets={"ukbench": setup.datasets["ukbench"]})
    assert alone.line("ukbench") == SearchOptions().line
    assert "default line" in alone.origin
    part = table3(alone)
    assert "the default line, as there is no other dataset to fit one on: SIFT, Ukbench 0.600 r + 0.400." in part.text[1]


def test_one_question_alone_has_no_interval(setup: Setup, data: Path) -> None:
    few = set_up(data, None, None, replace(TINY, questions=1), setup.workbench)
    assert [len(dataset.questions) for dataset in few.datasets.values()] == [1, 1]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Setup, "line", lambda self, name, sets: (0.6, 0.4))  # too few true matches to fit one
        part = table5(few)
    assert all(cell.low is None for cell in cells_of(part)["Holidays, mAP"])
    assert part.verdict == "open" and " (" not in part.verdict_text.partition(":")[2]


def test_controls_on_the_same_features(setup: Setup, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.experiments.paper.controls.DIMENSIONS", (4, 6, 500))  # 500 are too many for so few photographs
    rows = cells_of(section(report, "table6"))
    assert "control: ASMK*, 100 words, 5 per query feature" in rows
    for name, dataset in setup.datasets.items():
        by_size = pca_values(setup, name, (20_000, 10_000))
        assert list(by_size) == ["4", "6"]
        for values in by_size.values():
            assert len(values) == len(dataset.questions) and all(value is not None and value >= 0 for value in values)


def test_longer_codes_keep_the_words_and_the_first_bits(setup: Setup) -> None:
    found = signature_values(setup, "holidays")
    bench = setup.equal("holidays", (0, 1))
    engine = setup.outcomes(bench, setup.rules("holidays", ("b1", "bayes"), [" + HE"]))
    assert found["b1 64 24"] == engine["b1 + HE"] and found["bayes 64 24"] == engine["bayes + HE"]
    assert len(found) == 6
    for vocabulary in bench.vocabularies:
        longer = lengthened(setup, vocabulary)
        assert longer.bits == 128 and longer.shortened(64).fingerprint == vocabulary.fingerprint


def test_databases_grow_up_to_the_last_distractor(setup: Setup) -> None:
    assert len(setup.distractors) == 20
    assert len(setup.distractors_of("holidays")) == 20 + 20  # those of the other dataset, too
    assert steps(setup, "holidays") == [0, 6, 20]
    assert steps(replace(setup, plan=replace(TINY, distractors=(0, 5, 10, 39, 1000))), "holidays") == [0, 5, 10, 40]
    assert steps(replace(setup, plan=replace(TINY, distractors=(0, 4, 8))), "holidays") == [0, 4, 8]  # no more than it wants
    assert steps(replace(setup, distractors=(), datasets={"holidays": setup.datasets["holidays"]}), "holidays") == [0]
    assert setup.bench("holidays", [(20_000, 0)], 6).n_images == 26 + 6


# -- setting up


def test_half_of_the_photographs_are_distractors_unless_there_are_others(setup: Setup, data: Path) -> None:
    photographs = sorted((data / "train").iterdir())
    assert list(setup.training) == photographs[0::2] and list(setup.distractors) == photographs[1::2]
    other = set_up(data, data / "train", data / "ukbench5", replace(TINY, training=7), setup.workbench)
    assert list(other.training) == photographs[:7] and len(other.distractors) == 20
    assert (other.source, other.missing) == ("train", ("Oxford",))
    same = set_up(data, data / "train", data / "train", replace(TINY, training=7), setup.workbench)
    assert list(same.distractors) == photographs[7:]  # nothing that a vocabulary was trained on


def test_no_line_is_fitted_on_the_photographs_of_the_evaluation(setup: Setup) -> None:
    assert setup.line("holidays") == tuple(setup.fitted("ukbench")["tied"])
    assert setup.line("holidays", kind="free") == tuple(setup.fitted("ukbench")["free"])
    assert setup.line("holidays", "feature") == tuple(setup.fitted("ukbench", "feature")["tied"])
    oxford = replace(setup, datasets={"oxford": setup.datasets["ukbench"], "holidays": setup.datasets["holidays"]})
    assert (oxford.fitted_on("oxford"), oxford.fitted_on("holidays")) == ("holidays", None)  # it is for reports only
    assert setup.line("ukbench") == tuple(setup.fitted("holidays")["tied"]) != setup.line("holidays")
    assert (setup.fitted_on("holidays"), setup.fitted_on("ukbench")) == ("ukbench", "holidays")
    revisited = replace(setup.datasets["holidays"], name="rholidays")  # as Oxford and its revisited form
    twins = replace(setup, datasets={"holidays": setup.datasets["holidays"], "rholidays": revisited})
    assert twins.fitted_on("holidays") is None and twins.line("rholidays") == SearchOptions().line
    assert "the default line" in twins.origin and "never on the photographs of the evaluation" in setup.origin
    three = replace(setup, datasets={**twins.datasets, "ukbench": setup.datasets["ukbench"]})
    assert three.fitted_on("rholidays") == "ukbench"


def test_a_folder_without_datasets_is_an_error(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"no dataset found; expected sub-folders such as holidays\*/, ukbench\*/"):
        find_datasets(tmp_path)
    with pytest.raises(DatasetError, match="is not a folder; give the one that holds the datasets"):
        find_datasets(tmp_path / "away")
    assert list(find_datasets(data)) == ["holidays", "ukbench"]
    for name in ("holidays", "holidays-again"):
        (tmp_path / name).symlink_to(data / "holidays9")
    with pytest.raises(DatasetError, match="two folders of holidays: holidays, holidays-again; leave one"):
        find_datasets(tmp_path)


def test_photographs_to_train_on_are_needed(data: Path, tmp_path: Path) -> None:
    (tmp_path / "holidays").symlink_to(data / "holidays9")
    with pytest.raises(OptionError, match=r"no folder of training photographs .* give one with --train FOLDER"):
        set_up(tmp_path, None, None, TINY, Workbench(tmp_path / "cache"))


def test_seeds_of_repetitions_are_disjoint(setup: Setup) -> None:
    full = replace(setup, plan=FULL)
    assert full.repeats(2) == [(0, 1), (2, 3), (4, 5)] and full.repeats(3) == [(0, 1, 2), (3, 4, 5), (6, 7, 8)]
    assert setup.repeats(2) == [(0, 1)]
    assert replace(setup, plan=replace(TINY, most=2)).repeats(3) == [(0, 1, 2)]


def test_plans_train_what_the_paper_says() -> None:
    assert FULL.train_options(20_000, 4).size == 20_000 and FULL.train_options(20_000, 4).seed == 4
    assert FULL.train_options(200_000, 0).bits == 0 and FULL.train_options(100_000, 0).bits == 64
    assert QUICK.train_options(20_000, 0).size == 2000
    assert replace(FULL, scale=1e-9).words(10_000) == 1


def test_sizes_that_lack_descriptors_are_left_out(setup: Setup, report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    assert setup.sizes == (10_000, 20_000, 50_000)
    assert section(report, "figure6").text[1:] == ("Left out, too few training descriptors: 0.5K words.",)
    monkeypatch.setattr("polyvoc.experiments.paper.setup.PER_WORD", 20)
    many = replace(setup, plan=FULL)
    vars(many)["n_descriptors"] = 3_700_000
    assert many.can_train(200_000)
    vars(many)["n_descriptors"] = 2_000_000
    assert many.can_train(100_000) and not many.can_train(200_000)


# -- cells


def test_repetitions_are_averaged_by_question() -> None:
    assert mean_values([[1.0, None, 0.0], [0.5, None, 1.0]]) == [0.75, None, 0.5]


def claim(low: float | None, high: float | None, sign: int = 1, room: float = 0.0) -> Claim:
    return Claim("one", TableCell(0.0, 1, low, high), sign, room)


def test_a_claim_is_judged_by_its_interval() -> None:
    outcomes = {(1, 2): "holds", (-1, 2): "open", (None, None): "open", (0, 1): "open", (-2, -1): "contradicted"}
    assert {bounds: claim(*bounds).outcome for bounds in outcomes} == outcomes
    assert [claim(-2, -1, -1).outcome, claim(1, 2, -1).outcome, claim(-1, 1, -1).outcome] == ["holds", "contradicted", "open"]
    near = [claim(-0.4, 0.5, 0, 0.5), claim(-0.4, 0.6, 0, 0.5), claim(0.6, 0.9, 0, 0.5), claim(-0.9, -0.6, 0, 0.5)]
    assert [one.outcome for one in near] == ["holds", "open", "contradicted", "contradicted"]


def test_verdicts_follow_the_claims() -> None:
    holds, wrong, undecided = claim(1, 2), claim(-2, -1), claim(-1, 1)
    assert verdict([holds, holds]) == "reproduces" and verdict([]) == ""
    assert verdict([holds, wrong]) == verdict([holds, undecided]) == "partly"
    assert verdict([wrong, undecided]) == "does not" and verdict([undecided]) == "open"
    text = summary([holds, wrong, undecided])
    assert text.startswith(
        "1 of 3 differences are as the paper says with their whole interval. Against it: one +0.0 (-2.0 to -1.0)"
    )
    assert text.endswith("Undecided: one +0.0 (-1.0 to +1.0).")
    assert difference_text(TableCell(1.25, 2, -0.5, 3.0)) == "+1.25 (-0.50 to +3.00)"
    assert difference_text(TableCell(-1.25, 3, -math.inf, math.inf)) == "-1.250"


def test_vocabularies_are_named_as_in_the_paper(setup: Setup) -> None:
    full = replace(setup, plan=FULL)
    assert vocabularies_text(full, [20_000, 20_000]) == "2x20K" and vocabularies_text(full, [10_000, 50_000]) == "10K + 50K"
    assert vocabularies_text(setup, [20_000] * 3) == "3x0.1K"
    assert equation((0.5, 0.25)) == "0.500 r + 0.250"
    assert dataset_title("roxford") == "ROxford" and dataset_title("mine") == "mine"
