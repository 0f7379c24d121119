"""Sentences and tables of docs/findings.md, all from the report of the paper: docs/reproduction/report.json."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from polyvoc.experiments.report.html import markdown as report_markdown
from polyvoc.experiments.report.report import Report, Section, Table, TableCell
from sources import markdown

REPORT = Path(__file__).parent.parent / "docs" / "reproduction"
WORDS = {"reproduces": "**yes**", "partly": "partly", "open": "undecided", "does not": "**no**"}
CLAIMS = {
    "readings": "Bayes merging beats B1, B2 loses to B1, with and without Hamming Embedding",
    "table2": "the constant c hardly matters",
    "table3": "the same at every size of Table 3",
    "table4": "it also merges vocabularies of different sizes, and mixing helps",
    "table5": "Bayes merging is better than rank aggregation",
    "table6": "Bayes merging is better than joint PCA",
    "figure2": "the ratio falls as the database grows",
    "figure3": "term 2 grows with the ratio, from a start above zero",
    "figure4": "a match in both lists is less often true where the ratio is large",
    "figure5": "more vocabularies help Bayes merging and harm B2",
    "figure6": "Bayes merging is ahead of B1 at every size",
    "figure7": "and in larger databases",
    "assignment": "multiple assignment helps B2 (a speculation)",
}


@cache
def report() -> Report:
    """Return the report."""
    return Report.from_dict(json.loads((REPORT / "report.json").read_text(encoding="utf-8")))


def section(name: str) -> Section:
    """Return a section of the report."""
    return next(section for section in report().sections if section.id == name)


def findings(name: str, number: str) -> str:
    """Return one table of the report, by its section and position, or all of them."""
    tables = section(name).tables
    return "\n".join(map(report_markdown, tables if number == "" else [tables[int(number)]])).rstrip()


def paper_facts() -> str:
    """Return the facts of the run: datasets, features, vocabularies, machine."""
    return "\n".join(f"- **{label}**: {text}" for label, text in report().facts)


def paper_verdicts() -> str:
    """Return every claim with its verdict and the differences behind it."""
    rows = []
    for one in report().sections:  # those that are finished
        if one.id in CLAIMS:
            rows.append([f"[{CLAIMS[one.id]}](reproduction/report.html#{one.id})", WORDS[one.verdict], one.verdict_text])
    return markdown(["the paper says", "here", "measured"], rows)


def paper_core() -> str:
    """Return the differences of the paper's reading beside the paper's, for both kinds of features."""
    rows = []
    for table in _tables("differences in some readings"):
        features = table.caption.split(":")[0]
        for row in table.lines:
            dataset, _, label = str(row.cells[0]).partition(": ")
            if label == "the paper's reading":
                rows += _core_rows(f"{dataset}, {features}", table, list(row.cells))
    return markdown(["", "difference", "K = 2", "paper", "K = 3", "paper"], rows)


def _core_rows(title: str, table: Table, cells: list[str | TableCell]) -> Iterator[list[str]]:
    by_head = dict(zip(table.head, cells, strict=True))
    for name in ("B2 - B1", "Bayes - B1", "Bayes + HE - B1 + HE", "burstiness on top"):
        columns = []
        for count in (2, 3):
            one = by_head[f"{name}, K = {count}"]
            assert isinstance(one, TableCell)
            columns += [difference(one), "" if one.paper is None else f"{one.paper:+.{one.digits}f}"]
        yield [title, name, *columns]


def paper_reading() -> str:
    """Return which reading is called the paper's, and by which evidence."""
    one = section("readings")
    return "\n\n".join(one.text[:3])


def paper_when_it_loses() -> str:
    """Return the differences of Bayes - B1 in the readings where the baseline handles bursts better."""
    rows = []
    for table in _tables("differences in some readings"):
        features = table.caption.split(":")[0]
        for row in table.lines:
            dataset, _, label = str(row.cells[0]).partition(": ")
            by_head = dict(zip(table.head, row.cells, strict=True))
            if label != "the paper's reading":
                cells = [by_head[f"{name}, K = 2"] for name in ("B1", "Bayes - B1", "Bayes + HE - B1 + HE")]
                values = [difference(cell) if isinstance(cell, TableCell) else "" for cell in cells[1:]]
                base = cells[0]
                assert isinstance(base, TableCell)
                rows.append([f"{dataset}, {features}", label, f"{base.value:.{base.digits}f}", *values])
    return markdown(["", "reading or rule", "B1", "minus B1", "with HE, minus B1 + HE"], rows)


def paper_why() -> str:
    """Return how much of the gain remains with a constant weight and with shuffled ratios."""
    return section("ablations").verdict_text


def paper_growth() -> str:
    """Return the gain of Bayes merging in the smallest and in the largest database of Fig. 7."""
    rows = []
    for table in section("figure7").tables:
        gains = next((row.cells for row in table.lines if " - " in str(row.cells[0])), None)
        if gains is not None:
            first, last = gains[1], gains[-1]
            assert isinstance(first, TableCell) and isinstance(last, TableCell)
            rows.append([table.caption, table.head[1], difference(first), table.head[-1], difference(last)])
    return markdown(["", "images", "Bayes - B1", "images", "Bayes - B1"], rows)


def paper_counts() -> str:
    """Return the gain of Bayes merging over B1 by the number of vocabularies, from Fig. 5."""
    tables, rows = section("figure5").tables, []
    for table in tables:
        by_rule = {str(row.cells[0]).strip("`").split(" ")[0]: row.cells[1:] for row in table.lines}
        gains = []
        for mine, base in zip(by_rule["bayes"], by_rule["b1"], strict=True):
            assert isinstance(mine, TableCell) and isinstance(base, TableCell)
            assert mine.value is not None and base.value is not None
            gains.append(f"{mine.value - base.value:+.{mine.digits}f}")
        rows.append([table.caption, *gains])
    return markdown(["Bayes - B1", *tables[0].head[1:]], rows)


def paper_sizes() -> str:
    """Return the gain of Bayes merging over B1 by the size of the vocabularies, from Fig. 6."""
    rows, head = [], []
    for table in section("figure6").tables:
        for row in table.lines:
            name, *cells = row.cells
            if " - " in str(name) and str(name).startswith("`bayes"):
                head = table.head[1:]
                gains = [difference(cell) for cell in cells if isinstance(cell, TableCell)]
                rows.append([f"{table.caption}, K = {str(name)[7]}", *gains])
    return markdown(["Bayes - B1", *head], rows)


def _tables(words: str) -> Iterator[Table]:
    return (table for table in section("readings").tables if words in table.caption)


def difference(cell: TableCell) -> str:
    """Return a difference with its interval."""
    return f"{cell.value:+.{cell.digits}f} ({cell.low:+.{cell.digits}f} to {cell.high:+.{cell.digits}f})"


TABLES: dict[str, Callable[[], str]] = {
    make.__name__: make
    for make in (
        paper_facts,
        paper_verdicts,
        paper_core,
        paper_reading,
        paper_when_it_loses,
        paper_why,
        paper_growth,
        paper_counts,
        paper_sizes,
    )
}
