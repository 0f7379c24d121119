"""What an index names is read below the roots that this user has noted, and nowhere else."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from polyvoc.errors import ImageError, NotAllowedError, OptionError
from polyvoc.storage.trust import Trust, checked_root, is_inside, merged_roots, new_identity, note_roots, noted_roots


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the user's notes."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "polyvoc" / "trusted"


@pytest.mark.parametrize(
    ("path", "root", "inside"),
    [
        ("/photos/a.jpg", "/photos", True),
        ("/photos/sub/a.jpg", "/photos", True),
        ("/photos", "/photos", True),
        ("/photographs/a.jpg", "/photo", False),
        ("/photos/../secret", "/photos", False),
        ("/photos/./a.jpg", "/photos", False),
        ("/photos/a\0.jpg", "/photos", False),
        ("/photos//a.jpg", "/photos", False),
        ("photos/a.jpg", "photos", False),
        ("s3://bucket/a.jpg", "s3://bucket", True),
        ("s3://bucket-of-others/a.jpg", "s3://bucket", False),
        ("https://host/photos/a.jpg", "https://host/photos", True),
        ("https://host:81/photos/a.jpg", "https://host/photos", False),
        ("http://host/photos/a.jpg", "https://host/photos", False),
        ("https://host.evil/photos/a.jpg", "https://host", False),
        ("https://host@evil/photos/a.jpg", "https://host", False),
        ("https://host/photos/../private/a.jpg", "https://host/photos", False),
        ("https://host/photos/%2e%2e/private/a.jpg", "https://host/photos", False),
        ("https://host/photos/..%2fprivate/a.jpg", "https://host/photos", False),
        ("https://host/photos/..\\private/a.jpg", "https://host/photos", False),
        ("zip://a.jpg::/photos/a.zip", "zip://::/photos/a.zip", True),
        ("zip://a.jpg::/secret/a.zip", "zip://::/photos/a.zip", False),
        ("file:///photos/a.jpg", "/photos", False),
    ],
)
def test_what_lies_below_a_root(path: str, root: str, inside: bool) -> None:
    assert is_inside(path, [root]) is inside


def test_a_root_below_another_is_left_out() -> None:
    roots = ["/a/b/c", "/a-b", "/a/b", "s3://bucket/x", "s3://bucket", "/a/b", "zip://::/a/b.zip"]
    kept = merged_roots(roots)
    assert set(kept) == {"/a/b", "/a-b", "s3://bucket", "zip://::/a/b.zip"}
    assert merged_roots(reversed(roots)) == kept == merged_roots(kept)


def test_notes_add_up_and_belong_to_one_identity(notes: Path) -> None:
    mine, other = new_identity(), new_identity()
    assert noted_roots(mine) == ()
    note_roots(mine, Path("index"), ["/a"])
    note_roots(mine, Path("index"), ["/b", "/a/c"])
    assert noted_roots(mine) == ("/a", "/b") and noted_roots(other) == ()
    written = (notes / f"{mine}.json").stat().st_mtime_ns
    note_roots(mine, Path("index"), ["/b/c"])
    assert (notes / f"{mine}.json").stat().st_mtime_ns == written, "nothing new, nothing written"


@pytest.mark.parametrize("identity", [None, "", "../../x", "a" * 31, "A" * 32, 7, ["a"], "a" * 32 + "\n"])
def test_what_is_no_identity_has_no_note(identity: object) -> None:
    assert noted_roots(identity) == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"roots": "/"}', '{"roots": [1]}', '{"roots": null}'])
def test_a_damaged_note_allows_nothing(notes: Path, text: str) -> None:
    identity = new_identity()
    note_roots(identity, Path("index"), ["/a"])
    (notes / f"{identity}.json").write_text(text)
    assert noted_roots(identity) == ()


def test_a_relative_configuration_folder_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    monkeypatch.setenv("HOME", str(tmp_path))
    identity = new_identity()
    note_roots(identity, Path("index"), ["/a"])
    note = json.loads((tmp_path / ".config" / "polyvoc" / "trusted" / f"{identity}.json").read_text())
    assert note == {"of": os.path.abspath("index"), "roots": ["/a"]}


def test_messages_name_the_next_step() -> None:
    identity = new_identity()
    trust = Trust(Path("x.polyvoc"), identity, ("/named folder", "s3://bucket"))
    with pytest.raises(NotAllowedError, match=r"polyvoc trust '/named folder' --index x\.polyvoc"):
        trust.require("/named folder/a.jpg")
    with pytest.raises(NotAllowedError, match=r"polyvoc trust /etc --index x\.polyvoc"):
        trust.require("/etc/passwd")
    with pytest.raises(NotAllowedError, match=r"polyvoc trust '/named folder' s3://bucket --index"):
        trust.require_named()
    with pytest.raises(ImageError, match="no such file"):
        trust.require("a name")
    with pytest.raises(NotAllowedError, match="polyvoc index FOLDER"):
        Trust(Path("x.polyvoc"), None, ()).require("/etc/passwd")
    note_roots(identity, Path("x.polyvoc"), ["/named folder", "s3://bucket"])
    trust.require_named()
    assert trust.require("/named folder/a.jpg") == "/named folder/a.jpg"
    assert trust.refused() is None


def test_a_hostile_root_stays_on_one_line() -> None:
    refused = Trust(Path("x"), new_identity(), ("/a\n; rm -rf ~",)).refused()
    assert refused is not None and "\n" not in refused


@pytest.mark.parametrize("root", ["https://", "s3://"])
def test_a_root_of_everything_raises(root: str) -> None:
    with pytest.raises(OptionError, match="names no host"):
        checked_root(root)
