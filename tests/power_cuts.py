"""What a disk may hold after a power cut, by the log of the calls before it.

The rules: the content of a file reaches the disk when the file is synced, a name when its folder is synced, a rename, which is
atomic, when the folder of its new name is synced. Whatever is not synced may be there or not, in any combination, and a write
may be there in part: its first bytes, its last ones, or zeros of its length. Most file systems lose less than this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import Enum
from random import Random

from disk_log import Change, Log, Mark, Rename, Sync, Tree, Truncate, Write


class Fate(Enum):
    """What becomes of a change that was not synced."""

    LOST = "lost"
    KEPT = "kept"
    HEAD = "first bytes only"
    TAIL = "last bytes only"
    ZEROS = "zeros instead"


@dataclass(frozen=True)
class Cut:
    """A power cut: when, what the program had reported, and what the disk holds then."""

    calls: int  # of the log before it
    kind: str
    marks: int  # reported before it
    tree: Tree

    def key(self) -> int:
        """Return a number that differs if the files or the reports differ."""
        files = self.tree.files()
        content = ((path, self.tree.contents.get(inode, b"")) for path, inode in sorted(files.items()))
        shared = tuple(sorted(files.values())) if len(set(files.values())) < len(files) else ()
        return hash((self.marks, tuple(content), shared))


def power_cuts(log: Log, chosen: Collection[int] | None = None, n_random: int = 3, seed: int = 0) -> Iterator[Cut]:
    """Yield the states after every cut, none twice; `chosen`: only after these numbers of calls.

    For each: everything unsynced lost; everything kept; each name alone lost, or alone kept; and random ones with torn writes.
    """
    seen: set[int] = set()
    base, pending, marks = log.before.copy(), list[tuple[int, Change]](), 0
    for calls in range(len(log.calls) + 1):
        if chosen is None or calls in chosen:
            for kind, tree in _states(base, [change for _, change in pending], n_random, Random(f"{seed} {calls}")):
                cut = Cut(calls, kind, marks, tree)
                if (key := cut.key()) not in seen:
                    seen.add(key)
                    yield cut
        if calls == len(log.calls):
            return
        call = log.calls[calls]
        if isinstance(call, Mark):
            marks += bool(call.text)
        elif isinstance(call, Sync):
            pending = _synced(base, pending, call)
        else:
            pending.append((calls, call))


def _synced(base: Tree, pending: list[tuple[int, Change]], sync: Sync) -> list[tuple[int, Change]]:
    """Apply to `base` what a sync makes last, and return what is still pending."""
    lasting = [(number, change) for number, change in pending if number < sync.begin and _place(change) == sync.inode]
    gone = {(change.source, change.source_name): number for number, change in lasting if isinstance(change, Rename)}
    for _, change in lasting:
        base.apply(change)

    def is_pending(number: int, change: Change) -> bool:
        # The old name of what was renamed went with the rename.
        old = not isinstance(change, Write | Truncate) and gone.get((change.folder, change.name), -1) > number
        return not old and (number, change) not in lasting

    return [one for one in pending if is_pending(*one)]


def _place(change: Change) -> int:
    """Return the file or folder that has to be synced for a change to last."""
    return change.inode if isinstance(change, Write | Truncate) else change.folder


def _states(base: Tree, pending: list[Change], n_random: int, random: Random) -> Iterator[tuple[str, Tree]]:
    yield "lost", _state(base, pending, [Fate.LOST] * len(pending), random)
    yield "kept", _state(base, pending, [Fate.KEPT] * len(pending), random)
    names = [number for number, change in enumerate(pending) if not isinstance(change, Write | Truncate)]
    for number in names:
        for alone, others in ((Fate.LOST, Fate.KEPT), (Fate.KEPT, Fate.LOST)):
            fates = [alone if other == number else others for other in range(len(pending))]
            yield f"{pending[number]} alone {alone.value}", _state(base, pending, fates, random)
    for number in range(n_random if pending else 0):
        share = random.choice((0.1, 0.5, 0.9))
        fates = [random.choice(list(Fate)[1:]) if random.random() < share else Fate.LOST for _ in pending]
        yield f"random {number}", _state(base, pending, fates, random)


def _state(base: Tree, pending: list[Change], fates: list[Fate], random: Random) -> Tree:
    tree = base.copy()
    for change, fate in zip(pending, fates, strict=True):
        if fate is Fate.LOST:
            continue
        if isinstance(change, Write) and change.data:
            tree.apply(_torn(change, fate, random))
        else:
            tree.apply(change)
    return tree


def _torn(write: Write, fate: Fate, random: Random) -> Write:
    middle = random.randrange(len(write.data))
    if fate is Fate.HEAD:
        return Write(write.inode, write.offset, write.data[:middle])
    if fate is Fate.TAIL:
        return Write(write.inode, write.offset + middle, write.data[middle:])
    return Write(write.inode, write.offset, bytes(len(write.data))) if fate is Fate.ZEROS else write
