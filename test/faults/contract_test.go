package faults

import (
	"fmt"
	"net/http"
	"testing"

	"pawl/test/dbtest"
)

// TestContract asks the program for what was promised to its first callers, as they do.
func TestContract(t *testing.T) { //nolint:tparallel // the scenarios are; the books are read after them
	build(t)
	t.Parallel()
	database := dbtest.New(t)
	p := launch(t, []string{"DATABASE_URL=" + database.URL, "PORT=0"}, "--allow-data-loss")
	url := p.url()
	c := newClient(4, true)
	defer c.close()
	widget := func(id string) order { return order{id: id, amount: "99.99", item: "widget"} }

	t.Run("scenarios", func(t *testing.T) {
		t.Run("GET /health answers 200 when ready", func(t *testing.T) {
			t.Parallel()
			if a := c.get(t.Context(), url+"/health"); a.err != nil || a.code != http.StatusOK {
				t.Error(a)
			}
		})
		t.Run("processing completes all three steps", func(t *testing.T) {
			t.Parallel()
			c.completes(t, url, widget("order-123"))
		})
		t.Run("processing again with the same orderId executes no step again", func(t *testing.T) {
			t.Parallel()
			first := c.completes(t, url, widget("order-again"))
			for range 5 {
				if again := c.completes(t, url, widget("order-again")); again.text != first.text {
					t.Errorf("answered %s, then %s", first, again)
				}
			}
			if n := count(t, database.URL, `SELECT count(*) FROM books.charges AS c WHERE c.order_id = 'order-again'`); n != 1 {
				t.Errorf("%d charges", n)
			}
		})
		t.Run("the answer tells of each step, as JSON", func(t *testing.T) {
			t.Parallel()
			a := c.completes(t, url, widget("order-steps"))
			if len(a.body.Steps) != 3 || a.header.Get("Content-Type") != "application/json" {
				t.Errorf("%v %s", a.header, a)
			}
			for _, step := range []string{"charge", "reserve", "confirm"} {
				if !a.body.Steps[step].Completed {
					t.Errorf("%s is not completed: %s", step, a)
				}
			}
		})
		t.Run("different orderIds are processed independently", func(t *testing.T) {
			t.Parallel()
			for i := range 10 {
				c.completes(t, url, order{id: fmt.Sprint("order-", i), amount: fmt.Sprint(i, ".50"), item: "widget"})
			}
			if n := count(t, database.URL, `SELECT count(DISTINCT c.order_id) FROM books.charges AS c WHERE c.order_id ~ '^order-[0-9]$'`); n != 10 {
				t.Errorf("%d orders were charged", n)
			}
		})
	})
	prove(t, database.URL)
}

// completes processes an order as any caller does and wants all of it done.
func (c *client) completes(t *testing.T, url string, o order) *answer {
	t.Helper()
	a := c.insist(t.Context(), url, o)
	if a.err != nil || a.code != http.StatusOK || a.state() != "completed" || a.wrong(o) != "" {
		t.Fatalf("answered %s", a)
	}
	return a
}
