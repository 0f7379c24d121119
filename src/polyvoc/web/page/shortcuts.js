// Keyboard shortcuts of all views, and the dialog that lists them.

import { button, el } from "./elements.js";
import { go } from "./router.js";

const SHORTCUTS = [
  ["?", "show this list"],
  ["/", "find a photograph of the collection by name"],
  ["Ctrl V", "search with the picture in the clipboard"],
  ["← ↑ → ↓", "move in a grid; select a match"],
  ["Enter", "show the focused photograph large"],
  ["← →", "large photograph: the previous and the next one"],
  ["q", "search with the focused photograph, or with the large one"],
  ["w", "large photograph: why these match"],
  ["n, p", "matches view: next and previous hit"],
  ["j, k", "copies: next and previous pair"],
  ["1, 2, 3", "copies: copy, another shot, different"],
  ["d, m, u", "copies: difference, move the others, undo the last move"],
  ["r, Enter", "on the query: select a region"],
  ["← ↑ → ↓", "move the region; with Shift resize it"],
  ["Esc", "clear the region; close this list, or the large photograph"],
];

/** Listen for the shortcuts. @param {() => import("./router.js").View | null} currentView */
export function listenForShortcuts(currentView) {
  const dialog = shortcutsDialog();
  document.body.append(dialog);
  const toggle = () => (dialog.open ? dialog.close() : dialog.showModal());
  document.getElementById("shortcuts-button").addEventListener("click", toggle);
  const actions = { "?": toggle, "/": focusFind, q: searchWithFocused };
  document.addEventListener("keydown", (event) => {
    if (!isPlain(event) || (dialog.open && event.key !== "?")) return;
    const action = currentView()?.shortcuts?.[event.key] ?? actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

function shortcutsDialog() {
  const rows = SHORTCUTS.map(([key, text]) => el("tr", {}, el("th", { scope: "row" }, el("kbd", {}, key)), el("td", {}, text)));
  const dialog = el(
    "dialog",
    { id: "shortcuts", "aria-labelledby": "shortcuts-heading" },
    el("h2", { id: "shortcuts-heading" }, "Keyboard shortcuts"),
    el("table", {}, el("tbody", {}, ...rows)),
    button("Close", { class: "primary", onclick: () => dialog.close() }),
  );
  return dialog;
}

/** Focus the name filter of this view, or that of the browse view. */
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

function searchWithFocused() {
  const tile = document.activeElement?.closest("[data-image]");
  if (tile) go("search", { query: tile.dataset.image });
}

/** Whether a key is neither handled already nor typed into a field. */
function isPlain(event) {
  return !(event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || isTextInput(event.target));
}

function isTextInput(target) {
  return (
    target instanceof HTMLElement &&
    target.matches("input:not([type=radio], [type=checkbox], [type=range], [type=file]), select, textarea")
  );
}
