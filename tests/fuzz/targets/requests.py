"""HTTP requests: parameters, multipart bodies, headers.

An input is a request line, header lines, an empty line, and the body.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from functools import cache

import httpx
import numpy as np
from PIL import Image

from fuzz.laws import check_line, scratch
from polyvoc.web.server import create_app
from polyvoc.web.settings import Settings
from samples import build, coded, collection

MAX_BYTES = 8192
ADDRESS = "http://127.0.0.1:8000"
METHODS = ("GET", "HEAD", "POST", "DELETE", "PUT", "OPTIONS")
BOUNDARY = "b0und"


def target(data: bytes) -> None:
    """Send a request; the status is not 500, and an error is one line of JSON."""
    request = _parse(data)
    if request is None:
        return
    method, path, headers, body = request
    runner, client = _client()
    response = runner.run(client.request(method, path, headers=headers, content=body))
    assert response.status_code not in (500, 507), (response.status_code, response.text)
    if response.status_code >= 400 and method != "HEAD" and response.headers.get("content-type") == "application/json":
        check_line(response.json()["error"])
    elif response.headers.get("content-type") == "application/json" and method != "HEAD":
        json.loads(response.text, parse_constant=_no_constant)


def _no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def _parse(data: bytes) -> tuple[str, str, list[tuple[bytes, bytes]], bytes] | None:
    """Return method, path, headers and body; None if a client could not send them."""
    head, _, body = data.partition(b"\n\n")
    line, *lines = head.decode("latin-1").split("\n")
    method, _, path = line.partition(" ")
    if method not in METHODS or not path.startswith("/") or path.startswith("//") or not path.isprintable():
        return None
    headers = []
    for one in lines:
        name, found, value = one.partition(":")
        if not found or not name.isascii() or not name.replace("-", "").isalnum() or not value.isprintable():
            return None
        headers.append((name.encode(), value.strip().encode("latin-1")))
    return method, path, headers, body


@cache
def _client() -> tuple[asyncio.Runner, httpx.AsyncClient]:
    """Return a client of an application in this process, and what runs both."""
    path = scratch("requests") / "photos.polyvoc"
    build(path, collection(8, dimension=128), coded(dimension=128)).close()
    app = create_app(Settings(path, workers=1, max_upload=1, max_pixels=1))
    return asyncio.Runner(), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=ADDRESS)


def seeds() -> Iterator[bytes]:
    """Yield a request for every route, and uploads."""
    for path in (
        "GET /images?page=0&size=2&find=image",
        "GET /images/1",
        "GET /images/1/thumbnail?side=160",
        "GET /images/1/file",
        "GET /explain?query=1&image=2&limit=5",
        "GET /statistics",
        "GET /about",
        "GET /health",
        "GET /metrics",
        "GET /queries/x",
        "GET /queries/x/picture?side=160",
        "GET /page/main.js",
        "GET /openapi.json",
        "POST /search?query=1&top=3&preset=fast",
        "POST /search?query=2&region=0,0,50,50.5&merge=bayes&verify=0&burstiness=none&min_probability=0.5",
        "POST /search?query=3&merge=likelihood&line=0.1,0.2&n_assignments=2&vocabularies=none",
        "POST /search/batch?query=1&query=2&preset=paper",
        "POST /session\nAuthorization: Bearer x",
        "POST /search?query=1\nAccept: application/x-ndjson",
        "DELETE /images/1\nOrigin: http://127.0.0.1:8000",
    ):
        yield path.encode() + b"\n\n"
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 40), np.uint8)).save(out, "PNG")
    uploads = (("search", "photo", out.getvalue()), ("search/batch", "photos", b"x"), ("queries", "photo", b""))
    for route, name, content in uploads:
        head = f"POST /{route}\nContent-Type: multipart/form-data; boundary={BOUNDARY}\n\n--{BOUNDARY}"
        part = f'Content-Disposition: form-data; name="{name}"; filename="x.png"\r\nContent-Type: image/png'
        yield f"{head}\r\n{part}\r\n\r\n".encode() + content + f"\r\n--{BOUNDARY}--\r\n".encode()
