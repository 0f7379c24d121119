"""What each component of a search gains: one on top of the other, and each alone against a common base, on two sets.

    python benchmarks/components.py --holidays FOLDER --ukbench FOLDER [--cache FOLDER] [--embedding FILE] [--only TABLE ...]

Search by words and signatures of the three shipped vocabularies, trained on other photographs; likelihood tables are fitted on the other set. Times are those of scoring,
verification and expansion, from words on; ratios are medians over the queries, each ranked in all ways before the next.
--embedding: the ONNX file of a global embedding, as `examples/efficientnet_lite.py` makes one, for the table of fusion.
--only measures some tables again and keeps the others of the last result. Rows of the stored result that are not made here
(bursts inter and both, norm self, Hamming expansion, other thresholds of reliable hits) are of options that were removed.
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
from polyvoc.features.embedding import Embedder
from polyvoc.options import SearchOptions
from polyvoc.search.fuse import fuse, score_of_cosines
from polyvoc.search.pipeline import score_all
from polyvoc.search.verify import WordVerification, match_table, verify
from polyvoc.vocabulary.vocabulary import default_vocabularies
from trial import Comparison, Outcome, Way, timed

HE = {"hamming": 24, "sigma": 16.0}  # Hamming Embedding with 64 bits, as the paper used it
PLAIN = SearchOptions(merge="likelihood", burstiness="none", verify=0)
SCORE = replace(PLAIN, burstiness="best")
CHECKED = replace(SCORE, verify=200)
BEST = replace(CHECKED, expand=5)
ONE, ALL = (0,), (0, 1, 2)
BOOSTS = (math.inf, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)  # nats that about double a score; the first: inliers do not count


def cumulative() -> list[Way]:
    """Return ways from the simplest search to the best; each is compared with the one before."""
    return [
        Way("b0: one vocabulary", replace(PLAIN, merge="b0"), ONE, 0),
        Way("b1: three vocabularies", replace(PLAIN, merge="b1"), ALL, 0),
        Way("b1 + Hamming Embedding, 64 bits", replace(PLAIN, merge="b1", **HE), ALL, 64),
        Way("Bayes merging instead of b1", replace(PLAIN, merge="bayes", sets="feature", **HE), ALL, 64),
        Way("likelihood instead of both", PLAIN, ALL, 64),
        Way("best match of each query feature", SCORE, ALL, 64),
        Way("128 bits", SCORE),
        Way("verification of 200", CHECKED),
        Way("expansion by 5 hits, average", BEST),
    ]


def scoring() -> list[Way]:
    """Return ways with one choice of scoring changed. The first is the base."""
    ways = [
        Way("likelihood, best match, 128 bits, K = 3", SCORE),
        Way("64 bits", SCORE, bits=64),
        Way("K = 1", SCORE, ONE),
        Way("K = 2", SCORE, (0, 1)),
        Way("rule: b1 + HE (52, 26)", replace(SCORE, merge="b1", hamming=52, sigma=26.0)),
        Way("rule: bayes + HE (52, 26)", replace(SCORE, merge="bayes", sets="feature", hamming=52, sigma=26.0)),
        Way("likelihood table by cardinality ratio too, 7 bins", SCORE, binned=True),
    ]
    ways += [Way(f"bursts: {kind}", replace(PLAIN, burstiness=kind)) for kind in ("none", "intra")]
    ways += [Way(f"norm: {norm}", replace(SCORE, norm=norm)) for norm in ("tf", "sqrt-tf", "features", "none")]
    ways += [Way(f"idf: {idf}", replace(SCORE, idf=idf)) for idf in ("plain", "none")]
    ways += [Way(f"{count} words per query feature", replace(SCORE, assignments=count)) for count in (2, 3)]
    return ways


def geometry() -> list[Way]:
    """Return ways with more or fewer candidates verified. The first is the base."""
    ways = [Way("not verified", SCORE)]
    ways += [Way(f"verify {count}", replace(SCORE, verify=count)) for count in (20, 100, 200)]
    ways.append(Way("verify 200, 64 bits", CHECKED, bits=64))
    return [*ways, Way("verify 200, 3 words per query feature", replace(CHECKED, assignments=3))]


def expansion() -> list[Way]:
    """Return ways with query expansion. The first is the base."""
    ways = [Way("not expanded (verify 200)", CHECKED)]
    ways += [Way(f"average, hits: {count}", replace(CHECKED, expand=count)) for count in (1, 3, 5, 10)]
    ways.append(Way("average, hits: 5, verify 100", replace(BEST, verify=100)))
    return ways


TABLES = {"cumulative": cumulative, "scoring": scoring, "geometry": geometry, "expansion": expansion}


def compare(comparison: Comparison, name: str) -> dict[str, Any]:
    """Measure one table: the first way is the base of the others, or each the base of the next."""
    ways = TABLES[name]()
    outcomes = comparison.run(ways)
    names = [way.name for way in ways]
    bases = [None, *names[:-1]] if name == "cumulative" else [None, *names[:1] * (len(names) - 1)]
    return {
        one: comparison.entry(outcomes[one], None if base is None else outcomes[base])
        for one, base in zip(names, bases, strict=True)
    }


def weight_of_inliers(comparison: Comparison) -> dict[str, Any]:
    """Compare weights of inliers, after one verification of the best 200: scores times 1 + ln(1 + nats of inliers / boost)."""
    way = Way("", CHECKED)
    bench, options = comparison.bench(way.members, way.bits), comparison.options(way)
    outcomes = {boost: Outcome([], []) for boost in BOOSTS}
    for question in range(len(comparison.dataset.questions)):
        query = bench.query(question)
        (scores,) = score_all(bench.engine, query, replace(options, verify=0))
        refs = [one.ref for one in bench.engine.rank([scores], bench.engine.images(), options.verify)]
        prepared = WordVerification.of(query.image_features, match_table(bench.engine, options))
        nats = np.zeros(len(scores))
        for (_, position), verified in verify(bench.engine, prepared, refs).items():
            nats[position] = verified.weight or 0.0
        for boost, one in outcomes.items():
            one.values.append(comparison.judge(question, scores * (1 + np.log1p(nats / boost))))
    base = outcomes.pop(math.inf)
    rows = {"not verified": comparison.entry(base, None)}
    return rows | {f"nats: {boost:g}": comparison.entry(one, base) for boost, one in outcomes.items()}


def links(comparison: Comparison) -> dict[str, Any]:
    """Compare smoothing and diffusion over linked images, after verification and after expansion."""
    bench = comparison.bench(ALL, 128)
    inliers = neighbours.graph(bench, comparison.options(Way("", replace(SCORE, verify=100))))
    rows: dict[str, Any] = {}
    for way in (Way("verified", CHECKED), Way("expanded", BEST)):
        options, outcomes = comparison.options(way), {way.name: Outcome([], [])}
        for number, question in enumerate(comparison.dataset.questions):
            assert question.image is not None
            scores, _ = timed(bench, number, options)
            rankings = {way.name: scores}
            for name, changed in neighbours.ways(inliers, scores, question.image).items():
                rankings[f"{way.name}, {name}"] = changed
            for name, changed in rankings.items():
                one = outcomes.setdefault(name, Outcome([], []))
                one.values.append(comparison.judge(number, changed))
        rows |= {
            name: comparison.entry(one, None if name == way.name else outcomes[way.name]) for name, one in outcomes.items()
        }
    return rows


def fusion(comparison: Comparison, vectors: npt.NDArray[Any]) -> dict[str, Any]:
    """Compare a global embedding, the best local ranking, and their late fusion."""
    way = Way("local", BEST)
    bench, options = comparison.bench(way.members, way.bits), comparison.options(way)
    outcomes = {name: Outcome([], []) for name in ("local", "embedding", "both")}
    for number, question in enumerate(comparison.dataset.questions):
        local, _ = timed(bench, number, options)
        near = score_of_cosines(vectors @ vectors[question.image])
        for name, scores in (("local", local), ("embedding", near), ("both", fuse(local, near))):
            outcomes[name].values.append(comparison.judge(number, scores))
    better = max(("local", "embedding"), key=lambda name: float(np.mean(outcomes[name].values)))
    return {name: comparison.entry(one, outcomes[better] if name == "both" else None) for name, one in outcomes.items()}


OTHERS = {"proof": weight_of_inliers, "neighbours": links}
EVERY = (*TABLES, *OTHERS, "fusion")


def measure(comparison: Comparison, table: str, vectors: npt.NDArray[Any] | None) -> dict[str, Any] | None:
    """Measure a table on a set; None if what it needs is not there."""
    if table in TABLES:
        return compare(comparison, table)
    if table in OTHERS:
        return OTHERS[table](comparison)
    return None if vectors is None else fusion(comparison, vectors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holidays", type=Path, required=True)
    parser.add_argument("--ukbench", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--embedding", type=Path)
    parser.add_argument("--questions", type=int, default=10**9, help="of each set, at most: to try it out")
    parser.add_argument("--only", nargs="+", choices=EVERY, default=EVERY)
    arguments = parser.parse_args()
    workbench, vocabularies = Workbench(arguments.cache), default_vocabularies(3)
    sets = {name: READERS[name](getattr(arguments, name)) for name in ("holidays", "ukbench")}
    result: dict[str, Any] = {"vocabularies": [v.fingerprint for v in vocabularies], "sets": {name: {} for name in sets}}
    embedder = None if arguments.embedding is None else Embedder.load(arguments.embedding)
    last = RESULTS / "components.json"
    if tuple(arguments.only) != EVERY and last.exists():
        result["sets"] = json.loads(last.read_text(encoding="utf-8"))["sets"]
    for name, dataset in sets.items():
        other = next(one for key, one in sets.items() if key != name)
        comparison = Comparison(workbench, first_questions(dataset, arguments.questions), other, vocabularies)
        vectors = None if embedder is None else np.stack([embedder.embed(str(file)) for file in comparison.dataset.images])
        for table in arguments.only:
            rows = measure(comparison, table, vectors)
            if rows is None:
                continue
            result["sets"][name][table] = rows
            for row, entry in rows.items():
                print(name, table, row, *entry.values(), sep=" | ", flush=True)
            path = write_result("components", result)
    print(path)


if __name__ == "__main__":
    main()
