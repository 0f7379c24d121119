"""Reports as records that convert to JSON: sections with tables (our figures beside the paper's), plots and verdicts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

from polyvoc.errors import OptionError
from polyvoc.experiments.report.figures import Figure, check_choice, finite

Verdict = Literal["reproduces", "partly", "open", "does not", ""]
Mark = Literal["", "header", "best"]


@dataclass(frozen=True)
class TableCell:
    """A figure of ours with its interval, and the paper's beside it; None: there is none."""

    value: float | None
    digits: int = 2  # behind the point
    low: float | None = None  # of the 95 % interval
    high: float | None = None
    paper: float | str | None = None  # a str as it was printed
    difference: bool = False  # shown with its sign, and in colour if its interval leaves out zero
    note: str = ""

    def __post_init__(self) -> None:
        """Convert to numbers that JSON can hold."""
        for name in ("value", "low", "high", "paper"):
            if name != "paper" or not isinstance(self.paper, str):
                object.__setattr__(self, name, finite(getattr(self, name)))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        numbers = {name: getattr(self, name) for name in ("low", "high", "paper")}
        data = {"value": self.value, "digits": self.digits} | {name: v for name, v in numbers.items() if v is not None}
        return data | ({"difference": True} if self.difference else {}) | ({"note": self.note} if self.note else {})

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the cell that `as_dict` described."""
        return cls(**data)


@dataclass(frozen=True)
class Row:
    """A row of a table, marked as the best one or as a heading of those below it."""

    cells: Sequence[str | TableCell]
    mark: Mark = ""

    def __post_init__(self) -> None:
        """Raise OptionError for cells and marks of another kind."""
        object.__setattr__(self, "cells", tuple(self.cells))
        for cell in self.cells:
            if not isinstance(cell, str | TableCell):
                raise OptionError(f"a row holds {cell!r}: write texts as str and numbers as TableCell")
        check_choice(self.mark, Mark, "mark of a row")

    def as_dict(self) -> list[Any] | dict[str, Any]:
        """Return plain values for JSON: a list if the row has no mark."""
        cells = [cell if isinstance(cell, str) else cell.as_dict() for cell in self.cells]
        return {"cells": cells, "mark": self.mark} if self.mark else cells

    @classmethod
    def from_dict(cls, data: Sequence[Any] | Mapping[str, Any]) -> Self:
        """Return the row that `as_dict` described."""
        cells = data["cells"] if isinstance(data, Mapping) else data
        mark: Any = data["mark"] if isinstance(data, Mapping) else ""
        return cls([cell if isinstance(cell, str) else TableCell.from_dict(cell) for cell in cells], mark)


@dataclass(frozen=True)
class Table:
    """Rows under a head; the first cell of a row names it. Rows become `Row`s as long as the head."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Row | Sequence[Any]]  # Any: str or TableCell; a row checks it

    def __post_init__(self) -> None:
        """Raise OptionError for a table without columns, or rows longer than the head."""
        if not self.head:
            raise OptionError(f"table {self.caption!r} has no columns: name at least one")
        rows = [row if isinstance(row, Row) else Row(row) for row in self.rows]
        for number, row in enumerate(rows, 1):
            if len(row.cells) > len(self.head):
                sizes = f"{len(row.cells)} cells under a head of {len(self.head)}"
                raise OptionError(f"row {number} of table {self.caption!r} has {sizes}: shorten it or name the columns")
        filled = (replace(row, cells=[*row.cells, *[""] * (len(self.head) - len(row.cells))]) for row in rows)
        object.__setattr__(self, "head", tuple(self.head))
        object.__setattr__(self, "rows", tuple(filled))

    @property
    def lines(self) -> tuple[Row, ...]:
        """Return the rows, all as `Row`."""
        return tuple(row for row in self.rows if isinstance(row, Row))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"caption": self.caption, "head": list(self.head), "rows": [row.as_dict() for row in self.lines]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the table that `as_dict` described."""
        return cls(**{**data, "rows": [Row.from_dict(row) for row in data["rows"]]})


@dataclass(frozen=True)
class Section:
    """One experiment: text, tables, figures, and whether the result is that of the paper."""

    id: str  # target of links: small letters, digits, hyphens
    heading: str  # a short name, and after ": " its subject
    text: Sequence[str] = ()
    tables: Sequence[Table] = ()
    figures: Sequence[Figure] = ()
    verdict: str = ""  # one of Verdict
    verdict_text: str = ""

    def __post_init__(self) -> None:
        """Raise OptionError for an unknown verdict or an id that no link can hold."""
        for name in ("text", "tables", "figures"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        check_choice(self.verdict, Verdict, f"verdict of section {self.id!r}")
        if not re.fullmatch("[a-z][a-z0-9-]*", self.id):
            raise OptionError(f"id of a section is {self.id!r}: write it in small letters, digits and hyphens")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        tables, figures = ([part.as_dict() for part in parts] for parts in (self.tables, self.figures))
        return {**vars(self), "text": list(self.text), "tables": tables, "figures": figures}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the section that `as_dict` described."""
        tables = [Table.from_dict(table) for table in data.get("tables", ())]
        figures = [Figure.from_dict(figure) for figure in data.get("figures", ())]
        return cls(**{**data, "tables": tables, "figures": figures})


@dataclass(frozen=True)
class Report:
    """Sections under a title, with the facts about datasets and machine."""

    title: str
    subtitle: str
    facts: Sequence[tuple[str, str]]  # label and text: datasets, vocabularies, machine, what is missing
    sections: Sequence[Section]

    def __post_init__(self) -> None:
        """Raise OptionError for two sections of one id."""
        object.__setattr__(self, "facts", tuple((str(label), str(value)) for label, value in self.facts))
        object.__setattr__(self, "sections", tuple(self.sections))
        ids = [section.id for section in self.sections]
        if twice := sorted({name for name in ids if ids.count(name) > 1}):
            raise OptionError(f"two sections have the id {twice[0]!r}: give each its own")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        facts = [list(fact) for fact in self.facts]
        sections = [section.as_dict() for section in self.sections]
        return {"title": self.title, "subtitle": self.subtitle, "facts": facts, "sections": sections}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the report that `as_dict` described."""
        return cls(**{**data, "sections": [Section.from_dict(section) for section in data["sections"]]})
