"""Features that other programs made: COLMAP's databases, hloc's HDF5. Into an index, and into the sample of a vocabulary."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Protocol

import numpy as np

from polyvoc import collection, stores, training
from polyvoc.colmap import ColmapFeatures
from polyvoc.errors import ExchangeError, OptionError
from polyvoc.features import check_features
from polyvoc.hloc import HlocFeatures
from polyvoc.home import Home
from polyvoc.images import describe
from polyvoc.records import FeatureOptions, Features, IndexReport, Kind, Problem, Progress, TrainOptions
from polyvoc.vocabulary import Vocabulary
from polyvoc.writer import IndexWriter

if TYPE_CHECKING:
    from polyvoc.images import Location

SQLITE, HDF5 = b"SQLite format 3\0", b"\x89HDF\r\n\x1a\n"  # how such files begin
MADE = "features"  # with which the digest of an image begins whose features another program made


class FeatureFile(Protocol):
    """Features of many images in one file."""

    path: Path

    def __len__(self) -> int:
        """Count the images."""

    def names(self) -> list[str]:
        """Give the names of all images."""

    def read(self) -> Iterator[tuple[str, Features | ExchangeError]]:
        """Give the name and the features of each image, or what is wrong with it."""

    def close(self) -> None:
        """Release the file."""


def open_features(path: str | os.PathLike[str], kind: str | None = None, binary: bool = False) -> FeatureFile:
    """Open a file of features, known by its content; `kind` and `binary` say what the descriptors are if the file does not."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(len(SQLITE))
    except OSError as error:
        raise ExchangeError(f"{describe(Path(path))} cannot be read ({error.strerror or error}); check the path") from None
    if start.startswith(HDF5):
        return HlocFeatures(path, kind, binary)
    if start == SQLITE:
        return ColmapFeatures(path, kind)
    raise ExchangeError(f"{describe(Path(path))} is neither a COLMAP database nor an HDF5 file of hloc; give one of them")


def kind_of(file: FeatureFile) -> Kind:
    """Give what the descriptors of a file are, by the first image that can be used."""
    wrong = None
    for _, found in file.read():
        if isinstance(found, Features):
            return found.kind
        wrong = wrong or found
    raise ExchangeError(f"{describe(file.path)} holds no image that could be used" + (f": {wrong}" if wrong else ""))


def check_kind(file: FeatureFile, home: Home, vocabularies: Sequence[Vocabulary] | None) -> None:
    """Refuse features that have no words in the vocabularies of an index, or in those that a new one is to be made with."""
    found, wanted = kind_of(file), _kind_wanted(home, vocabularies)
    if found != wanted:
        raise OptionError(f"{describe(file.path)} holds {found}, but the vocabularies are for {wanted}; train others: polyvoc "
                          f"train --features {file.path} --out WORDS, and index with --vocabulary WORDS")  # fmt: skip


def _kind_wanted(home: Home, vocabularies: Sequence[Vocabulary] | None) -> Kind:
    if vocabularies:
        return vocabularies[0].kind
    return Kind() if home.identity is None else home.kind  # a new index takes the vocabularies that come with polyvoc


def check_folder(file: FeatureFile, images: str) -> None:
    """Refuse a folder without a single photograph of the file: its names would lead nowhere."""
    collection.check([images])
    root = collection.location(images)
    names = file.names()
    if not stores.is_url(root) and not any(os.path.isfile(os.path.join(root, name)) for name in names):
        example = describe(names[0]) if names else "any"
        raise OptionError(f"{images} holds no photograph that {describe(file.path)} names, such as {example}; give the folder "
                          "that its names are relative to")  # fmt: skip


def update(writer: IndexWriter, file: FeatureFile, images: str | None = None, keep_missing: bool = False,
           progress: Progress | None = None) -> IndexReport:  # fmt: skip
    """Bring an index up to date with a file of features: add new images, replace changed ones, drop vanished ones.

    `images` is the folder, or the address, where the photographs lie: names in the file are relative to it, and the images of
    the index get their paths. Without it they are called as in the file. Of each image the index takes the largest features,
    as many as its feature options say of photographs.
    """
    if images is not None:
        check_folder(file, images)
    writer.commit()
    known = {row.path: row for row in writer.catalogue.images()}
    mark = f"{MADE}:{hashlib.blake2b(os.fsencode(os.path.abspath(file.path)), digest_size=4).hexdigest()}:"  # of this file
    report, seen = IndexReport(), set()
    for done, (name, found) in enumerate(file.read(), start=1):
        try:
            path = place(name, images)
            if isinstance(found, ExchangeError):
                raise found
            seal, old = mark + digest(found), known.get(path)
            kept = largest(found, writer.home.feature_options.max_features)
            if old is not None and old.digest == seal:
                report.unchanged += 1
            else:
                _add(writer, file, path, kept, seal)
                report.replaced += old is not None
                report.added += old is None
                report.features += len(kept)
            seen.add(path)
        except ExchangeError as error:
            report.problems.append(Problem(name, str(error)))
        if progress is not None:
            progress("indexing", done, len(file))
    gone = [row.path for row in known.values() if (row.digest or "").startswith(mark) and row.path not in seen]
    if gone and not keep_missing:
        report.removed = writer.remove(gone)
    writer.commit()
    return report


def sample(file: FeatureFile, options: TrainOptions, progress: Callable[[int, int], None] | None = None) -> training.Sample:
    """Draw descriptors from a file, each with the same chance, to train a vocabulary on."""
    kind = kind_of(file)
    drawn = training.sample_descriptors(
        file.names(), limit=options.max_descriptors, seed=options.seed, progress=progress, workers=_Reader(file, kind)
    )
    used = drawn.provenance["photographs"]
    return replace(drawn, provenance={"photographs": used}, name=kind.name)


def largest(features: Features, most: int) -> Features:
    """Give the largest features, as COLMAP keeps them where there are too many; of equal ones the first in their order."""
    if len(features) <= most:
        return features
    kept = np.sort(np.argsort(-features.scale, kind="stable")[:most])
    arrays = {name: getattr(features, name)[kept] for name in ("xy", "scale", "angle", "descriptors")}
    return replace(features, **arrays)


def digest(features: Features) -> str:
    """Give 32 hex digits that change with anything in the features."""
    hashed = hashlib.blake2b(f"{features.kind} {features.width} {features.height} {len(features)}".encode(), digest_size=16)
    for values in (features.xy, features.scale, features.angle, features.descriptors):
        hashed.update(np.ascontiguousarray(values).view(np.uint8).data)
    return hashed.hexdigest()


def place(name: str, images: str | None) -> str:
    """Give what an image of a file is called in an index; refuse names that lead to somewhere else."""
    parts = PurePosixPath(name)
    if not name or "\0" in name or parts.is_absolute() or os.path.isabs(name) or ".." in parts.parts or stores.is_url(name):
        raise ExchangeError(f"{name!r} is not the name of an image within a folder; leave it out")
    if images is None:
        return name
    root = collection.location(images)
    return f"{root.rstrip('/')}/{name}" if stores.is_url(root) else os.path.normpath(os.path.join(root, name))


class _Reader(training.Threads):
    """Draws from a file what it holds of each image, instead of reading photographs."""

    def __init__(self, file: FeatureFile, kind: Kind) -> None:
        self._file, self._kind = file, kind

    def draw(
        self, paths: Sequence[Location], options: FeatureOptions, seed: int, ceiling: Callable[[], float]
    ) -> Iterator[training.Draw | Problem]:
        """Give what is drawn from each image, in their order."""
        for number, (name, found) in enumerate(self._file.read()):
            if isinstance(found, ExchangeError):
                yield Problem(name, str(found))
                continue
            try:
                check_features(found, self._kind, "the sample")
            except OptionError as error:
                yield Problem(name, f"{describe(self._file.path)}: {describe(name)}: {error}")
            else:
                yield training.Draw(found.descriptors, np.random.default_rng([seed, number]).random(len(found)))


def _add(writer: IndexWriter, file: FeatureFile, path: str, found: Features, seal: str) -> None:
    try:
        writer.add(path, found, seal)
    except OptionError as error:
        raise ExchangeError(f"{describe(file.path)}: {describe(path)}: {error}") from None
