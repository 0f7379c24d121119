"""Where may an index be written, and by whom? A place is looked at, locked, and made an index if it is none yet."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import filelock

from polyvoc import detectors, storage
from polyvoc.catalogue import FILE, UNFINISHED, Catalogue
from polyvoc.engine import MAX_VOCABULARIES
from polyvoc.errors import LockedError, NotAnIndexError, OptionError, WriteError
from polyvoc.home import INCOMING, NORMS, SEGMENTS, VOCABULARIES, Home
from polyvoc.quantiser import Quantiser
from polyvoc.records import DETECTED, FeatureOptions, Kind
from polyvoc.vocabulary import Vocabulary, default_vocabularies

LOCK = "lock"
Lock = filelock.BaseFileLock


def take_place(path: Path) -> None:
    """Make the folder of an index unless it is there; refuse one that holds something else."""
    with storage.writing(path):
        if path.exists() and not _is_ours(path):
            raise NotAnIndexError(f"{path} exists and is not a polyvoc index; choose another place with --index")
        path.mkdir(parents=True, exist_ok=True)


def take_lock(path: Path) -> Lock:
    """Become the one that writes to an index, or say who does."""
    lock = filelock.FileLock(path / LOCK)  # held by the operating system: a dead process does not keep it
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:  # which is an OSError
        raise LockedError(f"{path} is being written by another process; wait until it has finished") from None
    except OSError as error:
        raise storage.write_error(path, error) from None
    except NotImplementedError:
        raise WriteError(f"{path}: this disk cannot lock files; choose another place with --index") from None
    return lock


def open_catalogue(home: Home, vocabularies: Sequence[Vocabulary] | None, options: FeatureOptions | None) -> Catalogue:
    """Open the catalogue for writing, under the lock; make it, with all else that an index needs, if there is none."""
    if not (home.path / FILE).is_file():
        words = vocabularies or default_vocabularies()
        return _create(home, words, options or FeatureOptions(**_detector_of(words[0].kind)))
    catalogue = Catalogue.open(home.path, writable=True)
    stored = FeatureOptions(**catalogue.fact("features"))
    if options is not None and options != stored:
        raise OptionError(f"{home.path} was made with {stored}; leave the options out, or make another index with --index")
    if vocabularies is not None and [v.fingerprint for v in vocabularies] != catalogue.fact("vocabularies"):
        raise OptionError(f"{home.path} was made with other vocabularies; leave them out, or make another index with --index")
    return catalogue


def complete(chosen: dict[str, Any], home: Home, vocabularies: Sequence[Vocabulary] | None) -> FeatureOptions | None:
    """Give feature options of which only some were said: the detector is that of the index, or of the vocabularies."""
    if not chosen:
        return None
    if (home.path / FILE).is_file():
        try:
            return FeatureOptions(**{"detector": home.feature_options.detector, **chosen})
        finally:
            home.close()
    return FeatureOptions(**{**(_detector_of(vocabularies[0].kind) if vocabularies else {}), **chosen})


def _detector_of(kind: Kind) -> dict[str, Any]:
    """Give the detector that makes features of a kind, if one does."""
    return next(({"detector": name} for name, made in DETECTED.items() if made == kind), {})


def _check_kinds(vocabularies: Sequence[Vocabulary], options: FeatureOptions) -> None:
    """Refuse a detector whose features have no words in the vocabularies, unless features are made elsewhere anyhow."""
    kind = vocabularies[0].kind
    if options.kind == kind:
        detectors.check(options.detector)
    elif _detector_of(kind):
        raise OptionError(f"the vocabularies are of {kind}, the detector makes {options.kind}; take another detector, or train "
                          f"vocabularies for it: polyvoc train --detector {options.detector}")  # fmt: skip
    elif options.detector != FeatureOptions.detector:
        raise OptionError(f"the vocabularies are of {kind}, the detector makes {options.kind}; leave the detector out, and add "
                          "features made elsewhere")  # fmt: skip


def _create(home: Home, vocabularies: Sequence[Vocabulary], options: FeatureOptions) -> Catalogue:
    if len(vocabularies) > MAX_VOCABULARIES:
        raise OptionError(f"an index takes 1 to {MAX_VOCABULARIES} vocabularies, not {len(vocabularies)}")
    _check_kinds(vocabularies, options)
    Quantiser(vocabularies)  # refuses those that do not go together, before anything is written
    folders = [home.vocabulary_folder(number) for number in range(len(vocabularies))]
    with storage.writing(home.path):
        (home.path / UNFINISHED).write_bytes(b"")  # from here on the folder is ours, whatever happens
        shutil.rmtree(home.path / VOCABULARIES, ignore_errors=True)
        for vocabulary, folder in zip(vocabularies, folders, strict=True):
            vocabulary.save(folder)
        for name in (SEGMENTS, NORMS):
            (home.path / name).mkdir(exist_ok=True)
        storage.flush_tree(home.path / VOCABULARIES)
    facts = {
        "sizes": [vocabulary.size for vocabulary in vocabularies],
        "vocabularies": [vocabulary.fingerprint for vocabulary in vocabularies],
        "vocabulary_checksums": [storage.checksum(folder / storage.META) for folder in folders],
        "dimension": vocabularies[0].dimension,
        "kind": asdict(vocabularies[0].kind),
        "features": asdict(options),
    }
    return Catalogue.create(home.path, facts)


def _is_ours(path: Path) -> bool:
    """Tell whether a folder is an index, or empty, or what a killed first run left behind."""
    if not path.is_dir():
        return False
    names = {entry.name for entry in path.iterdir()}
    own = {LOCK, UNFINISHED, f"{UNFINISHED}-journal", VOCABULARIES, SEGMENTS, NORMS, INCOMING}
    return FILE in names or names <= {LOCK} or (UNFINISHED in names and names <= own)
