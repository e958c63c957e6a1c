import type { components, paths } from "./openapi.js";

type Schemas = components["schemas"];

export type Order = Schemas["Order"];
export type Item = Schemas["Item"];
export type Status = Schemas["Status"];
export type Transition = Schemas["Transition"];
export type Problem = Schemas["Problem"];
export type ProblemCode = Schemas["ProblemCode"];

/** An event of an order or of stock. It may come twice, with the same ID. */
export type PawlEvent = Schemas["Event"];

export type Method = "get" | "post" | "put" | "patch" | "delete";

/** The paths of the API that have a method. */
export type PathWith<M extends Method> = { [P in keyof paths]: paths[P][M] extends object ? P : never }[keyof paths];

/** The operation of a path and method. */
export type Operation<M extends Method, P extends PathWith<M>> = paths[P][M];

/** A body with only documented fields, and money as strings, because numbers may be rounded. */
export type Sent<T> = {
  [K in keyof T as string extends K ? never : K]: K extends "amount" ? Extract<T[K], string | undefined> : T[K];
};

type JSONContent<T> = T extends { content: { "application/json": infer Body } } ? Body : never;

type BodyOf<O> = O extends { requestBody: infer Body }
  ? { body: Sent<JSONContent<Body>> }
  : O extends { requestBody?: infer Body }
    ? [NonNullable<Body>] extends [never] ? unknown : { body?: Sent<JSONContent<NonNullable<Body>>> }
    : unknown;

/** Options of a request. */
export interface CallOptions {
  /** Ends the request and its retries. */
  signal?: AbortSignal;
}

/** The input of an operation: `path`, `query`, `header` and `body`, as documented. */
export type Input<O> = (O extends { parameters: infer P } ? Omit<P, "cookie"> : unknown) & BodyOf<O> & CallOptions;

/** The argument for an input, which is optional if nothing in it is required. */
export type InputArgument<O> = {} extends Input<O> ? [input?: Input<O>] : [input: Input<O>];

type Content<O> = O extends { responses: infer R } ? JSONContent<R[keyof R & (200 | 201 | 202)]> : never;

/** The body of a successful answer, or undefined. */
export type Answer<O> = [Content<O>] extends [never] ? undefined : Content<O>;

/** The body of a new order. */
export type NewOrder = Omit<Sent<Schemas["ProcessBody"]>, "orderId"> & { orderId?: string };

/** The filter of a list of orders. */
export type OrderFilter = Omit<NonNullable<paths["/api/orders"]["get"]["parameters"]["query"]>, "cursor">;

/** The filter of events, and the cursor to begin after. */
export type EventFilter = Omit<NonNullable<paths["/api/events"]["get"]["parameters"]["query"]>, "limit" | "wait">;
