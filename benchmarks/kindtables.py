"""The tables on several kinds of features, alone and joined, from their results; written by `tables.py`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sources import DIGITS, SETS, bold, markdown, result, where

JOINT = {"added": "evidence added in full", "joined": "**joined**"}
INTERVAL = "95 % bootstrap interval, bold if that leaves out zero"


def several() -> str:
    """Several kinds of features, each alone and joined: accuracy, and probabilities of the best hits."""
    measured = result("several")
    rows = []
    for way in (*measured["kinds"], *JOINT):
        row = [JOINT.get(way, f"`{way}`")]
        for name, digits in DIGITS.items():
            one = measured["sets"][name]["ways"][way]
            found = one["calibration"]
            share = f"{100 * one['likely_right']:.1f} / {100 * one['right_likely']:.1f}"
            row += [_value(one, digits), f"{100 * found['error']:.1f}", f"{found['log_loss']:.3f}", share]
        rows.append(row)
    head = [column for name in SETS.values()
            for column in (name, "calibration error, %", "log loss", "likely right / right likely, %")]  # fmt: skip
    words = " and ".join(f"{count:,} for {kind}" for kind, count in measured["words"].items())
    shares = ", ".join(f"{model['share']:.2f} of {kind}" for kind, model in measured["models"].items())
    note = (f"{_asked(measured)} among {measured['photographs']:,} photographs; the query is left out, and counted as the first of "
            f"the four of N-S. Words: {words}. In brackets the difference of the joint ranking to this one with its {INTERVAL}. "
            "Probabilities of the ten best hits, with the right answers in the collection and without; those of each kind, and the shares, were fitted on the other set. "
            f"Likely right: share of right ones among hits from 0.5 on; right likely: share of the right hits that are. As they come with polyvoc: shares {shares}, logit P {measured['prior']:g}; "
            f"{where(measured)}.")  # fmt: skip
    return markdown(["ranking", *head], rows) + "\n\n" + note


def altered() -> str:
    """Queries that were altered: each kind alone, and all joined."""
    measured = result("several")
    rows = []
    for name, digits in DIGITS.items():
        for view, sets in {"as they are": measured["sets"], **measured["altered"]}.items():
            ways = sets[name]["ways"]
            row = [f"{SETS[name]}, {view}", *(_value(ways[kind], digits) for kind in measured["kinds"])]
            rows.append([*row, *(f"{ways[way]['value']['mean']:.{digits}f}" for way in JOINT)])
    note = (f"In brackets the difference of the joint ranking to that of this kind with its {INTERVAL}. {_asked(measured)}, of the altered ones {measured['questions_altered']['holidays']} of each set; only the queries were altered: turned; a third of the width and height; the middle "
            f"ninth, enlarged; an eighth of the light with its noise and a dark tone curve, in eight bits (`benchmarks/views.py`). Probabilities and shares as above; {where(measured)}.")  # fmt: skip
    return markdown(["query", *(f"`{kind}`" for kind in measured["kinds"]), *JOINT.values()], rows) + "\n\n" + note


def front() -> str:
    """Every kind alone, joined and fused: accuracy, time and bytes, with vocabularies of equal size and training."""
    measured, rows = result("front"), []
    for point in measured["points"]:
        row, spent = [point["name"]], point["costs"]
        for name, digits in DIGITS.items():
            one = point["sets"][name]
            gain = one["gains"].get("sift")
            row.append(f"{one['value']['mean']:.{digits}f}" + (f" ({_gain(gain, digits)})" if gain else ""))
        row += [
            f"{spent['features']:,.0f}",
            f"{spent['extract_ms']:.0f}",
            f"{spent['search_ms']:.0f}",
            f"{spent['bytes'] / 1000:.0f}",
        ]
        rows.append(row)
    plan = measured["plan"]
    note = (f"{_asked(measured)} among {measured['images']:,} photographs; the query is left out. Each vocabulary has {plan['words']:,} words, trained on {plan['descriptors']:,} descriptors of the same "
            f"{plan['photographs']:,} photographs of Flickr8k: fewer than the shipped ones. Tables of weights, probabilities and shares were fitted on the other set. In brackets the difference to SIFT with its "
            f"{INTERVAL}. Milliseconds of one thread for the features of a photograph, and for a search; `benchmarks/front.py`; {where(measured)}.")  # fmt: skip
    head = ["", *SETS.values(), "features", "ms, features", "ms, search", "KB per photograph"]
    return markdown(head, rows) + "\n\n" + note


def learned() -> str:
    """Geometry of a network without angles beside that of SIFT."""
    measured = result("learned")
    kinds = [("SIFT", measured["ways"]["sift 128"]), ("XFeat", measured["ways"]["xfeat 128"])]
    cells = [(f"{kind}, {title.split()[0]}", one[name]) for name, title in SETS.items() for kind, one in kinds]
    lines: dict[str, Callable[[dict[str, Any]], str]] = {
        "inliers of the best wrong photograph: median, most": lambda one: "{median:.0f}, {most}".format(**one["wrong_inliers"]),
        "right photographs with more inliers than 99 % of these": lambda one: f"{100 * one['confirmed']:.0f} %",
        "bytes per feature": lambda one: f"{one['bytes_per_feature']:.1f}",
    }
    rows = [[text, *(make({**one["default"], **one}) for _, one in cells)] for text, make in lines.items()]
    counts = " and ".join(f"{count} photographs of {name.title()}" for name, count in measured["images"].items())
    note = (f"The first {measured['plan']['questions']} questions of each set: {counts}. XFeat at one scale; the vocabularies that come with polyvoc; tables of weights fitted on the other set. "
            f"`benchmarks/learned.py`; {where(measured)}.")  # fmt: skip
    return markdown(["", *(name for name, _ in cells)], rows) + "\n\n" + note


def _asked(measured: dict[str, Any]) -> str:
    return "{holidays} queries of Holidays and {ukbench} of Ukbench".format(**measured["questions"])


def _value(one: dict[str, Any], digits: int) -> str:
    text = f"{one['value']['mean']:.{digits}f}"
    return text if one["gain"] is None else f"{text} ({_gain(one['gain'], digits)})"


def _gain(gain: dict[str, float], digits: int) -> str:
    mean, low, high = (f"{gain[end]:+.{digits}f}" for end in ("mean", "low", "high"))
    return f"{bold(mean, gain)}; {low} to {high}"


TABLES: dict[str, Callable[[], str]] = {"several": several, "altered": altered, "front": front, "learned": learned}
