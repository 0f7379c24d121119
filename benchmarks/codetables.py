"""The tables of docs/codes.md: accuracy, limits, a million images; written by `tables.py`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from sources import DIGITS, SETS, bold, markdown, result, where

PRESETS = ("fast", "default", "best")
USUAL = {"words": 10, "cut": 1.2, "reach": 52, "bits": 128}
LIMITS = {
    "words": "at most {} words",
    "cut": "words up to {:g} times as far",
    "reach": "at most {} bits differ",
    "bits": "{} bits",
}
EVIDENCE = {  # changes of `evidence.Way`
    "bits 64": "64 bits", "bits 192": "192 bits", "bits 256": "256 bits", "axes quantised": "learnt rotation (iterative quantisation)",
    "axes half whitened": "residuals whitened by half", "axes half whitened, reach 54": "the same, at most 54 bits differ",
    "axes half whitened, reach 56": "the same, at most 56 bits differ", "axes whitened": "residuals whitened",
    "collection words": "collection aggregated by word", "collection words, norm features": "the same, images' norms as usual",
    "query nearest": "query aggregated by nearest word", "collection words, query nearest": "collection and query aggregated",
    "collection words, query visited": "collection and query aggregated, query by visited word", "rows one": "one weight for all words",
    "rows distance": "weight by the word's distance itself", "rows both": "by the ratio and the nearest word's distance",
    "rows shares": "by the ratio, and how often matches of it are true",
    "axes half whitened, query nearest, rows distance": "three together: whitened by half, query by nearest word, by distance",
}  # fmt: skip
EVIDENCE_KEYS = ("bits", "axes", "reach", "collection", "norm", "query", "rows")
ARRAYS = {
    "codes": "codes", "code_images": "images of the codes", "code_words": "words by image", "positions": "positions",
    "shapes": "scale and angle", "rest": "rest of the descriptor",
}  # fmt: skip


def difference(entry: dict[str, float], digits: int) -> str:
    """Return a difference with its interval, bold if that leaves out zero."""
    text = f"{entry['mean']:+.{digits}f}"
    return f"{bold(text, entry)} ({entry['low']:+.{digits}f} to {entry['high']:+.{digits}f})"


def codes_accuracy() -> str:
    """The search by codes beside that by words and signatures, for each preset; stored images as queries."""
    measured = result("codes")
    rows = []
    for kind in PRESETS:
        for way, name in (("words", "words, 3 x 128 bits"), ("codes", "codes"), ("codes, stored query", "codes, by id")):
            row = [f"`--{kind}`" if kind != "default" else "default", name]
            for each, digits in DIGITS.items():
                entry = measured["sets"][each]["ways"][f"{kind}, {way}"]
                change = "" if way == "words" else difference(entry["difference"], digits)
                row += [f"{entry['value']['mean']:.{digits}f}", change]
            rows.append(row)
    images = {name: measured["sets"][name] for name in SETS}
    note = (f"Every photograph of a group is a query ({images['holidays']['queries']} of Holidays, {images['ukbench']['queries']} of Ukbench), among 1,200 others. Likelihood tables "
            f"of both are fitted on the other set. Differences to words, with 95 % intervals (bootstrap over groups). By id: the query is what the index keeps of the "
            f"photograph, not its descriptors. `benchmarks/codes.py`; {where(measured)}.")  # fmt: skip
    head = ["preset", "search", *(part for name in SETS.values() for part in (name, "difference"))]
    return markdown(head, rows) + "\n\n" + note


def codes_limits() -> str:
    """Every limit changed by itself, on both halves of the groups."""
    measured = result("limits")
    rows = []
    for number, setting in enumerate(measured["sets"]["holidays"]):
        changed = [key for key, value in USUAL.items() if setting[key] != value]
        row = [LIMITS[changed[0]].format(setting[changed[0]]) if changed else "usual: 10 words, 1.2, 52, 128 bits"]
        for each, digits in DIGITS.items():
            entry = measured["sets"][each][number]
            row += [f"{entry['even']['value']['mean']:.{digits}f}", f"{entry['odd']['value']['mean']:.{digits}f}"]
            row.append(difference(entry["all"]["difference"], digits) if changed else "")
        rows.append([*row, f"{setting['milliseconds']:.1f}"])
    head = [
        "limit",
        *(part for name in SETS.values() for part in (f"{name}, even groups", "odd groups", "difference, all")),
        "ms",
    ]
    note = f"Without geometry. Milliseconds of scoring 1,622 photographs on one thread, Holidays. `benchmarks/limits.py`; {where(measured)}."
    return markdown(head, rows) + "\n\n" + note


def codes_evidence() -> str:
    """Other codes, aggregation and weights, each by itself."""
    measured = result("evidence")
    usual, rows = measured["ways"][0], []
    for way in measured["ways"]:
        changed = ", ".join(f"{key} {way[key]}" for key in EVIDENCE_KEYS if way[key] != usual[key])
        row = [
            EVIDENCE.get(changed, "usual: 128 bits, random rotation"),
            f"{way['bytes']:.1f}",
            f"{way['milliseconds']:.0f}",
            f"{way['times']:.2f}",
        ]
        for each, digits in DIGITS.items():
            entry = way["sets"][each]["all"]
            row += [f"{entry['value']['mean']:.{digits}f}", difference(entry["difference"], digits) if changed else ""]
        rows.append(row)
    head = ["search", "bytes", "ms", "times", *(part for name in SETS.values() for part in (name, "difference"))]
    note = (f"Without geometry, tables fitted on the other set for each row, axes learnt from {measured['training']} photographs of Flickr8k. Bytes: scanned, per feature of the "
            f"photographs. Ms: processor time of scoring {measured['copies']} copies of the 1,622 photographs of Holidays on one thread; times: of the usual search in turn. "
            f"`benchmarks/evidence.py`; {where(measured)}.")  # fmt: skip
    return markdown(head, rows) + "\n\n" + note


def codes_bytes() -> str:
    """Bytes of a feature by array."""
    sizes = result("million")["sizes"]
    rows = []
    for name, text in {**ARRAYS, "scanned": "**scanned by a search**", "all": "**all**"}.items():
        rows.append([text, *(f"{entry['bytes_per_feature'][name]:.2f}" for entry in sizes.values())])
    return markdown(["array", *(f"{int(size):,} images" for size in sizes)], rows, right=True)


def codes_million() -> str:
    """Times of a search by number of images."""
    measured = result("million")
    rows = []
    for size, entry in measured["sizes"].items():
        found = entry["10 words"]
        times = found["median_seconds"]
        names = ("quantise", "score", "fast", "default")
        rows.append([f"{int(size):,}", *(f"{1000 * times[f'{name}, 2 threads']:.0f}" for name in names),
                     f"{1000 * times['score, 1 threads']:.0f}", f"{found['ns_per_posting_1_thread']:.1f}",
                     f"{found['score_over_floor']:.1f}"])  # fmt: skip
    first = next(iter(measured["sizes"].values()))["10 words"]
    head = [
        "images",
        "quantise",
        "score",
        "`--fast`",
        "default",
        "score, one thread",
        "ns per posting, one thread",
        "score / floor",
    ]
    note = (f"Milliseconds on two threads, from descriptors in memory to ranked hits, warm, medians of {first['runs']} searches with {first['query_features']:.0f} features on average; "
            f"{measured['features_per_image']} features per image, codes and places of real photographs. Floor: reading the visited lists once, in sequence. "
            f"Time of `--fast` grows as the number of images to the power {growth(measured):.2f}. `benchmarks/million.py`; {where(measured)}.")  # fmt: skip
    return markdown(head, rows, right=True) + "\n\n" + note


def codes_growth() -> str:
    """Times of a search by number of words, size of the query, and instructions of the processor."""
    words, others = (
        result("million-words"),
        {"": result("million"), "-large": result("million-large"), "-avx2": result("million-avx2")},
    )
    rows = [_growth_row(f"{name.split()[0]} words", size, one)
            for size, entry in words["sizes"].items() for name, one in entry.items() if name.endswith(" words")]  # fmt: skip
    names = {"": "usual queries", "-large": "large queries", "-avx2": "usual queries, AVX2 instead of AVX-512"}
    for name, measured in others.items():
        size, entry = max(measured["sizes"].items(), key=lambda item: int(item[0]))
        rows.append(_growth_row(names[name], size, entry["10 words"]))
    note = f"Milliseconds as above. `benchmarks/million.py` with `--assignments`, `--least-features`, `--avx2`; {where(words)}."
    return markdown(["", "images", "query features", "score", "`--fast`", "default"], rows, right=True) + "\n\n" + note


def _growth_row(name: str, size: str, found: dict[str, Any]) -> list[str]:
    times = [f"{1000 * found['median_seconds'][f'{stage}, 2 threads']:.0f}" for stage in ("score", "fast", "default")]
    return [name, f"{int(size):,}", f"{found['query_features']:,.0f}", *times]


def growth(measured: dict[str, Any]) -> float:
    """Return the slope of ln seconds over ln images, from the smallest to the largest collection."""
    points = [(int(size), entry["10 words"]["median_seconds"]["fast, 2 threads"]) for size, entry in measured["sizes"].items()]
    (few, short), (many, long) = points[0], points[-1]
    return math.log(long / short) / math.log(many / few) if many > few else math.nan


TABLES: dict[str, Callable[[], str]] = {
    "codes_accuracy": codes_accuracy, "codes_limits": codes_limits, "codes_evidence": codes_evidence, "codes_bytes": codes_bytes,
    "codes_million": codes_million, "codes_growth": codes_growth,
}  # fmt: skip
