"""Who may ask: names of the server, origins of pages, tokens, headers on every answer."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.routing import Mount, Route

from conftest import draw_scene
from polyvoc.errors import OptionError
from polyvoc.web.security import HEADERS, SecurityMiddleware, Token
from polyvoc.web.settings import Settings, is_loopback
from servers import BEARER, TOKEN, Served, jpeg, refused, serving, upload

PHOTO = jpeg(draw_scene(5, (160, 120)))
FRIEND = "https://friend.example"
# Answered without the token by a private server: they tell nothing of the collection.
OPEN = {("GET", "/"), ("GET", "/health"), ("GET", "/openapi.json"), ("POST", "/session")}


@pytest.fixture(scope="module")
def copy(_session_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(_session_index, tmp_path_factory.mktemp("guarded") / "photos.polyvoc"))


@pytest.fixture(scope="module")
def served(copy: Path) -> Iterator[Served]:
    """One that anybody on this machine may write to."""
    with serving(copy, write=True, workers=1) as served:
        yield served


@pytest.fixture(scope="module")
def private(copy: Path) -> Iterator[Served]:
    """One that tells nothing without the token."""
    with serving(copy, write=True, private=True, token=TOKEN, originals=True, workers=1) as served:
        yield served


@pytest.fixture(scope="module")
def friendly(copy: Path) -> Iterator[Served]:
    """One whose reading is open, and that pages of one other origin may ask."""
    with serving(copy, write=True, token=TOKEN, cors=(FRIEND,), workers=1) as served:
        yield served


# --- names of the server ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "evil.example@evil.example",
        "127.0.0.1@evil.example:8000",
        "192.168.0.7",
        "10.0.0.1:8000",
        "0.0.0.0",
        "[::2]:8000",
        "169.254.169.254",
        "127.0.0.1.nip.io",
        "",
        ":8000",
        "[",
        "[::1",
        "127.0.0.1, evil.example",
    ],
)
def test_a_foreign_name_reaches_nothing(served: Served, host: str) -> None:
    for path in ("/", "/health", "/images", "/page/app.js", "/nowhere"):
        status, told = served.raw(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert status == 421, told
        assert "--allow-host" in told and "polyvoc.png" not in told


def test_a_request_without_a_name_reaches_nothing(served: Served) -> None:
    assert served.raw(b"GET /health HTTP/1.0\r\n\r\n")[0] == 421
    assert served.raw(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")[0] in (400, 421)


def test_two_names_are_not_better_than_one(served: Served) -> None:
    request = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert served.raw(request)[0] in (400, 421)


@pytest.mark.parametrize(
    "host", ["localhost", "LocalHost:8000", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:8000", "127.0.0.2"]
)
def test_names_of_this_machine_are_its_own(served: Served, host: str) -> None:
    assert served.get("/health", headers={"Host": host}).status_code == 200


def knows(name: str, **told: object) -> bool:
    settings = Settings(Path("x"), **told)  # type: ignore[arg-type]
    return SecurityMiddleware(None, settings, Token(None))._is_known(name)  # type: ignore[arg-type]


def test_further_names_can_be_told() -> None:
    assert knows("Photos.Example:443", allow_hosts=("photos.example",))
    assert not knows("other.example", allow_hosts=("photos.example",))
    assert not knows("192.168.0.7", allow_hosts=("photos.example",))


def test_off_loopback_an_address_is_no_name() -> None:
    """Only a name can be made to point here by somebody else."""
    assert all(knows(host, host="0.0.0.0") for host in ("192.168.0.7:8000", "0.0.0.0:8000", "[fe80::1]:8000", "localhost"))
    assert not any(knows(host, host="0.0.0.0") for host in ("evil.example", "192.168.0.7.evil.example", "192.168.0.7.nip.io"))


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "LOCALHOST", "::1", "[::1]"])
def test_loopback_is_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "localhost.example", "127.0.0.1.example", "", "127.1"])
def test_other_names_are_not(host: str) -> None:
    assert not is_loopback(host)


# --- origins of pages ---------------------------------------------------------------------------------------------------------

FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": ""},
    {"Origin": "http://["},
    {"Origin": "http://127.0.0.1"},  # another port
    {"Origin": "http://127.0.0.1:1"},
    {"Origin": "http://127.0.0.1.evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "null"},
    {"Sec-Fetch-Site": "same-origin, cross-site"},
]
FORMS = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_page_of_another_origin_changes_nothing(served: Served, headers: dict[str, str]) -> None:
    before = served.get("/health").json()
    files = {"photos": ("x.jpg", PHOTO)}
    assert "--cors" in refused(served.client.post("/images", files=files, headers=headers), 403)
    refused(served.client.delete("/images/1", headers=headers), 403)
    refused(served.client.post("/search?query=1", headers=headers), 403)
    refused(served.client.post("/queries", files={"photo": ("x.jpg", PHOTO)}, headers=headers), 403)
    refused(served.client.post("/session", headers=headers), 403)
    assert served.get("/health").json() == before
    assert len(served.service.uploads) == 0


@pytest.mark.parametrize("kind", FORMS)
def test_a_form_of_another_origin_changes_nothing(served: Served, kind: str) -> None:
    """What browsers send without asking first."""
    body = b'--x\r\nContent-Disposition: form-data; name="photos"; filename="x.jpg"\r\n\r\n' + PHOTO + b"\r\n--x--\r\n"
    before = served.get("/health").json()
    for headers in FOREIGN:
        refused(served.client.post("/images", content=body, headers={"Content-Type": kind, **headers}), 403)
    assert served.get("/health").json() == before


def test_the_own_page_and_programs_may_ask(served: Served) -> None:
    own = f"http://127.0.0.1:{served.address[1]}"
    for headers in ({}, {"Origin": own}, {"Sec-Fetch-Site": "same-origin", "Origin": own}, {"Sec-Fetch-Site": "none"}):
        assert served.client.post("/search?query=1", headers=headers).status_code == 200


def allowed(response: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name.startswith("access-control-")}


def preflight(served: Served, origin: str, path: str = "/search") -> httpx.Response:
    asks = {"Origin": origin, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    return served.client.options(path, headers=asks)


def test_no_other_origin_may_read_unless_told(served: Served) -> None:
    for path in ("/", "/images", "/health", "/images/1/thumbnail", "/page/app.js", "/nowhere", "/openapi.json"):
        assert allowed(served.get(path, headers={"Origin": FRIEND})) == {}
    assert allowed(preflight(served, FRIEND)) == {} and preflight(served, FRIEND).status_code >= 400


def test_the_origin_that_was_told_may_ask_and_no_other(friendly: Served) -> None:
    cross = {"Origin": FRIEND, "Sec-Fetch-Site": "cross-site"}
    told = friendly.client.post("/search?query=1", headers=cross)
    assert told.status_code == 200 and allowed(told)["access-control-allow-origin"] == FRIEND
    asked = preflight(friendly, FRIEND)
    assert asked.status_code == 200 and allowed(asked)["access-control-allow-origin"] == FRIEND
    for answer in (told, asked, friendly.get("/images", headers={"Origin": FRIEND})):
        assert "access-control-allow-credentials" not in answer.headers
    for origin in ("https://evil.example", "https://friend.example.evil.example", "http://friend.example", "null"):
        evil = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        refused(friendly.client.post("/search?query=1", headers=evil), 403)
        assert "access-control-allow-origin" not in friendly.get("/images", headers=evil).headers
        assert "access-control-allow-origin" not in preflight(friendly, origin).headers


def test_the_origin_that_was_told_writes_with_the_token_only(friendly: Served, copy: Path) -> None:
    cross = {"Origin": FRIEND, "Sec-Fetch-Site": "cross-site"}
    refused(friendly.client.delete("/images/99", headers=cross), 401)
    refused(friendly.client.delete("/images/99", headers={**cross, **BEARER}), 404)
    with serving(copy, write=True, cors=(FRIEND,), workers=1) as tokenless:
        refused(tokenless.client.delete("/images/99", headers=cross), 403)
        assert tokenless.client.post("/search?query=1", headers=cross).status_code == 200


# --- tokens -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", [{"host": "0.0.0.0", "write": True}, {"allow_hosts": ("photos.example",), "write": True},
                                  {"host": "::", "write": True}, {"private": True}])  # fmt: skip
def test_doors_are_not_left_open_by_mistake(told: dict[str, object]) -> None:
    with pytest.raises(OptionError, match="POLYVOC_TOKEN"):
        Settings(Path("x"), **told)  # type: ignore[arg-type]
    assert Settings(Path("x"), token=TOKEN, **told)  # type: ignore[arg-type]


@pytest.mark.parametrize("token", ["", "short", "with\nline", "nön-ascii-token"])
def test_a_token_that_is_none_is_refused(token: str) -> None:
    with pytest.raises(OptionError) as refusal:
        Settings(Path("x"), token=token)
    assert token not in str(refusal.value) or not token


WRONG = [
    {},
    {"Authorization": ""},
    {"Authorization": "Bearer"},
    {"Authorization": f"Bearer {TOKEN}x"},
    {"Authorization": f"Bearer {TOKEN[:-1]}"},
    {"Authorization": f"Bearer  {TOKEN}"},
    {"Authorization": f"Basic {TOKEN}"},
    {"Authorization": TOKEN},
    {"Authorization": b"Bearer \xff\xfe"},
    {"Cookie": f"polyvoc={TOKEN}"},
    {"X-Token": TOKEN},
]


@pytest.mark.parametrize("headers", WRONG, ids=str)
def test_writing_needs_the_token(friendly: Served, private: Served, headers: dict[str, str]) -> None:
    before = friendly.get("/health").json()
    for served in (friendly, private):
        told = served.client.post("/images", files={"photos": ("x.jpg", PHOTO)}, headers=headers)
        assert "Bearer" in refused(told, 401) and told.headers["www-authenticate"] == "Bearer"
        refused(served.client.delete("/images/1", headers=headers), 401)
        refused(served.client.delete(f"/images/1?token={TOKEN}", headers=headers), 401)
    assert friendly.get("/health").json() == before
    assert friendly.search(query="1").status_code == 200  # reading is open there


def test_with_the_token_one_may_write(private: Served) -> None:
    told = private.client.post("/images", files={"photos": ("x.jpg", PHOTO)}, headers=BEARER)
    assert told.status_code == 201
    image = told.json()["added"][0]["image"]
    assert private.client.delete(f"/images/{image}", headers={"authorization": f"bearer {TOKEN}"}).json() == {"removed": image}


def entered(served: Served) -> dict[str, str]:
    """Give the cookie of somebody who knows the token, as a header."""
    told = served.client.post("/session", headers=BEARER)
    served.client.cookies.clear()
    assert told.json() == {"ok": True}
    return {"Cookie": told.headers["set-cookie"].split(";")[0]}


def test_a_session_is_for_those_who_know_the_token(private: Served, served: Served) -> None:
    for headers in WRONG:
        told = private.client.post("/session", headers=headers)
        refused(told, 401)
        assert "set-cookie" not in told.headers
    refused(served.client.post("/session", headers=BEARER), 401)  # a server without a token


def test_the_cookie_does_not_hold_the_token(private: Served) -> None:
    told = private.client.post("/session", headers=BEARER)
    private.client.cookies.clear()
    cookie = told.headers["set-cookie"]
    parts = {part.strip().lower() for part in cookie.split(";")}
    assert {"httponly", "samesite=strict"} <= parts and not any(part.startswith("domain") for part in parts)
    assert TOKEN not in cookie and TOKEN not in told.text


def test_the_cookie_reads_and_does_not_write(private: Served) -> None:
    cookie = entered(private)
    assert private.get("/images", headers=cookie).status_code == 200
    assert private.get("/images/1/thumbnail", headers=cookie).status_code == 200
    assert private.client.post("/search?query=1", headers=cookie).status_code == 200
    refused(private.client.delete("/images/1", headers=cookie), 401)
    refused(private.client.post("/images", files={"photos": ("x.jpg", PHOTO)}, headers=cookie), 401)
    own, value = cookie["Cookie"].split("=")
    odd = {"Cookie": f'settings={{"x": [1, 2]}}; {own}={value}'}  # one of another program at this host comes along
    assert private.get("/images", headers=odd).status_code == 200
    for name, given in ((own, "0" * 64), (own, ""), ("other", value)):
        refused(private.get("/images", headers={"Cookie": f"{name}={given}"}), 401)
    for broken in ('polyvoc="', "=;=;", "polyvoc=\x7f", "a" * 5000):
        refused(private.get("/images", headers={"Cookie": broken}), 401)


def test_the_cookie_of_one_server_opens_no_other(private: Served, copy: Path) -> None:
    cookie = entered(private)
    with serving(copy, private=True, token=TOKEN, workers=1) as other:
        refused(other.get("/images", headers=cookie), 401)


def every_route(served: Served) -> list[tuple[str, str]]:
    """Give each method and path of the application, so that a new one is not forgotten."""
    found = []
    for route in routes_of(served.app.routes):
        path = re.sub(r"{image}", "99", re.sub(r"{query}", "uNothing", route.path))
        found += [(method, path) for method in sorted(route.methods or ())]
    return found


def routes_of(routes: list[object]) -> Iterator[Route]:
    for route in routes:
        if isinstance(route, Route):
            yield route
        elif not isinstance(route, Mount):  # those of a router that was included
            yield from routes_of(list(route.original_router.routes))  # type: ignore[attr-defined]


def test_a_private_server_tells_nothing_without_the_token(private: Served) -> None:
    found = every_route(private)
    assert {("GET", "/images"), ("POST", "/search"), ("GET", "/metrics"), ("DELETE", "/images/99"), *OPEN} <= set(found)
    for method, path in found:
        response = private.client.request(method, path)
        if (method.replace("HEAD", "GET"), path) in OPEN:
            assert (response.status_code == 401) == (path == "/session")
        else:
            assert response.status_code == 401, (method, path)
        with_token = private.client.request(method, path, headers=BEARER).status_code
        assert with_token != 401, (method, path)
        private.client.cookies.clear()
    assert private.get("/page/app.js").status_code == 200
    for path in (
        "/images/",
        "//images",
        "/page/../images",
        "/page/%2e%2e/images",
        "/IMAGES",
        "/images/1/../2",
        "/nowhere",
        "/page",
    ):
        status, told = private.raw(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
        assert status in (401, 404, 307), path
        assert "bridge-a" not in told


def test_what_is_open_tells_nothing_of_the_collection(private: Served) -> None:
    """The page, whether the server is well, and the description of the interface."""
    for path in ("/", "/openapi.json", "/page/app.js"):
        told = private.get(path)
        assert told.status_code == 200 and "bridge" not in told.text and "photos.polyvoc" not in told.text
    assert set(private.get("/health").json()) == {"status", "commit", "images"}


# --- headers ------------------------------------------------------------------------------------------------------------------


def test_every_answer_binds_the_browser(private: Served, friendly: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(friendly.service), "listing", fail)
    ask = friendly.client.request
    answers = {
        "page": (ask("GET", "/"), 200),
        "script": (ask("GET", "/page/app.js"), 200),
        "style": (ask("GET", "/page/style.css"), 200),
        "not changed": (ask("GET", "/page/app.js", headers={"If-None-Match": ask("GET", "/page/app.js").headers["etag"]}), 304),
        "json": (ask("GET", "/images/1"), 200),
        "picture": (ask("GET", "/images/1/thumbnail"), 200),
        "file": (private.get("/images/1/file", headers=BEARER), 200),
        "stream": (ask("POST", "/search?query=1", headers={"Accept": "application/x-ndjson"}), 200),
        "metrics": (ask("GET", "/metrics"), 200),
        "absent": (ask("GET", "/nowhere"), 404),
        "absent file": (ask("GET", "/page/nowhere"), 404),
        "no method": (ask("PUT", "/search"), 405),
        "invalid": (ask("POST", "/search"), 422),
        "refused": (ask("DELETE", "/images/1"), 401),
        "foreign": (ask("POST", "/search", headers=FOREIGN[0]), 403),
        "rebound": (ask("GET", "/", headers={"Host": "evil.example"}), 421),
        "preflight": (preflight(friendly, FRIEND), 200),
        "redirect": (ask("GET", "/images/"), 307),
        "unexpected": (ask("GET", "/images"), 500),
    }
    for name, (answer, status) in answers.items():
        assert answer.status_code == status, name
        for header, value in HEADERS.items():
            assert answer.headers.get(header) == value, (name, header)
        assert "server" not in answer.headers or "uvicorn" not in answer.headers["server"]
    request = b"POST /search HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\nContent-Length: 99999999999\r\n\r\n"
    status, told = friendly.raw(request)
    assert status == 413 and all(f"{header.lower()}: {value}" in told for header, value in HEADERS.items())
    policy = HEADERS["Content-Security-Policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy and "*" not in policy
    assert answers["json"][0].headers["cache-control"] == "no-store"
    assert "public" not in answers["picture"][0].headers["cache-control"]


def test_uploads_are_sent_by_name_only(served: Served, photographs: Path) -> None:
    """The name of an upload comes back as JSON, never as a header or a page."""
    name = '"><script>alert(1)</script>\\r\\nSet-Cookie: a=b.jpg'
    told = served.client.post("/search", files={"photo": (name, upload(photographs / "wall-a.jpg")[1])})
    assert told.headers["content-type"] == "application/json" and "set-cookie" not in told.headers


# --- what a page of another origin might cost ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/explain?query=1&image=2", "/statistics", "/images", "/images/1/thumbnail", "/about", "/metrics"]
)
def test_a_foreign_page_cannot_keep_the_server_busy(served: Served, path: str) -> None:
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "https://evil.example"}):
        assert "other origins" in refused(served.get(path, headers=headers), 403)
    for site in ("same-origin", "none"):
        assert served.get(path, headers={"Sec-Fetch-Site": site}).status_code == 200


@pytest.mark.parametrize("path", ["/", "/page/app.js", "/health"])
def test_the_page_may_be_linked_from_anywhere(served: Served, path: str) -> None:
    assert served.get(path, headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_requests_under_way_are_counted(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent lies on the disk until it is read: only so many may send at a time."""
    monkeypatch.setattr("polyvoc.web.security.UNDER_WAY", -1000)
    response = served.search(PHOTO)
    assert "too many requests" in refused(response, 503) and int(response.headers["Retry-After"]) >= 1
    assert served.get("/images").status_code == 200  # those who only ask take no room
    monkeypatch.undo()
    assert served.search(PHOTO).status_code == 200


def test_a_server_that_only_reads_takes_nothing(copy: Path) -> None:
    """It says so before the photographs are sent."""
    with serving(copy, workers=1) as reading:
        head = "POST /images HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99999999\r\nConnection: close\r\n\r\n"
        assert reading.raw(head.encode())[0] == 403


def test_a_friend_can_read_why_it_was_refused(friendly: Served) -> None:
    told = friendly.client.delete("/images/1", headers={"Origin": FRIEND, "Sec-Fetch-Site": "cross-site"})
    assert told.headers["access-control-allow-origin"] == FRIEND and "token" in refused(told, 401)
    other = friendly.client.delete("/images/1", headers={"Origin": "https://evil.example"})
    assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("origin", ["*", "https://friend.example/", "friend.example", "https://", "https://a b"])
def test_what_is_no_origin_is_refused(origin: str) -> None:
    with pytest.raises(OptionError, match="should be an origin"):
        Settings(Path("x"), cors=(origin,))
