"""Which data does a pickle hold? The answer without running it."""

from __future__ import annotations

import codecs
import math
import pickletools
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_STEPS = 2_000_000  # operations; a published ground truth takes some 60,000
MAX_LENGTH = 1 << 31  # of one side of an array
# Names in pickles of numpy arrays, and the step of `_Machine.call` that each stands for.
NAMES = {
    ("_codecs", "encode"): "encode",  # bytes, in protocols 0 to 2
    ("__builtin__", "bytes"): "bytes",  # no bytes, in protocols 0 to 2
    ("builtins", "bytes"): "bytes",
    ("numpy", "dtype"): "dtype",
    ("numpy", "ndarray"): "ndarray",
    **{(f"numpy.{core}.multiarray", "_reconstruct"): "array" for core in ("core", "_core")},
    **{(f"numpy.{core}.multiarray", "scalar"): "scalar" for core in ("core", "_core")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): "buffer" for core in ("core", "_core")},  # protocol 5
}
ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"\\": b"\\", b"'": b"'", b'"': b'"'}  # in a repr of Python 2


class Refused(Exception):
    """Why a pickle is not read."""


@dataclass(eq=False)
class Numbers:
    """A numpy array of at most one side longer than 1, flat."""

    values: npt.NDArray[Any] | None = None  # [n], None until the pickle fills it


@dataclass(frozen=True)
class _Name:
    """One of the names above, on the stack."""

    step: str


@dataclass(eq=False)
class _Kind:
    """A numpy dtype of numbers."""

    code: str  # such as i8
    order: str = "<"


def load_plain(data: bytes) -> Any:
    """Give the plain data that a pickle builds, arrays as `Numbers`; anything else raises `Refused`."""
    return _Machine(data).run()


class _Machine:
    """A stack, marks on it, and a memo of values met before."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.stack: list[Any] = []
        self.marks: list[int] = []  # heights of the stack
        self.memo: dict[int, Any] = {}
        self.spare = len(data)  # bytes that texts may still become: a file has no more text than bytes

    def run(self) -> Any:
        begin = 0
        try:
            for _ in range(MAX_STEPS):
                begin = self.at
                code = self.take(1)
                if code in PUSHES:
                    self.stack.append(PUSHES[code](self))
                elif code in CHANGES:
                    CHANGES[code](self)
                elif code == b".":
                    return self.pop()
                else:
                    raise Refused(f"holds {_operation(code)} (byte {begin})")
        except ValueError:  # digits, text or numbers that cannot be decoded
            raise Refused(f"is damaged at byte {begin}") from None
        raise Refused(f"takes more than {MAX_STEPS} steps to build")

    # --- what follows an operation in the file ---

    def take(self, count: int) -> bytes:
        found = self.data[self.at : self.at + count]
        if len(found) < count:
            raise Refused(f"is cut or damaged: {count} bytes are wanted at byte {self.at}, {len(found)} are left")
        self.at += count
        return found

    def number(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self.take(size), "little", signed=signed)

    def counted(self, size: int) -> bytes:
        return self.take(self.number(size))

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.at)
        if end < 0:
            raise Refused(f"is cut or damaged: the line at byte {self.at} has no end")
        found, self.at = self.data[self.at : end], end + 1
        return found

    def decimal(self) -> int:
        digits = self.line()
        if digits in (b"00", b"01"):  # how protocol 0 writes booleans
            return digits == b"01"
        if not re.fullmatch(rb"-?[0-9]{1,20}L?", digits):
            raise ValueError
        return int(digits.rstrip(b"L"))

    def fraction(self) -> float:
        digits = self.line()
        if len(digits) > 40:  # no repr of a float is as long
            raise ValueError
        return float(digits)

    def long(self, size: int) -> int:
        count = self.number(size)
        if count > 16:  # no number of a ground truth is as large
            raise ValueError
        return self.number(count, signed=True)

    def quoted(self) -> str:
        """Give a str of Python 2, written as its repr."""
        text = self.line()
        if len(text) < 2 or text[:1] != text[-1:] or text[:1] not in (b"'", b'"'):
            raise ValueError
        return re.sub(rb"\\(x[0-9a-f]{2}|.|$)", _unescaped, text[1:-1], flags=re.DOTALL).decode("latin-1")

    # --- the stack ---

    def pop(self) -> Any:
        if len(self.stack) <= (self.marks[-1] if self.marks else 0):
            raise Refused(f"is damaged: its stack is empty at byte {self.at}")
        return self.stack.pop()

    def pop_several(self, count: int) -> tuple[Any, ...]:
        return tuple(self.pop() for _ in range(count))[::-1]

    def pop_to_mark(self) -> list[Any]:
        if not self.marks:
            raise Refused(f"is damaged: its stack has no mark at byte {self.at}")
        height = self.marks.pop()
        found = self.stack[height:]
        del self.stack[height:]
        return found

    def discard(self) -> None:
        if self.marks and self.marks[-1] == len(self.stack):
            self.marks.pop()
        else:
            self.pop()

    def top(self) -> Any:
        value = self.pop()
        self.stack.append(value)
        return value

    def memorise(self, number: int) -> None:
        self.memo[number] = self.top()

    def recall(self, number: int) -> Any:
        if number not in self.memo:
            raise Refused(f"is damaged: it recalls at byte {self.at} what it never stored")
        return self.memo[number]

    def append(self, values: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise Refused(f"is damaged: it appends at byte {self.at} to what is no list")
        target.extend(values)

    def fill(self, flat: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, dict):
            raise Refused(f"is damaged: it sets an item at byte {self.at} in what is no dictionary")
        target.update(self.dictionary(flat))

    def dictionary(self, flat: list[Any]) -> dict[str, Any]:
        keys, values = flat[::2], flat[1::2]
        if not all(isinstance(key, str) for key in keys):  # hashing a deep tuple would overflow the C stack
            raise Refused(f"holds a dictionary at byte {self.at} whose keys are no texts")
        return dict(zip(keys, values, strict=True))

    # --- names, and what they stand for ---

    def name(self, module: object, name: object) -> _Name:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise Refused(f"is damaged: it names something at byte {self.at} by what is no text")
        if (module, name) not in NAMES:
            raise Refused(f"wants to use {short(f'{module}.{name}')}, which is no plain data and may be an attack")
        return _Name(NAMES[module, name])

    def call(self) -> Any:
        what, arguments = self.pop_several(2)
        if isinstance(what, _Name) and isinstance(arguments, tuple):
            match what.step, arguments:
                case "encode", (str(text), "latin1" | "latin-1"):
                    return self.to_bytes(text)
                case "bytes", ():
                    return b""
                case "dtype", (str(code), *_):
                    if not re.fullmatch("b1|[iu][1248]|f[248]", code):
                        raise Refused(f"holds an array of {short(code)}, not of numbers")
                    return _Kind(code)
                case "array", (_Name("ndarray"), _, _):
                    return Numbers()
                case "scalar", (_Kind() as kind, data):
                    return self.array((), kind, data)[0].item()
                case "buffer", (data, _Kind() as kind, shape, *_):
                    return Numbers(self.array(shape, kind, data))
        raise Refused(f"calls something at byte {self.at} in a way that numpy does not")

    def build(self) -> None:
        state = self.pop()
        match self.top(), state:
            case _Kind() as kind, (int(), ("<" | ">" | "|") as order, None, None, None, *_):
                kind.order = order
            case Numbers() as numbers, (int(), shape, _Kind() as kind, _, data):
                numbers.values = self.array(shape, kind, data)
            case _:
                raise Refused(f"sets a state at byte {self.at} in a way that numpy does not")

    def array(self, shape: object, kind: _Kind, data: object) -> npt.NDArray[Any]:
        """Give bytes as numbers [n], without a copy: several arrays may share them."""
        content = self.to_bytes(data)
        values = np.frombuffer(content, kind.order + kind.code) if content else np.empty(0)
        sides = shape if isinstance(shape, tuple) else (-1,)
        if not all(type(side) is int and 0 <= side < MAX_LENGTH for side in sides) or len(sides) > 4:
            raise Refused(f"holds an array at byte {self.at} whose shape is none")
        if sum(side > 1 for side in sides) > 1 or math.prod(sides) != len(values):
            raise Refused(f"holds an array at byte {self.at} of {len(values)} numbers that do not fit its shape {sides}")
        return values

    def to_bytes(self, data: object) -> bytes:
        """Give bytes, which Python 2 stores as text."""
        if isinstance(data, str):
            self.spare -= len(data)
            if self.spare < 0:
                raise Refused("makes more bytes than it has, which may be an attack")
            return data.encode("latin-1")
        if not isinstance(data, bytes):
            raise Refused(f"holds an array at byte {self.at} that is not of numbers")
        return data


# Operations that push a value, as Python's pickletools lists them.
PUSHES: dict[bytes, Callable[[_Machine], Any]] = {
    b"N": lambda m: None,
    b"\x88": lambda m: True,
    b"\x89": lambda m: False,
    b"I": _Machine.decimal,
    b"L": _Machine.decimal,
    b"K": lambda m: m.number(1),
    b"M": lambda m: m.number(2),
    b"J": lambda m: m.number(4, signed=True),
    b"\x8a": lambda m: m.long(1),
    b"\x8b": lambda m: m.long(4),
    b"F": _Machine.fraction,
    b"G": lambda m: struct.unpack(">d", m.take(8))[0],
    b"S": _Machine.quoted,
    b"U": lambda m: m.counted(1).decode("latin-1"),
    b"T": lambda m: m.counted(4).decode("latin-1"),
    b"V": lambda m: codecs.raw_unicode_escape_decode(m.line())[0],  # bytes.decode would import a module for it
    b"\x8c": lambda m: m.counted(1).decode("utf-8"),
    b"X": lambda m: m.counted(4).decode("utf-8"),
    b"\x8d": lambda m: m.counted(8).decode("utf-8"),
    b"C": lambda m: m.counted(1),
    b"B": lambda m: m.counted(4),
    b"\x8e": lambda m: m.counted(8),
    b"\x96": lambda m: m.counted(8),  # a bytearray, which nothing here changes
    b"]": lambda m: [],
    b"}": lambda m: {},
    b")": lambda m: (),
    b"l": _Machine.pop_to_mark,
    b"t": lambda m: tuple(m.pop_to_mark()),
    b"d": lambda m: m.dictionary(m.pop_to_mark()),
    b"\x85": lambda m: m.pop_several(1),
    b"\x86": lambda m: m.pop_several(2),
    b"\x87": lambda m: m.pop_several(3),
    b"2": _Machine.top,
    b"g": lambda m: m.recall(m.decimal()),
    b"h": lambda m: m.recall(m.number(1)),
    b"j": lambda m: m.recall(m.number(4)),
    b"c": lambda m: m.name(m.line().decode("utf-8"), m.line().decode("utf-8")),
    b"\x93": lambda m: m.name(*m.pop_several(2)),
    b"R": _Machine.call,
}
# Operations that change the stack or the memo otherwise.
CHANGES: dict[bytes, Callable[[_Machine], object]] = {
    b"\x80": lambda m: m.number(1),  # protocol: operations of a newer one are refused when they come
    b"\x95": lambda m: m.number(8),  # frame
    b"(": lambda m: m.marks.append(len(m.stack)),
    b"0": _Machine.discard,
    b"1": _Machine.pop_to_mark,
    b"p": lambda m: m.memorise(m.decimal()),
    b"q": lambda m: m.memorise(m.number(1)),
    b"r": lambda m: m.memorise(m.number(4)),
    b"\x94": lambda m: m.memorise(len(m.memo)),
    b"a": lambda m: m.append([m.pop()]),
    b"e": lambda m: m.append(m.pop_to_mark()),
    b"s": lambda m: m.fill(list(m.pop_several(2))),
    b"u": lambda m: m.fill(m.pop_to_mark()),
    b"b": _Machine.build,
}


def _operation(code: bytes) -> str:
    name = next((known.name for known in pickletools.opcodes if known.code.encode("latin-1") == code), None)
    return f"operation {name}, which plain data never needs" if name else f"{code!r} where an operation is expected"


def _unescaped(match: re.Match[bytes]) -> bytes:
    escape = match[1]
    if len(escape) == 3:
        return bytes([int(escape[1:], 16)])
    if escape not in ESCAPES:
        raise ValueError
    return ESCAPES[escape]


def short(text: str) -> str:
    """Give a foreign text for a message: on one line, not long."""
    return repr(text if len(text) <= 60 else text[:60] + "...")
