// What does the index hold? Facts as cards and tables, and the distributions that its rules rest on as plots.

import { getJson } from "./api.js";
import { el, heading } from "./elements.js";
import { tellError } from "./messages.js";
import { bars, histogram } from "./plots.js";
import { baseName, bytes, count, three, whole } from "./words.js";

const RATIO_TEXT = [
  "Each vocabulary gives a feature a list of all features with the same word.",
  "The cardinality ratio is the size of what the lists share, divided by the size of all of them together:",
  "1 if the vocabularies say the same, near 0 if they know different things.",
  "The rules weigh a match by it, so that what is found twice for the same reason is not counted twice.",
].join(" ");
const LENGTH_TEXT = [
  "A word's list holds every feature of the collection that has this word;",
  "a search reads one list per feature and vocabulary.",
  "Words with long lists are common and say little, so the idf weighs them down.",
  "Few very long lists make searches fast.",
].join(" ");

/** @type {import("./router.js").Route} */
export function statisticsView(params, { signal }) {
  const body = el("div", { id: "statistics" }, el("p", { class: "state" }, "Counting …"));
  const load = async () => {
    try {
      body.replaceChildren(...sections(await getJson("/statistics", {}, { signal })));
    } catch (error) {
      body.replaceChildren();
      tellError(error, load);
    }
  };
  load();
  return { element: el("div", { class: "statistics" }, heading("The index"), body), title: "Statistics" };
}

function sections(facts) {
  return [
    cards(facts),
    ratios(facts),
    listLengths(facts),
    storage(facts),
    vocabularies(facts),
    defaults(facts),
    problems(facts),
  ];
}

function cards(facts) {
  const perImage = facts.images ? facts.features / facts.images : 0;
  const entries = [
    [whole(facts.images), "photographs", baseName(facts.index)],
    [whole(facts.features), "features", `${whole(Math.round(perImage))} per photograph`],
    [
      whole(facts.vocabularies.length),
      facts.vocabularies.length === 1 ? "vocabulary" : "vocabularies",
      `of ${[...new Set(facts.vocabularies.map(({ size }) => whole(size)))].join(", ")} words`,
    ],
    [
      bytes(facts.bytes.total),
      "on the disk",
      facts.bytes_per_feature ? `${three(facts.bytes_per_feature)} bytes per feature` : "",
    ],
    [
      whole(facts.segments),
      facts.segments === 1 ? "segment" : "segments",
      `${whole(facts.deleted)} deleted photographs in them`,
    ],
    [`${facts.commit}`, "commit", `format ${facts.format}`],
  ];
  return el(
    "ul",
    { class: "cards", "aria-label": "Facts" },
    ...entries.map(([value, name, note]) =>
      el("li", {}, el("b", {}, value), el("span", {}, name), el("span", { class: "soft small path" }, note)),
    ),
  );
}

function ratios({ ratios: all = [], sampled_features: sampled, vocabularies: known }) {
  if (!all.length) return section("Cardinality ratio", "With one vocabulary there is nothing to intersect.");
  const plots = all.map(({ vocabularies: members, edges, counts, mean }) =>
    histogram({
      title: members.length === known.length && known.length > 2 ? "All vocabularies" : `Vocabularies ${members.join(" and ")}`,
      edges,
      counts,
      xLabel: "cardinality ratio",
      yLabel: "features (logarithmic)",
      tail: true,
      mark: { at: mean, text: `mean ${three(mean)}` },
    }),
  );
  return section(
    "How much the lists overlap",
    `${RATIO_TEXT} Seen on ${count(sampled, "feature")} drawn from the collection.`,
    el("div", { class: "plots", id: "ratio-plots" }, ...plots),
  );
}

function listLengths({ list_lengths: all = [] }) {
  const plots = all.map(({ edges, counts, median, longest, empty }, i) =>
    histogram({
      title: `Vocabulary ${i + 1}`,
      edges,
      counts,
      xLabel: "length of the list (logarithmic)",
      yLabel: "words",
      logarithmic: true,
      mark: { at: Math.max(1, median), text: `median ${whole(median)}` },
      note: `Longest ${whole(longest)}, ${whole(empty)} empty.`,
    }),
  );
  return section("How long the lists are", LENGTH_TEXT, el("div", { class: "plots", id: "length-plots" }, ...plots));
}

function storage({ bytes: stored }) {
  const kinds = Object.entries(stored).filter(([kind, value]) => kind !== "total" && value > 0);
  return section(
    "Where the bytes are",
    null,
    bars(
      kinds.map(([kind, value]) => [kind.replace("segments/", ""), value]),
      bytes,
    ),
  );
}

function vocabularies({ vocabularies: all }) {
  const head = ["vocabulary", "words", "dimension", "bits", "trained on", "fingerprint"];
  const rows = all.map(({ size, dimension, bits, provenance, fingerprint }, i) => [
    `vocabulary ${i + 1}`,
    whole(size),
    String(dimension),
    String(bits),
    provenance?.source ?? `${whole(provenance?.photographs ?? 0)} photographs`,
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
    "What a search uses when nothing else is said, and how features are made.",
    el("dl", { class: "pairs" }, ...rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)))),
  );
}

function problems({ problems: all = [] }) {
  if (!all.length) return section("Problems", "Every file could be used.");
  const shown = all.slice(0, 200);
  return section(
    "Problems",
    `${count(all.length, "file")} could not be used${all.length > shown.length ? `; the first ${shown.length}` : ""}:`,
    table(
      ["file", "reason"],
      shown.map(({ path, reason }) => [path, reason]),
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
