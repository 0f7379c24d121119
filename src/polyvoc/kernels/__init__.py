"""Compiled loops over flat arrays (numba). No kernel knows a class of polyvoc.

`postings` sorts and finds; `lists` votes by scanning lists, `near` by comparing signatures, `matches` by gathering every match;
`pairs` compares many images; `verification` fits transforms; `vectors` finds nearest words. `compiler` is the only import of numba.
"""
