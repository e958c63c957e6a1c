package httpapi

import (
	"slices"
	"strconv"

	"github.com/danielgtaylor/huma/v2"
	"github.com/govalues/decimal"

	"pawl/engine"
	"pawl/internal/iso4217"
	"pawl/internal/orders"
)

// lineInput is a line of a request.
type lineInput struct {
	Item     itemName        `json:"item" minLength:"1" maxLength:"255" doc:"What is ordered, or the name of another kind of line. The same rules apply as for orderId."`
	Quantity int32           `json:"quantity,omitempty" minimum:"1" maximum:"1000000" doc:"Defaults to 1."`
	Amount   lineAmountInput `json:"amount,omitempty" doc:"Of the whole line, with the digits of the order's amount. Either all lines have one or none, and their sum is the order's amount. Lines that are no items require it."`
	Kind     string          `json:"kind,omitempty" enum:"item,shipping,tax,fee,discount" doc:"Only items have stock, and one line at least is an item, the default. Only a discount is negative."`
}

// lineAmountInput is the text of a number, as amountInput, but may be negative.
type lineAmountInput struct{ amountInput }

// Schema takes a decimal in a string, or a number.
func (lineAmountInput) Schema(r huma.Registry) *huma.Schema {
	return &huma.Schema{OneOf: []*huma.Schema{
		lineAmount(r), {Type: huma.TypeNumber, Format: "double"},
	}}
}

func lineAmount(r huma.Registry) *huma.Schema {
	return named(r, "SignedDecimal", &huma.Schema{
		Type: huma.TypeString, Pattern: `^-?(0|[1-9][0-9]*)(\.[0-9]+)?$`,
		Description: "A decimal number as a string, so that it is not rounded.",
	})
}

// lineList is a JSON array of the lines of an order, as stored.
type lineList []byte

// MarshalJSON writes the text as it is: it is JSON already.
func (l lineList) MarshalJSON() ([]byte, error) { return l, nil }

// Schema implements huma.SchemaProvider.
func (lineList) Schema(r huma.Registry) *huma.Schema {
	least, most, one := 1.0, 1e6, 1
	line := named(r, "Line", &huma.Schema{
		Type: huma.TypeObject, Required: []string{"item", "quantity"}, AdditionalProperties: true,
		Properties: map[string]*huma.Schema{
			"item":     {Type: huma.TypeString, MinLength: new(1), MaxLength: new(maxText)},
			"quantity": {Type: huma.TypeInteger, Format: "int32", Minimum: &least, Maximum: &most},
			"amount":   lineAmount(r),
			"kind": {Type: huma.TypeString, Enum: []any{orders.LineShipping, orders.LineTax, orders.LineFee, orders.LineDiscount},
				Description: "Absent for an item."},
		},
	})
	return &huma.Schema{Type: huma.TypeArray, Items: line, MinItems: &one, MaxItems: new(orders.LinesMost)}
}

// checkItems checks what is ordered: an item, or lines. One line without an amount is the item of the order. It returns
// the number of faults that only matter for a new order.
func checkItems(d *decoder, body *processBody, fallback iso4217.Currency, in *engine.Input) (onlyIfNew int) {
	switch {
	case !d.has("lines"):
		d.require(d.has("item"), "/item")
		return 0
	case d.has("item"):
		d.fault("/lines", "exclusive", "must not be given with item")
	case d.has("quantity"):
		d.fault("/lines", "exclusive", "must not be given with quantity")
	}
	if d.faulty("/lines") {
		return 0
	}
	r := lineCheck{decoder: d, currency: currencyOf(d, body, fallback), guessed: body.Currency == ""}
	noted := len(d.faults)
	for i := range body.Lines {
		r.read("/lines/"+strconv.Itoa(i), &body.Lines[i])
	}
	if len(d.faults)-noted == r.onlyIfNew {
		r.check(body.Lines, in)
	}
	return r.onlyIfNew
}

// lineCheck checks the lines of one request.
type lineCheck struct {
	*decoder
	currency  iso4217.Currency
	guessed   bool // the request names no currency, and a stored order may have another one
	lines     []orders.Line
	onlyIfNew int
}

func (r *lineCheck) read(at string, l *lineInput) {
	line := orders.Line{Item: string(l.Item), Quantity: max(l.Quantity, 1), Kind: l.Kind}
	if line.Kind == orders.LineItem {
		line.Kind = ""
	}
	switch {
	case l.Amount.amountInput != nil:
		line.Amount = r.amount(at+"/amount", l)
	case line.Kind != "" && !r.faulty(at+"/amount"):
		r.fault(at+"/amount", "required", "is required, because the line is not an item")
	}
	r.lines = append(r.lines, line)
}

// faulty reports whether a fault of the value was reported when it was read.
func (d *decoder) faulty(pointer string) bool {
	return slices.ContainsFunc(d.faults, func(f fieldError) bool { return f.Pointer == pointer })
}

func (r *lineCheck) amount(pointer string, l *lineInput) *decimal.Decimal {
	text, negative := l.Amount.amountInput, false
	if l.Kind == orders.LineDiscount && len(text) > 0 && text[0] == '-' {
		text, negative = text[1:], true
	}
	amount, code, detail := amountIn(text, r.currency)
	switch {
	case code == "negative":
		detail = "must be 0 or more, unless the line is a discount"
	case code == "" && l.Kind == orders.LineDiscount && !negative && amount.IsPos():
		code, detail = "positive", "of a discount must be 0 or less"
	}
	if code != "" {
		r.fault(pointer, code, detail)
	}
	if code == tooManyDigits && r.guessed {
		if amount, code, _ = parseAmount(text, iso4217.MostDigits); code == "" {
			amount = amount.Trim(0)
			r.onlyIfNew++
		}
	}
	if negative {
		amount = amount.Neg()
	}
	return &amount
}

// check checks lines that are right by themselves, and puts them into the input.
func (r *lineCheck) check(sent []lineInput, in *engine.Input) {
	units, amounts, sum, err := int32(0), 0, decimal.Zero, error(nil)
	for _, l := range r.lines {
		if l.Kind == "" {
			units += l.Quantity
		}
		if l.Amount != nil && err == nil {
			amounts++
			sum, err = sum.Add(*l.Amount)
		}
	}
	switch {
	case units == 0:
		r.fault("/lines", "no_item", "must have an item")
	case err != nil:
		r.fault("/lines", "too_large", "must have a sum of at most "+strconv.Itoa(maxWhole)+" digits before the decimal point")
	case amounts != 0 && amounts != len(r.lines):
		r.fault("/lines", "amounts", "must have an amount each, or none")
	case amounts != 0 && r.onlyIfNew == 0 && !r.faulty("/amount") && sum.Cmp(in.Amount) != 0:
		r.fault("/amount", "not_the_sum", "must be the sum of the lines, "+sum.String()+", not "+in.Amount.String())
	case amounts == 0 && len(r.lines) == 1:
		in.Item, in.Quantity = r.lines[0].Item, sent[0].Quantity
	default:
		in.Item, in.Quantity, in.Lines = "", units, orders.FormatLines(r.lines)
	}
}

// itemName is the name of an item in a line.
type itemName string

func (n *itemName) read(d *decoder, pointer string) { *n = itemName(d.name(pointer)) }
