"""What `search` prints: for each query a header, then its hits, the most probable first."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from polyvoc.cli.terminal import linked_path, print_note, short_path, shown_path, write

if TYPE_CHECKING:
    from polyvoc.search.hits import Hit, Hits, SearchResult

NEAREST = 3  # hits listed below "nothing found"


def print_results(results: Sequence[SearchResult], scores: bool = False, timings: bool = False) -> None:
    """Print hits, the most probable first, below a header with the name of the query."""
    for number, result in enumerate(results):
        if number:
            write("")
        _print_result(result, scores)
        _print_notes(result.hits, timings)


def print_paths(results: Sequence[SearchResult], timings: bool = False) -> None:
    """Print the paths of the likely hits alone, each once; of all hits where they have no probability."""
    found = dict[str, None]()
    for result in results:
        hits = result.hits
        found |= dict.fromkeys(hit.path for hit in hits.found)
        if hits.nothing_found:
            print_note(f"{shown_path(result.query)}: {_nothing(result)}")
        _print_notes(hits, timings)
    for path in found:
        if sys.stdout.isatty():
            write(linked_path(path))
        else:  # as it is, for the program that reads it: names of files need not be text
            sys.stdout.buffer.write(os.fsencode(short_path(path)) + b"\n")
    sys.stdout.flush()


def _print_result(result: SearchResult, scores: bool) -> None:
    hits, name = result.hits, shown_path(result.query)
    if hits.nothing_found:
        write(f"{name}: {_nothing(result)}" + ("; nearest:" if hits else ""))
        _print_rows(hits[:NEAREST], scores, "dim")
        return
    write(f"{name}: {_count(hits)}")
    write(_columns(hits, scores))
    _print_rows(hits.found, scores)
    rest = hits[len(hits.found) :]
    if rest:
        write(Text("perhaps:", style="dim"))
        _print_rows(rest, scores, "dim")


def _count(hits: Hits) -> str:
    likely, others = len(hits.likely), len(hits.perhaps)
    if not likely:
        return f"{others} {'hit' if others == 1 else 'hits'}, without probabilities"
    return f"{likely} likely" + (f", {others} less likely" if others else "")


def _columns(hits: Hits, scores: bool) -> Text:
    rated = hits[0].probability is not None
    names = [*(["probability"] if rated else []), f"{'matches':>9}", *([f"{'score':>9}"] if scores or not rated else [])]
    return Text("  ".join([*names, "photograph"]), style="dim")


def _print_rows(hits: Iterable[Hit], scores: bool, style: str = "") -> None:
    from polyvoc.search.probability import probability_text

    for hit in hits:
        rated = hit.probability is not None
        cells = [f"{probability_text(hit.probability):>11}"] if hit.probability is not None else []
        cells.append(f"{hit.inliers or '-':>9}")
        if scores or not rated:
            cells.append(f"{hit.score:>9.4f}")
        write(Text("  ".join([*cells, ""]), style=style) + linked_path(hit.path, style))


def _nothing(result: SearchResult) -> str:
    from polyvoc.search.probability import nothing_found_text

    return nothing_found_text(result.options.min_probability, bool(result.hits), result.options.since)


def _print_notes(hits: Hits, timings: bool) -> None:
    """Print what was not searched, and the seconds."""
    if hits.missing:
        count = sum(last - first + 1 for first, last in hits.missing)
        why = "are damaged" if hits.damage else "are on machines that are unavailable"
        print_note(f"incomplete: {count:,} images {why} (--require-all fails instead)")
        for line in hits.damage:
            print_note(line)
    if timings:
        print_note("seconds: " + ", ".join(f"{stage} {value:.3f}" for stage, value in hits.seconds.items()))
