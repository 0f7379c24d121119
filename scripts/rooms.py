"""Rendered photographs of rooms in which the same framed pictures hang, for the first picture of scripts/screenshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFilter

WALL = (1200, 900)  # pixels of a wall with its floor
FLOOR = 690  # y where the floor begins
PHOTOGRAPH = (1000, 750)
WOOD, BLACK, WHITE = "#8a5a34", "#1d1b1a", "#fbfaf7"
CORNERS = ((0, 0), (1, 0), (1, 1), (0, 1))
# Corners of what the camera sees of the wall, clockwise from the top left, as fractions.
VIEWS = {
    "front": ((0.04, 0.03), (0.96, 0.03), (0.96, 0.97), (0.04, 0.97)),
    "left": ((0.02, 0.02), (0.98, 0.16), (0.98, 0.90), (0.02, 0.99)),
    "right": ((0.03, 0.17), (0.98, 0.02), (0.98, 0.99), (0.03, 0.88)),
    "tilted": ((0.10, 0.02), (0.98, 0.12), (0.90, 0.98), (0.02, 0.86)),
    "tilted back": ((0.02, 0.14), (0.90, 0.02), (0.98, 0.86), (0.10, 0.98)),
    "close": ((0.30, 0.08), (0.98, 0.03), (0.98, 0.75), (0.30, 0.70)),
}


@dataclass(frozen=True)
class Picture:
    """A framed photograph: its centre and width in pixels of the wall."""

    name: str
    x: int
    y: int
    width: int
    frame: str = BLACK


@dataclass(frozen=True)
class Room:
    """A wall with pictures, a floor and a sofa, and how they are photographed."""

    view: str  # one of VIEWS
    wall: str
    floor: str
    sofa: tuple[str, int, int]  # colour, left and right edge
    pictures: tuple[Picture, ...]
    light: float = 1.0
    brick: bool = False


ROOMS = {
    "living-room": Room(
        "front", "#d9d2c4", "#a98358", ("#5f7f8c", 300, 900),
        (Picture("rocket", 215, 265, 240, WOOD), Picture("cat", 610, 270, 380), Picture("galaxies", 1000, 265, 220, WHITE)),
    ),
    "hall": Room(
        "left", "#b9654b", "#7b6a58", ("#3f4a52", 480, 1080),
        (Picture("cat", 330, 300, 390, WOOD), Picture("moon", 850, 290, 300)), brick=True,
    ),
    "studio": Room(
        "right", "#e9e6df", "#c9a878", ("#c98f3d", 120, 720),
        (Picture("astronaut", 300, 290, 310), Picture("cat", 830, 290, 400, WHITE)),
    ),
    "guest-room": Room(
        "tilted", "#6f8f86", "#8b6847", ("#e0d6c3", 260, 940),
        (Picture("cat", 420, 280, 330, WHITE), Picture("coffee", 860, 280, 330, WHITE)),
    ),
    "evening": Room(
        "left", "#c9b79a", "#6e5238", ("#7b3f3f", 330, 930),
        (Picture("coffee", 300, 300, 330), Picture("cat", 760, 300, 400, WOOD)), light=0.62,
    ),
    "office": Room(
        "right", "#4d5d75", "#8d8a84", ("#9aa3ad", 180, 780),
        (Picture("galaxies", 210, 285, 230), Picture("cat", 590, 270, 320, WHITE), Picture("rocket", 985, 265, 270)),
    ),
    "corner": Room(
        "close", "#b9654b", "#7b6a58", ("#6d7f54", 430, 1030),
        (Picture("moon", 200, 290, 250), Picture("cat", 760, 280, 430)), light=0.9, brick=True,
    ),
    "attic": Room(
        "tilted back", "#e2d3b1", "#94744f", ("#55606e", 300, 900),
        (Picture("cat", 300, 300, 300), Picture("astronaut", 780, 280, 340, WOOD)),
    ),
    "library": Room(
        "front", "#5c6b52", "#6a4f38", ("#a06a4a", 260, 860),
        (Picture("astronaut", 320, 280, 320, WOOD), Picture("moon", 800, 280, 300, WOOD)),
    ),
    "kitchen": Room(
        "left", "#efe9dc", "#b8b0a5", ("#788f9c", 200, 800),
        (Picture("coffee", 360, 280, 380, WOOD), Picture("galaxies", 860, 280, 270)),
    ),
}  # fmt: skip


class RoomPainter:
    """Draws rooms with photographs of `find_photographs`."""

    def __init__(self, sources: Mapping[str, tuple[Path, Path]]) -> None:
        """Take the photographs from these files."""
        self._sources = sources

    def photograph(self, name: str) -> Image.Image:
        """Return the photograph of a room, lit unevenly and with noise; the same every time."""
        room = ROOMS[name]
        source, target = np.float32(VIEWS[room.view]) * np.float32(WALL), np.float32(CORNERS) * np.float32(PHOTOGRAPH)
        transform = cv2.getPerspectiveTransform(source, target)
        seen = cv2.warpPerspective(np.asarray(self._wall(room)), transform, PHOTOGRAPH, flags=cv2.INTER_AREA)
        y, x = np.mgrid[-1 : 1 : PHOTOGRAPH[1] * 1j, -1 : 1 : PHOTOGRAPH[0] * 1j]
        light = room.light * (1.06 - 0.2 * (x**2 + (y + 0.2) ** 2))
        noise = np.random.default_rng(list(name.encode())).normal(0, 3, seen.shape)
        return Image.fromarray(np.clip(seen * light[..., None] + noise, 0, 255).astype(np.uint8))

    def _wall(self, room: Room) -> Image.Image:
        wall = self._texture(room)
        draw = ImageDraw.Draw(wall)
        draw.rectangle((0, FLOOR, *WALL), room.floor)
        for y in range(FLOOR + 40, WALL[1], 55):
            draw.line((0, y, WALL[0], y), _darker(room.floor), 3)
        draw.rectangle((0, FLOOR - 26, WALL[0], FLOOR), "#f3f1ec")
        for picture in room.pictures:
            self._hang(wall, picture)
        _draw_sofa(wall, *room.sofa)
        return wall

    def _texture(self, room: Room) -> Image.Image:
        """Return the bare wall: bricks, or plaster with soft stains."""
        grey = self._read("brick" if room.brick else "gravel").convert("L").rotate(90).resize((600, 600))
        pattern = np.tile(np.asarray(grey, np.float32), (2, 2))[: WALL[1], : WALL[0]]
        if not room.brick:
            pattern = cv2.GaussianBlur(pattern, (0, 0), 6)
        shade = 1 + (0.75 if room.brick else 0.12) * (pattern - pattern.mean()) / 255
        colours = shade[..., None] * np.array(ImageColor.getrgb(room.wall))
        return Image.fromarray(np.clip(colours, 0, 255).astype(np.uint8))

    def _hang(self, wall: Image.Image, picture: Picture) -> None:
        pixels = self._read(picture.name)
        height = round(picture.width * pixels.height / pixels.width)
        left, top = picture.x - picture.width // 2, picture.y - height // 2
        mount = (left - 20, top - 20, left + picture.width + 20, top + height + 20)
        frame = (mount[0] - 9, mount[1] - 9, mount[2] + 9, mount[3] + 9)
        _cast_shadow(wall, frame, radius=2, offset=10)
        draw = ImageDraw.Draw(wall)
        draw.rectangle(frame, picture.frame)
        draw.rectangle(mount, "#f7f5ef")
        wall.paste(pixels.resize((picture.width, height), Image.Resampling.LANCZOS), (left, top))

    def _read(self, name: str) -> Image.Image:
        with Image.open(self._sources[name][0]) as opened:
            return opened.convert("RGB")


def _draw_sofa(wall: Image.Image, colour: str, left: int, right: int) -> None:
    draw = ImageDraw.Draw(wall)
    dark, middle = _darker(colour), (left + right) // 2
    _cast_shadow(wall, (left, 560, right, 810), radius=30, offset=14)
    draw.rounded_rectangle((left + 20, 560, right - 20, 760), 36, dark)
    for edges in ((left + 40, middle - 4), (middle + 4, right - 40)):
        draw.rounded_rectangle((edges[0], 575, edges[1], 730), 26, colour)
    draw.rounded_rectangle((left + 30, 690, right - 30, 800), 26, colour)
    draw.line((middle, 700, middle, 796), dark, 4)
    for x in (left, right - 64):
        draw.rounded_rectangle((x, 640, x + 64, 815), 30, dark)
        draw.rectangle((x + 20, 812, x + 42, 842), "#4a3728")


def _cast_shadow(wall: Image.Image, box: tuple[int, int, int, int], radius: int, offset: int) -> None:
    mask = Image.new("L", WALL)
    ImageDraw.Draw(mask).rounded_rectangle([edge + offset for edge in box], radius, fill=140)
    wall.paste("#000000", mask=mask.filter(ImageFilter.GaussianBlur(offset)))


def _darker(colour: str) -> tuple[int, ...]:
    return tuple(round(0.77 * value) for value in ImageColor.getrgb(colour))
