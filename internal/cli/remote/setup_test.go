package remote_test

import (
	"context"
	"io"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"pawl/db"
	"pawl/engine"
	"pawl/httpapi"
	"pawl/internal/access"
	"pawl/internal/cli/remote"
	"pawl/internal/events"
	"pawl/internal/pg"
	"pawl/internal/policy/store"
	"pawl/internal/webhooks"
	"pawl/test/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// execute runs a command line against a service, and returns what it printed.
func execute(ctx context.Context, out io.Writer, url, line string) error {
	root := &cobra.Command{Use: "pawl", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(remote.Commands()...)
	args := append(strings.Fields(line), "--url", url)
	for i := range args {
		args[i] = strings.Trim(args[i], "'") // '' is an empty argument
	}
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(io.Discard)
	return root.ExecuteContext(ctx)
}

// service is a real one, where a person must approve orders of more than 500 USD.
func service(t *testing.T) (url string) {
	t.Helper()
	url, _ = serviceAndBooks(t)
	return url
}

// serviceAndBooks is one whose database a test needs, too.
func serviceAndBooks(t *testing.T) (url string, owner *db.Queries) {
	t.Helper()
	d := dbtest.New(t)
	pool, err := pg.Open(t.Context(), d.URL, pg.Options{MaxConns: 4, Patience: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if _, err := store.Use(t.Context(), db.New(pool), []byte("approval: [{amountOver: 500, currency: USD, timeout: 24h}]\n"), "test"); err != nil {
		t.Fatal(err)
	}
	orders := engine.New(pool, engine.Config{})
	orders.Start()
	t.Cleanup(func() {
		if err := orders.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	relay := events.NewRelay(db.New(pool), events.RelayConfig{})
	relay.Start()
	t.Cleanup(relay.Stop)
	feed := events.NewReader(db.New(pool), orders.Orders)
	deliverer := webhooks.NewDeliverer(db.New(pool), feed, webhooks.Config{AllowPrivate: true, Registerer: prometheus.NewRegistry()})
	deliverer.Start()
	t.Cleanup(func() { deliverer.Stop(context.WithoutCancel(t.Context())) })
	tail := events.NewTail(feed, events.TailConfig{})
	tail.Start()
	t.Cleanup(func() { tail.Stop(context.WithoutCancel(t.Context())) })
	control, err := access.New(context.WithoutCancel(t.Context()), db.New(pool), access.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(control.Stop)
	server := httptest.NewServer(httpapi.New(orders, httpapi.Config{
		ResponseTimeout: 30 * time.Second, Events: tail, Access: control,
		Webhooks: webhooks.NewEndpoints(db.New(pool), orders.Orders, webhooks.Options{Private: true, Latest: feed.Latest, Now: time.Now}),
	}))
	t.Cleanup(server.Close)
	return server.URL, db.New(d.Pool)
}
