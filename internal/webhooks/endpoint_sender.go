package webhooks

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"pawl/db"
	"pawl/internal/events"
	"pawl/internal/signing"
)

// endpointSender delivers to one endpoint while we hold its lease. Only its goroutine uses its fields.
type endpointSender struct {
	d     *Deliverer
	no    int32
	id    string
	fence int64

	looks   chan *look  // the newest one that was not read yet
	results chan result // of attempts
	leave   func()      // ends the sender, after the attempts under way
	leaving chan struct{}
	gone    chan struct{} // closed when it has ended

	endpoint   db.WebhookEndpoint // as last read or written
	clock      look               // the last look, for the clock of the database
	validUntil time.Time          // end of the lease, by our clock
	resync     bool               // our state is in doubt: write nothing before the next look

	clockSetBack bool // the clock of the database was set back, so deliveries may be due too late

	queue    []*dueDelivery         // due, in the order in which they became so
	known    map[int64]*dueDelivery // queued, under way, or with results that are not stored
	inFlight int                    // attempts under way
	outcome  outcome                // to be stored
	unread   bool                   // there may be due deliveries that we have not read
	floor    time.Time              // unread deliveries are due later than this
	sweepAt  time.Time              // when to check below the floor
	bodies   bodies

	page        events.Page // the next matching events, which are not stored yet
	pageVersion int32       // version of the endpoint for which they were read

	ahead     int       // deliveries that are stored and untried
	countedAt time.Time // when ahead was counted
	limit     int       // concurrent attempts
	purgeAt   time.Time
	purgeFrom int64
}

// look is the row of an endpoint and when it was read.
type look struct {
	db.WebhookEndpointsLookRow
	heard time.Time
}

// now is the time of the database, or a little before it.
func (l *look) now() time.Time { return l.At.Add(time.Since(l.heard)) }

// setBackSince reports whether the clock of the database may have been set back since an earlier look, or if there was
// none.
func (l *look) setBackSince(before *look) bool {
	return l.At.Before(before.At.Add(l.heard.Sub(before.heard)-time.Second)) || before.heard.IsZero()
}

type dueDelivery struct {
	no       int64
	eventNo  int64 // 0: it is not an event of the feed
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
	canceled bool  // by us, so it says nothing about the endpoint
}

const (
	mostAhead  = 1000 // deliveries stored ahead of sending; the rest waits in the feed
	mostKnown  = 2000 // deliveries in memory
	addMost    = 500  // by one statement
	pageMost   = 2000 // events read at a time
	failingAt  = 10   // consecutive failures, over at least failingFor, after which an endpoint is tried rarely
	failingFor = 10 * time.Second
	dueFloor   = 5 * time.Second
	sweepEvery = time.Minute
	countEvery = time.Second

	longestPause = time.Minute // between attempts at a failing endpoint
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

// see passes a look to the sender, replacing an unread one.
func (c *endpointSender) see(l *look) {
	select {
	case <-c.looks:
	default:
	}
	c.looks <- l // the only send
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
			for len(c.results) > 0 { // one statement stores all that have arrived
				c.collect(<-c.results)
			}
		}
		c.work(c.d.statements)
	}
}

// finish waits for the attempts under way and stores their results, unless the lease was lost.
func (c *endpointSender) finish() {
	for c.inFlight > 0 {
		c.collect(<-c.results)
	}
	if len(c.outcome.results) > 0 && !c.resync {
		c.record(c.d.statements)
	}
}

// notice processes a look. It ignores one that is older than our last write, unless our state is in doubt.
func (c *endpointSender) notice(l *look) {
	// Never trust a longer lease: the row may be from before the clock of the database was set back.
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

// drop forgets the due deliveries, except those under way, because others have changed the endpoint.
func (c *endpointSender) drop() {
	for _, p := range c.queue {
		delete(c.known, p.no)
	}
	c.queue, c.floor, c.unread = nil, time.Time{}, true
}

// work stores results, stores deliveries of the next events, and sends.
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

// failing reports whether the endpoint is tried only rarely. A number of failures is not enough: a receiver may reject
// many orders in a row, and accept all others.
func (c *endpointSender) failing() bool { return c.doubtful() && c.failed() >= failingFor }

// doubtful reports whether the endpoint has failed several times in a row.
func (c *endpointSender) doubtful() bool { return c.endpoint.Failures >= failingAt }

// failed is the time since the first failure without a success.
func (c *endpointSender) failed() time.Duration {
	if since := c.endpoint.FailingSince; since != nil {
		return c.clock.now().Sub(*since)
	}
	return 0
}

// doubt discards our state after a statement that wrote nothing, or whose outcome is unknown.
func (c *endpointSender) doubt(doing string, err error) {
	c.resync = true
	if err != nil {
		c.d.log.Warn("webhook statement failed", "doing", doing, "endpoint", c.id, "error", err)
	}
}

// send starts as many attempts as the endpoint can take.
func (c *endpointSender) send(ctx context.Context) {
	for {
		n := min(c.room(), len(c.queue))
		if n <= 0 || c.resync || !time.Now().Before(c.validUntil) {
			return
		}
		if c.doubtful() { // fewest failures first: an event that the endpoint always rejects says little about it
			slices.SortStableFunc(c.queue, func(a, b *dueDelivery) int { return cmp.Compare(a.attempts, b.attempts) })
		}
		set := c.queue[:n]
		if err := c.readBodies(ctx, set); err != nil {
			c.d.log.Warn("read events to deliver", "endpoint", c.id, "error", err)
			return // after the next look
		}
		c.queue = c.queue[n:]
		for _, p := range set {
			c.start(p)
		}
	}
}

// nothingNew reports whether all due deliveries have failed before.
func (c *endpointSender) nothingNew() bool {
	return c.inFlight == 0 && !slices.ContainsFunc(c.queue, func(p *dueDelivery) bool { return p.attempts == 0 })
}

// room is how many more attempts may start now. A failing endpoint gets one after each pause.
func (c *endpointSender) room() int {
	if until := c.endpoint.PausedUntil; until != nil && c.clock.now().Before(*until) {
		return 0
	}
	if c.failing() {
		return 1 - c.inFlight
	}
	return min(c.limit, c.d.atOnce()) - c.inFlight
}

// start makes an attempt in the background. The channel always has room for its result.
func (c *endpointSender) start(p *dueDelivery) {
	if p.body == nil {
		c.outcome.archived(p, c.clock.now())
		return
	}
	endpoint, at := c.endpoint, c.clock.now().UTC()
	c.inFlight++
	c.d.running.Go(func() {
		a := c.d.sender.send(c.d.sending, &endpoint, signing.Message{ID: p.eventID, Body: p.body}, at)
		c.results <- result{p, a, endpoint.Version, c.d.sending.Err() != nil && !a.Delivered()}
	})
}

// readBodies reads the events of deliveries that have no body yet.
func (c *endpointSender) readBodies(ctx context.Context, set []*dueDelivery) error {
	var keys []events.Key
	for _, p := range set {
		if p.body == nil {
			p.body = c.bodies.of(p.no)
		}
		if p.body == nil {
			keys = append(keys, keyOf(p))
		}
	}
	if len(keys) == 0 {
		return nil
	}
	found, err := c.d.feed.ByKey(ctx, keys)
	if err != nil {
		return err
	}
	texts := make(map[int64][]byte, len(found))
	for i := range found {
		texts[found[i].No] = found[i].JSON()
	}
	for _, p := range set {
		if p.body == nil {
			p.body = texts[p.eventNo]
		}
	}
	return nil
}

// keyOf is the key of the row with the event of a delivery.
func keyOf(p *dueDelivery) events.Key {
	k := events.Key{EventNo: p.eventNo, Seq: p.seq}
	if item, ok := strings.CutPrefix(p.subject, itemPrefix); ok {
		k.StockItem = item
	} else {
		k.OrderNo, _ = strconv.ParseInt(strings.TrimPrefix(p.subject, orderPrefix), 10, 64) // always a number
	}
	return k
}

// readDue reads deliveries that have become due.
func (c *endpointSender) readDue(ctx context.Context) {
	if time.Now().After(c.sweepAt) {
		c.sweepAt, c.floor, c.unread = time.Now().Add(sweepEvery), time.Time{}, true
	}
	if !c.unread || c.resync || len(c.queue) > mostKnown/4 {
		return
	}
	floor := c.clock.now().Add(-dueFloor)
	rows, err := c.d.query.WebhookDeliveriesDue(ctx, db.WebhookDeliveriesDueParams{EndpointNo: c.no, Floor: c.floor, Most: mostKnown})
	if err != nil {
		c.doubt("read due webhook deliveries", err)
		return
	}
	for i := range rows {
		r := &rows[i]
		c.take(db.WebhookDeliveriesRecordRow{
			DeliveryNo: r.DeliveryNo, EventNo: r.EventNo, Seq: r.Seq, Attempts: r.Attempts, EventID: r.EventID, Subject: r.Subject, Body: r.Body,
		})
	}
	if len(rows) < mostKnown {
		c.unread, c.floor = false, floor
	}
}

// take queues a due delivery, unless it is known.
func (c *endpointSender) take(r db.WebhookDeliveriesRecordRow) {
	if _, known := c.known[r.DeliveryNo]; known {
		return
	}
	if len(c.known) >= 2*mostKnown {
		c.unread, c.floor = true, time.Time{}
		return
	}
	p := &dueDelivery{no: r.DeliveryNo, attempts: r.Attempts, eventID: r.EventID, subject: r.Subject}
	if r.Body != nil {
		p.body = []byte(*r.Body)
	} else {
		p.eventNo, p.seq = *r.EventNo, *r.Seq
	}
	c.known[p.no], c.queue = p, append(c.queue, p)
}

// add stores the deliveries of the next events, if they can be sent soon. A failing endpoint also gets some when all of
// its deliveries have failed or were given up; otherwise it would never be tried again.
func (c *endpointSender) add(ctx context.Context) {
	for !c.resync && (!c.failing() || c.nothingNew()) && c.endpoint.EventNo < c.clock.LastEventNo && c.mayRunAhead(ctx) {
		if err := c.readPage(ctx); err != nil {
			c.d.log.Warn("read events for a webhook endpoint", "endpoint", c.id, "error", err)
			return // after the next look
		}
		n := min(addMost, len(c.page.Events))
		next := c.page.Next
		if n < len(c.page.Events) {
			next = events.Cursor{Epoch: next.Epoch, No: c.page.Events[n-1].No}
		}
		if !c.store(ctx, c.page.Events[:n], next) {
			return
		}
		c.page.Events = c.page.Events[n:]
	}
}

// readPage reads the next matching events, unless some are waiting to be stored.
func (c *endpointSender) readPage(ctx context.Context) error {
	if len(c.page.Events) > 0 && c.page.Events[0].No > c.endpoint.EventNo && c.pageVersion == c.endpoint.Version {
		return nil
	}
	cursor := c.page.Next
	if cursor.No != c.endpoint.EventNo || cursor == (events.Cursor{}) {
		var err error
		if cursor, err = c.d.feed.CursorAt(ctx, c.endpoint.EventNo); err != nil {
			return err
		}
	}
	filter := events.Filter{Types: c.endpoint.Types}
	page, err := c.d.feed.After(ctx, cursor, filter, pageMost)
	if expired, ok := errors.AsType[*events.Expired](err); ok {
		c.d.log.Error("events for a webhook endpoint are no longer kept: it continues with the oldest that are", "endpoint", c.id,
			"position", c.endpoint.EventNo, "continue", expired.Continue.No)
		page, err = c.d.feed.After(ctx, expired.Continue, filter, pageMost)
	}
	if err == nil {
		page.Events = slices.DeleteFunc(page.Events, func(e events.Event) bool { return !wants(filter.Types, e.Type) })
		c.page, c.pageVersion = page, c.endpoint.Version
	}
	return err
}

// store stores the deliveries of events and the new position of the endpoint. It returns false if it could not.
func (c *endpointSender) store(ctx context.Context, set []events.Event, next events.Cursor) bool {
	n := len(set)
	params := db.WebhookDeliveriesAddParams{
		EndpointNo: c.no, Owner: c.d.owner, Fence: c.fence, Seq: c.endpoint.Seq, EventNo: next.No,
		EventNos: make([]int64, n), Seqs: make([]int64, n), EventIds: make([]string, n), Types: make([]string, n),
		Subjects: make([]string, n), Firsts: make([]bool, n),
	}
	seen := make(map[string]bool, n)
	for i := range set {
		e := &set[i]
		subject, seq := subjectOf(e)
		params.EventNos[i], params.Seqs[i], params.EventIds[i], params.Types[i] = e.No, seq, e.ID, e.Type
		params.Subjects[i], params.Firsts[i] = subject, !seen[subject]
		seen[subject] = true
	}
	rows, err := c.d.query.WebhookDeliveriesAdd(ctx, params)
	if err != nil || len(rows) == 0 {
		c.doubt("store webhook deliveries", err)
		return false
	}
	before := rows[0].Before
	for i := range set {
		c.bodies.keep(before+int64(i)+1, set[i].JSON())
	}
	for _, row := range rows {
		if row.DeliveryNo == 0 {
			continue
		}
		i := row.DeliveryNo - before - 1
		c.take(db.WebhookDeliveriesRecordRow{
			DeliveryNo: row.DeliveryNo, EventNo: &params.EventNos[i], Seq: &params.Seqs[i],
			EventID: params.EventIds[i], Subject: params.Subjects[i],
		})
	}
	c.endpoint.EventNo = next.No
	c.endpoint.Seq++
	c.ahead += n
	return true
}

// subjectOf is the subject of an event, and its number there.
func subjectOf(e *events.Event) (subject string, seq int64) {
	if e.StockItem != "" {
		return itemSubject(e.StockItem), e.Data.Version
	}
	return orderSubject(e.OrderNo), e.Data.Seq
}

// mayRunAhead reports whether more deliveries may be stored. At the limit, they are counted again now and then, and
// soon if there is nothing to send: some may have been skipped, or wait behind a failed one.
func (c *endpointSender) mayRunAhead(ctx context.Context) bool {
	age := time.Since(c.countedAt)
	if c.countedAt.IsZero() || c.ahead > mostAhead-addMost && (age > countEvery || age > lookEvery && len(c.queue) == 0) {
		n, err := c.d.query.WebhookDeliveriesAhead(ctx, db.WebhookDeliveriesAheadParams{EndpointNo: c.no, Most: mostAhead})
		if err != nil {
			c.doubt("count webhook deliveries", err)
			return false
		}
		c.ahead, c.countedAt = int(n), time.Now()
	}
	return c.ahead <= mostAhead-addMost
}

// bodies caches the bodies of recently stored deliveries.
type bodies struct {
	texts map[int64][]byte
	size  int
}

const bodiesMost = 2 << 20 // bytes

func (b *bodies) keep(no int64, text []byte) {
	if b.texts == nil || b.size+len(text) > bodiesMost { // start over: bodies that are not sent soon would stay forever
		b.texts, b.size = map[int64][]byte{}, 0
	}
	b.texts[no] = text
	b.size += len(text)
}

// of removes and returns a body. Nil: it must be read.
func (b *bodies) of(no int64) []byte {
	text := b.texts[no]
	delete(b.texts, no)
	b.size -= len(text)
	return text
}
