// The ranking as tiles: likely hits in a grid, the others in a fold. Tiles keep their element and move to their new positions.

import { button, el, icon, iconLink, linkButton, outlineOver, prefersReducedMotion } from "./elements.js";
import { baseName, count, formatProbability, partsText } from "./format.js";
import { placeLine, thumbnail } from "./images.js";
import { copyText } from "./messages.js";
import { href } from "./router.js";
import { selectBox } from "./selection.js";
import { threshold } from "./threshold.js";

const MIN_INLIERS = 6; // for "verified" where no probabilities are available; the library requires as many for query expansion
const NEAREST = 3; // hits in the footnote where nothing is likely
const MOTION = { duration: 350, easing: "cubic-bezier(.2,.8,.2,1)" };

/** @typedef {import("./results.js").Hit} Hit */

/** Whether a hit is likely to show the same thing; without probabilities, whether its geometry is confirmed. @param {Hit} hit */
export function isLikely(hit) {
  return hit.probability === null ? hit.inliers >= MIN_INLIERS : hit.probability >= threshold();
}

export class ResultGrid {
  constructor() {
    /** @type {Map<number, Tile>} */
    this.tiles = new Map();
    this.divider = el("li", { class: "divider", id: "unverified" }, el("span", {}, "Not verified"));
    this.results = el("ol", { class: "grid", id: "results", "aria-label": "Results" });
    this.nearest = el("ol", { class: "grid nearest", "aria-label": "Nearest" });
    this.nothingText = el("p", { class: "big" });
    this.reason = el("p", { class: "soft" });
    this.footnote = el("p", { class: "soft small" }, "The nearest, probably something else:");
    this.nothing = el(
      "div",
      { class: "nothing", id: "nothing", hidden: true },
      this.nothingText,
      this.reason,
      this.footnote,
      this.nearest,
    );
    this.others = el("ol", { class: "grid", id: "perhaps-results", "aria-label": "Perhaps" });
    this.summary = el("summary", {});
    this.perhaps = el("details", { class: "perhaps", id: "perhaps", hidden: true }, this.summary, this.others);
    this.more = el("p", { class: "row centre" });
    this.element = el("div", { class: "hits", id: "ranking" }, this.results, this.nothing, this.perhaps);
    for (const grid of [this.results, this.nearest, this.others])
      grid.addEventListener("keydown", (event) => moveInGrid(event, grid));
  }

  /** Show grey tiles until the first hits arrive. */
  showSkeletons(number) {
    if (this.tiles.size) return;
    this.results.replaceChildren(...Array.from({ length: number }, skeleton));
  }

  /**
   * Show a ranking.
   * @param {Hit[]} hits
   * @param {{params: URLSearchParams, linkTo: (image: number) => string, done: boolean, isShown?: (hit: Hit) => boolean}} how
   *   parameters for links, the link that opens a photograph, whether the ranking is final, and a filter
   */
  show(hits, { params, linkTo, done, isShown = () => true }) {
    const before = prefersReducedMotion() ? new Map() : this.positions();
    const query = Number(params.get("query"));
    const tiles = new Map();
    const shown = [];
    hits.forEach((hit, i) => {
      const tile = this.tiles.get(hit.image) ?? new Tile(hit);
      const isQuery = hit.image === query;
      tile.show(hit, { rank: i + 1, params, linkTo, isQuery });
      tiles.set(hit.image, tile);
      if (isShown(hit)) shown.push({ hit, tile: tile.element, likely: isQuery || isLikely(hit), isQuery });
    });
    const focused = document.activeElement;
    this.tiles = tiles;
    this.place(shown, done, hits.length > 0 && shown.length === 0);
    if (this.element.contains(focused)) focused.focus({ preventScroll: true });
    this.animateFrom(before);
  }

  /** Put the tiles into the grid, the footnote and the fold. */
  place(shown, done, allFiltered) {
    const folds = done && shown.some(({ hit }) => hit.probability !== null);
    const likely = folds ? shown.filter((one) => one.likely) : shown;
    const others = folds ? shown.filter((one) => !one.likely) : [];
    const found = likely.some((one) => !one.isQuery);
    const nearest = found ? [] : others.slice(0, NEAREST);
    const rest = others.slice(nearest.length);
    this.results.replaceChildren(...(folds ? likely.map(({ tile }) => tile) : this.divided(likely, done)));
    this.results.hidden = likely.length === 0;
    this.nearest.replaceChildren(...nearest.map(({ tile }) => tile));
    this.nothing.hidden = !(folds && !found) && !allFiltered;
    this.results.classList.toggle("alone", folds && !found);
    const [other, more] = likely.length ? ["else ", "other "] : ["", ""];
    this.nothingText.textContent = allFiltered ? "No hit passes the filter" : `Nothing ${other}found`;
    this.reason.textContent = allFiltered ? "" : `No ${more}photograph is likely to show the same thing.`;
    this.nearest.hidden = this.footnote.hidden = nearest.length === 0;
    this.others.replaceChildren(...rest.map(({ tile }) => tile));
    this.perhaps.hidden = rest.length === 0;
    const end = rest.length ? this.perhaps : this.element; // further hits are less probable still
    if (this.more.parentElement !== end) end.append(this.more);
    this.summary.textContent = `${found ? "Perhaps" : "Still less likely"}: ${count(rest.length, "photograph")}`;
    this.counts = { likely: likely.filter((one) => !one.isQuery).length, isFolded: folds };
  }

  /** Where no probabilities are available: a line below the last hit whose geometry is confirmed. */
  divided(shown, done) {
    const last = done ? shown.findLastIndex(({ hit }) => isLikely(hit)) : -1;
    return shown.flatMap(({ tile }, i) => (i === last && i + 1 < shown.length ? [tile, this.divider] : [tile]));
  }

  /** The images of the hits that can be seen: those in the fold only while it is open. @returns {Set<number>} */
  visibleImages() {
    const grids = [this.results, this.nearest, ...(this.perhaps.open ? [this.others] : [])];
    return new Set(grids.flatMap((grid) => [...grid.querySelectorAll("[data-image]")].map((tile) => Number(tile.dataset.image))));
  }

  /** Move the focus to a hit, if there is one of this rank. @param {number | null} rank */
  focusRank(rank) {
    const link = this.element.querySelector(`[data-rank="${rank}"] .tile-link`);
    if (link && this.others.contains(link)) this.perhaps.open = true;
    link?.focus({ preventScroll: true });
  }

  clear() {
    this.tiles.clear();
    this.place([], false, false);
  }

  positions() {
    return new Map([...this.tiles].map(([image, { element }]) => [image, element.getBoundingClientRect()]));
  }

  animateFrom(before) {
    for (const [image, { element }] of this.tiles) {
      const [from, to] = [before.get(image), element.getBoundingClientRect()];
      if (!from?.width || !to.width) continue;
      const [dx, dy] = [from.left - to.left, from.top - to.top];
      if (dx || dy) element.animate([{ transform: `translate(${dx}px, ${dy}px)` }, { transform: "none" }], MOTION);
    }
  }
}

/** One hit. */
class Tile {
  /** @param {Hit} hit */
  constructor(hit) {
    this.image = hit.image;
    this.hit = hit;
    const name = baseName(hit.path);
    this.box = thumbnail(hit.image, hit.path, { alt: "" });
    this.badge = el("span", { class: "badge" });
    this.link = el("a", { class: "tile-link" }, this.box, this.badge);
    this.matches = el("span", { class: "soft small" });
    this.place = el("p", { class: "place" });
    this.whyLink = linkButton("Why these match", "#/", { class: "button quiet", data: { action: "why" } });
    this.searchLink = iconLink(`Search with this photo: ${name}`, "#/", "search", { data: { action: "search" } });
    const copy = button("", {
      class: "quiet",
      title: `Copy the path: ${hit.path}`,
      "aria-label": `Copy the path of ${name}`,
      data: { action: "copy-path" },
      onclick: () => copyText(hit.path, "Path copied."),
    }, "copy");
    copy.querySelector("span").remove();
    this.element = el(
      "li",
      { class: "tile", data: { image: hit.image } },
      this.link,
      selectBox(hit.image, hit.path, () => this.hit),
      el("div", { class: "tile-info" }, el("p", { class: "name", title: hit.path }, name), this.place),
      el("div", { class: "row tile-actions" }, this.whyLink, this.searchLink, copy),
    );
  }

  /** @param {Hit} hit */
  show(hit, { rank, params, linkTo, isQuery }) {
    this.hit = hit;
    const name = baseName(hit.path);
    const likely = isLikely(hit);
    const confirmed = hit.inliers > 0;
    const probability = hit.probability === null ? "" : formatProbability(hit.probability);
    const matches = count(hit.inliers, "match", "matches");
    const text = isQuery
      ? "the query itself"
      : [
          probability && `probability ${probability}`,
          count(hit.inliers, "consistent match", "consistent matches"),
        ].filter(Boolean).join(", ");
    const badge = isQuery ? "query" : probability || matches;
    this.element.dataset.rank = String(rank);
    this.element.dataset.inliers = String(hit.inliers);
    this.badge.replaceChildren(...(likely && confirmed && !isQuery ? [icon("check", 14), badge] : [badge]));
    this.badge.className = likely && confirmed && !isQuery ? "badge verified" : "badge";
    this.badge.hidden = !isQuery && !probability && !confirmed;
    this.badge.title = hit.parts ? `${text}: ${partsText(hit.parts)}` : text;
    this.place.replaceChildren(...placeLine(hit));
    this.link.href = linkTo(hit.image);
    this.link.setAttribute("aria-label", `${rank}. ${name}: ${text}. Show it large`);
    this.whyLink.href = whyLink(hit, params);
    this.whyLink.setAttribute("aria-label", `Why these match: ${name}`);
    this.searchLink.href = href("search", new URLSearchParams([["query", hit.image], ...withoutQuery(params)]));
    this.drawOutline(likely && !isQuery && hit.outline ? hit : null);
  }

  /** Draw the outline of the query over the thumbnail. @param {Hit | null} hit */
  drawOutline(hit) {
    this.outline?.remove();
    this.outline = hit ? outlineOver(hit) : null;
    if (this.outline) this.box.append(this.outline);
  }
}

/** The link to the matches of a hit. @param {URLSearchParams} params of the search */
export function whyLink(hit, params) {
  return href("matches", new URLSearchParams([...params, ["image", hit.image]]));
}

/** Move the focus through the tiles of a grid with arrow keys: in order, or to the nearest tile of the row above or below. */
export function moveInGrid(event, grid) {
  if (!event.key.startsWith("Arrow") || event.altKey || event.ctrlKey || event.metaKey) return;
  const links = [...grid.querySelectorAll(".tile-link")];
  const here = links.findIndex((link) => link.closest("li").contains(document.activeElement));
  if (here < 0) return;
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const next = step ? links[here + step] : nearestInRow(links, here, event.key === "ArrowDown" ? 1 : -1);
  if (!next) return;
  event.preventDefault();
  next.focus();
}

function nearestInRow(links, here, direction) {
  const boxes = links.map((link) => link.getBoundingClientRect());
  const { left, top } = boxes[here];
  const beyond = [...boxes.keys()].filter((i) => direction * (boxes[i].top - top) > 4);
  const nearestTop = Math.min(...beyond.map((i) => direction * boxes[i].top));
  const row = beyond.filter((i) => Math.abs(direction * boxes[i].top - nearestTop) < 4);
  row.sort((a, b) => Math.abs(boxes[a].left - left) - Math.abs(boxes[b].left - left));
  return links[row[0]];
}

function skeleton() {
  const lines = el("div", { class: "tile-info" }, el("p", { class: "bone" }), el("p", { class: "bone short" }));
  return el("li", { class: "tile skeleton", "aria-hidden": "true" }, el("span", { class: "thumbnail" }), lines);
}

function withoutQuery(params) {
  return [...params].filter(([name]) => name !== "query" && name !== "region");
}
