// Makes the calls of one case of ../../cases.json, which comes on standard input, and prints what they returned, as
// ../../README.md says. The argument is the address of the service.
import { text } from "node:stream/consumers";
import { type EventFilter, type NewOrder, type Order, type OrderFilter, Pawl, PawlError, SignatureError, verifyWebhook } from "pawl-client";

interface Call {
  call: string;
  order: NewOrder;
  orders: NewOrder[];
  orderId: string;
  term: string;
  requestId: string;
  item: string;
  filter: OrderFilter & EventFilter;
  count: number;
  forSeconds?: number;
  secrets: string[];
  headers: Record<string, string>;
  body: never; // what the call needs
}

interface Case {
  client: { token?: string; timeoutSeconds?: number; retryForSeconds?: number };
  calls: Call[];
}

const { client, calls } = JSON.parse(await text(process.stdin)) as Case;
const milliseconds = (seconds: number | undefined) => seconds && seconds * 1000;
const pawl = new Pawl(process.argv[2] ?? "", { token: client.token, timeout: milliseconds(client.timeoutSeconds), retryFor: milliseconds(client.retryForSeconds) });

async function all<T>(rows: AsyncIterable<T>, most = Infinity): Promise<T[]> {
  const out: T[] = [];
  for await (const row of rows) if (out.push(row) === most) break;
  return out;
}

async function processAndWait({ order, forSeconds }: Call): Promise<unknown> {
  let last: Order | undefined;
  const signal = forSeconds ? AbortSignal.timeout(forSeconds * 1000) : undefined;
  try {
    return await pawl.processAndWait(order, { signal, onChange: (order) => (last = order) });
  } catch (error) {
    if (signal?.aborted) return { ended: last };
    throw error;
  }
}

async function processAll(orders: NewOrder[]): Promise<unknown> {
  const out: unknown[] = [];
  for await (const { index, order, error } of pawl.processAll(orders)) out[index] = error ? { index, problem: error.problem } : { index, order };
  return out;
}

function verify({ secrets, headers, body }: Call): unknown {
  try {
    return { verified: true, event: verifyWebhook(secrets, headers, body) };
  } catch (error) {
    if (error instanceof SignatureError) return { verified: false };
    throw error;
  }
}

async function make(call: Call): Promise<unknown> {
  const { orderId, item, body } = call;
  switch (call.call) {
    case "process":
      return pawl.process(call.order);
    case "processAndWait":
      return processAndWait(call);
    case "processAll":
      return processAll(call.orders);
    case "getOrder":
      return pawl.get("/api/orders/{orderId}", { path: { orderId } });
    case "refund":
      return pawl.post("/api/orders/{orderId}/refunds", { path: { orderId }, body });
    case "capture":
      return pawl.post("/api/orders/{orderId}/captures", { path: { orderId }, body });
    case "void":
      return pawl.post("/api/orders/{orderId}/void", { path: { orderId }, body });
    case "cancel":
      return pawl.post("/api/orders/{orderId}/cancel", { path: { orderId }, body });
    case "retry":
      return pawl.post("/api/orders/{orderId}/retry", { path: { orderId }, body });
    case "setInventory":
      return pawl.put("/api/inventory/{item}", { path: { item }, header: { "If-None-Match": "*" }, body });
    case "adjustInventory":
      return pawl.post("/api/inventory/{item}/adjustments", { path: { item }, body });
    case "dispute":
      return pawl.post("/api/orders/{orderId}/disputes", { path: { orderId }, body });
    case "bulkRefund":
      return pawl.post("/api/bulk/{verb}", { path: { verb: "refund" }, body });
    case "request":
      return pawl.get("/api/requests/{requestId}", { path: { requestId: call.requestId } });
    case "search":
      return pawl.get("/api/search", { query: { term: call.term } });
    case "orders":
      return all(pawl.orders(call.filter));
    case "events":
      return all(pawl.events(call.filter), call.count);
    case "transitions":
      return all(pawl.transitions(orderId));
    case "verifyWebhook":
      return verify(call);
  }
  throw new Error(`no such call: ${call.call}`);
}

const returned: unknown[] = [];
for (const call of calls) {
  const made = make(call).catch((error: unknown) => (error instanceof PawlError ? { problem: error.problem ?? { status: error.status } } : { lost: String(error) }));
  returned.push(await made);
}
console.log(JSON.stringify(returned));
