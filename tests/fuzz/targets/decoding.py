"""Files of photographs -> pixels."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
from PIL import Image

from fuzz.laws import one_line_errors
from polyvoc.features.decode import read_grey, read_rgb, read_thumbnail
from raw_files import dng

MAX_BYTES = 16384
LONG_SIDE = 64
MAX_PIXELS = 1 << 18  # larger images take long, and no other path


def target(data: bytes) -> None:
    """Decode bytes in every way; pixels have the shape that is promised."""
    with one_line_errors():
        grey = read_grey(data, LONG_SIDE, MAX_PIXELS)
        assert grey.pixels.ndim == 2 and max(grey.pixels.shape) <= LONG_SIDE
        colour = read_rgb(data, LONG_SIDE, MAX_PIXELS)
        assert colour.shape == (*grey.pixels.shape, 3)
    with one_line_errors():
        assert read_thumbnail(data, LONG_SIDE, MAX_PIXELS).startswith(b"\xff\xd8")


def seeds() -> Iterator[bytes]:
    """Yield a small image in every format and mode, upright and turned."""
    rng = np.random.default_rng(1)
    colour = Image.fromarray(rng.integers(0, 256, (40, 48, 3), np.uint8)).resize((48, 40))
    grey, alpha = colour.convert("L"), colour.convert("RGBA")
    deep = Image.fromarray(rng.integers(0, 4096, (40, 48), np.uint16))
    floats = Image.fromarray(rng.random((40, 48), np.float32))
    turned = Image.Exif()
    turned[0x0112] = 6
    for image, form, options in (
        (colour, "JPEG", {"quality": 30}),
        (colour, "JPEG", {"quality": 30, "exif": turned}),
        (colour, "JPEG", {"quality": 30, "progressive": True}),
        (colour.convert("CMYK"), "JPEG", {"quality": 30}),
        (grey, "PNG", {}),
        (alpha, "PNG", {"exif": turned}),
        (deep, "PNG", {}),
        (colour.convert("P"), "PNG", {"transparency": 3}),
        (colour, "WEBP", {"quality": 30}),
        (alpha, "WEBP", {"lossless": True}),
        (colour, "TIFF", {"compression": "tiff_lzw"}),
        (deep, "TIFF", {}),
        (floats, "TIFF", {"compression": "tiff_adobe_deflate"}),
        (colour.convert("LAB"), "TIFF", {}),
        (colour.convert("P"), "GIF", {}),
        (colour, "BMP", {}),
        (colour, "JPEG2000", {"quality_layers": [40]}),
        (colour, "PPM", {}),
        (colour, "AVIF", {"quality": 30}),
    ):
        out = io.BytesIO()
        image.save(out, form, **options)
        yield out.getvalue()
    yield from _of_other_packages(colour)


def _of_other_packages(image: Image.Image) -> Iterator[bytes]:
    """Yield HEIC, JPEG XL and RAW, where what writes them is installed."""
    with suppress(ImportError):
        import pillow_heif

        out = io.BytesIO()
        pillow_heif.from_pillow(image).save(out, quality=30)
        yield out.getvalue()
    with suppress(ImportError):
        import pillow_jxl  # noqa: F401 - registers its format

        out = io.BytesIO()
        image.save(out, "JXL", quality=30)
        yield out.getvalue()
    preview = io.BytesIO()
    image.save(preview, "JPEG", quality=30)
    yield dng(preview.getvalue(), image.size)
