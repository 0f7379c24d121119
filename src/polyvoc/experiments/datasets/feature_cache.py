"""Cache of the SIFT features of many files, as bytes, in parts of 256 files that survive an interruption.

Parts end with their folder, so that a folder of distractors is read once for all datasets."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DatasetError, ImageError, OptionError, UnreachableError
from polyvoc.experiments.cache import digest_of, store_folder
from polyvoc.experiments.datasets.descriptor_files import SiftFeatures, read_hesaff, read_siftgeo
from polyvoc.experiments.datasets.hessian_affine import HessianAffine, extract_hessian_affine
from polyvoc.experiments.datasets.image_folder import Kind
from polyvoc.features.extract import extract_many, root_sift
from polyvoc.options import FeatureOptions
from polyvoc.storage.files import map_array, read_meta
from polyvoc.types import Array, FeatureKind, Features, Floats32, Problem, Progress

PART = 256  # files
VERSION = 1  # of the stored arrays
DIMENSION = 128
Detection = FeatureOptions | HessianAffine  # how photographs become features
_NAMES_IN_DIGESTS = {"opencv-sift": "sift", "sift": "own sift"}  # stored results call the SIFT of OpenCV "sift"


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """SIFT features of files, mapped from the disk; feature numbers run through all files in order."""

    files: tuple[Path, ...]
    digest: str  # changes with the files and the options
    parts: tuple[Path, ...]
    bounds: npt.NDArray[np.int64]  # [parts + 1] number of the first file of each
    starts: npt.NDArray[np.int64]  # [files + 1] number of the first feature of each
    problems: tuple[Problem, ...]  # files without features, and why

    @classmethod
    def open(cls, cache: Path, files: Sequence[Path], kind: Kind, options: Detection, progress: Progress) -> FeatureStore:
        """Return the features of files; those that the cache lacks are extracted and written to it."""
        if not isinstance(options, HessianAffine) and options.kind != FeatureKind():
            raise OptionError(f"detector={options.detector!r} extracts no SIFT; datasets are read with sift or affine")
        bounds = part_bounds(files)
        several = [files[first:last] for first, last in pairwise(bounds)]
        digests = [state_of(own, kind, options) for own in several]
        parts = [cache / "features" / name for name in digests]
        done = sum(len(own) for own, part in zip(several, parts, strict=True) if part.is_dir())
        for own, part in zip(several, parts, strict=True):
            if not part.is_dir():
                _write_part(part, _report(_read(own, kind, options), done, len(files), progress))
                done += len(own)
        metas = [read_meta(part) for part in parts]
        counts = [count for meta in metas for count in meta["counts"]]
        problems = tuple(Problem(*problem) for meta in metas for problem in meta["problems"])
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        return cls(tuple(files), digest_of(*digests), tuple(parts), np.array(bounds), starts, problems)

    def joined(self, other: FeatureStore) -> FeatureStore:
        """Return the features of these files, then those of others."""
        return FeatureStore(
            (*self.files, *other.files),
            digest_of(self.digest, other.digest),
            (*self.parts, *other.parts),
            np.concatenate([self.bounds[:-1], len(self) + other.bounds]),
            np.concatenate([self.starts, self.n_features + other.starts[1:]]),
            (*self.problems, *other.problems),
        )

    def __len__(self) -> int:
        """Return the number of files."""
        return len(self.files)

    @property
    def n_features(self) -> int:
        """Return the number of features of all files."""
        return int(self.starts[-1])

    def sift(self, part: int) -> npt.NDArray[np.uint8]:
        """Map the SIFT descriptors [n, 128] of one part."""
        return self._arrays[part][0]

    def descriptors(self, file: int) -> Floats32:
        """Return the rootSIFT descriptors [n, 128] of one file."""
        return root_sift(self.sift(self._part(file))[self._within(file)])

    def geometry(self, file: int) -> Floats32:
        """Return x, y, scale (diameter) and angle (degrees) of the features of one file [n, 4]."""
        return np.array(self._arrays[self._part(file)][1][self._within(file)])

    def sample(self, limit: int, seed: int) -> Floats32:
        """Return at most `limit` rootSIFT descriptors drawn at random from all files, in their order."""
        if self.n_features <= limit:
            rows = np.arange(self.n_features)
        else:
            rows = np.sort(np.random.default_rng(seed).choice(self.n_features, limit, replace=False))
        firsts = self.starts[self.bounds]
        cuts = np.searchsorted(rows, firsts)
        numbers = [rows[cuts[part] : cuts[part + 1]] - firsts[part] for part in range(len(self.parts))]
        pieces = [root_sift(self.sift(part)[chosen]) for part, chosen in enumerate(numbers)]
        return np.concatenate([np.empty((0, DIMENSION), np.float32), *pieces])

    def _part(self, file: int) -> int:
        return int(np.searchsorted(self.bounds, file, "right")) - 1

    def _within(self, file: int) -> slice:
        first = self.starts[self.bounds[self._part(file)]]
        return slice(int(self.starts[file] - first), int(self.starts[file + 1] - first))

    @cached_property
    def _arrays(self) -> list[tuple[Array, ...]]:
        """Map the descriptors [n, 128] and the geometry [n, 4] of every part."""
        shapes = {"sift.npy": (np.uint8, DIMENSION), "geometry.npy": (np.float32, 4)}
        return [
            tuple(map_array(part / name, kind, (int(n), width)) for name, (kind, width) in shapes.items())
            for part, n in zip(self.parts, np.diff(self.starts[self.bounds]), strict=True)
        ]


def part_bounds(files: Sequence[Path]) -> list[int]:
    """Return where the parts of a list of files begin, and its length: a part has one folder and at most PART files."""
    bounds = [0]
    for number in range(1, len(files)):
        if number - bounds[-1] == PART or files[number].parent != files[number - 1].parent:
            bounds.append(number)
    return [*bounds, len(files)] if files else bounds


@dataclass(frozen=True, eq=False)
class _FileFeatures:
    """The features of one file, or why it has none."""

    sift: npt.NDArray[np.uint8]
    geometry: Floats32
    problem: Problem | None = None


def _read(files: Sequence[Path], kind: Kind, options: Detection) -> Iterator[_FileFeatures]:
    if kind == "photographs":
        yield from _extract(files, options)
        return
    read = read_siftgeo if kind == "siftgeo" else read_hesaff
    for file in files:
        features = read(file)
        if features.descriptors.shape[1] != DIMENSION:
            raise DatasetError(f"{file}: descriptors of {features.descriptors.shape[1]} numbers; {DIMENSION} are expected")
        yield _FileFeatures(features.descriptors, _geometry(features))


def _extract(files: Sequence[Path], options: Detection) -> Iterator[_FileFeatures]:
    several: Iterable[tuple[Path, SiftFeatures | Features | ImageError]]
    if isinstance(options, HessianAffine):
        several = extract_hessian_affine(files, options)
    else:
        several = extract_many(files, options, root=False)
    for file, result in several:
        if isinstance(result, UnreachableError):  # may be there again tomorrow, and the cache would never look
            raise result
        if isinstance(result, ImageError):
            none = np.empty((0, DIMENSION), np.uint8), np.empty((0, 4), np.float32)
            yield _FileFeatures(*none, Problem(str(file), str(result)))
        else:
            yield _FileFeatures(result.descriptors.astype(np.uint8), _geometry(result))


def _geometry(features: SiftFeatures | Features) -> Floats32:
    return np.column_stack([features.xy, features.scale, features.angle]).astype(np.float32)


def _report(files: Iterable[_FileFeatures], done: int, total: int, progress: Progress) -> Iterator[_FileFeatures]:
    for number, file in enumerate(files, start=done + 1):
        yield file
        progress("features", number, total)


def _write_part(part: Path, files: Iterable[_FileFeatures]) -> None:
    read = list(files)
    arrays = {
        "sift": np.concatenate([file.sift for file in read]),
        "geometry": np.concatenate([file.geometry for file in read]),
    }
    problems = [[file.problem.path, file.problem.reason] for file in read if file.problem is not None]
    store_folder(part, arrays, {"counts": [len(file.sift) for file in read], "problems": problems})


def identity_of(files: Sequence[Path], kind: Kind, options: Detection) -> str:
    """Return a digest of the names and sizes of files and of the options: the same on every machine."""
    return _digest_of([[file.name, _status(file).st_size] for file in files], kind, options)


def state_of(files: Sequence[Path], kind: Kind, options: Detection) -> str:
    """Return a digest that also changes when a file of the same size is written anew."""
    states = [(os.path.abspath(file), _status(file)) for file in files]
    return _digest_of([[path, status.st_size, status.st_mtime_ns] for path, status in states], kind, options)


def _digest_of(states: list[list[str | int]], kind: Kind, options: Detection) -> str:
    plain = options.as_dict() if isinstance(options, FeatureOptions) else asdict(options)
    named = {**plain, "detector": _NAMES_IN_DIGESTS.get(options.detector, options.detector)}
    return digest_of(VERSION, kind, named if kind == "photographs" else None, states)


def _status(file: Path) -> os.stat_result:
    try:
        return file.stat()
    except OSError as error:
        raise DatasetError(f"{file}: cannot be read ({error.strerror}); check the dataset") from None
