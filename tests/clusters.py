"""Clusters of several Ray nodes on this machine, indexes for their actors, and photographs that block their readers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from polyvoc.cluster.shards import RayShards, ReplicaSet
from polyvoc.index.catalogue import Catalogue, ImageRow, SegmentRow
from polyvoc.index.folder import IndexFolder
from polyvoc.index.segment import Segment
from polyvoc.options import ClusterOptions, FeatureOptions
from polyvoc.scoring.engine import Engine
from polyvoc.search.index import Index
from polyvoc.storage.files import META, checksum
from polyvoc.storage.folders import FileState
from polyvoc.types import FeatureKind
from samples import photograph, vocabularies

PATIENCE = 300.0  # seconds until something that hangs fails: a busy machine is slow, not wrong
STORE = 100 << 20  # bytes of a node's object store
FAILING = str(Path(__file__).parent / "failing_files")
SMALL = FeatureOptions(long_side=160, max_features=30)
WORDS = vocabularies(2, size=20, dimension=128)

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'polyvoc[cluster]'")
# What Ray itself leaves open when a cluster ends.
quiet = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.filterwarnings("ignore::DeprecationWarning"),
         pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]  # fmt: skip


class Nodes:
    """A cluster whose nodes are processes of this machine; they can be added and removed."""

    def __init__(self, count: int, head: int = 1) -> None:
        from ray.cluster_utils import Cluster

        self._settings = {"num_cpus": 1, "object_store_memory": STORE}
        first = {**self._settings, "num_cpus": head, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=first)
        self.others = [self._cluster.add_node(**self._settings) for _ in range(count - 1)]
        self.address: str = self._cluster.address
        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        self._cluster.wait_for_nodes()

    def options(self, shards: int, replicas: int = 1, timeout: float = PATIENCE) -> ClusterOptions:
        return ClusterOptions(self.address, shards, replicas, timeout)

    def remove(self, node: Any) -> None:
        """Make a node fail: its processes are killed."""
        self._cluster.remove_node(node, allow_graceful=False)
        self.others.remove(node)

    def add(self) -> None:
        self.others.append(self._cluster.add_node(**self._settings))
        self._cluster.wait_for_nodes()

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


@contextmanager
def cluster(nodes: int, head: int = 1) -> Iterator[Nodes]:
    """Start nodes of one core each; the first has `head` cores. Files of certain names fail in their processes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([FAILING, os.environ.get("PYTHONPATH", "")]))
        started = Nodes(nodes, head)
        try:
            yield started
        finally:
            started.close()


def store_segments(path: Path, segments: Sequence[Segment]) -> IndexFolder:
    """Write segments as the index of a folder, as a writer would."""
    path.mkdir(parents=True)
    catalogue = Catalogue.create(path, _settings(segments))
    folder = IndexFolder(path)
    with catalogue.transaction():
        for number, segment in enumerate(segments, start=1):
            replace(segment, alive=segment.alive[:0]).save(folder.segment_folder(number))
            row = SegmentRow(segment.n_images, segment.n_features, checksum(folder.segment_folder(number) / META))
            catalogue.add_segment(number, row)
            ids = [int(image) for image in segment.ids]
            state = FileState(None, None)
            catalogue.add_images(ImageRow(i, f"image {i}", state, None, 9, 9, 0, number, at) for at, i in enumerate(ids))
            live = set(segment.live_positions().tolist())
            catalogue.delete_images(image for at, image in enumerate(ids) if at not in live)
        catalogue.count_commit()
    catalogue.close()
    return folder


def _settings(segments: Sequence[Segment]) -> dict[str, Any]:
    """Return the settings of an index of segments, without vocabularies."""
    first, none = segments[0], ["none"] * len(segments[0].sizes)
    fine = {"size": first.fine, "bits": 64 * first.code_planes, "fingerprint": "none", "checksum": "none"}
    return {
        "sizes": list(first.sizes),
        "vocabularies": none,
        "vocabulary_checksums": none,
        "bits": 64 * max(segment.planes for segment in segments),
        "fine": fine if first.fine else None,
        "kind": asdict(FeatureKind()),
        "features": asdict(FeatureOptions()),
    }


def load_engine(replicas: ReplicaSet, folder: IndexFolder) -> Engine:
    """Load an index into a replica set, its segments placed anew."""
    replicas.placement = {}
    return replicas.read_engine(folder, folder.read_layout())


def shards_of(index: Index) -> RayShards:
    """Return the shards of an index on a cluster."""
    shards = index.engine.shards
    assert isinstance(shards, RayShards)
    return shards


def actor_of(index: Index, shard: int, replica: int = 0) -> Any:
    """Return the actor that holds a shard of an index."""
    return shards_of(index).replicas.shards[shard][replica].actor


def process_of(actor: Any) -> int:
    """Return the process id of an actor."""
    return int(ray.get(actor.__ray_call__.remote(lambda self: __import__("os").getpid())))


@contextmanager
def impatient(index: Index, seconds: float = 0.5) -> Iterator[None]:
    """Wait for shards only so long: to see what happens without one, which other shards may join on a busy machine."""
    replicas = shards_of(index).replicas
    patient, replicas.options = replicas.options, replace(replicas.options, timeout=seconds)
    try:
        yield
    finally:
        replicas.options = patient


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition is true; fail if it takes too long."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.05)


class Gate:
    """A photograph that blocks its reader until it is opened (see `failing_files`)."""

    def __init__(self, folder: Path) -> None:
        self.path = photograph(folder / "gate.png", 77)

    def reader(self) -> tuple[int, int]:
        """Wait for a reader; return its process, and that of its Ray node."""
        file = Path(f"{self.path}.reader")
        wait_until(file.exists)
        process, node = file.read_text(encoding="utf-8").split()
        return int(process), int(node)

    def open(self) -> None:
        Path(f"{self.path}.open").touch()
