import { backoff, parts, pause, type Request, type Retrying, send } from "./http.js";
import { PawlError } from "./problem.js";
import type { components } from "./openapi.js";
import type { Order } from "./types.js";

/** The result of one of many orders: the order, or the error with which it was rejected. The index is from 0. */
export type Processed = { index: number; order: Order; error?: never } | { index: number; order?: never; error: PawlError };

const requestsAtOnce = 8; // together, as many orders as the service processes for one caller at a time
const linesAtOnce = 128;

/** An order without an answer. */
export interface Line {
  index: number;
  text: string;
  /** The last answer, if it asks for another attempt. */
  busy?: PawlError;
}

export type Give = (result: Processed) => void;

/** Sends lines, in one request those that are available, and yields the answers as they come. */
export async function* processLines(texts: AsyncGenerator<string>, sendAll: (lines: Line[], give: Give) => Promise<void>, signal: AbortSignal): AsyncGenerator<Processed, void> {
  const lines: Line[] = [];
  const results: Processed[] = [];
  const failures: unknown[] = [];
  let open = 0; // lines whose result was not yielded yet
  let requests = 0;
  let ended = false;
  let waiting: (() => void)[] = [];
  const changed = () => waiting.splice(0).forEach((resume) => resume());
  const until = async (holds: () => boolean) => {
    while (!holds()) await new Promise<void>((resume) => waiting.push(resume));
  };
  const fail = (error: unknown) => {
    failures.push(error);
    changed();
  };
  const give = (result: Processed) => {
    results.push(result);
    changed();
  };
  const sendWaiting = () => {
    if (lines.length === 0 || requests === requestsAtOnce || ended) return;
    requests++;
    const after = () => {
      requests--;
      sendWaiting();
    };
    void sendAll(lines.splice(0, linesAtOnce), give).catch(fail).finally(after);
  };
  const read = async () => {
    for (let index = 0; ; index++) {
      await until(() => open < requestsAtOnce * linesAtOnce || ended);
      const next = await texts.next();
      if (next.done || ended) return index;
      open++;
      lines.push({ index, text: next.value });
      sendWaiting();
    }
  };
  signal.addEventListener("abort", () => fail(signal.reason), { once: true });
  let total: number | undefined;
  void read().then((count) => (total = count)).then(changed, fail);
  try {
    for (let taken = 0; taken !== total; taken++) {
      await until(() => results.length > 0 || failures.length > 0 || taken === total);
      const result = results.shift();
      if (!result && failures.length > 0) throw failures[0];
      if (!result) return;
      open--;
      changed();
      yield result;
    }
  } finally {
    ended = true;
    changed();
    void texts.return(undefined);
  }
}

/** Sends lines until each has an answer. It retries like any request, but begins anew after each answer. */
export async function sendLines(request: Request, lines: Line[], how: Retrying, give: Give): Promise<void> {
  let left = lines;
  try {
    while (left.length > 0) {
      request.body = left.map((line) => `${line.text}\n`).join("");
      left = await send(request, how, (response) => readAnswers(response, left, request.signal, give));
      if (left.length > 0) await pause(Math.max(backoff(1), ...left.map((line) => line.busy?.retryAfter ?? 0)), request.signal);
    }
  } catch (error) {
    if (request.signal?.aborted) throw error;
    for (const { index, busy } of left) {
      if (!busy) throw error;
      give({ index, error: busy });
    }
  }
}

/** Reads the answers, and returns the lines to send again. If these are all, it throws the reason. */
async function readAnswers(response: Response, lines: Line[], signal: AbortSignal | undefined, give: Give): Promise<Line[]> {
  const open: (Line | undefined)[] = [...lines];
  let failure: unknown = new Error("the answer ends early");
  try {
    for await (const text of parts(response, "\n", signal)) {
      const { line, order, problem, status, retryAfter } = JSON.parse(text) as components["schemas"]["ProcessedLine"];
      const at = open[line - 1];
      if (!at) continue;
      const headers = new Headers({ "X-Request-Id": response.headers.get("X-Request-Id") ?? "", "Retry-After": `${retryAfter ?? 0}` });
      const error = problem && new PawlError(status, problem, headers);
      delete at.busy;
      if (error?.mayRetry) {
        at.busy = failure = error;
        continue;
      }
      open[line - 1] = undefined;
      give(error ? { index: at.index, error } : { index: at.index, order: order as Order });
    }
  } catch (error) {
    failure = error;
  }
  const left = open.filter((line) => line !== undefined);
  if (left.length === lines.length) throw failure;
  return left;
}
