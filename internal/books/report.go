package books

import (
	"cmp"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"sync"
	"time"

	"pawl/db"
)

// Report is the result of Verify.
type Report struct {
	Database string `json:"database,omitempty"` // its name for people; not set by Verify

	Checks []VerificationCheck `json:"checks"`
	Orders map[string]int64    `json:"orders"` // by status
	Money  []Money             `json:"money"`  // by currency, sorted
	Days   []Day               `json:"days"`   // newest first, up to maxDays
	// Movements and Months say when money moved: by day and by month, newest first, up to maxDays each.
	Movements []Movement         `json:"movements"`
	Months    []Movement         `json:"months"`
	Steps     []VerificationStep `json:"steps,omitempty"`
	Compared  []string           `json:"compared,omitempty"` // as in Provider, without what could not be read
	Differ    []string           `json:"differ,omitempty"`   // those of Compared whose books differ
	Others    []int64            `json:"others,omitempty"`   // of each of Compared: how many effects there are not Pawl's
	Seconds   float64            `json:"seconds"`
}

// Day is the money of the orders that were placed on a day, in one currency.
type Day struct {
	Day string `json:"day"` // such as 2026-11-26, in UTC
	Money
}

// Movement is the money that moved in one currency on a day or in a month, whenever its orders were placed. An
// authorization moves none. Amounts are exact decimals.
type Movement struct {
	Period   string `json:"period"` // a day such as 2026-11-26, or a month such as 2026-11, in UTC
	Currency string `json:"currency"`
	Captured string `json:"captured"`
	Undone   string `json:"undone"`   // charges that were undone, because their orders did not complete
	Refunded string `json:"refunded"` // on request
	Lost     string `json:"lost"`     // in disputes, when they were lost
}

// Kept is Captured - Undone - Refunded - Lost.
func (m *Movement) Kept() string {
	return Plus(m.Captured, negative(Plus(m.Undone, Plus(m.Refunded, m.Lost))))
}

// maxDays limits the days of a report.
const maxDays = 400

// VerificationStep is the comparison of one step with the books of a provider, one of Compared. The API shows it as it is.
type VerificationStep struct {
	Step     string `json:"step" enum:"charge,undo,reserve,confirm,refund,capture,void,authorization,dispute_lost,provider_again,provider_others,provider_known" doc:"undo: the charges that were undone, which are among those of charge, too. void: its money has all that was voided or has ended. authorization: what is still authorized. dispute_lost: what of these charges was lost in disputes, in Pawl's books only. provider_…: what only the provider has, as that check says. Money of charge - undo - void - refund + provider_… is what is kept, lost in disputes or still authorized."`
	Provider string `json:"provider,omitempty" doc:"With which provider it was compared. Absent: it was not."`
	Compared int64  `json:"compared" minimum:"0" doc:"Number of idempotency keys compared."`
	Wrong    int64  `json:"wrong" minimum:"0" doc:"Number of keys with a violation."`
	Done     int64  `json:"done" minimum:"0" doc:"Number of keys that are done at the provider."`

	NotCompared int64 `json:"notCompared,omitempty" minimum:"0" doc:"Number of keys that are not in the books that were read, such as those of a route at another provider."`

	Money Sums `json:"money,omitempty" doc:"The amounts by currency of what is done at the provider."`
	Here  Sums `json:"here,omitempty" doc:"The same in these books."`
}

// Sums are exact decimals by currency.
type Sums map[string]string

func (s Sums) add(amount, currency string) { s[currency] = Plus(cmp.Or(s[currency], "0"), amount) }

// all adds other sums, and leaves out what is zero.
func (s Sums) all(more Sums) Sums {
	sum := Sums{}
	for _, of := range []Sums{s, more} {
		for currency, amount := range of {
			sum.add(amount, currency)
		}
	}
	maps.DeleteFunc(sum, func(_, amount string) bool { return strings.Trim(amount, "-0.") == "" })
	return sum
}

// String is such as 3.50 EUR, 9.99 USD.
func (s Sums) String() string {
	all := make([]string, 0, len(s))
	for _, currency := range slices.Sorted(maps.Keys(s)) {
		all = append(all, s[currency]+" "+currency)
	}
	return strings.Join(all, ", ")
}

// VerificationCheck is one check of the books. The API shows it as it is.
type VerificationCheck struct {
	Name       string                 `json:"name"`
	Proves     string                 `json:"proves" doc:"A sentence that is true if there are no violations."`
	About      string                 `json:"about" enum:"orders,items,currencies,numbers,keys,entries" doc:"What the ids of the offenders are. numbers: order_no, without an order. keys: keys at a provider. entries: entry_no of the access log."`
	Checked    int64                  `json:"checked" minimum:"0" doc:"Number of rows checked."`
	Violations int64                  `json:"violations" minimum:"0"`
	Offenders  []VerificationOffender `json:"offenders" nullable:"false" doc:"The first 20 violations."`
	Warning    bool                   `json:"warning" doc:"Violations do not make the books wrong."`
	Money      Sums                   `json:"money,omitempty" doc:"By currency, how much more the providers have because of these violations. All checks together explain the difference between the two sides of what is kept or still authorized."`
}

// OfProvider reports whether it compares the books with those of a provider.
func (c *VerificationCheck) OfProvider() bool {
	return slices.ContainsFunc(providerChecks, func(p VerificationCheck) bool { return p.Name == c.Name })
}

// The kinds of IDs of offenders.
const (
	aboutOrders     = "orders"
	aboutItems      = "items"
	aboutCurrencies = "currencies"
	aboutNumbers    = "numbers" // "order_no" and a number, because the order does not exist
	aboutKeys       = "keys"    // order IDs or keys of the provider
	aboutEntries    = "entries" // entry_no of the access log
)

// VerificationOffender is one violation. The API shows it as it is.
type VerificationOffender struct {
	ID       string `json:"id"`
	Fault    string `json:"fault" doc:"What is wrong, in words."`
	Provider string `json:"provider,omitempty" doc:"The provider that differs, if it is known."`

	Difference Sums `json:"difference,omitempty" doc:"By currency, how much more of what is kept or still authorized the provider has."`

	Changed bool `json:"changed,omitempty" doc:"The order has changed since the report: this may be settled. The next verification tells."`
}

// Money is the total of one currency. Amounts are exact decimals.
type Money struct {
	Currency   string `json:"currency"`
	Orders     int64  `json:"orders"`
	Charges    int64  `json:"charges"`
	Charged    string `json:"charged"`
	Refunded   string `json:"refunded"`
	Authorized string `json:"authorized"` // and neither captured nor voided
	Voided     string `json:"voided"`     // of authorizations of completed orders: given up, or ended
	// Kept is Charged - Refunded - Voided - Authorized - Lost. Reports of older releases have Lost in it.
	Kept string `json:"kept"`
	// UnderWay is the part of Kept that belongs to orders that have not ended.
	UnderWay  string `json:"underWay"`
	Disputed  string `json:"disputed"`  // what open disputes are about: a part of Kept
	Lost      string `json:"lost"`      // what lost disputes were about, which the provider took back
	Forgotten int64  `json:"forgotten"` // how many of the orders were forgotten: lists do not have them
}

// OK reports whether there are no violations. Warnings do not count.
func (r Report) OK() bool { return len(r.Wrong()) == 0 }

// Wrong returns the names of the checks that failed.
func (r Report) Wrong() (names []string) {
	for _, c := range r.Checks {
		if c.Violations > 0 && !c.Warning {
			names = append(names, c.Name)
		}
	}
	return names
}

// The names of the checks.
const (
	completed = "completed"
	states    = "states"
	path      = "path"
	undone    = "undone"
	refunds   = "refunds"
	lines     = "lines"
	protocol  = "protocol"
	money     = "money"
	stock     = "stock"
	orphans   = "orphans"
	numbers   = "numbers"
	calls     = "calls"
	late      = "late"
	entries   = "access_log"
	forgotten = "forgotten"
	stuck     = "stuck"
)

// The names of the checks against a provider.
const (
	standing   = "provider_standing"
	ended      = "provider_ended"
	livings    = "provider_live"
	amounts    = "provider_amounts"
	references = "provider_references"
	single     = "provider_single"
	again      = "provider_again"
	once       = "provider_once"
	known      = "provider_known"
	unsettled  = "provider_unsettled"
	others     = "provider_others"
	uncounted  = "provider_uncounted"
)

var providerChecks = []VerificationCheck{
	{Name: standing, Proves: "What Pawl's books say is done is done at the provider."},
	{Name: ended, Proves: "No authorization of Pawl's books has ended at the provider, nor a part of one."},
	{Name: livings, Proves: "What is done or under way at the provider is in Pawl's books."},
	{Name: amounts, Proves: "The provider has the amount and currency of the order."},
	{Name: references, Proves: "The provider's references are those in the books."},
	{Name: single, Proves: "No order has two charges of Pawl's at the provider."},
	{Name: again, Proves: "Nobody else than Pawl charged or refunded an order of Pawl's at the provider."},
	{Name: once, Proves: "The provider did no request of Pawl's twice."},
	{Name: known, About: aboutKeys, Proves: "Pawl has a record of every key of its own that the provider has."},
	{Name: unsettled, Proves: "Every order, refund, capture and void that was sent to the provider has ended.", Warning: true},
	{Name: others, About: aboutKeys, Proves: "Nobody else charges at the provider.", Warning: true},
	{Name: uncounted, Proves: "Pawl counts every charge that the provider made and gave back.", Warning: true},
}

// offendersOfProvider is how many offenders are named for each check against a provider, if not more: an order among them
// is shown with its difference.
const offendersOfProvider = 1000

// ledger adds up the findings of all ranges. Proofs enter theirs concurrently.
type ledger struct {
	most int

	mu     sync.Mutex
	checks []VerificationCheck
	orders map[string]int64
	days   map[[2]string]Money // by day and currency
	moved  map[[2]string]Movement
	steps  map[string]*VerificationStep
	with   []string        // what is compared
	differ map[string]bool // whose books differ; with an empty key, it is not known whose
	others map[string]int64
}

func newLedger(most int32) *ledger {
	return &ledger{
		most: int(most), orders: map[string]int64{}, days: map[[2]string]Money{}, moved: map[[2]string]Movement{}, steps: map[string]*VerificationStep{}, differ: map[string]bool{}, others: map[string]int64{},
		checks: []VerificationCheck{
			{Name: completed, Proves: "Every completed order has one charge of its generation, amount and currency, " +
				"and one reservation of its generation, item and quantity, and neither is undone. What is captured on confirmation is captured."},
			{Name: states, Proves: "Every other order has the charge and the reservation that its status requires, and no other."},
			{Name: path, Proves: "The history of every order has no gap, follows edges of the state machine, and ends with the " +
				"status of the order. Its fence rises by one at a time. Its times match the order and never decrease. " +
				"The order has the ID that it was admitted with."},
			{Name: undone, Proves: "Every refund and release in the history undid one charge or reservation, and nothing else was undone."},
			{Name: lines, Proves: "The lines of every order agree with its amount and units, and its reservations with its lines."},
			{Name: refunds, Proves: "Every refunded charge has one refund of its generation, amount and currency. Requested refunds, " +
				"captures and voids are of completed orders, do not exceed what was captured, what was authorized and the quantity, " +
				"and are done if the books say so."},
			{Name: protocol, Proves: "The columns that drive an order agree with its status: due, held, owned, ended, outcome, failure."},
			{Name: money, About: aboutCurrencies, Proves: "In every currency, charges less refunds are the sum of the orders that hold money."},
			{Name: stock, About: aboutItems, Proves: "The reserved units of every item are the sum of its unsold reservations, and its sold " +
				"units the sum of the sold ones. Its units on hand are the sum of its stock movements, less what was sold " +
				"since the first of them. No tracked item has more units reserved than on hand."},
			{Name: orphans, About: aboutNumbers, Proves: "Every transition, charge, refund, reservation, confirmation, call, answer " +
				"and late undo belongs to an order."},
			{Name: numbers, About: aboutNumbers, Proves: "Every order that precedes another one exists."},
			{Name: calls, Proves: "Every completed remote step has its call and answer, and every answered effect is in the books."},
			{Name: late, Proves: "Every effect that was reported too late is undone within an hour, and no refund is open for longer."},
			{Name: entries, About: aboutEntries, Proves: "Every entry of the access log about a token, a link or a session is of something that was done."},
			{Name: forgotten, About: aboutCurrencies, Proves: "Every forgotten order is in the sums of its day, in a batch, and among the rows that answer its repetitions."},
			{Name: stuck, Proves: "No order is due for long without being picked up.", Warning: true},
		},
	}
}

func (l *ledger) add(name string, found finding) { l.addAt("", name, found, nil) }

// addAt adds what was found at a provider, which has more.
func (l *ledger) addAt(provider, name string, found finding, more Sums) {
	l.mu.Lock()
	defer l.mu.Unlock()
	check := l.named(name)
	check.Checked += found.Checked
	check.Violations += found.Violations
	if len(more) > 0 {
		check.Money = check.Money.all(more)
	}
	most := l.most
	if name == others {
		l.others[provider] += found.Violations
	} else if check.OfProvider() {
		most = max(most, offendersOfProvider)
		l.differ[provider] = l.differ[provider] || found.Violations > 0 && !check.Warning
	}
	for i, id := range found.Offenders {
		if len(check.Offenders) < most {
			check.Offenders = append(check.Offenders, VerificationOffender{ID: id, Fault: found.Faults[i], Provider: provider, Difference: more})
		}
	}
}

func (l *ledger) named(name string) *VerificationCheck {
	return &l.checks[slices.IndexFunc(l.checks, func(c VerificationCheck) bool { return c.Name == name })]
}

// enter adds the finding of a statement, or wraps its error.
func (l *ledger) enter(name string, found finding, err error) error {
	if err != nil {
		return fmt.Errorf("prove %s: %w", name, err)
	}
	l.add(name, found)
	return nil
}

// addForgotten adds the orders and the money of forgotten orders to the totals. Those that were forgotten during the
// verification may be counted twice.
func (l *ledger) addForgotten(rows []db.VerifyForgottenSumsRow) {
	for _, row := range rows {
		l.count(string(row.Status), row.Orders)
		l.sum(row.Day, Money{Currency: row.Currency, Orders: row.Orders, Charges: row.Charges, Charged: row.Charged, Refunded: row.Refunded,
			Authorized: "0", Voided: row.Voided, Kept: row.Kept, UnderWay: "0", Disputed: "0", Lost: row.Lost, Forgotten: row.Orders})
	}
}

func (l *ledger) count(status string, orders int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orders[status] += orders
}

func (l *ledger) sum(day string, m Money) {
	l.mu.Lock()
	defer l.mu.Unlock()
	key := [2]string{day, m.Currency}
	l.days[key] = l.days[key].and(m)
}

// move adds to the day on which money moved, and to its month.
func (l *ledger) move(more Movement) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, period := range []string{more.Period, more.Period[:len("2026-11")]} {
		key := [2]string{period, more.Currency}
		m, found := l.moved[key]
		if !found {
			m = Movement{period, more.Currency, "0", "0", "0", "0"}
		}
		m.Captured, m.Undone = Plus(m.Captured, more.Captured), Plus(m.Undone, more.Undone)
		m.Refunded, m.Lost = Plus(m.Refunded, more.Refunded), Plus(m.Lost, more.Lost)
		l.moved[key] = m
	}
}

// newestFirst sorts by period, the newest first, and by currency.
func newestFirst(a, b [2]string) int { return cmp.Or(cmp.Compare(b[0], a[0]), cmp.Compare(a[1], b[1])) }

// and adds two totals of one currency. The first may be empty.
func (m Money) and(more Money) Money {
	if m.Currency == "" {
		return more
	}
	return Money{
		Currency: m.Currency, Orders: m.Orders + more.Orders, Charges: m.Charges + more.Charges, Charged: Plus(m.Charged, more.Charged), Refunded: Plus(m.Refunded, more.Refunded),
		Authorized: Plus(m.Authorized, more.Authorized), Voided: Plus(m.Voided, more.Voided), Kept: Plus(m.Kept, more.Kept),
		UnderWay: Plus(m.UnderWay, more.UnderWay), Disputed: Plus(m.Disputed, more.Disputed), Lost: Plus(m.Lost, more.Lost),
		Forgotten: m.Forgotten + more.Forgotten,
	}
}

// compared returns the comparison of a step with a provider. Only one goroutine compares.
func (l *ledger) compared(step, provider string) *VerificationStep {
	key := step + " " + provider
	if l.steps[key] == nil {
		l.steps[key] = &VerificationStep{Step: step, Provider: provider, Money: Sums{}, Here: Sums{}}
	}
	return l.steps[key]
}

func (l *ledger) report(took time.Duration) Report {
	r := Report{Checks: l.checks, Orders: l.orders, Seconds: took.Seconds(), Compared: l.with}
	for i := range r.Checks {
		check := &r.Checks[i]
		check.About = cmp.Or(check.About, aboutOrders)
		if check.Offenders == nil {
			check.Offenders = []VerificationOffender{}
		}
	}
	r.Money, r.Days, r.Movements, r.Months = []Money{}, []Day{}, []Movement{}, []Movement{}
	total := map[string]Money{}
	for _, key := range slices.SortedFunc(maps.Keys(l.days), newestFirst) {
		day, money := key[0], l.days[key]
		total[money.Currency] = total[money.Currency].and(money)
		if day != "" && len(r.Days) < maxDays { // a charge without an order has no day
			r.Days = append(r.Days, Day{day, money})
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(l.moved), newestFirst) {
		into := &r.Movements
		if len(key[0]) == len("2026-11") {
			into = &r.Months
		}
		if len(*into) < maxDays {
			*into = append(*into, l.moved[key])
		}
	}
	for _, currency := range slices.Sorted(maps.Keys(total)) {
		r.Money = append(r.Money, total[currency])
	}
	r.Differ = slices.DeleteFunc(slices.Clone(l.with), func(provider string) bool { return !l.differ[provider] && !l.differ[""] })
	for _, provider := range l.with {
		r.Others = append(r.Others, l.others[provider])
	}
	for _, step := range slices.Sorted(maps.Keys(l.steps)) {
		r.Steps = append(r.Steps, *l.steps[step])
	}
	return r
}

// Plus adds two decimals exactly: a total can have more digits than any amount, and than a decimal of fixed size. The
// result is NaN if either is not a number, as in PostgreSQL.
func Plus(a, b string) string {
	x, okX := new(big.Rat).SetString(a)
	y, okY := new(big.Rat).SetString(b)
	if !okX || !okY {
		return "NaN"
	}
	return x.Add(x, y).FloatString(max(fraction(a), fraction(b)))
}

func negative(decimal string) string {
	if positive, is := strings.CutPrefix(decimal, "-"); is {
		return positive
	}
	return "-" + decimal
}

// fraction counts the digits after the point.
func fraction(decimal string) int {
	_, digits, _ := strings.Cut(decimal, ".")
	return len(digits)
}
