package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"pawl/client"
)

// load is a closed loop of callers that send a number of new orders.
type load struct {
	orders, concurrency, items int
	url, token                 string
	seed                       uint64 // the orders are made from it and their number: it is enough to know them again
	sent                       func() // after every order, from any caller
}

// loadResult is what the callers saw.
type loadResult struct {
	took      time.Duration
	latencies []time.Duration // of the orders that were answered
	answers   map[string]int  // by status code, and what the order was then
	failed    int             // answers other than 2xx, or none
	first     error           // of those
}

// run sends the orders. When ctx ends, callers stop after the order they are at.
func (l *load) run(ctx context.Context) (*loadResult, error) {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = l.concurrency, l.concurrency
	defer transport.CloseIdleConnections()
	service, err := client.New(l.url, client.Options{Token: l.token, HTTPClient: &http.Client{Transport: transport}, RetryFor: -1})
	if err != nil {
		return nil, err
	}
	result := &loadResult{answers: map[string]int{}}
	var left atomic.Int64
	left.Store(int64(l.orders))
	var mutex sync.Mutex
	var callers sync.WaitGroup
	began := time.Now()
	for range l.concurrency {
		callers.Go(func() {
			for ctx.Err() == nil {
				n := left.Add(-1)
				if n < 0 {
					return
				}
				sent := time.Now()
				answer, err := l.send(context.WithoutCancel(ctx), service, n)
				took := time.Since(sent)
				mutex.Lock()
				result.add(answer, err, took)
				mutex.Unlock()
				l.sent()
			}
		})
	}
	callers.Wait()
	result.took = time.Since(began)
	return result, nil
}

func (r *loadResult) add(answer string, err error, took time.Duration) {
	r.answers[answer]++
	if err == nil {
		r.latencies = append(r.latencies, took)
		return
	}
	r.failed++
	r.first = cmp.Or(r.first, err)
}

func (r *loadResult) percentile(p int) time.Duration {
	if len(r.latencies) == 0 {
		return 0
	}
	rank := min(len(r.latencies)*p/100, len(r.latencies)-1)
	return r.latencies[rank].Round(10 * time.Microsecond)
}

// order is the order of a number, from 0, as a request has it.
func (l *load) order(n int64) client.ProcessBody {
	random := rand.New(rand.NewPCG(l.seed, uint64(n)))
	return client.ProcessBody{
		OrderID: fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64()),
		Amount:  fmt.Sprintf("%d.%02d", random.IntN(200), random.IntN(100)),
		Item:    fmt.Sprintf("item-%d", random.IntN(l.items)),
	}
}

// send sends the order of a number, once, and says what came back. The error is for answers other
// than 2xx, and for none: then it is not known what became of the order.
func (l *load) send(ctx context.Context, service *client.Client, n int64) (answer string, err error) {
	var response http.Response
	order, err := service.ProcessOrder(ctx, nil, l.order(n), client.WithResponse(&response))
	var problem *client.Problem
	switch {
	case errors.As(err, &problem):
		answer = strings.TrimSpace(response.Status + " " + string(problem.Code))
		return answer, errors.New(answer)
	case err != nil:
		return cmp.Or(response.Status, "none"), err
	}
	return response.Status + " " + string(order.Status), nil
}
