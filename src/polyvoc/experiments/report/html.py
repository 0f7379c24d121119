"""A report as one self-contained HTML file, for light and dark, wide and narrow screens, and print; tables as Markdown."""

from __future__ import annotations

import re
from itertools import chain

from polyvoc.experiments.report.figures import Figure
from polyvoc.experiments.report.plots import svg
from polyvoc.experiments.report.report import Report, Row, Section, Table, TableCell
from polyvoc.web.html import document, escaped

MISSING = "–"
BADGES = {  # class, sign, words
    "reproduces": ("yes", "✓", "reproduces"),
    "partly": ("half", "≈", "partly reproduces"),
    "open": ("half", "?", "open"),
    "does not": ("no", "✗", "does not reproduce"),
}
LEGEND = (
    ('<span class="ours">57.32</span>', "measured here"),
    ('<span class="interval">[55.10, 59.44]</span>', "its 95 % interval: bootstrap over the queries"),
    ('<span class="tag">paper 58.51</span>', "the paper’s own figure, from its features and its datasets"),
    ('<span class="ours up">+3.20</span>', "a difference whose interval is above zero"),
    ('<span class="ours down">−1.10</span>', "a difference whose interval is below zero"),
    ('<span class="even">+0.20</span>', "a difference whose interval holds zero"),
    ("plots", "filled and solid: measured here; hollow and dashed: the paper’s; bands and thin bars: 95 % intervals"),
)
STYLE = """
.lead { color: var(--faint); font-size: 1.05rem; margin: -.4rem 0 1.4rem; }
.report { display: grid; grid-template-columns: 15rem minmax(0, 1fr); gap: 1.75rem; align-items: start; }
nav { position: sticky; top: 1.25rem; max-height: calc(100vh - 2.5rem); overflow-y: auto; font-size: .88rem; line-height: 1.3; }
nav ol { list-style: none; margin: 0; padding: 0; }
nav a { display: grid; grid-template-columns: 1fr auto; gap: .1rem .5rem; padding: .4rem .6rem; margin-left: -.6rem;
  border-radius: 8px; text-decoration: none; }
nav a:hover, nav a:focus-visible { background: var(--card); }
nav b { font-weight: 600; } nav small { grid-column: 1; color: var(--faint); font-size: .8rem; }
section { padding: 1.25rem 1.4rem 1.4rem; scroll-margin-top: 1.25rem; }
section:target { border-color: var(--faint); }
h2 { font-size: 1.25rem; line-height: 1.25; display: flex; flex-wrap: wrap; align-items: center; gap: .4rem .7rem; }
code { font: .9em ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; background: var(--paper); border-radius: 4px;
  padding: .08em .25em; }
.yes { --tone: var(--right); } .half { --tone: var(--fewer); } .no { --tone: var(--wrong); }
.badge { font-size: .8rem; font-weight: 600; line-height: 1.5; white-space: nowrap; border-radius: 99px; padding: 0 .6rem;
  background: color-mix(in srgb, var(--tone) 16%, transparent); color: color-mix(in srgb, var(--tone) 62%, var(--ink)); }
.badge.dot { padding: 0 .4rem; align-self: start; }
.verdict { border-left: 3px solid var(--tone, var(--rule)); padding-left: .8rem; margin: .5rem 0 .9rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .35rem 1.4rem; margin: 0; }
dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
.glance { list-style: none; margin: 0; padding: 0; display: grid; gap: .55rem; }
.glance li { display: grid; grid-template-columns: 11.6rem 1fr; gap: .75rem; align-items: baseline; }
.glance .badge { justify-self: start; }
.glance a { font-weight: 600; text-decoration-color: var(--rule); text-underline-offset: .2em; }
.glance div span { display: block; color: var(--faint); font-size: .92rem; }
.table { margin: 1.2rem 0 0; } .table figcaption, .plots figcaption { font-size: .9rem; margin: 0 0 .45rem; }
.table figcaption, .plots b { font-weight: 600; }
.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: 10px; max-width: max-content; }
table { border-collapse: separate; border-spacing: 0; font-size: .92rem; line-height: 1.35; }
th, td { padding: .5rem .9rem; text-align: left; vertical-align: top; border-top: 1px solid var(--rule); }
thead th { border-top: 0; color: var(--faint); font-size: .82rem; font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 500; min-width: 8rem; max-width: 22rem; }
tr > :first-child { position: sticky; left: 0; background: var(--card); border-right: 1px solid var(--rule); }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
.n span, .n small { display: block; }
small { color: var(--faint); font-size: .78rem; white-space: normal; }
.ours { font-weight: 600; } .even { font-weight: 400; color: var(--faint); }
.up { color: color-mix(in srgb, var(--right) 75%, var(--ink)); }
.down { color: color-mix(in srgb, var(--wrong) 75%, var(--ink)); }
.interval { color: var(--faint); font-size: .78rem; }
.n .tag { display: inline-block; }
.tag { color: var(--faint); background: var(--paper); border: 1px solid var(--rule); border-radius: 5px; font-size: .76rem;
  line-height: 1.4; padding: 0 .35rem; margin-top: .15rem; white-space: nowrap; font-variant-numeric: tabular-nums; }
tr.header > * { background: var(--paper); color: var(--faint); font-size: .82rem; font-weight: 600; }
tr.best > * { background: color-mix(in srgb, var(--right) 9%, var(--card)); } .best th { font-weight: 700; }
.plots { margin: 1.4rem 0 0; } .plots > div { display: flex; flex-wrap: wrap; gap: 1rem 1.5rem; }
.panel { flex: 1 1 21rem; min-width: 0; max-width: 36rem; font-size: .88rem; }
.plot { --plot-back: var(--card); display: block; width: 100%; }
.plots small { display: block; font-size: .82rem; margin-top: .35rem; max-width: 62rem; }
.legend { display: grid; grid-template-columns: max-content 1fr; gap: .4rem 1rem; align-items: baseline; margin: 0; }
.legend dt { text-align: right; color: inherit; } .legend dd { color: var(--faint); font-size: .9rem; }
@media (max-width: 60rem) {
  .report { display: block; }
  nav { top: 0; z-index: 2; margin: 0 -1.25rem 1rem; padding: .5rem 1.25rem; background: var(--paper); overflow: auto hidden;
    border-bottom: 1px solid var(--rule); }
  nav ol { display: flex; gap: .4rem; } nav small { display: none; }
  nav a { background: var(--card); border: 1px solid var(--rule); white-space: nowrap;
    padding: .25rem .6rem; margin: 0; align-items: center; }
  section { scroll-margin-top: 4rem; }
}
@media (max-width: 36rem) {
  body { padding: 1.25rem .75rem 3rem; } nav { margin: 0 -.75rem 1rem; padding: .5rem .75rem; }
  section { padding: 1rem .9rem 1.1rem; }
  dl, .glance li { grid-template-columns: 1fr; gap: .1rem; } dd { margin-bottom: .5rem; }
  .legend dt { text-align: left; } .legend dd { margin: 0; }
  th, td { padding: .45rem .6rem; } tbody th { min-width: 6rem; max-width: 9rem; }
}
@media print {
  @page { margin: 14mm; }
  body { max-width: none; padding: 0; font-size: 10.5pt; background: none; } nav { display: none; } .report { display: block; }
  section { border: 0; padding: 0; margin: 0 0 1.6rem; } .scroll { overflow: visible; } table { font-size: .8rem; }
  th, td { padding: .25rem .5rem; } h2, section > p, figcaption, tr.header { break-after: avoid; }
  tr, .plots, .verdict, .glance li { break-inside: avoid; } .panel { max-width: 26rem; }
  .badge, .tag, .header > *, .best > * { print-color-adjust: exact; } tr > :first-child { position: static; }
}
"""


def render_report(report: Report) -> str:
    """Return the page of a report."""
    contents = "".join(map(_entry, report.sections))
    sections = "".join(map(_section, report.sections))
    body = [
        f'<p class="lead">{_prose(report.subtitle)}</p>',
        f'<div class="report"><nav aria-label="Contents"><ol>{contents}</ol></nav>',
        f"<main>{_overview(report)}{sections}</main></div>",
    ]
    return document(report.title, body, STYLE)


def _entry(section: Section) -> str:
    """Return a line of the table of contents: the short name, what follows the colon, the verdict."""
    name, _, rest = section.heading.partition(": ")
    small = f"<small>{_prose(rest)}</small>" if rest else ""
    return f'<li><a href="#{section.id}"><b>{_prose(name)}</b>{_badge(section, short=True)}{small}</a></li>'


def _overview(report: Report) -> str:
    facts = "".join(f"<dt>{_prose(label)}</dt><dd>{_prose(value)}</dd>" for label, value in report.facts)
    glance = "".join(
        f'<li>{_badge(section)}<div><a href="#{section.id}">{_prose(section.heading)}</a>'
        f"<span>{_prose(section.verdict_text)}</span></div></li>"
        for section in report.sections
        if section.verdict
    )
    legend = "".join(f"<dt>{sample}</dt><dd>{meaning}</dd>" for sample, meaning in LEGEND)
    parts = [
        ("What was measured", f"<dl>{facts}</dl>" if facts else ""),
        ("What reproduces", f'<ul class="glance">{glance}</ul>' if glance else ""),
        ("How to read it", f'<dl class="legend">{legend}</dl>'),
    ]
    return "".join(f"<section><h2>{heading}</h2>{inside}</section>" for heading, inside in parts if inside)


def _section(section: Section) -> str:
    verdict = _prose(section.verdict_text)
    tone = BADGES[section.verdict][0] if section.verdict else ""
    parts = chain(
        [f'<p class="verdict {tone}">{verdict}</p>' if verdict else ""],
        (f"<p>{_prose(paragraph)}</p>" for paragraph in section.text),
        (_plots(figure, f"{section.id}_{number}") for number, figure in enumerate(section.figures, 1)),
        map(_table, section.tables),
    )
    return f'<section id="{section.id}"><h2>{_prose(section.heading)}{_badge(section)}</h2>{"".join(parts)}</section>'


def _badge(section: Section, short: bool = False) -> str:
    if not section.verdict:
        return ""
    tone, sign, words = BADGES[section.verdict]
    if short:
        return f'<span class="badge dot {tone}" role="img" aria-label="{words}" title="{words}">{sign}</span>'
    return f'<span class="badge {tone}"><span aria-hidden="true">{sign}</span> {words}</span>'


def _plots(figure: Figure, prefix: str) -> str:
    """Return the panels of a figure as separate plots: on a narrow screen they wrap."""
    drawn = "".join(
        f'<div class="panel"><div>{_prose(panel.title)}</div>{svg(part, f"{prefix}_{number}")}</div>'
        for number, (panel, part) in enumerate(zip(figure.panels, figure.apart(), strict=True), 1)
    )
    note = f"<small>{_prose(figure.note)}</small>" if figure.note else ""
    return f'<figure class="plots"><figcaption><b>{_prose(figure.title)}</b></figcaption><div>{drawn}</div>{note}</figure>'


def _table(table: Table) -> str:
    kinds = ["n" if numeric else "" for numeric in _numeric(table)]
    head = "".join(f'<th scope="col" class="{kind}">{_prose(text)}</th>' for text, kind in zip(table.head, kinds, strict=True))
    rows = "".join(_row(row, kinds) for row in table.lines)
    return (
        f'<figure class="table"><figcaption>{_prose(table.caption)}</figcaption>'
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escaped(table.caption)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></figure>"
    )


def _row(row: Row, kinds: list[str]) -> str:
    first, *rest = (_cell(cell) for cell in row.cells)
    cells = "".join(f'<td class="{kind}">{cell}</td>' for cell, kind in zip(rest, kinds[1:], strict=True))
    scope = "rowgroup" if row.mark == "header" else "row"
    return f'<tr class="{row.mark}"><th scope="{scope}" class="{kinds[0]}">{first}</th>{cells}</tr>'


def _cell(cell: str | TableCell) -> str:
    if isinstance(cell, str):
        return _prose(cell)
    parts = []
    if cell.value is not None or cell.paper is None or cell.note:
        parts.append(f'<span class="{_tone(cell)}">{_number(cell, cell.value)}</span>')
    if interval := _interval(cell):
        parts.append(f'<span class="interval">{interval}</span>')
    if cell.paper is not None:
        parts.append(f'<span class="tag">paper {escaped(_paper(cell))}</span>')
    if cell.note:
        parts.append(f"<small>{_prose(cell.note)}</small>")
    return "".join(parts)


def _tone(cell: TableCell) -> str:
    if cell.value is None:
        return "even"
    if not cell.difference or cell.low is None or cell.high is None:
        return "ours"
    return "ours up" if cell.low > 0 else "ours down" if cell.high < 0 else "even"


def _number(cell: TableCell, value: float | None) -> str:
    if value is None:
        return MISSING
    sign = "+" if cell.difference else "-"  # of numbers that are not below zero
    return format(value, f"{sign}z,.{cell.digits}f").replace("-", "\N{MINUS SIGN}")


def _paper(cell: TableCell) -> str:
    return cell.paper if isinstance(cell.paper, str) else _number(cell, cell.paper)


def _interval(cell: TableCell) -> str:
    if cell.value is None or cell.low is None or cell.high is None:
        return ""
    return f"[{_number(cell, cell.low)}, {_number(cell, cell.high)}]"


def _numeric(table: Table) -> list[bool]:
    """Return which columns hold only numbers; the first one names the rows."""

    def number(cell: str | TableCell) -> bool:
        return isinstance(cell, TableCell) or bool(re.fullmatch(r"[-+−–]?[\d.,]*( ?[%sKM]?)", cell))

    columns = zip(*(row.cells for row in table.lines if row.mark != "header"), strict=True)
    numeric = [all(map(number, column)) for column in columns] or [False] * len(table.head)
    return [False, *numeric[1:]]


def _prose(text: str) -> str:
    """Return escaped text; text in backticks is code."""
    pieces = re.split("`([^`]+)`", text)
    return "".join(f"<code>{escaped(piece)}</code>" if odd % 2 else escaped(piece) for odd, piece in enumerate(pieces))


def markdown(table: Table) -> str:
    """Return a table as Markdown: its caption in bold, then the rows."""
    kinds = _numeric(table)
    rule = "|".join("--:" if numeric else "---" for numeric in kinds)
    lines = [f"**{_plain(table.caption)}**", "", f"| {' | '.join(map(_plain, table.head))} |", f"|{rule}|"]
    for row in table.lines:
        cells = (_plain(cell) if isinstance(cell, str) else _line(cell) for cell in row.cells)
        lines.append("| " + " | ".join(f"**{cell}**" if row.mark and cell else cell for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def _line(cell: TableCell) -> str:
    """Return a cell in one line: 57.32 [55.10, 59.44] (paper 58.51; its note)."""
    paper = [] if cell.paper is None else [f"paper {_plain(_paper(cell))}"]
    aside = "; ".join([*paper, *([_plain(cell.note)] if cell.note else [])])
    parts = [_number(cell, cell.value), _interval(cell), f"({aside})" if aside else ""]
    return " ".join(part for part in parts if part)


def _plain(text: str) -> str:
    """Return text that Markdown shows as it is; backticks stay backticks around code."""
    text = " ".join(text.encode("utf-8", "replace").decode("utf-8").split())
    pieces = re.split("(`[^`]+`)", text)
    return "".join(
        piece.replace("|", r"\|") if odd % 2 else re.sub(r"([\\`*_\[\]<>|&~#])", r"\\\1", piece)
        for odd, piece in enumerate(pieces)
    )
