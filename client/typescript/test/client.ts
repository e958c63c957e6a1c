// What the client does by itself, without a service. The cases of ../../cases.json are run on one (cases.ts).
import assert from "node:assert/strict";
import test, { mock } from "node:test";
import { newId, Pawl, PawlCells, PawlConnectionError, PawlError, SignatureError, verifyWebhook } from "pawl-client";

/** A client whose requests are answered by these functions in turn, and what it has sent. */
function scripted(...answers: (() => Response)[]): { pawl: Pawl; sent: Request[] } {
  const sent: Request[] = [];
  const pawl = new Pawl("http://pawl.test/under", {
    token: () => "secret",
    fetch: async (url, init) => {
      sent.push(new Request(url as URL, init));
      const answer = answers.shift();
      assert(answer, "one request too many");
      return answer();
    },
  });
  return { pawl, sent };
}

const problem = (status: number, code: string, headers = {}) =>
  Response.json({ type: `/problems/${code}`, title: "A title.", status, code }, { status, headers: { "Content-Type": "application/problem+json", "X-Request-Id": "r1", ...headers } });

test("requests are written as the document says", async () => {
  const { pawl, sent } = scripted(() => Response.json({ orders: [] }), () => Response.json({}), () => Response.json({}));
  await pawl.orders.list({ status: ["completed", "failed"], customerId: undefined });
  await pawl.orders.get("a/b ?");
  await pawl.orders.cancel("a", { requestId: "mine" });
  assert.deepEqual(sent.map((request) => `${request.method} ${request.url}`), [
    "GET http://pawl.test/under/api/orders?status=completed%2Cfailed",
    "GET http://pawl.test/under/api/orders/a%2Fb%20%3F",
    "POST http://pawl.test/under/api/orders/a/cancel",
  ]);
  assert(sent.every((request) => request.headers.get("Authorization") === "Bearer secret"));
  assert(sent.every((request) => !request.headers.has("Idempotency-Key")), "a request that has a name got a second one");
});

test("each order goes to its cell", async () => {
  const sent: string[] = [];
  const fetch = async (url: unknown) => { sent.push(new URL(`${url}`).host); return Response.json({}); };
  const cells = new PawlCells(["http://a", "http://b", new Pawl("http://c", { fetch }), "http://d"], { fetch });
  for (const orderId of ["order-123", "a", "Zürich 1", "m", "h"]) await (await cells.for(orderId)).orders.get(orderId);
  assert.deepEqual(sent, ["a", "d", "a", "b", "c"]);
  assert.throws(() => new PawlCells(["http://a", "http://b", "http://c"]), RangeError);
});

test("a request keeps its key", async () => {
  const lost = () => { throw new TypeError("fetch failed"); };
  const cut = () => new Response('{"orderI', { headers: { "Content-Type": "application/json" } });
  const { pawl, sent } = scripted(lost, () => problem(503, "unavailable", { "Retry-After": "0" }), cut, () => Response.json({ seq: 3 }));
  const done = await pawl.orders.cancel("a", { reason: "why" });
  assert.equal(done.seq, 3);
  const keys = new Set(sent.map((request) => request.headers.get("Idempotency-Key")));
  assert(sent.length === 4 && keys.size === 1 && !keys.has(null));
  assert.deepEqual(await Promise.all(sent.map((request) => request.text())), Array(4).fill('{"reason":"why"}'));
});

test("a refusal is not repeated", async () => {
  const { pawl } = scripted(() => problem(409, "busy"), () => new Response("<h1>Moved</h1>", { status: 500 }));
  const busy = await pawl.orders.cancel("a").catch((error: unknown) => error);
  assert(busy instanceof PawlError && busy.code === "busy" && busy.status === 409 && busy.requestId === "r1");
  assert.equal(busy.message, "busy: A title.");
  const page = await pawl.health.get().catch((error: unknown) => error);
  assert(page instanceof PawlError && page.code === "http_500" && page.problem === undefined);
});

test("a pause that is too long is not waited for", async () => {
  const { pawl } = scripted(() => problem(429, "too_many_requests", { "Retry-After": new Date(Date.now() + 90_000).toUTCString() }));
  const error = await pawl.health.get().catch((error: unknown) => error);
  assert(error instanceof PawlError && error.code === "too_many_requests" && error.retryAfter > 80_000);
});

test("a request without an answer says how often it was tried", async () => {
  const fetch = async () => { throw new TypeError("fetch failed", { cause: new Error("connect ECONNREFUSED") }); };
  const error = await new Pawl("http://pawl.test", { fetch, retryFor: 400 }).health.get().catch((error: unknown) => error);
  assert(error instanceof PawlConnectionError && error.attempts > 1 && error.cause instanceof TypeError);
  assert.match(error.message, new RegExp(`^no answer \\(tried ${error.attempts} times in \\d+ ms\\): connect ECONNREFUSED$`));
});

test("a list is a page, and the rows of all pages", async () => {
  const pages = [{ totals: [], orders: [{ orderId: "a" }, { orderId: "b" }], nextCursor: "c1" }, { orders: [] , nextCursor: "c2" }, { orders: [{ orderId: "c" }] }];
  const { pawl, sent } = scripted(...pages.map((page) => () => Response.json(page)), () => Response.json(pages[0]), () => problem(503, "overloaded", { "Retry-After": "99" }));
  const ids: string[] = [];
  for await (const order of pawl.orders.list({ limit: 2 })) ids.push(order.orderId);
  assert.deepEqual(ids, ["a", "b", "c"]);
  assert.deepEqual(sent.map((request) => new URL(request.url).search), ["?limit=2", "?limit=2&cursor=c1", "?limit=2&cursor=c2"]);
  assert.equal((await pawl.orders.list()).orders.length, 2);
  await assert.rejects(async () => { for await (const _ of pawl.orders.list()) assert.fail(); }, PawlError);
});

test("ids are UUIDs of version 7", () => {
  const before = Date.now();
  const ids = Array.from({ length: 100 }, newId);
  for (const id of ids) {
    assert.match(id, /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/);
    const at = parseInt(id.replace("-", "").slice(0, 12), 16);
    assert(before <= at && at <= Date.now());
  }
  assert.equal(new Set(ids).size, ids.length);
});

/** A stream of these texts, which then goes silent, or ends. */
function stream(pieces: string[], silent: boolean, signal?: AbortSignal): Response {
  const body = new ReadableStream({
    start(controller) {
      for (const piece of pieces) controller.enqueue(new TextEncoder().encode(piece));
      if (!silent) return controller.close();
      if (signal?.aborted) return controller.error(signal.reason);
      signal?.addEventListener("abort", () => controller.error(signal.reason));
    },
  });
  return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
}

test("events come once, in their order, over connections that end, break and go silent", async () => {
  const event = (n: number) => `id: 1.${n}\ndata: {"cursor":"1.${n}"}\n\n`;
  const asked: (string | null)[] = [];
  const answers: ((signal: AbortSignal) => Response)[] = [
    () => stream(["retry: 1\nid: 1.0\n\n", event(1).slice(0, 9), event(1).slice(9) + event(2) + event(3).slice(0, 20)], false),
    () => { throw new TypeError("fetch failed"); },
    () => problem(503, "overloaded", { "Retry-After": "1" }),
    (signal) => stream([event(3), ":\nid: 1.7\n\n"], true, signal),
    (signal) => stream([event(8)], true, signal),
  ];
  const pawl = new Pawl("http://pawl.test", {
    fetch: async (url, init) => {
      asked.push(`${new URL(url as URL).search} ${new Headers(init?.headers).get("Last-Event-ID")}`);
      return answers.shift()!(init?.signal as AbortSignal);
    },
  });
  mock.timers.enable({ apis: ["setTimeout"] }); // the pauses, and the silence after which a connection is lost
  const clock = setInterval(() => mock.timers.tick(1000));
  const seen: string[] = [];
  for await (const event of pawl.events({ after: "oldest", type: ["order.*", "stock.set"] })) if (seen.push(event.cursor) === 4) break;
  clearInterval(clock);
  mock.timers.reset();
  assert.deepEqual(seen, ["1.1", "1.2", "1.3", "1.8"]);
  const query = "?after=oldest&type=order.*%2Cstock.set";
  assert.deepEqual(asked, [`${query} null`, `${query} 1.2`, `${query} 1.2`, `${query} 1.2`, `${query} 1.7`]);
});

test("a cursor that is too old is an error, and the signal ends the events", async () => {
  const { pawl } = scripted(() => problem(410, "cursor_expired"));
  const first = await pawl.events({ after: "1.1" }).next().catch((error: unknown) => error);
  assert(first instanceof PawlError && first.code === "cursor_expired");
  const stop = new AbortController();
  const silent = new Pawl("http://pawl.test", { fetch: async (_, init) => stream([], true, init?.signal as AbortSignal) });
  const next = silent.events({}, { signal: stop.signal }).next();
  stop.abort(new Error("enough"));
  await assert.rejects(next, /enough/);
});

test("it needs nothing that only Node has", async () => {
  const answers = [problem(503, "unavailable"), Response.json({ orderId: "a", status: "completed" }), stream(['data: {"id":"1"}\n\n'], false)];
  const names = ["process", "global", "setImmediate", "Buffer"];
  const kept = names.map((name) => [name, Object.getOwnPropertyDescriptor(globalThis, name)!] as const);
  for (const name of names.slice(0, 3)) Reflect.deleteProperty(globalThis, name);
  try {
    const pawl = new Pawl("http://pawl.test", { fetch: async () => answers.shift()! });
    assert.equal((await pawl.processAndWait({ amount: "1", item: "gold" })).status, "completed");
    assert.equal((await pawl.events().next()).value?.id, "1");
    Reflect.deleteProperty(globalThis, "Buffer"); // the fetch of Node needs it
    assert.throws(() => verifyWebhook("whsec_b25lIHNlY3JldCBvZiAyNCBieXRlcyE=", new Headers(), new Uint8Array()), SignatureError);
    assert.throws(() => verifyWebhook("whsec_", new Headers(), ""), /at least 16 bytes/);
    assert.throws(() => verifyWebhook("whsec_AAAAAAAAAAAAAAAAAAAAAA==", new Headers(), ""), SignatureError);
    assert.match(newId(), /^.{36}$/);
  } finally {
    for (const [name, descriptor] of kept) Object.defineProperty(globalThis, name, descriptor);
  }
});
