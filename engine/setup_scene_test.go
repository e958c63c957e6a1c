package engine_test

import (
	"crypto/rand"
	"testing"

	"pawl/engine"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/test/assert"
)

// scene is a test of one order, "order", told by what happens to it and what must hold by then.
type scene struct {
	name string
	open func(*testing.T) *shop
	acts acts
}

type acts []act

// act is one thing that happens, or that must hold.
type act func(t *testing.T, s *shop)

// play runs scenes side by side, each in a shop of its own.
func play(t *testing.T, scenes []scene) {
	t.Helper()
	for _, c := range scenes {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := c.open(t)
			for _, do := range c.acts {
				do(t, s)
			}
		})
	}
}

// with opens a shop with one replica and makes a policy the active one.
func with(policy string) func(*testing.T) *shop {
	return func(t *testing.T) *shop {
		t.Helper()
		s := openShop(t, 1, quick)
		s.use(t, policy)
		return s
	}
}

// asked is a request that lacks nothing.
func asked(verb orders.Verb) engine.Request {
	return engine.Request{Verb: verb, OrderID: "order", Actor: "ann", Reason: "a test"}
}

// asks has somebody ask for a verb, who does not wait for what comes of it.
func asks(q engine.Request) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		q := q
		q.Async, q.RequestID = true, rand.Text()
		s.do(t, q)
	}
}

// does has somebody ask for a verb, and wait for the order to be as is said. See where.
func does(q engine.Request, want string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		assert.Equal(t, where(s.do(t, q)), want, q.Verb)
	}
}

// refuses checks that a verb does not apply, and leaves no trace.
func refuses(q engine.Request, code string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		s.refused(t, q, code)
	}
}

var pause, resume, cancel, retry = asks(asked(orders.Pause)), asks(asked(orders.Resume)), asks(asked(orders.Cancel)), asks(asked(orders.Retry))

// settled is what somebody says became of a step.
func settled(step fsm.Step, outcome, reference string) engine.Request {
	q := asked(orders.StepResult)
	q.Settle = &engine.Settled{Step: step, Outcome: outcome, Code: "seen", Detail: "in the books of the provider",
		Reference: reference}
	return q
}

// says changes what the endpoint answers.
func says(answers ...string) act { return func(_ *testing.T, s *shop) { s.provider.says(answers...) } }

// fails changes what goes wrong at the simulator.
func fails(rules ...string) act {
	return func(t *testing.T, s *shop) { t.Helper(); s.faults(t, rules...) }
}

// admits stores the order.
func admits(change ...func(*engine.Input)) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		in := request("order")
		for _, c := range change {
			c(&in)
		}
		s.admit(t, in)
	}
}

// processes stores the order, or finds it, and waits for it to be as is said.
func processes(want string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		assert.Equal(t, where(s.process(t, request("order"))), want)
	}
}

// is waits for the order to be as is said.
func is(want string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		s.until(t, "order", want)
	}
}

// sql runs a statement behind the engine's back.
func sql(statement string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		s.exec(t, statement)
	}
}

// due has the order tried at once.
var due = sql(`UPDATE orders SET due_at = now() WHERE hold = 'retry'`)

// shows checks what a query answers; comes waits for it.
func shows(want any, query string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		s.counts(t, want, query)
	}
}

func comes(want any, query string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		eventually(t, query, s.answers(t, want, query))
	}
}

// standing checks what stands at the endpoint.
func standing(want ...string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		assert.Equal(t, s.provider.stands(), want)
	}
}

// named checks what undos of the charge named.
func undidBy(want ...string) act {
	return func(t *testing.T, s *shop) {
		t.Helper()
		assert.Equal(t, s.provider.named("charge"), want)
	}
}

// proven checks the books, and that all calls are closed.
func proven(t *testing.T, s *shop) { t.Helper(); s.verified(t) }

// uses makes a policy the active one.
func uses(policy string) act { return func(t *testing.T, s *shop) { t.Helper(); s.use(t, policy) } }

// undoneLate waits for late effects to be undone, without the pauses between two tries.
func undoneLate(t *testing.T, s *shop) {
	t.Helper()
	eventually(t, "it is undone late", func() bool {
		s.exec(t, `UPDATE late_undos SET due_at = now() WHERE finished_at IS NULL AND code IS NOT NULL`)
		return value[bool](t, s.Pool, `SELECT coalesce(bool_and(finished_at IS NOT NULL), false) FROM late_undos`)
	})
}
