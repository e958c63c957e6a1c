package simulator_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"pawl/internal/simulator"
	"pawl/test/assert"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// provider is a simulator behind a real server.
type provider struct {
	*simulator.Simulator
	t      *testing.T
	url    string
	file   string
	client *http.Client
}

func start(t *testing.T, cfg simulator.Config) *provider {
	t.Helper()
	sim, err := simulator.Open(cfg)
	assert.NoError(t, err)
	server := httptest.NewServer(sim)
	// A connection is used once: the transport sends a POST with an Idempotency-Key
	// again by itself when one that was used before is closed under it.
	transport := &http.Transport{DisableKeepAlives: true}
	t.Cleanup(func() {
		assert.Succeeds(t, sim.Close())
		server.Close()
		transport.CloseIdleConnections()
	})
	return &provider{Simulator: sim, t: t, url: server.URL, file: cfg.File, client: &http.Client{Transport: transport}}
}

// each runs subtests, each with a provider of its own.
func each(t *testing.T, tests map[string]func(*provider)) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(start(t, simulator.Config{File: write(t, nil)}))
		})
	}
}

// call is a request to be made. Its zero value is the charge of one order.
type call struct {
	key, order, item, amount, callback, undo string
	step, reference                          string
	generation                               int
	header                                   http.Header
}

func (c call) request(ctx context.Context, url string) *http.Request {
	for field, value := range map[*string]string{&c.key: "key", &c.order: "order", &c.item: "widget", &c.amount: "99.99", &c.step: "charge"} {
		*field = cmp.Or(*field, value)
	}
	path, operation := url+"/"+c.step, "do"
	if c.undo != "" {
		path, operation = path+"/undo", "undo"
	}
	body, _ := json.Marshal(map[string]any{
		"orderId": c.order, "step": c.step, "operation": operation, "generation": c.generation, "amount": c.amount, "currency": "USD",
		"item": c.item, "quantity": 2, "metadata": map[string]string{"a": "b"}, "callbackUrl": c.callback, "undoKey": c.undo, "reference": c.reference,
	})
	r, _ := http.NewRequestWithContext(ctx, http.MethodPost, path, strings.NewReader(string(body)))
	maps.Copy(r.Header, c.header)
	r.Header.Set("Idempotency-Key", c.key)
	return r
}

// line is an answer in one line: the status, what it says, and "again" if it is a stored one.
func line(response *http.Response) (string, error) {
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", err
	}
	var body struct {
		ID, Status, Outcome, State, Code, Reference string
		Error                                       struct {
			Type, Code, Param string
			DeclineCode       string `json:"decline_code"`
		}
	}
	if err := json.Unmarshal(text, &body); err != nil {
		return "", fmt.Errorf("%q: %w", text, err)
	}
	words := []string{fmt.Sprint(response.StatusCode), body.ID, body.Status, body.Outcome, body.State, body.Code, body.Reference,
		body.Error.Type, body.Error.Code, body.Error.DeclineCode, body.Error.Param}
	if response.Header.Get("Idempotent-Replayed") == "true" {
		words = append(words, "again")
	}
	return strings.Join(slices.DeleteFunc(words, func(word string) bool { return word == "" }), " "), nil
}

// send makes a request and returns what was answered.
func (p *provider) send(c call) (string, error) { return p.sendUntil(p.t.Context(), c) }

func (p *provider) sendUntil(ctx context.Context, c call) (string, error) {
	response, err := p.client.Do(c.request(ctx, p.url))
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	return line(response)
}

func (p *provider) answers(c call, want string) {
	p.t.Helper()
	got, err := p.send(c)
	assert.True(p.t, got == want && err == nil, "answered", got, err, "want", want)
}

// get returns the body of a GET.
func (p *provider) get(path string) string {
	p.t.Helper()
	response, err := p.client.Get(p.url + path)
	assert.NoError(p.t, err)
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	assert.Require(p.t, err == nil && response.StatusCode == http.StatusOK, path, response.Status, err)
	return strings.TrimSpace(string(text))
}

func (p *provider) faults(rules ...string) {
	p.t.Helper()
	parsed := make([]simulator.Rule, 0, len(rules))
	for _, text := range rules {
		rule, err := simulator.ParseRule(text)
		assert.NoError(p.t, err)
		parsed = append(parsed, rule)
	}
	assert.NoError(p.t, p.SetFaults(parsed...))
}

// stands checks a key: its state and how often the effect happened; "" is no such key.
func (p *provider) stands(key, want string) {
	p.t.Helper()
	got := ""
	for _, e := range p.Books("") {
		if e.Key == key {
			got = fmt.Sprintf("%s %d", e.State, e.Effects)
		}
	}
	assert.Equal(p.t, got, want, key)
}

// crash returns a copy of a file that is in use, as an unclean stop would leave it now.
func crash(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	assert.NoError(t, err)
	return write(t, text)
}

func write(t *testing.T, text []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "simulator.jsonl")
	assert.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}

// stripe makes a request of Stripe's API, such as "POST /v1/refunds payment_intent=pi_1", with a key.
func (p *provider) stripe(ctx context.Context, what, key string) (*http.Response, error) {
	return p.client.Do(stripeRequest(ctx, p.url, what, key))
}

func stripeRequest(ctx context.Context, url, what, key string) *http.Request {
	method, rest, _ := strings.Cut(what, " ")
	path, form, _ := strings.Cut(rest, " ")
	r, _ := http.NewRequestWithContext(ctx, method, url+path, strings.NewReader(form))
	r.Header.Set("Authorization", "Bearer sk_test_1")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	return r
}

func (p *provider) says(what, key, want string) {
	p.t.Helper()
	response, err := p.stripe(p.t.Context(), what, key)
	if err != nil {
		p.t.Errorf("%s: %v, want %q", what, err, want)
		return
	}
	defer response.Body.Close()
	got, err := line(response)
	assert.True(p.t, got == want && err == nil, what, got, err, "want", want)
}

// object reads an intent with its charge.
func (p *provider) object(id string) (object map[string]any) {
	p.t.Helper()
	response, err := p.stripe(p.t.Context(), "GET /v1/payment_intents/"+id+"?expand[]=latest_charge", "")
	assert.NoError(p.t, err)
	defer response.Body.Close()
	assert.NoError(p.t, json.NewDecoder(response.Body).Decode(&object))
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
func (p *provider) entries(order, want string) {
	p.t.Helper()
	var lines []string
	for _, e := range p.Books(order) {
		lines = append(lines, fmt.Sprintf("%s %s %s %d %s %s", e.Step, e.Key, e.State, e.Effects, e.Amount, e.Currency))
	}
	assert.Equal(p.t, strings.Join(lines, "; "), want, "books of", order)
}

// until waits for a request of an operation to get somewhere.
func (p *provider) until(operation string, outcomes ...string) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Minute)
	defer cancel()
	_, err := p.Await(ctx, func(r simulator.Request) bool {
		return r.Operation == operation && slices.Contains(outcomes, r.Outcome)
	})
	assert.NoError(p.t, err)
}

// await waits until something holds.
func await(t *testing.T, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.Now().Add(time.Minute); !holds(); <-tick.C {
		assert.True(t, !time.Now().After(limit), "never happened")
	}
}

// ask makes a request without a network, in the time of a bubble. An answer that is not whole is "".
func ask(sim *simulator.Simulator, r *http.Request) (answer string) {
	w := httptest.NewRecorder()
	defer func() {
		if recover() != nil {
			answer = ""
		}
	}()
	sim.ServeHTTP(w, r)
	answer, _ = line(w.Result())
	return answer
}
