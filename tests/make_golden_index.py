"""Make the golden index of the tests and its expected rankings: python tests/make_golden_index.py

`tests/data/index_v3` has been made by the version that introduced format 3; every later version must open it with the same
rankings, or refuse it in one clear line, as `index_v1`. Make a new one, beside it, only for a new format.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from conftest import draw_scene, view_of
from polyvoc.duplicates.compare import compare
from polyvoc.features.extract import extract
from polyvoc.index.catalogue import FORMAT
from polyvoc.index.writer import IndexWriter
from polyvoc.options import FeatureOptions, Preset
from polyvoc.scoring.codes import code_table_as_dict, default_code_table
from polyvoc.search.index import Index
from polyvoc.search.links import link
from polyvoc.storage.folders import FileState
from polyvoc.types import Features, Problem
from polyvoc.vocabulary.assign import Assigner
from polyvoc.vocabulary.train import with_decoder
from polyvoc.vocabulary.vocabulary import Vocabulary, VocabularySet, random_rotation

INDEX = Path(__file__).parent / "data" / f"index_v{FORMAT}"
OPTIONS = FeatureOptions(max_features=24)
SIZE = (140, 105)
REGION = (20.0, 15.0, 120.0, 90.0)
PRESETS: tuple[Preset, ...] = ("fast", "default", "best", "paper")
DECODED = 16  # descriptors that the decoder is learned from: few make it small


def photographs(folder: Path) -> dict[str, Features]:
    """Return the features of two views of six scenes, by name."""
    found = {}
    for scene in range(6):
        for view in ("a", "b"):
            path = folder / f"scene-{scene}{view}.png"
            view_of(draw_scene(scene, SIZE), view).save(path)
            found[path.name] = extract(path, OPTIONS)
    return found


def vocabularies(images: dict[str, Features]) -> VocabularySet:
    """Return two vocabularies of 12 and 16 words with signatures of 16 bits, and one of 20 words for codes of 128 bits."""
    descriptors = np.concatenate([image.descriptors for image in images.values()])
    made = []
    for seed, (size, bits) in enumerate(((12, 16), (16, 16), (20, 128))):
        rotation = random_rotation(descriptors.shape[1], bits)
        words = descriptors[np.random.default_rng(seed).choice(len(descriptors), size, replace=False)]
        thresholds = words @ rotation.T if bits == 16 else None  # the words themselves serve for codes
        made.append(Vocabulary.create(words, thresholds, rotation, {"seed": seed}))
    *words_of_rules, fine = made
    nearest = Assigner([fine]).assign(descriptors[:DECODED])[:, 0]
    return VocabularySet(tuple(words_of_rules), with_decoder(fine, descriptors[:DECODED], nearest), signed=True)


def make(path: Path) -> None:
    """Make an index with two segments, two removed images, a problem, a line, a table, links and duplicate pairs."""
    shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory() as folder:
        images = photographs(Path(folder))
    with IndexWriter.open(path, vocabularies(images), OPTIONS) as writer:
        for number, (name, image) in enumerate(images.items()):
            writer.add(name, image)
            if number == 8:
                writer.commit()
        writer.remove(["scene-2b.png", "scene-5b.png"])
        with writer.catalogue.transaction():
            writer.catalogue.put_problems([(FileState(3, 4), Problem("broken.png", "broken.png: not a photograph"))])
        table = replace(default_code_table(128), source="the golden index")
        writer.save_settings({"line": {"a": 0.5, "b": 0.3}, "code_table": code_table_as_dict(table)})
        with Index.open(path) as index:
            link(writer, index.stored_queries, 5)
            compare(writer, mirror=False)
    (path / "lock").unlink()


def rankings(path: Path) -> list[dict[str, Any]]:
    """Return searches in the index, and the hits of each: image, score, inliers."""
    with Index.open(path) as index:
        vars(index)["probability"] = None  # by scores: a table of probabilities may change
        images = [row.image for row in index.images()]
        searches: list[dict[str, Any]] = [{"photo": image, "preset": name} for image in images for name in PRESETS]
        searches += [{"photo": images[0], "region": REGION}, {"photo": images[0], "smooth": 0.5}]
        searches += [{"photo": images[1], "merge": "posterior", "burstiness": "none", "verify": 0}]
        searches += [{"photo": images[1], "merge": "b1", "hamming": 6, "sigma": 4.0}]
        return [{"search": one, "hits": _hits(index, one)} for one in searches]


def _hits(index: Index, values: dict[str, Any]) -> list[list[float]]:
    return [[hit.image, float(f"{hit.score:.6g}"), hit.inliers] for hit in index.search(**values, top=5)]


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else INDEX
    make(target)
    lines = ",\n ".join(json.dumps(one) for one in rankings(target))
    target.with_suffix(".json").write_text(f"[\n {lines}\n]\n", encoding="utf-8")
