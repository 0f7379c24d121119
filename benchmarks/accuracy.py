"""Accuracy of every merging rule on photographs with ground truth, with the three shipped vocabularies of words.

    python benchmarks/accuracy.py --holidays FOLDER --ukbench FOLDER [--cache FOLDER]

The vocabularies were trained on other photographs; the lines of term 2 are fitted on one set and used on the other. `polyvoc evaluate`
prints the same for any dataset.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from machine import write_result
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.readers import READERS
from polyvoc.experiments.evaluate import Outcome, evaluate, evaluation_rules, results_table
from polyvoc.experiments.fit.line import fit_lines
from polyvoc.experiments.measures import MEASURES, Interval
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import Line, Merge, SearchOptions, SetKind
from polyvoc.vocabulary.vocabulary import default_vocabularies


def rules(lines: Mapping[SetKind, Line]) -> dict[str, SearchOptions]:
    """Return all rules with and without signatures and burstiness, and three with the other kind of sets."""
    table = evaluation_rules(lines=lines)
    others: dict[Merge, SetKind] = {"b2": "feature", "bayes": "feature", "posterior": "image"}
    for merge, sets in others.items():
        table |= {f"{name}, {sets} sets": one for name, one in evaluation_rules((merge,), lines=lines, sets=sets).items()}
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
    vocabularies = [vocabulary.shortened(64) for vocabulary in default_vocabularies(3)]
    benches = {}
    for name in ("holidays", "ukbench"):
        benches[name] = workbench.bench(READERS[name](getattr(arguments, name)), vocabularies)
    fits = {name: fit_lines(bench) for name, bench in benches.items()}
    result: dict[str, Any] = {"vocabularies": [v.fingerprint for v in vocabularies], "sets": {}}
    for name, bench in benches.items():
        other = next(key for key in benches if key != name)
        dataset, lines = bench.dataset, {kind: fit.tied for kind, fit in fits[other].items()}
        measured: dict[str, Any] = {"images": len(dataset.images), "queries": len(dataset.questions), "measure": dataset.measure,
                                 "features": bench.n_features, "term2": {kind: fit.as_dict() for kind, fit in fits[name].items()},
                                 "line": {"fitted_on": other, "a_b": lines["feature"], "image_a_b": lines["image"]}}  # fmt: skip
        for k in (2, 3):
            measured[f"K={k}"] = entry(bench, evaluate(workbench, bench.first(k), rules(lines)))
            print(name, k, {rule: round(row["value"]["mean"], 3) for rule, row in measured[f"K={k}"].items()}, flush=True)
        result["sets"][name] = measured
    print(write_result("accuracy", result))


if __name__ == "__main__":
    main()
