"""`polyvoc serve` as people type it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from commands import refuse, run
from polyvoc.cli.search import _token
from servers import PATIENCE, TOKEN, running


def test_help_tells_of_every_flag() -> None:
    text = re.sub(r"\x1b\[[0-9;]*m", "", run("serve", "--help").stdout)
    for flag in ("--host", "--port", "--open", "--write", "--photos", "--private", "--token-file", "--allow-host", "--cors",
                 "--originals", "--workers", "--queue", "--max-upload", "--max-pixels"):  # fmt: skip
        assert flag in text
    assert "Example: polyvoc serve" in text


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--port", "-1"], "port=-1 should be at least 0"),
        (["--port", "65536"], "port=65536 should be at most 65535"),
        (["--port", "http"], "Invalid value for '--port'"),
        (["--workers", "-1"], "workers=-1 should be at least 0"),
        (["--queue", "-1"], "queue=-1 should be at least 0"),
        (["--max-upload", "0"], "max_upload=0 should be at least 1"),
        (["--max-pixels", "0"], "max_pixels=0 should be at least 1"),
        (["--nonsense"], "No such option: --nonsense"),
        (["--private"], "this needs a token: give one in the environment, POLYVOC_TOKEN"),
        (["--write", "--host", "0.0.0.0"], "this needs a token"),
        (["--write", "--allow-host", "photos.example"], "this needs a token"),
        (["--token-file", "/nowhere/token"], "/nowhere/token: cannot be read (No such file or directory)"),
    ],
)
def test_values_that_make_no_sense_are_refused(tmp_path: Path, arguments: list[str], line: str,
                                               monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.delenv("POLYVOC_TOKEN", raising=False)
    assert line in refuse("serve", tmp_path / "none.polyvoc", *arguments)


def test_a_token_that_is_too_short_is_refused_and_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYVOC_TOKEN", "short")
    line = refuse("serve", tmp_path / "none.polyvoc")
    assert "at least 8 characters" in line and "short" not in line


def test_a_file_that_is_no_token_is_refused(tmp_path: Path) -> None:
    for content in (b"", b"\n", b"\xff\xfe\xff\xfe\xff\xfe\xff\xfe\xff"):
        (tmp_path / "token").write_bytes(content)
        refuse("serve", tmp_path / "none.polyvoc", "--token-file", tmp_path / "token")


def test_where_a_token_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the file; else from the environment."""
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    monkeypatch.setenv("POLYVOC_TOKEN", "of-the-environment")
    assert _token(tmp_path / "token") == TOKEN
    assert _token(None) == "of-the-environment"
    monkeypatch.delenv("POLYVOC_TOKEN")
    assert _token(None) is None


def test_a_terminal_is_shown_the_token(_session_index: Path) -> None:
    """In the fragment of the link, which browsers do not send."""
    ours, theirs = pty.openpty()
    environment = {name: value for name, value in os.environ.items() if name != "POLYVOC_TOKEN"}
    arguments = ["serve", str(_session_index), "--private", "--port", "0", "--workers", "1"]
    popen = subprocess.Popen([sys.executable, "-m", "polyvoc", *arguments], stderr=theirs, env=environment)
    os.close(theirs)
    try:
        with os.fdopen(ours, "rb") as terminal:
            found = re.search(r"(http://\S+/)#token=(\S+)", terminal.readline().decode())
            assert found is not None
            address, token = found.groups()
            assert httpx.get(f"{address}images", timeout=PATIENCE).status_code == 401
            bearer = {"Authorization": f"Bearer {token}"}
            assert httpx.get(f"{address}images", headers=bearer, timeout=PATIENCE).status_code == 200
            popen.send_signal(signal.SIGINT)
            assert popen.wait(PATIENCE) == 0
    finally:
        popen.kill()
        popen.wait()


def test_nobody_else_is_shown_the_token(_session_index: Path, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    with running(_session_index, "--private", "--token-file", tmp_path / "token", "--workers", "1") as server:
        assert TOKEN not in server.url and "#" not in server.url
        assert httpx.get(f"{server.url}images", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
        code, told = server.end(signal.SIGTERM)
    assert code == 0 and TOKEN not in told
