package webhooks

import (
	"context"
	"sync"
	"time"

	"pawl/db"
	"pawl/internal/events"
)

// endpointSender delivers to one endpoint, as long as it is ours. What it knows is its goroutine's alone.
type endpointSender struct {
	d     *Deliverer
	no    int32
	id    string
	fence int64

	looks   chan *look  // the newest that was not taken notice of yet
	results chan result // of attempts
	leave   func()      // has it end: it starts nothing more, and stores what comes of the attempts under way
	leaving chan struct{}
	gone    chan struct{} // closed when it has ended

	endpoint   db.WebhookEndpoint // as we have read or written it last
	clock      look               // the last one: what time it was in the database
	validUntil time.Time          // until then the endpoint is certainly ours, by our clock
	resync     bool               // somebody else has written, or we don't know what we have: nothing is written before the next look

	clockSetBack bool // of the database: what waits may wait for too long

	queue    []*dueDelivery         // due, in the order in which they became so
	known    map[int64]*dueDelivery // those of the queue, those under way, and those whose results are not stored
	inFlight int                    // attempts under way
	outcome  outcome                // what is to be stored
	unread   bool                   // there may be deliveries that are due and that we don't know
	floor    time.Time              // no delivery that we don't know is due before
	sweepAt  time.Time              // when to look below the floor
	bodies   bodies

	page        events.Page // the next events that it wants, as they were read: those that are not stored yet
	pageVersion int32       // of the endpoint, for which they were read

	ahead     int       // deliveries stored and not tried yet
	countedAt time.Time // when they were counted
	limit     int       // attempts at one time
	purgeAt   time.Time
	purgeFrom int64
}

// look is what a look at the database has said of an endpoint, and when it began.
type look struct {
	db.WebhookEndpointsLookRow
	heard time.Time
}

// now is the time of the database, or a little before it.
func (l *look) now() time.Time { return l.At.Add(time.Since(l.heard)) }

// setBackSince reports whether the clock of the database may have been set back since an earlier look: also where there was none.
func (l *look) setBackSince(before *look) bool {
	return l.At.Before(before.At.Add(l.heard.Sub(before.heard)-time.Second)) || before.heard.IsZero()
}

// dueDelivery is a delivery that is due.
type dueDelivery struct {
	no       int64
	eventNo  int64 // 0: it has a body of its own
	seq      int64
	attempts int16
	eventID  string
	subject  string
	body     []byte // nil: not read yet
}

type result struct {
	*dueDelivery
	attempt  Attempt
	version  int32 // of the endpoint when the attempt began
	canceled bool  // by us: it says nothing of the endpoint
}

const (
	mostAhead  = 1000 // deliveries that are stored before they can be sent; the rest waits in the feed
	mostKnown  = 2000 // deliveries in memory
	addMost    = 500  // by one statement
	pageMost   = 2000 // events that are read at one time
	failingAt  = 10   // failures in a row, for as long as failingFor, after which an endpoint is only tried now and then
	failingFor = 10 * time.Second
	dueFloor   = 5 * time.Second
	sweepEvery = time.Minute
	countEvery = time.Second

	longestPause = time.Minute // between two attempts at an endpoint that fails
)

func newEndpointSender(d *Deliverer, e *db.WebhookEndpoint) *endpointSender {
	leaving := make(chan struct{})
	return &endpointSender{
		d: d, no: e.EndpointNo, id: EndpointID(e.EndpointNo), fence: e.Fence,
		looks: make(chan *look, 1), results: make(chan result, mostAtOnce),
		leaving: leaving, leave: sync.OnceFunc(func() { close(leaving) }), gone: make(chan struct{}),
		known: map[int64]*dueDelivery{}, resync: true, limit: 1,
	}
}

// see hands it a look, in place of one that it has not taken notice of.
func (c *endpointSender) see(l *look) {
	select {
	case <-c.looks:
	default:
	}
	c.looks <- l // nobody else sends
}

func (c *endpointSender) run() {
	defer close(c.gone)
	for {
		select {
		case <-c.leaving:
			c.finish()
			return
		case l := <-c.looks:
			c.notice(l)
		case r := <-c.results:
			c.collect(r)
			for len(c.results) > 0 { // those that are there by now: one statement stores them
				c.collect(<-c.results)
			}
		}
		c.work(c.d.statements)
	}
}

// finish waits for the attempts under way and stores their results, unless the endpoint is another's by now.
func (c *endpointSender) finish() {
	for c.inFlight > 0 {
		c.collect(<-c.results)
	}
	if len(c.outcome.results) > 0 && !c.resync {
		c.record(c.d.statements)
	}
}

// notice takes up what a look says. One that is older than what we have written since says nothing, unless we don't know.
func (c *endpointSender) notice(l *look) {
	// No lease is longer, whatever the row says: it may be from before the clock of the database was set back.
	if valid := l.heard.Add(min(l.WebhookEndpoint.DueAt.Sub(l.At), c.d.cfg.Lease)); valid.After(c.validUntil) {
		c.validUntil = valid
	}
	if c.clock.NextDueAt != nil && !c.clock.NextDueAt.After(l.At) {
		c.unread = true
	}
	c.clockSetBack = c.clockSetBack || l.setBackSince(&c.clock)
	c.clock = *l
	e := l.WebhookEndpoint
	if e.Seq < c.endpoint.Seq && !c.resync {
		return
	}
	if e.Seq != c.endpoint.Seq || c.resync || e.State != Enabled {
		c.drop()
	}
	if c.resync {
		c.countedAt, c.page, c.resync = time.Time{}, events.Page{}, false
	}
	if e.Version != c.endpoint.Version {
		c.outcome.superseded()
	}
	c.endpoint = e
}

// drop forgets which deliveries are due, but for those under way: somebody else has written.
func (c *endpointSender) drop() {
	for _, p := range c.queue {
		delete(c.known, p.no)
	}
	c.queue, c.floor, c.unread = nil, time.Time{}, true
}

// work does what can be done now: it stores results, stores deliveries of the next events, and sends.
func (c *endpointSender) work(ctx context.Context) {
	if len(c.outcome.results) > 0 && !c.resync {
		c.record(ctx)
	}
	if c.clockSetBack && !c.resync {
		c.clockSetBack = false
		c.pullForward(ctx, nil)
	}
	c.purge(ctx)
	if c.endpoint.State == Enabled {
		c.add(ctx)
		c.readDue(ctx)
		c.send(ctx)
	}
}

// failing reports whether the endpoint is tried only now and then. Failures alone don't say so: a receiver may refuse many orders, one
// after the other, and take all others.
func (c *endpointSender) failing() bool { return c.doubtful() && c.failed() >= failingFor }

// doubtful reports whether an endpoint has failed some times in a row.
func (c *endpointSender) doubtful() bool { return c.endpoint.Failures >= failingAt }

// failed is for how long nothing has been a success.
func (c *endpointSender) failed() time.Duration {
	if since := c.endpoint.FailingSince; since != nil {
		return c.clock.now().Sub(*since)
	}
	return 0
}

// doubt forgets what is thought to be stored, after a statement that wrote nothing, or whose outcome is not known.
func (c *endpointSender) doubt(doing string, err error) {
	c.resync = true
	if err != nil {
		c.d.log.Warn("webhook statement failed", "doing", doing, "endpoint", c.id, "error", err)
	}
}
