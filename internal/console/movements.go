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
	kinds       []client.ListMoneyMovementsParamsKind // nil: all, with their signs
}

// movedFigures are the columns. The first, less the next three, is the last.
var movedFigures = []figure{
	{"captured", "Captured", []client.ListMoneyMovementsParamsKind{"charge", "capture"}},
	{"undone", "Undone", []client.ListMoneyMovementsParamsKind{"undo"}},
	{"refunded", "Refunded", []client.ListMoneyMovementsParamsKind{"refund"}},
	{"lost", "Lost in disputes", []client.ListMoneyMovementsParamsKind{"dispute_lost"}},
	{"kept", "Kept", nil},
}

// sum adds up the movements that count in the figure.
func (f figure) sum(movements []client.MoneyMovement) (sum decimal.Decimal) {
	for _, m := range movements {
		if f.kinds == nil || slices.Contains(f.kinds, client.ListMoneyMovementsParamsKind(m.Kind)) {
			sum = added(sum, parsed(f.Amount(m)))
		}
	}
	return sum
}

// Amount is that of a movement, as the figure counts it.
func (f figure) Amount(m client.MoneyMovement) string {
	if f.kinds == nil {
		return m.Amount
	}
	return strings.TrimPrefix(m.Amount, "-")
}

// movedCells are those of a row, with the movements that add up to each. With a report, they are those until then.
func movedCells(m client.VerificationMoved, report *client.VerificationReport) (cells []moneyCell) {
	for i, amount := range []string{m.Captured, m.Undone, m.Refunded, m.Lost, m.Kept} {
		cell := moneyCell{Name: movedFigures[i].Name, Label: movedFigures[i].Label, Amount: amount}
		if moved := strings.Trim(amount, "0.") != "" || cell.Name == "kept"; moved && m.Period != sumPeriod {
			of := url.Values{"period": {m.Period}, "currency": {m.Currency}, "figure": {cell.Name}}
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
	Since            *booksSince                // that row; nil: there is none
	Before, Next     string                     // the URLs of other pages
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
		p.Movements = append(p.Movements, list.Movements...)
		filter.Cursor = list.NextCursor
	}
	p.More, p.Found, p.Sum = filter.Cursor != "", len(p.Movements), f.sum(p.Movements)
	if err := v.compareBooks(&p); err != nil {
		return err
	}
	slices.SortStableFunc(p.Movements, func(a, b client.MoneyMovement) int { return b.At.Compare(a.At) })
	p.Movements = p.Movements[min(skip, p.Found):min(skip+movementsShown, p.Found)]
	if skip > 0 {
		p.Before = v.with("skip", strconv.Itoa(max(skip-movementsShown, 0)))
	}
	if p.Found > skip+movementsShown {
		p.Next = v.with("skip", strconv.Itoa(skip+movementsShown))
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

// compareBooks compares all movements with what the report says of the period, or else the newest one. Those of all kinds
// also tell whether another figure has changed.
func (v *visit) compareBooks(p *movementsPage) error {
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
			p.Row = &m
		}
	}
	if p.Row == nil {
		return nil
	}
	var had, now []moneyCell
	for i, cell := range movedCells(*p.Row, report) {
		if p.Figure.kinds == nil || cell.Name == p.Figure.Name {
			had, now = append(had, cell), append(now, moneyCell{Amount: movedFigures[i].sum(p.Movements).String()})
		}
	}
	p.Since = changesSince(report.FinishedAt, had, now)
	for _, m := range p.Movements {
		if m.At.After(report.FinishedAt) {
			p.Since.Newer++
		}
	}
	return nil
}

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
		return strings.Compare(strings.TrimSuffix(a[0], "Z"), strings.TrimSuffix(b[0], "Z"))
	})
	sorted := &bytes.Buffer{}
	out := csv.NewWriter(sorted)
	out.UseCRLF = true
	_ = out.WriteAll(lines) // a buffer takes all
	return sorted.Bytes()
}
