package pg

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// ParseConfig reads the url of a database. Connections made with the result never send a request to cancel
// a statement: where the server waits for a synchronous standby, such a request ends the wait and not the commit,
// which then stands on this server alone and is lost in a failover (PostgreSQL manual, "Synchronous
// Replication"). When a context ends under a statement, nothing more is read or written, and the server carries on.
func ParseConfig(url string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	harden(config)
	return config, nil
}

// connectTimeout bounds the making of a connection. A server that takes longer to let anybody in is one to try again.
const connectTimeout = 5 * time.Second

func harden(config *pgx.ConnConfig) {
	config.ConnectTimeout = connectTimeout
	config.DialFunc = dial
	config.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler { return closer{wireOf(c)} }
	config.OnNotice = noteUnreplicated
}

// wire is the socket of a connection. pgx asks it for the address to send a request to cancel to, and gets
// one that dial refuses. Where the context of a statement that silence watches over ends, the wire is cut off from the
// driver, which reads and writes nothing more, and stays open: the server may go on with the statement for long, and a
// connection that is closed makes room for another, whose statement may wait in the server as well. So callers
// who come and go would leave ever more server processes behind.
type wire struct {
	net.Conn
	watched atomic.Bool // silence knows of the statement under way
	cutOff  atomic.Bool
	moved   atomic.Int64 // when a piece last went through, in nanoseconds of this process's monotonic clock
}

// pieceMost is how much is written at a time, so that a large statement on its way can be told from a silent wire.
const pieceMost = 64 << 10

var processStart = time.Now()

// still is for how long nothing has gone through.
func (w *wire) still() time.Duration { return time.Since(processStart) - time.Duration(w.moved.Load()) }

func (w *wire) note() { w.moved.Store(int64(time.Since(processStart))) }

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.note()
	}
	return n, err
}

func (w *wire) Write(b []byte) (sent int, err error) {
	for len(b) > 0 && err == nil {
		if w.cutOff.Load() {
			return sent + len(b), nil
		}
		var n int
		n, err = w.Conn.Write(b[:min(len(b), pieceMost)])
		w.note()
		sent, b = sent+n, b[n:]
	}
	return sent, err
}

// Close closes the socket, unless it was cut off: that is for silence to drop.
func (w *wire) Close() error {
	if w.cutOff.Load() {
		return nil
	}
	return w.Conn.Close()
}

func (w *wire) drop() { w.Conn.Close() }

const uncancelable = "uncancelable"

type noAddress struct{}

func (noAddress) Network() string { return uncancelable }
func (noAddress) String() string  { return uncancelable }

func (*wire) RemoteAddr() net.Addr { return noAddress{} }

var errUncancelable = errors.New("statements are not canceled")

// A peer that has gone without a word is noticed by the kernel: an idle connection after eight seconds, one with
// unanswered data after userTimeout. What the kernel can't see, a peer that takes bytes and does nothing, is
// silence's business.
const userTimeout = 5 * time.Second

var dialer = net.Dialer{
	Timeout:         connectTimeout,
	KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: time.Second, Count: 3},
	Control:         limitUnanswered,
}

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network == uncancelable {
		return nil, errUncancelable
	}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return &wire{Conn: conn}, nil
}

// wireOf is the socket under a connection, below its encryption: to close an encrypted connection politely one writes to
// it, which may block.
func wireOf(c *pgconn.PgConn) *wire {
	conn := c.Conn()
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	return conn.(*wire) //nolint:forcetypeassert // dial makes no other
}

// closer ends a statement for this process when its context ends. pgx would set a deadline, send a request to cancel, and
// hold on to the connection for 15 more seconds.
type closer struct{ wire *wire }

func (c closer) HandleCancel(context.Context) {
	if !c.wire.watched.Load() {
		c.wire.drop()
		return
	}
	c.wire.cutOff.Store(true)
	c.wire.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // then it is closed already
}
func (closer) HandleUnwatchAfterCancel() {}
