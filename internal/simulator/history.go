package simulator

import (
	"context"
	"slices"
	"time"
)

// Request is an entry in the log of requests, which is in memory and bounded.
type Request struct {
	Number     int       `json:"number"`
	At         time.Time `json:"at"`
	Key        string    `json:"key"`
	UndoKey    string    `json:"undoKey,omitempty"` // the key of the do that is to be undone
	TimesSent  int       `json:"timesSent"`         // requests with this key so far
	OrderID    string    `json:"orderId"`
	Step       string    `json:"step"`
	Operation  string    `json:"operation"` // do, undo, or of Stripe's API create, confirm, capture, cancel, refund, read
	Generation int32     `json:"generation"`
	Fence      int64     `json:"fence"` // Fencing-Token; 0: none
	Fault      Fault     `json:"fault,omitempty"`
	// Outcome is empty at first, running while the key is in progress, and then done, pending, refused, voided, refunded,
	// released, in_progress, idempotency_mismatch, error, not_done, unknown (the file can't be written) or none (nothing
	// was done or answered).
	Outcome  string `json:"outcome,omitempty"`
	Replayed bool   `json:"replayed,omitempty"` // by an earlier request with this key
	Answered bool   `json:"answered"`           // completely; false until decided
}

// keep is how many requests the log keeps at least.
const keep = 20_000

type history struct {
	log     []*Request
	changed chan struct{} // closed and replaced with every change
}

func newHistory() history { return history{changed: make(chan struct{})} }

func (h *history) change() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// arrive counts a request, logs it and picks its fault.
func (s *Simulator) arrive(q *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.counts.requests++
	s.requests[q.key]++
	sent := s.requests[q.key]
	if sent > 1 {
		s.counts.repeated++
	}
	number := sent
	if q.counted != "" && q.counted != q.key {
		s.requests[q.counted]++
		number = s.requests[q.counted]
	}
	q.rule = s.plan.pick(q, number)
	q.logged = &Request{
		Number: s.counts.requests, At: time.Now().UTC(), Key: q.key, UndoKey: q.body.UndoKey, TimesSent: sent,
		OrderID: q.body.OrderID, Step: q.step, Operation: q.operation, Generation: q.body.Generation,
		Fence: q.fence, Fault: q.rule.Fault,
	}
	if len(s.history.log) == 2*keep {
		s.history.log = slices.Clone(s.history.log[keep:])
	}
	s.history.log = append(s.history.log, q.logged)
	s.history.change()
}

// leave logs the outcome of a request, before it is answered.
func (s *Simulator) leave(q *request, a reply) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q.logged.Outcome, q.logged.Replayed, q.logged.Answered = a.outcome, a.replayed, a.delivery == whole
	s.history.change()
}

// Requests returns the latest requests of an order, or of all orders if orderID is empty, from at least 20,000 of all.
func (s *Simulator) Requests(orderID string) []Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []Request{}
	for _, r := range s.history.log {
		if orderID == "" || r.OrderID == orderID {
			all = append(all, *r)
		}
	}
	return all
}

// Await returns the first request that matches, now or later. It returns the error of ctx when that ends first.
func (s *Simulator) Await(ctx context.Context, match func(Request) bool) (Request, error) {
	for {
		s.mu.Lock()
		changed := s.history.changed
		at := slices.IndexFunc(s.history.log, func(r *Request) bool { return match(*r) })
		if at >= 0 {
			defer s.mu.Unlock()
			return *s.history.log[at], nil
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Request{}, ctx.Err()
		}
	}
}
