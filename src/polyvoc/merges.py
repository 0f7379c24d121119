"""Which segments should be merged next? Few segments make searches fast; few merges make indexing fast.

Segments of similar size are merged eight at a time (as in a log-structured merge tree), so an image is rewritten about once
for every factor of eight in the size of the collection. A segment with many deleted images is rewritten alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

from polyvoc.segment import MAX_IMAGES

FAN_IN = 8
SMALLEST = 64  # images; smaller segments count as this large
MAX_DELETED = 0.25  # share of a segment's images
MAX_FEATURES = 1 << 24  # of a merged segment: merging takes 185 bytes of memory per feature (3 vocabularies, signatures)


@dataclass(frozen=True)
class SegmentSize:
    """How large a segment is."""

    segment: int
    n_images: int  # deleted ones included
    n_features: int  # those of deleted images included
    n_deleted: int

    @property
    def n_live(self) -> int:
        """Count the images that are not deleted."""
        return self.n_images - self.n_deleted


def next_merge(sizes: list[SegmentSize]) -> list[int]:
    """Give the numbers of the segments to merge into one, or none."""
    for size in sizes:
        if size.n_deleted > MAX_DELETED * size.n_images:
            return [size.segment]
    tiers: dict[int, list[SegmentSize]] = defaultdict(list)
    for size in sizes:
        if size.n_live <= MAX_IMAGES // 2 and size.n_features <= MAX_FEATURES // 2:  # two larger ones would not fit
            tiers[_tier(size.n_live)].append(size)
    for tier in sorted(tiers):
        if len(tiers[tier]) >= FAN_IN:
            return _fitting(tiers[tier])
    return []


def _tier(n_images: int) -> int:
    return int(math.log(max(n_images, SMALLEST) / SMALLEST, FAN_IN))


def _fitting(candidates: list[SegmentSize]) -> list[int]:
    """Take the smallest that fit into one segment together."""
    chosen, images, features = [], 0, 0
    for size in sorted(candidates, key=lambda size: (size.n_live, size.segment)):
        if images + size.n_live <= MAX_IMAGES and features + size.n_features <= MAX_FEATURES:
            chosen.append(size.segment)
            images += size.n_live
            features += size.n_features
    return sorted(chosen) if len(chosen) > 1 else []
