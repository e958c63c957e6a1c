package provider_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/test/assert"
)

// local are the bounds of tests: their providers are on this machine, their secrets in its temporary folder.
var local = policy.Bounds{SecretsDir: os.TempDir(), AllowPrivate: true}

// request is what came over the wire.
type request struct {
	method, uri string
	header      http.Header
	body        string
}

func (r *request) key() string { return r.header.Get("Idempotency-Key") }

// fault is what the wire does with a request instead of handing it on.
type fault func(w http.ResponseWriter, r *http.Request, provider http.Handler)

// wire is the way between an executor and its provider. It keeps what came over it.
type wire struct {
	provider http.Handler
	mu       sync.Mutex
	requests []request
	faults   map[int]fault // by number of the request, from 0
}

// lay starts a server before a provider and returns its address.
func lay(t *testing.T, provider http.Handler) (*wire, string) {
	t.Helper()
	w := &wire{provider: provider, faults: map[int]fault{}}
	server := httptest.NewServer(w)
	t.Cleanup(server.Close)
	return w, server.URL
}

// ServeHTTP implements http.Handler.
func (w *wire) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.mu.Lock()
	breaking, broken := w.faults[len(w.requests)]
	w.requests = append(w.requests, request{r.Method, r.URL.RequestURI(), r.Header.Clone(), string(body)})
	w.mu.Unlock()
	r.Body = io.NopCloser(bytes.NewReader(body))
	if broken {
		breaking(to, r, w.provider)
		return
	}
	w.provider.ServeHTTP(to, r)
}

func (w *wire) breaks(number int, f fault) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.faults[number] = f
}

func (w *wire) seen() []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]request(nil), w.requests...)
}

// within lets the provider do what it is asked, and keeps its answer.
func within(r *http.Request, provider http.Handler) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	// A provider finishes what it has begun; that the caller has left does not stop it.
	provider.ServeHTTP(answer, r.WithContext(context.WithoutCancel(r.Context())))
	return answer
}

// The reply is lost: the effect is there, nothing comes back.
func lostReply(_ http.ResponseWriter, r *http.Request, provider http.Handler) {
	within(r, provider)
	panic(http.ErrAbortHandler)
}

// The reply is cut in its middle.
func cutReply(w http.ResponseWriter, r *http.Request, provider http.Handler) {
	answer := within(r, provider)
	w.Header().Set("Content-Type", answer.Header().Get("Content-Type"))
	w.Header().Set("Content-Length", "4096")
	w.WriteHeader(answer.Code)
	_, _ = w.Write(answer.Body.Bytes()[:answer.Body.Len()/2])
	panic(http.ErrAbortHandler)
}

// The request is lost: the connection ends before the provider sees anything.
func lostRequest(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }

// aCall is a call for an order that no other test has.
func aCall(of fsm.Step) *provider.Call {
	return &provider.Call{
		Installation: installation, OrderID: "order " + uuid.NewString(), Step: of, Amount: decimal.MustParse("99.90"), Currency: "USD",
		Item: "widget", Quantity: 2, CustomerID: "c-7", PaymentMethod: "pm_card_visa", Fence: 1, Number: 1,
	}
}

// again is the next call of a call, by another replica.
func again(c *provider.Call) *provider.Call {
	next := *c
	next.Fence, next.Number = c.Fence+1, c.Number+1
	return &next
}

const secretText = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// secretOf puts a secret where a policy can name it.
func secretOf(t *testing.T, text string) policy.Secret {
	t.Helper()
	secret := policy.Secret("file:" + filepath.Join(t.TempDir(), "secret"))
	rewrite(t, secret, text+"\n")
	return secret
}

func rewrite(t *testing.T, secret policy.Secret, text string) {
	t.Helper()
	assert.NoError(t, os.WriteFile(strings.TrimPrefix(string(secret), "file:"), []byte(text), 0o600))
}
