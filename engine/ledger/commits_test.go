package ledger_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/engine/ledger"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// commitsWith runs a statement, takes it back, and tells how its commit would have waited.
func (l *books) commitsWith(do func(q *db.Queries, tx pgx.Tx)) (setting string) {
	l.t.Helper()
	tx := l.begin()
	defer func() { l.must(tx.Rollback(l.t.Context())) }()
	do(l.query.WithTx(tx), tx)
	l.must(tx.QueryRow(l.t.Context(), `SHOW synchronous_commit`).Scan(&setting))
	return setting
}

// TestWhichCommitsWait: the steps of an order that goes on do not wait for the disk, and what ends or stops it does. Where the
// server can't be relied on to notice a crash, all of them wait.
func TestWhichCommitsWait(t *testing.T) {
	t.Parallel()
	for _, relaxed := range []bool{true, false} {
		wants := map[fsm.State]string{fsm.Reserving: "off", fsm.Confirming: "off"}
		if !relaxed {
			wants = nil
		}
		for _, m := range moves {
			t.Run(fmt.Sprintf("%s to %s%s, relaxed %t", m.from, m.to, after(m.outcome), relaxed), func(t *testing.T) {
				t.Parallel()
				l := open(t)
				l.stock("widget", 10)
				set := l.set(l.plant(m.from, m.outcome))
				l.exec(`UPDATE order_numbering SET relaxed = $1`, relaxed)
				forms := map[string]ledger.Move{"short": ledger.Moves[m.from]}
				if slices.Contains([]fsm.State{fsm.Charging, fsm.Reserving, fsm.Confirming}, m.from) {
					forms["full"] = full
					if m.outcome != "" {
						delete(forms, "short") // it leaves the order to the full one, in a commit of its own
					}
				}
				for name, move := range forms {
					got := l.commitsWith(func(q *db.Queries, _ pgx.Tx) {
						moved, err := move(t.Context(), q, set)
						l.must(err)
						assert.True(t, len(moved) == 1 && moved[0].ToStatus == m.to, name, "moved", moved)
					})
					want := "on"
					if w, ok := wants[m.to]; ok && (name == "short" || m.from == fsm.Charging) { // the full reservation is rare: it waits
						want = w
					}
					assert.Equal(t, got, want, name, "synchronous_commit")
				}
			})
		}
	}
	t.Run("orders with lines", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		l.stock("cup", 5)
		l.stock("tea", 1)
		for want, nos := range map[string][]int64{
			"off": l.baskets([]orders.Line{units("cup", 1), units("tea", 1)}),
			"on":  l.baskets([]orders.Line{units("cup", 1)}, []orders.Line{units("cup", 1), units("tea", 2)}),
		} {
			got := l.commitsWith(func(q *db.Queries, _ pgx.Tx) {
				moved, err := ledger.LineMoves[fsm.Reserving](t.Context(), q, l.set(nos...))
				l.must(err)
				assert.Equal(t, len(moved), len(nos), "moved", moved)
			})
			assert.Equal(t, got, want, len(nos), "orders")
		}
	})
	t.Run("a batch in which one order is canceled", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		nos := l.orders(fsm.Charging, "widget", 1, 1)
		l.stop(nos[0])
		l.exec(`UPDATE orders SET seq = 2 WHERE order_no = $1`, nos[1]) // as if of the same batch
		if got := l.commitsWith(func(q *db.Queries, _ pgx.Tx) {
			moved, err := ledger.Moves[fsm.Charging](t.Context(), q, l.set(nos...))
			l.must(err)
			assert.Equal(t, len(moved), 2, "moved", moved)
		}); got != "on" {
			t.Errorf("synchronous_commit is %s", got)
		}
	})
}

// admissions are the ways in, each with how its commit waits. They answer how many orders they stored.
func (l *books) admissions() map[string]func(q *db.Queries) (setting string, stored int, err error) {
	batch := func(ids ...string) db.OrdersAdmitParams {
		p := db.OrdersAdmitParams{Owner: uuid.New(), LeaseSeconds: 60}
		for _, id := range ids {
			p.OrderIds, p.Amounts, p.Currencies = append(p.OrderIds, id), append(p.Amounts, "1"), append(p.Currencies, "USD")
			p.Items, p.Quantities, p.Metadata = append(p.Items, "widget"), append(p.Quantities, 1), append(p.Metadata, "")
		}
		return p
	}
	plain := func(p db.OrdersAdmitParams) func(q *db.Queries) (string, int, error) {
		return func(q *db.Queries) (string, int, error) {
			rows, err := ledger.Admit(l.t.Context(), q, p)
			return "off", len(rows), err
		}
	}
	keyed := batch("keyed")
	keyed.Principals, keyed.Keys, keyed.Fingerprints = []string{"shop"}, []string{"k"}, [][]byte{{1}}
	terms := batch("with terms")
	withTerms := func(q *db.Queries, waits bool) (int, error) {
		rows, err := q.OrdersAdmitWithTerms(l.t.Context(), db.OrdersAdmitWithTermsParams{OrderIds: terms.OrderIds, Amounts: terms.Amounts,
			Currencies: terms.Currencies, Items: terms.Items, Quantities: terms.Quantities, Metadata: terms.Metadata,
			Owner: terms.Owner, LeaseSeconds: terms.LeaseSeconds, Waits: waits})
		return len(rows), err
	}
	return map[string]func(q *db.Queries) (string, int, error){
		"one":     plain(batch("one")),
		"a batch": plain(batch("first", "second")),
		"a key":   plain(keyed),
		"terms": func(q *db.Queries) (string, int, error) { // a call may begin with it
			stored, err := withTerms(q, true)
			return "on", stored, err
		},
		"lines": func(q *db.Queries) (string, int, error) {
			stored, err := withTerms(q, false)
			return "off", stored, err
		},
	}
}

func TestWhichAdmissionsWait(t *testing.T) {
	t.Parallel()
	l := open(t)
	for name, admit := range l.admissions() {
		var want string
		got := l.commitsWith(func(q *db.Queries, _ pgx.Tx) {
			setting, stored, err := admit(q)
			l.must(err)
			assert.True(t, stored != 0, name, "no order is stored")
			want = setting
		})
		assert.Equal(t, got, want, name)
	}
}

// TestNumberingInDoubt: while numbers may have been lost, no order gets one, and none that is given later is an old one.
func TestNumberingInDoubt(t *testing.T) {
	t.Parallel()
	for name, doubt := range map[string]string{
		"after a crash": `TRUNCATE order_numbering`, "after a restart": `UPDATE order_numbering SET server_started_at = server_started_at - interval '1 day'`,
		"after a dump was restored": `UPDATE order_numbering SET filenode = 1`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := open(t)
			last := l.order("widget", 1)
			l.exec(doubt)
			before := l.snapshot()
			for way, admit := range l.admissions() {
				_, stored, err := admit(l.query)
				l.must(err)
				assert.Equal(t, stored, 0, way)
			}
			assert.Equal(t, l.snapshot(), before)
			assert.Equal(t, value[int](l, `SELECT count(*) FROM idempotency_keys`), 0)
			for _, renews := range []bool{true, false} {
				got, err := l.query.OrderNumberingRenew(t.Context(), db.OrderNumberingRenewParams{Skipped: 1_000_000_000, Cell: "0/1"})
				l.must(err)
				assert.Equal(t, got, db.OrderNumberingRenewRow{Relaxed: true, Renewed: renews})
			}
			next := l.order("widget", 1)
			assert.True(t, next > last+1_000_000_000 && next <= last+2_000_000_100, "order_no", next, "comes after", last)
		})
	}
	t.Run("where a crash leaves the row", func(t *testing.T) {
		t.Parallel()
		l := open(t)
		l.exec(`ALTER TABLE order_numbering SET LOGGED`)
		got, err := l.query.OrderNumberingRenew(t.Context(), db.OrderNumberingRenewParams{Skipped: 1_000_000_000, Cell: "0/1"})
		l.must(err)
		assert.Equal(t, got, db.OrderNumberingRenewRow{Relaxed: false, Renewed: true})
		for way, admit := range l.admissions() {
			assert.Equal(t, l.commitsWith(func(q *db.Queries, _ pgx.Tx) {
				_, stored, err := admit(q)
				l.must(err)
				assert.True(t, stored != 0, way, "no order is stored")
			}), "on", way)
		}
	})
}
