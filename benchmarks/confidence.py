"""Fit the probability of hits, and measure its calibration on photographs that it was not fitted on.

    python benchmarks/confidence.py DATA --distractors PHOTOGRAPHS [--questions 150] [--cache FOLDER] [--save]

DATA holds the folders holidays*, ukbench* and photos*. Their groups lie side by side in one collection, among none, 1,200 and all
distractors; also in a collection of their first 100 photographs. Every photograph of a group is a query. `--save` writes the model that
comes with polyvoc, fitted on both sets; the results of each set are those of a model, and of a likelihood table, fitted on the other.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

from machine import write_result
from polyvoc.experiments.cache import default_cache, digest_of
from polyvoc.experiments.datasets.readers import READERS, Dataset, Question, first_questions, list_images
from polyvoc.experiments.fit.code_table import fit_code_table, tally_dataset
from polyvoc.experiments.fit.hit_probability import (
    Samples,
    collect,
    fit_hit_probability,
    measure_calibration,
    nothing_found,
    predicted,
    reliability_figure,
)
from polyvoc.experiments.measures import Truth
from polyvoc.experiments.report.figures import Figure
from polyvoc.experiments.report.plots import save_svg
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.options import SearchOptions, preset
from polyvoc.search.probability import HitProbability
from polyvoc.types import CodeTable
from polyvoc.vocabulary.vocabulary import default_fine_vocabulary

SETS = ("holidays", "ukbench")
SMALL = 100  # photographs of the smallest collection
FITTED = 60  # queries that a likelihood table is fitted on
WORDS = (3, 5, 20)  # that a query feature visits, beside the usual 10
BITS = 128
ROOT = Path(__file__).parent.parent
TABLE, PLOT = ROOT / "src" / "polyvoc" / "data" / "hit_probability.json", ROOT / "docs" / "confidence.svg"


def collection(data: Path, distractors: Sequence[Path]) -> Dataset:
    """Return the groups of both sets in turn, then the distractors; every photograph of a group is a query."""
    groups = []
    for name in SETS:
        read = READERS[name](next(data.glob(f"{name}*")))
        members = {q.group: sorted(t.relevant | {q.image or 0}) for q, t in zip(read.questions, read.truths[""], strict=True)}
        groups.append([(f"{name} {group}", [read.images[i] for i in own]) for group, own in members.items()])
    images: list[Path] = []
    questions, truths = [], []
    for group, paths in (one for pair in zip_longest(*groups) for one in pair if one is not None):
        numbers = frozenset(range(len(images), len(images) + len(paths)))
        images += paths
        questions += [Question(images[i].stem, images[i], i, group=group) for i in sorted(numbers)]
        truths += [Truth(numbers - {i}, frozenset({i})) for i in sorted(numbers)]
    return Dataset("both", data, "photographs", (*images, *distractors), tuple(questions), {"": tuple(truths)}, "mAP")


def part(bench: QuantisedDataset, name: str, images: int, questions: int) -> QuantisedDataset:
    """Return the first images of a collection with queries of one set, evenly spread."""
    whole = bench.dataset
    kept = [i for i, (q, t) in enumerate(zip(whole.questions, whole.truths[""], strict=True))
            if q.group.startswith(name) and max(t.relevant) < images]  # fmt: skip
    chosen = replace(whole, name=f"{name} among {images}", images=whole.images[:images], questions=tuple(whole.questions[i] for i in kept),
                     truths={"": tuple(whole.truths[""][i] for i in kept)})  # fmt: skip
    return replace(bench, dataset=first_questions(chosen, questions), name=digest_of(bench.name, name, images, questions))


def code_table(bench: QuantisedDataset, name: str, images: int) -> CodeTable:
    """Fit a likelihood table on one of the sets."""
    return fit_code_table(tally_dataset(part(bench, name, images, FITTED)), source=name)


def report(model: HitProbability, samples: Samples) -> dict[str, Any]:
    """Return the calibration of hits by words and of verified hits, all of them and the first of each search."""
    entries = {}
    for name, some in (("words", samples.by_words), ("verified", samples.verified)):
        chances = predicted(model, some)
        first = some.rank == 0
        entries[name] = {
            "all": measure_calibration(chances, some).as_dict(),
            "first": measure_calibration(chances[first], some.first).as_dict(),
            "sure": nothing_found(chances, some),
        }
    return entries


def by_size(model: HitProbability, samples: dict[int, Samples]) -> dict[str, Any]:
    """Return the reports of all collections together, and of each by its size."""
    sizes = {str(size): report(model, one) for size, one in samples.items()}
    return {"all": report(model, Samples.joined(list(samples.values()))), "sizes": sizes}


def gather(
    bench: QuantisedDataset, sizes: Sequence[int], tables: dict[str, CodeTable], questions: int
) -> dict[str, dict[int, Samples]]:
    """Search for the queries of each set in collections of each size, with a likelihood table of the other set."""
    samples: dict[str, dict[int, Samples]] = {name: {} for name in SETS}
    for size in sizes:
        engine = part(bench, "", size, questions).engine
        for name in SETS:
            queries = part(bench, name, size, questions)
            options = replace(preset("default", 0, BITS), code_table=tables[name])
            samples[name][size] = collect(queries, options, engine=engine)
            print(name, size, len(samples[name][size]), "hits", flush=True)
    return samples


def variants(bench: QuantisedDataset, size: int, fitted: dict[str, HitProbability], questions: int) -> dict[str, Any]:
    """Return the calibration with another preset, and with other numbers of words, of the model fitted to the default."""
    ways: dict[str, SearchOptions] = {"best": preset("best", 0, BITS)}
    for words in WORDS:
        ways[f"{words} words"] = replace(preset("default", 0, BITS), assignments=words)
    reports: dict[str, Any] = {}
    engine = part(bench, "", size, questions).engine
    for way, options in ways.items():
        reports[way] = {}
        for name, other in zip(SETS, reversed(SETS), strict=True):
            samples = collect(part(bench, name, size, questions), options, engine=engine, model=fitted[other])
            reports[way][name] = report(fitted[other], samples)
            print(way, name, reports[way][name]["verified"]["all"]["error"], flush=True)
    return reports


def plot(crossed: dict[str, HitProbability], samples: dict[str, dict[int, Samples]]) -> Figure:
    """Draw the crossed reliability of each set, hits by words and verified."""
    judged = {}
    for name, model in crossed.items():
        every = Samples.joined(list(samples[name].values()))
        kinds = {"by words alone": every.by_words, "verified": every.verified}
        judged[f"{name}, fitted on the other set"] = {
            kind: measure_calibration(predicted(model, some), some) for kind, some in kinds.items()
        }
    note = "The ten best hits of each search; half of the searches have no right answer to find. Points: tenths of the probability."
    return reliability_figure(judged, "Predicted probability of a hit, and the share that is right", note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--distractors", type=Path, required=True)
    parser.add_argument("--questions", type=int, default=150, help="of each set, at most")
    parser.add_argument("--photographs", type=int, help="of the largest collection; all unless given")
    parser.add_argument("--cache", type=Path, default=default_cache())
    parser.add_argument("--save", action="store_true")
    arguments = parser.parse_args()
    near = list_images(next(arguments.data.glob("photos*")))
    whole = collection(arguments.data, [*near, *list_images(arguments.distractors)])
    whole = replace(whole, images=whole.images[: arguments.photographs])
    bench = Workbench(arguments.cache).bench(whole, (), default_fine_vocabulary())
    own = min(len(whole.questions), len(whole.images))  # every photograph of a group is a query
    sizes = sorted({SMALL, own, min(own + len(near), len(whole.images)), len(whole.images)})
    tables = {name: code_table(bench, name, own) for name in SETS}
    others = dict(zip(SETS, reversed(SETS), strict=True))
    samples = gather(bench, sizes, {name: tables[others[name]] for name in SETS}, arguments.questions)
    fitted = {name: fit_hit_probability(Samples.joined(list(samples[name].values())), name) for name in SETS}
    source = f"{' and '.join(SETS)} ({arguments.questions} questions each, with and without right answers), {sizes[0]:,} to {sizes[-1]:,} photographs"
    both = fit_hit_probability(Samples.joined([one for name in SETS for one in samples[name].values()]), source)
    crossed = {name: fitted[others[name]] for name in SETS}
    result = {
        "questions": f"{arguments.questions} of each set",
        "words": "codes of 128 bits, 65,536 words",
        "evidence": "the likelihood table was fitted on the other set, too",
        "sizes": sizes,
        "table": both.as_dict(),
        "fitted": {name: one.as_dict() for name, one in fitted.items()},
        "crossed": {name: by_size(crossed[name], samples[name]) for name in SETS},
        "variants": variants(bench, sizes[min(2, len(sizes) - 1)], fitted, arguments.questions // 3),
    }
    if arguments.save:
        TABLE.write_text(json.dumps(both.as_dict(), indent=1) + "\n", encoding="utf-8")
    save_svg(plot(crossed, samples), PLOT)
    print(write_result("confidence", result))


if __name__ == "__main__":
    main()
