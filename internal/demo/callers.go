package demo

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"pawl/client"
	"pawl/internal/load"
)

const (
	callers  = 16
	patience = 2 * time.Minute // of callers, after the last order was sent. What has not ended then counts as lost

	// Where a person breaks things, for hours perhaps, callers send no more than a small machine can keep, and an order may wait
	// for that person in the end.
	pauseByHand    = 1200 * time.Millisecond // at most, between two orders of a caller
	patienceByHand = 20 * time.Second
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
	b.tally.add(func(c *counts) { c.requests++ })
	return b.transport.RoundTrip(aimed(request.Context(), request, b.replica(rand.IntN(len(b.replicas))).url))
}

// send has callers send orders, each one after the other, until ctx ends. It returns when all their orders have ended.
func (s *stage) send(ctx context.Context) error {
	replicas := &balancer{stage: s, transport: http.Transport{MaxIdleConnsPerHost: callers}}
	defer replicas.transport.CloseIdleConnections()
	shop, err := client.New(s.front.Address(), client.Options{
		HTTPClient: &http.Client{Transport: replicas}, Timeout: 2 * time.Second, RetryFor: 1000 * time.Hour})
	if err != nil {
		return err
	}
	waiting, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	running := load.Load{Callers: callers, Caller: func(int) (send func(int) error, end func()) {
		return func(int) error {
			s.order(waiting, shop)
			s.pause(ctx)
			return nil
		}, func() {}
	}}.Start()
	<-ctx.Done()
	defer time.AfterFunc(s.patience(), giveUp).Stop()
	running.Halt()
	running.Wait()
	return nil
}

func (s *stage) patience() time.Duration {
	if s.byHand.Load() {
		return patienceByHand
	}
	return patience
}

// pause is that of a caller between two orders.
func (s *stage) pause(ctx context.Context) {
	if !s.byHand.Load() {
		return
	}
	select {
	case <-ctx.Done():
	case <-time.After(rand.N(pauseByHand)):
	}
}

// order sends a new order and waits until it is known how it ended.
func (s *stage) order(ctx context.Context, shop *client.Client) {
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
