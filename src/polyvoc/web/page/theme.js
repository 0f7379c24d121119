// Light, dark or automatic colours: one button that cycles through them; the choice is stored in this browser.

import { icon } from "./elements.js";

const KEY = "polyvoc.theme";
const CHOICES = ["automatic", "light", "dark"];
const ICONS = { automatic: "half", light: "sun", dark: "moon" };

/** @param {HTMLButtonElement} button */
export function startTheme(button) {
  let chosen = stored();
  const show = () => {
    if (chosen === "automatic") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    button.replaceChildren(icon(ICONS[chosen]));
    button.setAttribute("aria-label", `Colours: ${chosen}`);
    button.title = `Colours: ${chosen}`;
  };
  button.addEventListener("click", () => {
    chosen = CHOICES[(CHOICES.indexOf(chosen) + 1) % CHOICES.length];
    store(chosen);
    show();
  });
  show();
}

function stored() {
  try {
    const value = localStorage.getItem(KEY);
    return CHOICES.includes(value) ? value : "automatic";
  } catch {
    return "automatic";
  }
}

function store(value) {
  try {
    localStorage.setItem(KEY, value);
  } catch {
    // Storage may be blocked: the choice applies to this page only.
  }
}
