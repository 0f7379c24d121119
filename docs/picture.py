"""Make the picture of docs/quickstart.md from a folder that `polyvoc demo` wrote: `python docs/picture.py polyvoc-demo`.

Only photographs in the public domain or under CC0 are shown (astronaut and rocket: NASA, SpaceX; cat and coffee: CC0).
"""

import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageOps

import polyvoc

QUERIES = ("astronaut", "coffee", "rocket", "cat")
SIDE, GAP, FRAME, HITS = 150, 12, 5, 6
RIGHT, WRONG, PAPER = "#1f9d55", "#d64545", "#ffffff"


def tile(path: Path, colour: str | None) -> Image.Image:
    """Return a square thumbnail, framed if it is a hit."""
    with Image.open(path) as photograph:
        picture = ImageOps.fit(photograph.convert("RGB"), (SIDE, SIDE), Image.Resampling.LANCZOS)
    if colour:
        ImageDraw.Draw(picture).rectangle((0, 0, SIDE - 1, SIDE - 1), outline=colour, width=FRAME)
    return picture


def main(demo: Path) -> None:
    """Compose one row per query: the query, a gap, its best hits."""
    index = polyvoc.open(demo / "photos.polyvoc")
    width = GAP * 3 + SIDE + HITS * (SIDE + GAP)
    sheet = Image.new("RGB", (width, GAP + len(QUERIES) * (SIDE + GAP)), PAPER)
    for row, name in enumerate(QUERIES):
        query = demo / "queries" / f"{name}.jpg"
        y = GAP + row * (SIDE + GAP)
        sheet.paste(tile(query, None), (GAP, y))
        for column, hit in enumerate(index.search(query, top=HITS)):
            colour = RIGHT if Path(hit.path).name.startswith(name) else WRONG
            sheet.paste(tile(Path(hit.path), colour), (GAP * 3 + SIDE + column * (SIDE + GAP), y))
    sheet.save(Path(__file__).with_name("demo.jpg"), quality=85)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
