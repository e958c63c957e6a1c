package books

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
	"unique"

	"github.com/govalues/decimal"

	"pawl/db"
	"pawl/fsm"
	"pawl/internal/orders"
	"pawl/internal/pg"
)

// Provider is where the books of providers are, to compare ours with.
type Provider struct {
	// URLs of the books. GET URL/books returns a line of JSON for each key (docs/simulator.md). A key that is in several
	// books had its effect at each provider.
	URLs []string
	// Compared names what is compared at each of the URLs, such as charge=https://pay.example or
	// charge/cards=https://pay.example. It is stored with the report.
	Compared []string
	// Key returns the idempotency key under which a step is in these books, and which of Compared it is. That is empty if
	// the step is not compared; an empty key is in no books.
	Key func(s Sent) (key, at string)
	// Without, if set, returns the provider to compare instead if the books at a URL can't be read: without what is compared
	// there. nil: nothing is left.
	Without func(url string) *Provider
}

// books are the URLs, each once.
func (p *Provider) books() iter.Seq[string] {
	return slices.Values(slices.Compact(slices.Sorted(slices.Values(p.URLs))))
}

// named returns which of Compared has a step at a URL.
func (p *Provider) named(url, step string) (found string) {
	for i, name := range p.Compared {
		if p.URLs[i] == url && (found == "" || strings.HasPrefix(name, step)) {
			found = name
		}
	}
	return found
}

// Sent is a step of an order that was sent to a provider.
type Sent struct {
	OrderID       string
	Step          fsm.Step
	Generation    int32
	OperationKind string // of a charge operation: refund, capture or void; empty: the step itself
	OperationID   string
	Amount        decimal.Decimal // of the order, or of the charge operation
	Policy        int32           // the policy version of the order
	Route         string          // of a charge: the route of its generation; empty: there is only one
}

// reconcile compares the books with those of the provider, which are read first: every call is committed here before it
// is made, so everything in them is found here afterwards. Orders that were unfinished at that time may have changed
// since, and are only counted. away says which books could not be read, if others could.
func (v *verifier) reconcile(ctx context.Context) (away, err error) {
	before, err := pg.Repeat(ctx, ctx, db.New(v.pool).ProviderClock)
	if err != nil {
		return nil, fmt.Errorf("read clock: %w", err)
	}
	theirs, strangers, away, err := v.readReachable(ctx)
	if err != nil {
		return nil, err
	}
	v.ledger.add(known, finding{Checked: int64(len(theirs))})
	if err := v.measure(ctx); err != nil {
		return nil, err
	}
	v.ledger.with = v.opt.Provider.Compared
	c := &comparison{Provider: v.opt.Provider, theirs: theirs, strangers: strangers, ledger: v.ledger}
	err = v.spans(ctx, func(r span) error {
		return v.snapshot(ctx, func(q *db.Queries) error { return c.span(ctx, q, r, before) })
	})
	if err != nil {
		return nil, err
	}
	reader := orders.NewReader(ctx, db.New(v.pool))
	return away, errors.Join(c.namedByOthers(ctx, reader), c.leftOver(ctx, reader))
}

// comparison removes from theirs each key that is in our books.
type comparison struct {
	*Provider
	theirs    foreign
	strangers strangers
	ledger    *ledger
	at        string // which of Compared is judged
	more      Sums   // what the provider has more, and no violation explains
}

func (c *comparison) span(ctx context.Context, q *db.Queries, r span, before time.Time) error {
	if _, err := q.VerifySettings(ctx); err != nil {
		return fmt.Errorf("set planner: %w", err)
	}
	keys, err := q.ProviderKeys(ctx, db.ProviderKeysParams{First: r.First, Last: r.Last, Before: before})
	if err != nil {
		return fmt.Errorf("read keys: %w", err)
	}
	operations, err := q.ProviderChargeOperations(ctx, db.ProviderChargeOperationsParams{First: r.First, Last: r.Last, Before: before})
	if err != nil {
		return fmt.Errorf("read charge operations: %w", err)
	}
	for _, operation := range operations {
		keys = append(keys, db.ProviderKeysRow(operation))
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

func (c *comparison) order(keys []db.ProviderKeysRow) {
	charges, charged, waiting, open := 0, "", "", Sums{}
	for i := range keys {
		key := &keys[i]
		e, found, at := c.take(key)
		name, _, _ := strings.Cut(key.Step, " ") // without the number of a charge operation
		step := c.ledger.compared(name, at)
		if at == "" {
			step.NotCompared++
			c.sum(step, key, entry{})
			continue
		}
		c.at = at
		if step.Compared++; e.state == live {
			step.Done++
		}
		c.more = c.sum(step, key, e)
		if e.state == live && key.Step == string(fsm.Charge) {
			charges, charged = charges+1, at
		}
		wrong := found && c.compare(key, e)
		if key.Settled {
			wrong = c.settled(key, e) || wrong
		} else {
			waiting += fmt.Sprintf("; %s of %s %s: %s at the provider", key.Step, key.Amount, key.Currency, inWords(e.state))
			open = open.all(c.more)
		}
		if wrong {
			step.Wrong++
		}
	}
	first := &keys[0]
	c.at, c.more = cmp.Or(charged, c.at), nil
	c.judge(single, first.OrderID, charges > 1, fmt.Sprintf("%d live charges of %s %s", charges, keys[0].Amount, keys[0].Currency))
	c.notOurs(first.OrderID, again, map[bool]string{true: " again"}[charges > 0])
	if waiting != "" {
		c.more = open
		c.judge(unsettled, first.OrderID, true, whereabouts(first)+waiting)
	}
}

// notOurs judges what the provider has in the name of an order under keys that are not Pawl's. again: so did Pawl.
func (c *comparison) notOurs(orderID, check, again string) {
	for _, a := range c.strangers[orderID] {
		did := map[bool]string{true: "charged" + again, false: a.Step}[a.Step == string(fsm.Charge)]
		fault := fmt.Sprintf("%s at the provider, by somebody else than Pawl: %s %s%s, key %q", did, a.Amount, a.Currency,
			map[bool]string{true: ", " + inWords(pending)}[a.State == pending], a.Key)
		if a.Reference != "" {
			fault += fmt.Sprintf(", reference %q", a.Reference)
		}
		if at, err := time.Parse(time.RFC3339, a.At); err == nil {
			fault += at.UTC().Format(", 2006-01-02 15:04:05 UTC")
		}
		c.at = a.at
		c.onlyThere(check, &a.account)
		c.judge(check, orderID, true, fault)
	}
	delete(c.strangers, orderID)
}

// onlyThere adds what the provider has, and these books have not, to a figure. Others than Pawl may call a charge what they
// like.
func (c *comparison) onlyThere(figure string, a *account) {
	c.more = nil
	if _, err := decimal.Parse(a.Amount); err != nil || a.State != live {
		return
	}
	switch a.Step {
	case "reserve", "confirm", "capture", "void":
	case "refund":
		c.more = Sums{a.Currency: "-" + a.Amount}
	default:
		c.more = Sums{a.Currency: a.Amount}
	}
	step := c.ledger.compared(figure, c.at)
	step.Money = step.Money.all(c.more)
}

// namedByOthers judges what is left of the strangers: in the name of orders that Pawl did not send there, or has not.
func (c *comparison) namedByOthers(ctx context.Context, reader *orders.Reader) error {
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(c.strangers)), leftMost) {
		known, err := read(ctx, reader.Currencies, ids)
		if err != nil {
			return fmt.Errorf("read orders that others named: %w", err)
		}
		for _, id := range ids {
			c.notOurs(id, map[bool]string{true: again, false: others}[known[id] != ""], "")
		}
	}
	return nil
}

// sum adds a key to the figures of both sides, and returns how much more the provider has of what is kept or authorized.
func (c *comparison) sum(step *VerificationStep, key *db.ProviderKeysRow, e entry) Sums {
	ours, theirs, more := key.Amount.String(), e.total(), Sums{}
	here, there := key.Effect == stands && key.Counted, e.state == live
	enter := func(figure string, here, there bool, ours, theirs string) {
		if step.Provider == "" && figure != step.Step {
			return
		}
		if here {
			c.ledger.compared(figure, step.Provider).Here.add(ours, key.Currency)
		}
		if there {
			c.ledger.compared(figure, step.Provider).Money.add(theirs, e.currency)
		}
	}
	switch step.Step {
	case "charge":
		hereUndone, thereUndone := key.Effect == undoneThere && key.Counted, e.state == undoneThere
		enter("charge", here || hereUndone, there || thereUndone, ours, theirs)
		enter("undo", hereUndone, thereUndone, ours, theirs)
		enter("dispute_lost", key.Lost != "" && key.Counted, false, key.Lost, "")
		if key.Voided == "" {
			break
		}
		voided, voidedThere := key.Voided, e.voided.String()
		if voided == asked {
			voided, voidedThere = "0", "0"
		}
		enter("void", here, there, voided, voidedThere)
		ours, theirs = Plus(ours, negative(voided)), Plus(theirs, negative(voidedThere))
		enter("authorization", here, there, ours, theirs)
	case "capture":
		enter("capture", here, there, ours, theirs)
		enter("authorization", here, there, negative(ours), negative(theirs))
		return nil
	case "refund":
		enter("refund", here, there, ours, theirs)
		ours, theirs = negative(ours), negative(theirs)
	default:
		return nil
	}
	if here {
		more.add(negative(ours), key.Currency)
	}
	if there {
		more.add(theirs, e.currency)
	}
	return more.all(nil)
}

// take removes the provider's entry of a key. at is empty if it is not compared; it is a known key nevertheless.
func (c *comparison) take(row *db.ProviderKeysRow) (e entry, found bool, at string) {
	step, kind := fsm.Step(row.Step), ""
	if row.OperationID != "" {
		kind, _, _ = strings.Cut(row.Step, " ")
		step = fsm.Charge
	}
	key, at := c.Key(Sent{row.OrderID, step, row.Generation, kind, row.OperationID, row.Amount, row.Policy, row.Route})
	e, found = c.theirs[key]
	delete(c.theirs, key)
	return e, found, at
}

// compare checks what must be true at any time, and reports whether something is wrong.
func (c *comparison) compare(key *db.ProviderKeysRow, e entry) (wrong bool) {
	step := stepOf(key.Step, key.Generation)
	wrong = c.judge(once, key.OrderID, e.effects > 1, fmt.Sprintf("%s happened %d times: %s %s each time", step, e.effects, e.amount, e.currency))
	wrong = c.judge(amounts, key.OrderID, e.amount.Cmp(key.Amount) != 0 || e.currency != key.Currency,
		fmt.Sprintf("%s: %s %s at the provider, %s %s here", step, e.amount, e.currency, key.Amount, key.Currency)) || wrong
	// An undo names the effect by its reference: a wrong one undoes the effect of another order. If the effect happened
	// twice, the provider tells only the later reference, and the check above reports it.
	if e.reference != "" && key.Reference != "" && e.effects <= 1 {
		wrong = c.judge(references, key.OrderID, e.reference != key.Reference,
			fmt.Sprintf("%s: %q at the provider, %q here", step, e.reference, key.Reference)) || wrong
	}
	return wrong
}

// settled checks what must be true once an order is final, and reports whether it is wrong.
func (c *comparison) settled(key *db.ProviderKeysRow, e entry) (wrong bool) {
	says := fmt.Sprintf("%s order, %s of %s %s: %s in Pawl's books, %s at the provider", key.Status, stepOf(key.Step, key.Generation),
		key.Amount, key.Currency, map[string]string{stands: "done", "absent": "not done", "undone": "undone"}[key.Effect], inWords(e.state))
	if key.Step == string(fsm.Charge) {
		c.judge(uncounted, key.OrderID, !key.Counted && e.state == undoneThere, says)
	}
	if key.Effect == stands {
		if voided, err := decimal.Parse(key.Voided); err == nil && (e.state == live || e.state == undoneThere) { // an error: it is not compared
			if e.state == undoneThere {
				e.voided = e.amount
			}
			return c.judge(ended, key.OrderID, e.voided.Cmp(voided) != 0, fmt.Sprintf("%s order, authorization of %s %s: voided or ended %s at the provider, %s in Pawl's books",
				key.Status, key.Amount, key.Currency, e.voided, voided))
		}
		return c.judge(standing, key.OrderID, e.state != live, says)
	}
	return c.judge(livings, key.OrderID, e.state == live || e.state == pending, says)
}

// judge enters a violation with the difference that is not explained yet.
func (c *comparison) judge(check, id string, wrong bool, fault string) bool {
	found, more := finding{Checked: 1}, Sums(nil)
	if wrong {
		found.Violations, found.Offenders, found.Faults = 1, []string{id}, []string{fault}
		if check != references {
			more, c.more = c.more, nil
		}
	}
	c.ledger.addAt(c.at, check, found, more)
	return wrong
}

// whereabouts describes the state of an unfinished order.
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

// leftOver reports the keys that the provider has and we never sent, usually none but those of forgotten orders. It
// reads the books again to describe them, and reports them even if that fails.
func (c *comparison) leftOver(ctx context.Context, reader *orders.Reader) error {
	if len(c.theirs) == 0 {
		return nil
	}
	var err error
	for url := range c.books() {
		var left []account
		err = errors.Join(err, eachAccount(ctx, url, func(a *account) (err error) {
			if _, ok := c.theirs[a.Key]; ok {
				delete(c.theirs, a.Key)
				left = append(left, *a)
			}
			if len(left) == leftMost {
				err = c.leftBy(ctx, reader, url, left)
				left = nil
			}
			return err
		}))
		err = errors.Join(err, c.leftBy(ctx, reader, url, left))
	}
	if ctx.Err() != nil {
		return fmt.Errorf("read the provider's books again: %w", ctx.Err())
	}
	why := "it was gone when the provider's books were read again"
	if err != nil {
		why = fmt.Sprintf("its order could not be read: %s", err)
	}
	c.at, c.more = "", nil // not known
	for key := range c.theirs {
		c.neverSent(key, "this key was never sent from these books; "+why)
	}
	return nil
}

// leftMost is how many keys are looked up at a time.
const leftMost = 1000

// leftBy judges keys that are in no order of ours. The order may have been forgotten: then nothing may be live if it
// did not complete.
func (c *comparison) leftBy(ctx context.Context, reader *orders.Reader, url string, left []account) error {
	if len(left) == 0 {
		return nil
	}
	ids := make([]string, len(left))
	for i := range left {
		ids[i] = left[i].OrderID
	}
	rows, err := read(ctx, reader.Forgotten, ids)
	ended := map[string]fsm.State{}
	for _, row := range rows {
		ended[row.OrderID] = row.Status
	}
	for _, a := range left {
		c.at = c.named(url, a.Step)
		status, forgotten := ended[a.OrderID]
		if forgotten {
			if c.more = nil; status != fsm.Completed {
				c.onlyThere(a.Step, &a)
			}
			c.judge(livings, a.OrderID, status != fsm.Completed && (a.State == live || a.State == pending),
				fmt.Sprintf("%s and forgotten, %s: %s at the provider", status, stepOf(a.Step, a.Generation), inWords(a.State)))
			continue
		}
		c.onlyThere(known, &a)
		c.neverSent(a.OrderID, fmt.Sprintf("%s of %s %s, %s at the provider: key %q was never sent from these books",
			stepOf(a.Step, a.Generation), a.Amount, a.Currency, inWords(a.State), a.Key))
	}
	return err
}

// stepOf names the step of a generation. Nearly all orders have only the first one.
func stepOf(step string, generation int32) string {
	if generation == 0 {
		return step
	}
	return fmt.Sprintf("%s of generation %d", step, generation)
}

// inWords is the state of a key at a provider.
func inWords(state string) string {
	return cmp.Or(map[string]string{live: "done", pending: "not decided yet", "": "nothing"}[state], state)
}

func (c *comparison) neverSent(id, fault string) {
	c.ledger.addAt(c.at, known, finding{Violations: 1, Offenders: []string{id}, Faults: []string{fault}}, c.more)
}

// ourKeys matches the keys of this service. Other keys belong to other services, or to people who charge by hand.
var ourKeys = regexp.MustCompile("^pawl-[a-z2-7]{52}$")

// entry is what is kept of a line.
type entry struct {
	amount    decimal.Decimal
	currency  string
	state     string // one of accountStates; empty: the provider has nothing
	reference string // the provider's reference of the effect; empty: none
	effects   int
	voided    decimal.Decimal
}

// total is the money of all effects.
func (e *entry) total() string {
	if total, err := e.amount.Mul(decimal.MustNew(int64(max(e.effects, 1)), 0)); err == nil {
		return total.String()
	}
	return e.amount.String()
}

var accountStates = []string{live, undoneThere, "refused", "voided", pending}

const (
	live, pending, undoneThere = "live", "pending", "undone" // at the provider
	stands                     = "stands"                    // in our books
	asked                      = "asked"                     // see ProviderKeys
)

// foreign is the provider's books in memory, by key.
type foreign map[string]entry

// strangers are what is live or pending under keys that are not Pawl's, by order ID, or by key if it names no order.
type strangers map[string][]stranger

type stranger struct {
	account
	at string // see Provider.named
}

// readReachable reads the books of all providers, without those that can't be read. It begins again after each of these,
// because a part of their books would look like effects that never happened.
func (v *verifier) readReachable(ctx context.Context) (f foreign, s strangers, away, err error) {
	for {
		var at string
		if f, s, at, err = v.readForeign(ctx); err == nil {
			return f, s, away, nil
		}
		away = errors.Join(away, err)
		if ctx.Err() != nil || v.opt.Provider.Without == nil {
			return nil, nil, nil, away
		}
		if v.opt.Provider = v.opt.Provider.Without(at); v.opt.Provider == nil {
			return nil, nil, nil, away
		}
	}
}

// readForeign returns the URL with the error.
func (v *verifier) readForeign(ctx context.Context) (f foreign, s strangers, at string, err error) {
	f, s = foreign{}, strangers{}
	for url := range v.opt.Provider.books() {
		err := eachAccount(ctx, url, func(a *account) error {
			if ourKeys.MatchString(a.Key) {
				return f.add(a)
			}
			if a.State == live || a.State == pending {
				id := strings.ReplaceAll(cmp.Or(a.OrderID, a.Key), "\x00", "") // PostgreSQL has no such text
				s[id] = append(s[id], stranger{*a, v.opt.Provider.named(url, a.Step)})
			}
			return nil
		})
		if err != nil {
			return nil, nil, url, err
		}
	}
	return f, s, "", nil
}

// add enters a line. If there are several for a key, the effects add up.
func (f foreign) add(a *account) error {
	amount, err := decimal.Parse(a.Amount)
	if err != nil {
		return fmt.Errorf("amount must be a decimal number, not %q", a.Amount)
	}
	state := slices.Index(accountStates, a.State)
	if state < 0 {
		return fmt.Errorf("state must be one of %s, not %q", strings.Join(accountStates, ", "), a.State)
	}
	if a.Effects < 0 {
		return fmt.Errorf("effects must not be negative, but is %d", a.Effects)
	}
	before := f[a.Key]
	currency := unique.Make(a.Currency).Value() // kept once, not per line
	e := entry{amount, currency, accountStates[state], cmp.Or(a.Reference, before.reference), before.effects + a.Effects, a.Voided}
	if before.state == live {
		e.state = live
	}
	f[a.Key] = e
	return nil
}
