package campaign

import (
	"bytes"
	"fmt"
	"net/http"
	"sync"
)

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
	if e != nil && e.ask.Step == refundStep && e.state == "pending" { // nobody calls back for a refund
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
