// How does a photograph come in? Dropped anywhere, pasted, chosen, or taken; sent once, then asked with by its link.

import { button, el } from "./elements.js";
import { ApiError } from "./failure.js";
import { announce, tell, tellError } from "./messages.js";
import { keep } from "./photograph.js";
import { go } from "./router.js";
import { bytes, percent } from "./words.js";

let sending = null; // the AbortController of the upload that is under way

/**
 * Listen for files that are dropped or pasted anywhere on the page.
 * @param {() => {take: (files: File[]) => void, text: string}} current what the view that is shown does with them
 */
export function startIntake(current) {
  const veil = document.getElementById("drop-veil");
  const text = document.getElementById("drop-text");
  const lift = () => {
    veil.hidden = true;
  };
  document.addEventListener("dragover", (event) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    text.textContent = current().text;
    veil.hidden = false;
  });
  document.addEventListener("dragleave", (event) => event.relatedTarget === null && lift());
  document.addEventListener("drop", (event) => {
    lift();
    if (!event.dataTransfer?.files.length) return;
    event.preventDefault();
    current().take([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    const files = [...(event.clipboardData?.files ?? [])];
    if (!files.length) return;
    event.preventDefault();
    current().take(files);
  });
}

/**
 * Send a photograph and ask with it.
 * @param {any} about
 * @param {File[]} files the first is taken
 * @param {URLSearchParams} [rules] how to search
 */
export async function askWith(about, files, rules = new URLSearchParams()) {
  const [file] = files;
  if (tooLarge(about, file)) return;
  if (files.length > 1) tell(`Asking with the first of ${files.length} files.`);
  sending?.abort();
  sending = new AbortController();
  const panel = uploadPanel(file, () => sending.abort());
  try {
    const { query } = await keep(file, { signal: sending.signal, onProgress: panel.show });
    go("search", new URLSearchParams([["query", query], ...rules]));
  } catch (error) {
    tellError(error, () => askWith(about, files, rules));
  } finally {
    panel.close();
  }
}

/** Inputs to choose a file or, on a phone, to take a photograph. */
export function chooser(label, { id, sign, camera = false, multiple = false, onFiles }) {
  const input = el("input", {
    id,
    type: "file",
    accept: "image/*",
    capture: camera && "environment",
    multiple,
    class: "unseen",
  });
  input.addEventListener("change", () => {
    const files = [...input.files];
    input.value = "";
    if (files.length) onFiles(files);
  });
  return el("label", { class: camera ? "button camera" : "button primary" }, input, sign, el("span", {}, label));
}

/** Say that a file is larger than the server takes, before it is sent. */
export function tooLarge(about, file) {
  const most = about.limits.upload_bytes;
  if (file.size <= most) return false;
  const error = new ApiError(`${file.name} has ${bytes(file.size)}; this server takes at most ${bytes(most)}.`, 413);
  tellError(error);
  return true;
}

function uploadPanel(file, onStop) {
  const url = URL.createObjectURL(file);
  const picture = el("img", { src: url, alt: "", width: 56, height: 56 });
  picture.addEventListener("error", () => {
    picture.hidden = true;
  });
  const bar = el("progress", { max: 1, value: 0, "aria-label": "Sent" });
  const state = el("span", {}, "sending …");
  const panel = el(
    "div",
    { class: "message uploading", data: { kind: "upload" } },
    picture,
    el("div", { class: "grow" }, el("p", {}, file.name || "pasted photograph", " — ", state), bar),
    button("Stop", { class: "quiet", onclick: onStop }),
  );
  document.getElementById("messages").append(panel);
  announce("Sending the photograph.");
  return {
    show: (share) => {
      bar.value = share;
      state.textContent = share < 1 ? percent(share) : "finding its features …";
      if (share >= 1) bar.removeAttribute("value");
    },
    close: () => {
      panel.remove();
      URL.revokeObjectURL(url);
    },
  };
}
