package stripe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/govalues/decimal"

	"pawl/fsm"
	"pawl/internal/policy"
	"pawl/internal/provider"
	"pawl/internal/provider/stripe"
	"pawl/internal/simulator"
	"pawl/test/assert"
)

// stripeShop is an order and what charges and captures it.
type stripeShop struct {
	t               *testing.T
	charge, confirm provider.Looker
	call            provider.Call
}

// local are the bounds of tests: their providers are on this machine, their secrets in its temporary folder.
var local = policy.Bounds{SecretsDir: os.TempDir(), AllowPrivate: true}

func secretOf(t *testing.T) policy.Secret {
	t.Helper()
	path := filepath.Join(t.TempDir(), "secret")
	assert.NoError(t, os.WriteFile(path, []byte("sk_test_123\n"), 0o600))
	return policy.Secret("file:" + path)
}

// stripeAt returns a provider and an order that is charged there.
func stripeAt(t *testing.T, capture string) (*stripeProvider, *stripeShop) {
	t.Helper()
	f := newStripeProvider(t)
	return f, newStripeShop(t, f.URL, capture)
}

// trial is a part of a test.
type trial struct{ *testing.T }

// atStripe runs a part of a test at a provider of its own.
func atStripe(t *testing.T, name, capture string, part func(trial, *stripeProvider, *stripeShop)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		t.Parallel()
		f, shop := stripeAt(t, capture)
		part(trial{t}, f, shop)
	})
}

func newStripeShop(t *testing.T, url, capture string) *stripeShop {
	t.Helper()
	shop := &stripeShop{t: t, call: provider.Call{
		Installation: uuid.MustParse("8c5b0d5e-5f0a-4f5c-9a54-2f1d1c7c9d11"), OrderID: "o'rder \"1\"", Generation: 2,
		Amount: decimal.MustParse("10.50"), Currency: "USD", PaymentMethod: "pm_card",
	}}
	how := policy.Step{Executor: policy.Stripe, URL: url, Secret: secretOf(t), Capture: capture, WebhookSecret: "env:PAWL_SECRET_TOLD"}
	shop.charge, shop.confirm = stripe.New(&how, fsm.Charge, local), stripe.New(&how, fsm.Confirm, local)
	return shop
}

// as returns the call of a step; every call gets one of its own.
func (s *stripeShop) as(of fsm.Step) *provider.Call {
	c := s.call
	c.Step = of
	return &c
}

func (s *stripeShop) do() string     { return words(s.charge.Do(s.t.Context(), s.as(fsm.Charge))) }
func (s *stripeShop) undo() string   { return words(s.charge.Undo(s.t.Context(), s.as(fsm.Charge))) }
func (s *stripeShop) lookup() string { return words(s.charge.Lookup(s.t.Context(), s.as(fsm.Charge))) }
func (s *stripeShop) take() string   { return words(s.confirm.Do(s.t.Context(), s.as(fsm.Confirm))) }

// words is a result in short.
func words(r provider.Result) string {
	switch r := r.(type) {
	case provider.Done:
		return strings.TrimSpace("done " + r.Reference)
	case provider.Refused:
		return "refused " + r.Code
	case provider.Retry:
		return fmt.Sprintf("retry %s after %s, counts %v", r.Code, r.After, r.Counts)
	case provider.Waiting:
		return strings.TrimSpace("waiting " + r.Reference + " " + string(r.Action))
	case provider.Unknown:
		if r.After > 0 {
			return fmt.Sprintf("unknown %s after %s", r.Code, r.After)
		}
		return "unknown " + r.Code
	}
	return fmt.Sprintf("%#v", r)
}

func want(tb testing.TB, what, got, want string) {
	tb.Helper()
	assert.Equal(tb, got, want, what)
}

const customerHasToAct = `waiting pi_1 {"type":"use_stripe_sdk","clientSecret":"pi_1_secret_simulated"}`

// Payment methods that Stripe has for tests.
const (
	poor     = "pm_card_visa_chargeDeclinedInsufficientFunds"
	careful  = "pm_card_authenticationRequired"
	slowBank = "pm_usBankAccount_processing"
)

// stripeProvider is the simulator behind a line that requests can be held up on and lost.
type stripeProvider struct {
	*httptest.Server
	t   *testing.T
	sim *simulator.Simulator

	mu       sync.Mutex
	faults   map[string][]string // operation → what goes wrong with the next requests
	always   map[string]string   // operation → what goes wrong with all requests
	blocked  map[string]chan struct{}
	entered  chan string
	requests []stripeSent
}

type stripeSent struct {
	op, key string
	form    url.Values
	header  http.Header
	length  int64
}

func newStripeProvider(t *testing.T) *stripeProvider {
	t.Helper()
	f := &stripeProvider{
		t: t, sim: simulator.New(), faults: map[string][]string{}, always: map[string]string{},
		blocked: map[string]chan struct{}{}, entered: make(chan string, 100),
	}
	f.Server = httptest.NewUnstartedServer(f)
	f.Config.SetKeepAlivesEnabled(false) // on a kept connection net/http sends again what was cut
	f.Start()
	t.Cleanup(func() {
		assert.Succeeds(t, f.sim.Close())
		f.Close()
	})
	return f
}

// fail makes the next requests of an operation go wrong: "cut" before the provider has them, "lost" with
// their answer, or as a rule of the simulator says.
func (f *stripeProvider) fail(op string, how ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[op] = append(f.faults[op], how...)
}

// block lets the next request of an operation not arrive before release is called.
func (f *stripeProvider) block(op string) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.blocked[op] = gate
	return sync.OnceFunc(func() { close(gate) })
}

// happens does to the one intent there is what the customer, the bank or the time does.
func (f *stripeProvider) happens(what, code string) {
	f.t.Helper()
	assert.NoError(f.t, f.sim.Happen("pi_1", what, code))
}

// byHand simulates an action in Stripe's dashboard.
func (f *stripeProvider) byHand(method, path string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(method, "/v1/payment_intents/"+path, nil)
	request.Header.Set("Authorization", "Bearer sk_test_by_hand")
	answer := httptest.NewRecorder()
	f.sim.ServeHTTP(answer, request)
	return answer
}

// books are the intents by what stands of them.
func (f *stripeProvider) books() string {
	f.t.Helper()
	counts := map[string]int{}
	for number := range 10 {
		answer := f.byHand(http.MethodGet, "pi_"+strconv.Itoa(number)+"?expand[]=latest_charge")
		var intent struct {
			Status       string
			LatestCharge struct{ Refunded bool } `json:"latest_charge"`
		}
		if answer.Code != http.StatusOK {
			continue
		}
		assert.NoError(f.t, json.Unmarshal(answer.Body.Bytes(), &intent))
		if intent.Status == "succeeded" && intent.LatestCharge.Refunded {
			intent.Status = "refunded"
		}
		counts[intent.Status]++
	}
	return strings.TrimPrefix(fmt.Sprint(counts), "map")
}

// cancelByHand cancels the one intent there is.
func (f *stripeProvider) cancelByHand() {
	f.t.Helper()
	answer := f.byHand(http.MethodPost, "pi_1/cancel")
	assert.Require(f.t, answer.Code == http.StatusOK, answer.Body)
}

// sent are the operations asked for so far, in order.
func (f *stripeProvider) sent() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	ops := make([]string, len(f.requests))
	for i, r := range f.requests {
		ops[i] = r.op
	}
	return strings.Join(ops, " ")
}

// ServeHTTP implements http.Handler.
func (f *stripeProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		panic(err)
	}
	op := operationOf(r)
	f.mu.Lock()
	fault := f.always[op]
	if planned := f.faults[op]; len(planned) > 0 {
		fault, f.faults[op] = planned[0], planned[1:]
	}
	gate := f.blocked[op]
	delete(f.blocked, op)
	f.requests = append(f.requests, stripeSent{op, r.Header.Get("Idempotency-Key"), r.PostForm, r.Header, r.ContentLength})
	f.mu.Unlock()

	if gate != nil {
		f.entered <- op
		<-gate
	}
	switch fault {
	case "cut":
		panic(http.ErrAbortHandler)
	case "lost":
		f.plan("", op)
		f.sim.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context()))) // a provider finishes what it has begun
		panic(http.ErrAbortHandler)
	default:
		f.plan(fault, op)
		f.sim.ServeHTTP(w, r)
	}
}

// plan replaces the fault plan of the simulator by a rule about an operation, or by nothing.
func (f *stripeProvider) plan(text, op string) {
	var rules []simulator.Rule
	if text != "" {
		rule, err := simulator.ParseRule(text)
		if err != nil {
			panic(err)
		}
		rule.Operation = op
		rules = append(rules, rule)
	}
	if err := f.sim.SetFaults(rules...); err != nil {
		panic(err)
	}
}

func operationOf(r *http.Request) (op string) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	switch {
	case r.Method == http.MethodGet:
		return "read"
	case parts[0] == "refunds":
		return "refund"
	case len(parts) == 1:
		return "create"
	}
	return parts[2]
}

// until waits for a request of an operation to get somewhere.
func (f *stripeProvider) until(op, outcome string) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), patience)
	defer cancel()
	_, err := f.sim.Await(ctx, func(r simulator.Request) bool { return r.Operation == op && r.Outcome == outcome })
	assert.NoError(f.t, err)
}

// stripeFaults are what may go wrong with a request that is not refused, and what is answered then.
var stripeFaults = map[string]string{
	"cut":           "unknown connection_lost",
	"lost":          "unknown connection_lost",
	"error_after":   "unknown api_error", // done, and answered 500, which is kept for the key
	"error:503":     "unknown api_error",
	"rate_limit:7s": "retry rate_limit after 7s, counts false",
	"error:401":     "retry unauthorized after 0s, counts true",
}

// patience is for what must come, however slow the machine is.
const patience = time.Minute
