package batch

import "time"

// A trial takes windows of time by turns with things as they are and as they could be, until both have seen enough items,
// and compares how long an item took from its queue to the end of its flush. The mean of that is the time that all items
// spent there together, by the number of those that came through (Little's law: J. D. C. Little, "A Proof for the Queuing
// Formula L = λW", 1961), so no item has to carry a time of its own.
type trial struct {
	other   bool          // the window is one of things as they could be
	window  time.Time     // its beginning; before that, the trial has not begun
	windows int           // that are over
	pause   time.Duration // before this trial

	inside int       // items in the queues and in flushes
	at     time.Time // when that was last counted
	sides  [2]side   // things as they are, and as they could be
}

type side struct {
	spent time.Duration // by all items together
	items int
}

// mean is how long an item took.
func (s side) mean() float64 { return float64(s.spent) / float64(s.items) }

// A window is long beside a flush, so that what the change upsets settles within it, and short beside the moods of a
// machine. A trial takes a second or two of work.
const (
	windowLength  = 50 * time.Millisecond // at least
	windowFlushes = 16                    // at least
	windowsLeast  = 12
	itemsLeast    = 200 // on each side
)

// Every trial that changes nothing is followed by a longer pause: to try what is worse has its price.
const (
	pauseLeast = time.Second
	pauseMost  = time.Minute
)

// slower is how much longer items may take where batches take turns: they cost the database and the service less.
const slower = 1.1

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

// decided ends the window, if it is time for that, and reports whether the trial has seen enough. A flush usually takes as
// long as usual says.
func (t *trial) decided(now time.Time, usual time.Duration) bool {
	if now.Sub(t.window) < max(windowLength, windowFlushes*usual) {
		return false
	}
	t.other, t.window = !t.other, now
	t.windows++
	return t.windows >= windowsLeast && min(t.sides[0].items, t.sides[1].items) >= itemsLeast
}

// end ends the trial, of which together says how things are, returns how they should be, and prepares the next one.
func (t *trial) end(together bool, now time.Time) bool {
	turns, free := t.sides[0].mean(), t.sides[1].mean()
	if together {
		turns, free = free, turns
	}
	better := turns > slower*free
	t.pause = min(max(2*t.pause, pauseLeast), pauseMost)
	if better != together {
		t.pause = pauseLeast
	}
	t.other, t.windows, t.sides, t.window = false, 0, [2]side{}, now.Add(t.pause)
	return better
}
