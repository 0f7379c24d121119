"""Feature files of other programs, for tests: a COLMAP database of real photographs, HDF5 files of hloc."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import skimage
from PIL import Image

from polyvoc.features.colmap import quiet

import pycolmap  # isort: skip - after Pillow: see examples/reconstruct.py

DATA = Path(skimage.__file__).parent / "data"
LEFT, RIGHT = "stereo/left.png", "stereo/right.png"  # two views of a real scene, the second camera to the right of the first
COLMAP_NAMES = [LEFT, RIGHT, "astronaut.jpg", "chelsea.jpg"]
HLOC_FILE = "feats-superpoint-n4096-r1024.h5"


@pytest.fixture(scope="module")
def colmap_photographs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of four photographs, two of them a stereo pair."""
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "stereo").mkdir()
    for name in COLMAP_NAMES:
        source = f"motorcycle_{Path(name).stem}.png" if "stereo" in name else f"{Path(name).stem}.png"
        Image.open(DATA / source).convert("L").resize((480, 360)).save(folder / name)
    return folder


def colmap_database(photographs: Path, database: Path, normalisation: str = "L1_ROOT") -> Path:
    """Extract features with COLMAP."""
    options = pycolmap.FeatureExtractionOptions()
    options.sift.normalization = getattr(pycolmap.Normalization, normalisation)
    options.sift.max_num_features = 1500
    reader = pycolmap.ImageReaderOptions()
    reader.camera_model, reader.camera_params = "SIMPLE_PINHOLE", "640,240,180"
    mode = pycolmap.CameraMode.SINGLE
    with quiet(pycolmap):
        pycolmap.extract_features(database, photographs, COLMAP_NAMES, mode, reader_options=reader, extraction_options=options)
    return database


def add_hloc_image(path: Path, name: str = "db/1.jpg", n: int = 7, **arrays: object) -> Path:
    """Add an image as hloc writes it, in half precision; `arrays` replace some of its arrays, None omits one."""
    rng = np.random.default_rng(n)
    usual: dict[str, object] = {
        "keypoints": (rng.random((n, 2)) * 400).astype(np.float16),
        "descriptors": rng.normal(size=(256, n)).astype(np.float16),
        "scores": rng.random(n).astype(np.float16),
        "image_size": np.array([640, 480]),
    }
    with h5py.File(path, "a", libver="latest") as file:
        group = file.create_group(name)
        for part, values in {**usual, **arrays}.items():
            if values is not None:
                group.create_dataset(part, data=values)
        if "keypoints" in group:
            group["keypoints"].attrs["uncertainty"] = 1.5
    return path
