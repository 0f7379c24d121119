"""Any model gives one unit vector per photograph, or one clear line that says what is wrong with it."""

from __future__ import annotations

import json
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

PLAIN = Preprocessing(side=64, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))  # pixels / 255


def mean_colour(pixels: np.ndarray) -> np.ndarray:
    return pixels.mean(axis=(0, 1))


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values)


def colours(path: Path, colour: tuple[int, int, int] = (200, 100, 50), size: tuple[int, int] = (80, 60)) -> Path:
    Image.new("RGB", size, colour).save(path)
    return path


def stored(folder: Path, data: bytes, name: str = "model.onnx") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A model that gives the mean of each channel of its input."""
    pytest.importorskip("onnxruntime")
    return stored(tmp_path, chain("GlobalAveragePool", "Flatten", output=(1, 3)))


def refusal(path: Path, preparation: Preprocessing | None = None) -> str:
    """The message with which a model is refused: one line that names its file."""
    with pytest.raises(OptionError) as refused:
        Embedder.load(path, preparation)
    message = str(refused.value)
    assert len(message.splitlines()) == 1
    assert path.stem in message
    return message


# --- functions ----------------------------------------------------------------------------------------------


def test_a_function_gives_unit_vectors(tmp_path: Path) -> None:
    embedder = Embedder.of(mean_colour, "mean colour", side=64)
    vector = embedder.embed(colours(tmp_path / "a.png"))
    assert (vector.dtype, vector.shape, embedder.dimension) == (np.float32, (3,), 3)
    assert np.allclose(vector, unit(np.array([200, 100, 50])))


def test_a_function_sees_upright_colours_of_bounded_size(tmp_path: Path) -> None:
    seen = []

    def remember(pixels: np.ndarray) -> list[int]:
        seen.append(pixels)
        return [1, 2]

    path = photograph(tmp_path / "a.jpg", 1, (300, 200))
    Embedder.of(remember, "remember", side=96).embed(path)
    assert np.array_equal(seen[-1], read_rgb(path, 96))
    assert seen[-1].shape == (64, 96, 3)


@pytest.mark.parametrize("answer", [np.array([3.0, 4.0]), [[3, 4]], (np.float16(3), np.float16(4)), np.array([3e200, 4e200])])
def test_rows_of_any_kind_are_vectors(answer: object) -> None:
    embedder = Embedder.of(lambda pixels: answer, "constant")
    assert np.allclose(embedder.embed_pixels(np.zeros((40, 40, 3), np.uint8)), [0.6, 0.8])


@pytest.mark.parametrize(
    "answer", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0], [], 5.0, np.ones((2, 2)), np.ones((1, 2, 3)), "text", None]
)
def test_a_function_without_a_direction_is_refused_at_once(answer: object) -> None:
    with pytest.raises(OptionError, match="model 'wrong': it gives no vector") as refused:
        Embedder.of(lambda pixels: answer, "wrong")
    assert len(str(refused.value).splitlines()) == 1


def test_what_fails_on_one_photograph_is_said_of_it(tmp_path: Path) -> None:
    embedder = Embedder.of(mean_colour, "mean colour")
    with pytest.raises(ImageError, match=r"black\.png: the model gives no vector for it .*all zero") as refused:
        embedder.embed(colours(tmp_path / "black.png", (0, 0, 0)))
    assert len(str(refused.value).splitlines()) == 1
    with pytest.raises(ImageError, match="no such file"):
        embedder.embed(tmp_path / "missing.png")
    with pytest.raises(ImageError, match="not an image"):
        embedder.embed(b"text")


def test_a_function_must_not_change_its_length() -> None:
    lengths = iter([3, 4])
    embedder = Embedder.of(lambda pixels: np.ones(next(lengths)), "growing")
    with pytest.raises(OptionError, match="gives 4 numbers, once it gave 3"):
        embedder.embed_pixels(np.zeros((40, 40, 3), np.uint8))


@pytest.mark.parametrize("side", [0, 31, MAX_SIDE + 1])
def test_a_side_that_makes_no_sense_is_refused(side: int) -> None:
    with pytest.raises(OptionError, match=f"side={side}"):
        Embedder.of(mean_colour, "mean colour", side=side)


# --- ONNX files ---------------------------------------------------------------------------------------------


def test_a_network_gets_what_its_preparation_says(network: Path, tmp_path: Path) -> None:
    path = colours(tmp_path / "a.png")
    prepared = Preprocessing(side=64, mean=(0.1, 0.2, 0.3), std=(0.5, 0.4, 0.2))
    values = (np.array([200, 100, 50]) / 255 - prepared.mean) / prepared.std
    assert np.allclose(Embedder.load(network, prepared).embed(path), unit(values), atol=1e-5)
    default = (np.array([200, 100, 50]) / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    assert np.allclose(Embedder.load(network).embed(path), unit(default), atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "output"),
    [((1, 3, "h", "w"), (1, 3, "h", "w")), (("n", "c", "h", "w"), ("n", "c", "h", "w")), ((1, "h", "w", 3), (1, "h", "w", 3)),
     ((1, 3, 48, 40), (1, 3, 48, 40)), (("n", 48, 40, 3), ("n", 48, 40, 3)), ((1, 3, 40, "w"), (1, 3, 40, "w"))],
)  # fmt: skip
def test_maps_of_either_layout_are_averaged(shape: tuple, output: tuple, network: Path, tmp_path: Path) -> None:
    path = photograph(tmp_path / "a.png", 1)
    prepared = Preprocessing(mean=PLAIN.mean, std=PLAIN.std)
    found = Embedder.load(stored(tmp_path, chain("Identity", shape=shape, output=output), "map.onnx"), prepared).embed(path)
    assert np.allclose(found, unit(mean_colour(read_rgb(path, 1024))), atol=0.01)


def test_proportions_are_kept_where_the_model_allows(network: Path, tmp_path: Path) -> None:
    """Seen by a model that gives the whole input: as long as the photograph has numbers."""
    free = stored(tmp_path, chain("Flatten", output=(1, "all")), "flat.onnx")
    fixed = stored(tmp_path, chain("Flatten", shape=(1, 3, 32, 48), output=(1, 4608)), "fixed.onnx")
    embedder = Embedder.load(free, PLAIN)
    assert embedder.dimension == 64 * 64 * 3  # a square was tried first
    with pytest.raises(OptionError, match=f"gives {64 * 48 * 3} numbers"):
        embedder.embed(colours(tmp_path / "a.png"))
    assert Embedder.load(fixed).embed(colours(tmp_path / "a.png")).shape == (4608,)


def test_half_precision(network: Path, tmp_path: Path) -> None:
    half = stored(tmp_path, chain("Identity", kind=FLOAT16), "half.onnx")
    path = colours(tmp_path / "a.png")
    assert np.allclose(Embedder.load(half, PLAIN).embed(path), unit(np.array([200, 100, 50])), atol=1e-3)


def test_another_output_can_be_asked_for(network: Path, tmp_path: Path) -> None:
    steps = [node("Identity", ["image"], "map"), node("Neg", ["image"], "negative")]
    outputs = [value_info(name, (1, 3, "h", "w")) for name in ("map", "negative")]
    path = stored(tmp_path, model(steps, [value_info("image", (1, 3, "h", "w"))], outputs), "two.onnx")
    picture = colours(tmp_path / "a.png")
    first, second = (Embedder.load(path, Preprocessing(64, PLAIN.mean, PLAIN.std, name)) for name in (None, "negative"))
    assert np.allclose(first.embed(picture), -second.embed(picture))
    assert "no output 'third'; choose one of ['map', 'negative']" in refusal(path, Preprocessing(output="third"))


def test_many_are_as_one_by_one(tmp_path: Path) -> None:
    embedder = Embedder.of(mean_colour, "mean colour", side=64)
    paths = [photograph(tmp_path / f"{seed}.png", seed) for seed in range(5)]
    paths.insert(2, tmp_path / "missing.png")
    for threads in (1, 3):
        found = dict(embedder.embed_many(paths, threads))
        assert list(found) == paths
        error = found.pop(paths[2])
        assert isinstance(error, ImageError) and "no such file" in str(error)
        assert all(np.array_equal(vector, embedder.embed(path)) for path, vector in found.items())
    with pytest.raises(OptionError, match="threads=0"):
        embedder.embed_many(paths, 0)


def test_a_model_knows_its_file(network: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(network.parent)
    assert Embedder.load(network.name).file == str(network)
    assert Embedder.of(mean_colour, "mean colour").file is None


def test_threads_do_not_matter(network: Path, tmp_path: Path) -> None:
    paths = [photograph(tmp_path / f"{seed}.png", seed) for seed in range(6)]
    one, all_of_them = Embedder.load(network, PLAIN, threads=1), Embedder.load(network, PLAIN)
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(one.embed, paths))
    assert np.allclose(found, [all_of_them.embed(path) for path in paths], atol=1e-5)
    with pytest.raises(OptionError, match="threads=0"):
        Embedder.load(network, threads=0)


# --- what lies beside it ------------------------------------------------------------------------------------


def test_the_file_beside_a_model_says_how_to_prepare(network: Path, tmp_path: Path) -> None:
    plain = Embedder.load(network)
    assert plain.long_side == DEFAULT_SIDE
    network.with_suffix(".json").write_text(json.dumps({"side": 64, "mean": [0, 0, 0], "std": [1, 1, 1]}), encoding="utf-8")
    told = Embedder.load(network)
    assert told.long_side == 64
    assert np.allclose(told.embed(colours(tmp_path / "a.png")), unit(np.array([200, 100, 50])), atol=1e-5)
    assert Embedder.load(network, Preprocessing()).fingerprint == plain.fingerprint  # what is asked for goes first


@pytest.mark.parametrize(
    "content",
    ["", "[1, 2]", "null", '{"side": "64"}', '{"side": 1e9}', '{"mean": [1, 2]}', '{"mean": [NaN, 0, 0]}', '{"std": [0, 1, 1]}',
     '{"std": 1}', '{"mean": {"a": 1}}', '{"unknown": 1}', '{"output": 3}', "[" * 100_000,
     '{"std": [1, 1, 1' + "0" * 400 + "]}", '{"side": true}'],
)  # fmt: skip
def test_a_wrong_file_beside_a_model_is_one_line(content: str, tmp_path: Path) -> None:
    path = stored(tmp_path, b"")
    path.with_suffix(".json").write_text(content, encoding="utf-8")
    assert "model.json" in refusal(path)


# --- fingerprints -------------------------------------------------------------------------------------------


def test_fingerprints_change_with_the_model_and_its_preparation(network: Path, tmp_path: Path) -> None:
    same = stored(tmp_path, network.read_bytes(), "copy.onnx")
    other = stored(tmp_path, chain("GlobalMaxPool", "Flatten", output=(1, 3)), "other.onnx")
    asked = [
        Embedder.load(network),
        Embedder.load(other),
        Embedder.load(network, Preprocessing(side=100)),
        Embedder.load(network, PLAIN),
        Embedder.of(mean_colour, "one"),
        Embedder.of(mean_colour, "two"),
        Embedder.of(mean_colour, "one", side=100),
    ]
    prints = [embedder.fingerprint for embedder in asked]
    assert len(set(prints)) == len(prints)
    assert all(len(bytes.fromhex(fingerprint)) == 8 for fingerprint in prints)
    assert Embedder.load(same, threads=1).fingerprint == prints[0]  # where it lies, and how it runs, does not matter
    assert Embedder.load(network, Preprocessing(side=DEFAULT_SIDE)).fingerprint == prints[0]


# --- what is wrong with models ------------------------------------------------------------------------------


@pytest.mark.parametrize("data", [b"", b"no model", bytes(1000), b"\xff" * 1000])
def test_a_file_that_is_no_model(data: bytes, network: Path, tmp_path: Path) -> None:
    assert "not a model that onnxruntime can run" in refusal(stored(tmp_path, data, "wrong.onnx"))


def test_a_model_cut_anywhere_is_refused(network: Path, tmp_path: Path) -> None:
    data = network.read_bytes()
    for length in range(0, len(data) - 8, 5):
        assert refusal(stored(tmp_path, data[:length], "cut.onnx"))


def test_names_that_are_no_text_and_answers_that_are_none(network: Path, tmp_path: Path) -> None:
    data = network.read_bytes()
    assert "not a model that onnxruntime can run" in refusal(
        stored(tmp_path, data.replace(b"image", b"\xff\xffage"), "odd.onnx")
    )
    silent = model([], [value_info("image", (1, 3, "h", "w"))], [])
    assert refusal(stored(tmp_path, silent, "silent.onnx"))


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "missing.onnx")
    (tmp_path / "folder.onnx").mkdir()
    assert "no such file" in refusal(tmp_path / "folder.onnx")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"shape": (1, 4, "h", "w")}, "one input of floats"),
        ({"shape": (2, 3, "h", "w")}, "one input of floats"),
        ({"shape": (3, "h", "w")}, "one input of floats"),
        ({"kind": UINT8}, "one input of floats"),
        ({"kind": INT64}, "one input of floats"),
        ({"shape": (1, 3, 10**6, 10**6)}, "1000000 x 1000000 pixels"),
        ({"shape": (1, 3, 0, 0)}, "0 x 0 pixels"),
    ],
)
def test_a_model_that_takes_no_photographs(options: dict, expected: str, network: Path, tmp_path: Path) -> None:
    shape = options.get("shape", (1, 3, "h", "w"))
    assert expected in refusal(stored(tmp_path, chain("Identity", **options, output=shape), "odd.onnx"))


def test_a_model_of_two_inputs(network: Path, tmp_path: Path) -> None:
    inputs = [value_info(name, (1, 3, "h", "w")) for name in ("image", "mask")]
    data = model([node("Add", ["image", "mask"], "sum")], inputs, [value_info("sum", (1, 3, "h", "w"))])
    assert "one input of floats" in refusal(stored(tmp_path, data, "two.onnx"))


@pytest.mark.parametrize("operators", [("Sub",), ("Sub", "Div")])
def test_a_model_without_a_direction(operators: tuple[str, ...], network: Path, tmp_path: Path) -> None:
    assert "all zero or not finite" in refusal(stored(tmp_path, chain(*operators), "nought.onnx"))


def test_a_model_whose_answer_is_no_row(network: Path, tmp_path: Path) -> None:
    count = model([node("Size", ["image"], "n")], [value_info("image", (1, 3, "h", "w"))], [value_info("n", (), INT64)])
    assert "shape [], not [d] or [1, d]" in refusal(stored(tmp_path, count, "count.onnx"))


def test_a_side_that_contradicts_the_model(network: Path, tmp_path: Path) -> None:
    path = stored(tmp_path, chain("Identity", shape=(1, 3, 40, 48), output=(1, 3, 40, 48)), "fixed.onnx")
    assert "it takes images of 48 x 40 pixels, not side=64" in refusal(path, PLAIN)
    assert Embedder.load(path, Preprocessing(side=48)).dimension == 3


def test_without_onnxruntime_one_line_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(OptionError, match=r"pip install 'polyvoc\[embedding\]'") as refused:
        Embedder.load(stored(tmp_path, b"anything"))
    assert len(str(refused.value).splitlines()) == 1
    assert Embedder.of(mean_colour, "mean colour").dimension == 3  # functions need none
