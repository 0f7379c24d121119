// The ranking as a grid of tiles. Tiles keep their element when the ranking changes and move to their new positions.

import { button, el, icon, linkButton, prefersReducedMotion, svg } from "./elements.js";
import { baseName, count, formatNumber, formatProbability } from "./format.js";
import { thumbnail } from "./images.js";
import { copyText } from "./messages.js";
import { href } from "./router.js";

const VERIFIED_PROBABILITY = 0.9; // from which a hit is called verified
const MIN_INLIERS = 6; // for "verified" where no probabilities are available; the library requires as many for query expansion
const MOTION = { duration: 350, easing: "cubic-bezier(.2,.8,.2,1)" };

/** @typedef {import("./results.js").Hit} Hit */

/** Whether the matches of a hit are consistent with one geometric transform, and the hit is probable enough. @param {Hit} hit */
export function isVerified(hit) {
  if (hit.probability === null) return hit.inliers >= MIN_INLIERS;
  return hit.inliers > 0 && hit.probability >= VERIFIED_PROBABILITY;
}

export class ResultGrid {
  constructor() {
    /** @type {Map<number, Tile>} */
    this.tiles = new Map();
    this.divider = el("li", { class: "divider", id: "unverified" }, el("span", {}, "Not verified"));
    this.element = el("ol", { class: "grid", id: "results", "aria-label": "Results" });
    this.element.addEventListener("keydown", (event) => moveInGrid(event, this.element));
  }

  /** Show grey tiles until the first hits arrive. */
  showSkeletons(number) {
    if (this.tiles.size) return;
    this.element.replaceChildren(...Array.from({ length: number }, skeleton));
  }

  /**
   * Show a ranking.
   * @param {Hit[]} hits
   * @param {{params: URLSearchParams, verified: boolean}} request parameters for links; whether hits were verified
   */
  show(hits, { params, verified }) {
    const before = prefersReducedMotion() ? new Map() : this.positions();
    const query = Number(params.get("query"));
    const best = Math.max(...hits.filter((hit) => hit.image !== query).map((hit) => hit.score), 1e-12);
    const last = verified ? hits.findLastIndex(isVerified) : -1;
    const tiles = new Map();
    const children = [];
    hits.forEach((hit, i) => {
      const tile = this.tiles.get(hit.image) ?? new Tile(hit);
      tile.show(hit, { rank: i + 1, share: hit.score / best, params, isQuery: hit.image === query });
      tiles.set(hit.image, tile);
      children.push(tile.element);
      if (i === last && i + 1 < hits.length) children.push(this.divider);
    });
    const focused = document.activeElement;
    this.tiles = tiles;
    this.element.replaceChildren(...children);
    if (this.element.contains(focused)) focused.focus({ preventScroll: true });
    this.animateFrom(before);
  }

  /** Move the focus to a hit, if there is one of this rank. @param {number | null} rank */
  focusRank(rank) {
    this.element.querySelector(`[data-rank="${rank}"] .tile-link`)?.focus({ preventScroll: true });
  }

  clear() {
    this.tiles.clear();
    this.element.replaceChildren();
  }

  positions() {
    return new Map([...this.tiles].map(([image, { element }]) => [image, element.getBoundingClientRect()]));
  }

  animateFrom(before) {
    for (const [image, { element }] of this.tiles) {
      const [from, to] = [before.get(image), element.getBoundingClientRect()];
      if (!from) continue;
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
    this.box = thumbnail(hit.image, hit.path, { alt: "" });
    this.rank = el("span", { class: "rank" });
    this.link = el("a", { class: "tile-link" }, this.box, this.rank);
    this.badge = el("span", { class: "badge" });
    this.score = el("span", { class: "score" });
    this.bar = el("span", { class: "score-bar", "aria-hidden": "true" }, el("span", {}));
    this.searchLink = linkButton("Search with this", "#/", { class: "button quiet", data: { action: "search" } }, "search");
    const copy = button(
      "Path",
      {
        class: "quiet",
        title: hit.path,
        "aria-label": `Copy the path of ${baseName(hit.path)}`,
        data: { action: "copy-path" },
        onclick: () => copyText(hit.path, "Path copied."),
      },
      "copy",
    );
    this.element = el(
      "li",
      { class: "tile", data: { image: hit.image } },
      this.link,
      el(
        "div",
        { class: "tile-info" },
        el("p", { class: "name", title: hit.path }, baseName(hit.path)),
        this.bar,
        el("p", { class: "row spread" }, this.score, this.badge),
      ),
      el("div", { class: "row tile-actions" }, this.searchLink, copy),
    );
  }

  /** @param {Hit} hit */
  show(hit, { rank, share, params, isQuery }) {
    const name = baseName(hit.path);
    const verified = isVerified(hit);
    const matches = count(hit.inliers, "match", "matches");
    const consistent = count(hit.inliers, "consistent match", "consistent matches");
    const probability = hit.probability === null ? "" : formatProbability(hit.probability);
    const details = [
      verified ? "verified" : "not verified",
      isQuery ? "the query itself" : consistent,
      probability && `probability ${probability}`,
    ];
    const text = details.filter(Boolean).join(", ");
    const badge = probability || matches;
    this.element.dataset.rank = String(rank);
    this.element.dataset.inliers = String(hit.inliers);
    this.rank.textContent = String(rank);
    this.score.textContent = `score ${formatNumber(hit.score)}`;
    this.bar.firstChild.style.setProperty("width", `${Math.max(2, 100 * Math.min(1, share))}%`);
    this.badge.replaceChildren(...(isQuery ? ["query"] : verified ? [icon("check", 14), badge] : [badge]));
    this.badge.className = verified && !isQuery ? "badge verified" : "badge";
    this.badge.hidden = hit.inliers === 0 && !isQuery && !probability;
    this.badge.title = text;
    this.link.href = href("matches", new URLSearchParams([...params, ["image", hit.image]]));
    this.link.setAttribute("aria-label", `${rank}. ${name}: score ${formatNumber(hit.score)}, ${text}. Show matches`);
    this.searchLink.href = href("search", new URLSearchParams([["query", hit.image], ...withoutQuery(params)]));
    this.drawOutline(verified && !isQuery && hit.outline ? hit : null);
  }

  /** Draw the outline of the query over the thumbnail. @param {Hit | null} hit */
  drawOutline(hit) {
    this.outline?.remove();
    this.outline = null;
    if (!hit) return;
    const { outline, width, height } = hit;
    const points = outline.map((point) => point.join(",")).join(" ");
    this.outline = svg(
      "svg",
      { class: "outline", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      svg("svg", { width, height, overflow: "hidden" }, svg("polygon", { class: "casing", points }), svg("polygon", { points })),
    );
    this.box.append(this.outline);
  }
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
