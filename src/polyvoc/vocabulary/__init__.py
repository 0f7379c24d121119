"""Visual vocabularies: train one, load one, assign descriptors to words.

`train` samples descriptors and runs approximate k-means; `vocabulary` is the result, with its Hamming signatures and its folder;
`assign` finds the nearest words of descriptors.
"""
