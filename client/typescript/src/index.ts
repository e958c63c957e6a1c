export { Pawl, type PawlOptions, type ProcessOptions, type Reply, type WaitOptions } from "./pawl.js";
export { PawlCells } from "./cells.js";
export type { Processed } from "./process.js";
export { PawlConnectionError } from "./http.js";
export { PawlError } from "./problem.js";
export { newId } from "./id.js";
export { SignatureError, verifyWebhook, type WebhookHeaders } from "./webhook.js";
export type * from "./types.js";
export type { components, operations, paths } from "./openapi.js";
