package faults

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestKilledWhileErasing kills the service before or after the second batch of an erasure. The same request to the next
// one continues with the same pseudonym, until nothing is left of the customer.
func TestKilledWhileErasing(t *testing.T) {
	build(t)
	t.Parallel()
	for _, fate := range []dbtest.Fate{dbtest.LoseRequest, dbtest.LoseReply} {
		t.Run(fmt.Sprint(fate), func(t *testing.T) {
			t.Parallel()
			database := dbtest.New(t)
			p, callers := dbtest.NewProxy(t, database.URL), newClient(1, false)
			post := func(to *replicas, path, media, body string) *answer {
				return callers.send(t.Context(), request{method: http.MethodPost, url: to.addresses()[0] + path, body: body, header: [2]string{"Content-Type", media}})
			}
			erase := func(to *replicas) *answer {
				return post(to, "/api/erasures", "application/json", `{"customerId":"customer/maria","reason":"asked","requestId":"r"}`)
			}
			const orders = 450
			var lines strings.Builder
			for i := range orders {
				fmt.Fprintf(&lines, `{"orderId":"o-%d","amount":"1.00","item":"widget","customerId":"customer/maria","metadata":{"name":"maria"}}`+"\n", i)
			}
			doomed := startReplicas(t, 1, p.URL, hasty...)
			assert.Equal(t, post(doomed, "/api/orders/process", "application/x-ndjson", lines.String()).code, http.StatusOK)
			before := query[string](t, database.URL, totals)
			var batches atomic.Int32
			p.OnLost(doomed.all[0].kill)
			p.On(func(name string) dbtest.Fate {
				if name == "CustomerErase" && batches.Add(1) == 2 {
					return fate
				}
				return dbtest.Passes
			})
			if a := erase(doomed); a.err == nil {
				t.Errorf("the service was not killed: %s", a)
			}
			pseudonym := query[string](t, database.URL, `SELECT pseudonym FROM books.erasures WHERE finished_at IS NULL`)
			assert.Equal(t, len(pseudonym), 1, "unfinished")

			a := erase(startReplicas(t, 1, database.URL, hasty...))
			assert.Contains(t, a.text, `"orders":450,`, a.code)
			assert.Contains(t, a.text, pseudonym[0])
			erased := query[string](t, database.URL, `SELECT concat_ws(' ', count(*), min(customer_id), max(customer_id), count(metadata)) FROM books.orders`)
			assert.Equal(t, erased, []string{fmt.Sprint(orders, " ", pseudonym[0], " ", pseudonym[0], " 0")})
			assert.Equal(t, query[string](t, database.URL, totals), before)
			verify(t, database.URL)
		})
	}
}
