// Photographs from the user: dropped, pasted, chosen or taken; uploaded once, then searched with by id.

import { button, el } from "./elements.js";
import { ApiError } from "./errors.js";
import { formatBytes, formatPercent } from "./format.js";
import { uploadQuery } from "./images.js";
import { announce, showError, showMessage } from "./messages.js";
import { go } from "./router.js";

let current = null; // the AbortController of the running upload

/**
 * Listen for files that are dropped or pasted anywhere on the page.
 * @param {() => {onFiles: (files: File[]) => void, text: string}} target what the current view does with them
 */
export function listenForFiles(target) {
  const overlay = document.getElementById("drop-overlay");
  const text = document.getElementById("drop-text");
  const hide = () => {
    overlay.hidden = true;
  };
  document.addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    text.textContent = target().text;
    overlay.hidden = false;
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget === null && hide());
  document.addEventListener("drop", (event) => {
    hide();
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    target().onFiles([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    target().onFiles(files);
  });
}

/**
 * Upload a photograph and search with it.
 * @param {any} about
 * @param {File[]} files only the first is used
 * @param {URLSearchParams} [options] search options
 */
export async function searchWith(about, files, options = new URLSearchParams()) {
  const [file] = files;
  if (isTooLarge(about, file)) return;
  if (files.length > 1) showMessage(`Searching with the first of ${files.length} files.`);
  current?.abort();
  current = new AbortController();
  const panel = uploadPanel(file, () => current.abort());
  try {
    const { query } = await uploadQuery(file, { signal: current.signal, onProgress: panel.show });
    go("search", new URLSearchParams([["query", query], ...options]));
  } catch (error) {
    showError(error, () => searchWith(about, files, options));
  } finally {
    panel.close();
  }
}

/** A file input that looks like a button; with `camera` a phone takes a photograph. */
export function fileInput(label, { id, symbol, camera = false, multiple = false, onFiles }) {
  const input = el("input", {
    id,
    type: "file",
    accept: "image/*",
    capture: camera && "environment",
    multiple,
    class: "visually-hidden",
  });
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = "";
    if (files.length) onFiles(files);
  });
  return el("label", { class: camera ? "button camera" : "button primary" }, input, symbol, el("span", {}, label));
}

/** Return whether a file is larger than the server accepts, and show an error if so. */
export function isTooLarge(about, file) {
  const limit = about.limits.upload_bytes;
  if (file.size <= limit) return false;
  const text = `${file.name} has ${formatBytes(file.size)}; this server accepts at most ${formatBytes(limit)}.`;
  showError(new ApiError(text, 413));
  return true;
}

function uploadPanel(file, onCancel) {
  const url = URL.createObjectURL(file);
  const picture = el("img", { src: url, alt: "", width: 56, height: 56 });
  picture.addEventListener("error", () => {
    picture.hidden = true;
  });
  const bar = el("progress", { max: 1, value: 0, "aria-label": "Uploaded" });
  const state = el("span", {}, "uploading …");
  const panel = el(
    "div",
    { class: "message uploading", data: { kind: "upload" } },
    picture,
    el("div", { class: "grow" }, el("p", {}, file.name || "pasted photograph", " — ", state), bar),
    button("Cancel", { class: "quiet", onclick: onCancel }),
  );
  document.getElementById("messages").append(panel);
  announce("Uploading the photograph.");
  return {
    show: (share) => {
      bar.value = share;
      state.textContent = share < 1 ? formatPercent(share) : "extracting features …";
      if (share >= 1) bar.removeAttribute("value");
    },
    close: () => {
      panel.remove();
      URL.revokeObjectURL(url);
    },
  };
}
