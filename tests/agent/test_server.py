"""An agent's client, by the SDK: what it can call, what it gets, and what it cannot read."""

from __future__ import annotations

import asyncio
import io
import json
import os
import re
import shutil
import sys
from base64 import b64decode
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.main import get_command

pytest.importorskip("mcp", reason="needs the SDK of the protocol: pip install 'polyvoc[mcp]'")
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import CallToolResult, ImageContent, TextContent

from polyvoc.agent.server import make_server
from polyvoc.agent.tools import LARGEST_THUMBNAIL, MAX_THUMBNAILS, THUMBNAIL, Tools
from polyvoc.cli.main import app
from polyvoc.duplicates.compare import compare
from polyvoc.errors import OptionError
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from servers import PATIENCE

ROOT = Path(__file__).parent.parent.parent

NAMES = {"search", "explain", "info", "list_images", "look", "duplicates"}
Ask = Callable[[Client], Awaitable[Any]]


def ask(server: Any, what: Ask) -> Any:
    """Return what comes of some calls of one client."""

    async def run() -> Any:
        async with Client(server, read_timeout_seconds=PATIENCE) as client:
            return await what(client)

    return asyncio.run(run())


def call(tools: Tools, tool: str, **arguments: Any) -> CallToolResult:
    result = ask(make_server(tools), lambda client: client.call_tool(tool, arguments))
    assert isinstance(result, CallToolResult)
    return result


def values_of(result: CallToolResult) -> dict[str, Any]:
    """The plain values, which are the first text as well."""
    assert not result.is_error, result.content
    first = result.content[0]
    assert isinstance(first, TextContent) and json.loads(first.text) == result.structured_content
    return result.structured_content


def pictures_of(result: CallToolResult) -> list[Image.Image]:
    images = [content for content in result.content if isinstance(content, ImageContent)]
    assert all(image.mime_type == "image/jpeg" for image in images)
    return [Image.open(io.BytesIO(b64decode(image.data))) for image in images]


def error_of(result: CallToolResult) -> str:
    (content,) = result.content
    assert result.is_error and isinstance(content, TextContent)
    assert len(content.text.splitlines()) == 1
    return content.text


@pytest.fixture
def tools(coded_index_path: Path) -> Tools:
    return Tools(coded_index_path)


def test_a_client_over_standard_input_and_output(coded_index_path: Path, photographs: Path) -> None:
    """The command, as clients start it; in a folder of its own, and with the notes of the user who made the index."""
    passed = {name: os.environ[name] for name in ("XDG_CONFIG_HOME", "PYTHONPATH") if name in os.environ}
    command = StdioServerParameters(
        command=sys.executable, args=["-m", "polyvoc", "mcp", str(coded_index_path)], env=passed, cwd="/"
    )

    async def calls(client: Client) -> tuple[Any, ...]:
        listed = await client.list_tools()
        query = {"path": str(photographs / "wall-b.jpg"), "top": 3, "thumbnails": 2}
        found = await client.call_tool("search", query)
        return listed.tools, found, await client.call_tool("search", {"path": "/etc/passwd"})

    listed, found, refused = ask(stdio_client(command), calls)
    assert {tool.name for tool in listed} == NAMES
    assert all(tool.annotations.read_only_hint and tool.description for tool in listed)
    assert {Path(hit["path"]).name for hit in values_of(found)["hits"]} == {"wall-a.jpg", "wall-b.jpg", "wall-c.jpg"}
    assert [max(picture.size) for picture in pictures_of(found)] == [THUMBNAIL] * 2
    assert "query photographs lie below" in error_of(refused)


def test_the_page_describes_every_tool(tools: Tools) -> None:
    """The table has the arguments of each; the configuration starts the command with flags that it has."""
    page = (ROOT / "docs" / "mcp.md").read_text(encoding="utf-8")
    listed = ask(make_server(tools), lambda client: client.list_tools()).tools
    for tool in listed:
        (row,) = re.findall(rf"^\| `{tool.name}` \| (.*?) \|", page, re.M)
        named = set(re.findall(r"`(\w+)`", row.replace("as in `search`", "`path` `image` `region` `preset`")))
        assert named == set(tool.input_schema.get("properties", {})), tool.name
    (block,) = re.findall(r"```json\n(.*?)```", page, re.S)
    (server,) = json.loads(block)["mcpServers"].values()
    assert Path(server["command"]).name == "polyvoc" and server["args"][0] == "mcp"
    flags = {name for parameter in get_command(app).commands["mcp"].params for name in parameter.opts}
    assert {argument for argument in server["args"] if argument.startswith("--")} <= flags


def test_hits_are_those_of_the_library(tools: Tools, photographs: Path) -> None:
    path = str(photographs / "tower-b.jpg")
    hits = tools.index.search(path, region=(0, 0, 200, 200), preset="fast", top=4)
    result = call(tools, "search", path=path, region=[0, 0, 200, 200], preset="fast", top=4, thumbnails=1)
    values = values_of(result)
    assert [(hit["image"], hit["path"], hit["score"]) for hit in values["hits"]] == [(h.image, h.path, h.score) for h in hits]
    assert values["query"] == path and values["region"] == [0, 0, 200, 200] and not {"options", "seconds"} & values.keys()
    caption = result.content[1]
    assert isinstance(caption, TextContent) and caption.text.startswith(f"hit 1: image {hits[0].image}, {hits[0].path}")
    (picture,) = pictures_of(result)
    assert max(picture.size) == THUMBNAIL and not picture.getexif()


def test_an_image_of_the_index_is_a_query(tools: Tools) -> None:
    (first, *_) = values_of(call(tools, "search", image=5, thumbnails=0))["hits"]
    assert first["image"] == 5
    assert not pictures_of(call(tools, "search", image=5, thumbnails=0))


@pytest.mark.parametrize("given", [{"image": 1}, {"path": "wall-a.jpg"}])
def test_an_explanation_has_geometry_and_both_pictures(tools: Tools, photographs: Path, given: dict[str, Any]) -> None:
    if "path" in given:
        given = {"path": str(photographs / given["path"])}
    image = values_of(call(tools, "search", **given))["hits"][1]["image"]
    result = call(tools, "explain", hit=image, **given)
    values = values_of(result)
    assert values["image"]["image"] == image and values["inliers"] > 0 and len(values["outline"]) == 4
    assert (values["query"]["width"], values["query"]["height"]) == (360, 270)
    assert 0 < len(values["matches"]) <= values["n_matches"] and values["matches"][0]["weight"] > 0
    assert len(pictures_of(result)) == 2


def test_images_are_listed_by_pages(tools: Tools) -> None:
    everything = values_of(call(tools, "list_images"))
    assert everything["total"] == len(everything["images"]) == 12
    page = values_of(call(tools, "list_images", find="wall", page=1, size=2))
    assert (page["total"], page["pages"], len(page["images"])) == (3, 2, 1) and "wall" in page["images"][0]["path"]


def test_pictures_have_the_side_that_is_given(tools: Tools) -> None:
    assert [max(picture.size) for picture in pictures_of(call(tools, "look", images=[2, 3], side=64))] == [64, 64]
    assert "image 99 is not in the index" in error_of(call(tools, "look", images=[1, 99]))


def test_the_index_is_described(tools: Tools, photographs: Path) -> None:
    values = values_of(call(tools, "info"))
    assert values["images"] == 12 and values["n_problems"] == 0 and values["not_read"] is None
    assert values["folders"] == [str(photographs)] and values["query_roots"] == [os.path.realpath(photographs)]


def test_copies_are_listed(photographs: Path, vocabularies: Any, fine: Any, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    for name in ("wall-a", "tower-a"):
        shutil.copy(photographs / f"{name}.jpg", tmp_path / "photos")
    shutil.copy(photographs / "wall-a.jpg", tmp_path / "photos" / "copy.jpg")
    with IndexWriter.open(tmp_path / "photos.polyvoc", vocabularies) as writer:
        writer.update([tmp_path / "photos"])
        tools = Tools(tmp_path / "photos.polyvoc")
        assert values_of(call(tools, "duplicates"))["not_compared"] == 3
        compare(writer)
    result = call(tools, "duplicates", thumbnails=5)
    values = values_of(result)
    assert (values["total"], values["not_compared"], values["images"]) == (1, 0, 3) and "advice" not in values
    (group,) = values["groups"]
    assert {Path(file["path"]).name for file in (group["best"], *group["copies"])} == {"copy.jpg", "wall-a.jpg"}
    assert group["copies"][0]["change"] == "identical file" and len(pictures_of(result)) == 2
    assert values_of(call(tools, "duplicates", page=1))["groups"] == []


# -- what may be read


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("wall-a.jpg", "is no absolute path"),
        ("https://example.org/a.jpg", "is no absolute path"),
        ("file:///etc/passwd", "is no absolute path"),
        ("/etc/passwd", "query photographs lie below"),
        ("/no/such/file", "query photographs lie below"),  # as for one that is there
        ("~/a.jpg", "query photographs lie below"),
        ("{roots}-others/a.jpg", "query photographs lie below"),
        ("{roots}/../a.jpg", "query photographs lie below"),
        ("{roots}/a\0.jpg", "is no absolute path"),
        ("{roots}/none.jpg", "no such file"),
        ("{roots}", "a folder, not a photograph"),
    ],
)
def test_queries_lie_below_the_roots(tools: Tools, photographs: Path, path: str, message: str) -> None:
    for tool, more in (("search", {}), ("explain", {"hit": 1})):
        assert message in error_of(call(tools, tool, path=path.format(roots=photographs), **more))


def test_links_do_not_lead_out_of_the_roots(coded_index_path: Path, photographs: Path, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    shutil.copy(photographs / "wall-a.jpg", tmp_path / "root" / "own.jpg")
    (tmp_path / "root" / "link.jpg").symlink_to(photographs / "wall-a.jpg")
    (tmp_path / "root" / "folder").symlink_to(photographs)
    (tmp_path / "linked").symlink_to(tmp_path / "root")
    for root in ("root", "linked"):
        tools = Tools(coded_index_path, [str(tmp_path / root)])
        assert len(values_of(call(tools, "search", path=str(tmp_path / "linked" / "own.jpg")))["hits"]) > 1
        for name in ("link.jpg", "folder/wall-a.jpg"):
            assert "query photographs lie below" in error_of(call(tools, "search", path=str(tmp_path / root / name)))
        assert "query photographs lie below" in error_of(call(tools, "search", path=str(photographs / "wall-a.jpg")))


@pytest.mark.parametrize(("root", "message"), [("s3://bucket/a", "is no folder of this machine"), ("/no/such", "/no/such")])
def test_roots_are_folders(coded_index_path: Path, root: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        Tools(coded_index_path, [root])


def test_photographs_of_a_strange_index_are_not_read(
    coded_index_path: Path, photographs: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It can be searched by its images; neither they nor queries of the folders that it names are read."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody"))
    tools = Tools(coded_index_path)
    result = call(tools, "search", image=1, thumbnails=3)
    assert len(values_of(result)["hits"]) > 1 and pictures_of(result) == []
    captions = [content.text for content in result.content[1:] if isinstance(content, TextContent)]
    assert len(captions) == 3 and all("no picture: " in text and "was made elsewhere" in text for text in captions)
    info = values_of(call(tools, "info"))
    assert "polyvoc trust" in info["not_read"] and info["query_roots"] == []
    assert "--root" in error_of(call(tools, "search", path=str(photographs / "wall-a.jpg")))
    assert "polyvoc trust" in error_of(call(tools, "duplicates"))


def test_only_the_indexed_file_is_shown(photographs: Path, vocabularies: Any, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(photographs, tmp_path / "photos"))
    with IndexWriter.open(tmp_path / "photos.polyvoc", vocabularies) as writer:
        writer.update([folder])
    tools = Tools(tmp_path / "photos.polyvoc")
    os.utime(folder / "bridge-a.jpg", (1, 1))  # the same bytes
    (folder / "bridge-b.jpg").unlink()
    shutil.copy(folder / "wall-a.jpg", folder / "bridge-c.jpg")
    by_name = {Path(row.path).name: row.image for row in tools.index.images()}
    for name, n_pictures in (("bridge-a.jpg", 1), ("bridge-b.jpg", 0), ("bridge-c.jpg", 0)):
        assert len(pictures_of(call(tools, "look", images=[by_name[name]]))) == n_pictures, name


# -- limits


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("search", {}, "give either the path of a photograph or the id"),
        ("search", {"image": 1, "path": "/a.jpg"}, "give either"),
        ("search", {"image": 1, "region": [5, 5, 1, 1]}, "region"),
        ("explain", {"image": 1, "hit": 99}, "image 99 is not in the index"),
        ("explain", {"image": 99, "hit": 1}, "image 99 is not in the index"),
    ],
)
def test_errors_are_one_line(tools: Tools, tool: str, arguments: dict[str, Any], message: str) -> None:
    assert message in error_of(call(tools, tool, **arguments))


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("search", {"image": 1, "top": 10**9}),
        ("search", {"image": 1, "thumbnails": MAX_THUMBNAILS + 1}),
        ("search", {"image": 1 << 63}),
        ("search", {"image": -1}),
        ("search", {"image": 1, "region": [1, 2, 3]}),
        ("search", {"image": 1, "preset": "fastest"}),
        ("look", {"images": [1] * (MAX_THUMBNAILS + 1)}),
        ("look", {"images": [1], "side": LARGEST_THUMBNAIL + 1}),
        ("list_images", {"size": 10**6}),
    ],
)
def test_impossible_arguments_are_errors(tools: Tools, tool: str, arguments: dict[str, Any]) -> None:
    assert call(tools, tool, **arguments).is_error


def test_names_that_are_no_text(photographs: Path, vocabularies: Any, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    shutil.copy(photographs / "wall-a.jpg", os.fsencode(tmp_path / "photos") + b"/\xff.jpg")
    with IndexWriter.open(tmp_path / "photos.polyvoc", vocabularies) as writer:
        writer.update([tmp_path / "photos"])
    result = call(Tools(tmp_path / "photos.polyvoc"), "look", images=[1])
    assert values_of(result)["images"][0]["path"].endswith("\\udcff.jpg") and len(pictures_of(result)) == 1


def test_nothing_is_written(coded_index_path: Path, photographs: Path) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        files = [path for path in coded_index_path.rglob("*") if path.is_file()]
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before, tools = state(), Tools(coded_index_path)
    call(tools, "search", path=str(photographs / "wall-b.jpg"))
    for tool, arguments in (("explain", {"image": 1, "hit": 2}), ("info", {}), ("list_images", {}), ("duplicates", {})):
        values_of(call(tools, tool, **arguments))
    assert state() == before


def test_a_new_commit_is_served(photographs: Path, vocabularies: Any, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    tools: list[Tools] = []
    for number, name in enumerate(("wall-a.jpg", "wall-b.jpg"), start=1):
        shutil.copy(photographs / name, tmp_path / "photos")
        with IndexWriter.open(tmp_path / "photos.polyvoc", vocabularies) as writer:
            writer.update([tmp_path / "photos"])
        tools.append(Tools(tmp_path / "photos.polyvoc"))
        assert values_of(call(tools[0], "info"))["images"] == number


def test_the_sdk_is_an_extra(monkeypatch: pytest.MonkeyPatch, coded_index_path: Path) -> None:
    from polyvoc.cli.agent import mcp_command

    monkeypatch.setitem(sys.modules, "mcp.server", None)
    monkeypatch.setitem(sys.modules, "mcp", None)
    monkeypatch.delitem(sys.modules, "polyvoc.agent.server")
    with pytest.raises(OptionError, match=r"pip install 'polyvoc\[mcp\]'"):
        mcp_command(index=coded_index_path)
    with Index.open(coded_index_path) as index:  # everything else works without
        assert len(index) == 12
