"""What an index holds, and the distributions of its lists, as plain values for JSON."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError
from polyvoc.index.catalogue import FORMAT, ImageRow
from polyvoc.index.changes import FollowedFolder
from polyvoc.index.folder import EXCLUDE, FOLDERS, LOCK, SEGMENTS, IndexFolder
from polyvoc.index.words import word_offsets
from polyvoc.options import ScoringOptions
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.rules import cardinality_ratios
from polyvoc.scoring.segments import HeldSegment
from polyvoc.search.index import Index
from polyvoc.storage.blocks import FILE, ArrayFile
from polyvoc.storage.stores import base_name
from polyvoc.vocabulary.vocabulary import Vocabulary

SAMPLE = 2000  # features whose lists are compared
BINS = 20  # of a cardinality ratio


def index_info(index: Index) -> dict[str, Any]:
    """Return what an index holds."""
    folder, settings = index.folder, index.folder.catalogue.settings()
    sizes = folder.catalogue.segment_sizes()
    n_features = sum(row.n_features for row in index.images())
    stored, vocabularies = disk_bytes(folder), folder.vocabularies()
    return {
        "index": str(folder.path),
        "format": FORMAT,
        "commit": settings["commit"],
        "images": folder.catalogue.count_images(),
        "features": n_features,
        "segments": len(sizes),
        "deleted": sum(size.n_deleted for size in sizes),
        "bytes": {"total": sum(stored.values()), **stored},
        "bytes_per_feature": round(_of_segments(stored) / n_features, 2) if n_features else None,
        "vocabularies": [describe_vocabulary(vocabulary) for vocabulary in vocabularies.words],
        "fine_vocabulary": None if vocabularies.fine is None else describe_vocabulary(vocabularies.fine),
        "signatures": vocabularies.bits,
        "kind": asdict(folder.kind),
        "feature_options": folder.feature_options.as_dict(),
        "embedding": settings.get("embedding"),
        "default_options": index.default_options.as_dict(),
        "lines": {kind: list(line) for kind, line in index.lines.items()},
        "problems": [asdict(problem) for problem in index.problems()],
        **_followed(folder),
        "last_run": last_run(folder),
    }


def _followed(folder: IndexFolder) -> dict[str, Any]:
    """Return the folders that an index follows, and what it leaves out there."""
    catalogue, settings = folder.catalogue, folder.catalogue.settings()
    followed = FollowedFolder.all_of(settings.get(FOLDERS))
    skipped = sum((Counter(dict(one.skipped)) for one in followed), Counter[str]())
    rows = [
        {
            "path": one.path,
            "photographs": sum(1 for _ in catalogue.images_below([one.path])),
            "skipped": dict(one.skipped),
            "available": one.available,
        }
        for one in followed
    ]
    return {"folders": rows, "skipped": dict(skipped.most_common()), "exclude": settings.get(EXCLUDE) or []}


def last_run(folder: IndexFolder) -> str | None:
    """Return when the last update of an index ended, in ISO 8601; None if that was on another machine."""
    try:
        changed = (folder.path / LOCK).stat().st_mtime
    except OSError:
        return None
    return datetime.fromtimestamp(changed).astimezone().isoformat(timespec="seconds")


def list_images(index: Index) -> list[dict[str, Any]]:
    """Return the images of an index."""
    return list(map(image_info, index.images()))


def image_info(row: ImageRow) -> dict[str, Any]:
    """Return the row of one image."""
    name, size = base_name(row.path), {"width": row.width, "height": row.height}
    changed = format_time(row.state.changed)
    return {"image": row.image, "path": row.path, "name": name, **size, "features": row.n_features, "changed": changed}


def format_time(changed: int | None) -> str | None:
    """Return a modification time in nanoseconds as ISO 8601 in UTC; None if it is not known or not a date."""
    if changed is None:
        return None
    try:
        return datetime.fromtimestamp(changed // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return None


def describe_vocabulary(vocabulary: Vocabulary) -> dict[str, Any]:
    """Return what a vocabulary is and where it comes from."""
    return {
        "fingerprint": vocabulary.fingerprint,
        "size": vocabulary.size,
        "dimension": vocabulary.dimension,
        "bits": vocabulary.bits,
        "kind": asdict(vocabulary.kind),
        "provenance": dict(vocabulary.provenance),
    }


def disk_bytes(folder: IndexFolder) -> dict[str, int]:
    """Return the bytes of an index on the disk by kind, most first; the arrays of all segments by name."""
    counted: Counter[str] = Counter()
    for parent, _, names in os.walk(folder.path):  # which passes over folders that a writer deletes this very moment
        for path in (Path(parent, name) for name in names):
            with suppress(FileNotFoundError):  # and so is this one
                counted[_kind(path.relative_to(folder.path))] += path.stat().st_size
    for path in (folder.path / SEGMENTS).iterdir():
        with suppress(DamagedError):
            for name, array in ArrayFile.open(path).arrays.items():
                counted[f"{SEGMENTS}/{name}"] += array.nbytes
                counted[f"{SEGMENTS}/{FILE}"] -= array.nbytes  # what is left lies between the arrays
    return dict(counted.most_common())


def _kind(path: Path) -> str:
    if path.parts[0] == SEGMENTS:
        return f"{SEGMENTS}/{path.stem}"
    return path.parts[0] if len(path.parts) > 1 else path.stem


def _of_segments(stored: dict[str, int]) -> int:
    return sum(size for kind, size in stored.items() if kind.startswith(f"{SEGMENTS}/"))


def index_distributions(index: Index) -> dict[str, Any]:
    """Return how long the lists are, and how much those of one feature share.

    Deleted images do not count. The cardinality ratios are those of features of the collection, evenly spaced over all of them.
    """
    words = _sample(index.engine)
    return {"list_lengths": _list_lengths(index.engine), "ratios": _ratios(index.engine, words), "sampled_features": len(words)}


def _list_lengths(engine: Engine) -> list[dict[str, Any]]:
    """Count, for each vocabulary, the lists of 1, of 2 to 3, of 4 to 7 ... features. The median is that of lists with any."""
    found = []
    for lengths in np.split(engine.statistics.occurrences, word_offsets(engine.sizes)[1:]) if engine.sizes else ():
        filled = lengths[lengths > 0]
        longest = int(filled.max(initial=0))
        edges = 1 << np.arange(max(longest.bit_length(), 1) + 1)
        counts, _ = np.histogram(filled, edges)  # the last edge is above the longest list
        found.append({
            "edges": edges.tolist(),
            "counts": counts.tolist(),
            "median": float(np.median(filled)) if len(filled) else 0.0,
            "longest": longest,
            "empty": len(lengths) - len(filled),
        })  # fmt: skip
    return found


def _ratios(engine: Engine, words: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """Count the cardinality ratios of features by their words [n, K]: for each pair of vocabularies, then for all of them."""
    n_vocabularies = len(engine.sizes)
    if n_vocabularies < 2:
        return []
    plan = engine.plan(ScoringOptions(merge="posterior"))
    ratios = cardinality_ratios(engine.counts(engine.query(words, None, plan), plan))
    chosen = [*combinations(range(n_vocabularies), 2), *([tuple(range(n_vocabularies))] if n_vocabularies > 2 else [])]
    return [_histogram(ratios[:, sum(1 << k for k in numbers)], numbers) for numbers in chosen]


def _histogram(ratios: npt.NDArray[np.float64], numbers: tuple[int, ...]) -> dict[str, Any]:
    counts, edges = np.histogram(ratios, BINS, (0, 1))
    return {
        "vocabularies": [number + 1 for number in numbers],
        "edges": edges.round(6).tolist(),
        "counts": counts.tolist(),
        "mean": round(float(ratios.mean()), 6) if len(ratios) else None,
    }


def _sample(engine: Engine) -> npt.NDArray[np.int64]:
    """Return the words [n, K] of at most SAMPLE features, evenly spaced over those of all live images."""
    if not engine.sizes:
        return np.empty((0, 0), np.int64)
    lengths = [0 if part is None else int(part) for part in engine.shards.each(live_features)]
    bounds = np.cumsum([0, *lengths])
    count = min(int(bounds[-1]), SAMPLE)
    wanted = np.arange(count) * bounds[-1] // max(count, 1)
    mine = [wanted[(first <= wanted) & (wanted < last)] - first for first, last in pairwise(bounds)]
    found = engine.shards.at(words_at, list(enumerate(mine)))
    return np.concatenate([np.empty((0, len(engine.sizes)), np.int64), *(part for part in found if part is not None)])


def live_features(held: HeldSegment) -> int:
    """Return the number of features of the live images of a segment."""
    return int(np.diff(held.segment.arrays["feature_starts"].astype(np.int64))[held.segment.live_positions()].sum())


def words_at(held: HeldSegment, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the words [n, K] of some features, by their numbers among those of the live images, ascending."""
    starts, live = held.segment.arrays["feature_starts"].astype(np.int64), held.segment.live_positions()
    ends = np.cumsum(np.diff(starts)[live])
    image = np.searchsorted(ends, numbers, "right")
    rest = ends[image] - numbers  # features from this one to the end of its image
    held.segment.verify_words()
    words: npt.NDArray[np.int64] = held.segment.arrays["words"][starts[live[image] + 1] - rest].astype(np.int64)
    return words
