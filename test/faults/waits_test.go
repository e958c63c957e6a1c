package faults

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pawl/test/dbtest"
)

// greedyRequests is more than a service takes connections if it is not told.
const greedyRequests = 4300

// greed is what one token does to a service, and another caller of it.
type greed struct {
	*testing.T
	address string // of the service
	token   string // that takes all it can get
	other   *client
	orders  atomic.Int64
}

// newGreed starts a service with an order that does not end, and two tokens.
func newGreed(t *testing.T) *greed {
	t.Helper()
	database := dbtest.New(t)
	service := startReplicas(t, 1, database.URL, "--lease", "1h").addresses()[0] // as long as that of the order
	at, err := url.Parse(service)
	if err != nil {
		t.Fatal(err)
	}
	token := func(name, roles string) string {
		code, said := run(t, "token", "create", name, "--roles", roles, "--database-url", database.AdminURL)
		if code != 0 {
			t.Fatal(code, said)
		}
		return strings.Fields(said)[0]
	}
	g := &greed{T: t, address: at.Host, token: token("greedy", "submit,read"), other: newClient(16, false)}
	g.other.token = token("other", "submit")
	t.Cleanup(g.other.close)
	if _, err := database.Pool.Exec(t.Context(), `WITH endless AS (
		INSERT INTO pawl.orders (order_id, status, fence, owner, due_at, amount, currency, item, submitted_by)
		VALUES ('endless', 'charging', 1, gen_random_uuid(), now() + interval '1 hour', 1, 'USD', 'i', 'token:greedy') RETURNING order_no)
		INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', 'charging', 1 FROM endless`); err != nil {
		t.Fatal(err)
	}
	return g
}

// request is the text of a request with the token.
func (g *greed) request(line, body string, headers ...string) string {
	head := append([]string{line + " HTTP/1.1", "Host: " + g.address, "Authorization: Bearer " + g.token}, headers...)
	if body != "" {
		head = append(head, "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body)))
	}
	return strings.Join(head, "\r\n") + "\r\n\r\n" + body
}

// crowd is a request over many connections, which stay open.
type crowd struct {
	mu       sync.Mutex
	open     []net.Conn
	readers  sync.WaitGroup
	silent   int         // connections on which nothing has come
	answered map[int]int // by status
}

// ask sends the request.
func (c *crowd) ask(t *testing.T, address, request string) {
	t.Helper()
	each(greedyRequests, func(int) {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Error(err)
			return
		}
		_, _ = io.WriteString(conn, request)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open = append(c.open, conn)
		c.silent++
		c.readers.Go(func() { c.read(conn) })
	})
}

func (c *crowd) read(conn net.Conn) {
	status := 0 // closed without an answer: there were too many
	response, err := http.ReadResponse(bufio.NewReaderSize(conn, 1<<10), nil)
	if err == nil {
		status = response.StatusCode
		defer response.Body.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent--
	c.answered[status]++
}

// waiting is how many requests of it wait, if those are answered nothing, or else this status.
func (c *crowd) waiting(status int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if status == 0 {
		return c.silent
	}
	return c.answered[status]
}

func (c *crowd) leave() {
	for _, conn := range c.open {
		conn.Close()
	}
	c.readers.Wait()
}

// goesOn has the other caller send orders, and reports how long those and /livez took.
func (g *greed) goesOn() {
	g.Helper()
	var mu sync.Mutex
	var orders, lives []time.Duration
	each(400, func(int) {
		id := fmt.Sprintf("other-%d", g.orders.Add(1))
		began := time.Now()
		a := g.other.process(g.Context(), "http://"+g.address, order{id: id, amount: "1.00", item: "i"}, "")
		order := time.Since(began)
		began = time.Now()
		live := g.other.get(g.Context(), "http://"+g.address+"/livez")
		mu.Lock()
		defer mu.Unlock()
		orders, lives = append(orders, order), append(lives, time.Since(began))
		if a.code != http.StatusOK || live.code != http.StatusOK {
			g.Errorf("an order of the other caller: %s; /livez: %s", a, live)
		}
	})
	g.Logf("orders of the other caller: %s; /livez: %s", percentiles(orders), percentiles(lives))
}

// percentiles are the median and the 99th percentile.
func percentiles(times []time.Duration) string {
	slices.Sort(times)
	return fmt.Sprintf("median %s, p99 %s", times[len(times)/2].Round(time.Microsecond), times[len(times)*99/100].Round(time.Microsecond))
}

// TestOneTokenThatWaits has one token ask for more waits than there are connections, of each kind. It gets half of the
// connections for them and the rest of its answers at once, and another caller is served as if nothing was.
func TestOneTokenThatWaits(t *testing.T) {
	build(t)
	t.Parallel()
	g := newGreed(t)
	for _, kind := range []struct {
		name, request string
		waits, beyond int // what those are answered that wait, and the others; 0: nothing
	}{
		{"for an order to end", g.request("GET /api/orders/endless?wait=60", ""), 0, 200},
		{"for an order to change", g.request("GET /api/orders/endless?wait=60", "", `If-None-Match: "1"`), 0, 304},
		{"for the end of an order that it sends", g.request("POST /api/orders/process", `{"orderId":"endless","amount":1,"item":"i"}`, "Prefer: wait=60"), 0, 202},
		{"for events", g.request("GET /api/events?after=latest&type=stock.*&wait=60", ""), 0, 200},
		{"with live pages", g.request("GET /console/live?order=endless&seq=1", ""), 200, 503},
		{"with streams of events", g.request("GET /api/events?type=stock.*", "", "Accept: text/event-stream"), 200, 503}, // the last, because that its caller has gone is found out late
	} {
		t.Log(kind.name)
		all := &crowd{answered: map[int]int{}}
		all.ask(t, g.address, kind.request)
		eventually(t, 3*patience, "half of the connections wait", func() bool { return all.waiting(kind.waits) == 4096/2 })
		g.goesOn()
		all.leave()
		t.Logf("answered by status: %v", all.answered)
		if n := all.answered[kind.beyond]; n < greedyRequests/3 {
			t.Errorf("%d others were answered %d", n, kind.beyond)
		}
	}
}

// TestOneTokenThatLooks has one token ask for what costs most to answer, as often as it can.
func TestOneTokenThatLooks(t *testing.T) {
	build(t)
	t.Parallel()
	g := newGreed(t)
	g.goesOn() // alone
	for _, target := range []string{"/metrics", "/api/overview", "/console", "/console/orders"} {
		t.Log(target)
		stop := g.loop("http://"+g.address+target, 64)
		g.goesOn()
		stop()
	}
}

// loop asks for a URL over and over, until stop.
func (g *greed) loop(url string, callers int) (stop func()) {
	ctx, cancel := context.WithCancel(g.Context())
	c := newClient(callers, true)
	c.token = g.token
	var answers [600]atomic.Int64
	var looping sync.WaitGroup
	for range callers {
		looping.Go(func() {
			for ctx.Err() == nil {
				answers[c.get(ctx, url).code].Add(1)
			}
		})
	}
	eventually(g, patience, "it is answered", func() bool { return answers[http.StatusOK].Load() > 0 })
	began := time.Now()
	return func() {
		cancel()
		looping.Wait()
		c.close()
		for status := range answers {
			if n := answers[status].Load(); n > 0 {
				g.Logf("%d times %d in %s", n, status, time.Since(began).Round(time.Millisecond))
			}
		}
	}
}
