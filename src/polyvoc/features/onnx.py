"""Networks in ONNX files: their bytes, and sessions that run them. The only user of onnxruntime."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from polyvoc.errors import OptionError, one_line
from polyvoc.storage.stores import display_name
from polyvoc.threads import count_threads

MAX_BYTES = 1 << 31  # of a model's file: the limit of its format
Inputs = list[tuple[str, str, list[Any]]]  # name, type and shape of each; lengths that are open are names or None


def read_model(path: Path) -> bytes:
    """Return the bytes of a model; raise OptionError for anything but a file of possible size."""
    try:
        if not path.is_file():
            raise OptionError(f"{display_name(path)}: no such file; give the path of an ONNX file")
        if path.stat().st_size > MAX_BYTES:
            raise OptionError(f"{display_name(path)}: more than {MAX_BYTES >> 30} GB; choose a smaller model")
        return path.read_bytes()
    except (OSError, ValueError, MemoryError) as error:
        raise OptionError(f"{display_name(path)}: cannot be read ({one_line(error)}); check its permissions") from error


def open_session(data: bytes, threads: int | None, name: str, extra: str = "embedding") -> tuple[Any, Inputs, list[str]]:
    """Return a session, its inputs, and the names of its outputs. extra: of the package, that installs what is missing."""
    count_threads(threads)  # checks the number
    try:
        import onnxruntime
    except ImportError as error:
        raise OptionError(f"models need onnxruntime ({error}): pip install 'polyvoc[{extra}]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads would use the cores of searches
    options.log_severity_level = 4  # errors are raised as well
    try:
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"], enable_fallback=0)
        inputs = [(entry.name, entry.type, list(entry.shape)) for entry in session.get_inputs()]
        return session, inputs, [entry.name for entry in session.get_outputs()]
    except Exception as error:  # its classes are private
        raise OptionError(f"{name}: not a model that onnxruntime can run ({one_line(error)}); replace it") from error


def fingerprint_of(*parts: Any) -> str:
    """Return 16 hex digits that change with plain values."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:16]
