"""B0 ... likelihood: counts and distances -> weights."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError
from polyvoc.options import Merge, SearchOptions
from polyvoc.storage.files import write_errors
from polyvoc.types import Floats64, LikelihoodTable

if TYPE_CHECKING:
    from polyvoc.scoring.query import QueryWords

TABLE_FORMAT = "polyvoc evidence"
MAX_LISTS = 4  # vocabularies that a shipped table tells apart; with more, five agreeing lists count as four


def groups_by_size(n_vocabularies: int, most: int = MAX_LISTS) -> tuple[int, ...]:
    """Group the sets of lists by how many lists they have: the group of each mask [2^K]."""
    return tuple(max(min(mask.bit_count(), most), 1) - 1 for mask in range(1 << n_vocabularies))


def group_names(evidence: LikelihoodTable) -> list[str]:
    """Say which sets of lists belong to each group of a table."""
    names = []
    for group in range(max(evidence.groups) + 1):
        orders = sorted({mask.bit_count() for mask in range(1, len(evidence.groups)) if evidence.groups[mask] == group})
        names.append(" or ".join(map(str, orders)) + (" list" if orders == [1] else " lists"))
    return names if len(set(names)) == len(names) else [f"group {number}" for number in range(1, len(names) + 1)]


def default_table(n_vocabularies: int, bits: int) -> LikelihoodTable:
    """Give the shipped table for a number of vocabularies and the length of their signatures."""
    count = min(n_vocabularies, MAX_LISTS)
    found = _shipped_tables().get((count, bits))
    if found is None:
        known = " or ".join(str(length) for length in sorted({length for _, length in _shipped_tables()}))
        raise OptionError(f"no table of evidence for signatures of {bits} bits comes with polyvoc, only for {known}; "
                          "fit one: polyvoc calibrate --index INDEX --save")  # fmt: skip
    return (
        found
        if count == n_vocabularies
        else LikelihoodTable(groups_by_size(n_vocabularies), found.edges, found.rows, found.source)
    )


@cache
def _shipped_tables() -> dict[tuple[int, int], LikelihoodTable]:
    shelf = importlib.resources.files("polyvoc") / "data" / "likelihood"
    with importlib.resources.as_file(shelf) as folder:
        tables = [load_table(path) for path in sorted(folder.glob("*.json"))]
    return {(table.n_vocabularies, table.bits): table for table in tables}


def table_as_dict(evidence: LikelihoodTable) -> dict[str, Any]:
    """Give plain values for JSON."""
    return {
        "format": TABLE_FORMAT,
        "source": evidence.source,
        "groups": list(evidence.groups),
        "edges": list(evidence.edges),
        "rows": [list(row) for row in evidence.rows],
    }


def table_from_dict(values: Any, where: str) -> LikelihoodTable:
    """Read what `as_dict` gave, or say that it is damaged; `where` names the file."""
    try:
        if values["format"] != TABLE_FORMAT:
            raise ValueError
        rows = tuple(tuple(map(float, row)) for row in values["rows"])
        groups, edges = tuple(map(int, values["groups"])), tuple(map(float, values["edges"]))
        return LikelihoodTable(groups, edges, rows, str(values["source"]))
    except (KeyError, TypeError, ValueError, OptionError):
        raise DamagedError(f"{where}: not a table of evidence; fit one: polyvoc calibrate --index INDEX --save") from None


def load_table(path: Path) -> LikelihoodTable:
    """Read a table from its file."""
    try:
        return table_from_dict(json.loads(path.read_text(encoding="utf-8")), str(path))
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror or error}); give the file of a table of evidence") from None
    except ValueError:
        raise DamagedError(f"{path}: not a table of evidence; fit one: polyvoc calibrate --index INDEX --save") from None


def save_table(evidence: LikelihoodTable, path: Path) -> None:
    """Write a table to a file, one row per line."""
    values = table_as_dict(evidence)
    rows = ",\n  ".join(json.dumps(row) for row in values.pop("rows"))
    head = json.dumps(values, indent=1)[:-2]
    with write_errors(path):
        path.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")


USUAL_HAMMING = {64: (24, 16.0), 128: (52, 26.0)}  # threshold and sigma of Hamming Embedding by the length of signatures


def hamming_weights(options: SearchOptions, bits: int) -> npt.NDArray[np.float32]:
    """Tabulate the weight of each Hamming distance 0..bits: exp(-h^2 / sigma^2) up to the threshold, then 0.

    Jegou, Douze, Schmid, IJCV 2010 (no factor 2 in the exponent). Where distances are weighed elsewhere, or not at all: 1.
    """
    distance = np.arange(bits + 1)
    if options.hamming is None or options.merge == "likelihood":
        return np.ones(bits + 1, np.float32)
    weights = np.where(distance <= options.hamming, np.exp(-((distance / options.sigma) ** 2)), 0.0)
    return weights.astype(np.float32)


Counts = npt.NDArray[np.int64]
MARGIN = 1e-6  # a r + b is a probability: kept this far from 0 and 1


@dataclass(frozen=True)
class BayesModel:
    """The numbers of the Bayes model: term 2 is a r + b, term 3 is ln(N c)."""

    a: float
    b: float
    term3: float

    @classmethod
    def of(cls, options: SearchOptions, n_images: int) -> BayesModel:
        """Take the line and c from the options, N from the collection."""
        return cls(*options.line, max(0.0, float(np.log(max(n_images, 1) * options.c))))

    def term2(self, ratio: Floats64) -> Floats64:
        """Give p(in the intersection | true match), linear in the cardinality ratio (section 4.2)."""
        return np.clip(self.a * ratio + self.b, MARGIN, 1 - MARGIN)

    def intersection(self, ratio: Floats64) -> Floats64:
        """Give w(r) = p(true match | in the intersection), eq. 7."""
        return 1 / (1 + ratio / self.term2(ratio) * self.term3)

    def difference(self, ratio: Floats64) -> Floats64:
        """Give the same theorem for the complement: p(true match | in one list only)."""
        return 1 / (1 + (1 - ratio) / (1 - self.term2(ratio)) * self.term3)


def cardinality_ratios(counts: Counts) -> Floats64:
    """Give |intersection| / |union| of the lists of every mask, from the number of features of every exact mask.

    counts: [Q, 2^K]. Features that stand in further lists count as well (reading R2 of "k, and only k"; see ARCHITECTURE.md).
    """
    intersections, subsets = counts.copy(), counts.copy()
    masks = np.arange(counts.shape[1])
    for bit in (1 << k for k in range(counts.shape[1].bit_length() - 1)):
        without = masks[masks & bit == 0]
        intersections[:, without] += intersections[:, without | bit]
        subsets[:, without | bit] += subsets[:, without]
    unions = subsets[:, -1:] - subsets[:, masks[::-1]]  # all, less those that avoid every list of the mask
    result: Floats64 = np.divide(intersections, unions, out=np.zeros(counts.shape), where=unions > 0)
    return result


def _all_ones(counts: Counts, sizes: Floats64, model: BayesModel) -> Floats64:
    return np.ones(counts.shape)


def _full_mask_only(counts: Counts, sizes: Floats64, model: BayesModel) -> Floats64:
    factors = np.zeros(counts.shape)
    factors[:, -1] = 1
    return factors


def _bayes(counts: Counts, sizes: Floats64, model: BayesModel) -> Floats64:
    return np.where(sizes >= 2, model.intersection(cardinality_ratios(counts)), 1.0)  # eq. 11


def _posterior(counts: Counts, sizes: Floats64, model: BayesModel) -> Floats64:
    ratio = cardinality_ratios(counts)
    return np.where(sizes >= 2, model.intersection(ratio), model.difference(ratio[:, -1:]))


Rule = Callable[[Counts, Floats64, BayesModel], Floats64]
RULES: dict[Merge, Rule] = {
    "likelihood": _all_ones,  # its table weighs sets and distances together (`evidence.py`)
    "b0": _all_ones,  # with the first vocabulary only
    "b1": _all_ones,
    "b2": _full_mask_only,
    "bayes": _bayes,
    "posterior": _posterior,
}


def needs_counts(options: SearchOptions, n_vocabularies: int) -> bool:
    """Tell whether a rule asks how many features its sets have; for factors of one vocabulary nobody does."""
    by_ratio = options.merge == "likelihood" and options.evidence is not None and len(options.evidence.edges) > 0
    return by_ratio or (options.merge in ("bayes", "posterior") and n_vocabularies > 1)


def factors(counts: Counts, options: SearchOptions, n_images: int) -> npt.NDArray[np.float32]:
    """Give the factor of every query feature and mask [Q, 2^K]. counts: features (or images) of every exact mask."""
    if counts.shape[1] == 2:
        return np.ones(counts.shape, np.float32)
    sizes = np.array([mask.bit_count() for mask in range(counts.shape[1])], np.float64)
    rule = RULES[options.merge]
    return rule(counts, sizes, BayesModel.of(options, n_images)).astype(np.float32)


def likelihood_rows(query: QueryWords, counts: npt.NDArray[np.int64],
                   options: SearchOptions) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:  # fmt: skip
    """Give, for `likelihood`, the row of the table for every query feature and set [Q, 2^K], and the table."""
    if options.merge != "likelihood":
        return np.empty((0, 0), np.int64), np.empty((0, 0), np.float32)
    held = options.evidence
    assert held is not None, "the engine gives the options their table"
    bins = np.zeros(counts.shape, np.int64)
    if held.edges:
        ratios = cardinality_ratios(counts)
        singles = 1 << np.arange(held.n_vocabularies)
        ratios[:, singles] = ratios[:, -1:]
        bins = np.searchsorted(held.edges, ratios)
    table = np.array(held.rows, np.float32)
    if options.hamming is not None:
        table[:, options.hamming + 1 :] = 0
    return np.array(held.groups) * (len(held.edges) + 1) + bins, table
