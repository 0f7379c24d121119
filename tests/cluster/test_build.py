"""An index built on a cluster equals one that is built on one machine, also if processes and machines fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clusters import PATIENCE, SMALL, WORDS, Gate, Nodes, cluster, quiet, wait_until
from commands import answer, refuse
from onnxfiles import chain
from polyvoc.cluster.build import BuildLimits, ProgressActor, RayWorkers, split_images
from polyvoc.cluster.connect import WorkerCheck, versions
from polyvoc.errors import ClusterError, OptionError, WriteError
from polyvoc.features.embedding import Embedder
from polyvoc.index.check import check
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.types import IndexReport
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet
from random_collections import plain
from samples import photograph, scores, unflushed

__all__ = ["unflushed"]
pytestmark = quiet
LIMITS = BuildLimits(min_batch=2)
FEW = BuildLimits(min_batch=2, tries=2, crashes=2)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two machines of one core, and one that only runs the driver."""
    with cluster(3, head=0) as started:
        yield started


@pytest.fixture
def workers(nodes: Nodes) -> RayWorkers:
    return RayWorkers(nodes.address, limits=LIMITS)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty photographs, and three files that are none."""
    for seed in range(20):
        photograph(tmp_path / f"photos/{seed % 3}/{seed:02}.png", seed)
    for name in ("0/00a.png", "1/empty.jpg", "2/99.gif"):
        (tmp_path / "photos" / name).write_bytes(b"" if "empty" in name else b"no photograph")
    return tmp_path / "photos"


def update(path: Path, folder: Path, workers: RayWorkers | None = None, words: Any = WORDS, **more: Any) -> IndexReport:
    with IndexWriter.open(path, words, SMALL) as writer:
        return writer.update([folder], workers=workers, **more)


def assert_equal(path: Path, expected: Path, folder: Path) -> None:
    """Two indexes have the same contents in the same order, return the same hits, and have no errors."""
    assert list(check(path)) == []
    assert not (path / "staging").exists()
    with Index.open(path) as one, Index.open(expected) as other:
        assert contents(one) == contents(other)
        for query in queries_in(folder):
            hits = [[(hit.path, hit.score, hit.inliers) for hit in index.search(query)] for index in (one, other)]
            assert hits[0] == hits[1] != []
            for options in (plain(), plain(merge="bayes", hamming=3)):
                assert scores(one, one.features(query), options) == scores(other, one.features(query), options)


def contents(index: Index) -> Any:
    """Return what is stored of each image, in order, and the problems; without ids: images that failed leave gaps."""
    rows = []
    for row in index.images():
        segment, position = index.find(row.image)
        stored = index.engine.segments[segment].image_features(position)
        keypoints = stored.keypoints
        codes = () if stored.codes is None else (stored.codes.words, stored.codes.codes, stored.codes.rest)
        arrays = (stored.words, stored.signatures, keypoints.xy, keypoints.scale, keypoints.angle, *codes)
        facts = (row.path, row.state, row.digest, row.width, row.height, row.n_features)
        rows.append((*facts, *(array.tolist() for array in arrays)))
    return rows, index.folder.catalogue.problems()


def queries_in(folder: Path) -> list[Path]:
    return sorted(folder.rglob("[01]?.png"))[::4]


def paths_in(path: Path) -> list[str]:
    if not (path / "catalogue.sqlite").exists():
        return []
    with Index.open(path) as index:
        return [row.path for row in index.images()]


# -- the same as on one machine


def test_the_first_build_equals_a_local_one(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    report = update(tmp_path / "many", folder, workers, progress=lambda *values: steps.append(values))
    assert report == update(tmp_path / "one", folder)
    assert_equal(tmp_path / "many", tmp_path / "one", folder)
    assert steps[-1] == ("indexing", 23, 23)
    assert all(before <= after for (_, before, _), (_, after, _) in pairwise(steps))
    with Index.open(tmp_path / "many") as index:  # eight batches were merged
        assert len(index.engine.segments) == 1


def test_codes_are_those_of_one_machine(workers: RayWorkers, folder: Path, fine: Vocabulary, tmp_path: Path) -> None:
    words = VocabularySet(tuple(WORDS), fine, signed=True)
    assert update(tmp_path / "many", folder, workers, words) == update(tmp_path / "one", folder, words=words)
    assert_equal(tmp_path / "many", tmp_path / "one", folder)
    with Index.open(tmp_path / "many") as index:
        assert (index.folder.code_bits, index.default_options.merge) == (128, "codes")
        query = queries_in(folder)[1]
        assert index.search(query)[0].path == str(query)


def test_changes_are_followed_as_on_one_machine(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    for path, used in ((tmp_path / "many", workers), (tmp_path / "one", None)):
        update(path, folder, used)
    for name, seed in (("new/20.png", 20), ("0/03.png", 30), ("0/00a.png", 31)):
        photograph(folder / name, seed)
    os.utime(folder / "0/06.png", ns=(7, 7))
    (folder / "1/07.png").write_bytes(b"broken now")
    for name in ("2/05.png", "2/08.png", "2/99.gif"):
        (folder / name).unlink()
    report = update(tmp_path / "many", folder, workers)
    assert report == update(tmp_path / "one", folder)
    assert (report.added, report.replaced, report.removed, report.unchanged, len(report.problems)) == (2, 1, 2, 16, 2)
    assert_equal(tmp_path / "many", tmp_path / "one", folder)
    assert update(tmp_path / "many", folder, workers) == update(tmp_path / "one", folder)


def test_a_photograph_that_cannot_be_read_now_is_kept_and_read_again(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    # For workers only: one that may not be opened, one that is not there.
    secret, hidden = photograph(folder / "1/secret.png", 60), photograph(folder / "0/hidden.png", 62)
    report = update(tmp_path / "many", folder, workers)
    reasons = {problem.path: problem.reason for problem in report.problems}
    assert (report.added, len(reasons)) == (20, 5)
    assert all(str(path) in reasons[str(path)] for path in (secret, hidden))
    assert update(tmp_path / "many", folder).added == 2
    photograph(secret, 61)
    photograph(hidden, 63)
    report = update(tmp_path / "many", folder, workers)
    assert (report.replaced, report.removed, len(report.problems)) == (0, 0, 5)
    assert {str(secret), str(hidden)} <= {*paths_in(tmp_path / "many")} and list(check(tmp_path / "many")) == []
    assert update(tmp_path / "many", folder).replaced == 2


def test_vectors_are_made_as_on_one_machine(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="models need onnxruntime: pip install 'polyvoc[embedding]'")
    (tmp_path / "colours.onnx").write_bytes(chain("GlobalAveragePool", "Flatten", output=(1, 3)))
    for path, used in ((tmp_path / "many", workers), (tmp_path / "one", None)):
        with IndexWriter.open(path, WORDS, SMALL, tmp_path / "colours.onnx") as writer:
            writer.update([folder], workers=used)
    with Index.open(tmp_path / "many") as many, Index.open(tmp_path / "one") as one:
        for row, other in zip(many.images(), one.images(), strict=True):
            assert (many.embed(row.image) == one.embed(other.image)).all()
    function = Embedder.of(lambda pixels: pixels.mean(axis=(0, 1)), "mean")
    with IndexWriter.open(tmp_path / "own", WORDS, SMALL, function) as writer, pytest.raises(OptionError, match="function"):
        writer.update([folder], workers=workers)


def test_the_command(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    given: list[object] = []
    for number, vocabulary in enumerate(WORDS):
        vocabulary.save(tmp_path / f"words/{number}")
        given += ["--vocabulary", tmp_path / f"words/{number}"]
    report = answer("index", folder, "--index", tmp_path / "many", *given, "--ray", workers.address)
    assert (report["added"], len(report["problems"])) == (20, 3)
    assert list(check(tmp_path / "many")) == []


# -- what ends a run


def test_a_folder_that_cannot_be_written_ends_the_run(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    with IndexWriter.open(tmp_path / "many", WORDS, SMALL) as writer:
        (tmp_path / "many/staging").write_bytes(b"a file")
        with pytest.raises(WriteError, match=r"^.* cannot be written.*$"):
            writer.update([folder], workers=workers)
    (tmp_path / "many/staging").unlink()
    assert update(tmp_path / "many", folder, workers).added == 20


def test_a_machine_that_sees_no_photographs_ends_the_run(workers: RayWorkers, tmp_path: Path) -> None:
    for seed in (1, 2):
        for name in "ab":
            photograph(tmp_path / f"photos/{name}/hidden.png", seed)
        if seed == 1:
            update(tmp_path / "many", tmp_path / "photos")
    with pytest.raises(ClusterError, match=r"a/hidden.png, nor 1 others; every machine must see the same"):
        update(tmp_path / "many", tmp_path / "photos", workers)
    assert update(tmp_path / "many", tmp_path / "photos").replaced == 2


def test_another_version_or_no_cluster_ends_the_run(
    workers: RayWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(address: str) -> None:
        raise ClusterError(f"no Ray cluster at {address}")

    photograph(tmp_path / "photos/a.png", 1)
    other = WorkerCheck(versions={**versions(), "OpenCV": "3.0"})
    with pytest.raises(ClusterError, match=r"OpenCV [\d.]+, not 3.0; install the same version"):
        update(tmp_path / "many", tmp_path / "photos", replace(workers, check=other))
    monkeypatch.setattr("polyvoc.cluster.build.connect", fail)
    line = refuse("index", tmp_path / "photos", "--index", tmp_path / "none", "--ray", "nowhere:1")
    assert "no Ray cluster at nowhere:1" in line and not (tmp_path / "none").exists()


# -- processes, machines and photographs that fail


@pytest.mark.parametrize("lost", ["process", "machine"])
def test_a_lost_worker_loses_nothing(lost: str, workers: RayWorkers, nodes: Nodes, folder: Path, tmp_path: Path) -> None:
    gate = Gate(folder / "1")
    with ThreadPoolExecutor(1) as pool:
        report = pool.submit(update, tmp_path / "many", folder, workers)
        process, raylet = gate.reader()
        if lost == "process":
            os.kill(process, signal.SIGKILL)
            gate.open()
        else:
            (node,) = [node for node in nodes.others if node.all_processes["raylet"][0].process.pid == raylet]
            nodes.remove(node)
            gate.open()
            nodes.add()
    found = replace(report.result(), skipped={})  # files of the gate
    assert found == replace(update(tmp_path / "one", folder), skipped={})
    assert_equal(tmp_path / "many", tmp_path / "one", folder)


def test_a_photograph_that_crashes_is_reported_once(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    deadly = photograph(folder / "1/deadly.png", 50)
    workers = replace(workers, limits=BuildLimits(min_batch=2, tries=2))
    report = update(tmp_path / "many", folder, workers)
    (problem,) = [problem for problem in report.problems if problem.path == str(deadly)]
    assert str(deadly) in problem.reason and "remove it" in problem.reason
    assert (report.added, len(report.problems)) == (20, 4)
    again = update(tmp_path / "many", folder, workers)  # it is not read
    assert (again.added, again.unchanged) == (0, 20) and problem in again.problems
    deadly.unlink()
    assert len(update(tmp_path / "many", folder).problems) == 3
    update(tmp_path / "one", folder)
    assert_equal(tmp_path / "many", tmp_path / "one", folder)


def test_a_photograph_that_never_ends_is_reported(workers: RayWorkers, tmp_path: Path) -> None:
    for seed in range(2):
        photograph(tmp_path / f"photos/{seed}.png", seed)
    endless = photograph(tmp_path / "photos/endless.png", 77)
    workers = RayWorkers(workers.address, WorkerCheck(timeout=PATIENCE), BuildLimits(min_batch=1, tries=2))
    report = update(tmp_path / "many", tmp_path / "photos", workers)
    assert (report.added, [problem.path for problem in report.problems]) == (2, [str(endless)])
    assert list(check(tmp_path / "many")) == []


def test_no_photograph_is_reported_if_all_processes_crash(workers: RayWorkers, tmp_path: Path) -> None:
    deadly = photograph(tmp_path / "photos/deadly.png", 1)
    update(tmp_path / "many", tmp_path / "photos")
    photograph(deadly, 2)
    with pytest.raises(ClusterError, match=rf"2 worker processes in a row crashed .*{deadly}.*see the Ray logs"):
        update(tmp_path / "many", tmp_path / "photos", replace(workers, limits=FEW))
    with Index.open(tmp_path / "many") as index:
        assert index.problems() == [] and len(index) == 1


def test_no_photograph_is_reported_if_all_processes_begin_to_crash(workers: RayWorkers, tmp_path: Path) -> None:
    workers = replace(workers, limits=FEW)
    fuse = photograph(tmp_path / "photos/fuse.png", 0)
    assert update(tmp_path / "many", tmp_path / "photos", workers).added == 1
    photograph(tmp_path / "photos/1.png", 1)
    with pytest.raises(ClusterError, match="worker processes in a row crashed"):
        update(tmp_path / "many", tmp_path / "photos", workers)
    assert paths_in(tmp_path / "many") == [str(fuse)]
    assert update(tmp_path / "many", tmp_path / "photos").added == 1


def test_an_interrupt_keeps_finished_batches(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    gate = Gate(folder / "1")

    def interrupt(stage: str, done: int, total: int) -> None:
        if done >= 18:  # nearly all but the batch of the gate
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update(tmp_path / "many", folder, workers, progress=interrupt)
    assert list(check(tmp_path / "many")) == []
    kept = paths_in(tmp_path / "many")
    assert len(kept) >= 10 and str(gate.path) not in kept
    gate.open()
    report = update(tmp_path / "many", folder, workers)
    assert (report.added, report.unchanged) == (21 - len(kept), len(kept))
    assert list(check(tmp_path / "many")) == []


DRIVER = """
import sys
from clusters import PATIENCE, SMALL, WORDS
from polyvoc.cluster.build import BuildLimits, RayWorkers
from polyvoc.index.writer import IndexWriter
with IndexWriter.open(sys.argv[1], WORDS, SMALL) as writer:
    writer.update([sys.argv[2]], workers=RayWorkers(sys.argv[3], limits=BuildLimits(min_batch=2)))
"""


@pytest.mark.parametrize("alone", [True, False], ids=["local", "cluster"])
def test_a_killed_driver_keeps_its_commits(alone: bool, workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    path, gate = tmp_path / "many", Gate(folder / "1")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    with subprocess.Popen([sys.executable, "-c", DRIVER, path, folder, workers.address], env=environment) as driver:
        gate.reader()
        wait_until(lambda: len(paths_in(path)) >= 10)
        driver.kill()
    kept = paths_in(path)
    assert list(check(path)) == [] and str(gate.path) not in kept
    gate.open()
    report = update(path, folder, None if alone else workers)
    assert (report.added, report.replaced, report.removed, report.unchanged) == (21 - len(kept), 0, 0, len(kept))
    assert list(check(path)) == []
    assert sorted(paths_in(path)) == sorted([str(gate.path), *map(str, folder.rglob("[01]?.png"))])
    with Index.open(path) as index:
        assert all(index.search(query)[0].path == str(query) for query in queries_in(folder))


# -- parts


@pytest.mark.parametrize(("count", "cores", "size"), [(0, 2, 0), (5, 2, 5), (17, 2, 16), (800, 2, 100), (10**5, 2, 512)])
def test_batches_keep_the_order(count: int, cores: int, size: int) -> None:
    batches = split_images(count, cores, BuildLimits())
    assert [position for batch in batches for position in batch] == [*range(count)]
    assert max(map(len, batches), default=0) == size


def test_the_progress_actor_counts_by_task() -> None:
    actor = ProgressActor()
    for task, done in ((1, 1), (2, 3), (1, 5)):
        actor.record(task, done)
    actor.mark_healthy(2)
    assert actor.counts([1, 2, 3]) == {1: 5, 2: 3, 3: 0}
    assert [actor.was_healthy(task) for task in (1, 2)] == [False, True]
