package endpoint

import (
	"cmp"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"pawl/internal/provider"
)

// result says what the answer to an operation means: the outcome that it names, or else what its status means. Only
// what says so beyond doubt is done, refused or not done: 409 and 422 are how idempotency keys answer while the first
// call is still running, and 408 or 5xx may come after the money was taken.
func (a *answer) result(op provider.Operation) provider.Result {
	if a.Err != nil {
		return a.Lost()
	}
	r, unreadable := a.reply()
	switch {
	case r.Outcome == "not_done":
		return a.notDone(&r, "not_done")
	case a.Status >= 300 && a.Status < 400:
		return provider.Unknown{Code: "redirect", Detail: a.statusText() + " is not followed", After: a.RetryAfter()}
	case r.Outcome == "refused" && a.Status >= 400 && a.Status < 500:
		return a.refused(&r, "refused")
	case r.Outcome == "" && a.Status == http.StatusPaymentRequired:
		return a.refused(&r, "payment_required")
	case r.Outcome == "" && a.Status == http.StatusTooEarly:
		return a.notDone(&r, "too_early")
	case r.Outcome == "" && a.Status == http.StatusTooManyRequests:
		return a.notDone(&r, "too_many_requests")
	case a.Status < 200 || a.Status >= 300:
		return a.inDoubt(&r, "http_"+strconv.Itoa(a.Status), a.statusText())
	case unreadable != nil:
		return a.unreadable(unreadable)
	case a.Status == http.StatusAccepted:
		return a.accepted(&r, op)
	}
	return a.done(&r)
}

func (a *answer) done(r *reply) provider.Result {
	if r.Outcome != "" && r.Outcome != "done" {
		return a.contradiction(r)
	}
	data, err := provider.StorableData(r.Data)
	if err != nil {
		return a.unreadable(fmt.Errorf("data %w", err))
	}
	return provider.Done{Reference: r.Reference, Data: data}
}

// accepted is what 202 means. Nobody waits for the callback of an undo: it is asked again.
func (a *answer) accepted(r *reply, op provider.Operation) provider.Result {
	if op == provider.Undo {
		return provider.Unknown{Code: "undo_pending", Detail: a.Text(string(r.Detail)), After: a.RetryAfter()}
	}
	if r.Outcome != "" && r.Outcome != "waiting" {
		return a.contradiction(r)
	}
	action, err := provider.StorableData(r.Action)
	if err != nil {
		return a.unreadable(fmt.Errorf("action %w", err))
	}
	return provider.Waiting{Reference: r.Reference, Action: action}
}

func (a *answer) refused(r *reply, code string) provider.Result {
	return provider.Refused{Code: a.code(r, code), Detail: a.Text(string(r.Detail))}
}

// notDone is what an answer means that says that this call did nothing. When the request
// was put on more than one connection the answer is that to the last; an earlier one may
// have done it.
func (a *answer) notDone(r *reply, code string) provider.Result {
	if a.Sent > 1 {
		return a.inDoubt(r, code, "sent again after a lost connection")
	}
	return provider.Retry{Code: a.code(r, code), Detail: a.Text(string(r.Detail)), After: a.RetryAfter(),
		Counts: a.Status != http.StatusTooManyRequests}
}

// inDoubt carries the code of the reply, if it has one.
func (a *answer) inDoubt(r *reply, code, detail string) provider.Result {
	if r.Detail != "" {
		detail = string(r.Detail)
	}
	return provider.Unknown{Code: a.code(r, code), Detail: a.Text(detail), After: a.RetryAfter()}
}

func (a *answer) contradiction(r *reply) provider.Result {
	detail := a.statusText() + " with outcome " + strconv.Quote(string(r.Outcome))
	return provider.Unknown{Code: "answer_contradictory", Detail: a.Text(detail), After: a.RetryAfter()}
}

func (a *answer) unreadable(why error) provider.Result {
	return provider.Unknown{Code: "answer_unreadable", Detail: why.Error(), After: a.RetryAfter()}
}

// code is the code of a reply, or the one given when it has none that can be shown.
func (a *answer) code(r *reply, otherwise string) string {
	return cmp.Or(a.Withheld.Code(string(r.Code)), otherwise)
}

func (a *answer) statusText() string {
	return strings.TrimSpace("HTTP " + strconv.Itoa(a.Status) + " " + http.StatusText(a.Status))
}
