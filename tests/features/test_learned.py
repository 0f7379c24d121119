"""A network in an ONNX file makes features as any detector does; an index remembers which network, and reads no other."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageFilter

from commands import answer, refuse, run, searched
from onnxfiles import CELL, PATCHES, constant, model, node, patches, value_info
from polyvoc.errors import ImageError, NotAllowedError, OptionError
from polyvoc.features.extract import detect, extract
from polyvoc.features.learned import NetworkDescription, between_pixels, load_network, local_maxima, resolved, sample, score_map
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.search.index import Index
from polyvoc.types import FeatureKind, Features, GreyImage
from polyvoc.vocabulary.train import sample_descriptors, train
from polyvoc.vocabulary.vocabulary import VocabularySet
from samples import unflushed
from strangers import opened_files

__all__ = ["unflushed"]

IMAGE = (1, 1, "h", "w")


def stored(folder: Path, description: dict[str, Any] = PATCHES, data: bytes | None = None, name: str = "patches.onnx") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(patches() if data is None else data)
    (folder / name).with_suffix(".json").write_text(json.dumps(description), encoding="utf-8")
    return folder / name


def options_of(file: Path, **more: Any) -> FeatureOptions:
    return FeatureOptions(detector=str(file), **more)


def spots(centres: list[tuple[float, float]], size: tuple[int, int] = (160, 120), sigma: float = 3.0) -> GreyImage:
    """Return bright spots on black."""
    x, y = np.meshgrid(np.arange(size[0]), np.arange(size[1]))
    values = sum(np.exp(-((x - u) ** 2 + (y - v) ** 2) / (2 * sigma**2)) for u, v in centres)
    return GreyImage(np.rint(250 * np.clip(values, 0, 1)).astype(np.uint8), *size)


def drawing(seed: int) -> Image.Image:
    """Return a picture of soft spots of any brightness."""
    noise = np.random.default_rng(seed).integers(0, 256, (176, 240), np.uint8)
    soft = np.asarray(Image.fromarray(noise).filter(ImageFilter.GaussianBlur(2.0)), np.float64)
    return Image.fromarray(np.rint(255 * (soft - soft.min()) / np.ptp(soft)).astype(np.uint8))


@pytest.fixture
def network(tmp_path: Path) -> Path:
    pytest.importorskip("onnxruntime")
    return stored(tmp_path / "models")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "drawings").mkdir()
    for seed in range(5):
        drawing(seed).save(tmp_path / "drawings" / f"{seed}.png")
    return tmp_path / "drawings"


# -- arrays


def test_logits_become_scores_of_pixels() -> None:
    random = np.random.default_rng(1)
    logits = random.normal(size=(1, 17, 3, 5)).astype(np.float32)
    found = score_map(logits)
    assert found.shape == (12, 20)
    for y, x in ((0, 0), (5, 7), (11, 19)):
        powers = np.exp(logits[0, :, y // 4, x // 4].astype(np.float64))
        assert math.isclose(found[y, x], powers[(y % 4) * 4 + x % 4] / powers.sum(), rel_tol=1e-5)
    assert np.array_equal(score_map(logits[:, :1]), logits[0, 0])
    for shape in ((1, 12, 3, 5), (2, 1, 3, 5), (17, 3, 5)):
        with pytest.raises(ValueError, match="its scores have"):
            score_map(np.zeros(shape, np.float32))


def test_maxima_are_the_largest_of_their_square() -> None:
    scores = np.random.default_rng(2).random((30, 40)).astype(np.float32)
    found = local_maxima(scores, 0.5, 2)
    for y in range(30):
        for x in range(40):
            around = scores[max(y - 2, 0) : y + 3, max(x - 2, 0) : x + 3]
            assert found[y, x] == (scores[y, x] == around.max() and scores[y, x] > 0.5)


def test_positions_lie_between_pixels() -> None:
    x, y = np.meshgrid(np.arange(9.0), np.arange(7.0))
    scores = (10 - (x - 4.3) ** 2 - 0.5 * (y - 2.8) ** 2).astype(np.float32)
    assert np.allclose(between_pixels(scores, np.array([4]), np.array([3])), [[4.3, 2.8]], atol=1e-5)
    flat = np.ones((3, 3), np.float32)
    assert np.array_equal(between_pixels(flat, np.array([1, 0]), np.array([1, 0])), [[1, 1], [0, 0]])


def test_descriptors_are_interpolated_between_the_centres_of_cells() -> None:
    """Cells of 8 x 8 pixels: the centre of the first is at 3.5; beyond the outermost centres the map goes on as it ends."""
    cells = np.arange(12, dtype=np.float32).reshape(1, 3, 4)
    at = np.array([[3.5, 3.5], [7.5, 3.5], [3.5, 11.5], [13.5, 9.5], [0.0, 0.0], [31.0, 23.0]])
    assert np.allclose(sample(cells, at, (24, 32))[:, 0], [0, 0.5, 4, 1.25 + 3, 0, 11])


# -- detection


def test_spots_are_found_where_they_are(network: Path) -> None:
    centres = [(30.3, 40.0), (100.0, 80.4), (131.7, 22.6)]
    found = detect(spots(centres), options_of(network))
    near = [np.hypot(*(found.xy - centre).T).min() for centre in centres]
    assert len(found) == 3 and max(near) < 0.15
    assert found.kind.name == "patches" and found.kind.dimension == 64 and not found.kind.binary
    assert np.allclose(np.linalg.norm(found.descriptors, axis=1), 1, atol=1e-5)
    assert np.allclose(found.scale, 10) and np.isnan(found.angle).all()


def test_positions_and_diameters_are_those_of_the_full_size(network: Path) -> None:
    small = spots([(60.25, 41.0)])
    found = detect(GreyImage(small.pixels, 1600, 1200), options_of(network))
    assert np.allclose(found.xy, [[(60.25 + 0.5) * 10 - 0.5, (41 + 0.5) * 10 - 0.5]], atol=1.5) and np.allclose(
        found.scale, 100
    )


def test_a_pyramid_finds_a_spot_at_each_scale(network: Path) -> None:
    file = stored(network.parent / "pyramid", {**PATCHES, "scales": [1.0, 0.5]})
    found = detect(spots([(60.2, 41.3)], (160, 128)), options_of(file))
    assert sorted(found.scale) == [10, 20] and np.allclose(found.xy, [(60.2, 41.3)] * 2, atol=0.5)


def test_the_sides_of_the_input_are_multiples(network: Path) -> None:
    found = detect(spots([(80.4, 60.7)], (165, 123)), options_of(network))
    assert len(found) == 1 and np.allclose(found.xy, [(80.4, 60.7)], atol=0.5)


def test_the_strongest_are_kept_and_threads_change_nothing(network: Path, folder: Path) -> None:
    pixels = np.asarray(Image.open(folder / "0.png"))
    image = GreyImage(pixels, *pixels.shape[::-1])
    every, few = detect(image, options_of(network)), detect(image, options_of(network, max_features=7), threads=2)
    assert len(every) > 20 and len(few) == 7
    for name in ("xy", "scale", "descriptors"):
        assert np.array_equal(getattr(every, name)[:7], getattr(few, name))


def test_reliability_multiplies_scores(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    steps = [node("SpaceToDepth", ["image"], "cells", blocksize=CELL), node("Identity", ["image"], "brightness"),
             node("Neg", ["image"], "below")]  # fmt: skip
    outputs = [value_info(n, (1, c, "a", "b")) for n, c in (("cells", 64), ("brightness", 1), ("below", 1))]
    file = stored(tmp_path, {**PATCHES, "reliability": "below"}, model(steps, [value_info("image", IMAGE)], outputs))
    assert len(detect(spots([(60.0, 41.0)]), options_of(file))) == 0, "no score is above 0"


@pytest.mark.parametrize("angles", [True, False])
def test_keypoints_may_be_given_directly(tmp_path: Path, angles: bool) -> None:
    pytest.importorskip("onnxruntime")
    arrays = {
        "at": np.array([[[10.0, 20.0], [30.5, 12.25], [500.0, 2.0], [4.0, 4.0]]]),
        "strengths": np.array([[0.3, 0.9, 1.0, 0.1]]),
        "rows": np.random.default_rng(3).normal(size=(1, 4, 16)),
        "turns": np.array([[90.0, -90.0, 0.0, 10.0]]),
    }
    steps = [node("Identity", [f"{name} stored"], name) for name in arrays] + [node("Identity", ["image"], "unused")]
    outputs = [value_info(name, values.shape) for name, values in arrays.items()] + [value_info("unused", (1, 1, "h", "w"))]
    constants = [constant(f"{name} stored", values) for name, values in arrays.items()]
    description = {"name": "direct", "dimension": 16, "descriptors": "rows", "scores": "strengths", "positions": "at",
                   "threshold": 0.2, "angles": "turns" if angles else None}  # fmt: skip
    file = stored(tmp_path, description, model(steps, [value_info("image", IMAGE)], outputs, constants))
    found = detect(GreyImage(np.zeros((60, 80), np.uint8), 80, 60), options_of(file))
    assert np.allclose(found.xy, [[30.5, 12.25], [10, 20]]), "one lies outside, one scores too little"
    assert np.allclose(found.angle, [270, 90]) if angles else np.isnan(found.angle).all()
    assert np.allclose(
        found.descriptors, arrays["rows"][0, [1, 0]] / np.linalg.norm(arrays["rows"][0, [1, 0]], axis=1)[:, None]
    )


# -- files


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({"name": ""}, "should be texts"),
        ({"name": "sift"}, "name='sift' is that of other features"),
        ({"channels": "rgb"}, "only networks that take grey pixels"),
        ({"dimension": 0}, "dimension=0 should be"),
        ({"scales": []}, "scales="),
        ({"scales": [0.0]}, "scales="),
        ({"std": 0.0}, "above 0"),
        ({"mean": "0"}, "should be numbers"),
        ({"angles": "x"}, "angles need positions"),
        ({"surprise": 1}, "surprise"),
        ({"scores": "nothing"}, "no output 'nothing'"),
        ({"dimension": 32}, r"not as its description says \(a map has shape \[1, 64, 12, 12\]"),
        ({"reliability": "cells"}, "not as its description says"),
        ({"multiple": 1, "scales": [0.01]}, "not as its description says"),
    ],
)
def test_wrong_descriptions_are_one_line(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    file = stored(tmp_path, {**PATCHES, **changes})
    with pytest.raises(OptionError, match=expected) as caught:
        detect(spots([(40, 40)]), options_of(file))
    assert len(str(caught.value).splitlines()) == 1 and "patches" in str(caught.value)


def test_other_files_are_one_line(network: Path, tmp_path: Path) -> None:
    shape = (1, 3, "h", "w")
    colours = model([node("Identity", ["image"], "cells")], [value_info("image", shape)], [value_info("cells", shape)])
    for file, expected in (
        (tmp_path / "missing.onnx", "no such file"),
        (stored(tmp_path / "text", data=b"text"), "not a model that onnxruntime can run"),
        (stored(tmp_path / "colours", data=colours), r"needs one of floats, \[1, 1, h, w\]"),
    ):
        with pytest.raises(OptionError, match=expected):
            detect(spots([(40, 40)]), options_of(file))
    network.with_suffix(".json").unlink()
    with pytest.raises(OptionError, match=r"needs a description beside it, patches\.json"):
        resolved(options_of(network))
    with pytest.raises(OptionError, match=r"should be one of sift, .*, or a file \.onnx"):
        FeatureOptions(detector="surf")


def test_the_fingerprint_changes_with_network_and_description(network: Path, tmp_path: Path) -> None:
    first = resolved(options_of(network))
    assert first.detector == "patches" and first.network is not None and resolved(first) is first
    copied = resolved(options_of(stored(tmp_path / "copy")))
    assert copied == first and copied.network is not None and copied.network.file != first.network.file
    other = resolved(options_of(stored(tmp_path / "other", {**PATCHES, "threshold": 0.3})))
    assert other != first and other.kind == first.kind
    assert FeatureOptions(**json.loads(json.dumps(first.as_dict()))) == first


def test_a_network_that_changed_is_not_used(network: Path) -> None:
    options = resolved(options_of(network))
    stored(network.parent, {**PATCHES, "threshold": 0.35})
    with pytest.raises(OptionError, match=r"not the network [0-9a-f]{16}, or its description differs"):
        detect(spots([(40, 40)]), options)
    assert options.network is not None
    stored(network.parent)
    assert load_network(options.network).description == NetworkDescription(**PATCHES)


def test_what_fails_on_one_image_names_it(network: Path) -> None:
    with pytest.raises(ImageError, match="too plain"):
        black = np.zeros((64, 64), np.uint8)
        Image.fromarray(black).save(network.parent / "black.png")
        extract(network.parent / "black.png", options_of(network))


# -- an index


def words_of(folder: Path, network: Path) -> Any:
    drawn = sample_descriptors(sorted(folder.glob("*.png")), options_of(network))
    return train(drawn, TrainOptions(size=300, rounds=3, bits=64))


def test_an_index_of_a_network(folder: Path, network: Path, tmp_path: Path) -> None:
    """Train, index and search by commands; then without the file, with it elsewhere, and with another one."""
    words, index = tmp_path / "words", tmp_path / "i"
    trained = answer("train", folder, "--out", words, "--detector", network, "--size", 300, "--rounds", 3)
    assert trained["kind"] == {"name": "patches", "dimension": 64, "binary": False}
    assert trained["provenance"]["features"]["network"]["file"] == str(network)
    made = answer("index", folder, "--index", index, "--vocabulary", words, "--detector", network)
    assert made["added"] == 5
    drawing(3).crop((16, 16, 240, 176)).save(tmp_path / "part.png")
    assert Path(searched(tmp_path / "part.png", "--index", index)["hits"][0]["path"]).name == "3.png"
    assert answer("index", "--index", index)["unchanged"] == 5
    assert answer("info", "--index", index)["feature_options"]["network"]["name"] == "patches"
    shown = run("info", "--index", index, "--verbose").stdout
    assert "detector patches" in shown and str(network) in shown
    moved = shutil.move(network.parent, tmp_path / "moved")
    line = refuse("search", tmp_path / "part.png", "--index", index)
    assert f"{network}, the detector of {index}, is missing; give its new path" in line
    assert searched("--image", "4", "--index", index)["hits"]
    assert answer("index", "--index", index, "--detector", Path(moved) / network.name)["unchanged"] == 5
    assert searched(tmp_path / "part.png", "--index", index)["hits"]
    other = stored(tmp_path / "other", {**PATCHES, "threshold": 0.3})
    assert "was made with" in refuse("index", "--index", index, "--detector", other)


def test_an_index_without_fitting_vocabularies_is_not_made(folder: Path, network: Path, tmp_path: Path) -> None:
    line = refuse("index", folder, "--index", tmp_path / "i", "--detector", network)
    assert "the detector makes patches (64 numbers)" in line and f"polyvoc train --detector {network}" in line
    assert not (tmp_path / "i" / "catalogue.sqlite").exists()


def test_xfeat_has_a_vocabulary_that_comes_with_polyvoc(folder: Path, tmp_path: Path) -> None:
    """What it is named decides: these are the spots of other tests."""
    pytest.importorskip("onnxruntime")
    file = stored(tmp_path / "models", {**PATCHES, "name": "xfeat"}, name="xfeat.onnx")
    assert answer("index", folder, "--index", tmp_path / "i", "--detector", file)["added"] == 5
    facts = answer("info", "--index", tmp_path / "i")
    shipped = VocabularySet.default(FeatureKind("xfeat", 64)).fine
    assert shipped is not None and facts["fine_vocabulary"]["fingerprint"] == shipped.fingerprint
    assert facts["vocabularies"] == [] and shipped.kind == FeatureKind("xfeat", 64)
    assert searched(folder / "2.png", "--index", tmp_path / "i")["hits"][0]["path"] == str(folder / "2.png")


def test_features_are_the_same_through_an_index(folder: Path, network: Path, tmp_path: Path) -> None:
    with IndexWriter.open(tmp_path / "i", [words_of(folder, network)], options_of(network, max_features=30)) as writer:
        writer.update([folder])
    with Index.open(tmp_path / "i") as index:
        own = extract(folder / "2.png", options_of(network, max_features=30))
        assert isinstance(own, Features) and len(index.features(3)) == len(own) == 30
        assert index.search(folder / "2.png")[0].path == str(folder / "2.png")
        assert index.search(own)[0].path == str(folder / "2.png")


def test_a_strangers_network_is_not_loaded(
    folder: Path, network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = tmp_path / "i"
    with IndexWriter.open(index, [words_of(folder, network)], options_of(network)) as writer:
        writer.update([folder])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "nobody"))
    with opened_files(network.parent) as opened:
        with Index.open(index) as unknown:
            assert unknown.search(1)
            with pytest.raises(NotAllowedError, match="polyvoc trust"):
                unknown.search(folder / "0.png")
        assert "polyvoc trust" in refuse("index", folder, "--index", index)
        assert "polyvoc trust" in refuse("index", folder, "--index", index, "--max-features", "3000")
    assert opened == []
    answer("trust", network, "--index", index)
    assert searched(folder / "0.png", "--index", index)["hits"]
