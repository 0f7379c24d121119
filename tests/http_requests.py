"""Requests as bytes: framed strictly, and such that parsers may disagree on their end."""

from __future__ import annotations

import h11

from polyvoc.web.framing import HEAD_BYTES

HEAD = b"POST /search HTTP/1.1\r\nHost: localhost\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
GOOD = {
    "no body": HEAD + b"\r\n",
    "no headers": b"GET / HTTP/1.0\r\n\r\n",
    "length": HEAD + b"Content-Length: 3\r\n\r\na\nb",
    "spaces around a value": HEAD + b"content-length: \t3 \r\n\r\nabc",
    "length 0": HEAD + b"Content-Length: 0\r\n\r\n",
    "chunks": CHUNKED + b"3\r\n\r\na\r\n0A;name=value\r\n0123456789\r\n0\r\n\r\n",
    "no chunk": HEAD + b"Transfer-Encoding: Chunked\r\n\r\n0\r\n\r\n",
}
BAD = {
    "length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and length": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a length twice": HEAD + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "lengths in a list": HEAD + b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": HEAD + b"Content-Length: +3\r\n\r\nabc",
    "hexadecimal length": HEAD + b"Content-Length: 0x3\r\n\r\nabc",
    "empty length": HEAD + b"Content-Length:\r\n\r\n",
    "long length": HEAD + b"Content-Length: " + b"1" * 30 + b"\r\n\r\n",
    "space before the colon": HEAD + b"Content-Length : 3\r\n\r\nabc",
    "other coding": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "unknown coding": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two codings": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bare line feed after the request line": b"GET / HTTP/1.1\nHost: localhost\r\n\r\n",
    "bare line feed after a header": b"GET / HTTP/1.1\r\nHost: localhost\nX: y\r\n\r\n",
    "bare line feed at the end": b"GET / HTTP/1.1\r\nHost: localhost\r\n\n",
    "bare carriage return": b"GET / HTTP/1.1\r\nHost: localhost\rX: y\r\n\r\n",
    "zero byte": b"GET / HTTP/1.1\r\nHost: local\0host\r\n\r\n",
    "folded by a space": HEAD + b"X: y\r\n Content-Length: 3\r\n\r\nabc",
    "folded by a tab": HEAD + b"Transfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n",
    "no name": HEAD + b": y\r\n\r\n",
    "no colon": HEAD + b"X\r\n\r\n",
    "other version": b"GET / HTTP/2.0\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "empty first line": b"\r\nGET / HTTP/1.1\r\n\r\n",
    "huge head": HEAD + b"X: " + b"y" * HEAD_BYTES + b"\r\n\r\n",
    "endless line": b"GET /" + b"y" * HEAD_BYTES,
    "many headers": HEAD + b"X: y\r\n" * HEAD_BYTES,
    "empty chunk size": CHUNKED + b"\r\n\r\n",
    "signed chunk size": CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
    "chunk size with a prefix": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "chunk size with a space": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "huge chunk size": CHUNKED + b"1" * 17 + b"\r\n",
    "endless chunk size": CHUNKED + b"0" * 300,
    "bare line feed after a chunk size": CHUNKED + b"3\nabc\r\n0\r\n\r\n",
    "bare line feed after a chunk": CHUNKED + b"3\r\nabc\n0\r\n\r\n",
    "longer chunk": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "shorter chunk": CHUNKED + b"3\r\nab\r\n0\r\n\r\n",
    "bare line feed after the last chunk": CHUNKED + b"0\r\n\n",
    "fields after the last chunk": CHUNKED + b"0\r\nContent-Length: 3\r\n\r\n",
}


def requests_of_h11(content: bytes) -> int:
    """Return how many requests a usual parser sees."""
    connection, count = h11.Connection(h11.SERVER), 0
    connection.receive_data(content)
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            return count
        if event is h11.PAUSED:
            connection.send(h11.Response(status_code=204, headers=[]))
            connection.send(h11.EndOfMessage())
            connection.start_next_cycle()
        count += isinstance(event, h11.Request)
