// Prints src/resources.ts: a method for each operation of the API, grouped by what it is about. The argument is the
// description of the API.
import { readFileSync } from "node:fs";
import { load } from "js-yaml";

const methods = { get: "get", put: "update", patch: "update", delete: "delete" };
/** Operations whose path says too little, or the same as that of another. Null: Pawl has a method for it. */
const named = {
  "post /api/orders/process": null,
  "get /api/events": null,
  "get /api/orders/{orderId}/transitions": null,
  "get /api/orders/{orderId}/deliveries": "orders.deliveries",
  "post /api/bulk/{verb}": "bulk.apply",
  "post /api/verification": "verification.start",
};
const forProviders = ["/api/callbacks/", "/api/webhooks/"];

const camel = (words) => words.replace(/-(\w)/g, (_, letter) => letter.toUpperCase());

/** The name of an operation: the last collection in its path (a plural), and what is done to it. */
function nameOf(path, method) {
  const key = `${method} ${path}`;
  if (key in named) return named[key];
  const words = path.split("/").filter((part) => part && part !== "api" && !part.startsWith("{"));
  const last = camel(words.at(-1));
  if (path.endsWith("}")) return `${last}.${methods[method]}`;
  if (method === "get") return `${last}.${last.endsWith("s") || last === "inventory" ? "list" : "get"}`;
  if (method === "post" && last.endsWith("s")) return `${last}.create`;
  return `${camel(words.at(-2))}.${last}`;
}

/** The line of an operation. */
function line(path, method, operation) {
  const given = operation.parameters ?? [];
  const ids = given.filter((parameter) => parameter.in === "path").map((parameter) => parameter.name);
  const queries = given.filter((parameter) => parameter.in === "query");
  const of = `"${operation.operationId}"`;
  const args = ids.map((id) => `${id}: Id<${of}, "${id}">`);
  const input = ids.length > 0 ? [`path: { ${ids.join(", ")} }`] : [];
  const take = (name, type, required) => {
    args.push(`${name}${required ? "" : "?"}: ${type}<${of}>`);
    input.push(name);
  };
  if (operation.requestBody) take("body", "Body", operation.requestBody.required);
  else if (queries.length > 0) take("query", "Query", queries.some((parameter) => parameter.required));
  args.push(`options?: Options<${of}>`);
  input.push("...options");
  const pages = method === "get" && queries.some((parameter) => parameter.name === "cursor");
  return `(${args.join(", ")}) => this.${pages ? "pages" : "call"}<${of}>("${method}", "${path}", { ${input.join(", ")} }),`;
}

const { paths } = load(readFileSync(process.argv[2], "utf8"));
const groups = new Map();
for (const [path, operations] of Object.entries(paths)) {
  for (const [method, operation] of Object.entries(operations)) {
    if (!operation.operationId || forProviders.some((start) => path.startsWith(start))) continue;
    const name = nameOf(path, method);
    if (!name) continue;
    const [group, call] = name.split(".");
    const lines = groups.get(group) ?? groups.set(group, new Map()).get(group);
    if (lines.has(call)) throw new Error(`two operations are ${name}: give ${method} ${path} a name in resources.js`);
    lines.set(call, `    /** ${operation.summary}. */\n    ${call}: ${line(path, method, operation)}\n`);
  }
}
const fields = [...groups].map(([group, lines]) => `  readonly ${group} = {\n${[...lines.values()].join("")}  };\n`);
console.log(`// Made by resources.js from the description of the API. Do not make direct changes to this file.
import type { Answer, Body, Id, OperationId, Options, Pages, Query, RawInput } from "./types.js";

/** The operations of the API, by what they are about. */
export abstract class Resources {
  protected abstract call<O extends OperationId>(method: string, path: string, input: RawInput): Promise<Answer<O>>;
  protected abstract pages<O extends OperationId>(method: string, path: string, input: RawInput): Pages<Answer<O>>;

${fields.join("\n")}}`);
