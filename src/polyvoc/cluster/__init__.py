"""Indexing, training and search on several machines, with Ray.

`connect` imports Ray and isolates items that crash workers; `build` and `train` distribute indexing and training; `shards`
opens an index whose segments are held by the actors of `holder`.
"""
