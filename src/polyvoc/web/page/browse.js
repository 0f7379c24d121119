// What is in the collection? Sixty photographs at a time, found by name; where the server allows it, added and removed.

import { addPanel, removeButton } from "./additions.js";
import { getJson } from "./api.js";
import { button, el, heading, icon, linkButton } from "./elements.js";
import { findForm } from "./home.js";
import { announce, copyText, tellError } from "./messages.js";
import { factsOf, thumbnail } from "./photograph.js";
import { moveInGrid } from "./results.js";
import { go, href } from "./router.js";
import { baseName, count, whole } from "./words.js";

const SIZE = 60;

/** @type {import("./router.js").Route} */
export function browseView(params, context) {
  return new BrowseView(params, context);
}

class BrowseView {
  constructor(params, { about, signal }) {
    this.about = about;
    this.signal = signal;
    this.title = "Browse";
    this.state = el("p", { class: "state", id: "browse-state" });
    this.grid = el("ul", { class: "grid", id: "collection", "aria-label": "Photographs of the collection" });
    this.grid.addEventListener("keydown", (event) => moveInGrid(event, this.grid));
    this.pagers = [
      el("nav", { class: "row pager", "aria-label": "Pages" }),
      el("nav", { class: "row pager", "aria-label": "Pages, again" }),
    ];
    this.form = findForm(params.get("find") ?? "");
    this.heading = heading("The collection");
    const parts = [this.heading, el("div", { class: "row spread" }, this.form, this.pagers[0])];
    if (about.write) parts.push(this.additions());
    this.element = el("div", { class: "browse" }, ...parts, this.state, this.grid, this.pagers[1]);
    this.update(params);
  }

  /** Another page or another name. @param {URLSearchParams} params */
  update(params) {
    this.find = params.get("find") ?? "";
    this.page = Math.max(1, Math.floor(Number(params.get("page") ?? 1)) || 1);
    this.form.querySelector("input").value = this.find;
    this.ready = this.load();
    if (this.pagers.some((pager) => pager.contains(document.activeElement))) {
      scrollTo(0, 0);
      this.heading.focus();
    }
    return true;
  }

  additions() {
    const panel = addPanel(this.about, this.signal, () => this.load());
    this.takeFiles = panel.add;
    this.dropText = "Drop them: add these photographs to the collection";
    return panel.element;
  }

  async load() {
    this.loading?.abort();
    this.loading = new AbortController();
    const signal = AbortSignal.any([this.loading.signal, this.signal]);
    if (!this.grid.children.length)
      this.grid.replaceChildren(
        ...Array.from({ length: 12 }, () =>
          el("li", { class: "tile skeleton", "aria-hidden": "true" }, el("span", { class: "thumbnail" })),
        ),
      );
    this.state.textContent = "Looking …";
    try {
      this.show(await getJson("/images", { page: this.page - 1, size: SIZE, find: this.find }, { signal }));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.grid.replaceChildren();
      this.state.textContent = "";
      tellError(error, () => this.load());
    }
  }

  show({ images, total, pages }) {
    const first = (this.page - 1) * SIZE;
    if (!this.find) this.about.images = total;
    const shown = `, ${whole(first + 1)} to ${whole(first + images.length)} shown`;
    const named = this.find ? ` with “${this.find}” in their path` : "";
    this.state.textContent =
      total === 0
        ? `No photographs${named}.`
        : images.length === 0
          ? `There is no page ${this.page}: the last one is ${pages}.`
          : `${count(total, "photograph")}${named}${pages > 1 ? shown : ""}`;
    announce(this.state.textContent);
    this.grid.replaceChildren(...images.map((image) => this.tile(image)));
    for (const pager of this.pagers) this.showPager(pager, pages);
  }

  tile({ image, path, name, width, height, features }) {
    const label = name ?? baseName(path);
    const link = el(
      "a",
      { class: "tile-link", href: href("search", { query: image }), "aria-label": `Ask with ${label}` },
      thumbnail(image, path, { alt: "" }),
    );
    const facts = el(
      "details",
      { class: "tile-details" },
      el("summary", { "aria-label": `Details of ${label}` }, el("span", { class: "name", title: path }, label)),
      el("p", { class: "small" }, `image ${image}: ${width} × ${height}, ${count(features, "feature")}`),
      el("p", { class: "small path" }, path),
      el(
        "div",
        { class: "row" },
        button("Copy path", { class: "quiet", onclick: () => copyText(path, "The path is in the clipboard.") }, "copy"),
        this.about.originals &&
          linkButton(
            "Original",
            `/images/${image}/file`,
            { class: "button quiet", target: "_blank", rel: "noopener" },
            "photo",
          ),
      ),
    );
    facts.addEventListener("toggle", () => facts.open && this.checkFile(facts, image), { once: true });
    const tile = el("li", { class: "tile", data: { image } }, link, facts);
    if (this.about.write) tile.append(removeButton(image, label, tile, this.signal, () => this.removed()));
    return tile;
  }

  /** The tile that had the focus is gone. */
  removed() {
    this.heading.focus({ preventScroll: true });
    this.load();
  }

  /** Say if the file of an image is gone. */
  async checkFile(details, image) {
    const facts = await factsOf(image).catch(() => null);
    if (facts?.available === false) details.append(el("p", { class: "small problem" }, "Its file is not there any more."));
  }

  showPager(pager, pages) {
    pager.hidden = pages < 2 && this.page === 1;
    const to = (page) => href("browse", { page: page > 1 ? page : null, find: this.find });
    const link = (label, page, sign, possible) =>
      possible
        ? el("a", { class: "button quiet", href: to(page), "aria-label": label, title: label }, sign)
        : el("span", { class: "button quiet off", "aria-hidden": "true" }, sign);
    const field = el("input", {
      type: "number",
      min: 1,
      max: Math.max(1, pages),
      value: this.page,
      "aria-label": `Page, of ${pages}`,
    });
    field.addEventListener(
      "change",
      () => field.checkValidity() && go("browse", { page: field.value > 1 ? field.value : null, find: this.find }),
    );
    pager.replaceChildren(
      link("First page", 1, el("span", {}, icon("left"), icon("left")), this.page > 1),
      link("Previous page", this.page - 1, icon("left"), this.page > 1),
      field,
      el("span", { class: "soft" }, `of ${whole(pages)}`),
      link("Next page", this.page + 1, icon("right"), this.page < pages),
      link("Last page", pages, el("span", {}, icon("right"), icon("right")), this.page < pages),
    );
  }
}
