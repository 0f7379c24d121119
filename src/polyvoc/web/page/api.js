// HTTP requests to the server: JSON, streams of JSON lines, uploads with progress; retries while the server is busy.

import { offlineError, responseError } from "./errors.js";
import { showMessage } from "./messages.js";
import { authorization, requestToken } from "./token.js";

const MAX_ATTEMPTS = 5; // requests to a busy server, including the first
const MAX_WAIT = 15; // seconds between two attempts

/** @typedef {Record<string, string | number | boolean | null | undefined> | URLSearchParams} Parameters */

/** GET a path and return its JSON. */
export function getJson(path, params, { signal } = {}) {
  return send("GET", path, { params, signal });
}

/**
 * Send a request and return the JSON of the response.
 * @param {string} method
 * @param {string} path
 * @param {{params?: Parameters, body?: FormData, signal?: AbortSignal}} [rest]
 */
export function send(method, path, { params, body, signal } = {}) {
  return withRetries(async () => {
    const response = await request(urlWith(path, params), { method, body, signal });
    return response.json();
  }, signal);
}

/**
 * POST and pass each line of the response, a JSON value, to `onLine` as it arrives.
 * @param {string} path
 * @param {Parameters} params
 * @param {{signal?: AbortSignal, onLine: (value: any) => void}} how
 */
export function stream(path, params, { signal, onLine }) {
  return withRetries(async () => {
    const headers = { Accept: "application/x-ndjson" };
    const response = await request(urlWith(path, params), { method: "POST", headers, signal });
    await readLines(response.body.getReader(), onLine);
  }, signal);
}

/**
 * POST a form and report progress (XMLHttpRequest: fetch has no upload progress).
 * @param {string} path
 * @param {FormData} form
 * @param {{signal?: AbortSignal, onProgress?: (share: number) => void}} [how]
 */
export function upload(path, form, { signal, onProgress } = {}) {
  return withRetries(() => uploadOnce(path, form, signal, onProgress), signal);
}

/** The URL of a path with its parameters; parameters without a value are left out. @param {Parameters} [params] */
function urlWith(path, params = {}) {
  const pairs = params instanceof URLSearchParams ? [...params] : Object.entries(params);
  const given = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given.map(([key, value]) => [key, String(value)]))}` : path;
}

async function request(url, { headers, ...rest }) {
  let response;
  try {
    response = await fetch(url, { ...rest, headers: { Accept: "application/json", ...authorization(), ...headers } });
  } catch (error) {
    throw error.name === "AbortError" ? error : offlineError();
  }
  if (!response.ok) throw responseError(response.status, await response.text(), response.headers.get("Retry-After"));
  return response;
}

async function readLines(reader, onLine) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader
      .read()
      .catch((error) => Promise.reject(error.name === "AbortError" ? error : offlineError()));
    rest += decoder.decode(value, { stream: !done });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of done ? [...lines, rest] : lines) if (line.trim()) onLine(JSON.parse(line));
    if (done) return;
  }
}

function uploadOnce(path, form, signal, onProgress) {
  return new Promise((resolve, reject) => {
    const xhr = new XMLHttpRequest();
    const abort = () => xhr.abort();
    signal?.addEventListener("abort", abort, { once: true });
    xhr.open("POST", path);
    for (const [name, value] of Object.entries({ Accept: "application/json", ...authorization() }))
      xhr.setRequestHeader(name, value);
    xhr.upload.onprogress = (event) => event.lengthComputable && onProgress?.(event.loaded / event.total);
    xhr.onerror = () => reject(offlineError());
    xhr.onabort = () => reject(new DOMException("The upload was cancelled.", "AbortError"));
    xhr.onload = () => {
      if (xhr.status >= 200 && xhr.status < 300) resolve(JSON.parse(xhr.responseText));
      else reject(responseError(xhr.status, xhr.responseText, xhr.getResponseHeader("Retry-After")));
    };
    xhr.onloadend = () => signal?.removeEventListener("abort", abort);
    xhr.send(form);
  });
}

/** Retry while the server is busy; request the token where the server requires one. */
async function withRetries(attempt, signal) {
  for (let attempts = 1; ;) {
    try {
      return await attempt();
    } catch (error) {
      if (error.status === 401) await requestToken(signal);
      else if (error.status === 503 && attempts < MAX_ATTEMPTS) await waitUntilFree(error.retryAfter, (attempts += 1), signal);
      else throw error;
    }
  }
}

async function waitUntilFree(retryAfter, attempts, signal) {
  const seconds = Math.min(retryAfter, MAX_WAIT);
  const text = `The server is busy; retrying in ${seconds} s (attempt ${attempts} of ${MAX_ATTEMPTS}).`;
  const close = showMessage(text, { lasting: true });
  try {
    await pause(1000 * seconds, signal);
  } finally {
    close();
  }
}

function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(new DOMException("The view was left.", "AbortError"));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
