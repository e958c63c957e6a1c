package simulator_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stripe/stripe-go/v85/webhook"

	"pawl/internal/simulator"
)

const hookSecret = "whsec_of_the_simulator"

// endpoint takes events, if Stripe's own library takes their signatures.
type endpoint struct {
	*httptest.Server
	mu     sync.Mutex
	events []string // type and id
}

func newEndpoint(t *testing.T) *endpoint {
	t.Helper()
	e := &endpoint{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		ev, err := webhook.ConstructEventWithOptions(body, r.Header.Get("Stripe-Signature"), hookSecret, webhook.ConstructEventOptions{IgnoreAPIVersionMismatch: true})
		if err != nil {
			t.Errorf("%v: %s", err, body)
		}
		metadata, _ := ev.Data.Object["metadata"].(map[string]any)
		e.mu.Lock()
		defer e.mu.Unlock()
		e.events = append(e.events, fmt.Sprint(strings.TrimPrefix(string(ev.Type), "payment_intent."), " ", ev.ID, " ", metadata["pawl_order"]))
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *endpoint) heard() []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.events)
}

func TestStripeEvents(t *testing.T) {
	t.Parallel()
	for fault, want := range map[string]string{
		"approve":            "created evt_1_1 o, succeeded evt_1_2 o",
		"decline":            "created evt_1_1 o, payment_failed evt_1_2 o",
		"answer-twice":       "created evt_1_1 o, succeeded evt_1_2 o, succeeded evt_1_2 o",
		"callback-late:1ms":  "created evt_1_1 o, succeeded evt_1_2 o",
		"callback-before":    "created evt_1_1 o, succeeded evt_1_2 o",
		"callback-never":     "created evt_1_1 o",
		"async:1ms":          "created evt_1_1 o, processing evt_1_2 o, succeeded evt_1_3 o",
		"callback-twice:1ms": "created evt_1_1 o, processing evt_1_2 o, succeeded evt_1_3 o, succeeded evt_1_3 o",
		"async:1ms,code=no":  "created evt_1_1 o, processing evt_1_2 o, payment_failed evt_1_3 o",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			e := newEndpoint(t)
			s := openStripe(t, simulator.Config{StripeWebhook: e.URL, StripeWebhookSecret: hookSecret})
			s.faults(fault)
			s.says(intent("o"), "a", "200 pi_1 requires_confirmation")
			await(t, func() bool { return len(e.heard()) > 0 }) // events that are told at the same time come in any order
			is := "processing"                                  // those that are told later are not told now
			switch {
			case fault == "decline":
				s.says(confirm, "b", "402 card_error card_declined generic_decline")
			case fault == "approve" || fault == "answer-twice":
				is = "succeeded"
				fallthrough
			default:
				s.says(confirm, "b", "200 pi_1 "+is)
			}
			if fault == "callback-before" && len(e.heard()) != 2 {
				t.Errorf("not told before: %v", e.heard())
			}
			await(t, func() bool { return len(e.heard()) > strings.Count(want, ",") })
			if err := s.Close(); err != nil { // waits for what is still to be told
				t.Error(err)
			}
			if got := strings.Join(e.heard(), ", "); got != want {
				t.Errorf("told %s, want %s", got, want)
			}
		})
	}
}

func TestStripeEventsOfWhatHappens(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t)
	s := openStripe(t, simulator.Config{StripeWebhook: e.URL, StripeWebhookSecret: hookSecret})
	heard := func(want ...string) {
		t.Helper()
		await(t, func() bool { return len(e.heard()) >= len(want) })
		if got := e.heard(); !slices.Equal(got, want) {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	s.says(intent("o", "payment_method=pm_card_authenticationRequired", "confirm=true", "capture_method=manual"), "a", "200 pi_1 requires_action")
	heard("requires_action evt_1_1 o")
	if err := s.Happen("pi_1", simulator.Approved, ""); err != nil {
		t.Fatal(err)
	}
	heard("requires_action evt_1_1 o", "amount_capturable_updated evt_1_2 o")
	s.says(capture, "b", "200 pi_1 succeeded")
	heard("requires_action evt_1_1 o", "amount_capturable_updated evt_1_2 o", "succeeded evt_1_3 o")
	s.says(refund, "c", "200 re_2 succeeded")
	heard("requires_action evt_1_1 o", "amount_capturable_updated evt_1_2 o", "succeeded evt_1_3 o", "charge.refunded evt_1_4 o")
}

func TestStripeFaults(t *testing.T) {
	t.Parallel()
	for fault, books := range map[string]string{
		"refuse-connection1": "", "cut-after1": "charge a live 1 12.50 EUR", "timeout-before1": "", "timeout-after1": "charge a live 1 12.50 EUR",
		"timeout-after1,code=no": "charge a refused 0 12.50 EUR",
	} {
		t.Run(fault+" is not answered", func(t *testing.T) {
			t.Parallel()
			s := openStripe(t, simulator.Config{})
			s.says(intent("o"), "a", "200 pi_1 requires_confirmation")
			s.faults(fault)
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			left := make(chan error, 1)
			go func() {
				response, err := s.ask(ctx, confirm, "b")
				if err == nil {
					defer response.Body.Close()
					_, err = told(response)
				}
				left <- err
			}()
			if strings.HasPrefix(fault, "timeout") {
				s.until("confirm", map[bool]string{true: "none", false: "done"}[books == ""], "refused")
				leave()
			}
			if err := <-left; err == nil {
				t.Error("answered")
			}
			s.entries("o", books)
		})
	}
	t.Run("a charge that comes after a cancellation is seen", func(t *testing.T) {
		t.Parallel()
		s := openStripe(t, simulator.Config{})
		s.says(intent("o"), "a", "200 pi_1 requires_confirmation")
		s.says(cancel, "b", "200 pi_1 canceled")
		s.says(confirm, "c", "400 invalid_request_error payment_intent_unexpected_state")
		s.entries("o", "charge a voided 0 12.50 EUR")
		s.faults("late-after-void@charge")
		s.says(confirm, "d", "200 pi_1 succeeded")
		s.entries("o", "charge a live 1 12.50 EUR")
		if sum := s.Summary(); sum.RefusedAfterUndo != 1 {
			t.Errorf("%+v", sum)
		}
	})
	t.Run("a second charge of an order is counted", func(t *testing.T) {
		t.Parallel()
		s := openStripe(t, simulator.Config{})
		s.says(intent("o", "confirm=true"), "a", "200 pi_1 succeeded")
		s.says(intent("o", "confirm=true"), "b", "200 pi_2 succeeded")
		if sum := s.Summary(); sum.OK() || sum.DoubleLive != 1 || sum.Overlaps != 1 {
			t.Errorf("%+v", sum)
		}
	})
	t.Run("the item of an order is a fault, and so is the name of a request", func(t *testing.T) {
		t.Parallel()
		s := openStripe(t, simulator.Config{})
		s.says(intent("o", "metadata[pawl_item]=decline:lost_card"), "a", "200 pi_1 requires_confirmation")
		s.says(confirm, "b", "402 card_error card_declined lost_card")
		s.says(intent("p", "metadata[pawl_item]=error1:503@charge/cancel"), "c", "200 pi_2 requires_confirmation")
		s.says("POST /v1/payment_intents/pi_2/cancel", "d", "503 api_error")
		s.says("POST /v1/payment_intents/pi_2/cancel", "d", "200 pi_2 canceled")
		for _, rule := range []string{"async@charge/cancel", "late-after-void@charge/create", "slow@charge/nothing"} {
			if _, err := simulator.ParseRule(rule); err == nil {
				t.Errorf("%s is a rule", rule)
			}
		}
	})
}
