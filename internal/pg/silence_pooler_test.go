package pg_test

import (
	"testing"
	"time"

	"pawl/db"
	"pawl/test/dbtest"
)

// A statement that waited in the pooler's queue for most of its time, and is being worked on.
func TestQueuedInThePoolerIsLeftAlone(t *testing.T) {
	t.Parallel()
	database := dbtest.New(t)
	running := func(age time.Duration) []int64 {
		n, err := db.New(database.Pool).StatementsRunning(t.Context(), db.StatementsRunningParams{
			Pids: []int32{0}, Texts: []string{"SELECT pg_sleep(60)"}, Ages: []float64{age.Seconds()}})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	sent := time.Now()
	go func() { _, _ = database.Pool.Exec(t.Context(), "SELECT pg_sleep(60)") }() // ends with the test
	await(t, "it runs for 200 ms", func() bool {
		return ask(t, database.Pool, `SELECT count(*) = 1 FROM pg_stat_activity WHERE query = 'SELECT pg_sleep(60)' AND query_start < clock_timestamp() - interval '200 milliseconds'`)
	})
	if got := running(time.Since(sent)); len(got) != 1 {
		t.Error("sent a moment ago: called lost")
	}
	if got := running(time.Since(sent) + time.Second); len(got) != 1 {
		t.Error("queued for a second, runs for a moment: called lost")
	}
}
