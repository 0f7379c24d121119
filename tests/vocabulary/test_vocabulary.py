"""A vocabulary is what is stored: what goes in, what comes back, and what happens to a damaged folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from polyvoc.errors import OptionError, VocabularyError
from polyvoc.vocabulary.assign import Quantiser
from polyvoc.vocabulary.vocabulary import DEFAULT_COUNT, ByteTable, Vocabulary, default_vocabularies, load_vocabularies


def make(size: int = 5, dimension: int = 6, bits: int = 3, seed: int = 0) -> Vocabulary:
    random = np.random.default_rng(seed)
    return Vocabulary.create(
        random.normal(size=(size, dimension)),
        random.normal(size=(size, bits)),
        np.eye(bits, dimension),
        {"seed": seed, "source": "noise"},
    )


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_bytes_by_hand() -> None:
    # Column 0 runs from 0 to 255 in steps of 1; column 1 is constant.
    table = ByteTable.of([[0.0, 7.0], [100.4, 7.0], [255.0, 7.0]])
    assert table.codes[:, 0].tolist() == [0, 100, 255]
    assert table.values().tolist() == [[0.0, 7.0], [100.0, 7.0], [255.0, 7.0]]


@given(arrays.arrays(np.float32, (7, 3), elements=st.floats(-1e6, 1e6, width=32)))
def test_bytes_err_by_at_most_half_a_step(values: np.ndarray) -> None:
    table = ByteTable.of(values)
    rounding = np.spacing(np.abs(values).max() + 1) * 4  # of float32 itself
    assert (np.abs(table.values() - values) <= table.step / 2 * (1 + 1e-3) + rounding).all()


@settings(max_examples=20)
@given(st.integers(1, 20), st.integers(1, 9), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_saved_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, size: int, dimension: int, scale: float, shift: float
) -> None:
    folder = tmp_path_factory.mktemp("vocabulary")
    centroids = np.random.default_rng(size).normal(size=(size, dimension)) * scale + shift
    created = Vocabulary.create(centroids, provenance={"photographs": 3})
    created.save(folder / "a")
    loaded = Vocabulary.load(folder / "a")
    loaded.save(folder / "b")
    assert np.array_equal(loaded.centroids, created.centroids)
    assert (loaded.thresholds, loaded.rotation, loaded.bits) == (None, None, 0)
    assert contents(folder / "a") == contents(folder / "b")


def test_everything_comes_back(tmp_path: Path) -> None:
    vocabulary = make()
    vocabulary.save(tmp_path / "v")
    loaded = Vocabulary.load(tmp_path / "v")
    assert (loaded.size, loaded.dimension, loaded.bits) == (5, 6, 3)
    assert loaded.thresholds is not None and vocabulary.thresholds is not None
    assert np.array_equal(loaded.thresholds, vocabulary.thresholds)
    assert loaded.rotation is not None and loaded.rotation.dtype == np.float32
    assert loaded.provenance == {"seed": 0, "source": "noise"}
    assert loaded.fingerprint == vocabulary.fingerprint


def test_fingerprint_follows_the_numbers_alone() -> None:
    vocabulary = make()
    assert vocabulary.fingerprint == make().fingerprint != make(seed=1).fingerprint
    assert len(vocabulary.fingerprint) == 16
    same = Vocabulary(vocabulary.words, vocabulary.medians, vocabulary.rotation, {"source": "elsewhere"})
    without = Vocabulary(vocabulary.words, None, None, {})
    assert same.fingerprint == vocabulary.fingerprint != without.fingerprint


def test_inputs_stay_as_they_are() -> None:
    centroids = np.random.default_rng(0).random((4, 3), dtype=np.float32)
    before = centroids.copy()
    vocabulary = Vocabulary.create(centroids, np.zeros((4, 2)), np.eye(2, 3))
    centroids += 1
    assert np.allclose(vocabulary.centroids, before, atol=1 / 255)


def test_save_replaces_a_vocabulary_but_nothing_else(tmp_path: Path) -> None:
    make(seed=0).save(tmp_path / "v")
    make(seed=1).save(tmp_path / "v")
    assert Vocabulary.load(tmp_path / "v").fingerprint == make(seed=1).fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["v"]  # nothing temporary is left
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    with pytest.raises(VocabularyError, match="something else"):
        make().save(tmp_path / "letters")
    assert (tmp_path / "letters" / "a.txt").read_text() == "dear"


def test_saving_under_a_file_fails_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(VocabularyError, match="cannot be written"):
        make().save(tmp_path / "file" / "v")


def test_missing_and_foreign(tmp_path: Path) -> None:
    with pytest.raises(VocabularyError, match="no vocabulary here"):
        Vocabulary.load(tmp_path / "nowhere")
    (tmp_path / "meta.json").write_text('{"format": "something"}')
    with pytest.raises(VocabularyError, match="not a vocabulary of polyvoc"):
        Vocabulary.load(tmp_path)
    (tmp_path / "meta.json").write_text("{")
    with pytest.raises(VocabularyError, match="not JSON"):
        Vocabulary.load(tmp_path)


@pytest.mark.parametrize("change", ["cut", "flip", "drop", "empty"])
@pytest.mark.parametrize("name", ["words", "words_step", "medians", "rotation"])
def test_damage_is_seen(tmp_path: Path, name: str, change: str) -> None:
    make().save(tmp_path / "v")
    path = tmp_path / "v" / f"{name}.npy"
    raw = path.read_bytes()
    path.write_bytes({"cut": raw[:-1], "flip": raw[:-1] + bytes([raw[-1] ^ 1]), "drop": b"", "empty": b""}[change])
    if change == "drop":
        path.unlink()
    with pytest.raises(VocabularyError, match="damaged") as caught:
        Vocabulary.load(tmp_path / "v")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("version", 2, "format 2, this polyvoc knows 1"),
        ("files", None, "damaged"),
        ("files", {}, "damaged"),
        ("files", {"../words": "0"}, "leaves the folder"),
        ("fingerprint", "0" * 16, "do not belong together"),
        ("provenance", "me", "damaged"),
    ],
)
def test_changed_meta_is_seen(tmp_path: Path, key: str, value: object, message: str) -> None:
    make().save(tmp_path / "v")
    path = tmp_path / "v" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(VocabularyError, match=message):
        Vocabulary.load(tmp_path / "v")


@pytest.mark.parametrize(
    ("centroids", "thresholds", "rotation"),
    [
        (np.zeros(3), None, None),
        (np.zeros((0, 3)), None, None),
        ([[np.nan]], None, None),
        (np.zeros((2, 3)), np.zeros((2, 1)), None),
        (np.zeros((2, 3)), None, np.zeros((1, 3))),
        (np.zeros((2, 3)), np.zeros((3, 1)), np.zeros((1, 3))),
        (np.zeros((2, 3)), np.zeros((2, 1)), np.zeros((1, 2))),
        (np.zeros((2, 129)), np.zeros((2, 129)), np.zeros((129, 129))),
    ],
)
def test_nonsense_is_refused(centroids: object, thresholds: object, rotation: object) -> None:
    with pytest.raises(OptionError):
        Vocabulary.create(centroids, thresholds, rotation)  # type: ignore[arg-type]


def test_default_vocabularies() -> None:
    vocabularies = default_vocabularies()
    assert [v.size for v in vocabularies] == [20_000] * DEFAULT_COUNT
    assert {(v.dimension, v.bits) for v in vocabularies} == {(128, 128)}
    assert len({v.fingerprint for v in vocabularies}) == DEFAULT_COUNT
    assert default_vocabularies(1)[0].fingerprint == vocabularies[0].fingerprint
    for v in vocabularies:  # centroids of vectors of length 1
        norms = np.linalg.norm(v.centroids, axis=1)
        assert norms.min() > 0.5 and norms.max() < 1.01


@pytest.mark.parametrize("count", [0, DEFAULT_COUNT + 1])
def test_no_other_default_vocabularies(count: int) -> None:
    with pytest.raises(OptionError, match="count="):
        default_vocabularies(count)


def test_vocabularies_by_number_or_by_folder(tmp_path: Path) -> None:
    make().save(tmp_path / "a")
    make(seed=1).save(tmp_path / "b")
    assert load_vocabularies(None, []) is None  # nobody said which
    loaded = load_vocabularies(None, [tmp_path / "b", tmp_path / "a"])
    assert loaded is not None and [v.fingerprint for v in loaded] == [make(seed=1).fingerprint, make().fingerprint]
    short = load_vocabularies(None, [], bits=64)
    assert short is not None
    assert [(v.bits, v.size) for v in short] == [(64, 20_000)] * DEFAULT_COUNT
    shipped = load_vocabularies(2, [])
    assert shipped is not None and [v.fingerprint for v in shipped] == [v.fingerprint for v in default_vocabularies(2)]
    with pytest.raises(OptionError, match="exclude each other"):
        load_vocabularies(1, [tmp_path / "a"])


def test_shortened_signatures_are_the_first_bits() -> None:
    whole = default_vocabularies(1)[0]
    descriptors = np.random.default_rng(0).random((50, whole.dimension)).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    words, long = Quantiser([whole]).quantise(descriptors)
    again, short = Quantiser([whole.shortened(64)]).quantise(descriptors)
    assert long is not None
    assert short is not None
    assert np.array_equal(words, again)
    assert long.shape == (50, 1, 2)
    assert np.array_equal(long[:, :, 0], short)
    assert whole.shortened(128) is whole
    assert whole.shortened(0).bits == 0
    with pytest.raises(OptionError, match="bits=129 should be 0 to 128"):
        whole.shortened(129)
