"""Files and folders that appear complete or not at all, checksums, memory maps."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import re
import shutil
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError, WriteError
from polyvoc.types import Array

DIGEST_BYTES = 16
BLOCK = 1 << 20  # bytes of a file that have a checksum of their own
PARTIAL = ".partial"  # suffix of what is being written; an old one is left by a killed process and may be deleted
META = "meta.json"
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


def write_folder(folder: Path, arrays: Mapping[str, Array], meta: Mapping[str, Any], replace: bool = False) -> None:
    """Write arrays as `<name>.npy` and `meta.json` with their checksums; `replace`: also in place of a folder with files.

    "checksums" are those of whole files, "blocks" of every BLOCK of a file (CRC-32, eight digits each): a reader can verify
    what it touches.
    """
    with write_errors(folder):
        partial = folder.with_name(folder.name + PARTIAL)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            written = {f"{name}.npy": _write_array(partial / f"{name}.npy", array) for name, array in arrays.items()}
            checksums, blocks = ({name: values[part] for name, values in written.items()} for part in (0, 1))
            text = json.dumps({**meta, "checksums": checksums, "blocks": blocks}, indent=1, sort_keys=True)
            (partial / META).write_text(text, encoding="utf-8")
            flush_path(partial / META)
            flush_path(partial)
            if replace and folder.exists():
                _swap_folders(partial, folder)
            else:
                partial.rename(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)  # a full disk needs the space
            raise
        flush_path(folder.parent)


def _swap_folders(new: Path, folder: Path) -> None:
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
    """Move a complete folder on the same disk, and flush both parent folders."""
    with write_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(target)
        flush_path(target.parent)
        flush_path(folder.parent)


def _write_array(path: Path, array: Array) -> tuple[str, str]:
    """Write one array, flush it to the disk, and return the checksum of the file and those of its blocks."""
    path.parent.mkdir(parents=True, exist_ok=True)
    array = np.ascontiguousarray(array)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    whole, blocks, first = hashlib.blake2b(digest_size=DIGEST_BYTES), [], header.getvalue()
    content = memoryview(array.reshape(-1).view(np.uint8).data)
    with path.open("wb") as file:
        for start in range(-len(first), max(len(content), 1), BLOCK):  # the header belongs to the first block
            part = bytes(content[max(start, 0) : max(start + BLOCK, 0)])
            part = first + part if start < 0 else part
            file.write(part)  # np.save does not report a full disk
            whole.update(part)
            blocks.append(f"{zlib.crc32(part):08x}")
        file.flush()
        _flush(file.fileno())
    return whole.hexdigest(), "".join(blocks)


def write_file(path: Path, array: Array) -> str:
    """Write one array to a file that nothing refers to yet, flush it and its folders, and return its checksum."""
    with write_errors(path):
        written, _ = _write_array(path, array)
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
        _flush(descriptor)
    finally:
        os.close(descriptor)


def _flush(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot flush folders
            raise
