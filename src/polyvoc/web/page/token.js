// The access token: taken from the link or typed once, and stored for this tab only.

import { button, el } from "./elements.js";

const KEY = "polyvoc.token";
let pending = null; // promise of the open form; there is at most one

/** The Authorization header, if there is a token. @returns {Record<string, string>} */
export function authorization() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** Remove `#token=…` from the URL at once, so that it is neither shared nor stored in the history. */
export async function takeTokenFromUrl() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    history.replaceState(null, "", `${location.pathname}#/`);
    sessionStorage.setItem(KEY, given);
  }
  if (sessionStorage.getItem(KEY)) await openSession().catch(() => false); // the stored token may be that of another server
}

/** Show a form for the token; settles when the server accepts it. @param {AbortSignal} [signal] */
export function requestToken(signal) {
  pending ??= showForm().finally(() => {
    pending = null;
  });
  if (!signal) return pending;
  const left = new Promise((_, reject) => {
    signal.addEventListener("abort", () => reject(new DOMException("The view was left.", "AbortError")), { once: true });
  });
  return Promise.race([pending, left]);
}

/** Exchange the token for a cookie, which requests for pictures need. */
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
      el("p", {}, "The server requires a token."),
      el("label", { for: "token" }, "Token (printed when the server started)"),
      input,
      button("Continue", { type: "submit", class: "primary" }),
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
        problem.textContent = "The server rejected this token.";
        input.select();
      }
    });
    document.getElementById("messages").append(form);
    input.focus();
  });
}
