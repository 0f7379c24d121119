"""A global embedding over HTTP: the answers of the command line, with vectors of pixels that were decoded elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_web_answers import without_times

from commands import answer
from onnxfiles import chain
from polyvoc.index.writer import IndexWriter
from servers import Served, refused, serving, upload

pytest.importorskip("onnxruntime", reason="models need onnxruntime: pip install 'polyvoc[embedding]'")


@pytest.fixture(scope="module")
def served(photographs: Path, vocabularies: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("embedded")
    (folder / "colours.onnx").write_bytes(chain("GlobalAveragePool", "Flatten", output=(1, 3)))  # the mean of each colour
    with IndexWriter.open(folder / "photos.polyvoc", vocabularies, embedding=folder / "colours.onnx") as writer:
        writer.update([photographs])
    with serving(folder / "photos.polyvoc") as found:
        yield found


def test_fused_answers_are_those_of_the_command_line(served: Served, photographs: Path) -> None:
    photo = photographs / "market-b.jpg"
    typed = answer("search", photo, "--fuse", "--index", served.service.settings.index)
    assert without_times(served.search(photo, fuse=True).json()) == without_times(typed)
    assert "embed" in typed["seconds"]
    plain = served.search(photo).json()
    assert [hit["score"] for hit in plain["hits"]] != [hit["score"] for hit in typed["hits"]]


def test_kept_photographs_and_images_fuse_too(served: Served, photographs: Path) -> None:
    photo = photographs / "market-b.jpg"
    kept = served.client.post("/queries", files={"photo": upload(photo)}).json()["query"]
    assert served.search(query=kept, fuse=True).json()["hits"] == served.search(photo, fuse=True).json()["hits"]
    assert served.search(query=3, fuse=True).status_code == 200


def test_a_region_does_not_fuse(served: Served, photographs: Path) -> None:
    photo = photographs / "market-b.jpg"
    kept = served.client.post("/queries", files={"photo": upload(photo)}).json()["query"]
    for told in (
        served.search(photo, fuse=True, region="10,10,200,200"),
        served.search(query=kept, fuse=True, region="10,10,200,200"),
        served.search(query=3, fuse=True, region="10,10,200,200"),
    ):
        assert "fuse hears whole photographs" in refused(told, 422)
