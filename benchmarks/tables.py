"""Write the tables of README.md from the results, between their markers: `python benchmarks/tables.py`.

A test compares README.md with what this would write, so a table cannot say anything that was not measured.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"
RESULTS = Path(__file__).parent / "results"


def result(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return loaded


def where(measured: dict[str, Any]) -> str:
    machine = measured["machine"]
    return f"{machine['cpu']}, {machine['cores']} cores, {machine['date']}"


def markdown(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def accuracy() -> str:
    """Every rule, two and three vocabularies, both sets."""
    measured = result("accuracy")
    rules = ["b0", "b1", "b2", "bayes, b=0.4", "posterior, b=0.4", "bayes, b=0.4, image sets", "b1 + burstiness",
             "posterior, b=0.4 + burstiness", "b0 + HE", "b1 + HE", "b2 + HE", "bayes, b=0.4 + HE", "posterior, b=0.4 + HE",
             "bayes, b=0.4, image sets + HE", "b1 + HE + burstiness", "bayes, b=0.4 + HE + burstiness",
             "posterior, b=0.1 + HE + burstiness"]  # fmt: skip
    rows = []
    for rule in rules:
        row = [f"`{rule.split(',')[0].split(' ')[0]}`" + rule[len(rule.split(",")[0].split(" ")[0]) :]]
        for name, digits in (("holidays", 1), ("ukbench", 3)):
            for k in ("K=2", "K=3"):
                entry = measured["sets"][name][k][rule]
                low, high = entry["interval"]
                row.append(f"{entry['value']:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})")
        rows.append(row)
    head = ["rule", "Holidays mAP, K=2", "K=3", "Ukbench N-S, K=2", "K=3"]
    sizes = {name: measured["sets"][name]["images"] for name in ("holidays", "ukbench")}
    note = (f"{sizes['holidays']} photographs of Holidays (150 queries), {sizes['ukbench']} of Ukbench (all are queries); in brackets "
            "the 95 % bootstrap interval.")  # fmt: skip
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
            f"per vocabulary, two threads (ratios: one thread, medians of the same run); {where(measured)}.")  # fmt: skip
    return markdown(head, rows) + "\n\n" + note


def search() -> str:
    """Where the time of one search goes."""
    measured = result("search")
    warm = measured["warm_median_seconds"]
    row = [f"{1000 * warm[name]:.0f} ms" for name in ("decode", "sift", "quantise", "score", "all")]
    row.append(f"{measured['command_median_seconds']:.1f} s")
    note = (f"A 1024-pixel photograph ({warm['features']:.0f} features) against {measured['index']['images']} photographs; indexing them "
            f"took {measured['index']['seconds']:.0f} s ({measured['index']['photographs_per_second']:.1f} photographs per second), a second "
            f"run over the unchanged folder {measured['second_run']['seconds_in_process']:.2f} s after start-up; {where(measured)}.")  # fmt: skip
    return markdown(["decode", "SIFT", "quantise", "score", "all, warm", "whole command"], [row]) + "\n\n" + note


TABLES: dict[str, Callable[[], str]] = {"accuracy": accuracy, "engine": engine, "search": search}


def with_tables(text: str) -> str:
    """Give the text with every table made anew."""
    for name, make in TABLES.items():
        pattern = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", re.S)
        text = pattern.sub(lambda found, make=make: f"{found[1]}{make()}\n{found[2]}", text)
    return text


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text(encoding="utf-8")), encoding="utf-8")
