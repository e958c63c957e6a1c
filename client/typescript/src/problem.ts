import type { Problem, ProblemCode } from "./types.js";

/** What the service refused, or could not do. Its code says which, for programs. */
export class PawlError extends Error {
  override readonly name = "PawlError";
  /** The stable code of the problem; "http_502" and the like, where a proxy answered in the place of the service. */
  readonly code: ProblemCode | `http_${number}`;
  /** The HTTP status. */
  readonly status: number;
  /** The whole problem (RFC 9457), with `errors`, `order` and `allowedActions` where it has them. */
  readonly problem: Problem | undefined;
  /** What the log of the service calls the request. */
  readonly requestId: string | undefined;
  /** In how many milliseconds to come again, if the answer says so; else 0. */
  readonly retryAfter: number;

  /** Whether the same request may succeed later. */
  get mayRetry(): boolean {
    return [429, 502, 503, 504].includes(this.status);
  }

  constructor(status: number, problem: Problem | undefined, headers = new Headers()) {
    const code: PawlError["code"] = problem?.code ?? `http_${status}`;
    super([code, problem?.detail ?? problem?.title].filter(Boolean).join(": "));
    this.code = code;
    this.status = status;
    this.problem = problem;
    this.requestId = headers.get("X-Request-Id") ?? undefined;
    this.retryAfter = millisecondsUntil(headers.get("Retry-After") ?? "");
  }
}

/** Reads what Retry-After has: seconds, or a time. */
function millisecondsUntil(value: string): number {
  const wait = /^\d+$/.test(value) ? Number(value) * 1000 : Date.parse(value) - Date.now();
  return wait > 0 ? wait : 0; // NaN, too
}

/** What an answer says that is no good one. */
export function errorOf(response: Response, text: string): PawlError {
  const isProblem = response.headers.get("Content-Type")?.startsWith("application/problem+json");
  let problem: Problem | undefined;
  try {
    problem = isProblem ? (JSON.parse(text) as Problem) : undefined;
  } catch {
    problem = undefined; // it was cut off on the way
  }
  return new PawlError(response.status, problem, response.headers);
}
