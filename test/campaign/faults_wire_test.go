package campaign

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"pawl/test/dbtest"
)

// silence lets one connection to the database after the other go silent: nothing is refused or closed, nothing answers.
func silence(ctx context.Context, f *field) {
	f.what = "connections silent"
	for pause(ctx, f.dice.between(150*time.Millisecond, 450*time.Millisecond)) {
		if f.wire.silence() {
			f.bit.Add(1)
		}
	}
}

// cutReplies ends connections in the middle of what the database says.
func cutReplies(ctx context.Context, f *field) {
	f.what = "replies cut"
	f.wire.oneIn.Store(100)
	if f.crowd == usualCrowd {
		f.wire.oneIn.Store(50) // few callers, for a short time
	}
	<-ctx.Done()
	f.wire.oneIn.Store(0)
	f.bit.Store(f.wire.cuts.Load())
}

func noPooler() string {
	if findPooler() == "" {
		return "there is no PgBouncer here (Debian package pgbouncer)"
	}
	return ""
}

// behindPooler puts PgBouncer between the replicas and the wire.
func behindPooler(f *field) {
	p := newPooler(f.t, f.wire.listener.Addr().(*net.TCPAddr).Port, f.server.user())
	f.database = p.url(f.server.user())
	f.pooler = p
}

// restartPooler ends PgBouncer in the ways it is ended in, and starts it again.
func restartPooler(ctx context.Context, f *field) {
	f.what = "restarts"
	for i := 0; pause(ctx, f.soon(i, 2500*time.Millisecond)); i++ {
		f.away(func() {
			f.pooler.end([]syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}[i%2])
			pause(ctx, f.dice.between(0, 300*time.Millisecond))
			f.pooler.start()
		})
	}
}

// soon is the time before the next fault: the first one comes at once, the others when things are well again.
func (f *field) soon(i int, most time.Duration) time.Duration {
	if i == 0 {
		return 500 * time.Millisecond
	}
	return f.dice.between(most/3, most)
}

// away is an outage of our own doing.
func (f *field) away(do func()) {
	began := time.Now()
	do()
	f.outage = max(f.outage, time.Since(began))
	f.bit.Add(1)
}

// restartPostgres ends the server in the ways it is ended in, and starts it again.
func restartPostgres(ctx context.Context, f *field) {
	f.what = "restarts"
	for i := 0; pause(ctx, f.soon(i, 4*time.Second)); i++ {
		f.away(func() {
			f.server.end([]syscall.Signal{0, syscall.SIGQUIT, syscall.SIGKILL}[i%3])
			f.server.start()
		})
	}
}

// primaryAndStandby starts two servers. What the first one commits, the second one has before it is answered.
func primaryAndStandby(f *field) {
	f.server = f.template.copyTo(f.t, dbtest.Folder(f.t), map[string]string{"synchronous_standby_names": "*"})
	f.server.allowReplication()
	f.standby = f.template.copyTo(f.t, dbtest.Folder(f.t), nil)
	if err := os.WriteFile(filepath.Join(f.standby.folder, "data", "standby.signal"), nil, 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.server.start()
	f.t.Cleanup(f.server.stop)
	network, address := f.server.socket()
	folder := dbtest.Folder(f.t)
	socket := filepath.Join(folder, ".s.PGSQL.5432")
	f.replication = newWire(f.t, [2]string{"unix", socket}, [2]string{network, address}, f.seed)
	if err := os.Chmod(socket, 0o777); err != nil { // the standby may be another user's
		f.t.Fatal(err)
	}
	f.standby.settings = map[string]string{"primary_conninfo": "host=" + escaped(folder) + " port=5432 user=" + f.server.user()}
	f.standby.start()
	f.t.Cleanup(f.standby.stop)
	synchronous := "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
	if !await(f.t.Context(), startLimit, func() bool { return f.server.ask(f.t.Context(), synchronous) == 1 }) {
		f.t.Fatal("the standby does not follow")
	}
}

// longHole is longer than anything in the service waits for a statement, and for the question what became of it.
const longHole = 50 * time.Second

// failOver cuts the replication, lets the callers go on for a while, kills the primary and goes on with the standby. What the
// primary has done in that while is lost, so nothing of it may have been answered. After that people are nervous and cancel what
// has not ended: an order that was answered as completed is not among them.
func failOver(ctx context.Context, f *field) {
	f.activate(ctx, 1) // with the ledger alone nobody outside remembers what was lost
	pause(ctx, 2*time.Second)
	f.replication.swallow()
	pause(ctx, min(f.limit-4*time.Second, longHole))
	lost := f.server.ask(ctx, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	f.what = "failover with " + strconv.Itoa(lost) + " commits waiting"
	f.away(func() {
		f.server.end(syscall.SIGKILL)
		f.standby.exec("SELECT pg_promote()")
		f.wire.retarget(f.standby.socket())
	})
	f.server = f.standby
	nervous := newPeople(f.callers, f.provider)
	nervous.asked = 1_000_000 // names of its own
	for _, o := range f.unfinished() {
		if a, ok := nervous.read(ctx, o.ID); ok && slices.Contains(a.order.AllowedActions, "cancel") {
			nervous.act(ctx, o.ID, &a, "cancel")
		}
	}
	<-ctx.Done()
}
