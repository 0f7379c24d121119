"""The layout is that of ARCHITECTURE.md: packages and their order, files, public names, modules of the heavy libraries."""

from __future__ import annotations

import ast
import builtins
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import polyvoc

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "polyvoc"
TEXT = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
BASE = ("errors", "types", "options", "threads")  # modules at the root, in their order
PACKAGES = tuple(re.findall(r"^\| `([a-z]+)` \|", TEXT, re.M))  # in the order of the table
ORDER = (*BASE, *PACKAGES)
HEAVY = {
    "cv2": {"duplicates.alignment", "features.extract", "features.learned", "features.sift"},
    "pycolmap": {"features.colmap", "features.extract"},
    "h5py": {"features.hloc"},
    "faiss": set(),
    "PIL": {"features.pixels", "features.pictures", "cli.demo_photos"},
    "numba": {"kernels.compiler"},
    "sqlite3": {"storage.sqlite"},
    "fastapi": {"web.server", "web.routes"},
    "uvicorn": {"web.server", "web.connections"},
    "h11": {"web.connections"},
    "prometheus_client": {"web.metrics"},
    "pydantic": {"agent.server", "web.schemas"},
    "mcp": {"agent.server"},
    "rich": {"cli.terminal", "cli.answers"},
    "filelock": {"index.folder"},
    "pathspec": {"storage.exclusions"},
    "watchfiles": {"index.watch"},
    "pi_heif": {"features.pixels"},
    "pillow_jxl": {"features.pixels"},
    "rawpy": {"features.pixels"},
    "matplotlib": {"experiments.report.plots"},
    "pyhesaff": {"experiments.datasets.hessian_affine"},
    "pandas": {"search.hits"},
    "onnxruntime": {"features.onnx"},
    "ray": {"cluster.connect"},
    "fsspec": {"storage.stores"},
}
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.parent != PACKAGE or path.stem in BASE)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path, types: bool = True, functions: bool = True) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (module, names) of every import; those inside functions and those for type checkers only if wanted."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" and not types:
            node.body = []
        if isinstance(node, ast.FunctionDef) and not functions:
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, tuple(alias.name for alias in node.names)


def upward_imports(name: str, imports: Iterator[tuple[str, tuple[str, ...]]]) -> list[str]:
    """Return the imports of a module that do not go to an earlier package, or to its own."""
    own = name.split(".", 1)[0]
    wrong = []
    for module, names in imports:
        parts = module.split(".")
        if parts[0] != "polyvoc" or names == ("__version__",):
            continue
        target = parts[1] if len(parts) > 1 else "polyvoc"
        allowed = target in ORDER and ORDER.index(target) <= ORDER.index(own)
        if own == "kernels":
            allowed = target == "kernels"
        if own == "experiments" and target == "web":
            allowed = module == "polyvoc.web.html"
        if target == "experiments":
            allowed = own == "experiments" or name in ("cli.research", "cli.terminal")
        if not allowed:
            wrong.append(module)
    return wrong


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_one_way(path: Path) -> None:
    assert upward_imports(module_name(path), imports_of(path)) == []


def test_a_wrong_import_is_found() -> None:
    source = [("polyvoc.search.index", ("Index",)), ("polyvoc.types", ("Array",)), ("numpy", ())]
    assert upward_imports("scoring.engine", iter(source)) == ["polyvoc.search.index"]
    assert upward_imports("kernels.lists", iter(source)) == ["polyvoc.search.index", "polyvoc.types"]
    assert upward_imports("cli.main", iter([("polyvoc.experiments.cache", ("keep",))])) == ["polyvoc.experiments.cache"]


def test_no_cycle_of_modules() -> None:
    names = {module_name(path) for path in MODULES}
    graph = {}
    for path in MODULES:
        targets = {module.removeprefix("polyvoc.") for module, _ in imports_of(path, types=False, functions=False)}
        graph[module_name(path)] = (targets & names) - {module_name(path)}
    assert list(TopologicalSorter(graph).static_order())


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_symbols_are_imported_not_modules(path: Path) -> None:
    if module_name(path) == "cli.main":
        return  # collects the commands of its modules
    names = {module_name(other) for other in MODULES}
    for module, symbols in imports_of(path):
        for symbol in symbols:
            assert f"{module}.{symbol}".removeprefix("polyvoc.") not in names, f"imports the module {module}.{symbol}"


def test_the_layout_is_described() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    assert set(PACKAGES) == folders
    assert {path.stem for path in PACKAGE.glob("*.py")} == {*BASE, "__init__", "__main__"}
    for path in MODULES:
        if path.name != "__init__.py" and "experiments" not in path.parts:
            assert re.search(rf"`{path.stem}`|/{path.stem}\.py", TEXT), f"{module_name(path)} is missing in ARCHITECTURE.md"
    for package in folders:
        assert ast.get_docstring(ast.parse((PACKAGE / package / "__init__.py").read_text(encoding="utf-8")))


def test_named_files_exist() -> None:
    for name in set(re.findall(r"`([a-z_]+/[a-z_/]+\.py)`", TEXT)):
        assert any((folder / name).is_file() for folder in (PACKAGE, PACKAGE.parent, ROOT)), name


def test_architecture_fits_three_screens() -> None:
    assert len(TEXT.splitlines()) <= 130


@pytest.mark.parametrize("library", HEAVY)
def test_a_heavy_library_has_one_door(library: str) -> None:
    users = {module_name(path) for path in MODULES if any(m.split(".")[0] == library for m, _ in imports_of(path, types=False))}
    assert users <= HEAVY[library]


def test_names_are_unambiguous() -> None:
    """No class name stands for two classes, and no definition shadows a built-in."""
    classes: Counter[str] = Counter()
    for path in MODULES:
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name] += 1
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                assert not hasattr(builtins, node.name), f"{module_name(path)}: {node.name} shadows a built-in"
    assert [name for name, count in classes.items() if count > 1] == []


def test_plain_words() -> None:
    """Docstrings use plain verbs."""
    private = re.compile(r'"""(Give|Tell|Say|Let|Refuse|Ask|Hear)\b')
    for path in MODULES:
        found = private.search(path.read_text(encoding="utf-8"))
        assert found is None, f"{module_name(path)}: a docstring begins with {found[1] if found else ''}"


def test_linked_files_exist() -> None:
    for document in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text(encoding="utf-8")):
            assert (ROOT / target).exists(), f"{document.name} links to {target}"


def test_public_names_exist() -> None:
    assert len(set(polyvoc.__all__)) == len(polyvoc.__all__)
    for name in polyvoc.__all__:
        assert getattr(polyvoc, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = polyvoc.no_such_name


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("polyvoc", "numpy numba cv2 faiss PIL fastapi pydantic ray"),
        ("polyvoc.cli.main", "numba cv2 faiss PIL fastapi pydantic ray onnxruntime"),
        ("polyvoc.search.index", "faiss PIL fastapi pydantic ray onnxruntime"),
        ("polyvoc.index.writer", "faiss PIL fastapi pydantic ray onnxruntime"),
    ],
)
def test_import_is_light(module: str, heavy: str) -> None:
    code = f"import sys, {module}; print(sorted(set({heavy.split()}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_no_path_of_a_machine() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.py"), *PACKAGE.rglob("*.py")]:
        assert not re.search(r"/(home|root|work|Users)/\w", path.read_text(encoding="utf-8")), path
