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

// silence finds statements that will never be answered. A connection can go silent without ending: a firewall that
// forgot it, a pooler that hangs, a server that is a standby now. A time limit can't tell that from
// a commit that waits for a standby, and to give that up would leave one more waiting server process
// behind with every try. So the server is asked, on a connection of its own, what it works on. Who gets no answer
// to that either gives nothing up: then the server is away, and waiting is all there is to do.
type silence struct {
	config   *pgx.ConnConfig // of the connection on which the server is asked
	pooled   bool            // the server processes are not ours to know
	patience time.Duration   // how long a statement may take before the server is asked about it

	mu      sync.Mutex
	running map[*statement]bool
	closing bool // nothing that was cut off is kept any more
	overdue chan struct{}

	ask    *pgx.Conn // the loop's
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// statement is one that is under way.
type statement struct {
	silence *silence
	conn    *pgxpool.Conn
	cutOff  bool  // its context has ended, and the server may still be at work on it; guarded by silence.mu
	pid     int32 // of the server process; 0: not ours to know
	wire    *wire
	unseen  int // how often in a row the server was not at work on it; the loop's
	text    string
	began   time.Time
	timer   *time.Timer
}

const (
	// DefaultPatience is how long a statement may take before the server is asked about it. A large set on a busy
	// server takes longer, and is left alone, since the server says that it works on it.
	DefaultPatience = 250 * time.Millisecond

	looks    = 2                      // in vain, before a statement is given up: a starved server may not have read it yet
	askAgain = 100 * time.Millisecond // between two questions while a statement is overdue
	askLimit = 500 * time.Millisecond // for the answer
	textMost = 60                     // of a statement, to know it by: the name that sqlc gave it is at its beginning
)

func newSilence(config *pgx.ConnConfig, pooled bool, patience time.Duration) *silence {
	ctx, cancel := context.WithCancel(context.Background())
	s := &silence{config: config, pooled: pooled, patience: patience, cancel: cancel,
		running: map[*statement]bool{}, overdue: make(chan struct{}, 1)}
	s.wg.Go(func() { s.loop(ctx) })
	return s
}

func (s *silence) close() {
	s.cancel()
	s.wg.Wait()
}

func (s *silence) begin(conn *pgxpool.Conn, sql string) *statement {
	st := &statement{silence: s, conn: conn, text: sql, began: time.Now()}
	if !s.pooled { // read now: once the statement has ended, its connection is not to be touched
		st.pid = int32(conn.Conn().PgConn().PID())
	}
	st.wire = wireOf(conn.Conn().PgConn())
	st.wire.watched.Store(true)
	s.mu.Lock()
	s.running[st] = true
	s.mu.Unlock()
	st.timer = time.AfterFunc(s.patience, func() {
		select {
		case s.overdue <- struct{}{}:
		default: // the loop is about to look
		}
	})
	return st
}

// end releases the connection, unless the statement was cut off: then its place in the pool is taken until the server is
// done with it. Its error is one that the driver does not know of.
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

// leave takes the statement from those that are under way, and reports whether its connection is dealt with.
func (st *statement) leave(cutOff bool) bool {
	s := st.silence
	s.mu.Lock()
	defer s.mu.Unlock()
	st.cutOff = cutOff
	if cutOff && !s.closing {
		return true // silence looks after it
	}
	st.timer.Stop()
	delete(s.running, st)
	if cutOff {
		st.drop()
	}
	return cutOff
}

// drop gives the place of a statement that was cut off back to the pool.
func (st *statement) drop() {
	st.wire.drop()
	_ = st.conn.Conn().Close(context.Background()) // it is closed; this tells the driver
	st.conn.Release()
}

// giveUp closes the socket of a statement, unless it has ended: then the connection is somebody else's by now.
func (s *silence) giveUp(st *statement) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.running[st]:
	case st.cutOff:
		delete(s.running, st)
		st.drop()
	default:
		st.wire.drop()
	}
}

// dropAll gives up what was cut off, and keeps nothing that is from now on.
func (s *silence) dropAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for st := range s.running {
		if st.cutOff {
			delete(s.running, st)
			st.drop()
		}
	}
}

func (s *silence) loop(ctx context.Context) {
	defer s.hangUp()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.overdue:
		}
		for late, overdue := s.late(); overdue && ctx.Err() == nil; late, overdue = s.late() {
			if len(late) > 0 {
				s.look(ctx, late)
			}
			Sleep(ctx, askAgain)
		}
	}
}

// late are the statements that have been under way for a while, and of which nothing has come or gone lately: a large one
// takes its time on the wire. overdue reports whether there are any that have been under way for a while.
func (s *silence) late() (late []*statement, overdue bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for st := range s.running {
		if time.Since(st.began) < s.patience {
			continue
		}
		overdue = true
		if st.wire.still() >= s.patience {
			late = append(late, st)
		}
	}
	return late, overdue
}

// look gives up those that the server does not work on.
func (s *silence) look(ctx context.Context, late []*statement) {
	p := db.StatementsRunningParams{}
	for _, st := range late {
		p.Pids, p.Texts = append(p.Pids, st.pid), append(p.Texts, beginning(st.text))
		p.Ages = append(p.Ages, time.Since(st.began).Seconds())
	}
	running, err := s.stillRunning(ctx, p)
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
			s.giveUp(st)
		}
	}
}

// stillRunning asks the server; on a new connection where the one that was there does not answer, for it may be silent, too.
func (s *silence) stillRunning(ctx context.Context, p db.StatementsRunningParams) (numbers []int64, err error) {
	for range 2 {
		if numbers, err = s.askOnce(ctx, p); err == nil {
			return numbers, nil
		}
		s.hangUp()
	}
	return nil, err
}

func (s *silence) askOnce(ctx context.Context, p db.StatementsRunningParams) (numbers []int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	if s.ask == nil {
		if s.ask, err = pgx.ConnectConfig(ctx, s.config); err != nil {
			return nil, err
		}
	}
	return db.New(s.ask).StatementsRunning(ctx, p)
}

func (s *silence) hangUp() {
	if s.ask != nil {
		wireOf(s.ask.PgConn()).drop()
		_ = s.ask.Close(context.Background()) // it is closed; this tells the driver
		s.ask = nil
	}
}

// beginning is what a statement is known by.
func beginning(sql string) string {
	first, _, _ := strings.Cut(sql, "\n")
	return first[:min(len(first), textMost)]
}
