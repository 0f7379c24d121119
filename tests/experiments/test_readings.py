"""The grid of readings: one vote for all norms equals the engine; the choice uses half of the questions."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benches import bench_of, world_bench
from polyvoc.experiments.datasets.readers import Question
from polyvoc.experiments.measures import Truth
from polyvoc.experiments.paper.readings import (
    IDFS,
    NORMS,
    READINGS,
    VOTES,
    _divide,
    _norms,
    distance,
    half_of,
    paper_difference,
    votes_of,
)
from polyvoc.experiments.paper.setup import OURS, Reading
from polyvoc.experiments.paper.true_share import shares_by_ratio
from polyvoc.options import PAPER_READING, SearchOptions
from random_collections import random_world


@pytest.mark.parametrize("number", range(6))
def test_votes_divided_by_a_norm_are_the_scores_of_the_engine(number: int) -> None:
    bench = world_bench(random_world(number, 2))
    idf, power = IDFS[number % len(IDFS)]
    bare: dict[str, Any] = {"merge": "bayes", "idf": idf, "idf_power": power, "burstiness": "none", "verify": 0}
    votes = bench.scores(0, SearchOptions(**bare, norm="none"))
    for norm in NORMS:
        expected = bench.scores(0, SearchOptions(**bare, norm=norm))
        assert np.array_equal(_divide(votes, _norms(bench, Reading("auto", idf, power, norm))), expected)


def test_every_reading_has_its_votes_once() -> None:
    assert len(set(READINGS)) == len(READINGS) == 2 * len(IDFS) * len(NORMS)
    assert Reading() in READINGS and OURS in READINGS
    assert {name: getattr(Reading(), name) for name in PAPER_READING} == dict(PAPER_READING)
    for reading in (Reading(), OURS):
        names = [vote.rule for vote in votes_of(reading)]
        assert len(set(names)) == len(names) and {"b1", "b2", "bayes", "b1 + HE", "bayes + HE", "posterior"} <= set(names)
    assert {vote.sets for vote in VOTES} == {"auto", "feature"}


def test_differences_are_those_of_the_papers_tables() -> None:
    assert paper_difference("holidays", "B2 - B1", 2) == -12.57 and paper_difference("holidays", "B2 - B1", 3) is None
    assert [paper_difference("holidays", "Bayes - B1", count) for count in (2, 3)] == [8.64, 9.91]
    assert paper_difference("oxford", "B2 - B1", 2) == -8.04  # 10K + 20K, of Table 4
    assert paper_difference("ukbench", "Bayes + HE - B1 + HE", 3) == 0.11
    assert paper_difference("oxford", "burstiness on top", 2) == 1.69


class FakeRuns:
    """Values of the rules: `better` above those of b1 on the first half of the groups, `other` on the second half."""

    def __init__(self, better: float, other: float) -> None:
        self.better, self.other = better, other

    def mean(self, rule: str) -> list[float | None]:
        if rule.startswith("b1"):
            return [0.5] * 4
        return [0.5 + self.better, 0.5 + self.better, 0.5 + self.other, None]


def fake_setup(groups: Sequence[str]) -> Any:
    questions = [Question(str(number), None, number, group=group) for number, group in enumerate(groups)]  # type: ignore[arg-type]
    dataset = SimpleNamespace(questions=questions, measure="mAP")
    return SimpleNamespace(datasets={"holidays": dataset}, measure=lambda name: SimpleNamespace(scale=100.0))


def test_a_reading_is_chosen_by_its_distance_on_half_of_the_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = fake_setup("aabb")
    assert half_of(setup, "holidays", 0) == [0, 1] and half_of(setup, "holidays", 1) == [2, 3]
    monkeypatch.setattr("polyvoc.experiments.paper.readings.reading_runs", lambda *arguments: FakeRuns(0.05, 0.1))
    known = [-12.57, 8.64, 3.59, 9.91, 3.48]  # B2, Bayes, Bayes + HE of two vocabularies; of three
    assert distance(setup, Reading(), 0) == pytest.approx(sum((5 - one) ** 2 for one in known))
    assert distance(setup, Reading(), 1) == pytest.approx(sum((10 - one) ** 2 for one in known))


def test_the_share_of_true_matches_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(3)
    images = [rng.integers(0, 6, (int(rng.integers(5, 15)), 2)) for _ in range(12)]
    signatures = [rng.integers(0, 1 << 64, words.shape, dtype=np.uint64) & np.uint64(0xFFFFFFFFF) for words in images]
    questions = [Question(f"q{q}", None, q, group=str(q)) for q in range(4)]  # type: ignore[arg-type]
    truths = tuple(Truth(frozenset({q, q + 4, q + 8}), frozenset()) for q in range(4))
    bench = bench_of(images, signatures, questions, {"": truths})
    pairs = []  # (ratio, true) of every match in the intersection
    for q in range(4):
        for x, signature in zip(images[q], signatures[q], strict=True):
            lists = [{i for i, words in enumerate(images) if i != q and x[k] in words[:, k]} for k in range(2)]
            both, either = lists[0] & lists[1], lists[0] | lists[1]
            for i in both:
                for y, other in zip(images[i], signatures[i], strict=True):
                    shared = [k for k in range(2) if x[k] == y[k]]
                    if shared:
                        near = any(int(signature[k] ^ other[k]).bit_count() < 20 for k in shared)
                        pairs.append((len(both) / len(either), near and i in (q + 4, q + 8)))
    found = shares_by_ratio(bench)
    total = sum(true for _, true in pairs) / len(pairs)
    assert min(found["share"]) <= total <= max(found["share"])
    assert found["ratio"] == sorted(found["ratio"])
    pairs.sort(key=lambda one: one[0])
    assert np.mean(found["ratio"]) == pytest.approx(np.mean([ratio for ratio, _ in pairs]), abs=0.03)
    assert found["fall"][1] <= found["fall"][0] <= found["fall"][2]
