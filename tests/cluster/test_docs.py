"""The commands and the program of docs/cluster.md run, except `ray start` and `ray stop`, which would end other clusters."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest

from clusters import Nodes, quiet
from commands import run
from pages import DOCS, blocks, world_of
from servers import running

pytestmark = quiet


def test_the_page_on_clusters(nodes: Nodes, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    monkeypatch.delenv("POLYVOC_INDEX", raising=False)
    names = {"FOLDER": "Pictures", "ADDRESS": nodes.address, "INDEX": "photos.polyvoc", "32": "2", "WORDS": "words --size 100"}
    world_of(photographs, tmp_path, names=names, elsewhere=("ray ",)).follow(DOCS / "cluster.md")
    assert (tmp_path / "words").is_dir()
    typed = [words for block in blocks(DOCS / "cluster.md") for words in block.commands()]
    assert [words[:2] for words in typed if words[0] == "ray"] == [["ray", "start"], ["ray", "start"], ["ray", "stop"]]
    remote, local = run("search", "query.jpg", "--ray", "auto"), run("search", "query.jpg")
    assert remote.exit_code == 0 and remote.stdout == local.stdout and "wall-" in remote.stdout
    with running("--ray", "auto", "--replicas", 2) as server:
        result = httpx.post(f"{server.url}search", params={"query": "2", "top": 3}, timeout=60).json()
        assert result["complete"] and result["hits"][0]["image"] == 2
        code, log = server.end(signal.SIGINT)
    assert code == 0, log
