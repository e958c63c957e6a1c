package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pawl/test/assert"
	"pawl/test/dbtest"
)

// TestKilledWhileForgetting ends the service, or an archive, after each statement that forgets orders, and an archive whose
// files are written before it removes any. The next one goes on; then every order is forgotten, once, and no repetition is processed again.
func TestKilledWhileForgetting(t *testing.T) {
	build(t)
	t.Parallel()
	for _, c := range []struct {
		statement string
		fate      dbtest.Fate
		archives  bool
	}{
		{"OrdersMarkForgotten", dbtest.LoseReply, false},
		{"OrdersMarkForgotten", dbtest.LoseReply, true},
		{"OrdersRemoveForgotten", dbtest.LoseRequest, true}, // its files are written
		{"OrdersRemoveForgotten", dbtest.LoseReply, false},
		{"OrdersRemoveForgotten", dbtest.LoseReply, true},
	} {
		t.Run(fmt.Sprint(c.statement, " ", c.fate, " ", c.archives), func(t *testing.T) {
			t.Parallel()
			database := dbtest.New(t)
			callers, orders := newClient(1, false), make([]order, 30)
			first := startReplicas(t, 1, database.URL, hasty...)
			stockUp(t, first.addresses()[0], scarce, 7)
			for i := range orders {
				orders[i] = order{id: fmt.Sprint("o-", i), amount: "10.00", item: []string{"widget", scarce}[i%2]}
				callers.insist(t.Context(), first.addresses()[0], orders[i])
			}
			first.all[0].kill()
			database.Age(t, 40*24*time.Hour)
			before := query[string](t, database.URL, totals)

			p, dir := dbtest.NewProxy(t, database.URL), t.TempDir()
			flags := append([]string{"--order-retention", "744h"}, hasty...)
			forget := func(url string) *process {
				return launch(t, nil, "archive", "--database-url", url, "--to", dir, "--older-than", "744h")
			}
			started := make(chan *process, 1)
			p.OnLost(func() { (<-started).kill() })
			p.On(func(name string) dbtest.Fate {
				if name == c.statement {
					return c.fate
				}
				return dbtest.Passes
			})
			var doomed *process
			if c.archives {
				doomed = forget(p.URL)
			} else {
				doomed = startReplicas(t, 1, p.URL, flags...).all[0]
			}
			started <- doomed
			doomed.exitCode()
			verify(t, database.URL)

			if c.archives {
				assert.Equal(t, forget(database.URL).exitCode(), 0, "the archive ends with")
				checkArchive(t, dir, orders)
			}
			heir := startReplicas(t, 1, database.URL, flags...)
			eventually(t, patience, "all orders are forgotten", func() bool { return query[int](t, database.URL, `SELECT count(*) FROM orders`)[0] == 0 })
			verify(t, database.URL)
			assert.Equal(t, query[string](t, database.URL, totals), before)
			for i, o := range orders {
				want := "completed"
				if i%2 == 1 && i >= 14 {
					want = "failed"
				}
				a := callers.insist(t.Context(), heir.addresses()[0], o)
				assert.Equal(t, a.state(), want, o.id, "again", a)
			}
			assert.Equal(t, query[int](t, database.URL, `SELECT count(*) FROM charges`)[0], 0, "charged again")
		})
	}
}

// totals are the orders and the money of the books, whether they are forgotten or not.
const totals = `SELECT concat_ws(' ', s.status, sum(s.orders), sum(s.kept)) FROM (
	SELECT o.status, 1 AS orders, o.kept FROM books.orders AS o UNION ALL SELECT f.status, f.orders, f.kept FROM books.forgotten AS f) AS s
	WHERE s.orders > 0 GROUP BY s.status ORDER BY s.status`

// checkArchive looks for each order once, with its history, in files with the right checksums.
func checkArchive(t *testing.T, dir string, orders []order) {
	t.Helper()
	sums := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	sums.Dir = dir
	if out, err := sums.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.ndjson"))
	assert.NoError(t, err)
	text := ""
	for _, name := range files {
		part, err := os.ReadFile(name)
		assert.NoError(t, err)
		text += string(part)
	}
	assert.Equal(t, strings.Count(text, "\n"), len(orders), "lines")
	for _, o := range orders {
		assert.Equal(t, strings.Count(text, fmt.Sprintf(`{"order":{"orderId":%q,`, o.id)), 1, o.id)
	}
	assert.Equal(t, strings.Count(text, `"from":"charging","to":"reserving"`), len(orders), "histories")
}
