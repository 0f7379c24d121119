"""Every number on a page comes from a benchmark that can be run again: scripts, results, registry and pages fit together."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmark_modules import ROOT, digests, registry, sources, states, tables
from stated_numbers import stated

RESULTS = ROOT / states.RESULTS
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
LISTED: dict[str, list[dict[str, Any]]] = tomllib.loads((ROOT / "tests" / "stated_numbers.toml").read_text(encoding="utf-8"))
REPOSITORY = states.sources_of(ROOT)


# -- the registry


def test_every_script_that_writes_a_result_is_in_the_registry() -> None:
    scripts = [*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "tests" / "fuzz").glob("*.py")]
    writing = {
        str(path.relative_to(ROOT))
        for path in scripts
        if re.search(r"^ .*\bwrite_result\(", path.read_text(encoding="utf-8"), re.M)
    }
    assert writing == {one.path for one in registry.BENCHMARKS}


def test_every_result_is_that_of_one_benchmark() -> None:
    written = [result for one in registry.BENCHMARKS for result in one.files]
    assert len(written) == len(set(written))
    assert {path.stem for path in RESULTS.iterdir()} <= set(written), "results that no benchmark writes: delete them"


@pytest.mark.parametrize("one", registry.BENCHMARKS, ids=lambda one: one.name)
def test_what_the_registry_names_exists(one: registry.Benchmark) -> None:
    text = (ROOT / one.path).read_text(encoding="utf-8")
    names = {"work", "cache", "queries", *registry.FOLDERS, *registry.SETS, *registry.MADE}
    for arguments in (one.arguments, one.quick):
        assert set(re.findall(r"{(\w+)}", arguments)) <= names
        for option in re.findall(r"--([\w-]+)", arguments):
            assert re.search(rf"\b{option.replace('-', '[-_]')}\b", text), f"{one.path} has no option --{option}"
    assert all(list(ROOT.glob(pattern)) for pattern in one.also)
    assert all((ROOT / digests.PACKAGE / name).exists() for name in one.without)
    assert set(one.data) <= set(registry.SPECIAL)
    earlier = [name for before in registry.BENCHMARKS[: registry.BENCHMARKS.index(one)] for name in before.files]
    assert set(one.inputs) <= set(earlier), "inputs are measured first"


def test_all_data_of_the_package_belong_to_the_module_that_reads_them() -> None:
    folder = ROOT / digests.PACKAGE / "data"
    named = {name for names in digests.DATA.values() for name in names}
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert all(any(file == name or file.startswith(f"{name}/") for name in named) for file in files)
    assert all((folder / name).exists() for name in {*named, *registry.SPECIAL})
    assert all((ROOT / digests.PACKAGE / module).is_file() for module in digests.DATA)


def test_every_module_that_a_search_runs_is_in_the_digest_of_its_benchmark() -> None:
    """What is imported while photographs are indexed and searched is what the imports in the sources lead to."""
    program = "import json, sys, polyvoc.index.writer, polyvoc.search.index; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = [name for name in json.loads(done.stdout) if name.startswith("polyvoc.")]
    modules = {f"src/{name.replace('.', '/')}.py" for name in loaded}
    search = registry.benchmark_of("search")
    assert search is not None
    assert {path for path in modules if (ROOT / path).is_file()} <= set(REPOSITORY.digests(search.needs))


# -- citations


@cache
def shown_in_tables() -> set[str]:
    """Return the results that the tables are made from."""
    read: set[str] = set()

    class Recorded:
        def __truediv__(self, name: str) -> Path:
            read.add(Path(name).stem)
            return RESULTS / name

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "RESULTS", Recorded())
        sources.result.cache_clear()
        for make in tables.TABLES.values():
            make()
    sources.result.cache_clear()
    return read


@pytest.mark.parametrize("one", registry.BENCHMARKS, ids=lambda one: one.name)
def test_every_benchmark_is_cited(one: registry.Benchmark) -> None:
    """By a table, by a page that names the script or the result, by another benchmark, or by a constant in the sources."""
    inputs = {name for other in registry.BENCHMARKS for name in other.inputs}
    for result in set(one.files) - shown_in_tables() - inputs:
        names = re.compile(rf"\b{re.escape(result)}\.json\b|(?<![\w/.-])(?:benchmarks/)?{re.escape(Path(one.path).name)}\b")
        constants = (path.read_text(encoding="utf-8") for path in (ROOT / digests.PACKAGE).rglob("*.py"))
        cited = any(names.search(text) for text in (*PAGES.values(), *constants))
        assert cited, f"no page names {result}: state what it measured, or delete {one.path} and its result"


# -- numbers outside the tables


@pytest.mark.parametrize("page", sorted({*PAGES, *LISTED}))
def test_numbers_outside_the_tables_are_listed(page: str) -> None:
    found, listed = set(stated(PAGES[page])), {number for entry in LISTED.get(page, ()) for number in entry["numbers"]}
    new, gone = sorted(found - listed), sorted(listed - found)
    assert not new, f"{page} states {new}: have benchmarks/tables.py write them, or list them in tests/stated_numbers.toml"
    assert not gone, f"{page} does not state {gone}: delete them in tests/stated_numbers.toml"


@pytest.mark.parametrize("page", sorted(LISTED))
def test_numbers_copied_from_a_result_were_compared_with_it(page: str) -> None:
    for entry in LISTED[page]:
        assert entry.get("reason") or entry.get("result")
        if "result" in entry:
            digest = measured_digest(entry["result"])
            assert entry["digest"] == digest, (
                f"{entry['result']} was measured anew: compare the numbers on {page} with it, {', '.join(entry['numbers'])}, "
                f'and set digest = "{digest}" in tests/stated_numbers.toml'
            )


def measured_digest(result: str) -> str:
    """Return a digest of what was measured, without machine, date and code."""
    stored = json.loads((RESULTS / f"{result}.json").read_text(encoding="utf-8"))
    values = {name: value for name, value in stored.items() if name not in ("machine", "code")}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def test_numbers_of_prose_and_tables_are_found() -> None:
    text = """
It takes 3.5 ms, or 12 % more, for 1,200 photographs; [8 s](a-2.5-s.md), `2.5 ms`

| 93.9 | +0.028 |

    polyvoc --seconds 4.5

<!-- table: x -->
9.9 ms
<!-- end -->
Python 3.11.2, +23 mAP, 18 photographs per
second
"""
    assert stated(text) == ["3.5 ms", "12 %", "8 s", "93.9", "+0.028", "+23 mAP", "18 photographs per second"]
