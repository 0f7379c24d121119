"""Coverage-guided fuzzing of everything that reads files or requests of others.

A target is a module in `targets/`: `target(data)` raises only on a finding, `seeds()` yields valid inputs to start from.
`cases/<target>/` keeps inputs that were findings once; `test_cases.py` runs them. `scripts/fuzz` looks for more.
"""
