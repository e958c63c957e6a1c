package console

import (
	"bytes"
	"cmp"
	"encoding/csv"
	"fmt"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/govalues/decimal"

	"pawl/client"
)

// figure is a column of the money that moved in a month or on a day.
type figure struct {
	Name, Label string
	kinds       []client.ListMoneyMovementsParamsKind // nil: all
	back        bool                                  // it counts what went back, without a sign
	of          func(*client.VerificationMoved) string
	search      string // what orders with money in it have in common; empty: no list of orders leads to it
}

// had says what the figure of a row of the books was, and how much more or less the sum is now; empty: it is the same.
func (f figure) had(row *client.VerificationMoved, now decimal.Decimal) string {
	had := f.of(row)
	since, _ := now.Sub(parsed(had))
	if since.IsZero() {
		return ""
	}
	return f.Label + ": the books had " + count(had) + "; now it is " + count(since.Abs().String()) + map[bool]string{true: " less", false: " more"}[since.IsNeg()]
}

// movedFigures are the columns. The first, less the next three, is the last.
var movedFigures = []figure{
	{"captured", "Captured", []client.ListMoneyMovementsParamsKind{"charge", "capture"}, false, func(m *client.VerificationMoved) string { return m.Captured }, ""},
	{"undone", "Undone", []client.ListMoneyMovementsParamsKind{"undo"}, true, func(m *client.VerificationMoved) string { return m.Undone }, ""},
	{"refunded", "Refunded", []client.ListMoneyMovementsParamsKind{"refund"}, true, func(m *client.VerificationMoved) string { return m.Refunded }, "refunded:yes"},
	{"lost", "Lost in disputes", []client.ListMoneyMovementsParamsKind{"dispute_lost"}, true, func(m *client.VerificationMoved) string { return m.Lost }, "dispute:lost"},
	{"kept", "Kept", nil, false, func(m *client.VerificationMoved) string { return m.Kept }, "charged:yes"},
}

// movedCell is a figure of a row, with the URL of the movements that add up to it; empty: there are none. With a report,
// they are those until then.
type movedCell struct{ Name, Label, Amount, URL string }

func movedCells(m client.VerificationMoved, report *client.VerificationReport) (cells []movedCell) {
	for _, f := range movedFigures {
		cell := movedCell{Name: f.Name, Label: f.Label, Amount: f.of(&m)}
		if moved := strings.Trim(cell.Amount, "0.") != "" || f.Name == "kept"; moved && m.Period != sumPeriod {
			of := url.Values{"period": {m.Period}, "currency": {m.Currency}, "figure": {f.Name}}
			if report != nil {
				of.Set("report", strconv.FormatInt(report.Number, 10))
			}
			cell.URL = address("/console/movements", of)
		}
		cells = append(cells, cell)
	}
	return cells
}

// sumPeriod is the period of a row that adds up the others.
const sumPeriod = "Sum"

// movementsPage is a page of the movements that add up to a figure.
type movementsPage struct {
	Period, Currency string
	Figure           figure
	Movements        []client.MoneyMovement
	Found            int
	Sum              decimal.Decimal            // of all that were found, not only of this page
	More             bool                       // there are others, which the CSV has
	Report           *client.VerificationReport // that they are of; nil: all until now
	Row              *client.VerificationMoved  // of the report, or of the newest; nil: it has none
	VerifiedAt       time.Time
	Before, Next     string // the URLs of other pages
}

const (
	movementsShown = 100
	movementPages  = 10 // of the API, which are added up at most
)

func (v *visit) showMovements() error {
	f, filter, report, err := v.movementFilter()
	if err != nil {
		return err
	}
	p := movementsPage{Period: v.query("period"), Currency: filter.Currency, Figure: f, Report: report}
	skip := max(number(v.query("skip")), 0)
	for pages := 0; pages == 0 || filter.Cursor != "" && pages < movementPages; pages++ {
		list, err := v.api.ListMoneyMovements(v.r.Context(), filter)
		if err != nil {
			return err
		}
		for _, m := range list.Movements {
			p.add(m)
		}
		filter.Cursor = list.NextCursor
	}
	p.More, p.Found = filter.Cursor != "", len(p.Movements)
	slices.SortStableFunc(p.Movements, func(a, b client.MoneyMovement) int { return b.At.Compare(a.At) })
	p.Movements = p.Movements[min(skip, p.Found):min(skip+movementsShown, p.Found)]
	if skip > 0 {
		p.Before = v.with("skip", strconv.Itoa(max(skip-movementsShown, 0)))
	}
	if p.Found > skip+movementsShown {
		p.Next = v.with("skip", strconv.Itoa(skip+movementsShown))
	}
	if err := v.readFigure(&p); err != nil {
		return err
	}
	return v.show("movements", page{Title: f.Label + " " + p.When(), Data: p})
}

// movementFilter is what the URL selects, until the report that it may name.
func (v *visit) movementFilter() (f figure, filter client.ListMoneyMovementsParams, report *client.VerificationReport, err error) {
	name := cmp.Or(v.query("figure"), "kept")
	i := slices.IndexFunc(movedFigures, func(f figure) bool { return f.Name == name })
	if i < 0 {
		return f, filter, nil, errNoPage
	}
	f = movedFigures[i]
	filter = client.ListMoneyMovementsParams{Kind: f.kinds, Currency: v.query("currency")}
	if filter.From, filter.To, err = client.Period(v.query("period")); err != nil {
		return f, filter, nil, unusable(err.Error())
	}
	if n := number(v.query("report")); n != 0 {
		if report, err = v.api.GetVerificationReport(v.r.Context(), int64(n)); err == nil && report.FinishedAt.Before(filter.To) {
			filter.To = report.FinishedAt
		}
	}
	return f, filter, report, err
}

func (p *movementsPage) add(m client.MoneyMovement) {
	if p.Figure.back {
		m.Amount = strings.TrimPrefix(m.Amount, "-")
	}
	p.Sum, _ = p.Sum.Add(parsed(m.Amount))
	p.Movements = append(p.Movements, m)
}

// readFigure reads what the report says of the period, or else the newest one.
func (v *visit) readFigure(p *movementsPage) error {
	report := p.Report
	if report == nil && v.may("getVerification") {
		state, err := v.api.GetVerification(v.r.Context())
		if err != nil {
			return err
		}
		report = &state.Report
	}
	if report == nil {
		return nil
	}
	for _, m := range slices.Concat(report.Months, report.Movements) {
		if m.Period == p.Period && m.Currency == p.Currency {
			p.Row, p.VerifiedAt = &m, report.FinishedAt
		}
	}
	return nil
}

// Had is the figure that the report has, if the movements do not add up to it.
func (p movementsPage) Had() string { return p.Figure.had(p.Row, p.Sum) }

// When is the period in words.
func (p movementsPage) When() string {
	if month, err := time.Parse("2006-01", p.Period); err == nil {
		return "in " + month.Format("January 2006")
	}
	day, _ := time.Parse(time.DateOnly, p.Period) // movementFilter has parsed it
	return "on " + day.Format("2 January 2006")
}

// movementsCSV sends the movements as they are, with signs.
func (v *visit) movementsCSV() error {
	_, filter, report, err := v.movementFilter()
	if err != nil {
		return err
	}
	name := "movements"
	for _, part := range []string{v.query("period"), filter.Currency, v.query("figure")} {
		name = strings.TrimSuffix(name+"-"+part, "-")
	}
	if report != nil {
		name += fmt.Sprint("-report-", report.Number)
	}
	return v.sendCSV(name, byTime(v.api.MoneyMovementsCSV(v.r.Context(), filter)))
}

// byTime sorts a table by its first column, the oldest first, if it has no more pages than are added up. A longer one is not
// held in memory, and comes by order, as the API has it.
func byTime(pages iter.Seq2[[]byte, error]) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		n, held := 0, []byte{}
		for text, err := range pages {
			if held = append(held, text...); err != nil {
				yield(nil, err)
				return
			}
			if n++; n > movementPages {
				if !yield(held, nil) {
					return
				}
				held = nil
			}
		}
		if n <= movementPages {
			held = sortedByTime(held)
		}
		yield(held, nil)
	}
}

func sortedByTime(table []byte) []byte {
	lines, err := csv.NewReader(bytes.NewReader(table)).ReadAll()
	if err != nil || len(lines) == 0 {
		return table
	}
	slices.SortStableFunc(lines[1:], func(a, b []string) int {
		x, _ := time.Parse(time.RFC3339, a[0])
		y, _ := time.Parse(time.RFC3339, b[0])
		return x.Compare(y)
	})
	sorted := &bytes.Buffer{}
	out := csv.NewWriter(sorted)
	out.UseCRLF = true
	_ = out.WriteAll(lines) // a buffer takes all
	return sorted.Bytes()
}
