"""Caches of uploads and thumbnails: the least recently used are dropped, and limits are kept."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyvoc.options import FeatureOptions
from polyvoc.search.query import PhotoFeatures
from polyvoc.web.caches import BytesCache, StoredUpload, UploadCache
from samples import features


def upload(name: str) -> StoredUpload:
    return StoredUpload(name, PhotoFeatures({FeatureOptions(): features(1)}), None, b"picture")


SIZE = upload("x").size


def test_each_upload_gets_a_name_of_its_own() -> None:
    uploads = UploadCache(10**6)
    first, second = upload("a"), upload("a")
    names = uploads.store(first), uploads.store(second)
    assert names[0] != names[1] and not any(name.isdigit() for name in names)
    assert (uploads.get(names[0]), uploads.get(names[1])) == (first, second)
    assert uploads.get("u") is None


def test_an_upload_expires_an_hour_after_its_last_use() -> None:
    now = [1000.0]
    uploads = UploadCache(10**6, clock=lambda: now[0])
    name, other = uploads.store(upload("a")), uploads.store(upload("b"))
    now[0] += 3000
    assert uploads.get(name) is not None
    now[0] += 3000
    assert uploads.get(other) is None and uploads.get(name) is not None
    now[0] += 3601
    assert uploads.size == 0  # also without a request for it
    assert uploads.get(name) is None


def test_the_least_recently_used_is_dropped() -> None:
    uploads, thumbnails = UploadCache(3 * SIZE), BytesCache(30)
    names = [uploads.store(upload(name)) for name in "abc"]
    for key in "abc":
        thumbnails.put(key, b"0123456789")
    assert uploads.get(names[0]) is not None and thumbnails.get("a") is not None
    names.append(uploads.store(upload("d")))
    thumbnails.put("d", b"0123456789")
    assert [uploads.get(name) is not None for name in names] == [True, False, True, True]
    assert [thumbnails.get(key) is not None for key in "abcd"] == [True, False, True, True]
    assert (uploads.size, thumbnails.size) == (3 * SIZE, 30)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), max_size=40), st.integers(0, 100))
def test_thumbnails_never_exceed_their_bytes(puts: list[tuple[int, int]], limit: int) -> None:
    thumbnails = BytesCache(limit)
    latest: dict[int, bytes] = {}
    for key, size in puts:
        latest[key] = bytes([key]) * size
        thumbnails.put(key, latest[key])
        assert thumbnails.size <= limit
        cached = {known: jpeg for known in latest if (jpeg := thumbnails.get(known)) is not None}
        assert thumbnails.size == sum(map(len, cached.values()))
        assert all(latest[known] == jpeg for known, jpeg in cached.items())  # never an old one


def test_a_thumbnail_is_made_once_unless_making_it_fails() -> None:
    thumbnails = BytesCache(100)
    with pytest.raises(ZeroDivisionError):
        thumbnails.get_or_make(1, lambda: bytes(1 // 0))
    assert thumbnails.get(1) is None
    assert thumbnails.get_or_make(1, lambda: b"jpeg") == thumbnails.get_or_make(1, lambda: b"other") == b"jpeg"


def test_threads_share_the_caches() -> None:
    uploads, thumbnails = UploadCache(5 * SIZE), BytesCache(100)

    def work(seed: int) -> None:
        for number in range(200):
            thumbnails.get_or_make((seed + number) % 17, lambda: b"x" * 9)
            uploads.get(uploads.store(upload("x")))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert (thumbnails.size, uploads.size) == (99, 5 * SIZE)
