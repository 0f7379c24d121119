"""The first search of somebody who has just installed polyvoc: drawn photographs, indexed and searched by the command."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

SCENES = 4


def draw(seed: int) -> Image.Image:
    """Draw something with details of all sizes: noise, enlarged by several factors."""
    rng = np.random.default_rng(seed)
    levels = [
        np.asarray(Image.fromarray(rng.integers(0, 255, (side, side), np.uint8)).resize((480, 480), Image.Resampling.BICUBIC))
        for side in (12, 24, 48, 96)
    ]
    return Image.fromarray(np.mean(levels, axis=0).astype(np.uint8)).point(lambda level: min(255, max(0, 3 * level - 250)))


def main() -> None:
    """Index the scenes, search with a turned part of each, and compare."""
    command = str(Path(sys.executable).with_name("polyvoc"))
    with tempfile.TemporaryDirectory() as folder:
        photographs, index = Path(folder, "photographs"), Path(folder, "photos.polyvoc")
        photographs.mkdir()
        for seed in range(SCENES):
            draw(seed).save(photographs / f"{seed}.jpg")
        subprocess.run([command, "index", photographs, "--index", index], check=True)
        for seed in range(SCENES):
            query = Path(folder, "query.jpg")
            draw(seed).rotate(20).crop((90, 90, 390, 390)).save(query)
            done = subprocess.run(
                [command, "search", query, "--index", index, "--json"], check=True, capture_output=True, text=True
            )
            found = json.loads(done.stdout)
            best = found["results"][0]["hits"][0]
            if Path(best["path"]).name != f"{seed}.jpg" or best["inliers"] < 10:
                raise SystemExit(f"scene {seed}: the best hit is {best}")
    print(f"{SCENES} searches found what they should")


if __name__ == "__main__":
    main()
