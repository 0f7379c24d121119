"""Small ONNX files, written byte by byte: the format is protobuf, and these tests need a small part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

FLOAT, UINT8, INT64, FLOAT16 = 1, 2, 7, 10  # TensorProto.DataType
Shape = Sequence[int | str]  # a name is an open length
CELL = 8  # pixels of the side of a cell
PATCHES: dict[str, Any] = {  # of `patches`: a feature is a bright spot, described by the cells of pixels around it
    "name": "patches",
    "dimension": CELL * CELL,
    "descriptors": "cells",
    "scores": "brightness",
    "multiple": CELL,
    "threshold": 0.2,
    "radius": 3,
    "diameter": 10.0,
}


def number(field: int, value: int) -> bytes:
    """Return a field that holds a whole number."""
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    """Return a field that holds bytes: a string, or another message."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first."""
    head, rest = value & 127, value >> 7
    return bytes([head | 128]) + varint(rest) if rest else bytes([head])


def value_info(name: str, shape: Shape, kind: int = FLOAT) -> bytes:
    """Return the type of an input or output."""
    lengths = b"".join(text(1, text(2, n) if isinstance(n, str) else number(1, n)) for n in shape)
    return text(1, name) + text(2, text(1, number(1, kind) + text(2, lengths)))


def node(operator: str, inputs: Sequence[str], output: str, **whole_numbers: int) -> bytes:
    """Return one step of a graph; its attributes are whole numbers."""
    attributes = b"".join(text(5, text(1, name) + number(3, n) + number(20, 2)) for name, n in whole_numbers.items())
    return b"".join(text(1, name) for name in inputs) + text(2, output) + text(4, operator) + attributes


def constant(name: str, values: np.ndarray) -> bytes:
    """Return an array of floats that belongs to a graph."""
    return (
        b"".join(number(1, n) for n in values.shape)
        + number(2, FLOAT)
        + text(8, name)
        + text(9, values.astype("<f4").tobytes())
    )


def model(nodes: Sequence[bytes], inputs: Sequence[bytes], outputs: Sequence[bytes], constants: Sequence[bytes] = ()) -> bytes:
    """Return the bytes of a model, for the 13th set of operators."""
    graph = b"".join(text(1, step) for step in nodes) + text(2, "graph") + b"".join(text(5, one) for one in constants)
    graph += b"".join(text(11, entry) for entry in inputs) + b"".join(text(12, entry) for entry in outputs)
    return number(1, 8) + text(7, graph) + text(8, text(1, "") + number(2, 13))


def chain(*operators: str, shape: Shape = (1, 3, "h", "w"), output: Shape = (1, "a", "b", "c"), kind: int = FLOAT) -> bytes:
    """Return a model of operators in a row; `Sub` and `Div` get their input twice."""
    names = ["image", *(f"x{i}" for i in range(1, len(operators))), "answer"]
    twice = ("Sub", "Div")
    steps = [node(name, [names[i]] * (1 + (name in twice)), names[i + 1]) for i, name in enumerate(operators)]
    return model(steps, [value_info("image", shape, kind)], [value_info("answer", output, kind)])


def patches() -> bytes:
    """Return a network that finds features: bright spots (`PATCHES` describes it)."""
    steps = [node("SpaceToDepth", ["image"], "cells", blocksize=CELL), node("Identity", ["image"], "brightness")]
    outputs = [value_info("cells", (1, CELL * CELL, "a", "b")), value_info("brightness", (1, 1, "c", "d"))]
    return model(steps, [value_info("image", (1, 1, "h", "w"))], outputs)
