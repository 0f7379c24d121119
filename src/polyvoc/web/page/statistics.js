// The statistics view: key figures, tables, and the distributions behind the weights as plots.

import { getJson } from "./api.js";
import { el, heading, segmented } from "./elements.js";
import { baseName, count, formatBytes, formatInteger, formatNumber, kindsText, reasonText } from "./format.js";
import { showError } from "./messages.js";
import { bars, histogram } from "./plots.js";

const RATIO_TEXT = [
  "In each vocabulary a feature belongs to a word, and the word has a list of all features with this word.",
  "The cardinality ratio is the size of the intersection of these lists, divided by the size of their union:",
  "1 if the lists are equal, near 0 if they are nearly independent.",
  "Merging rules weight a match by it, so that correlated vocabularies do not count the same match twice.",
].join(" ");
const LENGTH_TEXT = [
  "The list of a word holds every feature of the collection with this word;",
  "a search by words reads one list per query feature and vocabulary.",
  "Words with long lists are common, so their idf weight is low.",
  "Searches are fast if few lists are very long.",
].join(" ");

/** @type {import("./router.js").Route} */
export function statisticsView(params, { about, signal }) {
  const body = el("div", { id: "statistics" }, el("p", { class: "state" }, "Loading …"));
  const load = async () => {
    try {
      const info = await getJson("/statistics", {}, { signal });
      body.replaceChildren(...(info.indexes ? several(info) : sections(info)));
    } catch (error) {
      body.replaceChildren();
      showError(error, load);
    }
  };
  load();
  const title = about.indexes.length > 1 ? "The indexes" : "The index";
  return { element: el("div", { class: "statistics" }, heading(title), body), title: "Statistics" };
}

/** All indexes in a table, and the sections of one of them. */
function several({ photographs, indexes }) {
  const head = ["index", "kind", "photographs", "features", "on disk", "commit"];
  const rows = indexes.map(({ index, kind, images, features, bytes, commit }) => [
    index,
    kind.name,
    formatInteger(images),
    formatInteger(features),
    formatBytes(bytes.total),
    String(commit),
  ]);
  const details = el("div", {}, ...sections(indexes[0]));
  const text = `${count(photographs, "photograph")} in ${count(indexes.length, "index", "indexes")}; one in several counts once.`;
  const choice = segmented({
    legend: "Details of",
    name: "index",
    value: "0",
    choices: indexes.map(({ index }, i) => [String(i), baseName(index), index]),
    onChange: (i) => details.replaceChildren(...sections(indexes[i])),
  });
  return [el("div", { class: "statistics" }, el("p", { class: "prose" }, text), table(head, rows), choice, details)];
}

function sections(info) {
  return [
    cards(info),
    folders(info),
    problems(info),
    ratios(info),
    listLengths(info),
    storage(info),
    vocabularies(info),
    defaults(info),
  ].filter(Boolean);
}

function cards(info) {
  const perImage = info.images ? info.features / info.images : 0;
  const fine = info.fine_vocabulary;
  const entries = [
    [formatInteger(info.images), "photographs", baseName(info.index)],
    [formatInteger(info.features), "features", `${formatInteger(Math.round(perImage))} per photograph`],
    [
      formatInteger(info.vocabularies.length),
      info.vocabularies.length === 1 ? "vocabulary" : "vocabularies",
      [...new Set(info.vocabularies.map(({ size }) => `of ${formatInteger(size)} words`))].join(", "),
    ],
    ...(fine ? [[formatInteger(fine.size), "fine words", `codes of ${fine.bits} bits refer to them`]] : []),
    [
      formatBytes(info.bytes.total),
      "on disk",
      info.bytes_per_feature ? `${formatNumber(info.bytes_per_feature)} bytes per feature` : "",
    ],
    [
      formatInteger(info.segments),
      info.segments === 1 ? "segment" : "segments",
      `${formatInteger(info.deleted)} deleted photographs in them`,
    ],
    [`${info.commit}`, "commit", `format ${info.format}`],
  ];
  return el(
    "ul",
    { class: "cards", "aria-label": "Summary" },
    ...entries.map(([value, name, note]) =>
      el("li", {}, el("b", {}, value), el("span", {}, name), el("span", { class: "soft small path" }, note)),
    ),
  );
}

function folders({ folders: all = [], skipped = {} }) {
  const rows = all.map(({ path, photographs, available }) => [
    path,
    formatInteger(photographs) + (available ? "" : "; the folder was not there, or empty, at the last update"),
  ]);
  if (!rows.length) return null;
  const other = Object.keys(skipped).length ? `Other files in them were skipped: ${kindsText(skipped)}.` : null;
  return section("Folders", other, table(["folder", "photographs"], rows));
}

function ratios({ ratios: all = [], sampled_features: sampled, vocabularies }) {
  if (!all.length) return section("Cardinality ratio", "Needs at least two vocabularies.");
  const plots = all.map(({ vocabularies: members, edges, counts, mean }) =>
    histogram({
      title: members.length === vocabularies.length && vocabularies.length > 2 ? "All vocabularies" : `Vocabularies ${members.join(" and ")}`,
      edges,
      counts,
      xLabel: "cardinality ratio",
      yLabel: "features (logarithmic)",
      tail: true,
      mark: { at: mean, text: `mean ${formatNumber(mean)}` },
    }),
  );
  return section(
    "Overlap of the lists",
    `${RATIO_TEXT} Measured on ${count(sampled, "sampled feature")}.`,
    el("div", { class: "plots", id: "ratio-plots" }, ...plots),
  );
}

function listLengths({ list_lengths: all = [] }) {
  if (!all.length) return section("Length of the lists", "Needs at least one vocabulary.");
  const plots = all.map(({ edges, counts, median, longest, empty }, i) =>
    histogram({
      title: `Vocabulary ${i + 1}`,
      edges,
      counts,
      xLabel: "length of the list (logarithmic)",
      yLabel: "words",
      logarithmic: true,
      mark: { at: Math.max(1, median), text: `median ${formatInteger(median)}` },
      note: `Longest ${formatInteger(longest)}, ${formatInteger(empty)} empty.`,
    }),
  );
  return section("Length of the lists", LENGTH_TEXT, el("div", { class: "plots", id: "length-plots" }, ...plots));
}

function storage({ bytes: stored }) {
  const kinds = Object.entries(stored).filter(([kind, value]) => kind !== "total" && value > 0);
  return section(
    "Disk space",
    null,
    bars(
      kinds.map(([kind, value]) => [kind.replace("segments/", ""), value]),
      formatBytes,
    ),
  );
}

function vocabularies({ vocabularies: all, fine_vocabulary: fine }) {
  const head = ["vocabulary", "words", "dimension", "bits", "trained on", "fingerprint"];
  const named = [...all.map((one, i) => [`vocabulary ${i + 1}`, one]), ...(fine ? [["fine, of codes", fine]] : [])];
  const rows = named.map(([name, { size, dimension, bits, provenance, fingerprint }]) => [
    name,
    formatInteger(size),
    String(dimension),
    String(bits),
    provenance?.source ?? `${formatInteger(provenance?.photographs ?? 0)} photographs`,
    fingerprint,
  ]);
  return section("Vocabularies", null, table(head, rows));
}

function defaults({ default_options: options, feature_options: features }) {
  const rows = Object.entries({ ...options, ...features }).map(([name, value]) => [
    name,
    value === null ? "none" : typeof value === "object" ? JSON.stringify(value) : String(value),
  ]);
  return section(
    "Default options",
    "Options of a search unless others are given, and of feature extraction.",
    el("dl", { class: "pairs" }, ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
  );
}

function problems({ problems: all = [] }) {
  if (!all.length) return section("Problems", "None: all files were indexed.");
  const shown = all.slice(0, 200);
  return section(
    "Problems",
    `${count(all.length, "file")} could not be indexed${all.length > shown.length ? `; the first ${shown.length}` : ""}:`,
    table(
      ["file", "reason"],
      shown.map((problem) => [problem.path, reasonText(problem)]),
    ),
  );
}

function section(title, text, ...rest) {
  return el("section", { class: "part" }, el("h2", {}, title), text && el("p", { class: "prose" }, text), ...rest);
}

function table(head, rows) {
  return el(
    "div",
    { class: "table-box", tabindex: "0", role: "region", "aria-label": head.join(", ") },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...head.map((text) => el("th", { scope: "col" }, text)))),
      el(
        "tbody",
        {},
        ...rows.map((cells) => el("tr", {}, ...cells.map((text, i) => el(i ? "td" : "th", i ? {} : { scope: "row" }, text)))),
      ),
    ),
  );
}
