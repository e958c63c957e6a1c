package engine_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"pawl/internal/orders"
)

// A request is still on its way when the look-up says that the key was not seen, and those that follow are turned away. The first one
// arrives; a day later the provider has forgotten the key. To send it again would give the money back twice.
func TestRefundNotSeenIsStillInDoubt(t *testing.T) {
	t.Parallel()
	var sent atomic.Int32
	bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet:
			w.WriteHeader(http.StatusNotFound)
		case sent.Add(1) == 1:
			w.WriteHeader(http.StatusServiceUnavailable) // a gateway gives up on it
		default:
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	t.Cleanup(bank.Close)
	s := openShop(t, 1, quick)
	s.sold(t, fmt.Sprintf("charge: {executor: http, url: SIM/charge, undoUrl: SIM/charge/undo, refundUrl: %q, lookupUrl: %q}", bank.URL, bank.URL))
	s.refundAsync(t)
	s.untilRefunds(t, "1 in_doubt")
	s.exec(t, `UPDATE refunds SET due_at = now()`)
	eventually(t, "sent again", func() bool { return sent.Load() == 2 })
	eventually(t, "answered", func() bool {
		return value[bool](t, s.Pool, `SELECT coalesce(code = 'too_many_requests', false) FROM refunds`)
	})
	s.untilRefunds(t, "1 in_doubt")
	if age := value[time.Duration](t, s.Pool, `SELECT r.sent_at - (SELECT min(started_at) FROM step_calls WHERE operation = 'refund') FROM refunds r`); age > 0 {
		t.Errorf("the age of the key counts from %s after it was sent", age)
	}
	for _, state := range []string{orders.RefundInDoubt, orders.RefundPending} { // the second: the replica died before it sent it again
		s.exec(t, `UPDATE refunds SET sent_at = now() - interval '1 day', due_at = now(), code = NULL, state = $1`, state)
		eventually(t, "nobody knows", func() bool {
			return value[bool](t, s.Pool, `SELECT coalesce(code = 'outcome_unknown', false) FROM refunds`)
		})
		s.untilRefunds(t, "1 in_doubt")
	}
	if sent.Load() != 2 {
		t.Errorf("sent %d times", sent.Load())
	}
}
