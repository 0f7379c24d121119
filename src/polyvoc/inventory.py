"""What an index holds, and where its bytes are."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from polyvoc import catalogue
from polyvoc.evidence import plain_options
from polyvoc.index import SEGMENTS, Home, Index
from polyvoc.vocabulary import Vocabulary


def take(index: Index) -> dict[str, Any]:
    """Give what there is to know of an index, as plain values for JSON."""
    home = index.home
    sizes = home.catalogue.segment_sizes()
    n_features = sum(row.n_features for row in index.images())
    stored = disk_bytes(home)
    return {
        "index": str(home.path),
        "format": catalogue.FORMAT,
        "commit": home.catalogue.fact("commit"),
        "images": home.catalogue.count_images(),
        "features": n_features,
        "segments": len(sizes),
        "deleted": sum(size.n_deleted for size in sizes),
        "bytes": {"total": sum(stored.values()), **stored},
        "bytes_per_feature": round(_of_segments(stored) / n_features, 2) if n_features else None,
        "vocabularies": [describe_vocabulary(vocabulary) for vocabulary in home.vocabularies()],
        "feature_options": asdict(home.feature_options),
        "embedding": home.catalogue.fact("embedding", required=False),
        "default_options": plain_options(index.default_options),
        "problems": [{"path": p.path, "reason": p.reason} for _, p in home.catalogue.problems().values()],
    }


def photographs(index: Index) -> list[dict[str, Any]]:
    """Give the images of an index, as plain values for JSON."""
    return [
        {"image": row.image, "path": row.path, "width": row.width, "height": row.height, "features": row.n_features}
        for row in index.images()
    ]


def describe_vocabulary(vocabulary: Vocabulary) -> dict[str, Any]:
    """Give what there is to know of a vocabulary, as plain values for JSON."""
    return {
        "fingerprint": vocabulary.fingerprint,
        "size": vocabulary.size,
        "dimension": vocabulary.dimension,
        "bits": vocabulary.bits,
        "provenance": dict(vocabulary.provenance),
    }


def disk_bytes(home: Home) -> dict[str, int]:
    """Give the bytes of an index on the disk by kind, most first; the arrays of all segments by name."""
    counted: Counter[str] = Counter()
    for path in home.path.rglob("*"):
        if path.is_file():
            counted[_kind(path.relative_to(home.path))] += path.stat().st_size
    return dict(counted.most_common())


def _kind(path: Path) -> str:
    if path.parts[0] == SEGMENTS:
        return f"{SEGMENTS}/{path.stem}"
    return path.parts[0] if len(path.parts) > 1 else path.stem


def _of_segments(stored: dict[str, int]) -> int:
    return sum(size for kind, size in stored.items() if kind.startswith(f"{SEGMENTS}/"))
