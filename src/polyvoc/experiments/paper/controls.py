"""Other methods on the same features and training photographs: ASMK* and joint PCA of several vocabularies."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np

from polyvoc.experiments.baselines.asmk import Asmk, AsmkIndex, AsmkOptions
from polyvoc.experiments.baselines.joint_pca import JointPca
from polyvoc.experiments.evaluate import Values
from polyvoc.experiments.paper.cells import vocabularies_text
from polyvoc.experiments.paper.setup import Setup
from polyvoc.experiments.workbench import QuantisedDataset
from polyvoc.types import Array

# Sizes of the vocabularies of joint PCA: as Jegou and Chum, and several sizes
MIXES = (4 * (16_000,), 8 * (8_000,), (8_000, 10_000, 16_000, 20_000), 2 * (20_000,))
DIMENSIONS = (128, 512)  # that it keeps; more than half the training photographs would keep noise


def controls(setup: Setup, name: str) -> dict[str, Values]:
    """Return the values of ASMK* and joint PCA on a dataset, by name."""
    result: dict[str, Values] = {}
    bench = setup.equal(name, (0,))
    for assignments in (1, 5):
        label = f"control: ASMK*, {bench.sizes[0]:,} words, {assignments} per query feature"
        result[label] = asmk_values(setup, bench, assignments)
    for mix in MIXES:
        for dimensions, values in pca_values(setup, name, mix).items():
            result[f"control: joint PCA of {vocabularies_text(setup, mix)}, {dimensions} dimensions"] = values
    return result


def asmk_values(setup: Setup, bench: QuantisedDataset, assignments: int) -> Values:
    """Return the values of ASMK* with one vocabulary."""

    @cache
    def index() -> AsmkIndex:
        model = Asmk(bench.vocabularies[0], AsmkOptions(assignments=assignments))
        return model.index(bench.store.descriptors(image) for image in range(bench.n_images))

    def score(question: int) -> dict[str, Array]:
        return {"ASMK*": index().scores(bench.descriptors(question))}

    return setup.values_of("ASMK*", bench, score, assignments)["ASMK*"]


def pca_values(setup: Setup, name: str, mix: tuple[int, ...]) -> dict[str, Values]:
    """Return the values of joint PCA, fitted to the training photographs, by the number of dimensions."""
    kept = [dimensions for dimensions in DIMENSIONS if len(setup.training) > 2 * dimensions]
    if not kept:
        return {}
    members = members_of(mix)
    bench = setup.bench(name, members)

    @cache
    def projected() -> tuple[Array, Array]:
        pca = _joint_pca(setup, members, max(kept))
        images = np.split(bench.words[: bench.n_features], bench.store.starts[1 : bench.n_images])
        queries = [bench.words[bench.rows(question)] for question in range(len(bench.dataset.questions))]
        return pca.project(images), pca.project(queries)

    def score(question: int) -> dict[str, Array]:
        images, queries = projected()
        return {str(d): _unit(images[:, :d]) @ _unit(queries[question, :d]) for d in kept}

    return setup.values_of("joint PCA", bench, score, kept)


def members_of(mix: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return vocabularies (size, seed) of some sizes: equal ones differ by their seed."""
    return tuple((size, mix[:place].count(size)) for place, size in enumerate(mix))


@lru_cache(maxsize=1)
def _joint_pca(setup: Setup, members: tuple[tuple[int, int], ...], dimensions: int) -> JointPca:
    vocabularies = [setup.vocabulary(size, seed) for size, seed in members]
    words = np.stack([setup.workbench.words(setup.store, vocabulary)[0] for vocabulary in vocabularies], axis=1)
    sizes = tuple(vocabulary.size for vocabulary in vocabularies)
    return JointPca.fit(np.split(words, setup.store.starts[1:-1]), sizes, dimensions)


def _unit(rows: Array) -> Array:
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.asarray(rows / np.where(lengths > 0, lengths, 1))
