"""A cluster for the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from clusters import Nodes


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    """Two machines of one core."""
    from clusters import cluster  # not above: where Ray is missing, the modules are skipped

    with cluster(2) as started:
        yield started
