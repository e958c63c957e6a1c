package httpapi

import (
	"context"
	"errors"
	"net/http"

	"pawl/engine"
	"pawl/internal/access"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/webhooks"
)

// kind is one sort of problem: what a program, and a person, needs to know of it.
type kind struct {
	Code       problemCode
	Status     int
	Title      string
	Advice     string // what to do about it, for the page of the code
	retryAfter string // seconds
	matches    func(error) bool
}

// kinds is the one table from errors to answers: the first that matches is the answer,
// and the last matches anything. It is also the list of codes in the OpenAPI document, and
// the pages under /problems.
var kinds = []kind{
	{Code: "malformed_json", Status: http.StatusBadRequest,
		Title:  "The body is not JSON, or can be read in more than one way.",
		Advice: "Send one JSON object in UTF-8, each name once, without lone surrogate escapes and nested at most 16 levels deep."},
	{Code: "unauthenticated", Status: http.StatusUnauthorized, matches: as[*access.NotIdentified],
		Title:  "The service does not know who asks.",
		Advice: "Send a token: Authorization: Bearer pawl_…. On a machine that reaches the database, pawl token create makes one. Nothing of the request was read."},
	{Code: "forbidden", Status: http.StatusForbidden, matches: as[*forbidden],
		Title:  "Who asks may not do this.",
		Advice: "The detail names the roles that may, any of which will do. pawl token test says what a token may do."},
	{Code: "too_many_requests", Status: http.StatusTooManyRequests, matches: as[*access.Exceeded], retryAfter: "1",
		Title:  "Who asks has used up what he may ask for.",
		Advice: "Send the same request again after the time in Retry-After. Nothing of it was read. The headers RateLimit-Policy and RateLimit say how much a token may do and what is left; failed-attempts are those of an address, with credentials that are not good."},
	{Code: "request_timeout", Status: http.StatusRequestTimeout,
		Title:  "The body did not arrive in time.",
		Advice: "Send the request again. Nothing of it was stored."},
	{Code: "body_too_large", Status: http.StatusRequestEntityTooLarge,
		Title:  "The body is larger than 64 KiB.",
		Advice: "Send less. Nothing of the request was stored."},
	{Code: "unsupported_media_type", Status: http.StatusUnsupportedMediaType,
		Title:  "The body is not declared as plain JSON in UTF-8.",
		Advice: "Send Content-Type: application/json, and no Content-Encoding."},
	{Code: "invalid_input", Status: http.StatusUnprocessableEntity,
		Title:  "Fields of the body are missing or not valid.",
		Advice: "Each entry of errors names a field and what it must be. Nothing of the request was stored."},
	{Code: "invalid_policy", Status: http.StatusUnprocessableEntity, matches: as[policy.Problems],
		Title:  "The text is not a policy, or not one of this release.",
		Advice: "Each entry of errors names a mistake with its line and column. Nothing was stored or activated. pawl policy check finds the same in a file; docs/policy.md has the keys."},
	{Code: "invalid_parameter", Status: http.StatusUnprocessableEntity,
		Title:  "Parameters of the request are not valid.",
		Advice: "Each entry of errors names a parameter or header field and what it must be."},
	{Code: "invalid_idempotency_key", Status: http.StatusBadRequest,
		Title:  "The Idempotency-Key is not valid, or is not the requestId of the body.",
		Advice: "Send one of up to 255 characters. Where the body has a requestId, send no header, or the same."},
	{Code: "cross_origin", Status: http.StatusForbidden,
		Title:  "The request comes from a web page of another site.",
		Advice: "Browsers send it in the name of the person in front of them, who may know nothing of it. Send it from a server, or from a page of the same host and port."},
	{Code: "misdirected_request", Status: http.StatusMisdirectedRequest,
		Title:  "The service is not known by the name in the Host header.",
		Advice: "A web page can give its own name to any address, so that a browser takes the service for a part of the page. Ask under localhost or the public URL, or name the host in --allowed-hosts."},
	{Code: "tls_required", Status: http.StatusForbidden,
		Title:  "A credential was sent that others could read on the way.",
		Advice: "Replace the token: take it as known to others. Then send it by https. Behind a reverse proxy that does this, name the proxy's network in --behind-proxy."},
	{Code: "quarantined", Status: http.StatusServiceUnavailable, retryAfter: "30",
		Title:  "The database belongs elsewhere, so the service only reads it.",
		Advice: "It was restored or copied. A service on it would charge customers and send webhooks a second time, so nothing is done before its owner has decided: pawl adopt makes it the one in use, pawl adopt --as-copy an installation of its own, for tests. docs/operations.md has both. Nothing of the request was stored."},
	{Code: "bad_signature", Status: http.StatusBadRequest, matches: is(engine.ErrSignature),
		Title:  "The event or callback is not signed with the secret of its policy, not for this call, or not within five minutes of now.",
		Advice: "The webhookSecret of the policy's charge must be that of the endpoint at Stripe; a callback is signed as Standard Webhooks says, with the secret of the step, and its webhook-id is the Idempotency-Key of the call. The clocks must agree."},
	{Code: "not_found", Status: http.StatusNotFound, matches: is(orders.ErrNotFound),
		Title:  "What was asked for is not there.",
		Advice: "Ids are compared byte by byte. In a path they must be percent-encoded."},
	{Code: "unknown_route", Status: http.StatusNotFound,
		Title:  "There is nothing at this path.",
		Advice: "See /docs for the paths there are. Paths are not corrected and never redirect."},
	{Code: "method_not_allowed", Status: http.StatusMethodNotAllowed,
		Title:  "This path does not take this method.",
		Advice: "The Allow header lists the methods it takes."},
	{Code: "cursor_expired", Status: http.StatusGone, matches: as[*events.Expired],
		Title:  "The cursor leads nowhere any more.",
		Advice: "Events after it are no longer kept, or the history that it belongs to was lost, as when a standby took over that did not have all of it. Go on at nextCursor of the problem. What is missing can be read from the orders: GET /api/orders/{orderId}/transitions."},
	{Code: "order_conflict", Status: http.StatusConflict, matches: as[*orders.Conflict],
		Title:  "The order exists with other input.",
		Advice: "An order id stands for one order for ever: the same id with other input is refused, and nothing is written. Fields left out, and metadata, are not compared. Each entry of errors shows what is stored and what was sent. An order that has failed can get another payment method by retry."},
	{Code: "confirm_in_doubt", Status: http.StatusConflict, matches: refused(orders.RefusedConfirmInDoubt),
		Title:  "The order is being confirmed, and nobody knows whether it was.",
		Advice: "A confirmation can't be undone, so nothing stops the order until its answer is there. Ask again later, or settle the step with step-result."},
	{Code: "outcome_unknown", Status: http.StatusConflict, matches: refused(orders.RefusedUnknown),
		Title:  "The outcome of the step is not known, and to send it again could do it twice.",
		Advice: "The provider may have forgotten the key of the step, and can't be asked after it. Look at the provider, and say with step-result what became of it."},
	{Code: "still_undoing", Status: http.StatusConflict, matches: refused(orders.RefusedStillUndoing),
		Title:  "An effect of the failed order stands, or is still being undone.",
		Advice: "Ask again when it is undone."},
	{Code: "policy_switch_refused", Status: http.StatusConflict, matches: refused(orders.RefusedPolicySwitch),
		Title:  "The order can't go on under the active policy.",
		Advice: "A step that was done under its own policy, or may have been, could not be undone under the active one. Retry it with its own, or settle the step with step-result first."},
	{Code: "busy", Status: http.StatusConflict, matches: refused(orders.RefusedBusy),
		Title:  "The step is being done right now.",
		Advice: "Ask again when the order is held; pause it if need be."},
	{Code: "already_answered", Status: http.StatusConflict, matches: refused(orders.RefusedAnswered),
		Title:  "The step was answered, and the answer was not used yet.",
		Advice: "Resume the order: it goes on with that answer."},
	{Code: "no_late_undo", Status: http.StatusConflict, matches: refused(orders.RefusedNoLateUndo),
		Title:  "No undo of a late effect is open for that step and generation.",
		Advice: "It is done, or was closed before, or there was none. Without a generation step-result is about the step that the order is at."},
	{Code: "not_called", Status: http.StatusConflict, matches: refused(orders.RefusedNotCalled),
		Title:  "The step was not called for yet in this generation of the order.",
		Advice: "There is nothing to say about it. What stands at the provider is of an earlier generation: undo it there, and retry or cancel the order."},
	{Code: "other_step", Status: http.StatusConflict, matches: refused(orders.RefusedOtherStep),
		Title:  "The order is at another step than the one that step-result names.",
		Advice: "Read the order and its calls again: the step may have been settled, and the order may have gone on."},
	{Code: "other_generation", Status: http.StatusConflict, matches: refused(orders.RefusedGeneration),
		Title:  "The order is not at the generation that the request names.",
		Advice: "If it is at a later one, the order was started again since: by this very request when it came before, or by somebody else. Read it, and decide again."},
	{Code: "retried_before", Status: http.StatusConflict, matches: refused(orders.RefusedRetried),
		Title:  "The failed order was retried before, and the request does not say which retry is meant.",
		Advice: "It may be the same request that came twice. To start the order again, name the generation that failed, its ETag in If-Match, or a requestId of its own."},
	{Code: "payment_method_in_use", Status: http.StatusConflict, matches: refused(orders.RefusedPaymentMethod),
		Title:  "Only a failed order can go on with another payment method.",
		Advice: "The charge of this one may have been done with the stored payment method. Cancel the order, or wait until it has failed."},
	{Code: "own_order", Status: http.StatusForbidden, matches: refused(orders.RefusedOwnOrder),
		Title:  "Somebody else must approve the order than who submitted it.",
		Advice: "The policy of the order has approver: another. Send the approval with the token of another name."},
	{Code: "refund_too_large", Status: http.StatusConflict, matches: refused(orders.RefusedRefundTooLarge),
		Title:  "More was to be given back than is left of the charge.",
		Advice: "All refunds that have not failed count, also those that are pending or in doubt. The problem holds the order with its refunds. Without an amount all that is left is refunded."},
	{Code: "restock_too_large", Status: http.StatusConflict, matches: refused(orders.RefusedRestockTooLarge),
		Title:  "More units were to be put back than the order took from this stock.",
		Advice: "The restock of all its refunds counts. What another system reserved is none of this stock: put it back there."},
	{Code: "no_refund_url", Status: http.StatusConflict, matches: refused(orders.RefusedNoRefundURL),
		Title:  "The policy of the order does not say where its charge is refunded.",
		Advice: "An order keeps the policy it started with. Refund it at the provider; give the charge a refundUrl for the orders to come."},
	{Code: "no_refund", Status: http.StatusConflict, matches: refused(orders.RefusedNoRefund),
		Title:  "No refund of that number is open.",
		Advice: "There is none, or it is done or failed already. What failed is asked for again as another refund, with a requestId of its own."},
	{Code: "not_applicable", Status: http.StatusConflict, matches: as[*orders.NotApplicable],
		Title:  "The verb does not apply to the order as it is now.",
		Advice: "The problem holds the order and the verbs that do apply."},
	{Code: "idempotency_key_reused", Status: http.StatusUnprocessableEntity, matches: is(orders.ErrKeyReused),
		Title:  "The Idempotency-Key, or requestId, was used for another request.",
		Advice: "A key names one request: each field of it must be as it was first. The entries of errors name those that differ. Nothing was done; send this one with a key of its own."},
	{Code: "stock_too_low", Status: http.StatusConflict, matches: as[*orders.StockTooLow],
		Title:  "Fewer units would be on hand than are reserved.",
		Advice: "Cancel orders first, or count again."},
	{Code: "stock_too_high", Status: http.StatusConflict, matches: is(orders.ErrStockTooHigh),
		Title:  "More than 1,000,000,000,000 units would be on hand.",
		Advice: "Count again. Nothing was changed."},
	{Code: "too_many_endpoints", Status: http.StatusConflict, matches: is(webhooks.ErrTooMany),
		Title:  "There are 64 webhook endpoints, and there may not be more.",
		Advice: "Delete one that nobody needs. One endpoint can get events of many types."},
	{Code: "delivery_finished", Status: http.StatusConflict, matches: is(webhooks.ErrFinished),
		Title:  "The delivery was delivered or skipped before.",
		Advice: "There is nothing to skip. To have it sent once more, resend it."},
	{Code: "precondition_failed", Status: http.StatusPreconditionFailed, matches: is(orders.ErrPrecondition),
		Title:  "It is not as If-Match or If-None-Match wants it: it has changed, is missing, or is there already.",
		Advice: "Read it again, and decide again."},
	{Code: "precondition_required", Status: http.StatusPreconditionRequired,
		Title:  "The request must say which version it replaces.",
		Advice: "Send If-Match with the ETag that was read, or If-None-Match: * for an item that is not there. To add units or take some away, post an adjustment, which needs neither."},
	{Code: "overloaded", Status: http.StatusServiceUnavailable, matches: is(orders.ErrOverloaded), retryAfter: "1",
		Title:  "There is too much to do to take this request now.",
		Advice: "Send the same request again after the time in Retry-After. Nothing of it was stored."},
	{Code: "stopping", Status: http.StatusServiceUnavailable, matches: is(orders.ErrStopping), retryAfter: "1",
		Title:  "This server is shutting down.",
		Advice: "Send the same request again: another server, or this one after its start, takes it. Nothing is done twice."},
	{Code: "unavailable", Status: http.StatusServiceUnavailable, matches: isUnavailable, retryAfter: "1",
		Title:  "The service can't use its database now.",
		Advice: "It is not known whether the request took effect. Send the same request again: that finds out, and nothing is done twice."},
	{Code: "issuer_unavailable", Status: http.StatusServiceUnavailable, matches: is(access.ErrIssuerAway), retryAfter: "30",
		Title:  "The OpenID Connect issuer did not say with which keys it signs.",
		Advice: "Nobody can tell whether the token is good. Send the same request again after the time in Retry-After. Tokens that begin with pawl_ need no issuer."},
	{Code: "internal", Status: http.StatusInternalServerError, matches: anything,
		Title:  "Something went wrong that should not.",
		Advice: "The server's log has the cause, under the X-Request-Id of the answer. Sending the same request again is safe."},
}

func kindOf(code problemCode) *kind {
	for i := range kinds {
		if kinds[i].Code == code {
			return &kinds[i]
		}
	}
	panic("httpapi: no problem has the code " + string(code))
}

func anything(error) bool { return true }

func is(target error) func(error) bool {
	return func(err error) bool { return errors.Is(err, target) }
}

func as[T error](err error) bool {
	var target T
	return errors.As(err, &target)
}

func refused(code string) func(error) bool {
	return func(err error) bool {
		var refusal *orders.NotApplicable
		return errors.As(err, &refusal) && refusal.Code == code
	}
}

func isUnavailable(err error) bool {
	return errors.Is(err, orders.ErrUnavailable) || errors.Is(err, access.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}
