"""What a release consists of fits together: metadata, extras, workflows, image. `scripts/release` builds and checks it."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import polyvoc
from containers import DOCKERFILE, LAST_STAGE, container_environment

yaml = pytest.importorskip("yaml", reason="needs PyYAML: pip install 'polyvoc[test]'")

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in ROOT.glob(".github/workflows/*.yml")}
PYTHONS = [name.split(" :: ")[-1] for name in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", name)]


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, workflow in WORKFLOWS.items():
        for job in workflow["jobs"].values():
            yield from ((name, step) for step in job["steps"])


def test_the_version_has_one_value() -> None:
    assert PROJECT["version"] == polyvoc.__version__
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (\S+)", changes, re.M)[1] == polyvoc.__version__  # type: ignore[index]


def test_metadata_names_no_page_that_does_not_exist() -> None:
    """There is no public host yet; whoever publishes adds its addresses."""
    assert "urls" not in PROJECT
    assert PROJECT["license"] == "Apache-2.0" and all((ROOT / name).is_file() for name in PROJECT["license-files"])


# -- versions of Python


def test_every_python_is_one_of_the_classifiers() -> None:
    assert PROJECT["requires-python"] == f">={PYTHONS[0]}"
    assert f"Python {PYTHONS[0]} or newer" in (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    assert WORKFLOWS["ci"]["jobs"]["run"]["strategy"]["matrix"]["python"] == PYTHONS
    (set_up,) = [step for _, step in steps() if "setup-python" in step.get("uses", "")]
    assert set_up["with"]["python-version"] in PYTHONS
    tags = re.findall(r"^FROM python:(\S+)", DOCKERFILE, re.M)
    assert len(tags) == DOCKERFILE.count("\nFROM ") == 2 and len(set(tags)) == 1
    version = re.fullmatch(r"(3\.\d+)\.\d+-slim-[a-z]+", tags[0])  # pinned: a tag that is not moved to another Python or Debian
    assert version is not None and version[1] in PYTHONS


# -- extras


def test_the_table_of_extras_is_complete() -> None:
    text = (ROOT / "docs" / "installation.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"## Extras\n(.*?)\n## ", text, re.S)
    assert re.findall(r"^\| `(\w+)` \|", table, re.M) == list(EXTRAS)
    for name, libraries in re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.M):
        needed = {re.split(r"[\[>;]", requirement)[0] for requirement in EXTRAS[name]}
        shown = set(re.findall(r"`([\w-]+)`", libraries))
        assert shown == needed or (name in ("docs", "fuzz", "test") and not shown), name


def test_extras_that_are_named_exist() -> None:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"),
             *(path for path in ROOT.glob("scripts/*") if path.is_file())]  # fmt: skip
    for path in files:
        for group in re.findall(r"(?:polyvoc|'\.)\[([a-z,]+)\]'", path.read_text(encoding="utf-8")):
            assert set(group.split(",")) <= EXTRAS.keys(), f"{path.name}: {group}"


def test_what_an_extra_needs_is_tested() -> None:
    """Of the same lowest version as in the extra; but plots, benchmarks and demo are installed beside the tests."""
    for name in EXTRAS.keys() - {"test", "demo", "report", "benchmarks"}:
        for requirement in EXTRAS[name]:
            library = re.split(r"[\[>;]", requirement)[0]
            assert any(re.split(r"[\[>;]", one)[0] == library for one in EXTRAS["test"]), f"{name}: {library}"


# -- workflows


def test_workflows_are_valid() -> None:
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema: pip install 'polyvoc[test]'")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, *ROOT.glob(".github/workflows/*.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_actions_are_pinned() -> None:
    """By commit, with the version beside it: a tag can be moved."""
    for path in ROOT.glob(".github/workflows/*.yml"):
        for use in re.findall(r"uses: (.*)", path.read_text(encoding="utf-8")):
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", use), use


def test_workflows_have_no_secrets_and_few_permissions() -> None:
    for path in ROOT.glob(".github/workflows/*.yml"):
        assert "secrets" not in path.read_text(encoding="utf-8")
    for workflow in WORKFLOWS.values():
        assert workflow["permissions"] == {}
    jobs = {(name, key): job["permissions"] for name, workflow in WORKFLOWS.items() for key, job in workflow["jobs"].items()}
    assert jobs.pop(("release", "publish")) == {"id-token": "write"}
    assert all(permissions == {"contents": "read"} for permissions in jobs.values())


def test_workflows_run_scripts_that_exist() -> None:
    commands = {name: [step["run"] for owner, step in steps() if owner == name and "run" in step] for name in WORKFLOWS}
    assert commands == {"ci": [".ci/run"], "release": ['scripts/release --tag "$GITHUB_REF_NAME" --extras']}
    for (command,) in commands.values():
        assert (ROOT / shlex.split(command)[0]).stat().st_mode & 0o111
    publish = WORKFLOWS["release"]["jobs"]["publish"]
    assert publish["needs"] == "build" and publish["environment"] == "pypi"
    assert all("run" not in step for step in publish["steps"])  # what may publish runs nothing of this repository


def test_a_tag_that_is_not_the_version_is_an_error() -> None:
    done = subprocess.run([ROOT / "scripts" / "release", "--tag", "v9.9.9"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"the version in pyproject.toml {polyvoc.__version__}" in done.stderr


def test_results_of_other_code_are_an_error(tmp_path: Path) -> None:
    """Nothing is built, and git is not called, before `benchmarks/all --check` succeeds."""
    for name in ("scripts/release", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    check = tmp_path / "benchmarks" / "all"
    check.parent.mkdir()
    check.write_text('#!/bin/sh\n[ "$1" = --check ] || exit 2\necho "search  stale: scoring/rules.py changed"\nexit 1\n')
    check.chmod(0o755)
    done = subprocess.run([tmp_path / "scripts" / "release"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "search  stale: scoring/rules.py changed\n")
    assert done.stderr.startswith("these results are not of the code of today") and done.stderr.count("\n") == 1


# -- container


def test_the_dockerfile_is_clean() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("needs hadolint: pip install 'polyvoc[test]'")
    done = subprocess.run([linter, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_runs_as_nobody_and_writes_to_its_volume_only() -> None:
    assert re.search(r"^USER \d{4,}:\d{4,}$", LAST_STAGE, re.M)
    assert re.search(r'^VOLUME \["/data"\]$', LAST_STAGE, re.M) and re.search(r"^HEALTHCHECK ", LAST_STAGE, re.M)
    values = container_environment()
    for name in ("POLYVOC_INDEX", "HOME", "XDG_CONFIG_HOME", "NUMBA_CACHE_DIR"):
        assert Path(values[name]).is_relative_to("/data"), name
    assert not Path(values["PHOTOGRAPHS"]).is_relative_to("/data") and "mkdir" not in LAST_STAGE
    shown = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    assert f":{values['PHOTOGRAPHS']}:ro" in shown and ":/data " in shown


def test_the_image_is_built_from_what_is_sent() -> None:
    """`.dockerignore` lets through what is copied, and nothing else."""
    copied = {name for line in re.findall(r"^COPY (?!--from)(.*)", DOCKERFILE, re.M) for name in line.split()[:-1]}
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert {line[1:] for line in lines if line.startswith("!")} == copied and "*" in lines
    needed = {"pyproject.toml", PROJECT["readme"], *PROJECT["license-files"], "src"}
    assert needed <= copied and all((ROOT / name).exists() for name in copied)
