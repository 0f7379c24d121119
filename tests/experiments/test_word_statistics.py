"""Synthetic collections have the joint frequencies of the real words they are drawn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polyvoc.experiments.evaluate import scoring_options
from polyvoc.experiments.paper.word_statistics import (
    FEATURES,
    World,
    build,
    bytes_per_feature,
    distinct_pairs,
    fitted_world,
    heaps_law,
)
from polyvoc.index.segment import Segment
from polyvoc.scoring.engine import Engine

SIZES = (40, 50, 30)
COUNTS = (30, 60, 90, 20)  # features of the photographs


def real_words() -> dict[str, np.ndarray]:
    """Return words of a few photographs; those of a feature depend on each other."""
    rng = np.random.default_rng(0)
    n = sum(COUNTS)
    first = rng.integers(0, SIZES[0], n)
    words = np.column_stack([first, (first + rng.integers(0, 4, n)) % SIZES[1], (first + rng.integers(0, 3, n)) % SIZES[2]])
    signatures = rng.integers(0, 1 << 64, (n, 3), dtype=np.uint64)
    return {"words": words.astype(np.uint16), "signatures": signatures, "counts": np.array(COUNTS)}


REAL = real_words()


def test_distinct_pairs_by_hand() -> None:
    assert distinct_pairs(np.array([[1, 2, 9], [1, 2, 8], [2, 1, 9], [1, 3, 9]], np.uint16)) == 3


def test_heaps_law_of_pairs_that_never_repeat() -> None:
    words = np.stack(np.divmod(np.arange(64_000), 250), axis=1)
    law = heaps_law(words, np.random.default_rng(0))
    assert law["features"] == law["pairs"] == [4000, 8000, 16_000, 32_000, 64_000]
    assert law["exponent"] == pytest.approx(1) and law["factor"] == pytest.approx(1)


def test_an_image_takes_different_features_of_one_photograph() -> None:
    world = World(REAL)
    rows = world.draw(200, 20, seed=3).reshape(200, 20)
    photograph = np.searchsorted(world.starts, rows, side="right") - 1
    assert (photograph == photograph[:, :1]).all()
    assert all(len(set(row)) == 20 for row in rows.tolist())  # the smallest photograph has as many
    assert set(photograph[:, 0].tolist()) == {0, 1, 2, 3}
    longer = world.draw(50, 45, seed=3).reshape(50, 45)
    counts = REAL["counts"][np.searchsorted(world.starts, longer[:, 0], side="right") - 1]
    assert [len(set(row)) for row in longer.tolist()] == np.minimum(counts, 45).tolist()


def test_words_without_redrawing_are_real() -> None:
    world = World(REAL)
    words, signatures = world.images(30, 25, 3, seed=1)
    rows = world.draw(30, 25, seed=1)
    assert words.dtype == np.int32 and np.array_equal(words, REAL["words"][rows])
    changed = np.bitwise_count(signatures ^ REAL["signatures"][rows])
    assert changed.mean() == pytest.approx(4, abs=0.15)  # one bit in sixteen


def test_redrawing_changes_the_second_word_to_one_that_goes_with_the_third() -> None:
    plain, redrawn = (World(REAL, share).images(200, 25, 3, seed=1)[0] for share in (0.0, 0.5))
    assert np.array_equal(plain[:, [0, 2]], redrawn[:, [0, 2]])
    known = set(map(tuple, REAL["words"][:, 1:].tolist()))
    assert set(map(tuple, redrawn[:, 1:].tolist())) <= known
    share = (plain[:, 1] != redrawn[:, 1]).mean()
    assert 0.25 < share < 0.5  # some are drawn as they were
    assert distinct_pairs(redrawn) > distinct_pairs(plain)


def test_the_same_seed_gives_the_same_collection() -> None:
    for one, other in zip(World(REAL, 0.3).images(9, 25, 2, 4), World(REAL, 0.3).images(9, 25, 2, 4), strict=True):
        assert np.array_equal(one, other)
    assert not np.array_equal(World(REAL, 0.3).images(9, 25, 2, 4)[0], World(REAL, 0.3).images(9, 25, 2, 5)[0])


def test_a_query_consists_of_different_real_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.experiments.paper.word_statistics.QUERY_FEATURES", 120)
    words, signatures = World(REAL).query(2, seed=0)
    assert words.shape == signatures.shape == (120, 2)
    assert len(set(signatures[:, 0].tolist())) == 120
    assert {(*w, *s) for w, s in zip(words.tolist(), signatures.tolist(), strict=True)} <= {
        (*w, *s) for w, s in zip(REAL["words"][:, :2].tolist(), REAL["signatures"][:, :2].tolist(), strict=True)
    }


def test_the_share_is_fitted_to_the_law() -> None:
    def pairs(share: float) -> int:
        return distinct_pairs(World(REAL, share).images(20, FEATURES, 2, 0)[0])

    plain, most = pairs(0.0), pairs(1.0)
    wanted = plain + 3 * (most - plain) // 4
    fit = fitted_world(REAL, {"factor": float(wanted), "exponent": 0.0}, 20)
    assert fit["pairs_foretold"] == wanted and fit["pairs_without_redrawing"] == plain
    assert plain < wanted < most and fit["pairs_drawn"] == pairs(fit["redrawn"])
    assert pairs(fit["redrawn"] - 1 / 64) < wanted <= pairs(fit["redrawn"] + 1 / 64)  # five halvings
    assert fit == fitted_world(REAL, {"factor": float(wanted), "exponent": 0.0}, 20)
    assert fitted_world(REAL, {"factor": 1.0, "exponent": 0.0}, 20)["redrawn"] < 0.05  # fewer than there are already


def test_segments_are_built_once_and_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.experiments.paper.word_statistics.MAX_IMAGES", 6)
    world = World(REAL)
    seen: list[tuple[str, int, int]] = []
    segments, rate = build(world, 10, SIZES[:2], tmp_path, lambda *step: seen.append(step))
    assert [segment.n_images for segment in segments] == [6, 4]
    assert rate["features"] == 10 * FEATURES and rate["features_per_second"] > 0
    assert seen == [("segments", 6, 10), ("segments", 10, 10)]
    engine = Engine(segments, SIZES[:2])
    words, signatures = world.query(2, 0)
    options = scoring_options(hamming=24)
    plan = engine.plan(options)
    scores = np.concatenate(engine.scores(engine.query(words, signatures, plan), plan))
    images = [world.images(n, FEATURES, 2, seed=seed) for seed, n in enumerate((6, 4))]
    split = [np.concatenate([np.split(part[which], len(part[which]) // FEATURES) for part in images]) for which in (0, 1)]
    joined = Engine.from_words(list(split[0]), SIZES[:2], list(split[1]))
    assert np.allclose(scores, joined.scores(joined.query(words, signatures, plan), plan)[0], rtol=1e-5)
    monkeypatch.setattr(Segment, "build", lambda *arguments: pytest.fail("built before"))
    again, same = build(world, 10, SIZES[:2], tmp_path)
    assert same == rate and np.array_equal(again[1].arrays["postings"], segments[1].arrays["postings"])


def test_bytes_per_feature(tmp_path: Path) -> None:
    segments, _ = build(World(REAL), 8, SIZES[:2], tmp_path)
    size = bytes_per_feature(Engine(segments, SIZES[:2]))
    assert size["postings"] == 4  # two lists of two bytes
    assert size["signatures"] == 16
    assert size["norms"] == 4 / FEATURES
    assert size["scoring"] == pytest.approx(sum(size.values()) - size["scoring"] - size["signatures"])
