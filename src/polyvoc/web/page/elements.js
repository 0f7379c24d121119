// Building elements through the DOM only: text from the server is never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

const ICONS = {
  camera: "M4 8h3l2-3h6l2 3h3v11H4z M12 10a3.5 3.5 0 1 0 0 7 3.5 3.5 0 0 0 0-7z",
  photo: "M4 5h16v14H4z M4 16l5-5 4 4 3-3 4 4 M15 9h.01",
  upload: "M12 16V4 M7 9l5-5 5 5 M4 16v4h16v-4",
  search: "M10.5 4a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13z M15.5 15.5 21 21",
  copy: "M9 9h11v11H9z M5 15H4V4h11v1",
  compare: "M4 5h6v14H4z M14 5h6v14h-6z",
  region: "M4 8V4h4 M16 4h4v4 M20 16v4h-4 M8 20H4v-4",
  bin: "M5 7h14 M10 7V4h4v3 M7 7l1 13h8l1-13",
  plus: "M12 5v14 M5 12h14",
  check: "M5 13l4 4L19 7",
  swap: "M7 7h12l-3-3 M17 17H5l3 3",
  left: "M14 6l-6 6 6 6",
  right: "M10 6l6 6-6 6",
  close: "M6 6l12 12 M18 6 6 18",
  why: "M5 7a2 2 0 1 0 .1 0 M5 17a2 2 0 1 0 .1 0 M19 9a2 2 0 1 0 .1 0 M19 17a2 2 0 1 0 .1 0 M7 7l10 2.5 M7 17h10",
  download: "M12 4v11 M7 11l5 5 5-5 M4 20h16",
  funnel: "M4 5h16l-6 7v6l-4 2v-8z",
  folder: "M3 6h6l2 2h10v11H3z",
  sun: "M12 8a4 4 0 1 0 0 8 4 4 0 0 0 0-8z M12 2v3 M12 19v3 M2 12h3 M19 12h3 M5 5l2 2 M17 17l2 2 M19 5l-2 2 M7 17l-2 2",
  moon: "M20 14.5A8 8 0 0 1 9.5 4 8 8 0 1 0 20 14.5z",
  half: "M12 3a9 9 0 1 0 0 18 9 9 0 0 0 0-18z M12 3v18 M12 7h6 M12 12h9 M12 17h6",
};

/**
 * Create an element. Properties: `on…` are listeners, `style` and `data` are records, true/false set or omit an attribute.
 * @param {string} tag
 * @param {Record<string, any>} [properties]
 * @param {...(Node | string | number | null | undefined | false)} children
 * @returns {HTMLElement}
 */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** Create an SVG element, as `el` does. @returns {SVGElement} */
export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** One of the icons above, hidden from screen readers. */
export function icon(name, size = 18) {
  const box = { viewBox: "0 0 24 24", width: size, height: size, "aria-hidden": "true", class: "icon" };
  return svg("svg", box, svg("path", { d: ICONS[name] }));
}

/** A button with a label and an optional icon. */
export function button(label, properties = {}, iconName = null) {
  return el("button", { type: "button", ...properties }, iconName && icon(iconName), el("span", {}, label));
}

/** A link that looks like a button. */
export function linkButton(label, href, properties = {}, iconName = null) {
  return el("a", { class: "button", href, ...properties }, iconName && icon(iconName), el("span", {}, label));
}

/** A link that is an icon only; its label is its name and its tooltip. */
export function iconLink(label, href, iconName, properties = {}) {
  return el("a", { class: "button quiet", href, "aria-label": label, title: label, ...properties }, icon(iconName));
}

/** The heading of a view; the router moves the focus to it. */
export function heading(text, properties = {}) {
  return el("h1", { tabindex: "-1", ...properties }, text);
}

/**
 * A row of radio buttons.
 * @param {{legend: string, name: string, choices: Array<[string, string, string?]>, value: string,
 *   onChange: (value: string) => void}} setting choices: value, text, and help
 */
export function segmented({ legend, name, choices, value, onChange }) {
  const options = choices.map(([key, text, help]) => {
    const input = el("input", { type: "radio", name, value: key, checked: key === value, onchange: () => onChange(key) });
    return el("label", { class: "segment", title: help }, input, el("span", {}, text));
  });
  return el(
    "fieldset",
    { class: "segmented", data: { control: name } },
    el("legend", {}, legend),
    el("div", { class: "segments" }, ...options),
  );
}

/** The outline of a query in a photograph, to be laid over its picture. @param {number[][]} outline its corners, in pixels */
export function outlineOver({ outline, width, height }) {
  const points = outline.map((point) => point.join(",")).join(" ");
  return svg(
    "svg",
    { class: "outline", viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" },
    svg("svg", { width, height, overflow: "hidden" }, svg("polygon", { class: "casing", points }), svg("polygon", { points })),
  );
}

/** Whether the user prefers reduced motion. */
export function prefersReducedMotion() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches;
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) set(element, name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

function set(element, name, value) {
  if (value === undefined || value === null || value === false) return;
  if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
  else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
  else if (name === "data") Object.assign(element.dataset, value);
  else element.setAttribute(name, value === true ? "" : String(value));
}
