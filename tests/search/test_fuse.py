"""Late fusion of word scores with a global embedding: laws of ranks, of fused scores, and of indexes with vectors."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from polyvoc.errors import DamagedError, OptionError
from polyvoc.features.embedding import Embedder
from polyvoc.index.build import CommitLimits
from polyvoc.index.check import check
from polyvoc.index.segment import Batch, Segment
from polyvoc.index.writer import IndexWriter
from polyvoc.kernels.vectors import COSINE_SCALE, cosine_products
from polyvoc.options import FeatureOptions
from polyvoc.scoring.engine import Engine
from polyvoc.search.fuse import embedding_scores, fuse, fuse_embedding, rank_evidence, score_of_cosines
from polyvoc.search.index import Index
from polyvoc.vocabulary.vocabulary import Vocabulary
from random_collections import World, plain, random_world
from samples import features, photograph, unflushed, vocabularies

__all__ = ["unflushed"]

Array = npt.NDArray[Any]
DIMENSION = 5
SEEDS = range(8)
SMALL = FeatureOptions(long_side=160, max_features=30)


def unit(values: Array) -> Array:
    return values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-9)


def vectors_of(world: World, seed: int = 0) -> Array:
    """Return a vector for each image of a world, one in four of zeros."""
    rng = np.random.default_rng([5, seed])
    found = unit(rng.normal(size=(len(world.images), DIMENSION)))
    found[rng.random(len(found)) < 0.25] = 0
    return found.astype(np.float16)


def query_of(seed: int = 0) -> Array:
    return unit(np.random.default_rng([6, seed]).normal(size=DIMENSION)).astype(np.float32)


def segment_of(world: World, vectors: Array | None, positions: range | list[int] | None = None) -> Segment:
    """Build a segment of some images of a world."""
    chosen = list(range(len(world.images)) if positions is None else positions)
    batch = Batch.of_words([world.images[p] for p in chosen], len(world.sizes), [world.image_signatures[p] for p in chosen])
    return Segment.build(
        replace(batch, ids=np.array(chosen, np.int64), embeddings=None if vectors is None else vectors[chosen]), world.sizes
    )


def word_scores(engine: Engine, world: World) -> list[Array]:
    plan = engine.plan(plain(merge="b1"))
    return engine.scores(engine.query(world.words, None, plan), plan)


def fused(segments: list[Segment], world: World, seed: int = 0) -> list[Array]:
    engine = Engine(segments, world.sizes)
    return fuse_embedding(engine, word_scores(engine, world), engine.images(), query_of(seed))


def fused_at_once(world: World, vectors: Array | None, seed: int = 0) -> Array:
    (found,) = fused([segment_of(world, vectors)], world, seed)
    return found


# --- ranks of one kind of score, and of several ----------------------------------------------------------------

levels = st.integers(0, 50).map(float)  # few values: many ties and zeros
rows = hnp.arrays(np.float64, st.integers(1, 60), elements=levels)
pairs = st.integers(1, 60).flatmap(lambda n: st.tuples(*[hnp.arrays(np.float64, n, elements=levels)] * 2))


def noise(n: int = 400, seed: int = 0) -> Array:
    """Return the scores of unrelated images."""
    return np.random.default_rng(seed).exponential(size=n) + 0.1


def power_law(n: int, exponent: float = 0.5) -> Array:
    """Return a curve that is straight in a log-log plot."""
    return np.arange(1, n + 1) ** -exponent


def order(scores: Array) -> list[int]:
    return np.argsort(-scores, kind="stable").tolist()


# --- one kind of score --------------------------------------------------------------------------------------------


def test_on_a_straight_curve_every_image_has_its_own_rank() -> None:
    ranks = np.arange(1, 401)
    assert np.allclose(rank_evidence(power_law(400)), np.log(400 / ranks))


def test_a_score_above_the_line_has_the_rank_of_the_line() -> None:
    scores = power_law(400)  # rank r has r ** -0.5: a score of 100 is that of rank 0.0001
    scores[0] = 100.0
    assert rank_evidence(scores)[0] == pytest.approx(math.log(400 / 1e-4))
    assert np.array_equal(rank_evidence(scores)[1:], rank_evidence(power_law(400))[1:])


def test_ranks_by_hand() -> None:
    # n = 8: depth 2, half 1; the line goes through rank 1 (8) and rank 2 (4), rank = 2 * 4 / s; below: counted
    evidence = rank_evidence([8.0, 4.0, 3.0, 2.0, 2.0, 1.0, 0.0, 0.0])
    assert np.allclose(evidence, np.log([8 / 1, 8 / 2, 8 / 3, 8 / 5, 8 / 5, 8 / 6, 8 / 8, 8 / 8]))


@given(rows)
def test_the_order_of_images_stays(scores: Array) -> None:
    evidence = rank_evidence(scores)
    assert np.isfinite(evidence).all()
    assert (np.sign(np.subtract.outer(evidence, evidence)) == np.sign(np.subtract.outer(scores, scores))).all()


@given(rows, st.floats(0.001, 1000), st.floats(0.2, 5))
def test_unit_and_power_of_scores_do_not_matter(scores: Array, unit: float, power: float) -> None:
    assert np.allclose(rank_evidence(unit * scores**power), rank_evidence(scores))


@pytest.mark.parametrize("scores", [np.zeros(50), np.full(50, 3.0), np.array([7.0]), np.empty(0)])
def test_equal_scores_are_no_evidence(scores: Array) -> None:
    assert rank_evidence(scores).tolist() == [0.0] * len(scores)


def test_the_highest_score_does_not_set_the_scale() -> None:
    """The query itself may be among the images: its score must not change the evidence of the others."""
    scores = noise()
    with_query = np.append(scores, 1e6)
    moved = rank_evidence(with_query)[:-1] - rank_evidence(scores)
    assert np.abs(moved[scores > np.sort(scores)[-100]]).max() < 0.2


def test_few_scores_above_0_are_little_evidence() -> None:
    scores = np.zeros(1000)
    scores[:3] = 5.0, 4.0, 0.001
    assert rank_evidence(scores).max() < 10
    assert rank_evidence([0.0] * 999 + [5.0]).max() == pytest.approx(math.log(1000))


def test_extreme_scores_stay_finite() -> None:
    scores = np.concatenate([[1e300, 1e-300, 5e-324], noise(), noise() * 1e-12 + 1])
    assert np.isfinite(rank_evidence(scores)).all()
    assert np.isfinite(rank_evidence(1 + noise() * 1e-17)).all()


# --- several kinds---------------------------------------------------------------------------------------------


@given(pairs, st.randoms(use_true_random=False))
@settings(max_examples=50)
def test_the_order_of_images_and_of_scores_does_not_matter(scores: tuple[Array, Array], random) -> None:
    shuffled = list(range(len(scores[0])))
    random.shuffle(shuffled)
    joint = fuse(*scores)
    assert np.allclose(fuse(scores[0][shuffled], scores[1][shuffled]), joint[shuffled])
    assert np.allclose(fuse(scores[1], scores[0]), joint)


@given(rows, st.floats(0, 10))
def test_equal_scores_leave_the_other_kind_unchanged(scores: Array, level: float) -> None:
    assert order(fuse(scores, np.full(len(scores), level))) == order(scores)
    assert np.array_equal(fuse(scores, np.full(len(scores), level)), rank_evidence(scores))


@given(pairs)
def test_an_image_that_is_better_by_both_comes_first(scores: tuple[Array, Array]) -> None:
    joint = fuse(*scores)
    both = np.greater_equal.outer(scores[0], scores[0]) & np.greater_equal.outer(scores[1], scores[1])
    assert (np.greater_equal.outer(joint, joint) | np.isclose(np.subtract.outer(joint, joint), 0))[both].all()


def test_noise_does_not_outvote_a_clear_score() -> None:
    """The best of mere noise, however large its numbers, comes after an image that is far above the others by another score."""
    first, second = noise(seed=1), noise(seed=2)
    first[5] = first.max() * 6
    for unit in (1e-6, 1.0, 1e6):
        assert order(fuse(first, unit * second))[0] == 5
        assert order(fuse(unit * second, first))[0] == 5
    flat = 1 + noise(seed=3) * 1e-6  # a curve that hardly falls
    assert order(fuse(first, flat))[0] == 5


def test_two_weak_scores_together_find_more_than_either() -> None:
    wins = [0, 0, 0]
    for seed in range(40):
        first, second = noise(seed=2 * seed), noise(seed=2 * seed + 1)
        first[0], second[0] = 6.0, 6.0  # about as good as the best of the noise
        wins = [w + (order(s)[0] == 0) for w, s in zip(wins, (first, second, fuse(first, second)), strict=True)]
    assert wins[2] > 1.5 * max(wins[:2])


@given(pairs, st.randoms(use_true_random=False))
def test_the_evidence_of_some_images_is_that_among_all(scores: tuple[Array, Array], random) -> None:
    n = len(scores[0])
    some = np.array(random.sample(range(n), random.randint(0, n)), np.int64)
    assert np.array_equal(fuse(*scores, at=some), fuse(*scores)[some])


def test_fusing_does_not_change_scores() -> None:
    first, second = noise(seed=1), noise(seed=2)
    copies = first.copy(), second.copy()
    fuse(first, second)
    assert np.array_equal(first, copies[0])
    assert np.array_equal(second, copies[1])


def test_impossible_scores_raise_one_line() -> None:
    for wrong in ([[1.0, 2.0]], [1.0, math.nan], [1.0, -0.5], [math.inf, 1.0]):
        with pytest.raises(OptionError, match="a row of numbers from 0 up") as raised:
            fuse([1.0, 2.0], wrong)
        assert len(str(raised.value).splitlines()) == 1
    with pytest.raises(OptionError, match=r"\[2, 3\] images cannot be fused"):
        fuse([1.0, 2.0], [1.0, 2.0, 3.0])
    with pytest.raises(OptionError, match="no scores to fuse"):
        fuse()


# --- vectors ------------------------------------------------------------------------------------------------


def test_the_score_of_a_cosine_is_one_over_the_distance() -> None:
    assert np.allclose(score_of_cosines([0.75, 0.5, 0.0, -1.0]), [4.0, 2.0, 1.0, 0.5])
    assert score_of_cosines([1.0, 1.0000001, 0.99999]).tolist() == [1000.0] * 3  # rounding does not rank copies


# --- fused scores -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_words_and_vectors_are_fused(seed: int) -> None:
    world = random_world(seed)
    vectors = vectors_of(world, seed)
    (words,) = word_scores(Engine([segment_of(world, None)], world.sizes), world)
    near = score_of_cosines(vectors.astype(np.float64) @ query_of(seed)) * vectors.any(axis=1)
    expected = np.where((words > 0) | (near > 0), fuse(words, near) + np.log(1 + 1 / len(words)), 0)
    assert np.allclose(fused_at_once(world, vectors, seed), expected, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_segments_do_not_matter(seed: int) -> None:
    world = random_world(seed)
    vectors, n = vectors_of(world, seed), len(world.images)
    cuts = sorted({0, n // 3, n // 2, n})
    parts = [segment_of(world, vectors, range(a, b)) for a, b in pairwise(cuts)]
    assert np.array_equal(np.concatenate(fused(parts, world, seed)), fused_at_once(world, vectors, seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_saved_segment_gives_the_same(tmp_path: Path, seed: int) -> None:
    world = random_world(seed)
    segment_of(world, vectors_of(world, seed)).save(tmp_path / "segment")
    (found,) = fused([Segment.open(tmp_path / "segment")], world, seed)
    assert np.array_equal(found, fused_at_once(world, vectors_of(world, seed), seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_removed_images_do_not_count(seed: int) -> None:
    world = random_world(seed)
    vectors = vectors_of(world, seed)
    gone = np.flatnonzero(np.random.default_rng(seed).random(len(world.images)) < 0.4).tolist()
    left = [p for p in range(len(world.images)) if p not in gone]
    (marked,) = fused([segment_of(world, vectors).without(gone)], world, seed)
    (anew,) = fused([segment_of(world, vectors, left)], world, seed)
    assert np.array_equal(marked[left], anew)
    assert not marked[gone].any()


@pytest.mark.parametrize("seed", SEEDS)
def test_without_vectors_the_ranking_is_that_of_the_words(seed: int) -> None:
    world = random_world(seed)
    engine = Engine([segment_of(world, None)], world.sizes)
    (words,) = word_scores(engine, world)
    for vectors in (None, np.zeros((len(words), DIMENSION), np.float16)):
        found = fused_at_once(world, vectors)
        assert ((found > 0) == (words > 0)).all()
        assert (np.sign(np.subtract.outer(found, found)) == np.sign(np.subtract.outer(words, words))).all()
        rankings = [[one.ref for one in engine.rank([part], engine.images(), 99)] for part in (found, words)]
        assert rankings[0] == rankings[1]


def test_without_words_vectors_decide() -> None:
    world = replace(random_world(2), words=np.empty((0, len(random_world(2).sizes)), np.int32))
    vectors = vectors_of(world)
    found = fused_at_once(world, vectors)
    near = np.where(vectors.any(axis=1), vectors.astype(np.float64) @ query_of(), -np.inf)
    assert ((found > 0) == vectors.any(axis=1)).all()
    assert np.argmax(found) == np.argmax(near)


def test_a_single_image_is_found() -> None:
    world = random_world(4)
    assert (fused_at_once(replace(world, images=world.images[:1]), vectors_of(world)[:1]) > 0).all()


def test_no_images_at_all() -> None:
    engine = Engine([], (3, 4))
    assert fuse_embedding(engine, [], [], query_of()) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_the_number_of_candidates_does_not_change_their_scores(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = random_world(seed)
    vectors = vectors_of(world, seed)
    every = fused_at_once(world, vectors, seed)
    monkeypatch.setattr("polyvoc.search.fuse.CANDIDATES", 2)
    found = fused_at_once(world, vectors, seed)
    assert np.array_equal(found[found > 0], every[found > 0])
    (words,) = word_scores(Engine([segment_of(world, None)], world.sizes), world)
    near = score_of_cosines(vectors.astype(np.float64) @ query_of(seed)) * vectors.any(axis=1)
    for scores in (words, near):
        best = [p for p in np.argsort(-scores, kind="stable")[:2] if scores[p] > 0]
        assert (found[best] > 0).all()
    assert np.count_nonzero(found) <= 4 or len(np.unique(words)) < len(words)  # ties are all taken


def test_word_scores_are_not_changed() -> None:
    world = random_world(1)
    engine = Engine([segment_of(world, vectors_of(world))], world.sizes)
    scores = word_scores(engine, world)
    before = [part.copy() for part in scores]
    fuse_embedding(engine, scores, engine.images(), query_of())
    assert all(np.array_equal(a, b) for a, b in zip(scores, before, strict=True))


def test_a_query_without_a_vector_raises() -> None:
    world = random_world(1)
    engine = Engine([segment_of(world, vectors_of(world))], world.sizes)
    with pytest.raises(OptionError, match="needs the pixels of the query"):
        fuse_embedding(engine, word_scores(engine, world), engine.images(), None)


def test_vectors_of_another_length_raise() -> None:
    world = random_world(1)
    engine = Engine([segment_of(world, vectors_of(world))], world.sizes)
    with pytest.raises(DamagedError, match="run 'polyvoc check'"):
        embedding_scores(engine, np.ones(DIMENSION + 1, np.float32))


def test_products_of_halves() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(50, 37)).astype(np.float16)
    rows[3] = 0
    rows[4] = rng.normal(size=37) * 1e-6  # subnormal halves
    rows[5] = 65504.0
    vector = rng.normal(size=37).astype(np.float32)
    found = np.empty(50, np.float32)
    cosine_products(rows.view(np.uint16), vector * COSINE_SCALE, found)
    assert found[3] == -np.inf
    expected = rows.astype(np.float64) @ vector.astype(np.float64)
    others = np.arange(50) != 3
    assert np.allclose(found[others], expected[others], rtol=1e-4, atol=1e-9)


# --- indexes ----------------------------------------------------------------------------------------------------


def tint(pixels: Array) -> Array:
    """Return how red, green and blue a picture is, from the darkest to the brightest; raise if it is too long."""
    if pixels.shape[1] > 3 * pixels.shape[0]:
        raise ValueError("too long")
    return np.percentile(pixels, [10, 50, 90], axis=(0, 1)).ravel() + 1


@pytest.fixture
def model() -> Embedder:
    return Embedder.of(tint, "tint", side=64)


@pytest.fixture(scope="module")
def words() -> list[Vocabulary]:
    """Vocabularies for descriptors of photographs."""
    return vocabularies(2, size=20, dimension=128)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed in range(6):
        photograph(tmp_path / f"photos/{seed}.png", seed)
    return tmp_path / "photos"


@pytest.fixture
def index(folder: Path, words: list[Vocabulary], model: Embedder, tmp_path: Path) -> Path:
    """An index of six photographs with vectors."""
    with IndexWriter.open(tmp_path / "index", words, SMALL, embedding=model) as writer:
        assert writer.update([folder]).added == 6
    return tmp_path / "index"


def stored(path: Path) -> dict[str, Array]:
    """Return the vectors of an index by the names of the images."""
    with Index.open(path) as opened:
        found = {}
        for row in opened.images():
            segment, position = opened.find(row.image)
            vectors = opened.engine.segments[segment].embeddings
            assert vectors is not None
            found[Path(row.path).name] = vectors[position]
        return found


def test_every_photograph_has_its_vector(index: Path, folder: Path, model: Embedder) -> None:
    vectors = stored(index)
    assert sorted(vectors) == [f"{seed}.png" for seed in range(6)]
    for name, vector in vectors.items():
        assert np.allclose(vector, model.embed(folder / name), atol=1e-3)
    assert list(check(index)) == []


def test_vectors_survive_commits_merges_and_removals(
    folder: Path, words: list[Vocabulary], model: Embedder, tmp_path: Path
) -> None:
    for seed in range(6, 20):
        photograph(folder / f"{seed}.png", seed)
    with IndexWriter.open(tmp_path / "index", words, SMALL, model, limits=CommitLimits(images=1)) as writer:
        writer.update([folder])
        writer.remove([folder / "3.png", folder / "7.png"])
        assert len(writer.catalogue.segments()) < 10
    vectors = stored(tmp_path / "index")
    assert len(vectors) == 18
    for name, vector in vectors.items():
        assert np.allclose(vector, model.embed(folder / name), atol=1e-3)
    assert list(check(tmp_path / "index")) == []


def test_a_photograph_that_the_model_fails_on_is_found_by_its_words(index: Path, folder: Path, model: Embedder) -> None:
    photograph(folder / "long.png", 30, (400, 90))
    (folder / "broken.png").write_bytes(b"no photograph")
    with IndexWriter.open(index, embedding=model) as writer:
        report = writer.update([folder])
    assert (report.added, [Path(problem.path).name for problem in report.problems]) == (1, ["broken.png"])
    assert not stored(index)["long.png"].any()
    assert list(check(index)) == []
    with Index.open(index) as opened:
        assert Path(opened.search(folder / "long.png", options=plain())[0].path).name == "long.png"


def test_features_made_elsewhere_have_no_vector(index: Path, model: Embedder) -> None:
    with IndexWriter.open(index) as writer:  # needs no model
        writer.add("bare", features(1, dimension=128))
    assert not stored(index)["bare"].any()
    with Index.open(index, model) as opened, pytest.raises(OptionError, match="needs the pixels"):
        opened.embed(features(1, dimension=128))


def test_queries_are_embedded_as_the_index_was(index: Path, folder: Path, model: Embedder) -> None:
    with Index.open(index, model) as opened:
        for source in (folder / "2.png", str(folder / "2.png"), (folder / "2.png").read_bytes()):
            assert np.array_equal(opened.embed(source), model.embed(folder / "2.png"))
    with Index.open(index) as opened, pytest.raises(OptionError, match="vectors of a function"):
        opened.embed(folder / "2.png")
    with Index.open(index, Embedder.of(tint, "other")) as opened, pytest.raises(OptionError, match="is not the model of"):
        opened.embed(folder / "2.png")


def test_searches_use_vectors_only_with_fuse(index: Path, folder: Path, model: Embedder) -> None:
    with Index.open(index, model) as opened:
        assert not opened.default_options.fuse
        for number in range(6):
            query = folder / f"{number}.png"
            hits = opened.search(query, fuse=True)
            assert hits[0].path == str(query) and list(hits.seconds)[-2:] == ["embed", "score"]
            assert len(hits) == 6  # every image has a vector
            assert opened.search(query) == Index.open(index).search(query)
            assert opened.search(opened.features(query), fuse=True, vector=model.embed(query)) == hits
        with pytest.raises(OptionError, match="needs the pixels"):
            opened.search(features(1, dimension=128), fuse=True)


def test_an_image_is_searched_by_its_stored_vector(index: Path, folder: Path, model: Embedder) -> None:
    with IndexWriter.open(index) as writer:
        writer.add("bare", features(1, dimension=128))
    with Index.open(index) as opened:  # needs no model
        rows = {Path(row.path).name: row.image for row in opened.images()}
        assert np.allclose(opened.embed(rows["2.png"]), model.embed(folder / "2.png"), atol=1e-3)
        hits = opened.search(rows["2.png"], fuse=True)
        with Index.open(index, model) as embedding:
            by_file = embedding.search(folder / "2.png", fuse=True)
        assert hits[0].path == str(folder / "2.png") and [hit.image for hit in hits] == [hit.image for hit in by_file]
        with pytest.raises(OptionError, match=f"image {rows['bare']} has no vector; leave fuse out"):
            opened.search(rows["bare"], fuse=True)


def test_explanations_are_by_words(index: Path, folder: Path, model: Embedder) -> None:
    with Index.open(index, model) as opened:
        query = folder / "1.png"
        by_words, fused = (opened.explain(query, opened.search(query)[0], fuse=fuse) for fuse in (False, True))
        assert np.array_equal(by_words.weight, fused.weight) and len(by_words.weight) > 0


def test_a_function_must_be_given_again(index: Path, folder: Path, model: Embedder) -> None:
    before = stored(index)
    photograph(folder / "new.png", 40)
    (folder / "0.png").unlink()
    with pytest.raises(OptionError, match="vectors of a function"), IndexWriter.open(index) as writer:
        writer.update([folder])
    assert stored(index).keys() == before.keys()  # nothing was removed either
    with IndexWriter.open(index, embedding=model) as writer:
        assert writer.update([folder]).added == 1
    assert stored(index)["new.png"].any()


def test_two_models_are_not_mixed(index: Path, folder: Path) -> None:
    other = Embedder.of(lambda pixels: [1.0, 2.0], "two numbers")
    with pytest.raises(OptionError, match="holds vectors of another model") as raised:
        IndexWriter.open(index, embedding=other)
    assert len(str(raised.value).splitlines()) == 1
    with IndexWriter.open(index):  # the lock was released
        pass


def test_images_without_vectors_are_not_mixed_with_others(
    folder: Path, words: list[Vocabulary], model: Embedder, tmp_path: Path
) -> None:
    with IndexWriter.open(tmp_path / "plain", words, SMALL) as writer:
        writer.update([folder])
    with pytest.raises(OptionError, match="holds images without vectors; index them again") as raised:
        IndexWriter.open(tmp_path / "plain", embedding=model)
    assert len(str(raised.value).splitlines()) == 1
    with Index.open(tmp_path / "plain") as opened, pytest.raises(OptionError, match="holds no vectors; index again"):
        opened.embed(folder / "0.png")
    with IndexWriter.open(tmp_path / "plain") as writer:
        writer.remove([folder])
    with IndexWriter.open(tmp_path / "plain", embedding=model) as writer:  # now there is none without
        assert writer.update([folder]).added == 6
    assert len(stored(tmp_path / "plain")) == 6
    assert list(check(tmp_path / "plain")) == []


def test_a_wrong_model_leaves_no_index_behind(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such file"):
        IndexWriter.open(tmp_path / "index", vocabularies(), embedding=tmp_path / "missing.onnx")
    assert not (tmp_path / "index").exists()
