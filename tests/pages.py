"""Pages of the documentation: the commands and programs on them, and a folder to run them in."""

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
    """Commands or a program, as written on a page."""

    language: str
    lines: tuple[str, ...]

    def commands(self) -> Iterator[list[str]]:
        """Yield each command as words; environment variables before a command are words, too."""
        for line in "\n".join(self.lines).replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            program = next((word for word in words if not re.fullmatch(r"[A-Z_0-9]+=.*", word, re.S)), "")
            if program in PROGRAMS:
                yield words


def blocks(page: Path) -> list[Block]:
    """Return the blocks of a page: fenced with a language, or indented, which are commands."""
    result: list[Block] = []
    fence, lines = None, []
    for line in [*page.read_text(encoding="utf-8").splitlines(), ""]:
        opening = FENCE.fullmatch(line)
        if fence is not None and line == "```":
            result.append(Block(fence, tuple(lines)))
            fence, lines = None, []
        elif fence is not None:
            lines.append(line)
        elif opening:
            fence = opening[1] or "text"
        elif line.startswith("    "):
            result.append(Block("sh", (line[4:],)))
    return [block for block in result if block.language == "python" or any(block.commands())]


def pages() -> list[Path]:
    """Return all pages with commands or programs."""
    every = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md"]
    return [page for page in every if blocks(page)]


@dataclass
class World:
    """A home folder with photographs, where the commands of a page are run."""

    folder: Path
    names: Mapping[str, str] = field(default_factory=dict)  # placeholders of the page and their values
    known: dict[str, Any] = field(default_factory=dict)  # globals of the Python programs of the page
    installed: str = ""  # arguments of the pip commands of the page
    elsewhere: tuple[str, ...] = ()  # prefixes of commands that other tests run

    def follow(self, page: Path, programs: int | None = None) -> None:
        """Run everything on a page in order; of Python programs only the first `programs`: others show how a name is used."""
        written = [block for block in blocks(page) if block.language == "python"][:programs]
        for block in blocks(page):
            if block in written:
                exec(compile("\n".join(block.lines), str(page), "exec"), self.known)
            for words in block.commands():
                if not " ".join(words).startswith(self.elsewhere or "\n"):
                    self.type(words)

    def type(self, words: list[str]) -> None:
        """Run a command."""
        expanded = [os.path.expanduser(part.strip("[]")) for word in words for part in self._substitute(word)]
        variables = dict(word.split("=", 1) for word in expanded if re.fullmatch(r"[A-Z_0-9]+=.*", word, re.S))
        program, *arguments = expanded[len(variables) :]
        with pytest.MonkeyPatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            self._run(program, arguments, " ".join(words))

    def _run(self, program: str, arguments: list[str], typed: str) -> None:
        if program == "pip":
            _check_install(arguments)
            self.installed += " ".join(arguments)
        elif program == "polyvoc" and arguments[0] == "serve":
            _run_server([argument for argument in arguments[1:] if argument != "--open"])
        elif program == "polyvoc":
            done = run(*arguments)
            assert done.exit_code == 0, f"{typed}: {done.output}"
        elif program == "curl":
            _run_curl(arguments)
        elif program == "python":
            self._run_help(arguments[0])
        else:
            raise AssertionError(f"unknown program in {typed!r}")

    def _run_help(self, script: str) -> None:
        """Run a script with --help only: its work takes hours."""
        if "argparse" not in (ROOT / script).read_text(encoding="utf-8"):
            return  # benchmarks/tables.py, which test_readme.py runs
        result = subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=False)
        missing = re.search(r"No module named '(\w+)'", result.stderr)
        assert "usage" in result.stdout or (missing and missing[1] in self.installed), result.stderr

    def _substitute(self, word: str) -> list[str]:
        replaced = word
        for name, value in self.names.items():
            replaced = replaced.replace(name, value)
        return [word] if replaced == word else replaced.split()


def world_of(photographs: Path, folder: Path, **fields: Any) -> World:
    """Return a world with photographs in ~/Pictures and a query."""
    shutil.copytree(photographs, folder / "Pictures")
    shutil.copy(photographs / "wall-b.jpg", folder / "query.jpg")
    return World(folder, **fields)


def _check_install(arguments: list[str]) -> None:
    """Check that the extras to install exist: `test_wheel.py` installs them."""
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert arguments[0] == "install"
    for extra in re.findall(r"\[(.+?)\]", " ".join(arguments)):
        assert all(f"\n{name} = [" in project for name in extra.split(",")), extra


def _run_curl(arguments: list[str]) -> None:
    """Send the request to a server of the index; skip without curl."""
    curl = shutil.which("curl") or pytest.skip("needs curl")
    with running("photos.polyvoc") as server:
        local = [argument.replace("http://127.0.0.1:8000/", server.url) for argument in arguments]
        result = subprocess.run(
            [curl, "--silent", "--show-error", "--fail", *local], capture_output=True, text=True, check=False
        )
    assert result.returncode == 0 and json.loads(result.stdout), result.stderr


def _run_server(arguments: list[str]) -> None:
    with running(*arguments, environment={"POLYVOC_TOKEN": "a" * 40}) as server:
        port = re.search(r":(\d+)", server.url)
        assert port is not None
        assert httpx.get(f"http://127.0.0.1:{port[1]}/", timeout=60).status_code == 200
