package console

import (
	"fmt"
	"maps"
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

// unitsLeft are the units of each line that no refund, or no capture, has, or may have.
func (q *ofOrder) unitsLeft(kind string) []int {
	left := make([]int, len(q.order.Lines))
	for i, line := range q.order.Lines {
		left[i] = line.Quantity
	}
	for _, o := range operationsOf(q.order) {
		for _, line := range o.Lines {
			if o.Kind == kind && o.State != client.CaptureStateFailed {
				left[line.Line-1] -= line.Quantity
			}
		}
	}
	return left
}

// units asks how many units of each line.
func (q *ofOrder) units(verb string) (fields []field) {
	left := q.unitsLeft(verb)
	for i, line := range q.order.Lines {
		f := field{Name: lineField(i), Most: left[i], Type: "number", Label: fmt.Sprintf("Units of %s (line %d)", visible(line.Item), i+1)}
		f.Help = fmt.Sprintf("%d of %d left to %s.", left[i], line.Quantity, verb)
		price := ""
		if line.Amount != "" {
			if f.Amount, price = q.each(&line); f.Amount != "" {
				f.Amount += " " + q.order.Currency
			}
			f.Help += " " + price + "."
		}
		if line.Kind != "" {
			f.Type, f.Help = "checkbox", ""
			f.Label = strings.TrimSuffix(fmt.Sprintf("%s: %s, %s", capital(string(line.Kind)), visible(line.Item), price), ", ")
			if !slices.ContainsFunc(q.order.Lines[:i], func(l client.Line) bool { return l.Kind != "" }) {
				f.Help = "Tax, shipping, fees and discounts are part of the " + verb + " only if you choose them."
			}
		}
		if left[i] == 0 {
			f.Type, f.Help = "text only", fmt.Sprintf("0 of %d left.", line.Quantity)
		}
		fields = append(fields, f)
	}
	return fields
}

// lineField is the name of the field for the units of a line.
func lineField(i int) string { return "line" + strconv.Itoa(i+1) }

// linesOf are the units that a form asks for, by line. All that is left of the charge names only what is put back.
func (q *ofOrder) linesOf(form url.Values) (lines []client.LineUnits) {
	left := q.unitsLeft(q.verb.Name)
	for i, line := range q.order.Lines {
		restock, units := form.Get("restock") == "yes" && line.Kind == "" && q.tracked[line.Item], numberOr(form.Get(lineField(i)), -1)
		if form.Get("all") == "yes" {
			if units = 0; restock {
				units = left[i]
			}
		}
		if units != 0 {
			lines = append(lines, client.LineUnits{Line: i + 1, Quantity: units, Restock: restock})
		}
	}
	return lines
}

// total is what units cost, before rounding.
func (q *ofOrder) total(lines []client.LineUnits) decimal.Decimal {
	sum := parsed(q.order.Amount).Zero()
	for _, units := range lines {
		line := q.order.Lines[units.Line-1]
		part, _ := decimal.MustNew(int64(units.Quantity), 0).Quo(decimal.MustNew(int64(line.Quantity), 0))
		part, _ = parsed(line.Amount).Mul(part)
		sum, _ = sum.Add(part)
	}
	return sum
}

// faults puts what is wrong with a line or an amount beside its field.
func (q *ofOrder) faults(p *client.Problem) map[string]string {
	wrong, lines := map[string]string{}, q.linesOf(q.form)
	for _, fault := range p.Errors {
		var n int
		if _, err := fmt.Sscanf(fault.Pointer, "/lines/%d/", &n); err == nil && n < len(lines) {
			wrong[lineField(lines[n].Line-1)] = fault.Detail
		}
	}
	left := map[client.ProblemCode]string{
		client.ProblemCodeRefundTooLarge:  fmt.Sprintf("%s %s can still be refunded.", count(refundable(q.order)), q.order.Currency),
		client.ProblemCodeCaptureTooLarge: fmt.Sprintf("%s %s can still be captured.", count(capturable(q.order)), q.order.Currency),
	}[p.Code]
	if tooMany := q.tooManyUnits(); left != "" && len(tooMany) > 0 {
		maps.Copy(wrong, tooMany)
	} else if left != "" {
		wrong["amount"] = left
	}
	if p.Code == client.ProblemCodeRestockTooLarge {
		wrong["restock"] = p.Title
	}
	return wrong
}

// tooManyUnits says at which lines a form asks for more units than are left.
func (q *ofOrder) tooManyUnits() map[string]string {
	wrong, left := map[string]string{}, q.unitsLeft(q.verb.Name)
	for _, line := range q.linesOf(q.form) {
		if n := left[line.Line-1]; line.Quantity > n {
			wrong[lineField(line.Line-1)] = fmt.Sprintf("Only %d of line %d can still be part of a %s.", n, line.Line, q.verb.Name)
		}
	}
	return wrong
}
