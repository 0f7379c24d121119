"""Pages of the documentation: the commands and programs on them, and a world to run them in."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from commands import run
from servers import running

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PROGRAMS = ("polyvoc", "pip", "python", "ray", "curl", "scripts/demo", "scripts/test", "scripts/docs", "sphinx-build")
FENCE = re.compile(r"```(?:\{?([\w-]*)\}?.*)?")


@dataclass(frozen=True)
class Block:
    """Commands or a program, as they stand on a page."""

    language: str
    lines: tuple[str, ...]

    def commands(self) -> Iterator[list[str]]:
        """Give what is typed, word by word; settings before a command are words, too."""
        for line in "\n".join(self.lines).replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            named = next((word for word in words if not re.fullmatch(r"[A-Z_0-9]+=.*", word, re.S)), "")
            if named in PROGRAMS:
                yield words


def blocks(page: Path) -> list[Block]:
    """Give the blocks of a page: fenced with a language, or indented, which are commands."""
    found: list[Block] = []
    fence, held = None, []
    for line in [*page.read_text(encoding="utf-8").splitlines(), ""]:
        opening = FENCE.fullmatch(line)
        if fence is not None and line == "```":
            found.append(Block(fence, tuple(held)))
            fence, held = None, []
        elif fence is not None:
            held.append(line)
        elif opening:
            fence = opening[1] or "text"
        elif line.startswith("    "):
            found.append(Block("sh", (line[4:],)))
    return [block for block in found if block.language == "python" or any(block.commands())]


def pages() -> list[Path]:
    """Give all pages with commands or programs on them."""
    every = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
    return [page for page in every if blocks(page)]


@dataclass
class World:
    """A home with photographs, where a reader types what stands on a page."""

    folder: Path
    names: Mapping[str, str] = field(default_factory=dict)  # what the reader puts in the place of what
    known: dict[str, Any] = field(default_factory=dict)  # names of the programs of the page
    installed: str = ""  # what the page installs, besides what the tests have
    elsewhere: tuple[str, ...] = ()  # how commands begin that other tests run

    def follow(self, page: Path, programs: int | None = None) -> None:
        """Do all that stands on a page, in its order; of programs, so many: others only show how a name is used."""
        written = [block for block in blocks(page) if block.language == "python"][:programs]
        for block in blocks(page):
            if block in written:
                exec(compile("\n".join(block.lines), str(page), "exec"), self.known)
            for words in block.commands():
                if not " ".join(words).startswith(self.elsewhere or "\n"):
                    self.type(words)

    def type(self, words: list[str]) -> None:
        """Type a command."""
        given = [os.path.expanduser(part.strip("[]")) for word in words for part in self._named(word)]
        settings = dict(word.split("=", 1) for word in given if re.fullmatch(r"[A-Z_0-9]+=.*", word, re.S))
        program, *arguments = given[len(settings) :]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in settings.items():
                patch.setenv(name, value)
            self._start(program, arguments, " ".join(words))

    def _start(self, program: str, arguments: list[str], typed: str) -> None:
        if program == "pip":
            _installs(arguments)
            self.installed += " ".join(arguments)
        elif program == "polyvoc" and arguments[0] == "serve":
            _serves([argument for argument in arguments[1:] if argument != "--open"])
        elif program == "polyvoc":
            done = run(*arguments)
            assert done.exit_code == 0, f"{typed}: {done.output}"
        elif program == "curl":
            _asks(arguments)
        elif program == "python":
            self._explains(arguments[0])
        else:
            raise AssertionError(f"nobody runs {typed!r}")

    def _explains(self, script: str) -> None:
        """Let a program beside the package say how it is used: what it does takes hours."""
        if "argparse" not in (ROOT / script).read_text(encoding="utf-8"):
            return  # benchmarks/tables.py, which test_readme.py runs
        told = subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=False)
        lacking = re.search(r"No module named '(\w+)'", told.stderr)
        assert "usage" in told.stdout or (lacking and lacking[1] in self.installed), told.stderr

    def _named(self, word: str) -> list[str]:
        named = word
        for name, value in self.names.items():
            named = named.replace(name, value)
        return [word] if named == word else named.split()


def world_of(photographs: Path, folder: Path, **told: Any) -> World:
    """Give a world with photographs in ~/Pictures, one of which is changed and asks."""
    shutil.copytree(photographs, folder / "Pictures")
    shutil.copy(photographs / "wall-b.jpg", folder / "query.jpg")
    return World(folder, **told)


def _installs(arguments: list[str]) -> None:
    """Check that what is installed exists: `test_wheel.py` installs it."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert arguments[0] == "install"
    for extra in re.findall(r"\[(.+?)\]", " ".join(arguments)):
        assert all(f"\n{name} = [" in project for name in extra.split(",")), extra


def _asks(arguments: list[str]) -> None:
    """Ask a server that has indexed the photographs; without curl, say so."""
    curl = shutil.which("curl") or pytest.skip("needs curl")
    with running("photos.polyvoc") as server:
        asked = [argument.replace("http://127.0.0.1:8000/", server.url) for argument in arguments]
        told = subprocess.run([curl, "--silent", "--show-error", "--fail", *asked], capture_output=True, text=True, check=False)
    assert told.returncode == 0 and json.loads(told.stdout), told.stderr


def _serves(arguments: list[str]) -> None:
    with running(*arguments, environment={"POLYVOC_TOKEN": "a" * 40}) as server:
        port = re.search(r":(\d+)", server.url)
        assert port is not None
        assert httpx.get(f"http://127.0.0.1:{port[1]}/health", timeout=60).status_code == 200
