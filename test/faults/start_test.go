package faults

import (
	"net/http"
	"sync/atomic"
	"testing"

	"pawl/test/dbtest"
)

// TestStartOnBrokenConnections breaks the first connections of a start: three at once, and the others each after twice as many bytes as the one
// before. So the start is broken at every step, and repeats what was lost.
func TestStartOnBrokenConnections(t *testing.T) {
	build(t)
	t.Parallel()
	for name, database := range map[string]string{"an empty database": dbtest.Empty(t), "a migrated one": dbtest.New(t).URL} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const broken = 16
			var made atomic.Int64
			proxy := dbtest.NewProxy(t, database)
			proxy.OnConnect(func() int64 {
				switch n := made.Add(1); {
				case n <= 3:
					return 0
				case n <= broken:
					return 64 << (n - 4)
				default:
					return dbtest.Unlimited
				}
			})
			p := launch(t, nil, "serve", "--database-url", proxy.URL, "--listen", "127.0.0.1", "--port", "0", "--allow-data-loss", "--max-conns", "4")
			address := p.url()
			if n := made.Load(); n <= broken/2 {
				t.Errorf("%d connections were made", n)
			}
			c := newClient(1, false)
			if a := c.insist(t.Context(), address, order{id: "one", amount: "1.00", item: "widget"}); a.state() != "completed" {
				t.Error(a)
			}
			eventually(t, patience, "GET /health is 200", func() bool { return c.get(t.Context(), address+"/health").code == http.StatusOK })
			t.Logf("%d connections were made\n%s", made.Load(), p.stderr())
			p.terminate()
		})
	}
}
