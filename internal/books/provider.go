package books

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/pg"
)

// Provider is the books of others, to compare ours with.
type Provider struct {
	// URLs are where the books are: a GET of URL/books answers a line of JSON for each key,
	// as docs/simulator.md says. A key that is in the books of two has had its effect at both.
	URLs []string
	// Key is the idempotency key that a step is found by in these books. It is false for what
	// is not compared; without a key, it can't be in them.
	Key func(s Sent) (key string, asked bool)
}

// Sent is a step of an order that was sent to a provider.
type Sent struct {
	OrderID    string
	Step       fsm.Step
	Generation int32
	RefundID   string          // of a refund of the charge; empty: it is the step itself
	Amount     decimal.Decimal // of the order, or of the refund
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
	Reference  string `json:"reference"`
	Effects    int    `json:"effects"`
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
	if why := incomplete(response); why != "" {
		return fmt.Errorf("%w: GET %s: %s", ErrProvider, request.URL.Redacted(), why)
	}
	lines := json.NewDecoder(response.Body)
	for n := 1; ; n++ {
		var a account
		err := lines.Decode(&a)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err == nil && a.Key == "":
			err = errNoKey
		case err == nil:
			err = each(&a)
		}
		if err != nil {
			return fmt.Errorf("%w: GET %s: line %d: %w", ErrProvider, request.URL.Redacted(), n, err)
		}
	}
}

// errNoKey is for a line that is none of the books: a report of an error, or a list that wraps the books, and
// maybe only the first page of them. Taken for a key of another service, it would look as if nothing had been done.
var errNoKey = errors.New("no key: want a line of JSON for each key")

// incomplete says why an answer is not, or may not be, all of the books.
func incomplete(r *http.Response) string {
	switch {
	case strings.Contains(strings.Join(r.Header.Values("Link"), ","), `rel="next"`):
		return "the answer is one page of several, and the books must be one answer"
	case r.ProtoMajor == 1 && r.ContentLength < 0 && len(r.TransferEncoding) == 0 && !r.Uncompressed:
		return "the answer has neither a length nor chunks, and can't be told from one that was cut off"
	}
	return ""
}

// reconcile compares the books with the provider's. Theirs are read first: whatever is in
// them was committed here before it was sent, so it is found here afterwards. Orders
// that had not ended by then may have gone on in between, and are only counted.
func (v *verifier) reconcile(ctx context.Context) error {
	before, err := pg.Repeat(ctx, ctx, db.New(v.pool).ProviderClock)
	if err != nil {
		return fmt.Errorf("read clock: %w", err)
	}
	theirs, err := readForeign(ctx, v.opt.Provider.URLs)
	if err != nil {
		return err
	}
	v.ledger.add(known, finding{Checked: int64(len(theirs))})
	if err := v.measure(ctx); err != nil {
		return err
	}
	c := &comparison{Provider: v.opt.Provider, theirs: theirs, ledger: v.ledger}
	err = v.spans(ctx, func(r span) error {
		return v.snapshot(ctx, func(q *db.Queries) error { return c.span(ctx, q, r, before) })
	})
	if err != nil {
		return err
	}
	return c.leftOver(ctx)
}

// comparison goes through our keys and takes theirs out of the map.
type comparison struct {
	*Provider
	theirs foreign
	ledger *ledger
}

func (c *comparison) span(ctx context.Context, q *db.Queries, r span, before time.Time) error {
	if _, err := q.VerifySettings(ctx); err != nil {
		return fmt.Errorf("set planner: %w", err)
	}
	keys, err := q.ProviderKeys(ctx, db.ProviderKeysParams{First: r.First, Last: r.Last, Before: before})
	if err != nil {
		return fmt.Errorf("read keys: %w", err)
	}
	refunds, err := q.ProviderRefunds(ctx, db.ProviderRefundsParams{First: r.First, Last: r.Last, Before: before})
	if err != nil {
		return fmt.Errorf("read refunds: %w", err)
	}
	for _, refund := range refunds {
		keys = append(keys, db.ProviderKeysRow(refund))
	}
	slices.SortStableFunc(keys, func(a, b db.ProviderKeysRow) int { return cmp.Compare(a.OrderNo, b.OrderNo) })
	for len(keys) > 0 {
		n := slices.IndexFunc(keys, func(k db.ProviderKeysRow) bool { return k.OrderNo != keys[0].OrderNo })
		if n < 0 {
			n = len(keys)
		}
		c.order(keys[:n])
		keys = keys[n:]
	}
	return nil
}

// order compares the keys of one order.
func (c *comparison) order(keys []db.ProviderKeysRow) {
	charges, waiting := 0, ""
	for i := range keys {
		key := &keys[i]
		e, found, asked := c.take(key)
		if !asked {
			continue
		}
		if found && e.state == live && key.Step == string(fsm.Charge) {
			charges++
		}
		if found {
			c.compare(key, e)
		}
		if key.Settled {
			c.settled(key, e)
		} else {
			waiting += ", " + key.Step + " " + cmp.Or(e.state, "nothing")
		}
	}
	first := &keys[0]
	c.judge(single, first.OrderID, charges > 1, fmt.Sprintf("%d live charges", charges))
	if waiting != "" {
		c.judge(unsettled, first.OrderID, true, whereabouts(first)+waiting)
	}
}

// take finds what the provider has under a key. Not asked: it is not compared, but is known.
func (c *comparison) take(row *db.ProviderKeysRow) (e entry, found, asked bool) {
	step := fsm.Step(row.Step)
	if row.RefundID != "" {
		step = fsm.Charge
	}
	key, asked := c.Key(Sent{row.OrderID, step, row.Generation, row.RefundID, row.Amount, row.Policy})
	e, found = c.theirs[key]
	delete(c.theirs, key)
	return e, found, asked
}

// compare looks at what must be so at any time.
func (c *comparison) compare(key *db.ProviderKeysRow, e entry) {
	c.judge(once, key.OrderID, e.effects > 1, fmt.Sprintf("%s of generation %d happened %d times", key.Step, key.Generation, e.effects))
	c.judge(amounts, key.OrderID, e.amount.Cmp(key.Amount) != 0 || e.currency != key.Currency,
		fmt.Sprintf("%s of generation %d: %s %s at the provider, %s %s here", key.Step, key.Generation, e.amount, e.currency, key.Amount, key.Currency))
	c.names(key, e)
}

// names compares what the provider calls an effect with what the books say it is called. An undo goes by that
// name: a wrong one takes back the effect of another order. What happened twice has two names, of which the
// provider tells the later one; it is reported by the check of that.
func (c *comparison) names(key *db.ProviderKeysRow, e entry) {
	if e.reference == "" || key.Reference == "" || e.effects > 1 {
		return
	}
	c.judge(references, key.OrderID, e.reference != key.Reference,
		fmt.Sprintf("%s of generation %d: %q at the provider, %q here", key.Step, key.Generation, e.reference, key.Reference))
}

// settled looks at what must be so when an order has ended.
func (c *comparison) settled(key *db.ProviderKeysRow, e entry) {
	says := fmt.Sprintf("%s, %s of generation %d: %s here, %s at the provider", key.Status, key.Step, key.Generation, key.Effect, cmp.Or(e.state, "nothing"))
	if key.Effect == "stands" {
		c.judge(standing, key.OrderID, e.state != live, says)
		return
	}
	c.judge(livings, key.OrderID, e.state == live || e.state == pending, says)
}

func (c *comparison) judge(check, id string, wrong bool, fault string) {
	found := finding{Checked: 1}
	if wrong {
		found.Violations, found.Offenders, found.Faults = 1, []string{id}, []string{fault}
	}
	c.ledger.add(check, found)
}

// whereabouts is what an order that has not ended is about.
func whereabouts(key *db.ProviderKeysRow) string {
	text := string(key.Status)
	if key.Hold != "" {
		text += ", held for " + key.Hold
	}
	if key.InDoubt {
		text += ", in doubt"
	}
	return text
}

// leftOver reports the keys at the provider that we never sent; mostly there are none. Its books are read
// again to say what they are. That they are there is known already, whatever comes of the second reading.
func (c *comparison) leftOver(ctx context.Context) error {
	if len(c.theirs) == 0 {
		return nil
	}
	var err error
	for _, url := range c.URLs {
		err = errors.Join(err, eachAccount(ctx, url, func(a *account) error {
			if _, left := c.theirs[a.Key]; left {
				delete(c.theirs, a.Key)
				c.stranger(a.OrderID, fmt.Sprintf("%s of generation %d, %s, %s %s: key %q was never sent from these books", a.Step, a.Generation, a.State, a.Amount, a.Currency, a.Key))
			}
			return nil
		}))
	}
	if ctx.Err() != nil {
		return fmt.Errorf("read the provider's books again: %w", ctx.Err())
	}
	why := "it was gone when the provider's books were read again"
	if err != nil {
		why = fmt.Sprintf("whose it is could not be read: %s", err)
	}
	for key := range c.theirs {
		c.stranger(key, "this key was never sent from these books; "+why)
	}
	return nil
}

func (c *comparison) stranger(id, fault string) {
	c.ledger.add(known, finding{Violations: 1, Offenders: []string{id}, Faults: []string{fault}})
}

// ourKeys are as the service makes them. Other keys in the provider's books are of other services.
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
