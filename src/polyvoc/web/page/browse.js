// The browse view: the collection in pages of 60, filtered by name; adding and removing where the server allows it.

import { getJson } from "./api.js";
import { addPanel, removeButton } from "./edit.js";
import { button, el, heading, icon, linkButton } from "./elements.js";
import { baseName, count, formatInteger } from "./format.js";
import { imageInfo, thumbnail } from "./images.js";
import { announce, copyText, showError } from "./messages.js";
import { moveInGrid } from "./result_grid.js";
import { go, href } from "./router.js";
import { findForm } from "./start.js";

const PAGE_SIZE = 60;

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
      el("nav", { class: "row pager", "aria-label": "Pages (bottom)" }),
    ];
    this.form = findForm(params.get("find") ?? "");
    this.heading = heading("The collection");
    const parts = [this.heading, el("div", { class: "row spread" }, this.form, this.pagers[0])];
    if (about.write) parts.push(this.addSection());
    this.element = el("div", { class: "browse" }, ...parts, this.state, this.grid, this.pagers[1]);
    this.update(params);
  }

  /** Show another page or name. @param {URLSearchParams} params */
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

  addSection() {
    const panel = addPanel(this.about, this.signal, () => this.load());
    this.onFiles = panel.add;
    this.dropText = "Drop to add these photographs to the collection";
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
    this.state.textContent = "Loading …";
    try {
      this.show(await getJson("/images", { page: this.page - 1, size: PAGE_SIZE, find: this.find }, { signal }));
    } catch (error) {
      if (error.name === "AbortError") return;
      this.grid.replaceChildren();
      this.state.textContent = "";
      showError(error, () => this.load());
    }
  }

  show({ images, total, pages }) {
    const first = (this.page - 1) * PAGE_SIZE;
    if (!this.find) this.about.images = total;
    const shown = `, ${formatInteger(first + 1)} to ${formatInteger(first + images.length)} shown`;
    const named = this.find ? ` with “${this.find}” in their path` : "";
    this.state.textContent =
      total === 0
        ? `No photographs${named}.`
        : images.length === 0
          ? `There is no page ${this.page}; the last page is ${pages}.`
          : `${count(total, "photograph")}${named}${pages > 1 ? shown : ""}`;
    announce(this.state.textContent);
    this.grid.replaceChildren(...images.map((image) => this.tile(image)));
    for (const pager of this.pagers) this.showPager(pager, pages);
  }

  tile({ image, path, name, width, height, features }) {
    const label = name ?? baseName(path);
    const link = el(
      "a",
      { class: "tile-link", href: href("search", { query: image }), "aria-label": `Search with ${label}` },
      thumbnail(image, path, { alt: "" }),
    );
    const details = el(
      "details",
      { class: "tile-details" },
      el("summary", { "aria-label": `Details of ${label}` }, el("span", { class: "name", title: path }, label)),
      el("p", { class: "small" }, `image ${image}: ${width} × ${height}, ${count(features, "feature")}`),
      el("p", { class: "small path" }, path),
      el(
        "div",
        { class: "row" },
        button("Copy path", { class: "quiet", onclick: () => copyText(path, "Path copied.") }, "copy"),
        this.about.originals &&
          linkButton(
            "Original",
            `/images/${image}/file`,
            { class: "button quiet", target: "_blank", rel: "noopener" },
            "photo",
          ),
      ),
    );
    details.addEventListener("toggle", () => details.open && this.checkFile(details, image), { once: true });
    const tile = el("li", { class: "tile", data: { image } }, link, details);
    if (this.about.write) tile.append(removeButton(image, label, tile, this.signal, () => this.removed()));
    return tile;
  }

  /** Move the focus from the removed tile to the heading. */
  removed() {
    this.heading.focus({ preventScroll: true });
    this.load();
  }

  /** Add a note if the file of an image is missing. */
  async checkFile(details, image) {
    const info = await imageInfo(image).catch(() => null);
    if (info?.available === false) details.append(el("p", { class: "small problem" }, "The file is missing."));
  }

  showPager(pager, pages) {
    pager.hidden = pages < 2 && this.page === 1;
    const to = (page) => href("browse", { page: page > 1 ? page : null, find: this.find });
    const link = (label, page, symbol, enabled) =>
      enabled
        ? el("a", { class: "button quiet", href: to(page), "aria-label": label, title: label }, symbol)
        : el("span", { class: "button quiet off", "aria-hidden": "true" }, symbol);
    const field = el("input", {
      type: "number",
      min: 1,
      max: Math.max(1, pages),
      value: this.page,
      "aria-label": `Page (of ${pages})`,
    });
    field.addEventListener(
      "change",
      () => field.checkValidity() && go("browse", { page: field.value > 1 ? field.value : null, find: this.find }),
    );
    pager.replaceChildren(
      link("First page", 1, el("span", {}, icon("left"), icon("left")), this.page > 1),
      link("Previous page", this.page - 1, icon("left"), this.page > 1),
      field,
      el("span", { class: "soft" }, `of ${formatInteger(pages)}`),
      link("Next page", this.page + 1, icon("right"), this.page < pages),
      link("Last page", pages, el("span", {}, icon("right"), icon("right")), this.page < pages),
    );
  }
}
