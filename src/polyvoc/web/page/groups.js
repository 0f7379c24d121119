// The groups view: things that were seen more than once, each with its photographs side by side.

import { button, el, heading, iconLink, linkButton } from "./elements.js";
import { baseName, count, formatInteger, shellWord } from "./format.js";
import { placeLine, thumbnail } from "./images.js";
import { JobView } from "./job_view.js";
import { announce } from "./messages.js";
import { moveInGrid } from "./result_grid.js";
import { href } from "./router.js";
import { selectAll, selectBox, selectionBar } from "./selection.js";

const PAGE_SIZE = 12;

/** @type {import("./router.js").Route} */
export function groupsView(params, context) {
  return new GroupsView(params, context);
}

class GroupsView extends JobView {
  constructor(params, context) {
    const why = ({ image, first }) => (first === image ? null : href("matches", { query: first, image }));
    super(params, context, { name: "groups", job: "linking", pageSize: PAGE_SIZE, why });
    const { about, signal } = context;
    this.title = "Groups";
    this.items = [];
    this.advice = el(
      "p",
      { class: "soft prose", hidden: true },
      "To compare them: ",
      el("code", {}, `polyvoc link --index ${shellWord(about.index)}`),
      ", or start the server with ",
      el("code", {}, `polyvoc serve ${shellWord(about.index)} --write`),
      ", which can do it on this page.",
    );
    this.find = button("Find groups", { id: "find-groups", hidden: true, onclick: () => this.run(this.find) }, "search");
    this.element = el(
      "div",
      { class: "groups-view" },
      heading("Seen more than once"),
      el("p", { class: "soft prose" }, "Photographs that show the same thing, by matches that agree in their geometry."),
      el("div", { class: "row spread" }, this.state, this.find, this.pager),
      this.advice,
      this.job.element,
      this.list,
      selectionBar(signal),
      this.lightbox.dialog,
    );
    this.ready = this.open(about.write);
  }

  show({ groups, total, images, linked }) {
    this.advice.hidden = linked || this.about.write;
    this.state.textContent = !linked
      ? "The photographs have not been compared with one another yet."
      : total === 0
        ? "No thing was seen more than once."
        : `${count(total, "group")} of ${count(images, "photograph")}`;
    announce(this.state.textContent);
    this.find.hidden = !this.about.write;
    this.find.classList.toggle("primary", !linked);
    this.find.querySelector("span").textContent = linked ? "Find groups again" : "Find groups";
    this.items = groups.flatMap((group) => group.images.map((item) => ({ ...item, first: group.images[0].image })));
    this.list.replaceChildren(...groups.map((group, i) => this.group(group, this.first + i + 1)));
  }

  group({ images, total }, number) {
    const id = `group-${number}`;
    const grid = el("ul", { class: "grid small-tiles", "aria-labelledby": id }, ...images.map((item) => this.tile(item, images[0])));
    grid.addEventListener("keydown", (event) => moveInGrid(event, grid));
    const more = total - images.length;
    return el(
      "section",
      { class: "group", "aria-labelledby": id },
      el(
        "div",
        { class: "row spread" },
        el("h2", { id }, `Group ${formatInteger(number)}: ${count(total, "photograph")}`),
        button("Select", { class: "quiet", "aria-label": `Select group ${number}`, onclick: () => selectAll(images) }, "check"),
      ),
      grid,
      more > 0 && linkButton(`${formatInteger(more)} more`, href("search", { query: images[0].image, top: 192 }), { class: "button quiet" }),
    );
  }

  tile(item, first) {
    const { image, path } = item;
    const name = baseName(path);
    const why =
      image === first.image ? null : iconLink(`Why these match: ${name}`, href("matches", { query: first.image, image }), "why");
    return el(
      "li",
      { class: "tile", data: { image } },
      el(
        "a",
        { class: "tile-link", href: this.lightbox.linkTo(image), "aria-label": `Show ${name} large` },
        thumbnail(image, path, { alt: "" }),
      ),
      selectBox(image, path, () => item),
      el(
        "div",
        { class: "tile-info" },
        el("p", { class: "name", title: path }, name),
        el("p", { class: "place" }, ...placeLine(item)),
      ),
      el(
        "div",
        { class: "row tile-actions" },
        iconLink(`Search with this photo: ${name}`, href("search", { query: image }), "search"),
        why,
      ),
    );
  }
}
