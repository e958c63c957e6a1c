package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
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
		if !slices.Equal(lost(), []string{"OrdersAdmit"}) {
			t.Errorf("lost %q", lost())
		}
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
		if got := verbs(t, b.Pool, "one"); !slices.Equal(got, []string{"take_over"}) {
			t.Errorf("to the order was done: %q", got)
		}
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
		if !errors.As(err, &conflict) || len(conflict.Differences) != 1 || conflict.Order.Status != fsm.Completed {
			t.Errorf("told %v", err)
		}
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
	if !slices.Equal(lost(), []string{"OrdersAdmit"}) {
		t.Errorf("lost %q", lost())
	}
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
	if pause := times()[7].Sub(times()[0]); pause < 100*time.Millisecond {
		t.Errorf("8 tries within %v", pause)
	}
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
			if _, err := e.Process(t.Context(), in); err != nil {
				t.Error(err)
			}
		})
	}
	callers.Wait()
	if unnamed := value[int](t, b.Pool, `SELECT count(*) FROM orders WHERE order_no NOT IN (SELECT previous_no FROM transitions WHERE previous_no IS NOT NULL)`); unnamed > 2 {
		t.Errorf("%d orders are not named", unnamed)
	}
	if wrong := value[int](t, b.Pool, `SELECT count(*) FROM transitions WHERE previous_no NOT IN (SELECT order_no FROM orders)`); wrong > 0 {
		t.Errorf("%d orders name one that is not there", wrong)
	}
}
