"""Claims of the paper as signs of differences, and verdicts computed from their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from polyvoc.experiments.report.report import TableCell, Verdict

Outcome = Literal["holds", "contradicted", "open"]


@dataclass(frozen=True)
class Claim:
    """A difference that the paper reports above zero (sign 1), below it (-1) or next to it (0: within `room`)."""

    text: str  # which difference, such as "Holidays, 2x20K"
    found: TableCell  # the difference here, with its interval
    sign: int = 1
    room: float = 0.0

    @property
    def outcome(self) -> Outcome:
        """Return whether the whole interval is on the paper's side, on the other side, or neither."""
        low, high = self.found.low, self.found.high
        if low is None or high is None:
            return "open"
        if self.sign == 0:
            if -self.room <= low and high <= self.room:
                return "holds"
            return "contradicted" if low > self.room or high < -self.room else "open"
        low, high = (low, high) if self.sign > 0 else (-high, -low)
        return "holds" if low > 0 else "contradicted" if high < 0 else "open"


def verdict(claims: Sequence[Claim]) -> Verdict:
    """Return "reproduces" if every claim holds, "does not" if none does and one is contradicted, "open" if all are open."""
    outcomes = {claim.outcome for claim in claims}
    if not outcomes:
        return ""
    if outcomes == {"holds"}:
        return "reproduces"
    if "holds" in outcomes:
        return "partly"
    return "does not" if "contradicted" in outcomes else "open"


def summary(claims: Sequence[Claim]) -> str:
    """Return how many claims hold, and the differences of the others."""
    held = [claim for claim in claims if claim.outcome == "holds"]
    parts = [f"{len(held)} of {len(claims)} differences are as the paper says with their whole interval"]
    for outcome, words in (("contradicted", "against it"), ("open", "undecided")):
        named = [f"{claim.text} {difference_text(claim.found)}" for claim in claims if claim.outcome == outcome]
        if named:
            parts.append(f"{words}: {'; '.join(named)}")
    return ". ".join(part[0].upper() + part[1:] for part in parts) + "."


def difference_text(difference: TableCell) -> str:
    """Return a difference as text, with its interval if it has one."""
    numbers = (difference.value, difference.low, difference.high)
    value, low, high = ("?" if number is None else f"{number:+.{difference.digits}f}" for number in numbers)
    return value if "?" in (low, high) else f"{value} ({low} to {high})"
