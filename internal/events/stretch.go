package events

import (
	"cmp"
	"slices"
)

// Kept is an event as the tail keeps it.
type Kept struct {
	Cursor string
	JSON   []byte // the event as it is sent

	at                    Cursor
	orderID, kind, status string
}

// stretch is events of the tail that were read at one time. It never changes.
type stretch struct {
	events  []Kept
	bytes   int
	ofOrder map[string][]int32 // which of them are about an order: most who listen to one find that none is
}

// About what a stretch, and an event, takes in memory beside its JSON, in bytes.
const (
	stretchOverhead = 500
	keptOverhead    = 250
)

func newStretch(page Page) stretch {
	s := stretch{events: make([]Kept, len(page.Events)), ofOrder: make(map[string][]int32, len(page.Events)/2), bytes: stretchOverhead}
	for i := range page.Events {
		e := &page.Events[i]
		at, _ := ParseCursor(e.Cursor) // it is ours
		s.events[i] = Kept{Cursor: e.Cursor, JSON: e.JSON(), at: at, orderID: e.Data.OrderID, kind: e.Type, status: e.Data.Status}
		s.bytes += len(s.events[i].JSON) + keptOverhead
		if id := e.Data.OrderID; id != "" {
			s.ofOrder[id] = append(s.ofOrder[id], int32(i))
		}
	}
	return s
}

// last is the cursor behind the stretch.
func (s *stretch) last() Cursor { return s.events[len(s.events)-1].at }

// each calls take with the events behind a number that the filter chooses, in order, until take says no.
func (s *stretch) each(after int64, f *Filter, take func(*Kept) bool) (whole bool) {
	if f.OrderID != "" {
		for _, i := range s.ofOrder[f.OrderID] {
			if e := &s.events[i]; e.at.No > after && f.chooses(e.orderID, e.kind, e.status) && !take(e) {
				return false
			}
		}
		return true
	}
	first, _ := slices.BinarySearchFunc(s.events, after+1, func(e Kept, no int64) int { return cmp.Compare(e.at.No, no) })
	for i := first; i < len(s.events); i++ {
		if e := &s.events[i]; f.chooses(e.orderID, e.kind, e.status) && !take(e) {
			return false
		}
	}
	return true
}
