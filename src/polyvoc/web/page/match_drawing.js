// Drawing of matches: one SVG with both pictures, so that lines need no measuring and scale with the page.

import { svg } from "./elements.js";
import { isByImage } from "./evidence.js";
import { pictureUrl } from "./images.js";

const SIZE = 1000; // length of the side that both pictures share
const GAP = 24;
const THIN_FROM = 60; // number of matches from which lines become thinner
const BY_IMAGE = 0.75; // width of a match that is in its set by its image, compared with others
const POINTER_RADIUS = 16; // CSS pixels within which the pointer selects a match

export class MatchDrawing {
  /**
   * @param {any} explanation of `readEvidence`
   * @param {{query: string, region: number[] | null, stacked: boolean, label: string}} how
   */
  constructor(explanation, { query, region, stacked, label }) {
    this.explanation = explanation;
    this.layout = layoutOf(explanation.query, explanation.image, stacked);
    this.groups = {
      lines: svg("g", { class: "lines" }),
      dots: svg("g", { class: "dots" }),
      active: svg("g", { class: "active" }),
    };
    this.shown = []; // indices of the matches that are shown
    const { width, height } = this.layout;
    this.element = svg(
      "svg",
      {
        class: "match-drawing",
        id: "match-drawing",
        viewBox: `0 0 ${width} ${height}`,
        tabindex: "0",
        role: "group",
        "aria-label": label,
      },
      ...this.pictures(query),
      ...this.frames(region),
      ...Object.values(this.groups),
    );
  }

  /**
   * Draw some of the matches, lowest weight first, so that high weights are on top.
   * @param {number[]} numbers highest weight first
   * @param {"lines" | "dots"} mode
   */
  show(numbers, mode) {
    this.shown = numbers;
    this.mode = mode;
    this.thin = Math.min(1, Math.max(0.5, Math.sqrt(THIN_FROM / numbers.length)));
    this.element.dataset.mode = mode;
    this.element.dataset.shown = String(numbers.length);
    const order = [...numbers].reverse().sort((a, b) => this.match(a).inlier - this.match(b).inlier);
    this.groups.lines.replaceChildren(...(mode === "lines" ? order.flatMap((number) => this.line(number)) : []));
    this.groups.dots.replaceChildren(...order.map((number) => this.dots(number)));
  }

  /** Highlight one match. @param {number | null} number */
  highlight(number) {
    this.element.classList.toggle("highlighting", number !== null);
    if (number === null) {
      this.groups.active.replaceChildren();
      return;
    }
    const group = this.classOf(number);
    const [[ax, ay], [bx, by]] = this.ends(number);
    const d = `M${ax} ${ay}L${bx} ${by}`;
    const ends = `M${ax} ${ay}h0M${bx} ${by}h0`;
    this.groups.active.replaceChildren(
      svg("path", { class: this.casingClass(number), d }),
      svg("path", { class: `link ${group}`, d }),
      svg("path", { class: "ring-casing", d: ends }),
      svg("path", { class: `ring ${group}`, d: ends }),
      svg("path", { class: "ring-hole", d: ends }),
    );
  }

  /** The shown match nearest to the pointer, null if none is near. @param {PointerEvent} event */
  nearest(event) {
    const matrix = this.element.getScreenCTM();
    if (!matrix) return null;
    const { x, y } = new DOMPoint(event.clientX, event.clientY).matrixTransform(matrix.inverse());
    let [best, smallest] = [null, POINTER_RADIUS / matrix.a];
    for (const number of this.shown) {
      const [a, b] = this.ends(number);
      const toEnds = Math.min(Math.hypot(a[0] - x, a[1] - y), Math.hypot(b[0] - x, b[1] - y));
      const distance = this.mode === "lines" ? Math.min(toEnds, 2 * toSegment([x, y], a, b)) : toEnds;
      if (distance < smallest) [best, smallest] = [number, distance];
    }
    return best;
  }

  /** Width divided by height. */
  get aspect() {
    return this.layout.width / this.layout.height;
  }

  match(number) {
    return this.explanation.matches[number];
  }

  /** The classes of a match: its group, and whether it is in its set by its image. */
  classOf(number) {
    const match = this.match(number);
    return `${match.group}${isByImage(match) ? " by-image" : ""}`;
  }

  casingClass(number) {
    return isByImage(this.match(number)) ? "casing by-image" : "casing";
  }

  /** The factor of the width of a match. */
  widthOf(number) {
    return isByImage(this.match(number)) ? BY_IMAGE * this.thin : this.thin;
  }

  /** Both ends in coordinates of the drawing. */
  ends(number) {
    const { query_xy: from, image_xy: to } = this.match(number);
    const { query, image } = this.layout;
    return [toDrawing(query, from), toDrawing(image, to)];
  }

  line(number) {
    const [[ax, ay], [bx, by]] = this.ends(number);
    const { strength, inlier } = this.match(number);
    const d = `M${ax} ${ay}L${bx} ${by}`;
    const width = this.widthOf(number) * (1 + 3 * Math.sqrt(strength));
    const line = svg("path", {
      class: `link ${this.classOf(number)} ${inlier ? "inlier" : "outlier"}`,
      d,
      "stroke-width": width.toFixed(2),
    });
    const casing = { class: this.casingClass(number), d, "stroke-width": (width + 1.5).toFixed(2) };
    return inlier ? [svg("path", casing), line] : [line];
  }

  dots(number) {
    const [[ax, ay], [bx, by]] = this.ends(number);
    const { strength, inlier } = this.match(number);
    const width = this.widthOf(number) * ((this.mode === "dots" ? 7 : 4) + 5 * Math.sqrt(strength));
    return svg("path", {
      class: `dot ${this.classOf(number)} ${inlier ? "inlier" : "outlier"}`,
      d: `M${ax} ${ay}h0M${bx} ${by}h0`,
      "stroke-width": width.toFixed(1),
    });
  }

  pictures(query) {
    const { query: left, image: right } = this.layout;
    const of = (box, href) =>
      svg("image", { href, x: box.x, y: box.y, width: box.width, height: box.height, preserveAspectRatio: "none" });
    return [of(left, pictureUrl(query, 1600)), of(right, pictureUrl(this.explanation.image.image, 1600))];
  }

  /** The region in the query, and its outline in the hit. */
  frames(region) {
    const { query, image, outline } = this.explanation;
    const frames = [];
    if (region) {
      const [x0, y0, x1, y1] = region;
      frames.push(
        frame(
          this.layout.query,
          query,
          [
            [x0, y0],
            [x1, y0],
            [x1, y1],
            [x0, y1],
          ],
          "region-line",
        ),
      );
    }
    if (outline) frames.push(frame(this.layout.image, image, outline, "outline-line"));
    return frames;
  }
}

/** Side by side with the same height, or stacked with the same width. */
function layoutOf(query, image, stacked) {
  const scales = [query, image].map((photo) => SIZE / (stacked ? photo.width : photo.height));
  const [left, right] = [query, image].map((photo, i) => ({
    x: 0,
    y: 0,
    scale: scales[i],
    width: photo.width * scales[i],
    height: photo.height * scales[i],
  }));
  if (stacked) right.y = left.height + GAP;
  else right.x = left.width + GAP;
  return { query: left, image: right, width: right.x + right.width, height: right.y + right.height };
}

/** A polygon in pixels of an image, clipped to it. */
function frame({ x, y, width, height }, photo, corners, name) {
  const points = corners.map((corner) => corner.join(",")).join(" ");
  return svg(
    "svg",
    {
      class: "frame",
      x,
      y,
      width,
      height,
      viewBox: `0 0 ${photo.width} ${photo.height}`,
      preserveAspectRatio: "none",
      overflow: "hidden",
    },
    svg("polygon", { class: "casing", points }),
    svg("polygon", { class: name, points }),
  );
}

const toDrawing = (box, [x, y]) => [round(box.x + x * box.scale), round(box.y + y * box.scale)];
const round = (value) => Math.round(10 * value) / 10;

function toSegment([x, y], [ax, ay], [bx, by]) {
  const [dx, dy] = [bx - ax, by - ay];
  const along = Math.max(0, Math.min(1, ((x - ax) * dx + (y - ay) * dy) / (dx * dx + dy * dy || 1)));
  return Math.hypot(x - ax - along * dx, y - ay - along * dy);
}
