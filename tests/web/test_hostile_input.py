"""Hostile files, bodies, paths and names: each is rejected in one line, and the server keeps running."""

from __future__ import annotations

import io
import itertools
import os
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
from polyvoc.web.service import Upload
from servers import Served, jpeg, refused, serving

SETTINGS = {"write": True, "max_upload": 1, "workers": 1}
PHOTO = jpeg(draw_scene(5))
SMALL = jpeg(draw_scene(6, (160, 120)))


@pytest.fixture(autouse=True)
def keeps_running(served: Served) -> Iterator[None]:
    yield
    assert served.search(query="1").status_code == 200


def png(width: int, height: int, content: bytes = b"\0" * 100) -> bytes:
    """Return a PNG that claims any size, with a few pixels only."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(content)) + chunk(b"IEND", b"")


def gif(width: int, height: int) -> bytes:
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    frame = b"," + struct.pack("<HHHHB", 0, 0, width, height, 0) + b"\x02\x02\x44\x01\x00"
    return b"GIF89a" + screen + frame + b";"


def tiff(width: int, height: int) -> bytes:
    size = [(256, 4, width), (257, 4, height), (278, 4, height)]
    tags = sorted([*size, (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (279, 4, 100)])
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
UNKNOWN, BROKEN, BOMB = "not an image of a known format", "broken image", "too large: 50000 x 50000 pixels"
FILES = {
    "one pixel high": (png(60_000, 1, bytes(60_001)), "too small: 60000 x 1 pixels"),
    "one pixel wide": (png(1, 60_000, bytes(120_000)), "too small: 1 x 60000 pixels"),
    "PNG bomb": (png(50_000, 50_000), BOMB),
    "PNG bomb beyond 31 bits": (png(2**31 - 1, 2**31 - 1), ""),
    "GIF bomb": (gif(50_000, 50_000), BOMB),
    "TIFF bomb": (tiff(50_000, 50_000), BOMB),
    "WebP bomb": (webp(16_000, 16_000), ""),
    "BMP bomb": (bmp(50_000, 50_000), BOMB),
    "PPM bomb": (b"P6 50000 50000 255\n", BOMB),
    "no pixels": (png(0, 0), ""),
    "truncated JPEG": (PHOTO[: len(PHOTO) // 2], BROKEN),
    "JPEG header alone": (PHOTO[:30], BROKEN),
    "truncated PNG": (png(400, 300)[:-30], BROKEN),
    "PNG without pixels": (png(400, 300, b""), ""),
    "SVG": (SVG, UNKNOWN),
    "ZIP": (archive(), UNKNOWN),
    "PDF": (b"%PDF-1.7\n", UNKNOWN),
    "EPS": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100 100\n", UNKNOWN),
    "HTML": (b"<html><script>alert(1)</script></html>", UNKNOWN),
    "zeros": (bytes(100_000), UNKNOWN),
    "empty": (b"", "empty"),
    "without texture": (png(300, 200, bytes(301 * 200)), ""),
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_rejected_in_one_line(served: Served, name: str) -> None:
    content, reason = FILES[name]
    before = served.get("/health").json()
    lines = [
        refused(served.post("/search", files={"photo": ("evil.jpg", content)}), 422),
        refused(served.post("/queries", files={"photo": ("evil.jpg", content)}), 422),
        served.post("/search/batch", files={"photos": ("evil.jpg", content)}).json()[0]["error"],
        served.add(content, "evil.jpg").json()["problems"][0]["reason"],
    ]
    assert all(line and "\n" not in line and reason in line for line in lines)
    assert all(line.startswith("evil.jpg: ") for line in lines[:3])  # by the name of the upload
    after = served.get("/health").json()
    assert after["images"] == before["images"] and after["status"] == "ok"
    assert not any(served.service.settings.photo_folder.glob("evil*"))


def test_limits_of_time_and_pixels(_session_index: Path) -> None:
    out = io.BytesIO()
    Image.new("L", (9900, 9900)).save(out, "PNG")
    with serving(_session_index, decode_seconds=0.05, workers=1) as hasty:
        line = refused(hasty.post("/search", files={"photo": ("slow.png", out.getvalue())}), 422)
        assert line == "slow.png: takes more than 0.05 s to decode; reduce it first"
        assert hasty.search(query="1").status_code == 200
    with serving(_session_index, max_pixels=1, workers=1) as small:
        line = refused(small.post("/search", files={"photo": ("x.png", png(1001, 1000))}), 422)
        assert "the limit is 1,000,000 in all" in line
        assert small.search(PHOTO).status_code == 200


FORM = "multipart/form-data; boundary=x"
PART = b'--x\r\nContent-Disposition: form-data; name="photo"; filename="x.jpg"\r\n\r\n'


def post(headers: str, body: bytes = b"", path: str = "/search") -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n{headers}\r\n".encode() + body


@pytest.mark.parametrize(("path", "megabytes"), [("/search", 1), ("/queries", 1), ("/search/batch", 8), ("/images", 8)])
def test_the_length_of_a_body_is_limited(served: Served, path: str, megabytes: int) -> None:
    for length in (8_000_001, 10**15, 10**19):  # rejected before the body
        status, response = served.raw(post(f"Content-Length: {length}\r\n", path=path))
        assert status == 413 and "--max-upload" in response
    for invalid in ("-1", "x", "1e9", "1, 2", "9" * 30, "+5", "0x10"):
        assert served.raw(post(f"Content-Length: {invalid}\r\n", path=path))[0] in (400, 413)
    chunks = [PART, *[bytes(100_000)] * (10 * megabytes + 1)]  # without a length
    body = b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"
    status, response = served.raw(post(f"Content-Type: {FORM}\r\nTransfer-Encoding: chunked\r\n", body, path))
    assert status == 413 and f"larger than {megabytes} megabytes" in response


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("multipart/form-data", b"anything", {400}),
        ("multipart/form-data; boundary=", b"anything", {400}),
        (FORM, b"no boundary here", {400, 422}),
        (FORM, b"--x\r\n\r\n\r\n--x--\r\n", {400}),
        (FORM, b"--x\r\nContent-Disposition: nonsense\r\n\r\na\r\n--x--\r\n", {400}),
        (FORM, PART + b"cut", {400, 422}),
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
def test_a_body_that_is_no_form_is_rejected(served: Served, kind: str, body: bytes, status: set[int]) -> None:
    response = served.post("/search", content=body, headers={"Content-Type": kind})
    assert refused(response, response.status_code) and response.status_code in status


def parts(count: int, name: Callable[[int], str], filename: str = "") -> bytes:
    file = f'; filename="{filename}"' if filename else ""
    made = (f'--x\r\nContent-Disposition: form-data; name="{name(number)}"{file}\r\n\r\n1\r\n' for number in range(count))
    return ("".join(made) + "--x--\r\n").encode()


@pytest.mark.parametrize("path", ["/search", "/search/batch", "/images"])
def test_thousands_of_parts_are_rejected(served: Served, path: str) -> None:
    for name, filename in itertools.product((lambda number: f"f{number}", lambda _: "photos"), ("", "x.jpg")):
        response = served.post(path, content=parts(5000, name, filename), headers={"Content-Type": FORM})
        assert response.status_code in (400, 422), response.text


def test_huge_headers_are_rejected(served: Served) -> None:
    """Of a part of a form, and of the request."""
    many = b"--x\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(20_000)) + b"\r\n\r\n--x--\r\n"
    for body in (parts(1, lambda _: "n" * 500_000), many):
        assert served.post("/search", content=body, headers={"Content-Type": FORM}).status_code in (400, 422)
    assert served.raw(post("X-" + "n" * 200_000 + ": 1\r\n"))[0] in (400, 431)
    assert served.raw(post("".join(f"X-{number}: {'v' * 100}\r\n" for number in range(5000))))[0] in (400, 431)
    assert served.raw_get("/" + "x" * 200_000)[0] in (400, 414)


def test_what_is_not_http_is_rejected(served: Served) -> None:
    for content in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"nonsense", b"GET / HTTP/9.9\r\nConnection: close"):
        assert served.raw(content + b"\r\n\r\n")[0] in (0, 400, 421, 505)


PATHS = [
    *("/page", "/page/", "/page/.", "/page/%00", "/page/app.js%00.html", "/page/" + "x" * 5000, "/page//etc/passwd"),
    *("/page/../security.py", "/page/%2e%2e/security.py", "/page/%2e%2e%2fsecurity.py", "/page/..%2fsecurity.py"),
    *("/page/..%5csecurity.py", "/page/....//security.py", "/page/%252e%252e/security.py", "/page/..%c0%afsecurity.py"),
    *("/page/" + "../" * 30 + "etc/passwd", "/page/" + "%2e%2e/" * 30 + "etc/passwd", "/page/%2fetc%2fpasswd"),
    *("//etc/passwd", "/../../etc/passwd", "/etc/passwd", "http://evil.example/etc/passwd"),
    *("/images/..%2f..%2fetc%2fpasswd/file", "/images/%2fetc%2fpasswd/thumbnail", "/images/file:%2f%2f%2fetc%2fpasswd"),
    *("/images/1%2f..%2f2", "/images/1;/thumbnail", "/queries/..%2f..%2fetc%2fpasswd/picture", "/queries/%2fetc%2fpasswd"),
]


@pytest.mark.parametrize("path", PATHS)
def test_no_path_leads_out_of_the_page(served: Served, path: str) -> None:
    status, response = served.raw_get(path)
    assert status in (307, 400, 404, 405, 422), response
    assert "root:" not in response and "import" not in response


HOW: dict[str, Callable[[Path, bytes], object]] = {  # what replaces a file, given its content
    "gone": lambda path, content: None,
    "link": lambda path, content: path.symlink_to("/etc/passwd"),
    "endless": lambda path, content: path.symlink_to("/dev/zero"),
    "pipe": lambda path, content: os.mkfifo(path),
    "folder": lambda path, content: path.mkdir(),
    "other": lambda path, content: path.write_bytes(SMALL),
    "same size": lambda path, content: path.write_bytes(content[:-1] + b"x"),
}
DISGUISED = ("page.html", "script.js", "drawing.svg", "plain")
TOUCHED = "touched.jpg"


@pytest.fixture(scope="module")
def own(vocabularies: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, dict[str, Path]]]:
    """A server, and its photographs, which tests may change, by name."""
    folder = tmp_path_factory.mktemp("own")
    photos = {name: folder / name for name in (*(f"{how}.jpg" for how in HOW), *DISGUISED, TOUCHED)}
    for seed, path in enumerate(photos.values()):
        path.write_bytes(jpeg(draw_scene(seed, (160, 120))))
    with IndexWriter.open(folder / "own.polyvoc", vocabularies) as writer:
        writer.update(list(photos.values()))
    with serving(folder / "own.polyvoc", originals=True, workers=1) as served:
        yield served, photos


def image_id(served: Served, name: str) -> int:
    (row,) = served.get("/images", params={"find": f"/{name}"}).json()["images"]
    return int(row["image"])


@pytest.mark.parametrize("how", HOW)
def test_a_file_that_was_replaced_is_not_served(own: tuple[Served, dict[str, Path]], how: str) -> None:
    served, photos = own
    image, photo = image_id(served, f"{how}.jpg"), photos[f"{how}.jpg"]
    assert served.get(f"/images/{image}").json()["available"]
    content = photo.read_bytes()
    photo.unlink()
    HOW[how](photo, content)
    assert served.get(f"/images/{image}").json()["available"] is False
    for path in (f"/images/{image}/file", f"/images/{image}/thumbnail"):
        response = served.get(path)
        assert "is gone or has changed" in refused(response, 404) and "root:" not in response.text
    assert served.search(query=image).json()["hits"][0]["image"] == image  # it is still indexed


def test_a_touched_file_is_served_and_none_as_a_page_or_a_script(own: tuple[Served, dict[str, Path]]) -> None:
    served, photos = own
    os.utime(photos[TOUCHED], (1, 1))
    assert served.get(f"/images/{image_id(served, TOUCHED)}/file").content == photos[TOUCHED].read_bytes()
    for name in DISGUISED:
        response = served.get(f"/images/{image_id(served, name)}/file")
        assert response.status_code == 200 and response.headers["content-type"] == "application/octet-stream"


SECRETS = (b"SECRET", b"Exif", b"GPS", b"http://ns.adobe.com/xap", b"ICC_PROFILE", b"Adobe", b"Ducky")


def revealing() -> bytes:
    """Return a photograph with place and author in every kind of metadata that a JPEG can have."""
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
    stored, added = served.store(photo), served.add(photo).json()["added"][0]["image"]
    for side in (160, 320, 640, 1600):
        for path in (f"/queries/{stored}/picture", f"/images/{added}/thumbnail"):
            content = served.get(path, params={"side": side}).content
            assert not any(secret in content for secret in SECRETS)
            picture = Image.open(io.BytesIO(content))
            assert not picture.getexif() and set(picture.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}
    served.delete(added)


EVIL_NAMES = [
    *("../../x.jpg", "..\\..\\x.jpg", "a/b.jpg", "/etc/cron.d/x", "C:\\Windows\\x.jpg", "%2e%2e%2fx.jpg", "..", "."),
    *("nul\0byte.jpg", "n" * 300 + ".jpg", "雪" * 300 + ".jpg", "con", "con.jpg", ".hidden", ".hidden.jpg", "...jpg"),
    *("x.php", "x.jpg.php", "x.jpg/", "x.html", "x.svg", "  spaces  .jpg", "-rf.jpg", "$(reboot).jpg", "`id`;|&.jpg"),
    *("new\nline\r\n.jpg", "\u202egpj.exe", "Пейзаж ☃.jpeg", "*?<>:|.jpg", "\udcff.jpg"),
]


@pytest.mark.parametrize("name", EVIL_NAMES, ids=ascii)
def test_file_names_are_harmless(name: str) -> None:
    made = Upload(name, PHOTO).safe_file_name
    assert made == Path(made).name and made not in (".", "..")
    assert not made.startswith((".", "-", " ")) and made.isprintable()
    assert Path(made).suffix in (".jpg", ".jpeg") and len(os.fsencode(made)) <= 255
    assert not set(made) & set('/\\\0\n\r:*?"<>|$`;&%')
    assert Path(made).stem.lower() not in ("con", "nul", "aux", "prn")


@pytest.mark.parametrize("name", [name for name in EVIL_NAMES if "\udcff" not in name], ids=ascii)
def test_files_are_written_to_their_folder_only(served: Served, name: str) -> None:
    folder = served.service.settings.photo_folder
    around = set(folder.parent.iterdir()) - {folder}
    response = served.add(SMALL, name)
    assert response.status_code in (201, 400, 422), response.text
    for added in response.json().get("added", []):
        path = Path(added["path"])
        assert path.parent == folder and path.resolve() == path and path.read_bytes() == SMALL
        assert path.suffix in (".jpg", ".jpeg") and path.stat().st_mode & 0o111 == 0
        assert served.delete(added["image"]).status_code == 200
    assert set(folder.parent.iterdir()) - {folder} == around
    assert all(path.is_file() for path in folder.iterdir())
