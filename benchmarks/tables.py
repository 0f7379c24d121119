"""Write the tables of README.md and docs/*.md from the results, between their markers: `python benchmarks/tables.py`.

A test compares the pages with what this writes, so a table holds only what was measured.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import codetables
import kindtables
import papertables
import scaletables
import securitytables
import tooltables
from sources import DIGITS, SETS, bold, markdown, result, where

ROOT = Path(__file__).parent.parent
ALTERNATIVES = {
    "scoring": "Scores: one choice changed at a time",
    "geometry": "Verification",
    "proof": "Weight of inliers: nats that about double a score",
    "expansion": "Query expansion",
}
RENAMED = {  # rows of the results in today's words
    "evidence by cardinality ratio too, 7 bins": "likelihood table by cardinality ratio too, 7 bins",
    "likelihood instead of both": "likelihood instead of `bayes` and Gaussian",
    "Bayes merging instead of b1": "`bayes` by feature sets instead of `b1`",
    "rule: bayes + HE (52, 26)": "rule: `bayes` by feature sets + HE (52, 26)",
}


def accuracy() -> str:
    """Every rule, two and three vocabularies, both sets, with the differences to `b1`."""
    measured = result("accuracy")["sets"]
    rows = []
    for rule in measured["holidays"]["K=2"]:
        name, rest = re.match(r"(\w+)(.*)", rule).groups()  # type: ignore[union-attr]
        row = [f"`{name}`" + rest.replace("HE + burstiness", "HE + bursts")]
        for key, digits in DIGITS.items():
            for k in ("K=2", "K=3"):
                value, gain = (measured[key][k][rule][part] for part in ("value", "gain"))
                difference = "" if gain is None else " (" + bold(f"{gain['mean']:+.{digits}f}", gain) + ")"
                row.append(f"{value['mean']:.{digits}f}{difference}")
        rows.append(row)
    head = ["rule", "Holidays mAP, K=2", "K=3", "Ukbench N-S, K=2", "K=3"]
    sizes = {name: measured[name]["images"] for name in SETS}
    lines = {name: line_text(measured[name]["line"]) for name in SETS}
    note = (f"{sizes['holidays']} photographs of Holidays (150 queries), {sizes['ukbench']} of Ukbench (all are queries); in brackets the difference to "
            f"`b1` under the same conditions, bold if its 95 % bootstrap interval leaves out zero. Term 2, each fitted on the other set: Holidays {lines['holidays']}, "
            f"Ukbench {lines['ukbench']}.")  # fmt: skip
    return markdown(head, rows) + "\n\n" + note


def line_text(line: dict[str, Any]) -> str:
    """Return the line of term 2 of feature sets, and that of image sets if it was fitted."""
    kinds = {"": "a_b", " for image sets": "image_a_b"}
    return ", ".join("{:.2f} r + {:.2f}".format(*line[key]) + suffix for suffix, key in kinds.items() if key in line)


def components() -> str:
    """From the simplest search to the best, one component at a time."""
    measured = result("components")
    note = ("In brackets the difference to the row above with its 95 % bootstrap interval, bold if that leaves out zero. ms: processor time of scoring, "
            f"verifying and expanding a query of Holidays, median, and how many times that of the row above; {where(measured)}.")  # fmt: skip
    return markdown(["search", *SETS.values(), "ms", "times"], steps(measured, "cumulative")) + "\n\n" + note


def alternatives() -> str:
    """Each choice changed alone: of scores, of verification, of expansion, of links, of fusion."""
    measured = result("components")
    parts = []
    for table, title in ALTERNATIVES.items():
        rows = steps(measured, table)
        parts.append(f"**{title}**\n\n" + markdown(["choice", *SETS.values(), "ms", "times"][: len(rows[0])], rows))
    parts.append(
        "**Smoothing and diffusion over linked images: settings chosen on the other set**\n\n"
        + markdown(["choice", *SETS.values()], neighbours(measured))
    )
    fused = markdown(["ranking", *SETS.values()], steps(measured, "fusion"))
    parts.append(f"**Late fusion with a global embedding**\n\n{fused}")
    note = ("Differences: to the first row of each table; of the fused ranking: to the better of its two parts. ms: processor time on Holidays, and how many "
            f"times that of the first row; {where(measured)}.")  # fmt: skip
    return "\n\n".join([*parts, note])


def steps(measured: dict[str, Any], table: str) -> list[list[str]]:
    """Return one row per way of ranking: both values with their differences, the time and its ratio."""
    rows = []
    for name, entry in measured["sets"]["holidays"][table].items():
        row = [
            RENAMED.get(name, name),
            *(changed(measured["sets"][key][table][name], digits) for key, digits in DIGITS.items()),
        ]
        ratio = "" if entry["ratio"] is None else f"{entry['ratio']:.1f}"
        rows.append([*row, f"{entry['ms']:.0f}", ratio] if entry["ms"] else row)
    return rows


def changed(entry: dict[str, Any], digits: int) -> str:
    """Return a value, and its difference with the interval."""
    text, gain = f"{entry['value']['mean']:.{digits}f}", entry["gain"]
    if gain is None:
        return text
    mean, low, high = (f"{gain[end]:+.{digits}f}" for end in ("mean", "low", "high"))
    return f"{text} ({bold(mean, gain)}; {low} to {high})"


def neighbours(measured: dict[str, Any]) -> list[list[str]]:
    """Return rows of smoothing and diffusion, after verification and after expansion; for each set the setting that is best on the other."""
    sets = {name: entry["neighbours"] for name, entry in measured["sets"].items()}
    rows = []
    for stage in ("verified", "expanded"):
        rows.append([stage, *(changed(sets[name][stage], digits) for name, digits in DIGITS.items())])
        for kind in ("smoothing", "diffusion"):
            row = [f"{stage}, {kind}"]
            for name, digits in DIGITS.items():
                other = next(entries for key, entries in sets.items() if key != name)
                settings = [key for key in other if key.startswith(f"{stage}, {kind}")]
                best = max(settings, key=lambda key, other=other: other[key]["value"]["mean"])
                row.append(f"{changed(sets[name][best], digits)}, {best.split(', ', 2)[2]}")
            rows.append(row)
    return rows


def pareto() -> str:
    """The points that no other beats at the same cost, for bytes and for milliseconds."""
    measured = result("pareto")
    points = {point["name"]: point["sets"] for point in measured["points"]}
    parts = []
    for cost, title in (("bytes", "bytes per feature"), ("ms", "milliseconds per query")):
        for name, head in SETS.items():
            rows = []
            for one in measured["fronts"][name][cost]:
                point = points[one][name]
                value, digits = point["value"], DIGITS[name]
                interval = f"{value['mean']:.{digits}f} ({value['low']:.{digits}f} to {value['high']:.{digits}f})"
                rows.append([one, f"{point['bytes']:.1f}", f"{point['ms']:.1f}", interval])
            parts.append(f"**{head} against {title}**\n\n" + markdown(["search", "bytes", "ms", head], rows))
    return "\n\n".join([*parts, where(measured) + "."])


def peers() -> str:
    """polyvoc's presets beside other packages on the same descriptors, and how far the best preset is ahead."""
    measured = result("peers")
    rows = []
    for name, method in measured["sets"]["holidays"]["methods"].items():
        row = [name]
        for each, digits in DIGITS.items():
            entry = measured["sets"][each]["methods"].get(name)
            if entry is None:
                row += ["not run", ""]
                continue
            lead = "" if name == "polyvoc best" else f" ({entry['difference']['mean']:+.{digits}f})"
            row += [f"{entry['value']['mean']:.{digits}f}{lead}", f"{entry['median_milliseconds']:.0f}"]
        rows.append([*row, f"{method['bytes_per_feature']:.1f}"])
    head = ["method", "Holidays mAP (lead of `--best`)", "ms", "Ukbench N-S (lead)", "ms", "bytes per feature"]
    packages = ", ".join(f"{name} {version}" for name, version in measured["packages"].items())
    queries = {name: entry["queries"] for name, entry in measured["sets"].items()}
    return markdown(head, rows) + (
        f"\n\n{queries['holidays']} queries of Holidays, {queries['ukbench']} of Ukbench. Milliseconds: median of a query with quantisation, without extraction, "
        f"{measured['threads']} threads, the methods in turn; {packages}; {where(measured)}."
    )


SHOWN_PEERS = ("polyvoc fast", "polyvoc default", "polyvoc best", "polyvoc best + embedding", "asmk, idf", "asmk 65K, idf",
               "asmk, whole vectors", "pycolmap, 100 verified", "embedding", "perceptual hash")  # fmt: skip


def readme_peers() -> str:
    """The presets beside the strongest form of each other package: for README."""
    sets = result("peers")["sets"]
    rows = []
    for name in SHOWN_PEERS:
        entries = [(sets[each]["methods"][name], digits) for each, digits in DIGITS.items()]
        values = [(f"{entry['value']['mean']:.{digits}f}", f"{entry['median_milliseconds']:.0f}") for entry, digits in entries]
        rows.append([name, *(cell for pair in values for cell in pair), f"{entries[0][0]['bytes_per_feature']:.0f}"])
    return markdown(["method", "Holidays mAP", "ms", "Ukbench N-S", "ms", "bytes per feature"], rows)


def readme_speed() -> str:
    """One line on speed: for README."""
    found, million = result("search"), result("million")["sizes"]["1000000"]["10 words"]["median_seconds"]
    warm = found["warm_median_seconds"]
    return (f"Speed on two cores: a warm search in {found['index']['images']:,} photographs takes {1000 * warm['all']:.0f} ms, SIFT included; "
            f"over a million images it takes {1000 * million['default, 2 threads']:.0f} ms from descriptors to verified hits; indexing reads "
            f"{found['index']['photographs_per_second']:.0f} photographs per second.")  # fmt: skip


def endtoend() -> str:
    """The time of a search over many images, by stage."""
    measured = result("endtoend")
    rows = []
    for name, seconds in measured["median_seconds"].items():
        stages = [f"{1000 * seconds[stage]:.0f} ms" for stage in ("decode", "sift", "quantise", "rank", "all")]
        rows.append([name if name == "default" else f"`--{name}`", *stages])
    parts = {threads: {k: 1000 * v for k, v in row.items()} for threads, row in measured["verification_median_seconds"].items()}
    one, both = parts["1 thread"], parts["all threads"]
    return markdown(["preset", "decode", "SIFT", "quantise", "score, verify, expand", "all"], rows) + (
        f"\n\nA 1024-pixel photograph against {measured['images']:,} images ({measured['features'] / 1e6:.0f} million features, "
        f"{measured['bytes_per_feature']['all']:.1f} bytes each with words of two vocabularies), warm, two cores. Scoring alone takes {both['score']:.0f} ms (one thread {one['score']:.0f}), verifying 200 "
        f"candidates {both['verify 200']:.0f} ms ({one['verify 200']:.0f}); {where(measured)}."
    )


def serve() -> str:
    """Requests per second of a server, their times, and what HTTP adds to a search."""
    measured = result("serve")
    rows = []
    for kind, levels in measured["load"].items():
        for clients, entry in levels.items():
            times = [f"{entry['ms'][name]:.0f} ms" for name in ("p50", "p95", "p99")]
            rows.append([kind, clients, f"{entry['per_second']:.1f}", *times, str(entry["busy"])])
    added = {kind: entry["overhead_ms"]["p50"] for kind, entry in measured["overhead"].items()}
    alone = {kind: entry["library_ms"]["p50"] for kind, entry in measured["overhead"].items()}
    outside = {kind: entry["outside_the_stages_ms"]["p50"] for kind, entry in measured["overhead"].items()}
    sift = {name: stages["sift"] for name, stages in measured["overhead"]["upload"]["stages_ms"].items()}
    memory, setup = measured["memory"], measured["settings"]
    own = memory["own"]
    failed = sum(len(entry["failed"]) for levels in [*measured["load"].values(), {"": memory}] for entry in levels.values())
    note = (
        f"{measured['images']:,} images ({measured['features'] / 1e6:.0f} million features), {setup['workers']} searches at a time, {setup['queue']} may wait; "
        f"server and clients share the machine. Times are of completed requests; the last column counts replies with status 503, besides which "
        f"{failed or 'nothing'} failed. Compared with the same search in the library ({alone['by id']:.0f} ms by id, {alone['upload']:.0f} ms for a file) one client waits "
        f"{added['by id']:+.1f} ms longer by id, {added['upload']:+.1f} ms for an upload (medians of pairs); {outside['by id']:.1f} and {outside['upload']:.1f} ms are outside the stages of the search. "
        f"(SIFT takes {sift['library']:.0f} ms in the library's process, {sift['server']:.0f} ms in the server's.) Over {memory['requests']:,} mixed requests the server's own memory went from "
        f"{own['first_third_mb']:.0f} MB (mean of the first third) to {own['last_third_mb']:.0f} MB (of the last); {where(measured)}."
    )
    return markdown(["search", "clients", "requests per second", "p50", "p95", "p99", "503"], rows) + "\n\n" + note


def ray() -> str:
    """A search over Ray beside the same search on one machine, stage by stage; and the rate of indexing."""
    measured = result("ray")
    served, built = measured["serving"], measured["building"]
    rows = []
    for shards, entry in served["shards"].items():
        for name in ("fast", "default", "posterior", "best"):
            search = entry[name]
            times = search["milliseconds"]
            rows.append([
                shards, name, f"{times['local']:.1f} ({times['one_thread']:.1f})", f"{times['ray']:.1f}", f"{search['overhead']:+.1f}",
                " + ".join(f"{value:.1f}" for value in search["fan_outs"]),
                f"{search['bytes_sent'] / 1e3:,.0f} + {search['bytes_received'] / 1e3:,.0f} KB",
            ])  # fmt: skip
    head = ["shards", "search", "one machine, ms (one thread)", "Ray, ms", "difference", "fan-outs, ms", "sent + received"]
    empty = ", ".join(f"{entry['empty_fan_out']:.1f} ms for {shards}" for shards, entry in served["shards"].items())
    way = served["transport"]
    rates = ", ".join(
        f"{name} {entry['photographs_per_second']:.1f}" for name, entry in built.items() if isinstance(entry, dict)
    )
    note = (
        f"{served['images']:,} images ({served['features'] / 1e6:.0f} million features) in {served['segments']} segments, {served['searches']} of them are queries, {served['shards']['1']['default']['features']:,} features on average, "
        f"on one machine and over Ray in turn: two Ray nodes on the same machine, one core each, and the driver beside them. Medians; the difference is that of pairs. `posterior` has two phases (count, vote), the others one; "
        f"verification follows, and for `best` query expansion, scoring and verification again. A fan-out without work: {empty} shards. {way['bytes'] / 1e3:.0f} KB to another node take {way['pieces']:.1f} ms in pieces along with a call, {way['object_store']:.1f} ms by Ray's object store. "
        f"Photographs indexed per second, of {built['photographs']}: {rates}; {where(measured)}."
    )
    return markdown(head, rows) + "\n\n" + note


def engine() -> str:
    """Bytes, times and ratios of the engine at each size."""
    measured = result("engine")
    rows = []
    for name, entry in measured["sizes"].items():
        median, ratio = entry["median_seconds"], entry["ratios"]
        rows.append([
            name,
            f"{entry['bytes_per_feature']['scoring']:.2f}",
            f"{1000 * median['b1, 2 threads']:.0f}",
            f"{1000 * median['bayes, 2 threads']:.0f}",
            f"{1000 * median['posterior, 2 threads']:.0f}",
            f"{1000 * median['bayes + signatures, 2 threads']:.0f}",
            f"{ratio['bayes / b1']:.2f}",
            f"{ratio['b1 / bare, every list as often as named']:.2f}",
        ])  # fmt: skip
    head = ["index", "bytes per feature", "`b1` ms", "`bayes` ms", "`posterior` ms", "`bayes` + signatures ms", "`bayes` / `b1`",
            "`b1` / bare scatter-add"]  # fmt: skip
    note = (f"Scoring of a {measured['query_features']}-feature query, {measured['features_per_image']} features per image, 20,000 words "
            f"per vocabulary, sets of features, two threads (ratios: one thread, medians of the same run); {where(measured)}.")  # fmt: skip
    return markdown(head, rows) + "\n\n" + note


def search() -> str:
    """The time of one search, by stage."""
    measured = result("search")
    warm = measured["warm_median_seconds"]
    row = [f"{1000 * warm[name]:.0f} ms" for name in ("decode", "sift", "quantise", "score", "all")]
    row.append(f"{measured['command_median_seconds']:.1f} s")
    sift = measured["sift_median_seconds"]
    note = (f"A 1024-pixel photograph ({warm['features']:.0f} features) against {measured['index']['images']} photographs, the best of them verified. SIFT "
            f"on one thread takes {1000 * sift['one thread']:.0f} ms, on all {1000 * sift['all']:.0f}; that of OpenCV {1000 * sift['opencv']:.0f}. Indexing them "
            f"took {measured['index']['seconds']:.0f} s ({measured['index']['photographs_per_second']:.1f} photographs per second), a second "
            f"run over the unchanged folder {measured['second_run']['seconds_in_process']:.2f} s after start-up; {where(measured)}.")  # fmt: skip
    return markdown(["decode", "SIFT", "quantise", "score", "all, warm", "whole command"], [row]) + "\n\n" + note


TABLES: dict[str, Callable[[], str]] = {
    "accuracy": accuracy, "alternatives": alternatives, "components": components, "endtoend": endtoend, "engine": engine,
    "peers": peers, "ray": ray, "readme_peers": readme_peers, "readme_speed": readme_speed,
    "pareto": pareto, "search": search, "serve": serve, **papertables.TABLES, **scaletables.TABLES,
    **tooltables.TABLES, **codetables.TABLES, **kindtables.TABLES, **securitytables.TABLES,
}  # fmt: skip


def documents() -> list[Path]:
    """Return the pages with tables."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def with_tables(text: str) -> str:
    """Return the text with every table made again."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.S)
        text = pattern.sub(lambda match, make=make: f"{match[1]}{make()}\n{match[2]}", text)
    pattern = re.compile(r"(<!-- report: (\w+) ?(\d*) -->\n).*?(<!-- end -->)", re.S)
    return pattern.sub(lambda match: f"{match[1]}{papertables.findings(match[2], match[3])}\n{match[4]}", text)


if __name__ == "__main__":
    for document in documents():
        document.write_text(with_tables(document.read_text(encoding="utf-8")), encoding="utf-8")
