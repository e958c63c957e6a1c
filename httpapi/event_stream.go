package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"pawl/internal/access"
	"pawl/internal/events"
)

// Thousands of callers may listen to events, and net/http keeps some 25 KB for each request in progress. So a stream
// takes over its connection, and needs only a goroutine with a small stack.
const (
	eventStream = "text/event-stream"
	heartbeat   = 15 * time.Second // between heartbeats
	streamLasts = 15 * time.Minute // then the caller reconnects, perhaps to another replica
	rightsHold  = 4 * time.Second  // how long a check of the caller's rights is valid
	streamPiece = 8 << 10          // about how much is written at once, in bytes
	olderEvents = 1000             // events read at once that are not in memory
)

// streamTimes are the times of streams that tests shorten.
type streamTimes struct{ heartbeat, rightsHold time.Duration }

// stream is a listener to events, with its connection.
type stream struct {
	*server
	net.Conn
	listener *events.Listener
	rights   rights
	place    place
	payer    payer // of the places for lists
	ends     time.Time
	written  int64
	done     func(written int64) // may be nil
}

// wantsStream reports whether a request asks for server-sent events.
func wantsStream(r *http.Request) bool {
	for _, part := range splitList(r.Header["Accept"]) {
		media, _, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(media), eventStream) {
			return r.Method == http.MethodGet
		}
	}
	return false
}

// streamEvents answers with the events after a cursor, as they come. When it returns, the answer has begun, and
// continues by itself.
func (s *server) streamEvents(ctx context.Context, after events.Cursor, filter events.Filter) error {
	w, r := writerOf(ctx), httpRequestOf(ctx)
	place, ok := placeToWait(w, r)
	if !ok {
		return newProblem("overloaded", "Too many requests are waiting.")
	}
	listener, err := s.Events.Listen(ctx, after, filter)
	if err != nil {
		place.leave()
		return err
	}
	st := &stream{
		server: s, listener: listener, rights: s.rightsOf(w, r, listEventsOperation.OperationID), place: place, payer: payerOf(w),
		ends: time.Now().Add(streamLasts + rand.N(streamLasts/4)),
	}
	if principalOf(w).Has(access.Read) {
		st.rights.rule = needs(access.Read) // the role submit would not do for all orders
	}
	if err := st.takeOver(w); err != nil {
		place.leave()
		listener.Close()
		return err
	}
	go st.run() // the tail waits for its listener
	return nil
}

// takeOver takes over the connection, and sends the head of the answer.
func (st *stream) takeOver(w http.ResponseWriter) error {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return fmt.Errorf("take a connection over: %w", err)
	}
	st.Conn = conn
	rec := recordOf(w)
	rec.status, rec.taken = http.StatusOK, true
	st.done, rec.done = rec.done, nil
	header := w.Header()
	header.Set("Content-Type", eventStream)
	header.Set("Cache-Control", "no-store")
	header.Set("X-Accel-Buffering", "no") // for nginx
	header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	header.Set("Connection", "close") // the answer ends with the connection
	var head bytes.Buffer
	head.WriteString("HTTP/1.1 200 OK\r\n")
	_ = header.Write(&head)
	fmt.Fprintf(&head, "\r\nretry: %d\nid: %s\n\n", 1000+rand.IntN(4000), st.listener.At())
	_ = st.write(head.Bytes()) // if the caller has disconnected, the next write fails, too
	return nil
}

// run sends events until the caller disconnects, or must reconnect.
func (st *stream) run() {
	defer st.listener.Close()
	defer st.end()
	beat := time.NewTicker(st.streams.heartbeat)
	defer beat.Stop()
	for {
		news, err := st.sendKept()
		if err != nil {
			return
		}
		select {
		case <-news:
		case now := <-beat.C:
			if now.After(st.ends) || st.sendHeartbeat() != nil {
				return
			}
		}
	}
}

func (st *stream) end() {
	_ = st.Close()
	st.place.leave()
	if st.done != nil {
		st.done(st.written)
	}
}

// sendHeartbeat includes the position: it moves past events that the filter leaves out.
func (st *stream) sendHeartbeat() error {
	return st.send([]byte(":\nid: " + st.listener.At().String() + "\n\n"))
}

// pieces are what streams write.
var pieces = sync.Pool{New: func() any { return new(make([]byte, 0, streamPiece+streamPiece/4)) }}

// sendKept sends the available events. When news is closed, there may be more.
func (st *stream) sendKept() (news <-chan struct{}, err error) {
	piece, _ := pieces.Get().(*[]byte)
	defer pieces.Put(piece)
	for {
		text := (*piece)[:0]
		news, older, err := st.listener.Take(func(e *events.Kept) bool {
			text = appendEvent(text, e.Cursor, e.JSON)
			return len(text) < streamPiece
		})
		if err == nil && older {
			err = st.sendOlder()
		}
		if err == nil && len(text) > 0 {
			err = st.send(text)
		}
		*piece = text
		if err != nil || !older && len(text) < streamPiece {
			return news, err
		}
	}
}

// sendOlder sends some of the events that are not in memory. Events that wait for the caller to read them take
// memory, so there are places for that.
func (st *stream) sendOlder() error {
	ctx, cancel := context.WithTimeout(context.Background(), readLimit)
	defer cancel()
	release, err := st.catchUps.acquire(ctx, st.payer, 1)
	if err != nil {
		return err
	}
	defer release()
	older, err := st.readOlder(ctx)
	if err != nil {
		return err
	}
	var text []byte
	for i := range older {
		text = appendEvent(text, older[i].Cursor, older[i].JSON())
	}
	return st.send(text)
}

// readOlder reads events from the database, in one of the places for lists. A caller that reads nothing keeps none of
// those.
func (st *stream) readOlder(ctx context.Context) ([]events.Event, error) {
	release, err := st.lists.acquire(ctx, st.payer, 1)
	if err != nil {
		return nil, err
	}
	defer release()
	return st.listener.Older(ctx, olderEvents)
}

// appendEvent appends an event in the format of server-sent events. Its JSON is one line.
func appendEvent(text []byte, cursor string, event []byte) []byte {
	text = append(append(text, "id: "...), cursor...)
	text = append(append(text, "\ndata: "...), event...)
	return append(text, "\n\n"...)
}

// send writes if the caller is still permitted to listen: tokens end.
func (st *stream) send(text []byte) error {
	if len(text) == 0 {
		return nil
	}
	if err := st.rights.check(); err != nil {
		return err
	}
	return st.write(text)
}

func (st *stream) write(text []byte) error {
	n, err := st.Write(text)
	st.written += int64(n)
	return err
}
