package engine_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// dump is every row of every table and view, as text.
func (b *bundle) dump(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, table := range column[string](t, b.Pool, `SELECT format('%s.%I', c.relnamespace::regnamespace, c.relname) FROM pg_class AS c
		WHERE c.relnamespace::regnamespace::text IN ('pawl', 'books') AND c.relkind IN ('r', 'v') ORDER BY 1`) {
		for _, row := range column[string](t, b.Pool, `SELECT r::text FROM `+table+` AS r`) {
			fmt.Fprintln(&all, table, row)
		}
	}
	return all.String()
}

// person has orders in every state that has an end, and texts about them wherever there are some.
type person struct {
	*shop
	name string // in every text and id about the person, except for the ids of orders
}

func (p *person) input(of string) engine.Input {
	in := request(p.name[:1] + "-" + of)
	in.CustomerID, in.PaymentMethod = "customer/"+p.name, "pm_"+p.name
	in.Metadata = []byte(fmt.Sprintf(`{"email":"%s@shop.example"}`, p.name))
	in.SetKey("token:shop", in.OrderID+" key")
	return in
}

// asks is a request about an order of the person.
func (p *person) asks(of string, verb orders.Verb) engine.Request {
	return engine.Request{OrderID: p.name[:1] + "-" + of, Verb: verb, Actor: "ann", Reason: p.name + " has called", RequestID: of + " " + string(verb)}
}

// kept is a stock change for the person.
func (p *person) kept() engine.StockChange {
	return engine.StockChange{Item: "cup", Kind: engine.StockAdjustment, Units: 1, Actor: "ann", Reason: "kept for customer/" + p.name,
		OnBehalfOf: "customer/" + p.name, RequestID: "kept for " + p.name[:1]}
}

// buys makes the orders and returns their inputs, with the statuses that they end with.
func (p *person) buys(t *testing.T) (inputs []engine.Input, ends []string) {
	t.Helper()
	says := func(step, answer string) {
		p.provider.says(step + "/do: " + strings.ReplaceAll(answer, "NAME", p.name))
	}
	says("charge", `200 {"reference":"ch of `+p.name[:1]+`","data":{"for":"NAME"}}`)
	says("reserve", `200 {"reference":"shelf of customer/NAME","data":{"for":"NAME"}}`)
	says("confirm", `200 {"reference":"parcel of customer/NAME","data":{"for":"NAME"}}`)
	sold := p.process(t, p.input("sold"))
	refund := p.asks("sold", orders.Refund)
	refund.ChargeOperation, refund.OnBehalfOf = &engine.ChargeOperation{Amount: new(decimal.MustParse("40"))}, "customer/"+p.name
	p.do(t, refund)
	p.do(t, engine.Request{OrderID: sold.OrderID, Verb: "dispute_opened", Actor: "ann", RequestID: "d", Reason: p.name + " says so",
		Dispute: &engine.Dispute{Reference: "dp_1", State: "opened", Amount: decimal.MustParse("1")}})

	says("charge", `402 {"code":"declined","detail":"card of NAME"}`)
	p.process(t, p.input("declined"))
	p.process(t, p.input("retried"))
	says("charge", "done")
	retry := p.asks("retried", orders.Retry)
	retry.PaymentMethod = "pm_other_" + p.name
	p.do(t, retry)
	says("charge", `202 {"reference":"r","action":{"url":"https://bank.example/NAME"}}`)
	p.admit(t, p.input("canceled"))
	p.until(t, p.name[:1]+"-canceled", "callback")
	settle := p.asks("canceled", orders.StepResult)
	settle.Settle = &engine.Settled{Step: "charge", Outcome: engine.SettledRefused, Code: "seen", Detail: p.name + " did not pay"}
	p.do(t, settle)
	says("charge", "done")

	p.exec(t, `INSERT INTO late_undos (order_no, generation, step, reason, detail, finished_at, code)
		SELECT order_no, 0, 'reserve', $2, $2, now(), 'done' FROM orders WHERE order_id = $1`, sold.OrderID, "for "+p.name)
	p.exec(t, `INSERT INTO webhook_endpoints (event_no, created_by, secret, url, last_failure) VALUES (0, 'me', 'whsec_x', 'https://shop.example', $1)`,
		fmt.Sprintf(`{"at":"2026-01-01T00:00:00Z","status":500,"answer":"no %s"}`, p.name))
	for i, state := range []string{"delivered", "exhausted"} {
		p.exec(t, `INSERT INTO webhook_deliveries (endpoint_no, delivery_no, type, event_id, subject, event_no, seq, state, finished_at, attempted_at, log)
			SELECT (SELECT max(endpoint_no) FROM webhook_endpoints), $2, 'order.completed', 'evt', 'order ' || order_no, $2, $2, $3,
				CASE WHEN $3 = 'delivered' THEN now() END, now(), $4 FROM orders WHERE order_id = $1`,
			sold.OrderID, i+1, state, fmt.Sprintf(`[{"status":200},{"status":200,"answer":"thanks, %s"}]`, p.name))
	}
	assert.NoError(t, p.engine.KeepRefusals(t.Context(), &engine.Request{RequestID: "bulk " + p.name[:1], Verb: orders.Cancel, Reason: "as " + p.name + " wants"},
		[]orders.Refusal{{OrderID: sold.OrderID, Code: "not_applicable", Detail: "not of " + p.name}, {OrderID: "other", Code: "not_found"}}))
	assert.NoError(t, assert.Err(p.engine.ChangeStock(t.Context(), p.kept())))
	return []engine.Input{p.input("sold"), p.input("declined"), p.input("retried"), p.input("canceled")},
		[]string{"completed", "failed", "completed", "failed"}
}

// TestErasedCustomer erases a customer and then looks for what the person was called in every row of the database. Another
// customer's rows stay. The books prove the same, late repetitions are answered as before, and no provider is called.
func TestErasedCustomer(t *testing.T) {
	t.Parallel()
	s := openShop(t, 1, quick)
	s.use(t, strings.ReplaceAll(atEndpoint("", "charge"), "undoUrl", "refundUrl: ENDPOINT/charge/refund, undoUrl")+atEndpoint("", "reserve", "confirm")+
		"concurrency: {by: customerId, limit: 4}")
	maria, paul := &person{s, "maria"}, &person{s, "paul"}
	inputs, ends := maria.buys(t)
	paul.buys(t)
	s.provider.says("charge/do: error")
	s.admit(t, maria.input("open"))
	erase := engine.Erasure{CustomerID: "customer/maria", Actor: "token:privacy", Reason: "request 4711", RequestID: "erasure 1"}
	_, err := s.engine.EraseCustomer(t.Context(), erase)
	assert.Equal(t, err, error(&orders.OrdersOpen{OrderIDs: []string{"m-open"}}))
	s.provider.says("charge/do: refused")
	s.until(t, "m-open", "failed")
	inputs, ends = append(inputs, maria.input("open")), append(ends, "failed")

	before := s.dump(t)
	for _, table := range []string{"orders", "transitions", "charges", "reservations", "confirmations", "charge_operations", "disputes", "step_calls", "step_answers",
		"late_undos", "webhook_endpoints", "webhook_deliveries", "bulk_refusals", "stock_movements", "concurrency_keys"} {
		assert.True(t, mentions(before, "pawl."+table, "maria"), table, "had nothing to erase")
	}
	wantOrders, wantMoney := s.totals(t)
	done, err := s.engine.EraseCustomer(t.Context(), erase)
	assert.NoError(t, err)
	after := s.dump(t)
	for line := range strings.Lines(after) {
		assert.True(t, !strings.Contains(strings.ToLower(line), "maria"), "still there", line)
	}
	assert.Equal(t, strings.Count(after, "paul"), strings.Count(before, "paul"), "of the other customer")
	gotOrders, gotMoney := s.totals(t)
	assert.Equal(t, gotOrders, wantOrders)
	assert.Equal(t, gotMoney, wantMoney)
	assert.Equal(t, int(done.Orders), len(inputs))
	for _, part := range []string{`"step": "charge"`, `"step": "reserve"`, `"step": "confirm"`, `"id": "whe_1"`, `"archiveFiles": 0`} {
		assert.Contains(t, done.Sent, part)
	}

	calls := func() int { s.provider.mu.Lock(); defer s.provider.mu.Unlock(); return len(s.provider.calls) }
	made := calls()
	repeat := func() {
		t.Helper()
		for i, in := range inputs {
			assert.Equal(t, string(s.process(t, in).Status), ends[i], in.OrderID)
			in.Amount = decimal.MustParse("1")
			in.Key = nil
			s.conflicts(t, in, "/amount")
		}
	}
	repeat()
	s.refused(t, maria.asks("declined", orders.Retry), orders.RefusedErased)
	assert.Equal(t, calls(), made, "calls")
	again, err := s.engine.EraseCustomer(t.Context(), erase)
	assert.NoError(t, err)
	assert.Equal(t, again, done)
	for field, change := range map[string]func(*engine.Erasure){
		"customer": func(q *engine.Erasure) { q.CustomerID = "customer/paul" }, "reason": func(q *engine.Erasure) { q.Reason = "another" },
	} {
		q := erase
		change(&q)
		assert.ErrorIs(t, assert.Err(s.engine.EraseCustomer(t.Context(), q)), orders.ErrKeyReused, field)
	}
	assert.NoError(t, assert.Err(s.engine.ChangeStock(t.Context(), maria.kept())), "a stock change is repeated")
	s.counts(t, true, `SELECT bool_and(reason ~ '^refund 1: erased_') FROM books.transitions WHERE order_id = 'm-sold' AND verb = 'refund_done'`)
	s.counts(t, 1, `SELECT count(*) FROM books.access_log WHERE event = 'customer_erased'`)
	erase.RequestID = "erasure 2"
	assert.ErrorIs(t, assert.Err(s.engine.EraseCustomer(t.Context(), erase)), orders.ErrNotFound)
	s.exec(t, `UPDATE step_calls SET reference = 'maria' WHERE step = 'reserve'`) // told late
	erase.CustomerID = done.Pseudonym
	assert.NoError(t, assert.Err(s.engine.EraseCustomer(t.Context(), erase)), "the pseudonym")
	s.counts(t, 0, `SELECT count(*) FROM step_calls AS c JOIN orders AS o USING (order_no) WHERE c.reference = 'maria' AND o.order_id ~ '^m-'`)
	for _, change := range []string{`UPDATE pawl.transitions SET reason = 'x'`, `UPDATE pawl.disputes SET reason = 'x'`, `UPDATE pawl.orders SET customer_id = 'x'`} {
		assert.True(t, assert.Err(s.Pool.Exec(t.Context(), change)) != nil, "not refused", change)
	}

	rest := maria.asks("sold", orders.Refund)
	rest.RequestID, rest.Reason, rest.ChargeOperation = "rest", "the rest", &engine.ChargeOperation{}
	s.provider.reset()
	s.do(t, rest)
	refunds := s.provider.made("charge/refund")
	assert.Equal(t, []any{len(refunds), refunds[0].Reference, strings.Contains(fmt.Sprint(s.provider.bodies), "maria")}, []any{1, "ch of m", false}, "refunds")
}

// TestErasedAndForgotten forgets orders of an erased customer: what is left of them answers the same requests, too. The
// id is too short to be looked for in texts that are about no order of the customer.
func TestErasedAndForgotten(t *testing.T) {
	t.Parallel()
	b := setup(t)
	in := request("o")
	in.CustomerID, in.PaymentMethod = "kim", "card"
	b.setStock(t, in.Item, 5)
	b.process(t, in)
	b.do(t, engine.Request{OrderID: "o", Verb: orders.Refund, Actor: "ann", Reason: "kim wants", OnBehalfOf: "kim", RequestID: "back",
		ChargeOperation: &engine.ChargeOperation{Restock: 1}})
	assert.NoError(t, assert.Err(b.engine.EraseCustomer(t.Context(), engine.Erasure{CustomerID: "kim", Reason: "asked", RequestID: "r"})))
	b.counts(t, "erased erased", `SELECT left(reason, 6) || ' ' || left(on_behalf_of, 6) FROM stock_movements WHERE kind = 'restock'`)
	b.Age(t, longSince)
	b.forgets(t)
	assert.ErrorIs(t, assert.Err(b.engine.Process(t.Context(), in)), orders.ErrForgotten)
	in.Item = "another"
	b.conflicts(t, in, "")
	b.totals(t)
}

// TestErasureIsContinued erases some orders and stops there. The same request goes on with the same pseudonym, and so does
// another request for the same customer.
func TestErasureIsContinued(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 5 {
		in := request(fmt.Sprint("o-", i))
		in.CustomerID = "anna.smith"
		b.process(t, in)
	}
	b.exec(t, `SELECT pawl.erase_customer('anna.smith', 'ann', NULL, 'asked', 'first', 2)`)
	first, err := b.engine.Orders.Erasures(t.Context(), 100, 9)
	assert.NoError(t, err)
	assert.Equal(t, []any{len(first), first[0].Orders, first[0].FinishedAt, first[0].Sent}, []any{1, int32(2), (*time.Time)(nil), ""})
	for i, id := range []string{"second", "first"} {
		got, err := b.engine.EraseCustomer(t.Context(), engine.Erasure{CustomerID: "anna.smith", Actor: "ann", Reason: "asked", RequestID: id})
		assert.NoError(t, err)
		assert.Equal(t, []any{got.Pseudonym, got.FinishedAt == nil, got.Orders}, []any{first[0].Pseudonym, false, []int32{3, 5}[i]}, id)
	}
	b.counts(t, first[0].Pseudonym+" 5", `SELECT customer_id || ' ' || count(*) FROM books.orders GROUP BY customer_id`)
	b.counts(t, 2, `SELECT max(length(customer_hash)) FROM pawl.erasures`)
	b.totals(t)
}

// mentions reports whether a line of a dump is about a table and has a word.
func mentions(dump, table, word string) bool {
	for line := range strings.Lines(dump) {
		if strings.HasPrefix(line, table+" ") && strings.Contains(line, word) {
			return true
		}
	}
	return false
}
