package demo

import (
	"fmt"
	"io"
	"time"
)

// table tells what happens: a row for each event, with what the callers have seen so far.
type table struct {
	out   io.Writer
	live  bool
	tally *tally
	began time.Time
}

const (
	head   = "   time    orders  completed  failed  requests   slowest\n"
	format = "%6.1fs  %8d  %9d  %6d  %8d  %7dms  %s"

	startOfLine = "\r\x1b[K" // and what was there is gone
)

// note is a line before the table.
func (t *table) note(what string) { fmt.Fprintln(t.out, what) }

func (t *table) begin() {
	t.began = time.Now()
	fmt.Fprint(t.out, head)
}

func (t *table) row(what string) {
	fmt.Fprint(t.out, t.start(), t.line(t.tally.look(), what), "\n")
}

// draw shows how it is now, to a person: the next row takes the place of this one.
func (t *table) draw() {
	if t.live {
		fmt.Fprint(t.out, t.start(), t.line(t.tally.peek(), ""))
	}
}

func (t *table) start() string {
	if t.live {
		return startOfLine
	}
	return ""
}

func (t *table) line(c counts, what string) string {
	return fmt.Sprintf(format, time.Since(t.began).Seconds(), c.sent, c.completed, c.failed, c.requests, c.slowest.Milliseconds(), what)
}
