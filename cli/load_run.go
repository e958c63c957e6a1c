package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
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

// answerLimit is longer than any service lets a caller wait.
const answerLimit = 90 * time.Second

// run sends the orders. When ctx ends, callers stop after the order they are at.
func (l *load) run(ctx context.Context) *loadResult {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = l.concurrency, l.concurrency
	client := &http.Client{Transport: transport, Timeout: answerLimit}
	defer client.CloseIdleConnections()

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
				answer, err := l.send(context.WithoutCancel(ctx), client, n)
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
	return result
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
func (l *load) order(n int64) (id, body string) {
	random := rand.New(rand.NewPCG(l.seed, uint64(n)))
	id = fmt.Sprintf("%016x%016x", random.Uint64(), random.Uint64())
	return id, fmt.Sprintf(`{"orderId":"%s","amount":%d.%02d,"item":"item-%d"}`, id, random.IntN(200), random.IntN(100), random.IntN(l.items))
}

// send sends the order of a number and says what came back. The error is for answers other
// than 2xx, and for none: then it is not known what became of the order.
func (l *load) send(ctx context.Context, client *http.Client, n int64) (answer string, err error) {
	_, body := l.order(n)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.url+"/api/orders/process", strings.NewReader(body))
	if err != nil {
		return "none", err
	}
	request.Header.Set("Content-Type", "application/json")
	if l.token != "" {
		request.Header.Set("Authorization", "Bearer "+l.token)
	}
	response, err := client.Do(request)
	if err != nil {
		return "none", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return "none", fmt.Errorf("read answer: %w", err)
	}
	var order struct{ Status, Code string } // of a problem: Code, and Status is a number
	decoded := json.Unmarshal(text, &order)
	if response.StatusCode/100 != 2 {
		answer = strings.TrimSpace(response.Status + " " + order.Code)
		return answer, errors.New(answer)
	}
	if decoded != nil {
		return response.Status, fmt.Errorf("decode answer: %w", decoded)
	}
	return response.Status + " " + order.Status, nil
}
