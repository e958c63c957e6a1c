package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Processed is what became of one of many orders: Order or Problem is set.
type Processed struct {
	// Index of the order in the sequence, from 0.
	Index int
	// Order as it was when it was final, or when the service stopped waiting for it.
	Order *Order
	// Problem is why the service rejected the order.
	Problem *Problem
}

// ProcessAll sends the orders of a sequence, many at a time, and goes through what became of each, in the order in which they
// end. An order without an ID gets one. An order that is rejected does not affect the others. If a connection is lost, the orders
// that were not answered are sent again, as those that the service was too busy for, until nothing has been answered for as long
// as a call is retried. It ends after the first error, such as that of ctx. When the loop ends, orders that were sent go on
// without it; it is safe to send all of them again. The sequence is read in another goroutine, which ends before the loop does.
func (c *Client) ProcessAll(ctx context.Context, orders iter.Seq[ProcessBody]) iter.Seq2[Processed, error] {
	return c.ProcessLines(ctx, func(yield func([]byte) bool) {
		for order := range orders {
			if order.OrderID == "" {
				order.OrderID = NewID()
			}
			text, _ := json.Marshal(order) // it has only strings, numbers and times
			if !yield(text) {
				return
			}
		}
	})
}

const (
	requestsAtOnce = 8 // together they have as many orders as the service has in progress for one caller
	linesAtOnce    = 128
	requestBytes   = 1 << 20 // about what a request has at most
)

// sentLine is an order until it is answered.
type sentLine struct {
	index int
	text  []byte
	busy  *Problem // the last answer, if it asks for another attempt
}

// ProcessLines is ProcessAll for orders that are JSON already. They are sent as they are. Empty ones are passed over, but count.
func (c *Client) ProcessLines(ctx context.Context, orders iter.Seq[[]byte]) iter.Seq2[Processed, error] {
	return func(yield func(Processed, error) bool) {
		ctx, end := context.WithCancelCause(ctx)
		lines, done := make(chan sentLine, linesAtOnce), make(chan Processed)
		var reading, sending sync.WaitGroup
		defer reading.Wait()
		defer end(nil)
		reading.Go(func() {
			defer close(lines)
			readLines(ctx, orders, lines)
		})
		give := func(p Processed) {
			select {
			case done <- p:
			case <-ctx.Done():
			}
		}
		for range requestsAtOnce {
			sending.Go(func() {
				for first := range lines {
					if err := c.processLines(ctx, gather(first, lines), give); err != nil {
						end(err)
					}
				}
			})
		}
		reading.Go(func() {
			sending.Wait()
			close(done)
		})
		for p := range done {
			if !yield(p, nil) {
				return
			}
		}
		if err := context.Cause(ctx); err != nil {
			yield(Processed{}, err)
		}
	}
}

func readLines(ctx context.Context, orders iter.Seq[[]byte], lines chan<- sentLine) {
	index := -1
	for text := range orders {
		index++
		if len(bytes.TrimSpace(text)) == 0 { // it would get no answer
			continue
		}
		text = bytes.ReplaceAll(text, []byte("\n"), []byte(" ")) // a copy; the orders are told apart by line breaks
		select {
		case lines <- sentLine{index: index, text: text}:
		case <-ctx.Done():
			return
		}
	}
}

// gather returns the lines for a request: those that have come by now.
func gather(first sentLine, lines <-chan sentLine) []sentLine {
	all, size := []sentLine{first}, len(first.text)
	for len(all) < linesAtOnce && size < requestBytes {
		select {
		case line, ok := <-lines:
			if !ok {
				return all
			}
			all = append(all, line)
			size += len(line.text)
		default:
			return all
		}
	}
	return all
}

// processLines sends lines until each is answered.
func (c *Client) processLines(ctx context.Context, lines []sentLine, give func(Processed)) error {
	e, err := c.prepare(request{method: http.MethodPost, path: "/api/orders/process"})
	if err != nil {
		return err
	}
	e.header.Set("Content-Type", "application/x-ndjson")
	err = e.repeat(ctx, func() error {
		left, err := c.attemptLines(ctx, e, lines, give)
		if len(left) < len(lines) {
			e.began, e.tries = time.Now(), 1
		}
		lines = left
		return err
	})
	if err == nil || ctx.Err() != nil || slices.ContainsFunc(lines, func(l sentLine) bool { return l.busy == nil }) {
		return err
	}
	for _, line := range lines {
		give(Processed{Index: line.index, Problem: line.busy})
	}
	return nil
}

// attemptLines sends lines once, and returns those that should be sent again, and why.
func (c *Client) attemptLines(ctx context.Context, e *exchange, lines []sentLine, give func(Processed)) (left []sentLine, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var body bytes.Buffer
	for _, line := range lines {
		body.Write(line.text)
		body.WriteByte('\n')
	}
	sent, err := http.NewRequestWithContext(ctx, e.method, e.url, &body)
	if err != nil {
		return lines, err
	}
	sent.Header = e.header.Clone()
	answer, err := c.http.Do(sent)
	if err != nil {
		return lines, lostError{err}
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body) // what there is of it
		return lines, problemOf(answer, text)
	}
	open := slices.Clone(lines)
	for decoder := json.NewDecoder(answer.Body); ; {
		var line ProcessedLine
		if err = decoder.Decode(&line); err != nil {
			break
		}
		if line.Line < 1 || line.Line > len(open) || open[line.Line-1].text == nil {
			continue
		}
		at := &open[line.Line-1]
		p := Processed{Index: at.index, Order: line.Order}
		if line.Problem != nil {
			p.Problem = &Problem{ProblemBody: *line.Problem, RequestID: answer.Header.Get("X-Request-Id"), RetryAfter: time.Duration(line.RetryAfter) * time.Second}
		}
		if at.busy = p.Problem; at.busy == nil || !retryable(at.busy) {
			give(p)
			at.text = nil
		}
	}
	left = slices.DeleteFunc(open, func(l sentLine) bool { return l.text == nil })
	if len(left) == 0 {
		return nil, nil
	}
	if at := slices.IndexFunc(left, func(l sentLine) bool { return l.busy != nil }); at >= 0 {
		return left, left[at].busy
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return left, lostError{fmt.Errorf("read answer: %w", err)}
}
