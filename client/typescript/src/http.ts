import { errorOf, PawlError } from "./problem.js";

/** A request, the same in every attempt. */
export interface Request {
  method: string;
  url: URL;
  headers: Headers;
  body: string | undefined;
  signal: AbortSignal | undefined;
}

export interface Retrying {
  fetch: typeof fetch;
  /** Timeout of an attempt in milliseconds; Infinity: none. */
  timeout: number;
  /** How long the request is retried, in milliseconds from its beginning. */
  retryFor: number;
}

const firstPause = 100;
const mostPause = 5_000;

/** No attempt was answered, so the outcome is unknown. Its cause is the error of the last attempt. */
export class PawlConnectionError extends Error {
  override readonly name = "PawlConnectionError";

  constructor(
    /** How often the request was sent. */
    readonly attempts: number,
    milliseconds: number,
    cause: unknown,
  ) {
    const reason = cause instanceof Error && cause.cause instanceof Error ? cause.cause : cause; // fetch only says that it failed
    super(`no answer (tried ${attempts} times in ${milliseconds} ms): ${reason instanceof Error ? reason.message : reason}`, { cause });
  }
}

/**
 * Sends a request until a retry would not help, and reads the answer with `read`. Every attempt is the same and has the
 * same idempotency key, so that nothing is done twice. Throws a PawlError for an unsuccessful answer, a
 * PawlConnectionError if there was none, or the reason of the signal.
 */
export async function send<T>(request: Request, how: Retrying, read: (response: Response) => Promise<T>): Promise<T> {
  const began = Date.now();
  for (let attempt = 1; ; attempt++) {
    let failure: unknown;
    try {
      const signal = attemptSignal(request.signal, how.timeout) ?? null;
      const response = await how.fetch(request.url, { ...request, body: request.body ?? null, redirect: "error", signal });
      const deleted = request.method === "DELETE" && attempt > 1 && response.status === 404; // by an earlier attempt
      if (response.ok || response.status === 304 || deleted) return await read(response);
      failure = errorOf(response, await response.text());
    } catch (error) {
      failure = error;
    }
    const wait = pauseAfter(failure, attempt);
    const spent = Date.now() - began;
    if (!request.signal?.aborted && wait !== undefined && spent + wait <= how.retryFor) await pause(wait, request.signal);
    else throw failure instanceof PawlError || request.signal?.aborted ? failure : new PawlConnectionError(attempt, spent, failure);
  }
}

/** Milliseconds to wait after a failure; undefined if a retry would not help. */
function pauseAfter(failure: unknown, attempt: number): number | undefined {
  if (!(failure instanceof PawlError)) return backoff(attempt); // the outcome is unknown
  if (!failure.mayRetry) return undefined;
  return failure.retryAfter > 0 ? failure.retryAfter + Math.random() * firstPause : backoff(attempt);
}

function attemptSignal(signal: AbortSignal | undefined, timeout: number): AbortSignal | undefined {
  if (timeout === Infinity) return signal;
  const late = AbortSignal.timeout(timeout);
  return signal ? AbortSignal.any([signal, late]) : late;
}

/** Milliseconds until the next attempt: longer each time, with jitter. */
export function backoff(attempt: number): number {
  return Math.min(mostPause, firstPause * 2 ** (attempt - 1)) * (0.5 + Math.random() / 2);
}

/** Waits, or throws the reason if the signal comes first. */
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
 * Yields the parts of a body, without the separators after them. An unfinished last part is dropped. If `silence` is given,
 * the body ends after that many milliseconds without data.
 */
export async function* parts(response: Response, separator: string, signal: AbortSignal | undefined, silence?: number): AsyncGenerator<string, void> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  const close = () => void reader.cancel().catch(() => undefined); // Node may have dropped the signal of an old request
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
    close(); // even if the caller leaves the loop
  }
}
