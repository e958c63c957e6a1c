package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// follower reads the stream of events of a service, as one listener does, and notes how late each event comes: from the
// time that it has, which is when its transaction began.
type follower struct {
	body    io.ReadCloser
	running sync.WaitGroup
	load    *load
	events  []lateness
}

// catchUp is how long a follower has before the window begins. There was no reader of events before it, so there is a backlog of
// them at first, which goes away at the rate by which the feed is faster than the orders.
const catchUp = 10 * time.Second

type lateness struct{ came, lag time.Duration } // came is on the load's clock

// lags are how late the events of a window came, in ascending order.
type lags []time.Duration

// follow returns when the service has begun to answer, so that no event is missed. The clock of the database is this machine's.
func follow(ctx context.Context, to *server, l *load) (*follower, error) {
	body, err := to.get(ctx, "/api/events", "text/event-stream")
	if err != nil {
		return nil, fmt.Errorf("follow events: %w", err)
	}
	f := &follower{load: l, body: body}
	f.running.Go(f.read)
	return f, nil
}

var timestampOf = []byte(`"timestamp":"`)

func (f *follower) read() {
	lines := bufio.NewScanner(f.body)
	for lines.Scan() {
		_, rest, found := bytes.Cut(lines.Bytes(), timestampOf)
		text, _, ended := bytes.Cut(rest, []byte(`"`))
		if !found || !ended {
			continue // the other lines of an event, and signs of life
		}
		if at, err := time.Parse(time.RFC3339Nano, string(text)); err == nil {
			f.events = append(f.events, lateness{f.load.since(), time.Since(at)})
		}
	}
}

// stop ends it and returns the lags of the events that came in a window.
func (f *follower) stop(from, to time.Duration) lags {
	f.body.Close()
	f.running.Wait()
	return inWindow(f.events, from, to)
}

func inWindow(all []lateness, from, to time.Duration) (found lags) {
	for _, l := range all {
		if l.came >= from && l.came < to {
			found = append(found, l.lag)
		}
	}
	slices.Sort(found)
	return found
}

// withFollower measures the service with orders offered at a rate while a reader follows its events.
func (p *plan) withFollower(ctx context.Context) error {
	for range p.rounds {
		for _, items := range p.items {
			s := setup{Target: "pawl", Rate: p.rate, Items: items}
			if err := p.do(ctx, run{setup: s, window: p.window, follow: true}); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l lags) String() string {
	return fmt.Sprintf("%d events, late by p50 %.0f ms, p99 %.0f ms, at most %.0f ms", len(l),
		milliseconds(percentile(l, 50)), milliseconds(percentile(l, 99)), milliseconds(percentile(l, 100)))
}
