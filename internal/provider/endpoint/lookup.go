package endpoint

import (
	"context"
	"net/http"
	"strconv"

	"pawl/internal/provider"
	"pawl/internal/signing"
)

// lookEndpoint is an endpoint that can be asked what became of a key.
type lookEndpoint struct{ endpoint }

// Lookup asks what became of the key of the Do, or of a refund.
func (e *lookEndpoint) Lookup(ctx context.Context, c *provider.Call) provider.Result {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.how.LookupURL, nil)
	if err != nil {
		return provider.InDoubt(provider.Unsent("call_unusable", errAddress))
	}
	key := c.LookupKey()
	query := "key=" + key // needs no escaping; what the URL asks for itself stays as it is
	if given := request.URL.RawQuery; given != "" {
		query = given + "&" + query
	}
	request.URL.RawQuery = query
	a, err := e.exchange(c, request, signing.Message{ID: key})
	if err != nil {
		return provider.InDoubt(provider.Unsent("secret_unusable", err))
	}
	return a.lookup()
}

// lookup says what the answer to a look-up means. No failure of it says anything of the Do.
func (a *answer) lookup() provider.Result {
	if a.Err != nil {
		return provider.InDoubt(a.Lost())
	}
	r, unreadable := a.reply()
	switch {
	case a.Status == http.StatusNotFound:
		return provider.Retry{Code: "unseen", Counts: true}
	case a.Status != http.StatusOK:
		return a.inDoubt(&r, "http_"+strconv.Itoa(a.Status), a.statusText())
	case unreadable != nil:
		return a.unreadable(unreadable)
	}
	switch r.State {
	case "done":
		return a.done(&r)
	case "refused":
		return a.refused(&r, "refused")
	case "in_progress":
		return provider.Unknown{Code: provider.InProgress, Detail: a.Text(string(r.Detail)), After: a.RetryAfter(), Reference: r.Reference}
	case "pending":
		return a.accepted(&r, provider.Do)
	case "unseen":
		return provider.Retry{Code: "unseen", Counts: true}
	case "undone": // it never comes again under this key
		return provider.Refused{Code: "undone", Detail: a.Text(string(r.Detail))}
	}
	return provider.Unknown{Code: "answer_contradictory", Detail: a.Text("state " + strconv.Quote(string(r.State))), After: a.RetryAfter()}
}
