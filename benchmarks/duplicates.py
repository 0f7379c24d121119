"""Copies, other shots and the rest: precision, recall and calibration of `polyvoc duplicates`, beside perceptual hashes.

    pip install imagehash
    python benchmarks/duplicates.py DATA --work FOLDER [--fit]
    python benchmarks/duplicates.py DATA --work FOLDER --times 1200

DATA holds the folders holidays*, ukbench* and photos*. Originals, the first of each group of Holidays and some of Ukbench, are
altered in ten ways; originals, altered ones, all groups of Holidays and Ukbench (hand-held series: every pair within a group is
another shot, none is a copy) and photographs of photos* are indexed together, and `polyvoc duplicates` runs. Coefficients are
fitted on every other scene (`--fit` writes them to src/polyvoc/data/duplicate_probability.json); all results are of the other half
of the scenes. A second fit, to every other alteration alone, is tested on the other alterations of the other scenes. Wrong moves:
what `--move` would move at its default probability, in groups of the other half. FOLDER: for altered photographs and the index.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from alterations import ALTERATIONS, LOW_QUALITY, QUALITY, file_name
from machine import write_result
from polyvoc.duplicates import MIN_PROBABILITY, MOVE_PROBABILITY
from polyvoc.duplicates.compare import Pairs, compare, read_pairs
from polyvoc.duplicates.groups import find_duplicates
from polyvoc.duplicates.probability import shipped_duplicate_probability
from polyvoc.experiments.fit.duplicates import A_COPY, ANOTHER_SHOT, OTHER, fit_duplicate_probability
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.report.plots import save_svg
from polyvoc.features.decode import _shared, shared_decoders
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "src" / "polyvoc" / "data" / "duplicate_probability.json"
PLOT = ROOT / "docs" / "duplicates.svg"
USUAL = 10  # bits of 64: the threshold that tools for duplicates come with
HASHES = ("phash", "dhash", "whash")
BINS = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0)
ORIGINAL = "original"
Ends = tuple[int, int]  # numbers of two photographs in the list of all


# --- the photographs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A photograph: its original, its alteration, and its scene."""

    path: Path
    origin: str  # the same for copies of one shot
    scene: str  # the same for all shots of one scene
    alteration: str = ORIGINAL

    @property
    def mirrored(self) -> bool:
        return "mirror" in self.alteration


def gather(data: Path, work: Path, n_originals: int, n_others: int) -> list[Source]:
    """Return all photographs; altered ones are made if they do not exist."""
    sets = {name: sorted(next(data.glob(f"{name}*")).glob("*.jpg")) for name in ("holidays", "ukbench", "photos")}
    scenes = {"holidays": lambda path: path.stem[:4], "ukbench": lambda path: str(int(re.sub(r"\D", "", path.stem)) // 4)}
    plain = [
        Source(path, f"{name} {path.stem}", f"{name} {scene(path)}") for name, scene in scenes.items() for path in sets[name]
    ]
    chosen = [one for one in plain if one.path.stem.endswith("00") and one.origin.startswith("holidays")]
    chosen += [one for one in plain if one.origin.startswith("ukbench")][::10]
    chosen = [chosen[place] for place in np.linspace(0, len(chosen) - 1, min(n_originals, len(chosen))).astype(int)]
    others = [Source(path, f"photos {path.stem}", f"photos {path.stem}") for path in sets["photos"][:n_others]]
    return [*plain, *others, *(altered(one, name, work) for one in chosen for name in ALTERATIONS)]


def altered(one: Source, alteration: str, work: Path) -> Source:
    target = work / "altered" / f"{one.origin.replace(' ', '-')}-{file_name(alteration)}.jpg"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng([7, *one.origin.encode(), *alteration.encode()])
        with Image.open(one.path) as image:
            made = ALTERATIONS[alteration](ImageOps.exif_transpose(image).convert("RGB"), rng)
        partial = target.with_suffix(".partial")
        made.save(partial, "JPEG", quality=LOW_QUALITY if alteration == "quality 30" else QUALITY)
        partial.rename(target)
    return Source(target, one.origin, one.scene, alteration)


def collect(sources: Sequence[Source], work: Path) -> Path:
    """Return a folder of links to all photographs."""
    folder = work / "photographs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, one in enumerate(sources):
        (folder / f"{number:05d}.jpg").symlink_to(one.path.resolve())
    return folder


# --- polyvoc ------------------------------------------------------------------------------------------------------------------


def search(folder: Path, index: Path) -> tuple[Pairs, dict[str, float]]:
    """Index the photographs and compare them; return the pairs, with numbers in the list of all as ids, and times.

    An index that exists is used, and nothing is timed.
    """
    seconds, anew = {}, not index.exists()
    started = time.perf_counter()
    with IndexWriter.open(index) as writer:
        writer.update([folder])
        seconds["index"] = time.perf_counter() - started
        for stage, mirror in (("copies", False), ("mirror images", True)):
            started = time.perf_counter()
            compare(writer, mirror)
            seconds[stage] = time.perf_counter() - started
    with Index.open(index) as opened:
        pairs = np.array(read_pairs(opened.folder).pairs)
        places = {row.image: int(Path(row.path).stem) for row in opened.images()}
    for name in ("later", "earlier"):
        pairs[name] = [places[image] for image in pairs[name].tolist()]
    return pairs, {stage: round(value, 2) for stage, value in seconds.items()} if anew else {}


def group(index: Path, sources: Sequence[Source], held: set[str]) -> tuple[float, dict[str, Any]]:
    """Return the seconds of grouping, and what would be moved of scenes: how many files, expected and actual wrong ones."""
    started = time.perf_counter()
    with Index.open(index) as opened:
        found = find_duplicates(opened, MOVE_PROBABILITY)
    seconds = round(time.perf_counter() - started, 2)
    moved, wrong, expected = 0, [], 0.0
    for one in found.groups:
        best = sources[int(Path(one.best.path).stem)]
        for copy in one.copies if best.scene in held else ():
            source = sources[int(Path(copy.file.path).stem)]
            moved, expected = moved + 1, expected + 1 - copy.probability
            if source.origin != best.origin:
                wrong.append([f"{source.origin}, {source.alteration}", f"{best.origin}, {best.alteration}", copy.probability])
    return seconds, {"probability": MOVE_PROBABILITY, "moved": moved, "expected_wrong": round(expected, 3), "wrong": wrong}


def rate_classes(judged: Judged, copy: npt.NDArray[Any], shot: npt.NDArray[Any]) -> dict[str, Any]:
    """Return precision and recall of each class among the tested pairs, and how many second shots are called copies."""
    predicted = np.where(np.maximum(copy, shot) < 1 - copy - shot, OTHER, np.where(copy >= shot, A_COPY, ANOTHER_SHOT))
    names = {OTHER: "something else", ANOTHER_SHOT: "another shot", A_COPY: "copy"}
    tables = {}
    series = judged.natural & (judged.classes == ANOTHER_SHOT)
    for title, chosen in (("all", judged.tested), ("natural series", judged.tested & judged.natural)):
        rows = {}
        for number, name in names.items():
            true, called = judged.classes[chosen] == number, predicted[chosen] == number
            rows[name] = {"pairs": int(true.sum()), "called": int(called.sum()),
                          "precision": ratio(int((true & called).sum()), int(called.sum())),
                          "recall": ratio(int((true & called).sum()), int(true.sum()))}  # fmt: skip
        for sure in (MIN_PROBABILITY, MOVE_PROBABILITY):
            kept, true = copy[chosen] >= sure, judged.classes[chosen] == A_COPY
            rows[f"copy at {sure:g}"] = {
                "called": int(kept.sum()), "precision": ratio(int((kept & true).sum()), int(kept.sum())),
                "recall": ratio(int((kept & true).sum()), int(true.sum())),
                "second_shots_of_series": int((kept & series[chosen]).sum()),
            }  # fmt: skip
        tables[title] = rows
    return {**tables, "series_pairs": int((series & judged.tested).sum())}


@dataclass(frozen=True, eq=False)
class Judged:
    """Pairs, their classes, and on which half of the scenes they lie."""

    pairs: Pairs
    classes: npt.NDArray[np.int64]  # of `fit.duplicates`
    natural: npt.NDArray[np.bool_]  # both as they were taken
    fitted: npt.NDArray[np.bool_]  # both of a scene to fit on
    tested: npt.NDArray[np.bool_]  # both of a scene to test on
    even: npt.NDArray[np.bool_]  # both originals or made by every other alteration, from the first on


def judge(pairs: Pairs, sources: Sequence[Source]) -> Judged:
    """Return the classes of pairs. Pairs of one shot, found mirrored though they are not or the reverse, are left out."""
    first, second = ([sources[place] for place in pairs[name].tolist()] for name in ("later", "earlier"))
    scenes = {scene: number % 2 == 0 for number, scene in enumerate(sorted({one.scene for one in sources}))}
    even = {ORIGINAL, *list(ALTERATIONS)[::2]}
    straight = np.linalg.det(pairs["transform"][:, :, :2]) > 0
    same = np.array([a.origin == b.origin for a, b in zip(first, second, strict=True)])
    right = np.array([(a.mirrored == b.mirrored) == kept for a, b, kept in zip(first, second, straight, strict=True)])
    halves = np.array([(scenes[a.scene], scenes[b.scene]) for a, b in zip(first, second, strict=True)])
    evens = np.array([a.alteration in even and b.alteration in even for a, b in zip(first, second, strict=True)])
    scene = np.array([a.scene == b.scene for a, b in zip(first, second, strict=True)])
    classes = np.where(same, A_COPY, np.where(scene, ANOTHER_SHOT, OTHER))
    natural = np.array([a.alteration == b.alteration == ORIGINAL for a, b in zip(first, second, strict=True)])
    keep = ~same | right
    return Judged(pairs[keep], classes[keep], natural[keep], halves.all(axis=1)[keep], (~halves).all(axis=1)[keep], evens[keep])


def reliability(predicted: npt.NDArray[Any], right: npt.NDArray[Any]) -> list[dict[str, float]]:
    """Return, for bins of the probability, its mean (`told`) and the share of copies (`so`), with its Wilson interval."""
    rows = []
    for low, high in itertools.pairwise(BINS):
        inside = (predicted >= low) & ((predicted < high) | (high == 1.0))
        n, k = int(inside.sum()), int(right[inside].sum())
        if n:
            middle, half = (k + 1.92) / (n + 3.84), 1.96 * np.sqrt(k * (n - k) / n + 0.96) / (n + 3.84)
            rows.append(
                {"pairs": n, "told": float(predicted[inside].mean()), "so": k / n, "low": middle - half, "high": middle + half}
            )
    return rows


# --- perceptual hashes --------------------------------------------------------------------------------------------------------


def hash_bits(folder: Path, name: str) -> tuple[npt.NDArray[np.uint8], float]:
    """Return the hash of every photograph as bytes [n, 8], and the seconds that it took."""
    import imagehash

    started, rows = time.perf_counter(), []
    for path in sorted(folder.iterdir()):
        with Image.open(path) as image:
            rows.append(np.packbits(getattr(imagehash, name)(ImageOps.exif_transpose(image)).hash.ravel()))
    return np.array(rows), time.perf_counter() - started


def within(bits: npt.NDArray[np.uint8], threshold: int) -> list[Ends]:
    """Return the pairs whose hashes differ by that many bits at most."""
    pairs = []
    for number in range(1, len(bits)):
        distance = np.bitwise_count(bits[:number] ^ bits[number]).sum(axis=1)
        pairs += [(number, int(other)) for other in np.flatnonzero(distance <= threshold)]
    return pairs


# --- recall and precision -----------------------------------------------------------------------------------------------------------------


def rate(pairs: Iterable[Ends], sources: Sequence[Source], test: Callable[[Source], bool]) -> dict[str, Any]:
    """Return recall and precision per alteration: is it linked with its original; are the images it is linked with copies of it?"""
    origins = {one.origin: place for place, one in enumerate(sources) if one.alteration == ORIGINAL}
    wanted = [place for place, one in enumerate(sources) if test(one)]
    right: dict[str, list[int]] = {name: [0, 0, 0, 0] for name in (*ALTERATIONS, ORIGINAL)}  # hits, of, true links, links
    links = {frozenset(pair) for pair in pairs}
    for place in wanted:
        one = sources[place]
        if one.alteration != ORIGINAL:
            right[one.alteration][0] += frozenset((place, origins[one.origin])) in links
            right[one.alteration][1] += 1
    chosen = set(wanted)
    for link in links:
        first, second = link
        for place in (first, second):
            if place in chosen:
                right[sources[place].alteration][2] += sources[first].origin == sources[second].origin
                right[sources[place].alteration][3] += 1
    rows = {
        name: {"recall": ratio(a, b), "precision": ratio(c, d), "copies": b, "links": d} for name, (a, b, c, d) in right.items()
    }
    sums = np.sum(list(right.values()), axis=0).tolist()
    return {"alterations": rows, "recall": ratio(*sums[:2]), "precision": ratio(*sums[2:])}


def ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def f1(rated: dict[str, Any]) -> float:
    recall, precision = rated["recall"] or 0.0, rated["precision"] or 0.0
    return 2 * recall * precision / (recall + precision) if recall + precision else 0.0


def rate_hashes(folder: Path, sources: Sequence[Source], test: Callable[[Source], bool]) -> dict[str, Any]:
    """Rate every hash at its usual threshold, and at the one that is best for it on these same photographs."""
    rows = {}
    for name in HASHES:
        bits, seconds = hash_bits(folder, name)
        rated = {threshold: rate(within(bits, threshold), sources, test) for threshold in (*range(0, 17), 20, 24)}
        best = max(rated, key=lambda threshold: f1(rated[threshold]))
        rows[name] = {
            "seconds": round(seconds, 2),
            "usual": {"threshold": USUAL, **rated[USUAL]},
            "best": {"threshold": best, **rated[best]},
        }
        print(name, best, rated[best]["recall"], rated[best]["precision"], flush=True)
    return rows


def figure(rows: Sequence[dict[str, float]], unseen: Sequence[dict[str, float]]) -> Figure:
    """Return the figure of predicted probability against the share of copies."""
    series = [Series("calibrated", [0, 1], [0, 1], style="paper")]
    for name, held in (("other scenes", rows), ("other scenes and other alterations", unseen)):
        series.append(Series(name, *([row[key] for row in held] for key in ("told", "so", "low", "high"))))
    panel = Panel("predicted probability", "share of copies", series)
    note = "Pairs of photographs that are consistent with one geometric transform; 95 % intervals. Coefficients fitted on half of the scenes, shown is the other half."
    return Figure("Predicted probability of a copy, and the share that is one", [panel], note)


def processor_seconds() -> float:
    """Return the seconds of processor time of this process and of those it has started and seen end."""
    return sum(os.times()[:4])


def measure_times(data: Path, work: Path, counts: Sequence[int]) -> list[dict[str, Any]]:
    """Return the seconds of every stage for the first photographs of photos*."""
    rows = []
    for count in counts:
        paths = sorted(next(data.glob("photos*")).glob("*.jpg"))[:count]
        folder = collect([Source(path, path.stem, path.stem) for path in paths], work / f"times {count}")
        index = work / f"times {count}" / "index.polyvoc"
        shutil.rmtree(index, ignore_errors=True)
        stages: dict[str, dict[str, float]] = {}

        def timed(stage: str, work: Callable[[], Any], stages: dict[str, dict[str, float]] = stages) -> None:
            started, used = time.perf_counter(), processor_seconds()
            work()
            shared_decoders().close()  # the time of processes counts when they have ended
            _shared.cache_clear()
            stages[stage] = {"wall": time.perf_counter() - started, "processor": processor_seconds() - used}

        with IndexWriter.open(index) as writer:
            timed("index", lambda writer=writer, folder=folder: writer.update([folder]))
            timed("compare", lambda writer=writer: compare(writer, mirror=False))
            timed("mirror images", lambda writer=writer: compare(writer))
        with Index.open(index) as opened:
            timed("groups", lambda opened=opened: find_duplicates(opened))
            rows.append({"photographs": len(paths), "pairs": len(read_pairs(opened.folder).pairs), "stages": stages})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--originals", type=int, default=200)
    parser.add_argument("--others", type=int, default=1200)
    parser.add_argument("--fit", action="store_true", help="write the coefficients into the package")
    parser.add_argument("--times", type=int, nargs="*", help="measure the time for so many photographs instead")
    arguments = parser.parse_args()
    if arguments.times:
        print(write_result("duplicates_times", {"seconds": measure_times(arguments.data, arguments.work, arguments.times)}))
        return
    sources = gather(arguments.data, arguments.work, arguments.originals, arguments.others)
    folder = collect(sources, arguments.work)
    pairs, seconds = search(folder, arguments.work / "index.polyvoc")
    judged = judge(pairs, sources)
    evidence = judged.pairs["evidence"].astype(np.float64)
    n_scenes, copies = len({one.scene for one in sources}), judged.classes == A_COPY
    source = f"{int(judged.fitted.sum())} pairs of half of {n_scenes} scenes of Holidays, Ukbench and Flickr, altered in {len(ALTERATIONS)} ways, and all series of hand-held shots; benchmarks/duplicates.py"
    fitted = fit_duplicate_probability(evidence[judged.fitted], judged.classes[judged.fitted], source)
    if arguments.fit:
        TABLE.write_text(json.dumps(fitted.as_dict(), indent=1) + "\n", encoding="utf-8")
        shipped_duplicate_probability.cache_clear()
    held = {scene for number, scene in enumerate(sorted({one.scene for one in sources})) if number % 2}
    grouping, moves = group(arguments.work / "index.polyvoc", sources, held)
    seconds |= {"groups": grouping} if seconds else {}
    predicted, shots = shipped_duplicate_probability().probabilities(judged.pairs)
    even = judged.fitted & judged.even
    strict = fit_duplicate_probability(evidence[even], judged.classes[even])
    others = judged.tested & (~judged.even | ~copies)
    rows = reliability(predicted[judged.tested], copies[judged.tested])
    unseen = reliability(strict.probabilities(judged.pairs[others]).copy, copies[others])
    kept = judged.pairs[predicted >= MIN_PROBABILITY]
    ours = rate(zip(kept["later"].tolist(), kept["earlier"].tolist(), strict=True), sources, lambda one: one.scene in held)
    classes = rate_classes(judged, predicted, shots)
    result = {
        "photographs": len(sources), "originals": sum(one.alteration != ORIGINAL for one in sources) // len(ALTERATIONS),
        "sure": MIN_PROBABILITY, "seconds": seconds, "polyvoc": ours, "classes": classes, "moves": moves,
        "pairs": {"fitted": int(judged.fitted.sum()), "tested": int(judged.tested.sum()), "copies": int(copies[judged.tested].sum())},
        "reliability": rows, "unseen": unseen, "hashes": rate_hashes(folder, sources, lambda one: one.scene in held),
    }  # fmt: skip
    for name, row in (*ours["alterations"].items(), *classes["all"].items(), *classes["natural series"].items()):
        print(name, row)
    print(moves)
    print(write_result("duplicates", result))
    save_svg(figure(rows, unseen), PLOT)


if __name__ == "__main__":
    main()
