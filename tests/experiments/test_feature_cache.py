"""The store holds the features of the files, extracts each part once, and survives interruptions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benches import described, write_descriptors
from polyvoc.errors import DatasetError, UnreachableError
from polyvoc.experiments.cache import store_folder
from polyvoc.experiments.datasets.descriptor_files import write_siftgeo
from polyvoc.experiments.datasets.feature_cache import FeatureStore, identity_of, part_bounds
from polyvoc.experiments.datasets.image_folder import Kind
from polyvoc.experiments.workbench import no_progress
from polyvoc.features.extract import extract, extract_many, root_sift
from polyvoc.options import FeatureOptions

OPTIONS = FeatureOptions(max_features=80)


class Reader:
    """Extracts, and notes which files it reads; stops after some."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.last: int | None = None

    def __call__(self, sources: Iterable[Path], *arguments: Any, **options: Any) -> Iterator[Any]:
        for path, found in extract_many(sources, *arguments, **options):
            if self.last is not None and len(self.files) == self.last:
                raise KeyboardInterrupt
            self.files.append(path.name)
            yield path, found


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Reader:
    """Parts of 4 files, and a list of the files that were read."""
    watched = Reader()
    monkeypatch.setattr("polyvoc.experiments.datasets.feature_cache.PART", 4)
    monkeypatch.setattr("polyvoc.experiments.datasets.feature_cache.extract_many", watched)
    return watched


def opened(cache: Path, files: list[Path], kind: Kind = "photographs", options: FeatureOptions = OPTIONS) -> FeatureStore:
    return FeatureStore.open(cache, files, kind, options, no_progress)


@pytest.fixture(scope="module")
def files(photographs: Path) -> list[Path]:
    return sorted(photographs.glob("*.jpg"))


def test_features_are_those_of_extract(files: list[Path], tmp_path: Path, reader: Reader) -> None:
    store = opened(tmp_path, files)
    assert len(store) == 12 and len(store.parts) == 3 and store.problems == ()
    for number, file in enumerate(files):
        found = extract(file, OPTIONS)
        assert np.array_equal(store.descriptors(number), found.descriptors)  # to the last bit
        assert np.array_equal(store.geometry(number), np.column_stack([found.xy, found.scale, found.angle]))
        assert store.starts[number + 1] - store.starts[number] == len(found)
    assert store.n_features == store.starts[-1] == sum(len(store.sift(part)) for part in range(3))
    assert store.sift(0).dtype == np.uint8
    again = opened(tmp_path, files)
    assert len(reader.files) == 12  # nothing is read again
    assert again.digest == store.digest and np.array_equal(again.sift(2), store.sift(2))


def test_two_stores_joined_hold_the_features_of_both(files: list[Path], tmp_path: Path, reader: Reader) -> None:
    first, second = opened(tmp_path, files[:5]), opened(tmp_path, files[5:])
    both, whole = first.joined(second), opened(tmp_path, files)
    assert both.files == whole.files and both.digest not in (first.digest, whole.digest)
    assert np.array_equal(both.starts, whole.starts) and both.n_features == whole.n_features
    for number in range(len(files)):
        assert np.array_equal(both.descriptors(number), whole.descriptors(number))
    assert np.array_equal(both.sample(50, 3), whole.sample(50, 3))


def test_the_identity_of_files_is_that_of_their_names_and_sizes(files: list[Path], tmp_path: Path) -> None:
    copies = [Path(shutil.copy(file, tmp_path)) for file in files]
    name = identity_of(files, "photographs", OPTIONS)
    assert identity_of(copies, "photographs", OPTIONS) == name
    assert opened(tmp_path / "cache", copies).digest != opened(tmp_path / "cache", files).digest
    assert identity_of(copies[::-1], "photographs", OPTIONS) != name
    assert identity_of(copies, "photographs", FeatureOptions(max_features=81)) != name
    copies[3].write_bytes(copies[3].read_bytes() + b" ")
    assert identity_of(copies, "photographs", OPTIONS) != name
    copies[3].unlink()
    with pytest.raises(DatasetError, match=r"cannot be read \(No such file or directory\); check the dataset$"):
        identity_of(copies, "photographs", OPTIONS)


def test_only_a_missing_part_is_read_again(files: list[Path], tmp_path: Path, reader: Reader) -> None:
    before = opened(tmp_path, files)
    descriptors = before.descriptors(5)
    shutil.rmtree(before.parts[1])
    reader.files.clear()
    seen: list[tuple[str, int, int]] = []
    after = FeatureStore.open(tmp_path, files, "photographs", OPTIONS, lambda *step: seen.append(step))
    assert reader.files == [file.name for file in files[4:8]]
    assert np.array_equal(after.descriptors(5), descriptors)
    assert seen == [("features", done, 12) for done in (9, 10, 11, 12)]  # the others were done before


def test_an_interruption_leaves_whole_parts(files: list[Path], tmp_path: Path, reader: Reader) -> None:
    reader.last = 6
    with pytest.raises(KeyboardInterrupt):
        opened(tmp_path, files)
    kept = list((tmp_path / "features").iterdir())
    assert len(kept) == 1 and "." not in kept[0].name
    reader.last = None
    reader.files.clear()
    assert opened(tmp_path, files).n_features > 0
    assert reader.files == [file.name for file in files[4:]]


def test_a_changed_photograph_is_read_again_with_its_part(photographs: Path, tmp_path: Path, reader: Reader) -> None:
    folder = Path(shutil.copytree(photographs, tmp_path / "photographs"))
    files = sorted(folder.glob("*.jpg"))
    before = opened(tmp_path / "cache", files)
    reader.files.clear()
    shutil.copy(files[0], files[9])
    after = opened(tmp_path / "cache", files)
    assert reader.files == [file.name for file in files[8:]]
    assert after.digest != before.digest
    assert np.array_equal(after.descriptors(9), before.descriptors(0))
    os.utime(files[0], ns=(1, 1))  # the same size, another time of change
    opened(tmp_path / "cache", files)
    assert reader.files == [file.name for file in (*files[8:], *files[:4])]


def test_a_broken_photograph_is_a_problem_without_features(files: list[Path], tmp_path: Path, reader: Reader) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_text("no photograph")
    store = opened(tmp_path, [files[0], broken, *files[1:3]])
    assert [problem.path for problem in store.problems] == [str(broken)]
    assert "broken.jpg" in store.problems[0].reason
    assert store.descriptors(1).shape == (0, 128) and store.geometry(1).shape == (0, 4)
    assert np.array_equal(store.descriptors(2), extract(files[1], OPTIONS).descriptors)
    assert opened(tmp_path, [files[0], broken, *files[1:3]]).problems == store.problems


def test_a_photograph_that_cannot_be_read_now_is_not_cached(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def busy(sources: Iterable[Path], *arguments: Any, **options: Any) -> Iterator[Any]:
        yield files[0], UnreachableError("a.jpg: cannot be opened (Input/output error)")

    with monkeypatch.context() as patch:
        patch.setattr("polyvoc.experiments.datasets.feature_cache.extract_many", busy)
        with pytest.raises(UnreachableError, match="Input/output error"):
            opened(tmp_path, files[:2])
    assert opened(tmp_path, files[:2]).problems == ()


def test_published_descriptors(tmp_path: Path) -> None:
    features = described(30)
    write_siftgeo(tmp_path / "a.siftgeo", features)
    store = opened(tmp_path, [tmp_path / "a.siftgeo"], "siftgeo")
    assert np.array_equal(store.sift(0), features.descriptors)
    assert np.array_equal(store.descriptors(0), root_sift(features.descriptors))
    expected = np.column_stack([features.xy, features.scale, features.angle])
    assert np.allclose(store.geometry(0), expected, atol=1e-3)
    rows = zip(features.xy.tolist(), features.descriptors.tolist(), strict=True)
    lines = [" ".join(map(str, (*xy, 0.25, 0, 0.04, *values))) for xy, values in rows]  # half axes of 2 and 5 pixels
    (tmp_path / "a.hesaff.sift").write_text("\n".join(["128", "30", *lines]))
    store = opened(tmp_path, [tmp_path / "a.hesaff.sift"], "hesaff")
    assert np.array_equal(store.sift(0), features.descriptors)
    assert np.allclose(store.geometry(0)[:, :2], features.xy, atol=1e-3)
    assert np.allclose(store.geometry(0)[:, 2:], [2 * np.sqrt(10), 0])


def test_missing_files_and_descriptors_of_another_length_are_errors(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=r"away\.jpg: cannot be read \(No such file or directory\)"):
        opened(tmp_path, [tmp_path / "away.jpg"])
    write_siftgeo(tmp_path / "a.siftgeo", described(3, dimension=64))
    with pytest.raises(DatasetError, match=r"a\.siftgeo: descriptors of 64 numbers; 128 are expected"):
        opened(tmp_path, [tmp_path / "a.siftgeo"], "siftgeo")


# -- samples


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureStore:
    """11 files in parts of 4, some of them empty: 60 features, all different."""
    monkeypatch.setattr("polyvoc.experiments.datasets.feature_cache.PART", 4)
    return opened(tmp_path, write_descriptors(tmp_path / "files", [9, 0, 6, 5, 0, 0, 0, 0, 20, 19, 1]), "siftgeo")


def numbers_of(store: FeatureStore, sample: np.ndarray) -> list[int]:
    """Return the numbers of the features that a sample consists of."""
    every = [row.tobytes() for file in range(len(store)) for row in store.descriptors(file)]
    places = {row: number for number, row in enumerate(every)}
    assert len(places) == store.n_features
    return [places[row.tobytes()] for row in sample]


def test_a_sample_depends_on_its_seed_alone_and_is_everything_above_the_total(counted: FeatureStore) -> None:
    for limit in (60, 61, 10**9):
        assert numbers_of(counted, counted.sample(limit, 0)) == list(range(60))
    drawn = numbers_of(counted, counted.sample(25, 7))
    assert drawn == sorted(set(drawn)) and len(drawn) == 25
    assert numbers_of(counted, counted.sample(25, 7)) == drawn
    assert numbers_of(counted, counted.sample(25, 8)) != drawn


def test_every_feature_has_the_same_chance(counted: FeatureStore) -> None:
    times = np.zeros(60)
    for seed in range(300):
        times[numbers_of(counted, counted.sample(20, seed))] += 1
    assert times.mean() == 100
    assert times.min() > 60 and times.max() < 140  # 5 standard deviations of 8.2


def test_no_files_are_no_features(tmp_path: Path) -> None:
    store = opened(tmp_path, [])
    assert len(store) == 0 and store.n_features == 0 and store.problems == ()
    assert store.sample(10, 0).shape == (0, 128)


# -- names


def test_the_digest_changes_with_files_and_options(files: list[Path], tmp_path: Path) -> None:
    some = opened(tmp_path, files[:2])
    assert opened(tmp_path, files[:1]).digest != some.digest
    assert opened(tmp_path, files[1::-1]).digest != some.digest
    fewer = opened(tmp_path, files[:2], options=FeatureOptions(max_features=10))
    assert fewer.digest != some.digest and fewer.n_features == 20


def test_the_quicker_of_two_processes_writes(tmp_path: Path) -> None:
    store_folder(tmp_path / "a", {"numbers": np.arange(3)}, {"by": "me"})
    content = (tmp_path / "a" / "numbers.npy").read_bytes()
    store_folder(tmp_path / "a", {"numbers": np.arange(4)}, {"by": "another"})
    assert (tmp_path / "a" / "numbers.npy").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_part_ends_with_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyvoc.experiments.datasets.feature_cache.PART", 3)
    files = [Path(folder, str(number)) for folder, count in (("a", 4), ("b", 3), ("c", 1)) for number in range(count)]
    assert part_bounds(files) == [0, 3, 4, 7, 8]
    assert part_bounds(files[:1]) == [0, 1] and part_bounds([]) == [0]


def test_distractors_are_read_once_for_all_datasets(files: list[Path], tmp_path: Path, reader: Reader) -> None:
    (tmp_path / "more").mkdir()
    more = [Path(shutil.copy2(file, tmp_path / "more")) for file in files[:5]]
    alone = opened(tmp_path / "cache", more)
    reader.files.clear()
    both = opened(tmp_path / "cache", [*files, *more])
    assert len(reader.files) == len(files) and both.parts[-len(alone.parts) :] == alone.parts
    for number in range(len(more)):
        assert np.array_equal(both.descriptors(len(files) + number), alone.descriptors(number))
        assert np.array_equal(both.geometry(len(files) + number), alone.geometry(number))
    assert len(both.sample(10**9, 0)) == both.n_features
