package ledger_test

import (
	"context"
	"slices"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/test/assert"
)

// TestFormsOfAMoveAgree sends the same random orders, in transactions that are rolled back, by the full form, by what the
// service sends for a batch, and by what it sends for each order alone. All rows of all tables must come out the same.
func TestFormsOfAMoveAgree(t *testing.T) {
	t.Parallel()
	l := open(t)
	outcomes, checks := map[fsm.State]int{}, 0
	rapid.Check(t, func(r *rapid.T) {
		l.exec(`SET LOCAL session_replication_role = replica; TRUNCATE orders, transitions, charges, charge_operations, reservations, inventory, stock_movements RESTART IDENTITY`)
		set := l.random(r, checks)
		checks++
		locks := l.begin()
		_, err := locks.Exec(t.Context(), `SELECT FROM orders WHERE order_no = ANY($1) FOR UPDATE`,
			rapid.SliceOfN(rapid.SampledFrom(set.OrderNos), 0, 2).Draw(r, "locked"))
		l.must(err)
		defer func() { l.must(locks.Rollback(t.Context())) }()

		want, moved := l.after(set, full)
		for _, m := range moved {
			outcomes[m.ToStatus]++
		}
		if got, _ := l.after(set, ledger.Moves[set.Expected]); got != want {
			r.Fatalf("as a batch\n%s\nby the full form\n%s", got, want)
		}
		if got, _ := l.after(set, oneByOne); got != want {
			r.Fatalf("one by one\n%s\nby the full form\n%s", got, want)
		}
	})
	t.Logf("%v", outcomes)
	for _, s := range []fsm.State{fsm.Reserving, fsm.Confirming, fsm.Completed, fsm.Canceled, fsm.Refunding, fsm.Releasing} {
		assert.True(t, outcomes[s] != 0, "no order went to", s)
	}
}

// random makes orders of a few items, some of them short, brings them to some state, has some be stopped or otherwise not
// be what is expected of them, and returns a batch of all of them. The states take turns, and the first order is always
// stopped: so a few checks see every outcome.
func (l *books) random(r *rapid.T, check int) ledger.Batch {
	l.stock("much", 1000)
	l.stock("few", rapid.Int64Range(0, 6).Draw(r, "few"))
	states := []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming}
	expected := states[check%len(states)]
	set := ledger.Batch{Expected: expected, Fence: 1, Seq: int32(slices.Index(states, expected) + 1)}
	for i := range rapid.IntRange(2, 8).Draw(r, "orders") {
		item := rapid.SampledFrom([]string{"much", "few", "few", "new", "other"}).Draw(r, "item")
		no := l.order(item, rapid.Int32Range(1, 4).Draw(r, "quantity"))
		set.OrderNos = append(set.OrderNos, no)
		if i%5 == 4 {
			expected = rapid.SampledFrom(states).Draw(r, "state")
		}
		l.bring(no, expected)
		change := rapid.SampledFrom(append(changes, "", "", "", "", "")).Draw(r, "change")
		if i == 0 {
			change = changes[0]
		}
		if change != "" {
			l.exec(`UPDATE orders SET `+change+` WHERE order_no = $1`, no)
		}
	}
	return set
}

// changes are what may have happened to an order that a batch expects to be as it was.
var changes = []string{
	"stop_requested = 'cancel'", "stop_requested = 'pause'", "fence = fence + 1", "seq = seq + 1", "reservation_ttl = 60", "take_overs = 2",
}

// bring moves an order, as far as stock lets it.
func (l *books) bring(no int64, to fsm.State) {
	for seq, s := range []fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming} {
		if s == to {
			return
		}
		l.move(ledger.Batch{OrderNos: []int64{no}, Expected: s, Fence: 1, Seq: int32(seq + 1)})
	}
}

// full sends the form of a move that decides every order.
func full(ctx context.Context, q *db.Queries, b ledger.Batch) (moved []ledger.Moved, err error) {
	switch b.Expected {
	case fsm.Charging:
		rows, err := q.OrdersCharge(ctx, db.OrdersChargeParams(b))
		for _, row := range rows {
			moved = append(moved, ledger.Moved(row))
		}
		return moved, err
	case fsm.Reserving:
		rows, err := q.OrdersReserve(ctx, db.OrdersReserveParams(b))
		for _, row := range rows {
			moved = append(moved, ledger.Moved(row))
		}
		return moved, err
	default:
		rows, err := q.OrdersConfirm(ctx, db.OrdersConfirmParams(b))
		for _, row := range rows {
			moved = append(moved, ledger.Moved(row))
		}
		return moved, err
	}
}

// oneByOne sends each order of a batch as a batch of its own, in the order of arrival.
func oneByOne(ctx context.Context, q *db.Queries, b ledger.Batch) (moved []ledger.Moved, err error) {
	for _, no := range slices.Sorted(slices.Values(b.OrderNos)) {
		alone := b
		alone.OrderNos = []int64{no}
		one, err := ledger.Moves[b.Expected](ctx, q, alone)
		if err != nil {
			return nil, err
		}
		moved = append(moved, one...)
	}
	return moved, nil
}

// after returns all rows as they are when a batch has been sent until nothing moves, and takes that back.
func (l *books) after(set ledger.Batch, move ledger.Move) (rows string, moved []ledger.Moved) {
	l.t.Helper()
	tx := l.begin()
	defer func() { l.must(tx.Rollback(l.t.Context())) }()
	for {
		more, err := move(l.t.Context(), l.query.WithTx(tx), set)
		l.must(err)
		if len(more) == 0 {
			break
		}
		moved = append(moved, more...)
	}
	l.must(tx.QueryRow(l.t.Context(), `WITH lines AS (
		SELECT 'orders' AS name, to_jsonb(o) AS line FROM orders AS o
		UNION ALL SELECT 'transitions', to_jsonb(t) - 'position' FROM transitions AS t -- that of the transaction
		UNION ALL SELECT 'charges', to_jsonb(c) FROM charges AS c
		UNION ALL SELECT 'refunds', to_jsonb(r) FROM charge_operations AS r
		UNION ALL SELECT 'reservations', to_jsonb(v) FROM reservations AS v
		UNION ALL SELECT 'inventory', to_jsonb(i) - 'version' FROM inventory AS i -- one for each statement that sells
	), told AS (
		SELECT l.name || ' ' || (SELECT jsonb_object_agg(f.key, CASE WHEN f.value = to_jsonb(now()) THEN '"now"'
			WHEN f.key = 'reserved_until' THEN to_jsonb((f.value #>> '{}')::timestamptz - now()) ELSE f.value END)
			FROM jsonb_each(l.line) AS f) AS line FROM lines AS l
	)
	SELECT string_agg(t.line, E'\n' ORDER BY t.line) FROM told AS t`).Scan(&rows))
	return rows, moved
}

// TestFormsOfAdmissionAgree stores the same orders as a batch and one by one.
func TestFormsOfAdmissionAgree(t *testing.T) {
	t.Parallel()
	stored := func(batches ...[]int) string {
		l := open(t)
		l.order("known", 1)
		all := db.OrdersAdmitParams{
			OrderIds: []string{"b", "order 1", "a", "c"}, Amounts: []string{"1.10", "2", "0", "99999.9999"},
			Currencies: []string{"USD", "EUR", "JPY", "KWD"}, Items: []string{"x", "y", "z", "z"},
			Quantities: []int32{1, 2, 3, 2_000_000_000}, Metadata: []string{"", "{}", `{"a": [1, null]}`, ""},
			SubmittedBy: []string{"token:a", "token:a", "", "token:b"}, Principals: make([]string, 4), Fingerprints: make([][]byte, 4),
			Owner: uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8"), LeaseSeconds: 1e6,
		}
		fresh := 0
		for _, batch := range batches {
			p := db.OrdersAdmitParams{Owner: all.Owner, LeaseSeconds: all.LeaseSeconds}
			for _, i := range batch {
				p.OrderIds, p.Amounts, p.Currencies = append(p.OrderIds, all.OrderIds[i]), append(p.Amounts, all.Amounts[i]), append(p.Currencies, all.Currencies[i])
				p.SubmittedBy = append(p.SubmittedBy, all.SubmittedBy[i])
				p.Items, p.Quantities, p.Metadata = append(p.Items, all.Items[i]), append(p.Quantities, all.Quantities[i]), append(p.Metadata, all.Metadata[i])
			}
			rows, err := ledger.Admit(t.Context(), l.query, p)
			l.must(err)
			fresh += len(rows)
		}
		assert.Equal(t, fresh, 3, "of 3 new orders in", batches)
		return value[string](l, `SELECT string_agg((to_jsonb(o) - '{order_no,created_at,due_at}'::text[])::text
			|| round(extract(epoch FROM o.due_at - o.created_at) / 1000)
			|| (SELECT jsonb_agg(to_jsonb(t) - '{order_no,at,previous_no,position}'::text[]) FROM transitions AS t WHERE t.order_no = o.order_no), E'\n' ORDER BY o.order_id)
			FROM orders AS o WHERE o.order_id <> 'order 1'`)
	}
	if batch, alone := stored([]int{0, 1, 2, 3}), stored([]int{0}, []int{1}, []int{2}, []int{3}); batch != alone {
		t.Errorf("as a batch\n%s\none by one\n%s", batch, alone)
	}
}
