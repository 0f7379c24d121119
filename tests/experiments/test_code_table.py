"""Tables of codes: counted as a loop counts, fitted by the formula, and nearly the same without labels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coded_scenes import WORDS, coded_again, coded_engine, coded_joined, coded_picture
from polyvoc.errors import OptionError
from polyvoc.experiments.datasets.readers import READERS
from polyvoc.experiments.fit.code_table import (
    EDGES,
    NOT_COUNTED,
    REACH,
    RELATED,
    UNRELATED,
    code_table_figure,
    fit_code_table,
    fit_code_table_pairs,
    save_code_table,
    tally_dataset,
    tally_query,
)
from polyvoc.experiments.fit.likelihood import HALF, MIN_MATCHES
from polyvoc.experiments.fit.likelihood import REACH as CHANCE
from polyvoc.experiments.fit.true_matches import Sampling, find_pairs
from polyvoc.experiments.workbench import QuantisedDataset, Workbench
from polyvoc.index.segment import Segment
from polyvoc.index.writer import IndexWriter
from polyvoc.options import CODE_ASSIGNMENTS, CODE_CUT, SearchOptions
from polyvoc.search.index import Index
from polyvoc.types import Array, CodeTable
from polyvoc.vocabulary.codes import CodedQuery
from polyvoc.vocabulary.vocabulary import Vocabulary
from views import SCENES, VIEWS

Counts = np.ndarray
ROWS = len(EDGES) + 1


def count_by_hand(segments: Sequence[Segment], query: CodedQuery, kinds: Sequence[Sequence[int]]) -> Counts:
    """Count the matches of a query with loops over all features of all images."""
    bits = 64 * query.codes.shape[2]
    counts = np.zeros((2, ROWS, bits + 1), np.int64)
    magnitudes = query.magnitudes.reshape(*query.words.shape, -1).tolist()
    for segment, of_images in zip(segments, kinds, strict=True):
        for position, kind in enumerate(of_images):
            stored = segment.image_features(position).codes
            assert stored is not None
            for word, code in zip(stored.words.tolist(), stored.codes.tolist(), strict=True):
                for q, a in np.argwhere(query.words == word).tolist():
                    planes = [mine ^ own for mine, own in zip(query.codes[q, a].tolist(), code, strict=True)]
                    apart = [i for i in range(bits) if planes[i // 64] >> i % 64 & 1]
                    if kind == NOT_COUNTED or len(apart) > round(REACH * bits):
                        continue
                    factor = (bits << 32) // int(query.totals[q, a])
                    distance = sum(magnitudes[q][a][i] for i in apart) * factor >> 32
                    counts[kind, sum(edge < query.ratios[q, a] for edge in EDGES), distance] += 1
    return counts


@pytest.mark.parametrize("bits", [64, 128])
def test_a_loop_counts_the_same(bits: int) -> None:
    rng = np.random.default_rng(51)
    shown = coded_picture(rng, 40)
    images = [coded_joined(coded_again(rng, shown), coded_picture(rng, 30)) for _ in range(3)]
    images += [coded_picture(rng, 90) for _ in range(5)] + [coded_picture(rng, 0)]
    segments = coded_engine(images, 4, bits).segments
    kinds = [[RELATED, NOT_COUNTED, RELATED, UNRELATED], [UNRELATED, NOT_COUNTED, UNRELATED, UNRELATED], [UNRELATED]]
    for assignments, n_rows in ((1, 1), (CODE_ASSIGNMENTS, 3), (WORDS, ROWS)):
        query = shown.coded(assignments, bits)
        counted = tally_query(segments, query, [np.array(of_images) for of_images in kinds])
        assert np.array_equal(counted, count_by_hand(segments, query, kinds))
        assert counted[RELATED].sum() > 20 and counted[UNRELATED].sum() > 1
        assert np.count_nonzero(counted.sum(axis=(0, 2))) == n_rows


# -- from ground truth


@pytest.fixture(scope="module")
def labelled(
    views: Path, vocabularies: tuple[Vocabulary, ...], fine: Vocabulary, tmp_path_factory: pytest.TempPathFactory
) -> QuantisedDataset:
    return Workbench(tmp_path_factory.mktemp("cache")).bench(READERS["groups"](views), vocabularies, fine)


def test_a_dataset_is_counted_by_its_ground_truth(labelled: QuantisedDataset) -> None:
    steps: list[tuple[str, int, int]] = []
    counted = tally_dataset(labelled, lambda *step: steps.append(step))
    assert counted.shape == (2, ROWS, 129)
    assert [step[1:] for step in steps] == [(done, SCENES * VIEWS) for done in range(1, SCENES * VIEWS + 1)]
    expected = np.zeros_like(counted)
    scene = np.repeat(np.arange(SCENES), VIEWS)
    for question in range(SCENES * VIEWS):
        kinds = np.where(scene == scene[question], RELATED, UNRELATED)
        kinds[question] = NOT_COUNTED  # a photograph is not compared with itself
        codes = labelled.query(question).codes
        assert codes is not None
        expected += tally_query(labelled.engine.segments, codes, [kinds])
    assert np.array_equal(counted, expected)
    near = counted[:, :, :20].sum(axis=(1, 2)) / counted.sum(axis=(1, 2))
    assert near[RELATED] > 5 * near[UNRELATED]


def test_a_fine_vocabulary_is_needed(bench: QuantisedDataset) -> None:
    with pytest.raises(OptionError, match="needs a fine vocabulary"):
        tally_dataset(bench)


# -- the fit


def assert_falls(table: CodeTable) -> None:
    """Every row falls from evidence for a match to none, and distances beyond those of chance have none."""
    rows = np.array(table.rows)
    assert rows.shape[0] == ROWS and (np.diff(rows, axis=1) <= 0).all()
    assert (rows[:, 0] > 0).all() and rows[0, 0] > 1
    last = int(CHANCE * (rows.shape[1] - 1))
    assert not rows[:, last:].any()
    assert table.edges == EDGES and table.reach == round(REACH * (rows.shape[1] - 1))


def made_up(bits: int = 128, related: int = 20_000, unrelated: int = 200_000) -> Counts:
    """Return counts of matches: half of the related ones are near, others far; the fewer, the farther the visited word."""
    distance = np.arange(bits + 1) / bits
    near, far = (np.exp(-(((distance - centre) / 0.1) ** 2)) for centre in (0.2, 0.42))
    near, far = near / near.sum(), far / far.sum()
    share = 0.5 ** np.arange(ROWS)
    kinds = [unrelated * far, related * (near + far) / 2]
    return np.stack([np.outer(share / share.sum(), kind) for kind in kinds]).astype(np.int64)


@pytest.mark.parametrize("bits", [64, 128])
def test_a_table_falls_with_distance(bits: int) -> None:
    table = fit_code_table(made_up(bits), "made up")
    assert_falls(table)
    assert table.source == "made up"


def test_a_table_of_photographs_falls_with_distance(labelled: QuantisedDataset) -> None:
    assert_falls(fit_code_table(tally_dataset(labelled)))


def test_a_row_is_the_logarithm_of_the_ratio() -> None:
    """Where the ratio falls by itself; less that of the farthest matches."""
    counts = made_up(related=10**7, unrelated=10**8)
    rows = np.array(fit_code_table(counts).rows)
    last = int(CHANCE * 128)

    def ratio(row: int, distance: int) -> float:
        unrelated, related = counts[:, row, distance] + HALF
        return math.log(related / unrelated)

    ends = [ratio(row, last) for row in range(ROWS)]
    for row in (0, 2):
        for distance in (15, 25, 35, 45):
            assert rows[row, distance] == pytest.approx(ratio(row, distance) - ends[row], abs=0.02)


def test_more_matches_of_related_images_at_all_distances_change_little() -> None:
    counts = made_up(related=10**7, unrelated=10**8)
    more = counts.copy()
    more[RELATED] *= 10
    for one, other in zip(fit_code_table(counts).rows, fit_code_table(more).rows, strict=True):
        np.testing.assert_allclose(one[10:], other[10:], atol=0.02)


def test_too_few_matches_are_an_error() -> None:
    for few, more in (({"related": 900}, "of the same objects"), ({"unrelated": 900}, "of other objects")):
        with pytest.raises(OptionError, match=f"too few for a likelihood table; {MIN_MATCHES} are needed.*{more}") as raised:
            fit_code_table(made_up(**few))
        assert "\n" not in str(raised.value)
    with pytest.raises(OptionError, match=r"^0 matches are too few"):
        fit_code_table(np.zeros((2, ROWS, 129), np.int64))


def test_the_figure_has_a_line_for_each_row() -> None:
    table = fit_code_table(made_up())
    (panel,) = code_table_figure(table, "title").panels
    assert len(panel.series) == ROWS and panel.series[0].name == "nearest word"
    assert panel.series[-1].name == f"word up to {CODE_CUT:g} x as far"
    for series, row in zip(panel.series, table.rows, strict=True):
        assert np.array_equal(series.x, np.arange(129)) and np.array_equal(series.y, row)


# -- without labels


def distance_of(one: CodeTable, other: CodeTable, counts: Array) -> float:
    """Return how far two tables are apart, in nats over matches of related images."""
    apart = np.abs(np.array(one.rows) - np.array(other.rows))
    return float((apart * counts[RELATED]).sum() / counts[RELATED].sum())


def test_verified_pairs_give_nearly_the_table_of_labels(coded_views: Path, labelled: QuantisedDataset) -> None:
    steps: list[tuple[str, int, int]] = []
    with Index.open(coded_views) as index:
        pairs = find_pairs(index)
        table = fit_code_table_pairs(index, pairs, lambda *step: steps.append(step))
    assert pairs.count > SCENES * VIEWS
    assert_falls(table)
    assert table.source == f"{pairs.count} verified pairs of 18 among 18 photographs, 128 bits"
    assert steps[-1] == ("codes", len(pairs.related), len(pairs.related))
    counts = tally_dataset(labelled)
    assert distance_of(table, fit_code_table(counts), counts) < 0.6


def test_few_pairs_are_an_error(coded_views: Path) -> None:
    with Index.open(coded_views) as index, pytest.raises(OptionError, match="verified pairs, and at least 20 are needed"):
        fit_code_table_pairs(index, find_pairs(index, Sampling(queries=3)))


def test_a_saved_table_is_used_by_searches(coded_index_path: Path, photographs: Path) -> None:
    flat = fit_code_table(made_up(), "flat")
    flat = replace(flat, rows=tuple((1.0,) * 60 + (0.0,) * 69 for _ in flat.rows))
    with Index.open(coded_index_path) as index:
        assert index.default_options.code_table is None
        before = index.search(photographs / "wall-b.jpg", preset="fast")
        expected = index.search(photographs / "wall-b.jpg", SearchOptions(verify=0, code_table=flat))
    with IndexWriter.open(coded_index_path) as writer:
        save_code_table(writer, flat)
    with Index.open(coded_index_path) as index:
        assert index.default_options.code_table == flat
        after = index.search(photographs / "wall-b.jpg", preset="fast")
    assert after == expected and [hit.score for hit in after] != [hit.score for hit in before]


def test_an_index_without_codes_has_no_use_for_a_table(index_path: Path) -> None:
    with IndexWriter.open(index_path) as writer, pytest.raises(OptionError, match="holds no codes, which a table could be for"):
        save_code_table(writer, fit_code_table(made_up()))
