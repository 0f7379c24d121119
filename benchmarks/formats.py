"""Photographs in the formats that people have: are they indexed, and found as well as the JPEG files they were made from?

    python benchmarks/formats.py PHOTOGRAPHS --work FOLDER [--groups 60]

PHOTOGRAPHS is the folder ukbench500: four photographs of each thing. The first one of each group is written in every format to an
index of its own; the second one, as it is, is the query: is the first hit of the same group, and likely? Then files that are
broken in several ways are indexed beside sound ones: each must be among the problems or the skipped files, with its reason.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pillow_jxl  # noqa: F401 - registers its format
from PIL import Image

from machine import write_result
from polyvoc.index.writer import IndexWriter
from polyvoc.search.index import Index

GROUP = 4  # photographs of Ukbench
SEED = 1


def saved(form: str, **options: Any) -> Callable[[Image.Image], bytes]:
    """Return a function that writes an image in a format of Pillow."""

    def write(image: Image.Image) -> bytes:
        out = io.BytesIO()
        image.save(out, form, **options)
        return out.getvalue()

    return write


def deep_heic(image: Image.Image) -> bytes:
    values = np.asarray(image).astype(np.uint16) * 257
    out = io.BytesIO()
    pillow_heif.from_bytes("RGB;16", image.size, values.tobytes()).save(out, quality=80)
    return out.getvalue()


def deep_png(image: Image.Image) -> bytes:
    return saved("PNG")(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257))


def animated(form: str) -> Callable[[Image.Image], bytes]:
    """Return a function that writes an animation whose first picture is the image, the second its mirror image."""
    return lambda image: saved(form, save_all=True, append_images=[image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)])(image)


FORMATS: dict[str, tuple[str, Callable[[Image.Image], bytes]]] = {  # suffix, and what writes it
    "JPEG": ("jpg", saved("JPEG", quality=85)),
    "HEIC": ("heic", saved("HEIF", quality=60)),
    "HEIC, 10 bits": ("HEIC", deep_heic),
    "AVIF": ("avif", saved("AVIF", quality=60)),
    "JPEG XL": ("jxl", saved("JXL", quality=80)),
    "WebP": ("webp", saved("WEBP", quality=75)),
    "TIFF": ("tiff", saved("TIFF")),
    "PNG, 16 bits": ("png", deep_png),
    "animated GIF": ("gif", animated("GIF")),
    "animated WebP": ("webp", animated("WEBP")),
}
BROKEN: dict[str, Callable[[bytes], bytes]] = {
    "cut in half": lambda content: content[: len(content) // 2],
    "only a header": lambda content: content[:64],
    "empty": lambda content: b"",
    "noise": lambda content: np.random.default_rng(SEED).bytes(len(content)),
    "zeros in the middle": lambda content: content[: len(content) // 4] + bytes(len(content) // 4) + content[len(content) // 2 :],
}  # fmt: skip
OTHERS = ("film.mp4", "notes.txt", "scene.xcf", "._IMG_0001.HEIC")  # files that are no photographs


def index_files(folder: Path, index: Path) -> Any:
    with IndexWriter.open(index) as writer:
        return writer.update([folder])


def measure_format(name: str, firsts: list[Path], queries: list[Path], work: Path) -> dict[str, Any]:
    """Write the first photographs in a format, index them, and search with the second ones."""
    suffix, write = FORMATS[name]
    folder, index, size = work / name, work / f"{name}.polyvoc", 0
    folder.mkdir(parents=True)
    for path in firsts:
        with Image.open(path) as picture:
            content = write(picture.convert("RGB"))
        (folder / f"{path.stem}.{suffix}").write_bytes(content)
        size += len(content)
    begin = time.perf_counter()
    report = index_files(folder, index)
    seconds, found, likely = time.perf_counter() - begin, 0, 0
    with Index.open(index) as opened:
        for path, query in zip(firsts, queries, strict=True):
            hits = opened.search(query)
            right = bool(hits) and Path(hits[0].path).stem == path.stem
            found += right
            likely += right and bool(hits.likely)
    return {"files": len(firsts), "bytes": size, "indexed": report.added, "found": found, "likely": likely, "seconds": seconds}


def measure_broken(firsts: list[Path], work: Path) -> dict[str, Any]:
    """Index one sound and some broken files of every format, and files that are no photographs; return what was said of them."""
    folder = work / "broken"
    folder.mkdir()
    with Image.open(firsts[0]) as picture:
        image = picture.convert("RGB")
    for name, (suffix, write) in FORMATS.items():
        content = write(image)
        (folder / f"{name} sound.{suffix}").write_bytes(content)
        for how, change in BROKEN.items():
            (folder / f"{name} {how}.{suffix}").write_bytes(change(content))
    for name in OTHERS:
        (folder / name).write_bytes(b"x")
    files = sum(path.is_file() for path in folder.iterdir())
    report = index_files(folder, work / "broken.polyvoc")
    with Index.open(work / "broken.polyvoc") as opened:
        indexed = {Path(row.path).name for row in opened.images()}
    problems = {
        Path(one.path).name: re.split("[;:,(]", one.reason.removeprefix(f"{one.path}: "))[0].strip() for one in report.problems
    }
    said = indexed | problems.keys() | {name for name in OTHERS if not name.startswith("._")}
    return {
        "files": files,
        "indexed": sorted(indexed),
        "problems": Counter(problems.values()),
        "skipped": report.skipped,
        "not mentioned": sorted(set(os.listdir(folder)) - said - {"._IMG_0001.HEIC"}),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--groups", type=int, default=60)
    given = parser.parse_args()
    pillow_heif.register_heif_opener()
    paths = sorted(given.photographs.glob("*.jpg"))
    firsts, queries = (paths[place::GROUP][: given.groups] for place in (0, 1))
    given.work.mkdir(parents=True, exist_ok=True)
    try:
        rows = {name: measure_format(name, firsts, queries, given.work) for name in FORMATS}
        broken = measure_broken(firsts, given.work)
    finally:
        shutil.rmtree(given.work)
    for name, row in rows.items():
        print(f"{name:<16}", row)
    print(broken)
    print(write_result("formats", {"groups": len(firsts), "formats": rows, "broken": broken}))


if __name__ == "__main__":
    main()
