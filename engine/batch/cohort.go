package batch

import (
	"sync"
	"time"
)

// Cohort gathers items that began together, such as the calls of one statement, and are likely to end together. It
// passes on all of them when the last one has come. After the first, it waits at most a short time for the others; an
// item that comes later is passed on at once. A lone item never waits.
//
// It is safe for concurrent use.
type Cohort[T any] struct {
	pass func([]T)

	mu      sync.Mutex
	missing int
	came    []T         // and not passed on
	timer   *time.Timer // nil before the first item
	late    bool        // the timer has ended
}

// siblingTime is how long the first item waits for the others. The answers of a provider to the calls of one statement
// are less far apart, and calls take much longer.
const siblingTime = 3 * time.Millisecond

// NewCohort returns a cohort of n items. pass gets every item once, and must not block.
func NewCohort[T any](n int, pass func([]T)) *Cohort[T] {
	return &Cohort[T]{pass: pass, missing: n}
}

// Add adds one of the items.
func (c *Cohort[T]) Add(item T) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.came = append(c.came, item)
	c.missing--
	switch {
	case c.missing == 0 || c.late:
		c.passOn()
	case c.timer == nil:
		c.timer = time.AfterFunc(siblingTime, c.endWait)
	}
}

func (c *Cohort[T]) endWait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = true
	c.passOn()
}

func (c *Cohort[T]) passOn() {
	if c.missing == 0 && c.timer != nil {
		c.timer.Stop()
	}
	if len(c.came) > 0 {
		c.pass(c.came)
		c.came = nil
	}
}
