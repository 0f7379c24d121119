"""From a folder of photographs to a sparse reconstruction: COLMAP's features, polyvoc's pairs, COLMAP's mapper.

    pip install 'polyvoc[colmap]'
    python examples/reconstruct.py PHOTOGRAPHS WORK

COLMAP extracts features; polyvoc indexes them and finds the pairs that show the same object; COLMAP matches these pairs only
and maps them. WORK gets database.db, photos.polyvoc, pairs.txt and sparse/, a model that COLMAP can open.
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

import pycolmap  # isort: skip - after Pillow, which polyvoc loads: if pycolmap is loaded first, Pillow crashes when it writes PNG


def reconstruct(photographs: Path, work: Path, top: int = 20, one_camera: bool = False) -> list[pycolmap.Reconstruction]:
    """Return the models of COLMAP, the one with the most images first."""
    work.mkdir(parents=True, exist_ok=True)
    database, index = work / "database.db", work / "photos.polyvoc"
    mode = pycolmap.CameraMode.SINGLE if one_camera else pycolmap.CameraMode.AUTO
    with quiet(pycolmap):
        pycolmap.extract_features(database, photographs, camera_mode=mode)
    with IndexWriter.open(index) as writer:
        add_feature_file(writer, open_features(database), str(photographs))
    pairs = find_pairs(index, photographs, top)
    write_pairs(work / "pairs.txt", pairs)
    verified = match_pairs(database, pairs)
    print(f"{len(pairs)} pairs, {verified} of them verified")
    (work / "sparse").mkdir(exist_ok=True)
    with quiet(pycolmap):
        models = pycolmap.incremental_mapping(database, photographs, work / "sparse")
    return sorted(models.values(), key=lambda model: -model.num_reg_images())


def find_pairs(path: Path, photographs: Path, top: int) -> list[tuple[str, str]]:
    """Return pairs of names as in the database: each image with its best hits."""
    with Index.open(path) as index:
        names = {row.image: os.path.relpath(row.path, photographs.absolute()) for row in index.images()}
        pairs = index.pairs(PairOptions(top=top))
    return [(names[a], names[b]) for a, b in zip(pairs["first"].tolist(), pairs["second"].tolist(), strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path, metavar="PHOTOGRAPHS")
    parser.add_argument("work", type=Path, metavar="WORK")
    parser.add_argument("--top", type=int, default=20, help="number of images that each one is paired with")
    parser.add_argument(
        "--one-camera", action="store_true", help="all photographs were taken with the same camera and focal length"
    )
    arguments = parser.parse_args()
    models = reconstruct(arguments.photographs, arguments.work, arguments.top, arguments.one_camera)
    for model in models:
        error = model.compute_mean_reprojection_error()
        print(f"{model.num_reg_images()} images, {model.num_points3D()} points, error {error:.2f} pixels")
    if not models:
        raise SystemExit("no model: the photographs have too little in common, or were all taken from one position")


if __name__ == "__main__":
    main()
