import { follow } from "./events.js";
import { pause, type Request, type Retrying, send } from "./http.js";
import { newId } from "./id.js";
import { type Give, type Line, processLines, type Processed, sendLines } from "./process.js";
import { Resources } from "./resources.js";
import type * as api from "./types.js";

export interface PawlOptions {
  /** A token of `pawl token create`, or a function that returns a valid one. */
  token?: string | (() => string | Promise<string>);
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch;
  /** Timeout of an attempt in milliseconds. Default: 90,000, because the service answers within 60,000. */
  timeout?: number;
  /** How long a request is retried, in milliseconds from its beginning. Default: 60,000; 0: never. */
  retryFor?: number;
}

export interface ProcessOptions extends api.CallOptions {
  /** Milliseconds to wait for the end of the order, up to 60,000. Default: the setting of the service. */
  wait?: number;
}

export interface WaitOptions extends api.CallOptions {
  /** Called with the order at the beginning, and whenever it has changed. */
  onChange?: (order: api.Order) => void;
}

/** A successful answer. Its data is undefined if it has no body, as with 304. */
export interface Reply<T> {
  data: T | undefined;
  status: number;
  headers: Headers;
}

/** The header that says how long the answer may take, in whole seconds. */
function prefer(wait: number | undefined): string | undefined {
  return wait === undefined ? undefined : `wait=${Math.ceil(wait / 1000)}`;
}

const final: readonly api.Status[] = ["completed", "failed", "canceled"];

/**
 * A client of the order service. It retries requests if there is no answer or the service is busy, each with one
 * idempotency key, so that nothing is done twice. It throws a PawlError if the service rejects a request.
 */
export class Pawl extends Resources {
  readonly #base: URL;
  readonly #options: PawlOptions;
  readonly #how: Retrying;

  constructor(url: string | URL, options: PawlOptions = {}) {
    super();
    this.#base = new URL(url, globalThis.location?.href); // in a page, it may be a path of the same origin
    this.#options = options;
    const { fetch: sending = fetch, timeout = 90_000, retryFor = 60_000 } = options;
    this.#how = { fetch: (...request) => sending(...request), timeout, retryFor };
  }

  /**
   * Sends an order, and returns it when it is final or the time to wait is over. A failed order is not an error. The order
   * ID is the idempotency key; if there is none, a new one is made.
   */
  process(order: api.NewOrder, { wait, signal }: ProcessOptions = {}): Promise<api.Order> {
    const body = { ...order, orderId: order.orderId ?? newId() };
    return this.call<"processOrder">("post", "/api/orders/process", { body, header: { Prefer: prefer(wait) }, signal });
  }

  /**
   * Sends many orders as they come, up to a thousand at a time, and yields the result of each, in the order in which they end. A
   * rejected order does not affect the others. An order without an `orderId` gets a new one. Orders that were not answered,
   * because a connection was lost or the service was busy, are sent again until nothing has been answered for `retryFor`.
   *
   * If the loop ends early, the service continues with the orders that it has received. With order ids, it is safe to send all of
   * them again. An order without one would get another, and be charged again.
   */
  async *processAll(orders: AsyncIterable<api.NewOrder> | Iterable<api.NewOrder>, { wait, signal }: ProcessOptions = {}): AsyncGenerator<Processed, void> {
    const header = { "Content-Type": "application/x-ndjson", Prefer: prefer(wait) };
    const stop = new AbortController();
    const all = signal ? AbortSignal.any([signal, stop.signal]) : stop.signal;
    const texts = async function* () {
      for await (const order of orders) yield JSON.stringify({ ...order, orderId: order.orderId ?? newId() });
    };
    const sendAll = async (lines: Line[], give: Give) => {
      const request = await this.#prepare("post", "/api/orders/process", { header, signal: all });
      request.headers.delete("Idempotency-Key"); // the order IDs are the keys
      await sendLines(request, lines, this.#how, give);
    };
    try {
      yield* processLines(texts(), sendAll, all);
    } finally {
      stop.abort();
    }
  }

  /** Sends an order, and returns it when it is final: completed, failed or canceled. An approval may take days. */
  async processAndWait(order: api.NewOrder, options: ProcessOptions & WaitOptions = {}): Promise<api.Order> {
    return this.waitFor(await this.process(order, options), options);
  }

  /** Waits until an order is final, also through outages. */
  async waitFor(order: api.Order, { signal, onChange }: WaitOptions = {}): Promise<api.Order> {
    onChange?.(order);
    while (!final.includes(order.status)) {
      const began = Date.now();
      const input = { path: { orderId: order.orderId }, query: { wait: "30s" }, header: { "If-None-Match": `"${order.seq}"` }, signal };
      const { data } = await this.#send<api.Order>("get", "/api/orders/{orderId}", input, { retryFor: Infinity });
      if (!data && Date.now() - began < 1000) await pause(1000, signal); // the service may not wait
      if (!data) continue;
      order = data;
      onChange?.(order);
    }
    return order;
  }

  /** Iterates over the history of an order, oldest first. */
  async *transitions(orderId: string, { signal }: api.CallOptions = {}): AsyncGenerator<api.Transition, void> {
    for (let after = 0, more = true; more; ) {
      const { transitions } = await this.call<"listTransitions">("get", "/api/orders/{orderId}/transitions", { path: { orderId }, query: { after }, signal });
      yield* transitions;
      after = transitions.at(-1)?.seq ?? after;
      more = transitions.length > 0;
    }
  }

  /**
   * Iterates over events, and waits for new ones, until its signal or the end of the loop. Without `after` it begins now, and
   * with `oldest` at the oldest event. After an outage it continues after the last event. Store the `cursor` of the last
   * event that was processed, to continue after it another time. If it is too old, the error is cursor_expired.
   */
  events(filter: api.EventFilter = {}, { signal }: api.CallOptions = {}): AsyncGenerator<api.PawlEvent, void> {
    const open = async (cursor: string | undefined, stop: AbortSignal | undefined) => {
      const header = { Accept: "text/event-stream", "Last-Event-ID": cursor };
      const request = await this.#prepare("get", "/api/events", { query: filter, header, signal: stop });
      return send(request, { ...this.#how, timeout: Infinity, retryFor: Infinity }, async (response) => response);
    };
    return follow(open, signal);
  }

  /** Sends a request of any operation, and returns the status and headers, too, such as the ETag. */
  request<M extends api.Method, P extends api.PathWith<M>>(method: M, path: P, ...[input]: api.InputArgument<M, P>): Promise<Reply<api.AnswerOf<api.Operation<M, P>>>> {
    return this.#send(method, path, input as api.RawInput);
  }

  protected async call<O extends api.OperationId>(method: string, path: string, input: api.RawInput): Promise<api.Answer<O>> {
    return (await this.#send<api.Answer<O>>(method, path, input)).data as api.Answer<O>;
  }

  protected pages<O extends api.OperationId>(method: string, path: string, input: api.RawInput): api.Pages<api.Answer<O>> {
    const first = this.call<O>(method, path, input);
    const rows = async function* (this: Pawl) {
      for (let page: unknown = await first; ; ) {
        const { nextCursor, totals: _, ...fields } = page as { nextCursor?: string; totals?: unknown }; // see Pages
        yield* Object.values(fields).find(Array.isArray) ?? [];
        if (nextCursor === undefined) return;
        page = await this.call<O>(method, path, { ...input, query: { ...input.query, cursor: nextCursor } });
      }
    };
    return Object.assign(first, { [Symbol.asyncIterator]: rows.bind(this) });
  }

  async #send<T>(method: string, path: string, input: api.RawInput | undefined, how: Partial<Retrying> = {}): Promise<Reply<T>> {
    return send(await this.#prepare(method, path, input), { ...this.#how, ...how }, async (response) => {
      const text = await response.text();
      return { data: text === "" || !response.ok ? undefined : JSON.parse(text), status: response.status, headers: response.headers };
    });
  }

  async #prepare(method: string, template: string, input: api.RawInput = {}): Promise<Request> {
    const { path = {}, query = {}, header = {}, signal } = input;
    const body = input.body as Record<string, unknown> | undefined;
    // JSON would omit it, and a refund without an amount refunds everything.
    if (body && "amount" in body && body["amount"] === undefined) throw new TypeError("amount is undefined: leave it out, or give it a value");
    const url = new URL(this.#base);
    url.pathname = url.pathname.replace(/\/$/, "") + template.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(path[name] ?? ""));
    for (const [name, value] of Object.entries(query)) if (value !== undefined) url.searchParams.set(name, String(value));
    const headers = new Headers(Object.entries(header).filter((pair): pair is [string, string] => pair[1] !== undefined));
    const token = typeof this.#options.token === "function" ? await this.#options.token() : this.#options.token;
    if (token) headers.set("Authorization", `Bearer ${token}`);
    if (body !== undefined) headers.set("Content-Type", "application/json");
    if (template === "/api/orders/process" && body?.["orderId"]) headers.set("Pawl-Order", encodeURIComponent(`${body["orderId"]}`)); // for a proxy in front of cells
    const named = headers.has("Idempotency-Key") || body?.["orderId"] || body?.["requestId"];
    if (method !== "get" && !named) headers.set("Idempotency-Key", newId());
    return { method: method.toUpperCase(), url, headers, body: body && JSON.stringify(body), signal };
  }
}
