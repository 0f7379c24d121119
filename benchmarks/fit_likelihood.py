"""Fit the likelihood tables that come with polyvoc, on datasets with ground truth.

    python benchmarks/fit_likelihood.py --holidays FOLDER --ukbench FOLDER --out src/polyvoc/data/likelihood [--cache FOLDER] [--fourth FOLDER]

One table for each number of vocabularies and each length of signature, counted over both sets. (What is measured on one of
these sets uses tables fitted on the other: see `components.py`.) --fourth: a vocabulary of your own.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.readers import READERS, Dataset
from polyvoc.experiments.fit.likelihood import fit_table, tally
from polyvoc.experiments.workbench import Workbench
from polyvoc.scoring.rules import save_table
from polyvoc.vocabulary.vocabulary import Vocabulary, default_vocabularies

BITS = (64, 128)


def fit(workbench: Workbench, read: Sequence[Dataset], vocabularies: Sequence[Vocabulary], out: Path) -> None:
    """Count the matches of all datasets with some vocabularies, and write the table."""
    tallies = [tally(workbench.bench(dataset, vocabularies)) for dataset in read]
    count, bits = len(vocabularies), vocabularies[0].bits
    names = " and ".join(f"{dataset.name} ({len(dataset.questions)} questions)" for dataset in read)
    table = fit_table(sum(tallies[1:], tallies[0]), source=f"{names}, {count} x {vocabularies[0].size:,} words, {bits} bits")
    save_table(table, out / f"{count}-{bits}.json")
    print(count, bits, [round(row[bits // 8], 2) for row in table.rows], file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("holidays", "ukbench", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--fourth", type=Path)
    arguments = parser.parse_args()
    workbench = Workbench(arguments.cache)
    read = [READERS[name](getattr(arguments, name)) for name in ("holidays", "ukbench")]
    vocabularies = [*default_vocabularies(3), *([Vocabulary.load(arguments.fourth)] if arguments.fourth else [])]
    arguments.out.mkdir(parents=True, exist_ok=True)
    for bits in BITS:
        shortened = [vocabulary.shortened(bits) for vocabulary in vocabularies]
        for count in range(1, len(vocabularies) + 1):
            fit(workbench, read, shortened[:count], arguments.out)


if __name__ == "__main__":
    main()
