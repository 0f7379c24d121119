"""RAW files of a camera, as small as they can be: a DNG of grey noise with a preview."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np

BYTE, ASCII, SHORT, LONG, RATIONAL, SIGNED_RATIONAL = 1, 2, 3, 4, 5, 10
_FORMATS = {BYTE: "B", ASCII: "s", SHORT: "H", LONG: "I", RATIONAL: "II", SIGNED_RATIONAL: "ii"}
IDENTITY = [1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1]  # a matrix of fractions
SIDE = 64  # pixels of the sensor


def dng(preview: bytes, size: tuple[int, int], orientation: int = 1) -> bytes:
    """Return a DNG whose preview is a JPEG of a size; without one if it is empty."""
    sensor = np.random.default_rng(1).integers(0, 4096, (SIDE, SIDE), np.uint16).tobytes()
    data = bytearray(b"II*\0\0\0\0\0")
    at_sensor = _append(data, sensor)
    first: list[tuple[int, int, Any]] = [
        (254, LONG, [0]), (256, LONG, [SIDE]), (257, LONG, [SIDE]), (258, SHORT, [16]), (259, SHORT, [1]),
        (262, SHORT, [32803]), (271, ASCII, b"Maker\0"),
        (272, ASCII, b"Camera\0"), (273, LONG, [at_sensor]), (274, SHORT, [orientation]),
        (277, SHORT, [1]), (278, LONG, [SIDE]), (279, LONG, [len(sensor)]), (284, SHORT, [1]),
        (33421, SHORT, [2, 2]), (33422, BYTE, [0, 1, 1, 2]), (50706, BYTE, [1, 4, 0, 0]), (50707, BYTE, [1, 1, 0, 0]),
        (50708, ASCII, b"Maker Camera\0"), (50717, SHORT, [4095]), (50721, SIGNED_RATIONAL, IDENTITY),
        (50728, RATIONAL, [1, 1, 1, 1, 1, 1]), (50778, SHORT, [21]),
    ]  # fmt: skip
    if preview:
        second = [
            (254, LONG, [1]), (256, LONG, [size[0]]), (257, LONG, [size[1]]), (258, SHORT, [8, 8, 8]), (259, SHORT, [7]),
            (262, SHORT, [6]), (273, LONG, [_append(data, preview)]), (277, SHORT, [3]), (278, LONG, [size[1]]),
            (279, LONG, [len(preview)]), (284, SHORT, [1]),
        ]  # fmt: skip
        first.append((330, LONG, [_directory(data, second)]))
    struct.pack_into("<I", data, 4, _directory(data, sorted(first)))
    return bytes(data)


def _append(data: bytearray, content: bytes) -> int:
    data += bytes(len(data) % 2)
    at = len(data)
    data += content
    return at


def _directory(data: bytearray, tags: list[tuple[int, int, Any]]) -> int:
    """Append a directory of tags; return where it is."""
    entries = b""
    for tag, kind, values in tags:
        packed = values if kind == ASCII else b"".join(struct.pack(f"<{_FORMATS[kind][0]}", value) for value in values)
        count = len(values) // (2 if len(_FORMATS[kind]) == 2 else 1)
        stored = packed.ljust(4, b"\0") if len(packed) <= 4 else struct.pack("<I", _append(data, packed))
        entries += struct.pack("<HHI", tag, kind, count) + stored
    return _append(data, struct.pack("<H", len(tags)) + entries + bytes(4))
