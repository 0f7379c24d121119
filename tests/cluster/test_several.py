"""Several indexes on a cluster give the answer of the same indexes on one machine."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import polyvoc

if TYPE_CHECKING:
    from clusters import Nodes

pytest.importorskip("ray", reason="needs Ray: pip install 'polyvoc[cluster]'")
from clusters import quiet

pytestmark = quiet


def test_several_indexes_on_a_cluster(nodes: Nodes, coded_index_path: Path, photographs: Path, tmp_path: Path) -> None:
    paths = [coded_index_path, Path(shutil.copytree(coded_index_path, tmp_path / "other.polyvoc"))]
    with polyvoc.open(paths) as local, polyvoc.open(paths, ray=nodes.options(1)) as remote:
        assert len(remote) == len(local) == 12
        for photo in (photographs / "tower-b.jpg", 3):
            expected, found = local.search(photo), remote.search(photo)
            assert list(found) == list(expected) and found.complete and found
        assert len(remote.explain(photographs / "tower-b.jpg", found[0]).parts) == 1
