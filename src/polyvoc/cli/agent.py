"""The command `mcp`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polyvoc.cli.flags import DEFAULT_TEXT, flag, named_indexes
from polyvoc.errors import OptionError

app = typer.Typer()


@app.command("mcp", epilog="Example: polyvoc mcp photos.polyvoc\n\nExample: polyvoc mcp photos.polyvoc --root ~/Downloads")
def mcp_command(
    *,
    index: Annotated[Path | None, typer.Argument(metavar="INDEX", help=f"Folder of the index; {DEFAULT_TEXT}")] = None,
    indexes: Annotated[list[Path] | None, flag("PATH", "The same as INDEX.", "--index")] = None,
    root: Annotated[
        list[str] | None,
        flag("FOLDER", "Folder that query photographs may lie below; repeatable. Default: the folders of the index."),
    ] = None,
) -> None:
    """Serve an index to an agent, as tools of the Model Context Protocol over standard input and output; read-only."""
    chosen, *others = named_indexes(index, indexes)
    if others:
        raise OptionError("an agent has the tools of one index; give one, or search several with 'polyvoc search' or 'serve'")
    try:
        from polyvoc.agent.server import serve_tools
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise OptionError("tools for agents need the package mcp; install it: pip install 'polyvoc[mcp]'") from None

    serve_tools(chosen, root or [])
