// Photographs that the user has selected, in this tab until it is closed, and their export as CSV or JSON.

import { button, el } from "./elements.js";
import { baseName, count } from "./format.js";

const FIELDS = ["image", "path", "width", "height", "changed", "probability", "inliers", "score"];
const FORMULA = /^[=+\-@\t\r]/; // a spreadsheet would compute a cell that begins with one of these

/** @type {Map<number, any>} */
const selected = new Map();
const listeners = new Set();

/** A checkbox that selects a photograph. @param {() => any} item its values at the time of the selection */
export function selectBox(image, path, item) {
  const input = el("input", { type: "checkbox", "aria-label": `Select ${baseName(path)}`, checked: selected.has(image) });
  input.addEventListener("change", () => {
    if (input.checked) selected.set(image, item());
    else selected.delete(image);
    changed();
  });
  return el("label", { class: "select-box", title: "Select", data: { select: image } }, input);
}

/** Select some photographs, and check their boxes. @param {any[]} items */
export function selectAll(items) {
  for (const item of items) selected.set(item.image, item);
  changed();
}

/** The bar with the number of selected photographs; hidden if there are none. @param {AbortSignal} signal of the view */
export function selectionBar(signal) {
  const text = el("span", { class: "grow" });
  const clear = () => {
    selected.clear();
    changed();
  };
  const bar = el(
    "div",
    { class: "selection-bar row", id: "selection", role: "region", "aria-label": "Selection" },
    text,
    button("CSV", { onclick: () => download("polyvoc-selection.csv", "text/csv", asCsv()) }, "download"),
    button("JSON", { onclick: () => download("polyvoc-selection.json", "application/json", asJson()) }, "download"),
    button("Clear", { class: "quiet", onclick: clear }, "close"),
  );
  const show = () => {
    bar.hidden = selected.size === 0;
    text.textContent = `${count(selected.size, "photograph")} selected`;
    for (const box of document.querySelectorAll("[data-select] input"))
      box.checked = selected.has(Number(box.parentElement.dataset.select));
  };
  listeners.add(show);
  signal.addEventListener("abort", () => listeners.delete(show), { once: true });
  show();
  return bar;
}

function changed() {
  for (const show of listeners) show();
}

const rows = () => [...selected.values()].map((item) => Object.fromEntries(FIELDS.map((name) => [name, item[name] ?? null])));

const asJson = () => `${JSON.stringify(rows(), null, 1)}\n`;

function asCsv() {
  const lines = [FIELDS, ...rows().map((row) => FIELDS.map((name) => row[name]))];
  return lines.map((line) => `${line.map(cell).join(",")}\r\n`).join("");
}

function cell(value) {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const text = FORMULA.test(value) ? `'${value}` : value;
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function download(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
