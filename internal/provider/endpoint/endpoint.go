// Package endpoint is the executor for HTTP endpoints, those of a shop or of `pawl simulate`. docs/http-endpoints.md is
// their contract.
//
// The engine makes an executor for each step whose policy names http or simulator. It does not retry: the engine does,
// and counts the calls.
package endpoint

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/signing"
)

// endpoint is an Executor that posts to the URLs of a step.
type endpoint struct {
	transport *http.Transport
	how       policy.Step
	bounds    policy.Bounds
}

// New returns an executor of a step with the executor http or simulator. It is a Looker if there is a URL for look-ups.
// Secrets are read at every call, so that they can be replaced. Steps may share a transport of provider.NewTransport, and
// so the connections to a host that does several of them.
func New(s *policy.Step, of fsm.Step, within policy.Bounds, over *http.Transport) provider.Executor {
	e := endpoint{over, *s, within}
	if s.Executor == policy.Simulator {
		e.how.URL, e.how.LookupURL = below(s.URL, string(of)), below(s.URL, "lookup")
		if of != fsm.Confirm {
			e.how.UndoURL = below(s.URL, string(of), "undo")
		}
		e.how.RefundURL = below(s.URL, string(of), "refund")
		e.how.CaptureURL, e.how.VoidURL = below(s.URL, string(of), "capture"), below(s.URL, string(of), "void")
	}
	if e.how.LookupURL == "" {
		return &e
	}
	return &lookEndpoint{e}
}

// below returns an address below the base URL of a simulator.
func below(base string, path ...string) string {
	address, _ := url.JoinPath(base, path...) // the URLs of a policy are valid
	return address
}

// Do posts the call to the URL of the step.
func (e *endpoint) Do(ctx context.Context, c *provider.Call) provider.Result {
	return e.post(ctx, c, provider.Do, e.how.URL)
}

// Undo posts the call to the undo URL. It has its own key, and that of the Do as undoKey.
func (e *endpoint) Undo(ctx context.Context, c *provider.Call) provider.Result {
	if e.how.UndoURL == "" {
		return provider.Unknown{Code: "no_undo", Detail: "a " + string(c.Step) + " can't be undone"}
	}
	return e.post(ctx, c, provider.Undo, e.how.UndoURL)
}

// Operate posts the call to the URL of its charge operation. It has its own key, and that of the charge as chargeKey.
func (e *endpoint) Operate(ctx context.Context, c *provider.Call) provider.Result {
	address, missing := e.how.RefundURL, "no_refund_url"
	switch op := c.OperationKind; {
	case op == provider.Capture:
		address, missing = e.how.CaptureURL, "no_capture_url"
	case op == provider.Void:
		address, missing = e.how.VoidURL, "no_void_url"
	}
	if address == "" {
		return provider.Retry{Code: missing, Detail: "the policy has no URL for it", Counts: true}
	}
	return e.post(ctx, c, c.OperationKind, address)
}

func (e *endpoint) post(ctx context.Context, c *provider.Call, op provider.Operation, address string) provider.Result {
	body, err := c.Body(op)
	if err != nil {
		return provider.Unsent("call_unusable", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return provider.Unsent("call_unusable", errAddress)
	}
	key := c.Key(op)
	request.Header["Content-Type"] = []string{"application/json"}
	// With this header, net/http repeats a request if the server closes an idle connection under it. The key makes that
	// harmless, and Exchange counts it.
	request.Header["Idempotency-Key"] = []string{key}
	request.Header["Fencing-Token"] = []string{strconv.FormatInt(c.Fence, 10)}
	a, err := e.exchange(c, request, signing.Message{ID: key, Body: body})
	if err != nil {
		return provider.Unsent("secret_unusable", err)
	}
	return a.result(op)
}

// errAddress omits the cause, which would repeat the address and perhaps a token in it.
var errAddress = errors.New("the URL can't be used")

// exchange signs a request, sends it and reads the answer. An error means that nothing was sent.
func (e *endpoint) exchange(c *provider.Call, request *http.Request, m signing.Message) (*answer, error) {
	secret, err := e.bounds.ReadKey(&e.how) // its text must never be shown
	if err != nil {
		return nil, err
	}
	if secret != "" { // otherwise, nothing is signed
		key, err := signing.Key(secret)
		if err != nil {
			return nil, err
		}
		signing.Sign(request.Header, m, c.Now(), key)
	}
	request.Header["User-Agent"] = []string{provider.UserAgent}
	request.Header["Traceparent"] = []string{c.TraceParent()}
	a := &answer{}
	a.Perform(request.Context(), c, []string{strings.TrimPrefix(secret, signing.Prefix)}, func(ctx context.Context) error {
		response, err := e.transport.RoundTrip(request.WithContext(ctx))
		if err != nil {
			return err
		}
		return a.read(response)
	})
	return a, nil
}

// lookEndpoint is an endpoint with a URL for look-ups.
type lookEndpoint struct{ endpoint }

// Lookup looks up the key of the Do, or of the charge operation.
func (e *lookEndpoint) Lookup(ctx context.Context, c *provider.Call) provider.Result {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, e.how.LookupURL, nil)
	if err != nil {
		return provider.InDoubt(provider.Unsent("call_unusable", errAddress))
	}
	key := c.LookupKey()
	query := "key=" + key // needs no escaping; a query in the URL is kept
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

// lookup is the result of a look-up. Its failure says nothing about the Do.
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
		return provider.Unknown{
			Code: provider.InProgress, Detail: a.Text(string(r.Detail)), After: a.RetryAfter(), Reference: r.Reference,
		}
	case "pending":
		return a.accepted(&r, provider.Do)
	case "unseen":
		return provider.Retry{Code: "unseen", Counts: true}
	case "expired": // an authorization that was not captured, or not as a whole
		return provider.Refused{Code: provider.AuthorizationExpired, Detail: a.Text(string(r.Detail))}
	case "undone": // nothing can happen under this key any more
		return provider.Refused{Code: "undone", Detail: a.Text(string(r.Detail))}
	}
	detail := a.Text("state " + strconv.Quote(string(r.State)))
	return provider.Unknown{Code: "answer_contradictory", Detail: detail, After: a.RetryAfter()}
}
