"""The documentation site: pages written by hand, and references made from the code while it is built (scripts/docs)."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, get_args

import typer
from fastapi import FastAPI
from sphinx.application import Sphinx

import polyvoc
from polyvoc.cli.main import app
from polyvoc.web.routes import admin_router, images_router, search_router

project, author = "polyvoc", "the polyvoc authors"
version = release = polyvoc.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
exclude_patterns = ["reproduction"]
html_extra_path = ["reproduction"]
html_theme, html_title = "furo", "polyvoc"
html_show_sourcelink = False
myst_heading_anchors = 3
default_role = "code"  # docstrings write names in single backticks
autodoc_class_signature = "separated"  # objects are made by `open`, `load`, `create`
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

# Comments before a field, its name, type, default, and the comment behind it.
FIELD = re.compile(r"^((?:    # .+\n)*)    (\w+): (.+?)(?: = (.+?))?(?:  # (.+))?$", re.M)


def setup(app: Sphinx) -> None:
    """Add what is made from the code to the pages that ask for it."""
    app.connect("source-read", complete)


def complete(app: Sphinx, page: str, source: list[str]) -> None:
    """Put the parts of a page in their places: each is a comment that names it."""
    parts: dict[str, Callable[[], Iterator[str]]] = {"commands": commands, "requests": requests, "errors": tree}
    source[0] = re.sub(r"^<!-- made: (\w+) -->$", lambda asked: "\n".join(parts[asked[1]]()), source[0], flags=re.M)
    source[0] = re.sub(r"^<!-- record: (\w+) -->$", lambda asked: "\n".join(record(asked[1])), source[0], flags=re.M)


def commands() -> Iterator[str]:
    """Give the reference of all commands, line by line, as their help has it."""
    group: Any = typer.main.get_command(app)
    for name, command in sorted(group.commands.items()):
        context = command.context_class(command, info_name=f"polyvoc {name}")
        usage = " ".join([f"polyvoc {name}", *command.collect_usage_pieces(context)])
        yield f"## {name}\n\n{command.help}\n\n```text\n{usage}\n```\n"
        yield from _table(("flag", ""), [known for one in command.params if (known := one.get_help_record(context))])
        yield from (f"Example: `{example.strip()}`\n" for example in re.findall(r"Example: (.+)", command.epilog or ""))


def requests() -> Iterator[str]:
    """Give the reference of all requests, line by line, as the application describes itself."""
    app = FastAPI()
    for router in (search_router, images_router, admin_router):
        app.include_router(router)
    for path, methods in sorted(app.openapi()["paths"].items()):
        for method, told in methods.items():
            yield f"## {method.upper()} {path}\n\n{told.get('description') or told.get('summary', '')}\n"
            rows = [(one["name"], one.get("description", "")) for one in told.get("parameters", [])]
            yield from _table(("parameter", ""), rows)


def tree() -> Iterator[str]:
    """Give the tree of errors as their module draws it."""
    drawn = inspect.getdoc(polyvoc.errors) or ""
    yield f"```text\n{drawn[drawn.index('PolyvocError') :]}\n```"


def record(name: str) -> Iterator[str]:
    """Give the fields of a record, line by line, with what the code says of each."""
    kind = getattr(polyvoc, name)
    told = {found[2]: found for found in FIELD.finditer(inspect.getsource(kind))}
    yield f"## {name}\n\n{inspect.getdoc(kind)}\n"
    rows = [_field(told[field.name]) for field in dataclasses.fields(kind)]
    yield from _table(("field", "type", "default", ""), rows)


def _field(found: re.Match[str]) -> tuple[str, str, str, str]:
    before, name, kind, default, behind = found.groups(default="")
    choices = get_args(getattr(polyvoc.options, kind, None))
    named = " | ".join(f'"{choice}"' for choice in choices) if choices and isinstance(choices[0], str) else kind
    told = " ".join([*re.findall(r"# (.+)", before), behind])
    return name, f"`{named}`", f"`{default}`" if default else "", told


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(heading)} |\n|{'---|' * len(heading)}"
        yield from (f"| `{_cell(row[0])}` | {' | '.join(map(_cell, row[1:]))} |" for row in rows)
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
