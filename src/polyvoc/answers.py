"""One photograph asked of an index, stage by stage with a clock, and its answer as JSON and as a page."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from polyvoc import features, images, page
from polyvoc.errors import ImageError
from polyvoc.evidence import plain_options
from polyvoc.index import Index
from polyvoc.records import Hit, SearchOptions

THUMBNAIL = 320  # pixels of the long side


@dataclass(frozen=True)
class Answer:
    """What an index says to a photograph, and how long each stage took."""

    query: str
    options: SearchOptions
    hits: Sequence[Hit]
    seconds: dict[str, float]  # by stage, in their order

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        hits = [asdict(hit) for hit in self.hits]
        seconds = {stage: round(value, 6) for stage, value in self.seconds.items()}
        return {"query": self.query, "options": plain_options(self.options), "hits": hits, "seconds": seconds}


def open_index(path: Path) -> tuple[Index, float]:
    """Open an index, its vocabularies too; gives the seconds which that took."""
    seconds: dict[str, float] = {}
    with _clock(seconds, "open"):
        index = Index.open(path)
        _ = index.home.quantiser
    return index, seconds["open"]


def ask(index: Index, photograph: Path, options: SearchOptions, threads: int | None = None) -> Answer:
    """Search as `Index.search` does, with a clock on each stage."""
    seconds: dict[str, float] = {}
    made_with = index.home.feature_options
    with _clock(seconds, "decode"):
        grey = images.read_grey(photograph, made_with.long_side)
    with _clock(seconds, "sift"):
        found = features.extract_pixels(grey, made_with, images.describe(photograph))
    with _clock(seconds, "quantise"):
        words, signatures = index.quantise(found, options)
    vector = None
    if options.fuse:
        with _clock(seconds, "embed"):
            vector = index.embed(photograph)
    with _clock(seconds, "score"):
        hits = index.search_words(words, signatures, options, threads, found, vector)
    return Answer(str(photograph), options, hits, seconds)


def as_page(answers: Sequence[Answer]) -> str:
    """Give a page that shows each query and its hits."""
    rankings = []
    for answer in answers:
        hits = [picture(hit.path, f"{rank}.", f"{hit.score:.3g}") for rank, hit in enumerate(answer.hits, start=1)]
        rankings.append(page.ranking(images.describe(Path(answer.query).name), picture(answer.query), hits))
    return page.document("polyvoc: photographs that show the same thing", rankings)


def picture(path: str, rank: str = "", note: str = "") -> page.Picture:
    """Give a photograph for a page, by the last two parts of its path, with a link to its file."""
    title = images.describe(os.path.join(*Path(path).parts[-2:]))
    return page.Picture(thumbnail(path), title, rank, note, href=Path(path).absolute().as_uri())


def thumbnail(path: str, long_side: int = THUMBNAIL) -> bytes | None:
    """Give a small JPEG of a photograph, None if its file is gone or broken."""
    try:
        return images.read_thumbnail(Path(path), long_side)
    except ImageError:
        return None


@contextmanager
def _clock(seconds: dict[str, float], stage: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - started
