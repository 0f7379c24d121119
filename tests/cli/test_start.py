"""No blank screen: a terminal shows a line at once, which the first output erases; programs see nothing of it."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from polyvoc.cli.start import ERASE, INTERRUPTED, erase_opening, show_opening
from polyvoc.cli.terminal import COMPILING
from polyvoc.kernels.compiler import kernel, reported_compiling

CODE = "import sys; {}; from polyvoc.cli.start import main; main()"
HEAVY = "numpy typer rich numba cv2"
STOPPED = """
import sys
class Stop:
    def find_spec(self, name, *rest):
        if name == "polyvoc.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Stop())
from polyvoc.cli.start import main
main()
"""


def on_terminal(code: str, *arguments: object) -> str:
    """Return what a program writes to a terminal as its standard error."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", code, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        written = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # closed at the other end
                break
            if not part:
                break
            written += part
        process.wait()
    os.close(ours)
    return written.decode()


def test_the_first_line_comes_before_the_libraries() -> None:
    watched = f"sys.modules.update(dict.fromkeys('{HEAVY}'.split()))"  # importing any of them fails
    assert on_terminal(CODE.format(watched), "info").startswith("polyvoc info: opening ...")


def test_the_first_line_is_erased_by_what_comes_next(index_path: Path, tmp_path: Path) -> None:
    first = f"polyvoc info: opening ...{ERASE}"
    assert on_terminal(CODE.format("0"), "info", "--index", index_path) == first
    assert on_terminal(CODE.format("0"), "info", "--index", tmp_path / "none").startswith(f"{first}polyvoc: ")


@pytest.mark.parametrize("arguments", [[], ["--version"], ["info", "--help"], ["info", "--json"]])
def test_nothing_is_written_where_it_would_disturb(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show_opening(arguments)
    assert capsys.readouterr().err == ""
    erase_opening()
    assert capsys.readouterr().err == ""


def test_compiling_is_counted_and_loading_is_not() -> None:
    counts: list[int] = []

    def twice(value: int) -> int:
        return 2 * value

    compiled = kernel(twice)
    with reported_compiling(counts.append):
        assert compiled(3) == 6
        first = list(counts)
        assert compiled(4) == 8 and counts == first
        assert compiled(4.5) == 9
    assert compiled(1j) == 2j
    assert counts == [0, 1, 1, 2] and "once per installation" in COMPILING


def test_ctrl_c_while_libraries_are_loaded_ends_in_no_traceback() -> None:
    done = subprocess.run([sys.executable, "-c", STOPPED, "info"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (INTERRUPTED, "", "")
