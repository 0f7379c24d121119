"""Configuration of the documentation site: written pages, and references that are generated from the code (scripts/docs)."""

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
default_role = "code"  # docstrings have names in single backticks
autodoc_class_signature = "separated"  # objects are made by `open`, `load`, `create`
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True

# A field of a record in the source: comments before it, its name, and the comment behind it.
FIELD = re.compile(r"^((?:    # .+\n)*)    (\w+): .+?(?:  # (.+))?$", re.M)


def setup(app: Sphinx) -> None:
    """Connect the generated parts of pages to the build."""
    app.connect("source-read", generate)


def generate(app: Sphinx, page: str, source: list[str]) -> None:
    """Replace the comments of a page that name a generated part, by that part."""
    parts: dict[str, Callable[[], Iterator[str]]] = {"commands": commands, "requests": requests, "errors": errors}
    source[0] = re.sub(r"^<!-- made: (\w+) -->$", lambda match: "\n".join(parts[match[1]]()), source[0], flags=re.M)
    source[0] = re.sub(r"^<!-- record: (\w+) -->$", lambda match: "\n".join(record(match[1])), source[0], flags=re.M)


def commands() -> Iterator[str]:
    """Yield the reference of all commands, from their help."""
    group: Any = typer.main.get_command(app)
    for name, command in sorted(group.commands.items()):
        context = command.context_class(command, info_name=f"polyvoc {name}")
        usage = " ".join([f"polyvoc {name}", *command.collect_usage_pieces(context)])
        yield f"## {name}\n\n{command.help}\n\n```text\n{usage}\n```\n"
        yield from _table(("flag", ""), [row for one in command.params if (row := one.get_help_record(context))])
        yield from (f"Example: `{example.strip()}`\n" for example in re.findall(r"Example: (.+)", command.epilog or ""))


def requests() -> Iterator[str]:
    """Yield the reference of all HTTP requests, from the OpenAPI description of the application."""
    app = FastAPI()
    for router in (search_router, images_router, admin_router):
        app.include_router(router)
    for path, methods in sorted(app.openapi()["paths"].items()):
        for method, request in methods.items():
            yield f"## {method.upper()} {path}\n\n{request.get('description') or request.get('summary', '')}\n"
            rows = [(one["name"], one.get("description", "")) for one in request.get("parameters", [])]
            yield from _table(("parameter", ""), rows)


def errors(error: type[BaseException] | None = None, depth: int = 0) -> Iterator[str]:
    """Yield the tree of errors, each with the first line of its docstring."""
    error = error or polyvoc.PolyvocError
    yield f"{'  ' * depth}- `{error.__name__}`: {(inspect.getdoc(error) or '').splitlines()[0]}"
    for child in error.__subclasses__():
        if child.__module__.startswith("polyvoc"):
            yield from errors(child, depth + 1)


def record(name: str) -> Iterator[str]:
    """Yield the fields of a record: help text from the metadata of the field, or else from the comments in the source."""
    kind = getattr(polyvoc, name)
    sources = [inspect.getsource(parent) for parent in reversed(kind.__mro__) if dataclasses.is_dataclass(parent)]
    comments = {match[2]: match for source in sources for match in FIELD.finditer(source)}
    yield f"## {name}\n\n{inspect.getdoc(kind)}\n"
    rows = [_field(field, comments.get(field.name)) for field in dataclasses.fields(kind)]
    yield from _table(("field", "type", "default", ""), rows)


def _field(field: dataclasses.Field[Any], comments: re.Match[str] | None) -> tuple[str, str, str, str]:
    before, behind = (comments[1], comments[3] or "") if comments else ("", "")
    help_text = field.metadata.get("help") or " ".join([*re.findall(r"# (.+)", before), behind])
    kind, default = str(getattr(field.type, "__name__", field.type)), ""
    choices = field.metadata.get("choices") or _choices(kind)
    if field.default is not dataclasses.MISSING:
        default = f"`{field.default!r}`"
    elif field.default_factory is not dataclasses.MISSING:
        default = f"`{field.default_factory()!r}`"
    return field.name, f"`{' | '.join(map(repr, choices)) if choices else kind}`", default, help_text


def _choices(kind: str) -> Sequence[str]:
    choices = get_args(getattr(polyvoc.options, kind, None))
    return choices if choices and isinstance(choices[0], str) else ()


def _table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    if rows:
        yield f"| {' | '.join(heading)} |\n|{'---|' * len(heading)}"
        yield from (f"| `{_cell(row[0])}` | {' | '.join(map(_cell, row[1:]))} |" for row in rows)
        yield ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
