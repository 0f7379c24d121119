// Details of one match: both patches magnified, its words, sets, ratio, weight and distances.

import { el, svg } from "./elements.js";
import { formatNumber, formatPercent } from "./format.js";
import { pictureUrl } from "./images.js";
import { hasSets, isByImage } from "./evidence.js";

const PATCH = 0.05; // half the width of a patch, relative to the long side of the image

/**
 * @param {any} explanation
 * @param {number} number index of the match
 * @param {string} query
 */
export function matchCard(explanation, number, query) {
  const match = explanation.matches[number];
  const { image } = explanation;
  const { part } = match;
  const swatch = `swatch ${match.group}`;
  return el(
    "div",
    { class: "card-body", data: { match: number } },
    el(
      "div",
      { class: "patches" },
      patch(pictureUrl(query, 1600), explanation.query, match.query_xy, "in the query"),
      patch(pictureUrl(image.image, 1600), image, match.image_xy, "in the hit"),
    ),
    el(
      "dl",
      { class: "details" },
      part.kind && detail("Kind", part.kind, swatch),
      hasSets(part) && detail("Sets", setsText(match), part.kind ? null : swatch),
      isByImage(match) && detail("This match", listsText(match)),
      detail("Weight", `${formatNumber(match.weight)} (${formatPercent(match.weight / part.score)} of the total)`),
      hasSets(part) && detail("Ratio", formatNumber(match.ratio)),
      detail("Geometry", match.inlier ? "consistent" : "not consistent"),
      ...(hasSets(part) ? [] : [detail("Word", String(match.words[0])), detail("Distance", distanceText(match, 0))]),
    ),
    hasSets(part) && wordsTable(match),
  );
}

/** The same as one sentence for screen readers. */
export function matchText(explanation, number) {
  const match = explanation.matches[number];
  const [sets, ratio] = hasSets(match.part)
    ? [`${setsText(match)}, `, `ratio ${formatNumber(match.ratio)}, `]
    : ["", `distance ${distanceText(match, 0)}, `];
  return (
    `Match ${number + 1}: ${match.part.kind ? `${match.part.kind}, ` : ""}${sets}` +
    (isByImage(match) ? `this match ${listsText(match)}, ` : "") +
    `weight ${formatNumber(match.weight)}, ${ratio}` +
    `geometry ${match.inlier ? "consistent" : "not consistent"}`
  );
}

function setsText(match) {
  const name = match.sets === "intersection" ? `intersection of all ${match.part.n_vocabularies}` : match.sets;
  return isByImage(match) ? `${name}, by its image` : name;
}

/** The vocabularies in which the two features have the same word: "vocabulary 2 only". */
function listsText(match) {
  const lists = match.words.flatMap((word, i) => (word === null ? [] : [i + 1]));
  return `vocabular${lists.length === 1 ? "y" : "ies"} ${lists.join(", ")} only`;
}

function patch(href, { width, height }, [x, y], where) {
  const half = PATCH * Math.max(width, height);
  return svg(
    "svg",
    { class: "patch", viewBox: `${x - half} ${y - half} ${2 * half} ${2 * half}`, role: "img", "aria-label": `Patch ${where}` },
    svg("image", { href, width, height, preserveAspectRatio: "none" }),
    svg("circle", { cx: x, cy: y, r: half / 3, class: "casing" }),
    svg("circle", { cx: x, cy: y, r: half / 3 }),
  );
}

function detail(name, value, mark) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, mark && el("span", { class: mark, "aria-hidden": "true" }), value));
}

const distanceText = (match, i) => (match.distances[i] === null ? "–" : String(match.distances[i]));

function wordsTable(match) {
  const rows = match.words.map((word, i) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, `vocabulary ${i + 1}`),
      el("td", {}, word === null ? "different words" : `word ${word}`),
      el("td", {}, distanceText(match, i)),
    ),
  );
  const head = ["", "word", "Hamming"].map((text) => el("th", { scope: "col" }, text));
  return el("table", { class: "words" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
}
