"""The limits of the search by codes: words that a query feature visits, their distance, early rejection, length of a code.

    python benchmarks/limits.py DATA [--cache FOLDER]

DATA holds the folders holidays150, ukbench500 and photos1200. One limit at a time departs from the usual setting. Every photograph of a
group is a query, without geometry, and the 1,200 other photographs lie among them; tables are fitted on the other set, anew for each
setting. Each value is given for the groups with even and with odd numbers: the usual setting was chosen by the former. Differences are to
the usual setting, with 95 % intervals (bootstrap over groups). Milliseconds are of scoring on one thread.
"""

from __future__ import annotations

import argparse
import statistics as st
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from codes import SETS, all_queries
from machine import write_result
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.readers import READERS, Dataset
from polyvoc.experiments.evaluate import gain, mean_of
from polyvoc.experiments.fit import code_table
from polyvoc.experiments.measures import MEASURES, rank
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.index.segment import Segment
from polyvoc.options import CODE_ASSIGNMENTS, CODE_CUT
from polyvoc.scoring.codes import score_codes, weigh_codes
from polyvoc.threads import thread_map
from polyvoc.types import CodeTable
from polyvoc.vocabulary.codes import CodedQuery
from polyvoc.vocabulary.vocabulary import default_fine_vocabulary

MOST_WORDS, FARTHEST = 20, 1.4
EDGES = (*code_table.EDGES, 1.2, 1.3)


@dataclass(frozen=True)
class Setting:
    words: int = CODE_ASSIGNMENTS
    cut: float = CODE_CUT
    reach: int = 52  # of 128 bits
    bits: int = 128


USUAL = Setting()
SETTINGS = (
    *(replace(USUAL, words=words) for words in (1, 2, 3, 5, 7, 10, 15, 20)),
    *(replace(USUAL, cut=cut) for cut in (1.1, 1.15, 1.3, 1.4)),
    *(replace(USUAL, reach=reach) for reach in (40, 44, 48, 56)),
    replace(USUAL, bits=64),
)


def narrowed(query: CodedQuery, setting: Setting) -> CodedQuery:
    """Return a query of many words within the limits of a setting."""
    words, ratios = query.words[:, : setting.words].copy(), query.ratios[:, : setting.words]
    words[ratios > setting.cut] = -1
    magnitudes = query.magnitudes.reshape(*query.words.shape, query.magnitudes.shape[1])[:, : setting.words, : setting.bits]
    codes = np.ascontiguousarray(query.codes[:, : setting.words, : setting.bits // 64])
    flat = np.ascontiguousarray(magnitudes).reshape(words.size, setting.bits)
    return CodedQuery(words, np.ascontiguousarray(ratios), codes, flat, magnitudes.sum(axis=2, dtype=np.int64))


def shortened(segment: Segment, setting: Setting) -> Segment:
    """Return a segment with the first bits of its codes."""
    return replace(segment, arrays={**segment.arrays, "codes": segment.arrays["codes"][: setting.bits // 64]})


def fit(bench: QuantisedDataset, queries: list[CodedQuery], setting: Setting) -> CodeTable:
    """Fit a table to all queries of a dataset."""
    dataset, (segment,) = bench.dataset, bench.engine.segments
    code_table.EDGES, code_table.REACH = EDGES[: np.searchsorted(EDGES, setting.cut)], setting.reach / 128

    def tally(number: int) -> np.ndarray:
        kinds = np.full(bench.n_images, code_table.UNRELATED)
        truth = dataset.truths[""][number]
        kinds[sorted(truth.relevant)] = code_table.RELATED
        kinds[sorted(truth.junk)] = code_table.NOT_COUNTED
        return code_table.tally_query([shortened(segment, setting)], narrowed(queries[number], setting), [kinds])

    return code_table.fit_code_table(np.sum(thread_map(tally, range(len(queries))), axis=0))


def measure(
    bench: QuantisedDataset, queries: list[CodedQuery], setting: Setting, table: CodeTable
) -> tuple[list[float], float]:
    """Return the measure of every question, and the median of the milliseconds of scoring."""
    judge, (segment,) = MEASURES[bench.dataset.measure], bench.engine.segments

    def one(number: int) -> tuple[float, float]:
        query = narrowed(queries[number], setting)
        weights = weigh_codes(query, bench.engine.statistics, table, 1)
        begin = time.thread_time()
        scores = score_codes(shortened(segment, setting), query, weights)
        seconds = time.thread_time() - begin
        return float(judge(rank(scores), bench.dataset.truths[""][number]) or 0.0), seconds

    found = thread_map(one, range(len(queries)))
    return [value for value, _ in found], 1000 * st.median(seconds for _, seconds in found)


def halves(dataset: Dataset) -> dict[str, list[int]]:
    """Return the questions of the even and of the odd groups."""
    numbers = {group: number for number, group in enumerate(sorted({q.group or q.name for q in dataset.questions}))}
    parity = [numbers[q.group or q.name] % 2 for q in dataset.questions]
    return {name: [i for i, one in enumerate(parity) if one == part] for part, name in enumerate(("even", "odd"))}


def entry(dataset: Dataset, values: list[float], base: list[float]) -> dict[str, Any]:
    """Return mean and difference of a measure, on each half of the groups and on all."""
    scale, result = MEASURES[dataset.measure].scale, {}
    for name, chosen in {**halves(dataset), "all": list(range(len(values)))}.items():
        part = replace(dataset, questions=tuple(dataset.questions[i] for i in chosen),
                       truths={"": tuple(dataset.truths[""][i] for i in chosen)})  # fmt: skip
        own, usual = [values[i] for i in chosen], [base[i] for i in chosen]
        both = {"value": mean_of(part, own), "difference": gain(part, own, usual)}
        result[name] = {key: {k: scale * v for k, v in asdict(one).items()} for key, one in both.items()}
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--cache", type=Path, default=default_cache())
    arguments = parser.parse_args()
    workbench, fine = Workbench(arguments.cache), default_fine_vocabulary()
    benches, queries = {}, {}
    for name, folder in SETS.items():
        dataset = all_queries(READERS[name](arguments.data / folder), arguments.data / "photos1200", 1)
        bench = benches[name] = workbench.bench(dataset, (), fine)
        assert bench.coder is not None
        queries[name] = [bench.coder.query(bench.descriptors(i), MOST_WORDS, FARTHEST) for i in range(len(dataset.questions))]
    result: dict[str, Any] = {"sets": {name: [] for name in SETS}}
    base: dict[str, list[float]] = {}
    for number, setting in enumerate((USUAL, *SETTINGS)):  # the first values are what the others are compared with
        for name, bench in benches.items():
            other = next(one for one in SETS if one != name)
            values, took = measure(bench, queries[name], setting, fit(benches[other], queries[other], setting))
            base.setdefault(name, values)
            if number == 0:
                continue
            measured = entry(bench.dataset, values, base[name])
            result["sets"][name].append({**asdict(setting), "milliseconds": took, **measured})
            print(
                setting,
                name,
                {part: round(one["value"]["mean"], 3) for part, one in measured.items()},
                round(took, 2),
                flush=True,
            )
    print(write_result("limits", result))


if __name__ == "__main__":
    main()
