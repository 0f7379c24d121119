"""Links between images that show the same thing: which are linked, what links add to a score, and what must not matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coded_scenes import coded_again, coded_engine, coded_joined, coded_picture, coder_of
from polyvoc.errors import DamagedError, OptionError
from polyvoc.index.check import check
from polyvoc.index.segment import Segment
from polyvoc.index.writer import IndexWriter
from polyvoc.options import preset
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import SegmentImages
from polyvoc.search.index import Index
from polyvoc.search.links import CANDIDATES, LINK, LinkGraph, Links, check_links, find_links, link
from polyvoc.search.pairs import StoredQueries
from polyvoc.search.pipeline import score_all, search
from polyvoc.search.verify import MIN_INLIERS, WordVerification, match_table, verify
from samples import unflushed
from scenes import SIZES, Picture, engine_of, joined, picture, seen_again

__all__ = ["unflushed"]


def scenes(seed: int = 0, bits: int = 64) -> list[Picture]:
    """Return ten images: 0, 1 and 2 show one thing, 3 and 4 another, the rest nothing that others show."""
    rng = np.random.default_rng([17, seed])
    one, other = picture(rng, 60, bits), picture(rng, 60, bits)
    again = [joined(seen_again(rng, shown), picture(rng, 10, bits)) for shown in (one, one, other)]
    return [one, again[0], again[1], other, again[2], *(picture(rng, 60, bits) for _ in range(5))]


def found(engine: Engine, bits: int = 64, candidates: int = 5) -> Links:
    return find_links(StoredQueries(engine, preset("fast", bits)), candidates)


def ends(links: Links) -> list[tuple[int, int]]:
    return list(zip(links["first"].tolist(), links["second"].tolist(), strict=True))


def links_of(*rows: tuple[int, int, float]) -> Links:
    return np.array(list(rows), LINK)


def parts(*values: Sequence[float]) -> list[np.ndarray]:
    return [np.array(part, np.float32) for part in values]


def images_of(segments: list[Segment]) -> list[SegmentImages]:
    return Engine(segments, segments[0].sizes).images()


# -- what links add to a score


def test_the_formula_by_hand() -> None:
    segments = engine_of(scenes()[:4], 2).segments  # images 0, 1 | 2, 3
    graph = LinkGraph(links_of((0, 1, 1.0), (0, 2, 3.0)))
    first, second = graph.smooth(images_of(segments), parts([8.0, 4.0], [0.0, 5.0]), 0.5)
    # image 0: linked with 1 and 2, (1 * 4 + 3 * 0) / (1 + 3) = 1; images 1 and 2: with image 0, 8; image 3: with none.
    np.testing.assert_allclose(first, [(8 + 0.5 * 1) / 1.5, (4 + 0.5 * 8) / 1.5], rtol=1e-6)
    np.testing.assert_allclose(second, [(0 + 0.5 * 8) / 1.5, 5.0], rtol=1e-6)
    assert first.dtype == second.dtype == np.float32


def test_images_without_links_keep_their_scores_exactly() -> None:
    segments = engine_of(scenes(), 3).segments
    before = [np.random.default_rng(s).random(part.n_images).astype(np.float32) for s, part in enumerate(segments)]
    for share in (0.1, 1.0, 7.3):
        after = LinkGraph(links_of()).smooth(images_of(segments), before, share)
        assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


def test_scores_are_smoothed_after_expansion() -> None:
    images = scenes(1)
    engine = engine_of(images)
    graph, options = LinkGraph(found(engine)), replace(preset("best", 64), top=10)
    before = score_all(engine, images[0].query, options)
    after = score_all(engine, images[0].query, replace(options, smooth=1.0), graph)
    assert np.array_equal(after[0], graph.smooth(engine.images(), before, 1.0)[0]) and not np.array_equal(after[0], before[0])
    hits = search(engine, images[0].query, replace(options, smooth=1.0), links=graph)
    assert [(hit.image, hit.score) for hit in hits] == [
        (one.image, one.score) for one in engine.rank(after, engine.images(), 10)
    ]


# -- which images are linked


@pytest.mark.parametrize("bits", [64, 128])
@pytest.mark.parametrize("seed", range(3))
def test_images_that_show_the_same_thing_are_linked(seed: int, bits: int) -> None:
    images = scenes(seed, bits)
    engine = engine_of(images)
    links = found(engine, bits)
    assert ends(links) == [(0, 1), (0, 2), (1, 2), (3, 4)]
    query = WordVerification.of(images[3].query.image_features, match_table(engine, preset("fast", bits)))
    inliers = verify(engine, query, [(0, 4)])[0, 4].inliers
    assert links["weight"][3] >= np.float32(math.log1p(inliers))  # the better of both directions
    assert links["weight"].min() >= math.log1p(MIN_INLIERS)


def test_images_that_show_the_same_thing_are_linked_by_codes() -> None:
    rng = np.random.default_rng(18)
    one, other = coded_picture(rng, 60), coded_picture(rng, 60)
    again = [coded_joined(coded_again(rng, shown), coded_picture(rng, 10)) for shown in (one, one, other)]
    engine = coded_engine([one, *again[:2], other, again[2], *(coded_picture(rng, 60) for _ in range(5))], 4)
    source = StoredQueries(engine, preset("fast", 0, 128), coder_of())
    links = find_links(source, 5)
    assert ends(links) == [(0, 1), (0, 2), (1, 2), (3, 4)]
    inliers = [verify(engine, source.verification(a), [b])[b].inliers for a, b in (((0, 3), (1, 0)), ((1, 0), (0, 3)))]
    assert links["weight"][3] == np.float32(math.log1p(max(inliers)))
    with pytest.raises(OptionError, match="candidates=0 should be at least 1"):
        find_links(source, 0)


def test_segments_do_not_matter() -> None:
    images = scenes(2)
    expected = found(engine_of(images))
    scores = np.random.default_rng(3).random(len(images)).astype(np.float32)
    at_once = LinkGraph(expected).smooth(engine_of(images).images(), [scores], 0.7)[0]
    for segment_images in (1, 3, 7):
        engine = engine_of(images, segment_images)
        assert np.array_equal(found(engine), expected)
        split = np.split(scores, np.cumsum([segment.n_images for segment in engine.segments])[:-1])
        assert np.array_equal(np.concatenate(LinkGraph(expected).smooth(engine.images(), split, 0.7)), at_once)


def test_removed_images_have_no_links() -> None:
    engine = engine_of(scenes())
    links, segments = found(engine), [engine.segments[0].without([1, 3])]
    assert ends(found(Engine(segments, SIZES))) == [(0, 2)]
    after = LinkGraph(links).smooth(images_of(segments), parts([1, 0, 2, 0, 4, 5, 5, 5, 5, 5]), 1.0)[0]
    np.testing.assert_allclose(after, [1.5, 0, 1.5, 0, 4, 5, 5, 5, 5, 5])


def test_images_added_later_have_no_links() -> None:
    graph, images = LinkGraph(links_of((0, 1, 2.0))), engine_of(scenes()).images()
    after = graph.smooth(images, parts([2, 4, 6, 8, 1, 1, 1, 1, 1, 1]), 1.0)[0]
    np.testing.assert_allclose(after, [3, 3, 6, 8, 1, 1, 1, 1, 1, 1])


def test_an_unavailable_segment_is_not_remembered() -> None:
    """Its images have the id -1: once they are available again, their links count."""
    graph, images = LinkGraph(links_of((0, 2, 2.0))), engine_of(scenes()[:4], 2).images()
    absent = [images[0], SegmentImages(np.full(2, -1), np.empty(0, np.int64))]
    scores = parts([4, 1], [2, 1])
    assert np.concatenate(graph.smooth(absent, scores, 1.0)).tolist() == [4, 1, 2, 1]
    assert np.concatenate(graph.smooth(images, scores, 1.0)).tolist() == [3, 1, 3, 1]


def test_an_empty_collection_has_no_links() -> None:
    assert len(found(Engine([], SIZES), 0)) == 0
    assert LinkGraph(links_of()).smooth([], [], 1.0) == []
    assert len(found(engine_of([picture(np.random.default_rng(0), 0)]), 0)) == 0


def test_impossible_candidates_raise() -> None:
    with pytest.raises(OptionError, match="candidates=0 should be at least 1"):
        found(engine_of(scenes()), candidates=0)


# -- on the disk


def link_index(path: Path, *arguments: object) -> int:
    with IndexWriter.open(path) as writer, Index.open(path, links=False) as index:
        return link(writer, index.stored_queries, *arguments)  # type: ignore[arg-type]


def stored(path: Path) -> Links:
    with Index.open(path) as index:
        assert index.links is not None
        return np.array(index.links.links)


def lines_of(path: Path) -> list[str]:
    return list(check(path, more=[check_links]))


@pytest.mark.parametrize("made", ["index_path", "coded_index_path"])
def test_links_of_the_views_of_each_scene(made: str, photographs: Path, request: pytest.FixtureRequest) -> None:
    index_path, query = request.getfixturevalue(made), photographs / "wall-b.jpg"
    with Index.open(index_path) as index:
        before = index.search(query)
        with pytest.raises(OptionError, match="polyvoc link"):
            index.search(query, smooth=1.0)
        scene = {row.image: Path(row.path).name.split("-")[0] for row in index.images()}
        expected = find_links(index.stored_queries, CANDIDATES)
        assert link_index(index_path) == 12  # of 4 scenes in 3 views
        assert index.links is None and index.reopened().links is not None
        hits = index.reopened().search(query, smooth=1.0)
    assert all(scene[first] == scene[second] for first, second in ends(stored(index_path)))
    assert np.array_equal(stored(index_path), expected)
    assert {hit.score for hit in hits[:3]} != {hit.score for hit in before[:3]}
    assert {Path(hit.path).name[:4] for hit in hits[:3]} == {"wall"}
    assert lines_of(index_path) == []


def test_linking_twice_replaces_the_links(index_path: Path) -> None:
    counts, graphs = [], []
    for _ in range(2):
        counts.append(link_index(index_path))
        graphs.append(stored(index_path))
        assert len(list((index_path / "links").iterdir())) == 1
    assert counts[0] == counts[1] == len(graphs[0]) and np.array_equal(*graphs)


def test_progress(index_path: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    link_index(index_path, 3, lambda *step: calls.append(step))
    assert [step for step in calls if step[0] == "linking"] == [("linking", done, 12) for done in range(1, 13)]
    assert calls[0][0] == "comparing"


def test_links_stay_while_the_index_changes(index_path: Path, photographs: Path) -> None:
    link_index(index_path)
    before = stored(index_path)
    with IndexWriter.open(index_path) as writer:
        assert writer.remove([photographs / "wall-a.jpg"]) == 1
    assert np.array_equal(stored(index_path), before)
    with Index.open(index_path) as index:
        hits = index.search(photographs / "wall-b.jpg", smooth=1.0)
    assert "wall-a.jpg" not in {Path(hit.path).name for hit in hits}
    assert link_index(index_path) == 10
    assert lines_of(index_path) == []


def test_damaged_links_raise_and_can_be_built_again(index_path: Path) -> None:
    link_index(index_path)
    (file,) = (index_path / "links").iterdir()
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert [line for line in lines_of(index_path) if str(file) in line and "checksum" in line]
    file.unlink()
    assert any(str(file) in line and "missing" in line for line in lines_of(index_path))
    with pytest.raises(DamagedError, match="links"):
        Index.open(index_path)
    assert link_index(index_path) == 12
    assert lines_of(index_path) == []


@pytest.mark.parametrize("row", [(2, 1, 3.0), (1, 1, 3.0), (1, 2, 0.0), (1, 2, math.nan)])
def test_impossible_links_are_found(index_path: Path, row: tuple[int, int, float]) -> None:
    with IndexWriter.open(index_path) as writer:
        writer.save_side_file("links", links_of(row))
    (line,) = lines_of(index_path)
    assert "links that are out of order or have no weight" in line


def test_an_interrupt_stores_nothing(index_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        link_index(index_path, CANDIDATES, interrupt)
    assert not (index_path / "links").exists()
    with Index.open(index_path) as index:
        assert index.links is None
