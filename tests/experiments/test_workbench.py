"""Words and scores of the workbench are those of the package, made once and cached."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

import polyvoc
from benches import described, never, write_descriptors
from polyvoc.errors import OptionError
from polyvoc.experiments.cache import default_cache, digest_of
from polyvoc.experiments.datasets.descriptor_files import write_siftgeo
from polyvoc.experiments.datasets.readers import Dataset, Question, read_groups
from polyvoc.experiments.evaluate import scoring_options
from polyvoc.experiments.measures import Truth
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.features.extract import extract
from polyvoc.index.writer import IndexWriter
from polyvoc.options import CODES, FeatureOptions, Merge, SearchOptions, TrainOptions
from polyvoc.vocabulary.assign import Quantiser
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet

OPTIONS = FeatureOptions(max_features=80)
Vocabularies = tuple[Vocabulary, ...]


@pytest.mark.parametrize("odd", [{"name": "superpoint"}, {"binary": True}])
def test_vocabularies_of_other_kinds_are_an_error_before_photographs_are_read(
    odd: dict[str, Any],
    workbench: Workbench,
    photographs: Path,
    vocabularies: Vocabularies,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Workbench, "store", never)
    other = replace(vocabularies[1], **odd)
    with pytest.raises(OptionError, match=rf"^datasets are read as sift, the vocabulary is of {re.escape(str(other.kind))};"):
        workbench.bench(read_groups(photographs), [vocabularies[0], other])


def nearly(signatures: Any, others: Any) -> bool:
    """Return whether hardly a bit differs: a projection that is its threshold may be rounded above it or below."""
    return signatures.shape == others.shape and bool(np.bitwise_count(signatures ^ others).mean() < 0.64)  # of 64


# -- words and vocabularies


def test_words_are_those_of_the_quantiser(bench: QuantisedDataset, photographs: Path, vocabularies: Vocabularies) -> None:
    quantiser = Quantiser(vocabularies)
    for number, file in enumerate(sorted(photographs.glob("*.jpg"))):
        words, signatures = quantiser.quantise(extract(file, OPTIONS).descriptors)
        rows = slice(int(bench.store.starts[number]), int(bench.store.starts[number + 1]))
        assert np.array_equal(bench.words[rows], words)
        assert bench.signatures is not None and nearly(bench.signatures[rows], signatures)
    assert bench.sizes == (300, 300) and bench.n_images == 12 and bench.n_features == len(bench.words)


def test_words_are_made_once(
    bench: QuantisedDataset, workbench: Workbench, vocabularies: Vocabularies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("polyvoc.experiments.workbench._quantise", never)
    again = workbench.bench(bench.dataset, vocabularies)
    assert again.name == bench.name
    assert np.array_equal(again.words, bench.words) and np.array_equal(again.signatures, bench.signatures)


def test_words_do_not_depend_on_blocks(
    bench: QuantisedDataset,
    workbench: Workbench,
    vocabularies: Vocabularies,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("polyvoc.experiments.workbench.BLOCK", 7)
    words, signatures = replace(workbench, cache=tmp_path).words(bench.store, vocabularies[1])
    assert np.array_equal(words, bench.words[:, 1])
    assert bench.signatures is not None and nearly(signatures, bench.signatures[:, 1])


def test_vocabularies_without_signatures(bench: QuantisedDataset, workbench: Workbench, vocabularies: Vocabularies) -> None:
    plain = Vocabulary.create(vocabularies[0].centroids)
    words, signatures = workbench.words(bench.store, plain)
    assert signatures is None and np.array_equal(words, bench.words[:, 0])
    mixed = workbench.bench(bench.dataset, [plain, vocabularies[1]])
    assert mixed.signatures is None and mixed.name != bench.name


def test_a_vocabulary_is_trained_once_and_always_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[tuple[str, int, int]] = []
    workbench = Workbench(tmp_path / "cache", OPTIONS, lambda *step: steps.append(step))
    store = workbench.store(write_descriptors(tmp_path / "files", [40, 60]), "siftgeo")
    options = TrainOptions(size=20, seed=3, rounds=4, bits=16)
    trained = workbench.vocabulary(store, options, "noise")
    assert (trained.size, trained.bits, trained.provenance["source"]) == (20, 16, "noise")
    assert steps[-1][0].startswith("vocabulary of 20 words, seed 3: distortion ")
    assert workbench.vocabulary(store, replace(options, seed=4)).fingerprint != trained.fingerprint
    with monkeypatch.context() as patch:
        patch.setattr("polyvoc.experiments.workbench.train", never)
        assert workbench.vocabulary(store, options).fingerprint == trained.fingerprint
    shutil.rmtree(tmp_path / "cache" / "vocabularies")
    assert workbench.vocabulary(store, options).fingerprint == trained.fingerprint


# -- scores


@pytest.mark.parametrize("merge", [merge for merge in get_args(Merge) if merge != CODES])
def test_scores_are_those_of_an_index(bench: QuantisedDataset, merge: Merge) -> None:
    words, signatures = (np.split(rows, bench.store.starts[1:-1]) for rows in (bench.words, bench.signatures))
    index = polyvoc.Index.from_words(words, bench.sizes, signatures)
    several = ({}, {"hamming": 30, "burstiness": "intra"}, {"sets": "image", "idf": "plain"}, {"line": (0.8, 0.1), "c": 5})
    for options in (scoring_options(merge=merge, **more) for more in several):
        for question in (0, 5, 11):
            expected = index.score_words(words[question], signatures[question], options)
            assert np.array_equal(bench.scores(question, options), expected), options


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(verify=0),
        SearchOptions(verify=0, assignments=3),
        SearchOptions(verify=8),
        SearchOptions(verify=8, expand=3),
        SearchOptions(merge="posterior", burstiness="none", verify=8),  # words, then geometry by codes
    ],
    ids=["codes", "three words", "verified", "expanded", "posterior"],
)
def test_scores_by_codes_are_those_of_an_index(
    options: SearchOptions, bench: QuantisedDataset, workbench: Workbench, photographs: Path, fine: Vocabulary, tmp_path: Path
) -> None:
    coded = workbench.bench(bench.dataset, bench.vocabularies, fine)
    assert coded.name != bench.name and coded.engine.code_bits == 128
    with IndexWriter.open(tmp_path / "i", VocabularySet(bench.vocabularies, fine), OPTIONS) as writer:
        writer.update([photographs])
    index, files = polyvoc.open(tmp_path / "i"), sorted(photographs.glob("*.jpg"))
    for question in (0, 5, 11):
        hits = {Path(hit.path): hit.score for hit in index.search(files[question], options, top=12)}
        expected = [hits.get(file, 0.0) for file in files]
        assert len(hits) > 3 and coded.scores(question, options).tolist() == pytest.approx(expected, rel=1e-3, abs=1e-6)


def test_several_words_per_feature(bench: QuantisedDataset, photographs: Path, vocabularies: Vocabularies) -> None:
    options = scoring_options(merge="b2", hamming=28, assignments=3)
    file = sorted(photographs.glob("*.jpg"))[4]
    words, signatures = Quantiser(vocabularies).quantise(extract(file, OPTIONS).descriptors, 3)
    plan = bench.engine.plan(options)
    query = bench.engine.query(words, signatures, plan)
    assert np.array_equal(bench.scores(4, options), bench.engine.scores(query, plan)[0])
    assert np.array_equal(bench.descriptors(4), extract(file, OPTIONS).descriptors)


def test_a_part_of_the_vocabularies(bench: QuantisedDataset) -> None:
    options = scoring_options(merge="posterior", hamming=24)
    second = bench.chosen([1])
    assert second.sizes == (300,) and second.vocabularies == bench.vocabularies[1:]
    assert np.array_equal(second.words, bench.words[:, 1:])
    index = polyvoc.Index.from_words(np.split(bench.words[:, 1:], bench.store.starts[1:-1]), (300,))
    expected = index.score_words(bench.words[bench.rows(3), 1:], None, scoring_options())
    assert np.array_equal(second.scores(3, scoring_options()), expected)
    turned = bench.chosen([1, 0])
    assert np.allclose(turned.scores(3, options), bench.scores(3, options), rtol=1e-5)
    names = [bench.name, bench.first(1).name, second.name, turned.name]
    assert len(set(names)) == 4
    assert np.array_equal(bench.first(1).words, bench.words[:, :1])
    assert bench.first(9).sizes == bench.first(2).sizes == (300, 300)  # there are no more


# -- questions


def test_only_features_strictly_inside_a_region_are_used(tmp_path: Path) -> None:
    xy = np.array([[10, 20], [10, 30], [11, 21], [30, 40], [29.9, 39.9], [20, 40], [20, 30], [50, 25]], np.float32)
    features = replace(described(8), xy=xy)
    write_siftgeo(tmp_path / "a.siftgeo", features)
    question = Question("a", tmp_path / "a.siftgeo", 0, (10.0, 20.0, 30.0, 40.0))
    dataset = Dataset("a", tmp_path, "siftgeo", (question.source,), (question,), {"": (Truth(frozenset({0})),)}, "mAP")
    workbench = Workbench(tmp_path / "cache")
    words = workbench.vocabulary(workbench.store([question.source], "siftgeo"), TrainOptions(size=4, rounds=1, bits=8))
    bench = workbench.bench(dataset, [words])
    assert bench.rows(0).tolist() == [2, 4, 6]
    assert np.array_equal(bench.descriptors(0), bench.store.descriptors(0)[[2, 4, 6]])
    options = scoring_options(merge="b0", idf="none", norm="none")
    own = bench.words[:, 0]
    assert bench.scores(0, options).tolist() == [sum(int((own == own[row]).sum()) for row in (2, 4, 6))]


def test_questions_from_outside_are_not_in_the_database(
    workbench: Workbench, photographs: Path, vocabularies: Vocabularies
) -> None:
    files = sorted(photographs.glob("*.jpg"))
    database, outside = (*files[:2], *files[3:5]), (files[2], files[5])
    questions = (Question("bridge", outside[0], None), Question("own", database[3], 3), Question("market", outside[1], None))
    truths = tuple(Truth(frozenset({right})) for right in (0, 2, 2))
    dataset = Dataset("revisited", photographs, "photographs", database, questions, {"medium": truths}, "mAP")
    bench = workbench.bench(dataset, vocabularies)
    assert bench.n_images == 4 and len(bench.store) == 6
    assert bench.engine.statistics.n_images == 4
    assert bench.n_features == bench.store.starts[4] < len(bench.words)
    quantiser = Quantiser(vocabularies)
    images = [quantiser.quantise(extract(file, OPTIONS).descriptors)[0] for file in database]
    index = polyvoc.Index.from_words(images, bench.sizes)
    for number, question in enumerate(questions):
        words, _ = quantiser.quantise(extract(question.source, OPTIONS).descriptors)
        assert np.array_equal(bench.scores(number, scoring_options()), index.score_words(words, None, scoring_options()))


# -- the cache


def test_a_value_is_made_once(workbench: Workbench, tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        workbench.remember("a key", [1], never)  # not stored
    made = {"values": [1.5, None], "name": "é"}
    assert workbench.remember("a key", [1], lambda: made) == made
    assert workbench.remember("a key", [1], never) == made
    assert workbench.remember("a key", [2], lambda: [(1, 2)]) == [[1, 2]]  # as JSON gives it, the first time too
    elsewhere = replace(workbench, results=tmp_path / "results")
    assert elsewhere.remember("Holidays, `b1` + HE", [1], lambda: 3) == 3
    assert [path.name[:18] for path in (tmp_path / "results").iterdir()] == ["holidays-b1-he-" + digest_of(1)[:3]]


def test_names_change_with_the_ground_truth(bench: QuantisedDataset, workbench: Workbench) -> None:
    truths = bench.dataset.truths[""]
    other = replace(bench.dataset, truths={"": (*truths[1:], truths[0])})
    assert workbench.bench(other, bench.vocabularies).name != bench.name
    assert digest_of(1, "a", None) == digest_of(1, "a", None) != digest_of(1, "a", 0)
    assert digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})


def test_the_folder_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("POLYVOC_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for variable, folder in (("HOME", ".cache/polyvoc"), ("XDG_CACHE_HOME", "polyvoc"), ("POLYVOC_CACHE", "")):
        monkeypatch.setenv(variable, str(tmp_path / variable))  # the later ones go first
        assert default_cache() == tmp_path / variable / folder
