package engine_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/policy/store"
	"pawl/test/dbtest"
)

// TestPoliciesThatAreReadLate has the first reads of the policies fail at the start of an engine that looks for
// orders once in an hour. It reads them again soon, and turns away what comes meanwhile.
func TestPoliciesThatAreReadLate(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"PolicyActive", "PoliciesUnknown"} {
		for _, f := range []fate{loseRequest, loseReply, dbtest.HushReply} {
			t.Run(statement+", "+f.String(), func(t *testing.T) {
				t.Parallel()
				b := &bundle{Database: dbtest.New(t)}
				used, err := store.Use(t.Context(), db.New(b.Pool), []byte("completeWithin: 1h\n"), "test")
				if err != nil {
					t.Fatal(err)
				}
				p := newProxy(t, b.URL)
				var reads atomic.Int32
				p.On(func(name string) fate {
					if name == statement && reads.Add(1) <= 3 {
						return f
					}
					return passes
				})
				b.engine = startWatchful(t, p, byCallers)
				var order orders.Order
				eventually(t, "an order is taken", func() bool {
					order, err = b.engine.Process(t.Context(), request("order"))
					if err != nil && !errors.Is(err, orders.ErrUnavailable) {
						t.Fatal(err)
					}
					return err == nil
				})
				if o := order; o.Status != fsm.Completed || o.Policy == nil || *o.Policy != used.Version || o.CompleteBy == nil {
					t.Errorf("%s, by policy %v", brief(order), o.Policy)
				}
				if n := reads.Load(); n < 4 {
					t.Errorf("read %d times", n)
				}
			})
		}
	}
}
