"""The README's commands for a cluster, as it has them. Nodes are those of the tests: `ray stop` would end other people's."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from clusters import Nodes, cluster, quiet
from commands import run
from pages import DOCS, world_of
from servers import running

pytestmark = quiet
README = Path(__file__).parent.parent.parent / "README.md"


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with cluster(2) as made:
        yield made


def commands() -> list[list[str]]:
    """Give the commands of the section, without those that install and start."""
    section = README.read_text(encoding="utf-8").split("\n## Many machines\n")[1].split("\n## ")[0]
    typed = [shlex.split(line, comments=True) for line in re.findall(r"^    (\S.*)$", section, re.M)]
    assert [words[:2] for words in typed[:3]] == [["pip", "install"], ["ray", "start"], ["ray", "start"]]
    assert typed[-1] == ["ray", "stop"]
    return typed[3:-1]


def test_the_commands_do_what_they_say(
    nodes: Nodes, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(photographs, tmp_path / "Pictures")
    shutil.copy(photographs / "wall-b.jpg", tmp_path / "query.jpg")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_ADDRESS", nodes.address)
    monkeypatch.delenv("POLYVOC_INDEX", raising=False)
    index, search, serve = ([os.path.expanduser(word) for word in words] for words in commands())
    assert [words[:2] for words in (index, search, serve)] == [["polyvoc", verb] for verb in ("index", "search", "serve")]
    done = run(*index[1:])
    assert done.exit_code == 0 and "12 added" in done.output
    far, local = run(*search[1:]), run("search", "query.jpg")
    assert far.exit_code == 0 and far.stdout == local.stdout and "wall-" in far.stdout.splitlines()[0]
    with running(*serve[2:]) as server:
        answer = httpx.post(f"{server.url}search", params={"query": "2", "top": 3}, timeout=60).json()
        assert answer["complete"] and answer["hits"][0]["image"] == 2
        code, log = server.end(signal.SIGINT)
    assert code == 0, log


def test_the_page_on_clusters(nodes: Nodes, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("POLYVOC_INDEX", raising=False)
    names = {"FOLDER": "Pictures", "ADDRESS": nodes.address, "INDEX": "photos.polyvoc", "32": "2", "WORDS": "words --size 100"}
    world_of(photographs, tmp_path, names=names).follow(DOCS / "cluster.md")
    assert (tmp_path / "words").is_dir()
