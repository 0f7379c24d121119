"""The front of accuracy against time and bytes: kinds of features, each alone, joined, and fused with a global embedding.

    python benchmarks/front.py DATA --train PHOTOGRAPHS --xfeat xfeat.onnx --work FOLDER [--embedding FILE] [--quick]

DATA holds the folders holidays* and ukbench*, which lie in one collection. Every kind has a vocabulary of equal size, trained on the
same photographs in the same way; pyramids of one network share one. Tables of weights, probabilities and shares are fitted on the other set. Queries are
as in `several.py`. Times are processor time of one thread for the features of a photograph and for a search, medians: other
programs may run beside. What is done is kept in the work folder. Hessian-affine regions need pyhesaff.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from learned import Plan
from machine import write_result
from polyvoc.errors import ImageError
from polyvoc.experiments.datasets.hessian_affine import HessianAffine, extract_hessian_affine, has_pyhesaff
from polyvoc.experiments.fit.code_table import NOT_COUNTED, RELATED, UNRELATED, fit_code_table, tally_query
from polyvoc.experiments.measures import bootstrap, difference
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.report.plots import save_svg
from polyvoc.features.embedding import Embedder
from polyvoc.features.extract import extract_many, root_sift
from polyvoc.features.learned import resolved
from polyvoc.index.writer import IndexWriter
from polyvoc.options import CODE_ASSIGNMENTS, CODE_CUT, FeatureOptions, TrainOptions
from polyvoc.search.fuse import fuse, score_of_cosines
from polyvoc.search.index import Index
from polyvoc.types import CodeTable, Features, Floats32
from polyvoc.vocabulary.train import train
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet
from several import SETS, Question, Trial, as_dict, average_precision, kept, questions, report, top_four

PYRAMIDS = {"xfeat": [1.0], "xfeat, 2 scales": [1.0, 0.5]}
JOINED = (("sift", "xfeat"), ("sift", "xfeat, 2 scales"), ("sift", "orb"))
FUSED = "sift"  # with the embedding
TIMED = 8  # photographs
MEASURES = {"holidays": "Holidays, mAP", "ukbench": "Ukbench, N-S"}
PLOT = Path(__file__).parent.parent / "docs" / "front.svg"
Extracted = Iterator[tuple[Path, Features | ImageError]]


FULL = Plan(photographs=600, descriptors=600_000, words=8192, rounds=5, questions=150)
QUICK = Plan(photographs=60, descriptors=60_000, words=2048, rounds=2, questions=10)


@dataclass(frozen=True)
class Way:
    """A kind of features: how they are extracted, and the name of the vocabulary, which several may share."""

    name: str
    extract: Callable[[Sequence[Path], int | None], Extracted]
    vocabulary: str


def ways(xfeat: Path, work: Path) -> list[Way]:
    """Return every kind. Each pyramid is a copy of the network with another description."""
    found = [Way(name, partial(_detected, FeatureOptions(detector=name)), name) for name in ("sift", "orb")]
    for name, scales in PYRAMIDS.items():
        copy = work / "networks" / name.replace(", ", "-").replace(" ", "-") / xfeat.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(xfeat, copy)
        described = json.loads(xfeat.with_suffix(".json").read_text(encoding="utf-8"))
        copy.with_suffix(".json").write_text(json.dumps({**described, "scales": scales}), encoding="utf-8")
        found.append(Way(name, partial(_detected, resolved(FeatureOptions(detector=str(copy)))), "xfeat"))
    return found + ([Way("hessian-affine", _regions, "hessian-affine")] if has_pyhesaff() else [])


def _detected(options: FeatureOptions, paths: Sequence[Path], threads: int | None) -> Extracted:
    yield from extract_many(paths, options, threads)


def _regions(paths: Sequence[Path], threads: int | None) -> Extracted:
    """Yield Hessian-affine regions, as many as other detectors return, the largest."""
    options, most = HessianAffine(), FeatureOptions().max_features
    for path, one in extract_hessian_affine(paths, options, threads):
        if isinstance(one, ImageError) or not len(one.xy):
            yield path, one if isinstance(one, ImageError) else ImageError(f"{path}: no regions")
            continue
        best = np.argsort(-one.scale, kind="stable")[:most]
        described = root_sift(one.descriptors[best])
        width, height = (int(side) + 1 for side in one.xy.max(axis=0))
        yield path, Features(one.xy[best], one.scale[best], one.angle[best], described, width, height, options.kind.name)


def trained(way: Way, paths: Sequence[Path], plan: Plan, work: Path) -> Vocabulary:
    """Return the vocabulary of a kind; train it if it is missing. Of each photograph as many descriptors are drawn."""
    folder = work / f"words {way.vocabulary}"
    if not folder.is_dir():
        random, rows, each, name = np.random.default_rng(0), [], plan.descriptors // len(paths), ""
        for _, one in way.extract(paths, None):
            if isinstance(one, Features):
                rows.append(random.permutation(one.descriptors)[:each])
                name = one.name
        options = TrainOptions(size=plan.words, rounds=plan.rounds, max_descriptors=plan.descriptors)
        train(np.concatenate(rows), options, source="Flickr8k", name=name).save(folder)
        print("trained", way.vocabulary, flush=True)
    return Vocabulary.load(folder)


def index_of(way: Way, images: Sequence[Path], words: Vocabulary, work: Path) -> Index:
    """Return the index of photographs with one kind of features; make it if it is missing."""
    path = work / f"{way.name}.polyvoc"
    if not path.is_dir():
        with IndexWriter.open(work / "making.polyvoc", VocabularySet((), words)) as writer:
            for file, one in way.extract(images, None):
                if isinstance(one, Features):
                    writer.add(str(file), one)
        (work / "making.polyvoc").rename(path)
        print("indexed", way.name, flush=True)
    return Index.open(path)


def fitted_table(index: Index, asked: Sequence[Question], of_set: frozenset[str], name: str) -> CodeTable:
    """Return the table of weights by the questions of a set, among its photographs."""
    coder, paths = index.coder, {row.image: row.path for row in index}
    images, counts = {path: image for image, path in paths.items()}, []
    assert coder is not None
    for one in (one for one in asked if one.path in images):
        kinds = [np.array([_relation(paths[int(image)], one, of_set) for image in segment.ids])
                 for segment in index.engine.segments]  # fmt: skip
        (stored,) = index.engine.image_features([index.find(images[one.path])])
        assert stored.codes is not None
        query = coder.query_stored(stored.codes, CODE_ASSIGNMENTS, CODE_CUT)
        counts.append(tally_query(index.engine.segments, query, kinds))
    return fit_code_table(np.sum(counts, axis=0), name)


def _relation(path: str, asked: Question, of_set: frozenset[str]) -> int:
    if path == asked.path or path not in of_set:
        return NOT_COUNTED
    return RELATED if path in asked.relevant else UNRELATED


def costs(way: Way, index: Index, images: Sequence[Path], table: CodeTable) -> dict[str, float]:
    """Return the processor time of one thread for the features of a photograph and for a search, and the bytes that are stored."""
    chosen = images[:: max(len(images) // TIMED, 1)][:TIMED]
    by_path, spent, searching = {row.path: row for row in index}, [], []
    options = replace(index.default_options, code_table=table)
    for path in [chosen[0], *chosen]:  # the first one twice: compiling is not timed
        begin = time.process_time()
        list(way.extract([path], 1))
        spent.append(1000 * (time.process_time() - begin))
        if (row := by_path.get(str(path))) is not None:
            begin = time.process_time()
            index.search(row.image, options, threads=1)
            searching.append(1000 * (time.process_time() - begin))
    size = sum(file.stat().st_size for file in (index.folder.path / "segments").rglob("*") if file.is_file())
    return {
        "features": sum(row.n_features for row in by_path.values()) / len(by_path),
        "extract_ms": float(np.median(spent[1:])),
        "search_ms": float(np.median(searching[1:])),
        "bytes": size / len(by_path),
    }


@dataclass(frozen=True, eq=False)
class Embedded:
    """A vector for every photograph."""

    rows: dict[str, int]
    vectors: Floats32  # [n, d]
    extract_ms: float

    @classmethod
    def of(cls, model: Path, images: Sequence[Path], work: Path) -> Embedded:
        """Take those of an ONNX file."""
        embedder = Embedder.load(model)
        vectors = kept(work / "vectors.pkl", lambda: np.stack([embedder.embed(str(path)) for path in images]))
        spent = []
        for path in [images[0], *images[:: max(len(images) // TIMED, 1)][:TIMED]]:
            begin = time.process_time()
            embedder.embed(str(path))
            spent.append(1000 * (time.process_time() - begin))
        return cls({str(path): row for row, path in enumerate(images)}, vectors, float(np.median(spent[1:])))

    def values(self, trial: Trial, kind: int, name: str) -> tuple[list[float], list[int]]:
        """Return the measure of each answerable question, by the scores of a kind fused with the vectors, and its group."""
        values, groups, paths = [], [], np.array(list(self.rows))
        for asked, answerable, found in trial.found[name, ""]:
            if not answerable:
                continue
            local = np.zeros(len(paths))
            one = found[kind]
            for candidate in () if one is None else one.final:
                local[self.rows[trial.path_of[kind][candidate.image]]] = candidate.score
            near = score_of_cosines(self.vectors @ self.vectors[self.rows[asked.path]])
            others = np.arange(len(paths)) != self.rows[asked.path]
            ranking = paths[others][np.argsort(-fuse(local[others], near[others]), kind="stable")].tolist()
            values.append((top_four if name == "ukbench" else average_precision)(ranking, asked.relevant))
            groups.append(asked.group)
        return values, groups


def measure(trial: Trial, embedded: Embedded | None, spent: dict[str, dict[str, float]]) -> list[dict[str, Any]]:
    """Return every way with its costs and its results on both sets: the differences to SIFT, and of joined ones to the better part."""
    number = {name: at for at, name in enumerate(trial.kinds)}
    points = [(name, (name,)) for name in trial.kinds]
    points += [(" + ".join(names), names) for names in JOINED if set(names) <= set(number)]
    found: dict[str, dict[str, Any]] = {name: {"name": name, "kinds": list(names), "sets": {}} for name, names in points}
    for name in SETS:
        values: dict[str, list[float]] = {}
        groups: list[int] = []
        other = tuple(one for one in SETS if one != name)
        for way, names in points:
            chosen = tuple(number[one] for one in names)
            one = report(trial, name, "", chosen, trial.models(other, chosen))
            values[way], groups = one.pop("values"), one.pop("groups")
            found[way]["sets"][name] = one
        if embedded is not None:
            way = f"{FUSED} + embedding"
            found.setdefault(way, {"name": way, "kinds": [FUSED], "sets": {}})["sets"][name] = {}
            values[way], groups = embedded.values(trial, number[FUSED], name)
        for way, entry in found.items():
            against = {"sift": values["sift"]} | {one: values[one] for one in entry["kinds"] if len(entry["kinds"]) > 1}
            gains = {one: as_dict(difference(values[way], base, groups)) for one, base in against.items() if one != way}
            entry["sets"][name] |= {"value": as_dict(bootstrap(values[way], groups)), "gains": gains}
            print(name, way, {key: round(x, 3) for key, x in entry["sets"][name]["value"].items()}, gains, flush=True)
    for entry in found.values():
        parts = [spent[name] for name in entry["kinds"]]
        entry["costs"] = {key: sum(part[key] for part in parts) for key in parts[0]}
        if embedded is not None and "embedding" in entry["name"]:
            entry["costs"]["extract_ms"] += embedded.extract_ms
            entry["costs"]["bytes"] += 2 * embedded.vectors.shape[1]  # as an index stores them
    return list(found.values())


def plot(points: Sequence[dict[str, Any]]) -> Figure:
    """Return a figure of both measures against milliseconds of a query and kilobytes of a photograph; what is best for its cost is joined by a line."""
    panels = []
    for name, measure in MEASURES.items():
        for unit, cost in (
            ("milliseconds of one thread per query: features and search", _milliseconds),
            ("KB per photograph", _kilobytes),
        ):
            marks = [(cost(point), point["sets"][name]["value"]["mean"], point["name"]) for point in points]
            best = [one for one in sorted(marks) if all(one[1] > other[1] for other in marks if other < one)]
            x, y, _ = zip(*best, strict=True)
            series = [Series("best for its cost", x, y, style="paper")]
            x, y, names = zip(*marks, strict=True)
            series.append(Series("every way", x, y, style="points", labels=names))
            panels.append(Panel(unit, measure, series))
    return Figure("Accuracy against time and bytes, vocabularies of equal size and training", panels)


def _milliseconds(point: dict[str, Any]) -> float:
    return float(point["costs"]["extract_ms"] + point["costs"]["search_ms"])


def _kilobytes(point: dict[str, Any]) -> float:
    return float(point["costs"]["bytes"] / 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    for name in ("train", "xfeat", "work"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--embedding", type=Path, help="ONNX file of a global embedding")
    parser.add_argument("--only", nargs="*", help="kinds; default: all")
    parser.add_argument("--quick", action="store_true", help="few questions and small vocabularies; nothing is written")
    arguments = parser.parse_args()
    plan, work = (QUICK, arguments.work / "quick") if arguments.quick else (FULL, arguments.work / "full")
    work.mkdir(parents=True, exist_ok=True)
    folders = {name: next(arguments.data.glob(f"{name}*")) for name in SETS}
    of_set = {name: frozenset(map(str, sorted(folder.glob("*.jpg")))) for name, folder in folders.items()}
    images = [Path(path) for name in SETS for path in sorted(of_set[name])]
    paths = sorted(arguments.train.glob("*.jpg"))
    paths = paths[:: max(len(paths) // plan.photographs, 1)][: plan.photographs]
    asked = {name: questions(arguments.data, name, plan.questions) for name in SETS}
    chosen = [way for way in ways(arguments.xfeat, work) if arguments.only is None or way.name in arguments.only]
    indexes = {way.name: index_of(way, images, trained(way, paths, plan, work), work) for way in chosen}
    tables = {}
    for way in chosen:
        for name in SETS:
            (other,) = (one for one in SETS if one != name)
            tables[way.name, name] = fitted_table(indexes[way.name], asked[other], of_set[other], other)
    spent = {way.name: costs(way, indexes[way.name], images, tables[way.name, SETS[0]]) for way in chosen}
    print(json.dumps(spent, indent=1), flush=True)
    trial = Trial(indexes, asked, work, tables=tables)
    embedded = Embedded.of(arguments.embedding, images, work) if arguments.embedding else None
    points = measure(trial, embedded, spent)
    if not arguments.quick:
        counts = {name: len(trial.found[name, ""]) // 2 for name in SETS}
        print(write_result("front", {"plan": vars(plan), "images": len(images), "questions": counts, "points": points}))
        save_svg(plot(points), PLOT)


if __name__ == "__main__":
    main()
