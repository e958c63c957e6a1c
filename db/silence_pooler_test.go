package db_test

import (
	"testing"
	"time"

	"pawl/db"
	"pawl/dbtest"
)

// A statement that waited in the pooler's queue for most of its time, and is being worked on.
func TestQueuedInThePoolerIsLeftAlone(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	running := func(age time.Duration) []int64 {
		n, err := db.New(database.Pool).StatementsRunning(t.Context(), db.StatementsRunningParams{
			Pids: []int32{0}, Texts: []string{"SELECT pg_sleep(2)"}, Ages: []float64{age.Seconds()}})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	go func() { _, _ = database.Pool.Exec(t.Context(), "SELECT pg_sleep(2)") }() // ends with the test
	await(t, "it runs for 200 ms", func() bool {
		return ask(t, database.Pool, `SELECT count(*) = 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(2)' AND query_start < clock_timestamp() - interval '200 milliseconds'`)
	})
	if got := running(300 * time.Millisecond); len(got) != 1 {
		t.Error("not running after 0.3 s")
	}
	if got := running(3 * time.Second); len(got) != 1 {
		t.Error("queued for 2.8 s, runs for 0.2 s: called lost")
	}
}
