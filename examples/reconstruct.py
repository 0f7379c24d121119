"""From a folder of photographs to a sparse reconstruction: COLMAP's features, polyvoc's pairs, COLMAP's mapper.

    pip install 'polyvoc[colmap]'
    python examples/reconstruct.py PHOTOGRAPHS WORK

COLMAP finds features; polyvoc indexes those and says which photographs show the same thing; COLMAP matches these pairs only,
and maps. WORK gets database.db, photos.polyvoc, pairs.txt and sparse/, which COLMAP's own programs open.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from polyvoc.features.colmap import match_pairs, quiet, write_pairs
from polyvoc.features.feature_files import open_features
from polyvoc.index.writer import IndexWriter, add_feature_file
from polyvoc.options import PairOptions
from polyvoc.search.index import Index

import pycolmap  # isort: skip - after Pillow, which polyvoc loads: where pycolmap is first, Pillow fails to write PNG


def reconstruct(photographs: Path, work: Path, top: int = 20, one_camera: bool = False) -> list[pycolmap.Reconstruction]:
    """Give the models that COLMAP makes of photographs, the one with the most images first."""
    work.mkdir(parents=True, exist_ok=True)
    database, index = work / "database.db", work / "photos.polyvoc"
    mode = pycolmap.CameraMode.SINGLE if one_camera else pycolmap.CameraMode.AUTO
    with quiet(pycolmap):
        pycolmap.extract_features(database, photographs, camera_mode=mode)
    with IndexWriter.open(index) as writer:
        add_feature_file(writer, open_features(database), str(photographs))
    pairs = find_pairs(index, photographs, top)
    write_pairs(work / "pairs.txt", pairs)
    seen = match_pairs(database, pairs)
    print(f"{len(pairs)} pairs, {seen} of them show the same thing")
    (work / "sparse").mkdir(exist_ok=True)
    with quiet(pycolmap):
        models = pycolmap.incremental_mapping(database, photographs, work / "sparse")
    return sorted(models.values(), key=lambda model: -model.num_reg_images())


def find_pairs(path: Path, photographs: Path, top: int) -> list[tuple[str, str]]:
    """Give pairs of names, as the database has them: each image with those that are most like it."""
    with Index.open(path) as index:
        names = {row.image: os.path.relpath(row.path, photographs.absolute()) for row in index.images()}
        pairs = index.pairs(PairOptions(top=top))
    return [(names[a], names[b]) for a, b in zip(pairs["first"].tolist(), pairs["second"].tolist(), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path, metavar="PHOTOGRAPHS")
    parser.add_argument("work", type=Path, metavar="WORK")
    parser.add_argument("--top", type=int, default=20, help="images that each one is paired with")
    parser.add_argument(
        "--one-camera", action="store_true", help="all photographs were taken with the same camera and focal length"
    )
    given = parser.parse_args()
    models = reconstruct(given.photographs, given.work, given.top, given.one_camera)
    for model in models:
        error = model.compute_mean_reprojection_error()
        print(f"{model.num_reg_images()} images, {model.num_points3D()} points, error {error:.2f} pixels")
    if not models:
        raise SystemExit("no model: the photographs show too little of the same thing, or all from one place")


if __name__ == "__main__":
    main()
