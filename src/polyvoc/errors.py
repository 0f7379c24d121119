"""What can go wrong, as one tree. Every message is one line that says what was wrong and what to do next.

PolyvocError
├── OptionError            an option or argument has a value that makes no sense
├── ImageError             one photograph cannot be used: broken, empty, tiny, huge, without texture
│   └── UnreachableError   it cannot be read now: no permission, no answer from the disk, no memory
├── VocabularyError        a vocabulary is missing, damaged, or does not fit
├── DatasetError           a dataset lacks files, or one of them is damaged or foreign
├── ExchangeError          a file that another program made, or an image in it, is damaged, foreign or not there
├── ClusterError           machines of a cluster do not answer
└── IndexError             an index as a whole
    ├── NotAnIndexError    the folder holds no index, or something foreign
    ├── VersionError       the index was written by a newer polyvoc
    ├── DamagedError       a file of the index is missing, cut or changed
    ├── LockedError        another process is writing to the index
    └── WriteError         the disk is full or the folder cannot be written
"""


class PolyvocError(Exception):
    """Root of everything polyvoc raises on purpose."""


class OptionError(PolyvocError, ValueError):
    """An option or argument has a value that makes no sense."""


class ImageError(PolyvocError):
    """One photograph cannot be used; the others can."""


class UnreachableError(ImageError):
    """One photograph cannot be read now, for a reason that is not in the file and may pass."""


class VocabularyError(PolyvocError):
    """A vocabulary is missing, damaged, or does not fit the index or the features."""


class DatasetError(PolyvocError):
    """A dataset lacks files, or one of its files is damaged or foreign."""


class ExchangeError(PolyvocError):
    """A file of features or pairs that another program made, or one image in it, is damaged, foreign or not there."""


class ClusterError(PolyvocError):
    """Machines of a cluster do not answer."""


class IndexError(PolyvocError):
    """An index as a whole cannot be used."""


class NotAnIndexError(IndexError):
    """The folder holds no index, or something foreign."""


class VersionError(IndexError):
    """The index was written in a format this polyvoc does not know."""


class DamagedError(IndexError):
    """A file of the index is missing, cut or changed."""


class LockedError(IndexError):
    """Another process is writing to the index."""


class WriteError(IndexError):
    """The disk is full or the folder cannot be written."""
