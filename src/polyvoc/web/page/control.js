// How is one option entered? By a list of its choices, a number, or a box to tick.

import { el } from "./elements.js";

const MERGE_HELP = {
  likelihood: "measured evidence of each match",
  posterior: "complete Bayes rule",
  bayes: "Bayes rule of the paper",
  b0: "first vocabulary only",
  b1: "plain sum of all",
  b2: "only where all agree",
};
// Of each number the least value and the step; and the largest value, if there is one.
const NUMBERS = {
  sigma: [1, "any"],
  verify: [0, 1],
  expand: [1, 1],
  assignments: [1, 1],
  c: [1, "any"],
  smooth: [0, "any"],
  sure: [0, "any", 1],
};

/**
 * @typedef {object} Control values are text, as in a link
 * @property {HTMLInputElement | HTMLSelectElement} input
 * @property {() => string | null} read null if what was entered cannot be used
 * @property {(text: string) => void} write
 */

/** An input that suits an option. @returns {Control} */
export function optionControl(about, option, attributes) {
  const choices = about.choices?.[option];
  if (choices) return choice(choices, option === "merge" ? MERGE_HELP : {}, attributes);
  if (option === "fuse") return tick(attributes);
  if (option === "hamming") return numberOrNone(about.bits, attributes);
  if (option in NUMBERS) {
    const [min, step, max = null] = NUMBERS[option];
    return written({ type: "number", min, step, max, ...attributes });
  }
  return written({ type: "text", pattern: "[^,]+,[^,]+", title: "two numbers, a comma between them", ...attributes });
}

function choice(choices, help, attributes) {
  const options = choices.map((key) => el("option", { value: key }, help[key] ? `${key} — ${help[key]}` : key));
  const input = el("select", attributes, ...options);
  return { input, read: () => input.value, write: (text) => void (input.value = text) };
}

function tick(attributes) {
  const input = el("input", { type: "checkbox", ...attributes });
  return { input, read: () => String(input.checked), write: (text) => void (input.checked = text === "true") };
}

function numberOrNone(most, attributes) {
  const input = el("input", { type: "number", min: 0, max: most, step: 1, placeholder: "none", ...attributes });
  const read = () => (input.reportValidity() ? input.value || "none" : null);
  return { input, read, write: (text) => void (input.value = text === "none" ? "" : text) };
}

function written(attributes) {
  const input = el("input", { required: true, ...attributes });
  return { input, read: () => (input.reportValidity() ? input.value : null), write: (text) => void (input.value = text) };
}
