// Search requests, streamed so that the ranking by score appears first, and a cache of results for going back.

import { stream } from "./api.js";
import { ApiError } from "./errors.js";
import { count } from "./format.js";
import { TOP, searchParams } from "./options.js";

const MAX_CACHED = 16;
const MAX_AGE = 5 * 60 * 1000; // ms; the collection may change

/**
 * @typedef {object} Hit
 * @property {number} image
 * @property {string} path
 * @property {number} score
 * @property {number} inliers
 * @property {number[][] | null} outline corners of the query or its region, in pixels of this image
 * @property {number} width of this image
 * @property {number} height
 * @property {number | null} probability of showing the same thing; null: not available
 */
/**
 * @typedef {object} SearchResult
 * @property {string} query
 * @property {number[] | null} region
 * @property {Record<string, any>} options
 * @property {Hit[]} hits
 * @property {boolean} complete whether all images were searched
 * @property {number[][]} missing id ranges of those that were not, because they are damaged or their machines are unavailable
 * @property {string[]} damage one line if some are damaged
 * @property {Record<string, number>} seconds by stage
 */

/** @type {Map<string, {result: SearchResult, when: number}>} */
const cache = new Map();

/**
 * Search. `onScored` receives the ranking by score if verification follows.
 * @param {any} about
 * @param {URLSearchParams} params of the link
 * @param {{signal: AbortSignal, onScored?: (result: SearchResult) => void}} how
 * @returns {Promise<SearchResult>}
 */
export async function search(about, params, { signal, onScored }) {
  const request = requestParams(about, params);
  const cached = cachedResult(request.toString());
  if (cached) return cached;
  let result = null;
  await stream("/search", request, {
    signal,
    onLine: (line) => {
      if (line.stage === "failed") throw new ApiError(line.error, 422);
      if (line.stage === "done") result = line;
      else onScored?.(line);
    },
  });
  if (!result) throw new ApiError("The response was incomplete; try again.", 0);
  if (result.complete) cacheResult(request.toString(), result);
  return result;
}

/** A note about images that were not searched; empty if there are none. @param {SearchResult} result */
export function missingText({ complete, missing, damage }) {
  if (complete) return "";
  const images = missing.reduce((sum, [first, last]) => sum + last - first + 1, 0);
  return ` · ${count(images, "photograph")} not searched: ${damage[0] ?? "machines unavailable"}`;
}

/** The duration of a search over all stages. @param {SearchResult} result */
export function totalSeconds(result) {
  return Object.values(result.seconds).reduce((sum, seconds) => sum + seconds, 0);
}

/** Clear the cache after a change of the collection. */
export function clearResults() {
  cache.clear();
}

function requestParams(about, params) {
  const request = searchParams(about, params);
  if (!request.has("top")) request.set("top", String(TOP));
  request.sort();
  return request;
}

function cachedResult(key) {
  const entry = cache.get(key);
  return entry && Date.now() - entry.when < MAX_AGE ? entry.result : null;
}

function cacheResult(key, result) {
  cache.delete(key);
  cache.set(key, { result, when: Date.now() });
  if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
}
