// Which view does the address ask for? Hash routes, so that every view is a link that reloads to the same view.

import { clearErrors } from "./messages.js";

/**
 * @typedef {object} View
 * @property {HTMLElement} element
 * @property {string} title
 * @property {(params: URLSearchParams) => boolean} [update] show other parameters without being made anew; false if it cannot
 * @property {Promise<void>} [ready] settles when the view has its height, so that it can be scrolled to where it was left
 * @property {(files: File[]) => void} [takeFiles] what is done with files that are dropped or pasted
 * @property {string} [dropText] what is said while files are dragged over the view
 * @property {Record<string, () => void>} [keys] what single keys do
 */

/** @typedef {(params: URLSearchParams, context: {about: any, signal: AbortSignal}) => View} Route */

/** The link to a view. @param {Record<string, any> | URLSearchParams} [params] */
export function href(name, params = {}) {
  const pairs = params instanceof URLSearchParams ? [...params] : Object.entries(params);
  const given = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  const path = name === "home" ? "#/" : `#/${name}`;
  return given.length ? `${path}?${readable(new URLSearchParams(given.map(([key, value]) => [key, String(value)])))}` : path;
}

/** Go to a view. */
export function go(name, params) {
  location.hash = href(name, params);
}

/** Change the address of the view that is shown, as its own controls do; the view already shows it. */
export function amend(name, params) {
  history.replaceState(history.state, "", href(name, params));
}

/** What an address asks for. @returns {{name: string, params: URLSearchParams}} */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { name: path || "home", params: new URLSearchParams(query) };
}

/** Commas need no escape in a fragment, and links are read by people. */
function readable(params) {
  return params.toString().replaceAll("%2C", ",");
}

export class Router {
  /**
   * @param {Record<string, Route>} routes
   * @param {HTMLElement} main where views are shown
   * @param {any} about what the server says of itself
   */
  constructor(routes, main, about) {
    this.routes = routes;
    this.main = main;
    this.about = about;
    /** @type {View | null} */
    this.view = null;
    this.name = "";
    this.leaving = new AbortController();
    this.scrolled = new Map(); // entry of the history -> how far it was scrolled when it was left
    this.entry = 0;
  }

  start() {
    history.scrollRestoration = "manual";
    addEventListener("hashchange", () => this.show());
    this.show();
  }

  /** Show what the address asks for; an entry that already has a number is one that the reader came back to. */
  show() {
    if (!location.hash.startsWith("#/") && location.hash !== "") return; // a link within the page
    const { name, params } = parse(location.hash);
    const first = this.view === null;
    const known = history.state?.entry;
    this.scrolled.set(this.entry, scrollY);
    this.entry = known ?? Date.now();
    history.replaceState({ entry: this.entry }, "");
    clearErrors();
    if (name === this.name && this.view?.update?.(params)) document.title = `${this.view.title} · polyvoc`;
    else this.make(name, params, first);
    if (known) this.scrollBack();
  }

  async scrollBack() {
    const { entry, view } = this;
    await view.ready;
    if (view === this.view && entry === this.entry) scrollTo(0, this.scrolled.get(entry) ?? 0);
  }

  make(name, params, first) {
    this.leaving.abort();
    this.leaving = new AbortController();
    const route = Object.hasOwn(this.routes, name) ? this.routes[name] : this.routes.home;
    this.name = name;
    this.view = route(params, { about: this.about, signal: this.leaving.signal });
    this.main.replaceChildren(this.view.element);
    document.title = `${this.view.title} · polyvoc`;
    this.mark();
    if (first) return;
    scrollTo(0, 0);
    this.main.querySelector("h1")?.focus({ preventScroll: true });
  }

  /** Say in the navigation where we are. */
  mark() {
    const place = { search: "home", matches: "home", compare: "home" }[this.name] ?? this.name;
    for (const link of document.querySelectorAll("#views a")) {
      if (link.dataset.view === place) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
}
