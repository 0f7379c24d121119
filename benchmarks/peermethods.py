"""The methods that `peers.py` compares, each with the same two calls; packages of others are imported when they are needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image, ImageOps

from polyvoc.experiments.datasets.feature_cache import FeatureStore
from polyvoc.experiments.datasets.readers import Dataset, list_images
from polyvoc.experiments.paper.word_statistics import bytes_per_feature
from polyvoc.experiments.workbench import Workbench
from polyvoc.features.decode import read_grey
from polyvoc.features.embedding import Embedder
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions, SearchOptions, preset
from polyvoc.search.fuse import fuse, score_of_cosines
from polyvoc.search.index import Index
from polyvoc.types import CodeTable, Features, Floats32
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet, default_fine_vocabulary, default_vocabularies

THREADS = 2
WORDS, FINE_WORDS = 20_000, 65_536
COLMAP_SAMPLE, COLMAP_ITERATIONS = 800_000, 10
VERIFIED = 100  # candidates that COLMAP verifies
BITS = 128  # of the codes
PRESETS = {f"polyvoc {name}": preset(name, 0, BITS) for name in ("fast", "default", "best")}  # peers are compared with the last
ASMK = {  # binary, idf, words per query feature
    "default": (True, False, 5),
    "idf": (True, True, 5),
    "whole vectors": (False, False, 5),
}
ASMK_FINE = ("default", "idf")  # with the words of codes: the rows of about as many bytes
COLMAP = {"pycolmap": 0, f"pycolmap, {VERIFIED} verified": VERIFIED}
Inputs = list[tuple[Any, Any]]  # keypoints and descriptors of each image, as COLMAP's own types


# ------------------------------------------------------------------------------------------------ input of all methods


@dataclass(frozen=True, eq=False)
class Collection:
    """The photographs of a dataset with their features; every query is one of them."""

    dataset: Dataset
    store: FeatureStore
    code_table: CodeTable  # fitted on another dataset
    embedding: Path | None = None  # ONNX file of a global embedding

    @property
    def queries(self) -> list[int]:
        return [question.image for question in self.dataset.questions if question.image is not None]

    @cached_property
    def features(self) -> list[Features]:
        return [self._features(number) for number in range(len(self.store))]

    def _features(self, number: int) -> Features:
        geometry = self.store.geometry(number)
        shown = read_grey(self.store.files[number], 64)
        size = shown.width, shown.height
        return Features(geometry[:, :2], geometry[:, 2], geometry[:, 3], self.store.descriptors(number), *size)


@dataclass(frozen=True, eq=False)
class Training:
    """The training photographs, and a cache for what is trained on them."""

    workbench: Workbench
    folder: Path

    @cached_property
    def store(self) -> FeatureStore:
        bench = replace(self.workbench, features=FeatureOptions(max_features=1000))
        return bench.store(list_images(self.folder))


@dataclass(frozen=True)
class Costs:
    """The costs of a method beside its queries."""

    bytes_per_feature: float  # of the whole index, without vocabularies
    every: int = 1  # only every so many queries are timed


class Method(Protocol):
    """One way to search a collection."""

    costs: Costs

    def search(self, query: int) -> Any:
        """Search with image number `query`: this is timed."""

    def ranking(self, query: int, found: Any) -> list[int]:
        """Return all images, best first."""


# ------------------------------------------------------------------------------------------------ polyvoc


class Polyvoc:
    """An index on the disk, searched with features."""

    def __init__(self, collection: Collection, index: Index, options: SearchOptions) -> None:
        self.features, self.index, self.options = collection.features, index, options
        arrays = sum(array.nbytes for segment in index.engine.segments for array in segment.arrays.values())
        whole = arrays / collection.store.n_features
        # B0 needs a part of what is stored: no positions
        self.costs = Costs(bytes_per_feature(index.engine)["scoring"] if options.merge == "b0" else whole)

    def search(self, query: int) -> None:
        self.index.search(self.features[query], options=self.options, threads=THREADS)

    def ranking(self, query: int, found: None) -> list[int]:
        hits = self.index.search(self.features[query], replace(self.options, top=len(self.features)), threads=THREADS)
        return [int(hit.path) for hit in hits]


def make_index(collection: Collection, path: Path, vocabularies: VocabularySet) -> Index:
    """Return an index of the features of a collection."""
    with IndexWriter.open(path, vocabularies) as writer:
        for number, features in enumerate(collection.features):
            writer.add(str(number), features)
    return Index.open(path)


def polyvoc_methods(collection: Collection, training: Training, work: Path) -> Iterator[tuple[str, Method]]:
    """Yield plain B0 over one vocabulary, and the presets over an index as it is made by default."""
    plain = VocabularySet.of(default_vocabularies(1), signed=False, codes=False)
    b0 = SearchOptions(merge="b0", burstiness="none", verify=0)
    yield "plain B0", Polyvoc(collection, make_index(collection, work / "b0.polyvoc", plain), b0)
    index = make_index(collection, work / "codes.polyvoc", VocabularySet.default())
    for name, options in PRESETS.items():
        yield name, Polyvoc(collection, index, replace(options, code_table=collection.code_table))
    if collection.embedding is not None:
        vectors = Embedding.of(collection, collection.embedding)
        yield "embedding", vectors
        yield (
            "polyvoc best + embedding",
            Fused(Polyvoc(collection, index, replace(options, code_table=collection.code_table)), vectors),
        )


class Embedding:
    """One vector per photograph, compared with those of all others."""

    def __init__(self, vectors: Floats32, costs: Costs) -> None:
        self.vectors, self.costs = vectors, costs  # float32 [N, d], unit length

    @classmethod
    def of(cls, collection: Collection, model: Path) -> Embedding:
        embedder = Embedder.load(model, threads=THREADS)
        vectors = np.stack([embedder.embed(str(file)) for file in collection.store.files])
        return cls(vectors, Costs(vectors.astype(np.float16).nbytes / collection.store.n_features))

    def scores(self, query: int) -> np.ndarray:
        return score_of_cosines(self.vectors @ self.vectors[query])

    def search(self, query: int) -> np.ndarray:
        return np.argsort(-self.scores(query), kind="stable")

    def ranking(self, query: int, found: np.ndarray) -> list[int]:
        return list(map(int, found))


class Fused:
    """The scores of a preset and those of vectors, joined as by the option `fuse`."""

    def __init__(self, words: Polyvoc, vectors: Embedding) -> None:
        self.words, self.vectors = words, vectors
        self.costs = Costs(words.costs.bytes_per_feature + vectors.costs.bytes_per_feature)

    def search(self, query: int) -> np.ndarray:
        options = replace(self.words.options, top=len(self.words.features))
        scores = np.zeros(len(self.words.features))
        for hit in self.words.index.search(self.words.features[query], options, threads=THREADS):
            scores[int(hit.path)] = hit.score
        return np.argsort(-fuse(scores, self.vectors.scores(query)), kind="stable")

    def ranking(self, query: int, found: np.ndarray) -> list[int]:
        return list(map(int, found))


# ------------------------------------------------------------------------------------------------ asmk


class Asmk:
    """The package's method, with signatures of 128 bits or with whole vectors."""

    def __init__(self, collection: Collection, method: Any, assignments: int) -> None:
        self.features, self.method = collection.features, method
        self.params = {"quantize": {"multiple_assignment": assignments}, "aggregate": {}, "search": {"topk": None},
                       "similarity": {"similarity_threshold": 0.0, "alpha": 3.0}}  # fmt: skip
        file = method.inverted_file
        used = next(word for word, entries in enumerate(file.ivf_vecs) if entries is not None)
        entry = file.ivf_vecs[used][0].nbytes + file.ivf_image_ids[used][0].nbytes
        self.costs = Costs(float(file.counts.sum()) * entry / collection.store.n_features)  # no room to grow

    def search(self, query: int) -> Any:
        descriptors = self.features[query].descriptors
        if not len(descriptors):  # the package fails on them
            return None, None, [[]], None
        return self.method.query_ivf(descriptors, np.zeros(len(descriptors), np.int64), step_params=self.params)

    def ranking(self, query: int, found: Any) -> list[int]:
        _, _, ranks, _ = found
        return list(map(int, ranks[0]))


def asmk_methods(collection: Collection, training: Training, work: Path) -> Iterator[tuple[str, Method]]:
    """Yield the configurations of the package over the words of two vocabularies."""
    yield from asmk_over("asmk", default_vocabularies(1)[0], collection, list(ASMK))
    yield from asmk_over("asmk 65K", default_fine_vocabulary(), collection, ASMK_FINE)


def asmk_over(
    prefix: str, vocabulary: Vocabulary, collection: Collection, names: Sequence[str]
) -> Iterator[tuple[str, Method]]:
    """Yield the configurations of the package; those with the same weights share an inverted file."""
    from asmk import asmk_method, codebook, index, inverted_file, kernel

    words = codebook.Codebook(index.initialize_index(None), size=vocabulary.size)
    words.index(vocabulary.centroids)
    images = np.repeat(np.arange(len(collection.store)), np.diff(collection.store.starts))
    descriptors = np.concatenate([features.descriptors for features in collection.features])
    quantised = words.quantize(descriptors, images, multiple_assignment=1)
    methods: dict[tuple[bool, bool], Any] = {}
    for name in names:
        binary, idf, assignments = ASMK[name]
        if (binary, idf) not in methods:
            core = kernel.ASMKKernel(words, binary=binary)
            file = inverted_file.IVF.initialize_empty(use_idf=idf, codebook_size=vocabulary.size)
            file.add(*core.aggregate(*quantised))
            methods[binary, idf] = asmk_method.ASMKMethod({}, {}, codebook=words, kernel=core, inverted_file=file)
        yield f"{prefix}, {name}", Asmk(collection, methods[binary, idf], assignments)


# ------------------------------------------------------------------------------------------------ pycolmap


def colmap_descriptors(descriptors: Floats32) -> np.ndarray:
    """Return rootSIFT as COLMAP stores it: bytes of 512 x."""
    return np.clip(np.rint(512 * descriptors), 0, 255).astype(np.uint8)


def colmap_geometry(features: Features) -> np.ndarray:
    """Return position, scale and orientation in radians [n, 4]."""
    return np.column_stack([features.xy, features.scale / 2, np.radians(features.angle)]).astype(np.float32)


class Colmap:
    """COLMAP's visual index, and the rankings that its generator of image pairs takes from the same index."""

    def __init__(self, index: Any, inputs: Inputs, rankings: dict[int, list[int]], costs: Costs, verified: int) -> None:
        import pycolmap

        self.index, self.inputs, self.rankings, self.costs = index, inputs, rankings, costs
        self.options = pycolmap.VisualIndex.QueryOptions(num_threads=THREADS, num_images_after_verification=verified)
        if verified:
            self.options.max_num_images = verified

    def search(self, query: int) -> None:
        keypoints, descriptors = self.inputs[query]
        self.index.query(self.options, keypoints, descriptors, [])

    def ranking(self, query: int, found: None) -> list[int]:
        return self.rankings[query]


def colmap_vocabulary(training: Training) -> Path:
    """Return the file of the vocabulary, trained unless it is there."""
    import pycolmap

    path = training.workbench.cache / "peers" / f"colmap-{WORDS}-{COLMAP_SAMPLE}-{training.store.digest}.index"

    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    sample = colmap_descriptors(training.store.sample(COLMAP_SAMPLE, 0)).astype(np.float32)
    options = pycolmap.VisualIndex.BuildOptions(num_visual_words=WORDS, num_iterations=COLMAP_ITERATIONS, num_rounds=1,
                                                num_threads=THREADS)  # fmt: skip
    index = pycolmap.VisualIndex.create(128, 64)
    index.build(options, pycolmap.FeatureDescriptorsFloat(pycolmap.FeatureExtractorType.SIFT, sample))
    index.write(path)
    return path


def colmap_database(collection: Collection, path: Path) -> Any:
    """Return COLMAP's own database with the features; image numbers begin at 1 there."""
    import pycolmap

    database = pycolmap.Database.open(path)
    for number, features in enumerate(collection.features, start=1):
        camera = pycolmap.Camera.create(number, pycolmap.CameraModelId.SIMPLE_RADIAL, 1000.0, features.width, features.height)
        database.write_camera(camera, use_camera_id=True)
        image = pycolmap.Image(image_id=number, name=f"{number}.jpg", camera_id=number)
        database.write_image(image, use_image_id=True)
        database.write_keypoints(number, colmap_geometry(features))
        stored = pycolmap.FeatureDescriptors(pycolmap.FeatureExtractorType.SIFT, colmap_descriptors(features.descriptors))
        database.write_descriptors(number, stored)
    return database


def colmap_rankings(collection: Collection, database: Any, vocabulary: Path, verified: int) -> list[list[int]]:
    """Return the images that every query finds, best first."""
    import pycolmap

    options = pycolmap.VocabTreePairingOptions(
        vocab_tree_path=vocabulary, num_threads=THREADS, num_images=len(collection.store)
    )
    if verified:
        options.num_images = options.num_images_after_verification = verified
    generator = pycolmap.VocabTreePairGenerator(options, database, [query + 1 for query in collection.queries])
    rankings: dict[int, list[int]] = {query: [] for query in collection.queries}
    while not generator.has_finished():
        for query, image in generator.next():
            rankings[query - 1].append(image - 1)
    return [rankings[query] for query in collection.queries]


def colmap_index(vocabulary: Path, inputs: Inputs) -> Any:
    import pycolmap

    index = pycolmap.VisualIndex.read(vocabulary)
    for number, (keypoints, descriptors) in enumerate(inputs, start=1):
        index.add(pycolmap.VisualIndex.IndexOptions(num_threads=THREADS), number, keypoints, descriptors)
    index.prepare()
    return index


def colmap_methods(collection: Collection, training: Training, work: Path) -> Iterator[tuple[str, Method]]:
    """Yield the visual index without and with its spatial verification."""
    import pycolmap

    pycolmap.logging.minloglevel = pycolmap.logging.Level.ERROR.value
    vocabulary = colmap_vocabulary(training)
    sift = pycolmap.FeatureExtractorType.SIFT
    inputs = [
        (pycolmap.keypoints_from_matrix(colmap_geometry(features)),
         pycolmap.FeatureDescriptorsFloat(sift, colmap_descriptors(features.descriptors).astype(np.float32)))
        for features in collection.features
    ]  # fmt: skip
    index = colmap_index(vocabulary, inputs)
    index.write(work / "colmap.index")
    stored = (work / "colmap.index").stat().st_size - vocabulary.stat().st_size
    database = colmap_database(collection, work / "colmap.db")
    plain: dict[int, list[int]] = {}
    for name, verified in COLMAP.items():
        make = partial(colmap_rankings, collection, database, vocabulary, verified)
        made_of = (verified, vocabulary.name, collection.store.digest, collection.queries)
        rankings = dict(zip(collection.queries, training.workbench.remember("peers colmap", made_of, make), strict=True))
        plain = plain or rankings  # those that are not verified follow in their old order
        whole = {query: list(dict.fromkeys([*ranking, *plain[query]])) for query, ranking in rankings.items()}
        costs = Costs(stored / collection.store.n_features, every=10 if verified else 1)
        yield name, Colmap(index, inputs, whole, costs, verified)


# ------------------------------------------------------------------------------------------------ perceptual hash


class PerceptualHash:
    """64 bits of each photograph, compared with those of all others."""

    def __init__(self, collection: Collection) -> None:
        import imagehash

        hashes = []
        for file in collection.store.files:
            with Image.open(file) as photograph:
                hashes.append(np.packbits(imagehash.phash(ImageOps.exif_transpose(photograph)).hash.ravel()))
        self.hashes = np.stack(hashes).view(np.uint64).ravel()  # [N]
        self.costs = Costs(self.hashes.nbytes / collection.store.n_features)

    def search(self, query: int) -> np.ndarray:
        return np.argsort(np.bitwise_count(self.hashes ^ self.hashes[query]), kind="stable")

    def ranking(self, query: int, found: np.ndarray) -> list[int]:
        return list(map(int, found))


def hash_methods(collection: Collection, training: Training, work: Path) -> Iterator[tuple[str, Method]]:
    yield "perceptual hash", PerceptualHash(collection)
