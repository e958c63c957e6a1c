package books

import (
	"context"
	"encoding/base32"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/govalues/decimal"
)

// digest is what tells keys apart: half of their hash, or a million of them took twice
// the memory.
type digest [16]byte

const keyPrefix = "pawl-"

var keyEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// digestOf is false for a key that is none of ours.
func digestOf(key string) (d digest, ours bool) {
	text, ours := strings.CutPrefix(key, keyPrefix)
	if !ours {
		return d, false
	}
	hash, err := keyEncoding.DecodeString(text)
	if err != nil || len(hash) != 32 {
		return d, false
	}
	copy(d[:], hash)
	return d, true
}

// keyStart is as much of the key as its digest holds.
func (d digest) keyStart() string {
	return keyPrefix + keyEncoding.EncodeToString(d[:])[:len(d)*8/5]
}

// entry is what is kept of a line: no pointers, so that the garbage collector has nothing
// to do with a million of them.
type entry struct {
	amount   decimal.Decimal
	at       int    // where its reference begins in foreign.references
	length   uint16 // of its reference
	currency uint16 // of foreign.currencies
	effects  uint16
	state    uint8 // of accountStates
}

var accountStates = []string{"", "live", "undone", "refused", "voided", "pending"}

const live = 1 // of accountStates

func (e entry) standing() string { return accountStates[e.state] }

// foreign is the provider's books in memory.
type foreign struct {
	entries    map[digest]entry
	currencies []string
	references []byte // one after the other
}

// readForeign reads the provider's books as they are now.
func readForeign(ctx context.Context, url string) (*foreign, error) {
	f := &foreign{entries: map[digest]entry{}}
	err := eachAccount(ctx, url, func(a *account) error {
		d, ours := digestOf(a.Key)
		if !ours {
			return nil // somebody else's
		}
		return f.add(d, a)
	})
	return f, err
}

// add enters a line. A key that comes twice has done what both say.
func (f *foreign) add(d digest, a *account) error {
	amount, err := decimal.Parse(a.Amount)
	if err != nil {
		return fmt.Errorf("amount %q: not a decimal number", a.Amount)
	}
	state := slices.Index(accountStates, a.State)
	if state < live {
		return fmt.Errorf("state %q: want one of %s", a.State, strings.Join(accountStates[live:], ", "))
	}
	if a.Effects < 0 {
		return fmt.Errorf("effects %d: less than none", a.Effects)
	}
	e := entry{amount: amount, state: uint8(state), currency: f.currency(a.Currency)}
	before := f.entries[d]
	e.effects = uint16(min(int(before.effects)+a.Effects, math.MaxUint16))
	if before.state == live {
		e.state = live
	}
	if e.at, e.length = before.at, before.length; a.Reference != "" {
		e.at, e.length = f.keep(a.Reference)
	}
	f.entries[d] = e
	return nil
}

// keep puts a reference behind the others. One that is longer than any we store differs from ours also when it
// is cut.
func (f *foreign) keep(reference string) (at int, length uint16) {
	at = len(f.references)
	reference = reference[:min(len(reference), math.MaxUint16)]
	f.references = append(f.references, reference...)
	return at, uint16(len(reference))
}

// reference is the provider's own name for what was done under a key, empty where it tells none.
func (f *foreign) reference(e entry) string {
	return string(f.references[e.at : e.at+int(e.length)])
}

func (f *foreign) currency(name string) uint16 {
	i := slices.Index(f.currencies, name)
	if i < 0 {
		i = len(f.currencies)
		f.currencies = append(f.currencies, name)
	}
	return uint16(min(i, math.MaxUint16))
}
