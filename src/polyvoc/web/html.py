"""Self-contained HTML reports: pages with pictures inside, for `search --html`, `duplicates --html` and the demo."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from polyvoc.errors import ImageError, OptionError
from polyvoc.features.decode import read_thumbnail
from polyvoc.search.hits import Hit, SearchResult
from polyvoc.search.probability import nothing_found_text, probability_text
from polyvoc.storage.stores import base_name, display_name, has_query, is_url, redact, url_parts

NEAREST = 3  # hits shown where none is likely
TITLE = "polyvoc: photographs that show the same thing"
THUMBNAIL = 320  # pixels of the long side
REPORT_STYLE = Path(__file__).parent / "page" / "report.css"
BROWSABLE = ("http://", "https://", "file:///")  # URLs that browsers can open


@dataclass(frozen=True)
class Picture:
    """A photograph on a page and its caption."""

    jpeg: bytes | None  # None if the file is gone
    title: str
    rank: str = ""  # in bold, before the title
    note: str = ""  # fainter, after it
    href: str = ""  # link of the picture
    mark: Literal["", "right", "wrong"] = ""


@dataclass(frozen=True)
class Fold:
    """Photographs behind a line of text, shown by a click."""

    text: str
    pictures: Sequence[Picture] = ()


def search_page(results: Sequence[SearchResult], may_read: Callable[[str], bool]) -> str:
    """Return a page that shows each query and its hits; of photographs that may not be read, the names only."""
    rankings = []
    for result in results:
        hits, shown = result.hits, [picture(hit.path, *_caption(hit), may_read(hit.path)) for hit in result.hits]
        first = len(hits.found)
        nothing = nothing_found_text(result.options.min_probability, bool(hits), result.options.since).capitalize()
        name = display_name(base_name(redact(result.query)))
        query = picture(result.query, readable=may_read(result.query))
        rest = Fold(f"Perhaps: {len(shown) - first} less likely", shown[first:])
        if hits.nothing_found:
            rest = Fold("The nearest, probably something else", shown[:NEAREST])
        rankings.append(ranking(name, query, shown[:first], nothing=nothing, rest=rest))
    return document(TITLE, rankings)


def _caption(hit: Hit) -> tuple[str, str]:
    """Return the probability of a hit and its number of verified matches; its score where there is no probability."""
    matches = f"{hit.inliers} matches" if hit.inliers else ""
    return (f"{hit.score:.3g}", matches) if hit.probability is None else (probability_text(hit.probability), matches)


def format_score(hit: Hit) -> str:
    """Return the score of a hit as text, with its probability if there is one."""
    return f"{hit.score:.3g}" if hit.probability is None else f"{hit.score:.3g}, {probability_text(hit.probability)}"


def picture(path: str, rank: str = "", note: str = "", readable: bool = True) -> Picture:
    """Return a photograph for a page, titled by the last two parts of its path; linked to its file if that may be read."""
    title = display_name("/".join(url_parts(redact(path))[-2:]))
    return Picture(thumbnail(path) if readable else None, title, rank, note, href=_link(path) if readable else "")


def thumbnail(path: str, long_side: int = THUMBNAIL) -> bytes | None:
    """Return a small JPEG of a photograph; None if its file cannot be read here."""
    try:
        return read_thumbnail(path, long_side)
    except (ImageError, OptionError):
        return None


def _link(path: str) -> str:
    """Return the URL of a photograph; empty if browsers cannot open it."""
    if not is_url(path):
        return Path(path).absolute().as_uri()
    return path if path.startswith(BROWSABLE) and "::" not in path and not has_query(path) else ""


def document(title: str, body: Sequence[str], style: str = "") -> str:
    """Return a page made of parts in HTML, which may bring a style of their own."""
    style = REPORT_STYLE.read_text(encoding="utf-8") + style
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{style}</style>\n</head>\n<body>\n<h1>{escaped(title)}</h1>\n"
        + "\n".join(body)
        + "\n</body>\n</html>\n"
    )


def paragraph(text: str) -> str:
    """Return a paragraph."""
    return f"<p>{escaped(text)}</p>"


def figures(values: Sequence[tuple[str, str]]) -> str:
    """Return a row of (value, label) figures."""
    items = "".join(f"<li><b>{escaped(value)}</b><span>{escaped(label)}</span></li>" for value, label in values)
    return f'<ul class="figures">{items}</ul>'


def ranking(heading: str, query: Picture, hits: Sequence[Picture], note: str = "", nothing: str = "Nothing found",
            rest: Fold | None = None) -> str:  # fmt: skip
    """Return a section with a query and its hits, best first, or the text `nothing`; then the others, folded."""
    shown = "".join(map(_figure, hits)) or f'<p class="note">{escaped(nothing)}.</p>'
    return (
        f'<section><h2>{escaped(heading)}</h2><div class="ranking"><div class="query">{_figure(query)}'
        f'<p class="note">{escaped(note)}</p></div><div><div class="answers">{shown}</div>{_folded(rest)}</div></div></section>'
    )


def escaped(text: str) -> str:
    """Escape text; bytes of file names that are not text become question marks."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))


def _folded(fold: Fold | None) -> str:
    if fold is None or not fold.pictures:
        return ""
    shown = "".join(map(_figure, fold.pictures))
    return f'<details><summary>{escaped(fold.text)}</summary><div class="answers">{shown}</div></details>'


def _figure(shown: Picture) -> str:
    if shown.jpeg is None:
        inside = '<span class="absent">file not found</span>'
    else:
        data = base64.b64encode(shown.jpeg).decode("ascii")
        inside = f'<img src="data:image/jpeg;base64,{data}" alt="{escaped(shown.title)}" loading="lazy">'
    tag, href = ("a", f' href="{escaped(shown.href)}"') if shown.href else ("span", "")
    rank = f"<b>{escaped(shown.rank)}</b> " if shown.rank else ""
    note = f' <span class="note">{escaped(shown.note)}</span>' if shown.note else ""
    return (
        f'<figure><{tag} class="frame {shown.mark}"{href}>{inside}</{tag}>'
        f"<figcaption>{rank}{escaped(shown.title)}{note}</figcaption></figure>"
    )
