"""Fit of the joint probability of several kinds of features: the share of the evidence of each that counts beside the first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.experiments.fit.regression import logistic
from polyvoc.search.joint import PRIOR
from polyvoc.types import Floats64

FIXED = 1e6  # penalty that keeps the constant at the prior, and the share of the first kind at 1
RIDGE = 1e-3  # keeps shares near 1 where the hits do not determine them


def fit_shares(added: Floats64, right: npt.NDArray[np.bool_], prior: float = PRIOR) -> tuple[float, ...]:
    """Return the share of each kind, 0 or more, by hits with what each kind adds in full to the logit of the prior [n, kinds].

    The first one counts in full, so that the shares of others do not depend on each other.
    """
    if added.shape[0] != len(right) or not np.isfinite(added).all():
        raise OptionError(f"evidence {added.shape} of {len(right)} hits should be a finite number for each hit and kind")
    columns = np.column_stack([np.ones(len(added)), added])
    ones = np.ones(added.shape[1])
    penalty = np.array([FIXED, FIXED, *(RIDGE * ones[1:])])
    fitted = logistic(columns, right.astype(np.float64), penalty, nonnegative=True, centre=np.array([prior, *ones]))
    return 1.0, *(round(float(value), 4) for value in fitted[2:])
