package events

import (
	"slices"

	"pawl/db"
)

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
