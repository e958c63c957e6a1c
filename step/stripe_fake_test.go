package step_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
)

// stripeFake is the part of Stripe that payments go through, with its memory for keys: what
// a request was answered first is answered again, also after the intent has moved on, and
// errors too; but nothing that was refused before the work began.
type stripeFake struct {
	*httptest.Server

	mu       sync.Mutex
	intents  map[string]*fakeIntent
	keys     map[string]*fakeKey
	faults   map[string][]string // operation → what goes wrong with the next requests
	blocked  map[string]chan struct{}
	entered  chan string
	requests []fakeRequest
}

type fakeIntent struct {
	id, status, method, lastError string
	charged, refunded             bool
	form                          url.Values
}

type fakeKey struct {
	request string
	status  int
	body    map[string]any // nil while the first request is at work
}

type fakeRequest struct {
	op, id, key, path string
	form              url.Values
	header            http.Header
	length            int64

	fault string
	gate  chan struct{}
}

func newStripeFake(t *testing.T) *stripeFake {
	t.Helper()
	f := &stripeFake{
		intents: map[string]*fakeIntent{}, keys: map[string]*fakeKey{}, faults: map[string][]string{},
		blocked: map[string]chan struct{}{}, entered: make(chan string, 100),
	}
	f.Server = httptest.NewUnstartedServer(f)
	f.Config.SetKeepAlivesEnabled(false) // on a kept connection net/http sends again what was cut
	f.Start()
	t.Cleanup(f.Close)
	return f
}

// fail makes the next requests of an operation go wrong: "cut" before the work, "lost" after
// it, a status that is not stored (429, 503, 401), or "500", which is.
func (f *stripeFake) fail(op string, how ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[op] = append(f.faults[op], how...)
}

// block lets the next request of an operation begin and not end before release is called.
func (f *stripeFake) block(op string) (release func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	gate := make(chan struct{})
	f.blocked[op] = gate
	return sync.OnceFunc(func() { close(gate) })
}

// set moves every intent to a status, as the customer, the bank or the time does.
func (f *stripeFake) set(status, lastError string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, intent := range f.intents {
		intent.status, intent.lastError = status, lastError
	}
}

// books are the intents by what stands of them.
func (f *stripeFake) books() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	counts := map[string]int{}
	for _, intent := range f.intents {
		state := intent.status
		if intent.refunded {
			state = "refunded"
		}
		counts[state]++
	}
	return strings.TrimPrefix(fmt.Sprint(counts), "map")
}

// sent are the operations asked for so far, in order.
func (f *stripeFake) sent() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	ops := make([]string, len(f.requests))
	for i, r := range f.requests {
		ops[i] = r.op
	}
	return strings.Join(ops, " ")
}

// ServeHTTP implements http.Handler.
func (f *stripeFake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		panic(err)
	}
	op, id := operationOf(r)
	request := fakeRequest{op: op, id: id, key: r.Header.Get("Idempotency-Key"), path: r.URL.Path, form: r.Form, header: r.Header, length: r.ContentLength}
	f.mu.Lock()
	if planned := f.faults[op]; len(planned) > 0 {
		request.fault, f.faults[op] = planned[0], planned[1:]
	}
	request.gate = f.blocked[op]
	delete(f.blocked, op)
	f.requests = append(f.requests, request)
	f.mu.Unlock()

	status, body, replayed := f.answer(request)
	if request.fault == "cut" || request.fault == "lost" {
		panic(http.ErrAbortHandler)
	}
	if replayed {
		w.Header().Set("Idempotent-Replayed", "true")
	}
	if status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "7")
	}
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(body); err != nil {
		panic(err)
	}
}

func operationOf(r *http.Request) (op, id string) {
	parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/v1/"), "/")
	switch {
	case parts[0] == "refunds":
		return "refund", r.Form.Get("payment_intent")
	case r.Method == http.MethodGet:
		return "read", parts[1]
	case len(parts) == 1:
		return "create", ""
	}
	return parts[2], parts[1]
}

func (f *stripeFake) answer(r fakeRequest) (status int, body map[string]any, replayed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch r.fault {
	case "429":
		return fakeError(429, "invalid_request_error", "rate_limit")
	case "503":
		return fakeError(503, "api_error", "")
	case "401":
		return fakeError(401, "invalid_request_error", "")
	case "cut":
		return 0, nil, false
	}
	if r.op == "read" {
		return f.do(r)
	}
	text := r.path + "?" + r.form.Encode()
	if known := f.keys[r.key]; known != nil {
		switch {
		case known.request != text:
			return fakeError(400, "idempotency_error", "")
		case known.body == nil:
			return fakeError(409, "idempotency_error", "idempotency_key_in_use")
		}
		return known.status, known.body, true
	}
	first := &fakeKey{request: text}
	f.keys[r.key] = first
	if r.gate != nil {
		f.mu.Unlock()
		f.entered <- r.op
		<-r.gate
		f.mu.Lock()
	}
	status, body, unsaved := f.do(r)
	if r.fault == "500" {
		status, body, _ = fakeError(500, "api_error", "")
	}
	if first.status, first.body = status, body; unsaved {
		delete(f.keys, r.key)
	}
	return status, body, false
}

// do does an operation; unsaved means that it was refused before any work.
func (f *stripeFake) do(r fakeRequest) (status int, body map[string]any, unsaved bool) {
	op, form := r.op, r.form
	if op == "create" {
		if form.Get("customer") == "cus_missing" {
			status, body, _ = fakeError(400, "invalid_request_error", "resource_missing")
			return status, body, true
		}
		intent := &fakeIntent{id: fmt.Sprintf("pi_%d", len(f.intents)+1), status: "requires_confirmation", method: form.Get("payment_method"), form: maps.Clone(form)}
		f.intents[intent.id] = intent
		return 200, intent.json(), false
	}
	intent := f.intents[r.id]
	if intent == nil {
		return fakeError(404, "invalid_request_error", "resource_missing")
	}
	from := intent.status
	switch {
	case op == "read":
	case op == "confirm" && (from == "requires_confirmation" || from == "requires_payment_method"):
		return intent.confirm()
	case op == "cancel" && (strings.HasPrefix(from, "requires_")):
		intent.status = "canceled"
	case op == "capture" && intent.method == "pm_expired":
		return fakeError(400, "invalid_request_error", "charge_expired_for_capture")
	case op == "capture" && from == "requires_capture":
		intent.status = "succeeded"
	case op == "refund" && from == "succeeded" && intent.method == "pm_disputed":
		return fakeError(400, "invalid_request_error", "charge_disputed")
	case op == "refund" && from == "succeeded" && intent.refunded:
		return fakeError(400, "invalid_request_error", "charge_already_refunded")
	case op == "refund" && from == "succeeded":
		intent.refunded = true
		return 200, map[string]any{"object": "refund", "id": "re_" + r.id, "status": "succeeded"}, false
	default:
		return fakeError(400, "invalid_request_error", "payment_intent_unexpected_state")
	}
	return 200, intent.json(), false
}

func (i *fakeIntent) confirm() (int, map[string]any, bool) {
	switch i.method {
	case "pm_declined":
		i.status, i.lastError = "requires_payment_method", "insufficient_funds"
		return fakeError(402, "card_error", "card_declined")
	case "pm_3ds":
		i.status = "requires_action"
	case "pm_processing":
		i.status = "processing"
	case "pm_unusable":
		return fakeError(400, "invalid_request_error", "payment_method_unexpected_state")
	default:
		i.status, i.charged = "succeeded", true
		if i.form.Get("capture_method") == "manual" {
			i.status = "requires_capture"
		}
	}
	return 200, i.json(), false
}

func (i *fakeIntent) json() map[string]any {
	body := map[string]any{"object": "payment_intent", "id": i.id, "status": i.status, "client_secret": i.id + "_secret"}
	if i.status == "requires_action" {
		body["next_action"] = map[string]any{"type": "use_stripe_sdk", "use_stripe_sdk": map[string]any{}}
	}
	if i.lastError != "" {
		body["last_payment_error"] = map[string]any{"type": "card_error", "code": "card_declined", "decline_code": i.lastError}
	}
	if i.status == "succeeded" {
		body["latest_charge"] = map[string]any{"object": "charge", "id": "ch_" + i.id, "refunded": i.refunded}
	}
	return body
}

func fakeError(status int, kind, code string) (int, map[string]any, bool) {
	fault := map[string]any{"type": kind, "code": code, "message": "no: " + code + " of pm_declined"}
	if kind == "card_error" {
		fault["decline_code"] = "insufficient_funds"
	}
	return status, map[string]any{"error": fault}, false
}
