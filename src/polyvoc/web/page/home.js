// Where does a stranger begin? A large place for a photograph, and some of the collection to click.

import { getJson } from "./api.js";
import { button, el, heading, icon } from "./elements.js";
import { askWith, chooser } from "./intake.js";
import { tellError } from "./messages.js";
import { thumbnail } from "./photograph.js";
import { go, href } from "./router.js";
import { baseName, count } from "./words.js";

const SAMPLES = 12; // shown, out of a page: neighbours often show the same
const PAGE = 60;

/** @type {import("./router.js").Route} */
export function homeView(params, { about, signal }) {
  const samples = el("ul", { class: "samples", id: "samples", "aria-label": "Photographs of the collection" });
  const others = button("Others", { class: "quiet", onclick: () => showSamples(samples, about, signal) }, "swap");
  const element = el(
    "div",
    { class: "home" },
    el(
      "header",
      { class: "hero" },
      heading("Find the photographs that show the same thing"),
      el(
        "p",
        { class: "lead" },
        `The same building, object or print among ${count(about.images, "photograph")}: ` +
          "crops, near-copies, other viewpoints. And see why.",
      ),
    ),
    dropZone(about),
    el(
      "section",
      { class: "start", "aria-labelledby": "start-heading" },
      el("div", { class: "row spread" }, el("h2", { id: "start-heading" }, "Or start from one of these"), others),
      samples,
      findForm(),
    ),
  );
  if (about.images === 0) samples.replaceWith(el("p", {}, "The collection is empty: index photographs first."));
  else showSamples(samples, about, signal);
  return { element, title: "Search" };
}

/** A field that finds photographs of the collection by name. */
export function findForm(value = "") {
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
    go("browse", { find: input.value.trim() });
  });
  return form;
}

function dropZone(about) {
  const onFiles = (files) => askWith(about, files);
  return el(
    "section",
    { class: "dropzone", id: "dropzone", "aria-label": "Ask with a photograph" },
    el("div", { class: "frames" }, icon("photo", 56)),
    el(
      "p",
      { class: "big" },
      el("span", { class: "fine" }, "Drop a photograph here"),
      el("span", { class: "coarse" }, "Show a photograph"),
    ),
    el("p", { class: "soft fine" }, "or paste it with ", el("kbd", {}, "Ctrl"), " ", el("kbd", {}, "V"), ", or"),
    el(
      "div",
      { class: "row centre" },
      chooser("Choose a photograph", { id: "photo-input", sign: icon("upload"), onFiles }),
      chooser("Take a photograph", { id: "camera-input", sign: icon("camera"), camera: true, onFiles }),
    ),
    el("p", { class: "soft small" }, "It is sent to this server only, and forgotten when nobody has asked with it for an hour."),
  );
}

async function showSamples(list, about, signal) {
  const pages = Math.max(1, Math.floor(about.images / PAGE));
  const page = Math.floor(Math.random() * pages);
  list.replaceChildren(
    ...Array.from({ length: Math.min(SAMPLES, about.images) }, () =>
      el("li", { class: "skeleton", "aria-hidden": "true" }, el("span", { class: "thumbnail" })),
    ),
  );
  try {
    const { images } = await getJson("/images", { page, size: PAGE }, { signal });
    const step = Math.max(1, images.length / SAMPLES);
    const chosen = Array.from({ length: Math.min(SAMPLES, images.length) }, (_, i) => images[Math.floor(i * step)]);
    list.replaceChildren(...chosen.map(sample));
  } catch (error) {
    list.replaceChildren();
    tellError(error, () => showSamples(list, about, signal));
  }
}

function sample({ image, path }) {
  const label = `Ask with ${baseName(path)}`;
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
