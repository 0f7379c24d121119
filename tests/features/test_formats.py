"""Formats of phones and cameras: HEIC, JPEG XL, and the preview in RAW files, by the packages that read them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pillow_jxl  # noqa: F401 - registers its format
import pytest
from PIL import Image

from commands import answer, run
from conftest import draw_scene, view_of
from polyvoc.errors import DecoderError, ImageError
from polyvoc.features.decode import Decoders
from polyvoc.features.pixels import PixelLimits, _jxl_size, decode
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index
from polyvoc.storage import folders
from polyvoc.vocabulary.vocabulary import Vocabulary
from raw_files import dng

SIZE = (200, 120)
ORIENTATION = 0x0112


@pytest.fixture(scope="module", autouse=True)
def _writers() -> None:
    pillow_heif.register_heif_opener()


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    with Decoders(1) as decoders:
        yield decoders


@pytest.fixture(scope="module")
def scene() -> Image.Image:
    return draw_scene(5, SIZE)


def encode(image: Image.Image, form: str, **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def deep_heic(image: Image.Image) -> bytes:
    """Return a HEIC of 10 bits, made from 16."""
    values = np.asarray(image).astype(np.uint16) * 257
    out = io.BytesIO()
    pillow_heif.from_bytes("RGB;16", image.size, values.tobytes()).save(out, quality=95)
    return out.getvalue()


def deep_png(image: Image.Image) -> bytes:
    """Return a grey PNG of 16 bits."""
    return encode(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), "PNG")


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[ORIENTATION] = orientation
    return tags.tobytes()


FORMATS: dict[str, Callable[[Image.Image], bytes]] = {
    "heic": lambda image: encode(image, "HEIF", quality=95),
    "heic of several": lambda image: encode(image, "HEIF", quality=95, save_all=True, append_images=[draw_scene(6, SIZE)]),
    "heic of 10 bits": deep_heic,
    "heic with alpha": lambda image: encode(image.convert("RGBA"), "HEIF", quality=95),
    "grey heic": lambda image: encode(image.convert("L"), "HEIF", quality=95),
    "jxl": lambda image: encode(image, "JXL", quality=97),
    "jxl in a container": lambda image: encode(image, "JXL", quality=97, exif=exif(6)),  # the orientation of a JXL is not in it
    "lossless jxl": lambda image: encode(image, "JXL", lossless=True),
    "grey jxl": lambda image: encode(image.convert("L"), "JXL", quality=97),
    "png of 16 bits": deep_png,
    "animation": lambda image: encode(image.convert("L"), "GIF", save_all=True, append_images=[draw_scene(6).convert("L")]),
    "raw": lambda image: dng(encode(image, "JPEG", quality=95), image.size),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_read_in_a_process_of_its_own(name: str, scene: Image.Image, decoders: Decoders) -> None:
    data = FORMATS[name](scene)
    read = decoders.grey(data, 1024)
    assert (read.width, read.height, read.pixels.shape) == (*SIZE, SIZE[::-1])
    assert np.abs(read.pixels.astype(int) - np.asarray(scene.convert("L"))).mean() < 2
    assert decoders.rgb(data, 100).shape == (60, 100, 3)
    assert decoders.thumbnail(data, 64).startswith(b"\xff\xd8")


@pytest.mark.parametrize("orientation", [3, 6, 8])
@pytest.mark.parametrize("form", ["HEIF", "RAW", "RAW, and its preview"])
def test_photographs_are_turned_once(form: str, orientation: int, scene: Image.Image, decoders: Decoders) -> None:
    turn = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_270, 8: Image.Transpose.ROTATE_90}[orientation]
    if form == "HEIF":
        image = scene.copy()
        image.getexif()[ORIENTATION] = orientation
        data = encode(image, "HEIF", quality=95)
    else:
        own = {"exif": exif(orientation)} if form != "RAW" else {}
        data = dng(encode(scene, "JPEG", quality=95, **own), SIZE, orientation)
    read = decoders.grey(data, 1024)
    upright = np.asarray(scene.transpose(turn).convert("L"))
    assert (read.width, read.height) == upright.shape[::-1]
    assert np.abs(read.pixels.astype(int) - upright).mean() < 3


# -- what cannot be read


@pytest.mark.parametrize("name", FORMATS)
def test_broken_files_are_one_line_and_crash_nothing(name: str, scene: Image.Image, decoders: Decoders) -> None:
    data = FORMATS[name](scene)
    for cut in (40, len(data) // 10, len(data) // 2):
        with pytest.raises(ImageError, match=r"cut: (broken image|a RAW file without|not an image)") as caught:
            decoders.grey(data[:cut], 1024, name="cut")
        assert not isinstance(caught.value, DecoderError) and "\n" not in str(caught.value)
    assert decoders.grey(data, 1024).width == SIZE[0]


def test_a_raw_file_without_a_preview_is_named_as_such(decoders: Decoders) -> None:
    with pytest.raises(ImageError, match=r"a RAW file without a preview that can be read \(No thumbnail in file\); convert it"):
        decoders.grey(dng(b"", (0, 0)), 1024)


@pytest.mark.parametrize("name", ["heic", "jxl", "raw"])
def test_pixels_are_limited_before_anything_is_decoded(name: str, scene: Image.Image, decoders: Decoders) -> None:
    with pytest.raises(ImageError, match="too large: 200 x 120 pixels, the limit is 20,000 in all"):
        decoders.grey(FORMATS[name](scene), 1024, 20_000)


def test_the_size_of_a_jxl_is_that_of_its_header() -> None:
    rng = np.random.default_rng(0)
    for size in ((8, 8), (256, 256), (256, 320), (31, 77), (640, 480), (1920, 1080), (3000, 17), (17, 9000), (500, 1000)):
        image = Image.fromarray(rng.integers(0, 256, size[::-1], np.uint8))
        for options in ({}, {"exif": exif(1)}):
            assert _jxl_size(encode(image, "JXL", effort=1, **options)) == size
    large = 0b11 << 1 | (0x3FFFFFFE << 3) | (0b11 << 36) | (0x3FFFFFFE << 38)
    assert _jxl_size(b"\xff\x0a" + large.to_bytes(10, "little")) == ((1 << 30) - 1, (1 << 30) - 1)
    for broken in (b"", b"\0\0\0\x0cJXL \r\n\x87\n", b"\0\0\0\x0cJXL \r\n\x87\n" + b"\0\0\0\1jxl " + bytes(8)):
        with pytest.raises(ValueError, match="no codestream"):
            _jxl_size(broken)


@pytest.mark.parametrize(("package", "name"), [("pillow_jxl", "jxl"), ("rawpy", "raw")])
def test_without_the_extra_its_name_is_given(
    package: str, name: str, scene: Image.Image, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImageError, match=r"to read .*: pip install 'polyvoc\[formats\]'"):
        decode(io.BytesIO(FORMATS[name](scene)), "L", PixelLimits(1024, 32, 10**6))


# -- in an index


def test_photographs_of_all_kinds_are_indexed_and_found(
    vocabularies: tuple[Vocabulary, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the others counted, by kind or with the reason."""
    folder = tmp_path / "photos"
    folder.mkdir()
    suffixes = {"heic": "HEIC", "heic of several": "heif", "heic of 10 bits": "hif", "jxl": "jxl", "raw": "DNG",
                "png of 16 bits": "png", "animation": "gif"}  # fmt: skip
    scenes = {kind: draw_scene(40 + number) for number, kind in enumerate(suffixes)}
    for kind, suffix in suffixes.items():
        (folder / f"{kind}.{suffix}").write_bytes(FORMATS[kind](scenes[kind]))
    (folder / "broken.heic").write_bytes(FORMATS["heic"](scenes["heic"])[:3000])
    (folder / "plain.heic").write_bytes(encode(Image.new("RGB", SIZE, "white"), "HEIF"))
    (folder / "film.mp4").write_bytes(b"x")
    (folder / "._heic.HEIC").write_bytes(b"x")
    index = tmp_path / "index"
    with IndexWriter.open(index, vocabularies) as writer:
        report = writer.update([folder])
    assert (report.added, report.skipped) == (7, {"MP4": 1})
    reasons = {Path(problem.path).name: problem.reason for problem in report.problems}
    assert reasons.keys() == {"broken.heic", "plain.heic"}
    assert "broken image" in reasons["broken.heic"] and "too plain to recognise" in reasons["plain.heic"]
    with Index.open(index) as opened:
        for kind, suffix in suffixes.items():
            query = tmp_path / "query.png"
            view_of(scenes[kind], "c").save(query)
            assert opened.search(query)[0].path == str(folder / f"{kind}.{suffix}")
        assert opened.search(folder / "heic.HEIC")[0].path == str(folder / "heic.HEIC")

    monkeypatch.chdir(tmp_path)
    facts, text = answer("info", "--index", index), run("info", "--index", index).stdout
    assert facts["skipped"] == {"MP4": 1} == facts["folders"][0]["skipped"]
    assert "skipped       1 MP4\n" in text and "photos/plain.heic: too plain to recognise" in text
    assert "photos: 7 photographs" in text


def test_kinds_that_an_extra_reads_are_named(index_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "find_spec", lambda name: None)
    folders.image_suffixes.cache_clear()
    try:
        (tmp_path / "raw").mkdir()
        for name in ("a.cr2", "b.CR2", "c.jxl", "d.mp4"):
            (tmp_path / "raw" / name).write_bytes(b"x")
        draw_scene(50).save(tmp_path / "raw/e.jpg")
        text = run("index", tmp_path / "raw", "--index", index_path).stdout
    finally:
        monkeypatch.undo()
        folders.image_suffixes.cache_clear()
    assert "skipped: 2 CR2, 1 JXL, 1 MP4 (to read CR2, JXL: pip install 'polyvoc[formats]')\n" in text
