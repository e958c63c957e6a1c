package pg

import (
	"context"
	"strings"
	"sync"
	"time"

	"pawl/db"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// watchdog finds statements that will never be answered. A connection can go silent without ending: a firewall forgot
// it, a pooler hangs, the server is now a standby. A time limit can't distinguish that from a commit that waits for a
// standby, and giving that up would leave another waiting server process behind with every retry. So the watchdog asks
// the server on its own connection which statements it works on. Without an answer, it gives up nothing: the server is
// away, and Pawl can only wait.
type watchdog struct {
	config   *pgx.ConnConfig // of its own connection
	pooled   bool            // the process IDs of the server are not known
	patience time.Duration   // how long a statement may take before the server is asked about it

	mu      sync.Mutex
	running map[*statement]bool
	closing bool // statements that are cut off are dropped at once
	overdue chan struct{}

	conn   *pgx.Conn // to ask the server; the loop's
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// statement is a statement that was sent and has not ended.
type statement struct {
	watchdog *watchdog
	conn     *pgxpool.Conn
	cutOff   bool  // its context has ended, and the server may still work on it; guarded by watchdog.mu
	pid      int32 // of the server process; 0: not known
	wire     *wire
	unseen   int // how often in a row the server was not working on it; the loop's
	text     string
	began    time.Time
	timer    *time.Timer
}

const (
	// DefaultPatience is how long a statement may take before the server is asked about it. A large batch on a busy server
	// takes longer, but is not given up while the server works on it.
	DefaultPatience = 250 * time.Millisecond

	looks    = 2                      // without seeing a statement, before it is given up: a busy server may not have read it yet
	askAgain = 100 * time.Millisecond // between two questions while a statement is overdue
	askLimit = 500 * time.Millisecond // for the answer
	textMost = 60                     // length of the beginning of a statement, with its name, that identifies it
)

func newWatchdog(config *pgx.ConnConfig, pooled bool, patience time.Duration) *watchdog {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watchdog{config: config, pooled: pooled, patience: patience, cancel: cancel,
		running: map[*statement]bool{}, overdue: make(chan struct{}, 1)}
	w.wg.Go(func() { w.loop(ctx) })
	return w
}

func (w *watchdog) close() {
	w.cancel()
	w.wg.Wait()
}

func (w *watchdog) begin(conn *pgxpool.Conn, sql string) *statement {
	st := &statement{watchdog: w, conn: conn, text: sql, began: time.Now()}
	if !w.pooled { // read now, because the connection must not be touched once the statement has ended
		st.pid = int32(conn.Conn().PgConn().PID())
	}
	st.wire = wireOf(conn.Conn().PgConn())
	st.wire.watched.Store(true)
	w.mu.Lock()
	w.running[st] = true
	w.mu.Unlock()
	st.timer = time.AfterFunc(w.patience, func() {
		select {
		case w.overdue <- struct{}{}:
		default: // the loop is about to look
		}
	})
	return st
}

// end releases the connection, unless the statement was cut off: then it keeps its place in the pool until the server
// has finished. The error is one that the driver does not report.
func (st *statement) end() error {
	unreplicated := takeUnreplicated(st.conn.Conn().PgConn())
	if !st.leave(st.wire.cutOff.Load()) {
		st.wire.watched.Store(false)
		st.conn.Release()
	}
	if unreplicated {
		return ErrNotReplicated
	}
	return nil
}

// leave removes the statement from those that are running, and reports whether its connection is taken care of.
func (st *statement) leave(cutOff bool) bool {
	w := st.watchdog
	w.mu.Lock()
	defer w.mu.Unlock()
	st.cutOff = cutOff
	if cutOff && !w.closing {
		return true // by the watchdog
	}
	st.timer.Stop()
	delete(w.running, st)
	if cutOff {
		st.drop()
	}
	return cutOff
}

// drop returns the place of a cut-off statement to the pool.
func (st *statement) drop() {
	st.wire.drop()
	_ = st.conn.Conn().Close(context.Background()) // tells the driver that it is closed
	st.conn.Release()
}

// giveUp closes the socket of a statement, unless it has ended: then another statement may use the connection.
func (w *watchdog) giveUp(st *statement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case !w.running[st]:
	case st.cutOff:
		delete(w.running, st)
		st.drop()
	default:
		st.wire.drop()
	}
}

// dropAll drops the cut-off statements, now and from now on.
func (w *watchdog) dropAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closing = true
	for st := range w.running {
		if st.cutOff {
			delete(w.running, st)
			st.drop()
		}
	}
}

func (w *watchdog) loop(ctx context.Context) {
	defer w.hangUp()
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.overdue:
		}
		for late, overdue := w.late(); overdue && ctx.Err() == nil; late, overdue = w.late() {
			if len(late) > 0 {
				w.look(ctx, late)
			}
			Sleep(ctx, askAgain)
		}
	}
}

// late are the overdue statements without a recent transfer: a large one takes time on the wire. overdue reports
// whether any statement has been running for longer than patience.
func (w *watchdog) late() (late []*statement, overdue bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for st := range w.running {
		if time.Since(st.began) < w.patience {
			continue
		}
		overdue = true
		if st.wire.still() >= w.patience {
			late = append(late, st)
		}
	}
	return late, overdue
}

// look gives up the statements that the server does not work on.
func (w *watchdog) look(ctx context.Context, late []*statement) {
	p := db.StatementsRunningParams{}
	for _, st := range late {
		p.Pids, p.Texts = append(p.Pids, st.pid), append(p.Texts, beginning(st.text))
		p.Ages = append(p.Ages, time.Since(st.began).Seconds())
	}
	running, err := w.stillRunning(ctx, p)
	if err != nil {
		return
	}
	for _, n := range running {
		late[n-1].unseen = 0
		late[n-1] = nil
	}
	for _, st := range late {
		if st == nil {
			continue
		}
		if st.unseen++; st.unseen >= looks {
			w.giveUp(st)
		}
	}
}

// stillRunning asks the server, and again on a new connection, because the first one may be silent too.
func (w *watchdog) stillRunning(ctx context.Context, p db.StatementsRunningParams) (numbers []int64, err error) {
	for range 2 {
		if numbers, err = w.askOnce(ctx, p); err == nil {
			return numbers, nil
		}
		w.hangUp()
	}
	return nil, err
}

func (w *watchdog) askOnce(ctx context.Context, p db.StatementsRunningParams) (numbers []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if w.conn == nil {
		if w.conn, err = pgx.ConnectConfig(ctx, w.config); err != nil {
			return nil, err
		}
	}
	return db.New(w.conn).StatementsRunning(ctx, p)
}

func (w *watchdog) hangUp() {
	if w.conn != nil {
		wireOf(w.conn.PgConn()).drop()
		_ = w.conn.Close(context.Background()) // tells the driver that it is closed
		w.conn = nil
	}
}

// beginning identifies a statement.
func beginning(sql string) string {
	first, _, _ := strings.Cut(sql, "\n")
	return first[:min(len(first), textMost)]
}
