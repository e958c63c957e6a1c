package batch

import "time"

// A trial takes windows of time in turn with the limit and with another one, until both have seen enough items, and
// compares how long an item took from its queue to the end of its flush. The mean of that is the time that all items spent
// there together, by the number of those that came through (Little's law: J. D. C. Little, "A Proof for the Queuing Formula
// L = λW", 1961), so no item has to carry a time of its own.
type trial struct {
	change  int           // what the other limit has more: 1 or -1
	other   bool          // the window is the other's
	window  time.Time     // its beginning; before that, the trial has not begun
	windows int           // that are over
	pause   time.Duration // before this trial

	inside int       // items in the queues and in flushes
	at     time.Time // when that was last counted
	sides  [2]side   // the limit, the other
}

type side struct {
	spent time.Duration // by all items together
	items int
}

// A window is long beside a flush, so that what the change of the limit upsets settles within it, and short beside the
// moods of a machine. A trial takes some seconds of work.
const (
	windowLength  = 50 * time.Millisecond // at least
	windowFlushes = 20                    // at least
	windowsLeast  = 20
	itemsLeast    = 200 // on each side
)

// Every trial that changes nothing is followed by a longer pause: to try what is worse has its price.
const (
	pauseLeast = time.Second
	pauseMost  = time.Minute
)

// worthMore is how much sooner items have to come through with one more batch at a time, and worthLess how much
// later they may with one less: fewer cost the database less.
const (
	worthMore = 0.95
	worthLess = 1.02
)

func (t *trial) current() *side {
	if t.other {
		return &t.sides[1]
	}
	return &t.sides[0]
}

// count notes that n items have come in, or gone out.
func (t *trial) count(n int, now time.Time) {
	if now.After(t.window) {
		t.current().spent += time.Duration(t.inside) * now.Sub(t.at)
	}
	t.inside, t.at = t.inside+n, now
}

// left notes that n items have come through.
func (t *trial) left(n int, now time.Time) {
	t.count(-n, now)
	if now.After(t.window) {
		t.current().items += n
	}
}

// decided ends the window, if it is time for that, and reports whether the trial has seen enough.
// A flush usually takes as long as usual says.
func (t *trial) decided(now time.Time, usual time.Duration) bool {
	if now.Sub(t.window) < max(windowLength, windowFlushes*usual) {
		return false
	}
	t.other, t.window = !t.other, now
	t.windows++
	return t.windows >= windowsLeast && min(t.sides[0].items, t.sides[1].items) >= itemsLeast
}

// verdict is by how much the limit should change.
func (t *trial) verdict() int {
	mean := func(s side) float64 { return float64(s.spent) / float64(s.items) }
	worth := worthMore
	if t.change < 0 {
		worth = worthLess
	}
	if mean(t.sides[1]) < worth*mean(t.sides[0]) {
		return t.change
	}
	return 0
}

// begin starts the next trial, at once after one that changed the limit: the other way, where there is one.
func (t *trial) begin(changed bool, limit, most int, now time.Time) {
	if t.pause = min(max(2*t.pause, pauseLeast), pauseMost); changed {
		t.pause = 0
	}
	if t.change = -t.change; limit+t.change < 1 || limit+t.change > most {
		t.change = -t.change
	}
	t.other, t.windows, t.sides, t.window = false, 0, [2]side{}, now.Add(t.pause)
}
