import { errorOf, PawlError } from "./problem.js";

/** One request, as it is sent each time. */
export interface Request {
  method: string;
  url: URL;
  headers: Headers;
  body: string | undefined;
  signal: AbortSignal | undefined;
}

export interface Retrying {
  fetch: typeof fetch;
  /** Milliseconds after which an attempt counts as lost; Infinity for never. */
  timeout: number;
  /** For how many milliseconds a request is tried again, from its beginning on. */
  retryFor: number;
}

const firstPause = 100;
const mostPause = 5_000;

/**
 * Sends a request until there is an answer that another attempt would not change, and reads it with `read`. What was lost is
 * sent again as it was, with the same idempotency key, so nothing is done twice. Throws a PawlError for an answer that is no
 * good one, and what `fetch` threw where there was none.
 */
export async function send<T>(request: Request, how: Retrying, read: (response: Response) => Promise<T>): Promise<T> {
  const began = Date.now();
  for (let attempt = 1; ; attempt++) {
    let failure: unknown;
    try {
      const signal = attemptSignal(request.signal, how.timeout) ?? null;
      const response = await how.fetch(request.url, { ...request, body: request.body ?? null, redirect: "error", signal });
      const deleted = request.method === "DELETE" && attempt > 1 && response.status === 404; // by an attempt before
      if (response.ok || response.status === 304 || deleted) return await read(response);
      failure = errorOf(response, await response.text());
    } catch (error) {
      failure = error;
    }
    const wait = pauseAfter(failure, attempt);
    if (request.signal?.aborted || wait === undefined || Date.now() - began + wait > how.retryFor) throw failure;
    await pause(wait, request.signal);
  }
}

/** How many milliseconds to wait after a failure; undefined where another attempt would not help. */
function pauseAfter(failure: unknown, attempt: number): number | undefined {
  if (!(failure instanceof PawlError)) return backoff(attempt); // nobody knows whether it was done
  if (!failure.mayRetry) return undefined;
  return failure.retryAfter > 0 ? failure.retryAfter + Math.random() * firstPause : backoff(attempt);
}

function attemptSignal(signal: AbortSignal | undefined, timeout: number): AbortSignal | undefined {
  if (timeout === Infinity) return signal;
  const late = AbortSignal.timeout(timeout);
  return signal ? AbortSignal.any([signal, late]) : late;
}

/** Milliseconds before the next attempt: longer each time, and never the same for all who were refused at once. */
export function backoff(attempt: number): number {
  return Math.min(mostPause, firstPause * 2 ** (attempt - 1)) * (0.5 + Math.random() / 2);
}

/** Waits, or throws the reason when the signal comes first. */
export function pause(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal?.aborted) stop();
    signal?.addEventListener("abort", stop, { once: true });
  });
}

/**
 * The parts of a body, without the separators behind them. What comes before the end of a part is none. The body is cut off
 * after milliseconds of silence, if they are given.
 */
export async function* parts(response: Response, separator: string, signal: AbortSignal | undefined, silence?: number): AsyncGenerator<string, void> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const close = () => void reader.cancel().catch(() => undefined); // Node may have forgotten the signal of an old request
  signal?.addEventListener("abort", close);
  try {
    for (let rest = ""; ; ) {
      const late = silence ? setTimeout(close, silence) : undefined;
      const { done, value } = await reader.read().finally(() => clearTimeout(late));
      if (done) return;
      const read = (rest + value).split(separator);
      rest = read.pop() ?? "";
      yield* read;
    }
  } finally {
    signal?.removeEventListener("abort", close);
    close(); // also when the caller leaves the loop
  }
}
