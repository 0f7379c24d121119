"""Compiled loops over flat arrays (numba). Kernels use no class of the other packages.

`postings` sorts postings and finds runs; `lists` votes by scanning lists, `near` by comparing signatures, `matches` by
gathering every match; `pairs` compares many images; `verification` fits transforms; `vectors` finds nearest words.
"""
