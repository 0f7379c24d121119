// The view of copies: groups side by side, the difference of two files, verdicts by key; the others are moved, and moved back.

import { send } from "./api.js";
import { button, el, heading, segmented, svg } from "./elements.js";
import { baseName, count, dayOf, folderOf, formatBytes, formatInteger, formatProbability, shellWord } from "./format.js";
import { forgetInfo, pictureUrl } from "./images.js";
import { JobView } from "./job_view.js";
import { announce, showError, showMessage } from "./messages.js";
import { clearResults } from "./results.js";

const PAGE_SIZE = 10;
const VERDICTS = {
  copy: { key: "1", text: "Copy", help: "the same photograph: edited, cropped, re-encoded" },
  same: { key: "2", text: "Another shot", help: "the same thing, photographed again" },
  different: { key: "3", text: "Different", help: "something else" },
};
const KINDS = { identical: "identical file", copy: "copy" };

/** @type {import("./router.js").Route} */
export function duplicatesView(params, context) {
  return new DuplicatesView(params, context);
}

class DuplicatesView extends JobView {
  constructor(params, context) {
    super(params, context, { name: "duplicates", job: "comparing", pageSize: PAGE_SIZE });
    this.title = "Copies";
    this.cards = [];
    this.active = 0;
    this.compare = button("Compare new photographs", { id: "compare-new", onclick: () => this.run(this.compare), hidden: true }, "search");
    this.undoButton = button("Undo the last move", { id: "undo-move", hidden: true, onclick: () => this.undo() }, "swap");
    this.decided = el("input", { type: "checkbox", id: "decided", onchange: () => this.load() });
    this.decidedRow = el("label", { class: "row decided", for: "decided" }, this.decided, "show decided groups");
    this.keys = el("p", { class: "soft small keys" });
    this.advice = el("p", { class: "soft prose", hidden: true });
    this.element = el(
      "div",
      { class: "duplicates-view" },
      heading("Copies"),
      el("p", { class: "soft prose" }, "Files of the same photograph: identical, resized, cropped, turned, re-encoded. Nothing is deleted."),
      el("div", { class: "row spread" }, this.state, el("div", { class: "row" }, this.compare, this.undoButton), this.pager),
      this.advice,
      this.decidedRow,
      this.keys,
      this.job.element,
      this.list,
      this.lightbox.dialog,
    );
    this.keyActions = {
      j: () => this.step(1),
      k: () => this.step(-1),
      d: () => this.pair?.toggleDifference(),
      m: () => this.pair?.card.move(),
      u: () => !this.undoButton.hidden && this.undo(),
      ...Object.fromEntries(Object.entries(VERDICTS).map(([verdict, { key }]) => [key, () => this.pair?.decide(verdict)])),
    };
    this.ready = this.open(context.about.manage);
  }

  /** What keys do: nothing to the pairs behind a large photograph. */
  get shortcuts() {
    return this.lightbox.dialog.open ? {} : this.keyActions;
  }

  /** The files of the groups and pairs that are shown, each once. */
  get items() {
    const all = this.cards.flatMap(({ group }) => [group.best, ...group.copies]).filter(({ image }) => image !== null);
    return [...new Map(all.map((file) => [file.image, file])).values()];
  }

  /** The pair that keys act on. */
  get pair() {
    return this.pairs[this.active] ?? null;
  }

  get pairs() {
    return this.cards.flatMap((card) => card.pairs);
  }

  get request() {
    return { decided: this.decided.checked };
  }

  show(result) {
    const { groups, shots, n_shots: nShots, total, hidden, not_compared: fresh, manage, undoable } = result;
    this.manage = manage;
    this.state.textContent = stateText(result);
    announce(this.state.textContent);
    this.advice.hidden = manage;
    this.advice.replaceChildren(...adviceParts(fresh, this.about));
    this.compare.hidden = !manage || fresh === 0;
    this.compare.classList.toggle("primary", fresh > 0);
    this.compare.querySelector("span").textContent = `Compare ${count(fresh, "photograph")}`;
    this.undoButton.hidden = undoable === 0;
    this.decidedRow.hidden = hidden === 0 && !this.decided.checked;
    this.keys.hidden = total + shots.length === 0;
    this.keys.replaceChildren(...keyLine(manage));
    this.cards = groups.map((group, i) => new Card(this, group, this.first + i + 1));
    const shotCards = shots.map((shot) => new Card(this, shotGroup(shot), null));
    const fold =
      shots.length > 0 &&
      el(
        "details",
        { class: "perhaps", id: "shots" },
        el("summary", {}, `Other shots of the same thing, no copies: ${count(nShots, "pair")}`),
        el("div", { class: "groups" }, ...shotCards.map(({ element }) => element)),
      );
    if (fold) fold.addEventListener("toggle", () => this.foldShots(fold.open ? shotCards : []));
    this.groupCards = this.cards;
    this.list.replaceChildren(...this.cards.map(({ element }) => element), ...(fold ? [fold] : []));
    this.activate(0, false);
  }

  /** Keys reach the pairs in the fold only while it is open. */
  foldShots(shotCards) {
    this.cards = [...this.groupCards, ...shotCards];
    this.activate(Math.min(this.active, this.pairs.length - 1), false);
  }

  step(by) {
    const next = this.active + by;
    if (next >= 0 && next < this.pairs.length) this.activate(next, true);
  }

  activate(number, focus) {
    this.pair?.element.classList.remove("current");
    this.active = Math.max(0, number);
    const { pair } = this;
    if (!pair) return;
    pair.element.classList.add("current");
    if (!focus) return;
    pair.element.focus({ preventScroll: true });
    pair.element.scrollIntoView({ block: "nearest" });
  }

  /** Load the groups again after a change, and go on at the same place. */
  async reload() {
    const { active } = this;
    await this.load();
    this.activate(Math.min(active, this.pairs.length - 1), true);
  }

  async undo() {
    this.undoButton.disabled = true;
    try {
      const { moved, problems } = await send("POST", "/duplicates/undo", { signal: this.signal });
      showMessage(`${count(moved.length, "file")} moved back.`);
      for (const { reason } of problems) showMessage(reason, { kind: "error" });
      clearResults();
      await this.reload();
    } catch (error) {
      showError(error);
    } finally {
      this.undoButton.disabled = false;
    }
  }
}

/** A group of copies: the file to keep, and a pair with it for each of the others. */
class Card {
  constructor(view, group, number) {
    this.view = view;
    this.number = number;
    this.group = group;
    this.keep = group.best.image;
    this.pairs = group.copies.map((copy) => new Pair(this, copy));
    this.isShots = number === null;
    const title = this.isShots
      ? `${baseName(group.best.path)} and ${baseName(group.copies[0].path)}`
      : `Group ${formatInteger(number)}: ${count(group.copies.length + 1, "file")}`;
    this.moveButton = button("Move the others", { data: { action: "move" }, onclick: () => this.move() }, "folder");
    this.element = el(
      "section",
      { class: "group", "aria-label": title, data: { group: number ?? "shots" } },
      el("div", { class: "row spread" }, el("h2", {}, title), view.manage && !this.isShots && this.moveButton),
      el("div", { class: "copies" }, this.figure(group.best, null), ...this.pairs.map(({ element }) => element)),
    );
  }

  /** A file with its data; where files can be moved, a choice of the one to keep. */
  figure(file, notes) {
    const name = baseName(file.path);
    const picture =
      file.image === null
        ? el("span", { class: "gone" }, "not in the index")
        : el(
            "a",
            { href: this.view.lightbox.linkTo(file.image), "aria-label": `Show ${name} large` },
            el("img", { src: pictureUrl(file.image, 640), alt: "", loading: "lazy", decoding: "async" }),
          );
    const data = [file.width > 0 && `${file.width} × ${file.height}`, file.bytes && formatBytes(file.bytes), dayOf(file.changed)];
    const keep = el("input", { type: "radio", name: `keep-${this.number}`, value: file.image, checked: file.image === this.keep });
    keep.addEventListener("change", () => {
      this.keep = file.image;
    });
    const choice =
      this.view.manage && this.number !== null && file.image !== null && el("label", { class: "keep" }, keep, "keep this one");
    return el(
      "figure",
      { class: "copy-file", data: { image: file.image ?? "" } },
      el("div", { class: "copy-picture" }, picture),
      el(
        "figcaption",
        {},
        el("p", { class: "name", title: file.path }, name),
        el("p", { class: "soft small" }, data.filter(Boolean).join(" · ")),
        el("p", { class: "soft small folder", title: file.path }, folderOf(file.path)),
        notes ?? (this.number !== null && el("p", { class: "small" }, this.group.reason)),
        choice,
      ),
    );
  }

  /** Move all files but the one to keep, and those that are no copies by a verdict. */
  async move() {
    if (!this.view.manage || this.isShots || this.moveButton.disabled) return;
    const copies = this.group.copies.filter(({ verdict }) => verdict === null || verdict === "copy");
    const others = [this.group.best, ...copies].map(({ image }) => image).filter((image) => image !== null && image !== this.keep);
    if (others.length === 0) {
      showMessage("None of these files is a copy of the one to keep by your verdicts.");
      return;
    }
    this.moveButton.disabled = true;
    try {
      const params = new URLSearchParams(others.map((image) => ["image", String(image)]));
      const { moved, problems, folder } = await send("POST", "/duplicates/move", { params, signal: this.view.signal });
      for (const image of others) forgetInfo(image);
      clearResults();
      const action = moved.length ? { label: "Undo", run: () => this.view.undo() } : undefined;
      showMessage(problems.length ? problems[0].reason : `${count(moved.length, "file")} moved to ${folder}`, {
        kind: problems.length ? "error" : "note",
        action,
      });
      await this.view.reload();
    } catch (error) {
      this.moveButton.disabled = false;
      showError(error);
    }
  }
}

/** A file and the one to keep: what changed it, the difference of their pixels, and the verdict. */
class Pair {
  constructor(card, copy) {
    this.card = card;
    this.copy = copy;
    const { best } = card.group;
    const isKnown = copy.image !== null && best.image !== null;
    const label = `${baseName(copy.path)} and ${baseName(best.path)}`;
    this.verdicts = el("div", { class: "row verdicts", role: "group", "aria-label": `Verdict on ${label}` });
    this.difference = button(
      "Difference",
      { class: "quiet", "aria-pressed": "false", data: { action: "difference" }, onclick: () => this.toggleDifference() },
      "compare",
    );
    this.stage = el("div", { class: "difference", hidden: true });
    const notes = el(
      "div",
      { class: "copy-notes" },
      el(
        "p",
        { class: "row" },
        el("span", { class: copy.kind === "identical" ? "badge verified" : "badge" }, kindText(copy)),
        el("span", { class: "small" }, copy.kind === "identical" ? "" : copy.alteration),
      ),
      isKnown && copy.kind !== "identical" && this.difference,
      card.view.manage && isKnown && copy.kind !== "identical" && this.verdicts,
    );
    this.element = el(
      "div",
      { class: "pair", tabindex: "-1", role: "group", "aria-label": label, data: { pair: copy.image ?? "" } },
      card.figure(copy, notes),
      this.stage,
    );
    this.element.addEventListener("focusin", () => card.view.activate(card.view.pairs.indexOf(this), false));
    this.element.addEventListener("pointerdown", () => card.view.activate(card.view.pairs.indexOf(this), false));
    this.showVerdict();
  }

  showVerdict() {
    const buttons = Object.entries(VERDICTS).map(([verdict, { key, text, help }]) =>
      button(text, {
        class: "verdict",
        title: `${help} (${key})`,
        "aria-pressed": String(this.copy.verdict === verdict),
        data: { verdict },
        onclick: () => this.decide(verdict),
      }),
    );
    this.verdicts.replaceChildren(...buttons);
    this.element.classList.toggle("decided", this.copy.verdict !== null);
  }

  /** Keep a verdict; the same one again withdraws it. */
  async decide(verdict) {
    if (!this.verdicts.isConnected) return;
    const { view, group } = this.card;
    const chosen = this.copy.verdict === verdict ? "none" : verdict;
    try {
      const params = { first: group.best.image, second: this.copy.image, verdict: chosen };
      await send("POST", "/duplicates/verdict", { params, signal: view.signal });
      this.copy.verdict = chosen === "none" ? null : chosen;
      const focused = this.verdicts.contains(document.activeElement);
      this.showVerdict();
      if (focused) this.verdicts.querySelector(`[data-verdict=${verdict}]`).focus();
      const text = chosen === "none" ? "Verdict withdrawn" : VERDICTS[chosen].text;
      announce(`${text}: ${baseName(this.copy.path)}`);
      if (chosen !== "none" && view.pair === this && !focused) view.step(1);
    } catch (error) {
      showError(error);
    }
  }

  toggleDifference() {
    if (!this.difference.isConnected) return;
    const show = this.stage.hidden;
    this.stage.hidden = !show;
    this.difference.setAttribute("aria-pressed", String(show));
    if (show && !this.stage.children.length) this.drawDifference();
  }

  /** Both pictures laid on one another by the transform of their matches: black is the same. */
  drawDifference() {
    const { best } = this.card.group;
    const { copy } = this;
    const [[a, c, e], [b, d, f]] = copy.transform;
    const picture = (file, more = {}) =>
      svg("image", { href: pictureUrl(file.image, 1600), width: file.width, height: file.height, preserveAspectRatio: "none", ...more });
    const top = svg("g", { class: "on-top", transform: `matrix(${a} ${b} ${c} ${d} ${e} ${f})` }, picture(copy));
    const clip = `overlap-${copy.image}-${best.image}`;
    const frame = svg("rect", { width: copy.width, height: copy.height, transform: top.getAttribute("transform") });
    const drawing = svg(
      "svg",
      {
        class: "difference-drawing",
        viewBox: `0 0 ${best.width} ${best.height}`,
        role: "img",
        "aria-label": `Difference of ${baseName(copy.path)} and ${baseName(best.path)}`,
        data: { mode: "difference" },
      },
      svg("clipPath", { id: clip }, frame),
      picture(best, { class: "around" }),
      svg("g", { class: "overlap", "clip-path": `url(#${clip})` }, picture(best), top),
    );
    const mode = segmented({
      legend: "Laid on one another",
      name: `difference-${copy.image}-${best.image}`,
      value: "difference",
      choices: [
        ["difference", "difference", "black where both are the same"],
        ["half", "both", "both at half strength"],
        ["top", "this one", "only this file, as it lies on the other"],
      ],
      onChange: (value) => {
        drawing.dataset.mode = value;
      },
    });
    this.stage.replaceChildren(drawing, mode);
  }
}

function stateText({ total, hidden, copies, compared, not_compared: fresh }) {
  const pending = fresh > 0 ? ` · ${count(fresh, "photograph")} not compared yet` : "";
  const decided = hidden > 0 ? ` · ${count(hidden, "group")} decided` : "";
  if (total === 0) return `${compared ? "No copies" : "No identical files"}${decided}${pending}`;
  return `${count(total, "group")}, ${count(copies, "file")} besides those to keep${decided}${pending}`;
}

/** What to do where this page cannot: compare new photographs, decide, move. */
function adviceParts(fresh, { index }) {
  const compare = fresh > 0 ? ["To compare them: ", el("code", {}, `polyvoc duplicates --index ${shellWord(index)}`), ". "] : [];
  const manage = el("code", {}, `polyvoc serve ${shellWord(index)} --write`);
  return [...compare, "To decide on pairs and to move copies here, start the server on your own computer with ", manage, "."];
}

/** Two shots of the same thing as a group of two. */
function shotGroup({ first, second, probability, transform }) {
  const copy = { ...first, kind: "another shot", probability, transform, verdict: null, alteration: "" };
  return { best: second, copies: [copy], reason: "" };
}

function kindText({ kind, probability }) {
  return kind === "identical" ? KINDS.identical : `${KINDS[kind] ?? kind} ${formatProbability(probability)}`;
}

/** The keys and what they do; on a server that only shows the copies those that change nothing. */
function keyLine(manage) {
  const all = [
    [["j", "k"], "next and previous pair"],
    [["d"], "difference"],
    ...(manage ? Object.values(VERDICTS).map(({ key, text }) => [[key], text.toLowerCase()]) : []),
    ...(manage ? [[["m"], "move the others"], [["u"], "undo"]] : []),
  ];
  return all.map(([keys, text]) => el("span", {}, ...keys.flatMap((key) => [el("kbd", {}, key), " "]), text));
}
