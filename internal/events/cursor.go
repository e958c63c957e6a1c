package events

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pawl/db"
)

// Cursor is a place in the feed: just behind the event with this number. The zero Cursor is before the oldest event that
// is kept.
type Cursor struct {
	Epoch int32 // the history that the number belongs to
	No    int64
}

// ErrCursor: a text is not one that Cursor.String made.
var ErrCursor = errors.New("not a cursor of the feed")

// ParseCursor reads what String wrote. Errors: ErrCursor.
func ParseCursor(text string) (Cursor, error) {
	epochText, noText, _ := strings.Cut(text, ".")
	epoch, _ := strconv.ParseUint(epochText, 10, 31) // what is no number, or too large, is not written as it was
	no, _ := strconv.ParseUint(noText, 10, 63)
	c := Cursor{int32(epoch), int64(no)}
	if c.String() != text {
		return Cursor{}, ErrCursor
	}
	return c, nil
}

// String is the cursor as callers keep it: "29411432.17".
func (c Cursor) String() string {
	return strconv.FormatInt(int64(c.Epoch), 10) + "." + strconv.FormatInt(c.No, 10)
}

// Expired says that a cursor leads nowhere any more.
type Expired struct {
	// Lost: the history that the cursor belongs to was lost by then, as when a standby took over that did not have all of it.
	// If not, events after it are no longer kept.
	Lost bool
	// Continue is where to go on. What was lost is not there; what is kept and was not seen, is.
	Continue Cursor
}

func (e *Expired) Error() string {
	why := "is older than what is kept"
	if e.Lost {
		why = "belongs to a history that was lost"
	}
	return fmt.Sprintf("the cursor %s: go on at %s", why, e.Continue)
}

// resume checks a cursor against the feed, and returns it with the epoch and number that the next page begins after. Errors: *Expired.
func resume(c Cursor, feed *db.EventFeedRow) (Cursor, error) {
	oldest := Cursor{epochOf(feed.FirstEventNo, feed), feed.FirstEventNo - 1}
	if c == (Cursor{}) {
		return oldest, nil
	}
	i := slices.Index(feed.Epochs, c.Epoch)
	if i < 0 || c.No < feed.EpochStarts[i]-1 { // another database, or a history of which nothing is known
		return Cursor{}, &Expired{Lost: true, Continue: oldest}
	}
	end := feed.LastEventNo // of the epoch
	if i+1 < len(feed.Epochs) {
		end = feed.EpochStarts[i+1] - 1
	}
	switch {
	case c.No > end:
		return Cursor{}, &Expired{Lost: true, Continue: later(Cursor{c.Epoch, end}, oldest)}
	case c.No < oldest.No:
		return Cursor{}, &Expired{Continue: oldest}
	}
	return c, nil
}

func later(a, b Cursor) Cursor {
	if a.No < b.No {
		return b
	}
	return a
}

// epochOf is the epoch of an event, or of the one that will have this number; 0: no event was ever numbered.
func epochOf(no int64, feed *db.EventFeedRow) (epoch int32) {
	for i, first := range feed.EpochStarts {
		if first <= no || i == 0 {
			epoch = feed.Epochs[i]
		}
	}
	return epoch
}
