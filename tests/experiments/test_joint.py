"""The share of each kind's evidence: 1 for kinds that err independently, less for those that err together, none for noise."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from polyvoc.errors import OptionError
from polyvoc.experiments.fit.joint import fit_shares
from polyvoc.search.joint import PRIOR
from polyvoc.types import Floats64

N = 200_000


def drawn(shared: float, seed: int = 0) -> tuple[Floats64, np.ndarray]:
    """Return what two kinds add, each calibrated, whose errors are shared to some degree; and what is right."""
    rng = np.random.default_rng(seed)
    right = rng.random(N) < 1 / (1 + np.exp(-PRIOR))
    spread = 4.0  # a log-likelihood ratio x of two normals of variance v and means +-v / 2
    errors = np.sqrt(shared) * rng.normal(size=(N, 1)) + np.sqrt(1 - shared) * rng.normal(size=(N, 2))
    ratios = np.where(right, 1, -1)[:, None] * spread**2 / 2 + spread * errors
    return ratios, right


def test_independent_kinds_count_in_full() -> None:
    first, second = fit_shares(*drawn(0.0))
    assert first == 1 and second == pytest.approx(1, abs=0.1)


def test_kinds_that_err_together_count_less() -> None:
    shares = [fit_shares(*drawn(shared)) for shared in (0.0, 0.3, 0.6, 0.9)]
    assert all(first == 1 for first, _ in shares)
    assert all(one > other + 0.1 for (_, one), (_, other) in pairwise(shares)) and shares[-1][1] < 0.2


def test_a_kind_without_information_counts_nothing() -> None:
    evidence, right = drawn(0.0)
    first, second = fit_shares(np.column_stack([evidence[:, 0], np.random.default_rng(1).normal(0, 4, N)]), right)
    assert first == 1 and 0 <= second < 0.05


def test_no_share_is_negative() -> None:
    evidence, right = drawn(0.0)
    first, second = fit_shares(np.column_stack([evidence[:, 0], -evidence[:, 1]]), right)
    assert first == 1 and second == 0


def test_unsuitable_evidence_raises() -> None:
    evidence, right = drawn(0.0)
    for wrong in (evidence[1:], np.full_like(evidence, np.nan)):
        with pytest.raises(OptionError, match="a finite number for each hit and kind"):
            fit_shares(wrong, right)
