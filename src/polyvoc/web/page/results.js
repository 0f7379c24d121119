// How is a ranking shown? A grid of tiles that keep their element while the ranking changes, and glide to their new places.

import { button, el, icon, linkButton, still, svg } from "./elements.js";
import { copyText } from "./messages.js";
import { thumbnail } from "./photograph.js";
import { href } from "./router.js";
import { baseName, count, probable, three } from "./words.js";

const SURE = 0.9; // probability from which a hit is called verified
const LEAST = 6; // matches that must agree, where nobody knows probabilities: as many as the library wants of hits that ask along
const GLIDE = { duration: 350, easing: "cubic-bezier(.2,.8,.2,1)" };

/** @typedef {import("./answers.js").Hit} Hit */

/** Do matches agree, and is it so probable that it shows the same thing? @param {Hit} hit */
export function isVerified(hit) {
  if (hit.probability === null) return hit.inliers >= LEAST;
  return hit.inliers > 0 && hit.probability >= SURE;
}

export class ResultGrid {
  constructor() {
    /** @type {Map<number, Tile>} */
    this.tiles = new Map();
    this.divider = el("li", { class: "divider", id: "unverified" }, el("span", {}, "Less certain: not verified"));
    this.element = el("ol", { class: "grid", id: "results", "aria-label": "Results" });
    this.element.addEventListener("keydown", (event) => moveInGrid(event, this.element));
  }

  /** Grey tiles until there is something to show. */
  showSkeletons(number) {
    if (this.tiles.size) return;
    this.element.replaceChildren(...Array.from({ length: number }, skeleton));
  }

  /**
   * Show a ranking.
   * @param {Hit[]} hits
   * @param {{params: URLSearchParams, verified: boolean}} asked parameters of the links; whether arrangements were looked at
   */
  show(hits, { params, verified }) {
    const before = still() ? new Map() : this.places();
    const query = Number(params.get("query"));
    const best = Math.max(...hits.filter((hit) => hit.image !== query).map((hit) => hit.score), 1e-12);
    const last = verified ? hits.findLastIndex(isVerified) : -1;
    const tiles = new Map();
    const children = [];
    hits.forEach((hit, i) => {
      const tile = this.tiles.get(hit.image) ?? new Tile(hit);
      tile.show(hit, { rank: i + 1, share: hit.score / best, params, itself: hit.image === query });
      tiles.set(hit.image, tile);
      children.push(tile.element);
      if (i === last && i + 1 < hits.length) children.push(this.divider);
    });
    const focused = document.activeElement;
    this.tiles = tiles;
    this.element.replaceChildren(...children);
    if (this.element.contains(focused)) focused.focus({ preventScroll: true });
    this.glide(before);
  }

  /** Move the focus to a hit, if there is one of this rank. @param {number | null} rank */
  focusRank(rank) {
    this.element.querySelector(`[data-rank="${rank}"] .tile-link`)?.focus({ preventScroll: true });
  }

  clear() {
    this.tiles.clear();
    this.element.replaceChildren();
  }

  places() {
    return new Map([...this.tiles].map(([image, { element }]) => [image, element.getBoundingClientRect()]));
  }

  glide(before) {
    for (const [image, { element }] of this.tiles) {
      const [from, to] = [before.get(image), element.getBoundingClientRect()];
      if (!from) continue;
      const [dx, dy] = [from.left - to.left, from.top - to.top];
      if (dx || dy) element.animate([{ transform: `translate(${dx}px, ${dy}px)` }, { transform: "none" }], GLIDE);
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
    this.askLink = linkButton("Ask with this", "#/", { class: "button quiet", data: { action: "ask" } }, "search");
    const copy = button(
      "Path",
      {
        class: "quiet",
        title: hit.path,
        "aria-label": `Copy the path of ${baseName(hit.path)}`,
        data: { action: "copy-path" },
        onclick: () => copyText(hit.path, "The path is in the clipboard."),
      },
      "copy",
    );
    this.element = el(
      "li",
      { class: "tile", data: { image: hit.image } },
      this.link,
      el(
        "div",
        { class: "tile-facts" },
        el("p", { class: "name", title: hit.path }, baseName(hit.path)),
        this.bar,
        el("p", { class: "row spread" }, this.score, this.badge),
      ),
      el("div", { class: "row tile-actions" }, this.askLink, copy),
    );
  }

  /** @param {Hit} hit */
  show(hit, { rank, share, params, itself }) {
    const name = baseName(hit.path);
    const verified = isVerified(hit);
    const matches = count(hit.inliers, "match", "matches");
    const agreeing = count(hit.inliers, "match agrees", "matches agree");
    const chance = hit.probability === null ? "" : probable(hit.probability);
    const agreed = itself ? "the photograph itself" : agreeing;
    const found = [verified ? "verified" : "not verified", agreed, chance && `${chance} probable`].filter(Boolean).join(", ");
    const badge = chance || matches;
    this.element.dataset.rank = String(rank);
    this.element.dataset.inliers = String(hit.inliers);
    this.rank.textContent = String(rank);
    this.score.textContent = `score ${three(hit.score)}`;
    this.bar.firstChild.style.setProperty("width", `${Math.max(2, 100 * Math.min(1, share))}%`);
    this.badge.replaceChildren(...(itself ? ["itself"] : verified ? [icon("check", 14), badge] : [badge]));
    this.badge.className = verified && !itself ? "badge verified" : "badge";
    this.badge.hidden = hit.inliers === 0 && !itself && !chance;
    this.badge.title = found;
    this.link.href = href("matches", new URLSearchParams([...params, ["image", hit.image]]));
    this.link.setAttribute("aria-label", `${rank}. ${name}: score ${three(hit.score)}, ${found}. Open the matches`);
    this.askLink.href = href("search", new URLSearchParams([["query", hit.image], ...withoutQuery(params)]));
    this.drawOutline(verified && !itself && hit.outline ? hit : null);
  }

  /** Where the query lies in this photograph, drawn over its thumbnail. @param {Hit | null} hit */
  drawOutline(hit) {
    this.drawn?.remove();
    this.drawn = null;
    if (!hit) return;
    const { outline, width, height } = hit;
    const points = outline.map((point) => point.join(",")).join(" ");
    this.drawn = svg(
      "svg",
      { class: "outline", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
      svg("svg", { width, height, overflow: "hidden" }, svg("polygon", { class: "casing", points }), svg("polygon", { points })),
    );
    this.box.append(this.drawn);
  }
}

/** Arrow keys go through the tiles of a grid: along the order, or to the nearest of the row above or below. */
export function moveInGrid(event, grid) {
  if (!event.key.startsWith("Arrow") || event.altKey || event.ctrlKey || event.metaKey) return;
  const links = [...grid.querySelectorAll(".tile-link")];
  const here = links.findIndex((link) => link.closest("li").contains(document.activeElement));
  if (here < 0) return;
  const along = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  const next = along ? links[here + along] : nearestInRow(links, here, event.key === "ArrowDown" ? 1 : -1);
  if (!next) return;
  event.preventDefault();
  next.focus();
}

function nearestInRow(links, here, way) {
  const boxes = links.map((link) => link.getBoundingClientRect());
  const { left, top } = boxes[here];
  const beyond = [...boxes.keys()].filter((i) => way * (boxes[i].top - top) > 4);
  const nearestTop = Math.min(...beyond.map((i) => way * boxes[i].top));
  const row = beyond.filter((i) => Math.abs(way * boxes[i].top - nearestTop) < 4);
  row.sort((a, b) => Math.abs(boxes[a].left - left) - Math.abs(boxes[b].left - left));
  return links[row[0]];
}

function skeleton() {
  const lines = el("div", { class: "tile-facts" }, el("p", { class: "bone" }), el("p", { class: "bone short" }));
  return el("li", { class: "tile skeleton", "aria-hidden": "true" }, el("span", { class: "thumbnail" }), lines);
}

function withoutQuery(params) {
  return [...params].filter(([name]) => name !== "query" && name !== "region");
}
