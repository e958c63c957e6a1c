package events

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/time/rate"

	"pawl/internal/orders"
	"pawl/internal/pg"
)

// Tail is the newest part of the feed. It is read once for all listeners in this process, and only while there are any. What
// was read is kept for a while, for listeners that are new or fall behind. Only what is older do they read from the database.
type Tail struct {
	reader *Reader
	log    *slog.Logger
	crowd  func(many bool)
	failed rate.Sometimes // log lines that say why it can't be read
	wake   chan struct{}  // there is a listener

	life    context.Context
	end     context.CancelFunc
	reading sync.WaitGroup

	mu sync.Mutex
	view
	bytes     int // of all that is kept
	most      int // of those
	listeners int
	empty     chan struct{} // closed when it is stopping and has no listeners left
}

// view is what listeners see of a tail, at one moment.
type view struct {
	kept     []stretch // the oldest first, and nothing missing between them
	from, to Cursor    // what is kept lies behind the one, up to the other
	running  bool      // the above is known
	stopping bool
	round    int           // how often it has begun: events may have been lost since, or too old to be kept
	news     chan struct{} // closed when there is something to be seen, and replaced
}

func (t *Tail) now() view {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view
}

// has reports whether a cursor is in what the tail keeps.
func (v *view) has(c Cursor) bool {
	return c.Epoch == v.to.Epoch && v.from.No <= c.No && c.No <= v.to.No
}

const (
	keptBytes   = 8 << 20               // of events, in memory
	stretchMost = 4000                  // events in one read
	backlog     = 2000                  // how many events before the end it begins: those who come back after a restart find them
	wakePrice   = 40 * time.Microsecond // of the pause for each listener, so that to wake them leaves time for other things
	crowdFrom   = 1000                  // listeners
	failedPause = time.Second           // after a look that failed
	lingers     = 10 * time.Second      // for how long it is read on after the last listener has gone
)

// TailConfig is what a tail can be told.
type TailConfig struct {
	Log        *slog.Logger          // nil: discarded
	Registerer prometheus.Registerer // of the metric; nil: none
	Crowd      func(many bool)       // is called when there are a thousand listeners or more, and when no longer; may be nil
}

// NewTail returns a tail that does nothing until Start.
func NewTail(reader *Reader, cfg TailConfig) *Tail {
	t := &Tail{
		reader: reader, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), failed: rate.Sometimes{Interval: time.Minute}, crowd: cfg.Crowd,
		wake: make(chan struct{}, 1), view: view{news: make(chan struct{})}, empty: make(chan struct{}), most: keptBytes,
	}
	t.life, t.end = context.WithCancel(context.Background())
	promauto.With(cfg.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pawl_events_listeners", Help: "Clients that stream events or wait for one.",
	}, func() float64 { return float64(t.Listeners()) })
	return t
}

// Reader reads all of the feed.
func (t *Tail) Reader() *Reader { return t.reader }

// Until returns a context that ends with ctx, and when the tail is stopped: for what waits for changes of other kinds.
func (t *Tail) Until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(t.life, cancel)
	return ctx, func() { forget(); cancel() }
}

// Listeners is how many callers listen now.
func (t *Tail) Listeners() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.listeners
}

// Start begins to read the feed whenever there are listeners. Call it once.
func (t *Tail) Start() {
	t.reading.Go(func() {
		for {
			select {
			case <-t.life.Done():
				return
			case <-t.wake:
				t.follow(t.life)
			}
		}
	})
}

// Stop takes no more listeners, tells those who listen that it is over, and waits until they have gone or ctx ends.
func (t *Tail) Stop(ctx context.Context) {
	t.mu.Lock()
	if !t.stopping {
		t.stopping = true
		t.tell()
		t.closeIfEmpty()
	}
	t.mu.Unlock()
	t.end()
	t.reading.Wait()
	select {
	case <-t.empty:
	case <-ctx.Done():
	}
}

// tell wakes all listeners. The caller has the lock.
func (t *Tail) tell() {
	close(t.news)
	t.news = make(chan struct{})
}

func (t *Tail) closeIfEmpty() {
	if t.stopping && t.listeners == 0 {
		close(t.empty)
	}
}

// enter counts a listener; false when it is stopping.
func (t *Tail) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopping {
		return false
	}
	t.listeners++
	select {
	case t.wake <- struct{}{}:
	default:
	}
	return true
}

func (t *Tail) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.listeners--
	t.closeIfEmpty()
}

// follow reads the end of the feed until there were no listeners for a while.
func (t *Tail) follow(ctx context.Context) {
	defer t.forget()
	many := false
	defer func() { t.tellCrowd(&many, 0) }()
	var came time.Time // the last event
	for heard := time.Now(); ctx.Err() == nil && time.Since(heard) < lingers; {
		n, before := t.Listeners(), t.to
		t.tellCrowd(&many, n)
		if n > 0 {
			heard = time.Now()
		}
		err := t.look(ctx)
		if t.to != before {
			came = time.Now()
		}
		pause := soon
		switch {
		case err != nil && ctx.Err() == nil:
			t.failed.Do(func() { t.log.Warn("read the end of the feed", "error", err) })
			pause = failedPause
		case time.Since(came) < time.Second:
			pause = busy
		}
		pg.Sleep(ctx, max(pause, time.Duration(n)*wakePrice))
	}
}

// tellCrowd says when it has changed whether many listen.
func (t *Tail) tellCrowd(many *bool, listeners int) {
	if now := listeners >= crowdFrom; now != *many && t.crowd != nil {
		*many = now
		t.crowd(now)
	}
}

// look reads what has come since the last time.
func (t *Tail) look(ctx context.Context) error {
	if !t.running { // only this goroutine changes it
		at, err := t.reader.Recent(ctx, backlog)
		if err != nil {
			return err
		}
		t.begin(at)
	}
	for {
		page, err := t.reader.After(ctx, t.to, Filter{}, stretchMost)
		switch expired := (*Expired)(nil); {
		case errors.As(err, &expired) && expired.Lost:
			t.forget() // all listeners have to check that their place is still part of the feed
			return nil
		case errors.As(err, &expired):
			t.begin(expired.Continue)
			continue
		case err != nil:
			return err
		}
		t.keep(page)
		if !page.More {
			return nil
		}
	}
}

// begin goes on behind a cursor, with nothing kept.
func (t *Tail) begin(at Cursor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept, t.bytes, t.from, t.to, t.running = nil, 0, at, at, true
	t.round++
}

// forget drops everything. Listeners wait until it begins again.
func (t *Tail) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept, t.bytes, t.running = nil, 0, false
	t.round++
	t.tell()
}

// keep adds what was read, and lets go of the oldest where that is too much.
func (t *Tail) keep(page Page) {
	s := newStretch(page)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.to = page.Next; len(s.events) > 0 {
		t.kept = append(t.kept, s)
		t.bytes += s.bytes
	}
	if t.bytes > t.most {
		t.shorten()
	}
	if !page.More {
		t.tell()
	}
}

// shorten lets go of an eighth of what is kept. Listeners may be reading the old slice.
func (t *Tail) shorten() {
	gone := 0
	for t.bytes > t.most*7/8 && gone < len(t.kept)-1 {
		t.bytes -= t.kept[gone].bytes
		t.from = t.kept[gone].last()
		gone++
	}
	t.kept = slices.Clone(t.kept[gone:])
}

// Listener follows the feed. It is for one goroutine at a time.
type Listener struct {
	tail   *Tail
	filter Filter
	at     Cursor // behind all that it has returned, or that the filter did not choose
	round  int    // of the tail: in this one at is known to be part of the feed
}

// Listen returns a listener that begins behind a cursor, and must be closed. Errors: *Expired, orders.ErrStopping,
// orders.ErrUnavailable.
func (t *Tail) Listen(ctx context.Context, after Cursor, filter Filter) (*Listener, error) {
	if !t.enter() {
		return nil, orders.ErrStopping
	}
	l := &Listener{tail: t, filter: filter, at: after}
	if err := l.begin(ctx); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// Close ends it.
func (l *Listener) Close() { l.tail.leave() }

// At is the cursor from which to go on without missing anything.
func (l *Listener) At() Cursor { return l.at }

// More reports whether there is more right now than it has looked at.
func (l *Listener) More() bool {
	now := l.tail.now()
	return now.running && l.at.No < now.to.No
}

// begin waits until the end of the feed is known, and finds out whether the cursor is part of the feed.
func (l *Listener) begin(ctx context.Context) error {
	now := l.tail.now()
	for !now.running {
		select {
		case <-now.news:
		case <-ctx.Done():
			return orders.ErrUnavailable
		}
		if now = l.tail.now(); now.stopping {
			return orders.ErrStopping
		}
	}
	if !now.has(l.at) {
		at, err := l.tail.reader.Resolve(ctx, l.at)
		if err != nil {
			return err
		}
		l.at = at
	}
	if l.at.Epoch == now.to.Epoch && l.at.No >= now.from.No { // also ahead of the tail, which is a little behind
		l.round = now.round
	}
	return nil
}

// Take calls take with what the tail keeps for the listener, until take says no: that event is the last one that it has
// returned. older reports that there are events for it which the tail does not keep any more; Older reads those. When news is
// closed, there may be more. Errors: orders.ErrStopping.
func (l *Listener) Take(take func(*Kept) bool) (news <-chan struct{}, older bool, err error) {
	now := l.tail.now()
	switch {
	case now.stopping:
		return nil, false, orders.ErrStopping
	case !now.running:
		return now.news, false, nil
	case l.round != now.round || l.at.No < now.from.No:
		return now.news, true, nil
	}
	first, _ := slices.BinarySearchFunc(now.kept, l.at.No+1, func(s stretch, no int64) int { return cmp.Compare(s.last().No, no) })
	for i := first; i < len(now.kept); i++ {
		whole := now.kept[i].each(l.at.No, &l.filter, func(e *Kept) bool {
			l.at = e.at
			return take(e)
		})
		if !whole {
			return now.news, false, nil
		}
		l.at = now.kept[i].last()
	}
	if l.at.No < now.to.No {
		l.at = now.to
	}
	return now.news, false, nil
}

// Older reads events from the database, so many at most. Errors: *Expired, orders.ErrUnavailable.
func (l *Listener) Older(ctx context.Context, most int) ([]Event, error) {
	round := l.tail.now().round // before: what is found is part of the feed as it is now, or later
	page, err := l.tail.reader.After(ctx, l.at, l.filter, most)
	if err != nil {
		return nil, err
	}
	l.at, l.round = page.Next, round
	return page.Events, nil
}

// Kept is an event as the tail keeps it.
type Kept struct {
	Cursor string
	JSON   []byte // the event as it is sent

	at                    Cursor
	orderID, kind, status string
}

// stretch is events of the tail that were read at one time. It never changes.
type stretch struct {
	events  []Kept
	bytes   int
	ofOrder map[string][]int32 // which of them are about an order: most who listen to one find that none is
}

// About what a stretch, and an event, takes in memory beside its JSON, in bytes.
const (
	stretchOverhead = 500
	keptOverhead    = 250
)

func newStretch(page Page) stretch {
	s := stretch{events: make([]Kept, len(page.Events)), ofOrder: make(map[string][]int32, len(page.Events)/2), bytes: stretchOverhead}
	for i := range page.Events {
		e := &page.Events[i]
		at, _ := ParseCursor(e.Cursor) // it is ours
		s.events[i] = Kept{Cursor: e.Cursor, JSON: e.JSON(), at: at, orderID: e.Data.OrderID, kind: e.Type, status: e.Data.Status}
		s.bytes += len(s.events[i].JSON) + keptOverhead
		if id := e.Data.OrderID; id != "" {
			s.ofOrder[id] = append(s.ofOrder[id], int32(i))
		}
	}
	return s
}

// last is the cursor behind the stretch.
func (s *stretch) last() Cursor { return s.events[len(s.events)-1].at }

// each calls take with the events behind a number that the filter chooses, in order, until take says no.
func (s *stretch) each(after int64, f *Filter, take func(*Kept) bool) (whole bool) {
	if f.OrderID != "" {
		for _, i := range s.ofOrder[f.OrderID] {
			if e := &s.events[i]; e.at.No > after && f.chooses(e.orderID, e.kind, e.status) && !take(e) {
				return false
			}
		}
		return true
	}
	first, _ := slices.BinarySearchFunc(s.events, after+1, func(e Kept, no int64) int { return cmp.Compare(e.at.No, no) })
	for i := first; i < len(s.events); i++ {
		if e := &s.events[i]; f.chooses(e.orderID, e.kind, e.status) && !take(e) {
			return false
		}
	}
	return true
}
