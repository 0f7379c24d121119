// The first run: choose a folder of photographs on this machine, watch it being indexed, go on to search.

import { getJson, send } from "./api.js";
import { button, el, heading, icon } from "./elements.js";
import { count } from "./format.js";
import { JobPanel } from "./job_panel.js";
import { announce, clearErrors, showError } from "./messages.js";

const CHOOSE = "Choose a folder of photographs";

/** @param {() => void} onReady called when the index can be searched */
export function setupView(onReady) {
  const view = new SetupView(onReady);
  view.start();
  return { element: view.element, title: "Choose a folder" };
}

class SetupView {
  constructor(onReady) {
    this.onReady = onReady;
    this.path = "";
    this.here = el("p", { class: "folder-here", id: "folder-here" });
    this.list = el("ul", { class: "folder-list", id: "folders", "aria-label": "Folders" });
    this.note = el("p", { class: "soft small" });
    this.place = el("p", { class: "soft small" });
    this.use = button("Index this folder", { class: "primary", id: "use-folder", onclick: () => this.index() }, "check");
    this.chooser = el(
      "section",
      { class: "chooser", "aria-label": "Folders of this computer" },
      this.here,
      this.list,
      this.note,
      this.place,
      el("div", { class: "row" }, this.use),
    );
    this.go = el("div", { class: "row", hidden: true }, button("Go on to search", { class: "primary", onclick: onReady }, "search"));
    this.job = new JobPanel("/setup", { onEnd: (state) => this.onEnd(state) });
    this.heading = heading(CHOOSE);
    this.lead = el(
      "p",
      { class: "lead" },
      "polyvoc reads the photographs of a folder and all its subfolders once, and keeps an index of them. ",
      "Your photographs are not changed, and nothing leaves this computer.",
    );
    this.element = el(
      "div",
      { class: "setup" },
      this.heading,
      this.lead,
      this.chooser,
      this.job.element,
      this.go,
    );
  }

  async start() {
    try {
      const state = await getJson("/setup");
      if (state.state === "running") this.follow(state);
      else await this.show("");
    } catch (error) {
      showError(error, () => this.start());
    }
  }

  async show(path, focus = false) {
    try {
      const listing = await getJson("/setup/folders", { path });
      clearErrors();
      this.showListing(listing);
      if (focus) (this.list.querySelector("button") ?? this.use).focus();
    } catch (error) {
      showError(error, () => this.show(path));
    }
  }

  showListing({ path, parent, folders, photographs, more, index, indexed }) {
    this.path = path;
    this.here.textContent = path || "Choose one of these:";
    const entries = folders.map((folder) => this.entry(folder.name, folder.path, "folder"));
    if (parent !== null) entries.unshift(this.entry("Up one folder", parent, "left"));
    this.list.replaceChildren(...entries);
    this.use.hidden = path === "";
    const here = photographs ? `${count(photographs, "photograph")} directly in this folder.` : "No photographs directly in this folder";
    const below = folders.length ? " Those in its subfolders are indexed, too." : "";
    this.note.textContent = path === "" ? "" : `${here}${photographs ? "" : "."}${below}${more ? " Not all folders are shown." : ""}`;
    const state = indexed ? "There is an index already, which is brought up to date" : "The index will be";
    this.place.textContent = index === null ? "" : `${state}: ${index}`;
    announce(`${path}: ${count(folders.length, "folder")}`);
  }

  entry(name, path, symbol) {
    const open = el(
      "button",
      { type: "button", class: "folder-entry", onclick: () => this.show(path, true) },
      icon(symbol),
      el("span", {}, name),
    );
    return el("li", {}, open);
  }

  async index() {
    this.use.disabled = true;
    try {
      this.follow(await send("POST", "/setup", { params: { folder: this.path } }));
    } catch (error) {
      showError(error);
    } finally {
      this.use.disabled = false;
    }
  }

  async follow(state) {
    this.chooser.hidden = true;
    this.heading.textContent = "Reading your photographs";
    try {
      await this.job.follow(state);
    } catch (error) {
      showError(error, () => this.start());
    }
  }

  onEnd(state) {
    if (state.state !== "done") {
      this.heading.textContent = CHOOSE;
      this.chooser.hidden = false;
      this.use.focus();
      this.show(this.path); // there may be an index now
      return;
    }
    if (state.n_problems === 0 && Object.keys(state.skipped).length === 0) {
      this.onReady();
      return;
    }
    this.heading.textContent = "Your photographs can be searched";
    this.lead.hidden = true;
    this.go.hidden = false; // what was left out can be read first
    this.go.querySelector("button").focus();
  }
}
