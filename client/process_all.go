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

// Processed is the result of one order of ProcessAll: Order or Problem is set.
type Processed struct {
	// Index is the position of the order in the sequence, from 0.
	Index int
	// Order is the order when it was final, or when the service stopped waiting for it.
	Order *Order
	// Problem is why the service rejected the order.
	Problem *Problem
}

// ProcessAll sends the orders of a sequence, many at a time, and yields the result of each, in the order in which
// they end. A rejected order does not affect the others. An order without an ID gets a new one.
//
// Orders that were not answered, because a connection was lost or the service was busy, are sent again until nothing
// has been answered for Options.RetryFor. The first error, such as the error of ctx, ends the loop.
//
// If the loop ends early, the service continues with the orders that it has received. With IDs, it is safe to send
// all of them again. An order without one would get another ID, and be charged again.
//
// The sequence is read in another goroutine, which ends before the loop does.
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
	requestsAtOnce = 8 // of linesAtOnce each: as many orders as the service processes for one caller at a time
	linesAtOnce    = 128
	requestBytes   = 1 << 20 // approximate limit of a request
)

// sentLine is an order on its way.
type sentLine struct {
	index    int
	text     []byte
	busy     *Problem // the last answer, if it asks for another attempt
	answered bool     // by an answer that no other attempt would change
}

// ProcessLines is ProcessAll for orders that are JSON already. Each needs an ID. Empty lines are skipped, but
// counted.
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
		if len(bytes.TrimSpace(text)) == 0 { // an empty line gets no answer
			continue
		}
		text = bytes.ReplaceAll(text, []byte("\n"), []byte(" ")) // a copy; line breaks separate the orders
		select {
		case lines <- sentLine{index: index, text: text}:
		case <-ctx.Done():
			return
		}
	}
}

// gather returns the lines of a request: those that are available now.
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

// processLines sends lines until each has an answer.
func (c *Client) processLines(ctx context.Context, lines []sentLine, give func(Processed)) error {
	e, err := c.prepare(request{method: http.MethodPost, path: "/api/orders/process"}, nil)
	if err != nil {
		return err
	}
	e.header.Set("Content-Type", "application/x-ndjson")
	err = e.repeat(ctx, func() error {
		unanswered, err := c.attemptLines(ctx, e, lines, give)
		if len(unanswered) < len(lines) {
			e.began, e.tries = time.Now(), 1
		}
		lines = unanswered
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

// attemptLines sends lines once, and gives away their final answers. It returns the other lines, to be sent again, and
// why: the problem of one of them, or a lostError if the answer ended before it had a line for each.
func (c *Client) attemptLines(
	ctx context.Context, e *exchange, lines []sentLine, give func(Processed),
) (unanswered []sentLine, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var body bytes.Buffer
	for _, line := range lines {
		body.Write(line.text)
		body.WriteByte('\n')
	}
	httpRequest, err := http.NewRequestWithContext(ctx, e.method, e.url, &body)
	if err != nil {
		return lines, err
	}
	httpRequest.Header = e.header.Clone()
	answer, err := c.http.Do(httpRequest)
	if err != nil {
		return lines, lostError{err}
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(answer.Body) // as much as there is
		return lines, problemOf(answer, text)
	}
	lines = slices.Clone(lines)
	for decoder := json.NewDecoder(answer.Body); ; {
		var line ProcessedLine
		if err = decoder.Decode(&line); err != nil {
			break
		}
		if line.Line < 1 || line.Line > len(lines) || lines[line.Line-1].answered {
			continue
		}
		sent := &lines[line.Line-1]
		p := Processed{Index: sent.index, Order: line.Order}
		if line.Problem != nil {
			p.Problem = &Problem{ProblemBody: *line.Problem, RequestID: answer.Header.Get("X-Request-Id"),
				RetryAfter: time.Duration(line.RetryAfter) * time.Second}
		}
		if sent.busy = p.Problem; sent.busy == nil || !retryable(sent.busy) {
			give(p)
			sent.answered = true
		}
	}
	unanswered = slices.DeleteFunc(lines, func(l sentLine) bool { return l.answered })
	if len(unanswered) == 0 {
		return nil, nil
	}
	if busy := slices.IndexFunc(unanswered, func(l sentLine) bool { return l.busy != nil }); busy >= 0 {
		return unanswered, unanswered[busy].busy
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return unanswered, lostError{fmt.Errorf("read answer: %w", err)}
}
