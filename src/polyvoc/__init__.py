"""polyvoc finds the photographs that show the same thing as a query photograph, on ordinary CPUs.

import polyvoc
index = polyvoc.open("photos.polyvoc")
for hit in index.search("query.jpg", top=10):
    print(hit.score, hit.path)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyvoc.embedding import Embedder
    from polyvoc.errors import PolyvocError
    from polyvoc.features import extract, extract_many, root_sift, unpack
    from polyvoc.index import Index
    from polyvoc.records import (
        ClusterOptions,
        Explanation,
        FeatureOptions,
        Features,
        Hit,
        Hits,
        IndexReport,
        Kind,
        PairOptions,
        Problem,
        SearchOptions,
        TrainOptions,
    )
    from polyvoc.training import train
    from polyvoc.vocabulary import Vocabulary, default_vocabularies
    from polyvoc.writer import IndexWriter

    open = Index.open

__version__ = "0.1.0"

# Where each public name lives. Modules are imported when a name is first used: `polyvoc --help` needs none of them.
_HOMES = {
    "polyvoc.embedding": ("Embedder",),
    "polyvoc.errors": ("PolyvocError",),
    "polyvoc.features": ("extract", "extract_many", "root_sift", "unpack"),
    "polyvoc.index": ("Index",),
    "polyvoc.records": (
        "ClusterOptions",
        "Explanation",
        "FeatureOptions",
        "Features",
        "Hit",
        "Hits",
        "IndexReport",
        "Kind",
        "PairOptions",
        "Problem",
        "SearchOptions",
        "TrainOptions",
    ),
    "polyvoc.training": ("train",),
    "polyvoc.vocabulary": ("Vocabulary", "default_vocabularies"),
    "polyvoc.writer": ("IndexWriter",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [  # noqa: RUF022 - in the order of use
    "open", "Index", "IndexWriter", "SearchOptions", "FeatureOptions", "TrainOptions", "PairOptions", "Features", "Kind", "Hit",
    "Hits", "Explanation", "IndexReport", "Problem", "Vocabulary", "default_vocabularies", "train", "extract", "extract_many",
    "root_sift", "unpack", "Embedder", "ClusterOptions", "PolyvocError",
]  # fmt: skip


if not TYPE_CHECKING:  # a type checker that sees it would accept any name

    def __getattr__(name: str) -> Any:
        if name == "open":
            return importlib.import_module("polyvoc.index").Index.open
        if name not in _HOME_OF:
            raise AttributeError(f"module 'polyvoc' has no attribute {name!r}")
        return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
