"""A photograph's file -> upright pixels, reduced to a wanted size. The only reader of files with Pillow and its plugins.

Runs in the processes of `sandbox`. What libraries print about odd files goes nowhere there. NumPy is imported only where it is
used, so that they start quickly.
"""

from __future__ import annotations

import importlib
import io
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal

from PIL import Image, ImageFile
from PIL.Image import Transpose

from polyvoc.errors import ImageError, one_line

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Mode = Literal["L", "RGB"]
Size = tuple[int, int]  # width, height
Box = tuple[float, float, float, float]
# Pillow's names, and those of its modules. Its other formats (EPS, PSD, icons, ...) are never tried: less code open to
# hostile files.
FORMATS = {"JPEG": "Jpeg", "PNG": "Png", "WEBP": "WebP", "TIFF": "Tiff", "GIF": "Gif", "BMP": "Bmp", "JPEG2000": "Jpeg2K",
           "PPM": "Ppm", "AVIF": "Avif"}  # fmt: skip
HEIF, JXL, RAW = "HEIF", "JPEG XL", "RAW"  # those of other packages; the last two come with an extra
HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"})
PREFIX = 64  # bytes that a format is told by
EXTRA = "pip install 'polyvoc[formats]'"
STRIP = 1 << 22  # pixels of a deep image that are converted at a time
# JPEG is decoded to at least this many times the wanted size, then reduced by a triangle filter. Both are
# measured by SIFT matches between seven sizes of one synthetic scene, of 2000: triangle 1742 at 1, 1772 at 1.5,
# 1795 in full (58 instead of 42 ms at 12 Mpixel); exact area 1624, 1661, 1694; Lanczos 1665, 1739, 1795 at twice the time.
_MARGIN = 1.5
_FILTER = Image.Resampling.BILINEAR
_ORIENTATION = 0x0112  # EXIF tag; its values 2-8 -> the operation that turns the image upright, in two tables by its shape
_SAME_SHAPE = {2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM}
_SWAPPED_SIDES = {5: Transpose.TRANSPOSE, 6: Transpose.ROTATE_270, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_90}


@dataclass(frozen=True)
class PixelLimits:
    """Sizes of a photograph, in pixels."""

    long_side: int  # after reduction, at most
    min_side: int  # the short side after reduction, at least
    max_pixels: int  # before it, by the header


def load_formats() -> None:
    """Import the readers of all formats; Pillow imports others, too, if this is left to it."""
    for module in FORMATS.values():
        with suppress(ImportError):  # AVIF: not in every Pillow
            importlib.import_module(f"PIL.{module}ImagePlugin")
    if HEIF not in Image.OPEN:
        import pi_heif

        pi_heif.options.DECODE_THREADS = 1  # each would take address space
        pi_heif.options.THUMBNAILS = pi_heif.options.DEPTH_IMAGES = pi_heif.options.AUX_IMAGES = False
        Image.register_open(HEIF, pi_heif.HeifImageFile, _is_heif)


def _is_heif(prefix: bytes) -> bool:
    """Return whether the first bytes are those of HEIC or HEIF; AVIF, which shares two brands, is tried before."""
    return prefix[4:8] == b"ftyp" and prefix[8:12] in HEIF_BRANDS


def decode(file: IO[bytes], mode: Mode, limits: PixelLimits) -> tuple[Image.Image, Size]:
    """Return the upright reduced image, and the size of the upright full one. Raise ImageError if it cannot be used."""
    try:
        return _decode(file, mode, limits)
    except (ImageError, MemoryError):
        raise
    except Image.DecompressionBombError as error:  # of a part of the file: `max_pixels` is for the whole
        raise ImageError("too large to decode; reduce it first") from error
    except Exception as error:  # decoders raise anything on a hostile file
        raise ImageError(f"broken image ({one_line(error)}); replace or remove it") from error


def decode_thumbnail(file: IO[bytes], limits: PixelLimits) -> bytes:
    """Return a small upright JPEG in colour without metadata, which may reveal place and author."""
    out = io.BytesIO()
    image, _ = decode(file, "RGB", limits)
    Image.frombytes("RGB", image.size, image.tobytes()).save(out, "JPEG", quality=85)  # a new image has no metadata
    return out.getvalue()


def resize(pixels: npt.NDArray[np.uint8], width: int, height: int) -> npt.NDArray[np.uint8]:
    """Return pixels [h, w, 3] stretched to another size."""
    import numpy as np

    return np.array(Image.fromarray(pixels).resize((width, height), _FILTER), dtype=np.uint8)


def _decode(file: IO[bytes], mode: Mode, limits: PixelLimits) -> tuple[Image.Image, Size]:
    image, turned = _open(file, limits.max_pixels)
    full = image.size
    size = _reduced_size(full, limits)
    # JPEG can decode to 1/2, 1/4 or 1/8 by leaving out frequencies, and to luminance alone. The last column
    # and row may then lie partly outside: `box` is the image within the decoded pixels.
    draft = _draft(image, mode, (int(size[0] * _MARGIN), int(size[1] * _MARGIN)))
    box: Box = draft[1] if draft else (0, 0, *full)
    image.load()
    # Pillow has already turned a TIFF, and other plugins theirs.
    orientation = image.getexif().get(_ORIENTATION, 1) if turned is None else turned
    reduced = _flatten(_eight_bits(image), mode, size, box)
    if orientation in _SWAPPED_SIDES:
        return reduced.transpose(_SWAPPED_SIDES[orientation]), full[::-1]
    return reduced.transpose(_SAME_SHAPE[orientation]) if orientation in _SAME_SHAPE else reduced, full


def _draft(image: Image.Image, mode: Mode, size: Size) -> tuple[str, Box] | None:
    return image.draft(mode, size) if isinstance(image, ImageFile.ImageFile) else None


def _open(file: IO[bytes], max_pixels: int) -> tuple[Image.Image, int | None]:
    """Return the image, and its EXIF orientation if that is not in the image.

    Raise ImageError if the image is too large or of another format.
    """
    load_formats()
    prefix = file.read(PREFIX)
    file.seek(0)
    if _is_raw(file, prefix):
        return _open_raw(file, max_pixels)
    file.seek(0)
    if prefix[:2] == b"\xff\x0a" or prefix[4:12] == b"JXL \r\n\x87\n":
        return _open_jxl(file, max_pixels), None
    return _open_header(file, prefix, max_pixels), None


def _open_header(file: IO[bytes], prefix: bytes, max_pixels: int) -> ImageFile.ImageFile:
    """Return the image, not yet decoded. Raise ImageError if it is too large or of another format.

    Not by `Image.open`: that warns at 89 and fails at 179 million pixels, and only a setting of the whole process changes it.
    """
    failed: SyntaxError | None = None
    for name in (*FORMATS, HEIF):
        opener, accepts = Image.OPEN.get(name, (None, None))
        accepted = accepts(prefix) if opener and accepts else False
        if not opener or not accepted or isinstance(accepted, str):  # a str: Pillow was built without it
            continue
        file.seek(0)
        try:
            image = opener(file, "")
        except SyntaxError as error:  # of another format with the same beginning, or broken
            failed = error
            continue
        _check_size(image.size, max_pixels)
        return image
    if failed is not None:
        raise failed
    raise ImageError(f"not an image of a known format ({', '.join((*FORMATS, HEIF))}); convert it to JPEG, or leave it out")


def _check_size(size: Size, max_pixels: int) -> None:
    if size[0] * size[1] > max_pixels:
        shape = f"{size[0]} x {size[1]} pixels"
        raise ImageError(f"too large: {shape}, the limit is {max_pixels:,} in all; reduce it first")


# -- formats of an extra


def _open_jxl(file: IO[bytes], max_pixels: int) -> Image.Image:
    """Return a JPEG XL image, upright. Its size is checked beforehand: the plugin decodes as it opens."""
    try:
        from pillow_jxl import JpegXLImagePlugin as plugin
    except ImportError:
        raise ImageError(f"JPEG XL; to read it: {EXTRA}") from None
    content = file.read()
    _check_size(_jxl_size(content), max_pixels)
    plugin.DECODE_THREADS = 0  # none but this one
    image: Image.Image = plugin.JXLImageFile(io.BytesIO(content), "")
    if not getattr(image, "jpeg", False):  # else the orientation is that of the JPEG that it was made of
        image.info.pop("exif", None)
    return image


def _jxl_size(content: bytes) -> Size:
    """Return the size in the header of a JPEG XL image (ISO/IEC 18181-1, SizeHeader). Raise ValueError if there is none."""
    bits = int.from_bytes(_jxl_codestream(content)[2:12], "little")

    def take(count: int) -> int:
        nonlocal bits
        value, bits = bits & ((1 << count) - 1), bits >> count
        return value

    small = take(1)

    def side() -> int:
        return 8 * (take(5) + 1) if small else take((9, 13, 18, 30)[take(2)]) + 1

    height, ratio = side(), take(3)
    numerator, denominator = ((0, 1), (1, 1), (12, 10), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))[ratio]
    return height * numerator // denominator if ratio else side(), height


def _jxl_codestream(content: bytes) -> bytes:
    """Return the beginning of the codestream, which may lie in a box of a container (ISO/IEC 18181-2)."""
    if content.startswith(b"\xff\x0a"):
        return content
    at = 0
    while at + 16 <= len(content):
        length, kind, start = int.from_bytes(content[at : at + 4]), content[at + 4 : at + 8], at + 8
        if length == 1:
            length, start = int.from_bytes(content[at + 8 : at + 16]), at + 16
        if kind in (b"jxlc", b"jxlp"):
            return content[start + 4 * (kind == b"jxlp") :][:PREFIX]  # a part begins with its number
        if length and length < start - at:
            break
        at = at + length if length else len(content)
    raise ValueError("no codestream")


_RAW_STARTS = (b"FUJIFILMCCD-RAW", b"IIU\0", b"IIRO", b"IIRS", b"MMOR", b"II\x1a\0\0\0HEAPCCDR")
_MAKE, _SUB_IFDS, _DNG_VERSION, _COMPRESSION, _PHOTOMETRIC = 271, 330, 50706, 259, 262  # tags of TIFF
_CAMERA_COMPRESSIONS, _CAMERA_COLOURS = (32767, 34713, 65535), (32803, 34892)
_FLIPS = {3: 3, 5: 8, 6: 6}  # orientation as LibRaw has it -> as EXIF has it


def _is_raw(file: IO[bytes], prefix: bytes) -> bool:
    """Return whether a file is that of a camera's sensor; most are TIFFs whose first picture is a thumbnail."""
    if (
        prefix.startswith(_RAW_STARTS)
        or prefix[4:12] == b"ftypcrx "
        or (prefix[8:10] == b"CR" and prefix[:2] in (b"II", b"MM"))
    ):
        return True
    if prefix[:4] not in (b"II*\0", b"MM\0*"):
        return False
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    try:
        tags = ImageFileDirectory_v2(file.read(8))
        file.seek(tags.next)
        tags.load(file)
        values = {tag: tags.get(tag) for tag in (_COMPRESSION, _PHOTOMETRIC)}
    except Exception:  # noqa: BLE001 - what is wrong with it is found where it is read
        return False
    own = values[_COMPRESSION] in _CAMERA_COMPRESSIONS or values[_PHOTOMETRIC] in _CAMERA_COLOURS
    return own or _DNG_VERSION in tags or (_MAKE in tags and _SUB_IFDS in tags)


def _open_raw(file: IO[bytes], max_pixels: int) -> tuple[Image.Image, int | None]:
    """Return the preview in a RAW file, and its orientation unless the preview has its own."""
    try:
        import rawpy
    except ImportError:
        raise ImageError(f"a RAW file of a camera; to read the preview in it: {EXTRA}") from None
    reader: Any = rawpy  # its types differ between versions
    file.seek(0)
    try:
        with reader.imread(file) as raw:
            found, flip = raw.extract_thumb(), raw.sizes.flip
    except reader.LibRawError as error:
        reason = b" ".join(arg for arg in error.args if isinstance(arg, bytes)).decode("ascii", "replace")
        raise ImageError(f"a RAW file without a preview that can be read ({reason}); convert it to JPEG") from None
    if found.format != reader.ThumbFormat.JPEG:
        _check_size((found.data.shape[1], found.data.shape[0]), max_pixels)
        return Image.fromarray(found.data), _FLIPS.get(flip, 1)
    preview = io.BytesIO(found.data)
    image = _open_header(preview, preview.read(PREFIX), max_pixels)
    return image, None if _ORIENTATION in image.getexif() else _FLIPS.get(flip, 1)


# -- pixels


def _reduced_size(full: Size, limits: PixelLimits) -> Size:
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
    import numpy as np

    low, high = _black_and_white(image)
    scaled = Image.new("L", image.size)
    for top, values in _strips(image):
        floats = np.nan_to_num((values - low) * (255.0 / (high - low)), nan=0.0)
        scaled.paste(Image.fromarray(np.rint(np.clip(floats, 0.0, 255.0)).astype(np.uint8)), (0, top))
    return scaled


def _strips(image: Image.Image) -> Iterator[tuple[int, npt.NDArray[np.float32]]]:
    """Yield (first row, values [rows, width]) of an image of one channel: all of it at once would take many times its size."""
    import numpy as np

    rows = max(1, STRIP // image.width)
    for top in range(0, image.height, rows):
        yield top, np.asarray(image.crop((0, top, image.width, min(top + rows, image.height))), dtype=np.float32)


def _black_and_white(image: Image.Image) -> tuple[float, float]:
    """Return the values of black and white in an image deeper than 8 bits."""
    import numpy as np

    finite = (values[np.isfinite(values)] for _, values in _strips(image))
    ranges = [(float(values.min()), float(values.max())) for values in finite if values.size] or [(0.0, 1.0)]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    if image.mode.startswith("I") and low >= 0 and high <= 65535:
        # Many cameras store 10 or 12 bits in 16; an image truly as dark would have no texture left.
        return 0.0, next(white for white in (1023.0, 4095.0, 65535.0) if high <= white)
    if image.mode.startswith("F") and low >= 0 and high <= 1:
        return 0.0, 1.0
    return low, high if high > low else low + 1.0  # white is not defined: use the range of the image


def _flatten(image: Image.Image, mode: Mode, size: Size, box: Box) -> Image.Image:
    """Return `box` of the image at `size`, in `mode`; transparent parts become white."""
    if not image.has_transparency_data:
        return _resize(image if image.mode == mode else image.convert(mode), size, box)
    image = image.convert("RGBA")
    image = _resize(image.convert("LA") if mode == "L" else image, size, box)
    paper = Image.new(mode, size, "white")
    paper.paste(image.convert(mode), mask=image.getchannel("A"))
    return paper


def _resize(image: Image.Image, size: Size, box: Box) -> Image.Image:
    return image if image.size == size else image.resize(size, _FILTER, box)
