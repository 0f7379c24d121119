"""Visual vocabularies: `train` makes one, `vocabulary` stores it, `assign` finds the nearest words of descriptors.

`train` samples descriptors and runs approximate k-means. A `Vocabulary` is the result, with what its Hamming signatures need.
"""
