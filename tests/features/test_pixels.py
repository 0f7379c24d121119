"""Every format is decoded to the same upright image, or raises an error of one line."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from polyvoc.errors import ImageError, OptionError
from polyvoc.features.decode import MAX_PIXELS, MIN_SIDE, read_grey, read_rgb, read_thumbnail
from polyvoc.features.pixels import FORMATS, resize
from polyvoc.storage.folders import IMAGE_SUFFIXES

ORIENTATION = 0x0112


def scene(width: int = 160, height: int = 120, seed: int = 0) -> Image.Image:
    """Smooth coloured noise: compresses well, and no flip or turn of it looks like another."""
    coarse = np.random.default_rng(seed).integers(0, 256, (height // 12, width // 12, 3), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image, form: str = "PNG", **options: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def grey(image: Image.Image) -> np.ndarray:
    return np.asarray(image.convert("L")).astype(int)


def pixels(data: bytes | Path | str, long_side: int = 1024) -> np.ndarray:
    return read_grey(data, long_side).pixels.astype(int)


def read_error(source: bytes | Path | str, long_side: int = 1024) -> str:
    """Return the error of a source: one line."""
    with pytest.raises(ImageError) as caught:
        read_grey(source, long_side)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def with_orientation(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def turned(upright: Image.Image, orientation: int) -> Image.Image:
    """Return the pixels that a camera stores with this orientation (EXIF 2.3: the sides of row 0 and column 0)."""
    a = np.asarray(upright)
    b = a.swapaxes(0, 1)
    stored = {1: a, 2: a[:, ::-1], 3: a[::-1, ::-1], 4: a[::-1], 5: b, 6: b[::-1], 7: b[::-1, ::-1], 8: b[:, ::-1]}
    return Image.fromarray(np.ascontiguousarray(stored[orientation]))


# --- what is read


@pytest.mark.parametrize(
    ("form", "options", "tolerance"),
    [
        ("PNG", {}, 0), ("BMP", {}, 0), ("PPM", {}, 0), ("TIFF", {}, 0), ("JPEG2000", {}, 0),
        ("TIFF", {"compression": "tiff_lzw"}, 0), ("WEBP", {"lossless": True}, 0), ("JPEG", {"quality": 95}, 4),
        ("JPEG", {"quality": 95, "progressive": True}, 4), ("AVIF", {"quality": 95}, 6),
    ],
)  # fmt: skip
def test_every_format_is_read(form: str, options: dict[str, Any], tolerance: int) -> None:
    Image.init()
    if form not in Image.SAVE:
        pytest.skip(f"this Pillow does not write {form}")
    image = scene()
    assert np.abs(pixels(encode(image, form, **options)) - grey(image)).max() <= tolerance


def test_suffixes_are_those_of_the_formats() -> None:
    known = {suffix for suffix, form in Image.registered_extensions().items() if form in FORMATS}
    own = {".mpo", ".avif", ".heic", ".heif", ".hif", ".heics", ".heifs"}  # MPO is JPEG in pairs; AVIF not in every Pillow
    assert IMAGE_SUFFIXES - own <= known
    assert all(suffix == suffix.lower() for suffix in IMAGE_SUFFIXES)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_made_upright(orientation: int, form: str) -> None:
    image = scene(200, 120)
    read = read_grey(encode(turned(image, orientation), form, exif=with_orientation(orientation), quality=95), 1024)
    assert (read.width, read.height, read.pixels.shape) == (200, 120, (120, 200))
    assert np.abs(read.pixels.astype(int) - grey(image)).mean() < 3


@pytest.mark.parametrize("form", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled_not_clipped(form: str) -> None:
    deep = Image.fromarray(grey(scene()).astype(np.uint16) * 257)
    assert np.array_equal(pixels(encode(deep, form)), grey(scene()))


def test_twelve_bits_in_sixteen_are_bright() -> None:
    values = np.rint(grey(scene()) * (4095 / 255)).astype(np.uint16)
    values[0, 0] = 4095
    assert np.abs(pixels(encode(Image.fromarray(values), "TIFF")) - grey(scene()))[1:].max() <= 1


def test_floats_are_scaled_and_holes_are_black() -> None:
    values = grey(scene()).astype(np.float32) / 255
    values[0, :2] = np.nan, np.inf
    read = pixels(encode(Image.fromarray(values), "TIFF"))
    assert np.array_equal(read[1:], grey(scene())[1:])
    assert read[0, 0] == 0
    stretched = pixels(encode(Image.fromarray((values[1:] * 2000 - 700).astype(np.float32)), "TIFF"))
    assert (stretched.min(), stretched.max()) == (0, 255)
    for value in (7.0, np.nan):  # constant, and nothing but holes
        assert (pixels(encode(Image.fromarray(np.full((40, 40), value, np.float32)), "TIFF")) == 0).all()


def test_other_modes_and_unknown_orientations_are_read() -> None:
    binary, palette, lab = scene().convert("1"), scene().quantize(64), Image.merge("LAB", scene().split())
    assert np.array_equal(pixels(encode(binary)), grey(binary))
    assert np.array_equal(pixels(encode(palette)), grey(palette.convert("RGB")))
    assert np.array_equal(pixels(encode(lab, "TIFF")), np.asarray(scene().getchannel(0)))  # its lightness
    assert np.abs(pixels(encode(scene().convert("CMYK"), "JPEG", quality=95)) - grey(scene())).mean() < 3  # not inverted
    for orientation in (0, 9, 65535):
        assert np.array_equal(pixels(encode(scene(), exif=with_orientation(orientation))), grey(scene()))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "RGB"])
def test_transparent_is_white(mode: str) -> None:
    values = np.asarray(scene().convert("RGBA")).copy()
    values[:60] = (1, 2, 3, 0)
    options = {"transparency": (1, 2, 3)} if mode == "RGB" else {}  # a transparent colour instead of a channel
    read = pixels(encode(Image.fromarray(values).convert(mode), **options))
    assert (read[:60] == 255).all()
    assert np.array_equal(read[60:], grey(scene())[60:])


@pytest.mark.parametrize("form", ["PNG", "GIF"])
def test_transparent_palette_entry_is_white(form: str) -> None:
    image = scene().convert("L").quantize(64)
    image.paste(0, (0, 0, 160, 60))
    clear = np.asarray(image) == 0
    read = pixels(encode(image, form, transparency=0))
    assert (read[clear] == 255).all()
    assert np.array_equal(read[~clear], grey(image.convert("RGB"))[~clear])
    half = Image.new("RGBA", (400, 200), (0, 0, 0, 128))
    assert np.abs(pixels(encode(half), 100) - 127).max() <= 1  # half white, also when reduced


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "TIFF", "MPO"])
def test_first_frame_of_many(form: str) -> None:
    frames = [scene(seed=1).convert("L").convert("RGB"), scene(seed=2)]
    data = encode(frames[0], form, save_all=True, append_images=frames[1:], quality=95, lossless=True)
    assert np.abs(pixels(data) - grey(frames[0])).mean() < 3


# --- how it is reduced


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
@pytest.mark.parametrize(
    ("size", "expected"), [((1000, 700), (256, 179)), ((301, 2003), (38, 256)), ((256, 90), (256, 90)), ((96, 60), (96, 60))]
)
def test_long_side_is_exact_and_full_size_is_kept(form: str, size: tuple[int, int], expected: tuple[int, int]) -> None:
    read = read_grey(encode(scene(*size), form), 256)
    assert (read.width, read.height) == size
    assert read.pixels.shape == expected[::-1]


def test_reduced_jpeg_is_right_to_its_last_column() -> None:
    # 1003 = 8 * 125 + 3: the last block of a reduced decoding is mostly outside.
    ramp = np.tile(np.linspace(0, 255, 1003), (1003, 1)).astype(np.uint8)
    read = pixels(encode(Image.fromarray(ramp), "JPEG", quality=100), 64)
    centres = (np.arange(64) + 0.5) * 1003 / 64 - 0.5
    assert np.abs(read.mean(axis=0) - centres * 255 / 1002)[1:-1].max() < 1.5


# --- where it is read from


def test_path_string_and_bytes_are_the_same(tmp_path: Path) -> None:
    data = encode(scene(), "JPEG")
    path = tmp_path / "photograph.without.meaningful.suffix"
    path.write_bytes(data)
    assert all(np.array_equal(pixels(source), pixels(data)) for source in (path, str(path)))


def test_threads_read_the_same() -> None:
    files = [encode(scene(seed=n), form) for n in range(6) for form in ("JPEG", "PNG", "TIFF")]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(pixels, files))
    assert all(np.array_equal(a, pixels(b)) for a, b in zip(together, files, strict=True))


# --- errors


def test_a_file_that_is_not_an_image_is_one_line(tmp_path: Path) -> None:
    empty, pipe, text, archive = (tmp_path / name for name in ("empty.jpg", "pipe.jpg", "two\nlines.jpg", "zip.jpg"))
    empty.touch()
    os.mkfifo(pipe)
    text.write_text("no image at all\n" * 99)
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("image.png", encode(scene()))
    for source, expected in {
        tmp_path / "missing.jpg": "no such file", tmp_path: "a folder", empty: "empty file", pipe: "not a regular file",
        b"": "empty", "nul\0byte.jpg": "cannot be opened", empty / "below.jpg": "cannot be opened",
        text: "two\\nlines.jpg': not an image", archive: "not an image", b"no image": "image of 8 bytes: not an image",
    }.items():  # fmt: skip
        assert expected in read_error(source)
    with pytest.raises(ImageError, match=r"^photo 7: not an image"):
        read_grey(b"no image", 1024, name="photo 7")


@pytest.mark.parametrize("keep", [0.03, 0.3, 0.6, 0.9, 0.98])
@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("WEBP", {}), ("TIFF", {}), ("GIF", {}),
        ("TIFF", {"compression": "tiff_lzw"}), ("TIFF", {"compression": "jpeg"}), ("BMP", {}), ("PPM", {}),
        ("JPEG2000", {}),
    ],
)  # fmt: skip
def test_a_cut_file_is_broken(form: str, options: dict[str, Any], keep: float, capfd: pytest.CaptureFixture[str]) -> None:
    data = encode(scene(640, 480), form, **options)
    for long_side in (1024, 64):
        assert "broken image" in read_error(data[: int(len(data) * keep)], long_side)
    assert capfd.readouterr() == ("", "")


def test_damaged_tags_are_ignored(capfd: pytest.CaptureFixture[str]) -> None:
    exif = Image.Exif()
    exif[0x010E] = "a description that is longer than four bytes"
    data = bytearray(encode(scene(), "JPEG", exif=exif, quality=95))
    start = data.index(b"Exif\0\0") + 6
    data[start + 8 + 2 + 8 : start + 8 + 2 + 12] = b"\xff\xff\xff\x7f"  # the description now lies outside
    assert np.abs(pixels(bytes(data)) - grey(scene())).max() <= 4
    assert capfd.readouterr() == ("", "")


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def test_a_bomb_raises_by_its_header() -> None:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0))
    bomb = b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    assert "too large: 50000 x 50000" in read_error(bomb)
    assert f"{MAX_PIXELS:,}" in read_error(bomb)


def test_beyond_the_limits_of_pillow_is_read_without_warning() -> None:
    # 184 million pixels: Pillow's `Image.open` would raise. White, so that it is quick.
    data = encode(Image.new("L", (16_000, 11_500), 255), "JPEG")
    read = read_grey(data, 128)
    assert (read.width, read.height) == (16_000, 11_500)
    assert (read.pixels == 255).all()


def test_tiny_and_narrow_images_raise() -> None:
    for width, height in ((1, 1), (31, 400), (400, 31), (5000, 1), (5000, 100)):
        assert f"too small: {width} x {height} pixels" in read_error(encode(Image.new("RGB", (width, height))))
    assert pixels(encode(scene(60, 60).crop((0, 0, MIN_SIDE, MIN_SIDE)))).shape == (MIN_SIDE, MIN_SIDE)
    with pytest.raises(OptionError, match="long_side=8 should be at least 32"):
        read_grey(encode(scene()), 8)


# --- thumbnails


def test_thumbnail_is_upright_in_colour_and_without_metadata() -> None:
    exif = with_orientation(6)
    exif[0x013B] = "the owner's name"
    image = scene(400, 300)
    data = read_thumbnail(encode(turned(image, 6), "JPEG", exif=exif, quality=95, comment="secret"), 200)
    with Image.open(io.BytesIO(data)) as thumbnail:
        assert (thumbnail.format, thumbnail.mode, thumbnail.size) == ("JPEG", "RGB", (200, 150))
        assert not thumbnail.getexif() and "comment" not in thumbnail.info
        expected = np.asarray(image.resize((200, 150))).astype(int)
        assert np.abs(np.asarray(thumbnail).astype(int) - expected).mean() < 10
    assert b"owner" not in data


@pytest.mark.parametrize("mode", ["L", "1", "P", "CMYK", "RGBA", "I;16"])
def test_thumbnail_of_every_mode(mode: str) -> None:
    image = Image.fromarray(grey(scene()).astype(np.uint16) * 257) if mode == "I;16" else scene().convert(mode)
    with Image.open(io.BytesIO(read_thumbnail(encode(image, "TIFF"), 64))) as thumbnail:
        assert (thumbnail.mode, thumbnail.size) == ("RGB", (64, 48))
        assert np.abs(grey(thumbnail) - grey(scene().resize((64, 48)))).mean() < 12


# --- colours


def test_colours_are_upright_and_reduced() -> None:
    image = scene(320, 240)
    read = read_rgb(encode(turned(image, 6), "JPEG", exif=with_orientation(6), quality=95), 160)
    expected = np.asarray(image.resize((160, 120), Image.Resampling.BILINEAR)).astype(int)
    assert (read.dtype, read.shape) == (np.uint8, (120, 160, 3))
    assert np.abs(read - expected).mean() < 3
    assert np.array_equal(read_rgb(encode(image), 1024), np.asarray(image))  # never enlarged


def test_errors_are_those_of_grey_images() -> None:
    for read in (read_rgb, read_thumbnail):
        with pytest.raises(ImageError, match="not an image of a known format"):
            read(b"no image at all", 256)
    with pytest.raises(ImageError, match="too small"):
        read_rgb(encode(Image.new("RGB", (20, 300))), 256)


def test_resize_stretches_without_touching_its_input() -> None:
    red = np.zeros((40, 60, 3), np.uint8)
    red[:, :30, 0] = 255
    copy = red.copy()
    wide = resize(red, width=120, height=20)
    assert (wide.shape, wide.dtype) == ((20, 120, 3), np.uint8)
    assert (wide[:, :50] == (255, 0, 0)).all() and (wide[:, 70:] == 0).all() and np.array_equal(red, copy)
