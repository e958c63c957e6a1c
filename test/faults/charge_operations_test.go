package faults

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/internal/simulator"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// chargeOperation is a request for a refund, a capture or a void.
type chargeOperation struct {
	path, amount string // without an amount: all that is left
	final        bool
	requestID    string
	prefer       string
}

func (c *chargeOperation) body() string {
	text := fmt.Sprintf(`"reason":"test","requestId":%q`, c.requestID)
	if c.amount != "" {
		text += fmt.Sprintf(`,"amount":%q`, c.amount)
	}
	if c.final {
		text += `,"final":true`
	}
	return "{" + text + "}"
}

func (s *shop) operate(ctx context.Context, url, id string, c *chargeOperation) *answer {
	return s.client.send(ctx, request{method: http.MethodPost, url: url + "/api/orders/" + id + "/" + c.path, body: c.body(), prefer: c.prefer})
}

// killedOperations are what a process ends in, with the executors of the charge.
var killedOperations = []struct {
	name      string
	executors []string
	chargeOperation
	called string // the provider's name for it, and Stripe's
	stripe string
	books  string
}{
	{"refund", []string{looking, blind},
		chargeOperation{path: "refunds", amount: "0.50", requestID: "ticket"}, "refund", "refund", "refund 1 done 0.50 ticket"},
	{"capture", []string{blindParts, lookingParts, stripeParts},
		chargeOperation{path: "captures", amount: "0.50", requestID: "ticket"}, "capture", "capture", "capture 1 done 0.50 ticket"},
	{"final capture", []string{stripeParts, blindParts, lookingParts},
		chargeOperation{path: "captures", amount: "0.50", final: true, requestID: "ticket"}, "capture", "capture", "capture 1 done 0.50 ticket"},
	{"void", []string{lookingParts, stripeParts, blindParts},
		chargeOperation{path: "void", requestID: "ticket"}, "void", "cancel", "void 1 done all ticket"},
}

// operationMoments are where a process ends that was asked for a charge operation. Between its last two statements it
// calls the provider.
var operationMoments = []struct {
	statement string
	after     bool
}{
	{"ChargeOperationAsk", false}, {"ChargeOperationAsk", true}, {"ChargeOperationsClaim", true},
	{"ChargeOperationBegin", true}, {"ChargeOperationFinish", false}, {"ChargeOperationFinish", true},
}

// TestKilledInAChargeOperation ends the program at every statement of a refund, a capture and a void, and in its call.
// The caller asks again under the same request id, as callers do who were not answered: another replica has done it, or
// does it, once. The statements are the same for all kinds: a usual run comes to each moment once.
func TestKilledInAChargeOperation(t *testing.T) {
	build(t)
	t.Parallel()
	names := map[string]string{looking: "looked up", lookingParts: "looked up", blind: "sent again", blindParts: "sent again",
		stripeParts: "at Stripe"}
	for k := range killedOperations {
		kind := &killedOperations[k]
		for e, executor := range kind.executors {
			for i, m := range operationMoments {
				if !repeated() && (i%len(killedOperations) != k || e != i/len(killedOperations)) {
					continue
				}
				when := map[bool]string{false: "before", true: "after"}[m.after]
				t.Run(fmt.Sprintf("%s, %s, %s %s", kind.name, names[executor], when, m.statement), func(t *testing.T) {
					t.Parallel()
					s := openShop(t, executor, callLimit)
					p := dbtest.NewProxy(t, s.database.URL)
					victim := s.sellOne(p.URL)
					s.endAt(p, victim, m.statement, m.after)
					s.operateAfter(victim, &kind.chargeOperation, kind.books)
				})
			}
			if !repeated() && e > 0 {
				continue
			}
			t.Run(kind.name+", "+names[executor]+", in the call", func(t *testing.T) {
				t.Parallel()
				s := openShop(t, executor, 2*callLimit)
				victim := s.sellOne(s.database.URL)
				called := map[bool]string{false: kind.called, true: kind.stripe}[executor == stripeParts]
				s.faults(simulator.Rule{Fault: simulator.TimeoutAfter, Step: "charge", Operation: called, Times: 1})
				go s.endInCall(victim, called)
				s.operateAfter(victim, &kind.chargeOperation, kind.books)
			})
		}
	}
}

// endInCall ends a process when the provider has done what it was called for.
func (s *shop) endInCall(victim *process, operation string) {
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	_, err := s.provider.Await(ctx, func(r simulator.Request) bool {
		return r.Operation == operation && slices.Contains([]string{"done", "voided"}, r.Outcome)
	})
	assert.True(s.t, err == nil, err)
	victim.kill()
}

// sellOne starts a replica that reaches the database at an address, and has it complete the order "one".
func (s *shop) sellOne(databaseURL string) *process {
	s.t.Helper()
	r := s.openAt(databaseURL, 1)
	s.order("one")
	s.until("one", "completed", "")
	return r.all[0]
}

// endAt ends a process before the next statement of a name, or after it was committed.
func (s *shop) endAt(p *dbtest.Proxy, victim *process, statement string, after bool) {
	var asked atomic.Bool
	p.OnLost(victim.kill)
	p.On(func(now string) dbtest.Fate {
		asked.CompareAndSwap(false, now == "ChargeOperationAsk") // claims come all the time, and before it they find nothing
		switch {
		case now != statement || !asked.Load():
			return dbtest.Passes
		case after:
			return dbtest.LoseReply
		}
		return dbtest.LoseRequest
	})
}

// operateAfter asks for an operation of the order "one", and again when the process that was asked has ended.
func (s *shop) operateAfter(victim *process, c *chargeOperation, want string) {
	s.t.Helper()
	for url := s.any(); victim.running(); { // a lost reply does not show that the process has ended
		s.operate(s.t.Context(), url, "one", c)
		<-time.After(pace)
	}
	a := s.operate(s.t.Context(), s.open(1).addresses()[0], "one", c)
	assert.Equal(s.t, a.state(), "completed", "the caller comes again and gets", a)
	const one = `SELECT format('%s %s %s %s %s', f.kind, f.number, f.state,
		CASE WHEN f.kind = 'void' THEN 'all' ELSE f.amount::text END, f.request_id) FROM (` + operations + `) AS f`
	if rows := query[string](s.t, s.database.URL, one); len(rows) != 1 || rows[0] != want {
		s.t.Errorf("the books have %q\n%s", rows, s.trace("one"))
	}
	s.proveOperations()
}

// operations are all charge operations that were asked for.
const operations = `SELECT c.order_id, c.kind, c.number, c.state, c.amount, c.voided, c.request_id FROM books.captures AS c
	UNION ALL SELECT r.order_id, 'refund', r.refund, r.state, r.amount, NULL, r.request_id FROM books.refunds AS r WHERE r.refund > 0`

// proveOperations compares what was captured, voided and refunded with the provider's books, order by order, and proves
// that neither is more than it may be.
func (s *shop) proveOperations() {
	s.t.Helper()
	ours := query[string](s.t, s.database.URL, `SELECT format('%s: captured %s, voided %s, refunded %s, operations %s', c.order_id, f.captured, f.voided, f.refunded, f.n)
		|| CASE WHEN c.capture <> 'later' OR f.captured + f.voided <= c.amount AND f.refunded <= f.captured THEN '' ELSE ', which is too much' END
		FROM books.charges AS c CROSS JOIN LATERAL (
			SELECT round(coalesce(sum(f.amount) FILTER (WHERE f.kind = 'capture'), 0), 2) AS captured,
				round(coalesce(sum(CASE f.kind WHEN 'void' THEN f.amount ELSE f.voided END), 0), 2) AS voided,
				round(coalesce(sum(f.amount) FILTER (WHERE f.kind = 'refund'), 0), 2) AS refunded, count(*) AS n
			FROM (`+operations+`) AS f WHERE f.order_id = c.order_id AND f.state = 'done') AS f
		ORDER BY c.order_id COLLATE "C"`)
	var theirs []string
	for _, id := range query[string](s.t, s.database.URL, `SELECT c.order_id FROM books.charges AS c ORDER BY c.order_id COLLATE "C"`) {
		theirs = append(theirs, s.operatedAt(id))
	}
	assert.Equal(s.t, strings.Join(theirs, "\n"), strings.Join(ours, "\n"), "the provider has")
	s.prove()
}

// operatedAt is what the provider has captured, voided and refunded of an order. No request is done twice, under any
// key.
func (s *shop) operatedAt(id string) string {
	s.t.Helper()
	var captured, voided, refunded decimal.Decimal
	done, requests := 0, map[string]bool{}
	for _, e := range s.provider.Books(id) {
		request := e.RefundID + e.CaptureID + e.VoidID
		switch {
		case e.State != simulator.Live:
			continue
		case e.Step == "charge":
			captured, voided = e.Captured, e.Voided
			continue
		case !slices.Contains([]string{"refund", "capture", "void"}, e.Step):
			continue
		case e.Step == "refund":
			var err error
			refunded, err = refunded.Add(decimal.MustParse(e.Amount))
			assert.NoError(s.t, err)
		}
		if done++; e.Effects != 1 || requests[request] && request != "" {
			s.t.Errorf("order %s: %s %s was done %d times\n%s", id, e.Step, request, e.Effects, s.trace(id))
		}
		requests[request] = true
	}
	return fmt.Sprintf("%s: captured %s, voided %s, refunded %s, operations %d", id, captured.Pad(2), voided.Pad(2), refunded.Pad(2), done)
}
