// Links to the pages of a list.

import { el, icon } from "./elements.js";
import { formatInteger } from "./format.js";

/**
 * Show links to the first, previous, next and last page, and a field for the number.
 * @param {HTMLElement} pager
 * @param {{page: number, pages: number, to: (page: number) => string}} where pages are numbered from 1
 */
export function showPager(pager, { page, pages, to }) {
  pager.hidden = pages < 2 && page === 1;
  const link = (label, number, symbol, enabled) =>
    enabled
      ? el("a", { class: "button quiet", href: to(number), "aria-label": label, title: label }, symbol)
      : el("span", { class: "button quiet off", "aria-hidden": "true" }, symbol);
  const field = el("input", { type: "number", min: 1, max: Math.max(1, pages), value: page, "aria-label": `Page (of ${pages})` });
  field.addEventListener("change", () => {
    if (field.checkValidity()) location.hash = to(field.valueAsNumber);
  });
  pager.replaceChildren(
    link("First page", 1, el("span", {}, icon("left"), icon("left")), page > 1),
    link("Previous page", page - 1, icon("left"), page > 1),
    field,
    el("span", { class: "soft" }, `of ${formatInteger(pages)}`),
    link("Next page", page + 1, icon("right"), page < pages),
    link("Last page", pages, el("span", {}, icon("right"), icon("right")), page < pages),
  );
}
