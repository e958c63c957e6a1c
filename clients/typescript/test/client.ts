// What the client does by itself, without a service. The cases of ../../cases.yaml are run on one (cases.ts).
import assert from "node:assert/strict";
import test from "node:test";
import { newId, Pawl, PawlError } from "pawl-client";

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
  await pawl.get("/api/orders", { query: { status: ["completed", "failed"], customerId: undefined } });
  await pawl.get("/api/orders/{orderId}", { path: { orderId: "a/b ?" } });
  await pawl.post("/api/orders/{orderId}/cancel", { path: { orderId: "a" }, body: { requestId: "mine" } });
  assert.deepEqual(sent.map((request) => `${request.method} ${request.url}`), [
    "GET http://pawl.test/under/api/orders?status=completed%2Cfailed",
    "GET http://pawl.test/under/api/orders/a%2Fb%20%3F",
    "POST http://pawl.test/under/api/orders/a/cancel",
  ]);
  assert(sent.every((request) => request.headers.get("Authorization") === "Bearer secret"));
  assert(sent.every((request) => !request.headers.has("Idempotency-Key")), "a request that has a name got a second one");
});

test("a request keeps its key", async () => {
  const lost = () => { throw new TypeError("fetch failed"); };
  const cut = () => new Response('{"orderI', { headers: { "Content-Type": "application/json" } });
  const { pawl, sent } = scripted(lost, () => problem(503, "unavailable", { "Retry-After": "0" }), cut, () => Response.json({ seq: 3 }));
  const done = await pawl.post("/api/orders/{orderId}/cancel", { path: { orderId: "a" }, body: { reason: "why" } });
  assert.equal(done.seq, 3);
  const keys = new Set(sent.map((request) => request.headers.get("Idempotency-Key")));
  assert(sent.length === 4 && keys.size === 1 && !keys.has(null));
  assert.deepEqual(await Promise.all(sent.map((request) => request.text())), Array(4).fill('{"reason":"why"}'));
});

test("a refusal is not repeated", async () => {
  const { pawl } = scripted(() => problem(409, "busy"), () => new Response("<h1>Moved</h1>", { status: 500 }));
  const busy = await pawl.post("/api/orders/{orderId}/cancel", { path: { orderId: "a" } }).catch((error: unknown) => error);
  assert(busy instanceof PawlError && busy.code === "busy" && busy.status === 409 && busy.requestId === "r1");
  assert.equal(busy.message, "busy: A title.");
  const page = await pawl.get("/health").catch((error: unknown) => error);
  assert(page instanceof PawlError && page.code === "http_500" && page.problem === undefined);
});

test("a pause that is too long is not waited for", async () => {
  const { pawl } = scripted(() => problem(429, "too_many_requests", { "Retry-After": new Date(Date.now() + 90_000).toUTCString() }));
  const error = await pawl.get("/health").catch((error: unknown) => error);
  assert(error instanceof PawlError && error.code === "too_many_requests" && error.retryAfter > 80_000);
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
