// What is known of one match? Its patches under a loupe, its words, sets, ratio, weight and Hamming distances.

import { setOf } from "./drawing.js";
import { el, svg } from "./elements.js";
import { pictureUrl } from "./photograph.js";
import { percent, three } from "./words.js";

const LOUPE = 0.05; // of the long side: half the width of what the loupe shows

/**
 * @param {any} explanation
 * @param {number} number of the match
 * @param {string} query
 */
export function matchCard(explanation, number, query) {
  const match = explanation.matches[number];
  const { query: asking, image, n_vocabularies: vocabularies } = explanation;
  return el(
    "div",
    { class: "card-body", data: { match: number } },
    el(
      "div",
      { class: "loupes" },
      loupe(pictureUrl(query, 1600), asking, match.query_xy, "in the photograph that asks"),
      loupe(pictureUrl(image.image, 1600), image, match.image_xy, "in the hit"),
    ),
    el(
      "dl",
      { class: "facts" },
      fact("Sets", setsInWords(match, vocabularies), `swatch ${setOf(match, vocabularies)}`),
      fact("Weight", `${three(match.weight)} (${percent(match.weight / explanation.score)} of all)`),
      fact("Ratio", three(match.ratio)),
      fact("Arrangement", match.inlier ? "agrees" : "does not agree"),
    ),
    wordsTable(match),
  );
}

/** The same in a sentence, for screen readers. */
export function matchInWords(explanation, number) {
  const match = explanation.matches[number];
  return (
    `Match ${number + 1}: ${setsInWords(match, explanation.n_vocabularies)}, ` +
    `weight ${three(match.weight)}, ratio ${three(match.ratio)}, ` +
    (match.inlier ? "agrees with the arrangement" : "does not agree")
  );
}

function setsInWords(match, vocabularies) {
  return match.sets === "intersection" && vocabularies > 1 ? `intersection of all ${vocabularies}` : match.sets;
}

function loupe(href, { width, height }, [x, y], where) {
  const half = LOUPE * Math.max(width, height);
  return svg(
    "svg",
    { class: "loupe", viewBox: `${x - half} ${y - half} ${2 * half} ${2 * half}`, role: "img", "aria-label": `Patch ${where}` },
    svg("image", { href, width, height, preserveAspectRatio: "none" }),
    svg("circle", { cx: x, cy: y, r: half / 3, class: "casing" }),
    svg("circle", { cx: x, cy: y, r: half / 3 }),
  );
}

function fact(name, value, mark) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, mark && el("span", { class: mark, "aria-hidden": "true" }), value));
}

function wordsTable(match) {
  const rows = match.words.map((word, i) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, `vocabulary ${i + 1}`),
      el("td", {}, word === null ? "words differ" : `word ${word}`),
      el("td", {}, match.distances[i] === null ? "–" : String(match.distances[i])),
    ),
  );
  const head = ["", "word", "Hamming"].map((text) => el("th", { scope: "col" }, text));
  return el("table", { class: "words" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...rows));
}
