package engine_test

import (
	"testing"

	"pawl/engine"
	"pawl/migrations"
	"pawl/test/dbtest"
)

func TestBehindPooler(t *testing.T) {
	t.Parallel()
	t.Run("orders are completed", func(t *testing.T) {
		t.Parallel()
		b := &bundle{Database: dbtest.New(t)}
		pool := openPool(t, dbtest.Pooler(t, b.URL))
		b.engine = startOn(t, pool, engine.Config{})
		for range 2 * int(pool.Stat().MaxConns()) { // one server after the other, by chance
			if err := engine.CheckSchema(t.Context(), pool, migrations.Version()); err != nil {
				t.Fatal(err)
			}
		}
		b.setStock(t, "few", 10)
		b.completes(t, ask(t, b.engine, requests("order", 500)...), 500)
		answers := ask(t, b.engine, withItem("few", requests("few", 20))...)
		for range 20 {
			if a := <-answers; a.err != nil || !a.order.Status.Final() {
				t.Errorf("%s: told %s: %v", a.orderID, a.order.Status, a.err)
			}
		}
		proveBooks(t, b.Pool)
	})
	t.Run("migrations are applied", func(t *testing.T) {
		t.Parallel()
		behind := dbtest.Pooler(t, dbtest.Empty(t))
		for range 2 {
			if _, err := migrations.Up(t.Context(), behind); err != nil {
				t.Fatal(err)
			}
		}
		list, err := migrations.Status(t.Context(), behind)
		if err != nil || len(list) == 0 {
			t.Fatal(list, err)
		}
		for _, m := range list {
			if !m.Applied {
				t.Errorf("%s is not applied", m.Name)
			}
		}
	})
}
