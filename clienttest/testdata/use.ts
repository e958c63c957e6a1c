// The program uses the client that openapi-typescript and openapi-fetch make, as somebody would whose language is
// TypeScript. It throws where the service is not as its description says.
import createClient from "openapi-fetch";
import type { components, paths } from "./api.js";

declare const process: { argv: string[] };

type Order = components["schemas"]["Order"];
const api = createClient<paths>({ baseUrl: process.argv[2] });

function must(ok: boolean, ...saw: unknown[]): asserts ok {
  if (!ok) throw new Error(JSON.stringify(saw));
}

async function order(orderId: string, item: string, more: { amount?: string | number; startAt?: string } = {}): Promise<Order> {
  const { data, error } = await api.POST("/api/orders/process", {
    params: { header: { Prefer: "wait=20" } },
    body: { orderId, item, amount: "1.50", ...more },
  });
  must(data !== undefined, error);
  return data;
}

// What is read back is what was sent, to the last digit.
for (const [i, amount] of ["16777217.25", "999999999999999.99", "99.90"].entries()) {
  const orderId = `ts-money-${i}`;
  const done = await order(orderId, "gold", { amount });
  const read = await api.GET("/api/orders/{orderId}", { params: { path: { orderId } } });
  const page = await api.GET("/api/orders", { params: { query: { limit: 1 } } });
  for (const seen of [done, read.data, page.data?.orders[0]]) {
    const text: string | undefined = seen?.amount;
    must(text === amount && seen?.status === "completed", seen, amount);
  }
}
const number = await order("ts-number", "gold", { amount: 16777217.25 });
must(number.amount === "16777217.25", number);
const other = await api.POST("/api/orders/process", { body: { orderId: "ts-number", item: "gold", amount: 1 } });
must(other.error?.code === "order_conflict" && other.error.errors?.[0].stored === "16777217.25", other.error);

// What there is is sold, and the order that got none is started again.
const path = { item: "ts-boat" };
const set = await api.PUT("/api/inventory/{item}", { params: { path, header: { "If-None-Match": "*" } }, body: { onHand: 0, reason: "count" } });
must(set.data?.tracked === true, set);
const blind = await api.PUT("/api/inventory/{item}", { params: { path }, body: { onHand: 5 } });
must(blind.error?.code === "precondition_required", blind);
const failed = await order("ts-none", "ts-boat");
must(failed.status === "failed" && failed.failure?.code === "out_of_stock" && failed.steps.charge.undone === true, failed);
const tag = set.response.headers.get("ETag") ?? "";
must((await api.PUT("/api/inventory/{item}", { params: { path, header: { "If-Match": tag } }, body: { onHand: 1 } })).data?.available === 1);
const none = { path: { orderId: "ts-none" } };
const retried = await api.POST("/api/orders/{orderId}/retry", { params: { ...none, header: { "Idempotency-Key": "ts-retry" } }, body: { onBehalfOf: "ann" } });
must(retried.data?.status === "completed", retried);
for (let i = 0; i < 2; i++) {
  const found = await api.POST("/api/inventory/{item}/adjustments", { params: { path }, body: { change: 2, reason: "found", requestId: "ts-found" } });
  must(found.data?.onHand === 2, found);
}
must((await api.GET("/api/inventory/{item}", { params: { path } })).data?.available === 2);
const moved = await api.GET("/api/inventory/{item}/movements", { params: { path, query: { limit: 9 } } });
must(moved.data?.movements.length === 3 && moved.data.movements[2].change === 2, moved);
const history = await api.GET("/api/orders/{orderId}/transitions", { params: none });
must((history.data?.transitions.length ?? 0) > 5, history);
must((await api.GET("/api/orders/{orderId}/calls", { params: none })).data?.calls.length === 0);

// A part of an order is given back, and then the rest.
await order("ts-broken", "gold");
const broken = { path: { orderId: "ts-broken" } };
for (let i = 0; i < 2; i++) {
  const once = await api.POST("/api/orders/{orderId}/refunds", {
    params: broken, body: { amount: "0.40", reason: "scratched", requestId: "ts-first" },
  });
  must(once.data?.refunded === "0.40" && once.data.refunds?.length === 1, once);
}
const rest = await api.POST("/api/orders/{orderId}/refunds", {
  params: { ...broken, header: { "Idempotency-Key": "ts-second" } }, body: { reason: "broken" },
});
must(rest.data?.refunded === "1.50" && rest.data.status === "completed", rest);
must(rest.data.refunds?.[1].amount === "1.10" && rest.data.refunds[1].state === "done", rest);
const more = await api.POST("/api/orders/{orderId}/refunds", { params: broken, body: { amount: 1, reason: "more", requestId: "ts-third" } });
must(more.error?.code === "refund_too_large", more);

// The other verbs, of an order that waits, with every parameter that they have.
const waits = await order("ts-waits", "car", { startAt: new Date(Date.now() + 3_600_000).toISOString() });
must(waits.hold === "scheduled", waits);
const params = { path: { orderId: "ts-waits" } };
const dry = await api.POST("/api/orders/{orderId}/pause", { params: { ...params, query: { dryRun: true } } });
must(dry.data?.hold === "scheduled", dry);
const stale = await api.POST("/api/orders/{orderId}/pause", { params: { ...params, header: { "If-Match": '"77"' } } });
must(stale.error?.code === "precondition_failed", stale);
const paused = await api.POST("/api/orders/{orderId}/pause", { params: { ...params, header: { Prefer: "respond-async" } } });
must(paused.response.status === 202 && paused.data?.hold === "paused", paused);
const resumed = await api.POST("/api/orders/{orderId}/resume", { params: { ...params, header: { Prefer: "wait=1" } } });
must(resumed.data?.hold === "scheduled", resumed);
for (let i = 0; i < 2; i++) {
  const canceled = await api.POST("/api/orders/{orderId}/cancel", {
    params: { ...params, header: { "Idempotency-Key": "ts-cancel" } }, body: { reason: "too late" },
  });
  must(canceled.data?.status === "canceled", canceled);
}
const settled = await api.POST("/api/orders/{orderId}/step-result", {
  params, body: { step: "charge", outcome: "done", onBehalfOf: "ann", reason: "seen" },
});
must(settled.error?.order?.status === "canceled", settled);
await order("ts-large", "yacht");
const large = { path: { orderId: "ts-large" } };
const approved = await api.POST("/api/orders/{orderId}/approve", { params: large, body: { onBehalfOf: "ann" } });
must(approved.data?.status === "completed", approved);
await order("ts-larger", "yacht");
const larger = { path: { orderId: "ts-larger" } };
const rejected = await api.POST("/api/orders/{orderId}/reject", { params: larger, body: { onBehalfOf: "ann" } });
must(rejected.data?.failure?.code === "rejected", rejected);

await order("ts-many", "yacht");
const bulk = await api.POST("/api/bulk/reject", { body: { ids: ["ts-many", "ts-nobody"], onBehalfOf: "ann" } });
must(bulk.data?.applied === 1 && bulk.data.results[1].code === "not_found", bulk);
