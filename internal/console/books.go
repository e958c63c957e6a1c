package console

import (
	"cmp"
	"fmt"
	"html/template"
	"iter"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/govalues/decimal"

	"pawl/client"
)

// booksPage is the progress of the verification of the books, and a report.
type booksPage struct {
	*client.Verification
	Wrong  []finding // warnings last
	Right  []client.VerificationCheck
	Stored []client.StoredVerification
	Past   *client.VerificationReport // the report, if it is not the newest
	Differ bool                       // books and providers: in a newest comparison, or in the older report
	Broken bool                       // one of our own checks failed
}

// finding is a check that found something, and in which report.
type finding struct {
	client.VerificationCheck
	Number int64
	At     time.Time
}

// storedShown is how many stored verifications a page has.
const storedShown = 20

func (v *visit) showBooks() error {
	state, err := v.api.GetVerification(v.r.Context())
	if err != nil {
		return err
	}
	p := booksPage{Verification: state}
	if n := int64(number(v.query("number"))); n != 0 && n != state.Report.Number {
		report, err := v.api.GetVerificationReport(v.r.Context(), n)
		if err != nil {
			return err
		}
		p.Report, p.Past = *report, report
	}
	slices.SortStableFunc(p.Comparisons, func(a, b client.Comparison) int { return falseFirst(a.Right, b.Right) })
	if p.Past != nil {
		p.Comparisons = nil
	}
	stored, err := v.api.ListVerifications(v.r.Context(), client.ListVerificationsParams{Limit: storedShown})
	if err != nil {
		return err
	}
	p.Stored = stored.Verifications
	p.find(p.Report.Checks, p.Report.Number, p.Report.FinishedAt)
	for _, c := range p.Comparisons {
		if p.Differ = p.Differ || !c.Right; c.Number != p.Report.Number {
			p.find(c.Wrong, c.Number, c.FinishedAt)
		}
	}
	slices.SortStableFunc(p.Wrong, func(a, b finding) int { return falseFirst(a.Warning, b.Warning) })
	v.live = "/console/live?books=" + url.QueryEscape(proofStep(state))
	return v.show("books", page{Title: "Books", Data: p})
}

// find enters the checks of a report.
func (p *booksPage) find(checks []client.VerificationCheck, number int64, at time.Time) {
	for _, check := range checks {
		if check.Violations == 0 {
			p.Right = append(p.Right, check)
			continue
		}
		p.Wrong = append(p.Wrong, finding{check, number, at})
		ours := findings[check.Name] == ""
		p.Broken, p.Differ = p.Broken || !check.Warning && ours, p.Differ || !check.Warning && !ours
	}
}

func falseFirst(a, b bool) int {
	rank := map[bool]int{true: 1}
	return rank[a] - rank[b]
}

// Itself is the verification of the report; nil: it is not among the newest.
func (p booksPage) Itself() *client.StoredVerification {
	if i := slices.IndexFunc(p.Stored, func(s client.StoredVerification) bool { return s.Number == p.Report.Number }); i >= 0 {
		return &p.Stored[i]
	}
	return nil
}

// Missed is the oldest of the newest verifications, none of which could compare with all providers; nil: the newest could, or
// did not try.
func (p booksPage) Missed() (since *client.StoredVerification) {
	for i := range p.Stored {
		if p.Past != nil || p.Stored[i].State != client.StoredVerificationStateDone || p.Stored[i].Failure == "" {
			break
		}
		since = &p.Stored[i]
	}
	return since
}

// Earlier reports whether the newest verification compared nothing, or not all, but an earlier one did.
func (p booksPage) Earlier() bool {
	now := func(c client.Comparison) bool { return c.Number == p.Report.Number }
	return len(p.Comparisons) > 0 && (p.Missed() != nil || !slices.ContainsFunc(p.Comparisons, now))
}

// Since is the oldest of the newest verifications that all have found what a check looks for.
func (p booksPage) Since(check string) (since *client.StoredVerification) {
	for i := range p.Stored {
		switch s := &p.Stored[i]; {
		case slices.Contains(s.Wrong, check):
			since = s
		case s.State == client.StoredVerificationStateDone && s.Failure == "" && (len(s.Providers) > 0 || findings[check] == ""):
			return since
		}
	}
	return since
}

// Others says what providers have that is for no order of Pawl's.
func (p booksPage) Others() string {
	var all []client.VerificationCheck
	for _, f := range p.Wrong {
		all = append(all, f.VerificationCheck)
	}
	return p.OthersIn(all)
}

func (p booksPage) OthersIn(checks []client.VerificationCheck) (text string) {
	for _, check := range checks {
		if check.Name == "provider_others" && check.Violations > 0 {
			text += "; " + others(check.Violations) + moneyIn(check.Money)
		}
	}
	return strings.TrimPrefix(text, "; ")
}

// others says that providers have charges for no order of Pawl's.
func others(n int64) string {
	return "a provider has " + count(n) + plural(n, " charge", " charges") + " for no order of Pawl's"
}

// Gone is the number of the report before, if it had differences and the newest comparison has none; 0: it had none.
func (p booksPage) Gone() int64 {
	compared := slices.DeleteFunc(slices.Clone(p.Stored), func(s client.StoredVerification) bool {
		return s.State != client.StoredVerificationStateDone || len(s.Providers) == 0 || s.Failure != ""
	})
	if p.Past != nil || p.Differ || len(compared) < 2 || !slices.ContainsFunc(compared[1].Wrong, func(check string) bool { return findings[check] != "" }) {
		return 0
	}
	return compared[1].Number
}

// Newest are the months that are shown first.
func (p booksPage) Newest() []client.VerificationMoved {
	var months []string
	for i, m := range p.Report.Months {
		if months = slices.Compact(append(months, m.Period)); len(months) > 3 {
			return p.Report.Months[:i]
		}
	}
	return p.Report.Months
}

// Sums adds up movements, by currency; nil if there is nothing to add, or some are missing.
func (p booksPage) Sums(list []client.VerificationMoved) (sums []client.VerificationMoved) {
	for _, m := range list {
		i := slices.IndexFunc(sums, func(s client.VerificationMoved) bool { return s.Currency == m.Currency })
		if i < 0 {
			m.Period = sumPeriod
			sums = append(sums, m)
			continue
		}
		s := &sums[i]
		for sum, more := range map[*string]string{&s.Captured: m.Captured, &s.Undone: m.Undone, &s.Refunded: m.Refunded, &s.Lost: m.Lost, &s.Kept: m.Kept} {
			*sum = added(parsed(*sum), parsed(more)).String()
		}
	}
	if len(sums) == len(list) || len(list) == movementsInReport {
		return nil
	}
	return sums
}

// movementsInReport is how many days or months a report has at most.
const movementsInReport = 400

// Month is the month (UTC) in which the books were verified, in words.
func (p booksPage) Month() string { return p.Report.FinishedAt.UTC().Format("January 2006") }

// OfMonth is the money that moved in that month until then, by currency.
func (p booksPage) OfMonth() (list []client.VerificationMoved) {
	month := p.Report.FinishedAt.UTC().Format("2006-01")
	return slices.DeleteFunc(slices.Clone(p.Report.Months), func(m client.VerificationMoved) bool { return m.Period != month })
}

// Search is the search for the orders of a row; empty if no list adds up to its figures: it looks at only so many orders, in
// all currencies, and does not have those that were forgotten.
func (p booksPage) Search(row client.VerificationMoney) string {
	same, search, orders := p.Report.Money, "currency:"+row.Currency, int64(0)
	if row.Day != "" {
		same, search = p.Report.Days, fmt.Sprintf("from:%s to:%[1]s %s sort:oldest", row.Day, search)
	}
	for _, m := range same {
		if m.Day != row.Day {
			continue
		}
		if orders += m.Orders; p.Past != nil || orders >= countedTo || m.Forgotten > 0 { // lists have what is there now
			return ""
		}
	}
	return search
}

// moneyCell is a figure of a row, with the URL of the list that adds up to it; empty: there is none.
type moneyCell struct{ Name, Label, Amount, URL string }

// placedFigures are the columns of the money of orders, named by what the orders with money in them have in common.
var placedFigures = []moneyCell{
	{Name: "charged:yes", Label: "Charged or authorized"}, {Name: "refunded:yes", Label: "Refunded or undone"},
	{Name: "voided:yes", Label: "Voided or ended"}, {Name: "authorized:yes", Label: "Still authorized"}, {Name: "dispute:lost", Label: "Lost in disputes"},
	{Name: "charged:yes", Label: "Kept"}, {Name: "dispute:open", Label: "In dispute"}, {Name: "charged:yes status:open", Label: "Of kept, under way"},
}

// placedCells are those of a row, with the orders of a search; empty: no list has them.
func placedCells(m client.VerificationMoney, search string) []moneyCell {
	cells := slices.Clone(placedFigures)
	for i, amount := range []string{m.Charged, m.Refunded, m.Voided, m.Authorized, m.Lost, m.Kept, m.Disputed, m.UnderWay} {
		if cells[i].Amount = amount; search != "" && strings.Trim(amount, "0.") != "" {
			cells[i].URL = ordersURL(search + " " + cells[i].Name)
		}
	}
	return cells
}

// totalCells are those of the totals of a list, whose orders are all under way if any must be.
func totalCells(m client.MoneyTotal) []moneyCell {
	return placedCells(client.VerificationMoney{Charged: m.Charged, Refunded: m.Refunded, Voided: m.Voided, Authorized: m.Authorized,
		Lost: m.Lost, Kept: m.Kept, Disputed: m.Disputed, UnderWay: m.Kept}, "")
}

// booksSince is how a list of orders or movements differs from the books that led to it.
type booksSince struct {
	At      time.Time // when they were verified
	Changes string    // empty: none
	Newer   int64     // how many movements are newer
}

// changesSince compares each figure of the books with what it is now.
func changesSince(at time.Time, had, now []moneyCell) *booksSince {
	var all []string
	for i, h := range had {
		more := added(parsed(now[i].Amount), parsed(h.Amount).Neg())
		if !more.IsZero() {
			all = append(all, h.Label+" "+count(h.Amount)+" (now "+count(more.Abs())+map[bool]string{true: " less)", false: " more)"}[more.IsNeg()])
		}
	}
	return &booksSince{At: at, Changes: strings.Join(all, ", ")}
}

// sinceBooks compares a list of orders with the figure of the newest report that led to it. The first, which is of all charged
// orders, also tells whether another has changed. nil: none led to it, or their sum is not known.
func (v *visit) sinceBooks(p *ordersPage) *booksSince {
	if !p.OfBooks() || p.More || len(p.Totals) > 1 || !v.may("getVerification") {
		return nil
	}
	state, err := v.api.GetVerification(v.r.Context())
	if err != nil {
		return nil // the list is worth more
	}
	books, now := booksPage{Verification: state}, totalCells(append(p.Totals, client.MoneyTotal{})[0])
	for _, m := range slices.Concat(state.Report.Money, state.Report.Days) {
		had := placedCells(m, books.Search(m))
		switch i := slices.IndexFunc(had, func(c moneyCell) bool { return c.URL == ordersURL(p.Search) }); {
		case i == 0:
			return changesSince(state.Report.FinishedAt, had[:7], now)
		case i > 0:
			return changesSince(state.Report.FinishedAt, had[i:i+1], now[i:])
		}
	}
	return nil
}

// proveBooks starts a verification, which also compares the books with those of the providers that are ticked.
func (v *visit) proveBooks() error {
	if err := v.r.ParseForm(); err != nil {
		return unusable("The form could not be read.")
	}
	if err := v.needs("startVerification"); err != nil {
		return err
	}
	if v.ofAnother() {
		return errOfAnother
	}
	compare := client.StartVerificationParams{Compare: v.r.PostForm["compare"]}
	return v.backTo("/console/books")(v.api.StartVerification(v.r.Context(), compare))
}

// Took is how many seconds a verification took; 0 if it has not ended.
func (p booksPage) Took(s client.StoredVerification) float64 {
	return max(0, s.FinishedAt.Sub(s.StartedAt).Seconds())
}

// place has the books of one or more steps.
type place struct {
	URL      string
	Provider string // all that can be compared there, as the API takes it
	compared []client.VerificationStep
}

// Steps says what was compared there, such as 46 charges checked, 1 differs; empty: nothing.
func (p place) Steps() string {
	keys := map[client.VerificationStepStep]client.VerificationStep{} // of all providers there
	for _, s := range p.compared {
		sum := keys[s.Step]
		keys[s.Step] = client.VerificationStep{Compared: sum.Compared + s.Compared, Wrong: sum.Wrong + s.Wrong}
	}
	var all []string
	for _, step := range slices.Sorted(maps.Keys(keys)) {
		if s := keys[step]; s.Compared > 0 {
			differ := map[bool]string{true: ", " + count(s.Wrong) + plural(s.Wrong, " differs", " differ")}[s.Wrong > 0]
			all = append(all, keysOf(string(step), s.Compared)+" checked"+differ)
		}
	}
	return strings.Join(all, "; ")
}

// comparedMoney is a figure of one currency on both sides.
type comparedMoney struct {
	Figure, Currency string
	Here, There      decimal.Decimal
	Total            bool // of the rows above
	OursOnly         bool // the provider's books do not say it
}

// Difference is how much more the provider has.
func (m comparedMoney) Difference() decimal.Decimal { return added(m.There, m.Here.Neg()) }

// added adds sums of fewer digits than would overflow, and keeps the digits after the point.
func added(a, b decimal.Decimal) decimal.Decimal {
	sum, _ := a.Add(b)
	return sum.Pad(max(a.Scale(), b.Scale()))
}

// sides are the figures of both sides, which add up to the totals.
var sides = []struct {
	step, figure string
	less         bool
}{
	{"charge", "Charged or authorized", false}, {"undo", "Undone", true}, {"void", "Voided or ended", true}, {"refund", "Refunded", true},
	{"provider_again", "Not by Pawl, for its orders", false}, {"provider_others", "Not by Pawl, for no order of Pawl's", false},
	{"provider_known", "Under Pawl's keys, but never sent", false}, {"", "= Still charged or authorized", false},
	{"authorization", "Still authorized", true}, {"dispute_lost", "Lost in disputes, as Pawl's books say", true}, {"", "= Kept", false},
}

// Money is that of both sides, without the figures that are zero.
func (p place) Money() (rows []comparedMoney) {
	currencies := map[string]string{}
	for _, s := range p.compared {
		maps.Copy(currencies, s.Money)
		maps.Copy(currencies, s.Here)
	}
	for _, currency := range slices.Sorted(maps.Keys(currencies)) {
		sum := comparedMoney{Currency: currency, Total: true}
		for _, side := range sides {
			row := comparedMoney{Figure: side.figure, Currency: currency, OursOnly: side.step == "dispute_lost"}
			for _, s := range p.compared {
				if string(s.Step) == side.step {
					row.Here, row.There = added(row.Here, parsed(s.Here[currency])), added(row.There, parsed(s.Money[currency]))
				}
			}
			if row.OursOnly {
				row.There = row.Here
			}
			if side.less {
				row.Here, row.There = row.Here.Neg(), row.There.Neg()
			}
			sum.Figure, sum.Here, sum.There = side.figure, added(sum.Here, row.Here), added(sum.There, row.There)
			switch last := len(rows) - 1; {
			case side.step == "" && last >= 0 && rows[last].Total && rows[last].Currency == currency: // nothing is authorized or lost
				rows[last] = sum
			case side.step == "":
				rows = append(rows, sum)
			case !row.Here.IsZero() || !row.There.IsZero():
				row.Here, row.There = added(row.Here, row.There.Zero()), added(row.There, row.Here.Zero())
				rows = append(rows, row)
			}
		}
	}
	return rows
}

// placesOf are the places of providers such as charge=https://pay.example.
func placesOf(providers []string, compared []client.VerificationStep) (all []place) {
	for _, provider := range providers {
		_, url, _ := strings.Cut(provider, "=")
		i := slices.IndexFunc(all, func(p place) bool { return p.URL == url })
		if i < 0 {
			i = len(all)
			all = append(all, place{URL: url})
		}
		at := &all[i]
		at.Provider = strings.TrimPrefix(at.Provider+","+provider, ",")
		for _, s := range compared {
			if s.Provider == provider {
				at.compared = append(at.compared, s)
			}
		}
	}
	return all
}

// keysOf is a number of steps, such as 46 charges.
func keysOf(step string, n int64) string {
	name := cmp.Or(map[string]string{"reserve": "reservation", "confirm": "confirmation"}[step], step)
	return count(n) + " " + name + plural(n, "", "s")
}

// moneyIn is money by currency without signs, after a colon; empty: there is none.
func moneyIn(money map[string]string) string {
	var sums []string
	for _, currency := range slices.Sorted(maps.Keys(money)) {
		sums = append(sums, count(strings.TrimPrefix(money[currency], "-"))+" "+currency)
	}
	return strings.TrimSuffix(": "+strings.Join(sums, ", "), ": ")
}

// ToDo is what to do about what a check against a provider has found; empty for other checks.
func (p booksPage) ToDo(check string) string { return differences[check] }

var differences = map[string]string{
	"provider_standing":   "Look the charge up at the provider. If it never happened there, charge the customer by hand or write it off; if it was refunded there by hand, keep a note.",
	"provider_ended":      "Void what is left of the order: it can't be captured any more.",
	"provider_live":       "Refund it at the provider by hand, or have the provider send its callback again: Pawl then undoes it.",
	"provider_amounts":    "Correct the amount at the provider: refund what is too much, or charge what is missing.",
	"provider_references": "Find the cause before you cancel or refund the order: Pawl's reference may belong to another order.",
	"provider_single":     "Refund all but the charge that the order page names.",
	"provider_again":      "Ask who did that. If a charge was a mistake, refund it at the provider.",
	"provider_once":       "Refund the repeated charges at the provider, and tell it that it did one request twice.",
	"provider_known":      "An order may have been lost when the database was restored or moved. If nobody sends it again, refund it at the provider.",
	"provider_unsettled":  "Nothing for those that go on by themselves, with an open refund, too: compare again later. Those that are held for attention wait for a person, under Needs a person.",
	"provider_others":     "Find out who charges there beside Pawl.",
	"provider_uncounted":  "Nothing: the customer pays nothing. The provider counts each among its charges and again among what it gave back; Pawl counts neither.",
}

// Finding names the violations of a check against a provider; empty for other checks.
func (p booksPage) Finding(check string) string { return findings[check] }

var findings = map[string]string{
	"provider_standing":   "Done in Pawl's books, but not, or no longer, at the provider",
	"provider_ended":      "Authorized in Pawl's books, ended at the provider",
	"provider_live":       "Done at the provider, but not, or undone, in Pawl's books",
	"provider_amounts":    "Another amount or currency at the provider",
	"provider_references": "Another reference at the provider",
	"provider_single":     "Orders with two charges at the provider",
	"provider_again":      "Orders of Pawl's that somebody else charged or refunded at the provider",
	"provider_once":       "One request of Pawl's that the provider did twice",
	"provider_known":      "At the provider under a key of Pawl's, but Pawl has no record of it",
	"provider_unsettled":  "Still on the way: orders, refunds, captures and voids that have not ended",
	"provider_others":     "At the provider, for no order of Pawl's",
	"provider_uncounted":  "Charged and given back at the provider; Pawl counts neither",
}

// differences says what the newest comparisons found of an order, if the person may know. kept: the provider has money of it
// that it should not have.
func (v *visit) differences(orderID string) (all []template.HTML, kept bool) {
	if !v.may("getVerification") {
		return nil, false
	}
	found, err := v.api.GetVerification(v.r.Context(), client.GetVerificationParams{OrderID: orderID})
	if err != nil {
		return nil, false // the order itself could be read
	}
	for _, comparison := range found.Comparisons {
		for _, check := range comparison.Wrong {
			for _, o := range check.Offenders {
				kept = kept || check.Name == "provider_live" && !o.Changed && strings.Contains(o.Fault, ", charge of ") && strings.HasSuffix(o.Fault, "done at the provider")
				said, advice := template.HTML(findings[check.Name])+": "+isolated(o.Fault), template.HTML(`<a href="/console/books#provider">Compare again</a> before you move its money.`)
				if check.Name == "provider_again" {
					said = isolated(capital(o.Fault)) // says it of this order
				} else if check.Name == "provider_ended" && !o.Changed {
					advice = template.HTML(differences[check.Name])
				}
				all = append(all, "<strong>The provider's books differ.</strong> "+said+". Compared "+ago(comparison.FinishedAt)+
					map[bool]template.HTML{true: "; the order has changed since"}[o.Changed]+". "+advice)
			}
		}
	}
	return all, kept
}

// proofStep is the progress of a verification.
func proofStep(v *client.Verification) string {
	return fmt.Sprint(v.StartedAt.UnixMicro(), " ", v.State, " ", v.Done)
}

// booksCSV sends a table of a report.
func (v *visit) booksCSV() error {
	n, table := number(v.query("number")), cmp.Or(v.query("table"), "days")
	report, err := v.api.GetVerificationReport(v.r.Context(), int64(n))
	if err != nil {
		return err
	}
	text, err := v.api.BooksCSV(v.r.Context(), int64(n), client.GetVerificationReportParamsTable(table))
	if err != nil {
		return err
	}
	what := map[string]string{"days": "orders-by-day", "movements": "days"}[table]
	v.beginCSV(fmt.Sprintf("books-%s-report-%d-%s", cmp.Or(what, table), n, report.FinishedAt.UTC().Format(time.DateOnly)))
	_, _ = v.w.Write(text) // the browser may have gone
	return nil
}

func (v *visit) beginCSV(name string) {
	header := v.w.Header()
	header.Set("Content-Type", "text/csv; charset=utf-8")
	header.Set("Content-Disposition", `attachment; filename="`+name+`.csv"`)
	header.Set("Cache-Control", "no-store")
	v.w.WriteHeader(http.StatusOK)
}

// ordersCSV sends all orders of a search.
func (v *visit) ordersCSV() error {
	s := parseSearch(v.query("q"), time.Now())
	if len(s.notes) > 0 {
		return unusable("The search can't be downloaded: " + s.notes[0])
	}
	filter := s.filter
	filter.Limit = 200 // at a time
	return v.sendCSV("orders-"+s.now.UTC().Format("20060102-150405"), v.api.OrdersCSV(v.r.Context(), filter))
}

// sendCSV sends the pages of a list.
func (v *visit) sendCSV(name string, pages iter.Seq2[[]byte, error]) error {
	begun := false
	for text, err := range pages {
		if err != nil && begun {
			panic(http.ErrAbortHandler) // the browser must not take a part for the whole
		}
		if err != nil {
			return err
		}
		if !begun {
			v.beginCSV(name)
			begun = true
		}
		if _, err := v.w.Write(text); err != nil {
			return nil // the browser has gone
		}
	}
	return nil
}
