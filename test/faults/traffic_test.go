package faults

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptrace"
	"pawl/test/assert"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/internal/load"
)

// order is what a caller asks for. Asked again, it is the same to the byte.
type order struct {
	id, amount, item string
	card             string // or none
	lines            string // in the place of an item; or none
}

func (o order) body() string {
	terms := "" // most orders do without, and take another way for it
	if o.card != "" {
		terms = fmt.Sprintf(`,"paymentMethod":%q`, o.card)
	}
	if o.lines != "" {
		return fmt.Sprintf(`{"orderId":%q,"amount":%s,"lines":%s%s}`, o.id, o.amount, o.lines, terms)
	}
	return fmt.Sprintf(`{"orderId":%q,"amount":%s,"item":%q%s}`, o.id, o.amount, o.item, terms)
}

// answer is what a caller got. One with an error is none.
type answer struct {
	code   int
	header http.Header
	body   struct {
		OrderID   string
		Status    any // the state of an order, or the number of a problem
		Code      string
		Amount    string
		Steps     map[string]struct{ Completed, Undone bool }
		Failure   struct{ Step, Code string }
		CreatedAt time.Time
	}
	text  string
	began atomic.Bool // its first byte arrived
	err   error
}

// state is the state of the order in the answer, "" if there is none.
func (a *answer) state() string {
	if a.err != nil || a.code/100 != 2 {
		return ""
	}
	state, _ := a.body.Status.(string)
	return state
}

func (a *answer) final() bool { return a.state() == "completed" || a.state() == "failed" }

func (a *answer) String() string {
	if a.err != nil {
		return a.err.Error()
	}
	return fmt.Sprintf("%d %s", a.code, a.text)
}

// wrong says what is wrong with an answer to a good request for an order, whatever went on in the service.
func (a *answer) wrong(o order) string {
	switch {
	case a.code == http.StatusOK && a.final(), a.code == http.StatusAccepted && !a.final():
		return a.wrongOrder(o)
	case a.code == http.StatusServiceUnavailable:
		if a.header.Get("Retry-After") == "" || a.header.Get("Content-Type") != "application/problem+json" || a.body.Code == "" {
			return "a 503 that does not say when to come again, and why"
		}
		return ""
	default:
		return "an answer that no caller should get"
	}
}

func (a *answer) wrongOrder(o order) string {
	steps := a.body.Steps
	charge, reserve, confirm := steps["charge"], steps["reserve"], steps["confirm"]
	switch {
	case a.header.Get("Content-Type") != "application/json":
		return "not JSON"
	case a.body.OrderID != o.id || a.body.Amount != o.amount:
		return "another order"
	case a.state() == "completed" && !(charge.Completed && reserve.Completed && confirm.Completed):
		return "completed without its steps"
	case a.state() == "failed" && (!charge.Undone || confirm.Completed || a.body.Failure.Code != "out_of_stock"):
		return "failed without having been undone, or without a reason"
	case a.code == http.StatusAccepted && (a.header.Get("Location") == "" || a.header.Get("Retry-After") == ""):
		return "a 202 that does not say where to look, and when"
	}
	return ""
}

// client sends requests. Its answers are the truth that the database is compared with.
type client struct {
	http  *http.Client
	token string // or none
}

// answerLimit is longer than the service lets a caller wait.
const answerLimit = 70 * time.Second

func newClient(callers int, keepAlive bool) *client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = callers, callers
	transport.DisableKeepAlives = !keepAlive
	return &client{http: &http.Client{Transport: transport, Timeout: answerLimit}}
}

func (c *client) close() { c.http.CloseIdleConnections() }

// insist sends an order until there is room for it, as callers are told to.
func (c *client) insist(ctx context.Context, url string, o order) *answer {
	for end := time.Now().Add(patience); ; {
		a := c.process(ctx, url, o, "")
		if a.err != nil || a.code != http.StatusServiceUnavailable || time.Now().After(end) {
			return a
		}
		<-time.After(pace)
	}
}

// process sends an order once. Prefer may be empty.
func (c *client) process(ctx context.Context, url string, o order, prefer string) *answer {
	return c.send(ctx, request{method: http.MethodPost, url: url + "/api/orders/process", body: o.body(), prefer: prefer})
}

func (c *client) get(ctx context.Context, url string) *answer {
	return c.send(ctx, request{method: http.MethodGet, url: url})
}

// request is what a caller sends. The body and Prefer may be empty.
type request struct {
	method, url, body, prefer string
	token                     string
	header                    [2]string // one more, or none
}

func (c *client) send(ctx context.Context, r request) *answer {
	a := &answer{}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotFirstResponseByte: func() { a.began.Store(true) },
	})
	sent, err := http.NewRequestWithContext(ctx, r.method, r.url, strings.NewReader(r.body))
	if err != nil {
		a.err = err
		return a
	}
	if r.body != "" {
		sent.Header.Set("Content-Type", "application/json")
	}
	if token := cmp.Or(r.token, c.token); token != "" {
		sent.Header.Set("Authorization", "Bearer "+token)
	}
	if r.prefer != "" {
		sent.Header.Set("Prefer", r.prefer)
	}
	if r.header[0] != "" {
		sent.Header.Set(r.header[0], r.header[1])
	}
	response, err := c.http.Do(sent)
	if err != nil {
		a.err = err
		return a
	}
	defer response.Body.Close()
	a.code, a.header = response.StatusCode, response.Header
	a.read(response.Body)
	return a
}

func (a *answer) read(body io.Reader) {
	text, err := io.ReadAll(body)
	a.text = string(text)
	if err != nil {
		a.err = fmt.Errorf("read answer: %w", err)
		return
	}
	if !strings.Contains(a.header.Get("Content-Type"), "json") {
		return
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	if err := decoder.Decode(&a.body); err != nil {
		a.err = fmt.Errorf("decode answer %q: %w", text, err)
	}
}

// traffic is a closed loop of callers that send new orders. Most of them send an order until they know how it ended;
// every third order is sent once, whatever comes back: only the service will finish it.
type traffic struct {
	t       testing.TB
	url     func(*rand.Rand) string
	prefer  string
	cuts    bool // connections may break: processes are being killed
	once    bool // no order is sent twice
	order   func(n int, random *rand.Rand) order
	callers int
	idle    time.Duration // that a caller waits before the next order
	seed    uint64

	client  *client
	running *load.Running

	mu     sync.Mutex
	orders []*sent
	counts counts
}

// sent is an order as its caller knows it.
type sent struct {
	order
	stored  bool // some answer showed it
	final   string
	cut     bool // some try ended without an answer
	torn    bool // some answer began and did not end
	refused bool // some try was answered 503
}

// counts are what the callers saw, all orders together.
type counts struct {
	answered   int // with a final order
	cut        int // tries without an answer
	refused    int // tries answered 503
	unfinished int // tries answered 202
	suppressed int // tries again of an order that an earlier try had stored
}

func (c counts) String() string {
	return fmt.Sprintf("%d answered, %d cut, %d refused, %d unfinished, %d duplicates suppressed",
		c.answered, c.cut, c.refused, c.unfinished, c.suppressed)
}

// pace is how long a caller waits who did not learn how an order ended: so long at first, and up to pauseLimit where it
// does not learn it for long.
const (
	pace       = 10 * time.Millisecond
	pauseLimit = 200 * time.Millisecond
)

// patience is how long a caller tries to learn how an order ended.
const patience = 60 * time.Second

// start sets the callers going until finish. Orders get ids that begin with the name of the traffic.
func (f *traffic) start(t testing.TB) {
	t.Helper()
	f.t = t
	f.client = newClient(f.callers, true)
	f.running = load.Load{Callers: f.callers, Caller: func(caller int) (send func(int) error, end func()) {
		random := rand.New(rand.NewPCG(f.seed, uint64(caller)))
		return func(n int) error {
			f.deliver(&sent{order: f.order(n+1, random)}, f.once || n%3 == 2, random)
			if f.idle > 0 {
				<-time.After(f.idle)
			}
			return nil
		}, func() {}
	}}.Start()
	t.Cleanup(f.finish)
}

// finish lets the callers finish what they are at. Calling it again is harmless.
func (f *traffic) finish() {
	f.running.Halt()
	f.running.Wait()
	f.client.close()
}

// deliver sends an order, once or until it is known how it ended.
func (f *traffic) deliver(s *sent, once bool, random *rand.Rand) {
	f.mu.Lock()
	f.orders = append(f.orders, s)
	f.mu.Unlock()
	end := time.Now().Add(patience)
	for pause := pace; ; pause = min(2*pause, pauseLimit) {
		began := time.Now()
		a := f.client.process(context.WithoutCancel(f.t.Context()), f.url(random), s.order, f.prefer)
		f.note(s, a, began)
		if s.final != "" {
			return
		}
		<-time.After(pause)
		if once {
			return
		}
		if time.Now().After(end) {
			f.t.Errorf("order %s: no final answer within %s", s.id, patience)
			return
		}
	}
}

// note writes an answer down and judges it.
func (f *traffic) note(s *sent, a *answer, began time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case a.err != nil:
		f.counts.cut++
		assert.True(f.t, f.cuts, "order", s.id, a.err)
	case a.wrong(s.order) != "":
		f.t.Errorf("order %s: %s: %s", s.id, a.wrong(s.order), a)
	case a.code == http.StatusServiceUnavailable:
		f.counts.refused++
	case s.final != "" && s.final != a.state():
		f.t.Errorf("order %s: was %s, is now %s", s.id, s.final, a.state())
	default:
		f.noteOrder(s, a, began)
	}
	s.cut = s.cut || a.err != nil
	s.torn = s.torn || a.err != nil && a.began.Load()
	s.refused = s.refused || a.code == http.StatusServiceUnavailable
}

func (f *traffic) noteOrder(s *sent, a *answer, began time.Time) {
	if (s.cut || s.refused) && !s.stored && a.body.CreatedAt.Before(began) {
		f.counts.suppressed++
	}
	s.stored = true
	if !a.final() {
		f.counts.unfinished++
		return
	}
	s.final = a.state()
	f.counts.answered++
}

func (f *traffic) seen() counts {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.counts
}

// flows waits until another n orders were answered with how they ended.
func (f *traffic) flows(n int) {
	f.t.Helper()
	want := f.seen().answered + n
	eventually(f.t, patience, "orders are answered", func() bool { return f.seen().answered >= want })
}

// smallOrders spreads over many items, and one that soon runs out.
func smallOrders(name string) func(int, *rand.Rand) order {
	return func(n int, random *rand.Rand) order {
		item := fmt.Sprintf("item-%d", random.IntN(50))
		if random.IntN(8) == 0 {
			item = scarce
		}
		return order{id: fmt.Sprintf("%s-%d", name, n), amount: fmt.Sprintf("%d.%02d", random.IntN(500), 1+random.IntN(99)), item: item}
	}
}

// scarce is an item with a stock.
const scarce = "scarce"
