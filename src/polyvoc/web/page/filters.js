// The fold with filters by folder and date: of the collection, or of the hits of a search.

import { button, el } from "./elements.js";
import { dayOf, folderOf, formatInteger } from "./format.js";

export const FILTERS = ["folder", "changed_from", "changed_until"]; // parameters of links, and of GET /images

/** The parameters of a link that are filters. @param {URLSearchParams} params */
export function filterParams(params) {
  return new URLSearchParams([...params].filter(([name, value]) => FILTERS.includes(name) && value));
}

/** Whether a photograph passes the filters of a link. */
export function passes({ path, changed }, params) {
  const folder = params.get("folder");
  const day = dayOf(changed);
  if (folder && !path.startsWith(`${folder}/`)) return false;
  if (params.get("changed_from") && !(day && day >= params.get("changed_from"))) return false;
  return !params.get("changed_until") || Boolean(day && day <= params.get("changed_until"));
}

/** The folders of some photographs, with their numbers. @param {{path: string}[]} items */
export function foldersOf(items) {
  const counts = new Map();
  for (const { path } of items) counts.set(folderOf(path), (counts.get(folderOf(path)) ?? 0) + 1);
  return [...counts].sort(([a], [b]) => (a < b ? -1 : 1)).map(([path, images]) => ({ path, images }));
}

export class FilterFold {
  /**
   * @param {{params: URLSearchParams, onChange: (changes: Record<string, string | null>) => void}} how
   */
  constructor({ params, onChange }) {
    this.onChange = onChange;
    this.folder = el("select", { id: "filter-folder", onchange: () => onChange({ folder: this.folder.value }) });
    this.changed_from = this.dateInput("changed_from");
    this.changed_until = this.dateInput("changed_until");
    this.summary = el("summary", {}, "Filter");
    const clear = button("Clear", { class: "quiet", onclick: () => onChange({ folder: null, changed_from: null, changed_until: null }) });
    this.element = el(
      "details",
      { class: "filters", id: "filters" },
      this.summary,
      el(
        "div",
        { class: "row filter-fields" },
        el("label", {}, "Folder", this.folder),
        el("label", {}, "Changed from", this.changed_from),
        el("label", {}, "Changed until", this.changed_until),
        clear,
      ),
    );
    this.folders = [];
    this.show(params);
  }

  dateInput(name) {
    const input = el("input", { type: "date", id: `filter-${name}`, max: "9999-12-31" });
    input.addEventListener("change", () => input.checkValidity() && this.onChange({ [name]: input.value }));
    return input;
  }

  /** The folders to choose from. @param {{path: string, images: number}[]} folders */
  offer(folders, params) {
    this.folders = folders;
    this.show(params);
  }

  /** Show the filters of a link. @param {URLSearchParams} params */
  show(params) {
    const chosen = params.get("folder") ?? "";
    const folders = this.folders.some(({ path }) => path === chosen) || !chosen ? this.folders : [{ path: chosen }, ...this.folders];
    const common = commonHead(folders.map(({ path }) => path));
    this.folder.replaceChildren(
      el("option", { value: "" }, "all folders"),
      ...folders.map(({ path, images }) => el("option", { value: path }, optionText(path, common, images))),
    );
    this.folder.value = chosen;
    for (const name of ["changed_from", "changed_until"]) if (document.activeElement !== this[name]) this[name].value = params.get(name) ?? "";
    const number = filterParams(params).size;
    this.summary.textContent = number ? `Filter (${number} set)` : "Filter";
    if (number) this.element.open = true;
  }
}

function optionText(path, common, images) {
  const name = path.slice(common.length) || path;
  return images === undefined ? name : `${name} (${formatInteger(images)})`;
}

/** What all paths begin with, up to a separator. */
function commonHead(paths) {
  if (paths.length < 2) return "";
  let head = folderOf(paths[0]);
  while (head && !paths.every((path) => path === head || path.startsWith(`${head}/`))) head = folderOf(head);
  return head && `${head}/`;
}
