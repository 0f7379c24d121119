"""The layout is what ARCHITECTURE.md says: layers, links, public names, doors of the heavy libraries."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import polyvoc

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "polyvoc"
DOORS = {
    "cv2": {"detectors"},
    "pycolmap": {"colmap", "detectors"},
    "h5py": {"hloc"},
    "faiss": set(),
    "PIL": {"images", "demo"},
    "numba": {"kernels.compiler"},
    "sqlite3": {"database"},
    "typer": {"cli", "flags", "housekeeping", "photogrammetry", "research", "teaching", "web.command"},
    "fastapi": {"web.app", "web.routes", "web.replies"},
    "uvicorn": {"web.server"},
    "prometheus_client": {"web.metrics"},
    "pydantic": {"web.parameters", "web.records"},
    "rich": {"console"},
    "filelock": {"founding"},
    "matplotlib": {"lab.plots"},
    "onnxruntime": {"embedding"},
    "ray": {"cluster.machines"},
    "fsspec": {"stores"},
}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports at run time, also inside functions; not those for types only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def layers() -> dict[str, int]:
    rows = re.findall(r"^\| (\d) [a-z]+ \| ([\w, ]+) \|$", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.M)
    return {name: int(layer) for layer, names in rows for name in names.split(", ")}


def layers_within(part: str) -> dict[str, int]:
    rows = re.findall(rf"^\| {part} (\d) \| ([\w, ]+) \|$", (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"), re.M)
    return {name: int(layer) for layer, names in rows for name in names.split(", ")}


MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", MODULES, ids=module_name)
def test_imports_go_down(path: Path) -> None:
    layer = layers()
    name = module_name(path).split(".")[0]
    assert name in layer, f"{name} is missing in the table of ARCHITECTURE.md"
    for imported in imports_of(path):
        parts = imported.split(".")
        if parts[0] == "polyvoc" and len(parts) > 1 and parts[1] in layer:
            assert layer[parts[1]] <= layer[name], f"{name} (layer {layer[name]}) imports {parts[1]} (layer {layer[parts[1]]})"


@pytest.mark.parametrize(
    "path", sorted(path for path in MODULES if path.parent.name in ("lab", "web", "cluster", "copies")), ids=module_name
)
def test_imports_within_a_part_go_down(path: Path) -> None:
    part = path.parent.name
    layer = layers_within(part)
    assert path.stem in layer, f"{path.stem} is missing in the table of ARCHITECTURE.md"
    for imported in imports_of(path):
        parts = imported.split(".")
        if parts[:2] == ["polyvoc", part] and len(parts) > 2 and parts[2] in layer:
            assert layer[parts[2]] <= layer[path.stem], f"{path.stem} imports {parts[2]}"


@pytest.mark.parametrize("library", DOORS)
def test_a_heavy_library_has_one_door(library: str) -> None:
    users = {module_name(path) for path in MODULES if any(name.split(".")[0] == library for name in imports_of(path))}
    assert users <= DOORS[library]


def test_every_module_is_described_and_tested() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in MODULES:
        assert f"`{path.name}`" in text or path.name == "__main__.py" or path.parent.name == "kernels", path.name


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


def test_import_is_light() -> None:
    heavy = {"numpy", "numba", "cv2", "faiss", "PIL", "fastapi", "pydantic"}
    code = f"import sys, polyvoc; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_nothing_reaches_into_the_workplace() -> None:
    """The project speaks of itself alone: no absolute path of a developer's machine."""
    for path in [*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.py"), *PACKAGE.rglob("*.py")]:
        assert not re.search(r"/(home|root|work|Users)/\w", path.read_text(encoding="utf-8")), path
