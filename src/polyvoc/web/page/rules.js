// By which rules is searched? Presets for everybody, and all options of the library for those who want to know.

import { optionControl } from "./control.js";
import { button, el, segmented } from "./elements.js";
import { PRESETS, changed, effective, overridden, withPreset } from "./options.js";

const PRESET_HELP = {
  fast: "by scores alone",
  default: "the arrangement of the matches is verified",
  best: "more is verified, and verified hits ask along",
};
const ORDER = [
  "sure",
  "merge",
  "hamming",
  "sigma",
  "burstiness",
  "burstiness_on",
  "verify",
  "expansion",
  "expand",
  "idf",
  "norm",
  "sets",
  "assignments",
  "line",
  "c",
  "smooth",
  "fuse",
];

/**
 * The panel of rules.
 * @param {{about: any, name: string, params: URLSearchParams, onChange: (params: URLSearchParams) => void}} setting
 *   `name` tells two panels of one view apart
 */
export class RulesPanel {
  constructor({ about, name, params, onChange }) {
    this.about = about;
    this.name = name;
    this.onChange = onChange;
    this.params = params;
    this.fields = new Map(fieldNames(about).map((field) => [field, this.field(field)]));
    this.presets = segmented({
      legend: "Rules",
      name: `${name}-preset`,
      value: "default",
      choices: PRESETS.map((key) => [key, key, PRESET_HELP[key]]),
      onChange: (preset) => this.change(withPreset(about, this.params, preset)),
    });
    this.note = el("p", { class: "soft small", id: `${name}-preset-help` });
    this.reset = button("Reset", {
      class: "quiet",
      onclick: () => this.change(withPreset(about, this.params, this.params.get("preset") ?? "default")),
    });
    this.summary = el("summary", {}, "All rules");
    const rows = [...this.fields.values()].map(({ row }) => row);
    const details = el(
      "details",
      { class: "all-rules", data: { rules: name } },
      this.summary,
      el("div", { class: "fields" }, ...rows),
      this.reset,
    );
    const where = name === "rules" ? "Rules" : `Rules of the ${name}`;
    this.element = el("section", { class: "rules", "aria-label": where }, this.presets, this.note, details);
    this.show(params);
  }

  /** Show the rules of a link without asking. @param {URLSearchParams} params */
  show(params) {
    this.params = params;
    const preset = params.get("preset") ?? "default";
    const values = effective(this.about, params);
    const own = overridden(this.about, params);
    for (const input of this.presets.querySelectorAll("input")) input.checked = input.value === preset;
    for (const [field, { input, row, write }] of this.fields) {
      if (document.activeElement !== input) write(values[field]);
      row.classList.toggle("own", own.includes(field));
    }
    this.note.textContent = own.length
      ? `${preset}, with ${own.map((field) => `${label(field)} ${params.get(field)}`).join(", ")}`
      : PRESET_HELP[preset];
    this.summary.textContent = own.length ? `All rules (${own.length} changed)` : "All rules";
    this.reset.hidden = own.length === 0;
  }

  change(params) {
    this.show(params);
    this.onChange(params);
  }

  field(field) {
    const id = `${this.name}-${field}`;
    const { about } = this;
    const control = optionControl(about, field, { id, data: { option: field }, "aria-describedby": `${id}-help` });
    control.input.addEventListener("change", () => {
      const value = control.read();
      if (value !== null) this.change(changed(about, this.params, field, value));
    });
    const row = el(
      "div",
      { class: "field" },
      el("label", { for: id }, label(field)),
      control.input,
      el("p", { class: "soft small", id: `${id}-help` }, about.texts?.[field] ?? ""),
    );
    return { ...control, row };
  }
}

function fieldNames(about) {
  const missing = new Set([
    ...(about.smooth ? [] : ["smooth"]),
    ...(about.fuse ? [] : ["fuse"]),
    ...(about.bits ? [] : ["hamming", "sigma"]),
    ...(about.probabilities ? [] : ["sure"]),
  ]);
  return ORDER.filter((field) => !missing.has(field) && field in about.presets.default);
}

const label = (field) => field.replaceAll("_", " ");
