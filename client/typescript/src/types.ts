import type { components, paths } from "./openapi.js";

type Schemas = components["schemas"];

export type Order = Schemas["Order"];
export type Item = Schemas["Item"];
export type Status = Schemas["Status"];
export type Transition = Schemas["Transition"];
export type Problem = Schemas["Problem"];
export type ProblemCode = Schemas["ProblemCode"];

/** What happened to an order or to stock. It may come twice; then it has the same id. */
export type PawlEvent = Schemas["Event"];

export type Method = "get" | "post" | "put" | "patch" | "delete";

/** The paths of the API that have a method. */
export type PathWith<M extends Method> = { [P in keyof paths]: paths[P][M] extends object ? P : never }[keyof paths];

/** What the document says of a method of a path. */
export type Operation<M extends Method, P extends PathWith<M>> = paths[P][M];

/** A body without fields that the document does not name, and with money as text: a number may be rounded before it is sent. */
export type Sent<T> = {
  [K in keyof T as string extends K ? never : K]: K extends "amount" ? Extract<T[K], string | undefined> : T[K];
};

type JSONContent<T> = T extends { content: { "application/json": infer Body } } ? Body : never;

type BodyOf<O> = O extends { requestBody: infer Body }
  ? { body: Sent<JSONContent<Body>> }
  : O extends { requestBody?: infer Body }
    ? [NonNullable<Body>] extends [never] ? unknown : { body?: Sent<JSONContent<NonNullable<Body>>> }
    : unknown;

/** How a request is made. */
export interface CallOptions {
  /** Ends the request, its retries and its waiting. */
  signal?: AbortSignal;
}

/** What a request of an operation consists of: `path`, `query`, `header` and `body`, as the document names them. */
export type Input<O> = (O extends { parameters: infer P } ? Omit<P, "cookie"> : unknown) & BodyOf<O> & CallOptions;

/** The argument for an input, which may be left out where nothing of it is required. */
export type InputArgument<O> = {} extends Input<O> ? [input?: Input<O>] : [input: Input<O>];

type Content<O> = O extends { responses: infer R } ? JSONContent<R[keyof R & (200 | 201 | 202)]> : never;

/** The body of a good answer; undefined where there is none. */
export type Answer<O> = [Content<O>] extends [never] ? undefined : Content<O>;

/** What an order is made of. */
export type NewOrder = Omit<Sent<Schemas["ProcessBody"]>, "orderId"> & { orderId?: string };

/** Which orders a list has. */
export type OrderFilter = Omit<NonNullable<paths["/api/orders"]["get"]["parameters"]["query"]>, "cursor">;

/** Which events, and after which cursor. */
export type EventFilter = Omit<NonNullable<paths["/api/events"]["get"]["parameters"]["query"]>, "limit" | "wait">;
