"""An index built by many machines is the one that a single machine builds, whoever dies meanwhile."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clusters import Nodes, cluster, eventually, quiet
from commands import answer, refuse
from onnxfiles import chain
from polyvoc.cluster.build import ProgressActor, RayWorkers, _Batch, cut
from polyvoc.cluster.connect import WorkerCheck, versions
from polyvoc.errors import ClusterError, OptionError, WriteError
from polyvoc.features.embedding import Embedder
from polyvoc.index.build import BuildItem
from polyvoc.index.check import check_index
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions, SearchOptions
from polyvoc.search.index import Index
from polyvoc.types import IndexReport
from samples import photograph, scores, unflushed, vocabularies

__all__ = ["unflushed"]

pytestmark = quiet
CHAOS = Path(__file__).parent.parent / "failing_files"
SMALL = FeatureOptions(long_side=160, max_features=30)
WORDS = vocabularies(2, size=20, dimension=128)


# --- machines -----------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two machines of one core, and one that only directs them; photographs may misbehave in their processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(CHAOS), os.environ.get("PYTHONPATH", "")]))
        with cluster(3, head=0) as made:
            yield made  # machines that are added later misbehave, too


@pytest.fixture
def workers(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> RayWorkers:
    """Workers with small batches."""
    monkeypatch.setattr("polyvoc.cluster.build.SMALLEST", 2)
    return RayWorkers(nodes.address)


class Gate:
    """A photograph that keeps whoever reads it waiting."""

    def __init__(self, folder: Path) -> None:
        self.path = photograph(folder / "gate.png", 77)

    def reader(self) -> tuple[int, int]:
        """Wait for somebody who reads it: gives its process, and that of its machine."""
        eventually(self._told.exists)
        process, machine = self._told.read_text(encoding="utf-8").split()
        return int(process), int(machine)

    def open(self) -> None:
        Path(f"{self.path}.open").touch()

    @property
    def _told(self) -> Path:
        return Path(f"{self.path}.reader")


# --- photographs and what must hold -------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twenty photographs, and three files that are none."""
    for seed in range(20):
        photograph(tmp_path / f"photos/{seed % 3}/{seed:02}.png", seed)
    for name in ("0/00a.png", "1/empty.jpg", "2/99.gif"):
        (tmp_path / "photos" / name).write_bytes(b"" if "empty" in name else b"no photograph")
    return tmp_path / "photos"


def update(path: Path, folder: Path, workers: RayWorkers | None = None, **more: Any) -> IndexReport:
    with IndexWriter.open(path, WORDS, SMALL) as opened:
        return opened.update([folder], workers=workers, **more)


def assert_same(path: Path, expected: Path, queries: Sequence[Path]) -> None:
    """Two indexes hold the same, in the same order, answer alike, and are sound."""
    assert list(check_index(path)) == []
    assert not (path / "incoming").exists()
    with Index.open(path) as one, Index.open(expected) as other:
        rows, expected_rows = list(one.images()), list(other.images())
        assert [row.path for row in rows] == [row.path for row in expected_rows]
        known = [
            [(r.path, r.state, r.digest, r.width, r.height, r.n_features) for r in table] for table in (rows, expected_rows)
        ]
        assert known[0] == known[1]
        assert one.home.catalogue.problems() == other.home.catalogue.problems()
        for row, expected_row in zip(rows, expected_rows, strict=True):
            found, wanted = features_of(one, row.image), features_of(other, expected_row.image)
            assert all((one == two).all() for one, two in zip(found, wanted, strict=True))
        for query in queries:
            assert hits(one, query) == hits(other, query) != []
            for options in (SearchOptions(), SearchOptions(merge="bayes", hamming=3)):
                assert scores(one, one.features(query), options) == scores(other, one.features(query), options)


def features_of(index: Index, image: int) -> list[Any]:
    segment, position = index._find(image)
    found = index.engine.segments[segment].image_words(position)
    at = found.keypoints
    return [found.words, found.signatures, at.xy, at.scale, at.angle]


def hits(index: Index, query: Path) -> list[tuple[str, float, int | None]]:
    return [(hit.path, hit.score, hit.inliers) for hit in index.search(query)]


def queries_of(folder: Path) -> list[Path]:
    return sorted(folder.rglob("[01]?.png"))[::4]


# --- the same as on one machine -----------------------------------------------------------------------------------------------


def test_the_first_build_equals_a_local_one(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    report = update(tmp_path / "many", folder, workers, progress=lambda *values: told.append(values))
    assert report == update(tmp_path / "one", folder)
    assert_same(tmp_path / "many", tmp_path / "one", queries_of(folder))
    assert told[-1] == ("indexing", 23, 23)
    assert all(before <= after for (_, before, _), (_, after, _) in pairwise(told))
    with Index.open(tmp_path / "many") as index:  # eight batches were merged
        assert index.home.catalogue.segments() == [index.home.catalogue.fact("last_segment")] == [9]


def test_changes_are_followed_as_on_one_machine(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    for path, who in ((tmp_path / "many", workers), (tmp_path / "one", None)):
        update(path, folder, who)
    photograph(folder / "new/20.png", 20)
    photograph(folder / "0/03.png", 30)
    photograph(folder / "0/00a.png", 31)
    os.utime(folder / "0/06.png", ns=(7, 7))
    (folder / "1/07.png").write_bytes(b"broken now")
    for gone in ("2/05.png", "2/08.png", "2/99.gif"):
        (folder / gone).unlink()
    report = update(tmp_path / "many", folder, workers)
    assert report == update(tmp_path / "one", folder)
    assert (report.added, report.replaced, report.removed, report.unchanged, len(report.problems)) == (2, 1, 2, 16, 2)
    assert_same(tmp_path / "many", tmp_path / "one", queries_of(folder))
    assert update(tmp_path / "many", folder, workers) == update(tmp_path / "one", folder)


def test_a_photograph_that_cannot_be_read_now_is_kept_and_tried_again(
    workers: RayWorkers, folder: Path, tmp_path: Path
) -> None:
    # To workers only: one that may not be opened, one that is not there.
    secret, hidden = photograph(folder / "1/secret.png", 60), photograph(folder / "0/hidden.png", 62)
    report = update(tmp_path / "many", folder, workers)
    reasons = {problem.path: problem.reason for problem in report.problems}
    assert (report.added, len(reasons)) == (20, 5) and str(secret) in reasons[str(secret)]
    assert reasons[str(hidden)].startswith(f"{hidden}: not as it was found, or not there, on ")
    assert update(tmp_path / "many", folder).added == 2
    photograph(secret, 61)
    photograph(hidden, 63)
    report = update(tmp_path / "many", folder, workers)
    assert (report.replaced, report.removed, len(report.problems)) == (0, 0, 5)
    assert {str(secret), str(hidden)} <= {*paths_in(tmp_path / "many")} and list(check_index(tmp_path / "many")) == []
    assert update(tmp_path / "many", folder).replaced == 2


def test_a_machine_that_sees_no_photographs_ends_the_run(workers: RayWorkers, tmp_path: Path) -> None:
    for name in "ab":
        photograph(tmp_path / f"photos/{name}/hidden.png", 1)
    update(tmp_path / "many", tmp_path / "photos")
    for name in "ab":
        photograph(tmp_path / f"photos/{name}/hidden.png", 2)
    with pytest.raises(ClusterError, match=r"does not see .*a/hidden.png, nor 1 others; let every machine see the same"):
        update(tmp_path / "many", tmp_path / "photos", workers)
    assert update(tmp_path / "many", tmp_path / "photos").replaced == 2


def test_vectors_are_made_as_on_one_machine(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="models need onnxruntime: pip install 'polyvoc[embedding]'")
    (tmp_path / "colours.onnx").write_bytes(chain("GlobalAveragePool", "Flatten", output=(1, 3)))
    for path, who in ((tmp_path / "many", workers), (tmp_path / "one", None)):
        with IndexWriter.open(path, WORDS, SMALL, tmp_path / "colours.onnx") as opened:
            opened.update([folder], workers=who)
    with Index.open(tmp_path / "many") as many, Index.open(tmp_path / "one") as one:
        for row, other in zip(many.images(), one.images(), strict=True):
            assert (many.embed(row.image) == one.embed(other.image)).all()
    function = Embedder.of(lambda pixels: pixels.mean(axis=(0, 1)), "mean")
    with (
        pytest.raises(OptionError, match="vectors of a function"),
        IndexWriter.open(tmp_path / "own", WORDS, SMALL, function) as opened,
    ):
        opened.update([folder], workers=workers)


def test_the_command_line(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    given: list[object] = []
    for number, vocabulary in enumerate(WORDS):
        vocabulary.save(tmp_path / f"words/{number}")
        given += ["--vocabulary", tmp_path / f"words/{number}"]
    told = answer("index", folder, "--index", tmp_path / "many", *given, "--ray", workers.address)
    assert (told["added"], len(told["problems"])) == (20, 3)
    assert answer("check", "--index", tmp_path / "many")["sound"]


def test_a_place_that_cannot_be_written_ends_the_run(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(WriteError, match="cannot be written") as caught,
        IndexWriter.open(tmp_path / "many", WORDS, SMALL) as opened,
    ):
        (tmp_path / "many/incoming").write_bytes(b"a file")
        opened.update([folder], workers=workers)
    assert "\n" not in str(caught.value)
    (tmp_path / "many/incoming").unlink()
    assert update(tmp_path / "many", folder, workers).added == 20


# --- whoever dies -------------------------------------------------------------------------------------------------------------


def test_a_killed_worker_loses_nothing(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    gate = Gate(folder / "1")
    with ThreadPoolExecutor(1) as beside:
        report = beside.submit(update, tmp_path / "many", folder, workers)
        process, _ = gate.reader()
        os.kill(process, signal.SIGKILL)
        gate.open()
    assert report.result() == update(tmp_path / "one", folder)
    assert_same(tmp_path / "many", tmp_path / "one", queries_of(folder))


def test_a_machine_is_lost_and_another_comes(workers: RayWorkers, nodes: Nodes, folder: Path, tmp_path: Path) -> None:
    gate = Gate(folder / "1")
    with ThreadPoolExecutor(1) as beside:
        report = beside.submit(update, tmp_path / "many", folder, workers)
        _, machine = gate.reader()
        (lost,) = [node for node in nodes.others if node.all_processes["raylet"][0].process.pid == machine]
        nodes.remove(lost)
        gate.open()
        nodes.add()
    assert report.result() == update(tmp_path / "one", folder)
    assert_same(tmp_path / "many", tmp_path / "one", queries_of(folder))


def test_a_deadly_photograph_is_reported_once(
    workers: RayWorkers, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvoc.cluster.build.TRIES", 2)
    deadly = photograph(folder / "1/deadly.png", 50)
    report = update(tmp_path / "many", folder, workers)
    (found,) = [problem for problem in report.problems if problem.path == str(deadly)]
    assert found.reason == f"{deadly}: the process that reads it dies; remove it"
    assert (report.added, len(report.problems)) == (20, 4)
    again = update(tmp_path / "many", folder, workers)  # nobody reads it
    assert (again.added, again.unchanged) == (0, 20) and found in again.problems
    deadly.unlink()
    assert len(update(tmp_path / "many", folder).problems) == 3
    update(tmp_path / "one", folder)
    assert_same(tmp_path / "many", tmp_path / "one", queries_of(folder))


def test_a_photograph_that_never_ends_is_reported(workers: RayWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("SMALLEST", 1), ("TRIES", 2)):
        monkeypatch.setattr(f"polyvoc.cluster.build.{name}", value)
    for seed in range(2):
        photograph(tmp_path / f"photos/{seed}.png", seed)
    again, gate = photograph(tmp_path / "photos/again.png", 2), Gate(tmp_path / "photos")  # one is read, but has no digest
    report = update(tmp_path / "many", tmp_path / "photos", RayWorkers(workers.address, patience=3.0))
    assert (report.added, [problem.path for problem in report.problems]) == (2, [str(again), str(gate.path)])
    assert list(check_index(tmp_path / "many")) == []


def test_machines_on_which_everything_dies_blame_no_photograph(
    workers: RayWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ALL_DIE", "TRIES"):
        monkeypatch.setattr(f"polyvoc.cluster.build.{name}", 2)
    deadly = photograph(tmp_path / "photos/deadly.png", 1)
    update(tmp_path / "many", tmp_path / "photos")
    photograph(deadly, 2)
    with pytest.raises(ClusterError, match="processes die whatever they read"):
        update(tmp_path / "many", tmp_path / "photos", workers)
    with Index.open(tmp_path / "many") as index:
        assert index.home.catalogue.problems() == {} and index.home.catalogue.count_images() == 1


def test_machines_on_which_everything_dies_from_some_time_on_blame_no_photograph(
    workers: RayWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TRIES", "ALL_DIE"):
        monkeypatch.setattr(f"polyvoc.cluster.build.{name}", 2)
    fuse = photograph(tmp_path / "photos/fuse.png", 0)
    assert update(tmp_path / "many", tmp_path / "photos", workers).added == 1
    photograph(tmp_path / "photos/1.png", 1)
    with pytest.raises(ClusterError, match="processes die whatever they read"):
        update(tmp_path / "many", tmp_path / "photos", workers)
    assert paths_in(tmp_path / "many") == [str(fuse)]
    assert update(tmp_path / "many", tmp_path / "photos").added == 1


def test_a_machine_with_another_version_ends_the_run(
    workers: RayWorkers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photograph(tmp_path / "photos/a.png", 1)
    monkeypatch.setattr(
        "polyvoc.cluster.build.WorkerCheck", lambda patience: WorkerCheck(patience, {**versions(), "OpenCV": "3.0"})
    )
    with pytest.raises(ClusterError, match=r"has OpenCV [\d.]+, not 3.0; install the same version on all$"):
        update(tmp_path / "many", tmp_path / "photos", workers)


def test_nothing_is_written_before_the_cluster_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse_address(address: str) -> None:
        raise ClusterError(f"no Ray cluster answers at {address}")

    photograph(tmp_path / "photos/a.png", 1)
    monkeypatch.setattr("polyvoc.cluster.connect.connect", refuse_address)
    line = refuse("index", tmp_path / "photos", "--index", tmp_path / "many", "--ray", "nowhere:1")
    assert "no Ray cluster answers at nowhere:1" in line and not (tmp_path / "many").exists()


def test_an_interrupt_keeps_what_is_finished(workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    gate = Gate(folder / "1")

    def interrupt(stage: str, done: int, total: int) -> None:
        if done >= 18:  # all but what the gate keeps waiting, or nearly
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        update(tmp_path / "many", folder, workers, progress=interrupt)
    assert list(check_index(tmp_path / "many")) == []
    with Index.open(tmp_path / "many") as index:
        kept = {row.path: row.image for row in index.images()}
    assert len(kept) >= 10 and str(gate.path) not in kept
    gate.open()
    report = update(tmp_path / "many", folder, workers)
    assert report.added + report.unchanged == 21 and report.unchanged == len(kept)
    assert list(check_index(tmp_path / "many")) == []


DRIVER = """
import sys
from test_cluster_building import SMALL, WORDS, RayWorkers, building, IndexWriter
building.SMALLEST = 2
with IndexWriter.open(sys.argv[1], WORDS, SMALL) as opened:
    opened.update([sys.argv[2]], workers=RayWorkers(sys.argv[3]))
"""


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with workers"])
def test_a_killed_driver_keeps_its_commits(alone: bool, workers: RayWorkers, folder: Path, tmp_path: Path) -> None:
    path, gate = tmp_path / "many", Gate(folder / "1")
    command = [sys.executable, "-c", DRIVER, path, folder, workers.address]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])}
    with subprocess.Popen(command, env=environment) as driver:
        gate.reader()
        eventually(lambda: len(paths_in(path)) >= 10)
        driver.kill()
    kept = paths_in(path)
    assert list(check_index(path)) == [] and str(gate.path) not in kept
    gate.open()
    report = update(path, folder, None if alone else workers)
    assert (report.added, report.replaced, report.removed) == (21 - len(kept), 0, 0)
    assert report.unchanged == len(kept)
    assert list(check_index(path)) == []
    assert sorted(paths_in(path)) == sorted([str(gate.path), *map(str, folder.rglob("[01]?.png"))])
    with Index.open(path) as index:
        for query in queries_of(folder):
            assert index.search(query)[0].path == str(query)


def paths_in(path: Path) -> list[str]:
    if not (path / "catalogue.sqlite").exists():
        return []
    with Index.open(path) as index:
        return [row.path for row in index.images()]


# --- pieces -------------------------------------------------------------------------------------------------------------------


def photographs_of(count: int) -> list[BuildItem]:
    return [BuildItem(number, str(number), None) for number in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize(("count", "cores", "size"), [(0, 2, 0), (5, 2, 5), (17, 2, 16), (800, 2, 100), (10**5, 2, 512)])
def test_batches_keep_the_order(count: int, cores: int, size: int) -> None:
    batches = cut(count, cores)
    assert [place for batch in batches for place in batch] == [*range(count)]
    assert max(map(len, batches), default=0) == size


@pytest.mark.parametrize("count", [1, 2, 3, 13])
def test_a_lost_batch_ends_as_single_photographs(count: int) -> None:
    """Whoever dies again and again: every photograph is suspected alone, and never under a number that was used before."""
    numbers = itertools.count()
    waiting = [_Batch(next(numbers), tuple(photographs_of(count)))]
    alone: list[int] = []
    while waiting:
        batch = waiting.pop()
        again = batch.again(numbers)
        assert [one for part in again for one in part.photographs] == list(batch.photographs)
        assert all(part.number > batch.number or part.tries for part in again)
        alone += [part.suspect.image for part in again if part.suspect]
        waiting += [part for part in again if not part.suspect]
    assert sorted(alone) == [*range(count)]


def test_a_batch_that_begins_again_counts_anew() -> None:
    tally = ProgressActor()
    for batch, done in ((1, 5), (2, 3), (1, 1)):
        tally.note(batch, done)
    tally.note_well(2)
    assert tally.counts([1, 2, 3]) == {1: 1, 2: 3, 3: 0}
    assert [tally.was_well(batch) for batch in (1, 2)] == [False, True]
