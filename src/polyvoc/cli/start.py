"""The first line of a command, on a terminal: shown before its libraries are loaded, and erased by whatever comes next."""

from __future__ import annotations

import sys

QUIET = ("--help", "-h", "--json", "--paths")  # the output is read by programs, or comes at once
ERASE = "\r\x1b[2K"
INTERRUPTED = 130  # exit code: 128 + the number of the signal, as shells have it

_shown = False


def main() -> None:
    """Run the command line."""
    show_opening(sys.argv[1:])
    try:
        from polyvoc.cli.main import main as run
    except KeyboardInterrupt:  # while libraries are loaded
        erase_opening()
        sys.exit(INTERRUPTED)
    run()


def show_opening(arguments: list[str]) -> None:
    """Write what is being done, if a person looks at it and has given a command."""
    global _shown  # noqa: PLW0603
    commands = [argument for argument in arguments if not argument.startswith("-")]
    if commands and not set(QUIET) & set(arguments) and sys.stderr.isatty():
        sys.stderr.write(f"polyvoc {commands[0]}: opening ...")
        sys.stderr.flush()
        _shown = True


def erase_opening() -> None:
    """Erase what `show_opening` wrote."""
    global _shown  # noqa: PLW0603
    if _shown:
        _shown = False
        sys.stderr.write(ERASE)
        sys.stderr.flush()
