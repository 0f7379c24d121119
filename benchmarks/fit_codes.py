"""Fit the table of codes that comes with polyvoc, on datasets with ground truth.

    python benchmarks/fit_codes.py DATA --out src/polyvoc/data/likelihood/codes-128.json [--cache FOLDER]

DATA holds the folders holidays150, ukbench500 and photos1200 (other photographs). Counted over both sets; what is measured on one
of them uses a table fitted on the other.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.readers import READERS, with_distractors
from polyvoc.experiments.fit.code_table import fit_code_table, tally_dataset
from polyvoc.experiments.workbench import Workbench
from polyvoc.scoring.codes import code_table_as_dict
from polyvoc.vocabulary.vocabulary import default_fine_vocabulary

SETS = {"holidays": "holidays150", "ukbench": "ukbench500"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=default_cache())
    arguments = parser.parse_args()
    workbench, fine = Workbench(arguments.cache), default_fine_vocabulary()
    counts = []
    for name, folder in SETS.items():
        dataset = with_distractors(READERS[name](arguments.data / folder), arguments.data / "photos1200")
        counts.append(tally_dataset(workbench.bench(dataset, (), fine)))
    source = f"{' and '.join(SETS)} among 1,200 other photographs; {fine.size:,} words, {fine.bits} bits"
    values = code_table_as_dict(fit_code_table(np.sum(counts, axis=0), source))
    rows = ",\n  ".join(json.dumps(row) for row in values.pop("rows"))
    head = json.dumps(values, indent=1)[:-2]
    arguments.out.write_text(f'{head},\n "rows": [\n  {rows}\n ]\n}}\n', encoding="utf-8")
    print(arguments.out)


if __name__ == "__main__":
    main()
