"""Pictures in memory: arrays and Pillow's images as files, open files as bytes, and matches drawn between two photographs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from polyvoc.errors import ImageError, one_line

if TYPE_CHECKING:
    from PIL.Image import Image

Pixels = npt.NDArray[np.uint8]
Point = tuple[float, float]
Colour = tuple[int, int, int]
GAP = 8  # pixels between two photographs
PAPER, INLIER, OTHER, OUTLINE = (255, 255, 255), (42, 157, 78), (160, 160, 160), (229, 72, 77)
# Of matches of several kinds of features, in the order of the kinds: green, blue, orange, purple; distinct to the colour-blind.
KINDS: tuple[Colour, ...] = (INLIER, (30, 115, 200), (230, 140, 20), (150, 80, 190))


def is_pillow_image(photo: object) -> bool:
    """Return whether an object is an image of Pillow, which need not be installed or imported for that."""
    return any(kind.__module__ == "PIL.Image" and kind.__name__ == "Image" for kind in type(photo).__mro__)


def encode_array(pixels: npt.NDArray[Any]) -> bytes:
    """Return an array of grey [h, w] or RGB [h, w, 3] bytes as a file without loss; raise ImageError for any other."""
    shape = list(pixels.shape)
    grey = pixels.ndim == 2 or (pixels.ndim == 3 and shape[2] == 1)
    if pixels.dtype != np.uint8 or not (grey or (pixels.ndim == 3 and shape[2] == 3)) or not pixels.size:
        raise ImageError(
            f"array of {pixels.dtype} {shape}: not a photograph; give uint8, [height, width] or [height, width, 3] in RGB"
        )
    return b"P%d %d %d 255\n" % (5 if grey else 6, shape[1], shape[0]) + pixels.tobytes()


def encode_image(image: Image) -> bytes:
    """Return an image of Pillow as a file without loss, upright; raise ImageError if it cannot be decoded."""
    from PIL import ImageOps

    try:
        upright = ImageOps.exif_transpose(image)
        if upright.mode in ("L", "RGB") and not upright.has_transparency_data:
            return encode_array(np.asarray(upright))
        kept = upright if upright.mode in ("RGBA", "LA", "P", "PA", "I", "I;16", "F") else upright.convert("RGB")
        out = io.BytesIO()
        kept.save(out, "PNG" if kept.mode in ("RGBA", "LA", "P") else "TIFF")
        return out.getvalue()
    except ImageError:
        raise
    except Exception as error:  # Pillow decodes a file when its pixels are used first, and raises anything
        raise ImageError(f"{getattr(image, 'filename', '') or 'image'}: cannot be used ({one_line(error)})") from error


def read_open_file(file: BinaryIO) -> bytes:
    """Return all bytes of an open file, from its start if it can be moved there."""
    name = str(getattr(file, "name", "") or "open file")
    try:
        if file.seekable():
            file.seek(0)
        content = file.read()
    except (OSError, ValueError) as error:
        raise ImageError(f"{name}: cannot be read ({one_line(error)}); open it again") from error
    if not isinstance(content, bytes):
        raise ImageError(f'{name}: not open in binary mode; use open(path, "rb")')
    return content


def draw_matches(query: Pixels, image: Pixels, lines: Sequence[tuple[Point, Point, bool]],
                 outline: Sequence[Point] = ()) -> Image:  # fmt: skip
    """Return two photographs [h, w, 3] side by side with their matches: (point, point, whether it is an inlier) in pixels."""
    ordered = sorted(lines, key=lambda line: line[2])  # inliers above the others
    return draw_lines(query, image, [(one, other, INLIER if inlier else OTHER) for one, other, inlier in ordered], outline)


def draw_lines(query: Pixels, image: Pixels, lines: Sequence[tuple[Point, Point, Colour]],
               outline: Sequence[Point] = ()) -> Image:  # fmt: skip
    """Return two photographs [h, w, 3] side by side with lines between them: (point, point, colour), the last on top."""
    from PIL import Image, ImageDraw

    left = query.shape[1] + GAP
    picture = Image.new("RGB", (left + image.shape[1], max(len(query), len(image))), PAPER)
    picture.paste(Image.fromarray(query), (0, 0))
    right = Image.fromarray(image)
    if outline:
        ImageDraw.Draw(right).polygon(list(outline), outline=OUTLINE, width=2)
    picture.paste(right, (left, 0))
    pen = ImageDraw.Draw(picture)
    for (x0, y0), (x1, y1), colour in lines:
        pen.line([(x0, y0), (left + x1, y1)], colour)
        for x, y in ((x0, y0), (left + x1, y1)):
            pen.ellipse([x - 2, y - 2, x + 2, y + 2], outline=colour)
    return picture
