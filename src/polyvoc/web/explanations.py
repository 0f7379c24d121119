"""Why did this photograph answer? An explanation as plain values, for a page to draw."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyvoc import geometry
from polyvoc.answers import Question
from polyvoc.index import Index
from polyvoc.records import Explanation, Features, Region


def asking(index: Index, question: Question) -> dict[str, Any]:
    """Give the facts of the photograph that asks."""
    name = question.name_in(index)
    if isinstance(question.photograph, Features):
        return {"name": name, "width": question.photograph.width, "height": question.photograph.height}
    assert isinstance(question.photograph, int)
    row = index.image(question.photograph)
    return {"name": name, "width": row.width, "height": row.height}


def as_dict(found: Explanation, region: Region | None, frame: dict[str, Any], limit: int) -> dict[str, Any]:
    """Give an explanation as plain values, with at most `limit` matches, the heaviest.

    Features may share a word and yet say nothing, being too far apart in Hamming space: only those count that vote or agree.
    """
    n_vocabularies = found.words.shape[1]
    speaking = np.flatnonzero((found.weight > 0) | found.inlier)
    box = region or (0, 0, frame["width"], frame["height"])
    transform = found.transform
    return {
        "score": float(found.weight.sum()),
        "inliers": int(found.inlier.sum()),
        "outline": None if transform is None else geometry.outline(box, transform),
        "transform": None if transform is None else transform.tolist(),
        "n_vocabularies": n_vocabularies,
        "n_matches": len(speaking),
        "matches": [_match(found, number, n_vocabularies) for number in speaking[:limit].tolist()],
    }


def _match(found: Explanation, number: int, n_vocabularies: int) -> dict[str, Any]:
    mask = int(found.mask[number])
    return {
        "query_xy": found.query_xy[number].tolist(),
        "image_xy": found.feature_xy[number].tolist(),
        "words": [None if word < 0 else word for word in found.words[number].tolist()],
        "mask": mask,
        "sets": name_set(mask, n_vocabularies),
        "ratio": float(found.ratio[number]),
        "weight": float(found.weight[number]),
        "distances": [None if distance < 0 else distance for distance in found.distance[number].tolist()],
        "inlier": bool(found.inlier[number]),
    }


def name_set(mask: int, n_vocabularies: int) -> str:
    """Say which lists hold a match: "intersection" if all do."""
    held = [str(k + 1) for k in range(n_vocabularies) if mask >> k & 1]
    if len(held) == n_vocabularies:
        return "intersection"
    return f"vocabular{'y' if len(held) == 1 else 'ies'} {', '.join(held)}"
