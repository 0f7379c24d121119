"""Any model returns one unit vector per image, or raises an error of one line."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from onnxfiles import FLOAT16, INT64, UINT8, chain, model, node, value_info
from polyvoc.errors import ImageError, OptionError
from polyvoc.features.decode import read_rgb
from polyvoc.features.embedding import DEFAULT_SIDE, MAX_SIDE, Embedder, Preprocessing
from samples import photograph

GREY = np.zeros((40, 40, 3), np.uint8)
IMAGE = (1, 3, "h", "w")
PLAIN = Preprocessing(side=64, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))  # pixels / 255


def mean_colour(pixels: np.ndarray) -> np.ndarray:
    return pixels.mean(axis=(0, 1))


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values)


def colours(path: Path, colour: tuple[int, int, int] = (200, 100, 50), size: tuple[int, int] = (80, 60)) -> Path:
    Image.new("RGB", size, colour).save(path)
    return path


def stored(folder: Path, data: bytes, name: str = "model.onnx") -> Path:
    (folder / name).write_bytes(data)
    return folder / name


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A model that returns the mean of each channel of its input."""
    pytest.importorskip("onnxruntime")
    return stored(tmp_path, chain("GlobalAveragePool", "Flatten", output=(1, 3)))


def load_error(path: Path, preprocessing: Preprocessing | None = None) -> str:
    """Return the error of a model: one line that names its file."""
    with pytest.raises(OptionError) as caught:
        Embedder.load(path, preprocessing)
    assert len(str(caught.value).splitlines()) == 1 and path.stem in str(caught.value)
    return str(caught.value)


# --- functions


def test_a_function_returns_unit_vectors(tmp_path: Path) -> None:
    embedder = Embedder.of(mean_colour, "mean colour", side=64)
    vector = embedder.embed(colours(tmp_path / "a.png"))
    assert (vector.dtype, vector.shape, embedder.dimension, embedder.file) == (np.float32, (3,), 3, None)
    assert np.allclose(vector, unit(np.array([200, 100, 50])))


def test_a_function_gets_upright_colours_of_bounded_size(tmp_path: Path) -> None:
    inputs = []

    def record(pixels: np.ndarray) -> list[int]:
        inputs.append(pixels)
        return [1, 2]

    path = photograph(tmp_path / "a.jpg", 1, (300, 200))
    Embedder.of(record, "record", side=96).embed(path)
    assert np.array_equal(inputs[-1], read_rgb(path, 96))
    assert inputs[-1].shape == (64, 96, 3)


@pytest.mark.parametrize("output", [np.array([3.0, 4.0]), [[3, 4]], (np.float16(3), np.float16(4)), np.array([3e200, 4e200])])
def test_outputs_of_any_type_are_vectors(output: object) -> None:
    assert np.allclose(Embedder.of(lambda pixels: output, "constant").embed_pixels(GREY), [0.6, 0.8])


@pytest.mark.parametrize(
    "output", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [], 5.0, np.ones((2, 2)), np.ones((1, 2, 3)), "text", None]
)
def test_an_output_without_direction_raises_at_once(output: object) -> None:
    with pytest.raises(OptionError, match=r"^model 'wrong': it returns no vector.*$"):
        Embedder.of(lambda pixels: output, "wrong")


def test_errors_of_one_image_name_it(tmp_path: Path) -> None:
    embedder = Embedder.of(mean_colour, "mean colour")
    black = colours(tmp_path / "black.png", (0, 0, 0))
    for source, name, expected in (
        (black, None, r"black\.png: the model returns no vector for it .*all zero"),
        (black.read_bytes(), "photo 7", "^photo 7: the model returns no vector"),
        (tmp_path / "missing.png", None, "no such file"),
        (b"text", "photo 8", "^photo 8: not an image"),
    ):
        with pytest.raises(ImageError, match=expected) as caught:
            embedder.embed(source, name)
        assert len(str(caught.value).splitlines()) == 1


def test_a_wrong_side_or_another_length_raises() -> None:
    for side in (0, 31, MAX_SIDE + 1):
        with pytest.raises(OptionError, match=f"side={side}"):
            Embedder.of(mean_colour, "mean colour", side=side)
    lengths = iter([3, 4])
    embedder = Embedder.of(lambda pixels: np.ones(next(lengths)), "growing")
    with pytest.raises(OptionError, match="4 numbers instead of 3"):
        embedder.embed_pixels(GREY)


# --- ONNX files


def test_preprocessing_is_applied(network: Path, tmp_path: Path) -> None:
    path = colours(tmp_path / "a.png")
    for options in (Preprocessing(64, (0.1, 0.2, 0.3), (0.5, 0.4, 0.2)), None):
        used = options or Preprocessing()
        values = (np.array([200, 100, 50]) / 255 - used.mean) / used.std
        assert np.allclose(Embedder.load(network, options).embed(path), unit(values), atol=1e-5)
    half = stored(tmp_path, chain("Identity", kind=FLOAT16), "half.onnx")
    assert np.allclose(Embedder.load(half, PLAIN).embed(path), unit(np.array([200, 100, 50])), atol=1e-3)


@pytest.mark.parametrize(
    "shape", [IMAGE, ("n", "c", "h", "w"), (1, "h", "w", 3), (1, 3, 48, 40), ("n", 48, 40, 3), (1, 3, 40, "w")]
)
def test_maps_of_either_layout_are_averaged(shape: tuple, network: Path, tmp_path: Path) -> None:
    path = photograph(tmp_path / "a.png", 1)
    file = stored(tmp_path, chain("Identity", shape=shape, output=shape), "map.onnx")
    vector = Embedder.load(file, Preprocessing(mean=PLAIN.mean, std=PLAIN.std)).embed(path)
    assert np.allclose(vector, unit(mean_colour(read_rgb(path, 1024))), atol=0.01)


def test_proportions_are_kept_if_the_model_allows(network: Path, tmp_path: Path) -> None:
    """The models return their whole input: as many numbers as the image has."""
    free = stored(tmp_path, chain("Flatten", output=(1, "all")), "flat.onnx")
    fixed = stored(tmp_path, chain("Flatten", shape=(1, 3, 32, 48), output=(1, 4608)), "fixed.onnx")
    embedder = Embedder.load(free, PLAIN)
    assert embedder.dimension == 64 * 64 * 3  # a square was tried first
    with pytest.raises(OptionError, match=f"returns {64 * 48 * 3} numbers"):
        embedder.embed(colours(tmp_path / "a.png"))
    assert Embedder.load(fixed).embed(colours(tmp_path / "a.png")).shape == (4608,)


def test_another_output(network: Path, tmp_path: Path) -> None:
    steps = [node("Identity", ["image"], "map"), node("Neg", ["image"], "negative")]
    outputs = [value_info(name, IMAGE) for name in ("map", "negative")]
    path = stored(tmp_path, model(steps, [value_info("image", IMAGE)], outputs), "two.onnx")
    picture = colours(tmp_path / "a.png")
    first, second = (Embedder.load(path, Preprocessing(64, PLAIN.mean, PLAIN.std, name)) for name in (None, "negative"))
    assert np.allclose(first.embed(picture), -second.embed(picture))
    assert "no output 'third'; choose one of ['map', 'negative']" in load_error(path, Preprocessing(output="third"))


def test_threads_do_not_matter(network: Path, tmp_path: Path) -> None:
    paths = [photograph(tmp_path / f"{seed}.png", seed) for seed in range(6)]
    one, every = Embedder.load(network, PLAIN, threads=1), Embedder.load(network, PLAIN)
    with ThreadPoolExecutor(3) as pool:
        vectors = list(pool.map(one.embed, paths))
    assert np.allclose(vectors, [every.embed(path) for path in paths], atol=1e-5)
    with pytest.raises(OptionError, match="threads=0"):
        Embedder.load(network, threads=0)


def test_the_json_file_beside_a_model(network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(network.parent)
    default = Embedder.load(network.name)
    assert (default.long_side, default.file) == (DEFAULT_SIDE, str(network))
    network.with_suffix(".json").write_text(json.dumps({"side": 64, "mean": [0, 0, 0], "std": [1, 1, 1]}), encoding="utf-8")
    changed = Embedder.load(network)
    assert changed.long_side == 64
    assert np.allclose(changed.embed(colours(tmp_path / "a.png")), unit(np.array([200, 100, 50])), atol=1e-5)
    assert Embedder.load(network, Preprocessing()).fingerprint == default.fingerprint  # an argument has priority


@pytest.mark.parametrize(
    "content",
    ["", "[1, 2]", "null", '{"side": "64"}', '{"side": 1e9}', '{"mean": [1, 2]}', '{"mean": [NaN, 0, 0]}', '{"std": [0, 1, 1]}',
     '{"std": 1}', '{"mean": {"a": 1}}', '{"unknown": 1}', '{"output": 3}', "[" * 100_000,
     '{"std": [1, 1, 1' + "0" * 400 + "]}", '{"side": true}'],
)  # fmt: skip
def test_a_wrong_json_file_is_one_line(content: str, tmp_path: Path) -> None:
    path = stored(tmp_path, b"")
    path.with_suffix(".json").write_text(content, encoding="utf-8")
    assert "model.json" in load_error(path)


def test_fingerprints_change_with_the_model_and_its_preprocessing(network: Path, tmp_path: Path) -> None:
    same = stored(tmp_path, network.read_bytes(), "copy.onnx")
    other = stored(tmp_path, chain("GlobalMaxPool", "Flatten", output=(1, 3)), "other.onnx")
    embedders = [
        Embedder.load(network), Embedder.load(other), Embedder.load(network, Preprocessing(side=100)),
        Embedder.load(network, PLAIN), Embedder.of(mean_colour, "one"), Embedder.of(mean_colour, "two"),
        Embedder.of(mean_colour, "one", side=100),
    ]  # fmt: skip
    prints = [embedder.fingerprint for embedder in embedders]
    assert len(set(prints)) == len(prints)
    assert all(len(bytes.fromhex(fingerprint)) == 8 for fingerprint in prints)
    assert Embedder.load(same, threads=1).fingerprint == prints[0]  # path and threads do not matter
    assert Embedder.load(network, Preprocessing(side=DEFAULT_SIDE)).fingerprint == prints[0]


# --- models that cannot be used


SUM = model(
    [node("Add", ["image", "mask"], "sum")], [value_info(n, IMAGE) for n in ("image", "mask")], [value_info("sum", IMAGE)]
)
COUNT = model([node("Size", ["image"], "n")], [value_info("image", IMAGE)], [value_info("n", (), INT64)])
POOL = chain("GlobalAveragePool", "Flatten", output=(1, 3))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        *((data, "not a model that onnxruntime can run") for data in (b"", b"no model", bytes(1000), b"\xff" * 1000)),
        (POOL.replace(b"image", b"\xff\xffage"), "not a model that onnxruntime can run"),
        *((POOL[:length], "") for length in range(0, len(POOL) - 8, 5)),
        (model([], [value_info("image", IMAGE)], []), ""),
        *((chain("Identity", shape=shape, output=shape), "it needs one of floats")
          for shape in ((1, 4, "h", "w"), (2, 3, "h", "w"), (3, "h", "w"))),
        *((chain("Identity", kind=kind, output=IMAGE), "it needs one of floats") for kind in (UINT8, INT64)),
        (SUM, "it needs one of floats"),
        *((chain("Identity", shape=(1, 3, n, n), output=(1, 3, n, n)), f"{n} x {n} pixels") for n in (10**6, 0)),
        (chain("Sub"), "all zero or not finite"),
        (chain("Sub", "Div"), "all zero or not finite"),
        (COUNT, "shape [], not [d] or [1, d]"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_used_is_one_line(data: bytes, expected: str, network: Path, tmp_path: Path) -> None:
    assert expected in load_error(stored(tmp_path, data, "wrong.onnx"))


def test_a_missing_model(tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    for name in ("missing.onnx", "folder.onnx"):
        assert "no such file" in load_error(tmp_path / name)


def test_a_side_that_contradicts_the_model(network: Path, tmp_path: Path) -> None:
    path = stored(tmp_path, chain("Identity", shape=(1, 3, 40, 48), output=(1, 3, 40, 48)), "fixed.onnx")
    assert "48 x 40 pixels, not side=64" in load_error(path, PLAIN)
    assert Embedder.load(path, Preprocessing(side=48)).dimension == 3


def test_without_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(OptionError, match=re.escape("pip install 'polyvoc[embedding]'") + "$"):
        Embedder.load(stored(tmp_path, b"anything"))
    assert Embedder.of(mean_colour, "mean colour").dimension == 3  # functions do not need it
