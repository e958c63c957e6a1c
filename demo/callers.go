package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	callers  = 16
	tryLimit = 3 * time.Second        // then a caller hangs up and asks again
	pace     = 100 * time.Millisecond // between two tries of a caller
	patience = 2 * time.Minute        // for one order; then it counts as lost
)

// tally is what the callers saw.
type tally struct {
	mu     sync.Mutex
	counts counts
}

type counts struct {
	sent, completed, failed int           // orders
	again                   int           // requests beyond the first one of their order
	slowest                 time.Duration // until it was known how an order ended; since the last look
}

// look returns the counts, and looks for the slowest answer anew from now on.
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

// send has callers send orders, each one after the other, until ctx ends. It returns when all their orders have ended.
func (s *stage) send(ctx context.Context) {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: callers}}
	defer client.CloseIdleConnections()
	var running sync.WaitGroup
	for range callers {
		running.Go(func() {
			for ctx.Err() == nil {
				s.order(client)
			}
		})
	}
	running.Wait()
}

// order sends a new order, to any replica, and again, until it is known how it ended.
func (s *stage) order(client *http.Client) {
	body := fmt.Sprintf(`{"orderId":%q,"amount":"%d.%02d","item":"item-%d"}`, uuid.NewString(), 1+rand.IntN(200), rand.IntN(100), rand.IntN(50))
	s.tally.add(func(c *counts) { c.sent++ })
	for began := time.Now(); time.Since(began) < patience; {
		status := s.try(client, body)
		s.tally.add(func(c *counts) {
			switch status {
			case "completed":
				c.completed++
			case "failed":
				c.failed++
			default:
				c.again++
				return
			}
			c.slowest = max(c.slowest, time.Since(began))
		})
		if status == "completed" || status == "failed" {
			return
		}
		<-time.After(pace)
	}
}

func (t *tally) add(change func(*counts)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	change(&t.counts)
}

// try sends an order once and returns the status that it has then. It is empty where there was no answer, or another one.
func (s *stage) try(client *http.Client, body string) (status string) {
	ctx, cancel := context.WithTimeout(context.Background(), tryLimit)
	defer cancel()
	url := s.replica(rand.IntN(len(s.replicas))).url + "/api/orders/process"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return ""
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := client.Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	var order struct{ Status string }
	if err != nil || response.StatusCode/100 != 2 || json.Unmarshal(text, &order) != nil {
		return ""
	}
	return order.Status
}
