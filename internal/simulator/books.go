package simulator

import (
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/govalues/decimal"
)

// State is the state of a key.
type State string

// The states of a key. A key without a state was requested and had no effect.
const (
	Pending State = "pending" // accepted, not decided; a callback will report the result
	Live    State = "live"    // the effect exists
	Refused State = "refused" // the effect does not exist and never will
	Undone  State = "undone"  // the effect existed and has been undone
	Voided  State = "voided"  // undone before there was an effect, which is now impossible
)

// Subject says which order and step a request is about.
type Subject struct {
	OrderID    string `json:"orderId"`
	Step       string `json:"step"`
	Generation int32  `json:"generation"`
	Amount     string `json:"amount"` // decimal, as sent
	Currency   string `json:"currency"`
	Quantity   int32  `json:"quantity"`
	Item       string `json:"item"`
	Lines      []Line `json:"lines,omitempty"` // instead of item and quantity
	RefundID   string `json:"refundId,omitempty"`
	CaptureID  string `json:"captureId,omitempty"`
	VoidID     string `json:"voidId,omitempty"`

	RefundLines []RefundLine `json:"refundLines,omitempty"`
}

// Line is a line of an order, as sent.
type Line struct {
	Item     string `json:"item"`
	Quantity int32  `json:"quantity"`
	Amount   string `json:"amount,omitempty"`
	Kind     string `json:"kind,omitempty"` // empty: an item
}

// RefundLine is a line of a refund, as sent.
type RefundLine struct {
	Number int `json:"line"` // of the order, from 1
	Line
	Restock bool `json:"restock,omitempty"`
}

// items are the items of the order, or its item.
func (s *Subject) items() []string {
	if s.Lines == nil {
		return []string{s.Item}
	}
	var items []string
	for _, l := range s.Lines {
		if l.Kind == "" {
			items = append(items, l.Item)
		}
	}
	return items
}

// Entry is the entry of a key in the books.
type Entry struct {
	Key string `json:"key"`
	Subject
	State     State  `json:"state"`
	Reference string `json:"reference,omitempty"` // of the latest effect
	Code      string `json:"code,omitempty"`      // why it was refused
	Detail    string `json:"detail,omitempty"`
	// Effects is how often the effect happened under this key, undone or not. More than one is a double charge or the
	// like.
	Effects int `json:"effects"`
	// Captured and Voided are what was done to a charge that only authorizes.
	Captured decimal.Decimal `json:"captured,omitzero"`
	Voided   decimal.Decimal `json:"voided,omitzero"`
	// Requests is how often the do was requested since the simulator started.
	Requests int       `json:"requests"`
	At       time.Time `json:"at"` // when the state last changed
}

// entry is an Entry as it is stored, with what is needed to continue.
type entry struct {
	Entry
	Number   int             `json:"number,omitempty"` // in the books, from 1; 0: nothing has happened yet
	Body     string          `json:"body,omitempty"`   // fingerprint of the do; empty while none was accepted
	UndoName string          `json:"undoName,omitempty"`
	Promise  *promise        `json:"promise,omitempty"`
	Refunded decimal.Decimal `json:"refunded,omitzero"` // of a charge: the sum of its refunds
	Later    bool            `json:"later,omitempty"`   // a charge that only authorizes

	running bool // a request has checked the key, and its effect follows
}

// promise is a callback that is still to be sent. It is stored, so that it survives a restart.
type promise struct {
	URL   string        `json:"url"`
	Delay time.Duration `json:"delay"` // in nanoseconds
	Times int           `json:"times"`
	Code  string        `json:"code,omitempty"` // of a refusal
	From  time.Time     `json:"from"`           // when it was made
}

// record is a line of the file: the new state of some things. For each thing, the last line is valid.
type record struct {
	At      time.Time `json:"at"`
	Entries []*entry  `json:"entries,omitempty"`
	Undo    *undo     `json:"undo,omitempty"`
	Forgot  string    `json:"forgot,omitempty"` // a forgotten key
	Intent  *intent   `json:"intent,omitempty"` // of Stripe's side
	Answer  *answer   `json:"answer,omitempty"` // of Stripe's side
}

// undo is a completed undo request.
type undo struct {
	Key  string `json:"key"`
	Body string `json:"body"` // fingerprint of the request
	Of   string `json:"of"`   // the key of the do
}

// state is the stored state of the simulator. It is not safe for concurrent use.
type state struct {
	entries    []*entry            // in the order in which they were first entered
	keys       map[string]*entry   // by key of the do, including keys without an effect
	names      map[string]*entry   // by reference; never forgotten
	undos      map[string]string   // fingerprints by key of the undo
	orders     map[string][]*entry // by order id
	overlaps   int                 // effects while another of that order and step was live
	references int                 // assigned so far
	intents    map[string]*intent  // of Stripe's side, as are its answers
	answers    map[string]*answer
	refunds    map[string]*entry // by id of the refund of an intent
}

func newState() *state {
	return &state{
		keys: map[string]*entry{}, names: map[string]*entry{}, undos: map[string]string{}, orders: map[string][]*entry{},
		intents: map[string]*intent{}, answers: map[string]*answer{}, refunds: map[string]*entry{},
	}
}

// entry returns the entry of a key, which may be new.
func (s *state) entry(key string) *entry {
	if s.keys[key] == nil {
		s.keys[key] = &entry{Entry: Entry{Key: key}}
	}
	return s.keys[key]
}

func (s *state) apply(r record) error {
	for _, now := range r.Entries {
		e := s.entry(now.Key)
		switch {
		case now.Number > len(s.entries):
			return fmt.Errorf("entry %d comes before entry %d", now.Number, len(s.entries)+1)
		case now.Number > 0:
			e = s.entries[now.Number-1] // also if its key was forgotten
		}
		if now.Reference != e.Reference {
			s.references, s.names[now.Reference] = s.references+1, e
		}
		if now.UndoName != e.UndoName {
			s.references++
		}
		now.At = r.At
		s.enter(e, now)
		if r.Undo != nil {
			s.keys[r.Undo.Of] = e
		}
	}
	if r.Undo != nil {
		s.undos[r.Undo.Key] = r.Undo.Body
	}
	delete(s.keys, r.Forgot)
	if r.Answer != nil {
		r.Answer.at = r.At
		s.answers[r.Answer.Key] = r.Answer
	}
	if r.Intent != nil {
		s.enterIntent(r.Intent, r.At)
	}
	return nil
}

// enter updates an entry of the books. It counts effects that happen while another one is live.
func (s *state) enter(e, now *entry) {
	live := func(other *entry) bool { return other.Step == now.Step && other.State == Live } // also under the key itself
	if now.Effects > e.Effects && !slices.Contains(chargeOperations, now.Step) && slices.ContainsFunc(s.orders[now.OrderID], live) {
		s.overlaps++
	}
	number := e.Number
	*e = *now
	if e.Number = number; number == 0 {
		s.entries, s.orders[e.OrderID] = append(s.entries, e), append(s.orders[e.OrderID], e)
		e.Number = len(s.entries)
	}
}

// prefixes of references, for effects and their undos.
var prefixes = map[string][2]string{"charge": {"ch", "rf"}, "reserve": {"rs", "rl"}, "confirm": {"cf", ""}}

func (s *state) name(prefix string) string { return fmt.Sprintf("%s_%d", prefix, s.references+1) }

// Books returns the entries of an order, oldest first, or of all orders if orderID is empty. A key under which nothing
// was done, refused or voided has none.
func (s *Simulator) Books(orderID string) []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries := s.state.entries
	if orderID != "" {
		entries = s.state.orders[orderID]
	}
	all := []Entry{}
	for _, e := range entries {
		e.Requests = s.requests[e.Key]
		all = append(all, e.Entry)
	}
	return all
}

// Summary is the summary of the books.
type Summary struct {
	Steps map[string]Tally `json:"steps"` // charge, reserve, confirm, and refund, capture and void if there are any
	Money []Money          `json:"money"` // of charges, by currency

	DoubleLive      int `json:"doubleLive"`      // orders with two live charges or more
	Overlaps        int `json:"overlaps"`        // effects that happened while another of the same order and step was live
	RepeatedEffects int `json:"repeatedEffects"` // keys under which the effect happened more than once

	// Since the start:
	Requests             int    `json:"requests"`
	Repeated             int    `json:"repeated"`             // requests with a key that was requested before
	AnswersFound         int    `json:"answersFound"`         // look-ups that were told what had become of a request
	FoundOf              string `json:"foundOf,omitempty"`    // the order of the last one
	DuplicatesSuppressed int    `json:"duplicatesSuppressed"` // requests with a key that was in progress, or answered before
	RefusedAfterUndo     int    `json:"refusedAfterUndo"`     // dos whose key was already undone
}

// Tally counts the keys of a step by their state, and the effects under them.
type Tally struct {
	Effects int `json:"effects"`
	Live    int `json:"live"`
	Undone  int `json:"undone"`
	Refused int `json:"refused"`
	Voided  int `json:"voided"`
	Pending int `json:"pending"`
}

// Money is the total of the charges in one currency, as decimals: Charged - Refunded = Kept.
type Money struct {
	Currency string `json:"currency"`
	Charged  string `json:"charged"`
	Refunded string `json:"refunded"`
	Kept     string `json:"kept"`
}

// OK reports whether nothing happened twice.
func (s Summary) OK() bool { return s.DoubleLive == 0 && s.Overlaps == 0 && s.RepeatedEffects == 0 }

// Summary returns the current summary of the books.
func (s *Simulator) Summary() Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := Summary{
		Steps: map[string]Tally{}, Overlaps: s.state.overlaps, Requests: s.counts.requests,
		Repeated: s.counts.repeated, AnswersFound: s.counts.answersFound, FoundOf: s.counts.foundOf,
		DuplicatesSuppressed: s.counts.suppressed, RefusedAfterUndo: s.counts.refusedAfterUndo,
	}
	for step := range prefixes {
		sum.Steps[step] = Tally{}
	}
	totals, charges := map[string]*total{}, map[string]int{}
	for _, e := range s.state.entries {
		sum.count(e)
		if e.Step != "charge" && e.Step != operationRefund {
			continue
		}
		if totals[e.Currency] == nil {
			totals[e.Currency] = &total{}
		}
		totals[e.Currency].add(e)
		if e.State == Live && e.Step == "charge" {
			charges[e.OrderID]++
			if charges[e.OrderID] == 2 {
				sum.DoubleLive++
			}
		}
	}
	for _, currency := range slices.Sorted(maps.Keys(totals)) {
		sum.Money = append(sum.Money, totals[currency].money(currency))
	}
	return sum
}

func (s *Summary) count(e *entry) {
	tally := s.Steps[e.Step]
	tally.Effects += e.Effects
	states := map[State]*int{
		Live: &tally.Live, Undone: &tally.Undone, Refused: &tally.Refused, Voided: &tally.Voided, Pending: &tally.Pending,
	}
	*states[e.State]++
	s.Steps[e.Step] = tally
	if e.Effects > 1 {
		s.RepeatedEffects++
	}
}

// total adds up without rounding or overflow.
type total struct {
	charged, kept big.Rat
	scale         int // the most decimals of any amount
}

// add adds a charge or refund. Each effect took the amount, or what was captured of it; all that is not live was
// returned.
func (t *total) add(e *entry) {
	amount, ok := new(big.Rat).SetString(e.Amount)
	if !ok {
		return // impossible: amounts are checked on arrival
	}
	if e.Later && e.Step == "charge" {
		amount.SetString(e.Captured.String())
	}
	_, decimals, _ := strings.Cut(e.Amount, ".")
	t.scale = max(t.scale, len(decimals))
	if e.Step == operationRefund {
		if e.State == Live {
			t.kept.Sub(&t.kept, amount)
		}
		return
	}
	if e.State == Live {
		t.kept.Add(&t.kept, amount)
	}
	t.charged.Add(&t.charged, amount.Mul(amount, big.NewRat(int64(e.Effects), 1)))
}

func (t *total) money(currency string) Money {
	refunded := new(big.Rat).Sub(&t.charged, &t.kept)
	return Money{
		Currency: currency, Charged: t.charged.FloatString(t.scale),
		Refunded: refunded.FloatString(t.scale), Kept: t.kept.FloatString(t.scale),
	}
}
