"""Photographs in stores are indexed, searched, updated and shown like those in folders."""

from __future__ import annotations

import gzip
import http.server
import io
import json
import os
import re
import shutil
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest

from buckets import folder_on_the_web, s3  # noqa: F401
from commands import answer, refuse, run, searched
from polyvoc.errors import ImageError, OptionError, UnreachableError
from polyvoc.features.decode import Decoders, read_grey, read_rgb, read_thumbnail, shared_decoders
from polyvoc.features.embedding import Embedder
from polyvoc.features.extract import extract, extract_many
from polyvoc.index.changes import compare_folders
from polyvoc.index.check import check
from polyvoc.index.writer import IndexWriter
from polyvoc.options import SearchOptions
from polyvoc.search.hits import Hits, SearchFailure, SearchResult
from polyvoc.search.index import Index
from polyvoc.search.info import image_info
from polyvoc.storage.folders import (
    absolute_path,
    check_folders,
    file_digest,
    file_state,
    is_below,
    list_photographs,
    read_with_digest,
)  # fmt: skip
from polyvoc.storage.stores import (
    _modified,
    _open_store,
    _raise_unreachable,
    _settings_of,
    _store_errors,
    _with_addresses,
    base_name,
    display_name,
    is_url,
    list_files,
    read_url,
    remote_version,
    url_exists,
    url_parts,
)
from polyvoc.threads import ordered_map
from polyvoc.types import Features, Problem
from polyvoc.vocabulary.vocabulary import Vocabulary
from polyvoc.web.html import picture, search_page
from samples import unflushed  # noqa: F401
from servers import refused, serving

PHOTOGRAPHS = ("bridge-a.jpg", "bridge-b.jpg", "deep/market-a.jpg", "deep/er/tower-a.jpg", "wall a.jpg")
OTHERS = ("notes.txt", "jpg", ".hidden/a.jpg", "deep/x.polyvoc/b.jpg")
EVERY = ["file", "zip", "tar", "memory", "s3"]
ON_DISK = "s3://bucket/x: only photographs may be in a store; give a path on a disk, or mount the store"
ORDER = ["bridge-a.jpg", "bridge-b.jpg", "wall a.jpg", "deep/market-a.jpg", "deep/er/tower-a.jpg"]  # of a listing


@dataclass
class Store:
    """A store of one kind that can be changed."""

    kind: str
    folder: Path  # for stores on the disk
    held: dict[str, bytes] = field(default_factory=dict)

    @property
    def root(self) -> str:
        roots = {"file": f"file://{self.folder}/photos", "zip": f"zip://::{self.folder}/photos.zip"}
        roots |= {"tar": f"tar://photos::{self.folder}/photos.tar", "memory": "memory://photos", "s3": "s3://bucket/photos"}
        return roots[self.kind]

    def url(self, name: str) -> str:
        head, chained, tail = self.root.partition("::")
        return f"{head}{'' if head.endswith('/') else '/'}{name}{chained}{tail}"

    def put(self, files: dict[str, bytes | None]) -> None:
        """Write files, or delete them."""
        self.held = {name: content for name, content in {**self.held, **files}.items() if content is not None}
        if self.kind in ("zip", "tar"):
            self._pack()
            return
        system = fsspec.filesystem(self.kind)
        place = str(self.folder / "photos") if self.kind == "file" else self.root.partition("://")[2]
        for name, content in files.items():
            if content is None:
                system.rm_file(f"{place}/{name}")
            else:
                system.makedirs(f"{place}/{name}".rpartition("/")[0], exist_ok=True)
                system.pipe_file(f"{place}/{name}", content)

    def _pack(self) -> None:
        partial = self.folder / "partial"
        shutil.rmtree(self.folder / "packed", ignore_errors=True)
        for name, content in self.held.items():
            path = self.folder / "packed" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            os.utime(path, (1e9, 1e9 + len(content)))
        if self.kind == "tar":
            with tarfile.open(partial, "w") as tar:
                tar.add(self.folder / "packed", "photos")
        else:
            with zipfile.ZipFile(partial, "w") as archive:
                for name in self.held:
                    archive.write(self.folder / "packed" / name, name)
        partial.rename(self.folder / f"photos.{self.kind}")


def wipe(kind: str) -> None:
    root = {"s3": "bucket", "memory": "/photos"}.get(kind)
    if root is not None:
        system = fsspec.filesystem(kind)
        system.invalidate_cache()
        if system.exists(root):
            system.rm(root, recursive=True)


@pytest.fixture(params=["file", "zip", "tar", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, photographs: Path) -> Iterator[Store]:
    """A store of five photographs, and of files that should be skipped."""
    if request.param == "s3":
        request.getfixturevalue("s3")
    wipe(request.param)
    made = Store(request.param, tmp_path)
    made.put(content(photographs))
    yield made
    wipe(request.param)


def content(photographs: Path) -> dict[str, bytes | None]:
    first = (photographs / "bridge-a.jpg").read_bytes()
    files: dict[str, bytes | None] = dict.fromkeys(OTHERS, first)
    return files | {name: (photographs / Path(name.replace(" ", "-")).name).read_bytes() for name in PHOTOGRAPHS}


def folder_of(photographs: Path, tmp_path: Path) -> Path:
    """Write the same files to a folder."""
    folder = tmp_path / "folder"
    for name, held in content(photographs).items():
        assert held is not None
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(held)
    return folder


def names(store: Store, urls: list[str]) -> list[str]:
    by_url = {store.url(name): name for name in (*PHOTOGRAPHS, *OTHERS)}
    return [by_url[url] for url in urls]


# --- addresses


def test_what_an_address_is() -> None:
    urls = ("s3://bucket/a.jpg", "zip://::/a.zip", "zip://a.jpg::s3://bucket/a.zip", "file:///a", "git+ssh://a", "HTTPS://a")
    others = ("/a.jpg", "a.jpg", "./s3://bucket", "s3:/bucket", "", "://", "1://", Path("s3://bucket"), b"s3://b", 3)
    assert all(map(is_url, urls)) and not any(map(is_url, others))


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("s3://bucket/a//b/../c d.jpg", "s3://bucket/a//b/../c d.jpg"),
        ("zip://a.jpg::s3://bucket/a.zip", "zip://a.jpg::s3://bucket/a.zip"),
        ("zip://::/a.zip", "zip://::/a.zip"),
        ("zip://x::a.zip", "zip://x::{here}/a.zip"),
        ("zip://x::~/a.zip", "zip://x::{home}/a.zip"),
        ("zip://x::zip://b.zip::a.zip", "zip://x::zip://b.zip::a.zip"),
        ("file:///a/b/", "file:///a/b/"),
        ("file://a", "file://{here}/a"),
    ],
)
def test_an_address_becomes_absolute(url: str, kept: str) -> None:
    assert absolute_path(url) == kept.format(here=os.getcwd(), home=os.path.expanduser("~"))
    assert absolute_path("a/../b") == absolute_path(Path("b")) == os.path.abspath("b")


SIGNED = "https://host.example/p/a.jpg?X-Signature=hunter2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://me:hunter2@host/a.jpg", "http://...@host/a.jpg"),
        ("HTTPS://hunter2@host/a.jpg", "HTTPS://...@host/a.jpg"),  # a token
        ("http://me:hun@ter2@host/a.jpg", "http://...@host/a.jpg"),
        ("http://me:hunter2/x@host/a.jpg", "http://...@host/a.jpg"),
        ("http://me:hunter2?x@host/a.jpg", "http://..."),
        ("ftp://me:hunter2@host/a.jpg", "ftp://...@host/a.jpg"),
        ("zip://a.jpg::sftp://me:hunter2@host/a.zip", "zip://a.jpg::sftp://...@host/a.zip"),
    ],
)
def test_an_address_with_a_password_raises(url: str, shown: str, tmp_path: Path) -> None:
    assert display_name(url) == shown
    for use in (absolute_path, read_url, url_exists):
        with pytest.raises(OptionError, match=f"^{re.escape(shown)}: holds a password; pass it in the environment"):
            use(url)
    assert refuse("index", url, "--index", tmp_path / "index").startswith(f"polyvoc: {shown}: ")
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("url", [
    "http://host:8080/a@b.jpg", "sftp://me@host/a.jpg", "abfs://container@account.example/a.jpg",
    "github://owner:repository@main/a.jpg", "s3://bucket/a:b@c?d.jpg", "zip://a:b@c?d.jpg::/z.zip",
])  # fmt: skip
def test_an_address_without_a_secret_is_shown_unchanged(url: str) -> None:
    assert absolute_path(url) == display_name(url) == url


def test_an_address_that_expires_is_neither_indexed_nor_shown(
    monkeypatch: pytest.MonkeyPatch, photographs: Path, tmp_path: Path
) -> None:
    """It may be a query."""
    for url in (SIGNED, f"zip://::{SIGNED}"):
        line = refuse("index", url, "--index", tmp_path / "index")
        assert line.startswith(f"polyvoc: {url.partition('?')[0]}?...: the part after '?' may be secret or expire")
    assert not (tmp_path / "index").exists()
    failed = SearchFailure(SIGNED, "timeout").as_dict()
    assert failed == {"query": "https://host.example/p/a.jpg?...", "error": "timeout"}
    assert SearchResult(SIGNED, SearchOptions(), Hits(), {}).as_dict()["query"] == failed["query"]
    jpeg = (photographs / "wall-a.jpg").read_bytes()
    read: list[str] = []
    monkeypatch.setattr(shared_decoders(), "_read", lambda url: (read.append(url), jpeg)[1])
    page = search_page([SearchResult(SIGNED, SearchOptions(), Hits(), {})], lambda path: True)
    assert read == [SIGNED] and "data:image/jpeg;base64," in page and "p/a.jpg?..." in page
    assert "hunter2" not in page and "href=" not in page


def test_links_that_expire_are_skipped() -> None:
    """On a page of a web server; in other stores such names are normal."""
    for root, expected in (("https://host/p", ["b.jpg"]), ("s3://host/p", ["?order=a.jpg", "b.jpg", "c?key=1.jpg"])):
        entries = [{"name": f"{root}/{name}", "type": "file"} for name in ("c?key=1.jpg", "b.jpg", "?order=a.jpg")]
        files = _with_addresses(root, root, entries, _raise_unreachable)
        assert [url for url, _ in files] == [f"{root}/{name}" for name in expected]


def test_errors_of_stores_are_redacted() -> None:
    shown = "https://host.example/p/a.jpg?..."
    line = f"{shown}: cannot be reached (403, message='Forbidden', url='{shown}' or \"http://host/b?...\"); check address"
    with pytest.raises(UnreachableError, match=f"^{re.escape(line)}"), _store_errors(SIGNED):
        raise OSError(f"403, message='Forbidden', url='{SIGNED}&more=hunter2' or \"http://me:hunter2@host/b?c\"")


@pytest.mark.parametrize(
    ("path", "roots", "others"),
    [
        ("s3://b/p/a.jpg", ["s3://b/p", "s3://b/p/", "s3://b", "s3://b/p/a.jpg"], ["gs://b/p", "/"]),
        ("s3://b/pq/a.jpg", [], ["s3://b/p"]),
        ("/p/a.jpg", [], ["file:///p"]),
        ("file:///p/a.jpg", ["file:///"], []),
        ("zip://a.jpg::/z.zip", ["zip://::/z.zip"], []),
        ("zip://p/a.jpg::/z.zip", ["zip://p::/z.zip"], ["zip://q::/z.zip", "zip://p::/y.zip", "/z.zip"]),
    ],
)
def test_is_below(path: str, roots: list[str], others: list[str]) -> None:
    for root in (*roots, *others):
        assert is_below(path, [root]) is is_below(path, ["/nowhere", root]) is (root in roots)


def test_names() -> None:
    for path in ("zip://p/a b.jpg::s3://bucket/z.zip", "s3://bucket/a b.jpg", "/p/a b.jpg"):
        assert base_name(path) == "a b.jpg"
    assert url_parts("zip://p/a.jpg::/q/z.zip") == ("p", "a.jpg")
    assert url_parts("s3://bucket/p//a.jpg") == ("bucket", "p", "a.jpg")
    assert base_name("") == ""


# --- files


@pytest.mark.parametrize("store", EVERY, indirect=True)
def test_files_are_listed_like_folders(store: Store, photographs: Path, tmp_path: Path) -> None:
    folder = folder_of(photographs, tmp_path)
    walked = [os.path.relpath(path, folder) for path, _ in list_photographs([folder])]
    found = list(list_photographs([store.root]))
    assert walked == names(store, [url for url, _ in found]) == ORDER
    assert list(list_photographs([store.root.replace("photos", "photos/", 1) if store.kind == "s3" else store.root])) == found
    for url, state in found:
        assert file_state(url) == state
        assert state.size == len(store.held[names(store, [url])[0]])
        assert state.changed is not None and 0 <= state.changed < 2**63


def test_all_files_and_a_single_file(store: Store) -> None:
    listed = names(store, [url for url, _, _ in list_files(store.root)])
    assert sorted(listed) == sorted([*PHOTOGRAPHS, "notes.txt", "jpg"])
    url = store.url("deep/er/tower-a.jpg")
    assert list(list_photographs([url])) == [(url, file_state(url))]
    assert [u for u, _ in list_photographs([store.url("deep")])] == [store.url(name) for name in ORDER[3:]]
    assert url_exists(url) and url_exists(store.url("deep")) and not url_exists(store.url("deep/no"))


@pytest.mark.parametrize("store", EVERY, indirect=True)
def test_files_are_read(store: Store, photographs: Path) -> None:
    url, original = store.url("wall a.jpg"), photographs / "wall-a.jpg"
    assert read_url(url) == original.read_bytes()
    assert np.array_equal(read_grey(url, 300).pixels, read_grey(original, 300).pixels)
    assert np.array_equal(extract(url).descriptors, extract(original).descriptors)
    ((path, features), (_, missing)) = extract_many([url, store.url("none.jpg")])
    assert path == url and isinstance(features, Features)
    assert isinstance(missing, ImageError) and not isinstance(missing, UnreachableError)
    assert str(missing) == f"{store.url('none.jpg')}: no such file; check the address"
    model = Embedder.of(lambda pixels: pixels.mean(axis=(0, 1)), "mean colour", 64)
    assert np.array_equal(model.embed(url), model.embed(original))


def test_a_file_that_cannot_be_read_is_one_line(store: Store) -> None:
    store.put({"empty.jpg": b""})
    large = f"{len(store.held['wall a.jpg']):,} bytes, the limit is 100"
    for name, line in {"deep": "a folder, not a photograph", "empty.jpg": "empty file", "wall a.jpg": large}.items():
        with pytest.raises(ImageError, match=f"^{re.escape(f'{store.url(name)}: {line}; ')}"):
            read_url(store.url(name), 100)
    with pytest.raises(ImageError, match="no such file"):
        remote_version(store.url("none.jpg"))


def test_a_file_is_read_once_for_content_and_digest(store: Store) -> None:
    url, path = store.url("bridge-a.jpg"), store.folder / "a.jpg"
    path.write_bytes(read_url(url))
    state, digest = file_state(url), file_digest(str(path), file_state(str(path)))
    assert read_with_digest(url) == read_with_digest(path) == (path.read_bytes(), digest)
    assert file_digest(url, state) == digest
    store.put({"bridge-a.jpg": store.held["bridge-b.jpg"]})
    assert file_digest(url, state) is None
    assert file_digest(url, file_state(url)) not in (None, digest)
    store.put({"bridge-a.jpg": None})
    assert file_digest(url, state) is None


def test_many_threads_read_one_store(store: Store) -> None:
    urls = [store.url(name) for name in PHOTOGRAPHS] * 8
    for url, found in ordered_map(read_url, urls, 8, "test"):
        assert found == store.held[names(store, [url])[0]]


@pytest.mark.parametrize("store", EVERY, indirect=True)
def test_a_missing_folder(store: Store) -> None:
    for root in (store.url("nowhere"), *({"s3": ["s3://none/photos"]}.get(store.kind, []))):
        for use in (lambda root: list(list_photographs([root])), lambda root: check_folders([store.root, root])):
            with pytest.raises(OptionError, match=f"^{re.escape(root)} does not exist; give a folder of photographs"):
                use(root)
    check_folders([store.root, store.folder])


# --- the index


def indexed(path: Path, root: object, vocabularies: tuple[Vocabulary, ...] | None = None) -> Any:
    with IndexWriter.open(path, vocabularies) as writer:
        return writer.update([root]).as_dict()  # type: ignore[list-item]


@pytest.mark.parametrize("store", ["zip", "memory"], indirect=True)
def test_a_store_gives_the_results_of_a_folder(
    store: Store, photographs: Path, vocabularies: tuple[Vocabulary, ...], tmp_path: Path
) -> None:
    folder = folder_of(photographs, tmp_path)
    assert indexed(tmp_path / "a.polyvoc", store.root, vocabularies) == indexed(tmp_path / "b.polyvoc", folder, vocabularies)
    with Index.open(tmp_path / "a.polyvoc") as stored, Index.open(tmp_path / "b.polyvoc") as local:
        for name in PHOTOGRAPHS:
            expected = [asdict(hit) for hit in local.search(folder / name)]
            for one in expected:
                one["path"] = store.url(os.path.relpath(one["path"], folder))
            assert [asdict(hit) for hit in stored.search(store.url(name))] == expected
            assert expected[0]["path"] == store.url(name)
        row = next(stored.images())
        assert row.digest == next(local.images()).digest
        assert image_info(row)["name"] == "bridge-a.jpg"
        options = stored.default_options
        again = stored.search(row.image, options=type(options)(**{**asdict(options), "assignments": 2}))
        assert again[0].path == row.path  # its file was read again


@pytest.mark.parametrize("store", ["zip", "memory", "s3"], indirect=True)
def test_changes_are_found(store: Store, vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> None:
    path = tmp_path / "index"

    def counts(**expected: int) -> None:
        report = indexed(path, store.root, vocabularies)
        assert {name: report[name] for name in ("added", "replaced", "removed", "unchanged")} == {
            **dict.fromkeys(("added", "replaced", "removed", "unchanged"), 0), **expected}  # fmt: skip

    counts(added=5)
    counts(unchanged=5)
    store.put(
        {"new/wall-b.jpg": store.held["wall a.jpg"], "bridge-b.jpg": None, "bridge-a.jpg": store.held["deep/er/tower-a.jpg"]}
    )
    counts(added=1, removed=1, replaced=1, unchanged=3)
    counts(unchanged=5)
    with IndexWriter.open(path) as writer:
        assert [writer.remove([store.url(name)]) for name in ("deep", "bridge-a.jpg")] == [2, 1]
        with pytest.raises(OptionError, match="is not in the index"):
            writer.remove([store.url("deep")])
    counts(added=3, unchanged=2)
    with IndexWriter.open(path) as writer:
        assert writer.remove([store.root]) == 5


@pytest.mark.parametrize("store", ["zip"], indirect=True)
def test_a_broken_file_is_a_problem(store: Store, vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> None:
    """And an empty store removes nothing."""
    store.put({"broken.jpg": store.held["bridge-a.jpg"][:900], "empty.jpg": b""})
    report = indexed(tmp_path / "index", store.root, vocabularies)
    assert report["added"] == 5
    assert [problem["path"] for problem in report["problems"]] == [store.url("broken.jpg"), store.url("empty.jpg")]
    assert all(problem["reason"].startswith(problem["path"] + ": ") for problem in report["problems"])
    assert indexed(tmp_path / "index", store.root)["problems"] == report["problems"]
    store.put({"broken.jpg": store.held["bridge-b.jpg"], "empty.jpg": None})
    assert indexed(tmp_path / "index", store.root)["problems"] == []
    store.put(dict.fromkeys((*PHOTOGRAPHS, "broken.jpg")))
    report = indexed(tmp_path / "index", store.root)
    assert (report["removed"], report["absent"]) == (0, {store.root: 6})


@pytest.mark.parametrize("store", ["memory", "s3"], indirect=True)
def test_a_store_that_fails_removes_nothing(
    store: Store, vocabularies: tuple[Vocabulary, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    indexed(tmp_path / "index", store.root, vocabularies)
    system = _open_store(store.root)[0]
    original = system.ls

    def refuse_deep(path: str, *arguments: Any, **options: Any) -> Any:
        if str(path).rstrip("/").endswith("deep"):
            raise PermissionError(13, "Forbidden")
        return original(path, *arguments, **options)

    monkeypatch.setattr(system, "ls", refuse_deep)
    report = indexed(tmp_path / "index", store.root)
    assert (report["unchanged"], report["removed"]) == (5, 0)
    line = f"{store.url('deep')}: cannot be reached (Forbidden); check address and credentials"
    assert report["problems"] == [{"path": store.url("deep"), "reason": line}]
    with pytest.raises(OptionError, match=f"^{re.escape(line)}$"):
        list(list_photographs([store.root]))


# --- archives, links, web servers


def test_a_file_that_is_not_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(b"no archive")
    line = f"{path}: incomplete archive (File is not a zip file); replace or omit it"
    with pytest.raises(OptionError, match=f"^{re.escape(line)}$"):
        list(list_photographs([f"zip://::{path}"]))
    assert compare_folders([f"zip://::{path}"], [], {}).unreadable == [Problem(f"zip://::{path}", line)]
    with pytest.raises(OptionError, match="does not exist"):
        list(list_photographs([f"zip://::{tmp_path}/none.zip"]))


@pytest.mark.parametrize("kind", ["", "gz"])
def test_a_tar_archive_that_is_cut_off(
    kind: str, tmp_path: Path, photographs: Path, vocabularies: tuple[Vocabulary, ...]
) -> None:
    """Wherever it is cut, or damaged between files: nothing after that is removed from the index."""
    path = tmp_path / (f"a.tar.{kind}" if kind else "a.tar")
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for name in ("bridge-a.jpg", "bridge-b.jpg", "tower-a.jpg", "wall-a.jpg"):
            tar.add(photographs / name, name)
    content = whole.getvalue()
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        third = tar.getmembers()[2].offset

    def write(content: bytes) -> None:
        path.write_bytes(gzip.compress(content) if kind else content)

    write(content)
    assert indexed(tmp_path / "index", f"tar://::{path}", vocabularies)["added"] == 4
    damaged = content[:third] + b"X" + content[third + 1 :]  # its checksum is wrong
    for cut in (damaged, content[: third + 700], content[: third + 100], content[:third]):
        write(cut)
        report = indexed(tmp_path / "index", f"tar://::{path}")
        assert (report["unchanged"], report["removed"]) == (4, 0)
        (problem,) = report["problems"]
        assert problem["reason"].startswith(f"{path}: incomplete archive (")
    with pytest.raises(OptionError, match=r"incomplete archive \(its end is missing\); replace or omit it"):
        list(list_photographs([f"tar://::{path}"]))
    write(content[: -(len(content) % 512 or 512)])  # less padding
    assert indexed(tmp_path / "index", f"tar://::{path}")["unchanged"] == 4


def test_a_damaged_file_in_an_archive(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a.jpg", b"0123456789" * 10)
    path.write_bytes(path.read_bytes().replace(b"0123456789", b"9876543210", 1))
    with pytest.raises(ImageError, match=r"a.jpg::.*: broken .*CRC-32.*; replace or remove it") as caught:
        read_url(f"zip://a.jpg::{path}")
    assert not isinstance(caught.value, UnreachableError)


def test_an_archive_within_an_archive(tmp_path: Path, photographs: Path) -> None:
    with zipfile.ZipFile(tmp_path / "inner.zip", "w") as archive:
        archive.write(photographs / "wall-a.jpg", "p/wall.jpg")
    with zipfile.ZipFile(tmp_path / "outer.zip", "w") as archive:
        archive.write(tmp_path / "inner.zip", "q/inner.zip")
    ((url, _),) = list_photographs([f"zip://::zip://q/inner.zip::{tmp_path}/outer.zip"])
    assert url == f"zip://p/wall.jpg::zip://q/inner.zip::{tmp_path}/outer.zip"
    assert read_url(url) == (photographs / "wall-a.jpg").read_bytes()


def test_an_archive_of_the_current_folder(tmp_path: Path, photographs: Path) -> None:
    """As `tar -C folder -cf a.tar .` makes it: every name begins with a dot."""
    folder = folder_of(photographs, tmp_path)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(folder, ".")
        tar.add(folder, "./again")
    urls = [url for url, _ in list_photographs([f"tar://.::{tmp_path}/a.tar"])]
    names = [*ORDER[:3], *(f"again/{name}" for name in ORDER), *ORDER[3:]]
    assert urls == [f"tar://./{name}::{tmp_path}/a.tar" for name in names]
    assert urls == [url for url, _ in list_photographs([f"tar://::{tmp_path}/a.tar"])]
    assert all(read_url(url) for url in urls)


def test_links_and_pipes(tmp_path: Path) -> None:
    for name in ("real/a.jpg", "elsewhere/b.jpg"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "real/link.jpg").symlink_to(tmp_path / "elsewhere/b.jpg")
    (tmp_path / "real/folder.jpg").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    (tmp_path / "real/broken.jpg").symlink_to(tmp_path / "nowhere.jpg")
    os.mkfifo(tmp_path / "real/pipe.jpg")
    found = list(list_photographs([f"file://{tmp_path}/real"]))
    assert [base_name(url) for url, _ in found] == ["a.jpg", "link.jpg"]
    assert [file_state(url) for url, _ in found] == [state for _, state in found]
    with pytest.raises(ImageError, match="not a regular file"):
        read_url(f"file://{tmp_path}/real/pipe.jpg")


def test_a_name_with_colons_is_reported(tmp_path: Path) -> None:
    (tmp_path / "a::b.jpg").write_bytes(b"x")
    (tmp_path / "c.jpg").write_bytes(b"x")
    root = f"file://{tmp_path}"
    changes = compare_folders([root], [], {})
    assert [url for url, _ in changes.new] == [f"{root}/c.jpg"]
    assert changes.unreadable[0].reason == f"{root}/a::b.jpg: '::' in its name separates addresses; rename it"


def test_a_web_server(photographs: Path, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    folder = folder_of(photographs, tmp_path)
    with folder_on_the_web(folder) as root:
        found = list(list_photographs([root]))
        assert [url for url, _ in found] == [f"{root}/{name.replace(' ', '%20')}" for name in ORDER]
        assert [file_state(url) for url, _ in found] == [state for _, state in found]
        assert all(state.size is not None and state.changed is not None for _, state in found)
        assert read_url(found[0][0]) == (folder / ORDER[0]).read_bytes()
        with pytest.raises(ImageError, match=r"none.jpg: no such file") as gone:
            read_url(f"{root}/none.jpg")
        assert not isinstance(gone.value, UnreachableError)
    with pytest.raises(UnreachableError, match="cannot be reached"):  # not missing: nothing may be removed
        read_url(found[0][0])
    with pytest.raises(UnreachableError):
        check_folders([root])


@pytest.mark.parametrize(
    ("entry", "seconds"),
    [
        ({"mtime": 1.5, "created": 3}, 1.5),
        ({"mtime": None, "created": 3}, 3),
        ({"LastModified": datetime(1970, 1, 1, 0, 0, 2, 700, UTC), "ETag": "x"}, 2),
        ({"LastModified": datetime(1970, 1, 1, 1, 0, 2, tzinfo=timezone(timedelta(hours=1)))}, 2),
        ({"last_modified": datetime(1970, 1, 1, 0, 0, 2)}, 2),
        ({"updated": "1970-01-01T00:00:02.500Z"}, 2.5),
        ({"Last-Modified": "Thu, 01 Jan 1970 00:00:02 GMT"}, 2),
        ({"modificationTime": 1_500, "accessTime": 9_000}, 1.5),  # of WebHDFS, in milliseconds
        *(({"modify": f"19700101000002{fraction}"}, seconds) for fraction, seconds in (("", 2), (".500", 2.5))),  # of FTP
        *((entry, None) for entry in ({"mtime": "nonsense"}, {"mtime": float("nan")}, {})),
    ],
)
def test_times_of_all_formats(entry: dict[str, Any], seconds: float | None) -> None:
    assert _modified(entry) == (None if seconds is None else seconds * 10**9)


def test_checksums_where_there_is_no_time() -> None:
    entries: list[dict[str, Any]] = [{"ETag": "a"}, {"ETag": "b"}, {"CRC": 17}, {"CRC": 18}]
    entries += [{"modify": "Jan 01 12:00"}, {"modify": "Jan 01 12:01"}]  # of an FTP server without machine-readable listings
    values = list(map(_modified, entries))
    assert len(set(values)) == 6 and all(value is not None and 0 <= value < 2**63 for value in values)
    assert values[0] == _modified({"ETag": "a"})


# --- packages that are missing


def test_stores_that_cannot_be_used_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert "nonsense://a: unknown kind of store" in refuse("index", "nonsense://a", "--index", tmp_path / "index")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    for url in ("gs://bucket/photos", "zip://::gs://bucket/photos.zip"):
        line = refuse("index", url, "--index", tmp_path / "index")
        assert line.startswith(f"polyvoc: {url.removeprefix('zip://::')}: a package is missing (")
        assert line.endswith("); install it: pip install gcsfs")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    line = refuse("index", "s3://bucket/photos", "--index", tmp_path / "index")
    assert line == "polyvoc: photographs in stores need fsspec; install it: pip install 'polyvoc[stores]'"
    assert not (tmp_path / "index").exists()


@pytest.mark.parametrize("command", [
    "index {photographs} --index", "info --index", "search {photographs}/wall-a.jpg --html", "train {photographs} --out",
    "serve", "serve --photos", "demo --out", "calibrate --plot",
])  # fmt: skip
def test_output_of_commands_is_on_a_disk(
    command: str, photographs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = refuse(*(word.format(photographs=photographs) for word in command.split()), "s3://bucket/x")
    assert line == f"polyvoc: {ON_DISK}"
    assert list(tmp_path.iterdir()) == []


def test_the_library_writes_to_a_disk(
    vocabularies: tuple[Vocabulary, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for use in (Index.open, IndexWriter.open, check, vocabularies[0].save):
        with pytest.raises(OptionError, match=f"^{re.escape(ON_DISK)}$"):
            use("s3://bucket/x")
    assert list(tmp_path.iterdir()) == []


# --- the command line, pages, the web


@pytest.mark.parametrize("store", ["zip"], indirect=True)
def test_commands(store: Store, photographs: Path, tmp_path: Path) -> None:
    index = tmp_path / "index"
    report = answer("index", store.root, "--index", index, "--vocabularies", 1)
    assert (report["added"], report["problems"]) == (5, [])
    query = store.url("bridge-a.jpg")
    found = searched(query, "--index", index)
    assert found["query"] == query
    assert [hit["path"] for hit in found["hits"][:2]] == [query, store.url("bridge-b.jpg")]
    assert found["hits"] == searched(photographs / "bridge-a.jpg", "--index", index)["hits"]
    listed = answer("info", "--images", "--index", index)["photographs"]
    assert [row["name"] for row in listed] == [Path(name).name for name in ORDER]
    assert store.url("wall a.jpg") in run("info", "--images", "--index", index).stdout
    assert answer("index", store.root, "--index", index)["unchanged"] == 5
    assert answer("remove", store.url("deep"), "--index", index)["removed"] == 2
    assert "does not exist; give a folder" in refuse("index", store.url("nowhere"), "--index", index)
    trained = answer("train", store.root, "--out", tmp_path / "words", "--size", 20, "--rounds", 1)
    assert trained["provenance"]["source"] == base_name(store.root)


@pytest.mark.parametrize("store", ["zip", "file"], indirect=True)
def test_a_page_with_pictures(store: Store, vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> None:
    indexed(tmp_path / "index", store.root, vocabularies)
    page = tmp_path / "page.html"
    run("search", store.url("bridge-a.jpg"), "--index", tmp_path / "index", "--html", page)
    text = page.read_text()
    assert text.count("data:image/jpeg;base64,") == 1 + 5
    assert ("href=" in text) == (store.kind == "file")  # links work in a browser
    shown = picture(store.url("deep/market-a.jpg"))
    assert shown.title == "deep/market-a.jpg" and shown.jpeg is not None
    assert picture(store.url("deep/none.jpg")).jpeg is None
    assert picture("gs://bucket/a.jpg").jpeg is None


@pytest.mark.parametrize("store", ["zip"], indirect=True)
def test_a_store_is_served(store: Store, vocabularies: tuple[Vocabulary, ...], tmp_path: Path) -> None:
    indexed(tmp_path / "index", store.root, vocabularies)
    with serving(tmp_path / "index", originals=True, workers=1) as served:
        listing = served.get("/images").json()["images"]
        row = next(row for row in listing if row["path"] == store.url("wall a.jpg"))
        image = row["image"]
        assert row["name"] == "wall a.jpg" and served.get(f"/images/{image}").json()["available"] is True
        thumbnail, original = (served.get(f"/images/{image}/{what}") for what in ("thumbnail", "file"))
        assert thumbnail.headers["content-type"] == original.headers["content-type"] == "image/jpeg"
        assert read_rgb(thumbnail.content, 320).shape == (240, 320, 3)
        assert original.content == store.held["wall a.jpg"]
        assert original.headers["content-disposition"] == "inline; filename*=utf-8''wall%20a.jpg"
        assert served.search(query=image, assignments=2).json()["hits"][0]["path"] == row["path"]
        store.put({"wall a.jpg": b"something else", "bridge-a.jpg": None})
        assert served.get(f"/images/{image}").json()["available"] is False
        assert "is gone or has changed" in refused(served.get(f"/images/{image}/file"), 404)
        assert "is gone or has changed" in refused(served.get(f"/images/{listing[0]['image']}/thumbnail"), 404)


def test_a_broken_file_is_named_by_the_decoder(tmp_path: Path, photographs: Path) -> None:
    (tmp_path / "broken.jpg").write_bytes((photographs / "wall-a.jpg").read_bytes()[:900])
    with Decoders(1) as decoders:
        url = f"file://{photographs}/wall-a.jpg"
        assert decoders.thumbnail(url, 160) == read_thumbnail(url, 160)
        for wanted in (f"file://{tmp_path}/broken.jpg", f"file://{tmp_path}/none.jpg"):
            with pytest.raises(ImageError, match=f"^{re.escape(wanted)}: "):
                decoders.thumbnail(wanted, 160)


def test_an_address_of_any_characters(tmp_path: Path, photographs: Path, vocabularies: tuple[Vocabulary, ...]) -> None:
    """It is returned unchanged in JSON."""
    name = "été 100% #1?x=2&y;[z]*.jpg"
    (tmp_path / "p").mkdir()
    shutil.copy(photographs / "wall-a.jpg", tmp_path / "p" / name)
    shutil.copy(photographs / "bridge-a.jpg", tmp_path / "p")
    indexed(tmp_path / "index", f"file://{tmp_path}/p", vocabularies)
    result = run("search", f"file://{tmp_path}/p/{name}", "--index", tmp_path / "index", "--json")
    assert json.loads(result.stdout)["results"][0]["hits"][0]["path"] == f"file://{tmp_path}/p/{name}"


# --- settings belong to a host, and redirects stay there


class Recorded(http.server.BaseHTTPRequestHandler):
    """Serves a photograph, or redirects to the address after `/to/`; notes the headers of each request."""

    seen: ClassVar[list[tuple[int, str | None, str | None]]] = []
    photo: ClassVar[bytes] = b""

    def do_GET(self) -> None:
        address = self.server.server_address
        assert isinstance(address[1], int)
        self.seen.append((address[1], self.headers.get("Authorization"), self.headers.get("X-Key")))
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.photo)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(self.photo)

    do_HEAD = do_GET

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def hosts(photographs: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """Two hosts on the web; requests are noted in `Recorded.seen`."""
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(Recorded, "photo", (photographs / "wall-a.jpg").read_bytes())
    monkeypatch.setattr(Recorded, "seen", [])
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorded) for _ in range(2)]
    threads = [threading.Thread(target=server.serve_forever) for server in servers]
    for thread in threads:
        thread.start()
    yield tuple(f"http://127.0.0.1:{server.server_port}" for server in servers)  # type: ignore[misc]
    for server, thread in zip(servers, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


def secrets_at(host: str) -> set[tuple[str | None, str | None]]:
    return {(bearer, key) for port, bearer, key in Recorded.seen if host.endswith(f":{port}")}


def test_credentials_go_to_their_host_only(hosts: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = hosts
    settings = {mine: {"headers": {"Authorization": "Bearer hunter2", "X-Key": "k"}}}
    monkeypatch.setenv("POLYVOC_STORES", json.dumps(settings))
    for host in hosts:
        assert read_url(f"{host}/a.jpg") == Recorded.photo
    assert secrets_at(mine) == {("Bearer hunter2", "k")} and secrets_at(other) == {(None, None)}


def test_redirects_to_another_host_are_not_followed(hosts: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = hosts
    monkeypatch.setenv("POLYVOC_STORES", json.dumps({mine: {"headers": {"X-Key": "k"}}}))
    for target in (f"{other}/a.jpg", other.replace("http:", "") + "/a.jpg", "http://169.254.169.254/latest/meta-data"):
        for request in (read_url, url_exists, file_state):
            with pytest.raises(UnreachableError, match="another host and not followed") as error:
                request(f"{mine}/to/{target}")
            assert "\n" not in str(error.value)
    assert secrets_at(other) == set()
    assert read_url(f"{mine}/to//a.jpg") == Recorded.photo, "within the host"


@pytest.mark.parametrize("name", ["http", "https"])
def test_settings_for_every_host_raise(hosts: tuple[str, str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.config import conf

    monkeypatch.setitem(conf, name, {"headers": {"Authorization": "Bearer hunter2"}})
    with pytest.raises(OptionError, match="POLYVOC_STORES") as error:
        read_url(f"{hosts[0]}/a.jpg")
    assert Recorded.seen == [] and "hunter2" not in str(error.value)


def test_settings_of_a_service_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket is one of a service: its address names no host."""
    from fsspec.config import conf

    monkeypatch.setitem(conf, "s3", {"anon": True})
    assert _settings_of("s3://bucket/a.jpg") == {} == _settings_of("zip://a.jpg::/p/a.zip")
    monkeypatch.setenv("POLYVOC_STORES", '{"s3://bucket": {"anon": false}, "s3://bucket/p": {"anon": true}}')
    assert _settings_of("s3://bucket/a.jpg") == {"s3": {"anon": False}}
    assert _settings_of("zip://a.jpg::s3://bucket/p/a.zip") == {"s3": {"anon": True}}
    assert _settings_of("s3://bucket-of-others/a.jpg") == {}


@pytest.mark.parametrize(
    "text", ["hunter2", "[]", '"hunter2"', '{"hunter2": {}}', '{"https://": {}}', '{"https://host": "hunter2"}']
)
def test_wrong_settings_raise_without_their_secrets(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYVOC_STORES", text)
    with pytest.raises(OptionError, match="POLYVOC_STORES should hold settings by address") as error:
        _settings_of("https://host/a.jpg")
    assert "hunter2" not in str(error.value)
