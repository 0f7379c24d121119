"""Order by score and by probability, and which hits should expand a query, on photographs with several right answers and with one.

    python benchmarks/expansion.py DATA [--cache FOLDER] [--step 1]

DATA holds the folders holidays150, ukbench500 and photos1200. Every photograph of a group is a query (`--step 2`: every other), the
1,200 other photographs lie among them. The query itself is not in the collection. Three collections of each set: "groups", all of it;
"pairs", in which the query has a single right answer, the others of its group left out; "none", without any. The likelihood table and the
probabilities were fitted on the other set (probabilities: `benchmarks/results/confidence.json`). "ns": one more than the right ones among
the first three, which is N-S of Ukbench.

A rule of expansion is the smallest probability of a hit that joins the query, and how many such hits there must be. It is chosen on
the first half of the groups of both sets, and shown on the second.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from codes import BITS, SETS, all_queries
from machine import write_result
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.readers import READERS
from polyvoc.experiments.fit.code_table import fit_code_table, tally_dataset
from polyvoc.experiments.fit.hit_probability import without
from polyvoc.experiments.measures import Truth, average_precision, bootstrap, difference
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import SearchOptions, preset
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.segments import Candidate
from polyvoc.search.pipeline import COPY_SHARE, SURE, search
from polyvoc.search.probability import LIKELY, HitProbability
from polyvoc.search.query import Query
from polyvoc.vocabulary.vocabulary import default_fine_vocabulary
from sources import result

KINDS = ("groups", "pairs", "none")
SHOWN, DEPTH = 10, 300  # hits that a search shows; candidates that are ranked here
SURES, LEAST = (0.5, 0.9, 0.99), (1, 2)  # of the rules of expansion
ORDERS = ("score", "probability")
BINS = 10
FIRST = 3  # of Ukbench, where the query itself is the first of four


def rule_name(sure: float, least: int) -> str:
    return f"best, {least} or more from {sure:g}"


RULES = {rule_name(sure, least): (sure, least) for sure in SURES for least in LEAST}
WAYS = ("fast", "default", "best without expansion", "best, hits by inliers alone", *RULES)


def joining(hits: Sequence[Candidate], query: Query, sure: float, most: int) -> list[int]:
    """Return the hits that join the query from a probability on."""
    good = [one for one in hits if one.transform is not None and one.inliers <= COPY_SHARE * len(query)]
    good = [one for one in good if (one.probability or 0.0) >= sure]
    return [one.image for one in sorted(good, key=lambda one: (-(one.weight or 0.0), one.image))[:most]]


def searches(bench: QuantisedDataset, engine: Engine, number: int, model: HitProbability,
             base: SearchOptions) -> dict[str, list[Candidate]]:  # fmt: skip
    """Return the ranking of each way for one question; the same expansion is computed once."""
    found: dict[str, list[Candidate]] = {}
    best = replace(preset("best", 0, BITS), code_table=base.code_table, top=DEPTH)
    query = bench.query(number, best)

    def run(options: SearchOptions, rated: HitProbability | None = model) -> list[Candidate]:
        return search(engine, query, options, rated, coder=bench.coder)

    found["fast"] = run(replace(base, verify=0))
    found["default"] = run(base)
    alone = found["best without expansion"] = run(replace(best, expand=0))
    found["best, hits by inliers alone"] = run(best, None)
    known: dict[tuple[int, ...], list[Candidate]] = {(): alone}
    for name, (sure, least) in RULES.items():
        hits = tuple(joining(alone, query, sure, best.expand))
        hits = hits if len(hits) >= least else ()
        if hits not in known:
            with patch("polyvoc.search.pipeline.SURE", sure):
                known[hits] = run(best)
        found[name] = known[hits]
    return found


def judged(hits: Sequence[Candidate], truth: Truth) -> dict[str, Any]:
    """Return average precision by both orders, and the shown hits: probability and whether right."""
    by_score = sorted(hits, key=lambda one: (-one.score, one.image))
    rankings = {"score": by_score, "probability": list(hits)}
    values: dict[str, Any] = {
        order: average_precision(np.array([one.image for one in ranking], np.int64), truth)
        for order, ranking in rankings.items()
    }
    values["first"] = {
        order: sum(one.image in truth.relevant for one in ranking[:FIRST]) for order, ranking in rankings.items()
    }
    values["shown"] = [(one.probability, one.image in truth.relevant) for one in hits[:SHOWN]]
    return values


def question(bench: QuantisedDataset, number: int, kind: str, model: HitProbability, base: SearchOptions) -> dict[str, Any]:
    """Return what each way gives for one question in one of the collections."""
    asked, truth = bench.dataset.questions[number], bench.dataset.truths[""][number]
    own = {*truth.junk, asked.image or 0}
    relevant = sorted(truth.relevant - own)
    kept = {"groups": relevant, "pairs": [relevant[number % len(relevant)]], "none": []}[kind]
    engine = without(bench.engine, sorted(own | (set(relevant) - set(kept))))
    known = Truth(frozenset(kept), frozenset())
    return {way: judged(hits, known) for way, hits in searches(bench, engine, number, model, base).items()}


def group_halves(bench: QuantisedDataset, numbers: Sequence[int]) -> tuple[list[str], list[bool]]:
    """Return the group of each question, and whether it is in the second half."""
    groups = [bench.dataset.questions[number].group or bench.dataset.questions[number].name for number in numbers]
    place = {group: at for at, group in enumerate(dict.fromkeys(groups))}
    return groups, [place[group] % 2 == 1 for group in groups]


def accuracy(found: list[dict[str, Any]], groups: list[str], late: list[bool]) -> dict[str, Any]:
    """Return mAP of each way by both orders, its difference to the default, and that of each half of the groups."""
    values = {way: {order: [one[way][order] for one in found] for order in ORDERS} for way in WAYS}
    table: dict[str, Any] = {}
    for way in WAYS:
        table[way] = {}
        for order in ORDERS if way != "best, hits by inliers alone" else ORDERS[:1]:
            own = values[way][order]
            gain = difference(own, values["default"][order], groups)
            halves = [
                float(100 * np.mean([v for v, second in zip(own, late, strict=True) if second == half]))
                for half in (False, True)
            ]
            table[way][order] = {
                "ns": round(1 + float(np.mean([one[way]["first"][order] for one in found])), 4),
                "value": scaled(bootstrap(own, groups)),
                "difference": scaled(gain),
                "halves": halves,
                "queries": [round(value, 5) for value in own],
            }
    return table


def scaled(interval: Any) -> dict[str, float]:
    return {name: round(100 * value, 3) for name, value in asdict(interval).items()}


def calibration(found: dict[str, list[dict[str, Any]]], way: str) -> dict[str, float]:
    """Return how well the probabilities of the shown hits fit, and how often "nothing found" is said, rightly or not."""
    shown = np.array([hit for kind in KINDS for one in found[kind] for hit in one[way]["shown"]], np.float64)
    p, right = shown.T
    bins = np.minimum((p * BINS).astype(int), BINS - 1)
    error = sum(abs((p - right)[bins == number].sum()) for number in range(BINS)) / len(p)
    nothing = {kind: [not any(q >= LIKELY for q, _ in one[way]["shown"]) for one in found[kind]] for kind in KINDS}
    first = [one[way]["shown"][0][1] if one[way]["shown"] else False for one in found["pairs"]]
    lost = [said for said, is_right in zip(nothing["pairs"], first, strict=True) if is_right]
    clipped = np.clip(p, 1e-6, 1 - 1e-6)
    return {
        "hits": len(p),
        "error": float(100 * error),
        "brier": float(((p - right) ** 2).mean()),
        "log_loss": float(-np.log(np.where(right > 0, clipped, 1 - clipped)).mean()),
        "likely_right": float(100 * right[p >= LIKELY].mean()),
        "nothing_rightly": float(100 * np.mean(nothing["none"])),
        "nothing_wrongly": float(100 * np.mean(lost)),  # of the searches whose first hit is the right one
    }


def chosen_rule(sets: dict[str, Any]) -> str:
    """Return the rule with the best mean by probability on the first half, among those whose expansion loses nowhere there.

    Nowhere: on no set, with several right answers or one, in neither order, against the same search without expansion.
    """
    places = [(one[kind], order) for one in sets.values() for kind in KINDS[:2] for order in ORDERS]

    def loses(way: str) -> bool:
        return any(ways[way][order]["halves"][0] < ways["best without expansion"][order]["halves"][0] for ways, order in places)

    def mean(way: str) -> float:
        return float(np.mean([ways[way][order]["halves"][0] for ways, order in places if order == "probability"]))

    return max(RULES, key=lambda way: (not loses(way), round(mean(way), 3), RULES[way]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--step", type=int, default=1)
    arguments = parser.parse_args()
    workbench, fine = Workbench(arguments.cache), default_fine_vocabulary()
    benches = {
        name: workbench.bench(all_queries(READERS[name](arguments.data / folder), arguments.data / "photos1200", 1), (), fine)
        for name, folder in SETS.items()
    }
    tables = {name: fit_code_table(tally_dataset(bench)) for name, bench in benches.items()}
    fitted = result("confidence")["fitted"]
    sets: dict[str, Any] = {}
    for name, bench in benches.items():
        other = next(one for one in SETS if one != name)
        model = HitProbability.from_dict(fitted[other], "confidence.json")
        base = replace(preset("default", 0, BITS), code_table=tables[other], top=DEPTH)
        numbers = range(0, len(bench.dataset.questions), arguments.step)
        found = {}
        for kind in KINDS:
            found[kind] = [question(bench, number, kind, model, base) for number in numbers]
            print(name, kind, flush=True)
        groups, late = group_halves(bench, numbers)
        sets[name] = {
            "images": bench.n_images,
            "queries": len(numbers),
            **{kind: accuracy(found[kind], groups, late) for kind in KINDS[:2]},
            "calibration": {way: calibration(found, way) for way in ("default", rule_name(SURE, 1))},
        }
        for kind in KINDS[:2]:
            for way, row in sets[name][kind].items():
                print(name, kind, way, {order: one["value"]["mean"] for order, one in row.items()}, flush=True)
        print(sets[name]["calibration"], flush=True)
    chosen = chosen_rule(sets)
    print("chosen on the first half:", chosen)
    print(write_result("expansion", {"step": arguments.step, "used": rule_name(SURE, 1), "chosen": chosen, "sets": sets}))


if __name__ == "__main__":
    main()
