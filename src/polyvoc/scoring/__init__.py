"""From the words of a query to a score for every image, in two phases.

`query` holds the query's words and their weights, `rules` the merging rules (b0, b1, b2, bayes, posterior, likelihood),
`segments` counts and votes in one segment, `engine` does so for all segments, here or on other machines. Phase 1 counts the
sets of every segment, phase 2 votes with weights that are the same for all: so one segment, many segments and many machines
give the same scores.
"""
