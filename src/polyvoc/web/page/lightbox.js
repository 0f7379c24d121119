// A photograph large, over the view: its outline, its details, and what can be done with it. It has a link: `open=IMAGE`.

import { button, el, linkButton, outlineOver } from "./elements.js";
import { baseName, count, dayOf, folderOf, formatNumber, formatProbability, partsText } from "./format.js";
import { pictureUrl } from "./images.js";
import { copyText } from "./messages.js";
import { href } from "./router.js";

export const OPEN = "open"; // the parameter of the link
const SWIPE = 48; // CSS pixels that a finger moves to turn the page

/**
 * @typedef {object} Item a photograph that can be shown
 * @property {number} image
 * @property {string} path
 * @property {number} width
 * @property {number} height
 * @property {string | null} [changed]
 * @property {number[][] | null} [outline]
 * @property {number | null} [probability]
 * @property {number} [score]
 * @property {number} [inliers]
 * @property {any[]} [parts] of a hit of several indexes
 */

export class Lightbox {
  /**
   * @param {{about: any, view: string, items: () => Item[], params: () => URLSearchParams,
   *   why?: (item: Item) => string | null}} how the name and the parameters of the view; `why` is the link to the matches
   */
  constructor({ about, view, items, params, why = () => null }) {
    this.about = about;
    this.view = view;
    this.items = items;
    this.params = params;
    this.why = why;
    this.pushed = false; // whether the entry before in the history is the same view without the photograph
    this.build();
  }

  build() {
    this.picture = el("img", { alt: "", draggable: "false" });
    this.stage = el("div", { class: "lightbox-stage" }, this.picture);
    this.caption = el("div", { class: "lightbox-caption" });
    this.actions = el("div", { class: "row lightbox-actions" });
    this.previous = this.turn("Previous photograph", "left", -1);
    this.next = this.turn("Next photograph", "right", 1);
    const close = button("Close", { id: "close-lightbox", autofocus: true, onclick: () => this.dialog.close() }, "close");
    this.dialog = el(
      "dialog",
      { class: "lightbox", id: "lightbox", "aria-label": "Photograph" },
      close,
      this.stage,
      this.previous,
      this.next,
      el("div", { class: "lightbox-foot" }, this.caption, this.actions),
    );
    this.dialog.addEventListener("close", () => this.leave());
    this.dialog.addEventListener("keydown", (event) => this.onKey(event));
    this.dialog.addEventListener("click", (event) => event.target === this.stage && this.dialog.close());
    this.listenForSwipes();
  }

  turn(label, iconName, step) {
    const properties = { class: `lightbox-turn ${iconName}`, "aria-label": label, title: label, onclick: () => this.step(step) };
    const control = button("", properties, iconName);
    control.querySelector("span").remove();
    return control;
  }

  /** The link that opens a photograph. */
  linkTo(image) {
    const params = new URLSearchParams(this.params());
    params.set(OPEN, String(image));
    return href(this.view, params);
  }

  /** Show what the link names, or nothing. @param {boolean} [pushed] whether the link has just been followed in this view */
  follow(pushed = false) {
    const image = this.params().get(OPEN);
    const item = image === null ? undefined : this.items().find((one) => String(one.image) === image);
    if (!item) {
      this.item = null;
      this.dialog.close();
      return;
    }
    if (!this.dialog.open) this.pushed = pushed;
    this.show(item);
  }

  /** @param {Item} item */
  show(item) {
    this.item = item;
    const items = this.items();
    const here = items.indexOf(item);
    this.previous.disabled = here <= 0;
    this.next.disabled = here + 1 >= items.length;
    this.dialog.dataset.image = String(item.image);
    this.dialog.setAttribute("aria-label", `Photograph ${baseName(item.path)}`);
    this.picture.src = pictureUrl(item.image, 1600);
    this.picture.alt = baseName(item.path);
    this.drawOutline(item);
    this.caption.replaceChildren(
      el("p", { class: "name" }, baseName(item.path)),
      el("p", { class: "small" }, details(item)),
      el("p", { class: "small lightbox-path" }, folderOf(item.path)),
    );
    this.showActions(item);
    if (!this.dialog.open) this.dialog.showModal();
  }

  drawOutline(item) {
    this.outline?.remove();
    this.outline = item.outline ? outlineOver(item) : null;
    if (this.outline) this.stage.append(this.outline);
  }

  showActions(item) {
    const why = this.why(item);
    this.actions.replaceChildren(
      linkButton("Search with this photo", href("search", { query: item.image }), { class: "button", data: { action: "search" } }, "search"),
      ...(why ? [linkButton("Why these match", why, { class: "button", data: { action: "why" } }, "why")] : []),
      ...(this.about.originals
        ? [linkButton("Open original", `/images/${item.image}/file`, { target: "_blank", rel: "noopener" }, "photo")]
        : []),
      button("Copy path", { onclick: () => copyText(item.path, "Path copied.") }, "copy"),
    );
  }

  /** Show the next or the previous photograph in the same entry of the history. */
  step(by) {
    const items = this.items();
    const next = items[items.indexOf(this.item) + by];
    if (next) location.replace(this.linkTo(next.image));
  }

  /** The dialog was closed by the user: the link loses the photograph. */
  leave() {
    const params = new URLSearchParams(this.params());
    if (this.item === null || !params.has(OPEN)) return;
    if (this.pushed) {
      history.back();
      return;
    }
    params.delete(OPEN);
    location.replace(href(this.view, params));
  }

  onKey(event) {
    const { key } = event;
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const why = this.actions.querySelector("[data-action=why]");
    if (key === "ArrowLeft") this.step(-1);
    else if (key === "ArrowRight") this.step(1);
    else if (key === "w" && why) why.click();
    else return;
    event.preventDefault();
  }

  listenForSwipes() {
    let start = null;
    this.stage.addEventListener("pointerdown", (event) => {
      start = event.isPrimary && event.pointerType !== "mouse" ? event.clientX : null;
    });
    this.stage.addEventListener("pointerup", (event) => {
      const moved = start === null ? 0 : event.clientX - start;
      start = null;
      if (Math.abs(moved) > SWIPE) this.step(moved < 0 ? 1 : -1);
    });
  }
}

/** One line of details. @param {Item} item */
function details({ probability, parts, score, inliers, width, height, changed, image }) {
  const facts = [
    probability !== null && probability !== undefined && `probability ${formatProbability(probability)}`,
    partsText(parts),
    inliers > 0 && count(inliers, "consistent match", "consistent matches"),
    score !== undefined && `score ${formatNumber(score)}`,
    width > 0 && `${width} × ${height}`,
    dayOf(changed),
    `image ${image}`,
  ];
  return facts.filter(Boolean).join(" · ");
}
