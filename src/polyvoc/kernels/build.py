"""Sort features into posting lists, find their runs, count their repeats."""

from __future__ import annotations

import numpy as np

from polyvoc.kernels.compiler import kernel

LONGEST_RUN = 255  # a longer run is several entries of the run directory with the same word


@kernel
def sort_by_word(order, words, size):
    """Sort feature numbers by word, keeping the order of equals (one pass of a radix sort).

    order: [F] int64 feature numbers; words: [F] word of each feature. Gives the sorted order and starts [size + 1].
    """
    starts = np.zeros(size + 1, np.int64)
    for i in range(len(words)):
        starts[words[i] + 1] += 1
    for w in range(size):
        starts[w + 1] += starts[w]
    place = starts[:size].copy()
    sorted_order = np.empty_like(order)
    for i in range(len(order)):
        w = words[order[i]]
        sorted_order[place[w]] = order[i]
        place[w] += 1
    return sorted_order, starts


@kernel
def count_runs(starts, partner_words):
    """Count the entries of the run directory of each list. partner_words: [F] in list order; gives [size + 1] starts."""
    size = len(starts) - 1
    run_starts = np.zeros(size + 1, np.int64)
    for w in range(size):
        runs = 0
        length = LONGEST_RUN
        for p in range(starts[w], starts[w + 1]):
            if length == LONGEST_RUN or partner_words[p] != partner_words[p - 1]:
                runs += 1
                length = 0
            length += 1
        run_starts[w + 1] = run_starts[w] + runs
    return run_starts


@kernel
def fill_runs(starts, partner_words, run_words, run_lengths):
    """Write the run directory. out: run_words, run_lengths [R], in the order counted by `count_runs`."""
    entry = -1
    for w in range(len(starts) - 1):
        length = LONGEST_RUN
        for p in range(starts[w], starts[w + 1]):
            if length == LONGEST_RUN or partner_words[p] != partner_words[p - 1]:
                entry += 1
                run_words[entry] = partner_words[p]
                length = 0
            length += 1
            run_lengths[entry] = length


@kernel
def count_repeats(words, feature_starts, size):
    """Count the images of each word, and the words that an image has more than once.

    words: [F] of one vocabulary, by image. Gives images per word [size], and (image, word, tf) of the repeats.
    """
    documents = np.zeros(size, np.int64)
    seen = np.zeros(size, np.int32)
    n_repeats = 0
    for image in range(len(feature_starts) - 1):
        for f in range(feature_starts[image], feature_starts[image + 1]):
            w = words[f]
            seen[w] += 1
            if seen[w] == 1:
                documents[w] += 1
            elif seen[w] == 2:
                n_repeats += 1
        for f in range(feature_starts[image], feature_starts[image + 1]):
            seen[words[f]] = 0
    repeats = np.empty((n_repeats, 3), np.int64)
    row = 0
    for image in range(len(feature_starts) - 1):
        for f in range(feature_starts[image], feature_starts[image + 1]):
            seen[words[f]] += 1
        for f in range(feature_starts[image], feature_starts[image + 1]):
            w = words[f]
            if seen[w] > 1:
                repeats[row, 0] = image
                repeats[row, 1] = w
                repeats[row, 2] = seen[w]
                row += 1
            seen[w] = 0
    return documents, repeats
