package books

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unique"

	"github.com/govalues/decimal"
)

// ourKeys are as the service makes them. Others in the provider's books are somebody else's.
var ourKeys = regexp.MustCompile("^pawl-[a-z2-7]{52}$")

// entry is what is kept of a line.
type entry struct {
	amount    decimal.Decimal
	currency  string
	state     string // one of accountStates; empty where the provider has nothing
	reference string // the provider's own name for what was done, empty where it tells none
	effects   int
}

var accountStates = []string{live, "undone", "refused", "voided", pending}

const live, pending = "live", "pending"

// foreign is the provider's books in memory, by key.
type foreign map[string]entry

// readForeign reads the books of providers as they are now.
func readForeign(ctx context.Context, urls []string) (foreign, error) {
	f := foreign{}
	for _, url := range urls {
		err := eachAccount(ctx, url, func(a *account) error {
			if !ourKeys.MatchString(a.Key) {
				return nil
			}
			return f.add(a)
		})
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

// add enters a line. A key that comes twice has done what both say.
func (f foreign) add(a *account) error {
	amount, err := decimal.Parse(a.Amount)
	if err != nil {
		return fmt.Errorf("amount %q: not a decimal number", a.Amount)
	}
	state := slices.Index(accountStates, a.State)
	if state < 0 {
		return fmt.Errorf("state %q: want one of %s", a.State, strings.Join(accountStates, ", "))
	}
	if a.Effects < 0 {
		return fmt.Errorf("effects %d: less than none", a.Effects)
	}
	before := f[a.Key]
	e := entry{amount, unique.Make(a.Currency).Value(), accountStates[state], cmp.Or(a.Reference, before.reference), before.effects + a.Effects}
	if before.state == live {
		e.state = live
	}
	f[a.Key] = e
	return nil
}
