"""The codes of a segment: every feature once, in one fine vocabulary, for the default search.

    code_starts uint32 [size + 1]   list of each fine word
    codes       uint64 [B, F]       in list order, sorted by (word, image): B planes of 64 bits
    code_images uint16 [F]          image of each code

A scan reads nothing else. By image, for what only the best hits and stored queries need:

    code_words  uint16|32 [F]       word of each feature; its code is found in the list of the word by bisection
    rest        uint8 [F, parts]    what the code leaves of the descriptor (`vocabulary.codes`)
    code_norms  float32 [n]         root of the sum of tf^2 over the words of each image: its scores are divided by it
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from polyvoc.errors import OptionError
from polyvoc.index.words import word_type
from polyvoc.kernels.codes import find_places
from polyvoc.kernels.postings import count_repeats, list_starts, sort_codes, unsort_codes
from polyvoc.types import Array, FeatureCodes, Floats32


def check_codes(codes: FeatureCodes, n_features: int, size: int) -> None:
    """Raise OptionError for codes of features that lists of `size` fine words cannot hold."""
    if not len(codes.words) == len(codes.codes) == len(codes.rest) == n_features:
        raise OptionError(f"codes of {len(codes.words)} features where {n_features} are expected")
    if len(codes.words) and codes.words.max() >= size:
        raise OptionError(f"fine words should be 0 to {size - 1}; found {codes.words.max()}")


def build_codes(codes: FeatureCodes, feature_starts: Array, size: int) -> dict[str, Array]:
    """Sort the codes of features, by image, into lists of the fine words; return the arrays."""
    words = codes.words.astype(word_type((size,)), copy=False)
    starts = list_starts(words, size)
    planes: Array = np.empty((codes.codes.shape[1], len(words)), np.uint64)
    images: Array = np.empty(len(words), np.uint16)
    sort_codes(words, np.ascontiguousarray(codes.codes), np.asarray(feature_starts, np.int64), starts, planes, images)
    return {
        "code_starts": starts.astype(np.uint32),
        "codes": planes,
        "code_images": images,
        "code_words": words,
        "rest": codes.rest,
        "code_norms": word_norms(words, feature_starts, size),
    }


def word_norms(words: Array, feature_starts: Array, size: int) -> Floats32:
    """Return the norm of the vector of word counts of each image [n], from the words of its features, by image."""
    _, repeats = count_repeats(words, np.asarray(feature_starts, np.int64), size)
    squares = np.diff(feature_starts).astype(np.float64)
    times = repeats[:, 2].astype(np.float64)
    np.add.at(squares, repeats[:, 0], times * (times - 1))
    return np.sqrt(squares).astype(np.float32)


def all_codes(arrays: dict[str, Array]) -> FeatureCodes:
    """Return the codes of all features of a segment, by image: the input of `build_codes`."""
    n_features = len(arrays["code_words"])
    codes: Array = np.empty((n_features, len(arrays["codes"])), np.uint64)
    write_codes(arrays, np.array([0, n_features]), np.empty(0, np.uint8), codes)
    return FeatureCodes(arrays["code_words"], codes, arrays["rest"])


def write_codes(arrays: dict[str, Array], feature_starts: Array, alive: Array, codes: Array) -> None:
    """Write the codes of the live images of a segment, by image. alive: empty for all. out: codes [features, planes]."""
    words = arrays["code_words"]
    starts = list_starts(words, len(arrays["code_starts"]) - 1)
    unsort_codes(words, arrays["codes"], np.asarray(feature_starts, np.int64), starts, alive, codes)


def codes_at(arrays: dict[str, Array], position: int, first: int, last: int) -> FeatureCodes:
    """Return the codes of the features first .. last, which are those of the image at a position."""
    words = np.asarray(arrays["code_words"][first:last])
    places: npt.NDArray[np.int64] = np.empty(len(words), np.int64)
    find_places(words, position, arrays["code_starts"], arrays["code_images"], np.arange(len(words)), places)
    codes = np.stack([plane[places] for plane in arrays["codes"]], axis=-1)
    return FeatureCodes(words.astype(np.uint32), codes, np.asarray(arrays["rest"][first:last]))
