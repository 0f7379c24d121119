"""Research: datasets, measures, the paper's experiments, fits of every shipped table.

`datasets` reads ground truth, `workbench` keeps quantised datasets, `evaluate` measures rankings, `fit` fits tables and probabilities,
`baselines` are other methods, `paper` reproduces the paper and `report` writes what was found. Only `cli.research` and the
benchmarks use this package.
"""
