package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"pawl/db"
	"pawl/internal/pg"
)

// outcome collects the results of attempts until they are stored.
type outcome struct {
	results   []verdict
	succeeded bool          // some attempt was a success
	slower    bool          // the endpoint answered 429 or the like
	gone      bool          // the endpoint answered 410
	pause     time.Duration // requested by Retry-After
	downSince *time.Time    // start of an outage that has just ended
}

// superseded drops what attempts say about the endpoint because they began before it was changed, disabled or enabled.
// An old 410, for example, would disable it again. Delivered messages stay delivered; failed ones are due again, as
// after an enable.
func (o *outcome) superseded() {
	for i := range o.results {
		if v := &o.results[i]; v.state == Pending || v.state == Exhausted {
			v.state, v.delay = Pending, 0
		}
	}
	*o = outcome{results: o.results}
}

// verdict is the new state of a delivery after an attempt.
type verdict struct {
	no       int64
	attempts int16 // before this one
	state    string
	delay    time.Duration // of the next attempt
	entry    Entry
}

// archived is the verdict on a delivery whose event was removed from the database.
func (o *outcome) archived(p *dueDelivery, now time.Time) {
	o.results = append(o.results, verdict{p.no, p.attempts, Skipped, 0, Entry{At: now.UTC(), Error: "the event was moved to an archive"}})
}

func (c *endpointSender) collect(r result) {
	c.inFlight--
	if r.canceled {
		delete(c.known, r.no)
		return
	}
	a, o := &r.attempt, &c.outcome
	v := verdict{no: r.no, attempts: r.attempts, state: Delivered, entry: a.Entry}
	c.d.metrics.attempted(c.id, a)
	if r.attempts == 0 {
		c.ahead = max(0, c.ahead-1)
	}
	switch {
	case r.version != c.endpoint.Version: // see superseded
		if !a.Delivered() {
			v.state, c.unread = Pending, true
		}
	case a.Delivered():
		if c.failing() {
			c.limit = 1 // and grows again
		}
		if c.failed() >= failingFor {
			o.downSince = c.endpoint.FailingSince
		}
		c.endpoint.Failures, c.endpoint.FailingSince = 0, nil
		o.succeeded = true
		c.limit = min(c.limit+1, mostAtOnce)
	default:
		c.endpoint.Failures = min(c.endpoint.Failures, mostFailures) + 1
		if c.endpoint.FailingSince == nil {
			c.endpoint.FailingSince = new(c.clock.now())
		}
		c.limit = max(1, c.limit-1)
		v.state = Pending
		var more bool
		if v.delay, more = pauseAfter(int(r.attempts)+1, a.RetryAfter); !more {
			v.state = Exhausted
			c.d.log.Warn("webhook delivery exhausted: later deliveries of its order or item wait", "endpoint", c.id,
				"delivery", r.no, "event", r.eventID, "status", a.Status)
		}
		o.failed(a)
	}
	o.results = append(o.results, v)
}

// mostFailures keeps the count of failures from overflowing.
const mostFailures = 1_000_000

// failed evaluates what an answer says about the whole endpoint.
func (o *outcome) failed(a *Attempt) {
	switch a.Status {
	case http.StatusGone:
		o.gone = true
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		o.slower = true
		o.pause = max(o.pause, min(a.RetryAfter, longestRetryAfter))
	}
}

// record stores the outcome, and queues the deliveries that become due.
func (c *endpointSender) record(ctx context.Context) {
	o := &c.outcome
	pause := c.pauseFor(o)
	rows, err := c.d.query.WebhookDeliveriesRecord(ctx, c.recordParams(o, pause))
	if err != nil || len(rows) == 0 { // sent again after the next look; results that were stored are not stored twice
		c.doubt("store results of webhooks", err)
		return
	}
	for _, v := range o.results {
		delete(c.known, v.no)
	}
	done := *o
	c.outcome = outcome{}
	c.endpoint.Seq++
	c.leaveAlone(pause)
	for _, row := range rows {
		if row.DeliveryNo != 0 {
			c.take(row)
		}
	}
	switch {
	case done.gone:
		c.disable(ctx, "it answered 410 Gone")
	case rows[0].FailingLong && c.endpoint.Failures > 0:
		c.disable(ctx, "nothing was delivered for five days")
	case done.downSince != nil:
		c.pullForward(ctx, done.downSince)
	}
}

// pullForward makes deliveries due that failed only during an outage, and those that would wait longer than is
// possible. They join the queue and are sent as fast as the endpoint accepts them.
func (c *endpointSender) pullForward(ctx context.Context, downSince *time.Time) {
	_, err := c.d.query.WebhookDeliveriesPullForward(ctx, db.WebhookDeliveriesPullForwardParams{
		EndpointNo: c.no, Owner: c.d.owner, Fence: c.fence, Seq: c.endpoint.Seq,
		DownSince: downSince, AttemptSeconds: attemptLimit.Seconds(),
		LongestPauses: longestPauses(), LongestPause: longestRetryAfter.Seconds() + 1,
	})
	if err != nil { // no row: the endpoint was changed by others
		if errors.Is(err, pgx.ErrNoRows) {
			err = nil
		}
		c.doubt("reschedule webhook deliveries", err)
		return
	}
	c.endpoint.Seq++
	c.unread, c.floor = true, time.Time{}
}

// leaveAlone starts no attempts for a while. Results of attempts under way do not shorten a requested pause.
func (c *endpointSender) leaveAlone(pause time.Duration) {
	until, before := c.clock.now().Add(pause), c.endpoint.PausedUntil
	if pause > 0 && (before == nil || before.Before(until)) {
		c.endpoint.PausedUntil = &until
	}
}

// DisabledAfter is how long nothing may be delivered to an endpoint until it is disabled.
const DisabledAfter = 5 * 24 * time.Hour

// pauseFor is how long to wait before the next attempt. The pauses of a failing endpoint grow: a tenth of the time
// since the first failure.
func (c *endpointSender) pauseFor(o *outcome) time.Duration {
	if o.slower {
		c.limit = max(1, c.limit/2)
	}
	if !c.failing() {
		return o.pause
	}
	return max(o.pause, pg.Jitter(min(c.failed()/10, longestPause)))
}

func (c *endpointSender) recordParams(o *outcome, pause time.Duration) db.WebhookDeliveriesRecordParams {
	params := db.WebhookDeliveriesRecordParams{
		EndpointNo: c.no, Owner: c.d.owner, Fence: c.fence, Seq: c.endpoint.Seq,
		Failures: c.endpoint.Failures, Succeeded: o.succeeded, PauseSeconds: pause.Seconds(), DisabledAfter: DisabledAfter.Seconds(),
	}
	for _, v := range o.results {
		entry, _ := json.Marshal(v.entry) // it can always be encoded
		params.DeliveryNos = append(params.DeliveryNos, v.no)
		params.Attempts = append(params.Attempts, v.attempts)
		params.States = append(params.States, v.state)
		params.Delays = append(params.Delays, v.delay.Seconds())
		params.Entries = append(params.Entries, string(entry))
	}
	return params
}

// typeDisabled is the type of the message about a disabled endpoint. It is not in the feed.
const typeDisabled = "webhook_endpoint.disabled"

// disable disables the endpoint, and reports it in the log, in a metric, and to all other endpoints.
func (c *endpointSender) disable(ctx context.Context, reason string) {
	m := message{ID: "msg_" + uuid.NewString(), Type: typeDisabled, Timestamp: c.clock.now().UTC()}
	m.Data.EndpointID, m.Data.URL, m.Data.Reason = c.id, c.endpoint.Url, reason
	row, err := c.d.query.WebhookEndpointDisable(ctx, db.WebhookEndpointDisableParams{
		EndpointNo: c.no, Owner: c.d.owner, Fence: c.fence, Version: c.endpoint.Version,
		Reason: reason, EventID: m.ID, Type: m.Type, Body: string(m.json()),
	})
	c.resync = true // state and seq have changed
	switch {
	case errors.Is(err, pgx.ErrNoRows): // the lease was lost, or a person has changed the endpoint
	case err != nil:
		c.d.log.Warn("disable webhook endpoint", "endpoint", c.id, "error", err)
	default:
		c.endpoint.State = Disabled
		c.d.metrics.disabled.Inc()
		c.d.log.Error("webhook endpoint disabled: nothing is sent to it until it is enabled", "endpoint", c.id,
			"reason", reason, "endpoints_told", row.Told)
	}
}

// message is sent like an event, but is not in the feed.
type message struct {
	ID        string    `json:"id"`
	Type      string    `json:"type"`
	Timestamp time.Time `json:"timestamp"`
	Data      struct {
		EndpointID string `json:"endpointId"`
		URL        string `json:"url,omitempty"`
		Reason     string `json:"reason,omitempty"`
	} `json:"data"`
}

func (m *message) json() []byte {
	text, err := json.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("webhooks: %v", err)) // our own type
	}
	return text
}

const (
	purgeEvery  = 10 * time.Minute
	purgeAtOnce = 1000
)

// purge removes old finished deliveries, a few at a time. Of a deleted endpoint it removes all, and then the endpoint.
func (c *endpointSender) purge(ctx context.Context) {
	deleted := c.endpoint.State == Deleted
	if c.resync || deleted && c.inFlight > 0 || !deleted && time.Now().Before(c.purgeAt) {
		return
	}
	next, err := c.d.query.WebhookDeliveriesPurge(ctx, db.WebhookDeliveriesPurgeParams{
		EndpointNo: c.no, After: c.purgeFrom, Most: purgeAtOnce, AgeSeconds: c.d.cfg.Retention.Seconds(), Whole: deleted,
	})
	if err == nil && next == 0 && deleted {
		err = c.d.query.WebhookEndpointRemove(ctx, db.WebhookEndpointRemoveParams{EndpointNo: c.no, Owner: c.d.owner, Fence: c.fence})
		c.d.metrics.forget(c.id)
	}
	if err != nil {
		c.d.log.Warn("remove old webhook deliveries", "endpoint", c.id, "error", err)
	}
	if c.purgeFrom = next; next == 0 || err != nil {
		c.purgeFrom, c.purgeAt = 0, time.Now().Add(purgeEvery)
	}
}

// pauses are the waits of a delivery after each failed attempt. After one more attempt it is exhausted.
var pauses = [...]time.Duration{
	5 * time.Second, time.Minute, 5 * time.Minute, 30 * time.Minute, 2 * time.Hour, 5 * time.Hour,
	10 * time.Hour, 14 * time.Hour, 20 * time.Hour, 24 * time.Hour,
}

// longestRetryAfter bounds Retry-After, for one delivery or for all.
const longestRetryAfter = time.Hour

// pauseAfter is how long to wait after a number of attempts, and at least retryAfter. It returns false if there are no
// more attempts.
func pauseAfter(attempts int, retryAfter time.Duration) (time.Duration, bool) {
	if attempts > len(pauses) {
		return 0, false
	}
	return max(pg.Jitter(pauses[attempts-1]), min(retryAfter, longestRetryAfter)), true
}

// longestPauses are the longest pauses of a delivery by number of attempts, in seconds. An untried delivery is due at
// once.
func longestPauses() []float64 {
	longest := []float64{1}
	for _, pause := range pauses {
		longest = append(longest, max(pause+pause/5, longestRetryAfter).Seconds())
	}
	return longest
}
