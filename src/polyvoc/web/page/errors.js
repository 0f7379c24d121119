// Errors of requests: one line for the user, and whether a retry may help.

export class ApiError extends Error {
  /**
   * @param {string} message one line
   * @param {number} status HTTP status; 0 if there was no response
   * @param {number} retryAfter seconds
   */
  constructor(message, status, retryAfter = 1) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.retryAfter = retryAfter;
  }

  /** Whether the same request may succeed later. */
  get temporary() {
    return this.status === 0 || this.status === 503;
  }
}

/** The error for a request without a response: the server has stopped, or the network is down. */
export function offlineError() {
  return new ApiError("No response from the server. Is polyvoc serve still running?", 0);
}

/**
 * The error for a response with an error status.
 * @param {number} status
 * @param {string} text response body
 * @param {string | null} retryAfter
 */
export function responseError(status, text, retryAfter) {
  return new ApiError(errorText(text) ?? `The server returned status ${status}.`, status, Number(retryAfter) || 1);
}

function errorText(text) {
  try {
    const { error } = JSON.parse(text);
    return typeof error === "string" ? error : null;
  } catch {
    return null;
  }
}
