import type { components, operations, paths } from "./openapi.js";

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
export type InputArgument<M extends Method, P extends PathWith<M>> = {} extends Input<Operation<M, P>> ? [input?: Input<Operation<M, P>>] : [input: Input<Operation<M, P>>];

type Content<O> = O extends { responses: infer R } ? JSONContent<R[keyof R & (200 | 201 | 202)]> : never;

export type AnswerOf<O> = [Content<O>] extends [never] ? undefined : Content<O>;

export type OperationId = keyof operations;

/** The body of a successful answer, or undefined. */
export type Answer<O extends OperationId> = AnswerOf<operations[O]>;

/** A parameter in the path. */
export type Id<O extends OperationId, Name extends string> = operations[O] extends { parameters: { path: { [N in Name]: infer T } } } ? T : never;

export type Query<O extends OperationId> = NonNullable<operations[O]["parameters"]["query"]>;

export type Body<O extends OperationId> = Sent<JSONContent<NonNullable<operations[O]["requestBody"]>>>;

/** The headers of an operation, its query if it has a body, and the `signal`. */
export type Options<O extends OperationId> = Omit<Input<operations[O]>, "path" | "body" | ([NonNullable<operations[O]["requestBody"]>] extends [never] ? "query" : never)>;

/** The input of any operation. */
export interface RawInput extends CallOptions {
  path?: Record<string, string | number>;
  query?: object;
  header?: object;
  body?: object;
}

/** The rows of a page: its array. Totals, and what only some pages have, are beside it. */
type Row<Page> = Exclude<{ [K in keyof Page]: K extends "totals" ? never : Page[K] extends readonly (infer Row)[] ? Row : never }[keyof Page], undefined>;

/** A page, or, in `for await`, the rows of this and all later pages. */
export type Pages<Page> = Promise<Page> & AsyncIterable<Row<Page>>;

/** The body of a new order. */
export type NewOrder = Omit<Sent<Schemas["ProcessBody"]>, "orderId"> & { orderId?: string };

/** The filter of events, and the cursor to begin after. */
export type EventFilter = Omit<Query<"listEvents">, "limit" | "wait">;
