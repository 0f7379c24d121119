"""Hamming Embedding with 128 bits, for one experiment: the engine's signatures have 64."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from polyvoc.assigner import Assigner
from polyvoc.lab.cache import digest
from polyvoc.lab.cells import cell, gain_cell, title
from polyvoc.lab.evaluation import Values
from polyvoc.lab.laboratory import Laboratory
from polyvoc.lab.matchtable import Matcher
from polyvoc.lab.report import Cell, Section, Table
from polyvoc.lab.workbench import MEDIANS
from polyvoc.merging import Model
from polyvoc.records import SearchOptions
from polyvoc.signatures import random_rotation
from polyvoc.training import learn_thresholds
from polyvoc.vocabulary import Bytes, Vocabulary

# bits, threshold, sigma: those of Hamming Embedding; of Zheng's later code; and the first ones doubled
CODES = ((64, 24, 16.0), (128, 52, 26.0), (128, 48, 32.0))


def codes(lab: Laboratory) -> Section:
    """64 or 128 bits? Zheng's own baseline page says 128 bits, threshold 52, sigma 26."""
    tables = []
    for name in lab.datasets:
        found = judged(lab, name)
        rows: list[list[str | Cell]] = []
        for bits, threshold, sigma in CODES:
            values = [found[f"{merge} {bits} {threshold}"] for merge in ("b1", "bayes")]
            base = found["b1 64 24"]
            difference: str | Cell = "" if values[0] == base else gain_cell(lab, name, values[0], base)
            figures = [*(cell(lab, name, one) for one in values), difference, gain_cell(lab, name, values[1], values[0])]
            rows.append([f"{bits} bits, {threshold}, {sigma:g}", *figures])
        head = ["signature, threshold, sigma", "`b1`", "`bayes`", "`b1` - `b1` with 64 bits", "`bayes` - `b1`"]
        tables.append(Table(title(lab, name), head, rows))
    return Section("codes", "64 or 128 bits", ["One pair of seeds."], tables)


def judged(lab: Laboratory, name: str) -> dict[str, Values]:
    """Judge B1 and Bayes with every kind of signature."""
    bench = lab.equal(name, (0, 1))
    line = lab.line(name)
    matchers: list[Matcher] = []

    def score(question: int) -> dict[str, npt.NDArray[np.float64]]:
        if not matchers:
            halves = [second_half(lab, vocabulary) for vocabulary in bench.vocabularies]
            matchers.extend([Matcher(bench), Matcher(lab.workbench.bench(bench.dataset, halves))])
        table, other = (matcher.table(question) for matcher in matchers)
        assert table.distance is not None
        assert other.distance is not None
        terms, scores = matchers[0].idf_squared(table), {}
        w = np.where(table.order >= 2, Model.of(SearchOptions(line=line), table.n_images).intersection(table.ratio), 1.0)
        for bits, threshold, sigma in CODES:
            h = table.distance.astype(np.float64) + (other.distance if bits > 64 else 0)
            total = np.where(h <= threshold, terms * np.exp(-((h / sigma) ** 2)), 0.0).sum(axis=1)
            scores[f"b1 {bits} {threshold}"] = matchers[0].scores(table, total)
            scores[f"bayes {bits} {threshold}"] = matchers[0].scores(table, w * total)
        return scores

    return lab.judged(f"long codes {line}", bench, score)


def second_half(lab: Laboratory, vocabulary: Vocabulary) -> Vocabulary:
    """Give the same words with the signatures of the other 64 axes of the rotation."""
    folder = lab.workbench.cache / "vocabularies" / digest("second half", vocabulary.fingerprint, lab.store.digest)
    if not folder.is_dir():
        sample = lab.store.sample(MEDIANS, 0)
        words = Assigner([vocabulary]).assign(sample)[:, 0]
        axes = random_rotation(vocabulary.dimension, 64, skip=64)
        medians = Bytes.of(learn_thresholds(sample, words, vocabulary.centroids, axes))
        replace(vocabulary, medians=medians, rotation=axes).save(folder)
    return Vocabulary.load(folder)
