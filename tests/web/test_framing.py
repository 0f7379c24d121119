"""Framing of requests: every way to send good ones is read alike, and no doubtful one is read."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from http_requests import BAD, CHUNKED, GOOD, HEAD, requests_of_h11
from polyvoc.web.framing import Framing, FramingError


def read(parts: list[bytes]) -> Framing:
    framing = Framing()
    for part in parts:
        framing.read(part)
    return framing


def pieces(content: bytes, cuts: set[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(content) + 1) for cut in cuts), len(content)]
    return [content[begin:end] for begin, end in pairwise(places)]


@given(st.lists(st.sampled_from(sorted(GOOD)), min_size=1, max_size=4), st.sets(st.integers(0, 1000), max_size=8))
def test_good_requests_are_read_in_any_pieces(names: list[str], cuts: set[int]) -> None:
    content = b"".join(GOOD[name] for name in names)
    assert read(pieces(content, cuts)).between_requests
    if "no headers" not in names:  # after HTTP/1.0 h11 expects no other request
        assert requests_of_h11(content) == len(names)  # both agree on the ends


@pytest.mark.parametrize("name", GOOD)
def test_a_part_of_a_request_leaves_it_open(name: str) -> None:
    for length in range(1, len(GOOD[name])):
        assert not read([GOOD[name][:length]]).between_requests


@pytest.mark.parametrize("name", BAD)
@given(st.sets(st.integers(0, 1000), max_size=4), st.sampled_from(["", *sorted(GOOD)]))
def test_a_doubtful_request_is_an_error_in_any_pieces(name: str, cuts: set[int], before: str) -> None:
    with pytest.raises(FramingError, match=r"^[\w\- ]+$"):
        read(pieces(GOOD.get(before, b"") + BAD[name], cuts))


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"\r\n", b"\n", HEAD, CHUNKED, b"0", b"3", b":"]), max_size=12))
def test_any_bytes_are_read_or_an_error(parts: list[bytes]) -> None:
    """And what is read in pieces is read alike as a whole."""

    def outcome(parts: list[bytes]) -> bool | None:
        try:
            return read(parts).between_requests
        except FramingError:
            return None

    assert outcome(parts) == outcome([b"".join(parts)])
