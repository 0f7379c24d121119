"""The tables of what was tried against an index and a server, and of what verification costs; written by `tables.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sources import markdown, result, where

OUTCOMES = {"same": "the right answer", "incomplete": "incomplete, and said so", "refused": "an error of one line"}
DECEIVING = {"wrong": "wrong", "died": "processes that died"}
STAGES = ("open", "first search", "later searches")


def tried() -> str:
    """Kills, power cuts, corruptions, fuzzed inputs and a server under load: how often, and how it ended."""
    rows = [_kills(), _power_cuts(), _corruptions(), _fuzzing(), _soak()]
    names = ("kills", "powerloss", "corruptions", "fuzz", "soak")
    dates = sorted({machine["date"] for name in names for machine in _machines(result(name))})
    note = f"Raw results: `benchmarks/results/`, {', '.join(f'`{name}.json`' for name in names)}; {dates[0]} to {dates[-1]}."
    return markdown(["tried", "how often", "how it ended"], rows) + "\n\n" + note


def _kills() -> list[str]:
    measured = result("kills")
    total = measured["total"]
    tried = f"{len(measured['jobs'])} kinds of work that write, killed at random moments"
    ended = f"of {total['committed']:,} committed images {total['lost']:,} lost; {total['failures']:,} indexes with errors, or where the work could not be done again"
    return [tried, f"{total['kills']:,} kills", ended]


def _power_cuts() -> list[str]:
    measured = result("powerloss")
    total = measured["total"]
    whole = sum(one["prefixes"] == one["calls"] + 1 for one in measured["jobs"].values())
    tried = (
        f"power cuts: prefixes of the recorded system calls of {len(measured['jobs'])} kinds of work, every prefix of {whole}"
    )
    ended = f"{total['failures']:,} states with anything lost, errors or another commit; in {total['continued']:,} the work was done again"
    return [tried, f"{total['prefixes']:,} prefixes, {total['states']:,} states of the disk", ended]


def _corruptions() -> list[str]:
    measured = result("corruptions")
    outcomes = measured["outcomes"]["all"]
    parts = [f"{outcomes.get(key, 0):,} {text}" for key, text in (*OUTCOMES.items(), *DECEIVING.items())]
    tried = f"one of the {measured['files']} files of an index changed: bits, bytes, blocks, cut, made longer; then searches"
    return [
        tried,
        f"{sum(outcomes.values()):,} corruptions",
        ", ".join(parts) + f"; repaired: {_counted(measured['repairs'])}",
    ]


def _counted(counts: dict[str, int]) -> str:
    return ", ".join(f"{number:,} {text}" for text, number in sorted(counts.items(), key=lambda one: -one[1]))


def _fuzzing() -> list[str]:
    measured = result("fuzz")
    found = [len(one["findings"]) for piece in measured["pieces"] for one in piece["targets"]]
    tried = f"coverage-guided fuzzing of {len(measured['inputs_by_target'])} kinds of files and requests (`scripts/fuzz`)"
    ended = f"{sum(found)} found, mended, and kept in `tests/fuzz/cases` where an input shows it"
    return [tried, f"{measured['inputs']:,} inputs", ended]


def _soak() -> list[str]:
    pieces = result("soak")["pieces"]
    statuses: dict[str, int] = {}
    for outcomes in (outcomes for piece in pieces for outcomes in piece["outcomes"].values()):
        for status, number in outcomes.items():
            statuses[status] = statuses.get(status, 0) + number
    failed = sum(number for status, number in statuses.items() if status in ("500", "507"))
    wrong = sum(len(piece["wrong"]) + len(piece["inconsistent"]) + len(piece["damage"]) for piece in pieces)
    minutes, requests = (sum(piece[key] for piece in pieces) for key in ("minutes", "requests"))
    rejected = sum(sum(piece["rejected_connections"].values()) for piece in pieces)
    tried = f"{pieces[0]['clients']} clients that search, upload, add, remove and misbehave (`benchmarks/soak.py`)"
    ended = (f"{_sum(statuses, '2'):,} served, {statuses.get('503', 0):,} times busy (503), {_sum(statuses, '4'):,} rejected (4xx), {failed:,} failed (500, 507); {wrong:,} "
             f"wrong responses or inconsistent images, {sum(piece['tracebacks'] for piece in pieces):,} tracebacks")  # fmt: skip
    return [tried, f"{minutes:.0f} minutes, {requests:,} requests, {rejected:,} connections rejected", ended]


def _sum(statuses: dict[str, int], first: str) -> int:
    return sum(number for status, number in statuses.items() if status.startswith(first) and status.isdigit())


def _machines(measured: dict[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield the machine of a result and of each of its pieces."""
    yield measured["machine"] if "machine" in measured else measured["pieces"][0]["machine"]
    if isinstance(measured.get("pieces"), list):
        yield from (piece["machine"] for piece in measured["pieces"])


def verification() -> str:
    """Milliseconds of opening and searching an index with and without verification."""
    measured = result("corruptions")
    cost = measured["cost"]
    rows = []
    for stage in STAGES:
        verified, plain = (1000 * cost["median_seconds"][f"{stage}, {way}"] for way in ("verified", "not verified"))
        rows.append([stage, f"{verified:.1f}", f"{plain:.1f}"])
    note = (f"Milliseconds, medians, in turns in one run: {cost['images']:,} images of {cost['features_per_image']:,} features, {cost['bytes'] / 1e9:.1f} GB on disk. `benchmarks/corruptions.py`; "
            f"{where(cost if 'machine' in cost else measured)}.")  # fmt: skip
    return markdown(["", "verified", "not verified"], rows, right=True) + "\n\n" + note


def decoding() -> str:
    """What decoding in processes of its own costs."""
    measured = result("decoding")
    each, index, search = measured["processor milliseconds"], measured["index"], measured["search"]
    return (f"Decoding a photograph takes {each['there']:.2f} ms of a processor in such a process, {each['here']:.2f} without; starting one {each['start']:.0f} ms. "
            f"Beside the last version that decoded in its own process, in turns, `polyvoc index` takes {index['ratio of seconds']:.2f} times as long for {measured['images']} photographs, with all else that "
            f"has changed since, and `polyvoc search` {search['ratio of seconds']:.2f} times. `benchmarks/decoding.py`; {where(measured)}.")  # fmt: skip


TABLES: dict[str, Callable[[], str]] = {"decoding": decoding, "tried": tried, "verification": verification}
