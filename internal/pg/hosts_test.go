package pg_test

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"pawl/internal/pg"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// connectAfter connects to a database whose url has another host before it.
func connectAfter(t *testing.T, port int, url string) *pgx.ConnConfig {
	t.Helper()
	database, err := pgx.ParseConfig(dbtest.NewProxy(t, url).URL)
	assert.NoError(t, err)
	config, err := pg.ParseConfig(fmt.Sprintf("host=127.0.0.1,127.0.0.1 port=%d,%d user=%s dbname=%s sslmode=disable",
		port, database.Port, database.User, database.Database))
	assert.NoError(t, err)
	return config
}

// TestHostThatDoesNotAccept: a machine that was cut off does not refuse a connection. The next host is tried soon.
func TestHostThatDoesNotAccept(t *testing.T) {
	t.Parallel()
	silent, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	assert.NoError(t, err)
	defer syscall.Close(silent)
	assert.NoError(t, syscall.Bind(silent, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	assert.NoError(t, syscall.Listen(silent, 0)) // the kernel keeps one connection at most
	bound, err := syscall.Getsockname(silent)
	assert.NoError(t, err)
	port := bound.(*syscall.SockaddrInet4).Port
	for full := false; !full; {
		kept, err := net.DialTimeout("tcp", fmt.Sprint("127.0.0.1:", port), 100*time.Millisecond)
		if full = err != nil; !full {
			defer kept.Close()
		}
	}
	began := time.Now()
	conn, err := pgx.ConnectConfig(t.Context(), connectAfter(t, port, dbtest.New(t).URL))
	assert.NoError(t, err)
	assert.NoError(t, conn.Close(t.Context()))
	if took := time.Since(began); took > 4*time.Second { // it would be five
		t.Errorf("connects after %s", took)
	}
}

// TestHostThatIsSilent: a machine that hangs accepts connections. It is skipped for a while, and then tried again.
func TestHostThatIsSilent(t *testing.T) {
	t.Parallel()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	assert.NoError(t, err)
	var accepted atomic.Int64
	var running sync.WaitGroup
	running.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
			accepted.Add(1)
		}
	})
	defer running.Wait()
	defer listener.Close()
	config := connectAfter(t, listener.Addr().(*net.TCPAddr).Port, dbtest.New(t).URL)
	config.ConnectTimeout = time.Second
	connect := func() {
		conn, err := pgx.ConnectConfig(t.Context(), config)
		assert.NoError(t, err)
		assert.NoError(t, conn.Close(t.Context()))
	}
	connect()
	first := time.Now()
	connect()
	n := accepted.Load()
	assert.True(t, n == 1 || time.Since(first) >= config.ConnectTimeout, "it was tried", n, "times")
	assert.Eventually(t, "it is tried again", func() bool { connect(); return accepted.Load() > 1 })
}
