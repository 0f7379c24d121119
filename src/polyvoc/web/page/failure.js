// What went wrong with a request, in one line for the reader, and is it worth trying again?

export class ApiError extends Error {
  /**
   * @param {string} message one clear line
   * @param {number} status of HTTP; 0 if there was no answer at all
   * @param {number} retryAfter seconds
   */
  constructor(message, status, retryAfter = 1) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.retryAfter = retryAfter;
  }

  /** May the same request succeed a little later? */
  get temporary() {
    return this.status === 0 || this.status === 503;
  }
}

/** No answer: the server is stopped, or the network is away. */
export function offline() {
  return new ApiError("The server does not answer. Is polyvoc serve still running?", 0);
}

/**
 * An answer that is not one.
 * @param {number} status
 * @param {string} text body of the answer
 * @param {string | null} retryAfter
 */
export function refusal(status, text, retryAfter) {
  return new ApiError(reason(text) ?? `The server answered with status ${status}.`, status, Number(retryAfter) || 1);
}

function reason(text) {
  try {
    const said = JSON.parse(text).error;
    return typeof said === "string" ? said : null;
  } catch {
    return null;
  }
}
