// What is a photograph to the page? An image of the collection, by its number, or an upload that the server keeps for a while.

import { getJson, upload } from "./api.js";
import { el } from "./elements.js";
import { ApiError } from "./failure.js";
import { baseName } from "./words.js";

const REMEMBERED = 600; // facts of images that are kept
const facts = new Map(); // query -> promise of its facts

/** @typedef {{name: string, width: number, height: number, features: number, path?: string, available?: boolean}} Facts */

/** Is it an image of the collection? */
export const isImage = (query) => /^\d+$/.test(String(query));

/** Where its picture is: 160, 320, 640 or 1600 pixels on the long side. */
export function pictureUrl(query, side) {
  return isImage(query)
    ? `/images/${query}/thumbnail?side=${side}`
    : `/queries/${encodeURIComponent(query)}/picture?side=${side}`;
}

/**
 * Its name and size, asked once; the request outlives the view that began it, since others may wait for it, too.
 * @returns {Promise<Facts>}
 */
export function factsOf(query) {
  const key = String(query);
  if (key === "") return Promise.reject(new ApiError("Choose a photograph first.", 404));
  if (!facts.has(key)) {
    const asked = getJson(isImage(key) ? `/images/${key}` : `/queries/${encodeURIComponent(key)}`);
    facts.set(key, asked);
    asked.catch(() => facts.delete(key));
    if (facts.size > REMEMBERED) facts.delete(facts.keys().next().value);
  }
  return facts.get(key);
}

/** Forget what is known of a photograph: it was removed. */
export function forget(query) {
  facts.delete(String(query));
}

/** Give a file to the server to ask with; its id makes links that can be shared. */
export async function keep(file, { signal, onProgress }) {
  const form = new FormData();
  form.append("photo", file, file.name || "pasted.png");
  return upload("/queries", form, { signal, onProgress });
}

/**
 * A small picture of an image of the collection in a box of 4:3; says so if its file is gone.
 * @param {number} image
 * @param {string} path
 * @param {{alt?: string, eager?: boolean}} [how]
 */
export function thumbnail(image, path, { alt = baseName(path), eager = false } = {}) {
  const picture = el("img", {
    src: pictureUrl(image, 320),
    srcset: `${pictureUrl(image, 320)} 1x, ${pictureUrl(image, 640)} 2x`,
    width: 320,
    height: 240,
    alt,
    loading: eager ? "eager" : "lazy",
    decoding: "async",
    draggable: "false",
  });
  const box = el("span", { class: "thumbnail" }, picture);
  picture.addEventListener("load", () => box.classList.add("loaded"));
  picture.addEventListener("error", () => {
    picture.hidden = true;
    box.classList.add("loaded");
    box.append(el("span", { class: "gone" }, "no picture: is the file still there?"));
  });
  return box;
}
