"""Files and folders that appear complete or not at all, checksums, memory maps."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import io
import json
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, LockedError, OptionError, WriteError
from polyvoc.types import Array

DIGEST_BYTES = 16
PARTIAL = ".partial"  # suffix of what is being written; an old one is left by a killed process and may be deleted
OLD = f".old{PARTIAL}"  # suffix of a folder that is being replaced
PARTIAL_SECONDS = 3600.0  # in which a file that is replaced is surely written
META = "meta.json"
_FULL_FLUSH: int | None = getattr(fcntl, "F_FULLFSYNC", None)
_HERE, _EXCHANGE = -100, 2  # AT_FDCWD; RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS
_PARTIAL_FILE = re.compile(rf"\.\d+{re.escape(PARTIAL)}$")  # of `replace_file`
_URL = re.compile(r"(?s)([A-Za-z][A-Za-z0-9+.-]+):/+(.*)")  # `Path` keeps one of its slashes only


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; then flush that file and rename it to `path`. On an error `path` stays as it was.

    Several processes and threads may replace the same file: the last one to finish wins.
    """
    with write_errors(path):
        partial = path.with_name(f"{path.name}.{threading.get_native_id()}{PARTIAL}")
        try:
            yield partial
            flush_path(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        flush_path(path.parent)


def remove_partial_files(folder: Path) -> None:
    """Delete what killed processes left of `replace_file` in a folder; younger ones may still be written."""
    for partial in folder.glob(f"*{PARTIAL}"):
        with suppress(OSError):
            found = partial.lstat()
            written = stat.S_ISREG(found.st_mode) and _PARTIAL_FILE.search(partial.name) is not None
            if written and time.time() - found.st_mtime > PARTIAL_SECONDS:
                partial.unlink()


def write_folder(folder: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any], replace: bool = False) -> None:
    """Write arrays as `<name>.npy` and `meta.json` with their checksums; `replace`: also in place of a folder with files."""
    with new_folder(folder, replace) as partial:
        checksums = {f"{name}.npy": _write_array(partial / f"{name}.npy", array) for name, array in arrays.items()}
        text = json.dumps({**meta, "checksums": checksums}, indent=1, sort_keys=True)
        (partial / META).write_text(text, encoding="utf-8")
        flush_path(partial / META)


@contextmanager
def new_folder(folder: Path, replace: bool = False) -> Iterator[Path]:
    """Yield a folder to write to; then flush its names and rename it. `replace`: also in place of a folder with files.

    The files are flushed by who writes them. On an error nothing is left.
    """
    with write_errors(folder):
        make_folder(folder.parent)
        with _partial_folder(folder) as partial:
            yield partial
            for part in (partial, *(path for path in partial.rglob("*") if path.is_dir())):
                flush_path(part)
            if replace and folder.exists():
                _swap_folders(partial, folder)
            else:
                partial.rename(folder)
                flush_path(folder.parent)


@contextmanager
def _partial_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder to write before it is renamed to `folder`, locked meanwhile; delete it on an error.

    Raise LockedError if another process is writing it. A killed process leaves it unlocked.
    """
    partial = folder.with_name(folder.name + PARTIAL)
    with _locked(partial):
        shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    with _locked(partial):
        try:
            yield partial
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)  # a full disk needs the space
            raise


def remove_partial_folders(parent: Path) -> None:
    """Delete what killed processes left of `write_folder` in a folder; what others are writing stays."""
    for partial in parent.glob(f"*{PARTIAL}"):
        if partial.is_symlink() or not all(_is_written(file) for file in partial.rglob("*")):
            continue  # a folder of somebody else
        with suppress(LockedError, OSError), _locked(partial):
            target = partial.with_name(partial.name.removesuffix(OLD))
            if partial.name.endswith(OLD) and not target.exists():
                partial.rename(target)  # killed between the two renames of `_swap_folders`
                flush_path(parent)
            else:
                shutil.rmtree(partial)


def _is_written(path: Path) -> bool:
    """Return whether a path may be of `write_folder`."""
    return path.suffix == ".npy" or path.name == META or (path.is_dir() and not path.is_symlink())


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock of a folder, if it exists; the system releases it when this process ends. Raise LockedError if it is held."""
    if not folder.is_dir():
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LockedError(f"{folder} is being written by another process; wait until it has finished") from None
        except OSError:
            pass  # some file systems cannot lock folders
        yield
    finally:
        os.close(descriptor)


def _swap_folders(new: Path, folder: Path) -> None:
    """Rename `new` to the name of a folder that exists, and delete the old one when the new one is sure to stay."""
    old = new
    if not _exchange(new, folder):
        old = folder.with_name(folder.name + OLD)
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
        try:
            new.rename(folder)
        except BaseException:
            old.rename(folder)
            raise
    flush_path(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders in one step; return False where the system cannot."""
    libc, names = ctypes.CDLL(None, use_errno=True), (os.fsencode(one), os.fsencode(other))
    if hasattr(libc, "renameat2"):  # Linux
        failed = libc.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE)
    elif hasattr(libc, "renamex_np"):  # macOS
        failed = libc.renamex_np(*names, _EXCHANGE)
    else:
        return False
    code = ctypes.get_errno()
    if failed and code not in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        raise OSError(code, os.strerror(code))
    return not failed


def make_folder(path: Path) -> None:
    """Make a folder and its parents, unless they exist, and flush the names of the new ones."""
    missing = [folder for folder in (path, *path.parents) if not os.path.exists(folder)]
    os.makedirs(path, exist_ok=True)
    for folder in reversed(missing):
        with suppress(PermissionError):  # a folder that may not be read cannot be flushed
            flush_path(folder.parent)


def move_folder(folder: Path, target: Path) -> None:
    """Move a complete folder on the same disk, and flush both parent folders."""
    with write_errors(target):
        make_folder(target.parent)
        folder.rename(target)
        flush_path(target.parent)
        flush_path(folder.parent)


def _write_array(path: Path, array: Array) -> str:
    """Write one array, flush it to the disk, and return the checksum of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.ascontiguousarray(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    whole, content = hashlib.blake2b(digest_size=DIGEST_BYTES), memoryview(array.reshape(-1).view(np.uint8).data)
    with path.open("wb") as file:
        for part in (header.getvalue(), content):
            file.write(part)  # np.save does not report a full disk
            whole.update(part)
        file.flush()
        flush_file(file.fileno())
    return whole.hexdigest()


def write_file(path: Path, array: Array) -> str:
    """Write one array to a file that nothing refers to yet, flush it and its folders, and return its checksum."""
    with write_errors(path):
        written = _write_array(path, array)
        flush_path(path.parent)
        flush_path(path.parent.parent)  # of which the other may be new
        return written


def read_meta(folder: Path) -> dict[str, Any]:
    """Read `meta.json` of a folder."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamagedError(f"{folder / META} is missing; run 'polyvoc check' to see what else is damaged") from None
    except (OSError, ValueError) as error:
        raise DamagedError(f"{folder / META} cannot be read: {error}") from None
    if not isinstance(meta, dict):
        raise DamagedError(f"{folder / META} is not a JSON object")
    return meta


def map_array(path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
    """Return a memory map of an array. Raise DamagedError if its type or shape is another; the values are read when used."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing; run 'polyvoc check' to see what else is damaged") from None
    except OSError as error:
        raise DamagedError(f"{path} cannot be read: {error.strerror or error}") from None
    except Exception as error:  # noqa: BLE001 - the header is parsed as Python: a damaged one raises anything
        raise DamagedError(f"{path} cannot be read as an array ({type(error).__name__}); run 'polyvoc check'") from None
    if array.dtype != np.dtype(dtype) or array.shape != shape:
        raise DamagedError(f"{path} holds {array.dtype}{list(array.shape)} where {np.dtype(dtype)}{list(shape)} is expected")
    return np.asarray(array)


def map_folder(folder: Path, shapes: Mapping[str, tuple[npt.DTypeLike, tuple[int, ...]]]) -> dict[str, Array]:
    """Return memory maps of `<name>.npy` in a folder, by name; shapes: dtype and shape of each."""
    return {name: map_array(folder / f"{name}.npy", dtype, shape) for name, (dtype, shape) in shapes.items()}


def checksum(path: Path) -> str:
    """Return the BLAKE2 checksum of a file, 32 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES)).hexdigest()


def folder_errors(folder: Path, expected: str) -> Iterator[str]:
    """Yield one line for each damaged file of a folder of `write_folder`; expected: the checksum of its `meta.json`."""
    line = file_errors(folder / META, expected)
    checksums = None if line else read_meta(folder).get("checksums")
    if isinstance(checksums, dict):
        yield from filter(None, (file_errors(folder / name, recorded) for name, recorded in sorted(checksums.items())))
    else:  # the checksums of the others are not reliable
        yield line or f"{folder / META} holds no checksums"


def file_errors(path: Path, expected: str) -> str | None:
    """Return one line about a damaged file, None if its checksum is as expected."""
    try:
        if checksum(path) == expected:
            return None
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    return f"{path} is damaged: its checksum differs from the one recorded"


def require_local_path(path: Path) -> None:
    """Raise OptionError for an address such as s3://bucket/x: only photographs may be in a store, not what polyvoc writes."""
    url = _URL.match(str(path))
    if url is not None:
        raise OptionError(f"{url[1]}://{url[2]}: only photographs may be in a store; give a path on a disk, or mount the store")


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Raise OptionError unless `path` is local; turn an OSError into a WriteError."""
    require_local_path(path)
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from None


def write_error(path: Path, error: OSError) -> WriteError:
    """Return an error that gives the reason why a path cannot be written, and the next step."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WriteError(f"{path}: the disk is full; free some space and run the command again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return WriteError(f"{path}: no permission to write there; choose another folder")
    return WriteError(f"{path} cannot be written: {error.strerror or error}")


def flush_path(path: Path) -> None:
    """Flush a file, or the names in a folder, to the disk, so that they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        flush_file(descriptor)
    finally:
        os.close(descriptor)


def flush_file(descriptor: int) -> None:
    """Flush an open file, or folder, to the disk."""
    if _FULL_FLUSH is not None:  # macOS: fsync leaves it in the cache of the disk
        with suppress(OSError):  # disks of a network cannot do it
            fcntl.fcntl(descriptor, _FULL_FLUSH)
            return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush folders
            raise
