"""The hits of several indexes as one ranking: evidence is added, and what one index alone holds is ranked beside it.

The probability p of a hit is evidence: logit p. Of a photograph that indexes of *different* kinds of features hold, with P the
probability that a candidate is right before any of them is looked at,

    logit p = logit P + sum over the kinds of share_kind (logit p_kind - logit P)

Were the kinds to err independently, each share would be 1. They do not: a scene like another is so to all kinds. The shares
are fitted (`experiments.fit.joint`), those of the shipped kinds by `benchmarks/several.py` beside SIFT, whose share is 1.
Indexes of the *same* kind see the same, so their evidence is not added: of each kind the strongest counts. So an index beside
itself changes nothing, and a photograph that one kind alone holds keeps the probability that it has there.

Evidence against a photograph, logit p_kind below logit P, counts by the root of the probability of the kind's best hit, and not
at all where that is no evidence either: a kind that finds nothing in a query, as a network does in a turned one, does not
contradict another that does.

An index that holds a photograph, but does not have it among its candidates, is evidence against it: its votes are too few for
the best `DEPTH`. Its logit p is then the *floor* of the search: that of an unverified candidate on the next rank, or that of
the last candidate, whichever is less. So being a candidate is never worse than not being one, and nothing is ranked above a
photograph that has more evidence of every kind. An index that does not hold the photograph, whose part with it is damaged, or
whose kind of features the query has none of, is no evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from polyvoc.search.explain import Explanation, ShownPhotograph
from polyvoc.search.hits import Hit, Hits
from polyvoc.search.photographs import STRIDE, Photographs
from polyvoc.search.probability import DEPTH, HitProbability, logistic
from polyvoc.storage.trust import Readable
from polyvoc.types import FeatureKind, Region, Spans

PRIOR = -6.0  # logit P, on Holidays and Ukbench (benchmarks/several.py); the shares of all kinds are fitted to it
SURE = 34.0  # logit beyond which probabilities are rounded


@dataclass(frozen=True)
class HitPart:
    """What one index contributes to a hit."""

    index: str  # path of the index
    kind: str  # of its features
    image: int  # the id of the photograph in that index
    probability: float | None  # there; None: not among the candidates, which is evidence against it
    score: float = 0.0
    inliers: int = 0
    counts: bool = True  # False: another index of the same kind has more evidence


@dataclass(frozen=True)
class JointHit(Hit):
    """A photograph that several indexes were searched for. Score and place are those of the part with the most evidence."""

    parts: tuple[HitPart, ...] = ()


@dataclass(frozen=True)
class ExplanationPart:
    """The matches of one kind of features."""

    index: str  # path of the index
    kind: str
    explanation: Explanation

    def as_dict(self, region: Region | None, frame: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """Return plain values, as `Explanation.as_dict`."""
        return {"index": self.index, "kind": self.kind, **self.explanation.as_dict(region, frame, limit)}


@dataclass(frozen=True, eq=False)
class JointExplanation:
    """Why a photograph is a hit, one part for each kind of features."""

    hit: Hit
    parts: tuple[ExplanationPart, ...]

    def draw(self, long_side: int = 640, limit: int = 100, all_matches: bool = False) -> Any:
        """Return a picture of both photographs with up to `limit` matches of each kind, the kinds in different colours.

        They are, in the order of the parts, green, blue, orange and purple; with `all_matches`, matches that are not consistent
        with the transform of their kind are there, too, in grey. The outline is that of the part with the most matches.
        """
        from polyvoc.features.pictures import KINDS, OTHER, draw_lines

        query, image = (ShownPhotograph.of(source, long_side) for source in self.parts[0].explanation.read_sources())
        lines, corners, most = [], [], 0
        for number, part in enumerate(self.parts):
            found, outline = part.explanation.lines(query, image, limit, all_matches)
            colour = KINDS[number % len(KINDS)]
            lines += [(inlier, one, other, colour if inlier else OTHER) for one, other, inlier in found]
            if outline and int(part.explanation.inlier.sum()) > most:
                corners, most = outline, int(part.explanation.inlier.sum())
        lines.sort(key=lambda line: line[0])  # stable: inliers above the others
        return draw_lines(query.pixels, image.pixels, [line[1:] for line in lines], corners)

    def as_dict(self, region: Region | None, frame: Mapping[str, Any], limit: int) -> dict[str, Any]:
        """Return plain values: for each kind what `Explanation.as_dict` returns, with at most `limit` matches."""
        return {"parts": [part.as_dict(region, frame, limit) for part in self.parts]}


@dataclass(frozen=True, eq=False)
class IndexAnswer:
    """All candidates of one index for a query."""

    number: int  # of the index
    index: str
    kind: FeatureKind
    hits: Hits
    floor: float  # logit of images that are not among them
    share: float = 1.0  # of its evidence that counts beside that of other kinds

    @classmethod
    def of(cls, number: int, index: str, kind: FeatureKind, hits: Hits, model: HitProbability) -> IndexAnswer:
        """Take the candidates of an index, with the model of their probabilities."""
        last = min((logit(hit.probability or 0.0) for hit in hits), default=math.inf)
        beyond = logit(model.of(-math.log(max(len(hits), DEPTH) + 1)))
        return cls(number, index, kind, hits, min(last, beyond), model.share)

    def added(self, evidence: float, best: float, prior: float) -> float:
        """Return what evidence adds beside that of other kinds. best: evidence of its kind for the best hit."""
        if evidence >= prior:
            return self.share * (evidence - prior)
        return self.share * (evidence - prior) * math.sqrt(logistic(best)) if best > prior else 0.0

    def part(self, images: Iterable[int], candidates: Mapping[int, Hit]) -> tuple[float, HitPart, Hit | None] | None:
        """Return the evidence for a photograph by its images here, the strongest; None if none of them was searched."""
        searched = [image for image in images if not _within(image - self.number * STRIDE, self.hits.missing)]
        found = [hit for image in searched if (hit := candidates.get(image)) is not None]
        if not searched:
            return None
        if not found:
            image = searched[0] - self.number * STRIDE
            return self.floor, HitPart(self.index, str(self.kind.name), image, None), None
        best = max(found, key=lambda hit: (hit.probability or 0.0, hit.score, -hit.image))
        return (
            logit(best.probability or 0.0),
            HitPart(self.index, self.kind.name, best.image, best.probability, best.score, best.inliers),
            best,
        )


def join(answers: Sequence[IndexAnswer], photographs: Photographs, prior: float = PRIOR) -> list[JointHit]:
    """Return the candidates of all indexes as hits, the most probable first. prior: logit P."""
    candidates = {one.number: {one.number * STRIDE + hit.image: hit for hit in one.hits} for one in answers}
    found = best_by_kind(answers)
    every = [image for hits in candidates.values() for image in hits]
    wanted = dict.fromkeys(number for number in photographs.at(every).tolist() if number >= 0)
    rated = []
    for photograph in wanted:
        holders = photographs.holders(photograph)
        parts = [(one, one.part(holders[one.number], candidates[one.number])) for one in answers if one.number in holders]
        known = [_Part(one.kind, one.added(part[0], found[one.kind], prior), *part) for one, part in parts if part is not None]
        rated.append(_joined(photographs.first(photograph), known, prior))
    rated.sort(key=lambda one: (-(one[1].probability or 0.0), -one[0], -one[1].score, one[1].image))
    return [hit for _, hit in rated]


def best_by_kind(answers: Sequence[IndexAnswer]) -> dict[FeatureKind, float]:
    """Return the logit of the best hit of each kind."""
    found: dict[FeatureKind, float] = {}
    for one in answers:
        found[one.kind] = max(found.get(one.kind, -SURE), *(logit(hit.probability or 0.0) for hit in one.hits), -SURE)
    return found


class _Part(NamedTuple):
    """What one index contributes to a photograph."""

    kind: FeatureKind
    added: float  # beside other kinds
    evidence: float  # logit
    shown: HitPart
    hit: Hit | None


def _joined(image: int, parts: Sequence[_Part], prior: float) -> tuple[float, JointHit]:
    """Return a photograph as a hit with the evidence of its parts, and its logit."""
    strongest: dict[FeatureKind, int] = {}  # by kind: the number of the part that counts
    for number, one in enumerate(parts):
        best = strongest.get(one.kind)
        if best is None or (one.evidence, one.hit is not None) > (parts[best].evidence, parts[best].hit is not None):
            strongest[one.kind] = number
    counted = [parts[number] for number in strongest.values()]
    alone = len(counted) == 1
    total = counted[0].evidence if alone else prior + math.fsum(one.added for one in counted)
    found = sorted((one for one in counted if one.hit is not None), key=lambda one: (-one.evidence, str(one.kind)))
    first = found[0].hit
    assert first is not None
    # Not from its logit where one kind alone holds it: that may be rounded.
    probability = first.probability if alone else logistic(total)
    outlined = [one.hit for one in found if one.hit is not None and one.hit.outline]
    placed = max(outlined, key=lambda hit: hit.inliers, default=first)
    shown = tuple(_marked(one.shown, number in strongest.values()) for number, one in enumerate(parts))
    values = {column.name: getattr(placed, column.name) for column in fields(Hit)}
    values |= {
        "image": image,
        "score": first.score,
        "inliers": sum(one.shown.inliers for one in counted),
        "probability": probability,
    }
    return total, JointHit(**values, parts=shown)


def _marked(part: HitPart, counts: bool) -> HitPart:
    return HitPart(part.index, part.kind, part.image, part.probability, part.score, part.inliers, counts)


def logit(probability: float) -> float:
    """Return ln p / (1 - p), within `SURE` of 0."""
    if not 0 < probability < 1:
        return SURE if probability > 0 else -SURE
    return min(max(math.log(probability) - math.log1p(-probability), -SURE), SURE)


def shifted(spans: Spans, number: int) -> Spans:
    """Return ids of images of an index as those of all indexes."""
    return tuple((first + number * STRIDE, last + number * STRIDE) for first, last in spans)


def _within(image: int, spans: Spans) -> bool:
    return any(first <= image <= last for first, last in spans)


@dataclass(frozen=True, eq=False)
class JointTrust:
    """Which photographs of several indexes may be read: those that an index names that may have them read."""

    by_path: Mapping[str, Sequence[Readable]]

    @classmethod
    def of(cls, answers: Sequence[IndexAnswer]) -> JointTrust:
        """Take the paths of the candidates of each index, with what that index may have read."""
        found: dict[str, list[Readable]] = {}
        for one in answers:
            for hit in one.hits if one.hits.trust is not None else ():
                found.setdefault(hit.path, []).append(one.hits.trust)  # type: ignore[arg-type]
        return cls(found)

    def allows(self, path: str) -> bool:
        """Return whether a photograph may be read."""
        return any(trust.allows(path) for trust in self.by_path.get(path, ()))
