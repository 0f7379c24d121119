// The panel of search settings: presets, and all options of the library in a fold that scrolls by itself.

import { button, el, segmented } from "./elements.js";
import { optionInput } from "./option_input.js";
import { MIN_PROBABILITY, autoSetsText, changedOptions, effectiveValues, label, withOption, withPreset } from "./options.js";

const PRESET_HELP = {
  fast: "compares details only, not where they are",
  default: "also checks whether matching details are arranged alike",
  best: "checks more candidates, and searches again with sure hits; slower",
  paper: "as in the paper: Bayes merging of two vocabularies, sets of images",
};
const FIRST = [MIN_PROBABILITY, "verify"]; // the everyday options; the others follow in the order of the server
const HIDDEN = ["top", "since", "require_all"]; // set by "Show more"; only for commands: numbers of commits, no partial result
/** Options that need something which the index may lack: the property of `/about` that tells whether it is there. */
const NEEDS = { smooth: "smooth", fuse: "fuse", hamming: "bits", sigma: "bits", [MIN_PROBABILITY]: "probabilities" };
/** Options of rules that merge words: without effect on a search by codes. */
const OF_WORDS = ["vocabularies", "idf", "idf_power", "norm", "line", "c", "hamming", "sigma", "burstiness", "sets"];

/**
 * The panel of search options.
 * @param {{about: any, name: string, params: URLSearchParams, onChange: (params: URLSearchParams) => void}} settings
 *   `name` distinguishes two panels of one view
 */
export class OptionsPanel {
  constructor({ about, name, params, onChange }) {
    this.about = about;
    this.name = name;
    this.onChange = onChange;
    this.params = params;
    this.fields = new Map(shownOptions(about).map((option) => [option.name, this.field(option)]));
    this.presets = segmented({
      legend: "Search settings",
      name: `${name}-preset`,
      value: "default",
      choices: Object.keys(about.presets).map((key) => [key, key, PRESET_HELP[key]]),
      onChange: (preset) => this.change(withPreset(about, this.params, preset)),
    });
    this.note = el("p", { class: "soft small", id: `${name}-preset-help` });
    this.reset = button("Reset", {
      class: "quiet",
      onclick: () => this.change(withPreset(about, this.params, this.params.get("preset") ?? "default")),
    });
    this.summary = el("summary", {}, "Expert settings");
    const rows = [...this.fields.values()].map(({ row }) => row);
    const details = el(
      "details",
      { class: "all-options", data: { options: name } },
      this.summary,
      el("div", { class: "fields", tabindex: "-1" }, ...rows),
      this.reset,
    );
    const title = name === "options" ? "Search settings" : `Search settings on the ${name}`;
    this.element = el("section", { class: "options", "aria-label": title }, this.presets, this.note, details);
    this.show(params);
  }

  /** Show the options of a link without a search. @param {URLSearchParams} params */
  show(params) {
    this.params = params;
    const preset = params.get("preset") ?? "default";
    const values = effectiveValues(this.about, params);
    const changed = changedOptions(this.about, params);
    for (const input of this.presets.querySelectorAll("input")) input.checked = input.value === preset;
    this.fields.get("sets").input.querySelector("[value=auto]").textContent = autoSetsText(this.about, values.merge);
    for (const [name, { input, row, write }] of this.fields) {
      if (document.activeElement !== input) write(values[name]);
      row.classList.toggle("changed", changed.includes(name));
      row.hidden = values.merge === "codes" && OF_WORDS.includes(name) && !changed.includes(name);
    }
    this.note.textContent = changed.length
      ? `${preset}, with ${changed.map((name) => `${label(name)} ${params.get(name)}`).join(", ")}`
      : PRESET_HELP[preset];
    this.summary.textContent = changed.length ? `Expert settings (${changed.length} changed)` : "Expert settings";
    this.reset.hidden = changed.length === 0;
  }

  change(params) {
    this.show(params);
    this.onChange(params);
  }

  field(option) {
    const id = `${this.name}-${option.name}`;
    const { about } = this;
    const control = optionInput(option, { id, data: { option: option.name }, "aria-describedby": `${id}-help` });
    control.input.addEventListener("change", () => {
      const value = control.read();
      if (value !== null) this.change(withOption(about, this.params, option.name, value));
    });
    const row = el(
      "div",
      { class: "field" },
      el("label", { for: id }, label(option.name)),
      control.input,
      el("p", { class: "soft small", id: `${id}-help` }, option.help),
    );
    return { ...control, row };
  }
}

function shownOptions(about) {
  const possible = about.options.filter(({ name }) => !HIDDEN.includes(name) && (!(name in NEEDS) || about[NEEDS[name]]));
  return [
    ...possible.filter(({ name }) => FIRST.includes(name)),
    ...possible.filter(({ name }) => !FIRST.includes(name)),
  ];
}
