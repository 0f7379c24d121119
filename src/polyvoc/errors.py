"""All errors that polyvoc raises on purpose, as one tree."""

from __future__ import annotations


class PolyvocError(Exception):
    """Base class of all errors of polyvoc."""


class OptionError(PolyvocError, ValueError):
    """An option or argument has an invalid value."""


class EmptyRegionError(OptionError):
    """A region of a photograph holds no feature."""


class ImageError(PolyvocError):
    """One photograph cannot be used; the others can."""


class UnreachableError(ImageError):
    """One photograph cannot be read now; the reason is outside the file and may be temporary."""


class NotAllowedError(ImageError):
    """An index made elsewhere names a photograph where this user has not allowed to read."""


class DecoderError(UnreachableError):
    """One photograph could not be decoded now, by no fault of its own: the processes that decode ended, or do not start."""


class VocabularyError(PolyvocError):
    """A vocabulary is missing, damaged, or does not fit the index or the features."""


class DatasetError(PolyvocError):
    """A dataset lacks files, or one of its files is damaged or of another format."""


class ExchangeError(PolyvocError):
    """A file of features or pairs of another program, or one image in it, is missing, damaged or of another format."""


class ClusterError(PolyvocError):
    """Machines of a cluster do not respond."""


class UnusableIndexError(PolyvocError):
    """An index as a whole cannot be used."""


class NotAnIndexError(UnusableIndexError):
    """The folder holds no index."""


class VersionError(UnusableIndexError):
    """The index has a format that this version of polyvoc cannot read."""


class DamagedError(UnusableIndexError):
    """A file of the index is missing or damaged."""


class LockedError(UnusableIndexError):
    """Another process is writing to the index."""


class WriteError(UnusableIndexError):
    """The disk is full or the folder cannot be written."""


def require(condition: bool, name: str, value: object, wanted: str) -> None:
    """Raise OptionError unless a condition on an option holds."""
    if not condition:
        raise OptionError(f"{name}={value!r} should be {wanted}")


def one_line(error: BaseException, limit: int | None = 200) -> str:
    """Return the text of an error on one line of at most `limit` characters, or its class if it has no text."""
    text = " ".join((getattr(error, "strerror", None) or str(error)).split())
    return text[:limit] or type(error).__name__
