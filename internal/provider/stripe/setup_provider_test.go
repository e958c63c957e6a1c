package stripe_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/internal/simulator"
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
		if err := f.sim.Close(); err != nil {
			t.Error(err)
		}
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
	if err := f.sim.Happen("pi_1", what, code); err != nil {
		f.t.Fatal(err)
	}
}

// books are the intents by what stands of them.
func (f *stripeProvider) books() string {
	f.t.Helper()
	counts := map[string]int{}
	for number := range 10 {
		request := httptest.NewRequest(http.MethodGet, "/v1/payment_intents/pi_"+strconv.Itoa(number)+"?expand[]=latest_charge", nil)
		request.Header.Set("Authorization", "Bearer sk_test_by_hand")
		answer := httptest.NewRecorder()
		f.sim.ServeHTTP(answer, request)
		var intent struct {
			Status       string
			LatestCharge struct{ Refunded bool } `json:"latest_charge"`
		}
		if answer.Code != http.StatusOK {
			continue
		}
		if err := json.Unmarshal(answer.Body.Bytes(), &intent); err != nil {
			f.t.Fatal(err)
		}
		if intent.Status == "succeeded" && intent.LatestCharge.Refunded {
			intent.Status = "refunded"
		}
		counts[intent.Status]++
	}
	return strings.TrimPrefix(fmt.Sprint(counts), "map")
}

// cancelByHand cancels the one intent there is, as somebody at Stripe's own pages does.
func (f *stripeProvider) cancelByHand() {
	f.t.Helper()
	request := httptest.NewRequest(http.MethodPost, "/v1/payment_intents/pi_1/cancel", nil)
	request.Header.Set("Authorization", "Bearer sk_test_by_hand")
	answer := httptest.NewRecorder()
	f.sim.ServeHTTP(answer, request)
	if answer.Code != http.StatusOK {
		f.t.Fatal(answer.Body)
	}
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
func (f *stripeProvider) until(t *testing.T, op, outcome string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := f.sim.Await(ctx, func(r simulator.Request) bool { return r.Operation == op && r.Outcome == outcome }); err != nil {
		t.Fatal(err)
	}
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
