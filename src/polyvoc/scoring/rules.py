"""Merging rules: how the matches of K vocabularies are weighted. Zheng, Wang, Zhou, Tian, CVPR 2014.

A rule has one factor per query feature and *mask* (bit k: the indexed feature is in the list of vocabulary k); the weight of an
indexed feature is factor[mask] * sum of idf^2 * Hamming weight over the mask. The rule `likelihood` takes the weight of a match
from a table of log-likelihood ratios instead. `make_plan` resolves the options of a search once, for all later stages.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError
from polyvoc.index.folder import IndexFolder
from polyvoc.options import CODES, Merge, NormKey, ScoringOptions
from polyvoc.scoring.codes import code_table_from_dict, default_code_table
from polyvoc.storage.files import write_errors
from polyvoc.types import CodeTable, Floats32, Floats64, LikelihoodTable

Counts = npt.NDArray[np.int64]  # [Q, 2^K] features (or images) of every exact mask
MARGIN = 1e-6  # a r + b is a probability: kept this far from 0 and 1
CANCELS = 1e-3  # of the weight of one list: a set that weighs less is the difference of two large numbers, and needs float64
TABLE_FORMAT = "polyvoc likelihood table"
MAX_LISTS = 4  # shipped tables distinguish up to this many lists; with more vocabularies five agreeing lists count as four


@dataclass(frozen=True)
class BayesModel:
    """The numbers of the Bayes model: term 2 is a r + b, term 3 is ln(N c)."""

    a: float
    b: float
    term3: float

    @classmethod
    def of(cls, options: ScoringOptions, n_images: int) -> BayesModel:
        """Take the line and c from the options, N from the collection."""
        return cls(*options.line, max(0.0, float(np.log(max(n_images, 1) * options.c))))

    def term2(self, ratio: Floats64) -> Floats64:
        """Return p(in the intersection | true match), linear in the cardinality ratio (section 4.2)."""
        return np.clip(self.a * ratio + self.b, MARGIN, 1 - MARGIN)

    def intersection(self, ratio: Floats64) -> Floats64:
        """Return w(r) = p(true match | in the intersection), eq. 7."""
        return 1 / (1 + ratio / self.term2(ratio) * self.term3)

    def least(self) -> float:
        """Return the smallest w(r): r / (a r + b) is monotone between 0, 1 and the ratios from which term 2 is clipped."""
        ends = [(limit - self.b) / self.a for limit in (MARGIN, 1 - MARGIN)] if self.a else []
        return float(self.intersection(np.clip([0.0, 1.0, *ends], 0, 1)).min())

    def difference(self, ratio: Floats64) -> Floats64:
        """Return the same theorem for the complement: p(true match | in one list only)."""
        return 1 / (1 + (1 - ratio) / (1 - self.term2(ratio)) * self.term3)


def cardinality_ratios(counts: Counts) -> Floats64:
    """Return |intersection| / |union| of the lists of every mask, from the number of features of every exact mask.

    counts: [Q, 2^K]. Features in further lists count as well (reading R2 of "k, and only k"; docs/findings.md).
    """
    intersections = np.array(counts.T, order="C")  # [2^K, Q]: rows are added in less time than columns
    subsets, masks = intersections.copy(), np.arange(len(intersections))
    for bit in (1 << k for k in range(len(masks).bit_length() - 1)):
        for without in masks[masks & bit == 0]:
            intersections[without] += intersections[without | bit]
            subsets[without | bit] += subsets[without]
    unions = subsets[-1] - subsets[::-1]  # all, less those that avoid every list of the mask
    ratios = np.divide(intersections, unions, out=np.zeros(unions.shape), where=unions > 0)
    result: Floats64 = np.ascontiguousarray(ratios.T)
    return result


def _n_lists(counts: Counts) -> Floats64:
    return np.array([mask.bit_count() for mask in range(counts.shape[1])], np.float64)


def _sum(counts: Counts, model: BayesModel) -> Floats64:
    return np.ones(counts.shape)


def _intersection_only(counts: Counts, model: BayesModel) -> Floats64:
    factors = np.zeros(counts.shape)
    factors[:, -1] = 1
    return factors


def _bayes(counts: Counts, model: BayesModel) -> Floats64:
    return np.where(_n_lists(counts) >= 2, model.intersection(cardinality_ratios(counts)), 1.0)  # eq. 11


def _posterior(counts: Counts, model: BayesModel) -> Floats64:
    ratio = cardinality_ratios(counts)
    return np.where(_n_lists(counts) >= 2, model.intersection(ratio), model.difference(ratio[:, -1:]))


@dataclass(frozen=True)
class Rule:
    """A merging rule, and what it needs."""

    factors: Callable[[Counts, BayesModel], Floats64]  # [Q, 2^K]
    needs_counts: bool = False  # of the features (or images) in every set of lists: phase 1
    needs_table: bool = False  # of log-likelihood ratios, and with it signatures
    has_sets: bool = True  # whether the weight of a match depends on its set
    on_difference: bool = False  # whether burstiness is of the difference set only
    adds_first: bool = False  # whether one list alone weighs 1, whatever the counts: phase 1 can add it


RULES: dict[Merge, Rule] = {
    "likelihood": Rule(_sum, needs_table=True),
    "b0": Rule(_sum, has_sets=False),
    "b1": Rule(_sum, has_sets=False),
    "b2": Rule(_intersection_only),
    "bayes": Rule(_bayes, needs_counts=True, on_difference=True, adds_first=True),  # section 5.3 of the paper
    "posterior": Rule(_posterior, needs_counts=True),
}


class RuleWeights(NamedTuple):
    """What a rule makes of the counts of a query."""

    factors: Floats32  # [Q, 2^K] of every query feature and mask
    hamming: Floats32  # [bits + 1] of every Hamming distance
    cells: Counts  # [Q, 2^K] row of the likelihood table for every query feature and mask; [0, 0] for other rules
    table: Floats32  # [rows, bits + 1] log-likelihood ratios


@dataclass(frozen=True, eq=False)
class ScoringPlan:
    """The scoring options of one search, resolved for one collection. Made once, by `make_plan`."""

    options: ScoringOptions
    sizes: tuple[int, ...]  # of the vocabularies that vote
    bits: int  # of the signatures of the collection, 0 without
    norm: NormKey
    rule: Rule
    table: LikelihoodTable | None
    needs_signatures: bool  # whether signatures are compared
    needs_counts: bool  # whether phase 1 counts the sets: with one vocabulary all factors are 1
    is_empty: bool  # no image can have a score: `likelihood` without signatures, as in a collection without features
    image_sets: bool  # whether the sets are of images
    code_table: CodeTable | None = None  # if codes vote, and no words
    first_image: int = 0  # images with lower ids have no score

    def weights(self, counts: Counts, n_images: int, bits: int) -> RuleWeights:
        """Turn the counts of a query, whose signatures have `bits`, into the weights of the rule."""
        factors = np.ones(counts.shape)
        if len(self.sizes) > 1:
            factors = self.rule.factors(counts, BayesModel.of(self.options, n_images))
        return RuleWeights(factors.astype(np.float32), self._hamming_weights(bits), *self.table_rows(counts))

    def sum_type(self, n_images: int) -> type[np.floating[Any]]:
        """Return the type of the sums that phase 1 takes over image sets."""
        precise = self.rule.adds_first and BayesModel.of(self.options, n_images).least() >= CANCELS
        return np.float32 if precise else np.float64

    def table_rows(self, counts: Counts) -> tuple[Counts, Floats32]:
        """Return the row of the likelihood table for every query feature and mask [Q, 2^K], and the table [rows, bits + 1].

        Both are empty for the other rules.
        """
        if self.table is None:
            return np.empty((0, 0), np.int64), np.empty((0, 0), np.float32)
        bins = np.zeros(counts.shape, np.int64)
        if self.table.edges:
            ratios = cardinality_ratios(counts)
            singles = 1 << np.arange(self.table.n_vocabularies)
            ratios[:, singles] = ratios[:, -1:]
            bins = np.searchsorted(self.table.edges, ratios)
        rows = np.array(self.table.rows, np.float32)
        if self.options.hamming is not None:
            rows[:, self.options.hamming + 1 :] = 0
        return np.array(self.table.groups) * (len(self.table.edges) + 1) + bins, rows

    def _hamming_weights(self, bits: int) -> Floats32:
        """Return the weight of each Hamming distance 0..bits: exp(-h^2 / sigma^2) up to the threshold, then 0.

        Jegou, Douze, Schmid, IJCV 2010 (no factor 2 in the exponent). 1 where the table weights distances, or none are
        compared.
        """
        limit, sigma = self.options.hamming, self.options.sigma
        if limit is None or self.rule.needs_table:
            return np.ones(bits + 1, np.float32)
        distance = np.arange(bits + 1)
        return np.where(distance <= limit, np.exp(-((distance / sigma) ** 2)), 0.0).astype(np.float32)


def make_plan(options: ScoringOptions, sizes: tuple[int, ...], bits: int, code_bits: int = 0) -> ScoringPlan:
    """Resolve scoring options for a collection: K vocabulary sizes, signatures and codes of a length (0: without)."""
    if options.merge == CODES:
        codes = (options.code_table or default_code_table(code_bits)) if code_bits else None
        nothing = NormKey("none", "none", 0)
        return ScoringPlan(options, (), bits, nothing, RULES["b1"], None, False, False, not code_bits, False, codes)
    if not sizes:
        raise OptionError(f"merge={options.merge!r} needs words, and this index holds codes only; index again with "
                          "--vocabularies 2")  # fmt: skip
    rule, voting = RULES[options.merge], sizes[: options.count_vocabularies(len(sizes))]
    table = likelihood_table(options, len(voting), bits) if rule.needs_table and bits else None
    by_ratio = table is not None and len(table.edges) > 0
    needs_counts = by_ratio or (rule.needs_counts and len(voting) > 1)
    is_empty = rule.needs_table and table is None
    norm, signed = options.norm_key(len(sizes)), options.needs_signatures
    image_sets = options.image_sets and rule.has_sets and len(voting) > 1
    return ScoringPlan(options, voting, bits, norm, rule, table, signed, needs_counts, is_empty, image_sets)


def likelihood_table(options: ScoringOptions, n_vocabularies: int, bits: int) -> LikelihoodTable:
    """Return the likelihood table of the options, else the shipped one; raise OptionError if it does not fit."""
    table = options.likelihood_table or default_table(n_vocabularies, bits)
    if (table.n_vocabularies, table.bits) != (n_vocabularies, bits):
        raise OptionError(f"a likelihood table for {table.n_vocabularies} vocabularies with {table.bits} bits does not fit "
                          f"{n_vocabularies} with {bits}; fit one: polyvoc calibrate --save")  # fmt: skip
    return table


# -- likelihood tables and their files


def groups_by_size(n_vocabularies: int, most: int = MAX_LISTS) -> tuple[int, ...]:
    """Group the sets of lists by how many lists they have: the group of each mask [2^K]."""
    return tuple(max(min(mask.bit_count(), most), 1) - 1 for mask in range(1 << n_vocabularies))


def group_names(table: LikelihoodTable) -> list[str]:
    """Name the sets of lists that belong to each group of a table."""
    names = []
    for group in range(max(table.groups) + 1):
        sizes = sorted({mask.bit_count() for mask in range(1, len(table.groups)) if table.groups[mask] == group})
        names.append(" or ".join(map(str, sizes)) + (" list" if sizes == [1] else " lists"))
    return names if len(set(names)) == len(names) else [f"group {number}" for number in range(1, len(names) + 1)]


@cache
def default_table(n_vocabularies: int, bits: int) -> LikelihoodTable:
    """Return the shipped table for a number of vocabularies and a length of signatures."""
    count = min(n_vocabularies, MAX_LISTS)
    folder = importlib.resources.files("polyvoc") / "data" / "likelihood"
    file = folder / f"{count}-{bits}.json"
    if not file.is_file():
        lengths = sorted({int(other.name.split("-")[1].removesuffix(".json")) for other in folder.iterdir()})
        raise OptionError(f"polyvoc has no likelihood table for signatures of {bits} bits, only for "
                          f"{' or '.join(map(str, lengths))}; fit one: polyvoc calibrate --index INDEX --save")  # fmt: skip
    table = table_from_dict(json.loads(file.read_text(encoding="utf-8")), str(file))
    if count == n_vocabularies:
        return table
    return LikelihoodTable(groups_by_size(n_vocabularies), table.edges, table.rows, table.source)


def table_as_dict(table: LikelihoodTable) -> dict[str, Any]:
    """Return plain values for JSON."""
    return {
        "format": TABLE_FORMAT,
        "source": table.source,
        "groups": list(table.groups),
        "edges": list(table.edges),
        "rows": [list(row) for row in table.rows],
    }


def table_from_dict(values: Any, where: str) -> LikelihoodTable:
    """Read what `table_as_dict` returned; raise DamagedError, which names the file `where`, if it is something else."""
    try:
        if values["format"] != TABLE_FORMAT:
            raise ValueError
        rows = tuple(tuple(map(float, row)) for row in values["rows"])
        groups, edges = tuple(map(int, values["groups"])), tuple(map(float, values["edges"]))
        return LikelihoodTable(groups, edges, rows, str(values["source"]))
    except (KeyError, TypeError, ValueError, OptionError):
        raise DamagedError(f"{where}: not a likelihood table; fit one: polyvoc calibrate --index INDEX --save") from None


def check_table(folder: IndexFolder) -> Iterator[str]:
    """Yield one line if a table of an index is damaged or does not fit: a check for `index.check`."""
    settings = folder.catalogue.settings()
    values, codes = settings.get("likelihood_table"), settings.get("code_table")
    if codes is not None:
        code_table_from_dict(codes, str(folder.catalogue.path))
    if values is None:
        return
    table = table_from_dict(values, str(folder.catalogue.path))
    if table.n_vocabularies != len(settings["sizes"]):
        yield f"{folder.catalogue.path}: the likelihood table is for {table.n_vocabularies} vocabularies"


def load_table(path: Path) -> LikelihoodTable:
    """Read a table from its file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{path}: cannot be read ({error.strerror or error}); give the file of a likelihood table") from None
    except ValueError:
        values = None
    return table_from_dict(values, str(path))


def save_table(table: LikelihoodTable, path: Path) -> None:
    """Write a table to a file, one row per line."""
    values = table_as_dict(table)
    rows = ",\n  ".join(json.dumps(row) for row in values.pop("rows"))
    head = json.dumps(values, indent=1)[:-2]
    with write_errors(path):
        path.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
