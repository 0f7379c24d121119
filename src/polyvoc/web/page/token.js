// May this reader ask, or write? The token is taken from the link or typed once, and kept for this tab only.

import { button, el } from "./elements.js";

const KEY = "polyvoc.token";
let asking = null; // the one form that is open, as a promise

/** The header that shows the token, if there is one. @returns {Record<string, string>} */
export function authorization() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** Take `#token=…` out of the address at once, so that it is neither shared nor kept in the history. */
export async function takeTokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(null, "", `${location.pathname}#/`);
    sessionStorage.setItem(KEY, given);
  }
  if (sessionStorage.getItem(KEY)) await openSession().catch(() => false); // the server may be another than when it was kept
}

/** Ask the reader for the token; settles when the server takes it. @param {AbortSignal} [signal] */
export function askToken(signal) {
  asking ??= showForm().finally(() => {
    asking = null;
  });
  if (!signal) return asking;
  const left = new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(new DOMException("The view was left.", "AbortError")), { once: true });
  });
  return Promise.race([asking, left]);
}

/** Exchange the token for a cookie, with which pictures load. */
async function openSession() {
  const response = await fetch("/session", { method: "POST", headers: authorization() });
  return response.ok;
}

function showForm() {
  return new Promise((resolve) => {
    const input = el("input", { id: "token", type: "password", autocomplete: "current-password", required: true });
    const problem = el("p", { class: "problem", role: "alert" });
    const form = el(
      "form",
      { class: "message token", id: "token-form", "aria-label": "Token" },
      el("p", {}, "For this the server wants its token."),
      el("label", { for: "token" }, "Token, from whoever started the server"),
      input,
      button("Go on", { type: "submit", class: "primary" }),
      problem,
    );
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      sessionStorage.setItem(KEY, input.value.trim());
      if (await openSession().catch(() => false)) {
        form.remove();
        resolve();
      } else {
        sessionStorage.removeItem(KEY);
        problem.textContent = "The server does not take this token.";
        input.select();
      }
    });
    document.getElementById("messages").append(form);
    input.focus();
  });
}
