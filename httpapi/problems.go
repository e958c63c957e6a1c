package httpapi

import (
	"context"
	"errors"
	"net/http"

	"pawl/engine"
	"pawl/orders"
)

// kind is one sort of problem: what a program, and a person, needs to know of it.
type kind struct {
	code       problemCode
	status     int
	title      string
	advice     string // what to do about it, for the page of the code
	retryAfter string // seconds
	matches    func(error) bool
}

// kinds is the one table from errors to answers. It is also the list of codes in
// the OpenAPI document, and the pages under /problems.
var kinds = []kind{
	{code: "malformed_json", status: http.StatusBadRequest,
		title:  "The body is not JSON, or can be read in more than one way.",
		advice: "Send one JSON object in UTF-8, each name once, without lone surrogate escapes and nested at most 16 levels deep."},
	{code: "request_timeout", status: http.StatusRequestTimeout,
		title:  "The body did not arrive in time.",
		advice: "Send the request again. Nothing of it was stored."},
	{code: "body_too_large", status: http.StatusRequestEntityTooLarge,
		title:  "The body is larger than 64 KiB.",
		advice: "Send less. Nothing of the request was stored."},
	{code: "unsupported_media_type", status: http.StatusUnsupportedMediaType,
		title:  "The body is not declared as plain JSON in UTF-8.",
		advice: "Send Content-Type: application/json, and no Content-Encoding."},
	{code: "invalid_input", status: http.StatusUnprocessableEntity,
		title:  "Fields of the body are missing or not valid.",
		advice: "Each entry of errors names a field and what it must be. Nothing of the request was stored."},
	{code: "invalid_parameter", status: http.StatusUnprocessableEntity,
		title:  "Parameters of the request are not valid.",
		advice: "Each entry of errors names a parameter or header field and what it must be."},
	{code: "cross_origin", status: http.StatusForbidden,
		title:  "The request comes from a web page of another site.",
		advice: "Browsers send it in the name of the person in front of them, who may know nothing of it. Send it from a server, or from a page of the same host and port."},
	{code: "bad_signature", status: http.StatusBadRequest, matches: is(engine.ErrSignature),
		title:  "The event is not signed with a secret of a policy, or is older than five minutes.",
		advice: "The webhookSecret of the policy's charge must be that of the endpoint at Stripe, and the clocks must agree."},
	{code: "not_found", status: http.StatusNotFound, matches: is(orders.ErrNotFound),
		title:  "There is no such order, item or callback.",
		advice: "Ids are compared byte by byte. In a path they must be percent-encoded."},
	{code: "unknown_route", status: http.StatusNotFound,
		title:  "There is nothing at this path.",
		advice: "See /docs for the paths there are. Paths are not corrected and never redirect."},
	{code: "method_not_allowed", status: http.StatusMethodNotAllowed,
		title:  "This path does not take this method.",
		advice: "The Allow header lists the methods it takes."},
	{code: "order_conflict", status: http.StatusConflict, matches: as[*orders.Conflict],
		title:  "The order exists with other input.",
		advice: "An order id stands for one order for ever: the same id with another amount, item, quantity, currency, customerId or paymentMethod is refused, and nothing is written. Each entry of errors shows what is stored and what was sent."},
	{code: "confirm_in_doubt", status: http.StatusConflict, matches: refused(orders.RefusedConfirmInDoubt),
		title:  "The order is being confirmed, and nobody knows whether it was.",
		advice: "A confirmation can't be undone, so nothing stops the order until its answer is there. Ask again later, or settle the step with step-result."},
	{code: "outcome_unknown", status: http.StatusConflict, matches: refused(orders.RefusedUnknown),
		title:  "The outcome of the step is not known, and to send it again could do it twice.",
		advice: "The provider may have forgotten the key of the step, and can't be asked after it. Look at the provider, and say with step-result what became of it."},
	{code: "still_undoing", status: http.StatusConflict, matches: refused(orders.RefusedStillUndoing),
		title:  "An effect of the failed order stands, or is still being undone.",
		advice: "Ask again when it is undone."},
	{code: "policy_switch_refused", status: http.StatusConflict, matches: refused(orders.RefusedPolicySwitch),
		title:  "The order can't go on under the active policy.",
		advice: "A step that was done under its own policy, or may have been, could not be undone under the active one. Retry it with its own, or settle the step with step-result first."},
	{code: "busy", status: http.StatusConflict, matches: refused(orders.RefusedBusy),
		title:  "The step is being done right now.",
		advice: "Ask again when the order is held; pause it if need be."},
	{code: "already_answered", status: http.StatusConflict, matches: refused(orders.RefusedAnswered),
		title:  "The step was answered, and the answer was not used yet.",
		advice: "Resume the order: it goes on with that answer."},
	{code: "no_late_undo", status: http.StatusConflict, matches: refused(orders.RefusedNoLateUndo),
		title:  "No undo of a late effect is open for that step and generation.",
		advice: "It is done, or was closed before, or there was none. Without a generation step-result is about the step that the order is at."},
	{code: "not_called", status: http.StatusConflict, matches: refused(orders.RefusedNotCalled),
		title:  "The step was not called for yet in this generation of the order.",
		advice: "There is nothing to say about it. What stands at the provider is of an earlier generation: undo it there, and retry or cancel the order."},
	{code: "not_applicable", status: http.StatusConflict, matches: as[*orders.NotApplicable],
		title:  "The verb does not apply to the order as it is now.",
		advice: "The problem holds the order and the verbs that do apply."},
	{code: "request_id_reused", status: http.StatusConflict, matches: is(orders.ErrRequestID),
		title:  "The requestId was used for another verb on this order.",
		advice: "A requestId names one request. Nothing was done; send this one with an id of its own."},
	{code: "stock_too_low", status: http.StatusConflict, matches: as[*orders.StockTooLow],
		title:  "Fewer units were to be on hand than are reserved.",
		advice: "Cancel orders first, or count again."},
	{code: "precondition_failed", status: http.StatusPreconditionFailed, matches: is(orders.ErrPrecondition),
		title:  "It is not as If-Match or If-None-Match wants it: it has changed, is missing, or is there already.",
		advice: "Read it again, and decide again."},
	{code: "overloaded", status: http.StatusServiceUnavailable, matches: is(orders.ErrOverloaded), retryAfter: "1",
		title:  "The backlog is too long to take another order now.",
		advice: "Send the same request again after the time in Retry-After. Nothing of it was stored."},
	{code: "stopping", status: http.StatusServiceUnavailable, matches: is(orders.ErrStopping), retryAfter: "1",
		title:  "This server is shutting down.",
		advice: "Send the same request again: another server, or this one after its start, takes it. Nothing is done twice."},
	{code: "unavailable", status: http.StatusServiceUnavailable, matches: isUnavailable, retryAfter: "1",
		title:  "The database did not answer in time.",
		advice: "It is not known whether the request took effect. Send the same request again: that finds out, and nothing is done twice."},
	{code: "internal", status: http.StatusInternalServerError,
		title:  "Something went wrong that should not.",
		advice: "The server's log has the cause, under the X-Request-Id of the answer. Sending the same request again is safe."},
}

func kindOf(code problemCode) *kind {
	for i := range kinds {
		if kinds[i].code == code {
			return &kinds[i]
		}
	}
	panic("httpapi: no problem has the code " + string(code))
}

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
	return errors.Is(err, orders.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}
