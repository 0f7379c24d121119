// Hash routes: every view is a link that reloads to the same view.

import { clearErrors } from "./messages.js";

/**
 * @typedef {object} View
 * @property {HTMLElement} element
 * @property {string} title
 * @property {(params: URLSearchParams) => boolean} [update] show other parameters without creating the view again; false if it cannot
 * @property {Promise<void>} [ready] settles when the view has its full height, so that the scroll position can be restored
 * @property {(files: File[]) => void} [onFiles] handles files that are dropped or pasted
 * @property {string} [dropText] shown while files are dragged over the view
 * @property {Record<string, () => void>} [shortcuts] actions by key
 */

/** @typedef {(params: URLSearchParams, context: {about: any, signal: AbortSignal}) => View} Route */

/** The link to a view. @param {Record<string, any> | URLSearchParams} [params] */
export function href(name, params = {}) {
  const pairs = params instanceof URLSearchParams ? [...params] : Object.entries(params);
  const given = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  const path = name === "start" ? "#/" : `#/${name}`;
  return given.length ? `${path}?${readable(new URLSearchParams(given.map(([key, value]) => [key, String(value)])))}` : path;
}

/** Go to a view. */
export function go(name, params) {
  location.hash = href(name, params);
}

/** Change the URL without an update: for settings that the view has already applied. */
export function replaceParams(name, params) {
  history.replaceState(history.state, "", href(name, params));
}

/** The view and its parameters from a hash. @returns {{name: string, params: URLSearchParams}} */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { name: path || "start", params: new URLSearchParams(query) };
}

/** Commas need no escape in a fragment; without it links are easier to read. */
function readable(params) {
  return params.toString().replaceAll("%2C", ",");
}

export class Router {
  /**
   * @param {Record<string, Route>} routes
   * @param {HTMLElement} main container of the view
   * @param {any} about description of the server
   */
  constructor(routes, main, about) {
    this.routes = routes;
    this.main = main;
    this.about = about;
    /** @type {View | null} */
    this.view = null;
    this.name = "";
    this.leaving = new AbortController();
    this.scrolled = new Map(); // history entry -> its scroll position
    this.entry = 0;
  }

  start() {
    history.scrollRestoration = "manual";
    addEventListener("hashchange", () => this.show());
    this.show();
  }

  /** Show the view of the current URL. A history entry that already has a number is one that the user returned to. */
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
    else this.create(name, params, first);
    if (known) this.scrollBack();
  }

  async scrollBack() {
    const { entry, view } = this;
    await view.ready;
    if (view === this.view && entry === this.entry) scrollTo(0, this.scrolled.get(entry) ?? 0);
  }

  create(name, params, first) {
    this.leaving.abort();
    this.leaving = new AbortController();
    const route = Object.hasOwn(this.routes, name) ? this.routes[name] : this.routes.start;
    this.name = name;
    this.view = route(params, { about: this.about, signal: this.leaving.signal });
    this.main.replaceChildren(this.view.element);
    document.title = `${this.view.title} · polyvoc`;
    this.markCurrent();
    if (first) return;
    scrollTo(0, 0);
    this.main.querySelector("h1")?.focus({ preventScroll: true });
  }

  /** Mark the current view in the navigation. */
  markCurrent() {
    const current = { search: "start", matches: "start", compare: "start" }[this.name] ?? this.name;
    for (const link of document.querySelectorAll("#views a")) {
      if (link.dataset.view === current) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
  }
}
