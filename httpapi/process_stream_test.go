package httpapi

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/access"
	"pawl/internal/books"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// answeredLine is a line of the answer to a stream of orders.
type answeredLine struct {
	Line, Status, RetryAfter int
	Order                    shape
	Problem                  struct{ Code string }
}

func (l answeredLine) String() string {
	return fmt.Sprint(l.Line, " ", l.Status, " ", cmp.Or(l.Problem.Code, l.Order.OrderID+" "+l.Order.Status))
}

func lineOf(t testing.TB, text string) (line answeredLine) {
	t.Helper()
	err := json.Unmarshal([]byte(text), &line)
	assert.True(t, err == nil, text, err)
	return line
}

// processLines sends orders in one request, and returns the answers in the order of the lines.
func (b *bundle) processLines(t testing.TB, body string, header ...string) (lines []answeredLine) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/orders/process", strings.NewReader(body))
	a := send(t, b.api, r, append(header, "Content-Type", ndjson)...)
	assert.Require(t, a.status == http.StatusOK && a.header.Get("Content-Type") == ndjson, a.status, a.header, a.body)
	for text := range strings.Lines(a.body) {
		lines = append(lines, lineOf(t, text))
	}
	slices.SortFunc(lines, func(x, y answeredLine) int { return x.Line - y.Line })
	return lines
}

func wantLines(t testing.TB, got []answeredLine, want ...string) {
	t.Helper()
	var shown []string
	for _, line := range got {
		shown = append(shown, line.String())
	}
	assert.Equal(t, shown, want, strings.Join(shown, "\n"), strings.Join(want, "\n"))
}

func TestOrderLines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stock(t, "rare", `{"onHand":1}`).wantStatus(t, 200)
	b.held(t, "held", nil)
	long := `{"orderId":"long","amount":1,"item":"` + strings.Repeat("x", maxBody) + `"}`
	got := b.processLines(t, strings.Join([]string{
		ask("a"), "", " \t\r", ask("b") + "\r", `{"orderId":"c","amount":1,"item":"i","quantit":2}`, "not JSON", "[]", long, `{"orderId":"e","amount":-1,"item":"i"}`,
		`{"orderId":"c","amount":1,"item":"rare","quantity":2}`, ask("held"), `{"orderId":"cut","amount":1`, "\xff\xfe", ask("last"),
	}, "\n"))
	wantLines(t, got, "1 200 a completed", "4 200 b completed", "5 422 invalid_input", "6 400 malformed_json", "7 422 invalid_input", "8 413 body_too_large",
		"9 422 invalid_input", "10 200 c failed", "11 202 held charging", "12 400 malformed_json", "13 400 malformed_json", "14 200 last completed")
	assert.Equal(t, got[8].RetryAfter, 60, "an order that waits for a person is to be read again in")
	wantLines(t, b.processLines(t, ask("a")+"\n"+`{"orderId":"b","amount":2,"item":"i"}`+"\n"), "1 200 a completed", "2 409 order_conflict")
	wantLines(t, b.processLines(t, ""))
	assert.Equal(t, b.count(t, `SELECT count(*) FROM orders`), 5, "orders")
	t.Run("preferences are those of each line", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.elsewhere(t, "other")
		wantLines(t, b.processLines(t, ask("other")+"\n"+`{"orderId":"s","amount":1,"item":"i","colour":1}`, "Prefer", "respond-async, handling=strict"),
			"1 202 other charging", "2 422 invalid_input")
	})
	t.Run("the whole is refused", func(t *testing.T) {
		t.Parallel()
		for code, header := range map[string][]string{
			"invalid_idempotency_key": {"Content-Type", ndjson, "Idempotency-Key", "k"},
			"unsupported_media_type":  {"Content-Type", ndjson + "; charset=latin1"},
			"cross_origin":            {"Content-Type", ndjson, "Sec-Fetch-Site", "cross-site"},
		} {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/orders/process", strings.NewReader(ask("whole")))
			a := send(t, b.api, r, header...)
			assert.Equal(t, a.decoded(t).Code, code, a.status, a.body)
		}
	})
	t.Run("a panic is the problem of its line", func(t *testing.T) {
		t.Parallel()
		wantLines(t, withoutEngine().processLines(t, ask("a")), "1 500 internal")
	})
}

func TestOrderLinesAreObserved(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	b := setupWith(t, engine.Config{}, Config{ResponseTimeout: patience, Registerer: registry})
	b.processLines(t, ask("a")+"\n"+ask("b")+"\n{}")
	families, err := registry.Gather()
	assert.NoError(t, err)
	counted := map[string]uint64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			if family.GetName() == "http_server_request_duration_seconds" {
				counted[metric.GetLabel()[0].GetValue()+" "+metric.GetLabel()[1].GetValue()] = metric.GetHistogram().GetSampleCount()
			}
		}
	}
	assert.True(t, len(counted) == 2 && counted["200 POST /api/orders/process"] == 2 && counted["422 POST /api/orders/process"] == 1,
		counted)
}

// sentLines is a request whose lines are still being sent.
type sentLines struct {
	t        *testing.T
	body     *io.PipeWriter
	response *http.Response
	answers  *bufio.Scanner
}

// sendLines begins a request. The service answers its head at once.
func sendLines(t *testing.T, address string, header ...string) *sentLines {
	t.Helper()
	sent, body := io.Pipe()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address+"/api/orders/process", sent)
	assert.NoError(t, err)
	r.Header.Set("Content-Type", ndjson)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	transport := &http.Transport{}
	response, err := transport.RoundTrip(r)
	assert.NoError(t, err)
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(response.Body)
		t.Fatalf("%s: %s", response.Status, text)
	}
	t.Cleanup(func() {
		response.Body.Close()
		_ = body.Close()
		transport.CloseIdleConnections()
	})
	return &sentLines{t, body, response, bufio.NewScanner(response.Body)}
}

func (l *sentLines) send(lines ...string) {
	l.t.Helper()
	assert.Succeeds(l.t, assert.Err(io.WriteString(l.body, strings.Join(lines, "\n")+"\n")))
}

// next returns the next answer; false: there is none, or the answer was cut off.
func (l *sentLines) next() (answeredLine, bool) {
	l.t.Helper()
	if !l.answers.Scan() {
		return answeredLine{}, false
	}
	return lineOf(l.t, l.answers.Text()), true
}

func (l *sentLines) want(want string) {
	l.t.Helper()
	line, ok := l.next()
	assert.True(l.t, ok && line.String() == want, line, l.answers.Err(), "want", want)
}

// TestOrderLinesWhileTheyAreSent: answers come before the request has ended, also on a connection that then has another request.
func TestOrderLinesWhileTheyAreSent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	address := listen(t, b.api, patience)
	l := sendLines(t, address)
	for n := range 3 {
		l.send(ask(fmt.Sprint("o-", n)))
		l.want(fmt.Sprintf("%d 200 o-%d completed", n+1, n))
	}
	_ = l.body.Close()
	if line, ok := l.next(); ok || l.answers.Err() != nil {
		t.Error(line, l.answers.Err())
	}
	conn := dial(t, address)
	reader := bufio.NewReader(conn)
	for n := range 2 {
		body := ask(fmt.Sprint("kept-", n))
		write(t, conn, fmt.Sprintf("POST /api/orders/process HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s", ndjson, len(body), body))
		if a := readAnswer(t, reader); a.status != 200 || a.header.Get("Connection") == "close" || !strings.Contains(a.body, `"status":"completed"`) {
			t.Errorf("%d %v %s", a.status, a.header, a.body)
		}
	}
	write(t, conn, "POST /api/orders/process HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+ndjson+"\r\nContent-Length: 1\r\nExpect: 100-continue\r\n\r\n")
	line, err := reader.ReadString('\n')
	assert.True(t, err == nil && strings.HasPrefix(line, "HTTP/1.1 100 "), line, err)
}

// TestManyOrderLines sends ten thousand lines, with repetitions and lines that are no orders, again and again: the connection is
// cut by the caller, and then by the service. Each order is done once, and each line of a stream that is not cut is answered once.
func TestManyOrderLines(t *testing.T) {
	t.Parallel()
	const lines, orders = 10_000, 4_000
	b := setup(t)
	b.stock(t, "i", fmt.Sprintf(`{"onHand":%d}`, 2*orders)).wantStatus(t, 200)
	body := func(n int) string { // of each hundred lines one is ill
		if n%100 == 17 {
			return `{"orderId":"ill","amount":`
		}
		return ask(fmt.Sprint("o-", n%orders))
	}
	cut := func(server *Server, stop func(*sentLines)) (answered int) {
		l := sendLines(t, serveOn(t, server))
		var sending sync.WaitGroup
		sending.Go(func() {
			for n := range lines {
				if _, err := io.WriteString(l.body, body(n)+"\n"); err != nil {
					return
				}
			}
		})
		for ; answered < lines/10; answered++ {
			if _, ok := l.next(); !ok {
				t.Error("it ends early:", l.answers.Err())
				break
			}
		}
		stop(l)
		l.body.CloseWithError(errors.New("cut"))
		sending.Wait()
		return answered
	}
	cut(NewServer(b.api, Listening{}), func(l *sentLines) { l.response.Body.Close() })
	server := NewServer(b.api, Listening{})
	cut(server, func(*sentLines) { _ = server.Close() })

	for range 2 {
		l := sendLines(t, serveOn(t, NewServer(b.api, Listening{})))
		var sending sync.WaitGroup
		sending.Go(func() {
			defer func() { _ = l.body.Close() }()
			for n := range lines {
				l.send(body(n))
			}
		})
		answered := make([]int, lines)
		for line, ok := l.next(); ok; line, ok = l.next() {
			answered[line.Line-1]++
			want := fmt.Sprintf("%d 200 o-%d completed", line.Line, (line.Line-1)%orders)
			if (line.Line-1)%100 == 17 {
				want = fmt.Sprint(line.Line, " 400 malformed_json")
			}
			assert.Require(t, line.String() == want, line, want)
		}
		sending.Wait()
		assert.Require(t, l.answers.Err() == nil && !slices.ContainsFunc(answered, func(n int) bool { return n != 1 }),
			"lines were not answered once: ", l.answers.Err())
	}
	distinct := orders - orders/100 // 4,000 is a multiple of 100, so the ill lines are always the same orders
	if n := b.count(t, `SELECT count(*) FROM orders AS o JOIN charges AS c USING (order_no) WHERE o.status = 'completed' AND c.refunded_at IS NULL`); n != distinct {
		t.Errorf("%d orders were charged, want %d", n, distinct)
	}
	n := b.count(t, `SELECT sold FROM inventory WHERE item = 'i' AND reserved = 0 AND on_hand = $1 - sold`, 2*orders)
	assert.Equal(t, n, distinct, "units were sold")
	report, err := books.Verify(t.Context(), b.Pool, books.Options{})
	assert.True(t, err == nil && report.OK(), report, err)
}

// TestOrderLinesYield: while single orders come, a caller has 16 lines in progress, and otherwise many more. None can end
// before the stock row is free.
func TestOrderLinesYield(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		single     bool
		inProgress int64
	}{"no single orders": {false, 100}, "after a single order": {true, 16}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.stock(t, "i", `{"onHand":200}`).wantStatus(t, 200)
			row, err := b.Pool.Begin(t.Context())
			assert.NoError(t, err)
			assert.NoError(t, assert.Err(row.Exec(t.Context(), `SELECT FROM inventory WHERE item = 'i' FOR UPDATE`)))
			if c.single {
				b.process(t, `{"orderId":"single","amount":1,"item":"other"}`).wantStatus(t, 200)
			}
			l := sendLines(t, listen(t, b.api, patience))
			var sending sync.WaitGroup
			sending.Go(func() {
				for n := range 100 {
					l.send(ask(fmt.Sprint("o-", n)))
				}
				_ = l.body.Close()
			})
			eventually(t, "as many as may be are in progress", func() bool { return b.engine.InFlight() == c.inProgress })
			assert.NoError(t, row.Rollback(t.Context()))
			answered := 0
			for _, ok := l.next(); ok; _, ok = l.next() {
				answered++
			}
			sending.Wait()
			assert.Equal(t, answered, 100)
			assert.Equal(t, b.count(t, `SELECT sold FROM inventory WHERE item = 'i'`), 100)
		})
	}
}

// TestOrderLinesWhoseAnswersAreNotRead: the service stops reading, and then cuts the caller off. What it has read is done.
func TestOrderLinesWhoseAnswersAreNotRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	server := NewServer(b.api, Listening{})
	server.connections.stall = 2 * time.Second
	conn := dial(t, serveOn(t, server))
	assert.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4<<10))
	write(t, conn, "POST /api/orders/process HTTP/1.1\r\nHost: localhost\r\nContent-Type: "+ndjson+"\r\nTransfer-Encoding: chunked\r\n\r\n")
	text := strings.Repeat("x", 450)
	sent := 0
	for ; sent < 100_000; sent++ { // 400 MB
		line := fmt.Sprintf(`{"orderId":"o-%d","amount":1,"item":"i","metadata":{"a":"%s","b":"%s","c":"%s","d":"%s","e":"%s","f":"%s","g":"%s","h":"%s"}}`+"\n",
			sent, text, text, text, text, text, text, text, text)
		if _, err := fmt.Fprintf(conn, "%x\r\n%s\r\n", len(line), line); err != nil {
			break
		}
	}
	assert.Require(t, sent != 100_000, "it reads without end")
	assert.Eventually(t, "what was read is done", func() bool {
		return b.count(t, `SELECT count(*) FROM orders WHERE status <> 'completed'`) == 0 && b.engine.InFlight() == 0
	})
	n := b.count(t, `SELECT count(*) FROM orders`)
	assert.True(t, n != 0 && n <= sent, n, "orders of", sent, "lines")
}

// TestOrderLinesOfATokenWithLimits: each line counts, and those beyond the limits wait.
func TestOrderLinesOfATokenWithLimits(t *testing.T) {
	t.Parallel()
	var all []string
	for n := range 60 {
		all = append(all, ask(fmt.Sprint("o-", n)))
	}
	for name, limits := range map[string]access.Limits{"rate": {Rate: 20}, "in flight": {InFlight: 1}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, token := limited(t, limits)
			began := time.Now()
			lines := b.processLines(t, strings.Join(all, "\n"), "Authorization", token)
			assert.True(t, !slices.ContainsFunc(lines, func(l answeredLine) bool { return l.Status != 200 }) && len(lines) == len(all),
				lines)
			if took := time.Since(began); took < 1500*time.Millisecond && name == "rate" { // 20 at once, and 40 more in 2 s
				t.Errorf("%d orders in %s", len(lines), took)
			}
		})
	}
}

// TestOrderLinesEndWithTheRight: when a token exists, a caller without one may send no more.
func TestOrderLinesEndWithTheRight(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t), grace: patience}
	pool := open(t, b.URL)
	control, err := access.New(t.Context(), db.New(pool), access.Config{})
	assert.NoError(t, err)
	b.serveOn(t, pool, engine.Config{}, Config{Access: control, ResponseTimeout: patience, streams: streamTimes{rightsHold: time.Millisecond}})
	t.Cleanup(control.Stop) // before the pool is closed
	l := sendLines(t, listen(t, b.api, patience))
	l.send(ask("before"))
	l.want("1 200 before completed")
	if _, err := access.Create(t.Context(), db.New(b.Pool),
		access.Template{Name: "shop", Roles: access.Roles{access.Submit}, Lifetime: time.Hour, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	n := 2
	for ; ; n++ { // until the control has seen the token
		l.send(ask(fmt.Sprint("after-", n)))
		line, ok := l.next()
		if !ok || line.Status == http.StatusUnauthorized {
			break
		}
	}
	line, ok := l.next()
	assert.True(t, !ok && l.answers.Err() != nil, "it goes on, or ends as if all had been read", line)
	assert.Equal(t, b.count(t, `SELECT count(*) FROM orders`), n-1, "orders of", n, "lines")
}

// TestOrderLinesWhenTheServerStops: what was read is answered, and then the answer is cut off, because more was to come.
func TestOrderLinesWhenTheServerStops(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.elsewhere(t, "other")
	server := NewServer(b.api, Listening{})
	address := serveOn(t, server)
	waiting, idle := sendLines(t, address), sendLines(t, address)
	waiting.send(ask("other"))
	idle.send(ask("o"))
	idle.want("1 200 o completed")
	assert.Eventually(t, "the order is watched", func() bool { return b.engine.InFlight() > 0 }) // the order of the other replica is watched
	ended := make(chan error, 1)
	go func() { ended <- server.Shutdown(context.WithoutCancel(t.Context())) }()
	_, ok := idle.next()
	assert.True(t, !ok && idle.answers.Err() != nil, "an idle stream goes on, or ends as if all had been read")
	assert.NoError(t, b.engine.Stop(t.Context()))
	waiting.want("1 202 other charging")
	assert.NoError(t, <-ended)
	wantLines(t, b.processLines(t, ask("late")), "1 503 stopping")
}
