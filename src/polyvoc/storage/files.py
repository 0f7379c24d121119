"""Files that appear whole or not at all, checksums, memory maps."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError, WriteError
from polyvoc.types import Array

PARTIAL = ".partial"  # suffix of what is being written; an old one is left by a killed process and may be deleted
META = "meta.json"
_URL = re.compile(r"(?s)([A-Za-z][A-Za-z0-9+.-]+):/+(.*)")  # `Path` keeps one of its slashes only


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; then flush that file and rename it to `path`. On an error `path` stays as it was.

    Several processes may replace the same file: the last one to finish wins.
    """
    with write_errors(path):
        partial = path.with_name(f"{path.name}.{os.getpid()}{PARTIAL}")
        try:
            yield partial
            flush_path(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        flush_path(path.parent)


def write_folder(folder: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any], replace: bool = False) -> None:
    """Write arrays as `<name>.npy` and `meta.json` with their checksums; the folder appears complete or not at all.

    replace: whether it may take the place of a folder that holds files.
    """
    with write_errors(folder):
        partial = folder.with_name(folder.name + PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            _fill(partial, arrays, meta)
            if replace and folder.exists():
                _exchange(partial, folder)
            else:
                partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)  # a full disk needs the space
            raise
        flush_path(folder.parent)


def _exchange(new: Path, folder: Path) -> None:
    """Rename `new` to the name of a folder that exists, and delete the old one."""
    old = new.with_name(folder.name + ".old" + PARTIAL)
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
    try:
        new.rename(folder)
    except BaseException:
        old.rename(folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


def move_folder(folder: Path, target: Path) -> None:
    """Give a folder that is complete another place on the same disk, and make that survive."""
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)
        for parent in (target.parent, folder.parent):
            flush_path(parent)


def _fill(folder: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any]) -> None:
    checksums = {}
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        write_array(path, array)
        checksums[path.name] = checksum(path)
    with (folder / META).open("w", encoding="utf-8") as text:
        json.dump({**meta, "checksums": checksums}, text, indent=1, sort_keys=True)
        text.flush()
        _flush(text.fileno())
    flush_path(folder)


def write_array(path: Path, array: Array) -> None:
    """Write one array and flush it to the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.ascontiguousarray(array)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        file.write(array.reshape(-1).view(np.uint8).data)  # np.save would hide that the disk is full
        file.flush()
        _flush(file.fileno())


def write_file(path: Path, array: Array) -> str:
    """Write one array to a file that nothing refers to yet, make it survive, and give its checksum."""
    with write_errors(path):
        write_array(path, array)
        for folder in (path.parent, path.parent.parent):  # which may be new
            flush_path(folder)
        return checksum(path)


def read_meta(folder: Path) -> dict[str, Any]:
    """Read `meta.json` of a folder."""
    try:
        meta = json.loads((folder / META).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DamagedError(f"{folder / META} is missing; run 'polyvoc check' to see what else is damaged") from None
    except (OSError, ValueError) as error:
        raise DamagedError(f"{folder / META} cannot be read: {error}") from None
    if not isinstance(meta, dict):
        raise DamagedError(f"{folder / META} is not a description of arrays")
    return meta


def map_array(path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Array:
    """Map an array that must have a type and shape; nothing is read before it is touched."""
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


def checksum(path: Path) -> str:
    """Give the BLAKE2 checksum of a file, 32 hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def folder_errors(folder: Path, expected: str) -> Iterator[str]:
    """Say what is damaged in a folder written by `write_folder`: one line per file.

    expected: the checksum of its `meta.json`, which holds those of the others.
    """
    found = file_errors(folder / META, expected)
    if found is not None:
        yield found
        return  # and with it what the others should be
    checksums = read_meta(folder).get("checksums")
    if not isinstance(checksums, dict):
        yield f"{folder / META} holds no checksums"
        return
    for name, recorded in sorted(checksums.items()):
        found = file_errors(folder / name, recorded)
        if found is not None:
            yield found


def file_errors(path: Path, expected: str) -> str | None:
    """Say what is damaged about one file, None if its checksum is as expected."""
    try:
        if checksum(path) == expected:
            return None
    except FileNotFoundError:
        return f"{path} is missing"
    except OSError as error:
        return f"{path} cannot be read: {error.strerror or error}"
    return f"{path} is damaged: its checksum differs from the one recorded"


def require_local_path(path: Path) -> None:
    """Refuse what was meant as an address in a store, s3://bucket/x: photographs may lie there, what polyvoc makes may not."""
    found = _URL.match(str(path))
    if found is not None:
        raise OptionError(
            f"{found[1]}://{found[2]}: photographs may lie in a store, this may not; give a path on a disk, or mount the store"
        )


@contextmanager
def write_errors(path: Path) -> Iterator[None]:
    """Refuse a place that is no path; turn the system's complaints about one that cannot be written into one line."""
    require_local_path(path)
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from None


def write_error(path: Path, error: OSError) -> WriteError:
    """Say in one line why a place cannot be written, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return WriteError(f"{path}: the disk is full; free some space and run the command again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return WriteError(f"{path}: no permission to write there; choose another place with --index")
    return WriteError(f"{path} cannot be written: {error.strerror or error}")


def flush_tree(folder: Path) -> None:
    """Make a folder with all its files survive a power cut."""
    for entry in folder.iterdir():
        if entry.is_dir():
            flush_tree(entry)
        else:
            flush_path(entry)
    flush_path(folder)


def flush_path(path: Path) -> None:
    """Make a file, or what was created and renamed in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        _flush(descriptor)
    finally:
        os.close(descriptor)


def _flush(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush folders
            raise
