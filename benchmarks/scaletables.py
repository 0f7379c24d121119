"""The tables of docs/scale.md, from results/scale.json; written by `tables.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sources import markdown, result, where

SCORING = ("starts", "postings", "run_starts", "run_words", "run_lengths", "columns", "signatures")  # arrays that scoring reads
UNITS = (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("KB", 1e3))
BILLION = 10**9
ASSUMED = {
    "cores": "cores of a machine", "memory": "bytes of memory of a machine", "usable": "share of it for what scoring reads",
    "bandwidth": "bytes per second of its memory", "link": "bytes per second of its network", "round_trip": "seconds of a round trip between machines",
    "disk_read": "seconds of a random read of its disk", "machine_hour": "dollars for a machine and hour", "disk_month": "dollars for a GB and month",
    "load": "share of the capacity that is used", "candidates": "candidates verified",
}  # fmt: skip


def table(head: str, rows: list[list[str]]) -> str:
    return markdown(head.split(" | "), rows, right=True)


def plan(bits: int = 128) -> list[dict[str, Any]]:
    return [row for row in result("scale")["plan"] if row["bits"] == bits]


def size(value: float) -> str:
    unit, scale = next(((unit, scale) for unit, scale in UNITS if value >= scale), ("B", 1))
    return f"{value / scale:.{0 if value >= 100 * scale else 1}f} {unit}"


def count(value: float) -> str:
    for unit, scale in (("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:,.0f}"


def collection(row: dict[str, Any]) -> list[str]:
    return [count(row["images"]), str(row["features"])]


def ms(seconds: dict[str, float]) -> str:
    return " / ".join(f"{1000 * seconds[name]:.0f}" for name in ("p50", "p95", "p99"))


def money(value: float) -> str:
    return f"{value:,.2f}" if value < 10 else f"{value:,.0f}"


def sizes() -> str:
    """What a collection takes, with signatures of both lengths."""
    rows = []
    for long, short in zip(plan(128), plan(64), strict=True):
        both = [f"{size(long[name])} ({size(short[name])})" for name in ("memory_bytes", "disk_bytes")]
        rows.append([*collection(long), *both, f"{long['segments']:,}", f"{long['machines']} ({short['machines']})",
                     size(long["catalogue_bytes"]), size(4 * long["images"]), count(long["longest_lists"])])  # fmt: skip
    head = "images | features | in memory | on disk | segments | machines | catalogue | norms | postings per list"
    return table(head, rows) + "\n\n128 bits, in brackets 64; three vocabularies of 20,000 words."


def latencies() -> str:
    """The time of a search, simulated."""
    rows = [
        [*collection(row), f"{row['machines']} x {row['per_machine']}", count(row["postings_per_query"]), f"{row['core_seconds']:.1f} s",
         size(row["network_bytes"]), ms(row["alone"]), ms(row["loaded"]), f"{row['rate']['shards']:.1f}", f"{row['rate']['driver']:.0f}"]
        for row in plan()
    ]  # fmt: skip
    head = "images | features | machines x shards | postings | core time | network | alone, ms | half load, ms | queries/s, shards | queries/s, driver"
    note = ("`likelihood`, 128 bits, the best 100 verified; milliseconds p50 / p95 / p99, without reading the photograph. Rates: the most that the "
            "shards, and that one driver could serve; the smaller one holds.")  # fmt: skip
    return f"{table(head, rows)}\n\n{note}"


def costs() -> str:
    """The costs at assumed prices."""
    rows = [
        [*collection(row), f"{row['machines']}", money(row["month"]), money(row["per_thousand"]), f"{row['build']['machine_hours']:,.0f}",
         f"{row['build']['hours']:,.1f}", money(row["build"]["cost"])]
        for row in plan()
    ]  # fmt: skip
    head = "images | features | machines | $ per month | $ per 1,000 queries | building, machine hours | hours on these machines | building, $"
    assumed = result("scale")["assumptions"]
    note = (f"Assumed: ${assumed['machine_hour']:.2f} for a machine and hour, ${assumed['disk_month']:.2f} for a GB of disk and month, one replica; "
            f"queries at {100 * assumed['load']:.0f} % of the capacity, day and night.")  # fmt: skip
    return f"{table(head, rows)}\n\n{note}"


def levers() -> str:
    """One change at a time, at a billion images."""
    rows = [
        [name, f"{row['machines']} x {row['per_machine']}", size(row["memory_bytes"]), count(row["postings_per_query"]), f"{row['core_seconds']:,.0f} s",
         ms(row["alone"]), f"{row['rate']['shards']:.1f}", f"{row['rate']['driver']:.1f}", money(row["per_thousand"])]
        for name, row in result("scale")["levers"].items()
    ]  # fmt: skip
    head = "change | machines x shards | in memory | postings | core time | alone, ms | queries/s, shards | queries/s, driver | $ per 1,000"
    return table(head, rows)


def crowding() -> str:
    """p95 by the number of shards on a machine."""
    rows = [[*collection(row), *(f"{1000 * value:,.0f}" for value in row["all_shards_p95"].values())] for row in plan()]
    return markdown(["images", "features", *(f"{n} per machine" for n in plan()[0]["all_shards_p95"])], rows, right=True)


def kinds() -> str:
    """The measured costs of scoring by vocabulary and signature."""
    rows = []
    for name, entry in result("scale")["costs"]["variants"].items():
        fit = entry["phases"]["likelihood: vote"]
        memory = sum(entry["bytes_per_feature"][array] for array in SCORING)
        full = 2**24 / int(name.split()[0])
        each = fit["per_list"] + full * (fit["per_posting"] + fit["near_share"] * fit["per_near"])
        rows.append([name, f"{1e9 * fit['per_posting']:.1f} ns", f"{1e9 * fit['per_near']:.0f} ns", f"{100 * fit['near_share']:.0f} %",
                     f"{1e6 * fit['per_list']:.2f} us", f"{1e3 * fit['per_segment']:.2f} ms", f"{1e3 * fit['locked_per_segment']:.2f} ms", f"{full:,.0f}",
                     f"{1e6 * each:.1f} us", f"{memory:.1f}", f"{1e3 * entry['idf_seconds']:.1f} ms"])  # fmt: skip
    head = "vocabularies | posting | near posting | near | list | segment | with the lock | postings of a list | whole list | bytes in memory | idf"
    return table(head, rows)


def tails() -> str:
    """What replicas give at low load."""
    rows = [
        [count(row["images"]), row["how"], str(row["shards"]), f"{row['rate']:.1f}", f"{1000 * row['one_shard']:.0f}", ms(row)]
        for row in result("scale")["tails"]
    ]
    return table("images | replicas | shards | queries/s | one shard, ms | all, ms", rows)


def check() -> str:
    """Predicted beside measured."""
    rows = [
        [row["what"], row["source"], f"{1000 * row['predicted']:.1f}", f"{1000 * row['measured']:.1f}", f"{row['ratio']:.2f}"]
        for row in result("scale")["check"]
    ]
    return table("search | measured in | predicted, ms | measured, ms | ratio", rows)


def driver() -> str:
    """What the driver stores and does."""
    measured = result("scale")["costs"]
    held, ray, travel = measured["catalogue"], measured["ray"], measured["travelling"]["likelihood: vote"]
    segments = next(row["segments"] for row in plan() if row["images"] == BILLION)
    norms = result("engine")["sizes"]["65536 images, K=3"]["norms_seconds"] / 0.065536
    rows = [
        ["catalogue on disk, per image", f"{held['file_bytes_per_image']:.0f} B (paths of {held['path_bytes']:.0f} B)", size(held["file_bytes_per_image"] * BILLION)],
        ["a row of the catalogue in memory", f"{held['row_bytes_in_memory']:.0f} B", size(held["row_bytes_in_memory"] * BILLION)],
        ["reading all rows", f"{held['rows_per_second']:,.0f} rows/s", f"{BILLION / held['rows_per_second'] / 60:,.0f} minutes"],
        ["looking up the row of a hit", f"{1e6 * held['lookup_seconds']:.0f} us", "a deeper tree, no more"],
        ["mapping a segment", f"{1e3 * held['map_segment_seconds']:.1f} ms", f"{segments * held['map_segment_seconds']:,.0f} s by one process"],
        ["reading the rows of all segments, after each batch", f"{1e6 * held['segment_row_seconds']:.0f} us per segment", f"{segments * held['segment_row_seconds']:.1f} s"],
        ["computing the norms of all images (`engine.json`, 3 vocabularies, one core)", f"{norms:.1f} s per million", f"{norms * 1000 / 3600:.1f} hours"],
        ["statistics, packed", size(held["statistics_bytes"]), "grow with the words, not the images"],
        ["scores of all images (`smooth`, `fuse`, `score_words`)", "4 B per image and query", size(4 * BILLION)],
        ["ids and live positions of all images", "16 B per image", size(16 * BILLION)],
        ["norms, one file", "4 B per image", size(4 * BILLION)],
        ["a call of Ray, the whole way, p50 / p99", f"{1e3 * ray['round_trip'][50]:.2f} / {1e3 * ray['round_trip'][99]:.2f} ms", ""],
        ["submitting a call", f"{1e6 * ray['submit']:.0f} us", ""],
        ["taking one reply of 8 / 512", f"{1e6 * ray['drain']['8']:.0f} / {1e6 * ray['drain']['512']:.0f} us", ""],
        ["bytes to a shard, 500 query features", size(travel["bytes"] + 500 * travel["bytes_per_feature"]), ""],
    ]  # fmt: skip
    return table("what | measured | at a billion images, 500 features", rows)


def assumptions() -> str:
    """All that was not measured."""
    values = result("scale")["assumptions"].items()
    return table(
        "assumption | value | option", [[ASSUMED[name], f"{v:,g}", f"`--{name.replace('_', '-')}`"] for name, v in values]
    )


def provenance() -> str:
    """Where and when it was measured."""
    return f"Costs measured on: {where({'machine': result('scale')['costs']['measured_on']})}."


TABLES: dict[str, Callable[[], str]] = {
    "scale_sizes": sizes, "scale_latencies": latencies, "scale_costs": costs, "scale_levers": levers, "scale_crowding": crowding, "scale_kinds": kinds,
    "scale_tails": tails, "scale_check": check, "scale_driver": driver, "scale_assumptions": assumptions, "scale_provenance": provenance,
}  # fmt: skip
