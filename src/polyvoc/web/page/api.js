// How does the page speak with the server? JSON, streams of lines, uploads with progress; a busy server is asked again.

import { offline, refusal } from "./failure.js";
import { tell } from "./messages.js";
import { askToken, authorization } from "./token.js";

const TRIES = 5; // requests to a busy server, the first counted
const LONGEST_WAIT = 15; // seconds between two of them

/** @typedef {Record<string, string | number | boolean | null | undefined> | URLSearchParams} Parameters */

/** GET a path as JSON. */
export function getJson(path, params, { signal } = {}) {
  return send("GET", path, { params, signal });
}

/**
 * Send a request, get JSON.
 * @param {string} method
 * @param {string} path
 * @param {{params?: Parameters, body?: FormData, signal?: AbortSignal}} [rest]
 */
export function send(method, path, { params, body, signal } = {}) {
  return persistently(async () => {
    const response = await request(address(path, params), { method, body, signal });
    return response.json();
  }, signal);
}

/**
 * POST and read the answer line by line, each a JSON value, as they arrive.
 * @param {string} path
 * @param {Parameters} params
 * @param {{signal?: AbortSignal, onLine: (value: any) => void}} how
 */
export function stream(path, params, { signal, onLine }) {
  return persistently(async () => {
    const headers = { Accept: "application/x-ndjson" };
    const response = await request(address(path, params), { method: "POST", headers, signal });
    await readLines(response.body.getReader(), onLine);
  }, signal);
}

/**
 * POST a form and tell how much of it has been sent (fetch cannot tell, XMLHttpRequest can).
 * @param {string} path
 * @param {FormData} form
 * @param {{signal?: AbortSignal, onProgress?: (share: number) => void}} [how]
 */
export function upload(path, form, { signal, onProgress } = {}) {
  return persistently(() => uploadOnce(path, form, signal, onProgress), signal);
}

/** The address of a path with its parameters; those without a value are left out. @param {Parameters} [params] */
export function address(path, params = {}) {
  const pairs = params instanceof URLSearchParams ? [...params] : Object.entries(params);
  const given = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length ? `${path}?${new URLSearchParams(given.map(([key, value]) => [key, String(value)]))}` : path;
}

async function request(url, { headers, ...rest }) {
  let response;
  try {
    response = await fetch(url, { ...rest, headers: { Accept: "application/json", ...authorization(), ...headers } });
  } catch (error) {
    throw error.name === "AbortError" ? error : offline();
  }
  if (!response.ok) throw refusal(response.status, await response.text(), response.headers.get("Retry-After"));
  return response;
}

async function readLines(reader, onLine) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader
      .read()
      .catch((error) => Promise.reject(error.name === "AbortError" ? error : offline()));
    rest += decoder.decode(value, { stream: !done });
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of done ? [...lines, rest] : lines) if (line.trim()) onLine(JSON.parse(line));
    if (done) return;
  }
}

function uploadOnce(path, form, signal, onProgress) {
  return new Promise((resolve, reject) => {
    const sending = new XMLHttpRequest();
    const abort = () => sending.abort();
    signal?.addEventListener("abort", abort, { once: true });
    sending.open("POST", path);
    for (const [name, value] of Object.entries({ Accept: "application/json", ...authorization() }))
      sending.setRequestHeader(name, value);
    sending.upload.onprogress = (event) => event.lengthComputable && onProgress?.(event.loaded / event.total);
    sending.onerror = () => reject(offline());
    sending.onabort = () => reject(new DOMException("The upload was stopped.", "AbortError"));
    sending.onload = () => {
      if (sending.status >= 200 && sending.status < 300) resolve(JSON.parse(sending.responseText));
      else reject(refusal(sending.status, sending.responseText, sending.getResponseHeader("Retry-After")));
    };
    sending.onloadend = () => signal?.removeEventListener("abort", abort);
    sending.send(form);
  });
}

/** Try again while the server is busy; ask for the token where it wants one. */
async function persistently(attempt, signal) {
  for (let tries = 1; ;) {
    try {
      return await attempt();
    } catch (error) {
      if (error.status === 401) await askToken(signal);
      else if (error.status === 503 && tries < TRIES) await busy(error.retryAfter, (tries += 1), signal);
      else throw error;
    }
  }
}

async function busy(retryAfter, tries, signal) {
  const seconds = Math.min(retryAfter, LONGEST_WAIT);
  const close = tell(`The server is busy; trying again in ${seconds} s (${tries} of ${TRIES}).`, { lasting: true });
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
