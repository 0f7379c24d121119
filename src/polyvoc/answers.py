"""One photograph asked of an index, stage by stage with a clock, and its answer as JSON and as a page."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from polyvoc import confidence, images, page, stores
from polyvoc.errors import ImageError, OptionError
from polyvoc.evidence import plain_options
from polyvoc.index import Index, Photograph
from polyvoc.masking import has_query, without_secrets
from polyvoc.records import ClusterOptions, Features, Floats, Hit, Hits, Region, SearchOptions, Spans

THUMBNAIL = 320  # pixels of the long side
BROWSED = ("http://", "https://", "file:///")  # addresses that browsers can open


@dataclass(frozen=True)
class Answer:
    """What an index says to a photograph, and how long each stage took."""

    query: str
    options: SearchOptions
    hits: Hits
    seconds: dict[str, float]  # by stage, in their order
    region: Region | None = None  # of the photograph, if only a part of it asked

    @property
    def missing(self) -> Spans:
        """Give the ids of images that could not be asked, because their machines do not answer."""
        return self.hits.missing

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        hits = [asdict(hit) for hit in self.hits]
        seconds = {stage: round(value, 6) for stage, value in self.seconds.items()}
        region = None if self.region is None else list(self.region)
        options = plain_options(self.options)
        found = {"hits": hits, "complete": self.hits.complete, "missing": [list(span) for span in self.missing]}
        return {"query": without_secrets(self.query), "region": region, "options": options, **found, "seconds": seconds}


@dataclass(frozen=True)
class Failure:
    """A photograph that could not be asked, and why."""

    query: str
    error: str  # one line

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {"query": without_secrets(self.query), "error": self.error}


def open_index(path: Path, cluster: ClusterOptions | None = None) -> tuple[Index, float]:
    """Open an index, its vocabularies too; gives the seconds which that took."""
    seconds: dict[str, float] = {}
    with clock(seconds, "open"):
        index = Index.open(path, ray=cluster)
        _ = index.home.quantiser
    return index, seconds["open"]


@dataclass(frozen=True, eq=False)
class Question:
    """A photograph to search with, and what is known of it."""

    photograph: Photograph
    region: Region | None = None  # if only a part of it asks
    name: str | None = None  # what it is called in the answer; None: after its file
    embed: Callable[[], Floats] | None = None  # gives the vector of the global embedding, where the index cannot

    def name_in(self, index: Index) -> str:
        """Give what it is called: by its name, by its path, or else by what it is."""
        if self.name is not None:
            return self.name
        if isinstance(self.photograph, int):
            return index.image(self.photograph).path
        if isinstance(self.photograph, Features):
            return f"{len(self.photograph)} features"
        return images.describe(self.photograph) if isinstance(self.photograph, bytes) else str(self.photograph)


def ask(index: Index, question: Question, options: SearchOptions, threads: int | None = None,
        early: Callable[[Answer], None] | None = None) -> Answer:  # fmt: skip
    """Search as `Index.search` does, with a clock on each stage.

    `early` is told the answer by words alone as soon as it is there, if verification follows.
    """
    seconds: dict[str, float] = {}
    name, region = question.name_in(index), question.region
    asked = index.asked(question.photograph, options, region, partial(clock, seconds), question.embed)
    started = time.perf_counter()

    def tell(hits: Hits) -> None:
        assert early is not None
        early(Answer(name, options, hits, {**seconds, "score": time.perf_counter() - started}, region))

    with clock(seconds, "score"):
        hits = index.find(asked, options, threads, None if early is None else tell)
    return Answer(name, options, hits, seconds, region)


def as_page(answers: Sequence[Answer]) -> str:
    """Give a page that shows each query and its hits."""
    rankings = []
    for answer in answers:
        hits = [picture(hit.path, f"{rank}.", said(hit)) for rank, hit in enumerate(answer.hits, start=1)]
        sure = answer.options.sure
        nothing = confidence.nothing_found(sure).capitalize() if sure else "Nothing found"
        name = images.describe(stores.name(without_secrets(answer.query)))
        rankings.append(page.ranking(name, picture(answer.query), hits, nothing=nothing))
    return page.document("polyvoc: photographs that show the same thing", rankings)


def said(hit: Hit) -> str:
    """Give what is said of a hit: its score, and how probable it is if anybody knows."""
    return f"{hit.score:.3g}" if hit.probability is None else f"{hit.score:.3g}, {confidence.in_words(hit.probability)}"


def picture(path: str, rank: str = "", note: str = "") -> page.Picture:
    """Give a photograph for a page, by the last two parts of its path, with a link to its file."""
    title = images.describe("/".join(stores.parts(without_secrets(path))[-2:]))
    return page.Picture(thumbnail(path), title, rank, note, href=_link(path))


def thumbnail(path: str, long_side: int = THUMBNAIL) -> bytes | None:
    """Give a small JPEG of a photograph, None if its file is gone or broken, or its store cannot be opened here."""
    try:
        return images.read_thumbnail(path, long_side)
    except (ImageError, OptionError):
        return None


def _link(path: str) -> str:
    """Give where a click on a photograph leads: nowhere if a browser cannot go there."""
    if not stores.is_url(path):
        return Path(path).absolute().as_uri()
    return path if path.startswith(BROWSED) and "::" not in path and not has_query(path) else ""


@contextmanager
def clock(seconds: dict[str, float], stage: str) -> Iterator[None]:
    """Write down how many seconds a stage takes."""
    started = time.perf_counter()
    yield
    seconds[stage] = time.perf_counter() - started
