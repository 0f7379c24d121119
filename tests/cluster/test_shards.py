"""An index on a cluster returns the hits and scores of the local index exactly, and reports what is missing."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyvoc
from clusters import (
    PATIENCE,
    Nodes,
    actor_of,
    impatient,
    load_engine,
    process_of,
    quiet,
    ray,
    shards_of,
    store_segments,
    wait_until,
)
from coded_scenes import (
    CodedPicture,
    coded_again,
    coded_engine,
    coded_joined,
    coded_picture,
    coded_scrambled,
    coder_of,
)
from polyvoc.cluster.shards import ReplicaSet, assign_replicas, assign_segments, open_index
from polyvoc.errors import ClusterError, DamagedError, OptionError, UnusableIndexError
from polyvoc.index.folder import IndexFolder
from polyvoc.index.segment import Segment
from polyvoc.options import SearchOptions, TrainOptions, preset
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import image_features_at
from polyvoc.search.explain import explain
from polyvoc.search.hits import Hit, Hits
from polyvoc.search.info import index_distributions
from polyvoc.search.links import LinkGraph, find_links
from polyvoc.search.pairs import StoredQueries
from polyvoc.search.pipeline import search
from polyvoc.search.query import Query
from polyvoc.search.verify import is_reliable
from polyvoc.storage.folders import list_photographs
from polyvoc.vocabulary.train import train
from random_collections import RULES, World, grid_options, random_evidence, random_world, with_assignments, with_long_signatures
from samples import VARIABLE, build, collection, features, quantised, unflushed, vocabularies
from scenes import Picture, engine_of, joined, picture, scrambled, seen_again

__all__ = ["unflushed"]
pytestmark = quiet
SHARDS = (1, 2, 3, 7)
SETS = ("holidays150", "ukbench500")  # of photographs, below the folder that VARIABLE names


@pytest.fixture(scope="module")
def replica_sets(nodes: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[int, ReplicaSet]]:
    """Replica sets of 1, 2, 3 and 7 shards; one snapshot stays open, so that their actors live on."""
    sets = {count: ReplicaSet(nodes.options(count)) for count in SHARDS}
    segments = Engine.from_words([np.zeros((1, 1), np.int32)], (1,)).segments
    folder = store_segments(tmp_path_factory.mktemp("kept") / "index", segments)
    kept = [load_engine(replicas, folder) for replicas in sets.values()]
    yield sets
    del kept


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "index"
    build(path, collection(60), vocabularies(), commits=7).close()
    return path


@pytest.fixture(scope="module")
def expected(index: Path) -> list[list[Any]]:
    """The hits of the local index for 20 queries."""
    with polyvoc.open(index) as local:
        return [plain(local.search(features(seed))) for seed in range(20)]


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """An index that a test may change."""
    build(tmp_path / "index", collection(20), vocabularies(), commits=3).close()
    return tmp_path / "index"


def plain(hits: Hits) -> list[Any]:
    return [asdict(hit) for hit in hits]


def values(candidates: Any) -> list[Any]:
    """Return the fields of candidates, exactly."""
    return [[np.asarray(getattr(one, field.name)).tolist() for field in fields(one)] for one in candidates]


# -- the same as on one machine


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
    every = Engine.from_words(world.images * 2, world.sizes, world.image_signatures * 2, segment_images).segments
    deleted = [part.without([0]) if number % 3 == 1 and part.n_images > 1 else part for number, part in enumerate(every)]
    return Engine(deleted, world.sizes)


@pytest.mark.parametrize("count", SHARDS)
def test_scores_of_random_collections(count: int, replica_sets: dict[int, ReplicaSet], tmp_path: Path) -> None:
    for seed, world in worlds(20):
        local = with_ties(world, 1 + seed % 4)
        remote = load_engine(replica_sets[count], store_segments(tmp_path / str(seed), local.segments))
        assert remote.shards.infos == local.shards.infos
        assert all(np.array_equal(getattr(remote.statistics, name), getattr(local.statistics, name))
                   for name in ("n_images", "occurrences", "documents"))  # fmt: skip
        for number, merge in enumerate(RULES):
            bits = 128 if world.query_signatures.ndim > world.words.ndim else 64
            table = random_evidence(seed, len(world.sizes), bits) if merge == "likelihood" else None
            options = grid_options(31 * seed + number, merge=merge, top=5, likelihood_table=table)
            plan = local.plan(options)
            query = local.query(world.words, world.query_signatures, plan)
            same = remote.query(world.words, world.query_signatures, remote.plan(options))
            assert np.array_equal(remote.counts(same, plan), local.counts(query, plan))
            for one, other in zip(remote.scores(same, plan), local.scores(query, plan), strict=True):
                assert one.dtype == other.dtype and np.array_equal(one, other)
            for depth in (1, 4, 100):
                assert values(remote.best(same, plan, depth)[0]) == values(local.best(query, plan, depth)[0])


def gallery(seed: int, bits: int) -> tuple[Picture, list[Picture]]:
    """Return a query and a collection: some show it again, some have its words elsewhere, some are equal."""
    rng = np.random.default_rng([17, seed])
    query = picture(rng, 40, bits)
    images = [joined(seen_again(rng, query), picture(rng, 10, bits)) for _ in range(4)]
    images += [joined(scrambled(rng, query.chosen(slice(0, 20))), picture(rng, 10, bits)) for _ in range(6)]
    return query, [*images, images[4], images[0], *(picture(rng, 30, bits) for _ in range(8))]


def with_vectors(segments: list[Segment]) -> list[Segment]:
    """Add a vector of a global embedding to every image but the first of a segment."""
    rng, result = np.random.default_rng(5), []
    for segment in segments:
        rows = rng.normal(size=(segment.n_images, 8))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        rows[0] = 0
        result.append(replace(segment, arrays={**segment.arrays, "embeddings": rows.astype(np.float16)}))
    return result


@pytest.mark.parametrize("count", SHARDS)
@pytest.mark.parametrize("bits", [0, 64, 128])
def test_searches_with_all_stages(count: int, bits: int, replica_sets: dict[int, ReplicaSet], tmp_path: Path) -> None:
    picture, images = gallery(bits, bits)
    segments = with_vectors(engine_of(images, 3).segments)
    links = find_links(StoredQueries(engine_of(images), preset("fast", bits)))
    local = Engine(segments, segments[0].sizes)
    remote = load_engine(replica_sets[count], store_segments(tmp_path / "index", segments))
    query = replace(picture.query, vector=np.ones(8, np.float32) / np.float32(np.sqrt(8)))
    searches = [replace(preset("default", bits), fuse=True)]
    for name, top in ((name, top) for name in ("fast", "default", "best") for top in (1, 6, 50)):
        for change in ({}, {"verify": 2 if name != "fast" else 0}, {"smooth": 0.5}):
            searches.append(replace(preset(name, bits), top=top, **change))
    for options in searches:
        one, other = (search(engine, query, options, links=LinkGraph(links)) for engine in (remote, local))
        assert values(one) == values(other)
    for segment, position in ((0, 0), (2, 1)):
        hit = Hit(3 * segment + position, "", 0.0)
        one, other = (explain(engine, query, searches[-1], (segment, position), hit) for engine in (remote, local))
        assert repr(vars(one)) == repr(vars(other))
    assert [remote.find(image) for image in range(21)] == [local.find(image) for image in range(21)]


def coded_gallery(seed: int) -> tuple[CodedPicture, list[CodedPicture]]:
    """Return a gallery whose features have codes."""
    rng = np.random.default_rng([18, seed])
    query = coded_picture(rng, 40)
    images = [coded_joined(coded_again(rng, query), coded_picture(rng, 10)) for _ in range(4)]
    images += [coded_joined(coded_scrambled(rng, query.chosen(slice(0, 20))), coded_picture(rng, 10)) for _ in range(6)]
    return query, [*images, images[4], images[0], *(coded_picture(rng, 30) for _ in range(8))]


@pytest.mark.parametrize("count", SHARDS)
@pytest.mark.parametrize("bits", [64, 128])
def test_searches_by_codes_with_all_stages(count: int, bits: int, replica_sets: dict[int, ReplicaSet], tmp_path: Path) -> None:
    shown, images = coded_gallery(bits)
    coder, fast = coder_of(bits), preset("fast", 0, bits)
    every = coded_engine(images, 3, bits).segments
    segments = with_vectors([part.without([1]) if number == 2 else part for number, part in enumerate(every)])
    local = Engine(segments, segments[0].sizes)
    remote = load_engine(replica_sets[count], store_segments(tmp_path / "index", segments))
    assert remote.shards.infos == local.shards.infos and remote.code_bits == local.code_bits == bits
    assert np.array_equal(remote.statistics.code_occurrences, local.statistics.code_occurrences)
    links = [find_links(StoredQueries(engine, fast, coder)) for engine in (remote, local)]
    assert np.array_equal(*links) and len(links[0]) > 0
    vector = np.ones(8, np.float32) / np.float32(np.sqrt(8))
    query = Query(shown.coded(bits=bits), shown.shown.words, None, shown.keypoints, vector)
    searches = [replace(preset("default", 0, bits), fuse=True), preset("paper", 0, bits)]
    for name, top in ((name, top) for name in ("fast", "default", "best") for top in (1, 6, 50)):
        for change in ({}, {"verify": 2 if name != "fast" else 0}, {"smooth": 0.5}):
            searches.append(replace(preset(name, 0, bits), top=top, **change))
    for options in searches:
        one, other = (search(engine, query, options, links=LinkGraph(links[0]), coder=coder) for engine in (remote, local))
        assert values(one) == values(other) != []
    for segment, position in ((0, 0), (3, 1)):
        hit = Hit(3 * segment + position, "", 0.0)
        one, other = (explain(engine, query, searches[-1], (segment, position), hit) for engine in (remote, local))
        assert repr(vars(one)) == repr(vars(other))


@pytest.fixture(scope="module")
def coded_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, images = tmp_path_factory.mktemp("coded") / "index", collection(60)
    descriptors = np.concatenate([image.descriptors for image in images.values()])
    build(path, images, [train(descriptors, TrainOptions(size=30, rounds=3, bits=12))], commits=7).close()
    return path


@pytest.mark.parametrize("fixture", ["index", "coded_index"])
def test_the_methods_of_an_index(nodes: Nodes, fixture: str, request: pytest.FixtureRequest) -> None:
    index = request.getfixturevalue(fixture)
    with polyvoc.open(index) as local, open_index(index, None, nodes.options(2)) as remote:
        assert (local.folder.code_bits > 0, local.default_options.merge == "codes") == (fixture == "coded_index",) * 2
        assert (len(remote), remote.commit, remote.default_options) == (len(local), local.commit, local.default_options)
        assert len(remote.engine.shards.infos) > 3
        for seed in range(6):
            hits = remote.search(features(seed), top=7)
            assert plain(hits) == plain(local.search(features(seed), top=7)) and hits.complete and hits.missing == ()
        assert plain(remote.search(5)) == plain(local.search(5))
        assert index_distributions(remote) == index_distributions(local)
        assert repr(remote.pairs(top=5).tolist()) == repr(local.pairs(top=5).tolist())  # with nan
        words = quantised(local, features(3), SearchOptions(merge="posterior"))
        assert np.array_equal(remote.score_words(*words), local.score_words(*words))
        assert repr(remote.explain(features(2), 3)) == repr(local.explain(features(2), 3))
        with pytest.raises(OptionError, match="image 999 is not in the index"):
            remote.image(999)
        with pytest.raises(OptionError, match="open it without ray"):
            _ = remote.engine.segments


def test_searches_at_the_same_time(nodes: Nodes, index: Path, expected: list[list[Any]]) -> None:
    with open_index(index, None, nodes.options(3)) as remote, ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda seed: remote.search(features(seed % 20)), range(60)))
    assert [plain(hits) for hits in results] == expected * 3


def test_a_new_commit_is_opened_beside_the_old_one(nodes: Nodes, small: Path) -> None:
    old = open_index(small, None, nodes.options(2))
    before = plain(old.search(features(25)))
    assert old.reopened() is old
    build(small, collection(10, first=20)).close()
    new = old.reopened()
    with polyvoc.open(small) as local:
        assert len(new) == len(local) == 30
        assert plain(new.search(features(25))) == plain(local.search(features(25)))
    assert plain(old.search(features(25))) == before
    replicas = shards_of(new).replicas
    assert replicas is shards_of(old).replicas
    del old
    assert new.search(features(25)).complete
    del new
    wait_until(lambda: not replicas.shards)


def test_an_empty_index(nodes: Nodes, tmp_path: Path) -> None:
    with polyvoc.IndexWriter.open(tmp_path / "index", vocabularies()):
        pass
    remote = open_index(tmp_path / "index", None, nodes.options(2))
    assert remote.search(features(0)) == [] and len(remote) == 0


def test_replicas_take_turns_and_drop_what_is_released(nodes: Nodes, index: Path) -> None:
    remote = open_index(index, None, nodes.options(2, replicas=2))
    replicas, snapshot = shards_of(remote).replicas, shards_of(remote).snapshot
    actors = [actor_of(remote, shard, replica) for shard in (0, 1) for replica in (0, 1)]
    wait_until(lambda: all(len(replicas.available(snapshot, shard)) == 2 for shard in (0, 1)))
    assert len({replicas.available(snapshot, shard)[0] for shard in (0, 0, 1, 1)}) == 4
    for _ in range(3):
        load_engine(replicas, IndexFolder(index)).shards.close()
    loaded = [[snapshot.number]] * 4
    wait_until(lambda: [ray.get(actor.__ray_call__.remote(lambda self: sorted(self._snapshots))) for actor in actors] == loaded)
    assert remote.search(features(1)).complete
    remote.close()
    wait_until(lambda: not replicas.shards)
    with pytest.raises(UnusableIndexError, match="open it again"):
        remote.search(features(1))


# -- failures


def test_an_actor_killed_during_200_searches(nodes: Nodes, index: Path, expected: list[list[Any]]) -> None:
    """Every result is right, or lists the missing images; afterwards all are right again."""
    remote = open_index(index, None, nodes.options(2))
    shards = shards_of(remote)
    lost = {image for number in shards.numbers[0] for first, last in shards.spans[number] for image in range(first, last + 1)}
    assert 0 < len(lost) < len(remote)
    first = process_of(actor_of(remote, 0))
    results: dict[int, Hits] = {}
    reached, killed = threading.Event(), threading.Event()

    def run(number: int) -> None:
        assert number < 100 or killed.wait(PATIENCE)  # a search that starts after the kill finds the actor gone, or empty
        results[number] = remote.search(features(number % 20))
        if len(results) == 60:
            reached.set()

    with ThreadPoolExecutor(4) as pool:
        running = pool.map(run, range(200))
        assert reached.wait(PATIENCE)
        os.kill(first, signal.SIGKILL)
        killed.set()
        list(running)
    assert len(results) == 200 and not all(hits.complete for hits in results.values())
    for number, hits in results.items():
        if hits.complete:
            assert plain(hits) == expected[number % 20]
        else:
            assert {image for low, high in hits.missing for image in range(low, high + 1)} == lost
            assert not lost & {hit.image for hit in hits}
    wait_until(lambda: remote.search(features(0)).complete)
    assert process_of(actor_of(remote, 0)) != first
    assert [plain(remote.search(features(seed))) for seed in range(20)] == expected


def test_a_replica_replaces_one_that_dies(nodes: Nodes, index: Path, expected: list[list[Any]]) -> None:
    remote = open_index(index, None, nodes.options(2, replicas=2))
    for number in range(60):
        if number == 20:
            os.kill(process_of(actor_of(remote, 1)), signal.SIGKILL)
        hits = remote.search(features(number % 20))
        assert hits.complete and plain(hits) == expected[number % 20]


@contextmanager
def stopped(actor: Any) -> Iterator[None]:
    """Stop the process of an actor for a while."""
    process = process_of(actor)
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def test_a_replica_replaces_one_that_hangs(
    nodes: Nodes, index: Path, expected: list[list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search does not wait for it until the timeout; it is called again when it responds."""
    monkeypatch.setattr("polyvoc.cluster.shards._HEDGE", 1 / PATIENCE)
    remote = open_index(index, None, nodes.options(1, replicas=2))
    hung, other = shards_of(remote).replicas.shards[0]
    with stopped(hung.actor):
        for _ in range(4):
            hits = remote.search(features(3))
            assert hits.complete and plain(hits) == expected[3]
        assert hung.loading and not other.loading
    wait_until(lambda: remote.search(features(3)).complete and not hung.loading)


def test_a_slow_actor_responds_again_after_a_commit(nodes: Nodes, small: Path) -> None:
    """Its files need not exist any more: the later commit has other norms, and merges segments."""
    remote = open_index(small, None, nodes.options(2))
    before = plain(remote.search(features(4), require_all=True))
    build(small, collection(10, first=20), commits=6).close()
    with stopped(actor_of(remote, 0)), impatient(remote):
        assert not remote.search(features(4)).complete
    wait_until(lambda: remote.search(features(4)).complete)
    assert plain(remote.search(features(4))) == before


def test_a_restarted_actor_does_not_need_the_norms_of_an_old_commit(nodes: Nodes, small: Path) -> None:
    remote = open_index(small, None, nodes.options(2))
    before = plain(remote.search(features(4)))
    build(small, collection(1, first=20)).close()
    os.kill(process_of(actor_of(remote, 0)), signal.SIGKILL)
    wait_until(lambda: remote.search(features(4)).complete)
    assert plain(remote.search(features(4))) == before


def test_a_hit_that_is_lost_is_left_out_of_the_expansion(replica_sets: dict[int, ReplicaSet], tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    query = picture(rng, 40)
    images = [joined(seen_again(rng, query.chosen(slice(0, 24))), picture(rng, 20)) for _ in range(3)]
    segments = engine_of([*images, *(picture(rng, 30) for _ in range(6))], 3).segments
    remote = load_engine(replica_sets[2], store_segments(tmp_path / "index", segments)).session()
    call, lost = remote.shards.at, []

    def lose(operation: Any, own: Any, *shared: Any, threads: int | None = None) -> list[Any]:
        results = call(operation, own, *shared, threads=threads)
        if operation is image_features_at and results:
            lost.append(own[0])
            results[0] = None
        return results

    remote.shards.at = lose  # type: ignore[method-assign]
    candidates = search(remote, query.query, replace(preset("best", 64), top=9))
    assert lost and is_reliable(candidates[0])


def test_require_all_waits_or_fails(nodes: Nodes, index: Path, expected: list[list[Any]]) -> None:
    remote = open_index(index, None, nodes.options(2))
    actor = actor_of(remote, 0)
    os.kill(process_of(actor), signal.SIGKILL)
    assert plain(remote.search(features(4), require_all=True)) == expected[4]  # after the restart of the actor
    ray.kill(actor)  # without a restart
    wait_until(lambda: not remote.search(features(4)).complete)
    lost = remote.search(features(4)).missing[0][0]
    with pytest.raises(ClusterError, match=f"image {lost} "):
        remote.image(lost)
    with impatient(remote), pytest.raises(ClusterError, match=r"[12] of 2 shards .* within 0\.5 s"):
        remote.search(features(4), require_all=True)


def damaged_segment(path: Path, number: int) -> None:
    """Change the last bytes of a segment: they are first read by a search, not when it is opened."""
    file = sorted(path.rglob("segments/*/arrays"))[number]
    content = bytearray(file.read_bytes())
    for at in range(len(content) // 2, len(content)):
        content[at] ^= 0xFF
    file.write_bytes(content)


@pytest.mark.parametrize("unlinked", [True, False])
def test_damaged_segments_are_left_out_as_on_one_machine(nodes: Nodes, small: Path, unlinked: bool) -> None:
    if unlinked:
        sorted(small.rglob("segments/*/arrays"))[1].unlink()
    else:
        damaged_segment(small, 1)
    with polyvoc.open(small) as local, open_index(small, None, nodes.options(2)) as remote:
        for seed in range(5):
            hits, others = local.search(features(seed)), remote.search(features(seed))
            assert plain(hits) == plain(others) and hits.missing == others.missing and others.missing
            assert len(others.damage) == 1 and "polyvoc check --repair" in others.damage[0]
        with pytest.raises(DamagedError, match="run 'polyvoc check --repair'"):
            remote.search(features(0), require_all=True)


def test_a_node_is_removed_and_another_added(nodes: Nodes, index: Path, expected: list[list[Any]]) -> None:
    """Ray restarts the actors of the node elsewhere; no result in between is wrong."""
    remote = open_index(index, None, nodes.options(3))

    def run(number: int) -> bool:
        hits = remote.search(features(number))
        assert not hits.complete or plain(hits) == expected[number]
        return hits.complete

    def processes() -> set[int]:
        with suppress(ray.exceptions.RayError):
            return {process_of(actor_of(remote, shard)) for shard in range(3)}
        return set()  # an actor is not there

    assert all(run(number) for number in range(20))
    before = processes()
    nodes.remove(nodes.others[0])
    wait_until(lambda: run(0) and len(processes() - before) > 0)
    nodes.add()
    wait_until(lambda: all(run(number) for number in range(20)))


# -- placement


@given(st.dictionaries(st.integers(1, 99), st.integers(0, 1000), max_size=30), st.integers(1, 8))
def test_every_segment_is_in_one_shard_and_loads_are_even(sizes: dict[int, int], count: int) -> None:
    shards = assign_segments(sizes, count)
    assert len(shards) == count and sorted(chain.from_iterable(shards)) == sorted(sizes)
    assert all(shard == sorted(shard) for shard in shards)
    loads = [sum(sizes[segment] for segment in shard) for shard in shards]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)  # largest first: no worse than one segment


def test_segments_stay_in_their_shards() -> None:
    assert assign_segments({1: 5, 2: 5, 3: 9, 7: 1}, 2, kept={1: 1, 2: 1, 9: 0, 8: 5}) == [[3, 7], [1, 2]]


def test_replicas_are_on_different_machines_by_their_number_of_cores() -> None:
    placed = assign_replicas([100, 50, 50], {"a": 1.0, "b": 1.0, "c": 1.0}, 2)
    assert all(len(set(machines)) == 2 for machines in placed)
    assert assign_replicas([1], {"a": 1.0}, 2) == [["a", "a"]]  # there is no other
    placed = assign_replicas([10] * 8, {"large": 3.0, "small": 1.0}, 1)
    assert [machines[0] for machines in placed].count("large") == 6


# -- photographs


@pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no photographs")
def test_photographs(nodes: Nodes, tmp_path: Path) -> None:
    """Every preset and rule, by ids and by a file, over 1, 2, 3 and 7 shards of 7 segments."""
    files = [Path(path) for path, _ in list_photographs([Path(os.environ[VARIABLE]) / name for name in SETS])][::6]
    with polyvoc.IndexWriter.open(tmp_path / "index") as writer:
        for part in range(7):
            writer.update(files[part::7], keep_missing=True)
    local = polyvoc.open(tmp_path / "index")
    assert len(local.engine.segments) == 7
    rules = [replace(local.preset("paper"), merge=merge) for merge in ("b0", "b1", "b2", "bayes", "posterior")]
    options = [replace(one, top=50) for one in (*map(local.preset, ("fast", "default", "best")), *rules)]
    images = [row.image for row in local.images()][::40]
    queries = [(query, one) for one in options for query in images] + [(files[100], options[1])]
    results = [plain(local.search(query, options=one)) for query, one in queries]
    for count in SHARDS:
        remote = open_index(tmp_path / "index", None, nodes.options(count))
        assert remote.engine.shards.infos == local.engine.shards.infos
        assert [plain(remote.search(query, options=one)) for query, one in queries] == results
        del remote
