package engine_test

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
)

const ofShop = "token:shop"

// keyed asks for an order under a key of the shop's.
func keyed(in engine.Input, key string) engine.Input {
	in.SetKey(ofShop, key)
	return in
}

// TestKeysAtOnce has twelve callers use each of 500 keys at once, by two replicas.
func TestKeysAtOnce(t *testing.T) {
	t.Parallel()
	const keys, callers = 150, 12
	b := setup(t)
	replicas := []*engine.Engine{b.engine, b.replica(t, engine.Config{})}
	told := make([][callers]orders.Order, keys)
	var wg sync.WaitGroup
	for i := range keys * callers {
		wg.Go(func() {
			key, caller := i/callers, i%callers
			in := request(fmt.Sprint("order ", key))
			if key%2 == 1 {
				in.CustomerID = "c" // it is admitted by another statement
			}
			in = keyed(in, fmt.Sprint("key ", key))
			o, err := insist(func() (orders.Order, error) { return replicas[caller%2].Process(t.Context(), in) })
			if err != nil {
				t.Errorf("%s: %v", in.OrderID, err)
			}
			told[key][caller] = o
		})
	}
	wg.Wait()
	for key := range told {
		for _, o := range told[key] {
			if o.Status != fsm.Completed || asJSON(t, o) != asJSON(t, told[key][0]) {
				t.Fatalf("key %d: %s and %s", key, asJSON(t, o), asJSON(t, told[key][0]))
			}
		}
	}
	b.keysAre(t, keys, keys)
	if n := value[int](t, b.Pool, `SELECT count(*) FROM transitions WHERE to_status = 'completed'`); n != keys {
		t.Errorf("%d orders were executed", n)
	}
	proveBooks(t, b.Pool)
}

// keysAre looks at how many keys and orders are stored.
func (b *bundle) keysAre(t *testing.T, keys, orders int) {
	t.Helper()
	if n := value[int](t, b.Pool, `SELECT count(*) FROM idempotency_keys`); n != keys {
		t.Errorf("%d keys, want %d", n, keys)
	}
	if n := value[int](t, b.Pool, `SELECT count(*) FROM orders`); n != orders {
		t.Errorf("%d orders, want %d", n, orders)
	}
}

// TestOneKeyForManyOrders has twelve callers use each key at once, each for an order of its own: one of them gets it.
func TestOneKeyForManyOrders(t *testing.T) {
	t.Parallel()
	const keys, callers = 40, 12
	b := setup(t)
	replicas := []*engine.Engine{b.engine, b.replica(t, engine.Config{})}
	var won [keys]sync.Map
	var wg sync.WaitGroup
	for i := range keys * callers {
		wg.Go(func() {
			in := keyed(request(fmt.Sprint("order ", i)), fmt.Sprint("key ", i/callers))
			o, err := insist(func() (orders.Order, error) { return replicas[i%2].Process(t.Context(), in) })
			switch {
			case err == nil && o.Status == fsm.Completed:
				won[i/callers].Store(o.OrderID, true)
			case !errors.Is(err, orders.ErrKeyReused):
				t.Errorf("%s: %s, %v", in.OrderID, o.Status, err)
			}
		})
	}
	wg.Wait()
	for key := range won {
		n := 0
		won[key].Range(func(any, any) bool { n++; return true })
		if n != 1 {
			t.Errorf("key %d was used for %d orders", key, n)
		}
	}
	b.keysAre(t, keys, keys)
	proveBooks(t, b.Pool)
}

func TestKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.process(t, keyed(request("one"), "k"))
	then := func(what string, test func()) { t.Log(what); test() }
	then("the same request again is answered", func() {
		b.writesNothing(t, func() {
			if o := b.process(t, keyed(request("one"), "k")); asJSON(t, o) != asJSON(t, first) {
				t.Errorf("%s, was %s", asJSON(t, o), asJSON(t, first))
			}
		})
	})
	then("another request is refused", func() {
		dear, noted, other, paid := request("one"), request("one"), request("other"), request("one")
		dear.Amount = decimal.MustParse("100")
		noted.Metadata = []byte(`{"a":"b"}`)
		paid.PaymentMethod = "pm"
		for _, in := range []engine.Input{dear, noted, other, paid} {
			for name, ask := range map[string]func() (orders.Order, error){
				"waits": func() (orders.Order, error) { return b.engine.Process(t.Context(), keyed(in, "k")) },
				"async": func() (orders.Order, error) { return b.engine.Admit(t.Context(), keyed(in, "k")) },
			} {
				if _, err := ask(); !errors.Is(err, orders.ErrKeyReused) {
					t.Errorf("%s: %+v: %v", name, in, err)
				}
			}
		}
		b.keysAre(t, 1, 1)
	})
	then("an amount is the same however it is written", func() {
		in := request("one")
		in.Amount = decimal.MustParse("99.9900")
		b.process(t, keyed(in, "k"))
	})
	then("others may use the same key", func() {
		in := request("two")
		in.SetKey("token:another", "k")
		b.process(t, in)
		b.keysAre(t, 2, 2)
	})
	then("an order that was there gets one more key, for one request", func() {
		b.process(t, keyed(request("one"), "k2"))
		if _, err := b.engine.Process(t.Context(), keyed(request("three"), "k2")); !errors.Is(err, orders.ErrKeyReused) {
			t.Error(err)
		}
		b.keysAre(t, 3, 2)
	})
	then("a conflict is one again", func() {
		in := request("one")
		in.Item = "sofa"
		for range 2 {
			var conflict *orders.Conflict
			if _, err := b.engine.Process(t.Context(), keyed(in, "k3")); !errors.As(err, &conflict) {
				t.Error(err)
			}
		}
	})
	then("an order that an archive took is not done again", func() {
		b.exec(t, `SET pawl.archive = 'on'; DELETE FROM orders WHERE order_id = 'one'; RESET pawl.archive`)
		if _, err := b.engine.Process(t.Context(), keyed(request("one"), "k")); !errors.Is(err, orders.ErrNotFound) {
			t.Error(err)
		}
	})
}

// TestKeyedOrdersWithoutTheirAnswer loses what is sent for an order with a key, once.
func TestKeyedOrdersWithoutTheirAnswer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		statement string
		fate      fate
	}{{"OrdersAdmit", loseReply}, {"OrdersAdmit", loseRequest}, {"IdempotencyKeyKeep", loseReply}, {"IdempotencyKeysOf", loseReply}} {
		t.Run(fmt.Sprintf("%v of %s", c.fate, c.statement), func(t *testing.T) {
			t.Parallel()
			b, p := setupBehind(t, byCallers)
			b.process(t, request("known"))
			b.process(t, keyed(request("first"), "taken"))
			var lost atomic.Bool
			p.On(func(statement string) fate {
				if statement == c.statement && lost.CompareAndSwap(false, true) {
					return c.fate
				}
				return passes
			})
			for _, id := range []string{"new", "known"} {
				if o := b.process(t, keyed(request(id), "of "+id)); o.Status != fsm.Completed {
					t.Error(brief(o))
				}
			}
			if _, err := b.engine.Process(t.Context(), keyed(request("never"), "taken")); !errors.Is(err, orders.ErrKeyReused) {
				t.Error(err)
			}
			if !lost.Load() {
				t.Error("nothing was lost")
			}
			b.keysAre(t, 3, 3)
			proveBooks(t, b.Pool)
		})
	}
}

// TestCallersBesideATakenKey joins callers without that key to the run of one whose key was used for another order.
func TestCallersBesideATakenKey(t *testing.T) {
	t.Parallel()
	b, p := setupBehind(t, byCallers)
	b.process(t, keyed(request("first"), "taken"))
	arrived, release := p.stall(t, named("OrdersAdmit"))
	refused := ask(t, b.engine, keyed(request("order"), "taken"))
	eventually(t, "its order is to be admitted", func() bool { return arrived.Load() == 1 })
	served := ask(t, b.engine, request("order"), keyed(request("order"), "free"))
	release()
	if a := <-refused; !errors.Is(a.err, orders.ErrKeyReused) {
		t.Error(a.err)
	}
	for range 2 {
		b.completes(t, served, 1)
	}
	if n := column[string](t, b.Pool, `SELECT key FROM idempotency_keys ORDER BY key`); !slices.Equal(n, []string{"free", "taken"}) {
		t.Error(n)
	}
	proveBooks(t, b.Pool)
}

func TestKeysArePurged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO idempotency_keys (principal, key, fingerprint, created_at)
		SELECT 'token:shop', n, '', now() - make_interval(days => CASE WHEN n > 4100 THEN 29 ELSE 31 END) FROM generate_series(1, 4103) AS n`)
	b.replica(t, engine.Config{}) // it purges when it begins
	eventually(t, "the old keys are gone", func() bool {
		return value[int](t, b.Pool, `SELECT count(*) FROM idempotency_keys`) == 3
	})
}

// TestWhoseOrder: an order keeps who sent it first, by any form of admission.
func TestWhoseOrder(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, change := range map[string]func(*engine.Input){
		"plain":  func(*engine.Input) {},
		"keyed":  func(in *engine.Input) { in.SetKey(ofShop, "k") },
		"terms":  func(in *engine.Input) { in.CustomerID = "c" },
		"nobody": func(in *engine.Input) { in.SubmittedBy = "" },
	} {
		in := request(name)
		in.SubmittedBy = ofShop
		change(&in)
		want := cmp.Or(in.SubmittedBy, "none")
		first := b.process(t, in)
		in.SubmittedBy = "token:another"
		for _, o := range []orders.Order{first, b.process(t, in)} {
			if text(o.SubmittedBy) != want {
				t.Errorf("%s: %q, want %q", name, text(o.SubmittedBy), want)
			}
		}
		if got := value[*string](t, b.Pool, `SELECT submitted_by FROM books.orders WHERE order_id = $1`, name); text(got) != want {
			t.Errorf("%s is stored as %q's", name, text(got))
		}
	}
	if _, err := b.Pool.Exec(t.Context(), `UPDATE orders SET submitted_by = 'token:thief'`); err == nil {
		t.Error("whose order it is was changed")
	}
}
