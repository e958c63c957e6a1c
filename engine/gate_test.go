package engine_test

import (
	"errors"
	"testing"
	"time"

	"pawl/engine"
	"pawl/internal/orders"
)

const allAtTheSimulator = `
charge: {executor: simulator, url: SIM}
reserve: {executor: simulator, url: SIM}
confirm: {executor: simulator, url: SIM}
`

func TestScheduledStart(t *testing.T) {
	t.Parallel()
	for name, policy := range map[string]string{"without a policy": "", "with one": allAtTheSimulator} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1, quick)
			if policy != "" {
				s.use(t, policy)
			}
			in := request("much later")
			in.StartAt = time.Now().Add(time.Hour)
			limit := within(t, patience)
			if first, err := s.engine.Process(limit, in); err != nil || first.Hold == nil || *first.Hold != "scheduled" || limit.Err() != nil {
				t.Fatalf("told of a start that its caller can't wait for: %v, %s, time is up: %v", err, brief(first), limit.Err())
			}
			if len(s.calls("much later")) > 0 {
				t.Error("called before its time")
			}
			in = request("later")
			in.StartAt = time.Now().Add(time.Second)
			if order := s.process(t, in); order.Status != "completed" {
				t.Errorf("%s", brief(order))
			}
			early := value[bool](t, s.Pool, `SELECT bool_or(t.at < o.start_at) FROM transitions AS t JOIN orders AS o USING (order_no)
				WHERE t.to_status <> 'pending'`)
			if early {
				t.Error("it started too early")
			}
		})
	}
	t.Run("in the past is at once", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		in := request("past")
		in.StartAt = time.Now().Add(-time.Hour)
		if order := s.process(t, in); order.Status != "completed" {
			t.Errorf("%s", brief(order))
		}
	})
}

func TestApprovalThatNobodyGives(t *testing.T) {
	t.Parallel()
	for onTimeout, want := range map[string]string{"cancel": "canceled", "approve": "completed"} {
		t.Run(onTimeout, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, 1, quick)
			s.use(t, allAtTheSimulator+`
approval: [{items: [widget], amountOver: 50, currency: USD, timeout: 1h, onTimeout: `+onTimeout+`}]`)
			order := s.process(t, request("asks")) // whoever waits for a person is told at once
			if order.Hold == nil || *order.Hold != "approval" || order.ApprovalUntil == nil {
				t.Fatalf("%s", brief(order))
			}
			if len(s.calls("asks")) > 0 {
				t.Error("called before anybody approved")
			}
			s.exec(t, `UPDATE orders SET approval_until = now(), due_at = now() WHERE order_id = 'asks'`)
			order = s.until(t, "asks", want)
			switch {
			case want == "canceled" && (failureCode(order) != "approval_timed_out" || len(s.calls("asks")) > 0):
				t.Errorf("%s, %q", failureCode(order), s.calls("asks"))
			case want == "completed" && (order.ApprovedAt == nil || failureCode(order) != ""):
				t.Errorf("%s", brief(order))
			}
		})
	}
	t.Run("an order that no rule fits is not held", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, `approval: [{amountOver: 100, currency: USD}]`)
		if order := s.process(t, request("small")); order.Status != "completed" {
			t.Errorf("%s", brief(order))
		}
	})
	t.Run("an order that is scheduled is asked for at its start", func(t *testing.T) {
		t.Parallel()
		s := openShop(t, 1, quick)
		s.use(t, `approval: [{items: [widget]}]`)
		in := request("later")
		in.StartAt = time.Now().Add(time.Hour)
		s.admit(t, in)
		if o := s.until(t, "later", "scheduled"); o.ApprovalUntil != nil {
			t.Errorf("%s", brief(o))
		}
		s.startNow(t, "later")
		if o := s.until(t, "later", "approval"); o.DueAt != nil {
			t.Errorf("without a time-out it is due at %s", o.DueAt)
		}
	})
}

// Whoever processes waits for what comes within his time, and for nothing else.
func TestHowLongACallerWaits(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, `
charge: {executor: http, url: "http://127.0.0.1:1/c", undoUrl: "http://127.0.0.1:1/u", retry: {initial: 20ms, cap: 20ms}, breaker: {failures: 1000000}}
concurrency: {by: concurrencyKey, limit: 1}`)
	t.Run("for a retry that comes in time", func(t *testing.T) {
		t.Parallel()
		s.waitsInVain(t, request("retries"), func(o *orders.Order) bool { return o.Status == "charging" && o.Calls != nil })
	})
	t.Run("for its permit", func(t *testing.T) {
		t.Parallel()
		in := request("first")
		in.ConcurrencyKey = "k"
		s.admit(t, in)
		in.OrderID = "second"
		s.waitsInVain(t, in, func(o *orders.Order) bool { return o.Hold != nil && *o.Hold == "queued" })
	})
	t.Run("not for a person", func(t *testing.T) {
		t.Parallel()
		s.admit(t, request("held"))
		eventually(t, "it can be held", func() bool {
			return value[int64](t, s.Pool, `WITH held AS (UPDATE orders SET hold = 'attention', hold_reason = 'look', due_at = NULL, owner = NULL, seq = seq + 1
				WHERE order_id = 'held' AND hold = 'retry' RETURNING 1) SELECT count(*) FROM held`) == 1
		})
		limit := within(t, patience)
		order, err := s.engine.Process(limit, request("held"))
		if err != nil || limit.Err() != nil || order.Hold == nil || *order.Hold != "attention" {
			t.Errorf("%v, %s, time is up: %v", err, brief(order), limit.Err())
		}
		s.exec(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb)
			SELECT order_no, seq, status, status, fence, 'hold' FROM orders WHERE order_id = 'held'`)
	})
}

// waitsInVain gives a caller more and more time, until the order gets where it stays within it. Each time the caller is
// to wait until the time is up or no further try would come in time, or is told that nobody knows of the order yet.
func (s *shop) waitsInVain(t *testing.T, in engine.Input, stays func(*orders.Order) bool) {
	t.Helper()
	for limit := 300 * time.Millisecond; ; limit *= 2 {
		began := time.Now()
		order, err := s.engine.Process(within(t, limit), in)
		took := time.Since(began)
		switch {
		case err == nil && took < limit-50*time.Millisecond:
			t.Fatalf("of %s waited %s: %s", limit, took, brief(order))
		case err == nil && stays(&order):
			return
		case err != nil && !errors.Is(err, orders.ErrUnavailable), limit > patience:
			t.Fatalf("after %s: %v, %s", took, err, brief(order))
		}
	}
}

func TestCustomerIsPartOfTheInput(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, allAtTheSimulator)
	in := request("whose")
	in.CustomerID, in.PaymentMethod, in.ConcurrencyKey = "me", "pm_secret", "k"
	s.process(t, in)
	same := request("whose")
	same.Metadata, same.ConcurrencyKey = []byte(`{"a":"other"}`), "other" // the policy limits nothing by the key
	if order := s.process(t, same); order.Status != "completed" {
		t.Errorf("%s", brief(order))
	}
	other := in
	other.StartAt, other.CompleteBy, other.ReservationTTL = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour), time.Minute
	_, err := s.engine.Process(t.Context(), other)
	if d := wantConflict(t, err).Differences; len(d) != 3 || d[0].Pointer != "/startAt" || d[1].Pointer != "/completeBy" || d[2].Pointer != "/reservationTtl" {
		t.Errorf("%+v", d)
	}
	other = in
	other.CustomerID, other.PaymentMethod = "you", "pm_other"
	_, err = s.engine.Process(t.Context(), other)
	conflict := wantConflict(t, err)
	want := []orders.Difference{{Pointer: "/customerId", Stored: "me", Sent: "you"}, {Pointer: "/paymentMethod", Stored: "(another)", Sent: "(as sent)"}}
	if len(conflict.Differences) != 2 || conflict.Differences[0] != want[0] || conflict.Differences[1] != want[1] {
		t.Errorf("%+v", conflict.Differences)
	}
}

func wantConflict(t *testing.T, err error) *orders.Conflict {
	t.Helper()
	var conflict *orders.Conflict
	if !errors.As(err, &conflict) {
		t.Fatalf("no conflict: %v", err)
	}
	return conflict
}
