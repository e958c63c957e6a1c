package simulator_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"pawl/internal/simulator"
)

// shop makes requests of Stripe's API.
type shop struct {
	*provider
	t *testing.T
}

func openStripe(t *testing.T, cfg simulator.Config) *shop {
	t.Helper()
	return &shop{start(t, cfg), t}
}

// asked is a request, as "POST /v1/refunds payment_intent=pi_1", and its key.
func (s *shop) ask(ctx context.Context, what, key string) (*http.Response, error) {
	method, rest, _ := strings.Cut(what, " ")
	path, form, _ := strings.Cut(rest, " ")
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(form))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer sk_test_1")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return s.client.Do(r)
}

// told is an answer in one line: its status, what the object is or the error, and "again" if it is a stored one.
func told(response *http.Response) (string, error) {
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	var body struct {
		ID, Status string
		Error      struct {
			Type, Code, Param string
			DeclineCode       string `json:"decline_code"`
		}
	}
	if err := json.Unmarshal(text, &body); err != nil {
		return "", fmt.Errorf("%q: %w", text, err)
	}
	words := []string{fmt.Sprint(response.StatusCode)}
	for _, word := range []string{body.ID, body.Status, body.Error.Type, body.Error.Code, body.Error.DeclineCode, body.Error.Param} {
		if word != "" {
			words = append(words, word)
		}
	}
	if response.Header.Get("Idempotent-Replayed") == "true" {
		words = append(words, "again")
	}
	return strings.Join(words, " "), nil
}

func (s *shop) says(what, key, want string) {
	s.t.Helper()
	response, err := s.ask(s.t.Context(), what, key)
	if err != nil {
		s.t.Errorf("%s: %v, want %q", what, err, want)
		return
	}
	defer response.Body.Close()
	if got, err := told(response); got != want || err != nil {
		s.t.Errorf("%s: %q, %v, want %q", what, got, err, want)
	}
}

// object reads an intent with its charge.
func (s *shop) object(id string) (object map[string]any) {
	s.t.Helper()
	response, err := s.ask(s.t.Context(), "GET /v1/payment_intents/"+id+"?expand[]=latest_charge", "")
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	if err := json.NewDecoder(response.Body).Decode(&object); err != nil {
		s.t.Fatal(err)
	}
	return object
}

// intent is a request to make one, of an order.
func intent(order string, more ...string) string {
	form := url.Values{"amount": {"1250"}, "currency": {"eur"}, "payment_method": {"pm_card_visa"}, "metadata[pawl_order]": {order},
		"metadata[pawl_generation]": {"3"}, "metadata[pawl_item]": {"boat"}}
	for _, pair := range more {
		name, value, _ := strings.Cut(pair, "=")
		form.Set(name, value)
	}
	return "POST /v1/payment_intents " + form.Encode()
}

// entries are the books of an order in short.
func (s *shop) entries(order, want string) {
	s.t.Helper()
	var lines []string
	for _, e := range s.Books(order) {
		lines = append(lines, fmt.Sprintf("%s %s %s %d %s %s", e.Step, e.Key, e.State, e.Effects, e.Amount, e.Currency))
	}
	if got := strings.Join(lines, "; "); got != want {
		s.t.Errorf("books of %s: %q, want %q", order, got, want)
	}
}

// until waits for a request of an operation to get somewhere.
func (s *shop) until(operation string, outcomes ...string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	_, err := s.Await(ctx, func(r simulator.Request) bool {
		return r.Operation == operation && slices.Contains(outcomes, r.Outcome)
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

// serveOnce makes a request without a network.
func serveOnce(t *testing.T, sim *simulator.Simulator, what, key string) string {
	t.Helper()
	method, rest, _ := strings.Cut(what, " ")
	path, form, _ := strings.Cut(rest, " ")
	r := httptest.NewRequest(method, path, strings.NewReader(form))
	r.Header.Set("Authorization", "Bearer sk_test_1")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	r.Header.Set("Idempotency-Key", key)
	w := httptest.NewRecorder()
	sim.ServeHTTP(w, r)
	text, err := told(w.Result())
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// await waits until something holds.
func await(t *testing.T, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(time.Minute); !holds(); <-tick.C {
		if time.Now().After(limit) {
			t.Fatal("never happened")
		}
	}
}
