"""Every compiled loop: flat arrays in, flat arrays out, no class known.

`build` makes segments, `lookup`, `score` and `matches` read them, `vocabulary` compares descriptors with words.
"""
