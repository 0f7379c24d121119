"""Hits as HTML for notebooks: thumbnails of files that may be read, with the outline of the query; no script."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING

from polyvoc.errors import ImageError, OptionError
from polyvoc.features.decode import read_thumbnail
from polyvoc.search.probability import nothing_found_text, probability_text
from polyvoc.storage.stores import display_name, is_url, redact, url_parts

if TYPE_CHECKING:
    from polyvoc.search.hits import Hit, Hits

THUMBNAIL = 180  # pixels of the long side
SHOWN = 20  # hits, at most
TILE = "display:inline-block;width:190px;margin:0 10px 10px 0;vertical-align:top;font-size:12px;line-height:1.35"
FRAME = "position:relative;display:inline-block;line-height:0;max-width:100%"
ABSENT = "display:inline-block;width:180px;line-height:120px;text-align:center;border:1px solid #8888;opacity:.7"
SVG = "position:absolute;left:0;top:0;width:100%;height:100%"


def hits_as_html(hits: Hits, may_read: Callable[[str], bool]) -> str:
    """Return hits in their groups; of photographs that may not be read, the names only."""
    found = hits.found
    rest = hits[len(found) : SHOWN]
    if hits.nothing_found:
        head = nothing_found_text(any_hits=bool(hits)).capitalize()
    else:
        head = f"{len(found)} likely" if hits.likely else f"{len(found)} hits, without probabilities"
    parts = [f"<p>{escape(head)}</p>", _tiles(found[:SHOWN], may_read)]
    if rest:
        label = "the nearest" if hits.nothing_found else "perhaps"
        parts.append(f"<details><summary>{label}: {len(rest)}</summary>{_tiles(rest, may_read)}</details>")
    if len(hits) > SHOWN:
        parts.append(f"<p>{len(hits) - SHOWN} more</p>")
    return f"<div>{''.join(parts)}</div>"


def _tiles(hits: Sequence[Hit], may_read: Callable[[str], bool]) -> str:
    return "".join(_tile(hit, may_read) for hit in hits)


def _tile(hit: Hit, may_read: Callable[[str], bool]) -> str:
    score = f"score {hit.score:.3g}" if hit.probability is None else probability_text(hit.probability)
    facts = [score, *([f"{hit.inliers} matches"] if hit.inliers else []), f"image {hit.image}"]
    name, whole = ("/".join(url_parts(redact(hit.path))[-2:]), redact(hit.path)) if hit.path else ("", "")
    title = _escaped(whole)
    return (
        f'<div style="{TILE}" title="{title}">{_photograph(hit, may_read)}<br><b>{_escaped(" · ".join(facts))}</b><br>'
        f'<span style="overflow-wrap:anywhere">{_escaped(name)}</span></div>'
    )


def _photograph(hit: Hit, may_read: Callable[[str], bool]) -> str:
    jpeg = thumbnail(hit.path) if hit.path and not is_url(hit.path) and may_read(hit.path) else None
    if jpeg is None:
        return f'<span style="{ABSENT}">no picture</span>'
    data = base64.b64encode(jpeg).decode("ascii")
    return (
        f'<span style="{FRAME}"><img src="data:image/jpeg;base64,{data}" alt="" style="max-width:100%">{_outline(hit)}</span>'
    )


def _outline(hit: Hit) -> str:
    if hit.outline is None or not hit.width or not hit.height:
        return ""
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in hit.outline)
    return (
        f'<svg viewBox="0 0 {hit.width} {hit.height}" preserveAspectRatio="none" style="{SVG}">'
        f'<polygon points="{points}" fill="none" stroke="#e5484d" stroke-width="2" vector-effect="non-scaling-stroke"/></svg>'
    )


def thumbnail(path: str) -> bytes | None:
    """Return a small JPEG of a photograph; None if its file cannot be read here."""
    try:
        return read_thumbnail(path, THUMBNAIL)
    except (ImageError, OptionError):
        return None


def _escaped(text: str) -> str:
    """Escape text on one line; bytes of file names that are not text are shown as such."""
    return escape(display_name(text))
