"""Probability that a pair of images are copies, or two shots of the same thing: two logistic regressions on its evidence.

    p(same thing)            = logistic(a + b . columns)    copies and second shots, against everything else
    p(copy | same thing)     = logistic(c + d . columns)    copies against second shots
    p(copy)                  = p(same thing) p(copy | same thing)
    p(another shot)          = p(same thing) (1 - p(copy | same thing))

Each regression has coefficients for pairs whose pixels were compared, and for pairs whose pixels could not be read. A user's
own verdicts move and stretch both (`Line`). The coefficients are fitted by `experiments.fit.duplicates`.
"""

from __future__ import annotations

import importlib.resources
import json
import math
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, NamedTuple, Self

import numpy as np

from polyvoc.duplicates.compare import EVIDENCE, Pairs
from polyvoc.errors import DamagedError
from polyvoc.index.catalogue import IndexSettings
from polyvoc.index.folder import DUPLICATE_LINES
from polyvoc.search.probability import sigmoid
from polyvoc.types import Array, Floats64

FORMAT = "polyvoc duplicate probability"
# Columns of the regressions: logarithms of what spans orders of magnitude.
FEATURES = ("ln inliers", "ln llr", "share", "ln residual", "ln drift", "ln stretch")
TILES = (
    "ln unlike q10", "ln unlike q25", "ln unlike median", "ln unlike q75", "ln unlike tone_correlation", "ln unlike fine_q25",
    "ln unlike fine_median", "ln unlike fine_q75",
)  # fmt: skip
EXACTNESS = ("followed", "ln shift", "ln shift_q90", "ln bend")
# Uneven: exact in a part and unlike in another, as two pictures in the same frame.
SCENE_COLUMNS = (*FEATURES, *EXACTNESS, *TILES, "uneven", "uneven fine")
COPY_COLUMNS = ("share", "ln residual", "ln drift", "ln stretch", *EXACTNESS, "ln points", *TILES)
WITHOUT_PIXELS = FEATURES
# Below these limits smaller is not better: a pair that is exact in one respect must not make up for another.
LIMITS = {
    "inliers": 1.0, "llr": 1.0, "residual": 0.2, "drift": 0.05, "stretch": 0.003, "shift": 0.03, "shift_q90": 0.06,
    "bend": 0.015, "points": 1.0,
}  # fmt: skip
MIN_UNLIKE = 0.02  # 1 - correlation
MAX_BLIND = 0.95  # of pairs whose pixels were not compared: features alone hardly tell a second shot from a tripod


class Probabilities(NamedTuple):
    """Of each pair [P], the probability of two of the classes; of the third, something else, it is the rest."""

    copy: Floats64
    another_shot: Floats64


class Line(NamedTuple):
    """What verdicts change: a logit becomes `shift + stretch * logit`."""

    shift: float = 0.0
    stretch: float = 1.0


SHIPPED = Line()  # no verdicts


@dataclass(frozen=True)
class Coefficients:
    """An intercept and one coefficient per column."""

    intercept: float
    weights: dict[str, float]

    def logits(self, evidence: Array) -> Floats64:
        """Return the logit of every pair [P] by its evidence [P, len(EVIDENCE)]."""
        weighted = columns(evidence, tuple(self.weights)) @ np.array(list(self.weights.values()))
        return np.asarray(self.intercept + weighted, np.float64)

    @classmethod
    def from_dict(cls, values: Any, names: tuple[str, ...]) -> Self:
        """Read coefficients of some columns."""
        return cls(float(values["intercept"]), {name: float(values["weights"][name]) for name in names})


@dataclass(frozen=True)
class Stage:
    """One of the two regressions."""

    with_pixels: Coefficients
    without_pixels: Coefficients
    lapse: float  # probability of an error however clear the evidence: 1 / (pairs that it was fitted on + 1)
    line: Line = SHIPPED

    def logits(self, evidence: Array) -> Floats64:
        """Return the logit of every pair [P] by its evidence, before the line of verdicts."""
        evidence = np.asarray(evidence, np.float64)
        complete = np.isfinite(evidence).all(axis=1)
        result = np.empty(len(evidence))
        result[complete] = self.with_pixels.logits(evidence[complete])
        result[~complete] = self.without_pixels.logits(evidence[~complete])
        return result

    def probabilities(self, evidence: Array) -> Floats64:
        """Return the probability of every pair [P] by its evidence [P, len(EVIDENCE)]."""
        predicted = sigmoid(self.line.shift + self.line.stretch * self.logits(evidence))
        return np.asarray(self.lapse + (1 - 2 * self.lapse) * predicted)

    @classmethod
    def from_dict(cls, values: Any, names: tuple[str, ...]) -> Self:
        """Read a stage whose pixels make these columns."""
        with_pixels = Coefficients.from_dict(values["with_pixels"], names)
        without_pixels = Coefficients.from_dict(values["without_pixels"], WITHOUT_PIXELS)
        lapse = float(values["lapse"])
        if not 0 <= lapse < 0.5:
            raise ValueError
        return cls(with_pixels, without_pixels, lapse)


@dataclass(frozen=True)
class DuplicateProbability:
    """Do two images show the same thing? If so, is one a copy of the other?"""

    scene: Stage
    copy: Stage
    source: str = ""  # what they were fitted on

    def probabilities(self, pairs: Pairs) -> Probabilities:
        """Return the probability of each class for each pair [P]."""
        same = self.scene.probabilities(pairs["evidence"])
        copy = self.copy.probabilities(pairs["evidence"])
        blind = ~np.isfinite(pairs["evidence"]).all(axis=1)
        copy[blind] = np.minimum(copy[blind], MAX_BLIND)
        return Probabilities(same * copy, same * (1 - copy))

    def with_lines(self, scene: Line, copy: Line) -> DuplicateProbability:
        """Return the probabilities as verdicts change them."""
        return replace(self, scene=replace(self.scene, line=scene), copy=replace(self.copy, line=copy))

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, without lines."""
        stages = {name: asdict(stage) for name, stage in (("scene", self.scene), ("copy", self.copy))}
        for stage in stages.values():
            del stage["line"]
        return {"format": FORMAT, **stages, "source": self.source}

    @classmethod
    def from_dict(cls, values: Any, file: str) -> Self:
        """Read what `as_dict` returned; raise DamagedError, naming the file, if it is something else."""
        try:
            if values["format"] != FORMAT:
                raise ValueError
            scene = Stage.from_dict(values["scene"], SCENE_COLUMNS)
            return cls(scene, Stage.from_dict(values["copy"], COPY_COLUMNS), str(values["source"]))
        except (KeyError, TypeError, ValueError):
            raise DamagedError(f"{file}: not a table of duplicate probabilities; install polyvoc again") from None


@cache
def shipped_duplicate_probability() -> DuplicateProbability:
    """Return the coefficients that come with the package."""
    path = importlib.resources.files("polyvoc") / "data" / "duplicate_probability.json"
    return DuplicateProbability.from_dict(json.loads(path.read_text(encoding="utf-8")), str(path))


def duplicate_probability(settings: IndexSettings) -> DuplicateProbability:
    """Return the coefficients for an index: the shipped ones, with the lines that were fitted to its verdicts."""
    lines = settings.get(DUPLICATE_LINES)
    shipped = shipped_duplicate_probability()
    if lines is None:
        return shipped
    try:
        scene, copy = (Line(float(lines[name][0]), float(lines[name][1])) for name in ("scene", "copy"))
        if not all(map(math.isfinite, (*scene, *copy))) or min(scene.stretch, copy.stretch) <= 0:
            raise ValueError
    except (KeyError, IndexError, TypeError, ValueError):
        raise DamagedError(
            f"{settings.path}: the setting {DUPLICATE_LINES!r} cannot be {lines!r}; run 'polyvoc check --repair'"
        ) from None
    return shipped.with_lines(scene, copy)


def columns(evidence: Array, names: tuple[str, ...]) -> Floats64:
    """Return columns of the regression [P, len(names)] from evidence [P, len(EVIDENCE)]."""
    values = dict(zip(EVIDENCE, np.asarray(evidence, np.float64).T, strict=True))
    values["stretch"] = np.log(np.maximum(values["stretch"], 1))
    return np.column_stack([_column(values, name) for name in names])


def _column(values: dict[str, Array], name: str) -> Floats64:
    if name.startswith("uneven"):
        low, high = ("fine_q25", "fine_q75") if name.endswith("fine") else ("q25", "q75")
        return np.asarray(np.maximum(values[high], 0) - np.maximum(values[low], 0))
    if name.startswith("ln unlike "):
        return np.asarray(np.log(np.maximum(1 - values[name.removeprefix("ln unlike ")], MIN_UNLIKE)))
    if name.startswith("ln "):
        plain = name.removeprefix("ln ")
        return np.asarray(np.log(np.maximum(values[plain], LIMITS[plain])))
    return np.asarray(values[name], np.float64)
