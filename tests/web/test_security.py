"""Which requests are served: host names, origins, tokens, limits; and the security headers of every response."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route

from conftest import draw_scene
from polyvoc.errors import OptionError
from polyvoc.web.security import HEADERS, SecurityMiddleware, Token
from polyvoc.web.settings import Settings, is_loopback
from servers import BEARER, TOKEN, Served, jpeg, refused, serving, upload

SETTINGS = {"write": True, "workers": 1}  # local, without a token
PHOTO = jpeg(draw_scene(5, (160, 120)))
FRIEND = "https://friend.example"  # allowed with --cors
# Readable without the token of a private server: nothing of the collection.
OPEN = {("GET", "/"), ("GET", "/health"), ("GET", "/openapi.json"), ("POST", "/session")}


@pytest.fixture(scope="module")
def private(copied_index: Path) -> Iterator[Served]:
    """The token is required for everything."""
    with serving(copied_index, write=True, private=True, token=TOKEN, originals=True, workers=1) as served:
        yield served


@pytest.fixture(scope="module")
def friendly(copied_index: Path) -> Iterator[Served]:
    """The token is required for writing; pages of one other origin are allowed."""
    with serving(copied_index, write=True, token=TOKEN, cors=(FRIEND,), workers=1) as served:
        yield served


def settings(**values: Any) -> Settings:
    return Settings(Path("x"), **values)


LOOPBACK = {"allow_host": ("photos.example",)}
EVERYWHERE = {"host": "0.0.0.0"}
HOSTS = [
    (LOOPBACK, True, ["localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000", "127.0.0.2"]),
    (LOOPBACK, True, ["photos.example", "Photos.Example:443"]),
    (LOOPBACK, False, ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil.example"]),
    (LOOPBACK, False, ["evil.example@evil.example", "127.0.0.1@evil.example:8000", "127.0.0.1, evil.example"]),
    (LOOPBACK, False, ["192.168.0.7", "10.0.0.1:8000", "0.0.0.0", "[::2]:8000", "169.254.169.254", "127.0.0.1.nip.io"]),
    (
        LOOPBACK,
        False,
        ["", ":8000", "[", "[::1", "evil@127.0.0.1", "127.0.0.1/evil", "127.0.0.1?a", "127.0.0.1:80:90", "[127.0.0.1"],
    ),
    # Off loopback an address is accepted: only a name can be made to resolve to this server by an attacker.
    (EVERYWHERE, True, ["192.168.0.7:8000", "0.0.0.0:8000", "[fe80::1]:8000", "localhost"]),
    (EVERYWHERE, False, ["evil.example", "192.168.0.7.evil.example", "192.168.0.7.nip.io"]),
]


@pytest.mark.parametrize(("known", "accepted", "hosts"), HOSTS)
def test_host_names(known: dict[str, Any], accepted: bool, hosts: list[str]) -> None:
    middleware = SecurityMiddleware(None, settings(**known), Token(None))  # type: ignore[arg-type]
    for host in hosts:
        with nullcontext() if accepted else pytest.raises(HTTPException, match="--allow-host"):
            middleware._check_host(host)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "192.168.0.7", "", "["])
def test_an_unknown_host_is_rejected_for_every_path(served: Served, host: str) -> None:
    """Against DNS rebinding."""
    for path in ("/", "/health", "/images", "/page/app.js", "/nowhere"):
        status, response = served.raw_get(path, host)
        assert status == 421 and f"--allow-host {host if '.' in host else 'NAME'}" in response


def test_requests_with_no_host_or_two_are_rejected(served: Served) -> None:
    assert served.raw(b"GET /health HTTP/1.0\r\n\r\n")[0] == 421
    assert served.raw(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")[0] in (400, 421)
    assert served.raw_get("/health", "127.0.0.1\r\nHost: evil.example")[0] in (400, 421)
    assert served.get("/health", headers={"Host": "LocalHost:8000"}).status_code == 200


def test_loopback() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "localhost", "LOCALHOST", "::1", "[::1]"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "192.168.0.1", "localhost.example", "127.0.0.1.example", "", "127.1"]))


ORIGINS = ("https://evil.example", "null", "", "http://[", "http://127.0.0.1.evil.example")
OTHER_PORTS = ("http://127.0.0.1", "http://127.0.0.1:1")
CROSS_ORIGIN = [
    *({"Origin": origin} for origin in ORIGINS + OTHER_PORTS),
    *({"Sec-Fetch-Site": site} for site in ("cross-site", "same-site", "same-origin, cross-site")),
    {"Sec-Fetch-Site": "cross-site", "Origin": "null"},
]
# What browsers send without a preflight request.
FORMS = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
FORM = b'--x\r\nContent-Disposition: form-data; name="photos"; filename="x.jpg"\r\n\r\n' + PHOTO + b"\r\n--x--\r\n"


@pytest.mark.parametrize("headers", CROSS_ORIGIN, ids=str)
def test_a_page_of_another_origin_can_change_nothing_and_search_nothing(served: Served, headers: dict[str, str]) -> None:
    before = served.get("/health").json()
    assert "--cors" in refused(served.add(PHOTO, headers=headers), 403)
    for kind in FORMS:
        refused(served.post("/images", content=FORM, headers={"Content-Type": kind, **headers}), 403)
    refused(served.delete(1, headers=headers), 403)
    refused(served.post("/queries", files={"photo": ("x.jpg", PHOTO)}, headers=headers), 403)
    for path in ("/search?query=1", "/session"):
        refused(served.post(path, headers=headers), 403)
    for path in ("/explain?query=1&image=2", "/statistics", "/images", "/images/1/thumbnail", "/about", "/metrics"):
        assert "other origins" in refused(served.get(path, headers=headers), 403)
    for path in ("/", "/page/app.js", "/health"):  # links to the page are fine
        assert served.get(path, headers=headers).status_code == 200
    assert served.get("/health").json() == before and served.service.uploads.size == 0


def test_the_own_page_and_programs_are_allowed(served: Served) -> None:
    own = f"http://127.0.0.1:{served.address[1]}"
    for headers in ({}, {"Origin": own}, {"Sec-Fetch-Site": "same-origin", "Origin": own}, {"Sec-Fetch-Site": "none"}):
        assert served.post("/search?query=1", headers=headers).status_code == 200
        assert served.get("/images", headers=headers).status_code == 200


def cors(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


def preflight(served: Served, origin: str) -> httpx.Response:
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    return served.client.options("/search", headers={"Origin": origin, **wanted})


def test_no_origin_may_read_by_default(served: Served) -> None:
    for path in ("/", "/images", "/health", "/images/1/thumbnail", "/page/app.js", "/nowhere", "/openapi.json"):
        assert cors(served.get(path, headers={"Origin": FRIEND})) == {}
    assert cors(preflight(served, FRIEND)) == {} and preflight(served, FRIEND).status_code >= 400


def test_an_allowed_origin_may_read_and_no_other(friendly: Served) -> None:
    cross = {"Origin": FRIEND, "Sec-Fetch-Site": "cross-site"}
    for response in (friendly.post("/search?query=1", headers=cross), preflight(friendly, FRIEND)):
        assert response.status_code == 200 and cors(response)["access-control-allow-origin"] == FRIEND
        assert "access-control-allow-credentials" not in response.headers
    for origin in ("https://evil.example", "https://friend.example.evil.example", "http://friend.example", "null"):
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        refused(friendly.post("/search?query=1", headers=headers), 403)
        for response in (friendly.get("/images", headers=headers), preflight(friendly, origin)):
            assert "access-control-allow-origin" not in response.headers


def test_an_allowed_origin_may_write_with_the_token_only(friendly: Served, copied_index: Path) -> None:
    cross = {"Origin": FRIEND, "Sec-Fetch-Site": "cross-site"}
    response = friendly.delete(99, headers=cross)
    assert "token" in refused(response, 401) and cors(response)["access-control-allow-origin"] == FRIEND  # readable there
    refused(friendly.delete(99, headers={**cross, **BEARER}), 404)
    assert "access-control-allow-origin" not in friendly.delete(99, headers=CROSS_ORIGIN[0]).headers
    with serving(copied_index, write=True, cors=(FRIEND,), workers=1) as tokenless:
        refused(tokenless.delete(99, headers=cross), 403)
        assert tokenless.post("/search?query=1", headers=cross).status_code == 200


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(({"cors": (text,)}, "an origin") for text in ("*", f"{FRIEND}/", "friend.example", "https://", "https://a b")),
        *(({"token": text}, "at least 8 printable") for text in ("", "short", "with\nline", "nön-ascii-token")),
        ({"host": "0.0.0.0", "write": True}, "POLYVOC_TOKEN"),
        ({"host": "::", "write": True}, "POLYVOC_TOKEN"),
        ({"allow_host": ("photos.example",), "write": True}, "POLYVOC_TOKEN"),
        ({"private": True}, "POLYVOC_TOKEN"),
    ],
)  # fmt: skip
def test_unsafe_settings_are_rejected(values: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        settings(**values)
    assert not values.get("token") or values["token"] not in str(caught.value)
    if message == "POLYVOC_TOKEN":
        assert settings(token=TOKEN, **values)


BEARERS = ("Bearer", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Bearer  {TOKEN}", f"Basic {TOKEN}", b"Bearer \xff\xfe")
WRONG = [{}, {"Cookie": f"polyvoc={TOKEN}"}, {"X-Token": TOKEN}, *({"Authorization": text} for text in ("", TOKEN, *BEARERS))]


@pytest.mark.parametrize("headers", WRONG, ids=str)
def test_writing_and_sessions_need_the_token(friendly: Served, private: Served, headers: dict[str, str]) -> None:
    before = friendly.get("/health").json()
    for served in (friendly, private):
        response = served.add(PHOTO, headers=headers)
        assert "Bearer" in refused(response, 401) and response.headers["www-authenticate"] == "Bearer"
        refused(served.delete(1, headers=headers), 401)
        refused(served.client.delete(f"/images/1?token={TOKEN}", headers=headers), 401)
        session = served.post("/session", headers=headers)
        assert refused(session, 401) and "set-cookie" not in session.headers
    assert friendly.get("/health").json() == before
    assert friendly.search(query="1").status_code == 200  # reading is open there


def test_writing_with_the_token(private: Served, served: Served) -> None:
    response = private.add(PHOTO, headers=BEARER)
    assert response.status_code == 201
    image = response.json()["added"][0]["image"]
    assert private.delete(image, headers={"authorization": f"bearer {TOKEN}"}).json() == {"removed": image}
    refused(served.post("/session", headers=BEARER), 401)  # a server without a token


def test_the_session_cookie_is_for_reading_this_server_only(private: Served, copied_index: Path) -> None:
    response = private.post("/session", headers=BEARER)
    private.client.cookies.clear()
    assert response.json() == {"ok": True}
    first, *attributes = response.headers["set-cookie"].split(";")
    attributes = [attribute.strip().lower() for attribute in attributes]
    assert {"httponly", "samesite=strict"} <= set(attributes) and not any(name.startswith("domain") for name in attributes)
    assert TOKEN not in response.headers["set-cookie"] and TOKEN not in response.text
    own, value = first.split("=")
    cookie = {"Cookie": f"{own}={value}"}
    for path in ("/images", "/images/1/thumbnail"):
        assert private.get(path, headers=cookie).status_code == 200
    assert private.post("/search?query=1", headers=cookie).status_code == 200
    refused(private.delete(1, headers=cookie), 401)
    refused(private.add(PHOTO, headers=cookie), 401)
    mixed = {"Cookie": f'settings={{"x": [1, 2]}}; {own}={value}'}  # with one of another program at this host
    assert private.get("/images", headers=mixed).status_code == 200
    for wrong in (f"{own}={'0' * 64}", f"{own}=", f"other={value}", 'polyvoc="', "=;=;", "polyvoc=\x7f", "a" * 5000):
        refused(private.get("/images", headers={"Cookie": wrong}), 401)
    with serving(copied_index, private=True, token=TOKEN, workers=1) as other:
        refused(other.get("/images", headers=cookie), 401)


def routes_of(routes: list[Any]) -> Iterator[Route]:
    for route in routes:
        if isinstance(route, Route):
            yield route
        elif not isinstance(route, Mount):  # those of an included router
            yield from routes_of(list(route.original_router.routes))


def test_a_private_server_shows_nothing_without_the_token(private: Served) -> None:
    """On any route of the application, so that a new one is not forgotten."""
    found = [
        (method, re.sub(r"{image}", "99", re.sub(r"{query}", "uNothing", route.path)))
        for route in routes_of(private.app.routes)
        for method in sorted(route.methods or ())
    ]
    assert {("GET", "/images"), ("POST", "/search"), ("GET", "/metrics"), ("DELETE", "/images/99"), *OPEN} <= set(found)
    for method, path in found:
        is_open = (method.replace("HEAD", "GET"), path) in OPEN and path != "/session"
        assert (private.client.request(method, path).status_code == 401) != is_open, (method, path)
        assert private.client.request(method, path, headers=BEARER).status_code != 401, (method, path)
        private.client.cookies.clear()
    paths = ["/images/", "//images", "/page/../images", "/page/%2e%2e/images", "/IMAGES", "/images/1/../2", "/nowhere", "/page"]
    for path in paths:
        status, response = private.raw_get(path)
        assert status in (401, 404, 307) and "bridge-a" not in response, path
    for path in ("/", "/openapi.json", "/page/app.js"):
        open_page = private.get(path)
        assert open_page.status_code == 200 and "bridge" not in open_page.text and "photos.polyvoc" not in open_page.text
    assert set(private.get("/health").json()) == {"status", "commit", "images"}


def test_every_response_has_the_security_headers(private: Served, friendly: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(friendly.service), "list_images", fail)
    get, send = friendly.get, friendly.client.request
    picture, stored = get("/images/1/thumbnail"), {"If-None-Match": get("/page/app.js").headers["etag"]}
    responses = [
        *((get(path), 200) for path in ("/", "/page/app.js", "/page/style.css", "/images/1", "/metrics")),
        *((get(path), 404) for path in ("/nowhere", "/page/nowhere")),
        *((picture, 200), (private.get("/images/1/file", headers=BEARER), 200), (preflight(friendly, FRIEND), 200)),
        (get("/page/app.js", headers=stored), 304),
        (send("POST", "/search?query=1", headers={"Accept": "application/x-ndjson"}), 200),
        *((send("PUT", "/search"), 405), (send("POST", "/search"), 422), (send("DELETE", "/images/1"), 401)),
        (send("POST", "/search", headers=CROSS_ORIGIN[0]), 403),
        (get("/", headers={"Host": "evil.example"}), 421),
        *((get("/images/"), 307), (get("/images"), 500)),
    ]
    for response, status in responses:
        assert response.status_code == status, response.url
        assert {name: response.headers.get(name) for name in HEADERS} == HEADERS, response.url
        assert "uvicorn" not in response.headers.get("server", "")
    request = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n"
    status, text = friendly.raw(request)
    assert status == 413 and all(f"{header.lower()}: {value}" in text for header, value in HEADERS.items())
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "*" not in policy
    assert get("/images/1").headers["cache-control"] == "no-store" and "public" not in picture.headers["cache-control"]


def test_the_name_of_an_upload_comes_back_as_json_only(served: Served, photographs: Path) -> None:
    name = '"><script>alert(1)</script>\\r\\nSet-Cookie: a=b.jpg'
    response = served.post("/search", files={"photo": (name, upload(photographs / "wall-a.jpg")[1])})
    assert response.headers["content-type"] == "application/json" and "set-cookie" not in response.headers


def test_requests_with_a_body_are_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their files lie on the disk until they are read."""
    monkeypatch.setattr("polyvoc.web.security.EXTRA_UPLOADS", -1000)
    response = served.search(PHOTO)
    assert "too many requests" in refused(response, 503) and int(response.headers["Retry-After"]) >= 1
    assert served.get("/images").status_code == 200  # requests without a body are not
    monkeypatch.undo()
    assert served.search(PHOTO).status_code == 200


def test_a_read_only_server_rejects_uploads_before_they_arrive(copied_index: Path) -> None:
    with serving(copied_index, workers=1) as reading:
        head = "POST /images HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999\r\nConnection: close\r\n\r\n"
        assert reading.raw(head.encode())[0] == 403
        for method in ("POST", "DELETE", "PUT", "PATCH"):
            assert "--write" in refused(reading.client.request(method, "/images/1"), 403)
        assert reading.get("/images/1").status_code == 200
