"""Rules by name, the value of every question, means and gains over B1; measured once."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from benches import never
from polyvoc.errors import OptionError
from polyvoc.experiments.datasets.readers import Dataset, Question
from polyvoc.experiments.evaluate import (
    Outcome,
    evaluate,
    evaluation_rules,
    main_measure,
    mean_of,
    measure_ranking,
    recommended,
    results_table,
    rule_name,
    scoring_options,
)
from polyvoc.experiments.measures import Truth, average_precision, bootstrap, difference, precision_at, recall_at
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import Line, SearchOptions, SetKind
from polyvoc.scoring.codes import default_code_table
from polyvoc.vocabulary.vocabulary import Vocabulary


def synthetic(n_images: int, truths: dict[str, list[Truth]], measure: str = "mAP") -> Dataset:
    """Return a dataset of numbers: its questions are in groups of two."""
    paths = tuple(Path(str(number)) for number in range(n_images))
    n = len(next(iter(truths.values())))
    questions = tuple(Question(f"q{i}", Path("q"), None, group=f"g{i // 2}") for i in range(n))
    return Dataset("synthetic", Path(), "photographs", paths, questions, {k: tuple(v) for k, v in truths.items()}, measure)


# -- rules


def test_rules_are_named_by_their_options() -> None:
    named = evaluation_rules()
    assert list(named)[:6] == ["b0", "b1", "b2", "bayes", "posterior", "b0 + burstiness"]
    assert len(named) == 20 and list(named)[-1] == "posterior + HE + burstiness"
    assert named["bayes + HE"] == scoring_options(merge="bayes", hamming=24)
    assert named["b1 + HE + burstiness"] == scoring_options(merge="b1", hamming=24, burstiness="intra")
    named = evaluation_rules(("b1", "posterior"), (None,), ("none", "best"), line=(0.5, 0.4), c=3.0)
    assert list(named) == ["b1", "posterior", "b1 + best burstiness", "posterior + best burstiness"]
    assert all((options.line, options.c) == ((0.5, 0.4), 3.0) for options in named.values())
    lines: dict[SetKind, Line] = {"feature": (0.7, 0.3), "image": (0.5, 0.5)}
    named = evaluation_rules(lines=lines)
    assert all(options.line == lines["image" if options.merge in ("b2", "bayes") else "feature"] for options in named.values())
    assert {options.line for options in evaluation_rules(lines=lines, sets="image").values()} == {(0.5, 0.5)}
    presets = recommended(None, (64, 0), lines)
    assert {name: options.line for name, options in presets.items() if options.line != (0.7, 0.3)} == {
        "preset paper": (0.5, 0.5)
    }
    assert {options.line for options in recommended(None, (64, 0)).values()} == {(0.6, 0.4)}
    table = replace(default_code_table(128), source="other photographs")
    coded = recommended(None, (0, 128), code_table=table)
    assert coded.keys() == presets.keys() and all(options.code_table is table for options in coded.values())
    assert {name for name, options in coded.items() if options.merge == "codes"} == coded.keys() - {"preset paper"}
    named = evaluation_rules(("b1", "bayes"), (None, 20, 28), ("none",))
    thresholds = {"": None, " + HE 20": 20, " + HE 28": 28}
    expected = {f"{merge}{suffix}": h for suffix, h in thresholds.items() for merge in ("b1", "bayes")}
    assert {name: options.hamming for name, options in named.items()} == expected
    assert rule_name(scoring_options(merge="b2", hamming=20, burstiness="best")) == "b2 + HE + best burstiness"
    with pytest.raises(OptionError, match="merge='b3' should be one of"):
        evaluation_rules(("b3",))  # type: ignore[arg-type]


# -- measures


def test_rankings_have_the_measures_of_the_dataset() -> None:
    rng = np.random.default_rng(0)
    truths = [Truth(frozenset(rng.choice(30, 4).tolist()), frozenset({int(rng.integers(30))})) for _ in range(9)]
    dataset = synthetic(30, {"": truths})
    scores = rng.integers(0, 8, (9, 30)).astype(np.float32)  # with ties
    values = measure_ranking(dataset, lambda question: scores[question])
    assert list(values) == ["mAP", "R@1", "R@10"]
    for question, truth in enumerate(truths):
        ranking = sorted(range(30), key=lambda image: (-scores[question, image], image))
        assert values["mAP"][question] == average_precision(ranking, truth)
        assert values["R@1"][question] == recall_at(ranking, truth, 1)
        assert values["R@10"][question] == recall_at(ranking, truth, 10)
    assert measure_ranking(dataset, lambda question: -scores[question]) != values
    dataset = synthetic(8, {"": [Truth(frozenset({0, 1, 2, 3}))] * 2}, "N-S")
    values = measure_ranking(dataset, lambda question: np.array([9, 8, 0, 0, 7, 6, 0, 0]) if question else np.arange(8, 0, -1))
    assert values["N-S"] == [4.0, 2.0]
    assert main_measure(dataset) == "N-S"


def test_levels_of_the_revisited_protocol() -> None:
    easy = [Truth(frozenset({0})), Truth(frozenset()), Truth(frozenset({2}), frozenset({3}))]
    medium = [Truth(frozenset({0, 1})), Truth(frozenset({1})), Truth(frozenset({2, 3}))]
    dataset = synthetic(6, {"easy": easy, "medium": medium})
    values = measure_ranking(dataset, lambda question: np.array([0, 5, 1, 2, 3, 4]))
    assert list(values) == [
        f"{measure} {level}" for level in ("easy", "medium") for measure in ("mAP", "mP@1", "mP@5", "mP@10")
    ]
    assert main_measure(dataset) == "mAP medium"
    ranking = [1, 5, 4, 3, 2, 0]
    assert values["mAP easy"] == [average_precision(ranking, truth) for truth in easy]
    assert values["mAP easy"][1] is None  # it has no relevant image at this level
    assert values["mAP medium"][1] == 1.0
    assert values["mP@5 medium"] == [precision_at(ranking, truth, 5) for truth in medium]
    mean = mean_of(dataset, values["mAP easy"])
    assert mean.mean == pytest.approx(np.mean([v for v in values["mAP easy"] if v is not None]))


# -- a whole evaluation


def test_the_second_run_measures_nothing(
    workbench: Workbench, bench: QuantisedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[str, int, int]] = []
    watched = replace(workbench, progress=lambda *step: seen.append(step))
    named = evaluation_rules(("b1", "posterior"))
    first = evaluate(watched, bench, named)
    assert [outcome.name for outcome in first] == list(named)
    assert seen[0] == ("rules: b1", 0, 8) and seen[-1] == ("rules: posterior + HE + burstiness", 8, 8)

    monkeypatch.setattr(QuantisedDataset, "scores", never)
    assert [outcome.as_dict() for outcome in evaluate(workbench, bench, named)] == [outcome.as_dict() for outcome in first]
    with pytest.raises(AssertionError, match="done before"):
        evaluate(workbench, bench, evaluation_rules(("b1",), c=31.0))  # another option is another rule


def test_outcomes_are_those_of_the_scores(workbench: Workbench, bench: QuantisedDataset) -> None:
    options = scoring_options(merge="bayes", hamming=24)
    (outcome,) = evaluate(workbench, bench, {"mine": options})
    expected = measure_ranking(bench.dataset, lambda question: bench.scores(question, options))
    assert outcome.name == "mine" and outcome.values == expected
    plain = asdict(options) | {"line": options.line}
    del plain["code_table"]  # which has no plain form
    assert dict(outcome.options) == plain
    assert outcome.seconds > 0 and len(outcome.values["mAP"]) == 12


def test_a_result_by_codes_belongs_to_its_table(
    workbench: Workbench, bench: QuantisedDataset, fine: Vocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    coded = workbench.bench(bench.dataset, bench.vocabularies, fine)
    table = replace(default_code_table(128), source="other photographs")
    codes, words = SearchOptions(verify=0), scoring_options(merge="b1")
    first = evaluate(workbench, coded, {"codes": codes, "words": words})
    assert first[0].values == measure_ranking(bench.dataset, lambda question: coded.scores(question, codes))
    assert np.mean(first[0].values["mAP"]) == 1.0  # by three views of each scene
    monkeypatch.setattr(QuantisedDataset, "scores", never)
    again = evaluate(workbench, coded, {"codes": codes, "words": replace(words, code_table=table)})  # words have no use for it
    assert [outcome.as_dict() for outcome in again] == [outcome.as_dict() for outcome in first]
    with pytest.raises(AssertionError, match="done before"):
        evaluate(workbench, coded, {"codes": replace(codes, code_table=table)})


def test_gains_are_over_b1_under_the_same_conditions() -> None:
    dataset = synthetic(5, {"": [Truth(frozenset({0}))] * 6})
    rng = np.random.default_rng(1)
    named = evaluation_rules(("b1", "posterior"), (None, 24), ("none",))
    values = {name: rng.random(6).tolist() for name in named}
    outcomes = [Outcome(name, asdict(options), {"mAP": values[name]}, 0.5) for name, options in named.items()]
    rows = {row.rule: row for row in results_table(dataset, outcomes)}
    groups = [question.group for question in dataset.questions]
    for suffix in ("", " + HE"):
        base, mine = rows[f"b1{suffix}"], rows[f"posterior{suffix}"]
        assert base.gain is None and base.measure == "mAP" and base.seconds == 0.5
        assert base.value == bootstrap(values[f"b1{suffix}"], groups)
        assert mine.gain == difference(values[f"posterior{suffix}"], values[f"b1{suffix}"], groups)
        assert mine.gain.mean == pytest.approx(mine.value.mean - base.value.mean)
    unlike = [Outcome("b1", asdict(replace(named["b1"], norm=norm)), {"mAP": [0.1] * 6}, 0.1) for norm in ("tf", "none")]
    assert [row.gain for row in results_table(dataset, [*unlike, outcomes[1]])] == [None] * 3  # no b1 with the same norm
    alone = Outcome("bayes", asdict(scoring_options(merge="bayes")), {"mAP": [0.1] * 6, "R@1": [0.0, 1.0] * 3}, 0.1)
    assert [(row.gain, row.measure, row.value.mean) for row in results_table(dataset, [alone], "R@1")] == [(None, "R@1", 0.5)]
