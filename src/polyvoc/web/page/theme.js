// Light, dark, or as the system says? One button that goes through the three; the choice is kept in this browser.

import { icon } from "./elements.js";

const KEY = "polyvoc.theme";
const CHOICES = ["automatic", "light", "dark"];
const SIGNS = { automatic: "half", light: "sun", dark: "moon" };

/** @param {HTMLButtonElement} button */
export function startTheme(button) {
  let chosen = stored();
  const show = () => {
    if (chosen === "automatic") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    button.replaceChildren(icon(SIGNS[chosen]));
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
    // Not kept then; it holds for this page.
  }
}
