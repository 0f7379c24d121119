"""Accuracy of every merging rule on photographs with ground truth, with the shipped vocabularies.

    python benchmarks/accuracy.py --holidays FOLDER --ukbench FOLDER [--cache FOLDER]

The vocabularies were trained on other photographs; the line of term 2 is fitted on one set and used on the other. `polyvoc evaluate`
prints the same for any dataset.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import write_result
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.readers import READERS
from polyvoc.experiments.evaluate import HAMMING, Outcome, evaluate, evaluation_rules, results_table, rule_name
from polyvoc.experiments.fit.line import fit_line
from polyvoc.experiments.fit.true_matches import observe
from polyvoc.experiments.measures import MEASURES, Interval
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import SearchOptions
from polyvoc.vocabulary.vocabulary import default_vocabularies


def rules(line: tuple[float, float]) -> dict[str, SearchOptions]:
    """Return all rules with and without signatures and burstiness, and two with sets of images."""
    table = evaluation_rules(line=line)
    for hamming in (None, HAMMING):
        for merge in ("bayes", "posterior"):
            options = SearchOptions(merge=merge, hamming=hamming, burstiness="none", sets="image", line=line, verify=0)
            table[f"{rule_name(options)}, image sets"] = options
    return table


def entry(bench: QuantisedDataset, outcomes: list[Outcome]) -> dict[str, Any]:
    """Return each rule's value and its difference to `b1` under the same conditions, in the usual units."""
    measure = MEASURES[bench.dataset.measure]

    def scaled(interval: Interval | None) -> dict[str, float] | None:
        return None if interval is None else {name: measure.scale * value for name, value in asdict(interval).items()}

    rows = results_table(bench.dataset, outcomes)
    return {
        outcome.name: {"value": scaled(row.value), "gain": scaled(row.gain), "seconds_per_query": row.seconds,
                       "queries": outcome.values[row.measure]}
        for row, outcome in zip(rows, outcomes, strict=True)
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holidays", type=Path, required=True)
    parser.add_argument("--ukbench", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=default_cache())
    arguments = parser.parse_args()
    workbench = Workbench(arguments.cache)
    vocabularies = [vocabulary.shortened(64) for vocabulary in default_vocabularies()]
    benches = {}
    for name in ("holidays", "ukbench"):
        benches[name] = workbench.bench(READERS[name](getattr(arguments, name)), vocabularies)
    lines = {name: fit_line(observe(bench.first(2))) for name, bench in benches.items()}
    result: dict[str, Any] = {"vocabularies": [v.fingerprint for v in vocabularies], "sets": {}}
    for name, bench in benches.items():
        other = next(key for key in benches if key != name)
        dataset = bench.dataset
        measured: dict[str, Any] = {"images": len(dataset.images), "queries": len(dataset.questions), "measure": dataset.measure,
                                 "features": bench.n_features, "term2": lines[name].as_dict(),
                                 "line": {"fitted_on": other, "a_b": list(lines[other].tied)}}  # fmt: skip
        for k in (2, 3):
            measured[f"K={k}"] = entry(bench, evaluate(workbench, bench.first(k), rules(lines[other].tied)))
            print(name, k, {rule: round(row["value"]["mean"], 3) for rule, row in measured[f"K={k}"].items()}, flush=True)
        result["sets"][name] = measured
    print(write_result("accuracy", result))


if __name__ == "__main__":
    main()
