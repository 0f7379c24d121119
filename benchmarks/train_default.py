"""Train the vocabularies that come with polyvoc, from a folder of photographs.

    python benchmarks/train_default.py PHOTOGRAPHS OUT [--source "Flickr8k (8,091 photographs)"]

The shipped ones come from the photographs of Flickr8k, at most 1,000 features of each, in the order of their names.
Needs about 8 GB of memory; the same photographs and library versions give the same vocabularies.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from polyvoc.options import FeatureOptions, TrainOptions
from polyvoc.vocabulary.train import sample_descriptors, train
from polyvoc.vocabulary.vocabulary import DEFAULT_COUNT


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("photographs", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--source", default="")
    parser.add_argument("--size", type=int, default=TrainOptions.size)
    parser.add_argument("--count", type=int, default=DEFAULT_COUNT)
    arguments = parser.parse_args()

    paths = sorted(p for p in arguments.photographs.rglob("*") if p.suffix.lower() in {".jpg", ".jpeg", ".png"})
    sample = sample_descriptors(paths, FeatureOptions(max_features=1000))
    for problem in sample.problems:
        print(problem.reason, file=sys.stderr)
    print(f"{len(sample.descriptors)} descriptors of {sample.provenance['photographs']} photographs", file=sys.stderr)
    for seed in range(arguments.count):

        def report(number: int, rounds: int, distortion: float, moved: float, seed: int = seed) -> None:
            print(
                f"vocabulary {seed}: round {number} of {rounds}, distortion {distortion:.5f}, {moved:.1%} moved",
                file=sys.stderr,
            )

        vocabulary = train(sample, TrainOptions(size=arguments.size, seed=seed), report, arguments.source)
        vocabulary.save(arguments.out / str(seed))
        print(seed, vocabulary.fingerprint, vocabulary.provenance["distortion"])


if __name__ == "__main__":
    main()
