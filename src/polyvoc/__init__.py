"""polyvoc finds the photographs that show the same thing as a query photograph, on ordinary CPUs.

import polyvoc
index = polyvoc.open("photos.polyvoc")
for hit in index.search("query.jpg", top=10):
    print(hit.score, hit.path)
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, overload

if TYPE_CHECKING:
    from polyvoc.errors import PolyvocError as PolyvocError
    from polyvoc.features.embedding import Embedder as Embedder
    from polyvoc.features.extract import extract as extract
    from polyvoc.features.extract import extract_many as extract_many
    from polyvoc.features.extract import root_sift as root_sift
    from polyvoc.features.extract import unpack_bits as unpack_bits
    from polyvoc.index.writer import IndexWriter as IndexWriter
    from polyvoc.options import ClusterOptions as ClusterOptions
    from polyvoc.options import FeatureOptions as FeatureOptions
    from polyvoc.options import PairOptions as PairOptions
    from polyvoc.options import ScoringOptions as ScoringOptions
    from polyvoc.options import SearchOptions as SearchOptions
    from polyvoc.options import TrainOptions as TrainOptions
    from polyvoc.search.explain import Explanation as Explanation
    from polyvoc.search.hits import Hit as Hit
    from polyvoc.search.hits import Hits as Hits
    from polyvoc.search.hits import SearchFailure as SearchFailure
    from polyvoc.search.hits import SearchResult as SearchResult
    from polyvoc.search.index import Index as Index
    from polyvoc.search.joint import JointExplanation as JointExplanation
    from polyvoc.search.joint import JointHit as JointHit
    from polyvoc.search.several import Indexes as Indexes
    from polyvoc.types import FeatureKind as FeatureKind
    from polyvoc.types import Features as Features
    from polyvoc.types import IndexReport as IndexReport
    from polyvoc.types import Problem as Problem
    from polyvoc.vocabulary.train import train as train
    from polyvoc.vocabulary.vocabulary import Vocabulary as Vocabulary
    from polyvoc.vocabulary.vocabulary import default_vocabularies as default_vocabularies

__version__ = "0.1.0"

# The module of each public name, imported when the name is first used: `polyvoc --help` needs none of them.
_MODULES = {
    "Index": "search.index",
    "Indexes": "search.several",
    "IndexWriter": "index.writer",
    "SearchOptions": "options",
    "ScoringOptions": "options",
    "FeatureOptions": "options",
    "TrainOptions": "options",
    "PairOptions": "options",
    "ClusterOptions": "options",
    "Features": "types",
    "FeatureKind": "types",
    "Hit": "search.hits",
    "Hits": "search.hits",
    "SearchResult": "search.hits",
    "SearchFailure": "search.hits",
    "Explanation": "search.explain",
    "JointHit": "search.joint",
    "JointExplanation": "search.joint",
    "IndexReport": "types",
    "Problem": "types",
    "Vocabulary": "vocabulary.vocabulary",
    "default_vocabularies": "vocabulary.vocabulary",
    "train": "vocabulary.train",
    "extract": "features.extract",
    "extract_many": "features.extract",
    "root_sift": "features.extract",
    "unpack_bits": "features.extract",
    "Embedder": "features.embedding",
    "PolyvocError": "errors",
}

__all__ = ["open", *_MODULES]  # noqa: PLE0604


if not TYPE_CHECKING:  # a type checker that sees it would accept any name

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module 'polyvoc' has no attribute {name!r}")
        return getattr(importlib.import_module(f"polyvoc.{_MODULES[name]}"), name)


@overload
def open(  # type: ignore[overload-overlap]  # text is a sequence of text, too
    path: str | os.PathLike[str],
    embedding: Embedder | str | os.PathLike[str] | None = None,
    ray: str | ClusterOptions | None = None,
) -> Index: ...
@overload
def open(
    path: Iterable[str | os.PathLike[str]], embedding: None = None, ray: str | ClusterOptions | None = None
) -> Indexes: ...
def open(
    path: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    embedding: Embedder | str | os.PathLike[str] | None = None,
    ray: str | ClusterOptions | None = None,
) -> Index | Indexes:
    """Open an index: `polyvoc.open("photos.polyvoc").search("query.jpg")`; a list of them as one (`Indexes`).

    `embedding`: the model of the global embedding, if it is no file or has moved. With `ray`, the address of a Ray cluster or
    more about it, the machines of the cluster hold the segments.
    """
    from polyvoc.search.index import Index

    def open_one(path: str | os.PathLike[str]) -> Index:
        if ray is None:
            return Index.open(path, embedding)
        from polyvoc.cluster.shards import open_index

        return open_index(path, embedding, ray)

    if isinstance(path, (str, os.PathLike)):
        return open_one(path)
    from polyvoc.search.several import Indexes

    return Indexes.open(path, open_one)


def __dir__() -> list[str]:
    return sorted(__all__)
