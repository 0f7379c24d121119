"""Accuracy against milliseconds and bytes per photograph: detectors of SIFT, long sides, numbers of features.

    python benchmarks/extraction.py --holidays FOLDER --ukbench FOLDER

The questions of both sets, by words and signatures of the three shipped vocabularies and the shipped likelihood table, by the
presets `fast` and `default` without codes;
Holidays also by the middle of each query (half its width and height) as a region of the photograph, and as a file of its own.
Times are of one thread, of all ways in turn on the same photographs; bytes are those of an index.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from machine import write_result
from polyvoc.experiments.datasets.readers import READERS, Dataset
from polyvoc.experiments.measures import MEASURES
from polyvoc.features.decode import read_grey
from polyvoc.features.extract import detect, single_cv2_thread
from polyvoc.index.segment import Batch, Geometry, Segment
from polyvoc.options import FeatureOptions, preset
from polyvoc.scoring.engine import Engine
from polyvoc.search.pipeline import search
from polyvoc.search.query import Query
from polyvoc.threads import count_threads, ordered_map
from polyvoc.types import Features, GreyImage
from polyvoc.vocabulary.assign import Quantiser
from polyvoc.vocabulary.vocabulary import default_vocabularies

TIMED = 24  # photographs of each set
QUERIES = ("fast", "default")
BITS = 128  # of the signatures


@dataclass(frozen=True)
class Way:
    """A way to extract features."""

    name: str
    options: FeatureOptions = FeatureOptions()  # noqa: RUF009 (frozen)
    min_scale: float = 0.0  # smallest diameter of a feature, in pixels of the reduced photograph
    max_repeats: int = 0  # features of one word that an image keeps; 0: all


WAYS = (
    Way("opencv-sift, 1024 pixels, 3000 features", FeatureOptions(detector="opencv-sift")),
    *(Way(f"sift, 1024 pixels, {n} features", FeatureOptions(max_features=n)) for n in (3000, 1500, 1000)),
    *(Way(f"sift, {side} pixels, 3000 features", FeatureOptions(long_side=side)) for side in (640, 768)),
    Way("sift, 1024 pixels, diameter from 4.5", min_scale=4.5),
    Way("sift, 1024 pixels, at most 4 of a word", max_repeats=4),
)


@dataclass(eq=False)
class Extracted:
    """The features of a dataset in one way, and of the middles of its queries as files of their own."""

    images: list[Features] = field(default_factory=list)
    middles: dict[int, Features] = field(default_factory=dict)


def middle(image: GreyImage) -> GreyImage:
    """Return the middle of an image: half its width and height."""
    height, width = image.pixels.shape
    pixels = np.ascontiguousarray(image.pixels[height // 4 : height - height // 4, width // 4 : width - width // 4])
    return GreyImage(pixels, pixels.shape[1], pixels.shape[0])


def filtered(found: Features, way: Way, reduction: float) -> Features:
    kept = found.scale >= way.min_scale * reduction
    arrays = {name: getattr(found, name)[kept] for name in ("xy", "scale", "angle", "descriptors")}
    return Features(**arrays, width=found.width, height=found.height)


def extract_all(dataset: Dataset, way: Way, crops: bool) -> Extracted:
    """Return the features of every photograph of a dataset."""
    side = way.options.long_side
    queries = {question.image for question in dataset.questions} if crops else set()

    def one(number: int) -> tuple[Features, Features | None]:
        grey = read_grey(dataset.images[number], side)
        found = filtered(detect(grey, way.options), way, grey.width / grey.pixels.shape[1])
        crop = middle(read_grey(dataset.images[number], 2 * side)) if number in queries else None
        return found, None if crop is None else filtered(detect(crop, way.options), way, 1.0)

    result = Extracted()
    with single_cv2_thread():
        for number, (found, crop) in ordered_map(one, range(len(dataset.images)), count_threads(), "extract"):
            result.images.append(found)
            if crop is not None:
                result.middles[number] = crop
    return result


class Collection:
    """A dataset, quantised and indexed in memory."""

    def __init__(self, dataset: Dataset, found: Extracted, way: Way, quantiser: Quantiser) -> None:
        self.dataset, self.quantiser, self.way, self.found = dataset, quantiser, way, found
        self.queries = [self.query(one) for one in found.images]
        geometry = [np.column_stack([q.keypoints.xy, q.keypoints.scale, q.keypoints.angle]) for q in self.queries]
        starts = np.concatenate([[0], np.cumsum([len(q.words) for q in self.queries])])
        places = np.concatenate(geometry)
        signatures = np.concatenate([q.signatures for q in self.queries if q.signatures is not None])
        words = np.concatenate([q.words for q in self.queries])
        packed = Geometry.of(places[:, :2], places[:, 2], places[:, 3], starts)
        batch = Batch(np.arange(len(starts) - 1), starts, packed, words, signatures)
        sizes = tuple(vocabulary.size for vocabulary in quantiser.vocabularies)
        segment = Segment.build(batch, sizes)
        self.engine = Engine([segment], sizes)
        self.features = len(words) / len(self.queries)
        self.bytes = sum(array.nbytes for array in segment.arrays.values()) / len(self.queries)

    def query(self, found: Features) -> Query:
        words, signatures = self.quantiser.quantise(found.descriptors)
        keep = slice(None)
        if self.way.max_repeats:
            order = np.argsort(words[:, 0], kind="stable")
            firsts = np.searchsorted(words[order, 0], words[order, 0])
            keep = np.sort(order[np.arange(len(order)) - firsts < self.way.max_repeats])
        at = found.keypoints
        bits = None if signatures is None else signatures[keep]
        keypoints = replace(at, xy=at.xy[keep], scale=at.scale[keep], angle=at.angle[keep])
        return Query(words=words[keep], signatures=bits, keypoints=keypoints)

    def measure(self, name: str, queries: Sequence[Query | None]) -> float:
        """Return the dataset's measure of a preset; a query without features finds nothing."""
        options, judge = replace(preset(name, BITS), top=len(self.queries)), MEASURES[self.dataset.measure]

        def one(number: int) -> float | None:
            query, truth = queries[number], self.dataset.truths[self.dataset.main_level][number]
            ranked = np.array(
                [] if query is None else [hit.image for hit in search(self.engine, query, options, threads=1)], int
            )
            return judge(np.concatenate([ranked, np.setdiff1d(np.arange(len(self.queries)), ranked)]), truth)

        values = [value for _, value in ordered_map(one, range(len(queries)), count_threads(), "search") if value is not None]
        return judge.scale * float(np.mean(values))

    def inside(self, image: int) -> Query | None:
        """Return the query of the middle of an image as a region."""
        query, size = self.queries[image], np.array([self.found.images[image].width, self.found.images[image].height])
        at = query.keypoints
        kept = (np.abs(at.xy + 0.5 - size / 2) < size / 4).all(axis=1)
        if not kept.any() or query.signatures is None:
            return None
        keypoints = replace(at, xy=at.xy[kept], scale=at.scale[kept], angle=at.angle[kept])
        return Query(words=query.words[kept], signatures=query.signatures[kept], keypoints=keypoints)

    def results(self, crops: bool) -> dict[str, float]:
        images = [question.image for question in self.dataset.questions]
        kinds: dict[str, list[Query | None]] = {"": [self.queries[image] for image in images if image is not None]}
        if crops:
            kinds["region, "] = [self.inside(image) for image in images if image is not None]
            own = [self.found.middles[image] for image in images if image is not None]
            kinds["file, "] = [self.query(one) if len(one) else None for one in own]
        return {kind + name: self.measure(name, queries) for kind, queries in kinds.items() for name in QUERIES}


def seconds(dataset: Dataset) -> dict[str, list[float]]:
    """Return the processor time of every way on some photographs, one thread."""
    spent: dict[str, list[float]] = {way.name: [] for way in WAYS}
    with single_cv2_thread():
        for path in dataset.images[:: len(dataset.images) // TIMED][:TIMED]:
            for way in WAYS:
                grey = read_grey(path, way.options.long_side)
                detect(grey, way.options)  # warm
                begin = time.perf_counter()
                detect(grey, way.options)
                spent[way.name].append(time.perf_counter() - begin)
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("holidays", "ukbench"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    arguments = parser.parse_args()
    sets = {name: READERS[name](getattr(arguments, name)) for name in ("holidays", "ukbench")}
    quantiser = Quantiser(default_vocabularies(3))
    rows: list[dict[str, Any]] = []
    times = {name: seconds(dataset) for name, dataset in sets.items()}
    for way in WAYS:
        row: dict[str, Any] = {"way": way.name}
        for name, dataset in sets.items():
            crops = name == "holidays"
            collection = Collection(dataset, extract_all(dataset, way, crops), way, quantiser)
            row[name] = {
                "milliseconds": 1000 * float(np.median(times[name][way.name])),
                "features": collection.features,
                "bytes": collection.bytes,
                **collection.results(crops),
            }
            print(way.name, name, row[name], flush=True)
        rows.append(row)
    print(write_result("extraction", {"images": {n: len(d.images) for n, d in sets.items()}, "timed": TIMED, "ways": rows}))


if __name__ == "__main__":
    main()
