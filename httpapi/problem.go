package httpapi

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"pawl/engine"
	"pawl/internal/access"
	"pawl/internal/events"
	"pawl/internal/orders"
	"pawl/internal/policy"
	"pawl/internal/webhooks"
)

// problem is a problem document (RFC 9457).
type problem struct {
	Type           string       `json:"type" format:"uri-reference" doc:"A page that explains the code."`
	Title          string       `json:"title" doc:"What the code means."`
	Status         int          `json:"status" doc:"The HTTP status."`
	Code           problemCode  `json:"code"`
	Detail         string       `json:"detail,omitempty" doc:"What happened this time."`
	Errors         []fieldError `json:"errors,omitempty" nullable:"false" doc:"What is wrong with the request, field by field."`
	Order          *order       `json:"order,omitempty" doc:"The order, if it is the reason."`
	AllowedActions []string     `json:"allowedActions,omitempty" nullable:"false" doc:"The verbs that currently apply to the order, or to a refund, capture or void of it."`
	IgnoredFields  []string     `json:"ignoredFields,omitempty" nullable:"false" doc:"With invalid_input: unknown fields of the request."`
	NextCursor     string       `json:"nextCursor,omitempty" doc:"With cursor_expired: where to continue."`
	Cell           string       `json:"cell,omitempty" doc:"With other_cell: the cell of the order, such as 1/4 for the second of four."`

	kind      *kind
	allow     string           // the Allow header of a 405
	challenge string           // the WWW-Authenticate header of a 401
	exceeded  *access.Exceeded // of a 429
}

// problemCode is one of the codes of the table.
type problemCode string

func (p *problem) Error() string { return p.Detail }

// GetStatus, like GetHeaders and ContentType, is called by huma.
func (p *problem) GetStatus() int { return p.Status }

// GetHeaders returns the headers that go with the problem.
func (p *problem) GetHeaders() http.Header {
	h := http.Header{}
	if p.kind != nil && p.kind.retryAfter != "" {
		h.Set("Retry-After", p.kind.retryAfter)
	}
	if p.exceeded != nil {
		h.Set("Retry-After", wholeSeconds(p.exceeded.Pause))
		writeQuotas(h, p.exceeded.All)
	}
	if p.allow != "" {
		h.Set("Allow", p.allow)
	}
	if p.challenge != "" {
		h.Set("WWW-Authenticate", p.challenge)
	}
	return h
}

// ContentType names the media type of problems.
func (p *problem) ContentType(string) string { return "application/problem+json" }

// newProblem returns a problem with the status and texts that the table has for a code.
func newProblem(code problemCode, detail string, faults ...fieldError) *problem {
	k := kindOf(code)
	return &problem{
		Type: "/problems/" + string(k.Code), Title: k.Title, Status: k.Status, Code: k.Code,
		Detail: detail, Errors: faults, kind: k,
	}
}

func malformedJSON(m *malformed) *problem {
	return newProblem("malformed_json", m.text(), fieldError{Pointer: m.pointer, Code: m.code, Detail: m.detail})
}

func invalidParameter(name, code, detail string) *problem {
	return newProblem("invalid_parameter", "", fieldError{Parameter: name, Code: code, Detail: detail})
}

func invalidHeader(name, detail string) *problem {
	return newProblem("invalid_parameter", "", fieldError{Header: name, Code: "invalid", Detail: detail})
}

func missingHeader(name, detail string) fieldError {
	return fieldError{Header: name, Code: "required", Detail: detail}
}

// problemOf turns any error into a problem. Errors that are not in the table become internal, without their text, which
// may contain anything.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	at := slices.IndexFunc(kinds, func(k kind) bool { return k.matches != nil && k.matches(err) })
	p := newProblem(kinds[at].Code, "")
	p.explain(err)
	return p
}

// explain adds the details that errors of the engine carry.
func (p *problem) explain(err error) {
	if missing, ok := errors.AsType[*orders.NotFound](err); ok {
		p.Detail = "T" + strings.TrimPrefix(missing.Error(), "t") + "."
	} else if expired, ok := errors.AsType[*events.Expired](err); ok {
		p.NextCursor = expired.Continue.String()
		if p.Detail = "The events after this cursor are no longer kept."; expired.Lost {
			p.Detail = "The history of this cursor was lost. Events may be missing, and some may be repeated."
		}
	} else if other, ok := errors.AsType[*otherCell](err); ok {
		p.Detail, p.Cell = other.Error(), other.order.String()
	} else if exceeded, ok := errors.AsType[*access.Exceeded](err); ok {
		p.Detail, p.exceeded = "The quota "+exceeded.Quota.Name+" is exceeded.", exceeded
	} else if stranger, ok := errors.AsType[*access.NotIdentified](err); ok {
		p.Detail, p.challenge = stranger.Reason, "Bearer"
		if stranger.Invalid {
			p.challenge = `Bearer error="invalid_token"`
		}
	} else if lacking, ok := errors.AsType[*forbidden](err); ok {
		p.Detail = lacking.Error()
	} else if forgotten, ok := errors.AsType[*orders.Forgotten](err); ok {
		p.Detail = "O" + strings.TrimPrefix(forgotten.Error(), "o") + "."
	} else if conflict, ok := errors.AsType[*orders.Conflict](err); ok {
		if conflict.Order.OrderNo != 0 { // or it was forgotten
			p.Order = new(orderOf(&conflict.Order))
		}
		for _, d := range conflict.Differences {
			p.Errors = append(p.Errors, fieldError{
				Pointer: d.Pointer, Code: "differs", Detail: "differs from the stored order", Stored: &d.Stored, Sent: &d.Sent,
			})
		}
	} else if other, ok := errors.AsType[*orders.KeyReused](err); ok {
		if other.Verb {
			p.Detail = "The first request with this key used a different verb."
		}
		for _, member := range other.Members {
			p.Errors = append(p.Errors, fieldError{Pointer: "/" + member, Code: "differs", Detail: "differs from the first request with this key"})
		}
	} else if refusal, ok := errors.AsType[*orders.NotApplicable](err); ok {
		p.Order = new(orderOf(&refusal.Order))
		if refusal.Code == orders.RefusedUnknown || refusal.Code == orders.RefusedStillUndoing { // not visible in the order
			p.Order.AllowedActions = slices.DeleteFunc(p.Order.AllowedActions, func(v string) bool { return v == string(refusal.Verb) })
		}
		p.AllowedActions = p.Order.AllowedActions
		p.Detail = refusal.Error() + "."
	} else if blocked, ok := errors.AsType[*orders.OrdersOpen](err); ok {
		for _, id := range blocked.OrderIDs {
			p.Errors = append(p.Errors, fieldError{Pointer: "/customerId", Code: "order_open", Detail: "has the open order " + strconv.Quote(id)})
		}
	} else if mistakes, ok := errors.AsType[policy.Problems](err); ok {
		p.Errors = policyFaults(mistakes)
	} else if low, ok := errors.AsType[*orders.StockTooLow](err); ok {
		p.Errors = []fieldError{{Pointer: low.Pointer, Code: "below_reserved", Detail: "must leave at least " +
			decimalText(low.Item.Reserved) + ", the units reserved"}}
	}
}

// kind is the entry of a problem code in the table.
type kind struct {
	Code       problemCode
	Status     int
	Title      string
	Advice     string // what to do about it, for the page of the code
	retryAfter string // seconds
	matches    func(error) bool
}

// kinds maps errors to problems. The first match wins, and the last entry matches any error. The codes in the API
// description and the pages under /problems are also generated from it.
var kinds = []kind{
	{Code: "malformed_json", Status: http.StatusBadRequest,
		Title:  "The request body is not valid JSON.",
		Advice: "Send one JSON object in UTF-8, without duplicate names or lone surrogate escapes, nested at most 16 levels deep."},
	{Code: "unauthenticated", Status: http.StatusUnauthorized, matches: as[*access.NotIdentified],
		Title: "Authentication is required.",
		Advice: "Send a token: Authorization: Bearer pawl_…. To create one, run pawl token create on a machine that " +
			"can reach the database. The request was not read."},
	{Code: "forbidden", Status: http.StatusForbidden, matches: as[*forbidden],
		Title:  "You do not have permission to do this.",
		Advice: "The detail lists the roles that have this permission; any one of them is enough. pawl token test shows what a token may do."},
	{Code: "too_many_requests", Status: http.StatusTooManyRequests, matches: as[*access.Exceeded], retryAfter: "1",
		Title: "Rate limit exceeded.",
		Advice: "Send the same request again after the time in Retry-After. The request was not read. The " +
			"RateLimit-Policy and RateLimit headers give a token's limits and what is left of them; failed-attempts " +
			"counts the invalid credentials sent from an address."},
	{Code: "request_timeout", Status: http.StatusRequestTimeout,
		Title:  "The request body did not arrive in time.",
		Advice: "Send the request again. Nothing was stored."},
	{Code: "body_too_large", Status: http.StatusRequestEntityTooLarge,
		Title:  "The request body is larger than 64 KiB.",
		Advice: "Send a smaller body. Nothing was stored."},
	{Code: "unsupported_media_type", Status: http.StatusUnsupportedMediaType,
		Title:  "The request body must be JSON in UTF-8.",
		Advice: "Send Content-Type: application/json, and no Content-Encoding."},
	{Code: "invalid_input", Status: http.StatusUnprocessableEntity,
		Title:  "The request body has missing or invalid fields.",
		Advice: "Each entry of errors names a field and says what it must be. Nothing was stored."},
	{Code: "invalid_policy", Status: http.StatusUnprocessableEntity, matches: as[policy.Problems],
		Title: "The policy is not valid, or this release does not support it.",
		Advice: "Each entry of errors gives a mistake with its line and column. Nothing was stored or activated. pawl " +
			"policy check reports the same errors for a file; docs/policy.md lists the keys."},
	{Code: "invalid_parameter", Status: http.StatusUnprocessableEntity,
		Title:  "The request has invalid parameters.",
		Advice: "Each entry of errors names a parameter or header and says what it must be."},
	{Code: "invalid_idempotency_key", Status: http.StatusBadRequest,
		Title:  "The Idempotency-Key is not valid, or differs from the body's requestId.",
		Advice: "Send a key of up to 255 characters. If the body has a requestId, omit the header or send the same value."},
	{Code: "cross_origin", Status: http.StatusForbidden,
		Title: "Cross-origin requests are not allowed.",
		Advice: "A browser sends such a request with the user's credentials, even if the user did not intend it. Send " +
			"the request from a server, or from a page of the same host and port."},
	{Code: "misdirected_request", Status: http.StatusMisdirectedRequest,
		Title: "The host name in the Host header is not allowed.",
		Advice: "This check prevents DNS rebinding, where a web page points its own host name at the service. Use " +
			"localhost or the public URL, or add the host name to --allowed-hosts."},
	{Code: "other_cell", Status: http.StatusMisdirectedRequest, matches: as[*otherCell],
		Title: "The order belongs to another cell.",
		Advice: "This service has a part of the orders, which their ids decide. Send the request to the service of the " +
			"cell that the problem names. Nothing was read or stored."},
	{Code: "tls_required", Status: http.StatusForbidden,
		Title: "Credentials must be sent over HTTPS.",
		Advice: "The token was sent in plain text, so treat it as compromised: replace it, and send the new one over " +
			"HTTPS. If a reverse proxy terminates TLS, add its network to --behind-proxy."},
	{Code: "quarantined", Status: http.StatusServiceUnavailable, retryAfter: "30",
		Title: "The database was restored or copied, so the service is read-only.",
		Advice: "Running on a copy could charge customers and send webhooks a second time, so the service waits for an " +
			"operator's decision: pawl adopt continues with this database as the one in production; pawl adopt " +
			"--as-copy makes it a separate installation, for tests. docs/operations.md describes both. Nothing was " +
			"stored."},
	{Code: "bad_signature", Status: http.StatusBadRequest, matches: is(engine.ErrSignature),
		Title: "The signature of the event or callback is not valid.",
		Advice: "The signature was made with another secret or for another call, or its timestamp is more than five " +
			"minutes off. For Stripe events, the webhookSecret of the policy's charge must be the secret of the " +
			"endpoint at Stripe. Callbacks follow Standard Webhooks: they are signed with the secret of the step, and " +
			"their webhook-id is the Idempotency-Key of the call. Check the clocks as well."},
	{Code: "not_found", Status: http.StatusNotFound, matches: is(orders.ErrNotFound),
		Title:  "Not found.",
		Advice: "Ids are compared byte by byte, and must be percent-encoded in a path."},
	{Code: "unknown_route", Status: http.StatusNotFound,
		Title:  "There is no resource at this path.",
		Advice: "/docs lists the paths. Paths are not corrected and never redirect."},
	{Code: "method_not_allowed", Status: http.StatusMethodNotAllowed,
		Title:  "Method not allowed.",
		Advice: "The Allow header lists the methods that this path supports."},
	{Code: "cursor_expired", Status: http.StatusGone, matches: as[*events.Expired],
		Title: "The cursor has expired.",
		Advice: "The events after it are no longer kept, or they were lost, for example when a standby took over that " +
			"did not have all of them. Continue at the problem's nextCursor. To find out what was missed, read the " +
			"orders: GET /api/orders/{orderId}/transitions."},
	{Code: "order_forgotten", Status: http.StatusGone, matches: is(orders.ErrForgotten),
		Title: "The order has ended, and its details were removed.",
		Advice: "Orders are removed when --order-retention has passed since they ended. What is left says how the order " +
			"ended, and keeps its id from being used again: a repetition of its request to process gets the same answer. " +
			"Nothing else can be done with it. An archive, if you keep one, has the details."},
	{Code: "order_conflict", Status: http.StatusConflict, matches: as[*orders.Conflict],
		Title: "An order with this id and different input already exists.",
		Advice: "An order id is never reused: a request with the same id and different input is refused, and nothing " +
			"is stored. Omitted fields and metadata are not compared. Each entry of errors shows the stored value and " +
			"the one sent. To give a failed order another payment method, use retry."},
	{Code: "confirm_in_doubt", Status: http.StatusConflict, matches: refused(orders.RefusedConfirmInDoubt),
		Title: "The order may already be confirmed.",
		Advice: "A confirmation cannot be undone, so the order cannot be stopped until the outcome is known. Try again " +
			"later, or settle the step with step-result."},
	{Code: "outcome_unknown", Status: http.StatusConflict, matches: refused(orders.RefusedUnknown),
		Title: "The outcome of the step is unknown, and sending it again could perform it twice.",
		Advice: "The provider may have forgotten the idempotency key of the step, and offers no way to look it up. " +
			"Check the step at the provider, and report the outcome with step-result."},
	{Code: "still_undoing", Status: http.StatusConflict, matches: refused(orders.RefusedStillUndoing),
		Title:  "An effect of the failed order has not been undone yet.",
		Advice: "Try again once it has been undone."},
	{Code: "policy_switch_refused", Status: http.StatusConflict, matches: refused(orders.RefusedPolicySwitch),
		Title: "The order cannot continue under the active policy.",
		Advice: "A step that was performed under the order's own policy, or may have been, could not be undone under " +
			"the active one. Retry with the order's own policy, or settle the step with step-result first."},
	{Code: "busy", Status: http.StatusConflict, matches: refused(orders.RefusedBusy),
		Title:  "The step is in progress.",
		Advice: "Try again when the order is held. To hold it, pause it."},
	{Code: "already_answered", Status: http.StatusConflict, matches: refused(orders.RefusedAnswered),
		Title:  "The step already has an answer, which has not been used yet.",
		Advice: "Resume the order: it continues with that answer."},
	{Code: "no_late_undo", Status: http.StatusConflict, matches: refused(orders.RefusedNoLateUndo),
		Title:  "There is no open undo of a late effect for this step and generation.",
		Advice: "It is finished, was closed before, or never existed. Without a generation, step-result applies to the current step of the order."},
	{Code: "not_called", Status: http.StatusConflict, matches: refused(orders.RefusedNotCalled),
		Title: "The step has not been called in this generation of the order.",
		Advice: "There is no outcome to report. Any effect at the provider belongs to an earlier generation: undo it " +
			"there, then retry or cancel the order."},
	{Code: "other_step", Status: http.StatusConflict, matches: refused(orders.RefusedOtherStep),
		Title:  "The order is not at the step that the request names.",
		Advice: "The step may have been settled, and the order may have moved on. Read the order and its calls again."},
	{Code: "other_generation", Status: http.StatusConflict, matches: refused(orders.RefusedGeneration),
		Title: "The order is not at the generation that the request names.",
		Advice: "If the order is at a later generation, it was started again since, by an earlier copy of this request " +
			"or by another one. Read the order, and decide again."},
	{Code: "retried_before", Status: http.StatusConflict, matches: refused(orders.RefusedRetried),
		Title: "The order was retried before, and the request does not say which retry it means.",
		Advice: "This may be a duplicate of an earlier request. To start the order again, send the generation that " +
			"failed, its ETag in If-Match, or a new requestId."},
	{Code: "payment_method_in_use", Status: http.StatusConflict, matches: refused(orders.RefusedPaymentMethod),
		Title:  "The payment method can only be changed once the order has failed.",
		Advice: "The stored payment method may already have been charged. Cancel the order, or wait until it has failed."},
	{Code: "own_order", Status: http.StatusForbidden, matches: refused(orders.RefusedOwnOrder),
		Title:  "You cannot approve an order that you submitted.",
		Advice: "The policy of the order has approver: another. Send the approval with a token of another name."},
	{Code: "refund_too_large", Status: http.StatusConflict, matches: refused(orders.RefusedRefundTooLarge),
		Title: "The refund exceeds what is left of the charge, or of a line.",
		Advice: "All refunds that have not failed count, including pending ones and those in doubt. The problem " +
			"contains the order with its refunds. To refund all that is left, omit the amount."},
	{Code: "capture_too_large", Status: http.StatusConflict, matches: refused(orders.RefusedCaptureTooLarge),
		Title: "The capture exceeds what is left of the authorization.",
		Advice: "All captures and voids that have not failed count, including pending ones and those in doubt. The problem " +
			"contains the order with its captures. To capture all that is left, omit the amount."},
	{Code: "capture_open", Status: http.StatusConflict, matches: refused(orders.RefusedCaptureOpen),
		Title: "The rest can't be voided while a capture or void is open.",
		Advice: "What an open capture takes is not known yet. Wait until it has succeeded or failed; if it is in doubt, " +
			"settle it by a step-result."},
	{Code: "no_capture_url", Status: http.StatusConflict, matches: refused(orders.RefusedNoCaptureURL),
		Title:  "The policy of the order has no captureUrl or voidUrl for its charge.",
		Advice: "An order keeps the policy that it started with. Capture or void this order at the provider."},
	{Code: "restock_too_large", Status: http.StatusConflict, matches: refused(orders.RefusedRestockTooLarge),
		Title: "The restock exceeds the units that the order took from this stock.",
		Advice: "The restocks of all refunds of the order count. Units that another system reserved were not taken " +
			"from this stock: put them back in that system."},
	{Code: "no_refund_url", Status: http.StatusConflict, matches: refused(orders.RefusedNoRefundURL),
		Title:  "The policy of the order has no refundUrl for its charge.",
		Advice: "An order keeps the policy that it started with. Refund this order at the provider, and add a refundUrl to the charge for new orders."},
	{Code: "customer_erased", Status: http.StatusConflict, matches: refused(orders.RefusedErased),
		Title:  "The customer of the order was erased.",
		Advice: "The payment method was erased, too, so the order cannot be started again. Refunds still work."},
	{Code: "orders_open", Status: http.StatusConflict, matches: as[*orders.OrdersOpen],
		Title: "Orders of the customer are still open.",
		Advice: "Each entry of errors names one, up to 20: it has not ended, or a refund, capture, void or late undo of it is open. " +
			"Cancel or settle them, or wait, and send the same request again."},
	{Code: "no_charge_operation", Status: http.StatusConflict, matches: refused(orders.RefusedNoChargeOperation),
		Title:  "There is no open refund, capture or void with this number.",
		Advice: "It does not exist, or has already succeeded or failed. To repeat a failed one, request a new one with a new requestId."},
	{Code: "not_applicable", Status: http.StatusConflict, matches: as[*orders.NotApplicable],
		Title:  "The verb is not allowed in the order's current state.",
		Advice: "The problem contains the order and the verbs that are allowed."},
	{Code: "idempotency_key_reused", Status: http.StatusUnprocessableEntity, matches: is(orders.ErrKeyReused),
		Title: "The Idempotency-Key or requestId was used for a different request.",
		Advice: "A key identifies one request, and every field must match the first request that used it. Each entry " +
			"of errors names a field that differs. Nothing was done; send this request with a new key."},
	{Code: "stock_too_low", Status: http.StatusConflict, matches: as[*orders.StockTooLow],
		Title:  "The units on hand cannot be fewer than those reserved.",
		Advice: "Cancel orders first, or check the count."},
	{Code: "stock_too_high", Status: http.StatusConflict, matches: is(orders.ErrStockTooHigh),
		Title:  "The units on hand cannot exceed 1,000,000,000,000.",
		Advice: "Check the count. Nothing was changed."},
	{Code: "too_many_endpoints", Status: http.StatusConflict, matches: is(webhooks.ErrTooMany),
		Title:  "The limit of 64 webhook endpoints is reached.",
		Advice: "Delete an endpoint that is no longer needed. One endpoint can receive events of many types."},
	{Code: "delivery_finished", Status: http.StatusConflict, matches: is(webhooks.ErrFinished),
		Title:  "The delivery has already been delivered or skipped.",
		Advice: "It can no longer be skipped. To send it again, resend it."},
	{Code: "precondition_failed", Status: http.StatusPreconditionFailed, matches: is(orders.ErrPrecondition),
		Title:  "The resource has changed: the condition in If-Match or If-None-Match was not met.",
		Advice: "The resource has changed, does not exist, or already exists. Read it again, and decide again."},
	{Code: "precondition_required", Status: http.StatusPreconditionRequired,
		Title: "The request must include If-Match or If-None-Match.",
		Advice: "Send If-Match with the ETag that you read, or If-None-Match: * to create the item. To add or remove " +
			"units, post an adjustment, which needs neither."},
	{Code: "overloaded", Status: http.StatusServiceUnavailable, matches: is(orders.ErrOverloaded), retryAfter: "1",
		Title:  "The service is overloaded.",
		Advice: "Send the same request again after the time in Retry-After. Nothing was stored."},
	{Code: "stopping", Status: http.StatusServiceUnavailable, matches: is(orders.ErrStopping), retryAfter: "1",
		Title:  "The server is shutting down.",
		Advice: "Send the same request again: another server takes it, or this one after its restart. Nothing is done twice."},
	{Code: "unavailable", Status: http.StatusServiceUnavailable, matches: isUnavailable, retryAfter: "1",
		Title:  "The service cannot reach its database.",
		Advice: "The request may or may not have taken effect. Send the same request again to find out; nothing is done twice."},
	{Code: "issuer_unavailable", Status: http.StatusServiceUnavailable, matches: is(access.ErrIssuerAway), retryAfter: "30",
		Title: "The signing keys of the OpenID Connect issuer are unavailable.",
		Advice: "The token cannot be verified. Send the same request again after the time in Retry-After. Tokens that " +
			"begin with pawl_ do not need the issuer."},
	{Code: "internal", Status: http.StatusInternalServerError, matches: anything,
		Title:  "Internal server error.",
		Advice: "The server's log has the cause, under the X-Request-Id of the response. It is safe to send the same request again."},
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
	_, ok := errors.AsType[T](err)
	return ok
}

func refused(code string) func(error) bool {
	return func(err error) bool {
		refusal, ok := errors.AsType[*orders.NotApplicable](err)
		return ok && refusal.Code == code
	}
}

func isUnavailable(err error) bool {
	return errors.Is(err, orders.ErrUnavailable) || errors.Is(err, access.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded)
}
