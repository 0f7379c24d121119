"""Several indexes as one: neither their order nor an index beside itself matters, and what one alone holds stays as it is."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import polyvoc
import polyvoc.search.query
from conftest import SCENES, draw_scene, view_of
from polyvoc.errors import ImageError, NotAllowedError, NotAnIndexError, OptionError
from polyvoc.features.pictures import KINDS
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions, Preset
from polyvoc.search.hits import Hits, SearchFailure, SearchResult
from polyvoc.search.index import Index
from polyvoc.search.joint import PRIOR, JointHit, logit
from polyvoc.search.photographs import STRIDE, Photographs
from polyvoc.search.probability import default_hit_probability, logistic
from polyvoc.search.several import Indexes
from polyvoc.types import Features
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet
from samples import unflushed

__all__ = ["unflushed"]

SHARES = {"sift": 0.9, "orb": 0.7}
PRESETS: tuple[Preset, ...] = ("fast", "default", "best")
Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def _every_kind_has_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ones, of which different shares count."""
    models = {name: replace(default_hit_probability(), share=share) for name, share in SHARES.items()}
    monkeypatch.setattr("polyvoc.search.index.hit_probability_of", lambda kind, *_: models[kind.name])


@pytest.fixture
def sift(coded_index_path: Path) -> Path:
    """An index of SIFT of the photographs."""
    return coded_index_path


@pytest.fixture
def orb(_session_orb_index: Path, tmp_path: Path) -> Path:
    """An index of ORB of the same photographs."""
    return Path(shutil.copytree(_session_orb_index, tmp_path / "photos.orb.polyvoc"))


@pytest.fixture
def make(fine: Vocabulary, tmp_path: Path) -> Make:
    """Return what makes an index of SIFT of some photographs."""

    def build(name: str, *photographs: Path) -> Path:
        path = tmp_path / name
        with IndexWriter.open(path, VocabularySet((), fine), FeatureOptions()) as writer:
            writer.update(photographs)
        return path

    return build


def facts(hits: Hits) -> list[tuple[Any, ...]]:
    """Return what must be equal of two answers with the same ids."""
    return [(hit.image % STRIDE, hit.path, hit.probability, hit.score, hit.inliers, hit.outline, hit.width) for hit in hits]


def queries(photographs: Path) -> Iterator[Path]:
    yield from (photographs / f"{name}-c.jpg" for name in SCENES[:2])


# -- the same photographs, the same kind


@pytest.mark.parametrize("preset", PRESETS)
def test_an_index_beside_itself_changes_nothing(sift: Path, photographs: Path, tmp_path: Path, preset: Preset) -> None:
    copy = Path(shutil.copytree(sift, tmp_path / "another place"))
    with Index.open(sift) as one, polyvoc.open([sift, sift]) as twice, polyvoc.open([copy, sift]) as beside:
        assert len(one) == len(twice) == len(beside) == 12
        for photo in (*queries(photographs), 3):
            for top in (3, 10):
                expected = one.search(photo, preset=preset, top=top)
                assert expected and len(expected) <= top
                assert facts(twice.search(photo, preset=preset, top=top)) == facts(expected)
                assert facts(beside.search(photo, preset=preset, top=top)) == facts(expected)


@pytest.mark.parametrize("preset", PRESETS)
def test_one_index_alone_gives_its_own_answer(sift: Path, photographs: Path, preset: Preset) -> None:
    with Index.open(sift) as one, polyvoc.open([sift]) as alone:
        for photo in queries(photographs):
            expected, found = one.search(photo, preset=preset), alone.search(photo, preset=preset)
            assert facts(found) == facts(expected) and [hit.image for hit in found] == [hit.image for hit in expected]
            assert found.complete and list(found.seconds) == ["decode", "sift", "score"]
        assert alone.options(preset=preset, top=3) == one.options(preset=preset, top=3)
        assert [row.path for row in alone] == [row.path for row in one] and len(alone.problems()) == len(one.problems())


def test_copies_in_one_index_stay_apart(make: Make, photographs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "twice"
    folder.mkdir()
    for name in ("one", "two"):
        shutil.copy(photographs / "tower-a.jpg", folder / f"{name}.jpg")
    with Index.open(make("a", photographs, folder)) as one, polyvoc.open([tmp_path / "a", tmp_path / "a"]) as twice:
        expected = one.search(photographs / "tower-b.jpg")
        assert {Path(hit.path).name for hit in expected[:5]} >= {"one.jpg", "two.jpg"}
        assert facts(twice.search(photographs / "tower-b.jpg")) == facts(expected) and len(twice) == 14


# -- different kinds


def test_the_order_of_indexes_does_not_matter(sift: Path, orb: Path, photographs: Path) -> None:
    with polyvoc.open([sift, orb]) as one, polyvoc.open([orb, sift]) as other:
        for photo in (*queries(photographs), 3, STRIDE + 5):
            first, second = one.search(photo), other.search(photo)
            assert list(first) == list(second) and first
        assert list(one) == list(other)


def test_evidence_of_different_kinds_is_added(sift: Path, orb: Path, photographs: Path) -> None:
    with Index.open(sift) as one, Index.open(orb) as other, polyvoc.open([sift, orb]) as both:
        photo = photographs / "bridge-c.jpg"
        alone = [{hit.path: hit for hit in index.search(photo, top=100)} for index in (one, other)]
        found = both.search(photo, top=100)
        assert {hit.path for hit in found} == set(alone[0]) | set(alone[1])
        joint = [hit for hit in found if all(hit.path in hits for hits in alone)]
        assert joint
        for hit in joint:
            assert isinstance(hit, JointHit) and len(hit.parts) == 2 and all(part.counts for part in hit.parts)
            each = [hits[hit.path] for hits in alone]
            assert {part.probability for part in hit.parts} == {single.probability for single in each}
            total = PRIOR + sum(added(_logit(single), share, max(map(_logit, hits.values())))
                                for share, single, hits in zip(SHARES.values(), each, alone, strict=True))  # fmt: skip
            assert hit.probability == pytest.approx(logistic(total)) and hit.inliers == sum(single.inliers for single in each)
        chances = [hit.probability or 0 for hit in found]
        assert chances == sorted(chances, reverse=True)
        assert {Path(hit.path).name for hit in found.likely} == {f"bridge-{view}.jpg" for view in "abc"}
        assert found.to_dict()["hits"][0]["parts"][0]["kind"] in ("sift", "orb")


def test_more_evidence_of_one_kind_never_lowers_a_hit(sift: Path, orb: Path, photographs: Path) -> None:
    with polyvoc.open([sift, orb]) as both:
        for photo in queries(photographs):
            rows = [({part.kind: -1 if part.probability is None else part.probability for part in hit.parts}, hit.probability)
                    for hit in both.search(photo, top=100) if isinstance(hit, JointHit)]  # fmt: skip
            for lower, p in rows:
                for higher, q in rows:
                    if all(lower[kind] <= higher[kind] for kind in ("sift", "orb")):
                        assert p is not None and q is not None and p <= q


def test_a_photograph_that_one_index_alone_holds_keeps_its_probability(sift: Path, orb: Path, photographs: Path) -> None:
    with IndexWriter.open(orb) as writer:
        writer.remove([photographs / "bridge-b.jpg"])
    photo = photographs / "bridge-c.jpg"
    with Index.open(sift) as one, polyvoc.open([sift, orb]) as both:
        assert len(both) == 12
        (expected,) = [hit for hit in one.search(photo) if hit.path.endswith("bridge-b.jpg")]
        (found,) = [hit for hit in both.search(photo) if hit.path == expected.path]
        assert found.probability == expected.probability and found.score == expected.score
        assert isinstance(found, JointHit) and [part.kind for part in found.parts] == ["sift"]


def test_a_photograph_that_is_no_candidate_of_an_index_has_less_than_those_that_are(sift: Path, orb: Path,
                                                                                  photographs: Path) -> None:  # fmt: skip
    with Index.open(orb) as one, polyvoc.open([sift, orb]) as both:
        absent = Hits(one.search(photographs / "wall-a.jpg", top=100)[:3])
        assert both.indexes[1].folder.path == orb
        both.indexes[1].candidates = lambda *_, **__: absent  # type: ignore[method-assign]
        listed = {hit.image for hit in absent}
        hits = [hit for hit in both.search(photographs / "wall-a.jpg", top=100) if isinstance(hit, JointHit)]
        beyond = [part for hit in hits for part in hit.parts if part.kind == "orb" and part.probability is None]
        assert beyond and not {part.image for part in beyond} & listed
        for hit in hits:
            (own,) = [part for part in hit.parts if part.kind == "sift"]
            if any(part in beyond for part in hit.parts) and own.probability is not None:
                least = added(min(map(_logit, absent)), SHARES["orb"], max(map(_logit, absent)))
                sift_best = max(_logit(part) for hit in hits for part in hit.parts if part.kind == "sift" and part.probability)
                most = PRIOR + added(_logit(own), SHARES["sift"], sift_best) + least
                assert (hit.probability or 0) < logistic(most) + 1e-12


def added(evidence: float, share: float, best: float) -> float:
    """Return what one kind adds: evidence against a photograph only as far as the kind finds anything."""
    against = math.sqrt(logistic(best)) if best > PRIOR else 0.0
    return share * (evidence - PRIOR) * (1 if evidence > PRIOR else against)


def _logit(hit: Any) -> float:
    return logit(hit.probability)


def test_a_kind_that_finds_nothing_does_not_contradict_another(sift: Path, orb: Path, photographs: Path) -> None:
    """The hits that SIFT verified come before all others, in its order, whatever the least probable hits of ORB are."""
    photo = photographs / "bridge-c.jpg"
    with Index.open(sift) as one, polyvoc.open([sift, orb]) as both:
        expected = [hit.path for hit in one.search(photo).likely]
        blind = both.indexes[1].candidates(photo, both.indexes[1].options())
        unlikely = [replace(hit, probability=logistic(PRIOR - 0.01 * rank)) for rank, hit in enumerate(reversed(blind))]
        both.indexes[1].candidates = lambda *_, **__: Hits(unlikely)  # type: ignore[method-assign]
        found = both.search(photo)
        assert [hit.path for hit in found[: len(expected)]] == expected
        for hit, own in zip(found, one.search(photo), strict=False):
            if hit.path in expected:
                assert hit.probability == pytest.approx(logistic(PRIOR + SHARES["sift"] * (_logit(own) - PRIOR)))


def test_collections_kept_apart(make: Make, photographs: Path, sift: Path, tmp_path: Path) -> None:
    """Federated search: each photograph has the probability of its own collection."""
    parts = [make(name, *(photographs / f"{scene}-{view}.jpg" for scene in SCENES for view in views))
             for name, views in (("left", "ab"), ("right", "c"))]  # fmt: skip
    with polyvoc.open(parts) as both, Index.open(parts[0]) as left, Index.open(parts[1]) as right:
        assert len(both) == len(left) + len(right) == 12
        photo = draw_scene(0)
        expected = {hit.path: hit.probability for index in (left, right) for hit in index.search(photo, top=100)}
        found = both.search(photo, top=100)
        assert {hit.path: hit.probability for hit in found} == expected
        assert {Path(hit.path).name for hit in found[:3]} == {f"bridge-{view}.jpg" for view in "abc"}
        best = both.search(photo, min_probability=0.5)
        assert len(best) == sum((p or 0) >= 0.5 for p in expected.values())


# -- which images are the same photograph


def test_moved_photographs_are_known_by_their_content(make: Make, orb: Path, photographs: Path, tmp_path: Path) -> None:
    moved = Path(shutil.copytree(photographs, tmp_path / "moved"))
    with polyvoc.open([make("a", moved), orb]) as both:
        assert len(both) == 12
        hits = both.search(photographs / "market-c.jpg")
        assert all(len(hit.parts) == 2 for hit in hits if isinstance(hit, JointHit))
        held = both.held(hits[0].image)
        assert sorted(held) == sorted([str(tmp_path / "a"), str(orb)])


def test_changed_files_are_known_by_their_path(make: Make, orb: Path, photographs: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(photographs, tmp_path / "photographs"))
    path = make("a", folder)
    view_of(Image.open(photographs / "tower-b.jpg"), "c").save(folder / "tower-b.jpg")
    with polyvoc.open([path, make("b", folder)]) as both:
        assert len(both) == 12
        (hit,) = [hit for hit in both.search(photographs / "tower-a.jpg") if hit.path == str(folder / "tower-b.jpg")]
        assert isinstance(hit, JointHit) and len(hit.parts) == 2


def test_groups_of_images(tmp_path: Path) -> None:
    """Contents 1 to 3 at paths in three indexes: what is the same, whatever the order."""

    class Stub:
        def __init__(self, rows: dict[int, tuple[str, str | None]]) -> None:
            self.rows = rows
            live = np.array(sorted(rows), np.int64)
            part = type("Part", (), {"ids": live, "live": np.arange(len(live))})
            self.engine = type("Engine", (), {"images": staticmethod(lambda: [part])})
            names = [(image, *names) for image, names in rows.items()]
            catalogue = type("Catalogue", (), {"identities": staticmethod(lambda: iter(names))})
            self.folder = type("Folder", (), {"catalogue": catalogue, "path": tmp_path})

    def table(*rows: dict[int, tuple[str, str | None]]) -> Photographs:
        return Photographs.of([Stub(one) for one in rows])  # type: ignore[list-item]

    same = table({1: ("/a", "x"), 2: ("/b", "y")}, {7: ("/c", "x")}, {1: ("/b", "z"), 3: ("/d", None)})
    assert len(same) == 3
    assert same.at([1, STRIDE + 7]).tolist()[0] == same.at([STRIDE + 7])[0]
    assert same.at([2])[0] == same.at([2 * STRIDE + 1])[0] and same.at([99])[0] == -1
    copies = table({1: ("/a", "x"), 2: ("/b", "x")}, {1: ("/b", "x")}, {1: ("/z", "x")})
    assert len(copies) == 3
    (first, second, third) = (int(copies.at([image])[0]) for image in (1, 2, 2 * STRIDE + 1))
    assert copies.holders(first) == {0: [1], 1: [STRIDE + 1], 2: [2 * STRIDE + 1]}
    assert copies.holders(second) == {0: [2], 1: [STRIDE + 1], 2: [2 * STRIDE + 1]}
    assert copies.holders(third) == {0: [1, 2], 1: [STRIDE + 1], 2: [2 * STRIDE + 1]}
    others = table({1: ("/a", "features:1:x")}, {1: ("/b", "features:1:x")}, {1: ("/a", "x")})
    assert len(others) == 2 and others.holders(int(others.at([1])[0])) == {0: [1], 2: [2 * STRIDE + 1]}
    assert len(table({}, {})) == 0 and table({}, {}).at([1]).tolist() == [-1]
    with pytest.raises(OptionError, match="index again"):
        table({STRIDE: ("/a", "x")})


def test_images_by_id(sift: Path, orb: Path, photographs: Path) -> None:
    with polyvoc.open([sift, orb]) as both, Index.open(orb) as one:
        rows = list(both)
        assert len(rows) == len({row.image for row in rows}) == len(both)
        assert {row.path for row in rows} == {str(path) for path in photographs.iterdir()}
        assert both.image(rows[0].image) == rows[0]
        other = both.image(STRIDE + 4)
        assert other == replace(one.image(4), image=STRIDE + 4)
        for wrong in (0, 99, 2 * STRIDE, 7 * STRIDE + 1, -1):
            with pytest.raises(OptionError, match=r"is not in the index|in none of the indexes"):
                both.image(wrong)
        with pytest.raises(OptionError, match="not the id"):
            both.search(True)
        assert both.held(STRIDE + 4) == both.held(4) == {str(sift): 4, str(orb): 4}
        assert both.info()["photographs"] == 12 and [one["images"] for one in both.info()["indexes"]] == [12, 12]
        assert repr(both) == f"<polyvoc.Indexes of {sift}, {orb}: 12 photographs>"


def test_additions_and_removals_show_after_reopening(sift: Path, orb: Path, photographs: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    scene = draw_scene(99)
    scene.save(new / "new.jpg", quality=92)
    with polyvoc.open([sift, orb]) as both:
        assert both.reopened() is both
        before = both.search(scene)
        assert before.nothing_found
        for path in (sift, orb):
            with IndexWriter.open(path) as writer:
                writer.update([new])
        assert list(both.search(scene)) == list(before)
        after = both.reopened()
        assert len(after) == 13
        (hit,) = after.search(scene).likely
        assert hit.path == str(new / "new.jpg") and isinstance(hit, JointHit) and len(hit.parts) == 2
        with IndexWriter.open(sift) as writer:
            writer.remove([new])
        (hit,) = after.reopened().search(scene).likely
        assert isinstance(hit, JointHit) and [part.kind for part in hit.parts] == ["orb"]
        with IndexWriter.open(orb) as writer:
            writer.remove([new])
        assert after.reopened().search(scene).nothing_found and len(after.reopened()) == 12


# -- queries


def test_a_photograph_is_decoded_once_and_extracted_once_per_kind(sift: Path, orb: Path, photographs: Path, tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    calls: list[str] = []
    read, extract = polyvoc.search.query.read_grey, polyvoc.search.query.extract_pixels

    def counted_read(*arguments: Any, **named: Any) -> Any:
        calls.append("read")
        return read(*arguments, **named)

    def counted_extract(grey: Any, options: FeatureOptions, *arguments: Any, **named: Any) -> Any:
        calls.append(options.detector)
        return extract(grey, options, *arguments, **named)

    monkeypatch.setattr("polyvoc.search.query.read_grey", counted_read)
    monkeypatch.setattr("polyvoc.search.query.extract_pixels", counted_extract)
    copy = shutil.copytree(sift, tmp_path / "copy")
    with polyvoc.open([sift, orb, copy]) as three:
        hits = three.search(photographs / "tower-b.jpg")
    assert sorted(calls) == ["orb", "read", "sift"]
    assert set(hits.seconds) == {"decode", "sift", "orb", "score"} and min(hits.seconds.values()) > 0


def test_threads_do_not_matter(sift: Path, orb: Path, photographs: Path) -> None:
    with polyvoc.open([sift, orb]) as both:
        paths = sorted(photographs.iterdir())[:4]
        one, many = (both.search_many(paths, preset="best", threads=threads) for threads in (1, 4))
        assert [result.as_dict()["hits"] for result in one] == [result.as_dict()["hits"] for result in many]
        for path, result in zip(paths, one, strict=True):
            assert isinstance(result, SearchResult) and result.query == str(path)
            assert list(both.search(path, preset="best", threads=1)) == list(result.hits)
        failed, found = both.search_many(["nothing.jpg", 4])
        assert isinstance(failed, SearchFailure) and "nothing.jpg" in failed.error
        assert isinstance(found, SearchResult) and found.hits[0].image == 4


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_and_regions(sift: Path, orb: Path, photographs: Path, preset: Preset) -> None:
    with polyvoc.open([sift, orb]) as both:
        hits = both.search(photographs / "market-a.jpg", preset=preset, region=(40, 30, 300, 240))
        assert Path(hits[0].path).name.startswith("market-")
        if preset != "fast":
            assert hits.likely and hits[0].outline is not None
        with pytest.raises(OptionError, match="region"):
            both.search(photographs / "market-a.jpg", region=(0, 0, 0.5, 0.5))
        assert len(both.search(photographs / "market-a.jpg", preset=preset, top=2)) == 2


def test_a_kind_without_features_of_the_query_is_no_evidence(sift: Path, orb: Path) -> None:
    """ORB finds nothing near the border of a small picture; SIFT does."""
    small = draw_scene(0).crop((100, 100, 148, 148))
    with Index.open(orb) as alone, pytest.raises(ImageError, match="too plain"):
        alone.search(small)
    with Index.open(sift) as one, polyvoc.open([sift, orb]) as both:
        expected, found = one.search(small), both.search(small)
        assert [(hit.path, hit.probability) for hit in found] == [(hit.path, hit.probability) for hit in expected]
        assert len(both.explain(small, found[0]).parts) == 1
        with pytest.raises(ImageError, match="too plain"):
            both.search(Image.new("RGB", (200, 200), (90, 90, 90)))


def test_a_stored_image_that_one_index_lacks_is_read_from_its_file(sift: Path, orb: Path, photographs: Path) -> None:
    with IndexWriter.open(orb) as writer:
        writer.remove([photographs / "wall-b.jpg"])
    with polyvoc.open([sift, orb]) as both:
        (row,) = [row for row in both if row.path.endswith("wall-b.jpg")]
        hits = both.search(row.image)
        assert row.path in {hit.path for hit in hits.likely}
        assert any(part.kind == "orb" for hit in hits if isinstance(hit, JointHit) for part in hit.parts)
        explained = both.explain(row.image, hits[1])
        assert [part.kind for part in explained.parts] == ["sift", "orb"]


def test_what_does_not_fit_is_one_line(sift: Path, orb: Path, photographs: Path, index_path: Path, fine: Vocabulary,
                                       tmp_path: Path) -> None:  # fmt: skip
    photo = photographs / "wall-a.jpg"
    with pytest.raises(OptionError, match="at least one"):
        polyvoc.open([])
    with pytest.raises(NotAnIndexError, match="missing"):
        polyvoc.open([sift, tmp_path / "missing"])
    with polyvoc.open([sift, orb]) as both:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"fuse": True}, "fuse: its hits have no probability"),
            ({"smooth": 1.0}, "smooth: its hits have no probability"),
            ({"since": 0}, "each index counts its own commits"),
            ({"nonsense": 1}, "no such option"),
        ]
        for changes, message in wrong:
            with pytest.raises(OptionError, match=message) as found:
                both.search(photo, **changes)
            assert "\n" not in str(found.value)
        with pytest.raises(OptionError, match=r"orb\.polyvoc holds orb .*, not sift"):
            both.search(polyvoc.extract(photo))
    with IndexWriter.open(tmp_path / "names", VocabularySet((), fine)) as writer:
        writer.add("elsewhere", polyvoc.extract(photo))
    with polyvoc.open([orb, tmp_path / "names"]) as both:
        (row,) = [row for row in both if row.path == "elsewhere"]
        with pytest.raises(
            ImageError, match=r"is not in .*orb\.polyvoc, which needs its file; elsewhere: no such file"
        ) as error:
            both.search(row.image)
        assert "\n" not in str(error.value)


def test_an_index_without_probabilities_is_refused(sift: Path, orb: Path, photographs: Path,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.setattr("polyvoc.search.index.hit_probability_of", lambda kind, *_: None)
    with polyvoc.open([sift, orb]) as both, pytest.raises(OptionError, match=r"have no probability.*search it alone"):
        both.search(photographs / "wall-a.jpg")


# -- explanations


def test_explanations_have_a_part_for_each_kind(sift: Path, orb: Path, photographs: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(sift, tmp_path / "copy")
    photo = photographs / "tower-c.jpg"
    with polyvoc.open([sift, orb, copy]) as three, Index.open(orb) as alone:
        hit = three.search(photo)[0]
        assert isinstance(hit, JointHit) and [part.counts for part in hit.parts].count(True) == 2
        for which in (hit, hit.image):
            explained = three.explain(photo, which)
            assert sorted(part.kind for part in explained.parts) == ["orb", "sift"]
            (part,) = [part for part in explained.parts if part.kind == "orb"]
            expected = alone.explain(photo, hit.parts[-1].image)
            assert np.array_equal(part.explanation.query_xy, expected.query_xy) and part.index == str(orb)
        assert sum(int(part.explanation.inlier.sum()) for part in explained.parts) == hit.inliers
        picture = np.asarray(three.explain(photo, hit).draw(320))
        colours = {tuple(colour) for colour in picture.reshape(-1, 3).tolist()}
        assert set(KINDS[:2]) <= colours and not set(KINDS[2:]) & colours
        drawn = three.explain(hit.image, hit).draw(320, all_matches=True)
        assert drawn.size == picture.shape[1::-1]
        part_of = three.explain(photo, hit, region=(20, 20, 300, 220))
        assert all(part.explanation.region == (20, 20, 300, 220) for part in part_of.parts)


def test_explanations_of_features_have_no_picture(sift: Path, photographs: Path, tmp_path: Path) -> None:
    photo: Features = polyvoc.extract(photographs / "tower-c.jpg")
    with polyvoc.open([sift, shutil.copytree(sift, tmp_path / "copy")]) as both:
        explained = both.explain(photo, both.search(photo)[0])
        assert len(explained.parts) == 1
        with pytest.raises(OptionError, match="needs the pixels of the query"):
            explained.draw()


def test_photographs_of_indexes_made_elsewhere_are_not_read(
    sift: Path, orb: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with polyvoc.open([sift, orb]) as both:
        hits = both.search(photographs / "tower-c.jpg")
        assert hits.trust is not None and hits.trust.allows(hits[0].path) and not hits.trust.allows("/etc/passwd")
        assert "data:image/jpeg" in hits._repr_html_()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    with polyvoc.open([sift, orb]) as both:
        hits = both.search(photographs / "tower-c.jpg")
        assert hits and hits.trust is not None and not any(hits.trust.allows(hit.path) for hit in hits)
        with pytest.raises(NotAllowedError, match="polyvoc trust"):
            both.explain(photographs / "tower-c.jpg", hits[0]).draw()


# -- damage


def test_what_is_damaged_is_missing_and_no_evidence(make: Make, orb: Path, photographs: Path) -> None:
    path = make("a", photographs / "tower-a.jpg")
    with IndexWriter.open(path) as writer:
        writer.update([photographs])
    photo = photographs / "bridge-c.jpg"
    with polyvoc.open([path, orb]) as both:
        assert both.search(photo).complete and both.damage == ()
    (number,) = [int(folder.name) for folder in path.glob("segments/*") if folder.name != "000001"]
    arrays = path / f"segments/{number:06d}/arrays"
    arrays.write_bytes(bytes(reversed(arrays.read_bytes())))
    with polyvoc.open([path, orb]) as both, Index.open(path) as alone, Index.open(orb) as other:
        lost = {row.image for row in alone.images() if row.segment == number}
        hits, expected = both.search(photo, top=100), {hit.path: hit for hit in other.search(photo, top=100)}
        assert not hits.complete and any("--repair" in line for line in hits.damage)
        assert {image for first, last in hits.missing for image in range(first, last + 1)} == lost
        for hit in hits:
            if hit.path in expected and not hit.path.endswith("tower-a.jpg"):
                assert hit.probability == expected[hit.path].probability
        assert len(hits) == 12


def test_logits() -> None:
    assert logit(0.5) == 0 and logit(0.9) == pytest.approx(math.log(9)) and logit(0) == -logit(1)
    assert math.isfinite(logit(0)) and logit(1e-300) == logit(0)


def test_reopened_indexes_are_an_object_of_the_same_type(sift: Path) -> None:
    with Indexes.open([sift]) as one:
        with IndexWriter.open(sift) as writer:
            writer.save_settings({})
        again = one.reopened()
        assert again is not one and isinstance(again, Indexes) and len(again) == len(one)
