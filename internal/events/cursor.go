package events

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"pawl/db"
)

// Cursor is a position in the feed: after the event with this number. The zero Cursor is before the oldest event.
type Cursor struct {
	Epoch int32 // the history that the number belongs to
	No    int64
}

// ErrCursor is the error for a text that is not a cursor.
var ErrCursor = errors.New("not a cursor")

// ParseCursor parses a cursor. Errors: ErrCursor.
func ParseCursor(text string) (Cursor, error) {
	epochText, noText, _ := strings.Cut(text, ".")
	epoch, _ := strconv.ParseUint(epochText, 10, 31)
	no, _ := strconv.ParseUint(noText, 10, 63) // an error gives another text below
	c := Cursor{int32(epoch), int64(no)}
	if c.String() != text {
		return Cursor{}, ErrCursor
	}
	return c, nil
}

// String returns the cursor as callers store it, such as "29411432.17".
func (c Cursor) String() string {
	return strconv.FormatInt(int64(c.Epoch), 10) + "." + strconv.FormatInt(c.No, 10)
}

// Expired is the error for a cursor after which events are missing from the feed.
type Expired struct {
	// Lost is true if the database has lost events before the cursor, as after a failover to a standby that was
	// behind. Otherwise the events after it were removed because of their age.
	Lost bool
	// Continue is where to continue: every later event that the caller has not seen, and that still exists, is after it.
	Continue Cursor
}

func (e *Expired) Error() string {
	why := "is older than the feed"
	if e.Lost {
		why = "belongs to a lost history"
	}
	return fmt.Sprintf("the cursor %s: continue at %s", why, e.Continue)
}

// resume checks a cursor, and returns the one after which the next page begins. Errors: *Expired.
func resume(c Cursor, feed *db.EventFeedRow) (Cursor, error) {
	oldest := Cursor{epochOf(feed.FirstEventNo, feed), feed.FirstEventNo - 1}
	if c == (Cursor{}) {
		return oldest, nil
	}
	i := slices.Index(feed.Epochs, c.Epoch)
	if i < 0 || c.No < feed.EpochStarts[i]-1 { // of another database, or of an unknown history
		return Cursor{}, &Expired{Lost: true, Continue: oldest}
	}
	end := feed.LastEventNo // the last event of the epoch
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

// epochOf is the epoch of the event that has or will have a number; 0: no event was ever numbered.
func epochOf(no int64, feed *db.EventFeedRow) (epoch int32) {
	for i, first := range feed.EpochStarts {
		if first <= no || i == 0 {
			epoch = feed.Epochs[i]
		}
	}
	return epoch
}
