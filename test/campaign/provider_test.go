package campaign

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// provider is a payment provider, a warehouse and a shipper as docs/http-endpoints.md wants them, on a bad day.
type provider struct {
	*ledger
	server    *httptest.Server
	calls     sync.WaitGroup // callbacks under way
	stopped   context.Context
	calm      atomic.Bool
	addresses func() []string // of the replicas
	client    *http.Client

	dicing sync.Mutex
	dice   dice

	telling sync.Mutex
	told    []callback
}

// callback is one that was answered 200.
type callback struct {
	url      string
	body     []byte
	accepted bool
	orderID  string
}

func newProvider(ctx context.Context, t *testing.T, seed int) *provider {
	t.Helper()
	stopped, stop := context.WithCancel(ctx)
	p := &provider{ledger: newLedger(), stopped: stopped, dice: newDice(seed, 3), client: newClient(5 * time.Second)}
	p.server = httptest.NewServer(p)
	t.Cleanup(func() {
		stop()
		p.server.CloseClientConnections()
		p.server.Close()
		p.calls.Wait()
		p.client.CloseIdleConnections()
	})
	return p
}

// roll is true in so many of a hundred cases, while the provider is not calm.
func (p *provider) roll(percent float64) bool {
	p.dicing.Lock()
	defer p.dicing.Unlock()
	return !p.calm.Load() && p.dice.chance(percent)
}

func (p *provider) delay(least, most time.Duration) time.Duration {
	p.dicing.Lock()
	defer p.dicing.Unlock()
	return p.dice.between(least, most)
}

// ServeHTTP answers POST /{step}/do, POST /{step}/undo, POST /charge/refund, GET /{step}/lookup and GET /books.
func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/books" {
		p.export(w)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if p.spoilBefore(w, r) {
		return
	}
	answer := p.act(r, body)
	p.spoilAfter(w, r, answer)
}

// spoilBefore is what happens to a call before it has any effect.
func (p *provider) spoilBefore(w http.ResponseWriter, r *http.Request) (answered bool) {
	switch {
	case p.roll(1):
		panic(http.ErrAbortHandler) // the connection is cut
	case p.roll(1):
		w.WriteHeader(http.StatusInternalServerError)
		return true
	case p.roll(0.5):
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	case p.roll(0.5):
		w.WriteHeader(http.StatusConflict)
		return true
	case p.roll(5):
		pause(r.Context(), p.delay(10*time.Millisecond, 300*time.Millisecond))
	}
	return false
}

// spoilAfter is what happens to the answer, when the effect is there.
func (p *provider) spoilAfter(w http.ResponseWriter, r *http.Request, answer reply) {
	switch {
	case p.roll(1.5):
		panic(http.ErrAbortHandler)
	case p.roll(1.5):
		w.WriteHeader(http.StatusBadGateway)
		return
	case p.roll(0.5):
		pause(r.Context(), 3*time.Second) // longer than the time-out of the policy
	}
	text, err := json.Marshal(answer.fields)
	if err != nil || answer.fields == nil {
		text = []byte("{}")
	}
	w.Header().Set("Content-Type", "application/json")
	if p.roll(0.5) {
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(answer.status)
		_, _ = w.Write(text[:len(text)/2])
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(answer.status)
	_, _ = w.Write(text) // a caller that has gone asks again
}

// act does what the call asks.
func (p *provider) act(r *http.Request, body []byte) reply {
	key := r.Header.Get("Idempotency-Key")
	step, operation, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if operation == "lookup" {
		return p.look(r.URL.Query().Get("key"))
	}
	var ask request
	if err := json.Unmarshal(body, &ask); err != nil || ask.Step != step || ask.Operation != operation || key == "" {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.complain("%s %s with key %q is not as documented: %s", r.Method, r.URL, key, body)
		return reply{http.StatusBadRequest, nil}
	}
	if operation == "undo" {
		return p.undo(key, body, &ask)
	}
	fate := ""
	switch {
	case p.roll(3):
		fate = "refuse"
	case p.roll(4):
		fate = "later"
	}
	if operation == "refund" {
		return p.refund(key, body, &ask, fate)
	}
	answer := p.do(key, body, &ask, fate)
	if answer.status == http.StatusAccepted && fate == "later" {
		p.calls.Go(func() { p.callBack(key, &ask) })
	}
	return answer
}

// callBack completes a call that was answered 202, sometimes before that answer has arrived, and sometimes twice.
func (p *provider) callBack(key string, ask *request) {
	if p.roll(80) {
		pause(p.stopped, p.delay(0, 500*time.Millisecond))
	}
	fields := p.decide(key, p.roll(10))
	if fields == nil {
		return
	}
	body, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	for range 2 {
		p.send(ask, body)
		if !p.roll(30) {
			return
		}
	}
}

// send sends a callback until it is answered 200, as documented, to any replica.
func (p *provider) send(ask *request, body []byte) {
	_, path, _ := strings.Cut(strings.TrimPrefix(ask.CallbackURL, "http://"), "/")
	for {
		urls := p.addresses()
		p.dicing.Lock()
		base := urls[p.dice.IntN(len(urls))]
		p.dicing.Unlock()
		answer := exchange(p.stopped, p.client, base, call{method: http.MethodPost, path: "/" + path, body: body})
		if answer.status == http.StatusOK {
			p.telling.Lock()
			p.told = append(p.told, callback{path, body, strings.Contains(string(answer.body), `"accepted":true`), ask.OrderID})
			p.telling.Unlock()
			return
		}
		if answer.status == http.StatusNotFound {
			p.mu.Lock()
			p.complain("order %s: a callback was answered 404", ask.OrderID)
			p.mu.Unlock()
			return
		}
		if !pause(p.stopped, 100*time.Millisecond) {
			return
		}
	}
}

// export is what `pawl verify --provider` reads.
func (p *provider) export(w io.Writer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, e := range p.order {
		fmt.Fprintf(w, `{"key":%q,"orderId":%q,"step":%q,"generation":%d,"amount":%q,"currency":%q,"state":%q,"effects":%d}`+"\n",
			e.key, e.ask.OrderID, e.ask.Step, e.ask.Generation, e.ask.Amount, e.ask.Currency, e.state, e.happened)
	}
}
