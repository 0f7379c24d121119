"""Strict framing of HTTP/1.1 requests: where one ends and the next begins must be beyond doubt.

A proxy and a server that disagree on the end of a request take a part of its body for another request, which no check of the
proxy has seen. Where parsers are known to differ (RFC 9112, sections 2.2, 3, 5.1, 5.2, 6.3 and 7.1) a request is rejected.
"""

from __future__ import annotations

import re
from collections.abc import Callable

HEAD_BYTES = 32 << 10  # of request line and headers
CHUNK_LINE_BYTES = 256
REQUEST_LINE = re.compile(rb"[!-~]+ [!-~]+ HTTP/1\.([01])")
HEADER = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+):(.*)", re.DOTALL)
LENGTH = re.compile(rb"[0-9]{1,20}")
CHUNK = re.compile(rb"([0-9a-fA-F]{1,15})(?:;[\t -~]*)?")


class FramingError(ValueError):
    """The end of a request is not beyond doubt."""


class Framing:
    """Reads the bytes of a connection as they arrive and follows where requests begin and end."""

    def __init__(self) -> None:
        """Start before the first request."""
        self._line = bytearray()  # so far
        self._on_line: Callable[[bytes], None] = self._request_line
        self._skip = 0  # bytes of a body
        self._head = 0  # bytes of the complete lines of a head
        self._chunked_allowed = False
        self._lengths: list[bytes] = []
        self._codings: list[bytes] = []

    @property
    def between_requests(self) -> bool:
        """Return whether nothing of a next request has been read."""
        return not self._line and not self._skip and self._on_line == self._request_line

    def read(self, data: bytes) -> None:
        """Read further bytes; raise FramingError if they are not framed strictly."""
        position = 0
        while position < len(data):
            if self._skip:
                step = min(self._skip, len(data) - position)
                self._skip -= step
                position += step
            else:
                end = data.find(b"\n", position) + 1 or len(data)
                self._line += data[position:end]
                position = end
                self._read_line()

    def _read_line(self) -> None:
        in_head = self._on_line in (self._request_line, self._header)
        if self._head + len(self._line) > (HEAD_BYTES if in_head else CHUNK_LINE_BYTES):
            raise FramingError("headers too large" if in_head else "invalid chunk")
        if not self._line.endswith(b"\n"):
            return
        if not self._line.endswith(b"\r\n"):
            raise FramingError("line feed without carriage return")
        line = bytes(self._line[:-2])
        if b"\r" in line or b"\0" in line:
            raise FramingError("control character in a line")
        self._head += len(self._line) if in_head else 0
        self._line.clear()
        self._on_line(line)

    def _request_line(self, line: bytes) -> None:
        match = REQUEST_LINE.fullmatch(line)
        if match is None:
            raise FramingError("invalid request line")
        self._chunked_allowed = match[1] == b"1"
        self._lengths, self._codings = [], []
        self._on_line = self._header

    def _header(self, line: bytes) -> None:
        if not line:
            self._end_head()
            return
        match = HEADER.fullmatch(line)
        if match is None:
            raise FramingError("folded header" if line[:1] in (b" ", b"\t") else "invalid header")
        name, value = match[1].lower(), match[2].strip(b" \t")
        if name == b"content-length":
            self._lengths.append(value)
        elif name == b"transfer-encoding":
            self._codings.append(value)

    def _end_head(self) -> None:
        self._head = 0
        self._on_line = self._request_line
        if self._codings:
            if self._lengths:
                raise FramingError("Content-Length with Transfer-Encoding")
            if len(self._codings) > 1 or self._codings[0].lower() != b"chunked" or not self._chunked_allowed:
                raise FramingError("Transfer-Encoding other than chunked")
            self._on_line = self._chunk
        elif self._lengths:
            if len(self._lengths) > 1 or not LENGTH.fullmatch(self._lengths[0]):
                raise FramingError("several or invalid values of Content-Length")
            self._skip = int(self._lengths[0])

    def _chunk(self, line: bytes) -> None:
        match = CHUNK.fullmatch(line)
        if match is None:
            raise FramingError("invalid chunk size")
        self._skip = int(match[1], 16)
        self._on_line = self._end_chunk if self._skip else self._end_chunks

    def _end_chunk(self, line: bytes) -> None:
        if line:
            raise FramingError("chunk longer than its size")
        self._on_line = self._chunk

    def _end_chunks(self, line: bytes) -> None:
        if line:
            raise FramingError("fields after the last chunk")  # allowed by the standard; nothing here reads them
        self._on_line = self._request_line
