package pg

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// hosts are those of a url that names several. The driver tries them in order for each connection, and one that is
// silent would delay them all: a machine that was cut off does not refuse, and one that hangs accepts connections. So a
// silent host is skipped for as long as it was waited for. Without that, even the watchdog would not reach the server
// that has taken over.
type hosts struct {
	mu      sync.Mutex
	skipped map[string]time.Time // until when, by address
}

// acceptLimit is how long a host may take to accept a connection if there is another one.
const acceptLimit = 500 * time.Millisecond

var errSkipped = errors.New("skipped: it was silent a moment ago")

// dialerOf is what connects to the hosts of a url.
func dialerOf(config *pgx.ConnConfig) pgconn.DialFunc {
	if !slices.ContainsFunc(config.Fallbacks, func(f *pgconn.FallbackConfig) bool { return f.Host != config.Host || f.Port != config.Port }) {
		return dial
	}
	return (&hosts{skipped: map[string]time.Time{}}).dial
}

func (h *hosts) dial(ctx context.Context, network, address string) (net.Conn, error) {
	if h.skips(address) {
		return nil, errSkipped
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, acceptLimit)
	defer cancel()
	conn, err := dial(ctx, network, address)
	if err != nil {
		h.skip(address, began)
		return nil, err
	}
	conn.(*wire).silent = sync.OnceFunc(func() { h.skip(address, began) }) //nolint:forcetypeassert // dial makes no other
	return conn, nil
}

func (h *hosts) skips(address string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return time.Now().Before(h.skipped[address])
}

func (h *hosts) skip(address string, waited time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.skipped[address] = time.Now().Add(time.Since(waited))
}
