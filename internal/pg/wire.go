package pg

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// ParseConfig parses the url of a database. Its connections never send a request to cancel a statement: while a commit
// waits for a synchronous standby, such a request ends only the wait. The commit then exists on this server alone, and
// a failover loses it (PostgreSQL manual, "Synchronous Replication"). When the context of a statement ends, nothing
// more is read or written, and the server continues.
func ParseConfig(url string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse database url: %w", err)
	}
	harden(config)
	return config, nil
}

// connectTimeout bounds one attempt to connect.
const connectTimeout = 5 * time.Second

func harden(config *pgx.ConnConfig) {
	config.ConnectTimeout = connectTimeout
	config.DialFunc = dialerOf(config)
	config.BuildContextWatcherHandler = func(c *pgconn.PgConn) ctxwatch.Handler { return closer{wireOf(c)} }
	config.OnNotice = noteUnreplicated
}

// wire is the socket of a connection. pgx asks it for the address of cancel requests, and gets one that dial rejects.
// When the context of a watched statement ends, the wire is cut off from the driver, which reads and writes nothing
// more, but it stays open: the server may work on the statement for long, and closing the connection would make room
// for another one, whose statement may wait as well. Callers that leave early would leave ever more server processes
// behind.
type wire struct {
	net.Conn
	watched atomic.Bool // the watchdog knows the current statement
	cutOff  atomic.Bool
	moved   atomic.Int64 // when data was last transferred, in nanoseconds since processStart
	heard   atomic.Bool  // something was received
	silent  func()       // called at the end if nothing was; nil: not called
}

// pieceMost bounds one write, so that a large statement in transfer can be told from a silent wire.
const pieceMost = 64 << 10

var processStart = time.Now()

// still is for how long no data was transferred.
func (w *wire) still() time.Duration { return time.Since(processStart) - time.Duration(w.moved.Load()) }

func (w *wire) note() { w.moved.Store(int64(time.Since(processStart))) }

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n > 0 {
		w.heard.Store(true)
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

// Close closes the socket, unless it was cut off: the watchdog drops that one.
func (w *wire) Close() error {
	if w.cutOff.Load() {
		return nil
	}
	return w.end()
}

func (w *wire) drop() { _ = w.end() }

func (w *wire) end() error {
	if w.silent != nil && !w.heard.Load() {
		w.silent()
	}
	return w.Conn.Close()
}

const uncancelable = "uncancelable"

type noAddress struct{}

func (noAddress) Network() string { return uncancelable }
func (noAddress) String() string  { return uncancelable }

func (*wire) RemoteAddr() net.Addr { return noAddress{} }

var errUncancelable = errors.New("statements are not canceled")

// userTimeout is how long a peer may leave data unacknowledged before the kernel ends the connection. On an idle
// connection, that takes eight seconds. The watchdog finds a peer that accepts data and does nothing.
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

// limitUnanswered sets userTimeout on Linux; elsewhere keep-alive probes have to do.
func limitUnanswered(network, _ string, socket syscall.RawConn) (err error) {
	const tcpUserTimeout = 0x12 // TCP_USER_TIMEOUT of tcp(7), which package syscall does not have
	if runtime.GOOS != "linux" || !strings.HasPrefix(network, "tcp") {
		return nil
	}
	controlErr := socket.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(userTimeout.Milliseconds()))
	})
	return cmp.Or(controlErr, err)
}

// wireOf is the socket of a connection, below its encryption: closing an encrypted connection writes to it, which may
// block.
func wireOf(c *pgconn.PgConn) *wire {
	conn := c.Conn()
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	return conn.(*wire) //nolint:forcetypeassert // dial makes no other
}

// closer ends a statement for this process when its context ends. pgx would set a deadline, send a cancel request, and
// keep the connection for 15 seconds more.
type closer struct{ wire *wire }

func (c closer) HandleCancel(context.Context) {
	if !c.wire.watched.Load() {
		c.wire.drop()
		return
	}
	c.wire.cutOff.Store(true)
	c.wire.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // it is already closed then
}
func (closer) HandleUnwatchAfterCancel() {}
