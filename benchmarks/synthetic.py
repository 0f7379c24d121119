"""An index of synthetic images, complete with a catalogue, from the features of real photographs as in `endtoend.py`.

python benchmarks/synthetic.py PHOTOGRAPHS INDEX [--images 10000] [--cache FOLDER]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from endtoend import Photographs
from polyvoc.experiments.cache import default_cache
from polyvoc.index.catalogue import ImageRow, SegmentRow
from polyvoc.index.check import check
from polyvoc.index.segment import Batch, Segment
from polyvoc.index.writer import IndexWriter
from polyvoc.storage.files import META, checksum
from polyvoc.storage.folders import FileState, file_state

SEGMENT = 2_500  # images


def synthetic_index(folder: Path, files: list[Path], count: int, cache: Path) -> None:
    """Make a synthetic index unless it exists; the first images have the paths of real files, for thumbnails."""
    if folder.exists():
        return
    photographs = Photographs(files, cache)
    partial = folder.with_name(f"{folder.name}.partial")
    with IndexWriter.open(partial) as writer:
        for first in range(writer.catalogue.next_image(), count + 1, SEGMENT):
            commit(writer, photographs.images(first, min(SEGMENT, count + 1 - first)), files)
            print(f"images {first} and following", flush=True)
    errors = list(check(partial))
    assert not errors, errors
    partial.rename(folder)


def commit(writer: IndexWriter, batch: Batch, files: list[Path]) -> None:
    """Add a batch to an index, as the writer does for photographs."""
    catalogue, number = writer.catalogue, writer.catalogue.next_segment()
    folder = writer.folder.segment_folder(number)
    segment = Segment.build(batch, tuple(catalogue.setting("sizes")), catalogue.setting("fine")["size"])
    segment.save(folder)
    rows = []
    for position, (image, length) in enumerate(zip(batch.ids.tolist(), np.diff(batch.feature_starts).tolist(), strict=True)):
        path, state = f"/synthetic/{image:06d}.jpg", FileState(None, None)
        if image <= len(files):
            path, state = str(files[image - 1]), file_state(files[image - 1])
        rows.append(ImageRow(image, path, state, None, 1024, 768, length, number, position))
    with catalogue.transaction():
        catalogue.add_segment(number, SegmentRow(segment.n_images, segment.n_features, checksum(folder / META)))
        catalogue.add_images(rows)
        catalogue.count_commit()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("index", type=Path)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--cache", type=Path, default=default_cache())
    arguments = parser.parse_args()
    synthetic_index(arguments.index, sorted(arguments.photographs.absolute().rglob("*.jpg")), arguments.images, arguments.cache)


if __name__ == "__main__":
    main()
