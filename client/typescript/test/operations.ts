// What the client and its types say of the operations, on a running service. It throws where the service is not as its
// description says.
import assert from "node:assert/strict";
import { type Order, Pawl, PawlError } from "pawl-client";

const pawl = new Pawl(process.argv[2] ?? "");

function order(orderId: string, item: string, more: { amount?: string; startAt?: string } = {}): Promise<Order> {
  return pawl.process({ orderId, item, amount: "1.50", ...more }, { wait: 20_000 });
}

/** The refusal that a call must meet. */
async function refused(call: Promise<unknown>, code: PawlError["code"]): Promise<PawlError> {
  const error = await call.then(() => undefined, (error: unknown) => error);
  assert(error instanceof PawlError && error.code === code && error.requestId, `${code}: ${error}`);
  return error;
}

async function all<T>(rows: AsyncIterable<T>): Promise<T[]> {
  const out: T[] = [];
  for await (const row of rows) out.push(row);
  return out;
}

// What is read back is what was sent, to the last digit. A number is refused by the compiler.
for (const [i, amount] of ["16777217.25", "999999999999999.99", "99.90"].entries()) {
  const orderId = `ts-money-${i}`;
  const done = await order(orderId, "gold", { amount });
  const read = await pawl.orders.get(orderId);
  const page = await pawl.orders.list({ limit: 1 });
  for (const seen of [done, read, page.orders[0]]) assert(seen?.amount === amount && seen.status === "completed");
}
// @ts-expect-error
const number = await pawl.process({ orderId: "ts-number", item: "gold", amount: 16777217.25 });
assert.equal(number.amount, "16777217.25");
// @ts-expect-error
const misspelled = await pawl.process({ orderId: "ts-misspelled", item: "gold", amount: "1", colour: 2 });
assert.deepEqual(misspelled.ignoredFields, ["colour"]);
const other = await refused(pawl.process({ orderId: "ts-number", item: "gold", amount: "1" }), "order_conflict");
assert.equal(other.problem?.errors?.[0]?.stored, "16777217.25");

// What there is is sold, and the order that got none is started again.
const item = "ts-boat";
const set = await pawl.request("put", "/api/inventory/{item}", { path: { item }, header: { "If-None-Match": "*" }, body: { onHand: 0, reason: "count" } });
assert.equal(set.data?.tracked, true);
await refused(pawl.inventory.update(item, { onHand: 5 }), "precondition_required");
const failed = await order("ts-none", "ts-boat");
assert(failed.status === "failed" && failed.failure?.code === "out_of_stock" && failed.steps.charge.undone);
const tag = set.headers.get("ETag") ?? "";
assert.equal((await pawl.inventory.update(item, { onHand: 1 }, { header: { "If-Match": tag } })).available, 1);
const retried = await pawl.orders.retry("ts-none", { onBehalfOf: "ann" }, { header: { "Idempotency-Key": "ts-retry" } });
assert.equal(retried.status, "completed");
for (let i = 0; i < 2; i++) {
  const found = await pawl.adjustments.create(item, { change: 2, reason: "found", requestId: "ts-found" });
  assert.equal(found.onHand, 2);
}
const boat = (await all(pawl.inventory.list())).find((item) => item.item === "ts-boat");
assert.equal(boat?.available, 2);
const moved = await pawl.movements.list(item, { limit: 9 });
assert(moved.movements.length === 3 && moved.movements[2]?.change === 2);
const history = await all(pawl.transitions("ts-none"));
assert.deepEqual(history.map((row) => row.seq), history.map((_, i) => i + 1));
assert(history.length > 5);
assert.equal((await pawl.calls.list("ts-none")).calls.length, 0);

// A part of an order is given back, and then the rest.
await order("ts-broken", "gold");
for (let i = 0; i < 2; i++) {
  const once = await pawl.refunds.create("ts-broken", { amount: "0.40", reason: "scratched", requestId: "ts-first" });
  assert(once.refunded === "0.40" && once.refunds?.length === 1);
}
const rest = await pawl.refunds.create("ts-broken", { reason: "broken" }, { header: { "Idempotency-Key": "ts-second" } });
assert(rest.refunded === "1.50" && rest.status === "completed" && rest.refunds?.[1]?.amount === "1.10" && rest.refunds[1].state === "done");
const moves = await all(pawl.moneyMovements.list({ to: new Date(Date.now() + 86400000).toISOString() }));
assert.deepEqual(moves.filter((move) => move.orderId === "ts-broken").map((move) => `${move.kind} ${move.amount}`), ["refund -1.10", "refund -0.40", "charge 1.50"]);
await refused(pawl.refunds.create("ts-broken", { amount: "1", reason: "more" }), "refund_too_large");
await assert.rejects(pawl.refunds.create("ts-broken", { amount: undefined, reason: "more" }), TypeError);

// The other verbs, of an order that waits, with every parameter that they have.
const waits = await order("ts-waits", "car", { startAt: new Date(Date.now() + 3_600_000).toISOString() });
assert.equal(waits.hold, "scheduled");
assert.equal((await pawl.orders.pause("ts-waits", {}, { query: { dryRun: true } })).hold, "paused");
await refused(pawl.orders.pause("ts-waits", {}, { header: { "If-Match": '"77"' } }), "precondition_failed");
const paused = await pawl.request("post", "/api/orders/{orderId}/pause", { path: { orderId: "ts-waits" }, header: { Prefer: "respond-async" } });
assert(paused.status === 202 && paused.data?.hold === "paused");
assert.equal((await pawl.orders.resume("ts-waits", {}, { header: { Prefer: "wait=1" } })).hold, "scheduled");
const left = AbortSignal.timeout(100);
await assert.rejects(pawl.waitFor(waits, { signal: left }), (error) => error === left.reason);
const end = pawl.waitFor(waits);
for (let i = 0; i < 2; i++) {
  const canceled = await pawl.orders.cancel("ts-waits", { reason: "too late" }, { header: { "Idempotency-Key": "ts-cancel" } });
  assert.equal(canceled.status, "canceled");
}
assert.equal((await end).status, "canceled");
const settling = pawl.orders.stepResult("ts-waits", { step: "charge", outcome: "done", onBehalfOf: "ann", reason: "seen" });
assert.equal((await refused(settling, "not_applicable")).problem?.order?.status, "canceled");
for (const [orderId, verb, status] of [["ts-large", "approve", "completed"], ["ts-larger", "reject", "canceled"]] as const) {
  assert.equal((await order(orderId, "yacht")).hold, "approval");
  assert.equal((await pawl.orders[verb](orderId, { onBehalfOf: "ann" })).status, status);
}
await order("ts-many", "yacht");
const bulk = await pawl.bulk.apply("reject", { ids: ["ts-many", "ts-nobody"], onBehalfOf: "ann" });
assert(bulk.applied === 1 && bulk.results[1]?.code === "not_found");

// What happened to an order is told once and in order, whether it was before or is yet to come.
const told: number[] = [];
for await (const event of pawl.events({ after: "oldest", order: "ts-none", type: ["order.*"] })) {
  assert(event.id && event.data.orderId === "ts-none" && event.data.seq && event.data.amount === "1.50");
  if (told.push(event.data.seq) === history.length) break;
}
assert.deepEqual(told, history.map((row) => row.seq));
const latest = await pawl.request("get", "/api/events", { query: { after: "latest" } });
const coming = (async () => {
  for await (const event of pawl.events({ after: latest.data?.nextCursor, status: ["completed"] })) if (event.data.orderId === "ts-live") return event.type;
  return undefined;
})();
await order("ts-live", "gold");
assert.equal(await coming, "order.completed");
await refused(pawl.events({ type: ["order.complete"] }).next(), "invalid_parameter");

// An endpoint of webhooks is made, changed and removed. Its removal is answered without a body.
const endpoint = await pawl.webhookEndpoints.create({ url: "http://127.0.0.1:9/pawl", types: ["stock.restock"] });
assert.match(endpoint.secret ?? "", /^whsec_/);
const changed = await pawl.webhookEndpoints.update(endpoint.id, { url: endpoint.url, types: ["stock.*"] }, { header: { "If-Match": "*" } });
assert(changed.types?.[0] === "stock.*" && changed.secret === undefined);
assert.equal(await pawl.webhookEndpoints.delete(endpoint.id), undefined);
await refused(pawl.webhookEndpoints.get(endpoint.id), "not_found");

// Every order is found, page by page.
const found = await all(pawl.orders.list({ status: ["completed", "failed"], limit: 2 }));
assert(found.length > 6 && new Set(found.map((order) => order.orderId)).size === found.length);
assert(found.every((order) => order.status === "completed" || order.status === "failed"));
assert.equal((await pawl.health.get()).status, "ok");
