"""The synthetic world is the same every time, its options act, and it is neither trivial nor hopeless for words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import polyvoc
from disk import contents
from polyvoc.errors import DatasetError, OptionError
from polyvoc.experiments.datasets.descriptor_files import read_siftgeo
from polyvoc.experiments.datasets.synthetic import (
    FORMAT,
    HEIGHT,
    KINDS,
    RADIUS,
    WIDTH,
    WorldOptions,
    _seen,
    _World,
    read_world,
    training_images,
    write_world,
)
from polyvoc.experiments.evaluate import scoring_options
from polyvoc.experiments.measures import average_precision, rank
from polyvoc.features.extract import root_sift
from polyvoc.options import TrainOptions
from polyvoc.types import Floats32
from polyvoc.vocabulary.assign import Assigner
from polyvoc.vocabulary.train import train

SMALL = WorldOptions(groups=3, views=2, distractors=4, training=2, features=80)


def descriptors_of(path: Path) -> Floats32:
    return root_sift(read_siftgeo(path).descriptors)


def test_a_world_is_a_dataset_like_holidays(tmp_path: Path) -> None:
    dataset = read_world(tmp_path / "world", SMALL)
    assert (dataset.name, dataset.kind, dataset.measure, dataset.notes) == ("synthetic", "siftgeo", "mAP", ())
    assert dataset.folder == tmp_path / "world"
    names = [f"{group}{view}.siftgeo" for group in (1000, 1001, 1002) for view in ("00", "01")]
    assert [path.name for path in dataset.images[:6]] == names
    assert [path.parent.name for path in dataset.images[6:]] == ["distractors"] * 4
    assert [(question.image, question.group) for question in dataset.questions] == [(0, "1000"), (2, "1001"), (4, "1002")]
    assert [(*truth.relevant, *truth.junk) for truth in dataset.truths[""]] == [(1, 0), (3, 2), (5, 4)]
    assert len(training_images(tmp_path / "world")) == 2


def test_the_same_options_give_the_same_world(tmp_path: Path) -> None:
    write_world(tmp_path / "first", SMALL)
    write_world(tmp_path / "second", SMALL)
    write_world(tmp_path / "other", replace(SMALL, seed=1))
    first = contents(tmp_path / "first")
    assert first == contents(tmp_path / "second")
    assert all(first[name] != data for name, data in contents(tmp_path / "other").items())
    assert len(set(first.values())) == len(first)
    write_world(tmp_path / "large", replace(SMALL, groups=4, views=3, distractors=5, training=3))
    large = contents(tmp_path / "large")  # it holds the smaller one
    assert all(large[name] == data for name, data in first.items() if name != "world.json")


def test_a_world_is_read_again_with_its_own_options_and_completed(tmp_path: Path) -> None:
    made = read_world(tmp_path, SMALL)
    complete = contents(tmp_path)
    assert read_world(tmp_path) == read_world(tmp_path, SMALL) == made
    assert contents(tmp_path) == complete
    for name in ("images/100101.siftgeo", "train/000001.siftgeo", "distractors/000003.siftgeo"):
        (tmp_path / name).unlink()
    read_world(tmp_path)
    assert contents(tmp_path) == complete


def test_other_options_and_foreign_folders_are_errors(tmp_path: Path) -> None:
    write_world(tmp_path / "world", SMALL)
    for call in (read_world, write_world):
        with pytest.raises(DatasetError, match="a world of other options; give another folder"):
            call(tmp_path / "world", replace(SMALL, noise=0.0))
    (tmp_path / "photographs").mkdir()
    (tmp_path / "photographs" / "me.jpg").write_bytes(b"")
    for folder in (tmp_path / "photographs", tmp_path / "photographs" / "me.jpg"):
        with pytest.raises(DatasetError, match="something else than a synthetic world"):
            read_world(folder)
    assert [path.name for path in (tmp_path / "photographs").iterdir()] == ["me.jpg"]


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"format": "another"}', '{"format": "F", "colour": 1}', '{"format": "F", "views": "x"}', "\xff"],
)
def test_a_foreign_or_damaged_note_is_an_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "world.json").write_bytes(content.replace("F", FORMAT).encode("latin-1"))
    with pytest.raises(DatasetError, match=r"world\.json: not of this version"):
        read_world(tmp_path)


@pytest.mark.parametrize(
    "name, value", [("groups", 0), ("groups", 9001), ("views", 1), ("noise", -0.1), ("shown", 1.5), ("found", 0), ("bursts", 2)]
)
def test_options_out_of_range_are_errors(name: str, value: float) -> None:
    with pytest.raises(OptionError, match=f"{name}={value}"):
        WorldOptions(**{name: value})  # type: ignore[arg-type]


def test_features_look_like_those_of_photographs(tmp_path: Path) -> None:
    dataset = read_world(tmp_path, SMALL)
    found = [read_siftgeo(path) for path in dataset.images]
    counts = [len(features) for features in found]
    assert 60 < np.mean(counts) < 100 and len(set(counts)) > 1
    xy = np.concatenate([features.xy for features in found])
    assert ((xy >= 0) & (xy <= (WIDTH, HEIGHT))).all()
    assert all((features.scale > 0).all() for features in found)
    descriptors = np.concatenate([features.descriptors for features in found])
    assert descriptors.dtype == np.uint8 and descriptors.shape[1] == 128
    assert np.linalg.norm(descriptors, axis=1) == pytest.approx(512, rel=0.04)
    assert 0.2 < (descriptors == 0).mean() < 0.8


def close_matches(first: Path, second: Path) -> int:
    """How many features of one image have an almost equal one in another."""
    return int(((descriptors_of(first) @ descriptors_of(second).T).max(axis=1) > 0.97).sum())


def test_views_of_one_object_are_nearer_than_others(tmp_path: Path) -> None:
    images = read_world(tmp_path, replace(SMALL, noise=0.2)).images
    for query in (0, 2, 4):
        others = [close_matches(images[query], images[i]) for i in range(len(images)) if i not in (query, query + 1)]
        assert close_matches(images[query], images[query + 1]) > 1.5 * max(others)


def test_a_view_is_an_affine_map_of_its_object() -> None:
    world = _World(replace(SMALL, found=1.0, noise=0.0))
    thing = world.constellation(np.random.default_rng(1))
    seen = _seen(np.random.default_rng(2), thing, world.options)
    numbers = [int(np.flatnonzero((thing.latent == row).all(axis=1))[0]) for row in seen.latent]
    before = np.column_stack([thing.xy[numbers], np.ones(len(numbers))])
    map_, *_ = np.linalg.lstsq(before, seen.xy, rcond=None)
    assert np.abs(before @ map_ - seen.xy).max() < 5  # positions are off by a pixel or so
    turn = (seen.angle - thing.angle[numbers] + 180) % 360 - 180
    assert np.abs(np.median(turn)) <= 31 and np.std(turn) < 10
    growth = np.sqrt(abs(np.linalg.det(map_[:2]))) / RADIUS
    assert np.median(seen.scale / thing.scale[numbers]) == pytest.approx(growth, rel=0.1)


def test_options_have_their_effect() -> None:
    def photograph(**changes: float) -> Floats32:
        world = _World(replace(SMALL, features=400, **changes))  # type: ignore[arg-type]
        return root_sift(world.photograph((1, 5), 0).descriptors)

    burst, plain = (photograph(bursts=bursts, shown=0.0) for bursts in (1.0, 0.0))
    assert (burst @ burst.T).mean() > (plain @ plain.T).mean() + 0.1
    kinds = np.random.default_rng(0).choice(KINDS, 10_000, p=_World(SMALL).shares)
    counts = np.sort(np.bincount(kinds, minlength=KINDS))
    assert counts[-20:].sum() > 5 * counts[:20].sum()  # some patterns are far more common than others


def test_the_usual_world_is_neither_trivial_nor_hopeless(tmp_path: Path) -> None:
    dataset = read_world(tmp_path)
    assert json.loads((tmp_path / "world.json").read_text())["groups"] == len(dataset.questions) == 40
    sample = np.concatenate([descriptors_of(path) for path in training_images(tmp_path)])
    vocabularies = [train(sample, TrainOptions(size=500, seed=seed, rounds=6, bits=0)) for seed in (1, 2)]
    assigner = Assigner(vocabularies)
    words = [assigner.assign(descriptors_of(path)) for path in dataset.images]
    index = polyvoc.Index.from_words(words, [500, 500])
    values = [
        average_precision(rank(index.score_words(words[question.image], options=scoring_options(merge="b1"))), truth)
        for question, truth in zip(dataset.questions, dataset.truths[""], strict=True)
    ]
    assert 0.5 < np.mean(values) < 0.8
