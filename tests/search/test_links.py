"""Images that show the same thing as others: who is a neighbour of whom, what it adds to a score, and what must not matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import typer

from commands import answer, refuse, run
from polyvoc.cli.main import app
from polyvoc.errors import DamagedError, OptionError
from polyvoc.index.catalogue import Catalogue
from polyvoc.index.check import check_index
from polyvoc.index.segment import Segment
from polyvoc.index.writer import IndexWriter
from polyvoc.options import preset
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import SegmentImages
from polyvoc.search.index import Index
from polyvoc.search.links import LINK, LINK_CANDIDATES, LinkGraph, Links, LinksRecord, find_links
from polyvoc.search.pipeline import score_all
from polyvoc.search.verify import MIN_INLIERS, verify
from polyvoc.storage.files import write_file
from samples import unflushed
from scenes import SIZES, Picture, engine_of, joined, picture, seen_again

__all__ = ["unflushed"]


def things(seed: int = 0, bits: int = 64) -> list[Picture]:
    """Give ten images: 0, 1 and 2 show one thing, 3 and 4 another, the rest nothing that others show."""
    rng = np.random.default_rng([17, seed])
    one, other = picture(rng, 60, bits), picture(rng, 60, bits)
    again = [joined(seen_again(rng, thing), picture(rng, 10, bits)) for thing in (one, one, other)]
    return [one, again[0], again[1], other, again[2], *(picture(rng, 60, bits) for _ in range(5))]


def found(engine: Engine, bits: int = 64, candidates: int = 5) -> Links:
    return find_links(engine, preset("fast", bits), candidates)


def ends(pairs: Links) -> list[tuple[int, int]]:
    return list(zip(pairs["first"].tolist(), pairs["second"].tolist(), strict=True))


def linked(segments: list[Segment], pairs: Links) -> Engine:
    return Engine(segments, SIZES, neighbours=LinkGraph(pairs))


def pairs_of(*rows: tuple[int, int, float]) -> Links:
    return np.array(list(rows), LINK)


def parts(*values: Sequence[float]) -> list[np.ndarray]:
    return [np.array(part, np.float32) for part in values]


def standing(segments: list[Segment]) -> list[SegmentImages]:
    return Engine(segments, segments[0].sizes).standing()


# -- what it adds to a score


def test_the_formula_by_hand() -> None:
    segments = engine_of(things()[:4], 2).segments  # images 0, 1 | 2, 3
    graph = LinkGraph(pairs_of((0, 1, 1.0), (0, 2, 3.0)))
    first, second = graph.smoothed(standing(segments), parts([8.0, 4.0], [0.0, 5.0]), 0.5)
    # image 0: neighbours 1 and 2 say (1 * 4 + 3 * 0) / (1 + 3) = 1; images 1 and 2: image 0 says 8; image 3 has nobody.
    np.testing.assert_allclose(first, [(8 + 0.5 * 1) / 1.5, (4 + 0.5 * 8) / 1.5], rtol=1e-6)
    np.testing.assert_allclose(second, [(0 + 0.5 * 8) / 1.5, 5.0], rtol=1e-6)
    assert first.dtype == second.dtype == np.float32


def test_images_without_neighbours_keep_their_scores_exactly() -> None:
    segments = engine_of(things(), 3).segments
    before = [np.random.default_rng(s).random(part.n_images).astype(np.float32) for s, part in enumerate(segments)]
    for share in (0.1, 1.0, 7.3):
        after = LinkGraph(pairs_of()).smoothed(standing(segments), before, share)
        assert all(np.array_equal(old, new) for old, new in zip(before, after, strict=True))


def test_a_search_is_smoothed_last() -> None:
    images = things(1)
    segments = engine_of(images).segments
    engine = linked(segments, found(engine_of(images)))
    options = replace(preset("best", 64), top=10)
    plain, _ = score_all(engine, images[0].asked, options)
    told, _ = score_all(engine, images[0].asked, replace(options, smooth=1.0))
    assert engine.neighbours is not None
    assert np.array_equal(told[0], engine.neighbours.smoothed(engine.images(), plain, 1.0)[0])
    assert not np.array_equal(told[0], plain[0])


# -- who is a neighbour


@pytest.mark.parametrize("bits", [64, 128])
@pytest.mark.parametrize("seed", range(3))
def test_those_that_show_the_same_thing_are_neighbours(seed: int, bits: int) -> None:
    engine = engine_of(things(seed, bits))
    pairs = found(engine, bits)
    assert ends(pairs) == [(0, 1), (0, 2), (1, 2), (3, 4)]
    seen = verify(engine, things(seed, bits)[3].asked.image_words, [(0, 4)], preset("fast", bits))
    assert pairs["weight"][3] >= np.float32(math.log1p(seen[0, 4].inliers))  # the better of both directions
    assert pairs["weight"].min() >= math.log1p(MIN_INLIERS)


def test_segments_do_not_matter() -> None:
    images = things(2)
    expected = found(engine_of(images))
    scores = np.random.default_rng(3).random(len(images)).astype(np.float32)
    whole = LinkGraph(expected).smoothed(engine_of(images).standing(), [scores], 0.7)[0]
    for segment_images in (1, 3, 7):
        engine = engine_of(images, segment_images)
        assert np.array_equal(found(engine), expected)
        split = np.split(scores, np.cumsum([segment.n_images for segment in engine.segments])[:-1])
        assert np.array_equal(np.concatenate(LinkGraph(expected).smoothed(engine.images(), split, 0.7)), whole)


def test_removed_images_are_neither_asked_nor_heard() -> None:
    whole = engine_of(things())
    pairs = found(whole)
    segments = [whole.segments[0].without([1, 3])]
    assert ends(found(Engine(segments, SIZES))) == [(0, 2)]
    scores = parts([1, 0, 2, 0, 4, 5, 5, 5, 5, 5])
    after = LinkGraph(pairs).smoothed(standing(segments), scores, 1.0)[0]
    np.testing.assert_allclose(after, [1.5, 0, 1.5, 0, 4, 5, 5, 5, 5, 5])


def test_images_added_later_are_alone() -> None:
    pairs = pairs_of((0, 1, 2.0))
    scores = parts([2, 4, 6, 8, 1, 1, 1, 1, 1, 1])
    np.testing.assert_allclose(
        LinkGraph(pairs).smoothed(engine_of(things()).standing(), scores, 1.0)[0], [3, 3, 6, 8, 1, 1, 1, 1, 1, 1]
    )


def test_nothing_has_no_neighbours() -> None:
    assert len(found(Engine([], SIZES), 0)) == 0
    assert LinkGraph(pairs_of()).smoothed([], [], 1.0) == []
    assert len(found(engine_of([picture(np.random.default_rng(0), 0)]), 0)) == 0


def test_what_cannot_be_is_one_line() -> None:
    engine = engine_of(things())
    with pytest.raises(OptionError, match="candidates=0 should be at least 1"):
        found(engine, candidates=0)
    with pytest.raises(OptionError, match=r"^smooth needs the neighbours of every image; find them: polyvoc link$"):
        score_all(engine, things()[0].asked, replace(preset("fast", 64), smooth=1.0))
    for odd in (-0.5, math.inf, math.nan):
        with pytest.raises(OptionError, match="smooth="):
            replace(preset("fast", 64), smooth=odd)


# -- on the disk


def graph(path: Path) -> Links:
    with Index.open(path) as index:
        assert index.engine.neighbours is not None
        return np.array(index.engine.neighbours.pairs)


def put_fact(path: Path, value: object) -> None:
    catalogue = Catalogue.open(path, writable=True)
    with catalogue.transaction():
        catalogue.put_facts({"neighbours": value})
    catalogue.close()


def test_link_finds_the_views_of_each_scene_and_search_hears_them(index_path: Path, photographs: Path) -> None:
    asked = ("search", photographs / "wall-b.jpg", "--index", index_path, "--smooth", 1)
    assert "polyvoc link" in refuse(*asked)
    told = answer("link", "--index", index_path)
    assert (told["index"], told["pairs"]) == (str(index_path), 12)  # of 4 scenes in 3 views
    with Index.open(index_path) as index:
        scene = {row.image: Path(row.path).name.split("-")[0] for row in index.images()}
        expected = find_links(index.engine, index.preset("fast"), LINK_CANDIDATES)
    saved = graph(index_path)
    assert all(scene[first] == scene[second] for first, second in ends(saved))
    assert np.array_equal(saved, expected)  # saved = loaded
    smooth, plain = answer(*asked), answer(*asked[:4])
    assert {hit["score"] for hit in smooth["hits"][:3]} != {hit["score"] for hit in plain["hits"][:3]}
    assert {Path(hit["path"]).name[:4] for hit in smooth["hits"][:3]} == {"wall"}
    assert list(check_index(index_path)) == []


def test_link_twice_is_once(index_path: Path) -> None:
    counts, graphs = [], []
    for _ in range(2):
        with IndexWriter.open(index_path) as writer:
            counts.append(writer.link())
        graphs.append(graph(index_path))
        assert len(list((index_path / "neighbours").iterdir())) == 1
    assert counts[0] == counts[1] == len(graphs[0])
    assert np.array_equal(*graphs)


def test_progress_is_told(index_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    with IndexWriter.open(index_path) as writer:
        writer.link(3, lambda *step: told.append(step))
    assert [step for step in told if step[0] == "linking"] == [("linking", done, 12) for done in range(1, 13)]
    assert told[0][0] == "comparing"


def test_the_graph_stays_while_the_index_changes(index_path: Path, photographs: Path) -> None:
    run("link", "--index", index_path)
    before = graph(index_path)
    assert answer("remove", photographs / "wall-a.jpg", "--index", index_path)["removed"] == 1
    assert np.array_equal(graph(index_path), before)  # what is removed is not heard
    hits = answer("search", photographs / "wall-b.jpg", "--index", index_path, "--smooth", 1)["hits"]
    assert "wall-a.jpg" not in {Path(hit["path"]).name for hit in hits}
    assert answer("link", "--index", index_path)["pairs"] == 10
    assert list(check_index(index_path)) == []


def test_what_is_damaged_is_one_line_and_made_anew(index_path: Path) -> None:
    run("link", "--index", index_path)
    (file,) = (index_path / "neighbours").iterdir()
    sound = file.read_bytes()
    file.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    assert list(check_index(index_path)) == [f"{file} is damaged: its checksum differs from the one recorded"]
    file.unlink()
    assert list(check_index(index_path)) == [f"{file} is missing"]
    with pytest.raises(DamagedError, match="neighbours"):
        Index.open(index_path)
    assert answer("link", "--index", index_path)["pairs"] == 12
    assert list(check_index(index_path)) == []


@pytest.mark.parametrize("row", [(2, 1, 3.0), (1, 1, 3.0), (1, 2, 0.0), (1, 2, math.nan)])
def test_pairs_that_cannot_be_are_found(index_path: Path, row: tuple[int, int, float]) -> None:
    file = index_path / "neighbours" / "000001.npy"
    record = LinksRecord(1, 1, write_file(file, pairs_of(row)))
    put_fact(index_path, asdict(record))
    assert list(check_index(index_path)) == [f"{file} holds pairs that are out of order or have no weight"]


def test_an_interrupt_leaves_what_was(index_path: Path) -> None:
    def interrupt(stage: str, done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), IndexWriter.open(index_path) as writer:
        writer.link(progress=interrupt)
    assert not (index_path / "neighbours").exists()
    with Index.open(index_path) as index:
        assert index.engine.neighbours is None


@pytest.mark.parametrize("odd", [[], "text", -1, {"surprise": 1}, {"commit": 99, "pairs": 1, "checksum": ""}])
def test_a_record_that_cannot_be_is_one_line(index_path: Path, odd: object) -> None:
    put_fact(index_path, odd)
    assert any("the fact 'neighbours' cannot be" in line for line in check_index(index_path))
    with pytest.raises(DamagedError, match="neighbours"):
        Index.open(index_path)


def test_the_command_has_the_default_of_the_library() -> None:
    (option,) = (p for p in typer.main.get_command(app).commands["link"].params if p.name == "candidates")  # type: ignore[attr-defined]
    assert option.default == LINK_CANDIDATES


def test_the_command_refuses(index_path: Path, tmp_path: Path) -> None:
    assert "candidates=0 should be at least 1" in refuse("link", "--candidates", 0, "--index", index_path)
    assert "does not exist" in refuse("link", "--index", tmp_path / "none.polyvoc")
    assert not (tmp_path / "none.polyvoc").exists()
