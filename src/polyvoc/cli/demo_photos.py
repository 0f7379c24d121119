"""The work of `polyvoc demo`: renders views of photographs, indexes and searches them, and writes a page."""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from polyvoc.errors import OptionError
from polyvoc.features.decode import read_thumbnail
from polyvoc.index.writer import IndexWriter
from polyvoc.search.hits import Hit
from polyvoc.search.index import Index
from polyvoc.storage.files import write_errors
from polyvoc.types import Floats64, Progress
from polyvoc.vocabulary.vocabulary import Vocabulary
from polyvoc.web.html import document, figures, format_score, paragraph, picture, ranking

# Files of skimage/data.
PHOTOGRAPHS = {
    "motorcycle": "motorcycle_left.png", "astronaut": "astronaut.png", "brick": "brick.png", "camera": "camera.png",
    "cat": "chelsea.png", "coffee": "coffee.png", "coins": "coins.png", "galaxies": "hubble_deep_field.jpg",
    "grass": "grass.png", "gravel": "gravel.png", "moon": "moon.png", "page": "page.png", "retina": "retina.jpg",
    "rocket": "rocket.jpg", "tissue": "ihc.png",
}  # fmt: skip
QUERY_PHOTOGRAPHS = {"motorcycle": "motorcycle_right.png"}  # of a stereo pair: truly another view. Else the same file.
SEED = 2014
LONG_SIDE = 800  # larger photographs are reduced first
TOP = 8  # hits shown on the page
CORNERS: Floats64 = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


@dataclass(frozen=True)
class DemoResult:
    """The hits of a query, and how many are right."""

    name: str  # of the photograph
    query: Path
    hits: Sequence[Hit]  # of the whole collection
    n_right: int  # views of the photograph in the collection

    def is_right(self, hit: Hit) -> bool:
        """Return whether a hit shows the same photograph."""
        return Path(hit.path).name.startswith(f"{self.name}-")

    @property
    def found(self) -> int:
        """Return the number of right hits among the first `n_right`."""
        return sum(map(self.is_right, self.hits[: self.n_right]))

    @property
    def average_precision(self) -> float:
        """Return the mean, over the right views, of the precision at the rank of each; 0 for one not found."""
        ranks = [rank for rank, hit in enumerate(self.hits, start=1) if self.is_right(hit)]
        return sum(count / rank for count, rank in enumerate(ranks, start=1)) / self.n_right

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        hits = [{"path": hit.path, "score": hit.score, "right": self.is_right(hit)} for hit in self.hits[:TOP]]
        counts = {"right": self.n_right, "found": self.found, "average_precision": round(self.average_precision, 4)}
        return {"name": self.name, "query": str(self.query), **counts, "hits": hits}


@dataclass(frozen=True)
class DemoReport:
    """The results of the demonstration."""

    index: Path
    page: Path
    n_images: int
    n_features: int
    seconds: float
    results: Sequence[DemoResult]

    @property
    def first_right(self) -> int:
        """Return the number of queries whose best hit is right."""
        return sum(bool(result.hits) and result.is_right(result.hits[0]) for result in self.results)

    @property
    def found(self) -> int:
        """Return the number of right hits in the first ranks."""
        return sum(result.found for result in self.results)

    @property
    def n_right(self) -> int:
        """Return the number of right views in the collection."""
        return sum(result.n_right for result in self.results)

    @property
    def mean_average_precision(self) -> float:
        """Return the mean over the queries."""
        return sum(result.average_precision for result in self.results) / len(self.results)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        counts = {"images": self.n_images, "features": self.n_features, "seconds": round(self.seconds, 3),
                  "first_right": self.first_right, "queries": len(self.results), "found": self.found, "right": self.n_right,
                  "mean_average_precision": round(self.mean_average_precision, 4)}  # fmt: skip
        results = [result.as_dict() for result in self.results]
        return {"index": str(self.index), "page": str(self.page), **counts, "results": results}


def run_demo(out: Path, progress: Progress, vocabularies: Sequence[Vocabulary] | None = None) -> DemoReport:
    """Make the collection below `out`, index and search it, and write the page; the same every time."""
    started = perf_counter()
    queries = make_collection(find_photographs(), out, progress)
    with IndexWriter.open(out / "photos.polyvoc", vocabularies) as writer:
        writer.update([out / "photos"], progress=progress)
    with Index.open(out / "photos.polyvoc") as index:
        rows = list(index.images())
        results = []
        for done, (name, query) in enumerate(queries.items(), start=1):
            n_right = sum(Path(row.path).name.startswith(f"{name}-") for row in rows)
            results.append(DemoResult(name, query, index.search(query, top=len(rows)), n_right))
            progress("searching", done, len(queries))
    page, n_features = out / "index.html", sum(row.n_features for row in rows)
    report = DemoReport(out / "photos.polyvoc", page, len(rows), n_features, perf_counter() - started, results)
    with write_errors(page):
        page.write_text(demo_page(report), encoding="utf-8")
    return report


# -- photographs


def find_photographs() -> dict[str, tuple[Path, Path]]:
    """Return the photographs of scikit-image by name: the one for the collection and the one for the query."""
    spec = importlib.util.find_spec("skimage")  # does not import it
    folders = [Path(folder) / "data" for folder in (spec.submodule_search_locations or [])] if spec else []
    photographs = {}
    for name, file in PHOTOGRAPHS.items():
        for folder in folders:
            paths = folder / file, folder / QUERY_PHOTOGRAPHS.get(name, file)
            if all(path.is_file() for path in paths):
                photographs[name] = paths
    if not photographs:
        raise OptionError('the demo needs the photographs of scikit-image; install it with: pip install "polyvoc[demo]"')
    return photographs


def make_collection(
    photographs: dict[str, tuple[Path, Path]], out: Path, progress: Progress, long_side: int = LONG_SIDE
) -> dict[str, Path]:
    """Write views of photographs to out/photos and one query for each to out/queries; return the queries."""
    queries = {}
    for done, (name, (source, other)) in enumerate(photographs.items(), start=1):
        rng = np.random.default_rng([SEED, *name.encode()])
        for view, jpeg in _views(_read(source, long_side), rng):
            _write(out / "photos" / f"{name}-{view}.jpg", jpeg)
        queries[name] = out / "queries" / f"{name}.jpg"
        _write(queries[name], _query(_read(other, long_side), rng))
        progress("photographs", done, len(photographs))
    return queries


def _views(photograph: Image.Image, rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    size = photograph.size
    yield "original", _jpeg(photograph, 92)
    yield "viewpoint", _jpeg(render(photograph, _side_view(size, 0.42, rng), (0.65, 0.9)), 88)
    # The largest square around the centre that can be rotated without leaving the photograph.
    square = np.array(size) / 2 + (CORNERS - 0.5) @ _rotation(rng.uniform(25, 65)) * min(size) * 0.5**0.5
    yield "turned", _jpeg(render(photograph, square, (0.7, 0.7)), 88)
    yield "crop", _jpeg(render(photograph, _part(size, 0.4**0.5, rng)), 88)  # 40 % of the area
    yield "dark", _jpeg(_change_light(photograph, gamma=2.2, gain=0.7), 88)
    yield "small", _jpeg(photograph.resize((size[0] // 2, size[1] // 2)), 15)
    blurred = np.asarray(photograph.filter(ImageFilter.GaussianBlur(1.2)), np.float32)
    noisy = np.clip(blurred + rng.normal(0, 12.0, blurred.shape), 0, 255).astype(np.uint8)
    yield "noisy", _jpeg(Image.fromarray(noisy), 88)


def _query(photograph: Image.Image, rng: np.random.Generator) -> bytes:
    """Render a view unlike those of the collection: a part, from the other side, slightly rotated, and bright."""
    size = photograph.size
    centre = np.array(size) / 2
    part = render(photograph, centre + (_part(size, 0.8, rng) - centre) @ _rotation(rng.uniform(-8, 8)) * 0.85)
    view = render(part, _side_view(part.size, -0.4, rng), (0.7, 0.9))
    return _jpeg(_change_light(view, gamma=0.55, gain=1.1), 60)


def render(photograph: Image.Image, quad: Floats64, scale: tuple[float, float] = (1.0, 1.0)) -> Image.Image:
    """Render a quadrilateral of a photograph (corners [4, 2], clockwise from top left) as a camera in front would see it."""
    top, right, bottom, left = np.linalg.norm(np.roll(quad, -1, axis=0) - quad, axis=1)
    size = round(max(top, bottom) * scale[0]), round(max(left, right) * scale[1])
    # The projective map with (u, v) = (a x + b y + c, d x + e y + f) / (g x + h y + 1) at the four corners.
    rows, values = [], []
    for (x, y), (u, v) in zip(CORNERS * size, quad, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    coefficients = np.linalg.solve(np.array(rows), np.array(values)).tolist()
    return photograph.transform(size, Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BICUBIC)


def _side_view(size: tuple[int, int], strength: float, rng: np.random.Generator) -> Floats64:
    """Return a quadrilateral seen from the side (the right one if positive): the near edge shows less of the photograph."""
    left, right = (0.02, strength / 2) if strength > 0 else (-strength / 2, 0.02)  # cut off at both ends of the edges
    shift = rng.uniform(-0.02, 0.02)
    x1, x2 = 0.02, 0.98
    return np.array([[x1, left + shift], [x2, right + shift], [x2, 1 - right + shift], [x1, 1 - left + shift]]) * size


def _part(size: tuple[int, int], side: float, rng: np.random.Generator) -> Floats64:
    return np.asarray((CORNERS * side + rng.uniform(0, 1 - side, 2)) * size)


def _rotation(degrees: float) -> Floats64:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, s], [-s, c]])


def _change_light(photograph: Image.Image, gamma: float, gain: float) -> Image.Image:
    levels = np.clip(255 * gain * (np.arange(256) / 255) ** gamma, 0, 255).astype(int).tolist()
    return photograph.point(levels * 3)


def _read(path: Path, long_side: int) -> Image.Image:
    return Image.open(io.BytesIO(read_thumbnail(path, long_side)))


def _jpeg(photograph: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    photograph.convert("RGB").save(out, "JPEG", quality=quality)
    return out.getvalue()


def _write(path: Path, content: bytes) -> None:
    """Write a file, unless it exists with the same content: the next run then has nothing new to index."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)


# -- page


def demo_page(report: DemoReport) -> str:
    """Return the page: accuracy, and the hits of every query."""
    return document("polyvoc finds photographs that show the same thing", [
        paragraph(
            f"{report.n_images} views of {len(report.results)} photographs were rendered and indexed. Each query is another "
            "view, not in the collection. Green frames: the same photograph; red: another one. There are "
            f"{report.results[0].n_right} right hits for each query, so a perfect ranking turns red after these."
        ),
        figures([
            (f"{report.first_right} of {len(report.results)}", "best hits are right"),
            (f"{report.found} of {report.n_right}", "views found in the first ranks"),
            (f"{report.mean_average_precision:.3f}", "mean average precision"),
            (f"{report.n_images}", "photographs"),
            (f"{report.n_features:,}", "features"),
            (f"{report.seconds:.1f} s", "to render, index and search"),
        ]),
        *map(_ranking, report.results),
    ])  # fmt: skip


def _ranking(result: DemoResult) -> str:
    pictures = [
        replace(picture(hit.path, f"{rank}.", format_score(hit)), mark="right" if result.is_right(hit) else "wrong")
        for rank, hit in enumerate(result.hits[:TOP], start=1)
    ]
    note = f"{result.found} of {result.n_right} views in the first {result.n_right}"
    return ranking(
        result.name, picture(str(result.query)), pictures, f"{note}, average precision {result.average_precision:.2f}"
    )
