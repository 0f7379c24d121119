"""`benchmarks/all` on a made-up tree: what a digest depends on, what is measured again, what is listed, and its errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmark_modules import BENCHMARKS, ROOT, digests, registry, runner, states

Benchmark = registry.Benchmark

SCRIPT = '''"""Measure."""

import json
import sys
import time

from polyvoc.scoring.rules import weight
import tools

if "--fail" in sys.argv:
    sys.exit(3)
print("not compared", sys.argv[1])
sys.path.insert(1, {machinery!r})
from registry import Benchmark
from states import code_of, sources_of
from pathlib import Path

root, benchmark = Path({root!r}), {benchmark!r}
code = code_of(sources_of(root), benchmark, sys.argv, time.time())
path = root / "benchmarks" / "results" / (benchmark.name + ".json")
path.write_text(json.dumps({{"machine": {{"commit": "abc", "load": [0.1, 1.9], "date": "2026-01-02"}}, "code": code}}))
with (root / "runs").open("a") as runs:
    runs.write(benchmark.name + " ")
'''
PACKAGE = {
    "__init__.py": "TYPE_CHECKING = False\nif TYPE_CHECKING:\n    from polyvoc.scoring.rules import weight as weight\n",
    "scoring/__init__.py": "",
    "scoring/rules.py": '"""Rules."""\nimport numpy\n\n\ndef weight(a):\n    """Return it."""\n    return a + 1  # more\n',
    "scoring/codes.py": "VALUE = 1\n",
    "web/__init__.py": "",
    "web/server.py": "from polyvoc.scoring import codes\n",
    "data/likelihood/one.json": "[1]",
}
FIRST = Benchmark("first", "{photos} --count 3 --work {work}", quick="{photos} --count 1 --work {work}")
SECOND = Benchmark("second", "{training} --work {work}", inputs=("first",))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with two benchmarks, and folders of photographs."""
    for name, text in PACKAGE.items():
        write(tmp_path / "src" / "polyvoc" / name, text)
    write(tmp_path / "benchmarks" / "tools.py", "def unused():\n    return 1\n")
    (tmp_path / "benchmarks" / "results").mkdir()
    for one in (FIRST, SECOND):
        write(tmp_path / one.path, SCRIPT.format(machinery=BENCHMARKS, root=str(tmp_path), benchmark=one))
    for name in ("holidays150", "ukbench500", "photos1200", "training"):
        (tmp_path / "photographs" / name).mkdir(parents=True)
    age(tmp_path)
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def age(root: Path) -> None:
    """Give all modules a time before any measurement."""
    for path in root.rglob("*.py"):
        os.utime(path, (1e9, 1e9))


def edit(root: Path, name: str, before: str, after: str) -> None:
    path = root / name
    text = path.read_text(encoding="utf-8")
    assert before in text
    path.write_text(text.replace(before, after), encoding="utf-8")
    age(root)


def digest_of(root: Path, benchmark: registry.Benchmark = FIRST) -> dict[str, str]:
    return states.sources_of(root).digests(benchmark.needs)


def run_of(root: Path, **folders: Path) -> runner.Run:
    given = {"data": root / "photographs", "training": root / "photographs" / "training", **folders}
    return runner.Run(states.sources_of(root), given, root / "work")


def measure(root: Path, benchmarks: Sequence[registry.Benchmark] = (FIRST, SECOND)) -> list[str]:
    """Run what is not of the code of today, and return the benchmarks that ran."""
    run = run_of(root)
    before = ran(root)
    assert runner.run_all(run, runner.stale(run.sources, benchmarks), busy=True) == 0
    return ran(root)[len(before) :]


def ran(root: Path) -> list[str]:
    path = root / "runs"
    return path.read_text().split() if path.exists() else []


def texts(root: Path) -> list[str]:
    return [state.text for state in states.states_of(states.sources_of(root), (FIRST, SECOND))]


# -- the digest


def test_what_a_script_imports_is_in_its_digest(root: Path) -> None:
    assert list(digest_of(root)) == [
        "benchmarks/first.py", "benchmarks/tools.py", "src/polyvoc/data/likelihood", "src/polyvoc/scoring/rules.py",
    ]  # fmt: skip


def test_comments_docstrings_and_line_breaks_change_nothing(root: Path) -> None:
    before = digest_of(root)
    edit(root, "src/polyvoc/scoring/rules.py", "return a + 1  # more", "return (\n        a + 1\n    )  # other")
    edit(root, "src/polyvoc/scoring/rules.py", '"""Return it."""', '"""Return more\n    than it."""')
    edit(root, "src/polyvoc/scoring/rules.py", '"""Rules."""', "# Rules.")
    assert digest_of(root) == before


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("src/polyvoc/scoring/rules.py", "a + 1", "a + 2"),
        ("src/polyvoc/scoring/rules.py", "weight(a)", "weight(a, b=None)"),
        ("src/polyvoc/data/likelihood", "", ""),
        ("benchmarks/tools.py", "return 1", "return 1.0"),
        ("benchmarks/first.py", "not compared", "compared"),
    ],
)
def test_a_changed_function_or_table_is_another_digest(root: Path, name: str, before: str, after: str) -> None:
    earlier = digest_of(root)
    if before:
        edit(root, name, before, after)
    else:
        write(root / name / "one.json", "[2]")
    assert digests.changes(earlier, digest_of(root)) == [name]


def test_other_modules_change_nothing(root: Path) -> None:
    before = digest_of(root)
    edit(root, "src/polyvoc/scoring/codes.py", "1", "2")
    edit(root, "src/polyvoc/__init__.py", "if TYPE_CHECKING", 'VERSION = "2"\nif TYPE_CHECKING')
    write(root / "benchmarks" / "third.py", "VALUE = 3\n")
    assert digest_of(root) == before


def test_outer_packages_count_only_where_they_are_named(root: Path) -> None:
    edit(root, "src/polyvoc/scoring/rules.py", "import numpy", "import numpy\nfrom polyvoc.web import server")
    assert not any("web" in path for path in digest_of(root))
    named = replace(FIRST, also=("src/polyvoc/web/*.py",))
    assert {"src/polyvoc/web/server.py", "src/polyvoc/scoring/codes.py"} <= set(digest_of(root, named))
    assert "src/polyvoc/scoring/codes.py" not in digest_of(root, replace(named, without=("scoring/codes.py",)))


def test_a_public_name_leads_to_its_module(root: Path) -> None:
    for line in ("import polyvoc", "from polyvoc import weight"):
        write(root / "benchmarks" / "third.py", f"{line}\n")
        assert "src/polyvoc/scoring/rules.py" in digest_of(root, Benchmark("third", ""))


def test_imports_for_type_checkers_do_not_count(root: Path) -> None:
    edit(root, "src/polyvoc/scoring/rules.py", "import numpy", "if TYPE_CHECKING:\n    from polyvoc.scoring import codes\n")
    assert "src/polyvoc/scoring/codes.py" not in digest_of(root)


# -- measuring, and going on


def test_a_result_of_the_code_of_today_is_not_measured_again(root: Path) -> None:
    assert texts(root) == ["missing", "missing"]
    assert measure(root) == ["first", "second"]
    assert texts(root) == ["current", "current"]
    assert measure(root) == []
    edit(root, "src/polyvoc/scoring/rules.py", "a + 1", "a + 2")
    assert texts(root) == ["stale: scoring/rules.py changed", "stale: scoring/rules.py changed"]
    assert measure(root, [SECOND]) == ["second"]
    assert measure(root) == ["first", "second"]  # the second one reads the result of the first
    assert texts(root) == ["current", "current"]


def test_a_run_goes_on_after_a_failure(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = replace(FIRST, arguments="{photos} --fail --work {work}")
    assert runner.run_all(run_of(root), [failing, SECOND], busy=True) == 1
    assert ran(root) == ["second"]
    assert capsys.readouterr().err == "failed: first\n"
    assert len(list((root / "work").glob("first-*"))) == 1  # what it has done is there for the next run
    assert not list((root / "work").glob("second-*"))


def test_work_of_other_code_is_not_used(root: Path) -> None:
    run = run_of(root)
    place = run.place("work", FIRST)
    place.mkdir(parents=True)
    edit(root, "src/polyvoc/scoring/rules.py", "a + 1", "a + 2")
    assert run_of(root).place("work", FIRST) != place
    measure(root, [FIRST])
    assert not place.exists()


def test_the_command_line_is_stored_without_folders(root: Path) -> None:
    measure(root, [FIRST])
    code = json.loads((root / "benchmarks" / "results" / "first.json").read_text())["code"]
    assert code["command"].startswith("benchmarks/first.py photographs/photos1200 --count 3 --work work/first-")
    assert states.shortened(root, "/elsewhere/photographs") == ".../photographs"
    assert code["digest"] == digests.combined(code["modules"])


def test_a_trial_is_no_result_of_the_benchmark(root: Path) -> None:
    measure(root, [FIRST])
    longer = replace(FIRST, arguments="{photos} --count 30 --work {work}")
    (state,) = states.states_of(states.sources_of(root), [longer])
    assert state.text.startswith("stale: made by another command, benchmarks/first.py")
    (state,) = states.states_of(states.sources_of(root), [replace(longer, pieces=True)])
    assert state.text == "current"


def test_a_module_that_changed_while_it_was_measured_is_no_code_of_today(root: Path) -> None:
    started = time.time()
    os.utime(root / "src/polyvoc/scoring/rules.py", (started + 60, started + 60))
    code = states.code_of(states.sources_of(root), FIRST, ["benchmarks/first.py", "--count", "3", "--work"], started)
    assert code["modules"]["src/polyvoc/scoring/rules.py"] == states.EDITED
    assert states.difference(states.sources_of(root), FIRST, code) == "scoring/rules.py changed"


def test_a_result_without_digest_is_of_unknown_code(root: Path) -> None:
    write(root / "benchmarks" / "results" / "first.json", json.dumps({"machine": {"commit": "abc"}}))
    assert texts(root) == ["stale: of unknown code", "missing"]
    assert states.code_of(states.sources_of(root), None, ["first.py", "--trial"], 0.0) == {"command": "first.py --trial"}


# -- lists, waiting, errors


def test_list_and_check(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(root, [FIRST])
    capsys.readouterr()
    found = states.states_of(states.sources_of(root), (FIRST, SECOND))
    assert runner.listed(found, check=False) == 0
    assert capsys.readouterr().out.splitlines() == [
        "result  commit  load        date        state",
        "first   abc     0.1 to 1.9  2026-01-02  current",
        "second                                  missing",
    ]
    assert runner.listed(found, check=True) == 1
    assert "first" not in capsys.readouterr().out
    assert runner.listed(found[:1], check=True) == 0
    assert capsys.readouterr().out == ""


def test_the_command_lists_results() -> None:
    done = subprocess.run(
        [ROOT / "benchmarks" / "all", "--list", "scale"],
        env={**os.environ, "PYTHON": sys.executable}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["result", "scale"]


def test_names_are_of_benchmarks_or_results() -> None:
    several = replace(FIRST, results=("one", "two"))
    assert runner.choose([several, SECOND], ["two"]) == [several]
    assert runner.choose([several, SECOND], []) == [several, SECOND]
    with pytest.raises(runner.Unusable, match="there is no benchmark three; there are: first, second"):
        runner.choose([several, SECOND], ["three"])


def test_missing_folders_and_packages_are_errors_of_one_line(root: Path) -> None:
    run = run_of(root)
    runner.require(run, [FIRST, SECOND])
    bare = replace(run, folders={})
    for wrong, benchmark, message in (
        (bare, FIRST, "first needs --data: folder with the folders"),
        (bare, SECOND, "second needs --training: folder of photographs"),
        (run_of(root, training=root / "none"), SECOND, "none does not exist; it should be the folder of photographs"),
        (run_of(root, data=root / "benchmarks"), FIRST, "has no folder holidays150"),
        (run, replace(FIRST, packages=("no_such_package",)), "first needs no_such_package"),
    ):
        with pytest.raises(runner.Unusable, match=message) as caught:
            runner.require(wrong, [benchmark])
        assert "\n" not in str(caught.value)


def test_it_waits_for_a_quiet_machine(capsys: pytest.CaptureFixture[str]) -> None:
    loads, slept = iter([3.0, 3.0, 3.0, 2.0, 0.4]), []
    runner.wait_for_quiet(lambda: next(loads), slept.append, cores=2)
    assert len(slept) == 2
    assert capsys.readouterr().out == "waiting until the load of the machine, 3.0, is below 0.5 (--busy: do not wait)\n"
    runner.wait_for_quiet(lambda: 0.4, slept.append, cores=2)
    assert len(slept) == 2 and capsys.readouterr().out == ""


def test_queries_are_photographs_of_both_sets(root: Path) -> None:
    for folder in ("holidays150", "ukbench500"):
        for number in range(10):
            (root / "photographs" / folder / f"{number}.jpg").touch()
    found = run_of(root).filled("{queries} --work {work}", FIRST)
    assert len(found) == runner.QUERIES + 2
    assert {Path(path).parent.name for path in found[: runner.QUERIES]} == {"holidays150", "ukbench500"}
