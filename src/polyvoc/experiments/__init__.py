"""Research: datasets, measures, fits of every shipped table, the paper's experiments.

`datasets` reads images and ground truth, `workbench` caches features and words, `evaluate` measures rankings, `match_table`
lists matches, `fit` fits tables and probabilities, `baselines` are other methods, `paper` redoes the paper, `report` writes
tables and plots. Only `cli.research` and the benchmarks use this package.
"""
