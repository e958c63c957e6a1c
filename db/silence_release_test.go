package db_test

import (
	"sync"
	"testing"
	"time"

	"pawl/db"
	"pawl/dbtest"
)

// A statement may end while the question about it is being put together: its connection is somebody else's by then.
func TestStatementsThatEndWhileTheyAreAskedAbout(t *testing.T) {
	t.Parallel()
	pool, err := db.Open(t.Context(), dbtest.New(t).URL, db.Options{MaxConns: 8, Patience: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	end := time.Now().Add(3 * time.Second)
	var callers sync.WaitGroup
	for range 8 {
		callers.Go(func() {
			for time.Now().Before(end) {
				if _, err := pool.Exec(t.Context(), emit, "short"); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	callers.Wait()
}
