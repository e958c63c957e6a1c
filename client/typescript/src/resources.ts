// Made by resources.js from the description of the API. Do not make direct changes to this file.
import type { Answer, Body, Id, OperationId, Options, Pages, Query, RawInput } from "./types.js";

/** The operations of the API, by what they are about. */
export abstract class Resources {
  protected abstract call<O extends OperationId>(method: string, path: string, input: RawInput): Promise<Answer<O>>;
  protected abstract pages<O extends OperationId>(method: string, path: string, input: RawInput): Pages<Answer<O>>;

  readonly bulk = {
    /** Apply a verb to many orders. */
    apply: (verb: Id<"applyBulkVerb", "verb">, body: Body<"applyBulkVerb">, options?: Options<"applyBulkVerb">) => this.call<"applyBulkVerb">("post", "/api/bulk/{verb}", { path: { verb }, body, ...options }),
  };

  readonly erasures = {
    /** List erasures of customers. */
    list: (query?: Query<"listErasures">, options?: Options<"listErasures">) => this.call<"listErasures">("get", "/api/erasures", { query, ...options }),
    /** Erase a customer. */
    create: (body: Body<"createErasure">, options?: Options<"createErasure">) => this.call<"createErasure">("post", "/api/erasures", { body, ...options }),
  };

  readonly errorGroups = {
    /** List groups of failed and held orders. */
    list: (options?: Options<"listErrorGroups">) => this.call<"listErrorGroups">("get", "/api/error-groups", { ...options }),
  };

  readonly inventory = {
    /** List stock. */
    list: (query?: Query<"listInventory">, options?: Options<"listInventory">) => this.pages<"listInventory">("get", "/api/inventory", { query, ...options }),
    /** Get the stock of an item. */
    get: (item: Id<"getInventory", "item">, options?: Options<"getInventory">) => this.call<"getInventory">("get", "/api/inventory/{item}", { path: { item }, ...options }),
    /** Set the stock of an item. */
    update: (item: Id<"setInventory", "item">, body: Body<"setInventory">, options?: Options<"setInventory">) => this.call<"setInventory">("put", "/api/inventory/{item}", { path: { item }, body, ...options }),
  };

  readonly adjustments = {
    /** Add or remove units of an item. */
    create: (item: Id<"adjustInventory", "item">, body: Body<"adjustInventory">, options?: Options<"adjustInventory">) => this.call<"adjustInventory">("post", "/api/inventory/{item}/adjustments", { path: { item }, body, ...options }),
  };

  readonly movements = {
    /** List the stock movements of an item. */
    list: (item: Id<"listStockMovements", "item">, query?: Query<"listStockMovements">, options?: Options<"listStockMovements">) => this.call<"listStockMovements">("get", "/api/inventory/{item}/movements", { path: { item }, query, ...options }),
  };

  readonly me = {
    /** Get your identity and permissions. */
    get: (options?: Options<"getCaller">) => this.call<"getCaller">("get", "/api/me", { ...options }),
  };

  readonly moneyMovements = {
    /** List movements of money. */
    list: (query?: Query<"listMoneyMovements">, options?: Options<"listMoneyMovements">) => this.pages<"listMoneyMovements">("get", "/api/money-movements", { query, ...options }),
  };

  readonly orders = {
    /** List orders, newest first, or find them by a term. */
    list: (query?: Query<"listOrders">, options?: Options<"listOrders">) => this.pages<"listOrders">("get", "/api/orders", { query, ...options }),
    /** Get an order. */
    get: (orderId: Id<"getOrder", "orderId">, query?: Query<"getOrder">, options?: Options<"getOrder">) => this.call<"getOrder">("get", "/api/orders/{orderId}", { path: { orderId }, query, ...options }),
    /** Approve an order. */
    approve: (orderId: Id<"approveOrder", "orderId">, body?: Body<"approveOrder">, options?: Options<"approveOrder">) => this.call<"approveOrder">("post", "/api/orders/{orderId}/approve", { path: { orderId }, body, ...options }),
    /** Cancel an order. */
    cancel: (orderId: Id<"cancelOrder", "orderId">, body?: Body<"cancelOrder">, options?: Options<"cancelOrder">) => this.call<"cancelOrder">("post", "/api/orders/{orderId}/cancel", { path: { orderId }, body, ...options }),
    /** List the deliveries of an order, at all webhook endpoints. */
    deliveries: (orderId: Id<"listDeliveriesOfOrder", "orderId">, query?: Query<"listDeliveriesOfOrder">, options?: Options<"listDeliveriesOfOrder">) => this.call<"listDeliveriesOfOrder">("get", "/api/orders/{orderId}/deliveries", { path: { orderId }, query, ...options }),
    /** Pause an order. */
    pause: (orderId: Id<"pauseOrder", "orderId">, body?: Body<"pauseOrder">, options?: Options<"pauseOrder">) => this.call<"pauseOrder">("post", "/api/orders/{orderId}/pause", { path: { orderId }, body, ...options }),
    /** Reject an order. */
    reject: (orderId: Id<"rejectOrder", "orderId">, body?: Body<"rejectOrder">, options?: Options<"rejectOrder">) => this.call<"rejectOrder">("post", "/api/orders/{orderId}/reject", { path: { orderId }, body, ...options }),
    /** Resume a paused order. */
    resume: (orderId: Id<"resumeOrder", "orderId">, body?: Body<"resumeOrder">, options?: Options<"resumeOrder">) => this.call<"resumeOrder">("post", "/api/orders/{orderId}/resume", { path: { orderId }, body, ...options }),
    /** Retry a held or failed order, or open refunds. */
    retry: (orderId: Id<"retryOrder", "orderId">, body?: Body<"retryOrder">, options?: Options<"retryOrder">) => this.call<"retryOrder">("post", "/api/orders/{orderId}/retry", { path: { orderId }, body, ...options }),
    /** Report the outcome of a step. */
    stepResult: (orderId: Id<"settleStepOfOrder", "orderId">, body: Body<"settleStepOfOrder">, options?: Options<"settleStepOfOrder">) => this.call<"settleStepOfOrder">("post", "/api/orders/{orderId}/step-result", { path: { orderId }, body, ...options }),
    /** Void the rest of an authorization. */
    void: (orderId: Id<"voidOrder", "orderId">, body?: Body<"voidOrder">, options?: Options<"voidOrder">) => this.call<"voidOrder">("post", "/api/orders/{orderId}/void", { path: { orderId }, body, ...options }),
  };

  readonly calls = {
    /** List the provider calls of an order. */
    list: (orderId: Id<"listCalls", "orderId">, query?: Query<"listCalls">, options?: Options<"listCalls">) => this.call<"listCalls">("get", "/api/orders/{orderId}/calls", { path: { orderId }, query, ...options }),
  };

  readonly captures = {
    /** Capture a part of an authorization. */
    create: (orderId: Id<"captureOrder", "orderId">, body?: Body<"captureOrder">, options?: Options<"captureOrder">) => this.call<"captureOrder">("post", "/api/orders/{orderId}/captures", { path: { orderId }, body, ...options }),
  };

  readonly disputes = {
    /** Record a dispute of an order's charge. */
    create: (orderId: Id<"recordDispute", "orderId">, body: Body<"recordDispute">, options?: Options<"recordDispute">) => this.call<"recordDispute">("post", "/api/orders/{orderId}/disputes", { path: { orderId }, body, ...options }),
  };

  readonly refunds = {
    /** Refund a completed order. */
    create: (orderId: Id<"refundOrder", "orderId">, body: Body<"refundOrder">, options?: Options<"refundOrder">) => this.call<"refundOrder">("post", "/api/orders/{orderId}/refunds", { path: { orderId }, body, ...options }),
  };

  readonly overview = {
    /** Get an overview of the service. */
    get: (options?: Options<"getOverview">) => this.call<"getOverview">("get", "/api/overview", { ...options }),
  };

  readonly policies = {
    /** List policy versions. */
    list: (query?: Query<"listPolicies">, options?: Options<"listPolicies">) => this.call<"listPolicies">("get", "/api/policies", { query, ...options }),
    /** Check and store a policy. */
    create: (body: Body<"storePolicy">, options?: Options<"storePolicy">) => this.call<"storePolicy">("post", "/api/policies", { body, ...options }),
    /** Get a policy version. */
    get: (version: Id<"getPolicy", "version">, options?: Options<"getPolicy">) => this.call<"getPolicy">("get", "/api/policies/{version}", { path: { version }, ...options }),
    /** Activate a policy version. */
    activate: (version: Id<"activatePolicy", "version">, body?: Body<"activatePolicy">, options?: Options<"activatePolicy">) => this.call<"activatePolicy">("post", "/api/policies/{version}/activate", { path: { version }, body, ...options }),
  };

  readonly requests = {
    /** Get what a request did. */
    get: (requestId: Id<"getRequest", "requestId">, query?: Query<"getRequest">, options?: Options<"getRequest">) => this.pages<"getRequest">("get", "/api/requests/{requestId}", { path: { requestId }, query, ...options }),
  };

  readonly verification = {
    /** Get the verification of the books. */
    get: (query?: Query<"getVerification">, options?: Options<"getVerification">) => this.call<"getVerification">("get", "/api/verification", { query, ...options }),
    /** Start a verification of the books. */
    start: (query?: Query<"startVerification">, options?: Options<"startVerification">) => this.call<"startVerification">("post", "/api/verification", { query, ...options }),
  };

  readonly verifications = {
    /** List verifications of the books. */
    list: (query?: Query<"listVerifications">, options?: Options<"listVerifications">) => this.call<"listVerifications">("get", "/api/verifications", { query, ...options }),
    /** Get the report of a verification of the books. */
    get: (number: Id<"getVerificationReport", "number">, query?: Query<"getVerificationReport">, options?: Options<"getVerificationReport">) => this.call<"getVerificationReport">("get", "/api/verifications/{number}", { path: { number }, query, ...options }),
  };

  readonly webhookEndpoints = {
    /** List webhook endpoints. */
    list: (options?: Options<"listWebhookEndpoints">) => this.call<"listWebhookEndpoints">("get", "/api/webhook-endpoints", { ...options }),
    /** Create a webhook endpoint. */
    create: (body: Body<"createWebhookEndpoint">, options?: Options<"createWebhookEndpoint">) => this.call<"createWebhookEndpoint">("post", "/api/webhook-endpoints", { body, ...options }),
    /** Delete a webhook endpoint. */
    delete: (endpointId: Id<"deleteWebhookEndpoint", "endpointId">, options?: Options<"deleteWebhookEndpoint">) => this.call<"deleteWebhookEndpoint">("delete", "/api/webhook-endpoints/{endpointId}", { path: { endpointId }, ...options }),
    /** Get a webhook endpoint. */
    get: (endpointId: Id<"getWebhookEndpoint", "endpointId">, options?: Options<"getWebhookEndpoint">) => this.call<"getWebhookEndpoint">("get", "/api/webhook-endpoints/{endpointId}", { path: { endpointId }, ...options }),
    /** Update a webhook endpoint. */
    update: (endpointId: Id<"changeWebhookEndpoint", "endpointId">, body: Body<"changeWebhookEndpoint">, options?: Options<"changeWebhookEndpoint">) => this.call<"changeWebhookEndpoint">("put", "/api/webhook-endpoints/{endpointId}", { path: { endpointId }, body, ...options }),
    /** Disable a webhook endpoint. */
    disable: (endpointId: Id<"disableWebhookEndpoint", "endpointId">, body?: Body<"disableWebhookEndpoint">, options?: Options<"disableWebhookEndpoint">) => this.call<"disableWebhookEndpoint">("post", "/api/webhook-endpoints/{endpointId}/disable", { path: { endpointId }, body, ...options }),
    /** Enable a webhook endpoint. */
    enable: (endpointId: Id<"enableWebhookEndpoint", "endpointId">, body?: Body<"enableWebhookEndpoint">, options?: Options<"enableWebhookEndpoint">) => this.call<"enableWebhookEndpoint">("post", "/api/webhook-endpoints/{endpointId}/enable", { path: { endpointId }, body, ...options }),
    /** Resend exhausted deliveries. */
    recover: (endpointId: Id<"recoverDeliveries", "endpointId">, body: Body<"recoverDeliveries">, options?: Options<"recoverDeliveries">) => this.call<"recoverDeliveries">("post", "/api/webhook-endpoints/{endpointId}/recover", { path: { endpointId }, body, ...options }),
    /** Rotate the secret of a webhook endpoint. */
    rotateSecret: (endpointId: Id<"rotateWebhookSecret", "endpointId">, body?: Body<"rotateWebhookSecret">, options?: Options<"rotateWebhookSecret">) => this.call<"rotateWebhookSecret">("post", "/api/webhook-endpoints/{endpointId}/rotate-secret", { path: { endpointId }, body, ...options }),
    /** Send a test event to a webhook endpoint. */
    test: (endpointId: Id<"testWebhookEndpoint", "endpointId">, options?: Options<"testWebhookEndpoint">) => this.call<"testWebhookEndpoint">("post", "/api/webhook-endpoints/{endpointId}/test", { path: { endpointId }, ...options }),
  };

  readonly deliveries = {
    /** List the deliveries of a webhook endpoint, newest first. */
    list: (endpointId: Id<"listDeliveries", "endpointId">, query?: Query<"listDeliveries">, options?: Options<"listDeliveries">) => this.pages<"listDeliveries">("get", "/api/webhook-endpoints/{endpointId}/deliveries", { path: { endpointId }, query, ...options }),
    /** Get a delivery. */
    get: (endpointId: Id<"getDelivery", "endpointId">, delivery: Id<"getDelivery", "delivery">, options?: Options<"getDelivery">) => this.call<"getDelivery">("get", "/api/webhook-endpoints/{endpointId}/deliveries/{delivery}", { path: { endpointId, delivery }, ...options }),
    /** Send a delivery again. */
    resend: (endpointId: Id<"resendDelivery", "endpointId">, delivery: Id<"resendDelivery", "delivery">, body?: Body<"resendDelivery">, options?: Options<"resendDelivery">) => this.call<"resendDelivery">("post", "/api/webhook-endpoints/{endpointId}/deliveries/{delivery}/resend", { path: { endpointId, delivery }, body, ...options }),
    /** Skip a delivery. */
    skip: (endpointId: Id<"skipDelivery", "endpointId">, delivery: Id<"skipDelivery", "delivery">, body: Body<"skipDelivery">, options?: Options<"skipDelivery">) => this.call<"skipDelivery">("post", "/api/webhook-endpoints/{endpointId}/deliveries/{delivery}/skip", { path: { endpointId, delivery }, body, ...options }),
  };

  readonly health = {
    /** Readiness. */
    get: (options?: Options<"health">) => this.call<"health">("get", "/health", { ...options }),
  };

  readonly livez = {
    /** Liveness. */
    get: (options?: Options<"livez">) => this.call<"livez">("get", "/livez", { ...options }),
  };
}
