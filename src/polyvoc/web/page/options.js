// What do the parameters of a link say about how to search? A preset, and what was changed on top of it.

export const PRESETS = ["fast", "default", "best"];
export const TOP = 24; // hits that the page asks for, unless the link says otherwise
export const MOST = 192; // hits that it asks for at most

const OF_QUERY = ["query", "region"];

/** The names of all search options. @returns {string[]} */
export function optionNames(about) {
  return Object.keys(about.presets.default).filter((name) => name !== "evidence");
}

/** The part of a link's parameters that the server is asked with. @param {URLSearchParams} params */
export function searchPart(about, params) {
  return pick(params, [...OF_QUERY, "preset", ...optionNames(about)]);
}

/** The part that says how to search, without the photograph. @param {URLSearchParams} params */
export function rulesPart(about, params) {
  return pick(params, ["preset", ...optionNames(about)]);
}

/** All options that are used with these parameters, as strings. @param {URLSearchParams} params */
export function effective(about, params) {
  const preset = about.presets[params.get("preset") ?? "default"] ?? about.presets.default;
  const values = {};
  for (const name of optionNames(about)) values[name] = params.get(name) ?? asText(preset[name]);
  return values;
}

/** The same parameters with an option changed; what the preset says anyway is left out. */
export function changed(about, params, name, value) {
  const next = new URLSearchParams(params);
  const preset = about.presets[params.get("preset") ?? "default"] ?? about.presets.default;
  if (asText(preset[name]) === String(value)) next.delete(name);
  else next.set(name, String(value));
  return next;
}

/** The same parameters with a preset and nothing on top of it; the photograph and the number of hits stay. */
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
export function overridden(about, params) {
  return optionNames(about).filter((name) => name !== "top" && params.has(name));
}

/** The rules in a few words: "default", "fast, merge b1". */
export function inWords(about, params) {
  const preset = params.get("preset") ?? "default";
  return [preset, ...overridden(about, params).map((name) => `${name} ${params.get(name)}`)].join(", ");
}

function asText(value) {
  if (value === null) return "none";
  return Array.isArray(value) ? value.join(",") : String(value);
}

function pick(params, names) {
  const wanted = new Set(names);
  return new URLSearchParams([...params].filter(([name]) => wanted.has(name)));
}
