package faults

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"pawl/test/dbtest"
)

// TestOneTokenThatWaits has one token send more requests that wait than the service takes connections, of each kind. Half of
// the connections wait for it, the rest of its requests are answered at once, and another token is served as ever.
func TestOneTokenThatWaits(t *testing.T) {
	build(t)
	t.Parallel()
	const connections, requests = 256, 320
	database := dbtest.New(t)
	url := startReplicas(t, 1, database.URL, "--lease", "1h", "--max-connections", fmt.Sprint(connections)).addresses()[0]
	address := strings.TrimPrefix(url, "http://")
	token := func(name, roles string) string {
		code, said := run(t, "token", "create", name, "--roles", roles, "--database-url", database.AdminURL)
		if code != 0 {
			t.Fatal(code, said)
		}
		return strings.Fields(said)[0]
	}
	greedy, other := token("greedy", "submit,read"), newClient(4, false)
	other.token = token("other", "submit")
	t.Cleanup(other.close)
	query[int64](t, database.AdminURL, `WITH endless AS (
		INSERT INTO pawl.orders (order_id, status, fence, owner, due_at, amount, currency, item, submitted_by)
		VALUES ('endless', 'charging', 1, gen_random_uuid(), now() + interval '1 hour', 1, 'USD', 'i', 'token:greedy') RETURNING order_no)
		INSERT INTO pawl.transitions (order_no, seq, from_status, to_status, fence) SELECT order_no, 1, 'pending', 'charging', 1 FROM endless RETURNING order_no`)
	ask := func(line, body string, headers ...string) string {
		head := append([]string{line + " HTTP/1.1", "Host: " + address, "Authorization: Bearer " + greedy}, headers...)
		if body != "" {
			head = append(head, "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body)))
		}
		return strings.Join(head, "\r\n") + "\r\n\r\n" + body
	}
	for i, kind := range []struct {
		name, request string
		waits, beyond int // the status of the requests that wait, 0 while they have none, and of the others
	}{
		{"for an order to end", ask("GET /api/orders/endless?wait=60", ""), 0, 200},
		{"for an order to change", ask("GET /api/orders/endless?wait=60", "", `If-None-Match: "1"`), 0, 304},
		{"for the end of an order that it sends", ask("POST /api/orders/process", `{"orderId":"endless","amount":1,"item":"i"}`, "Prefer: wait=60"), 0, 202},
		{"for events", ask("GET /api/events?after=latest&type=stock.*&wait=60", ""), 0, 200},
		{"with live pages", ask("GET /console/live?order=endless&seq=1", ""), 200, 503},
		// The last, because the service learns late that the caller of a stream has gone.
		{"with streams of events", ask("GET /api/events?type=stock.*", "", "Accept: text/event-stream"), 200, 503},
	} {
		all := &crowd{answered: map[int]int{}}
		all.ask(t, address, kind.request, requests)
		eventually(t, 3*patience, "half of the connections wait "+kind.name, func() bool { return all.waiting(kind.waits) == connections/2 })
		for n := range 10 {
			a := other.process(t.Context(), url, order{id: fmt.Sprintf("other-%d-%d", i, n), amount: "1.00", item: "i"}, "")
			if live := other.get(t.Context(), url+"/livez"); a.code != http.StatusOK || live.code != http.StatusOK {
				t.Errorf("%s: an order of the other token: %s; /livez: %s", kind.name, a, live)
			}
		}
		all.leave()
		t.Logf("%s: answered by status: %v", kind.name, all.answered)
		if all.answered[kind.beyond] < (requests-connections/2)/2 {
			t.Errorf("%s: %v, want the others answered %d", kind.name, all.answered, kind.beyond)
		}
	}
}

// crowd is one request over many connections, which stay open.
type crowd struct {
	mu       sync.Mutex
	open     []net.Conn
	readers  sync.WaitGroup
	silent   int         // connections on which nothing has come
	answered map[int]int // by status; 0: closed without an answer, because there were too many
}

func (c *crowd) ask(t *testing.T, address, request string, times int) {
	t.Helper()
	each(times, func(int) {
		conn, err := net.DialTimeout("tcp", address, patience)
		if err != nil {
			t.Error(err)
			return
		}
		_ = conn.SetDeadline(time.Now().Add(5 * patience))
		_, _ = io.WriteString(conn, request)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.open = append(c.open, conn)
		c.silent++
		c.readers.Go(func() { c.read(conn) })
	})
}

func (c *crowd) read(conn net.Conn) {
	status := 0
	if response, err := http.ReadResponse(bufio.NewReaderSize(conn, 1<<10), nil); err == nil {
		status = response.StatusCode
		defer response.Body.Close()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent--
	c.answered[status]++
}

// waiting is how many requests wait: those with this status, or without an answer if it is 0.
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
