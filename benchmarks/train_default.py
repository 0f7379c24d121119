"""Train the vocabularies that come with polyvoc, from a folder of photographs.

    python benchmarks/train_default.py PHOTOGRAPHS OUT [--source "Flickr8k (8,091 photographs)"] [--only fine]
    python benchmarks/train_default.py PHOTOGRAPHS OUT --detector xfeat.onnx

The shipped ones come from the photographs of Flickr8k, in the order of their names. The fine vocabulary, which codes refer to: 65,536
words, all descriptors (11.4 million), 8 rounds. Those of words: three of 20,000, at most 1,000 features of each photograph; the
shipped ones were trained on descriptors of OpenCV's SIFT, which differ little. Needs about 18 GB of memory; the same photographs and
library versions give the same vocabularies.

That of XFeat, a network (docs/learned.md): 65,536 words, three million descriptors at the scales 1 and 0.5 of every third photograph,
2,500 of them, 8 rounds.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.vocabulary.train import Sample, sample_descriptors, train
from polyvoc.vocabulary.vocabulary import FINE, SHIPPED, Vocabulary

ALL = 1 << 30  # descriptors
FINE_SIZE, FINE_ROUNDS = 65_536, 8
EVERY, PHOTOGRAPHS, DESCRIPTORS = 3, 2500, 3_000_000  # of a network


def read_sample(paths: list[Path], features: FeatureOptions, limit: int = ALL) -> Sample:
    sample = sample_descriptors(paths, features, limit)
    for problem in sample.problems:
        print(problem.reason, file=sys.stderr)
    print(f"{len(sample.descriptors)} descriptors of {sample.provenance['photographs']} photographs", file=sys.stderr)
    return sample


def learn(sample: Sample, options: TrainOptions, name: str, source: str) -> Vocabulary:
    def report(number: int, rounds: int, distortion: float, moved: float) -> None:
        print(f"{name}: round {number} of {rounds}, distortion {distortion:.5f}, {moved:.1%} moved", file=sys.stderr)

    return replace(
        train(sample, options, report, source, codes=name in (FINE, sample.name)), medians=None
    )  # the projected words serve


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", default="")
    parser.add_argument("--only", choices=[FINE, "words"])
    parser.add_argument("--detector", help="train the vocabulary of a network alone")
    arguments = parser.parse_args()
    paths = sorted(p for p in arguments.photographs.rglob("*") if p.suffix.lower() in {".jpg", ".jpeg", ".png"})
    made: dict[str, Vocabulary] = {}
    if arguments.detector is not None:
        sample = read_sample(paths[::EVERY][:PHOTOGRAPHS], FeatureOptions(detector=arguments.detector), DESCRIPTORS)
        options = TrainOptions(size=FINE_SIZE, rounds=FINE_ROUNDS, max_descriptors=DESCRIPTORS)
        made[sample.name] = learn(sample, options, sample.name, arguments.source)
    elif arguments.only != "words":
        options = TrainOptions(size=FINE_SIZE, rounds=FINE_ROUNDS, max_descriptors=ALL)
        made[FINE] = learn(read_sample(paths, FeatureOptions()), options, FINE, arguments.source)
    if arguments.only != FINE and arguments.detector is None:
        sample = read_sample(paths, FeatureOptions(max_features=1000))
        for seed in range(SHIPPED):
            made[str(seed)] = learn(sample, TrainOptions(seed=seed), str(seed), arguments.source)
    for name, vocabulary in made.items():
        vocabulary.save(arguments.out / name)
        print(name, vocabulary.fingerprint, vocabulary.provenance["distortion"])


if __name__ == "__main__":
    main()
