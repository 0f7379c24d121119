// Images as the page uses them: one of the collection (by id) or an upload that the server stores for a while.

import { getJson, upload } from "./api.js";
import { el } from "./elements.js";
import { ApiError } from "./errors.js";
import { baseName, dayOf, folderOf } from "./format.js";

const MAX_CACHED = 600;
const MAX_ROWS = 5000;
const PAGE = 100; // rows per request
const cache = new Map(); // query -> promise of its info

/** @typedef {{name: string, width: number, height: number, features: number, path?: string, available?: boolean}} ImageInfo */

/** Whether a query is an image of the collection, not an upload. */
export const isIndexed = (query) => /^\d+$/.test(String(query));

/** The URL of its picture: 160, 320, 640 or 1600 pixels on the long side. */
export function pictureUrl(query, side) {
  return isIndexed(query)
    ? `/images/${query}/thumbnail?side=${side}`
    : `/queries/${encodeURIComponent(query)}/picture?side=${side}`;
}

/**
 * Its name and size, cached. Leaving the view does not cancel the request: other views may be waiting for it.
 * @returns {Promise<ImageInfo>}
 */
export function imageInfo(query) {
  const key = String(query);
  if (key === "") return Promise.reject(new ApiError("Choose a photograph first.", 404));
  if (!cache.has(key)) {
    const request = getJson(isIndexed(key) ? `/images/${key}` : `/queries/${encodeURIComponent(key)}`);
    cache.set(key, request);
    request.catch(() => cache.delete(key));
    if (cache.size > MAX_CACHED) cache.delete(cache.keys().next().value);
  }
  return cache.get(key);
}

const rows = new Map(); // image -> its row in the list of images

/**
 * The rows of images in the list of images, cached: size, path, and when the file was changed.
 * @param {number[]} images
 * @returns {Promise<Map<number, any>>}
 */
export async function imageRows(images, { signal }) {
  const missing = images.filter((image) => !rows.has(image));
  for (let first = 0; first < missing.length; first += PAGE) {
    const part = missing.slice(first, first + PAGE).map((image) => ["image", String(image)]);
    const found = await getJson("/images", new URLSearchParams([["size", String(PAGE)], ...part]), { signal });
    for (const row of found.images) rows.set(row.image, row);
  }
  while (rows.size > MAX_ROWS) rows.delete(rows.keys().next().value);
  return rows;
}

/** Where and when: the day on which the file was changed, and its folder. @returns {Node[]} */
export function placeLine({ path, changed }) {
  const folder = folderOf(path);
  return [
    changed ? el("time", { datetime: changed }, dayOf(changed)) : "",
    folder ? el("span", { class: "folder", title: folder }, baseName(folder)) : "",
  ].filter(Boolean);
}

/** Remove an image from the cache after its removal from the collection. */
export function forgetInfo(query) {
  cache.delete(String(query));
  rows.delete(Number(query));
}

/** Upload a file as a query; links with its id can be shared. */
export async function uploadQuery(file, { signal, onProgress }) {
  const form = new FormData();
  form.append("photo", file, file.name || "pasted.png");
  return upload("/queries", form, { signal, onProgress });
}

/**
 * A thumbnail of an image of the collection in a 4:3 box; a text if its file is missing.
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
    box.append(el("span", { class: "gone" }, "no thumbnail: the file may be missing"));
  });
  return box;
}
