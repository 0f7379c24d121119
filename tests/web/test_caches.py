"""What a server keeps for a while: uploads and thumbnails, each within its limit."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from polyvoc.web.caches import ThumbnailCache, Upload, UploadCache
from samples import features


class Now:
    """A clock that goes when it is told to."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


def some(name: str) -> Upload:
    return Upload(name, features(1), None, b"picture")


def test_an_upload_is_kept_under_a_name_of_its_own() -> None:
    uploads = UploadCache()
    first, second = some("a"), some("a")
    names = uploads.keep(first), uploads.keep(second)
    assert names[0] != names[1] and not any(name.isdigit() for name in names)
    assert (uploads.get(names[0]), uploads.get(names[1])) == (first, second)
    assert uploads.get("u") is None


def test_an_upload_is_forgotten_an_hour_after_it_was_last_asked_for() -> None:
    now = Now()
    uploads = UploadCache(seconds=3600, clock=now)
    name, other = uploads.keep(some("a")), uploads.keep(some("b"))
    now.time += 3000
    assert uploads.get(name) is not None
    now.time += 3000
    assert uploads.get(other) is None and uploads.get(name) is not None
    now.time += 3601
    assert len(uploads) == 0  # also if nobody asks for it
    assert uploads.get(name) is None


def test_the_longest_unused_upload_makes_room() -> None:
    uploads = UploadCache(most=3)
    a, b, c = (uploads.keep(some(name)) for name in "abc")
    assert uploads.get(a) is not None
    d = uploads.keep(some("d"))
    assert [uploads.get(name) is not None for name in (a, b, c, d)] == [True, False, True, True]
    assert len(uploads) == 3


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 40)), max_size=40), st.integers(0, 100))
def test_thumbnails_never_exceed_their_bytes(puts: list[tuple[int, int]], most: int) -> None:
    thumbnails = ThumbnailCache(most)
    latest: dict[int, bytes] = {}
    for key, size in puts:
        latest[key] = bytes([key]) * size
        thumbnails.put(key, latest[key])
        assert thumbnails.bytes <= most
        held = {known: found for known in latest if (found := thumbnails.get(known)) is not None}
        assert thumbnails.bytes == sum(map(len, held.values()))
        assert all(latest[known] == found for known, found in held.items())  # never an old one


def test_the_longest_unused_thumbnail_makes_room() -> None:
    thumbnails = ThumbnailCache(30)
    for key in "abc":
        thumbnails.put(key, b"0123456789")
    thumbnails.get("a")
    thumbnails.put("d", b"0123456789")
    assert [thumbnails.get(key) is not None for key in "abcd"] == [True, False, True, True]


def test_a_thumbnail_that_fails_is_not_kept() -> None:
    thumbnails = ThumbnailCache()
    made = iter([ValueError, b"jpeg", None])

    def make() -> bytes:
        found = next(made)
        if found is ValueError:
            raise ValueError
        assert isinstance(found, bytes)
        return found

    try:
        thumbnails.get_or_make(1, make)
    except ValueError:
        assert thumbnails.get(1) is None
    assert thumbnails.get_or_make(1, make) == thumbnails.get_or_make(1, make) == b"jpeg"


def test_threads_share_what_is_kept() -> None:
    uploads, thumbnails = UploadCache(most=5), ThumbnailCache(100)

    def work(seed: int) -> None:
        for number in range(200):
            thumbnails.get_or_make((seed + number) % 17, lambda: b"x" * 9)
            uploads.get(uploads.keep(some("x")))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert thumbnails.bytes == 99 and len(uploads) == 5
