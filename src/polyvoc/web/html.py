"""Self-contained HTML reports: pages with pictures inside, for `search --html`, `duplicates --html` and the demo."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Literal

from polyvoc.errors import ImageError, OptionError
from polyvoc.features.decode import read_thumbnail
from polyvoc.search.hits import Hit, SearchResult
from polyvoc.search.probability import nothing_found_text, probability_text
from polyvoc.storage.stores import base_name, display_name, has_query, is_url, redact, url_parts

TITLE = "polyvoc: photographs that show the same thing"
THUMBNAIL = 320  # pixels of the long side
BROWSABLE = ("http://", "https://", "file:///")  # URLs that browsers can open
STYLE = """
:root { color-scheme: light dark; --paper: #f6f6f3; --card: #ffffff; --ink: #1d1d1f; --faint: #6b6b70; --rule: #dcdcd6;
  --right: #2a9d4e; --wrong: #d64541; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #17181a; --card: #212327; --ink: #ececee; --faint: #9c9ca3;
  --rule: #35373c; --right: #4cc674; --wrong: #ef6b63; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 82rem; padding: 2rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .8rem; }
h2 { font-size: 1.1rem; margin: 0 0 .75rem; }
p { margin: .35rem 0; max-width: 62rem; }
a { color: inherit; }
.figures { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1.25rem 0 1.75rem; padding: 0; list-style: none; }
.figures li { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: .6rem 1rem; }
.figures b { display: block; font-size: 1.4rem; font-variant-numeric: tabular-nums; }
.figures span, .note { color: var(--faint); font-size: .85rem; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; padding: 1rem 1.1rem;
  margin: 0 0 1.1rem; }
.ranking { display: grid; grid-template-columns: minmax(11rem, 15rem) 1fr; gap: 1.1rem; }
.answers { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(13rem, 45%), 1fr)); gap: .8rem;
  align-content: start; }
figure { margin: 0; min-width: 0; }
.frame { display: block; border: 3px solid var(--rule); border-radius: 8px; overflow: hidden; background: var(--rule); }
.frame img { display: block; width: 100%; aspect-ratio: 4 / 3; object-fit: cover; }
.query .frame img { aspect-ratio: auto; max-height: 20rem; object-fit: contain; }
.frame.right { border-color: var(--right); } .frame.wrong { border-color: var(--wrong); }
.absent { display: grid; place-items: center; aspect-ratio: 4 / 3; color: var(--faint); font-size: .85rem; }
figcaption { font-size: .8rem; line-height: 1.35; margin-top: .3rem; overflow-wrap: anywhere; }
figcaption .note { font-size: inherit; font-variant-numeric: tabular-nums; }
@media (max-width: 44rem) { .ranking { grid-template-columns: 1fr; } .query { max-width: 15rem; } }
"""


@dataclass(frozen=True)
class Picture:
    """A photograph on a page and its caption."""

    jpeg: bytes | None  # None if the file is gone
    title: str
    rank: str = ""  # in bold, before the title
    note: str = ""  # fainter, after it
    href: str = ""  # link of the picture
    mark: Literal["", "right", "wrong"] = ""


def search_page(results: Sequence[SearchResult]) -> str:
    """Return a page that shows each query and its hits."""
    rankings = []
    for result in results:
        hits = [picture(hit.path, f"{rank}.", format_score(hit)) for rank, hit in enumerate(result.hits, start=1)]
        limit = result.options.min_probability
        nothing = nothing_found_text(limit).capitalize() if limit else "Nothing found"
        name = display_name(base_name(redact(result.query)))
        rankings.append(ranking(name, picture(result.query), hits, nothing=nothing))
    return document(TITLE, rankings)


def format_score(hit: Hit) -> str:
    """Return the score of a hit as text, with its probability if there is one."""
    return f"{hit.score:.3g}" if hit.probability is None else f"{hit.score:.3g}, {probability_text(hit.probability)}"


def picture(path: str, rank: str = "", note: str = "") -> Picture:
    """Return a photograph for a page, titled by the last two parts of its path and linked to its file."""
    title = display_name("/".join(url_parts(redact(path))[-2:]))
    return Picture(thumbnail(path), title, rank, note, href=_link(path))


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
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n<h1>{escaped(title)}</h1>\n"
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


def ranking(heading: str, query: Picture, hits: Sequence[Picture], note: str = "", nothing: str = "Nothing found") -> str:
    """Return a section with a query and its hits, best first, or the text `nothing`."""
    shown = "".join(map(_figure, hits)) or f'<p class="note">{escaped(nothing)}.</p>'
    return (
        f'<section><h2>{escaped(heading)}</h2><div class="ranking"><div class="query">{_figure(query)}'
        f'<p class="note">{escaped(note)}</p></div><div class="answers">{shown}</div></div></section>'
    )


def escaped(text: str) -> str:
    """Escape text; bytes of file names that are not text become question marks."""
    return escape(text.encode("utf-8", "replace").decode("utf-8"))


def _figure(shown: Picture) -> str:
    if shown.jpeg is None:
        inside = '<span class="absent">file not found</span>'
    else:
        inside = f'<img src="{_data(shown.jpeg)}" alt="{escaped(shown.title)}" loading="lazy">'
    tag, href = ("a", f' href="{escaped(shown.href)}"') if shown.href else ("span", "")
    rank = f"<b>{escaped(shown.rank)}</b> " if shown.rank else ""
    note = f' <span class="note">{escaped(shown.note)}</span>' if shown.note else ""
    return (
        f'<figure><{tag} class="frame {shown.mark}"{href}>{inside}</{tag}>'
        f"<figcaption>{rank}{escaped(shown.title)}{note}</figcaption></figure>"
    )


def _data(jpeg: bytes) -> str:
    return "data:image/jpeg;base64," + base64.b64encode(jpeg).decode("ascii")
