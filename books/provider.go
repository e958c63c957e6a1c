package books

import (
	"context"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/govalues/decimal"

	"pawl/fsm"
)

// Provider is another one's books, to compare ours with.
type Provider struct {
	// URL is where the books are: a GET of URL/books answers a line of JSON for each key,
	// as docs/simulator.md says.
	URL string
	// Key is the idempotency key that a step is found by in its books. It is false for what
	// this provider is not asked for: that is not looked for here.
	Key func(s Sent) (key string, asked bool)
}

// Sent is a step of an order that was sent outside.
type Sent struct {
	OrderID    string
	Step       fsm.Step
	Generation int32
	Amount     decimal.Decimal // of the order
	Policy     int32           // the version that the order goes by
}

// account is a line of the provider's books.
type account struct {
	Key        string `json:"key"`
	OrderID    string `json:"orderId"`
	Step       string `json:"step"`
	Generation int32  `json:"generation"`
	Amount     string `json:"amount"`
	Currency   string `json:"currency"`
	State      string `json:"state"`
	Effects    int    `json:"effects"`
}

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

// entry is what is kept of a line: no pointers, so that the garbage collector has nothing
// to do with a million of them.
type entry struct {
	amount   decimal.Decimal
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
	f.entries[d] = e
	return nil
}

func (f *foreign) currency(name string) uint16 {
	i := slices.Index(f.currencies, name)
	if i < 0 {
		i = len(f.currencies)
		f.currencies = append(f.currencies, name)
	}
	return uint16(min(i, math.MaxUint16))
}

// headerLimit is how long the provider may think before it begins to answer.
const headerLimit = time.Minute

// ErrProvider is wrapped by errors about the provider's books: they could not be read, and
// nothing is known of them.
var ErrProvider = errors.New("provider's books unavailable")

// eachAccount reads the provider's books line by line. Books that end in the middle are
// an error: what is not in them would look as if it were not there.
func eachAccount(ctx context.Context, url string, each func(*account) error) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(url, "/")+"/books", nil)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProvider, err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.ResponseHeaderTimeout = headerLimit
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrProvider, err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%w: GET %s answers %s", ErrProvider, request.URL.Redacted(), response.Status)
	}
	lines := json.NewDecoder(response.Body)
	for n := 1; ; n++ {
		var a account
		err := lines.Decode(&a)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = each(&a)
		}
		if err != nil {
			return fmt.Errorf("%w: line %d: %w", ErrProvider, n, err)
		}
	}
}
