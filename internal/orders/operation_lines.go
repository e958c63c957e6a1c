package orders

import (
	"bytes"
	"encoding/json"

	"github.com/govalues/decimal"
)

// LinePart is a part of a line of an order, of which a request asks something.
type LinePart struct {
	Line     int              // 1 for the first line of the order
	Quantity int32            // units; 0 with an Amount
	Amount   *decimal.Decimal `json:",omitempty"` // of a line that is no item, without its sign: tax and discounts are split by amount
	Restock  bool             // put the units back into stock
}

// OperationLine is what a charge operation does to a line: the line with fewer units, and their part of its amount. Of a
// part without units, the quantity is 0.
type OperationLine struct {
	Number int `json:"line"` // 1 for the first line of the order
	Line
	Restock bool `json:"restock,omitempty"` // the units were put back into stock
}

// OperationLines returns the lines of an operation of a kind. The operations of an order that have not failed leave a
// line with its amount for as many of its units as they have, rounded half up: so operations for all units add up to
// its amount. It returns the code of the refusal if the order does not have that much.
func OperationLines(o *Order, kind string, asked []LinePart) (lines []OperationLine, refusal string) {
	ordered, before, tooLarge := ParseLines(o.Lines), operatedLines(o, kind), RefusedRefundTooLarge
	if kind == OperationCapture {
		tooLarge = RefusedCaptureTooLarge
	}
	for _, part := range asked {
		if part.Line < 1 || part.Line > len(ordered) {
			return nil, tooLarge
		}
		line, done := ordered[part.Line-1], &before[part.Line-1]
		whole := line
		done.units += int64(part.Quantity)
		if done.units > int64(whole.Quantity) || part.Amount != nil && (whole.Kind == "" || whole.Amount == nil) {
			return nil, tooLarge
		}
		if part.Restock {
			done.restocked += int64(part.Quantity)
			if line.Kind != "" || done.restocked > int64(whole.Quantity) {
				return nil, RefusedRestockTooLarge
			}
		}
		line.Quantity = part.Quantity
		if whole.Amount != nil {
			amount, _ := whole.amountOf(done.units).Sub(done.amount) // both at most the amount of the line
			if part.Amount != nil {
				amount = part.Amount.Pad(whole.Amount.Scale()).CopySign(*whole.Amount)
			}
			done.amount, _ = done.amount.Add(amount)
			done.parts = done.parts || part.Amount != nil
			if done.parts && (done.amount.CmpAbs(*whole.Amount) > 0 || amount.Sign()*whole.Amount.Sign() < 0) {
				return nil, tooLarge
			}
			line.Amount = &amount
		}
		lines = append(lines, OperationLine{Number: part.Line, Line: line, Restock: part.Restock})
	}
	return lines, ""
}

// operatedLine is what operations have done to a line.
type operatedLine struct {
	units, restocked int64
	amount           decimal.Decimal
	parts            bool // some of the amount was without units
}

// operatedLines adds up what operations of a kind have done to each line. The units of a failed operation can be asked
// for again, but what it has put back stays so.
func operatedLines(o *Order, kind string) []operatedLine {
	done := make([]operatedLine, len(ParseLines(o.Lines)))
	for _, operation := range ChargeOperations(o) {
		for _, line := range operation.Lines {
			if operation.Kind != kind || line.Number > len(done) {
				continue
			}
			d := &done[line.Number-1]
			if line.Restock {
				d.restocked += int64(line.Quantity)
			}
			if operation.State == OperationFailed {
				continue
			}
			d.units += int64(line.Quantity)
			d.parts = d.parts || line.Quantity == 0
			if line.Amount != nil {
				d.amount, _ = d.amount.Add(*line.Amount)
			}
		}
	}
	return done
}

// amountOf is the amount of some units of the line, rounded half up to the digits of its amount.
func (l *Line) amountOf(units int64) decimal.Decimal {
	all, some, whole := uint64(l.Quantity), uint64(units), l.Amount.Coef()
	part := whole/all*some + (whole%all*some+all/2)/all
	one := uint64(1)
	for range l.Amount.Scale() {
		one *= 10
	}
	amount, _ := decimal.NewFromInt64(int64(part/one), int64(part%one), l.Amount.Scale()) // no more than the amount
	return amount.Pad(l.Amount.Scale()).CopySign(*l.Amount)
}

// AmountOfLines is the sum of the amounts of lines: 0 if they have none.
func AmountOfLines(lines []OperationLine) decimal.Decimal {
	sum := decimal.Zero
	for _, l := range lines {
		if l.Amount != nil {
			sum, _ = sum.Add(*l.Amount)
		}
	}
	return sum
}

// RestockOfLines is the number of units that are put back into stock.
func RestockOfLines(lines []OperationLine) (units int32) {
	for _, l := range lines {
		if l.Restock {
			units += l.Quantity
		}
	}
	return units
}

// FormatOperationLines returns lines as they are stored, and sent to providers. It is nil for none.
func FormatOperationLines(lines []OperationLine) []byte {
	if lines == nil {
		return nil
	}
	return formatLines(lines)
}

func formatLines(lines any) []byte {
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	_ = encoder.Encode(lines) // our own type
	return bytes.TrimSpace(text.Bytes())
}
