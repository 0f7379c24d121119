"""Fits the probabilities of copies and of second shots: penalised logistic regression, and lines to a user's own verdicts."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from polyvoc.duplicates.decisions import COPY, DIFFERENT, SAME, Decision
from polyvoc.duplicates.probability import (
    COPY_COLUMNS,
    SCENE_COLUMNS,
    WITHOUT_PIXELS,
    Coefficients,
    DuplicateProbability,
    Line,
    Stage,
    columns,
    shipped_duplicate_probability,
)
from polyvoc.errors import OptionError
from polyvoc.experiments.fit.regression import logistic
from polyvoc.types import Array, Floats64

OTHER, ANOTHER_SHOT, A_COPY = 0, 1, 2  # classes of pairs
RIDGE = 0.3  # penalty on coefficients of standardised columns
MIN_VERDICTS = 20  # that a line is fitted to
MIN_OF_EACH = 5  # of either kind
PRIOR = 1.0  # penalty on a line for leaving the shipped probabilities, as of a normal prior of this precision
MAX_LOGIT = 12.0  # a clearer pair says no more about the line
MIN_STRETCH = 0.1


def fit_duplicate_probability(evidence: Array, classes: Array, source: str = "") -> DuplicateProbability:
    """Fit the evidence of pairs [P, len(EVIDENCE)] to their classes [P]; NaN: pixels that could not be read."""
    same = np.asarray(classes) != OTHER
    scene = fit_stage(evidence, same, SCENE_COLUMNS)
    return DuplicateProbability(scene, fit_stage(evidence[same], np.asarray(classes)[same] == A_COPY, COPY_COLUMNS), source)


def fit_stage(evidence: Array, labels: Array, names: tuple[str, ...]) -> Stage:
    """Fit one regression, with the columns of pixels and without."""
    complete = np.isfinite(evidence).all(axis=1)
    with_pixels = fit_coefficients(evidence[complete], labels[complete], names)
    return Stage(with_pixels, fit_coefficients(evidence, labels, WITHOUT_PIXELS), 1 / (len(labels) + 1))


def fit_coefficients(evidence: Array, labels: Array, names: tuple[str, ...]) -> Coefficients:
    """Fit the coefficients of some columns by penalised likelihood (ridge on the standardised columns)."""
    values, targets = columns(evidence, names), np.asarray(labels, np.float64)
    if not 0 < targets.sum() < len(targets):
        raise OptionError("coefficients need pairs of either kind")
    mean, spread = values.mean(axis=0), np.maximum(values.std(axis=0), 1e-9)
    design = np.column_stack([np.ones(len(values)), (values - mean) / spread])
    solution = logistic(design, targets, np.array([0.0, *[RIDGE] * len(names)]))
    weights = solution[1:] / spread
    return Coefficients(float(solution[0] - weights @ mean), dict(zip(names, weights.tolist(), strict=True)))


# -- to verdicts


def fit_lines(decisions: Iterable[Decision]) -> tuple[Line, Line]:
    """Return the lines that verdicts make of the logits of both regressions; raise OptionError if there are too few.

    Verdicts count whose pair the index has compared. The line of a regression for which there are too few of either kind stays
    as it is shipped.
    """
    used = [one for one in decisions if one.evidence is not None]
    shipped, verdicts = shipped_duplicate_probability(), np.array([one.verdict for one in used])
    counts = {verdict: int((verdicts == verdict).sum()) for verdict in (COPY, SAME, DIFFERENT)}
    scene_fits = min(counts[COPY] + counts[SAME], counts[DIFFERENT]) >= MIN_OF_EACH
    copy_fits = min(counts[COPY], counts[SAME]) >= MIN_OF_EACH
    if len(used) < MIN_VERDICTS or not (scene_fits or copy_fits):
        raise OptionError(
            f"{len(used)} verdicts on compared pairs ({counts[COPY]} copy, {counts[SAME]} same, {counts[DIFFERENT]} different) "
            f"are too few: decide on at least {MIN_VERDICTS}, and on {MIN_OF_EACH} of two kinds "
            "(polyvoc decisions FIRST SECOND --verdict WORD)"
        )
    evidence = np.array([one.evidence for one in used], np.float64)
    scene, copy, same = Line(), Line(), verdicts != DIFFERENT
    if scene_fits:
        scene = fit_line(shipped.scene.logits(evidence), same)
    if copy_fits:
        copy = fit_line(shipped.copy.logits(evidence[same]), verdicts[same] == COPY)
    return scene, copy


def fit_line(logits: Floats64, labels: Array) -> Line:
    """Fit the line of logits [P] that makes labels [P] most likely, near the line that changes nothing (Platt 1999)."""
    known = np.clip(logits, -MAX_LOGIT, MAX_LOGIT)
    design = np.column_stack([np.ones(len(known)), known])
    targets = np.asarray(labels, np.float64)
    # The penalty of a slope is per unit of logit, which spans some ten of them.
    shift, stretch = logistic(design, targets, np.array([PRIOR, 10 * PRIOR]), centre=np.array([0.0, 1.0]))
    return Line(float(shift), max(float(stretch), MIN_STRETCH))
