"""One options record per verb; each field has its help text, choices and limits here.

Command line, HTTP API, web page and reference are made from these fields (`options_of`), so they cannot differ.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from polyvoc.errors import OptionError
from polyvoc.types import CodeTable, FeatureKind, LikelihoodTable, NetworkFile

Merge = Literal["codes", "likelihood", "posterior", "bayes", "b0", "b1", "b2"]
Idf = Literal["average", "plain", "none"]
Norm = Literal["tfidf", "tf", "sqrt-tf", "features", "distinct", "none"]
Burstiness = Literal["none", "best", "intra"]
Sets = Literal["auto", "feature", "image"]
SetKind = Literal["feature", "image"]  # what the lists are sets of
Line = tuple[float, float]  # (a, b) of term 2, a r + b
Detector = Literal["sift", "opencv-sift", "orb", "akaze", "affine"]
Preset = Literal["fast", "default", "best", "paper"]

CODES: Merge = "codes"  # the rule of the default search, which has nothing to merge: one code per feature
CODE_ASSIGNMENTS = 10  # words that a query feature visits by default, as far as ...
CODE_CUT = 1.2  # ... they are this many times as far as the nearest

NAMES: Mapping[type, str] = {float: "a number", int: "a whole number", type(None): "None", bool: "True or False", str: "text"}

# Stages of a search, in their order. Scoring has the paper's options, which research varies; the others are for every day.
SCORING, RERANKING, FUSION, ANSWER = "Scoring", "Re-ranking", "Fusion", "Answer"
CLUSTER = "Cluster"  # where the index is held

# What each detector makes. An affine region is described by SIFT, too: the same vocabularies serve it.
DETECTOR_KINDS: Mapping[str, FeatureKind] = {
    "sift": FeatureKind(),
    "opencv-sift": FeatureKind(),
    "affine": FeatureKind(),
    "orb": FeatureKind("orb", 256, True),
    "akaze": FeatureKind("akaze", 486, True),
}
NETWORK_SUFFIX = ".onnx"  # of a detector that is a file


@dataclass(frozen=True)
class Option:
    """One field of an options record."""

    name: str
    kind: Any  # its type
    default: Any
    help: str
    stage: str = ""  # group of flags in the help
    metavar: str = ""  # what the help shows for the value
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    above: float | None = None  # as `minimum`, but without the limit itself
    maximum: float | None = None
    server_maximum: float | None = None  # larger values help no ranking, and a server cannot afford them

    @property
    def optional(self) -> bool:
        """Return whether the value may be None."""
        return type(None) in get_args(self.kind)

    def check(self, value: Any) -> None:
        """Raise OptionError if a value has another type, is none of the choices or beyond the limits."""
        wanted = self._wrong_type(value) or self._beyond_limits(value)
        if wanted is not None:
            raise OptionError(f"{self.name}={value!r} should be {wanted}")

    def _wrong_type(self, value: Any) -> str | None:
        """Return what a value should be, None if it is that: one of the choices, or of the type of the field."""
        if self.choices:
            return None if value in self.choices else "one of " + ", ".join(self.choices)
        types = [kind for kind in (get_args(self.kind) or (self.kind,)) if isinstance(kind, type)]
        if get_origin(self.kind) is tuple:
            any_length = Ellipsis in get_args(self.kind)
            allowed = (int, float) if float in types else tuple(types)
            fits = isinstance(value, tuple) and (any_length or len(value) == len(types))
            return None if fits and all(isinstance(item, allowed) for item in value) else f"{len(types)} numbers"
        if isinstance(value, (int, *types) if float in types else tuple(types)):
            return None
        return " or ".join(NAMES.get(kind, kind.__name__) for kind in types)

    def _beyond_limits(self, value: Any) -> str | None:
        """Return the limits of a number, None if it is within them."""
        numbers = value if isinstance(value, tuple) else (value,)
        if not all(isinstance(number, (int, float)) for number in numbers):
            return None
        if not all(map(math.isfinite, numbers)):
            return "finite"
        if self.above is not None and not value > self.above:
            return f"above {self.above}"
        too_low, too_high = self.minimum is not None and value < self.minimum, self.maximum is not None and value > self.maximum
        if self.minimum is not None and self.maximum is not None and (too_low or too_high):
            return f"from {self.minimum} to {self.maximum}"
        return f"at least {self.minimum}" if too_low else f"at most {self.maximum}" if too_high else None


def option(default: Any, text: str, stage: str = "", **limits: Any) -> Any:
    """Return a field of an options record with its help text, stage and limits (those of `Option`)."""
    return field(default=default, metadata={"help": text, "stage": stage, **limits})


def options_of(record: type[Any]) -> tuple[Option, ...]:
    """Return what is declared of each field of an options record; fields without a help text are no options."""
    return _options_of(record)  # type: ignore[arg-type]  # types are hashable


@cache
def _options_of(record: type[Any]) -> tuple[Option, ...]:
    kinds = get_type_hints(record)
    found = []
    for one in fields(record):
        if "help" not in one.metadata:
            continue
        choices = tuple(choice for choice in get_args(kinds[one.name]) if isinstance(choice, str))
        found.append(Option(one.name, kinds[one.name], one.default, choices=choices, **one.metadata))
    return tuple(found)


class Checked:
    """An options record that raises OptionError where a value is not one of its choices or beyond its limits."""

    def __post_init__(self) -> None:
        """Convert lists to tuples, and check every field."""
        for one in options_of(type(self)):
            value = getattr(self, one.name)
            if isinstance(value, list):
                value = tuple(value)
                object.__setattr__(self, one.name, value)
            one.check(value)


@dataclass(frozen=True)
class FeatureOptions(Checked):
    """How photographs become features."""

    long_side: int = option(
        1024,
        "Larger photographs are reduced to this many pixels on their long side; sift enlarges smaller ones, up to twice.",
        minimum=32,
    )
    max_features: int = option(3000, "Strongest features kept of each photograph.", minimum=1)
    detector: str = option(
        "sift",
        f"Detector of features: {', '.join(DETECTOR_KINDS)}, or a network, an ONNX file with a JSON file beside it; orb, akaze "
        "and networks need vocabularies of their own, affine needs pycolmap.",
        metavar="NAME|FILE",
    )

    # Of a detector that is a file: read by `features.learned.resolved`. No option: `detector` then holds its name.
    network: NetworkFile | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        if isinstance(self.network, dict):
            object.__setattr__(self, "network", NetworkFile(**self.network))
        if self.network is None and self.detector not in DETECTOR_KINDS and not self.is_file:
            names = ", ".join(DETECTOR_KINDS)
            raise OptionError(f"detector={self.detector!r} should be one of {names}, or a file {NETWORK_SUFFIX}")

    @property
    def is_file(self) -> bool:
        """Return whether the detector is a file that has not been read yet."""
        return self.network is None and self.detector.lower().endswith(NETWORK_SUFFIX)

    @property
    def kind(self) -> FeatureKind:
        """Return what the detector makes; raise OptionError for a file that has not been read yet."""
        if self.network is not None:
            return self.network.kind
        if self.is_file:
            raise OptionError(f"detector={self.detector!r} is not read yet; give features.learned.resolved(options)")
        return DETECTOR_KINDS[self.detector]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = asdict(self)
        if self.network is None:
            del values["network"]
        return values


class NormKey(NamedTuple):
    """A kind of norm: of tf idf ("tf"), of sqrt(tf) idf ("root"), of idf ("distinct") or "none"; idf; how many vocabularies."""

    kind: str
    idf: Idf
    n_vocabularies: int


@dataclass(frozen=True, kw_only=True)
class ScoringOptions(Checked):
    """How the words of a query become scores: the rules of the paper and what they are combined with."""

    merge: Merge = option(
        "codes",
        "How matches are found and weighted: codes, one binary code per feature; else by words, the rule that merges the "
        "matches of several vocabularies.",
        SCORING,
    )
    vocabularies: int | None = option(
        None, "Vocabularies that vote: the first ones of the index; none: all.", SCORING, minimum=1, server_maximum=9
    )
    idf: Idf = option("average", "Weight of a word: ln(N / occurrences), ln(N / images), or 1.", SCORING)
    idf_power: int = option(
        2, "Power of idf in the weight of a match: 2, as in products of tf-idf vectors, or 1.", SCORING, minimum=1, maximum=2
    )
    norm: Norm = option(
        "tfidf",
        "Norm of an image, which its score is divided by: of tf idf, tf, sqrt(tf) idf, sqrt(tf) (features: the root of their "
        "number), or idf once per distinct word.",
        SCORING,
    )
    # a + b = 1: two equal lists share every match. Fits with it give b = 0.23 to 0.33; without signatures rankings gain a
    # little up to b = 0.5 (docs/findings.md).
    line: Line = option((0.6, 0.4), "Term 2: a true match is in the intersection with probability a r + b.", SCORING)
    c: float = option(30.0, "Constant of term 3, ln(N c).", SCORING, above=0, server_maximum=1e9)  # the paper's Table 2
    hamming: int | None = option(
        None,
        "Largest Hamming distance of a match; none: no limit (then only the rule likelihood compares signatures).",
        SCORING,
        minimum=0,
        server_maximum=128,
    )
    sigma: float = option(
        16.0,
        "With hamming: a match at distance h has the weight exp(-h^2 / sigma^2); 16 suits 64 bits, 26 suits 128.",
        SCORING,
        above=0,
        server_maximum=1e4,
    )
    burstiness: Burstiness = option(
        "best",
        "Repeated structure: best, one match per query feature and image; intra, damped within an image (Jegou 2009).",
        SCORING,
    )
    sets: Sets = option(
        "auto",
        "Sets of the rules: of features, or of images, which are in the intersection with a feature in each list. auto: images "
        "for bayes and b2, as in the paper, features for the others.",
        SCORING,
    )
    assignments: int | None = option(
        None,
        "Nearest words that a query feature visits (in each vocabulary), at most: more find more and take longer. none: 10 for "
        "codes, 1 for the other rules.",
        SCORING,
        minimum=1,
        server_maximum=20,
    )
    likelihood_table: LikelihoodTable | None = option(
        None,
        "Table for 'likelihood', as 'polyvoc calibrate --table' writes it; none: the table of the index or of polyvoc.",
        SCORING,
    )

    # Fitted to an index by `polyvoc calibrate --save`; None: the table of polyvoc. No option: code tables have no file format.
    code_table: CodeTable | None = None

    @property
    def n_assignments(self) -> int:
        """Return the nearest words that a query feature visits, at most."""
        return self.assignments or (CODE_ASSIGNMENTS if self.merge == CODES else 1)

    def norm_key(self, n_vocabularies: int) -> NormKey:
        """Return the norm for an index of so many vocabularies."""
        kinds: dict[str, tuple[str, Idf]] = {
            "tfidf": ("tf", self.idf),
            "tf": ("tf", "none"),
            "sqrt-tf": ("root", self.idf),
            "features": ("root", "none"),
            "distinct": ("distinct", self.idf),
            "none": ("none", "none"),
        }
        return NormKey(*kinds[self.norm], self.count_vocabularies(n_vocabularies))

    def count_vocabularies(self, available: int) -> int:
        """Return how many vocabularies vote in an index of so many; raise OptionError if it has fewer than wanted."""
        if self.vocabularies is not None and self.vocabularies > available:
            raise OptionError(f"vocabularies={self.vocabularies} should be at most {available}, as many as the index has")
        return 1 if self.merge == "b0" else self.vocabularies or available

    @property
    def image_sets(self) -> bool:
        """Return whether the lists are sets of images; b0 and b1 are the same with either."""
        return self.set_kind == "image"

    @property
    def set_kind(self) -> SetKind:
        """Return what the lists are sets of: the line of term 2 is fitted for each kind."""
        if self.sets == "auto":
            return "image" if self.merge in ("bayes", "b2") else "feature"
        return self.sets

    @property
    def needs_signatures(self) -> bool:
        """Return whether Hamming signatures are compared."""
        return self.hamming is not None or self.merge == "likelihood"


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ScoringOptions):
    """How to search: scoring, then re-ranking, fusion, and which hits to return."""

    verify: int = option(
        100, "Candidates that are verified geometrically and re-ranked; 0: none.", RERANKING, minimum=0, server_maximum=1000
    )
    expand: int = option(
        0,
        "Query expansion: search again with the features of up to this many hits that are nearly certain; 0: off.",
        RERANKING,
        minimum=0,
        server_maximum=50,
    )
    smooth: float = option(
        0.0, "Weight of an image's linked images in its score; needs 'polyvoc link'.", RERANKING, minimum=0, server_maximum=100
    )
    fuse: bool = option(False, "Add the similarity of the global embedding; needs an index made with --embedding.", FUSION)
    top: int = option(10, "Number of hits, at most.", ANSWER, minimum=1, server_maximum=1000)
    min_probability: float = option(
        0.0, "Only hits that show the same thing with at least this probability, such as 0.9.", ANSWER, minimum=0, maximum=1
    )
    since: int | None = option(
        None,
        "Only images that were added after this commit; `polyvoc info` shows the last one.",
        ANSWER,
        minimum=0,
        server_maximum=10**9,
    )
    require_all: bool = option(
        False, "On a cluster: fail if a machine is unavailable, instead of searching the other images only.", CLUSTER
    )

    def __post_init__(self) -> None:
        """Check every field."""
        super().__post_init__()
        if self.expand and not self.verify:
            raise OptionError(f"expand={self.expand!r} needs verified hits; set verify, such as 100")

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; a likelihood table by its source, None for the default one."""
        table = self.likelihood_table
        values = asdict(replace(self, likelihood_table=None, code_table=None))
        del values["code_table"]
        return {**values, "likelihood_table": None if table is None else table.source}


@dataclass(frozen=True)
class PairOptions(Checked):
    """Which pairs of images are worth matching."""

    top: int = option(20, "Other images that each one is paired with, at most.", minimum=1)
    mutual: bool = option(False, "Keep a pair only if each image is among the best of the other.")
    min_score: float = option(0.0, "Keep pairs with at least this score.", minimum=0)
    verify: bool = option(False, "Keep a pair only if its matches are consistent with one geometric transform.")
    min_inliers: int = option(6, "With --verify: matches that must be consistent, at least.", minimum=1)


@dataclass(frozen=True)
class TrainOptions(Checked):
    """How a vocabulary is trained."""

    size: int = option(20_000, "Number of words.", minimum=1)
    seed: int = option(0, "Seed of the random choices; each of several vocabularies needs its own.", minimum=0)
    rounds: int = option(20, "Rounds of k-means, at most.", minimum=1)
    bits: int = option(
        128,
        "Bits of a Hamming signature, at most the numbers of a descriptor, or twice as many; 0: no signatures.",
        minimum=0,
        maximum=128,
    )
    max_descriptors: int = option(2_000_000, "Descriptors drawn for k-means; the medians use all.", minimum=1)


@dataclass(frozen=True)
class ClusterOptions(Checked):
    """Where on a cluster an index is held."""

    address: str = option("auto", "Address of a Ray cluster; auto: the one that runs here; local: this machine.", CLUSTER)
    shards: int = option(0, "Parts that the index is divided into, one process each; 0: one per core.", CLUSTER, minimum=0)
    replicas: int = option(1, "Processes that hold the same part.", CLUSTER, minimum=1)
    timeout: float = option(10.0, "Seconds that a search waits for a part.", CLUSTER, above=0)

    def __post_init__(self) -> None:
        """Check every field."""
        if not self.address:
            raise OptionError("address='' should be that of a Ray cluster, auto or local")
        super().__post_init__()


# The system of the paper's Table 3, in the reading that is nearest to its differences (docs/findings.md).
PAPER_READING: Mapping[str, Any] = {"idf": "plain", "idf_power": 2, "norm": "features"}
PAPER: Mapping[str, Any] = {"merge": "bayes", "vocabularies": 2, **PAPER_READING, "verify": 0}
PRESETS: Mapping[str, Mapping[str, Any]] = {
    "fast": {"verify": 0},
    "default": {},
    "best": {"verify": 200, "expand": 5},
    "paper": PAPER,
}
# Threshold and sigma of Hamming Embedding by the length of signatures: Jegou 2008; Zheng's own program for 128 bits.
USUAL_HAMMING: Mapping[int, tuple[int, float]] = {64: (24, 16.0), 128: (52, 26.0)}


def preset(name: str, bits: int = 128, code_bits: int = 0) -> SearchOptions:
    """Return the options of a preset for an index with codes of a length, or for one of words with signatures of a length.

    There are likelihood tables for 64 and 128 bits. They were fitted on SIFT and serve other kinds of features, too: the
    evidence of a match depends on lists and Hamming distances, whatever the signatures were made of. With ORB `fast` has mAP
    76.6 and N-S 3.758 by the table of SIFT, 77.1 and 3.734 by one fitted on ORB (of the other dataset), 72.7 and 3.452
    without a table, by `posterior` with signatures (docs/features.md). `polyvoc calibrate --save` fits one to an index.

    Signatures of other lengths are weighted as in Hamming Embedding; without signatures the posterior rule is used. "paper" is
    Bayes merging of two vocabularies with Hamming Embedding and burstiness, without geometry.
    """
    if name not in PRESETS:
        raise OptionError(f"preset={name!r} should be one of {', '.join(PRESETS)}")
    chosen = SearchOptions(**PRESETS[name])
    threshold, sigma = USUAL_HAMMING.get(bits, (3 * bits // 8, bits / 4))
    if name == "paper":
        signed = {"hamming": threshold, "sigma": sigma, "burstiness": "intra"}
        return replace(chosen, **(signed if bits else {"burstiness": "none"}))
    if code_bits:
        return chosen
    if bits in (64, 128):
        return replace(chosen, merge="likelihood")
    if bits == 0:
        return replace(chosen, merge="posterior", burstiness="none")
    return replace(chosen, merge="b1", hamming=threshold, sigma=sigma)
