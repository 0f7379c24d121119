"""The log of a program's writes, syncs, links, renames and unlinks below a folder, recorded by `strace`.

`strace` sees the calls of Python, NumPy and SQLite alike, in the libraries that polyvoc runs with; it needs no privileges. A
layer in Python would not see SQLite's own writes, a VFS of `apsw` would replace the SQLite library under test, and FUSE needs a
device that containers lack. What the recorder might miss (memory maps, calls not listed) is found by `Log.assert_complete`: all
calls of the log, applied to the folder as it was, must give the folder as it is.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CALLS = (
    "open,openat,creat,write,pwrite64,writev,pwritev,lseek,ftruncate,truncate,fallocate,copy_file_range,sendfile,"
    "rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,rmdir,mkdir,mkdirat,fsync,fdatasync"
)
LONGEST = 1 << 26  # bytes of one write
ROOT = 0  # the inode of the folder
_HEX = re.compile(r'"((?:\\x[0-9a-f]{2})*)"(\.\.\.)?')
_DESCRIPTOR = re.compile(r"(\d+|AT_FDCWD)<((?:\\x[0-9a-f]{2})*)>(\(deleted\))?")
_RESUMED = re.compile(r"<\.\.\. \w+ resumed>")
_CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)")


# -- what a log holds


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes written to a file."""

    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file set to a size."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Link:
    """A new name: of a new file or folder, or another one of a file."""

    folder: int
    name: str
    inode: int


@dataclass(frozen=True, slots=True)
class Unlink:
    """A name removed, of a file or of an empty folder."""

    folder: int
    name: str


@dataclass(frozen=True, slots=True)
class Rename:
    """A name changed; what has the new name gets the old one if both are exchanged."""

    source: int
    source_name: str
    folder: int
    name: str
    inode: int
    exchanged: int | None = None


@dataclass(frozen=True, slots=True)
class Sync:
    """A file, or the names in a folder, flushed to the disk: the effect of all calls that ended before this one began."""

    inode: int
    begin: int  # calls of the log before it began


@dataclass(frozen=True, slots=True)
class Mark:
    """What the program reported."""

    text: str


Change = Write | Truncate | Link | Unlink | Rename
Call = Change | Sync | Mark


@dataclass
class Tree:
    """Files and folders by inode; bytes are never changed in place, so that trees can share them."""

    folders: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    contents: dict[int, bytes] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)  # of files that were there before the program ran

    @classmethod
    def read(cls, root: Path) -> Tree:
        """Read a folder."""
        tree = cls()
        inodes: dict[int, int] = {root.stat().st_ino: ROOT}
        for folder, folders, files in os.walk(root):
            parent = tree.folders[inodes[os.stat(folder).st_ino]]
            for name in (*folders, *files):
                status = os.stat(os.path.join(folder, name))
                parent[name] = inode = inodes.setdefault(status.st_ino, len(inodes))
                if name in folders:
                    tree.folders[inode] = {}
                else:
                    tree.contents[inode] = Path(folder, name).read_bytes()
                    tree.times[inode] = status.st_mtime_ns
        return tree

    def copy(self) -> Tree:
        """Return a tree that can be changed independently."""
        return Tree({inode: dict(names) for inode, names in self.folders.items()}, dict(self.contents), self.times)

    def apply(self, change: Change) -> None:
        """Apply a call, also one whose predecessors were lost: names of what is not there are not removed."""
        match change:
            case Write(inode, offset, data):
                before = self.contents.get(inode, b"").ljust(offset, b"\0")
                self.contents[inode] = before[:offset] + data + before[offset + len(data) :]
            case Truncate(inode, size):
                self.contents[inode] = self.contents.get(inode, b"")[:size].ljust(size, b"\0")
            case Link(folder, name, inode):
                self._names(folder)[name] = inode
            case Unlink(folder, name):
                self._names(folder).pop(name, None)
            case Rename(source, source_name, folder, name, inode, exchanged):
                self._names(source).pop(source_name, None)
                self._names(folder)[name] = inode
                if exchanged is not None:
                    self._names(source)[source_name] = exchanged

    def files(self) -> dict[str, int]:
        """Return the inode of each path below the root; that of an empty folder ends with a slash."""
        found, pending = {}, [("", ROOT)]
        while pending:
            path, inode = pending.pop()
            names = self.folders[inode]
            if not names and path:
                found[path] = inode
            for name, child in names.items():
                if child in self.folders:
                    pending.append((f"{path}{name}/", child))
                else:
                    found[path + name] = child
        return found

    def write(self, root: Path) -> None:
        """Make a folder like this tree, in place of what is there."""
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        written: dict[int, Path] = {}
        for path, inode in self.files().items():
            target = root / path
            if path.endswith("/"):
                target.mkdir(parents=True)
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            if inode in written:
                target.hardlink_to(written[inode])
                continue
            target.write_bytes(self.contents.get(inode, b""))
            written[inode] = target
            if inode in self.times:
                os.utime(target, ns=(self.times[inode],) * 2)

    def _names(self, folder: int) -> dict[str, int]:
        return self.folders.setdefault(folder, {})


@dataclass(frozen=True)
class Log:
    """A folder as it was, and the calls of a program in it."""

    root: Path
    before: Tree
    calls: list[Call]

    def assert_complete(self) -> None:
        """Assert that the calls explain every byte below the folder."""
        tree = self.before.copy()
        for call in self.calls:
            if not isinstance(call, Sync | Mark):
                tree.apply(call)
        now = Tree.read(self.root)
        replayed = {path: tree.contents.get(inode, b"") for path, inode in tree.files().items()}
        assert replayed == {path: now.contents.get(inode, b"") for path, inode in now.files().items()}

    def without_syncs(self, inodes: Collection[int]) -> Log:
        """Return the log of a program that does not flush some files or folders."""
        calls = [Mark("") if isinstance(call, Sync) and call.inode in inodes else call for call in self.calls]
        return Log(self.root, self.before, calls)


# -- recording


def is_possible() -> bool:
    """Return whether this process may run `strace`."""
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-qq", "-o", os.devnull, "true"], capture_output=True, check=False).returncode == 0


def record(command: Sequence[str], output: Path) -> None:
    """Run a program to its end and write its calls, with those of its children, to a file."""
    options = ["-f", "-y", "-xx", "-qq", "-s", str(LONGEST), "--seccomp-bpf", "-e", f"trace={CALLS}", "-e", "signal=none"]
    subprocess.run(["strace", *options, "-o", str(output), *command], check=True)


def read_log(output: Path, root: Path, before: Tree, marks: Path, label: str) -> Log:
    """Read from the output of `strace` the calls below a folder, and what was written to `marks` as label, tab, report."""
    parser = _Parser(root, before.copy(), marks, label)
    with output.open(encoding="ascii") as lines:
        for begin, line in _whole_calls(lines, parser):
            parser.parse(line, begin)
    before = before.copy()
    for inode in parser.folders:  # no name leads to them yet
        before.folders.setdefault(inode, {})
    return Log(root, before, parser.calls)


def _whole_calls(lines: Iterator[str], parser: _Parser) -> Iterator[tuple[int, str]]:
    """Yield each call with the number of calls before it began; joins those that others interrupted in the output."""
    wanted = tuple(map(_escaped, (parser.root, parser.marks)))
    pending: dict[str, tuple[int, str]] = {}
    for line in lines:
        thread, _, text = line.partition(" ")
        begin = len(parser.calls)
        text = text.strip()
        if text.endswith("<unfinished ...>"):
            pending[thread] = begin, text.removesuffix("<unfinished ...>").rstrip()
            continue
        if text.startswith("<..."):
            begin, first = pending.pop(thread)
            text = first + _RESUMED.sub("", text, count=1)
        if any(path in text for path in wanted):
            yield begin, text


def _escaped(path: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in os.fsencode(path))


def _plain(text: str) -> str:
    return os.fsdecode(bytes.fromhex(text.replace("\\x", "")))


@dataclass
class _Open:
    """The position of an open file."""

    position: int
    appends: bool


class _Parser:
    """Applies calls to a tree to find out which inodes they concern."""

    def __init__(self, root: Path, tree: Tree, marks: Path, label: str) -> None:
        self.root, self.marks, self.label = str(root), str(marks), label
        self.calls: list[Call] = []
        self._tree = tree
        self.folders = tree.folders
        self._next = max((*tree.folders, *tree.contents)) + 1
        self._open: dict[tuple[str, int], _Open] = {}  # by descriptor and inode

    def parse(self, line: str, begin: int) -> None:
        """Add a call, unless it failed or lies elsewhere."""
        match = _CALL.match(line)
        if match is None or match[3].startswith("-"):
            return
        name, arguments, result = match[1], match[2], int(match[3])
        texts = [(found[1], found[2]) for found in _HEX.finditer(arguments)]
        assert not any(cut for _, cut in texts), f"longer than {LONGEST} bytes"
        strings = [text for text, _ in texts]
        descriptors = _DESCRIPTOR.findall(arguments)
        if name in ("write", "pwrite64", "writev", "pwritev", "lseek", "ftruncate", "fallocate", "fsync", "fdatasync"):
            self._use(
                name, arguments, descriptors[0], b"".join(bytes.fromhex(s.replace("\\x", "")) for s in strings), result, begin
            )
        elif name in ("open", "openat", "creat"):
            self._create(self._paths(strings, descriptors)[0], arguments, line[line.rindex("= ") + 2 :], name == "creat")
        elif name in ("copy_file_range", "sendfile", "symlink", "symlinkat", "truncate"):
            raise NotImplementedError(f"{name} in {line[:200]}")
        else:
            self._name(name, self._paths(strings, descriptors), arguments)

    def _use(self, name: str, arguments: str, descriptor: tuple[str, str, str], data: bytes, result: int, begin: int) -> None:
        number, text, deleted = descriptor
        path = _plain(text)
        if path == self.marks:
            label, _, report = data.decode().partition("\t")
            self.calls += [Mark(report)] if label == self.label else []
            return
        inode = self._inode(path)
        if deleted or inode is None:
            return
        opened = self._open.setdefault((number, inode), _Open(0, False))
        if name in ("fsync", "fdatasync"):
            self.calls.append(Sync(inode, begin))
        elif name == "lseek":
            opened.position = result
        elif name in ("ftruncate", "fallocate"):
            values = [int(value) for value in re.findall(r", (\d+)", arguments)]
            size = values[0] if name == "ftruncate" else max(len(self._tree.contents[inode]), values[-1] + values[-2])
            self._apply(Truncate(inode, size))
        elif name in ("pwrite64", "pwritev"):
            self._apply(Write(inode, int(arguments.rsplit(", ", 1)[1]), data[:result]))
        else:
            start = len(self._tree.contents[inode]) if opened.appends else opened.position
            self._apply(Write(inode, start, data[:result]))
            opened.position = start + result

    def _create(self, path: str, arguments: str, opened: str, creates: bool) -> None:
        place = self._place(path)
        if place is None:
            return
        folder, name = place
        inode = self._tree.folders[folder].get(name)
        if inode is None and (creates or "O_CREAT" in arguments):
            inode = self._new()
            self._tree.contents[inode] = b""
            self._apply(Link(folder, name, inode))
        elif inode is not None and (creates or "O_TRUNC" in arguments) and inode in self._tree.contents:
            self._apply(Truncate(inode, 0))
        if inode is not None:
            self._open[opened.partition("<")[0], inode] = _Open(0, "O_APPEND" in arguments)

    def _name(self, name: str, paths: list[str], arguments: str) -> None:
        places = [self._place(path) for path in paths]
        source, target = places[0], places[-1]
        if source is None and target is None:
            return
        assert source is not None and target is not None, f"{name} from or to another folder: {paths}"
        if name.startswith("mkdir"):
            inode = self._new()
            self._tree.folders[inode] = {}
            self._apply(Link(*target, inode))
        elif name.startswith("link"):
            self._apply(Link(*target, self._tree.folders[source[0]][source[1]]))
        elif name.startswith(("unlink", "rmdir")):
            self._apply(Unlink(*target))
        else:
            other = self._tree.folders[target[0]].get(target[1]) if "RENAME_EXCHANGE" in arguments else None
            self._apply(Rename(*source, *target, self._tree.folders[source[0]][source[1]], other))

    def _paths(self, strings: list[str], descriptors: list[tuple[str, str, str]]) -> list[str]:
        """Return absolute paths; a relative one is relative to its descriptor (without one, to the folder)."""
        bases = [_plain(text) for _, text, _ in descriptors] or [self.root]
        bases = bases * len(strings) if len(bases) < len(strings) else bases
        return [os.path.normpath(os.path.join(base, _plain(text))) for base, text in zip(bases, strings, strict=False)]

    def _apply(self, change: Change) -> None:
        self._tree.apply(change)
        self.calls.append(change)

    def _new(self) -> int:
        self._next += 1
        return self._next

    def _inode(self, path: str) -> int | None:
        if path == self.root:
            return ROOT
        place = self._place(path)
        return None if place is None else self._tree.folders[place[0]].get(place[1])

    def _place(self, path: str) -> tuple[int, str] | None:
        """Return the folder's inode and the name of a path; None outside of the folder."""
        if not path.startswith(self.root + "/"):
            return None
        *parents, name = path.removeprefix(self.root + "/").split("/")
        folder = ROOT
        for parent in parents:
            child = self._tree.folders[folder].get(parent)
            if child is None or child not in self._tree.folders:
                return None
            folder = child
        return folder, name
