// The matches view: query and hit side by side with their matched features, highest weight first.

import { getJson } from "./api.js";
import { button, el, heading, linkButton, segmented } from "./elements.js";
import { isByImage, readEvidence, summaryText } from "./evidence.js";
import { baseName, formatInteger } from "./format.js";
import { matchCard, matchText } from "./match_card.js";
import { MatchDrawing } from "./match_drawing.js";
import { announce, copyText, showError } from "./messages.js";
import { searchParams } from "./options.js";
import { parseRegion } from "./region_editor.js";
import { search } from "./results.js";
import { href, replaceParams } from "./router.js";

const LIMIT = 1000; // matches that are requested
const SHOWN = 120; // matches that are shown until the slider is moved
const BY_IMAGE_HELP = "These matches share fewer words; other features of the image are in the other lists.";
const WIDE = 3; // aspect ratio from which the card is placed below the drawing
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
    this.active = null; // index of the match that the card shows
    this.position = null; // of this hit in the ranking
    this.neighbours = {}; // images of the previous and the next hit
    this.shortcuts = { n: () => this.follow("next"), p: () => this.follow("previous") };
    this.build();
    this.start();
    NARROW.addEventListener("change", () => this.explanation && this.draw(), { signal });
  }

  build() {
    this.heading = heading("Why these match");
    this.summary = el("p", { class: "lead", id: "match-summary" }, "Comparing the features …");
    this.stage = el("div", { class: "stage skeleton" });
    this.card = el("aside", { class: "match-card", id: "match-card", "aria-label": "Match" });
    this.controls = el("div", { class: "match-controls" });
    this.actions = el("div", { class: "row" });
    this.hits = el("nav", { class: "row", "aria-label": "Hits" });
    const back = linkButton(
      "All results",
      href("search", searchParams(this.about, this.params)),
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
      const request = searchParams(this.about, this.params);
      request.set("image", String(this.image));
      request.set("limit", String(LIMIT));
      this.explanation = readEvidence(await getJson("/explain", request, { signal: this.signal }));
    } catch (error) {
      this.stage.classList.remove("skeleton");
      this.summary.textContent = error.status === 404 ? "The uploaded query has expired, or one of the photographs was removed." : "";
      showError(error, () => this.start());
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
      "Why these match: ",
      el("span", { class: "file" }, baseName(query.name)),
      " and ",
      el("span", { class: "file" }, image.name),
    );
    this.summary.textContent = summaryText(this.explanation);
    announce(this.summary.textContent);
    this.hasInliers = matches.some((match) => match.inlier);
    this.stage.classList.remove("skeleton");
    this.showControls();
    this.draw();
  }

  /** The settings of the drawing, from the link. */
  settings() {
    const { params } = this;
    const which = params.get("which") ?? (this.hasInliers ? "inliers" : "all");
    // A link may have the groups of other options, or of other indexes.
    const off = (params.get("hide") ?? "").split(",");
    const hidden = this.explanation.groups.map(({ id }) => id).filter((id) => off.includes(id));
    const mode = params.get("draw") === "dots" ? "dots" : "lines";
    return { which, mode, hidden, limit: Number(params.get("shown") ?? SHOWN) };
  }

  /** Change one of the settings, and the link. */
  set(name, value) {
    if (value) this.params.set(name, String(value));
    else this.params.delete(name);
    this.updateLink();
    this.refresh();
  }

  updateLink() {
    replaceParams("matches", this.params);
    this.showHits();
  }

  showControls() {
    const { which, mode } = this.settings();
    const { title, groups } = this.explanation;
    this.slider = el("input", { type: "range", id: "shown", min: 1, step: 1 });
    this.slider.addEventListener("input", () => {
      this.params.set("shown", this.slider.value);
      this.refresh();
    });
    this.slider.addEventListener("change", () => this.updateLink()); // browsers limit how often the URL may change
    this.sliderText = el("output", { for: "shown" });
    this.legend = el("div", { class: "legend", role: "group", "aria-label": title });
    this.controls.replaceChildren(
      segmented({
        legend: "Matches",
        name: "which",
        value: which,
        onChange: (value) => this.set("which", value),
        choices: [
          ["inliers", "consistent", "matches that are consistent with one geometric transform"],
          ["all", "all"],
        ],
      }),
      segmented({
        legend: "Drawn as",
        name: "draw",
        value: mode,
        choices: [
          ["lines", "lines"],
          ["dots", "dots", "connected when you point at them"],
        ],
        onChange: (value) => this.set("draw", value),
      }),
      ...(groups.length ? [el("fieldset", { class: "segmented" }, el("legend", {}, title), this.legend)] : []),
      el("div", { class: "field slider" }, el("label", { for: "shown" }, "Highest weights: ", this.sliderText), this.slider),
    );
  }

  draw() {
    const { query, image } = this.explanation;
    const label = `Matches of ${baseName(query.name)} and ${image.name}: use the arrow keys to select one`;
    const region = parseRegion(this.params.get("region"));
    this.drawing = new MatchDrawing(this.explanation, { query: this.query, region, stacked: NARROW.matches, label });
    const { element } = this.drawing;
    element.addEventListener("pointermove", (event) => event.pointerType === "mouse" && this.point(event));
    element.addEventListener("pointerdown", (event) => this.point(event));
    element.addEventListener("keydown", (event) => this.key(event));
    this.stage.replaceChildren(element);
    this.stage.parentElement.classList.toggle("flat", this.drawing.aspect > WIDE);
    this.refresh();
  }

  /** Draw with the current settings. */
  refresh() {
    const { which, mode, hidden, limit } = this.settings();
    const { matches } = this.explanation;
    const eligible = [...matches.keys()].filter((i) => which === "all" || matches[i].inlier);
    const inGroups = eligible.filter((i) => !hidden.includes(matches[i].group));
    const shown = inGroups.slice(0, limit);
    this.showLegend(eligible, hidden);
    this.slider.max = String(Math.max(1, inGroups.length));
    this.slider.value = String(shown.length);
    this.sliderText.textContent = `${formatInteger(shown.length)} of ${formatInteger(inGroups.length)}`;
    this.drawing.show(shown, mode);
    this.select(shown.includes(this.active) ? this.active : null);
  }

  /** The legend, whose entries are filters. */
  showLegend(eligible, hidden) {
    const { matches, groups, parts } = this.explanation;
    const focused = document.activeElement?.dataset?.group;
    this.legend.replaceChildren(
      ...groups.map(({ id, name }) => {
        const number = eligible.filter((i) => matches[i].group === id).length;
        const off = hidden.includes(id);
        const others = hidden.filter((other) => other !== id);
        return el(
          "button",
          {
            type: "button",
            class: "legend-entry",
            "aria-pressed": String(!off),
            data: { group: id },
            onclick: () => this.set("hide", (off ? others : [...others, id]).join(",")),
          },
          el("span", { class: `swatch ${id}`, "aria-hidden": "true" }),
          `${name} `,
          el("b", {}, formatInteger(number)),
        );
      }),
      ...(parts.some((part) => part.image_sets) ? [byImageKey(eligible.filter((i) => isByImage(matches[i])).length)] : []),
    );
    if (focused) this.legend.querySelector(`[data-group=${focused}]`)?.focus();
  }

  point(event) {
    const number = this.drawing.nearest(event);
    if (number !== null && number !== this.active) this.select(number);
  }

  key(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return; // shortcuts of the browser
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const { shown } = this.drawing;
    if (event.key === "Escape") this.select(null);
    else if (step && shown.length) {
      const here = shown.indexOf(this.active);
      const next = here < 0 ? 0 : (here + step + shown.length) % shown.length;
      this.select(shown[next]);
      announce(matchText(this.explanation, shown[next]));
    } else return;
    event.preventDefault();
  }

  /** Select the match that the card shows. @param {number | null} number */
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
            ? "Point at a match, tap it, or select one with the arrow keys."
            : "No matches with these settings.",
        ),
      );
      return;
    }
    const title = `Match ${shown.indexOf(number) + 1} of ${shown.length}`;
    this.card.replaceChildren(el("h2", {}, title), matchCard(this.explanation, number, this.query));
  }

  /** Actions on the hit. */
  showActions() {
    const { path } = this.explanation.image;
    const onclick = () => copyText(path, "Path copied.");
    this.actions.replaceChildren(
      linkButton("Search with this photo", href("search", { query: this.image }), { class: "button quiet" }, "search"),
      button("Path", { class: "quiet", title: path, onclick }, "copy"),
    );
  }

  /** Find the previous and the next hit. */
  async findNeighbours() {
    const result = await search(this.about, this.params, { signal: this.signal }).catch(() => null);
    const hits = result?.hits ?? [];
    const here = hits.findIndex((hit) => hit.image === this.image);
    if (here < 0) return;
    this.position = { rank: here + 1, total: hits.length };
    this.neighbours = { previous: hits[here - 1]?.image, next: hits[here + 1]?.image };
    this.showHits();
  }

  /** Links to them that keep the settings of this view. */
  showHits() {
    if (!this.position) return;
    const link = (which, iconName) => {
      const image = this.neighbours[which];
      const attributes = { id: `${which}-hit`, "aria-label": `${which} hit`, hidden: image === undefined };
      return linkButton(which, this.linkTo(image), attributes, iconName);
    };
    const { rank, total } = this.position;
    this.hits.replaceChildren(
      link("previous", "left"),
      el("span", { class: "soft" }, `hit ${rank} of ${total}`),
      link("next", "right"),
    );
  }

  linkTo(image) {
    const params = new URLSearchParams(this.params);
    params.set("image", String(image));
    return href("matches", params);
  }

  follow(which) {
    if (this.neighbours[which] !== undefined) location.hash = this.linkTo(this.neighbours[which]);
  }
}

/** What dashed lines and small dots mean, and how many there are. */
function byImageKey(number) {
  return el(
    "span",
    { class: "line-key", title: BY_IMAGE_HELP },
    el("span", { class: "dash", "aria-hidden": "true" }),
    "dashed: by other features of the image ",
    el("b", {}, formatInteger(number)),
  );
}
