// Messages to the user: one line at the edge of the page, and a live region for screen readers.

import { button, el } from "./elements.js";
import { ApiError } from "./errors.js";

const NOTE_MS = 4000; // how long a note is shown

/**
 * Show a line. Errors stay until they are closed, their action runs or the view changes; notes disappear by themselves.
 * @param {string} text
 * @param {{kind?: "error" | "note", lasting?: boolean, action?: {label: string, run: () => void}}} [how]
 * @returns {() => void} removes it
 */
export function showMessage(text, { kind = "note", lasting = kind === "error", action } = {}) {
  const container = document.getElementById("messages");
  for (const other of [...container.children]) if (other.dataset.kind === kind) other.remove();
  const close = () => line.remove();
  const line = el("div", { class: "message", role: kind === "error" ? "alert" : "status", data: { kind } }, el("p", {}, text));
  if (action)
    line.append(
      button(action.label, {
        class: "primary",
        onclick: () => {
          close();
          action.run();
        },
      }),
    );
  line.append(button("Close", { class: "quiet", onclick: close }));
  container.append(line);
  if (!lasting) setTimeout(close, NOTE_MS);
  return close;
}

/** Show an error, unless the request was cancelled because the user left the view. */
export function showError(error, retry) {
  if (error.name === "AbortError") return;
  if (!(error instanceof ApiError)) console.error(error);
  const action = retry && (!(error instanceof ApiError) || error.temporary) ? { label: "Try again", run: retry } : undefined;
  showMessage(error.message, { kind: "error", action });
}

/** Remove all errors when the view changes. */
export function clearErrors() {
  for (const line of document.querySelectorAll("#messages [data-kind=error]")) line.remove();
}

/** Announce a text to screen readers. */
export function announce(text) {
  document.getElementById("status").textContent = text;
}

/** Copy text to the clipboard; where the browser does not allow it, show the text to copy by hand. */
export async function copyText(text, confirmation) {
  try {
    await navigator.clipboard.writeText(text);
    showMessage(confirmation);
  } catch {
    showMessage(`Copy this: ${text}`, { kind: "error" });
  }
}
