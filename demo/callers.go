package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"sync"
	"time"

	"pawl/client"
)

const (
	callers  = 16
	patience = 2 * time.Minute // of a caller, for one order; then it counts as lost
)

// tally is what the callers saw.
type tally struct {
	mu     sync.Mutex
	counts counts
}

type counts struct {
	sent, completed, failed int           // orders
	requests                int           // for them, with those that were sent again
	slowest                 time.Duration // until it was known how an order ended; since the last look
}

// look returns the counts, and looks for the slowest order anew from now on.
func (t *tally) look() (c counts) {
	t.add(func(now *counts) {
		c = *now
		now.slowest = 0
	})
	return c
}

func (t *tally) peek() (c counts) {
	t.add(func(now *counts) { c = *now })
	return c
}

func (t *tally) add(change func(*counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.counts)
}

// balancer sends each request to any replica, dead ones, too, as a balancer does for a while.
type balancer struct {
	*stage
	transport http.Transport
}

func (b *balancer) RoundTrip(request *http.Request) (*http.Response, error) {
	target, err := url.Parse(b.replica(rand.IntN(len(b.replicas))).url)
	if err != nil {
		return nil, err
	}
	b.tally.add(func(c *counts) { c.requests++ })
	request = request.Clone(request.Context())
	request.URL.Host, request.Host = target.Host, target.Host
	return b.transport.RoundTrip(request)
}

// send has callers send orders, each one after the other, until ctx ends. It returns when all their orders have ended.
func (s *stage) send(ctx context.Context) error {
	replicas := &balancer{stage: s, transport: http.Transport{MaxIdleConnsPerHost: callers}}
	defer replicas.transport.CloseIdleConnections()
	shop, err := client.New("http://any-replica", client.Options{
		HTTPClient: &http.Client{Transport: replicas}, Timeout: 2 * time.Second, RetryFor: patience})
	if err != nil {
		return err
	}
	var running sync.WaitGroup
	for range callers {
		running.Go(func() {
			for ctx.Err() == nil {
				s.order(context.WithoutCancel(ctx), shop)
			}
		})
	}
	running.Wait()
	return nil
}

// order sends a new order and waits until it is known how it ended.
func (s *stage) order(ctx context.Context, shop *client.Client) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s.tally.add(func(c *counts) { c.sent++ })
	began := time.Now()
	order, err := shop.ProcessAndWait(ctx, client.ProcessBody{
		Amount: fmt.Sprintf("%d.%02d", 1+rand.IntN(200), rand.IntN(100)), Item: fmt.Sprintf("item-%d", rand.IntN(50))})
	if err != nil {
		return // it is neither completed nor failed, and in the end it is missed
	}
	s.tally.add(func(c *counts) {
		if order.Status == client.StatusCompleted {
			c.completed++
		} else {
			c.failed++
		}
		c.slowest = max(c.slowest, time.Since(began))
	})
}
