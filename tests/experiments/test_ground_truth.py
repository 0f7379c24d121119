"""The published pickle is read whatever Python wrote it; a hostile or damaged one runs nothing and is one line."""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polyvoc.errors import DatasetError
from polyvoc.experiments.datasets.ground_truth import MAX_BYTES, RevisitedEntry, RevisitedTruth, read_ground_truth

CONTENT: dict[str, Any] = {
    "imlist": ["all_souls_000001", "ashmolean_000283", "oxford_003410", "Pitt-Rivers 7 (é)"],
    "qimlist": ["all_souls_000013", "balliol_000051"],
    "gnd": [
        {"bbx": [136.5, 34.1, 648.5, 955.7], "easy": [0, 2], "hard": [1], "junk": []},
        {"bbx": [0, 0, 7, 8], "easy": [], "hard": [3, 1, 0], "junk": [2]},
    ],
}
TRUTH = RevisitedTruth(
    tuple(CONTENT["imlist"]),
    tuple(CONTENT["qimlist"]),
    (RevisitedEntry((136.5, 34.1, 648.5, 955.7), (0, 2), (1,), ()), RevisitedEntry((0, 0, 7, 8), (), (3, 1, 0), (2,))),
)
FORMS: dict[str, Callable[[list[Any]], Any]] = {
    "lists": list,
    "tuples": tuple,
    "arrays": np.array,  # an empty one is of floats
    "big-endian arrays": lambda values: np.array(values, ">f8" if 136.5 in values else ">i4"),
    "rows": lambda values: np.array([values]),
    "lists of scalars": lambda values: list(np.array(values)),
}


def changed(form: str) -> dict[str, Any]:
    """The content with every list of numbers in another form."""
    return CONTENT | {"gnd": [{key: FORMS[form](value) for key, value in entry.items()} for entry in CONTENT["gnd"]]}


def entry(**change: Any) -> dict[str, Any]:
    return CONTENT | {"gnd": [CONTENT["gnd"][0], CONTENT["gnd"][1] | change]}


def read(folder: Path, data: bytes) -> RevisitedTruth:
    path = folder / "gnd_roxford5k.pkl"
    path.write_bytes(data)
    return read_ground_truth(path)


def error_of(folder: Path, data: bytes) -> str:
    """The one line that bytes raise."""
    with pytest.raises(DatasetError) as caught:
        read(folder, data)
    line = str(caught.value)
    assert line.startswith(f"{folder / 'gnd_roxford5k.pkl'}: ") and "again from the authors" in line
    assert "\n" not in line and len(line) < 500
    return line


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("core", [b"numpy._core", b"numpy.core"])  # numpy 2 renamed the module that pickles name
def test_every_protocol_and_form_is_read(tmp_path: Path, protocol: int, form: str, core: bytes) -> None:
    data = pickle.dumps(changed(form), protocol)
    if core == b"numpy.core":
        for old, new in ((b"c", b"c"), (b"\x8c\x16", b"\x8c\x15")):  # text has its length before it in protocol 4
            data = data.replace(old + b"numpy._core.multiarray", new + b"numpy.core.multiarray")
        data = data[:2] + data[11:] if protocol == 4 else data  # the frame has another length now
    truth = read(tmp_path, data)
    assert truth == TRUTH
    assert {type(number) for one in truth.entries for number in (*one.easy, *one.hard, *one.junk)} == {int}
    assert {type(number) for one in truth.entries for number in one.region} == {float}


def python2(value: Any) -> bytes:
    """Pickle as Python 2 did with protocol 0: text is a str of bytes."""
    if isinstance(value, dict):
        return b"(d" + b"".join(python2(k) + python2(v) + b"s" for k, v in value.items())
    if isinstance(value, list):
        return b"(l" + b"".join(python2(item) + b"a" for item in value)
    if isinstance(value, int | float):
        return f"{'I' if isinstance(value, int) else 'F'}{value!r}\n".encode()
    if isinstance(value, np.ndarray):
        kind = b"cnumpy\ndtype\n(" + python2(value.dtype.str[1:]) + b"I0\nI1\ntR(I3\nS'<'\nNNNI-1\nI-1\nI0\ntb"
        state = b"(I1\n(L%dL\nt" % len(value) + kind + b"I00\n" + python2(value.tobytes()) + b"tb"
        return b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntS'b'\ntR" + state
    raw = value.encode("latin-1") if isinstance(value, str) else value
    return b"S'" + repr(raw + b'"')[2:-2].replace("'", r"\x27").encode() + b"'\n"


@pytest.mark.parametrize("form", ["lists", "arrays"])
def test_python_2_is_read(tmp_path: Path, form: str) -> None:
    assert read(tmp_path, python2(changed(form)) + b".") == TRUTH


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "no 'imlist'"),
        ({"imlist": []}, "no 'qimlist'"),
        (CONTENT | {"imlist": []}, "'imlist' should be a list of names"),
        (CONTENT | {"imlist": [*CONTENT["imlist"][:3], 7]}, "number 3 is a int"),
        (CONTENT | {"gnd": CONTENT["gnd"] * 2}, "'gnd' should be a list of 2 entries"),
        (CONTENT | {"gnd": [CONTENT["gnd"][0], 5]}, "entry 1 of 'gnd' has no 'bbx'"),
        (entry(easy=[4]), "'easy' of entry 1 of 'gnd' should hold numbers of images from 0 to 3, but one is 4"),
        (entry(hard=[0, -1]), "but one is -1"),
        (entry(junk=[True]), "but one is a bool"),
        (entry(junk=np.array([1.0])), "but one is a float"),
        (entry(junk=np.array([2**64 - 1], np.uint64)), "but one is 18446744073709551615"),
        (entry(junk={"1": 2}), "not a dict"),
        *((entry(junk=many), "has 5 members") for many in ([0] * 5, np.zeros(5, np.int8))),
        (entry(bbx=[1, 2, 3]), "'bbx' of entry 1 of 'gnd' should be four finite numbers"),
        (entry(bbx=np.array([1, 2, np.inf, 4])), "four finite numbers"),
        (entry(bbx=[5, 2, 3, 4]), "is 5, 2, 3, 4"),
    ],
)
def test_another_structure_is_an_error(tmp_path: Path, content: Any, message: str) -> None:
    assert message in error_of(tmp_path, pickle.dumps(content, 4))


@pytest.mark.parametrize("name", ["", " ", ".", "..", "../../etc/passwd", "a\\b", "C:x", "a\nb", "a\0b", "\ud800", "a" * 201])
@pytest.mark.parametrize("key", ["imlist", "qimlist"])
def test_names_stay_in_their_folder(tmp_path: Path, key: str, name: str) -> None:
    error_of(tmp_path, pickle.dumps(CONTENT | {key: [*CONTENT[key][:-1], name]}))


def test_files_that_are_no_pickles_are_errors(tmp_path: Path) -> None:
    cut = (pickle.dumps(CONTENT)[:n] for n in (9, 99))
    for data in (b"", b"\x80", b"{}", b"<html>404</html>", b"PK\x03\x04", bytes(100), *cut):
        error_of(tmp_path, data)
    path = tmp_path / "large.pkl"
    path.touch()
    os.truncate(path, MAX_BYTES + 1)
    with pytest.raises(DatasetError, match="67108865 bytes are too many"):
        read_ground_truth(path)


class Trap:
    """Something whose pickle calls a function with arguments."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


ATTACKS: dict[str, Any] = {
    "os.system": Trap(os.system, ("echo > trap",)),
    "eval": Trap(eval, ("open('trap', 'w')",)),
    "getattr": Trap(getattr, ("text", "upper")),
    "popen": Trap(subprocess.Popen, (["touch", "trap"],)),
    "bytes of a size": Trap(bytes, (1 << 50,)),
    "array of a size": Trap(np.ndarray, ((1 << 50,),)),
    "objects at an address": Trap(np.ndarray, ((1,), "O", b"12345678")),
    "object array": np.array([Trap(os.system, ("echo > trap",))], object),
    "dtype of objects": np.dtype(object),
    "records": np.array([(1, 2)], [("a", int), ("b", int)]),
    "matrix": np.array([[1, 2], [3, 4]]),
    "texts": np.array(["a", "b"]),
    "class": np.memmap,
    "set": {1, 2},
}


@pytest.mark.parametrize("protocol", range(5))
@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks_run_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, attack: str) -> None:
    monkeypatch.chdir(tmp_path)
    for content in (ATTACKS[attack], entry(junk=ATTACKS[attack]), entry(junk=[ATTACKS[attack]])):
        error_of(tmp_path, pickle.dumps(content, protocol))
    assert [file.name for file in tmp_path.iterdir()] == ["gnd_roxford5k.pkl"]


@pytest.mark.parametrize(
    "data",
    [
        b"cnumpy\nload\n.",
        b"cnumpy\nndarray.tofile\n.",
        b"c_codecs\nlookup\n.",
        b"c_codecs\nencode\n(S'x'\nS'hex'\ntR.",
        b"(S'true'\nios\nsystem\n.",
        b"\x8c\x02os\x8c\x06system\x93.",
        b"cnumpy\nndarray\n)\x81.",
        b"\x80\x02\x82\x01(S'x'\ntR.",
        b"Pa\n.",
        b"]" * 100_000 + b"a" * 99_999 + b".",
        b"}q\x00S'imlist'\nh\x00sS'qimlist'\nh\x00sS'gnd'\nh\x00s.",
        b"cnumpy\ndtype\n(S'i8'\nI0\nI1\ntR" + b"(I3\nS'='\nNNNtb.",
        b"\x8d" + struct.pack("<Q", 1 << 62) + b".",
    ],
)
def test_hand_made_attacks_are_errors(tmp_path: Path, data: bytes) -> None:
    error_of(tmp_path, data)


def test_lengths_take_no_memory(tmp_path: Path) -> None:
    """A file that only says how long a value is gets no memory for it."""
    assert "holds a bytearray" in error_of(tmp_path, b"\x80\x05\x96" + struct.pack("<Q", 1 << 32) + b".")
    array = b"cnumpy.core.multiarray\n_reconstruct\n)R(I1\n(S'ab'\nI2000000000\ntNI00\nS''\ntb."
    assert "shape is not of numbers" in error_of(tmp_path, array)
    kind = b"cnumpy\ndtype\n((lp0\nh\x00tR."
    assert "not of numbers" in error_of(tmp_path, kind)


def doubled(times: int) -> tuple[Any, ...]:
    """A tuple of two times the one before."""
    value: tuple[Any, ...] = ()
    for _ in range(times):
        value = (value, value)
    return value


NESTED = b")" + b"2\x86" * 60  # a tuple of twice the one before, sixty times: 2**60 members to hash, compare or print
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01%sNI00\nC\x00tb."  # of a shape
EXPONENTIAL: dict[str, tuple[bytes, str]] = {
    "key of a dict": (b"}" + NESTED + b"K\x01s.", "a dict with a tuple as key"),
    "keys of a dict": (b"}(" + NESTED + b"K\x01u.", "a dict with a tuple as key"),
    "key of a dict at once": (b"(" + NESTED + b"K\x01d.", "a dict with a tuple as key"),
    "set": (b"\x8f(" + NESTED + b"\x90.", "it holds a set"),
    "frozen set": (b"(" + NESTED + b"\x91.", "it holds a set"),
    "shape": (ARRAY % NESTED, "shape is not of numbers"),
    "dict as shape": (ARRAY % (b"}(K\x00" + NESTED + b"u"), "a dict with a int as key"),
    "dict of texts as shape": (ARRAY % (b"}(\x8c\x01a" + NESTED + b"u"), "shape is not of numbers"),
    "list as shape": (ARRAY % (b"](K\x00" + NESTED + b"e"), "shape is not of numbers"),
    "large sides": (ARRAY % (b"(" + b"\x8a\xff" + b"\x7f" * 255 + b"2" * 60 + b"t"), "an impossible shape"),
    "state of an array": (b"cnumpy.core.multiarray\n_reconstruct\n)R" + NESTED + b"b.", "a damaged array"),
    "code of a dtype": (b"cnumpy\ndtype\n" + NESTED + b"\x85R.", "not of numbers"),
    "state of a dtype": (b"cnumpy\ndtype\nX\x02\x00\x00\x00i8\x85R}b.", "a damaged array"),
    "scalar": (b"cnumpy.core.multiarray\nscalar\n(" + NESTED + b"K\x01tR.", "not of numbers"),
    "encoded": (b"c_codecs\nencode\n(" + NESTED + b"NtR.", "it encodes a tuple"),
    "answer": (pickle.dumps(entry(easy=[doubled(60)])), "one is a tuple"),
    "region": (pickle.dumps(entry(bbx=[doubled(60)] * 4)), "four finite numbers"),
    "content": (NESTED + b".", "no 'imlist'"),
    "names": (b"}\x8c\x06imlist" + NESTED + b"s\x8c\x07qimlistNs\x8c\x03gndNs.", "number 0 is a tuple"),
}  # fmt: skip


@pytest.mark.parametrize("form", EXPONENTIAL)
def test_shared_members_are_not_walked(tmp_path: Path, form: str) -> None:
    """A value of 60 nested tuples has 2**60 members, if each is visited as often as it occurs."""
    data, message = EXPONENTIAL[form]
    assert message in error_of(tmp_path, data)


def test_shared_texts_are_not_copied_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 2 wrote bytes as text, and every array that shares a text has a copy of it."""
    monkeypatch.setattr("polyvoc.experiments.datasets.ground_truth.MAX_BYTES", 2000)
    copies = b"c_codecs\nencode\np1\n(X\x90\x01\x00\x00" + b"a" * 400 + b"p0\nNtR" + b"0h\x01(h\x00NtR" * 9 + b"."
    assert "share more than 2000 bytes" in error_of(tmp_path, copies)


@pytest.mark.parametrize("data", [b"cos\n" + b"x" * 5000 + b"\n.", b"I" + b"x" * 5000 + b"\n.", b"g" + b"x" * 5000 + b"\n.",
    b"cnumpy\ndtype\n(S'" + b"x" * 5000 + b"'\ntR.", b"}\x8c\x06imlist(S'" + b"x" * 5000 + b"'lss."])  # fmt: skip
def test_errors_show_little_of_a_file(tmp_path: Path, data: bytes) -> None:
    assert "x" * 41 not in error_of(tmp_path, data)


def test_shared_lists_do_not_multiply(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many entries may be one and the same, so that a small file has very many answers."""
    monkeypatch.setattr("polyvoc.experiments.datasets.ground_truth.MAX_ANSWERS", 1000)
    one = {"bbx": [0, 0, 1, 1], "easy": list(range(100)), "hard": [], "junk": []}
    content = {"imlist": [f"image{i}" for i in range(100)], "qimlist": ["query"] * 11, "gnd": [one] * 11}
    assert "more than 1000 answers" in error_of(tmp_path, pickle.dumps(content))
    assert len(read(tmp_path, pickle.dumps(content | {"qimlist": ["query"] * 10, "gnd": [one] * 10})).entries) == 10


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(FORMS)), st.floats(0, 1), st.integers(0, 6), st.text("tRbc()}]NKh.\n", max_size=4))
def test_any_change_is_a_truth_or_one_line(tmp_path: Path, form: str, at: float, removed: int, added: str) -> None:
    data = pickle.dumps(changed(form), 2)
    place = int(at * len(data))
    try:
        truth = read(tmp_path, data[:place] + added.encode() + data[place + removed :])
    except DatasetError as error:
        assert "\n" not in str(error)
    else:
        assert all(0 <= number < len(truth.images) for one in truth.entries for number in one.easy + one.hard + one.junk)
