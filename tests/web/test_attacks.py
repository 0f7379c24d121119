"""Hostile files, bodies, paths and names: each is refused in one line, and the server goes on."""

from __future__ import annotations

import io
import os
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from conftest import draw_scene
from polyvoc.index.writer import IndexWriter
from polyvoc.web.service import SentPhoto, file_name
from samples import unflushed
from servers import Served, jpeg, refused, serving, upload

__all__ = ["unflushed"]

PHOTO = jpeg(draw_scene(5))
SMALL = jpeg(draw_scene(6, (160, 120)))


@pytest.fixture(scope="module")
def served(_session_index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = Path(shutil.copytree(_session_index, tmp_path_factory.mktemp("attacked") / "photos.polyvoc"))
    with serving(path, write=True, max_upload=1, workers=1) as served:
        yield served


@pytest.fixture(autouse=True)
def lives(served: Served) -> Iterator[None]:
    """After each attack the server answers, and its collection is what it was."""
    yield
    assert served.search(query="1").status_code == 200


# --- files --------------------------------------------------------------------------------------------------------------------


def png(width: int, height: int, content: bytes = b"\0" * 100) -> bytes:
    """Give a PNG by its header, of any size, with a few pixels only."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")


def gif(width: int, height: int) -> bytes:
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\x00"
    return b"GIF89a" + screen + frame + b";"


def tiff(width: int, height: int) -> bytes:
    tags = [
        (256, 4, width),
        (257, 4, height),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 1),
        (273, 4, 8),
        (278, 4, height),
        (279, 4, 100),
    ]
    entries = b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
    return b"II*\0" + struct.pack("<I", 108) + bytes(100) + struct.pack("<H", len(tags)) + entries + bytes(4)


def webp(width: int, height: int) -> bytes:
    size = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + bytes(4) + size
    return b"RIFF" + struct.pack("<I", len(body)) + body


def bmp(width: int, height: int) -> bytes:
    return b"BM" + struct.pack("<IHHIIiiHHIIiiII", 154, 0, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0) + bytes(100)


def archive() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("photo.jpg", PHOTO)
    return out.getvalue()


SVG = b'<?xml version="1.0"?><svg xmlns="http://www.w3.org/2000/svg" width="99" height="99"><script>alert(1)</script></svg>'
FILES = {
    "one pixel high": (png(60_000, 1, bytes(60_001)), "too small: 60000 x 1 pixels"),
    "one pixel wide": (png(1, 60_000, bytes(120_000)), "too small: 1 x 60000 pixels"),
    "PNG bomb": (png(50_000, 50_000), "too large: 50000 x 50000 pixels"),
    "PNG bomb beyond 31 bits": (png(2**31 - 1, 2**31 - 1), None),
    "GIF bomb": (gif(50_000, 50_000), "too large: 50000 x 50000 pixels"),
    "TIFF bomb": (tiff(50_000, 50_000), "too large: 50000 x 50000 pixels"),
    "WebP bomb": (webp(16_000, 16_000), None),
    "BMP bomb": (bmp(50_000, 50_000), "too large: 50000 x 50000 pixels"),
    "PPM bomb": (b"P6 50000 50000 255\n", "too large: 50000 x 50000 pixels"),
    "no pixels": (png(0, 0), None),
    "truncated JPEG": (PHOTO[: len(PHOTO) // 2], "broken image"),
    "JPEG header alone": (PHOTO[:30], "broken image"),
    "truncated PNG": (png(400, 300)[:-30], "broken image"),
    "PNG without pixels": (png(400, 300, b""), None),
    "SVG": (SVG, "not an image of a known format"),
    "ZIP": (archive(), "not an image of a known format"),
    "PDF": (b"%PDF-1.7\n", "not an image of a known format"),
    "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n", "not an image of a known format"),
    "HTML": (b"<html><script>alert(1)</script></html>", "not an image of a known format"),
    "zeros": (bytes(100_000), "not an image of a known format"),
    "empty": (b"", "empty"),
    "without texture": (png(300, 200, bytes(301 * 200)), None),
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_in_one_line(served: Served, name: str) -> None:
    content, reason = FILES[name]
    before = served.get("/health").json()
    lines = [
        refused(served.client.post("/search", files={"photo": ("evil.jpg", content)}), 422),
        refused(served.client.post("/queries", files={"photo": ("evil.jpg", content)}), 422),
        served.client.post("/search/batch", files={"photos": ("evil.jpg", content)}).json()[0]["error"],
        served.client.post("/images", files={"photos": ("evil.jpg", content)}).json()["problems"][0]["reason"],
    ]
    for line in lines:
        assert line and "\n" not in line and (reason is None or reason in line)
    assert all(line.startswith("evil.jpg: ") for line in lines[:3])  # by the name that the sender knows
    after = served.get("/health").json()
    assert after["images"] == before["images"] and after["status"] == "ok"
    assert not any(served.service.settings.kept_photographs.glob("evil*"))


def test_what_takes_too_long_to_decode_is_refused(served: Served, _session_index: Path) -> None:
    out = io.BytesIO()
    Image.new("L", (9900, 9900)).save(out, "PNG")
    with serving(_session_index, decode_seconds=0.05, workers=1) as hasty:
        line = refused(hasty.client.post("/search", files={"photo": ("slow.png", out.getvalue())}), 422)
        assert line == "slow.png: cannot be decoded within the limits of time and memory; reduce it first"
        assert hasty.search(query="1").status_code == 200


def test_more_pixels_than_allowed_are_refused(served: Served, _session_index: Path) -> None:
    with serving(_session_index, max_pixels=1, workers=1) as small:
        line = refused(small.client.post("/search", files={"photo": ("x.png", png(1001, 1000))}), 422)
        assert "the limit is 1,000,000 in all" in line
        assert small.search(PHOTO).status_code == 200


# --- bodies -------------------------------------------------------------------------------------------------------------------

MEGA = 1_000_000


def post(headers: str, body: bytes = b"", path: str = "/search") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n".encode() + body


@pytest.mark.parametrize("path", ["/search", "/queries", "/search/batch", "/images"])
def test_a_length_above_the_limit_is_refused_at_once(served: Served, path: str) -> None:
    """Before a byte of the body has come."""
    for length in (8 * MEGA + 1, 10**15, 10**19):
        status, told = served.raw(post(f"Content-Length: {length}\r\n", path=path))
        assert status == 413 and "--max-upload" in told


@pytest.mark.parametrize("length", ["-1", "x", "1e9", "1, 2", "9" * 30, "+5", "0x10"])
def test_a_length_that_is_none_is_refused(served: Served, length: str) -> None:
    assert served.raw(post(f"Content-Length: {length}\r\n"))[0] in (400, 413)


@pytest.mark.parametrize("path", ["/search", "/queries"])
def test_a_body_without_length_is_counted(served: Served, path: str) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="photo"; filename="x.jpg"\r\n\r\n'
    chunks = [part, *[bytes(100_000)] * 11]
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    kind = "Content-Type: multipart/form-data; boundary=x\r\nTransfer-Encoding: chunked\r\n"
    status, told = served.raw(post(kind, body, path))
    assert status == 413 and "more than 1 megabytes" in told


def test_a_length_and_chunks_do_not_smuggle(served: Served) -> None:
    smuggled = b"0\r\n\r\nDELETE /images/1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    served.raw(post(f"Content-Length: {len(smuggled)}\r\nTransfer-Encoding: chunked\r\n", smuggled))
    assert served.get("/images/1").status_code == 200


def test_a_body_that_does_not_come_is_not_awaited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.web.security.BODY_SECONDS", 0.05)
    start = b'--x\r\nContent-Disposition: form-data; name="photo"; filename="x.jpg"\r\n\r\n'
    kind = "Content-Type: multipart/form-data; boundary=x\r\nContent-Length: 5000\r\n"
    status, told = served.raw(post(kind, start))
    assert status == 408 and "did not arrive within" in told


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("multipart/form-data", b"anything", {400}),
        ("multipart/form-data; boundary=", b"anything", {400}),
        ("multipart/form-data; boundary=x", b"no boundary here", {400, 422}),
        ("multipart/form-data; boundary=x", b"--x\r\n\r\n\r\n--x--\r\n", {400}),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: nonsense\r\n\r\na\r\n--x--\r\n", {400}),
        (
            "multipart/form-data; boundary=x",
            b'--x\r\nContent-Disposition: form-data; name="photo"; filename="x"\r\n\r\ncut',
            {400, 422},
        ),
        ("multipart/form-data; boundary=" + "x" * 3000, b"--" + b"x" * 3000, {400, 422}),
        ("application/json", b'{"photo": "/etc/passwd"}', {422}),
        ("application/x-www-form-urlencoded", b"photo=/etc/passwd", {422}),
        ("application/x-www-form-urlencoded", b"photo=" + b"x" * 500_000, {422, 400}),
        ("text/plain", b"photo", {422}),
        ("image/jpeg", SMALL, {422}),
        ("", b"", {422}),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the parser leaves a cut file to be collected
def test_a_body_that_is_no_form_is_refused(served: Served, kind: str, body: bytes, status: set[int]) -> None:
    response = served.client.post("/search", content=body, headers={"Content-Type": kind})
    assert refused(response, response.status_code) and response.status_code in status


def parts(count: int, name: Callable[[int], str], filename: str = "") -> bytes:
    file = f'; filename="{filename}"' if filename else ""
    made = (f'--x\r\nContent-Disposition: form-data; name="{name(number)}"{file}\r\n\r\n1\r\n' for number in range(count))
    return ("".join(made) + "--x--\r\n").encode()


@pytest.mark.parametrize("filename", ["", "x.jpg"])
@pytest.mark.parametrize("path", ["/search", "/search/batch", "/images"])
def test_thousands_of_parts_are_refused(served: Served, path: str, filename: str) -> None:
    for body in (parts(5000, lambda number: f"f{number}", filename), parts(5000, lambda _: "photos", filename)):
        headers = {"Content-Type": "multipart/form-data; boundary=x"}
        response = served.client.post(path, content=body, headers=headers)
        assert response.status_code in (400, 422), response.text


def test_huge_names_in_a_part_are_refused(served: Served) -> None:
    headers = {"Content-Type": "multipart/form-data; boundary=x"}
    response = served.client.post("/search", content=parts(1, lambda _: "n" * 500_000), headers=headers)
    assert response.status_code in (400, 422)
    many = b"--x\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(20_000)) + b"\r\n\r\n--x--\r\n"
    assert served.client.post("/search", content=many, headers=headers).status_code in (400, 422)


def test_huge_headers_are_refused(served: Served) -> None:
    assert served.raw(post("X-" + "n" * 200_000 + ": 1\r\n"))[0] in (400, 431)
    assert served.raw(post("".join(f"X-{number}: {'v' * 100}\r\n" for number in range(5000))))[0] in (400, 431)
    assert served.raw(b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")[0] in (400, 414)


def test_what_is_not_http_is_refused(served: Served) -> None:
    for content in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET / HTTP/9.9\r\nConnection: close\r\n\r\n",
    ):
        assert served.raw(content)[0] in (0, 400, 421, 505)


# --- paths --------------------------------------------------------------------------------------------------------------------

PATHS = [
    "/page/../guard.py",
    "/page/%2e%2e/guard.py",
    "/page/%2e%2e%2fguard.py",
    "/page/..%2fguard.py",
    "/page/..%5cguard.py",
    "/page/....//guard.py",
    "/page/%252e%252e/guard.py",
    "/page//etc/passwd",
    "/page/%2fetc%2fpasswd",
    "/page/..%c0%afguard.py",
    "/page/%00",
    "/page/app.js%00.html",
    "/page/" + "../" * 30 + "etc/passwd",
    "/page/" + "%2e%2e/" * 30 + "etc/passwd",
    "/page",
    "/page/",
    "/page/.",
    "//etc/passwd",
    "/../../etc/passwd",
    "/etc/passwd",
    "/images/..%2f..%2fetc%2fpasswd/file",
    "/images/%2fetc%2fpasswd/thumbnail",
    "/images/1%2f..%2f2",
    "/images/1;/thumbnail",
    "/images/file:%2f%2f%2fetc%2fpasswd",
    "/queries/..%2f..%2fetc%2fpasswd/picture",
    "/queries/%2fetc%2fpasswd",
    "http://evil.example/etc/passwd",
    "/page/" + "x" * 5000,
]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leaves_the_page(served: Served, path: str) -> None:
    status, told = served.raw(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
    assert status in (307, 400, 404, 405, 422), told
    assert "root:" not in told and "import" not in told and "DNS rebinding" not in told


@pytest.mark.parametrize(
    "query", ["/etc/passwd", "file:///etc/passwd", "http://127.0.0.1/", "../../x.jpg", "1/../2", "~/x.jpg"]
)
def test_a_query_is_no_path_and_no_address(served: Served, query: str) -> None:
    refused(served.search(query=query), 404)
    refused(served.get("/explain", params={"query": query, "image": 1}), 404)
    refused(served.search(url=query), 422)


# --- the files of the collection ----------------------------------------------------------------------------------------------


HOW = ("gone", "link", "endless", "pipe", "folder", "other", "same size")
DISGUISED = ("page.html", "script.js", "drawing.svg", "plain")
TOUCHED = "touched.jpg"


@pytest.fixture(scope="module")
def own(vocabularies: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, Path]]]:
    """A server of photographs whose files may be changed, by name."""
    folder = tmp_path_factory.mktemp("own")
    photos = {name: folder / name for name in (*(f"{how}.jpg" for how in HOW), *DISGUISED, TOUCHED)}
    for seed, path in enumerate(photos.values()):
        path.write_bytes(jpeg(draw_scene(seed, (160, 120))))
    with IndexWriter.open(folder / "own.polyvoc", vocabularies) as writer:
        writer.update(list(photos.values()))
    with serving(folder / "own.polyvoc", originals=True, workers=1) as served:
        yield served, photos


def number_of(served: Served, name: str) -> int:
    (row,) = served.get("/images", params={"find": f"/{name}"}).json()["images"]
    return int(row["image"])


def replace(photo: Path, how: str) -> None:
    before = photo.read_bytes()
    photo.unlink()
    if how == "link":
        photo.symlink_to("/etc/passwd")
    elif how == "endless":
        photo.symlink_to("/dev/zero")
    elif how == "pipe":
        os.mkfifo(photo)
    elif how == "folder":
        photo.mkdir()
    elif how == "other":
        photo.write_bytes(SMALL)
    elif how == "same size":
        photo.write_bytes(before[:-1] + b"x")


@pytest.mark.parametrize("how", HOW)
def test_a_file_that_was_replaced_is_not_served(own: tuple[Served, dict[str, Path]], how: str) -> None:
    served, photos = own
    image = number_of(served, f"{how}.jpg")
    assert served.get(f"/images/{image}").json()["available"]
    replace(photos[f"{how}.jpg"], how)
    assert served.get(f"/images/{image}").json()["available"] is False
    for path in (f"/images/{image}/file", f"/images/{image}/thumbnail"):
        told = served.get(path)
        assert "is gone or has changed" in refused(told, 404) and "root:" not in told.text
    assert served.search(query=image).json()["hits"][0]["image"] == image  # what is indexed stays


def test_a_file_that_was_only_touched_is_served(own: tuple[Served, dict[str, Path]]) -> None:
    served, photos = own
    os.utime(photos[TOUCHED], (1, 1))
    assert served.get(f"/images/{number_of(served, TOUCHED)}/file").content == photos[TOUCHED].read_bytes()


@pytest.mark.parametrize("name", DISGUISED)
def test_a_photograph_is_never_a_page_or_a_script(own: tuple[Served, dict[str, Path]], name: str) -> None:
    """Whatever its file is called."""
    told = own[0].get(f"/images/{number_of(own[0], name)}/file")
    assert told.status_code == 200 and told.headers["content-type"] == "application/octet-stream"


SECRETS = (b"SECRET", b"Exif", b"GPS", b"http://ns.adobe.com/xap", b"ICC_PROFILE", b"Adobe", b"Ducky")


def revealing() -> bytes:
    """A photograph that tells where and by whom it was shot, in every way a JPEG can."""
    image = draw_scene(8)
    exif = image.getexif()
    exif[0x010F], exif[0x013B], exif[0x8298] = "SECRET maker", "SECRET artist", "SECRET rights"
    place = exif.get_ifd(0x8825)
    place[1], place[2] = "N", (IFDRational(48), IFDRational(51), IFDRational(30))
    place[29] = "SECRET date"
    return jpeg(image, exif=exif, icc_profile=b"SECRET profile" * 20, comment=b"SECRET comment", xmp=b"<x>SECRET</x>")


def test_pictures_carry_no_metadata(served: Served) -> None:
    photo = revealing()
    assert all(secret in photo for secret in (b"SECRET", b"Exif", b"ICC_PROFILE", b"http://ns.adobe.com/xap"))
    kept = served.client.post("/queries", files={"photo": ("x.jpg", photo)}).json()["query"]
    added = served.client.post("/images", files={"photos": ("x.jpg", photo)}).json()["added"][0]["image"]
    for side in (160, 320, 640, 1600):
        for path in (f"/queries/{kept}/picture", f"/images/{added}/thumbnail"):
            picture = served.get(path, params={"side": side}).content
            assert not any(secret in picture for secret in SECRETS)
            shown = Image.open(io.BytesIO(picture))
            assert not shown.getexif() and set(shown.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    served.client.delete(f"/images/{added}")


# --- names of files -----------------------------------------------------------------------------------------------------------

EVIL_NAMES = [
    "../../x.jpg",
    "..\\..\\x.jpg",
    "a/b.jpg",
    "/etc/cron.d/x",
    "C:\\Windows\\x.jpg",
    "nul\0byte.jpg",
    "n" * 300 + ".jpg",
    "雪" * 300 + ".jpg",
    "con",
    "con.jpg",
    ".hidden",
    ".hidden.jpg",
    "..",
    ".",
    "...jpg",
    "x.php",
    "x.jpg.php",
    "x.jpg/",
    "x.html",
    "x.svg",
    "  spaces  .jpg",
    "-rf.jpg",
    "$(reboot).jpg",
    "`id`;|&.jpg",
    "new\nline\r\n.jpg",
    "\u202egpj.exe",
    "Пейзаж ☃.jpeg",
    "%2e%2e%2fx.jpg",
    "*?<>:|.jpg",
    "\udcff.jpg",
]


@pytest.mark.parametrize("name", EVIL_NAMES, ids=ascii)
def test_names_of_files_are_harmless(name: str) -> None:
    made = file_name(SentPhoto(name, PHOTO))
    assert made == Path(made).name and made not in (".", "..")
    assert not made.startswith((".", "-", " ")) and made.isprintable()
    assert Path(made).suffix in (".jpg", ".jpeg") and len(os.fsencode(made)) <= 255
    assert not set(made) & set('/\\\0\n\r:*?"<>|$`;&%')
    assert Path(made).stem.lower() not in ("con", "nul", "aux", "prn")


@pytest.mark.parametrize("name", [name for name in EVIL_NAMES if "\udcff" not in name], ids=ascii)
def test_files_land_in_their_folder_only(served: Served, name: str) -> None:
    folder = served.service.settings.kept_photographs
    around = set(folder.parent.iterdir()) - {folder}
    told = served.client.post("/images", files={"photos": (name, SMALL)})
    assert told.status_code in (201, 400, 422), told.text
    for added in told.json().get("added", []):
        path = Path(added["path"])
        assert path.parent == folder and path.resolve() == path and path.read_bytes() == SMALL
        assert path.suffix in (".jpg", ".jpeg") and path.stat().st_mode & 0o111 == 0
        assert served.client.delete(f"/images/{added['image']}").status_code == 200
    assert set(folder.parent.iterdir()) - {folder} == around
    assert all(path.is_file() for path in folder.iterdir())


def test_another_of_the_same_name_does_not_replace(served: Served) -> None:
    """Nor does the same name with different content make one image of two."""
    one, other = (
        served.client.post("/images", files={"photos": ("same.jpg", photo)}).json()["added"][0] for photo in (PHOTO, SMALL)
    )
    assert one["path"] != other["path"] and one["image"] != other["image"]
    assert (Path(one["path"]).read_bytes(), Path(other["path"]).read_bytes()) == (PHOTO, SMALL)
    again = served.client.post("/images", files={"photos": ("same.jpg", PHOTO)}).json()["added"][0]
    assert again == one
    for added in (one, other):
        served.client.delete(f"/images/{added['image']}")


def test_an_index_that_is_gone_is_not_made_anew(vocabularies: Any, tmp_path: Path, photographs: Path) -> None:
    path = tmp_path / "gone.polyvoc"
    with IndexWriter.open(path, vocabularies) as writer:
        writer.update([photographs / "wall-a.jpg"])
    with serving(path, write=True, workers=1) as served:
        path.rename(tmp_path / "moved.polyvoc")
        assert served.client.post("/images", files={"photos": upload(photographs / "wall-b.jpg")}).status_code >= 400
        assert served.client.delete("/images/1").status_code >= 400
        assert not path.exists()
