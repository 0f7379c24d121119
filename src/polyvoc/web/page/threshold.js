// The probability from which a hit is called likely: a slider above the results, remembered by this browser.

import { el } from "./elements.js";

const KEY = "polyvoc.threshold";
const LIKELY = 0.5; // as in the library and on the command line
const [LEAST, MOST] = [0.05, 0.95];

/** The threshold of this browser. */
export function threshold() {
  const stored = Number(read());
  return stored >= LEAST && stored <= MOST ? stored : LIKELY;
}

/** The slider. @param {() => void} onChange */
export function thresholdSlider(onChange) {
  const input = el("input", { type: "range", id: "threshold", min: 100 * LEAST, max: 100 * MOST, step: 5 });
  const output = el("output", { for: "threshold" });
  const show = () => {
    output.textContent = `${input.value} %`;
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.value = String(Math.round(100 * threshold()));
  input.addEventListener("input", () => {
    write(String(input.valueAsNumber / 100));
    show();
    onChange();
  });
  show();
  return el("div", { class: "threshold row" }, el("label", { for: "threshold" }, "Likely from"), input, output);
}

function read() {
  try {
    return localStorage.getItem(KEY);
  } catch {
    return null; // storage is switched off
  }
}

function write(value) {
  try {
    localStorage.setItem(KEY, value);
  } catch {
    // remembered for this view only
  }
}
