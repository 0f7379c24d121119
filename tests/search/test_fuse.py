"""A global embedding is heard beside the words: the laws of both still hold, and vectors of two models never meet."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from polyvoc.errors import DamagedError, OptionError
from polyvoc.features.embedding import Embedder
from polyvoc.index.check import check_index
from polyvoc.index.segment import Batch, Segment
from polyvoc.index.writer import IndexWriter
from polyvoc.kernels.vectors import COSINE_SCALE, cosine_products
from polyvoc.options import FeatureOptions
from polyvoc.scoring.engine import Engine
from polyvoc.search.fuse import cosine_similarity, embedding_scores, fuse, fuse_embedding
from polyvoc.search.index import Index
from polyvoc.vocabulary.vocabulary import Vocabulary
from random_collections import plain, World, random_world
from samples import features, photograph, unflushed, vocabularies

__all__ = ["unflushed"]

Array = npt.NDArray[Any]
DIMENSION = 5
SEEDS = range(8)
SMALL = FeatureOptions(long_side=160, max_features=30)


def unit(values: Array) -> Array:
    return values / np.maximum(np.linalg.norm(values, axis=-1, keepdims=True), 1e-9)


def vectors_of(world: World, seed: int = 0) -> Array:
    """Give a vector for each image of a world, one in four of zeros."""
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


def local_scores(engine: Engine, world: World) -> list[Array]:
    options = plain(merge="b1")
    return engine.scores(engine.query(world.words, None, options), options)


def fused(segments: list[Segment], world: World, seed: int = 0) -> list[Array]:
    engine = Engine(segments, world.sizes)
    return fuse_embedding(engine, local_scores(engine, world), query_of(seed))


def whole(world: World, vectors: Array | None, seed: int = 0) -> Array:
    (found,) = fused([segment_of(world, vectors)], world, seed)
    return found


# --- what it says -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
def test_words_and_vectors_are_fused(seed: int) -> None:
    world = random_world(seed)
    vectors = vectors_of(world, seed)
    (words,) = local_scores(Engine([segment_of(world, None)], world.sizes), world)
    near = cosine_similarity(vectors.astype(np.float64) @ query_of(seed)) * vectors.any(axis=1)
    expected = np.where((words > 0) | (near > 0), fuse(words, near) + np.log(1 + 1 / len(words)), 0)
    assert np.allclose(whole(world, vectors, seed), expected, atol=1e-5)


@pytest.mark.parametrize("seed", SEEDS)
def test_segments_together_equal_the_whole(seed: int) -> None:
    world = random_world(seed)
    vectors, n = vectors_of(world, seed), len(world.images)
    cuts = sorted({0, n // 3, n // 2, n})
    parts = [segment_of(world, vectors, range(a, b)) for a, b in pairwise(cuts)]
    assert np.array_equal(np.concatenate(fused(parts, world, seed)), whole(world, vectors, seed))


@pytest.mark.parametrize("seed", SEEDS)
def test_saved_is_loaded(tmp_path: Path, seed: int) -> None:
    world = random_world(seed)
    segment_of(world, vectors_of(world, seed)).save(tmp_path / "segment")
    (found,) = fused([Segment.open(tmp_path / "segment")], world, seed)
    assert np.array_equal(found, whole(world, vectors_of(world, seed), seed))


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
def test_a_silent_witness_leaves_the_ranking_of_the_words(seed: int) -> None:
    world = random_world(seed)
    engine = Engine([segment_of(world, None)], world.sizes)
    (words,) = local_scores(engine, world)
    for vectors in (None, np.zeros((len(words), DIMENSION), np.float16)):
        found = whole(world, vectors)
        assert ((found > 0) == (words > 0)).all()
        assert (np.sign(np.subtract.outer(found, found)) == np.sign(np.subtract.outer(words, words))).all()
        assert [one.place for one in engine.ranked([found], 99)] == [one.place for one in engine.ranked([words], 99)]


def test_without_words_vectors_decide() -> None:
    world = replace(random_world(2), words=np.empty((0, len(random_world(2).sizes)), np.int32))
    vectors = vectors_of(world)
    found = whole(world, vectors)
    near = np.where(vectors.any(axis=1), vectors.astype(np.float64) @ query_of(), -np.inf)
    assert ((found > 0) == vectors.any(axis=1)).all()
    assert np.argmax(found) == np.argmax(near)


def test_a_single_image_is_found() -> None:
    world = random_world(4)
    assert (whole(replace(world, images=world.images[:1]), vectors_of(world)[:1]) > 0).all()


def test_no_images_at_all() -> None:
    engine = Engine([], (3, 4))
    assert fuse_embedding(engine, [], query_of()) == []


@pytest.mark.parametrize("seed", SEEDS)
def test_who_else_is_a_candidate_makes_no_difference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    world = random_world(seed)
    vectors = vectors_of(world, seed)
    everybody = whole(world, vectors, seed)
    monkeypatch.setattr("polyvoc.search.fuse.EMBEDDING_CANDIDATES", 2)
    found = whole(world, vectors, seed)
    assert np.array_equal(found[found > 0], everybody[found > 0])
    (words,) = local_scores(Engine([segment_of(world, None)], world.sizes), world)
    near = cosine_similarity(vectors.astype(np.float64) @ query_of(seed)) * vectors.any(axis=1)
    for scores in (words, near):
        best = [p for p in np.argsort(-scores, kind="stable")[:2] if scores[p] > 0]
        assert (found[best] > 0).all()
    assert np.count_nonzero(found) <= 4 or len(np.unique(words)) < len(words)  # ties are all taken


def test_scores_are_not_changed() -> None:
    world = random_world(1)
    engine = Engine([segment_of(world, vectors_of(world))], world.sizes)
    scores = local_scores(engine, world)
    before = [part.copy() for part in scores]
    fuse_embedding(engine, scores, query_of())
    assert all(np.array_equal(a, b) for a, b in zip(scores, before, strict=True))


def test_a_query_without_pixels_is_refused() -> None:
    world = random_world(1)
    engine = Engine([segment_of(world, vectors_of(world))], world.sizes)
    with pytest.raises(OptionError, match="needs the pixels of the query"):
        fuse_embedding(engine, local_scores(engine, world), None)


def test_vectors_of_another_length_are_damage() -> None:
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
    """A model: how red, green and blue, from the darkest to the brightest; only for pictures that are not too long."""
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
    """Give the vectors of an index by the names of the images."""
    with Index.open(path) as opened:
        found = {}
        for row in opened.images():
            segment, position = opened._find(row.image)
            vectors = opened.engine.segments[segment].embeddings
            assert vectors is not None
            found[Path(row.path).name] = vectors[position]
        return found


def test_every_photograph_has_its_vector(index: Path, folder: Path, model: Embedder) -> None:
    held = stored(index)
    assert sorted(held) == [f"{seed}.png" for seed in range(6)]
    for name, vector in held.items():
        assert np.allclose(vector, model.embed(folder / name), atol=1e-3)
    assert list(check_index(index)) == []


def test_vectors_survive_commits_merges_and_removals(
    folder: Path, words: list[Vocabulary], model: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvoc.index.writer.COMMIT_IMAGES", 1)
    for seed in range(6, 20):
        photograph(folder / f"{seed}.png", seed)
    with IndexWriter.open(tmp_path / "index", words, SMALL, embedding=model) as writer:
        writer.update([folder])
        writer.remove([folder / "3.png", folder / "7.png"])
        assert len(writer.catalogue.segments()) < 10
    held = stored(tmp_path / "index")
    assert len(held) == 18
    for name, vector in held.items():
        assert np.allclose(vector, model.embed(folder / name), atol=1e-3)
    assert list(check_index(tmp_path / "index")) == []


def test_what_the_model_refuses_is_found_by_its_words(index: Path, folder: Path, model: Embedder) -> None:
    photograph(folder / "long.png", 30, (400, 90))
    (folder / "broken.png").write_bytes(b"no photograph")
    with IndexWriter.open(index, embedding=model) as writer:
        report = writer.update([folder])
    assert (report.added, [Path(problem.path).name for problem in report.problems]) == (1, ["broken.png"])
    assert not stored(index)["long.png"].any()
    assert list(check_index(index)) == []
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


def test_searches_hear_vectors_only_when_asked(index: Path, folder: Path, model: Embedder) -> None:
    with Index.open(index, model) as opened:
        plain = opened.default_options
        asked = replace(plain, fuse=True)
        assert not plain.fuse
        for number in range(6):
            query = folder / f"{number}.png"
            hits = opened.search(query, options=asked)
            assert hits[0].path == str(query)
            assert len(hits) == 6  # the vectors know everybody
            assert opened.search(query, options=plain) == Index.open(index).search(query, options=plain)
        with pytest.raises(OptionError, match="needs the pixels"):
            opened.search(features(1, dimension=128), options=asked)
        words, signatures = opened.quantise(folder / "0.png", asked)
        with pytest.raises(OptionError, match="needs the pixels"):
            opened.search_words(words, signatures, replace(asked, verify=0, expansion="none"))


def test_an_image_is_heard_by_its_stored_vector(index: Path, folder: Path, model: Embedder) -> None:
    with IndexWriter.open(index) as writer:
        writer.add("bare", features(1, dimension=128))
    with Index.open(index) as opened:  # needs no model
        rows = {Path(row.path).name: row.image for row in opened.images()}
        assert np.allclose(opened.embed(rows["2.png"]), model.embed(folder / "2.png"), atol=1e-3)
        hits = opened.search(rows["2.png"], options=replace(opened.default_options, fuse=True))
        with Index.open(index, model) as embedding:
            by_file = embedding.search(folder / "2.png", options=replace(opened.default_options, fuse=True))
        assert hits[0].path == str(folder / "2.png") and [hit.image for hit in hits] == [hit.image for hit in by_file]
        with pytest.raises(OptionError, match=f"image {rows['bare']} has no vector; leave fuse out"):
            opened.search(rows["bare"], options=plain(fuse=True))


def test_explanations_stay_local(index: Path, folder: Path, model: Embedder) -> None:
    with Index.open(index, model) as opened:
        query, plain = folder / "1.png", opened.default_options
        hit = opened.search(query, options=plain)[0]
        local, fused = (opened.explain(query, hit, replace(plain, fuse=fuse)) for fuse in (False, True))
        assert np.array_equal(local.weight, fused.weight) and len(local.weight) > 0


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
    with pytest.raises(OptionError, match="holds vectors of another model") as refused:
        IndexWriter.open(index, embedding=other)
    assert len(str(refused.value).splitlines()) == 1
    with IndexWriter.open(index):  # the lock was released
        pass


def test_images_without_vectors_are_not_mixed_with_others(
    folder: Path, words: list[Vocabulary], model: Embedder, tmp_path: Path
) -> None:
    with IndexWriter.open(tmp_path / "plain", words, SMALL) as writer:
        writer.update([folder])
    with pytest.raises(OptionError, match="holds images without vectors; index them again") as refused:
        IndexWriter.open(tmp_path / "plain", embedding=model)
    assert len(str(refused.value).splitlines()) == 1
    with Index.open(tmp_path / "plain") as opened, pytest.raises(OptionError, match="holds no vectors; index again"):
        opened.embed(folder / "0.png")
    with IndexWriter.open(tmp_path / "plain") as writer:
        writer.remove([folder])
    with IndexWriter.open(tmp_path / "plain", embedding=model) as writer:  # now there is none without
        assert writer.update([folder]).added == 6
    assert len(stored(tmp_path / "plain")) == 6
    assert list(check_index(tmp_path / "plain")) == []


def test_a_wrong_model_leaves_no_index_behind(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such file"):
        IndexWriter.open(tmp_path / "index", vocabularies(), embedding=tmp_path / "missing.onnx")
    assert not (tmp_path / "index").exists()
