"""File or bytes -> upright pixels, reduced to a wanted size. The only user of Pillow besides the demo."""

from __future__ import annotations

import ctypes
import io
import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import IO, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, _imaging
from PIL.Image import Transpose

from polyvoc.errors import ImageError, OptionError, UnreachableError, one_line
from polyvoc.storage.stores import display_name, open_source
from polyvoc.types import GreyImage, Source

Mode = Literal["L", "RGB"]
Box = tuple[float, float, float, float]
# Pillow's names. Its other formats (EPS, PSD, icons, ...) are never tried: less code open to hostile files.
FORMATS = ("JPEG", "PNG", "WEBP", "TIFF", "GIF", "BMP", "JPEG2000", "PPM", "AVIF")
MAX_PIXELS = 300_000_000  # by the header, before anything is decoded; phones take up to 200 million
MIN_SIDE = 32  # pixels of the short side after reduction: smaller images have hardly any features
# JPEG is decoded to at least this many times the wanted size, then reduced by a triangle filter. Both are
# measured by SIFT matches between seven sizes of one synthetic scene, of 2000: triangle 1742 at 1, 1772 at 1.5,
# 1795 in full (58 instead of 42 ms at 12 Mpixel); exact area 1624, 1661, 1694; Lanczos 1665, 1739, 1795 at twice the time.
_MARGIN = 1.5
_FILTER = Image.Resampling.BILINEAR
_ORIENTATION = 0x0112  # EXIF tag; its values 2-8 -> the operation that turns the image upright, in two tables by its shape
_SAME_SHAPE = {2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM}
_SWAPPED_SIDES = {5: Transpose.TRANSPOSE, 6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90}
_quiet_lock = threading.Lock()


def read_grey(source: Source, long_side: int, max_pixels: int = MAX_PIXELS, name: str | None = None) -> GreyImage:
    """Return the upright image in grey, reduced to a long side of at most `long_side`; `name` is shown in errors."""
    image, (width, height) = _read_pixels(source, "L", _Limits(long_side, max_pixels), name)
    return GreyImage(np.array(image, dtype=np.uint8), width, height)


def read_rgb(source: Source, long_side: int, max_pixels: int = MAX_PIXELS, name: str | None = None) -> npt.NDArray[np.uint8]:
    """Return the upright image in colour [h, w, 3], reduced as by `read_grey`."""
    image, _ = _read_pixels(source, "RGB", _Limits(long_side, max_pixels), name)
    return np.array(image, dtype=np.uint8)


def read_thumbnail(source: Source, long_side: int, max_pixels: int = MAX_PIXELS) -> bytes:
    """Return a small upright JPEG in colour without metadata, which may reveal place and author."""
    out = io.BytesIO()
    image, _ = _read_pixels(source, "RGB", _Limits(long_side, max_pixels, min_side=1))
    Image.fromarray(np.asarray(image)).save(out, "JPEG", quality=85)  # a new image has no metadata
    return out.getvalue()


def resize(pixels: npt.NDArray[np.uint8], width: int, height: int) -> npt.NDArray[np.uint8]:
    """Return pixels [h, w, 3] stretched to another size."""
    return np.array(Image.fromarray(pixels).resize((width, height), _FILTER), dtype=np.uint8)


@dataclass(frozen=True)
class _Limits:
    long_side: int  # after reduction
    max_pixels: int  # before it
    min_side: int = MIN_SIDE  # pixels of the short side after reduction


def _read_pixels(source: Source, mode: Mode, limits: _Limits, name: str | None = None) -> tuple[Image.Image, tuple[int, int]]:
    """Return the upright reduced image, and the (width, height) of the upright full one."""
    if limits.long_side < MIN_SIDE:
        raise OptionError(f"long_side={limits.long_side!r} should be at least {MIN_SIDE}")
    with open_source(source) as file:
        try:
            return _decode(file, mode, limits)
        except Exception as error:  # decoders raise anything on a hostile file
            raise _error(error, display_name(name or source)) from error


def _error(error: Exception, name: str) -> ImageError:
    if isinstance(error, ImageError):
        return ImageError(f"{name}: {error}")
    if isinstance(error, MemoryError):
        return UnreachableError(f"{name}: not enough memory to decode it now; close other programs, or reduce it")
    if isinstance(error, Image.DecompressionBombError):
        return ImageError(f"{name}: too large to decode; reduce it first")
    return ImageError(f"{name}: broken image ({one_line(error)}); replace or remove it")


def _decode(file: IO[bytes], mode: Mode, limits: _Limits) -> tuple[Image.Image, tuple[int, int]]:
    with _quiet():
        image = _open_header(file, limits.max_pixels)
    full = image.size
    size = _reduced_size(full, limits)
    # JPEG can decode to 1/2, 1/4 or 1/8 by leaving out frequencies, and to luminance alone. The last column
    # and row may then lie partly outside: `box` is the image within the decoded pixels.
    draft = image.draft(mode, (int(size[0] * _MARGIN), int(size[1] * _MARGIN)))
    box: Box = draft[1] if draft else (0, 0, *full)
    with _quiet() if image.format == "TIFF" else nullcontext():  # TIFF reads its tags again while it loads
        image.load()
    with _quiet():
        orientation = image.getexif().get(_ORIENTATION, 1)  # Pillow has already turned a TIFF
    reduced = _flatten(_eight_bits(image), mode, size, box)
    if orientation in _SWAPPED_SIDES:
        return reduced.transpose(_SWAPPED_SIDES[orientation]), full[::-1]
    return reduced.transpose(_SAME_SHAPE[orientation]) if orientation in _SAME_SHAPE else reduced, full


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress warnings of Pillow and libtiff about odd files; real errors are raised as well.

    The filter is that of the process, hence one thread at a time; headers need the GIL anyway, and only TIFF is decoded inside.
    """
    logger = logging.getLogger("PIL.TiffImagePlugin")
    with _quiet_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        disabled, logger.disabled = logger.disabled, True
        handlers = [(set_handler, set_handler(None)) for set_handler in _libtiff_handlers()]
        try:
            yield
        finally:
            logger.disabled = disabled
            for set_handler, handler in handlers:
                set_handler(handler)


@cache
def _libtiff_handlers() -> tuple[Callable[[int | None], int | None], ...]:
    """Return the functions that replace libtiff's printing to stderr; none if they are not exported."""
    try:
        library = ctypes.CDLL(_imaging.__file__)  # Pillow's own library gives access to those it is linked to
        handlers = (library.TIFFSetErrorHandler, library.TIFFSetWarningHandler)
    except (AttributeError, OSError):
        return ()
    for set_handler in handlers:
        set_handler.argtypes, set_handler.restype = (ctypes.c_void_p,), ctypes.c_void_p
    return handlers


def _open_header(file: IO[bytes], max_pixels: int) -> ImageFile.ImageFile:
    """Return the image, not yet decoded. Raise ImageError if it is too large or of another format.

    Not by `Image.open`: that warns at 89 and fails at 179 million pixels, and only a setting of the whole process changes it.
    """
    Image.init()
    prefix = file.read(16)
    for name in FORMATS:
        opener, accepts = Image.OPEN.get(name, (None, None))
        accepted = accepts(prefix) if opener and accepts else False
        if not opener or not accepted or isinstance(accepted, str):  # a str: Pillow was built without it
            continue
        file.seek(0)
        image = opener(file, "")
        if image.width * image.height > max_pixels:
            shape = f"{image.width} x {image.height} pixels"
            raise ImageError(f"too large: {shape}, the limit is {max_pixels:,} in all; reduce it first")
        return image
    raise ImageError(f"not an image of a known format ({', '.join(FORMATS)}); convert it to JPEG, or leave it out")


def _reduced_size(full: tuple[int, int], limits: _Limits) -> tuple[int, int]:
    """Return the (width, height) after reduction. Raise ImageError if the image is tiny or very narrow."""
    factor = min(1.0, limits.long_side / max(full))
    size = round(full[0] * factor), round(full[1] * factor)
    if min(size) < limits.min_side:
        shape = f"{full[0]} x {full[1]} pixels" + (f", reduced {size[0]} x {size[1]}" if factor < 1 else "")
        raise ImageError(f"too small: {shape}, the short side needs {limits.min_side}; use a larger one")
    return size


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return an image of 8 bits per channel: deeper grey is scaled, where Pillow's own conversion would clip it."""
    if image.mode == "LAB":
        return image.getchannel(0)  # lightness; Pillow converts the rest by colour profiles only
    if not image.mode.startswith(("I", "F")):
        return image
    values = np.asarray(image, dtype=np.float32)  # [h, w]
    finite = values[np.isfinite(values)] if image.mode == "F" else values
    low, high = _black_and_white(finite, image.mode) if finite.size else (0.0, 1.0)
    scaled = np.nan_to_num((values - low) * (255.0 / (high - low)), nan=0.0)
    return Image.fromarray(np.rint(np.clip(scaled, 0.0, 255.0)).astype(np.uint8))


def _black_and_white(values: npt.NDArray[np.float32], mode: str) -> tuple[float, float]:
    """Return the values of black and white in an image deeper than 8 bits."""
    low, high = float(values.min()), float(values.max())
    if mode.startswith("I") and low >= 0 and high <= 65535:
        # Many cameras store 10 or 12 bits in 16; an image truly as dark would have no texture left.
        return 0.0, next(white for white in (1023.0, 4095.0, 65535.0) if high <= white)
    if mode.startswith("F") and low >= 0 and high <= 1:
        return 0.0, 1.0
    return low, high if high > low else low + 1.0  # white is not defined: use the range of the image


def _flatten(image: Image.Image, mode: Mode, size: tuple[int, int], box: Box) -> Image.Image:
    """Return `box` of the image at `size`, in `mode`; transparent parts become white."""
    if not image.has_transparency_data:
        return _resize(image if image.mode == mode else image.convert(mode), size, box)
    image = image.convert("RGBA")
    image = _resize(image.convert("LA") if mode == "L" else image, size, box)
    paper = Image.new(mode, size, "white")
    paper.paste(image.convert(mode), mask=image.getchannel("A"))
    return paper


def _resize(image: Image.Image, size: tuple[int, int], box: Box) -> Image.Image:
    return image if image.size == size else image.resize(size, _FILTER, box)
