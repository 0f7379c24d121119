"""Readings of the paper and controls: weights of the matches of a question.

A reading takes the matches of a question and options, of which it uses idf, idf_power, line, c, hamming, sigma and sets
("auto": images, but features for `posterior`, as in a search). It returns the weight of every match [m], by name.
`Matcher.scores` turns weights into scores, with the norm of the same options.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from polyvoc.experiments.match_table import Matcher, MatchSets, MatchTable, near
from polyvoc.options import Merge, ScoringOptions
from polyvoc.scoring.rules import BayesModel, Counts
from polyvoc.types import Floats64

Weights = dict[str, Floats64]  # [m] by name
Weigh = Callable[[Matcher, MatchTable, ScoringOptions], Weights]
CONSTANTS = (0, 0.02, 0.05, 0.1, 0.2, 0.5, 2)
MULTIPLES = (0.25, 0.5, 2, 4)


@dataclass(frozen=True, eq=False)
class Basis:
    """What the weights of a rule are made of, with one kind of sets."""

    sets: MatchSets
    model: BayesModel
    votes: Floats64  # [m] sum of the terms of each match: its weight by `b1`

    @classmethod
    def of(cls, matcher: Matcher, table: MatchTable, options: ScoringOptions, merge: Merge) -> Basis:
        """Take the sets that a rule has under the options."""
        sets = table.images if replace(options, merge=merge).image_sets else table.features
        return cls(sets, BayesModel.of(options, table.n_images), matcher.terms(table, options).sum(axis=1))

    @property
    def in_all(self) -> npt.NDArray[np.bool_]:
        """Return which matches are in the intersection of all lists [m]."""
        return np.asarray(self.sets.mask == self.sets.counts.shape[1] - 1)

    def weighted(self, inside: Floats64 | float, outside: Floats64 | float = 1.0) -> Floats64:
        """Weight the votes in the intersection of two lists or more, and those in one list only [m]."""
        return np.asarray(np.where(self.sets.order >= 2, inside, outside) * self.votes)

    def bayes(self, ratio: Floats64) -> Floats64:
        """Weight the votes in the intersection by a ratio [m]: eq. 11 of the paper."""
        return self.weighted(self.model.intersection(ratio))

    def posterior(self, ratio: Floats64, joint_ratio: Floats64) -> Floats64:
        """Weight the votes in the intersection by a ratio, the others by the ratio of all lists [m]."""
        return self.weighted(self.model.intersection(ratio), self.model.difference(joint_ratio))


def rules(matcher: Matcher, table: MatchTable, options: ScoringOptions) -> Weights:
    """Return the rules of the engine: every posting votes, with the weight of its set."""
    b2, bayes, posterior = (Basis.of(matcher, table, options, merge) for merge in ("b2", "bayes", "posterior"))
    return {
        "b1": b2.votes,
        "b2": np.where(b2.in_all, b2.votes, 0.0),
        "bayes": bayes.bayes(bayes.sets.ratio),
        "posterior": posterior.posterior(posterior.sets.ratio, posterior.sets.joint_ratio),
    }


def once(matcher: Matcher, table: MatchTable, options: ScoringOptions) -> Weights:
    """Return the rules with sets of images and one vote per image and list: the best posting votes for all."""
    basis = Basis.of(matcher, table, replace(options, sets="image"), "bayes")
    basis = replace(basis, votes=one_per_list(table, matcher.terms(table, options)).sum(axis=1))
    return {
        "b1, once": basis.votes,
        "b2, once": np.where(basis.in_all, basis.votes, 0.0),
        "bayes, once": basis.bayes(basis.sets.ratio),
        "posterior, once": basis.posterior(basis.sets.ratio, basis.sets.joint_ratio),
    }


def one_per_list(table: MatchTable, terms: Floats64) -> Floats64:
    """Keep the largest term of each query feature, image and list, and set the others to 0 [m, K]."""
    kept = np.zeros(terms.shape)
    for k in range(terms.shape[1]):
        order = np.argsort(-terms[:, k], kind="stable")
        best = order[np.unique(table.pair[order], return_index=True)[1]]
        kept[best, k] = terms[best, k]
    return kept


def exclusive(matcher: Matcher, table: MatchTable, options: ScoringOptions) -> Weights:
    """Return the rules with "k, and only k" taken literally: elements of further lists do not count in a ratio."""
    bayes, posterior = (Basis.of(matcher, table, options, merge) for merge in ("bayes", "posterior"))
    return {
        "bayes, exclusive": bayes.bayes(_exclusive_ratio(bayes.sets)),
        "posterior, exclusive": posterior.posterior(_exclusive_ratio(posterior.sets), posterior.sets.joint_ratio),
    }


def _exclusive_ratio(sets: MatchSets) -> Floats64:
    return np.asarray(exclusive_ratios(sets.counts)[sets.query, sets.mask])


def exclusive_ratios(counts: Counts) -> Floats64:
    """Return |in these lists and no other| / |in some of these lists and no other| of every set [Q, 2^K]."""
    below = counts.astype(np.float64)
    masks = np.arange(counts.shape[1])
    below[:, 0] = 0
    for bit in (1 << k for k in range(counts.shape[1].bit_length() - 1)):
        above = masks[masks & bit != 0]
        below[:, above] += below[:, above ^ bit]
    result: Floats64 = np.divide(counts, below, out=np.zeros(counts.shape), where=below > 0)
    return result


def after_test(matcher: Matcher, table: MatchTable, options: ScoringOptions) -> Weights:
    """Return the rules with lists that hold only the features within the Hamming threshold."""
    assert options.hamming is not None, "sets after the Hamming test need a threshold"
    after = replace(table, shared=near(table, options.hamming))
    return {f"{name}, sets after the test": weights for name, weights in rules(matcher, after, options).items() if name != "b1"}


def pair_idf(matcher: Matcher, table: MatchTable, options: ScoringOptions) -> Weights:
    """Return `b2` with the idf of the words together: ln(N / elements in all lists) in place of the idf of each word."""
    basis = Basis.of(matcher, table, replace(options, idf="none"), "b2")
    together = np.ones(len(table.words))
    if options.idf != "none":
        holders = np.maximum(basis.sets.counts[:, -1], 1)
        together = np.maximum(np.log(table.n_images / holders), 0.0) ** options.idf_power
    return {"b2, idf of the pair": np.where(basis.in_all, together[table.query] * basis.votes, 0.0)}


def shuffled(matcher: Matcher, table: MatchTable, options: ScoringOptions) -> Weights:
    """Return the rules with the ratios of another query feature."""
    other = another(len(table.words))[table.query]
    bayes, posterior = (Basis.of(matcher, table, options, merge) for merge in ("bayes", "posterior"))
    ratio, joint = posterior.sets.ratios[other, posterior.sets.mask], posterior.sets.ratios[other, -1]
    return {
        "bayes, r shuffled": bayes.bayes(bayes.sets.ratios[other, bayes.sets.mask]),
        "posterior, r shuffled": posterior.posterior(ratio, joint),
    }


def another(count: int) -> Counts:
    """Return a permutation of 0 .. count - 1 that leaves no number in its place, if there are two or more."""
    order = np.random.default_rng(0).permutation(count)
    result = np.empty(count, np.int64)
    result[order] = np.roll(order, 1)
    return result


def median(matcher: Matcher, table: MatchTable, options: ScoringOptions) -> Weights:
    """Return the rules with the median ratio of all query features, for each set of lists."""
    bayes, posterior = (Basis.of(matcher, table, options, merge) for merge in ("bayes", "posterior"))
    middle = _medians(posterior.sets)
    return {
        "bayes, r = its median": bayes.bayes(_medians(bayes.sets)[bayes.sets.mask]),
        "posterior, r = its median": posterior.posterior(middle[posterior.sets.mask], middle[-1:]),
    }


def _medians(sets: MatchSets) -> Floats64:
    """Return the median over the query features of the ratio of every set of lists [2^K]; 0 without query features."""
    return np.asarray(np.median(sets.ratios, axis=0) if len(sets.ratios) else np.zeros(sets.ratios.shape[1]))


def constant(matcher: Matcher, table: MatchTable, options: ScoringOptions) -> Weights:
    """Return constant weights in the intersection, 1 outside, with the sets of `bayes`."""
    basis = Basis.of(matcher, table, options, "bayes")
    return {f"constant {c:g} in the intersection": basis.weighted(c) for c in CONSTANTS}


def parts(matcher: Matcher, table: MatchTable, options: ScoringOptions) -> Weights:
    """Return the parts of `posterior` = d(r) * (w(r) / d(r) in the intersection, 1 outside), and w(r) everywhere."""
    basis = Basis.of(matcher, table, options, "posterior")
    w, d = basis.model.intersection(basis.sets.ratio), basis.model.difference(basis.sets.joint_ratio)
    return {
        "d(r) on both sets: the query feature's weight alone": basis.weighted(d, d),
        "w / d: the contrast of the sets alone": basis.weighted(w / d),
        "w(r) on both sets": basis.votes * basis.model.intersection(basis.sets.joint_ratio),
    }


def differences(matcher: Matcher, table: MatchTable, options: ScoringOptions) -> Weights:
    """Return `posterior` with every choice of w_diff, which differ for three vocabularies or more."""
    basis = Basis.of(matcher, table, options, "posterior")
    sets, model = basis.sets, basis.model
    pairs, pooled, at_zero = pair_ratios(sets), pooled_ratios(sets.counts)[sets.query], float(model.difference(np.zeros(1))[0])
    w = model.intersection(sets.ratio)
    return {
        "posterior, w_diff by the mean pair ratio": basis.posterior(sets.ratio, pairs.mean(axis=1)),
        "posterior, w_diff by the largest pair ratio": basis.posterior(sets.ratio, pairs.max(axis=1)),
        "posterior, w_diff by the pooled ratio": basis.posterior(sets.ratio, pooled),
        "posterior, both by the pooled ratio": basis.posterior(pooled, pooled),
        "posterior, both by the ratio of all lists": basis.posterior(sets.joint_ratio, sets.joint_ratio),
        "posterior, w_diff at ratio 0": basis.weighted(w, at_zero),
        **{f"posterior, w_diff at ratio 0, times {times:g}": basis.weighted(w, times * at_zero) for times in MULTIPLES},
    }


def pair_ratios(sets: MatchSets) -> Floats64:
    """Return the ratios of the pairs of lists that hold the first list of each match's set [m, K - 1]."""
    n_vocabularies = sets.counts.shape[1].bit_length() - 1
    first = np.argmax(sets.mask[:, None] >> np.arange(n_vocabularies) & 1, axis=1)
    every = np.arange(n_vocabularies)
    partners = np.stack([np.delete(every, k) for k in every])[first]  # [m, K - 1]
    return np.asarray(sets.ratios[sets.query[:, None], (1 << first)[:, None] | 1 << partners])


def pooled_ratios(counts: Counts) -> Floats64:
    """Return |in two lists or more| / |union| of each query feature [Q], from the number of elements of every exact set."""
    several = np.bitwise_count(np.arange(counts.shape[1])) >= 2
    return np.asarray(counts[:, several].sum(axis=1) / np.maximum(counts[:, 1:].sum(axis=1), 1))
