"""The example ends in a reconstruction: of a corner with known cameras, and of real photographs where there are some."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from rendered_room import DATA, SIZE, render, views

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "examples"))

import reconstruct  # noqa: E402

sys.path.remove(str(ROOT / "examples"))
OTHERS = ("chelsea.png", "retina.jpg", "rocket.jpg", "page.png")  # photographs of something else
PHOTOGRAPHS = os.environ.get("POLYVOC_PHOTOGRAPHS")
Array = npt.NDArray[np.float64]


def aligned(places: Array, truth: Array) -> Array:
    """Move, turn and scale places [n, 3] onto the truth, as well as can be (Umeyama, PAMI 1991)."""
    a, b = places - places.mean(axis=0), truth - truth.mean(axis=0)
    u, s, v = np.linalg.svd(b.T @ a)
    signs = np.array([1, 1, np.linalg.det(u @ v)])
    return np.asarray((s * signs).sum() / (a**2).sum() * a @ ((u * signs) @ v).T + truth.mean(axis=0))


def test_a_corner_is_reconstructed_where_it_is(tmp_path: Path) -> None:
    cameras = {f"corner/{number}.jpg": view for number, view in enumerate(views(6))}
    (tmp_path / "photos" / "corner").mkdir(parents=True)
    for name, view in cameras.items():
        render(view).save(tmp_path / "photos" / name, quality=95)
    for name in OTHERS:
        Image.open(DATA / name).convert("RGB").resize(SIZE).save(tmp_path / "photos" / f"{Path(name).stem}.jpg")
    models = reconstruct.reconstruct(tmp_path / "photos", tmp_path / "work", top=5)
    best = models[0]
    assert {image.name for image in best.images.values()} == set(cameras)
    assert best.num_points3D() > 300
    found = np.array([image.projection_center() for image in best.images.values()])
    truth = np.array([cameras[image.name].centre for image in best.images.values()])
    assert np.linalg.norm(aligned(found, truth) - truth, axis=1).max() < 0.05  # of 4.2 from the corner
    assert (tmp_path / "work" / "pairs.txt").read_text().count("corner/0.jpg corner/1.jpg") == 1


@pytest.mark.skipif(PHOTOGRAPHS is None, reason="POLYVOC_PHOTOGRAPHS names no folder with holidays150 in it")
def test_real_photographs_are_reconstructed(tmp_path: Path) -> None:
    paths = sorted((Path(str(PHOTOGRAPHS)) / "holidays150").glob("*.jpg"))
    sizes = Counter(path.name[:4] for path in paths)
    largest = max(sizes, key=sizes.__getitem__)
    (tmp_path / "photos").mkdir()
    for path in paths[:3] + [path for path in paths if path.name.startswith(largest)][:5]:
        (tmp_path / "photos" / path.name).symlink_to(path)
    points = []
    for seed in range(4):  # the mapper draws its first pair at random, and a poor one ends in a model of a few points
        reconstruct.pycolmap.set_random_seed(seed)
        models = reconstruct.reconstruct(tmp_path / "photos", tmp_path / f"work{seed}", top=5)
        for model in models:  # all of one group: the same first four digits
            assert len({image.name[:4] for image in model.images.values()}) == 1
        points.append(max((model.num_points3D() for model in models), default=0))
        if points[-1] > 50:
            break
    assert max(points) > 50, points
