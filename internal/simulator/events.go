package simulator

import (
	"fmt"
	"time"
)

// event is a line of the file: something that has happened to a key of a do. The state
// is what applying all events in their order makes of nothing.
type event struct {
	Event string    `json:"event"`
	At    time.Time `json:"at"`
	Key   string    `json:"key"`
	Subject
	Body      string   `json:"body"` // fingerprint of the request
	Reference string   `json:"reference,omitempty"`
	Code      string   `json:"code,omitempty"`
	Detail    string   `json:"detail,omitempty"`
	UndoKey   string   `json:"undoKey,omitempty"`   // of the request, for an undo
	Undoes    string   `json:"undoes,omitempty"`    // what it named, where the key is not known any more
	Refunds   string   `json:"refunds,omitempty"`   // what a refund gives back, by name,
	ChargeKey string   `json:"chargeKey,omitempty"` // or by key
	Promise   *promise `json:"promise,omitempty"`
	Stripe    *change  `json:"stripe,omitempty"`
}

const (
	eventPending = "pending"
	eventDone    = "done"
	eventRefused = "refused"
	eventUndone  = "undone"
	eventStripe  = "stripe"
	eventForgot  = "forgotten"
)

// state is everything the simulator knows for good. It is not safe for concurrent use.
type state struct {
	entries    []*entry            // with an event, in the order of the first
	keys       map[string]*entry   // by key of the do, also those only heard of
	names      map[string]*entry   // by our name for the effect; they are never forgotten
	undos      map[string]string   // fingerprints by key of the undo
	orders     map[string][]*entry // by order id
	overlaps   int                 // effects while another of that order and step was live
	references int                 // given out so far
	intents    map[string]*intent  // of Stripe's side, as its keys
	stripeKeys map[string]*stripeKey
	given      map[string]*entry // by id of the refund of an intent
}

func newState() *state {
	return &state{
		keys: map[string]*entry{}, names: map[string]*entry{}, undos: map[string]string{}, orders: map[string][]*entry{},
		intents: map[string]*intent{}, stripeKeys: map[string]*stripeKey{}, given: map[string]*entry{},
	}
}

// entry returns what is known of a key of a do, be it nothing yet.
func (s *state) entry(key string) *entry {
	e, ok := s.keys[key]
	if !ok {
		e = &entry{Entry: Entry{Key: key}}
		s.keys[key] = e
	}
	return e
}

// list puts an entry into the books.
func (s *state) list(e *entry) *entry {
	s.entries, s.orders[e.OrderID] = append(s.entries, e), append(s.orders[e.OrderID], e)
	return e
}

func (s *state) apply(ev event) error {
	if ev.Event == eventStripe && ev.Stripe != nil {
		s.applyStripe(ev)
		return nil
	}
	e := s.entry(ev.Key)
	if ev.Event == eventForgot {
		delete(s.keys, ev.Key)
		return nil
	}
	if ev.Undoes != "" {
		if e = s.names[ev.Undoes]; e == nil {
			return fmt.Errorf("unknown reference %q", ev.Undoes)
		}
		s.keys[ev.Key] = e
	}
	if e.State == "" {
		e.Subject = ev.Subject
		s.list(e)
	}
	if ev.Reference != "" {
		s.references++
	}
	switch ev.Event {
	case eventPending:
		e.State, e.body, e.promise, e.Reference = Pending, ev.Body, ev.Promise, ev.Reference
	case eventDone:
		s.done(e, ev)
		s.refund(e, ev)
	case eventRefused:
		e.State, e.body, e.Code, e.Detail = Refused, ev.Body, ev.Code, ev.Detail
	case eventUndone:
		s.undone(e, ev)
	default:
		return fmt.Errorf("unknown event %q", ev.Event)
	}
	if e.Reference != "" {
		s.names[e.Reference] = e
	}
	e.At = ev.At
	return nil
}

func (s *state) done(e *entry, ev event) {
	s.overlap(e)
	e.State, e.body = Live, ev.Body
	e.Effects++
	if ev.Reference != "" { // a pending key has its name already
		e.Reference = ev.Reference
	}
}

// overlap counts an effect that is about to happen while another is live.
func (s *state) overlap(e *entry) {
	if e.Step == stepRefund {
		return // an order can have several
	}
	for _, other := range s.orders[e.OrderID] {
		if other.Step == e.Step && other.State == Live {
			s.overlaps++ // also under the key itself
			return
		}
	}
}

// undone takes an effect back, or sees to it that there never will be one. Afterwards
// nothing is live under the key, and it stays so.
func (s *state) undone(e *entry, ev event) {
	s.undos[ev.UndoKey] = ev.Body
	switch e.State {
	case Live:
		e.State, e.undoName = Undone, ev.Reference
	case Refused, Undone, Voided:
	default:
		e.State = Voided
	}
}

// prefixes of our names for effects and for taking them back.
var prefixes = map[string][2]string{"charge": {"ch", "rf"}, "reserve": {"rs", "rl"}, "confirm": {"cf", ""}}

func (s *state) name(prefix string) string { return fmt.Sprintf("%s_%d", prefix, s.references+1) }
