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

// Tail is the newest part of the feed, in memory. While there are listeners, it is read once for all of them in this
// process, and kept for a while for those that are new or fall behind. Listeners read older events from the database.
type Tail struct {
	reader *Reader
	log    *slog.Logger
	failed rate.Sometimes // limits log lines about reads that failed
	wake   chan struct{}  // a listener was added

	life    context.Context
	end     context.CancelFunc
	reading sync.WaitGroup

	mu sync.Mutex
	view
	bytes     int // kept
	most      int // to keep
	listeners int
	empty     chan struct{} // closed when the tail is stopping and has no listeners left
}

// view is what listeners see of the tail at one moment.
type view struct {
	kept     []stretch // without gaps, oldest first
	from, to Cursor    // the bounds of kept
	running  bool      // the fields above are valid
	stopping bool
	round    int           // number of starts: between two, events may have been lost or removed
	news     chan struct{} // closed and replaced when something has changed
}

func (t *Tail) now() view {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view
}

// has reports whether the tail continues at a cursor.
func (v *view) has(c Cursor) bool {
	return c.Epoch == v.to.Epoch && v.from.No <= c.No && c.No <= v.to.No
}

const (
	keptBytes   = 8 << 20               // of events, in memory
	stretchMost = 4000                  // events in one read
	backlog     = 2000                  // events read at first, for listeners that come back after a restart
	wakePrice   = 40 * time.Microsecond // added to the pause for each listener, so that waking them leaves time for the rest
	failedPause = time.Second           // after a failed read
	lingers     = 10 * time.Second      // how long reading continues without listeners
)

// TailConfig configures a Tail.
type TailConfig struct {
	Log        *slog.Logger          // nil: discarded
	Registerer prometheus.Registerer // of metrics; nil: none
}

// NewTail returns a tail that does nothing until Start.
func NewTail(reader *Reader, cfg TailConfig) *Tail {
	t := &Tail{
		reader: reader, log: cmp.Or(cfg.Log, slog.New(slog.DiscardHandler)), failed: rate.Sometimes{Interval: time.Minute},
		wake: make(chan struct{}, 1), view: view{news: make(chan struct{})}, empty: make(chan struct{}), most: keptBytes,
	}
	t.life, t.end = context.WithCancel(context.Background())
	promauto.With(cfg.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pawl_events_listeners", Help: "Clients that stream events or wait for one.",
	}, func() float64 { return float64(t.Listeners()) })
	return t
}

// Reader returns the reader of the whole feed.
func (t *Tail) Reader() *Reader { return t.reader }

// Until returns a context that also ends when the tail is stopped, for requests that wait for other changes.
func (t *Tail) Until(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(t.life, cancel)
	return ctx, func() { forget(); cancel() }
}

// Listeners is the number of listeners.
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

// Stop rejects new listeners, tells the others to end, and waits until they have, or ctx ends.
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

// enter counts a listener. It returns false if the tail is stopping.
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
	var came time.Time // when the last event arrived
	for heard := time.Now(); ctx.Err() == nil && time.Since(heard) < lingers; {
		n, before := t.Listeners(), t.to
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

// look reads the events since the last look.
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
			t.forget() // every listener must check its cursor again
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

// begin continues at a cursor, with nothing kept.
func (t *Tail) begin(at Cursor) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept, t.bytes, t.from, t.to, t.running = nil, 0, at, at, true
	t.round++
}

// forget drops everything. Listeners wait until begin.
func (t *Tail) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept, t.bytes, t.running = nil, 0, false
	t.round++
	t.tell()
}

// keep adds a page, and drops the oldest events if there are too many.
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

// shorten drops an eighth of what is kept. It makes a new slice, because listeners may be reading the old one.
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
	at     Cursor // after all events that were taken, or not selected
	round  int    // of the tail, in which at is known to be part of the feed
}

// Listen returns a listener that begins after a cursor. The caller must close it. Errors: *Expired, orders.ErrStopping,
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

// Close ends the listener.
func (l *Listener) Close() { l.tail.leave() }

// At is the cursor from which to continue without missing an event.
func (l *Listener) At() Cursor { return l.at }

// More reports whether there are events after At now.
func (l *Listener) More() bool {
	now := l.tail.now()
	return now.running && l.at.No < now.to.No
}

// begin waits until the end of the feed is known, and checks the cursor.
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
	if l.at.Epoch == now.to.Epoch && l.at.No >= now.from.No { // or ahead of the tail, which may be a little late
		l.round = now.round
	}
	return nil
}

// Take calls take with the next events that the tail keeps, until it returns false: that event counts as taken. If
// older is true, the next events are no longer kept, and Older must read them. news is closed when there may be more.
// Errors: orders.ErrStopping.
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
	first, _ := slices.BinarySearchFunc(now.kept, l.at.No+1, func(s stretch, no int64) int {
		return cmp.Compare(s.last().No, no)
	})
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

// Older reads up to most events from the database. Errors: *Expired, orders.ErrUnavailable.
func (l *Listener) Older(ctx context.Context, most int) ([]Event, error) {
	round := l.tail.now().round // read first: the page is of this round or a later one
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

// stretch is a part of the feed that was read at one time. It never changes.
type stretch struct {
	events  []Kept
	bytes   int
	ofOrder map[string][]int32 // the events of an order, because most listeners to one order find none
}

// Estimated memory of a stretch, and of an event besides its JSON, in bytes.
const (
	stretchOverhead = 500
	keptOverhead    = 250
)

func newStretch(page Page) stretch {
	n := len(page.Events)
	s := stretch{events: make([]Kept, n), ofOrder: make(map[string][]int32, n/2), bytes: stretchOverhead}
	for i := range page.Events {
		e := &page.Events[i]
		at, _ := ParseCursor(e.Cursor) // our own
		id := e.Data.OrderID
		s.events[i] = Kept{Cursor: e.Cursor, JSON: e.JSON(), at: at, orderID: id, kind: e.Type, status: e.Data.Status}
		s.bytes += len(s.events[i].JSON) + keptOverhead
		if id != "" {
			s.ofOrder[id] = append(s.ofOrder[id], int32(i))
		}
	}
	return s
}

// last is the cursor after the stretch.
func (s *stretch) last() Cursor { return s.events[len(s.events)-1].at }

// each calls take with the selected events after a number, in order, until take returns false.
func (s *stretch) each(after int64, f *Filter, take func(*Kept) bool) (whole bool) {
	if f.OrderID != "" {
		for _, i := range s.ofOrder[f.OrderID] {
			if e := &s.events[i]; e.at.No > after && f.selects(e.orderID, e.kind, e.status) && !take(e) {
				return false
			}
		}
		return true
	}
	first, _ := slices.BinarySearchFunc(s.events, after+1, func(e Kept, no int64) int { return cmp.Compare(e.at.No, no) })
	for i := first; i < len(s.events); i++ {
		if e := &s.events[i]; f.selects(e.orderID, e.kind, e.status) && !take(e) {
			return false
		}
	}
	return true
}
