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
)

// Report is what Verify found.
type Report struct {
	Database string `json:"database,omitempty"` // where it is, for people; Verify does not know it

	Checks  []Check          `json:"checks"`
	Orders  map[string]int64 `json:"orders"` // by status
	Money   []Money          `json:"money"`  // by currency, sorted
	Seconds float64          `json:"seconds"`
}

// Check is one thing that was proved, or not.
type Check struct {
	Name       string     `json:"name"`
	Proves     string     `json:"proves"`  // one sentence, true when there are no violations
	About      About      `json:"about"`   // what the ids of its offenders are
	Checked    int64      `json:"checked"` // rows judged
	Violations int64      `json:"violations"`
	Offenders  []Offender `json:"offenders"` // the first of them, never nil
	Warning    bool       `json:"warning"`   // its violations do not make the books wrong
}

// About says what the ids of a check's offenders are.
type About string

// What ids can be.
const (
	AboutOrders     About = "orders"
	AboutItems      About = "items"
	AboutCurrencies About = "currencies"
	AboutNumbers    About = "numbers" // "order_no" and the number: there is no order
	AboutKeys       About = "keys"    // order ids as the provider has them, or its keys
	AboutEntries    About = "entries" // entry_no of the access log
)

// Offender is one violation.
type Offender struct {
	ID    string `json:"id"`    // see Check.About
	Fault string `json:"fault"` // what is wrong, in words
}

// Money is the total of one currency. Amounts are exact decimals.
type Money struct {
	Currency string `json:"currency"`
	Charges  int64  `json:"charges"`
	Charged  string `json:"charged"`
	Refunded string `json:"refunded"`
	// Authorized is what charges stand for that are not captured yet. Charged less
	// Refunded is Authorized and Kept.
	Authorized string `json:"authorized"`
	Kept       string `json:"kept"` // charges that stand and took the money
}

// OK reports whether there is no violation. Warnings are none.
func (r Report) OK() bool { return len(r.wrong()) == 0 }

// wrong names the checks that do not hold.
func (r Report) wrong() (names []string) {
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
	protocol  = "protocol"
	money     = "money"
	stock     = "stock"
	orphans   = "orphans"
	numbers   = "numbers"
	calls     = "calls"
	late      = "late"
	entries   = "access_log"
	stuck     = "stuck"
)

// The names of the checks against a provider.
const (
	standing   = "provider_standing"
	livings    = "provider_live"
	amounts    = "provider_amounts"
	references = "provider_references"
	single     = "provider_single"
	once       = "provider_once"
	known      = "provider_known"
	unsettled  = "provider_unsettled"
)

var providerChecks = []Check{
	{Name: standing, Proves: "What stands in the books is live at the provider."},
	{Name: livings, Proves: "What is live at the provider, or may still come to be, stands in the books."},
	{Name: amounts, Proves: "The provider has the amount and the currency of the order."},
	{Name: references, Proves: "Where the provider tells its own name for what was done, it is the one in the books."},
	{Name: single, Proves: "No order has two live charges at the provider."},
	{Name: once, Proves: "Nothing happened twice under one key."},
	{Name: known, About: AboutKeys, Proves: "Every key at the provider was sent from these books."},
	{Name: unsettled, Proves: "Every order that was sent to the provider has ended.", Warning: true},
}

// ledger adds up the findings of all ranges. Proofs enter theirs side by side.
type ledger struct {
	most int

	mu     sync.Mutex
	checks []Check
	orders map[string]int64
	money  map[string]Money
}

func newLedger(most int32) *ledger {
	return &ledger{
		most: int(most), orders: map[string]int64{}, money: map[string]Money{},
		checks: []Check{
			{Name: completed, Proves: "Every completed order has one charge that stands, of its generation, amount and currency, and one reservation that stands, of its generation, item and quantity. What was authorized is captured."},
			{Name: states, Proves: "Every other order has the charge and the reservation that its status promises, and none besides."},
			{Name: path, Proves: "The history of every order has no gap, is one path along edges of the machine, ends as the order is, and its fence only rises, by one. Its times are those of the order and do not go back, and its order has the id that it was admitted with."},
			{Name: undone, Proves: "Every refund and release in the history took back one charge or reservation, and nothing else was taken back."},
			{Name: refunds, Proves: "Every refunded charge has one refund of its generation, amount and currency. Refunds that were asked for are of completed orders, within the charge and the units, and done where the books say so."},
			{Name: protocol, Proves: "The columns that drive an order agree with its status: due, held, owned, ended, outcome, failure."},
			{Name: money, About: AboutCurrencies, Proves: "In every currency, what was charged less what was refunded is what the orders that hold money add up to."},
			{Name: stock, About: AboutItems, Proves: "What every item has reserved is the sum of its reservations that stand and are not sold, what it has sold is the sum of the others that stand, and what it has on hand is the sum of its stock movements less what was sold since the first of them. A tracked item never has more reserved than on hand."},
			{Name: orphans, About: AboutNumbers, Proves: "Every transition, charge, refund, reservation, confirmation, call, answer and late undo belongs to an order."},
			{Name: numbers, About: AboutNumbers, Proves: "Every order that another one was admitted after is there."},
			{Name: calls, Proves: "Every remote step that was done has its call and its answer, and what was answered done is in the books."},
			{Name: late, Proves: "No effect that was reported too late has stood for more than an hour without being undone, and no refund has been open for as long."},
			{Name: entries, About: AboutEntries, Proves: "Every entry of the access log about a token, a link or a session is of something that was done."},
			{Name: stuck, Proves: "No order has been due for long without being picked up.", Warning: true},
		},
	}
}

func (l *ledger) add(name string, found finding) {
	l.mu.Lock()
	defer l.mu.Unlock()
	check := &l.checks[slices.IndexFunc(l.checks, func(c Check) bool { return c.Name == name })]
	check.Checked += found.Checked
	check.Violations += found.Violations
	for i, id := range found.Offenders {
		if len(check.Offenders) < l.most {
			check.Offenders = append(check.Offenders, Offender{ID: id, Fault: found.Faults[i]})
		}
	}
}

// enter adds what a statement found; doing so fails where the statement has.
func (l *ledger) enter(name string, found finding, err error) error {
	if err != nil {
		return fmt.Errorf("prove %s: %w", name, err)
	}
	l.add(name, found)
	return nil
}

func (l *ledger) count(status string, orders int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orders[status] += orders
}

func (l *ledger) sum(m Money) {
	l.mu.Lock()
	defer l.mu.Unlock()
	total, seen := l.money[m.Currency]
	if !seen {
		l.money[m.Currency] = m
		return
	}
	total.Charges += m.Charges
	total.Charged = plus(total.Charged, m.Charged)
	total.Refunded = plus(total.Refunded, m.Refunded)
	total.Authorized = plus(total.Authorized, m.Authorized)
	total.Kept = plus(total.Kept, m.Kept)
	l.money[m.Currency] = total
}

func (l *ledger) report(took time.Duration) Report {
	r := Report{Checks: l.checks, Orders: l.orders, Seconds: took.Seconds()}
	for i := range r.Checks {
		check := &r.Checks[i]
		check.About = cmp.Or(check.About, AboutOrders)
		if check.Offenders == nil {
			check.Offenders = []Offender{}
		}
	}
	r.Money = []Money{}
	for _, currency := range slices.Sorted(maps.Keys(l.money)) {
		r.Money = append(r.Money, l.money[currency])
	}
	return r
}

// plus adds two decimals without losing a digit: a total can have more of them than any
// amount, and more than a decimal of fixed size holds. What is not a number stays what
// PostgreSQL calls it.
func plus(a, b string) string {
	x, okX := new(big.Rat).SetString(a)
	y, okY := new(big.Rat).SetString(b)
	if !okX || !okY {
		return "NaN"
	}
	return x.Add(x, y).FloatString(max(fraction(a), fraction(b)))
}

// fraction counts the digits after the point.
func fraction(decimal string) int {
	_, digits, _ := strings.Cut(decimal, ".")
	return len(digits)
}
