// Which keys are there? A list of them, and what single keys do on every view.

import { button, el } from "./elements.js";
import { go } from "./router.js";

const KEYS = [
  ["?", "show these keys"],
  ["/", "find a photograph of the collection by name"],
  ["Ctrl V", "ask with the picture in the clipboard"],
  ["← ↑ → ↓", "move in a grid; go through the matches"],
  ["Enter", "open: the matches of a hit, the results of a photograph"],
  ["q", "ask with the photograph that has the focus"],
  ["n, p", "matches view: next and previous hit"],
  ["r, Enter", "on the photograph that asks: mark a region"],
  ["← ↑ → ↓", "move the region; with Shift resize it"],
  ["Esc", "clear the region; close this list"],
];

/** Listen for single keys. @param {() => import("./router.js").View | null} currentView */
export function startKeys(currentView) {
  const dialog = keysDialog();
  document.body.append(dialog);
  const toggle = () => (dialog.open ? dialog.close() : dialog.showModal());
  document.getElementById("keys-button").addEventListener("click", toggle);
  const keys = { "?": toggle, "/": focusFind, q: askWithFocused };
  document.addEventListener("keydown", (event) => {
    if (!isPlain(event) || (dialog.open && event.key !== "?")) return;
    const action = currentView()?.keys?.[event.key] ?? keys[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

function keysDialog() {
  const rows = KEYS.map(([key, text]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, key)), el("td", {}, text)));
  const dialog = el(
    "dialog",
    { id: "keys", "aria-labelledby": "keys-heading" },
    el("h2", { id: "keys-heading" }, "Keys"),
    el("table", {}, el("tbody", {}, ...rows)),
    button("Close", { class: "primary", onclick: () => dialog.close() }),
  );
  return dialog;
}

/** To the field that finds by name: of this view, or of the collection's. */
function focusFind() {
  const field = document.querySelector("[data-find]");
  if (field) {
    field.focus();
    field.select();
  } else {
    go("browse");
    addEventListener("hashchange", () => setTimeout(() => document.querySelector("[data-find]")?.focus()), { once: true });
  }
}

function askWithFocused() {
  const tile = document.activeElement?.closest("[data-image]");
  if (tile) go("search", { query: tile.dataset.image });
}

/** A single key that nobody else has taken, and that is no writing. */
function isPlain(event) {
  return !(event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isWriting(event.target));
}

function isWriting(target) {
  return (
    target instanceof HTMLElement &&
    target.matches("input:not([type=radio], [type=checkbox], [type=range], [type=file]), select, textarea")
  );
}
