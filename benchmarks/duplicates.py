"""Which copies are found, and is 0.9 nine out of ten? Altered photographs hidden among others, beside perceptual hashes.

    pip install imagehash
    python benchmarks/duplicates.py DATA --work FOLDER [--fit]

DATA holds the folders holidays*, ukbench* and photos*. Originals, the first of each group of Holidays and some of Ukbench, are
altered in nine ways; originals, altered ones, the other photographs of their groups (the same scene, another shot: no copies)
and those of photos* are indexed together, and `polyvoc duplicates` runs. Coefficients are fitted on every other scene
(`--fit` writes them to src/polyvoc/tables/copies.json); all figures are of the other half of the scenes. A second fit, to every other
alteration alone, is judged by the other alterations of the other scenes. FOLDER keeps altered photographs and the index.
"""

from __future__ import annotations

import argparse
import itertools
import json
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
from polyvoc.duplicates.compare import Pairs, compare, read_pairs
from polyvoc.duplicates.groups import find_duplicates
from polyvoc.duplicates.probability import shipped_duplicate_probability
from polyvoc.experiments.fit.duplicates import fit_duplicate_probability
from polyvoc.experiments.report.figures import Figure, Panel, Series
from polyvoc.experiments.report.plots import save_svg
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index

ROOT = Path(__file__).parent.parent
TABLE = ROOT / "src" / "polyvoc" / "tables" / "copies.json"
PLOT = ROOT / "docs" / "duplicates.svg"
SURE = 0.9
USUAL = 10  # bits of 64: the threshold that tools for duplicates come with
HASHES = ("phash", "dhash", "whash")
BINS = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.98, 1.0)
ORIGINAL = "original"
Ends = tuple[int, int]  # places of two photographs in the list of all


# --- the photographs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """A photograph: whose copy it is, made how, and which scene it shows."""

    path: Path
    origin: str  # the same for copies of one shot
    scene: str  # the same for all shots of one scene
    alteration: str = ORIGINAL

    @property
    def mirrored(self) -> bool:
        return "mirror" in self.alteration


def gather(data: Path, work: Path, n_originals: int, n_others: int) -> list[Source]:
    """Give all photographs; altered ones are made if they are not there."""
    sets = {name: sorted(next(data.glob(f"{name}*")).glob("*.jpg")) for name in ("holidays", "ukbench", "photos")}
    scenes = {"holidays": lambda path: path.stem[:4], "ukbench": lambda path: str(int(re.sub(r"\D", "", path.stem)) // 4)}
    plain = [
        Source(path, f"{name} {path.stem}", f"{name} {scene(path)}") for name, scene in scenes.items() for path in sets[name]
    ]
    chosen = [one for one in plain if one.path.stem.endswith("00") and one.origin.startswith("holidays")]
    chosen += [one for one in plain if one.origin.startswith("ukbench")][::10]
    chosen = chosen[:: max(1, round(len(chosen) / n_originals))][:n_originals]
    shown = {one.scene for one in chosen}
    kept = [one for one in plain if one.scene in shown or n_originals >= 200]
    others = [Source(path, f"photos {path.stem}", f"photos {path.stem}") for path in sets["photos"][:n_others]]
    return [*kept, *others, *(altered(one, name, work) for one in chosen for name in ALTERATIONS)]


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
    """Give a folder of links to all photographs."""
    folder = work / "photographs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for number, one in enumerate(sources):
        (folder / f"{number:05d}.jpg").symlink_to(one.path.resolve())
    return folder


# --- polyvoc ------------------------------------------------------------------------------------------------------------------


def search(folder: Path, index: Path) -> tuple[Pairs, dict[str, float]]:
    """Index the photographs, let them look for copies; gives the pairs, whose ids are places in the list of all, and times.

    An index that was there before is used, and nothing is timed.
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
        pairs = np.array(read_pairs(opened.home).pairs)
        places = {row.image: int(Path(row.path).stem) for row in opened.images()}
    for name in ("later", "earlier"):
        pairs[name] = [places[image] for image in pairs[name].tolist()]
    return pairs, {stage: round(value, 2) for stage, value in seconds.items()} if anew else {}


def group(index: Path) -> float:
    """Give the seconds that grouping takes."""
    started = time.perf_counter()
    with Index.open(index) as opened:
        find_duplicates(opened, SURE)
    return round(time.perf_counter() - started, 2)


@dataclass(frozen=True, eq=False)
class Judged:
    """Pairs, whether they are copies, and on which half of the scenes they lie."""

    pairs: Pairs
    copies: npt.NDArray[np.bool_]
    fitted: npt.NDArray[np.bool_]  # both of a scene to fit on
    tested: npt.NDArray[np.bool_]  # both of a scene to judge by
    even: npt.NDArray[np.bool_]  # both originals or made by every other alteration, from the first on


def judge(pairs: Pairs, sources: Sequence[Source]) -> Judged:
    """Tell which pairs are copies. Those of one shot, found mirrored though they are not or the reverse, are left out."""
    first, second = ([sources[place] for place in pairs[name].tolist()] for name in ("later", "earlier"))
    scenes = {scene: number % 2 == 0 for number, scene in enumerate(sorted({one.scene for one in sources}))}
    even = {ORIGINAL, *list(ALTERATIONS)[::2]}
    straight = np.linalg.det(pairs["transform"][:, :, :2]) > 0
    same = np.array([a.origin == b.origin for a, b in zip(first, second, strict=True)])
    right = np.array([(a.mirrored == b.mirrored) == kept for a, b, kept in zip(first, second, straight, strict=True)])
    halves = np.array([(scenes[a.scene], scenes[b.scene]) for a, b in zip(first, second, strict=True)])
    evens = np.array([a.alteration in even and b.alteration in even for a, b in zip(first, second, strict=True)])
    keep = ~same | right
    return Judged(pairs[keep], same[keep], halves.all(axis=1)[keep], (~halves).all(axis=1)[keep], evens[keep])


def reliability(told: npt.NDArray[Any], so: npt.NDArray[Any]) -> list[dict[str, float]]:
    """Give, for bins of the probability, the mean of what was told and the share that was so, with its Wilson interval."""
    rows = []
    for low, high in itertools.pairwise(BINS):
        held = (told >= low) & ((told < high) | (high == 1.0))
        n, k = int(held.sum()), int(so[held].sum())
        if n:
            middle, half = (k + 1.92) / (n + 3.84), 1.96 * np.sqrt(k * (n - k) / n + 0.96) / (n + 3.84)
            rows.append(
                {"pairs": n, "told": float(told[held].mean()), "so": k / n, "low": middle - half, "high": middle + half}
            )
    return rows


# --- perceptual hashes --------------------------------------------------------------------------------------------------------


def hash_bits(folder: Path, name: str) -> tuple[npt.NDArray[np.uint8], float]:
    """Give the hash of every photograph as bytes [n, 8], and the seconds that it took."""
    import imagehash

    started, rows = time.perf_counter(), []
    for path in sorted(folder.iterdir()):
        with Image.open(path) as image:
            rows.append(np.packbits(getattr(imagehash, name)(ImageOps.exif_transpose(image)).hash.ravel()))
    return np.array(rows), time.perf_counter() - started


def within(bits: npt.NDArray[np.uint8], threshold: int) -> list[Ends]:
    """Give the pairs whose hashes differ by that many bits at most."""
    found = []
    for place in range(1, len(bits)):
        distance = np.bitwise_count(bits[:place] ^ bits[place]).sum(axis=1)
        found += [(place, int(other)) for other in np.flatnonzero(distance <= threshold)]
    return found


# --- how well -----------------------------------------------------------------------------------------------------------------


def rate(found: Iterable[Ends], sources: Sequence[Source], test: Callable[[Source], bool]) -> dict[str, Any]:
    """Give recall and precision per alteration: is it linked with its original; are those that it is linked with its copies?"""
    origins = {one.origin: place for place, one in enumerate(sources) if one.alteration == ORIGINAL}
    wanted = [place for place, one in enumerate(sources) if test(one)]
    right: dict[str, list[int]] = {name: [0, 0, 0, 0] for name in (*ALTERATIONS, ORIGINAL)}  # hits, of, true links, links
    links = {frozenset(pair) for pair in found}
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
    """Rate every hash at its usual threshold, and at the one that is best for it on these very photographs."""
    found = {}
    for name in HASHES:
        bits, seconds = hash_bits(folder, name)
        rated = {threshold: rate(within(bits, threshold), sources, test) for threshold in (*range(0, 17), 20, 24)}
        best = max(rated, key=lambda threshold: f1(rated[threshold]))
        found[name] = {
            "seconds": round(seconds, 2),
            "usual": {"threshold": USUAL, **rated[USUAL]},
            "best": {"threshold": best, **rated[best]},
        }
        print(name, best, rated[best]["recall"], rated[best]["precision"], flush=True)
    return found


def figure(rows: Sequence[dict[str, float]], unseen: Sequence[dict[str, float]]) -> Figure:
    """What was told against what was so."""
    series = [Series("told = so", [0, 1], [0, 1], style="paper")]
    for name, held in (("other scenes", rows), ("other scenes and other alterations", unseen)):
        series.append(Series(name, *([row[key] for row in held] for key in ("told", "so", "low", "high"))))
    panel = Panel("probability that was told", "share of copies", series)
    note = "Pairs of photographs whose arrangement agrees; 95 % intervals. Coefficients were fitted on half of the scenes, shown is the other half."
    return Figure("Is 0.9 nine out of ten?", [panel], note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--originals", type=int, default=200)
    parser.add_argument("--others", type=int, default=1200)
    parser.add_argument("--fit", action="store_true", help="write the coefficients into the package")
    arguments = parser.parse_args()
    sources = gather(arguments.data, arguments.work, arguments.originals, arguments.others)
    folder = collect(sources, arguments.work)
    pairs, seconds = search(folder, arguments.work / "index.polyvoc")
    judged = judge(pairs, sources)
    evidence = judged.pairs["evidence"].astype(np.float64)
    n_scenes = len({one.scene for one in sources})
    source = f"{int(judged.fitted.sum())} pairs of half of {n_scenes} scenes of Holidays, Ukbench and Flickr, altered in {len(ALTERATIONS)} ways; benchmarks/duplicates.py"
    fitted = fit_duplicate_probability(evidence[judged.fitted], judged.copies[judged.fitted], source)
    if arguments.fit:
        TABLE.write_text(json.dumps(fitted.as_dict(), indent=1) + "\n", encoding="utf-8")
        shipped_duplicate_probability.cache_clear()
    taken = group(arguments.work / "index.polyvoc")
    seconds |= {"groups": taken} if seconds else {}
    told = shipped_duplicate_probability().probabilities(judged.pairs)
    strict = fit_duplicate_probability(evidence[judged.fitted & judged.even], judged.copies[judged.fitted & judged.even])
    others = judged.tested & (~judged.even | ~judged.copies)
    rows = reliability(told[judged.tested], judged.copies[judged.tested])
    unseen = reliability(strict.probabilities(judged.pairs[others]), judged.copies[others])
    held = {scene for number, scene in enumerate(sorted({one.scene for one in sources})) if number % 2}
    sure = judged.pairs[told >= SURE]
    ours = rate(zip(sure["later"].tolist(), sure["earlier"].tolist(), strict=True), sources, lambda one: one.scene in held)
    result = {
        "photographs": len(sources), "originals": sum(one.alteration != ORIGINAL for one in sources) // len(ALTERATIONS),
        "sure": SURE, "seconds": seconds, "polyvoc": ours,
        "pairs": {"fitted": int(judged.fitted.sum()), "tested": int(judged.tested.sum()), "copies": int(judged.copies[judged.tested].sum())},
        "reliability": rows, "unseen": unseen, "hashes": rate_hashes(folder, sources, lambda one: one.scene in held),
    }  # fmt: skip
    for name, row in ours["alterations"].items():
        print(name, row)
    print(write_result("duplicates", result))
    save_svg(figure(rows, unseen), PLOT)


if __name__ == "__main__":
    main()
