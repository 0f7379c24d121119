"""A visual vocabulary: its words, what its Hamming signatures need, and its folder. `train` makes one, `assign` uses it."""

from __future__ import annotations

import hashlib
import importlib.resources
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import DamagedError, OptionError, VocabularyError
from polyvoc.storage.files import (
    META,
    file_errors,
    map_folder,
    read_meta,
    remove_partial_folders,
    require_local_path,
    write_folder,
)
from polyvoc.types import SIFT, Array, FeatureKind, Floats32
from polyvoc.vocabulary.products import rotate

FORMAT = "polyvoc vocabulary"
VERSION = 2  # of the folder's format
MAX_BITS = 128  # a signature is one or two uint64
SHIPPED = 3  # vocabularies of words that come with the package, beside the fine one
DEFAULT_COUNT = 2  # of them that an index takes
FINE = "fine"  # folder of the vocabulary that codes refer to
LEARNED = {"xfeat": FeatureKind("xfeat", 64)}  # shipped vocabularies of other kinds, for codes: folder and kind
_ENTRIES = {"fingerprint": str, "size": int, "bits": int, "kind": dict, "provenance": dict, "checksums": dict}  # of meta.json
_ROTATION_SEED = 2008  # one for all vocabularies, so that a descriptor is projected once for all of them


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The words that descriptors are quantised to, and what their Hamming signatures need. See `Vocabulary.create`."""

    words: ByteTable  # [size, dimension]
    medians: ByteTable | None  # [size, bits]  of the projected descriptors of each word; None: the projected words serve
    rotation: Floats32 | None  # [bits, dimension]  rows are orthonormal
    provenance: Mapping[str, Any]  # plain values: photographs, descriptors, seed, rounds, ...
    name: str = SIFT  # of the features that it was trained on
    # Bits are points of the unit cube, where the squared distance of two points is their Hamming distance: a word of a binary
    # feature is the mean of bit vectors, and the nearest word is the nearest point.
    binary: bool = False
    decoder: Decoder | None = None  # turns codes back into descriptors; None: the vocabulary serves no codes
    cells: StoredCells | None = None  # prepared, so that a process need not compute them; None: computed when they are used

    @classmethod
    def create(
        cls,
        centroids: npt.ArrayLike,
        thresholds: npt.ArrayLike | None = None,
        rotation: npt.ArrayLike | None = None,
        provenance: Mapping[str, Any] | None = None,
        name: str = SIFT,
        binary: bool = False,
    ) -> Vocabulary:
        """Return the vocabulary of `centroids` [size, dimension], rounded as it will be stored.

        `thresholds` [size, bits] need a `rotation` [bits, dimension]; with a rotation alone the projected words serve.
        """
        words = _checked_table("centroids", centroids)
        if rotation is None:
            if thresholds is not None:
                raise OptionError("thresholds need the rotation that they belong to: give both")
            return cls(ByteTable.of(words), None, None, dict(provenance or {}), name, binary)
        axes = _checked_table("rotation", rotation)
        medians = None if thresholds is None else _checked_table("thresholds", thresholds)
        shape = (len(words), len(axes)) if medians is None else medians.shape
        if shape != (len(words), len(axes)) or axes.shape[1] != words.shape[1] or len(axes) > MAX_BITS:
            wanted = f"they should be (size, bits) and (bits, dimension) with at most {MAX_BITS} bits"
            raise OptionError(f"thresholds {shape} and rotation {axes.shape} do not fit {words.shape}: {wanted}")
        table = None if medians is None else ByteTable.of(medians)
        return cls(ByteTable.of(words), table, axes, dict(provenance or {}), name, binary)

    def shortened(self, bits: int) -> Vocabulary:
        """Return the same words with the first `bits` bits of the signatures; 0: without signatures."""
        if bits == self.bits:
            return self
        if not 0 <= bits < self.bits:
            raise OptionError(f"bits={bits!r} should be 0 to {self.bits}, the length of the vocabulary's signatures")
        if bits == 0 or self.rotation is None:
            return replace(self, medians=None, rotation=None, decoder=None)
        medians = None if self.medians is None else self.medians.first(bits)
        return replace(self, medians=medians, rotation=self.rotation[:bits], decoder=None)

    @cached_property
    def size(self) -> int:
        """Return the number of words."""
        return len(self.words.codes)

    @property
    def dimension(self) -> int:
        """Return the length of a descriptor."""
        return int(self.words.codes.shape[1])

    @cached_property
    def kind(self) -> FeatureKind:
        """Return the kind of features that it quantises."""
        return FeatureKind(self.name, self.dimension, self.binary)

    @cached_property
    def bits(self) -> int:
        """Return the length of a signature, 0 if the vocabulary has none."""
        return 0 if self.rotation is None else len(self.rotation)

    @cached_property
    def centroids(self) -> Floats32:
        """Return the words as float32 [size, dimension]."""
        return self.words.values()

    @cached_property
    def thresholds(self) -> Floats32 | None:
        """Return the thresholds of the signatures as float32 [size, bits]: medians, else the projected words; None: no bits."""
        if self.medians is not None:
            return self.medians.values()
        return None if self.rotation is None else rotate(self.centroids, self.rotation)

    @cached_property
    def fingerprint(self) -> str:
        """Return 16 hex digits that depend on every number of the vocabulary and on its kind, not on its provenance."""
        digest = hashlib.sha256()
        if (self.name, self.binary) != (SIFT, False):
            digest.update(f"kind {self.kind};".encode())
        for name, array in sorted(self._arrays().items()):
            digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the vocabulary as a folder that appears complete or not at all; a vocabulary there is replaced."""
        check_vocabulary_target(Path(folder))
        meta = {"format": FORMAT, "version": VERSION, "fingerprint": self.fingerprint, "size": self.size, "bits": self.bits}
        meta |= {"kind": asdict(self.kind), "provenance": dict(self.provenance), "medians": self.medians is not None}
        meta["parts"] = None if self.decoder is None else list(self.decoder.parts.shape)
        cells = {} if self.cells is None else self.cells.arrays()
        meta["cells"] = None if self.cells is None else list(self.cells.centres.shape)
        remove_partial_folders(Path(folder).parent)  # of killed trainings
        write_folder(Path(folder), self._arrays() | cells, meta, replace=True)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Vocabulary:
        """Read the vocabulary that `save` wrote; raise VocabularyError if there is none, or if any number differs."""
        source = Path(folder)
        meta = _read_vocabulary_meta(source)
        try:
            kind, size, bits = FeatureKind(**meta["kind"]), meta["size"], meta["bits"]
            shapes = ByteTable.shapes("words", (size, kind.dimension))
            if bits:
                shapes["rotation"] = (np.float32, (bits, kind.dimension))
            medians = bits > 0 and meta.get("medians", True)
            if medians:
                shapes |= ByteTable.shapes("medians", (size, bits))
            if meta.get("parts") is not None:
                shapes |= Decoder.shapes((kind.dimension, bits), tuple(meta["parts"]))
            if meta.get("cells") is not None:
                shapes |= StoredCells.shapes(kind.dimension, tuple(meta["cells"]), size)
            arrays = {name: np.array(array) for name, array in map_folder(source, shapes).items()}
        except (DamagedError, OptionError, TypeError, IndexError) as error:
            raise _damaged(source, str(error)) from error
        if any(array.dtype.kind == "f" and not np.isfinite(array).all() for array in arrays.values()):
            raise _damaged(source, "some numbers are not finite")
        if "cell_of" in arrays and arrays["cell_of"].max(initial=0) >= len(arrays["cell_centres"]):
            raise _damaged(source, "cell_of.npy names a cell that does not exist")
        vocabulary = cls(
            ByteTable.read(arrays, "words"),
            ByteTable.read(arrays, "medians") if medians else None,
            arrays.get("rotation"),
            meta["provenance"],
            kind.name,
            kind.binary,
            Decoder(arrays["decoder"], arrays["parts"]) if "decoder" in arrays else None,
            StoredCells.read(arrays) if "cell_of" in arrays else None,
        )
        cell_files = [f"{name}.npy" for name in arrays if name.startswith("cell_")]  # not in the fingerprint
        for line in filter(None, (file_errors(source / name, meta["checksums"].get(name)) for name in cell_files)):
            raise _damaged(source, line)
        if vocabulary.fingerprint != meta["fingerprint"]:
            errors = (file_errors(source / name, recorded) for name, recorded in meta["checksums"].items())
            raise _damaged(source, next(filter(None, errors), "its files do not belong together"))
        return vocabulary

    def _arrays(self) -> dict[str, Array]:
        """Return the stored arrays by the stems of their files."""
        arrays: dict[str, Array] = {}
        for name, table in (("words", self.words), ("medians", self.medians)):
            if table is not None:
                arrays |= {name: table.codes, f"{name}_low": table.low, f"{name}_step": table.step}
        if self.rotation is not None:
            arrays["rotation"] = self.rotation
        if self.decoder is not None:
            arrays |= {"decoder": self.decoder.matrix, "parts": self.decoder.parts}
        return arrays


@dataclass(frozen=True, eq=False)
class Decoder:
    """Turns the code of a feature, and the bytes of what it leaves, back into a descriptor. Learned by `codes.learn_decoder`.

    In the coordinates of the full rotation a descriptor is about centre + matrix signs + parts[0, byte 0], parts[1, byte 1] ...
    """

    matrix: Floats32  # [dimension, bits]  least squares of what the word leaves, by the signs (-1, 1) of the code
    parts: Floats32  # [parts, values, width]  product quantiser of what that leaves

    @staticmethod
    def shapes(matrix: tuple[int, int], parts: tuple[int, ...]) -> dict[str, tuple[npt.DTypeLike, tuple[int, ...]]]:
        """Return dtype and shape of the stored arrays."""
        return {"decoder": (np.float32, matrix), "parts": (np.float32, parts)}


@dataclass(frozen=True, eq=False)
class StoredCells:
    """The cells in which `assign` looks for nearest words: principal axes, centres, and the cell of each word."""

    mean: Floats32  # [dimension]
    axes: Floats32  # [dimension, padded]
    centres: Floats32  # [cells, padded]
    cell_of: npt.NDArray[np.uint16]  # [size]

    def arrays(self) -> dict[str, Array]:
        """Return the stored arrays by the stems of their files."""
        return {"cell_mean": self.mean, "cell_axes": self.axes, "cell_centres": self.centres, "cell_of": self.cell_of}

    @staticmethod
    def shapes(dimension: int, centres: tuple[int, int], size: int) -> dict[str, tuple[npt.DTypeLike, tuple[int, ...]]]:
        """Return dtype and shape of the stored arrays."""
        tables = {"cell_mean": (dimension,), "cell_axes": (dimension, centres[1]), "cell_centres": centres}
        return {**{name: (np.float32, shape) for name, shape in tables.items()}, "cell_of": (np.uint16, (size,))}

    @classmethod
    def read(cls, arrays: Mapping[str, Array]) -> StoredCells:
        """Take them from the arrays of a folder."""
        return cls(*(arrays[name] for name in ("cell_mean", "cell_axes", "cell_centres", "cell_of")))


PART = 4096  # rows of a table that are computed with together


@dataclass(frozen=True, eq=False)
class ByteTable:
    """A table of numbers at one byte each: value = low + code * step, with one low and one step per column."""

    codes: npt.NDArray[np.uint8]  # [rows, columns]
    low: Floats32  # [columns]
    step: Floats32  # [columns]

    @classmethod
    def of(cls, values: npt.ArrayLike) -> ByteTable:
        """Round a table [rows, columns] of finite numbers; the error is at most half a step, 1/510 of the column's range."""
        table = np.asarray(values, dtype=np.float64)
        low = table.min(axis=0).astype(np.float32)
        step = ((table.max(axis=0) - low) / 255).astype(np.float32)
        codes = np.rint((table - low) / np.where(step > 0, step, 1))
        return cls(np.clip(codes, 0, 255).astype(np.uint8), low, step)

    @staticmethod
    def shapes(name: str, shape: tuple[int, int]) -> dict[str, tuple[npt.DTypeLike, tuple[int, ...]]]:
        """Return dtype and shape of the three stored arrays of a table [rows, columns]."""
        row = (np.float32, shape[1:])
        return {name: (np.uint8, shape), f"{name}_low": row, f"{name}_step": row}

    @classmethod
    def read(cls, arrays: Mapping[str, Array], name: str) -> ByteTable:
        """Take the three arrays of a table from those of a folder."""
        return cls(arrays[name], arrays[f"{name}_low"], arrays[f"{name}_step"])

    def first(self, columns: int) -> ByteTable:
        """Return the first columns."""
        return ByteTable(self.codes[:, :columns], self.low[:columns], self.step[:columns])

    def values(self, rows: slice = slice(None)) -> Floats32:
        """Return the rounded table, or some of its rows, as float32 [rows, columns]."""
        return self.low + self.codes[rows] * self.step

    def parts(self) -> list[slice]:
        """Return its rows in parts whose values fit a cache."""
        return [slice(first, first + PART) for first in range(0, len(self.codes), PART)]


def default_vocabularies(count: int = DEFAULT_COUNT) -> tuple[Vocabulary, ...]:
    """Load the first `count` of the vocabularies shipped with the package."""
    if not 0 <= count <= SHIPPED:
        more = "train more with 'polyvoc train FOLDER --out WORDS --seed NUMBER' and give each by --vocabulary WORDS"
        raise OptionError(f"vocabularies={count!r} should be 0 to {SHIPPED}, as many as come with polyvoc; {more}")
    return tuple(_shipped(str(number)) for number in range(count))


def default_fine_vocabulary() -> Vocabulary:
    """Load the vocabulary shipped with the package that codes refer to."""
    return _shipped(FINE)


def find_shipped(fingerprint: str) -> Vocabulary | None:
    """Return the vocabulary shipped with the package that has a fingerprint, None if there is none."""
    every = (_shipped(name) for name in (FINE, *map(str, range(SHIPPED)), *LEARNED))
    return next((one for one in every if one.fingerprint == fingerprint), None)


def _shipped(name: str) -> Vocabulary:
    with importlib.resources.as_file(importlib.resources.files("polyvoc") / "data" / "vocabularies") as folder:
        return Vocabulary.load(folder / name)


@dataclass(frozen=True, eq=False)
class VocabularySet:
    """The vocabularies of an index: of words, which the rules of the paper merge, and the fine one that codes refer to."""

    words: tuple[Vocabulary, ...]
    fine: Vocabulary | None
    signed: bool = False  # whether the words get Hamming signatures

    def __post_init__(self) -> None:
        """Raise OptionError or VocabularyError unless one index can use them together: one kind, one rotation of signatures."""
        every = [*self.words, *([] if self.fine is None else [self.fine])]
        if not every:
            raise OptionError("no vocabulary given: give at least one")
        kinds = {vocabulary.kind: None for vocabulary in every}
        if len(kinds) > 1:
            names = " and ".join(map(str, kinds))
            raise VocabularyError(f"vocabularies of {names} do not go together: train all on the same features")
        if self.fine is not None and (self.fine.decoder is None or not self.fine.bits):
            raise VocabularyError("the fine vocabulary has no decoder for codes: train it again with --bits 128")
        if self.signed:
            check_rotations(self.words)

    @classmethod
    def default(cls, kind: FeatureKind | None = None) -> VocabularySet:
        """Return those that come with the package for a kind of features; where there are none, those of SIFT."""
        learned = next((name for name, its in LEARNED.items() if its == kind), None)
        return cls(default_vocabularies(), default_fine_vocabulary()) if learned is None else cls((), _shipped(learned))

    @classmethod
    def of(cls, words: Sequence[Vocabulary], fine: Vocabulary | None = None, signed: bool | None = None,
           codes: bool = True) -> VocabularySet:  # fmt: skip
        """Complete what is given: codes refer to the first vocabulary that can decode them, unless `fine` is given.

        Without codes the words are signed, if all vocabularies have bits and it is not said otherwise.
        """
        if fine is None and codes:
            fine = next((one for one in words if one.decoder is not None), None)
        if signed is None:
            signed = fine is None and all(one.bits > 0 for one in words)
        elif signed and not all(one.bits > 0 for one in words):
            raise OptionError("signatures need vocabularies that were trained with bits; train them again with --bits 128")
        return cls(tuple(words), fine if codes else None, signed and len(words) > 0)

    @property
    def kind(self) -> FeatureKind:
        """Return the kind of features that they quantise."""
        return (self.fine or self.words[0]).kind

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the number of words of each vocabulary of words."""
        return tuple(one.size for one in self.words)

    @property
    def bits(self) -> int:
        """Return the length of the signatures of words, 0 without."""
        return self.words[0].bits if self.signed else 0


def load_vocabularies(count: int | None = None, folders: Sequence[Path] = (), fine: Path | None = None,
                      codes: bool = True, signed: bool | None = None) -> VocabularySet | None:  # fmt: skip
    """Load `count` shipped vocabularies, or those in folders; None if nothing is given. codes: whether there are any."""
    if count is not None and folders:
        raise OptionError("--vocabularies and --vocabulary exclude each other; give one of them")
    if fine is not None and not codes:
        raise OptionError("--fine and --no-codes exclude each other; give one of them")
    if count is None and not folders and fine is None and codes and signed is None:
        return None
    given = None if fine is None else Vocabulary.load(fine)
    if folders:
        return VocabularySet.of(tuple(map(Vocabulary.load, folders)), given, signed, codes)
    if given is None and codes:
        given = default_fine_vocabulary()
    shipped = default_vocabularies(DEFAULT_COUNT if count is None else count)
    return VocabularySet.of(shipped, given, signed, codes)


def load_vocabularies_of(kinds: Sequence[FeatureKind], count: int | None = None, folders: Sequence[Path] = (),
                         fine: Path | None = None, codes: bool = True,
                         signed: bool | None = None) -> list[VocabularySet | None]:  # fmt: skip
    """Load vocabularies for several kinds of features, as `load_vocabularies`: of what is given, each kind takes its own.

    Shipped ones are taken where none of a kind is given. Raise VocabularyError if one is of none of the kinds.
    """
    given = {folder: Vocabulary.load(folder).kind for folder in (*folders, *([] if fine is None else [fine]))}
    for folder, kind in given.items():
        if kind not in kinds:
            raise VocabularyError(f"{folder} is of {kind}, which none of the detectors makes; leave it out")
    found = []
    for kind in kinds:
        own = [folder for folder in folders if given[folder] == kind]
        own_fine = fine if fine is not None and given[fine] == kind else None
        shipped = kind == FeatureKind() and not own  # only of this kind
        if own or own_fine is not None or shipped:
            found.append(load_vocabularies(count if shipped else None, own, own_fine, codes, signed))
        else:
            found.append(None)
    return found


def check_vocabularies(vocabularies: Sequence[Vocabulary]) -> None:
    """Raise OptionError or VocabularyError unless the words of several vocabularies can be merged: one kind, one rotation.

    Sizes may differ. Where one vocabulary has no signatures none are made, and the rotations of the others do not matter.
    """
    VocabularySet(tuple(vocabularies), None)
    check_rotations(vocabularies)


def check_rotations(vocabularies: Sequence[Vocabulary]) -> None:
    """Raise VocabularyError unless the signatures of all vocabularies have the same rotation."""
    rotations = [vocabulary.rotation for vocabulary in vocabularies if vocabulary.rotation is not None]
    for number, rotation in enumerate(rotations if len(rotations) == len(vocabularies) else []):
        if rotation.shape != rotations[0].shape or not np.allclose(rotation, rotations[0], atol=1e-5):
            raise VocabularyError(f"vocabulary {number} has another rotation than the first: train all with the same bits")


def check_vocabulary_target(target: Path) -> None:
    """Raise VocabularyError if `save` would replace a file, or a folder that holds anything but a vocabulary."""
    require_local_path(target)
    if target.exists() and not (target.is_dir() and (not any(target.iterdir()) or (target / META).is_file())):
        raise VocabularyError(f"{target} is not a vocabulary and would be replaced; choose another name")


def random_rotation(dimension: int, bits: int) -> Floats32:
    """Return the first axes of a random rotation: float32 [bits, dimension]; the same for every vocabulary.

    Twice as many bits as numbers are the axes of two rotations: they tell more of a descriptor than one, though less than
    as many bits of independent numbers.
    """
    most = min(MAX_BITS, dimension)
    if not 1 <= bits <= most and not bits == 2 * dimension <= MAX_BITS:
        raise OptionError(f"bits={bits!r} should be 1 to {most} for descriptors of {dimension} numbers")
    return code_axes(dimension, bits)[:bits]


def code_axes(dimension: int, bits: int) -> Floats32:
    """Return the axes of codes: a full rotation [dimension, dimension], for longer codes two of them."""
    if bits <= dimension:
        return full_rotation(dimension)
    return np.concatenate([full_rotation(dimension), full_rotation(dimension, _ROTATION_SEED + 1)])


@cache
def full_rotation(dimension: int, seed: int = _ROTATION_SEED) -> Floats32:
    """Return a random rotation: float32 [dimension, dimension], of which signatures use the first axes."""
    gauss = np.random.default_rng(seed).standard_normal((dimension, dimension))
    axes, triangle = np.linalg.qr(gauss)
    # Signs are LAPACK's choice; a positive diagonal makes the decomposition unique.
    rotation = np.ascontiguousarray(axes * np.sign(np.diag(triangle)), dtype=np.float32)
    rotation.flags.writeable = False
    return rotation


def _checked_table(name: str, values: npt.ArrayLike) -> Floats32:
    table = np.array(values, dtype=np.float32)
    if table.ndim != 2 or 0 in table.shape:
        raise OptionError(f"{name}: shape {table.shape} should be two-dimensional and not empty")
    if not np.isfinite(table).all():
        raise OptionError(f"{name}: some values are not finite; leave such descriptors out")
    return table


def _read_vocabulary_meta(folder: Path) -> dict[str, Any]:
    """Return `meta.json` of a vocabulary, its entries checked by type."""
    hint = "give the folder that `polyvoc train` wrote"
    if not os.path.isfile(folder / META):
        raise VocabularyError(f"{folder}: no vocabulary here ({META} is missing); {hint}")
    try:
        meta = read_meta(folder)
    except DamagedError as error:
        raise _damaged(folder, str(error)) from error
    if meta.get("format") != FORMAT:
        raise VocabularyError(f"{folder}: not a vocabulary of polyvoc; {hint}")
    if (version := meta.get("version")) != VERSION:
        raise VocabularyError(f"{folder}: vocabulary format {version}, expected {VERSION}; update polyvoc or train again")
    for name, kind in _ENTRIES.items():
        if not isinstance(meta.get(name), kind):
            raise _damaged(folder, f"{META}: {name!r} is missing or not a {kind.__name__}")
    return meta


def _damaged(folder: Path, reason: str) -> VocabularyError:
    return VocabularyError(f"{folder}: the vocabulary is damaged ({reason.partition(';')[0]}); copy or train it again")
