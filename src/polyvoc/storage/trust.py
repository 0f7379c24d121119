"""What this user allows on this machine: the folders and addresses whose photographs an index, or a journal, may name.

Paths in an index are data of whoever made it. An index, and a call that moves files, have a random identity; what this user has
indexed, moved or allowed is noted under that identity in a folder of the user; only what lies below it is read or moved.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import unquote
from uuid import uuid4

from polyvoc.errors import ImageError, NotAllowedError, OptionError
from polyvoc.storage.files import replace_file, write_errors
from polyvoc.storage.folders import Folder, absolute_path, is_below
from polyvoc.storage.stores import display_name, is_url, url_parts

_IDENTITY = re.compile(r"[0-9a-f]{32}")
_NAMED = 3  # roots in a message, at most


def new_identity() -> str:
    """Return a random identity for an index or a journal."""
    return uuid4().hex


class Readable(Protocol):
    """What may be read."""

    def allows(self, path: str) -> bool:
        """Return whether a path or an address that an index names may be read."""


@dataclass(frozen=True)
class Trust:
    """What an index may have read here: the roots that this user allows, and those that the index itself names."""

    index: Path
    identity: str | None  # None: made before indexes had one
    named: tuple[str, ...]

    @property
    def roots(self) -> tuple[str, ...]:
        """Return the allowed roots, as they are now."""
        return noted_roots(self.identity)

    def allows(self, path: str) -> bool:
        """Return whether a path or an address that the index names may be read."""
        return is_inside(path, self.roots)

    def require(self, path: str) -> str:
        """Return a path or an address that may be read; raise NotAllowedError for any other, ImageError for a mere name."""
        if not is_url(path) and not os.path.isabs(path):
            raise ImageError(f"{display_name(path)}: no such file; it is a name in {self.index}, not a path")
        if not self.allows(path):
            own = path if is_url(path) else os.path.dirname(path)
            roots = [root for root in self.named if is_inside(path, [root])] or [own]
            raise NotAllowedError(
                f"{display_name(path)}: not read, since {self.index} was made elsewhere; {self._advice(roots)}"
            )
        return path

    def require_named(self) -> None:
        """Raise NotAllowedError unless all roots that the index names are allowed: where all its photographs are needed."""
        self.require_all(self.named)

    def require_all(self, roots: Iterable[str]) -> None:
        """Raise NotAllowedError unless all of some folders and addresses that the index names are allowed."""
        line = self._refusal(roots)
        if line is not None:
            raise NotAllowedError(line)

    def refused(self) -> str | None:
        """Return one line about the roots that the index names and this user has not allowed; None if there are none."""
        return self._refusal(self.named)

    def _refusal(self, named: Iterable[str]) -> str | None:
        allowed = self.roots
        roots = [root for root in named if not is_inside(root, allowed)]
        if not roots:
            return None
        return f"{self.index} was made elsewhere, and its photographs are not read; {self._advice(roots)}"

    def _advice(self, roots: list[str]) -> str:
        if self.identity is None:
            return f"bring it up to date first: polyvoc index FOLDER --index {shlex.quote(str(self.index))}"
        shown = " ".join(shlex.quote(display_name(root)) for root in roots[:_NAMED]) + " ..." * (len(roots) > _NAMED)
        return f"if you trust it: polyvoc trust {shown} --index {shlex.quote(str(self.index))}"


def is_inside(path: str, roots: Iterable[str]) -> bool:
    """Return whether a path or an address lies below a root, whatever it holds: relative paths, `..` and NUL lie below none."""
    if is_url(path):
        plain = os.pardir not in unquote(path.replace("\\", "/")).split("/")
    else:
        plain = os.path.isabs(path) and os.path.normpath(path) == path
    return plain and "\0" not in path and is_below(path, roots)


def merged_roots(roots: Iterable[str]) -> list[str]:
    """Return roots in order, without those that lie below others."""
    kept: list[str] = []
    for root in sorted(set(roots), key=lambda root: (root.partition("::")[2], url_parts(root), root)):
        if not kept or not is_below(root, kept[-1:]):
            kept.append(root)
    return kept


def checked_root(root: Folder) -> str:
    """Return a folder or an address as it is noted; raise OptionError for one that would hold every host."""
    path = absolute_path(root)
    if is_url(path) and "::" not in path and not url_parts(path):
        raise OptionError(f"{display_name(path)} names no host, bucket or folder; add it")
    return path


# -- the notes of this user


def noted_roots(identity: object) -> tuple[str, ...]:
    """Return the roots that this user has allowed for an identity; none if nothing was noted, or the note is damaged."""
    try:
        roots = json.loads(_note(identity).read_text(encoding="ascii"))["roots"]
    except (OSError, ValueError, KeyError, TypeError):
        return ()
    return tuple(root for root in roots if isinstance(root, str)) if isinstance(roots, list) else ()


def note_roots(identity: str, of: Path, roots: Iterable[str]) -> None:
    """Allow further roots for an identity; `of`, the path of the index or journal, is for the reader of the note only."""
    before = noted_roots(identity)
    after = merged_roots([*before, *roots])
    if set(after) == set(before):
        return
    note = _note(identity)
    with write_errors(note):
        note.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(note) as partial:
        partial.write_text(json.dumps({"of": os.path.abspath(of), "roots": after}, indent=1), encoding="ascii")


def is_identity(value: object) -> bool:
    """Return whether a value of an index or a journal is an identity."""
    return isinstance(value, str) and _IDENTITY.fullmatch(value) is not None


def _note(identity: object) -> Path:
    """Return the file with the note of an identity; raise ValueError for anything else, such as a path."""
    if not is_identity(identity):
        raise ValueError(f"{identity!r} is no identity")
    given = os.environ.get("XDG_CONFIG_HOME") or ""
    folder = Path(given) if os.path.isabs(given) else Path(os.path.expanduser("~")) / ".config"
    return folder / "polyvoc" / "trusted" / f"{identity}.json"
