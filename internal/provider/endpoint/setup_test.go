package endpoint_test

import (
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
	"pawl/internal/provider/endpoint"
)

// request is what came over the wire.
type request struct {
	method, uri string
	header      http.Header
	body        string
}

// wire is the way between an executor and its provider. It keeps what came over it.
type wire struct {
	mu       sync.Mutex
	requests []request
}

// lay starts a server before a provider and returns its address.
func lay(t *testing.T, provider http.Handler) (*wire, string) {
	t.Helper()
	w := &wire{}
	server := httptest.NewServer(http.HandlerFunc(func(to http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		w.mu.Lock()
		w.requests = append(w.requests, request{r.Method, r.URL.RequestURI(), r.Header.Clone(), string(body)})
		w.mu.Unlock()
		provider.ServeHTTP(to, r)
	}))
	t.Cleanup(server.Close)
	return w, server.URL
}

func (w *wire) seen() []request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]request(nil), w.requests...)
}

// aCall is a call for an order that no other test has.
func aCall(of fsm.Step) *provider.Call {
	return &provider.Call{
		Installation: installation, OrderID: "order " + uuid.NewString(), Step: of, Amount: decimal.MustParse("99.90"), Currency: "USD",
		Item: "widget", Quantity: 2, CustomerID: "c-7", PaymentMethod: "pm_card_visa", Fence: 1, Number: 1,
	}
}

var installation = uuid.MustParse("0f6c1f1e-6f0a-4d2a-9a53-0d4f0f1c2b3a")

// again is the next call of a call, by another replica.
func again(c *provider.Call) *provider.Call {
	next := *c
	next.Fence, next.Number = c.Fence+1, c.Number+1
	return &next
}

// local are the bounds of tests: their providers are on this machine, their secrets in its temporary folder.
var local = policy.Bounds{SecretsDir: os.TempDir(), AllowPrivate: true}

// atURL is an http executor whose URLs are all below one address.
func atURL(url string, of fsm.Step, secret policy.Secret) provider.Executor {
	return endpoint.New(&policy.Step{Executor: policy.HTTP, URL: url + "/do", UndoURL: url + "/undo", RefundURL: url + "/refund", Secret: secret}, of, local)
}

func kind(r provider.Result) string {
	switch r.(type) {
	case provider.Done:
		return "done"
	case provider.Refused:
		return "refused"
	case provider.Retry:
		return "retry"
	case provider.Waiting:
		return "waiting"
	}
	return "unknown"
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
	if err := os.WriteFile(strings.TrimPrefix(string(secret), "file:"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
