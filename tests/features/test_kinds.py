"""The laws of the engine hold for every kind of feature, and kinds do not mix: SIFT, ORB and 64 numbers of real photographs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import polyvoc
from commands import answer, refuse, run, searched
from polyvoc.cli.demo_photos import find_photographs
from polyvoc.errors import OptionError, PolyvocError, VocabularyError
from polyvoc.index.catalogue import Catalogue
from polyvoc.index.check import check
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions, Merge, Preset, SearchOptions, TrainOptions
from polyvoc.search.index import Index
from polyvoc.types import FeatureKind, Features
from polyvoc.vocabulary.assign import Quantiser
from polyvoc.vocabulary.train import sample_descriptors, train
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet, default_vocabularies, random_rotation
from samples import quantised, scores, unflushed
from servers import refused, serving

__all__ = ["unflushed"]

ROOT = Path(__file__).parent.parent.parent
NAMES = ("astronaut", "brick", "camera", "cat", "coffee", "gravel")
KINDS = {"sift": FeatureKind(), "orb": FeatureKind("orb", 256, True), "sift-64": FeatureKind("sift-64", 64)}
RULES: tuple[Merge, ...] = ("b0", "b1", "b2", "bayes", "posterior", "likelihood")
SMALL = FeatureOptions(long_side=320, max_features=150)
AXES = random_rotation(128, 64)


@dataclass(frozen=True, eq=False)
class Collection:
    """Photographs and crops of them as one kind of feature, and two vocabularies."""

    kind: FeatureKind
    images: Mapping[str, Features]
    vocabularies: Sequence[Vocabulary]

    def build(self, path: Path, names: Sequence[str] | None = None, commits: int = 1, signed: bool = False,
              vocabularies: int = 2) -> Index:  # fmt: skip
        """Make an index with codes relative to the first vocabulary, and open it; signed: words have signatures, too."""
        chosen = list(self.images) if names is None else names
        with IndexWriter.open(path, VocabularySet.of(self.vocabularies[:vocabularies], signed=signed)) as writer:
            for number, name in enumerate(chosen, start=1):
                writer.add(name, self.images[name])
                if number * commits % len(chosen) < commits:
                    writer.commit()
        return Index.open(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of real photographs and their lower right parts."""
    found, folder = find_photographs(), tmp_path_factory.mktemp("real")
    for name in NAMES:
        with Image.open(found[name][0]) as image:
            whole = image.convert("RGB")
            whole.thumbnail((320, 320))
            whole.save(folder / f"{name}.png")
            whole.crop((40, 30, *whole.size)).save(folder / f"{name}-part.png")
    return folder


@pytest.fixture(scope="module")
def collections(folder: Path) -> dict[str, Collection]:
    made = {}
    for name, kind in KINDS.items():
        options = replace(SMALL, detector="orb" if kind.binary else "sift")
        images = {path.stem: found for path, found in polyvoc.extract_many(sorted(folder.iterdir()), options)}
        assert all(isinstance(found, Features) for found in images.values())
        if name == "sift-64":
            images = {path: replace(found, descriptors=found.descriptors @ AXES.T, name=name) for path, found in images.items()}
        every = np.concatenate([found.descriptors for found in images.values()])
        words = [train(every, TrainOptions(size=120, seed=seed, rounds=5), name=name) for seed in (0, 1)]
        made[name] = Collection(kind, images, words)
    return made


@pytest.fixture(params=KINDS)
def collection(collections: dict[str, Collection], request: pytest.FixtureRequest) -> Collection:
    return collections[request.param]


def all_options(bits: int) -> Iterator[SearchOptions]:
    for merge in RULES:
        signed = merge == "likelihood"
        yield SearchOptions(merge=merge, burstiness="best" if signed else "none")
        if not signed:
            yield SearchOptions(merge=merge, hamming=3 * bits // 8, sigma=bits / 4, burstiness="intra")


def assert_same(index: Index, other: Index, collection: Collection, threads: int | None = None) -> None:
    """Check that every rule gives the same scores in both indexes."""
    kept = {row.path for row in index.images()}
    assert kept == {row.path for row in other.images()}
    for options in all_options(index.folder.bits):
        for name in ("camera", "coffee-part"):
            expected, found = (scores(one, collection.images[name], options) for one in (index, other))
            assert max(expected.values()) > 0
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-7), options
    for name in ("camera", "coffee-part"):
        expected, found = (code_scores(one, collection.images[name]) for one in (index, other))
        assert max(expected.values()) > 0 and found == expected


def code_scores(index: Index, query: Features, threads: int | None = None) -> dict[str, float]:
    """Return the scores by codes of all images that have any, by name."""
    return {hit.path: hit.score for hit in index.search(query, preset="fast", top=100, threads=threads)}


# -- laws


def test_vocabulary_and_index_have_the_kind(collection: Collection, tmp_path: Path) -> None:
    assert {found.kind for found in collection.images.values()} == {collection.kind}
    assert {vocabulary.kind for vocabulary in collection.vocabularies} == {collection.kind}
    collection.vocabularies[0].save(tmp_path / "words")
    loaded = Vocabulary.load(tmp_path / "words")
    assert loaded.kind == collection.kind and loaded.fingerprint == collection.vocabularies[0].fingerprint
    assert collection.build(tmp_path / "i").folder.kind == collection.kind
    assert not list(check(tmp_path / "i"))


def test_segments_do_not_matter(collection: Collection, tmp_path: Path) -> None:
    whole, parts = (collection.build(tmp_path / str(commits), commits=commits, signed=True) for commits in (1, 4))
    assert len(whole.engine.segments) == 1 < len(parts.engine.segments)
    assert_same(whole, parts, collection)


def test_threads_do_not_matter(collection: Collection, tmp_path: Path) -> None:
    index = collection.build(tmp_path / "i", commits=4, signed=True)
    for options in all_options(index.folder.bits):
        words, signatures = quantised(index, collection.images["camera"], options)
        one, four = (index.score_words(words, signatures, options, threads=threads) for threads in (1, 4))
        assert np.array_equal(one, four)
    by_codes = [code_scores(index, collection.images["camera"], threads) for threads in (1, 4)]
    assert by_codes[0] == by_codes[1] and max(by_codes[0].values()) > 0


def test_saved_is_built_in_memory(collection: Collection, tmp_path: Path) -> None:
    saved, quantiser = collection.build(tmp_path / "i", signed=True), Quantiser(collection.vocabularies)
    parts = [quantiser.quantise(found.descriptors) for found in collection.images.values()]
    signed = [signatures for _, signatures in parts if signatures is not None]
    built = Index.from_words([words for words, _ in parts], [v.size for v in collection.vocabularies], signed)
    for options in all_options(saved.folder.bits):
        words, signatures = quantiser.quantise(collection.images["cat"].descriptors)
        expected = built.score_words(words, signatures, options)
        assert np.array_equal(saved.score_words(words, signatures, options), expected) and expected.any()


def test_removed_images_have_no_effect(collection: Collection, tmp_path: Path) -> None:
    names = list(collection.images)
    gone = names[::5]
    collection.build(tmp_path / "changed", names[:7], signed=True)
    with IndexWriter.open(tmp_path / "changed") as writer:
        for name in names[5:]:  # some again
            writer.add(name, collection.images[name])
        writer.commit()
        assert writer.remove(gone) == len(gone)
    assert_same(
        collection.build(tmp_path / "fresh", [name for name in names if name not in gone], signed=True),
        Index.open(tmp_path / "changed"),
        collection,
    )


def test_one_vocabulary_makes_all_rules_equal(collection: Collection, tmp_path: Path) -> None:
    index = collection.build(tmp_path / "i", vocabularies=1)
    expected = scores(index, collection.images["camera"], SearchOptions(merge="b0"))
    for merge in RULES[1:-1]:
        assert scores(index, collection.images["camera"], SearchOptions(merge=merge)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("preset", ["fast", "default"])  # with "best" its part is added to the query and may come first
def test_an_image_finds_itself_first_and_its_part_next(collection: Collection, preset: Preset, tmp_path: Path) -> None:
    index = collection.build(tmp_path / "i")
    options, same = index.preset(preset), []
    for row in index.images():
        by_features, by_id = (index.search(query, options, top=2) for query in (collection.images[row.path], row.image))
        assert by_features[0].path == by_id[0].path == row.path
        same.append(by_features[1].path == by_id[1].path)
    assert np.mean(same) >= 0.9  # codes keep a little less than descriptors
    related = [index.search(collection.images[name], options, top=2)[1].path == f"{name}-part" for name in NAMES]
    assert np.mean(related) >= 0.8


def test_inputs_are_not_modified(collection: Collection, tmp_path: Path) -> None:
    frozen = {}
    for name, found in collection.images.items():
        copies = {field: getattr(found, field).copy() for field in ("xy", "scale", "angle", "descriptors")}
        for array in copies.values():
            array.flags.writeable = False
        frozen[name] = replace(found, **copies)
    index = Collection(collection.kind, frozen, collection.vocabularies).build(tmp_path / "i")
    assert index.search(frozen["cat"], top=1)[0].path == "cat"
    every = np.concatenate([found.descriptors for found in frozen.values()])
    every.flags.writeable = False
    assert (
        train(every, TrainOptions(size=120, rounds=5), name=collection.kind.name).fingerprint
        == collection.vocabularies[0].fingerprint
    )


# -- bits


def test_the_nearest_of_binary_words_is_the_hamming_nearest() -> None:
    for bits in (32, 61, 256, 486):
        rng = np.random.default_rng(bits)
        words, asked = (rng.random((n, bits)) < 0.5 for n in (300, 500))
        asked[:100] = words[:100] ^ (rng.random((100, bits)) < 0.05)
        distance = (asked[:, None] != words[None]).sum(axis=2)  # [n, words]
        found = Quantiser([Vocabulary.create(words, name="orb", binary=True)]).quantise(asked)[0][:, 0]
        assert np.array_equal(distance[np.arange(500), found], distance.min(axis=1))  # ties may fall either way


def test_a_word_of_bits_is_the_mean_of_its_bits(collections: dict[str, Collection]) -> None:
    collection = collections["orb"]
    every = np.concatenate([found.descriptors for found in collection.images.values()])
    vocabulary = train(every, TrainOptions(size=20, bits=0, rounds=30), name="orb")
    assert vocabulary.centroids.min() >= -1e-3 and vocabulary.centroids.max() <= 1 + 1e-3
    words = Quantiser([vocabulary]).quantise(every)[0][:, 0]
    for word in range(20):
        assert (
            np.abs(vocabulary.centroids[word] - every[words == word].mean(axis=0)).mean() < 0.05
        )  # few change in the last round


def test_packed_bits_are_those_of_the_detector(folder: Path) -> None:
    packed = np.array([[0b00000001, 0b10000000], [255, 2]], np.uint8)
    expected = np.zeros((2, 16), bool)
    expected[0, [0, 15]] = expected[1, [*range(8), 9]] = True
    assert np.array_equal(polyvoc.unpack_bits(packed), expected)
    assert np.array_equal(polyvoc.unpack_bits(packed, 10), expected[:, :10])
    for wrong in (packed[0], packed.astype(np.int32)):
        with pytest.raises(OptionError, match="should be uint8"):
            polyvoc.unpack_bits(wrong)
    with pytest.raises(OptionError, match="bits=8 do not fit descriptors of 2 bytes"):
        polyvoc.unpack_bits(packed, 8)


def test_the_example_of_the_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "features.md").read_text(encoding="utf-8"), re.S)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "features.md", "exec"), {})
    assert capsys.readouterr().out == "superpoint (256 numbers) photograph 7\n"


# -- kinds do not mix


def pairs_of(collections: dict[str, Collection]) -> Iterator[tuple[Collection, Collection]]:
    return ((collections[a], collections[b]) for a in KINDS for b in KINDS if a != b)


def test_features_of_another_kind_raise(collections: dict[str, Collection], tmp_path: Path) -> None:
    for number, (one, other) in enumerate(pairs_of(collections)):
        index = one.build(tmp_path / str(number), ["cat"])
        line = f"holds {one.kind}, not {other.kind}; give features of that kind, or make another index"
        with IndexWriter.open(tmp_path / str(number)) as writer, pytest.raises(OptionError) as added:
            writer.add("cat", other.images["cat"])
        with pytest.raises(OptionError) as searched:
            index.search(other.images["cat"])
        assert line in str(added.value) and line in str(searched.value)
        assert [row.path for row in index.reopened().images()] == ["cat"]


def test_vocabularies_of_two_kinds_raise(collections: dict[str, Collection], tmp_path: Path) -> None:
    for one, other in pairs_of(collections):
        mixed = [one.vocabularies[0], other.vocabularies[0]]
        for make in (lambda mixed=mixed: Quantiser(mixed), lambda mixed=mixed: IndexWriter.open(tmp_path / "i", mixed)):
            with pytest.raises(VocabularyError, match="do not go together"):
                make()
        one.build(tmp_path / f"{one.kind.name}-{other.kind.name}", ["cat"])
        with pytest.raises(OptionError, match="made with other vocabularies"):
            IndexWriter.open(tmp_path / f"{one.kind.name}-{other.kind.name}", other.vocabularies)


def test_the_same_words_under_another_name_are_another_vocabulary(collections: dict[str, Collection]) -> None:
    words = collections["sift-64"].vocabularies[0]
    assert replace(words, name="superpoint").fingerprint != words.fingerprint
    with pytest.raises(VocabularyError, match=r"sift-64 \(64 numbers\) and superpoint \(64 numbers\) do not go together"):
        Quantiser([words, replace(words, name="superpoint")])


def test_shipped_vocabularies_are_sift() -> None:
    first = default_vocabularies(1)[0]
    assert first.kind == FeatureKind("sift", 128, False)
    assert replace(first, provenance={}).fingerprint == first.fingerprint


@pytest.mark.parametrize("odd", [3, {"name": "orb"}, {"name": "", "dimension": 128, "binary": False}, {"surprise": 1}])
def test_an_invalid_kind_is_damage(odd: object, collections: dict[str, Collection], tmp_path: Path) -> None:
    collections["orb"].build(tmp_path / "i", ["cat"])
    with closing(Catalogue.open(tmp_path / "i", writable=True)) as catalogue, catalogue.transaction():
        catalogue.put_settings({"kind": odd})
    assert any("kind" in line for line in check(tmp_path / "i"))


# -- which detector


def test_the_detector_follows_the_vocabularies(collections: dict[str, Collection], folder: Path, tmp_path: Path) -> None:
    with IndexWriter.open(tmp_path / "i", collections["orb"].vocabularies) as writer:
        assert writer.update([folder]).added == 2 * len(NAMES)
    index = Index.open(tmp_path / "i")
    assert index.folder.feature_options.detector == "orb"
    assert Path(index.search(folder / "cat-part.png")[0].path).stem == "cat-part"


def test_a_detector_without_vocabularies_raises(collections: dict[str, Collection], tmp_path: Path) -> None:
    with pytest.raises(
        OptionError, match=r"of sift \(128 numbers\), the detector makes orb \(256 bits\).*train --detector orb"
    ):
        IndexWriter.open(tmp_path / "i", feature_options=FeatureOptions(detector="orb"))
    with pytest.raises(OptionError, match="take another detector"):
        IndexWriter.open(tmp_path / "i", collections["orb"].vocabularies, FeatureOptions(max_features=10))
    with pytest.raises(OptionError, match="add features made elsewhere"):
        IndexWriter.open(tmp_path / "i", collections["sift-64"].vocabularies, FeatureOptions(detector="orb"))
    assert not (tmp_path / "i" / "catalogue.sqlite").exists()


def test_photographs_cannot_be_queries_of_external_features(
    collections: dict[str, Collection], folder: Path, tmp_path: Path
) -> None:
    collection = collections["sift-64"]
    index = collection.build(tmp_path / "i")
    line = r"holds sift-64 \(64 numbers\), which polyvoc does not extract from photographs; .* \(--image ID\)"
    with pytest.raises(OptionError, match=line):
        index.search(folder / "cat.png")
    with IndexWriter.open(tmp_path / "i") as writer, pytest.raises(OptionError, match=line):
        writer.update([folder])
    assert len(index.reopened()) == 2 * len(NAMES)
    assert index.search(index.search(collection.images["cat"], top=1)[0].image, top=1)[0].path == "cat"


# -- the command line


def test_info_shows_external_features(collections: dict[str, Collection], tmp_path: Path) -> None:
    for name, expected in {"sift-64": "another program, max features 3000", "orb": "long side"}.items():
        collections[name].build(tmp_path / name)
        output = run("info", "--index", tmp_path / name, "--verbose").output
        (line,) = [line for line in output.splitlines() if line.startswith("features by")]
        assert expected in line and ("detector" in line) == (name == "orb")


def test_train_and_index_with_orb(folder: Path, tmp_path: Path) -> None:
    words, index = tmp_path / "words", tmp_path / "i"
    trained = answer("train", folder, "--out", words, "--detector", "orb", "--size", 300, "--rounds", 3)
    assert trained["kind"] == {"name": "orb", "dimension": 256, "binary": True} and trained["bits"] == 128
    made = answer("index", folder, "--index", index, "--vocabulary", words, "--max-features", 200)
    assert made["added"] == 2 * len(NAMES)
    assert answer("index", folder, "--index", index, "--max-features", 200)["unchanged"] == 2 * len(NAMES)
    facts = answer("info", "--index", index)
    assert facts["kind"]["name"] == "orb" and facts["feature_options"]["detector"] == "orb"
    assert "of orb (256 bits)" in run("info", "--index", index, "--verbose").stdout
    hits = searched(folder / "coffee.png", "--index", index)["hits"]
    assert Path(hits[0]["path"]).stem == "coffee"


def test_a_detector_of_another_kind_is_one_line(folder: Path, tmp_path: Path) -> None:
    assert "polyvoc train --detector orb" in refuse("index", folder, "--index", tmp_path / "i", "--detector", "orb")


def test_a_sample_has_its_kind(folder: Path) -> None:
    sample = sample_descriptors([folder / "cat.png"], FeatureOptions(detector="orb"))
    assert sample.name == "orb" and sample.descriptors.dtype == np.bool_
    assert train(sample, TrainOptions(size=5)).kind == KINDS["orb"]
    with pytest.raises(PolyvocError, match=r"detector='surf' should be one of sift, .*, or a file"):
        FeatureOptions(detector="surf")  # type: ignore[arg-type]


def test_the_server_reports_external_features_in_one_line(
    collections: dict[str, Collection], folder: Path, tmp_path: Path
) -> None:
    collections["sift-64"].build(tmp_path / "i")
    with serving(tmp_path / "i") as served:
        line = refused(served.search(folder / "cat.png"), 422)
        assert "holds sift-64 (64 numbers), which polyvoc does not extract from photographs" in line
        image = next(row.image for row in served.service.index.images() if row.path == "cat")
        assert served.search(query=image).json()["hits"][0]["image"] == image
