"""The published pickle is read whatever Python wrote it; a hostile one runs nothing, takes no memory and is one line."""

from __future__ import annotations

import copyreg
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyvoc.errors import DatasetError
from polyvoc.experiments.datasets.ground_truth import MAX_BYTES, RevisitedEntry, RevisitedTruth, read_ground_truth
from polyvoc.experiments.datasets.stackmachine import load_plain

quietly = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

CONTENT: dict[str, Any] = {
    "imlist": ["all_souls_000001", "ashmolean_000283", "oxford_003410", "Pitt-Rivers 7 (é)"],
    "qimlist": ["all_souls_000013", "balliol_000051"],
    "gnd": [
        {"bbx": [136.5, 34.1, 648.5, 955.7], "easy": [0, 2], "hard": [1], "junk": []},
        {"bbx": [0, 0, 7, 8], "easy": [], "hard": [3, 1, 0], "junk": [2]},
    ],
}
TRUTH = RevisitedTruth(
    ("all_souls_000001", "ashmolean_000283", "oxford_003410", "Pitt-Rivers 7 (é)"),
    ("all_souls_000013", "balliol_000051"),
    (
        RevisitedEntry((136.5, 34.1, 648.5, 955.7), (0, 2), (1,), ()),
        RevisitedEntry((0, 0, 7, 8), (), (3, 1, 0), (2,)),
    ),
)


def changed(convert: Callable[[list[Any]], Any]) -> dict[str, Any]:
    """The content with every list of numbers in another form."""
    return CONTENT | {"gnd": [{key: convert(value) for key, value in entry.items()} for entry in CONTENT["gnd"]]}


def read(folder: Path, data: bytes) -> RevisitedTruth:
    path = folder / "gnd_roxford5k.pkl"
    path.write_bytes(data)
    return read_ground_truth(path)


def line_of(folder: Path, data: bytes) -> str:
    """The one line that bytes raise."""
    with pytest.raises(DatasetError) as caught, watched():
        read(folder, data)
    line = str(caught.value)
    assert line.startswith(f"{folder / 'gnd_roxford5k.pkl'}: ") and "again from the authors" in line
    assert "\n" not in line and len(line) < 500
    return line


# What Python tells its audit hooks when code comes in or goes out.
ALARMS = {
    "import",
    "exec",
    "compile",
    "pickle.find_class",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "subprocess.Popen",
    "socket.connect",
}
_watching: list[bool] = []
_alarms: list[str] = []


def _hear(event: str, _: tuple[object, ...]) -> None:
    if _watching and event in ALARMS:
        _alarms.append(event)


sys.addaudithook(_hear)


@contextmanager
def watched() -> Iterator[None]:
    """Assert that nothing is imported, compiled, run or started meanwhile."""
    _alarms.clear()
    _watching.append(True)
    try:
        yield
    finally:
        _watching.pop()
    assert _alarms == []


def test_the_watch_hears() -> None:
    with pytest.raises(AssertionError, match="compile"), watched():
        compile("1", "here", "eval")
    with pytest.raises(AssertionError, match="find_class"), watched():
        pickle.loads(pickle.dumps(np.array([1])))  # noqa: S301 - made here


# --- pickles of all times ---------------------------------------------------------------------------------------

FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "lists": list,
    "tuples": tuple,
    "arrays": np.array,  # an empty one is of floats
    "small integers": lambda values: np.array(values, np.float32 if 136.5 in values else np.uint8),
    "big-endian": lambda values: np.array(values, ">f8" if 136.5 in values else ">i4"),
    "rows": lambda values: np.array([values]),
    "columns": lambda values: np.asfortranarray(np.array(values)[:, None]),
    "read-only arrays": lambda values: np.frombuffer(np.array(values).tobytes(), np.array(values).dtype) if values else [],
    "strided arrays": lambda values: np.repeat(np.array(values), 2)[::2],
    "lists of scalars": lambda values: list(np.array(values)),
    "long integers": lambda values: [value if isinstance(value, float) else int(value) for value in values],
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("form", FORMS)
def test_every_protocol_and_form_is_read(tmp_path: Path, protocol: int, form: str) -> None:
    truth = read(tmp_path, pickle.dumps(changed(FORMS[form]), protocol))
    assert truth.images == TRUTH.images and truth.queries == TRUTH.queries
    for found, expected in zip(truth.entries, TRUTH.entries, strict=True):
        assert (found.easy, found.hard, found.junk) == (expected.easy, expected.hard, expected.junk)
        assert found.region == pytest.approx(expected.region, rel=1e-6)
        assert {type(number) for number in found.easy + found.hard + found.junk} == {int}
        assert {type(number) for number in found.region} == {float}


@pytest.mark.parametrize("protocol", range(6))
def test_lists_are_read_exactly(tmp_path: Path, protocol: int) -> None:
    assert read(tmp_path, pickle.dumps(CONTENT, protocol)) == TRUTH
    assert read(tmp_path, pickletools.optimize(pickle.dumps(CONTENT, protocol))) == TRUTH


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("core", ["core", "_core"])
def test_numpy_of_all_versions_is_read(tmp_path: Path, protocol: int, core: str) -> None:
    """Version 2 renamed the modules that pickles name. Text has its length before it in the newer protocols."""
    data = pickle.dumps(changed(np.array), protocol)
    for module in ("multiarray", "numeric"):
        old, new = (f"numpy.{name}.{module}".encode() for name in ("_core", core))
        data = data.replace(b"\x8c" + bytes([len(old)]) + old, b"\x8c" + bytes([len(new)]) + new).replace(
            b"c" + old, b"c" + new
        )
    assert f"numpy.{core}.".encode() in data
    if protocol >= 4:
        data = data[:2] + data[11:]  # the frame has another length now; it is a hint for readers of streams
    assert read(tmp_path, data) == TRUTH


def python2(value: Any, protocol: int) -> bytes:
    """Pickle as Python 2 did: texts are str, of bytes."""
    if isinstance(value, dict):
        return b"(d" + b"".join(python2(k, protocol) + python2(v, protocol) + b"s" for k, v in value.items())
    if isinstance(value, list):
        return b"(l" + b"".join(python2(item, protocol) + b"a" for item in value)
    if isinstance(value, int | float):
        code, form = ("I", "<i") if isinstance(value, int) else ("F", ">d")
        return f"{code}{value!r}\n".encode() if protocol == 0 else (b"J" if code == "I" else b"G") + struct.pack(form, value)
    if isinstance(value, np.ndarray):
        return python2_array(value, protocol)
    raw = value.encode("latin-1") if isinstance(value, str) else value
    if protocol == 0:
        quote = '"' if b"'" in raw and b'"' not in raw else "'"  # as the repr of Python 2 chooses
        return b"S" + (quote + repr(raw)[2:-1] + quote).encode() + b"\n"
    return b"U" + bytes([len(raw)]) + raw if len(raw) < 256 else b"T" + struct.pack("<i", len(raw)) + raw


def python2_array(array: np.ndarray[Any, Any], protocol: int) -> bytes:
    def tuple_of(*items: bytes) -> bytes:
        return b"(" + b"".join(items) + b"t"

    integer = [python2(number, protocol) for number in range(4)]
    size = python2(len(array), protocol) if protocol else f"L{len(array)}L\n".encode()
    blank = b"cnumpy.core.multiarray\n_reconstruct\n" + tuple_of(
        b"cnumpy\nndarray\n", tuple_of(integer[0]), python2("b", protocol)
    )
    kind = b"cnumpy\ndtype\n" + tuple_of(python2(array.dtype.str[1:], protocol), integer[0], integer[1]) + b"R"
    kind += tuple_of(integer[3], python2("<", protocol), b"NNN", python2(-1, protocol) * 2, integer[0]) + b"b"
    state = tuple_of(integer[1], tuple_of(size), kind, b"I00\n", python2(array.tobytes(), protocol))
    return blank + b"R" + state + b"b"


@pytest.mark.parametrize("protocol", [0, 1])
@pytest.mark.parametrize("form", ["lists", "arrays"])
def test_python_2_is_read(tmp_path: Path, protocol: int, form: str) -> None:
    content = changed(FORMS[form])
    data = python2(content, protocol) + b"."
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of numpy, about its old module names
        loaded = pickle.loads(data, encoding="latin-1")  # noqa: S301 - made here
    assert repr(loaded) == repr(content)  # these are pickles indeed
    assert read(tmp_path, data) == TRUTH


def test_a_str_of_python_2_may_hold_any_byte() -> None:
    raw = bytes(range(256)) + b"\\x41\\'\\\\"
    data = python2(raw, 0) + b"."
    assert load_plain(data).encode("latin-1") == raw == pickle.loads(data, encoding="bytes")  # noqa: S301 - made here


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**66), 2**66) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner) | st.tuples(inner, inner, inner, inner) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=20,
)


@quietly
@given(value=plain, protocol=st.integers(0, 5), shared=st.booleans())
def test_plain_data_is_what_pickle_gives(value: Any, protocol: int, shared: bool) -> None:
    data = pickle.dumps([value, value] if shared else value, protocol)
    with watched():
        loaded = load_plain(data)
    assert loaded == pickle.loads(data)  # noqa: S301 - made here


# --- what it says ------------------------------------------------------------------------------------------------


def without(mapping: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in mapping.items() if k != key}


def entry(**change: Any) -> dict[str, Any]:
    return CONTENT | {"gnd": [CONTENT["gnd"][0], CONTENT["gnd"][1] | change]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "it has no 'imlist'"),
        (None, "it has no 'imlist'"),
        ({"imlist": []}, "it has no 'qimlist'"),
        (without(CONTENT, "gnd"), "it has no 'gnd'"),
        (CONTENT | {"imlist": []}, "'imlist' should be a list of names"),
        (CONTENT | {"imlist": "abc"}, "'imlist' should be a list of names"),
        (CONTENT | {"imlist": [*CONTENT["imlist"][:3], 7]}, "'imlist' should hold names, but number 3 is a int"),
        (CONTENT | {"imlist": [b"a", b"b"]}, "number 0 is a bytes"),
        (CONTENT | {"imlist": np.array([1, 2])}, "'imlist' should be a list of names"),
        (CONTENT | {"gnd": []}, "'gnd' should be a list of 2 entries"),
        (CONTENT | {"gnd": CONTENT["gnd"] * 2}, "'gnd' should be a list of 2 entries"),
        (CONTENT | {"gnd": {}}, "'gnd' should be a list of 2 entries"),
        (CONTENT | {"gnd": [CONTENT["gnd"][0], 5]}, "entry 1 of 'gnd' has no 'bbx'"),
        (CONTENT | {"gnd": [{"bbx": [1, 2, 3, 4], "ok": [0], "junk": []}] * 2}, "entry 0 of 'gnd' has no 'easy'"),
        (entry(easy=[4]), "'easy' of entry 1 of 'gnd' should hold numbers of images from 0 to 3, but one is 4"),
        (entry(hard=[0, -1]), "but one is -1"),
        (entry(hard=[2**100]), "but one is 1267650600228229401496703205376"),
        (entry(junk=[True]), "but one is a bool"),
        (entry(junk=[1.0]), "but one is a float"),
        (entry(junk=["1"]), "but one is a str"),
        (entry(junk=[[1]]), "but one is a list"),
        (entry(junk=[None]), "but one is a NoneType"),
        (entry(junk=None), "'junk' of entry 1 of 'gnd' should be a list or an array, not a NoneType"),
        (entry(junk="12"), "not a str"),
        (entry(junk={"1": 2}), "not a dict"),
        (entry(junk=[0] * 5), "has 5 members, at most 4 make sense"),
        (entry(junk=np.zeros(5, np.int8)), "has 5 members, at most 4 make sense"),
        (entry(junk=np.array([1.0])), "but one is a float"),
        (entry(junk=np.array([4])), "but one is 4"),
        (entry(junk=np.array([-1], np.int8)), "but one is -1"),
        (entry(junk=np.array([2**64 - 1], np.uint64)), "but one is 18446744073709551615"),
        (entry(junk=np.array([True])), "but one is a bool"),
        (entry(bbx=[1, 2, 3]), "'bbx' of entry 1 of 'gnd' should be four finite numbers"),
        (entry(bbx=[1, 2, 3, 4, 5]), "has 5 members"),
        (entry(bbx=[1, 2, float("nan"), 4]), "should be four finite numbers"),
        (entry(bbx=np.array([1, 2, np.inf, 4])), "should be four finite numbers"),
        (entry(bbx=[1, 2, "3", 4]), "should be four finite numbers"),
        (entry(bbx=[False, 2, 3, 4]), "should be four finite numbers"),
        (entry(bbx=[5, 2, 3, 4]), "is 5, 2, 3, 4"),
        (entry(bbx=[1, 2, 3, 2]), "is 1, 2, 3, 2"),
        (entry(bbx=7), "not a int"),
    ],
)
def test_another_structure_is_named(tmp_path: Path, content: Any, message: str) -> None:
    assert message in line_of(tmp_path, pickle.dumps(content))


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        ".",
        "..",
        "../../etc/passwd",
        "a/b",
        "a\\b",
        "C:x",
        "/etc/passwd",
        "a..b",
        "a\nb",
        "a\0b",
        "\ud800",
        "a\u202eb",
        "a" * 201,
    ],
)
@pytest.mark.parametrize("key", ["imlist", "qimlist"])
def test_names_stay_in_their_folder(tmp_path: Path, key: str, name: str) -> None:
    for protocol in (0, 4):
        line_of(tmp_path, pickle.dumps(CONTENT | {key: [*CONTENT[key][:-1], name]}, protocol))


def test_files_that_are_no_pickles_are_named(tmp_path: Path) -> None:
    path = tmp_path / "none.pkl"
    with pytest.raises(DatasetError, match="no such file"):
        read_ground_truth(path)
    with pytest.raises(DatasetError, match="is a folder"):
        read_ground_truth(str(tmp_path))
    for data in (b"", b"\x80", b"\x80\x04", b"{}", b"<html>404</html>", b"\x1f\x8b\x08", b"PK\x03\x04", bytes(100)):
        assert line_of(tmp_path, data)
    path.touch()
    os.truncate(path, MAX_BYTES + 1)
    with pytest.raises(DatasetError, match="67108865 bytes are too many"):
        read_ground_truth(path)


@pytest.mark.parametrize("protocol", range(6))
def test_every_cut_is_one_line(tmp_path: Path, protocol: int) -> None:
    data = pickle.dumps(changed(np.array), protocol)
    for end in range(0, len(data), 11):
        line_of(tmp_path, data[:end])


# --- attacks -----------------------------------------------------------------------------------------------------


class Trap:
    """Something whose pickle calls a function with arguments, and perhaps sets a state."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


class Stateful:
    """Something with a state that Python's own reader would set."""

    def __setstate__(self, state: object) -> None:
        os.environ["POLYVOC_TRAP"] = "sprung"


class WithPersistent(pickle.Pickler):
    def persistent_id(self, obj: object) -> Any:
        return ("trap", 1) if obj == "persist" else None


def persistent(protocol: int, folder: Path) -> bytes:
    with (folder / "persistent").open("wb") as file:
        WithPersistent(file, protocol).dump(["persist"])
    return (folder / "persistent").read_bytes()


STATEFUL = Stateful()
STATEFUL.__dict__["a"] = 1
ATTACKS: dict[str, Any] = {
    "os.system": Trap(os.system, ("echo sprung > trap",)),
    "eval": Trap(eval, ("open('trap', 'w')",)),
    "exec": Trap(exec, ("open('trap', 'w')",)),
    "getattr": Trap(getattr, ("text", "upper")),
    "import": Trap(__import__, ("antigravity",)),
    "popen": Trap(subprocess.Popen, (["touch", "trap"],)),
    "open": Trap(open, ("trap", "w")),
    "reconstructor": Trap(copyreg._reconstructor, (Stateful, object, None), {"a": 1}),  # type: ignore[attr-defined]
    "setstate": STATEFUL,
    "class": Stateful,
    "set": {1, 2},
    "frozenset": frozenset("ab"),
    "complex": 1j,
    "slice": slice(3),
    "range": range(3),
    "function": line_of,
    "number type": np.int64,
    "object array": np.array([Trap(os.system, ("echo sprung > trap",))], object),
    "array of lists": np.array([[1], [1, 2]], object),
    "texts": np.array(["a", "b"]),
    "bytes": np.array([b"a"]),
    "dates": np.array(["2020-01-01"], "M8[D]"),
    "complex array": np.array([1j]),
    "records": np.array([(1, 2)], [("a", int), ("b", int)]),
    "matrix": np.array([[1, 2], [3, 4]]),
    "memory map": np.memmap,
    "long double": np.array([1], np.longdouble),
    "dtype of objects": np.dtype(object),
    "dtype": np.dtype(int),
    "keys that are no texts": {1: 2},
    "tuple keys": {(1, (2, (3,))): 2},
    "huge number": 1 << 10_000,
    "nested traps": {"imlist": [Trap(os.system, ("echo sprung > trap",))]},
}


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, attack: str) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (
        ATTACKS[attack],
        CONTENT | {"gnd": ATTACKS[attack]},
        entry(junk=ATTACKS[attack]),
        CONTENT | {"more": ATTACKS[attack]},
    ):
        data = pickle.dumps(content, protocol)
        if attack in ("dtype", "matrix"):  # harmless where nobody looks
            data = pickle.dumps(entry(junk=ATTACKS[attack]), protocol)
        line_of(tmp_path, data)
    assert [file.name for file in tmp_path.iterdir()] == ["gnd_roxford5k.pkl"] and "POLYVOC_TRAP" not in os.environ


@pytest.mark.parametrize("protocol", range(6))
def test_persistent_names_are_refused(tmp_path: Path, protocol: int) -> None:
    assert "PERSID, which plain data never needs" in line_of(tmp_path, persistent(protocol, tmp_path) if protocol else b"Pa\n.")


def test_registered_extensions_are_refused(tmp_path: Path) -> None:
    for code in (1, 300, 70_000):
        copyreg.add_extension("os", "system", code)
        try:
            assert "operation EXT" in line_of(tmp_path, extension(code))
        finally:
            copyreg.remove_extension("os", "system", code)


def extension(code: int) -> bytes:
    form = b"\x82" + struct.pack("<B", code) if code < 256 else b"\x83" + struct.pack("<H", code) if code < 65536 else None
    return b"\x80\x02" + (form or b"\x84" + struct.pack("<i", code)) + b"(S'echo sprung'\ntR."


ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR"
KIND = b"cnumpy\ndtype\n(S'i8'\nI0\nI1\ntR"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", "wants to use 'os.system'"),
        (b"cposix\nsystem\n.", "wants to use 'posix.system'"),
        (b"c__builtin__\neval\n.", "wants to use '__builtin__.eval'"),
        (b"cbuiltins\nbytes.fromhex\n.", "wants to use 'builtins.bytes.fromhex'"),
        (b"c_codecs\nlookup\n.", "wants to use '_codecs.lookup'"),
        (b"cnumpy\nload\n.", "wants to use 'numpy.load'"),
        (b"cnumpy\n__builtins__\n.", "wants to use 'numpy.__builtins__'"),
        (b"cnumpy\nndarray.tofile\n.", "wants to use 'numpy.ndarray.tofile'"),
        (b"c" + b"a" * 9999 + b"\nb\n.", "aaa..."),
        (b"c\x1b[2J\nb\n.", r"\x1b[2J"),
        (b"\x8c\x02os\x8c\x06system\x93.", "wants to use 'os.system'"),
        (b"]]\x93.", "by what is no text"),
        (b"(S'x'\nios\nsystem\n.", "operation INST"),
        (b"(cnumpy\nndarray\no.", "operation OBJ"),
        (b"cnumpy\nndarray\n)\x81.", "operation NEWOBJ"),
        (b"cnumpy\nndarray\n)}\x92.", "operation NEWOBJ_EX"),
        (b"\x97.", "operation NEXT_BUFFER"),
        (b"C\x01a\x98.", "operation READONLY_BUFFER"),
        (b"\x8f.", "operation EMPTY_SET"),
        (b"Q.", "operation BINPERSID"),
        (b"\xff.", r"b'\xff' where an operation is expected"),
        (b"cnumpy\nndarray\n}b.", "sets a state at byte 17"),
        (b"]}S'append'\nNsb.", "sets a state"),
        (b"}}S'a'\nNsb.", "sets a state"),
        (b"](S'x'\ntR.", "calls something"),
        (b"cnumpy\nndarray\n(I9\ntR.", "calls something"),
        (b"cnumpy\ndtype\n]R.", "calls something"),
        (b"c_codecs\nencode\n(S'x'\nS'hex'\ntR.", "calls something"),
        (b"c_codecs\nencode\n(S'x'\nS'punycode'\ntR.", "calls something"),
        (b"cbuiltins\nbytes\n(I999999999999\ntR.", "calls something"),
        (b"cnumpy\ndtype\n(S'O8'\nI0\nI1\ntR.", "an array of 'O8', not of numbers"),
        (b"cnumpy\ndtype\n(S'i8,(9999999,)i8'\ntR.", "an array of 'i8,(9999999,)i8', not of numbers"),
        (KIND + b"(I3\nS'='\nNNNtb.", "sets a state"),
        (KIND + b"(I3\nS'<'\nN(S'a'\ntNtb.", "sets a state"),
        (ARRAY + b"(I1\n(I1\nt" + KIND + b"I00\n]tb.", "an array at byte 108 that is not of numbers"),
        (ARRAY + b"(I1\n(I99999999\nt" + KIND + b"I00\nS''\ntb.", "do not fit its shape (99999999,)"),
        (ARRAY + b"(I1\n(I-1\nt" + KIND + b"I00\nS''\ntb.", "whose shape is none"),
        (ARRAY + b"(I1\n]" + KIND + b"I00\nS''\ntb.", "whose shape is none"),
        (ARRAY + b"(I1\n(I99999999999\nI0\nt" + KIND + b"I00\nS''\ntb.", "whose shape is none"),
        (ARRAY + b"(I1\n(I1\nt" + KIND + b"I00\nS'1234567'\ntb.", "is damaged at byte"),
        (b"}S'imlist'\n" + ARRAY + b"s.", "has no 'qimlist'"),
        (b"T\xff\xff\xff\xff.", "4294967295 bytes are wanted"),
        (b"\x8d" + b"\xff" * 8 + b".", "18446744073709551615 bytes are wanted"),
        (b"\x8e" + b"\xff" * 7 + b"\x7f.", "bytes are wanted"),
        (b"\x96" + b"\xff" * 7 + b"\x7f.", "bytes are wanted"),
        (b"\x8b\xff\xff\xff\x7f.", "is damaged at byte 0"),
        (b"I" + b"9" * 5000 + b"\n.", "is damaged at byte 0"),
        (b"L" + b"9" * 5000 + b"L\n.", "is damaged at byte 0"),
        (b"F" + b"9" * 5000 + b"\n.", "is damaged at byte 0"),
        (b"Fx\n.", "is damaged at byte 0"),
        (b"I1", "the line at byte 1 has no end"),
        (b"Sx\n.", "is damaged at byte 0"),
        (b"S'\\d'\n.", "is damaged at byte 0"),
        (b"S'\\'\n.", "is damaged at byte 0"),
        (b"X\x01\x00\x00\x00\xff.", "is damaged at byte 0"),
        (b"V\\ud8\n.", "is damaged at byte 0"),
        (b".", "its stack is empty"),
        (b"(.", "its stack is empty"),
        (b"]N(a.", "its stack is empty"),  # what lies below a mark is out of reach
        (b"N(0a.", "its stack is empty"),
        (b"](0NN.", "has no 'imlist'"),
        (b"t.", "no mark"),
        (b"h\x00.", "what it never stored"),
        (b"g9\n.", "what it never stored"),
        (b"NNa.", "what is no list"),
        (b"(Ne.", "its stack is empty"),
        (b"NNNs.", "what is no dictionary"),
        (b"}S'a'\n(u.", "what is no dictionary"),
        (b"}(NNu.", "keys are no texts"),
        (b"}(S'a'\nu.", "is damaged at byte"),
        (b"(NNd.", "keys are no texts"),
        (b"]q\x00h\x00a.", "has no 'imlist'"),
    ],
)
def test_hand_made_attacks_are_named(tmp_path: Path, data: bytes, message: str) -> None:
    assert message in line_of(tmp_path, data)


# --- bombs -------------------------------------------------------------------------------------------------------


def laughs(depth: int) -> bytes:
    """A list of two lists of two lists ... through the memo: 2^depth members in a few bytes."""
    return b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(depth))


BOMBS = {
    "memo index": b"]r\xff\xff\xff\x7f.",  # Python's own machine makes a table of that length
    "decimal memo index": b"]p99999999999999999999\n.",
    "frame": b"\x80\x04\x95" + b"\xff" * 8 + b"N.",
    "laughs": laughs(200) + b".",
    "laughs as images": b"}S'imlist'\n" + laughs(200) + b"sS'qimlist'\n(S'a'\nlsS'gnd'\n]s.",
    "laughs as answers": b"}S'junk'\n" + laughs(200) + b"s.",
    "depth": b"]" * 100_000 + b"a" * 99_999 + b".",
    "depth of tuples": b")" + b"\x85" * 100_000 + b".",
    "depth as a key": b"})" + b"\x85" * 100_000 + b"Ns.",
    "depth as a name": b")" + b"\x85" * 100_000 + b")\x93.",
    "depth as arguments": b"cnumpy\ndtype\n)" + b"\x85" * 100_000 + b"R.",
    "depth as a state": KIND + b")" + b"\x85" * 100_000 + b"b.",
    "marks": b"(" * 300_000 + b".",
    "a list in itself": b"}q\x00S'imlist'\nh\x00sS'qimlist'\nh\x00sS'gnd'\nh\x00s.",
    "text made bytes again and again": b"X\x00\x00\x10\x00"
    + b"a" * (1 << 20)
    + b"q\x000"
    + b"c_codecs\nencode\nq\x010X\x06\x00\x00\x00latin1q\x020"
    + b"h\x01h\x00h\x02\x86R" * 1000
    + b".",
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_take_little_memory(tmp_path: Path, bomb: str) -> None:
    data = BOMBS[bomb]
    tracemalloc.start()
    try:
        line_of(tmp_path, data)
        assert tracemalloc.get_traced_memory()[1] < 100 * (1 << 20)
    finally:
        tracemalloc.stop()


def test_a_pickle_may_not_take_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.experiments.datasets.stackmachine.MAX_STEPS", 1000)
    assert "more than 1000 steps" in line_of(tmp_path, b"N0" * 500 + b"N.")
    assert "has no 'imlist'" in line_of(tmp_path, b"N0" * 499 + b"N.")


def test_shared_lists_do_not_multiply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many entries may be one and the same, so that a small file has very many answers."""
    monkeypatch.setattr("polyvoc.experiments.datasets.ground_truth.MAX_ANSWERS", 1000)
    one = {"bbx": [0, 0, 1, 1], "easy": list(range(100)), "hard": [], "junk": []}
    content = {"imlist": [f"image{i}" for i in range(100)], "qimlist": ["query"] * 11, "gnd": [one] * 11}
    assert "more than 1000 answers" in line_of(tmp_path, pickle.dumps(content))
    content |= {"qimlist": ["query"] * 10, "gnd": [one] * 10}
    assert len(read(tmp_path, pickle.dumps(content)).entries) == 10


# --- anything at all ---------------------------------------------------------------------------------------------

SEEDS = [
    pickle.dumps(changed(FORMS[form]), protocol) for form in ("lists", "arrays", "lists of scalars") for protocol in range(6)
]
SEEDS += [python2(changed(FORMS[form]), protocol) + b"." for form in ("lists", "arrays") for protocol in (0, 1)]
SEEDS += [pickle.dumps(ATTACKS[name], protocol) for name in ("os.system", "object array", "setstate") for protocol in (0, 2, 4)]
operations = st.sampled_from([info.code.encode("latin-1") for info in pickletools.opcodes])
pieces = operations | st.sampled_from(
    [b"os\nsystem\n", b"numpy\ndtype\n", b"S'a'\n", b"I1\n", KIND, ARRAY, b"K\x01", b"h\x00", b"("]
)


def survives(folder: Path, data: bytes) -> None:
    """Either a ground truth that is whole, or one line; nothing runs."""
    with watched():
        try:
            truth = read(folder, data)
        except DatasetError as error:
            assert "\n" not in str(error)
            return
    assert len(truth.queries) == len(truth.entries)
    for found in truth.entries:
        assert all(0 <= number < len(truth.images) for number in found.easy + found.hard + found.junk)


@quietly
@given(data=st.binary(max_size=200))
def test_any_bytes_survive(tmp_path: Path, data: bytes) -> None:
    survives(tmp_path, data)


@quietly
@given(soup=st.lists(pieces | st.binary(max_size=4), max_size=40))
def test_any_operations_survive(tmp_path: Path, soup: list[bytes]) -> None:
    survives(tmp_path, b"".join(soup) + b".")


@quietly
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 6), pieces | st.binary(max_size=4)), min_size=1, max_size=4),
)
def test_any_change_survives(tmp_path: Path, seed: bytes, edits: list[tuple[float, int, bytes]]) -> None:
    for where, removed, added in edits:
        at = int(where * len(seed))
        seed = seed[:at] + added + seed[at + removed :]
    survives(tmp_path, seed)
