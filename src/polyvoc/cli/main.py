"""The entry point: all commands; errors become one line and an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from polyvoc import __version__
from polyvoc.cli import agent, demo, duplicates, index, pairs, research, search
from polyvoc.cli.flags import switch
from polyvoc.cli.interrupt import KEPT
from polyvoc.cli.start import INTERRUPTED, erase_opening
from polyvoc.cli.terminal import print_error, write
from polyvoc.errors import PolyvocError

BROKEN_PIPE = 141  # 128 + the number of the signal, as shells have it


class Commands(TyperGroup):
    """All commands; any error becomes one line and an exit code."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """Run a command and exit with its code."""
        for stream in (sys.stdout, sys.stderr):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # names that the terminal cannot print
        try:
            code = super().main(*args, **{**extra, "prog_name": "polyvoc", "standalone_mode": False})
        except Exception as error:  # noqa: BLE001 - the last line of defence: one line instead of a traceback
            if "--debug" in (extra.get("args") or sys.argv):
                traceback.print_exc()
            print_error(_line(error))
            code = 1
        erase_opening()
        sys.exit(code if isinstance(code, int) else 0)

    def invoke(self, ctx: Any) -> None:
        """Run a command; the user may interrupt it, or close its output."""
        try:
            super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # as in `polyvoc info --images | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(BROKEN_PIPE) from None
        except KeyboardInterrupt:
            print_error(KEPT if ctx.invoked_subcommand in ("index", "demo") else "interrupted")
            raise typer.Exit(INTERRUPTED) from None


def _line(error: Exception) -> str:
    """Return one line: what went wrong and the next step."""
    if isinstance(error, PolyvocError):
        return str(error)
    if hasattr(error, "format_message"):  # of the command line's parser
        command = getattr(getattr(error, "ctx", None), "command_path", "polyvoc")
        return f"{error.format_message().rstrip('.')}; see '{command} --help'"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, MemoryError):
        return "not enough memory; close other programs, or use a machine with more"
    return f"unexpected {type(error).__name__}: {error}; run 'polyvoc --debug COMMAND ...' and report what it prints"


app = typer.Typer(
    name="polyvoc",
    cls=Commands,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: polyvoc index ~/Pictures && polyvoc search query.jpg",
)
for module in (index, search, duplicates, pairs, agent, demo, research):
    app.add_typer(module.app)


@app.callback(invoke_without_command=True)
def polyvoc(
    context: typer.Context,
    version: Annotated[bool, switch("--version", "Show the version.")] = False,
    debug: Annotated[bool, switch("--debug", "Show a traceback when something goes wrong.")] = False,
) -> None:
    """Find photographs that show the same thing: the same object, place or picture, in collections of any size."""
    if version:
        write(f"polyvoc {__version__}")
    elif context.invoked_subcommand is None:
        write(context.get_help())


def main() -> None:
    """Run the command line."""
    app()
