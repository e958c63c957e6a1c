package faults

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"

	"pawl/internal/simulator"
)

// stripeParrot is Stripe as the simulator plays it, but it repeats what is withheld in every text of its answers that is not
// a name or a word of its API.
type stripeParrot struct {
	simulator *simulator.Simulator
	methods   map[string]string // what the simulator calls a payment method
	secrets   string

	mu     sync.Mutex
	method string // of the order that is charged
}

// ownWords are the fields of Stripe's objects that an executor goes by.
var ownWords = []string{
	"id", "object", "type", "status", "currency", "created", "capture_method", "payment_intent", "latest_charge", "metadata",
	"balance_transaction", "confirmation_method", "last_payment_error",
}

func (p *stripeParrot) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, _ := io.ReadAll(r.Body)
	if form, err := url.ParseQuery(string(text)); err == nil && form.Has("payment_method") {
		p.mu.Lock()
		p.method = form.Get("payment_method")
		p.mu.Unlock()
		form.Set("payment_method", p.methods[form.Get("payment_method")])
		text = []byte(form.Encode())
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
	recorded := httptest.NewRecorder()
	p.simulator.ServeHTTP(recorded, r)
	var answer any
	if json.Unmarshal(recorded.Body.Bytes(), &answer) == nil {
		recorded.Body = bytes.NewBuffer(nil)
		p.mu.Lock()
		echo := p.secrets + " " + p.method
		p.mu.Unlock()
		_ = json.NewEncoder(recorded.Body).Encode(repeat(answer, echo))
	}
	for name, values := range recorded.Header() {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(recorded.Code)
	_, _ = w.Write(recorded.Body.Bytes())
}

// repeat adds the echo to the texts of an answer, and to each object one more.
func repeat(value any, echo string) any {
	switch value := value.(type) {
	case string:
		return value + "?" + echo
	case []any:
		for i := range value {
			value[i] = repeat(value[i], echo)
		}
	case map[string]any:
		for name, member := range value {
			if _, isText := member.(string); name != "metadata" && !(isText && slices.Contains(ownWords, name)) {
				value[name] = repeat(member, echo)
			}
		}
		if value["object"] != nil {
			value["description"] = echo
		}
	}
	return value
}

// ordersAtStripe are orders that Stripe answers in every way: done, declined, to be acted upon and processing, then
// undone, refunded or failed.
func (l *leaks) ordersAtStripe() {
	l.t.Helper()
	for id, wanted := range map[string]string{
		"marked_approved": `"status":"completed"`, "marked_declined": `"status":"failed"`,
		"marked_to_act": `"hold":"callback"`, "marked_processing": `"hold":"callback"`,
	} {
		l.ask(http.MethodPost, "/api/orders/process", body(id, "stripe", "pm_"+id))
		l.until(id, wanted)
		if strings.Contains(wanted, "callback") {
			l.ask(http.MethodPost, "/api/orders/"+id+"/cancel", `{"reason":"test"}`)
			l.until(id, `"status":"canceled"`)
		}
	}
	l.ask(http.MethodPost, "/api/orders/marked_approved/refunds", `{"amount":"1.25","reason":"test","requestId":"r-1"}`)
	l.until("marked_approved", `"state":"done"`)
}
