package migrations_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pawl/fsm"
	"pawl/test/dbtest"
)

const guard = "23514 orders_guard"

func TestGuardIsTheMachine(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	t.Run("its pairs are the edges", func(t *testing.T) {
		t.Parallel()
		c := connect(t, database)
		text := valueOf[string](c, `SELECT prosrc FROM pg_proc WHERE proname = 'guard_order'`)
		var got []string
		for _, match := range regexp.MustCompile(`(?m)^ *\('(\w+)', '(\w+)'\)`).FindAllStringSubmatch(text, -1) {
			got = append(got, match[1]+" to "+match[2])
		}
		var want []string
		for _, e := range fsm.Edges() {
			want = append(want, fmt.Sprintf("%s to %s", e.From, e.To))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("trigger %v\nmachine %v\na new edge is a new migration", got, want)
		}
	})
	t.Run("what its condition lets pass are edges", func(t *testing.T) {
		t.Parallel()
		c := connect(t, database)
		text := valueOf[string](c, `SELECT pg_get_triggerdef(oid) FROM pg_trigger WHERE tgname = 'orders_guard'`)
		chain := regexp.MustCompile(`'(\w+)'::text`).FindStringSubmatch(text)[1]
		words := regexp.MustCompile(`[13]`).Split(strings.Replace(chain, "completedcompleted", "completed", 1), -1)
		for i := range len(words) - 2 { // the last one is empty
			if !fsm.Legal(fsm.State(words[i]), fsm.State(words[i+1])) {
				t.Errorf("%s to %s", words[i], words[i+1])
			}
		}
		if len(words) != 6 {
			t.Errorf("%q in %s", words, text)
		}
	})
	t.Run("the CHECK of the status lists the states", func(t *testing.T) {
		t.Parallel()
		c := connect(t, database)
		text := valueOf[string](c, `SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'order_status'`)
		var got []fsm.State
		for _, match := range regexp.MustCompile(`'(\w+)'::text`).FindAllStringSubmatch(text, -1) {
			got = append(got, fsm.State(match[1]))
		}
		if !slices.Equal(got, fsm.States()) {
			t.Errorf("CHECK %v\nmachine %v", got, fsm.States())
		}
	})
	t.Run("all triggers fire, and after the change", func(t *testing.T) {
		t.Parallel()
		c := connect(t, database)
		n := valueOf[int](c, `SELECT count(*) FROM pg_trigger WHERE tgrelid = 'orders'::regclass
			AND tgname IN ('orders_guard', 'orders_guard_claim', 'orders_guard_input', 'orders_guard_insert') AND tgenabled = 'O' AND tgtype & 1 = 1 AND tgtype & 2 = 0`)
		if n != 4 {
			t.Errorf("%d", n)
		}
	})
}

func TestGuard(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	for _, from := range fsm.States() {
		t.Run("from "+string(from), func(t *testing.T) {
			t.Parallel()
			c := connect(t, database)
			id := "guarded " + string(from)
			c.plant(id, from)
			for _, to := range fsm.States() {
				c.changes(id, from, to)
			}
			c.counters(id)
		})
	}
}

// changes tries one change of status with the generation kept, raised by one or two, and lowered.
func (c *client) changes(id string, from, to fsm.State) {
	c.t.Helper()
	rises := 0
	if from == fsm.Failed && to == fsm.Pending {
		rises = 1
	}
	for _, by := range []int{0, 1, 2} {
		switch {
		case (from == to || fsm.Legal(from, to)) && by == rises:
			c.accepted(change, id, to, by)
		default:
			c.refused(guard, change, id, to, by)
		}
	}
}

// counters tries to turn back, with every status, what only rises, to have it jump, and to rename the order.
func (c *client) counters(id string) {
	c.t.Helper()
	for _, set := range []string{
		"fence = fence - 1", "seq = seq - 1", "fence = 0", "fence = fence - 1, seq = seq + 1",
		"fence = fence + 2", "seq = seq + 2", "fence = fence + 2, seq = seq + 1", "fence = fence + 1, seq = seq + 2",
		"seq = 2147483647", "fence = 9223372036854775807",
		"order_id = order_id || 'x'", "generation = generation + 1",
		"amount = 1", "item = 'other'", "currency = 'EUR'", "quantity = 7",
	} {
		c.refused(guard, "UPDATE orders SET "+set+" WHERE order_id = $1", id)
	}
	for _, set := range []string{"fence = fence + 1", "seq = seq + 1", "fence = fence + 1, seq = seq + 1", "fence = fence", "seq = seq", "failure_detail = 'seen'"} {
		c.accepted("UPDATE orders SET "+set+" WHERE order_id = $1", id)
	}
	c.refused("428C9", "UPDATE orders SET order_no = order_no + 1 WHERE order_id = $1", id) // generated always
}

func TestGuardCountsMoves(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.plant("counted", fsm.Charging)
	c.refused(guard, "UPDATE orders SET status = 'reserving' WHERE order_id = 'counted'")
	c.refused(guard, "UPDATE orders SET status = 'reserving', seq = seq + 2 WHERE order_id = 'counted'")
	c.accepted("UPDATE orders SET status = 'reserving', seq = seq + 1 WHERE order_id = 'counted'")
}

func TestGuardOfGenerations(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	c.plant("again", fsm.Failed)
	c.do(change, "again", fsm.Pending, 1)
	c.refused(guard, change, "again", fsm.Charging, -1)
	c.do(change, "again", fsm.Canceled, 0)
	c.refused(guard, change, "again", fsm.Pending, 1)
	if generation := valueOf[int](c, `SELECT generation FROM orders WHERE order_id = 'again'`); generation != 1 {
		t.Errorf("generation %d", generation)
	}
}

func TestGuardOfInsert(t *testing.T) {
	t.Parallel()
	c := connect(t, dbtest.New(t))
	insert := `INSERT INTO orders (order_id, status, generation, ended_as, due_at, currency, item, amount)
		VALUES ('new', $1::text, $2, CASE WHEN $1::text IN ('completed', 'failed', 'canceled') THEN $1::text END,
		CASE WHEN $1::text NOT IN ('completed', 'failed', 'canceled') THEN now() END, 'USD', 'widget', 1)`
	for _, s := range fsm.States() {
		for _, generation := range []int{0, 1} {
			if generation == 0 && (s == fsm.Pending || s == fsm.Charging) {
				c.accepted(insert, s, generation)
			} else {
				c.refused("23514 orders_guard_insert", insert, s, generation)
			}
		}
	}
	c.refused("23514 order_status", insert, "shipping", 0)
	c.plant("known", fsm.Charging)
	upsert := `INSERT INTO orders (order_id, status, due_at, currency, item, amount) VALUES ('known', 'charging', now(), 'USD', 'widget', 1)
		ON CONFLICT (order_id) DO UPDATE SET status = 'completed', ended_as = 'completed', due_at = NULL`
	c.refused(guard, upsert)
}
