package db

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgconn/ctxwatch"
)

// ParseConfig reads the url of a database. Connections made with the result never send a request to cancel
// a statement: where the server waits for a synchronous standby, such a request ends the wait and not the commit,
// which then stands on this server alone and is lost in a failover (PostgreSQL manual, "Synchronous
// Replication"). When a context ends under a statement, the socket is closed; the server carries on.
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
// one that dial refuses.
type wire struct{ net.Conn }

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
	return &wire{conn}, nil
}

// wireOf is the socket under a connection, below its encryption: to close an encrypted connection politely one writes to
// it, which may block.
func wireOf(c *pgconn.PgConn) net.Conn {
	conn := c.Conn()
	if encrypted, ok := conn.(*tls.Conn); ok {
		return encrypted.NetConn()
	}
	return conn
}

// closer closes the socket when the context of a statement ends. pgx would set a deadline, and then hold on to
// the connection for 15 more seconds.
type closer struct{ conn net.Conn }

func (c closer) HandleCancel(context.Context) { c.conn.Close() }
func (closer) HandleUnwatchAfterCancel()      {}
