"""An index on the disk gives the hits of one built at once in memory, whatever its history and whoever writes meanwhile."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import polyvoc
from polyvoc.errors import (
    DamagedError,
    ImageError,
    LockedError,
    NotAnIndexError,
    OptionError,
    PolyvocError,
    VocabularyError,
    WriteError,
)
from polyvoc.index.catalogue import FILE, _row_checksum
from polyvoc.index.check import check
from polyvoc.index.folder import IndexFolder, Layout
from polyvoc.index.segment import STEPS
from polyvoc.index.writer import IndexWriter
from polyvoc.options import Preset, SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.search.hits import Hit, Hits, SearchFailure, SearchResult
from polyvoc.search.index import Index
from polyvoc.search.pipeline import search
from polyvoc.search.query import Query, query_of_image
from polyvoc.storage.files import META, checksum
from polyvoc.types import Features, ImageFeatures, strictly_inside
from polyvoc.vocabulary.vocabulary import VocabularySet
from processes import as_nobody, is_root
from random_collections import plain
from samples import build, coded, collection, features, quantised, scores, unflushed, vocabularies

__all__ = ["unflushed"]

RULES = ("b0", "b1", "b2", "bayes", "posterior")


def every_rule() -> Iterator[SearchOptions]:
    """Yield all rules with what else changes a score, each at least once."""
    rest = [
        {},
        {"hamming": 3, "sigma": 4.0},
        {"sets": "image", "idf": "plain"},
        {"burstiness": "intra", "norm": "tf"},
        {"burstiness": "best", "hamming": 5, "norm": "none"},
        {"assignments": 2, "idf": "none"},
        {"assignments": 3, "hamming": 4, "sets": "image", "burstiness": "intra"},
    ]
    for merge in RULES:
        for options in rest:
            yield plain(merge=merge, **options)  # type: ignore[arg-type]


def assert_same_scores(index: Index, expected: Index) -> None:
    """Two indexes give every image the same score, by name."""
    positive = 0
    for number, options in enumerate(every_rule()):
        query = features(number % 5, 8 + number % 13)
        wanted = scores(expected, query, options)
        positive += any(wanted.values())
        assert scores(index, query, options) == wanted, options
    assert positive > 25


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Thirty images in one commit."""
    return build(tmp_path_factory.mktemp("once") / "once.polyvoc", collection(30), vocabularies(3))


@pytest.fixture
def changed(at_once: Index, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    return Path(shutil.copytree(at_once.folder.path, tmp_path / "changed.polyvoc"))


# --- many vocabularies ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [4, 6, 9])
def test_indexes_of_many_vocabularies(count: int, tmp_path: Path) -> None:
    """Codes and words of 4 to 9 vocabularies: built step by step, merged, with images removed, they equal a new index."""
    images, path = collection(24), tmp_path / "steps.polyvoc"
    build(path, images, coded(count), commits=10).close()
    with IndexWriter.open(path) as writer:
        merged = len(writer.catalogue.segments()) < 10
        assert writer.remove(["image 3", "image 5"]) == 2
    kept = {name: found for name, found in images.items() if name not in ("image 3", "image 5")}
    once = build(tmp_path / "once.polyvoc", kept, coded(count))
    steps = Index.open(path)
    assert merged and list(check(path)) == list(check(tmp_path / "once.polyvoc")) == []
    assert steps.engine.sizes == once.engine.sizes and len(steps.engine.sizes) == count
    assert_same_scores(steps, once)
    for preset in ("paper", "fast"):
        for index in (steps, once):
            assert index.search(images["image 1"], preset=preset, top=1)[0].path == "image 1"


# --- history -----------------------------------------------------------------------------------------------------


def test_an_index_opened_again_is_the_same(at_once: Index) -> None:
    assert_same_scores(Index.open(at_once.folder.path), at_once)


def test_memory_and_disk_agree(at_once: Index) -> None:
    images = collection(30)
    options = plain(hamming=4)
    stored = [quantised(at_once, image, options) for image in images.values()]
    memory = Index.from_words([words for words, _ in stored], at_once.engine.sizes, [bits for _, bits in stored])
    for merge in RULES:
        rule = replace(options, merge=merge)
        words, signatures = quantised(at_once, images["image 3"], rule)
        expected = list(scores(at_once, images["image 3"], rule).values())
        assert np.array_equal(memory.score_words(words, signatures, rule), np.array(expected, np.float32))


@pytest.mark.parametrize("commits", [2, 7, 8, 30])
def test_commits_and_merges_do_not_matter(at_once: Index, tmp_path: Path, commits: int) -> None:
    index = build(tmp_path / "a.polyvoc", collection(30), vocabularies(3), commits)
    assert (commits < 8) == (len(index.engine.segments) == commits)
    assert_same_scores(index, at_once)


def test_order_does_not_matter(at_once: Index, tmp_path: Path) -> None:
    images = list(collection(30).items())
    np.random.default_rng(1).shuffle(images)  # type: ignore[arg-type]
    assert_same_scores(build(tmp_path / "a.polyvoc", dict(images), vocabularies(3), commits=3), at_once)


@pytest.mark.parametrize("seed", range(4))
def test_additions_and_removals_do_not_matter(at_once: Index, tmp_path: Path, seed: int) -> None:
    """Add, replace and remove at random, and end with the thirty images: deleted ones have no effect, merged or not."""
    rng = np.random.default_rng(seed)
    wanted, extra = collection(30), collection(12, first=100)
    path = tmp_path / "a.polyvoc"
    todo = [*wanted.items(), *extra.items()]
    rng.shuffle(todo)  # type: ignore[arg-type]
    with IndexWriter.open(path, vocabularies(3)) as writer:
        for name, image in todo:
            for _ in range(int(rng.choice([0, 0, 1, 2]))):
                writer.add(name, features(int(rng.integers(1000, 2000)), int(rng.integers(0, 20))))
            writer.add(name, image)
            if rng.random() < 0.15:
                writer.commit()
            if rng.random() < 0.05:
                writer.remove([name])
                writer.add(name, image)
        writer.remove(sorted(extra))
    assert_same_scores(Index.open(path), at_once)


def test_removed_images_have_no_effect(at_once: Index, changed: Path, tmp_path: Path) -> None:
    with IndexWriter.open(changed) as writer:
        writer.remove(["image 2", "image 5", "image 6"])  # few: no merge
    index = Index.open(changed)
    assert len(index) == 27 and any(len(segment.alive) for segment in index.engine.segments)
    images = {name: image for name, image in collection(30).items() if name not in ("image 2", "image 5", "image 6")}
    assert_same_scores(index, build(tmp_path / "anew.polyvoc", images, vocabularies(3)))
    hits = index.search(collection(30)["image 5"], top=30, options=plain())
    assert hits and not {"image 2", "image 5", "image 6"} & {hit.path for hit in hits}


def test_everything_removed(changed: Path) -> None:
    with IndexWriter.open(changed) as writer:
        assert writer.remove([f"image {number}" for number in range(30)]) == 30
    index = Index.open(changed)
    assert len(index) == 0 and index.search(features(1)) == [] and index.engine.segments == []
    assert_same_after_adding_again(changed)


def assert_same_after_adding_again(path: Path) -> None:
    with IndexWriter.open(path) as writer:
        ids = [writer.add(name, image) for name, image in collection(3).items()]
    assert min(ids) > 30  # ids are never used again
    assert Index.open(path).search(features(1, 9), options=plain())[0].path == "image 1"


# --- searching --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", RULES)
@pytest.mark.parametrize("hamming", [None, 2])
def test_an_image_finds_itself_first(at_once: Index, merge: str, hamming: int | None) -> None:
    options = plain(merge=merge, hamming=hamming, top=3)  # type: ignore[arg-type]
    for name, query in collection(30).items():
        hits = at_once.search(query, options=options)
        if len(query) > 8:
            assert hits[0].path == name, hits
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert len(hits) <= 3 and all(hit.score > 0 for hit in hits)


def test_hits_are_the_best_scores(at_once: Index) -> None:
    options = plain(merge="bayes", top=7)
    best = sorted(scores(at_once, features(3, 11), options).items(), key=lambda item: -item[1])[:7]
    hits = at_once.search(features(3, 11), options=options)
    assert [(hit.path, hit.score) for hit in hits] == best
    assert at_once.search(features(3, 11), top=2, options=options) == hits[:2]


def test_threads_may_share_an_index(at_once: Index) -> None:
    index = Index.open(at_once.folder.path)
    expected = {seed: at_once.search(features(seed, 12)) for seed in range(6)}
    wrong: list[object] = []

    def run(number: int) -> None:
        for step in range(12):
            seed = (number + step) % 6
            if index.search(features(seed, 12)) != expected[seed]:
                wrong.append(seed)

    threads = [threading.Thread(target=run, args=[number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_odd_queries(at_once: Index) -> None:
    assert at_once.search(features(1, 0)) == []
    with pytest.raises(OptionError, match=r"holds sift \(12 numbers\), not sift \(5 numbers\)"):
        at_once.search(features(1, 3, dimension=5))
    with pytest.raises(PolyvocError):
        at_once.search("no such photograph.jpg")
    with pytest.raises(OptionError, match="made from words"):
        Index.from_words([np.zeros((2, 1), int)], [3]).search(features(1))


# --- images of the index, and regions -----------------------------------------------------------------------------


def found(index: Index, query: Query, options: SearchOptions) -> list[tuple[int, float, int, float | None]]:
    """Return what the stages find for a query: image, score, inliers, probability."""
    candidates = search(index.engine, query, options, index.probability, index.links)
    return [(one.image, one.score, one.inliers, one.probability) for one in candidates]


def values(hits: Hits) -> list[tuple[int, float, int, float | None]]:
    return [(hit.image, hit.score, hit.inliers, hit.probability) for hit in hits]


def stored(index: Index, image: int) -> ImageFeatures:
    return index.engine.image_features([index.find(image)])[0]


def test_an_image_is_searched_by_its_stored_words(at_once: Index) -> None:
    images = collection(30)
    n_found = 0
    for number, options in enumerate([*every_rule(), at_once.default_options, at_once.preset("best")]):
        row = at_once.image(1 + 3 * number % 30)
        if options.n_assignments > 1:
            continue
        known = stored(at_once, row.image)
        hits = at_once.search(row.image, options)
        assert values(hits) == found(at_once, Query(None, known.words, known.signatures, known.keypoints), options)
        if not options.verify:  # positions, scales and angles are stored nearly
            assert hits == at_once.search(images[row.path], options)
        n_found += any(hit.path == row.path for hit in hits)
    assert n_found > 15
    assert at_once.search(7) == []  # it has no feature


def test_further_words_of_an_image_come_from_its_file(index_path: Path, photographs: Path, tmp_path: Path) -> None:
    index = Index.open(index_path)
    several = replace(index.default_options, assignments=2)
    row = next(index.images())
    assert index.search(row.image, options=several) == index.search(row.path, options=several)
    assert index.search(row.image, top=1)[0].path == row.path == index.image(row.image).path
    images = {f"image {seed}": features(seed, dimension=128) for seed in range(3)}
    made = build(tmp_path / "a.polyvoc", images, vocabularies(dimension=128))
    assert made.search(1, options=plain())
    with pytest.raises(ImageError, match="image 0: no such file") as caught:
        made.search(1, options=plain(assignments=2))
    assert "\n" not in str(caught.value)


def test_unknown_images_raise(at_once: Index, changed: Path) -> None:
    for image in (0, -1, 999, 10**30):
        for call in (at_once.search, at_once.image, at_once.features, at_once.embed, lambda image: at_once.explain(image, 1)):
            with pytest.raises(OptionError, match=f"image {image} is not in the index"):
                call(image)
    for call in (at_once.search, lambda image: at_once.explain(1, image)):
        with pytest.raises(OptionError, match="True is not the id of an image"):
            call(True)
    index = Index.open(changed)
    with IndexWriter.open(changed) as writer:
        writer.remove(["image 2"])
    for opened in (index, Index.open(changed)):
        with pytest.raises(OptionError, match="image 3 is not in the index"):
            opened.search(3)
    with pytest.raises(OptionError, match="made from words"):
        Index.from_words([np.zeros((2, 1), int)], [3]).search(0)


def test_a_region_of_all_pixels_changes_nothing(at_once: Index) -> None:
    for options in (plain(), at_once.default_options):
        for photo in (features(3, 11), 4):
            expected = at_once.search(photo, options=options)
            assert expected
            for region in ((0, 0, 103, 100), (-50, -1e300, 1e300, 999)):
                hits = at_once.search(photo, options=options, region=region)
                assert [replace(hit, outline=None) for hit in hits] == [replace(hit, outline=None) for hit in expected]
            assert at_once.search(photo, options=options, region=(0, 0, 103, 100)) == expected


def test_a_region_searches_with_the_features_inside(at_once: Index) -> None:
    query, region = features(3, 18), (10.0, 20.0, 70.0, 90.0)
    kept = query.inside(region)
    assert 0 < len(kept) < len(query)
    hits = at_once.search(query, region=region)
    assert [hit.score for hit in hits] == [hit.score for hit in at_once.search(kept)]
    explanation = at_once.explain(query, hits[0], region=region)
    assert np.array_equal(explanation.query_xy, kept.xy[explanation.query])
    known, options = stored(at_once, 12), plain(hamming=4)
    inside = strictly_inside(known.keypoints.xy, region)
    query_inside = Query(None, known.words[inside], known.signatures[inside])
    assert values(at_once.search(12, options, region=region)) == found(at_once, query_inside, options)
    with pytest.raises(OptionError, match="fuse compares whole photographs"):
        at_once.search(query, options=plain(fuse=True), region=region)


def test_an_outline_is_that_of_the_region(views: Path, views_index: Path) -> None:
    photograph, region = views / "2" / "0.jpg", (60.0, 50.0, 300.0, 220.0)
    corners = np.array([[60, 50], [300, 50], [300, 220], [60, 220]])
    with Index.open(views_index) as index:
        image = next(row.image for row in index.images() if row.path == str(photograph))
        for photo in (photograph, image):
            hits = [hit for hit in index.search(photo, region=region) if hit.inliers > 10]
            assert len(hits) >= 2 and hits[0].path == str(photograph)
            assert np.allclose(hits[0].outline, corners, atol=2)
            for hit in hits:
                explanation = index.explain(photo, hit, region=region)
                assert explanation.transform is not None and explanation.inlier.sum() == hit.inliers
                moved = corners @ explanation.transform[:, :2].T + explanation.transform[:, 2]
                assert np.allclose(hit.outline, moved)


def test_without_signatures(tmp_path: Path) -> None:
    index = build(tmp_path / "a.polyvoc", collection(6), vocabularies(2, signed=False))
    assert index.default_options.hamming is None and index.search(features(2, 10))[0].path == "image 2"
    with pytest.raises(OptionError, match="needs an index with signatures"):
        index.search(features(2, 10), options=plain(hamming=3))


# --- codes -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def with_codes(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Thirty images in one commit, with codes and signatures."""
    return build(tmp_path_factory.mktemp("coded") / "coded.polyvoc", collection(30), coded())


def code_scores(index: Index, query: Features, options: SearchOptions) -> dict[str, float]:
    """Return the scores of all images that have any, by name."""
    return {hit.path: hit.score for hit in index.search(query, options, top=100)}


def assert_same_code_scores(index: Index, expected: Index) -> None:
    """Two indexes give every image the same score by codes, by name."""
    for number in range(12):
        query = features(number % 5, 8 + number % 13)
        options = SearchOptions(verify=0, assignments=[None, 1, 4][number % 3])
        wanted = code_scores(expected, query, options)
        assert len(wanted) > 3 and code_scores(index, query, options) == wanted


@pytest.mark.parametrize("commits", [2, 7, 30])
def test_history_does_not_matter_by_codes(with_codes: Index, tmp_path: Path, commits: int) -> None:
    assert_same_code_scores(Index.open(with_codes.folder.path), with_codes)
    images = list((collection(30) | collection(9, first=100)).items())
    np.random.default_rng(commits).shuffle(images)  # type: ignore[arg-type]
    index = build(tmp_path / "a.polyvoc", dict(images), coded(), commits)
    assert (commits < 8) == (len(index.engine.segments) == commits)
    with IndexWriter.open(index.folder.path) as writer:
        writer.remove([f"image {number}" for number in range(100, 109)])
    assert_same_code_scores(index.reopened(), with_codes)


@pytest.mark.parametrize("verify", [0, 20])
def test_an_image_finds_itself_first_by_codes(with_codes: Index, verify: int) -> None:
    assert with_codes.default_options.merge == "codes" and with_codes.coder is not None
    for name, query in collection(30).items():
        hits = with_codes.search(query, verify=verify, top=3)
        if len(query) > 8:
            assert hits[0].path == name, hits
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
        assert len(hits) <= 3 and all(hit.score > 0 for hit in hits)


def test_an_image_is_searched_by_its_stored_codes(with_codes: Index) -> None:
    rules = (SearchOptions(verify=0), SearchOptions(assignments=3), plain(hamming=4, verify=9))
    for options, image in product(rules, (1, 5, 30)):
        row = with_codes.image(image)
        query = query_of_image(stored(with_codes, image), options, with_codes.coder, (row.width, row.height))
        hits = with_codes.search(image, options)
        assert values(hits) == found(with_codes, query, options) != []
        inside = (10.0, 20.0, 90.0, 90.0)
        query = query_of_image(stored(with_codes, image), options, with_codes.coder, (row.width, row.height), inside)
        assert values(with_codes.search(image, options, region=inside)) == found(with_codes, query, options)


def test_queries_without_features_find_nothing_by_codes(with_codes: Index) -> None:
    for options in (SearchOptions(verify=0), SearchOptions(), SearchOptions(expand=5), plain(verify=9)):
        assert with_codes.search(features(1, 0), options) == with_codes.search(7, options) == []  # it has no feature
    nothing = with_codes.explain(features(1, 0), 1)
    assert len(nothing.weight) == 0 and nothing.distance.shape == (0, 1)


def test_codes_alone(tmp_path: Path) -> None:
    """An index without words is searched by codes, and by no other rule."""
    index = build(tmp_path / "a.polyvoc", collection(12), VocabularySet((), coded().fine))
    assert index.engine.sizes == () and index.search(features(2, 10))[0].path == "image 2"
    assert index.explain(features(2, 10), index.search(features(2, 10))[0]).weight[0] > 0
    assert len(index.pairs(top=3)) > 0 and list(check(tmp_path / "a.polyvoc")) == []
    with pytest.raises(OptionError, match="needs words, and this index holds codes only"):
        index.search(features(2, 10), plain())
    with IndexWriter.open(tmp_path / "a.polyvoc") as writer:
        writer.remove(["image 2"])
    assert "image 2" not in code_scores(index.reopened(), features(2, 10), SearchOptions())


def test_an_index_without_codes_is_not_searched_by_them(at_once: Index) -> None:
    assert at_once.coder is None
    for search_by_codes in (at_once.search, lambda photo, options: at_once.explain(photo, 1, options)):
        for photo in (features(2, 10), 3):
            with pytest.raises(OptionError, match="needs an index with codes; this one has none"):
                search_by_codes(photo, SearchOptions())


# --- options, stages, results -----------------------------------------------------------------------------------


def test_options_presets_and_single_changes(at_once: Index) -> None:
    query, fast = features(3, 11), at_once.preset("fast")
    assert at_once.options() == at_once.default_options and at_once.options(preset="fast") == fast
    assert (
        at_once.options(fast, top=3, verify=7)
        == at_once.options(preset="fast", top=3, verify=7)
        == replace(fast, top=3, verify=7)
    )
    assert at_once.search(query, preset="fast", top=3) == at_once.search(query, replace(fast, top=3)) != []
    for wrong, message in (
        ({"preset": "fast", "options": fast}, "give options or preset='fast', not both"),
        ({"preset": "slow"}, "preset='slow' should be one of"),
        ({"sure": 0.5}, "sure: no such option"),
        ({"top": 0}, "top=0 should be at least 1"),
    ):
        with pytest.raises(OptionError, match=message):
            at_once.search(query, **wrong)


def test_words_are_scored_by_the_default_options(at_once: Index) -> None:
    """`score_words` has the defaults of `search` without re-ranking, and raises where signatures are missing."""
    words, signatures = quantised(at_once, features(3, 11), at_once.default_options)
    expected = at_once.score_words(words, signatures, at_once.preset("fast"))
    assert np.array_equal(at_once.score_words(words, signatures), expected) and expected.any()
    changed = at_once.score_words(words, signatures, merge="bayes", hamming=None, burstiness="none")
    assert np.array_equal(changed, at_once.score_words(words, None, plain(merge="bayes")))
    with pytest.raises(OptionError, match="needs the signatures of the query; none were given"):
        at_once.score_words(words)


STAGES = ["decode", "sift", "quantise", "score"]


@pytest.fixture(scope="module", params=["_session_index", "_session_coded_index"], ids=["words", "codes"])
def photo_index(request: pytest.FixtureRequest) -> Index:
    """An index of the photographs, to read."""
    return Index.open(request.getfixturevalue(request.param))


@pytest.mark.parametrize("preset", ["fast", "default", "best"])
def test_every_kind_of_photo_finds_the_same(photo_index: Index, photographs: Path, preset: Preset) -> None:
    path = photographs / "market-c.jpg"
    image = next(row.image for row in photo_index.images() if row.path == str(path))
    for region in (None, (30.0, 20.0, 280.0, 200.0)):
        expected = photo_index.search(path, preset=preset, region=region)
        assert expected and expected.complete and list(expected.seconds) == STAGES
        kinds = (
            (str(path), STAGES),
            (path.read_bytes(), STAGES),
            (photo_index.features(path), STAGES[2:]),
            (image, STAGES[3:]),
        )
        for photo, stages in kinds:
            hits = photo_index.search(photo, preset=preset, region=region)
            assert list(hits.seconds) == stages and min(hits.seconds.values()) >= 0
            by_codes = photo_index.coder is not None
            if photo is not image or (preset == "fast" and not by_codes):  # stored geometry and descriptors are rounded
                assert hits == expected
            else:
                assert [hit.image for hit in hits[:3]] == [hit.image for hit in expected[:3]]
    # Further words of each vocabulary need its file.
    assert list(photo_index.search(1, merge="posterior", burstiness="none", assignments=2).seconds) == STAGES


@pytest.mark.parametrize("preset", ["fast", "default", "best"])
def test_first_hits_change_nothing(photo_index: Index, photographs: Path, preset: Preset) -> None:
    region = (10, 10, 300, 250)
    for photo in (photographs / "tower-b.jpg", 5):
        calls: list[Hits] = []
        hits = photo_index.search(photo, preset=preset, region=region, on_first=calls.append)
        assert hits == photo_index.search(photo, preset=preset, region=region)
        if preset == "fast":  # nothing follows
            assert calls == []
            continue
        (first,) = calls
        assert list(first.seconds) == list(hits.seconds) and first.seconds["score"] <= hits.seconds["score"]
        assert all(hit.inliers == 0 and hit.outline is None for hit in first)
        assert first == photo_index.search(photo, preset=preset, region=region, verify=0, expand=0)
        assert any(hit.inliers for hit in hits)


def test_results_as_json(photo_index: Index) -> None:
    region, options = (10, 10, 300, 250), photo_index.default_options
    hits = photo_index.search(2, options, region=region)
    result = json.loads(json.dumps(SearchResult("a.jpg", options, hits, region).as_dict()))
    names = ["query", "region", "options", "hits", "likely", "nothing_found", "complete", "missing", "damage", "seconds"]
    assert list(result) == names
    assert (result["likely"], result["nothing_found"]) == (len(hits.likely), False)
    assert result["region"] == [10, 10, 300, 250] and (result["complete"], result["missing"]) == (True, [])
    assert result["hits"] == json.loads(json.dumps([asdict(hit) for hit in hits]))
    assert SearchResult("a.jpg", options, hits).as_dict()["region"] is None
    part = Hits(hits)
    part.missing = ((3, 5),)
    assert not part.complete and SearchResult("a.jpg", options, part).as_dict()["missing"] == [[3, 5]]
    assert SearchFailure("a.jpg", "it is gone").as_dict() == {"query": "a.jpg", "error": "it is gone"}


# --- explaining -------------------------------------------------------------------------------------------------


def test_weights_of_an_explanation_sum_to_the_score(tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    for k in (1, 2, 4):
        index = build(tmp_path / f"{k}.polyvoc", collection(12), vocabularies(k, size=9), commits=3)
        with IndexWriter.open(index.folder.path) as writer:
            writer.remove(["image 1"])
        index = Index.open(index.folder.path)
        for number in range(30):
            options = plain(
                merge=str(rng.choice(RULES)),  # type: ignore[arg-type]
                idf=str(rng.choice(["average", "plain", "none"])),  # type: ignore[arg-type]
                norm=str(rng.choice(["tfidf", "tf", "none"])),  # type: ignore[arg-type]
                sets=str(rng.choice(["feature", "image"])),  # type: ignore[arg-type]
                hamming=None if rng.random() < 0.5 else int(rng.integers(0, 9)),
                assignments=int(rng.integers(1, 4)),
                line=(float(rng.random()), float(rng.random())),
                c=float(rng.choice([30.0, 0.1])),
            )
            query = features(number, int(rng.integers(0, 12)))
            for hit in index.search(query, top=20, options=options):
                explanation = index.explain(query, hit, options)
                assert explanation.weight.sum() == pytest.approx(hit.score, rel=1e-4), options


def test_an_explanation_shows_what_matches(at_once: Index) -> None:
    query = collection(30)["image 4"]
    options = plain(merge="posterior", hamming=8)
    (hit,) = at_once.search(query, top=1, options=options)
    explanation = at_once.explain(query, hit, options)
    words, _ = quantised(at_once, query, options)
    assert explanation.hit == hit
    assert np.array_equal(explanation.query_xy, query.xy[explanation.query])
    assert np.allclose(explanation.feature_xy, query.xy[explanation.feature], atol=100 / STEPS)  # it is the same image
    for q, f, mask, distances, same in zip(
        explanation.query, explanation.feature, explanation.mask, explanation.distance, explanation.words, strict=True
    ):
        shared = words[q] == words[f]
        assert np.array_equal(same, np.where(shared, words[q], -1))
        assert mask == sum(1 << k for k in np.flatnonzero(shared))
        assert ((distances >= 0) == shared).all()
    itself = explanation.query == explanation.feature
    assert set(explanation.query[itself].tolist()) == set(range(len(query)))
    assert (explanation.mask[itself] == 7).all() and (explanation.distance[itself] == 0).all()


def test_images_that_cannot_be_explained_raise(at_once: Index, changed: Path) -> None:
    for image in (0, 999):
        with pytest.raises(OptionError, match="is not in the index"):
            at_once.explain(features(1), image)
    with pytest.raises(OptionError, match="is not in the index"):
        at_once.explain(features(1), Hit(999, "", 0.0))
    with IndexWriter.open(changed) as writer:
        writer.remove(["image 2"])
    with pytest.raises(OptionError, match="is not in the index"):
        Index.open(changed).explain(features(1), Hit(3, "image 2", 0.0))
    nothing = at_once.explain(features(1, 0), 1)
    assert len(nothing.weight) == 0 and nothing.distance.shape == (0, 3)


# --- while others write -----------------------------------------------------------------------------------------


def test_an_index_reopened_sees_the_last_commit_and_keeps_its_vocabularies(at_once: Index, changed: Path) -> None:
    index = Index.open(changed)
    assert index.reopened() is index
    models = index.folder.models
    with IndexWriter.open(changed) as writer:
        writer.add("one more", features(5, 15))
    anew = index.reopened()
    assert (len(index), len(anew)) == (30, 31) and anew.commit > index.commit
    assert anew.reopened() is anew
    assert anew.folder.models is models
    assert_same_scores(anew, Index.open(changed))
    index.close()  # its catalogue is its own
    assert anew.search(features(5, 15), top=1)[0].path == "one more"


def test_an_index_reopened_shares_the_segments_that_are_the_same(changed: Path) -> None:
    with IndexWriter.open(changed) as writer:
        writer.add("another", features(6, 15))
    first = Index.open(changed)
    with IndexWriter.open(changed) as writer:
        writer.remove(["another"])
        writer.add("one more", features(5, 15))
    second = first.reopened()
    assert second.engine.segments[0] is first.engine.segments[0]
    assert [len(segment.live_positions()) for segment in first.engine.segments] == [30, 1]
    assert "another" not in {hit.path for hit in second.search(features(6, 15), top=100)}
    assert_same_scores(second, Index.open(changed))


def test_an_open_index_stays_as_it_was(at_once: Index, changed: Path) -> None:
    index = Index.open(changed)
    query = features(3, 11)
    before = scores(index, query, plain())
    hits = index.search(query, top=30, options=plain())
    with IndexWriter.open(changed) as writer:
        for number in range(9):
            writer.add(f"more {number}", features(number, 15))
            writer.commit()
        writer.remove(["image 4"])
    assert not (changed / "segments/000001").exists()  # merged into another
    words, signatures = quantised(index, query, plain())
    assert index.score_words(words, signatures, plain()).tolist() == list(before.values())
    left = [hit for hit in hits if hit.path != "image 4"]  # removed images are left out
    assert index.search(query, top=30, options=plain()) == left and len(left) < len(hits)
    assert index.explain(query, left[0], plain()).weight.sum() == pytest.approx(left[0].score, rel=1e-4)
    assert len(Index.open(changed)) == 38


def test_opening_while_others_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open again and again while commits, merges and removals go on: every time a complete commit is seen."""
    path = tmp_path / "a.polyvoc"
    build(path, collection(5)).close()
    done = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        try:
            with IndexWriter.open(path) as writer:
                for number in range(40):
                    writer.add(f"more {number}", features(number, 6))
                    writer.commit()
                    if number % 5 == 4:
                        writer.remove([f"more {number - 1}"])
        except BaseException as error:  # noqa: BLE001 - reported by the test itself
            failed.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=write)
    thread.start()
    seen = []
    while not done.is_set():
        index = Index.open(path)
        seen.append(len(index))
        assert index.search(features(1, 9), top=1, options=plain())
        index.close()
    thread.join()
    assert failed == [] and len(seen) > 3
    assert len(Index.open(path)) == 5 + 40 - 8


def test_an_index_that_changes_all_the_time_raises(changed: Path) -> None:
    def read_engine(folder: IndexFolder, layout: Layout) -> Engine:
        with IndexWriter.open(changed) as writer:
            writer.add("again", features(1))
        raise DamagedError("a segment is missing")

    with pytest.raises(LockedError, match="changes faster"):
        Index.open(changed, read_engine=read_engine)


# --- opening ----------------------------------------------------------------------------------------------------


def test_anything_but_an_index_raises(tmp_path: Path) -> None:
    with pytest.raises(NotAnIndexError, match="polyvoc index FOLDER"):
        polyvoc.open(tmp_path / "nothing")
    with pytest.raises(NotAnIndexError, match="is not a polyvoc index"):
        polyvoc.open(tmp_path)


def test_another_vocabulary_raises(changed: Path) -> None:
    shutil.rmtree(changed / "vocabularies/1")
    vocabularies(3, size=31)[1].save(changed / "vocabularies/1")
    index = Index.open(changed)
    with pytest.raises(VocabularyError, match="made with"):
        index.search(features(1))


def edit(path: Path, recorded: str) -> None:
    """Record another checksum of the first segment."""
    with closing(sqlite3.connect(path / FILE)) as connection, connection:
        ((n_images, n_features),) = connection.execute("SELECT n_images, n_features FROM segments WHERE segment = 1")
        values = [recorded, _row_checksum(1, n_images, n_features, recorded)]
        connection.execute("UPDATE segments SET checksum = ?, row_checksum = ? WHERE segment = 1", values)


def test_a_segment_of_another_index_is_left_out(changed: Path, tmp_path: Path) -> None:
    build(tmp_path / "other.polyvoc", collection(30), vocabularies(3, size=20)).close()
    shutil.rmtree(changed / "segments/000001")
    shutil.copytree(tmp_path / "other.polyvoc/segments/000001", changed / "segments/000001")
    with Index.open(changed) as index:
        assert any("meta.json is damaged" in line for line in index.search(features(1)).damage)
    edit(changed, checksum(changed / "segments/000001" / META))
    with Index.open(changed) as index:
        assert any("another index" in line for line in index.search(features(1)).damage)


def test_closing(changed: Path) -> None:
    with Index.open(changed) as index:
        assert len(index) == 30
    index.close()
    with pytest.raises(PolyvocError, match="was closed"):
        index.search(features(1))


def test_an_index_in_a_folder_whose_name_is_not_text(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"\xe9t\xe9")
    index = build(folder / "a.polyvoc", {os.fsdecode(b"caf\xe9"): features(1), "b": features(2)})
    assert os.fsencode(index.search(features(1))[0].path) == b"caf\xe9"


@pytest.mark.skipif(not is_root(), reason="only root can become another user")
def test_a_read_only_index_can_be_searched(changed: Path) -> None:
    expected = Index.open(changed).search(features(3, 11))

    def search() -> None:
        assert Index.open(changed).search(features(3, 11)) == expected
        assert list(check(changed)) == []
        with pytest.raises(WriteError, match="no permission to write") as caught:
            IndexWriter.open(changed)
        assert "\n" not in str(caught.value)

    assert as_nobody(changed, search) == 0


def test_features_are_not_modified(at_once: Index) -> None:
    query = features(3, 11)
    arrays = {name: getattr(query, name).copy() for name in ("xy", "scale", "angle", "descriptors")}
    frozen = Features(**arrays, width=query.width, height=query.height)
    for name in arrays:
        getattr(frozen, name).flags.writeable = False
    assert at_once.search(frozen) == at_once.search(query)
    at_once.explain(frozen, at_once.search(frozen, region=(5, 5, 95, 95))[0], region=(5, 5, 95, 95))
    assert all(np.array_equal(getattr(frozen, name), getattr(query, name)) for name in arrays)
