// Selecting a region of the query: a rectangle drawn with mouse, finger, pen or keyboard.

import { el, svg } from "./elements.js";

const HANDLE_RADIUS = 22; // CSS pixels around a corner within which it is dragged
const MIN_SIDE = 12; // CSS pixels; a smaller rectangle is a click
const KEY_DELAY = 500; // ms after the last key until the search starts

/** @typedef {[number, number, number, number]} Region x0, y0, x1, y1 in pixels of the full-size photograph */

/** "10,20,110,90" -> a region; null if there is none. @returns {Region | null} */
export function parseRegion(text) {
  const numbers = (text ?? "").split(",").map(Number);
  return numbers.length === 4 && numbers.every(Number.isFinite) ? numbers : null;
}

export class RegionEditor {
  /**
   * @param {{src: string, srcset?: string, name: string, width: number, height: number}} photograph
   * @param {(region: Region | null) => void} onChange
   */
  constructor(photograph, onChange) {
    this.width = photograph.width;
    this.height = photograph.height;
    this.onChange = onChange;
    /** @type {Region | null} */
    this.region = null;
    this.drag = null; // the running drag
    this.element = this.build(photograph);
  }

  /** Show a region without a search. @param {Region | null} region */
  show(region) {
    this.region = region;
    const [x0, y0, x1, y1] = region ?? [0, 0, 0, 0];
    const around = `M0 0H${this.width}V${this.height}H0Z`;
    this.shade.setAttribute("d", region ? `${around}M${x0} ${y0}H${x1}V${y1}H${x0}Z` : "");
    this.frame.setAttribute("d", region ? `M${x0} ${y0}H${x1}V${y1}H${x0}Z` : "");
    this.handles.setAttribute(
      "d",
      region
        ? corners(region)
            .map(([x, y]) => `M${x} ${y}h0`)
            .join("")
        : "",
    );
    this.element.classList.toggle("has-region", region !== null);
    this.element.dataset.region = region ? region.join(",") : "";
  }

  /** Switch drawing by touch on or off; when it is off, touch scrolls the page. */
  enableDrawing(on) {
    this.element.classList.toggle("drawing", on);
  }

  build({ src, srcset, name }) {
    this.shade = svg("path", { class: "region-shade", "fill-rule": "evenodd" });
    this.frame = svg("path", { class: "region-frame" });
    this.handles = svg("path", { class: "region-handles" });
    const overlay = svg(
      "svg",
      { viewBox: `0 0 ${this.width} ${this.height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      this.shade,
      this.frame,
      this.handles,
    );
    const label = `${name}: Enter selects a region, arrow keys move it, Shift and arrow keys resize it, Escape clears it`;
    const box = el(
      "div",
      { class: "region-editor", id: "query-picture", tabindex: "0", role: "group", "aria-label": label },
      el("img", { src, srcset, alt: name, width: this.width, height: this.height, draggable: "false" }),
      overlay,
    );
    box.style.setProperty("--aspect", String(this.width / this.height));
    box.addEventListener("pointerdown", (event) => this.begin(event));
    box.addEventListener("pointermove", (event) => this.move(event));
    box.addEventListener("pointerup", (event) => this.end(event));
    box.addEventListener("pointercancel", () => this.cancel());
    box.addEventListener("keydown", (event) => this.key(event));
    return box;
  }

  begin(event) {
    const canDraw = event.pointerType !== "touch" || this.element.matches(".drawing, .has-region");
    if (event.button !== 0 || !canDraw) return;
    event.preventDefault();
    this.element.focus({ preventScroll: true });
    this.element.setPointerCapture(event.pointerId);
    const [x, y] = this.point(event);
    this.drag = { before: this.region, ...this.dragAt(x, y) };
  }

  /** The drag that starts at a point: of a corner, of the region, or of a new region. */
  dragAt(x, y) {
    if (this.region) {
      const radius = HANDLE_RADIUS * this.pixel();
      const corner = corners(this.region).findIndex(([cx, cy]) => Math.abs(cx - x) < radius && Math.abs(cy - y) < radius);
      if (corner >= 0) return { anchor: corners(this.region)[(corner + 2) % 4] };
      const [x0, y0, x1, y1] = this.region;
      if (x > x0 && x < x1 && y > y0 && y < y1) return { from: [x, y], region: this.region };
    }
    return { anchor: [x, y] };
  }

  move(event) {
    if (!this.drag) return;
    const [x, y] = this.point(event);
    if (this.drag.anchor) this.show(this.spanned(this.drag.anchor, [x, y]));
    else this.show(this.shifted(this.drag.region, x - this.drag.from[0], y - this.drag.from[1]));
  }

  end(event) {
    if (!this.drag) return;
    this.move(event);
    const { before } = this.drag;
    this.drag = null;
    const [x0, y0, x1, y1] = this.region;
    const minSide = MIN_SIDE * this.pixel();
    if (x1 - x0 < minSide || y1 - y0 < minSide) this.show(before);
    else if (this.region.join() !== before?.join()) this.onChange(this.region);
  }

  cancel() {
    if (this.drag) this.show(this.drag.before);
    this.drag = null;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = this.afterKey(event.key, event.shiftKey);
    if (next === undefined) return;
    event.preventDefault();
    event.stopPropagation();
    this.show(next);
    clearTimeout(this.delayed);
    this.delayed = setTimeout(() => this.element.isConnected && this.onChange(this.region), KEY_DELAY);
  }

  /** The region after a key; undefined if the key has no meaning here. @returns {Region | null | undefined} */
  afterKey(key, shift) {
    const { width, height, region } = this;
    if (!region)
      return key === "Enter" || key === "r" ? [width / 4, height / 4, width * 0.75, height * 0.75].map(Math.round) : undefined;
    if (key === "Escape") return null;
    const step = Math.max(1, Math.round(Math.max(width, height) / 50));
    const move = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -step], ArrowDown: [0, step] }[key];
    if (!move) return undefined;
    const [x0, y0, x1, y1] = region;
    if (!shift) return this.shifted(region, ...move);
    return [x0, y0, Math.min(width, Math.max(x0 + step, x1 + move[0])), Math.min(height, Math.max(y0 + step, y1 + move[1]))];
  }

  /** Pixels of the photograph in one CSS pixel. */
  pixel() {
    return this.width / Math.max(1, this.element.getBoundingClientRect().width);
  }

  point(event) {
    const box = this.element.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * this.width;
    const y = ((event.clientY - box.top) / box.height) * this.height;
    return [Math.min(this.width, Math.max(0, Math.round(x))), Math.min(this.height, Math.max(0, Math.round(y)))];
  }

  spanned([ax, ay], [x, y]) {
    return [Math.min(ax, x), Math.min(ay, y), Math.max(ax, x), Math.max(ay, y)];
  }

  shifted([x0, y0, x1, y1], dx, dy) {
    const x = Math.min(this.width - x1, Math.max(-x0, dx));
    const y = Math.min(this.height - y1, Math.max(-y0, dy));
    return [x0 + x, y0 + y, x1 + x, y1 + y];
  }
}

/** From the upper left, clockwise: the opposite of corner i is i + 2. @param {Region} region */
function corners([x0, y0, x1, y1]) {
  return [
    [x0, y0],
    [x1, y0],
    [x1, y1],
    [x0, y1],
  ];
}
