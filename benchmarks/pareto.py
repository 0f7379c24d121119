"""Accuracy against bytes per feature and milliseconds per query: number of vocabularies, bits of signatures, verification.

    python benchmarks/pareto.py DATA --train PHOTOGRAPHS [--cache FOLDER]

DATA holds the folders holidays* and ukbench*. Vocabularies are trained on every other of the photographs, as `polyvoc reproduce`
does; likelihood tables are fitted on the other set. Bytes per feature are those of the arrays that scoring reads (postings,
runs, columns, signatures) and that verification reads besides (words, places in the lists, positions, scales and angles).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from machine import write_result
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.readers import first_questions
from polyvoc.experiments.paper.run import set_up
from polyvoc.experiments.paper.setup import FULL
from polyvoc.experiments.paper.signature_length import lengthened
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.report.plots import save_svg
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import SearchOptions
from trial import Comparison, Way

POOL = ((20_000, 0), (20_000, 1), (20_000, 2), (20_000, 3), (10_000, 0), (50_000, 0))  # size, seed
SETS = {
    "1x20K": (0,), "2x20K": (0, 1), "3x20K": (0, 1, 2), "4x20K": (0, 1, 2, 3),
    "10K+20K": (4, 0), "20K+50K": (0, 5), "10K+20K+50K": (4, 0, 5),
}  # fmt: skip
EXPANDED = ("1x20K", "2x20K", "3x20K")
SCORING = ("postings", "run_words", "run_lengths", "columns", "signatures")
VERIFYING = ("words", "places", "frames", "positions", "shapes")
FITTED = 60  # queries that each likelihood table is fitted on: there are many tables
MEASURES = {"holidays": "Holidays, mAP", "ukbench": "Ukbench, N-S"}
PLOT = Path(__file__).parent.parent / "docs" / "pareto.svg"


def ways() -> list[Way]:
    """Return every set of vocabularies with 0, 64 and 128 bits: scores alone, verified, and some expanded."""
    every = []
    for name, members in SETS.items():
        for bits in (0, 64, 128):
            rule = {"merge": "likelihood", "burstiness": "best"} if bits else {"merge": "posterior", "burstiness": "none"}
            score = SearchOptions(**rule, verify=0)
            verified = replace(score, verify=200)
            stages = {"scores": score, "verified": verified, "expanded": replace(verified, expand=5)}
            every += [
                Way(f"{name}, {bits} bits, {stage}", options, members, bits)
                for stage, options in stages.items()
                if stage != "expanded" or (bits and name in EXPANDED)
            ]
    return every


def bytes_of(bench: QuantisedDataset, stage: str) -> float:
    """Return the bytes per feature of the arrays that a search reads."""
    names = SCORING if stage == "scores" else (*SCORING, *VERIFYING)
    return sum(segment.arrays[name].nbytes for segment in bench.engine.segments for name in names) / bench.n_features


def front(points: Sequence[dict[str, Any]], cost: str, name: str) -> list[str]:
    """Return the names of the points that no other beats at the same cost or less, cheapest first."""
    best, kept = -1.0, []
    for point in sorted(points, key=lambda point: (point["sets"][name][cost], -point["sets"][name]["value"]["mean"])):
        if point["sets"][name]["value"]["mean"] > best:
            best = point["sets"][name]["value"]["mean"]
            kept.append(point["name"])
    return kept


def plot(result: dict[str, Any]) -> Figure:
    """Return a figure of both measures against bytes and milliseconds, for searches with signatures; the front is labelled."""
    signed = [point for point in result["points"] if point["bits"]]
    panels = []
    for name, measure in MEASURES.items():
        for cost, unit in (("bytes", "bytes per feature"), ("ms", "milliseconds of one core per query")):
            best = front(signed, cost, name)
            at = {point["name"]: (point["sets"][name][cost], point["sets"][name]["value"]["mean"]) for point in signed}
            series = [_series("best for its cost", [at[one] for one in best], [one.split(",")[0] for one in best])]
            for bits, stage in product((64, 128), ("scores", "verified", "expanded")):
                marks = [at[point["name"]] for point in signed if (point["bits"], point["stage"]) == (bits, stage)]
                series.append(_series(f"{bits} bits, {stage}", marks))
            panels.append(Panel(unit, measure, series, xscale="log"))
    note = "verified: the best 200; expanded: by 5 of them. Searches without signatures are left out; benchmarks/results/pareto.json has them."
    return Figure("Accuracy against bytes per feature and time per query", panels, note)


def _series(name: str, marks: Sequence[tuple[float, float]], labels: Sequence[str] = ()) -> Series:
    x, y = zip(*marks, strict=True)
    return Series(name, x, y, style="paper" if labels else "points", labels=labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--questions", type=int, default=250, help="of each set, at most")
    arguments = parser.parse_args()
    lab = set_up(arguments.data, arguments.train, None, FULL, Workbench(arguments.cache))
    vocabularies = [lengthened(lab, lab.vocabulary(size, seed)) for size, seed in POOL]
    every = ways()
    points = [
        {
            "name": way.name,
            "vocabularies": way.name.split(",")[0],
            "bits": way.bits,
            "stage": way.name.split(", ")[-1],
            "sets": {},
        }
        for way in every
    ]
    for name in MEASURES:
        other = next(dataset for key, dataset in lab.datasets.items() if key in MEASURES and key != name)
        comparison = Comparison(
            lab.workbench, first_questions(lab.datasets[name], arguments.questions), other, vocabularies, FITTED
        )
        outcomes = comparison.run(every)
        for way, point in zip(every, points, strict=True):
            bench = comparison.bench(way.members, way.bits)
            point["sets"][name] = {
                **comparison.entry(outcomes[way.name], None),
                "bytes": round(bytes_of(bench, point["stage"]), 2),
            }
            print(name, way.name, point["sets"][name], flush=True)
    fronts = {name: {cost: front(points, cost, name) for cost in ("bytes", "ms")} for name in MEASURES}
    result = {"questions": arguments.questions, "points": points, "fronts": fronts}
    print(write_result("pareto", result))
    save_svg(plot(result), PLOT)


if __name__ == "__main__":
    main()
