"""The index on disk: build it, change it, check it.

`build` turns photographs into segments (`segment`); `commit` adds segments to the `catalogue` in one transaction; `writer`
brings an index up to date with folders; `folder` says where everything lies; `statistics` has idf and norms; `check` finds
errors.
"""
