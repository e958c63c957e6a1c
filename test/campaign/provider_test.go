package campaign

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/big"
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

// ledger is what the provider remembers: every key it has ever seen, and what stands under it. It forgets nothing.
type ledger struct {
	mu        sync.Mutex
	keys      map[string]*entry // of a do
	order     []*entry
	steps     map[string][]*entry // by order and step, all generations
	undos     map[string][]byte   // key of an undo → its body
	killed    map[string]bool     // keys of a do that were undone before they were seen
	shut      map[string]bool     // order, step and generation that a person has looked at and closed
	refunds   map[string]*entry   // by order and refund
	complains []string            // what the service must not do
	effects   int
}

// entry is one key of a do.
type entry struct {
	key       string
	body      []byte
	ask       request
	state     string // live, pending, refused, undone
	reference string
	happened  int // how often the effect happened
	sent      int
}

// request is the body of a call.
type request struct {
	OrderID     string `json:"orderId"`
	Step        string `json:"step"`
	Operation   string `json:"operation"`
	Generation  int    `json:"generation"`
	Amount      string `json:"amount"`
	Currency    string `json:"currency"`
	CallbackURL string `json:"callbackUrl"`
	UndoKey     string `json:"undoKey"`
	Reference   string `json:"reference"`
	RefundID    string `json:"refundId"`
	ChargeKey   string `json:"chargeKey"`
}

// reply is what a call is answered with.
type reply struct {
	status int
	fields map[string]string
}

var (
	deadKey = reply{http.StatusPaymentRequired, map[string]string{"outcome": "refused", "code": "undone"}}
	decline = reply{http.StatusPaymentRequired, map[string]string{"outcome": "refused", "code": "declined"}}
	otherBy = reply{http.StatusUnprocessableEntity, nil}
)

func newLedger() *ledger {
	return &ledger{keys: map[string]*entry{}, steps: map[string][]*entry{}, undos: map[string][]byte{}, killed: map[string]bool{}, shut: map[string]bool{},
		refunds: map[string]*entry{}}
}

// complain notes what the documents say does not happen. The caller holds the lock.
func (l *ledger) complain(format string, arguments ...any) {
	l.complains = append(l.complains, fmt.Sprintf(format, arguments...))
}

func (q *request) step() string  { return q.OrderID + "/" + q.Step }
func (q *request) place() string { return fmt.Sprintf("%s/%s/%d", q.OrderID, q.Step, q.Generation) }

// sameKey complains of a second key for one step of one generation. The caller holds the lock.
func (l *ledger) sameKey(e *entry) {
	for _, other := range l.steps[e.ask.step()] {
		if other != e && other.ask.Generation == e.ask.Generation {
			l.complain("order %s: %s of generation %d came with two keys", e.ask.OrderID, e.ask.Step, e.ask.Generation)
		}
	}
}

// do is the effect, once per key. A key that is new is refused, or taken on to be decided later, as the caller says.
func (l *ledger) do(key string, body []byte, ask *request, fate string) reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.keys[key]
	switch {
	case e == nil:
		e = &entry{key: key, body: body, ask: *ask}
		l.keys[key] = e
		l.order = append(l.order, e)
		l.steps[ask.step()] = append(l.steps[ask.step()], e)
		l.sameKey(e)
		switch {
		case l.killed[key] || l.shut[ask.place()]:
			e.state = "undone"
		case fate == "refuse":
			e.state = "refused"
		case fate == "later":
			e.state = "pending"
		default:
			l.happen(e)
		}
	case !bytes.Equal(e.body, body):
		l.complain("order %s: key %s came with two bodies: %s and %s", ask.OrderID, key, e.body, body)
		return otherBy
	}
	e.sent++
	return e.reply()
}

// happen is the effect itself. The caller holds the lock.
func (l *ledger) happen(e *entry) {
	l.effects++
	e.state, e.happened = "live", e.happened+1
	e.reference = fmt.Sprintf("%.2s_%d", e.ask.Step, l.effects)
	for _, other := range l.steps[e.ask.step()] {
		if other != e && other.state == "live" {
			l.complain("order %s: %s of generation %d while that of generation %d stands", e.ask.OrderID, e.ask.Step, e.ask.Generation, other.ask.Generation)
		}
	}
}

func (e *entry) reply() reply {
	switch e.state {
	case "live":
		return reply{http.StatusOK, map[string]string{"outcome": "done", "reference": e.reference}}
	case "pending":
		return reply{http.StatusAccepted, nil}
	case "refused":
		return decline
	default:
		return deadKey
	}
}

// decide ends the pending state of a key, and returns what the callback says. It is empty when the key was undone meanwhile.
func (l *ledger) decide(key string, refuse bool) map[string]string {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.keys[key]
	if e.state == "pending" {
		if refuse {
			e.state = "refused"
		} else {
			l.happen(e)
		}
	}
	switch e.state {
	case "live":
		return map[string]string{"outcome": "done", "reference": e.reference}
	case "refused":
		return map[string]string{"outcome": "refused", "code": "declined"}
	default:
		return nil
	}
}

// undo takes back what a reference names, or else what is under a key, and lets the key die.
func (l *ledger) undo(key string, body []byte, ask *request) reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	if before, seen := l.undos[key]; seen && !bytes.Equal(before, body) {
		l.complain("order %s: undo %s came with two bodies: %s and %s", ask.OrderID, key, before, body)
		return otherBy
	}
	l.undos[key] = body
	l.killed[ask.UndoKey] = true
	e := l.keys[ask.UndoKey]
	if e == nil {
		if ask.Reference != "" {
			l.complain("order %s: undo by %q of a key that was never sent", ask.OrderID, ask.Reference)
			return reply{http.StatusNotFound, nil}
		}
		return reply{http.StatusOK, nil}
	}
	if ask.Reference != "" && ask.Reference != e.reference || ask.OrderID != e.ask.OrderID || ask.Step != e.ask.Step {
		l.complain("order %s: undo by %q of what is %q of %s", ask.OrderID, ask.Reference, e.reference, e.ask.OrderID)
		return reply{http.StatusNotFound, nil}
	}
	if ask.Step == "confirm" {
		l.complain("order %s: undo of a confirmation", ask.OrderID)
	}
	if e.state != "refused" {
		e.state = "undone"
	}
	return reply{http.StatusOK, nil}
}

// look answers a look-up.
func (l *ledger) look(key string) reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.keys[key]
	if e != nil && e.ask.Step == refundStep && e.state == "pending" { // a refund has no callback
		l.giveBack(e)
	}
	switch {
	case e == nil && l.killed[key]:
		return reply{http.StatusOK, map[string]string{"state": "undone"}}
	case e == nil:
		return reply{http.StatusOK, map[string]string{"state": "unseen"}}
	case e.state == "live":
		return reply{http.StatusOK, map[string]string{"state": "done", "reference": e.reference}}
	default:
		return reply{http.StatusOK, map[string]string{"state": e.state}}
	}
}

// settle is a person who looks at the provider to say what became of a step. What is not done is closed, so that it never
// will be.
func (l *ledger) settle(orderID, step string, generation int) (outcome, reference string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut[fmt.Sprintf("%s/%s/%d", orderID, step, generation)] = true
	for _, e := range l.steps[orderID+"/"+step] {
		if e.ask.Generation != generation {
			continue
		}
		if e.state == "live" {
			return "done", e.reference
		}
		if e.state == "pending" {
			e.state = "undone"
		}
	}
	return "refused", ""
}

// takeBack is a person who undoes a step by hand.
func (l *ledger) takeBack(orderID, step string, generation int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.shut[fmt.Sprintf("%s/%s/%d", orderID, step, generation)] = true
	for _, e := range l.steps[orderID+"/"+step] {
		if e.ask.Generation == generation && e.state != "refused" {
			e.state = "undone"
		}
	}
}

// refundStep is what the provider's books call a refund.
const refundStep = "refund"

func (q *request) refund() string { return q.OrderID + "/" + q.RefundID }

// refund gives money of a charge back, once per key, or not at all, or not yet, as the caller says.
func (l *ledger) refund(key string, body []byte, ask *request, fate string) reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.keys[key]
	switch {
	case e == nil:
		e = &entry{key: key, body: body, ask: *ask}
		e.ask.Step = refundStep
		if l.refunds[ask.refund()] != nil {
			l.complain("order %s: refund %s came with two keys", ask.OrderID, ask.RefundID)
		}
		l.keys[key], l.refunds[ask.refund()] = e, e
		l.order = append(l.order, e)
		switch fate {
		case "refuse":
			e.state = "refused"
		case "later":
			e.state = "pending"
		default:
			l.giveBack(e)
		}
	case !bytes.Equal(e.body, body):
		l.complain("order %s: key %s came with two bodies: %s and %s", ask.OrderID, key, e.body, body)
		return otherBy
	case e.state == "pending":
		l.giveBack(e)
	}
	e.sent++
	return e.reply()
}

// giveBack is the effect. It complains of a charge that does not stand, or is given back more than whole. The caller
// holds the lock.
func (l *ledger) giveBack(e *entry) {
	charge := l.keys[e.ask.ChargeKey]
	if charge == nil || charge.state != "live" || charge.ask.OrderID != e.ask.OrderID || e.ask.Reference != "" && e.ask.Reference != charge.reference {
		l.complain("order %s: refund %s of a charge that does not stand", e.ask.OrderID, e.ask.RefundID)
		e.state = "refused"
		return
	}
	l.effects++
	e.state, e.happened, e.reference = "live", e.happened+1, fmt.Sprintf("re_%d", l.effects)
	left, _ := new(big.Rat).SetString(charge.ask.Amount)
	for _, other := range l.order {
		if other.ask.Step == refundStep && other.state == "live" && other.ask.ChargeKey == e.ask.ChargeKey {
			amount, _ := new(big.Rat).SetString(other.ask.Amount)
			left.Sub(left, amount)
		}
	}
	if left.Sign() < 0 {
		l.complain("order %s: more is refunded than was charged", e.ask.OrderID)
	}
}

// refunded is a refund as the books have it.
type refunded struct {
	OrderID, RequestID, State string
	Number                    int
}

// readRefunds reads those that a provider makes.
func (f *field) readRefunds() []refunded {
	return rows[refunded](f, `SELECT order_id, request_id, state, refund FROM books.refunds WHERE refund > 0 AND executor <> 'ledger'`)
}

// checkRefunds: what the books call done the provider has given back, and nothing else.
func (f *field) checkRefunds() (broken []string) {
	p, known := f.provider, map[string]bool{}
	list := f.readRefunds()
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range list {
		id := r.OrderID + "/" + r.RequestID
		e := p.refunds[id]
		given := e != nil && e.state == "live"
		if known[id] = true; given != (r.State == "done") {
			broken = append(broken, fmt.Sprintf("order %s: refund %d is %s, and the provider has given it back: %v", r.OrderID, r.Number, r.State, given))
		}
	}
	for id, e := range p.refunds {
		if e.state == "live" && !known[id] {
			broken = append(broken, fmt.Sprintf("order %s: the provider has given back %s, and the books have no such refund", e.ask.OrderID, e.ask.RefundID))
		}
	}
	return broken
}

// settleRefunds lets people settle refunds that were refused after a call without an answer, by a provider without look-ups.
func (f *field) settleRefunds(ctx context.Context) {
	for _, r := range f.readRefunds() {
		f.provider.mu.Lock()
		e := f.provider.refunds[r.OrderID+"/"+r.RequestID]
		refused := e != nil && e.state == "refused"
		f.provider.mu.Unlock()
		if refused && r.State == "in_doubt" {
			f.people.settleRefund(ctx, &r)
		}
	}
}

func (p *people) settleRefund(ctx context.Context, r *refunded) {
	p.asked++
	body, err := json.Marshal(map[string]any{"onBehalfOf": "campaign", "reason": "seen at the provider", "requestId": fmt.Sprintf("request-%d", p.asked),
		"step": "charge", "outcome": "refused", "refund": r.Number})
	if err != nil {
		panic(err)
	}
	p.repeat(ctx, call{method: "POST", path: "/api/orders/" + r.OrderID + "/step-result", body: body})
}
