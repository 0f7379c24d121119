"""The proxy and the service of docs/serving.md, as they are written there."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from conftest import draw_scene
from polyvoc.options import options_of
from polyvoc.web.settings import LIMITS, NETWORK, Settings
from servers import PATIENCE, Served, jpeg, serving, wait_until

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "serving.md").read_text(encoding="utf-8")
PHOTO = jpeg(draw_scene(5, (160, 120)))
NAME = "photos.example.org"
FRAME = """
{user} daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1;
events {{ }}
http {{
    access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {server}
}}
"""


def block(kind: str) -> str:
    """Return the only block of a kind on the page."""
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return str(found)


def test_the_page_lists_every_limit_with_its_default() -> None:
    listed = dict(re.findall(r"^\| `--([\w-]+)` \| (\S+) \|", PAGE, re.MULTILINE))
    options = {one.name.replace("_", "-"): str(one.default) for one in options_of(Settings) if one.stage in (LIMITS, NETWORK)}
    assert listed == options


@contextmanager
def nginx(folder: Path, served: Served) -> Iterator[int]:
    """Run nginx with the configuration of the page in front of a server; yield its port."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    new = ["-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={NAME}"]
    subprocess.run(["openssl", "req", *new, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = {
        "listen 443": f"listen 127.0.0.1:{port}",
        "127.0.0.1:8000": f"127.0.0.1:{served.address[1]}",
        f"/etc/ssl/{NAME}.pem": str(certificate),
        f"/etc/ssl/{NAME}.key": str(key),
    }
    text = block("nginx")
    for documented, here in given.items():
        assert text.count(documented) == 1
        text = text.replace(documented, here)
    user = "" if os.geteuid() else "user root;"  # else its workers may not write to the folder
    (folder / "nginx.conf").write_text(FRAME.format(folder=folder, server=text, user=user))
    with subprocess.Popen(["nginx", "-c", folder / "nginx.conf", "-e", folder / "error.log"]) as proxy:
        try:
            wait_until(lambda: proxy.poll() is not None or (folder / "nginx.pid").exists())
            assert proxy.poll() is None, (folder / "error.log").read_text()
            yield port
        finally:
            proxy.terminate()


@pytest.mark.network
@pytest.mark.skipif(not (shutil.which("nginx") and shutil.which("openssl")), reason="needs nginx and openssl")
def test_a_search_and_an_upload_through_nginx(copied_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = {"allow_host": (NAME,), "forwarded_by": ("127.0.0.1",), "max_per_address": 1}
    names: list[str] = []
    with serving(copied_index, workers=1, **flags) as served, nginx(tmp_path, served) as port:
        submit = served.service.searches.submit
        monkeypatch.setattr(served.service.searches, "submit", lambda *given: (names.append(given[1]), submit(*given))[1])
        proxied = {"base_url": f"https://127.0.0.1:{port}", "headers": {"Host": NAME}, "timeout": PATIENCE}
        transport = httpx.HTTPTransport(verify=False, local_address="127.0.0.5")
        with httpx.Client(transport=transport, **proxied) as client:  # type: ignore[arg-type]
            assert client.post("/search?query=1").json()["hits"][0]["image"] == 1
            upload = {"photo": ("x.jpg", PHOTO)}
            forged = {"X-Forwarded-For": "9.9.9.9"}
            assert client.post("/search", files=upload, headers=forged).status_code == 200
            assert client.post("/queries", files={"photo": ("x.jpg", PHOTO + bytes(3_000_000))}).status_code == 201
            lines = client.post("/search?query=1", headers={"Accept": "application/x-ndjson"}).text.splitlines()
            assert len(lines) == 2
            assert client.get("/").headers["content-type"].startswith("text/html")
    assert set(names) == {"127.0.0.5"}


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="needs systemd")
def test_the_service_is_valid(tmp_path: Path) -> None:
    unit, program = tmp_path / "polyvoc.service", "/usr/local/bin/polyvoc"
    assert block("ini").count(program) == 1
    unit.write_text(block("ini").replace(program, "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
