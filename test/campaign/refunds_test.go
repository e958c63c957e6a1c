package campaign

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/big"
)

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

// giveBack is the effect. It complains of a charge that does not stand, or is given back more than whole. The caller holds the lock.
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

// settleRefunds lets people settle what a provider that can't be asked has refused after a call of which nobody heard.
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
