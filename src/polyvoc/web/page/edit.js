// Adding and removing photographs, if the server allows it: uploads in small batches, removal one by one.

import { send, upload } from "./api.js";
import { button, el, icon } from "./elements.js";
import { baseName, count } from "./format.js";
import { forgetInfo } from "./images.js";
import { announce, showError, showMessage } from "./messages.js";
import { clearResults } from "./results.js";
import { fileInput, isTooLarge } from "./upload.js";

const BATCH = 8; // files per request; if a later request fails, the earlier ones stay
const UPLOAD_SHARE = 0.5; // of the time, roughly; the rest is indexing

/**
 * The section that adds photographs.
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
    const good = files.filter((file) => !isTooLarge(about, file));
    if (!good.length) return;
    problems.replaceChildren();
    show(0, "Uploading …");
    try {
      const added = await addAll(good, signal, show, (lines) => problems.append(...lines.map(problemLine)));
      show(null, `${count(added, "photograph")} added.`);
    } catch (error) {
      show(null, "");
      showError(error, () => add(files));
    }
    clearResults();
    if (!signal.aborted) onChange();
  };
  const choose = fileInput("Add photographs", { id: "add-input", symbol: icon("plus"), multiple: true, onFiles: add });
  const row = el("div", { class: "row" }, choose, el("span", { class: "soft small" }, "or drop them on this page"));
  return { element: el("section", { class: "add", "aria-label": "Add photographs" }, row, bar, state, problems), add };
}

/**
 * A button that removes a photograph after a confirmation.
 * @param {number} image
 * @param {string} name
 * @param {HTMLElement} tile where the confirmation is shown
 * @param {AbortSignal} signal
 * @param {() => void} onChange
 */
export function removeButton(image, name, tile, signal, onChange) {
  const label = `Remove ${name} from the collection`;
  const remove = el(
    "button",
    { type: "button", class: "remove", "aria-label": label, title: label, data: { action: "remove" } },
    icon("bin"),
  );
  const cancel = button("Keep", { class: "quiet", data: { action: "keep" } });
  const confirm = button("Remove", { class: "danger", "aria-label": `Yes, remove ${name}`, data: { action: "confirm-remove" } });
  const dialog = el(
    "div",
    { class: "confirm", role: "group", "aria-label": `Remove ${name}?` },
    el("p", {}, "Remove it from the collection? The file is not deleted."),
    el("div", { class: "row" }, confirm, cancel),
  );
  remove.addEventListener("click", () => {
    tile.append(dialog);
    cancel.focus();
  });
  const close = () => {
    dialog.remove();
    remove.focus();
  };
  cancel.addEventListener("click", close);
  dialog.addEventListener("keydown", (event) => event.key === "Escape" && close());
  confirm.addEventListener("click", async () => {
    confirm.disabled = true;
    try {
      await send("DELETE", `/images/${image}`, { signal });
      forgetInfo(image);
      clearResults();
      showMessage(`${name} was removed from the collection.`);
      onChange();
    } catch (error) {
      confirm.disabled = false;
      showError(error);
    }
  });
  return remove;
}

async function addAll(files, signal, show, onProblems) {
  let added = 0;
  for (let first = 0; first < files.length; first += BATCH) {
    const part = files.slice(first, first + BATCH);
    const form = new FormData();
    for (const file of part) form.append("photos", file, file.name);
    const range = `${first + 1} to ${first + part.length} of ${files.length}`;
    const onProgress = (share) =>
      show((first + part.length * share * UPLOAD_SHARE) / files.length, `${share < 1 ? "Uploading" : "Indexing"} ${range} …`);
    const result = await upload("/images", form, { signal, onProgress });
    added += result.added.length;
    onProblems(result.problems);
    announce(`${added} of ${files.length} added`);
  }
  return added;
}

function problemLine({ path, reason }) {
  return el("li", {}, el("b", {}, baseName(path)), `: ${reason}`);
}
