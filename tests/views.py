"""Views of drawn scenes: rotated, smaller, darker, blurred, noisy. No two are copies."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from conftest import draw_scene

SCENES, VIEWS = 6, 3


def write_views(folder: Path) -> Path:
    """Write `<scene>/<view>.jpg` to a folder: each scene is a group."""
    for scene in range(SCENES):
        (folder / str(scene)).mkdir(parents=True)
        drawn = draw_scene(scene)
        for view in range(VIEWS):
            rng = np.random.default_rng([scene, view])
            size = (int(360 * 0.8**view), int(270 * 0.8**view))
            turned = drawn.rotate(20 * view, Image.Resampling.BICUBIC).resize(size, Image.Resampling.LANCZOS)
            pixels = np.asarray(turned.filter(ImageFilter.GaussianBlur(0.6)), np.float32)
            noisy = pixels * (0.6 + 0.2 * view) + rng.normal(0, 15, (size[1], size[0], 1))
            Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(folder / str(scene) / f"{view}.jpg", quality=70)
    return folder
