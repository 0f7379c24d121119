"""An index held by the machines of a cluster: rankings and scores of one machine, exactly; never wrong while one is down."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_accuracy import VARIABLE
from test_laws import RULES, grid_options

import polyvoc
from clusters import Nodes, cluster, eventually, held_by, process_of, quiet, ray, stored
from polyvoc.cluster.holder import spans
from polyvoc.cluster.shards import ReplicaSet
from polyvoc.errors import ClusterError, DamagedError, OptionError, UnusableIndexError
from polyvoc.index.folder import IndexFolder
from polyvoc.index.segment import Segment
from polyvoc.options import ClusterOptions, SearchOptions
from polyvoc.options import preset as presets_preset
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import image_words_at
from polyvoc.search.explain import explain
from polyvoc.search.hits import Hit, Hits
from polyvoc.search.info import index_distributions
from polyvoc.search.links import LinkGraph, find_links
from polyvoc.search.pipeline import search
from polyvoc.search.verify import Found
from polyvoc.storage.folders import list_photographs
from random_collections import World, random_evidence, random_world, with_assignments, with_long_signatures
from samples import build, collection, features, unflushed, vocabularies
from scenes import Picture, engine_of, joined, picture, scrambled, seen_again

__all__ = ["unflushed"]
pytestmark = quiet
SHARDS = (1, 2, 3, 7)
SETS = ("holidays150", "ukbench500")  # of photographs, where there are any


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster(2) as made:
        yield made


@pytest.fixture(scope="module")
def fleets(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, ReplicaSet]]:
    """Fleets of 1, 2, 3 and 7 shards; something stays open, so that they stay, too."""
    made = {count: ReplicaSet(ClusterOptions(nodes.address, shards=count, patience=60)) for count in SHARDS}
    home = stored(tmp_path_factory.mktemp("kept") / "index", Engine.from_words([np.zeros((1, 1), np.int32)], (1,)).segments)
    kept = [held_by(fleet, home) for fleet in made.values()]
    yield made
    del kept


def told(found: list[Found]) -> list[Any]:
    """Give hits as plain values, exactly."""
    rows = [(one.place, one.image, one.score, one.inliers, one.weight, one.transform) for one in found]
    return [(*row[:5], None if row[5] is None else row[5].tolist()) for row in rows]


# -- random worlds


def worlds(count: int) -> Iterator[tuple[int, World]]:
    for seed in range(count):
        world = random_world(seed)
        if seed % 5 == 1:
            world = with_assignments(world, seed, 2)
        elif seed % 5 == 3:
            world = with_long_signatures(world, seed)
        yield seed, world


def with_ties(world: World, segment_images: int) -> Engine:
    """Index every image of a world twice, so that ranks are shared; a few are deleted."""
    images, signatures = world.images * 2, world.image_signatures * 2
    whole = Engine.from_words(images, world.sizes, signatures, segment_images)
    deleted = [
        part.without([0]) if number % 3 == 1 and part.n_images > 1 else part for number, part in enumerate(whole.segments)
    ]
    return Engine(deleted, world.sizes)


@pytest.mark.parametrize("count", SHARDS)
def test_shards_equal_the_whole_on_random_worlds(count: int, fleets: dict[int, ReplicaSet], tmp_path: Path) -> None:
    for seed, world in worlds(20):
        local = with_ties(world, 1 + seed % 4)
        far = held_by(fleets[count], stored(tmp_path / str(seed), local.segments))
        assert far.shards.census == local.shards.census
        assert all(np.array_equal(getattr(far.statistics, name), getattr(local.statistics, name))
                   for name in ("n_images", "occurrences", "documents"))  # fmt: skip
        for number, merge in enumerate(RULES):
            bits = 128 if world.query_signatures.ndim > world.words.ndim else 64
            table = random_evidence(seed, len(world.sizes), bits) if merge == "likelihood" else None
            options = grid_options(31 * seed + number, merge=merge, top=5, evidence=table)
            query = local.query(world.words, world.query_signatures, options)
            same = far.query(world.words, world.query_signatures, options)
            assert np.array_equal(far.counts(same, options), local.counts(query, options))
            for one, other in zip(far.scores(same, options), local.scores(query, options), strict=True):
                assert one.dtype == other.dtype and np.array_equal(one, other)
            for depth in (1, 4, 100):
                assert far.best(same, options, depth=depth) == local.best(query, options, depth=depth)


# -- pictures: geometry, expansion, smoothing, explanations


def gallery(seed: int, bits: int) -> tuple[Picture, list[Picture]]:
    """Give a query and a collection in which some show it anew, some have its words, some are equal."""
    rng = np.random.default_rng([17, seed])
    query = picture(rng, 40, bits)
    images = [joined(seen_again(rng, query), picture(rng, 10, bits)) for _ in range(4)]
    images += [joined(scrambled(rng, query.chosen(slice(0, 20))), picture(rng, 10, bits)) for _ in range(6)]
    return query, [*images, images[4], images[0], *(picture(rng, 30, bits) for _ in range(8))]


def with_vectors(segments: list[Segment]) -> list[Segment]:
    """Give every image but the first of a segment a vector of a global embedding."""
    rng, made = np.random.default_rng(5), []
    for segment in segments:
        rows = rng.normal(size=(segment.n_images, 8))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        rows[0] = 0
        made.append(replace(segment, arrays={**segment.arrays, "embeddings": rows.astype(np.float16)}))
    return made


@pytest.mark.parametrize("count", SHARDS)
@pytest.mark.parametrize("bits", [0, 64, 128])
def test_searches_equal_those_of_one_machine(count: int, bits: int, fleets: dict[int, ReplicaSet], tmp_path: Path) -> None:
    query, images = gallery(bits, bits)
    segments = with_vectors(engine_of(images, 3).segments)
    graph = find_links(engine_of(images), presets_preset("fast", bits))
    local = Engine(segments, segments[0].sizes, neighbours=LinkGraph(graph))
    far = held_by(fleets[count], stored(tmp_path / "index", segments), LinkGraph(graph))
    for preset, top in ((p, top) for p in ("fast", "default", "best") for top in (1, 6, 50)):
        for change in ({}, {"verify": 2 if preset != "fast" else 0}, {"smooth": 0.5}):
            options = replace(presets_preset(preset, bits), top=top, **change)
            assert told(search(far, query.asked, options)) == told(search(local, query.asked, options))
    asked = replace(query.asked, vector=np.ones(8, np.float32) / np.float32(np.sqrt(8)))
    options = replace(presets_preset("default", bits), fuse=True)
    assert told(search(far, asked, options)) == told(search(local, asked, options))
    options = replace(presets_preset("best", bits), expansion="hamming")
    assert told(search(far, query.asked, options)) == told(search(local, query.asked, options))
    for place in ((0, 0), (2, 1)):
        hit = Hit(local.image_at(place), "", 0.0)
        one, other = (explain(engine, query.asked, options, place, hit) for engine in (far, local))
        assert repr(vars(one)) == repr(vars(other))
    assert [far.find(image) for image in range(21)] == [local.find(image) for image in range(21)]


# -- whole indexes


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("held") / "index"
    build(path, collection(60), vocabularies(), commits=7).close()
    return path


def plain(hits: Hits) -> list[Any]:
    return [asdict(hit) for hit in hits]


def test_it_has_the_face_of_the_local_index(nodes: Nodes, index: Path) -> None:
    with polyvoc.open(index) as local, polyvoc.open(index, ray=ClusterOptions(nodes.address, shards=2)) as far:
        assert len(far) == len(local) and far.commit == local.commit and far.default_options == local.default_options
        assert len(far.engine.shards.census) > 3
        for seed in range(6):
            hits = far.search(features(seed), top=7)
            assert plain(hits) == plain(local.search(features(seed), top=7)) and hits.complete and hits.missing == ()
        assert plain(far.search(5)) == plain(local.search(5))
        assert index_distributions(far) == index_distributions(local)
        options = SearchOptions()
        words = local.quantise(features(3), options)
        assert np.array_equal(far.score_words(*words, options), local.score_words(*words, options))
        assert repr(far.explain(features(2), 3)) == repr(local.explain(features(2), 3))
        with pytest.raises(OptionError, match="image 999 is not in the index"):
            far.image(999)
        with pytest.raises(OptionError, match="held by other machines"):
            _ = far.engine.segments


def test_several_questions_at_a_time_get_their_own_answers(nodes: Nodes, index: Path) -> None:
    with polyvoc.open(index) as local, polyvoc.open(index, ray=ClusterOptions(nodes.address, shards=3)) as far:
        expected = [plain(local.search(features(seed % 20))) for seed in range(60)]
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda seed: far.search(features(seed % 20)), range(60)))
        assert [plain(hits) for hits in answers] == expected


def test_a_new_commit_is_opened_beside_the_old_one(nodes: Nodes, tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, collection(20), vocabularies(), commits=3).close()
    old = polyvoc.open(path, ray=ClusterOptions(nodes.address, shards=2))
    before = plain(old.search(features(25)))
    assert old.reopened() is old
    build(path, collection(10, first=20)).close()
    new = old.reopened()
    with polyvoc.open(path) as local:
        assert len(new) == len(local) == 30
        assert plain(new.search(features(25))) == plain(local.search(features(25)))
    assert plain(old.search(features(25))) == before
    fleet = new._fleet
    assert fleet is not None and fleet is old._fleet
    del old
    assert new.search(features(25)).complete
    del new
    eventually(lambda: not fleet.shards)


def test_an_empty_index(nodes: Nodes, tmp_path: Path) -> None:
    with polyvoc.IndexWriter.open(tmp_path / "index", vocabularies()):
        pass
    far = polyvoc.open(tmp_path / "index", ray=ClusterOptions(nodes.address, shards=2))
    assert far.search(features(0)) == [] and len(far) == 0


# -- what goes wrong


def test_a_holder_killed_in_the_middle_of_200_questions(nodes: Nodes, index: Path) -> None:
    """Every answer is right, or says which images it lacks; afterwards all are right again."""
    with polyvoc.open(index) as local:
        expected = {seed: plain(local.search(features(seed))) for seed in range(20)}
        ids = {row.image for row in local.images()}
    far = polyvoc.open(index, ray=ClusterOptions(nodes.address, shards=2))
    assert far._fleet is not None
    victim = far._fleet.shards[0][0].actor
    first = process_of(victim)
    answers: dict[int, Hits] = {}
    reached = threading.Event()

    def ask(number: int) -> None:
        answers[number] = far.search(features(number % 20))
        if len(answers) == 60:
            reached.set()

    with ThreadPoolExecutor(4) as pool:
        asked = pool.map(ask, range(200))
        assert reached.wait(60)
        os.kill(first, signal.SIGKILL)
        list(asked)
    incomplete = {number: hits for number, hits in answers.items() if not hits.complete}
    assert len(answers) == 200 and incomplete
    held = far.engine.shards
    mine = {image for number in held._held[0] for first, last in held._spans[number] for image in range(first, last + 1)}  # type: ignore[attr-defined]
    assert mine < ids
    for number, hits in answers.items():
        if hits.complete:
            assert plain(hits) == expected[number % 20]
        else:
            lacking = {image for low, high in hits.missing for image in range(low, high + 1)}
            assert lacking == mine and not lacking & {hit.image for hit in hits}
    eventually(lambda: far.search(features(0)).complete)
    assert process_of(victim) != first
    assert all(plain(far.search(features(seed))) == expected[seed] for seed in range(20))


def test_a_replica_stands_in_for_one_that_dies(nodes: Nodes, index: Path) -> None:
    with polyvoc.open(index) as local:
        expected = {seed: plain(local.search(features(seed))) for seed in range(20)}
    far = polyvoc.open(index, ray=ClusterOptions(nodes.address, shards=2, replicas=2))
    assert far._fleet is not None
    for number in range(60):
        if number == 20:
            os.kill(process_of(far._fleet.shards[1][0].actor), signal.SIGKILL)
        hits = far.search(features(number % 20))
        assert hits.complete and plain(hits) == expected[number % 20]


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """Let a process hang for a while."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_replica_stands_in_for_one_that_hangs(nodes: Nodes, index: Path) -> None:
    """Nobody waits for it as long as a question may take; and it is asked again when it is back."""
    with polyvoc.open(index) as local:
        expected = plain(local.search(features(3)))
    far = polyvoc.open(index, ray=ClusterOptions(nodes.address, shards=1, replicas=2, patience=4))
    fleet = far._fleet
    assert fleet is not None
    hung, other = fleet.shards[0]
    with stopped(process_of(hung.actor)):
        for _ in range(4):
            hits = far.search(features(3))
            assert hits.complete and plain(hits) == expected
        assert hung.waking and not other.waking
    eventually(lambda: far.search(features(3)).complete and not hung.waking)


def test_a_slow_holder_is_back_at_once_even_after_a_commit(nodes: Nodes, tmp_path: Path) -> None:
    """What it holds need not be there any more: a later commit has other norms, and merges segments away."""
    path = tmp_path / "index"
    build(path, collection(20), vocabularies(), commits=3).close()
    far = polyvoc.open(path, ray=ClusterOptions(nodes.address, shards=2, patience=0.5))
    before = plain(far.search(features(4), options=replace(far.default_options, whole=True)))
    build(path, collection(10, first=20), commits=6).close()
    assert far._fleet is not None
    with stopped(process_of(far._fleet.shards[0][0].actor)):
        assert not far.search(features(4)).complete
    eventually(lambda: far.search(features(4)).complete)
    assert plain(far.search(features(4))) == before


def test_a_restarted_holder_does_without_the_norms_of_an_old_commit(nodes: Nodes, tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, collection(20), vocabularies(), commits=3).close()
    far = polyvoc.open(path, ray=ClusterOptions(nodes.address, shards=2))
    before = plain(far.search(features(4)))
    build(path, collection(1, first=20)).close()
    assert far._fleet is not None
    os.kill(process_of(far._fleet.shards[0][0].actor), signal.SIGKILL)
    eventually(lambda: far.search(features(4)).complete)
    assert plain(far.search(features(4))) == before


def test_a_hit_that_is_lost_before_it_speaks_is_left_out(fleets: dict[int, ReplicaSet], tmp_path: Path) -> None:
    """A verified hit should ask along, and its holder does not answer any more: the others do."""
    query, images = gallery(0, 64)
    segments = engine_of(images, 3).segments
    far = held_by(fleets[2], stored(tmp_path / "index", segments)).attempt()
    shards = far.shards
    ask = shards.at

    def lose(operation: Any, own: Any, *shared: Any, threads: int | None = None) -> list[Any]:
        found = ask(operation, own, *shared, threads=threads)
        return [None, *found[1:]] if operation is image_words_at else found

    shards.at = lose  # type: ignore[method-assign]
    found = search(far, query.asked, replace(presets_preset("best", 64), top=9))
    assert found and found[0].trusted


def test_replicas_take_turns_and_forget_what_is_released(nodes: Nodes, index: Path) -> None:
    far = polyvoc.open(index, ray=ClusterOptions(nodes.address, shards=2, replicas=2))
    fleet = far._fleet
    assert fleet is not None
    actors = [replica.actor for replicas in fleet.shards for replica in replicas]
    generation = far.engine.shards._generation  # type: ignore[attr-defined]
    eventually(lambda: all(len(fleet.ready(generation, shard)) == 2 for shard in (0, 1)))
    assert len({fleet.ready(generation, shard)[0] for shard in (0, 0, 1, 1)}) == 4

    def held() -> list[list[int]]:
        return [ray.get(actor.__ray_call__.remote(lambda self: sorted(self._held))) for actor in actors]

    for _ in range(3):
        polyvoc.Index._read(far.home.again(), fleet).close()
    eventually(lambda: held() == [[generation.number]] * 4)
    asked = far.asked(features(1), far.default_options)
    far.close()
    eventually(lambda: not fleet.shards)
    with pytest.raises(UnusableIndexError, match="the index was closed; open it again"):
        far.find(asked, SearchOptions())


def test_whoever_wants_the_whole_waits_for_it_or_fails(nodes: Nodes, index: Path) -> None:
    with polyvoc.open(index) as local:
        expected = plain(local.search(features(4)))
    far = polyvoc.open(index, ray=ClusterOptions(nodes.address, shards=2, patience=60))
    assert far._fleet is not None
    options = replace(far.default_options, whole=True)
    actor = far._fleet.shards[0][0].actor
    os.kill(process_of(actor), signal.SIGKILL)
    assert plain(far.search(features(4), options=options)) == expected  # it waits until the shard answers again
    ray.kill(actor)  # for good
    eventually(lambda: not far.search(features(4)).complete)
    far._fleet.options = replace(far._fleet.options, patience=0.2)
    with pytest.raises(ClusterError, match=r"1 of 2 shards did not answer within 0\.2 s"):
        far.search(features(4), options=options)
    lost = far.search(features(4)).missing[0][0]
    with pytest.raises(ClusterError, match=f"image {lost} is not on the machines that answer"):
        far.image(lost)


def test_segments_that_are_gone_are_one_line(nodes: Nodes, tmp_path: Path) -> None:
    path = tmp_path / "index"
    build(path, collection(9), vocabularies()).close()
    array = next(IndexFolder(path).path.rglob("postings.npy"))
    array.unlink()
    with pytest.raises(DamagedError, match=r"postings.npy is missing; run 'polyvoc check'"):
        polyvoc.open(path, ray=ClusterOptions(nodes.address, shards=2))


def test_spans_are_ranges_of_live_ids() -> None:
    segment = Engine.from_words([np.zeros((1, 1), np.int32)] * 9, (1,)).segments[0]
    assert spans(segment).tolist() == [[0, 8]]
    assert spans(segment.without([0, 4, 5, 8])).tolist() == [[1, 3], [6, 7]]
    assert spans(segment.without(range(9))).tolist() == []


def test_a_node_is_removed_and_another_added(nodes: Nodes, index: Path) -> None:
    """What the node held answers again, wherever Ray finds room, and no answer in between is wrong."""
    with polyvoc.open(index) as local:
        expected = {seed: plain(local.search(features(seed))) for seed in range(20)}
    far = polyvoc.open(index, ray=ClusterOptions(nodes.address, shards=3))
    seen = set()

    def ask(number: int) -> bool:
        hits = far.search(features(number % 20))
        assert not hits.complete or plain(hits) == expected[number % 20]
        seen.add(hits.complete)
        return hits.complete

    assert all(ask(number) for number in range(20))
    nodes.remove(nodes.others[0])
    eventually(lambda: not ask(0))
    nodes.add()
    eventually(lambda: all(ask(number) for number in range(20)))
    assert seen == {True, False}


# -- photographs


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no photographs")
def test_shards_equal_the_whole_on_photographs(nodes: Nodes, tmp_path: Path) -> None:
    """Every preset and rule, by photographs of the collection and by files, over 1, 2, 3 and 7 shards of 7 segments."""
    files = [Path(path) for path, _ in list_photographs([Path(os.environ[VARIABLE]) / name for name in SETS])]
    with polyvoc.IndexWriter.open(tmp_path / "index") as writer:
        for part in range(7):
            writer.update(files[part::7], keep_missing=True)
    local = polyvoc.open(tmp_path / "index")
    assert len(local.engine.segments) == 7
    rules = [replace(local.preset("fast"), merge=merge, burstiness="none", hamming=52) for merge in RULES]
    options = [replace(one, top=50) for one in (*map(local.preset, ("fast", "default", "best")), *rules)]
    images = [row.image for row in local.images()][::40]
    asked = {number: [local.asked(image, one) for image in images] for number, one in enumerate(options)}
    expected = {number: [plain(local.find(query, options[number])) for query in queries] for number, queries in asked.items()}
    by_file = plain(local.search(files[100], top=50))
    for count in SHARDS:
        far = polyvoc.open(tmp_path / "index", ray=ClusterOptions(nodes.address, shards=count, patience=120))
        assert far.engine.shards.census == local.engine.shards.census
        for number, queries in asked.items():
            assert [plain(far.find(query, options[number])) for query in queries] == expected[number]
        assert plain(far.search(files[100], top=50)) == by_file
        del far
