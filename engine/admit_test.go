package engine_test

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestUnknownAdmission loses the admission of an order, and looks at what the engine makes of what it then reads.
func TestUnknownAdmission(t *testing.T) {
	t.Parallel()
	t.Run("that was executed goes on", func(t *testing.T) {
		t.Parallel()
		b, p := setupBehind(t, byCallers)
		b.completesWithout(t, p, loseReply)
	})
	t.Run("that was not executed is sent again", func(t *testing.T) {
		t.Parallel()
		b, p := setupBehind(t, byCallers)
		b.completesWithout(t, p, loseRequest)
	})
	t.Run("that is executed after all goes on once", func(t *testing.T) {
		t.Parallel()
		b, p := setupBehind(t, byCallers)
		unlock := b.delay(t, "charging")
		lost := p.cut(1, 1, loseClient)
		answers := ask(t, b.engine, request("one"))
		eventually(t, "the admission is lost, and sent again", func() bool {
			return b.atWork(t, "OrdersAdmit") == 2
		})
		unlock()
		b.completes(t, answers, 1)
		assert.Equal(t, lost(), []string{"OrdersAdmit"}, "lost")
		proveBooks(t, b.Pool)
	})
	t.Run("of an order that another replica stored meanwhile waits for that", func(t *testing.T) {
		t.Parallel()
		b, p := setupBehind(t, byCallers)
		g := newGhost(b.Pool)
		p.meanwhile(func() { g.admit(t, time.Minute, "one") })
		answers := ask(t, b.engine, request("one"))
		eventually(t, "the caller waits for the other replica", func() bool { return b.engine.Stats.UnknownOutcome.Load() == 1 })
		g.advance(t, fsm.Completed, "one")
		b.completes(t, answers, 1)
		proveBooks(t, b.Pool)
	})
	t.Run("of an order that another replica stored and left takes it over", func(t *testing.T) {
		t.Parallel()
		b, p := setupBehind(t, byCallers)
		p.meanwhile(func() { newGhost(b.Pool).admit(t, 0, "one") })
		b.completes(t, ask(t, b.engine, request("one")), 1)
		assert.Equal(t, verbs(t, b.Pool, "one"), []string{"take_over"}, "to the order was done")
		proveBooks(t, b.Pool)
	})
	t.Run("of an order that another replica stored with other input is a conflict", func(t *testing.T) {
		t.Parallel()
		b, p := setupBehind(t, byCallers)
		p.meanwhile(func() { g := newGhost(b.Pool); g.admit(t, time.Minute, "one"); g.advance(t, fsm.Completed, "one") })
		in := request("one")
		in.Amount = decimal.MustParse("1")
		_, err := b.engine.Process(t.Context(), in)
		var conflict *orders.Conflict
		assert.True(t, errors.As(err, &conflict) && len(conflict.Differences) == 1 && conflict.Order.Status == fsm.Completed,
			"told", err)
		proveBooks(t, b.Pool)
	})
}

// delay keeps statements that write a history row of that status from ending, until it is told otherwise. They give up
// waiting for others' locks after half a second; for this one they wait as long as it takes.
func (b *bundle) delay(t *testing.T, toStatus string) (unlock func()) {
	t.Helper()
	b.exec(t, `CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM set_config('lock_timeout', '0', true);
		PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$`)
	b.exec(t, `CREATE TRIGGER wait AFTER INSERT ON transitions FOR EACH ROW WHEN (NEW.to_status = '`+toStatus+`') EXECUTE FUNCTION wait()`)
	return b.lock(t, `SELECT pg_advisory_xact_lock(1)`)
}

// atWork counts the statements of that name, in any form, that wait for a lock in the server.
func (b *bundle) atWork(t *testing.T, statement string) int {
	t.Helper()
	return value[int](t, b.Pool, `SELECT count(*) FROM pg_stat_activity AS a WHERE a.datname = current_database()
		AND a.state = 'active' AND a.query ~ ('^-- name: ' || $1 || '(One|All)? ') AND a.wait_event_type = 'Lock'`, statement)
}

// completesWithout loses the admission of a set.
func (b *bundle) completesWithout(t *testing.T, p *proxy, f fate) {
	t.Helper()
	lost := p.cut(1, 1, f)
	b.completes(t, ask(t, b.engine, requests("order", 30)...), 30)
	assert.Equal(t, lost(), []string{"OrdersAdmit"}, "lost")
	proveBooks(t, b.Pool)
}

// meanwhile does something when the first admission comes by, which is then lost.
func (p *proxy) meanwhile(do func()) {
	var once sync.Once
	p.On(func(statement string) fate {
		f := passes
		if statement == "OrdersAdmit" {
			once.Do(func() {
				do()
				f = loseRequest
			})
		}
		return f
	})
}

// TestAdmissionThatIsRefused has a server that reads and does not write, as when its disk is full.
func TestAdmissionThatIsRefused(t *testing.T) {
	t.Parallel()
	b, p := setupBehind(t, byCallers)
	b.exec(t, `CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$`)
	b.exec(t, `CREATE TRIGGER full_disk BEFORE INSERT ON orders EXECUTE FUNCTION full_disk()`)
	var mu sync.Mutex
	var sent []time.Time
	p.On(func(statement string) fate {
		mu.Lock()
		defer mu.Unlock()
		if statement == "OrdersAdmit" {
			sent = append(sent, time.Now())
		}
		return passes
	})
	times := func() []time.Time {
		mu.Lock()
		defer mu.Unlock()
		return sent
	}
	answers := ask(t, b.engine, request("one"))
	eventually(t, "it is tried again", func() bool { return len(times()) >= 8 })
	pause := times()[7].Sub(times()[0])
	assert.True(t, pause >= 100*time.Millisecond, "8 tries within", pause)
	b.exec(t, `DROP TRIGGER full_disk ON orders`)
	b.completes(t, answers, 1)
	proveBooks(t, b.Pool)
}

// The first row of an order's history names the order before it, so that one that is gone with all its rows is missed. Of
// each replica, the newest order is not named yet.
func TestOrdersNameTheOneBefore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.process(t, request("first"))
	b.exec(t, `SELECT nextval(pg_get_serial_sequence('orders', 'order_no'))`) // a gap, as a rollback leaves it
	later := startEngine(t, b.URL, engine.Config{})
	var callers sync.WaitGroup
	for n := range 60 {
		in := request(fmt.Sprint("order ", n))
		if n%3 == 0 {
			in.Terms.CustomerID = "ann"
		}
		e := []*engine.Engine{b.engine, later}[n%2]
		callers.Go(func() {
			assert.Succeeds(t, assert.Err(e.Process(t.Context(), in)))
		})
	}
	callers.Wait()
	unnamed := value[int](t, b.Pool, `SELECT count(*) FROM orders WHERE order_no NOT IN (SELECT previous_no FROM transitions WHERE previous_no IS NOT NULL)`)
	assert.True(t, unnamed <= 2, unnamed, "orders are not named")
	wrong := value[int](t, b.Pool, `SELECT count(*) FROM transitions WHERE previous_no NOT IN (SELECT order_no FROM orders)`)
	assert.True(t, wrong == 0, wrong, "orders name one that is not there")
}

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
			o, err := insist(func() (orders.Order, error) { return deref(replicas[caller%2].Process(t.Context(), in)) })
			assert.Succeeds(t, err, in.OrderID)
			told[key][caller] = o
		})
	}
	wg.Wait()
	for key := range told {
		for _, o := range told[key] {
			assert.Require(t, o.Status == fsm.Completed && asJSON(t, o) == asJSON(t, told[key][0]),
				"key", key, asJSON(t, o), "and", asJSON(t, told[key][0]))
		}
	}
	b.keysAre(t, keys, keys)
	b.counts(t, keys, `SELECT count(*) FROM transitions WHERE to_status = 'completed'`)
	proveBooks(t, b.Pool)
}

// keysAre looks at how many keys and orders are stored.
func (b *bundle) keysAre(t *testing.T, keys, orders int) {
	t.Helper()
	b.counts(t, keys, `SELECT count(*) FROM idempotency_keys`)
	b.counts(t, orders, `SELECT count(*) FROM orders`)
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
			o, err := insist(func() (orders.Order, error) { return deref(replicas[i%2].Process(t.Context(), in)) })
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
		assert.Equal(t, n, 1, "key", key, "was used for orders")
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
			assert.Equal(t, asJSON(t, b.process(t, keyed(request("one"), "k"))), asJSON(t, first))
		})
	})
	then("another request is refused", func() {
		dear, noted, other, paid := request("one"), request("one"), request("other"), request("one")
		dear.Amount = decimal.MustParse("100")
		noted.Metadata = []byte(`{"a":"b"}`)
		paid.PaymentMethod = "pm"
		for _, in := range []engine.Input{dear, noted, other, paid} {
			for name, ask := range map[string]func() (orders.Order, error){
				"waits": func() (orders.Order, error) { return deref(b.engine.Process(t.Context(), keyed(in, "k"))) },
				"async": func() (orders.Order, error) { return deref(b.engine.Admit(t.Context(), keyed(in, "k"))) },
			} {
				assert.ErrorIs(t, assert.Err(ask()), orders.ErrKeyReused, name, in)
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
		assert.ErrorIs(t, assert.Err(b.engine.Process(t.Context(), keyed(request("three"), "k2"))), orders.ErrKeyReused)
		b.keysAre(t, 3, 2)
	})
	then("a conflict is one again", func() {
		in := request("one")
		in.Item = "sofa"
		for range 2 {
			var conflict *orders.Conflict
			_, err := b.engine.Process(t.Context(), keyed(in, "k3"))
			assert.True(t, errors.As(err, &conflict), err)
		}
	})
	then("an order that an archive took is not done again", func() {
		b.exec(t, `SET session_replication_role = replica; DELETE FROM orders WHERE order_id = 'one'; RESET session_replication_role`)
		assert.ErrorIs(t, assert.Err(b.engine.Process(t.Context(), keyed(request("one"), "k"))), orders.ErrNotFound)
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
				isNow(t, b.process(t, keyed(request(id), "of "+id)), fsm.Completed)
			}
			assert.ErrorIs(t, assert.Err(b.engine.Process(t.Context(), keyed(request("never"), "taken"))), orders.ErrKeyReused)
			assert.True(t, lost.Load(), "nothing was lost")
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
	assert.ErrorIs(t, (<-refused).err, orders.ErrKeyReused)
	for range 2 {
		b.completes(t, served, 1)
	}
	assert.Equal(t, column[string](t, b.Pool, `SELECT key FROM idempotency_keys ORDER BY key`), []string{"free", "taken"})
	proveBooks(t, b.Pool)
}

func TestKeysArePurged(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(t, `INSERT INTO idempotency_keys (principal, key, fingerprint, created_at)
		SELECT 'token:shop', n, '', now() - make_interval(days => CASE WHEN n > 4100 THEN 29 ELSE 31 END) FROM generate_series(1, 4103) AS n`)
	b.replica(t, engine.Config{}) // it purges when it begins
	eventually(t, "the old keys are gone", b.answers(t, 3, `SELECT count(*) FROM idempotency_keys`))
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
			assert.Equal(t, text(o.SubmittedBy), want, name)
		}
		got := value[*string](t, b.Pool, `SELECT submitted_by FROM books.orders WHERE order_id = $1`, name)
		assert.Equal(t, text(got), want, name, "is stored as")
	}
	assert.True(t, assert.Err(b.Pool.Exec(t.Context(), `UPDATE orders SET submitted_by = 'token:thief'`)) != nil,
		"whose order it is was changed")
}

// TestMetadataIsBounded has orders with much metadata wait: their number alone would not bound the memory.
func TestMetadataIsBounded(t *testing.T) {
	t.Parallel()
	dbtest.SkipIfShort(t)
	b, p := setupBehind(t, byCallers)
	metadata := fmt.Appendf(nil, `{"a":%q}`, bytes.Repeat([]byte("x"), 1<<20))
	inputs := requests("order", 40)
	for i := range inputs {
		inputs[i].Metadata = metadata
	}
	atAdmission, release := p.stall(t, named("OrdersAdmit"))
	answers := ask(t, b.engine, inputs[:1]...)
	eventually(t, "the first is on its way", func() bool { return atAdmission.Load() == 1 })
	more := ask(t, b.engine, inputs[1:32]...)
	eventually(t, "others wait behind it", func() bool { return b.engine.InFlight() == 32 })
	for _, in := range inputs[32:] {
		assert.ErrorIs(t, assert.Err(b.engine.Process(t.Context(), in)), orders.ErrOverloaded,
			"beside 32 MiB of metadata there is room for more")
	}
	release()
	b.completes(t, answers, 1)
	b.completes(t, more, 31)
	b.process(t, inputs[32]) // there is room again
	proveBooks(t, b.Pool)
}
