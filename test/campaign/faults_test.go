package campaign

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"pawl/test/assert"
	"pawl/test/clocks"
	"pawl/test/dbtest"
)

// stepOneClock gives one replica a wall clock that can be set.
func stepOneClock(f *field) {
	f.clock = clocks.New(f.t, f.t.TempDir())
	f.posts[0].program = f.yard.stepping()
	f.posts[0].env = f.clock.Env()
}

// stepClock sets the clock of one replica, by up to a year, and at last right again.
func stepClock(ctx context.Context, f *field) {
	f.what = "steps"
	defer f.clock.Step(0)
	const day = 24 * time.Hour
	steps := []time.Duration{-time.Hour, time.Hour, -2 * day, 2 * day, -30 * time.Second, 30 * time.Second, 365 * day, 0}
	for pause(ctx, f.dice.between(200*time.Millisecond, 1200*time.Millisecond)) {
		f.clock.Step(steps[f.dice.IntN(len(steps))])
		f.bit.Add(1)
	}
}

// killAndStop ends replicas and lets others sleep for longer than their leases.
func killAndStop(ctx context.Context, f *field) {
	f.what = "kills and stops"
	for pause(ctx, f.dice.between(200*time.Millisecond, 1200*time.Millisecond)) {
		i := f.dice.IntN(len(f.posts))
		f.bit.Add(1)
		switch f.dice.IntN(4) {
		case 0, 1:
			f.fleet.kill(i)
		case 2:
			f.fleet.signal(i, syscall.SIGTERM)
		default:
			f.fleet.signal(i, syscall.SIGSTOP)
			pause(ctx, f.dice.between(500*time.Millisecond, 3500*time.Millisecond))
			f.fleet.signal(i, syscall.SIGCONT)
		}
	}
}

// serializable makes every transaction one that may fail when others are under way.
func serializable(f *field) {
	f.server.exec("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'")
}

// countRollbacks counts the statements that failed so.
func countRollbacks(ctx context.Context, f *field) {
	f.what = "rollbacks"
	<-ctx.Done()
	f.bit.Store(int64(f.server.ask(context.WithoutCancel(ctx), "SELECT xact_rollback FROM pg_stat_database WHERE datname = 'postgres'")))
}

// holdLocks is a psql session that holds a lock for a while.
func holdLocks(ctx context.Context, f *field) {
	f.what = "locks held"
	statements := []string{
		"SELECT FROM inventory WHERE item LIKE 'scarce-%' FOR UPDATE",
		"SELECT FROM inventory WHERE item = 'widget-1' FOR UPDATE",
		"SELECT FROM orders WHERE due_at IS NOT NULL FOR UPDATE SKIP LOCKED",
		"SELECT FROM orders ORDER BY order_no DESC LIMIT 50 FOR UPDATE",
		"LOCK TABLE orders IN ACCESS EXCLUSIVE MODE",
		"LOCK TABLE inventory, step_calls IN SHARE MODE",
	}
	for pause(ctx, f.dice.between(100*time.Millisecond, 800*time.Millisecond)) {
		err := f.holdLock(ctx, statements[f.dice.IntN(len(statements))])
		assert.True(f.t, err == nil || ctx.Err() != nil, "hold a lock", err)
	}
}

func (f *field) holdLock(ctx context.Context, statement string) error {
	conn, err := f.server.session(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	tx, err := conn.Begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback(context.WithoutCancel(ctx)) // that is how a lock ends
	if _, err := tx.Exec(ctx, statement); err != nil {
		return err
	}
	f.bit.Add(1)
	pause(ctx, f.dice.between(300*time.Millisecond, 2500*time.Millisecond))
	return nil
}

// diskSize holds the database of the template, its log, and some seconds of orders.
const diskSize = "200m"

func noMount() string {
	if os.Geteuid() != 0 {
		return "a small disk takes root to mount"
	}
	folder, err := os.MkdirTemp("/tmp", "pawl-campaign-mount-*")
	if err != nil {
		return err.Error()
	}
	defer os.Remove(folder)
	if said, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder).CombinedOutput(); err != nil {
		return fmt.Sprintf("a small disk can't be mounted: %s", said)
	}
	if err := exec.Command("umount", folder).Run(); err != nil {
		return err.Error()
	}
	return ""
}

// onSmallDisk puts the data of the server on a disk of its own.
func onSmallDisk(f *field) {
	f.disk = dbtest.Folder(f.t)
	said, err := exec.Command("mount", "-t", "tmpfs", "-o", "mode=0755,size="+diskSize, "tmpfs", f.disk).CombinedOutput()
	assert.NoError(f.t, err, "mount", said)
	f.t.Cleanup(func() { _ = exec.Command("umount", "-l", f.disk).Run() })
	f.server = f.template.copyTo(f.t, f.disk, map[string]string{"max_wal_size": "48MB", "min_wal_size": "32MB"})
	f.server.start()
	f.t.Cleanup(f.server.stop)
}

// fillDisk fills the disk to the last byte, and frees it a moment later. A server that has ended of it is started again,
// as an operator does.
func fillDisk(ctx context.Context, f *field) {
	f.what = "statements without room"
	ballast := filepath.Join(f.disk, "ballast")
	for i := 0; pause(ctx, f.soon(i, 1500*time.Millisecond)); i++ {
		f.fill(ballast)
		if i%2 == 0 { // also in the first round: the server needs room for it, whatever callers do
			f.fillLog(ctx)
		}
		pause(ctx, f.dice.between(500*time.Millisecond, 2*time.Second))
		os.Remove(ballast)
		f.revive(ctx)
	}
	logs, _ := filepath.Glob(filepath.Join(f.disk, "log", "*"))
	for _, log := range logs {
		text, _ := os.ReadFile(log)
		f.bit.Add(int64(strings.Count(string(text), "No space left on device")))
	}
}

// fillLog writes so much to the log of the server that it needs a new file, and ends for want of room. It does so to
// the end: on a slow machine there is one round.
func (f *field) fillLog(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startLimit)
	defer cancel()
	conn, err := f.server.session(ctx)
	if err != nil {
		return // it has ended already
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for range 8 {
		if _, err := conn.Exec(ctx, "SELECT pg_logical_emit_message(false, 'campaign', repeat('x', 16000000))"); err != nil {
			return
		}
	}
}

// fill writes until there is no room, and goes on as room comes up.
func (f *field) fill(path string) {
	file, err := os.Create(path)
	if err != nil {
		f.t.Error(err)
		return
	}
	defer file.Close()
	for size := 1 << 20; size >= 1<<10; {
		if _, err := file.Write(make([]byte, size)); err != nil {
			size /= 4
		}
	}
}

// revive starts the server again if it has ended, and waits until it answers.
func (f *field) revive(ctx context.Context) {
	await(context.WithoutCancel(ctx), startLimit, func() bool {
		if f.server.ended() {
			f.bit.Add(1) // there may not have been the room to say so
			f.server.end(0)
			if err := f.server.tryStart(); err != nil {
				f.t.Logf("start after a full disk: %v", err)
				return false
			}
		}
		return f.server.ask(context.WithoutCancel(ctx), "SELECT 1") == 1
	})
}

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

// primaryAndStandby starts two servers. What the first one commits, the second one has before it is answered.
func primaryAndStandby(f *field) {
	f.withStandby(map[string]string{"synchronous_standby_names": "*"})
	synchronous := "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
	assert.Require(f.t, await(f.t.Context(), startLimit, func() bool { return f.server.ask(f.t.Context(), synchronous) == 1 }),
		"the standby does not follow")
}

// primaryAndLateStandby starts two servers, of which the second one has what the first one commits a moment later.
func primaryAndLateStandby(f *field) { f.withStandby(map[string]string{}) }

func (f *field) withStandby(settings map[string]string) {
	f.server = f.template.copyTo(f.t, dbtest.Folder(f.t), settings)
	f.server.allowReplication()
	f.standby = f.template.copyTo(f.t, dbtest.Folder(f.t), nil)
	assert.NoError(f.t, os.WriteFile(filepath.Join(f.standby.folder, "data", "standby.signal"), nil, 0o600))
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
}

// longHole is longer than anything in the service waits for a statement, and for the question what became of it.
const longHole = 50 * time.Second

// failOver cuts the replication, lets the callers go on for a while, kills the primary and goes on with the standby.
// What the primary has done in that while is lost, so nothing of it may have been answered. After that people are
// nervous and cancel what has not ended: an order that was answered as completed is not among them.
func failOver(ctx context.Context, f *field) {
	f.activate(ctx, 1) // with the ledger alone there is no other record of what was lost
	pause(ctx, 2*time.Second)
	f.replication.swallow()
	pause(ctx, min(f.limit-4*time.Second, longHole))
	lost := f.server.ask(ctx, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	f.what = "failover with " + strconv.Itoa(lost) + " commits waiting"
	f.promote()
	nervous := newPeople(f.callers, f.provider)
	nervous.asked = 1_000_000 // names of its own
	for _, o := range f.unfinished() {
		if a, ok := nervous.read(ctx, o.ID); ok && slices.Contains(a.order.AllowedActions, "cancel") {
			nervous.act(ctx, o.ID, &a, "cancel")
		}
	}
	<-ctx.Done()
}

// promote kills the primary, and goes on with the standby.
func (f *field) promote() {
	f.away(func() {
		f.server.end(syscall.SIGKILL)
		f.standby.exec("SELECT pg_promote()")
		f.wire.retarget(f.standby.socket())
	})
	f.server = f.standby
}

// loseCommits cuts the replication, lets the callers go on for a while, kills the primary and goes on with the standby. What the
// primary has done in that while is lost, and was answered. The callers send all orders again.
func loseCommits(ctx context.Context, f *field) {
	pause(ctx, f.limit/3)
	f.callers.lose()
	f.replication.swallow()
	pause(ctx, f.limit/3)
	const known = "SELECT count(*) FROM books.orders"
	before := f.server.ask(ctx, known)
	f.promote()
	f.what = "failover that lost " + strconv.Itoa(before-f.server.ask(ctx, known)) + " orders"
	f.witness.forget()
	f.people.forget()
	<-ctx.Done()
}
