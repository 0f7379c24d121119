"""Hamming Embedding with 64 or 128 bits: the same vocabularies with longer signatures."""

from __future__ import annotations

from dataclasses import replace

from polyvoc.experiments.cache import digest_of
from polyvoc.experiments.evaluate import Values
from polyvoc.experiments.paper.cells import cell, gain_cell, measure_title
from polyvoc.experiments.paper.setup import Setup
from polyvoc.experiments.report.report import Section, Table, TableCell
from polyvoc.experiments.workbench import MEDIANS, LazyVocabulary
from polyvoc.options import Merge
from polyvoc.vocabulary.assign import Assigner
from polyvoc.vocabulary.train import learn_thresholds
from polyvoc.vocabulary.vocabulary import MAX_BITS, ByteTable, Vocabulary, random_rotation

# bits, threshold, sigma: those of Hamming Embedding; of Zheng's later code; and the first ones doubled
MERGES: tuple[Merge, ...] = ("b1", "bayes")
CODES = ((64, 24, 16.0), (128, 52, 26.0), (128, 48, 32.0))


def codes(setup: Setup) -> Section:
    """64 or 128 bits: Zheng's own baseline page uses 128 bits, threshold 52, sigma 26."""
    tables = []
    for name in setup.datasets:
        values_of = signature_values(setup, name)
        rows: list[list[str | TableCell]] = []
        for bits, threshold, sigma in CODES:
            values = [values_of[f"{merge} {bits} {threshold}"] for merge in MERGES]
            base = values_of["b1 64 24"]
            difference: str | TableCell = "" if values[0] == base else gain_cell(setup, name, values[0], base)
            figures = [*(cell(setup, name, one) for one in values), difference, gain_cell(setup, name, values[1], values[0])]
            rows.append([f"{bits} bits, {threshold}, {sigma:g}", *figures])
        head = ["signature, threshold, sigma", "`b1`", "`bayes`", "`b1` - `b1` with 64 bits", "`bayes` - `b1`"]
        tables.append(Table(measure_title(setup, name), head, rows))
    return Section("codes", "64 or 128 bits", ["One pair of seeds."], tables)


def signature_values(setup: Setup, name: str) -> dict[str, Values]:
    """Return the values of B1 and Bayes with every kind of signature."""
    bench = setup.equal(name, (0, 1))
    vocabularies = [lazily_lengthened(setup, setup.lazy_vocabulary(setup.plan.size, seed)) for seed in (0, 1)]
    longer = setup.workbench.lazy_bench(bench.dataset, vocabularies)
    found: dict[str, Values] = {}
    for bits, threshold, sigma in CODES:
        named = {f"{merge} {bits} {threshold}": setup.rule(name, merge, hamming=threshold, sigma=sigma) for merge in MERGES}
        found |= setup.outcomes(bench if bits == 64 else longer, named)
    return found


def lazily_lengthened(setup: Setup, vocabulary: LazyVocabulary) -> LazyVocabulary:
    """Return the same words with signatures of 128 bits, made if they are needed."""
    identity = digest_of("128 bits", vocabulary.identity)
    return LazyVocabulary(identity, vocabulary.size, lambda: lengthened(setup, vocabulary.load()))


def lengthened(setup: Setup, vocabulary: Vocabulary) -> Vocabulary:
    """Return the same words with signatures of 128 bits; the first bits stay."""
    folder = setup.workbench.cache / "vocabularies" / digest_of("128 bits", MEDIANS, vocabulary.fingerprint, setup.store.digest)
    if not folder.is_dir():
        sample = setup.store.sample(MEDIANS, 0)
        words = Assigner([vocabulary]).assign(sample)[:, 0]
        axes = random_rotation(vocabulary.dimension, MAX_BITS)
        medians = ByteTable.of(learn_thresholds(sample, words, vocabulary.centroids, axes))
        replace(vocabulary, medians=medians, rotation=axes).save(folder)
    return Vocabulary.load(folder)
