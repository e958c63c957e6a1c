package console

import (
	"cmp"
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
}

// movedFigures are the columns. The first, less the next three, is the last.
var movedFigures = []figure{
	{"captured", "Captured", []client.ListMoneyMovementsParamsKind{"charge", "capture"}, false, func(m *client.VerificationMoved) string { return m.Captured }},
	{"undone", "Undone", []client.ListMoneyMovementsParamsKind{"undo"}, true, func(m *client.VerificationMoved) string { return m.Undone }},
	{"refunded", "Refunded", []client.ListMoneyMovementsParamsKind{"refund"}, true, func(m *client.VerificationMoved) string { return m.Refunded }},
	{"lost", "Lost in disputes", []client.ListMoneyMovementsParamsKind{"dispute_lost"}, true, func(m *client.VerificationMoved) string { return m.Lost }},
	{"kept", "Kept", nil, false, func(m *client.VerificationMoved) string { return m.Left }},
}

// movedCell is a figure of a row, with the URL of the movements that add up to it; empty: there are none.
type movedCell struct{ Name, Label, Amount, URL string }

func movedCells(m client.VerificationMoved) (cells []movedCell) {
	for _, f := range movedFigures {
		cell := movedCell{Name: f.Name, Label: f.Label, Amount: f.of(&m)}
		if moved := strings.Trim(cell.Amount, "0.") != "" || f.Name == "kept"; moved && m.Period != sumPeriod {
			cell.URL = address("/console/movements", url.Values{"period": {m.Period}, "currency": {m.Currency}, "figure": {f.Name}})
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
	Sum              decimal.Decimal           // of all that were found, not only of this page
	More             bool                      // there are others, which the CSV has
	Row              *client.VerificationMoved // of the newest report; nil: it has none
	VerifiedAt       time.Time
	Before, Next     string // the URLs of other pages
}

const (
	movementsShown = 100
	movementPages  = 10 // of the API, which are added up at most
)

func (v *visit) showMovements() error {
	f, filter, err := v.movementFilter()
	if err != nil {
		return err
	}
	p := movementsPage{Period: v.query("period"), Currency: filter.Currency, Figure: f}
	skip := max(number(v.query("skip")), 0)
	for pages := 0; pages == 0 || filter.Cursor != "" && pages < movementPages; pages++ {
		list, err := v.api.ListMoneyMovements(v.r.Context(), filter)
		if err != nil {
			return err
		}
		for _, m := range list.Movements {
			p.add(m, skip)
		}
		filter.Cursor = list.NextCursor
	}
	p.More = filter.Cursor != ""
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

// movementFilter is what the URL selects.
func (v *visit) movementFilter() (f figure, filter client.ListMoneyMovementsParams, err error) {
	name := cmp.Or(v.query("figure"), "kept")
	i := slices.IndexFunc(movedFigures, func(f figure) bool { return f.Name == name })
	if i < 0 {
		return f, filter, errNoPage
	}
	f = movedFigures[i]
	filter = client.ListMoneyMovementsParams{Kind: f.kinds, Currency: v.query("currency")}
	if filter.From, filter.To, err = client.Period(v.query("period")); err != nil {
		return f, filter, unusable(err.Error())
	}
	return f, filter, nil
}

// add adds up a movement, and shows it if it is on the page.
func (p *movementsPage) add(m client.MoneyMovement, skip int) {
	if p.Figure.back {
		m.Amount = strings.TrimPrefix(m.Amount, "-")
	}
	p.Sum, _ = p.Sum.Add(parsed(m.Amount))
	if p.Found++; p.Found > skip && len(p.Movements) < movementsShown {
		p.Movements = append(p.Movements, m)
	}
}

// readFigure reads what the newest report says of the period.
func (v *visit) readFigure(p *movementsPage) error {
	if !v.may("getVerification") {
		return nil
	}
	state, err := v.api.GetVerification(v.r.Context())
	if err != nil {
		return err
	}
	for _, m := range slices.Concat(state.Report.Months, state.Report.Movements) {
		if m.Period == p.Period && m.Currency == p.Currency {
			p.Row, p.VerifiedAt = &m, state.Report.FinishedAt
		}
	}
	return nil
}

// InBooks is the figure that the report has.
func (p movementsPage) InBooks() string { return p.Figure.of(p.Row) }

// Agrees reports whether the movements add up to it.
func (p movementsPage) Agrees() bool { return parsed(p.InBooks()).Cmp(p.Sum) == 0 }

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
	f, filter, err := v.movementFilter()
	if err != nil {
		return err
	}
	return v.sendCSV("movements-"+v.query("period")+"-"+filter.Currency+"-"+f.Name, v.api.MoneyMovementsCSV(v.r.Context(), filter))
}
