package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"pawl/internal/orders"
)

const (
	ndjson       = "application/x-ndjson"
	lineShare    = 8 << 10               // of lineBytes, for a short line: a caller has up to 512 of them in progress
	yieldedShare = 32 * lineShare        // likewise while single orders come: 16 of them
	yieldsFor    = time.Second           // how long after a single order lines yield
	answersEvery = 20 * time.Millisecond // answers are written together, unless no other line is in progress
	lingering    = time.Second           // for a caller that still sends to read the last answers
)

// orderStream is a request with an order on each line, and its answer, with a line for each order as it ends. A line
// holds its share of memory until its answer has been written. So a caller that does not read the answers is not read
// from.
type orderStream struct {
	submission
	w      http.ResponseWriter // lines must not touch its headers: they run concurrently
	r      *http.Request
	payer  payer
	rights rights

	ctx     context.Context //nolint:containedctx // of the waits for orders; ends when the caller disconnects
	gone    context.CancelFunc
	reading context.Context //nolint:containedctx // ends when no more lines are read
	enough  context.CancelFunc

	running sync.WaitGroup // lines that were read

	mu      sync.Mutex
	wholly  bool // the body was read to its end
	open    int  // lines without an answer
	answers []byte
	held    []func()      // release the shares of the lines in answers
	some    chan struct{} // there are answers
	now     chan struct{} // they should be written at once
}

// processedLine documents a line of the answer.
type processedLine struct {
	Line       int32    `json:"line" minimum:"1" doc:"Number of the line in the request, from 1. Empty lines count."`
	Status     int32    `json:"status" doc:"The HTTP status that a request with this order alone would get."`
	RetryAfter int32    `json:"retryAfter,omitempty" minimum:"1" doc:"Seconds to wait before sending the order again, or before reading it."`
	Order      *order   `json:"order,omitempty" doc:"The order. With status 200 and 202."`
	Problem    *problem `json:"problem,omitempty" doc:"Why the order was rejected. With any other status."`
}

// hasOrderLines reports whether a request has an order on each line.
func hasOrderLines(r *http.Request) bool {
	given := r.Header.Get("Content-Type")
	return len(given) >= len(ndjson) && strings.EqualFold(given[:len(ndjson)], ndjson) && r.URL.Path == processOperation.Path
}

// processStream answers a request with an order on each line. Every line that was read is processed, even if the
// caller disconnects.
func (s *server) processStream(w http.ResponseWriter, r *http.Request) error {
	if err := checkMediaType(r.Header, ndjson); err != nil {
		return err
	}
	if r.Header["Idempotency-Key"] != nil {
		return badIdempotencyKey("must not be sent with many orders; the id of each makes it safe to send it again")
	}
	place, ok := placeToWait(w, r)
	if !ok {
		return newProblem("overloaded", "Too many requests wait already.")
	}
	defer place.leave()
	st := &orderStream{
		submission: s.submissionOf(w, r), w: w, r: r, payer: payerOf(w),
		rights: s.rightsOf(w, r, processOperation.OperationID), some: make(chan struct{}, 1), now: make(chan struct{}, 1),
	}
	// net/http cancels the context of the request after any failed read, even one by our deadline.
	st.ctx, st.gone = context.WithCancel(context.WithoutCancel(r.Context()))
	defer st.gone()
	st.reading, st.enough = context.WithCancel(st.ctx)
	if c := connectionOf(r); c != nil {
		defer context.AfterFunc(c.all.stopping, st.stopReading)()
	}
	st.begin()
	st.answer()
	if st.wholly {
		return nil
	}
	// The rest of the body can't be a request, so the connection must be closed. A caller that is still sending would
	// lose the last answers by that. So the body is read for a moment first.
	_ = huma.SetReadDeadline(w, time.Now().Add(lingering))
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		panic(http.ErrAbortHandler)
	}
	return nil
}

// begin sends the head of the answer: the caller may wait for it before it sends more.
func (st *orderStream) begin() {
	rec := recordOf(st.w)
	rec.inLines = true
	rec.end() // each line counts against the limits of the principal
	rec.done = nil
	header := st.w.Header()
	header.Set("Content-Type", ndjson)
	header.Set("X-Accel-Buffering", "no") // for nginx
	if applied := st.want.applied(false); applied != "" {
		header.Set("Preference-Applied", applied)
	}
	control := http.NewResponseController(st.w)
	_ = control.EnableFullDuplex() // not every writer has a connection
	if st.r.Header["Expect"] != nil {
		rec.ResponseWriter.WriteHeader(http.StatusContinue) // net/http would send it with the first read, after the head
	}
	st.w.WriteHeader(http.StatusOK)
	_ = control.Flush()
}

// answer reads the lines and writes their answers, until every line that was read has one.
func (st *orderStream) answer() {
	var writing sync.WaitGroup
	writing.Go(st.write)
	defer writing.Wait()
	defer close(st.some)
	defer st.running.Wait()
	st.read()
}

// read starts each line, until there are no more or reading must end.
func (st *orderStream) read() {
	in := lineReader{Reader: bufio.NewReaderSize(st, 16<<10)}
	for n := 1; ; n++ {
		text, err := in.next()
		last := errors.Is(err, io.EOF)
		if err != nil && !last { // the rest of the line may be missing
			return
		}
		if len(bytes.TrimSpace(text)) > 0 && !st.start(n, text) {
			return
		}
		if last {
			st.mu.Lock()
			st.wholly = true
			st.mu.Unlock()
			_ = huma.SetReadDeadline(st.w, time.Time{})
			context.AfterFunc(st.r.Context(), st.gone)
			return
		}
	}
}

// Read reads from the body. Each read may take as long as a connection may be idle.
func (st *orderStream) Read(p []byte) (int, error) {
	_ = huma.SetReadDeadline(st.w, time.Now().Add(idleTimeout))
	if err := st.reading.Err(); err != nil { // checked after the deadline was set, because stopReading sets another one
		return 0, err
	}
	n, err := st.r.Body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, os.ErrDeadlineExceeded) {
		st.gone()
	}
	return n, err
}

// stopReading ends the reading of lines. Lines that were read are answered.
func (st *orderStream) stopReading() {
	st.enough()
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.wholly {
		_ = huma.SetReadDeadline(st.w, time.Now())
	}
}

// lineReader reads lines of up to maxBody bytes. Of a longer line it keeps slightly more than that.
type lineReader struct {
	*bufio.Reader
	line []byte
}

// next returns a line, which is valid until the next call, and io.EOF with the last line.
func (l *lineReader) next() ([]byte, error) {
	l.line = l.line[:0]
	for {
		part, err := l.ReadSlice('\n')
		if len(l.line) <= maxBody {
			l.line = append(l.line, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return l.line, err
		}
	}
}

// start waits until the caller may have another line in progress, and starts it. It reports false if no more lines
// are read.
func (st *orderStream) start(n int, text []byte) bool {
	denied := st.rights.check()
	admission, err := st.Access.AdmitSoon(st.reading, st.principal)
	if err != nil {
		return false
	}
	release, err := st.lines.acquire(st.reading, st.payer, max(int64(len(text)), st.leastShare()))
	if err != nil {
		admission.Done(0)
		return false
	}
	st.mu.Lock()
	st.open++
	st.mu.Unlock()
	text = bytes.Clone(text)
	st.running.Go(func() {
		answer := newBuffer()
		defer answer.free()
		answer.Write(st.process(answer.AvailableBuffer(), n, text, denied))
		admission.Done(int64(len(text) + answer.Len()))
		st.give(answer.Bytes(), release)
	})
	return denied == nil
}

// leastShare is the share of a short line. While single orders come, it leaves room for few lines: a single order waits
// for the batch before its own in each of its steps, and hundreds of lines would make those batches long.
func (st *orderStream) leastShare() int64 {
	if time.Since(time.UnixMicro(st.singleAt.Load())) < yieldsFor {
		return yieldedShare
	}
	return lineShare
}

// process appends the answer to a line.
func (st *orderStream) process(b []byte, n int, text []byte, denied error) []byte {
	began := time.Now()
	o, answer, err := (*orders.Order)(nil), (*order)(nil), denied
	if denied == nil {
		o, answer, err = st.order(text)
	}
	line := processedLine{Line: int32(n), Status: http.StatusOK}
	switch {
	case err != nil:
		line.Problem = problemOf(err)
		line.Status = int32(line.Problem.Status)
		line.RetryAfter = secondsOf(line.Problem.GetHeaders().Get("Retry-After"))
		if st.ctx.Err() != nil {
			line.Status = clientGone
		} else {
			st.logFault(st.requestID, line.Problem, err)
		}
	case !o.Status.Final():
		line.Status = http.StatusAccepted
		line.RetryAfter = secondsOf(retryAfter(o, st.clock))
	}
	st.metrics.seconds.WithLabelValues(st.r.Pattern, strconv.Itoa(int(line.Status))).Observe(time.Since(began).Seconds())
	if err != nil {
		return append(appendRare(b, &line), '\n')
	}
	b = strconv.AppendInt(append(b, `{"line":`...), int64(n), 10)
	b = strconv.AppendInt(append(b, `,"status":`...), int64(line.Status), 10)
	if line.RetryAfter > 0 {
		b = strconv.AppendInt(append(b, `,"retryAfter":`...), int64(line.RetryAfter), 10)
	}
	b = answer.append(append(b, `,"order":`...))
	return append(b, "}\n"...)
}

// secondsOf is the value of Retry-After, or 0.
func secondsOf(header string) int32 {
	seconds, _ := strconv.ParseInt(header, 10, 32)
	return int32(seconds)
}

// order processes the order of a line. Of an order that was forgotten, only the status is in o. It recovers from
// panics, which would end the service outside of the handler.
func (st *orderStream) order(text []byte) (o *orders.Order, answer *order, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			st.logPanic(st.requestID, st.r, cause)
			err = newProblem("internal", "")
		}
	}()
	if len(text) > maxBody {
		return nil, nil, newProblem("body_too_large", "")
	}
	in, ignored, err := st.input(st.ctx, text, nil)
	if err != nil {
		return nil, nil, err
	}
	o, err = st.run(st.ctx, in)
	if f, ok := errors.AsType[*orders.Forgotten](err); ok {
		return &orders.Order{Status: f.Status}, forgottenOrder(f, in, ignored), nil
	}
	if err != nil {
		return nil, nil, err
	}
	return o, st.answerOf(o, withMetadata(ignored, in, o)), nil
}

// give queues an answer for write.
func (st *orderStream) give(answer []byte, release func()) {
	st.mu.Lock()
	st.answers = append(st.answers, answer...)
	st.held = append(st.held, release)
	st.open--
	now := st.open == 0 || len(st.answers) >= piece
	st.mu.Unlock()
	wake(st.some)
	if now {
		wake(st.now)
	}
}

func wake(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // awake already
	}
}

// write writes answers, several together. If it fails, the caller has disconnected or reads too slowly.
func (st *orderStream) write() {
	control := http.NewResponseController(st.w)
	var spare []byte
	for range st.some {
		select {
		case <-st.now:
		case <-time.After(answersEvery):
		}
		st.mu.Lock()
		answers, held := st.answers, st.held
		st.answers, st.held = spare[:0], nil
		st.mu.Unlock()
		if st.ctx.Err() == nil {
			_, err := st.w.Write(answers)
			if err = errors.Join(err, control.Flush()); err != nil && !errors.Is(err, errors.ErrUnsupported) {
				st.gone()
				st.stopReading()
			}
		}
		spare = answers
		for _, release := range held {
			release()
		}
	}
}
