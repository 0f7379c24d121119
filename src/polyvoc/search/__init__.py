"""From a query photograph to hits: the public `Index` and what it does.

`index` is the public class; `query` makes queries; `pipeline` scores, verifies, expands, smooths, fuses and ranks; `verify`,
`fuse`, `links`, `probability` and `explain` are its steps; `hits` is what it returns. `pairs` compares all images with all;
`info` describes an index. `several` are searched as one: `photographs` finds what they have in common, `joint` adds evidence.
"""
