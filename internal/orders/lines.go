package orders

import (
	"encoding/json"
	"slices"
	"strconv"

	"github.com/govalues/decimal"
)

// Line is one line of an order.
type Line struct {
	Item     string           `json:"item"`
	Quantity int32            `json:"quantity"`         // 1 or more
	Amount   *decimal.Decimal `json:"amount,omitempty"` // of all its units; nil if no line of the order has one
	Kind     string           `json:"kind,omitempty"`   // empty: an item, which has stock
}

// The kinds of lines.
const (
	LineItem     = "item" // not stored
	LineShipping = "shipping"
	LineTax      = "tax"
	LineFee      = "fee"
	LineDiscount = "discount" // the only one with a negative amount
)

// LinesMost is the maximum number of lines of an order.
const LinesMost = 200

// FormatLines returns lines as they are stored, and sent wherever the order is.
func FormatLines(lines []Line) string { return string(formatLines(lines)) }

// ParseLines reads stored lines. There are none in an empty text, which stands for an order of one item.
func ParseLines(text []byte) (lines []Line) {
	if len(text) > 0 {
		_ = json.Unmarshal(text, &lines) // our own column
	}
	return lines
}

// ItemsOf returns the items of an order, each once.
func ItemsOf(item string, lines []byte) []string {
	if len(lines) == 0 {
		return []string{item}
	}
	var items []string
	for _, l := range ParseLines(lines) {
		if l.KindName() == LineItem && !slices.Contains(items, l.Item) {
			items = append(items, l.Item)
		}
	}
	return items
}

// UnitsOf returns the units of each item of an order.
func UnitsOf(item string, quantity int32, lines []byte) map[string]int64 {
	if len(lines) == 0 {
		return map[string]int64{item: int64(quantity)}
	}
	units := map[string]int64{}
	for _, l := range ParseLines(lines) {
		if l.KindName() == LineItem {
			units[l.Item] += int64(l.Quantity)
		}
	}
	return units
}

// differencesMost limits the differences in one answer.
const differencesMost = 64

// LineDifferences compares the lines of a request with those of the stored order. An order of one item counts as one
// line; in a request, oneItem says that it is not written as a line. A quantity of 0 and a nil amount were left out, and
// match anything.
func LineDifferences(stored, sent []Line, oneItem bool) (d []Difference) {
	for i := range max(len(stored), len(sent)) {
		if len(d) >= differencesMost {
			return d[:differencesMost]
		}
		pointer := "/lines/" + strconv.Itoa(i)
		switch {
		case i >= len(sent):
			d = append(d, Difference{Pointer: pointer, Stored: FormatLines(stored[i : i+1])})
		case i >= len(stored):
			d = append(d, Difference{Pointer: pointer, Sent: FormatLines(sent[i : i+1])})
		case oneItem:
			d = append(d, stored[i].differences("", &sent[i])...)
		default:
			d = append(d, stored[i].differences(pointer, &sent[i])...)
		}
	}
	return d
}

func (l *Line) differences(at string, sent *Line) (d []Difference) {
	if l.Item != sent.Item {
		d = append(d, Difference{at + "/item", l.Item, sent.Item})
	}
	if sent.Quantity != 0 && l.Quantity != sent.Quantity {
		d = append(d, Difference{at + "/quantity", strconv.Itoa(int(l.Quantity)), strconv.Itoa(int(sent.Quantity))})
	}
	if sent.Amount != nil && (l.Amount == nil || l.Amount.Cmp(*sent.Amount) != 0) {
		d = append(d, Difference{at + "/amount", l.amountText(), sent.amountText()})
	}
	if l.Kind != sent.Kind {
		d = append(d, Difference{at + "/kind", l.KindName(), sent.KindName()})
	}
	return d
}

func (l *Line) amountText() string {
	if l.Amount == nil {
		return ""
	}
	return l.Amount.String()
}

// KindName is the kind of the line, also of an item.
func (l *Line) KindName() string {
	if l.Kind == "" {
		return LineItem
	}
	return l.Kind
}
