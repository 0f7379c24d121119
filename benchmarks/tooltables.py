"""The tables on pairs, duplicates, probabilities and kinds of features, from their results; written by `tables.py`."""

from __future__ import annotations

import statistics as st
from collections.abc import Callable
from typing import Any

from sources import DIGITS, SETS, bold, markdown, result, where

WAYS = {
    "b1": "words alone (`b1`)",
    "posterior": "words, merged (`posterior`)",
    "b1 + HE + best": "with signatures (`b1`)",
    "posterior + HE + best": "with signatures (`posterior`)",
    "fast, shipped table": "`fast`",
    "default, shipped table": "`default`",
    "fast, own table": "`fast`, calibrated",
    "default, own table": "`default`, calibrated",
}


def features() -> str:
    """Kinds of features side by side: their cost, and the accuracy of each way of searching."""
    measured = result("features")
    kinds, training = measured["features"], measured["training"]
    shared = [way for way in WAYS if all(way in one[name]["ranked"] for one in kinds.values() for name in SETS)]
    head = ["", *(one["kind"] if name != "affine" else "affine, as " + one["kind"] for name, one in kinds.items())]
    rows = []
    for name, title in SETS.items():
        every = [one[name] for one in kinds.values()]
        rows.append(
            [f"{title.split()[0]}: features per photograph", *(f"{one['features_per_photograph']:,.0f}" for one in every)]
        )
        rows.append(["milliseconds to find them", *(f"{1000 * one['seconds_per_photograph']:.0f}" for one in every)])
        rows += [[f"{title}, {WAYS[way]}", *(f"{one['ranked'][way]:.{DIGITS[name]}f}" for one in every)] for way in shared]
    note = (f"{training['vocabularies']} vocabularies of {training['words']:,} words for every kind, each trained on {training['descriptors']:,} descriptors of "
            f"{training['photographs']:,} other photographs: fewer than for the shipped ones, the same for all. The likelihood table of the presets was fitted on SIFT of both sets. Calibrated: with a likelihood table fitted without labels on an index of the other set, "
            f"as by `polyvoc calibrate --index`. SIFT is that of OpenCV (`opencv-sift`). Time on one core. `benchmarks/features.py`; {where(measured)}.")  # fmt: skip
    return markdown(head, rows) + "\n\n" + note


def extraction() -> str:
    """Detectors of SIFT, long sides and numbers of features: milliseconds, bytes, accuracy."""
    measured = result("extraction")
    head = ["", "ms", "features", "kB", "mAP", "region", "crop", "ms", "features", "kB", "N-S"]
    rows = []
    for one in measured["ways"]:
        cells = [one["way"]]
        for name in SETS:
            own, both = one[name], ("fast", "default")
            cells += [f"{own['milliseconds']:.0f}", f"{own['features']:,.0f}", f"{own['bytes'] / 1000:.0f}"]
            kinds = ("", "region, ", "file, ") if name == "holidays" else ("",)
            cells += [" / ".join(f"{own[kind + preset]:.{DIGITS[name]}f}" for preset in both) for kind in kinds]
        rows.append(cells)
    note = (f"Holidays ({measured['images']['holidays']} photographs of 1024 pixels: the left seven columns) and Ukbench ({measured['images']['ukbench']} of 640 pixels); their usual questions, "
            "by the presets `fast` / `default`, with the shipped vocabularies and likelihood table. Region: the query is the middle of the photograph, half its width and height; crop: the middle as a file of its own. "
            f"Milliseconds to find the features on one thread, median of {measured['timed']} photographs; kB of an index per photograph. `benchmarks/extraction.py`; {where(measured)}.")  # fmt: skip
    return markdown(head, rows) + "\n\n" + note


def duplicates() -> str:
    """Recall and precision per alteration, beside perceptual hashes at two thresholds."""
    measured = result("duplicates")
    hashes = {f"{name}, {at}": held[at] for name, held in measured["hashes"].items() for at in ("usual", "best")}
    ways = {"polyvoc": measured["polyvoc"], **hashes}
    rows = []
    for name in measured["polyvoc"]["alterations"]:
        cells = [
            f"{percent(way['alterations'][name]['recall'])} / {percent(way['alterations'][name]['precision'])}"
            for way in ways.values()
        ]
        rows.append([name, *cells])
    rows.append(["all", *(f"**{percent(way['recall'])} / {percent(way['precision'])}**" for way in ways.values())])
    seconds, times = measured["seconds"], {name: held.get("seconds", 0.0) for name, held in measured["hashes"].items()}
    heads = [f"{name} ({way['threshold']} bits)" if "threshold" in way else name for name, way in ways.items()]
    note = (f"Recall / precision in %: is the altered photograph linked with its original; are the images it is linked with copies of it? {measured['photographs']:,} photographs, "
            f"{measured['originals']} of them altered in each way; shown is the half of the scenes that no coefficient was fitted on, at a minimum probability of {measured['sure']:g}. "
            "The best threshold of each hash was chosen on these same photographs. " + (f"polyvoc: indexing "
            f"{seconds['index']:.0f} s, comparison {seconds['copies']:.0f} s, mirror images {seconds['mirror images']:.0f} s, groups {seconds['groups']:.0f} s; hashes without comparing: "
            + ", ".join(f"{name} {value:.0f} s" for name, value in times.items()) + "; " if seconds else "") + f"{where(measured)}.")  # fmt: skip
    return markdown(["alteration", *heads], rows) + "\n\n" + note


def duplicate_classes() -> str:
    """Precision and recall of each class of a pair, on all pairs and within series of hand-held shots; wrong moves."""
    measured = result("duplicates")
    classes, moves = measured["classes"], measured["moves"]
    every, series = classes["all"], classes["natural series"]
    rows = [
        [name, f"{row['pairs']:,}" if "pairs" in row else "", f"{100 * row['precision']:.2f}", f"{100 * row['recall']:.2f}",
         f"{series[name].get('second_shots_of_series', series[name]['called']):,}"]
        for name, row in every.items()
    ]  # fmt: skip
    head = ["called", "pairs of this class", "precision", "recall", "natural pairs called so"]
    note = (f"In %, of the {measured['pairs']['tested']:,} pairs of the half of the scenes that no coefficient was fitted on: {classes['series_pairs']:,} of them are second shots in hand-held series of Holidays and Ukbench "
            f"as they were taken, the others have an altered photograph on one side at least. Copies at 0.99: {every['copy at 0.99']['called']:,} pairs. `--move` at {moves['probability']:g} would move {moves['moved']:,} files of these scenes: "
            f"{moves['expected_wrong']:.1f} expected wrong, {len(moves['wrong'])} wrong. {where(measured)}.")  # fmt: skip
    return markdown(head, rows) + "\n\n" + note


def duplicate_times() -> str:
    """Seconds of each stage of `duplicates`, by the number of photographs."""
    measured = result("duplicates_times")
    head = ["photographs", *(f"{stage}, s" for stage in measured["seconds"][0]["stages"]), "pairs"]
    rows = [[f"{one['photographs']:,}", *(f"{stage['processor']:.0f}" for stage in one["stages"].values()), f"{one['pairs']:,}"]
            for one in measured["seconds"]]  # fmt: skip
    return (
        markdown(head, rows)
        + f"\n\nSeconds of processor time, all cores together; nothing but new photographs is compared by later runs. {where(measured)}."
    )


def percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}"


def confidence() -> str:
    """Predicted probabilities of hits beside their truth, on the set that the coefficients were not fitted on."""
    measured = result("confidence")
    rows = []
    for name, found in measured["crossed"].items():
        for size, entry in [*((f"{int(size):,}", one) for size, one in found["sizes"].items()), ("all", found["all"])]:
            rows += [[name.capitalize(), size, kind, *_probabilities(one)] for kind, one in entry.items()]
    for way, sets in measured["variants"].items():
        rows += [[name.capitalize(), way, "verified", *_probabilities(entry["verified"])] for name, entry in sets.items()]
    head = [
        "queries",
        "photographs",
        "hits",
        "calibration error, %",
        "of first hits",
        "Brier",
        "log loss",
        "no hit, rightly, %",
        "first hits kept, %",
    ]
    note = (f"Queries: {measured['questions']}, with and without their right answers in the collection, ten hits each; {measured['words']}. The coefficients were "
            f"fitted on the other set; {measured['evidence'].replace('table of evidence', 'likelihood table').replace('tables of evidence', 'likelihood tables')}. Calibration error: mean difference of predicted probability and truth over tenths, with its 95 % bootstrap interval. No hit: share of the "
            "searches without a right answer that return no hit, at a minimum probability of 0.5, 0.9, 0.99; kept: share of the right first hits that remain. Rows below "
            f"\"all\": another preset, other numbers of words, with the same coefficients; {where(measured)}.")  # fmt: skip
    return markdown(head, rows) + "\n\n" + note


def order() -> str:
    """The order by score and by probability, of the presets and of the rules which hits expand a query."""
    measured = result("expansion")
    rows = []
    for way in measured["sets"]["holidays"]["groups"]:
        row = [f"**{way}**" if way == measured["used"] else way]
        for name, one in measured["sets"].items():
            for kind in ("groups", "pairs"):
                entry = one[kind][way]
                texts = [f"{entry[by]['value']['mean']:.1f}" if by in entry else "-" for by in ("score", "probability")]
                gain = entry["probability"]["difference"] if "probability" in entry else None
                texts[1] += "" if gain is None or way == "default" else f" ({bold(format(gain['mean'], '+.1f'), gain)})"
                if name == "ukbench" and kind == "groups":
                    texts = [f"{text}; {entry[by]['ns']:.3f}" if by in entry else text
                             for text, by in zip(texts, ("score", "probability"), strict=True)]  # fmt: skip
                row += texts
        rows.append(row)
    head = ["search"]
    for name in ("Holidays", "Holidays, one answer", "Ukbench", "Ukbench, one answer"):
        head += [f"{name}: by score", "by probability"]
    sizes = {name: (one["queries"], one["images"]) for name, one in measured["sets"].items()}
    note = (f"mAP (Ukbench also N-S), in brackets the difference to the default by probability, bold if its 95 % bootstrap interval leaves out zero. {sizes['holidays'][0]} queries of Holidays among "
            f"{sizes['holidays'][1]:,} photographs, {sizes['ukbench'][0]} of Ukbench among {sizes['ukbench'][1]:,}; the query is not in the collection. One answer: the other right answers "
            "were left out. The likelihood table and the probabilities were fitted on the other set. *1 or more from 0.99*: hits expand the query if their probability is at least 0.99, and "
            f"there is at least one of them; in bold the rule of `--best`. On the first half of the groups of both sets, *{measured['chosen']}* was the best of those that lose nowhere, in neither order, against the same search without expansion; "
            f"by probability, the values on the second half: {_second_halves(measured)}. *Hits by inliers alone*: the rule where there is no probability; {where(measured)}.")  # fmt: skip
    return markdown(head, rows) + "\n\n" + note


def _second_halves(measured: dict[str, Any]) -> str:
    """Return the values of the default and of the chosen rule on the half of the groups that it was not chosen on."""
    parts = []
    for name, one in measured["sets"].items():
        for kind, text in (("groups", ""), ("pairs", ", one answer")):
            default, chosen, used = (
                one[kind][way]["probability"]["halves"][1] for way in ("default", measured["chosen"], measured["used"])
            )
            others = "" if measured["chosen"] == measured["used"] else f", that of `--best` {used:.2f}"
            parts.append(f"{name.capitalize()}{text} {chosen:.2f}{others} (default {default:.2f})")
    return "; ".join(parts)


def answers() -> str:
    """Calibration of the hits that are shown, ordered by probability, and how often nothing is found."""
    measured = result("expansion")
    rows = []
    for name, one in measured["sets"].items():
        for way, entry in one["calibration"].items():
            rows.append([
                name.capitalize(), "`--best`" if way == measured["used"] else way, f"{entry['error']:.1f}", f"{entry['brier']:.3f}", f"{entry['log_loss']:.3f}",
                f"{entry['likely_right']:.1f}", f"{entry['nothing_rightly']:.1f}", f"{entry['nothing_wrongly']:.1f}",
            ])  # fmt: skip
    head = [
        "queries",
        "search",
        "calibration error, %",
        "Brier",
        "log loss",
        "likely hits right, %",
        "nothing found, rightly, %",
        "wrongly, %",
    ]
    note = ("Ten hits of each search, ordered by probability: with all right answers in the collection, with one, and without any. Nothing found, rightly: of the "
            f"searches without a right answer; wrongly: of those with one right answer that is the first hit; {where(measured)}.")  # fmt: skip
    return markdown(head, rows) + "\n\n" + note


def _probabilities(entry: dict[str, Any]) -> list[str]:
    every, first, thresholds = entry["all"], entry["first"], entry["sure"].values()
    low, high = every["error_interval"]
    error = f"{100 * every['error']:.1f} ({100 * low:.1f} to {100 * high:.1f})"
    shares = [" / ".join(f"{100 * one[key]:.0f}" for one in thresholds) for key in ("empty", "kept")]
    return [error, f"{100 * first['error']:.1f}", f"{every['brier']:.3f}", f"{every['log_loss']:.3f}", *shares]


def pairs() -> str:
    """Recall of true pairs against the length of the lists, and seconds, beside COLMAP's vocabulary tree."""
    measured = result("pairs")
    rows = []
    for name, one in measured["methods"].items():
        if isinstance(one["recall"], list):
            seconds = one["index_seconds"], one["pairs_seconds"]
            rows.append(
                [name, *(percent(share) for share in one["recall"]), *(f"{value:.0f}" for value in (*seconds, sum(seconds)))]
            )
    head = ["true pairs found, %", *(f"top {k}" for k in measured["ranks"]), "s to index", "s for pairs", "s together"]
    kept, beside = measured["methods"]["polyvoc pairs --verify"], measured["searches"]
    ratios = "; ".join(f"{one['images']:,} images {one['search_ms']:.1f} ms one by one, {one['batch_ms']:.1f} in the batch ({one['ratio']:.1f} times "
                       f"as fast; {percent(one['same_lists'])} % of the same images in the lists)" for one in beside.values())  # fmt: skip
    note = (f"{measured['photographs']:,} photographs, {measured['true_pairs']:,} true pairs, the same {measured['features']:,} features for both, {measured['threads']} threads. COLMAP's tree was "
            "trained on the photographs that the shipped vocabularies come from, 20,000 words, in one round of ten iterations; the file that COLMAP publishes is larger. `polyvoc pairs --verify` keeps "
            f"{kept['pairs']:,} pairs: {percent(kept['recall'])} % of the true ones, {percent(kept['precision'])} % of them true. Each image, its best 20 others: {ratios}. `benchmarks/pairs.py`; {where(measured)}.")  # fmt: skip
    return markdown(head, rows) + "\n\n" + note


def moved() -> str:
    """Seconds of an update after a folder was renamed, re-sorted, unplugged."""
    measured = result("moved")
    counts = ("added", "moved", "removed", "unchanged", "kept of absent folders")
    rows = [
        [name, *(f"{one[key]:,}" for key in counts), f"{one['update']:.1f}", f"{one['seconds']:.1f}", f"{one['load']:.1f}"]
        for name, one in measured["steps"].items()
    ]
    watched = "; ".join(f"{name} {st.median(seconds):.1f}" for name, seconds in measured["watched"].items())
    note = (f"{measured['photographs']:,} photographs, {measured['bytes'] / 1e6:.0f} MB, in the page cache. Seconds of the update, and of the whole command with start and imports (the last column is the load of the machine). After every step "
            "the numbers of all photographs are the same, and nothing was extracted. With `--watch`, median seconds until the index holds a photograph that was "
            f"{watched}. `benchmarks/moved.py`; {where(measured)}.")  # fmt: skip
    return markdown(["", *counts, "s, update", "s, command", "load"], rows, right=True) + "\n\n" + note


def formats() -> str:
    """Photographs in several formats: indexed, and found by another photograph of the same thing."""
    measured = result("formats")
    rows = [
        [
            name,
            f"{one['files']:,}",
            f"{one['bytes'] / one['files'] / 1000:.0f}",
            *(f"{one[key]:,}" for key in ("indexed", "found", "likely")),
        ]
        for name, one in measured["formats"].items()
    ]
    broken = measured["broken"]
    others = ", ".join(f"{count} {kind}" for kind, count in sorted(broken["skipped"].items()))
    assert not broken["not mentioned"], "every file is indexed, a problem, or skipped"
    note = (f"The first photographs of {measured['groups']} groups of Ukbench in each format, searched with the second ones: found: it is the first hit; likely: and its probability is 50 % or more. "
            f"Of {broken['files']} files in all formats that were broken in five ways, or are no photographs, {len(broken['indexed'])} were indexed (the sound ones, and those whose damage a decoder passes over), "
            f"{sum(broken['problems'].values())} are problems with their reason, and the others are counted as skipped ({others}). `benchmarks/formats.py`; {where(measured)}.")  # fmt: skip
    return markdown(["format", "files", "KB each", "indexed", "found", "likely"], rows, right=True) + "\n\n" + note


TABLES: dict[str, Callable[[], str]] = {
    "answers": answers,
    "confidence": confidence,
    "order": order,
    "duplicate_classes": duplicate_classes,
    "duplicate_times": duplicate_times,
    "duplicates": duplicates,
    "extraction": extraction,
    "features": features,
    "formats": formats,
    "moved": moved,
    "pairs": pairs,
}
