"""How well does each rule rank? Every rule on photographs with ground truth, with the shipped vocabularies.

    python benchmarks/accuracy.py --holidays FOLDER --ukbench FOLDER

FOLDER of Holidays: the first four digits of a name are the group, `..00` is the query, which is left out of its own ranking (mAP).
FOLDER of Ukbench: number // 4 is the group, every image is a query (N-S: how many of its four are in the top four). The vocabularies
were trained on other photographs. Also fits term 2 of the Bayes model on each set, for use on the other.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from machine import write_result
from polyvoc import Index, SearchOptions, default_vocabularies, extract_many
from polyvoc.quantiser import Quantiser
from polyvoc.records import Features
from polyvoc.scoring import count_sets

LINES = tuple((round(1 - b, 1), b) for b in (0.1, 0.2, 0.4, 0.5))
TRUE_DISTANCE = 20  # the paper: true matches have a Hamming distance below 20 and lie in a relevant image


@dataclass
class Dataset:
    """Quantised photographs with their groups."""

    name: str
    groups: np.ndarray  # [n]
    queries: list[int]
    measure: str  # "mAP" or "N-S"
    words: list[np.ndarray]
    signatures: list[np.ndarray]


def read(name: str, folder: Path, quantiser: Quantiser) -> Dataset:
    paths = sorted(folder.rglob("*.jpg"))
    numbers = [int("".join(c for c in path.stem if c.isdigit())) for path in paths]
    holidays = name == "holidays"
    groups = np.array([number // 100 if holidays else number // 4 for number in numbers])
    queries = [i for i, number in enumerate(numbers) if not holidays or number % 100 == 0]
    words, signatures = [], []
    for path, found in extract_many(paths):
        if not isinstance(found, Features):
            raise SystemExit(f"{path}: {found}")
        of_image = quantiser.quantise(found.descriptors)
        words.append(of_image[0])
        signatures.append(of_image[1])
    return Dataset(name, groups, queries, "mAP" if holidays else "N-S", words, signatures)


def average_precision(ranks: np.ndarray, n_relevant: int) -> float:
    """AP with trapezoids, as in the Holidays and Oxford protocols. ranks: of the relevant images, from 0, ascending."""
    total = 0.0
    for t, rank in enumerate(ranks):
        before = 1.0 if rank == 0 else t / rank
        total += (before + (t + 1) / (rank + 1)) / 2 / n_relevant
    return total


def value(dataset: Dataset, query: int, scores: np.ndarray) -> float:
    order = np.argsort(-scores, kind="stable")
    same = dataset.groups[order] == dataset.groups[query]
    if dataset.measure == "N-S":
        return float(same[:4].sum())
    same = same[order != query]
    return average_precision(np.flatnonzero(same), int(same.sum()))


def evaluate(dataset: Dataset, index: Index, k: int, options: SearchOptions) -> list[float]:
    values = []
    for query in dataset.queries:
        signatures = dataset.signatures[query][:, :k]
        values.append(value(dataset, query, index.score_words(dataset.words[query][:, :k], signatures, options)))
    return values


def rules(k: int) -> dict[str, SearchOptions]:
    """What is compared."""
    table: dict[str, SearchOptions] = {}
    for hamming in (None, 24):
        with_he = " + HE" if hamming else ""
        for burstiness in ("none", "intra"):
            with_burst = "" if burstiness == "none" else " + burstiness"
            common: dict[str, Any] = {"hamming": hamming, "burstiness": burstiness}
            for merge in ("b0", "b1", "b2"):
                table[merge + with_he + with_burst] = SearchOptions(merge=merge, **common)
            for line in LINES:
                for merge in ("bayes", "posterior"):
                    table[f"{merge}, b={line[1]}{with_he}{with_burst}"] = SearchOptions(merge=merge, line=line, **common)
            if burstiness == "none":
                for merge in ("bayes", "posterior"):
                    table[f"{merge}, b=0.4, image sets{with_he}"] = SearchOptions(merge=merge, sets="image", **common)
    table["bayes, b=0.4 + HE + burstiness on all"] = SearchOptions(
        merge="bayes", hamming=24, burstiness="intra", burstiness_on="all"
    )
    return table


def interval(values: list[float], scale: float) -> list[float]:
    """95 % bootstrap interval of the mean."""
    rng = np.random.default_rng(0)
    array = np.array(values)
    means = array[rng.integers(len(array), size=(2000, len(array)))].mean(axis=1)
    return [scale * float(x) for x in np.percentile(means, [2.5, 97.5])]


def term2(dataset: Dataset, index: Index) -> dict[str, Any]:
    """Share of the true matches that lie in the intersection, against the cardinality ratio; least squares over bins."""
    ratios, inside, true = [], [], []
    options = SearchOptions(merge="bayes")
    for query in dataset.queries:
        words, bits = dataset.words[query][:, :2], dataset.signatures[query][:, :2]
        counts = count_sets(
            index.engine.segments, index.engine.query(words, None, options), index.engine.statistics, options, map
        )
        union = counts[:, 1:].sum(axis=1)
        matches = np.zeros((len(words), 2))
        for other in np.flatnonzero(dataset.groups == dataset.groups[query]):
            if other == query:
                continue
            equal = words[:, None, :] == dataset.words[other][None, :, :2]
            distance = np.bitwise_count(bits[:, None, :] ^ dataset.signatures[other][None, :, :2])
            near = (equal & (distance < TRUE_DISTANCE)).any(axis=2)
            matches[:, 0] += (near & equal.all(axis=2)).sum(axis=1)
            matches[:, 1] += near.sum(axis=1)
        ratios.append(counts[:, 3] / np.maximum(union, 1))
        inside.append(matches[:, 0])
        true.append(matches[:, 1])
    r, x, n = np.concatenate(ratios), np.concatenate(inside), np.concatenate(true)
    edges = np.arange(0, 1.0001, 0.025)
    place = np.clip(np.digitize(r, edges) - 1, 0, len(edges) - 2)
    kept = n > 0
    weight = np.bincount(place[kept], weights=n[kept], minlength=len(edges) - 1)
    hits = np.bincount(place[kept], weights=x[kept], minlength=len(edges) - 1)
    centre = np.bincount(place[kept], weights=(r * n)[kept], minlength=len(edges) - 1) / np.maximum(weight, 1)
    used = weight >= 20
    share = hits[used] / weight[used]
    a, b = np.polyfit(centre[used], share, 1, w=np.sqrt(weight[used]))
    u = 1 - centre[used]  # a = 1 - b: 1 - share = (1 - b)(1 - r)
    b_tied = 1 - float((weight[used] * u * (1 - share)).sum() / (weight[used] * u * u).sum())
    return {"free": [float(a), float(b)], "tied": [1 - b_tied, b_tied], "true_matches": float(n.sum()),
            "ratio": centre[used].tolist(), "share": share.tolist(), "weight": weight[used].tolist()}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--holidays", type=Path)
    parser.add_argument("--ukbench", type=Path)
    arguments = parser.parse_args()
    quantiser = Quantiser(default_vocabularies())
    result: dict[str, Any] = {"vocabularies": [v.fingerprint for v in quantiser.vocabularies], "sets": {}}
    for name in ("holidays", "ukbench"):
        folder = getattr(arguments, name)
        if folder is None:
            continue
        dataset = read(name, folder, quantiser)
        scale = 100.0 if dataset.measure == "mAP" else 1.0
        entry: dict[str, Any] = {"images": len(dataset.words), "queries": len(dataset.queries), "measure": dataset.measure,
                                 "features": sum(map(len, dataset.words))}  # fmt: skip
        for k in (2, 3):
            words = [words[:, :k] for words in dataset.words]
            index = Index.from_words(words, (20_000,) * k, [bits[:, :k] for bits in dataset.signatures])
            if k == 2:
                entry["term2"] = term2(dataset, index)
                print(name, "term 2", entry["term2"]["free"], entry["term2"]["tied"], flush=True)
            rows = entry[f"K={k}"] = {}
            for rule, options in rules(k).items():
                begin = time.perf_counter()
                values = evaluate(dataset, index, k, options)
                seconds = (time.perf_counter() - begin) / len(values)
                mean = scale * float(np.mean(values))
                rows[rule] = {
                    "value": mean,
                    "interval": interval(values, scale),
                    "seconds_per_query": seconds,
                    "queries": values,
                }
                print(f"{name} K={k} {rule:45s} {mean:7.3f}  {1000 * seconds:6.1f} ms", flush=True)
        result["sets"][name] = entry
    print(write_result("accuracy", result))


if __name__ == "__main__":
    main()
