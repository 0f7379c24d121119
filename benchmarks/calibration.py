"""Term 2 and likelihood tables fitted with and without labels, and how reliable verified pairs are.

    python benchmarks/calibration.py --holidays FOLDER --ukbench FOLDER --others FOLDER --work FOLDER

Fits lines (sets of features, sets of images) and table on each labelled set and tests them on the other; then fits them without labels on an index of each, and the lines
of all together; then verifies the best hits of every photograph and counts right and wrong pairs by their inliers. OTHERS: photographs
without right answers. WORK: a folder for the indexes, of words and signatures of the three shipped vocabularies, without codes.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from machine import write_result
from polyvoc.experiments.cache import default_cache
from polyvoc.experiments.datasets.readers import READERS, Dataset
from polyvoc.experiments.fit.likelihood import fit_table, fit_table_pairs, tally_groups, together
from polyvoc.experiments.fit.line import fit_line, fit_lines, fit_lines_pairs, measure_line
from polyvoc.experiments.fit.reliability import reliability
from polyvoc.experiments.fit.true_matches import Sampling, find_pairs, observe
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.search.verify import WordVerification, default_match_table, inlier_pairs
from polyvoc.vocabulary.vocabulary import VocabularySet, default_vocabularies

CANDIDATES = 20
THRESHOLDS = (6, 8, 10, 12, 16, 20)


def labels_of(dataset: Dataset) -> dict[str, str]:
    """Return the group of each photograph, by its path."""
    labels = {}
    for question, truth in zip(dataset.questions, dataset.truths[""], strict=True):
        numbers = truth.relevant if question.image is None else truth.relevant | {question.image}
        for number in numbers:
            labels[str(dataset.images[number].absolute())] = f"{dataset.name} {question.group}"
    return labels


def index_of(folders: list[Path], path: Path) -> Index:
    vocabularies = VocabularySet.of(default_vocabularies(3), signed=True, codes=False)
    with IndexWriter.open(path, vocabularies) as writer:
        writer.update(folders)
    return Index.open(path)


def pairs_by_inliers(index: Index, labels_by_path: dict[str, str]) -> dict[str, Any]:
    """Verify the best hits of every photograph of a labelled set; count right and wrong pairs by inliers."""
    paths = {row.image: row.path for row in index.images()}
    refs = {int(s.ids[p]): (n, int(p)) for n, s in enumerate(index.engine.segments) for p in s.live_positions()}
    images = {image: index.engine.segments[n].image_features(p) for image, (n, p) in refs.items()}
    right: Counter[int] = Counter()
    wrong: Counter[int] = Counter()
    options = replace(index.preset("fast"), top=CANDIDATES + 1)
    table = default_match_table(len(index.engine.sizes), index.engine.bits)
    seconds = 0.0
    for image, query in images.items():
        prepared = WordVerification.of(query, table)
        for hit in index.search(image, options):
            if hit.image == image:
                continue
            number, position = refs[hit.image]
            begin = time.perf_counter()
            inliers = len(inlier_pairs(prepared, index.engine.segments[number], position))
            seconds += time.perf_counter() - begin
            pair = {labels_by_path.get(paths[image], f"{image}"), labels_by_path.get(paths[hit.image], f"{hit.image}")}
            (right if len(pair) == 1 else wrong)[inliers] += 1
    total = right.total() + wrong.total()
    kept = {str(t): [sum(n for count, n in of.items() if count >= t) for of in (right, wrong)] for t in THRESHOLDS}
    return {"pairs": [right.total(), wrong.total()], "right_and_wrong_from": kept, "verify_seconds_mean": seconds / total}


def likelihood_tables(benches: dict[str, QuantisedDataset], indexes: dict[str, Index]) -> dict[str, Any]:
    """Return the errors in nats of tables fitted with and without labels, on the labelled matches of both sets."""
    counted = {name: tally_groups(bench) for name, bench in benches.items()}
    tables = {f"{name}, labelled": fit_table(together(tallies)) for name, tallies in counted.items()}
    for name in benches:
        tables[f"{name}, verified pairs"] = fit_table_pairs(indexes[name], find_pairs(indexes[name]))
    return {
        how: {
            "rows": table.rows,
            **{f"error on {name}": reliability(table, tallies).error for name, tallies in counted.items()},
        }
        for how, table in tables.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("holidays", "ukbench", "others", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=default_cache())
    arguments = parser.parse_args()
    workbench = Workbench(arguments.cache)
    vocabularies = default_vocabularies(3)
    sets = {name: READERS[name](getattr(arguments, name)) for name in ("holidays", "ukbench")}
    benches = {name: workbench.bench(dataset, vocabularies) for name, dataset in sets.items()}
    fits = {name: fit_lines(bench) for name, bench in benches.items()}
    result: dict[str, Any] = {
        "vocabularies": [v.fingerprint for v in vocabularies],
        "labelled": {},
        "tested": {},
        "unlabelled": {},
    }
    for name, kinds in fits.items():
        other = next(key for key in fits if key != name)
        for kind, fit in kinds.items():
            of = f"{name}, {kind} sets"
            result["labelled"][of] = fit.as_dict()
            with_query = fit_line(observe(benches[name].first(2), with_query=True, sets=kind))
            result["labelled"][f"{of}, query in the lists"] = with_query.as_dict()
            result["labelled"][f"{of}, all three lists"] = fit_line(observe(benches[name], sets=kind)).as_dict()
            for form in ("free", "tied", "curve"):
                tested = measure_line(getattr(fit, form), fits[other][kind].observations)
                result["tested"][f"{form} of {of} on {other}"] = tested.as_dict()
    folders = {name: [getattr(arguments, name)] for name in sets}
    indexes = {}
    for name, of_index in {**folders, "all": [*(f[0] for f in folders.values()), arguments.others]}.items():
        indexes[name] = index = index_of(of_index, arguments.work / f"{name}.polyvoc")
        begin = time.perf_counter()
        lines = fit_lines_pairs(index, find_pairs(index, Sampling()))
        plain: dict[str, Any] = {kind: fit.as_dict() for kind, fit in lines.items()}
        result["unlabelled"][name] = {**plain, "seconds": time.perf_counter() - begin, "images": len(index)}
        print(name, {kind: (fit.free, fit.tied, fit.curve) for kind, fit in lines.items()}, flush=True)
    result["likelihood_tables"] = likelihood_tables(benches, indexes)
    labels_by_path = {path: label for dataset in sets.values() for path, label in labels_of(dataset).items()}
    result["geometry"] = pairs_by_inliers(index, labels_by_path)
    print(result["geometry"], result["tested"], write_result("calibration", result))


if __name__ == "__main__":
    main()
