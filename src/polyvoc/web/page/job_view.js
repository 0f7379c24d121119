// What the views of groups and of copies share: a list in pages, which a job of the server computes anew, and large photographs.

import { getJson, send } from "./api.js";
import { el } from "./elements.js";
import { JobPanel } from "./job_panel.js";
import { Lightbox, OPEN } from "./lightbox.js";
import { showError } from "./messages.js";
import { showPager } from "./pager.js";
import { href } from "./router.js";

/** A subclass has `show(result)`, and `items`: the photographs that can be opened. */
export class JobView {
  /**
   * @param {URLSearchParams} params
   * @param {{about: any, signal: AbortSignal}} context
   * @param {{name: string, job: string, pageSize: number, why?: (item: any) => string | null}} how the name of the view, which is also the
   *   path of the list (GET is a page, POST starts the job); the name of the job; the link to the matches of a photograph
   */
  constructor(params, { about, signal }, { name, job, pageSize, why }) {
    this.about = about;
    this.signal = signal;
    this.params = params;
    this.name = name;
    this.jobName = job;
    this.pageSize = pageSize;
    this.state = el("p", { class: "state", id: `${name}-state` });
    this.list = el("div", { class: "groups", id: name });
    this.pager = el("nav", { class: "row pager", "aria-label": "Pages" });
    this.job = new JobPanel("/job", { signal, onEnd: ({ state }) => state !== "failed" && this.load() });
    this.lightbox = new Lightbox({ about, view: name, items: () => this.items, params: () => this.params, why });
  }

  /** @param {URLSearchParams} params */
  update(params) {
    const before = this.params;
    this.params = params;
    if (before.get("page") === params.get("page")) this.lightbox.follow(!before.has(OPEN));
    else this.ready = this.load();
    return true;
  }

  /** Load the list, and follow the job if it is running. @param {boolean} mayRun whether the server has jobs */
  async open(mayRun) {
    await this.load();
    const running = mayRun && (await getJson("/job", {}, { signal: this.signal }).catch(() => null));
    if (running?.state === "running" && running.job === this.jobName) this.job.follow(running).catch(showError);
  }

  /** Further parameters of the list. */
  get request() {
    return {};
  }

  /** The number of the first group of the page, from 0. */
  get first() {
    return (this.page - 1) * this.pageSize;
  }

  async load() {
    this.page = Math.max(1, Math.floor(Number(this.params.get("page") ?? 1)) || 1);
    this.state.textContent = "Loading …";
    try {
      const request = { page: this.page - 1, size: this.pageSize, ...this.request };
      const result = await getJson(`/${this.name}`, request, { signal: this.signal });
      this.show(result);
      const to = (page) => href(this.name, { page: page > 1 ? page : null });
      showPager(this.pager, { page: this.page, pages: result.pages, to });
      this.lightbox.follow();
    } catch (error) {
      if (error.name === "AbortError") return;
      this.state.textContent = "";
      showError(error, () => this.load());
    }
  }

  /** Start the job. @param {HTMLButtonElement} control */
  async run(control) {
    control.disabled = true;
    try {
      await this.job.follow(await send("POST", `/${this.name}`, { signal: this.signal }));
    } catch (error) {
      showError(error);
    } finally {
      control.disabled = false;
    }
  }
}
