"""The site builds without a warning, and every command and program on its pages works."""

from __future__ import annotations

import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import field, fields, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import onnxfiles
from buckets import folder_on_the_web, s3  # noqa: F401
from pages import DOCS, ROOT, World, pages, world_of
from polyvoc.options import SearchOptions
from views import write_views

pytest.importorskip("sphinx", reason="needs Sphinx: pip install 'polyvoc[docs]'")
# Pages that need photographs, at most an index of them; the other pages with commands have a test of their own.
PLAIN = (
    "index.md", "installation.md", "quickstart.md", "tour.md", "tutorials/python.md", "serving.md", "confidence.md", "scale.md",
    "ranking.md",
    "security.md", "mcp.md", "folders.md",
)  # fmt: skip
PREPARED = {
    "README.md",
    "vocabulary.md",
    "evaluate.md",
    "embedding.md",
    "photogrammetry.md",
    "features.md",
    "several.md",
    "learned.md",
    "duplicates.md",
    "stores.md",
    "findings.md",
}
IN_CLUSTERS = {"cluster.md"}  # run by the tests of the cluster


@pytest.fixture
def world(photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A home folder with photographs."""
    for name in ("POLYVOC_INDEX", "POLYVOC_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("POLYVOC_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield world_of(photographs, tmp_path)


def test_it_builds_without_warnings(tmp_path: Path) -> None:
    options = ["-W", "--keep-going", "-q", "-E", "-d", tmp_path / "doctrees"]
    command = [sys.executable, "-m", "sphinx", *options, DOCS, tmp_path / "site"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    commands, records, library = (
        (tmp_path / "site" / "reference" / f"{name}.html").read_text(encoding="utf-8")
        for name in ("commands", "records", "library")
    )
    assert "--sigma" in commands and "Hamming" in commands
    assert "argest Hamming distance of a match" in records
    assert "UnreachableError" in library
    assert "<!-- made" not in commands + records + library and "<!-- record" not in records


def test_reference_reads_help_from_metadata_or_comments() -> None:
    conf = runpy.run_path(str(DOCS / "conf.py"))
    rows = list(conf["record"]("SearchOptions"))
    described = {row.split("|")[1].strip(): row.split("|")[-2].strip() for row in rows if row.startswith("| `")}
    assert set(described) == {f"`{field.name}`" for field in fields(SearchOptions)}
    assert all(described.values()), described
    made = field(default=3, metadata={"help": "Number of words."})
    made.name, made.type = "size", "int"
    assert conf["_field"](made, None) == ("size", "`int`", "`3`", "Number of words.")


def test_every_page_with_commands_is_run() -> None:
    assert {page.name for page in pages()} <= {Path(page).name for page in PLAIN} | PREPARED | IN_CLUSTERS


@pytest.mark.parametrize("page", PLAIN)
def test_commands_of_a_page_work(page: str, world: World) -> None:
    if page in ("tour.md", "serving.md", "confidence.md", "ranking.md", "security.md"):
        world.type(["polyvoc", "index", "Pictures"])
    world.follow(DOCS / page)


def test_the_readme(world: World) -> None:
    write_views(world.folder / "FOLDER")
    for name in "ab":
        shutil.copy(world.folder / "query.jpg", f"{name}.jpg")
    world.names = {"query=17": "query=7", "holidays": "groups"}
    # CI runs the scripts, tests/cluster what needs machines, tests/cli what needs more photographs.
    remote = ("polyvoc index ~/Pictures --ray", "polyvoc search query.jpg --ray", "polyvoc serve --ray")
    world.elsewhere = ("scripts/", "ray ", *remote, "polyvoc reproduce", "polyvoc calibrate")
    world.follow(ROOT / "README.md", programs=1)


def test_the_page_on_the_paper(world: World) -> None:
    write_views(world.folder / "FOLDER")
    world.names, world.elsewhere = {"holidays": "groups"}, ("polyvoc reproduce", "polyvoc search")
    world.follow(DOCS / "findings.md")


def test_the_tutorial_on_vocabularies(world: World) -> None:
    write_views(world.folder / "Pictures" / "views")  # photographs taken anew, which a calibration needs
    world.follow(DOCS / "tutorials" / "vocabulary.md")


def test_the_tutorial_on_evaluation(world: World) -> None:
    write_views(world.folder / "groups")
    shutil.copytree(world.folder / "groups", world.folder / "others")
    world.follow(DOCS / "tutorials" / "evaluate.md")


def test_the_page_on_embeddings(world: World) -> None:
    (world.folder / "efficientnet_lite2.onnx").write_bytes(onnxfiles.chain("GlobalAveragePool", output=(1, 3, 1, 1)))
    (world.folder / "pictures").symlink_to("Pictures")
    world.follow(DOCS / "embedding.md")


def test_the_page_on_photogrammetry(world: World) -> None:
    from polyvoc import extract
    from polyvoc.features.hloc import write_features

    shutil.copytree(world.folder / "Pictures", world.folder / "photos")
    named = {path.name: extract(path) for path in sorted((world.folder / "photos").iterdir())}
    doubled = {name: np.hstack([one.descriptors] * 2) / np.sqrt(2) for name, one in named.items()}  # instead of a network's
    made = [(name, replace(one, descriptors=doubled[name], name="superpoint")) for name, one in named.items()]
    write_features("feats-superpoint-n4096-r1024.h5", made)
    world.names = {"20000": "300"}
    world.follow(DOCS / "photogrammetry.md")
    pairs = {tuple(line.split()) for line in Path("pairs.txt").read_text().splitlines()}
    assert ("wall-a.jpg", "wall-b.jpg") in pairs


def test_the_page_on_features(world: World) -> None:
    world.names = {"20000": "300"}
    world.follow(DOCS / "features.md")


def test_the_page_on_several_indexes(world: World) -> None:
    world.names = {"20000": "300"}
    world.follow(DOCS / "several.md")


def test_the_page_on_networks(world: World) -> None:
    (world.folder / "xfeat.onnx").write_bytes(onnxfiles.patches())
    (world.folder / "xfeat.json").write_text(json.dumps(onnxfiles.PATCHES | {"name": "xfeat"}), encoding="utf-8")
    world.names = {"20000": "300"}
    world.follow(DOCS / "learned.md")
    assert Path("xfeat.polyvoc").is_dir() and Path("own.polyvoc").is_dir()


def test_the_page_on_copies(world: World) -> None:
    with Image.open("Pictures/wall-a.jpg") as wall:
        wall.convert("L").resize((240, 180)).save("Pictures/small.jpg")
    (world.folder / "photographs").symlink_to("Pictures")
    world.names = {"first.jpg": "Pictures/wall-a.jpg", "second.jpg": "Pictures/wall-b.jpg"}
    world.elsewhere = ("polyvoc calibrate",)  # needs more verdicts
    world.follow(DOCS / "duplicates.md")
    assert "small.jpg" in Path("report.csv").read_text() and Path("report.html").exists()
    assert Path("Pictures/small.jpg").exists()


def test_the_page_on_stores(world: World, s3: None) -> None:  # noqa: F811
    import fsspec

    (world.folder / "packed").mkdir()
    shutil.copytree(world.folder / "Pictures", world.folder / "packed" / "holidays")
    archive = shutil.make_archive(str(world.folder / "2019"), "zip", world.folder / "packed")
    bucket = fsspec.filesystem("s3")
    for name in ("bucket", "a-public-bucket"):
        bucket.mkdir(name, acl="public-read")
        bucket.put(str(world.folder / "Pictures"), f"{name}/photos", recursive=True)
    bucket.put(archive, "bucket/2019.zip")
    bucket.put(str(world.folder / "query.jpg"), "bucket/query.jpg")
    bucket.put(str(world.folder / "query.jpg"), "bucket/photos/2019/a.jpg")
    with folder_on_the_web(world.folder / "Pictures") as address:
        world.names = {
            "/archives": str(world.folder),
            "http://minio:9000": os.environ["AWS_ENDPOINT_URL"],
            "https://host/photos": address,
        }
        world.follow(DOCS / "stores.md")


def test_the_site_has_every_page() -> None:
    text = (DOCS / "index.md").read_text(encoding="utf-8")
    listed = {line for line in text.splitlines() if (DOCS / f"{line}.md").is_file()}
    there = {str(page.relative_to(DOCS).with_suffix("")) for page in DOCS.rglob("*.md")} - {"index"}
    assert listed == there
    assert (ROOT / "scripts" / "docs").stat().st_mode & 0o111
