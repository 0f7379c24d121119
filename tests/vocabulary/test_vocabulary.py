"""A vocabulary: what is stored and loaded again, damaged folders, and Hamming signatures by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from polyvoc.errors import OptionError, VocabularyError, WriteError
from polyvoc.vocabulary.assign import Quantiser, project, sign
from polyvoc.vocabulary.vocabulary import (
    DEFAULT_COUNT,
    SHIPPED,
    ByteTable,
    Decoder,
    StoredCells,
    Vocabulary,
    VocabularySet,
    check_vocabularies,
    default_fine_vocabulary,
    default_vocabularies,
    load_vocabularies,
    random_rotation,
)

# Thresholds 0 and 255 in both columns: stored without rounding.
BY_HAND = Vocabulary.create(np.eye(2), [[0, 255], [255, 0]], np.eye(2))


def make(size: int = 5, dimension: int = 6, bits: int = 3, seed: int = 0) -> Vocabulary:
    random = np.random.default_rng(seed)
    words, medians = random.normal(size=(size, dimension)), random.normal(size=(size, bits))
    return Vocabulary.create(words, medians, np.eye(bits, dimension), {"seed": seed, "source": "noise"})


def make_fine(seed: int = 0) -> Vocabulary:
    """Return a vocabulary with a decoder and cells, whose thresholds are the projected words."""
    random = np.random.default_rng(seed)
    matrix, parts, *tables = (random.random(shape, np.float32) for shape in ((6, 3), (3, 4, 2), 6, (6, 8), (2, 8)))
    cells = StoredCells(*tables, np.array([0, 1, 1, 0, 1], np.uint16))
    return replace(make(seed=seed), medians=None, decoder=Decoder(matrix, parts), cells=cells)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_byte_table_by_hand() -> None:
    # Column 0 runs from 0 to 255 in steps of 1; column 1 is constant.
    table = ByteTable.of([[0.0, 7.0], [100.4, 7.0], [255.0, 7.0]])
    assert table.codes[:, 0].tolist() == [0, 100, 255]
    assert table.values().tolist() == [[0.0, 7.0], [100.0, 7.0], [255.0, 7.0]]


@given(arrays.arrays(np.float32, (7, 3), elements=st.floats(-1e6, 1e6, width=32)))
def test_byte_table_errs_by_at_most_half_a_step(values: np.ndarray) -> None:
    table = ByteTable.of(values)
    rounding = np.spacing(np.abs(values).max() + 1) * 4  # of float32 itself
    assert (np.abs(table.values() - values) <= table.step / 2 * (1 + 1e-3) + rounding).all()


@settings(max_examples=20)
@given(st.integers(1, 20), st.integers(1, 9), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_a_loaded_vocabulary_is_the_saved_one(
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


def test_signatures_and_provenance_are_loaded(tmp_path: Path) -> None:
    vocabulary = make()
    vocabulary.save(tmp_path / "v")
    loaded = Vocabulary.load(tmp_path / "v")
    assert (loaded.size, loaded.kind, loaded.bits) == (5, vocabulary.kind, 3)
    assert loaded.thresholds is not None and np.array_equal(loaded.thresholds, np.asarray(vocabulary.thresholds))
    assert loaded.rotation is not None and loaded.rotation.dtype == np.float32
    assert (loaded.provenance, loaded.fingerprint) == ({"seed": 0, "source": "noise"}, vocabulary.fingerprint)
    assert loaded.decoder is None


def test_a_decoder_is_loaded_and_medians_may_be_missing(tmp_path: Path) -> None:
    vocabulary = make_fine()
    vocabulary.save(tmp_path / "v")
    loaded = Vocabulary.load(tmp_path / "v")
    assert loaded.decoder is not None and vocabulary.decoder is not None
    assert np.array_equal(loaded.decoder.matrix, vocabulary.decoder.matrix)
    assert np.array_equal(loaded.decoder.parts, vocabulary.decoder.parts)
    assert loaded.medians is None and loaded.rotation is not None and loaded.thresholds is not None
    assert np.allclose(loaded.thresholds, loaded.centroids @ loaded.rotation.T)
    assert loaded.fingerprint == vocabulary.fingerprint != replace(vocabulary, decoder=None).fingerprint
    assert loaded.shortened(2).decoder is None and loaded.shortened(2).bits == 2


def test_fingerprint_depends_on_the_numbers_alone() -> None:
    vocabulary = make()
    assert vocabulary.fingerprint == make().fingerprint != make(seed=1).fingerprint
    assert len(vocabulary.fingerprint) == 16
    same = Vocabulary(vocabulary.words, vocabulary.medians, vocabulary.rotation, {"source": "elsewhere"})
    without = Vocabulary(vocabulary.words, None, None, {})
    assert same.fingerprint == vocabulary.fingerprint != without.fingerprint


def test_inputs_are_copied() -> None:
    centroids = np.random.default_rng(0).random((4, 3), dtype=np.float32)
    before = centroids.copy()
    vocabulary = Vocabulary.create(centroids, np.zeros((4, 2)), np.eye(2, 3))
    centroids += 1
    assert np.allclose(vocabulary.centroids, before, atol=1 / 255)


def test_save_replaces_a_vocabulary_and_nothing_else(tmp_path: Path) -> None:
    make(seed=0).save(tmp_path / "v")
    make(seed=1).save(tmp_path / "v")
    assert Vocabulary.load(tmp_path / "v").fingerprint == make(seed=1).fingerprint
    assert [path.name for path in tmp_path.iterdir()] == ["v"]  # nothing temporary is left
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "a.txt").write_text("dear")
    for target in (tmp_path / "letters", tmp_path / "letters" / "a.txt"):
        with pytest.raises(VocabularyError, match="choose another name"):
            make().save(target)
    assert (tmp_path / "letters" / "a.txt").read_text() == "dear"
    with pytest.raises(WriteError, match="cannot be written"):
        make().save(tmp_path / "letters" / "a.txt" / "v")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no vocabulary here"),
        ('{"format": "something"}', "not a vocabulary of polyvoc"),
        ("{", "damaged"),
        ("[]", "damaged"),
    ],
)
def test_folders_without_a_vocabulary(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / "meta.json").write_text(text)
    with pytest.raises(VocabularyError, match=message):
        Vocabulary.load(tmp_path)


@pytest.mark.parametrize("change", ["cut", "flip", "drop", "empty"])
@pytest.mark.parametrize(
    "name",
    ["words", "words_step", "medians", "rotation", "decoder", "parts", "cell_mean", "cell_axes", "cell_centres", "cell_of"],
)
def test_damaged_arrays_are_found(tmp_path: Path, name: str, change: str) -> None:
    (make_fine() if name in ("decoder", "parts") or name.startswith("cell") else make()).save(tmp_path / "v")
    path = tmp_path / "v" / f"{name}.npy"
    raw = path.read_bytes()
    path.write_bytes({"cut": raw[:-1], "flip": raw[:-1] + bytes([raw[-1] ^ 1])}.get(change, b""))
    if change == "drop":
        path.unlink()
    with pytest.raises(VocabularyError, match=rf"damaged .*{name}\.npy.* again$"):
        Vocabulary.load(tmp_path / "v")


@pytest.mark.parametrize(
    "change",
    [
        *({"kind": kind} for kind in (None, {"name": "", "dimension": 6}, {"colour": 1})),
        *({name: None} for name in ("checksums", "provenance")),
        *({name: value} for name, value in (("version", 1), ("size", 6), ("bits", 2), ("fingerprint", "0" * 16))),
        *({name: value} for name in ("parts", "cells") for value in ([1], [3, 4, 2], "text", 7)),
        {"medians": False},
    ],
)
def test_changed_meta_is_found(tmp_path: Path, change: dict[str, object]) -> None:
    make().save(tmp_path / "v")
    path = tmp_path / "v" / "meta.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    messages = {"version": "format 1, expected 2", "fingerprint": "damaged .*do not belong together"}
    with pytest.raises(VocabularyError, match=messages.get(next(iter(change)), "damaged")):
        Vocabulary.load(tmp_path / "v")


@pytest.mark.parametrize(
    "shapes",  # of centroids, thresholds, rotation
    [
        *((3,), ((0, 3),), ((2, 129), (2, 129), (129, 129))),
        *(((2, 3), *rest) for rest in (((2, 1), None), (None, (1, 2)), ((3, 1), (1, 3)), ((2, 1), (1, 2)))),
    ],
)
def test_invalid_tables(shapes: tuple[Any, ...]) -> None:
    with pytest.raises(OptionError):
        Vocabulary.create(*(None if shape is None else np.zeros(shape) for shape in shapes))  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="not finite"):
        Vocabulary.create([[np.nan]])


def test_default_vocabularies() -> None:
    vocabularies = default_vocabularies(SHIPPED)
    assert [v.size for v in vocabularies] == [20_000] * SHIPPED and len(default_vocabularies()) == DEFAULT_COUNT == 2
    assert {(str(v.kind), v.bits) for v in vocabularies} == {("sift (128 numbers)", 128)}
    assert [v.fingerprint for v in vocabularies] == ["2ce249b751207597", "9885627e6ba4ab53", "d79a513886e0228f"]
    for v in vocabularies:  # centroids of vectors of length 1
        norms = np.linalg.norm(v.centroids, axis=1)
        assert norms.min() > 0.5 and norms.max() < 1.01
    assert default_vocabularies(0) == ()
    for count in (-1, SHIPPED + 1):
        with pytest.raises(OptionError, match=f"vocabularies={count} should be 0 to 3.*polyvoc train"):
            default_vocabularies(count)


def test_the_default_fine_vocabulary() -> None:
    fine = default_fine_vocabulary()
    assert (fine.size, fine.fingerprint) == (65_536, "370c27345060625d")
    assert (str(fine.kind), fine.bits, fine.medians) == ("sift (128 numbers)", 128, None) and fine.decoder is not None
    assert fine.rotation is not None and np.array_equal(fine.rotation, random_rotation(128, 128))
    assert fine.cells is not None and fine.cells.cell_of.max() < len(fine.cells.centres)


def test_vocabularies_by_number_or_by_folder(tmp_path: Path) -> None:
    make().save(tmp_path / "a")
    make(seed=1).save(tmp_path / "b")
    assert load_vocabularies(None, []) is None
    loaded = load_vocabularies(None, [tmp_path / "b", tmp_path / "a"])
    assert loaded is not None and loaded.signed and loaded.fine is None
    assert [v.fingerprint for v in loaded.words] == [make(seed=1).fingerprint, make().fingerprint]
    make_fine().save(tmp_path / "fine")
    with_codes = load_vocabularies(None, [tmp_path / "a"], fine=tmp_path / "fine")
    assert with_codes is not None and with_codes.fine is not None and not with_codes.signed
    assert with_codes.fine.fingerprint == make_fine().fingerprint and with_codes.sizes == (5,)
    for count, options, expected in (
        (2, {}, (2, True, False)),
        (0, {}, (0, True, False)),
        (None, {"codes": False}, (DEFAULT_COUNT, False, True)),
        (1, {"codes": False, "signed": False}, (1, False, False)),
        (None, {"signed": True}, (DEFAULT_COUNT, True, True)),
    ):
        shipped = load_vocabularies(count, **options)
        assert shipped is not None and (len(shipped.words), shipped.fine is not None, shipped.signed) == expected
    with pytest.raises(OptionError, match="exclude each other"):
        load_vocabularies(1, [tmp_path / "a"])


def test_shortened_signatures_are_the_first_bits() -> None:
    vocabulary = default_vocabularies(1)[0]
    descriptors = np.random.default_rng(0).random((50, vocabulary.dimension)).astype(np.float32)
    descriptors /= np.linalg.norm(descriptors, axis=1, keepdims=True)
    words, long = Quantiser([vocabulary]).quantise(descriptors)
    same_words, short = Quantiser([vocabulary.shortened(64)]).quantise(descriptors)
    assert long is not None and short is not None and long.shape == (50, 1, 2)
    assert np.array_equal(words, same_words) and np.array_equal(long[:, :, 0], short)
    assert vocabulary.shortened(128) is vocabulary and vocabulary.shortened(0).bits == 0
    with pytest.raises(OptionError, match="bits=129 should be 0 to 128"):
        vocabulary.shortened(129)


def test_vocabularies_of_one_index_share_kind_and_rotation() -> None:
    plain = Vocabulary.create(np.eye(2))
    rotated = Vocabulary.create(np.eye(2), np.zeros((2, 2)), [[0, 1], [1, 0]])
    check_vocabularies([BY_HAND, BY_HAND])
    check_vocabularies([BY_HAND, rotated, plain])  # without signatures in one, none are made
    with pytest.raises(OptionError, match="at least one"):
        check_vocabularies([])
    with pytest.raises(VocabularyError, match=r"vocabulary 1 has another rotation.* same bits"):
        check_vocabularies([BY_HAND, rotated])
    with pytest.raises(VocabularyError, match=r"sift \(2 numbers\) and sift \(3 numbers\) do not go together"):
        check_vocabularies([plain, Vocabulary.create(np.eye(3))])


# -- the vocabularies of an index


def test_codes_refer_to_the_first_vocabulary_that_can_decode_them() -> None:
    plain, first, second = make(), make_fine(1), make_fine(2)
    assert VocabularySet.of([plain, first, second]).fine is first
    assert VocabularySet.of([plain, first], fine=second).fine is second
    assert VocabularySet.of([plain, first], codes=False).fine is None
    only = VocabularySet.of([], fine=first)
    assert (only.sizes, only.bits, only.kind) == ((), 0, first.kind)


def test_words_are_signed_without_codes_or_if_it_is_said() -> None:
    signed, unsigned = make(), Vocabulary.create(make().centroids)
    assert VocabularySet.of([signed, signed]).signed and VocabularySet.of([signed]).bits == 3
    assert not VocabularySet.of([signed, unsigned]).signed
    assert not VocabularySet.of([signed], make_fine()).signed
    assert VocabularySet.of([signed], make_fine(), signed=True).signed
    assert not VocabularySet.of([signed], signed=False).signed
    assert not VocabularySet.of([], make_fine(), signed=True).signed  # there is nothing to sign
    with pytest.raises(OptionError, match="signatures need vocabularies that were trained with bits"):
        VocabularySet.of([signed, unsigned], signed=True)


def test_vocabularies_that_no_index_can_use_together() -> None:
    with pytest.raises(OptionError, match="no vocabulary given"):
        VocabularySet.of([])
    with pytest.raises(VocabularyError, match="the fine vocabulary has no decoder for codes"):
        VocabularySet((), make())
    with pytest.raises(VocabularyError, match="do not go together"):
        VocabularySet((Vocabulary.create(np.eye(2)),), make_fine())
    rotated = Vocabulary.create(make().centroids, rotation=np.eye(6)[3:])
    with pytest.raises(VocabularyError, match="another rotation"):
        VocabularySet((make(), rotated), None, signed=True)
    assert not VocabularySet((make(), rotated), make_fine()).bits  # rotations matter only where words are signed


def test_bits_by_hand() -> None:
    z = np.array([[1, 1], [1, 256], [0, 255], [300, 300]], dtype=np.float32)
    words = np.array([[0], [0], [0], [1]])
    # word 0 has the thresholds (0, 255): 1 > 0 sets bit 0, 256 > 255 sets bit 1, equality sets nothing
    assert sign(z, words, [BY_HAND]).tolist() == [[0b01], [0b11], [0b00], [0b11]]


def test_thresholds_are_those_of_the_word_and_no_word_has_signature_0() -> None:
    z = np.array([[100, 100]], dtype=np.float32)
    words = np.array([[[0, 1, -1], [1, 1, 0]]])  # [1, K=2, assignments=3]
    signatures = sign(z, words, [BY_HAND, BY_HAND])
    assert signatures.dtype == np.uint64
    assert signatures.tolist() == [[[0b01, 0b10, 0], [0b10, 0b10, 0b01]]]


def test_signatures_as_written_in_numpy() -> None:
    random = np.random.default_rng(0)
    rotation = random_rotation(70, 64)
    vocabularies = [Vocabulary.create(random.random((9, 70)), random.normal(size=(9, 64)), rotation) for _ in range(3)]
    z = project(random.normal(size=(50, 70)).astype(np.float32), rotation)
    words = random.integers(0, 9, (50, 3)).astype(np.int32)
    expected = np.zeros((50, 3), dtype=np.uint64)
    for k, vocabulary in enumerate(vocabularies):
        assert vocabulary.thresholds is not None
        bits = z > vocabulary.thresholds[words[:, k]]
        expected[:, k] = (bits.astype(np.uint64) << np.arange(64, dtype=np.uint64)).sum(axis=1)
    assert np.array_equal(sign(z, words, vocabularies), expected)
    assert (expected >> np.uint64(63)).any()  # the last bit is used


@pytest.mark.parametrize("shape", [(0, 1), (0, 1, 4)])
def test_no_descriptors_have_no_signatures(shape: tuple[int, ...]) -> None:
    assert sign(np.empty((0, 2), np.float32), np.empty(shape, np.int32), [BY_HAND]).shape == shape


@pytest.mark.parametrize(("dimension", "bits"), [(128, 64), (64, 64), (8, 3)])
def test_rotations_keep_lengths(dimension: int, bits: int) -> None:
    rotation = random_rotation(dimension, bits)
    assert rotation.shape == (bits, dimension) and rotation.dtype == np.float32
    assert np.allclose(rotation @ rotation.T, np.eye(bits), atol=1e-6)
    assert np.array_equal(rotation, random_rotation(dimension, dimension)[:bits])


@pytest.mark.parametrize("dimension", [8, 64])
def test_twice_as_many_axes_are_two_rotations(dimension: int) -> None:
    axes = random_rotation(dimension, 2 * dimension)
    for one in (axes[:dimension], axes[dimension:]):
        assert np.allclose(one @ one.T, np.eye(dimension), atol=1e-6)
    assert np.array_equal(axes[:dimension], random_rotation(dimension, dimension))
    assert np.abs(axes[:dimension] @ axes[dimension:].T).max() < 0.99


@pytest.mark.parametrize("bits", [0, 9, 65])
def test_impossible_bits(bits: int) -> None:
    with pytest.raises(OptionError, match=f"bits={bits} should be 1 to 8"):
        random_rotation(8, bits)


def test_arrays_that_do_not_fit() -> None:
    z = np.zeros((1, 2), np.float32)
    with pytest.raises(OptionError, match="do not fit a rotation"):
        project(np.zeros((1, 3), np.float32), np.eye(2, dtype=np.float32))
    with pytest.raises(OptionError, match="do not fit 1 descriptors and 1 vocabularies"):
        sign(z, np.zeros((1, 2), np.int32), [BY_HAND])
    with pytest.raises(OptionError, match="should be -1 to 1"):
        sign(z, np.array([[2]]), [BY_HAND])
    with pytest.raises(VocabularyError, match="0 bits, not 2"):
        sign(z, np.array([[0]]), [Vocabulary.create(np.eye(2))])
