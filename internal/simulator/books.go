package simulator

import (
	"maps"
	"math/big"
	"slices"
	"strings"
)

// Books returns the keys of an order, the oldest first; those of all orders when orderID
// is empty. A key under which nothing was done, refused or voided is not in them.
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

// Summary is what the books come to.
type Summary struct {
	Steps map[string]Tally `json:"steps"` // charge, reserve, confirm; refund where there are any
	Money []Money          `json:"money"` // of charges, by currency

	DoubleLive      int `json:"doubleLive"`      // orders with two live charges or more
	Overlaps        int `json:"overlaps"`        // effects that happened while another of the same order and step was live
	RepeatedEffects int `json:"repeatedEffects"` // keys under which the effect happened more than once

	// Since the start:
	Requests             int `json:"requests"`
	DuplicatesSuppressed int `json:"duplicatesSuppressed"` // requests with a key that was in progress, or answered before
	RefusedAfterUndo     int `json:"refusedAfterUndo"`     // dos that came when their key was undone
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

// Money is what charges came to, in decimals: Charged - Refunded = Kept.
type Money struct {
	Currency string `json:"currency"`
	Charged  string `json:"charged"`
	Refunded string `json:"refunded"`
	Kept     string `json:"kept"`
}

// OK reports whether nothing happened twice.
func (s Summary) OK() bool { return s.DoubleLive == 0 && s.Overlaps == 0 && s.RepeatedEffects == 0 }

// Summary returns what the books come to now.
func (s *Simulator) Summary() Summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := Summary{
		Steps: map[string]Tally{}, Overlaps: s.state.overlaps, Requests: s.counts.requests,
		DuplicatesSuppressed: s.counts.suppressed, RefusedAfterUndo: s.counts.refusedAfterUndo,
	}
	for step := range prefixes {
		sum.Steps[step] = Tally{}
	}
	totals, charges := map[string]*total{}, map[string]int{}
	for _, e := range s.state.entries {
		sum.count(e)
		if e.Step != "charge" && e.Step != stepRefund {
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
	switch e.State {
	case Live:
		tally.Live++
	case Undone:
		tally.Undone++
	case Refused:
		tally.Refused++
	case Voided:
		tally.Voided++
	case Pending:
		tally.Pending++
	}
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

// add adds a charge. Each effect took the amount; all but what is live was given back.
func (t *total) add(e *entry) {
	amount, ok := new(big.Rat).SetString(e.Amount)
	if !ok {
		return // it was checked when it came
	}
	_, decimals, _ := strings.Cut(e.Amount, ".")
	t.scale = max(t.scale, len(decimals))
	if e.Step == stepRefund {
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
