package remote_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/db"
	"pawl/engine"
	"pawl/httpapi"
	"pawl/internal/access"
	"pawl/internal/cli/remote"
	"pawl/internal/events"
	"pawl/internal/pg"
	"pawl/internal/policy/store"
	"pawl/internal/webhooks"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// step is a command line and its result.
type step struct {
	line   string
	says   string // a part of the error; empty: none
	prints string // a regular expression
}

func (s step) try(t *testing.T, url string) {
	t.Helper()
	var out bytes.Buffer
	err := execute(t.Context(), &out, url, s.line)
	if (err == nil) != (s.says == "") || err != nil && !strings.Contains(err.Error(), s.says) ||
		!regexp.MustCompile(s.prints).MatchString(out.String()) {
		t.Errorf("pawl %s: %v, printed\n%s", s.line, err, &out)
	}
}

// TestCommands is what people type, one line after the other, and what comes of it.
func TestCommands(t *testing.T) {
	t.Parallel()
	url := service(t)
	for _, s := range []step{
		{"orders process order-1 --amount 99.99 --item widget --metadata shop=a", "",
			`^order +status .*\norder-1 +completed +- +99.99 USD +widget +1 +- +\S+Z\n$`},
		{"orders process order-1 --amount 99.99 --item widget --metadata shop=a", "", `(?m)^order-1 +completed `},
		{"orders process order-1 --amount 5 --item widget", "409", `^$`},
		{"orders process order-2 --amount 600 --item lamp --customer ann", "", `(?m)^order-2 +pending +approval +600(\.00)? USD +lamp +1 +ann`},
		{"orders process order-3 --amount 700 --item lamp", "", `(?m)^order-3 +pending +approval`},
		{"holds", "", `^order +hold .*\norder-2 +approval +\S+Z +\S+Z +\S*approve\S* +-\norder-3 +approval`},
		{"holds --limit 1", "", `(?m)^order-2 .*\nand 1 more\n$`},
		{"holds --hold attention -o json", "", `^$`},
		{"orders approve order-2 --reason fine --dry-run", "", `(?m)^order-2 .*\ndry run: the request would succeed; nothing was changed\n$`},
		{"orders approve order-2 order-1 --reason fine", `order "order-1": 409`, `(?m)^order-2 +completed`},
		{"orders reject order-3 --reason no", "", `(?m)^order-3 +(failed|canceled)`},
		{"orders process order-3 --amount 700 --item lamp", `order "order-3" is`, `(?m)^order-3 +(failed|canceled)`},
		{"orders watch order-3 -o json", `order "order-3" is`, `^{"allowedActions".*}\n$`},
		{"orders list --item lamp", "", `^order .*\norder-3 .*\norder-2 .*\n$`},
		{"orders list --status completed,charging --since 24h --limit 1", "", `^order .*\norder-2 .*\n$`},
		{"orders list --hold never", "422", `^$`},
		{"orders refund order-1 --amount 12.50 --reason broken --request-id ticket-1", "", `(?m)^refunded +12.50$`},
		{"orders refund order-1 --amount 12.50 --reason broken --request-id ticket-1", "", `(?m)^refunded +12.50$`},
		{"orders show order-1", "", `(?s)^order +order-1\nstatus +completed\n.*amount +99.99 USD\nrefunded +12.50\n.*metadata +shop=a\nrefund 1 +done 12.50 broken\n\nseq +at.*completed .*refund`},
		{"orders show order-2", "", `(?m) pending +pending +approve +local +fine$`},
		{"orders show nothing", "404", `^$`},
		{"orders retry order-1", "409", `^$`},
		{"orders refund order-1 --reason rest --dry-run", "", `(?s)^order +order-1\n.*\ndry run: the request would succeed; nothing was changed\n$`},
		{"orders refund order-1 --reason rest --amount=", "--amount must not be empty", `^$`},
		{"orders cancel order-1 --request-id=", "--request-id must not be empty", `^$`},
		{"orders process order-4 --amount 5 --item lamp --quantity 0", "1 or more", `^$`},
		{"orders list --limit -1", "--limit must not be negative", `^$`},
		{"orders list --since -1h", "--since must not be negative", `^$`},
		{"orders show ''", "arguments must not be empty", `^$`},
		{"orders process '' --amount 5 --item lamp", "arguments must not be empty", `^$`},
		{"orders list --status=", "--status must not be empty", `^$`},
		{"events --after 1.1", "to continue, use --after ", `^$`},
		{"orders refund order-1", `"reason" not set`, `^$`},
	} {
		s.try(t, url)
	}
	var out bytes.Buffer
	assert.NoError(t, execute(t.Context(), &out, url, "orders list --limit 0 -o json"))
	var ids []string
	for decoder := json.NewDecoder(&out); decoder.More(); {
		var order client.Order
		assert.NoError(t, decoder.Decode(&order))
		ids = append(ids, order.OrderID)
	}
	assert.Equal(t, strings.Join(ids, " "), "order-3 order-2 order-1", ids)
}

// follow runs a command until ctx ends, and returns its output and error.
func follow(ctx context.Context, url, line string) (out *io.PipeReader, ended chan error) {
	read, write := io.Pipe()
	ended = make(chan error, 1)
	go func() {
		err := execute(ctx, write, url, line)
		ended <- errors.Join(err, write.Close())
	}()
	return read, ended
}

// TestEvents reads the existing events, and then follows the feed.
func TestEvents(t *testing.T) {
	t.Parallel()
	url := service(t)
	process := func(id string) {
		t.Helper()
		assert.NoError(t, execute(t.Context(), io.Discard, url, "orders process "+id+" --amount 5 --item lamp"))
	}
	process("order-1")
	ctx, stop := context.WithCancel(t.Context())
	out, ended := follow(ctx, url, "events -f --after oldest --type order.completed,order.charging -o json")
	stream := json.NewDecoder(out)
	var types []string
	for next := range 4 {
		var event client.Event
		assert.NoError(t, stream.Decode(&event))
		types = append(types, event.Data.OrderID+" "+event.Type)
		if next == 1 {
			process("order-2")
		}
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	want := "[order-1 order.charging order-1 order.completed order-2 order.charging order-2 order.completed]"
	assert.Equal(t, fmt.Sprint(types), want, types)
	var text bytes.Buffer
	if err := execute(t.Context(), &text, url, "events --order order-1 --status completed"); err != nil ||
		!regexp.MustCompile(`^\S+Z  order.completed +order-1 +5\.00 USD +- +\d+\.\d+\n$`).MatchString(text.String()) {
		t.Errorf("%v, printed %s", err, &text)
	}
	process("order-3")
	text.Reset()
	if err := execute(t.Context(), &text, url, "events"); err != nil || !strings.Contains(text.String(), "order.completed       order-3") {
		t.Errorf("what has just happened is missing: %v, printed %s", err, &text)
	}
	if err := execute(t.Context(), io.Discard, url, "events --type order.eaten"); err == nil || !strings.Contains(err.Error(), "type") {
		t.Error(err)
	}
}

// TestWatch follows an order that a person approves meanwhile.
func TestWatch(t *testing.T) {
	t.Parallel()
	url := service(t)
	assert.NoError(t, execute(t.Context(), io.Discard, url, "orders process order-1 --amount 600 --item lamp"))
	out, ended := follow(t.Context(), url, "orders watch order-1 -o json")
	changes := json.NewDecoder(out)
	var order client.Order
	if err := changes.Decode(&order); err != nil || order.Hold != client.OrderHoldApproval {
		t.Errorf("%+v: %v", order, err)
	}
	if err := execute(t.Context(), io.Discard, url, "orders approve order-1"); err != nil {
		t.Error(err)
	}
	for !order.Status.Final() {
		assert.NoError(t, changes.Decode(&order))
	}
	if err := <-ended; err != nil || order.Status != client.StatusCompleted {
		t.Errorf("%+v: %v", order, err)
	}
}

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
	assert.NoError(t, err)
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
	assert.NoError(t, err)
	t.Cleanup(control.Stop)
	server := httptest.NewServer(httpapi.New(orders, httpapi.Config{
		ResponseTimeout: 30 * time.Second, Events: tail, Access: control,
		Webhooks: webhooks.NewEndpoints(db.New(pool), orders.Orders, webhooks.Options{Private: true, Latest: feed.Latest, Now: time.Now}),
	}))
	t.Cleanup(server.Close)
	return server.URL, db.New(d.Pool)
}
