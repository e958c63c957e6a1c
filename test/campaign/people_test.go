package campaign

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// people do what the runbook lets people do: to orders that callers have sent, and to the stock.
type people struct {
	*callers
	provider *provider
	dice     dice
	asked    int
	shelves  []shelf
	doubts   []string // reasons of a hold that nothing in a campaign can lead to
}

// shelf is an item nobody orders, whose stock is set again and again.
type shelf struct{ answered, sent int }

func newPeople(c *callers, p *provider) *people {
	return &people{callers: c, provider: p, dice: newDice(c.seed, 55), shelves: make([]shelf, 2)}
}

// interfere does something now and then until the context ends.
func (p *people) interfere(ctx context.Context) {
	for pause(ctx, p.dice.between(10*time.Millisecond, 120*time.Millisecond)) {
		o := p.any(p.dice)
		if o == nil {
			continue
		}
		a, ok := p.read(ctx, o.id)
		if !ok || len(a.order.AllowedActions) == 0 {
			continue
		}
		if final := a.order.final(); final && !p.dice.chance(20) {
			continue // most orders stay as they are
		}
		p.act(ctx, o.id, &a, a.order.AllowedActions[p.dice.IntN(len(a.order.AllowedActions))])
	}
}

// countShelves sets the stock of shelves until the context ends.
func (p *people) countShelves(ctx context.Context) {
	d := newDice(p.seed, 56)
	for pause(ctx, d.between(10*time.Millisecond, 500*time.Millisecond)) {
		p.count(ctx, d.IntN(len(p.shelves)))
	}
}

// count sets the stock of a shelf to one more than the last time, until it is answered.
func (p *people) count(ctx context.Context, i int) {
	s := &p.shelves[i]
	s.sent++
	a := p.setStock(ctx, fmt.Sprintf("shelf-%d", i), s.sent)
	a.asked = "stock"
	if a.status == http.StatusOK {
		s.answered = s.sent
	}
	p.record(&a, nil)
}

// setStock sets the stock of an item that nobody else sets, as it is now.
func (p *people) setStock(ctx context.Context, item string, onHand int) answer {
	set := call{method: http.MethodPut, path: "/api/inventory/" + item, headers: []string{"If-None-Match", "*"},
		body: fmt.Appendf(nil, `{"onHand":%d,"onBehalfOf":"campaign","requestId":"set to %d"}`, onHand, onHand)}
	if seen := p.repeat(ctx, call{method: http.MethodGet, path: set.path}); seen.status == http.StatusOK {
		set.headers = []string{"If-Match", seen.etag}
	}
	return p.repeat(ctx, set)
}

// read looks at an order.
func (p *people) read(ctx context.Context, orderID string) (answer, bool) {
	a := p.repeat(ctx, call{method: http.MethodGet, path: "/api/orders/" + orderID})
	a.asked, a.orderID = "read", orderID
	p.doubt(orderID, &a)
	p.record(&a, nil)
	return a, a.status == http.StatusOK
}

// doubt notes a hold for the reason that a key may be forgotten: keys are kept for a day, and campaigns take minutes.
func (p *people) doubt(orderID string, a *answer) {
	if a.order.Hold == "attention" && strings.HasPrefix(a.order.HoldReason, "outcome_unknown") {
		p.doubts = append(p.doubts, fmt.Sprintf("order %s: held as %s minutes after its first call", orderID, a.order.HoldReason))
	}
}

// act asks a verb of an order that was read.
func (p *people) act(ctx context.Context, orderID string, seen *answer, verb string) answer {
	fields := map[string]string{"onBehalfOf": "campaign", "reason": "a campaign"}
	request := call{method: http.MethodPost, path: "/api/orders/" + orderID + "/" + verb}
	if verb == "step-result" {
		request.headers = []string{"If-Match", seen.etag}
		if !p.lookUp(orderID, &seen.order, fields) {
			return answer{}
		}
	}
	if verb == "refund" {
		request.path += "s"
		if p.dice.chance(70) {
			fields["amount"] = "0.50"
		}
	}
	p.asked++
	fields["requestId"] = fmt.Sprintf("request-%d", p.asked)
	var err error
	if request.body, err = json.Marshal(fields); err != nil {
		panic(err)
	}
	a := p.repeat(ctx, request)
	a.asked, a.orderID, a.requestID = verb, orderID, fields["requestId"]
	p.record(&a, nil)
	return a
}

// lookUp finds out at the provider what became of the step that an order is at, and says so in the fields of a step-result.
func (p *people) lookUp(orderID string, seen *shown, fields map[string]string) bool {
	switch seen.Status {
	case "charging", "reserving", "confirming":
		step := map[string]string{"charging": "charge", "reserving": "reserve", "confirming": "confirm"}[seen.Status]
		outcome, reference := p.provider.settle(orderID, step, seen.Generation)
		fields["step"], fields["outcome"] = step, outcome
		if reference != "" {
			fields["reference"] = reference
		}
	case "releasing", "refunding":
		step := map[string]string{"releasing": "reserve", "refunding": "charge"}[seen.Status]
		p.provider.takeBack(orderID, step, seen.Generation)
		fields["step"], fields["outcome"] = step, "done"
	default:
		return false
	}
	return true
}

// repeat sends a request, with the same name, until it is answered for good.
func (p *people) repeat(ctx context.Context, c call) (a answer) {
	c.headers = append(c.headers, "Prefer", "respond-async")
	for d := newDice(p.seed, uint64(time.Now().UnixNano())); ; {
		urls := p.addresses()
		a = exchange(ctx, p.client, urls[d.IntN(len(urls))], c)
		if a.settled() || !pause(ctx, max(a.retryAfter, 50*time.Millisecond)) {
			return a
		}
		unanswered := a
		unanswered.asked = "people"
		p.record(&unanswered, nil)
	}
}
