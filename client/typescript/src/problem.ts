import type { Problem, ProblemCode } from "./types.js";

/** The service rejected a request, or could not do it. */
export class PawlError extends Error {
  override readonly name = "PawlError";
  /** The stable code of the problem; "http_502" and the like, if a proxy answered. */
  readonly code: ProblemCode | `http_${number}`;
  /** The HTTP status. */
  readonly status: number;
  /** The whole problem (RFC 9457), perhaps with `errors`, `order` and `allowedActions`. */
  readonly problem: Problem | undefined;
  /** The ID of the request in the log of the service. */
  readonly requestId: string | undefined;
  /** When to retry, in milliseconds; 0: the answer does not say. */
  readonly retryAfter: number;

  /** Whether the same request may succeed later. */
  get mayRetry(): boolean {
    return [429, 502, 503, 504].includes(this.status);
  }

  constructor(status: number, problem: Problem | undefined, headers = new Headers()) {
    const code: PawlError["code"] = problem?.code ?? `http_${status}`;
    const fields = (problem?.errors ?? []).map((field) => `${field.pointer ?? field.parameter ?? field.header ?? ""} ${field.detail}.`);
    const said = [problem?.title, problem?.detail, ...fields].filter(Boolean).join(" ");
    super(said ? `${code}: ${said}` : code);
    this.code = code;
    this.status = status;
    this.problem = problem;
    this.requestId = headers.get("X-Request-Id") ?? undefined;
    this.retryAfter = millisecondsUntil(headers.get("Retry-After") ?? "");
  }
}

/** Parses Retry-After: seconds, or a date. */
function millisecondsUntil(value: string): number {
  const wait = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return wait > 0 ? wait : 0; // NaN, too
}

/** The error of an unsuccessful answer. */
export function errorOf(response: Response, text: string): PawlError {
  const isProblem = response.headers.get("Content-Type")?.startsWith("application/problem+json");
  let problem: Problem | undefined;
  try {
    problem = isProblem ? (JSON.parse(text) as Problem) : undefined;
  } catch {
    problem = undefined; // it was cut off
  }
  return new PawlError(response.status, problem, response.headers);
}
