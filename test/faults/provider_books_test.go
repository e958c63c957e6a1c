package faults

import (
	"fmt"
	"math/big"
	"strings"

	"pawl/internal/simulator"
)

// kept is what the provider has of an order that stands, or may still come to.
type kept struct {
	live    map[string]int // by step
	pending int
	charged map[string]*big.Rat // live charges, by currency
}

// books are the provider's, by order.
func (s *shop) books() map[string]*kept {
	all := map[string]*kept{}
	for _, e := range s.provider.Books("") {
		k := all[e.OrderID]
		if k == nil {
			k = &kept{live: map[string]int{}, charged: map[string]*big.Rat{}}
			all[e.OrderID] = k
		}
		switch e.State {
		case simulator.Live:
			k.live[e.Step]++
			if e.Step == "charge" {
				add(k.charged, e.Currency, e.Amount)
			}
		case simulator.Pending:
			k.pending++
		default: // undone, or never done
		}
	}
	return all
}

func add(sums map[string]*big.Rat, currency, amount string) {
	value, ok := new(big.Rat).SetString(amount)
	if !ok {
		panic("not a number: " + amount)
	}
	if sums[currency] == nil {
		sums[currency] = new(big.Rat)
	}
	sums[currency].Add(sums[currency], value)
}

// wrong compares an order with what the provider has of it.
func (k *kept) wrong(o outcome) string {
	charges, reservations, confirmations := k.live["charge"], k.live["reserve"], k.live["confirm"]
	what := fmt.Sprintf("%s, and at the provider %d charges, %d reservations, %d confirmations are live, %d may still come",
		o, charges, reservations, confirmations, k.pending)
	switch {
	case charges > 1 || reservations > 1 || confirmations > 1:
		return what
	case o.Status == "completed" && (charges != 1 || reservations != 1 || confirmations != 1 || k.pending != 0):
		return what
	case (o.Status == "failed" || o.Status == "canceled") && charges+reservations+confirmations+k.pending != 0:
		return what
	case o.Hold != "" && (o.Hold != "attention" || o.Reason == ""):
		return what
	}
	return ""
}

// prove compares the books of the provider with ours, here and by the program's own proof.
func (s *shop) prove() {
	s.t.Helper()
	orders, theirs := s.outcomes(), s.books()
	if len(orders) == 0 {
		s.t.Error("the books are empty")
	}
	due, taken := map[string]*big.Rat{}, map[string]*big.Rat{}
	shown := 0
	for id, o := range orders {
		k := theirs[id]
		if k == nil {
			k = &kept{}
		}
		if wrong := k.wrong(o); wrong != "" {
			s.t.Errorf("order %s: %s", id, wrong)
			if shown++; shown <= 3 {
				s.t.Log(s.trace(id))
			}
		}
		if o.Status == "completed" {
			add(due, o.Currency, o.Amount)
		}
		if o.Hold == "" { // what a person still has to decide is on neither side
			for currency, sum := range k.charged {
				add(taken, currency, sum.RatString())
			}
		}
		delete(theirs, id)
	}
	for id := range theirs {
		s.t.Errorf("order %s: known to the provider alone", id)
	}
	if got, want := fmt.Sprint(texts(taken)), fmt.Sprint(texts(due)); got != want {
		s.t.Errorf("the provider has taken %s, completed orders come to %s", got, want)
	}
	if sum := s.provider.Summary(); !sum.OK() {
		s.t.Errorf("something happened twice: %+v", sum)
	}
	if code, said := run(s.t, "verify", "--database-url", s.database.URL, "--provider", s.url); code != 0 {
		s.t.Errorf("pawl verify --provider ends with %d:\n%s", code, said)
	}
}

func texts(sums map[string]*big.Rat) map[string]string {
	out := map[string]string{}
	for currency, sum := range sums {
		out[currency] = strings.TrimSuffix(sum.FloatString(2), ".00")
	}
	return out
}
