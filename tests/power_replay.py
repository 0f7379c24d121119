"""Record jobs that write, and replay every power cut in them."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import writing_jobs
from disk_log import Log, Mark, Tree, read_log, record
from power_cuts import Cut
from writing_jobs import FAULTY, JOBS, Job, Marks, assert_committed, assert_finished


@dataclass(frozen=True)
class Recording:
    """A job, the log of its calls, and what it reported."""

    name: str
    job: Job
    log: Log
    marks: list[Marks]

    def reports(self, cut: Cut) -> tuple[Marks, Marks]:
        """Return what was reported before a cut, and what would have been next."""
        last = self.marks[cut.marks - 1] if cut.marks else {}
        return last, self.marks[cut.marks] if cut.marks < len(self.marks) else {}


@dataclass
class Replay:
    """The states that were replayed."""

    states: int = 0
    continued: int = 0  # in which the work was done again
    failures: list[str] = field(default_factory=list)


def record_jobs(names: Sequence[str], place: Path) -> Iterator[Recording]:
    """Prepare jobs, each in a folder of `place`, run them in one process, and yield their logs."""
    jobs, roots = {**JOBS, **FAULTY}, {name: place / f"root-{number}" for number, name in enumerate(names)}
    before = {}
    for name, root in roots.items():
        root.mkdir()
        jobs[name].prepare(root)
        before[name] = Tree.read(root)
    output, marks = place / "calls", place / "marks"
    given = [f"{name}={root}" for name, root in roots.items()]
    record([sys.executable, "-W", "ignore", writing_jobs.__file__, str(marks), *given], output)
    for name, root in roots.items():
        log = read_log(output, root, before[name], marks, name)
        log.assert_complete()
        yield Recording(name, jobs[name], log, [json.loads(call.text) for call in log.calls if isinstance(call, Mark)])
        shutil.rmtree(root, ignore_errors=True)
    output.unlink()


def replay(recording: Recording, cuts: Iterable[Cut], continue_every: int = 16) -> Replay:
    """Check the states after power cuts; in some of them do the work again."""
    result = Replay()
    job, root = recording.job, recording.log.root
    for cut in cuts:
        result.states += 1
        cut.tree.write(root)
        try:
            assert_committed(job, root, *recording.reports(cut))
            if result.states % continue_every == 0:
                result.continued += 1
                job.run(root)
                assert_finished(job, root, recording.marks[-1])
        except Exception as error:  # noqa: BLE001 - every failure counts, whatever it is
            place = f"{recording.name}, cut after {cut.calls} calls, {cut.kind}"
            result.failures.append(f"{place}: {type(error).__name__}: {error}")
    shutil.rmtree(root, ignore_errors=True)
    return result
