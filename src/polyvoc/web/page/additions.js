// How does the collection change? Photographs are added a few at a time and removed one by one, if the server allows it.

import { forgetAnswers } from "./answers.js";
import { send, upload } from "./api.js";
import { button, el, icon } from "./elements.js";
import { chooser, tooLarge } from "./intake.js";
import { announce, tell, tellError } from "./messages.js";
import { forget } from "./photograph.js";
import { baseName, count } from "./words.js";

const AT_ONCE = 8; // files in one request; a later one that fails does not undo the earlier
const SENDING = 0.5; // of the time, roughly; the rest is indexing

/**
 * The part of the view that adds photographs.
 * @param {any} about
 * @param {AbortSignal} signal of the view
 * @param {() => void} onChange
 * @returns {{element: HTMLElement, add: (files: File[]) => Promise<void>}}
 */
export function addPanel(about, signal, onChange) {
  const bar = el("progress", { max: 1, value: 0, hidden: true, "aria-label": "Added" });
  const state = el("p", { class: "state small", id: "add-state", role: "status" });
  const problems = el("ul", { class: "problems", id: "add-problems" });
  const show = (share, text) => {
    bar.hidden = share === null;
    bar.value = share ?? 0;
    state.textContent = text;
  };
  const add = async (files) => {
    const good = files.filter((file) => !tooLarge(about, file));
    if (!good.length) return;
    problems.replaceChildren();
    show(0, "Sending …");
    try {
      const added = await addAll(good, signal, show, (lines) => problems.append(...lines.map(problemLine)));
      show(null, `${count(added, "photograph")} added.`);
    } catch (error) {
      show(null, "");
      tellError(error, () => add(files));
    }
    forgetAnswers();
    if (!signal.aborted) onChange();
  };
  const choose = chooser("Add photographs", { id: "add-input", sign: icon("plus"), multiple: true, onFiles: add });
  const row = el("div", { class: "row" }, choose, el("span", { class: "soft small" }, "or drop them on this page"));
  return { element: el("section", { class: "add", "aria-label": "Add photographs" }, row, bar, state, problems), add };
}

/**
 * A button that removes a photograph after a question in its place.
 * @param {number} image
 * @param {string} name
 * @param {HTMLElement} tile where the question is asked
 * @param {AbortSignal} signal
 * @param {() => void} onChange
 */
export function removeButton(image, name, tile, signal, onChange) {
  const label = `Remove ${name} from the collection`;
  const ask = el(
    "button",
    { type: "button", class: "remove", "aria-label": label, title: label, data: { action: "remove" } },
    icon("bin"),
  );
  const cancel = button("Keep", { class: "quiet", data: { action: "keep" } });
  const sure = button("Remove", { class: "danger", "aria-label": `Yes, remove ${name}`, data: { action: "confirm-remove" } });
  const question = el(
    "div",
    { class: "confirm", role: "group", "aria-label": `Remove ${name}?` },
    el("p", {}, "Remove it from the collection? Its file stays on the disk."),
    el("div", { class: "row" }, sure, cancel),
  );
  ask.addEventListener("click", () => {
    tile.append(question);
    cancel.focus();
  });
  const close = () => {
    question.remove();
    ask.focus();
  };
  cancel.addEventListener("click", close);
  question.addEventListener("keydown", (event) => event.key === "Escape" && close());
  sure.addEventListener("click", async () => {
    sure.disabled = true;
    try {
      await send("DELETE", `/images/${image}`, { signal });
      forget(image);
      forgetAnswers();
      tell(`${name} was removed from the collection.`);
      onChange();
    } catch (error) {
      sure.disabled = false;
      tellError(error);
    }
  });
  return ask;
}

async function addAll(files, signal, show, onProblems) {
  let added = 0;
  for (let first = 0; first < files.length; first += AT_ONCE) {
    const part = files.slice(first, first + AT_ONCE);
    const form = new FormData();
    for (const file of part) form.append("photos", file, file.name);
    const range = `${first + 1} to ${first + part.length} of ${files.length}`;
    const onProgress = (share) =>
      show((first + part.length * share * SENDING) / files.length, `${share < 1 ? "Sending" : "Indexing"} ${range} …`);
    const answer = await upload("/images", form, { signal, onProgress });
    added += answer.added.length;
    onProblems(answer.problems);
    announce(`${added} of ${files.length} added`);
  }
  return added;
}

function problemLine({ path, reason }) {
  return el("li", {}, el("b", {}, baseName(path)), `: ${reason}`);
}
