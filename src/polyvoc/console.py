"""What the terminal shows: answers on stdout, talk and progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.text import Text

from polyvoc.records import Progress

OPENING = "machines open the index: the first time, they compile kernels"


def write(*parts: str | Text) -> None:
    """Print one line of an answer; never wrapped, so that it can be piped and copied."""
    if sys.stdout.isatty():
        Console(soft_wrap=True, highlight=False, markup=False, emoji=False).print(*parts)
    else:
        print(*parts)


def write_json(value: Any) -> None:
    """Print an answer for programs. ASCII, so that any file name passes: escapes stand for what is not text."""
    print(json.dumps(value, indent=2))


def talk(line: str) -> None:
    """Say something that is no part of the answer."""
    print(line, file=sys.stderr)


def error(line: str) -> None:
    """Say in one line what went wrong."""
    talk("polyvoc: " + " ".join(line.splitlines()))


def write_fact(label: str, *lines: str) -> None:
    """Print what is known under a label, on one or more lines."""
    for number, line in enumerate(lines):
        write(f"{'' if number else label:<13} {line}")


def mark(right: bool) -> Text:
    """Give the sign of a right or wrong answer."""
    return Text("right", style="green") if right else Text("wrong", style="red")


def linked(path: str) -> Text:
    """Give a path, on one line whatever the file is called, that can be clicked in terminals which know how."""
    from polyvoc.images import describe

    return Text(describe(path), style=f"link {Path(path).as_uri()}" if Path(path).is_absolute() else "")


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Show how many are done in a second."""
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:.1f}/s", style="progress.data.speed")


@contextmanager
def progress() -> Iterator[Progress]:
    """Give a function that shows progress as a bar with rate and time left; quiet where nobody looks."""
    terminal = Console(stderr=True)
    if not terminal.is_terminal:
        yield lambda stage, done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Bars(*columns, console=terminal, transient=True) as bars:
        tasks = {}

        def show(stage: str, done: int, total: int) -> None:
            name = stage.partition(":")[0]  # what follows a colon changes from step to step
            if name not in tasks:
                tasks[name] = bars.add_task(stage, total=total)
            bars.update(tasks[name], description=stage, completed=done, total=total)

        yield show
