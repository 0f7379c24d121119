// What shows the same as this photograph? The query with its region and rules on one side, the ranking on the other.

import { ask, lacking, secondsOf } from "./answers.js";
import { button, el, heading, icon, linkButton } from "./elements.js";
import { askWith, chooser } from "./intake.js";
import { announce, tellError } from "./messages.js";
import { MOST, TOP, inWords, rulesPart, searchPart } from "./options.js";
import { factsOf, isImage, pictureUrl } from "./photograph.js";
import { RegionEditor, parseRegion } from "./region.js";
import { ResultGrid, isVerified } from "./results.js";
import { go, href } from "./router.js";
import { RulesPanel } from "./rules.js";
import { baseName, count, duration, whole } from "./words.js";

/** What is to be said if there are no hits. @param {import("./answers.js").Answer} answer */
function nothing({ options: { sure } }) {
  if (!sure) return "Nothing found: no photograph of the collection shares a feature with it.";
  return `Nothing found that shows the same thing with a probability of ${Number((100 * sure).toPrecision(6))} % or more.`;
}

/** @type {import("./router.js").Route} */
export function searchView(params, context) {
  return new SearchView(params, context);
}

class SearchView {
  constructor(params, { about, signal }) {
    this.about = about;
    this.signal = signal;
    this.params = params;
    this.query = params.get("query") ?? "";
    this.title = "Results";
    this.dropText = "Drop it: ask with this photograph";
    this.takeFiles = (files) => askWith(about, files, rulesPart(about, this.params));
    this.asking = null; // the AbortController of the search under way
    this.goOnAt = null; // the rank that gets the focus when more are shown
    this.build();
    this.ready = this.start();
  }

  /** Other rules or another region of the same photograph. @param {URLSearchParams} params */
  update(params) {
    if ((params.get("query") ?? "") !== this.query || !this.editor) return false;
    this.params = params;
    this.rules.show(rulesPart(this.about, params));
    this.showRegion();
    this.ready = this.search();
    return true;
  }

  build() {
    const { about, params } = this;
    this.heading = heading("Results");
    this.status = el("p", { class: "state", id: "search-state" }, "Looking at the photograph …");
    this.progress = el("div", { class: "progress-line", id: "progress", hidden: true });
    this.grid = new ResultGrid();
    this.more = el("p", { class: "row centre" });
    this.picture = el("div", { class: "picture-place" });
    this.facts = el("p", { class: "soft small" });
    this.compare = linkButton("Compare two rules", "#/", { id: "compare-link" }, "compare");
    this.rules = new RulesPanel({
      about,
      name: "rules",
      params: rulesPart(about, params),
      onChange: (rules) => this.goTo({ rules }),
    });
    this.aside = this.question();
    this.element = el(
      "div",
      { class: "search" },
      this.aside,
      el(
        "section",
        { class: "answers", "aria-label": "Results" },
        this.heading,
        this.status,
        this.progress,
        this.grid.element,
        this.more,
      ),
    );
  }

  question() {
    return el(
      "aside",
      { class: "query-side", "aria-label": "Question" },
      this.picture,
      this.facts,
      this.regionTools(),
      this.rules.element,
      el(
        "div",
        { class: "row" },
        this.compare,
        chooser("Another photograph", { id: "photo-input", sign: icon("upload"), onFiles: this.takeFiles }),
      ),
    );
  }

  regionTools() {
    this.draw = button(
      "Mark a part",
      {
        id: "draw-region",
        "aria-pressed": "false",
        title: "Ask with a part of the photograph only",
        onclick: () => this.toggleDrawing(),
      },
      "region",
    );
    this.whole = button(
      "Whole photograph",
      { id: "whole-photograph", hidden: true, onclick: () => this.goTo({ region: null }) },
      "photo",
    );
    this.hint = el("p", { class: "soft small" });
    return el("div", { class: "region-tools" }, el("div", { class: "row" }, this.draw, this.whole), this.hint);
  }

  async start() {
    this.grid.showSkeletons(12);
    try {
      const facts = await factsOf(this.query);
      if (this.signal.aborted) return;
      this.showPhotograph(facts);
      await this.search();
    } catch (error) {
      if (this.signal.aborted) return;
      this.grid.clear();
      if (error.status === 404) this.showForgotten();
      else tellError(error, () => this.start());
    }
  }

  showPhotograph(facts) {
    const name = baseName(facts.name ?? facts.path);
    this.title = name;
    document.title = `${name} · polyvoc`;
    this.heading.replaceChildren("What shows the same as ", el("span", { class: "file" }, name));
    this.facts.textContent =
      `${name}, ${facts.width} × ${facts.height}, ${count(facts.features, "feature")}` +
      (isImage(this.query) ? ", of the collection" : "");
    const photograph = {
      src: pictureUrl(this.query, 640),
      srcset: `${pictureUrl(this.query, 640)} 1x, ${pictureUrl(this.query, 1600)} 2x`,
      name,
      width: facts.width,
      height: facts.height,
    };
    this.editor = new RegionEditor(photograph, (region) => this.goTo({ region }));
    this.picture.replaceChildren(this.editor.element);
    this.showRegion();
  }

  /** The server does not keep uploads for ever. */
  showForgotten() {
    const image = isImage(this.query);
    this.heading.textContent = image ? "There is no such photograph" : "This photograph is forgotten";
    this.status.textContent = image
      ? `The collection has no image ${this.query} any more.`
      : "The server keeps a photograph until nobody has asked with it for an hour. Drop it again, or choose it again.";
    this.aside.replaceChildren(
      chooser("Choose it again", { id: "photo-input", sign: icon("upload"), onFiles: this.takeFiles }),
      linkButton("Start", "#/", {}, "left"),
    );
  }

  showRegion() {
    const region = parseRegion(this.params.get("region"));
    this.editor.show(region);
    this.whole.hidden = region === null;
    this.draw.hidden = region !== null;
    this.hint.textContent = region
      ? "Only features inside the marked part ask. Drag its corners, or draw another."
      : "Draw a rectangle on the photograph to ask with only that part.";
    this.editor.letDraw(false);
    this.draw.setAttribute("aria-pressed", "false");
  }

  toggleDrawing() {
    const on = this.draw.getAttribute("aria-pressed") !== "true";
    this.draw.setAttribute("aria-pressed", String(on));
    this.editor?.letDraw(on);
    this.hint.textContent = on ? "Draw a rectangle on the photograph now; or press Enter to place one." : "";
    if (on) this.editor?.element.focus();
  }

  /** Change the link; the router then updates this view. */
  goTo({ rules = rulesPart(this.about, this.params), region = parseRegion(this.params.get("region")) }) {
    go("search", new URLSearchParams([["query", this.query], ...(region ? [["region", region.join(",")]] : []), ...rules]));
  }

  async search() {
    this.asking?.abort();
    this.asking = new AbortController();
    const signal = AbortSignal.any([this.asking.signal, this.signal]);
    const { params } = this;
    this.compare.href = href("compare", {
      query: this.query,
      region: params.get("region"),
      right: rulesPart(this.about, params).toString(),
    });
    this.grid.showSkeletons(12);
    this.working("Searching …");
    try {
      const answer = await ask(this.about, params, { signal, onScored: (early) => this.showScored(early) });
      this.showDone(answer);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.working(null);
      this.grid.clear();
      this.status.textContent = "The search failed.";
      if (error.status === 404) this.showForgotten();
      else tellError(error, () => this.search());
    }
  }

  showScored(answer) {
    this.showHits(answer, false);
    this.working(`Ranked by scores in ${duration(secondsOf(answer))}; verifying the arrangement …`);
  }

  showDone(answer) {
    this.showHits(answer, true);
    this.working(null);
    const verified = answer.hits.filter(isVerified).length;
    const { verify } = answer.options;
    this.status.textContent =
      answer.hits.length === 0
        ? `${nothing(answer)}${lacking(answer)}`
        : `${count(answer.hits.length, "photograph")} in ${duration(secondsOf(answer))}` +
          (verify > 0 ? `, ${verified === 0 ? "none" : whole(verified)} verified` : " by scores alone") +
          lacking(answer) +
          ` · ${inWords(this.about, rulesPart(this.about, this.params))}`;
    announce(this.status.textContent);
    this.showMore(answer.hits.length);
    if (answer.hits.length === 0 && answer.options.sure > 0) this.showAll();
  }

  /** Nothing is as sure as was wanted: a way to see what is there. */
  showAll() {
    const next = new URLSearchParams(this.params);
    next.delete("sure");
    this.more.replaceChildren(linkButton("Show what is less sure", href("search", next), { id: "less-sure" }));
  }

  showHits(answer, verified) {
    this.grid.show(answer.hits, { params: searchPart(this.about, this.params), verified });
  }

  showMore(shown) {
    this.grid.focusRank(this.goOnAt);
    this.goOnAt = null;
    const top = Number(this.params.get("top") ?? TOP);
    const next = new URLSearchParams(this.params);
    next.set("top", String(Math.min(MOST, 2 * top)));
    const remember = () => {
      this.goOnAt = shown + 1;
    };
    const link = linkButton("Show more", href("search", next), { id: "more", onclick: remember });
    this.more.replaceChildren(...(shown >= top && top < MOST ? [link] : []));
  }

  working(text) {
    this.progress.hidden = text === null;
    this.grid.element.setAttribute("aria-busy", String(text !== null));
    if (text) this.status.textContent = text;
  }
}
