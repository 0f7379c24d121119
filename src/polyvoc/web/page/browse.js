// The browse view: the collection in pages of 60, filtered by name, folder and date; adding and removing where the server allows it.

import { getJson } from "./api.js";
import { addPanel, removeButton } from "./edit.js";
import { button, el, heading, iconLink, linkButton } from "./elements.js";
import { FilterFold, filterParams } from "./filters.js";
import { baseName, count, formatInteger } from "./format.js";
import { imageInfo, placeLine, thumbnail } from "./images.js";
import { Lightbox, OPEN } from "./lightbox.js";
import { announce, copyText, showError } from "./messages.js";
import { showPager } from "./pager.js";
import { moveInGrid } from "./result_grid.js";
import { go, href } from "./router.js";
import { selectAll, selectBox, selectionBar } from "./selection.js";
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
    this.images = [];
    this.params = params;
    this.lightbox = new Lightbox({ about, view: "browse", items: () => this.images, params: () => this.params });
    this.filters = new FilterFold({ params, onChange: (changes) => this.setFilters(changes) });
    this.form = findForm(params.get("find") ?? "", () => filterParams(this.params));
    this.heading = heading("The collection");
    const parts = [this.heading, el("div", { class: "row spread" }, this.form, this.pagers[0])];
    if (about.write) parts.push(this.addSection());
    const selectShown = button("Select all", { class: "quiet", onclick: () => selectAll(this.images) }, "check");
    this.element = el(
      "div",
      { class: "browse" },
      ...parts,
      el("div", { class: "row spread result-tools" }, this.state, selectShown, this.filters.element),
      this.grid,
      this.pagers[1],
      selectionBar(signal),
      this.lightbox.dialog,
    );
    this.offerFolders();
    this.start(params);
  }

  /** Show another page or name. @param {URLSearchParams} params */
  update(params) {
    const before = this.params;
    if (listParams(before) !== listParams(params)) return this.start(params);
    this.params = params;
    this.lightbox.follow(!before.has(OPEN));
    return true;
  }

  start(params) {
    this.params = params;
    this.filters.show(params);
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

  async offerFolders() {
    const { folders } = await getJson("/folders", {}, { signal: this.signal }).catch(() => ({ folders: [] }));
    this.filters.offer(folders, this.params);
  }

  setFilters(changes) {
    const next = { find: this.find, ...Object.fromEntries(filterParams(this.params)), ...changes };
    go("browse", next);
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
      const chosen = Object.fromEntries(filterParams(this.params));
      this.show(await getJson("/images", { page: this.page - 1, size: PAGE_SIZE, find: this.find, ...chosen }, { signal }));
      this.lightbox.follow();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.grid.replaceChildren();
      this.state.textContent = "";
      showError(error, () => this.load());
    }
  }

  show({ images, total, pages }) {
    const first = (this.page - 1) * PAGE_SIZE;
    this.images = images;
    const filtered = filterParams(this.params).size > 0;
    if (!this.find && !filtered) this.about.images = total;
    const shown = `, ${formatInteger(first + 1)} to ${formatInteger(first + images.length)} shown`;
    const named = (this.find ? ` with “${this.find}” in their path` : "") + (filtered ? " that pass the filter" : "");
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

  tile(item) {
    const { image, path, name, width, height, features } = item;
    const label = name ?? baseName(path);
    const link = el(
      "a",
      { class: "tile-link", href: this.lightbox.linkTo(image), "aria-label": `Show ${label} large` },
      thumbnail(image, path, { alt: "" }),
    );
    const place = el("p", { class: "place" }, ...placeLine(item));
    const search = iconLink(`Search with this photo: ${label}`, href("search", { query: image }), "search", {
      data: { action: "search" },
    });
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
    const box = selectBox(image, path, () => item);
    const tile = el("li", { class: "tile", data: { image } }, link, box, details, el("div", { class: "row foot" }, place, search));
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
    const chosen = { find: this.find, ...Object.fromEntries(filterParams(this.params)) };
    const to = (page) => href("browse", { page: page > 1 ? page : null, ...chosen });
    showPager(pager, { page: this.page, pages, to });
  }
}

/** The parameters of a link that decide which photographs are listed. */
function listParams(params) {
  return new URLSearchParams([...params].filter(([name]) => name !== OPEN)).toString();
}
