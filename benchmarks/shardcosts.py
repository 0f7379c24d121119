"""What does a shard's part of a search cost? The measured half of `scale.py`: times of one thread, their spread, and bytes.

Costs are fitted to processor time, which other programs hardly disturb; the spread is that of the clock on the wall around the fit.
"""

from __future__ import annotations

import itertools
import json
import statistics as st
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import drivercosts
from drivercosts import seconds_of
from polyvoc.cluster.holder import Task, pack, unpack
from polyvoc.index.segment import Batch, Segment
from polyvoc.index.statistics import idf_squared
from polyvoc.options import DEFAULT, FAST, SearchOptions
from polyvoc.scoring.engine import Engine
from polyvoc.scoring.query import QueryWords
from polyvoc.scoring.segments import add_arrays, best_in, count_in, joining
from polyvoc.search.index import Index
from polyvoc.search.query import Query
from polyvoc.search.verify import match_table, verify, verify_in

DEPTH = 120  # candidates that come back: those to verify, and the ranking
PARTS_JOINED = 32  # at a time, by a holder or by the driver
PARTS = (1.0, 0.2, 0.02)  # of a segment: how its time depends on the length of its lists
VARIANTS = {"20000 words, 128 bits": (1, 2), "20000 words, 64 bits": (1, 1), "200000 words, 128 bits": (10, 2),
            "200000 words, 64 bits": (10, 1), "1000000 words, 128 bits": (50, 2), "1000000 words, 64 bits": (50, 1)}  # fmt: skip
RULES: dict[str, SearchOptions] = {
    "likelihood": FAST,
    "posterior": SearchOptions(merge="posterior", hamming=52, sigma=26.0, verify=100),
}
KERNELS = (
    (scoring.evidence, "vote_near"),
    (scoring.lookup, "find_runs"),
    (scoring.score, "vote_hamming"),
    (scoring.score, "count_shared"),
)


def busy_of(work: Callable[[], Any]) -> float:
    """Give the seconds that this thread kept a core busy."""
    begin = time.thread_time()
    work()
    return time.thread_time() - begin


def rule_options(rule: str, bits: int) -> SearchOptions:
    options = RULES[rule]
    return options if options.hamming is None or bits == 128 else replace(options, hamming=24, sigma=16.0)


# --- collections


def split_words(batch: Batch, parts: int, planes: int) -> Batch:
    """Give the same images with each word split at random into `parts`, as a larger vocabulary would, and fewer bits."""
    words, signatures = batch.words, batch.signatures
    if parts > 1:
        words = words * parts + np.random.default_rng(parts).integers(0, parts, words.shape, dtype=np.int32)
    assert signatures is not None
    return replace(batch, words=words, signatures=signatures[..., :planes])


def first_images(batch: Batch, share: float) -> Batch:
    n = max(1, int(share * len(batch.ids)))
    end = int(batch.feature_starts[n])
    assert batch.signatures is not None
    return Batch(
        batch.ids[:n],
        batch.feature_starts[: n + 1],
        batch.words[:end],
        batch.signatures[:end],
        batch.xy[:end],
        batch.shape[:end],
    )


def asking(engine: Engine, count: int) -> list[Query]:
    """Let images of the collection ask, spread over all of it."""
    places = [(number, at) for number, part in enumerate(engine.shards.census) for at in range(part.n_images)]
    chosen = places[len(places) // (2 * count) :: max(1, len(places) // count)][:count]
    return [Query.stored(engine, place, (1024, 768)) for place in chosen]


# --- one segment


class Row(NamedTuple):
    """One query against one segment: what it names there, seconds on the wall, of the processor, and of these with the lock."""

    query: int
    segment: int
    lists: int
    postings: int
    near: int
    seconds: float
    busy: float
    locked: float


@contextmanager
def kernel_clock() -> Iterator[list[float]]:
    """Add up the seconds in kernels, which run without the interpreter's lock."""
    total, kept = [0.0], [(module, name, getattr(module, name)) for module, name in KERNELS]

    def timed(kernel: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            begin = time.thread_time()
            found = kernel(*arguments)
            total[0] += time.thread_time() - begin
            return found

        return call

    try:
        for module, name, kernel in kept:
            setattr(module, name, timed(kernel))
        yield total
    finally:
        for module, name, kernel in kept:
            setattr(module, name, kernel)


def postings_of(segment: Segment, query: QueryWords) -> int:
    numbers, starts = query.numbers[:, :, 0], segment.arrays["starts"]
    return int((starts[numbers + 1].astype(np.int64) - starts[numbers]).sum())


def threshold_of(options: SearchOptions) -> int:
    """Give the distance up to which a match of one list alone counts."""
    if options.evidence is None:
        return options.hamming or 0
    singles = [
        options.evidence.rows[options.evidence.groups[1 << k] * (len(options.evidence.edges) + 1)]
        for k in range(options.evidence.n_vocabularies)
    ]
    return int(np.flatnonzero((np.array(singles) > 0).any(axis=0)).max())


def phases(engine: Engine, asked: Query, rule: str) -> dict[str, Any]:
    """Give what each phase asks of a segment, and its threshold; a query anew, so that the runs of its lists are not known yet."""
    options = engine.settled(rule_options(rule, engine.bits))
    query = engine.query(asked.words, asked.signatures, options)
    weights, scale = engine.weights(query, options, 1), engine.scale(query, options)
    fresh = replace(query)
    work = {
        f"{rule}: vote": (
            fresh,
            threshold_of(options),
            lambda held: best_in(held, fresh, weights, options, scale, DEPTH, ()),
        )
    }
    if rule == "posterior":
        work[f"{rule}: count"] = (query, -1, lambda held: count_in(held, replace(query), options))
    return work


def time_segments(engine: Engine, queries: Sequence[Query], rule: str, repeats: int) -> dict[str, list[Row]]:
    """Give, for each phase, what every query took of every segment, on one thread."""
    rows: dict[str, list[Row]] = {}
    near: dict[tuple[str, int, int], int] = {}
    for repeat in range(repeats + 1):
        for number, asked in enumerate(queries):
            for name, (query, threshold, work) in phases(engine, asked, rule).items():
                for at, held in enumerate(engine.shards.held):
                    with kernel_clock() as inside:
                        begin = time.thread_time()
                        seconds, _ = seconds_of(lambda work=work, held=held: work(held))
                        busy = time.thread_time() - begin
                    if repeat == 0:  # loads and compiles
                        near[name, number, at] = 0 if threshold < 0 else near_of(held.segment, query, threshold)
                        continue
                    size = query.words.size, postings_of(held.segment, query), near[name, number, at]
                    rows.setdefault(name, []).append(Row(number, at, *size, seconds, busy, busy - inside[0]))
    return rows


def not_negative(design: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Give the costs x >= 0 for which design x is nearest to 1 everywhere: the best over all choices of columns."""
    lengths = np.linalg.norm(design, axis=0)
    lengths[lengths == 0] = 1
    best, least = np.zeros(design.shape[1]), np.inf
    for n in range(1, design.shape[1] + 1):
        for chosen in map(list, itertools.combinations(range(design.shape[1]), n)):
            solved = np.linalg.lstsq(design[:, chosen] / lengths[chosen], np.ones(len(design)), rcond=None)[0]
            error = float(((design[:, chosen] / lengths[chosen] @ solved - 1) ** 2).sum())
            if (solved >= 0).all() and error < least - 1e-12:
                best, least = np.zeros(design.shape[1]), error
                best[chosen] = solved / lengths[chosen]
    return best


def fitted(rows: Sequence[Row]) -> dict[str, Any]:
    """Fit seconds = per segment + per list + per posting + per near posting, by relative errors; gives the residual ratios, too."""
    same: dict[tuple[int, int], list[Row]] = {}
    for row in rows:
        same.setdefault((row.query, row.segment), []).append(row)
    busy = np.array([st.median(row.busy for row in held) for held in same.values()])
    design = np.array([[1, held[0].lists, held[0].postings, held[0].near] for held in same.values()])
    found = not_negative(design / busy[:, None])
    ratios = np.array([row.seconds / (found @ [1, row.lists, row.postings, row.near]) for row in rows])
    return {
        "per_segment": found[0], "per_list": found[1], "per_posting": found[2], "per_near": found[3],
        "near_share": float(design[:, 3].sum() / max(design[:, 2].sum(), 1)),
        "locked_per_segment": st.median(row.locked for row in rows),
        "ratios": np.quantile(ratios, np.linspace(0, 1, 101)).round(3).tolist(),
    }  # fmt: skip


def near_of(segment: Segment, query: QueryWords, threshold: int) -> int:
    """Count the scanned postings whose signatures are within a threshold: those that are looked at one by one."""
    near = 0
    assert query.signatures is not None
    for numbers, signatures in zip(query.numbers[:, :, 0], query.signatures[:, :, 0], strict=True):
        for number, bits in zip(numbers, signatures, strict=True):
            first, last = (int(segment.arrays["starts"][number + i]) for i in (0, 1))
            differing = np.bitwise_count(segment.arrays["signatures"][:, first:last] ^ bits[:, None])
            near += int((differing.sum(axis=0) <= threshold).sum())
    return near


def variant(batch: Batch, sizes: Sequence[int], parts: int, planes: int, queries: int, repeats: int) -> dict[str, Any]:
    """Measure segments of one kind: three sizes, so that lists and postings can be told apart."""
    made = split_words(batch, parts, planes)
    segments = [Segment.build(first_images(made, share), tuple(size * parts for size in sizes)) for share in PARTS]
    engine = Engine(segments, segments[0].sizes)
    asked = asking(Engine(segments[:1], segments[0].sizes), queries)
    entry: dict[str, Any] = {"phases": {}}
    for rule in RULES:
        for name, rows in time_segments(engine, asked, rule, repeats).items():
            entry["phases"][name] = fitted(rows)
    whole = segments[0]
    entry["bytes_per_feature"] = {name: array.nbytes / whole.n_features for name, array in whole.arrays.items()}
    entry["features"] = whole.n_features
    entry["idf_seconds"] = st.median(busy_of(lambda: idf_squared(engine.statistics, "average")) for _ in range(9))
    return entry


# --- a whole collection


def spread(engine: Engine, queries: Sequence[Query], repeats: int) -> dict[str, Any]:
    """Measure many queries against the segments of a collection: how the postings vary, and the times around the fit."""
    rows = time_segments(engine, queries, "likelihood", repeats)["likelihood: vote"]
    return {"list_factors": list_factors(engine, rows), "fit": fitted(rows)}


def list_factors(engine: Engine, rows: Sequence[Row]) -> list[float]:
    """Give, for each query, how many postings it names by how many it would if all lists were equally long."""
    features = sum(part.n_features for part in engine.shards.census)
    seen = {(row.query, row.segment): row for row in rows}.values()
    lists = {row.query: row.lists for row in seen}
    return [
        round(sum(row.postings for row in seen if row.query == query) / (count * features / engine.sizes[0]), 4)
        for query, count in lists.items()
    ]


def of_index(path: Path, queries: int) -> dict[str, Any]:
    """Measure what a prediction must know of an index: postings and near ones of its own images, and a candidate's seconds."""
    engine = Index.open(path).engine
    asked = asking(engine, queries)
    rows = time_segments(engine, asked, "likelihood", 1)["likelihood: vote"]
    near = sum(row.near for row in rows) / sum(row.postings for row in rows)
    return {
        "list_factor": st.mean(list_factors(engine, rows)),
        "near_share": near,
        "candidate": whole_searches(engine, asked[:8], 1)["candidate"],
    }


def whole_searches(engine: Engine, queries: Sequence[Query], repeats: int) -> dict[str, Any]:
    """Measure what is done once per query, what verification costs, and what a second thread gives."""
    options = engine.settled(DEFAULT)
    once, candidates, gains, merges = [], [], [], []
    for asked in list(queries) * repeats:
        query = engine.query(asked.words, asked.signatures, options)
        once.append(busy_of(lambda query=query: (engine.weights(query, options, 1), engine.scale(query, options))))
        one, (best, _) = seconds_of(lambda query=query: engine.best(query, options, 1, DEPTH))
        two, _ = seconds_of(lambda query=query: engine.best(query, options, 2, DEPTH))
        gains.append(one / two)
        places = [found.place for found in best[:100]]
        verify(engine, asked.sketch, places, options, 1)
        seconds = busy_of(lambda asked=asked, places=places: verify(engine, asked.sketch, places, options, 1))
        candidates.append(seconds / max(len(places), 1))
        shared = query, engine.weights(query, options, 1), options, engine.scale(query, options), DEPTH, ()
        parts = [best_in(engine.shards.held[0], *shared)] * PARTS_JOINED
        merges.append(busy_of(lambda parts=parts: joining(DEPTH)(parts)) / PARTS_JOINED)
    return {"once": st.median(once), "candidate": st.median(candidates), "two_threads": st.median(gains), "merge": st.median(merges),
            "candidates": np.quantile(candidates, np.linspace(0, 1, 21)).round(6).tolist()}  # fmt: skip


def travelling(engine: Engine, queries: Sequence[Query]) -> dict[str, Any]:
    """Measure the bytes of each fan-out, as a line over the number of query features, and the time to pack and unpack them."""
    rows: dict[str, list[tuple[float, ...]]] = {}
    for asked in queries:
        for rule in RULES:
            options = engine.settled(replace(rule_options(rule, engine.bits), verify=100))
            query = engine.query(asked.words, asked.signatures, options)
            weights, scale = engine.weights(query, options, 1), engine.scale(query, options)
            best = best_in(engine.shards.held[0], query, weights, options, scale, DEPTH, ())
            tasks = {
                f"{rule}: vote": (
                    Task(best_in, joining(DEPTH), (query, weights, options, scale, DEPTH, ())),
                    best,
                )
            }
            if rule == "posterior":
                counted = count_in(engine.shards.held[0], query, options)
                tasks[f"{rule}: count"] = Task(count_in, add_arrays, (query, options)), counted
            table = match_table(engine, options)
            verified = verify_in(engine.shards.held[0], [0], asked.sketch, table)
            tasks["verify"] = Task(verify_in, None, (asked.sketch, table)), [verified]
            for name, (task, reply) in tasks.items():
                packing, content = seconds_of(lambda task=task: pack(task))
                unpacking, _ = seconds_of(lambda content=content: unpack(content))
                rows.setdefault(name, []).append((len(query.words), len(content), len(pack(reply)), packing, unpacking))
    return {name: _line(found) for name, found in rows.items()}


def _line(rows: Sequence[tuple[float, ...]]) -> dict[str, float]:
    table = np.array(rows)
    slope, first = np.polyfit(table[:, 0], table[:, 1], 1)
    reply, packing, unpacking = np.median(table[:, 2:], axis=0)
    return {"bytes": max(first, 0.0), "bytes_per_feature": slope, "reply_bytes": reply, "pack": packing, "unpack": unpacking}


def measure(path: Path, folder: Path, queries: int, repeats: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure everything: an index with a catalogue, and a folder of segments as `endtoend.py` makes it."""
    found: dict[str, Any] = {"catalogue": drivercosts.catalogue(path)}
    tell("the catalogue is measured")
    found["index"] = of_index(path, queries)
    found["ray"] = drivercosts.ray_calls()
    tell(f"calls of Ray: {found['ray']['submit']:.6f} s to submit, drains {found['ray']['drain']}")
    segments = [Segment.open(one) for one in sorted(folder.iterdir())]
    engine = Engine(segments, segments[0].sizes)
    asked = asking(engine, queries)
    found["spread"] = spread(engine, asked, repeats)
    tell("the spread is measured")
    found["search"] = whole_searches(engine, asked[: max(3, queries // 4)], repeats)
    found["travelling"] = travelling(engine, asked)
    tell(f"whole searches: {found['search']}")
    batch, sizes = segments[0].live_batch(), segments[0].sizes
    found["variants"] = {}
    for name, (parts, planes) in VARIANTS.items():
        found["variants"][name] = variant(batch, sizes, parts, planes, max(4, queries // 3), repeats)
        tell(
            f"{name}: {json.dumps({k: v for k, v in found['variants'][name]['phases']['likelihood: vote'].items() if k != 'ratios'})}"
        )
    return found
