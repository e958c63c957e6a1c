package httpapi

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"pawl/db"
	"pawl/engine"
	"pawl/internal/access"
	"pawl/internal/events"
	"pawl/test/assert"
	"pawl/test/dbtest"
)

// number starts what numbers events, and ends it with the test.
func (b *bundle) number(t *testing.T) {
	t.Helper()
	pool := open(t, b.URL)
	t.Cleanup(pool.Close)
	relay := events.NewRelay(db.New(pool), events.RelayConfig{})
	relay.Start()
	t.Cleanup(relay.Stop)
}

// eventsAt reads a page of the feed.
func (b *bundle) eventsAt(t *testing.T, query string) (page struct {
	Events     []json.RawMessage
	NextCursor string
	More       bool
}) {
	t.Helper()
	a := b.get(t, "/api/events"+query)
	a.wantStatus(t, 200)
	assert.NoError(t, json.Unmarshal([]byte(a.body), &page))
	return page
}

// typesOf are the types of events, and the seqs of their orders.
func typesOf(t *testing.T, page []json.RawMessage) (all []string) {
	t.Helper()
	for _, raw := range page {
		var e events.Event
		assert.NoError(t, json.Unmarshal(raw, &e))
		all = append(all, e.Type)
	}
	return all
}

// TestFirstEventsAfterAPause: nobody has listened, so events get their numbers seldom. Whoever reads the feed right after an answer
// finds what the answer was about, also with a wait that is shorter than that takes.
func TestFirstEventsAfterAPause(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.number(t)
	for i, query := range []string{"?after=", "?wait=1&after=", "?type=order.completed&after="} {
		b.exec(t, `UPDATE event_relay SET wanted_until = NULL`)
		cursor := b.eventsAt(t, "?after=latest").NextCursor
		b.process(t, fmt.Sprintf(`{"orderId":"o-%d","amount":"9.99","item":"widget"}`, i)).wantStatus(t, 200)
		assert.True(t, len(b.eventsAt(t, query+cursor).Events) != 0, query, "no event")
	}
	page := b.eventsAt(t, "?type=stock.*")
	assert.True(t, len(page.Events) == 0 && page.NextCursor == b.eventsAt(t, "?after=latest").NextCursor,
		len(page.Events), "events that no filter chooses, up to", page.NextCursor)
}

func TestEventsOfOrders(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.number(t)
	b.adjust(t, "widget", `{"change":5,"requestId":"delivery-1","reason":"<new> & good"}`).wantStatus(t, 200)
	b.process(t, `{"orderId":"o-1","amount":"9.99","item":"widget","customerId":"c-1","paymentMethod":"pm-secret"}`).wantStatus(t, 200)
	b.verb(t, "o-1/refunds", `{"amount":"2.5","requestId":"r-1","reason":"broken"}`).wantStatus(t, 200)
	want := []string{"stock.adjustment", "order.charging", "order.reserving", "order.confirming", "order.completed", "order.refund_done"}
	var got []string
	var bodies []string
	cursor := "oldest"
	for len(got) < len(want) {
		page := b.eventsAt(t, "?limit=4&wait=60&after="+cursor)
		assert.Require(t, len(page.Events) != 0, "no event in a minute, after", got)
		got, cursor = append(got, typesOf(t, page.Events)...), page.NextCursor
		for _, body := range page.Events {
			bodies = append(bodies, string(body))
		}
	}
	assert.Equal(t, got, want)
	text := strings.Join(bodies, "\n")
	for _, part := range []string{`"orderId":"o-1","seq":5,"from":"completed","status":"completed","verb":"refund","amount":"9.99","currency":"USD",` +
		`"customerId":"c-1","refund":1,"refundAmount":"2.5`, `"item":"widget","version":1,"change":5,"onHand":5,`, `"reason":"<new> & good"`} {
		assert.Contains(t, text, part)
	}
	assert.True(t, !strings.Contains(text, "pm-secret"), "what is withheld comes out", text)
	again := b.eventsAt(t, "")
	for i := range again.Events {
		assert.Equal(t, string(again.Events[i]), bodies[i], "read again it is", again.Events[i], "and was")
	}
	for query, want := range map[string][]string{
		"?order=o-1&type=order.completed": {"order.completed"},
		"?type=stock.*,order.reserving":   {"stock.adjustment", "order.reserving"},
		"?status=completed&order=o-1":     {"order.completed", "order.refund_done"},
		"?order=o-1&limit=1":              {"order.charging"},
		"?order=nobody":                   nil,
		"?after=latest":                   nil,
		"?after=" + cursor + "&wait=0":    nil,
	} {
		page := b.eventsAt(t, query)
		got := typesOf(t, page.Events)
		for page.More && len(got) < len(want) { // a page that has looked at much is short
			page = b.eventsAt(t, query+"&after="+page.NextCursor)
			got = append(got, typesOf(t, page.Events)...)
		}
		assert.Equal(t, got, want, query)
		assert.True(t, page.NextCursor == cursor || page.More, query, "leads to", page.NextCursor, "not to the end", cursor)
	}
	for _, query := range []string{"?after=17", "?after=1.2.3", "?type=order.frobnicated", "?wait=61"} {
		b.get(t, "/api/events"+query).wantProblem(t, 422, "invalid_parameter")
	}
	for _, after := range []string{"1.5", cursor + "7"} {
		b.get(t, "/api/events?after="+after).wantProblem(t, 410, "cursor_expired")
	}
}

// sse is a stream of events as a caller reads it.
type sse struct {
	*testing.T
	net.Conn
	lines *bufio.Scanner
	id    string // the last one
}

// openStream asks for a stream on a connection of its own, and reads its head.
func openStream(t *testing.T, address, target string, header ...string) *sse {
	t.Helper()
	s, status, head := askForStream(t, address, target, header...)
	for asked := time.Now(); status == http.StatusServiceUnavailable && time.Since(asked) < patience; { // a starved machine's database may be late
		s, status, head = askForStream(t, address, target, header...)
	}
	assert.Require(t, status == http.StatusOK && head.Get("Content-Type") == "text/event-stream" &&
		head.Get("Cache-Control") == "no-store" && head.Get("X-Request-Id") != "", status, head)
	first := s.block()
	assert.True(t, len(first) == 2 && strings.HasPrefix(first[0], "retry: ") && s.id != "", "it begins with", first)
	return s
}

func askForStream(t *testing.T, address, target string, header ...string) (_ *sse, status int, head http.Header) {
	t.Helper()
	conn := dial(t, address)
	request := "GET " + target + " HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream;q=1\r\n"
	for i := 0; i < len(header); i += 2 {
		request += header[i] + ": " + header[i+1] + "\r\n"
	}
	write(t, conn, request+"\r\n")
	reader := bufio.NewReader(conn)
	response, err := http.ReadResponse(reader, nil)
	assert.NoError(t, err)
	t.Cleanup(func() { response.Body.Close() })
	return &sse{T: t, Conn: conn, lines: bufio.NewScanner(response.Body)}, response.StatusCode, response.Header
}

// block reads up to an empty line. At the end of the stream it is nil.
func (s *sse) block() (lines []string) {
	s.Helper()
	_ = s.SetReadDeadline(time.Now().Add(patience))
	for s.lines.Scan() {
		line := s.lines.Text()
		if line == "" {
			return lines
		}
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			s.id = id
		}
		lines = append(lines, line)
	}
	if err := s.lines.Err(); err != nil {
		s.Fatal(err)
	}
	return nil
}

// event reads the next event, as the type and the seq; "end" is the end of the stream.
func (s *sse) event() string {
	s.Helper()
	for {
		lines := s.block()
		if lines == nil {
			return "end"
		}
		data, ok := strings.CutPrefix(lines[len(lines)-1], "data: ")
		if !ok {
			continue // a sign of life
		}
		var e events.Event
		if err := json.Unmarshal([]byte(data), &e); err != nil || len(lines) != 2 || e.Cursor != s.id {
			s.Fatalf("%q: %v", lines, err)
		}
		return fmt.Sprintf("%s %d", e.Type, e.Data.Seq)
	}
}

func (s *sse) wants(events ...string) {
	s.Helper()
	for _, want := range events {
		if got := s.event(); got != want {
			s.Errorf("%s instead of %s", got, want)
		}
	}
}

var completedWay = []string{"order.charging 1", "order.reserving 2", "order.confirming 3", "order.completed 4"}

func TestStreamOfEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.number(t)
	address := listen(t, b.api, patience)
	b.process(t, ask("old")).wantStatus(t, 200)
	page := b.eventsAt(t, "?wait=60&order=old&status=completed")
	all := openStream(t, address, "/api/events")
	one := openStream(t, address, "/api/events?order=o%2F1&type=order.reserving,order.completed")
	old := openStream(t, address, "/api/events?after=oldest&order=old")
	old.wants(completedWay...)
	assert.Equal(t, old.id, page.NextCursor, "in the feed")
	b.process(t, ask("o/1")).wantStatus(t, 200)
	all.wants(completedWay[:2]...)
	all.Close()
	again := openStream(t, address, "/api/events?after=oldest", "Last-Event-ID", all.id)
	again.wants(completedWay[2:]...)
	one.wants(completedWay[1], completedWay[3])

	for target, code := range map[string]int{
		"/api/events?after=1.5": 410, "/api/events?after=x": 422, "/api/events?frobnicate=1": 422, "/api/events?type=order.x": 422,
	} {
		_, status, _ := askForStream(t, address, target)
		assert.Equal(t, status, code, target)
	}
	_, status, _ := askForStream(t, address, "/api/events", "Last-Event-ID", page.NextCursor+"7")
	assert.Equal(t, status, http.StatusGone, "a cursor of another history")
}

// TestStreamShowsLife: whoever hears nothing for long knows that the stream is still there, and where it is.
func TestStreamShowsLife(t *testing.T) {
	t.Parallel()
	b := setupWith(t, engine.Config{}, Config{ResponseTimeout: patience, streams: streamTimes{heartbeat: 20 * time.Millisecond}})
	b.number(t)
	address := listen(t, b.api, patience)
	deaf := openStream(t, address, "/api/events?order=nobody")
	begin := deaf.id
	b.process(t, ask("o")).wantStatus(t, 200)
	for deaf.id == begin {
		lines := deaf.block()
		assert.True(t, len(lines) == 2 && lines[0] == ":", lines)
	}
}

// TestStreamEndsWithTheRight has a caller listen to an open service, which closes when the first token is made.
func TestStreamEndsWithTheRight(t *testing.T) {
	t.Parallel()
	b := &bundle{Database: dbtest.New(t), grace: patience}
	pool := open(t, b.URL)
	control, err := access.New(t.Context(), db.New(pool), access.Config{})
	assert.NoError(t, err)
	b.serveOn(t, pool, engine.Config{}, Config{
		Access: control, streams: streamTimes{heartbeat: 20 * time.Millisecond, rightsHold: time.Millisecond},
	})
	t.Cleanup(control.Stop) // before the pool is closed
	s := openStream(t, listen(t, b.api, patience), "/api/events")
	assert.Require(t, s.block() != nil, "it ended before")
	if _, err := access.Create(t.Context(), db.New(b.Pool),
		access.Template{Name: "shop", Roles: access.Roles{access.Submit}, Lifetime: time.Hour, Actor: "test"}); err != nil {
		t.Fatal(err)
	}
	assert.Equal(t, s.event(), "end")
}

// TestTooManyStreams: half of the connections is left for other callers.
func TestTooManyStreams(t *testing.T) {
	t.Parallel()
	b := setupWith(t, engine.Config{}, Config{ResponseTimeout: patience, streams: streamTimes{heartbeat: 20 * time.Millisecond}})
	server := NewServer(b.api, Listening{Connections: 8})
	address := serveOn(t, server)
	var streams []*sse
	for range 4 {
		streams = append(streams, openStream(t, address, "/api/events"))
	}
	_, status, head := askForStream(t, address, "/api/events")
	assert.True(t, status == http.StatusServiceUnavailable && head.Get("Retry-After") != "", status, head)
	conn := dial(t, address)
	write(t, conn, askLivez)
	a := readAnswer(t, bufio.NewReader(conn))
	assert.Equal(t, a.status, 200, a)
	streams[0].Close() // which is seen by a sign of life
	eventually(t, "there is a place again", func() bool {
		_, status, _ := askForStream(t, address, "/api/events")
		return status == http.StatusOK
	})
}

// TestStreamOfOneWhoDoesNotRead: he is cut off, and keeps nobody from hearing.
func TestStreamOfOneWhoDoesNotRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.number(t)
	server := NewServer(b.api, Listening{})
	server.connections.stall = 100 * time.Millisecond
	address := serveOn(t, server)
	b.exec(t, `INSERT INTO transitions (order_no, seq, from_status, to_status, fence, verb, reason) -- JSON writes each character as six
		SELECT -n, 1, 'charging', 'charging', 1, 'call', repeat(chr(1), 900) FROM generate_series(1, 2500) AS n`)
	eventually(t, "all have numbers", func() bool { return b.count(t, `SELECT coalesce(max(last_event_no), 0) FROM event_batches`) == 2500 })
	if _, err := bufio.NewReader(deaf(t, address)).ReadString('\n'); err != nil { // it has begun
		t.Fatal(err)
	}
	eventually(t, "he is cut off", func() bool { return placesOf(server) == 0 })
	last := openStream(t, address, "/api/events")
	b.process(t, ask("o")).wantStatus(t, 200)
	last.wants(completedWay...)

	// Many of one address, whom nobody cuts off: they have no place that others want.
	patient := NewServer(b.api, Listening{})
	patient.connections.stall = patience
	address = serveOn(t, patient)
	api := b.server()
	for range listPlaces / 2 {
		deaf(t, address)
	}
	eventually(t, "all write, and none reads", func() bool { return api.catchUps.taken() == listPlaces/2 && api.lists.taken() == 0 })
	conn := dial(t, address)
	write(t, conn, "GET /api/orders HTTP/1.1\r\nHost: localhost\r\n\r\n")
	a := readAnswer(t, bufio.NewReader(conn))
	assert.Equal(t, a.status, 200, a)
}

// deaf asks for all events, and has room for few: those that both machines would buffer need not be made.
func deaf(t *testing.T, address string) net.Conn {
	t.Helper()
	conn := dial(t, address)
	_ = conn.(*net.TCPConn).SetReadBuffer(4 << 10) //nolint:forcetypeassert // it is one
	write(t, conn, "GET /api/events?after=oldest HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
	return conn
}

func (b *bundle) server() *server {
	s, _ := b.api.(*server)
	return s
}

// taken is how many have a share, or wait for one.
func (s *shares) taken() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.of {
		n += of.users
	}
	return n
}

// TestStreamsEndWithTheService: their callers are told to come back, and come to another replica.
func TestStreamsEndWithTheService(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := openStream(t, listen(t, b.api, patience), "/api/events")
	waiting := make(chan answer, 1)
	go func() { waiting <- b.get(t, "/api/events?wait=60&after=latest") }()
	eventually(t, "two listen", func() bool { return b.tail.Listeners() == 2 })
	b.tail.Stop(t.Context())
	assert.Equal(t, s.event(), "end")
	a := <-waiting
	assert.True(t, a.status == 200 && strings.Contains(a.body, `"events":[]`), a)
	b.get(t, "/api/events?wait=1").wantProblem(t, 503, "stopping")
}
