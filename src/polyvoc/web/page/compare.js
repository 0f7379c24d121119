// The compare view: two rankings of one query side by side, with a line for every image in both.

import { button, el, heading, linkButton, svg } from "./elements.js";
import { baseName, count, formatDuration, formatNumber, formatProbability } from "./format.js";
import { imageInfo, pictureUrl, thumbnail } from "./images.js";
import { announce, showError } from "./messages.js";
import { optionParams } from "./options.js";
import { OptionsPanel } from "./options_panel.js";
import { missingText, search, totalSeconds } from "./results.js";
import { go, href } from "./router.js";

const DEPTH = 20; // hits of each ranking
const ROW = 100; // height of a row in the drawing of the moves
const SIDES = ["left", "right"];
const INITIAL = { left: "merge=b1&verify=0", right: "" };

/** @type {import("./router.js").Route} */
export function compareView(params, context) {
  return new CompareView(params, context);
}

class CompareView {
  constructor(params, { about, signal }) {
    this.about = about;
    this.signal = signal;
    this.query = params.get("query") ?? "";
    this.region = params.get("region");
    this.title = "Compare settings";
    this.running = {}; // side -> AbortController of its search
    this.hits = {};
    this.marked = null; // the image that is highlighted in both lists
    this.options = sidesOf(about, params);
    this.build();
    this.ready = this.start();
  }

  /** @param {URLSearchParams} params */
  update(params) {
    if ((params.get("query") ?? "") !== this.query || params.get("region") !== this.region) return false;
    const options = sidesOf(this.about, params);
    for (const side of SIDES) {
      if (options[side].toString() === this.options[side].toString()) continue;
      this.options[side] = options[side];
      this.panels[side].show(options[side]);
      this.search(side);
    }
    return true;
  }

  build() {
    this.panels = {};
    this.lists = {};
    this.states = {};
    const sides = SIDES.map((side) => this.buildSide(side));
    this.links = svg("svg", { class: "moves", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.summary = el("div", { class: "compare-summary", id: "compare-summary" });
    this.photograph = el("div", { class: "compare-query row" });
    const swap = button(
      "Swap sides",
      { id: "swap", onclick: () => this.goTo({ left: this.options.right, right: this.options.left }) },
      "swap",
    );
    this.columns = el("div", { class: "columns" }, sides[0], el("div", { class: "gutter" }, this.links), sides[1]);
    this.element = el(
      "div",
      { class: "compare" },
      heading("Compare search settings"),
      el("div", { class: "row spread" }, this.photograph, swap),
      this.summary,
      this.columns,
    );
    this.columns.addEventListener("pointerover", (event) => this.mark(imageOf(event.target)));
    this.columns.addEventListener("pointerleave", () => this.mark(null));
    this.columns.addEventListener("focusin", (event) => this.mark(imageOf(event.target)));
  }

  buildSide(side) {
    const { about } = this;
    this.panels[side] = new OptionsPanel({
      about,
      name: side,
      params: this.options[side],
      onChange: (options) => this.goTo({ [side]: options }),
    });
    this.states[side] = el("p", { class: "state small" });
    this.lists[side] = el("ol", { class: "ranking", id: `ranking-${side}`, "aria-label": `Ranking on the ${side}` });
    return el(
      "section",
      { class: "side", data: { side }, "aria-label": `Search on the ${side}` },
      this.panels[side].element,
      this.states[side],
      this.lists[side],
    );
  }

  async start() {
    try {
      const info = await imageInfo(this.query);
      if (this.signal.aborted) return;
      const name = baseName(info.name ?? info.path);
      this.photograph.replaceChildren(
        el("img", {
          src: pictureUrl(this.query, 320),
          alt: name,
          height: 96,
          width: Math.round((96 * info.width) / info.height),
        }),
        el(
          "div",
          {},
          el("p", {}, el("span", { class: "file" }, name)),
          this.region && el("p", { class: "soft small" }, `region ${this.region}`),
          linkButton("Results", href("search", { query: this.query, region: this.region }), { class: "button quiet" }, "left"),
        ),
      );
      await Promise.all(SIDES.map((side) => this.search(side)));
    } catch (error) {
      if (this.signal.aborted) return;
      const reason = this.query ? "The uploaded query has expired, or the photograph was removed. " : "No query. ";
      if (error.status === 404)
        this.summary.replaceChildren(el("p", {}, reason, el("a", { href: "#/" }, "Choose a photograph"), "."));
      else showError(error, () => this.start());
    }
  }

  goTo({ left = this.options.left, right = this.options.right }) {
    const sides = { left: left.toString() || "preset=default", right: right.toString() || "preset=default" };
    go("compare", { query: this.query, region: this.region, ...sides });
  }

  async search(side) {
    this.running[side]?.abort();
    this.running[side] = new AbortController();
    const signal = AbortSignal.any([this.running[side].signal, this.signal]);
    this.states[side].textContent = "Searching …";
    this.lists[side].setAttribute("aria-busy", "true");
    try {
      const result = await search(this.about, this.parameters(side), { signal });
      this.hits[side] = result.hits;
      const duration = formatDuration(totalSeconds(result));
      this.states[side].textContent = `${count(result.hits.length, "photograph")} in ${duration}${missingText(result)}`;
      this.show();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.states[side].textContent = "The search failed.";
      delete this.hits[side];
      this.show();
      showError(error, () => this.search(side));
    } finally {
      this.lists[side].setAttribute("aria-busy", "false");
    }
  }

  parameters(side) {
    const params = new URLSearchParams([
      ["query", this.query],
      ...(this.region ? [["region", this.region]] : []),
      ...this.options[side],
    ]);
    params.set("top", String(DEPTH));
    return params;
  }

  show() {
    const { left, right } = this.hits;
    for (const side of SIDES) {
      const others = this.hits[side === "left" ? "right" : "left"];
      const hits = this.hits[side] ?? [];
      this.lists[side].replaceChildren(...hits.map((hit, i) => this.row(side, hit, i + 1, others)));
    }
    this.drawMoves(left ?? [], right ?? []);
    if (left && right) this.showSummary(left, right);
    else this.summary.replaceChildren();
  }

  row(side, hit, rank, others) {
    const name = baseName(hit.path);
    const other = others ? rankIn(others, hit.image) : null;
    const [symbol, text, kind] = others ? describeMove(side, rank, other) : ["", "", "same"];
    const link = el(
      "a",
      {
        class: "ranked",
        href: href("matches", new URLSearchParams([...this.parameters(side), ["image", hit.image]])),
      },
      el("span", { class: "rank" }, String(rank)),
      thumbnail(hit.image, hit.path, { alt: "" }),
      el(
        "span",
        { class: "ranked-info" },
        el("span", { class: "name" }, name),
        el("span", { class: "soft small" }, `score ${formatNumber(hit.score)}`),
        hit.inliers > 0 && el("span", { class: "soft small" }, count(hit.inliers, "consistent match", "consistent matches")),
        hit.probability !== null && el("span", { class: "soft small" }, `probability ${formatProbability(hit.probability)}`),
      ),
      el("span", { class: `move ${kind}`, title: text, "aria-hidden": "true" }, symbol),
      el("span", { class: "visually-hidden" }, text),
    );
    return el("li", { data: { image: hit.image, rank, move: kind } }, link);
  }

  /** Draw a line from each image on the left to the same image on the right. */
  drawMoves(left, right) {
    const rows = Math.max(left.length, right.length, 1);
    this.links.setAttribute("viewBox", `0 0 100 ${rows * ROW}`);
    this.links.style.setProperty("--rows", String(rows));
    const lines = left.flatMap((hit, i) => {
      const j = right.findIndex((other) => other.image === hit.image);
      if (j < 0) return [];
      const [from, to] = [(i + 0.5) * ROW, (j + 0.5) * ROW];
      const kind = j === i ? "same" : j < i ? "up" : "down";
      return [svg("path", { class: kind, data: { image: hit.image }, d: `M0 ${from}C50 ${from} 50 ${to} 100 ${to}` })];
    });
    this.links.replaceChildren(...lines);
  }

  showSummary(left, right) {
    const top = (hits) => new Set(hits.slice(0, 10).map((hit) => hit.image));
    const [topLeft, topRight] = [top(left), top(right)];
    const shared = [...topLeft].filter((image) => topRight.has(image)).length;
    const moves = largestMoves(left, right);
    const depth = Math.min(10, Math.max(topLeft.size, topRight.size));
    const text = `${shared} of the top ${depth} are in both.`;
    this.summary.replaceChildren(
      el("p", { class: "lead" }, text),
      el(
        "p",
        { class: "soft" },
        moves.length ? `Largest moves from left to right: ${moves.join("; ")}.` : "No photograph in both rankings has moved.",
      ),
    );
    announce(text);
  }

  /** Highlight one image in both lists. @param {string | null} image */
  mark(image) {
    if (image === this.marked) return;
    this.marked = image;
    this.columns.classList.toggle("marking", image !== null);
    for (const element of this.columns.querySelectorAll(".ranking [data-image], .moves [data-image]")) {
      element.classList.toggle("marked", element.dataset.image === image);
    }
  }
}

function sidesOf(about, params) {
  const initial = about.vocabularies ? INITIAL : { ...INITIAL, left: "preset=fast" }; // b1 needs words
  return Object.fromEntries(
    SIDES.map((side) => [side, optionParams(about, new URLSearchParams(params.get(side) ?? initial[side]))]),
  );
}

function rankIn(hits, image) {
  const position = hits.findIndex((hit) => hit.image === image);
  return position < 0 ? null : position + 1;
}

/** How an image moved from the left list to the right one, as shown in the list of a side: symbol, text, kind. */
function describeMove(side, rank, other) {
  if (other === null)
    return side === "right"
      ? ["new", `not in the top ${DEPTH} on the left`, "new"]
      : ["gone", `not in the top ${DEPTH} on the right`, "gone"];
  const gain = side === "right" ? other - rank : rank - other;
  const there = `rank ${other} on the ${side === "right" ? "left" : "right"}`;
  if (gain === 0) return ["=", "the same rank on both sides", "same"];
  return gain > 0 ? [`▲ ${gain}`, there, "up"] : [`▼ ${-gain}`, there, "down"];
}

function largestMoves(left, right) {
  const moved = left.flatMap((hit, i) => {
    const to = rankIn(right, hit.image);
    return to === null || to === i + 1 ? [] : [{ name: baseName(hit.path), from: i + 1, to }];
  });
  moved.sort((a, b) => Math.abs(b.from - b.to) - Math.abs(a.from - a.to));
  return moved.slice(0, 3).map(({ name, from, to }) => `${name} from ${from} to ${to}`);
}

function imageOf(target) {
  return target.closest?.("[data-image]")?.dataset.image ?? null;
}
