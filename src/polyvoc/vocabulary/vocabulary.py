"""A vocabulary, its Hamming signatures, its folder."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError, VocabularyError
from polyvoc.kernels.vectors import sign_words
from polyvoc.storage.files import require_local_path
from polyvoc.types import SIFT, Descriptors, FeatureKind, Floats32, Signatures

FORMAT = "polyvoc vocabulary"
VERSION = 1  # of the folder's format
MAX_BITS = 128  # a signature is one or two uint64
DEFAULT_COUNT = 3  # vocabularies shipped with the package
_META = "meta.json"


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

    def values(self) -> Floats32:
        """Give the rounded table as float32 [rows, columns]."""
        return self.low + self.codes * self.step


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The words that descriptors are quantised to, and what their Hamming signatures need. See `Vocabulary.create`."""

    words: ByteTable  # [size, dimension]
    medians: ByteTable | None  # [size, bits]
    rotation: Floats32 | None  # [bits, dimension]  rows are orthonormal
    provenance: Mapping[str, Any]  # plain values: photographs, descriptors, seed, rounds, ...
    name: str = SIFT  # what made the descriptors that it was trained on
    # Bits are points of the unit cube: the squared distance of two of them is the Hamming distance. So a word of a binary
    # feature is the mean of bits, the nearest word is the nearest point, and all that serves numbers serves bits.
    binary: bool = False

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
        """Give the vocabulary of `centroids` [size, dimension], rounded as it will be stored.

        `thresholds` [size, bits] and `rotation` [bits, dimension] are given together, or neither. `name` and `binary` say what
        the descriptors are.
        """
        words = _table("centroids", centroids)
        if (thresholds is None) != (rotation is None):
            raise OptionError("a vocabulary needs both thresholds and rotation, or neither: give the missing one")
        if thresholds is None or rotation is None:
            return cls(ByteTable.of(words), None, None, dict(provenance or {}), name, binary)
        medians, axes = _table("thresholds", thresholds), _table("rotation", rotation)
        bits = len(axes)
        if medians.shape != (len(words), bits) or axes.shape[1] != words.shape[1] or bits > MAX_BITS:
            raise OptionError(
                f"thresholds {medians.shape} and rotation {axes.shape} do not fit centroids {words.shape}: "
                f"they should be (size, bits) and (bits, dimension) with at most {MAX_BITS} bits"
            )
        return cls(ByteTable.of(words), ByteTable.of(medians), axes, dict(provenance or {}), name, binary)

    def shortened(self, bits: int) -> Vocabulary:
        """Give the same words with the first bits of the signatures only; 0: without signatures."""
        if bits == self.bits:
            return self
        if not 0 <= bits < self.bits:
            raise OptionError(f"bits={bits!r} should be 0 to {self.bits}, the length of the vocabulary's signatures")
        if bits == 0 or self.medians is None or self.rotation is None:
            return replace(self, medians=None, rotation=None)
        medians = ByteTable(self.medians.codes[:, :bits], self.medians.low[:bits], self.medians.step[:bits])
        return replace(self, medians=medians, rotation=self.rotation[:bits])

    @property
    def size(self) -> int:
        """Count the words."""
        return len(self.words.codes)

    @property
    def dimension(self) -> int:
        """Give the length of a descriptor."""
        return int(self.words.codes.shape[1])

    @property
    def kind(self) -> FeatureKind:
        """Give which descriptors have words in it."""
        return FeatureKind(self.name, self.dimension, self.binary)

    @property
    def bits(self) -> int:
        """Give the length of a signature, 0 if the vocabulary has none."""
        return 0 if self.rotation is None else len(self.rotation)

    @cached_property
    def centroids(self) -> Floats32:
        """Give the words as float32 [size, dimension]."""
        return self.words.values()

    @cached_property
    def thresholds(self) -> Floats32 | None:
        """Give the medians of the signatures as float32 [size, bits], or None."""
        return None if self.medians is None else self.medians.values()

    @cached_property
    def fingerprint(self) -> str:
        """Give 16 hex digits that change with any number of the vocabulary, and its kind; where it came from does not count."""
        digest = hashlib.sha256()
        if (self.name, self.binary) != (SIFT, False):  # as all were before there were kinds; who knows none refuses the others
            digest.update(f"kind {self.kind};".encode())
        for name, array in sorted(self._arrays().items()):
            digest.update(f"{name} {array.dtype.str} {array.shape};".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the vocabulary as a folder of plain files, in one step: a reader sees all of it or nothing."""
        target = Path(folder)
        require_local_path(target)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
            try:
                self._write(scratch)
                scratch.chmod(0o755)  # mkdtemp makes it private
                _replace(scratch, target)
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        except OSError as error:
            raise VocabularyError(
                f"{target}: the vocabulary cannot be written ({error.strerror or error}); check space and rights"
            ) from error

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Vocabulary:
        """Read the vocabulary that `save` wrote, checking every file."""
        source = Path(folder)
        meta = _read_meta(source)
        arrays = {name: _read_array(source, name, digest) for name, digest in meta["files"].items()}
        try:
            words = ByteTable(arrays["words"], arrays["words_low"], arrays["words_step"])
            medians = None
            if "medians" in arrays:
                medians = ByteTable(arrays["medians"], arrays["medians_low"], arrays["medians_step"])
            kind = meta.get("kind", {})  # SIFT where nothing is said
            name, binary = kind.get("name", SIFT), kind.get("binary", False)
            vocabulary = cls(words, medians, arrays.get("rotation"), meta["provenance"], name, binary)
            whole = vocabulary.fingerprint == meta["fingerprint"]
        except (KeyError, AttributeError) as error:
            raise _damaged(source / _META, f"{error} is missing") from error
        if not whole:
            raise _damaged(source, "its files do not belong together")
        return vocabulary

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Name every stored array; the name is the file's stem."""
        arrays: dict[str, npt.NDArray[Any]] = {}
        for name, table in (("words", self.words), ("medians", self.medians)):
            if table is not None:
                arrays |= {name: table.codes, f"{name}_low": table.low, f"{name}_step": table.step}
        if self.rotation is not None:
            arrays["rotation"] = self.rotation
        return arrays

    def _write(self, folder: Path) -> None:
        arrays = self._arrays()
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
        meta = {
            "format": FORMAT,
            "version": VERSION,
            "fingerprint": self.fingerprint,
            "size": self.size,
            "dimension": self.dimension,
            "bits": self.bits,
            "kind": asdict(self.kind),
            "provenance": dict(self.provenance),
            "files": {name: _checksum(folder / f"{name}.npy") for name in arrays},
        }
        (folder / _META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")


def default_vocabularies(count: int = DEFAULT_COUNT) -> tuple[Vocabulary, ...]:
    """Load the first `count` of the vocabularies shipped with the package."""
    if not 1 <= count <= DEFAULT_COUNT:
        raise OptionError(f"count={count!r} should be 1 to {DEFAULT_COUNT}: train more vocabularies to merge more")
    shelf = importlib.resources.files("polyvoc") / "data" / "vocabularies"
    with importlib.resources.as_file(shelf) as folder:
        return tuple(Vocabulary.load(folder / str(number)) for number in range(count))


def signature_bits(folder: Path) -> int:
    """Give the length of the signatures of a stored vocabulary, without loading it."""
    return int(_read_meta(folder).get("bits", 0))


def load_vocabularies(count: int | None, folders: Sequence[Path], bits: int | None = None) -> tuple[Vocabulary, ...] | None:
    """Load some of the shipped vocabularies, or those in folders, perhaps with shorter signatures; None if nothing is said."""
    if count is not None and folders:
        raise OptionError("--vocabularies and --vocabulary exclude each other; give one of them")
    if count is None and not folders and bits is None:
        return None
    loaded = tuple(map(Vocabulary.load, folders)) or default_vocabularies(DEFAULT_COUNT if count is None else count)
    return loaded if bits is None else tuple(vocabulary.shortened(bits) for vocabulary in loaded)


def _table(name: str, values: npt.ArrayLike) -> Floats32:
    table = np.array(values, dtype=np.float32)
    if table.ndim != 2 or 0 in table.shape:
        raise OptionError(f"{name}: shape {table.shape} should be two-dimensional and not empty")
    if not np.isfinite(table).all():
        raise OptionError(f"{name}: some values are not finite; leave such descriptors out")
    return table


def check_vocabulary_target(target: Path) -> None:
    """Refuse a folder that holds something else than a vocabulary, which `save` would replace, and what is no folder."""
    require_local_path(target)
    if target.exists() and not (target.is_dir() and (not any(target.iterdir()) or (target / _META).is_file())):
        raise VocabularyError(f"{target}: it holds something else than a vocabulary; choose another name")


def _replace(scratch: Path, target: Path) -> None:
    """Put the folder `scratch` in the place of `target`; an old vocabulary there is moved aside first, then dropped."""
    if not target.exists():
        scratch.rename(target)
        return
    check_vocabulary_target(target)
    aside = scratch.with_name(scratch.name + ".old")
    target.rename(aside)
    scratch.rename(target)
    shutil.rmtree(aside, ignore_errors=True)


def _read_meta(folder: Path) -> dict[str, Any]:
    path = folder / _META
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise VocabularyError(
            f"{folder}: no vocabulary here ({_META} is missing); give the folder that `polyvoc train` wrote"
        ) from error
    except OSError as error:
        raise VocabularyError(f"{path}: cannot be read ({error.strerror or error}); check its rights") from error
    except ValueError as error:
        raise _damaged(path, "it is not JSON") from error
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise VocabularyError(f"{folder}: not a vocabulary of polyvoc; give the folder that `polyvoc train` wrote")
    version = meta.get("version")
    if version != VERSION:
        raise VocabularyError(
            f"{folder}: vocabulary format {version}, this polyvoc knows {VERSION}; update polyvoc or train again"
        )
    if not all(isinstance(meta.get(key), dict) for key in ("files", "provenance")):
        raise _damaged(path, "entries are missing")
    return meta


def _read_array(folder: Path, name: str, digest: str) -> npt.NDArray[Any]:
    path = folder / f"{name}.npy"
    if Path(name).name != name:
        raise _damaged(folder / _META, "a file name leaves the folder")
    try:
        if _checksum(path) != digest:
            raise _damaged(path, "its checksum differs")
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise _damaged(path, "missing or unreadable") from error
    return array


def _checksum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _damaged(path: Path, why: str) -> VocabularyError:
    return VocabularyError(f"{path}: the vocabulary is damaged ({why}); copy or train it again")


_ROTATION_SEED = 2008  # one for all vocabularies, so that the projection of a descriptor serves every one of them


def random_rotation(dimension: int, bits: int, skip: int = 0) -> Floats32:
    """Give axes of a random rotation, after the first `skip`: float32 [bits, dimension]; the same for every vocabulary."""
    most = min(MAX_BITS, dimension - skip)
    if not 1 <= bits <= most:
        raise OptionError(f"bits={bits!r} should be 1 to {most} for descriptors of {dimension} numbers")
    gauss = np.random.default_rng(_ROTATION_SEED).standard_normal((dimension, dimension))
    axes, triangle = np.linalg.qr(gauss)
    # Signs are LAPACK's choice; a positive diagonal makes the decomposition unique.
    return np.ascontiguousarray((axes * np.sign(np.diag(triangle)))[skip : skip + bits], dtype=np.float32)


def fitting_bits(bits: int, dimension: int) -> int:
    """Give how many of at most `bits` bits a signature has, for descriptors of a dimension: there is one axis for each.

    A whole uint64 where all do not fit: such signatures are compared fastest, and there are tables of evidence for them.
    """
    return bits if bits <= dimension else min(64, dimension)


def shared_rotation(vocabularies: Sequence[Vocabulary]) -> Floats32:
    """Give the rotation that all `vocabularies` have in common, float32 [bits, dimension]."""
    first = vocabularies[0].rotation
    for number, vocabulary in enumerate(vocabularies):
        if vocabulary.rotation is None or first is None:
            raise VocabularyError(f"vocabulary {number} has no signatures: train it with bits=128, or search without Hamming")
        if vocabulary.rotation.shape != first.shape or not np.allclose(vocabulary.rotation, first, atol=1e-5):
            raise VocabularyError(f"vocabulary {number} has another rotation than the first: train all with the same bits")
    assert first is not None
    return first


def project(descriptors: Descriptors, rotation: Floats32) -> Floats32:
    """Give the coordinates [n, bits] of `descriptors` [n, dimension] along the axes of the rotation."""
    table = np.asarray(descriptors, dtype=np.float32)
    if table.ndim != 2 or table.shape[1] != rotation.shape[1]:
        raise OptionError(f"descriptors of shape {table.shape} do not fit a rotation of {rotation.shape[1]} numbers")
    return table @ rotation.T


def sign(z: Floats32, words: npt.NDArray[np.integer], vocabularies: Sequence[Vocabulary]) -> Signatures:
    """Give the signatures of descriptors with coordinates `z` [n, bits]: uint64, one for each word, or two beyond 64 bits.

    `words` is [n, K] or [n, K, assignments], for K vocabularies; two uint64 are one more axis at the end. Bit i is set if z_i
    lies strictly above the word's median. The word -1 (none) has the signature 0.
    """
    if words.ndim not in (2, 3) or words.shape[:2] != (len(z), len(vocabularies)):
        raise OptionError(f"words {words.shape} do not fit {len(z)} descriptors and {len(vocabularies)} vocabularies")
    every = words if words.ndim == 3 else words[:, :, None]  # [n, K, assignments]
    points = np.ascontiguousarray(z, dtype=np.float32)
    planes = (z.shape[1] + 63) // 64
    signatures: Signatures = np.empty((*every.shape, planes), dtype=np.uint64)
    for k, vocabulary in enumerate(vocabularies):
        thresholds = vocabulary.thresholds
        if thresholds is None or thresholds.shape[1] != z.shape[1]:
            raise VocabularyError(
                f"vocabulary {k} has signatures of {vocabulary.bits} bits, not {z.shape[1]}: train all with the same bits"
            )
        of_k = np.ascontiguousarray(every[:, k], dtype=np.int32)
        if of_k.size and not -1 <= of_k.min() <= of_k.max() < vocabulary.size:
            raise OptionError(f"words of vocabulary {k} should be -1 to {vocabulary.size - 1}")
        signed = np.empty((*of_k.shape, planes), dtype=np.uint64)
        sign_words(points, of_k, thresholds, signed)
        signatures[:, k] = signed
    return signatures.reshape(words.shape if planes == 1 else (*words.shape, planes))
