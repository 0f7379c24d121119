// The input of one search option: a list of choices, a number, a checkbox, or a pair of numbers.

import { el } from "./elements.js";

const CHOICE_HELP = {
  merge: {
    codes: "one binary code per feature",
    likelihood: "log-likelihood ratio of each match",
    posterior: "complete Bayes rule",
    bayes: "Bayes rule of the paper",
    b0: "first vocabulary only",
    b1: "sum over all vocabularies",
    b2: "intersection of all vocabularies",
  },
  sets: { feature: "features", image: "images" },
};

/**
 * @typedef {object} OptionInput values are text, as in a link
 * @property {HTMLInputElement | HTMLSelectElement} input
 * @property {() => string | null} read null if the value is not valid
 * @property {(text: string) => void} write
 */

/** An input for an option. @param {import("./options.js").Option} option @returns {OptionInput} */
export function optionInput(option, attributes) {
  const { name, type, choices, minimum: min, maximum: max, pattern, nullable } = option;
  if (choices) return selectInput(choices, CHOICE_HELP[name] ?? {}, attributes);
  if (type === "boolean") return checkbox(attributes);
  if (type === "string") return textInput({ type: "text", pattern, title: "two numbers, separated by a comma", ...attributes });
  const number = { type: "number", min, max, step: type === "integer" ? 1 : "any", ...attributes };
  return nullable ? numberOrNone(number) : textInput(number);
}

function selectInput(choices, help, attributes) {
  const options = choices.map((key) => el("option", { value: key }, help[key] ? `${key} — ${help[key]}` : key));
  const input = el("select", attributes, ...options);
  return { input, read: () => input.value, write: (text) => void (input.value = text) };
}

function checkbox(attributes) {
  const input = el("input", { type: "checkbox", ...attributes });
  return { input, read: () => String(input.checked), write: (text) => void (input.checked = text === "true") };
}

function numberOrNone(attributes) {
  const input = el("input", { placeholder: "none", ...attributes });
  const read = () => (input.reportValidity() ? input.value || "none" : null);
  return { input, read, write: (text) => void (input.value = text === "none" ? "" : text) };
}

function textInput(attributes) {
  const input = el("input", { required: true, ...attributes });
  return { input, read: () => (input.reportValidity() ? input.value : null), write: (text) => void (input.value = text) };
}
