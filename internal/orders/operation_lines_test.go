package orders_test

import (
	"encoding/json"
	"testing"

	"github.com/govalues/decimal"
	"pgregory.net/rapid"

	"pawl/internal/orders"
)

// TestPartsOfALine: whatever is refunded of a line, in any parts, some of which fail, all units add up to its amount.
func TestPartsOfALine(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		scale := rapid.IntRange(0, 4).Draw(rt, "scale")
		amount := decimal.MustNew(rapid.Int64Range(-9e18, 9e18).Draw(rt, "amount"), scale)
		quantity := rapid.Int32Range(1, 1_000_000).Draw(rt, "quantity")
		o := orders.Order{Lines: []byte(orders.FormatLines([]orders.Line{{Item: "cup", Quantity: quantity, Amount: &amount}}))}
		var done []orders.ChargeOperation
		ask := func(units int32) orders.OperationLine {
			lines, refusal := orders.OperationLines(&o, orders.OperationRefund, []orders.LinePart{{Line: 1, Quantity: units}})
			if refusal != "" {
				rt.Fatalf("%d units: %s", units, refusal)
			}
			done = append(done, orders.ChargeOperation{Kind: orders.OperationRefund, State: orders.OperationDone, Lines: lines})
			o.ChargeOperationList, _ = json.Marshal(done)
			return lines[0]
		}
		unitsLeft := func() int32 {
			left := quantity
			for _, operation := range done {
				if operation.State == orders.OperationDone {
					left -= operation.Lines[0].Quantity
				}
			}
			return left
		}
		for left := quantity; left > 0; left = unitsLeft() {
			ask(rapid.Int32Range(max(1, left/4), left).Draw(rt, "units"))
			if rapid.IntRange(0, 3).Draw(rt, "fails") == 0 {
				done[rapid.IntRange(0, len(done)-1).Draw(rt, "which")].State = orders.OperationFailed
				o.ChargeOperationList, _ = json.Marshal(done)
			}
		}
		sum := decimal.Zero
		for _, operation := range done {
			if operation.State == orders.OperationDone {
				sum, _ = sum.Add(orders.AmountOfLines(operation.Lines))
			}
		}
		if sum.Cmp(amount) != 0 {
			rt.Errorf("%s in all, of a line of %s", sum, amount)
		}
	})
}
