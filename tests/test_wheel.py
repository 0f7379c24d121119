"""The built wheel, installed in an empty environment: it holds all that a first search needs."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*command: object, folder: Path | None = None) -> str:
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


def test_it_holds_what_is_needed(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in ("0", "1", "2", "fine"):
        assert {f"polyvoc/data/vocabularies/{folder}/{name}" for name in ("meta.json", "words.npy", "rotation.npy")} <= names
    data = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "polyvoc" / "data").rglob("*") if path.is_file()}
    assert {f"polyvoc/data/{name}" for name in ("vocabularies/fine/decoder.npy", "likelihood/codes-128.json")} <= data <= names
    assert {Path(name).name for name in names if ".dist-info/licenses/" in name} == {"LICENSE", "NOTICE"}
    assert {"polyvoc/py.typed", "polyvoc/web/page/index.html"} <= names
    assert not {name for name in names if "__pycache__" in name or name.startswith(("tests/", "benchmarks/", "docs/"))}


def test_it_works_in_an_empty_environment(wheel: Path, photographs: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    programs = tmp_path / "venv" / "bin"
    run(programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
    assert "polyvoc" in run(programs / "polyvoc", "--version", folder=tmp_path)
    run(programs / "polyvoc", "index", photographs, folder=tmp_path)
    (result,) = json.loads(
        run(programs / "polyvoc", "search", photographs / "wall-b.jpg", "--top", "3", "--json", folder=tmp_path)
    )["results"]
    assert {Path(hit["path"]).name for hit in result["hits"]} == {"wall-a.jpg", "wall-b.jpg", "wall-c.jpg"}
    source = "import polyvoc\nindex: polyvoc.Index = polyvoc.open('photos.polyvoc')\nreveal_type(index.search(3)[0].score)\n"
    (tmp_path / "program.py").write_text(source, encoding="utf-8")
    checked = run(
        sys.executable, "-m", "mypy", "--strict", "--python-executable", programs / "python", "program.py", folder=tmp_path
    )
    assert 'Revealed type is "float"' in checked.replace("builtins.", "")
