"""Run the benchmarks that pages cite, one after the other: `benchmarks/all --help`. It needs no polyvoc."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from digests import Needs, Sources, combined
from registry import BENCHMARKS, FOLDERS, MADE, SETS, Benchmark
from states import CURRENT, ROOT, State, sources_of, states_of

CACHED = Needs("src/polyvoc/experiments/workbench.py")  # what is in the cache of features and words depends on this
QUIET = 0.25  # load of each core below which a measurement begins
POLL_SECONDS = 10.0
QUERIES = 5  # photographs that are searched for
TREE = ("benchmarks", "examples", "src", "tests")  # what a trial gets a copy of
INTERRUPTED = 130  # exit code: 128 + the number of the signal

DESCRIPTION = """Run the benchmarks that pages cite, one after the other; then `python benchmarks/tables.py` writes the tables.

A result of the code of today is not measured again. An interrupted run goes on where it was, if it is started again."""


class Unusable(Exception):
    """What a run needs is not there; one line."""


@dataclass(frozen=True)
class Run:
    """Where benchmarks of a tree run, with which folders."""

    sources: Sources
    folders: dict[str, Path]
    work: Path
    quick: bool = False

    def arguments(self, benchmark: Benchmark) -> str:
        return benchmark.quick if self.quick else benchmark.arguments

    def filled(self, arguments: str, benchmark: Benchmark) -> list[str]:
        """Return arguments with folders and files instead of their names."""
        words: list[str] = []
        for word in shlex.split(arguments):
            if word == "{queries}":
                words += map(str, self.queries())
            else:
                words.append(re.sub(r"{(\w+)}", lambda match: str(self.place(match[1], benchmark)), word))
        return words

    def place(self, name: str, benchmark: Benchmark) -> Path:
        """Return the folder or file that a name in braces stands for."""
        if name in SETS:
            return self.folders["data"] / SETS[name]
        if name == "work":
            return self.work / f"{benchmark.name}-{self.mark(benchmark.needs)}"
        if name == "cache":
            return self.work / f"cache-{self.mark(CACHED)}"
        if name in MADE:
            return self.work / f"{name}-{self.mark(Needs(MADE[name].split()[0]))}.polyvoc"
        return self.folders[name]

    def mark(self, needs: Needs) -> str:
        """Return a name of the code: what other code left in a folder is not used."""
        return combined(self.sources.digests(needs))[:8]

    def queries(self) -> list[Path]:
        """Return photographs of both sets of groups, evenly spaced."""
        files = [path for name in ("holidays", "ukbench") for path in sorted((self.folders["data"] / SETS[name]).glob("*.jpg"))]
        return files[:: -(-len(files) // QUERIES)]

    def start(self, benchmark: Benchmark) -> bool:
        """Run a benchmark, after what it needs is made; return whether it succeeded."""
        wanted = set(re.findall(r"{(\w+)}", self.arguments(benchmark)))
        for name in wanted & set(MADE):
            if not self.place(name, benchmark).exists() and not self.call(shlex.split(MADE[name]), benchmark):
                return False
        work = self.place("work", benchmark)
        for old in self.work.glob(f"{benchmark.name}-????????"):
            if old != work:
                shutil.rmtree(old)
        work.mkdir(parents=True, exist_ok=True)
        succeeded = self.call([benchmark.path, *shlex.split(self.arguments(benchmark))], benchmark)
        if succeeded:
            shutil.rmtree(work, ignore_errors=True)
        return succeeded

    def call(self, words: Sequence[str], benchmark: Benchmark) -> bool:
        """Run a script of the tree, and return whether it succeeded."""
        script, *arguments = words
        command = [sys.executable, script, *self.filled(shlex.join(arguments), benchmark)]
        print(f"== {shlex.join(command[1:])}", flush=True)
        paths = os.pathsep.join(str(self.sources.root / name) for name in ("src", "tests"))
        return (
            subprocess.run(command, cwd=self.sources.root, env={**os.environ, "PYTHONPATH": paths}, check=False).returncode == 0
        )


def main() -> int:
    """Run the command; return its exit code."""
    options = parsed(sys.argv[1:])
    try:
        chosen = choose(BENCHMARKS, options.names)
        sources = sources_of(ROOT)
        if options.list or options.check:
            return listed(states_of(sources, chosen), options.check)
        chosen = [one for one in chosen if one.quick] if options.quick else chosen
        folders = {name: getattr(options, name).absolute() for name in FOLDERS if getattr(options, name) is not None}
        if options.quick:
            sources = sources_of(copied(options.work.absolute() / "tree"))
        work = options.work.absolute() / ("quick" if options.quick else "full")
        run = Run(sources, folders, work, options.quick)
        left = chosen if options.again or options.quick else stale(sources, chosen)
        require(run, left)
        return run_all(run, left, options.busy)
    except Unusable as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on with the result that is missing", file=sys.stderr)
        return INTERRUPTED


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "benchmarks/all", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks or results; default: all")
    for name, text in FOLDERS.items():
        parser.add_argument(f"--{name}", type=Path, metavar=name.upper(), help=text)
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "benchmarks", help="folder for indexes and caches (50 GB)"
    )
    parser.add_argument(
        "--list", action="store_true", help="show every result: whether it is of the code of today, commit, load, date"
    )
    parser.add_argument(
        "--check", action="store_true", help="show the results that are stale or missing, and fail if there are any"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a trial of a few minutes on a copy of the sources; no result is written"
    )
    parser.add_argument("--again", action="store_true", help="also measure what was measured with the code of today")
    parser.add_argument("--busy", action="store_true", help="do not wait until other programs rest")
    return parser.parse_args(arguments)


def choose(benchmarks: Iterable[Benchmark], names: Sequence[str]) -> list[Benchmark]:
    """Return the benchmarks of some names, of their own or of results; all without names."""
    known = list(benchmarks)
    if unknown := [name for name in names if not any(name in (one.name, *one.files) for one in known)]:
        raise Unusable(f"there is no benchmark {unknown[0]}; there are: {', '.join(one.name for one in known)}")
    return [one for one in known if not names or set(names) & {one.name, *one.files}]


def stale(sources: Sources, benchmarks: Iterable[Benchmark]) -> list[Benchmark]:
    """Return the benchmarks with a result that is not of the code of today; also those that read a result which is made anew."""
    left: list[Benchmark] = []
    for one in benchmarks:
        remade = {result for before in left for result in before.files}
        if remade & set(one.inputs) or any(state.kind != CURRENT for state in states_of(sources, [one])):
            left.append(one)
        else:
            print(f"{one.name}: of the code of today", flush=True)
    return left


def require(run: Run, benchmarks: Iterable[Benchmark]) -> None:
    """Raise if folders or packages of some benchmarks are missing."""
    for one in benchmarks:
        text = " ".join([run.arguments(one), *(MADE[name] for name in MADE if f"{{{name}}}" in run.arguments(one))])
        names = {"data" if name in SETS or name == "queries" else name for name in re.findall(r"{(\w+)}", text)}
        for name in FOLDERS:
            place = run.folders.get(name)
            if name in names and place is None:
                raise Unusable(f"{one.name} needs --{name}: {FOLDERS[name]}; or name the benchmarks to run")
            if name in names and place is not None and not place.exists():
                raise Unusable(f"--{name} {place} does not exist; it should be the {FOLDERS[name]}")
        for folder in SETS.values() if "data" in names else ():
            if not (run.folders["data"] / folder).is_dir():
                raise Unusable(f"{run.folders['data']} has no folder {folder}; --data is the {FOLDERS['data']}")
        if missing := [name for name in one.packages if importlib.util.find_spec(name) is None]:
            raise Unusable(
                f"{one.name} needs {', '.join(missing)}, which {sys.executable} cannot import; install, or name the benchmarks to run"
            )


def run_all(run: Run, benchmarks: Sequence[Benchmark], busy: bool) -> int:
    """Run benchmarks in turn; those that fail are listed at the end."""
    failed = []
    for number, one in enumerate(benchmarks, 1):
        print(f"\n{number} of {len(benchmarks)}: {one.name}", flush=True)
        if not busy and not run.quick:
            wait_for_quiet()
        if not run.start(one):
            failed.append(one.name)
            print(f"{one.name} failed", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    elif benchmarks and not run.quick:
        print("\nnow run: python benchmarks/tables.py")
    return 1 if failed else 0


def wait_for_quiet(
    load: Callable[[], float] = lambda: os.getloadavg()[0],
    sleep: Callable[[float], None] = time.sleep,
    cores: int | None = None,
) -> None:
    """Return when the load of the last minute is low; say once that it is waited for."""
    most = QUIET * (cores or os.cpu_count() or 1)
    if load() > most:
        print(f"waiting until the load of the machine, {load():.1f}, is below {most:.1f} (--busy: do not wait)", flush=True)
    while load() > most:
        sleep(POLL_SECONDS)


def copied(tree: Path) -> Path:
    """Copy the sources to a new folder, where a trial may write results and figures, and return it."""
    shutil.rmtree(tree, ignore_errors=True)
    for name in TREE:
        shutil.copytree(ROOT / name, tree / name)
    (tree / "docs").mkdir()
    return tree


def listed(states: Sequence[State], check: bool) -> int:
    """Print a table of results; with `check`, of those that are not of the code of today, and return 1 if there are any."""
    shown = [state for state in states if not check or state.kind != CURRENT]
    rows = [["result", "commit", "load", "date", "state"]] if shown else []
    rows += [[state.result, state.commit, state.load, state.date, state.text] for state in shown]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 1 if check and shown else 0


if __name__ == "__main__":
    sys.exit(main())
