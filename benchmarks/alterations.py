"""Alterations of photographs: crops, rotations, overlays and so on, with random parameters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps

Random = np.random.Generator
Alteration = Callable[[Image.Image, Random], Image.Image]
QUALITY = 90  # at which altered pictures are saved, unless the alteration is the quality itself
LOW_QUALITY = 30


def crop(image: Image.Image, rng: Random) -> Image.Image:
    """Half of the area, of another shape, somewhere."""
    stretch = np.exp(rng.uniform(-0.25, 0.25))
    width, height = (min(1.0, side) for side in (np.sqrt(0.5) * stretch, np.sqrt(0.5) / stretch))
    x, y = rng.uniform(0, 1 - width), rng.uniform(0, 1 - height)
    w, h = image.size
    return image.crop((round(x * w), round(y * h), round((x + width) * w), round((y + height) * h)))


def rotate(image: Image.Image, rng: Random) -> Image.Image:
    """Rotated by any angle; the new corners are black or white."""
    fill = "black" if rng.random() < 0.5 else "white"
    return image.rotate(rng.uniform(3, 357), Image.Resampling.BICUBIC, expand=True, fillcolor=fill)


def mirror(image: Image.Image, rng: Random) -> Image.Image:
    """Mirrored, left to right."""
    return ImageOps.mirror(image)


def encode(image: Image.Image, rng: Random) -> Image.Image:
    """The same pixels, to be saved at low quality."""
    return image


def resize(image: Image.Image, rng: Random) -> Image.Image:
    """A quarter of the width and of the height."""
    return image.resize((max(32, image.width // 4), max(32, image.height // 4)), Image.Resampling.LANCZOS)


def text(image: Image.Image, rng: Random) -> Image.Image:
    """Two or three lines of large letters with a shadow, somewhere."""
    altered = image.copy()
    draw = ImageDraw.Draw(altered)
    size = max(12, round(image.height * rng.uniform(0.08, 0.14)))
    letters = "".join(rng.choice(list("ABCDEFGHIKLMNOPRSTUVWZ    ")) for _ in range(30))
    words = "\n".join(letters[i : i + 10] for i in range(0, 10 * rng.integers(2, 4), 10))
    corner = rng.uniform(0, 0.4) * image.width, rng.uniform(0, 0.6) * image.height
    draw.multiline_text(corner, words, "white", ImageFont.load_default(size), stroke_width=size // 12, stroke_fill="black")
    return altered


def border(image: Image.Image, rng: Random) -> Image.Image:
    """A frame of one colour, up to an eighth of the short side wide."""
    width = round(min(image.size) * rng.uniform(0.03, 0.12))
    return ImageOps.expand(image, width, tuple(rng.integers(0, 256, 3).tolist()))


def ornate(image: Image.Image, rng: Random) -> Image.Image:
    """One of four ornate frames, as large as a third of the picture: photographs with the same frame are no copies."""
    pattern = np.random.default_rng([11, rng.integers(4)])
    width = round(min(image.size) * 0.15)
    framed = Image.new("RGB", (image.width + 2 * width, image.height + 2 * width), (90, 120, 150))
    draw = ImageDraw.Draw(framed)
    for _ in range(1500):
        (x, y), length = pattern.random(2) * framed.size, pattern.uniform(0.02, 0.3) * width
        shape = draw.ellipse if pattern.random() < 0.5 else draw.rectangle
        shape((x, y, x + length, y + length * pattern.uniform(0.5, 2)), fill=tuple(pattern.integers(0, 256, 3).tolist()))
    framed.paste(image, (width, width))
    return framed


def colour(image: Image.Image, rng: Random) -> Image.Image:
    """Other saturation, brightness and contrast; each fourth is grey."""
    altered = ImageOps.grayscale(image).convert("RGB") if rng.random() < 0.25 else image
    for enhance, low, high in (
        (ImageEnhance.Color, 0.3, 2.0),
        (ImageEnhance.Brightness, 0.6, 1.4),
        (ImageEnhance.Contrast, 0.6, 1.5),
    ):
        altered = enhance(altered).enhance(rng.uniform(low, high))
    gains = rng.uniform(0.8, 1.2, 3)
    return Image.fromarray(np.clip(np.asarray(altered) * gains, 0, 255).astype(np.uint8))


def mirror_and_crop(image: Image.Image, rng: Random) -> Image.Image:
    """Mirrored, and half of the area."""
    return crop(mirror(image, rng), rng)


ALTERATIONS: dict[str, Alteration] = {
    "crop to 50 %": crop,
    "rotate by any angle": rotate,
    "mirror": mirror,
    "quality 30": encode,
    "resize to 25 %": resize,
    "text overlay": text,
    "border": border,
    "ornate frame": ornate,
    "colour change": colour,
    "mirror and crop": mirror_and_crop,
}


def file_name(alteration: str) -> str:
    """Return an alteration as a part of a file name."""
    return "".join(
        letter for letter in alteration.replace("%", "").replace(" ", "-") if letter.isalnum() or letter == "-"
    ).strip("-")
