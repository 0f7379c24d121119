"""Indexing, training and search on several machines, with Ray.

`connect` is the only import of Ray; `holder` is the actor that holds segments; `shards` sends searches to replicas; `build` and
`train` distribute indexing and training.
"""
