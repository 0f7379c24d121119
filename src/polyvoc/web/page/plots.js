// Histograms and bars in SVG, with axes, values on hover, and a table for screen readers.

import { el, svg } from "./elements.js";
import { formatInteger, formatNumber, formatPercent } from "./format.js";

const [WIDTH, HEIGHT] = [330, 210];
const MARGIN = { left: 62, right: 22, top: 12, bottom: 40 };
const [INNER_WIDTH, INNER_HEIGHT] = [WIDTH - MARGIN.left - MARGIN.right, HEIGHT - MARGIN.top - MARGIN.bottom];

/**
 * A histogram with a readout of the bar under the pointer.
 * @param {{title: string, note?: string, edges: number[], counts: number[], xLabel: string, yLabel: string,
 *   logarithmic?: boolean, tail?: boolean, mark?: {at: number, text: string}}} data
 *   one edge more than bins; `logarithmic`: logarithmic x axis; `tail`: logarithmic y axis, so that a long tail is visible
 */
export function histogram({ title, note, edges, counts, xLabel, yLabel, logarithmic = false, tail = false, mark }) {
  const total = counts.reduce((sum, count) => sum + count, 0) || 1;
  const most = Math.max(...counts, 1);
  const x = axisScale(edges, logarithmic);
  const height = tail ? (value) => Math.log10(1 + value) / Math.log10(1 + most) : (value) => value / most;
  const y = (value) => MARGIN.top + INNER_HEIGHT * (1 - height(value));
  const idle = note ?? "Point at a bar to read its value.";
  const readout = el("p", { class: "readout small", "aria-hidden": "true" }, idle);
  const bars = counts.map((count, i) => {
    const text = `${range(edges[i], edges[i + 1], logarithmic)}: ${formatInteger(count)} (${formatPercent(count / total)})`;
    return bar({ x0: x(edges[i]), x1: x(edges[i + 1]), top: y(count), text, readout, idle });
  });
  const plot = svg(
    "svg",
    { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", "aria-label": `${title}: ${yLabel} by ${xLabel}` },
    ...valueAxis(tail ? [0, ...powers(1, most)] : evenly(most), y, yLabel),
    ...binAxis(edges, x, xLabel, logarithmic),
    ...bars,
    ...(mark ? marker(x(mark.at), mark.text) : []),
  );
  return el(
    "figure",
    { class: "plot-box" },
    el("h3", {}, title),
    plot,
    readout,
    valuesTable(edges, counts, xLabel, yLabel, logarithmic),
  );
}

/**
 * A table with horizontal bars.
 * @param {Array<[string, number]>} values
 * @param {(value: number) => string} format
 */
export function bars(values, format) {
  const most = Math.max(...values.map(([, value]) => value), 1);
  const total = values.reduce((sum, [, value]) => sum + value, 0) || 1;
  const rows = values.map(([name, value]) => {
    const fill = el("span", { class: "bar-fill", "aria-hidden": "true" });
    fill.style.setProperty("width", `${(100 * value) / most}%`);
    return el(
      "tr",
      {},
      el("th", { scope: "row" }, name),
      el("td", { class: "bar-cell" }, fill),
      el("td", { class: "number" }, format(value)),
      el("td", { class: "number soft" }, formatPercent(value / total)),
    );
  });
  return el("table", { class: "bars" }, el("tbody", {}, ...rows));
}

function bar({ x0, x1, top, text, readout, idle }) {
  const bottom = MARGIN.top + INNER_HEIGHT;
  const gap = x1 - x0 > 4 ? 1 : 0;
  const visible = svg("rect", {
    class: "bar",
    x: x0,
    y: top,
    width: Math.max(0.5, x1 - x0 - gap),
    height: Math.max(0, bottom - top),
  });
  const target = svg("rect", { class: "touch", x: x0, y: MARGIN.top, width: Math.max(0.5, x1 - x0), height: INNER_HEIGHT });
  const group = svg("g", { class: "bin" }, visible, target);
  group.addEventListener("pointerenter", () => {
    readout.textContent = text;
  });
  group.addEventListener("pointerleave", () => {
    readout.textContent = idle;
  });
  return group;
}

function axisScale(edges, logarithmic) {
  const of = logarithmic ? (value) => Math.log10(Math.max(value, edges.find((edge) => edge > 0) ?? 1)) : (value) => value;
  const [first, last] = [of(edges[0]), of(edges[edges.length - 1])];
  return (value) => MARGIN.left + (INNER_WIDTH * (of(value) - first)) / (last - first || 1);
}

function valueAxis(ticks, y, label) {
  const lines = ticks.flatMap((tick) => [
    svg("line", { class: "grid-line", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: y(tick), y2: y(tick) }),
    svg("text", { x: MARGIN.left - 6, y: y(tick) + 4, "text-anchor": "end" }, short(tick)),
  ]);
  const middle = MARGIN.top + INNER_HEIGHT / 2;
  return [
    ...lines,
    svg(
      "text",
      { class: "axis-label", x: 12, y: middle, "text-anchor": "middle", transform: `rotate(-90 12 ${middle})` },
      label,
    ),
  ];
}

function binAxis(edges, x, label, logarithmic) {
  const [first, last] = [edges[0], edges[edges.length - 1]];
  const ticks = logarithmic
    ? powers(Math.max(first, 1), last)
    : Array.from({ length: 6 }, (_, i) => first + ((last - first) * i) / 5);
  const bottom = MARGIN.top + INNER_HEIGHT;
  return [
    svg("line", { class: "axis", x1: MARGIN.left, x2: WIDTH - MARGIN.right, y1: bottom, y2: bottom }),
    ...ticks.map((tick) => svg("text", { x: x(tick), y: bottom + 15, "text-anchor": "middle" }, short(tick))),
    svg("text", { class: "axis-label", x: MARGIN.left + INNER_WIDTH / 2, y: HEIGHT - 6, "text-anchor": "middle" }, label),
  ];
}

function marker(at, text) {
  const left = at > MARGIN.left + 0.7 * INNER_WIDTH;
  return [
    svg("line", { class: "mark", x1: at, x2: at, y1: MARGIN.top, y2: MARGIN.top + INNER_HEIGHT }),
    svg(
      "text",
      { class: "mark-text", x: at + (left ? -5 : 5), y: MARGIN.top + 10, "text-anchor": left ? "end" : "start" },
      text,
    ),
  ];
}

function valuesTable(edges, counts, xLabel, yLabel, logarithmic) {
  const rows = counts.map((count, i) =>
    el(
      "tr",
      {},
      el("th", { scope: "row" }, range(edges[i], edges[i + 1], logarithmic)),
      el("td", { class: "number" }, formatInteger(count)),
    ),
  );
  const head = el("tr", {}, el("th", { scope: "col" }, xLabel), el("th", { scope: "col", class: "number" }, yLabel));
  return el(
    "details",
    { class: "small values" },
    el("summary", {}, "As a table"),
    el("table", {}, el("thead", {}, head), el("tbody", {}, ...rows)),
  );
}

/** The range of a bin; bins of integers end before the next edge. */
function range(low, high, integers) {
  if (!integers) return `${formatNumber(low)} to ${formatNumber(high)}`;
  const [first, last] = [Math.ceil(low), Math.ceil(high) - 1];
  return first >= last ? formatInteger(first) : `${formatInteger(first)} to ${formatInteger(last)}`;
}

function powers(low, high) {
  const first = Math.ceil(Math.log10(low) - 1e-9);
  return Array.from({ length: Math.max(1, Math.floor(Math.log10(high) + 1e-9) - first + 1) }, (_, i) => 10 ** (first + i));
}

function evenly(most) {
  const step = niceStep(most / 4);
  return Array.from({ length: Math.floor(most / step) + 1 }, (_, i) => i * step);
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-12)));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough);
}

function short(value) {
  if (value >= 1e6) return `${formatNumber(value / 1e6)}M`;
  return value >= 1e4 ? `${formatNumber(value / 1e3)}k` : formatNumber(value);
}
