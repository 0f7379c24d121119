"""The features of many files, extracted once and kept: SIFT as bytes, by parts of 256 files that survive an interruption."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DatasetError, ImageError, OptionError, UnreachableError
from polyvoc.experiments.cache import digest_of, keep
from polyvoc.experiments.datasets.descriptor_files import read_hesaff_features, read_siftgeo_features
from polyvoc.experiments.datasets.image_folder import Kind
from polyvoc.features.extract import extract_many, root_sift
from polyvoc.options import FeatureOptions
from polyvoc.storage.files import map_array, read_meta
from polyvoc.types import FeatureKind, Floats32, Problem, Progress

PART = 256  # files
VERSION = 1  # of the stored arrays
DIMENSION = 128


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """SIFT features of files, mapped from the disk; feature numbers run through all files in order."""

    files: tuple[Path, ...]
    digest: str  # changes with the files and the options
    parts: tuple[Path, ...]
    starts: npt.NDArray[np.int64]  # [files + 1] number of the first feature of each
    problems: tuple[Problem, ...]  # files without features, and why

    @classmethod
    def open(cls, cache: Path, files: Sequence[Path], kind: Kind, options: FeatureOptions, progress: Progress) -> FeatureStore:
        """Give the features of files; those that the cache has not are extracted and kept there."""
        if options.kind != FeatureKind():
            raise OptionError(f"detector={options.detector!r} makes no SIFT; datasets are read with sift or affine")
        digests = [_digest(files[i : i + PART], kind, options) for i in range(0, len(files), PART)]
        parts = [cache / "features" / name for name in digests]
        done = sum(_length(files, n) for n, part in enumerate(parts) if part.is_dir())
        for number, part in enumerate(parts):
            if not part.is_dir():
                several = files[number * PART : (number + 1) * PART]
                _write_part(part, _watched(_read(several, kind, options), done, len(files), progress))
                done += len(several)
        metas = [read_meta(part) for part in parts]
        counts = [count for meta in metas for count in meta["counts"]]
        problems = tuple(Problem(*problem) for meta in metas for problem in meta["problems"])
        starts = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        return cls(tuple(files), digest_of(*digests), tuple(parts), starts, problems)

    def __len__(self) -> int:
        """Count the files."""
        return len(self.files)

    @property
    def n_features(self) -> int:
        """Count the features of all files."""
        return int(self.starts[-1])

    def sift(self, part: int) -> npt.NDArray[np.uint8]:
        """Map the SIFT descriptors [n, 128] of one part."""
        return self._arrays[part][0]

    def descriptors(self, file: int) -> Floats32:
        """Give the rootSIFT descriptors [n, 128] of one file."""
        return root_sift(self.sift(file // PART)[self._within(file)])

    def geometry(self, file: int) -> Floats32:
        """Give x, y, scale (diameter) and angle (degrees) of the features of one file [n, 4]."""
        return np.array(self._arrays[file // PART][1][self._within(file)])

    def sample(self, limit: int, seed: int) -> Floats32:
        """Draw at most `limit` rootSIFT descriptors from all files, each with the same chance, in their order."""
        if self.n_features <= limit:
            rows = np.arange(self.n_features)
        else:
            rows = np.sort(np.random.default_rng(seed).choice(self.n_features, limit, replace=False))
        firsts = self.starts[np.minimum(PART * np.arange(len(self.parts) + 1), len(self.files))]  # of each part, and the end
        cuts = np.searchsorted(rows, firsts)
        numbers = [rows[cuts[part] : cuts[part + 1]] - firsts[part] for part in range(len(self.parts))]
        pieces = [root_sift(self.sift(part)[chosen]) for part, chosen in enumerate(numbers)]
        return np.concatenate([np.empty((0, DIMENSION), np.float32), *pieces])

    def _within(self, file: int) -> slice:
        first = self.starts[file // PART * PART]
        return slice(int(self.starts[file] - first), int(self.starts[file + 1] - first))

    @cached_property
    def _arrays(self) -> list[tuple[npt.NDArray[np.uint8], Floats32]]:
        """Map the descriptors [n, 128] and the geometry [n, 4] of every part."""
        arrays = []
        for number, part in enumerate(self.parts):
            first, last = number * PART, min((number + 1) * PART, len(self.files))
            n = int(self.starts[last] - self.starts[first])
            arrays.append(
                (
                    map_array(part / "sift.npy", np.uint8, (n, DIMENSION)),
                    map_array(part / "geometry.npy", np.float32, (n, 4)),
                )
            )
        return arrays


@dataclass(frozen=True, eq=False)
class _Found:
    """What one file gave: arrays, or a problem."""

    sift: npt.NDArray[np.uint8]
    geometry: Floats32
    problem: Problem | None = None


def _read(files: Sequence[Path], kind: Kind, options: FeatureOptions) -> Iterator[_Found]:
    if kind == "photographs":
        yield from _extract(files, options)
        return
    read = read_siftgeo_features if kind == "siftgeo" else read_hesaff_features
    for file in files:
        found = read(file)
        if found.descriptors.shape[1] != DIMENSION:
            raise DatasetError(f"{file}: descriptors of {found.descriptors.shape[1]} numbers; {DIMENSION} are expected")
        geometry = np.column_stack([found.xy, found.scale, found.angle])
        yield _Found(found.descriptors, geometry.astype(np.float32))


def _extract(files: Sequence[Path], options: FeatureOptions) -> Iterator[_Found]:
    for file, result in extract_many(files, options, root=False):
        if isinstance(result, UnreachableError):  # may be there again tomorrow, and the cache would never look
            raise result
        if isinstance(result, ImageError):
            yield _Found(np.empty((0, DIMENSION), np.uint8), np.empty((0, 4), np.float32), Problem(str(file), str(result)))
        else:
            geometry = np.column_stack([result.xy, result.scale, result.angle])
            yield _Found(result.descriptors.astype(np.uint8), geometry)


def _watched(found: Iterable[_Found], done: int, total: int, progress: Progress) -> Iterator[_Found]:
    for number, one in enumerate(found, start=done + 1):
        yield one
        progress("features", number, total)


def _write_part(part: Path, found: Iterable[_Found]) -> None:
    every = list(found)
    arrays = {"sift": np.concatenate([f.sift for f in every]), "geometry": np.concatenate([f.geometry for f in every])}
    problems = [[f.problem.path, f.problem.reason] for f in every if f.problem is not None]
    keep(part, arrays, {"counts": [len(f.sift) for f in every], "problems": problems})


def _length(files: Sequence[Path], part: int) -> int:
    return len(files[part * PART : (part + 1) * PART])


def _digest(files: Sequence[Path], kind: Kind, options: FeatureOptions) -> str:
    states = []
    for file in files:
        try:
            status = file.stat()
        except OSError as error:
            raise DatasetError(f"{file}: cannot be read ({error.strerror}); check the dataset") from None
        states.append([os.path.abspath(file), status.st_size, status.st_mtime_ns])
    how = asdict(options) if kind == "photographs" else None
    if how is not None and options.detector == FeatureOptions.detector:
        del how["detector"]  # what was kept before there were others stays known
    return digest_of(VERSION, kind, how, states)
