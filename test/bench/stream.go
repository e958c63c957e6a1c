package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"pawl/internal/load"
)

// streamName is the service with all orders in one request, with streamLines in progress, for any number of callers.
const (
	streamName  = "stream"
	streamLines = 1024
)

// lineStream is a request with an order on each line. Each of its callers has one line in progress.
type lineStream struct {
	conn    net.Conn
	callers atomic.Int64
	working sync.WaitGroup
	wake    chan struct{} // there are lines to write

	mu      sync.Mutex
	lines   int
	unsent  []byte
	waiting map[int]chan<- error // by line
	err     error                // why the stream has ended
}

func startStream(to *server, s setup) *load.Running {
	stream := &lineStream{wake: make(chan struct{}, 1), waiting: map[int]chan<- error{}}
	stream.callers.Store(streamLines)
	stream.open(to)
	return load.Load{Callers: streamLines, Caller: func(int) (send func(int) error, end func()) {
		w, answer := newWire(to.address, to.token, false, s.Lines), make(chan error, 1)
		return func(int) error {
			w.next(s.Items, s.Ordered)
			return stream.order(w.order(), answer)
		}, stream.leave
	}}.Start()
}

// open sends the head of the request, and begins to write lines and to read answers.
func (l *lineStream) open(to *server) {
	head := "POST /api/orders/process HTTP/1.1\r\nHost: " + to.address + "\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n"
	if to.token != "" {
		head += "Authorization: Bearer " + to.token + "\r\n"
	}
	if l.conn, l.err = net.DialTimeout("tcp", to.address, 5*time.Second); l.err != nil {
		return
	}
	if _, l.err = l.conn.Write([]byte(head + "\r\n")); l.err != nil {
		return
	}
	l.working.Go(l.write)
	l.working.Go(func() { l.fail(l.read()) })
}

// order sends an order and waits for its answer.
func (l *lineStream) order(text []byte, answer chan error) error {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return l.err
	}
	l.lines++
	l.waiting[l.lines] = answer
	l.unsent = append(append(l.unsent, text...), '\n')
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return <-answer
}

// write sends the lines that were added during the last write. The last caller ends it.
func (l *lineStream) write() {
	var lines []byte
	for range l.wake {
		l.mu.Lock()
		lines, l.unsent = l.unsent, lines[:0]
		l.mu.Unlock()
		if len(lines) > 0 {
			chunk := append(strconv.AppendInt(nil, int64(len(lines)), 16), "\r\n"...)
			chunk = append(append(chunk, lines...), "\r\n"...)
			_, _ = l.conn.Write(chunk) // read reports the error
		}
	}
	_, _ = l.conn.Write([]byte("0\r\n\r\n"))
}

// read hands answers to their callers until the response ends.
func (l *lineStream) read() error {
	response, err := http.ReadResponse(bufio.NewReaderSize(l.conn, 64<<10), nil)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return &refused{response.Status}
	}
	for lines := bufio.NewReaderSize(response.Body, 64<<10); ; {
		text, err := lines.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("read answer: %w", err)
		}
		number, _, _ := bytes.Cut(bytes.TrimPrefix(text, []byte(`{"line":`)), []byte(","))
		n, err := strconv.Atoi(string(number))
		if err != nil {
			return fmt.Errorf("read %.200q: %w", text, err)
		}
		var failed error
		if !bytes.Contains(text, completed) {
			failed = &refused{fmt.Sprintf("not completed: %.200s", text)}
		}
		l.mu.Lock()
		answer := l.waiting[n]
		delete(l.waiting, n)
		l.mu.Unlock()
		if answer == nil {
			return fmt.Errorf("line %d was answered twice", n)
		}
		answer <- failed
	}
}

// fail ends the stream. After an orderly end, no caller waits.
func (l *lineStream) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = cmp.Or(err, io.EOF)
	for _, answer := range l.waiting {
		answer <- l.err
	}
	clear(l.waiting)
}

// leave is called by each caller at its end.
func (l *lineStream) leave() {
	if l.callers.Add(-1) > 0 {
		return
	}
	close(l.wake)
	l.working.Wait()
	if l.conn != nil {
		_ = l.conn.Close()
	}
}

// withStream compares one stream with 256 callers, and measures orders at a rate with and without a concurrent stream,
// alternately.
func (p *plan) withStream(ctx context.Context) error {
	for _, items := range p.items {
		for round := range p.rounds {
			for _, name := range inTurn(p.only, round) {
				if err := p.do(ctx, run{setup: setup{Target: name, Callers: 256, Items: items}, window: p.window}); err != nil {
					return err
				}
			}
			for _, beside := range []bool{round%2 == 1, round%2 == 0} {
				if err := p.do(ctx, run{setup: setup{Target: "pawl", Rate: float64(p.rates[0]), Items: items, Beside: beside}, window: p.window}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// printBeside prints how long single orders took beside a stream, as medians of the rounds.
func (r report) printBeside(w io.Writer) {
	seen := map[setup]bool{}
	p99 := func(x result) float64 { return x.P99 }
	for _, x := range r.Results {
		alone := x.setup
		alone.Beside = false
		if !x.Beside || seen[x.setup] || len(r.rounds(alone)) == 0 {
			continue
		}
		seen[x.setup] = true
		fmt.Fprintf(w, "\n%s: p99 %s of that without (%.1f ms against %.1f ms)\n", x.setup,
			ratio(r.rounds(x.setup), r.rounds(alone), p99), median(r.rounds(x.setup), p99), median(r.rounds(alone), p99))
	}
}
