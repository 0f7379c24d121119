// The search view: the query with its region and options on one side, the ranking on the other.

import { button, el, heading, icon, linkButton } from "./elements.js";
import { FilterFold, filterParams, foldersOf, passes } from "./filters.js";
import { baseName, count, formatDuration } from "./format.js";
import { imageInfo, imageRows, isIndexed, pictureUrl } from "./images.js";
import { Lightbox, OPEN } from "./lightbox.js";
import { announce, showError } from "./messages.js";
import { MAX_TOP, MIN_PROBABILITY, TOP, optionParams, optionsText, searchParams } from "./options.js";
import { OptionsPanel } from "./options_panel.js";
import { RegionEditor, parseRegion } from "./region_editor.js";
import { ResultGrid, isLikely, whyLink } from "./result_grid.js";
import { missingText, search, totalSeconds } from "./results.js";
import { go, href, replaceParams } from "./router.js";
import { selectAll, selectionBar } from "./selection.js";
import { thresholdSlider } from "./threshold.js";
import { fileInput, searchWith } from "./upload.js";

/** @type {import("./router.js").Route} */
export function searchView(params, context) {
  return new SearchView(params, context);
}

class SearchView {
  constructor(params, { about, signal }) {
    this.about = about;
    this.signal = signal;
    this.params = params;
    this.query = params.get("query") ?? "";
    this.title = "Results";
    this.dropText = "Drop to search with this photograph";
    this.onFiles = (files) => searchWith(about, files, optionParams(about, this.params));
    this.running = null; // the AbortController of the running search
    this.focusNext = null; // the rank that gets the focus when more hits are shown
    this.build();
    this.ready = this.start();
  }

  /** Show other options or another region of the same query. @param {URLSearchParams} params */
  update(params) {
    if ((params.get("query") ?? "") !== this.query || !this.editor) return false;
    const before = this.params;
    this.params = params;
    if (this.result && searchParams(this.about, before).toString() === searchParams(this.about, params).toString()) {
      if (filterParams(before).toString() !== filterParams(params).toString()) this.refilter();
      this.lightbox.follow(!before.has(OPEN));
      return true;
    }
    this.options.show(optionParams(this.about, params));
    this.showRegion();
    this.ready = this.search();
    return true;
  }

  build() {
    const { about, params } = this;
    this.heading = heading("Results");
    this.status = el("p", { class: "state", id: "search-state" }, "Loading the query …");
    this.progress = el("div", { class: "progress-line", id: "progress", hidden: true });
    this.grid = new ResultGrid();
    this.result = null; // the final one that is shown
    this.lightbox = new Lightbox({
      about,
      view: "search",
      items: () => this.shownHits(),
      params: () => this.params,
      why: (hit) => whyLink(hit, searchParams(about, this.params)),
    });
    this.filters = new FilterFold({ params, onChange: (changes) => this.setFilters(changes) });
    this.slider = thresholdSlider(() => this.result && this.showDone(this.result));
    this.tools = el(
      "div",
      { class: "row result-tools", hidden: true },
      this.slider,
      button("Select all", { class: "quiet", onclick: () => selectAll(this.visibleHits()) }, "check"),
      this.filters.element,
    );
    this.picture = el("div", { class: "query-picture" });
    this.info = el("p", { class: "soft small" });
    this.compare = linkButton("Compare settings", "#/", { id: "compare-link" }, "compare");
    this.options = new OptionsPanel({
      about,
      name: "options",
      params: optionParams(about, params),
      onChange: (options) => this.goTo({ options }),
    });
    this.aside = this.querySide();
    this.element = el(
      "div",
      { class: "search" },
      this.aside,
      el(
        "section",
        { class: "ranking-side", "aria-label": "Results" },
        this.heading,
        this.status,
        this.progress,
        this.tools,
        this.grid.element,
        selectionBar(this.signal),
      ),
      this.lightbox.dialog,
    );
  }

  querySide() {
    return el(
      "aside",
      { class: "query-side", "aria-label": "Query" },
      this.picture,
      this.info,
      this.regionTools(),
      this.options.element,
      el(
        "div",
        { class: "row" },
        this.compare,
        fileInput("Another photograph", { id: "photo-input", symbol: icon("upload"), onFiles: this.onFiles }),
      ),
    );
  }

  regionTools() {
    this.draw = button(
      "Select a region",
      {
        id: "draw-region",
        "aria-pressed": "false",
        title: "Search with a part of the photograph only",
        onclick: () => this.toggleDrawing(),
      },
      "region",
    );
    this.clearRegion = button(
      "Whole photograph",
      { id: "whole-photograph", hidden: true, onclick: () => this.goTo({ region: null }) },
      "photo",
    );
    this.hint = el("p", { class: "soft small" });
    return el("div", { class: "region-tools" }, el("div", { class: "row" }, this.draw, this.clearRegion), this.hint);
  }

  async start() {
    this.grid.showSkeletons(12);
    try {
      const info = await imageInfo(this.query);
      if (this.signal.aborted) return;
      this.showQuery(info);
      await this.search();
    } catch (error) {
      if (this.signal.aborted) return;
      this.grid.clear();
      if (error.status === 404) this.showMissing();
      else showError(error, () => this.start());
    }
  }

  showQuery(info) {
    const name = baseName(info.name ?? info.path);
    this.title = name;
    document.title = `${name} · polyvoc`;
    this.heading.replaceChildren("Results for ", el("span", { class: "file" }, name));
    this.info.textContent =
      `${name}, ${info.width} × ${info.height}, ${count(info.features, "feature")}` +
      (isIndexed(this.query) ? ", in the collection" : "");
    const photograph = {
      src: pictureUrl(this.query, 640),
      srcset: `${pictureUrl(this.query, 640)} 1x, ${pictureUrl(this.query, 1600)} 2x`,
      name,
      width: info.width,
      height: info.height,
    };
    this.editor = new RegionEditor(photograph, (region) => this.goTo({ region }));
    this.picture.replaceChildren(this.editor.element);
    this.showRegion();
  }

  /** Uploads expire; images may be removed. */
  showMissing() {
    const indexed = isIndexed(this.query);
    this.heading.textContent = indexed ? "Photograph not found" : "This upload has expired";
    this.status.textContent = indexed
      ? `Image ${this.query} is not in the collection.`
      : "The server deletes an uploaded photograph one hour after its last use. Drop it again, or choose it again.";
    this.aside.replaceChildren(
      fileInput("Choose it again", { id: "photo-input", symbol: icon("upload"), onFiles: this.onFiles }),
      linkButton("Start", "#/", {}, "left"),
    );
  }

  showRegion() {
    const region = parseRegion(this.params.get("region"));
    this.editor.show(region);
    this.clearRegion.hidden = region === null;
    this.draw.hidden = region !== null;
    this.hint.textContent = region
      ? "Only features inside the region are used. Drag it or its corners, or draw another."
      : "Draw a rectangle on the photograph to search with that part only.";
    this.editor.enableDrawing(false);
    this.draw.setAttribute("aria-pressed", "false");
  }

  toggleDrawing() {
    const on = this.draw.getAttribute("aria-pressed") !== "true";
    this.draw.setAttribute("aria-pressed", String(on));
    this.editor?.enableDrawing(on);
    this.hint.textContent = on ? "Draw a rectangle on the photograph, or press Enter to place one." : "";
    if (on) this.editor?.element.focus();
  }

  /** Change the link; the router then updates this view. */
  goTo({ options = optionParams(this.about, this.params), region = parseRegion(this.params.get("region")) }) {
    const regionParam = region ? [["region", region.join(",")]] : [];
    go("search", new URLSearchParams([["query", this.query], ...regionParam, ...options, ...filterParams(this.params)]));
  }

  async search() {
    this.running?.abort();
    this.running = new AbortController();
    const signal = AbortSignal.any([this.running.signal, this.signal]);
    const { params } = this;
    this.result = null;
    this.compare.href = href("compare", {
      query: this.query,
      region: params.get("region"),
      right: optionParams(this.about, params).toString(),
    });
    this.grid.showSkeletons(12);
    this.showProgress("Searching …");
    try {
      const result = await search(this.about, params, { signal, onScored: (scored) => this.showScored(scored) });
      this.showDone(result);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.showProgress(null);
      this.grid.clear();
      this.status.textContent = "The search failed.";
      if (error.status === 404) this.showMissing();
      else showError(error, () => this.search());
    }
  }

  showScored(result) {
    this.showHits(result, false);
    this.showProgress(`Ranked by score in ${formatDuration(totalSeconds(result))}; verifying the geometry …`);
  }

  showDone(result) {
    const isNew = this.result !== result;
    this.result = result;
    this.showHits(result, true);
    this.showProgress(null);
    this.tools.hidden = result.hits.length === 0;
    this.slider.hidden = !this.grid.counts.isFolded;
    const text = optionsText(this.about, optionParams(this.about, this.params));
    const seconds = formatDuration(totalSeconds(result)) + (result.options.verify > 0 ? "" : " by score only");
    this.status.textContent = `${this.countText(result)} in ${seconds}${missingText(result)} · ${text}`;
    if (result.hits.length === 0) this.status.textContent = `${noHitsText(result)}${missingText(result)}`;
    announce(this.status.textContent);
    this.showMore(result.hits.length);
    if (result.hits.length === 0 && result.options[MIN_PROBABILITY] > 0) this.offerAllHits();
    if (isNew) this.ready = this.showPlaces(result);
    this.lightbox.follow();
  }

  /** How many hits there are, and how many are likely; the photograph itself is not counted as one. */
  countText({ hits }) {
    const { likely, isFolded } = this.grid.counts;
    const [one, many] = isIndexed(this.query) ? ["other likely photograph", "other likely photographs"] : ["likely photograph", "likely photographs"];
    if (isFolded) return likely ? count(likely, one, many) : "Nothing found";
    return count(hits.length, "photograph");
  }

  /** Add when the files of the hits were changed, which the result of a search does not contain. */
  async showPlaces(result) {
    const rows = await imageRows(result.hits.map(({ image }) => image), { signal: this.signal }).catch(() => new Map());
    if (this.result !== result) return;
    for (const hit of result.hits) hit.changed = rows.get(hit.image)?.changed ?? null;
    this.filters.offer(foldersOf(result.hits), this.params);
    this.showHits(result, true);
    this.lightbox.follow();
  }

  shownHits() {
    const hits = (this.result?.hits ?? []).filter((hit) => passes(hit, this.params));
    return [...hits.filter(isLikely), ...hits.filter((hit) => !isLikely(hit))];
  }

  visibleHits() {
    const visible = this.grid.visibleImages();
    return this.shownHits().filter(({ image }) => visible.has(image));
  }

  setFilters(changes) {
    const next = new URLSearchParams(this.params);
    for (const [name, value] of Object.entries(changes)) {
      if (value) next.set(name, value);
      else next.delete(name);
    }
    this.params = next;
    replaceParams("search", next);
    this.refilter();
  }

  refilter() {
    this.filters.show(this.params);
    this.showHits(this.result, true);
  }

  /** No hit is probable enough: offer the hits below the minimum probability. */
  offerAllHits() {
    const next = new URLSearchParams(this.params);
    next.delete(MIN_PROBABILITY);
    this.grid.more.replaceChildren(linkButton("Show less probable hits", href("search", next), { id: "less-probable" }));
  }

  showHits(result, done) {
    this.grid.show(result.hits, {
      params: searchParams(this.about, this.params),
      linkTo: (image) => this.lightbox.linkTo(image),
      done,
      isShown: (hit) => !done || passes(hit, this.params),
    });
  }

  showMore(shown) {
    this.grid.focusRank(this.focusNext);
    this.focusNext = null;
    const top = Number(this.params.get("top") ?? TOP);
    const next = new URLSearchParams(this.params);
    next.set("top", String(Math.min(MAX_TOP, 2 * top)));
    const onclick = () => {
      this.focusNext = shown + 1;
    };
    const link = linkButton("Show more", href("search", next), { id: "more", onclick });
    this.grid.more.replaceChildren(...(shown >= top && top < MAX_TOP ? [link] : []));
  }

  showProgress(text) {
    this.progress.hidden = text === null;
    this.grid.element.setAttribute("aria-busy", String(text !== null));
    if (text) this.status.textContent = text;
  }
}

/** The text for a result without hits. @param {import("./results.js").SearchResult} result */
function noHitsText({ options }) {
  const minimum = options[MIN_PROBABILITY];
  if (!minimum) return "Nothing found: no photograph of the collection has a matching feature.";
  return `Nothing found with a probability of at least ${Number((100 * minimum).toPrecision(6))} %.`;
}
