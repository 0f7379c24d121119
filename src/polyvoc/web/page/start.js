// The start view: a large drop zone, and photographs of the collection to click.

import { getJson } from "./api.js";
import { button, el, heading, icon } from "./elements.js";
import { baseName, count } from "./format.js";
import { thumbnail } from "./images.js";
import { showError } from "./messages.js";
import { go, href } from "./router.js";
import { fileInput, searchWith } from "./upload.js";

const SAMPLES = 12; // evenly spaced in one page: neighbours often show the same
const PAGE_SIZE = 60;

/** @type {import("./router.js").Route} */
export function startView(params, { about, signal }) {
  const samples = el("ul", { class: "samples", id: "samples", "aria-label": "Photographs of the collection" });
  const others = button("Show others", { class: "quiet", onclick: () => showSamples(samples, about, signal) }, "swap");
  const element = el(
    "div",
    { class: "start" },
    el(
      "header",
      { class: "hero" },
      heading("Find the photographs that show the same thing"),
      el(
        "p",
        { class: "lead" },
        `Finds the same building, object or print among ${count(about.images, "photograph")}: ` +
          "crops, near-copies, other viewpoints. Every hit has its probability, and shows why it matches.",
      ),
    ),
    dropZone(about),
    el(
      "section",
      { class: "suggestions", "aria-labelledby": "start-heading" },
      el("div", { class: "row spread" }, el("h2", { id: "start-heading" }, "Or search with one of these"), others),
      samples,
      findForm(),
    ),
  );
  if (about.images === 0) samples.replaceWith(el("p", {}, "The collection is empty: index photographs first."));
  else showSamples(samples, about, signal);
  return { element, title: "Search" };
}

/** A form that filters the collection by name. */
export function findForm(value = "", filters = () => []) {
  const input = el("input", {
    type: "search",
    id: "find",
    data: { find: "" },
    value,
    placeholder: "part of a name",
    autocomplete: "off",
  });
  const form = el(
    "form",
    { class: "row find", role: "search" },
    el("label", { for: "find" }, "Find by name"),
    input,
    button("Find", { type: "submit" }, "search"),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    go("browse", { find: input.value.trim(), ...Object.fromEntries(filters()) });
  });
  return form;
}

function dropZone(about) {
  const onFiles = (files) => searchWith(about, files);
  return el(
    "section",
    { class: "dropzone", id: "dropzone", "aria-label": "Search with a photograph" },
    el("div", { class: "frames" }, icon("photo", 56)),
    el(
      "p",
      { class: "big" },
      el("span", { class: "fine" }, "Drop a photograph here"),
      el("span", { class: "coarse" }, "Search with a photograph"),
    ),
    el("p", { class: "soft fine" }, "or paste it with ", el("kbd", {}, "Ctrl"), " ", el("kbd", {}, "V"), ", or"),
    el(
      "div",
      { class: "row centre" },
      fileInput("Choose a photograph", { id: "photo-input", symbol: icon("upload"), onFiles }),
      fileInput("Take a photograph", { id: "camera-input", symbol: icon("camera"), camera: true, onFiles }),
    ),
    el("p", { class: "soft small" }, "It is sent to this server only and deleted one hour after its last use."),
  );
}

async function showSamples(list, about, signal) {
  const pages = Math.max(1, Math.floor(about.images / PAGE_SIZE));
  const page = Math.floor(Math.random() * pages);
  list.replaceChildren(
    ...Array.from({ length: Math.min(SAMPLES, about.images) }, () =>
      el("li", { class: "skeleton", "aria-hidden": "true" }, el("span", { class: "thumbnail" })),
    ),
  );
  try {
    const { images } = await getJson("/images", { page, size: PAGE_SIZE }, { signal });
    const step = Math.max(1, images.length / SAMPLES);
    const chosen = Array.from({ length: Math.min(SAMPLES, images.length) }, (_, i) => images[Math.floor(i * step)]);
    list.replaceChildren(...chosen.map(sample));
  } catch (error) {
    list.replaceChildren();
    showError(error, () => showSamples(list, about, signal));
  }
}

function sample({ image, path }) {
  const label = `Search with ${baseName(path)}`;
  return el(
    "li",
    {},
    el(
      "a",
      { href: href("search", { query: image }), "aria-label": label, title: label },
      thumbnail(image, path, { alt: "", eager: true }),
    ),
  );
}
