// Why did this photograph answer? Both pictures side by side with the features that share words, heaviest first.

import { ask } from "./answers.js";
import { getJson } from "./api.js";
import { matchCard, matchInWords } from "./card.js";
import { MatchDrawing, SETS, setOf } from "./drawing.js";
import { button, el, heading, linkButton, segmented } from "./elements.js";
import { announce, copyText, tellError } from "./messages.js";
import { searchPart } from "./options.js";
import { parseRegion } from "./region.js";
import { amend, href } from "./router.js";
import { baseName, count, percent, whole } from "./words.js";

const LIMIT = 1000; // matches that are asked for
const FIRST = 120; // matches that are shown until the slider is moved
const SET_NAMES = { all: "all (intersection)", several: "several", one: "one only" };
const FLAT = 3; // width by height of a drawing that leaves no room beside it
const NARROW = matchMedia("(max-width: 760px)");

/** @type {import("./router.js").Route} */
export function matchesView(params, context) {
  return new MatchesView(params, context);
}

class MatchesView {
  constructor(params, { about, signal }) {
    this.about = about;
    this.signal = signal;
    this.params = params;
    this.query = params.get("query") ?? "";
    this.image = Number(params.get("image"));
    this.title = "Matches";
    this.active = null; // number of the match that the card is about
    this.place = null; // of this hit in the ranking
    this.neighbours = {}; // images of the hits around it
    this.keys = { n: () => this.follow("next"), p: () => this.follow("previous") };
    this.build();
    this.start();
    NARROW.addEventListener("change", () => this.explanation && this.draw(), { signal });
  }

  build() {
    this.heading = heading("Why it matches");
    this.summary = el("p", { class: "lead", id: "match-summary" }, "Comparing the features …");
    this.stage = el("div", { class: "stage skeleton" });
    this.card = el("aside", { class: "match-card", id: "match-card", "aria-label": "Match" });
    this.controls = el("div", { class: "match-controls" });
    this.actions = el("div", { class: "row" });
    this.hits = el("nav", { class: "row", "aria-label": "Hits" });
    const back = linkButton(
      "All results",
      href("search", searchPart(this.about, this.params)),
      { id: "back-to-results" },
      "left",
    );
    this.element = el(
      "div",
      { class: "matches" },
      el("div", { class: "row spread" }, back, this.hits),
      this.heading,
      this.summary,
      this.controls,
      el("div", { class: "match-layout" }, this.stage, this.card),
      this.actions,
    );
  }

  async start() {
    try {
      const asked = searchPart(this.about, this.params);
      asked.set("image", String(this.image));
      asked.set("limit", String(LIMIT));
      this.explanation = await getJson("/explain", asked, { signal: this.signal });
    } catch (error) {
      this.stage.classList.remove("skeleton");
      this.summary.textContent = error.status === 404 ? "The photograph that asked is forgotten, or this one was removed." : "";
      tellError(error, () => this.start());
      return;
    }
    this.showExplanation();
    this.showActions();
    this.findNeighbours();
  }

  showExplanation() {
    const { query, image, matches } = this.explanation;
    this.title = `${baseName(query.name)} and ${image.name}`;
    document.title = `${this.title} · polyvoc`;
    this.heading.replaceChildren(
      "Why ",
      el("span", { class: "file" }, image.name),
      " answers ",
      el("span", { class: "file" }, baseName(query.name)),
    );
    this.summary.textContent = inWords(this.explanation);
    announce(this.summary.textContent);
    this.agreeing = matches.some((match) => match.inlier);
    this.stage.classList.remove("skeleton");
    this.showControls();
    this.draw();
  }

  /** What the link says about the drawing. */
  settings() {
    const { params } = this;
    const which = params.get("which") ?? (this.agreeing ? "agree" : "all");
    const hidden = (params.get("hide") ?? "").split(",");
    return { which, mode: params.get("draw") === "dots" ? "dots" : "lines", hidden, most: Number(params.get("most") ?? FIRST) };
  }

  /** Change one of the settings, and the link with it. */
  set(name, value) {
    if (value) this.params.set(name, String(value));
    else this.params.delete(name);
    this.amendLink();
    this.refresh();
  }

  amendLink() {
    amend("matches", this.params);
    this.showHits();
  }

  showControls() {
    const { which, mode } = this.settings();
    this.slider = el("input", { type: "range", id: "most", min: 1, step: 1 });
    this.slider.addEventListener("input", () => {
      this.params.set("most", this.slider.value);
      this.refresh();
    });
    this.slider.addEventListener("change", () => this.amendLink()); // browsers limit how often it may change
    this.sliderText = el("output", { for: "most" });
    this.legend = el("div", { class: "legend", role: "group", "aria-label": "Sets" });
    this.controls.replaceChildren(
      segmented({
        legend: "Matches",
        name: "which",
        value: which,
        onChange: (value) => this.set("which", value),
        choices: [
          ["agree", "agreeing", "those that agree on one arrangement of both photographs"],
          ["all", "all"],
        ],
      }),
      segmented({
        legend: "Drawn as",
        name: "draw",
        value: mode,
        choices: [
          ["lines", "lines"],
          ["dots", "dots", "linked when you point at them"],
        ],
        onChange: (value) => this.set("draw", value),
      }),
      el("fieldset", { class: "segmented" }, el("legend", {}, "Vocabularies that agree"), this.legend),
      el("div", { class: "field slider" }, el("label", { for: "most" }, "Heaviest ", this.sliderText), this.slider),
    );
  }

  draw() {
    const { query, image } = this.explanation;
    const label = `Matches of ${baseName(query.name)} and ${image.name}: arrow keys go through them`;
    const region = parseRegion(this.params.get("region"));
    this.drawing = new MatchDrawing(this.explanation, { query: this.query, region, stacked: NARROW.matches, label });
    const { element } = this.drawing;
    element.addEventListener("pointermove", (event) => event.pointerType === "mouse" && this.point(event));
    element.addEventListener("pointerdown", (event) => this.point(event));
    element.addEventListener("keydown", (event) => this.key(event));
    this.stage.replaceChildren(element);
    this.stage.parentElement.classList.toggle("flat", this.drawing.aspect > FLAT);
    this.refresh();
  }

  /** Draw what the settings ask for. */
  refresh() {
    const { which, mode, hidden, most } = this.settings();
    const { matches, n_vocabularies: vocabularies } = this.explanation;
    const eligible = [...matches.keys()].filter((i) => which === "all" || matches[i].inlier);
    const inSets = eligible.filter((i) => !hidden.includes(setOf(matches[i], vocabularies)));
    const shown = inSets.slice(0, most);
    this.showLegend(eligible, hidden);
    this.slider.max = String(Math.max(1, inSets.length));
    this.slider.value = String(shown.length);
    this.sliderText.textContent = `${whole(shown.length)} of ${whole(inSets.length)}`;
    this.drawing.show(shown, mode);
    this.select(shown.includes(this.active) ? this.active : null);
  }

  /** The legend filters, too. */
  showLegend(eligible, hidden) {
    const { matches, n_vocabularies: vocabularies } = this.explanation;
    const focused = document.activeElement?.dataset?.set;
    const present = SETS.filter((set) => vocabularies >= { all: 1, one: 2, several: 3 }[set]);
    this.legend.replaceChildren(
      ...present.map((set) => {
        const number = eligible.filter((i) => setOf(matches[i], vocabularies) === set).length;
        const off = hidden.includes(set);
        const others = hidden.filter((name) => name && name !== set);
        return el(
          "button",
          {
            type: "button",
            class: "legend-entry",
            "aria-pressed": String(!off),
            data: { set },
            onclick: () => this.set("hide", (off ? others : [...others, set]).join(",")),
          },
          el("span", { class: `swatch ${set}`, "aria-hidden": "true" }),
          `${SET_NAMES[set]} `,
          el("b", {}, whole(number)),
        );
      }),
    );
    if (focused) this.legend.querySelector(`[data-set=${focused}]`)?.focus();
  }

  point(event) {
    const number = this.drawing.nearest(event);
    if (number !== null && number !== this.active) this.select(number);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return; // those are keys of the browser
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const { shown } = this.drawing;
    if (event.key === "Escape") this.select(null);
    else if (step && shown.length) {
      const here = shown.indexOf(this.active);
      const next = here < 0 ? 0 : (here + step + shown.length) % shown.length;
      this.select(shown[next]);
      announce(matchInWords(this.explanation, shown[next]));
    } else return;
    event.preventDefault();
  }

  /** Make one match the one that the card is about. @param {number | null} number */
  select(number) {
    this.active = number;
    this.drawing.highlight(number);
    const { shown } = this.drawing;
    if (number === null) {
      this.card.replaceChildren(
        el(
          "p",
          { class: "soft" },
          shown.length
            ? "Point at a match, tap it, or go through them with the arrow keys."
            : "No match to show with these settings.",
        ),
      );
      return;
    }
    const place = `Match ${shown.indexOf(number) + 1} of ${shown.length}`;
    this.card.replaceChildren(el("h2", {}, place), matchCard(this.explanation, number, this.query));
  }

  /** What can be done with the hit. */
  showActions() {
    const { path } = this.explanation.image;
    const onclick = () => copyText(path, "The path is in the clipboard.");
    this.actions.replaceChildren(
      linkButton("Ask with this", href("search", { query: this.image }), { class: "button quiet" }, "search"),
      button("Path", { class: "quiet", title: path, onclick }, "copy"),
    );
  }

  /** Find the hits before and after this one. */
  async findNeighbours() {
    const answer = await ask(this.about, this.params, { signal: this.signal }).catch(() => null);
    const hits = answer?.hits ?? [];
    const here = hits.findIndex((hit) => hit.image === this.image);
    if (here < 0) return;
    this.place = { rank: here + 1, of: hits.length };
    this.neighbours = { previous: hits[here - 1]?.image, next: hits[here + 1]?.image };
    this.showHits();
  }

  /** Links to them, with the settings of this view. */
  showHits() {
    if (!this.place) return;
    const link = (way, sign) => {
      const image = this.neighbours[way];
      const attributes = { id: `${way}-hit`, "aria-label": `${way} hit`, hidden: image === undefined };
      return linkButton(way, this.linkTo(image), attributes, sign);
    };
    const { rank, of } = this.place;
    this.hits.replaceChildren(
      link("previous", "left"),
      el("span", { class: "soft" }, `hit ${rank} of ${of}`),
      link("next", "right"),
    );
  }

  linkTo(image) {
    const params = new URLSearchParams(this.params);
    params.set("image", String(image));
    return href("matches", params);
  }

  follow(way) {
    if (this.neighbours[way] !== undefined) location.hash = this.linkTo(this.neighbours[way]);
  }
}

/** The summary in plain words. */
function inWords({ matches, inliers, score, n_matches: all }) {
  const agreeing = matches.filter((match) => match.inlier).reduce((sum, match) => sum + match.weight, 0);
  if (all === 0) return "They share no feature.";
  if (inliers === 0) return `${count(all, "match", "matches")}, but no arrangement that they agree on.`;
  const said = `${whole(inliers)} of ${count(all, "match", "matches")} agree on one arrangement`;
  return `${said}; they carry ${percent(agreeing / score)} of the weight.`;
}
