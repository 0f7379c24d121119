"""A cluster of several Ray nodes on this machine, and indexes for its holders."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from polyvoc.cluster.shards import RayShards, ReplicaSet
from polyvoc.index.catalogue import Catalogue, ImageRow, SegmentRow
from polyvoc.index.folder import IndexFolder
from polyvoc.index.segment import Segment
from polyvoc.scoring.engine import Engine
from polyvoc.search.links import LinkGraph
from polyvoc.storage.files import META
from polyvoc.storage.files import checksum as storage_checksum
from polyvoc.storage.folders import FileState

STORE = 100 << 20  # bytes of a node's object store

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'polyvoc[cluster]'")
# What Ray itself leaves open when a cluster ends.
quiet = [pytest.mark.filterwarnings("ignore::ResourceWarning"), pytest.mark.filterwarnings("ignore::DeprecationWarning"),
         pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]  # fmt: skip


class Nodes:
    """A cluster whose nodes are processes of this machine; they can be added and removed."""

    def __init__(self, count: int, head: int = 1) -> None:
        from ray.cluster_utils import Cluster

        settings = {"num_cpus": 1, "object_store_memory": STORE}
        first = {**settings, "num_cpus": head, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=first)
        self.others = [self._cluster.add_node(**settings) for _ in range(count - 1)]
        self._settings = settings
        self.address: str = self._cluster.address
        ray.init(address=self.address, log_to_driver=False, logging_level="ERROR")
        self._cluster.wait_for_nodes()

    def remove(self, node: Any) -> None:
        """Let a node fail: its processes are killed."""
        self._cluster.remove_node(node, allow_graceful=False)
        self.others.remove(node)

    def add(self) -> Any:
        node = self._cluster.add_node(**self._settings)
        self.others.append(node)
        self._cluster.wait_for_nodes()
        return node

    def close(self) -> None:
        ray.shutdown()
        self._cluster.shutdown()


@contextmanager
def cluster(nodes: int, head: int = 1) -> Iterator[Nodes]:
    """Give nodes of one core each; the first has `head` cores."""
    made = Nodes(nodes, head)
    try:
        yield made
    finally:
        made.close()


def stored(folder: Path, segments: Sequence[Segment]) -> IndexFolder:
    """Write segments as the index of a folder, as a writer would."""
    facts = {"sizes": list(segments[0].sizes), "vocabularies": [], "dimension": 8, "features": {}}
    folder.mkdir(parents=True)
    catalogue = Catalogue.create(folder, facts)
    home = IndexFolder(folder)
    with catalogue.transaction():
        for number, segment in enumerate(segments, start=1):
            whole = replace(segment, alive=segment.alive[:0])
            whole.save(home.segment_folder(number))
            checksum = storage_checksum(home.segment_folder(number) / META)
            catalogue.add_segment(number, SegmentRow(segment.n_images, segment.n_features, checksum))
            ids = [int(image) for image in segment.ids]
            state = FileState(None, None)
            catalogue.add_images(ImageRow(i, f"image {i}", state, None, 9, 9, 0, number, at) for at, i in enumerate(ids))
            live = set(segment.live_positions().tolist())
            catalogue.delete_images(image for at, image in enumerate(ids) if at not in live)
        catalogue.count_commit()
    catalogue.close()
    return home


def held_by(fleet: ReplicaSet, home: IndexFolder, neighbours: LinkGraph | None = None) -> Engine:
    """Let a fleet hold an index, its segments spread anew."""
    fleet.kept = {}
    layout = home.read_layout()
    return Engine(RayShards.open(home, layout, fleet), layout.sizes, neighbours=neighbours)


def process_of(actor: Any) -> int:
    """Give the process of an actor."""
    return int(ray.get(actor.__ray_call__.remote(lambda self: __import__("os").getpid())))


def eventually(true: Callable[[], bool], seconds: float = 90) -> None:
    """Wait until something is true; fail if it takes too long."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.05)
