"""Which components of a search pay? Each alone against a common base, and all on top of each other, on two sets.

    python benchmarks/components.py --holidays FOLDER --ukbench FOLDER [--cache FOLDER] [--embeddings FOLDER] [--only TABLE ...]

Shipped vocabularies, trained on other photographs; tables of evidence are fitted on the other set. Times are those of scoring,
verifying and expanding, from words on; ratios are medians over the questions, each asked in all ways before the next.
--embeddings names a folder of holidays.npy and ukbench.npy: unit vectors, one row per photograph, as `polyvoc.embedding` gives.
--only measures some tables anew and keeps the others of the last result.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import neighbours
from machine import RESULTS, write_result
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.readers import READERS, first_questions
from polyvoc.experiments.workbench import Workbench
from polyvoc.options import SearchOptions
from polyvoc.search.fuse import cosine_similarity, fuse
from polyvoc.search.pipeline import score_all
from polyvoc.search.verify import verify
from polyvoc.vocabulary.vocabulary import default_vocabularies
from trial import Ground, Tried, Way, timed

HE = {"hamming": 24, "sigma": 16.0}  # Hamming Embedding with 64 bits, as the paper used it
PLAIN = SearchOptions(merge="likelihood")
SCORE = replace(PLAIN, burstiness="best")
CHECKED = replace(SCORE, verify=200)
BEST = replace(CHECKED, expansion="average", expand=5)
ONE, ALL = (0,), (0, 1, 2)
PROOFS = (math.inf, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)  # nats that double a score or so; the first: none do


def cumulative() -> list[Way]:
    """From the simplest search to the best, one component at a time; each is compared with the one before."""
    return [
        Way("b0: one vocabulary", SearchOptions(merge="b0"), ONE, 0),
        Way("b1: three vocabularies", SearchOptions(merge="b1"), ALL, 0),
        Way("b1 + Hamming Embedding, 64 bits", SearchOptions(merge="b1", **HE), ALL, 64),
        Way("Bayes merging instead of b1", SearchOptions(merge="bayes", **HE), ALL, 64),
        Way("likelihood instead of both", PLAIN, ALL, 64),
        Way("best match of each query feature", SCORE, ALL, 64),
        Way("128 bits", SCORE),
        Way("verification of 200", CHECKED),
        Way("expansion by 5 hits, average", BEST),
    ]


def scoring() -> list[Way]:
    """What scores consist of: one choice changed at a time. The first is the base."""
    ways = [
        Way("likelihood, best match, 128 bits, K = 3", SCORE),
        Way("64 bits", SCORE, bits=64),
        Way("K = 1", SCORE, ONE),
        Way("K = 2", SCORE, (0, 1)),
        Way("rule: b1 + HE (52, 26)", replace(SCORE, merge="b1", hamming=52, sigma=26.0)),
        Way("rule: bayes + HE (52, 26)", replace(SCORE, merge="bayes", hamming=52, sigma=26.0)),
        Way("evidence by cardinality ratio too, 7 bins", SCORE, binned=True),
    ]
    ways += [Way(f"bursts: {kind}", replace(PLAIN, burstiness=kind)) for kind in ("none", "intra", "inter", "both")]
    ways += [Way(f"norm: {norm}", replace(SCORE, norm=norm)) for norm in ("tf", "sqrt-tf", "features", "self", "none")]
    ways += [Way(f"idf: {idf}", replace(SCORE, idf=idf)) for idf in ("plain", "none")]
    ways += [Way(f"{count} words per query feature", replace(SCORE, assignments=count)) for count in (2, 3)]
    return ways


def geometry() -> list[Way]:
    """Verification of more or fewer candidates. The first is the base."""
    ways = [Way("not verified", SCORE)]
    ways += [Way(f"verify {count}", replace(SCORE, verify=count)) for count in (20, 100, 200)]
    ways.append(Way("verify 200, 64 bits", CHECKED, bits=64))
    return [*ways, Way("verify 200, 3 words per query feature", replace(CHECKED, assignments=3))]


def expansion() -> list[Way]:
    """What verified hits add to the query. The first is the base."""
    ways = [Way("not expanded (verify 200)", CHECKED)]
    for kind in ("average", "hamming"):
        ways += [Way(f"{kind}, hits: {count}", replace(CHECKED, expansion=kind, expand=count)) for count in (1, 3, 5, 10)]
    ways += [Way(f"average, hits: 5 of {least} nats", BEST, constants={"TRUSTED": least}) for least in (10, 15, 30)]
    ways.append(Way("average, hits: 5, verify 100", replace(BEST, verify=100)))
    return ways


TABLES = {"cumulative": cumulative, "scoring": scoring, "geometry": geometry, "expansion": expansion}


def compared(ground: Ground, name: str) -> dict[str, Any]:
    """Measure one table: the first way is the base of the others, or each the base of the next."""
    ways = TABLES[name]()
    tried = ground.tried(ways)
    names = [way.name for way in ways]
    bases = [None, *names[:-1]] if name == "cumulative" else [None, *names[:1] * (len(names) - 1)]
    return {
        one: ground.entry(tried[one], None if base is None else tried[base]) for one, base in zip(names, bases, strict=True)
    }


def weighed(ground: Ground) -> dict[str, Any]:
    """How much should inliers weigh? From one verification of the best 200: scores times 1 + ln(1 + nats of inliers / proof)."""
    way = Way("", CHECKED)
    bench, options = ground.bench(way.members, way.bits), ground.settled(way)
    tried = {proof: Tried([], []) for proof in PROOFS}
    for question in range(len(ground.dataset.questions)):
        asked = bench.query(question)
        (scores,), _ = score_all(bench.engine, asked, replace(options, verify=0))
        places = [one.place for one in bench.engine.ranked([scores], options.verify)]
        nats = np.zeros(len(scores))
        for (_, position), found in verify(bench.engine, asked.sketch, places, options).items():
            nats[position] = found.weight
        for proof, one in tried.items():
            one.values.append(ground.judged(question, scores * (1 + np.log1p(nats / proof))))
    base = tried.pop(math.inf)
    found = {"not verified": ground.entry(base, None)}
    return found | {f"nats: {proof:g}": ground.entry(one, base) for proof, one in tried.items()}


def shared(ground: Ground) -> dict[str, Any]:
    """Scores shared along a graph of verified neighbours: does that help beyond verification, and beyond expansion?"""
    bench = ground.bench(ALL, 128)
    inliers = neighbours.graph(bench, ground.settled(Way("", replace(SCORE, verify=100))))
    found: dict[str, Any] = {}
    for way in (Way("verified", CHECKED), Way("expanded", BEST)):
        options, tried = ground.settled(way), {way.name: Tried([], [])}
        for question, asked in enumerate(ground.dataset.questions):
            assert asked.image is not None
            scores, _ = timed(bench, question, way, options)
            rankings = {way.name: scores}
            for name, changed in neighbours.ways(inliers, scores, asked.image).items():
                rankings[f"{way.name}, {name}"] = changed
            for name, changed in rankings.items():
                one = tried.setdefault(name, Tried([], []))
                one.values.append(ground.judged(question, changed))
        found |= {name: ground.entry(one, None if name == way.name else tried[way.name]) for name, one in tried.items()}
    return found


def fused(ground: Ground, vectors: npt.NDArray[Any]) -> dict[str, Any]:
    """A global embedding beside the best local ranking: each alone and both."""
    way = Way("local", BEST)
    bench, options = ground.bench(way.members, way.bits), ground.settled(way)
    tried = {name: Tried([], []) for name in ("local", "embedding", "both")}
    for question, asked in enumerate(ground.dataset.questions):
        local, _ = timed(bench, question, way, options)
        near = cosine_similarity(vectors @ vectors[asked.image])
        for name, scores in (("local", local), ("embedding", near), ("both", fuse(local, near))):
            tried[name].values.append(ground.judged(question, scores))
    better = max(("local", "embedding"), key=lambda name: float(np.mean(tried[name].values)))
    return {name: ground.entry(one, tried[better] if name == "both" else None) for name, one in tried.items()}


OTHERS = {"proof": weighed, "neighbours": shared}
EVERY = (*TABLES, *OTHERS, "fusion")


def measured(ground: Ground, table: str, vectors: npt.NDArray[Any] | None) -> dict[str, Any] | None:
    """Measure a table on a set; None if what it needs is not there."""
    if table in TABLES:
        return compared(ground, table)
    if table in OTHERS:
        return OTHERS[table](ground)
    return None if vectors is None else fused(ground, vectors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holidays", type=Path, required=True)
    parser.add_argument("--ukbench", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--embeddings", type=Path)
    parser.add_argument("--questions", type=int, default=10**9, help="ask only so many, to try it out")
    parser.add_argument("--only", nargs="+", choices=EVERY, default=EVERY)
    arguments = parser.parse_args()
    workbench, vocabularies = Workbench(arguments.cache), default_vocabularies()
    sets = {name: READERS[name](getattr(arguments, name)) for name in ("holidays", "ukbench")}
    result: dict[str, Any] = {"vocabularies": [v.fingerprint for v in vocabularies], "sets": {name: {} for name in sets}}
    last = RESULTS / "components.json"
    if tuple(arguments.only) != EVERY and last.exists():
        result["sets"] = json.loads(last.read_text(encoding="utf-8"))["sets"]
    for name, dataset in sets.items():
        other = next(one for key, one in sets.items() if key != name)
        ground = Ground(workbench, first_questions(dataset, arguments.questions), other, vocabularies)
        vectors = None if arguments.embeddings is None else np.load(arguments.embeddings / f"{name}.npy")
        for table in arguments.only:
            rows = measured(ground, table, vectors)
            if rows is None:
                continue
            result["sets"][name][table] = rows
            for row, entry in rows.items():
                print(name, table, row, *entry.values(), sep=" | ", flush=True)
            path = write_result("components", result)
    print(path)


if __name__ == "__main__":
    main()
