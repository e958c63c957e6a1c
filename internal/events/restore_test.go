package events_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/events"
	"pawl/migrations"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// pgProgram finds a program of PostgreSQL that a database is restored with.
func pgProgram(t *testing.T, name string) string {
	t.Helper()
	folders, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	for _, folder := range append([]string{os.Getenv("PAWL_TEST_PG_BIN")}, folders...) {
		if path := filepath.Join(folder, name); folder != "" {
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	t.Skip("there is no ", name, " here: see TestEventsOfAnotherCluster")
	return ""
}

// TestEventsAfterARestore takes a dump into another cluster, where transactions count from another number. The feed goes on where it
// was, in another epoch, once the owner has adopted it. What happened last before the dump and was lost, and what happens instead, have
// different ids; what was restored keeps its own.
func TestEventsAfterARestore(t *testing.T) {
	t.Parallel()
	dump := pgProgram(t, "pg_dump")
	f := newFeed(t)
	assert.NoError(t, assert.Err(migrations.Settle(t.Context(), f.query, "")))
	f.hold()
	for range 300 { // beyond where the other cluster stands
		f.exec(`SELECT txid_current()`)
	}
	tx := f.begin()
	f.write(tx, 1, 1)
	f.write(tx, 2, 1)
	f.commit(tx)
	f.numberUntil(2)
	f.add(1, 2) // it has no number yet when the dump is taken
	before := f.all(events.Cursor{}, events.Filter{}, 10)
	if _, err := f.query.EventRelayRelease(t.Context(), db.EventRelayReleaseParams{Owner: f.owner, Fence: f.fence}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "dump.sql")
	if out, err := exec.CommandContext(t.Context(), dump, "--no-owner", "--no-privileges", "-f", file, f.AdminURL).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	f.add(1, 3) // the dump does not have it
	f.hold()
	f.numberUntil(4)
	lost := f.all(events.Cursor{}, events.Filter{}, 10)

	elsewhere := dbtest.Restartable(t)
	r := &feed{T: t, Database: &dbtest.Database{URL: elsewhere.URL}, owner: f.owner}
	for _, arguments := range [][]string{{"-c", "DROP SCHEMA pawl, books, public CASCADE; CREATE SCHEMA public"}, {"-f", file}} {
		restore := exec.CommandContext(t.Context(), pgProgram(t, "psql"),
			append([]string{"-v", "ON_ERROR_STOP=1", "-q", "-d", elsewhere.URL}, arguments...)...)
		if out, err := restore.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	r.open()
	held, err := r.query.EventRelayHold(t.Context(), db.EventRelayHoldParams{Owner: r.owner, LeaseSeconds: 60})
	if !errors.Is(err, pgx.ErrNoRows) {
		t.Fatalf("%+v: events get numbers of another cluster's transactions: %v", held, err)
	}
	assert.NoError(t, migrations.Adopt(t.Context(), elsewhere.URL, migrations.Adoption{Actor: "test"}))
	r.hold()
	r.add(1, 3)
	r.numberUntil(4)
	want := []string{"1 evt_1_1", "2 evt_2_1", "3 evt_1_2", "4 evt_1_3"}
	after := r.all(events.Cursor{}, events.Filter{}, 10)
	assert.Equal(t, shown(after), want)
	if after[3].ID == lost[3].ID || after[2].ID != lost[2].ID || after[3].Cursor == lost[3].Cursor {
		t.Errorf("lost %s, %s; restored %s, and instead %s", lost[2].ID, lost[3].ID, after[2].ID, after[3].ID)
	}
	if string(after[0].JSON()) != string(before[0].JSON()) || after[2].Cursor == before[1].Cursor {
		t.Errorf("%s\n%s", after[0].JSON(), before[0].JSON())
	}
	last, _ := events.ParseCursor(before[1].Cursor)
	assert.Equal(t, shown(r.all(last, events.Filter{}, 10)), want[2:], "after the last event before the dump")
}

// TestEventsOfAnotherCluster does the same without a second cluster: positions that are far beyond the transactions of this one.
func TestEventsOfAnotherCluster(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	f.add(1, 1)
	f.numberUntil(1)
	f.exec(`INSERT INTO transitions (order_no, seq, to_status, fence, position) VALUES (1, 2, 'charging', 1, 1000000000000)`)
	f.exec(`UPDATE installation SET system_identifier = 17`)
	if err := migrations.Adopt(t.Context(), f.URL, migrations.Adoption{Actor: "test"}); !errors.Is(err, migrations.ErrNotOwner) {
		t.Error("the role of the service adopts: ", err)
	}
	var inUse *migrations.InUse
	if err := migrations.Adopt(t.Context(), f.AdminURL, migrations.Adoption{Actor: "test"}); !errors.As(err, &inUse) || time.Until(inUse.Until) < 0 {
		t.Error("adopted while a relay has its lease: ", err)
	}
	f.exec(`UPDATE event_relay SET due_at = now()`)
	for range 2 {
		assert.NoError(t, migrations.Adopt(t.Context(), f.AdminURL, migrations.Adoption{Actor: "test"}))
	}
	f.add(1, 3)
	f.exec(`INSERT INTO stock_movements (item, version, kind, change, on_hand, sold, actor, request_id)
		VALUES ('widget', 1, 'set', 5, 5, 0, 'local', 'x')`)
	f.hold()
	f.numberUntil(4)
	got := shown(f.all(events.Cursor{}, events.Filter{}, 10))
	assert.Equal(t, []string{"1 evt_1_1", "2 evt_1_2", "3 evt_1_3", "4 stk_8ac140ceb6ca8d6e_1"}, got)
}

// TestCursorsOfALostHistory: another timeline begins another epoch. A cursor from before it is good, one from what was lost is not.
func TestCursorsOfALostHistory(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	write := func(seq int) {
		t.Helper()
		f.add(1, seq)
		f.numberUntil(int64(seq))
	}
	write(1)
	write(2)
	old := f.all(events.Cursor{}, events.Filter{}, 10)
	f.exec(`UPDATE event_relay SET history = '00000000/1', epoch = epoch - 1000`) // as if it had begun long ago, on another timeline
	f.exec(`ALTER TABLE event_epochs DISABLE TRIGGER kept`)
	f.exec(`UPDATE event_epochs SET epoch = epoch - 1000`)
	epoch := func(c string, no int64) events.Cursor {
		cursor, err := events.ParseCursor(c)
		assert.NoError(t, err)
		return events.Cursor{Epoch: cursor.Epoch - 1000, No: no}
	}
	f.add(1, 3)
	if added := f.number(); added.Ours || added.Events != 0 {
		t.Errorf("an event of another timeline is numbered as one of the old: %+v", added)
	}
	f.hold()
	f.numberUntil(3)
	for no, want := range map[int64]int{0: 3, 1: 2, 2: 1} {
		if got := f.all(epoch(old[0].Cursor, no), events.Filter{}, 10); len(got) != want {
			t.Errorf("after %d: %q", no, shown(got))
		}
	}
	expired := func(c events.Cursor) *events.Expired {
		t.Helper()
		_, err := f.reader.After(t.Context(), c, events.Filter{}, 10)
		var e *events.Expired
		if !errors.As(err, &e) {
			t.Fatalf("%s: %v", c, err)
		}
		return e
	}
	lost := expired(epoch(old[0].Cursor, 3)) // the old history had a third event, too
	if want := epoch(old[0].Cursor, 2); !lost.Lost || lost.Continue != want {
		t.Errorf("%+v, want %s", lost, want)
	}
	assert.Equal(t, shown(f.all(lost.Continue, events.Filter{}, 10)), []string{"3 evt_1_3"})
	if e := expired(events.Cursor{Epoch: 5, No: 1}); !e.Lost || e.Continue.No != 0 {
		t.Errorf("of an unknown history: %+v", e)
	}
	// Then the numbers of the first two are forgotten.
	f.exec(`UPDATE event_batches SET at = now() - interval '2 days'`)
	if n, err := f.query.EventBatchesPurge(t.Context(), db.EventBatchesPurgeParams{RetentionSeconds: 86400, Most: 100}); err != nil || n != 2 {
		t.Error(n, err)
	}
	if e := expired(epoch(old[0].Cursor, 1)); e.Lost || e.Continue.No != 2 {
		t.Errorf("%+v", e)
	}
	assert.Equal(t, shown(f.all(events.Cursor{}, events.Filter{}, 10)), []string{"3 evt_1_3"})
}

// TestNumbersAreKeptForEndpoints: what an enabled endpoint has not taken over is not forgotten.
func TestNumbersAreKeptForEndpoints(t *testing.T) {
	t.Parallel()
	f := newFeed(t)
	f.hold()
	for seq := range 3 {
		f.add(1, seq+1)
		f.numberUntil(int64(seq + 1))
	}
	f.exec(`UPDATE event_batches SET at = now() - interval '2 days'`)
	f.exec(`INSERT INTO webhook_endpoints (event_no, created_by, secret, url) VALUES (1, 'test', 'whsec_AAAA', 'https://shop.example/')`)
	purge := func() int64 {
		n, err := f.query.EventBatchesPurge(t.Context(), db.EventBatchesPurgeParams{RetentionSeconds: 86400, Most: 100})
		assert.NoError(t, err)
		return n
	}
	assert.Equal(t, purge(), 1, "batches are forgotten, of which an endpoint wants one")
	f.exec(`UPDATE webhook_endpoints SET state = 'disabled', disabled_at = now(), disabled_reason = 'test'`)
	assert.Equal(t, purge(), 1, "batches are forgotten")
	assert.Equal(t, purge(), 0, "the newest batch is forgotten: numbers would begin anew")
}
