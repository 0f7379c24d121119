// How far long work of the server is: its stage, a bar, what could not be used, and a button to cancel it.

import { getJson, send } from "./api.js";
import { button, el } from "./elements.js";
import { baseName, count, formatInteger, kindsText, reasonText } from "./format.js";
import { announce, showError } from "./messages.js";

const POLL = 500; // ms

/** @typedef {{job: string, state: string, stage: string, done: number, total: number, error: string, seconds: number,
 *   problems: {path: string, reason: string}[], n_problems: number, skipped: Record<string, number>, photographs: number}} JobState */

export class JobPanel {
  /**
   * @param {string} path of the job: GET is its state, DELETE cancels it
   * @param {{signal?: AbortSignal, onEnd: (state: JobState) => void}} how
   */
  constructor(path, { signal, onEnd }) {
    this.path = path;
    this.signal = signal;
    this.onEnd = onEnd;
    this.text = el("p", { class: "job-text" });
    this.bar = el("progress", { "aria-label": "Progress" });
    this.cancel = button("Cancel", { id: "cancel-job", onclick: () => this.stop() }, "close");
    this.problems = el("div", { class: "job-problems" });
    this.element = el(
      "section",
      { class: "job", id: "job", "aria-label": "Progress", hidden: true },
      this.text,
      el("div", { class: "row" }, el("div", { class: "grow" }, this.bar), this.cancel),
      this.problems,
    );
  }

  /** Follow the job until it ends. @param {JobState} state */
  async follow(state) {
    this.cancel.disabled = false;
    for (; state.state === "running"; state = await getJson(this.path, {}, { signal: this.signal })) {
      this.show(state);
      await new Promise((resolve) => setTimeout(resolve, POLL));
    }
    this.show(state);
    announce(this.text.textContent);
    this.onEnd(state);
  }

  /** @param {JobState} state */
  show(state) {
    this.element.hidden = state.state === "idle";
    const running = state.state === "running";
    this.bar.hidden = this.cancel.hidden = !running;
    if (state.total > 0) {
      this.bar.max = state.total;
      this.bar.value = state.done;
    } else this.bar.removeAttribute("value");
    this.text.textContent = stateText(state);
    this.text.classList.toggle("problem", state.state === "failed");
    this.problems.replaceChildren(...(state.n_problems ? [problemList(state)] : []));
  }

  async stop() {
    this.cancel.disabled = true;
    try {
      await send("DELETE", this.path, { signal: this.signal });
    } catch (error) {
      this.cancel.disabled = false;
      showError(error);
    }
  }
}

function stateText({ state, stage, done, total, error, seconds, skipped, photographs }) {
  if (state === "failed") return error;
  if (state === "cancelled") return "Cancelled. What was read so far is kept.";
  if (state === "done") {
    const what = photographs ? `${count(photographs, "photograph")} ready` : "Done";
    const others = Object.keys(skipped).length ? ` Other files were skipped: ${kindsText(skipped)}.` : "";
    return `${what} in ${formatInteger(Math.ceil(seconds))} s.${others}`;
  }
  if (!total) return `${capital(stage)} …`;
  const left = done > 0 && seconds > 5 ? `, about ${formatInteger(Math.ceil((seconds * (total - done)) / done))} s left` : "";
  return `${capital(stage)}: ${formatInteger(done)} of ${formatInteger(total)}${left}`;
}

const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function problemList({ problems, n_problems: number }) {
  const lines = problems.map(({ path, reason }) => {
    return el("li", { title: path }, el("b", {}, baseName(path)), `: ${reasonText({ path, reason })}`);
  });
  return el(
    "details",
    { class: "problem-list" },
    el("summary", {}, `${count(number, "file")} could not be used`),
    el("ul", { class: "problems" }, ...lines, number > lines.length && el("li", {}, `and ${formatInteger(number - lines.length)} more`)),
  );
}
