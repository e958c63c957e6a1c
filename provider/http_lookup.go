package provider

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
)

// lookEndpoint is an endpoint that can be asked what became of a key.
type lookEndpoint struct {
	endpoint
	lookup url.URL
}

// Lookup asks what became of the key of the Do.
func (e *lookEndpoint) Lookup(ctx context.Context, c *Call) Result {
	key := c.Key(Do)
	target := e.lookup
	query := "key=" + key // needs no escaping; what the URL asks for itself stays as it is
	if target.RawQuery != "" {
		query = target.RawQuery + "&" + query
	}
	target.RawQuery = query
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target.String(), nil)
	if err != nil {
		return Unknown{Code: "call_unusable", Detail: cut(clean(err.Error()))}
	}
	a, err := e.exchange(c, request, message{id: key})
	if err != nil {
		return Unknown{Code: "secret_unusable", Detail: cut(clean(err.Error()))}
	}
	return a.lookup()
}

// The states of a key that a look-up may answer with.
const (
	stateDone    = "done"
	stateRefused = "refused"
	statePending = "pending"
	stateUnseen  = "unseen"
	stateUndone  = "undone"
)

// lookup says what the answer to a look-up means. No failure of it says anything of the Do.
func (a *answer) lookup() Result {
	if a.err != nil {
		return a.unasked()
	}
	r, unreadable := a.reply()
	switch {
	case a.status == http.StatusNotFound:
		return Retry{Code: stateUnseen, Counts: true}
	case a.status != http.StatusOK:
		return a.inDoubt(&r, "http_"+strconv.Itoa(a.status), a.statusText())
	case unreadable != nil:
		return a.unreadable(unreadable)
	}
	switch r.State {
	case stateDone:
		return a.done(&r)
	case stateRefused:
		return a.refused(&r, stateRefused)
	case statePending:
		return a.accepted(&r, Do)
	case stateUnseen:
		return Retry{Code: stateUnseen, Counts: true}
	case stateUndone: // it never comes again under this key
		return Refused{Code: stateUndone, Detail: a.text(string(r.Detail))}
	}
	return Unknown{Code: "answer_contradictory", Detail: a.text("state " + strconv.Quote(string(r.State))), After: a.retryAfter()}
}

// unasked is a look-up without an answer.
func (a *answer) unasked() Result {
	if r, ok := a.lost().(Retry); ok {
		return Unknown{Code: r.Code, Detail: r.Detail}
	}
	return a.lost()
}
