// What is the reader told? One clear line that stays out of the way, and a quiet line for screen readers.

import { button, el } from "./elements.js";
import { ApiError } from "./failure.js";

const BRIEF = 4000; // ms that a note stays

/**
 * Show a line. Errors last until they are closed, the action is taken, or the view is left; notes go by themselves.
 * @param {string} text
 * @param {{kind?: "error" | "note", lasting?: boolean, action?: {label: string, run: () => void}}} [how]
 * @returns {() => void} takes it away
 */
export function tell(text, { kind = "note", lasting = kind === "error", action } = {}) {
  const place = document.getElementById("messages");
  for (const other of [...place.children]) if (other.dataset.kind === kind) other.remove();
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
  place.append(line);
  if (!lasting) setTimeout(close, BRIEF);
  return close;
}

/** Show what went wrong, unless the reader only went elsewhere. */
export function tellError(error, retry) {
  if (error.name === "AbortError") return;
  if (!(error instanceof ApiError)) console.error(error);
  const action = retry && (!(error instanceof ApiError) || error.temporary) ? { label: "Try again", run: retry } : undefined;
  tell(error.message, { kind: "error", action });
}

/** Take all lines away: another view begins. */
export function clearErrors() {
  for (const line of document.querySelectorAll("#messages [data-kind=error]")) line.remove();
}

/** Say something to screen readers. */
export function announce(text) {
  document.getElementById("status").textContent = text;
}

/** Put text into the clipboard; where the browser forbids it, show the text to be copied by hand. */
export async function copyText(text, done) {
  try {
    await navigator.clipboard.writeText(text);
    tell(done);
  } catch {
    tell(`Copy this: ${text}`, { kind: "error" });
  }
}
