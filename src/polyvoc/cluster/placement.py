"""Which shard holds which segments, and on which machine? By size, the largest first; what is somewhere stays there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def spread(sizes: Mapping[int, int], count: int, kept: Mapping[int, int] | None = None) -> list[list[int]]:
    """Give the segments of each of `count` shards, in order, by the sizes of segments; `kept`: the shard where one is now."""
    shards: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    kept = {segment: shard for segment, shard in (kept or {}).items() if segment in sizes and shard < count}
    for segment, shard in kept.items():
        shards[shard].append(segment)
        loads[shard] += sizes[segment]
    for segment in sorted(sizes.keys() - kept.keys(), key=lambda one: (-sizes[one], one)):
        lightest = min(range(count), key=lambda shard: (loads[shard], shard))
        shards[lightest].append(segment)
        loads[lightest] += sizes[segment]
    return [sorted(shard) for shard in shards]


def seats(loads: Sequence[int], machines: Mapping[str, float], replicas: int) -> list[list[str]]:
    """Give the machines of the replicas of each shard: those of one shard apart as long as there are enough of them.

    machines: how much each can bear, in any unit, such as cores.
    """
    borne = dict.fromkeys(machines, 0.0)
    placed: list[list[str]] = [[] for _ in loads]
    for shard in sorted(range(len(loads)), key=lambda one: (-loads[one], one)):
        for _ in range(replicas):
            others = [name for name in machines if name not in placed[shard]] or list(machines)
            chosen = min(others, key=lambda name: ((borne[name] + loads[shard] + 1) / max(machines[name], 1e-9), name))
            placed[shard].append(chosen)
            borne[chosen] += loads[shard] + 1  # an empty shard is a process all the same
    return placed
