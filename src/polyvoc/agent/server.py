"""The tools of an agent, served by the official SDK of the Model Context Protocol over standard input and output."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from mcp.server import MCPServer
from mcp.server.mcpserver import Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations
from pydantic import Field

from polyvoc import __version__
from polyvoc.agent.tools import LARGEST_THUMBNAIL, MAX_THUMBNAILS, THUMBNAIL, AgentQuery, Reply, Tools
from polyvoc.duplicates import MIN_PROBABILITY
from polyvoc.errors import PolyvocError
from polyvoc.options import Preset, SearchOptions, options_of
from polyvoc.types import Region

INSTRUCTIONS = (
    "Find photographs that show the same thing (building, object, print, scene) in an index of photographs on this machine. "
    "Probabilities are calibrated: below 0.5 a hit is more likely wrong than right, and a search may find nothing. "
    "Nothing is ever changed."
)
LARGEST_ID = (1 << 63) - 1  # of SQLite
_OPTIONS = {one.name: one for one in options_of(SearchOptions)}
_READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)

ImageNumber = Annotated[int, Field(ge=0, le=LARGEST_ID)]
QueryPath = Annotated[
    str | None, Field(max_length=4096, description="Absolute path of a photograph below one of the query roots (tool info).")
]
QueryImage = Annotated[
    int | None, Field(ge=0, le=LARGEST_ID, description="Instead of a path: the id of an image of the index.")
]
QueryRegion = Annotated[
    list[float] | None,
    Field(min_length=4, max_length=4, description="x0, y0, x1, y1 in pixels: search with this part of the query only."),
]
PresetName = Annotated[Preset, Field(description="fast, default or best (up to twice as long); paper: the rules of the paper.")]
Top = Annotated[int, Field(ge=1, le=200, description=_OPTIONS["top"].help)]
MinProbability = Annotated[float, Field(ge=0, le=1, description=_OPTIONS["min_probability"].help)]
Thumbnails = Annotated[int, Field(ge=0, le=MAX_THUMBNAILS, description="How many of the first results are shown as pictures.")]
Page = Annotated[int, Field(ge=0, le=10**9, description="Number of the page, from 0.")]
PageSize = Annotated[int, Field(ge=1, le=200, description="Results on a page.")]
Find = Annotated[str, Field(max_length=200, description="Text in the path; empty: all images.")]
Images = Annotated[list[ImageNumber], Field(min_length=1, max_length=MAX_THUMBNAILS, description="Ids of images.")]
Side = Annotated[int, Field(ge=32, le=LARGEST_THUMBNAIL, description="Pixels of the long side of a picture.")]


def serve_tools(index: Path, roots: Sequence[str]) -> None:
    """Serve the tools of an index until standard input is closed."""
    make_server(Tools(index, roots)).run("stdio")


def make_server(tools: Tools) -> MCPServer[Any]:
    """Return a server with all tools."""
    server: MCPServer[Any] = MCPServer("polyvoc", version=__version__, instructions=INSTRUCTIONS, log_level="WARNING")
    for function in (*_search_tools(tools), *_list_tools(tools)):
        server.add_tool(function, annotations=_READ_ONLY, structured_output=False)
    return server


def _search_tools(tools: Tools) -> tuple[Callable[..., CallToolResult], ...]:
    def search(path: QueryPath = None, image: QueryImage = None, region: QueryRegion = None, top: Top = 10,
               min_probability: MinProbability = 0.0, preset: PresetName = "default",
               thumbnails: Thumbnails = 5) -> CallToolResult:  # fmt: skip
        """Find the photographs of the index that show the same thing as a photograph, a region of it, or an image of the index.

        Each hit has its id, path, probability, verified matches (inliers) and outline: where the query lies in it, in pixels.
        """
        changes = {"top": top, "min_probability": min_probability, "preset": preset}
        return _result(lambda: tools.search(AgentQuery(path, image, _region(region)), thumbnails, changes))

    def explain(hit: ImageNumber, path: QueryPath = None, image: QueryImage = None, region: QueryRegion = None,
                preset: PresetName = "default") -> CallToolResult:  # fmt: skip
        """Explain why an image of the index is a hit of a query: outline, transform, heaviest matches, and both pictures."""
        return _result(lambda: tools.explain(AgentQuery(path, image, _region(region)), hit, {"preset": preset}))

    return search, explain


def _list_tools(tools: Tools) -> tuple[Callable[..., CallToolResult], ...]:
    def info() -> CallToolResult:
        """Describe the index: folders, counts, files that could not be read, and the roots of query photographs."""
        return _result(tools.info)

    def list_images(find: Find = "", page: Page = 0, size: PageSize = 50) -> CallToolResult:
        """List images of the index by id, all or those with a text in their path."""
        return _result(lambda: tools.images(find, page, size))

    def look(images: Images, side: Side = THUMBNAIL) -> CallToolResult:
        """Return pictures of images of the index."""
        return _result(lambda: tools.look(images, side))

    def duplicates(min_probability: MinProbability = MIN_PROBABILITY, page: Page = 0, size: PageSize = 20,
                   thumbnails: Thumbnails = 0) -> CallToolResult:  # fmt: skip
        """List groups of copies (resized, cropped, rotated, mirrored, re-encoded), as far as `polyvoc duplicates` has compared.

        The best file of each group comes first. Nothing is moved or deleted.
        """
        return _result(lambda: tools.duplicates(min_probability, page, size, thumbnails))

    return info, list_images, look, duplicates


def _region(given: Sequence[float] | None) -> Region | None:
    if given is None:
        return None
    x0, y0, x1, y1 = given
    return x0, y0, x1, y1


def _result(run: Callable[[], Reply]) -> CallToolResult:
    """Return what a tool returns as the protocol has it: JSON, then a caption and a picture each."""
    try:
        reply = run()
    except PolyvocError as error:
        raise ToolError(_text(str(error))) from None
    values = _plain(reply.values)
    content: list[TextContent | ImageContent] = [TextContent(type="text", text=json.dumps(values, ensure_ascii=False))]
    for picture in reply.pictures:
        content.append(TextContent(type="text", text=_text(picture.caption)))
        if picture.jpeg is not None:
            content.append(Image(data=picture.jpeg, format="jpeg").to_image_content())
    return CallToolResult(content=list(content), structured_content=values)


def _plain(value: Any) -> Any:
    """Return plain values whose texts are Unicode: names of files need not be."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _text(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode("utf-8")
