package console

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/govalues/decimal"

	"pawl/client"
)

// track asks which items of a refund have stock to be put back into.
func (q *ofOrder) track() error {
	for _, line := range append(slices.Clone(q.order.Lines), client.Line{Item: q.order.Item}) {
		if q.verb.Name != "refund" || line.Kind != "" || line.Item == "" || q.tracked[line.Item] {
			continue
		}
		if !q.may("getInventory") { // it is not known
			q.tracked[line.Item] = true
			continue
		}
		item, err := q.api.GetInventory(q.r.Context(), line.Item)
		if err != nil && !hasStatus(err, http.StatusNotFound) { // a provider may have its stock
			return err
		}
		if err == nil && item.Tracked {
			q.tracked[line.Item] = true
		}
	}
	return nil
}

// left returns the lines of the order with the units and the amounts that no refund, or no capture, has, or may have.
func (q *ofOrder) left(kind string) []client.Line {
	left := slices.Clone(q.order.Lines)
	for _, o := range operationsOf(q.order) {
		for _, line := range o.Lines {
			if of := &left[line.Line-1]; o.Kind == kind && o.State != client.CaptureStateFailed {
				of.Quantity -= line.Quantity
				of.Amount = less(of.Amount, parsed(line.Amount))
			}
		}
	}
	return left
}

// less is an amount without a part. Lines may have no amounts.
func less(amount string, part decimal.Decimal) string {
	if amount == "" {
		return ""
	}
	rest, _ := parsed(amount).Sub(part)
	return rest.String()
}

// share is a part of an amount, rounded half up as by the API.
func share(amount string, some, all decimal.Decimal) decimal.Decimal {
	whole := parsed(amount)
	part, err := some.Quo(all)
	if err != nil { // nothing is left
		return decimal.Zero
	}
	part, _ = part.Mul(whole)
	part, _ = part.Add(decimal.MustNew(5, whole.Scale()+1).CopySign(whole))
	return part.Trunc(whole.Scale())
}

// rows ask how much of each line.
func (q *ofOrder) rows(verb string) (rows []field) {
	for i, left := range q.left(verb) {
		line := q.order.Lines[i]
		f := field{Name: lineField(i), Type: "number", Most: left.Quantity, Label: visible(line.Item), Kind: string(line.Kind), Paid: count(line.Amount),
			Left: fmt.Sprintf("%d of %d", left.Quantity, line.Quantity)}
		taken, _ := parsed(line.Amount).Sub(parsed(left.Amount))
		f.Amount = fmt.Sprintf("%s %d %d %s", line.Amount, line.Quantity, line.Quantity-left.Quantity, taken)
		if line.Kind != "" {
			f.Type, f.Most, f.Left, f.Amount, f.Help = "decimal", 0, count(left.Amount), left.Amount, "Empty: none."
		}
		if line.Kind == client.LineKindTax || line.Kind == client.LineKindDiscount {
			f.Amount, f.Help = f.Amount+" share", "Leave it empty for the units' share of what is left; 0 for none."
		}
		if left.Quantity == 0 || line.Kind != "" && parsed(left.Amount).IsZero() {
			f.Type, f.Help = "", ""
		}
		rows = append(rows, f)
	}
	if rows != nil {
		rows[0].Heads, rows[len(rows)-1].Ends = []string{"Line", "Amount", "Left", capital(verb)}, true
	}
	return rows
}

// lineField is the name of the field for a line.
func lineField(i int) string { return "line" + strconv.Itoa(i+1) }

// choice is what a form asks for of an order with lines.
type choice struct {
	lines  []client.LinePart // as the API knows them
	parts  []string          // what adds up to the total, in words
	total  decimal.Decimal
	amount *string             // the typed one
	wrong  []client.FieldError // what the API can't know
}

func (c *choice) add(part decimal.Decimal, what string) {
	if sign := map[int]string{1: "+ ", -1: "− "}[part.Sign()]; sign != "" {
		c.total, _ = c.total.Add(part)
		c.parts = append(c.parts, sign+count(part.Abs().String())+" for "+what)
	}
}

// chosen reads a form. All that is left of the charge is all that is left of the lines, unless a part of no line went back.
func (q *ofOrder) chosen(form url.Values) (c choice) {
	left, all := q.left(q.verb.Name), form.Get("all") == "yes"
	c.total, c.amount = parsed(q.order.Amount).Zero(), amountIn(form, "amount")
	items := decimal.Zero
	for i, line := range q.order.Lines {
		restock, units := form.Get("restock") == "yes" && q.tracked[line.Item], numberOr(form.Get(lineField(i)), -1)
		if all {
			units = left[i].Quantity
		}
		if line.Kind == "" {
			items, _ = items.Add(parsed(left[i].Amount))
		}
		if line.Kind != "" || units == 0 {
			continue
		}
		c.lines = append(c.lines, client.LinePart{Line: i + 1, Quantity: units, Restock: restock})
		if units < 0 || units > left[i].Quantity {
			c.wrong = append(c.wrong, client.FieldError{Pointer: "/" + lineField(i), Detail: fmt.Sprintf("This must be a number up to %d.", left[i].Quantity)})
		} else {
			part, _ := share(line.Amount, decimal.MustNew(int64(line.Quantity-left[i].Quantity+units), 0), decimal.MustNew(int64(line.Quantity), 0)).
				Sub(parsed(less(line.Amount, parsed(left[i].Amount))))
			c.add(part, fmt.Sprintf("%d × %s", units, visible(line.Item)))
		}
	}
	some := c.total
	for i, line := range q.order.Lines {
		if line.Kind == "" {
			continue
		}
		part, whole, text := decimal.Zero, parsed(line.Amount), amountIn(form, lineField(i))
		switch {
		case all:
			part = parsed(left[i].Amount)
		case text != nil:
			amount, err := decimal.Parse(strings.TrimLeft(*text, "-−"))
			part = amount.CopySign(whole).Pad(whole.Scale())
			if err != nil || part.Scale() > whole.Scale() || part.CmpAbs(parsed(left[i].Amount)) > 0 {
				c.wrong = append(c.wrong, client.FieldError{Pointer: "/" + lineField(i), Detail: "This must be an amount up to " + count(left[i].Amount) + "."})
			}
		case line.Kind == client.LineKindTax || line.Kind == client.LineKindDiscount: // they go with the items
			part = share(left[i].Amount, some, items)
		}
		switch named := !part.IsZero() && (all || text != nil || c.amount == nil); {
		case named && part.Cmp(whole) == 0:
			c.lines = append(c.lines, client.LinePart{Line: i + 1, Quantity: line.Quantity})
		case named:
			c.lines = append(c.lines, client.LinePart{Line: i + 1, Amount: part.Abs().String()})
		}
		c.add(part, visible(line.Item))
	}
	if all && c.total.Cmp(refundable(q.order)) != 0 {
		c.parts, c.lines = nil, slices.DeleteFunc(c.lines, func(l client.LinePart) bool { return !l.Restock })
	}
	return c
}

// explain says beside a field that more is asked for than is left.
func (q *ofOrder) explain(err error, form url.Values) {
	p, refused := errors.AsType[*client.Problem](err)
	if !refused {
		return
	}
	fault := map[client.ProblemCode]client.FieldError{
		client.ProblemCodeRefundTooLarge:  {Pointer: "/amount", Detail: q.money(refundable(q.order).String()) + " can still be refunded."},
		client.ProblemCodeCaptureTooLarge: {Pointer: "/amount", Detail: q.money(capturable(q.order).String()) + " can still be captured."},
		client.ProblemCodeRestockTooLarge: {Pointer: "/restock", Detail: p.Title},
	}[p.Code]
	if total := q.chosen(form).total; total.IsPos() && amountIn(form, "amount") == nil && fault.Pointer == "/amount" {
		fault.Detail = "The total is " + q.money(total.String()) + ", and " + fault.Detail
	}
	if fault.Pointer != "" {
		p.Errors = append(p.Errors, fault)
	}
}
