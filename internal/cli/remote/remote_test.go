package remote_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"pawl/client"
	"pawl/db"
	"pawl/engine"
	"pawl/httpapi"
	"pawl/internal/access"
	"pawl/internal/books"
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
	assert.True(t, (err == nil) == (s.says == "") && (err == nil || strings.Contains(err.Error(), s.says)) &&
		regexp.MustCompile(s.prints).MatchString(out.String()), "pawl", s.line, err, "printed", &out)
}

// TestRefundOfLines refunds lines of an order.
func TestRefundOfLines(t *testing.T) {
	t.Parallel()
	url := service(t)
	shop, err := client.New(url, client.Options{})
	assert.NoError(t, err)
	assert.NoError(t, assert.Err(shop.ProcessAndWait(t.Context(), client.ProcessBody{OrderID: "basket", Amount: "12.99", Lines: []client.LineInput{
		{Item: "cup", Quantity: new(3), Amount: "8.00"}, {Item: "by air", Kind: client.LineInputKindShipping, Amount: "4.99"}}})))
	const refund = "orders refund basket --reason broken --line "
	for _, s := range []step{
		{refund + "1", "such as 2=1", `^$`},
		{refund + "1=1 --restock-line 2", "must be one of --line", `^$`},
		{refund + "1=4", "409", `^$`},
		{refund + "1=2,2=1 --restock-line 1", "", `(?m)^refunded +10.32$`},
		{"orders show basket", "", `(?m)^refund 1 +done 10.32 broken\nrefund 1 +2 of line 1, cup\nrefund 1 +1 of line 2, by air$`},
	} {
		s.try(t, url)
	}
}

// TestCommands is what people type, one line after the other, and what comes of it.
func TestCommands(t *testing.T) {
	t.Parallel()
	url := service(t)
	for _, s := range []step{
		{"orders process order-1 --amount 99.99 --item widget --metadata shop=a", "",
			`^order +status .*\norder-1 +completed +- +99.99 USD +widget +1 +- +\S+Z\n$`},
		{"orders process order-1 --amount 5 --item widget", "409", `^$`},
		{"orders process order-2 --amount 600 --item lamp --customer ann", "", `(?m)^order-2 +pending +approval +600(\.00)? USD +lamp +1 +ann`},
		{"orders process order-3 --amount 700 --item lamp", "", `(?m)^order-3 +pending +approval`},
		{"holds", "", `^order +hold .*\norder-2 +approval +\S+Z +\S+Z +\S*approve\S* +-\norder-3 +approval`},
		{"overview", "", `^what +of +since +orders +amount +detail\napproval +pending +\S+Z +2 +1300.00 USD +-\n$`},
		{"holds --limit 1", "", `(?m)^order-2 .*\nand 1 more\n$`},
		{"holds --hold attention -o json", "", `^$`},
		{"orders approve order-2 --reason fine --dry-run", "", `(?m)^order-2 .*\ndry run: the request would succeed; nothing was changed\n$`},
		{"orders approve order-2 order-1 --reason fine", `order "order-1": 409`, `(?m)^order-2 +completed`},
		{"orders reject order-3 --reason no --request-id ticket-3", "", `(?m)^order-3 +(failed|canceled)`},
		{"orders request ticket-3", "", `^order +state .*\norder-3 +done +canceled +- +700.00 USD +- +-\n\nstate +orders +amount\ndone +1 +700.00 USD\n$`},
		{"orders process order-3 --amount 700 --item lamp", `order "order-3" is`, `(?m)^order-3 +(failed|canceled)`},
		{"orders watch order-3 -o json", `order "order-3" is`, `^{"allowedActions".*}\n$`},
		{"orders list --item lamp", "", `^order .*\norder-3 .*\norder-2 .*\n$`},
		{"orders list --status completed,charging --since 24h --limit 1", "", `^order .*\norder-2 .*\n$`},
		{"orders list ann", "", `^order +matched +status .*\norder-2 +customerId +completed .*\n$`},
		{"orders list order --limit 2", "", `^order .*\norder-1 +orderIdPrefix .*\norder-2 .*\nand more: use --limit\n$`},
		{"orders list nothing", "", `^order .*\n$`},
		{"orders list --status failed,canceled", "", `^order .* why\norder-3 .* rejected\n$`},
		{"orders list --item lamp --limit 1 -o csv", "", `^orderId,status,[^\n]*\r\norder-3,canceled,[^\n]*\r\n$`},
		{"orders list --limit 0 -o csv", "", `^orderId,[^\n]*\r\norder-3,[^\n]*\r\norder-2,[^\n]*\r\norder-1,[^\n]*\r\n$`},
		{"orders list ann --item lamp -o csv", "", `^orderId,[^\n]*\r\norder-2,[^\n]*\r\n$`},
		{"orders show order-1 -o csv", "must be table or json", `^$`},
		{"orders step-result order-1 --step charge --outcome done --reason seen", "409", `^$`},
		{"orders refund order-1 --amount 12.50 --reason broken --request-id ticket-1", "", `(?m)^refunded +12.50$`},
		{"orders show order-1", "", `(?s)^order +order-1\nstatus +completed\n.*amount +99.99 USD\nrefunded +12.50\n.*metadata +shop=a\nrefund 1 +done 12.50 broken\n\nseq +at.*completed .*refund`},
		{"orders dispute order-1 --reference dp_1 --state opened --amount 5 --reason fraudulent", "", `(?m)^dispute dp_1 +opened 5.00 fraudulent$`},
		{"orders dispute order-1 --reference dp_1 --state wonn --amount 5", "did you mean won?", `^$`},
		{"orders list dp_1", "", `\norder-1 +disputeReference `},
		{"orders show order-2", "", `(?m) pending +pending +approve +local +fine$`},
		{"orders show nothing", "404", `^$`},
		{"orders retry order-1", "409", `^$`},
		{"orders refund order-1 --reason rest --dry-run", "", `(?s)^order +order-1\n.*\ndry run: the request would succeed; nothing was changed\n$`},
		{"orders refund order-1 --reason rest --amount=", "--amount must not be empty", `^$`},
		{"orders process order-4 --amount 5 --item lamp --quantity 0", "1 or more", `^$`},
		{"orders list --limit -1", "--limit must not be negative", `^$`},
		{"orders list --since -1h", "--since must not be negative", `^$`},
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
	assert.NoError(t, <-ended)
	want := "[order-1 order.charging order-1 order.completed order-2 order.charging order-2 order.completed]"
	assert.Equal(t, fmt.Sprint(types), want, types)
	(step{"events --order order-1 --status completed", "", `^\S+Z  order.completed +order-1 +5\.00 USD +- +\d+\.\d+\n$`}).try(t, url)
	process("order-3")
	(step{"events", "", `order.completed       order-3`}).try(t, url) // it has just happened
	(step{"events --type order.eaten", "type", `^$`}).try(t, url)
}

// TestWatch follows an order that a person approves meanwhile.
func TestWatch(t *testing.T) {
	t.Parallel()
	url := service(t)
	assert.NoError(t, execute(t.Context(), io.Discard, url, "orders process order-1 --amount 600 --item lamp"))
	out, ended := follow(t.Context(), url, "orders watch order-1 -o json")
	changes := json.NewDecoder(out)
	var order client.Order
	err := changes.Decode(&order)
	assert.True(t, err == nil && order.Hold == client.OrderHoldApproval, order, err)
	assert.NoError(t, execute(t.Context(), io.Discard, url, "orders approve order-1"))
	for !order.Status.Final() {
		assert.NoError(t, changes.Decode(&order))
	}
	err = <-ended
	assert.True(t, err == nil && order.Status == client.StatusCompleted, order, err)
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
	assert.NoError(t, assert.Err(store.Use(t.Context(), db.New(pool), []byte("approval: [{amountOver: 500, currency: USD, timeout: 24h}]\n"), "test")))
	orders := engine.New(pool, engine.Config{})
	orders.Start()
	t.Cleanup(func() {
		assert.Succeeds(t, orders.Stop(context.WithoutCancel(t.Context())))
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
	verification := books.NewVerification(pool, books.VerificationConfig{})
	t.Cleanup(verification.Stop)
	server := httptest.NewServer(httpapi.New(orders, httpapi.Config{
		ResponseTimeout: 30 * time.Second, Events: tail, Access: control, Books: verification,
		Webhooks: webhooks.NewEndpoints(db.New(pool), orders.Orders, webhooks.Options{Private: true, Latest: feed.Latest, Now: time.Now}),
	}))
	t.Cleanup(server.Close)
	return server.URL, db.New(d.Pool)
}

// TestCustomers erases one, and lists the erasures.
func TestCustomers(t *testing.T) {
	t.Parallel()
	url := service(t)
	shop, err := client.New(url, client.Options{})
	assert.NoError(t, err)
	assert.NoError(t, assert.Err(shop.Process(t.Context(), client.ProcessBody{OrderID: "o", Amount: "5", Item: "lamp", CustomerID: "anna"})))
	for _, s := range []step{
		{"customers erase anna --reason asked --request-id r", "", `^1 orders are now of erased_\w+\. Others`},
		{"customers erase anna --reason asked --request-id r2", "no such customer", `^$`},
		{"customers erasures", "", `(?m)^1 +\S+Z +local +\S+Z +1 +erased_\w+ +asked$`},
	} {
		s.try(t, url)
	}
}

// TestBooks lists stored verifications, and shows the money of one by day.
func TestBooks(t *testing.T) {
	t.Parallel()
	url := service(t)
	shop, err := client.New(url, client.Options{})
	assert.NoError(t, err)
	(step{"books", "", `^number .*\n$`}).try(t, url)
	assert.NoError(t, assert.Err(shop.Process(t.Context(), client.ProcessBody{OrderID: "o", Amount: "5", Item: "lamp"})))
	assert.NoError(t, assert.Err(shop.StartVerification(t.Context())))
	assert.Eventually(t, "the verification ends", func() bool {
		state, err := shop.GetVerification(t.Context())
		return err == nil && state.State == client.VerificationStateDone
	})
	for _, s := range []step{
		{"books", "", `(?m)^1 +\S+Z +local +right +- +- +0$`},
		{"books 1", "", `(?m)^20\S+ +USD +1 +1 +5.00 +0.00 +0.00 +0.00 +5.00 +0.00 +0.00 +0.00 +0$`},
		{"books 1 -o csv", "", `^day,[^\n]*\r\n20\S+,USD,1,1,5.00,0.00,0.00,0.00,5.00,0.00,0.00,0.00,0\r\n$`},
		{"books 1 --table months -o csv", "", `^period,[^\n]*\r\n20\d\d-\d\d,USD,5.00,0.00,0.00,0.00,5.00\r\n$`},
		{"movements soon", "a period is a month such as 2026-11", `^$`},
		{"movements 2020-01 -o csv", "", `^at,orderId,kind,amount,currency,reference\r\n$`},
		{"books 1 --table movements", "", `(?m)^20\d\d-\d\d-\d\d +USD +5.00 +0.00 +0.00 +0.00 +5.00$`},
		{"books -o csv", "needs the NUMBER", `^$`},
		{"books one", "must be a number", `^$`},
	} {
		s.try(t, url)
	}
}

// TestImport imports a file, again after it was changed.
func TestImport(t *testing.T) {
	t.Parallel()
	url := service(t)
	file := filepath.Join(t.TempDir(), "orders.ndjson")
	store := func(lines ...string) {
		t.Helper()
		assert.NoError(t, os.WriteFile(file, []byte(strings.Join(lines, "\n")), 0o600))
	}
	var all []string
	for n := range 300 {
		all = append(all, fmt.Sprintf(`{"orderId":"order-%d","amount":"1.50","item":"widget"}`, n))
	}
	store(all...)
	(step{"orders import " + file, "", `^300 orders: 300 completed\n$`}).try(t, url)
	store(append(all, "", `{"orderId":"order-7","amount":"2","item":"widget"}`, `{"orderId":`, `{"orderId":"big","amount":600,"item":"lamp"}`)...)
	var out bytes.Buffer
	err := execute(t.Context(), &out, url, "orders import "+file)
	assert.True(t, err != nil && err.Error() == "2 orders failed, were canceled or were rejected", err)
	for _, line := range []string{`line 302: 409 order_conflict: `, `line 303: 400 malformed_json: `, `line 304: order "big" is in progress: approval$`,
		`303 orders: 300 completed, 2 rejected, 1 in progress$`} {
		assert.True(t, regexp.MustCompile("(?m)^"+line).MatchString(out.String()), "no", line, "in", &out)
	}
	store(all[0], `[]`)
	(step{"orders import -o json " + file, "1 orders failed",
		`(?s)^({"line":1,"order":{.*}}\n{"line":2,"problem":{.*}}|{"line":2,"problem":{.*}}\n{"line":1,"order":{.*}})\n$`}).try(t, url)
	store(all[0], strings.Repeat("x", 2<<20))
	(step{"orders import " + file, "read line 2: ", `^1 orders: 1 completed\n$`}).try(t, url)
	store()
	(step{"orders import " + file, "", `^0 orders: -\n$`}).try(t, url)
	assert.ErrorIs(t, execute(t.Context(), io.Discard, url, "orders import /nonexistent"), remote.ErrUsage)
	interrupted, stop := context.WithCancel(t.Context())
	stop()
	err = execute(interrupted, io.Discard, url, "orders import "+file)
	assert.True(t, errors.Is(err, context.Canceled) && strings.Contains(err.Error(), "repeat the command"), err)
}

// receiver is an endpoint, which answers with what it is told to, and counts.
type receiver struct {
	url           string
	status, asked atomic.Int32
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.status.Store(http.StatusNoContent)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		r.asked.Add(1)
		w.WriteHeader(int(r.status.Load()))
	}))
	t.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// awaitDelivery waits until the newest delivery of an endpoint that a filter finds is so.
func awaitDelivery(t *testing.T, url, filter string, so func(client.Delivery) bool) (number int64) {
	t.Helper()
	assert.Eventually(t, filter, func() bool {
		var out bytes.Buffer
		assert.NoError(t, execute(t.Context(), &out, url, "webhooks deliveries whe_1 -o json --limit 1 "+filter))
		var d client.Delivery
		err := json.Unmarshal(out.Bytes(), &d) // of nothing, while there is none
		number = d.Delivery
		return err == nil && so(d)
	})
	return number
}

func TestWebhooks(t *testing.T) {
	t.Parallel()
	url, at := service(t), newReceiver(t)
	for _, s := range []step{
		{"webhooks create " + at.url + " --type order.completed --description shop", "",
			`(?s)^endpoint +whe_1\nurl +http://127.0.0.1:.*types +order.completed\n.*\nsecret +whsec_\S+\n$`},
		{"webhooks create ftp://127.0.0.1", "422", `^$`},
		{"webhooks list", "", `^endpoint .*\nwhe_1 +enabled +http://127.0.0.1:\d+ +order.completed +\d+ +0 +-\n$`},
		{"webhooks change whe_1 --type order.failed,order.completed", "",
			`(?s)\nurl +http://127.0.0.1:\d+\ndescription +shop\ntypes +order.failed,order.completed\n`},
		{"webhooks change whe_1 " + at.url + "/hook --all-types", "", `(?s)\nurl +http://127.0.0.1:\d+/hook\ndescription +shop\ntypes +all\n`},
		{"webhooks change whe_1 --description till --type order.completed", "",
			`(?s)\nurl +http://127.0.0.1:\d+/hook\ndescription +till\ntypes +order.completed\n`},
		{"webhooks change whe_1 --type order.failed --all-types", "none of the others can be", `^$`},
		{"webhooks show whe_1", "", `(?s)\nstate +enabled\n.*\ncreated +\S+Z by local\n$`},
		{"webhooks rotate whe_1 --overlap 1h", "", `\nsecret +whsec_\S+\nprevious secret +valid until \S+Z\n$`},
		{"webhooks rotate whe_1 --overlap 0s", "", `\nsecret +whsec_\S+\n$`},
		{"webhooks test whe_1", "", `^event +evt_test_\S+\nstatus +204\nlatency +\d+ ms\n$`},
		{"orders process order-1 --amount 5 --item lamp", "", `completed`},
	} {
		s.try(t, url)
	}
	number := awaitDelivery(t, url, "--state delivered --order order-1", func(client.Delivery) bool { return at.asked.Load() == 2 })
	step{fmt.Sprintf("webhooks deliveries whe_1 %d", number), "",
		`^delivery .*\n\d+ +evt_1_\d+_[0-9a-f]+ +order.completed +order-1 +delivered +1 +204 +\S+Z\n\nat .*\n\S+Z +204 +\d+ +-\n$`}.try(t, url)
	step{fmt.Sprintf("webhooks resend whe_1 %d --reason lost", number), "", `(?m)^\S+Z +resent +- +local lost$`}.try(t, url)
	awaitDelivery(t, url, "--state delivered", func(client.Delivery) bool { return at.asked.Load() == 3 })

	at.status.Store(http.StatusInternalServerError)
	step{"orders process order-2 --amount 5 --item lamp", "", `completed`}.try(t, url)
	number = awaitDelivery(t, url, "--order order-2", func(d client.Delivery) bool { return d.Attempts == 1 })
	for _, s := range []step{
		{"webhooks test whe_1 -o json", "not delivered", `"status": 500`},
		{fmt.Sprintf("webhooks skip whe_1 %d --reason by-hand", number), "", `(?m)order-2 +skipped +1 +500`},
		{fmt.Sprintf("webhooks skip whe_1 %d --reason again", number), "409", `^$`},
		{"webhooks skip whe_1 one --reason no", "must be a number", `^$`},
		{"webhooks recover whe_1 --since 1h", "", `^recovered +0\n$`},
		{"webhooks disable whe_1", "", `(?m)^state +disabled`},
		{"webhooks enable whe_1 --from-now", "", `(?m)^state +enabled`},
		{"webhooks delete whe_1", "", `^$`},
		{"webhooks list -o json", "", `^$`},
		{"webhooks show whe_1", "404", `^$`},
	} {
		s.try(t, url)
	}
}

var consoleLink = regexp.MustCompile(`as "([^"]+)": (http://127\.0\.0\.1:\d+)(/console\?key=\S+)\n`)

// openConsole runs pawl console until the test ends, and returns its address and key.
func openConsole(t *testing.T, line, url string) (as, address, link string) {
	t.Helper()
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	out, ended := follow(ctx, url, line)
	t.Cleanup(func() {
		end()
		assert.Succeeds(t, <-ended, "it ends with")
	})
	said, err := bufio.NewReader(out).ReadString('\n')
	found := consoleLink.FindStringSubmatch(said)
	assert.Require(t, found != nil, said, err)
	return found[1], found[2], found[3]
}

// TestConsole: on this machine one may do what the token may do at the service, and nothing else is there.
func TestConsole(t *testing.T) {
	t.Parallel()
	url, owner := serviceAndBooks(t)
	token := filepath.Join(t.TempDir(), "token")
	assert.NoError(t, os.WriteFile(token, nil, 0o600)) // the service is open
	as, address, link := openConsole(t, "console --port 0 --token-file "+token, url)
	assert.Equal(t, as, "local", "as")
	jar, err := cookiejar.New(nil)
	assert.NoError(t, err)
	browser := &http.Client{Jar: jar, CheckRedirect: func(r *http.Request, _ []*http.Request) error {
		if strings.HasPrefix(r.URL.String(), address) {
			return nil
		}
		return http.ErrUseLastResponse
	}}
	get := func(path string) (status int, header http.Header, body string) {
		t.Helper()
		answer, err := browser.Get(address + path)
		assert.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		assert.NoError(t, err)
		return answer.StatusCode, answer.Header, string(text)
	}
	status, _, body := get("/console")
	assert.True(t, status == http.StatusForbidden && !strings.Contains(body, "local"), "without the key", status, body)
	status, _, body = get(link)
	assert.True(t, status == http.StatusOK && strings.Contains(body, "<bdi>local</bdi>") && !strings.Contains(body, "Sign out"), status, body)
	status, _, body = get("/")
	assert.True(t, status == http.StatusOK && strings.Contains(body, "<bdi>local</bdi>"), "the address alone", status, body)
	for _, path := range []string{"/docs", "/problems/outcome_unknown"} {
		status, header, _ := get(path)
		assert.True(t, status == http.StatusSeeOther && header.Get("Location") == url+path, path, status, header)
	}
	for _, path := range []string{"/api/orders", "/metrics", "/console/../api/orders", "//" + strings.TrimPrefix(url, "http://") + "/api/orders"} {
		status, _, body := get(path)
		assert.Equal(t, status, http.StatusNotFound, path, body)
	}
	issued, err := access.Create(t.Context(), owner, access.Template{Name: "reader", Roles: access.Roles{access.Read},
		Lifetime: time.Hour, Actor: "test"})
	assert.NoError(t, err)
	for given, says := range map[string]string{issued.Token: "<bdi>token:reader</bdi>", "pawl_nonsense": "<bdi>anonymous</bdi>"} {
		assert.NoError(t, os.WriteFile(token, []byte(given+"\n"), 0o600))
		_, _, body := get("/console")
		assert.Contains(t, body, says, "with", given, "in the file")
	}
}

// TestConsoleThatCannotBegin: it fails if the service does not answer.
func TestConsoleThatCannotBegin(t *testing.T) {
	t.Parallel()
	for _, s := range []step{
		{"console --token-file /nonexistent", "read token", "^$"},
		{"console --token-file ''", "--token-file must not be empty", "^$"},
	} {
		s.try(t, "http://127.0.0.1:1")
	}
	(step{"console", "URL of the service", "^$"}).try(t, "ftp://elsewhere")
}
