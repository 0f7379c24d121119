"""What the tests of the server share: a copy of the session's index, and a server with the settings of the test module."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from samples import unflushed
from servers import Gate, Served, serving

__all__ = ["unflushed"]


@pytest.fixture(scope="module")
def copied_index(_session_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(_session_index, tmp_path_factory.mktemp("served") / "photos.polyvoc"))


@pytest.fixture(scope="module")
def served(copied_index: Path, request: pytest.FixtureRequest) -> Iterator[Served]:
    """A server of the copy, with the module's SETTINGS."""
    with serving(copied_index, **getattr(request.module, "SETTINGS", {})) as served:
        yield served


@pytest.fixture(scope="module")
def coded(_session_coded_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server of an index with codes, as it is by default."""
    path = Path(shutil.copytree(_session_coded_index, tmp_path_factory.mktemp("coded") / "photos.polyvoc"))
    with serving(path, write=True) as served:
        yield served


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A closed gate; it is opened at the end, so that no thread is left behind."""
    gate = Gate()
    yield gate
    gate.open.set()
