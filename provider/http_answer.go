package provider

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
)

// The outcomes a body may name. An answer without one means what its status means.
const (
	outcomeDone    = "done"
	outcomeRefused = "refused"
	outcomeWaiting = "waiting"
	outcomeNotDone = "not_done"
)

// result says what the answer to an operation means. Only what says so beyond doubt is
// done, refused or not done: 409 and 422 are how idempotency keys answer while the first
// call is still running, and 408 or 5xx may come after the money was taken.
func (a *answer) result(op Operation) Result {
	if a.err != nil {
		return a.lost()
	}
	r, unreadable := a.reply()
	switch {
	case r.Outcome == outcomeNotDone:
		return a.notDone(&r, "not_done")
	case a.status >= 300 && a.status < 400:
		return Unknown{Code: "redirect", Detail: a.statusText() + " is not followed", After: a.retryAfter()}
	case r.Outcome == outcomeRefused && a.status >= 400 && a.status < 500:
		return a.refused(&r, "refused")
	case r.Outcome == "" && a.status == http.StatusPaymentRequired:
		return a.refused(&r, "payment_required")
	case r.Outcome == "" && a.status == http.StatusTooEarly:
		return a.notDone(&r, "too_early")
	case r.Outcome == "" && a.status == http.StatusTooManyRequests:
		return a.notDone(&r, "too_many_requests")
	case a.status < 200 || a.status >= 300:
		return a.inDoubt(&r, "http_"+strconv.Itoa(a.status), a.statusText())
	case unreadable != nil:
		return a.unreadable(unreadable)
	case a.status == http.StatusAccepted:
		return a.accepted(&r, op)
	}
	return a.done(&r)
}

// lost is the result of a request without a whole answer. Only one that was put on no
// connection has certainly done nothing.
func (a *answer) lost() Result {
	if a.sent == 0 {
		return a.unconnected()
	}
	switch {
	case errors.Is(a.ctxErr, context.DeadlineExceeded):
		return Unknown{Code: "timeout", Detail: "no answer in time"}
	case a.ctxErr != nil:
		return Unknown{Code: "canceled", Detail: "canceled before the answer"}
	}
	return Unknown{Code: "connection_lost", Detail: a.text(lossOf(a.err)), After: a.retryAfter()}
}

// lossOf keeps out what net/http quotes of an answer that it can't read.
func lossOf(err error) string {
	var network *net.OpError
	if errors.As(err, &network) {
		return network.Error()
	}
	return "the connection ended without a whole HTTP answer"
}

// unconnected counts when there was somebody, but not somebody to trust: that does not go
// away like an outage.
func (a *answer) unconnected() Result {
	var dial *net.OpError
	switch {
	case errors.As(a.err, &dial) && dial.Op == "dial":
		return Retry{Code: "connection_failed", Detail: a.text(a.err.Error())}
	case errors.Is(a.ctxErr, context.DeadlineExceeded):
		return Retry{Code: "connection_failed", Detail: "no connection in time"}
	case a.ctxErr != nil:
		return Retry{Code: "canceled", Detail: "canceled before there was a connection"}
	}
	return Retry{Code: "tls_failed", Detail: a.text(a.err.Error()), Counts: true}
}

func (a *answer) done(r *reply) Result {
	if r.Outcome != "" && r.Outcome != outcomeDone {
		return a.contradiction(r)
	}
	data, err := storable(r.Data)
	if err != nil {
		return a.unreadable(fmt.Errorf("data %w", err))
	}
	return Done{Reference: r.Reference, Data: data}
}

// accepted is what 202 means. Nobody waits for the callback of an undo: it is asked again.
func (a *answer) accepted(r *reply, op Operation) Result {
	if op == Undo {
		return Unknown{Code: "undo_pending", Detail: a.text(string(r.Detail)), After: a.retryAfter()}
	}
	if r.Outcome != "" && r.Outcome != outcomeWaiting {
		return a.contradiction(r)
	}
	action, err := storable(r.Action)
	if err != nil {
		return a.unreadable(fmt.Errorf("action %w", err))
	}
	return Waiting{Reference: r.Reference, Action: action}
}

func (a *answer) refused(r *reply, code string) Result {
	return Refused{Code: a.code(r, code), Detail: a.text(string(r.Detail))}
}

// notDone is what an answer means that says that this call did nothing. When the request
// was put on more than one connection the answer is that to the last; an earlier one may
// have done it.
func (a *answer) notDone(r *reply, code string) Result {
	if a.sent > 1 {
		return a.inDoubt(r, code, "sent again after a lost connection")
	}
	return Retry{Code: a.code(r, code), Detail: a.text(string(r.Detail)), After: a.retryAfter(),
		Counts: a.status != http.StatusTooManyRequests}
}

// inDoubt carries the code of the reply, if it has one.
func (a *answer) inDoubt(r *reply, code, detail string) Result {
	if r.Detail != "" {
		detail = string(r.Detail)
	}
	return Unknown{Code: a.code(r, code), Detail: a.text(detail), After: a.retryAfter()}
}

func (a *answer) contradiction(r *reply) Result {
	detail := a.statusText() + " with outcome " + strconv.Quote(string(r.Outcome))
	return Unknown{Code: "answer_contradictory", Detail: a.text(detail), After: a.retryAfter()}
}

func (a *answer) unreadable(why error) Result {
	return Unknown{Code: "answer_unreadable", Detail: why.Error(), After: a.retryAfter()}
}
