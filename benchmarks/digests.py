"""What a result depends on: the modules that its script reaches by imports, and the data that these read; each with a digest.

The digest of a module is that of its syntax tree without docstrings, so comments and line breaks do not count. It needs no polyvoc.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PACKAGE = "src/polyvoc"
OUTER = ("agent", "cli", "cluster", "web")  # packages that count only if the script imports them, or `Needs.also` names them
NEUTRAL = (  # they change no number: names and version of the package, and what writes results
    f"{PACKAGE}/__init__.py",
    *(f"benchmarks/{name}.py" for name in ("digests", "machine", "registry", "runner", "sources", "states")),
)
DATA = {  # data of the package, by the module that reads it
    "vocabulary/vocabulary.py": (
        "vocabularies/0",
        "vocabularies/1",
        "vocabularies/2",
        "vocabularies/fine",
        "vocabularies/xfeat",
    ),
    "scoring/rules.py": ("likelihood",),
    "scoring/codes.py": ("likelihood",),
    "search/probability.py": ("hit_probability.json", "hit_probability_orb.json", "hit_probability_xfeat.json"),
    "duplicates/probability.py": ("duplicate_probability.json",),
}
LENGTH = 16  # hexadecimal digits


@dataclass(frozen=True)
class Needs:
    """What to look for beside the imports of a script.

    `also`: modules that it reaches in other ways, such as other processes, as patterns of paths in the repository. `without`: what does not
    matter although it is imported, packages, modules and data, as paths in the package.
    """

    script: str  # path in the repository
    also: tuple[str, ...] = ()
    data: tuple[str, ...] = ()  # special data (`Sources.special`) that it reads
    without: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()  # results that it reads


@dataclass(frozen=True)
class Sources:
    """The files of a repository; each is read once."""

    root: Path
    special: tuple[str, ...] = ()  # data that counts only for the benchmarks that name it
    trees: dict[str, ast.Module] = field(default_factory=dict)
    known: dict[str, str] = field(default_factory=dict)

    def digests(self, needs: Needs) -> dict[str, str]:
        """Return the digest of everything that a result depends on, by its path."""
        modules = self.modules(needs)
        data = {name for module in modules for name in DATA.get(module.removeprefix(f"{PACKAGE}/"), ())}
        data -= set(self.special) - set(needs.data)
        files = {f"{PACKAGE}/data/{name}" for name in data}
        results = {f"benchmarks/results/{name}.json" for name in needs.inputs}
        return {path: self.digest(path) for path in sorted(modules | files | results) if not below(path, needs.without)}

    def digest(self, path: str) -> str:
        """Return the digest of a module, a file or a folder of data; of nothing, if it does not exist."""
        if path not in self.known:
            if path.endswith(".py"):
                content = repr(list(plain(self.tree(path)))).encode()
            else:
                place = self.root / path
                files = sorted(place.rglob("*")) if place.is_dir() else [place]
                content = b"".join(file.read_bytes() for file in files if file.is_file())
            self.known[path] = short(content)
        return self.known[path]

    def modules(self, needs: Needs) -> set[str]:
        """Return the paths of all modules that a script reaches."""
        starts = {needs.script}.union(*(self.matching(pattern) for pattern in needs.also))
        direct = starts.union(*(self.imported(path) for path in self.own(needs.script)))
        barred = [name for name in OUTER if not any(below(path, [name]) for path in direct)]
        found: set[str] = set()
        left = starts
        while left:
            path = left.pop()
            found.add(path)
            left |= {one for one in self.imported(path) if not below(one, [*barred, *needs.without])} - found
        return found

    def matching(self, pattern: str) -> set[str]:
        """Return the paths that a pattern stands for."""
        return {str(path.relative_to(self.root)) for path in self.root.glob(pattern)} - set(NEUTRAL)

    def own(self, script: str) -> set[str]:
        """Return the modules beside a script, or of the tests, that it reaches."""
        found: set[str] = set()
        left = {script}
        while left:
            path = left.pop()
            found.add(path)
            left |= {one for one in self.imported(path) if not one.startswith(PACKAGE)} - found
        return found

    def imported(self, path: str) -> set[str]:
        """Return the paths of the modules of this repository that a module imports."""
        found: set[str] = set()
        for name, part in imports(self.tree(path)):
            if name == "polyvoc" and not path.startswith(PACKAGE):
                found |= self.public(part)
            else:
                found.update(self.files(path, name, part))
        return found - set(NEUTRAL)

    def public(self, name: str) -> set[str]:
        """Return the module of a public name of the package, or of all of them."""
        path = f"{PACKAGE}/__init__.py"
        named = [(module, part) for module, part in imports(self.tree(path), types=True) if name in ("", part)]
        return {file for module, part in named for file in self.files(path, module, part) if not below(file, OUTER)}

    def files(self, importer: str, name: str, part: str) -> Iterator[str]:
        """Yield the file of a module, and that of a part of it which is a module itself."""
        if name.partition(".")[0] == "polyvoc":
            places = ["src"]
        else:
            places = [] if importer.startswith(PACKAGE) else [importer.partition("/")[0], "benchmarks", "tests"]
        for dotted in (name, f"{name}.{part}" if part else name):
            ending = dotted.replace(".", "/")
            paths = [f"{place}/{ending}{suffix}" for place in places for suffix in (".py", "/__init__.py")]
            yield from [path for path in paths if (self.root / path).is_file()][:1]

    def tree(self, path: str) -> ast.Module:
        """Return the syntax tree of a module."""
        if path not in self.trees:
            self.trees[path] = ast.parse((self.root / path).read_text(encoding="utf-8"), path)
        return self.trees[path]


def imports(tree: ast.Module, types: bool = False) -> Iterator[tuple[str, str]]:
    """Yield (module, name in it or nothing) of every import, also of those in functions; for type checkers only if wanted."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not types:
            left += node.orelse
            continue
        left += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, alias.name) for alias in node.names)


def plain(node: ast.AST) -> Iterator[Any]:
    """Yield what a tree consists of, without docstrings and empty fields: the same in every version of Python."""
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        content = value[documented(node) :] if name == "body" and isinstance(value, list) else value
        if content is None or content == [] or name == "kind":
            continue
        parts = content if isinstance(content, list) else [content]
        yield name, [list(plain(part)) if isinstance(part, ast.AST) else repr(part) for part in parts]


def documented(node: ast.AST) -> bool:
    """Return whether a node has a docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None


def below(path: str, places: Iterable[str]) -> bool:
    """Return whether a path is one of some places in the package, or lies in it."""
    return any(path == f"{PACKAGE}/{place}" or path.startswith(f"{PACKAGE}/{place}/") for place in places)


def short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:LENGTH]


def combined(digests: Mapping[str, str]) -> str:
    """Return one digest of many."""
    return short(repr(sorted(digests.items())).encode())


def changes(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the paths whose digests differ, or that are on one side only."""
    return sorted(path for path in {*before, *now} if before.get(path) != now.get(path))
