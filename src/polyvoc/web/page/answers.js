// What did the server answer? Asked as a stream, so that a first ranking shows early; the last answers are kept for "back".

import { stream } from "./api.js";
import { ApiError } from "./failure.js";
import { TOP, searchPart } from "./options.js";
import { count } from "./words.js";

const KEPT = 16;
const FRESH = 5 * 60 * 1000; // ms; the collection may change

/**
 * @typedef {object} Hit
 * @property {number} image
 * @property {string} path
 * @property {number} score
 * @property {number} inliers
 * @property {number[][] | null} outline corners of what asks, in pixels of this photograph
 * @property {number} width of this photograph
 * @property {number} height
 * @property {number | null} probability of showing the same thing; null: nobody knows
 */
/**
 * @typedef {object} Answer
 * @property {string} query
 * @property {number[] | null} region
 * @property {Record<string, any>} options
 * @property {Hit[]} hits
 * @property {boolean} complete were all photographs asked?
 * @property {number[][]} missing ranges of ids of those that were not, since their machines do not answer
 * @property {Record<string, number>} seconds by stage
 */

/** @type {Map<string, {answer: Answer, when: number}>} */
const kept = new Map();

/**
 * Search. `onScored` gets the ranking by scores alone, if verification follows.
 * @param {any} about
 * @param {URLSearchParams} params of the link
 * @param {{signal: AbortSignal, onScored?: (answer: Answer) => void}} how
 * @returns {Promise<Answer>}
 */
export async function ask(about, params, { signal, onScored }) {
  const asked = parameters(about, params);
  const known = keptAnswer(about, params);
  if (known) return known;
  let answer = null;
  await stream("/search", asked, {
    signal,
    onLine: (line) => {
      if (line.stage === "failed") throw new ApiError(line.error, 422);
      if (line.stage === "done") answer = line;
      else onScored?.(line);
    },
  });
  if (!answer) throw new ApiError("The answer broke off; try again.", 0);
  if (answer.complete) keepAnswer(asked.toString(), answer);
  return answer;
}

/** The answer to the same question, if it was asked a short while ago. @returns {Answer | null} */
export function keptAnswer(about, params) {
  const entry = kept.get(parameters(about, params).toString());
  return entry && Date.now() - entry.when < FRESH ? entry.answer : null;
}

/** What is to be said of photographs that were not asked. @param {Answer} answer */
export function lacking(answer) {
  if (answer.complete) return "";
  const images = answer.missing.reduce((sum, [first, last]) => sum + last - first + 1, 0);
  return ` · ${count(images, "photograph")} not asked: their machines do not answer now`;
}

/** How long a search took, all stages together. @param {Answer} answer */
export function secondsOf(answer) {
  return Object.values(answer.seconds).reduce((sum, seconds) => sum + seconds, 0);
}

/** Forget all answers: the collection has changed. */
export function forgetAnswers() {
  kept.clear();
}

function parameters(about, params) {
  const asked = searchPart(about, params);
  if (!asked.has("top")) asked.set("top", String(TOP));
  asked.sort();
  return asked;
}

function keepAnswer(key, answer) {
  kept.delete(key);
  kept.set(key, { answer, when: Date.now() });
  if (kept.size > KEPT) kept.delete(kept.keys().next().value);
}
