// Explanations: the matches of an index, or of several kinds of features, as one list with a colour for each group.

import { bitCount, count, formatInteger, formatPercent } from "./format.js";

const KINDS = 4; // colours of kinds of features
const SET_NAMES = { all: "all (intersection)", several: "several", one: "one only" };
const SETS = Object.keys(SET_NAMES); // most reliable first

/**
 * @typedef {object} Group matches with a colour of their own
 * @property {string} id class of its matches and swatches
 * @property {string} name
 */

/**
 * The evidence of GET /explain: `matches`, highest weight first, each with the part that it belongs to, its weight relative to
 * the largest one of the part, and its group: by sets of vocabularies, or on a server of several indexes by kinds of features.
 * Weights of different kinds cannot be compared: their matches take turns.
 * @param {any} answer
 */
export function readEvidence(answer) {
  const isJoint = Boolean(answer.parts);
  const parts = answer.parts ?? [answer];
  const matches = parts.flatMap((part, i) => matchesOf(part, isJoint ? kindGroup(i) : null));
  matches.sort((a, b) => a.rank - b.rank);
  const most = parts.reduce((best, part) => (part.outline && part.inliers > (best?.inliers ?? -1) ? part : best), null);
  return {
    query: answer.query,
    image: answer.image,
    parts,
    matches,
    outline: most?.outline ?? null,
    ...(isJoint ? kindsOf(parts) : setsOf(answer)),
  };
}

/** Whether a match is in its set by its image: it shares fewer words, other features of the image share the others. */
export const isByImage = (match) => match.set_mask !== match.mask;

/** Whether matches of a part are in sets of vocabularies: not with codes, or where one vocabulary votes. */
export const hasSets = ({ n_vocabularies: vocabularies }) => vocabularies > 1;

/** The class of a set of vocabularies: all of them, several, or one. */
function setOf(match) {
  const lists = bitCount(match.set_mask);
  if (lists === match.part.n_vocabularies) return "all";
  return lists > 1 ? "several" : "one";
}

/** The evidence as one sentence for each part. */
export function summaryText({ parts }) {
  return parts.map((part) => (part.kind ? `${part.kind}: ${partText(part)}` : partText(part))).join(" ");
}

function matchesOf(part, group) {
  const largest = Math.max(...part.matches.map(({ weight }) => weight), 1e-12);
  return part.matches.map((match, rank) => {
    const own = { ...match, part, rank, strength: match.weight / largest };
    return { ...own, group: group ?? setOf(own) };
  });
}

const kindGroup = (i) => `kind-${i % KINDS}`;

/** @returns {{title: string, groups: Group[]}} */
function kindsOf(parts) {
  return { title: "Kinds of features", groups: parts.map(({ kind }, i) => ({ id: kindGroup(i), name: kind })) };
}

/** @returns {{title: string, groups: Group[]}} */
function setsOf({ n_vocabularies: vocabularies, image_sets: imageSets }) {
  const present = vocabularies > 1 ? SETS.filter((set) => vocabularies >= { all: 1, one: 2, several: 3 }[set]) : [];
  return {
    title: imageSets ? "Image in the lists of vocabularies" : "Same word in vocabularies",
    groups: present.map((id) => ({ id, name: SET_NAMES[id] })),
  };
}

function partText({ matches, inliers, score, n_matches: total }) {
  if (total === 0) return "No matching features.";
  const text = count(total, "match", "matches");
  if (inliers === 0) return `${text}, not consistent with any geometric transform.`;
  const weight = matches.filter((match) => match.inlier).reduce((sum, match) => sum + match.weight, 0);
  const share = formatPercent(weight / score);
  return `${formatInteger(inliers)} of ${text} are consistent with one geometric transform, with ${share} of the total weight.`;
}
