// Search options in links: a preset, and the options that differ from it. Names, help, types and limits come from the server.

export const TOP = 24; // hits, unless the link sets another number
export const MAX_TOP = 192;
export const MIN_PROBABILITY = "min_probability";

const QUERY_PARAMS = ["query", "region"];

/**
 * @typedef {object} Option
 * @property {string} name
 * @property {string} help
 * @property {"string" | "integer" | "number" | "boolean"} type
 * @property {string[]} [choices]
 * @property {number} [minimum]
 * @property {number} [maximum]
 * @property {string} [pattern] of a string
 * @property {boolean} nullable whether "none" is a value
 */

/** The search options as the server describes them: `/about` has help and choices, the parameters of POST /search types and limits. */
export function readOptions(about, openapi) {
  const { parameters } = openapi.paths["/search"].post;
  return parameters.filter(({ name }) => name in about.presets.default).map((parameter) => readOption(about, parameter));
}

/** The names of all search options. @returns {string[]} */
function optionNames(about) {
  return about.options.map(({ name }) => name);
}

/** The parameters of a link that belong to a search request. @param {URLSearchParams} params */
export function searchParams(about, params) {
  return pick(params, [...QUERY_PARAMS, "preset", ...optionNames(about)]);
}

/** The parameters of a link that are search options, without the query. @param {URLSearchParams} params */
export function optionParams(about, params) {
  return pick(params, ["preset", ...optionNames(about)]);
}

/** The values of all options for a link, as strings. @param {URLSearchParams} params */
export function effectiveValues(about, params) {
  const preset = presetOf(about, params);
  return Object.fromEntries(optionNames(about).map((name) => [name, params.get(name) ?? asText(preset[name])]));
}

/** The same parameters with an option changed; a value that the preset has is left out. */
export function withOption(about, params, name, value) {
  const next = new URLSearchParams(params);
  if (asText(presetOf(about, params)[name]) === String(value)) next.delete(name);
  else next.set(name, String(value));
  return next;
}

/** The same parameters with a preset and no changed options; the query and the number of hits stay. */
export function withPreset(about, params, preset) {
  const next = pick(
    params,
    [...params.keys()].filter((name) => name === "top" || !optionNames(about).includes(name)),
  );
  if (preset === "default") next.delete("preset");
  else next.set("preset", preset);
  return next;
}

/** The options that differ from the preset. @returns {string[]} */
export function changedOptions(about, params) {
  return optionNames(about).filter((name) => name !== "top" && params.has(name));
}

/** The options as text: "default", "fast, merge b1". */
export function optionsText(about, params) {
  const preset = params.get("preset") ?? "default";
  return [preset, ...changedOptions(about, params).map((name) => `${label(name)} ${params.get(name)}`)].join(", ");
}

/** What the choice "auto" of the option `sets` means for a rule: "auto — images". */
export function autoSetsText(about, merge) {
  return `auto — ${about.image_sets.includes(merge) ? "images" : "features"}`;
}

/** The label of an option. */
export const label = (name) => name.replaceAll("_", " ");

function readOption(about, { name, description, schema }) {
  const variants = (schema.anyOf ?? [schema]).filter(({ type }) => type !== "null");
  const { type, minimum, exclusiveMinimum, maximum, pattern } = variants[0];
  const nullable = variants.some((variant) => variant.const === "none");
  const help = about.texts?.[name] ?? description ?? "";
  const choices = about.choices[name]; // those that the index has the codes, words or signatures for
  return { name, help, type, choices, minimum: minimum ?? exclusiveMinimum, maximum, pattern, nullable };
}

function presetOf(about, params) {
  return about.presets[params.get("preset") ?? "default"] ?? about.presets.default;
}

function asText(value) {
  if (value === null) return "none";
  return Array.isArray(value) ? value.join(",") : String(value);
}

function pick(params, names) {
  const wanted = new Set(names);
  return new URLSearchParams([...params].filter(([name]) => wanted.has(name)));
}
