"""Demo."""

from __future__ import annotations

import importlib.util
import io
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import typer
from PIL import Image, ImageFilter

from polyvoc.cli.flags import Json, on_disk
from polyvoc.cli.terminal import linked, mark, progress_bar, talk, write, write_json
from polyvoc.errors import OptionError
from polyvoc.features.decode import read_grey, read_thumbnail
from polyvoc.index.writer import IndexWriter
from polyvoc.search.explain import Explanation
from polyvoc.search.hits import Hit
from polyvoc.search.index import Index
from polyvoc.storage.files import write_errors
from polyvoc.types import Progress
from polyvoc.vocabulary.vocabulary import Vocabulary
from polyvoc.web.html import Line, Picture, Side, document, figures, matches, paragraph, ranking, thumbnail


def show_demo(report: DemoReport) -> None:
    """Show the rankings of the demonstration, how good they are, and what to try next."""
    for answer in report.answers:
        write(f"{answer.name}: {answer.found} of {answer.n_right} views in the first {answer.n_right}")
        for rank, hit in enumerate(answer.hits[:5], start=1):
            write(f"{rank:>4}", mark(answer.is_right(hit)), f"{hit.score:8.4f}", linked(hit.path))
    write(
        f"\n{report.n_images} photographs, {report.n_features:,} features, {report.seconds:.1f} s. "
        f"Best hit right: {report.first_right} of {len(report.answers)}. "
        f"Views in the first ranks: {report.found} of {report.n_right} ({report.found / report.n_right:.0%}). "
        f"Mean average precision: {report.mean_average_precision:.3f}."
    )
    write("Page:", linked(str(report.page.absolute())))
    query, index = (shlex.quote(str(path)) for path in (report.answers[0].query, report.index))
    talk(f"Try next: polyvoc serve {index} --open")
    talk(f"          polyvoc search {query} --index {index} --timings")
    talk("          polyvoc index ~/Pictures && polyvoc search PHOTO --html answers.html")


app = typer.Typer()
DEFAULT_DEMO = Path("polyvoc-demo")


@app.command("demo", epilog="Example: polyvoc demo --open")
def demo_command(
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where to put photographs, index and page.", callback=on_disk)
    ] = DEFAULT_DEMO,
    json: Json = False,
    show: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in the browser.")] = False,
) -> None:
    """Try it: make a collection of real photographs, index it, ask hard questions, and write a page with the answers."""
    pass

    with progress_bar() as progress:
        report = run_demo(out, progress)
    if json:
        write_json(report.as_dict())
    else:
        show_demo(report)
    if show:
        typer.launch(report.page.absolute().as_uri())


Quad = npt.NDArray[np.float64]  # [4, 2] corners of a view, in pixels of the photograph: clockwise from top left
# Files of skimage/data. The second name is what the question is made of: the two of a stereo pair are truly different views.
PHOTOGRAPHS = {
    "motorcycle": ("motorcycle_left.png", "motorcycle_right.png"),
    "astronaut": ("astronaut.png", "astronaut.png"),
    "brick": ("brick.png", "brick.png"),
    "camera": ("camera.png", "camera.png"),
    "cat": ("chelsea.png", "chelsea.png"),
    "coffee": ("coffee.png", "coffee.png"),
    "coins": ("coins.png", "coins.png"),
    "galaxies": ("hubble_deep_field.jpg", "hubble_deep_field.jpg"),
    "grass": ("grass.png", "grass.png"),
    "gravel": ("gravel.png", "gravel.png"),
    "moon": ("moon.png", "moon.png"),
    "page": ("page.png", "page.png"),
    "retina": ("retina.jpg", "retina.jpg"),
    "rocket": ("rocket.jpg", "rocket.jpg"),
    "tissue": ("ihc.png", "ihc.png"),
}
SEED = 2014
LONG_SIDE = 800  # larger photographs are reduced first
TOP = 8  # answers shown on the page
MATCHES = 60  # lines drawn
CORNERS: Quad = np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])


@dataclass(frozen=True)
class DemoAnswer:
    """What the collection answered to a question, and how good that is."""

    name: str  # of the photograph
    query: Path
    hits: Sequence[Hit]  # the whole collection, or what of it answers
    n_right: int  # views of the photograph in the collection

    def is_right(self, hit: Hit) -> bool:
        """Tell whether a hit shows the same photograph."""
        return Path(hit.path).name.startswith(f"{self.name}-")

    @property
    def found(self) -> int:
        """Count the right ones among the first `n_right`: all of them if the ranking is perfect."""
        return sum(map(self.is_right, self.hits[: self.n_right]))

    @property
    def average_precision(self) -> float:
        """Give the mean, over the right views, of the precision at the rank of each; 0 for one not found."""
        ranks = [rank for rank, hit in enumerate(self.hits, start=1) if self.is_right(hit)]
        return sum(count / rank for count, rank in enumerate(ranks, start=1)) / self.n_right


@dataclass(frozen=True)
class DemoReport:
    """What the demonstration did."""

    index: Path
    page: Path
    n_images: int
    n_features: int
    seconds: float
    answers: Sequence[DemoAnswer]

    @property
    def first_right(self) -> int:
        """Count the questions whose best answer is right."""
        return sum(bool(a.hits) and a.is_right(a.hits[0]) for a in self.answers)

    @property
    def found(self) -> int:
        """Count the right views among the first ranks."""
        return sum(answer.found for answer in self.answers)

    @property
    def n_right(self) -> int:
        """Count the right views there are."""
        return sum(answer.n_right for answer in self.answers)

    @property
    def mean_average_precision(self) -> float:
        """Give the mean over the questions."""
        return sum(answer.average_precision for answer in self.answers) / len(self.answers)

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        rows = [
            {"photograph": a.name, "query": str(a.query), "right": a.n_right, "found": a.found,
             "average_precision": round(a.average_precision, 4),
             "hits": [{"path": h.path, "score": h.score, "right": a.is_right(h)} for h in a.hits[:TOP]]}
            for a in self.answers
        ]  # fmt: skip
        return {
            "index": str(self.index),
            "page": str(self.page),
            "images": self.n_images,
            "features": self.n_features,
            "seconds": round(self.seconds, 3),
            "first_right": self.first_right,
            "questions": len(self.answers),
            "found": self.found,
            "right": self.n_right,
            "mean_average_precision": round(self.mean_average_precision, 4),
            "answers": rows,
        }


def run_demo(out: Path, progress: Progress, vocabularies: Sequence[Vocabulary] | None = None) -> DemoReport:
    """Make the collection below `out`, index it, ask it, and write the page; the same every time."""
    started = perf_counter()
    questions = make_collection(find_photographs(), out, progress)
    with IndexWriter.open(out / "photos.polyvoc", vocabularies) as writer:
        writer.update([out / "photos"], progress=progress)
    index = Index.open(out / "photos.polyvoc")
    rows = list(index.images())
    told = []
    for done, (name, query) in enumerate(questions.items(), start=1):
        n_right = sum(Path(row.path).name.startswith(f"{name}-") for row in rows)
        told.append(DemoAnswer(name, query, index.search(query, top=len(rows)), n_right))
        progress("asking", done, len(questions))
    n_features = sum(row.n_features for row in rows)
    target = out / "index.html"
    report = DemoReport(out / "photos.polyvoc", target, len(rows), n_features, perf_counter() - started, told)
    with write_errors(target):
        target.write_text(demo_page(report, index), encoding="utf-8")
    return report


def find_photographs() -> dict[str, tuple[Path, Path]]:
    """Give the photographs of scikit-image that are there: by name, the one for the collection and the one to ask with."""
    spec = importlib.util.find_spec("skimage")  # does not import it
    folders = [Path(place) / "data" for place in (spec.submodule_search_locations or [])] if spec else []
    found = {}
    for name, files in PHOTOGRAPHS.items():
        for folder in folders:
            if all((folder / file).is_file() for file in files):
                found[name] = (folder / files[0], folder / files[1])
    if not found:
        raise OptionError('the demo needs the photographs of scikit-image; install it with: pip install "polyvoc[demo]"')
    return found


def make_collection(photographs: dict[str, tuple[Path, Path]], out: Path, progress: Progress) -> dict[str, Path]:
    """Write the views of photographs into out/photos, and one question for each into out/queries: gives the questions."""
    questions = {}
    for done, (name, (source, other)) in enumerate(photographs.items(), start=1):
        rng = np.random.default_rng([SEED, *name.encode()])
        photograph = _read(source)
        for view, jpeg in _views(photograph, rng):
            _write(out / "photos" / f"{name}-{view}.jpg", jpeg)
        questions[name] = out / "queries" / f"{name}.jpg"
        _write(questions[name], _question(_read(other), rng))
        progress("photographs", done, len(photographs))
    return questions


def _views(photograph: Image.Image, rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    size = photograph.size
    yield "original", _jpeg(photograph, 92)
    yield "viewpoint", _jpeg(look(photograph, _from_side(size, 0.42, rng), (0.65, 0.9)), 88)
    yield "turned", _jpeg(look(photograph, _turned(size, rng.uniform(25, 65)), (0.7, 0.7)), 88)
    yield "crop", _jpeg(look(photograph, _part(size, 0.4**0.5, rng), (1.0, 1.0)), 88)  # 40 % of the area
    yield "dark", _jpeg(_light(photograph, gamma=2.2, gain=0.7), 88)
    yield "small", _jpeg(photograph.resize((size[0] // 2, size[1] // 2)), 15)
    yield "noisy", _jpeg(_noise(photograph.filter(ImageFilter.GaussianBlur(1.2)), 12.0, rng), 88)


def _question(photograph: Image.Image, rng: np.random.Generator) -> bytes:
    """Give a view unlike those of the collection: a part of it, from the other side, tilted a little, and bright."""
    size = photograph.size
    centre = np.array(size) / 2
    quad = centre + (_part(size, 0.8, rng) - centre) @ _rotation(rng.uniform(-8, 8)) * 0.85
    part = look(photograph, quad, (1.0, 1.0))
    view = look(part, _from_side(part.size, -0.4, rng), (0.7, 0.9))
    return _jpeg(_light(view, gamma=0.55, gain=1.1), 60)


def look(photograph: Image.Image, quad: Quad, scale: tuple[float, float]) -> Image.Image:
    """Give what lies in a quadrilateral of a photograph, as a camera in front of it would see it."""
    top, right, bottom, left = np.linalg.norm(np.roll(quad, -1, axis=0) - quad, axis=1)
    size = round(max(top, bottom) * scale[0]), round(max(left, right) * scale[1])
    # The projective map with (u, v) = (a x + b y + c, d x + e y + f) / (g x + h y + 1) at the four corners.
    rows, values = [], []
    for (x, y), (u, v) in zip(CORNERS * size, quad, strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    coefficients = np.linalg.solve(np.array(rows), np.array(values)).tolist()
    return photograph.transform(size, Image.Transform.PERSPECTIVE, coefficients, Image.Resampling.BICUBIC)


def _from_side(size: tuple[int, int], strength: float, rng: np.random.Generator) -> Quad:
    """Give a view from the side (the right one if positive): the near edge shows less of the photograph."""
    cuts = (0.02, strength / 2) if strength > 0 else (-strength / 2, 0.02)  # of the left and right edge, at both ends
    shift = rng.uniform(-0.02, 0.02)
    (left, right), (x1, x2) = cuts, (0.02, 0.98)
    return np.array([[x1, left + shift], [x2, right + shift], [x2, 1 - right + shift], [x1, 1 - left + shift]]) * size


def _turned(size: tuple[int, int], degrees: float) -> Quad:
    """Give the largest square around the centre that can be turned without leaving the photograph."""
    square: Quad = (CORNERS - 0.5) @ _rotation(degrees) * min(size) * 0.5**0.5
    return np.array(size) / 2 + square


def _part(size: tuple[int, int], side: float, rng: np.random.Generator) -> Quad:
    return (CORNERS * side + rng.uniform(0, 1 - side, 2)) * size


def _rotation(degrees: float) -> npt.NDArray[np.float64]:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, s], [-s, c]])


def _light(photograph: Image.Image, gamma: float, gain: float) -> Image.Image:
    levels = np.clip(255 * gain * (np.arange(256) / 255) ** gamma, 0, 255).astype(int).tolist()
    return photograph.point(levels * 3)


def _noise(photograph: Image.Image, sigma: float, rng: np.random.Generator) -> Image.Image:
    values = np.asarray(photograph, np.float32)
    noisy = values + rng.normal(0, sigma, values.shape)
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def _read(path: Path) -> Image.Image:
    return Image.open(io.BytesIO(read_thumbnail(path, LONG_SIDE)))


def _jpeg(photograph: Image.Image, quality: int) -> bytes:
    out = io.BytesIO()
    photograph.convert("RGB").save(out, "JPEG", quality=quality)
    return out.getvalue()


def _write(path: Path, content: bytes) -> None:
    """Write a file, unless it is there already: the next run then finds nothing new to index."""
    with write_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.is_file() or path.read_bytes() != content:
            path.write_bytes(content)


def demo_page(report: DemoReport, index: Index) -> str:
    """Give the page: figures, the matches of one pair, and every question with its answers."""
    body = [
        paragraph(
            f"{report.n_images} photographs were made from {len(report.answers)} by known transformations and indexed. Each "
            "question below is another view, not in the collection. Green frames: the same photograph; red: another one. There "
            f"are {report.answers[0].n_right} right answers to a question, so a perfect ranking turns red after these."
        ),
        figures(_figures(report)),
        *_explained(report, index),
        *(_ranking(answer) for answer in report.answers),
    ]
    return document("polyvoc finds photographs that show the same thing", body)


def _figures(report: DemoReport) -> list[tuple[str, str]]:
    return [
        (f"{report.first_right} of {len(report.answers)}", "best answers are right"),
        (f"{report.found} of {report.n_right}", "views found in the first ranks"),
        (f"{report.mean_average_precision:.3f}", "mean average precision"),
        (f"{report.n_images}", "photographs"),
        (f"{report.n_features:,}", "features"),
        (f"{report.seconds:.1f} s", "to make, index and search all"),
    ]


def _ranking(answer: DemoAnswer) -> str:
    pictures = [
        Picture(thumbnail(hit.path), Path(hit.path).stem, f"{rank}.", f"{hit.score:.3g}",
                     mark="right" if answer.is_right(hit) else "wrong")
        for rank, hit in enumerate(answer.hits[:TOP], start=1)
    ]  # fmt: skip
    precision = f"average precision {answer.average_precision:.2f}"
    note = f"{answer.found} of {answer.n_right} views in the first {answer.n_right}, {precision}"
    return ranking(answer.name, Picture(thumbnail(str(answer.query)), "question"), pictures, note)


def _explained(report: DemoReport, index: Index) -> list[str]:
    """Draw the strongest matches of the first question whose best answer is right."""
    answer = next((a for a in report.answers if a.hits and a.is_right(a.hits[0])), None)
    if answer is None:
        return []
    hit = answer.hits[0]
    explanation = index.explain(answer.query, hit)
    everywhere = (1 << len(index.engine.sizes)) - 1
    rows = _one_to_one(explanation)[:MATCHES]
    lines = [
        Line(tuple(explanation.query_xy[row]), tuple(explanation.feature_xy[row]), explanation.mask[row] == everywhere)
        for row in rows
    ]
    agreed = sum(line.everywhere for line in lines)
    voted = int((explanation.weight > 0).sum())
    notes = (
        f"{Path(hit.path).stem} answers {answer.name} by {voted} pairs of features; the {len(lines)} heaviest are drawn.",
        f"same word in all {len(index.engine.sizes)} vocabularies ({agreed})",
        f"in fewer ({len(lines) - agreed})",
    )
    return [matches("Why it answered", _side(answer.query), _side(Path(hit.path)), lines, notes)]


def _one_to_one(explanation: Explanation) -> list[int]:
    """Give the rows of an explanation that vote, heaviest first, using each feature once."""
    taken_query, taken_feature, rows = set(), set(), []
    for row in np.flatnonzero(explanation.weight > 0).tolist():
        q, f = int(explanation.query[row]), int(explanation.feature[row])
        if q not in taken_query and f not in taken_feature:
            taken_query.add(q)
            taken_feature.add(f)
            rows.append(row)
    return rows


def _side(path: Path) -> Side:
    grey = read_grey(path, LONG_SIDE)
    return Side(read_thumbnail(path, LONG_SIDE), grey.width, grey.height)
