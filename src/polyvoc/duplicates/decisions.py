"""Verdicts of the user on pairs of photographs, kept in the index by the digests of both files.

A verdict names contents, not places: it holds for every file with these bytes, wherever it lies, and for one that is removed
and added again. The verdicts are a side file of the index; each row has a checksum, so that damage to one does not cost the
others. The evidence of the pair is kept with its verdict, for `experiments.fit.duplicates`.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from polyvoc.duplicates.compare import EVIDENCE, EVIDENCE_VERSION, read_pairs
from polyvoc.errors import DamagedError, OptionError
from polyvoc.index.folder import DECISIONS, IndexFolder, SideFile
from polyvoc.index.writer import IndexWriter
from polyvoc.storage.files import write_errors
from polyvoc.types import Array, Floats32

FORMAT = "polyvoc decisions"
SAME, COPY, DIFFERENT = "same", "copy", "different"
VERDICTS = (SAME, COPY, DIFFERENT)  # the same thing in another shot, a copy, something else
MAX_DIGEST = 64  # characters
MAX_EVIDENCE = 32  # values: the layout of the file stays when the evidence changes
ROW = np.dtype([
    ("first", f"S{MAX_DIGEST}"),
    ("second", f"S{MAX_DIGEST}"),
    ("verdict", np.uint8),  # in VERDICTS
    ("decided", np.int64),  # seconds since 1970
    ("evidence_version", np.int64),  # 0: none
    ("evidence", np.float32, (MAX_EVIDENCE,)),
    ("row_checksum", np.uint64),
])  # fmt: skip
Key = tuple[str, str]  # digests, first <= second


@dataclass(frozen=True, eq=False)
class Decision:
    """A verdict on two contents."""

    first: str  # digest
    second: str
    verdict: str
    decided: int  # seconds since 1970
    evidence: Floats32 | None = field(default=None, repr=False)  # [len(EVIDENCE)]; None: not known

    def __post_init__(self) -> None:
        """Raise OptionError for a verdict that there is not, or contents that are none or equal."""
        if self.verdict not in VERDICTS:
            raise OptionError(f"verdict={self.verdict!r} should be one of {', '.join(VERDICTS)}")
        for digest in (self.first, self.second):
            if not (0 < len(digest) <= MAX_DIGEST and digest.isascii() and digest.isprintable()):
                raise OptionError(f"{digest!r} cannot be the digest of a file")
        if self.first == self.second:
            raise OptionError("both files have the same bytes: there is nothing to decide")

    @property
    def key(self) -> Key:
        """Return what the verdict is on."""
        return key_of(self.first, self.second)


def key_of(first: str, second: str) -> Key:
    """Return the key of two digests."""
    return (first, second) if first <= second else (second, first)


class Decisions:
    """The verdicts of an index: a mapping from two digests that nothing changes."""

    def __init__(self, decisions: Iterable[Decision] = ()) -> None:
        """Keep the last verdict on each pair, by its time."""
        self._by_key: dict[Key, Decision] = {}
        for one in decisions:
            if one.key not in self._by_key or one.decided >= self._by_key[one.key].decided:
                self._by_key[one.key] = one

    @classmethod
    def read(cls, folder: IndexFolder) -> Self:
        """Read the verdicts that an index stores."""
        side = folder.side_file(DECISIONS)
        if side is None:
            return cls()
        rows = folder.map_side_file(side, ROW)
        if not is_sound(rows).all():
            raise DamagedError(f"{folder.side_path(side)} is damaged; run 'polyvoc check --repair', which keeps what is sound")
        return cls(_decision(row) for row in rows)

    def save(self, writer: IndexWriter) -> None:
        """Store the verdicts in an index, instead of those that it has."""
        rows = np.zeros(len(self), ROW)
        for row, one in zip(rows, self, strict=True):
            row["first"], row["second"] = (digest.encode("ascii") for digest in one.key)
            row["verdict"], row["decided"] = VERDICTS.index(one.verdict), one.decided
            if one.evidence is not None:
                row["evidence_version"], row["evidence"][: len(EVIDENCE)] = EVIDENCE_VERSION, one.evidence
            row["row_checksum"] = _row_checksum(row)
        writer.save_side_file(DECISIONS, rows)

    def __len__(self) -> int:
        """Return the number of pairs with a verdict."""
        return len(self._by_key)

    def __iter__(self) -> Iterator[Decision]:
        """Yield the verdicts, first ones first."""
        yield from sorted(self._by_key.values(), key=lambda one: (one.decided, one.key))

    def verdict(self, first: str | None, second: str | None) -> str | None:
        """Return the verdict on two contents by their digests, None if there is none."""
        found = None if first is None or second is None else self._by_key.get(key_of(first, second))
        return None if found is None else found.verdict

    def joined(self, others: Iterable[Decision]) -> Decisions:
        """Return these and others; of two verdicts on a pair, the later."""
        return Decisions([*self, *others])

    def without(self, keys: Iterable[Key]) -> Decisions:
        """Return the others."""
        dropped = set(keys)
        return Decisions(one for one in self if one.key not in dropped)

    # -- exchange

    def as_dict(self, paths: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
        """Return plain values for JSON. paths: of the files with a digest, for readers."""
        known = paths or {}
        return {"format": FORMAT, "decisions": [{
            "first": one.first, "second": one.second, "verdict": one.verdict,
            "decided": datetime.fromtimestamp(one.decided, UTC).isoformat(),
            "paths": [next(iter(known.get(digest, ())), None) for digest in (one.first, one.second)],
        } for one in self]}  # fmt: skip

    @classmethod
    def from_dict(cls, values: Any, file: str) -> Self:
        """Read what `as_dict` returned; raise OptionError, naming the file, if it is something else."""
        try:
            if values["format"] != FORMAT:
                raise ValueError
            return cls(map(_imported, values["decisions"]))
        except OptionError as error:
            raise OptionError(f"{file}: {error}") from None
        except (KeyError, TypeError, ValueError, OverflowError, OSError):
            raise OptionError(f"{file}: not a file of decisions; write one with: polyvoc decisions --export FILE") from None


def _imported(values: Any) -> Decision:
    decided = datetime.fromisoformat(values["decided"])
    moment = int((decided if decided.tzinfo else decided.replace(tzinfo=UTC)).timestamp())
    return Decision(str(values["first"]), str(values["second"]), str(values["verdict"]), moment)


def _decision(row: np.void) -> Decision:
    evidence = row["evidence"][: len(EVIDENCE)] if row["evidence_version"] == EVIDENCE_VERSION else None
    first, second = row["first"].decode("ascii"), row["second"].decode("ascii")
    return Decision(first, second, VERDICTS[row["verdict"]], int(row["decided"]), None if evidence is None else evidence.copy())


def _row_checksum(row: np.void) -> int:
    content = row.tobytes()[: -ROW["row_checksum"].itemsize]
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest())


def is_sound(rows: Array) -> npt.NDArray[np.bool_]:
    """Return which rows are as they were written."""
    return np.array([row["row_checksum"] == _row_checksum(row) and row["verdict"] < len(VERDICTS) for row in rows], bool)


# -- verdicts on images of an index


def decide(writer: IndexWriter, verdicts: Iterable[tuple[int, int, str | None]]) -> Decisions:
    """Record verdicts on pairs of images, by their ids; None withdraws one. Return all that the index then has."""
    now, evidence = int(time.time()), stored_evidence(writer.folder)
    made, withdrawn = [], []
    for first, second, verdict in verdicts:
        one, other = digest_of(writer.folder, first), digest_of(writer.folder, second)
        if verdict is None:
            withdrawn.append(key_of(one, other))
        else:
            pair = (max(first, second), min(first, second))
            made.append(Decision(*key_of(one, other), verdict, now, evidence.get(pair)))
    before = Decisions.read(writer.folder)
    after = Decisions([*before.without([one.key for one in made] + withdrawn), *made])
    after.save(writer)
    return after


def stored_evidence(folder: IndexFolder) -> dict[tuple[int, int], Floats32]:
    """Return the evidence of the pairs that an index stores, by the ids of the later and the earlier image."""
    pairs = read_pairs(folder).pairs
    return dict(zip(map(tuple, pairs[["later", "earlier"]].tolist()), np.array(pairs["evidence"]), strict=True))


def digest_of(folder: IndexFolder, image: int) -> str:
    """Return the digest of an image; raise OptionError if there is none."""
    row = folder.catalogue.image(image)
    if row is None:
        raise OptionError(f"image {image} is not in the index; 'polyvoc info --images' lists what is")
    if row.digest is None:
        raise OptionError(f"{row.path} has no digest, by which a verdict would be kept; index its photograph")
    return row.digest


def paths_by_digest(folder: IndexFolder) -> dict[str, list[str]]:
    """Return the paths of the images with each digest."""
    found: dict[str, list[str]] = {}
    for row in folder.catalogue.images():
        if row.digest is not None:
            found.setdefault(row.digest, []).append(row.path)
    return found


def write_decisions(folder: IndexFolder, file: Path) -> int:
    """Write the verdicts of an index to a JSON file; return how many."""
    decisions = Decisions.read(folder)
    with write_errors(file):
        file.write_text(json.dumps(decisions.as_dict(paths_by_digest(folder)), indent=1) + "\n", encoding="utf-8")
    return len(decisions)


def load_decisions(file: Path) -> Decisions:
    """Read a file that `write_decisions` wrote."""
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"{file}: cannot be read ({error.strerror or error}); give a file of decisions") from None
    except (ValueError, RecursionError):
        raise OptionError(f"{file}: not a file of decisions; write one with: polyvoc decisions --export FILE") from None
    return Decisions.from_dict(values, str(file))


# -- integrity


def check_decisions(folder: IndexFolder) -> Iterator[str]:
    """Yield one line if stored verdicts are impossible: a check for `index.check`."""
    Decisions.read(folder)
    yield from ()


def sound_decisions(folder: IndexFolder, side: SideFile) -> Array:
    """Return the rows of a damaged file of verdicts that are sound: for `index.repair`."""
    path = folder.side_path(side)
    try:
        content = path.read_bytes()
    except OSError:
        return np.zeros(0, ROW)
    count = min(side.rows, len(content) // ROW.itemsize)
    rows = np.frombuffer(content[len(content) - count * ROW.itemsize :] if count else b"", ROW)
    return rows[is_sound(rows)]
