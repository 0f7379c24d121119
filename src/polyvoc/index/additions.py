"""Which images were added after a commit, by their ids: ids are given in order, and never again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from polyvoc.errors import OptionError

MAX_COMMITS = 5_000  # whose first ids are kept: 100 kB


@dataclass(frozen=True)
class Additions:
    """For each commit after which images were added, the first id that they could get; the latest commits only."""

    earliest: int = 0  # commit; what was added before is not recorded
    steps: tuple[tuple[int, int], ...] = ()  # commit, first id added after it; both rise

    @classmethod
    def of(cls, setting: Any) -> Additions:
        """Read the setting of an index. Raise ValueError or TypeError if it is none."""
        steps = tuple((int(commit), int(first)) for commit, first in setting["commits"])
        if list(steps) != sorted(steps):
            raise ValueError("not in order")
        return cls(int(setting["from"]), steps)

    def as_setting(self) -> dict[str, Any]:
        """Return the setting."""
        return {"from": self.earliest, "commits": [list(step) for step in self.steps]}

    def noted(self, commit: int, first: int) -> Additions:
        """Return these, with ids from `first` on that are added after a commit.

        Workers on other machines end in any order: they give the first id of all that they will add each time, so that none
        is left out of what was added after an earlier commit.
        """
        steps = self.steps
        if steps and steps[-1][1] == first:
            steps = steps[:-1]
        steps = (*steps, (commit, first))
        if len(steps) <= MAX_COMMITS:
            return replace(self, steps=steps)
        kept = steps[-MAX_COMMITS // 2 :]
        return Additions(steps[-len(kept) - 1][0] + 1, kept)

    def first_since(self, commit: int, last: int) -> int | None:
        """Return the first id that was added after a commit, None if nothing was; `last` is the newest commit."""
        if commit > last:
            raise OptionError(f"since={commit} should be at most {last}, the last commit of this index")
        if commit < self.earliest:
            raise OptionError(f"since={commit} should be at least {self.earliest}: what was added before is not recorded")
        return next((first for noted, first in self.steps if noted >= commit), None)
