// Makes the calls of one case of ../../cases.json, which comes on standard input, and prints what they returned, as
// ../../README.md says. The argument is the address of the service.
import { text } from "node:stream/consumers";
import { type EventFilter, type NewOrder, type Order, Pawl, PawlConnectionError, PawlError, type Query, SignatureError, verifyWebhook } from "pawl-client";

interface Call {
  call: string;
  order: NewOrder;
  orders: NewOrder[];
  orderId: string;
  term: string;
  requestId: string;
  item: string;
  filter: Query<"listOrders"> & EventFilter;
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
      return pawl.orders.get(orderId);
    case "refund":
      return pawl.refunds.create(orderId, body);
    case "capture":
      return pawl.captures.create(orderId, body);
    case "void":
      return pawl.orders.void(orderId, body);
    case "cancel":
      return pawl.orders.cancel(orderId, body);
    case "retry":
      return pawl.orders.retry(orderId, body);
    case "setInventory":
      return pawl.inventory.update(item, body, { header: { "If-None-Match": "*" } });
    case "adjustInventory":
      return pawl.adjustments.create(item, body);
    case "dispute":
      return pawl.disputes.create(orderId, body);
    case "erase":
      return pawl.erasures.create(body);
    case "bulkRefund":
      return pawl.bulk.apply("refund", body);
    case "request":
      return pawl.requests.get(call.requestId);
    case "search":
      return pawl.orders.list({ term: call.term });
    case "orders":
      return all(pawl.orders.list(call.filter));
    case "events":
      return all(pawl.events(call.filter), call.count);
    case "transitions":
      return all(pawl.transitions(orderId));
    case "verifyWebhook":
      return verify(call);
  }
  throw new Error(`no such call: ${call.call}`);
}

/** What a call that failed is said to have returned. */
function failed(error: unknown): unknown {
  if (error instanceof PawlError) return { problem: error.problem ?? { status: error.status }, message: error.message };
  return error instanceof PawlConnectionError ? { lost: error.message } : { lost: undefined, error: String(error) };
}

const returned: unknown[] = [];
for (const call of calls) returned.push(await make(call).catch(failed));
console.log(JSON.stringify(returned));
